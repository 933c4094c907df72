/* Numbers of descriptors. A duplicate of the connection is closed by a bare system call, which the
 * library does not see, and its number goes to something else: the number stands for that from then
 * on, whichever call makes it. */
#include "t.h"
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>

extern int __open(const char *, int, ...), __open64(const char *, int, ...),
    __open_2(const char *, int), __open64_2(const char *, int),
    __openat_2(int, const char *, int), __openat64_2(int, const char *, int);

struct maker {
    const char *text;
    int (*make)(void);
};
#define MAKER(call) {#call, make_##call}
#define MAKE(name, call) static int make_##name(void) { return call; }

static char path[] = "/tmp/ctest-XXXXXX";

/* Calls that open an existing file. */
MAKE(open, open(path, O_RDWR))
MAKE(__open, __open(path, O_RDWR))
MAKE(open64, open64(path, O_RDWR))
MAKE(__open64, __open64(path, O_RDWR))
MAKE(__open_2, __open_2(path, O_RDWR))
MAKE(__open64_2, __open64_2(path, O_RDWR))
MAKE(openat, openat(AT_FDCWD, path, O_RDWR | O_CREAT, 0600))
MAKE(openat64, openat64(AT_FDCWD, path, O_RDWR))
MAKE(__openat_2, __openat_2(AT_FDCWD, path, O_RDWR))
MAKE(__openat64_2, __openat64_2(AT_FDCWD, path, O_RDWR))
MAKE(creat, creat(path, 0600))
MAKE(creat64, creat64(path, 0600))

/* Makes a new file, which is gone when its descriptor is closed. */
static int temporary(int (*make)(char *, int, int), int suffix, int flags)
{
    char name[32] = "/tmp/ctest-XXXXXX";
    strcat(name, suffix ? ".c" : "");
    int fd = make(name, suffix, flags);
    if (fd >= 0)
        unlink(name);
    return fd;
}

#define TEMPORARY(name, suffix, call) \
    static int by_##name(char *at, int length, int flags) \
    { \
        (void)length, (void)flags; \
        return call; \
    } \
    MAKE(name, temporary(by_##name, suffix, 0))
TEMPORARY(mkstemp, 0, mkstemp(at))
TEMPORARY(mkstemp64, 0, mkstemp64(at))
TEMPORARY(mkostemp, 0, mkostemp(at, O_APPEND))
TEMPORARY(mkostemp64, 0, mkostemp64(at, O_APPEND))
TEMPORARY(mkstemps, 2, mkstemps(at, 2))
TEMPORARY(mkstemps64, 2, mkstemps64(at, 2))
TEMPORARY(mkostemps, 2, mkostemps(at, 2, O_APPEND))
TEMPORARY(mkostemps64, 2, mkostemps64(at, 2, O_APPEND))

static int make_shm_open(void)
{
    char name[32];
    snprintf(name, sizeof name, "/ctest-%d", getpid());
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    shm_unlink(name);
    return fd;
}

MAKE(memfd_create, memfd_create("m", 0))
MAKE(SYS_openat, syscall(SYS_openat, AT_FDCWD, path, O_RDWR))
MAKE(SYS_openat2, syscall(SYS_openat2, AT_FDCWD, path, ((uint64_t[3]){O_RDWR, 0, 0}), 24))
MAKE(SYS_memfd_create, syscall(SYS_memfd_create, "m", 0))
#ifdef SYS_open
MAKE(SYS_open, syscall(SYS_open, path, O_RDWR))
MAKE(SYS_creat, syscall(SYS_creat, path, 0600))
#endif

/* Descriptors of other kinds. */
static int first_of(int r, const int *pair)
{
    if (r)
        return -1;
    close(pair[1]);
    return pair[0];
}

static int pair_of[2];
static const sigset_t *no_signal(void)
{
    static sigset_t none;
    sigemptyset(&none);
    return &none;
}

static int own_pidfd = -1, sink[2];

MAKE(pipe, first_of(pipe(pair_of), pair_of))
MAKE(pipe2, first_of(pipe2(pair_of, O_NONBLOCK), pair_of))
MAKE(socketpair, first_of(socketpair(AF_UNIX, SOCK_STREAM, 0, pair_of), pair_of))
MAKE(eventfd, eventfd(0, 0))
MAKE(timerfd_create, timerfd_create(CLOCK_MONOTONIC, 0))
MAKE(signalfd, signalfd(-1, no_signal(), 0))
MAKE(inotify_init, inotify_init())
MAKE(inotify_init1, inotify_init1(IN_NONBLOCK))
MAKE(fanotify_init, fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID, O_RDONLY))
MAKE(pidfd_open, pidfd_open(getpid(), 0))
MAKE(pidfd_getfd, pidfd_getfd(own_pidfd, sink[1], 0))
MAKE(epoll_create1, epoll_create1(0))
MAKE(SYS_pipe2, first_of(syscall(SYS_pipe2, pair_of, 0), pair_of))
MAKE(SYS_socketpair, first_of(syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair_of), pair_of))
MAKE(SYS_eventfd2, syscall(SYS_eventfd2, 0, 0))
MAKE(SYS_timerfd_create, syscall(SYS_timerfd_create, CLOCK_MONOTONIC, 0))
MAKE(SYS_signalfd4, syscall(SYS_signalfd4, -1, no_signal(), 8, 0))
MAKE(SYS_inotify_init1, syscall(SYS_inotify_init1, 0))
MAKE(SYS_fanotify_init, syscall(SYS_fanotify_init, FAN_CLASS_NOTIF | FAN_REPORT_FID, O_RDONLY))
MAKE(SYS_pidfd_open, syscall(SYS_pidfd_open, getpid(), 0))
MAKE(SYS_pidfd_getfd, syscall(SYS_pidfd_getfd, own_pidfd, sink[1], 0))
MAKE(SYS_userfaultfd, syscall(SYS_userfaultfd, 0))
MAKE(SYS_epoll_create1, syscall(SYS_epoll_create1, 0))
MAKE(SYS_landlock_create_ruleset, syscall(SYS_landlock_create_ruleset, &(uint64_t){1}, 8, 0))
MAKE(SYS_bpf,
    syscall(SYS_bpf, BPF_MAP_CREATE,
        (&(union bpf_attr){.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4,
            .max_entries = 1}), sizeof(union bpf_attr)))
