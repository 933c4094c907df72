/* Making connections and ending them, descriptors, options. */
#include "agent.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>

/* Families: 4, 6, and 46: an end that listens at IPv6, where the other comes by IPv4. */
static socklen_t loopback(struct sockaddr_storage *a, int family, int listens, int port)
{
    struct sockaddr_in *in = (void *)a;
    struct sockaddr_in6 *in6 = (void *)a;
    memset(a, 0, sizeof *a);
    if (family == 4 || (family == 46 && !listens)) {
        *in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        return sizeof *in;
    }
    *in6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
    in6->sin6_addr = family == 6 ? in6addr_loopback : in6addr_any;
    return sizeof *in6;
}

static int port_of(int fd, int peer)
{
    struct sockaddr_in6 a = {0};
    socklen_t len = sizeof a;
    if (peer ? getpeername(fd, (void *)&a, &len) : getsockname(fd, (void *)&a, &len))
        return -1;
    return ntohs(a.sin6_port);
}

/* socket HANDLE FAMILY FLAGS */
void do_socket(const struct command *c)
{
    struct sockaddr_storage a;
    loopback(&a, number(c, 2), 0, 0);
    int fd = socket(a.ss_family, SOCK_STREAM | number(c, 3), 0);
    keep(number(c, 1), fd);
    answer("%s", fd < 0 ? result(-1) : "ok");
}

/* listen HANDLE FAMILY FLAGS: a new socket that listens; tells its port. */
void do_listen(const struct command *c)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, number(c, 2), 1, 0);
    int fd = socket(a.ss_family, SOCK_STREAM | number(c, 3), 0);
    keep(number(c, 1), fd);
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    if (bind(fd, (void *)&a, len) || listen(fd, 16))
        answer("%s", result(-1));
    else
        answer("port %d", port_of(fd, 0));
}

/* connect HANDLE FAMILY PORT: of a socket that is there; tells the port that it came to have. */
void do_connect(const struct command *c)
{
    struct sockaddr_storage a;
    socklen_t len = loopback(&a, number(c, 2), 0, number(c, 3));
    int fd = fd_of(number(c, 1)), error = -1;
    if (connect(fd, (void *)&a, len) == 0) {
        answer("port %d = 0", port_of(fd, 0));
        return;
    }
    if (errno != EINPROGRESS) {
        answer("%s", result(-1));
        return;
    }
    struct pollfd p = {fd, POLLOUT, 0};
    int r = poll(&p, 1, PATIENCE_MS);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error});
    if (error) {
        answer("in progress, then %d %s, %s", r, mask_name(p.revents), strerrorname_np(error));
        return;
    }
    char again[64];
    strcpy(again, result(connect(fd, (void *)&a, len)));
    answer("port %d in progress, then %d %s %s", port_of(fd, 0), r, mask_name(p.revents), again);
}

/* accept LISTENER HANDLE KIND FLAGS: tells the other end's port. */
void do_accept(const struct command *c)
{
    struct sockaddr_in6 a = {0};
    socklen_t len = sizeof a;
    int listener = fd_of(number(c, 1)), fd;
    errno = 0;
    if (!strcmp(c->word[3], "accept4"))
        fd = accept4(listener, (void *)&a, &len, number(c, 4));
    else if (!strcmp(c->word[3], "nameless"))
        fd = accept(listener, NULL, NULL);
    else
        fd = accept(listener, (void *)&a, &len);
    keep(number(c, 2), fd);
    if (fd < 0)
        answer("%s", result(-1));
    else
        answer("port %d family %d", a.sin6_family ? ntohs(a.sin6_port) : port_of(fd, 1), a.sin6_family);
}

/* close HANDLE */
void do_close(const struct command *c) { answer("%s", result(close(fd_of(number(c, 1))))); }

