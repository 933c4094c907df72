/* Signal handlers that use sockets, in the middle of whatever they interrupt. */
#include "t.h"

/* A handler writes to another connection, then to the connection on which its thread sleeps. */
static int handler_fd[2];

static void writing_handler(int sig)
{
    int e = errno;
    signals[sig]++;
    for (int i = 0; i < 2; i++)
        if (write(handler_fd[i], "signal", 6) != 6)
            _exit(97);
    errno = e;
}

static void handler_writes_server(int fd)
{
    int other = join();
    char text[7] = "";
    for (int i = 0; i < 30; i++) {
        if (hear() < 0)
            die("peer");
        if (i % 3 == 0)
            await_asleep(peer_pid);
        kill(peer_pid, SIGUSR1);
        if (recv(other, text, 6, MSG_WAITALL) != 6 || strcmp(text, "signal") ||
            recv(fd, text, 6, MSG_WAITALL) != 6 || strcmp(text, "signal"))
            die("handler's bytes");
        put(fd, i, 1000 + i);
    }
    say("done");
    meet();
}

static void handler_writes_client(int fd)
{
    size_t good = 0;
    handler_fd[0] = join();
    handler_fd[1] = fd;
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = writing_handler, .sa_flags = SA_RESTART},
        NULL);
    for (int i = 0; i < 30; i++) {
        tell(0);
        good += get(fd, i, 1000 + i);
    }
    say("%zu good, signals %d", good, signals[SIGUSR1]);
    meet();
}

/* A handler reads from the connection on which its thread sleeps in recv. The handler gets the
 * first bytes, and the thread gets the bytes after them. */
static void reading_handler(int sig)
{
    int e = errno;
    char text[6];
    signals[sig]++;
    tell(0);
    for (size_t n = 0; n < sizeof text;) {
        ssize_t r = read(handler_fd[0], text + n, sizeof text - n);
        if (r <= 0)
            _exit(97);
        n += r;
    }
    if (memcmp(text, "signal", 6))
        _exit(98);
    tell(0);
    errno = e;
}

static void handler_reads_server(int fd)
{
    for (int i = 0; i < 30; i++) {
        hear();
        await_asleep(peer_pid);
        kill(peer_pid, SIGUSR1);
        hear();
        if (i % 3 == 0)
            await_asleep(peer_pid);
        if (write(fd, "signal", 6) != 6)
            die("write");
        hear();
        if (i % 3 == 1)
            await_asleep(peer_pid);
        put(fd, i, 1000 + i);
    }
    say("done");
    meet();
}

static void handler_reads_client(int fd)
{
    size_t good = 0;
    handler_fd[0] = fd;
    for (int i = 0; i < 30; i++) {
        sigaction(SIGUSR1,
            &(struct sigaction){.sa_handler = reading_handler, .sa_flags = i % 2 ? SA_RESTART : 0},
            NULL);
        tell(0);
        good += get(fd, i, 1000 + i);
    }
    say("%zu good, signals %d", good, signals[SIGUSR1]);
    meet();
}

/* A handler writes to the connection on which its thread sleeps in a write. The handler's bytes
 * arrive in one piece, between bytes of the thread. */
static void amid_write_handler(int sig)
{
    int e = errno;
    signals[sig]++;
    tell(0);
    if (write(handler_fd[0], "signal", 6) != 6)
        _exit(97);
    errno = e;
}

static void amid_write_server(int fd)
{
    static char got[sizeof buf + 6];
    hear();
    await_asleep(peer_pid);
    kill(peer_pid, SIGUSR1);
    hear();
    size_t n = 0;
    for (ssize_t r; n < sizeof got && (r = read(fd, got + n, sizeof got - n)) > 0;)
        n += r;
    fill(buf, 1, 0, sizeof buf);
    size_t before = 0;
    while (before < sizeof buf && got[before] == buf[before])
        before++;
    /* The handler's bytes may begin like the next bytes of the pattern. */
    size_t from = before < 5 ? 0 : before - 5, at = from;
    while (at <= before && memcmp(got + at, "signal", 6))
        at++;
    say("read %zu, whole %d", n,
        at <= before && !memcmp(got, buf, at) &&
        !memcmp(got + at + 6, buf + at, sizeof buf - at));
    meet();
}

