/* System calls by syscall(), each in the middle of a stream that is otherwise moved by the
 * functions of the C library. */
#include "t.h"
#include <linux/io_uring.h>

/* Each of these is the first call by syscall() on its connection, while bytes are under way in both
 * directions. */
enum { BYTES = 3000, PIECE = 500 };
enum how { SET_OPTION, GET_OPTION, IOCTL, SEND, RECEIVE, SEND_MANY, RECEIVE_MANY, WRITEV, READV,
           SEND_FILE, SPLICE_TO, SPLICE_FROM, HOWS };

static size_t raw_sends(enum how how)
{
    return how == SEND || how == SEND_MANY || how == WRITEV || how == SEND_FILE || how == SPLICE_TO
               ? PIECE : 0;
}

/* Makes the call, and returns how many of the unread bytes it has read. */
static size_t raw_use(int fd, enum how how)
{
    int n = 1, p[2];
    struct iovec v = {buf, PIECE};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
    fill(buf, 2, 0, PIECE);
    switch (how) {
    case SET_OPTION: T(syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_KEEPALIVE, &n, sizeof n)); break;
    case GET_OPTION:
        T(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &n, &(socklen_t){sizeof n}));
        break;
    case IOCTL:
        T(syscall(SYS_ioctl, fd, FIONREAD, &n));
        say("queued %d", n);
        break;
    case SEND: T(syscall(SYS_sendmsg, fd, &m.msg_hdr, 0)); break;
    case RECEIVE: D(syscall(SYS_recvmsg, fd, &m.msg_hdr, MSG_WAITALL)); return PIECE;
    case SEND_MANY: T(syscall(SYS_sendmmsg, fd, &m, 1, 0)); break;
    case RECEIVE_MANY:
        T(syscall(SYS_recvmmsg, fd, &m, 1, MSG_WAITALL, NULL));
        say("sum %08x", sum(buf, PIECE));
        return PIECE;
    case WRITEV: T(syscall(SYS_writev, fd, &v, 1)); break;
    case READV: D(syscall(SYS_readv, fd, &v, 1)); return PIECE;
    case SEND_FILE:
        T(syscall(SYS_sendfile, fd, n = temp_file(2, PIECE), NULL, PIECE));
        close(n);
        break;
    case SPLICE_TO:
    case SPLICE_FROM:
        if (pipe(p))
            die("pipe");
        if (how == SPLICE_TO) {
            put(p[1], 2, PIECE);
            T(syscall(SYS_splice, p[0], NULL, fd, NULL, PIECE, 0));
        } else {
            T(syscall(SYS_splice, fd, NULL, p[1], NULL, PIECE, 0));
            T(get(p[0], 4, PIECE));
        }
        close(p[0]), close(p[1]);
        return how == SPLICE_FROM ? PIECE : 0;
    default: break;
    }
    return 0;
}

static void messages_server(int fd)
{
    for (int i = 0; i < HOWS; i++) {
        if (i)
            fd = join();
        T(put(fd, 1, BYTES));
        meet();
        await_in(fd, BYTES);
        size_t read = raw_use(fd, i);
        T(put(fd, 3, BYTES));
        T(get_at(fd, 4, read, BYTES - read));
        meet();
        T(recv(fd, buf, 1, MSG_DONTWAIT));
        meet();
        echo_rounds(fd, 10, 2000);
        drop(fd);
    }
}

static void messages_client(int fd)
{
    for (int i = 0; i < HOWS; i++) {
        if (i)
            fd = join();
        T(put(fd, 4, BYTES));
        meet();
        await_in(fd, BYTES);
        T(get(fd, 1, BYTES));
        T(get(fd, 2, raw_sends(i)));
        T(get(fd, 3, BYTES));
        meet();
        meet();
        echo_rounds(fd, 10, 2000);
        drop(fd);
    }
}

/* Waits by syscall() for a connection, or for a set that it is in. The bytes are unread already, or
 * arrive while the thread sleeps. */
enum wait { PPOLL, PSELECT, POLL, SELECT, WAITS };

static int raw_wait(int fd, enum wait how, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    fd_set r;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    switch (how) {
#ifdef SYS_poll
    case POLL: return syscall(SYS_poll, &p, 1, ms);
#endif
#ifdef SYS_select
    case SELECT:
        return syscall(SYS_select, fd + 1, &r, NULL, NULL,
                       ms < 0 ? NULL : &(struct timeval){ms / 1000, ms % 1000 * 1000});
#endif
    case PSELECT:
        return syscall(SYS_pselect6, fd + 1, &r, NULL, NULL, ms < 0 ? NULL : &t, NULL);
    default: return syscall(SYS_ppoll, &p, 1, ms < 0 ? NULL : &t, NULL, 0);
    }
}

