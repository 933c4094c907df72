/* Socket options, TCP_INFO, names: what they answer, and what they do. */
#include "t.h"

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
    await_reset(fd);
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
        if (i % 2 ? getpeername(fd, (void *)&a[i], &len[i])
                  : getsockname(fd, (void *)&a[i], &len[i]))
            die("name");
        if (i == 1)
            echo_rounds(fd, 100, 3000);
    }
    say("family %d length %d", a[0].ss_family, len[0]);
    YES(!memcmp(&a[0], &a[2], sizeof a[0]) && !memcmp(&a[1], &a[3], sizeof a[1]));
    far_end(&other, ntohs(((struct sockaddr_in *)&a[1])->sin_port));
    YES(!memcmp(&other, &a[1], len[1]));
    len[0] = 4; /* a buffer that is too short is filled, and the true length is returned */
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

struct option { int level, name, value; const char *text; };
#define OPTION(level, name, value) {level, name, value, #name}
enum { ASK = -5 }; /* in place of a value: the option is only asked for, and not printed */

static const struct option options[] = {
    OPTION(IPPROTO_TCP, TCP_NODELAY, 0), OPTION(IPPROTO_TCP, TCP_NODELAY, 1),
    OPTION(IPPROTO_TCP, TCP_QUICKACK, 0), OPTION(IPPROTO_TCP, TCP_KEEPIDLE, 50),
    OPTION(IPPROTO_TCP, TCP_KEEPINTVL, 7), OPTION(IPPROTO_TCP, TCP_KEEPCNT, 3),
    OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT, 12345), OPTION(IPPROTO_TCP, TCP_LINGER2, 9),
    OPTION(IPPROTO_TCP, TCP_SYNCNT, 3), OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT, 0),
    OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 70000), OPTION(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1),
    OPTION(SOL_SOCKET, SO_KEEPALIVE, 1), OPTION(SOL_SOCKET, SO_KEEPALIVE, 0),
    OPTION(SOL_SOCKET, SO_REUSEADDR, 1), OPTION(SOL_SOCKET, SO_OOBINLINE, 1),
    OPTION(SOL_SOCKET, SO_PRIORITY, 3), OPTION(SOL_SOCKET, SO_RCVLOWAT, 1),
    OPTION(SOL_SOCKET, SO_SNDLOWAT, 5), OPTION(SOL_SOCKET, SO_SNDBUF, 100000),
    OPTION(SOL_SOCKET, SO_RCVBUF, 100000), OPTION(SOL_SOCKET, SO_DONTROUTE, 1),
    OPTION(SOL_SOCKET, SO_BROADCAST, 1), OPTION(SOL_SOCKET, SO_MARK, 0),
    OPTION(SOL_SOCKET, SO_BUSY_POLL, 20), OPTION(SOL_SOCKET, SO_INCOMING_CPU, 1),
    OPTION(IPPROTO_IP, IP_TOS, 16), OPTION(IPPROTO_IP, IP_TTL, 33),
    OPTION(IPPROTO_IP, IP_RECVTOS, 1), OPTION(SOL_SOCKET, 9999, 1), OPTION(IPPROTO_TCP, 9999, 1),
    OPTION(9999, 1, 1),
    /* With these two a connection leaves its link. */
    OPTION(SOL_SOCKET, SO_TIMESTAMP, 1), OPTION(SOL_SOCKET, SO_TIMESTAMP, 0),
};

