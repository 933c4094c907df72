/* ctest: all bodies in one program. `ctest -l` lists them, `ctest [options] NAME` runs one:
 *   -w  warm up connections first        -n  O_NONBLOCK sockets (bodies marked so)
 *   -6  over IPv6                        -m  IPv4, the accepted end sees a v4-mapped address
 *   -s K=V, -c K=V   environment of the server, of the client, only
 *   -N  two hosts: the server in the net namespace hb, the client in ha, as scripts/guest/run makes
 *       them
 * The process started here is never preloaded. It forks and executes itself once for each side,
 * before any socket exists. It prints both transcripts when both sides have ended, and waits until
 * no descendant is left. */
#include "t.h"
#include <dirent.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mount.h>

int is_server, warmed, nonblock, family = 4, mss, hosts;
pid_t peer_pid;
char buf[8 << 20];
volatile sig_atomic_t signals[65];
volatile pid_t busy;

extern const struct body basic_bodies[], stdio_bodies[], msg_bodies[], control_bodies[],
    end_bodies[], signal_bodies[], handler_bodies[], cancel_bodies[], timeout_bodies[],
    nonblock_bodies[], thread_bodies[], option_bodies[], pinned_bodies[], ioctl_bodies[],
    poll_bodies[], epoll_bodies[], nest_bodies[], register_bodies[], ready_bodies[], fd_bodies[],
    process_bodies[], exec_bodies[], passing_bodies[], sandbox_bodies[], rights_bodies[],
    raw_bodies[], file_bodies[], socket_bodies[], connect_bodies[], reuse_bodies[], bulk_bodies[],
    large_bodies[], linger_bodies[], events_bodies[], number_bodies[], fork_bodies[],
    forkset_bodies[], kill_bodies[], asleep_bodies[], badptr_bodies[], spin_bodies[];
static const struct body *const families[] = {
    basic_bodies, stdio_bodies, msg_bodies, control_bodies, end_bodies, signal_bodies,
    handler_bodies, cancel_bodies, timeout_bodies, nonblock_bodies, thread_bodies, option_bodies,
    pinned_bodies, ioctl_bodies, poll_bodies, epoll_bodies, nest_bodies, register_bodies,
    ready_bodies, fd_bodies, process_bodies, exec_bodies, passing_bodies, sandbox_bodies,
    rights_bodies, raw_bodies, file_bodies, socket_bodies, connect_bodies, reuse_bodies,
    bulk_bodies, large_bodies, linger_bodies, events_bodies, number_bodies, fork_bodies,
    forkset_bodies, kill_bodies, asleep_bodies, badptr_bodies, spin_bodies,
};
static const struct body *body;
static const char *role;

/* --- transcript --- */

void say(const char *fmt, ...)
{
    char line[4096];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap), saved = errno;
    va_end(ap);
    if (n > (int)sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    if (write(1, line, n) != n)
        _exit(99);
    errno = saved;
}

void die(const char *what)
{
    say("cannot go on: %s: %s", what, strerrorname_np(errno));
    _exit(98);
}

long t_ret(const char *call, long ret)
{
    if (ret == -1)
        say("%s = -1 %s", call, errno ? strerrorname_np(errno) : "(errno 0)");
    else
        say("%s = %ld", call, ret);
    return ret;
}

long t_data(const char *call, long ret)
{
    if (ret <= 0)
        return t_ret(call, ret);
    say("%s = %ld sum %08x", call, ret, sum(buf, ret));
    return ret;
}

const char *mask_name(unsigned mask)
{
    static __thread char text[128];
    static const struct { unsigned bit; const char *name; } names[] = {
        {POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLERR, "ERR"}, {POLLHUP, "HUP"},
        {POLLNVAL, "NVAL"}, {POLLRDNORM, "RDNORM"}, {POLLRDBAND, "RDBAND"}, {POLLWRNORM, "WRNORM"},
        {POLLWRBAND, "WRBAND"}, {POLLMSG, "MSG"}, {POLLREMOVE, "REMOVE"}, {POLLRDHUP, "RDHUP"},
    };
    text[0] = 0;
    for (size_t i = 0; i < COUNT(names); i++)
        if (mask & names[i].bit)
            strcat(strcat(text, text[0] ? "|" : ""), names[i].name);
    return text[0] ? text : "none";
}

uint32_t sum(const void *p, size_t n)
{
    uint32_t h = 2166136261u;
    for (const unsigned char *c = p; n--; c++)
        h = (h ^ *c) * 16777619u;
    return h;
}

