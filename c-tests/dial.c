/* How a body gets its connections: addresses, listening and dialling, and the warm-up that has them
 * accelerated. */
#include "t.h"
#include <stdatomic.h>

/* An address of the server's host or of the client's; both are loopback where there is one host. */
static socklen_t address(struct sockaddr_storage *a, int port, int mapped, int servers)
{
    static const char *const names[2][2] = {{"GUEST_A", "GUEST_A6"}, {"GUEST_B", "GUEST_B6"}};
    const char *text = hosts ? getenv(names[servers][family == 6])
        : family == 6 ? "::1" : "127.0.0.1";
    struct sockaddr_in *four = (void *)a;
    struct sockaddr_in6 *six = (void *)a;
    memset(a, 0, sizeof *a);
    if (family == 4 || (family == 'm' && !mapped)) {
        four->sin_family = AF_INET;
        four->sin_port = htons(port);
        if (!text || inet_pton(AF_INET, text, &four->sin_addr) != 1)
            die("address");
        return sizeof *four;
    }
    char long_text[INET6_ADDRSTRLEN + 8];
    snprintf(long_text, sizeof long_text, "%s%s", family == 6 ? "" : "::ffff:", text ? text : "");
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    if (inet_pton(AF_INET6, long_text, &six->sin6_addr) != 1)
        die("address");
    return sizeof *six;
}

/* Ports that this process listens on, or did: a dial to one of them goes to this process itself. */
static unsigned char own_port[65536];

socklen_t loopback(struct sockaddr_storage *a, int port, int server)
{
    return address(a, port, server, is_server == (server || own_port[port]));
}

socklen_t far_end(struct sockaddr_storage *a, int port)
{
    return address(a, port, is_server, !is_server);
}

int listen_any(int *port)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, 0, 1);
    int fd = socket(a.ss_family, SOCK_STREAM, 0);
    if (mss)
        setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof mss);
    if (fd < 0 || bind(fd, (void *)&a, len) || listen(fd, 1024) ||
        getsockname(fd, (void *)&a, &len))
        die("listen");
    /* sin_port lies at the same place in both families */
    *port = ntohs(((struct sockaddr_in *)&a)->sin_port);
    own_port[*port] = 1;
    return fd;
}

int try_dial(int port, int flags)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, port, 0);
    int fd = socket(a.ss_family, SOCK_STREAM | flags, 0);
    if (fd >= 0 && connect(fd, (void *)&a, len) && errno != EINPROGRESS) {
        int e = errno;
        close(fd);
        errno = e;
        return -1;
    }
    return fd;
}

static int settle(int fd)
{
    nodelay(fd);
    set_nonblock(fd, nonblock);
    return fd;
}

int dial(int port)
{
    int fd = try_dial(port, 0);
    if (fd < 0)
        die("connect");
    return settle(fd);
}

int take(int listener)
{
    int fd = accept(listener, NULL, NULL);
    if (fd < 0)
        die("accept");
    return settle(fd);
}

static int port_of(int fd, int (*name)(int, struct sockaddr *, socklen_t *))
{
    struct sockaddr_in6 a;
    socklen_t len = sizeof a;
    return name(fd, (void *)&a, &len) ? -1 : ntohs(a.sin6_port);
}

/* Appends the two ports of a warmed connection, the connecting end's first, to a file, which
 * scripts/ctests.py compares with the counters. */
static void log_warm(int fd)
{
    const char *path = getenv("CTEST_WARMED");
    int out = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (out < 0)
        return;
    char line[64];
    int n = snprintf(line, sizeof line, "%d %d\n", port_of(fd, (void *)getsockname),
        port_of(fd, (void *)getpeername));
    if (write(out, line, n) != n)
        die("log_warm");
    close(out);
}

enum { WARM_ROUNDS = 256, WARM_ROUNDS_MOST = 4096 };
static size_t warm_size(int round) { return 512 + 4 * (round % WARM_ROUNDS); }

