/* Making connections: connect and accept in all their ways, many at once, one after the other. */
#include "t.h"
#include <linux/filter.h>

static int err_of(int fd)
{
    int e = -1;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &(socklen_t){sizeof e});
    return e;
}

static const char *err_name(int e) { return e ? strerrorname_np(e) : "none"; }

/* A port without a listener. It is bound, so that no other program takes it. */
static int dead_port(void)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, 0, 1);
    int fd = socket(a.ss_family, SOCK_STREAM, 0);
    if (bind(fd, (void *)&a, len) || getsockname(fd, (void *)&a, &len))
        die("bind");
    return ntohs(((struct sockaddr_in *)&a)->sin_port);
}

static void refused(void)
{
    struct sockaddr_storage a;
    struct pollfd p;
    socklen_t len = loopback(&a, dead_port(), 0);
    int fd = socket(a.ss_family, SOCK_STREAM, 0);
    T(connect(fd, (void *)&a, len));
    say("%s, ready %s", err_name(err_of(fd)), mask_name(ready(fd)));
    T(connect(fd, (void *)&a, len)); /* Linux lets one try again */
    T(recv(fd, buf, 1, 0));
    T(send(fd, buf, 1, MSG_NOSIGNAL));
    T(shutdown(fd, SHUT_WR));
    T(getpeername(fd, (void *)&a, &(socklen_t){sizeof a}));
    T(close(fd));
    len = loopback(&a, dead_port(), 0);
    fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (connect(fd, (void *)&a, len) == 0 || (errno != EINPROGRESS && errno != ECONNREFUSED))
        die("connect");
    p = (struct pollfd){fd, POLLOUT, 0};
    T(poll(&p, 1, -1));
    say("%s", mask_name(p.revents));
    say("%s", err_name(err_of(fd)));
    say("%s", err_name(err_of(fd)));
}

static void unconnected(void)
{
    struct sockaddr_storage a;
    int fd = socket(family == 4 ? AF_INET : AF_INET6, SOCK_STREAM, 0), n;
    socklen_t len = sizeof a;
    count_signal(SIGPIPE, 0);
    T(recv(fd, buf, 1, 0));
    T(recv(fd, buf, 1, MSG_DONTWAIT));
    T(send(fd, buf, 1, 0));
    say("SIGPIPE %d ready %s", signals[SIGPIPE], mask_name(ready(fd)));
    T(shutdown(fd, SHUT_RDWR));
    T(getpeername(fd, (void *)&a, &len));
    T(accept(fd, NULL, NULL));
    T(ioctl(fd, FIONREAD, &n));
    T(listen(fd, 1));
    T(recv(fd, buf, 1, MSG_DONTWAIT));
    T(send(fd, buf, 1, MSG_NOSIGNAL));
    T(ioctl(fd, FIONREAD, &n));
    T(connect(fd, (void *)&a, 3));
    set_nonblock(fd, 1);
    T(accept(fd, NULL, NULL));
    T(accept4(fd, NULL, NULL, 0x1234));
    say("ready %s", mask_name(ready(fd)));
    T(shutdown(fd, SHUT_RD)); /* ends listening */
    T(accept(fd, NULL, NULL));
}

static void nonblocking_server(int fd)
{
    int port, l = listen_any(&port);
    tell(port);
    fd = take(l);
    warm(fd, 1);
    echo_rounds(fd, 30, 2000);
}

static void nonblocking_client(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, hear(), 0);
    fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    T(recv(fd, buf, 1, 0));
    int r = connect(fd, (void *)&a, len);
    YES(r == 0 || errno == EINPROGRESS);
    struct pollfd p = {fd, POLLOUT, 0};
    T(poll(&p, 1, -1));
    say("%s, error %s, cloexec %d", mask_name(p.revents), err_name(err_of(fd)), fcntl(fd, F_GETFD));
    r = connect(fd, (void *)&a, len); /* succeeds once where the first said EINPROGRESS */
    YES(r == 0 || errno == EISCONN);
    T(connect(fd, (void *)&a, len));
    T(recv(fd, buf, 1, 0));
    YES(fcntl(fd, F_GETFL) & O_NONBLOCK);
    set_nonblock(fd, 0);
    nodelay(fd);
    warm(fd, 0);
    echo_rounds(fd, 30, 2000);
}

