/* epoll: level, edge, one-shot, exclusive, many sets, other fds, masks, time limits, processes. */
#include "t.h"

/* volatile: the compiler would warn of the bad pointer. */
static void *volatile nowhere = (void *)8;
static volatile int minus_one = -1;

enum { EVERY = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP };

int ctl(int ep, int op, int fd, unsigned events, uint64_t data)
{
    return epoll_ctl(ep, op, fd, &(struct epoll_event){.events = events, .data.u64 = data});
}

int set_of(int fd, unsigned events)
{
    int ep = epoll_create1(EPOLL_CLOEXEC);
    if (ctl(ep, EPOLL_CTL_ADD, fd, events, PATTERN))
        die("epoll_ctl");
    return ep;
}

/* Waits, and prints the events in the order of their data. */
static int by_data(const void *a, const void *b)
{
    uint64_t x = ((struct epoll_event *)a)->data.u64, y = ((struct epoll_event *)b)->data.u64;
    return x < y ? -1 : x > y;
}

int say_wait(int ep, int ms)
{
    struct epoll_event e[16];
    int n = epoll_wait(ep, e, 16, ms);
    if (n < 0)
        say("wait: %s", strerrorname_np(errno));
    if (n == 0)
        say("wait: nothing");
    if (n > 1)
        qsort(e, n, sizeof *e, by_data);
    for (int i = 0; i < n; i++)
        say("wait: %lx %s", (unsigned long)e[i].data.u64, mask_name(e[i].events));
    return n;
}

void obey(int fd)
{
    for (long n; (n = hear()) != END; tell(0)) {
        if (n >= WHEN_ASLEEP)
            await_asleep(peer_pid);
        if (n == SHUT)
            shutdown(fd, SHUT_WR);
        else if (n == RESET)
            setsockopt(fd, SOL_SOCKET, SO_LINGER, (&(struct linger){1, 0}), sizeof(struct linger)),
                close(fd);
        else
            put(fd, n, n % WHEN_ASLEEP);
    }
    meet();
}

void order(long n)
{
    tell(n);
    hear();
}

static void level_client(int fd)
{
    int ep = set_of(fd, EPOLLIN | EPOLLRDHUP);
    say_wait(ep, 0);
    order(100);
    await_in(fd, 100);
    for (int i = 0; i < 3; i++)
        say_wait(ep, -1);
    T(get(fd, 100, 40));
    say_wait(ep, 0);
    T(recv(fd, buf, 100, 0));
    say_wait(ep, 0);
    tell(WHEN_ASLEEP + 50);
    say_wait(ep, -1);
    hear();
    await_in(fd, 50);
    T(recv(fd, buf, 100, 0));
    T(ctl(ep, EPOLL_CTL_MOD, fd, EVERY, PATTERN + 1));
    say_wait(ep, 0);
    order(SHUT);
    await(fd, POLLRDHUP);
    say_wait(ep, 0);
    T(shutdown(fd, SHUT_WR));
    tell(END);
    meet();
}

static void edge_client(int fd)
{
    int ep = set_of(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    say_wait(ep, -1);
    say_wait(ep, 0);
    order(100);
    await_in(fd, 100);
    say_wait(ep, -1);
    say_wait(ep, 0); /* one edge is told once, whether the bytes were read or not */
    T(recv(fd, buf, 10, 0));
    say_wait(ep, 0);
    order(100);
    await_in(fd, 190);
    say_wait(ep, -1); /* more came: a new edge */
    T(recv(fd, buf, 1000, 0));
    say_wait(ep, 0);
    order(100);
    await_in(fd, 100);
    T(recv(fd, buf, 1000, 0)); /* read before the wait: the event is still told, without IN */
    say_wait(ep, 0);
    say_wait(ep, 0);
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT | EPOLLET, 7));
    say_wait(ep, 0);
    say_wait(ep, 0);
    order(30);
    await_in(fd, 30);
    say_wait(ep, -1);
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 8)); /* tells the unread bytes once more */
    say_wait(ep, 0);
    say_wait(ep, 0);
    tell(WHEN_ASLEEP + 30);
    say_wait(ep, -1);
    hear();
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLRDHUP | EPOLLET, 9));
    order(SHUT);
    await(fd, POLLRDHUP);
    say_wait(ep, -1);
    say_wait(ep, 0);
    tell(END);
    meet();
}

