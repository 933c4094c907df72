/* fork, daemon: several processes and one connection. */
#include "t.h"

/* The accepting process forks; the child serves, the parent closes its copy. */
static void accept_fork_server(int fd)
{
    int port, l = listen_any(&port);
    tell(port);
    for (int i = 0; i < 3; i++) {
        fd = take(l);
        pid_t pid = child();
        if (!pid) {
            close(l);
            warm(fd, 1);
            echo_rounds(fd, 50, 2000);
            T(put(fd, 9, 100000));
            _exit(i);
        }
        drop(fd);
        reap(pid);
    }
}

static void accept_fork_client(int fd)
{
    int port = hear();
    for (int i = 0; i < 3; i++) {
        fd = dial(port);
        warm(fd, 0);
        echo_rounds(fd, 50, 2000);
        T(drain(fd, 9)); /* the parent holds nothing open */
        T(close(fd));
    }
}

/* Children that were forked before any connection accept on their parent's listener. */
static void prefork_server(int fd)
{
    int port, l = listen_any(&port), done[2];
    pid_t pid[4];
    T(pipe(done));
    for (int i = 0; i < 4; i++)
        if (!(pid[i] = child())) {
            close(done[1]);
            for (struct pollfd p[2] = {{l, POLLIN, 0}, {done[0], POLLIN, 0}};;) {
                poll(p, 2, -1);
                if (!(p[0].revents & POLLIN))
                    _exit(0);
                set_nonblock(l, 1);
                if ((fd = accept(l, NULL, NULL)) < 0)
                    continue; /* another child was faster */
                nodelay(fd);
                set_nonblock(fd, 0);
                warm(fd, 1);
                for (int k = 0; k < 20; k++)
                    if (get(fd, k, 1000) != 1000 || put(fd, k, 1000) != 1000)
                        die("echo");
                put(fd, 5, 70000);
                close(fd);
            }
        }
    tell(port);
    meet();
    close(done[1]);
    for (int i = 0; i < 4; i++)
        reap(pid[i]);
}

static void prefork_client(int fd)
{
    int port = hear();
    for (int i = 0; i < 8; i++) {
        size_t good = 0;
        fd = dial(port);
        warm(fd, 0);
        for (int k = 0; k < 20; k++)
            put(fd, k, 1000), good += get(fd, k, 1000);
        say("%zu good, then %zu", good, drain(fd, 5));
        close(fd);
    }
    meet();
}

/* A child uses its parent's connection: the parent waits, then both use it by turns. */
static void child_uses(int fd)
{
    int turn[2];
    pid_t pid;
    if (!is_server) {
        for (int i = 0; i < 5; i++)
            echo_rounds(fd, 20, 2000);
        return;
    }
    echo_rounds(fd, 20, 2000);
    if (!(pid = child())) {
        echo_rounds(fd, 20, 2000);
        _exit(0);
    }
    reap(pid);
    echo_rounds(fd, 20, 2000);
    T(pipe(turn));
    if (!(pid = child())) {
        if (read(turn[0], buf, 1) != 1)
            die("turn");
        echo_rounds(fd, 20, 2000);
        _exit(0);
    }
    echo_rounds(fd, 20, 2000);
    if (write(turn[1], "x", 1) != 1)
        die("turn");
    reap(pid);
}

/* Parent and child write whole records at once; the peer finds every record exactly once. */
static void both_write_server(int fd)
{
    pid_t pid = child();
    for (int i = 0; i < 500; i++) {
        char record[64];
        fill(record, i, !!pid, sizeof record);
        record[0] = !!pid;
        record[1] = i;
        if (write(fd, record, sizeof record) != sizeof record)
            die("write");
    }
    if (!pid)
        _exit(0);
    reap(pid);
    T(shutdown(fd, SHUT_WR));
    T(recv(fd, buf, 1, 0));
}

static void both_write_client(int fd)
{
    int next[2] = {0}, bad = 0;
    unsigned char record[64], want[64];
    while (recv(fd, record, sizeof record, MSG_WAITALL) == sizeof record) {
        int who = record[0] & 1, i = next[who]++;
        fill(want, i, who, sizeof want);
        want[0] = who, want[1] = i;
        bad += !!memcmp(want, record, sizeof want);
    }
    say("%d and %d records, %d bad", next[0], next[1], bad);
    T(shutdown(fd, SHUT_WR));
}

/* The parent reads while the child writes. */
static void split_duplex(int fd)
{
    pid_t pid = child();
    if (!pid) {
        size_t n = put(fd, is_server, 5 << 20);
        _exit(n == 5 << 20 ? 0 : 1);
    }
    T(get(fd, !is_server, 5 << 20));
    reap(pid);
    meet();
    echo_rounds(fd, 20, 2000);
}

