/* Connection churn: connect, one byte each way, close; COUNT times at most. The client closes
 * first, so the TIME_WAIT entries are its own; the driver gives every run an address of its own
 * in 127/8, so that no run meets the entries of another. */
#include "bench.h"

static const char text[] = "cc server ADDR | client ADDR PORT COUNT SECONDS";

int main(int argc, char **argv)
{
	char c = 'c';
	if (argc == 3 && strcmp(argv[1], "server") == 0) {
		int listener = serve(argv[2]);
		double cpu = cpu_secs();
		for (;;) {
			int fd = take(listener);
			if (!recv_all(fd, &c, 1)) {
				fprintf(stderr, "a connection without its byte\n");
				return 1;
			}
			send_all(fd, &c, 1);
			if (c != 'q' && recv_all(fd, &c, 1)) {
				fprintf(stderr, "a byte too many\n");
				return 1;
			}
			close(fd);
			if (c == 'q')
				break;
		}
		printf("cpu=%.6f\n", cpu_secs() - cpu);
		return 0;
	}
	if (argc == 6 && strcmp(argv[1], "client") == 0) {
		struct sockaddr_in a = address(argv[2], atoi(argv[3]));
		uint64_t count = size_arg(argv[4], text), secs = secs_arg(argv[5], text), ops = 0;
		double cpu = cpu_secs();
		uint64_t start = now_ns(), t = start;
		while (ops < count && t - start < secs) {
			int fd = dial(&a);
			c = 'c';
			send_all(fd, &c, 1);
			if (!recv_all(fd, &c, 1) || c != 'c') {
				fprintf(stderr, "no answer\n");
				return 1;
			}
			close(fd);
			ops++;
			t = now_ns();
		}
		cpu = cpu_secs() - cpu;
		int fd = dial(&a);
		c = 'q';
		send_all(fd, &c, 1);
		recv_all(fd, &c, 1);
		close(fd);
		printf("ops=%llu total=%llu secs=%.6f cpu=%.6f\n", (unsigned long long)ops,
		       (unsigned long long)ops, (double)(t - start) / 1e9, cpu);
		return 0;
	}
	usage(text);
}
