/* Options that a link cannot honour: they keep a connection on TCP, or take it back to TCP. */
#include "t.h"
#include <linux/tls.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/net_tstamp.h>

/* Timestamps of received bytes, by the system's clock. */
enum { STAMPED = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE };

/* Timestamps that recvmsg returns as control data. The kernel begins to stamp arriving bytes a
 * moment after it was asked to, so the client asks for bytes until one has a stamp. */
static void ancillary_server(int fd)
{
    T(put(fd, 1, 3000));
    for (int i = 0; hear(); i++)
        put(fd, i, 100);
}

static void ancillary_client(int fd)
{
    char control[200];
    struct msghdr m = {.msg_iov = &(struct iovec){buf, 1000}, .msg_iovlen = 1,
        .msg_control = control, .msg_controllen = sizeof control};
    await_in(fd, 3000);
    D(recv(fd, buf, 3000, MSG_WAITALL));
    struct cmsghdr *c;
    static const struct { int option, value; } stamps[] = {
        {SO_TIMESTAMP, 1}, {SO_TIMESTAMPNS, 1}, {SO_TIMESTAMP_NEW, 1}, {SO_TIMESTAMPNS_NEW, 1},
        {SO_TIMESTAMPING, STAMPED}, {SO_TIMESTAMPING_NEW, STAMPED},
    };
    for (size_t k = 0; k < COUNT(stamps); k++) {
        int option = stamps[k].option, seen = 0;
        T(set_int(fd, SOL_SOCKET, option, stamps[k].value));
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

/* Peeks at an offset, and TCP_ZEROCOPY_RECEIVE, of bytes that are there already. */
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

/* A connection with an option that a link cannot honour stays on TCP for good. */
static void pinned(int fd, int (*pin)(int))
{
    T(pin(fd = join_cold()));
    warm(fd, is_server);
    echo_rounds(fd, 20, 3000);
}

static int pin_zerocopy(int fd) { return set_int(fd, SOL_SOCKET, SO_ZEROCOPY, 1); }
static int pin_timestamping(int fd) { return set_int(fd, SOL_SOCKET, SO_TIMESTAMPING, STAMPED); }
static int pin_timestamp(int fd) { return set_int(fd, SOL_SOCKET, SO_TIMESTAMP, 1); }
static int pin_timestampns(int fd) { return set_int(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1); }
static int pin_timestamp_new(int fd) { return set_int(fd, SOL_SOCKET, SO_TIMESTAMP_NEW, 1); }
static int pin_timestampns_new(int fd) { return set_int(fd, SOL_SOCKET, SO_TIMESTAMPNS_NEW, 1); }

static int pin_timestamping_new(int fd)
{
    return set_int(fd, SOL_SOCKET, SO_TIMESTAMPING_NEW, STAMPED);
}

static int pin_pacing(int fd) { return set_int(fd, SOL_SOCKET, SO_MAX_PACING_RATE, 100 << 20); }
static int pin_peek_off(int fd) { return set_int(fd, SOL_SOCKET, SO_PEEK_OFF, 0); }
static struct sock_fprog accept_all(void)
{
    static struct sock_filter all = {BPF_RET | BPF_K, 0, 0, 0xffffffff};
    return (struct sock_fprog){1, &all};
}

static int pin_filter(int fd)
{
    struct sock_fprog f = accept_all();
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &f, sizeof f);
}

/* Loads a BPF program that returns `value`; -1 where the kernel loads none. */
static int program(int value)
{
    struct bpf_insn code[2] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = value},
        {.code = BPF_JMP | BPF_EXIT}};
    union bpf_attr a = {.prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insn_cnt = 2,
        .insns = (uintptr_t)code, .license = (uintptr_t)"GPL"};
    return syscall(SYS_bpf, BPF_PROG_LOAD, &a, sizeof a);
}

static int pin_bpf(int fd)
{
    int p = program(INT_MAX);
    if (p < 0)
        return pin_filter(fd);
    int r = set_int(fd, SOL_SOCKET, SO_ATTACH_BPF, p), e = errno;
    close(p);
    errno = e;
    return r;
}

static int pin_no_bpf(int fd) { return set_int(fd, SOL_SOCKET, SO_ATTACH_BPF, -1); }
static int pin_reuseport_cbpf(int fd)
{
    struct sock_fprog f = accept_all();
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &f, sizeof f);
}

