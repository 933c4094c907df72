/* ioctl and fcntl: how many bytes are unread and unsent, and which process gets the signals. */
#include "t.h"

static void say_queued(int fd)
{
    int n = -1, m = -1;
    T(ioctl(fd, FIONREAD, &n));
    ioctl(fd, SIOCINQ, &m);
    say("queued %d %d", n, m);
}

static void fionread_server(int fd)
{
    meet();
    T(put(fd, 1, 3000));
    meet();
    hear();
    T(put(fd, 2, 70000));
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void fionread_client(int fd)
{
    say_queued(fd);
    meet();
    meet();
    await_in(fd, 3000);
    say_queued(fd);
    D(recv(fd, buf, 1000, MSG_PEEK));
    say_queued(fd);
    D(recv(fd, buf, 1000, 0));
    say_queued(fd);
    D(recv(fd, buf, 2000, 0));
    say_queued(fd);
    tell(0);
    await_in(fd, 70000);
    await(fd, POLLRDHUP);
    say_queued(fd);
    T(get(fd, 2, 60000));
    say_queued(fd);
    T(get(fd, 2, 10000));
    T(recv(fd, buf, 1, 0));
    say_queued(fd);
    meet();
}

/* Reads, and returns how many bytes are left unread (TCP_INQ); -1: the message does not tell. */
static int told(int fd, int size, int flags, size_t room)
{
    char control[64];
    struct msghdr m = {.msg_iov = &(struct iovec){buf, size}, .msg_iovlen = 1,
        .msg_control = control, .msg_controllen = room};
    D(recvmsg(fd, &m, flags));
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (room && room < CMSG_LEN(sizeof(int)))
        say("flags %x room %zu", m.msg_flags, m.msg_controllen);
    return c && c->cmsg_level == IPPROTO_TCP && c->cmsg_type == TCP_CM_INQ &&
        c->cmsg_len == CMSG_LEN(sizeof(int)) ? *(int *)CMSG_DATA(c) : -1;
}

static void told_server(int fd)
{
    for (int i = 0; i < 2; i++) {
        T(put(fd, 1, 3000));
        meet();
        meet();
    }
    for (int i = 0; hear(); i++)
        put(fd, i, 1 + i * 37 % 5000);
    T(put(fd, 2, 70000));
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void told_client(int fd)
{
    enum { ROOM = CMSG_SPACE(sizeof(int)) };
    for (int i = 0; i < 2; i++) {
        meet();
        await_in(fd, 3000);
        if (i == 0)
            T(set_int(fd, IPPROTO_TCP, TCP_INQ, 1));
        say("inq %d", told(fd, 1000, MSG_PEEK, ROOM));
        say("inq %d", told(fd, 1000, 0, ROOM));
        say("inq %d", told(fd, 500, 0, 0));
        say("inq %d", told(fd, 500, 0, CMSG_LEN(0) - 1));
        say("inq %d", told(fd, 500, 0, CMSG_LEN(0) + 1));
        say("inq %d", told(fd, 1000, 0, ROOM));
        T(told(fd, 1000, MSG_DONTWAIT, ROOM));
        T(set_int(fd, IPPROTO_TCP, TCP_INQ, i));
        meet();
    }
    /* As gRPC reads: the reader waits for the next edge when nothing is left. */
    int set = epoll_create1(0), rounds = 0;
    struct epoll_event e = {.events = EPOLLIN | EPOLLET};
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    for (int i = 0; i < 300; i++) {
        int want = 1 + i * 37 % 5000;
        tell(1);
        while (want > 0) {
            epoll_wait(set, &e, 1, -1);
            for (int left = 1; left > 0;) {
                char control[64];
                struct msghdr m = {.msg_iov = &(struct iovec){buf, 900}, .msg_iovlen = 1,
                    .msg_control = control, .msg_controllen = sizeof control};
                int n = recvmsg(fd, &m, MSG_DONTWAIT);
                struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : 0;
                left = c ? *(int *)CMSG_DATA(c) : 0;
                want -= n > 0 ? n : 0;
            }
        }
        rounds++;
    }
    say("%d rounds", rounds);
    tell(0);
    await_in(fd, 70000);
    await(fd, POLLRDHUP);
    YES(told(fd, 60000, MSG_WAITALL, ROOM) >= 10000);
    say("inq %d", told(fd, 10000, MSG_WAITALL, ROOM));
    say("inq %d", told(fd, 10, 0, ROOM));
    close(set);
    meet();
}

/* The connections that a listener accepts inherit its TCP_INQ. */
static void told_inherited(int fd)
{
    if (is_server) {
        int port, l = listen_any(&port);
        T(set_int(l, IPPROTO_TCP, TCP_INQ, 1));
        tell(port);
        fd = take(l);
    } else {
        fd = join_cold();
    }
    warm(fd, is_server);
    if (is_server) {
        meet();
        await_in(fd, 3000);
        say("inq %d", told(fd, 1000, 0, CMSG_SPACE(sizeof(int))));
        D(recv(fd, buf, 2000, MSG_WAITALL));
    } else {
        T(put(fd, 1, 3000));
        meet();
    }
    meet();
    echo_rounds(fd, 20, 3000);
}

static int unsent(int fd)
{
    int n = -1;
    for (int i = 0; ioctl(fd, SIOCOUTQ, &n) == 0 && n > 0 && i < 5000; i++)
        usleep(1000);
    return n;
}

static void outq_server(int fd)
{
    say("%d", unsent(fd));
    T(put(fd, 1, 20000));
    say("%d", unsent(fd)); /* all of it is with the peer, read or not */
    meet();
    meet();
    say("%d", unsent(fd));
    set_nonblock(fd, 1);
    int n = 0, waiting;
    while (write(fd, buf, 100000) > 0)
        ;
    T(ioctl(fd, SIOCOUTQ, &waiting));
    T(ioctl(fd, TIOCOUTQ, &n));
    YES(waiting > 0 && n > 0);
    T(ioctl(fd, SIOCOUTQNSD, &n));
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void outq_client(int fd)
{
    meet();
    T(get(fd, 1, 20000));
    meet();
    meet();
    while (read(fd, buf, sizeof buf) > 0)
        ;
}

/* O_ASYNC: a signal when something can be read. */
static void sigio_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        hear();
        T(put(fd, i, 100));
    }
    meet();
}

static void sigio_client(int fd)
{
    sigset_t s;
    siginfo_t info;
    sigemptyset(&s);
    sigaddset(&s, SIGIO);
    sigaddset(&s, SIGRTMIN + 1);
    T(sigprocmask(SIG_BLOCK, &s, NULL));
    T(fcntl(fd, F_SETOWN, getpid()));
    T(fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK));
    YES(fcntl(fd, F_GETFL) & O_ASYNC);
    YES(fcntl(fd, F_GETOWN) == getpid());
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            T(fcntl(fd, F_SETSIG, SIGRTMIN + 1));
        tell(0);
        int sig = sigtimedwait(&s, &info, &(struct timespec){5, 0});
        YES(sig == (i == 2 ? SIGRTMIN + 1 : SIGIO));
        await_in(fd, 100);
        while (sigtimedwait(&s, &info, &(struct timespec){0, 0}) > 0)
            ;
        D(recv(fd, buf, 1000, 0));
        while (sigtimedwait(&s, &info, &(struct timespec){0, 0}) > 0)
            ;
    }
    meet();
}

