/* exec and spawn: other programs on a connection, or beside it. */
#include "t.h"

extern char **environ;

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

/* A child becomes cat, which reads on where this process has stopped. Bytes are unread before the
 * exec, and cat copies the connection into the transcript. */
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

/* The parent keeps the connection: it does not read the bytes that cat has read. */
static void cat_reads_beside_server(int fd)
{
    pid_t pid = cat_reads_on(fd);
    tell(0);
    reap(pid);
    T(recv(fd, buf, 100, 0));
    drop(fd);
}

/* The program removes FD_CLOEXEC and passes the connection on at a number above stdio. The parent
 * keeps the connection, and waits for the child. */
static void handed_number_server(int first)
{
    char cat[40];
    volatile int fd = first; /* volatile: vfork returns twice */
    for (volatile int way = 0; way < 4; way++) {
        pid_t pid = 0;
        if (way)
            fd = join();
        /* head does not wait for the end of the stream, after which TCP has everything. */
        snprintf(cat, sizeof cat, "head -c 3431 <&%d", fd);
        T(fcntl(fd, F_SETFD, FD_CLOEXEC));
        meet();
        await_in(fd, 40);
        D(recv(fd, buf, 10, 0));
        if (way < 2 && !(pid = child())) {
            if (way ? ioctl(fd, FIONCLEX) : fcntl(fd, F_SETFD, 0))
                die("inheritable");
            execl("/bin/sh", "sh", "-c", cat, NULL);
            die("exec");
        }
        if (way == 2 && !(pid = vfork())) {
            if (fcntl(fd, F_SETFD, 0))
                _exit(9);
            execl("/bin/sh", "sh", "-c", cat, NULL);
            _exit(9);
        }
        tell(0);
        if (way < 3) {
            reap(pid);
        } else {
            T(fcntl(fd, F_SETFD, 0));
            T(system(cat));
        }
        tell(0);
        T(recv(fd, buf, 100, 0));
        drop(fd);
    }
}

static void handed_number_client(int fd)
{
    for (int way = 0; way < 4; way++) {
        if (way)
            fd = join();
        T(send(fd, "0123456789this was there before the exec\n", 41, 0));
        meet();
        hear();
        for (int i = 0; i < 200; i++)
            if (write(fd, "a line for a cat\n", 17) != 17)
                die("write");
        hear();
        T(shutdown(fd, SHUT_WR));
        T(recv(fd, buf, 10, 0));
        drop(fd);
    }
}

/* The child is made by vfork, and has its parent's memory until it becomes cat. */
static void vfork_cat_server(int fd)
{
    meet();
    await_in(fd, 40);
    D(recv(fd, buf, 10, 0));
    pid_t pid = vfork();
    if (!pid) {
        if (dup2(fd, 0) < 0)
            _exit(9);
        execl("/bin/cat", "cat", NULL);
        _exit(9);
    }
    drop(fd);
    tell(0);
    reap(pid);
}

/* cat writes a file to the connection, after the bytes that its parent wrote. */
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

/* As inetd does it: cat echoes, with the connection at 0 and 1. Bytes are unread in both directions
 * at the exec. */
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

/* The same with a statically linked program, into which nothing can be loaded, and with the
 * connection at its own number. */
static void become_static_server(int fd)
{
    char path[4096], number[16];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 8);
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 30000);
    T(get(fd, 2, 10000));
    if (n < 0)
        die("readlink");
    path[n] = 0;
    strcpy(strrchr(path, '/') + 1, "static");
    snprintf(number, sizeof number, "%d", fd);
    fflush(stdout);
    execl(path, path, number, NULL);
    die("exec");
}

/* exec of this program: it goes on with the connection where it stopped, with bytes unread in both
 * directions, whether the connection was warmed or not. */
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

/* exec by each function there is, each time with a new connection and with bytes under way. */
enum { EXECS = 7, RAW_EXECS = 2 };