static void waits_server(int fd)
{
    for (int i = 0; i < 2 * WAITS; i++) {
        if (i)
            fd = join();
        hear();
        if (i % 2)
            await_asleep(peer_pid);
        T(put(fd, i, 1000));
        meet();
        T(get(fd, i, 1000));
        drop(fd);
    }
}

static void waits(int fd, int by_set)
{
    for (int i = 0; i < 2 * WAITS; i++) {
        if (i)
            fd = join();
        int waited = by_set ? set_of(fd, EPOLLIN) : fd;
        tell(0);
        if (i % 2 == 0)
            await_in(fd, 1000);
        T(raw_wait(waited, i / 2, -1));
        meet();
        await_in(fd, 1000);
        T(raw_wait(waited, i / 2, 0));
        if (by_set)
            say_wait(waited, 0);
        T(get(fd, i, 1000));
        T(raw_wait(waited, i / 2, 20));
        T(put(fd, i, 1000));
        if (by_set)
            close(waited);
        drop(fd);
    }
}

static void waits_client(int fd) { waits(fd, 0); }
static void set_polled_client(int fd) { waits(fd, 1); }

static int raw_ctl(int ep, int op, int fd, unsigned events, uint64_t data)
{
    return syscall(SYS_epoll_ctl, ep, op, fd,
                   &(struct epoll_event){.events = events, .data.u64 = data});
}

/* A set is made and filled by syscall(), and waited for by epoll_wait(). */
static void sets_client(int fd)
{
    int ep;
    T((ep = syscall(SYS_epoll_create1, EPOLL_CLOEXEC)) > 2);
    T(raw_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, PATTERN));
    T(raw_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
    say_wait(ep, 0);
    order(10);
    await_in(fd, 10);
    say_wait(ep, -1);
    T(get(fd, 10, 10));
    say_wait(ep, 0);
    tell(WHEN_ASLEEP + 20);
    say_wait(ep, -1);
    hear();
    await_in(fd, 20);
    T(raw_ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT | EPOLLET, 7));
    say_wait(ep, 0);
    say_wait(ep, 0);
    T(recv(fd, buf, 100, 0));
    T(raw_ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
    T(raw_ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 0));
    order(30);
    await_in(fd, 30);
    say_wait(ep, 0);
    T(raw_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, 8));
    say_wait(ep, 0);
    say_wait(ep, 0);
    T(get(fd, 30, 30));
    T(syscall(SYS_epoll_create1, 77));
    tell(END);
    meet();
}

/* Waits for a set by syscall(). */
static void raw_say_wait(int ep, int how, int ms)
{
    struct epoll_event e[4] = {0};
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    int n;
    switch (how) {
#ifdef SYS_epoll_wait
    case 2: n = syscall(SYS_epoll_wait, ep, e, 4, ms); break;
#endif
    case 1: n = syscall(SYS_epoll_pwait2, ep, e, 4, ms < 0 ? NULL : &t, NULL, 8); break;
    default: n = syscall(SYS_epoll_pwait, ep, e, 4, ms, NULL, 8); break;
    }
    if (n == 1)
        say("wait: %lx %s", (unsigned long)e[0].data.u64, mask_name(e[0].events));
    else
        say("wait: %d %s", n, n < 0 ? strerrorname_np(errno) : "");
}

static void set_waits_client(int fd)
{
    sigset_t usr1;
    unsigned char none[8] = {0};
    struct epoll_event e;
    for (int how = 0; how < 3; how++) {
        int ep = set_of(fd, EPOLLIN | EPOLLRDHUP);
        raw_say_wait(ep, how, 0);
        order(10);
        await_in(fd, 10);
        raw_say_wait(ep, how, -1);
        raw_say_wait(ep, how, 1000);
        T(get(fd, 10, 10));
        raw_say_wait(ep, how, 20);
        for (int i = 0; i < 3; i++) {
            tell(WHEN_ASLEEP + 20);
            raw_say_wait(ep, how, i ? 10000 : -1);
            hear();
            await_in(fd, 20);
            T(recv(fd, buf, 100, 0));
        }
        raw_say_wait(fd, how, 0);
        close(ep);
    }
    int ep = set_of(fd, EPOLLIN);
    count_signal(SIGUSR1, 0);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    T(sigprocmask(SIG_BLOCK, &usr1, NULL));
    raise(SIGUSR1);
    T(syscall(SYS_epoll_pwait, ep, &e, 1, 10, NULL, 8));
    T(syscall(SYS_epoll_pwait, ep, &e, 1, 10000, none, 8));
    say("signals %d", signals[SIGUSR1]);
    tell(END);
    meet();
}

