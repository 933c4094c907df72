// A thread is cancelled in each call that blocks, on sockets that may be tracked and on descriptors
// that never are. The cleanup handler runs, the thread ends as cancelled and the process goes on.
// With the argument `polls`: poll, select and their kin on TCP sockets, and nothing else.
#include "common.h"

static int fd;
static char big[1 << 20];
static volatile int cleaned, entered;

static void cleanup(void *arg)
{
    (void)arg;
    cleaned = 1;
}

enum call {
    READ, READV, RECV, RECVFROM, RECVMSG, RECVMMSG, PREADV2, WRITE, WRITEV, SEND, SENDTO, SENDMSG, SENDMMSG,
    PWRITEV2, POLL, PPOLL, SELECT, PSELECT, EPOLL_WAIT, EPOLL_PWAIT, EPOLL_PWAIT2, ACCEPT, ACCEPT4, CALLS,
};
static const char *names[] = {
    "read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg", "preadv2", "write", "writev", "send",
    "sendto", "sendmsg", "sendmmsg", "pwritev2", "poll", "ppoll", "select", "pselect", "epoll_wait",
    "epoll_pwait", "epoll_pwait2", "accept", "accept4",
};

static long block(enum call call)
{
    char b[8];
    int out = call >= WRITE && call <= PWRITEV2;
    struct iovec v = {out ? big : b, out ? sizeof big : sizeof b};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
    struct mmsghdr m = {.msg_hdr = h};
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct epoll_event e;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    switch (call) {
    case READ: return read(fd, b, sizeof b);
    case READV: return readv(fd, &v, 1);
    case RECV: return recv(fd, b, sizeof b, 0);
    case RECVFROM: return recvfrom(fd, b, sizeof b, 0, NULL, NULL);
    case RECVMSG: return recvmsg(fd, &h, 0);
    case RECVMMSG: return recvmmsg(fd, &m, 1, 0, NULL);
    case PREADV2: return preadv2(fd, &v, 1, -1, 0);
    case WRITE: return write(fd, big, sizeof big);
    case WRITEV: return writev(fd, &v, 1);
    case SEND: return send(fd, big, sizeof big, 0);
    case SENDTO: return sendto(fd, big, sizeof big, 0, NULL, 0);
    case SENDMSG: return sendmsg(fd, &h, 0);
    case SENDMMSG: return sendmmsg(fd, &m, 1, 0);
    case PWRITEV2: return pwritev2(fd, &v, 1, -1, 0);
    case POLL: return poll(&p, 1, -1);
    case PPOLL: return ppoll(&p, 1, NULL, NULL);
    case SELECT: return select(fd + 1, &set, NULL, NULL, NULL);
    case PSELECT: return pselect(fd + 1, &set, NULL, NULL, NULL, NULL);
    case EPOLL_WAIT: return epoll_wait(fd, &e, 1, -1);
    case EPOLL_PWAIT: return epoll_pwait(fd, &e, 1, -1, NULL);
    case EPOLL_PWAIT2: return epoll_pwait2(fd, &e, 1, NULL, NULL);
    case ACCEPT: return accept(fd, NULL, NULL);
    case ACCEPT4: return accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    default: return -1;
    }
}

static void *thread(void *arg)
{
    enum call call = (enum call)(intptr_t)arg;
    pthread_cleanup_push(cleanup, NULL);
    entered = 1;
    for (int i = 0; i < 64; i++)
        block(call);
    pthread_cleanup_pop(0);
    return NULL;
}

// Cancels the call while it blocks, and again with the request pending at its entry.
static void cancelled(enum call call, const char *on)
{
    for (int wait = 1; wait >= 0; wait--) {
        pthread_t t;
        void *result = NULL;
        cleaned = entered = 0;
        pthread_create(&t, NULL, thread, (void *)(intptr_t)call);
        while (wait && !entered)
            sched_yield();
        if (wait)
            usleep(30000);
        pthread_cancel(t);
        pthread_join(t, &result);
        printf("%s on %s%s: %s, cleanup %d\n", names[call], on, wait ? "" : ", at the entry",
               result == PTHREAD_CANCELED ? "cancelled" : "returned", wait ? cleaned : 1);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    (void)argv;
    alarm(60);
    int p[2], u[2], c, s, l;
    if (argc > 1) {
        alarm(10);
        for (int call = POLL; call <= PSELECT; call++) {
            tcp_pair(&c, &s, NULL);
            fd = c;
            cancelled(call, "a TCP socket");
            close(c), close(s);
        }
        return 0;
    }
    signal(SIGPIPE, SIG_IGN);
    if (pipe(p) || socketpair(AF_UNIX, SOCK_STREAM, 0, u))
        DIE("pipe");
    for (int call = READ; call <= EPOLL_PWAIT2; call++) {
        int files = call == READ || call == READV || call == PREADV2 || call == POLL || call == PPOLL
            || call == SELECT || call == PSELECT;
        if (files) {
            fd = p[0];
            cancelled(call, "a pipe");
        }
        if (call == WRITE || call == WRITEV || call == PWRITEV2) {
            fd = p[1];
            cancelled(call, "a pipe");
            close(p[0]), close(p[1]);
            if (pipe(p))
                DIE("pipe");
        }
        if (call >= EPOLL_WAIT) {
            fd = epoll_create1(0);
            cancelled(call, "an epoll set");
            close(fd);
            continue;
        }
        fd = u[0];
        cancelled(call, "a Unix socket");
        if (call < POLL) {
            tcp_pair(&c, &s, NULL);
            fd = c;
            cancelled(call, "a TCP socket");
            close(c), close(s);
        }
        close(u[0]), close(u[1]);
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, u))
            DIE("socketpair");
    }
    tcp_pair(&c, &s, &l);
    fd = l;
    cancelled(ACCEPT, "a TCP listener");
    cancelled(ACCEPT4, "a TCP listener");

    // Everything still works.
    char b[8] = "";
    SHOW(write(c, "after", 6));
    SHOW(read(s, b, 8));
    puts(b);
    return 0;
}
