/* fork, exec, spawn, passing: several processes and one connection. */
#include "t.h"
#include <sys/stat.h>

extern char **environ;

/* Says nothing: another process may be writing to the transcript. */
static void drop(int fd)
{
    if (close(fd))
        die("close");
}

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

/* Children that were there before accept on the parent's listener. */
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
                    continue; /* another was faster */
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
    T(write(turn[1], "x", 1));
    reap(pid);
}

/* Parent and child write whole records at once; the peer finds every one of them once. */
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

/* One reads while the other writes. */
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

/* fork in the middle of a stream, the child only exits, in each way. */
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

/* What is under way at the fork is read by exactly one of the two. */
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

/* A child's shutdown is everybody's. */
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

/* --- exec --- */

static void be_cat(void)
{
    execl("/bin/cat", "cat", NULL);
    die("exec");
}

static void cat_on(int in, int out, int preloaded)
{
    if (!preloaded)
        unsetenv("LD_PRELOAD");
    if ((in != 0 && dup2(in, 0) < 0) || (out != 1 && dup2(out, 1) < 0))
        die("dup2");
    closefrom(3);
    be_cat();
}

/* cat reads the connection into the transcript, with bytes pending before the exec. */
/* A child becomes cat, which reads on where this process has stopped. */
static pid_t cat_reads_on(int fd)
{
    meet();
    await_in(fd, 40);
    D(recv(fd, buf, 10, 0));
    pid_t pid = child();
    if (!pid)
        cat_on(fd, 1, 1);
    return pid;
}

static void cat_reads_server(int fd)
{
    pid_t pid = cat_reads_on(fd);
    drop(fd);
    tell(0);
    reap(pid);
}

static void cat_reads_client(int fd)
{
    T(send(fd, "0123456789this was there before the exec\n", 41, 0));
    meet();
    hear();
    for (int i = 0; i < 200; i++)
        dprintf(fd, "line %d, sent to a cat\n", i);
    T(write(fd, "and the last one\n", 17));
    T(shutdown(fd, SHUT_WR));
    T(recv(fd, buf, 10, 0));
}

/* The parent stays: what cat has read it does not read, too. */
static void cat_reads_beside_server(int fd)
{
    pid_t pid = cat_reads_on(fd);
    tell(0);
    reap(pid);
    T(recv(fd, buf, 100, 0));
    drop(fd);
}

/* cat writes a file to the connection, behind what its parent wrote. */
static void cat_writes_server(int fd)
{
    T(put(fd, 1, 5000));
    pid_t pid = child();
    if (!pid) {
        int file = temp_file(2, 500000);
        T(put(fd, 3, 5000));
        cat_on(file, fd, 1);
    }
    reap(pid);
    T(put(fd, 4, 5000));
    T(close(fd));
}

static void cat_writes_client(int fd)
{
    T(get(fd, 1, 5000));
    T(get(fd, 3, 5000));
    T(get(fd, 2, 500000));
    T(drain(fd, 4));
}

/* As inetd does it: cat at 0 and 1 echoes; bytes are pending both ways at the exec. */
static void inetd(int fd, int preloaded)
{
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 30000);
    T(get(fd, 2, 10000));
    pid_t pid = child();
    if (!pid)
        cat_on(fd, fd, preloaded);
    T(close(fd));
    reap(pid);
}

static void inetd_server(int fd) { inetd(fd, 1); }
static void inetd_plain_server(int fd) { inetd(fd, 0); }

static void inetd_client(int fd)
{
    T(put(fd, 2, 30000));
    meet();
    T(get(fd, 1, 20000));
    T(get_at(fd, 2, 10000, 20000));
    for (int i = 0; i < 50; i++)
        if (put(fd, i, 3000) != 3000 || get(fd, i, 3000) != 3000)
            die("echo");
    T(shutdown(fd, SHUT_WR));
    T(recv(fd, buf, 10, 0));
}

/* The process itself becomes cat, without a fork. */
static void become_cat_server(int fd)
{
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 30000);
    T(get(fd, 2, 10000));
    cat_on(fd, fd, 1);
}

/* exec of this program: it goes on with the connection where it stopped, also with cold and warm bytes pending. */
static void exec_self_server(int fd)
{
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 30000);
    T(get(fd, 2, 10000));
    exec_self(fd);
}

static void exec_self_resume(int fd)
{
    T(get_at(fd, 2, 10000, 20000));
    T(put(fd, 3, 20000));
    warm(fd, is_server);
    echo_rounds(fd, 50, 3000);
}

static void exec_self_client(int fd)
{
    T(put(fd, 2, 30000));
    meet();
    T(get(fd, 1, 20000));
    T(get(fd, 3, 20000));
    warm(fd, is_server);
    echo_rounds(fd, 50, 3000);
}

/* Both ends exec at the same time. */
static void exec_both(int fd)
{
    T(put(fd, is_server, 30000));
    meet();
    exec_self(fd);
}

