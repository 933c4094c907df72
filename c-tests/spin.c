/* Signals between the last byte and the sleep, while a wait may be spinning on the processor. */
#include "t.h"

#ifndef SPIN_ROUNDS
#define SPIN_ROUNDS 60
#endif
/* A signal may come just before the call: this many lost signals in all are no failure. */
#ifndef SPIN_FEW
#define SPIN_FEW 3
#endif
enum { WAIT_MS = 300 };

static struct epoll_event event;
static struct timespec ten = {10, 0};
static int set;

static long by_epoll_wait(int fd) { return (void)fd, epoll_wait(set, &event, 1, -1); }
static long by_epoll_pwait(int fd) { return (void)fd, epoll_pwait(set, &event, 1, 10000, NULL); }
static long by_poll(int fd) { return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1); }

static long by_ppoll(int fd)
{
    return ppoll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, &ten, NULL);
}

static long by_select(int fd)
{
    fd_set r;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    return select(fd + 1, &r, NULL, NULL, NULL);
}

static long by_pselect(int fd)
{
    fd_set r;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    return pselect(fd + 1, &r, NULL, NULL, &ten, NULL);
}

static long by_peek(int fd) { return recv(fd, buf, 1, MSG_PEEK); }
static long by_recv(int fd) { return recv(fd, buf, 1, MSG_WAITALL); }
static long by_readv(int fd) { return readv(fd, &(struct iovec){buf, 1}, 1); }

static const struct { const char *name; long (*wait)(int); int flags, reads, limit; } waits[] = {
    {"epoll_wait", by_epoll_wait, 0, 0, 0},
    {"epoll_wait, restarted", by_epoll_wait, SA_RESTART, 0, 0},
    {"epoll_pwait", by_epoll_pwait, SA_RESTART, 0, 0},
    {"poll", by_poll, 0, 0, 0},
    {"poll, restarted", by_poll, SA_RESTART, 0, 0},
    {"ppoll", by_ppoll, SA_RESTART, 0, 0},
    {"select", by_select, 0, 0, 0},
    {"pselect", by_pselect, SA_RESTART, 0, 0},
    {"peek", by_peek, 0, 0, 0},
    {"recv", by_recv, 0, 1, 0},
    {"readv", by_readv, 0, 1, 0},
    {"recv with a limit, restarted", by_recv, SA_RESTART, 1, 1},
};

/* Puts the two sides on two processors, if there are two. A wait that shares its processor with the
 * other side only yields. */
static void part(void)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all))
        return;
    int which = is_server ? 0 : CPU_COUNT(&all) - 1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && which-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
        }
}

/* Spins for that long. */
static void burn(double us)
{
    for (double end = now() + us / 1e6; now() < end;)
        ;
}

/* As hear(), but spins instead of sleeping. */
static void hear_at_once(void)
{
    for (long v; recv(SYNC, &v, sizeof v, MSG_DONTWAIT) < 0;)
        ;
}

/* Has the other side told something in time? */
static int is_told(void)
{
    struct pollfd p = {.fd = SYNC, .events = POLLIN};
    return poll(&p, 1, WAIT_MS) == 1;
}

static void amid_spin_server(int fd)
{
    srandom(getpid());
    part();
    int lost = 0;
    for (size_t i = 0; i < COUNT(waits) && lost <= SPIN_FEW; i++) {
        for (int round = 0; round < SPIN_ROUNDS && lost <= SPIN_FEW; round++) {
            hear();
            if (write(fd, "a", 1) != 1)
                die("write");
            burn(random() % 100);
            kill(peer_pid, SIGUSR1);
            if (!is_told() && write(fd, "b", 1) != 1)
                die("write");
            lost += hear();
            tell(lost > SPIN_FEW);
        }
        meet();
    }
}

static void amid_spin_client(int fd)
{
    T(set = set_of(fd, EPOLLIN));
    part();
    int lost = 0, over = 0;
    for (size_t i = 0; i < COUNT(waits) && !over; i++) {
        count_signal(SIGUSR1, waits[i].flags);
        timeout(fd, SO_RCVTIMEO, waits[i].limit ? 8000 : 0);
        for (int round = 0; round < SPIN_ROUNDS && !over; round++) {
            long n = -1;
            char c;
            signals[SIGUSR1] = 0;
            tell(0);
            /* the same wait, in which a byte comes: so the next wait begins by spinning */
            while ((n = waits[i].wait(fd)) <= 0 && !signals[SIGUSR1])
                ;
            if ((n <= 0 || !waits[i].reads) && read(fd, &c, 1) != 1)
                die("read");
            n = -1;
            if (!signals[SIGUSR1])
                n = waits[i].wait(fd);
            tell(n >= 0);
            while (!signals[SIGUSR1])
                sched_yield();
            if (n > 0 && !waits[i].reads && read(fd, &c, 1) != 1)
                die("read");
            lost += n >= 0;
            over = hear();
        }
        say("%s: %s", waits[i].name, lost <= SPIN_FEW ? "all rounds" : "LOST");
        if (SPIN_FEW > 3)
            say("lost %d", lost);
        meet();
    }
}

/* The same for a writer. Each round has a connection of its own, since a connection may leave its
 * link. */
enum { WRITERS = SPIN_ROUNDS / 7 };

static void amid_send_spin_server(int fd)
{
    srandom(getpid());
    part();
    for (int i = 0; i < WRITERS; i++) {
        int conn = join();
        hold_less(conn);
        echo_rounds(conn, 3, 1000);
        hear_at_once();
        burn(random() % 50);
        kill(peer_pid, SIGUSR1);
        tell(!is_told());
        while (read(conn, buf, sizeof buf) > 0)
            ;
        hear(); /* that the call is over */
        meet();
        close(conn);
    }
    (void)fd;
}

static void amid_send_spin_client(int fd)
{
    int lost = 0;
    part();
    count_signal(SIGUSR1, 0);
    for (int i = 0; i < WRITERS; i++) {
        int conn = join();
        hold_less(conn);
        echo_rounds(conn, 3, 1000);
        signals[SIGUSR1] = 0;
        while (send(conn, buf, 4096, MSG_DONTWAIT) > 0)
            ;
        tell(0);
        if (!signals[SIGUSR1])
            send(conn, buf, sizeof buf, 0);
        tell(0);
        lost += hear();
        shutdown(conn, SHUT_WR);
        meet();
        close(conn);
    }
    say("%s", lost <= SPIN_FEW ? "all rounds" : "LOST");
    if (SPIN_FEW > 3)
        say("lost %d", lost);
    (void)fd;
}

const struct body spin_bodies[] = {
    TWO("signal_amid_spin", amid_spin_server, amid_spin_client, .limit = 40),
    TWO("signal_amid_send_spin", amid_send_spin_server, amid_send_spin_client, .limit = 40),
    {0},
};