static void accepts_server(int fd)
{
    struct sockaddr_storage a, mine;
    socklen_t len;
    int port, l = listen_any(&port);
    nodelay(l);
    set_nonblock(l, 1);
    T(setsockopt(l, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)));
    T(accept(l, NULL, NULL));
    set_nonblock(l, 0);
    tell(port);
    for (int i = 0; i < 5; i++) {
        int flags = (int[]){0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC, 0}[i],
            v = -1;
        len = sizeof a;
        memset(&a, 0, sizeof a);
        fd = i == 4 ? accept(l, (void *)&a, &len) : accept4(l, (void *)&a, &len, flags);
        if (fd < 0)
            die("accept");
        say("length %d, family %d, flags %x, cloexec %d", len, a.ss_family,
            fcntl(fd, F_GETFL) & O_NONBLOCK, fcntl(fd, F_GETFD));
        getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, &(socklen_t){sizeof v}); /* inherited */
        say("nodelay %d", v);
        len = sizeof mine;
        memset(&mine, 0, sizeof mine);
        getpeername(fd, (void *)&mine, &len);
        YES(!memcmp(&a, &mine, len));
        set_nonblock(fd, 0);
        warm(fd, 1);
        echo_rounds(fd, 10, 2000);
        T(close(fd));
    }
}

static void accepts_client(int fd)
{
    int port = hear();
    for (int i = 0; i < 5; i++) {
        fd = dial(port);
        set_nonblock(fd, 0);
        warm(fd, 0);
        echo_rounds(fd, 10, 2000);
        T(recv(fd, buf, 1, 0));
        T(close(fd));
    }
}

/* The connection's local port is 16384 above a port on which the program itself listens. An iWARP
 * dial would go to that lower port, where the program's listener never answers. */
static void beside(int fd)
{
    for (int i = 0; i < 20; i++) {
        if (hosts)
            usleep(100000); /* until a dial would have been given up */
        echo_rounds(fd, 1, 3000);
    }
}

static void beside_server(int fd)
{
    fd = take_one();
    warm(fd, 1);
    beside(fd);
}

static void beside_client(int fd)
{
    struct sockaddr_storage a;
    int to = hear(), port;
    for (;;) {
        int l = listen_any(&port);
        socklen_t len = loopback(&a, port, 0); /* of the family of the connect */
        ((struct sockaddr_in *)&a)->sin_port = htons(port + 16384);
        fd = socket(a.ss_family, SOCK_STREAM, 0);
        /* dial.c tells its own ports from the peer's by the number alone */
        if (port != to && port <= 49151 && !bind(fd, (void *)&a, len))
            break;
        close(fd);
        close(l);
    }
    if (connect(fd, (void *)&a, loopback(&a, to, 0)))
        die("connect");
    nodelay(fd);
    warm(fd, 0);
    beside(fd);
}

/* A socket that is bound to a fresh address, which is returned in `a`. */
static int bound(struct sockaddr_storage *a, int flags)
{
    socklen_t len = loopback(a, 0, 1);
    int fd = socket(a->ss_family, SOCK_STREAM | flags, 0);
    if (bind(fd, (void *)a, len) || getsockname(fd, (void *)a, &len))
        die("bind");
    return fd;
}

