/* Functions that came to glibc after 2.28, for the build that scripts/portable.sh makes. They are
 * hidden: no other file of a process sees them. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)

/* Not by syscall(3), which the library has a hook for. */
static long call(long number, long a, long b, long c, long d)
{
    register long fourth __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    if (result < 0 && result >= -4095) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

/* Before 2.33 a program had these from libc_nonshared.a. */
int stat64(const char *path, struct stat64 *buf)
{
    return (int)call(SYS_stat, (long)path, (long)buf, 0, 0);
}

int lstat64(const char *path, struct stat64 *buf)
{
    return (int)call(SYS_lstat, (long)path, (long)buf, 0, 0);
}

int fstat64(int fd, struct stat64 *buf)
{
    return (int)call(SYS_fstat, fd, (long)buf, 0, 0);
}

/* Since 2.30. Rust's library takes it where it is there. */
pid_t gettid(void)
{
    return (pid_t)call(SYS_gettid, 0, 0, 0, 0);
}
