/* Descriptors: numbers, duplicates, last closes, limits, closing in bulk. */
#include "t.h"

/* A program sees the lowest free numbers, and no descriptor it did not make. */
static void numbers(int fd)
{
    int p[2], other, f[8];
    say("fd %d open %d", fd, open_fds());
    T(dup(fd));
    T(open("/dev/null", O_RDONLY));
    T(pipe(p));
    say("%d %d", p[0], p[1]);
    T(close(p[0]));
    T(socket(AF_INET, SOCK_STREAM, 0));
    other = join();
    say("other %d open %d", other, open_fds());
    T(epoll_create1(0));
    T(eventfd(0, 0));
    T(fcntl(fd, F_DUPFD, 100));
    T(fcntl(fd, F_DUPFD_CLOEXEC, 100));
    T(dup2(fd, 50));
    T(close(other));
    T(dup(fd));
    echo_rounds(fd, 50, 3000);
    /* waits until the library has moved descriptors that it is just making out of the way */
    open_fds();
    for (int i = 0; i < 8; i++)
        f[i] = dup(0);
    int others = 0;
    for (int i = 0; i < 400; i++) {
        int one = dup(0), two = fcntl(0, F_DUPFD, 0), pair[2];
        others += pipe(pair) || one != f[7] + 1 || two != one + 1 || pair[0] != two + 1 ||
            pair[1] != two + 2;
        close(one), close(two), close(pair[0]), close(pair[1]);
    }
    say("%d others", others);
    say("%d %d %d %d %d %d %d %d, open %d", f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7],
        open_fds());
    struct rlimit r;
    T(getrlimit(RLIMIT_NOFILE, &r));
    say("limit %ld, sysconf %ld, getdtablesize %d", (long)r.rlim_cur, sysconf(_SC_OPEN_MAX),
        getdtablesize());
    meet();
}

static void last_close_server(int fd)
{
    int two = dup(fd), three = fcntl(fd, F_DUPFD, 60), four = dup2(fd, 90);
    T(put(two, 1, 3000));
    T(close(fd));
    T(put(three, 2, 3000));
    T(get(four, 3, 3000));
    T(close(two));
    T(close(four));
    meet();
    meet();
    T(put(three, 4, 3000));
    T(close(three));
    T(close(three));
    T(write(three, buf, 1));
    meet();
}

static void last_close_client(int fd)
{
    T(get(fd, 1, 3000));
    T(get(fd, 2, 3000));
    T(put(fd, 3, 3000));
    meet();
    say("not over: %s", mask_name(ready(fd)));
    meet();
    T(get(fd, 4, 3000));
    await(fd, POLLRDHUP);
    T(recv(fd, buf, 10, 0));
    meet();
}

static void dup_kinds(int fd)
{
    int d[6];
    T(d[0] = dup(fd));
    T(d[1] = dup2(fd, 40));
    T(d[2] = dup3(fd, 41, O_CLOEXEC));
    T(d[3] = fcntl(fd, F_DUPFD, 42));
    T(d[4] = fcntl(fd, F_DUPFD_CLOEXEC, 43));
    T(d[5] = dup2(fd, fd));
    T(dup3(fd, fd, 0));
    T(dup3(fd, 44, 0x1234));
    T(dup2(fd, -1));
    T(dup2(900, 45));
    T(dup2(fd, 5000));
    T(fcntl(fd, F_DUPFD, 5000));
    for (int i = 0; i < 6; i++)
        say("cloexec %d", fcntl(d[i], F_GETFD));
    for (int i = 0; i < 12; i++) { /* each number is the connection */
        if (is_server) {
            T(put(d[i % 6], i, 2000));
            T(get(d[(i + 1) % 6], i, 2000));
        } else {
            T(get(d[(i + 2) % 6], i, 2000));
            T(put(d[(i + 3) % 6], i, 2000));
        }
    }
    for (int i = 0; i < 5; i++)
        T(close(d[i]));
    echo_rounds(fd, 20, 1000);
}

/* dup2 over a live connection closes that connection. After a dup2 of another connection the number
 * stands for that other one. */