/* A socket that is connected to itself reads what it writes. */
static void self(void)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, 0, 1);
    int fd = bound(&a, 0);
    T(connect(fd, (void *)&a, len));
    nodelay(fd);
    for (int i = 0; i < 100; i++)
        if (put(fd, i, 2000) != 2000 || get(fd, i, 2000) != 2000)
            die("echo");
    T(put(fd, 1, 100));
    T(shutdown(fd, SHUT_WR));
    T(get(fd, 1, 100));
    T(recv(fd, buf, 1, 0));
}

/* Simultaneous open: both ends connect, and neither listens. The first SYN meets a listener whose
 * filter drops it, so that no RST answers; the listener is closed before the second end connects to
 * the first, which is still connecting. */
static void simultaneous(void)
{
    static struct sock_filter none = {BPF_RET | BPF_K, 0, 0, 0};
    struct sockaddr_storage a, b;
    socklen_t len = loopback(&b, 0, 1);
    int l = bound(&b, 0), s[2] = {bound(&a, SOCK_NONBLOCK)};
    T(setsockopt(l, SOL_SOCKET, SO_ATTACH_FILTER, &(struct sock_fprog){1, &none},
        sizeof(struct sock_fprog)));
    T(listen(l, 1));
    T(connect(s[0], (void *)&b, len));
    T(close(l));
    s[1] = socket(b.ss_family, SOCK_STREAM, 0);
    T(bind(s[1], (void *)&b, len));
    T(connect(s[1], (void *)&a, len));
    await(s[0], POLLOUT);
    for (int i = 0; i < 2; i++) {
        T(err_of(s[i]));
        await_state(s[i], TCP_ESTABLISHED);
        set_nonblock(s[i], 0), nodelay(s[i]);
    }
    warm_pair(s[0], s[1]);
    for (int i = 0; i < 100; i++)
        if (put(s[0], i, 2000) != 2000 || get(s[1], i, 2000) != 2000 ||
            put(s[1], i, 2000) != 2000 || get(s[0], i, 2000) != 2000)
            die("echo");
    T(put(s[0], 1, 100));
    T(shutdown(s[0], SHUT_WR));
    T(get(s[1], 1, 100));
    T(recv(s[1], buf, 1, 0));
    T(close(s[1]));
    T(recv(s[0], buf, 1, 0));
    T(close(s[0]));
}

/* With TCP_DEFER_ACCEPT a connection is not accepted before it has sent bytes. */
static void deferred_server(int fd)
{
    int port, l = listen_any(&port);
    T(set_int(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, 30));
    say("%d", get_int(l, IPPROTO_TCP, TCP_DEFER_ACCEPT) >= 30);
    for (int i = 0; i < 3; i++) {
        tell(port);
        hear();
        usleep(50000);
        say("ready %s", mask_name(ready(l)));
        tell(0);
        fd = take(l);
        say("readable %d", ready(fd) & POLLIN);
        T(get(fd, i, 100));
        warm(fd, 1);
        echo_rounds(fd, 20, 3000);
        T(close(fd));
    }
    T(close(l));
}

static void deferred_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        fd = dial(hear());
        tell(0);
        hear();
        T(put(fd, i, 100));
        warm(fd, 0);
        echo_rounds(fd, 20, 3000);
        T(drain(fd, 0));
        T(close(fd));
    }
}

enum { MANY = 200 };

static void many(int fd)
{
    static int fds[MANY];
    size_t good = 0;
    fds[0] = fd;
    for (int i = 1; i < MANY; i++)
        fds[i] = join();
    for (int round = 0; round < 5; round++)
        for (int i = 0; i < MANY; i++) { /* all requests are under way before the first answer */
            if (!is_server)
                put(fds[i], i, 500);
            else
                good += get(fds[i], i, 500);
        }
    for (int round = 0; round < 5; round++)
        for (int i = 0; i < MANY; i++) {
            if (is_server)
                put(fds[i], i, 500);
            else
                good += get(fds[i], i, 500);
        }
    say("%zu good", good);
    meet();
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
}

