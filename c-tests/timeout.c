/* Time limits of calls that wait. */
#include "t.h"

/* Prints what a call returned, and the time it took if that is less than `ms` or much more. */
#define TIMED(ms, call) do { \
        double began = now(), took; \
        T(call); \
        took = (now() - began) * 1000; \
        if (took < (ms) - 1 || took > (ms) + 3000) \
            say("that took %.0f ms, not %d", took, ms); \
    } while (0)

static void rcvtimeo_server(int fd)
{
    meet();
    T(put(fd, 1, 10));
    meet();
    T(put(fd, 2, 10));
}

static void rcvtimeo_client(int fd)
{
    struct timeval tv;
    timeout(fd, SO_RCVTIMEO, 150);
    TIMED(150, recv(fd, buf, 10, 0));
    TIMED(150, read(fd, buf, 10));
    TIMED(150, readv(fd, (&(struct iovec){buf, 10}), 1));
    TIMED(150, recv(fd, buf, 10, MSG_PEEK));
    TIMED(0, recv(fd, buf, 10, MSG_DONTWAIT));
    T(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, &(socklen_t){sizeof tv}));
    YES(tv.tv_sec == 0 && tv.tv_usec >= 150000 && tv.tv_usec < 161000);
    timeout(fd, SO_RCVTIMEO, 5000);
    meet();
    TIMED(0, recv(fd, buf, 10, 0));
    timeout(fd, SO_RCVTIMEO, 0);
    meet();
    T(recv(fd, buf, 10, 0));
}

/* Writes until the peer's side is full and the time limit ends the call, after `least` seconds or
 * more. Returns how many bytes went. */
static long send_until_refused(int fd, double least)
{
    long total = 0;
    double t;
    ssize_t n;
    do {
        fill(buf, 1, total, 1 << 20);
        t = now();
        n = send(fd, buf, 1 << 20, 0);
        total += n > 0 ? n : 0;
    } while (n > 0);
    t = now() - t;
    say("%zd %s", n, strerrorname_np(errno));
    YES(t > least && t < 5);
    return total;
}

/* The connections that a listener accepts inherit its time limits. */
static void listener_timeouts_server(int fd)
{
    int port, l = listen_any(&port);
    timeout(l, SO_RCVTIMEO, 200);
    timeout(l, SO_SNDTIMEO, 200);
    tell(port);
    fd = take(l);
    warm(fd, 1);
    TIMED(200, recv(fd, buf, 10, 0));
    TIMED(200, recv(fd, buf, 10, MSG_PEEK));
    tell(send_until_refused(fd, 0.19));
    meet();
}

static void listener_timeouts_client(int fd)
{
    fd = join();
    long total = hear();
    YES(get(fd, 1, total) == (size_t)total);
    meet();
}

/* A negative limit: the kernel does not wait at all, and says that the limit is zero. */
static void negative_timeout_server(int fd)
{
    meet();
    T(put(fd, 1, 10));
    meet();
    hear();
    await_asleep(peer_pid);
    T(put(fd, 2, 10));
    meet();
}

static void negative_timeout_client(int fd)
{
    struct timeval tv = {-1, 0};
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
    TIMED(0, recv(fd, buf, 10, 0));
    T(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, &(socklen_t){sizeof tv}));
    say("%ld %ld", tv.tv_sec, tv.tv_usec);
    TIMED(0, recv(fd, buf, 10, MSG_PEEK));
    meet();
    await_in(fd, 10);
    TIMED(0, recv(fd, buf, 20, MSG_WAITALL));
    meet();
    tv.tv_usec = -1;
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
    TIMED(0, recv(fd, buf, 10, 0));
    timeout(fd, SO_RCVTIMEO, 0);
    tell(0);
    D(recv(fd, buf, 10, 0));
    meet();
}

static void sndtimeo_server(int fd)
{
    long total = hear();
    T(get(fd, 1, total) == (size_t)total);
    tell(0);
    T(get(fd, 2, 1000));
}

static void sndtimeo_client(int fd)
{
    timeout(fd, SO_SNDTIMEO, 150);
    long total = send_until_refused(fd, 0.149);
    /* a real path has small segments, and small buffers at first */
    long some = hosts ? 100000 : 1000000;
    YES(total > some);
    tell(total);
    hear();
    T(put(fd, 2, 1000));
}

/* TCP takes more bytes than a ring does, however short the time limit is. */
static void short_sndtimeo_client(int fd)
{
    long total = 400000;
    timeout(fd, SO_SNDTIMEO, 10);
    fill(buf, 1, 0, total);
    T(send(fd, buf, total, 0));
    tell(total);
    hear();
    T(put(fd, 2, 1000));
}

/* The same if the reader takes a little of it meanwhile. */
static void little_read_server(int fd)
{
    long total = hear();
    await_asleep(peer_pid);
    T(get(fd, 1, 1000));
    hear();
    T(get_at(fd, 1, 1000, total - 1000) == (size_t)total - 1000);
    meet();
}

static void little_read_client(int fd)
{
    long total = 400000;
    timeout(fd, SO_SNDTIMEO, 30);
    fill(buf, 1, 0, total);
    tell(total);
    T(send(fd, buf, total, 0));
    tell(0);
    meet();
}

/* The options whose times have 64 bits on every platform, by their numbers
 * (asm-generic/socket.h). */
enum { RCVTIMEO_NEW = 66, SNDTIMEO_NEW = 67 };