static void sigio_other_server(int fd)
{
    fd = join();
    hear();
    T(put(fd, 1, 100));
    meet();
}

/* O_ASYNC by other ways than F_SETFL on a connection: before the connect, or by FIOASYNC. */
static void sigio_other_client(int fd, int early)
{
    sigset_t s;
    struct sockaddr_storage a;
    int on = 1, port = hear();
    sigemptyset(&s);
    sigaddset(&s, SIGIO);
    T(sigprocmask(SIG_BLOCK, &s, NULL));
    socklen_t len = loopback(&a, port, 0);
    fd = socket(a.ss_family, SOCK_STREAM, 0);
    if (early) {
        T(fcntl(fd, F_SETFL, O_ASYNC));
        T(fcntl(fd, F_SETOWN, getpid()));
    }
    T(connect(fd, (void *)&a, len));
    warm(fd, 0);
    if (!early) {
        T(fcntl(fd, F_SETOWN, getpid()));
        T(ioctl(fd, FIOASYNC, &on));
    }
    YES(fcntl(fd, F_GETFL) & O_ASYNC);
    while (sigtimedwait(&s, NULL, &(struct timespec){0, 0}) > 0)
        ;
    tell(0);
    YES(sigtimedwait(&s, NULL, &(struct timespec){5, 0}) == SIGIO);
    D(recv(fd, buf, 100, MSG_WAITALL));
    meet();
}

static void fioasync_client(int fd) { sigio_other_client(fd, 0); }
static void sigio_early_client(int fd) { sigio_other_client(fd, 1); }

static void fcntl64_server(int fd)
{
    hear();
    await_asleep(peer_pid);
    T(put(fd, 1, 100));
    meet();
    T(put(fd, 2, 3000));
    T(get(fd, 3, 3000));
    meet();
    say("not over: %s", mask_name(ready(fd)));
    meet();
    await(fd, POLLRDHUP);
    T(recv(fd, buf, 1, 0));
    meet();
}