/* To another host the link is made while the bytes go on. The first connections of a process have
 * to dial; later ones ask over the link that is there by then. */
static void warm_pause(int round)
{
    static atomic_int connections;
    static __thread int dials;
    if (round == 0)
        dials = atomic_fetch_add(&connections, 1) < 16;
    if (dials || round % 8 == 0)
        usleep(2000);
}

uint64_t acknowledged(int fd)
{
    /* As linux/tcp.h has it; glibc's tcp_info is shorter. */
    struct {
        char before[120];
        uint64_t bytes_acked;
    } info = {0};
    socklen_t len = sizeof info;
    long ret;
    register void *r10 __asm__("r10") = &info;
    register socklen_t *r8 __asm__("r8") = &len;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"((long)SYS_getsockopt), "D"((long)fd), "S"((long)IPPROTO_TCP),
                         "d"((long)TCP_INFO), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return ret || len < sizeof info ? 0 : info.bytes_acked;
}

void rounds_by_tcp(int fd, int rounds, size_t size)
{
    meet();
    uint64_t before = acknowledged(fd);
    echo_rounds(fd, rounds, size);
    meet();
    /* the last bytes may not be acknowledged yet */
    say("by TCP: %d", acknowledged(fd) - before > rounds * size - 20000);
    meet();
}

/* Is this round the last? Where many tests share a processor, a meeting may take longer than all
 * rounds. So the connecting end goes on until a round went by without TCP, if a link is to be
 * made. */
static int is_warm(int fd, int server, int round)
{
    static __thread uint64_t before;
    /* No less than an SO_RCVLOWAT, or a read by TCP is not told of it. */
    char said[512] = {0}, *done = said;
    if (round + 1 < WARM_ROUNDS)
        return 0;
    if (!getenv("CTEST_LINKED"))
        return 1;
    if (server) {
        size_t got = 0;
        for (ssize_t r; got < sizeof said; got += r > 0 ? r : 0)
            if ((r = read(fd, said + got, sizeof said - got)) == 0 || r < 0 && !again(fd, POLLIN))
                return 1;
        return *done;
    }
    if (round + 1 == WARM_ROUNDS)
        before = 0;
    uint64_t now = acknowledged(fd);
    *done = now == before || round >= WARM_ROUNDS_MOST;
    before = now;
    /* With the next round, or Nagle's rule holds that back until the byte is acknowledged. */
    if (send(fd, said, sizeof said, MSG_NOSIGNAL | (*done ? 0 : MSG_MORE)) != sizeof said)
        die("warm-up");
    return *done;
}

void warm(int fd, int server)
{
    if (!warmed)
        return;
    if (!server)
        log_warm(fd);
    for (int i = 0;; i++) {
        size_t n = warm_size(i);
        int ok;
        if (server) {
            ok = get(fd, i, n) == n && put(fd, ~i, n) == n;
        } else {
            if (hosts)
                warm_pause(i);
            ok = put(fd, i, n) == n && get(fd, ~i, n) == n;
        }
        if (!ok)
            die("warm-up");
        if (is_warm(fd, server, i))
            break;
    }
}

void warm_pair(int a, int b)
{
    if (!warmed)
        return;
    log_warm(a);
    for (int i = 0; i < WARM_ROUNDS; i++) {
        size_t n = warm_size(i);
        if (put(a, i, n) != n || get(b, i, n) != n || put(b, ~i, n) != n || get(a, ~i, n) != n)
            die("warm-up");
    }
}

int take_one(void)
{
    int port, l = listen_any(&port);
    tell(port);
    int fd = take(l);
    close(l);
    return fd;
}

int join_cold(void)
{
    int fd = is_server ? take_one() : dial(hear());
    return fd;
}

int join(void)
{
    int fd = join_cold();
    warm(fd, is_server);
    return fd;
}

void pair(int end[2])
{
    int port, l = listen_any(&port);
    end[0] = dial(port);
    end[1] = take(l);
    close(l);
    warm_pair(end[0], end[1]);
}
