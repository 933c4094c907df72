/* poll, ppoll, select, pselect: level semantics, time limits, masks, odd fds. */
#include "t.h"

static volatile int more_than_nofile = 5000;

enum { NEVER = POLLWRBAND | POLLMSG | POLLREMOVE }; /* events that TCP never reports */

static void states_server(int fd)
{
    meet();
    T(put(fd, 1, 100));
    meet();
    meet();
    T(shutdown(fd, SHUT_WR));
    meet();
    T(drain(fd, 2));
    meet();
}

static void states_client(int fd)
{
    struct pollfd p[5];
    say("idle: %s", mask_name(ready(fd)));
    meet();
    meet();
    await(fd, POLLIN);
    for (int i = 0; i < 5; i++) /* one fd in several places, each with its own events */
        p[i] = (struct pollfd){
            .fd = fd,
            .events = (short[]){0, POLLOUT, POLLIN | POLLRDHUP,
                                POLLRDNORM | POLLWRNORM | POLLRDBAND | POLLPRI, NEVER}[i],
            .revents = -1};
    T(poll(p, 5, -1));
    for (int i = 0; i < 5; i++)
        say("%s", mask_name(p[i].revents));
    T(poll(p + 4, 1, 20));
    say("again: %s", mask_name(ready(fd)));
    D(recv(fd, buf, 60, 0));
    say("some left: %s", mask_name(ready(fd)));
    D(recv(fd, buf, 100, 0));
    say("none left: %s", mask_name(ready(fd)));
    meet();
    await(fd, POLLRDHUP);
    p[0] = (struct pollfd){.fd = fd, .events = 0};
    T(poll(p, 1, 0));
    T(recv(fd, buf, 1, 0));
    say("end seen: %s", mask_name(ready(fd)));
    T(put(fd, 2, 10));
    T(shutdown(fd, SHUT_WR));
    await(fd, POLLHUP);
    T(poll(p, 1, -1));
    say("%s", mask_name(p[0].revents));
    T(poll(p + 4, 1, -1));
    say("%s", mask_name(p[4].revents));
    meet();
    meet();
}

static void reset_states_server(int fd)
{
    T(put(fd, 1, 100));
    meet();
    linger(fd, 1, 0);
    T(close(fd));
    meet();
}

static void reset_states_client(int fd)
{
    fd_set r, w, x;
    meet();
    meet();
    await_reset(fd);
    FD_ZERO(&r);
    FD_SET(fd, &r);
    w = x = r;
    T(select(fd + 1, &r, &w, &x, NULL));
    say("%d %d %d", !!FD_ISSET(fd, &r), !!FD_ISSET(fd, &w), !!FD_ISSET(fd, &x));
    /* For select a reset is no exceptional condition. */
    struct timeval limit = {0, 100000};
    FD_SET(fd, &x);
    T(select(fd + 1, NULL, NULL, &x, &limit));
    say("%d, %ld s %ld us left", !!FD_ISSET(fd, &x), limit.tv_sec, limit.tv_usec);
    D(recv(fd, buf, 1000, 0));
    say("%s", mask_name(ready(fd)));
    T(recv(fd, buf, 1000, 0));
    say("%s", mask_name(ready(fd)));
    T(recv(fd, buf, 1000, 0));
    say("%s", mask_name(ready(fd)));
}

/* Writes when the other side sleeps in its call. */
static void waker(int fd)
{
    for (long n; (n = hear()) > 0; tell(0)) {
        await_asleep(peer_pid);
        put(fd, n, 10);
    }
    meet();
}

#define WOKEN(n, call) do { \
        tell(n); \
        T(call); \
        hear(); \
    } while (0)

