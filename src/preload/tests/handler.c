// Hooks in a signal handler that interrupts the program anywhere, also in malloc and in hooks.
#include "common.h"

static int inner[2];
static volatile sig_atomic_t handled, failed;

static void on_alarm(int sig)
{
    (void)sig;
    int saved = errno;
    char b[4];
    int p[2];
    struct pollfd f = {.fd = inner[0], .events = POLLIN};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(inner[0], &set);
    struct timeval zero = {0, 0};
    if (write(inner[1], "abc", 3) != 3 || poll(&f, 1, 0) != 1
        || select(inner[0] + 1, &set, NULL, NULL, &zero) != 1 || read(inner[0], b, 4) != 3)
        failed = 1;
    if (pipe(p) || fcntl(p[0], F_SETFL, O_NONBLOCK) || read(p[0], b, 1) != -1 || errno != EAGAIN
        || dup2(p[0], 700) != 700 || close(700) || close(p[0]) || close(p[1]))
        failed = 2;
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    if (s < 0 || close(s))
        failed = 3;
    handled++;
    errno = saved;
}

int main(void)
{
    if (pipe(inner))
        DIE("pipe");
    struct sigaction act = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &act, NULL);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, NULL);
    int p[2], c, t;
    if (pipe(p))
        DIE("pipe");
    tcp_pair(&c, &t, NULL);
    for (int i = 0; handled < 400; i++) {
        char b[64];
        if (write(p[1], "hello", 5) != 5 || read(p[0], b, 64) != 5)
            DIE("pipe");
        if (send(c, "hello", 5, 0) != 5 || recv(t, b, 5, MSG_WAITALL) != 5)
            DIE("tcp");
        int e = epoll_create1(0), f = open("/dev/null", O_RDONLY), d = dup(f);
        if (e < 0 || f < 0 || d < 0 || close(e) || close(f) || close(d))
            DIE("descriptors");
        free(malloc((size_t)(i % 5000)));
        if (i % 64 == 0) {
            pid_t child = i % 128 ? fork() : vfork();
            if (child == 0)
                _exit(0);
            waitpid(child, NULL, 0);
        }
    }
    printf("failed %d\n", failed);
    return failed;
}