/* These options concern packets, the kernel's own work, or a filter that was never attached. */
static const struct option rare_options[] = {
    /* IP_MTU is the route's. SO_CNX_ADVICE makes the kernel look for another route with the next
     * packet. */
    OPTION(IPPROTO_IP, IP_MTU, ASK),
    OPTION(SOL_SOCKET, SO_DEBUG, 1), OPTION(SOL_SOCKET, SO_BINDTOIFINDEX, 0),
    OPTION(SOL_SOCKET, SO_PREFER_BUSY_POLL, 1), OPTION(SOL_SOCKET, SO_BUSY_POLL_BUDGET, 16),
    OPTION(SOL_SOCKET, SO_RESERVE_MEM, 65536), OPTION(SOL_SOCKET, SO_BUF_LOCK, 3),
    OPTION(SOL_SOCKET, SO_TXREHASH, 1), OPTION(SOL_SOCKET, SO_SELECT_ERR_QUEUE, 1),
    OPTION(SOL_SOCKET, SO_CNX_ADVICE, 1), OPTION(SOL_SOCKET, SO_DETACH_FILTER, 0),
    OPTION(SOL_SOCKET, SO_LOCK_FILTER, 1), OPTION(SOL_SOCKET, SO_DETACH_FILTER, 0),
    OPTION(SOL_SOCKET, SO_INCOMING_NAPI_ID, ASK), OPTION(SOL_SOCKET, SO_REUSEPORT, 1),
    OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP, 100000), OPTION(IPPROTO_TCP, TCP_THIN_DUPACK, 1),
    OPTION(IPPROTO_TCP, TCP_SAVE_SYN, 1), OPTION(IPPROTO_TCP, TCP_TIMESTAMP, 5),
    OPTION(IPPROTO_TCP, TCP_TX_DELAY, 0), OPTION(IPPROTO_TCP, TCP_FASTOPEN, 5),
    OPTION(IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 1), OPTION(IPPROTO_TCP, TCP_IS_MPTCP, ASK),
    OPTION(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO), OPTION(IPPROTO_IP, IP_MINTTL, 1),
    OPTION(IPPROTO_IP, IP_TRANSPARENT, 1), OPTION(IPPROTO_IP, IP_FREEBIND, 1),
    OPTION(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1), OPTION(IPPROTO_IP, IP_LOCAL_PORT_RANGE, 0),
    OPTION(IPPROTO_IP, IP_RECVERR, 1), OPTION(IPPROTO_IPV6, IPV6_V6ONLY, 1),
    OPTION(IPPROTO_IPV6, IPV6_UNICAST_HOPS, 33), OPTION(IPPROTO_IPV6, IPV6_TCLASS, 16),
    OPTION(IPPROTO_IPV6, IPV6_RECVERR, 1),
};

/* The kernel changes these options by itself at any moment: a delayed acknowledgement becomes due
 * (tcp(7)), a packet arrives, time passes. */
static int is_kernels(int level, int name)
{
    return (level == IPPROTO_TCP && (name == TCP_QUICKACK || name == TCP_TIMESTAMP)) ||
           (level == SOL_SOCKET && name == SO_INCOMING_CPU);
}

/* Sets options on a live connection and reads them back. Echoes in between show that the connection
 * works. */
static void keep(int fd, const struct option *options, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct option *o = &options[i];
        int r = o->value == ASK ? 0 : set_int(fd, o->level, o->name, o->value), e = errno;
        int back = is_kernels(o->level, o->name) ? 0 : get_int(fd, o->level, o->name);
        if (o->value == ASK)
            say("%s: %s", o->text, back < 0 ? strerrorname_np(-back) : "told");
        else
            say("%s: set %s, then %d", o->text, r ? strerrorname_np(e) : "ok", back);
        if (i % 4 == 0)
            echo_rounds(fd, 3, 2000);
    }
    echo_rounds(fd, 10, 2000);
}

static void options_kept(int fd) { keep(fd, options, COUNT(options)); }

/* The rare options, and options whose values are not plain numbers. */
static void rare_options_kept(int fd)
{
    keep(fd, rare_options, COUNT(rare_options));
    for (int i = 0; i < 2; i++) {
        int name = i ? SO_NETNS_COOKIE : SO_COOKIE;
        uint64_t before = 0, after = 0;
        T(getsockopt(fd, SOL_SOCKET, name, &before, &(socklen_t){sizeof before}));
        echo_rounds(fd, 3, 2000);
        T(getsockopt(fd, SOL_SOCKET, name, &after, &(socklen_t){sizeof after}));
        YES(before == after);
    }
    char text[256] = "";
    socklen_t len = sizeof text;
    T(getsockopt(fd, SOL_SOCKET, SO_MEMINFO, text, &len));
    say("length %d", len);
    len = sizeof text;
    T(getsockopt(fd, SOL_SOCKET, SO_PEERSEC, text, &len));
    T(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 1));
    len = sizeof text;
    T(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, text, &len));
    say("length %d", len);
    T(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "no-such", 7));
    len = sizeof text;
    T(getsockopt(fd, IPPROTO_TCP, TCP_CC_INFO, text, &len));
    say("length %d", len);
    len = sizeof text;
    T(getsockopt(fd, IPPROTO_TCP, TCP_SAVED_SYN, text, &len));
    say("length %d", len);
    len = sizeof text;
    T(getsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_KEY, text, &len));
    T(setsockopt(fd, IPPROTO_IP, IP_OPTIONS, "\1\1\1\1", 4)); /* no operation, four times */
    len = sizeof text;
    T(getsockopt(fd, IPPROTO_IP, IP_OPTIONS, text, &len));
    say("length %d", len);
    echo_rounds(fd, 10, 2000);
    T(setsockopt(fd, IPPROTO_IP, IP_OPTIONS, NULL, 0));
    echo_rounds(fd, 10, 2000);
}