static void become(int how, char **argv)
{
    static const char self[] = "/proc/self/exe";
    int fd = open(self, O_RDONLY | O_CLOEXEC);
    switch (how) {
    case 0: execve(self, argv, environ); break;
    case 1: setenv("PATH", "/proc/self:/usr/bin:/bin", 1); execvp("exe", argv); break;
    case 2: execvpe("exe", argv, environ); break;
    case 3:
        execle(self, argv[0], argv[1], argv[2], argv[3], argv[4], argv[5], argv[6], NULL, environ);
        break;
    case 4: fexecve(fd, argv, environ); break;
    case 5: execveat(AT_FDCWD, self, argv, environ, 0); break;
    case 6: execveat(fd, "", argv, environ, AT_EMPTY_PATH); break;
    case 7: syscall(SYS_execve, self, argv, environ); break;
    case 8: syscall(SYS_execveat, fd, "", argv, environ, AT_EMPTY_PATH); break;
    }
    die("exec");
}

static void become_server(int fd, int how)
{
    char text[8];
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 30000);
    T(get(fd, 2, 10000));
    say("%d", how);
    snprintf(text, sizeof text, "%d", how);
    setenv("CTEST_HOW", text, 1);
    become(how, self_argv(fd));
}

static void became(int fd)
{
    int how = atoi(getenv("CTEST_HOW")) + 1;
    T(get_at(fd, 2, 10000, 20000));
    T(put(fd, 3, 20000));
    echo_rounds(fd, 10, 3000);
    T(close(fd));
    if (how != EXECS && how != EXECS + RAW_EXECS)
        become_server(join(), how);
}

static void become_client(int fd, int count)
{
    for (int i = 0; i < count; i++) {
        if (i)
            fd = join();
        T(put(fd, 2, 30000));
        meet();
        T(get(fd, 1, 20000));
        T(get(fd, 3, 20000));
        echo_rounds(fd, 10, 3000);
        T(recv(fd, buf, 1, 0));
        T(close(fd));
    }
}

static void execs_server(int fd) { become_server(fd, 0); }
static void execs_client(int fd) { become_client(fd, EXECS); }
static void raw_execs_server(int fd) { become_server(fd, EXECS); }
static void raw_execs_client(int fd) { become_client(fd, RAW_EXECS); }

/* exec while the other end writes many bytes, which may bring the connection back to its link
 * before the old program is gone. The new program shuts down its writing at once. */
enum { AMID_BULK = 6, BULK = 6000000, BULK_BEFORE = 1600000 };

static void amid_bulk_server(int fd)
{
    T(get(fd, 2, BULK_BEFORE));
    become(0, self_argv(fd));
}

static void amid_bulk_resume(int fd)
{
    const char *last = getenv("CTEST_HOW");
    int how = last ? atoi(last) + 1 : 1;
    char text[16];
    T(shutdown(fd, SHUT_WR));
    hear();
    T(get_at(fd, 2, BULK_BEFORE, BULK - BULK_BEFORE));
    T(recv(fd, buf, 1, 0));
    T(close(fd));
    snprintf(text, sizeof text, "%d", how);
    setenv("CTEST_HOW", text, 1);
    if (how != AMID_BULK)
        amid_bulk_server(join());
}

static void *puts_bulk(void *fd)
{
    return (void *)put(*(int *)fd, 2, BULK);
}

static void amid_bulk_client(int fd)
{
    for (int i = 0; i < AMID_BULK; i++) {
        if (i)
            fd = join();
        pthread_t writer = start(puts_bulk, &fd);
        T(recv(fd, buf, 1, 0)); /* the end of the stream, not a reset */
        tell(0);
        T((long)finish(writer));
        T(close(fd));
    }
}

/* A child executes this program after its parent has closed the connection, at a number that no
 * program expects by itself. The new program finds the unread bytes, and the peer finds those that
 * the old one wrote. */
static void above_server(int fd)
{
    int turn[2];
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 30000);
    T(get(fd, 2, 10000));
    T(pipe(turn));
    pid_t pid = child();
    if (!pid) {
        if (read(turn[0], buf, 1) != 1)
            die("turn");
        exec_self(fd);
    }
    T(close(fd));
    if (write(turn[1], "x", 1) != 1)
        die("turn");
    reap(pid);
}

static void above_resume(int fd)
{
    T(get_at(fd, 2, 10000, 20000));
    T(put(fd, 3, 20000));
    echo_rounds(fd, 50, 3000);
    T(close(fd));
    _exit(3);
}

static void above_client(int fd)
{
    T(put(fd, 2, 30000));
    meet();
    T(get(fd, 1, 20000));
    T(get(fd, 3, 20000));
    echo_rounds(fd, 50, 3000);
    T(recv(fd, buf, 1, 0));
}

