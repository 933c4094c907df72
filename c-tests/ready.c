/* Which events an epoll set tells: of disarmed registrations, after SO_RCVLOWAT was lowered, to
 * calls that do not wait, and at edges of other kinds. And whenever a wait returns that there is
 * something to read, a read finds it. */
#include "t.h"

/* APIECE: bytes of a message. A few such messages bring another try for a connection whose first
 * try to leave TCP failed. */
enum { SHUT_BOTH = -4, ORDERED = 1000, IN_A_ROW = 60, APIECE = 100 };

/* A one-shot registration that has told its event does not tell the end of the connection, until it
 * is armed again. */
static const struct {
    unsigned events;
    int how;
} disarmed[] = {
    {EPOLLIN | EPOLLONESHOT, RESET}, {EPOLLIN | EPOLLRDHUP | EPOLLET | EPOLLONESHOT, RESET},
    {EPOLLOUT | EPOLLONESHOT, RESET},
    {EPOLLIN | EPOLLONESHOT, SHUT_BOTH}, {EPOLLIN | EPOLLRDHUP | EPOLLET | EPOLLONESHOT, SHUT_BOTH},
    {EPOLLOUT | EPOLLONESHOT, SHUT_BOTH},
};

static void disarmed_server(int fd)
{
    for (unsigned i = 0; i < 2 * COUNT(disarmed); i++)
        fd = join(), obey(fd), close(fd);
}

static void disarmed_client(int fd)
{
    for (unsigned i = 0; i < 2 * COUNT(disarmed); i++) {
        unsigned events = disarmed[i / 2].events;
        fd = join();
        int ep = set_of(fd, events);
        order(100);
        await_in(fd, 100);
        say_wait(ep, -1);
        if (i % 2) {
            say_wait(ep, 0);
            T(get(fd, 100, 100));
        }
        if (disarmed[i / 2].how == SHUT_BOTH) {
            order(SHUT);
            T(shutdown(fd, SHUT_WR));
        } else {
            order(RESET);
        }
        await(fd, POLLHUP);
        for (int ms = 0; ms < 60; ms += 20)
            say_wait(ep, ms);
        T(ctl(ep, EPOLL_CTL_MOD, fd, events, i));
        say_wait(ep, -1);
        say_wait(ep, 0);
        tell(END);
        meet();
        close(fd), close(ep);
    }
}

/* After a RST a level-triggered registration tells all its events at every epoll_wait, also while
 * bytes that came before the RST are unread. */
enum { ENDED_BY_RESET = 8, IN_QUICK_SUCCESSION = 20 };
static void reset_at_each_look_client(int fd)
{
    for (int i = 0; i < ENDED_BY_RESET; i++) {
        unsigned events = i % 2 ? EPOLLIN | EPOLLRDHUP : EPOLLIN | EPOLLOUT | EPOLLRDHUP,
                 all = events | EPOLLERR | EPOLLHUP;
        struct epoll_event e[8];
        int good = 0, ep;
        fd = join();
        ep = set_of(fd, events);
        put(fd, 1, i / 4); /* no byte, or one that the other end does not read */
        order(100);
        await_in(fd, 100);
        order(RESET);
        await(fd, POLLHUP);
        for (int k = 0; k < IN_QUICK_SUCCESSION; k++)
            good += epoll_wait(ep, e, i & 2 ? 1 : 8, 0) == 1 && e[0].events == all;
        say("%d of %d", good, IN_QUICK_SUCCESSION);
        T(get(fd, 100, 100));
        tell(END);
        meet();
        close(fd), close(ep);
    }
}

static void reset_at_each_look_server(int fd)
{
    for (int i = 0; i < ENDED_BY_RESET; i++)
        fd = join(), obey(fd), close(fd);
}

/* Each of two threads waits for a one-shot registration and arms it again: every time it is armed,
 * it tells what is unread. */
