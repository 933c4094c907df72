/* Makes the calls whose instructions scripts/instructions.py counts: on descriptors that are not
 * tracked, and on a stream that is on the link. Each is made WARM times, and then TIMES times in
 * `counted`. There callgrind counts, and only there: not what makes a call ready, nor what cleans
 * up after it. After each kind of call `done` is called; callgrind then writes down its count. */
#include "bench.h"
#include <sys/ioctl.h>
#include <sys/uio.h>

enum { SIZE = 64, MANY = 16, WARM = 160, TIMES = 1600 };

static char bytes[SIZE * MANY];
static struct iovec one = {.iov_base = bytes, .iov_len = 1};
static struct epoll_event event;
static int number;

/* No stream of any of these is on a link. */
static int null, zero, ends[2], datagrams[2], empty_set, pipe_set, tcp_set;
/* The two ends of one that is, and a set with the end that receives. */
static int from, to, set = -1;

/* Connects two sockets of this process. */
static void connection(int *a, int *b)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof addr;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&addr, sizeof addr) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&addr, &len))
		die("listen");
	*a = dial(&addr);
	*b = take(listener);
	close(listener);
}

static int set_of(int fd)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int epfd = epoll_create1(0);
	if (epfd < 0 || epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev))
		die("epoll");
	return epfd;
}

static void open_untracked(void)
{
	int client, server;
	null = open("/dev/null", O_WRONLY);
	zero = open("/dev/zero", O_RDONLY);
	empty_set = epoll_create1(0);
	if (null < 0 || zero < 0 || empty_set < 0 || pipe(ends) ||
	    socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, datagrams))
		die("set-up");
	pipe_set = set_of(ends[0]);
	/* Not a byte is sent there: it stays on TCP. */
	connection(&client, &server);
	tcp_set = set_of(client);
}

/* How many bytes the kernel's TCP has received at both ends. */
static uint64_t by_tcp(void)
{
	uint64_t sum = 0;
	for (int i = 0; i < 2; i++) {
		/* As linux/tcp.h has it; glibc's tcp_info is shorter. */
		struct {
			char before[128];
			uint64_t bytes_received;
		} info = {0};
		socklen_t len = sizeof info;
		if (getsockopt(i ? to : from, IPPROTO_TCP, TCP_INFO, &info, &len) || len < sizeof info)
			die("TCP_INFO");
		sum += info.bytes_received;
	}
	return sum;
}

static void put(void) { send_all(from, bytes, SIZE); }
static void take_one(void) { recv_all(to, bytes, SIZE); }
static void take_many(void) { recv_all(to, bytes, SIZE * MANY); }
static void put_many(void)
{
	for (int i = 0; i < MANY; i++)
		put();
}

/* Connects two sockets, and exchanges bytes until those of neither direction go by TCP. */
static void open_link(void)
{
	connection(&from, &to);
	for (int i = 0; i < 5000; i++) {
		uint64_t before = by_tcp();
		put();
		take_one();
		send_all(to, bytes, SIZE);
		recv_all(from, bytes, SIZE);
		if (by_tcp() == before)
			return;
		usleep(1000);
	}
	fprintf(stderr, "the connection has not left TCP\n");
	exit(1);
}

static void open_set(void)
{
	open_link();
	set = set_of(to);
}

static void open_unread(void)
{
	open_set();
	put();
}

/* The calls. Each says whether it did what it was to do. */

static int refused(ssize_t n) { return n < 0 && errno == EAGAIN; }

static int untracked_read(void) { return read(zero, bytes, 1) == 1; }
static int untracked_write(void) { return write(null, bytes, 1) == 1; }
static int untracked_readv(void) { return readv(zero, &one, 1) == 1; }
static int untracked_writev(void) { return writev(null, &one, 1) == 1; }
static int untracked_recv(void) { return refused(recv(datagrams[0], bytes, 1, 0)); }
static int untracked_send(void)
{
	/* Full after some. */
	return send(datagrams[1], bytes, 1, 0) == 1 || errno == EAGAIN;
}
static int untracked_recvmsg(void)
{
	struct msghdr h = {.msg_iov = &one, .msg_iovlen = 1};
	return recvmsg(datagrams[1], &h, 0) < 0 && errno == EAGAIN;
}
static int untracked_poll(void)
{
	struct pollfd p = {.fd = zero, .events = POLLIN};
	return poll(&p, 1, 0) == 1;
}
static int untracked_epoll_wait(void) { return epoll_wait(empty_set, &event, 1, 0) == 0; }
static int untracked_epoll_wait_pipe(void) { return epoll_wait(pipe_set, &event, 1, 0) == 0; }
static int untracked_epoll_wait_tcp(void) { return epoll_wait(tcp_set, &event, 1, 0) == 0; }
static int untracked_epoll_pwait_tcp(void) { return epoll_pwait(tcp_set, &event, 1, 0, NULL) == 0; }
static int untracked_fcntl(void) { return fcntl(zero, F_GETFL) >= 0; }
static int untracked_ioctl(void) { return ioctl(ends[0], FIONREAD, &number) == 0; }
static int untracked_setsockopt(void)
{
	return setsockopt(datagrams[0], SOL_SOCKET, SO_PASSCRED, &(int){0}, sizeof(int)) == 0;
}
static int untracked_getsockopt(void)
{
	socklen_t len = sizeof number;
	return getsockopt(datagrams[0], SOL_SOCKET, SO_PASSCRED, &number, &len) == 0;
}

