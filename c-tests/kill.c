/* What a killed process leaves, as its peer sees it. */
#include "t.h"

/* The reader takes the connection back to TCP while bytes are unread and the writer is stopped;
 * then the writer is killed. The writer had done all that it had to, and no byte is missing. */
static void kill_stopped_server(int fd)
{
    T(put(fd, 1, 20000));
    tell(0);
    raise(SIGSTOP);
}

static void outlive_stopped(int fd)
{
    hear();
    await_state_of(peer_pid, 'T');
    T(get(fd, 1, 1000));
    T(recv(fd, buf, 1, MSG_OOB));
    kill(peer_pid, SIGKILL);
    await(fd, POLLRDHUP);
}

static void kill_stopped_client(int fd)
{
    int n = 0;
    outlive_stopped(fd);
    T(ioctl(fd, FIONREAD, &n));
    say("%d unread", n);
    D(recv(fd, buf, 100, MSG_PEEK));
    T(get_at(fd, 1, 1000, 500));
    T(recv(fd, NULL, 500, MSG_TRUNC));
    T(get_at(fd, 1, 2000, 8000));
    D(recv(fd, buf, 50000, MSG_WAITALL));
    T(recv(fd, buf, 10, 0));
}

static void kill_after_ack_server(int fd)
{
    T(put(fd, 1, 150000));
    T(get(fd, 2, 1));
    raise(SIGKILL);
}

static void kill_after_ack_client(int fd)
{
    T(get(fd, 1, 150000));
    T(put(fd, 2, 1));
    await(fd, POLLRDHUP);
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, 0));
}

static void kill_unread_server(int fd)
{
    T(put(fd, 1, 1000));
    await_in(fd, 1000);
    raise(SIGKILL);
}

static void kill_unread_client(int fd)
{
    await_in(fd, 1000); /* the peer's bytes have arrived before it dies */
    T(put(fd, 2, 1000));
    await_reset(fd);
    D(recv(fd, buf, 10000, 0));
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, 0));
    post_mortem(fd);
}

/* A thread has slept in recv since before the other direction was upgraded, and gets the CPU last
 * when the peer dies. What this process makes of the death must not change what the recv
 * returns. */
static void *late_riser(void *arg)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    sched_setaffinity(0, sizeof one, &one);
    sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
    long r = recv(*(int *)arg, buf, 10, 0);
    return (void *)(r == 0 || (r < 0 && errno == ECONNRESET) ? 1l : -(long)errno);
}

static void kill_late_riser_server(int fd)
{
    hear();
    T(get(fd, 2, 300000));
    tell(0);
    await_in(fd, 1000);
    raise(SIGKILL);
}

static void kill_late_riser_client(int fd)
{
    cpu_set_t one;
    pthread_t t = start(late_riser, &fd);
    tell(0);
    T(put(fd, 2, 300000));
    hear();
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    sched_setaffinity(0, sizeof one, &one);
    T(put(fd, 3, 1000));
    for (double end = now() + 0.05; now() < end;)
        ;
    say("the end or a reset: %ld", (long)finish(t));
}

/* The peer is killed while this side sleeps in recv, poll, select or epoll_wait. */
static void killer(int fd)
{
    (void)fd;
    hear();
    await_asleep(peer_pid);
    raise(SIGKILL);
}

/* The same for a writer whose peer does not read: when the writer sleeps after its first bytes, it
 * has filled all buffers. */
static void killer_of_writer(int fd)
{
    hear();
    await_in(fd, 10001);
    await_asleep(peer_pid);
    raise(SIGKILL);
}

static void killed_recv_client(int fd)
{
    tell(0);
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, 0));
}

static void killed_poll_client(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLRDHUP};
    tell(0);
    T(poll(&p, 1, -1));
    say("%s", mask_name(p.revents));
    T(recv(fd, buf, 10, 0));
}

/* The killed peer has unread bytes of this side: the end that this side is told is a reset. */
static void unread_killer(int fd)
{
    hear();
    await_in(fd, 1000);
    await_asleep(peer_pid);
    raise(SIGKILL);
}

static void killed_unread_poll_client(int fd)
{
    T(put(fd, 2, 1000));
    killed_poll_client(fd);
}

static void killed_unread_epoll_client(int fd)
{
    T(put(fd, 2, 1000));
    int ep = set_of(fd, EPOLLIN | EPOLLRDHUP);
    tell(0);
    say_wait(ep, -1);
    T(recv(fd, buf, 10, 0));
}

static void killed_select_client(int fd)
{
    fd_set r;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    tell(0);
    T(select(fd + 1, &r, NULL, NULL, NULL));
    T(recv(fd, buf, 10, 0));
}

static void killed_epoll_client(int fd)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
    int ep = epoll_create1(0);
    T(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    tell(0);
    T(epoll_wait(ep, &e, 1, -1));
    say("%s", mask_name(e.events));
    T(recv(fd, buf, 10, 0));
}

static void killed_send_client(int fd)
{
    count_signal(SIGPIPE, 0);
    size_t n;
    tell(0);
    for (n = 0; n < (64u << 20); n += 65536)
        if (send(fd, buf, 65536, 0) < 0)
            break;
    say("%s, SIGPIPE %d", strerrorname_np(errno), signals[SIGPIPE]);
    YES(n > 100000 && n < (64u << 20));
    T(send(fd, buf, 1, 0));
    say("SIGPIPE %d", signals[SIGPIPE]);
}