static int is_netlink(int fd)
{
    int domain = 0;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &(socklen_t){sizeof domain}) == 0 &&
           domain == AF_NETLINK;
}

/* Sets `opening` if one of the descriptors is of a kind that is open while the library loads other
 * libraries and opens a device. */
static int count_fds(int *opening)
{
    int n = -1; /* not the directory itself */
    DIR *d = opendir("/proc/self/fd");
    *opening = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[PATH_MAX];
        if (e->d_name[0] == '.' || atoi(e->d_name) >= 900)
            continue;
        n++;
        ssize_t len = readlinkat(dirfd(d), e->d_name, path, sizeof path - 1);
        path[len < 0 ? 0 : len] = 0;
        *opening |= strstr(path, ".so.") || strstr(path, "infiniband") ||
                    strstr(path, "libibverbs") || is_netlink(atoi(e->d_name));
    }
    if (d)
        closedir(d);
    return n;
}

/* Under the preload it counts several times and returns the least, because a thread of the library
 * may have a descriptor open for a moment. Where the library looks for another host, it may be
 * opening libraries and a device one after the other, which takes long on a busy processor. */
int open_fds(void)
{
    int opening, n = count_fds(&opening);
    for (int i = 0; i < (hosts ? opening ? 2000 : 50 : 5) && getenv("LD_PRELOAD"); i++) {
        usleep(2000);
        int again = count_fds(&opening);
        n = again < n ? again : n;
    }
    return n;
}

/* --- the other side --- */

void tell(long v)
{
    while (send(SYNC, &v, sizeof v, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

long hear(void)
{
    long v;
    ssize_t n;
    while ((n = recv(SYNC, &v, sizeof v, MSG_WAITALL)) < 0 && errno == EINTR)
        ;
    return n == sizeof v ? v : -1;
}

void meet(void)
{
    tell(0);
    hear();
}

void await_state_of(pid_t tid, char state)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%d/stat", tid);
    for (int asleep = 0; asleep < 3; usleep(1000)) {
        FILE *f = fopen(path, "r");
        if (!f || !fgets(text, sizeof text, f))
            die("await_state_of");
        fclose(f);
        char *end = strrchr(text, ')');
        asleep = end && end[2] == state ? asleep + 1 : 0;
    }
}

void await_asleep(pid_t tid)
{
    await_state_of(tid, 'S');
}

/* Returns how often the thread has gone to sleep so far. */
static long sleeps_of(pid_t tid)
{
    char path[64], line[256];
    long n = -1;
    snprintf(path, sizeof path, "/proc/%d/status", tid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f) &&
           sscanf(line, "voluntary_ctxt_switches: %ld", &n) != 1)
        ;
    if (!f || n < 0)
        die("sleeps_of");
    fclose(f);
    return n;
}

/* The thread must stay asleep. On the way from one sleep to the next a signal would be handled with
 * no wait to end. A thread that wakes up by itself from time to time is taken for asleep after ten
 * tries. */
void await_still(pid_t tid)
{
    for (int tries = 0; tries < 10; tries++) {
        await_asleep(tid);
        long before = sleeps_of(tid);
        usleep(300000);
        if (sleeps_of(tid) == before)
            break;
    }
    await_asleep(tid);
}

/* An unread `buf` then never fits into TCP as a whole, however long the kernel takes to move it. */
void hold_less(int fd)
{
    const int size = 500000;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) ||
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size))
        die("hold_less");
    meet();
}

/* --- bytes --- */

void fill(void *p, unsigned seed, size_t off, size_t n)
{
    unsigned char *c = p;
    for (size_t i = 0; i < n; i++)
        c[i] = ((off + i) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull) >> 53;
}

int again(int fd, short events)
{
    if (errno == EINTR)
        return 1;
    if (errno != EAGAIN)
        return 0;
    struct pollfd p = {.fd = fd, .events = events};
    poll(&p, 1, -1);
    return 1;
}

size_t put_at(int fd, unsigned seed, size_t off, size_t n)
{
    static __thread char chunk[65536];
    size_t done = 0;
    while (done < n) {
        size_t len = n - done < sizeof chunk ? n - done : sizeof chunk;
        fill(chunk, seed, off + done, len);
        for (size_t sent = 0; sent < len;) {
            ssize_t r = write(fd, chunk + sent, len - sent);
            if (r < 0 && !again(fd, POLLOUT))
                return done + sent;
            sent += r > 0 ? r : 0;
        }
        done += len;
    }
    return done;
}