enum { ARMINGS = 3000 };
static int armed_set, armed_fd;
static void *wait_and_arm(void *unused)
{
    struct epoll_event e;
    for (int i = 0; i < ARMINGS; i++) {
        int n = epoll_wait(armed_set, &e, 1, 5000);
        if (n != 1 || e.data.u64 != PATTERN) {
            say("%d events", n);
            break;
        }
        if (ctl(armed_set, EPOLL_CTL_MOD, armed_fd, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, PATTERN))
            die("arm");
    }
    return unused;
}

static void armed_anew_client(int fd)
{
    armed_fd = fd, armed_set = set_of(fd, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
    for (int i = 0; i < 2; i++) {
        order(i ? SHUT : 10);
        pthread_t t[2];
        for (unsigned k = 0; k < COUNT(t); k++)
            t[k] = start(wait_and_arm, NULL);
        for (unsigned k = 0; k < COUNT(t); k++)
            finish(t[k]);
        say_wait(armed_set, 0);
        T(recv(fd, buf, 100, 0));
        T(ctl(armed_set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, PATTERN));
    }
    tell(END);
    meet();
}

/* SO_RCVLOWAT is lowered, so that the unread bytes suffice: a thread that waits is told. */
static volatile int low_fd;
static void set_low(int fd, int low)
{
    if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low))
        die("SO_RCVLOWAT");
}

static void *lower(void *of)
{
    await_asleep(*(pid_t *)of);
    set_low(low_fd, 1);
    return NULL;
}

static void lowered_client(int fd)
{
    static const unsigned asked[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLET,
                                     EPOLLIN | EPOLLONESHOT};
    pid_t me = gettid();
    low_fd = fd;
    for (unsigned i = 0; i < COUNT(asked); i++)
        for (int asleep = 0; asleep < 2; asleep++) {
            int ep = set_of(fd, asked[i] & ~EPOLLIN);
            if (asked[i] & EPOLLOUT)
                say_wait(ep, -1);
            set_low(fd, 5000);
            T(ctl(ep, EPOLL_CTL_MOD, fd, asked[i], i));
            say_wait(ep, 0);
            order(3000);
            /* With SLUICE_MODE=direct the writer first waits some time for the reader. */
            await_in(fd, 3000);
            if (!(asked[i] & EPOLLOUT))
                say_wait(ep, asked[i] & EPOLLET ? 20 : 0);
            else /* an edge without IN or none */
                epoll_wait(ep, &(struct epoll_event){0}, 1, 20);
            if (asleep) {
                pthread_t t = start(lower, &me);
                say_wait(ep, 5000);
                finish(t);
            } else {
                set_low(fd, 1);
                say_wait(ep, 500);
            }
            say_wait(ep, 0);
            T(get(fd, 3000, 3000));
            close(ep);
        }
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (int i = 0; i < 2; i++) {
        set_low(fd, 5000);
        order(3000);
        pthread_t t = start(lower, &me);
        fd_set r;
        FD_ZERO(&r);
        FD_SET(fd, &r);
        T(i ? select(fd + 1, &r, NULL, NULL, &(struct timeval){5, 0}) : poll(&p, 1, 5000));
        finish(t);
        T(get(fd, 3000, 3000));
    }
    tell(END);
    meet();
}

/* A wait with a time limit of 0 finds what is there, however often the registration was changed. */
static void looks_client(int fd)
{
    for (unsigned edge = 0; edge < 2; edge++) {
        if (edge)
            fd = join();
        int ep = set_of(fd, EPOLLIN | edge * EPOLLET);
        for (int i = 0; i < 3; i++)
            T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP | edge * EPOLLET, i));
        say_wait(ep, 0);
        order(SHUT);
        await(fd, POLLRDHUP);
        say_wait(ep, 0);
        say_wait(ep, 0);
        tell(END);
        meet();
        close(ep);
    }
}

static void looks_server(int fd)
{
    obey(fd);
    fd = join();
    obey(fd);
}

