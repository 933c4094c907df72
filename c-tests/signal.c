/* Interrupted and restarted calls, longjmp out of them, stops. */
#include "t.h"

static void interrupter(int fd)
{
    for (long sig; (sig = hear()) > 0; tell(0)) {
        await_asleep(peer_pid);
        kill(peer_pid, sig);
    }
    T(get(fd, 1, 100));
    meet();
}

/* The other side sends a signal once we sleep in the call. */
#define INTERRUPTED(call) do { \
        tell(SIGUSR1); \
        T(call); \
        hear(); \
    } while (0)

static void eintr_client(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct epoll_event e = {.events = EPOLLIN};
    struct timespec ten = {10, 0};
    struct iovec v[2] = {{buf, 5}, {buf + 5, 5}};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = v, .msg_iovlen = 2}};
    fd_set r;
    int ep = epoll_create1(0);
    T(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        count_signal(SIGUSR1, flags);
        if (!flags) {
            INTERRUPTED(recv(fd, buf, 10, 0));
            INTERRUPTED(read(fd, buf, 10));
            INTERRUPTED(recv(fd, buf, 10, MSG_PEEK));
            INTERRUPTED(recvfrom(fd, buf, 10, 0, NULL, NULL));
            INTERRUPTED(readv(fd, v, 2));
            INTERRUPTED(recvmsg(fd, &m.msg_hdr, MSG_WAITALL));
            INTERRUPTED(recvmmsg(fd, &m, 1, 0, NULL));
        }
        INTERRUPTED(poll(&p, 1, 10000)); /* these never restart */
        INTERRUPTED(ppoll(&p, 1, &ten, NULL));
        FD_ZERO(&r);
        FD_SET(fd, &r);
        INTERRUPTED(select(fd + 1, &r, NULL, NULL, NULL));
        INTERRUPTED(pselect(fd + 1, &r, NULL, NULL, &ten, NULL));
        INTERRUPTED(epoll_wait(ep, &e, 1, 10000));
        INTERRUPTED(epoll_pwait(ep, &e, 1, 10000, NULL));
        timeout(fd, SO_RCVTIMEO, 8000);
        INTERRUPTED(recv(fd, buf, 10, 0)); /* nor does recv with a time limit */
        timeout(fd, SO_RCVTIMEO, 0);
    }
    say("signals %d", signals[SIGUSR1]);
    tell(0);
    T(put(fd, 1, 100));
    meet();
}

static void restart_recv_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        hear();
        await_asleep(peer_pid);
        kill(peer_pid, SIGUSR1);
        hear(); /* the handler ran */
        await_asleep(peer_pid);
        T(put(fd, i, 100));
    }
    meet();
}

static void telling_handler(int sig)
{
    int e = errno;
    signals[sig]++;
    tell(0);
    errno = e;
}

static void restart_recv_client(int fd)
{
    struct iovec v = {buf, 100};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    sigaction(SIGUSR1,
              &(struct sigaction){.sa_handler = telling_handler, .sa_flags = SA_RESTART}, NULL);
    tell(0);
    D(recv(fd, buf, 100, 0));
    tell(0);
    D(read(fd, buf, 100));
    tell(0);
    D(recvmsg(fd, &m, 0));
    say("signals %d", signals[SIGUSR1]);
    meet();
}

/* The same after the writer went back to TCP, so that bytes it wrote on the link arrived by TCP. */
static void restart_behind_return_server(int fd)
{
    T(put(fd, 1, 100));
    meet();
    T(set_int(fd, SOL_SOCKET, SO_MAX_PACING_RATE, 100 << 20));
    meet();
    hear();
    await_asleep(peer_pid);
    kill(peer_pid, SIGUSR1);
    hear();
    await_asleep(peer_pid);
    T(put(fd, 2, 100));
    meet();
}