/* Connections are made and duplicated by syscall(). */
static void sockets_server(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, 0, 1);
    int l;
    T((l = syscall(SYS_socket, a.ss_family, SOCK_STREAM, 0)) > 2);
    T(bind(l, (void *)&a, len));
    T(syscall(SYS_listen, l, 5));
    getsockname(l, (void *)&a, &len);
    for (int i = 0; i < 2; i++) {
        tell(ntohs(((struct sockaddr_in *)&a)->sin_port));
        T((fd = i ? syscall(SYS_accept4, l, NULL, NULL, SOCK_CLOEXEC)
                  : syscall(SYS_accept, l, NULL, NULL)) > 2);
        nodelay(fd);
        warm(fd, 1);
        echo_rounds(fd, 20, 3000);
        for (int k = 0; k < 4; k++)
            T(get(fd, k, 3000));
        hear();
        T(put(fd, 5, 100));
        meet();
        say("not over: %s", mask_name(ready(fd)));
        meet();
        await(fd, POLLRDHUP);
        T(recv(fd, buf, 1, 0));
        T(close(fd));
    }
}

static void sockets_client(int fd)
{
    for (int i = 0; i < 2; i++) {
        struct sockaddr_storage a;
        int copy[4];
        socklen_t len = loopback(&a, hear(), 0);
        T((fd = syscall(SYS_socket, a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP)) > 2);
        T(syscall(SYS_connect, fd, &a, len));
        nodelay(fd);
        warm(fd, 0);
        echo_rounds(fd, 20, 3000);
        T((copy[0] = syscall(SYS_dup, fd)) > 2);
        T(copy[1] = syscall(SYS_dup3, fd, 60, O_CLOEXEC));
        T(copy[2] = syscall(SYS_fcntl, fd, F_DUPFD, 70));
#ifdef SYS_dup2
        T(copy[3] = syscall(SYS_dup2, fd, 80));
#else
        T(copy[3] = syscall(SYS_dup3, fd, 80, 0));
#endif
        for (int k = 0; k < 4; k++)
            T(put(copy[k], k, 3000));
        T(syscall(SYS_fcntl, fd, F_SETFL, O_NONBLOCK));
        T(recv(copy[1], buf, 1, 0));
        YES(syscall(SYS_fcntl, copy[2], F_GETFL) & O_NONBLOCK);
        T(syscall(SYS_fcntl, copy[3], F_SETFL, 0));
        tell(0);
        D(recv(copy[0], buf, 100, MSG_WAITALL));
        T(syscall(SYS_dup3, 0, fd, 0) == fd); /* the number belongs to another file now */
        T(close(fd));
        for (int k = 0; k < 3; k++)
            T(close(copy[k]));
        meet();
        meet();
        T(close(copy[3]));
    }
}

/* --- io_uring --- */

struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_mask;
    struct io_uring_sqe *sqe;
    struct io_uring_cqe *cqe;
};

static int make_ring(struct ring *r)
{
    struct io_uring_params p = {0};
    if ((r->fd = syscall(SYS_io_uring_setup, 4, &p)) < 0)
        return -1;
    char *sq = mmap(NULL, p.sq_off.array + p.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE,
                    MAP_SHARED, r->fd, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof *r->cqe, PROT_READ | PROT_WRITE,
                    MAP_SHARED, r->fd, IORING_OFF_CQ_RING);
    r->sqe = mmap(NULL, p.sq_entries * sizeof *r->sqe, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
                  IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || r->sqe == MAP_FAILED)
        die("mmap");
    r->sq_tail = (unsigned *)(sq + p.sq_off.tail),
    r->sq_mask = (unsigned *)(sq + p.sq_off.ring_mask),
    r->sq_array = (unsigned *)(sq + p.sq_off.array);
    r->cq_head = (unsigned *)(cq + p.cq_off.head),
    r->cq_mask = (unsigned *)(cq + p.cq_off.ring_mask), r->cqe = (void *)(cq + p.cq_off.cqes);
    return 0;
}

/* Submits `n` operations at once. It returns the result of the last one, or -1 with its error in
 * errno. */
