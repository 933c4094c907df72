// Variadic functions: fcntl, ioctl, open, syscall with six arguments, dprintf, prctl.
#include "common.h"
#include <linux/futex.h>

static int vd(int fd, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int n = vdprintf(fd, format, ap);
    va_end(ap);
    return n;
}

int main(void)
{
    char path[] = "/tmp/sluice-variadic-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0)
        DIE("mkstemp");
    unlink(path);
    umask(022);

    SHOW(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK));
    SHOW(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
    SHOW(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK));
    SHOW(fcntl(fd, F_SETFD, FD_CLOEXEC));
    SHOW(fcntl(fd, F_GETFD));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 7};
    SHOW(fcntl(fd, F_SETLK, &lock));
    pid_t child = fork();
    if (child == 0) {
        struct flock held = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100};
        SHOW(fcntl(fd, F_GETLK, &held));
        printf("held by parent %d, start %ld, len %ld\n", held.l_pid == getppid(), (long)held.l_start,
               (long)held.l_len);
        SHOW(fcntl(fd, F_SETLK, &held));
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    SHOW(fcntl(fd, F_DUPFD, 500));
    SHOW(fcntl(fd, F_DUPFD_CLOEXEC, 600));
    SHOW(fcntl(600, F_GETFD));
    SHOW(fcntl(500, F_GETFD));
    SHOW(fcntl(700, F_GETFD));
    SHOW(fcntl(fd, 12345, 1));

    int p[2], n = -1, on = 1;
    SHOW(pipe(p));
    SHOW(write(p[1], "12345", 5));
    SHOW(ioctl(p[0], FIONREAD, &n));
    printf("FIONREAD %d\n", n);
    SHOW(ioctl(p[0], FIONBIO, &on));
    SHOW(fcntl(p[0], F_GETFL));
    struct winsize w;
    SHOW(ioctl(p[0], TIOCGWINSZ, &w));

    char name[64];
    snprintf(name, sizeof name, "/tmp/sluice-mode-%d", getpid());
    struct stat st;
    int m = MADE(open(name, O_CREAT | O_EXCL | O_WRONLY, 0640));
    fstat(m, &st);
    printf("mode %o\n", st.st_mode & 07777);
    close(m), unlink(name);
    m = MADE(openat(AT_FDCWD, name, O_CREAT | O_EXCL | O_WRONLY, 0604));
    fstat(m, &st);
    printf("mode %o\n", st.st_mode & 07777);
    close(m), unlink(name);
    m = MADE(creat(name, 0711));
    fstat(m, &st);
    printf("mode %o\n", st.st_mode & 07777);
    close(m);
    m = MADE(open(name, O_RDONLY));
    close(m), unlink(name);
    m = MADE(open("/tmp", O_TMPFILE | O_RDWR, 0600));
    close(m);
    MADE(open("/nonexistent", O_RDONLY));

    // Six arguments, the last of which counts: an offset, a pointer, a bit set.
    char *page = (char *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("mmap %d\n", page != MAP_FAILED && page[17] == 0);
    int file = open("/proc/self/exe", O_RDONLY);
    char at0[4096], at1[4096];
    SHOW(pread(file, at0, 4096, 0));
    SHOW(pread(file, at1, 4096, 4096));
    char *second = (char *)syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE, file, 4096);
    printf("second page %d\n", second != MAP_FAILED && memcmp(second, at1, 4096) == 0);
    int word = 1;
    struct timespec past = {0, 0};
    SHOW(syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, 1, &past, NULL, 0));
    SHOW(syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, 1, &past, NULL, -1));
    struct timespec zero = {0, 0};
    SHOW(syscall(SYS_pselect6, 0, NULL, NULL, NULL, &zero, NULL));
    SHOW(syscall(SYS_getpid) == getpid());
    SHOW(syscall(SYS_write, p[1], "ab", 2));
    SHOW(syscall(SYS_read, p[0], at0, 100));
    SHOW(syscall(SYS_read, -1, at0, 100));
    SHOW(syscall(-1L));
    SHOW(syscall(100000L, 1, 2, 3, 4, 5, 6));
    int d = MADE((int)syscall(SYS_dup, p[0]));
    SHOW(syscall(SYS_dup3, p[0], d, O_CLOEXEC));
    SHOW(syscall(SYS_fcntl, d, F_GETFD));
    SHOW(syscall(SYS_close, d));
    SHOW(syscall(SYS_close, d));
    SHOW(syscall(SYS_close_range, 690, 699, 0));
    child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        syscall(SYS_exit_group, 7);
    int status;
    waitpid(child, &status, 0);
    printf("clone child left %d\n", WEXITSTATUS(status));

    SHOW(dprintf(1, "%d %s %c %ld %x %o %lld %u\n", 1, "two", '3', 4L, 5, 6, 7LL, 8));
    SHOW(dprintf(1, "%.3f %d %g %d %e %d %.1f %f %f %f %f\n", 1.5, 2, 3.25, 4, 5e10, 6, 7.75, 8., 9.,
                 10., 11.));
    SHOW(dprintf(1, "%.3Lf %d %*d %.*s\n", 1.5L, 2, 6, 3, 2, "four"));
    SHOW(dprintf(1, "plain\n"));
    SHOW(dprintf(700, "nowhere %d\n", 1));
    SHOW(vd(1, "%d %f %s %d %d %d %d %d\n", 1, 2.5, "three", 4, 5, 6, 7, 8));

    SHOW(prctl(PR_SET_NAME, "renamed", 0, 0, 0));
    char comm[16] = "";
    SHOW(prctl(PR_GET_NAME, comm));
    puts(comm);
    SHOW(prctl(PR_GET_DUMPABLE));
    SHOW(prctl(PR_SET_DUMPABLE, 1));
    SHOW(prctl(PR_SET_SECCOMP, 77, 0, 0, 0));
    SHOW(prctl(9999, 1, 2, 3, 4));
    return 0;
}
