/* What a link cannot honour: options that keep a connection on TCP, or take it back. */
#include "t.h"
#include <linux/filter.h>
#include <linux/net_tstamp.h>

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

const struct body pinned_bodies[] = {
    TWO("ancillary_data", ancillary_server, ancillary_client),
    TWO("peek_off", read_otherwise_server, peek_off_client),
    TWO("zerocopy_receive", read_otherwise_server, zerocopy_receive_client),
    TWO("stays_zerocopy", stay_zerocopy, stay_zerocopy, .flags = RAW | NOUP),
    TWO("stays_inherited", stay_inherited, stay_inherited, .flags = RAW | NOUP),
    TWO("stays_timestamping", stay_timestamping, stay_timestamping, .flags = RAW | NOUP),
    TWO("stays_pacing", stay_pacing, stay_pacing, .flags = RAW | NOUP),
    TWO("stays_filter", stay_filter, stay_filter, .flags = RAW | NOUP),
    TWO("pinned_late", pin_late, pin_late),
    TWO("msg_zerocopy", zerocopy_server, zerocopy_client),
    {0},
};
