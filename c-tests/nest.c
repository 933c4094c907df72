/* Epoll sets in epoll sets. */
#include "t.h"

/* A set may be readable although none of its connections is ready. A wait on the set finds nothing,
 * and then the set is not readable any more. */
static void in_vain(int set)
{
    struct epoll_event e;
    YES(epoll_wait(set, &e, 1, 0) == 0);
}

/* A set in a set in a set, and a set in poll and select. */
static void nested_client(int fd)
{
    int inner = set_of(fd, EPOLLIN), middle = set_of(inner, EPOLLIN),
        outer = set_of(middle, EPOLLIN), edge = set_of(inner, EPOLLIN | EPOLLET);
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
        /* between hosts anything that the device tells may be an edge: docs/limitations.md */
        if (!hosts)
            say_wait(edge, 0);
        say_wait(inner, 0);
        T(poll(&p, 1, -1));
        T(recv(fd, buf, 100, 0));
        in_vain(inner);
        say_wait(outer, 0);
        say_wait(inner, 0);
        tell(WHEN_ASLEEP + 20);
        T(poll(&p, 1, -1));
        hear();
        await_in(fd, 20);
        T(recv(fd, buf, 100, 0));
        in_vain(inner);
        T(poll(&p, 1, 0));
        tell(WHEN_ASLEEP + 30);
        FD_ZERO(&r);
        FD_SET(inner, &r);
        T(select(inner + 1, &r, NULL, NULL, NULL));
        hear();
        await_in(fd, 30);
        T(recv(fd, buf, 100, 0));
        in_vain(inner);
    }
    tell(END);
    meet();
}

/* The number of a closed inner set goes to a duplicate of the outer set itself. */
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

const struct body nest_bodies[] = {
    TWO("epoll_nested", obey, nested_client),
    ONE("epoll_nested_number", nested_number),
    {0},
};