static void churn_server(int fd)
{
    int port, l = listen_any(&port), good = 0;
    tell(port);
    for (int i = 0; i < 1000; i++) {
        if ((fd = accept(l, NULL, NULL)) < 0)
            die("accept");
        good += get(fd, i, i % 50) == (size_t)(i % 50) && put(fd, i, 1) == 1;
        close(fd);
    }
    say("%d good", good);
    meet();
}

static void churn_client(int fd)
{
    int port = hear(), good = 0;
    for (int i = 0; i < 1000; i++) {
        if ((fd = try_dial(port, 0)) < 0)
            die("connect");
        put(fd, i, i % 50);
        good += get(fd, i, 1) == 1 && recv(fd, buf, 1, 0) == 0;
        close(fd);
    }
    say("%d good", good);
    meet();
}

/* Short connections that are upgraded, or nearly. */
static void churn_warm_server(int fd)
{
    for (int i = 0; i < 30; i++) {
        fd = join();
        T(put(fd, i, 10000 * i));
        T(close(fd));
    }
}

static void churn_warm_client(int fd)
{
    for (int i = 0; i < 30; i++) {
        fd = join();
        T(drain(fd, i));
        T(close(fd));
    }
}

/* Closed before it was accepted. */
static void early_close_server(int fd)
{
    int port, l = listen_any(&port);
    tell(port);
    meet();
    fd = take(l);
    await(fd, POLLRDHUP);
    T(drain(fd, 1));
    T(close(fd));
    fd = take(l);
    await(fd, POLLHUP);
    T(recv(fd, buf, 1, 0));
    T(close(fd));
    T(close(l));
    meet();
}

static void early_close_client(int fd)
{
    int port = hear();
    fd = dial(port);
    T(put(fd, 1, 50000));
    T(close(fd));
    fd = dial(port);
    linger(fd, 1, 0);
    T(close(fd));
    meet();
    meet();
    fd = try_dial(port, 0);
    say("%s", fd < 0 ? strerrorname_np(errno) : "connected");
}

/* A listener that closes resets the connections in its queue. */
static void dead_listener_server(int fd)
{
    int port, l = listen_any(&port);
    (void)fd;
    tell(port);
    meet();
    await(l, POLLIN);
    T(close(l));
    meet();
}

static void dead_listener_client(int fd)
{
    fd = dial(hear());
    T(put(fd, 1, 100));
    meet();
    meet();
    await(fd, POLLHUP);
    T(recv(fd, buf, 1, 0));
    T(recv(fd, buf, 1, 0));
    T(send(fd, buf, 1, MSG_NOSIGNAL));
}

/* A blocked accept is interrupted by a signal, and another one times out. */
static void accept_waits_server(int fd)
{
    int port, l = listen_any(&port);
    count_signal(SIGUSR1, 0);
    tell(port);
    T(accept(l, NULL, NULL));
    say("signals %d", signals[SIGUSR1]);
    T(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, (&(struct timeval){0, 50000}),
        sizeof(struct timeval)));
    T(accept(l, NULL, NULL));
    T(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, (&(struct timeval){0, 0}), sizeof(struct timeval)));
    tell(0);
    fd = take(l);
    warm(fd, 1);
    echo_rounds(fd, 20, 3000);
}

static void accept_waits_client(int fd)
{
    int port = hear();
    await_asleep(peer_pid);
    kill(peer_pid, SIGUSR1);
    hear();
    await_asleep(peer_pid);
    fd = dial(port);
    warm(fd, 0);
    echo_rounds(fd, 20, 3000);
}

/* An address is bound again right after its connections are gone. */
static void rebind(void)
{
    for (int i = 0; i < 3; i++) {
        struct sockaddr_storage a;
        int end[2], port, l = listen_any(&port);
        socklen_t len = loopback(&a, port, 1);
        end[0] = dial(port), end[1] = take(l);
        warm_pair(end[0], end[1]);
        T(put(end[0], 1, 100));
        T(get(end[1], 1, 100));
        T(close(end[0]));
        await(end[1], POLLRDHUP);
        T(close(end[1])); /* the connecting end closed first: no TIME_WAIT here */
        T(close(l));
        l = socket(a.ss_family, SOCK_STREAM, 0);
        T(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)));
        T(bind(l, (void *)&a, len));
        T(listen(l, 5));
        T(close(l));
    }
}