static int link_send(void) { return send(from, bytes, SIZE, MSG_NOSIGNAL) == SIZE; }
static int link_recv(void) { return recv(to, bytes, SIZE, 0) == SIZE; }
static int link_recv_empty(void) { return refused(recv(to, bytes, SIZE, MSG_DONTWAIT)); }
static int link_poll(void)
{
	struct pollfd p = {.fd = to, .events = POLLIN};
	return poll(&p, 1, -1) == 1 && p.revents == POLLIN;
}
static int link_epoll_wait(void)
{
	return epoll_wait(set, &event, 1, -1) == 1 && event.events == EPOLLIN;
}

#define UNTRACKED(CALL) {.name = "untracked " #CALL, .call = untracked_##CALL}

static const struct operation {
	const char *name;
	int (*call)(void);
	void (*open)(void);                /* of a link, if the call is to be on one */
	void (*before)(void), (*after)(void);
	int times;                         /* calls between `before` and `after`; 0 is 1 */
} operations[] = {
	UNTRACKED(read),
	UNTRACKED(write),
	UNTRACKED(readv),
	UNTRACKED(writev),
	UNTRACKED(recv),
	UNTRACKED(send),
	UNTRACKED(recvmsg),
	UNTRACKED(poll),
	UNTRACKED(epoll_wait),
	UNTRACKED(epoll_wait_pipe),
	UNTRACKED(epoll_wait_tcp),
	UNTRACKED(epoll_pwait_tcp),
	UNTRACKED(fcntl),
	UNTRACKED(ioctl),
	UNTRACKED(setsockopt),
	UNTRACKED(getsockopt),
	{.name = "send", .call = link_send, .open = open_link, .after = take_one},
	{.name = "send, 16 at once", .call = link_send, .open = open_link, .after = take_many,
	 .times = MANY},
	{.name = "send, watched by epoll", .call = link_send, .open = open_set, .after = take_one},
	{.name = "recv", .call = link_recv, .open = open_link, .before = put},
	{.name = "recv, 16 at once", .call = link_recv, .open = open_link, .before = put_many,
	 .times = MANY},
	{.name = "recv, EAGAIN", .call = link_recv_empty, .open = open_link},
	{.name = "poll", .call = link_poll, .open = open_link, .before = put, .after = take_one},
	{.name = "epoll_wait", .call = link_epoll_wait, .open = open_set, .before = put,
	 .after = take_one},
	{.name = "epoll_wait, told again", .call = link_epoll_wait, .open = open_unread},
};

static inline __attribute__((always_inline)) void make(const struct operation *o, int times)
{
	for (int i = 0; i < times; i++)
		if (!o->call())
			die(o->name);
}

static __attribute__((noinline, used)) void counted(const struct operation *o, int times)
{
	make(o, times);
}

static __attribute__((noinline, used)) void done(const struct operation *o)
{
	printf("%d %s\n", TIMES, o->name);
}

static void run(const struct operation *o, int calls, int counts)
{
	int times = o->times ? o->times : 1;
	for (int i = 0; i < calls; i += times) {
		if (o->before)
			o->before();
		if (counts)
			counted(o, times);
		else
			make(o, times);
		if (o->after)
			o->after();
	}
}

int main(void)
{
	open_untracked();
	for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
		const struct operation *o = &operations[i];
		uint64_t before = 0;
		if (o->open) {
			o->open();
			before = by_tcp();
		}
		run(o, WARM, 0);
		run(o, TIMES, 1);
		if (o->open) {
			if (by_tcp() != before) {
				fprintf(stderr, "%s: bytes have gone by TCP\n", o->name);
				return 1;
			}
			close(from);
			close(to);
			close(set);
			set = -1;
		}
		done(o);
	}
	return 0;
}
