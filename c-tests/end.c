/* How connections end: shutdown, close, reset, linger, exit; and what the other end sees. */
#include "t.h"

void post_mortem(int fd)
{
    int err;
    socklen_t len = sizeof err;
    count_signal(SIGPIPE, 0);
    for (int i = 0; i < 2; i++) {
        T(recv(fd, buf, 10, MSG_DONTWAIT));
        T(send(fd, buf, 10, MSG_NOSIGNAL));
        T(write(fd, buf, 10));
        say("SIGPIPE %d", signals[SIGPIPE]);
        T(getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len));
        say("SO_ERROR %d, ready %s", err, mask_name(ready(fd)));
    }
}

static void sigpipe_server(int fd)
{
    T(close(fd));
    meet();
}

static void sigpipe_client(int fd)
{
    count_signal(SIGPIPE, 0);
    meet();
    await(fd, POLLRDHUP);
    T(write(fd, buf, 100)); /* the first write succeeds, and the peer's kernel answers with a RST */
    await(fd, POLLHUP);
    T(write(fd, buf, 100));
    T(send(fd, buf, 100, 0));
    say("SIGPIPE %d", signals[SIGPIPE]);
    T(send(fd, buf, 100, MSG_NOSIGNAL));
    T(sendmsg(fd, (&(struct msghdr){.msg_iov = &(struct iovec){buf, 1}, .msg_iovlen = 1}),
              MSG_NOSIGNAL));
    say("SIGPIPE %d", signals[SIGPIPE]);
    T(writev(fd, (&(struct iovec){buf, 1}), 1));
    say("SIGPIPE %d", signals[SIGPIPE]);
    post_mortem(fd);
}

/* The default action of SIGPIPE ends the process. */
static void sigpipe_kills_client(int fd)
{
    meet();
    await(fd, POLLRDHUP);
    T(write(fd, buf, 100));
    await(fd, POLLHUP);
    T(write(fd, buf, 100));
}

static void unread_server(int fd)
{
    T(put(fd, 1, 500));
    meet();
    await_in(fd, 10);
    T(close(fd)); /* with unread bytes: a RST */
    meet();
}

static void unread_read_client(int fd)
{
    T(put(fd, 2, 10));
    meet();
    meet();
    await_reset(fd);
    D(recv(fd, buf, 1000, 0));
    T(recv(fd, buf, 1000, 0));
    T(recv(fd, buf, 1000, 0));
    post_mortem(fd);
}

static void unread_write_client(int fd)
{
    count_signal(SIGPIPE, 0);
    T(put(fd, 2, 10));
    meet();
    meet();
    await_reset(fd);
    T(write(fd, buf, 10));
    T(write(fd, buf, 10));
    D(recv(fd, buf, 1000, 0));
    post_mortem(fd);
}

static void reset_server(int fd)
{
    T(put(fd, 1, 100));
    meet();
    linger(fd, 1, 0);
    T(close(fd));
    meet();
}

static void reset_client(int fd)
{
    meet();
    meet();
    await_reset(fd);
    T(recv(fd, buf, 1000, MSG_PEEK));
    post_mortem(fd);
}

/* A RST wakes a thread that sleeps in recv. */
static void reset_wakes_server(int fd)
{
    hear();
    await_asleep(peer_pid);
    linger(fd, 1, 0);
    T(close(fd));
}

static void reset_wakes_client(int fd)
{
    tell(0);
    T(recv(fd, buf, 10, 0));
    post_mortem(fd);
}

static void half_close_server(int fd)
{
    T(drain(fd, 1));
    T(put(fd, 2, 300000));
    T(shutdown(fd, SHUT_WR));
    T(recv(fd, buf, 10, 0));
}

static void half_close_client(int fd)
{
    T(put(fd, 1, 300000));
    T(shutdown(fd, SHUT_WR));
    T(drain(fd, 2));
    T(recv(fd, buf, 10, 0));
    post_mortem(fd);
}

/* One direction is shut down before the connection has cost enough to leave TCP. The other
 * direction leaves TCP, and runs to its end or is cut off in the middle. */
enum { HALF_ROUNDS = 400, HALF_PIECE = 3000 };

