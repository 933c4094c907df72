/* N calls of one function on descriptors that are no TCP sockets. Run under callgrind with two
 * values of N: the difference is the cost of a call in instructions, free of start-up. */
#include "bench.h"

static const char text[] = "untracked read|write|recv|send|poll|epoll_wait|fcntl N";

int main(int argc, char **argv)
{
	int pair[2], epfd, null, zero;
	char c = 'c';
	long n;
	if (argc != 3)
		usage(text);
	n = (long)size_arg(argv[2], text);
	null = open("/dev/null", O_WRONLY);
	zero = open("/dev/zero", O_RDONLY);
	epfd = epoll_create1(0);
	if (null < 0 || zero < 0 || epfd < 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) < 0)
		die("set-up");
	nonblocking(pair[0]);
	nonblocking(pair[1]);
	for (long i = 0; i < n; i++) {
		struct pollfd p = {.fd = zero, .events = POLLIN};
		struct epoll_event ev;
		long r;
		if (strcmp(argv[1], "read") == 0)
			r = read(zero, &c, 1);
		else if (strcmp(argv[1], "write") == 0)
			r = write(null, &c, 1);
		else if (strcmp(argv[1], "recv") == 0)
			r = recv(pair[0], &c, 1, 0) == -1 && errno == EAGAIN ? 0 : -1;
		else if (strcmp(argv[1], "send") == 0)
			r = send(pair[1], &c, 1, 0) == 1 || errno == EAGAIN ? 0 : -1;
		else if (strcmp(argv[1], "poll") == 0)
			r = poll(&p, 1, 0);
		else if (strcmp(argv[1], "epoll_wait") == 0)
			r = epoll_wait(epfd, &ev, 1, 0);
		else if (strcmp(argv[1], "fcntl") == 0)
			r = fcntl(zero, F_GETFL);
		else
			usage(text);
		if (r < 0)
			die(argv[1]);
	}
	return 0;
}
