/* Rights: every thread of a process gives up what one of them gives up, a child that gives up its
 * own rights sees nothing of its parent's connections, and no process learns where the memory of
 * another user's process lies. */
#include "t.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/fsuid.h>

extern int capset(void *, const void *), capget(void *, void *);

/* --- every thread --- */

/* The lines of a thread's status that say what it may do. */
static void rights_of(const char *tid, char *text, size_t room)
{
    static const char *const names[] = {"Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:",
        "CapBnd:", "CapAmb:", "NoNewPrivs:"};
    char path[64], line[4096];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
    FILE *f = fopen(path, "re");
    *text = 0;
    while (f && fgets(line, sizeof line, f))
        for (size_t i = 0; i < COUNT(names); i++)
            if (!strncmp(line, names[i], strlen(names[i])))
                strncat(text, line, room - strlen(text) - 1);
    if (f)
        fclose(f);
}

/* Does every thread of this process have the rights of this thread, and no others? */
static int all_threads_are_as_this_one(void)
{
    char own[8192], other[8192], tid[16];
    snprintf(tid, sizeof tid, "%ld", syscall(SYS_gettid));
    rights_of(tid, own, sizeof own);
    DIR *d = opendir("/proc/self/task");
    int equal = *own != 0 && d;
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            rights_of(e->d_name, other, sizeof other);
            equal &= !*other || !strcmp(own, other); /* empty: that thread has ended */
        }
    if (d)
        closedir(d);
    return equal;
}

enum how {
    RAW_SETUID, RAW_SETGID, RAW_SETREUID, RAW_SETREGID, RAW_SETRESUID, RAW_SETRESGID, RAW_SETFSUID,
    RAW_SETFSGID, RAW_SETGROUPS, SETFSUID, SETFSGID, NO_NEW_PRIVS, RAW_NO_NEW_PRIVS, BOUNDS,
    RAW_BOUNDS, AMBIENT, RAW_AMBIENT, SECUREBITS, RAW_SECUREBITS, BY_LIBRARY, HOWS
};

enum { OTHER = 65534 };

static long ambient(int raw)
{
    return raw ? syscall(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        : prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}

/* Raises an ambient capability before there is a connection, so that there is one to give up. */
static void has_ambient(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct caps[2];
    if (capget(&header, caps))
        die("capget");
    caps[0].inheritable |= 1 << CAP_NET_RAW;
    if (capset(&header, caps) || prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_RAW, 0, 0))
        die("ambient");
}

static long give_up(enum how how)
{
    gid_t none = OTHER;
    switch (how) {
    case RAW_SETUID: return syscall(SYS_setuid, OTHER);
    case RAW_SETGID: return syscall(SYS_setgid, OTHER);
    case RAW_SETREUID: return syscall(SYS_setreuid, OTHER, OTHER);
    case RAW_SETREGID: return syscall(SYS_setregid, OTHER, OTHER);
    case RAW_SETRESUID: return syscall(SYS_setresuid, OTHER, OTHER, OTHER);
    case RAW_SETRESGID: return syscall(SYS_setresgid, OTHER, OTHER, OTHER);
    case RAW_SETFSUID: return syscall(SYS_setfsuid, OTHER);
    case RAW_SETFSGID: return syscall(SYS_setfsgid, OTHER);
    case RAW_SETGROUPS: return syscall(SYS_setgroups, 1, &none);
    case SETFSUID: return setfsuid(OTHER);
    case SETFSGID: return setfsgid(OTHER);
    case NO_NEW_PRIVS: return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    case RAW_NO_NEW_PRIVS: return syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    case BOUNDS: return prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0);
    case RAW_BOUNDS: return syscall(SYS_prctl, PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0);
    case AMBIENT: return ambient(0);
    case RAW_AMBIENT: return ambient(1);
    case SECUREBITS: return prctl(PR_SET_SECUREBITS, SECBIT_NOROOT, 0, 0, 0);
    case RAW_SECUREBITS: return syscall(SYS_prctl, PR_SET_SECUREBITS, SECBIT_NOROOT, 0, 0, 0);
    default:
        return setgroups(1, &none) || initgroups("root", OTHER) || setegid(OTHER) ||
               setregid(OTHER, OTHER) || setgid(OTHER) || setresgid(OTHER, OTHER, OTHER) ||
               setreuid(0, OTHER) || seteuid(0) || setresuid(OTHER, OTHER, OTHER) || setuid(OTHER);
    }
}

/* How many threads there are. The kernel shows no thread's secure bits, so that the body must
 * see that no other thread is left. */