/* The peer dies with unread bytes, while this side has not read all bytes from before the upgrade.
 * Those bytes come first, then the reset. */
static void kill_behind_input_server(int fd)
{
    T(put(fd, 1, 100000));
    await_in(fd, 1000);
    raise(SIGKILL);
}

static void kill_behind_input_client(int fd)
{
    int n = 0;
    T(get(fd, 1, 99000));
    T(put(fd, 2, 1000));
    await_reset(fd);
    T(ioctl(fd, FIONREAD, &n));
    say("%d unread", n);
    D(recv(fd, buf, 100, MSG_PEEK));
    T(get_at(fd, 1, 99000, 1000));
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, 0));
    post_mortem(fd);
}

/* The same with more bytes after them, which came by the link. */
static void kill_behind_more_server(int fd)
{
    T(put(fd, 1, 100000));
    for (int i = 0; i < 4; i++) {
        meet();
        T(put(fd, 3 + i, 100));
    }
    await_in(fd, 1000);
    raise(SIGKILL);
}

static void kill_behind_more_client(int fd)
{
    int n = 0;
    T(get(fd, 1, 99000));
    for (int i = 0; i < 4; i++) {
        meet();
        await_in(fd, 1100 + 100 * i);
    }
    T(put(fd, 2, 1000));
    await_reset(fd);
    T(ioctl(fd, FIONREAD, &n));
    say("%d unread", n);
    T(get_at(fd, 1, 99000, 1000));
    for (int i = 0; i < 4; i++)
        T(get(fd, 3 + i, 100));
    T(recv(fd, buf, 10, 0));
    T(recv(fd, buf, 10, 0));
    post_mortem(fd);
}

/* A stopped process gets more messages than its socket takes. When the process goes on, it still
 * learns that all its connections have gone back to TCP. */
enum { MANY = 300 };
static void stopped_many_server(int fd)
{
    static int all[MANY];
    for (int i = 0; i < MANY; i++)
        put(all[i] = join(), i, 100);
    meet();
    meet();
    for (int i = 0; i < MANY; i++)
        put(all[i], ~i, 100);
    meet();
    (void)fd;
}

static void stopped_many_client(int fd)
{
    static int all[MANY];
    int one = 1;
    size_t good = 0;
    for (int i = 0; i < MANY; i++)
        all[i] = join();
    meet();
    for (int i = 0; i < MANY; i++)
        await_in(all[i], 100);
    kill(peer_pid, SIGSTOP);
    await_state_of(peer_pid, 'T');
    for (int i = 0; i < MANY; i++)
        if (setsockopt(all[i], SOL_SOCKET, SO_TIMESTAMP, &one, sizeof one))
            die("setsockopt");
    kill(peer_pid, SIGCONT);
    for (int i = 0; i < MANY; i++)
        good += get(all[i], i, 100);
    meet();
    for (int i = 0; i < MANY; i++)
        good += get(all[i], ~i, 100);
    say("%zu good", good);
    meet();
    (void)fd;
}

/* A peer is killed that has left nothing unread, and recv returns the end. The peer's kernel
 * answers the next write with a RST, and the write after that fails with EPIPE. */
static void killed_at_rest_server(int fd)
{
    meet();
    usleep(20000);
    raise(SIGKILL);
    (void)fd;
}

static void killed_at_rest_client(int fd)
{
    long n;
    signal(SIGPIPE, SIG_IGN);
    meet();
    while ((n = recv(fd, buf, 10, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
        ;
    say("recv %ld", n);
    T(write(fd, buf, 10));
    await(fd, POLLHUP);
    T(write(fd, buf, 10));
    T(recv(fd, buf, 10, 0));
}

const struct body kill_bodies[] = {
    TWO("kill_stopped", kill_stopped_server, kill_stopped_client, .flags = MUTE_S | DIES),
    TWO("kill_after_ack", kill_after_ack_server, kill_after_ack_client, .flags = MUTE_S | DIES),
    TWO("kill_unread", kill_unread_server, kill_unread_client, .flags = MUTE_S),
    TWO("kill_late_riser", kill_late_riser_server, kill_late_riser_client, .flags = MUTE_S),
    TWO("peer_killed_in_recv", killer, killed_recv_client, .flags = MUTE_S | DIES),
    TWO("peer_killed_in_poll", killer, killed_poll_client, .flags = MUTE_S | DIES),
    TWO("peer_killed_in_poll_unread", unread_killer, killed_unread_poll_client,
        .flags = MUTE_S | DIES),
    TWO("peer_killed_in_epoll_unread", unread_killer, killed_unread_epoll_client,
        .flags = MUTE_S | DIES),
    TWO("peer_killed_in_select", killer, killed_select_client, .flags = MUTE_S | DIES),
    TWO("peer_killed_in_epoll", killer, killed_epoll_client, .flags = MUTE_S | DIES),
    TWO("peer_killed_in_send", killer_of_writer, killed_send_client, .flags = MUTE_S | DIES),
    TWO("kill_behind_input", kill_behind_input_server, kill_behind_input_client,
        .flags = MUTE_S | DIES),
    TWO("kill_behind_more_input", kill_behind_more_server, kill_behind_more_client,
        .flags = MUTE_S | DIES),
    TWO("kill_at_rest", killed_at_rest_server, killed_at_rest_client, .flags = MUTE_S | DIES),
    TWO("kill_stopped_many", stopped_many_server, stopped_many_client, .flags = ONEHOST,
        .limit = 60),
    {0},
};