static void edge_stream_server(int fd)
{
    T(put(fd, 1, 6 << 20));
    T(get(fd, 2, 6 << 20));
}

/* The usual loop: wait for an edge, then read until EAGAIN, write until EAGAIN. */
static void edge_stream_client(int fd)
{
    static char expect[100000];
    struct epoll_event e;
    size_t got = 0, sent = 0, all = 6 << 20;
    int ep = set_of(fd, EPOLLIN | EPOLLOUT | EPOLLET);
    set_nonblock(fd, 1);
    while (got < all || sent < all) {
        if (epoll_wait(ep, &e, 1, 5000) != 1)
            die("no edge");
        for (ssize_t n; (n = read(fd, buf, sizeof expect)) > 0; got += n) {
            fill(expect, 1, got, n);
            if (memcmp(expect, buf, n))
                die("wrong bytes");
        }
        for (ssize_t n; sent < all; sent += n) {
            size_t want = all - sent < 100000 ? all - sent : 100000;
            fill(buf, 2, sent, want);
            if ((n = write(fd, buf, want)) < 0)
                break;
        }
    }
    say("got %zu sent %zu", got, sent);
}

static void oneshot_client(int fd)
{
    int ep = set_of(fd, EPOLLIN | EPOLLONESHOT);
    order(100);
    say_wait(ep, -1);
    order(100);
    await_in(fd, 200);
    say_wait(ep, 0);
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 1));
    say_wait(ep, -1);
    say_wait(ep, 0);
    T(recv(fd, buf, 1000, 0));
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 2));
    say_wait(ep, 0);
    tell(WHEN_ASLEEP + 10);
    say_wait(ep, -1);
    hear();
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLONESHOT | EPOLLET, 3));
    say_wait(ep, -1);
    say_wait(ep, 0);
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLRDHUP | EPOLLONESHOT, 4));
    say_wait(ep, 0);
    order(SHUT);
    say_wait(ep, -1);
    say_wait(ep, 0);
    tell(END);
    meet();
}

static void exclusive_client(int fd)
{
    int a = set_of(fd, EPOLLIN | EPOLLEXCLUSIVE),
        b = set_of(fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET);
    T(ctl(a, EPOLL_CTL_MOD, fd, EPOLLIN, 1));
    T(ctl(a, EPOLL_CTL_ADD, a, EPOLLIN | EPOLLEXCLUSIVE, 1));
    order(100);
    await_in(fd, 100);
    say_wait(a, 0);
    say_wait(a, 0);
    T(recv(fd, buf, 1000, 0));
    say_wait(a, 0);
    T(ctl(b, EPOLL_CTL_DEL, fd, 0, 0));
    tell(WHEN_ASLEEP + 100);
    say_wait(a, -1);
    hear();
    T(ctl(a, EPOLL_CTL_DEL, fd, 0, 0));
    /* The kernel refuses EPOLLRDHUP together with EPOLLEXCLUSIVE. */
    T(ctl(a, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP | EPOLLEXCLUSIVE, 1));
    say_wait(a, 0);
    tell(END);
    meet();
}

static void rdhup_client(int fd)
{
    int in = set_of(fd, EPOLLIN), rdhup = set_of(fd, EPOLLRDHUP), none = set_of(fd, 0),
        out = set_of(fd, EPOLLOUT | EPOLLET);
    say_wait(out, 0);
    say_wait(rdhup, 0);
    tell(SHUT);
    say_wait(rdhup, -1);
    hear();
    say_wait(in, -1);
    say_wait(none, 0);
    T(recv(fd, buf, 1, 0));
    say_wait(rdhup, 0);
    T(shutdown(fd, SHUT_WR));
    say_wait(none, -1);
    say_wait(in, -1);
    tell(END);
    meet();
}