static void dup_over_server(int fd)
{
    int second = join(), null = open("/dev/null", O_RDWR);
    T(put(fd, 1, 5000));
    T(dup2(null, fd) == fd);
    T(write(fd, buf, 100));
    T(read(fd, buf, 100));
    T(put(second, 2, 5000));
    T(dup2(second, fd) == fd);
    T(put(fd, 3, 5000));
    T(dup3(null, second, 0) == second);
    T(get(fd, 4, 5000));
    T(close(fd));
    meet();
}

static void dup_over_client(int fd)
{
    int second = join();
    T(drain(fd, 1));
    T(get(second, 2, 5000));
    T(get(second, 3, 5000));
    T(put(second, 4, 5000));
    meet();
    T(recv(second, buf, 10, 0));
}

/* A file has the number of a closed connection now: only what the program writes may go there. */
static void reused_by_file(int fd)
{
    int second = join(), number = fd;
    struct stat st;
    T(close(fd));
    int file = temp_file(1, 0);
    YES(file == number);
    echo_rounds(second, 30, 4000);
    T(put(file, 7, 5000));
    echo_rounds(second, 30, 4000);
    T(fstat(file, &st));
    say("size %ld", (long)st.st_size);
    T(lseek(file, 0, SEEK_SET));
    T(get(file, 7, 6000));
    meet();
}

static void exhausted(int fd)
{
    int n = 0, last = -1, p[2];
    struct rlimit r = {64, 64};
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = 40;
    T(setrlimit(RLIMIT_NOFILE, &r));
    for (int d; (d = dup(0)) >= 0; n++)
        last = d;
    say("%d more, last %d, %s", n, last, strerrorname_np(errno));
    T(dup(fd));
    T(socket(AF_INET, SOCK_STREAM, 0));
    T(pipe(p));
    T(epoll_create1(0));
    T(open("/dev/null", O_RDONLY));
    T(accept(0, NULL, NULL));
    echo_rounds(fd, 30, 3000);
    T(close(last));
    T(dup(fd) == last);
    echo_rounds(fd, 30, 3000);
    T(getrlimit(RLIMIT_NOFILE, &r));
    say("%ld", (long)r.rlim_cur);
    close_range(20, last, 0); /* the report of the counters at the end needs a descriptor */
}

/* All descriptor numbers are in use from the start: a new connection works, upgraded or not. */
static void exhausted_early(int fd)
{
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = 12;
    T(setrlimit(RLIMIT_NOFILE, &r));
    fd = join_cold();
    while (dup(0) >= 0)
        ;
    echo_rounds(fd, 100, 3000);
    say("open %d", open_fds());
}

static void accept_emfile_server(int fd)
{
    int port, l = listen_any(&port), d[64], n = 0;
    struct rlimit r;
    (void)fd;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = 32;
    T(setrlimit(RLIMIT_NOFILE, &r));
    tell(port);
    await(l, POLLIN);
    while (n < 64 && (d[n] = dup(0)) >= 0)
        n++;
    T(accept(l, NULL, NULL));
    T(accept(l, NULL, NULL));
    T(close(d[--n]));
    fd = take(l);
    YES(fd == d[n]);
    echo_rounds(fd, 50, 2000);
}

static void accept_emfile_client(int fd)
{
    fd = dial(hear());
    echo_rounds(fd, 50, 2000);
}

enum bulk { CLOSE_RANGE, CLOSEFROM, RAW_RANGE, RAW_CLOSE, RANGE_CLOEXEC, RANGE_UNSHARE };

/* Closes all descriptors from 5 on, or marks those from 4 on as close-on-exec. The connection lives
 * on as number 4. */
static void bulk_close(int fd, enum bulk how)
{
    int low = fcntl(fd, F_DUPFD, 4), keep;
    T(close(fd));
    T(keep = dup2(low, 4));
    T(fcntl(0, F_DUPFD, 77));
    switch (how) {
    case CLOSE_RANGE: T(close_range(5, ~0u, 0)); break;
    case CLOSEFROM: closefrom(5); break;
    case RAW_RANGE: T(syscall(SYS_close_range, 5, ~0u, 0)); break;
    case RAW_CLOSE:
        for (int i = 5; i < 1024; i++)
            syscall(SYS_close, i);
        break;
    case RANGE_CLOEXEC:
        T(close_range(4, ~0u, CLOSE_RANGE_CLOEXEC));
        say("cloexec %d %d", fcntl(keep, F_GETFD), fcntl(77, F_GETFD));
        break;
    case RANGE_UNSHARE: T(close_range(5, ~0u, CLOSE_RANGE_UNSHARE)); break;
    }
    say("open %d", open_fds());
    int file = temp_file(1, 100); /* gets a number that was just closed */
    echo_rounds(keep, 60, 3000);
    T(get(file, 1, 1000));
    T(close(file));
    /* the thread has its own descriptor table now, and the library upgrades no more connections */
    int second = how == RANGE_UNSHARE ? join_cold() : join();
    echo_rounds(second, 60, 3000);
    if (how == RANGE_UNSHARE)
        rounds_by_tcp(keep, 60, 3000);
    else
        echo_rounds(keep, 60, 3000);
}

