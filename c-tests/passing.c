/* Descriptors that travel over Unix sockets. */
#include "t.h"

static void pass(int unix_fd, int fd)
{
    union { struct cmsghdr h; char space[CMSG_SPACE(sizeof(int))]; } c =
        {.h = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec v = {"f", 1};
    memcpy(CMSG_DATA(&c.h), &fd, sizeof fd);
    if (sendmsg(unix_fd, &(struct msghdr){.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
            .msg_controllen = sizeof c}, 0) != 1)
        die("pass");
}

static int passed(int unix_fd)
{
    union { struct cmsghdr h; char space[CMSG_SPACE(sizeof(int))]; } c;
    char byte;
    int fd = -1;
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
        .msg_controllen = sizeof c};
    if (recvmsg(unix_fd, &m, 0) == 1 && m.msg_controllen >= sizeof(struct cmsghdr))
        memcpy(&fd, CMSG_DATA(&c.h), sizeof fd);
    return fd;
}

/* Starts a helper process before there is any connection, with the library or without, and returns
 * the Unix socket to it. The helper goes on in the body's `resume`. */
static int helper(int preloaded, pid_t *pid)
{
    int u[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, u);
    if (!(*pid = child())) {
        close(u[0]);
        if (!preloaded)
            unsetenv("LD_PRELOAD");
        exec_self(u[1]);
    }
    close(u[1]);
    return u[0];
}

/* Passes `fd` to the helper, closes it here, and waits until the helper has ended. */
static void give(int unix_fd, int fd, pid_t pid)
{
    pass(unix_fd, fd);
    drop(fd);
    D(recv(unix_fd, buf, 4, MSG_WAITALL));
    T(close(unix_fd));
    reap(pid);
}

static void passing(int preloaded)
{
    pid_t pid;
    int unix_fd = helper(preloaded, &pid), fd = join();
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 30000);
    T(get(fd, 2, 10000));
    give(unix_fd, fd, pid);
}

static void passing_server(int fd)
{
    (void)fd;
    passing(1);
}

static void passing_plain_server(int fd)
{
    (void)fd;
    passing(0);
}

static void passing_resume(int unix_fd)
{
    int fd = passed(unix_fd);
    T(get_at(fd, 2, 10000, 20000));
    T(put(fd, 3, 20000));
    echo_rounds(fd, 50, 3000);
    T(close(fd));
    if (write(unix_fd, "done", 4) != 4)
        die("done");
    _exit(0);
}

static void passing_client(int fd)
{
    fd = join();
    T(put(fd, 2, 30000));
    meet();
    T(get(fd, 1, 20000));
    T(get(fd, 3, 20000));
    echo_rounds(fd, 50, 3000);
    T(recv(fd, buf, 1, 0));
}

/* A helper without the library makes the connection, and passes it to this process. */
static void inwards_server(int fd)
{
    pid_t pid;
    int unix_fd = helper(0, &pid);
    fd = passed(unix_fd);
    T(get(fd, 1, 20000));
    T(put(fd, 2, 20000));
    echo_rounds(fd, 50, 3000);
    T(close(fd));
    T(close(unix_fd));
    reap(pid);
}

static void inwards_resume(int unix_fd)
{
    int fd = take_one();
    if (put(fd, 3, 5000) != 5000 || get(fd, 4, 5000) != 5000)
        die("helper");
    pass(unix_fd, fd);
    _exit(0);
}

static void inwards_client(int fd)
{
    fd = join_cold();
    T(get(fd, 3, 5000));
    T(put(fd, 4, 5000));
    T(put(fd, 1, 20000));
    T(get(fd, 2, 20000));
    echo_rounds(fd, 50, 3000);
    T(recv(fd, buf, 1, 0));
}

/* The connection is passed to a helper without the library, which passes it back. This process has
 * closed its own descriptor meanwhile. */
