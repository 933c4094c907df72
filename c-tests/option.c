/* ioctl, fcntl, socket options, TCP_INFO: what they answer, and what they do. */
#include "t.h"
#include <linux/filter.h>
#include <linux/net_tstamp.h>

static int get_int(int fd, int level, int name)
{
    int v = -77;
    socklen_t len = sizeof v;
    return getsockopt(fd, level, name, &v, &len) ? -errno : v;
}

static int set_int(int fd, int level, int name, int v) { return setsockopt(fd, level, name, &v, sizeof v); }

static void say_queued(int fd)
{
    int n = -1, m = -1;
    T(ioctl(fd, FIONREAD, &n));
    ioctl(fd, SIOCINQ, &m);
    say("queued %d %d", n, m);
}

static void fionread_server(int fd)
{
    meet();
    T(put(fd, 1, 3000));
    meet();
    hear();
    T(put(fd, 2, 70000));
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void fionread_client(int fd)
{
    say_queued(fd);
    meet();
    meet();
    await_in(fd, 3000);
    say_queued(fd);
    D(recv(fd, buf, 1000, MSG_PEEK));
    say_queued(fd);
    D(recv(fd, buf, 1000, 0));
    say_queued(fd);
    D(recv(fd, buf, 2000, 0));
    say_queued(fd);
    tell(0);
    await_in(fd, 70000);
    await(fd, POLLRDHUP);
    say_queued(fd);
    T(get(fd, 2, 60000));
    say_queued(fd);
    T(get(fd, 2, 10000));
    T(recv(fd, buf, 1, 0));
    say_queued(fd);
    meet();
}

static int unsent(int fd)
{
    int n = -1;
    for (int i = 0; ioctl(fd, SIOCOUTQ, &n) == 0 && n > 0 && i < 5000; i++)
        usleep(1000);
    return n;
}

static void outq_server(int fd)
{
    say("%d", unsent(fd));
    T(put(fd, 1, 20000));
    say("%d", unsent(fd)); /* all of it is with the peer, read or not */
    meet();
    meet();
    say("%d", unsent(fd));
    set_nonblock(fd, 1);
    int n = 0, waiting;
    while (write(fd, buf, 100000) > 0)
        ;
    T(ioctl(fd, SIOCOUTQ, &waiting));
    T(ioctl(fd, TIOCOUTQ, &n));
    YES(waiting > 0 && n > 0);
    T(ioctl(fd, SIOCOUTQNSD, &n));
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void outq_client(int fd)
{
    meet();
    T(get(fd, 1, 20000));
    meet();
    meet();
    while (read(fd, buf, sizeof buf) > 0)
        ;
}

static void so_error_server(int fd)
{
    linger(fd, 1, 0);
    meet();
    T(close(fd));
    meet();
}

static void so_error_client(int fd)
{
    say("%d", get_int(fd, SOL_SOCKET, SO_ERROR));
    meet();
    meet();
    await(fd, POLLERR | POLLHUP);
    say("%s", strerrorname_np(get_int(fd, SOL_SOCKET, SO_ERROR)));
    say("%d", get_int(fd, SOL_SOCKET, SO_ERROR));
    say("ready %s", mask_name(ready(fd)));
    T(recv(fd, buf, 10, 0));
    T(send(fd, buf, 10, MSG_NOSIGNAL));
}

static void names(int fd)
{
    struct sockaddr_storage a[4] = {0}, other;
    socklen_t len[4];
    for (int i = 0; i < 4; i++) {
        len[i] = sizeof a[i];
        if (i % 2 ? getpeername(fd, (void *)&a[i], &len[i]) : getsockname(fd, (void *)&a[i], &len[i]))
            die("name");
        if (i == 1)
            echo_rounds(fd, 100, 3000);
    }
    say("family %d length %d", a[0].ss_family, len[0]);
    YES(!memcmp(&a[0], &a[2], sizeof a[0]) && !memcmp(&a[1], &a[3], sizeof a[1]));
    far_end(&other, ntohs(((struct sockaddr_in *)&a[1])->sin_port));
    YES(!memcmp(&other, &a[1], len[1]));
    len[0] = 4; /* too short a buffer is filled, and the true length told */
    memset(&other, 7, sizeof other);
    T(getpeername(fd, (void *)&other, &len[0]));
    say("length %d next byte %d", len[0], ((char *)&other)[4]);
}

static void tcp_info_server(int fd)
{
    await_state(fd, TCP_ESTABLISHED);
    echo_rounds(fd, 50, 2000);
    await_state(fd, TCP_ESTABLISHED);
    T(shutdown(fd, SHUT_WR));
    await_state(fd, TCP_FIN_WAIT2);
    meet();
    T(drain(fd, 1));
    meet();
}

static void tcp_info_client(int fd)
{
    echo_rounds(fd, 50, 2000);
    await_state(fd, TCP_CLOSE_WAIT);
    T(put(fd, 1, 1000));
    meet();
    await_state(fd, TCP_CLOSE_WAIT);
    T(shutdown(fd, SHUT_WR));
    await_state(fd, TCP_CLOSE);
    meet();
}

static const struct { int level, name, value; const char *text; } options[] = {
#define OPTION(level, name, value) {level, name, value, #name}
    OPTION(IPPROTO_TCP, TCP_NODELAY, 0), OPTION(IPPROTO_TCP, TCP_NODELAY, 1), OPTION(IPPROTO_TCP, TCP_QUICKACK, 0),
    OPTION(IPPROTO_TCP, TCP_KEEPIDLE, 50), OPTION(IPPROTO_TCP, TCP_KEEPINTVL, 7), OPTION(IPPROTO_TCP, TCP_KEEPCNT, 3),
    OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT, 12345), OPTION(IPPROTO_TCP, TCP_LINGER2, 9), OPTION(IPPROTO_TCP, TCP_SYNCNT, 3),
    OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT, 0), OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 70000), OPTION(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1),
    OPTION(SOL_SOCKET, SO_KEEPALIVE, 1), OPTION(SOL_SOCKET, SO_KEEPALIVE, 0), OPTION(SOL_SOCKET, SO_REUSEADDR, 1), OPTION(SOL_SOCKET, SO_OOBINLINE, 1),
    OPTION(SOL_SOCKET, SO_PRIORITY, 3), OPTION(SOL_SOCKET, SO_RCVLOWAT, 1), OPTION(SOL_SOCKET, SO_SNDBUF, 100000),
    OPTION(SOL_SOCKET, SO_RCVBUF, 100000), OPTION(SOL_SOCKET, SO_DONTROUTE, 1), OPTION(SOL_SOCKET, SO_BROADCAST, 1), OPTION(SOL_SOCKET, SO_MARK, 0),
    OPTION(SOL_SOCKET, SO_BUSY_POLL, 20), OPTION(SOL_SOCKET, SO_INCOMING_CPU, 1), OPTION(SOL_SOCKET, SO_TIMESTAMP, 1), OPTION(SOL_SOCKET, SO_TIMESTAMP, 0),
    OPTION(IPPROTO_IP, IP_TOS, 16), OPTION(IPPROTO_IP, IP_TTL, 33), OPTION(IPPROTO_IP, IP_RECVTOS, 1), OPTION(SOL_SOCKET, 9999, 1), OPTION(IPPROTO_TCP, 9999, 1), OPTION(9999, 1, 1),
};

