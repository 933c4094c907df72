// Every hooked call on a TCP connection, a listener, an epoll set and other descriptors: results and
// errors, and that a successful call leaves errno alone.
#include "common.h"
#include <linux/sockios.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>

static int c, s, l;

// A successful call must leave errno as it was.
#define QUIET(call)                                                                                \
    do {                                                                                           \
        errno = EXDEV;                                                                             \
        long ret_ = (long)(call);                                                                  \
        printf("%s = %ld, errno %s\n", #call, ret_, strerrorname_np(errno));                       \
        fflush(stdout);                                                                            \
    } while (0)

static void settle(void)
{
    usleep(20000);
}

static void stream(void)
{
    char b[64];
    struct iovec v[2] = {{"hel", 3}, {"lo", 2}}, r[2] = {{b, 2}, {b + 2, 10}};
    struct msghdr h = {.msg_iov = v, .msg_iovlen = 2}, g = {.msg_iov = r, .msg_iovlen = 2};
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    QUIET(write(c, "abc", 3));
    settle();
    QUIET(read(s, b, 64));
    QUIET(writev(c, v, 2));
    settle();
    QUIET(readv(s, r, 2));
    QUIET(send(c, "abcd", 4, MSG_NOSIGNAL));
    settle();
    QUIET(recv(s, b, 2, MSG_PEEK));
    QUIET(recv(s, b, 64, MSG_DONTWAIT));
    SHOW(recv(s, b, 64, MSG_DONTWAIT));
    QUIET(sendto(c, "xy", 2, 0, NULL, 0));
    settle();
    memset(&a, 7, sizeof a);
    QUIET(recvfrom(s, b, 64, 0, (struct sockaddr *)&a, &n));
    printf("address length %u, untouched %d\n", n, a.ss_family == 0x0707);
    getpeername(c, (struct sockaddr *)&a, (n = sizeof a, &n));
    QUIET(sendto(c, "xyz", 3, 0, (struct sockaddr *)&a, n));
    settle();
    QUIET(recvfrom(s, b, 64, 0, NULL, NULL));
    QUIET(sendmsg(c, &h, 0));
    settle();
    QUIET(recvmsg(s, &g, 0));
    printf("flags %x\n", g.msg_flags);
    struct mmsghdr mm[3] = {{.msg_hdr = h}, {.msg_hdr = h}, {.msg_hdr = h}};
    QUIET(sendmmsg(c, mm, 3, 0));
    printf("lengths %u %u %u\n", mm[0].msg_len, mm[1].msg_len, mm[2].msg_len);
    settle();
    struct iovec five[3] = {{b, 5}, {b + 5, 5}, {b + 10, 5}};
    for (int i = 0; i < 3; i++)
        mm[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &five[i], .msg_iovlen = 1}};
    QUIET(recvmmsg(s, mm, 3, MSG_WAITFORONE, NULL));
    printf("lengths %u %u %u %.15s\n", mm[0].msg_len, mm[1].msg_len, mm[2].msg_len, b);
    SHOW(recvmmsg(s, mm, 3, MSG_DONTWAIT, NULL));
    struct timespec bad = {-1, 0};
    SHOW(recvmmsg(s, mm, 3, MSG_DONTWAIT, &bad));
    SHOW(recvmmsg(s, mm, 0, MSG_DONTWAIT, NULL));
    QUIET(pwritev2(c, v, 2, -1, 0));
    settle();
    QUIET(preadv2(s, r, 2, -1, 0));
    SHOW(preadv2(s, r, 2, -1, RWF_NOWAIT));
    SHOW(preadv2(s, r, 2, 0, 0));
    SHOW(pwritev2(c, v, 2, 5, 0));
    SHOW(pwritev2(c, v, 2, -1, 0x40000000));
    SHOW(preadv64v2(s, r, -1, -1, 0));
    SHOW(pwritev64v2(c, v, 2000, -1, 0));
    SHOW(readv(s, r, -1));
    SHOW(writev(c, v, 5000));
    SHOW(writev(c, v, 0));

    int f = open("/tmp", O_TMPFILE | O_RDWR, 0600), p[2];
    off_t at = 2;
    QUIET(write(f, "0123456789", 10));
    QUIET(sendfile(c, f, &at, 5));
    printf("offset %ld\n", (long)at);
    QUIET(lseek(f, 0, SEEK_SET));
    QUIET(sendfile64(c, f, NULL, 100));
    settle();
    QUIET(recv(s, b, 15, MSG_WAITALL));
    printf("%.15s\n", b);
    SHOW(sendfile(c, s, NULL, 5));
    SHOW(sendfile(c, -1, NULL, 5));
    SHOW(sendfile(-1, f, NULL, 5));
    if (pipe(p))
        DIE("pipe");
    QUIET(write(p[1], "pipe", 4));
    SHOW(tee(p[0], c, 4, 0));
    QUIET(splice(p[0], NULL, c, NULL, 4, 0));
    settle();
    QUIET(splice(s, NULL, p[1], NULL, 64, 0));
    QUIET(read(p[0], b, 64));
    QUIET(vmsplice(p[1], v, 2, 0));
    SHOW(vmsplice(c, v, 2, 0));
    close(p[0]), close(p[1]), close(f);
}

