/* sendfile and splice: a file's bytes go into the connection, with the kernel's offsets and short
 * counts. */
#include "t.h"

enum { SIZE = 1000000 };

static ssize_t send_all(int fd, int file, off_t *off, size_t n)
{
    size_t done = 0;
    for (ssize_t r; done < n; done += r) {
        while ((r = sendfile(fd, file, off, n - done)) < 0 && errno == EAGAIN)
            poll(&(struct pollfd){fd, POLLOUT, 0}, 1, -1);
        if (r < 0)
            return -1;
        if (r == 0)
            break;
    }
    return done;
}

static void say_position(int file, off_t off)
{
    say("offset %ld position %ld", (long)off, (long)lseek(file, 0, SEEK_CUR));
}

static void whole_server(int fd)
{
    int file = temp_file(1, SIZE);
    off_t off = 0;
    T(send_all(fd, file, &off, SIZE));
    say_position(file, off);
    T(sendfile(fd, file, &off, 1000)); /* nothing is left there */
    T(send_all(fd, file, NULL, SIZE)); /* now by the file's own position */
    say_position(file, off);
    T(sendfile(fd, file, NULL, 1000));
    lseek(file, 1000, SEEK_SET);
    T(sendfile(fd, file, NULL, 500));
    say_position(file, off);
    off = SIZE - 700; /* more is asked for than there is */
    T(sendfile(fd, file, &off, 5000));
    say_position(file, off);
    off = 12345;
    T(sendfile64(fd, file, &off, 777));
    say_position(file, off);
    T(sendfile(fd, file, &off, 0));
    off = SIZE + 5;
    T(sendfile(fd, file, &off, 10));
    say_position(file, off);
    T(put(fd, 5, 3000)); /* an ordinary write after it */
    T(pread(file, buf, 100, 50));
    say_position(file, off);
}

static void whole_client(int fd)
{
    T(get(fd, 1, SIZE));
    T(get(fd, 1, SIZE));
    T(get_at(fd, 1, 1000, 500));
    T(get_at(fd, 1, SIZE - 700, 700));
    T(get_at(fd, 1, 12345, 777));
    T(get(fd, 5, 3000));
}

static void errors_server(int fd)
{
    int file = temp_file(1, 10000), p[2], wronly = open("/dev/null", O_WRONLY),
        dir = open("/", O_RDONLY | O_DIRECTORY);
    off_t off = -1;
    T(pipe(p));
    T(sendfile(fd, file, &off, 10));
    T(sendfile(fd, -1, NULL, 10));
    T(sendfile(-1, file, NULL, 10));
    T(sendfile(fd, wronly, NULL, 10));
    T(sendfile(fd, dir, NULL, 10));
    T(sendfile(fd, fd, NULL, 10));
    T(sendfile(file, fd, NULL, 10));
    off = 0;
    T(sendfile(fd, p[0], &off, 10));
    T(copy_file_range(file, NULL, fd, NULL, 10, 0));
    T(sendfile(fd, file, NULL, 100));
    T(shutdown(fd, SHUT_WR));
    signal(SIGPIPE, SIG_IGN);
    T(sendfile(fd, file, NULL, 100));
    say_position(file, off);
}

static void errors_client(int fd)
{
    T(get(fd, 1, 100));
    T(recv(fd, buf, 1, 0));
}

/* A connection that can no longer be written, because of this side or of the peer: each call fails
 * and raises one SIGPIPE. */
static void broken_server(int fd)
{
    for (int i = 0; i < 4; i++) {
        if (i)
            fd = join();
        meet(); /* otherwise a reset may meet the other end's connect */
        if (i == 1)
            linger(fd, 1, 0);
        if (i < 2)
            T(close(fd));
        meet();
        if (i >= 2)
            T(drain(fd, 1));
        meet();
    }
}

