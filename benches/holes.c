/* How long does a touch of shared memory take while who else has the memory file punches holes into it as fast as it can? What a
 * hostile peer can do to whoever shares an arena with it (docs/threat-model.md). By itself: no library, no connection.
 *
 *   holes SECONDS PUNCHERS [MIB]    PUNCHERS processes punch; 0 is what the machine does without any */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void punch(int fd, off_t len)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		/* As many pages as there can be: each hole takes as long as it may. */
		if (fallocate(fd, 0, 0, len) || fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, len))
			_exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3 || atoi(argv[2]) > MOST)
		return fprintf(stderr, "usage: holes SECONDS PUNCHERS [MIB]\n"), 2;
	int punchers = atoi(argv[2]);
	off_t len = (argc > 3 ? atol(argv[3]) : 516) << 20;
	int fd = memfd_create("holes", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, len) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return perror("memfd_create"), 1;
	volatile char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return perror("mmap"), 1;
	pid_t pids[MOST];
	for (int i = 0; i < punchers; i++) {
		pids[i] = fork();
		if (!pids[i])
			punch(fd, len);
	}
	double end = now_ms() + atof(argv[1]) * 1e3, worst = 0;
	long count = 0, over[3] = {0};
	for (uint64_t r = 88172645463325252; now_ms() < end; count++) {
		r ^= r << 13, r ^= r >> 7, r ^= r << 17;
		double before = now_ms();
		at[r % len] = 1;
		double took = now_ms() - before;
		worst = took > worst ? took : worst;
		over[0] += took > 1;
		over[1] += took > 10;
		over[2] += took > 100;
	}
	printf("%d punching holes of %ld MiB: %ld touches, %.1f ms at worst, %ld over 1 ms, %ld over 10 ms, %ld over 100 ms\n", punchers,
		   (long)(len >> 20), count, worst, over[0], over[1], over[2]);
	for (int i = 0; i < punchers; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	return 0;
}
