/* Message flags: PEEK, WAITALL, DONTWAIT, TRUNC, MORE, NOSIGNAL, OOB; recvmmsg and sendmmsg. */
#include "t.h"

static void peek_server(int fd)
{
    T(put(fd, 1, 5000));
    meet();
    hear();
    T(put(fd, 2, 1000));
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void peek_client(int fd)
{
    struct iovec v[3] = {{buf, 10}, {buf + 10, 0}, {buf + 10, 2000}};
    meet();
    await_in(fd, 5000);
    D(recv(fd, buf, 100, MSG_PEEK));
    D(recv(fd, buf, 100, MSG_PEEK | MSG_DONTWAIT));
    D(recv(fd, buf, sizeof buf, MSG_PEEK));
    D(recvmsg(fd, (&(struct msghdr){.msg_iov = v, .msg_iovlen = 3}), MSG_PEEK));
    D(recv(fd, buf, 2000, 0));
    D(recv(fd, buf, sizeof buf, MSG_PEEK));
    D(recv(fd, buf, 3000, MSG_PEEK | MSG_WAITALL));
    D(recv(fd, buf, sizeof buf, 0));
    T(recv(fd, buf, 1, MSG_PEEK | MSG_DONTWAIT));
    tell(0);
    await(fd, POLLRDHUP);
    D(recv(fd, buf, sizeof buf, MSG_PEEK));
    D(recv(fd, buf, sizeof buf, 0));
    T(recv(fd, buf, sizeof buf, MSG_PEEK));
    T(recv(fd, buf, sizeof buf, MSG_PEEK | MSG_WAITALL));
    meet();
}

/* The reader peeks before each read. The stream grows past any threshold, with only peeks and reads
 * in between. */
static void peek_growing_server(int fd)
{
    for (int i = 0; i < 100; i++) {
        size_t n = 1500 + i;
        put(fd, i, n);
        if (get(fd, i, n) != n)
            die("reply");
    }
    say("done");
}

static void peek_growing_client(int fd)
{
    static char peeked[4096];
    int good = 0;
    for (int i = 0; i < 100; i++) {
        int n = 1500 + i, k = 1 + i * 13 % n;
        await_in(fd, n);
        int a = recv(fd, peeked, k, MSG_PEEK), b = recv(fd, peeked, sizeof peeked, MSG_PEEK);
        int c = recv(fd, buf, n, MSG_WAITALL);
        good += a == k && b == n && c == n && !memcmp(peeked, buf, n);
        put(fd, i, n);
    }
    say("%d of 100 as peeked", good);
}

static void peek_blocks_server(int fd)
{
    hear();
    await_asleep(peer_pid);
    T(put(fd, 1, 10));
    meet();
}

static void peek_blocks_client(int fd)
{
    tell(0);
    D(recv(fd, buf, 10, MSG_PEEK));
    D(recv(fd, buf, 10, 0));
    meet();
}

/* A recv with MSG_PEEK | MSG_WAITALL asks for more bytes than it can wait for. First this end has
 * shut down its reading, then the other end has closed. */
static void peek_past_end_server(int fd)
{
    T(put(fd, 1, 500));
    meet();
    int second = join();
    T(put(second, 2, 500));
    meet();
    close(second);
    meet();
}

static void peek_past_end_client(int fd)
{
    await_in(fd, 500);
    meet();
    T(shutdown(fd, SHUT_RD));
    D(recv(fd, buf, 1000, MSG_PEEK | MSG_WAITALL));
    D(recv(fd, buf, 1000, MSG_WAITALL));
    T(recv(fd, buf, 1000, MSG_WAITALL));
    int second = join();
    await_in(second, 500);
    meet();
    D(recv(second, buf, 1000, MSG_PEEK | MSG_WAITALL));
    D(recv(second, buf, 1000, 0));
    T(recv(second, buf, 1000, MSG_PEEK));
    meet();
}

static void waitall_server(int fd)
{
    hear();
    put(fd, 1, 400);
    await_asleep(peer_pid);
    put_at(fd, 1, 400, 600);
    meet();
    put(fd, 2, 1000); /* more than asked for */
    meet();
}

static void waitall_client(int fd)
{
    struct iovec v[2] = {{buf, 300}, {buf + 300, 700}};
    tell(0);
    D(recv(fd, buf, 1000, MSG_WAITALL));
    meet();
    D(recvmsg(fd, (&(struct msghdr){.msg_iov = v, .msg_iovlen = 2}), MSG_WAITALL));
    meet();
    T(recv(fd, buf, 1000, MSG_WAITALL | MSG_DONTWAIT));
}

static void waitall_eof_server(int fd)
{
    hear();
    T(put(fd, 1, 400));
    await_asleep(peer_pid);
    T(shutdown(fd, SHUT_WR));
}

static void waitall_eof_client(int fd)
{
    tell(0);
    D(recv(fd, buf, 1000, MSG_WAITALL));
    T(recv(fd, buf, 1000, MSG_WAITALL));
}

static void waitall_signal_server(int fd)
{
    for (int i = 0; i < 2; i++) {
        hear();
        T(put(fd, 1, i ? 0 : 400));
        await_asleep(peer_pid);
        kill(peer_pid, SIGUSR1);
    }
    meet();
}

static void waitall_signal_client(int fd)
{
    count_signal(SIGUSR1, 0);
    tell(0);
    D(recv(fd, buf, 1000, MSG_WAITALL)); /* what came before the signal */
    say("signals %d", signals[SIGUSR1]);
    tell(0);
    D(recv(fd, buf, 1000, MSG_WAITALL));
    meet();
}

static void waitall_timeout_server(int fd)
{
    T(put(fd, 1, 400));
    meet();
    meet();
}

static void waitall_timeout_client(int fd)
{
    meet();
    await_in(fd, 400);
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, (&(struct timeval){0, 100000}),
                 sizeof(struct timeval)));
    double t = now();
    D(recv(fd, buf, 1000, MSG_WAITALL));
    T(recv(fd, buf, 1000, MSG_WAITALL));
    t = now() - t;
    YES(t >= 0.199 && t < 5);
    meet();
}