static void say_broken(int fd, int file)
{
    off_t off = 0;
    for (int i = 0; i < 2; i++) {
        T(sendfile(fd, file, &off, 1000));
        say("offset %ld, SIGPIPE %d", (long)off, signals[SIGPIPE]);
        T(sendfile64(fd, file, NULL, 1000));
        say("position %ld, SIGPIPE %d", (long)lseek(file, 0, SEEK_CUR), signals[SIGPIPE]);
    }
    T(sendfile(fd, file, &off, 0));
    off = SIZE;
    T(sendfile(fd, file, &off, 10)); /* at the end of the file */
    say("SIGPIPE %d", signals[SIGPIPE]);
}

static void broken_client(int fd)
{
    int file = temp_file(1, SIZE);
    for (int i = 0; i < 4; i++) {
        off_t off = 0;
        if (i)
            fd = join();
        meet();
        count_signal(SIGPIPE, 0);
        lseek(file, 0, SEEK_SET);
        meet();
        switch (i) {
        case 0: /* the first call succeeds, and the peer answers with a RST */
            await(fd, POLLRDHUP);
            T(sendfile(fd, file, &off, 100));
            await(fd, POLLHUP);
            break;
        /* this call reports the RST */
        case 1: await(fd, POLLHUP); T(sendfile(fd, file, &off, 100)); break;
        case 2: T(shutdown(fd, SHUT_WR)); break;
        case 3: T(sendfile(fd, file, &off, 100)); T(shutdown(fd, SHUT_WR)); break;
        }
        say_broken(fd, file);
        meet();
    }
}

/* The file shrinks and grows between the calls, while bytes of an earlier call may still be
 * unsent. */
static void truncated_server(int fd)
{
    int file = temp_file(1, SIZE);
    off_t off = 0;
    T(send_all(fd, file, &off, 300000));
    T(ftruncate(file, 400000));
    T(send_all(fd, file, &off, SIZE));
    say_position(file, off);
    T(ftruncate(file, 0)); /* the file's pages may still be the send buffer: nothing may fault */
    T(sendfile(fd, file, &off, SIZE));
    off = 0;
    T(sendfile(fd, file, &off, SIZE));
    T(put(file, 2, 50000));
    T(send_all(fd, file, &off, SIZE));
    say_position(file, off);
    meet();
}

static void truncated_client(int fd)
{
    T(get(fd, 1, 300000));
    T(get(fd, 1, 0));
    T(get_at(fd, 1, 300000, 100000));
    T(get(fd, 2, 50000));
    meet();
}

/* Another thread truncates the file all the time: as many bytes arrive as the calls returned. */
static volatile int stop;
static void *truncater(void *arg)
{
    int file = *(int *)arg;
    for (int i = 0; !stop; i++)
        if (ftruncate(file, i % 2 ? SIZE : 4096 * (i % 50)))
            die("ftruncate");
    return NULL;
}

static void truncated_race_server(int fd)
{
    int file = temp_file(1, SIZE);
    long total = 0;
    pthread_t t = start(truncater, &file);
    for (int i = 0; i < 100; i++) {
        off_t off = i * 100;
        ssize_t n = sendfile(fd, file, &off, 200000);
        if (n < 0)
            die("sendfile");
        total += n;
    }
    stop = 1;
    finish(t);
    T(shutdown(fd, SHUT_WR));
    tell(total);
}

static void truncated_race_client(int fd)
{
    long got = 0;
    for (ssize_t n; (n = read(fd, buf, sizeof buf)) > 0;)
        got += n;
    YES(got == hear());
}

/* sendfile until EAGAIN, then on as the reader makes room. */
static void nonblocking_server(int fd)
{
    int file = temp_file(1, 0);
    off_t off = 0;
    ssize_t n;
    T(put(file, 1, 12 << 20));
    set_nonblock(fd, 1);
    while ((n = sendfile(fd, file, &off, 12 << 20)) > 0)
        ;
    say("%zd %s", n, strerrorname_np(errno));
    YES(off > 100000 && off < 12 << 20);
    tell(off);
    T(send_all(fd, file, &off, (12 << 20) - off) > 0);
    say("offset %ld", (long)off);
    meet();
    T(shutdown(fd, SHUT_WR));
}