static void close_range_rest(int fd) { bulk_close(fd, CLOSE_RANGE); }
static void closefrom_rest(int fd) { bulk_close(fd, CLOSEFROM); }
static void raw_range_rest(int fd) { bulk_close(fd, RAW_RANGE); }
static void raw_close_rest(int fd) { bulk_close(fd, RAW_CLOSE); }
static void range_cloexec_rest(int fd) { bulk_close(fd, RANGE_CLOEXEC); }
static void range_unshare_rest(int fd) { bulk_close(fd, RANGE_UNSHARE); }

/* The connection itself is among the descriptors that are closed. */
enum { CLOSED_AT_ONCE = 6 };

static void bulk_close_it_server(int fd)
{
    int second = join(), more[CLOSED_AT_ONCE];
    for (int i = 0; i < CLOSED_AT_ONCE; i++)
        more[i] = join();
    T(put(fd, 1, 3000));
    T(put(second, 2, 3000));
    T(close_range(fd, fd, 0));
    meet();
    T(put(second, 3, 3000));
    T(put(more[1], 4, 3000));
    int lowest = second; /* a descriptor of the library may have had a lower number for a moment */
    for (int i = 0; i < CLOSED_AT_ONCE; i++)
        lowest = more[i] < lowest ? more[i] : lowest;
    closefrom(lowest);
    T(write(more[0], buf, 1));
    meet();
}

static void bulk_close_it_client(int fd)
{
    int second = join(), more[CLOSED_AT_ONCE];
    for (int i = 0; i < CLOSED_AT_ONCE; i++)
        more[i] = join();
    T(drain(fd, 1));
    meet();
    T(get(second, 2, 3000));
    T(drain(second, 3));
    T(drain(more[1], 4));
    for (int i = 0; i < CLOSED_AT_ONCE; i++)
        T(recv(more[i], buf, 1, 0));
    meet();
}

/* A child closes everything; the parent's connection goes on. */
static void child_closes_all(int fd)
{
    for (int i = 0; i < 4; i++) {
        pid_t pid = child();
        if (!pid) {
            if (i == 0)
                closefrom(3);
            else if (i == 1)
                close_range(3, ~0u, 0);
            else if (i == 2)
                syscall(SYS_close_range, 3, ~0u, 0);
            else
                for (int k = 3; k < 1024; k++)
                    close(k);
            say("child: %s", fcntl(fd, F_GETFD) < 0 ? strerrorname_np(errno) : "open");
            _exit(0);
        }
        reap(pid);
        echo_rounds(fd, 30, 3000);
    }
}

static void cloexec_set(int fd)
{
    say("%d", fcntl(fd, F_GETFD));
    T(fcntl(fd, F_SETFD, FD_CLOEXEC));
    say("%d", fcntl(fd, F_GETFD));
    echo_rounds(fd, 20, 2000);
    say("%d", fcntl(fd, F_GETFD));
    int d = dup(fd);
    say("%d", fcntl(d, F_GETFD));
    T(fcntl(fd, F_SETFD, 0));
    say("%d %x", fcntl(fd, F_GETFD), fcntl(fd, F_GETFL));
}

/* A call that fails leaves the descriptor as it is, and the unread bytes, too. */
static void failing_dup_server(int fd)
{
    T(put(fd, 1, 5));
    meet();
    T(recv(fd, buf, 5, MSG_WAITALL));
    T(recv(fd, buf, 5, 0));
}

