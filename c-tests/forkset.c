/* An epoll set that a child inherits from its parent, or makes for the parent's connection: what
 * each of the two is told. */
#include "t.h"

/* The child only registers the connection, while a thread of the parent sleeps on it. */
static void *get_some(void *conn)
{
    busy = gettid();
    return (void *)(long)get(*(int *)conn, 2, 2800);
}

static void registers_server(int fd)
{
    int conn = join();
    pid_t pid = child_that_waits();
    if (!pid) {
        struct epoll_event e = {.events = EPOLLIN};
        int ep = epoll_create1(0);
        _exit(epoll_ctl(ep, EPOLL_CTL_ADD, conn, &e) ? 1 : epoll_wait(ep, &e, 1, 0) ? 2 : 0);
    }
    pthread_t t = start_busy(get_some, &conn);
    await_asleep(busy);
    let(pid);
    meet();
    say("the thread got %ld", (long)finish(t));
    echo_rounds(fd, 3, 1000);
}

static void registers_client(int fd)
{
    int conn = join();
    meet();
    T(put(conn, 2, 2800));
    echo_rounds(fd, 3, 1000);
}

/* A set of the parent tells the child of unread bytes, in one event with the room for writing. */
static void shows_server(int fd)
{
    meet();
    T(put(fd, 1, 100));
    meet();
    meet();
}

static void shows_client(int fd)
{
    struct epoll_event e;
    int ep = set_of(fd, EPOLLIN | EPOLLOUT);
    pid_t pid = child_that_waits();
    if (!pid)
        _exit(epoll_wait(ep, &e, 1, 0) != 1 ? 1 : e.events == (EPOLLIN | EPOLLOUT) ? 0 : 2);
    meet();
    meet();
    await_in(fd, 100);
    let(pid);
    T(get(fd, 1, 100));
    meet();
}

/* A thread sleeps in a set that a child has used, too. When the connection is registered, the
 * thread is told of all its events. */
static void *sleep_on(void *ep)
{
    struct epoll_event e = {0};
    busy = gettid();
    int n = epoll_wait(*(int *)ep, &e, 1, -1);
    return (void *)(long)(n == 1 ? (int)e.events : -1);
}

static void woken_server(int fd)
{
    T(put(fd, 1, 1));
    meet();
}

static void woken_client(int fd)
{
    int ep = epoll_create1(0);
    pid_t pid = child();
    if (!pid)
        _exit(epoll_ctl(ep, EPOLL_CTL_DEL, fd, 0) == -1 && errno == ENOENT ? 0 : 1);
    reap(pid);
    await_in(fd, 1);
    pthread_t t = start_busy(sleep_on, &ep);
    await_asleep(busy);
    T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLONESHOT, 1));
    say("told %s", mask_name((long)finish(t)));
    T(get(fd, 1, 1));
    meet();
}

/* A child modifies a registration, and it stays modified: for a grandchild that knows the set from
 * before and waits on it afterwards ... */
static void modified_server(int fd)
{
    meet();
    T(put(fd, 1, 1));
    meet();
}

/* A set that has an edge to tell of: the byte has come, and no wait has told of it. */
static int set_with_edge(int fd)
{
    int ep = epoll_create1(0);
    T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1));
    meet();
    await_in(fd, 1);
    return ep;
}

static int tells(int ep, uint64_t data)
{
    struct epoll_event e = {0};
    int n = epoll_wait(ep, &e, 1, 0);
    return n != 1 ? 10 : e.data.u64 != data ? 20 + (int)e.data.u64 : e.events != EPOLLIN ? 30 : 0;
}

static void modified_for_grandchild_client(int fd)
{
    int ep = set_with_edge(fd);
    pid_t pid = child();
    if (!pid) {
        pid_t waits = child_that_waits();
        if (!waits)
            _exit(tells(ep, 2));
        await_in(fd, 1);
        if (ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 2))
            _exit(1);
        let(waits);
        _exit(0);
    }
    reap(pid);
    T(get(fd, 1, 1));
    meet();
}

/* ... and for the parent. */
static void modified_for_parent_client(int fd)
{
    int ep = set_with_edge(fd);
    pid_t pid = child();
    if (!pid) {
        await_in(fd, 1);
        _exit(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 2) ? 1 : 0);
    }
    reap(pid);
    say("status %d", tells(ep, 2));
    say("status %d", tells(ep, 2));
    T(get(fd, 1, 1));
    meet();
}

/* An EPOLLONESHOT event that one process has been told of is not told to the other one. */
static void told_once_client(int fd)
{
    int ep = set_of(fd, EPOLLIN | EPOLLONESHOT);
    pid_t pid = child_that_waits();
    if (!pid)
        _exit(tells(ep, 0) != 10 ? 1 : tells(ep, 0) == 10 ? 0 : 2);
    meet();
    await_in(fd, 1);
    say("status %d", tells(ep, PATTERN));
    let(pid);
    T(get(fd, 1, 1));
    meet();
}

/* Nor is the parent told of an EPOLLONESHOT event that its child has been told of. */
static void told_child_once_client(int fd)
{
    int ep = set_of(fd, EPOLLRDHUP);
    pid_t pid = child_that_waits();
    if (!pid) {
        struct epoll_event e;
        _exit(epoll_wait(ep, &e, 1, 0) == 1 && e.events == EPOLLOUT ? 0 : 1);
    }
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLET | EPOLLONESHOT, PATTERN));
    let(pid);
    say("status %d", tells(ep, PATTERN));
    meet();
    T(get(fd, 1, 1));
    meet();
}

const struct body forkset_bodies[] = {
    TWO("fork_registers", registers_server, registers_client),
    TWO("fork_set_shows", shows_server, shows_client),
    TWO("fork_modifies_for_grandchild", modified_server, modified_for_grandchild_client),
    TWO("fork_modifies_for_parent", modified_server, modified_for_parent_client),
    TWO("fork_wakes_for_all_there_is", woken_server, woken_client),
    TWO("fork_told_once", modified_server, told_once_client),
    TWO("fork_told_child_once", modified_server, told_child_once_client),
    {0},
};
