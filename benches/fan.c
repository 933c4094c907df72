/* N connections in one level-triggered epoll set on each side, ACTIVE of them doing 64-byte
 * request and response, the others silent. Every connection first exchanges WARM bytes each way:
 * the silent ones are to be as live as the busy ones. With SECONDS 0 nothing is active at all and
 * the client waits for its standard input to end: the case `idle`. */
#include "bench.h"

#define MESSAGE 64
static const char text[] =
	"fan server ADDR | client ADDR PORT CONNECTIONS ACTIVE WARM_BYTES SECONDS WARM_SECONDS";

static void add(int epfd, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};
	if (epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev) < 0)
		die("epoll_ctl");
}

static void put(int fd, const char *buf, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, buf, len, MSG_NOSIGNAL);
		if (n >= 0) {
			buf += n;
			len -= (size_t)n;
		} else if (errno == EAGAIN) {
			struct pollfd p = {.fd = fd, .events = POLLOUT};
			if (poll(&p, 1, -1) < 0 && errno != EINTR)
				die("poll");
		} else {
			die("send");
		}
	}
}

/* Echoes until the last of its connections has ended. */
static int server(const char *addr)
{
	static char buf[16384];
	int listener, epfd = epoll_create1(EPOLL_CLOEXEC), live = 0, seen = 0;
	double cpu = cpu_secs();

	raise_fd_limit();
	if (epfd < 0)
		die("epoll_create1");
	listener = serve(addr);
	nonblocking(listener);
	add(epfd, listener);
	while (!seen || live > 0) {
		struct epoll_event ev[64];
		int n = epoll_wait(epfd, ev, 64, -1);
		if (n < 0 && errno != EINTR)
			die("epoll_wait");
		for (int i = 0; i < n; i++) {
			int fd = ev[i].data.fd;
			ssize_t got;
			if (fd == listener) {
				fd = accept(listener, NULL, NULL);
				if (fd < 0) {
					if (errno == EAGAIN || errno == ECONNABORTED)
						continue;
					die("accept");
				}
				nodelay(fd);
				nonblocking(fd);
				add(epfd, fd);
				live++;
				seen = 1;
				continue;
			}
			got = recv(fd, buf, sizeof buf, 0);
			if (got > 0) {
				put(fd, buf, (size_t)got);
			} else if (got == 0) {
				close(fd);
				live--;
			} else if (errno != EAGAIN) {
				die("recv");
			}
		}
	}
	printf("cpu=%.6f\n", cpu_secs() - cpu);
	return 0;
}

static void warm_up(int fd, size_t bytes)
{
	static char buf[4096];
	while (bytes > 0) {
		size_t piece = bytes < sizeof buf ? bytes : sizeof buf;
		send_all(fd, buf, piece);
		if (!recv_all(fd, buf, piece)) {
			fprintf(stderr, "the server ended\n");
			exit(1);
		}
		bytes -= piece;
	}
}

static void wait_for_end_of_input(void)
{
	char c;
	printf("idle\n");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
}

static int client(char **argv)
{
	struct sockaddr_in a = address(argv[2], atoi(argv[3]));
	size_t count = size_arg(argv[4], text), active = size_arg(argv[5], text);
	size_t warm_bytes = size_arg(argv[6], text);
	uint64_t secs = secs_arg(argv[7], text), warm = secs_arg(argv[8], text);
	int epfd = epoll_create1(EPOLL_CLOEXEC), *fds = calloc(count, sizeof *fds);
	size_t *got = NULL, top = 0, flying;
	char buf[MESSAGE] = {0};
	double cpu;
	uint64_t begin, start = 0, t, ops = 0, total = 0, turns = 0;
	int over = 0;

	if (epfd < 0 || !fds || active > count)
		die("set-up");
	raise_fd_limit();
	for (size_t i = 0; i < count; i++) {
		fds[i] = dial(&a);
		if ((size_t)fds[i] > top)
			top = (size_t)fds[i];
		warm_up(fds[i], warm_bytes);
		nonblocking(fds[i]);
		add(epfd, fds[i]);
	}
	if (secs == 0) {
		wait_for_end_of_input();
		return 0;
	}
	got = calloc(top + 1, sizeof *got);
	if (!got)
		die("calloc");
	cpu = cpu_secs();
	begin = t = now_ns();
	for (flying = 0; flying < active; flying++)
		put(fds[flying * (count / active)], buf, sizeof buf);
	/* At the end the answers under way are taken in: closing before them would be a reset. */
	while (!over || flying > 0) {
		struct epoll_event ev[64];
		int n = epoll_wait(epfd, ev, 64, -1);
		if (n < 0 && errno != EINTR)
			die("epoll_wait");
		for (int i = 0; i < n; i++) {
			int fd = ev[i].data.fd;
			ssize_t r = recv(fd, buf, sizeof buf - got[fd], 0);
			if (r == 0) {
				fprintf(stderr, "the server closed a connection\n");
				return 1;
			}
			if (r < 0) {
				if (errno == EAGAIN)
					continue;
				die("recv");
			}
			got[fd] += (size_t)r;
			if (got[fd] < sizeof buf)
				continue;
			got[fd] = 0;
			if (over)
				flying--;
			else
				put(fd, buf, sizeof buf);
			ops++;
			total++;
		}
		if ((++turns & 15) == 0 && !over) {
			t = now_ns();
			if (!start && t - begin >= warm) {
				start = t;
				ops = 0;
			}
			over = start && t - start >= secs;
		}
	}
	printf("ops=%llu total=%llu secs=%.6f cpu=%.6f\n", (unsigned long long)ops,
	       (unsigned long long)total, (double)(t - start) / 1e9, cpu_secs() - cpu);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "server") == 0)
		return server(argv[2]);
	if (argc == 9 && strcmp(argv[1], "client") == 0)
		return client(argv);
	usage(text);
}
