/* Bad pointers, in each place where a call takes one: what the call returns, and how many bytes it
 * has moved. The cases of one pointer share a child and its connection. If a signal kills the
 * child, the transcript names the case, and another child runs the later ones. */
#include "t.h"
#include <linux/capability.h>
#include <linux/io_uring.h>
#include <linux/sched.h>
#include <sys/shm.h>
#include <sys/signalfd.h>

enum place { WITHOUT_ACCESS, UNMAPPED, ALL_ONES, CUT, READ_ONLY, GONE, REPLACED, PLACES };
static const char *const places[] = {"without access", "unmapped", "-1", "cut", "read-only", "gone",
                                     "replaced"};
enum { PAGE = 4096, HOLE = 64 << 20 };

enum descriptor { CONNECTION, FRESH, UNIX, DESCRIPTORS };
static const char *const descriptors[] = {"connection", "fresh", "unix"};

enum effect {
    READS = 1,    /* ten bytes are unread when the call is made */
    IS_LISTENER = 2, /* the descriptor is a listener with connections to accept */
    LEAVES_ERROR = 8, /* on TCP, not on a link, for the next call: docs/limitations.md */
    WRITES_NONE = 4, /* the call only reads the memory: READ_ONLY is left out */
};

/* One pointer of one call. */
struct call {
    const char *name;
    long (*make)(int fd, void *p);
    void (*fill)(int fd, void *p); /* writes valid content there */
    size_t size;
    int effects;
};

static char area[64]; /* the bytes that are moved */
/* Each child's: an epoll set with the descriptor in it, a file, and the descriptor's peer. */
static int set, file, other;

/* --- what is pointed to --- */

static struct iovec good_piece = {area, 10};

static void fill_pieces(int fd, void *p)
{
    (void)fd;
    ((struct iovec *)p)[0] = (struct iovec){area, 4},
    ((struct iovec *)p)[1] = (struct iovec){area + 4, 6};
}
static void fill_header(int fd, void *p)
{
    (void)fd;
    *(struct msghdr *)p = (struct msghdr){.msg_iov = &good_piece, .msg_iovlen = 1};
}
static void fill_headers(int fd, void *p)
{
    for (int i = 0; i < 2; i++)
        memset(p + i * sizeof(struct mmsghdr), 0, sizeof(struct mmsghdr)),
            fill_header(fd, &((struct mmsghdr *)p)[i].msg_hdr);
}
static void fill_address(int fd, void *p)
{
    socklen_t len = sizeof(struct sockaddr_in);
    memset(p, 0, len);
    getpeername(fd, p, &len);
    if (((struct sockaddr *)p)->sa_family == AF_UNIX)
        /* An abstract name with the process id in it: all tests share the namespace. */
        memcpy((char *)p + 3, &(pid_t){getpid()}, sizeof(pid_t));
}
static void fill_unspec(int fd, void *p) { (void)fd; memset(p, 0, sizeof(struct sockaddr_in)); }
static void fill_length(int fd, void *p) { (void)fd; *(socklen_t *)p = sizeof(struct sockaddr_in); }
static void fill_on(int fd, void *p) { (void)fd; *(int *)p = 1; }
static void fill_time(int fd, void *p) { (void)fd; *(struct timeval *)p = (struct timeval){3, 0}; }
static void fill_none(int fd, void *p) { (void)fd; memset(p, 0, 16); }
static void fill_tls(int fd, void *p) { (void)fd; memcpy(p, "tls", 4); }
static void fill_list(int fd, void *p)
{
    *(struct pollfd *)p = (struct pollfd){fd, POLLIN | POLLOUT, 0};
}
static void fill_lists(int fd, void *p) { fill_list(fd, p), fill_list(fd, (struct pollfd *)p + 1); }
static void fill_set(int fd, void *p)
{
    FD_ZERO((fd_set *)p);
    FD_SET(fd, (fd_set *)p);
}
static void fill_mask(int fd, void *p) { (void)fd; sigemptyset(p); }
static void fill_event(int fd, void *p)
{
    (void)fd;
    *(struct epoll_event *)p = (struct epoll_event){EPOLLIN | EPOLLOUT, {.u64 = PATTERN}};
}
static void fill_events(int fd, void *p)
{
    fill_event(fd, p), fill_event(fd, (struct epoll_event *)p + 1);
}
static void fill_clone(int fd, void *p)
{
    (void)fd;
    *(struct clone_args *)p = (struct clone_args){.flags = ~0ull};
}
static void fill_numbers(int fd, void *p) { ((int *)p)[0] = ((int *)p)[1] = fd; }
static void fill_rights(int fd, void *p)
{
    struct msghdr m = {.msg_control = p, .msg_controllen = CMSG_SPACE(2 * sizeof fd)};
    memset(p, 0, m.msg_controllen);
    *CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_len = CMSG_LEN(2 * sizeof fd),
                                          .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    fill_numbers(fd, CMSG_DATA(CMSG_FIRSTHDR(&m)));
}
static void fill_capabilities(int fd, void *p)
{
    (void)fd;
    *(struct __user_cap_header_struct *)p = (struct __user_cap_header_struct){.version = 1};
}

/* --- the calls --- */

static struct timespec at_once, *none_left = &at_once;

