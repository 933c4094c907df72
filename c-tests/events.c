/* Unusual event masks of an epoll set, and one connection in more sets than most programs have. */
#include "t.h"

static const unsigned asked[] = {
    EPOLLRDNORM, EPOLLRDNORM | EPOLLIN, EPOLLWRNORM, EPOLLRDBAND | EPOLLWRBAND | EPOLLMSG,
    EPOLLIN | EPOLLWAKEUP, EPOLLRDNORM | EPOLLRDBAND | EPOLLWAKEUP,
};

/* Level-triggered, edge-triggered, one-shot and exclusive. */
static void masks_client(int fd)
{
    for (size_t i = 0; i < COUNT(asked); i++) {
        int ep = set_of(fd, asked[i]), wakes = asked[i] & (EPOLLIN | EPOLLRDNORM);
        say("%s", mask_name(asked[i]));
        say_wait(ep, 0);
        order(100);
        await_in(fd, 100);
        say_wait(ep, wakes ? -1 : 20);
        say_wait(ep, 0);
        T(get(fd, 100, 40));
        say_wait(ep, 0);
        T(recv(fd, buf, 100, 0));
        say_wait(ep, 0);
        for (int k = 0; k < 3 && wakes; k++) {
            tell(WHEN_ASLEEP + 50);
            say_wait(ep, -1);
            hear();
            await_in(fd, 50);
            T(recv(fd, buf, 100, 0));
        }
        T(ctl(ep, EPOLL_CTL_MOD, fd, asked[i] | EPOLLET, 7));
        say_wait(ep, 0);
        say_wait(ep, 0);
        order(100);
        await_in(fd, 100);
        say_wait(ep, 20);
        say_wait(ep, 0);
        T(ctl(ep, EPOLL_CTL_MOD, fd, asked[i] | EPOLLONESHOT, 8));
        say_wait(ep, 20);
        say_wait(ep, 0);
        T(recv(fd, buf, 100, 0));
        T(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
        T(ctl(ep, EPOLL_CTL_ADD, fd, asked[i] | EPOLLEXCLUSIVE, 9));
        say_wait(ep, 0);
        close(ep);
    }
    tell(END);
    meet();
}

/* Sends an urgent byte, or ordinary ones; an order from WHEN_ASLEEP on waits until the client
 * sleeps. The answer comes when the client's kernel has acknowledged the bytes. */
static void urgent_server(int fd)
{
    for (long n; (n = hear()) != END; tell(0)) {
        int left = 1;
        if (n >= WHEN_ASLEEP)
            await_asleep(peer_pid);
        if (n % WHEN_ASLEEP)
            put(fd, n % WHEN_ASLEEP, n % WHEN_ASLEEP);
        else
            send(fd, "!", 1, MSG_OOB);
        while (ioctl(fd, SIOCOUTQ, &left) == 0 && left)
            usleep(1000);
    }
    meet();
}

static void urgent_client(int fd)
{
    int level = set_of(fd, EPOLLPRI), edge = set_of(fd, EPOLLPRI | EPOLLET),
        once = set_of(fd, EPOLLPRI | EPOLLONESHOT), both = set_of(fd, EPOLLIN | EPOLLPRI);
    int all[] = {level, edge, once, both};
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT(all); i++)
            say_wait(all[i], 0);
        order(0);
        for (size_t i = 0; i < 2 * COUNT(all); i++)
            say_wait(all[i / 2], 0);
        D(recv(fd, buf, 10, MSG_OOB));
        for (size_t i = 0; i < COUNT(all); i++)
            say_wait(all[i], 0);
        T(ctl(once, EPOLL_CTL_MOD, fd, EPOLLPRI | EPOLLONESHOT, round));
        say_wait(once, 0);
        tell(WHEN_ASLEEP);
        say_wait(level, -1);
        hear();
        D(recv(fd, buf, 10, MSG_OOB));
        for (size_t i = 0; i < COUNT(all); i++)
            say_wait(all[i], 0);
        order(10);
        await(fd, POLLIN); /* FIONREAD counts nothing at the urgent mark */
        for (size_t i = 0; i < COUNT(all); i++)
            say_wait(all[i], 0);
        T(recv(fd, buf, 100, 0));
    }
    tell(END);
    meet();
}

/* One connection in more sets than a link keeps in mind: each set is told. */
static int of_many[10];

static void *one_of_many(void *arg)
{
    struct epoll_event e = {0};
    busy = gettid();
    int n = epoll_wait(*(int *)arg, &e, 1, -1);
    return (void *)(long)(n == 1 && e.data.u64 == PATTERN && e.events == EPOLLIN);
}

static void use_many(int fd)
{
    long told = 0;
    pthread_t t[COUNT(of_many)];
    order(100);
    await_in(fd, 100);
    for (size_t i = 0; i < COUNT(of_many); i++)
        say_wait(of_many[i], -1);
    T(get(fd, 100, 100));
    for (size_t i = 0; i < COUNT(of_many); i++)
        say_wait(of_many[i], 0);
    for (size_t i = 0; i < COUNT(of_many); i++) {
        tell(WHEN_ASLEEP + 20);
        say_wait(of_many[i], -1);
        hear();
        await_in(fd, 20);
        T(recv(fd, buf, 100, 0));
    }
    for (size_t i = 0; i < COUNT(of_many); i++) {
        t[i] = start_busy(one_of_many, &of_many[i]);
        await_asleep(busy);
    }
    order(30);
    for (size_t i = 0; i < COUNT(of_many); i++)
        told += (long)finish(t[i]);
    say("%ld told", told);
    await_in(fd, 30);
    T(get(fd, 30, 30));
    for (size_t i = 0; i < COUNT(of_many) - 1; i++)
        close(of_many[i]);
    order(40);
    await_in(fd, 40);
    say_wait(of_many[COUNT(of_many) - 1], -1);
    T(get(fd, 40, 40));
    tell(END);
    meet();
}

static void many_sets_client(int fd)
{
    for (size_t i = 0; i < COUNT(of_many); i++) {
        of_many[i] = set_of(fd, EPOLLIN | (i % 2 ? EPOLLET : 0));
        if (i % 4 == 3) {
            order(10);
            await_in(fd, 10);
            for (size_t k = 0; k <= i; k++)
                say_wait(of_many[k], 0);
            T(get(fd, 10, 10));
        }
    }
    use_many(fd);
}

/* A connection that is in so many sets from the start never leaves TCP. */
static void stays_in_many_server(int fd)
{
    fd = join();
    obey(fd);
}

static void stays_in_many_client(int fd)
{
    fd = join_cold();
    for (size_t i = 0; i < COUNT(of_many); i++)
        of_many[i] = set_of(fd, EPOLLIN | (i % 2 ? EPOLLET : 0));
    warm(fd, 0);
    for (size_t i = 0; i < COUNT(of_many); i++)
        say_wait(of_many[i], 0);
    use_many(fd);
}

const struct body events_bodies[] = {
    TWO("epoll_masks", obey, masks_client),
    TWO("epoll_urgent", urgent_server, urgent_client),
    TWO("epoll_ten_sets", obey, many_sets_client),
    TWO("stays_in_ten_sets", stays_in_many_server, stays_in_many_client, .flags = RAW | NOUP),
    {0},
};