static void errors_client(int fd)
{
    int ep = epoll_create(1), file = temp_file(1, 10);
    struct epoll_event e;
    T(epoll_create(0));
    T(epoll_create1(77));
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 0));
    T(ctl(ep, EPOLL_CTL_DEL, fd, EPOLLIN, 0));
    T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 5));
    T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 6));
    T(ctl(ep, 99, fd, EPOLLIN, 0));
    T(ctl(ep, EPOLL_CTL_ADD, ep, EPOLLIN, 0));
    T(ctl(fd, EPOLL_CTL_ADD, ep, EPOLLIN, 0));
    T(ctl(ep, EPOLL_CTL_ADD, file, EPOLLIN, 0));
    T(ctl(ep, EPOLL_CTL_ADD, 800, EPOLLIN, 0));
    T(ctl(800, EPOLL_CTL_ADD, fd, EPOLLIN, 0));
    T(epoll_ctl(ep, EPOLL_CTL_ADD, dup(fd), NULL));
    T(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL));
    T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 7));
    T(epoll_wait(ep, &e, 0, 0));
    T(epoll_wait(ep, &e, minus_one, 0));
    T(epoll_wait(fd, &e, 1, 0));
    T(epoll_wait(800, &e, 1, 0));
    order(10);
    await_in(fd, 10);
    T(epoll_wait(ep, nowhere, 1, 0));
    say_wait(ep, -1);
    tell(END);
    meet();
}

/* One fd, and a dup of it, in several sets, each with its own events and data. */
static void several_sets_client(int fd)
{
    int two = dup(fd), ep[4];
    for (int i = 0; i < 4; i++)
        ep[i] = set_of(fd, (unsigned[]){EPOLLIN, EPOLLIN | EPOLLET, EPOLLOUT,
                                        EPOLLIN | EPOLLONESHOT}[i]);
    T(ctl(ep[0], EPOLL_CTL_ADD, two, EPOLLIN | EPOLLOUT, 0xabcdef0012345678));
    for (int round = 0; round < 3; round++) {
        order(10);
        await_in(fd, 10);
        for (int i = 0; i < 4; i++)
            say_wait(ep[i], 0);
        T(recv(two, buf, 100, 0));
        for (int i = 0; i < 4; i++)
            say_wait(ep[i], 0);
        if (round == 1)
            T(close(ep[1]));
    }
    tell(END);
    meet();
}

static void mixed_client(int fd)
{
    int p[2], u[2], tfd = timerfd_create(CLOCK_MONOTONIC, 0), efd = eventfd(0, 0), port,
        l = listen_any(&port), ep = epoll_create1(0);
    T(pipe(p));
    T(socketpair(AF_UNIX, SOCK_STREAM, 0, u));
    int all[] = {fd, l, p[0], u[0], tfd, efd};
    for (unsigned i = 0; i < COUNT(all); i++)
        T(ctl(ep, EPOLL_CTL_ADD, all[i], EPOLLIN, i + 1));
    say_wait(ep, 0);
    timerfd_settime(tfd, 0, &(struct itimerspec){{0, 0}, {0, 30000000}}, NULL);
    say_wait(ep, -1); /* the timer ends the wait, while the connection is idle */
    T(read(tfd, buf, 8));
    put(p[1], 1, 1);
    say_wait(ep, -1);
    eventfd_write(efd, 1);
    say_wait(ep, -1);
    put(u[1], 1, 1);
    order(10);
    await_in(fd, 10);
    int c = try_dial(port, 0), a = accept(l, NULL, NULL), c2 = try_dial(port, 0);
    await(l, POLLIN);
    T(ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 7));
    T(put(c, 1, 5));
    await_in(a, 5);
    say_wait(ep, -1);
    T(close(c));
    T(close(c2));
    tell(END);
    meet();
}