/* The kernel changes these by itself at any moment: a delayed acknowledgement becomes due (tcp(7)), a packet comes. */
static int is_kernels(int level, int name)
{
    return (level == IPPROTO_TCP && name == TCP_QUICKACK) || (level == SOL_SOCKET && name == SO_INCOMING_CPU);
}

/* Set and read back on a live connection, which works all the same in between. */
static void options_kept(int fd)
{
    for (size_t i = 0; i < COUNT(options); i++) {
        int r = set_int(fd, options[i].level, options[i].name, options[i].value), e = errno;
        int back = is_kernels(options[i].level, options[i].name) ? 0 : get_int(fd, options[i].level, options[i].name);
        say("%s: set %s, then %d", options[i].text, r ? strerrorname_np(e) : "ok", back);
        if (i % 4 == 0)
            echo_rounds(fd, 3, 2000);
    }
    echo_rounds(fd, 10, 2000);
}

static void options_read(int fd)
{
    char cc[16] = "";
    socklen_t len = sizeof cc;
    say("%d %d %d %d", get_int(fd, SOL_SOCKET, SO_TYPE), get_int(fd, SOL_SOCKET, SO_PROTOCOL), get_int(fd, SOL_SOCKET, SO_DOMAIN), get_int(fd, SOL_SOCKET, SO_ACCEPTCONN));
    say("nodelay %d cork %d keepalive %d rcvlowat %d", get_int(fd, IPPROTO_TCP, TCP_NODELAY), get_int(fd, IPPROTO_TCP, TCP_CORK),
        get_int(fd, SOL_SOCKET, SO_KEEPALIVE), get_int(fd, SOL_SOCKET, SO_RCVLOWAT));
    say("idle %d linger2 %d maxseg known %d", get_int(fd, IPPROTO_TCP, TCP_KEEPIDLE), get_int(fd, IPPROTO_TCP, TCP_LINGER2), get_int(fd, IPPROTO_TCP, TCP_MAXSEG) > 500);
    T(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, &len));
    say("%s", cc);
    T(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, "x", 1));
    T(getsockopt(fd, SOL_SOCKET, SO_TYPE, cc, NULL));
    len = 1;
    T(getsockopt(fd, SOL_SOCKET, SO_TYPE, cc, &len));
    say("length %d", len);
    struct linger l;
    len = sizeof l;
    T(getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &len));
    say("linger %d %d", l.l_onoff, l.l_linger);
    T(ioctl(fd, 0x5401)); /* TCGETS: not a terminal */
    T(ioctl(fd, FIOCLEX));
    say("cloexec %d", fcntl(fd, F_GETFD));
    T(ioctl(fd, FIONCLEX));
    say("cloexec %d", fcntl(fd, F_GETFD));
    T(isatty(fd));
    struct stat st;
    T(fstat(fd, &st));
    YES(S_ISSOCK(st.st_mode));
    char path[40], link[40] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    YES(readlink(path, link, sizeof link - 1) > 0 && !strncmp(link, "socket:[", 8) && strtoul(link + 8, NULL, 10) == st.st_ino);
    T(fcntl(fd, F_GETPIPE_SZ));
    T(listen(fd, 5));
    T(accept(fd, NULL, NULL));
    struct sockaddr_storage a;
    T(bind(fd, (void *)&a, loopback(&a, 1, 1)));
    T(connect(fd, (void *)&a, loopback(&a, 1, 1)));
    echo_rounds(fd, 10, 100);
}