static void poll_wakes_client(int fd)
{
    struct pollfd p[3] = {{.fd = -1, .events = POLLIN}, {.fd = fd, .events = POLLIN},
                          {.fd = fd, .events = POLLRDHUP | POLLPRI}};
    struct timespec ten = {10, 0};
    struct timeval tv = {10, 0};
    fd_set r;
    for (int i = 0; i < 3; i++) {
        WOKEN(1, poll(p, 3, -1));
        say("%s, %s, %s", mask_name(p[0].revents), p[1].revents == POLLIN ? "IN" : "?",
            p[2].revents ? "?" : "none");
        D(recv(fd, buf, 100, 0));
        WOKEN(2, ppoll(p, 3, &ten, NULL));
        YES(ten.tv_sec == 10);
        D(recv(fd, buf, 100, 0));
        FD_ZERO(&r);
        FD_SET(fd, &r);
        WOKEN(3, select(fd + 1, &r, NULL, NULL, &tv));
        YES(FD_ISSET(fd, &r) && (tv.tv_sec == 9 || (tv.tv_sec > 5 && tv.tv_sec < 10)));
        tv.tv_sec = 10;
        D(recv(fd, buf, 100, 0));
        WOKEN(4, pselect(fd + 1, &r, NULL, NULL, NULL, NULL));
        D(recv(fd, buf, 100, 0));
    }
    tell(0);
    meet();
}

static void timeouts_one(void)
{
    int end[2];
    struct pollfd p[2];
    fd_set r;
    pair(end);
    for (int i = 0; i < 2; i++)
        p[i] = (struct pollfd){.fd = end[i], .events = POLLIN};
    for (int ms = 0; ms <= 120; ms += 40) {
        struct timespec ts = {0, ms * 1000000L};
        struct timeval tv = {0, ms * 1000};
        for (int i = 0; i < 5; i++) {
            double t = now();
            FD_ZERO(&r);
            FD_SET(end[0], &r);
            switch (i) {
            case 0: T(poll(p, 2, ms)); break;
            case 1: T(ppoll(p, 2, &ts, NULL)); break;
            case 2:
                T(select(end[0] + 1, &r, NULL, NULL, &tv));
                say("left %ld %ld, set %d", tv.tv_sec, tv.tv_usec, !!FD_ISSET(end[0], &r));
                break;
            case 3: T(pselect(end[0] + 1, &r, NULL, NULL, &ts, NULL)); break;
            case 4: T(poll(NULL, 0, ms)); break;
            }
            t = (now() - t) * 1000;
            if (t < ms - 1 || t > ms + 2000)
                say("that took %.1f ms, not %d", t, ms);
        }
    }
    T(ppoll(p, 2, (&(struct timespec){0, -1}), NULL));
    T(ppoll(p, 2, (&(struct timespec){-1, 0}), NULL));
    T(select(2000, NULL, NULL, NULL, (&(struct timeval){0, 0})));
    T(select(-1, NULL, NULL, NULL, (&(struct timeval){0, 0})));
    T(select(0, NULL, NULL, NULL, (&(struct timeval){-1, 0})));
}

static void odd_fds_one(void)
{
    int end[2], p[2], file = temp_file(1, 10);
    fd_set r;
    pair(end);
    T(pipe(p));
    struct pollfd f[] = {{-1, POLLIN, 9}, {-5, POLLIN, 9}, {900, POLLIN, 9}, {end[0], POLLIN, 9},
                         {p[0], POLLIN, 9}, {p[1], POLLOUT, 9}, {file, POLLIN | POLLOUT, 9},
                         {end[1], POLLOUT, 9}};
    T(poll(f, COUNT(f), 0));
    for (size_t i = 0; i < COUNT(f); i++)
        say("%zu: %s", i, mask_name(f[i].revents));
    put(end[1], 1, 5);
    await(end[0], POLLIN);
    T(close(end[1]));
    T(poll(f, COUNT(f), -1));
    for (size_t i = 0; i < COUNT(f); i++)
        say("%zu: %s", i, mask_name(f[i].revents));
    close(dup2(0, 950)); /* grows the descriptor table: select ignores numbers beyond its end */
    FD_ZERO(&r);
    FD_SET(900, &r);
    FD_SET(end[0], &r);
    T(select(901, &r, NULL, NULL, (&(struct timeval){0, 0})));
    T(poll(f, more_than_nofile, 0));
}

/* 500 descriptors, all but one or two idle. */
static void crowd_server(int fd)
{
    for (int i = 0; i < 20; i++) {
        hear();
        if (i < 16)
            await_asleep(peer_pid);
        put(fd, i, 1 + i);
    }
    meet();
}