static void pwait_server(int fd)
{
    for (int i = 0; i < 2; i++) {
        hear();
        await_asleep(peer_pid);
        kill(peer_pid, SIGUSR1);
    }
    obey(fd);
}

static void pwait_client(int fd)
{
    struct epoll_event e;
    sigset_t blocked, none;
    int ep = set_of(fd, EPOLLIN);
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    T(sigprocmask(SIG_BLOCK, &blocked, NULL));
    count_signal(SIGUSR1, SA_RESTART);
    tell(0);
    T(epoll_pwait(ep, &e, 1, -1, &none));
    say("signals %d", signals[SIGUSR1]);
    tell(0);
    T(epoll_pwait2(ep, &e, 1, NULL, &none));
    say("signals %d", signals[SIGUSR1]);
    T(epoll_pwait(ep, &e, 1, 10, &blocked));
    tell(WHEN_ASLEEP + 10);
    T(epoll_pwait(ep, &e, 1, -1, &none));
    hear();
    tell(END);
    meet();
}

static void pwait2_client(int fd)
{
    struct epoll_event e;
    int ep = set_of(fd, EPOLLIN);
    for (long ns = 0; ns <= 40000000; ns = ns ? ns * 40 : 1000) {
        double t = now();
        T(epoll_pwait2(ep, &e, 1, (&(struct timespec){0, ns}), NULL));
        t = now() - t;
        if (t < ns / 1e9 || t > ns / 1e9 + 2)
            say("that took %f s, not %ld ns", t, ns);
    }
    for (int ms = 0; ms <= 120; ms += 60) {
        double t = now();
        T(epoll_wait(ep, &e, 1, ms));
        t = (now() - t) * 1000;
        if (t < ms - 1 || t > ms + 2000)
            say("that took %.1f ms, not %d", t, ms);
    }
    T(epoll_pwait2(ep, &e, 1, (&(struct timespec){0, -5}), NULL));
    tell(WHEN_ASLEEP + 10);
    T(epoll_pwait2(ep, &e, 1, (&(struct timespec){10, 0}), NULL));
    hear();
    tell(END);
    meet();
}

/* Threads share a set; every message wakes at least one, and none is lost. */
static int shared_set, shared_conn;
static size_t taken;

static void *set_thread(void *arg)
{
    struct epoll_event e;
    char chunk[64];
    (void)arg;
    for (;;) {
        if (epoll_wait(shared_set, &e, 1, -1) != 1)
            die("epoll_wait");
        if (e.data.u64 == 1)
            return NULL;
        for (ssize_t n; (n = recv(shared_conn, chunk, sizeof chunk, MSG_DONTWAIT)) > 0;)
            __atomic_add_fetch(&taken, n, __ATOMIC_RELAXED);
        ctl(shared_set, EPOLL_CTL_MOD, shared_conn, EPOLLIN | EPOLLONESHOT, PATTERN);
    }
}

static void shared_set_client(int fd)
{
    pthread_t t[4];
    int stop = eventfd(0, 0);
    shared_conn = fd;
    shared_set = set_of(fd, EPOLLIN | EPOLLONESHOT);
    for (int i = 0; i < 4; i++)
        t[i] = start(set_thread, NULL);
    for (size_t i = 1; i <= 100; i++) {
        size_t want = taken + i;
        order(i);
        for (int ms = 0; __atomic_load_n(&taken, __ATOMIC_RELAXED) < want && ms < 5000; ms++)
            usleep(1000);
    }
    say("taken %zu", taken);
    T(ctl(shared_set, EPOLL_CTL_ADD, stop, EPOLLIN, 1));
    eventfd_write(stop, 1);
    for (int i = 0; i < 4; i++)
        finish(t[i]);
    tell(END);
    meet();
}

static void *wait_there(void *there)
{
    busy = gettid();
    long n = epoll_wait(shared_set, there, 1, -1);
    return (void *)(n < 0 ? -errno : n);
}

