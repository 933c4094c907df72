/* Many bytes, checksummed: one way, both ways at once, in every size, by every kind of loop. */
#include "t.h"

static size_t amount;

static void *put_all(void *arg) { return (void *)put(*(int *)arg, is_server, amount); }

static void both_ways(int fd, size_t n)
{
    amount = n;
    for (int i = 0; i < 2; i++) {
        pthread_t t = start(put_all, &fd);
        T(get(fd, !is_server, n));
        T(finish(t));
        meet();
    }
}

static void both_64k(int fd) { both_ways(fd, 64 << 10); }
static void both_1m(int fd) { both_ways(fd, 1 << 20); }
static void both_16m(int fd) { both_ways(fd, 16 << 20); }

/* One way, then the other. */
static void one_way(int fd)
{
    for (int i = 0; i < 2; i++)
        if (is_server == i)
            T(put(fd, i, 16 << 20));
        else
            T(get(fd, i, 16 << 20));
    meet();
}

/* One large write against one large read, and against many small ones. */
static void huge_calls_server(int fd)
{
    fill(buf, 1, 0, sizeof buf);
    for (int i = 0; i < 3; i++) {
        T(send(fd, buf, sizeof buf, 0));
        hear();
    }
}

static void huge_calls_client(int fd)
{
    static const size_t piece[] = {8 << 20, 1000, 777777};
    for (int i = 0; i < 3; i++) {
        size_t have = 0;
        for (ssize_t n; have < sizeof buf; have += n)
            if ((n = recv(fd, buf + have,
                    sizeof buf - have < piece[i] ? sizeof buf - have : piece[i], 0)) <= 0)
                die("recv");
        say("%zu bytes, sum %08x", have, sum(buf, have));
        tell(0);
    }
}

/* Writes and reads of arbitrary, seeded sizes. */
static unsigned next_random(unsigned *state)
{
    return (*state = *state * 1664525 + 1013904223) >> 8;
}

static void *random_put(void *arg)
{
    unsigned state = is_server;
    size_t done = 0;
    while (done < amount) {
        unsigned r = next_random(&state);
        size_t n = r % 4 ? 1 + r % 300 : 1 + r % 150000;
        n = n < amount - done ? n : amount - done;
        if (put_at(*(int *)arg, is_server, done, n) != n)
            return NULL;
        done += n;
    }
    return (void *)done;
}

static void random_sizes(int fd)
{
    unsigned state = 7;
    size_t done = 0;
    amount = 6 << 20;
    pthread_t t = start(random_put, &fd);
    while (done < amount) {
        unsigned r = next_random(&state);
        size_t n = r % 3 ? 1 + r % 5000 : 1 + r % 200000;
        n = n < amount - done ? n : amount - done;
        if (get_at(fd, !is_server, done, n) != n)
            die("get");
        done += n;
    }
    say("%zu", done);
    T(finish(t));
}

/* One thread, both ways, by select, poll or epoll, with what is ready. */
static void loop(int fd, int kind)
{
    size_t sent = 0, got = 0, all = 5 << 20;
    static char expect[50000];
    int ep = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    set_nonblock(fd, 1);
    while (sent < all || got < all) {
        unsigned can = 0, want = POLLIN | (sent < all ? POLLOUT : 0);
        if (kind == 0) {
            fd_set r, w;
            FD_ZERO(&r);
            FD_ZERO(&w);
            FD_SET(fd, &r);
            if (want & POLLOUT)
                FD_SET(fd, &w);
            if (select(fd + 1, &r, &w, NULL, NULL) <= 0)
                die("select");
            can = (FD_ISSET(fd, &r) ? POLLIN : 0) | (FD_ISSET(fd, &w) ? POLLOUT : 0);
        } else if (kind == 1) {
            struct pollfd p = {fd, want, 0};
            if (poll(&p, 1, -1) != 1)
                die("poll");
            can = p.revents;
        } else {
            if (!(want & POLLOUT) && (e.events = EPOLLIN))
                epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e);
            if (epoll_wait(ep, &e, 1, -1) != 1)
                die("epoll_wait");
            can = e.events;
        }
        if (can & POLLOUT && sent < all) {
            size_t n = all - sent < 80000 ? all - sent : 80000;
            fill(buf, is_server, sent, n);
            ssize_t w = send(fd, buf, n, 0);
            if (w < 0 && errno != EAGAIN)
                die("send");
            sent += w > 0 ? w : 0;
        }
        if (can & POLLIN) {
            size_t n = all - got < sizeof expect ? all - got : sizeof expect;
            ssize_t r = recv(fd, buf, n, 0);
            fill(expect, !is_server, got, r > 0 ? r : 0);
            if (r == 0 || (r < 0 && errno != EAGAIN) || (r > 0 && memcmp(expect, buf, r)))
                die("recv");
            got += r > 0 ? r : 0;
        }
    }
    say("sent %zu got %zu", sent, got);
}

static void select_loop(int fd) { loop(fd, 0); }
static void poll_loop(int fd) { loop(fd, 1); }
static void epoll_loop(int fd) { loop(fd, 2); }

/* Every size of message around the powers of two, there and back. */
static void every_size(int fd)
{
    for (int bits = 0; bits <= 20; bits++)
        for (int d = -1; d <= 1; d++) {
            size_t n = (1 << bits) + d;
            if (is_server ? get(fd, bits, n) != n || put(fd, bits, n) != n
                : put(fd, bits, n) != n || get(fd, bits, n) != n)
                die("echo");
        }
    say("all came back");
}

const struct body bulk_bodies[] = {
    TWO("bulk_both_64k", both_64k, both_64k, .flags = NB),
    TWO("bulk_both_1m", both_1m, both_1m, .flags = NB),
    TWO("bulk_both_16m", both_16m, both_16m, .flags = NB, .limit = 20),
    TWO("bulk_one_way", one_way, one_way, .flags = NB, .limit = 20),
    TWO("bulk_huge_calls", huge_calls_server, huge_calls_client, .limit = 20),
    TWO("bulk_random_sizes", random_sizes, random_sizes, .flags = NB),
    TWO("bulk_select_loop", select_loop, select_loop),
    TWO("bulk_poll_loop", poll_loop, poll_loop),
    TWO("bulk_epoll_loop", epoll_loop, epoll_loop),
    TWO("bulk_every_size", every_size, every_size, .flags = NB),
    {0},
};
