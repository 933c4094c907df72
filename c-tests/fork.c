/* A child and its parent share a connection whose stream was in an unusual state at the fork. */
#include "t.h"

/* Are exactly `want` bytes unread? */
static int counts(int fd, int want)
{
    int n = -1;
    return ioctl(fd, FIONREAD, &n) == 0 && n == want;
}

/* The parent reads on; the child then counts what is left. */
static void counts_server(int fd)
{
    T(put(fd, 1, 100));
    meet();
    meet();
}

static void counts_client(int fd)
{
    meet();
    await_in(fd, 100);
    pid_t pid = child_that_waits();
    if (!pid)
        _exit(!counts(fd, 40) ? 1 : ready(fd) & POLLIN ? 0 : 2);
    T(get(fd, 1, 60));
    let(pid);
    T(get_at(fd, 1, 60, 40));
    meet();
}

/* A reader that is killed with unread input resets the connection. A child of the writer, which had
 * found no input before, gets the reset. */
static void killed_reader(int fd)
{
    await_in(fd, 1);
    meet();
    raise(SIGKILL);
}

static void of_killed_reader(int fd)
{
    T(put(fd, 1, 1));
    pid_t pid = child_that_looks();
    if (!pid) {
        int none = recv(fd, buf, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN;
        has_looked();
        _exit(!none ? 1 : recv(fd, buf, 1, 0) == -1 && errno == ECONNRESET ? 0 : 2);
    }
    await_look();
    meet();
    await_reset(fd);
    let(pid);
    T(recv(fd, buf, 1, 0));
}

/* A time limit that a child sets after it has read what the parent left unread holds. */
static void limited_child_client(int fd)
{
    meet();
    T(get(fd, 1, 1));
    pid_t pid = child();
    if (!pid) {
        size_t rest = get_at(fd, 1, 1, 20000 - 1);
        timeout(fd, SO_RCVTIMEO, 40);
        _exit(rest == 20000 - 1 &&
            recv(fd, buf, 1, MSG_WAITALL | MSG_TRUNC) == -1 && errno == EAGAIN ? 0 : 1);
    }
    reap(pid);
    meet();
}

static void limited_child_server(int fd)
{
    T(put(fd, 1, 20000));
    meet();
    meet();
}

/* Bytes that were unread at a shutdown of both halves stay readable, also for the child, after the
 * peer's next bytes have made TCP reset the connection. */
static void writes_behind_server(int fd)
{
    T(put(fd, 1, 1108));
    meet();
    hear();
    T(put(fd, 2, 233));
    meet();
    meet();
}

static void writes_behind_client(int fd)
{
    int n = 0;
    meet();
    await_in(fd, 1108);
    T(shutdown(fd, SHUT_RDWR));
    pid_t pid = child_that_waits();
    if (!pid)
        _exit(get(fd, 1, 1000) == 1000 ? 0 : 1);
    tell(0);
    meet();
    T(ioctl(fd, FIONREAD, &n));
    say("%d unread", n);
    let(pid);
    T(get_at(fd, 1, 1000, 108));
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, 0));
    meet();
}

/* Both ends belong to this process, which sleeps while the child reads. */
static void pair_of_parent(void)
{
    int end[2];
    pair(end);
    pid_t pid = child_that_waits();
    if (!pid)
        _exit(get(end[1], 1, 5000) == 5000 ? 0 : 1);
    T(put(end[0], 1, 5000));
    let(pid);
    T(put(end[1], 2, 5000));
    T(get(end[0], 2, 5000));
}

/* The parent has closed its connections before the child uses them, and has made others
 * meanwhile. */
enum { HANDED_ON = 4 };

static void handed_on(int forks, int server)
{
    int old[HANDED_ON], more[HANDED_ON];
    for (int i = 0; i < HANDED_ON; i++)
        old[i] = join();
    meet();
    pid_t pid = forks == server ? child_that_waits() : -1;
    if (!pid) {
        for (int i = 0; i < HANDED_ON; i++)
            if (put(old[i], 10 + i, 3000) != 3000 || get(old[i], 20 + i, 3000) != 3000)
                _exit(1 + i);
        _exit(0);
    }
    for (int i = 0; pid > 0 && i < HANDED_ON; i++)
        drop(old[i]);
    meet();
    for (int i = 0; i < HANDED_ON; i++) {
        more[i] = join();
        echo_rounds(more[i], 30, 700 + i);
    }
    meet();
    if (pid > 0) {
        let(pid);
    } else {
        for (int i = 0; i < HANDED_ON; i++) {
            T(get(old[i], 10 + i, 3000));
            T(put(old[i], 20 + i, 3000));
        }
        for (int i = 0; i < HANDED_ON; i++)
            T(recv(old[i], buf, 10, 0));
    }
    meet();
    for (int i = 0; i < HANDED_ON; i++)
        echo_rounds(more[i], 30, 700 + i);
}