enum { BIG = 3 << 20 };

static void waitall_big_server(int fd)
{
    for (int i = 0; i < 4; i++) {
        T(put(fd, i, BIG));
        T(get(fd, i, BIG));
    }
}

static void waitall_big_client(int fd)
{
    static const size_t at_once[] = {BIG, BIG / 2, 300000, 300 << 10};
    for (size_t i = 0; i < COUNT(at_once); i++) {
        size_t have = 0, calls = 0;
        for (ssize_t n; have < BIG; have += n, calls++)
            if ((n = recv(fd, buf + have, BIG - have < at_once[i] ? BIG - have : at_once[i],
                          MSG_WAITALL)) <= 0)
                die("recv");
        say("%zu bytes in %zu calls, sum %08x", have, calls, sum(buf, have));
        T(put(fd, i, BIG));
    }
}

static void dontwait_server(int fd)
{
    meet();
    T(send(fd, buf, 1000, MSG_DONTWAIT));
    meet();
    T(get(fd, 7, 20));
}

static void dontwait_client(int fd)
{
    struct iovec v = {buf, 100};
    T(recv(fd, buf, 100, MSG_DONTWAIT));
    T(recvmsg(fd, (&(struct msghdr){.msg_iov = &v, .msg_iovlen = 1}), MSG_DONTWAIT));
    T(recvfrom(fd, buf, 100, MSG_DONTWAIT, NULL, NULL));
    T(recv(fd, buf, 100, MSG_DONTWAIT | MSG_PEEK));
    meet();
    meet();
    await_in(fd, 1000);
    D(recv(fd, buf, 100, MSG_DONTWAIT));
    D(recv(fd, buf, 5000, MSG_DONTWAIT | MSG_WAITALL));
    T(recv(fd, buf, 100, MSG_DONTWAIT));
    T(put(fd, 7, 20));
}