/* A poll of a connection, and of a set in which nothing is asked of it, finds the connection's byte
 * after the other end has become another program; a wait for the set finds nothing. */
static void exec_polled_server(int fd)
{
    await_asleep(peer_pid);
    exec_self(fd);
}

static void exec_polled_resume(int fd)
{
    T(put(fd, 1, 1));
    meet();
}

static void exec_polled_client(int fd)
{
    struct pollfd p[] = {{.fd = fd, .events = POLLIN | POLLPRI},
                         {.fd = set_of(fd, EPOLLET), .events = POLLIN}};
    int polls = 0;
    struct epoll_event e;
    while (poll(p, 2, -1) > 0 && !p[0].revents && epoll_wait(p[1].fd, &e, 1, 0) == 0)
        polls++;
    YES(polls < 100);
    say("connection: %s", mask_name(p[0].revents));
    T(get(fd, 1, 1));
    say_wait(p[1].fd, 0);
    meet();
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

/* Bytes unread after both shutdowns are there for the next program (after exec). */
static void shut_server(int fd, size_t len)
{
    T(put(fd, 1, len));
    meet();
    meet();
}

static void shut_client(int fd, size_t len)
{
    meet();
    await_in(fd, len);
    T(get(fd, 1, 1000));
    T(shutdown(fd, SHUT_RDWR));
    exec_self(fd);
}

static void shut_resume(int fd, size_t len)
{
    int n;
    T(ioctl(fd, FIONREAD, &n));
    say("%d, %s", n, mask_name(ready(fd)));
    T(get_at(fd, 1, 1000, len - 1000));
    T(recv(fd, buf, 1, 0));
    meet();
}

static void exec_shut_server(int fd) { shut_server(fd, 3000); }
static void exec_shut_client(int fd) { shut_client(fd, 3000); }
static void exec_shut_resume(int fd) { shut_resume(fd, 3000); }

/* The same with nearly as many unread bytes as TCP takes. */
static void exec_shut_much_server(int fd) { shut_server(fd, 60000); }
static void exec_shut_much_client(int fd) { shut_client(fd, 60000); }
static void exec_shut_much_resume(int fd) { shut_resume(fd, 60000); }

/* The connection is marked close-on-exec: the peer gets all bytes, then the end of the stream. */
static void exec_cloexec_server(int fd)
{
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    T(put(fd, 1, 100000));
    exec_self(fd);
}

/* The connections are marked close-on-exec when they are made, by accept4 and by socket. */
static void exec_born_cloexec_server(int fd)
{
    int port, l = listen_any(&port);
    for (int i = 0; i < 2; i++) {
        tell(port);
        await(l, POLLIN);
        fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
        nodelay(fd);
        warm(fd, 1);
        T(put(fd, 1, 100000));
    }
    exec_self(fd);
}

static void exec_born_cloexec_client(int fd)
{
    struct sockaddr_storage a;
    int s[2];
    for (int i = 0; i < 2; i++) {
        socklen_t len = loopback(&a, hear(), 0);
        s[i] = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        T(connect(s[i], (void *)&a, len));
        nodelay(s[i]);
        warm(s[i], 0);
        say("cloexec %d", fcntl(s[i], F_GETFD));
    }
    for (int i = 0; i < 2; i++) {
        T(drain(s[i], 1));
        T(recv(s[i], buf, 1, 0));
    }
    meet();
    exec_self(fd = s[0]);
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

/* The client execs with bytes unread, so that its connection closes. The server's program is busy,
 * and finds a reset. */
static void exec_unread_server(int fd)
{
    T(put(fd, 1, 95));
    background_last();
    meet();
    for (double end = now() + 0.02; now() < end;)
        ;
    await(fd, POLLHUP);
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, 0));
    meet();
}

static void exec_unread_client(int fd)
{
    await_in(fd, 95);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    meet();
    exec_self(fd);
}