static void crowd_client(int fd)
{
    static struct pollfd p[500];
    int mine = 333, bell = 77, good = 0, out = dup(fd);
    for (int i = 0; i < 500; i++)
        p[i] = (struct pollfd){.fd = i == mine ? fd : eventfd(0, 0), .events = POLLIN};
    for (int i = 0; i < 20; i++) {
        if (i == 16) /* from here on two are ready */
            eventfd_write(p[bell].fd, 1);
        tell(0);
        while (poll(p, 500, -1) > 0 && !(p[mine].revents & POLLIN)) /* the eventfd may be first */
            if (!(p[bell].revents & POLLIN))
                die("poll");
        await_in(fd, 1 + i);
        int n = poll(p, 500, 0);
        good += n == 1 + (i >= 16) && p[mine].revents == POLLIN && !!p[bell].revents == (i >= 16);
        good += get(out, i, 1 + i) == (size_t)(1 + i) && poll(p, 500, 0) == (i >= 16);
    }
    say("%d good", good);
    meet();
}

static void *poll_thread(void *arg)
{
    struct pollfd p = {.fd = *(int *)arg, .events = POLLIN};
    tell(gettid());
    return (void *)(long)(poll(&p, 1, -1) * 1000 + p.revents);
}

/* Two threads poll one connection: both wake up. */
static void two_pollers_server(int fd)
{
    pthread_t t[2];
    for (int i = 0; i < 2; i++) {
        t[i] = start(poll_thread, &fd);
        hear();
    }
    T(finish(t[0]));
    T(finish(t[1]));
    T(get(fd, 1, 10));
}

static void two_pollers_client(int fd)
{
    for (int i = 0; i < 2; i++) {
        await_asleep(hear());
        tell(0);
    }
    T(put(fd, 1, 10));
}

static void ppoll_mask_server(int fd)
{
    (void)fd;
    for (int i = 0; i < 2; i++) {
        hear();
        await_asleep(peer_pid);
        kill(peer_pid, SIGUSR1);
    }
    hear();
    kill(peer_pid, SIGUSR1);
    T(put(fd, 1, 10));
    meet();
    meet();
}

static void ppoll_mask_client(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    sigset_t blocked, none;
    fd_set r;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    T(sigprocmask(SIG_BLOCK, &blocked, NULL));
    count_signal(SIGUSR1, SA_RESTART);
    tell(0);
    T(ppoll(&p, 1, NULL, &none));
    say("signals %d", signals[SIGUSR1]);
    FD_ZERO(&r);
    FD_SET(fd, &r);
    tell(0);
    T(pselect(fd + 1, &r, NULL, NULL, NULL, &none));
    say("signals %d", signals[SIGUSR1]);
    tell(0);
    meet();
    await_in(fd, 10); /* the third is pending now, and the bytes are there */
    T(ppoll(&p, 1, (&(struct timespec){0, 1000000}), &blocked));
    say("signals %d", signals[SIGUSR1]);
    T(ppoll(&p, 1, (&(struct timespec){10, 0}), &none));
    say("signals %d", signals[SIGUSR1]);
    T(poll(&p, 1, -1));
    meet();
    sigpending(&none);
    say("pending %d", sigismember(&none, SIGUSR1));
}

