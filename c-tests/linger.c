/* Connections end while they have bytes left that TCP cannot take yet: which calls wait, and which
 * bytes still arrive after the end. */
#include "t.h"

static void linger_close_server(int fd)
{
    linger(fd, 1, 5);
    T(put(fd, 1, 300000));
    meet();
    double t = now();
    T(close(fd));
    YES(now() - t < 4);
}

static void linger_close_client(int fd)
{
    meet();
    T(drain(fd, 1));
    T(recv(fd, buf, 10, 0));
}

/* Writes until the connection stays full, whatever poll says. */
static size_t write_until_full(int fd)
{
    size_t total = 0;
    set_nonblock(fd, 1);
    for (int in_vain = 0; in_vain < 20; in_vain++) {
        for (ssize_t n; fill(buf, 1, total, 200000), (n = write(fd, buf, 200000)) > 0; in_vain = 0)
            total += n;
        usleep(10000);
    }
    set_nonblock(fd, 0);
    return total;
}

/* The peer does not read: close waits as long as SO_LINGER says, and TCP goes on delivering after
 * it. */
static void linger_expires_server(int fd)
{
    size_t total = write_until_full(fd);
    linger(fd, 1, 1);
    double t = now();
    T(close(fd));
    t = now() - t;
    YES(t > 0.9 && t < 5);
    tell(total);
}

static void linger_expires_client(int fd)
{
    size_t total = hear();
    T(drain(fd, 1) == total);
}

/* TCP keeps what a stalled reader has not read, so that a process that exits does not wait for the
 * reader. This holds however often the stream was upgraded and demoted until all was full. */
static void full_exit_server(int fd)
{
    tell(write_until_full(fd));
    exit(5);
}

static void full_exit_client(int fd)
{
    size_t total = hear();
    double t = now();
    T(hear());
    YES(now() - t < 2);
    T(drain(fd, 1) == total);
    T(recv(fd, buf, 10, 0));
}

/* A connection whose TCP takes few bytes: the library may have taken more from the writer than TCP
 * can take. */
static int narrow(void)
{
    int fd;
    if (is_server)
        fd = take_one();
    else {
        struct sockaddr_storage a;
        socklen_t len = loopback(&a, hear(), 0);
        fd = socket(a.ss_family, SOCK_STREAM, 0);
        T(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){4096}, sizeof(int)));
        T(connect(fd, (void *)&a, len));
        nodelay(fd);
    }
    meet(); /* otherwise a reset may come before connect has returned, and connect reports it */
    warm(fd, is_server);
    return fd;
}

/* Writes as much as goes without waiting. The other side, which is told how much that was, checks
 * it. */
static size_t stuff(int fd)
{
    size_t total = 0;
    set_nonblock(fd, 1);
    for (ssize_t n; fill(buf, 1, total, 20000), (n = write(fd, buf, 20000)) > 0;)
        total += n;
    set_nonblock(fd, 0);
    T(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){4096}, sizeof(int)));
    return total;
}

/* Reads late, long after the other side is done. */
static void late_client(int fd)
{
    size_t total = hear();
    usleep(300000);
    T(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){1 << 20}, sizeof(int)));
    T(drain(fd, 1) == total);
    T(recv(fd, buf, 10, 0));
}

static void stuffed_client(int fd)
{
    fd = narrow();
    late_client(fd);
}

static void stuffed_close_server(int fd)
{
    fd = narrow();
    tell(stuff(fd));
    double t = now();
    T(close(fd));
    YES(now() - t < 0.25);
    T(write(fd, buf, 1));
}

/* The pipe keeps what the socket does not take. */
static void stuffed_splice_server(int fd)
{
    int p[2];
    fd = narrow();
    size_t total = stuff(fd);
    if (pipe(p))
        die("pipe");
    T(write(p[1], buf, 1000));
    set_nonblock(fd, 1);
    double t = now();
    T(splice(p[0], NULL, fd, NULL, 1000, SPLICE_F_NONBLOCK));
    YES(now() - t < 0.25);
    set_nonblock(fd, 0);
    tell(total);
    T(read(p[0], buf, 2000));
    T(close(fd));
}

static void stuffed_close_exit_server(int fd)
{
    fd = narrow();
    tell(stuff(fd));
    T(close(fd));
    exit(5);
}

static void stuffed_close_range_server(int fd)
{
    fd = narrow();
    tell(stuff(fd));
    T(close_range(fd, fd, 0));
}

static void stuffed_dup2_server(int fd)
{
    fd = narrow();
    int null = open("/dev/null", O_RDWR);
    tell(stuff(fd));
    YES(dup2(null, fd) == fd);
    T(write(fd, buf, 10));
    close(null);
    close(fd);
}