static void lowat_server(int fd)
{
    meet();
    T(put(fd, 1, 400));
    meet();
    hear();
    T(put_at(fd, 1, 400, 100));
    meet();
    hear();
    await_asleep(peer_pid);
    put(fd, 2, 200);
    await_asleep(peer_pid); /* 200 of 500 do not wake it */
    put_at(fd, 2, 200, 300);
    meet();
    T(put(fd, 3, 300));
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void lowat_client(int fd)
{
    T(set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 500));
    meet();
    meet();
    await_in(fd, 400);
    say("ready %s, %d", mask_name(ready(fd)), get_int(fd, SOL_SOCKET, SO_RCVLOWAT));
    tell(0);
    await(fd, POLLIN);
    T(set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 500));
    say("%d", get_int(fd, SOL_SOCKET, SO_RCVLOWAT));
    D(recv(fd, buf, 1000, 0));
    meet();
    tell(0);
    D(recv(fd, buf, 1000, 0));
    meet();
    await(fd, POLLRDHUP);
    D(recv(fd, buf, 1000, 0));
    T(recv(fd, buf, 1000, 0));
    T(set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 0));
    say("%d", get_int(fd, SOL_SOCKET, SO_RCVLOWAT));
    meet();
}

static void listener_lowat_server(int fd)
{
    int port, l = listen_any(&port);
    T(set_int(l, SOL_SOCKET, SO_RCVLOWAT, 4));
    tell(port);
    fd = take(l);
    warm(fd, 1);
    meet();
    await_in(fd, 1);
    say("ready %s", mask_name(ready(fd)));
    tell(0);
    await(fd, POLLIN);
    D(recv(fd, buf, 10, 0));
    /* The kernel makes it as much as its buffer may ever hold. */
    T(set_int(fd, SOL_SOCKET, SO_RCVLOWAT, -1));
    YES(get_int(fd, SOL_SOCKET, SO_RCVLOWAT) > 10000);
    tell(0);
    await_in(fd, 100);
    say("ready %s", mask_name(ready(fd)));
    D(recv(fd, buf, 1000, MSG_DONTWAIT));
    meet();
}