static void lent_server(int fd)
{
    pid_t pid;
    int unix_fd = helper(0, &pid);
    fd = join();
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 30000);
    T(get(fd, 2, 10000));
    pass(unix_fd, fd);
    drop(fd);
    fd = passed(unix_fd);
    T(get_at(fd, 2, 20000, 10000));
    T(put(fd, 3, 20000));
    echo_rounds(fd, 50, 3000);
    T(close(fd));
    T(close(unix_fd));
    reap(pid);
}

static void lent_resume(int unix_fd)
{
    int fd = passed(unix_fd);
    if (get_at(fd, 2, 10000, 10000) != 10000 || put(fd, 4, 5000) != 5000)
        die("helper");
    pass(unix_fd, fd);
    _exit(0);
}

static void lent_client(int fd)
{
    fd = join();
    T(put(fd, 2, 30000));
    meet();
    T(get(fd, 1, 20000));
    T(get(fd, 4, 5000));
    T(get(fd, 3, 20000));
    echo_rounds(fd, 50, 3000);
    T(recv(fd, buf, 1, 0));
}

/* Two connections in one message, by sendmmsg and recvmmsg, after a plain message. */
static void pass_many_server(int fd)
{
    int u[2], second = join(), got[2] = {-1, -1};
    union { struct cmsghdr h; char space[CMSG_SPACE(sizeof got)]; } c =
        {.h = {CMSG_LEN(sizeof got), SOL_SOCKET, SCM_RIGHTS}}, in;
    socketpair(AF_UNIX, SOCK_SEQPACKET, 0, u);
    memcpy(CMSG_DATA(&c.h), (int[2]){fd, second}, sizeof got);
    struct mmsghdr m[2] = {
        {{.msg_iov = &(struct iovec){"a", 1}, .msg_iovlen = 1}, 0},
        {{.msg_iov = &(struct iovec){"b", 1}, .msg_iovlen = 1, .msg_control = &c,
            .msg_controllen = sizeof c}, 0},
    };
    T(sendmmsg(u[0], m, 2, 0));
    char bytes[2] = "";
    struct mmsghdr r[2] = {
        {{.msg_iov = &(struct iovec){bytes, 1}, .msg_iovlen = 1}, 0},
        {{.msg_iov = &(struct iovec){bytes + 1, 1}, .msg_iovlen = 1, .msg_control = &in,
            .msg_controllen = sizeof in}, 0},
    };
    T(recvmmsg(u[1], r, 2, 0, NULL));
    memcpy(got, CMSG_DATA(&in.h), sizeof got);
    say("%.2s, %d %d", bytes, got[0] > 2, got[1] > 2);
    T(close(fd));
    T(close(second));
    for (int i = 0; i < 2; i++) {
        echo_rounds(got[i], 50, 3000);
        T(close(got[i]));
    }
    close(u[0]), close(u[1]);
}

static void pass_many_client(int fd)
{
    int second = join();
    echo_rounds(fd, 50, 3000);
    T(recv(fd, buf, 1, 0));
    echo_rounds(second, 50, 3000);
    T(recv(second, buf, 1, 0));
}

/* The process passes the connection to itself: it has two numbers for one socket. */
static void pass_to_self(int fd)
{
    int u[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, u);
    pass(u[0], fd);
    echo_rounds(fd, 10, 2000);
    int again = passed(u[1]);
    say("fd %d", again);
    echo_rounds(again, 10, 2000);
    T(close(fd));
    echo_rounds(again, 50, 2000);
}

/* A child passes the connection back to its parent. The parent has two numbers for one socket then,
 * and its library does not know what the second one is. */
enum { TURNS = 40, TURN = 2000 };

static void pass_from_child_client(int fd)
{
    int u[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, u);
    pid_t pid = child();
    if (!pid) {
        pass(u[0], fd);
        _exit(0);
    }
    int again = passed(u[1]);
    reap(pid);
    size_t sent = 0;
    echo_rounds(fd, 20, 3000);
    for (int i = 0; i < TURNS; i++)
        sent += put_at(i & 1 ? again : fd, 1, i * TURN, TURN);
    say("sent %zu", sent);
    T(get(fd, 2, 1000));
    T(close(again));
    T(close(fd));
}

