// Calls before any library's constructor ran, from .preinit_array, and from the program's own
// constructors and destructors.
#include "common.h"

static char early[4096];

static void note(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    size_t used = strlen(early);
    vsnprintf(early + used, sizeof early - used, format, ap);
    va_end(ap);
}

static void calls(const char *when)
{
    int p[2], s, c, t;
    char b[8] = "";
    note("%s: pipe %d", when, pipe(p));
    note(" write %zd", write(p[1], "abc", 3));
    struct pollfd f = {.fd = p[0], .events = POLLIN};
    note(" poll %d", poll(&f, 1, 0));
    note(" read %zd %s", read(p[0], b, 8), b);
    note(" close %d %d", close(p[0]), close(p[1]));
    s = socket(AF_INET, SOCK_STREAM, 0);
    note(" socket %d", s >= 0);
    note(" fcntl %d", fcntl(s, F_SETFL, O_NONBLOCK));
    note(" close %d", close(s));
    tcp_pair(&c, &t, NULL);
    note(" send %zd", send(c, "xyz", 3, 0));
    note(" recv %zd", recv(t, b, 8, 0));
    int e = epoll_create1(0);
    struct epoll_event ev = {.events = EPOLLOUT, .data.u32 = 5};
    note(" ctl %d", epoll_ctl(e, EPOLL_CTL_ADD, c, &ev));
    note(" wait %d %u", epoll_wait(e, &ev, 1, 0), ev.data.u32);
    close(e), close(c), close(t);
    note(" syscall %ld", syscall(SYS_getppid) == getppid());
    pid_t child = fork();
    if (child == 0)
        _exit(6);
    int status = 0;
    waitpid(child, &status, 0);
    note(" fork %d", WEXITSTATUS(status));
    child = vfork();
    if (child == 0)
        _exit(5);
    waitpid(child, &status, 0);
    note(" vfork %d\n", WEXITSTATUS(status));
}

static void first(void)
{
    calls("preinit");
}
__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = first;

__attribute__((constructor)) static void second(void)
{
    calls("constructor");
}

__attribute__((destructor)) static void last(void)
{
    early[0] = 0;
    calls("destructor");
    if (write(1, early, strlen(early)) < 0)
        _exit(1);
}

int main(void)
{
    calls("main");
    fputs(early, stdout);
    return 0;
}
