/* Starts a program in a narrow place:
 *
 *     box limit N -- COMMAND        RLIMIT_NOFILE, soft and hard
 *     box refuse ERRNO NR,NR -- COMMAND   these system calls fail with this error number
 *     box kill NR,NR,... -- COMMAND       these system calls kill the process
 *     box allow NR,NR,... -- COMMAND      all other system calls kill the process
 *
 * NR=VALUE means the call only with this first argument. Numbers, not names: the caller knows the
 * table of the running machine. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define MOST 200

static void die(const char *what)
{
	fprintf(stderr, "box: %s: %s\n", what, strerror(errno));
	exit(125);
}

static void usage(void)
{
	fprintf(stderr, "usage: box limit N | refuse ERRNO NR,NR... | kill NR,NR... | allow NR,NR... "
			"-- COMMAND\n");
	exit(125);
}

/* `match` is the verdict on the listed calls, `other` on the rest. */
static void filter(char *list, unsigned match, unsigned other)
{
	struct sock_filter code[MOST * 5 + 2];
	struct sock_fprog program = {.filter = code};
	int n = 0;
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (char *word = strtok(list, ","); word; word = strtok(NULL, ",")) {
		char *value = strchr(word, '=');
		if (n > MOST * 5 - 4)
			usage();
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(word), 0,
							 value ? 4 : 1);
		if (value) {
			code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
								 offsetof(struct seccomp_data, args));
			code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
								 (unsigned)atoi(value + 1), 0, 1);
		}
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, match);
		if (value)
			code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
								 offsetof(struct seccomp_data, nr));
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, other);
	program.len = (unsigned short)n;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		die("no_new_privs");
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		die("seccomp");
}

int main(int argc, char **argv)
{
	int at;
	if (argc > 4 && strcmp(argv[1], "limit") == 0) {
		struct rlimit r = {.rlim_cur = (rlim_t)atoi(argv[2]), .rlim_max = (rlim_t)atoi(argv[2])};
		if (setrlimit(RLIMIT_NOFILE, &r) < 0)
			die("RLIMIT_NOFILE");
		at = 3;
	} else if (argc > 5 && strcmp(argv[1], "refuse") == 0) {
		filter(argv[3], SECCOMP_RET_ERRNO | ((unsigned)atoi(argv[2]) & SECCOMP_RET_DATA), SECCOMP_RET_ALLOW);
		at = 4;
	} else if (argc > 4 && strcmp(argv[1], "kill") == 0) {
		filter(argv[2], SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW);
		at = 3;
	} else if (argc > 4 && strcmp(argv[1], "allow") == 0) {
		filter(argv[2], SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS);
		at = 3;
	} else {
		usage();
	}
	if (strcmp(argv[at], "--") != 0 || !argv[at + 1])
		usage();
	execvp(argv[at + 1], argv + at + 1);
	die(argv[at + 1]);
}