MAKE(SYS_perf_event_open,
    syscall(SYS_perf_event_open,
        (&(struct perf_event_attr){.type = PERF_TYPE_SOFTWARE,
            .size = sizeof(struct perf_event_attr), .config = PERF_COUNT_SW_DUMMY}),
        0, -1, -1, 0))
#ifdef SYS_pipe
MAKE(SYS_pipe, first_of(syscall(SYS_pipe, pair_of), pair_of))
MAKE(SYS_eventfd, syscall(SYS_eventfd, 0))
MAKE(SYS_signalfd, syscall(SYS_signalfd, -1, no_signal(), 8))
MAKE(SYS_inotify_init, syscall(SYS_inotify_init))
MAKE(SYS_epoll_create, syscall(SYS_epoll_create, 1))
#endif

static const struct maker files[] = {
    MAKER(open), MAKER(__open), MAKER(open64), MAKER(__open64), MAKER(__open_2), MAKER(__open64_2),
    MAKER(openat), MAKER(openat64), MAKER(__openat_2), MAKER(__openat64_2), MAKER(creat),
    MAKER(creat64), MAKER(mkstemp), MAKER(mkstemp64), MAKER(mkostemp), MAKER(mkostemp64),
    MAKER(mkstemps), MAKER(mkstemps64), MAKER(mkostemps), MAKER(mkostemps64), MAKER(shm_open),
    MAKER(memfd_create),
};
static const struct maker raw_files[] = {
    MAKER(SYS_openat), MAKER(SYS_openat2), MAKER(SYS_memfd_create),
#ifdef SYS_open
    MAKER(SYS_open), MAKER(SYS_creat),
#endif
};
static const struct maker others[] = {
    MAKER(pipe), MAKER(pipe2), MAKER(socketpair), MAKER(eventfd), MAKER(timerfd_create),
    MAKER(signalfd), MAKER(inotify_init), MAKER(inotify_init1), MAKER(fanotify_init),
    MAKER(pidfd_open), MAKER(pidfd_getfd), MAKER(epoll_create1),
};
static const struct maker raw_others[] = {
    MAKER(SYS_pipe2), MAKER(SYS_socketpair), MAKER(SYS_eventfd2), MAKER(SYS_timerfd_create),
    MAKER(SYS_signalfd4), MAKER(SYS_inotify_init1), MAKER(SYS_fanotify_init), MAKER(SYS_pidfd_open),
    MAKER(SYS_pidfd_getfd), MAKER(SYS_userfaultfd), MAKER(SYS_epoll_create1),
    MAKER(SYS_landlock_create_ruleset), MAKER(SYS_bpf), MAKER(SYS_perf_event_open),
#ifdef SYS_pipe
    MAKER(SYS_pipe), MAKER(SYS_eventfd), MAKER(SYS_signalfd), MAKER(SYS_inotify_init),
    MAKER(SYS_epoll_create),
#endif
};