static int pin_reuseport_ebpf(int fd)
{
    return set_int(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, -1);
}

static int pin_no_ulp(int fd) { return setsockopt(fd, IPPROTO_TCP, TCP_ULP, "none such", 9); }
static int pin_tls(int fd) { return setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 3); }
static int pin_repair(int fd)
{
    int window[5];
    if (set_int(fd, IPPROTO_TCP, TCP_REPAIR, 1))
        return -1;
    T(set_int(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, 1));
    YES(get_int(fd, IPPROTO_TCP, TCP_REPAIR) == 1 &&
        get_int(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE) == 1);
    T(getsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, window, &(socklen_t){sizeof window}));
    return set_int(fd, IPPROTO_TCP, TCP_REPAIR, -1); /* without a probe of the peer's window */
}

/* The kernel refuses these options with this argument. */
static int pin_md5(int fd) { return set_int(fd, IPPROTO_TCP, TCP_MD5SIG, 0); }
static int pin_md5_ext(int fd) { return set_int(fd, IPPROTO_TCP, TCP_MD5SIG_EXT, 0); }
/* 38 ... 42: TCP_AO_ADD_KEY ... TCP_AO_REPAIR */
static int pin_ao(int fd) { return set_int(fd, IPPROTO_TCP, 38, 0); }
static int pin_ao_del(int fd) { return set_int(fd, IPPROTO_TCP, 39, 0); }
static int pin_ao_info(int fd) { return set_int(fd, IPPROTO_TCP, 40, 0); }
static int pin_ao_get(int fd) { return set_int(fd, IPPROTO_TCP, 41, 0); }
static int pin_ao_repair(int fd) { return set_int(fd, IPPROTO_TCP, 42, 0); }

#define EACH_PINNED(fd, ...) do { \
        int (*const all[])(int) = {__VA_ARGS__}; \
        for (size_t each = 0; each < COUNT(all); each++) \
            pinned(fd, all[each]); \
    } while (0)

static void stay_zerocopy(int fd) { EACH_PINNED(fd, pin_zerocopy); }

static void stay_timestamping(int fd)
{
    EACH_PINNED(fd, pin_timestamping, pin_timestamp, pin_timestampns);
}

static void stay_timestamp_new(int fd)
{
    EACH_PINNED(fd, pin_timestamp_new, pin_timestampns_new, pin_timestamping_new);
}

static void stay_pacing(int fd) { EACH_PINNED(fd, pin_pacing); }

static void stay_filter(int fd)
{
    EACH_PINNED(fd, pin_filter, pin_bpf, pin_no_bpf, pin_reuseport_cbpf, pin_reuseport_ebpf);
}

static void stay_ulp(int fd) { EACH_PINNED(fd, pin_no_ulp); }
static void stay_repair(int fd) { EACH_PINNED(fd, pin_repair); }

static void stay_refused_keys(int fd)
{
    EACH_PINNED(fd, pin_md5, pin_md5_ext, pin_ao, pin_ao_del, pin_ao_info, pin_ao_get,
        pin_ao_repair);
}

/* An option that is turned off does not keep a connection from its link. Nor does the TLS ULP
 * without keys, since the kernel does not encrypt yet. */
static void options_off(int fd)
{
    static const struct { int option, value; } off[] = {
        {SO_ZEROCOPY, 0}, {SO_TIMESTAMP, 0}, {SO_TIMESTAMPNS, 0}, {SO_TIMESTAMPING, 0},
        {SO_TIMESTAMP_NEW, 0}, {SO_TIMESTAMPNS_NEW, 0}, {SO_TIMESTAMPING_NEW, 0}, {SO_PEEK_OFF, -1},
        {SO_MAX_PACING_RATE, -1},
    };
    uint64_t unlimited = ~0ull;
    fd = join_cold();
    for (size_t i = 0; i < COUNT(off); i++)
        T(set_int(fd, SOL_SOCKET, off[i].option, off[i].value));
    T(set_int(fd, IPPROTO_TCP, TCP_INQ, 0));
    T(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &unlimited, sizeof unlimited));
    warm(fd, is_server);
    echo_rounds(fd, 20, 3000);
}

