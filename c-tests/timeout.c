/* Time limits of calls that wait. */
#include "t.h"

/* Prints what a call returned, and that it took at least this long, and not much longer. */
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

/* Writes until the peer's side is full and the time for it is over, `least` seconds or more; how much that was. */
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

/* What a listener was told holds for what it accepts. */
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

/* Below zero: the kernel does not wait at all, and says it is zero. */
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
    long some = hosts ? 100000 : 1000000; /* a real path's segments are small, and its buffers begin so */
    YES(total > some);
    tell(total);
    hear();
    T(put(fd, 2, 1000));
}

const struct body timeout_bodies[] = {
    TWO("rcvtimeo", rcvtimeo_server, rcvtimeo_client),
    TWO("listener_timeouts", listener_timeouts_server, listener_timeouts_client, .flags = RAW),
    TWO("negative_rcvtimeo", negative_timeout_server, negative_timeout_client),
    TWO("sndtimeo", sndtimeo_server, sndtimeo_client),
    {0},
};