/* Bytes that arrive are no edge of EPOLLOUT. */
static void other_edge_client(int fd)
{
    int ep = set_of(fd, EPOLLOUT | EPOLLET), count = 0;
    struct epoll_event e;
    say_wait(ep, -1);
    say_wait(ep, 0);
    for (int i = 0; i < 50; i++) {
        order(100);
        await_in(fd, 100);
        count += epoll_wait(ep, &e, 1, 0);
        if (i % 2)
            T(get(fd, 100, 100));
        else
            T(recv(fd, buf, 100, 0));
    }
    say("%d events", count);
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLET, 1));
    say_wait(ep, -1);
    tell(END);
    meet();
}

/* A wait for more events than the kernel allows is refused, whatever is ready. */
static void too_many_client(int fd)
{
    static struct epoll_event e[4];
    /* volatile: the compiler would warn. */
    static volatile int most = INT_MAX / sizeof *e, all = INT_MAX, fewer = INT_MIN;
    int ep = set_of(fd, EPOLLIN);
    for (int i = 0; i < 2; i++) {
        T(epoll_wait(ep, e, all, 0));
        T(epoll_wait(ep, e, most + 1, 0));
        T(epoll_wait(ep, e, most, 0));
        T(epoll_pwait(ep, e, fewer, 0, NULL));
        order(10);
        await_in(fd, 10 + 10 * i);
    }
    tell(END);
    meet();
}

/* When a wait returns that there is something to read, a read finds bytes or the end of the stream.
 * This holds also while the connection leaves TCP or goes back to it. */
enum { BY_POLL, BY_SELECT, BY_LEVEL, BY_EDGE, BY_ONESHOT, BY_NESTED, BY_POLLED_SET, TOLD_WAYS,
       TOLD_JOINS = 3, TOLD_ROUNDS = 40 };

static size_t told_size(int round)
{
    return (size_t[]){1, 100, 3000, 20000}[round % 4];
}

/* Waits until the connection is readable. A set that is itself watched may be readable in vain. */
static int await_told(int way, int fd, int ep, int outer)
{
    struct epoll_event e;
    struct pollfd p = {.fd = way == BY_POLLED_SET ? ep : fd, .events = POLLIN};
    fd_set r;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    switch (way) {
    case BY_POLL:
        return poll(&p, 1, -1);
    case BY_SELECT:
        return select(fd + 1, &r, NULL, NULL, NULL);
    case BY_NESTED:
        do
            epoll_wait(outer, &e, 1, -1);
        while (epoll_wait(ep, &e, 1, 0) == 0);
        return 1;
    case BY_POLLED_SET:
        do
            poll(&p, 1, -1);
        while (epoll_wait(ep, &e, 1, 0) == 0);
        return 1;
    case BY_ONESHOT:
        ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 0);
    }
    return epoll_wait(ep, &e, 1, -1);
}

static void told_server(int fd)
{
    for (int way = 0; way < TOLD_WAYS; way++) {
        int vain = 0, whole = 0;
        for (int i = 0; i < TOLD_JOINS; i++) {
            fd = join();
            unsigned how = way == BY_EDGE ? EPOLLET : way == BY_ONESHOT ? EPOLLONESHOT : 0;
            int ep = set_of(fd, EPOLLIN | how), outer = set_of(ep, EPOLLIN);
            size_t got = 0, n = told_size(0);
            for (int round = 0;;) {
                if (await_told(way, fd, ep, outer) != 1) {
                    vain++;
                    continue;
                }
                long r = recv(fd, buf + got, n - got, MSG_DONTWAIT);
                if (r < 0 && errno == EAGAIN)
                    vain++;
                else if (r <= 0)
                    break;
                /* Bytes that follow may have been there at the edge, which tells no second time. */
                while (r > 0 && (got += r) < n)
                    r = recv(fd, buf + got, n - got, MSG_DONTWAIT);
                if (got == n) {
                    put(fd, round++, n);
                    whole++;
                    got = 0, n = told_size(round);
                }
            }
            close(fd), close(ep), close(outer);
        }
        say("way %d: %d whole, told in vain %d", way, whole, vain);
    }
}

