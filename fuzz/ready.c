/* Readiness: poll, select and epoll, once and for the loops; and the state in which nothing is under way. */
#include "agent.h"
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>

static struct timespec timespec_of(long ms) { return (struct timespec){ms / 1000, ms % 1000 * 1000000}; }

/* --- loops --- */

int wait_for(int fd, enum way way, short events, int *armed)
{
    struct pollfd p = {fd, events, 0};
    struct timeval t = {PATIENCE_MS / 1000, 0};
    struct epoll_event e;
    int op = *armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, r;
    fd_set set;
    do {
        switch (way) {
        case SELECT:
            FD_ZERO(&set);
            FD_SET(fd, &set);
            r = select(fd + 1, events == POLLIN ? &set : NULL, events == POLLOUT ? &set : NULL, NULL, &t);
            break;
        case LEVEL:
        case EDGE:
        case ONESHOT:
            /* Anew each time: a wait that had nothing to tell may have used its array. */
            e = (struct epoll_event){.events = events | (way == EDGE ? EPOLLET : way == ONESHOT ? EPOLLONESHOT : 0)};
            if ((!*armed || way == ONESHOT) && epoll_ctl(me.set, op, fd, &e))
                return 0;
            *armed = 1;
            op = EPOLL_CTL_MOD;
            r = epoll_wait(me.set, &e, 1, PATIENCE_MS);
            break;
        default:
            r = poll(&p, 1, PATIENCE_MS);
        }
    } while (r < 0 && errno == EINTR);
    return r == 1;
}

void leave(int fd, enum way way, int *armed)
{
    (void)way;
    if (*armed)
        epoll_ctl(me.set, EPOLL_CTL_DEL, fd, NULL);
    *armed = 0;
}

/* --- calls --- */

enum { MOST = 16 };

/* poll KIND MS [HANDLE MASK]... */
void do_poll(const struct command *c)
{
    struct pollfd p[MOST];
    const char *kind = c->word[1];
    char text[1024] = "";
    long ms = number(c, 2);
    int n = (c->count - 3) / 2, r, high = -1;
    struct timespec ts = timespec_of(ms);
    struct timeval tv = {ts.tv_sec, ts.tv_nsec / 1000};
    fd_set sets[3];
    for (int i = 0; i < 3; i++)
        FD_ZERO(&sets[i]);
    for (int i = 0; i < n && i < MOST; i++) {
        p[i] = (struct pollfd){fd_of(number(c, 3 + 2 * i)), mask_of(c->word[4 + 2 * i]), 0};
        if (p[i].fd < 0 || p[i].fd >= FD_SETSIZE)
            continue;
        high = p[i].fd > high ? p[i].fd : high;
        if (p[i].events & POLLIN)
            FD_SET(p[i].fd, &sets[0]);
        if (p[i].events & POLLOUT)
            FD_SET(p[i].fd, &sets[1]);
        if (p[i].events & POLLPRI)
            FD_SET(p[i].fd, &sets[2]);
    }
    errno = 0;
    if (!strcmp(kind, "select"))
        r = select(high + 1, &sets[0], &sets[1], &sets[2], ms < 0 ? NULL : &tv);
    else if (!strcmp(kind, "pselect"))
        r = pselect(high + 1, &sets[0], &sets[1], &sets[2], ms < 0 ? NULL : &ts, NULL);
    else if (!strcmp(kind, "ppoll"))
        r = ppoll(p, n, ms < 0 ? NULL : &ts, NULL);
    else
        r = poll(p, n, ms);
    int e = errno;
    for (int i = 0; i < n && r > 0; i++) {
        unsigned shown = p[i].revents;
        if (strstr(kind, "select"))
            shown = (FD_ISSET(p[i].fd, &sets[0]) ? POLLIN : 0) | (FD_ISSET(p[i].fd, &sets[1]) ? POLLOUT : 0) |
                    (FD_ISSET(p[i].fd, &sets[2]) ? POLLPRI : 0);
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, " %ld:%s", number(c, 3 + 2 * i), mask_name(shown));
    }
    errno = e;
    answer("%s%s", result(r), text);
}

/* epoll_create HANDLE FLAGS */
void do_epoll_create(const struct command *c)
{
    int fd = epoll_create1(number(c, 2));
    keep(number(c, 1), fd);
    answer("%s", fd < 0 ? result(-1) : "ok");
}

/* epoll_ctl HANDLE add|mod|del HANDLE MASK COOKIE */
void do_epoll_ctl(const struct command *c)
{
    struct epoll_event e = {.events = mask_of(c->word[4]), .data.u64 = number(c, 5)};
    int op = c->word[2][0] == 'a' ? EPOLL_CTL_ADD : c->word[2][0] == 'm' ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
    answer("%s", result(epoll_ctl(fd_of(number(c, 1)), op, fd_of(number(c, 3)), op == EPOLL_CTL_DEL ? NULL : &e)));
}