static void listener_lowat_client(int fd)
{
    fd = join();
    T(put(fd, 1, 1));
    meet();
    hear();
    T(put_at(fd, 1, 1, 4));
    hear();
    T(put(fd, 2, 100));
    meet();
}

static void small_buffers(int fd)
{
    mss = 1400;
    fd = join_cold();
    T(set_int(fd, SOL_SOCKET, SO_SNDBUF, 16384));
    T(set_int(fd, SOL_SOCKET, SO_RCVBUF, 16384));
    say("%d %d", get_int(fd, SOL_SOCKET, SO_SNDBUF), get_int(fd, SOL_SOCKET, SO_RCVBUF));
    warm(fd, is_server);
    echo_rounds(fd, 20, 1000);
    for (int i = 0; i < 2; i++)
        if (is_server == i)
            T(put(fd, i, 300000));
        else
            T(get(fd, i, 300000));
    T(set_int(fd, SOL_SOCKET, SO_SNDBUF, 1 << 20));
    T(set_int(fd, SOL_SOCKET, SO_RCVBUF, 1 << 20));
    meet();
    for (int i = 0; i < 2; i++)
        if (is_server == i)
            T(put(fd, i, 3000000));
        else
            T(get(fd, i, 3000000));
}

/* The sizes change while the connection is in use. */
static void resized(int fd)
{
    static const int size[] = {50000, 400000, 20000, 2 << 20};
    mss = 1400;
    fd = join();
    for (int i = 0; i < 4; i++) {
        T(set_int(fd, SOL_SOCKET, is_server ? SO_SNDBUF : SO_RCVBUF, size[i]));
        meet();
        if (is_server)
            T(put(fd, i, 1 << 20));
        else
            T(get(fd, i, 1 << 20));
        echo_rounds(fd, 5, 3000);
    }
}

static void nodelay_toggled(int fd)
{
    for (int i = 0; i < 6; i++) {
        T(set_int(fd, IPPROTO_TCP, TCP_NODELAY, i % 2));
        T(set_int(fd, IPPROTO_TCP, TCP_QUICKACK, i % 3 == 0));
        echo_rounds(fd, 10, 10 + 100 * i);
    }
}

/* O_ASYNC: a signal when something can be read. */
static void sigio_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        hear();
        T(put(fd, i, 100));
    }
    meet();
}

static void sigio_client(int fd)
{
    sigset_t s;
    siginfo_t info;
    sigemptyset(&s);
    sigaddset(&s, SIGIO);
    sigaddset(&s, SIGRTMIN + 1);
    T(sigprocmask(SIG_BLOCK, &s, NULL));
    T(fcntl(fd, F_SETOWN, getpid()));
    T(fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK));
    YES(fcntl(fd, F_GETFL) & O_ASYNC);
    YES(fcntl(fd, F_GETOWN) == getpid());
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            T(fcntl(fd, F_SETSIG, SIGRTMIN + 1));
        tell(0);
        int sig = sigtimedwait(&s, &info, &(struct timespec){5, 0});
        YES(sig == (i == 2 ? SIGRTMIN + 1 : SIGIO));
        await_in(fd, 100);
        while (sigtimedwait(&s, &info, &(struct timespec){0, 0}) > 0)
            ;
        D(recv(fd, buf, 1000, 0));
        while (sigtimedwait(&s, &info, &(struct timespec){0, 0}) > 0)
            ;
    }
    meet();
}

static void sigio_other_server(int fd)
{
    fd = join();
    hear();
    T(put(fd, 1, 100));
    meet();
}