static int threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

/* Each right is given up in a child of its own, on a connection with bytes under way. */
static void kept_server(int fd)
{
    (void)fd;
    for (int how = 0; how < HOWS; how++) {
        pid_t pid = child();
        if (!pid) {
            if (how == AMBIENT || how == RAW_AMBIENT)
                has_ambient();
            fd = join();
            T(put(fd, 1, 3000));
            meet();
            await_in(fd, 3000);
            T(give_up(how));
            YES(all_threads_are_as_this_one());
            if (how == SECUREBITS || how == RAW_SECUREBITS)
                YES(threads() == 1);
            T(get(fd, 4, 3000));
            T(put(fd, 2, 3000));
            echo_rounds(fd, 20, 3000);
            YES(all_threads_are_as_this_one());
            _exit(how);
        }
        reap(pid);
    }
}

static void kept_client(int fd)
{
    for (int how = 0; how < HOWS; how++) {
        fd = join();
        T(put(fd, 4, 3000));
        meet();
        T(get(fd, 1, 3000));
        T(get(fd, 2, 3000));
        echo_rounds(fd, 20, 3000);
        T(recv(fd, buf, 1, 0));
    }
}

/* --- memory --- */

/* Calls `look` with each page of this process's shared mappings that is in memory. A device's
 * queues are left out: only the kernel shares them, and it is told addresses. */
static void shared_memory(void (*look)(const char *at, size_t len))
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    enum { PIECE = 1 << 20, PAGE = 4096 };
    while (f && fgets(line, sizeof line, f)) {
        char *at, *end, kind[5];
        if (sscanf(line, "%p-%p %4s", (void **)&at, (void **)&end, kind) != 3 || kind[0] != 'r' ||
            kind[3] != 's')
            continue;
        if (strstr(line, " /dev/infiniband/"))
            continue;
        for (; at < end; at += PIECE) {
            unsigned char there[PIECE / PAGE];
            size_t len = end - at < PIECE ? end - at : PIECE;
            if (mincore(at, len, there))
                continue;
            for (size_t page = 0; page * PAGE < len; page++)
                if (there[page] & 1)
                    look(at + page * PAGE, PAGE);
        }
    }
    if (f)
        fclose(f);
}

/* --- a relative without rights --- */

static const char SECRET[] = "what the parent says when the child has dropped its rights";
static int found;

static void look_for_secret(const char *at, size_t len)
{
    found |= memmem(at, len, SECRET, sizeof SECRET - 1) != NULL;
}

/* Two connections with one peer. The child closes one, and keeps the other. */
static void relative_server(int first)
{
    int second = join(), up[2], down[2];
    T(put(first, 1, 3000));
    meet();
    await_in(first, 3000);
    if (pipe(up) || pipe(down))
        die("pipe");
    pid_t pid = child();
    if (!pid) {
        drop(second);
        T(give_up(geteuid() ? NO_NEW_PRIVS : BY_LIBRARY));
        drop(down[1]);
        write(up[1], "!", 1);
        read(down[0], buf, 1);
        memset(buf, 0, sizeof buf);
        shared_memory(look_for_secret);
        say("finds what its parent said: %s", found ? "YES" : "no");
        T(get(first, 4, 3000));
        T(put(first, 2, 3000));
        _exit(0);
    }
    drop(up[1]);
    read(up[0], buf, 1);
    /* From here on the parent alone uses the second connection. */
    for (int i = 0; i < 50; i++) {
        size_t n = send(second, SECRET, sizeof SECRET, MSG_NOSIGNAL);
        if (n != sizeof SECRET || recv(second, buf, sizeof SECRET, MSG_WAITALL) != sizeof SECRET)
            die("second");
    }
    write(down[1], "!", 1);
    reap(pid);
    meet();
    echo_rounds(second, 20, 3000);
    echo_rounds(first, 20, 3000);
    echo_rounds(join_cold(), 50, 3000);
}

static void relative_client(int first)
{
    int second = join();
    T(put(first, 4, 3000));
    meet();
    for (int i = 0; i < 50; i++) {
        if (recv(second, buf, sizeof SECRET, MSG_WAITALL) != sizeof SECRET)
            die("second");
        if (send(second, buf, sizeof SECRET, MSG_NOSIGNAL) != sizeof SECRET)
            die("second");
    }
    T(get(first, 1, 3000));
    T(get(first, 2, 3000));
    meet();
    echo_rounds(second, 20, 3000);
    echo_rounds(first, 20, 3000);
    echo_rounds(join_cold(), 50, 3000);
}