#define MAKE(NAME, CALL) static long NAME(int fd, void *p) { (void)fd, (void)p; return CALL; }
MAKE(by_readv, readv(fd, p, 2))
MAKE(by_writev, writev(fd, p, 2))
MAKE(by_preadv2, preadv2(fd, p, 2, -1, 0))
MAKE(by_pwritev2, pwritev2(fd, p, 2, -1, 0))
MAKE(by_vmsplice, vmsplice(fd, p, 2, 0))
MAKE(by_sendmsg, sendmsg(fd, p, MSG_NOSIGNAL))
MAKE(by_sendmsg_pieces,
     sendmsg(fd, (&(struct msghdr){.msg_iov = p, .msg_iovlen = 2}), MSG_NOSIGNAL))
MAKE(by_sendmsg_name,
     sendmsg(fd, (&(struct msghdr){.msg_name = p, .msg_namelen = 16, .msg_iov = &good_piece,
                                   .msg_iovlen = 1}), MSG_NOSIGNAL))
MAKE(by_sendmsg_control,
     sendmsg(fd, (&(struct msghdr){.msg_control = p, .msg_controllen = CMSG_SPACE(8),
                                   .msg_iov = &good_piece, .msg_iovlen = 1}), MSG_NOSIGNAL))
MAKE(by_recvmsg, recvmsg(fd, p, 0))
MAKE(by_recvmsg_pieces, recvmsg(fd, (&(struct msghdr){.msg_iov = p, .msg_iovlen = 2}), 0))
MAKE(by_recvmsg_name,
     recvmsg(fd, (&(struct msghdr){.msg_name = p, .msg_namelen = 16, .msg_iov = &good_piece,
                                   .msg_iovlen = 1}), 0))
MAKE(by_recvmsg_control,
     recvmsg(fd, (&(struct msghdr){.msg_control = p, .msg_controllen = CMSG_SPACE(8),
                                   .msg_iov = &good_piece, .msg_iovlen = 1}), 0))
MAKE(by_recvmsg_peek, recvmsg(fd, p, MSG_PEEK))
MAKE(by_sendmmsg, sendmmsg(fd, p, 2, MSG_NOSIGNAL))
MAKE(by_recvmmsg, recvmmsg(fd, p, 2, MSG_DONTWAIT, NULL))
MAKE(by_recvmmsg_time,
     recvmmsg(fd, (&(struct mmsghdr){.msg_hdr = {.msg_iov = &good_piece, .msg_iovlen = 1}}), 1,
              MSG_DONTWAIT, p))
