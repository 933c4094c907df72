/* The agent's processes, threads and signals, and the lines by which it is told what to do. See agent.h.
 *
 *   agent PROCESS [HANDLE NUMBER]...      started by scripts/fuzz.py, or by itself (exec) with the descriptors it keeps */
#include "agent.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

int process;
__thread struct worker me;
static int numbers[HANDLES];
static pthread_t threads[THREADS];
static volatile pid_t tids[THREADS];
static volatile sig_atomic_t signals[65];
static __thread volatile sig_atomic_t broken_pipes;

long number_of(const char *word) { return strtol(word, NULL, 0); }

int fd_of(long handle) { return handle < 0 || handle >= HANDLES ? -1 : numbers[handle]; }

void keep(long handle, int fd)
{
    if (fd >= 0 && handle >= 0 && handle < HANDLES)
        numbers[handle] = fd;
}

/* --- answers --- */

void answer(const char *fmt, ...)
{
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = snprintf(line, 16, "%d ", process * THREADS + me.index);
    n += vsnprintf(line + n, sizeof line - n - 16, fmt, ap);
    va_end(ap);
    if (n > (int)sizeof line - 17)
        n = sizeof line - 17;
    if (broken_pipes)
        n += sprintf(line + n, " SIGPIPE");
    broken_pipes = 0;
    line[n++] = '\n';
    if (write(ANSWERS, line, n) != n)
        _exit(99);
}

const char *result(long n)
{
    static __thread char text[64];
    if (n == -1)
        snprintf(text, sizeof text, "= -1 %s", errno ? strerrorname_np(errno) : "(no errno)");
    else
        snprintf(text, sizeof text, "= %ld", n);
    return text;
}

static const struct {
    unsigned bit;
    const char *name;
} masks[] = {{POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLERR, "ERR"}, {POLLHUP, "HUP"}, {POLLNVAL, "NVAL"},
             {POLLRDNORM, "RDNORM"}, {POLLWRNORM, "WRNORM"}, {POLLRDHUP, "RDHUP"}, {EPOLLET, "ET"}, {EPOLLONESHOT, "ONESHOT"},
             {EPOLLEXCLUSIVE, "EXCLUSIVE"}};
enum { MASKS = sizeof masks / sizeof *masks };

const char *mask_name(unsigned mask)
{
    static __thread char text[160];
    text[0] = 0;
    for (int i = 0; i < MASKS; i++)
        if (mask & masks[i].bit)
            strcat(strcat(text, text[0] ? "|" : ""), masks[i].name);
    return text[0] ? text : "none";
}

unsigned mask_of(const char *text)
{
    unsigned mask = 0;
    for (const char *p = text; *p; p += strcspn(p, "|"), p += *p == '|')
        for (int i = 0; i < MASKS; i++)
            if (strcspn(p, "|") == strlen(masks[i].name) && !strncmp(p, masks[i].name, strlen(masks[i].name)))
                mask |= masks[i].bit;
    return mask;
}

/* --- bytes --- */

static inline unsigned char byte(unsigned seed, uint64_t at)
{
    return (at * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull) >> 53;
}

void fill(void *p, unsigned seed, uint64_t off, size_t n)
{
    unsigned char *c = p;
    for (size_t i = 0; i < n; i++)
        c[i] = byte(seed, off + i);
}

ssize_t wrong_at(const void *p, unsigned seed, uint64_t off, size_t n)
{
    const unsigned char *c = p;
    for (size_t i = 0; i < n; i++)
        if (c[i] != byte(seed, off + i))
            return i;
    return -1;
}

/* --- threads --- */

/* At a number of our own, so that the next file gets the one that it would have got. */
static int put_away(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, OWN);
    if (fd < 0 || high < 0)
        _exit(98);
    close(fd);
    return high;
}

static struct worker workers[THREADS];

static void equip(int index)
{
    int p[2];
    tids[index] = gettid();
    me = workers[index];
    if (me.room) /* of one that was cancelled */
        return;
    me.index = index;
    me.room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (me.room == MAP_FAILED || pipe(p))
        _exit(98);
    me.pipe[0] = put_away(p[0]);
    me.pipe[1] = put_away(p[1]);
    me.set = put_away(epoll_create1(0));
    me.file = put_away(memfd_create("agent", 0));
    workers[index] = me;
}

/* In a child: files would be shared with the parent. */
static void unequip(int index)
{
    struct worker *w = &workers[index];
    if (w->room) {
        close(w->pipe[0]);
        close(w->pipe[1]);
        close(w->set);
        close(w->file);
        munmap(w->room, ROOM);
    }
    memset(w, 0, sizeof *w);
}

static void obey(char *line);