/* One of two threads waits with an array that cannot be written. Its call fails, and the event is
 * the other's, whichever of them is woken first. */
static void bad_array_client(int fd)
{
    static struct epoll_event good;
    void *bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int first = 0; first < 2; first++) {
        pthread_t t[2];
        shared_set = set_of(fd, EPOLLIN);
        for (int i = 0; i < 2; i++) {
            t[i] = start_busy(wait_there, i == first ? bad : &good);
            await_asleep(busy);
        }
        order(10);
        say("bad %s", strerrorname_np(-(long)finish(t[first])));
        say("good %ld", (long)finish(t[!first]));
        T(get(fd, 10, 10));
        close(shared_set);
    }
    tell(END);
    meet();
}

/* A child inherits set and connection; the parent then goes on with both. */
static void inherited_client(int fd)
{
    int ep = set_of(fd, EPOLLIN);
    pid_t pid = child();
    if (!pid) {
        tell(10);
        say_wait(ep, -1);
        hear();
        T(get(fd, 10, 10));
        say_wait(ep, 0);
        T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT, 77)); /* changes the parent's set, too */
        _exit(0);
    }
    reap(pid);
    say_wait(ep, 0);
    order(20);
    await_in(fd, 20);
    say_wait(ep, -1);
    T(get(fd, 20, 20));
    pid = child();
    if (!pid) {
        close(fd);
        close(ep);
        _exit(0);
    }
    reap(pid);
    order(30);
    await_in(fd, 30);
    say_wait(ep, -1);
    tell(END);
    meet();
}

/* The connection is closed while it is registered. The last close removes the registration; as long
 * as a dup is open, the registration stays, under the old number. */
static void closed_client(int fd)
{
    int second = join(), ep = set_of(fd, EPOLLIN), keep = dup(fd);
    T(ctl(ep, EPOLL_CTL_ADD, second, EPOLLIN, 2));
    order(10);
    await_in(fd, 10);
    T(close(fd));
    say_wait(ep, 0);
    T(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
    T(ctl(ep, EPOLL_CTL_ADD, keep, EPOLLIN, 3));
    say_wait(ep, 0);
    T(close(keep));
    say_wait(ep, 0);
    T(close(second));
    say_wait(ep, 0);
    tell(END);
    meet();
}

static void closed_server(int fd)
{
    int second = join();
    put(fd, hear(), 10);
    tell(0);
    hear();
    await(second, POLLRDHUP);
    meet();
}

/* The number of a closed connection that was registered belongs to another connection at once. */
static void reused_client(int fd)
{
    int second = join(), ep = set_of(fd, EPOLLIN), old = fd;
    T(close(fd));
    T(dup2(second, old) == old);
    say_wait(ep, 0);
    T(ctl(ep, EPOLL_CTL_MOD, old, EPOLLIN, 9));
    T(ctl(ep, EPOLL_CTL_ADD, old, EPOLLIN, 10));
    tell(5);
    say_wait(ep, -1);
    T(get(old, 5, 5));
    T(close(second));
    T(ctl(ep, EPOLL_CTL_MOD, old, EPOLLIN | EPOLLOUT, 11));
    tell(6);
    await_in(old, 6);
    say_wait(ep, -1);
    tell(END);
    meet();
}

static void reused_server(int fd)
{
    int second = join();
    (void)fd;
    for (long n; (n = hear()) != END;)
        put(second, n, n);
    meet();
}

static void full_server(int fd)
{
    size_t total = hear();
    await_asleep(peer_pid);
    YES(get(fd, 1, total) == total);
    tell(0);
    T(get(fd, 2, 1000));
}

/* EPOLLOUT after the connection was full, by level and by edge. */
static void full_client(int fd)
{
    int level = set_of(fd, EPOLLOUT), edge = set_of(fd, EPOLLOUT | EPOLLET);
    struct epoll_event e;
    size_t total = 0;
    set_nonblock(fd, 1);
    do
        for (ssize_t n; fill(buf, 1, total, 200000), (n = write(fd, buf, 200000)) > 0;)
            total += n;
    while (epoll_wait(level, &e, 1, 400) > 0); /* no sooner than a stuck ring is left for TCP */
    say("full");
    epoll_wait(edge, &e, 1, 0);
    tell(total);
    say_wait(edge, -1);
    say_wait(level, -1);
    hear();
    say_wait(level, 0);
    T(put(fd, 2, 1000));
}

/* More connections are ready than one wait can return: the next waits return the others, and none
 * is left out for good. */
static void few_at_a_time(int fd)
{
    enum { N = 12 };
    int fds[N] = {fd}, ep = epoll_create1(0), seen[N] = {0}, all = 0;
    for (int i = 1; i < N; i++)
        fds[i] = join();
    if (is_server) {
        for (int i = 0; i < N; i++)
            put(fds[i], i, 10);
        meet();
        meet();
        return;
    }
    for (int i = 0; i < N; i++)
        ctl(ep, EPOLL_CTL_ADD, fds[i], EPOLLIN, i);
    meet();
    for (int i = 0; i < N; i++)
        await_in(fds[i], 10);
    for (int i = 0; i < 10000 && all < N; i++) {
        struct epoll_event e[3];
        int n = epoll_wait(ep, e, 3, -1);
        if (n < 1)
            die("epoll_wait");
        for (int k = 0; k < n; k++)
            all += !seen[e[k].data.u64]++;
    }
    say("%d seen", all);
    for (int i = 0; i < N; i++)
        all += get(fds[i], i, 10);
    say("%d", all);
    say_wait(ep, 0);
    meet();
}

/* A connection is put into a set, taken out and put back while bytes arrive. */
static void in_and_out_client(int fd)
{
    int ep = epoll_create1(0);
    for (int i = 1; i < 30; i++) {
        T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, i));
        order(i);
        say_wait(ep, -1);
        await_in(fd, i);
        T(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
        say_wait(ep, 0);
        T(get(fd, i, i));
    }
    tell(END);
    meet();
}