static int one_half(int fd, int reads, int ends_it)
{
    int other = join_cold();
    warm(other, is_server);
    fd = join_cold();
    if (!reads) {
        await(fd, POLLRDHUP);
        int sent = 0;
        for (int i = 0; i < HALF_ROUNDS; i++)
            sent += put(fd, i, HALF_PIECE) == HALF_PIECE;
        if (ends_it < 0)
            YES(sent == HALF_ROUNDS);
    } else {
        int good = 0;
        T(shutdown(fd, SHUT_WR));
        for (int i = 0; i < (ends_it < 0 ? HALF_ROUNDS : HALF_ROUNDS / 2); i++)
            good += get(fd, i, HALF_PIECE) == HALF_PIECE;
        say("%d", good);
    }
    return fd;
}

static void one_half_server(int fd)
{
    fd = one_half(fd, 0, -1);
    T(recv(fd, buf, 1, 0));
    close(fd);
    meet();
}

static void one_half_client(int fd)
{
    fd = one_half(fd, 1, -1);
    T(recv(fd, buf, 1, 0));
    meet();
}

/* The reader closes while bytes are unread or still to come: a write of the other end fails. */
static void one_half_refused_server(int fd)
{
    signal(SIGPIPE, SIG_IGN);
    fd = one_half(fd, 0, 1);
    int failed = 0;
    for (int i = 0; i < 1000 && !failed; i++, usleep(1000))
        failed = write(fd, buf, 1000) < 0;
    say("refused %d", failed);
}

static void one_half_refused_client(int fd)
{
    close(one_half(fd, 1, 1));
}

static void one_half_killed_client(int fd)
{
    one_half(fd, 1, 1);
    fflush(0);
    kill(getpid(), SIGKILL);
}

/* Both ends write and shut down before either reads. */
static void half_close_both(int fd)
{
    /* No more than a fresh receive window, so that the FIN does not wait for the reader. */
    T(put(fd, is_server, 50000));
    T(shutdown(fd, SHUT_WR));
    meet();
    await(fd, POLLRDHUP);
    T(drain(fd, !is_server));
    meet();
    post_mortem(fd);
}

static void half_close_ping_server(int fd)
{
    T(shutdown(fd, SHUT_WR));
    size_t n = 0;
    for (int i = 0; i < 100; i++, tell(0))
        n += get(fd, i, 3000);
    say("%zu", n);
    meet();
    T(recv(fd, buf, 1, 0));
}

static void half_close_ping_client(int fd)
{
    for (int i = 0; i < 100; i++, hear())
        put(fd, i, 3000);
    meet();
    T(recv(fd, buf, 1, 0));
    T(shutdown(fd, SHUT_WR));
}

static void shut_rd_server(int fd)
{
    hear();
    T(put(fd, 1, 100));
    tell(0);
    T(get(fd, 2, 100));
    meet();
    T(put(fd, 3, 100));
    meet();
    meet();
    T(put(fd, 4, 50000));
    meet();
    meet();
}

static void shut_rd_client(int fd)
{
    T(shutdown(fd, SHUT_RD));
    say("ready %s", mask_name(ready(fd)));
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, MSG_WAITALL));
    tell(0);
    hear();
    await_in(fd, 100);
    D(recv(fd, buf, 1000, 0)); /* bytes that arrive after a SHUT_RD can still be read */
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, MSG_DONTWAIT));
    T(put(fd, 2, 100));
    meet();
    meet();
    await_in(fd, 100);
    D(recv(fd, buf, 30, 0));
    D(recv(fd, buf, 300, MSG_WAITALL));
    meet();
    meet();
    await_in(fd, 50000);
    T(get(fd, 4, 50000));
    T(shutdown(fd, SHUT_RD));
    meet();
}

/* The client writes after its SHUT_RD, and reads again before the server has read those bytes. */
static void shut_rd_unread_server(int fd)
{
    hear();
    await_in(fd, 100);
    T(get(fd, 1, 100));
    T(put(fd, 2, 100));
    T(drain(fd, 3));
}

static void shut_rd_unread_client(int fd)
{
    int others = 0;
    T(shutdown(fd, SHUT_RD));
    for (int i = 0; i < 3000; i++)
        others += recv(fd, buf, 10, MSG_DONTWAIT) != 0;
    say("%d others", others);
    T(put(fd, 1, 100));
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, MSG_DONTWAIT));
    T(recv(fd, buf, 10, MSG_PEEK));
    tell(0);
    await_in(fd, 100);
    T(get(fd, 2, 100));
    T(put(fd, 3, 1000));
    T(recv(fd, buf, 10, 0));
    T(shutdown(fd, SHUT_WR));
}