static void exec_both_resume(int fd)
{
    T(get(fd, !is_server, 30000));
    T(put(fd, is_server, 30000));
    T(get(fd, !is_server, 30000));
    echo_rounds(fd, 50, 3000);
}

/* Marked close-on-exec: the peer gets all bytes, then the end. */
static void exec_cloexec_server(int fd)
{
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    T(put(fd, 1, 100000));
    exec_self(fd);
}

static void exec_cloexec_resume(int fd)
{
    T(write(fd, buf, 1));
    meet();
}

static void exec_cloexec_client(int fd)
{
    T(drain(fd, 1));
    T(recv(fd, buf, 1, 0));
    meet();
}

/* An exec that fails changes nothing. */
static void exec_fails(int fd)
{
    for (int i = 0; i < 3; i++) {
        T(execl("/nonexistent/program", "program", NULL));
        T(execlp("no-such-program-anywhere", "program", NULL));
        T(execv("/dev/null", (char *[]){"null", NULL}));
        echo_rounds(fd, 20, 3000);
    }
}

/* Other programs are run while the stream lives. */
static int run(int how)
{
    int status;
    pid_t pid;
    char line[100] = "";
    FILE *f;
    switch (how) {
    case 0: return system("exit 3");
    case 1: return posix_spawn(&pid, "/bin/true", NULL, NULL, (char *[]){"true", NULL}, environ) || waitpid(pid, &status, 0) != pid ? -1 : status;
    case 2:
        f = popen("echo hello; cat /dev/null", "r");
        if (!f || !fgets(line, sizeof line, f))
            return -1;
        return pclose(f) + strcmp(line, "hello\n");
    case 3:
        if (!(pid = vfork())) {
            close(SYNC + 1); /* in a vfork child, whose memory is ours */
            execl("/bin/sh", "sh", "-c", "exit 5", NULL);
            _exit(9);
        }
        return waitpid(pid, &status, 0) == pid ? status : -1;
    case 4:
        f = popen("cat >/dev/null; exit 7", "w");
        fputs("text", f);
        return pclose(f);
    case 5:
        return posix_spawnp(&pid, "false", NULL, NULL, (char *[]){"false", NULL}, environ) || waitpid(pid, &status, 0) != pid ? -1 : status;
    default:
        if (!(pid = vfork()))
            _exit(11);
        return waitpid(pid, &status, 0) == pid ? status : -1;
    }
}

static void spawns(int fd)
{
    for (int how = 0; how < 7; how++) {
        say("%d: status %x", how, run(how));
        echo_rounds(fd, 10, 3000);
    }
}

static void *spawner(void *arg)
{
    (void)arg;
    long sum = 0;
    for (int i = 0; i < 7; i++)
        sum += run(i);
    return (void *)sum;
}

static void spawn_under_load(int fd)
{
    pthread_t t = start(spawner, NULL);
    echo_rounds(fd, 300, 5000);
    say("statuses %lx", (long)finish(t));
}

/* posix_spawn with file actions: the child has the connection as its standard output. */
static void spawn_on_server(int fd)
{
    posix_spawn_file_actions_t a;
    pid_t pid;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_adddup2(&a, fd, 1);
    T(put(fd, 1, 3000));
    T(posix_spawn(&pid, "/bin/sh", &a, NULL, ((char *[]){"sh", "-c", "echo first; echo second", NULL}), environ));
    reap(pid);
    T(put(fd, 2, 3000));
    T(close(fd));
}

static void spawn_on_client(int fd)
{
    T(get(fd, 1, 3000));
    D(recv(fd, buf, 13, MSG_WAITALL));
    say("%.13s", buf);
    T(drain(fd, 2));
}

/* A shell script on the connection. */
static void shell_server(int fd)
{
    pid_t pid = child();
    if (!pid) {
        dup2(fd, 0);
        dup2(fd, 1);
        closefrom(3);
        execl("/bin/sh", "sh", "-c", "while read a b; do echo \"$b $a\"; done; echo bye", NULL);
        die("exec");
    }
    T(close(fd));
    reap(pid);
}

static void shell_client(int fd)
{
    for (int i = 0; i < 20; i++) {
        int n = dprintf(fd, "%d words\n", i);
        if (recv(fd, buf, n, MSG_WAITALL) != n)
            die("answer");
        say("%.*s", n - 1, buf);
    }
    T(shutdown(fd, SHUT_WR));
    D(recv(fd, buf, 4, MSG_WAITALL));
    T(recv(fd, buf, 1, 0));
}

/* --- passing --- */

