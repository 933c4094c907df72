/* The ends of connections that are attacked: an echo server that measures itself, and a client that checks what it gets back.
 *
 *     victim server threads|epoll [PORT]     says `port N`; on its input: `probe`, `seen`, `dial PORT`, `go`; ends with it, or by SIGTERM
 *     victim client PORT COUNT LEN PAUSE_MS  says `connected PORT INODE`; each line of its input begins so many rounds more
 *     victim adopt PORT FD                   connects socket FD, which it has inherited, and goes one round
 *
 * `probe` says, of dup, pipe and open since the last one: calls, mean and worst in microseconds. `seen` says of each connection: the
 * peer's port, bytes, and their hash. A client's `round` line says bytes, hash, and the worst answer in microseconds; a server that has
 * dialled another one is a client as well, and `go` begins a round. VICTIM_IDS: the real and the effective user to become first. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define FNV 0xcbf29ce484222325u

static void die(const char *what)
{
    perror(what);
    _exit(3);
}

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static uint64_t hash(uint64_t h, const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* --- what the server's own calls cost --- */

static const char *const calls[] = {"dup", "pipe", "open"};
static struct {
    uint64_t n, sum, worst;
} cost[COUNT(calls)];
static pthread_mutex_t costs = PTHREAD_MUTEX_INITIALIZER;

static void call(unsigned which)
{
    int fds[2] = {-1, -1};
    if (which == 0)
        fds[0] = dup(1);
    else if (which == 1 && pipe(fds))
        die("pipe");
    else if (which == 2)
        fds[0] = open("/dev/null", O_RDONLY);
    if (fds[0] < 0)
        die(calls[which]);
    close(fds[0]);
    if (fds[1] >= 0)
        close(fds[1]);
}

static void *prober(void *unused)
{
    (void)unused;
    for (unsigned which = 0;; which = (which + 1) % COUNT(calls)) {
        uint64_t begin = now_us();
        call(which);
        uint64_t took = now_us() - begin;
        pthread_mutex_lock(&costs);
        cost[which].n++;
        cost[which].sum += took;
        if (took > cost[which].worst)
            cost[which].worst = took;
        pthread_mutex_unlock(&costs);
        usleep(1000);
    }
    return NULL;
}

static void say_costs(void)
{
    pthread_mutex_lock(&costs);
    printf("probe");
    for (unsigned i = 0; i < COUNT(calls); i++)
        printf(" %s %llu %.1f %llu", calls[i], (unsigned long long)cost[i].n, cost[i].n ? (double)cost[i].sum / cost[i].n : 0.0,
               (unsigned long long)cost[i].worst);
    puts("");
    memset(cost, 0, sizeof cost);
    pthread_mutex_unlock(&costs);
}

/* --- the server --- */

#define CONNS 65536
static struct conn {
    int port;
    uint64_t bytes, hash;
    /* Of the epoll server: read and not written yet. */
    size_t from, to;
    unsigned char *kept;
} conns[CONNS];
static int made;
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static __thread unsigned char room[1 << 16];

static struct conn *conn(int fd)
{
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    pthread_mutex_lock(&making);
    if (made == CONNS)
        die("too many connections");
    struct conn *c = &conns[made++];
    pthread_mutex_unlock(&making);
    c->port = getpeername(fd, (struct sockaddr *)&peer, &len) ? 0 : ntohs(peer.sin_port);
    c->hash = FNV;
    return c;
}

static void got(struct conn *c, const unsigned char *p, size_t n)
{
    c->hash = hash(c->hash, p, n);
    __atomic_add_fetch(&c->bytes, n, __ATOMIC_SEQ_CST);
}

static void *serve(void *arg)
{
    int fd = (int)(intptr_t)arg;
    struct conn *c = conn(fd);
    for (ssize_t n; (n = recv(fd, room, sizeof room, 0)) > 0;) {
        got(c, room, n);
        for (ssize_t sent = 0, k; sent < n; sent += k)
            if ((k = send(fd, room + sent, n - sent, MSG_NOSIGNAL)) < 0)
                goto over;
    }
over:
    close(fd);
    return NULL;
}

__attribute__((noreturn)) static void *accept_threads(void *arg)
{
    int l = (int)(intptr_t)arg;
    for (;;) {
        int fd = accept(l, NULL, NULL);
        if (fd < 0)
            continue;
        pthread_t t;
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 256 << 10);
        pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
        if (pthread_create(&t, &small, serve, (void *)(intptr_t)fd))
            close(fd);
    }
}

static void watch(int set, int op, int fd, struct conn *c, int out)
{
    struct epoll_event e = {.events = out ? EPOLLOUT : EPOLLIN, .data.u64 = (uint64_t)(c ? c - conns + 1 : 0) << 32 | (unsigned)fd};
    if (epoll_ctl(set, op, fd, &e))
        die("epoll_ctl");
}

static int turn(int set, int fd, struct conn *c)
{
    int waited = c->from != c->to;
    if (!waited) {
        ssize_t n = recv(fd, c->kept, sizeof room, 0);
        if (n <= 0)
            return n < 0 && errno == EAGAIN;
        got(c, c->kept, n);
        c->from = 0;
        c->to = n;
    }
    ssize_t k = send(fd, c->kept + c->from, c->to - c->from, MSG_NOSIGNAL);
    if (k < 0 && errno != EAGAIN)
        return 0;
    c->from += k < 0 ? 0 : k;
    if (waited != (c->from != c->to))
        watch(set, EPOLL_CTL_MOD, fd, c, !waited);
    return 1;
}