MAKE(by_sendto, sendto(fd, area, 10, MSG_NOSIGNAL, p, 16))
MAKE(by_recvfrom, recvfrom(fd, area, 10, 0, p, &(socklen_t){16}))
MAKE(by_recvfrom_length, recvfrom(fd, area, 10, 0, (struct sockaddr *)area + 1, p))
MAKE(by_sendfile, sendfile(fd, file, p, 10))
MAKE(by_splice, splice(file, p, fd, NULL, 10, 0))
MAKE(by_connect, connect(fd, p, sizeof(struct sockaddr_in)))
MAKE(by_bind, bind(fd, p, sizeof(struct sockaddr_in)))
MAKE(by_accept, accept(fd, p, &(socklen_t){16}))
MAKE(by_accept_length, accept4(fd, (struct sockaddr *)area, p, 0))
MAKE(by_nodelay, setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, p, sizeof(int)))
MAKE(by_low, setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, p, sizeof(int)))
MAKE(by_sndbuf, setsockopt(fd, SOL_SOCKET, SO_SNDBUF, p, sizeof(int)))
MAKE(by_timeout, setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, p, sizeof(struct timeval)))
MAKE(by_linger, setsockopt(fd, SOL_SOCKET, SO_LINGER, p, sizeof(struct linger)))
MAKE(by_zerocopy, setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, p, sizeof(int)))
MAKE(by_ulp, setsockopt(fd, IPPROTO_TCP, TCP_ULP, p, 4))
MAKE(by_md5, setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG, p, 16))
MAKE(by_getsockopt, getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, p, &(socklen_t){4}))
MAKE(by_getsockopt_length, getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, area, p))
MAKE(by_fionread, ioctl(fd, FIONREAD, p))
MAKE(by_outq, ioctl(fd, TIOCOUTQ, p))
MAKE(by_fionbio, ioctl(fd, FIONBIO, p))
MAKE(by_fioasync, ioctl(fd, FIOASYNC, p))
MAKE(by_getown, fcntl(fd, F_GETOWN_EX, p))
MAKE(by_poll, poll(p, 1, 0))
MAKE(by_poll_two, poll(p, 2, 0))
MAKE(by_ppoll, ppoll(p, 2, &at_once, NULL))
MAKE(by_ppoll_mask, ppoll((&(struct pollfd){fd, POLLIN | POLLOUT, 0}), 1, &at_once, p))
static fd_set *just(int fd)
{
    static fd_set s;
    fill_set(fd, &s);
    return &s;
}
MAKE(by_select, select(fd + 1, p, NULL, NULL, (&(struct timeval){0, 0})))
MAKE(by_select_wide, select(FD_SETSIZE, just(fd), p, NULL, (&(struct timeval){0, 0})))
MAKE(by_select_excepts, select(fd + 1, NULL, just(fd), p, (&(struct timeval){0, 0})))
MAKE(by_pselect, pselect(fd + 1, p, NULL, NULL, &at_once, NULL))
MAKE(by_pselect_mask, pselect(fd + 1, NULL, just(fd), NULL, &at_once, p))
MAKE(by_epoll_add, epoll_ctl(set, EPOLL_CTL_ADD, other, p))
MAKE(by_epoll_mod, epoll_ctl(set, EPOLL_CTL_MOD, fd, p))
MAKE(by_epoll_del, epoll_ctl(set, EPOLL_CTL_DEL, fd, p))
MAKE(by_epoll_wait, epoll_wait(set, p, 1, 0))
MAKE(by_epoll_wait_two, epoll_wait(set, p, 2, 0))
MAKE(by_epoll_wait_short, epoll_wait(set, p, 2, 20))
MAKE(by_epoll_wait_long, epoll_wait(set, p, 2, 20000))
MAKE(by_epoll_wait_many, epoll_wait(set, p, 1000, 0))
/* The next wait is told of an event that could not be written to the bad pointer. */
static long wait_again(int fd, void *p, unsigned events)
{
    struct epoll_event good[2];
    ctl(set, EPOLL_CTL_MOD, fd, events, PATTERN);
    long ret = epoll_wait(set, p, 2, 0);
    int e = errno;
    say("then %d", epoll_wait(set, good, 2, 0));
    errno = e;
    return ret;
}
MAKE(by_epoll_edge, wait_again(fd, p, EPOLLIN | EPOLLET))
MAKE(by_epoll_once, wait_again(fd, p, EPOLLIN | EPOLLONESHOT))
MAKE(by_epoll_pwait, epoll_pwait(set, p, 2, 0, NULL))
MAKE(by_epoll_pwait_mask, epoll_pwait(set, (void *)area, 2, 0, p))
MAKE(by_epoll_pwait2, epoll_pwait2(set, p, 2, none_left, NULL))
MAKE(by_epoll_pwait2_time, epoll_pwait2(set, (void *)area, 2, p, NULL))
MAKE(by_epoll_pwait2_mask, epoll_pwait2(set, (void *)area, 2, none_left, p))
MAKE(by_socketpair, socketpair(AF_UNIX, SOCK_STREAM, 0, p))
MAKE(by_pipe, pipe(p))
MAKE(by_pipe2, pipe2(p, O_CLOEXEC))
MAKE(by_open, open(p, O_RDONLY))
MAKE(by_execve, execve(p, (char *[]){NULL}, (char *[]){NULL}))
MAKE(by_execve_arguments, execve("/nowhere", p, (char *[]){NULL}))
MAKE(by_signalfd, signalfd(-1, p, SFD_CLOEXEC))
MAKE(by_memfd, memfd_create(p, MFD_CLOEXEC))
MAKE(by_capset, syscall(SYS_capset, p, NULL))

static const struct call message_calls[] = {
    {"readv", by_readv, fill_pieces, 2 * sizeof(struct iovec), READS | WRITES_NONE},
    {"writev", by_writev, fill_pieces, 2 * sizeof(struct iovec), WRITES_NONE},
    {"preadv2", by_preadv2, fill_pieces, 2 * sizeof(struct iovec), READS | WRITES_NONE},
    {"pwritev2", by_pwritev2, fill_pieces, 2 * sizeof(struct iovec), WRITES_NONE},
    {"vmsplice", by_vmsplice, fill_pieces, 2 * sizeof(struct iovec), WRITES_NONE},
    {"sendmsg", by_sendmsg, fill_header, sizeof(struct msghdr), WRITES_NONE},
    {"sendmsg: iov", by_sendmsg_pieces, fill_pieces, 2 * sizeof(struct iovec), WRITES_NONE},
    {"sendmsg: name", by_sendmsg_name, fill_address, 16, WRITES_NONE},
    {"sendmsg: control", by_sendmsg_control, fill_rights, CMSG_SPACE(8), WRITES_NONE},
    {"recvmsg", by_recvmsg, fill_header, sizeof(struct msghdr), READS},
    {"recvmsg: iov", by_recvmsg_pieces, fill_pieces, 2 * sizeof(struct iovec), READS | WRITES_NONE},
    {"recvmsg: name", by_recvmsg_name, fill_none, 16, READS},
    {"recvmsg: control", by_recvmsg_control, fill_none, CMSG_SPACE(8), READS},
    {"recvmsg MSG_PEEK", by_recvmsg_peek, fill_header, sizeof(struct msghdr), READS},
    {"sendmmsg", by_sendmmsg, fill_headers, 2 * sizeof(struct mmsghdr), 0},
    {"recvmmsg", by_recvmmsg, fill_headers, 2 * sizeof(struct mmsghdr), READS | LEAVES_ERROR},
    {"recvmmsg: timeout", by_recvmmsg_time, fill_none, sizeof(struct timespec), READS},
    {"sendto: address", by_sendto, fill_address, 16, WRITES_NONE},
    {"recvfrom: address", by_recvfrom, fill_none, 16, READS},
    {"recvfrom: length", by_recvfrom_length, fill_length, sizeof(socklen_t), READS},
    {"sendfile", by_sendfile, fill_none, sizeof(off_t), 0},
    {"splice", by_splice, fill_none, sizeof(off_t), 0},
    {0},
};

