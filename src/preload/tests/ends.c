// The ways a process ends: exit status, handlers and what was written before.
#include "common.h"

static void at_exit(void)
{
    if (write(1, "handler\n", 8) < 0)
        _exit(1);
}

__attribute__((destructor)) static void destructor(void)
{
    if (write(1, "destructor\n", 11) < 0)
        _exit(1);
}

static void *leave(void *arg)
{
    (void)arg;
    usleep(1000);
    exit(9);
}

int main(void)
{
    atexit(at_exit);
    at_quick_exit(at_exit);
    int c, s;
    tcp_pair(&c, &s, NULL);
    for (int way = 0; way < 8; way++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            printf("buffered %d\n", way);
            pthread_t t;
            switch (way) {
            case 0: exit(3);
            case 1: _exit(4);
            case 2: _Exit(5);
            case 3: quick_exit(6);
            case 4: syscall(SYS_exit_group, 7), abort();
            case 5: abort();
            case 6: return 8;
            case 7: pthread_create(&t, NULL, leave, NULL), pthread_exit(NULL);
            }
        }
        int status;
        waitpid(pid, &status, 0);
        printf("way %d: exit %d, signal %d\n", way, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
               WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    }
    return 0;
}
