// Bytes through every call that moves them, both ways at once. The library, built for tests, says at each close what
// digests that end has (SLUICE_LOG=debug); scripts/prefix.py compares them. A line before each connection says how many
// the ends shall have at least: written and read by the connecting end, written and read by the other. After a - it may
// not be more.
#include "common.h"

enum { TOTAL = 40000 };
static unsigned char data[2][TOTAL], got[TOTAL];
static int file, many;
static unsigned seed = 1;

static unsigned number(unsigned below)
{
    seed = seed * 1103515245 + 12345;
    return (seed >> 8) % below;
}

// --- one call that moves at most `n` bytes ---

typedef ssize_t mover(int fd, unsigned char *at, size_t n);

static void split(struct iovec *v, unsigned char *at, size_t n)
{
    size_t one = number((unsigned)n + 1), two = number((unsigned)(n - one) + 1);
    v[0] = (struct iovec){at, one};
    v[1] = (struct iovec){NULL, 0};
    v[2] = (struct iovec){at + one, two};
    v[3] = (struct iovec){at + one + two, n - one - two};
}

static ssize_t by_write(int fd, unsigned char *at, size_t n) { return write(fd, at, n); }
static ssize_t by_read(int fd, unsigned char *at, size_t n) { return read(fd, at, n); }
static ssize_t by_send(int fd, unsigned char *at, size_t n) { return send(fd, at, n, MSG_NOSIGNAL); }
static ssize_t by_sendto(int fd, unsigned char *at, size_t n) { return sendto(fd, at, n, 0, NULL, 0); }
static ssize_t by_recvfrom(int fd, unsigned char *at, size_t n) { return recvfrom(fd, at, n, 0, NULL, NULL); }

static ssize_t by_peek(int fd, unsigned char *at, size_t n)
{
    if (number(2) && recv(fd, at, n, MSG_PEEK) <= 0)
        DIE("peek");
    return recv(fd, at, n, number(2) ? MSG_DONTWAIT : 0);
}

static ssize_t by_writev(int fd, unsigned char *at, size_t n)
{
    struct iovec v[4];
    split(v, at, n);
    return writev(fd, v, 4);
}

static ssize_t by_readv(int fd, unsigned char *at, size_t n)
{
    struct iovec v[4];
    split(v, at, n);
    return readv(fd, v, 4);
}

static ssize_t by_sendmsg(int fd, unsigned char *at, size_t n)
{
    struct iovec v[4];
    split(v, at, n);
    return sendmsg(fd, &(struct msghdr){.msg_iov = v, .msg_iovlen = 4}, 0);
}

static ssize_t by_recvmsg(int fd, unsigned char *at, size_t n)
{
    struct iovec v[4];
    split(v, at, n);
    return recvmsg(fd, &(struct msghdr){.msg_iov = v, .msg_iovlen = 4}, 0);
}

static ssize_t by_mmsg(int fd, unsigned char *at, size_t n, int sends)
{
    struct iovec v[4];
    struct mmsghdr m[2] = {{{.msg_iov = v, .msg_iovlen = 3}, 0}, {{.msg_iov = v + 3, .msg_iovlen = 1}, 0}};
    split(v, at, n);
    // An empty message would be waited for.
    int count = v[3].iov_len ? 2 : 1;
    if (v[3].iov_len == n)
        m[0].msg_hdr = m[1].msg_hdr, count = 1;
    count = sends ? sendmmsg(fd, m, (unsigned)count, 0) : recvmmsg(fd, m, (unsigned)count, MSG_DONTWAIT, NULL);
    return count < 1 ? -1 : (ssize_t)m[0].msg_len + (count < 2 ? 0 : (ssize_t)m[1].msg_len);
}

static ssize_t by_sendmmsg(int fd, unsigned char *at, size_t n) { return by_mmsg(fd, at, n, 1); }
// Short messages leave holes in the buffer: nobody looks at what it holds.
static ssize_t by_recvmmsg(int fd, unsigned char *at, size_t n) { return by_mmsg(fd, at, n, 0); }

static ssize_t by_sendfile(int fd, unsigned char *at, size_t n)
{
    off_t from = at - data[0];
    if (number(2))
        return sendfile(fd, file, &from, n);
    lseek(file, from, SEEK_SET);
    return sendfile(fd, file, NULL, n);
}

static ssize_t by_truncating(int fd, unsigned char *at, size_t n) { return recv(fd, at, n, MSG_TRUNC); }

static ssize_t by_splice(int fd, unsigned char *at, size_t n)
{
    int p[2];
    if (pipe(p))
        DIE("pipe");
    ssize_t moved = splice(fd, NULL, p[1], NULL, n, 0);
    (void)at;
    close(p[0]);
    close(p[1]);
    return moved;
}

static ssize_t by_urgent(int fd, unsigned char *at, size_t n) { return send(fd, at, n, MSG_OOB); }

// --- connections ---

static void pump(int from, int to, unsigned char *bytes, size_t n, mover *out, mover *in)
{
    for (size_t sent = 0; sent < n;) {
        size_t most = n - sent < 7000 ? n - sent : 7000;
        ssize_t some = out(from, bytes + sent, 1 + number((unsigned)most));
        if (some <= 0)
            DIE("out");
        sent += (size_t)some;
        while (some) {
            ssize_t here = in(to, got, 1 + number((unsigned)some));
            if (here < 0 && errno != EAGAIN)
                DIE("in");
            some -= here > 0 ? here : 0;
        }
    }
}

static void begin(const char *name, const char *expected, int *c, int *s)
{
    fprintf(stderr, "%s%s: %s\n", name, many ? " of a thread" : "", expected);
    tcp_pair(c, s, NULL);
}