static void fcntl64_client(int fd)
{
    int copy, other;
    T(fcntl64(fd, F_SETFL, O_NONBLOCK));
    YES(fcntl64(fd, F_GETFL) & O_NONBLOCK);
    T(recv(fd, buf, 1, 0));
    T(fcntl64(fd, F_SETFL, 0));
    YES(!(fcntl64(fd, F_GETFL) & O_NONBLOCK));
    tell(0);
    D(recv(fd, buf, 1000, 0));
    T(copy = fcntl64(fd, F_DUPFD, 60));
    T(other = fcntl64(fd, F_DUPFD_CLOEXEC, 60));
    say("cloexec %d %d", fcntl64(copy, F_GETFD), fcntl64(other, F_GETFD));
    meet();
    T(get(copy, 2, 3000));
    T(close(fd));
    T(put(other, 3, 3000));
    T(close(copy));
    meet();
    meet();
    T(close(other));
    meet();
}

/* The owner of the signals of a connection: set in every way there is, read back, and reached by a
 * signal. */
static void owners_server(int fd)
{
    echo_rounds(fd, 20, 3000);
    for (long n; (n = hear()) >= 0; tell(0))
        send(fd, "!", 1, MSG_OOB);
}

static int has_owner(int fd, int type, pid_t id)
{
    struct f_owner_ex o = {-1, -1};
    return fcntl(fd, F_GETOWN_EX, &o) == 0 && (int)o.type == type && o.pid == id;
}

static int own(int fd, int how)
{
    pid_t me = getpid();
    switch (how) {
    case 0: return fcntl(fd, F_SETOWN_EX, (&(struct f_owner_ex){F_OWNER_TID, gettid()}));
    case 1: return fcntl(fd, F_SETOWN_EX, (&(struct f_owner_ex){F_OWNER_PID, 0}));
    case 2: return ioctl(fd, FIOSETOWN, &me);
    case 3: me = 0; return ioctl(fd, FIOSETOWN, &me);
    default: return ioctl(fd, SIOCSPGRP, &me);
    }
}

static void owners_client(int fd)
{
    int id = 7, group = -getpgrp();
    YES(fcntl(fd, F_GETOWN) == 0 && fcntl(fd, F_GETSIG) == 0);
    T(fcntl(fd, F_SETSIG, SIGRTMIN + 1));
    YES(fcntl(fd, F_GETSIG) == SIGRTMIN + 1);
    T(fcntl(fd, F_SETOWN_EX, (&(struct f_owner_ex){F_OWNER_PGRP, getpgrp()})));
    YES(has_owner(fd, F_OWNER_PGRP, getpgrp()) && ioctl(fd, FIOGETOWN, &id) == 0 && id == group);
    T(ioctl(fd, SIOCSPGRP, &group));
    YES(has_owner(fd, F_OWNER_PGRP, getpgrp()) && ioctl(fd, SIOCGPGRP, &id) == 0 && id == group);
    T(fcntl(fd, F_SETOWN_EX, (&(struct f_owner_ex){99, 1})));
    T(ioctl(fd, FIOSETOWN, (&(int){INT_MAX})));
    echo_rounds(fd, 20, 3000);
    count_signal(SIGURG, 0);
    for (int how = 0; how < 5; how++) {
        /* the first thread's number is the process's */
        pid_t owner = how == 1 || how == 3 ? 0 : getpid();
        T(own(fd, how));
        YES(has_owner(fd, how == 0 ? F_OWNER_TID : F_OWNER_PID, owner));
        YES(ioctl(fd, how == 4 ? FIOGETOWN : SIOCGPGRP, &id) == 0 && id == owner);
        tell(0);
        hear();
        await(fd, POLLPRI);
        D(recv(fd, buf, 10, MSG_OOB));
        say("signals %d", signals[SIGURG]);
    }
    tell(-1);
}

const struct body ioctl_bodies[] = {
    TWO("fionread", fionread_server, fionread_client),
    TWO("unread_told", told_server, told_client),
    TWO("unread_told_inherited", told_inherited, told_inherited, .flags = RAW),
    TWO("siocoutq", outq_server, outq_client),
    TWO("fcntl64", fcntl64_server, fcntl64_client),
    TWO("signal_owners", owners_server, owners_client),
    TWO("sigio", sigio_server, sigio_client),
    TWO("sigio_by_ioctl", sigio_other_server, fioasync_client, .flags = RAW),
    TWO("stays_signal_driven", sigio_other_server, sigio_early_client, .flags = RAW | NOUP),
    {0},
};
