/* Threads that are cancelled while they wait. */
#include "t.h"

static void *recv_thread(void *arg)
{
    tell(gettid());
    return (void *)recv(*(int *)arg, buf, 100, 0);
}

static void cancel_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        pthread_t t = start(recv_thread, &fd);
        hear();
        pthread_cancel(t);
        say("%s", finish(t) == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        tell(0);
        T(get(fd, i, 5000));
        T(put(fd, i, 5000));
    }
}

static void cancel_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        await_asleep(hear());
        tell(0);
        hear();
        T(put(fd, i, 5000));
        T(get(fd, i, 5000));
    }
}

/* A thread is cancelled while it waits for an accelerated connection; another then uses connection and set. */
static int cancelled_set;

static void *epoll_thread(void *arg)
{
    struct epoll_event e[4];
    (void)arg;
    tell(gettid());
    return (void *)(long)epoll_wait(cancelled_set, e, 4, -1);
}

static void *poll_thread(void *arg)
{
    struct pollfd p[2] = {{.fd = *(int *)arg, .events = POLLIN}, {.fd = -1}};
    tell(gettid());
    return (void *)(long)poll(p, 2, -1);
}

static void *select_thread(void *arg)
{
    int fd = *(int *)arg;
    struct timeval t = {1000, 0};
    fd_set r;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    tell(gettid());
    return (void *)(long)select(fd + 1, &r, NULL, NULL, &t);
}

static void *wait_for_data(void *arg)
{
    struct epoll_event e[4];
    (void)arg;
    tell(gettid());
    return (void *)(long)epoll_wait(cancelled_set, e, 4, 10000);
}

static void cancel_waits(int fd, void *(*wait)(void *))
{
    for (int i = 0; i < 3; i++) {
        pthread_t t = start(wait, &fd), other = 0;
        hear();
        if (i == 2) { /* beside one that sleeps on */
            other = start(wait_for_data, NULL);
            hear();
        }
        pthread_cancel(t);
        say("%s", finish(t) == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        tell(0);
        if (other)
            say("the other one: %ld", (long)finish(other));
        else
            say("events %d", epoll_wait(cancelled_set, &(struct epoll_event){0}, 1, 10000));
        struct pollfd p = {.fd = fd, .events = POLLIN};
        T(poll(&p, 1, 10000));
        T(get(fd, i, 5000));
        T(poll(&p, 1, 0));
        T(epoll_wait(cancelled_set, &(struct epoll_event){0}, 1, 0));
        T(put(fd, i, 5000));
    }
}

static void cancel_waits_server(int fd)
{
    cancelled_set = epoll_create1(0);
    T(epoll_ctl(cancelled_set, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}));
    cancel_waits(fd, epoll_thread);
    cancel_waits(fd, poll_thread);
    cancel_waits(fd, select_thread);
    meet();
}

static void cancel_waits_client(int fd)
{
    for (int i = 0; i < 9; i++) {
        await_asleep(hear());
        tell(0);
        if (i % 3 == 2) {
            await_asleep(hear());
            tell(0);
        }
        hear();
        T(put(fd, i % 3, 5000));
        T(get(fd, i % 3, 5000));
    }
    meet();
}

const struct body cancel_bodies[] = {
    TWO("cancel_in_recv", cancel_server, cancel_client),
    TWO("cancel_in_waits", cancel_waits_server, cancel_waits_client),
    {0},
};