/* By other ways than F_SETFL on a connection. */
static void sigio_other_client(int fd, int early)
{
    sigset_t s;
    struct sockaddr_storage a;
    int on = 1, port = hear();
    sigemptyset(&s);
    sigaddset(&s, SIGIO);
    T(sigprocmask(SIG_BLOCK, &s, NULL));
    socklen_t len = loopback(&a, port, 0);
    fd = socket(a.ss_family, SOCK_STREAM, 0);
    if (early) {
        T(fcntl(fd, F_SETFL, O_ASYNC));
        T(fcntl(fd, F_SETOWN, getpid()));
    }
    T(connect(fd, (void *)&a, len));
    warm(fd, 0);
    if (!early) {
        T(fcntl(fd, F_SETOWN, getpid()));
        T(ioctl(fd, FIOASYNC, &on));
    }
    YES(fcntl(fd, F_GETFL) & O_ASYNC);
    while (sigtimedwait(&s, NULL, &(struct timespec){0, 0}) > 0)
        ;
    tell(0);
    YES(sigtimedwait(&s, NULL, &(struct timespec){5, 0}) == SIGIO);
    D(recv(fd, buf, 100, MSG_WAITALL));
    meet();
}

static void fioasync_client(int fd) { sigio_other_client(fd, 0); }
static void sigio_early_client(int fd) { sigio_other_client(fd, 1); }

/* What recvmsg tells besides bytes. The kernel begins to stamp what arrives a moment after it was asked to. */
static void ancillary_server(int fd)
{
    T(put(fd, 1, 3000));
    for (int i = 0; hear(); i++)
        put(fd, i, 100);
}

static void ancillary_client(int fd)
{
    char control[200];
    struct msghdr m = {.msg_iov = &(struct iovec){buf, 1000}, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    await_in(fd, 3000);
    T(set_int(fd, IPPROTO_TCP, TCP_INQ, 1));
    await_in(fd, 3000);
    D(recvmsg(fd, &m, 0));
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    say("inq %d", c && c->cmsg_level == IPPROTO_TCP && c->cmsg_type == TCP_CM_INQ ? *(int *)CMSG_DATA(c) : -1);
    T(set_int(fd, IPPROTO_TCP, TCP_INQ, 0));
    D(recv(fd, buf, 2000, MSG_WAITALL));
    for (int k = 0; k < 2; k++) {
        int option = k ? SO_TIMESTAMPNS : SO_TIMESTAMP, seen = 0;
        T(set_int(fd, SOL_SOCKET, option, 1));
        for (int i = 0; i < 1000 && !seen; i++) {
            tell(1);
            await_in(fd, 100);
            m.msg_controllen = sizeof control;
            recvmsg(fd, &m, 0);
            c = CMSG_FIRSTHDR(&m);
            seen = c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == option;
        }
        YES(seen);
        T(set_int(fd, SOL_SOCKET, option, 0));
    }
    tell(0);
}

/* Reads of another kind, of bytes that are there already. */
static void read_otherwise_server(int fd)
{
    T(put(fd, 1, 3000));
    meet();
    meet();
    T(put(fd, 2, 500));
    meet();
}

static void peek_off_client(int fd)
{
    meet();
    await_in(fd, 3000);
    T(set_int(fd, SOL_SOCKET, SO_PEEK_OFF, 0));
    await_in(fd, 3000);
    D(recv(fd, buf, 1000, MSG_PEEK));
    D(recv(fd, buf, 1000, MSG_PEEK));
    D(recv(fd, buf, 500, 0));
    D(recv(fd, buf, 1000, MSG_PEEK));
    D(recv(fd, buf, 2500, MSG_WAITALL));
    meet();
    await_in(fd, 500);
    D(recv(fd, buf, 100, MSG_PEEK));
    D(recv(fd, buf, 500, MSG_WAITALL));
    meet();
}

static void zerocopy_receive_client(int fd)
{
    struct { uint64_t address; uint32_t length, hint; } z = {0};
    meet();
    await_in(fd, 3000);
    T(getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &z, &(socklen_t){sizeof z}));
    say("length %u hint %u", z.length, z.hint);
    D(recv(fd, buf, 3000, MSG_WAITALL));
    meet();
    await_in(fd, 500);
    T(getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &z, &(socklen_t){sizeof z}));
    say("length %u hint %u", z.length, z.hint);
    D(recv(fd, buf, 500, MSG_WAITALL));
    meet();
}

/* Options a link cannot honour: such connections stay on TCP for good. */
static void pinned(int fd, int (*pin)(int))
{
    T(pin(fd = join_cold()));
    warm(fd, is_server);
    echo_rounds(fd, 20, 3000);
}