static void failing_dup_client(int fd)
{
    struct linger l;
    struct rlimit limit, low;
    await_in(fd, 5);
    T(dup2(-1, fd));
    T(dup2(1000, fd));
    T(dup3(1, fd, O_APPEND));
    T(dup3(fd, fd, 0));
    T(syscall(SYS_dup3, 1, fd, 1));
    T(syscall(SYS_dup3, 1000, fd, 0));
    getrlimit(RLIMIT_NOFILE, &limit);
    low = (struct rlimit){fd, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    T(dup2(1, fd));
    setrlimit(RLIMIT_NOFILE, &limit);
    T(close_range(fd, fd - 1, 0));
    T(close_range(fd, fd, 64));
    T(getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &(socklen_t){sizeof l}));
    say("linger %d %d", l.l_onoff, l.l_linger);
    meet();
    D(recv(fd, buf, 10, 0));
    T(put(fd, 2, 5));
    T(close(fd));
}

/* A number is closed and given anew while the library makes a doorbell for a new epoll set. The
 * doorbell has the lowest free number for a moment. */
static void dup_into_hole_client(int fd)
{
    int null = open("/dev/null", O_RDONLY), lost = 0;
    for (int i = 0; i < 100; i++) {
        int ep = set_of(fd, EPOLLIN), hole = dup(null);
        for (int j = 0; j < 100; j++)
            lost += close(hole) != 0, lost += dup2(null, hole) != hole;
        lost += close(hole) != 0;
        close(ep);
    }
    say("%d lost", lost);
    T(put(fd, 1, 100));
    meet();
}

static void dup_into_hole_server(int fd)
{
    T(get(fd, 1, 100));
    meet();
}

/* The same while another thread's first write makes the table of descriptors grow. */
static void *writing_thread(void *arg)
{
    busy = gettid();
    return (void *)put(*(int *)arg, 1, 300000);
}

static void dup_while_growing_server(int none)
{
    int fd = take_one(), null = open("/dev/null", O_RDONLY), hole = dup(null),
        lost = close(hole) != 0;
    pthread_t t = start_busy(writing_thread, &fd);
    for (int i = 0; i < 20; i++) {
        lost += dup2(null, hole) != hole;
        usleep(i ? 1000 : 50000);
        lost += fcntl(hole, F_GETFD) != 0 || close(hole) != 0;
    }
    say("%ld written, %d lost", (long)finish(t), lost);
    meet();
    T(close(fd));
    (void)none;
}

static void dup_while_growing_client(int none)
{
    int fd = dial(hear());
    meet();
    T(get(fd, 1, 300000));
    T(close(fd));
    (void)none;
}

const struct body fd_bodies[] = {
    TWO("fd_numbers", numbers, numbers, .flags = STEADY),
    TWO("dup_last_close", last_close_server, last_close_client),
    TWO("dup_kinds", dup_kinds, dup_kinds),
    TWO("dup2_over_connection", dup_over_server, dup_over_client),
    TWO("dup_into_hole", dup_into_hole_server, dup_into_hole_client),
    TWO("dup_while_growing", dup_while_growing_server, dup_while_growing_client,
        .flags = RAW | NOUP),
    TWO("dup_fails", failing_dup_server, failing_dup_client),
    TWO("number_reused_by_file", reused_by_file, reused_by_file),
    TWO("fds_exhausted", exhausted, exhausted, .flags = STEADY),
    TWO("fds_exhausted_early", exhausted_early, exhausted_early, .flags = RAW | NOUP),
    TWO("accept_emfile", accept_emfile_server, accept_emfile_client, .flags = RAW | NOUP),
    TWO("close_range_rest", close_range_rest, close_range_rest),
    TWO("closefrom_rest", closefrom_rest, closefrom_rest),
    TWO("raw_close_range_rest", raw_range_rest, raw_range_rest),
    TWO("raw_close_rest", raw_close_rest, raw_close_rest),
    TWO("close_range_cloexec", range_cloexec_rest, range_cloexec_rest),
    TWO("close_range_unshare", range_unshare_rest, range_unshare_rest),
    TWO("close_range_connection", bulk_close_it_server, bulk_close_it_client, .flags = STEADY),
    TWO("child_closes_all", child_closes_all, child_closes_all),
    TWO("cloexec_flag", cloexec_set, cloexec_set),
    {0},
};