static void trunc_server(int fd)
{
    T(put(fd, 1, 50000));
    meet();
    meet();
}

static void trunc_client(int fd)
{
    meet();
    await_in(fd, 50000);
    memset(buf, 7, 1000);
    T(recv(fd, buf, 500, MSG_TRUNC));
    say("buffer %s", buf[0] == 7 && buf[499] == 7 ? "untouched" : "written");
    T(recv(fd, NULL, 500, MSG_TRUNC));
    D(recv(fd, buf, 500, 0));
    T(recv(fd, buf, 500, MSG_TRUNC | MSG_PEEK));
    D(recv(fd, buf, 500, 0));
    T(recv(fd, NULL, 40000, MSG_TRUNC | MSG_WAITALL));
    D(recv(fd, buf, 8000, MSG_WAITALL));
    T(recv(fd, NULL, 500, MSG_TRUNC | MSG_DONTWAIT));
    meet();
}

static void more_server(int fd)
{
    fill(buf, 1, 0, 4000);
    for (int i = 0; i < 4; i++)
        T(send(fd, buf + i * 1000, 1000, i < 3 ? MSG_MORE : 0));
    meet();
    T(send(fd, buf, 100, MSG_MORE)); /* the kernel sends these in the end without a further call */
    meet();
    for (int i = 0; i < 2000; i++)
        if (send(fd, buf, 100, i % 7 ? MSG_MORE : 0) != 100)
            die("send");
    T(send(fd, buf, 100, MSG_MORE));
    T(shutdown(fd, SHUT_WR)); /* sends them, too */
    meet();
}

static void more_client(int fd)
{
    T(get(fd, 1, 4000));
    meet();
    T(get(fd, 1, 100));
    meet();
    size_t good = 0;
    for (int i = 0; i < 2001; i++)
        good += get(fd, 1, 100);
    say("%zu good", good);
    T(recv(fd, buf, 1, 0));
    meet();
}

static void cork_server(int fd)
{
    T(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &(int){1}, sizeof(int)));
    for (int i = 0; i < 50; i++)
        if (put_at(fd, 1, i * 100, 100) != 100)
            die("put");
    T(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &(int){0}, sizeof(int)));
    meet();
    T(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &(int){1}, sizeof(int)));
    T(put(fd, 2, 10)); /* left corked: the kernel sends them after 200 ms */
    meet();
    T(put(fd, 3, 10));
    T(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void cork_client(int fd)
{
    int on;
    socklen_t len = sizeof on;
    T(get(fd, 1, 5000));
    meet();
    T(get(fd, 2, 10));
    T(getsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, &len));
    meet();
    T(get(fd, 3, 10));
    T(recv(fd, buf, 1, 0));
    meet();
}

static void oob_server(int fd)
{
    T(send(fd, "abc", 3, 0));
    T(send(fd, "!", 1, MSG_OOB));
    T(send(fd, "def", 3, 0));
    meet();
    echo_rounds(fd, 20, 3000);
    T(send(fd, "xyz", 3, MSG_OOB)); /* the last byte alone is urgent */
    meet();
}

static void oob_client(int fd)
{
    int mark;
    meet();
    await(fd, POLLPRI);
    await_in(fd, 3);
    T(ioctl(fd, SIOCATMARK, &mark));
    say("mark %d %d", mark, sockatmark(fd));
    D(recv(fd, buf, 10, MSG_OOB | MSG_PEEK));
    D(recv(fd, buf, 10, 0)); /* stops before the mark */
    T(ioctl(fd, SIOCATMARK, &mark));
    say("mark %d %d", mark, sockatmark(fd));
    D(recv(fd, buf, 10, MSG_OOB));
    T(recv(fd, buf, 10, MSG_OOB));
    await(fd, POLLIN);
    D(recv(fd, buf, 10, 0));
    T(ioctl(fd, SIOCATMARK, &mark));
    say("mark %d %d", mark, sockatmark(fd));
    echo_rounds(fd, 20, 3000);
    meet();
    await(fd, POLLPRI);
    D(recv(fd, buf, 10, 0));
    D(recv(fd, buf, 10, MSG_OOB));
    T(recv(fd, buf, 10, MSG_DONTWAIT));
}