__attribute__((noreturn)) static void *accept_epoll(void *arg)
{
    int l = (int)(intptr_t)arg, set = epoll_create1(EPOLL_CLOEXEC);
    watch(set, EPOLL_CTL_ADD, l, NULL, 0);
    for (;;) {
        struct epoll_event events[16];
        int n = epoll_wait(set, events, COUNT(events), -1);
        for (int i = 0; i < n; i++) {
            int fd = (int)(uint32_t)events[i].data.u64;
            uint32_t number = events[i].data.u64 >> 32;
            if (!number) {
                if ((fd = accept4(l, NULL, NULL, SOCK_NONBLOCK)) < 0)
                    continue;
                struct conn *c = conn(fd);
                c->kept = malloc(sizeof room);
                watch(set, EPOLL_CTL_ADD, fd, c, 0);
            } else if (!turn(set, fd, &conns[number - 1])) {
                close(fd);
                free(conns[number - 1].kept);
            }
        }
    }
}

static void on_term(int sig)
{
    (void)sig;
    close(0);
}

static struct sockaddr_in local(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* --- the client --- */

static struct {
    int fd;
    size_t len;
    unsigned char *out, *in;
    uint64_t x, hash, bytes;
} mine;

static void dial(int port, size_t len, int fd)
{
    struct sockaddr_in at = local(port), own;
    socklen_t own_len = sizeof own;
    struct stat st;
    mine.fd = fd < 0 ? socket(AF_INET, SOCK_STREAM, 0) : fd;
    if (connect(mine.fd, (struct sockaddr *)&at, sizeof at) || getsockname(mine.fd, (struct sockaddr *)&own, &own_len) ||
        fstat(mine.fd, &st))
        die("connect");
    mine.len = len;
    mine.out = malloc(len);
    mine.in = malloc(len);
    mine.x = 88172645463325252u ^ (uint64_t)ntohs(own.sin_port) << 32;
    mine.hash = FNV;
    printf("connected %d %llu\n", ntohs(own.sin_port), (unsigned long long)st.st_ino);
}

static void rounds(long count, long pause_ms)
{
    uint64_t worst = 0;
    for (long i = 0; i < count; i++) {
        for (size_t k = 0; k < mine.len; k++) {
            mine.x ^= mine.x << 13, mine.x ^= mine.x >> 7, mine.x ^= mine.x << 17;
            mine.out[k] = (unsigned char)mine.x;
        }
        uint64_t begin = now_us();
        for (size_t sent = 0; sent < mine.len;) {
            ssize_t k = send(mine.fd, mine.out + sent, mine.len - sent, MSG_NOSIGNAL);
            if (k < 0)
                die("send");
            sent += k;
        }
        mine.hash = hash(mine.hash, mine.out, mine.len);
        mine.bytes += mine.len;
        for (size_t n = 0; n < mine.len;) {
            ssize_t k = recv(mine.fd, mine.in + n, mine.len - n, 0);
            if (k < 0)
                die("recv");
            if (k == 0) {
                puts("WRONG end");
                exit(1);
            }
            n += k;
        }
        uint64_t took = now_us() - begin;
        worst = took > worst ? took : worst;
        if (memcmp(mine.in, mine.out, mine.len)) {
            puts("WRONG bytes");
            exit(1);
        }
        if (pause_ms)
            usleep(pause_ms * 1000);
    }
    printf("round %llu %016llx %llu\n", (unsigned long long)mine.bytes, (unsigned long long)mine.hash, (unsigned long long)worst);
}

/* --- the two programs --- */

static int server(const char *mode, int port)
{
    int l = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in at = local(port);
    socklen_t len = sizeof at;
    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(l, (struct sockaddr *)&at, len) || listen(l, 512) || getsockname(l, (struct sockaddr *)&at, &len))
        die("listen");
    /* Without SA_RESTART: a read of input ends. */
    struct sigaction act = {.sa_handler = on_term};
    sigaction(SIGTERM, &act, NULL);
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, NULL);
    pthread_t t;
    if (pthread_create(&t, NULL, prober, NULL) ||
        pthread_create(&t, NULL, strcmp(mode, "epoll") ? accept_threads : accept_epoll, (void *)(intptr_t)l))
        die("pthread_create");
    pthread_sigmask(SIG_UNBLOCK, &term, NULL);
    printf("port %d\n", ntohs(at.sin_port));
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "probe\n"))
            say_costs();
        else if (!strcmp(line, "seen\n")) {
            for (int i = 0; i < made; i++)
                printf("conn %d %llu %016llx\n", conns[i].port, (unsigned long long)conns[i].bytes, (unsigned long long)conns[i].hash);
            puts(".");
        } else if (!strncmp(line, "dial ", 5))
            dial(atoi(line + 5), 3000, -1);
        else if (!strcmp(line, "go\n"))
            rounds(20, 1);
    }
    return 0;
}

static int client(int port, long count, size_t len, long pause_ms)
{
    dial(port, len, -1);
    char line[64];
    while (fgets(line, sizeof line, stdin))
        rounds(count, pause_ms);
    close(mine.fd);
    return 0;
}

static void become(const char *ids)
{
    unsigned real, effective;
    if (sscanf(ids, "%u %u", &real, &effective) != 2 || setresuid(real, effective, effective))
        die("setresuid");
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (getenv("VICTIM_IDS"))
        become(getenv("VICTIM_IDS"));
    if (argc >= 3 && !strcmp(argv[1], "server"))
        return server(argv[2], argc > 3 ? atoi(argv[3]) : 0);
    if (argc == 6 && !strcmp(argv[1], "client"))
        return client(atoi(argv[2]), atol(argv[3]), strtoul(argv[4], NULL, 10), atol(argv[5]));
    if (argc == 4 && !strcmp(argv[1], "adopt")) {
        dial(atoi(argv[2]), 3000, atoi(argv[3]));
        rounds(20, 10);
        pause();
    }
    return 2;
}
