/* Threads sleep in an epoll set while others wait for the same connection, or close the one that
 * they sleep on. */
#include "t.h"

enum { LOADS = 100, STOP = 1 };
static int conn;
static size_t *taken; /* in memory that other processes see, too */

/* Takes what there is, until it is told to stop. */
static void *sleeper(void *arg)
{
    int ep = *(int *)arg;
    char chunk[64];
    for (;;) {
        struct epoll_event e[2];
        int n = epoll_wait(ep, e, 2, -1);
        for (int i = 0; i < n; i++) {
            if (e[i].data.u64 == STOP)
                return NULL;
            for (ssize_t r; (r = recv(conn, chunk, sizeof chunk, MSG_DONTWAIT)) > 0;)
                __atomic_add_fetch(taken, r, __ATOMIC_RELAXED);
        }
        if (n < 1 && errno != EINTR)
            die("epoll_wait");
    }
}

/* Each load is taken by a sleeper. */
static void load(void)
{
    size_t sent = 0;
    for (int i = 1; i <= LOADS; i++) {
        order(i);
        sent += i;
        for (int ms = 0; __atomic_load_n(taken, __ATOMIC_RELAXED) < sent && ms < 5000; ms++)
            usleep(1000);
        if (__atomic_load_n(taken, __ATOMIC_RELAXED) != sent)
            say("load %d: %zu of %zu taken", i, *taken, sent);
    }
}

/* A thread sleeps in each of two sets that have the connection with EPOLLEXCLUSIVE: each time at
 * least one thread is woken. */
static void exclusive_client(int fd)
{
    for (unsigned edge = 0; edge < 2; edge++) {
        int set[2], stop = eventfd(0, 0);
        pthread_t t[2];
        conn = fd, taken = &(size_t){0};
        for (int i = 0; i < 2; i++) {
            set[i] = set_of(fd, EPOLLIN | EPOLLEXCLUSIVE | (edge ? EPOLLET : 0));
            T(ctl(set[i], EPOLL_CTL_ADD, stop, EPOLLIN, STOP));
            t[i] = start(sleeper, &set[i]);
        }
        load();
        eventfd_write(stop, 1);
        for (int i = 0; i < 2; i++)
            finish(t[i]), close(set[i]);
        close(stop);
    }
    tell(END);
    meet();
}