static void amid_write_client(int fd)
{
    size_t n = 0;
    handler_fd[0] = fd;
    sigaction(SIGUSR1,
        &(struct sigaction){.sa_handler = amid_write_handler, .sa_flags = SA_RESTART}, NULL);
    fill(buf, 1, 0, sizeof buf);
    tell(0);
    for (ssize_t r; n < sizeof buf && (r = write(fd, buf + n, sizeof buf - n)) > 0;)
        n += r;
    say("wrote %zu, signals %d", n, signals[SIGUSR1]);
    meet();
}

/* Many signals at any moment of an exchange. */
static void storm_client(int fd)
{
    count_signal(SIGALRM, SA_RESTART);
    T(setitimer(ITIMER_REAL, (&(struct itimerval){{0, 300}, {0, 300}}), NULL));
    echo_rounds(fd, 300, 3000);
    T(get(fd, 1, 2000000));
    T(put(fd, 2, 2000000));
    T(setitimer(ITIMER_REAL, (&(struct itimerval){0}), NULL));
    YES(signals[SIGALRM] > 0);
}

static void storm_server(int fd)
{
    echo_rounds(fd, 300, 3000);
    T(put(fd, 1, 2000000));
    T(get(fd, 2, 2000000));
}

/* A handler that interrupts malloc sends on a connection that is at rest. */
enum { AMID = 9000 };

static int amid_fd;
static volatile ssize_t amid_sent;

static void amid_handler(int sig)
{
    int e = errno;
    amid_sent = send(amid_fd, buf, AMID, 0);
    signals[sig]++;
    errno = e;
}

static void amid_malloc_server(int fd)
{
    echo_rounds(fd, 20, 3000);
    for (int i = 0; i < 8; i++) {
        T(get(fd, 1, AMID));
        tell(0);
    }
    T(put(fd, 2, 5000));
    meet();
}

static void amid_malloc_client(int fd)
{
    echo_rounds(fd, 20, 3000); /* so that the handler is not the first to meet the peer */
    amid_fd = fd;
    fill(buf, 1, 0, AMID);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = amid_handler, .sa_flags = SA_RESTART},
        NULL);
    for (int i = 0; i < 8; i++) {
        /* until the connection is at rest, which no call shows */
        nanosleep(&(struct timespec){.tv_nsec = 450000000}, NULL);
        for (size_t size = 16; size < 1024; size += 16)
            for (int k = 0; k < 8; k++) {
                /* empties malloc's cache of this thread, which takes no lock */
                void *volatile kept = malloc(size);
                (void)kept;
            }
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 1000}}, NULL);
        while (signals[SIGALRM] == i) {
            void *volatile block = malloc(5000); /* too large for that cache */
            free(block);
        }
        say("sent %zd", amid_sent);
        hear();
    }
    T(get(fd, 2, 5000));
    meet();
}

/* A handler shuts the writing half down in the middle of a recv. The peer finds the FIN, and
 * everything that the peer writes is still read. */
enum { AMID_READ = 8 << 20 };

static void shutting_handler(int sig)
{
    int e = errno;
    shutdown(amid_fd, SHUT_WR);
    signals[sig]++;
    errno = e;
}

static void *put_amid_read(void *conn) { return (void *)(long)put(*(int *)conn, 1, AMID_READ); }

static void amid_read_server(int fd)
{
    for (int i = 0; i < 6; i++) {
        int conn = join();
        char c;
        pthread_t writer = start(put_amid_read, &conn);
        T(poll(&(struct pollfd){conn, POLLRDHUP, 0}, 1, -1));
        T(recv(conn, &c, 1, 0));
        say("written %ld", (long)finish(writer));
        close(conn);
        meet();
    }
    echo_rounds(fd, 3, 1000);
}

