/* Sockets before they are connections: protocols, first bytes, shared ports, copies and children
 * made early. */
#include "t.h"

static int port_of(const struct sockaddr_storage *a)
{
    return ntohs(((struct sockaddr_in *)a)->sin_port);
}

/* An MPTCP listener accepts plain TCP connections as well. Where the kernel does not have MPTCP,
 * the body ends early. */
static void mptcp_server(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, 0, 1);
    int l = socket(a.ss_family, SOCK_STREAM, IPPROTO_MPTCP);
    if (l < 0) {
        say("%s", strerrorname_np(errno));
        tell(-2);
        return;
    }
    if (bind(l, (void *)&a, len) || listen(l, 5) || getsockname(l, (void *)&a, &len))
        die("listen");
    tell(port_of(&a));
    for (int i = 0; i < 2; i++) {
        fd = take(l);
        say("protocol %d", get_int(fd, SOL_SOCKET, SO_PROTOCOL));
        warm(fd, 1);
        echo_rounds(fd, 50, 3000);
        T(put(fd, i, 100000));
        T(shutdown(fd, SHUT_WR));
        T(drain(fd, i));
        T(close(fd));
    }
}

static void mptcp_client(int fd)
{
    struct sockaddr_storage a;
    int port = hear();
    if (port < 0)
        return;
    for (int i = 0; i < 2; i++) {
        socklen_t len = loopback(&a, port, 0);
        fd = socket(a.ss_family, SOCK_STREAM, i ? 0 : IPPROTO_MPTCP);
        T(connect(fd, (void *)&a, len));
        nodelay(fd);
        warm(fd, 0);
        echo_rounds(fd, 50, 3000);
        T(drain(fd, i));
        T(put(fd, i, 100000));
        T(close(fd));
    }
}

/* The call that sends the first bytes makes the connection (TCP Fast Open). Where the kernel
 * refuses that, the body ends early. */
static void fastopen_server(int fd)
{
    int port, l = listen_any(&port);
    tell(port);
    for (int i = 0; i < 3 && hear(); i++) {
        fd = take(l);
        T(get(fd, i, 100));
        warm(fd, 1);
        echo_rounds(fd, 50, 3000);
    }
}

static long send_first(int fd, int how, struct sockaddr_storage *a, socklen_t len)
{
    struct iovec v = {buf, 100};
    struct mmsghdr m = {
        .msg_hdr = {.msg_name = a, .msg_namelen = len, .msg_iov = &v, .msg_iovlen = 1}};
    fill(buf, how, 0, 100);
    switch (how) {
    case 0: return sendto(fd, buf, 100, MSG_FASTOPEN, (void *)a, len);
    case 1: return sendmsg(fd, &m.msg_hdr, MSG_FASTOPEN);
    default: return sendmmsg(fd, &m, 1, MSG_FASTOPEN);
    }
}

static void fastopen_client(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, hear(), 0);
    for (int i = 0; i < 3; i++) {
        long n;
        fd = socket(a.ss_family, SOCK_STREAM, 0);
        T(n = send_first(fd, i, &a, len));
        tell(n > 0);
        if (n <= 0)
            return;
        T(sendto(fd, buf, 100, MSG_FASTOPEN, (void *)&a, len)); /* the connection exists already */
        nodelay(fd);
        warm(fd, 0);
        echo_rounds(fd, 50, 3000);
    }
}

/* With TCP_FASTOPEN_CONNECT the kernel is asked to wait for the first bytes. It connects at once if
 * it has no cookie of the server. */
static void fastopen_connect_server(int fd)
{
    fd = join_cold();
    T(get(fd, 1, 100));
    warm(fd, 1);
    echo_rounds(fd, 50, 3000);
}

static void fastopen_connect_client(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, hear(), 0);
    fd = socket(a.ss_family, SOCK_STREAM, 0);
    T(set_int(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
    say("%d", get_int(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT));
    T(connect(fd, (void *)&a, len));
    T(put(fd, 1, 100));
    T(connect(fd, (void *)&a, len));
    T(set_int(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
    nodelay(fd);
    warm(fd, 0);
    echo_rounds(fd, 50, 3000);
}

/* Two listeners share one port, and the kernel deals out the connections. After one listener has
 * closed, the other one gets all of them. */
static void two_listeners_server(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, 0, 1);
    struct pollfd p[2];
    for (int i = 0; i < 2; i++) {
        p[i] = (struct pollfd){.fd = socket(a.ss_family, SOCK_STREAM, 0), .events = POLLIN};
        T(set_int(p[i].fd, SOL_SOCKET, SO_REUSEPORT, 1));
        say("%d", get_int(p[i].fd, SOL_SOCKET, SO_REUSEPORT));
        T(bind(p[i].fd, (void *)&a, len));
        T(listen(p[i].fd, 5));
        getsockname(p[i].fd, (void *)&a, &len);
    }
    for (int i = 0; i < 8; i++) {
        if (i == 5) {
            T(close(p[0].fd));
            p[0].fd = -1;
        }
        tell(port_of(&a));
        T(poll(p, 2, -1));
        fd = take(p[0].revents ? p[0].fd : p[1].fd);
        warm(fd, 1);
        echo_rounds(fd, 20, 3000);
        T(close(fd));
    }
}

static void two_listeners_client(int fd)
{
    for (int i = 0; i < 8; i++) {
        fd = join();
        echo_rounds(fd, 20, 3000);
        T(recv(fd, buf, 1, 0));
        T(close(fd));
    }
}

/* Duplicates that were made before the connect are the connection all the same. */
static void early_copies_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        fd = join();
        for (int k = 0; k < 4; k++) {
            T(get(fd, k, 3000));
            T(put(fd, k, 3000));
        }
        hear();
        say("not over: %s", mask_name(ready(fd)));
        tell(0);
        T(drain(fd, 9));
        T(close(fd));
    }
}

