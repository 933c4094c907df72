/* Bytes by every plain call: read and write, vectors, messages, raw system calls. */
#include "t.h"

/* volatile: the compiler would otherwise warn about the bad address, which is meant */
static void *volatile nowhere = (void *)8;
static volatile int minus_one = -1;

static void echo(int fd)
{
    static const size_t sizes[] = {1, 10, 100, 1000, 1460, 4096, 10000, 65536, 200000};
    for (size_t i = 0; i < COUNT(sizes); i++)
        echo_rounds(fd, 5, sizes[i]);
}

/* After an answer the asker's TCP counts nothing as unacknowledged, whether the answer came by TCP
 * or by a link. Unacknowledged bytes would make Nagle's algorithm hold back the next small
 * request. */
enum { ASKED = 300 };

static void answered_server(int fd)
{
    size_t good = 0;
    for (int i = 0; i < ASKED; i++)
        good += get(fd, i, 48) + put(fd, ~i, 5);
    say("%zu good", good);
    meet();
}

static void answered_client(int fd)
{
    int held_back = 0, n = 0;
    for (int i = 0; i < ASKED; i++) {
        put(fd, i, 48), get(fd, ~i, 5);
        held_back += ioctl(fd, TIOCOUTQ, &n) || n;
    }
    say("%d held back", held_back);
    meet();
}

/* The reader sleeps in the call before the first byte is sent, once for every size. */
static void recv_before_data_server(int fd)
{
    for (int n = 1; n < 20000; n *= 5) {
        hear();
        await_asleep(peer_pid);
        T(put(fd, n, n));
    }
}

static void recv_before_data_client(int fd)
{
    for (int n = 1; n < 20000; n *= 5) {
        tell(0);
        T(get(fd, n, n));
    }
}

static void partial_server(int fd)
{
    T(put(fd, 1, 20000));
    meet();
    hear();
    T(put(fd, 2, 10));
    meet();
}

static void partial_client(int fd)
{
    meet();
    await_in(fd, 20000);
    D(recv(fd, buf, 1, 0));
    D(recv(fd, buf, 7, 0));
    D(read(fd, buf, 100));
    D(recvfrom(fd, buf, 1000, 0, NULL, NULL));
    D(recv(fd, buf, 8192, 0));
    D(recv(fd, buf, sizeof buf, 0));
    T(recv(fd, buf, sizeof buf, MSG_DONTWAIT));
    tell(0);
    await_in(fd, 10);
    D(recv(fd, buf, sizeof buf, 0));
    meet();
}

/* n vectors over buf, sizes 0, 1, 2 ... and round again */
static size_t vectors(struct iovec *v, int n, size_t cycle)
{
    size_t at = 0;
    for (int i = 0; i < n; i++, at += v[i - 1].iov_len)
        v[i] = (struct iovec){buf + at, i % cycle};
    return at;
}

static void iov_server(int fd)
{
    static struct iovec v[IOV_MAX + 1];
    fill(buf, 1, 0, 100000);
    vectors(v, COUNT(v), 37);
    T(writev(fd, v, 1));
    T(writev(fd, v, 5));
    T(writev(fd, v, IOV_MAX));
    T(writev(fd, v, IOV_MAX + 1));
    T(writev(fd, v, 0));
    T(writev(fd, v, minus_one));
    T(sendmsg(fd, (&(struct msghdr){.msg_iov = v, .msg_iovlen = IOV_MAX}), 0));
    T(sendmsg(fd, (&(struct msghdr){.msg_iov = v, .msg_iovlen = IOV_MAX + 1}), 0));
    T(sendmsg(fd, (&(struct msghdr){0}), 0));
    tell(10 + 2 * vectors(v, IOV_MAX, 37));
    meet();
}

static void iov_client(int fd)
{
    static struct iovec v[IOV_MAX + 1];
    vectors(v, COUNT(v), 23);
    struct msghdr m = {.msg_iov = v, .msg_iovlen = IOV_MAX, .msg_name = buf, .msg_namelen = 100,
        .msg_control = buf, .msg_controllen = 100, .msg_flags = -1};
    await_in(fd, hear());
    T(readv(fd, v, IOV_MAX + 1));
    T(readv(fd, v, 0));
    D(readv(fd, v, 1)); /* one vector of zero bytes */
    D(readv(fd, v, 100));
    D(readv(fd, v, IOV_MAX));
    memset(buf, 0, 100);
    D(recvmsg(fd, &m, 0));
    say("namelen %d controllen %zu flags %d", m.msg_namelen, m.msg_controllen, m.msg_flags);
    m.msg_iovlen = IOV_MAX + 1;
    T(recvmsg(fd, &m, 0));
    D(recv(fd, buf, sizeof buf, 0));
    meet();
}