/* Sockets are registered as early as possible: the client's before it connects, the listener before
 * it accepts, and the accepted one at once. */
static void early_server(int fd)
{
    int port, l = listen_any(&port), ep = epoll_create1(0);
    T(ctl(ep, EPOLL_CTL_ADD, l, EPOLLIN, 1));
    tell(port);
    say_wait(ep, -1);
    fd = take(l);
    T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 2));
    warm(fd, 1);
    for (int i = 0; i < 50; i++) {
        struct epoll_event e;
        if (epoll_wait(ep, &e, 1, -1) != 1)
            die("epoll_wait");
        if (get(fd, i, 100) != 100 || put(fd, i, 100) != 100)
            die("echo");
    }
    meet();
}

static void early_client(int fd)
{
    struct sockaddr_storage a;
    int port = hear(), ep, err;
    socklen_t len = loopback(&a, port, 0);
    fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    ep = set_of(fd, EPOLLOUT | EPOLLIN | EPOLLET);
    say_wait(ep, 0);
    if (connect(fd, (void *)&a, len) && errno != EINPROGRESS)
        die("connect");
    struct epoll_event e;
    do
        epoll_wait(ep, &e, 1, -1);
    while (e.events & EPOLLHUP);
    say("%s", mask_name(e.events));
    len = sizeof err;
    T(getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len));
    nodelay(fd);
    warm(fd, 0);
    size_t good = 0;
    for (int i = 0; i < 50; i++)
        put(fd, i, 100), good += get(fd, i, 100);
    say("%zu good", good);
    meet();
}

/* Threads wait in a set, each by another call, while the connection in it leaves TCP. No thread is
 * told an event that the program did not register, none returns before its time is over, and every
 * byte wakes a thread. */
enum { WAITERS = 4, CHANGES = 12, ECHOES = 60, ECHO = 1000 };
static size_t strange, returned_early;