/* Bytes unread at a SHUT_RD are all read, one at a time, while the other end shuts down its
 * writing. */
static void shut_rd_ended_server(int fd)
{
    T(put(fd, 1, 1000));
    hear();
    T(shutdown(fd, SHUT_WR));
    meet();
}

static void shut_rd_ended_client(int fd)
{
    int n = 0;
    ssize_t got;
    await_in(fd, 1000);
    T(shutdown(fd, SHUT_RD));
    tell(0);
    while ((got = recv(fd, buf + n, 1, MSG_DONTWAIT)) == 1)
        n++;
    say("%d, then %zd, sum %x", n, got, sum(buf, n));
    T(recv(fd, buf, 10, 0));
    meet();
}

static void shut_rd_pending_server(int fd)
{
    T(put(fd, 1, 1000));
    meet();
    meet();
}

static void shut_rd_pending_client(int fd)
{
    meet();
    await_in(fd, 1000);
    T(shutdown(fd, SHUT_RD));
    D(recv(fd, buf, 300, 0));
    D(recv(fd, buf, 3000, MSG_WAITALL));
    T(recv(fd, buf, 300, 0));
    meet();
}

static void shut_wr_server(int fd)
{
    count_signal(SIGPIPE, 0);
    T(shutdown(fd, SHUT_WR));
    T(write(fd, buf, 10));
    T(send(fd, buf, 10, MSG_NOSIGNAL));
    T(send(fd, buf, 0, MSG_NOSIGNAL));
    say("SIGPIPE %d ready %s", signals[SIGPIPE], mask_name(ready(fd)));
    meet();
    T(get(fd, 1, 10000));
    T(shutdown(fd, SHUT_RD));
    T(recv(fd, buf, 10, 0));
    T(shutdown(fd, SHUT_RDWR));
    await(fd, POLLHUP);
    meet();
}

static void shut_wr_client(int fd)
{
    meet();
    await(fd, POLLRDHUP);
    T(recv(fd, buf, 10, 0));
    T(put(fd, 1, 10000));
    meet();
}

static void shut_rdwr_server(int fd)
{
    T(shutdown(fd, 7)); /* 7 names no half: nothing is shut down */
    say("ready %s", mask_name(ready(fd)));
    T(put(fd, 1, 1000));
    T(shutdown(fd, SHUT_RDWR));
    T(shutdown(fd, SHUT_RDWR));
    post_mortem(fd);
    T(shutdown(fd, 7));
    meet();
}

static void shut_rdwr_client(int fd)
{
    T(drain(fd, 1));
    meet();
}

/* Bytes written to an end that has shut down both halves are answered by a RST, whether the
 * connection had left TCP or not. */
static void shut_rdwr_written_server(int fd)
{
    T(put(fd, 1, 1000));
    T(get(fd, 2, 1000));
    T(shutdown(fd, SHUT_RDWR));
    meet();
    meet();
    T(send(fd, buf, 10, MSG_NOSIGNAL));
    T(recv(fd, buf, 10, 0));
}

static void shut_rdwr_written_client(int fd)
{
    T(get(fd, 1, 1000));
    T(put(fd, 2, 1000));
    meet();
    await(fd, POLLRDHUP);
    T(send(fd, buf, 1000, MSG_NOSIGNAL));
    await(fd, POLLHUP);
    T(send(fd, buf, 1000, MSG_NOSIGNAL));
    say("ready %s", mask_name(ready(fd)));
    T(recv(fd, buf, 10, 0));
    meet();
}

/* Bytes that arrived before the shutdown can still be read. */
static void shut_rdwr_unread_server(int fd)
{
    T(put(fd, 1, 1000));
    meet();
    await_in(fd, 1000);
    T(shutdown(fd, SHUT_RDWR));
    T(get(fd, 2, 1000));
    T(recv(fd, buf, 10, 0));
    meet();
}

static void shut_rdwr_unread_client(int fd)
{
    T(get(fd, 1, 1000));
    T(put(fd, 2, 1000));
    meet();
    await(fd, POLLRDHUP);
    T(recv(fd, buf, 10, 0));
    meet();
}

/* The end that shuts down both halves has never sent a byte, so that nothing it sent has left TCP.
 * The bytes it has unread do not make the other end take it for dead. */
