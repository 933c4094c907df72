/* Shared by the benchmark programs: plain C on the sockets API, knowing nothing of Sluice.
 *
 * Every program is `NAME server ADDR ...` or `NAME client ADDR PORT ...`. A server prints
 * `port N` as soon as it listens, serves one client process and ends. Both print one closing line
 * of key=value pairs, which scripts/bench.py reads. A failed system call ends the program with
 * status 1 and a line that names it: a benchmark must not measure errors. */
#ifndef SLUICE_BENCH_H
#define SLUICE_BENCH_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static inline void usage(const char *text)
{
	fprintf(stderr, "usage: %s\n", text);
	exit(2);
}

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CPU seconds of this process so far, all threads. */
static inline double cpu_secs(void)
{
	struct rusage u;
	if (getrusage(RUSAGE_SELF, &u) < 0)
		die("getrusage");
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static inline void raise_fd_limit(void)
{
	struct rlimit r;
	if (getrlimit(RLIMIT_NOFILE, &r) < 0)
		die("getrlimit");
	r.rlim_cur = r.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &r) < 0)
		die("setrlimit");
}

static inline struct sockaddr_in address(const char *addr, int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	if (inet_pton(AF_INET, addr, &a.sin_addr) != 1) {
		fprintf(stderr, "not an IPv4 address: %s\n", addr);
		exit(2);
	}
	return a;
}

static inline void nodelay(int fd)
{
	int one = 1;
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
		die("TCP_NODELAY");
}

static inline void nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		die("O_NONBLOCK");
}

/* Listens on a port of the kernel's choice and announces it. */
static inline int serve(const char *addr)
{
	struct sockaddr_in a = address(addr, 0);
	socklen_t len = sizeof a;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0)
		die("socket");
	if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0)
		die("bind");
	if (listen(fd, 4096) < 0)
		die("listen");
	if (getsockname(fd, (struct sockaddr *)&a, &len) < 0)
		die("getsockname");
	printf("port %d\n", ntohs(a.sin_port));
	fflush(stdout);
	return fd;
}

static inline int take(int listener)
{
	int fd = accept(listener, NULL, NULL);
	if (fd < 0)
		die("accept");
	nodelay(fd);
	return fd;
}

static inline int dial(const struct sockaddr_in *a)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0)
		die("socket");
	if (connect(fd, (const struct sockaddr *)a, sizeof *a) < 0)
		die("connect");
	nodelay(fd);
	return fd;
}

/* Blocking: the whole buffer. */
static inline void send_all(int fd, const char *buf, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, buf, len, MSG_NOSIGNAL);
		if (n < 0)
			die("send");
		buf += n;
		len -= (size_t)n;
	}
}

/* Blocking: the whole buffer; 0 if the stream ended before its first byte. */
static inline int recv_all(int fd, char *buf, size_t len)
{
	size_t got = 0;
	while (got < len) {
		ssize_t n = recv(fd, buf + got, len - got, 0);
		if (n < 0)
			die("recv");
		if (n == 0) {
			if (got == 0)
				return 0;
			fprintf(stderr, "stream ended inside a message\n");
			exit(1);
		}
		got += (size_t)n;
	}
	return 1;
}

static inline char *buffer(size_t len)
{
	char *p = malloc(len);
	if (!p)
		die("malloc");
	memset(p, 'x', len);
	return p;
}

static inline size_t size_arg(const char *s, const char *text)
{
	char *end;
	unsigned long v = strtoul(s, &end, 10);
	if (*s == '\0' || *end != '\0' || v == 0 || v > (1ul << 30))
		usage(text);
	return v;
}

static inline uint64_t secs_arg(const char *s, const char *text)
{
	char *end;
	double v = strtod(s, &end);
	if (*s == '\0' || *end != '\0' || v < 0 || v > 3600)
		usage(text);
	return (uint64_t)(v * 1e9);
}

/* Latencies: 32 buckets to the octave, so that a quantile is within about 3 %. */
#define LAT_SUB 32
struct latency {
	uint64_t count;
	uint64_t bucket[64 * LAT_SUB];
};

static inline void latency_add(struct latency *l, uint64_t ns)
{
	unsigned i;
	if (ns < LAT_SUB) {
		i = (unsigned)ns;
	} else {
		unsigned octave = 63u - (unsigned)__builtin_clzll(ns);
		i = (octave - 4) * LAT_SUB + (unsigned)((ns >> (octave - 5)) & (LAT_SUB - 1));
	}
	l->bucket[i]++;
	l->count++;
}

static inline uint64_t latency_at(const struct latency *l, double quantile)
{
	uint64_t seen = 0, want = (uint64_t)((double)l->count * quantile);
	for (unsigned i = 0; i < 64 * LAT_SUB; i++) {
		seen += l->bucket[i];
		if (seen > want) {
			if (i < LAT_SUB)
				return i;
			unsigned octave = i / LAT_SUB + 4;
			return (uint64_t)(LAT_SUB + i % LAT_SUB) << (octave - 5);
		}
	}
	return 0;
}

/* One latency in this many is measured, so that reading the clock does not become the benchmark. */
#define LAT_EVERY 16

#endif