static void *any_wait(void *arg)
{
    long how = (long)arg;
    struct timespec long_time = {20, 0};
    char chunk[ECHO];
    for (;;) {
        struct epoll_event e[3];
        int n = how == 0   ? epoll_wait(shared_set, e, 3, -1)
                : how == 1 ? epoll_wait(shared_set, e, 3, 20000)
                : how == 2 ? epoll_pwait2(shared_set, e, 3, &long_time, NULL)
                           : epoll_wait(shared_set, e, 3, 0);
        if (n < 1 && how != 3)
            __atomic_add_fetch(&returned_early, 1, __ATOMIC_RELAXED);
        for (int i = 0; i < n; i++) {
            if (e[i].data.u64 == 1)
                return NULL;
            if (e[i].data.u64 != PATTERN)
                __atomic_add_fetch(&strange, 1, __ATOMIC_RELAXED);
            for (ssize_t got; (got = recv(shared_conn, chunk, sizeof chunk, MSG_DONTWAIT)) > 0;)
                __atomic_add_fetch(&taken, got, __ATOMIC_RELAXED);
        }
        if (how == 3)
            usleep(50);
    }
}

static void changing_server(int fd)
{
    close(join());
    for (int i = 0; i < CHANGES; i++) {
        fd = join_cold();
        nodelay(fd);
        for (int k = 0; k < ECHOES; k++)
            put(fd, k, get(fd, k, ECHO));
        meet();
        close(fd);
    }
}

static void changing_client(int fd)
{
    close(join());
    for (int i = 0; i < CHANGES; i++) {
        pthread_t t[WAITERS];
        int stop = eventfd(0, 0);
        fd = shared_conn = join_cold();
        nodelay(fd);
        shared_set = set_of(fd, EPOLLIN);
        T(ctl(shared_set, EPOLL_CTL_ADD, stop, EPOLLIN, 1));
        taken = 0;
        for (long k = 0; k < WAITERS; k++)
            t[k] = start(any_wait, (void *)(i % 2 ? k : k % 3));
        for (size_t k = 0; k < ECHOES; k++) {
            put(fd, k, ECHO);
            for (int ms = 0;
                 __atomic_load_n(&taken, __ATOMIC_RELAXED) < (k + 1) * ECHO && ms < 50000; ms++)
                usleep(100);
        }
        say("taken %zu", taken);
        eventfd_write(stop, 1);
        for (int k = 0; k < WAITERS; k++)
            finish(t[k]);
        meet();
        close(fd), close(stop), close(shared_set);
    }
    say("strange %zu, early %zu", strange, returned_early);
}

const struct body epoll_bodies[] = {
    TWO("epoll_level", obey, level_client),
    TWO("epoll_edge", obey, edge_client),
    TWO("epoll_edge_stream", edge_stream_server, edge_stream_client),
    TWO("epoll_oneshot", obey, oneshot_client),
    TWO("epoll_exclusive", obey, exclusive_client),
    TWO("epoll_rdhup", obey, rdhup_client),
    TWO("epoll_errors", obey, errors_client),
    TWO("epoll_several_sets", obey, several_sets_client),
    TWO("epoll_mixed", obey, mixed_client),
    TWO("epoll_pwait_mask", pwait_server, pwait_client),
    TWO("epoll_pwait2_timeouts", obey, pwait2_client),
    TWO("epoll_threads_share_set", obey, shared_set_client),
    TWO("epoll_array_not_there", obey, bad_array_client),
    TWO("epoll_inherited", obey, inherited_client),
    TWO("epoll_closed_fd", closed_server, closed_client),
    TWO("epoll_reused_fd", reused_server, reused_client),
    TWO("epoll_out_after_full", full_server, full_client),
    TWO("epoll_few_at_a_time", few_at_a_time, few_at_a_time),
    TWO("epoll_in_and_out", obey, in_and_out_client),
    TWO("epoll_upgraded_asleep", changing_server, changing_client, .flags = RAW),
    TWO("epoll_before_connect", early_server, early_client, .flags = RAW),
    {0},
};