static void restart_behind_return_client(int fd)
{
    sigaction(SIGUSR1,
              &(struct sigaction){.sa_handler = telling_handler, .sa_flags = SA_RESTART}, NULL);
    await_in(fd, 100);
    meet();
    meet();
    T(get(fd, 1, 100));
    tell(0);
    D(recv(fd, buf, 100, MSG_WAITALL));
    say("signals %d", signals[SIGUSR1]);
    meet();
}

/* Writes as much of `buf` as is taken without waiting. While the connection goes back to TCP that
 * may be nothing for a moment. */
static size_t without_wait(int fd, size_t n)
{
    ssize_t sent;
    do
        sent = send(fd, buf, n, MSG_DONTWAIT);
    while (sent < 0 && again(fd, POLLOUT));
    if (sent < 0)
        die("send");
    return sent;
}

/* A signal interrupts a writer that sleeps because the peer does not read. The bytes that the call
 * returned arrive, and no others; this holds for every call that writes. */
static ssize_t by_send(int fd, char *p, size_t n) { return send(fd, p, n, 0); }
static ssize_t by_write(int fd, char *p, size_t n) { return write(fd, p, n); }
static ssize_t by_sendto(int fd, char *p, size_t n) { return sendto(fd, p, n, 0, NULL, 0); }

static ssize_t by_writev(int fd, char *p, size_t n)
{
    return writev(fd, (struct iovec[]){{p, n / 3}, {p + n / 3, n - n / 3}}, 2);
}

static ssize_t by_sendmsg(int fd, char *p, size_t n)
{
    struct iovec v[] = {{p, n / 2}, {p + n / 2, n - n / 2}};
    return sendmsg(fd, &(struct msghdr){.msg_iov = v, .msg_iovlen = 2}, 0);
}

static ssize_t by_sendmmsg(int fd, char *p, size_t n)
{
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &(struct iovec){p, n}, .msg_iovlen = 1}};
    return sendmmsg(fd, &m, 1, 0) < 0 ? -1 : (ssize_t)m.msg_len;
}

static ssize_t by_sendfile(int fd, char *p, size_t n)
{
    int file = memfd_create("sent", 0), error;
    if (write(file, p, n) != (ssize_t)n)
        die("memfd");
    tell(1); /* only now, because writing the file takes a while */
    ssize_t sent = sendfile(fd, file, &(off_t){0}, n);
    error = errno;
    close(file);
    errno = error;
    return sent;
}

static const struct { const char *name; ssize_t (*send)(int, char *, size_t); } writers[] = {
    {"send", by_send}, {"write", by_write}, {"sendto", by_sendto}, {"writev", by_writev},
    {"sendmsg", by_sendmsg}, {"sendmmsg", by_sendmmsg}, {"sendfile", by_sendfile},
};

static void eintr_send_server(int fd)
{
    hold_less(fd);
    for (size_t i = 0; i < COUNT(writers); i++) {
        hear();
        if (writers[i].send == by_sendfile)
            hear();
        await_still(peer_pid);
        kill(peer_pid, SIGUSR1);
        hear();
        size_t total = hear();
        say("%s", writers[i].name);
        YES(get(fd, i, total) == total);
        meet();
        T(get(fd, 50 + i, 10000));
        meet();
    }
    T(drain(fd, 2));
}

static void eintr_send_client(int fd)
{
    hold_less(fd);
    count_signal(SIGUSR1, 0);
    for (size_t i = 0; i < COUNT(writers); i++) {
        fill(buf, i, 0, sizeof buf);
        size_t total = without_wait(fd, 3 << 20);
        say("%s", writers[i].name);
        tell(0);
        ssize_t n = writers[i].send(fd, buf + total, sizeof buf - total);
        YES(n < 0 ? errno == EINTR : total + n < sizeof buf);
        say("signals %d", signals[SIGUSR1]);
        tell(0);
        total += n > 0 ? n : 0;
        YES(total > 100000);
        tell(total);
        meet();
        T(put(fd, 50 + i, 10000));
        meet();
    }
    T(put(fd, 2, 10000));
    T(shutdown(fd, SHUT_WR));
}