static void amid_read_client(int fd)
{
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = shutting_handler, .sa_flags = SA_RESTART},
        NULL);
    for (int i = 0; i < 6; i++) {
        amid_fd = join();
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 500 + 300 * i}}, NULL);
        T(get(amid_fd, 1, AMID_READ));
        while (signals[SIGALRM] == i)
            usleep(100);
        close(amid_fd);
        meet();
    }
    echo_rounds(fd, 3, 1000);
}

/* The same in the middle of a write: the peer gets as many bytes as the writes returned, then the
 * FIN, and every later write fails. */
static void amid_shut_server(int fd)
{
    for (int i = 0; i < 12; i++) {
        int conn = join();
        size_t got = drain(conn, 1);
        say("as told %d", (long)got == hear());
        put(conn, 2, 1000);
        close(conn);
        meet();
    }
    echo_rounds(fd, 3, 1000);
}

static void amid_shut_client(int fd)
{
    struct sigaction shuts = {.sa_handler = shutting_handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &shuts, NULL);
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 12; i++) {
        amid_fd = join();
        size_t done = 0;
        fill(buf, 1, 0, sizeof buf);
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 300 + 250 * i}}, NULL);
        for (ssize_t n; (n = write(amid_fd, buf, sizeof buf)) > 0;) {
            done += n;
            fill(buf, 1, done, sizeof buf);
        }
        say("%s, signals %d", strerrorname_np(errno), signals[SIGALRM]);
        T(write(amid_fd, "x", 1));
        tell(done);
        T(get(amid_fd, 2, 1000));
        close(amid_fd);
        meet();
    }
    echo_rounds(fd, 3, 1000);
}

/* What sigaction and its kin tell a program about its own handlers. */
static void one_handler(int sig) { signals[sig]++; }
static void other_handler(int sig) { signals[sig] += 10; }

static void informed_handler(int sig, siginfo_t *info, void *context)
{
    ucontext_t *u = context;
    stack_t now;
    sigaltstack(NULL, &now);
    signals[sig] += 100 * (info->si_signo == sig) + 1000 * (u->uc_stack.ss_size == now.ss_size);
    signals[sig] += now.ss_flags & SS_ONSTACK ? 10000 : 0;
}

static const char *name_of(void *handler)
{
    static const struct { void *handler; const char *name; } all[] = {
        {SIG_DFL, "default"}, {SIG_IGN, "ignored"}, {SIG_ERR, "error"}, {SIG_HOLD, "held"},
        {one_handler, "one"}, {other_handler, "other"}, {informed_handler, "informed"},
    };
    for (size_t i = 0; i < COUNT(all); i++)
        if (all[i].handler == handler)
            return all[i].name;
    return "STRANGE";
}

/* Prints the handler that is set; raises the signal, unless it has its default action, and prints
 * what came of it. */
static void act_on(int sig)
{
    struct sigaction is;
    unsigned long raw[4]; /* as the kernel has it */
    signals[sig] = 0;
    if (sigaction(sig, NULL, &is) || syscall(SYS_rt_sigaction, sig, NULL, raw, 8))
        die("sigaction");
    say("%s, flags %x", name_of(is.sa_handler), is.sa_flags);
    say("also blocked %d", sigismember(&is.sa_mask, SIGUSR2));
    say("raw %s, flags %lx", name_of((void *)raw[0]), raw[1] & ~0x4000000ul);
    if ((void *)is.sa_handler != (void *)SIG_DFL) {
        raise(sig);
        say("signals %d", signals[sig]);
    }
    sigaction(sig, NULL, &is);
    say("then %s, flags %x", name_of(is.sa_handler), is.sa_flags);
}