static void oob_inline_server(int fd)
{
    hear();
    T(send(fd, "abc", 3, 0));
    T(send(fd, "!", 1, MSG_OOB));
    T(send(fd, "def", 3, 0));
    meet();
}

static void oob_inline_client(int fd)
{
    int mark;
    count_signal(SIGURG, 0);
    T(fcntl(fd, F_SETOWN, getpid()));
    T(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int)));
    tell(0);
    meet();
    await(fd, POLLPRI);
    await_in(fd, 4);
    D(recv(fd, buf, 10, 0));
    T(ioctl(fd, SIOCATMARK, &mark));
    say("mark %d %d signals %d", mark, sockatmark(fd), signals[SIGURG]);
    T(recv(fd, buf, 10, MSG_OOB));
    await_in(fd, 4);
    D(recv(fd, buf, 10, 0));
}

/* What holds for urgent data wherever the ends are. Between hosts, bytes before the mark may still
 * arrive by another way. */
static void oob_apart_server(int fd)
{
    oob_inline_server(fd);
    echo_rounds(fd, 20, 3000);
}

/* Waits for urgent data, with or without other bytes to read. */
static void await_urgent(int fd)
{
    while (!(ready(fd) & POLLPRI))
        usleep(1000);
}

/* Reads `n` bytes in as many calls as needed, because a read ends at the mark. */
static void pieces(int fd, size_t n)
{
    size_t got = 0;
    for (long r; got < n && (r = recv(fd, buf + got, n - got, 0)) > 0; got += r)
        ;
    say("%zu bytes: %.*s", got, (int)got, buf);
}

static void oob_apart_client(int fd)
{
    tell(0);
    await_urgent(fd);
    meet();
    D(recv(fd, buf, 10, MSG_OOB));
    pieces(fd, 6);
    say("mark %d", sockatmark(fd));
    echo_rounds(fd, 20, 3000);
}

static void oob_apart_inline_client(int fd)
{
    T(set_int(fd, SOL_SOCKET, SO_OOBINLINE, 1));
    tell(0);
    await_urgent(fd);
    meet();
    pieces(fd, 7);
    say("mark %d", sockatmark(fd));
    echo_rounds(fd, 20, 3000);
}

/* The first byte is urgent data: such a connection may not leave TCP. */
static void oob_first(int fd)
{
    fd = join_cold();
    if (is_server)
        T(send(fd, "u", 1, MSG_OOB));
    else {
        await(fd, POLLPRI);
        D(recv(fd, buf, 1, MSG_OOB));
    }
    warm(fd, is_server);
    echo_rounds(fd, 20, 5000);
}

/* Makes a message of each piece. */
static void of_pieces(struct mmsghdr *m, struct iovec *v, int n)
{
    for (int i = 0; i < n; i++)
        m[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = v + i, .msg_iovlen = 1}};
}

