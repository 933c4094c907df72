/* Calls that move bytes, once and in loops. */
#include "agent.h"
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { PIECES = 16, UNTOUCHED = 0xEE };

/* A number that follows from two others, for choices that need no seed of their own. */
static uint64_t mixed(uint64_t a, uint64_t b)
{
    uint64_t z = (a + 1) * 0x9E3779B97F4A7C15ull ^ (b + 1) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 31) * 0x94D049BB133111EBull;
    return z ^ z >> 29;
}

/* Cuts `len` bytes at `p` into pieces of any lengths, some of them none. */
static int cut(struct iovec *v, char *p, size_t len, int pieces)
{
    if (pieces > PIECES)
        pieces = PIECES;
    for (int i = 0; i < pieces; i++) {
        size_t n = i == pieces - 1 ? len : mixed(len, i) % 3 ? mixed(len, pieces) % (len + 1) : 0;
        v[i] = (struct iovec){p, n};
        p += n;
        len -= n;
    }
    return pieces;
}

static size_t told(const struct mmsghdr *m, int n, char *text, size_t room)
{
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        total += m[i].msg_len;
        size_t at = strlen(text);
        snprintf(text + at, room - at, " %u", m[i].msg_len);
    }
    return total;
}

/* `len` bytes of the buffer by one call; `more`: what else it told. */
static ssize_t send_by(const char *kind, int fd, size_t len, int flags, int pieces, char *more)
{
    struct iovec v[PIECES];
    int n = cut(v, me.room, len, pieces > 0 ? pieces : 1);
    struct msghdr m = {.msg_iov = v, .msg_iovlen = n};
    more[0] = 0;
    if (!strcmp(kind, "write"))
        return write(fd, me.room, len);
    if (!strcmp(kind, "send"))
        return send(fd, me.room, len, flags);
    if (!strcmp(kind, "sendto"))
        return sendto(fd, me.room, len, flags, NULL, 0);
    if (!strcmp(kind, "sendmsg"))
        return sendmsg(fd, &m, flags);
    if (!strcmp(kind, "writev"))
        return writev(fd, v, n);
    if (!strcmp(kind, "pwritev2"))
        return pwritev2(fd, v, n, -1, 0);
    if (!strcmp(kind, "sendmmsg")) {
        struct mmsghdr mm[PIECES] = {0};
        for (int i = 0; i < n; i++)
            mm[i].msg_hdr = (struct msghdr){.msg_iov = &v[i], .msg_iovlen = 1};
        int sent = sendmmsg(fd, mm, n, flags);
        if (sent < 0)
            return -1;
        sprintf(more, ", %d messages:", sent);
        return told(mm, sent, more, 200);
    }
    if (!strcmp(kind, "sendfile") || !strcmp(kind, "sendfile0")) {
        off_t at = 0, *given = kind[8] ? &at : NULL;
        if (ftruncate(me.file, 0) || pwrite(me.file, me.room, len, 0) != (ssize_t)len || lseek(me.file, 0, SEEK_SET))
            _exit(96);
        ssize_t r = sendfile(fd, me.file, given, len);
        int e = errno;
        sprintf(more, ", at %ld", (long)(given ? at : lseek(me.file, 0, SEEK_CUR)));
        errno = e;
        return r;
    }
    if (!strcmp(kind, "splice")) {
        ssize_t in = write(me.pipe[1], me.room, len), r = splice(me.pipe[0], NULL, fd, NULL, len, flags & MSG_DONTWAIT ? SPLICE_F_NONBLOCK : 0);
        int e = errno, left = in - (r > 0 ? r : 0);
        if (left > 0 && read(me.pipe[0], me.room, left) != left)
            _exit(96);
        errno = e;
        return r;
    }
    errno = ENOSYS;
    return -1;
}

