/* Descriptors that travel over Unix sockets. */
#include "t.h"

static void pass(int unix_fd, int fd)
{
    union { struct cmsghdr h; char space[CMSG_SPACE(sizeof(int))]; } c = {.h = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec v = {"f", 1};
    memcpy(CMSG_DATA(&c.h), &fd, sizeof fd);
    if (sendmsg(unix_fd, &(struct msghdr){.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c}, 0) != 1)
        die("pass");
}

static int passed(int unix_fd)
{
    union { struct cmsghdr h; char space[CMSG_SPACE(sizeof(int))]; } c;
    char byte;
    int fd = -1;
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
    if (recvmsg(unix_fd, &m, 0) == 1 && m.msg_controllen >= sizeof(struct cmsghdr))
        memcpy(&fd, CMSG_DATA(&c.h), sizeof fd);
    return fd;
}

/* A helper process, there before any connection, is given ours; it may have the library or not. */
static void passing(int preloaded)
{
    int u[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, u);
    pid_t pid = child();
    if (!pid) {
        close(u[0]);
        if (!preloaded)
            unsetenv("LD_PRELOAD");
        exec_self(u[1]);
    }
    close(u[1]);
    int fd = join();
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 30000);
    T(get(fd, 2, 10000));
    pass(u[0], fd);
    drop(fd);
    D(recv(u[0], buf, 4, MSG_WAITALL)); /* the helper is through */
    T(close(u[0]));
    reap(pid);
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

/* The connection is passed to ourselves: two numbers for one socket. */
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

const struct body passing_bodies[] = {
    TWO("scm_rights", passing_server, passing_client, .flags = RAW, .resume = passing_resume),
    TWO("scm_rights_not_preloaded", passing_plain_server, passing_client, .flags = RAW, .resume = passing_resume),
    TWO("scm_rights_to_self", pass_to_self, pass_to_self, .flags = STEADY),
    {0},
};
