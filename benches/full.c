/* Opens connections to an echo server (fan server) until no descriptor is left, and uses each of
 * them before the next and all of them again at the end. Prints how many there were. */
#include "bench.h"

static void exchange(int fd, size_t bytes)
{
	static char out[4096], in[4096];
	for (size_t i = 0; i < sizeof out; i++)
		out[i] = (char)(i * 7 + (size_t)fd);
	for (; bytes > 0; bytes -= sizeof out) {
		send_all(fd, out, sizeof out);
		if (!recv_all(fd, in, sizeof in) || memcmp(in, out, sizeof in) != 0) {
			fprintf(stderr, "the echo is wrong on descriptor %d\n", fd);
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in a;
	int fds[65536], count = 0, spare = open("/dev/null", O_RDONLY);
	if (argc != 3)
		usage("full ADDR PORT");
	a = address(argv[1], atoi(argv[2]));
	for (;;) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		if (fd < 0 && errno == EMFILE)
			break;
		if (fd < 0 || count == 65536)
			die("socket");
		if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
			die("connect");
		fds[count++] = fd;
		exchange(fd, 262144);
	}
	for (int i = 0; i < count; i++)
		exchange(fds[i], 65536);
	/* Whoever wants to write something down at the end needs a descriptor for it. */
	close(spare);
	for (int i = 0; i < count; i++)
		close(fds[i]);
	printf("opened=%d\n", count);
	return 0;
}