#pragma GCC diagnostic push
/* old programs still call these functions */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void told_of_handlers(void)
{
    static const int flags[] = {
        0, SA_RESTART, SA_RESETHAND, SA_NODEFER, SA_ONSTACK, SA_SIGINFO,
        SA_SIGINFO | SA_ONSTACK | SA_RESTART,
    };
    struct sigaction is, was;
    unsigned long raw[4], raw_was[4];
    sigaltstack(&(stack_t){.ss_sp = buf, .ss_size = 1 << 16}, NULL);
    for (size_t i = 0; i < COUNT(flags); i++) {
        is = (struct sigaction){.sa_flags = flags[i]};
        if (flags[i] & SA_SIGINFO)
            is.sa_sigaction = informed_handler;
        else
            is.sa_handler = i % 2 ? one_handler : other_handler;
        if (i % 3 == 0)
            sigaddset(&is.sa_mask, SIGUSR2);
        T(sigaction(SIGUSR1, &is, &was));
        say("was %s, flags %x", name_of(was.sa_handler), was.sa_flags);
        act_on(SIGUSR1);
        T(sigaction(SIGUSR1, &was, &is)); /* the old handler, then the new one again */
        T(sigaction(SIGUSR1, &is, NULL));
        act_on(SIGUSR1);
    }
    signal(SIGUSR1, SIG_DFL);
    for (int i = 0; i < 2; i++) {
        say("signal %s", name_of(signal(SIGUSR1, one_handler)));
        act_on(SIGUSR1);
        say("ssignal %s", name_of(ssignal(SIGUSR1, other_handler)));
        act_on(SIGUSR1);
        T(siginterrupt(SIGUSR1, i == 0));
        act_on(SIGUSR1);
        say("signal %s", name_of(signal(SIGUSR1, one_handler)));
        act_on(SIGUSR1);
        say("sysv_signal %s", name_of(sysv_signal(SIGUSR1, other_handler)));
        act_on(SIGUSR1);
        say("sigset %s", name_of(sigset(SIGUSR1, one_handler)));
        act_on(SIGUSR1);
        say("sigset %s", name_of(sigset(SIGUSR1, SIG_HOLD)));
        say("sigset %s", name_of(sigset(SIGUSR1, other_handler)));
        act_on(SIGUSR1);
        T(sigignore(SIGUSR1));
        act_on(SIGUSR1);
    }
    T(sigaction(SIGKILL, &(struct sigaction){.sa_handler = one_handler}, NULL));
    T(sigaction(32, &(struct sigaction){.sa_handler = one_handler}, NULL));
    T(sigaction(65, &(struct sigaction){.sa_handler = one_handler}, NULL));
    say("signal %s", name_of(signal(0, one_handler)));
    T(sigaction(SIGSEGV, &(struct sigaction){.sa_handler = one_handler}, NULL));
    act_on(SIGSEGV);
    /* By system calls, past the C library. */
    is = (struct sigaction){.sa_handler = one_handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &is, NULL);
    T(syscall(SYS_rt_sigaction, SIGUSR1, NULL, raw, 8));
    raw[0] = (unsigned long)other_handler;
    T(syscall(SYS_rt_sigaction, SIGUSR1, raw, raw_was, 8));
    say("was %s", name_of((void *)raw_was[0]));
    act_on(SIGUSR1);
    T(syscall(SYS_rt_sigaction, SIGUSR1, raw_was, raw_was, 8));
    act_on(SIGUSR1);
    T(syscall(SYS_rt_sigaction, SIGUSR1, 1, NULL, 8));
    T(syscall(SYS_rt_sigaction, SIGUSR1, raw, NULL, 4));
    /* A vfork child shares its parent's memory, but its signal actions are its own. */
    signal(SIGUSR1, one_handler);
    pid_t pid = vfork();
    if (!pid) {
        signal(SIGUSR1, SIG_DFL);
        signal(SIGUSR2, SIG_IGN);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    act_on(SIGUSR1);
    act_on(SIGUSR2);
}
#pragma GCC diagnostic pop

const struct body handler_bodies[] = {
    ONE("told_of_handlers", told_of_handlers, .flags = NOUP),
    TWO("handler_writes", handler_writes_server, handler_writes_client),
    TWO("handler_reads", handler_reads_server, handler_reads_client),
    TWO("handler_writes_amid_write", amid_write_server, amid_write_client),
    TWO("signal_storm", storm_server, storm_client),
    TWO("handler_sends_amid_malloc", amid_malloc_server, amid_malloc_client, .flags = STEADY),
    TWO("handler_shuts_amid_read", amid_read_server, amid_read_client),
    TWO("handler_shuts_amid_write", amid_shut_server, amid_shut_client),
    {0},
};