static void handed_on_server(int fd) { handed_on(1, 1), echo_rounds(fd, 3, 1000); }
static void handed_on_client(int fd) { handed_on(1, 0), echo_rounds(fd, 3, 1000); }
static void handed_back_server(int fd) { handed_on(0, 1), echo_rounds(fd, 3, 1000); }
static void handed_back_client(int fd) { handed_on(0, 0), echo_rounds(fd, 3, 1000); }

/* Both ends have agreed on a link, but bytes that TCP holds are not read yet. The parent writes,
 * then the child. */
static void agreed_server(int fd)
{
    int conn = join_cold();
    T(get(conn, 1, 100));
    meet();
    pid_t pid = child_that_waits();
    if (!pid)
        _exit(put_at(conn, 2, 80000, 500) == 500 ? 0 : 1);
    T(put(conn, 2, 80000));
    let(pid);
    T(get(conn, 3, 150000));
    meet();
    echo_rounds(fd, 3, 1000);
}

static void agreed_client(int fd)
{
    int conn = join_cold();
    T(put(conn, 1, 100));
    T(put(conn, 3, 150000));
    meet();
    T(get(conn, 2, 80500));
    meet();
    echo_rounds(fd, 3, 1000);
}

/* One recv of the child finds its first byte on TCP, and the rest perhaps in the ring of its
 * parent. The parent has shut its writing half down. */
static int mixed_writer(void)
{
    int conn = join_cold();
    T(put(conn, 1, 1));
    for (int i = 0; i < 20; i++, meet())
        T(get_at(conn, 2, 1000 * i, 1000));
    T(put_at(conn, 1, 1, 2999));
    meet();
    return conn;
}

static int mixed_reader(void)
{
    int conn = join_cold();
    for (int i = 0; i < 20; i++, meet())
        T(put_at(conn, 2, 1000 * i, 1000));
    return conn;
}

static void mixed_server(int fd)
{
    mixed_writer();
    echo_rounds(fd, 3, 1000);
}

static void mixed_client(int fd)
{
    int conn = mixed_reader();
    pid_t pid = child_that_waits();
    if (!pid)
        _exit(recv(conn, buf, 5000, 0) == 3000 ? 0 : 1);
    T(shutdown(conn, SHUT_WR));
    await_in(conn, 3000);
    let(pid);
    meet();
    echo_rounds(fd, 3, 1000);
}

/* Both halves are shut down after the fork; the peer then writes, which resets the connection. The
 * child still reads what came before. */
static void reads_behind_server(int fd)
{
    T(put(fd, 1, 3000));
    meet();
    meet();
    T(send(fd, buf, 1, 0));
    meet();
    meet();
}

static void reads_behind_client(int fd)
{
    meet();
    await_in(fd, 3000);
    pid_t pid = child_that_waits();
    if (!pid)
        _exit(get(fd, 1, 3000) != 3000 ? 1
            : recv(fd, buf, 1, 0) == -1 && errno == ECONNRESET ? 0 : 2);
    T(shutdown(fd, SHUT_RDWR));
    meet();
    meet();
    await(fd, POLLERR);
    let(pid);
    meet();
}

/* The child counts the bytes that came before the reset, and counts again after the parent has read
 * one of them. */
static void counts_behind_client(int fd)
{
    meet();
    await_in(fd, 3000);
    pid_t pid = child_that_waits();
    if (!pid) {
        int saw = counts(fd, 3000);
        has_looked();
        _exit(!saw ? 1 : counts(fd, 2999) ? 0 : 2);
    }
    T(shutdown(fd, SHUT_RDWR));
    meet();
    meet();
    let_on();
    await_look();
    T(get(fd, 1, 1));
    let(pid);
    meet();
}

/* The peer closes with unread input, which resets the connection, after the fork or before it. The
 * parent still reads what the peer had written, after the child has closed the connection. */
enum { LEFT = 3000 };

static int reads_part(int fd, size_t from, size_t n)
{
    if (!counts(fd, LEFT - from))
        return 1;
    if (get_at(fd, 1, from, n) != n)
        return 2;
    if (from + n < LEFT)
        return 0;
    return recv(fd, buf, 1, 0) == -1 && errno == ECONNRESET ? 0 : 3;
}

static void resets_server(int fd)
{
    int conn = join();
    T(put(conn, 1, LEFT));
    await_in(conn, 100);
    meet();
    meet();
    drop(conn);
    meet();
    meet();
    echo_rounds(fd, 3, 1000);
}

static int unread_conn(void)
{
    int conn = join();
    T(put(conn, 2, 100));
    await_in(conn, LEFT);
    meet();
    return conn;
}

static void is_reset(int conn)
{
    meet();
    meet();
    await_reset(conn);
}