/* Options are set on a listener, and the accepted connection may inherit them. */
static void listener_options_server(int fd)
{
    int port, l;
    char text[256];
    socklen_t len;
    l = listen_any(&port);
    T(set_int(l, IPPROTO_TCP, TCP_SAVE_SYN, 1));
    T(set_int(l, IPPROTO_TCP, TCP_FASTOPEN, 5));
    T(set_int(l, IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 1));
    T(setsockopt(l, IPPROTO_TCP, TCP_FASTOPEN_KEY, "sixteen bytes...", 16));
    T(set_int(l, IPPROTO_TCP, TCP_WINDOW_CLAMP, 200000));
    T(set_int(l, IPPROTO_IP, IP_TOS, 16));
    T(set_int(l, SOL_SOCKET, SO_PRIORITY, 3));
    say("%d %d %d", get_int(l, IPPROTO_TCP, TCP_SAVE_SYN), get_int(l, IPPROTO_TCP, TCP_FASTOPEN),
        get_int(l, IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE));
    len = sizeof text;
    T(getsockopt(l, IPPROTO_TCP, TCP_FASTOPEN_KEY, text, &len));
    say("%.*s", (int)len, text);
    tell(port);
    fd = take(l);
    len = sizeof text;
    T(getsockopt(fd, IPPROTO_TCP, TCP_SAVED_SYN, text, &len));
    YES(len > 20 && len < 200);
    warm(fd, 1);
    len = sizeof text;
    T(getsockopt(fd, IPPROTO_TCP, TCP_SAVED_SYN, text, &len)); /* the kernel gives the SYN once */
    say("length %d, tos %d, priority %d", len, get_int(fd, IPPROTO_IP, IP_TOS),
        get_int(fd, SOL_SOCKET, SO_PRIORITY));
    echo_rounds(fd, 10, 2000);
}

static void listener_options_client(int fd)
{
    fd = join();
    echo_rounds(fd, 10, 2000);
}

/* IPV6_ADDRFORM turns an IPv6 socket whose peer speaks IPv4 into an IPv4 socket. Any other socket
 * refuses it. */
static void addrform(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    T(set_int(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET6));
    T(set_int(fd, IPPROTO_IPV6, IPV6_ADDRFORM, AF_INET));
    T(getpeername(fd, (void *)&a, &len));
    say("domain %d, family %d, length %d", get_int(fd, SOL_SOCKET, SO_DOMAIN), a.ss_family, len);
    echo_rounds(fd, 20, 3000);
    T(put(fd, is_server, 3000));
    meet();
    await_in(fd, 3000);
    T(get(fd, !is_server, 3000));
    set_nonblock(fd, 1);
    T(recv(fd, buf, 1, 0));
    meet();
}

static void options_read(int fd)
{
    char cc[16] = "";
    socklen_t len = sizeof cc;
    say("%d %d %d %d", get_int(fd, SOL_SOCKET, SO_TYPE), get_int(fd, SOL_SOCKET, SO_PROTOCOL),
        get_int(fd, SOL_SOCKET, SO_DOMAIN), get_int(fd, SOL_SOCKET, SO_ACCEPTCONN));
    say("nodelay %d cork %d keepalive %d rcvlowat %d", get_int(fd, IPPROTO_TCP, TCP_NODELAY),
        get_int(fd, IPPROTO_TCP, TCP_CORK), get_int(fd, SOL_SOCKET, SO_KEEPALIVE),
        get_int(fd, SOL_SOCKET, SO_RCVLOWAT));
    say("idle %d linger2 %d maxseg known %d", get_int(fd, IPPROTO_TCP, TCP_KEEPIDLE),
        get_int(fd, IPPROTO_TCP, TCP_LINGER2), get_int(fd, IPPROTO_TCP, TCP_MAXSEG) > 500);
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
    YES(readlink(path, link, sizeof link - 1) > 0 && !strncmp(link, "socket:[", 8) &&
        strtoul(link + 8, NULL, 10) == st.st_ino);
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

/* The writer goes back to TCP while a recv of the other end has got a part of the bytes that it
 * waits for. SO_RCVLOWAT holds after that, too. */
static void lowat_left_server(int fd)
{
    meet();
    for (int i = 0; i < 2; i++) {
        await_asleep(peer_pid);
        put_at(fd, 1, 500 * i, 200);
        await_asleep(peer_pid);
        if (i == 0)
            T(recv(fd, buf, 1, MSG_OOB));
        put_at(fd, 1, 500 * i + 200, 300);
        meet();
    }
    T(put(fd, 2, 200));
    meet();
    meet();
}

static void lowat_left_client(int fd)
{
    T(set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 500));
    meet();
    D(recv(fd, buf, 1000, 0));
    meet();
    D(recv(fd, buf, 500, MSG_WAITALL));
    meet();
    meet();
    say("ready %s, %d", mask_name(ready(fd)), get_int(fd, SOL_SOCKET, SO_RCVLOWAT));
    meet();
}