/* fork in the middle of a stream: the child only ends, each time in another way. */
static void fork_exit(int fd)
{
    for (int i = 0; i < 5; i++) {
        pid_t pid = child();
        if (!pid) {
            if (i == 0)
                exit(0);
            if (i == 1)
                _exit(1);
            if (i == 2)
                raise(SIGKILL);
            if (i == 3)
                close(fd), exit(3);
            shutdown(dup(0), SHUT_RDWR), syscall(SYS_exit_group, 4);
        }
        echo_rounds(fd, 10, 3000);
        reap(pid);
        echo_rounds(fd, 10, 3000);
    }
}

/* Bytes that are under way at the fork are read by exactly one of the two processes. */
static void fork_pending_server(int fd)
{
    T(put(fd, 1, 20000));
    meet();
    hear();
    T(put_at(fd, 1, 20000, 30000));
    meet();
}

static void fork_pending_client(int fd)
{
    meet();
    await_in(fd, 20000);
    pid_t pid = child();
    if (!pid) {
        T(get(fd, 1, 15000));
        _exit(0);
    }
    reap(pid);
    T(get_at(fd, 1, 15000, 5000));
    tell(0);
    T(get_at(fd, 1, 20000, 30000));
    meet();
}

/* The parent ends, the child goes on with the connection. */
static void parent_leaves(int fd)
{
    pid_t parent = getpid();
    if (child()) {
        T(put(fd, 1, 1000));
        _exit(0);
    }
    while (getppid() == parent)
        usleep(1000);
    T(get(fd, 1, 1000));
    meet();
    echo_rounds(fd, 50, 3000);
}

/* A child's shutdown holds for its parent, too. */
static void child_shuts_server(int fd)
{
    T(put(fd, 1, 100000));
    pid_t pid = child();
    if (!pid) {
        T(shutdown(fd, SHUT_WR));
        _exit(0);
    }
    reap(pid);
    T(send(fd, buf, 1, MSG_NOSIGNAL));
    T(drain(fd, 2));
}

static void child_shuts_client(int fd)
{
    T(drain(fd, 1));
    T(put(fd, 2, 100000));
    T(shutdown(fd, SHUT_WR));
}

static void daemonized(int fd)
{
    T(put(fd, is_server, 50000));
    fflush(NULL);
    int pid_before = getpid();
    if (daemon(1, 1))
        die("daemon");
    YES(getpid() != pid_before);
    T(get(fd, !is_server, 50000));
    echo_rounds(fd, 50, 3000);
    meet();
}

static void daemon_first(int fd)
{
    if (daemon(1, 1))
        die("daemon");
    tell(getpid());
    peer_pid = hear();
    fd = join();
    echo_rounds(fd, 50, 3000);
    meet();
}

/* Eight processes use the connection in turn. The first child reads the bytes that were unread when
 * it was forked. */
enum { CHILDREN = 7 };

static void eight_holders_server(int fd)
{
    int turn[CHILDREN][2];
    pid_t pid[CHILDREN];
    meet();
    await_in(fd, 5000);
    for (int i = 0; i < CHILDREN; i++) {
        T(pipe(turn[i]));
        if (!(pid[i] = child())) {
            if (read(turn[i][0], buf, 1) != 1)
                die("turn");
            if (i == 0)
                T(get(fd, 5, 5000));
            echo_rounds(fd, 10, 2000);
            _exit(i);
        }
    }
    for (int i = 0; i < CHILDREN; i++) {
        if (i == 3)
            echo_rounds(fd, 10, 2000);
        if (write(turn[i][1], "x", 1) != 1)
            die("turn");
        reap(pid[i]);
    }
    T(put(fd, 6, 5000));
    echo_rounds(fd, 10, 2000);
}

static void eight_holders_client(int fd)
{
    T(put(fd, 5, 5000));
    meet();
    for (int i = 0; i < CHILDREN + 1; i++)
        echo_rounds(fd, 10, 2000);
    T(get(fd, 6, 5000));
    echo_rounds(fd, 10, 2000);
}

/* A connection that so many processes hold before it is upgraded never leaves TCP. */
static void stays_crowded(int fd)
{
    int hold[2];
    pid_t pid[CHILDREN];
    fd = join_cold();
    if (is_server) {
        T(pipe(hold));
        for (int i = 0; i < CHILDREN; i++)
            if (!(pid[i] = child())) {
                close(hold[1]);
                if (read(hold[0], buf, 1) != 0)
                    die("hold");
                _exit(i);
            }
        close(hold[0]);
    }
    warm(fd, is_server);
    echo_rounds(fd, 20, 3000);
    if (is_server) {
        close(hold[1]);
        for (int i = 0; i < CHILDREN; i++)
            reap(pid[i]);
    }
    meet();
    echo_rounds(fd, 20, 3000);
}

/* A child changes its user, and may then not even ask whether its parent lives. The bytes that the
 * child leaves unread are for the parent. */