static void exec_born_resume(int fd)
{
    T(write(fd, buf, 1));
    if (is_server)
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

/* Runs other programs while the stream is in use. */
static int run(int how)
{
    int status;
    pid_t pid;
    char line[100] = "";
    FILE *f;
    switch (how) {
    case 0: return system("exit 3");
    case 1:
        return posix_spawn(&pid, "/bin/true", NULL, NULL, (char *[]){"true", NULL}, environ) ||
               waitpid(pid, &status, 0) != pid ? -1 : status;
    case 2:
        f = popen("echo hello; cat /dev/null", "r");
        if (!f || !fgets(line, sizeof line, f))
            return -1;
        return pclose(f) + strcmp(line, "hello\n");
    case 3:
        if (!(pid = vfork())) {
            close(SYNC + 1); /* a vfork child, which shares our memory, closes a descriptor */
            execl("/bin/sh", "sh", "-c", "exit 5", NULL);
            _exit(9);
        }
        return waitpid(pid, &status, 0) == pid ? status : -1;
    case 4:
        f = popen("cat >/dev/null; exit 7", "w");
        fputs("text", f);
        return pclose(f);
    case 5:
        return posix_spawnp(&pid, "false", NULL, NULL, (char *[]){"false", NULL}, environ) ||
               waitpid(pid, &status, 0) != pid ? -1 : status;
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
    T(posix_spawn(&pid, "/bin/sh", &a, NULL,
                  ((char *[]){"sh", "-c", "echo first; echo second", NULL}), environ));
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

/* An exec fails. What the library released for the new program does not belong to two connections
 * afterwards. */
static void exec_fails_others_server(int fd)
{
    echo_rounds(fd, 20, 3000);
    T(execl("/nonexistent", "nonexistent", NULL));
    int other = join();
    echo_rounds(other, 60, 3000);
    echo_rounds(fd, 60, 3000); /* accelerated once more */
    T(put(fd, 1, 60000));
    T(put(other, 2, 100000));
    T(close(fd));
    T(close(other));
    tell(0);
}

static void exec_fails_others_client(int fd)
{
    echo_rounds(fd, 20, 3000);
    int other = join();
    echo_rounds(other, 60, 3000);
    echo_rounds(fd, 60, 3000);
    hear();
    T(drain(fd, 1));
    T(drain(other, 2));
}

const struct body exec_bodies[] = {
    TWO("cat_reads", cat_reads_server, cat_reads_client),
    TWO("cat_reads_beside", cat_reads_beside_server, cat_reads_client, .flags = ONEHOST),
    TWO("handed_number", handed_number_server, handed_number_client, .flags = ONEHOST),
    TWO("vfork_cat_reads", vfork_cat_server, cat_reads_client),
    TWO("cat_writes", cat_writes_server, cat_writes_client),
    TWO("inetd", inetd_server, inetd_client),
    TWO("inetd_not_preloaded", inetd_plain_server, inetd_client),
    TWO("become_cat", become_cat_server, inetd_client),
    TWO("become_static", become_static_server, inetd_client, .flags = MUTE_S),
    TWO("exec_self", exec_self_server, exec_self_client, .resume = exec_self_resume),
    TWO("exec_every_way", execs_server, execs_client, .resume = became),
    TWO("exec_by_syscall", raw_execs_server, raw_execs_client, .resume = became),
    TWO("exec_amid_bulk", amid_bulk_server, amid_bulk_client, .limit = 30,
        .resume = amid_bulk_resume),
    TWO("exec_above_stdio", above_server, above_client, .resume = above_resume),
    TWO("exec_polled", exec_polled_server, exec_polled_client, .resume = exec_polled_resume),
    TWO("exec_both_ends", exec_both, exec_both, .flags = ONEHOST, .resume = exec_both_resume),
    TWO("exec_shut", exec_shut_server, exec_shut_client, .flags = ONEHOST,
        .resume = exec_shut_resume),
    TWO("exec_shut_much", exec_shut_much_server, exec_shut_much_client, .flags = ONEHOST,
        .resume = exec_shut_much_resume),
    TWO("exec_cloexec", exec_cloexec_server, exec_cloexec_client, .resume = exec_cloexec_resume),
    TWO("exec_unread", exec_unread_server, exec_unread_client, .resume = exec_cloexec_resume),
    TWO("exec_born_cloexec", exec_born_cloexec_server, exec_born_cloexec_client, .flags = RAW,
        .resume = exec_born_resume),
    TWO("exec_fails", exec_fails, exec_fails),
    TWO("exec_fails_then_others", exec_fails_others_server, exec_fails_others_client),
    TWO("spawn_while_streaming", spawns, spawns),
    TWO("spawn_under_load", spawn_under_load, spawn_under_load),
    TWO("spawn_on_connection", spawn_on_server, spawn_on_client),
    TWO("shell_on_connection", shell_server, shell_client),
    {0},
};