static void restart_send_server(int fd)
{
    hear();
    await_asleep(peer_pid);
    kill(peer_pid, SIGUSR1);
    hear();
    T(get(fd, 1, 8 << 20));
}

/* With SA_RESTART a blocked write either goes on or says how much it took. */
static void restart_send_client(int fd)
{
    sigaction(SIGUSR1,
              &(struct sigaction){.sa_handler = telling_handler, .sa_flags = SA_RESTART}, NULL);
    /* Runtimes have such a handler for crashes. It must not make the write fail with EINTR. */
    count_signal(SIGSEGV, 0);
    fill(buf, 1, 0, sizeof buf);
    size_t total = without_wait(fd, 3 << 20);
    tell(0);
    while (total < sizeof buf) {
        ssize_t n = write(fd, buf + total, sizeof buf - total);
        if (n < 0)
            die("write");
        total += n;
    }
    say("sent %zu, signals %d", total, signals[SIGUSR1]);
}

/* With a time limit no blocked write is restarted (signal(7)). */
static void limited_send_client(int fd)
{
    hold_less(fd);
    count_signal(SIGUSR1, SA_RESTART);
    timeout(fd, SO_SNDTIMEO, 8000);
    fill(buf, 0, 0, sizeof buf);
    size_t total = without_wait(fd, 3 << 20);
    double t = now();
    tell(0);
    ssize_t n = send(fd, buf + total, sizeof buf - total, 0);
    YES(n < 0 ? errno == EINTR : total + n < sizeof buf);
    YES(now() - t < 7);
    say("signals %d", signals[SIGUSR1]);
    tell(0);
    tell(total + (n > 0 ? n : 0));
    meet();
}

static void limited_send_server(int fd)
{
    hold_less(fd);
    hear();
    await_still(peer_pid);
    kill(peer_pid, SIGUSR1);
    hear();
    size_t total = hear();
    YES(get(fd, 0, total) == total);
    meet();
}

static sigjmp_buf back;
static void jumping_handler(int sig)
{
    signals[sig]++;
    siglongjmp(back, 1);
}

static void longjmp_server(int fd)
{
    for (int i = 0; i < 5; i++) {
        hear();
        await_asleep(peer_pid);
        kill(peer_pid, SIGUSR1);
        hear();
        T(put(fd, i, 1000));
    }
    T(get(fd, 9, 100000));
    meet();
}

static void longjmp_client(int fd)
{
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = jumping_handler}, NULL);
    for (volatile int i = 0; i < 5; i++) {
        if (!sigsetjmp(back, 1)) {
            tell(0);
            say("recv came back with %zd", recv(fd, buf, 1000, i % 2 ? MSG_WAITALL : 0));
        }
        tell(0);
        T(get(fd, i, 1000));
    }
    say("signals %d", signals[SIGUSR1]);
    T(put(fd, 9, 100000));
    meet();
}

/* The same with siglongjmp out of epoll_wait, poll and select. */
static void longjmp_waits_client(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct epoll_event e;
    int ep = epoll_create1(0);
    fd_set r;
    T(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}));
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = jumping_handler}, NULL);
    for (volatile int i = 0; i < 5; i++) {
        if (!sigsetjmp(back, 1)) {
            tell(0);
            if (i % 3 == 0)
                say("epoll_wait came back with %d", epoll_wait(ep, &e, 1, -1));
            else if (i % 3 == 1)
                say("poll came back with %d", poll(&p, 1, -1));
            FD_ZERO(&r);
            FD_SET(fd, &r);
            say("select came back with %d", select(fd + 1, &r, NULL, NULL, NULL));
        }
        tell(0);
        T(epoll_wait(ep, &e, 1, 10000));
        T(poll(&p, 1, 10000));
        T(get(fd, i, 1000));
        T(poll(&p, 1, 0));
        T(epoll_wait(ep, &e, 1, 0));
    }
    say("signals %d", signals[SIGUSR1]);
    T(put(fd, 9, 100000));
    meet();
}