static void ulp_without_keys(int fd)
{
    fd = join_cold();
    T(pin_tls(fd)); /* a kernel may not have it */
    warm(fd, is_server);
    echo_rounds(fd, 20, 3000);
}

/* The connections that a listener accepts inherit its options. */
static void stay_inherited(int fd)
{
    static int (*const all[])(int) = {pin_zerocopy, pin_timestamp, pin_timestampns,
        pin_timestamping, pin_peek_off, pin_pacing, pin_filter, pin_bpf};
    for (size_t i = 0; i < COUNT(all); i++) {
        if (is_server) {
            int port, l = listen_any(&port);
            T(all[i](l));
            tell(port);
            fd = take(l);
            say("zerocopy %d timestamp %d %d %d peek %d pacing %d",
                get_int(fd, SOL_SOCKET, SO_ZEROCOPY), get_int(fd, SOL_SOCKET, SO_TIMESTAMP),
                get_int(fd, SOL_SOCKET, SO_TIMESTAMPNS), get_int(fd, SOL_SOCKET, SO_TIMESTAMPING),
                get_int(fd, SOL_SOCKET, SO_PEEK_OFF), get_int(fd, SOL_SOCKET, SO_MAX_PACING_RATE));
        } else {
            fd = join_cold();
        }
        warm(fd, is_server);
        echo_rounds(fd, 20, 3000);
    }
}

/* Both ends set an MD5 key for the other one before they connect. The kernel drops segments without
 * a signature from then on. */
static int key(int fd, const struct sockaddr_storage *peer)
{
    struct tcp_md5sig k = {.tcpm_addr = *peer, .tcpm_keylen = 6, .tcpm_key = "secret"};
    /* sin_port lies at the same place in both families */
    ((struct sockaddr_in *)&k.tcpm_addr)->sin_port = 0;
    return setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG, &k, sizeof k);
}

static void stay_signed(int fd)
{
    struct sockaddr_storage a;
    socklen_t len;
    int port, l;
    if (is_server) {
        l = listen_any(&port);
        far_end(&a, 0);
        T(key(l, &a));
        tell(port);
        fd = take(l);
    } else {
        len = loopback(&a, hear(), 0);
        fd = socket(a.ss_family, SOCK_STREAM, 0);
        T(key(fd, &a));
        T(connect(fd, (void *)&a, len));
        nodelay(fd);
    }
    warm(fd, is_server);
    echo_rounds(fd, 20, 3000);
}

/* The filter is set by syscall(), before there is a connection. */
static void stay_early_server(int fd)
{
    fd = join_cold();
    warm(fd, 1);
    echo_rounds(fd, 20, 3000);
}

static void stay_early_client(int fd)
{
    struct sock_fprog f = accept_all();
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, hear(), 0);
    fd = socket(a.ss_family, SOCK_STREAM, 0);
    T(syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_ATTACH_FILTER, &f, sizeof f));
    T(connect(fd, (void *)&a, len));
    nodelay(fd);
    warm(fd, 0);
    echo_rounds(fd, 20, 3000);
}

/* The same options are set on a connection that is accelerated already: the bytes under way arrive
 * complete. */
static void pin_late(int fd)
{
    static int (*const all[])(int) = {
        pin_filter, pin_pacing, pin_timestamping, pin_timestamp_new, pin_timestampns_new,
        pin_timestamping_new, pin_bpf, pin_no_bpf, pin_reuseport_cbpf, pin_reuseport_ebpf,
        pin_no_ulp, pin_tls, pin_repair, pin_md5, pin_md5_ext, pin_ao, pin_ao_repair,
    };
    for (size_t i = 0; i < COUNT(all); i++) {
        if (i)
            fd = join();
        T(put(fd, is_server, 3000));
        meet();
        await_in(fd, 3000);
        T(all[i](fd));
        meet();
        T(get(fd, !is_server, 3000));
        echo_rounds(fd, 20, 3000);
        meet();
        close(fd);
    }
}