static long by_entries(struct ring *r, const struct io_uring_sqe *e, unsigned n)
{
    unsigned tail = *r->sq_tail;
    for (unsigned i = 0; i < n; i++, tail++) {
        /* An entry's place among the entries need not be its place in the queue. */
        unsigned at = (tail + 1) & *r->sq_mask;
        r->sqe[at] = e[i];
        r->sq_array[tail & *r->sq_mask] = at;
    }
    __atomic_store_n(r->sq_tail, tail, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, r->fd, n, n, IORING_ENTER_GETEVENTS, NULL, 0) != n)
        return -1;
    unsigned head = *r->cq_head + n - 1;
    long result = r->cqe[head & *r->cq_mask].res;
    __atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
    if (result < 0)
        errno = -result, result = -1;
    return result;
}

static long by_ring(struct ring *r, int operation, int fd, size_t n)
{
    struct io_uring_sqe e = {.opcode = operation, .fd = fd, .addr = (uintptr_t)buf, .len = n};
    return by_entries(r, &e, 1);
}

/* A ring reads and writes connections that had left TCP, so that the kernel moves their bytes. On a
 * kernel without io_uring the connections stay as they are. */
static void uring_server(int fd)
{
    struct ring r;
    int second = join(), third = join(), made;
    T(put(fd, 1, 3000));
    T(put(second, 1, 3000));
    meet();
    await_in(fd, 3000);
    await_in(third, 3000);
    T(made = make_ring(&r));
    tell(made);
    if (!made) {
        D(by_ring(&r, IORING_OP_RECV, fd, 1000));
        D(by_ring(&r, IORING_OP_READ, third, 1000));
        fill(buf, 2, 0, 1000);
        T(by_ring(&r, IORING_OP_SEND, fd, 1000));
        T(by_ring(&r, IORING_OP_WRITE, second, 1000));
        T(syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_FILES, &fd, 1));
        T(syscall(SYS_io_uring_register, r.fd, IORING_UNREGISTER_FILES, NULL, 0));
    }
    T(put(fd, 3, 3000));
    T(put(second, 3, 3000));
    T(get_at(fd, 4, made ? 0 : 1000, made ? 3000 : 2000));
    T(get_at(third, 4, made ? 0 : 1000, made ? 3000 : 2000));
    echo_rounds(fd, 20, 3000);
    echo_rounds(join_cold(), 50, 3000); /* no connection leaves TCP any more */
    meet();
}

static void uring_client(int fd)
{
    int second = join(), third = join();
    T(put(fd, 4, 3000));
    T(put(third, 4, 3000));
    meet();
    long made = hear();
    for (int i = 0; i < 2; i++) {
        T(get(i ? second : fd, 1, 3000));
        if (!made)
            T(get(i ? second : fd, 2, 1000));
        T(get(i ? second : fd, 3, 3000));
    }
    echo_rounds(fd, 20, 3000);
    echo_rounds(join_cold(), 50, 3000);
    meet();
}

/* Other io_uring operations on connections that had left TCP, and some that make connections. */
static void uring_more_server(int fd)
{
    struct ring r;
    struct sockaddr_storage a;
    int second = join(), third = join(), made = make_ring(&r), port, l;
    tell(made);
    if (made)
        return;
    await_in(fd, 3000);
    T(by_entries(&r, &(struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = fd,
                                            .poll32_events = POLLIN}, 1) & POLLIN);
    T(get(fd, 1, 3000));
    fill(buf, 2, 0, 1000);
    struct io_uring_sqe linked[] = {
        {.opcode = IORING_OP_SEND, .fd = fd, .addr = (uintptr_t)buf, .len = 1000,
         .flags = IOSQE_IO_LINK},
        {.opcode = IORING_OP_RECV, .fd = fd, .addr = (uintptr_t)buf, .len = 1000,
         .msg_flags = MSG_WAITALL},
    };
    D(by_entries(&r, linked, 2));
    await_in(second, 3000);
    T(syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_FILES, &second, 1));
    D(by_entries(&r, &(struct io_uring_sqe){.opcode = IORING_OP_RECV, .fd = 0,
                                            .flags = IOSQE_FIXED_FILE, .addr = (uintptr_t)buf,
                                            .len = 1000}, 1));
    T(get_at(second, 4, 1000, 2000));
    T(put(third, 5, 3000));
    T(by_entries(&r, &(struct io_uring_sqe){.opcode = IORING_OP_SHUTDOWN, .fd = third,
                                            .len = SHUT_WR}, 1));
    T(get(third, 6, 3000));
    l = listen_any(&port);
    tell(port);
    int taken = by_entries(&r, &(struct io_uring_sqe){.opcode = IORING_OP_ACCEPT, .fd = l}, 1);
    echo_rounds(taken, 50, 3000);
    socklen_t len = loopback(&a, hear(), 0);
    int dialled = socket(a.ss_family, SOCK_STREAM, 0);
    T(by_entries(&r, &(struct io_uring_sqe){.opcode = IORING_OP_CONNECT, .fd = dialled,
                                            .addr = (uintptr_t)&a, .off = len}, 1));
    nodelay(dialled);
    echo_rounds(dialled, 50, 3000);
    meet();
    close(taken), close(dialled), close(l), close(r.fd);
}

