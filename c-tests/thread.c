/* Several threads on one connection, and many threads with one each. */
#include "t.h"

enum { THREADS = 4, RECORDS = 2000, RECORD = 64 };

struct record { uint32_t id, sum; char rest[RECORD - 8]; };

static void make_record(struct record *r, uint32_t id)
{
    fill(r->rest, id, 0, sizeof r->rest);
    r->id = id;
    r->sum = sum(r->rest, sizeof r->rest);
}

static int good_record(const struct record *r)
{
    struct record w;
    make_record(&w, r->id);
    return r->id < RECORDS && !memcmp(&w, r, sizeof w);
}

static int shared_fd;
static unsigned char seen[RECORDS];

/* Each record goes out by one call, and never so many at once that a segment could end inside a
 * record: each thread's recv finds whole records. */
static void *record_reader(void *arg)
{
    struct record r;
    long n = 0;
    (void)arg;
    while (recv(shared_fd, &r, sizeof r, 0) == sizeof r) {
        n += good_record(&r);
        __atomic_add_fetch(&seen[r.id % RECORDS], 1, __ATOMIC_RELAXED);
    }
    return (void *)n;
}

static void say_seen(void)
{
    int once = 0;
    for (int i = 0; i < RECORDS; i++)
        once += seen[i] == 1;
    say("%d of %d records once", once, RECORDS);
}

static void readers_server(int fd)
{
    pthread_t t[THREADS];
    long good = 0;
    shared_fd = fd;
    for (int i = 0; i < THREADS; i++)
        t[i] = start(record_reader, NULL);
    tell(0);
    for (int i = 0; i < THREADS; i++)
        good += (long)finish(t[i]);
    say("good %ld", good);
    say_seen();
}

static void readers_client(int fd)
{
    struct record r;
    hear();
    for (int i = 0; i < RECORDS; i++) {
        make_record(&r, i);
        if (send(fd, &r, sizeof r, 0) != sizeof r)
            die("send");
        for (int left = 1; i % 64 == 63 && left; usleep(100))
            if (ioctl(fd, SIOCOUTQ, &left))
                die("SIOCOUTQ");
    }
    T(shutdown(fd, SHUT_WR));
}

static void *record_writer(void *arg)
{
    struct record r;
    for (long i = (long)arg; i < RECORDS; i += THREADS) {
        make_record(&r, i);
        struct iovec v[2] = {{&r, 8}, {r.rest, sizeof r.rest}};
        if ((i & 16 ? writev(shared_fd, v, 2) : write(shared_fd, &r, sizeof r)) != sizeof r)
            die("write");
    }
    return NULL;
}

/* No record of one thread is torn by another's. */
static void writers_server(int fd)
{
    pthread_t t[THREADS];
    shared_fd = fd;
    for (long i = 0; i < THREADS; i++)
        t[i] = start(record_writer, (void *)i);
    for (int i = 0; i < THREADS; i++)
        finish(t[i]);
    T(shutdown(fd, SHUT_WR));
}

static void writers_client(int fd)
{
    struct record r;
    int good = 0;
    while (recv(fd, &r, sizeof r, MSG_WAITALL) == sizeof r) {
        good += good_record(&r);
        seen[r.id % RECORDS]++;
    }
    say("good %d", good);
    say_seen();
}

static void *bulk_writer(void *arg)
{
    (void)arg;
    return (void *)put(shared_fd, is_server, 8 << 20);
}

/* One thread reads, one writes, at both ends. */
static void duplex(int fd)
{
    shared_fd = fd;
    pthread_t t = start(bulk_writer, NULL);
    T(get(fd, !is_server, 8 << 20));
    T(finish(t));
}

enum { SOCKETS = 8, POLLS = 50 };
static void *pinger(void *arg)
{
    int fd = *(int *)arg;
    size_t good = 0;
    for (int i = 0; i < 300; i++) {
        size_t n = 1 + i * 37 % 3000;
        if (is_server)
            good += get(fd, i, n), put(fd, ~i, n);
        else
            put(fd, i, n), good += get(fd, ~i, n);
    }
    return (void *)good;
}

static void many_threads(int fd)
{
    pthread_t t[SOCKETS];
    int fds[SOCKETS] = {fd};
    for (int i = 1; i < SOCKETS; i++)
        fds[i] = join();
    for (int i = 0; i < SOCKETS; i++)
        t[i] = start(pinger, &fds[i]);
    for (int i = 0; i < SOCKETS; i++)
        say("thread %d: %ld good", i, (long)finish(t[i]));
}

/* A thread sleeps in recv on an fd that another thread closes: the call goes on, and the number is
 * free. */
static void *late_reader(void *arg)
{
    tell(gettid());
    return (void *)recv(*(int *)arg, buf, 100, MSG_WAITALL);
}

static void close_under_server(int fd)
{
    int keep = dup(fd), number = fd;
    pthread_t t = start(late_reader, &number);
    hear();
    T(close(fd));
    YES(open("/dev/null", O_RDONLY) == number);
    tell(0);
    T(finish(t));
    say("sum %08x", sum(buf, 100));
    T(get(keep, 2, 100));
    T(put(keep, 3, 100));
}