/* From then on TCP carries every byte of the connection. */
static void pin_for_good(int fd)
{
    static int (*const all[])(int) = {
        pin_filter, pin_pacing, pin_timestamping, pin_timestamp, pin_timestampns, pin_timestamp_new,
        pin_timestampns_new, pin_timestamping_new, pin_bpf, pin_repair,
    };
    for (size_t i = 0; i < COUNT(all); i++) {
        if (i)
            fd = join();
        T(all[i](fd));
        rounds_by_tcp(fd, 50, 3000);
        close(fd);
    }
}

/* From the moment when the keys are set the kernel encrypts what both ends write. After that the
 * library may send nothing of its own, and no byte in the clear. */
static int tls_keys(int fd, int direction, int of_server)
{
    struct tls12_crypto_info_aes_gcm_128 keys = {.info = {TLS_1_2_VERSION, TLS_CIPHER_AES_GCM_128}};
    memset(keys.key, 'k' + of_server, sizeof keys.key);
    memset(keys.salt, 's' + of_server, sizeof keys.salt);
    return setsockopt(fd, SOL_TLS, direction, &keys, sizeof keys);
}

static void encrypted(int fd)
{
    for (int i = 0; i < 6; i++) {
        if (i)
            fd = join();
        echo_rounds(fd, 20, 3000);
        if (i % 2)
            T(put(fd, is_server, 3000)), T(get(fd, !is_server, 3000));
        meet();
        if (!T(pin_tls(fd))) { /* a kernel may not have it */
            T(tls_keys(fd, TLS_TX, is_server));
            T(tls_keys(fd, TLS_RX, !is_server));
        }
        meet();
        echo_rounds(fd, 50, 3000);
        meet();
        T(close(fd));
    }
}

/* A BPF program that chooses among the listeners of one port belongs to the listeners. The
 * connections that they accept may leave TCP. */
static void chosen_listener_server(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, 0, 1);
    int l[2], p = program(1);
    static struct sock_filter second = {BPF_RET | BPF_K, 0, 0, 1};
    for (int i = 0; i < 2; i++) {
        l[i] = socket(a.ss_family, SOCK_STREAM, 0);
        T(set_int(l[i], SOL_SOCKET, SO_REUSEPORT, 1));
        if (bind(l[i], (void *)&a, len) || listen(l[i], 5) || getsockname(l[i], (void *)&a, &len))
            die("listen");
    }
    for (int i = 0; i < 3; i++) {
        if (i < 2)
            T(setsockopt(l[i], SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF,
                &(struct sock_fprog){1, &second}, sizeof(struct sock_fprog)));
        else
            T(set_int(l[0], SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, p));
        tell(ntohs(((struct sockaddr_in *)&a)->sin_port));
        await(l[1], POLLIN);
        fd = take(l[1]);
        warm(fd, 1);
        echo_rounds(fd, 20, 3000);
    }
    close(p);
}

static void chosen_listener_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        fd = join();
        echo_rounds(fd, 20, 3000);
    }
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
    TWO("stays_timestamp_new", stay_timestamp_new, stay_timestamp_new, .flags = RAW | NOUP),
    TWO("options_off", options_off, options_off, .flags = RAW),
    TWO("ulp_without_keys", ulp_without_keys, ulp_without_keys, .flags = RAW),
    TWO("stays_ulp", stay_ulp, stay_ulp, .flags = RAW | NOUP),
    TWO("stays_repair", stay_repair, stay_repair, .flags = RAW | NOUP),
    TWO("stays_refused_keys", stay_refused_keys, stay_refused_keys, .flags = RAW | NOUP),
    TWO("stays_signed", stay_signed, stay_signed, .flags = RAW | NOUP),
    TWO("chosen_listener", chosen_listener_server, chosen_listener_client, .flags = RAW),
    TWO("stays_timestamping", stay_timestamping, stay_timestamping, .flags = RAW | NOUP),
    TWO("stays_pacing", stay_pacing, stay_pacing, .flags = RAW | NOUP),
    TWO("stays_filter", stay_filter, stay_filter, .flags = RAW | NOUP),
    TWO("stays_filter_early", stay_early_server, stay_early_client, .flags = RAW | NOUP),
    TWO("pinned_late", pin_late, pin_late),
    TWO("pinned_for_good", pin_for_good, pin_for_good),
    TWO("encrypted", encrypted, encrypted),
    TWO("msg_zerocopy", zerocopy_server, zerocopy_client),
    {0},
};