/* Vectors larger than any ring, both ways at once: at each end a child writes and the parent
 * reads. */
static void iov_big(int fd)
{
    static char in[3 << 20];
    struct iovec v[3], w[2];
    size_t half = sizeof in / 2;
    fill(buf, is_server, 0, sizeof in);
    for (int i = 0; i < 3; i++)
        v[i] = (struct iovec){buf + i * (1 << 20), 1 << 20};
    pid_t pid = child();
    if (!pid) {
        for (int i = 0; i < 3;) { /* as programs do: go on after a short count */
            ssize_t n = writev(fd, v + i, 3 - i);
            if (n < 0)
                die("writev");
            for (; n && (size_t)n >= v[i].iov_len; i++)
                n -= v[i].iov_len;
            if (n)
                v[i].iov_base = (char *)v[i].iov_base + n, v[i].iov_len -= n;
        }
        _exit(0);
    }
    for (size_t have = 0; have < sizeof in;) {
        w[0] = (struct iovec){in + have, have < half ? half - have : 0};
        w[1] = (struct iovec){have < half ? in + half : in + have,
            have < half ? half : sizeof in - have};
        ssize_t n = readv(fd, w, 2);
        if (n <= 0)
            die("readv");
        have += n;
    }
    reap(pid);
    say("all of it: %08x", sum(in, sizeof in));
}

static void zero_server(int fd)
{
    signal(SIGPIPE, SIG_IGN);
    T(send(fd, buf, 0, 0));
    T(write(fd, buf, 0));
    T(write(fd, NULL, 0));
    T(send(fd, "five!", 5, 0));
    meet();
    meet();
    T(shutdown(fd, SHUT_WR));
    T(send(fd, buf, 0, 0));
    T(write(fd, buf, 0));
}

static void zero_client(int fd)
{
    T(read(fd, buf, 0));
    meet();
    await_in(fd, 5);
    T(read(fd, buf, 0));
    T(read(fd, NULL, 0));
    T(recv(fd, buf, 0, 0));
    T(recv(fd, buf, 0, MSG_PEEK));
    D(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 0, MSG_DONTWAIT));
    meet();
    await(fd, POLLRDHUP);
    T(read(fd, buf, 0));
    T(recv(fd, buf, 0, 0));
    T(recv(fd, buf, 10, 0));
}

static void bad_pointers_server(int fd)
{
    T(write(fd, nowhere, 100));
    T(send(fd, nowhere, 100, 0));
    T(writev(fd, nowhere, 2));
    T(sendmsg(fd, nowhere, 0));
    /* a common old mistake: the value is passed where its address belongs */
    T(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, (void *)1, sizeof(int)));
    T(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, (void *)1, sizeof(int)));
    T(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, NULL, sizeof(int)));
    T(send(fd, buf, 100, 0));
    meet();
}

static void bad_pointers_client(int fd)
{
    meet();
    await_in(fd, 100);
    T(read(fd, nowhere, 100));
    T(recv(fd, nowhere, 100, 0));
    T(recvmsg(fd, nowhere, 0));
    T(readv(fd, nowhere, 2));
    for (int i = 0; i < 2; i++)
        T(recvmsg(fd, &(struct msghdr){0}, i ? 0 : MSG_DONTWAIT)); /* a message without vectors */
    D(recv(fd, buf, 1000, 0));
    T(recv(-1, buf, 1, 0));
    T(recv(500, buf, 1, 0));
    T(recv(0, buf, 1, 0));
    T(send(0, buf, 1, 0));
}

static void names_of_calls_server(int fd)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = 9, .sin_addr.s_addr = 0x01020304};
    fill(buf, 3, 0, 1000);
    T(send(fd, buf, 1000, 0));
    T(sendto(fd, buf, 1000, 0, NULL, 0));
    T(sendto(fd, buf, 1000, 0, (void *)&a, sizeof a));
    T(sendmsg(fd, (&(struct msghdr){.msg_name = &a, .msg_namelen = sizeof a,
        .msg_iov = &(struct iovec){buf, 1000}, .msg_iovlen = 1}), 0));
    T(send(fd, buf, 1000, MSG_EOR));
    T(send(fd, buf, 1000, MSG_CONFIRM));
    T(send(fd, buf, 1000, MSG_DONTROUTE));
    meet();
}