static void told_client(int fd)
{
    for (int i = 0; i < TOLD_WAYS * TOLD_JOINS; i++) {
        size_t good = 0;
        fd = join();
        for (int round = 0; round < TOLD_ROUNDS; round++) {
            good += put(fd, round, told_size(round));
            good += get(fd, round, told_size(round));
        }
        shutdown(fd, SHUT_WR);
        say("good %zu, end %ld", good, (long)recv(fd, buf, 1, 0));
        close(fd);
    }
}

/* A reader that sleeps in epoll_wait is told first of the connection that was written to first,
 * whether that is older or newer than the others, and also beside a new one that is still on TCP.
 * The order need not hold from the start: the first event of a set may take a longer way. Between
 * hosts the order is not checked, as the events come by different devices. */
static void in_order_server(int fd)
{
    int younger = join();
    for (int i = 0; hear(); i++) {
        int cold = join_cold();
        meet();
        await_asleep(peer_pid);
        put(i % 2 ? fd : younger, i, APIECE), put(cold, i, APIECE),
            put(i % 2 ? younger : fd, i, APIECE);
        meet();
        close(cold);
    }
}

static void in_order_client(int fd)
{
    int ep = epoll_create1(0), younger = join(), in_a_row = 0;
    ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    ctl(ep, EPOLL_CTL_ADD, younger, EPOLLIN, 0);
    for (int i = 0; i < ORDERED && in_a_row < IN_A_ROW; i++) {
        struct epoll_event e[3];
        tell(1);
        int cold = join_cold();
        ctl(ep, EPOLL_CTL_ADD, cold, EPOLLIN, 2);
        meet();
        if (epoll_wait(ep, e, 3, -1) < 1)
            die("epoll_wait");
        in_a_row = hosts || e[0].data.u64 == (unsigned)i % 2 ? in_a_row + 1 : 0;
        get(fd, i, APIECE), get(younger, i, APIECE), get(cold, i, APIECE);
        meet();
        close(cold);
    }
    tell(0);
    say("%d in a row", in_a_row);
}

/* Of connections of one kind the reader is told in the order in which they were written to,
 * whatever their numbers are. */
enum { IN_TURN = 6 };

static int in_turn(int round, int i) { return (i * 5 + round) % IN_TURN; }

static void in_turn_server(int fd)
{
    int all[IN_TURN] = {fd};
    for (int i = 1; i < IN_TURN; i++)
        all[i] = join();
    for (int round = 0; hear(); round++) {
        await_asleep(peer_pid);
        for (int i = 0; i < IN_TURN; i++)
            put(all[in_turn(round, i)], round, APIECE);
        meet();
    }
}

static void in_turn_client(int fd)
{
    int ep = epoll_create1(0), all[IN_TURN] = {fd}, in_a_row = 0;
    for (int i = 0; i < IN_TURN; i++) {
        all[i] = i ? join() : fd;
        ctl(ep, EPOLL_CTL_ADD, all[i], EPOLLIN | EPOLLET, i);
    }
    while (epoll_wait(ep, &(struct epoll_event){0}, 1, 0) == 1)
        ;
    for (int round = 0; round < ORDERED && in_a_row < IN_A_ROW; round++) {
        struct epoll_event e[IN_TURN];
        int right = 1;
        tell(1);
        for (int told = 0, n; told < IN_TURN; told += n) {
            if ((n = epoll_wait(ep, e, IN_TURN - told, 2000)) < 1)
                die("epoll_wait");
            for (int i = 0; i < n; i++)
                right &= hosts || e[i].data.u64 == (unsigned)in_turn(round, told + i);
        }
        in_a_row = right ? in_a_row + 1 : 0;
        for (int i = 0; i < IN_TURN; i++)
            get(all[i], round, APIECE);
        meet();
    }
    tell(0);
    say("%d in a row", in_a_row);
}

