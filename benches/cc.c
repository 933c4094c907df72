/* Connection churn: connect, EXCHANGES times SIZE bytes each way (once one byte if not said),
 * close; COUNT times at most. The client closes first, so the TIME_WAIT entries are its own; the
 * driver gives every run an address of its own in 127/8, so that no run meets the entries of
 * another. */
#include "bench.h"

static const char text[] =
	"cc server ADDR [EXCHANGES SIZE] | client ADDR PORT COUNT SECONDS [EXCHANGES SIZE]";

struct talk {
	size_t exchanges, size;
	char *buf;
};

static struct talk talk_of(char **argv)
{
	struct talk t = {.exchanges = 1, .size = 1};
	if (argv) {
		t.exchanges = size_arg(argv[0], text);
		t.size = size_arg(argv[1], text);
	}
	t.buf = buffer(t.size);
	return t;
}

/* One connection of the client. What begins with a 'q' is the last one. */
static void ask(const struct sockaddr_in *a, struct talk *t, char first)
{
	int fd = dial(a);
	for (size_t i = 0; i < t->exchanges; i++) {
		t->buf[0] = first;
		send_all(fd, t->buf, t->size);
		if (!recv_all(fd, t->buf, t->size) || t->buf[0] != first) {
			fprintf(stderr, "no answer\n");
			exit(1);
		}
	}
	close(fd);
}

static int server(const char *addr, struct talk *t)
{
	int listener = serve(addr);
	double cpu = cpu_secs();
	for (char c = 'c'; c != 'q';) {
		int fd = take(listener);
		for (size_t i = 0; i < t->exchanges; i++) {
			if (!recv_all(fd, t->buf, t->size)) {
				fprintf(stderr, "a connection without its bytes\n");
				return 1;
			}
			send_all(fd, t->buf, t->size);
		}
		c = t->buf[0];
		if (c != 'q' && recv_all(fd, t->buf, 1)) {
			fprintf(stderr, "a byte too many\n");
			return 1;
		}
		close(fd);
	}
	printf("cpu=%.6f\n", cpu_secs() - cpu);
	return 0;
}

static int client(char **argv, struct talk *t)
{
	struct sockaddr_in a = address(argv[2], atoi(argv[3]));
	uint64_t count = size_arg(argv[4], text), secs = secs_arg(argv[5], text), ops = 0;
	double cpu = cpu_secs();
	uint64_t start = now_ns(), now = start;
	while (ops < count && now - start < secs) {
		ask(&a, t, 'c');
		ops++;
		now = now_ns();
	}
	cpu = cpu_secs() - cpu;
	ask(&a, t, 'q');
	printf("ops=%llu total=%llu secs=%.6f cpu=%.6f\n", (unsigned long long)ops,
	       (unsigned long long)ops, (double)(now - start) / 1e9, cpu);
	return 0;
}

int main(int argc, char **argv)
{
	if ((argc == 3 || argc == 5) && strcmp(argv[1], "server") == 0) {
		struct talk t = talk_of(argc == 5 ? argv + 3 : NULL);
		return server(argv[2], &t);
	}
	if ((argc == 6 || argc == 8) && strcmp(argv[1], "client") == 0) {
		struct talk t = talk_of(argc == 8 ? argv + 6 : NULL);
		return client(argv, &t);
	}
	usage(text);
}