static void names_of_calls_client(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    meet();
    await_in(fd, 5000);
    D(recvfrom(fd, buf, 500, 0, (void *)&a, &len));
    say("address length %d", len);
    len = 0;
    D(recvfrom(fd, buf, 500, 0, NULL, &len));
    D(recv(fd, buf, 500, MSG_CMSG_CLOEXEC));
    T(recv(fd, buf, 500, MSG_ERRQUEUE));
    D(recv(fd, buf, 500, MSG_NOSIGNAL));
    D(recv(fd, buf, 500, 0x100000)); /* an unknown flag */
}

/* An address and flags that change nothing on a stream. */
static void vain_names_server(int fd)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = 9, .sin_addr.s_addr = 0x01020304};
    static const int vain[] = {MSG_EOR, MSG_CONFIRM, MSG_DONTROUTE};
    for (int i = 0; i < 20; i++) {
        fill(buf, i, 0, 5000);
        T(sendto(fd, buf, 1000, 0, NULL, 0));
        T(sendto(fd, buf + 1000, 1000, 0, (void *)&a, sizeof a));
        for (size_t k = 0; k < COUNT(vain); k++)
            T(send(fd, buf + 2000 + 1000 * k, 1000, vain[k]));
    }
    meet();
}

static void vain_names_client(int fd)
{
    for (int i = 0; i < 20; i++)
        T(get(fd, i, 5000));
    meet();
}

/* The same calls under the names that the C library's own parts, and old programs, use. */
extern ssize_t __read(int, void *, size_t), __write(int, const void *, size_t),
    __send(int, const void *, size_t, int);
extern int __connect(int, const struct sockaddr *, socklen_t), __close(int),
    __poll(struct pollfd *, nfds_t, int), __fcntl(int, int, ...),
    __select(int, fd_set *, fd_set *, fd_set *, struct timeval *), __dup2(int, int), __pipe(int[2]);
extern pid_t __vfork(void);
extern FILE *_IO_fdopen(int, const char *);

static void aliases_server(int fd)
{
    for (int i = 0; i < 2; i++) {
        if (i)
            fd = take_one();
        echo_rounds(fd, 20, 3000);
        fill(buf, 1, 0, 1000);
        T(__send(fd, buf, 1000, 0));
        T(__write(fd, buf, 1000));
        meet();
        T(get(fd, 2, 100));
        T(__close(fd));
        T(__write(fd, buf, 1));
    }
}

static void aliases_client(int fd)
{
    for (int i = 0; i < 2; i++) {
        if (i) {
            struct sockaddr_storage a;
            socklen_t len = loopback(&a, hear(), 0);
            fd = socket(a.ss_family, SOCK_STREAM, 0);
            T(__connect(fd, (void *)&a, len));
        }
        echo_rounds(fd, 20, 3000);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        fd_set r;
        FD_ZERO(&r);
        FD_SET(fd, &r);
        T(__poll(&p, 1, -1));
        T(__select(fd + 1, &r, NULL, NULL, NULL));
        meet();
        await_in(fd, 2000);
        D(__read(fd, buf, 1000));
        D(__read(fd, buf, 1000));
        T(__fcntl(fd, F_SETFL, O_NONBLOCK | O_RDWR));
        T(__read(fd, buf, 1000));
        T(__fcntl(fd, F_SETFL, O_RDWR));
        int copy = T(__fcntl(fd, F_DUPFD, 20)), pipes[2];
        T(__close(fd));
        T(__pipe(pipes));
        YES(__dup2(copy, pipes[0]) == pipes[0]);
        pid_t pid = __vfork();
        if (!pid)
            _exit(3);
        reap(pid);
        T(__close(copy));
        FILE *f = _IO_fdopen(pipes[0], "w");
        fill(buf, 2, 0, 100);
        T(fwrite(buf, 1, 100, f));
        T(fflush(f));
        close(pipes[1]);
        T(fclose(f));
    }
}

