/* Sets in sets. */
#include "t.h"

/* A set in a set in a set, and a set in poll and select. */
static void nested_client(int fd)
{
    int inner = set_of(fd, EPOLLIN), middle = set_of(inner, EPOLLIN), outer = set_of(middle, EPOLLIN), edge = set_of(inner, EPOLLIN | EPOLLET);
    struct pollfd p = {.fd = middle, .events = POLLIN};
    fd_set r;
    say_wait(outer, 0);
    T(poll(&p, 1, 0));
    for (int i = 0; i < 2; i++) {
        tell(WHEN_ASLEEP + 10);
        say_wait(outer, -1);
        hear();
        await_in(fd, 10);
        say_wait(middle, 0);
        say_wait(edge, 0);
        if (!hosts) /* there a device's telling of anything else may be an edge: docs/limitations.md */
            say_wait(edge, 0);
        say_wait(inner, 0);
        T(poll(&p, 1, -1));
        T(recv(fd, buf, 100, 0));
        say_wait(outer, 0);
        say_wait(inner, 0);
        tell(WHEN_ASLEEP + 20);
        T(poll(&p, 1, -1));
        hear();
        await_in(fd, 20);
        T(recv(fd, buf, 100, 0));
        T(poll(&p, 1, 0));
        tell(WHEN_ASLEEP + 30);
        FD_ZERO(&r);
        FD_SET(inner, &r);
        T(select(inner + 1, &r, NULL, NULL, NULL));
        hear();
        await_in(fd, 30);
        T(recv(fd, buf, 100, 0));
    }
    tell(END);
    meet();
}

/* The number of a set in a set is another's, in the end that of the outer one itself. */
static void nested_number(void)
{
    int outer = epoll_create1(0), inner = epoll_create1(0), ready = eventfd(1, 0);
    struct pollfd p = {.fd = outer, .events = POLLIN};
    int end[2];
    pair(end);
    T(ctl(inner, EPOLL_CTL_ADD, end[0], EPOLLIN, 3));
    T(ctl(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 1));
    T(poll(&p, 1, 0));
    T(close(inner));
    YES(dup(outer) == inner);
    T(ctl(outer, EPOLL_CTL_ADD, ready, EPOLLIN, 2));
    T(poll(&p, 1, 0));
    say_wait(outer, 0);
}

/* The number under which a set was put into another goes, and the set stays, by a duplicate: who has the number then changes
 * nothing of what is told of it. */
static int who_takes(int kind, int outer, int fd)
{
    switch (kind) {
    case 1: return dup(outer);
    case 2: return epoll_create1(0);
    case 3: return set_of(fd, EPOLLIN);
    case 4: return dup(fd);
    default: return eventfd(1, 0);
    }
}

static void renumbered_client(int fd)
{
    static const unsigned asked[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT};
    for (unsigned i = 0; i < COUNT(asked); i++)
        for (int kind = 0; kind < 6; kind++) {
            int inner = set_of(fd, EPOLLIN), outer = epoll_create1(0), stays = dup(inner);
            T(ctl(outer, EPOLL_CTL_ADD, inner, asked[i], 1));
            int takes = kind ? who_takes(kind, outer, fd) : -1;
            T(close(inner));
            say("mask %x, %d has it", asked[i], kind);
            if (kind) {
                YES(dup2(takes, inner) == inner);
                close(takes);
            }
            T(ctl(outer, EPOLL_CTL_MOD, inner, EPOLLIN, 2));
            say_wait(outer, 0);
            tell(WHEN_ASLEEP + 10);
            say_wait(outer, -1);
            hear();
            await_in(fd, 10);
            if (!hosts || !(asked[i] & EPOLLET)) /* there a device's telling of anything else may be an edge: docs/limitations.md */
                say_wait(outer, 0);
            T(recv(fd, buf, 100, 0));
            say_wait(outer, 0);
            if (kind == 3) {
                /* Both of them, under the same number. */
                T(ctl(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 3));
                order(10);
                await_in(fd, 10);
                say_wait(outer, 0);
                T(ctl(outer, EPOLL_CTL_DEL, inner, 0, 0));
                T(get(fd, 10, 10));
                order(20);
                await_in(fd, 20);
                say_wait(outer, 0);
                T(get(fd, 20, 20));
                say_wait(outer, 0);
            }
            if (kind)
                T(close(inner));
            T(close(stays));
            say_wait(outer, 0);
            T(close(outer));
        }
    tell(END);
    meet();
}

const struct body nest_bodies[] = {
    TWO("epoll_nested", obey, nested_client),
    ONE("epoll_nested_number", nested_number),
    TWO("epoll_nested_renumbered", obey, renumbered_client),
    {0},
};
