/* Registrations are added, changed and deleted often, as event loops do for each request. */
#include "t.h"

/* volatile: the compiler would warn of the bad pointer. */
static void *volatile nowhere = (void *)8;

static void expect(int ep, unsigned events, uint64_t data)
{
    struct epoll_event e;
    if (epoll_wait(ep, &e, 1, -1) != 1 || !(e.events & events) || e.data.u64 != data)
        say("event %x of %lx, not %x of %lx", e.events, (unsigned long)e.data.u64, events,
            (unsigned long)data);
}

/* For each request the client waits to write and then to read, and is not registered in between. */
enum { REQUESTS = 300 };
static void churn_server(int fd)
{
    for (int i = 0; i < 2 * REQUESTS; i++)
        put(fd, i, get(fd, i, 100));
    meet();
}

static void churn_client(int fd)
{
    int ep = epoll_create1(0);
    size_t good = 0;
    for (uint64_t i = 0; i < 2 * REQUESTS; i++) {
        unsigned edge = i < REQUESTS ? 0 : EPOLLET;
        if (ctl(ep, EPOLL_CTL_ADD, fd, EPOLLOUT | edge, i))
            die("add");
        expect(ep, EPOLLOUT, i);
        put(fd, i, 100);
        if (ctl(ep, EPOLL_CTL_DEL, fd, 0, 0) || ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | edge, ~i))
            die("delete, add");
        expect(ep, EPOLLIN, ~i);
        good += get(fd, i, 100);
        if (ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT | edge, i << 32))
            die("modify");
        expect(ep, EPOLLOUT, i << 32);
        if (ctl(ep, EPOLL_CTL_DEL, fd, 0, 0))
            die("delete");
    }
    say("%zu good", good);
    meet();
}

/* An epoll_ctl that is refused fails in the same way however often it is repeated. */
static void refused_client(int fd)
{
    int ep = set_of(fd, EPOLLIN), other = eventfd(0, 0);
    for (int i = 0; i < 3; i++) {
        T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, i));
        T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, i));
        T(epoll_ctl(ep, EPOLL_CTL_MOD, fd, nowhere));
        T(epoll_ctl(ep, EPOLL_CTL_MOD, fd, NULL));
        T(epoll_ctl(ep, 77, fd, NULL));
        T(ctl(ep, EPOLL_CTL_DEL, other, 0, 0));
        order(10);
        await_in(fd, 10);
        say_wait(ep, -1);
        T(get(fd, 10, 10));
        T(epoll_ctl(ep, EPOLL_CTL_DEL, fd, i == 1 ? nowhere : NULL));
        T(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
        T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, i));
        T(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
        T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, i));
        T(epoll_ctl(ep, EPOLL_CTL_ADD, fd, nowhere));
        T(epoll_ctl(ep, EPOLL_CTL_ADD, fd, NULL));
        T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, i));
    }
    tell(END);
    meet();
}

/* A deleted registration tells nothing, whatever arrives. An added one tells of the bytes that have
 * arrived. */
static void deleted_client(int fd)
{
    for (int i = 0; i < 4; i++) {
        unsigned edge = i % 2 ? EPOLLET : 0;
        int ep = set_of(fd, EPOLLIN | edge);
        T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | edge, 1));
        say_wait(ep, 0);
        T(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
        for (int k = 0; k < 3; k++) {
            tell(10);
            say_wait(ep, 20);
            hear();
            await_in(fd, 10 * (k + 1));
            say_wait(ep, 0);
        }
        T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | edge, 2));
        say_wait(ep, -1);
        say_wait(ep, 0);
        T(recv(fd, buf, 30, MSG_WAITALL));
        T(ctl(ep, EPOLL_CTL_MOD, fd, 0, 3));
        order(10);
        await_in(fd, 10);
        say_wait(ep, 0);
        T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT | edge, 4));
        say_wait(ep, -1);
        say_wait(ep, 0);
        T(recv(fd, buf, 100, 0));
        T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT | edge, 5));
        say_wait(ep, 0);
        T(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
        if (i > 1)
            T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE, 6));
        close(ep);
    }
    tell(END);
    meet();
}