static void parent_reads(int fd, int first)
{
    int conn = unread_conn();
    if (!first)
        is_reset(conn);
    pid_t pid = child_that_waits();
    if (!pid)
        _exit(close(conn) ? 2 : 0);
    if (first)
        is_reset(conn);
    let(pid);
    say("the parent: %d", reads_part(conn, 0, LEFT));
    T(close(conn));
    meet();
    echo_rounds(fd, 3, 1000);
}

static void parent_reads_client(int fd) { parent_reads(fd, 1); }
static void parent_of_reset_reads_client(int fd) { parent_reads(fd, 0); }

/* The child has read bytes that the parent does not know to be read. A signal still ends the
 * parent's wait for more. */
static void interrupts_server(int fd)
{
    T(put(fd, 1, 80));
    T(put_at(fd, 1, 80, 81));
    hear();
    await_asleep(peer_pid);
    T(kill(peer_pid, SIGUSR1));
    meet();
}

static void interrupted_parent_client(int fd)
{
    count_signal(SIGUSR1, 0);
    pid_t pid = child();
    if (!pid)
        _exit(get(fd, 1, 161) != 161);
    reap(pid);
    tell(0);
    T(recv(fd, buf, 1, 0));
    say("signals %d", signals[SIGUSR1]);
    meet();
}

/* The parent is killed before its child uses the connection, on which both ends have left bytes
 * unread. The child reads them, and the peer, before what the child writes. */
enum { KILLED_WROTE = 20000 };

static void killed_parent_server(int fd)
{
    T(put(fd, 1, KILLED_WROTE));
    await_in(fd, KILLED_WROTE);
    meet();
    pid_t parent = getpid();
    if (child())
        raise(SIGKILL);
    while (getppid() == parent)
        usleep(1000);
    if (get(fd, 2, KILLED_WROTE) == KILLED_WROTE)
        put_at(fd, 1, KILLED_WROTE, 500);
    _exit(0);
}

static void of_killed_parent_client(int fd)
{
    T(put(fd, 2, KILLED_WROTE));
    await_in(fd, KILLED_WROTE);
    meet();
    T(get(fd, 1, KILLED_WROTE + 500));
    T(recv(fd, buf, 1, 0));
}

/* A grandchild uses the connection of a process that sleeps. The child is gone. */
static void grandchild_server(int fd)
{
    T(put(fd, 1, 3000));
    await_in(fd, 3000);
    int ends[2];
    if (pipe(ends))
        die("pipe");
    pid_t pid = child();
    if (!pid) {
        if (child())
            _exit(0);
        int good = get(fd, 2, 3000) == 3000 && put_at(fd, 1, 3000, 500) == 500;
        if (write(ends[1], good ? "y" : "n", 1) != 1)
            _exit(1);
        _exit(0);
    }
    reap(pid);
    T(read(ends[0], buf, 1));
    say("%c", buf[0]);
    meet();
    T(get_at(fd, 2, 3000, 500));
    close(ends[0]);
    close(ends[1]);
    meet();
}

static void grandchild_client(int fd)
{
    T(put(fd, 2, 3000));
    T(get(fd, 1, 3500));
    meet();
    T(put_at(fd, 2, 3000, 500));
    meet();
}

const struct body fork_bodies[] = {
    TWO("fork_interrupted_parent", interrupts_server, interrupted_parent_client),
    TWO("fork_counts", counts_server, counts_client, .flags = ONEHOST),
    TWO("fork_of_killed_reader", killed_reader, of_killed_reader, .flags = MUTE_S | DIES),
    TWO("fork_limits_recv", limited_child_server, limited_child_client),
    TWO("fork_behind_shutdown", writes_behind_server, writes_behind_client, .flags = ONEHOST),
    TWO("fork_reads_behind_shutdown", reads_behind_server, reads_behind_client, .flags = ONEHOST),
    TWO("fork_reads_mixed", mixed_server, mixed_client),
    TWO("fork_of_killed_parent", killed_parent_server, of_killed_parent_client,
        .flags = MUTE_S | DIES | ONEHOST),
    TWO("fork_used_by_grandchild", grandchild_server, grandchild_client),
    TWO("fork_counts_behind_shutdown", reads_behind_server, counts_behind_client, .flags = ONEHOST),
    ONE("fork_of_both_ends", pair_of_parent),
    TWO("fork_handed_on", handed_on_server, handed_on_client),
    TWO("fork_handed_on_by_client", handed_back_server, handed_back_client),
    TWO("fork_before_the_switch", agreed_server, agreed_client),
    TWO("fork_left_to_parent_that_is_reset", resets_server, parent_reads_client),
    TWO("fork_left_to_parent_of_reset", resets_server, parent_of_reset_reads_client),
    {0},
};