/* What messages that were not filled have left is put together, if it is as nobody touched it. */
static void close_gaps(const struct mmsghdr *mm, const struct iovec *v, int got)
{
    char *to = v[0].iov_base, *end = to;
    for (int i = 0; i < got; i++)
        for (size_t at = mm[i].msg_len; at < v[i].iov_len; at++)
            if (((unsigned char *)v[i].iov_base)[at] != UNTOUCHED)
                return;
    for (int i = 0; i < got; i++) {
        memmove(to, v[i].iov_base, mm[i].msg_len);
        to += mm[i].msg_len;
        end = (char *)v[i].iov_base + v[i].iov_len;
    }
    memset(to, UNTOUCHED, end - to);
}

/* At most `len` bytes into the buffer by one call. */
static ssize_t recv_by(const char *kind, int fd, size_t len, int flags, int pieces, char *more)
{
    struct iovec v[PIECES];
    int n = cut(v, me.room, len, pieces > 0 ? pieces : 1);
    struct sockaddr_storage from;
    socklen_t from_len = sizeof from;
    more[0] = 0;
    if (!strcmp(kind, "read"))
        return read(fd, me.room, len);
    if (!strcmp(kind, "recv"))
        return recv(fd, me.room, len, flags);
    if (!strcmp(kind, "readv"))
        return readv(fd, v, n);
    if (!strcmp(kind, "preadv2"))
        return preadv2(fd, v, n, -1, flags & MSG_DONTWAIT ? RWF_NOWAIT : 0);
    if (!strcmp(kind, "recvfrom")) {
        ssize_t r = recvfrom(fd, me.room, len, flags, (void *)&from, &from_len);
        if (r >= 0)
            sprintf(more, ", address of %u", from_len);
        return r;
    }
    if (!strcmp(kind, "recvmsg")) {
        char control[64];
        struct msghdr m = {&from, sizeof from, v, n, control, sizeof control, 0};
        ssize_t r = recvmsg(fd, &m, flags);
        if (r >= 0)
            sprintf(more, ", address of %u, control %zu, flags %x", m.msg_namelen, m.msg_controllen, m.msg_flags);
        return r;
    }
    if (!strcmp(kind, "recvmmsg")) {
        /* One that takes nothing waits for something all the same. */
        while (n > 1 && !v[n - 1].iov_len)
            n--;
        struct mmsghdr mm[PIECES] = {0};
        for (int i = 0; i < n; i++)
            mm[i].msg_hdr = (struct msghdr){.msg_iov = &v[i], .msg_iovlen = 1};
        int got = recvmmsg(fd, mm, n, flags, NULL);
        if (got < 0)
            return -1;
        sprintf(more, ", %d messages:", got);
        if (!(flags & (MSG_PEEK | MSG_TRUNC)))
            close_gaps(mm, v, got);
        return told(mm, got, more, 200);
    }
    if (!strcmp(kind, "splice")) {
        /* How many of a pipe's buffers TCP fills depends on how it was sent. */
        ssize_t r = splice(fd, NULL, me.pipe[1], NULL, len < 4096 ? len : 4096, flags & MSG_DONTWAIT ? SPLICE_F_NONBLOCK : 0);
        int e = errno;
        if (r > 0 && read(me.pipe[0], me.room, r) != r)
            _exit(96);
        errno = e;
        return r;
    }
    errno = ENOSYS;
    return -1;
}

/* send HANDLE KIND LEN FLAGS PIECES SEED OFFSET */
void do_send(const struct command *c)
{
    char more[256];
    size_t len = number(c, 3);
    fill(me.room, number(c, 6), number(c, 7), len);
    errno = 0;
    ssize_t r = send_by(c->word[2], fd_of(number(c, 1)), len, number(c, 4), number(c, 5), more);
    answer("%s%s", result(r), more);
}

/* What of `len` bytes of the buffer a call that returned `r` has touched, and should not have; or did not, and should. */
static const char *judge(ssize_t r, size_t len, int flags, unsigned seed, uint64_t off)
{
    static __thread char text[64];
    size_t good = r > 0 && !(flags & MSG_TRUNC) ? r : 0;
    ssize_t bad = wrong_at(me.room, seed, off, good);
    if (bad >= 0) {
        snprintf(text, sizeof text, " WRONG at %zd", bad);
        return text;
    }
    for (size_t i = good; i < len; i++)
        if ((unsigned char)me.room[i] != UNTOUCHED) {
            snprintf(text, sizeof text, " TOUCHED at %zu", i);
            return text;
        }
    return good ? " good" : "";
}

