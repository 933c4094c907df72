// The names that -D_FORTIFY_SOURCE=2 calls: right lengths pass, wrong ones end the program.
#include "common.h"

static volatile size_t small = 4, large = 64;
static volatile nfds_t one = 1, many = 9;

// Runs the call in a child and prints how the child ended.
#define CHILD(call)                                                                                \
    do {                                                                                           \
        fflush(stdout);                                                                            \
        pid_t pid_ = fork();                                                                       \
        if (pid_ == 0) {                                                                           \
            close(2);                                                                              \
            errno = 0;                                                                             \
            long ret_ = (call);                                                                    \
            _exit(ret_ < 0 ? 100 + errno : (int)ret_);                                             \
        }                                                                                          \
        int status_;                                                                               \
        waitpid(pid_, &status_, 0);                                                                \
        if (WIFSIGNALED(status_))                                                                  \
            printf("%s: signal %d\n", #call, WTERMSIG(status_));                                   \
        else                                                                                       \
            printf("%s: %d\n", #call, WEXITSTATUS(status_));                                       \
    } while (0)

int main(void)
{
    int s[2], c, t;
    char buf[16];
    struct pollfd p[4];
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    struct timespec zero = {0, 0};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, s) || write(s[1], "abcdefgh", 8) != 8)
        DIE("socketpair");
    tcp_pair(&c, &t, NULL);
    if (write(t, "abcdefgh", 8) != 8)
        DIE("write");
    usleep(50000);
    for (int i = 0; i < 4; i++)
        p[i] = (struct pollfd){.fd = i % 2 ? c : s[0], .events = POLLIN};

    CHILD(read(s[0], buf, small));
    CHILD(read(s[0], buf, large));
    CHILD(recv(s[0], buf, small, MSG_DONTWAIT));
    CHILD(recv(s[0], buf, large, MSG_DONTWAIT));
    CHILD(recvfrom(c, buf, small, MSG_PEEK, (struct sockaddr *)&a, &n));
    CHILD(recvfrom(c, buf, large, MSG_PEEK, (struct sockaddr *)&a, &n));
    CHILD(read(c, buf, large));
    CHILD(recv(c, buf, large, 0));
    CHILD(recv(c, buf, small, 0));
    CHILD(read(c, buf, small));
    CHILD(poll(p, one, 0));
    CHILD(poll(p, one + 3, 0));
    CHILD(poll(p, many, 0));
    CHILD(ppoll(p, one, &zero, NULL));
    CHILD(ppoll(p, many, &zero, NULL));
    CHILD(read(-1, buf, small));
    CHILD(dprintf(1, "fortified %d %s %.2f %d %d %d %d\n", 1, "two", 3.25, 4, 5, 6, (int)small));
    volatile int flags = O_RDONLY;
    CHILD(open("/dev/null", flags) < 0);
    flags = O_CREAT;
    CHILD(open("/dev/null", flags) < 0);
    CHILD(openat(AT_FDCWD, "/dev/null", flags) < 0);
    return 0;
}
