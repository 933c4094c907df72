/* What every body may use. A body prints a transcript, which must be the same byte for byte over
 * TCP and over a link. So a body never prints a port, a pid, a time or a count that depends on
 * timing, and it waits for states, not for time. */
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

/* Constants that older headers lack, with the values of asm-generic/socket.h, linux/tcp.h and
 * linux/in.h. */
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
    /* The body makes its connections itself, and is called with fd -1. */
    RAW = 1,
    /* Its warmed connections must stay on TCP. */
    NOUP = 2,
    /* The server dies without a chance to report its counters. */
    MUTE_S = 4,
    /* The client dies without a chance to report its counters. */
    MUTE_C = 8,
    /* Its warmed connections end so soon that an upgrade may come too late. */
    MAYUP = 32,
    /* The transcript shows the numbers of descriptors, or the order of turns: the body does not run
     * where streams are demoted at random moments. */
    STEADY = 64,
    /* One side is killed, which over RDMA the other side always sees as a reset. */
    DIES = 128,
    /* A program can see what a link over RDMA does differently here: docs/limitations.md. */
    ONEHOST = 256,
    /* The body looks for addresses in shared memory, which soft-iWARP must tell the peer:
     * docs/threat-model.md. */
    UNTOLD = 512,
    /* The body moves bytes by helpers only, so that it also runs with O_NONBLOCK sockets. */
    NB = 16,
};

struct body {
    const char *name;
    /* Two processes; fd is the connection that was accepted, or made. */
    void (*server)(int fd), (*client)(int fd);
    void (*one)(void);      /* or one process */
    int flags;
    int limit;              /* seconds, 0 for the usual ten */
    void (*resume)(int fd); /* goes on after exec_self() */
};

#define TWO(NAME, SERVER, CLIENT, ...) \
    {.name = NAME, .server = SERVER, .client = CLIENT, ##__VA_ARGS__}
#define ONE(NAME, BODY, ...) {.name = NAME, .one = BODY, ##__VA_ARGS__}

/* family: 4, 6, or 'm' for IPv4 that the accepted end sees as IPv6 */
extern int is_server, warmed, nonblock, family;
/* The MSS of connections to come; 0 for that of loopback, with which small buffers are slow. */
extern int mss;
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

/* The two sides talk over an inherited Unix socket (fd SYNC), never over the connection. */
enum { SYNC = 3 };
void tell(long v);
long hear(void); /* -1: the other side is gone */
void meet(void);
void await_state_of(pid_t tid, char state); /* as in /proc, three times in a row */
void await_asleep(pid_t tid); /* until that thread sleeps in the kernel */
void await_still(pid_t tid);  /* until that thread sleeps, and stays asleep */
/* Both sides call it, and meet: then all of `buf` does not fit into TCP unread. */
void hold_less(int fd);

/* Bytes: a pattern by seed and offset. put and get return how many bytes went well. */
void fill(void *p, unsigned seed, size_t off, size_t n);
/* After a call that failed: is the call to be made again? After EAGAIN this waits for the events
 * first. */
int again(int fd, short events);
size_t put_at(int fd, unsigned seed, size_t off, size_t n);
size_t get_at(int fd, unsigned seed, size_t off, size_t n);
static inline size_t put(int fd, unsigned seed, size_t n) { return put_at(fd, seed, 0, n); }
static inline size_t get(int fd, unsigned seed, size_t n) { return get_at(fd, seed, 0, n); }
size_t drain(int fd, unsigned seed); /* get until the end */
void pour_out(int fd, size_t n);      /* reads n bytes, whatever they are */
void echo_rounds(int fd, int rounds, size_t size); /* both sides call it */

/* States. */
unsigned await(int fd, unsigned must); /* until poll shows all of must; prints what it shows */
void await_reset(int fd);              /* until poll shows all of a reset */
/* Asks twice everything that a program can ask of a connection that is over. */
void post_mortem(int fd);
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
long unseen(long number, long argument); /* a bare system call, which no library can intercept */
static inline int unseen_close(int fd) { return unseen(SYS_close, fd); }
/* Closes without a word, since another process may be writing to the transcript. */
void drop(int fd);

/* Connections. */
int listen_any(int *port);
int try_dial(int port, int flags);
int dial(int port);
int take(int listener);
int take_one(void);     /* tells the other side a port, and accepts its connection */
int join(void);         /* both sides call it: one more connection, warmed */
int join_cold(void);    /* not yet warmed */
void pair(int end[2]);  /* both ends in this process, warmed */
void warm(int fd, int server);
/* As echo_rounds, and says whether the rounds went by TCP. */
void rounds_by_tcp(int fd, int rounds, size_t size);
/* How many of this end's bytes the peer's TCP has acknowledged, as the kernel itself says. */
uint64_t acknowledged(int fd);
void warm_pair(int a, int b);
socklen_t loopback(struct sockaddr_storage *a, int port, int server);
/* A connection's peer, as getpeername shows it. */
socklen_t far_end(struct sockaddr_storage *a, int port);

/* Epoll sets. */
#define PATTERN 0xfedcba9876543210ull
int ctl(int ep, int op, int fd, unsigned events, uint64_t data);
int set_of(int fd, unsigned events); /* with PATTERN for data */
int say_wait(int ep, int ms);

/* obey() is a server that follows orders until END: n sends n bytes, WHEN_ASLEEP + n sends them
 * after the client has fallen asleep, SHUT ends its half, and RESET resets the connection. order()
 * gives an order, and waits until it is done. */
enum { END = -1, SHUT = -2, RESET = -3, WHEN_ASLEEP = 1 << 20 };
void obey(int fd);
void order(long n);

/* Processes, threads, signals. */
extern volatile sig_atomic_t signals[65];
void count_signal(int sig, int flags);
pthread_t start(void *(*f)(void *), void *arg);
/* A thread that start_busy() starts writes its thread id here first of all. */
extern volatile pid_t busy;
pthread_t start_busy(void *(*f)(void *), void *arg);
void *finish(pthread_t t);
/* Puts this process on one CPU, which all threads but the first get only when no other thread wants
 * it. */
void background_last(void);
pid_t child(void);         /* fork; dies if it cannot */
void reap(pid_t pid);      /* prints how it ended */
pid_t child_that_waits(void); /* the child goes on when let() or let_on() is called */
void let(pid_t pid);          /* lets the child go on, and reaps it */
pid_t child_that_looks(void); /* the child goes on at once, until it calls has_looked() */
void has_looked(void);        /* in the child: ends await_look(), and waits as above */
void await_look(void);
void let_on(void);            /* as let(), without reaping */
void exec_self(int fd);       /* executes this program anew, which goes on in body.resume(fd) */
enum { SELF_ARGC = 7 };
char **self_argv(int fd);     /* the arguments for that, with /proc/self/exe */
int temp_file(unsigned seed, size_t n);