static void *reads_the_end(void *conn)
{
    busy = gettid();
    return (void *)(long)recv(*(int *)conn, buf + 4096, 1, 0);
}

static void shut_one_way_server(int fd)
{
    int conn = join_cold();
    T(put(conn, 1, 100));
    meet();
    pthread_t t = start_busy(reads_the_end, &conn);
    await_asleep(busy);
    T(put_at(conn, 1, 100, 100));
    meet();
    say("recv %ld", (long)finish(t));
    meet();
    meet();
    echo_rounds(fd, 3, 1000);
}

static void shut_one_way_client(int fd)
{
    int conn = join_cold();
    T(get(conn, 1, 1));
    meet();
    meet();
    await_in(conn, 199);
    T(shutdown(conn, SHUT_RDWR));
    meet();
    say("ready %s", mask_name(ready(conn)));
    T(get_at(conn, 1, 1, 199));
    say("ready %s", mask_name(ready(conn)));
    meet();
    echo_rounds(fd, 3, 1000);
}

/* Bytes that arrive after both shutdowns are answered by a RST and lost. Bytes that arrived before
 * can still be read. */
static void refusing(int fd, int one, int other)
{
    T(put(fd, 1, 1000));
    meet();
    await_in(fd, 1000);
    T(shutdown(fd, one));
    if (other >= 0)
        T(shutdown(fd, other));
    meet();
    meet();
    await_reset(fd);
    await_in(fd, 1000);
    T(get(fd, 2, 1000));
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, 0));
}

static void refused_server(int fd) { refusing(fd, SHUT_RDWR, -1); }
static void refused_rd_wr_server(int fd) { refusing(fd, SHUT_RD, SHUT_WR); }
static void refused_wr_rd_server(int fd) { refusing(fd, SHUT_WR, SHUT_RD); }

static void refused_client(int fd)
{
    T(get(fd, 1, 1000));
    T(put(fd, 2, 1000));
    meet();
    meet();
    await(fd, POLLRDHUP);
    T(send(fd, buf, 70, MSG_NOSIGNAL));
    await(fd, POLLHUP);
    T(send(fd, buf, 70, MSG_NOSIGNAL));
    meet();
}

/* One thread sleeps in recv, and another thread of the same process shuts the socket down. */
static void *sleeper(void *arg)
{
    int fd = *(int *)arg;
    tell(gettid());
    return (void *)recv(fd, buf, 10, 0);
}

static void shutdown_wakes_server(int fd)
{
    pthread_t t = start(sleeper, &fd);
    hear();
    T(shutdown(fd, SHUT_RD));
    T(finish(t));
    T(put(fd, 1, 100));
    meet();
}

static void shutdown_wakes_client(int fd)
{
    await_asleep(hear());
    tell(0);
    T(get(fd, 1, 100));
    meet();
}

static void close_after_write_server(int fd)
{
    T(put(fd, 1, 200000));
    T(close(fd));
}

static void small_close_server(int fd)
{
    T(put(fd, 1, 17));
    T(close(fd));
}

static void drain_client(int fd)
{
    T(drain(fd, 1));
    T(recv(fd, buf, 10, 0));
}

static void late_drain_client(int fd)
{
    await(fd, POLLRDHUP);
    T(drain(fd, 1));
    T(recv(fd, buf, 10, 0));
}

static void exit_after_write_server(int fd)
{
    T(put(fd, 1, 150000));
    exit(5);
}

static void _exit_after_write_server(int fd)
{
    T(put(fd, 1, 150000));
    _exit(6);
}

static void c99_exit_after_write_server(int fd)
{
    T(put(fd, 1, 150000));
    _Exit(10);
}

static void quick_exit_after_write_server(int fd)
{
    T(put(fd, 1, 150000));
    quick_exit(7);
}

static void *exit_thread(void *arg)
{
    T(put(*(int *)arg, 1, 150000));
    exit(8);
}

static void exit_in_thread_server(int fd)
{
    pthread_t t = start(exit_thread, &fd);
    finish(t);
}

static void raw_exit_server(int fd)
{
    T(put(fd, 1, 150000));
    syscall(SYS_exit_group, 9);
}

static void sigterm_after_write_server(int fd)
{
    T(put(fd, 1, 150000));
    raise(SIGTERM);
}

static void kill_after_write_server(int fd)
{
    T(put(fd, 1, 150000));
    raise(SIGKILL);
}