/* A registration that was changed often tells the end or the reset of its connection, also if it
 * was deleted when they came and added again. */
static void end_client(int first)
{
    int fd[4] = {first, join(), join(), join()};
    for (int i = 0; i < 4; i++) {
        unsigned edge = i % 2 ? EPOLLET : 0;
        int ep = set_of(fd[i], EPOLLIN | EPOLLRDHUP | edge);
        for (unsigned k = 0; k < 5; k++)
            ctl(ep, EPOLL_CTL_MOD, fd[i], (k % 2 ? EPOLLIN : EPOLLOUT) | edge, k);
        T(ctl(ep, EPOLL_CTL_MOD, fd[i], EPOLLIN | EPOLLRDHUP | edge, 7));
        if (i > 1)
            T(ctl(ep, EPOLL_CTL_DEL, fd[i], 0, 0));
        order(i % 2 ? RESET : SHUT);
        await(fd[i], i % 2 ? POLLHUP : POLLRDHUP);
        if (i > 1)
            T(ctl(ep, EPOLL_CTL_ADD, fd[i], EPOLLIN | EPOLLRDHUP | edge, 8));
        say_wait(ep, -1);
        T(recv(fd[i], buf, 1, 0));
        tell(END);
    }
    meet();
}

static void end_server(int first)
{
    int fd[4] = {first, join(), join(), join()};
    for (int i = 0; i < 4; i++)
        for (long n; (n = hear()) != END; tell(0)) {
            if (n == SHUT)
                shutdown(fd[i], SHUT_WR);
            else
                setsockopt(fd[i], SOL_SOCKET, SO_LINGER, (&(struct linger){1, 0}),
                           sizeof(struct linger)), close(fd[i]);
        }
    meet();
}

/* A number is closed while a dup is open. The registration of that number stays, or stays deleted,
 * and the next descriptor at the number has a registration of its own. */
static void numbers_client(int fd)
{
    int ep = set_of(fd, EPOLLIN), keep = dup(fd);
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 1));
    T(close(fd));
    order(10);
    await_in(keep, 10);
    say_wait(ep, -1);
    T(get(keep, 10, 10));
    /* `next` gets the lowest number, which is fd's, unless a descriptor of the library has it for a
     * moment. */
    int next = join();
    if (next != fd)
        dup2(next, fd), close(next), next = fd;
    T(ctl(ep, EPOLL_CTL_ADD, next, EPOLLIN, 2));
    T(ctl(ep, EPOLL_CTL_MOD, next, EPOLLIN, 3));
    order(20);
    await_in(keep, 20);
    say_wait(ep, -1);
    T(get(keep, 20, 20));
    T(ctl(ep, EPOLL_CTL_DEL, next, 0, 0));
    T(ctl(ep, EPOLL_CTL_ADD, keep, EPOLLIN, 4));
    T(ctl(ep, EPOLL_CTL_MOD, keep, EPOLLIN, 5));
    T(ctl(ep, EPOLL_CTL_DEL, keep, 0, 0));
    int last = dup(keep);
    YES(dup2(next, keep) == keep);
    T(ctl(ep, EPOLL_CTL_ADD, keep, EPOLLIN, 6));
    T(ctl(ep, EPOLL_CTL_MOD, keep, EPOLLIN | EPOLLOUT, 7));
    say_wait(ep, -1);
    T(ctl(ep, EPOLL_CTL_ADD, last, EPOLLIN, 8));
    order(30);
    await_in(last, 30);
    T(ctl(ep, EPOLL_CTL_MOD, keep, EPOLLIN, 9));
    say_wait(ep, -1);
    tell(END);
    meet();
}

static void numbers_server(int fd)
{
    for (int joined = 0; !joined; joined = 1) {
        long n = hear();
        put(fd, n, n), tell(0);
    }
    int next = join();
    obey(fd);
    close(next);
}

/* The number of a connection goes to another file, which is added to the same set. What the library
 * does to the connection's registration does not change that of the file. Room on the connection is
 * told all the same, whether the connection was full before its number went or after. */