static const struct call option_calls[] = {
    {"connect", by_connect, fill_address, sizeof(struct sockaddr_in), WRITES_NONE},
    {"connect AF_UNSPEC", by_connect, fill_unspec, sizeof(struct sockaddr_in), WRITES_NONE},
    {"bind", by_bind, fill_address, sizeof(struct sockaddr_in), WRITES_NONE},
    {"accept: address", by_accept, fill_none, 16, IS_LISTENER},
    {"accept4: length", by_accept_length, fill_length, sizeof(socklen_t), IS_LISTENER},
    {"setsockopt TCP_NODELAY", by_nodelay, fill_on, sizeof(int), WRITES_NONE},
    {"setsockopt SO_RCVLOWAT", by_low, fill_on, sizeof(int), WRITES_NONE},
    {"setsockopt SO_SNDBUF", by_sndbuf, fill_on, sizeof(int), WRITES_NONE},
    {"setsockopt SO_RCVTIMEO", by_timeout, fill_time, sizeof(struct timeval), WRITES_NONE},
    {"setsockopt SO_LINGER", by_linger, fill_none, sizeof(struct linger), WRITES_NONE},
    {"setsockopt SO_ZEROCOPY", by_zerocopy, fill_none, sizeof(int), WRITES_NONE},
    {"setsockopt TCP_ULP", by_ulp, fill_tls, 4, WRITES_NONE},
    {"setsockopt TCP_MD5SIG", by_md5, fill_none, 16, WRITES_NONE},
    {"getsockopt: value", by_getsockopt, fill_on, sizeof(int), 0},
    {"getsockopt: length", by_getsockopt_length, fill_length, sizeof(socklen_t), 0},
    {"ioctl FIONREAD", by_fionread, fill_on, sizeof(int), READS},
    {"ioctl TIOCOUTQ", by_outq, fill_on, sizeof(int), 0},
    {"ioctl FIONBIO", by_fionbio, fill_none, sizeof(int), WRITES_NONE},
    {"ioctl FIOASYNC", by_fioasync, fill_none, sizeof(int), WRITES_NONE},
    {"fcntl F_GETOWN_EX", by_getown, fill_none, sizeof(struct f_owner_ex), 0},
    {"socketpair", by_socketpair, fill_none, 2 * sizeof(int), 0},
    {"pipe", by_pipe, fill_none, 2 * sizeof(int), 0},
    {"pipe2", by_pipe2, fill_none, 2 * sizeof(int), 0},
    {"open", by_open, fill_none, 2, WRITES_NONE},
    {"execve", by_execve, fill_none, 2, WRITES_NONE},
    {"execve: arguments", by_execve_arguments, fill_none, 16, WRITES_NONE},
    {"signalfd", by_signalfd, fill_mask, 8, WRITES_NONE},
    {"memfd_create", by_memfd, fill_none, 2, WRITES_NONE},
    {"capset", by_capset, fill_capabilities, sizeof(struct __user_cap_header_struct), 0},
    {0},
};

static const struct call readiness_calls[] = {
    {"poll", by_poll, fill_list, sizeof(struct pollfd), READS},
    {"poll of two", by_poll_two, fill_lists, 2 * sizeof(struct pollfd), READS},
    {"ppoll", by_ppoll, fill_lists, 2 * sizeof(struct pollfd), READS},
    {"ppoll: mask", by_ppoll_mask, fill_mask, 8, READS | WRITES_NONE},
    {"select: reads", by_select, fill_set, sizeof(fd_set), READS},
    {"select: writes", by_select_wide, fill_set, sizeof(fd_set), READS},
    {"select: excepts", by_select_excepts, fill_set, sizeof(fd_set), READS},
    {"pselect: reads", by_pselect, fill_set, sizeof(fd_set), READS},
    {"pselect: mask", by_pselect_mask, fill_mask, 8, READS | WRITES_NONE},
    {"epoll_ctl ADD", by_epoll_add, fill_event, sizeof(struct epoll_event), WRITES_NONE},
    {"epoll_ctl MOD", by_epoll_mod, fill_event, sizeof(struct epoll_event), READS | WRITES_NONE},
    {"epoll_ctl DEL", by_epoll_del, fill_event, sizeof(struct epoll_event), READS | WRITES_NONE},
    {"epoll_wait, idle", by_epoll_wait, fill_events, sizeof(struct epoll_event), 0},
    {"epoll_wait, idle for a while", by_epoll_wait_short, fill_events, sizeof(struct epoll_event),
     0},
    {"epoll_wait", by_epoll_wait, fill_event, sizeof(struct epoll_event), READS},
    {"epoll_wait of two", by_epoll_wait_two, fill_events, 2 * sizeof(struct epoll_event), READS},
    {"epoll_wait of many", by_epoll_wait_many, fill_events, 2 * sizeof(struct epoll_event), READS},
    {"epoll_wait EPOLLET", by_epoll_edge, fill_events, 2 * sizeof(struct epoll_event), READS},
    {"epoll_wait EPOLLONESHOT", by_epoll_once, fill_events, 2 * sizeof(struct epoll_event), READS},
    {"epoll_wait that may wait", by_epoll_wait_long, fill_events, 2 * sizeof(struct epoll_event),
     READS},
    {"epoll_pwait", by_epoll_pwait, fill_events, 2 * sizeof(struct epoll_event), READS},
    {"epoll_pwait: mask", by_epoll_pwait_mask, fill_mask, 8, READS | WRITES_NONE},
    {"epoll_pwait2", by_epoll_pwait2, fill_events, 2 * sizeof(struct epoll_event), READS},
    {"epoll_pwait2: timeout", by_epoll_pwait2_time, fill_none, 16, READS | WRITES_NONE},
    {"epoll_pwait2: mask", by_epoll_pwait2_mask, fill_mask, 8, READS | WRITES_NONE},
    {0},
};