extern ssize_t __read_chk(int, void *, size_t, size_t),
    __recv_chk(int, void *, size_t, size_t, int),
    __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
extern int __poll_chk(struct pollfd *, nfds_t, int, size_t),
    __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);

static void fortified_server(int fd)
{
    T(put(fd, 1, 4000));
    meet();
}

static void fortified_client(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    T(__poll_chk(&p, 1, -1, sizeof p));
    T(__ppoll_chk(&p, 1, NULL, NULL, sizeof p));
    meet();
    await_in(fd, 4000);
    D(__read_chk(fd, buf, 1000, sizeof buf));
    D(__recv_chk(fd, buf, 1000, sizeof buf, 0));
    D(__recv_chk(fd, buf, 1000, sizeof buf, MSG_PEEK));
    D(__recvfrom_chk(fd, buf, 5000, sizeof buf, 0, NULL, NULL));
}

static void raw_syscalls_server(int fd)
{
    char text[100];
    for (int i = 0; i < 50; i++) {
        fill(text, i, 0, sizeof text);
        if (i % 2 ? syscall(SYS_write, fd, text, sizeof text) != 100
            : syscall(SYS_sendto, fd, text, sizeof text, 0, NULL, 0) != 100)
            die("raw write");
        if (get(fd, i, 100) != 100)
            die("reply");
    }
    T(put(fd, 9, 1000));
    meet();
    T(syscall(SYS_shutdown, fd, SHUT_WR));
}

static void raw_syscalls_client(int fd)
{
    size_t n = 0;
    for (int i = 0; i < 50; i++) {
        n += get(fd, i, 100);
        put(fd, i, 100);
    }
    say("%zu by turns", n);
    meet();
    await_in(fd, 1000);
    D(syscall(SYS_read, fd, buf, 300));
    D(read(fd, buf, 300));
    D(syscall(SYS_recvfrom, fd, buf, 1000, MSG_DONTWAIT, NULL, NULL));
    T(read(fd, buf, 10));
}

static void tiny_writes_server(int fd)
{
    size_t sent = 0;
    for (int i = 0; i < 100000; i++)
        sent += put_at(fd, 1, i, 1);
    say("sent %zu", sent);
    T(get(fd, 2, 1));
}

static void tiny_writes_client(int fd)
{
    T(get(fd, 1, 100000));
    T(put(fd, 2, 1));
}

static void tiny_reads_server(int fd)
{
    T(put(fd, 1, 100000));
    T(get(fd, 2, 1));
}

static void tiny_reads_client(int fd)
{
    size_t good = 0;
    for (int i = 0; i < 100000; i++)
        good += get_at(fd, 1, i, 1);
    say("got %zu", good);
    T(put(fd, 2, 1));
}