enum { OTHERS = 77 };
static const unsigned asked_of[] = {0, EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE,
                                    EPOLLEXCLUSIVE | EPOLLET};

static long stuff(int fd)
{
    long sent = 0;
    for (int quiet = 0; quiet < 20; quiet++, usleep(5000))
        for (ssize_t n; (n = write(fd, buf, 1 << 16)) > 0; quiet = 0)
            sent += n;
    return sent;
}

static void others_client(int first)
{
    for (unsigned i = 0; i < 2 * COUNT(asked_of); i++) {
        int fd = i ? join() : first, keep = dup(fd);
        unsigned once = asked_of[i / 2] & EPOLLONESHOT;
        long sent = 0;
        set_nonblock(fd, 1);
        if (i % 2)
            sent += stuff(fd);
        int ep = set_of(fd, EPOLLIN | EPOLLOUT | asked_of[i / 2]);
        if (i % 2) /* the connection may have gone back to TCP, and have room again */
            epoll_wait(ep, (struct epoll_event[1]){}, 1, 0);
        T(close(fd));
        int other = eventfd(0, EFD_NONBLOCK);
        if (other != fd) /* a descriptor of the library has the number for a moment */
            dup2(other, fd), close(other), other = fd;
        T(ctl(ep, EPOLL_CTL_ADD, other, EPOLLIN, OTHERS));
        sent += stuff(keep);
        for (int k = 0; k < 3; k++) /* takes the events of the room that there was */
            epoll_wait(ep, (struct epoll_event[1]){}, 1, 0);
        T(epoll_wait(ep, (struct epoll_event[1]){}, 1, 20));
        T(eventfd_write(other, 1));
        expect(ep, EPOLLIN, OTHERS);
        T(eventfd_read(other, (eventfd_t[1]){}));
        tell(sent);
        if (!once || i % 2) /* else the one-shot registration has told the room before */
            expect(ep, EPOLLOUT, PATTERN);
        hear();
        T(eventfd_write(other, 1));
        for (struct epoll_event e = {}; e.data.u64 != OTHERS;)
            if (epoll_wait(ep, &e, 1, -1) != 1)
                die("epoll_wait");
        T(ctl(ep, EPOLL_CTL_DEL, other, 0, 0));
        /* A dup at the old number names the connection's registration again. */
        T(dup2(keep, fd));
        T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLOUT, 1));
        T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLOUT, 2));
        T(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0));
        T(epoll_wait(ep, (struct epoll_event[1]){}, 1, 0));
        meet();
        close(keep), close(fd), close(ep);
    }
}

static void others_server(int first)
{
    for (unsigned i = 0; i < 2 * COUNT(asked_of); i++) {
        int fd = i ? join() : first;
        pour_out(fd, hear());
        tell(0);
        meet();
        close(fd);
    }
}

/* Another process and another set see registrations that were changed often. */
static void seen_client(int fd)
{
    int ep = set_of(fd, EPOLLIN);
    for (int i = 0; i < 5; i++)
        T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, i));
    int outer = set_of(ep, EPOLLIN);
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 6));
    tell(WHEN_ASLEEP + 10);
    say_wait(outer, -1);
    hear();
    say_wait(ep, -1);
    T(get(fd, 10, 10));
    T(close(outer));
    int second = set_of(fd, EPOLLIN | EPOLLOUT);
    T(ctl(second, EPOLL_CTL_MOD, fd, EPOLLIN, 7));
    pid_t pid = child();
    if (!pid) {
        say_wait(second, 0);
        tell(20);
        say_wait(second, -1);
        hear();
        T(ctl(second, EPOLL_CTL_MOD, fd, EPOLLIN, 8));
        _exit(0);
    }
    reap(pid);
    say_wait(second, -1);
    T(get(fd, 20, 20));
    T(ctl(second, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT, 9));
    say_wait(second, -1);
    tell(END);
    meet();
}

/* One thread waits, and another changes and deletes the registration. Every byte is told. */
static int set, conn;
static volatile int changing;