/* The same by syscall(). Here are also calls for which the C library has no function, and calls
 * whose function reads the memory itself. */
MAKE(raw_readv, syscall(SYS_readv, fd, p, 2))
MAKE(raw_writev, syscall(SYS_writev, fd, p, 2))
MAKE(raw_sendmsg, syscall(SYS_sendmsg, fd, p, MSG_NOSIGNAL))
MAKE(raw_sendmsg_control,
     syscall(SYS_sendmsg, fd,
             (&(struct msghdr){.msg_control = p, .msg_controllen = CMSG_SPACE(8),
                               .msg_iov = &good_piece, .msg_iovlen = 1}), MSG_NOSIGNAL))
MAKE(raw_recvmsg, syscall(SYS_recvmsg, fd, p, 0))
MAKE(raw_sendmmsg, syscall(SYS_sendmmsg, fd, p, 2, MSG_NOSIGNAL))
MAKE(raw_recvmmsg, syscall(SYS_recvmmsg, fd, p, 2, MSG_DONTWAIT, NULL))
MAKE(raw_sendfile, syscall(SYS_sendfile, fd, file, p, 10))
MAKE(raw_recvfrom, syscall(SYS_recvfrom, fd, area, 10, 0, area, p))
MAKE(raw_connect, syscall(SYS_connect, fd, p, 16))
MAKE(raw_setsockopt, syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, p, 4))
MAKE(raw_getsockopt, syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, area, p))
MAKE(raw_ioctl, syscall(SYS_ioctl, fd, FIONREAD, p))
MAKE(raw_fionbio, syscall(SYS_ioctl, fd, FIONBIO, p))
MAKE(raw_poll, syscall(SYS_poll, p, 2, 0))
MAKE(raw_ppoll, syscall(SYS_ppoll, p, 2, &at_once, NULL, 8))
MAKE(raw_ppoll_time, syscall(SYS_ppoll, (&(struct pollfd){fd, POLLIN | POLLOUT, 0}), 1, p, NULL, 8))
MAKE(raw_select, syscall(SYS_select, fd + 1, p, NULL, NULL, (&(struct timeval){0, 0})))
MAKE(raw_select_time, syscall(SYS_select, fd + 1, NULL, just(fd), NULL, p))
MAKE(raw_pselect, syscall(SYS_pselect6, fd + 1, p, NULL, NULL, (&(struct timespec){0, 0}), NULL))
MAKE(raw_pselect_mask,
     syscall(SYS_pselect6, fd + 1, NULL, just(fd), NULL, (&(struct timespec){0, 0}), p))
MAKE(raw_epoll_ctl, syscall(SYS_epoll_ctl, set, EPOLL_CTL_MOD, fd, p))
MAKE(raw_epoll_wait, syscall(SYS_epoll_wait, set, p, 2, 0))
MAKE(raw_epoll_pwait, syscall(SYS_epoll_pwait, set, p, 2, 0, NULL, 8))
MAKE(raw_epoll_pwait_mask, syscall(SYS_epoll_pwait, set, area, 2, 0, p, 8))
MAKE(raw_epoll_pwait2, syscall(SYS_epoll_pwait2, set, area, 2, p, NULL, 8))
MAKE(raw_socketpair, syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, p))
MAKE(raw_pipe, syscall(SYS_pipe, p))
MAKE(raw_pipe2, syscall(SYS_pipe2, p, 0))
MAKE(raw_clone3, syscall(SYS_clone3, p, 88))
MAKE(raw_ring, syscall(SYS_io_uring_setup, 4, p))
MAKE(raw_register, syscall(SYS_io_uring_register, fd, IORING_REGISTER_FILES, p, 2))
MAKE(raw_register_update, syscall(SYS_io_uring_register, fd, IORING_REGISTER_FILES_UPDATE, p, 1))
MAKE(raw_register_two, syscall(SYS_io_uring_register, fd, IORING_REGISTER_FILES2, p, 32))
MAKE(raw_open, syscall(SYS_openat, AT_FDCWD, p, O_RDONLY))
MAKE(raw_execve, syscall(SYS_execve, p, NULL, NULL))
MAKE(raw_sigaction, syscall(SYS_rt_sigaction, SIGUSR1, p, NULL, 8))
MAKE(raw_seccomp, syscall(SYS_prctl, PR_GET_PDEATHSIG, p))