static int pin_zerocopy(int fd) { return set_int(fd, SOL_SOCKET, SO_ZEROCOPY, 1); }
static int pin_timestamping(int fd) { return set_int(fd, SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE); }
static int pin_pacing(int fd) { return set_int(fd, SOL_SOCKET, SO_MAX_PACING_RATE, 100 << 20); }
static int pin_filter(int fd)
{
    struct sock_filter all = {BPF_RET | BPF_K, 0, 0, 0xffffffff};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &(struct sock_fprog){1, &all}, sizeof(struct sock_fprog));
}

/* Some are told of what a listener has accepted, too. */
static void stay_inherited(int fd)
{
    if (is_server) {
        int port, l = listen_any(&port);
        T(pin_zerocopy(l));
        tell(port);
        fd = take(l);
        say("zerocopy %d", get_int(fd, SOL_SOCKET, SO_ZEROCOPY));
    } else {
        fd = join_cold();
    }
    warm(fd, is_server);
    echo_rounds(fd, 20, 3000);
}

static void stay_zerocopy(int fd) { pinned(fd, pin_zerocopy); }
static void stay_timestamping(int fd) { pinned(fd, pin_timestamping); }
static void stay_pacing(int fd) { pinned(fd, pin_pacing); }
static void stay_filter(int fd) { pinned(fd, pin_filter); }

/* The same set on a connection that is accelerated already: the bytes stay whole. */
static void pin_late(int fd)
{
    T(pin_filter(fd));
    echo_rounds(fd, 20, 3000);
    T(pin_pacing(fd));
    echo_rounds(fd, 20, 3000);
    T(pin_timestamping(fd));
    echo_rounds(fd, 20, 3000);
}

static void zerocopy_server(int fd)
{
    char control[200];
    struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
    T(pin_zerocopy(fd));
    fill(buf, 1, 0, 200000);
    T(send(fd, buf, 200000, MSG_ZEROCOPY));
    await(fd, POLLERR);
    T(recvmsg(fd, &m, MSG_ERRQUEUE));
    say("flags %x, control %d", m.msg_flags, CMSG_FIRSTHDR(&m) != NULL);
    meet();
}

static void zerocopy_client(int fd)
{
    T(get(fd, 1, 200000));
    meet();
}

const struct body option_bodies[] = {
    TWO("fionread", fionread_server, fionread_client),
    TWO("siocoutq", outq_server, outq_client),
    TWO("so_error", so_error_server, so_error_client),
    TWO("names", names, names),
    TWO("tcp_info_state", tcp_info_server, tcp_info_client),
    TWO("options_kept", options_kept, options_kept),
    TWO("options_read", options_read, options_read),
    TWO("rcvlowat", lowat_server, lowat_client),
    TWO("listener_rcvlowat", listener_lowat_server, listener_lowat_client, .flags = RAW),
    TWO("small_buffers", small_buffers, small_buffers, .flags = RAW),
    TWO("buffers_resized", resized, resized, .flags = RAW | NB),
    TWO("nodelay_toggled", nodelay_toggled, nodelay_toggled, .flags = NB),
    TWO("sigio", sigio_server, sigio_client),
    TWO("sigio_by_ioctl", sigio_other_server, fioasync_client, .flags = RAW),
    TWO("ancillary_data", ancillary_server, ancillary_client),
    TWO("peek_off", read_otherwise_server, peek_off_client),
    TWO("zerocopy_receive", read_otherwise_server, zerocopy_receive_client),
    TWO("stays_signal_driven", sigio_other_server, sigio_early_client, .flags = RAW | NOUP),
    TWO("stays_zerocopy", stay_zerocopy, stay_zerocopy, .flags = RAW | NOUP),
    TWO("stays_inherited", stay_inherited, stay_inherited, .flags = RAW | NOUP),
    TWO("stays_timestamping", stay_timestamping, stay_timestamping, .flags = RAW | NOUP),
    TWO("stays_pacing", stay_pacing, stay_pacing, .flags = RAW | NOUP),
    TWO("stays_filter", stay_filter, stay_filter, .flags = RAW | NOUP),
    TWO("pinned_late", pin_late, pin_late),
    TWO("msg_zerocopy", zerocopy_server, zerocopy_client),
    {0},
};