/* A connect with AF_UNSPEC drops the connection and its unread bytes. The next connection of the
 * same socket does not find them. */
static void reconnect_server(int fd)
{
    int port, l = listen_any(&port);
    T(put(fd, 1, 1000));
    tell(port);
    int other = take(l);
    T(put(other, 2, 10));
    T(shutdown(other, SHUT_WR));
    T(recv(other, buf, 10, 0));
    await(fd, POLLHUP);
    T(recv(fd, buf, 10, 0));
}

static void reconnect_client(int fd)
{
    struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
    int port = hear();
    await_in(fd, 1000);
    T(connect(fd, (void *)&a, sizeof a));
    T(recv(fd, buf, 2000, 0));
    socklen_t len = loopback(&a, port, 0);
    T(connect(fd, (void *)&a, len));
    await_in(fd, 10);
    await(fd, POLLRDHUP);
    D(recv(fd, buf, 2000, 0));
    T(recv(fd, buf, 2000, 0));
    T(recv(fd, buf, 2000, MSG_WAITALL));
    T(close(fd));
}

/* The connecting process is stopped while the server's library looks for it, and goes on after the
 * one second for which the library looks. The library must take this process for a late one, and
 * not for one without the library. */
enum { FIRST = 65536 };
static void late_answer_server(int fd)
{
    fd = take_one();
    hear();
    T(get(fd, 1, FIRST));
    hear();
    warm(fd, 1);
    meet();
}

static void late_answer_client(int fd)
{
    struct sigevent cont = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT};
    struct itimerspec when = {.it_value = {.tv_sec = 1, .tv_nsec = 500000000}};
    timer_t timer;
    fd = dial(hear());
    T(put(fd, 1, FIRST));
    usleep(300000); /* by then the library can look for this process */
    if (timer_create(CLOCK_MONOTONIC, &cont, &timer) || timer_settime(timer, 0, &when, NULL))
        die("timer");
    tell(0);
    raise(SIGSTOP);
    timer_delete(timer);
    usleep(300000);
    tell(0);
    warm(fd, 0);
    meet();
}

const struct body connect_bodies[] = {
    ONE("connect_refused", refused, .flags = NOUP),
    ONE("unconnected", unconnected, .flags = NOUP),
    TWO("connect_nonblocking", nonblocking_server, nonblocking_client, .flags = RAW),
    TWO("accept_kinds", accepts_server, accepts_client, .flags = RAW),
    ONE("connect_to_self", self, .flags = NOUP),
    ONE("simultaneous_open", simultaneous, .flags = NOUP),
    TWO("deferred_accept", deferred_server, deferred_client, .flags = RAW),
    TWO("connect_beside_listener", beside_server, beside_client, .flags = RAW),
    /* in direct mode each of them waits in vain for a reader, 50 ms */
    TWO("connections_200", many, many, .limit = 60),
    TWO("churn_1000", churn_server, churn_client, .flags = RAW | NOUP, .limit = 20),
    TWO("churn_warm", churn_warm_server, churn_warm_client, .flags = RAW | MAYUP),
    TWO("closed_before_accept", early_close_server, early_close_client, .flags = RAW | NOUP),
    TWO("listener_closed", dead_listener_server, dead_listener_client, .flags = RAW | NOUP),
    TWO("accept_waits", accept_waits_server, accept_waits_client, .flags = RAW),
    ONE("rebind", rebind),
    TWO("reconnect_unread", reconnect_server, reconnect_client),
    TWO("late_answer", late_answer_server, late_answer_client, .flags = RAW),
    {0},
};
