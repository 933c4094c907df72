/* A thread closes a socket under another thread's call, and a new connection has the number before
 * that call wakes up: no byte of the one connection may go to the other. */
#include "t.h"

enum { ROUNDS = 6, SOME = 100, PART = 50, STEPS = 30 };

static int number;

/* The other side has dialled; the new connection gets the number that was closed. */
static int replace(int fd, int listener)
{
    close(fd);
    int new = take(listener);
    close(listener);
    return new;
}

/* The same by dup2. The number is free at no moment, so that a poll that is woken never finds it
 * closed. */
static int overwrite(int fd, int listener)
{
    int new = take(listener);
    close(listener);
    if (dup2(new, fd) != fd)
        die("dup2");
    close(new);
    return fd;
}

static int listen_and_tell(void)
{
    int port, listener = listen_any(&port);
    tell(port);
    hear();
    return listener;
}

static int dial_as_told(void)
{
    int fd = dial(hear());
    tell(0);
    return fd;
}

/* Waits until the thread sleeps, and sees to it that the thread gets the CPU only when this one
 * sleeps. */
static void await_and_outrun(int late)
{
    await_asleep(busy);
    usleep(late ? 80000 : 0); /* some waits of the library end by themselves */
    background_last();
}

static volatile int over;

static void *sender(void *arg)
{
    busy = gettid();
    long n = send(number, buf, (size_t)arg, MSG_NOSIGNAL);
    while (!over)
        usleep(1000);
    return (void *)n;
}

static long finish_sender(pthread_t t)
{
    over = 1;
    long n = (long)finish(t);
    over = 0;
    return n < 0 ? 0 : n;
}

static void send_server(int fd)
{
    int good = 0;
    fill(buf, 1, 0, sizeof buf);
    for (int i = 0; i < ROUNDS; i++) {
        int listener = listen_and_tell();
        number = fd;
        pthread_t t = start_busy(sender, (void *)sizeof buf);
        await_and_outrun(i % 2);
        shutdown(fd, SHUT_RDWR);
        fd = replace(fd, listener);
        long n = finish_sender(t);
        good += n < (long)sizeof buf;
        tell(n);
        good += put(fd, 2, SOME) == SOME;
        good += get(fd, 3, SOME) == SOME;
        warm(fd, 1);
    }
    say("good %d", good);
}

static void send_client(int fd)
{
    int good = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int new = dial_as_told();
        long n = hear();
        good += drain(fd, 1) == (size_t)n;
        close(fd);
        good += get(new, 2, SOME) == SOME;
        good += put(new, 3, SOME) == SOME;
        warm(fd = new, 0);
    }
    say("good %d", good);
}

/* The same for a call that has mostly sent nothing yet: TCP finds some more room now and then. */
static void full_server(int fd)
{
    int good = 0;
    fill(buf, 1, 0, sizeof buf);
    for (int i = 0; i < ROUNDS; i++) {
        int listener = listen_and_tell();
        size_t n = 0;
        for (long r; (r = send(fd, buf + n, SOME, MSG_DONTWAIT)) > 0;)
            n += r;
        number = fd;
        memmove(buf, buf + n, SOME);
        pthread_t t = start_busy(sender, (void *)SOME);
        await_and_outrun(i % 2);
        shutdown(fd, SHUT_RDWR);
        fd = replace(fd, listener);
        n += finish_sender(t);
        fill(buf, 1, 0, SOME);
        tell(n);
        good += put(fd, 2, SOME) == SOME;
        good += get(fd, 3, SOME) == SOME;
        warm(fd, 1);
    }
    say("good %d", good);
}

static char received[2 * SOME];

static void *receiver(void *arg)
{
    busy = gettid();
    return (void *)recv(number, received, sizeof received, (long)arg);
}

/* Waits until n bytes have been received. The other side's word that it has sent them may come
 * before them. */
static void await_received(size_t n)
{
    fill(buf, 1, 0, n);
    while (memcmp(received, buf, n))
        usleep(1000);
}

/* In this body the new connection's bytes are there before it is accepted. */
static void recv_server(int fd)
{
    int good = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int listener = listen_and_tell();
        number = fd;
        memset(received, 0, sizeof received);
        pthread_t t = start_busy(receiver, (void *)(long)(i % 2 ? MSG_WAITALL : 0));
        await_asleep(busy);
        tell(0);
        hear();
        await_received(i % 2 ? PART : 0);
        await_and_outrun(0);
        shutdown(fd, SHUT_RDWR);
        fd = replace(fd, listener);
        good += (long)finish(t) == (i % 2 ? PART : 0);
        good += get(fd, 3, SOME) == SOME;
        good += put(fd, 2, SOME) == SOME;
        warm(fd, 1);
    }
    say("good %d", good);
}

static void recv_client(int fd)
{
    int good = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int new = dial_as_told();
        good += put(new, 3, SOME) == SOME;
        hear();
        if (i % 2)
            put(fd, 1, PART);
        tell(0);
        good += drain(fd, 2) == 0;
        close(fd);
        good += get(new, 2, SOME) == SOME;
        warm(fd = new, 0);
    }
    say("good %d", good);
}

static int polls;

/* Waits for a byte or the end, and takes it. A poll that is woken asks for the number again: if
 * that is another socket by then, only the time limit ends the poll. */
static void *taker(void *arg)
{
    int fd = *(int *)arg;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char c = 0;
    busy = gettid();
    if (polls && poll(&p, 1, arg == &number ? 200 : -1) == 0)
        return NULL;
    return (void *)(recv(fd, &c, 1, 0) + c);
}

/* A call that sleeps in the kernel outlives its socket. A later call on the new connection is
 * woken, over TCP as over a link. */
static void outlived_server(int fd)
{
    close(fd);
    for (int i = 0; i < ROUNDS; i++) {
        polls = i % 2;
        int old = take_one(), listener = listen_and_tell();
        number = old;
        pthread_t t = start_busy(taker, &number);
        await_asleep(busy);
        fd = overwrite(old, listener);
        tell(0);
        say("of the closed one: %ld", (long)finish(t));
        t = start_busy(taker, &fd);
        await_asleep(busy);
        size_t n = 0;
        for (int k = 0; k < STEPS; k++) {
            n += put(fd, k, 1000);
            hear();
            usleep(1000);
        }
        tell(0);
        say("of the new one: %ld, sent %zu", (long)finish(t), n);
        T(get(fd, 5, SOME));
        close(fd);
    }
}

static void outlived_client(int fd)
{
    close(fd);
    for (int i = 0; i < ROUNDS; i++) {
        int old = dial(hear()), new = dial_as_told();
        size_t n = 0;
        hear();
        close(old);
        for (int k = 0; k < STEPS; k++) {
            n += get(new, k, 1000);
            tell(0);
        }
        hear();
        put(new, 4, 1);
        put(new, 5, SOME);
        T(n);
        T(drain(new, 6));
        close(new);
    }
}

const struct body reuse_bodies[] = {
    TWO("reused_in_send", send_server, send_client, .limit = 20),
    TWO("reused_in_send_of_nothing", full_server, send_client, .limit = 20),
    TWO("reused_in_recv", recv_server, recv_client, .limit = 20),
    TWO("reused_in_the_kernel", outlived_server, outlived_client, .limit = 20),
    {0},
};