static void *change(void *unused)
{
    (void)unused;
    for (unsigned i = 0; changing; i++) {
        ctl(set, EPOLL_CTL_MOD, conn, i % 3 ? EPOLLIN : EPOLLIN | EPOLLET, PATTERN);
        if (i % 16 == 0) {
            ctl(set, EPOLL_CTL_DEL, conn, 0, 0);
            ctl(set, EPOLL_CTL_ADD, conn, EPOLLIN, PATTERN);
        }
        if (i % 64 == 0)
            sched_yield();
    }
    return NULL;
}

static void threads_client(int fd)
{
    conn = fd, set = set_of(fd, EPOLLIN), changing = 1;
    pthread_t t = start(change, NULL);
    size_t good = 0;
    for (int i = 0; i < 2000; i++) {
        put(fd, i, 64);
        for (size_t got = 0; got < 64;) {
            expect(set, EPOLLIN, PATTERN);
            ssize_t n = recv(fd, buf, 64 - got, MSG_DONTWAIT);
            if (n > 0)
                got += n, good += n;
        }
    }
    changing = 0;
    finish(t);
    say("%zu good", good);
    meet();
}

static void threads_server(int fd)
{
    for (int i = 0; i < 2000; i++)
        put(fd, i, get(fd, i, 64));
    meet();
}

/* A connection that is shut down for reading stays readable, whatever bytes arrive and are read. */
static void shut_read_client(int fd)
{
    int ep;
    T(shutdown(fd, SHUT_RD));
    await(fd, POLLOUT); /* a stream between hosts is going back to TCP by now */
    ep = set_of(fd, EPOLLIN | EPOLLET);
    T(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT, PATTERN));
    for (int i = 0; i < 3; i++) {
        order(1);
        await_in(fd, 1);
        T(get(fd, 1, 1));
        say_wait(ep, 0);
    }
    tell(END);
    meet();
}

/* As above: EPOLLIN is told together with EPOLLOUT, each time the connection is registered anew. */
static void shut_read_edges_client(int fd)
{
    int ep = epoll_create1(0), both = 0;
    T(shutdown(fd, SHUT_RD));
    await(fd, POLLOUT);
    for (int i = 0; i < 300; i++) {
        struct epoll_event e = {0};
        ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLET, PATTERN);
        both += epoll_wait(ep, &e, 1, 0) == 1 && e.events == (EPOLLIN | EPOLLOUT);
        ctl(ep, EPOLL_CTL_DEL, fd, 0, 0);
    }
    say("%d of 300", both);
    tell(END);
    meet();
}

/* As above, while the other end has not read the bytes that this end wrote. */
static void shut_read_unread_server(int fd)
{
    T(put(fd, 2, 600));
    meet();
    meet();
    T(get(fd, 1, 600));
    meet();
}

static void shut_read_unread_client(int fd)
{
    T(put(fd, 1, 600));
    meet();
    await_in(fd, 600);
    T(shutdown(fd, SHUT_RD));
    T(get(fd, 2, 600));
    for (int i = 0; i < 300; i++) {
        int ep = set_of(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLONESHOT);
        if (i < 3) {
            say_wait(ep, 0);
            say_wait(ep, 0);
        } else {
            expect(ep, EPOLLIN, PATTERN);
        }
        close(ep);
    }
    meet();
    meet();
}

/* A child finds in a set shared with its parent the program's registrations, and nothing else. The
 * parent uses the set for the first time after the fork, and is stopped in the middle of a wait. */
static void forked_before_client(int fd)
{
    int ep = epoll_create1(0), asleep[2];
    pid_t parent = getpid();
    T(pipe(asleep));
    pid_t pid = child();
    if (!pid) {
        struct epoll_event e[4];
        if (read(asleep[0], buf, 1) != 1)
            die("asleep");
        await_asleep(parent);
        kill(parent, SIGSTOP);
        await_state_of(parent, 'T');
        order(10);
        int n = epoll_wait(ep, e, COUNT(e), 0), others = 0;
        for (int i = 0; i < n; i++)
            others += e[i].data.u64 != PATTERN;
        kill(parent, SIGCONT);
        _exit(others);
    }
    T(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, PATTERN));
    T(write(asleep[1], "w", 1));
    epoll_wait(ep, &(struct epoll_event){0}, 1, -1); /* or EINTR after the stop: signal(7) */
    reap(pid);
    T(get(fd, 10, 10));
    tell(END);
    meet();
}