/* SO_RCVLOWAT and SO_RCVTIMEO belong to the open file: a child sets them, and they hold in its
 * parent. */
static void set_by_child_server(int fd)
{
    meet();
    T(put(fd, 1, 1));
    meet();
    T(put(fd, 2, 1000));
    meet();
}

static void set_by_child_client(int fd)
{
    pid_t pid = child();
    if (!pid) {
        if (set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 1000) ||
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_usec = 50000},
                       sizeof(struct timeval)))
            die("set");
        _exit(0);
    }
    reap(pid);
    meet();
    await_in(fd, 1);
    say("ready %s", mask_name(ready(fd)));
    T(recv(fd, buf, 2000, 0));
    T(recv(fd, buf, 2000, 0));
    meet();
    await_in(fd, 1000);
    say("ready %s", mask_name(ready(fd)));
    D(recv(fd, buf, 2000, 0));
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
    /* For -1 the kernel takes the most that its buffer may ever hold. */
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

/* The client sends `n` bytes, then the server does. */
static void one_then_the_other(int fd, size_t n)
{
    for (int i = 0; i < 2; i++)
        if (is_server == i)
            T(put(fd, i, n));
        else
            T(get(fd, i, n));
}

static void buffers(int snd, int rcv)
{
    mss = 1400;
    int fd = join_cold();
    T(set_int(fd, SOL_SOCKET, snd, 16384));
    T(set_int(fd, SOL_SOCKET, rcv, 16384));
    say("%d %d", get_int(fd, SOL_SOCKET, SO_SNDBUF), get_int(fd, SOL_SOCKET, SO_RCVBUF));
    warm(fd, is_server);
    echo_rounds(fd, 20, 1000);
    one_then_the_other(fd, 300000);
    T(set_int(fd, SOL_SOCKET, snd, 1 << 20));
    T(set_int(fd, SOL_SOCKET, rcv, 1 << 20));
    say("%d %d", get_int(fd, SOL_SOCKET, SO_SNDBUF), get_int(fd, SOL_SOCKET, SO_RCVBUF));
    meet();
    one_then_the_other(fd, 3000000);
}

static void small_buffers(int fd)
{
    (void)fd;
    buffers(SO_SNDBUF, SO_RCVBUF);
}

static void sends_from(int size)
{
    int fd = join_cold();
    T(set_int(fd, SOL_SOCKET, SO_SNDBUF, size));
    say("%d", get_int(fd, SOL_SOCKET, SO_SNDBUF));
    warm(fd, is_server);
    echo_rounds(fd, 20, 1000);
    one_then_the_other(fd, 300000);
}

/* The send buffer is so small that a link within the host would hold too few unread bytes: the
 * connection stays on TCP. */
static void tiny_buffer(int fd)
{
    (void)fd;
    sends_from(1);
}

/* The smallest send buffer with which a connection leaves TCP. */
static void least_buffer(int fd)
{
    (void)fd;
    sends_from(4096);
}

/* Buffers beyond the system's limit, which only a privileged process may set. */
static void forced_buffers(int fd)
{
    (void)fd;
    buffers(SO_SNDBUFFORCE, SO_RCVBUFFORCE);
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

const struct body option_bodies[] = {
    TWO("so_error", so_error_server, so_error_client),
    TWO("names", names, names),
    TWO("tcp_info_state", tcp_info_server, tcp_info_client),
    TWO("options_kept", options_kept, options_kept),
    TWO("rare_options_kept", rare_options_kept, rare_options_kept),
    TWO("listener_options", listener_options_server, listener_options_client, .flags = RAW),
    TWO("addrform", addrform, addrform),
    TWO("options_read", options_read, options_read),
    TWO("rcvlowat", lowat_server, lowat_client),
    TWO("rcvlowat_behind_return", lowat_left_server, lowat_left_client),
    TWO("options_by_child", set_by_child_server, set_by_child_client),
    TWO("listener_rcvlowat", listener_lowat_server, listener_lowat_client, .flags = RAW),
    TWO("small_buffers", small_buffers, small_buffers, .flags = RAW),
    TWO("tiny_buffer", tiny_buffer, tiny_buffer, .flags = RAW | NOUP | ONEHOST),
    TWO("least_buffer", least_buffer, least_buffer, .flags = RAW),
    TWO("forced_buffers", forced_buffers, forced_buffers, .flags = RAW),
    TWO("buffers_resized", resized, resized, .flags = RAW | NB),
    TWO("nodelay_toggled", nodelay_toggled, nodelay_toggled, .flags = NB),
    {0},
};