static void whole(const char *name, const char *expected, mover *out, mover *in)
{
    int c, s;
    begin(name, expected, &c, &s);
    pump(c, s, data[0], TOTAL, out, in);
    pump(s, c, data[1], TOTAL, out, in);
    close(c);
    close(s);
}

// The first 3000 bytes as usual, then one way.
static void hidden(const char *name, const char *expected, mover *out, mover *in)
{
    int c, s;
    begin(name, expected, &c, &s);
    pump(c, s, data[0], 3000, by_write, by_read);
    pump(c, s, data[0] + 3000, 1000, out, in);
    pump(c, s, data[0] + 4000, 20000, by_write, by_read);
    close(c);
    close(s);
}

static void not_there(void)
{
    int c, s;
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    begin("not there", "15 0 0 15", &c, &s);
    pump(c, s, data[0], 3000, by_write, by_read);
    munmap(page, 8192);
    struct iovec v[2] = {{page, 4096}, {data[0], 1}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    if (write(c, page, 100) != -1 || errno != EFAULT || writev(c, v, 2) != -1 || errno != EFAULT
        || writev(c, (struct iovec *)page, 2) != -1 || errno != EFAULT || sendmsg(c, &m, 0) != -1
        || errno != EFAULT || sendmsg(c, (struct msghdr *)page, 0) != -1 || errno != EFAULT)
        DIE("memory that is not there");
    pump(c, s, data[0] + 3000, 20000, by_write, by_read);
    close(c);
    close(s);
}

static void partly_written(void)
{
    int c, s, small = 4096, sent = 0, read_so_far = 0;
    begin("partly written", "16 0 0 16", &c, &s);
    setsockopt(c, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    setsockopt(s, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    fcntl(c, F_SETFL, O_NONBLOCK);
    while (read_so_far < TOTAL) {
        ssize_t n = write(c, data[1] + sent, (size_t)(TOTAL - sent));
        sent += n > 0 ? (int)n : 0;
        n = recv(s, got, 1500, MSG_DONTWAIT);
        read_so_far += n > 0 ? (int)n : 0;
    }
    close(c);
    close(s);
}

static void forked(void)
{
    int c, s;
    begin("forked", "16 0 0 16", &c, &s);
    pump(c, s, data[0], 3000, by_write, by_read);
    pid_t child = fork();
    if (child == 0) {
        close(s);
        if (write(c, data[1], TOTAL) != TOTAL)
            DIE("child");
        close(c);
        _exit(0);
    }
    close(c);
    while (read(s, got, TOTAL) > 0)
        ;
    waitpid(child, NULL, 0);
    close(s);
}

static int shared;

static void *writes(void *arg)
{
    for (int i = 0; i < 2000; i++)
        if (write(shared, (char *)arg + i * 10, 10) != 10)
            DIE("thread");
    return NULL;
}

static void *nothing(void *arg)
{
    return arg;
}

static void two_threads(void)
{
    int c, s;
    pthread_t t[2];
    // Who writes in between whom is not known.
    begin("two threads", "8 0 0 16", &c, &s);
    pump(c, s, data[0], 200, by_write, by_read);
    shared = c;
    for (int i = 0; i < 2; i++)
        pthread_create(&t[i], NULL, writes, data[i]);
    for (int left = 40000; left;)
        left -= (int)read(s, got, (size_t)left);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    close(c);
    close(s);
}

static void on_alarm(int sig)
{
    int saved = errno;
    (void)sig;
    if (write(shared, "!", 1) != 1)
        DIE("handler");
    errno = saved;
}

static void handlers(void)
{
    int c, s;
    begin("handlers", "0 0 0 16", &c, &s);
    shared = c;
    struct sigaction act = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &act, NULL);
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < TOTAL / 20; i++) {
        if (write(c, data[1] + i * 20, 20) != 20)
            DIE("write");
        while (recv(s, got, TOTAL, MSG_DONTWAIT) > 0)
            ;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    shutdown(c, SHUT_WR);
    while (read(s, got, TOTAL) > 0)
        ;
    close(c);
    close(s);
}

static void all(void)
{
    const char *both = "16 16 16 16";
    whole("write and read", both, by_write, by_read);
    whole("send and recv with peeks", both, by_send, by_peek);
    whole("sendto and recvfrom", both, by_sendto, by_recvfrom);
    whole("writev and readv", both, by_writev, by_readv);
    whole("sendmsg and recvmsg", both, by_sendmsg, by_recvmsg);
    whole("sendmmsg and recvmmsg", both, by_sendmmsg, by_recvmmsg);
    whole("sendfile", both, by_sendfile, by_read);
    hidden("thrown away", "15 0 0 -12", by_write, by_truncating);
    hidden("spliced", "15 0 0 -12", by_write, by_splice);
    not_there();
    partly_written();
    forked();
    handlers();
    int c, s;
    begin("urgent", "-12 0 0 12", &c, &s);
    pump(c, s, data[0], 3000, by_write, by_read);
    by_urgent(c, data[0], 1);
    pump(c, s, data[0] + 3000, 20000, by_write, by_read);
    close(c);
    close(s);
}

int main(void)
{
    pthread_t t;
    for (int i = 0; i < TOTAL; i++)
        data[0][i] = (unsigned char)number(256), data[1][i] = (unsigned char)number(256);
    file = memfd_create("prefix", 0);
    if (file < 0 || write(file, data, sizeof data) != sizeof data)
        DIE("file");
    all();
    // From here on what was written may be gone by the time that it is looked at.
    pthread_create(&t, NULL, nothing, NULL);
    pthread_join(t, NULL);
    many = 1;
    all();
    two_threads();
    return 0;
}