static void readiness(void)
{
    struct pollfd p[3] = {{s, POLLIN | POLLOUT, 0}, {c, POLLIN, 0}, {-1, POLLIN, 0}};
    QUIET(poll(p, 3, 0));
    printf("%x %x %x\n", p[0].revents, p[1].revents, p[2].revents);
    QUIET(write(c, "r", 1));
    settle();
    QUIET(poll(p, 3, -1));
    printf("%x %x %x\n", p[0].revents, p[1].revents, p[2].revents);
    struct timespec t = {0, 1000};
    QUIET(ppoll(p + 1, 2, &t, NULL));
    SHOW(poll(NULL, 1, 0));
    SHOW(poll(p, -1, 0));
    QUIET(poll(NULL, 0, 0));
    fd_set r, w;
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_SET(s, &r);
    FD_SET(c, &r);
    FD_SET(c, &w);
    struct timeval tv = {0, 2500000};
    QUIET(select(64, &r, &w, NULL, &tv));
    printf("%d %d %d, time left %d\n", !!FD_ISSET(s, &r), !!FD_ISSET(c, &r), !!FD_ISSET(c, &w),
           tv.tv_sec == 2);
    FD_ZERO(&r);
    FD_SET(c, &r);
    tv = (struct timeval){0, 1000};
    // Far beyond the table: the kernel stops at its end, and so must everyone.
    QUIET(select(1 << 20, &r, NULL, NULL, &tv));
    FD_SET(c, &r);
    QUIET(pselect(64, &r, NULL, NULL, &t, NULL));
    tv = (struct timeval){-1, 0};
    SHOW(select(64, &r, NULL, NULL, &tv));
    SHOW(select(-1, &r, NULL, NULL, NULL));
    int e = MADE(epoll_create(1)), e1 = MADE(epoll_create1(EPOLL_CLOEXEC));
    MADE(epoll_create(0));
    MADE(epoll_create1(77));
    struct epoll_event ev = {EPOLLIN, {.u64 = 0x123456789abcdefULL}}, out[4];
    QUIET(epoll_ctl(e, EPOLL_CTL_ADD, s, &ev));
    SHOW(epoll_ctl(e, EPOLL_CTL_ADD, s, &ev));
    SHOW(epoll_ctl(e, EPOLL_CTL_MOD, c, &ev));
    SHOW(epoll_ctl(-1, EPOLL_CTL_ADD, s, &ev));
    SHOW(epoll_ctl(e, EPOLL_CTL_ADD, -1, &ev));
    SHOW(epoll_ctl(s, EPOLL_CTL_ADD, c, &ev));
    QUIET(epoll_ctl(e1, EPOLL_CTL_ADD, e, &ev));
    QUIET(epoll_wait(e, out, 4, -1));
    printf("%x %llx\n", out[0].events, (long long)out[0].data.u64);
    QUIET(epoll_pwait(e1, out, 4, 100, NULL));
    QUIET(epoll_pwait2(e, out, 4, &t, NULL));
    SHOW(epoll_wait(e, out, 0, 0));
    SHOW(epoll_wait(-1, out, 4, 0));
    SHOW(epoll_wait(s, out, 4, 0));
    char b[4];
    QUIET(read(s, b, 4));
    QUIET(epoll_wait(e, out, 4, 1));
    QUIET(epoll_ctl(e, EPOLL_CTL_DEL, s, NULL));
    close(e), close(e1);
}