static void select_states_server(int fd)
{
    meet();
    T(send(fd, "ab", 2, 0));
    T(send(fd, "!", 1, MSG_OOB));
    meet();
    meet();
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void say_select(int fd)
{
    fd_set r, w, x;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    w = x = r;
    T(select(fd + 1, &r, &w, &x, (&(struct timeval){0, 0})));
    say("read %d write %d except %d", !!FD_ISSET(fd, &r), !!FD_ISSET(fd, &w), !!FD_ISSET(fd, &x));
    FD_SET(fd, &r);
    T(select(fd, &r, NULL, NULL, (&(struct timeval){0, 0}))); /* fd itself is beyond nfds */
    /* select also clears the bits after the last number, up to the end of its word. */
    FD_ZERO(&r);
    FD_SET(fd, &r);
    FD_SET(fd + 1, &r);
    FD_SET(fd | 63, &r);
    FD_SET((fd | 63) + 1, &r);
    T(select(fd + 1, &r, NULL, NULL, (&(struct timeval){0, 0})));
    say("behind %d %d %d", !!FD_ISSET(fd + 1, &r), !!FD_ISSET(fd | 63, &r),
        !!FD_ISSET((fd | 63) + 1, &r));
}

/* Also with fds above 64, where a set has a second word. */
static void select_states_client(int fd)
{
    T(fd = dup2(fd, 700));
    say_select(fd);
    meet();
    meet();
    await(fd, POLLPRI);
    await_in(fd, 2);
    say_select(fd);
    D(recv(fd, buf, 10, MSG_OOB));
    D(recv(fd, buf, 10, 0));
    say_select(fd);
    meet();
    await(fd, POLLRDHUP);
    say_select(fd);
    T(recv(fd, buf, 10, 0));
    say_select(fd);
    meet();
}

/* Two connections are polled, and one of them may leave TCP while the thread sleeps. */
enum { TURNS = 12 };
static void moved_meanwhile_server(int fd)
{
    for (int i = 0; i < 6; i++) {
        int other = join_cold();
        for (int n = 1; n <= TURNS; n++) {
            hear();
            await_asleep(peer_pid);

            put(n % 4 == 3 ? fd : other, n, 1000);
        }
        close(other);
    }
    meet();
}

static void moved_meanwhile_client(int fd)
{
    for (int i = 0; i < 6; i++) {
        int other = join_cold(), good = 0;
        for (int n = 1; n <= TURNS; n++) {
            struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = other, .events = POLLIN}};
            int from = n % 4 == 3 ? 0 : 1, ready;
            fd_set r;
            FD_ZERO(&r);
            FD_SET(fd, &r);
            FD_SET(other, &r);
            tell(0);
            ready = i % 2 ? poll(p, 2, -1)
                          : select((fd > other ? fd : other) + 1, &r, NULL, NULL, NULL);
            if (!(i % 2))
                p[0].revents = FD_ISSET(fd, &r) ? POLLIN : 0,
                p[1].revents = FD_ISSET(other, &r) ? POLLIN : 0;
            good += ready == 1 && p[from].revents == POLLIN && get(p[from].fd, n, 1000) == 1000;
        }
        say("%d of %d", good, TURNS);
        close(other);
    }
    meet();
}

static void many_words_server(int fd)
{
    for (int i = 0; i < 12; i++) {
        hear();
        await_asleep(peer_pid);
        put(fd, i, 10);
    }
    meet();
}

static void many_words_client(int fd)
{
    static const int at[] = {63, 64, 65, 127, 128, 500, 831};
    int idle = eventfd(0, 0), good = 0;
    fd_set r, w;
    for (size_t i = 0; i < COUNT(at); i++)
        T(dup2(i % 2 ? fd : idle, at[i]));
    for (int i = 0; i < 12; i++) {
        FD_ZERO(&r);
        FD_ZERO(&w);
        for (size_t k = 0; k < COUNT(at); k++)
            FD_SET(at[k], &r);
        tell(0);
        int n = select(832, &r, &w, NULL, NULL);
        for (size_t k = 0; k < COUNT(at); k++)
            good += !!FD_ISSET(at[k], &r) == (k % 2);
        good += n == 3 && get(at[1], i, 10) == 10;
    }
    say("%d good", good);
    meet();
}

/* A full connection is not writable, and poll says so as soon as it is again. */
static void full_server(int fd)
{
    size_t total = hear();
    await_asleep(peer_pid);
    YES(get(fd, 1, total) == total);
    meet();
}

static void full_client(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    size_t total = 0;
    set_nonblock(fd, 1);
    do /* until it stays full, whatever the kernel moves along in the meantime */
        for (ssize_t n; fill(buf, 1, total, 200000), (n = write(fd, buf, 200000)) > 0;)
            total += n;
    while (poll(&p, 1, 100) > 0);
    say("full");
    tell(total);
    T(poll(&p, 1, 10000));
    say("%s", mask_name(p.revents));
    meet();
}