/* recv HANDLE KIND LEN FLAGS PIECES SEED OFFSET */
void do_recv(const struct command *c)
{
    char more[256];
    size_t len = number(c, 3);
    int flags = number(c, 4);
    memset(me.room, UNTOUCHED, len);
    errno = 0;
    ssize_t r = recv_by(c->word[2], fd_of(number(c, 1)), len, flags, number(c, 5), more);
    int e = errno;
    /* Each message of such a peek begins anew. */
    int again = !strcmp(c->word[2], "recvmmsg") && flags & MSG_PEEK;
    const char *touched = again ? "" : judge(r, len, flags, number(c, 6), number(c, 7));
    errno = e;
    answer("%s%s%s", result(r), touched, more);
}

/* Behind a call that failed: is it to be made again? */
static int go_on(int fd, enum way way, short events, int *armed, int *stuck)
{
    if (errno == EINTR)
        return 1;
    if (errno != EAGAIN || way == BLOCK)
        return 0;
    *stuck = !wait_for(fd, way, events, armed);
    return !*stuck;
}

static enum way way_of(const char *word)
{
    static const char *const names[] = {"block", "poll", "select", "level", "edge", "oneshot"};
    for (int i = 0; i < 6; i++)
        if (!strcmp(word, names[i]))
            return i;
    return BLOCK;
}

/* How long the next portion is: none is like the one before. */
static size_t portion(size_t most, size_t done) { return 1 + mixed(most, done) % most; }

/* put HANDLE KIND LEN CHUNK WAY FLAGS SEED OFFSET [full]: all of it, or until an error; `full`: until there is no room. */
void do_put(const struct command *c)
{
    char more[256];
    int fd = fd_of(number(c, 1)), flags = number(c, 6), armed = 0, stuck = 0, until_full = c->count > 9;
    size_t len = number(c, 3), chunk = number(c, 4), done = 0;
    enum way way = way_of(c->word[5]);
    if (way != BLOCK)
        flags |= MSG_DONTWAIT;
    errno = 0;
    while (done < len) {
        size_t n = portion(chunk, done);
        n = n < len - done ? n : len - done;
        fill(me.room, number(c, 7), number(c, 8) + done, n);
        ssize_t r = send_by(c->word[2], fd, n, flags, 1 + n % 4, more);
        if (r > 0)
            done += r;
        else if (r == 0 || (until_full && errno == EAGAIN) || !go_on(fd, way, POLLOUT, &armed, &stuck))
            break;
    }
    int e = errno;
    leave(fd, way, &armed);
    answer("= %zu%s%s", done, done == len ? "" : stuck ? " STUCK" : " ", done == len || stuck ? "" : strerrorname_np(e));
}

/* get HANDLE KIND LEN CHUNK WAY FLAGS SEED OFFSET: all of it, or until the end or an error. */
void do_get(const struct command *c)
{
    char more[256], text[64] = "";
    int fd = fd_of(number(c, 1)), flags = number(c, 6), armed = 0, stuck = 0, e = 0;
    size_t len = number(c, 3), chunk = number(c, 4), done = 0;
    enum way way = way_of(c->word[5]);
    if (way != BLOCK)
        flags |= MSG_DONTWAIT;
    while (done < len) {
        size_t n = portion(chunk, done);
        n = n < len - done ? n : len - done;
        errno = 0;
        ssize_t r = recv_by(c->word[2], fd, n, flags, 1 + n % 4, more);
        e = errno;
        if (r > 0) {
            ssize_t bad = wrong_at(me.room, number(c, 7), number(c, 8) + done, r);
            if (bad >= 0) {
                snprintf(text, sizeof text, " WRONG at %zu", done + bad);
                break;
            }
            done += r;
        } else if (r == 0 || !go_on(fd, way, POLLIN, &armed, &stuck))
            break;
    }
    leave(fd, way, &armed);
    if (stuck)
        strcpy(text, " STUCK");
    else if (done < len && !text[0])
        snprintf(text, sizeof text, " %s", e ? strerrorname_np(e) : "end");
    answer("= %zu%s", done, text);
}