static int by_cookie(const void *a, const void *b)
{
    uint64_t x = ((const struct epoll_event *)a)->data.u64, y = ((const struct epoll_event *)b)->data.u64;
    return x < y ? -1 : x > y;
}

static int is_among(const struct epoll_event *e, int n, uint64_t cookie)
{
    for (int i = 0; i < n; i++)
        if (e[i].data.u64 == cookie)
            return 1;
    return 0;
}

/* Calls in which each of several has its turn. The kernel takes one behind the other; the library now and then looks only at what it
 * has itself, for microseconds, or a few calls long. */
enum { TURNS = 64 };

/* Events without those, of bits that the command has as its sixth word, of registrations whose cookies follow: edges that were told
 * before. */
static int without_spare(const struct command *c, struct epoll_event *e, int n)
{
    unsigned bits = mask_of(c->word[6]);
    int kept = 0;
    for (int i = 0; i < n; i++) {
        int spare = 0;
        for (int w = 7; w < c->count && !(e[i].events & ~bits); w++)
            spare |= e[i].data.u64 == (uint64_t)number(c, w);
        if (!spare)
            e[kept++] = e[i];
    }
    return kept;
}

/* epoll_wait HANDLE KIND MS MOST TIMES BITS [COOKIE ...]: until so many different ones have been told of, all in the order of their cookies,
 * since the order of a set is nobody's promise but that everyone has a turn. Only the first call waits, and again if it tells of nothing
 * but COOKIEs. */
void do_epoll_wait(const struct command *c)
{
    struct epoll_event e[64];
    char text[1024] = "";
    const char *kind = c->word[2];
    long ms = number(c, 3);
    int set = fd_of(number(c, 1)), most = number(c, 4), n = 0, r = 0;
    int want = number(c, 5), calls = want > 1 ? TURNS : 1, spare = TURNS;
    for (int i = 0; i < calls && r >= 0 && (i == 0 || n < want) && n + most <= 64; i++, ms = 0) {
        if (i > 0)
            usleep(20);
        struct timespec ts = timespec_of(ms);
        int told;
        do {
            errno = 0;
            if (!strcmp(kind, "epoll_pwait"))
                r = epoll_pwait(set, e + n, most, ms, NULL);
            else if (!strcmp(kind, "epoll_pwait2"))
                r = epoll_pwait2(set, e + n, most, ms < 0 ? NULL : &ts, NULL);
            else
                r = epoll_wait(set, e + n, most, ms);
            told = without_spare(c, e + n, r);
        } while (r > 0 && told == 0 && spare-- > 0);
        for (int got = 0, at = n; got < told; got++)
            if (!is_among(e, n, e[at + got].data.u64))
                e[n++] = e[at + got];
    }
    int error = errno;
    qsort(e, n, sizeof *e, by_cookie);
    for (int i = 0; i < n; i++) {
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, " %llx:%s", (unsigned long long)e[i].data.u64, mask_name(e[i].events));
    }
    errno = error;
    answer("%s%s", result(r < 0 ? -1 : n), text);
}

/* settle HANDLE BYTES none|fin|rst|err: until so many bytes can be read, and the end, if one is to come, has come. */
void do_settle(const struct command *c)
{
    int fd = fd_of(number(c, 1)), bytes = -1;
    struct pollfd p = {fd, POLLIN | POLLPRI | POLLOUT | POLLRDHUP, 0};
    short must = c->word[3][0] == 'f' ? POLLRDHUP : c->word[3][0] == 'r' ? POLLHUP : c->word[3][0] == 'e' ? POLLERR : 0;
    for (int i = 0; i < 10 * PATIENCE_MS; i++) {
        if (ioctl(fd, FIONREAD, &bytes) || poll(&p, 1, 0) < 0)
            break;
        if (bytes >= number(c, 2) && (p.revents & must) == must)
            break;
        usleep(i < 50 ? 50 : 100);
    }
    answer("%s bytes, %s", bytes == number(c, 2) ? "all" : bytes > number(c, 2) ? "MORE" : "FEWER", mask_name(p.revents));
}

/* over HANDLE: until a reset has come, whose error is taken. */
void do_over(const struct command *c)
{
    struct pollfd p = {fd_of(number(c, 1)), 0, 0};
    int told = poll(&p, 1, PATIENCE_MS), error;
    getsockopt(p.fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error});
    answer("%s", told == 1 && p.revents & POLLHUP ? "over" : "NOT OVER");
}