/* A thread that waits for room returns when another thread shuts the connection down. */
static void *room_by_select(void *fd)
{
    busy = gettid();
    fd_set w;
    FD_ZERO(&w);
    FD_SET(*(int *)fd, &w);
    return (void *)(long)select(*(int *)fd + 1, NULL, &w, NULL, NULL);
}

static void *room_by_poll(void *fd)
{
    struct pollfd p = {.fd = *(int *)fd, .events = POLLOUT};
    busy = gettid();
    return (void *)(long)(poll(&p, 1, -1) == 1 ? p.revents : -1);
}

static void shut_by_thread_server(int fd)
{
    int other = join();
    meet();
    for (int i = 0; i < 2; i++)
        say("%zu", drain(i ? other : fd, 1) ? (size_t)1 : 0);
    meet();
}

static void shut_by_thread_client(int fd)
{
    int fds[] = {fd, join()};
    for (int i = 0; i < 2; i++) {
        size_t total = 0;
        struct pollfd p = {.fd = fds[i], .events = POLLOUT};
        set_nonblock(fds[i], 1);
        do /* until it stays full, whatever the kernel moves along in the meantime */
            for (ssize_t n; fill(buf, 1, total, 200000), (n = write(fds[i], buf, 200000)) > 0;)
                total += n;
        while (poll(&p, 1, 100) > 0);
        pthread_t t = start_busy(i ? room_by_poll : room_by_select, &fds[i]);
        await_asleep(busy);
        T(shutdown(fds[i], SHUT_RDWR));
        long told = (long)finish(t);
        say("%s", i ? mask_name(told) : told == 1 ? "one" : "NOT one");
    }
    meet();
    meet();
}

static void mixed_server(int fd)
{
    int port = hear(), c = dial(port);
    hear();
    T(put(fd, 1, 10));
    T(put(c, 2, 10));
    T(close(c));
    meet();
}