/* A program writes to several connections at once, some of them still on TCP, and the reader is
 * told in that order. Bytes that left TCP do not overtake bytes written before on TCP, however few
 * events the reader asks for at a time. Between hosts the order is not checked: the devices
 * differ. */
enum { WORKS = 12, MS_AWAY = 10, MS_APART = 50 };
static const int at_once[][4] = {{2, 3, 0, 1}, {3, 2, 1, 0}}; /* 2 and 3 are new connections */

static void writes_at_once(int fd, int away)
{
    int younger = join();
    for (int i = 0; i < WORKS; i++) {
        int all[4] = {fd, younger, join_cold(), join_cold()};
        meet();
        usleep(MS_APART * 1000); /* until what the library asked for at accept is answered */
        for (int k = 0; k < 4; k++)
            put(all[at_once[i % 2][k]], i, 1);
        usleep(away * 1000);
        meet();
        meet();
        close(all[2]), close(all[3]);
    }
}

static void hears_in_order(int fd, int least)
{
    static const unsigned asked[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT};
    int younger = join();
    for (int i = 0; i < WORKS; i++) {
        struct epoll_event e[4];
        int places = least > 1 << i / 4 ? least : 1 << i / 4, right = 1, told = 0;
        int ep = epoll_create1(0), all[4] = {fd, younger, join_cold(), join_cold()};
        for (int k = 0; k < 4; k++)
            ctl(ep, EPOLL_CTL_ADD, all[k], asked[i % 3], k);
        while (epoll_wait(ep, e, 4, 0) > 0)
            ;
        meet();
        meet(); /* the reader works while the other end writes */
        for (int n; told < 4; told += n) {
            if ((n = epoll_wait(ep, e, places, 2000)) < 1)
                die("epoll_wait");
            for (int k = 0; k < n; k++) {
                right &= hosts || e[k].data.u64 == (unsigned)at_once[i % 2][told + k];
                get(all[e[k].data.u64], i, 1);
            }
        }
        say("%d at a time, mask %x: %s order", places, asked[i % 3], right ? "in" : "NOT IN");
        meet();
        close(ep), close(all[2]), close(all[3]);
    }
}

static void at_once_server(int fd)
{
    writes_at_once(fd, 0);
}

static void at_once_client(int fd)
{
    hears_in_order(fd, 4);
}

static void at_once_away_server(int fd)
{
    writes_at_once(fd, MS_AWAY);
}

static void at_once_away_client(int fd)
{
    hears_in_order(fd, 1);
}

/* A reader is stopped while it sleeps in epoll_wait. When it continues, it is told at once of all
 * that was written meanwhile, and in that order, on a connection that has left TCP and on one that
 * has not. Between hosts the order is not checked, as the events come by different devices. */
static void stopped_sleeper_server(int fd)
{
    for (int i = 0; i < 10; i++) {
        int cold = join_cold();
        meet();
        await_asleep(peer_pid);
        kill(peer_pid, SIGSTOP);
        await_state_of(peer_pid, 'T');
        put(cold, i, 1);
        usleep(MS_APART * 1000);
        put(fd, i, 1);
        kill(peer_pid, SIGCONT);
        meet();
        close(cold);
    }
}

static void stopped_sleeper_client(int fd)
{
    int ep = set_of(fd, EPOLLIN), both = 0;
    for (int i = 0; i < 10; i++) {
        struct epoll_event e[3];
        int cold = join_cold(), n;
        ctl(ep, EPOLL_CTL_ADD, cold, EPOLLIN, 1);
        meet();
        while ((n = epoll_wait(ep, e, 3, -1)) < 0)
            if (errno != EINTR)
                die("epoll_wait");
        /* The first event of a set may take a longer way. */
        both += i && (hosts || (n == 2 && e[0].data.u64 == 1));
        get(cold, i, 1), get(fd, i, 1);
        meet();
        close(cold);
    }
    say("%d times both, in order", both);
}