/* A process closes the connection by a system call that the library does not see, and lives on. On
 * plain TCP its unread bytes cause a RST at once. On a link the kernel sends a FIN and then a RST,
 * and the unread bytes may pass for bytes still under way. In both cases recv returns the end or
 * ECONNRESET, nothing else. */
static void end_then_reset_server(int fd)
{
    int none = -1;
    T(put(fd, 1, 1000));
    await_in(fd, 1000);
    T(setsockopt(fd, IPPROTO_TCP, TCP_LINGER2, &none, sizeof none));
    hear();
    T(unseen_close(fd));
    meet();
}

static void end_then_reset_client(int fd)
{
    T(put(fd, 2, 1000));
    await_in(fd, 1000);
    tell(0);
    await_state(fd, TCP_CLOSE);
    D(recv(fd, buf, 10000, 0));
    long r = recv(fd, buf, 10, 0);
    YES(r == 0 || errno == ECONNRESET);
    T(recv(fd, buf, 10, 0));
    meet();
}

/* A RST ends a recv that has already got bytes. It returns them, and the next recv fails. */
static void reset_in_waitall_server(int fd)
{
    T(put(fd, 1, 1000));
    await_asleep(hear());
    linger(fd, 1, 0);
    T(close(fd));
}

static void reset_in_waitall_client(int fd)
{
    tell(getpid());
    D(recv(fd, buf, 2000, MSG_WAITALL));
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, 0));
    post_mortem(fd);
}

/* As above, but the process is killed with bytes unread: the surviving end makes the reset
 * itself. */
static void kill_in_waitall_server(int fd)
{
    T(put(fd, 1, 1000));
    await_in(fd, 1000);
    await_asleep(hear());
    raise(SIGKILL);
}

static void kill_in_waitall_client(int fd)
{
    T(put(fd, 2, 1000));
    reset_in_waitall_client(fd);
}

static void abort_server(int fd)
{
    prctl(PR_SET_DUMPABLE, 0);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    T(put(fd, 1, 100000));
    abort();
}

/* connect(AF_UNSPEC) gives the connection up with a reset. */
static void disconnect_server(int fd)
{
    struct sockaddr a = {.sa_family = AF_UNSPEC};
    T(put(fd, 1, 100));
    meet();
    T(connect(fd, &a, sizeof a));
    T(send(fd, buf, 10, MSG_NOSIGNAL));
    T(recv(fd, buf, 10, 0));
    T(getpeername(fd, &a, &(socklen_t){sizeof a}));
    meet();
}

static void raw_disconnect_server(int fd)
{
    struct sockaddr a = {.sa_family = AF_UNSPEC};
    T(put(fd, 1, 100));
    meet();
    T(syscall(SYS_connect, fd, &a, sizeof a));
    T(send(fd, buf, 10, MSG_NOSIGNAL));
    T(recv(fd, buf, 10, 0));
    T(getpeername(fd, &a, &(socklen_t){sizeof a}));
    meet();
}

/* Connections end by a RST at about the size at which they would leave TCP. Both ends read all
 * bytes that were sent to them, and the server finds the RST after them. */
enum { RESETS = 60 };
static size_t asked_by(int i) { return 1 + i * 131 % 3000; }
static size_t reset_after(int i) { return 33000 + i * 7919 % 87000; }

static void resets_server(int fd)
{
    drop(join()); /* lets the libraries of the two processes find each other */
    int port, l = listen_any(&port), good = 0, reset = 0;
    tell(port);
    for (int i = 0; i < RESETS; i++) {
        if ((fd = accept(l, NULL, NULL)) < 0)
            die("accept");
        good += get(fd, i, asked_by(i)) == asked_by(i) &&
                put(fd, i, reset_after(i)) == reset_after(i);
        reset += recv(fd, buf, 1, 0) < 0 && errno == ECONNRESET;
        close(fd);
    }
    say("%d good, %d reset", good, reset);
    meet();
}

static void resets_client(int fd)
{
    drop(join());
    int port = hear(), good = 0;
    for (int i = 0; i < RESETS; i++) {
        if ((fd = try_dial(port, 0)) < 0)
            die("connect");
        good += put(fd, i, asked_by(i)) == asked_by(i) &&
                get(fd, i, reset_after(i)) == reset_after(i);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, (&(struct linger){1, 0}), sizeof(struct linger));
        close(fd);
    }
    say("%d good", good);
    meet();
}

