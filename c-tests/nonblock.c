/* O_NONBLOCK at any time; what happens when the peer does not read. */
#include "t.h"

static void toggle_server(int fd)
{
    for (int i = 0; i < 6; i++) {
        hear();
        await_asleep(peer_pid);
        T(put(fd, i, 100));
    }
    meet();
}

static void toggle_client(int fd)
{
    int other = dup(fd);
    for (int i = 0; i < 6; i++) {
        switch (i % 3) { /* the flag belongs to the open file, however it is set */
        case 0: T(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK)); break;
        case 1: T(ioctl(fd, FIONBIO, &(int){1})); break;
        case 2: T(fcntl(other, F_SETFL, O_NONBLOCK)); break;
        }
        YES(fcntl(fd, F_GETFL) & O_NONBLOCK);
        T(recv(fd, buf, 100, 0));
        T(read(other, buf, 100));
        switch (i % 3) {
        case 0: T(ioctl(other, FIONBIO, &(int){0})); break;
        case 1: T(fcntl(fd, F_SETFL, 0)); break;
        case 2: T(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK)); break;
        }
        YES(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
        tell(0);
        D(recv(fd, buf, 100, 0));
    }
    say("access %d", fcntl(fd, F_GETFL) & O_ACCMODE);
    meet();
}

/* The flag is set by another process, which inherited the socket, while this one uses it. */
static void toggle_child_server(int fd)
{
    pid_t pid = child();
    if (!pid) {
        set_nonblock(fd, 1);
        _exit(0);
    }
    reap(pid);
    T(recv(fd, buf, 1, 0));
    tell(0);
    T(get(fd, 1, 1000));
    meet();
}

static void toggle_child_client(int fd)
{
    hear();
    T(put(fd, 1, 1000));
    meet();
}

enum { MB3 = 3 << 20 };

/* TCP takes megabytes before a write blocks, and programs rely on it. */
static void one_thread(void)
{
    int end[2];
    pair(end);
    for (int i = 0; i < 3; i++) {
        T(put(end[i % 2], i, i == 2 ? 1 << 20 : MB3));
        T(get(end[!(i % 2)], i, i == 2 ? 1 << 20 : MB3));
    }
    T(put(end[0], 7, 1 << 20)); /* both ways at once */
    T(put(end[1], 8, 1 << 20));
    T(get(end[0], 8, 1 << 20));
    T(get(end[1], 7, 1 << 20));
}

static void two_ends(int fd)
{
    size_t some = hosts ? 100000 : MB3; /* loopback's buffers are large from the start */
    for (int i = 0; i < 2; i++) {
        T(put(fd, is_server, some)); /* both write first and read then */
        meet();
        T(get(fd, !is_server, some));
        meet();
    }
}

static void full_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        size_t total = hear();
        YES(get(fd, i, total) == total);
        meet();
    }
}

/* Written with O_NONBLOCK until EAGAIN, in small pieces, in large ones, and by writev. */
static void full_client(int fd)
{
    set_nonblock(fd, 1);
    for (int i = 0; i < 3; i++) {
        static const size_t piece[] = {4096, 1 << 20, 200000};
        size_t total = 0;
        ssize_t n;
        do {
            fill(buf, i, total, piece[i]);
            struct iovec v[2] = {{buf, 50000}, {buf + 50000, 150000}};
            n = i == 2 ? writev(fd, v, 2) : write(fd, buf, piece[i]);
            total += n > 0 ? n : 0;
        } while (n > 0);
        say("%zd %s", n, strerrorname_np(errno));
        YES(total > 50000);
        tell(total);
        meet();
        await(fd, POLLOUT);
    }
}

/* A blocked writer goes on when the reader begins to read. */
static void blocked_writer_server(int fd)
{
    hear();
    await_asleep(peer_pid);
    T(get(fd, 1, 24 << 20));
    T(put(fd, 2, 1));
}

static void blocked_writer_client(int fd)
{
    tell(0);
    T(put(fd, 1, 24 << 20));
    T(get(fd, 2, 1));
}

/* The reader takes a little, and pauses for long. The bytes must stay in order when the connection
 * has gone back to TCP. */
static void slow_reader_server(int fd)
{
    size_t good = 0;
    for (int i = 0; i < 100; i++) {
        good += get_at(fd, 1, good, 150000);
        if (i % 10 == 0) {
            hear();
            await_asleep(peer_pid); /* until the writer is full */
        }
    }
    say("%zu good", good);
    T(put(fd, 2, 1));
}

static void *allow(void *arg)
{
    (void)arg;
    for (int i = 0; i < 10; i++)
        tell(0);
    return NULL;
}

static void slow_reader_client(int fd)
{
    pthread_t t = start(allow, NULL);
    T(put(fd, 1, 15000000));
    T(shutdown(fd, SHUT_WR));
    finish(t);
    T(get(fd, 2, 1));
}

/* poll-driven, one thread, both ends, more than any buffer holds */
static void pump(void)
{
    int end[2];
    size_t sent[2] = {0}, got[2] = {0}, all = 12 << 20;
    pair(end);
    set_nonblock(end[0], 1);
    set_nonblock(end[1], 1);
    while (got[0] < all || got[1] < all) {
        struct pollfd p[2];
        for (int i = 0; i < 2; i++)
            p[i] = (struct pollfd){.fd = end[i], .events = (sent[i] < all ? POLLOUT : 0) | POLLIN};
        if (poll(p, 2, 5000) <= 0)
            die("poll");
        for (int i = 0; i < 2; i++) {
            if (p[i].revents & POLLOUT) {
                size_t n = all - sent[i] < 100000 ? all - sent[i] : 100000;
                fill(buf, i, sent[i], n);
                ssize_t w = write(end[i], buf, n);
                sent[i] += w > 0 ? w : 0;
            }
            if (p[i].revents & POLLIN) {
                ssize_t r = read(end[i], buf, 70000);
                static char expect[70000];
                fill(expect, !i, got[i], r > 0 ? r : 0);
                if (r <= 0 || memcmp(buf, expect, r))
                    die("pump");
                got[i] += r;
            }
        }
    }
    say("%zu and %zu bytes", got[0], got[1]);
}

static void *put_thread(void *arg)
{
    return (void *)put(*(int *)arg, 1, 12 << 20);
}

/* both ends in one process, two threads */
static void two_threads(void)
{
    int end[2];
    pair(end);
    pthread_t t = start(put_thread, &end[0]);
    T(get(end[1], 1, 12 << 20));
    T(finish(t));
    t = start(put_thread, &end[1]);
    T(get(end[0], 1, 12 << 20));
    T(finish(t));
}

const struct body nonblock_bodies[] = {
    TWO("nonblock_toggled", toggle_server, toggle_client),
    TWO("nonblock_by_child", toggle_child_server, toggle_child_client),
    ONE("one_thread_writes_first", one_thread),
    TWO("both_write_first", two_ends, two_ends),
    TWO("full_eagain", full_server, full_client),
    TWO("blocked_writer", blocked_writer_server, blocked_writer_client, .flags = NB, .limit = 20),
    TWO("slow_reader", slow_reader_server, slow_reader_client, .flags = NB, .limit = 20),
    ONE("pump_one_thread", pump),
    ONE("two_threads", two_threads, .flags = NB),
    {0},
};