size_t get_at(int fd, unsigned seed, size_t off, size_t n)
{
    static __thread char chunk[65536], expect[65536];
    for (size_t done = 0; done < n;) {
        ssize_t r = read(fd, chunk, n - done < sizeof chunk ? n - done : sizeof chunk);
        if (r < 0 && again(fd, POLLIN))
            continue;
        if (r <= 0)
            return done;
        fill(expect, seed, off + done, r);
        for (ssize_t i = 0; i < r; i++)
            if (chunk[i] != expect[i]) {
                say("wrong byte at %zu", off + done + i);
                return done + i;
            }
        done += r;
    }
    return n;
}

void pour_out(int fd, size_t n)
{
    for (ssize_t r; n > 0; n -= r)
        if ((r = read(fd, buf, n < 1 << 16 ? n : 1 << 16)) <= 0)
            die("read");
}

size_t drain(int fd, unsigned seed) { return get(fd, seed, SIZE_MAX); }

void echo_rounds(int fd, int rounds, size_t size)
{
    size_t good = 0;
    for (int i = 0; i < rounds; i++) {
        if (is_server)
            good += get(fd, i, size), put(fd, i + 1, size);
        else
            put(fd, i, size), good += get(fd, i + 1, size);
    }
    say("%d rounds of %zu: %zu good", rounds, size, good);
}

/* --- states --- */

int ready(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLPRI | POLLOUT | POLLRDHUP};
    poll(&p, 1, 0);
    return p.revents;
}

unsigned await(int fd, unsigned must)
{
    unsigned mask;
    for (int i = 0; ((mask = ready(fd)) & must) != must; i++) {
        if (i == 5000) {
            say("still not ready for %s", mask_name(must));
            break;
        }
        usleep(1000);
    }
    say("ready: %s", mask_name(mask));
    return mask;
}

/* Waits for all three, because the kernel closes a socket a moment before it shuts both halves. */
void await_reset(int fd) { await(fd, POLLERR | POLLHUP | POLLRDHUP); }

void await_in(int fd, int n)
{
    int have = 0;
    for (int i = 0; ioctl(fd, FIONREAD, &have) == 0 && have < n; i++) {
        if (i == 5000) {
            say("only %d of %d bytes came", have, n);
            break;
        }
        usleep(1000);
    }
}

void await_state(int fd, int tcp_state)
{
    struct tcp_info ti;
    socklen_t len = sizeof ti;
    for (int i = 0; getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) == 0 &&
                    ti.tcpi_state != tcp_state && i < 5000; i++)
        usleep(1000);
    say("tcp state %d", ti.tcpi_state);
}

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int get_int(int fd, int level, int name)
{
    int v = -77;
    socklen_t len = sizeof v;
    return getsockopt(fd, level, name, &v, &len) ? -errno : v;
}

int set_int(int fd, int level, int name, int v)
{
    return setsockopt(fd, level, name, &v, sizeof v);
}

void timeout(int fd, int which, int ms)
{
    if (setsockopt(fd, SOL_SOCKET, which, &(struct timeval){ms / 1000, ms % 1000 * 1000},
                   sizeof(struct timeval)))
        die("timeout");
}

void set_nonblock(int fd, int on)
{
    int fl = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, on ? fl | O_NONBLOCK : fl & ~O_NONBLOCK);
}

void linger(int fd, int on, int seconds)
{
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, (&(struct linger){on, seconds}),
                 sizeof(struct linger)));
}

void nodelay(int fd) { setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)); }

long unseen(long number, long argument)
{
    long r = number;
#ifdef __x86_64__
    __asm__ volatile("syscall" : "+a"(r) : "D"(argument) : "rcx", "r11", "memory");
    if (r < 0)
        errno = -r, r = -1;
#else
    r = syscall(number, argument);
#endif
    return r;
}

/* --- processes, threads, signals --- */

static void on_signal(int sig) { signals[sig]++; }

void count_signal(int sig, int flags)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = flags};
    signals[sig] = 0;
    sigaction(sig, &sa, NULL);
}

pthread_t start(void *(*f)(void *), void *arg)
{
    pthread_t t;
    if ((errno = pthread_create(&t, NULL, f, arg)))
        die("pthread_create");
    return t;
}

pthread_t start_busy(void *(*f)(void *), void *arg)
{
    busy = 0;
    pthread_t t = start(f, arg);
    while (!busy)
        usleep(1000);
    return t;
}

void *finish(pthread_t t)
{
    void *r;
    pthread_join(t, &r);
    return r;
}