static void close_under_client(int fd)
{
    await_asleep(hear());
    tell(0);
    hear();
    T(put(fd, 1, 100));
    T(put(fd, 2, 100));
    T(get(fd, 3, 100));
}

/* Two threads sleep in recv; each wakes for its own bytes. */
static void *one_byte(void *arg)
{
    char c = 0;
    (void)arg;
    tell(gettid());
    return recv(shared_fd, &c, 1, 0) == 1 ? (void *)(long)c : NULL;
}

static void two_asleep_server(int fd)
{
    pthread_t t[2];
    shared_fd = fd;
    for (int i = 0; i < 2; i++) {
        t[i] = start(one_byte, NULL);
        hear();
    }
    long a = (long)finish(t[0]), b = (long)finish(t[1]);
    say("sum of both %ld", a + b);
    meet();
}

static void two_asleep_client(int fd)
{
    for (int i = 0; i < 2; i++) {
        await_asleep(hear());
        tell(0);
    }
    T(send(fd, "\x01", 1, 0));
    T(send(fd, "\x02", 1, 0));
    meet();
}

/* Threads that did not make the connection do all the work. */
static void *other_thread(void *arg)
{
    echo_rounds(*(int *)arg, 100, 2000);
    return NULL;
}

static void by_other_thread(int fd)
{
    for (int i = 0; i < 5; i++)
        finish(start(other_thread, &fd));
    echo_rounds(fd, 10, 2000);
}

/* One thread after the other sleeps in poll and ends, while the peer is busy. The peer's library,
 * which works in the background, learns late of each of the threads. */
static void *poll_and_answer(void *arg)
{
    int fd = *(int *)arg;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char c = 0;
    if (poll(&p, 1, -1) == 1 && read(fd, &c, 1) == 1)
        write(fd, &c, 1);
    return (void *)(long)c;
}

static void polls_server(int fd)
{
    long sum = 0;
    for (int i = 0; i < POLLS; i++)
        sum += (long)finish(start(poll_and_answer, &fd));
    say("sum %ld", sum);
}

static void polls_client(int fd)
{
    long sum = 0;
    background_last();
    for (int i = 0; i < POLLS; i++) {
        for (double end = now() + 0.002; now() < end;)
            ;
        char c = i;
        write(fd, &c, 1);
        sum += read(fd, &c, 1) == 1 ? c : 1000;
    }
    say("sum %ld", sum);
}

/* One thread forks while others make, fill, empty and close epoll sets of a connection's many
 * numbers. */
enum { FORKS = 150, NUMBERS = 64 };
static volatile int forks_over;

static void *fills_sets(void *arg)
{
    int *fd = arg;
    long failed = 0;
    while (!forks_over) {
        int ep = epoll_create1(0);
        for (int i = 0; i < NUMBERS; i++)
            failed += epoll_ctl(ep, EPOLL_CTL_ADD, fd[i],
                &(struct epoll_event){.events = EPOLLIN, .data.u64 = i}) != 0;
        for (int i = 0; i < NUMBERS; i++)
            failed += epoll_ctl(ep, EPOLL_CTL_DEL, fd[i], NULL) != 0;
        close(ep);
    }
    return (void *)failed;
}

/* The child uses a set of its own, which has nothing to do with the others. */
static int uses_a_set(void)
{
    struct epoll_event e;
    int ep = epoll_create1(0), news = eventfd(1, 0);
    return epoll_ctl(ep, EPOLL_CTL_ADD, news,
            &(struct epoll_event){.events = EPOLLIN, .data.fd = news})
        || epoll_wait(ep, &e, 1, 0) != 1 || e.data.fd != news
        || poll(&(struct pollfd){news, POLLIN, 0}, 1, 0) != 1;
}

static void fork_amid_sets(int first)
{
    int fd[NUMBERS] = {first}, well = 0, status;
    pthread_t t[2];
    for (int i = 1; i < NUMBERS; i++)
        fd[i] = dup(first);
    echo_rounds(first, 20, 3000);
    for (int i = 0; i < 2; i++)
        t[i] = start(fills_sets, fd);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (!child)
            _exit(uses_a_set());
        well += waitpid(child, &status, 0) == child && !status;
    }
    forks_over = 1;
    for (int i = 0; i < 2; i++)
        say("failed %ld", (long)finish(t[i]));
    say("%d children of %d are well", well, FORKS);
    echo_rounds(first, 20, 3000);
}

const struct body thread_bodies[] = {
    TWO("threads_read_one_socket", readers_server, readers_client),
    TWO("threads_write_one_socket", writers_server, writers_client),
    TWO("threads_duplex", duplex, duplex, .flags = NB),
    TWO("threads_many_sockets", many_threads, many_threads, .flags = NB),
    TWO("close_under_recv", close_under_server, close_under_client),
    TWO("two_asleep_in_recv", two_asleep_server, two_asleep_client),
    TWO("thread_after_thread", by_other_thread, by_other_thread),
    TWO("polls_by_thread_after_thread", polls_server, polls_client),
    TWO("fork_amid_sets", fork_amid_sets, fork_amid_sets, .limit = 30),
    {0},
};
