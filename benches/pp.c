/* Ping-pong of SIZE bytes on one connection, one message in flight. `pp` blocks in recv; started
 * under the name `epp` both ends are non-blocking and wait in an edge-triggered epoll set. */
#include "bench.h"

static const char text[] = "pp|epp server ADDR SIZE | client ADDR PORT SIZE SECONDS WARM_SECONDS\n"
			   "       pp|epp client ADDR PORT SIZE count COUNT";

/* --- one message, whole, each way: blocking or by epoll --- */

struct end {
	int fd, epfd;
	size_t size;
	char *buf;
	int pending; /* input may be there without a new edge */
};

static void wait_edge(struct end *e)
{
	struct epoll_event ev;
	int n;
	do
		n = epoll_wait(e->epfd, &ev, 1, -1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		die("epoll_wait");
	if (ev.events & (EPOLLIN | EPOLLHUP | EPOLLERR))
		e->pending = 1;
}

static void put(struct end *e)
{
	size_t done = 0;
	if (e->epfd < 0) {
		send_all(e->fd, e->buf, e->size);
		return;
	}
	while (done < e->size) {
		ssize_t n = send(e->fd, e->buf + done, e->size - done, MSG_NOSIGNAL);
		if (n >= 0)
			done += (size_t)n;
		else if (errno == EAGAIN)
			wait_edge(e);
		else
			die("send");
	}
}

/* 0 at the end of the stream. Reads with room to spare: a short read tells that nothing is left,
 * as event loops do it, which spares the read that would say EAGAIN. */
static int get(struct end *e)
{
	size_t done = 0;
	if (e->epfd < 0)
		return recv_all(e->fd, e->buf, e->size);
	while (done < e->size) {
		ssize_t n;
		if (!e->pending) {
			wait_edge(e);
			continue;
		}
		n = recv(e->fd, e->buf + done, e->size - done + 1, 0);
		if (n > 0) {
			if ((size_t)n < e->size - done + 1)
				e->pending = 0;
			done += (size_t)n;
			if (done > e->size) {
				fprintf(stderr, "more input than one message\n");
				exit(1);
			}
		} else if (n == 0) {
			if (done == 0)
				return 0;
			fprintf(stderr, "stream ended inside a message\n");
			exit(1);
		} else if (errno == EAGAIN) {
			e->pending = 0;
		} else {
			die("recv");
		}
	}
	return 1;
}

/* A number of round trips that is known beforehand, for those who compare system calls; the longest
 * of them shows a wait that should not be. */
static int counted(struct end *e, uint64_t count)
{
	uint64_t longest = 0, begin = now_ns();
	for (uint64_t i = 0; i < count; i++) {
		uint64_t t = now_ns();
		put(e);
		if (!get(e)) {
			fprintf(stderr, "the server ended\n");
			return 1;
		}
		t = now_ns() - t;
		if (t > longest)
			longest = t;
	}
	printf("ops=%llu secs=%.6f max_ns=%llu\n", (unsigned long long)count, (double)(now_ns() - begin) / 1e9,
	       (unsigned long long)longest);
	close(e->fd);
	return 0;
}

static struct end open_end(int fd, size_t size, int by_epoll)
{
	struct end e = {.fd = fd, .epfd = -1, .size = size, .buf = buffer(size + 1), .pending = 1};
	if (by_epoll) {
		struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
		nonblocking(fd);
		e.epfd = epoll_create1(EPOLL_CLOEXEC);
		if (e.epfd < 0)
			die("epoll_create1");
		if (epoll_ctl(e.epfd, EPOLL_CTL_ADD, fd, &ev) < 0)
			die("epoll_ctl");
	}
	return e;
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN); /* as servers do */
	const char *name = strrchr(argv[0], '/');
	int by_epoll = strcmp(name ? name + 1 : argv[0], "epp") == 0;

	if (argc == 4 && strcmp(argv[1], "server") == 0) {
		size_t size = size_arg(argv[3], text);
		struct end e = open_end(take(serve(argv[2])), size, by_epoll);
		double cpu = cpu_secs();
		while (get(&e))
			put(&e);
		printf("cpu=%.6f\n", cpu_secs() - cpu);
		return 0;
	}
	if (argc == 7 && strcmp(argv[1], "client") == 0 && strcmp(argv[5], "count") == 0) {
		struct sockaddr_in a = address(argv[2], atoi(argv[3]));
		size_t size = size_arg(argv[4], text), count = size_arg(argv[6], text);
		struct end e = open_end(dial(&a), size, by_epoll);
		return counted(&e, count);
	}
	if (argc == 7 && strcmp(argv[1], "client") == 0) {
		static struct latency lat;
		struct sockaddr_in a = address(argv[2], atoi(argv[3]));
		size_t size = size_arg(argv[4], text);
		uint64_t secs = secs_arg(argv[5], text), warm = secs_arg(argv[6], text);
		struct end e = open_end(dial(&a), size, by_epoll);
		double cpu = cpu_secs();
		uint64_t begin = now_ns(), start = 0, ops = 0, total = 0, t0, t1;

		do {
			t0 = now_ns();
			put(&e);
			if (!get(&e)) {
				fprintf(stderr, "the server ended\n");
				return 1;
			}
			t1 = now_ns();
			total++;
			if (!start) {
				if (t1 - begin >= warm)
					start = t1;
				continue;
			}
			ops++;
			latency_add(&lat, t1 - t0);
			for (int i = 1; i < LAT_EVERY; i++, ops++, total++) {
				put(&e);
				if (!get(&e)) {
					fprintf(stderr, "the server ended\n");
					return 1;
				}
			}
			t1 = now_ns();
		} while (!start || t1 - start < secs);
		cpu = cpu_secs() - cpu;
		close(e.fd);
		printf("ops=%llu total=%llu secs=%.6f cpu=%.6f p50_ns=%llu p99_ns=%llu\n",
		       (unsigned long long)ops, (unsigned long long)total, (double)(t1 - start) / 1e9,
		       cpu, (unsigned long long)latency_at(&lat, 0.50),
		       (unsigned long long)latency_at(&lat, 0.99));
		return 0;
	}
	usage(text);
}