static void uring_more_client(int fd)
{
    int second = join(), third = join();
    if (hear())
        return;
    T(put(fd, 1, 3000));
    T(get(fd, 2, 1000));
    T(put(fd, 3, 1000));
    T(put(second, 4, 3000));
    T(drain(third, 5));
    T(put(third, 6, 3000));
    int dialled = dial(hear());
    echo_rounds(dialled, 50, 3000);
    int taken = take_one();
    echo_rounds(taken, 50, 3000);
    meet();
    close(taken), close(dialled);
}

static long ring_ctl(struct ring *r, int ep, int op, int fd, unsigned events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    struct io_uring_sqe e = {.opcode = IORING_OP_EPOLL_CTL, .fd = ep, .len = op, .off = fd,
                             .addr = (uintptr_t)&event};
    return by_entries(r, &e, 1);
}

/* A set that is filled by a ring, as libuv does it, tells events as usual. A connection that is
 * closed by a ring ends. */
static void ring_sets_client(int fd)
{
    struct ring r;
    int second = join(), ep = epoll_create1(EPOLL_CLOEXEC);
    if (make_ring(&r)) {
        tell(END);
        meet();
        T(put(second, 5, 3000));
        drop(second);
        meet();
        return;
    }
    T(ring_ctl(&r, ep, EPOLL_CTL_ADD, fd, EPOLLIN, PATTERN));
    T(ring_ctl(&r, ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
    T(ring_ctl(&r, ep, EPOLL_CTL_MOD, second, EPOLLIN, 1));
    T(ring_ctl(&r, ep, EPOLL_CTL_ADD, -1, EPOLLIN, 1));
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
    T(ring_ctl(&r, ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT, 7));
    say_wait(ep, -1);
    /* Three operations at once: the second undoes the first. */
    struct epoll_event out = {.events = EPOLLOUT, .data.u64 = 8},
                       in = {.events = EPOLLIN, .data.u64 = 9};
    struct io_uring_sqe e[] = {
        {.opcode = IORING_OP_EPOLL_CTL, .fd = ep, .len = EPOLL_CTL_ADD, .off = second,
         .addr = (uintptr_t)&out},
        {.opcode = IORING_OP_EPOLL_CTL, .fd = ep, .len = EPOLL_CTL_DEL, .off = second},
        {.opcode = IORING_OP_EPOLL_CTL, .fd = ep, .len = EPOLL_CTL_MOD, .off = fd,
         .addr = (uintptr_t)&in},
    };
    T(by_entries(&r, e, 3));
    say_wait(ep, 0);
    T(ring_ctl(&r, ep, EPOLL_CTL_DEL, fd, 0, 0));
    T(ring_ctl(&r, ep, EPOLL_CTL_DEL, fd, 0, 0));
    say_wait(ep, 0);
    tell(END);
    meet();
    T(put(second, 5, 3000));
    T(by_ring(&r, IORING_OP_CLOSE, second, 0)); /* refused, as a close takes no buffer */
    T(fcntl(second, F_GETFD));
    T(by_entries(&r, &(struct io_uring_sqe){.opcode = IORING_OP_CLOSE, .fd = second}, 1));
    int left = 0;
    /* A descriptor of the library may have the number for a moment. */
    for (int i = 0; i < 5000 && (left = fcntl(second, F_GETFD)) >= 0; i++)
        usleep(1000);
    T(left);
    T(close(r.fd));
    meet();
}

static void ring_sets_server(int fd)
{
    int second = join();
    obey(fd);
    T(get(second, 5, 3000));
    T(recv(second, buf, 1, 0));
    meet();
}

const struct body raw_bodies[] = {
    TWO("raw_messages", messages_server, messages_client),
    TWO("raw_waits", waits_server, waits_client),
    TWO("raw_sets", obey, sets_client),
    TWO("raw_set_waits", obey, set_waits_client),
    TWO("raw_set_polled", waits_server, set_polled_client),
    TWO("raw_sockets", sockets_server, sockets_client, .flags = RAW),
    TWO("raw_io_uring", uring_server, uring_client),
    TWO("raw_io_uring_more", uring_more_server, uring_more_client),
    TWO("raw_io_uring_sets", ring_sets_server, ring_sets_client),
    {0},
};
