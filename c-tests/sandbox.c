/* Processes give up rights while they have connections: by function, by syscall(), and down to read
 * and write alone. */
#include "t.h"
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

extern int capset(void *, const void *), capget(void *, void *);

/* A seccomp filter that kills the process at calls that its connections do not need. */
static struct sock_fprog filter(void)
{
#define FATAL(call) \
    {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call}, \
    {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS}
    static struct sock_filter code[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
        FATAL(SYS_memfd_create), FATAL(SYS_process_vm_readv), FATAL(SYS_process_vm_writev),
        FATAL(SYS_epoll_create1), FATAL(SYS_eventfd2), FATAL(SYS_timerfd_create), FATAL(SYS_clone),
        FATAL(SYS_clone3), FATAL(SYS_userfaultfd), FATAL(SYS_socketpair), FATAL(SYS_bind),
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    };
    return (struct sock_fprog){COUNT(code), code};
}

enum how {
    UNSHARE_FS, UNSHARE_FILES, SETNS, CAPSET, FILTER, BY_FUNCTION, SECCOMP = BY_FUNCTION, LANDLOCK,
    HOWS
};

static long give_up(enum how how, int raw)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct caps[2];
    uint64_t files = 1; /* LANDLOCK_ACCESS_FS_EXECUTE */
    struct sock_fprog f = filter();
    long r, fd;
    switch (how) {
    case UNSHARE_FS: return raw ? syscall(SYS_unshare, CLONE_FS) : unshare(CLONE_FS);
    case UNSHARE_FILES: return raw ? syscall(SYS_unshare, CLONE_FILES) : unshare(CLONE_FILES);
    case SETNS:
        fd = open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC);
        r = raw ? syscall(SYS_setns, fd, CLONE_NEWUTS) : setns(fd, CLONE_NEWUTS);
        close(fd);
        return r;
    case CAPSET:
        if (capget(&header, caps))
            die("capget");
        caps[0] = caps[1] = (struct __user_cap_data_struct){0};
        return raw ? syscall(SYS_capset, &header, caps) : capset(&header, caps);
    case FILTER:
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        return raw ? syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f, 0, 0)
            : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &f, 0, 0);
    case SECCOMP:
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &f);
    default:
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        fd = syscall(SYS_landlock_create_ruleset, &files, sizeof files, 0);
        r = syscall(SYS_landlock_restrict_self, fd, 0);
        close(fd);
        return r;
    }
}

/* Rights are given up before the first connection, by the only thread: nothing has to go back to
 * TCP for that. */
static void changed_early(int fd)
{
    for (enum how how = UNSHARE_FS; how < FILTER; how++)
        for (int raw = 0; raw < 2; raw++)
            T(give_up(how, raw));
    fd = join();
    echo_rounds(fd, 50, 3000);
}

/* Each right is given up in a child of its own: bytes are under way in both directions, another
 * connection ends, a third one begins. */
static void give_up_server(int raw)
{
    for (int how = 0; how < (raw ? HOWS : BY_FUNCTION); how++) {
        pid_t pid = child();
        if (!pid) {
            int fd = join(), second = join(), port, l = listen_any(&port);
            T(put(fd, 1, 3000));
            T(put(second, 2, 3000));
            meet();
            await_in(fd, 3000);
            T(give_up(how, raw));
            T(put(fd, 3, 3000));
            T(get(fd, 4, 3000));
            echo_rounds(fd, 20, 3000);
            T(close(second));
            tell(port);
            echo_rounds(take(l), 50, 3000);
            _exit(how);
        }
        reap(pid);
    }
}

static void give_up_client(int raw)
{
    for (int how = 0; how < (raw ? HOWS : BY_FUNCTION); how++) {
        int fd = join(), second = join();
        T(put(fd, 4, 3000));
        meet();
        T(get(fd, 1, 3000));
        T(get(fd, 3, 3000));
        echo_rounds(fd, 20, 3000);
        T(drain(second, 2));
        echo_rounds(join_cold(), 50, 3000);
        T(recv(fd, buf, 1, 0));
    }
}

static void by_function_server(int fd) { (void)fd, give_up_server(0); }
static void by_function_client(int fd) { (void)fd, give_up_client(0); }
static void by_syscall_server(int fd) { (void)fd, give_up_server(1); }
static void by_syscall_client(int fd) { (void)fd, give_up_client(1); }

/* Under strict seccomp a process may read, write and end, and is killed for any other call. */
static void strict_server(int fd)
{
    pid_t pid = child();
    if (!pid) {
        fd = join();
        T(put(fd, 1, 3000));
        meet();
        await_in(fd, 3000);
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
        T(put(fd, 2, 3000));
        T(get(fd, 3, 3000));
        echo_rounds(fd, 50, 3000);
        syscall(SYS_exit, 7);
    }
    reap(pid);
}

static void strict_client(int fd)
{
    fd = join();
    T(put(fd, 3, 3000));
    meet();
    T(get(fd, 1, 3000));
    T(get(fd, 2, 3000));
    echo_rounds(fd, 50, 3000);
    T(recv(fd, buf, 1, 0));
}

const struct body sandbox_bodies[] = {
    TWO("changed_early", changed_early, changed_early, .flags = RAW),
    TWO("sandbox_by_function", by_function_server, by_function_client, .flags = RAW),
    TWO("sandbox_by_syscall", by_syscall_server, by_syscall_client, .flags = RAW),
    TWO("sandbox_strict", strict_server, strict_client, .flags = RAW | MUTE_S),
    {0},
};