/* Both ends close at the same time, with nothing unread or with bytes under way to both. */
static void close_both(int fd)
{
    for (int i = 0; i < 12; i++) {
        if (i)
            fd = join();
        echo_rounds(fd, 5, 2000);
        if (i % 3 == 1)
            put(fd, i, 5000);
        if (i % 3 == 2)
            shutdown(fd, SHUT_WR);
        meet();
        T(close(fd));
    }
}

const struct body end_bodies[] = {
    TWO("sigpipe", sigpipe_server, sigpipe_client),
    TWO("sigpipe_kills", sigpipe_server, sigpipe_kills_client, .flags = MUTE_C),
    TWO("close_unread_then_read", unread_server, unread_read_client),
    TWO("close_unread_then_write", unread_server, unread_write_client),
    TWO("reset_by_linger0", reset_server, reset_client),
    TWO("reset_wakes_recv", reset_wakes_server, reset_wakes_client),
    TWO("reset_by_disconnect", disconnect_server, reset_client),
    TWO("reset_by_raw_disconnect", raw_disconnect_server, reset_client),
    TWO("half_close", half_close_server, half_close_client),
    TWO("half_close_cold", one_half_server, one_half_client, .flags = RAW),
    TWO("half_close_cold_refused", one_half_refused_server, one_half_refused_client,
        .flags = RAW | MAYUP | ONEHOST),
    TWO("half_close_cold_killed", one_half_refused_server, one_half_killed_client,
        .flags = RAW | MAYUP | ONEHOST | MUTE_C | DIES),
    TWO("half_close_both", half_close_both, half_close_both),
    TWO("close_both", close_both, close_both),
    TWO("half_close_goes_on", half_close_ping_server, half_close_ping_client),
    TWO("shutdown_rd", shut_rd_server, shut_rd_client),
    TWO("shutdown_rd_unread", shut_rd_unread_server, shut_rd_unread_client),
    TWO("shutdown_rd_ended", shut_rd_ended_server, shut_rd_ended_client),
    TWO("shutdown_rd_pending", shut_rd_pending_server, shut_rd_pending_client),
    TWO("shutdown_wr", shut_wr_server, shut_wr_client),
    TWO("shutdown_rdwr", shut_rdwr_server, shut_rdwr_client),
    TWO("shutdown_rdwr_written", shut_rdwr_written_server, shut_rdwr_written_client),
    TWO("shutdown_rdwr_unread", shut_rdwr_unread_server, shut_rdwr_unread_client),
    TWO("shutdown_one_way", shut_one_way_server, shut_one_way_client, .flags = ONEHOST | MAYUP),
    TWO("shutdown_refuses", refused_server, refused_client, .flags = ONEHOST),
    TWO("shutdown_rd_wr_refuses", refused_rd_wr_server, refused_client, .flags = ONEHOST),
    TWO("shutdown_wr_rd_refuses", refused_wr_rd_server, refused_client, .flags = ONEHOST),
    TWO("shutdown_wakes_recv", shutdown_wakes_server, shutdown_wakes_client),
    TWO("close_after_write", close_after_write_server, drain_client),
    TWO("close_after_small_write", small_close_server, late_drain_client),
    TWO("exit_after_write", exit_after_write_server, drain_client),
    TWO("_exit_after_write", _exit_after_write_server, drain_client),
    TWO("_Exit_after_write", c99_exit_after_write_server, drain_client),
    TWO("quick_exit_after_write", quick_exit_after_write_server, drain_client),
    TWO("exit_in_thread", exit_in_thread_server, drain_client),
    TWO("raw_exit_after_write", raw_exit_server, drain_client),
    TWO("sigterm_after_write", sigterm_after_write_server, drain_client, .flags = MUTE_S | DIES),
    TWO("abort_after_write", abort_server, drain_client, .flags = MUTE_S | DIES),
    TWO("kill_after_write", kill_after_write_server, drain_client, .flags = MUTE_S | DIES),
    TWO("resets_at_switch", resets_server, resets_client, .flags = RAW | MAYUP),
    TWO("end_then_reset", end_then_reset_server, end_then_reset_client),
    TWO("reset_in_waitall", reset_in_waitall_server, reset_in_waitall_client),
    TWO("kill_in_waitall", kill_in_waitall_server, kill_in_waitall_client, .flags = MUTE_S),
    {0},
};