static void options(void)
{
    int v = 1, n = -1;
    socklen_t len = sizeof v;
    QUIET(setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &v, sizeof v));
    QUIET(getsockopt(c, IPPROTO_TCP, TCP_NODELAY, &v, &len));
    printf("%d %u\n", v != 0, len);
    SHOW(setsockopt(c, SOL_SOCKET, 9999, &v, sizeof v));
    SHOW(getsockopt(c, 9999, 1, &v, &len));
    SHOW(getsockopt(-1, SOL_SOCKET, SO_ERROR, &v, &len));
    QUIET(getsockopt(c, SOL_SOCKET, SO_ERROR, &v, &len));
    QUIET(write(c, "abcde", 5));
    settle();
    QUIET(ioctl(s, FIONREAD, &n));
    printf("unread %d\n", n);
    QUIET(ioctl(c, SIOCOUTQ, &n));
    printf("unsent %d\n", n);
    char b[8];
    QUIET(read(s, b, 8));
    v = 1;
    QUIET(ioctl(s, FIONBIO, &v));
    SHOW(read(s, b, 8));
    v = 0;
    QUIET(ioctl(s, FIONBIO, &v));
    QUIET(fcntl(s, F_SETFL, O_NONBLOCK));
    SHOW(read(s, b, 8));
    QUIET(fcntl64(s, F_SETFL, 0));
    SHOW(ioctl(s, 0xdead));
    SHOW(ioctl(-1, FIONREAD, &n));
}