/* The program asks for EPOLLOUT only after a short write and after it was told of bytes since. */
static void modified_for_room_server(int fd)
{
    size_t total = hear();
    T(put(fd, 2, 1));
    usleep(10000);
    T(get(fd, 1, total) == total);
    meet();
}

static void modified_for_room_client(int fd)
{
    size_t total = 0;
    int ep = set_of(fd, EPOLLIN | EPOLLET);
    set_nonblock(fd, 1);
    for (ssize_t n; fill(buf, 1, total, 1 << 16), (n = write(fd, buf, 1 << 16)) > 0;)
        total += n;
    tell(total);
    say_wait(ep, -1);
    T(read(fd, buf, 1));
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT | EPOLLET, PATTERN));
    say_wait(ep, 5000);
    meet();
}

/* A program that works long on each event and asks for one at a time is told of every source: of a
 * connection that has left TCP and always has bytes, of one still on TCP, and of a pipe. */
enum { EVENTS = 150, GAP = 40 };

static void always_news_server(int fd)
{
    int cold = join_cold();
    meet();
    for (int i = 0; i < 3 * EVENTS; i++, usleep(1000)) {
        put(fd, i, 1);
        if (i % 5 == 0)
            put(cold, i, 1);
    }
    meet();
}

static void always_news_client(int fd)
{
    int cold = join_cold(), ep = epoll_create1(0), p[2], last[3] = {0}, gap[3] = {0};
    if (pipe(p))
        die("pipe");
    ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 0);
    ctl(ep, EPOLL_CTL_ADD, cold, EPOLLIN, 1);
    ctl(ep, EPOLL_CTL_ADD, p[0], EPOLLIN, 2);
    meet();
    for (int i = 0; i < EVENTS; i++) {
        struct epoll_event e;
        if (i % 5 == 0 && write(p[1], "x", 1) != 1)
            die("pipe");
        if (epoll_wait(ep, &e, 1, 5000) != 1)
            die("epoll_wait");
        int who = e.data.u64;
        if (i - last[who] > gap[who])
            gap[who] = i - last[who];
        last[who] = i;
        if (read((int[]){fd, cold, p[0]}[who], buf, who == 1 ? 1 : 100) < 1)
            die("read");
        usleep(2000);
    }
    for (int i = 0; i < 3; i++) {
        if (EVENTS - last[i] > gap[i])
            gap[i] = EVENTS - last[i];
        YES(gap[i] < GAP);
    }
    meet();
}

const struct body ready_bodies[] = {
    TWO("ready_modified_for_room", modified_for_room_server, modified_for_room_client),
    TWO("ready_disarmed", disarmed_server, disarmed_client, .flags = RAW),
    TWO("ready_reset_at_each_look", reset_at_each_look_server, reset_at_each_look_client,
        .flags = RAW),
    TWO("ready_armed_anew", obey, armed_anew_client),
    TWO("ready_lowered", obey, lowered_client),
    TWO("ready_at_a_look", looks_server, looks_client),
    TWO("ready_other_edge", obey, other_edge_client),
    TWO("ready_too_many", obey, too_many_client),
    TWO("ready_is_what_is_told", told_server, told_client, .flags = RAW, .limit = 60),
    TWO("ready_in_order", in_order_server, in_order_client, .flags = STEADY),
    TWO("ready_in_turn", in_turn_server, in_turn_client, .flags = STEADY),
    TWO("ready_at_once", at_once_server, at_once_client, .flags = STEADY),
    TWO("ready_at_once_after_work", at_once_away_server, at_once_away_client, .flags = STEADY),
    TWO("ready_when_continued", stopped_sleeper_server, stopped_sleeper_client),
    TWO("ready_amid_news", always_news_server, always_news_client, .flags = STEADY),
    {0},
};