/* A listener, a pipe, a timer, an event counter, a Unix socket and a connection in one poll. */
static void mixed_client(int fd)
{
    int port, p[2], u[2], tfd = timerfd_create(CLOCK_MONOTONIC, 0), efd = eventfd(0, 0);
    int family_was = family, l = listen_any(&port);
    struct pollfd f[7];
    family = family_was;
    T(pipe(p));
    T(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    int all[] = {fd, l, p[0], u[0], tfd, efd};
    for (size_t i = 0; i < COUNT(all); i++)
        f[i] = (struct pollfd){all[i], POLLIN, 0};
    T(poll(f, 6, 0));
    tell(port);
    await(l, POLLIN);
    T(poll(f, 6, -1));
    int c = accept(l, NULL, NULL);
    f[6] = (struct pollfd){c, POLLIN, 0};
    T(timerfd_settime(tfd, 0, (&(struct itimerspec){{0, 0}, {0, 1000}}), NULL));
    put(p[1], 1, 1);
    put(u[1], 1, 1);
    eventfd_write(efd, 1);
    await(tfd, POLLIN);
    tell(0);
    await(c, POLLRDHUP);
    await_in(fd, 10);
    T(poll(f, 7, -1));
    for (int i = 0; i < 7; i++)
        say("%d: %s", i, mask_name(f[i].revents));
    T(get(c, 2, 10));
    T(get(fd, 1, 10));
    meet();
}

/* select is given numbers beyond the end of a set of the usual size. The kernel looks only at
 * numbers that the program's descriptor table has reached, and leaves the bytes after the set as
 * they are. */
static void select_to_the_end_client(int fd)
{
    static struct {
        fd_set set;
        unsigned char beyond[2048];
    } s;
    int p[2], high;
    struct rlimit l;
    getrlimit(RLIMIT_NOFILE, &l);
    l.rlim_cur = 4096;
    T(setrlimit(RLIMIT_NOFILE, &l));
    close(fd);
    if (pipe(p))
        die("pipe");
    for (int tracked = 0; tracked < 2; tracked++) {
        fd = join();
        echo_rounds(fd, 20, 3000);
        memset(&s, 0, sizeof s);
        memset(s.beyond, 0xff, sizeof s.beyond);
        FD_SET(tracked ? fd : p[0], &s.set);
        T(select(4095, &s.set, NULL, NULL, (&(struct timeval){0, 50000})));
        say("%d", FD_ISSET(tracked ? fd : p[0], &s.set));
        int same = 1;
        for (size_t i = 0; i < sizeof s.beyond; i++)
            same &= s.beyond[i] == 0xff;
        YES(same);
    }
    /* Here a descriptor is open at such a number. */
    static unsigned long many[4096 / 64];
    T(high = fcntl(p[0], F_DUPFD, 2000));
    for (int full = 0; full < 2; full++) {
        many[fd / 64] |= 1ul << fd % 64;
        many[2000 / 64] |= 1ul << 2000 % 64;
        if (full)
            T(write(p[1], "x", 1));
        T(select(2001, (fd_set *)many, NULL, NULL, (&(struct timeval){0, 0})));
        say("%d %d", !!(many[fd / 64] & 1ul << fd % 64), !!(many[2000 / 64] & 1ul << 2000 % 64));
    }
    close(high);
}

static void select_to_the_end_server(int fd)
{
    close(fd);
    for (int tracked = 0; tracked < 2; tracked++) {
        fd = join();
        echo_rounds(fd, 20, 3000);
    }
}

/* A pipe is open at such a number, and the socket in the set is not connected yet. */
static void select_before_one(void)
{
    static unsigned long many[4096 / 64];
    int p[2], s = socket(AF_INET, SOCK_STREAM, 0);
    struct rlimit l;
    getrlimit(RLIMIT_NOFILE, &l);
    l.rlim_cur = 4096;
    T(setrlimit(RLIMIT_NOFILE, &l));
    if (pipe(p))
        die("pipe");
    T(fcntl(p[0], F_DUPFD, 2000));
    for (int full = 0; full < 2; full++) {
        many[s / 64] |= 1ul << s % 64;
        many[2000 / 64] |= 1ul << 2000 % 64;
        if (full)
            T(write(p[1], "x", 1));
        T(select(2001, NULL, NULL, (fd_set *)many, (&(struct timeval){0, 0})));
        many[2000 / 64] |= 1ul << 2000 % 64;
        T(select(2001, (fd_set *)many, NULL, NULL, (&(struct timeval){0, 0})));
        say("%d %d", !!(many[s / 64] & 1ul << s % 64), !!(many[2000 / 64] & 1ul << 2000 % 64));
    }
}

/* A wait ends at its time limit, also while the library looks for the other end. */
static void short_waits(int fd)
{
    struct epoll_event e;
    double fastest = 1;
    fd = join_cold();
    int ep = set_of(fd, EPOLLPRI);
    echo_rounds(fd, 1, 2);
    for (int i = 0; i < 10; i++) {
        double t = now();
        if (epoll_wait(ep, &e, 1, 1))
            die("epoll_wait");
        t = now() - t;
        fastest = t < fastest ? t : fastest;
    }
    YES(fastest < 0.008);
    meet();
}

const struct body poll_bodies[] = {
    TWO("poll_states", states_server, states_client),
    TWO("poll_reset", reset_states_server, reset_states_client),
    TWO("poll_wakes", waker, poll_wakes_client),
    ONE("poll_timeouts", timeouts_one),
    ONE("poll_odd_fds", odd_fds_one),
    TWO("poll_500", crowd_server, crowd_client),
    TWO("poll_two_threads", two_pollers_server, two_pollers_client),
    TWO("ppoll_mask", ppoll_mask_server, ppoll_mask_client),
    TWO("poll_moved_meanwhile", moved_meanwhile_server, moved_meanwhile_client),
    TWO("select_states", select_states_server, select_states_client),
    TWO("select_large_fds", many_words_server, many_words_client),
    TWO("select_to_the_end", select_to_the_end_server, select_to_the_end_client, .flags = STEADY),
    ONE("select_before", select_before_one, .flags = NOUP),
    TWO("short_waits", short_waits, short_waits, .flags = RAW | NOUP),
    TWO("poll_out_after_full", full_server, full_client),
    TWO("poll_shut_by_thread", shut_by_thread_server, shut_by_thread_client),
    TWO("poll_mixed", mixed_server, mixed_client),
    {0},
};