/* A blocked signal does not interrupt recv. The handler runs when the signal is unblocked. */
static void blocked_signal_server(int fd)
{
    hear();
    await_asleep(peer_pid);
    kill(peer_pid, SIGUSR1);
    T(put(fd, 1, 100));
    meet();
}

static void blocked_signal_client(int fd)
{
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGUSR1);
    count_signal(SIGUSR1, 0);
    T(sigprocmask(SIG_BLOCK, &s, NULL));
    tell(0);
    D(recv(fd, buf, 100, MSG_WAITALL));
    say("signals %d", signals[SIGUSR1]);
    T(sigprocmask(SIG_UNBLOCK, &s, NULL));
    say("signals %d", signals[SIGUSR1]);
    meet();
}

/* A handler with SA_RESETHAND and without SA_RESTART ends a blocked send, although the handler is
 * no longer set when the call returns. */
static void once_server(int fd)
{
    hold_less(fd);
    hear();
    await_asleep(peer_pid);
    kill(peer_pid, SIGUSR1);
    meet();
    pour_out(fd, hear());
    meet();
}

static void once_client(int fd)
{
    size_t total = 0;
    count_signal(SIGUSR1, SA_RESETHAND);
    hold_less(fd);
    for (ssize_t n; (n = send(fd, buf, 4096, MSG_DONTWAIT)) > 0;)
        total += n;
    tell(0);
    long n = send(fd, buf, sizeof buf, 0);
    /* n > 0 if there was some room again. */
    YES(n < (long)sizeof buf && (n > 0 || errno == EINTR));
    say("signals %d", signals[SIGUSR1]);
    meet();
    tell(total + (n > 0 ? n : 0));
    meet();
}

/* A reader that is stopped and continued in recv gets no EINTR, as it has no handler. */
static void stopped_server(int fd)
{
    hear();
    await_asleep(peer_pid);
    kill(peer_pid, SIGSTOP);
    T(put(fd, 1, 50000)); /* to a stopped reader */
    kill(peer_pid, SIGCONT);
    meet();
}

static void stopped_client(int fd)
{
    tell(0);
    T(get(fd, 1, 50000));
    meet();
}

/* A signal does not keep a call from finding unread bytes. Here the other side has to send the
 * bytes again by TCP, and it is stopped until the second SIGALRM continues it. */
static pid_t stopped;

static void continue_it(int sig)
{
    if (++signals[sig] == 2)
        kill(stopped, SIGCONT);
}

static void signal_at_hand_server(int fd)
{
    for (int i = 0; i < 6; i++) {
        int next = join();
        T(put(next, i, 100));
        meet();
        meet();
        T(close(next));
    }
    (void)fd;
}

static void signal_at_hand_client(int fd)
{
    struct sigaction sa = {.sa_handler = continue_it};
    struct itimerval every = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &sa, NULL);
    stopped = peer_pid;
    for (int i = 0; i < 6; i++) {
        int next = join(), ep = set_of(next, EPOLLIN), n = 0;
        meet();
        await_in(next, 100);
        kill(peer_pid, SIGSTOP);
        await_state_of(peer_pid, 'T');
        signals[SIGALRM] = 0;
        setitimer(ITIMER_REAL, &every, NULL);
        T(set_int(next, SOL_SOCKET, SO_MAX_PACING_RATE, 100 << 20));
        if (i == 0)
            D(recv(next, buf, 100, MSG_DONTWAIT));
        else if (i == 1)
            T(poll(&(struct pollfd){.fd = next, .events = POLLIN}, 1, 0));
        else if (i == 2)
            T(ioctl(next, FIONREAD, &n));
        else if (i == 3)
            T(epoll_wait(ep, &(struct epoll_event){0}, 1, 0));
        else if (i == 4) {
            struct pollfd p = {.fd = next, .events = POLLIN | POLLOUT}; /* told together */
            T(poll(&p, 1, -1));
            say("%s", mask_name(p.revents));
        } else {
            fd_set readable, writable;
            FD_ZERO(&readable);
            FD_ZERO(&writable);
            FD_SET(next, &readable);
            FD_SET(next, &writable);
            T(select(next + 1, &readable, &writable, NULL, NULL));
        }
        say("%d", n);
        while (signals[SIGALRM] < 2)
            usleep(1000);
        setitimer(ITIMER_REAL, &never, NULL);
        meet();
        T(close(ep));
        T(close(next));
    }
    (void)fd;
}