/* Runs one io_uring entry that points to the memory, and returns its result. */
static long by_entry(struct io_uring_sqe e)
{
    struct io_uring_params params = {0};
    int ring = syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0)
        return -1;
    char *sq = mmap(NULL, params.sq_off.array + 16, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                    IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, params.cq_off.cqes + 8 * 16, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                    IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqe = mmap(NULL, 4 * sizeof e, PROT_READ | PROT_WRITE, MAP_SHARED, ring,
                                    IORING_OFF_SQES);
    *sqe = e;
    *(unsigned *)(sq + params.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(sq + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    long ret = syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    if (ret == 1 && (ret = ((struct io_uring_cqe *)(cq + params.cq_off.cqes))->res) < 0)
        errno = -ret, ret = -1;
    close(ring);
    return ret;
}
MAKE(ring_sendmsg,
     by_entry((struct io_uring_sqe){.opcode = IORING_OP_SENDMSG, .fd = fd, .addr = (uintptr_t)p,
                                    .len = 1, .msg_flags = MSG_NOSIGNAL}))
MAKE(ring_epoll_ctl,
     by_entry((struct io_uring_sqe){.opcode = IORING_OP_EPOLL_CTL, .fd = set, .len = EPOLL_CTL_MOD,
                                    .off = fd, .addr = (uintptr_t)p}))
MAKE(ring_files,
     by_entry((struct io_uring_sqe){.opcode = IORING_OP_FILES_UPDATE, .fd = -1,
                                    .addr = (uintptr_t)p, .len = 2}))

static void fill_update(int fd, void *p)
{
    (void)fd;
    memset(p, 0, 32), ((uint64_t *)p)[1] = (uintptr_t)area;
}
static void fill_times(int fd, void *p) { (void)fd; memset(p, 0, 32); }
static void fill_params(int fd, void *p) { (void)fd; memset(p, 0, sizeof(struct io_uring_params)); }

static const struct call raw_calls[] = {
    {"readv", raw_readv, fill_pieces, 2 * sizeof(struct iovec), READS | WRITES_NONE},
    {"writev", raw_writev, fill_pieces, 2 * sizeof(struct iovec), WRITES_NONE},
    {"sendmsg", raw_sendmsg, fill_header, sizeof(struct msghdr), WRITES_NONE},
    {"sendmsg: control", raw_sendmsg_control, fill_rights, CMSG_SPACE(8), WRITES_NONE},
    {"recvmsg", raw_recvmsg, fill_header, sizeof(struct msghdr), READS},
    {"sendmmsg", raw_sendmmsg, fill_headers, 2 * sizeof(struct mmsghdr), 0},
    {"recvmmsg", raw_recvmmsg, fill_headers, 2 * sizeof(struct mmsghdr), READS},
    {"sendfile", raw_sendfile, fill_none, sizeof(off_t), 0},
    {"recvfrom: length", raw_recvfrom, fill_length, sizeof(socklen_t), READS},
    {"connect AF_UNSPEC", raw_connect, fill_unspec, 16, WRITES_NONE},
    {"setsockopt SO_RCVLOWAT", raw_setsockopt, fill_on, sizeof(int), WRITES_NONE},
    {"getsockopt: length", raw_getsockopt, fill_length, sizeof(socklen_t), 0},
    {"ioctl FIONREAD", raw_ioctl, fill_on, sizeof(int), READS},
    {"ioctl FIONBIO", raw_fionbio, fill_none, sizeof(int), WRITES_NONE},
    {"poll", raw_poll, fill_lists, 2 * sizeof(struct pollfd), READS},
    {"ppoll", raw_ppoll, fill_lists, 2 * sizeof(struct pollfd), READS},
    {"ppoll: timeout", raw_ppoll_time, fill_none, 16, READS},
    {"select: reads", raw_select, fill_set, sizeof(fd_set), READS},
    {"select: timeout", raw_select_time, fill_none, 16, READS},
    {"pselect6: reads", raw_pselect, fill_set, sizeof(fd_set), READS},
    {"pselect6: mask", raw_pselect_mask, fill_none, 16, READS | WRITES_NONE},
    {"epoll_ctl MOD", raw_epoll_ctl, fill_event, sizeof(struct epoll_event), READS | WRITES_NONE},
    {"epoll_wait", raw_epoll_wait, fill_events, 2 * sizeof(struct epoll_event), READS},
    {"epoll_pwait", raw_epoll_pwait, fill_events, 2 * sizeof(struct epoll_event), READS},
    {"epoll_pwait: mask", raw_epoll_pwait_mask, fill_mask, 8, READS | WRITES_NONE},
    {"epoll_pwait2: timeout", raw_epoll_pwait2, fill_none, 16, READS | WRITES_NONE},
    {"socketpair", raw_socketpair, fill_none, 2 * sizeof(int), 0},
    {"pipe", raw_pipe, fill_none, 2 * sizeof(int), 0},
    {"pipe2", raw_pipe2, fill_none, 2 * sizeof(int), 0},
    {"clone3", raw_clone3, fill_clone, 88, WRITES_NONE},
    {"io_uring_setup", raw_ring, fill_params, sizeof(struct io_uring_params), 0},
    {"io_uring_register files", raw_register, fill_numbers, 2 * sizeof(int), WRITES_NONE},
    {"io_uring_register update", raw_register_update, fill_update, 16, WRITES_NONE},
    {"io_uring_register files2", raw_register_two, fill_times, 32, WRITES_NONE},
    {"io_uring SENDMSG", ring_sendmsg, fill_header, sizeof(struct msghdr), WRITES_NONE},
    {"io_uring EPOLL_CTL", ring_epoll_ctl, fill_event, sizeof(struct epoll_event), WRITES_NONE},
    {"io_uring FILES_UPDATE", ring_files, fill_numbers, 2 * sizeof(int), WRITES_NONE},
    {"openat", raw_open, fill_none, 2, WRITES_NONE},
    {"execve", raw_execve, fill_none, 2, WRITES_NONE},
    {"rt_sigaction", raw_sigaction, fill_times, 32, WRITES_NONE},
    {"prctl", raw_seccomp, fill_none, sizeof(int), 0},
    {0},
};

/* --- a case --- */

static char *pages;

/* Returns the pointer for the call. Valid content is there as far as the memory can be written. */
static void *place(const struct call *c, int fd, enum place where)
{
    pages = mmap(NULL, HOLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
    if (pages == MAP_FAILED)
        die("mmap");
    char right[512] __attribute__((aligned(16))), *p = pages + HOLE / 2, *middle = p + 128;
    c->fill(fd, right);
    switch (where) {
    case WITHOUT_ACCESS:
        mprotect(p, PAGE, PROT_NONE);
        return middle;
    case UNMAPPED:
        munmap(pages, HOLE);
        pages = NULL;
        return middle;
    case ALL_ONES: return (void *)-1;
    case CUT:
        mprotect(p, PAGE, PROT_NONE);
        return memcpy(p - c->size / 2, right, c->size / 2);
    case READ_ONLY:
        memcpy(middle, right, c->size);
        mprotect(p, PAGE, PROT_READ);
        return middle;
    default:
        return memcpy(middle, right, c->size);
    }
}

static void take_away(enum place where)
{
    char *p = pages + HOLE / 2;
    if (where == GONE)
        mprotect(p, PAGE, PROT_NONE);
    else if (mmap(p, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        die("mmap");
}

/* Reads up to the mark, and returns how many bytes came before it. */
static int until_mark(int fd)
{
    char c;
    int n = 0;
    for (; recv(fd, &c, 1, 0) == 1 && c != '!'; n++)
        ;
    return n;
}

/* Makes one call, and prints how many bytes are unread after it at both ends. */
static void look(const struct call *c, int fd, void *p, const char *title, enum descriptor d)
{
    if (c->effects & READS && d != FRESH) {
        send(other, "0123456789", 10, 0);
        await_in(fd, 10);
    }
    errno = 0;
    long ret = c->make(fd, p);
    int e = errno;
    const char *name = ret >= 0 ? "" : strerrorname_np(e);
    if (c->effects & LEAVES_ERROR)
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &(socklen_t){sizeof e});
    int here = -1, there = -1;
    if (d != FRESH && !(c->effects & IS_LISTENER) && send(other, "!", 1, MSG_NOSIGNAL) == 1 &&
        send(fd, "!", 1, MSG_NOSIGNAL) == 1)
        here = until_mark(fd), there = until_mark(other);
    say("%s: %ld %s, left %d, sent %d", title, ret, name, here, there);
}

static char (*current)[200]; /* the child's present case, in memory that its parent shares */

/* The cases of one pointer of one call: all places from `first` on. */
static void all_places(const struct call *c, enum descriptor d, int first)
{
    int ends[2], listener = -1;
    signal(SIGPIPE, SIG_IGN);
    alarm(20);
    memcpy(area, "abcdefghij", 10);
    if (c->effects & IS_LISTENER) {
        int port;
        listener = listen_any(&port);
        ends[0] = listener;
        for (int i = 0; i < 2 * PLACES; i++)
            ends[1] = dial(port);
    } else if (d == CONNECTION) {
        pair(ends);
    } else if (d == FRESH) {
        ends[0] = socket(AF_INET, SOCK_STREAM, 0), ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    } else if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) {
        die("socketpair");
    }
    other = ends[1];
    set = set_of(ends[0], EPOLLIN);
    file = temp_file(1, 100);
    for (int where = first; where < PLACES; where++) {
        if (where == READ_ONLY && c->effects & WRITES_NONE)
            continue;
        void *p = place(c, ends[0], where);
        snprintf(*current, sizeof *current, "%s, %s, %s", descriptors[d], c->name, places[where]);
        (*current)[sizeof *current - 1] = where;
        if (where >= GONE) {
            look(c, ends[0], p, "before", d);
            take_away(where);
        }
        look(c, ends[0], p, *current, d);
        if (pages)
            munmap(pages, HOLE);
    }
    _exit(0);
}

static void all(const struct call *calls)
{
    current = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (const struct call *c = calls; c->name; c++)
        for (int d = 0; d < DESCRIPTORS; d++) {
            if (c->effects & IS_LISTENER && d != CONNECTION)
                continue;
            for (int first = 0, status = 1; status && first < PLACES;
                 first = (*current)[sizeof *current - 1] + 1) {
                pid_t pid = child();
                if (!pid)
                    all_places(c, d, first);
                waitpid(pid, &status, 0);
                if (WIFSIGNALED(status))
                    say("%s: killed by signal %d", *current, WTERMSIG(status));
                else if (status)
                    say("%s: ended with %d", *current, WEXITSTATUS(status));
            }
        }
}

/* --- memory that is taken away after it was used --- */

enum way { BY_MUNMAP, BY_MPROTECT, BY_MMAP, BY_MMAP64, BY_MREMAP, BY_PKEY, BY_SHMDT, BY_MUNMAP_CALL,
           BY_MPROTECT_CALL, BY_MMAP_CALL, BY_MREMAP_CALL, BY_PKEY_CALL, BY_SHMDT_CALL, WAYS };
static const char *const ways[] = {"munmap", "mprotect", "mmap", "mmap64", "mremap",
                                   "pkey_mprotect", "shmdt", "SYS_munmap", "SYS_mprotect",
                                   "SYS_mmap", "SYS_mremap", "SYS_pkey_mprotect", "SYS_shmdt"};

static int take_from(char *p, enum way way)
{
    const int private = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
              moves = MREMAP_MAYMOVE | MREMAP_FIXED;
    char *to = p - HOLE / 2;
    switch (way) {
    case BY_MUNMAP: return munmap(p, PAGE);
    case BY_MPROTECT: return mprotect(p, PAGE, PROT_NONE);
    case BY_MMAP: return mmap(p, PAGE, PROT_NONE, private, -1, 0) != p;
    case BY_MMAP64: return mmap64(p, PAGE, PROT_NONE, private, -1, 0) != p;
    case BY_MREMAP: return mremap(p, PAGE, PAGE, moves, to) != to;
    case BY_PKEY: return pkey_mprotect(p, PAGE, PROT_NONE, -1);
    case BY_SHMDT: return shmdt(p);
    case BY_MUNMAP_CALL: return syscall(SYS_munmap, p, PAGE);
    case BY_MPROTECT_CALL: return syscall(SYS_mprotect, p, PAGE, PROT_NONE);
    case BY_MMAP_CALL: return syscall(SYS_mmap, p, PAGE, PROT_NONE, private, -1, 0) != (long)p;
    case BY_MREMAP_CALL: return syscall(SYS_mremap, p, PAGE, PAGE, moves, to) != (long)to;
    case BY_PKEY_CALL: return syscall(SYS_pkey_mprotect, p, PAGE, PROT_NONE, -1);
    case BY_SHMDT_CALL: return syscall(SYS_shmdt, p);
    default: return -1;
    }
}

static void *given(enum way way)
{
    char *p = mmap(NULL, HOLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0) + HOLE / 2;
    if (way != BY_SHMDT && way != BY_SHMDT_CALL)
        return p;
    int id = shmget(IPC_PRIVATE, PAGE, 0600);
    munmap(p, PAGE);
    if (id < 0 || shmat(id, p, 0) != p || shmctl(id, IPC_RMID, NULL))
        die("shared memory");
    return p;
}

/* Makes calls whose arguments all lie in one page. It runs before the page is taken away, right
 * after that, and once more when the page is given back. */
static void use(int fd, char *p, const char *when, const char *way)
{
    struct msghdr *header = (void *)p;
    struct pollfd *list = (void *)(p + 512);
    struct epoll_event *events = (void *)(p + 1024);
    struct iovec *pieces = (void *)(p + 2048);
    char text[200];
    struct { const char *name; long ret; int e; } did[5];
    int n = 0;
#define DO(NAME, CALL) errno = 0, did[n].name = NAME, did[n].ret = CALL, did[n].e = errno, n++
    send(other, "0123456789", 10, 0);
    await_in(fd, 10);
    DO("sendmsg", sendmsg(fd, header, MSG_NOSIGNAL));
    DO("poll", poll(list, 1, 0));
    DO("epoll_wait", epoll_wait(set, events, 2, 0));
    DO("readv", readv(fd, pieces, 2));
    DO("recvmsg", recvmsg(fd, header, MSG_DONTWAIT));
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%s, %s: %s", when, way, did[i].name);
        errno = did[i].e;
        t_ret(text, did[i].ret);
    }
    while (recv(fd, buf, 100, MSG_DONTWAIT) > 0)
        ;
}

static void taken_away(enum way way)
{
    int ends[2];
    alarm(20);
    pair(ends);
    other = ends[1];
    set = set_of(ends[0], EPOLLIN);
    char *p = given(way);
    fill_header(ends[0], p);
    fill_list(ends[0], p + 512);
    fill_pieces(ends[0], p + 2048);
    use(ends[0], p, "before", ways[way]);
    if (take_from(p, way))
        die(ways[way]);
    use(ends[0], p, "behind", ways[way]);
    if (way == BY_MPROTECT) {
        mprotect(p, PAGE, PROT_READ | PROT_WRITE);
        use(ends[0], p, "given back", ways[way]);
    }
    _exit(0);
}

static void memory(void)
{
    for (int way = 0; way < WAYS; way++) {
        pid_t pid = child();
        if (!pid)
            taken_away(way);
        reap(pid);
    }
}

static void messages(void) { all(message_calls); }
static void options(void) { all(option_calls); }
static void readiness(void) { all(readiness_calls); }
static void raw(void) { all(raw_calls); }

const struct body badptr_bodies[] = {
    ONE("bad_pointers_of_messages", messages, .limit = 90),
    ONE("bad_pointers_of_options", options, .limit = 90, .flags = MAYUP),
    ONE("bad_pointers_of_readiness", readiness, .limit = 90),
    ONE("memory_taken_away", memory, .limit = 60),
    ONE("bad_pointers_by_syscall", raw, .limit = 90, .flags = MAYUP),
    {0},
};