/* Makes a descriptor at the number of a duplicate that was closed. Another thread may hold that
 * number, or a lower one, for a moment. */
static int in_place_of(int fd, const struct maker *m)
{
    int n = -1, there = 0;
    for (int tries = 0; tries < 100 && !there; tries++) {
        int number = dup(fd);
        if (unseen_close(number))
            die("unseen_close");
        for (int i = 0; i < 100; i++) {
            n = m->make();
            there = n == number;
            if (n < 0 || there)
                break;
            close(n);
            if (n < number)
                break;
            usleep(100 * i); /* that thread may have no processor */
        }
        if (n < 0)
            break;
        /* a lower number is free: the library and the kernel both learn that this one is closed */
        if (!there && close(dup2(0, number)))
            die("dup2");
    }
    say("%s: %s", m->text, there ? "there" : n < 0 ? strerrorname_np(errno) : "elsewhere");
    return there ? n : -1;
}

/* All that is written goes to the file, and is read from there. */
static void use_files(int fd, const struct maker *m, size_t count)
{
    struct stat st;
    int first = mkstemp(path);
    for (size_t i = 0; i < count; i++) {
        if (ftruncate(first, 0))
            die("ftruncate");
        int n = in_place_of(fd, &m[i]);
        if (n >= 0) {
            T(put(n, i, 5000));
            T(fstat(n, &st));
            say("size %ld", (long)st.st_size);
            T(lseek(n, 0, SEEK_SET));
            T(get(n, i, 6000));
            T(close(n));
        }
        tell(1);
        echo_rounds(fd, 3, 2000);
    }
    unlink(path);
    tell(0);
}

/* Each kind of descriptor refuses, or serves in its own way, the calls that a connection would
 * serve. */
static void use_others(int fd, const struct maker *m, size_t count)
{
    own_pidfd = syscall(SYS_pidfd_open, getpid(), 0);
    T(pipe(sink));
    for (size_t i = 0; i < count; i++) {
        int n = in_place_of(fd, &m[i]);
        if (n >= 0) {
            set_nonblock(n, 1);
            memset(buf, 1, 100);
            signal(SIGPIPE, SIG_IGN);
            T(write(n, buf, 100));
            T(read(n, buf, 100));
            T(recv(n, buf, 100, MSG_DONTWAIT));
            T(close(n));
        }
        tell(1);
        echo_rounds(fd, 3, 2000);
    }
    tell(0);
}

static void files_server(int fd) { use_files(fd, files, COUNT(files)); }
static void raw_files_server(int fd) { use_files(fd, raw_files, COUNT(raw_files)); }
static void others_server(int fd) { use_others(fd, others, COUNT(others)); }
static void raw_others_server(int fd) { use_others(fd, raw_others, COUNT(raw_others)); }

static void echo_client(int fd)
{
    while (hear() == 1)
        echo_rounds(fd, 3, 2000);
}

const struct body number_bodies[] = {
    TWO("number_of_a_file", files_server, echo_client),
    TWO("number_of_a_raw_file", raw_files_server, echo_client),
    TWO("number_of_another_kind", others_server, echo_client),
    TWO("number_of_another_raw_kind", raw_others_server, echo_client),
    {0},
};