/* What a child does with a connection does not change what its parent registered since the fork. */
static void modify_behind_fork(int fd, int ep, unsigned events)
{
    int go[2], done[2];
    char c;
    T(pipe(go));
    T(pipe(done));
    pid_t pid = child();
    if (!pid)
        _exit(read(go[0], &c, 1) != 1 || !ready(fd) || write(done[1], "d", 1) != 1);
    T(ctl(ep, EPOLL_CTL_MOD, fd, events, PATTERN));
    meet(); /* the other end takes the stream back to TCP */
    meet();
    T(write(go[1], "g", 1));
    T(read(done[0], &c, 1));
    say_wait(ep, 100);
    reap(pid);
    T(put(fd, 1, 100));
    meet();
}

static void forked_modified_client(int fd)
{
    modify_behind_fork(fd, set_of(fd, EPOLLIN | EPOLLET), EPOLLOUT);
}

/* Nor does it change a one-shot registration that has told its event. The set is in another. */
static void forked_once_client(int fd)
{
    int ep = set_of(fd, EPOLLOUT | EPOLLONESHOT), outer = epoll_create1(0);
    T(ctl(outer, EPOLL_CTL_ADD, ep, EPOLLIN, 1));
    say_wait(ep, -1);
    modify_behind_fork(fd, ep, EPOLLOUT | EPOLLONESHOT);
}

static void forked_modified_server(int fd)
{
    int one = 1;
    meet();
    T(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one));
    meet();
    T(get(fd, 1, 100));
    meet();
}

/* Bytes unread on TCP are told as long as they are there, also after this end's answers left
 * TCP. */
enum { TOLD = 200 };

static void half_read_server(int fd)
{
    T(put(fd, 1, 100));
    T(get(fd, 2, 1000));
    meet();
    meet();
}

static void half_read_client(int fd)
{
    static const unsigned asked[] = {EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLOUT | EPOLLONESHOT,
                                     EPOLLIN | EPOLLOUT | EPOLLET};
    const unsigned both = EPOLLIN | EPOLLOUT;
    T(get(fd, 1, 50));
    for (int i = 0; i < 100; i++, usleep(1000))
        put_at(fd, 2, 10 * i, 10);
    meet();
    for (size_t k = 0; k < COUNT(asked); k++) {
        int ep = set_of(fd, asked[k]), told = 0;
        for (int i = 0; i < TOLD; i++) {
            struct epoll_event e[2];
            if (i && k && ctl(ep, EPOLL_CTL_MOD, fd, asked[k], PATTERN))
                die("epoll_ctl");
            told += epoll_wait(ep, e, 2, 0) == 1 && (e[0].events & both) == both;
        }
        say("mask %x: %d times both", asked[k], told);
        T(close(ep));
    }
    meet();
    T(get_at(fd, 1, 50, 50));
}

const struct body register_bodies[] = {
    TWO("register_churn", churn_server, churn_client),
    TWO("register_refused", obey, refused_client),
    TWO("register_deleted", obey, deleted_client),
    TWO("register_end", end_server, end_client),
    TWO("register_numbers", numbers_server, numbers_client),
    TWO("register_number_of_another", others_server, others_client, .limit = 30),
    TWO("register_seen", obey, seen_client),
    TWO("register_threads", threads_server, threads_client),
    TWO("register_shut_read", obey, shut_read_client),
    TWO("register_forked_before", obey, forked_before_client),
    TWO("register_forked_modified", forked_modified_server, forked_modified_client),
    TWO("register_forked_once", forked_modified_server, forked_once_client),
    TWO("register_shut_read_edges", obey, shut_read_edges_client),
    TWO("register_shut_read_unread", shut_read_unread_server, shut_read_unread_client),
    TWO("register_half_read", half_read_server, half_read_client),
    {0},
};