/* exchange HANDLE ROUNDS LEN FIRST OUT_SEED OUT_OFFSET IN_SEED IN_OFFSET: to and fro with the other end, which does the
 * same. */
void do_exchange(const struct command *c)
{
    int fd = fd_of(number(c, 1)), first = number(c, 4);
    long rounds = number(c, 2), len = number(c, 3), good = 0;
    for (long i = 0; i < 2 * rounds; i++) {
        if (i % 2 == !first) {
            fill(me.room, number(c, 5), number(c, 6) + i / 2 * len, len);
            for (long n = 0, r; n < len; n += r)
                if ((r = send(fd, me.room + n, len - n, 0)) < 0) {
                    struct pollfd p = {fd, POLLOUT, 0};
                    if (errno != EAGAIN || poll(&p, 1, PATIENCE_MS) != 1)
                        goto out;
                    r = 0;
                }
        } else {
            for (long n = 0, r; n < len; n += r) {
                if ((r = recv(fd, me.room + n, len - n, 0)) < 0) {
                    struct pollfd p = {fd, POLLIN, 0};
                    if (errno != EAGAIN || poll(&p, 1, PATIENCE_MS) != 1)
                        goto out;
                    r = 0;
                } else if (r == 0)
                    goto out;
            }
            if (wrong_at(me.room, number(c, 7), number(c, 8) + i / 2 * len, len) >= 0)
                goto out;
        }
        good++;
        if (i % 16 == 15)
            usleep(500); /* an upgrade takes its time */
    }
out:
    answer("= %ld good", good);
}

/* As many as asked for, unless it ends or takes too long. */
static size_t gather(int fd, char *p, size_t len)
{
    size_t done = 0;
    while (done < len) {
        struct pollfd in = {fd, POLLIN, 0};
        ssize_t r = poll(&in, 1, PATIENCE_MS) == 1 ? recv(fd, p + done, len - done, 0) : 0;
        if (r <= 0)
            break;
        done += r;
    }
    return done;
}

/* urgent HANDLE LEN SEED OFFSET: what the other end sends by one call as urgent data, which is its last byte, and a byte
 * behind it. */
void do_urgent(const struct command *c)
{
    int fd = fd_of(number(c, 1)), marks[3] = {-1, -1, -1}, left = -1;
    size_t len = number(c, 2), before, behind;
    char byte = 0, first[64], second[64];
    struct pollfd p = {fd, POLLPRI, 0};
    int told = poll(&p, 1, PATIENCE_MS);
    ioctl(fd, SIOCATMARK, &marks[0]);
    errno = 0;
    strcpy(first, result(recv(fd, &byte, 1, MSG_OOB)));
    int same = wrong_at(&byte, number(c, 3), number(c, 4) + len - 1, 1) < 0;
    errno = 0;
    strcpy(second, result(recv(fd, &byte, 1, MSG_OOB)));
    before = gather(fd, me.room, len - 1);
    ioctl(fd, SIOCATMARK, &marks[1]);
    /* Beyond the mark, so that what counts unread bytes counts on. */
    behind = gather(fd, me.room + before, 1);
    ioctl(fd, SIOCATMARK, &marks[2]);
    ioctl(fd, FIONREAD, &left);
    answer("%d %s, %s %s, then %s; %zu and %zu %s, at the mark %d %d %d, %d left", told, mask_name(p.revents), first,
           same ? "good" : "WRONG", second, before, behind,
           wrong_at(me.room, number(c, 3), number(c, 4), before + behind) < 0 ? "good" : "WRONG", marks[0], marks[1], marks[2],
           left);
}