static void *serve(void *arg)
{
    char line[4096];
    int commands = COMMANDS + process * THREADS + (int)(intptr_t)arg;
    if (arg) {
        equip((intptr_t)arg);
        answer("started");
    }
    for (;;) {
        ssize_t n = read(commands, line, sizeof line - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            _exit(97); /* the driver is gone */
        line[n - (line[n - 1] == '\n')] = 0;
        obey(line);
    }
    return NULL;
}

static void do_thread(const struct command *c)
{
    long i = number(c, 1);
    int e = pthread_create(&threads[i], NULL, serve, (void *)i);
    if (e)
        answer("thread %s", strerrorname_np(e));
    /* else the thread itself answers, and by and by we do */
    else
        answer("ok");
}

/* A thread that sleeps in a call. The next of its number starts anew. */
static void do_cancel(const struct command *c)
{
    void *r;
    long i = number(c, 1);
    pthread_cancel(threads[i]);
    pthread_join(threads[i], &r);
    answer(r == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
}

/* --- signals --- */

static void on_signal(int sig)
{
    signals[sig]++;
    if (sig == SIGPIPE)
        broken_pipes++;
}

static void count_signal(int sig, int flags)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = flags};
    sigaction(sig, &sa, NULL);
}

static void do_sigaction(const struct command *c)
{
    count_signal(number(c, 1), number(c, 2) ? SA_RESTART : 0);
    answer("ok");
}

/* To a thread of this process, and until its handler has run. */
static void do_kill(const struct command *c)
{
    int sig = number(c, 2), before = signals[sig];
    syscall(SYS_tgkill, getpid(), tids[number(c, 1)], sig);
    for (int i = 0; signals[sig] == before && i < PATIENCE_MS; i++)
        usleep(1000);
    answer(signals[sig] == before ? "the handler did not run" : "ok");
}

/* --- processes --- */

static void do_fork(const struct command *c)
{
    pid_t pid = fork();
    if (pid == 0) {
        process = number(c, 1);
        for (int i = 0; i < THREADS; i++)
            unequip(i);
        equip(0);
        answer("born %d", getpid());
        serve((void *)0);
    }
    answer("%s", pid < 0 ? result(-1) : "ok");
}

static void do_exec(const struct command *c)
{
    static char text[2 * HANDLES + 1][12];
    char *argv[2 * HANDLES + 3] = {"agent", text[0]};
    int n = 2;
    snprintf(text[0], sizeof text[0], "%d", process);
    for (int h = 0; h < HANDLES; h++) {
        if (numbers[h] < 0)
            continue;
        char *t = text[n - 1];
        snprintf(t, sizeof text[0], "%d", h);
        argv[n++] = t;
        t = text[n - 1];
        snprintf(t, sizeof text[0], "%d", numbers[h]);
        argv[n++] = t;
    }
    (void)c;
    execv("/proc/self/exe", argv);
    answer("exec %s", result(-1));
}

static void do_exit(const struct command *c)
{
    answer("ok");
    if (number(c, 1))
        _exit(0);
    exit(0);
}

/* --- commands --- */

static const struct {
    const char *name;
    call *call;
} calls[] = {
    {"send", do_send}, {"recv", do_recv}, {"put", do_put}, {"get", do_get}, {"exchange", do_exchange}, {"urgent", do_urgent},
    {"poll", do_poll}, {"epoll_create", do_epoll_create}, {"epoll_ctl", do_epoll_ctl}, {"epoll_wait", do_epoll_wait},
    {"settle", do_settle}, {"over", do_over}, {"socket", do_socket}, {"listen", do_listen}, {"connect", do_connect}, {"accept", do_accept},
    {"close", do_close}, {"dup", do_dup}, {"shutdown", do_shutdown}, {"setopt", do_setopt}, {"getopt", do_getopt},
    {"ioctl", do_ioctl}, {"fcntl", do_fcntl}, {"names", do_names}, {"pass", do_pass}, {"take", do_take},
    {"thread", do_thread}, {"cancel", do_cancel}, {"kill", do_kill}, {"sigaction", do_sigaction}, {"fork", do_fork},
    {"exec", do_exec}, {"exit", do_exit},
};

/* A line that begins with & is one whose call may sleep: an answer says that it begins. */
static void obey(char *line)
{
    struct command c = {0};
    char *save, *word = strtok_r(line, " ", &save);
    for (; word && c.count < 64; word = strtok_r(NULL, " ", &save))
        c.word[c.count++] = word;
    if (c.count && c.word[0][0] == '&') {
        c.word[0]++;
        answer("begins %d", gettid());
    }
    errno = 0;
    for (size_t i = 0; c.count && i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(c.word[0], calls[i].name))
            return calls[i].call(&c);
    answer("no such command");
}

int main(int argc, char **argv)
{
    for (int h = 0; h < HANDLES; h++)
        numbers[h] = -1;
    if (argc < 2)
        return fprintf(stderr, "usage: agent PROCESS, started by scripts/fuzz.py\n"), 2;
    process = atoi(argv[1]);
    for (int i = 2; i + 1 < argc; i += 2)
        keep(atoi(argv[i]), atoi(argv[i + 1]));
    if (argc == 2)
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* of the driver */
    count_signal(SIGPIPE, SA_RESTART);
    equip(0);
    if (argc > 2)
        answer("executed");
    serve((void *)0);
}