static void numbers(void)
{
    int d = dup(c);
    printf("dup %d\n", d > c);
    QUIET(write(d, "via dup", 7));
    SHOW(dup2(c, 200));
    SHOW(dup2(200, 200));
    SHOW(dup2(-1, 200));
    SHOW(dup2(200, -1));
    SHOW(dup3(c, 201, O_CLOEXEC));
    SHOW(dup3(c, c, 0));
    SHOW(fcntl(201, F_GETFD));
    SHOW(fcntl(c, F_DUPFD, 300));
    SHOW(fcntl64(c, F_DUPFD_CLOEXEC, 300));
    char b[16] = "";
    QUIET(read(s, b, 7));
    QUIET(write(300, "three", 5));
    settle();
    QUIET(read(s, b, 5));
    SHOW(close_range(300, 400, 0));
    SHOW(fcntl(300, F_GETFD));
    SHOW(close_range(400, 300, 0));
    SHOW(close_range(200, 201, CLOSE_RANGE_CLOEXEC));
    SHOW(fcntl(200, F_GETFD));
    SHOW(close(200));
    SHOW(close(200));
    SHOW(close(-1));
    QUIET(write(201, "alive", 5));
    settle();
    QUIET(read(s, b, 5));
    close(d);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        closefrom(3);
        SHOW(fcntl(c, F_GETFD));
        SHOW(fcntl(1, F_GETFD));
        int f = open("/dev/null", O_RDONLY);
        printf("next is 3: %d\n", f == 3);
        closefrom(-5);
        _exit(fcntl(1, F_GETFD) == -1 ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("closefrom child %d\n", status);
    pid = fork();
    if (pid == 0) {
        SHOW(close_range(3, ~0U, 0));
        _exit(open("/dev/null", O_RDONLY) == 3 ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    printf("close_range child %d\n", status);
}

static void others(void)
{
    int p[2];
    sigset_t set;
    sigemptyset(&set);
    SHOW(pipe(p) || close(p[0]) || close(p[1]));
    SHOW(pipe2(p, O_CLOEXEC) || close(p[0]) || close(p[1]));
    SHOW(pipe2(p, 12345));
    SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, p) || close(p[0]) || close(p[1]));
    SHOW(socketpair(AF_INET, SOCK_STREAM, 0, p));
    close(MADE(eventfd(3, EFD_CLOEXEC)));
    close(MADE(timerfd_create(CLOCK_MONOTONIC, 0)));
    int g = MADE(signalfd(-1, &set, 0));
    SHOW(signalfd(g, &set, 0) == g);
    close(g);
    close(MADE(inotify_init()));
    close(MADE(inotify_init1(IN_NONBLOCK)));
    MADE(inotify_init1(12345));
    MADE(fanotify_init(0xffffffff, 0));
    close(MADE(memfd_create("test", MFD_CLOEXEC)));
    close(MADE((int)syscall(SYS_pidfd_open, getpid(), 0)));
    char t[64] = "/tmp/sluice-calls-XXXXXX";
    close(MADE(mkstemp(t))), unlink(t);
    strcpy(t, "/tmp/sluice-calls-XXXXXX.suffix");
    close(MADE(mkostemps(t, 7, O_CLOEXEC))), unlink(t);
    strcpy(t, "wrong");
    MADE(mkostemp(t, 0));
    MADE(shm_open("/sluice-no-such", O_RDONLY, 0));
    MADE(socket(AF_INET, 77, 0));
    MADE(socket(-1, SOCK_STREAM, 0));
    SHOW(unshare(0));
    SHOW(setns(-1, 0));
    FILE *f = fdopen(dup(1), "w");
    fprintf(f, "by stdio\n");
    SHOW(fclose(f));
    SHOW(fdopen(-1, "r") == NULL);
    SHOW(syscall(SYS_io_uring_setup, 0, NULL));

    // Descriptors in messages.
    int u[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, u))
        DIE("socketpair");
    char b[8] = "", control[CMSG_SPACE(sizeof(int))];
    struct iovec v = {"fd", 2}, r = {b, 8};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *m = CMSG_FIRSTHDR(&h);
    *m = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(m), &c, sizeof c);
    QUIET(sendmsg(u[0], &h, 0));
    h.msg_iov = &r, h.msg_controllen = sizeof control;
    QUIET(recvmsg(u[1], &h, 0));
    int got = -1;
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof got);
    printf("got a descriptor: %d\n", got >= 0 && got != c);
    QUIET(write(got, "passed", 6));
    settle();
    QUIET(read(s, b, 6));
    close(got), close(u[0]), close(u[1]);
}

static void ends(void)
{
    char b[4];
    SHOW(shutdown(c, 77));
    SHOW(shutdown(l, SHUT_WR));
    QUIET(shutdown(c, SHUT_WR));
    settle();
    QUIET(read(s, b, 4));
    signal(SIGPIPE, SIG_IGN);
    SHOW(write(c, "x", 1));
    SHOW(send(c, "x", 1, MSG_NOSIGNAL));
    SHOW(read(77, b, 4));
    SHOW(write(-1, b, 4));
    SHOW(recv(0x7fffffff, b, 4, 0));
    SHOW(send(INT_MIN, b, 4, 0));
    SHOW(recvmsg(-1, NULL, 0));
    SHOW(recvmsg(c, NULL, 0));
    SHOW(sendmsg(-1, NULL, 0));
    SHOW(sendmmsg(-1, NULL, 3, 0));
    SHOW(recvmmsg(-1, NULL, 3, 0, NULL));
    SHOW(accept(-1, NULL, NULL));
    SHOW(accept4(c, NULL, NULL, 0));
    SHOW(listen(-1, 1));
    SHOW(bind(c, NULL, 0));
    SHOW(connect(-1, NULL, 0));
    SHOW(close(c));
    SHOW(read(c, b, 4));
}

int main(void)
{
    alarm(30);
    tcp_pair(&c, &s, &l);
    stream();
    readiness();
    options();
    numbers();
    others();
    ends();
    return 0;
}
