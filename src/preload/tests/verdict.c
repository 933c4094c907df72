// Only with the double of the engine: every stream call on a tracked socket, with one verdict.
#include "common.h"

static volatile int pipes;

static void on_pipe(int sig)
{
    (void)sig;
    pipes++;
    errno = EDOM;
}

int main(void)
{
    int c, s;
    char b[8] = "";
    struct iovec v = {b, 3};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
    struct mmsghdr m[2] = {{.msg_hdr = h}, {.msg_hdr = h}};
    struct pollfd p;
    struct epoll_event e;
    struct timeval zero = {0, 0};
    fd_set set;
    signal(SIGPIPE, on_pipe);
    tcp_pair(&c, &s, NULL);
    p = (struct pollfd){.fd = c, .events = POLLIN};
    FD_ZERO(&set);
    FD_SET(c, &set);
    int set_fd = epoll_create1(0), n;
    SHOW(read(c, b, 3));
    SHOW(readv(c, &v, 1));
    SHOW(recv(c, b, 3, 0));
    SHOW(recvfrom(c, b, 3, 0, NULL, NULL));
    SHOW(recvmsg(c, &h, 0));
    SHOW(recvmmsg(c, m, 2, 0, NULL));
    struct timespec second = {1, 0};
    SHOW(recvmmsg(c, m, 2, 0, &second));
    SHOW(preadv2(c, &v, 1, -1, 0));
    SHOW(write(c, b, 3));
    SHOW(writev(c, &v, 1));
    SHOW(send(c, b, 3, 0));
    SHOW(sendto(c, b, 3, 0, NULL, 0));
    SHOW(sendmsg(c, &h, 0));
    SHOW(sendmmsg(c, m, 2, 0));
    SHOW(pwritev2(c, &v, 1, -1, 0));
    SHOW(sendfile(c, 0, NULL, 3));
    SHOW(ioctl(c, FIONREAD, &n));
    SHOW(poll(&p, 1, 0));
    SHOW(select(c + 1, &set, NULL, NULL, &zero));
    SHOW(epoll_wait(set_fd, &e, 1, 0));
    printf("SIGPIPE %d times\n", pipes);

    // Not a byte went to the kernel's socket.
    fflush(stdout);
    SHOW(syscall(SYS_getpid) > 0);
    SHOW(close(c));
    return 0;
}
