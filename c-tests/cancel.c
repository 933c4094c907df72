/* Threads that are cancelled while they wait. */
#include "t.h"

static size_t asked_for;

static void *recv_thread(void *arg)
{
    tell(gettid());
    return (void *)recv(*(int *)arg, buf, asked_for, 0);
}

static void cancel_recv_of(int fd, size_t len)
{
    asked_for = len;
    pthread_t t = start(recv_thread, &fd);
    hear();
    pthread_cancel(t);
    say("%s", finish(t) == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
}

static void cancel_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        cancel_recv_of(fd, 100);
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

/* A thread that asked for one byte is cancelled, and the next recv asks for more. */
static void cancel_byte_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        cancel_recv_of(fd, 1);
        tell(gettid());
        D(recv(fd, buf, 1000, 0));
    }
}

static void cancel_byte_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        await_asleep(hear());
        tell(0);
        await_asleep(hear());
        T(send(fd, buf, 1000, 0));
    }
}

/* A thread is cancelled while it waits for an accelerated connection; another thread then uses the
 * connection and the set. */
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
        if (i == 2) { /* beside a thread that sleeps on */
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

/* sendfile is no cancellation point: it returns how many bytes it has sent, and they arrive. */
enum { MOST = 24 << 20 };
static volatile ssize_t file_sent = -1;

static void *sendfile_thread(void *arg)
{
    int *fd = arg;
    busy = gettid();
    file_sent = sendfile(fd[0], fd[1], NULL, MOST);
    pthread_testcancel();
    return NULL;
}

static void cancel_sendfile_server(int fd)
{
    int fds[2] = {fd, temp_file(1, MOST)};
    pthread_t t = start_busy(sendfile_thread, fds);
    await_asleep(busy);
    pthread_cancel(t);
    tell(0);
    say("%s", finish(t) == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
    YES(file_sent > 0);
    T(lseek(fds[1], 0, SEEK_CUR) == file_sent);
    YES(put_at(fd, 1, file_sent, MOST - file_sent) == (size_t)(MOST - file_sent));
    T(get(fd, 2, 5000));
    T(put(fd, 3, 5000));
}

static void cancel_sendfile_client(int fd)
{
    hear();
    T(get(fd, 1, MOST));
    T(put(fd, 2, 5000));
    T(get(fd, 3, 5000));
}

/* A peek that waits: for the first byte, or with MSG_WAITALL for more bytes than there are. */
static int peek_flags;

static void *peek_thread(void *arg)
{
    busy = gettid();
    return (void *)recv(*(int *)arg, buf, 10000, peek_flags);
}

static void cancel_peek_server(int fd)
{
    for (int i = 0; i < 4; i++) {
        size_t there = i % 2 ? 1000 : 0;
        peek_flags = MSG_PEEK | (i % 2 ? MSG_WAITALL : 0);
        meet();
        await_in(fd, there);
        pthread_t t = start_busy(peek_thread, &fd);
        await_asleep(busy);
        pthread_cancel(t);
        tell(0);
        say("%s", finish(t) == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        T(get(fd, i, 10000));
        T(put(fd, i, 5000));
    }
}

static void cancel_peek_client(int fd)
{
    for (int i = 0; i < 4; i++) {
        size_t there = i % 2 ? 1000 : 0;
        put(fd, i, there);
        meet();
        hear();
        T(put_at(fd, i, there, 10000 - there) > 0);
        T(get(fd, i, 5000));
    }
}

/* A thread that has disabled cancellation sleeps on, and is cancelled after it has enabled it
 * again. */
static void *disabled_thread(void *arg)
{
    int fd = *(int *)arg;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    busy = gettid();
    for (size_t n = 0; n < 5000;) {
        ssize_t got = recv(fd, buf + n, 5000 - n, 0);
        if (got <= 0)
            return NULL;
        n += got;
    }
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    recv(fd, buf, 1, 0); /* takes no byte, though there may be some */
    return NULL;
}

/* A thread with asynchronous cancellation is cancelled in its sleep. */
static void *any_time_thread(void *arg)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    busy = gettid();
    recv(*(int *)arg, buf, 1, 0);
    return NULL;
}

static void cancel_state_server(int fd)
{
    for (int i = 0; i < 5; i++) {
        pthread_t t = start_busy(disabled_thread, &fd);
        await_asleep(busy);
        pthread_cancel(t);
        await_asleep(busy);
        tell(0);
        say("%s", finish(t) == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        tell(0);
        T(get(fd, 1, 5000));
        T(put(fd, 2, 5000));
        t = start_busy(any_time_thread, &fd);
        await_asleep(busy);
        pthread_cancel(t);
        say("%s", finish(t) == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        tell(0);
        T(get(fd, 3, 5000));
        T(put(fd, 4, 5000));
    }
}

static void cancel_state_client(int fd)
{
    for (int i = 0; i < 5; i++) {
        hear();
        put(fd, 0, 5000);
        hear();
        put(fd, 1, 5000);
        T(get(fd, 2, 5000));
        hear();
        put(fd, 3, 5000);
        T(get(fd, 4, 5000));
    }
}

const struct body cancel_bodies[] = {
    TWO("cancel_in_recv", cancel_server, cancel_client),
    TWO("cancel_in_recv_of_less", cancel_byte_server, cancel_byte_client),
    TWO("cancel_in_waits", cancel_waits_server, cancel_waits_client),
    TWO("cancel_in_sendfile", cancel_sendfile_server, cancel_sendfile_client, .limit = 20),
    TWO("cancel_in_peek", cancel_peek_server, cancel_peek_client),
    TWO("cancel_state", cancel_state_server, cancel_state_client),
    {0},
};