static void other_user_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        if (i)
            fd = join();
        T(put(fd, 1, 20000));
        meet();
        await_in(fd, 30000);
        T(get(fd, 2, 5000));
        pid_t pid = child();
        if (!pid) {
            if (!geteuid() && (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)))
                die("setresuid");
            if (i) {
                T(get_at(fd, 2, 5000, 5000));
                T(put(fd, 3, 3000));
            }
            if (i == 1)
                T(close(fd));
            _exit(i);
        }
        reap(pid);
        if (!i) {
            T(get_at(fd, 2, 5000, 5000));
            T(put(fd, 3, 3000));
        }
        T(get_at(fd, 2, 10000, 20000));
        echo_rounds(fd, 20, 3000);
        meet();
    }
}

static void other_user_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        if (i)
            fd = join();
        T(put(fd, 2, 30000));
        meet();
        T(get(fd, 1, 20000));
        T(get(fd, 3, 3000));
        echo_rounds(fd, 20, 3000);
        meet();
    }
}

/* A child is made by a system call, so that glibc has no part in it. */
static pid_t raw_child(int how)
{
    uint64_t arguments[8] = {[4] = SIGCHLD};
    switch (how) {
#ifdef SYS_fork
    case 0: return syscall(SYS_fork);
#endif
    case 1: return syscall(SYS_clone3, arguments, sizeof arguments);
    default: return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    }
}

static void raw_child_server(int fd, int how)
{
    for (int i = 0; i < 3; i++) {
        pid_t pid = raw_child(how);
        if (pid < 0)
            die("child");
        if (!pid) {
            if (i == 1)
                echo_rounds(fd, 5, 100);
            syscall(SYS_exit_group, 4);
        }
        reap(pid);
        echo_rounds(fd, 20, 3000);
    }
}

static void raw_fork_server(int fd) { raw_child_server(fd, 0); }
static void raw_clone_server(int fd) { raw_child_server(fd, 2); }
static void raw_clone3_server(int fd) { raw_child_server(fd, 1); }

static void clone_child_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        if (i == 1)
            echo_rounds(fd, 5, 100);
        echo_rounds(fd, 20, 3000);
    }
}

/* _Fork: a fork that runs no fork handlers. */
static void bare_fork_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        pid_t pid = _Fork();
        if (!pid) {
            if (i == 1)
                echo_rounds(fd, 5, 100);
            _exit(4);
        }
        reap(pid);
        echo_rounds(fd, 20, 3000);
    }
}

/* A fork that fails changes nothing. RLIMIT_NPROC does not bind root, so that a root process
 * changes its user for a moment. */
static void fork_fails_server(int fd)
{
    struct rlimit before;
    getrlimit(RLIMIT_NPROC, &before);
    int root = !geteuid();
    for (int i = 0; i < 3; i++) {
        if (root && setresuid(65534, 65534, 0))
            die("setresuid");
        setrlimit(RLIMIT_NPROC, &(struct rlimit){0, before.rlim_max});
        T(fork());
        T(_Fork());
        T(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
        setrlimit(RLIMIT_NPROC, &before);
        if (root && setresuid(0, 0, 0))
            die("setresuid");
        prctl(PR_SET_DUMPABLE, 1);
        echo_rounds(fd, 20, 3000);
    }
    pid_t pid = child();
    if (!pid)
        _exit(3);
    reap(pid);
    echo_rounds(fd, 20, 3000);
}

static void fork_fails_client(int fd)
{
    for (int i = 0; i < 4; i++)
        echo_rounds(fd, 20, 3000);
}

const struct body process_bodies[] = {
    TWO("accept_then_fork", accept_fork_server, accept_fork_client, .flags = RAW),
    TWO("prefork", prefork_server, prefork_client, .flags = RAW),
    TWO("child_uses_connection", child_uses, child_uses),
    TWO("parent_and_child_write", both_write_server, both_write_client),
    TWO("child_writes_parent_reads", split_duplex, split_duplex),
    TWO("fork_child_exits", fork_exit, fork_exit),
    TWO("fork_bytes_pending", fork_pending_server, fork_pending_client),
    TWO("parent_leaves", parent_leaves, parent_leaves, .flags = ONEHOST),
    TWO("child_shuts_down", child_shuts_server, child_shuts_client),
    /* daemon() ends the process that was warmed up */
    TWO("daemon", daemonized, daemonized, .flags = MUTE_S | MUTE_C | ONEHOST),
    TWO("daemon_before", daemon_first, daemon_first, .flags = RAW),
    TWO("eight_processes", eight_holders_server, eight_holders_client),
    TWO("stays_crowded", stays_crowded, stays_crowded, .flags = RAW | NOUP),
    TWO("child_of_another_user", other_user_server, other_user_client),
    TWO("raw_fork", raw_fork_server, clone_child_client),
    TWO("raw_clone", raw_clone_server, clone_child_client),
    TWO("raw_clone3", raw_clone3_server, clone_child_client),
    TWO("bare_fork", bare_fork_server, clone_child_client),
    TWO("fork_fails", fork_fails_server, fork_fails_client),
    {0},
};