static void mmsg_server(int fd)
{
    struct mmsghdr m[5];
    struct iovec v[5];
    fill(buf, 1, 0, 5000);
    for (int i = 0; i < 5; i++)
        v[i] = (struct iovec){buf + 1000 * i, 1000 - i};
    of_pieces(m, v, 5);
    T(sendmmsg(fd, m, 5, 0));
    say("lengths %u %u %u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len, m[3].msg_len,
        m[4].msg_len);
    T(sendmmsg(fd, m, 0, 0));
    meet();
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void mmsg_client(int fd)
{
    struct mmsghdr m[4];
    struct iovec v[4];
    for (int i = 0; i < 4; i++)
        v[i] = (struct iovec){buf + 700 * i, 700};
    of_pieces(m, v, 4);
    await_in(fd, 4990);
    T(recvmmsg(fd, m, 4, 0, NULL));
    say("lengths %u %u %u %u sum %08x", m[0].msg_len, m[1].msg_len, m[2].msg_len, m[3].msg_len,
        sum(buf, 2800));
    for (int i = 0; i < 4; i++)
        v[i].iov_len = 1000;
    T(recvmmsg(fd, m, 4, MSG_WAITFORONE, NULL)); /* there is nothing for the fourth */
    say("lengths %u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    T(recvmmsg(fd, m, 4, MSG_DONTWAIT, NULL));
    meet();
    await(fd, POLLRDHUP);
    T(recvmmsg(fd, m, 2, MSG_WAITFORONE, NULL));
    say("lengths %u %u", m[0].msg_len, m[1].msg_len);
    meet();
}

/* recvmmsg has three empty buffers before the one for the unread byte. After it every other call
 * finds the byte gone. */
static void mmsg_of_nothing_client(int fd)
{
    struct iovec v[4] = {{buf, 0}, {buf, 0}, {buf, 0}, {buf, 1}};
    struct mmsghdr m[4];
    of_pieces(m, v, 4);
    int unread;
    await_in(fd, 1);
    T(shutdown(fd, SHUT_RDWR));
    meet();
    await(fd, POLLERR); /* the byte sent after the shutdown is answered by a RST */
    T(recvmmsg(fd, m, 4, 0, NULL));
    T(recvmmsg(fd, m, 4, 0, NULL));
    say("lengths %u %u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len, m[3].msg_len);
    T(ioctl(fd, FIONREAD, &unread));
    say("%d unread", unread);
    T(recv(fd, buf, 1, MSG_PEEK));
    T(recv(fd, buf, 1, 0));
    meet();
}

static void mmsg_of_nothing_server(int fd)
{
    T(put(fd, 1, 1));
    meet();
    T(put(fd, 1, 1));
    meet();
}

/* recvmsg with an empty buffer waits while nothing is unread. The body prints the message header
 * after the wait, which first the time limit ends, and then a byte. */
static void msg_of_nothing_client(int fd)
{
    for (int ms = 40; ms >= 0; ms -= 40) {
        char name[128], control[64];
        struct msghdr m = {name, sizeof name, &(struct iovec){buf, 0}, 1, control, sizeof control,
                           MSG_EOR};
        timeout(fd, SO_RCVTIMEO, ms);
        tell(ms);
        T(recvmsg(fd, &m, 0));
        say("name of %u, control of %zu, flags %x", m.msg_namelen, m.msg_controllen, m.msg_flags);
    }
    T(get(fd, 1, 1));
}

static void msg_of_nothing_server(int fd)
{
    hear();
    hear();
    await_asleep(peer_pid);
    T(put(fd, 1, 1));
}

static volatile size_t no_size = SIZE_MAX; /* volatile: the compiler would warn of the size */

/* The peer reads when everything is written: no bytes overtake those written before them. */
static void in_order_server(int fd)
{
    struct iovec half[3] = {{"DD", 2}, {NULL, 10}, {"XX", 2}}, a = {"EEEE", 4}, none = {buf, 0},
                 b = {"FFFF", 4}, bad = {NULL, 5};
    struct mmsghdr m[4] = {{.msg_hdr = {.msg_iov = &a, .msg_iovlen = 1}},
                           {.msg_hdr = {.msg_iov = &none, .msg_iovlen = 1}},
                           {.msg_hdr = {.msg_iov = &b, .msg_iovlen = 1}},
                           {.msg_hdr = {.msg_iov = &bad, .msg_iovlen = 1}}};
    T(send(fd, "AAAA", 4, 0));
    T(send(fd, "BBBB", 4, MSG_ZEROCOPY));
    T(send(fd, "CCCC", 4, 0));
    T(send(fd, "XXXX", 4, MSG_FASTOPEN));
    T(send(fd, NULL, 4, 0));
    T(write(fd, buf, no_size));
    T(sendmmsg(fd, m, 4, 0));
    say("lengths %u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    /* The kernel chooses how many of the bytes before a bad address it sends. */
    fill(buf, 1, 0, 100000);
    half[0] = (struct iovec){buf, 100000};
    ssize_t n = writev(fd, half, 3);
    YES(n > 0 && n <= 100000);
    T(send(fd, "GGGG", 4, 0));
    T(send(fd, "IIII", 4, MSG_ZEROCOPY | MSG_DONTWAIT));
    tell(n);
    meet();
}

static void in_order_client(int fd)
{
    long n = hear();
    D(recv(fd, buf, 20, MSG_WAITALL));
    YES(get(fd, 1, n) == (size_t)n);
    D(recv(fd, buf, 8, MSG_WAITALL));
    T(recv(fd, buf, 1, MSG_DONTWAIT));
    meet();
}

/* The program names buffers larger than memory: the kernel uses at most two GiB of them. */
static void said_too_large_server(int fd)
{
    for (int i = 0; i < 9; i++) {
        T(put(fd, i, 5));
        meet();
        meet();
    }
}

static void said_too_large_client(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    struct iovec v[3] = {{buf, 10}, {NULL, 10}, {buf, 10}};
    for (int i = 0; i < 9; i++) {
        meet();
        await_in(fd, 5);
        switch (i) {
        case 0: D(recv(fd, buf, no_size, 0)); break;
        case 1: D(recv(fd, buf, no_size >> 14, 0)); break;
        case 2: D(recvfrom(fd, buf, no_size, 0, (void *)&a, &len)); break;
        case 3: T(recv(fd, buf, no_size, MSG_PEEK)); D(recv(fd, buf, 5, 0)); break;
        case 4: T(read(fd, buf, no_size)); T(read(fd, buf, no_size >> 14));
            D(read(fd, buf, no_size >> 33)); break;
        case 5: T(readv(fd, &(struct iovec){buf, no_size}, 1)); D(recv(fd, buf, 5, 0)); break;
        case 6: D(readv(fd, v, 3)); break; /* the bad address is not reached */
        case 7: v[1].iov_base = (void *)(1ul << 63); T(readv(fd, v, 3)); D(recv(fd, buf, 5, 0));
            break;
        case 8: v[1] = (struct iovec){buf, no_size / 2}, v[0].iov_len = 100; T(readv(fd, v, 3));
            T(recv(fd, NULL, no_size, MSG_TRUNC | MSG_DONTWAIT)); break;
        }
        T(recv(fd, buf, 1, MSG_DONTWAIT));
        meet();
    }
}

/* sendmmsg sends no message after one that it sent in part: the stream would have a hole. */
enum { CUTS = 16, CUT = 300000 };
static void mmsg_cut_client(int fd)
{
    struct mmsghdr m[CUTS];
    struct iovec v[CUTS];
    size_t total = 0, within = 0, cut = 0;
    while (total < 40 << 20) {
        fill(buf, 1, total, CUTS * CUT);
        for (int i = 0; i < CUTS; i++)
            v[i] = (struct iovec){buf + i * CUT, CUT};
        of_pieces(m, v, CUTS);
        int n = sendmmsg(fd, m, CUTS, MSG_DONTWAIT);
        for (int i = 0; i < n; i++) {
            total += m[i].msg_len;
            within += i < n - 1 && m[i].msg_len != CUT;
            cut += m[i].msg_len != CUT;
        }
        if (n < 0 && !again(fd, POLLOUT))
            die("sendmmsg");
    }
    say("%zu cut within", within);
    YES(cut > 0);
    T(sendmmsg(fd, NULL, 1, 0));
    T(recvmmsg(fd, NULL, 1, 0, NULL));
    tell(total);
    meet();
}

static void mmsg_cut_server(int fd)
{
    enum { PIECE = 64 << 10 };
    for (size_t got = 0; got < 40 << 20; got += PIECE)
        if (get_at(fd, 1, got, PIECE) != PIECE)
            die("other bytes");
    pour_out(fd, hear() - (40 << 20));
    meet();
}

/* Vectors with more empty pieces in a row than the library looks at together. */
enum { EMPTY = 100 };
static struct iovec *with_empty(struct iovec *v, void *p, size_t n)
{
    for (int i = 0; i < EMPTY; i++)
        v[i] = (struct iovec){p, 0};
    v[EMPTY] = (struct iovec){p, n};
    return v;
}

static void iov_empty_client(int fd)
{
    struct iovec v[2 * EMPTY + 2];
    for (int i = 0; i < 3; i++) {
        fill(buf, i, 0, sizeof buf);
        with_empty(v, buf, sizeof buf - 1000);
        with_empty(v + EMPTY + 1, buf + sizeof buf - 1000, 1000);
        tell(0);
        T(writev(fd, v, COUNT(v)));
        meet();
    }
}

static void iov_empty_server(int fd)
{
    static char text[100000], wanted[sizeof text];
    struct iovec v[EMPTY + 1];
    for (int i = 0; i < 3; i++) {
        size_t n = 0, good = 0;
        hear();
        await_asleep(peer_pid);
        for (ssize_t r; n < sizeof buf; n += r) {
            r = readv(fd, with_empty(v, text, sizeof text), EMPTY + 1);
            if (r <= 0)
                die("readv");
            fill(wanted, i, n, r);
            good += memcmp(text, wanted, r) ? 0 : r;
        }
        say("%zu good", good);
        meet();
    }
}

const struct body msg_bodies[] = {
    TWO("peek", peek_server, peek_client),
    TWO("peek_growing", peek_growing_server, peek_growing_client),
    TWO("peek_blocks", peek_blocks_server, peek_blocks_client),
    TWO("peek_past_end", peek_past_end_server, peek_past_end_client),
    TWO("waitall_short", waitall_server, waitall_client),
    TWO("waitall_eof", waitall_eof_server, waitall_eof_client),
    TWO("waitall_signal", waitall_signal_server, waitall_signal_client),
    TWO("waitall_timeout", waitall_timeout_server, waitall_timeout_client),
    TWO("waitall_big", waitall_big_server, waitall_big_client),
    TWO("dontwait", dontwait_server, dontwait_client),
    TWO("trunc_discards", trunc_server, trunc_client),
    TWO("msg_more", more_server, more_client),
    TWO("cork", cork_server, cork_client),
    TWO("oob", oob_server, oob_client, .flags = ONEHOST),
    TWO("oob_inline", oob_inline_server, oob_inline_client, .flags = ONEHOST),
    TWO("oob_apart", oob_apart_server, oob_apart_client),
    TWO("oob_apart_inline", oob_apart_server, oob_apart_inline_client),
    TWO("oob_first", oob_first, oob_first, .flags = RAW | NOUP),
    TWO("mmsg", mmsg_server, mmsg_client),
    TWO("sent_in_order", in_order_server, in_order_client),
    TWO("buffers_said_too_large", said_too_large_server, said_too_large_client),
    TWO("msg_of_nothing", msg_of_nothing_server, msg_of_nothing_client),
    TWO("mmsg_of_nothing", mmsg_of_nothing_server, mmsg_of_nothing_client, .flags = ONEHOST),
    TWO("mmsg_cut", mmsg_cut_server, mmsg_cut_client, .limit = 30),
    TWO("iov_empty", iov_empty_server, iov_empty_client, .limit = 20),
    {0},
};
