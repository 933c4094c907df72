/* What every body may use. A body prints a transcript: the same one, byte for byte, whatever carries its bytes.
 * So it never prints a port, a pid, a time or a count that depends on timing, and it waits for states, not for time. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What older headers lack, as asm-generic/socket.h, linux/tcp.h and linux/in.h have it. */
#ifndef SO_PREFER_BUSY_POLL
#define SO_PREFER_BUSY_POLL 69
#define SO_BUSY_POLL_BUDGET 70
#endif
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif
#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#define SO_RESERVE_MEM 73
#endif
#ifndef SO_TXREHASH
#define SO_TXREHASH 74
#endif
#ifndef TCP_TX_DELAY
#define TCP_TX_DELAY 37
#endif
#ifndef TCP_IS_MPTCP
#define TCP_IS_MPTCP 43
#endif
#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif
#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

enum flags {
    RAW = 1,     /* makes its connections itself: called with fd -1 */
    NOUP = 2,    /* its warmed connections must stay on TCP */
    MUTE_S = 4,  /* the server dies without a chance to report its counters */
    MUTE_C = 8,  /* so does the client */
    MAYUP = 32,  /* its warmed connections are over so soon that an upgrade may come too late */
    STEADY = 64, /* tells of the very numbers that descriptors get, or of turns: not where streams are demoted at any moment */
    DIES = 128,  /* one side is killed, which over RDMA the other always learns as a reset */
    ONEHOST = 256, /* what it does a link over RDMA cannot keep from being seen: docs/limitations.md */
    UNTOLD = 512, /* its peer is told no address; soft-iWARP has to tell it: docs/threat-model.md */
    NB = 16,     /* moves bytes by helpers only, so it also runs with O_NONBLOCK sockets */
};

struct body {
    const char *name;
    void (*server)(int fd), (*client)(int fd); /* two processes; fd is the connection, accepted or made */
    void (*one)(void);                         /* or one */
    int flags;
    int limit;                /* seconds, 0 for the usual ten */
    void (*resume)(int fd);   /* where exec_self() goes on */
};

#define TWO(NAME, SERVER, CLIENT, ...) {.name = NAME, .server = SERVER, .client = CLIENT, ##__VA_ARGS__}
#define ONE(NAME, BODY, ...) {.name = NAME, .one = BODY, ##__VA_ARGS__}

extern int is_server, warmed, nonblock, family; /* family: 4, 6, or 'm' for IPv4 seen as IPv6 by the accepted end */
extern int mss; /* of connections to come, 0 for loopback's own, with which small buffers crawl */
extern int hosts; /* the two sides are in net namespaces of their own */
extern pid_t peer_pid;
extern char buf[8 << 20];

/* The transcript. T prints a call and what it returned, D also what it put into buf. */
#define T(call) t_ret(#call, (errno = 0, (long)(call)))
#define D(call) t_data(#call, (errno = 0, (long)(call)))
#define YES(what) say("%s: %s", #what, (what) ? "yes" : "NO")
#define COUNT(a) (sizeof(a) / sizeof *(a))
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void die(const char *what);
long t_ret(const char *call, long ret);
long t_data(const char *call, long ret);
const char *mask_name(unsigned mask); /* of poll and epoll */
uint32_t sum(const void *p, size_t n);
int open_fds(void);

/* The other side, over an inherited Unix socket (fd SYNC), never over the connection. */
enum { SYNC = 3 };
void tell(long v);
long hear(void); /* -1: the other side is gone */
void meet(void);
void await_state_of(pid_t tid, char state); /* as in /proc, three times in a row */
void await_asleep(pid_t tid); /* until that thread sleeps in the kernel */
void await_still(pid_t tid); /* until it does and goes on to */
void hold_less(int fd); /* both sides, which meet: an unread `buf` does not fit into TCP */