/* A recv with MSG_WAITALL in a thread. In waitall_rest it begins before the other side writes by
 * dprintf, whose bytes go by TCP alone. */
static void *waitall_thread(void *arg)
{
    busy = gettid();
    return (void *)recv(*(int *)arg, buf, 100000, MSG_WAITALL);
}

/* Starts that recv, tells the other side to write, and returns when the recv has read those bytes
 * and sleeps until more arrive. */
static pthread_t waitall_asleep(int *fd)
{
    int unread = 1;
    pthread_t t = start_busy(waitall_thread, fd);
    tell(0);
    hear();
    while (ioctl(*fd, FIONREAD, &unread) == 0 && unread)
        usleep(1000);
    await_asleep(busy);
    return t;
}

/* A handler ends a recv that has got bytes, also if it was set with SA_RESTART. */
static void waitall_signal_server(int fd)
{
    count_signal(SIGUSR1, SA_RESTART);
    for (int i = 0; i < 3; i++) {
        pthread_t t = waitall_asleep(&fd);
        pthread_kill(t, SIGUSR1);
        long n = (long)finish(t);
        say("%ld bytes, signals %d", n, signals[SIGUSR1]);
    }
    meet();
}

static void waitall_signal_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        hear();
        T(put(fd, 1, 1000));
        tell(0);
    }
    meet();
}

static void waitall_rest_server(int fd)
{
    count_signal(SIGUSR1, SA_RESTART);
    for (int i = 0; i < 3; i++) {
        echo_rounds(fd, 20, 3000);
        pthread_t t = waitall_asleep(&fd);
        if (i == 0)
            pthread_cancel(t);
        else if (i == 1)
            pthread_kill(t, SIGUSR1); /* ends the recv in spite of SA_RESTART: a part was read */
        else
            tell(0);
        void *r = finish(t);
        if (i < 2)
            tell(0);
        say("%s, signals %d", r == PTHREAD_CANCELED ? "cancelled" : "not cancelled",
            signals[SIGUSR1]);
        if (r != PTHREAD_CANCELED)
            say("%ld bytes, sum %08x", (long)r, sum(buf, (long)r));
        T(get(fd, i, 5000));
        T(put(fd, i, 5000));
        meet();
        T(close(fd));
        if (i < 2)
            fd = join();
    }
}

static void waitall_rest_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        echo_rounds(fd, 20, 3000);
        hear();
        T(put(fd, 1, 40000));
        dprintf(fd, "x");
        tell(0);
        hear();
        if (i == 2)
            T(put(fd, 2, 59999));
        T(put(fd, i, 5000));
        T(get(fd, i, 5000));
        meet();
        T(close(fd));
        if (i < 2)
            fd = join();
    }
}

/* The action of SIGPIPE is set by each function that can set it. */
extern int __sigaction(int, const struct sigaction *, struct sigaction *);
extern __sighandler_t bsd_signal(int, __sighandler_t), __sysv_signal(int, __sighandler_t);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static __sighandler_t by_sigaction(int sig, __sighandler_t handler)
{
    struct sigaction before;
    return __sigaction(sig, &(struct sigaction){.sa_handler = handler}, &before)
               ? SIG_ERR : before.sa_handler;
}