static void positioned_server(int fd)
{
    struct iovec v[2] = {{buf, 10}, {buf + 10, 90}};
    fill(buf, 1, 0, 100);
    T(pwritev2(fd, v, 2, -1, 0));
    T(pwritev2(fd, v, 2, 0, 0));
    T(pwritev(fd, v, 2, 0));
    T(pwrite(fd, buf, 10, 0));
    T(lseek(fd, 0, SEEK_CUR));
    T(ftruncate(fd, 0));
    T(fsync(fd));
    T(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
    fill(buf, 2, 0, 100);
    T(pwritev64v2(fd, v, 2, -1, 0));
    T(pwritev64v2(fd, v, 2, 0, 0));
    fill(buf, 3, 0, 100);
    T(pwritev2(fd, v, 2, -1, RWF_NOWAIT));
    fill(buf, 4, 0, 100);
    T(pwritev64v2(fd, v, 2, -1, RWF_NOWAIT));
    meet();
    meet();
}

static void positioned_client(int fd)
{
    struct iovec v[2] = {{buf, 50}, {buf + 50, 70}};
    T(preadv2(fd, &(struct iovec){buf, 0}, 1, -1, 0));
    meet();
    await_in(fd, 400);
    D(preadv2(fd, v, 2, -1, 0));
    T(preadv2(fd, v, 2, 0, 0));
    D(preadv64v2(fd, v, 2, -1, 0));
    T(preadv64v2(fd, v, 2, 0, 0));
    T(preadv(fd, v, 2, 0));
    T(pread(fd, buf, 10, 0));
    D(preadv2(fd, v, 2, -1, RWF_NOWAIT));
    D(preadv64v2(fd, v, 2, -1, RWF_NOWAIT));
    T(preadv2(fd, v, 2, -1, RWF_NOWAIT));
    T(preadv64v2(fd, v, 2, -1, RWF_NOWAIT));
    T(preadv2(fd, v, 2, -1, RWF_HIPRI | RWF_NOWAIT));
    meet();
}

/* preadv2 and pwritev2 work on a stream like readv and writev if the offset is -1, also with
 * RWF_NOWAIT. */
static void at_no_place_server(int fd)
{
    struct iovec v[2] = {{buf, 10}, {buf + 10, 90}};
    for (int i = 0; i < 20; i++) {
        fill(buf, i, 0, 100);
        T(i % 2 ? pwritev64v2(fd, v, 2, -1, 0) : pwritev2(fd, v, 2, -1, 0));
        T(i % 2 ? pwritev64v2(fd, v, 2, -1, RWF_NOWAIT) : pwritev2(fd, v, 2, -1, RWF_NOWAIT));
    }
    meet();
    meet();
}

static void at_no_place_client(int fd)
{
    struct iovec v[2] = {{buf, 50}, {buf + 50, 50}};
    meet();
    await_in(fd, 4000);
    for (int i = 0; i < 20; i++) {
        D(i % 2 ? preadv64v2(fd, v, 2, -1, 0) : preadv2(fd, v, 2, -1, 0));
        D(i % 2 ? preadv64v2(fd, v, 2, -1, RWF_NOWAIT) : preadv2(fd, v, 2, -1, RWF_NOWAIT));
    }
    T(preadv2(fd, v, 2, -1, RWF_NOWAIT));
    T(preadv64v2(fd, v, 2, -1, RWF_NOWAIT));
    meet();
}

/* Descriptors that are no TCP connection: nothing may change for them, and none is upgraded. */
static void other_sockets(void)
{
    struct sockaddr_storage a;
    int s[2], p[2], u, v;
    socklen_t len;
    T(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    T(put(s[0], 1, 100000));
    T(get(s[1], 1, 100000));
    T(close(s[0]));
    T(recv(s[1], buf, 1, 0));
    T(pipe(p));
    T(put(p[1], 2, 60000));
    T(get(p[0], 2, 60000));
    T(recv(p[0], buf, 1, 0));
    T(u = socket(family == 4 ? AF_INET : AF_INET6, SOCK_DGRAM, 0));
    T(v = socket(family == 4 ? AF_INET : AF_INET6, SOCK_DGRAM, 0));
    len = loopback(&a, 0, 1);
    T(bind(u, (void *)&a, len));
    T(getsockname(u, (void *)&a, &len));
    T(connect(v, (void *)&a, len));
    T(send(v, buf, 1000, 0));
    T(send(v, buf, 0, 0));
    T(recv(u, buf, 10, MSG_TRUNC));
    T(recv(u, buf, 10, 0));
    T(recv(u, buf, 10, MSG_DONTWAIT));
}

const struct body basic_bodies[] = {
    TWO("answered_by_any_way", answered_server, answered_client),
    TWO("echo", echo, echo, .flags = NB),
    TWO("recv_before_data", recv_before_data_server, recv_before_data_client, .flags = NB),
    TWO("partial_reads", partial_server, partial_client),
    TWO("iov_many", iov_server, iov_client),
    TWO("iov_big", iov_big, iov_big),
    TWO("zero_length", zero_server, zero_client),
    TWO("aliases", aliases_server, aliases_client),
    TWO("bad_pointers", bad_pointers_server, bad_pointers_client),
    TWO("names_of_calls", names_of_calls_server, names_of_calls_client),
    TWO("vain_names", vain_names_server, vain_names_client),
    TWO("fortified_calls", fortified_server, fortified_client),
    TWO("raw_syscalls", raw_syscalls_server, raw_syscalls_client),
    TWO("tiny_writes", tiny_writes_server, tiny_writes_client, .flags = NB, .limit = 60),
    TWO("tiny_reads", tiny_reads_server, tiny_reads_client, .flags = NB, .limit = 20),
    TWO("positioned_io", positioned_server, positioned_client),
    TWO("at_no_place", at_no_place_server, at_no_place_client),
    ONE("other_sockets", other_sockets, .flags = NOUP),
    {0},
};