/* Bytes: a pattern by seed and offset. put and get return how many went well. */
void fill(void *p, unsigned seed, size_t off, size_t n);
/* Behind a call that failed: whether to make it again, having waited for the events if it was EAGAIN. */
int again(int fd, short events);
size_t put_at(int fd, unsigned seed, size_t off, size_t n);
size_t get_at(int fd, unsigned seed, size_t off, size_t n);
static inline size_t put(int fd, unsigned seed, size_t n) { return put_at(fd, seed, 0, n); }
static inline size_t get(int fd, unsigned seed, size_t n) { return get_at(fd, seed, 0, n); }
size_t drain(int fd, unsigned seed); /* get until the end */
void pour_out(int fd, size_t n);      /* reads so many bytes, whatever they are */
void echo_rounds(int fd, int rounds, size_t size); /* both sides call it */

/* States. */
unsigned await(int fd, unsigned must); /* until poll shows all of must; prints what it shows */
void await_reset(int fd);              /* until poll shows all of one */
void post_mortem(int fd);              /* everything a program can ask of a connection that is over, twice */
void await_in(int fd, int n);          /* until n bytes can be read */
int ready(int fd);                     /* poll mask right now */
void await_state(int fd, int tcp_state);
double now(void);
int get_int(int fd, int level, int name); /* of an option; -errno if it cannot be read */
int set_int(int fd, int level, int name, int v);
void timeout(int fd, int which, int ms); /* SO_RCVTIMEO or SO_SNDTIMEO */
void set_nonblock(int fd, int on);
void nodelay(int fd);
void linger(int fd, int on, int seconds); /* SO_LINGER */
long unseen(long number, long argument); /* a system call of our own, which nobody can intercept */
static inline int unseen_close(int fd) { return unseen(SYS_close, fd); }
void drop(int fd);        /* close; says nothing: another process may be writing to the transcript */

/* Connections. */
int listen_any(int *port);
int try_dial(int port, int flags);
int dial(int port);
int take(int listener);
int take_one(void);     /* tells the other side a port and takes whoever dials it */
int join(void);         /* both sides call it: one more connection, warmed */
int join_cold(void);    /* not yet warmed */
void pair(int end[2]);  /* both ends in this process, warmed */
void warm(int fd, int server);
void rounds_by_tcp(int fd, int rounds, size_t size); /* as echo_rounds, and says whether they went by TCP */
uint64_t acknowledged(int fd); /* how many of this end's bytes the peer's TCP has: asked of the kernel itself */
void warm_pair(int a, int b);
socklen_t loopback(struct sockaddr_storage *a, int port, int server);
socklen_t far_end(struct sockaddr_storage *a, int port); /* a connection's peer, as getpeername shows it */

/* Epoll sets. */
#define PATTERN 0xfedcba9876543210ull
int ctl(int ep, int op, int fd, unsigned events, uint64_t data);
int set_of(int fd, unsigned events); /* with PATTERN for data */
int say_wait(int ep, int ms);

/* A server that does what it is told, over and over: sends so many bytes, also not before the client sleeps, ends its
 * side or all of the connection; and how it is told. */
enum { END = -1, SHUT = -2, RESET = -3, WHEN_ASLEEP = 1 << 20 };
void obey(int fd);
void order(long n);

/* Processes, threads, signals. */
extern volatile sig_atomic_t signals[65];
void count_signal(int sig, int flags);
pthread_t start(void *(*f)(void *), void *arg);
extern volatile pid_t busy; /* its number, which a thread that is started so writes first of all */
pthread_t start_busy(void *(*f)(void *), void *arg);
void *finish(pthread_t t);
/* This process has one CPU, and threads that the program has not made get it when nobody else wants it. */
void background_last(void);
pid_t child(void);         /* fork; dies if it cannot */
void reap(pid_t pid);      /* prints how it ended */
pid_t child_that_waits(void); /* comes to work when it is let */
void let(pid_t pid);          /* go on, and reaps it */
pid_t child_that_looks(void); /* tells that it has looked, and goes on when it is let */
void has_looked(void);
void await_look(void);
void let_on(void);            /* without reaping it */
void exec_self(int fd);    /* this program anew: goes on in body.resume(fd) */
enum { SELF_ARGC = 7 };
char **self_argv(int fd);  /* what it is called with for that, from /proc/self/exe */
int temp_file(unsigned seed, size_t n);