static __sighandler_t by_sigignore(int sig, __sighandler_t handler)
{
    return handler != SIG_IGN ? sigset(sig, handler) : sigignore(sig) ? SIG_ERR : SIG_DFL;
}

static const struct { const char *name; __sighandler_t (*set)(int, __sighandler_t); } setters[] = {
    {"signal", signal}, {"bsd_signal", bsd_signal}, {"ssignal", ssignal},
    {"sysv_signal", sysv_signal}, {"__sysv_signal", __sysv_signal},
    {"sigset", sigset}, {"sigignore", by_sigignore}, {"__sigaction", by_sigaction},
};

static void counting_handler(int sig) { signals[sig]++; }

static void setters_server(int fd)
{
    for (size_t i = 0; i < COUNT(setters); i++) {
        if (i)
            fd = join();
        echo_rounds(fd, 10, 3000);
        echo_rounds(fd, 10, 3000);
        T(close(fd));
    }
    meet();
}

static void setters_client(int fd)
{
    for (size_t i = 0; i < COUNT(setters); i++) {
        __sighandler_t (*set)(int, __sighandler_t) = setters[i].set;
        if (i)
            fd = join();
        say("%s", setters[i].name);
        signals[SIGPIPE] = 0;
        YES(set(SIGPIPE, SIG_IGN) != SIG_ERR);
        echo_rounds(fd, 10, 3000);
        YES(set(SIGPIPE, counting_handler) == SIG_IGN);
        echo_rounds(fd, 10, 3000);
        await(fd, POLLRDHUP);
        T(write(fd, buf, 100)); /* succeeds, and the peer's kernel answers with a RST */
        await(fd, POLLHUP);
        T(write(fd, buf, 100));
        say("signals %d", signals[SIGPIPE]);
        YES(set(SIGPIPE, SIG_IGN) != SIG_ERR);
        T(send(fd, buf, 100, 0));
        YES(set(SIGPIPE, counting_handler) == SIG_IGN);
        T(write(fd, buf, 100));
        say("signals %d", signals[SIGPIPE]);
        if (set == sigset) {
            sigset_t held;
            YES(set(SIGPIPE, SIG_HOLD) == counting_handler);
            T(write(fd, buf, 100));
            sigpending(&held);
            say("signals %d, pending %d", signals[SIGPIPE], sigismember(&held, SIGPIPE));
            YES(set(SIGPIPE, counting_handler) == SIG_HOLD);
            say("signals %d", signals[SIGPIPE]);
        }
        T(close(fd));
    }
    meet();
}

const struct body signal_bodies[] = {
    TWO("eintr", interrupter, eintr_client),
    TWO("restart_recv", restart_recv_server, restart_recv_client),
    TWO("eintr_send", eintr_send_server, eintr_send_client, .limit = 30),
    TWO("limited_send", limited_send_server, limited_send_client, .limit = 20),
    TWO("restart_recv_behind_return", restart_behind_return_server, restart_behind_return_client),
    TWO("restart_send", restart_send_server, restart_send_client),
    TWO("once_ends_send", once_server, once_client),
    TWO("longjmp_out_of_recv", longjmp_server, longjmp_client),
    TWO("longjmp_out_of_waits", longjmp_server, longjmp_waits_client),
    TWO("blocked_signal", blocked_signal_server, blocked_signal_client),
    TWO("signal_amid_return", signal_at_hand_server, signal_at_hand_client, .flags = ONEHOST),
    TWO("stopped_reader", stopped_server, stopped_client),
    TWO("sigpipe_by_every_name", setters_server, setters_client),
    TWO("signal_ends_waitall", waitall_signal_server, waitall_signal_client),
    TWO("waitall_goes_on_by_tcp", waitall_rest_server, waitall_rest_client),
    {0},
};