/* The child alone keeps the connection, with bytes under way in both directions, and then shares it
 * with a child of its own. */
static void heir_server(int fd)
{
    int up[2];
    T(put(fd, 1, 20000));
    meet();
    await_in(fd, 20000);
    if (pipe(up))
        die("pipe");
    pid_t pid = child();
    if (!pid) {
        drop(up[1]);
        read(up[0], buf, 1); /* the parent has closed it */
        T(give_up(geteuid() ? NO_NEW_PRIVS : BY_LIBRARY));
        T(put(fd, 2, 20000));
        pid_t grandchild = child();
        if (!grandchild) {
            T(get(fd, 4, 20000));
            echo_rounds(fd, 20, 3000);
            _exit(0);
        }
        reap(grandchild);
        echo_rounds(fd, 20, 3000);
        _exit(0);
    }
    drop(fd);
    drop(up[1]);
    reap(pid);
}

static void heir_client(int fd)
{
    T(put(fd, 4, 20000));
    meet();
    T(get(fd, 1, 20000));
    T(get(fd, 2, 20000));
    echo_rounds(fd, 20, 3000);
    echo_rounds(fd, 20, 3000);
    T(recv(fd, buf, 1, 0));
}

/* Workers that change their user before they have connections, as those of many servers do. */
static void worker_server(int fd)
{
    (void)fd;
    int port, l = listen_any(&port);
    pid_t pid = child();
    if (!pid) {
        T(geteuid() ? 0 : give_up(BY_LIBRARY));
        tell(port);
        fd = take(l);
        warm(fd, 1);
        echo_rounds(fd, 50, 3000);
        drop(fd);
        _exit(0);
    }
    reap(pid);
}

static void worker_client(int fd)
{
    fd = dial(hear());
    warm(fd, 0);
    echo_rounds(fd, 50, 3000);
    T(recv(fd, buf, 1, 0));
}

/* --- addresses --- */

struct range { uintptr_t from, to; };
static struct range ranges[4096];
static size_t range_count;
static long addresses;

static void look_for_addresses(const char *at, size_t len)
{
    for (size_t i = 0; i + sizeof(uint64_t) <= len; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, at + i, sizeof word);
        for (size_t r = 0; word && r < range_count; r++)
            addresses += word >= ranges[r].from && word < ranges[r].to;
    }
}

/* Processes of two users send each other zeroes only, some of them in pieces that go by the fastest
 * way there is. Is any word in the memory that both have an address of this process? */
static void places_server(int fd)
{
    if (!geteuid() &&
        (setgroups(0, NULL) || setresgid(OTHER, OTHER, OTHER) || setresuid(OTHER, OTHER, OTHER)))
        die("setresuid");
    fd = join();
    static char zeroes[100];
    for (int i = 0; i < 40; i++) {
        for (size_t done = 0; done < 300000;) {
            ssize_t n = recv(fd, buf, 300000 - done, 0);
            if (n <= 0)
                die("recv");
            done += n;
        }
        send(fd, zeroes, sizeof zeroes, MSG_NOSIGNAL);
    }
    meet();
    meet();
}

static void places_client(int fd)
{
    fd = join();
    static char zeroes[300000];
    for (int i = 0; i < 40; i++) {
        usleep(2000); /* a meeting of two users' processes needs a third process to run */
        for (size_t done = 0; done < sizeof zeroes;) {
            ssize_t n = send(fd, zeroes + done, sizeof zeroes - done, MSG_NOSIGNAL);
            if (n <= 0)
                die("send");
            done += n;
        }
        recv(fd, buf, 100, MSG_WAITALL);
    }
    meet();
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    while (f && fgets(line, sizeof line, f) && range_count < COUNT(ranges)) {
        struct range *r = &ranges[range_count];
        if (sscanf(line, "%lx-%lx", &r->from, &r->to) == 2)
            range_count++;
    }
    if (f)
        fclose(f);
    YES(range_count > 3);
    shared_memory(look_for_addresses);
    say("addresses in shared memory: %ld", addresses);
    meet();
}

/* A process that has changed its user cannot write its report. */
const struct body rights_bodies[] = {
    TWO("rights_kept_by_no_thread", kept_server, kept_client, .flags = RAW | MUTE_S, .limit = 40),
    TWO("child_without_rights", relative_server, relative_client),
    TWO("heir_without_rights", heir_server, heir_client),
    TWO("worker_of_another_user", worker_server, worker_client, .flags = RAW | MUTE_S),
    TWO("addresses_for_another_user", places_server, places_client, .flags = RAW | MUTE_S | UNTOLD),
    {0},
};