static void new_numbers_server(int fd)
{
    long total = hear();
    T(get(fd, 1, total) == (size_t)total);
    meet();
    T(put(fd, 2, 10));
    meet();
}

static void new_numbers_client(int fd)
{
    struct { int64_t seconds, micros; } limit = {0, 150000}, told = {7, 7};
    struct timeval tv;
    T(setsockopt(fd, SOL_SOCKET, RCVTIMEO_NEW, &limit, sizeof limit));
    TIMED(150, recv(fd, buf, 10, 0));
    TIMED(150, recv(fd, buf, 10, MSG_PEEK));
    T(getsockopt(fd, SOL_SOCKET, RCVTIMEO_NEW, &told, &(socklen_t){sizeof told}));
    T(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, &(socklen_t){sizeof tv}));
    YES(told.seconds == 0 && told.micros >= 150000 && told.micros < 161000 && tv.tv_sec == 0 &&
        tv.tv_usec == told.micros);
    T(setsockopt(fd, SOL_SOCKET, SNDTIMEO_NEW, &limit, sizeof limit));
    T(setsockopt(fd, SOL_SOCKET, SNDTIMEO_NEW, &limit, 8));
    tell(send_until_refused(fd, 0.149));
    limit.seconds = -1;
    T(setsockopt(fd, SOL_SOCKET, RCVTIMEO_NEW, &limit, sizeof limit));
    TIMED(0, recv(fd, buf, 10, 0));
    limit.seconds = limit.micros = 0;
    T(setsockopt(fd, SOL_SOCKET, RCVTIMEO_NEW, &limit, sizeof limit));
    meet();
    D(recv(fd, buf, 10, 0));
    meet();
}

/* The kernel looks at the limit of recvmmsg after each message only, so that the limit ends no
 * wait. */
static void mmsg_timeout_server(int fd)
{
    T(put(fd, 1, 400));
    meet();
    hear();
    await_asleep(peer_pid);
    usleep(120000); /* the limit runs out */
    T(put(fd, 2, 200));
    meet();
}

static void mmsg_timeout_client(int fd)
{
    struct mmsghdr m[4] = {0};
    struct iovec v[4];
    struct timespec t = {0, 1};
    for (int i = 0; i < 4; i++) {
        v[i] = (struct iovec){buf + 100 * i, 100};
        m[i].msg_hdr = (struct msghdr){.msg_iov = v + i, .msg_iovlen = 1};
    }
    await_in(fd, 400);
    T(recvmmsg(fd, m, 4, 0, (&(struct timespec){-1, 0})));
    T(recvmmsg(fd, m, 4, 0, (&(struct timespec){0, 2000000000})));
    T(recvmmsg(fd, m, 4, 0, &t));
    say("left %ld %ld, sum %08x", t.tv_sec, t.tv_nsec, sum(buf, 100));
    t = (struct timespec){100, 0};
    T(recvmmsg(fd, m, 2, 0, &t));
    YES(t.tv_sec > 90 && t.tv_sec < 100);
    say("sum %08x", sum(buf, 200));
    t = (struct timespec){0, 0};
    T(recvmmsg(fd, m, 4, 0, &t));
    say("left %ld %ld, sum %08x", t.tv_sec, t.tv_nsec, sum(buf, 100));
    t = (struct timespec){100, 0};
    T(recvmmsg(fd, m, 4, MSG_DONTWAIT, &t));
    meet();
    t = (struct timespec){0, 50000000};
    tell(0);
    TIMED(100, recvmmsg(fd, m, 4, 0, &t));
    say("left %ld %ld, sum %08x", t.tv_sec, t.tv_nsec, sum(buf, 100));
    D(recv(fd, buf, 1000, MSG_DONTWAIT));
    meet();
}

/* A message that is cut short by its time limit has no name and no control data, like a whole
 * one. */
static void msg_timeout_server(int fd)
{
    T(put(fd, 1, 10));
    meet();
}

static void msg_timeout_client(int fd)
{
    struct sockaddr_storage name;
    char control[64];
    await_in(fd, 10);
    for (int flags = 0; flags <= MSG_TRUNC; flags += MSG_TRUNC) {
        struct iovec iov = {buf, 100};
        struct msghdr m = {&name, sizeof name, &iov, 1, control, sizeof control, -1};
        timeout(fd, SO_RCVTIMEO, 60);
        T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &(int){50}, sizeof(int)));
        iov.iov_len = flags ? 100 : 4;
        TIMED(flags ? 60 : 0, recvmsg(fd, &m, flags));
        say("%u %zu %x", m.msg_namelen, m.msg_controllen, m.msg_flags);
    }
    meet();
}

const struct body timeout_bodies[] = {
    TWO("rcvtimeo", rcvtimeo_server, rcvtimeo_client),
    TWO("listener_timeouts", listener_timeouts_server, listener_timeouts_client, .flags = RAW),
    TWO("negative_rcvtimeo", negative_timeout_server, negative_timeout_client),
    TWO("sndtimeo", sndtimeo_server, sndtimeo_client),
    TWO("sndtimeo_short", sndtimeo_server, short_sndtimeo_client, .flags = ONEHOST),
    TWO("sndtimeo_little_read", little_read_server, little_read_client, .flags = ONEHOST),
    TWO("timeouts_by_new_numbers", new_numbers_server, new_numbers_client),
    TWO("mmsg_timeout", mmsg_timeout_server, mmsg_timeout_client),
    TWO("msg_timeout", msg_timeout_server, msg_timeout_client),
    {0},
};