/* The kernel takes a closed socket out of its epoll sets. */
static void stuffed_epoll_server(int fd)
{
    fd = narrow();
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP};
    int ep = epoll_create1(0);
    T(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    tell(stuff(fd));
    T(close(fd));
    T(epoll_wait(ep, &e, 1, 1000));
    close(ep);
}

static void stuffed_fork_server(int fd)
{
    fd = narrow();
    tell(stuff(fd));
    T(close(fd));
    pid_t pid = child();
    if (!pid) {
        sleep(2); /* holds nothing of the connection */
        _exit(0);
    }
    hear();
    T(kill(pid, SIGKILL));
    reap(pid);
}

static void stuffed_fork_client(int fd)
{
    fd = narrow();
    double t = now();
    late_client(fd);
    YES(now() - t < 2);
    tell(0);
}

static void stuffed_linger_server(int fd)
{
    fd = narrow();
    linger(fd, 1, 5);
    tell(stuff(fd));
    double t = now();
    T(close(fd));
    t = now() - t;
    YES(t > 0.2 && t < 4);
}

static void stuffed_linger_short_server(int fd)
{
    fd = narrow();
    linger(fd, 1, 1);
    size_t total = stuff(fd);
    double t = now();
    T(close(fd));
    t = now() - t;
    YES(t > 0.9 && t < 3);
    tell(total);
}