static void pass_from_child_server(int fd)
{
    echo_rounds(fd, 20, 3000);
    T(get(fd, 1, TURNS * TURN));
    T(put(fd, 2, 1000));
    T(recv(fd, buf, 1, 0));
}

/* The connection is passed on after a reset: the process that passed it still finds the unread
 * bytes. */
static void reset_passed_server(int fd)
{
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 30000);
    T(close(fd));
}

static void reset_passed_client(int fd)
{
    int u[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, u);
    T(put(fd, 2, 30000));
    meet();
    await(fd, POLLHUP);
    pass(u[0], fd);
    T(get(fd, 1, 20000));
    post_mortem(fd);
}

/* A listener that this program has not made: the connections that it accepts leave TCP all the
 * same. */
static void serve_on(int l)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    if (getsockname(l, (void *)&a, &len))
        die("getsockname");
    for (int i = 0; i < 3; i++) {
        tell(ntohs(((struct sockaddr_in *)&a)->sin_port));
        int fd = i == 2 ? accept4(l, NULL, NULL, SOCK_CLOEXEC) : take(l);
        if (i == 2)
            nodelay(fd);
        warm(fd, 1);
        echo_rounds(fd, 20, 3000);
        T(close(fd));
    }
}

static void served_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        fd = join();
        echo_rounds(fd, 20, 3000);
        T(recv(fd, buf, 1, 0));
        T(close(fd));
    }
}

static void listener_exec_server(int fd)
{
    exec_self(listen_any(&fd));
}

static void listener_passed_server(int fd)
{
    pid_t pid;
    int port, unix_fd = helper(1, &pid);
    fd = listen_any(&port);
    give(unix_fd, fd, pid);
}

static void listener_passed_resume(int unix_fd)
{
    serve_on(passed(unix_fd));
    if (write(unix_fd, "done", 4) != 4)
        die("done");
    _exit(0);
}

/* An epoll set that this program has not made reports its connections all the same. */
static void use_set(int ep, int fd)
{
    T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, PATTERN));
    say_wait(ep, 0);
    order(10);
    await_in(fd, 10);
    say_wait(ep, -1);
    T(get(fd, 10, 10));
    say_wait(ep, 0);
    for (int i = 0; i < 3; i++) {
        tell(WHEN_ASLEEP + 20);
        say_wait(ep, -1);
        hear();
        await_in(fd, 20);
        T(recv(fd, buf, 100, 0));
    }
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT, 7));
    say_wait(ep, 0);
    T(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
    say_wait(ep, 0);
}

static void set_server(int fd)
{
    fd = join();
    obey(fd);
}

static void set_received_client(int fd)
{
    int u[2], ep;
    socketpair(AF_UNIX, SOCK_STREAM, 0, u);
    pid_t pid = child();
    if (!pid) {
        close(u[0]);
        pass(u[1], epoll_create1(0));
        _exit(read(u[1], buf, 1));
    }
    close(u[1]);
    ep = passed(u[0]);
    fd = join();
    use_set(ep, fd);
    close(u[0]);
    reap(pid);
    tell(END);
    meet();
}

/* Another process waits for a set of this one: for the connection that was in the set when it was
 * passed, and for one that is added afterwards. */
static void set_passed_server(int fd)
{
    int second;
    fd = join();
    second = join();
    for (long n; (n = hear()) != END; tell(0))
        put(n % 2 ? second : fd, 1, 20);
    meet();
}

