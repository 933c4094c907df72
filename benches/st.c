/* One-way stream: the client sends messages of SIZE bytes as fast as it can, the server reads with
 * buffers of RSIZE. `st` blocks; started under the name `est` both ends are non-blocking and wait
 * in an edge-triggered epoll set. The *receiver* measures: bytes that sit in a buffer at the end
 * of the warm-up or of the run are then counted for what they are. Its rate ends with the last byte:
 * over a long path the end of the stream comes later. */
#include "bench.h"

static const char text[] =
	"st|est server ADDR RSIZE WARM_SECONDS | client ADDR PORT SIZE SECONDS";

static int edge_set(int fd)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
	int epfd = epoll_create1(EPOLL_CLOEXEC);
	nonblocking(fd);
	if (epfd < 0)
		die("epoll_create1");
	if (epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev) < 0)
		die("epoll_ctl");
	return epfd;
}

static void wait_edge(int epfd)
{
	struct epoll_event ev;
	int n;
	do
		n = epoll_wait(epfd, &ev, 1, -1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		die("epoll_wait");
}

static int receive(const char *addr, size_t rsize, uint64_t warm, int by_epoll)
{
	int fd = take(serve(addr)), epfd = by_epoll ? edge_set(fd) : -1;
	char *buf = buffer(rsize);
	double cpu = cpu_secs();
	uint64_t begin = now_ns(), start = 0, end = 0, bytes = 0, total = 0, calls = 0;

	for (;;) {
		ssize_t n = recv(fd, buf, rsize, 0);
		if (n < 0 && errno == EAGAIN && by_epoll) {
			wait_edge(epfd);
			continue;
		}
		if (n < 0)
			die("recv");
		if (n == 0)
			break;
		total += (uint64_t)n;
		uint64_t t = (++calls & 63) == 0 || rsize >= 4096 ? now_ns() : 0;
		if (start) {
			bytes += (uint64_t)n;
			end = t ? t : end;
		} else if (t - begin >= warm && t) {
			start = t;
		}
	}
	if (!end) {
		fprintf(stderr, "the stream ended during the warm-up\n");
		return 1;
	}
	printf("bytes=%llu total_bytes=%llu secs=%.6f cpu=%.6f\n", (unsigned long long)bytes,
	       (unsigned long long)total, (double)(end - start) / 1e9, cpu_secs() - cpu);
	return 0;
}

static int transmit(const struct sockaddr_in *a, size_t size, uint64_t secs, int by_epoll)
{
	int fd = dial(a), epfd = by_epoll ? edge_set(fd) : -1;
	char *buf = buffer(size);
	double cpu = cpu_secs();
	uint64_t begin = now_ns(), messages = 0;
	/* The clock is read once in about 64 KiB. */
	uint64_t every = size >= 65536 ? 1 : 65536 / size;

	for (;;) {
		size_t done = 0;
		while (done < size) {
			ssize_t n = send(fd, buf + done, size - done, MSG_NOSIGNAL);
			if (n >= 0)
				done += (size_t)n;
			else if (errno == EAGAIN && by_epoll)
				wait_edge(epfd);
			else
				die("send");
		}
		if (++messages % every == 0 && now_ns() - begin >= secs)
			break;
	}
	cpu = cpu_secs() - cpu;
	if (shutdown(fd, SHUT_WR) < 0)
		die("shutdown");
	/* The server closes when it has seen the end. */
	for (;;) {
		ssize_t n = recv(fd, buf, size, 0);
		if (n == 0)
			break;
		if (n < 0 && errno == EAGAIN && by_epoll) {
			wait_edge(epfd);
			continue;
		}
		if (n < 0)
			die("recv");
	}
	printf("messages=%llu cpu=%.6f\n", (unsigned long long)messages, cpu);
	return 0;
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN); /* as servers do */
	const char *name = strrchr(argv[0], '/');
	int by_epoll = strcmp(name ? name + 1 : argv[0], "est") == 0;

	if (argc == 5 && strcmp(argv[1], "server") == 0)
		return receive(argv[2], size_arg(argv[3], text), secs_arg(argv[4], text), by_epoll);
	if (argc == 6 && strcmp(argv[1], "client") == 0) {
		struct sockaddr_in a = address(argv[2], atoi(argv[3]));
		return transmit(&a, size_arg(argv[4], text), secs_arg(argv[5], text), by_epoll);
	}
	usage(text);
}