static void early_copies_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        struct sockaddr_storage a;
        socklen_t len = loopback(&a, hear(), 0);
        int copy[4];
        fd = socket(a.ss_family, SOCK_STREAM, 0);
        copy[0] = fd;
        T((copy[1] = dup(fd)) > 2);
        T(copy[2] = fcntl(fd, F_DUPFD, 60));
        if (i)
            T(copy[3] = dup2(copy[1], 90));
        else
            T(copy[3] = dup3(copy[1], 90, O_CLOEXEC));
        T(connect(copy[i], (void *)&a, len));
        nodelay(copy[3 - i]);
        warm(copy[i + 1], 0);
        for (int k = 0; k < 4; k++) {
            T(put(copy[k], k, 3000));
            T(get(copy[(k + 2) % 4], k, 3000));
        }
        int last = copy[(i + 3) % 4];
        for (int k = 0; k < 4; k++)
            if (copy[k] != last)
                T(close(copy[k]));
        tell(0);
        hear();
        T(put(last, 9, 3000));
        T(close(last));
    }
}

/* The same for a listener: each number accepts connections, and so does a child's. The child comes
 * first, since the child of a process that has links to other hosts makes no links itself. */
static void early_listener_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        struct sockaddr_storage a;
        socklen_t len = loopback(&a, 0, 1);
        int l[2] = {socket(a.ss_family, SOCK_STREAM, 0)}, turn[2];
        pid_t pid = -1;
        if (bind(l[0], (void *)&a, len) || getsockname(l[0], (void *)&a, &len) || pipe(turn))
            die("bind");
        T((l[1] = dup(l[0])) > 2);
        if (i == 0 && !(pid = child())) {
            if (read(turn[0], buf, 1) != 1)
                die("turn");
            await(l[0], POLLIN);
            fd = take(l[1]);
            warm(fd, 1);
            echo_rounds(fd, 20, 3000);
            _exit(0);
        }
        T(listen(l[i % 2], 5));
        for (int k = 0; k < 2; k++) {
            tell(port_of(&a));
            if (i == 0 && k == 0) {
                if (write(turn[1], "x", 1) != 1)
                    die("turn");
                reap(pid);
                continue;
            }
            await(l[!k], POLLIN);
            fd = take(l[k]);
            warm(fd, 1);
            echo_rounds(fd, 20, 3000);
            T(close(fd));
        }
        close(l[0]), close(l[1]), close(turn[0]), close(turn[1]);
    }
}

static void early_listener_client(int fd)
{
    for (int i = 0; i < 6; i++) {
        fd = join();
        echo_rounds(fd, 20, 3000);
        T(recv(fd, buf, 1, 0));
        T(close(fd));
    }
}

/* A child that was forked before the connect has the connection, too: one of the two connects, then
 * both use it by turns. */
static void early_child_server(int fd)
{
    for (int i = 0; i < 2; i++) {
        fd = join();
        T(put(fd, 1, 20000));
        meet();
        T(get(fd, 2, 3000));
        T(get(fd, 3, 3000));
        T(drain(fd, 4));
        T(close(fd));
    }
}

static void early_child_client(int fd)
{
    for (int i = 0; i < 2; i++) {
        struct sockaddr_storage a;
        socklen_t len = loopback(&a, hear(), 0);
        int turn[2];
        T(pipe(turn));
        fd = socket(a.ss_family, SOCK_STREAM, 0);
        pid_t pid = child();
        if ((pid == 0) == i) { /* the parent, then the child */
            if (connect(fd, (void *)&a, len))
                die("connect");
            nodelay(fd);
            warm(fd, 0);
            await_in(fd, 20000);
            if (get(fd, 1, 5000) != 5000)
                die("first bytes");
        }
        if (!pid) {
            if (!i && read(turn[0], buf, 1) != 1)
                die("turn");
            T(get_at(fd, 1, 5000, 5000));
            T(put(fd, 2, 3000));
            _exit(0);
        }
        if (!i && write(turn[1], "x", 1) != 1)
            die("turn");
        reap(pid);
        close(turn[0]), close(turn[1]);
        T(get_at(fd, 1, 10000, 10000));
        meet();
        T(put(fd, 3, 3000));
        T(put(fd, 4, 50000));
        T(close(fd));
    }
}

const struct body socket_bodies[] = {
    TWO("mptcp", mptcp_server, mptcp_client, .flags = RAW | NOUP),
    TWO("fastopen_sendto", fastopen_server, fastopen_client, .flags = RAW | NOUP),
    TWO("fastopen_connect", fastopen_connect_server, fastopen_connect_client, .flags = RAW),
    TWO("two_listeners", two_listeners_server, two_listeners_client, .flags = RAW),
    TWO("dup_before_connect", early_copies_server, early_copies_client, .flags = RAW),
    TWO("dup_before_listen", early_listener_server, early_listener_client, .flags = RAW),
    TWO("fork_before_connect", early_child_server, early_child_client, .flags = RAW | MAYUP),
    {0},
};