/* Two processes sleep in one set, which they have from their parent. */
static void related_client(int fd)
{
    int ep = set_of(fd, EPOLLIN), stop = eventfd(0, 0);
    T(ctl(ep, EPOLL_CTL_ADD, stop, EPOLLIN, STOP));
    conn = fd;
    taken = mmap(NULL, sizeof *taken, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[2];
    for (int i = 0; i < 2; i++)
        if (!(pid[i] = child())) {
            sleeper(&ep);
            _exit(0);
        }
    load();
    eventfd_write(stop, 1);
    reap(pid[0]);
    reap(pid[1]);
    tell(END);
    meet();
}

static int slept_in;
static struct epoll_event told;

static void *one_wait(void *arg)
{
    busy = gettid();
    return (void *)(long)epoll_wait(slept_in, &told, 1, (long)arg);
}

/* A thread sleeps on two connections, and one of them is closed: the other one wakes the thread. */
static void closed_client(int fd)
{
    for (unsigned i = 0; i < 4; i++) {
        int gone = join();
        unsigned edge = i % 2 ? EPOLLET : 0;
        slept_in = set_of(gone, EPOLLIN | edge);
        T(ctl(slept_in, EPOLL_CTL_ADD, fd, EPOLLIN | edge, i));
        pthread_t t = start_busy(one_wait, (void *)-1l);
        await_asleep(busy);
        T(close(gone));
        await_asleep(busy);
        order(10);
        T(finish(t));
        say("%lx of %lu", (unsigned long)told.events, (unsigned long)told.data.u64);
        T(recv(fd, buf, 100, MSG_DONTWAIT));
        T(close(slept_in));
    }
    tell(END);
    meet();
}

static void closed_server(int fd)
{
    for (int i = 0; i < 4; i++) {
        int gone = join();
        long n = hear();
        put(fd, n, n), tell(0);
        T(recv(gone, buf, 1, 0));
        close(gone);
    }
    obey(fd);
}

/* The connection was full a moment ago, and the peer already reads. A thread that waits for room is
 * told of it while the connection is still on its link. */
static int wait_for_room(int way, int fd, int ep)
{
    fd_set w;
    FD_ZERO(&w);
    FD_SET(fd, &w);
    switch (way) {
    case 3: return poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
    case 4: return select(fd + 1, NULL, &w, NULL, NULL);
    default: return epoll_wait(ep, &told, 1, -1);
    }
}

static void full_client(int fd)
{
    static const unsigned how[] = {0, EPOLLET, EPOLLONESHOT, 0, 0};
    set_nonblock(fd, 1);
    for (size_t i = 0; i < 10 * COUNT(how); i++) {
        int way = i % COUNT(how), ep = set_of(fd, EPOLLOUT | how[way]);
        if (epoll_wait(ep, &told, 1, -1) != 1)
            die("epoll_wait");
        long sent = 0;
        for (ssize_t n; (n = write(fd, buf, 1 << 16)) > 0;)
            sent += n;
        if (how[way] == EPOLLONESHOT)
            ctl(ep, EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLONESHOT, PATTERN);
        tell(sent);
        int told_of, written;
        for (;;) {
            told_of = wait_for_room(way, fd, ep);
            written = write(fd, buf, 1);
            if (told_of != 1 || written >= 0 || errno != EAGAIN)
                break;
            /* The connection went to TCP between the wait and the write, or is on its way there. */
            if (how[way] == EPOLLONESHOT)
                ctl(ep, EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLONESHOT, PATTERN);
        }
        say("%d told of room, %d written", told_of, written);
        hear();
        close(ep);
    }
    tell(END);
}

static void full_server(int fd)
{
    for (long n; (n = hear()) != END; tell(0))
        pour_out(fd, n + 1);
}

/* A signal that the wait's own mask blocks, and the program's mask does not: it does not end the
 * wait, and is delivered after it. */
enum { MASKED_WAYS = 4 };

static int masked_wait(int way, int fd, int ep)
{
    sigset_t mask;
    fd_set r;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    switch (way) {
    case 0: return epoll_pwait(ep, &told, 1, -1, &mask);
    case 1: return epoll_pwait2(ep, &told, 1, NULL, &mask);
    case 2: return ppoll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, NULL, &mask);
    default: return pselect(fd + 1, &r, NULL, NULL, NULL, &mask);
    }
}

static void masked_client(int fd)
{
    int ep = set_of(fd, EPOLLIN);
    count_signal(SIGUSR1, 0);
    for (int i = 0; i < 3 * MASKED_WAYS; i++) {
        tell(0);
        T(masked_wait(i % MASKED_WAYS, fd, ep));
        say("signals %d", signals[SIGUSR1]);
        T(recv(fd, buf, 100, 0));
    }
    meet();
}

static void masked_server(int fd)
{
    for (int i = 0; i < 3 * MASKED_WAYS; i++) {
        hear();
        await_asleep(peer_pid);
        kill(peer_pid, SIGUSR1);
        await_asleep(peer_pid);
        put(fd, i, 10);
    }
    meet();
}

/* A set that is itself polled tells of its connections by turns, too. */
static void turns_client(int fd)
{
    int second = join(), ep = set_of(fd, EPOLLIN);
    T(ctl(ep, EPOLL_CTL_ADD, second, EPOLLIN, 2));
    T(poll(&(struct pollfd){.fd = ep, .events = POLLIN}, 1, 0));
    tell(0);
    hear();
    await_in(fd, 10);
    await_in(second, 10);
    for (int i = 0; i < 6; i++) {
        uint64_t both = 0;
        for (int k = 0; k < 2; k++) {
            if (epoll_wait(ep, &told, 1, i % 2 ? -1 : 0) != 1)
                say("nothing");
            both ^= told.data.u64;
        }
        YES(both == (PATTERN ^ 2));
    }
    meet();
}

static void turns_server(int fd)
{
    int second = join();
    hear();
    put(fd, 1, 10);
    put(second, 2, 10);
    tell(0);
    meet();
}

const struct body asleep_bodies[] = {
    TWO("asleep_turns", turns_server, turns_client, .flags = STEADY),
    TWO("asleep_masked", masked_server, masked_client),
    TWO("asleep_full", full_server, full_client, .limit = 20),
    TWO("asleep_exclusive", obey, exclusive_client, .limit = 30),
    TWO("asleep_related", obey, related_client, .limit = 30),
    TWO("asleep_on_closed", closed_server, closed_client),
    {0},
};