static void nonblocking_client(int fd)
{
    hear();
    T(get(fd, 1, 12 << 20));
    meet();
    T(recv(fd, buf, 1, 0));
}

/* Files that are not regular ones, and an empty one. */
static void other_files_server(int fd)
{
    int version = open("/proc/version", O_RDONLY), zero = open("/dev/zero", O_RDONLY),
        mem = memfd_create("m", 0), null = open("/dev/null", O_RDONLY), empty = temp_file(1, 0);
    off_t off = 2;
    T(sendfile(fd, version, NULL, 20));
    T(sendfile(fd, version, &off, 20));
    T(sendfile(fd, zero, NULL, 1000));
    T(sendfile(fd, null, NULL, 1000));
    T(sendfile(fd, empty, NULL, 1000));
    T(put(mem, 3, 200000));
    off = 100;
    T(send_all(fd, mem, &off, 200000));
    T(fcntl(mem, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
    T(send_all(fd, mem, (off = 0, &off), 200000));
    T(shutdown(fd, SHUT_WR));
}

static void other_files_client(int fd)
{
    size_t n = 0;
    for (ssize_t r; (r = read(fd, buf + n, sizeof buf - n)) > 0;)
        n += r;
    say("%zu bytes, sum %08x", n, sum(buf, n));
}

/* As a web server does it: for each request a header with MSG_MORE or TCP_CORK, then the file. */
static void responses_server(int fd)
{
    int file = temp_file(1, SIZE);
    for (int i = 0; i < 40; i++) {
        char head[64];
        off_t off = i * 10;
        if (get(fd, i, 50) != 50)
            die("request");
        snprintf(head, sizeof head, "%-63d", 1 << (i % 20));
        setsockopt(fd, IPPROTO_TCP, TCP_CORK, &(int){i % 2}, sizeof(int));
        send(fd, head, sizeof head, i % 2 ? 0 : MSG_MORE);
        if (send_all(fd, file, &off, 1 << (i % 20)) != 1 << (i % 20))
            die("sendfile");
        setsockopt(fd, IPPROTO_TCP, TCP_CORK, &(int){0}, sizeof(int));
    }
    say("done");
    meet();
}

static void responses_client(int fd)
{
    size_t good = 0;
    for (int i = 0; i < 40; i++) {
        char head[64];
        put(fd, i, 50);
        if (recv(fd, head, sizeof head, MSG_WAITALL) != sizeof head)
            die("head");
        good += get_at(fd, 1, i * 10, atoi(head));
    }
    say("%zu good", good);
    meet();
}

static void splice_server(int fd)
{
    int p[2], file = temp_file(1, 50000);
    loff_t off = 10;
    T(pipe(p));
    T(splice(p[0], NULL, fd, NULL, 1000, SPLICE_F_NONBLOCK));
    T(put(p[1], 2, 5000));
    T(splice(p[0], NULL, fd, NULL, 5000, 0));
    T(splice(file, &off, p[1], NULL, 30000, 0));
    say("offset %ld", (long)off);
    for (ssize_t left = 30000, n; left; left -= n)
        if ((n = splice(p[0], NULL, fd, NULL, left, SPLICE_F_MOVE | SPLICE_F_MORE)) <= 0)
            die("splice");
    T(put(fd, 3, 1000));
    T(splice(file, NULL, fd, NULL, 100, 0)); /* one of the two must be a pipe */
    T(splice(p[0], &off, fd, NULL, 100, 0));
    T(splice(p[0], NULL, fd, &off, 100, 0));
    fill(buf, 4, 0, 4000);
    T(vmsplice(p[1], (&(struct iovec){buf, 4000}), 1, 0));
    T(splice(p[0], NULL, fd, NULL, 4000, 0));
    meet();
    for (size_t left = 70000; left;) {
        ssize_t n = splice(fd, NULL, p[1], NULL, left, 0);
        if (n <= 0 || get_at(p[0], 5, 70000 - left, n) != (size_t)n)
            die("splice in");
        left -= n;
    }
    set_nonblock(fd, 1);
    T(splice(fd, NULL, p[1], NULL, 100, 0));
    T(tee(fd, p[1], 10, 0));
    meet();
    await(fd, POLLRDHUP);
    T(splice(fd, NULL, p[1], NULL, 100, 0));
}

static void splice_client(int fd)
{
    T(get(fd, 2, 5000));
    T(get_at(fd, 1, 10, 30000));
    T(get(fd, 3, 1000));
    T(get(fd, 4, 4000));
    meet();
    T(put(fd, 5, 70000));
    meet();
    T(shutdown(fd, SHUT_WR));
}

/* Unread bytes that splice has taken are not read again after it. */
static void splice_pending_server(int fd)
{
    T(put(fd, 1, 20000));
    meet();
    meet();
    T(put(fd, 2, 100));
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void splice_pending_client(int fd)
{
    int p[2];
    T(pipe(p));
    meet();
    await_in(fd, 20000);
    for (size_t left = 20000; left;) {
        ssize_t n = splice(fd, NULL, p[1], NULL, left, 0);
        if (n <= 0 || get_at(p[0], 1, 20000 - left, n) != (size_t)n)
            die("splice in");
        left -= n;
    }
    T(recv(fd, buf, 10, MSG_DONTWAIT));
    meet();
    T(get(fd, 2, 100));
    await(fd, POLLRDHUP);
    T(recv(fd, buf, 50000, 0));
    T(recv(fd, buf, 50000, MSG_WAITALL));
    meet();
}

/* A splice from a connection does not wait until the peer has read what this side writes: the peer
 * reads only after the splice. */
static void splice_unblocked_server(int fd)
{
    T(put(fd, 2, 20000));
    meet();
    hear();
    T(drain(fd, 1));
}

struct all { int fd; size_t len; };
static void *put_all(void *arg)
{
    struct all *all = arg;
    busy = gettid();
    size_t n = put(all->fd, 1, all->len);
    shutdown(all->fd, SHUT_WR);
    return (void *)n;
}

static void splice_unblocked_client(int fd)
{
    int p[2];
    T(pipe(p));
    meet();
    await_in(fd, 20000);
    pthread_t t = start_busy(put_all, &(struct all){fd, 20 << 20});
    await_asleep(busy);
    /* TCP has room for little of it then */
    T(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){4096}, sizeof(int)));
    T(splice(fd, NULL, p[1], NULL, 2000, 0));
    T(get(p[0], 2, 2000));
    tell(0);
    T(finish(t));
}

/* A proxy that splices from one connection to another, through a pipe. */
static void splice_proxy_server(int fd)
{
    int p[2], other = join();
    ssize_t n;
    size_t total = 0;
    T(pipe(p));
    while ((n = splice(fd, NULL, p[1], NULL, 65536, SPLICE_F_MOVE)) > 0)
        for (total += n; n;) {
            ssize_t m = splice(p[0], NULL, other, NULL, n, SPLICE_F_MOVE);
            if (m <= 0)
                die("splice out");
            n -= m;
        }
    say("%zu bytes, end %zd", total, n);
    T(shutdown(other, SHUT_WR));
}

static void splice_proxy_client(int fd)
{
    int other = join();
    pthread_t t = start(put_all, &(struct all){fd, 5 << 20});
    T(drain(other, 1));
    T(finish(t));
}

/* A file that nobody changes, by splice through a pipe: this program's own. */
static int own_file(void)
{
    int file = open("/proc/self/exe", O_RDONLY);
    if (file < 0)
        die("open");
    return file;
}

enum { PART = 60000 };

static void pipe_to(int pipe, int fd, size_t n, unsigned flags)
{
    for (ssize_t r; n; n -= r) {
        while ((r = splice(pipe, NULL, fd, NULL, n, flags)) < 0 && errno == EAGAIN)
            poll(&(struct pollfd){fd, POLLOUT, 0}, 1, -1);
        if (r <= 0)
            die("splice");
    }
}

static void splice_file_server(int fd)
{
    int p[2], file = own_file();
    loff_t off = 100;
    signal(SIGPIPE, SIG_IGN);
    T(pipe(p));
    for (int i = 0; i < 30; i++) {
        unsigned flags = i % 3 ? SPLICE_F_MOVE : SPLICE_F_NONBLOCK;
        set_nonblock(fd, i & 1);
        T(splice(file, &off, p[1], NULL, PART, 0));
        pipe_to(p[0], fd, PART, flags);
        off -= PART / 2;
    }
    set_nonblock(fd, 0);
    say("offset %ld", (long)off);
    /* by the file's own position, twice into the pipe, and out of it in other pieces */
    lseek(file, 5000, SEEK_SET);
    T(splice(file, NULL, p[1], NULL, 20000, 0));
    T(splice(file, NULL, p[1], NULL, 10000, 0));
    pipe_to(p[0], fd, 25000, 0);
    T(splice(file, NULL, p[1], NULL, 10000, 0));
    pipe_to(p[0], fd, 15000, 0);
    T(splice(p[0], NULL, fd, NULL, 1, SPLICE_F_NONBLOCK));
    /* another reader has taken some */
    T(splice(file, NULL, p[1], NULL, 9000, 0));
    T(read(p[0], buf, 4000));
    pipe_to(p[0], fd, 5000, 0);
    /* as many others in its place */
    T(splice(file, NULL, p[1], NULL, 3000, 0));
    T(read(p[0], buf, 3000));
    T(put(p[1], 6, 1000));
    pipe_to(p[0], fd, 1000, 0);
    T(put(fd, 7, 100));
    meet();
    T(shutdown(fd, SHUT_WR));
    T(splice(file, NULL, p[1], NULL, 100, 0));
    T(splice(p[0], NULL, fd, NULL, 100, 0));
}

static void get_part(int fd, int file, off_t off, size_t n)
{
    static char was[PART];
    if (recv(fd, buf, n, MSG_WAITALL) != (ssize_t)n || pread(file, was, n, off) != (ssize_t)n)
        die("part");
    say("part of %zu %s", n, memcmp(buf, was, n) ? "differs" : "is right");
}

static void splice_file_client(int fd)
{
    int file = own_file();
    for (int i = 0; i < 30; i++)
        get_part(fd, file, 100 + i * (PART / 2), PART);
    get_part(fd, file, 5000, 40000);
    get_part(fd, file, 5000 + 44000, 5000);
    T(get(fd, 6, 1000));
    T(get(fd, 7, 100));
    meet();
    T(recv(fd, buf, 10, 0));
}

const struct body file_bodies[] = {
    TWO("sendfile", whole_server, whole_client, .flags = NB),
    TWO("sendfile_errors", errors_server, errors_client),
    TWO("sendfile_broken", broken_server, broken_client),
    TWO("sendfile_truncated", truncated_server, truncated_client),
    TWO("sendfile_truncated_race", truncated_race_server, truncated_race_client),
    TWO("sendfile_nonblocking", nonblocking_server, nonblocking_client),
    TWO("sendfile_other_files", other_files_server, other_files_client),
    TWO("sendfile_responses", responses_server, responses_client),
    TWO("splice", splice_server, splice_client),
    TWO("splice_file", splice_file_server, splice_file_client),
    TWO("splice_pending", splice_pending_server, splice_pending_client),
    TWO("splice_unblocked", splice_unblocked_server, splice_unblocked_client, .limit = 20),
    TWO("splice_proxy", splice_proxy_server, splice_proxy_client),
    {0},
};
