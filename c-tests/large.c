/* What happens while a large send waits for its reader. */
#include "t.h"

/* A thread is cancelled in a send whose peer does not read: once as soon as the thread sleeps, and
 * once when all buffers are full. */
static void *send_thread(void *arg)
{
    busy = gettid();
    return (void *)send(*(int *)arg, buf, sizeof buf, 0);
}

static void cancel_send_server(int fd)
{
    fill(buf, 1, 0, sizeof buf);
    for (int i = 0; i < 2; i++) {
        pthread_t t = start(send_thread, &fd);
        hear(); /* before that, the thread may sleep although not all is full */
        await_asleep(busy);
        usleep(i * 300000);
        pthread_cancel(t);
        say("%s", finish(t) == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        T(shutdown(fd, SHUT_WR));
        tell(0);
        T(get(fd, 2, 5000));
        meet();
        T(close(fd));
        if (!i)
            fd = join();
    }
}

static void cancel_send_client(int fd)
{
    for (int i = 0; i < 2; i++) {
        await_in(fd, 10001);
        tell(0);
        hear();
        YES(drain(fd, 1) > 10000); /* a part of the send, in order */
        T(put(fd, 2, 5000));
        meet();
        T(close(fd));
        if (!i)
            fd = join();
    }
}

/* In a large send the process forks, executes another program or is killed, its reader is killed,
 * or a signal comes. */
static void *large_put(void *arg)
{
    busy = gettid();
    return (void *)put(*(int *)arg, 1, sizeof buf);
}

static void fork_in_send_server(int fd)
{
    for (int i = 0; i < 3; i++) {
        pthread_t t = start_busy(large_put, &fd);
        for (int j = 0; j < 3; j++) {
            pid_t pid = child();
            if (!pid)
                _exit(j);
            reap(pid);
        }
        tell(0);
        T(finish(t));
        meet();
    }
    echo_rounds(fd, 20, 3000);
}

static void fork_in_send_client(int fd)
{
    for (int i = 0; i < 3; i++) {
        hear();
        T(get(fd, 1, sizeof buf));
        meet();
    }
    echo_rounds(fd, 20, 3000);
}

static void exec_in_send_server(int fd)
{
    fill(buf, 1, 0, sizeof buf);
    start_busy(send_thread, &fd);
    hear(); /* before that, the thread may sleep although not all is full */
    await_asleep(busy);
    exec_self(fd);
}

static void exec_in_send_resume(int fd)
{
    T(shutdown(fd, SHUT_WR));
    tell(0);
    T(get(fd, 2, 5000));
}

static void exec_in_send_client(int fd)
{
    await_in(fd, 10001);
    tell(0);
    hear();
    YES(drain(fd, 1) > 0);
    T(put(fd, 2, 5000));
}

static void kill_in_send_server(int fd)
{
    fill(buf, 1, 0, sizeof buf);
    tell(0);
    send(fd, buf, sizeof buf, 0);
}

static void kill_in_send_client(int fd)
{
    hear();
    await_asleep(peer_pid);
    kill(peer_pid, SIGKILL);
    drain(fd, 1); /* the bytes that arrive are right */
    T(recv(fd, buf, 10, 0));
}

/* The reader is killed after it has read a part of a large send. */
static void kill_reader_server(int fd)
{
    count_signal(SIGPIPE, 0);
    fill(buf, 1, 0, sizeof buf);
    hear();
    while (send(fd, buf, sizeof buf, 0) > 0)
        ;
    YES(errno == ECONNRESET || errno == EPIPE);
}

static void kill_reader_client(int fd)
{
    tell(0);
    get(fd, 1, 1 << 20);
    raise(SIGKILL);
}

static void eintr_in_send_server(int fd)
{
    hold_less(fd);
    fill(buf, 1, 0, sizeof buf);
    count_signal(SIGUSR1, 0);
    for (int i = 0; i < 3; i++) {
        tell(0);
        ssize_t n = send(fd, buf, sizeof buf, 0);
        YES(n < 0 ? errno == EINTR : n < (ssize_t)sizeof buf);
        say("signals %d", signals[SIGUSR1]);
        tell(n > 0 ? n : 0);
        meet();
    }
    echo_rounds(fd, 20, 3000);
}

static void eintr_in_send_client(int fd)
{
    hold_less(fd);
    for (int i = 0; i < 3; i++) {
        hear();
        await_still(peer_pid);
        kill(peer_pid, SIGUSR1);
        size_t n = hear();
        YES(get(fd, 1, n) == n);
        meet();
    }
    echo_rounds(fd, 20, 3000);
}

const struct body large_bodies[] = {
    TWO("cancel_in_send", cancel_send_server, cancel_send_client),
    TWO("fork_in_large_send", fork_in_send_server, fork_in_send_client),
    TWO("exec_in_large_send", exec_in_send_server, exec_in_send_client,
        .resume = exec_in_send_resume),
    TWO("killed_in_large_send", kill_in_send_server, kill_in_send_client, .flags = MUTE_S),
    TWO("reader_killed_in_large_send", kill_reader_server, kill_reader_client, .flags = MUTE_C),
    TWO("eintr_in_large_send", eintr_in_send_server, eintr_in_send_client),
    {0},
};