static void set_passed_client(int fd)
{
    int u[2], ep;
    socketpair(AF_UNIX, SOCK_STREAM, 0, u);
    pid_t pid = child();
    if (!pid) {
        close(u[0]);
        for (ep = passed(u[1]); read(u[1], buf, 1) == 1;) {
            say_wait(ep, -1);
            if (write(u[1], "w", 1) != 1)
                die("waited");
        }
        _exit(0);
    }
    close(u[1]);
    fd = join();
    int both[2] = {fd, join()};
    ep = set_of(fd, EPOLLIN);
    pass(u[0], ep);
    for (int i = 0; i < 4; i++) {
        if (i == 1)
            T(ctl(ep, EPOLL_CTL_ADD, both[1], EPOLLIN, 7));
        T(write(u[0], "g", 1));
        await_asleep(pid);
        order(i);
        T(read(u[0], buf, 1));
        await_in(both[i % 2], 20);
        say_wait(ep, -1);
        T(get(both[i % 2], 1, 20));
    }
    close(u[0]);
    reap(pid);
    tell(END);
    meet();
}

/* A set of this process comes back by another number, with a connection in it and without. */
static void set_to_self_client(int fd)
{
    int u[2], ep, again;
    fd = join();
    socketpair(AF_UNIX, SOCK_STREAM, 0, u);
    ep = set_of(fd, EPOLLIN);
    pass(u[0], ep);
    again = passed(u[1]);
    order(10);
    await_in(fd, 10);
    say_wait(again, -1);
    say_wait(ep, -1);
    T(get(fd, 10, 10));
    T(ctl(again, EPOLL_CTL_DEL, fd, 0, 0));
    say_wait(ep, 0);
    use_set(again, fd);
    tell(END);
    meet();
}

static void use_and_end(int ep)
{
    use_set(ep, join());
    tell(END);
    meet();
}

/* A set that is made by a bare system call, which the library does not see. */
static void set_unseen_client(int fd)
{
    (void)fd;
    use_and_end(unseen(SYS_epoll_create1, 0));
}

/* One set of more than the library keeps in mind. */
static void one_of_many_client(int fd)
{
    struct rlimit r;
    int ep = -1;
    (void)fd;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = 6000;
    T(setrlimit(RLIMIT_NOFILE, &r));
    for (int i = 0; i < 4100; i++)
        ep = epoll_create1(0);
    use_and_end(ep);
}

static void set_exec_client(int fd)
{
    (void)fd;
    exec_self(epoll_create1(0));
}

const struct body passing_bodies[] = {
    TWO("scm_rights", passing_server, passing_client, .flags = RAW, .resume = passing_resume),
    TWO("scm_rights_not_preloaded", passing_plain_server, passing_client, .flags = RAW,
        .resume = passing_resume),
    TWO("scm_rights_to_self", pass_to_self, pass_to_self, .flags = STEADY),
    TWO("scm_rights_inwards", inwards_server, inwards_client, .flags = RAW | NOUP,
        .resume = inwards_resume),
    TWO("scm_rights_lent", lent_server, lent_client, .flags = RAW, .resume = lent_resume),
    TWO("scm_rights_of_two", pass_many_server, pass_many_client),
    TWO("scm_rights_by_child", pass_from_child_server, pass_from_child_client),
    TWO("scm_rights_behind_reset", reset_passed_server, reset_passed_client, .flags = ONEHOST),
    TWO("listener_over_exec", listener_exec_server, served_client, .flags = RAW,
        .resume = serve_on),
    TWO("listener_passed", listener_passed_server, served_client, .flags = RAW,
        .resume = listener_passed_resume),
    TWO("set_received", set_server, set_received_client, .flags = RAW),
    TWO("set_passed", set_passed_server, set_passed_client, .flags = RAW),
    TWO("set_to_self", set_server, set_to_self_client, .flags = RAW),
    TWO("set_unseen", set_server, set_unseen_client, .flags = RAW),
    TWO("set_one_of_many", set_server, one_of_many_client, .flags = RAW),
    TWO("set_over_exec", set_server, set_exec_client, .flags = RAW, .resume = use_and_end),
    {0},
};
