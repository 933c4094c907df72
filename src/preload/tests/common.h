// Shared by the tests of the hooks. Each test prints what a program sees; the runner compares the
// output plain and preloaded, so nothing printed may depend on time, process ids or free numbers.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

// Prints the call, its result and, if it failed, the error.
#define SHOW(call)                                                                                 \
    do {                                                                                           \
        errno = 0;                                                                                 \
        long ret_ = (long)(call);                                                                  \
        int err_ = errno;                                                                          \
        printf("%s = %ld%s%s\n", #call, ret_, ret_ < 0 ? " " : "",                                 \
               ret_ < 0 ? strerrorname_np(err_) : "");                                             \
        fflush(stdout);                                                                            \
    } while (0)

// As SHOW for a call that makes a descriptor: whether it did.
#define MADE(call)                                                                                 \
    ({                                                                                             \
        errno = 0;                                                                                 \
        int fd_ = (call);                                                                          \
        int err_ = errno;                                                                          \
        printf("%s = %s\n", #call, fd_ >= 0 ? "fd" : strerrorname_np(err_));                       \
        fflush(stdout);                                                                            \
        fd_;                                                                                       \
    })

#define DIE(what)                                                                                  \
    do {                                                                                           \
        perror(what);                                                                              \
        exit(99);                                                                                  \
    } while (0)

// A connected pair of TCP sockets on the loopback interface, and the listener if wanted.
__attribute__((unused)) static void tcp_pair(int *client, int *server, int *listener)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM, 0);
    if (l < 0 || bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 8)
        || getsockname(l, (struct sockaddr *)&a, &n))
        DIE("listener");
    *client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(*client, (struct sockaddr *)&a, sizeof a))
        DIE("connect");
    *server = accept(l, NULL, NULL);
    if (*server < 0)
        DIE("accept");
    if (listener)
        *listener = l;
    else
        close(l);
}