void background_last(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *e; tasks && (e = readdir(tasks));) {
        pid_t tid = atoi(e->d_name);
        if (tid <= 0)
            continue;
        sched_setaffinity(tid, sizeof one, &one);
        if (tid != getpid())
            sched_setscheduler(tid, SCHED_IDLE, &(struct sched_param){0});
    }
    closedir(tasks);
}

pid_t child(void)
{
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    return pid;
}

void drop(int fd)
{
    if (close(fd))
        die("close");
}

static void say_status(const char *who, int status)
{
    if (WIFSIGNALED(status))
        say("%s: killed by SIG%s", who, sigabbrev_np(WTERMSIG(status)));
    else
        say("%s: exit %d", who, WEXITSTATUS(status));
}

void reap(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            die("waitpid");
    say_status("child", status);
}

static int gate[2], looked[2];

static void await_turn(void)
{
    char c;
    if (read(gate[0], &c, 1) != 1)
        _exit(9);
}

pid_t child_that_looks(void)
{
    if (pipe(gate) || pipe(looked))
        die("pipe");
    return child();
}

void has_looked(void)
{
    if (write(looked[1], "", 1) != 1)
        _exit(8);
    await_turn();
}

void await_look(void)
{
    char c;
    if (read(looked[0], &c, 1) != 1)
        die("pipe");
}

pid_t child_that_waits(void)
{
    pid_t pid = child_that_looks();
    if (!pid)
        await_turn();
    return pid;
}

void let_on(void) { T(write(gate[1], "", 1)); }

void let(pid_t pid)
{
    let_on();
    reap(pid);
    for (int i = 0; i < 2; i++) {
        close(gate[i]);
        close(looked[i]);
    }
}

char **self_argv(int fd)
{
    static char *argv[SELF_ARGC + 1];
    static char number[12], flags[8];
    snprintf(number, sizeof number, "%d", fd);
    snprintf(flags, sizeof flags, "-%s%s%s%s", warmed ? "w" : "", nonblock ? "n" : "",
             hosts ? "N" : "", family == 6 ? "6" : family == 'm' ? "m" : "");
    argv[0] = "ctest";
    argv[1] = "-R", argv[2] = (char *)role;
    argv[3] = "-X", argv[4] = number;
    argv[5] = flags[1] ? flags : "--";
    argv[6] = (char *)body->name;
    return argv;
}

void exec_self(int fd)
{
    execv("/proc/self/exe", self_argv(fd));
    die("exec");
}

int temp_file(unsigned seed, size_t n)
{
    char path[] = "/tmp/ctest-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || unlink(path) || put(fd, seed, n) != n || lseek(fd, 0, SEEK_SET))
        die("temp_file");
    return fd;
}

/* --- one side --- */

static int side(int resume)
{
    is_server = !strcmp(role, "server");
    if (resume >= 0)
        body->resume(resume);
    else if (body->one)
        body->one();
    else {
        tell(getpid());
        peer_pid = hear();
        int fd = body->flags & RAW ? -1 : join();
        /* The server waits until the client's warm-up is over: it may be about to die at once. */
        if (fd >= 0 && warmed && is_server)
            hear();
        else if (fd >= 0 && warmed)
            tell(0);
        (is_server ? body->server : body->client)(fd);
    }
    say("open fds: %d", open_fds());
    if (!body->one)
        meet(); /* the side that ends first keeps its connections until the other has ended */
    return 0;
}

/* --- both sides --- */

static int out[2];
static pid_t pid[2];
static const char *const roles[] = {"server", "client"};

static void dump(void)
{
    static char text[65536];
    for (int i = 0; i < 2; i++) {
        if (!out[i])
            continue;
        dprintf(1, "== %s\n", body->one ? "both ends" : roles[i]);
        ssize_t n;
        for (off_t off = 0; (n = pread(out[i], text, sizeof text, off)) > 0; off += n)
            if (write(1, text, n) != n)
                _exit(99);
    }
}

static void on_term(int sig)
{
    (void)sig;
    for (int i = 0; i < 2; i++)
        if (pid[i])
            kill(pid[i], SIGKILL);
    dump();
    _exit(3);
}

/* Enters the namespace as `ip netns exec` does: /sys then shows the namespace's devices. */
static void enter(const char *netns)
{
    int fd = open(netns, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) || unshare(CLONE_NEWNS) ||
        mount("", "/", "none", MS_SLAVE | MS_REC, NULL) || umount2("/sys", MNT_DETACH) ||
        mount("sysfs", "/sys", "sysfs", 0, NULL))
        die(netns);
    close(fd);
}