static void pass(int unix_fd, int fd)
{
    union { struct cmsghdr h; char space[CMSG_SPACE(sizeof(int))]; } c = {.h = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec v = {"f", 1};
    memcpy(CMSG_DATA(&c.h), &fd, sizeof fd);
    if (sendmsg(unix_fd, &(struct msghdr){.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c}, 0) != 1)
        die("pass");
}

static int passed(int unix_fd)
{
    union { struct cmsghdr h; char space[CMSG_SPACE(sizeof(int))]; } c;
    char byte;
    int fd = -1;
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
    if (recvmsg(unix_fd, &m, 0) == 1 && m.msg_controllen >= sizeof(struct cmsghdr))
        memcpy(&fd, CMSG_DATA(&c.h), sizeof fd);
    return fd;
}

/* A helper process, there before any connection, is given ours; it may have the library or not. */
static void passing(int preloaded)
{
    int u[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, u);
    pid_t pid = child();
    if (!pid) {
        close(u[0]);
        if (!preloaded)
            unsetenv("LD_PRELOAD");
        exec_self(u[1]);
    }
    close(u[1]);
    int fd = join();
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 30000);
    T(get(fd, 2, 10000));
    pass(u[0], fd);
    drop(fd);
    D(recv(u[0], buf, 4, MSG_WAITALL)); /* the helper is through */
    T(close(u[0]));
    reap(pid);
}

static void passing_server(int fd)
{
    (void)fd;
    passing(1);
}

static void passing_plain_server(int fd)
{
    (void)fd;
    passing(0);
}

static void passing_resume(int unix_fd)
{
    int fd = passed(unix_fd);
    T(get_at(fd, 2, 10000, 20000));
    T(put(fd, 3, 20000));
    echo_rounds(fd, 50, 3000);
    T(close(fd));
    if (write(unix_fd, "done", 4) != 4)
        die("done");
    _exit(0);
}

static void passing_client(int fd)
{
    fd = join();
    T(put(fd, 2, 30000));
    meet();
    T(get(fd, 1, 20000));
    T(get(fd, 3, 20000));
    echo_rounds(fd, 50, 3000);
    T(recv(fd, buf, 1, 0));
}

/* The connection is passed to ourselves: two numbers for one socket. */
static void pass_to_self(int fd)
{
    int u[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, u);
    pass(u[0], fd);
    echo_rounds(fd, 10, 2000);
    int again = passed(u[1]);
    say("fd %d", again);
    echo_rounds(again, 10, 2000);
    T(close(fd));
    echo_rounds(again, 50, 2000);
}

/* --- daemon --- */

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

static void clone_child(int fd)
{
    for (int i = 0; i < 3; i++) {
        pid_t pid = syscall(SYS_fork);
        if (!pid) {
            if (i == 1)
                echo_rounds(fd, 5, 100);
            syscall(SYS_exit_group, 4);
        }
        reap(pid);
        echo_rounds(fd, 20, 3000);
    }
}

static void clone_child_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        if (i == 1)
            echo_rounds(fd, 5, 100);
        echo_rounds(fd, 20, 3000);
    }
}

/* The fork that calls no handlers. */
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

/* A fork that fails changes nothing. Root has no limit, so it is somebody else for a moment. */
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
    TWO("cat_reads", cat_reads_server, cat_reads_client),
    TWO("cat_reads_beside", cat_reads_beside_server, cat_reads_client, .flags = ONEHOST),
    TWO("cat_writes", cat_writes_server, cat_writes_client),
    TWO("inetd", inetd_server, inetd_client),
    TWO("inetd_not_preloaded", inetd_plain_server, inetd_client),
    TWO("become_cat", become_cat_server, inetd_client),
    TWO("exec_self", exec_self_server, exec_self_client, .resume = exec_self_resume),
    TWO("exec_both_ends", exec_both, exec_both, .flags = ONEHOST, .resume = exec_both_resume),
    TWO("exec_cloexec", exec_cloexec_server, exec_cloexec_client, .resume = exec_cloexec_resume),
    TWO("exec_fails", exec_fails, exec_fails),
    TWO("spawn_while_streaming", spawns, spawns),
    TWO("spawn_under_load", spawn_under_load, spawn_under_load),
    TWO("spawn_on_connection", spawn_on_server, spawn_on_client),
    TWO("shell_on_connection", shell_server, shell_client),
    TWO("scm_rights", passing_server, passing_client, .flags = RAW, .resume = passing_resume),
    TWO("scm_rights_not_preloaded", passing_plain_server, passing_client, .flags = RAW, .resume = passing_resume),
    TWO("scm_rights_to_self", pass_to_self, pass_to_self, .flags = STEADY),
    TWO("daemon", daemonized, daemonized, .flags = MUTE_S | MUTE_C | ONEHOST), /* libc itself ends the process that was warmed up */
    TWO("daemon_before", daemon_first, daemon_first, .flags = RAW),
    TWO("raw_fork", clone_child, clone_child_client),
    TWO("bare_fork", bare_fork_server, clone_child_client),
    TWO("fork_fails", fork_fails_server, fork_fails_client),
    {0},
};