/* dup KIND HANDLE NEW FLAGS: for dup2 and dup3 at NEW's number, closed by now or not. */
void do_dup(const struct command *c)
{
    int fd = fd_of(number(c, 2)), new = fd_of(number(c, 3)), r;
    errno = 0;
    if (!strcmp(c->word[1], "dup2"))
        r = dup2(fd, new);
    else if (!strcmp(c->word[1], "dup3"))
        r = dup3(fd, new, number(c, 4));
    else if (!strcmp(c->word[1], "fcntl"))
        r = fcntl(fd, number(c, 4) ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
    else
        r = dup(fd);
    keep(number(c, 3), r);
    answer("%s", r < 0 ? result(-1) : "ok");
}

/* shutdown HANDLE HOW */
void do_shutdown(const struct command *c) { answer("%s", result(shutdown(fd_of(number(c, 1)), number(c, 2)))); }

/* setopt HANDLE LEVEL OPTION int|ms|linger VALUE */
void do_setopt(const struct command *c)
{
    int value = number(c, 5);
    struct timeval t = {value / 1000, value % 1000 * 1000};
    struct linger l = {value >= 0, value > 0 ? value : 0};
    const void *p = c->word[4][0] == 'i' ? (void *)&value : c->word[4][0] == 'm' ? (void *)&t : (void *)&l;
    socklen_t len = c->word[4][0] == 'i' ? sizeof value : c->word[4][0] == 'm' ? sizeof t : sizeof l;
    answer("%s", result(setsockopt(fd_of(number(c, 1)), number(c, 2), number(c, 3), p, len)));
}

/* getopt HANDLE LEVEL OPTION */
void do_getopt(const struct command *c)
{
    int v[4] = {0};
    socklen_t len = sizeof v;
    errno = 0;
    int r = getsockopt(fd_of(number(c, 1)), number(c, 2), number(c, 3), v, &len);
    answer("%s, %u bytes: %x %x %x %x", result(r), r ? 0 : len, v[0], v[1], v[2], v[3]);
}

/* ioctl HANDLE REQUEST [VALUE]: FIONREAD and the like; or until the number is VALUE. */
void do_ioctl(const struct command *c)
{
    int n = -1, r = ioctl(fd_of(number(c, 1)), number(c, 2), &n);
    for (int i = 0; r == 0 && c->count > 3 && n != number(c, 3) && i < PATIENCE_MS; i++) {
        usleep(1000);
        r = ioctl(fd_of(number(c, 1)), number(c, 2), &n);
    }
    answer("%s: %d", result(r), n);
}

/* fcntl HANDLE getfl|getfd|nonblock|fionbio|cloexec VALUE */
void do_fcntl(const struct command *c)
{
    int fd = fd_of(number(c, 1)), r, on = number(c, 3);
    const char *what = c->word[2];
    if (!strcmp(what, "getfl"))
        r = fcntl(fd, F_GETFL);
    else if (!strcmp(what, "getfd"))
        r = fcntl(fd, F_GETFD);
    else if (!strcmp(what, "cloexec"))
        r = fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0);
    else if (!strcmp(what, "fionbio"))
        r = ioctl(fd, FIONBIO, &on);
    else {
        r = fcntl(fd, F_GETFL);
        r = r < 0 ? r : fcntl(fd, F_SETFL, on ? r | O_NONBLOCK : r & ~O_NONBLOCK);
    }
    answer("%s", result(r));
}

/* names HANDLE */
void do_names(const struct command *c)
{
    int fd = fd_of(number(c, 1)), mine = port_of(fd, 0), far;
    errno = 0;
    far = port_of(fd, 1);
    answer("local %d peer %d %s", mine, far, far < 0 ? strerrorname_np(errno) : "");
}

/* pass HANDLE PROCESS: by mail. */
void do_pass(const struct command *c)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec v = {"x", 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int fd = fd_of(number(c, 1));
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    answer("%s", result(sendmsg(MAIL_TO + number(c, 2), &m, 0)));
}

/* take HANDLE FLAGS: what came by mail. */
void do_take(const struct command *c)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    char x;
    struct iovec v = {&x, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t r = recvmsg(MAIL_FROM + process, &m, number(c, 2));
    int fd = -1;
    if (r == 1 && m.msg_controllen >= sizeof control.head)
        memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
    keep(number(c, 1), fd);
    answer("%s%s", result(r), fd < 0 ? " nothing" : "");
}