/* No number is left, so that nobody but the caller could go on with the connection. */
static void stuffed_no_number_server(int fd)
{
    struct rlimit limit, low;
    fd = narrow();
    linger(fd, 1, 1);
    size_t total = stuff(fd);
    getrlimit(RLIMIT_NOFILE, &limit);
    low = (struct rlimit){fd, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    double t = now();
    T(close(fd));
    t = now() - t;
    YES(t > 0.9 && t < 3);
    setrlimit(RLIMIT_NOFILE, &limit);
    tell(total);
}

/* A child has the connection, too: this close is not the last one, and does not linger. */
static void stuffed_shared_server(int fd)
{
    fd = narrow();
    linger(fd, 1, 5);
    size_t total = stuff(fd);
    pid_t pid = child_that_waits();
    if (!pid)
        _exit(0);
    double t = now();
    T(close(fd));
    YES(now() - t < 1);
    tell(total);
    meet();
    let(pid);
}

static void stuffed_shutdown_server(int fd)
{
    fd = narrow();
    count_signal(SIGPIPE, 0);
    tell(stuff(fd));
    double t = now();
    T(shutdown(fd, SHUT_WR));
    T(write(fd, buf, 10));
    T(send(fd, buf, 10, MSG_NOSIGNAL));
    T(send(fd, buf, 0, MSG_NOSIGNAL));
    say("SIGPIPE %d ready %s", signals[SIGPIPE], mask_name(ready(fd)));
    T(shutdown(fd, SHUT_WR));
    YES(now() - t < 0.25);
    T(get(fd, 2, 100000));
    T(recv(fd, buf, 10, 0));
    T(close(fd));
}

static void stuffed_shutdown_client(int fd)
{
    fd = narrow();
    late_client(fd);
    T(put(fd, 2, 100000));
    T(shutdown(fd, SHUT_WR));
}

static void stuffed_shutdown_close_server(int fd)
{
    fd = narrow();
    tell(stuff(fd));
    T(shutdown(fd, SHUT_RDWR));
    T(recv(fd, buf, 10, 0));
    T(close(fd));
}

static void stuffed_exit_server(int fd)
{
    fd = narrow();
    tell(stuff(fd));
    exit(5);
}

static void stuffed__exit_server(int fd)
{
    fd = narrow();
    tell(stuff(fd));
    _exit(6);
}

static void stuffed_exec_server(int fd)
{
    fd = narrow();
    tell(stuff(fd));
    exec_self(fd);
}

static void stuffed_exec_resume(int fd) { T(shutdown(fd, SHUT_WR)); }

static void stuffed_close_exec_server(int fd)
{
    fd = narrow();
    tell(stuff(fd));
    T(close(fd));
    exec_self(77);
}

static void stuffed_close_exec_resume(int fd) { T(close(fd)); }

/* Calls that only TCP can serve do not wait while TCP is full. */
static void stuffed_asks_server(int fd)
{
    int one = 1, rate = 1 << 30;
    fd = narrow();
    size_t total = stuff(fd);
    double t = now();
    T(recv(fd, buf, 1, MSG_OOB | MSG_DONTWAIT));
    T(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one));
    T(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
    T(send(fd, buf, 1, MSG_OOB | MSG_DONTWAIT));
    YES(now() - t < 0.25);
    tell(total);
    T(close(fd));
}

/* A reset that the program asks for drops the bytes that the other end has not got yet. */
static void stuffed_reset_server(int fd)
{
    fd = narrow();
    size_t total = stuff(fd);
    linger(fd, 1, 0);
    double t = now();
    T(close(fd));
    YES(now() - t < 0.25);
    tell(total);
}

static void stuffed_reset_client(int fd)
{
    fd = narrow();
    size_t total = hear(), good = 0;
    await(fd, POLLHUP);
    ssize_t n;
    for (char *p = malloc(total + 1); (n = recv(fd, buf, 10000, 0)) > 0; good += n) {
        fill(p, 1, good, n);
        if (memcmp(p, buf, n))
            die("other bytes");
    }
    YES(n < 0 && errno == ECONNRESET);
    YES(good <= total); /* less over TCP: what TCP had not sent is gone */
    T(recv(fd, buf, 1, 0));
    T(send(fd, buf, 1, MSG_NOSIGNAL));
    say("ready %s", mask_name(ready(fd)));
}

/* Both exit with TCP full in both directions: neither side reads, and neither waits for the
 * other. */
static void stuffed_both(int fd)
{
    fd = narrow();
    stuff(fd);
    meet();
    exit(0);
}

/* A child begins to send again what its parent wrote to the link, and ends. The rest arrives though
 * the parent does nothing with the connection. */
static void stuffed_child_server(int fd)
{
    fd = narrow();
    size_t total = stuff(fd);
    pid_t pid = child();
    if (!pid) {
        set_nonblock(fd, 1);
        YES(write(fd, buf, 20000) < 0 && errno == EAGAIN);
        close(fd);
        _exit(0);
    }
    reap(pid);
    tell(total);
    meet();
}

static void stuffed_child_client(int fd)
{
    fd = narrow();
    size_t total = hear();
    YES(get(fd, 1, total) == total);
    meet();
}

const struct body linger_bodies[] = {
    TWO("linger_close", linger_close_server, linger_close_client),
    TWO("linger_expires", linger_expires_server, linger_expires_client, .flags = ONEHOST),
    TWO("full_exit", full_exit_server, full_exit_client, .flags = ONEHOST),
    TWO("stuffed_close", stuffed_close_server, stuffed_client, .flags = RAW),
    TWO("stuffed_splice", stuffed_splice_server, stuffed_client, .flags = RAW),
    TWO("stuffed_close_then_exit", stuffed_close_exit_server, stuffed_client, .flags = RAW),
    TWO("stuffed_close_then_exec", stuffed_close_exec_server, stuffed_client, .flags = RAW,
        .resume = stuffed_close_exec_resume),
    TWO("stuffed_close_then_fork", stuffed_fork_server, stuffed_fork_client, .flags = RAW),
    TWO("stuffed_close_range", stuffed_close_range_server, stuffed_client, .flags = RAW),
    TWO("stuffed_close_in_epoll", stuffed_epoll_server, stuffed_client, .flags = RAW),
    TWO("stuffed_dup2", stuffed_dup2_server, stuffed_client, .flags = RAW),
    TWO("stuffed_linger", stuffed_linger_server, stuffed_client, .flags = RAW | ONEHOST),
    TWO("stuffed_linger_expires", stuffed_linger_short_server, stuffed_client,
        .flags = RAW | ONEHOST),
    TWO("stuffed_linger_no_number", stuffed_no_number_server, stuffed_client,
        .flags = RAW | ONEHOST),
    TWO("stuffed_linger_shared", stuffed_shared_server, stuffed_child_client,
        .flags = RAW | ONEHOST),
    TWO("stuffed_shutdown", stuffed_shutdown_server, stuffed_shutdown_client, .flags = RAW),
    TWO("stuffed_shutdown_close", stuffed_shutdown_close_server, stuffed_client, .flags = RAW),
    TWO("stuffed_exit", stuffed_exit_server, stuffed_client, .flags = RAW),
    TWO("stuffed__exit", stuffed__exit_server, stuffed_client, .flags = RAW),
    /* Between hosts the connection is reset: TCP has no room for the link's bytes within 5 s. */
    TWO("stuffed_child", stuffed_child_server, stuffed_child_client, .flags = RAW | ONEHOST,
        .limit = 20),
    TWO("stuffed_exec", stuffed_exec_server, stuffed_client, .flags = RAW,
        .resume = stuffed_exec_resume),
    TWO("stuffed_asks", stuffed_asks_server, stuffed_client, .flags = RAW),
    TWO("stuffed_reset", stuffed_reset_server, stuffed_reset_client, .flags = RAW),
    TWO("stuffed_exit_both", stuffed_both, stuffed_both, .flags = RAW),
    {0},
};
