/* N calls of one function on descriptors that are no TCP sockets. Run under callgrind with two
 * values of N: the difference is the cost of a call in instructions, free of start-up. */
#include "bench.h"
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/uio.h>

static const char text[] = "untracked CALL N   (read write readv writev recv send recvmsg poll select\n"
	"           epoll_wait epoll_wait_pipe epoll_wait_tcp epoll_pwait_tcp fcntl ioctl setsockopt getsockopt)";

/* A connection between two sockets of this process, without a byte: its stream is never moved. */
static int connection(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 1) || getsockname(l, (struct sockaddr *)&a, &len)
	    || connect(c, (struct sockaddr *)&a, sizeof a) || accept(l, NULL, NULL) < 0)
		die("connection");
	return c;
}

/* A set with one descriptor in it. */
static int set_of(int fd, unsigned events)
{
	struct epoll_event ev = {.events = events};
	int epfd = epoll_create1(0);
	if (epfd < 0 || epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev))
		die("set");
	return epfd;
}

int main(int argc, char **argv)
{
	int pair[2], epfd, piped, tcp, inner[2], null, zero, n_unread;
	struct iovec one = {.iov_len = 1};
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
	if (pipe(inner))
		die("pipe");
	piped = set_of(inner[0], EPOLLIN);
	tcp = set_of(connection(), EPOLLIN);
	one.iov_base = &c;
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
		else if (strcmp(argv[1], "select") == 0) {
			struct timeval none = {0, 0};
			fd_set set;
			FD_ZERO(&set);
			FD_SET(zero, &set);
			r = select(zero + 1, &set, NULL, NULL, &none);
		} else if (strcmp(argv[1], "readv") == 0)
			r = readv(zero, &one, 1);
		else if (strcmp(argv[1], "writev") == 0)
			r = writev(null, &one, 1);
		else if (strcmp(argv[1], "recvmsg") == 0) {
			struct msghdr h = {.msg_iov = &one, .msg_iovlen = 1};
			r = recvmsg(pair[0], &h, 0) == -1 && errno == EAGAIN ? 0 : -1;
		} else if (strcmp(argv[1], "epoll_wait_pipe") == 0)
			r = epoll_wait(piped, &ev, 1, 0);
		else if (strcmp(argv[1], "epoll_wait_tcp") == 0)
			r = epoll_wait(tcp, &ev, 1, 0);
		else if (strcmp(argv[1], "epoll_pwait_tcp") == 0)
			r = epoll_pwait(tcp, &ev, 1, 0, NULL);
		else if (strcmp(argv[1], "ioctl") == 0)
			r = ioctl(inner[0], FIONREAD, &n_unread);
		else if (strcmp(argv[1], "setsockopt") == 0)
			r = setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &(int){0}, sizeof(int));
		else if (strcmp(argv[1], "getsockopt") == 0)
			r = getsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &n_unread, &(socklen_t){sizeof(int)});
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