static void be_side(int i, int sync, char **env)
{
    if (hosts)
        enter(i ? "/run/netns/ha" : "/run/netns/hb");
    int null = open("/dev/null", O_RDONLY);
    if (dup2(null, 0) < 0 || dup2(out[i], 1) < 0 || dup2(sync, SYNC) < 0 ||
        close_range(SYNC + 1, ~0u, 0))
        die("set-up");
    for (; *env; env++)
        putenv(*env);
    role = body->one ? "one" : roles[i];
    execv("/proc/self/exe", self_argv(-1));
    die("exec");
}

static int both(char **env[2])
{
    struct rlimit nofile;
    int sync[2], status[2], sides = body->one ? 1 : 2;
    getrlimit(RLIMIT_NOFILE, &nofile);
    nofile.rlim_cur = 1024;
    if (setrlimit(RLIMIT_NOFILE, &nofile) || prctl(PR_SET_CHILD_SUBREAPER, 1) ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, sync))
        die("set-up");
    signal(SIGPIPE, SIG_DFL);
    for (int i = 0; i < sides; i++) {
        out[i] = memfd_create("transcript", 0);
        fcntl(out[i], F_SETFL, O_APPEND);
    }
    for (int i = 0; i < sides; i++) {
        int s = fcntl(sync[i], F_DUPFD, 20), o = fcntl(out[i], F_DUPFD, 20);
        if ((pid[i] = fork()) == 0) {
            out[i] = o;
            be_side(i, s, env[i]);
        }
    }
    close(sync[0]);
    close(sync[1]);
    close_range(20, ~0u, 0); /* the two sides have their own copies */
    signal(SIGTERM, on_term);
    for (int left = sides, st; left;) {
        pid_t p = wait(&st);
        for (int i = 0; i < sides; i++)
            if (p == pid[i])
                status[i] = st, left--;
    }
    while (wait(NULL) > 0 || errno == EINTR) /* their descendants */
        ;
    dump();
    for (int i = 0; i < sides; i++)
        say_status(body->one ? "process" : roles[i], status[i]);
    return 0;
}

static const struct body *find(const char *name)
{
    for (size_t f = 0; f < COUNT(families); f++)
        for (const struct body *b = families[f]; b->name; b++)
            if (!strcmp(b->name, name))
                return b;
    fprintf(stderr, "ctest: no body named %s\n", name);
    exit(2);
}

/* NAME PROCESSES up|may|no LIMIT nb|- steady|- MUTED dies|onehost|untold|lives */
static int list(void)
{
    for (size_t f = 0; f < COUNT(families); f++)
        for (const struct body *b = families[f]; b->name; b++)
            printf("%s %d %s %d %s %s %s%s- %s\n", b->name, b->one ? 1 : 2,
                   b->flags & NOUP ? "no" : b->flags & MAYUP ? "may" : "up",
                   b->limit ? b->limit : 10,
                   b->flags & NB ? "nb" : "-", b->flags & STEADY ? "steady" : "-",
                   b->flags & MUTE_S ? "s" : "", b->flags & MUTE_C ? "c" : "",
                   b->flags & DIES ? "dies" : b->flags & ONEHOST ? "onehost"
                   : b->flags & UNTOLD ? "untold" : "lives");
    return 0;
}

int main(int argc, char **argv)
{
    char *env_s[16] = {0}, *env_c[16] = {0}, **env[2] = {env_s, env_c};
    int ns = 0, nc = 0, resume = -1;
    for (int o; (o = getopt(argc, argv, "lwn6mNs:c:R:X:")) != -1;)
        switch (o) {
        case 'l': return list();
        case 'w': warmed = 1; break;
        case 'n': nonblock = 1; break;
        case '6': family = 6; break;
        case 'm': family = 'm'; break;
        case 'N': hosts = 1; break;
        case 's': if (ns < 15) env_s[ns++] = optarg; break;
        case 'c': if (nc < 15) env_c[nc++] = optarg; break;
        case 'R': role = optarg; break;
        case 'X': resume = atoi(optarg); break;
        default: return 2;
        }
    if (optind >= argc)
        return fprintf(stderr, "usage: ctest -l | ctest [-wn6mN] [-s K=V] [-c K=V] NAME\n"), 2;
    body = find(argv[optind]);
    hosts = hosts && !body->one; /* both ends of such a body are one process */
    return role ? side(resume) : both(env);
}
