/* Both ends of the endurance tests: checksummed streams in both directions at once, driven by
 * scripts/soak.py.
 *
 *     soak server ADDR WAITING [LEDGER]     prints `port N`, serves until its standard input ends
 *     soak client ADDR WAITING [LEDGER]     obeys lines on its standard input:
 *         go PORT SEED CONNECTIONS C2S S2C STYLE HOLD
 * The client answers `started` when all are connected; the server answers a line on its standard
 * input by `live N`, the connections it has.
 *
 * Every byte of a stream follows from (seed, direction, offset), so a reader knows at once whether
 * what it got is a prefix of what was sent. C2S and S2C are the lengths of the two streams of each
 * connection, 0 for endless. A finished connection is a line `conn seed=S end=E rx=N tx=N`, where E
 * is `ok` (both streams whole), `eof` or `reset` (a prefix, then that). The client ends a command
 * by `done`. With HOLD 1 it makes its connections one after the other, each only when the one
 * before is halfway through its streams, to which it comes in small steps, prints `holding` when all are, and goes on at the next
 * line.
 * A wrong byte or an impossible result is a line `WRONG ...` and exit status 1.
 *
 * STYLE, how a connection ends: 0 both shut down their direction; 1 the client closes; 2 the client
 * closes by reset; 3 the server closes. WAITING: `lt`, `et` level- or edge-triggered epoll on non-blocking sockets;
 * `threads` two a connection that block; `fork` one connection after the other, in the middle of which this end forks,
 * parent and child going on together (STYLE 0 only). LEDGER: see stream.h; of connections whose seeds are equal modulo
 * ENTRIES only the last is in it. */
#include "bench.h"
#include "stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define MAGIC 0x6563756c53ull
#define ENDLESS (1ull << 62)
#define PIECE (256u << 10)
#define STEP (8u << 10)

enum style { SHUTDOWN, CLIENT_CLOSES, CLIENT_RESETS, SERVER_CLOSES };
enum mode { LEVEL, EDGE, THREADS, FORK };
enum ending { OPEN, END_OF_FILE, RESET };

struct header {
	uint64_t magic, seed, c2s, s2c;
	uint32_t style, gated;
};

struct conn {
	int fd, is_client;
	struct header h;
	size_t header_done;
	uint64_t rx, tx;       /* offsets of the next byte, the header not counted */
	uint64_t rx_total, tx_total;
	uint64_t tx_goal;      /* how far this end may send for now */
	enum ending ending;
	int tx_dead, tx_reset, shut;
	int can_read, can_write, interest;
	uint64_t rng;
	struct entry *entry;
	struct conn *next;
	pthread_mutex_t lock;  /* THREADS: of rx, tx and tx_goal */
	pthread_cond_t moved;
};

static enum mode mode;
static int epfd;
static atomic_int live;
static struct entry *book;

static void wrong(const struct conn *c, const char *what)
{
	printf("WRONG seed=%llu %s side=%s rx=%llu/%llu tx=%llu/%llu errno=%d\n",
	       (unsigned long long)c->h.seed, what, c->is_client ? "client" : "server",
	       (unsigned long long)c->rx, (unsigned long long)c->rx_total, (unsigned long long)c->tx,
	       (unsigned long long)c->tx_total, errno);
	fflush(stdout);
	_exit(1);
}

/* --- one connection --- */

static uint64_t stream_key(const struct conn *c, int from_client)
{
	return mix(c->h.seed * 2 + (uint64_t)from_client + 77);
}

/* Which are they, if any of this stream's or of one beside it? */
static void wrong_bytes(const struct conn *c, const char *buf, size_t len)
{
	enum { BESIDE = 2, KNOWN = 16, WINDOW = 1 << 16 };
	static char stream[WINDOW + KNOWN];
	uint64_t key = stream_key(c, !c->is_client), end = c->rx + (64u << 20);
	size_t at = 0, i, known;
	while (at < len && same(key, c->rx, buf, at + 1))
		at++;
	printf("first wrong at %llu, %zu of %zu read:", (unsigned long long)(c->rx + at), at, len);
	for (i = at; i < len && i < at + 48; i++)
		printf(" %02x", (unsigned char)buf[i]);
	known = len - at < KNOWN ? len - at : KNOWN;
	for (int k = 0; known >= 4 && k < 2 * (2 * BESIDE + 1); k++) {
		struct conn other = {.h.seed = c->h.seed + (uint64_t)(k / 2) - BESIDE};
		for (uint64_t from = 0; from < end; from += WINDOW) {
			fill(stream_key(&other, k % 2), from, stream, sizeof stream);
			for (i = 0; i < WINDOW; i++)
				if (stream[i] == buf[at] && memcmp(stream + i, buf + at, known) == 0)
					printf("; they are %s's of seed %+d at %llu", k % 2 ? "the client" : "the server", k / 2 - BESIDE,
					       (unsigned long long)(from + i));
		}
	}
	printf("\n");
	wrong(c, "other bytes than were sent");
}

static struct conn *new_conn(int fd, int is_client)
{
	/* A child that is forked uses it, too. */
	struct conn *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t shared;
	if (c == MAP_FAILED)
		die("mmap");
	c->fd = fd;
	c->is_client = is_client;
	pthread_mutexattr_init(&shared);
	pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&c->lock, &shared);
	pthread_cond_init(&c->moved, NULL);
	live++;
	return c;
}

static void drop(struct conn *c)
{
	munmap(c, sizeof *c);
}

static void agree(struct conn *c)
{
	if (c->h.magic != MAGIC || c->h.style > SERVER_CLOSES)
		wrong(c, "header");
	c->rx_total = c->is_client ? c->h.s2c : c->h.c2s;
	c->tx_total = c->is_client ? c->h.c2s : c->h.s2c;
	c->tx_goal = c->is_client && c->h.gated ? c->tx_total / 2 : c->tx_total;
	c->rng = mix(c->h.seed) + (uint64_t)c->is_client;
	if (book) {
		c->entry = &book[c->h.seed % ENTRIES];
		*c->entry = (struct entry){.seed = c->h.seed};
	}
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Where an end that waits for the other has to stop. Up to its half, a gated stream goes to and fro in steps: at
 * once, all of it would be in TCP's buffers before the ends have met. */
static uint64_t tx_limit(const struct conn *c)
{
	uint64_t limit = c->tx_goal;
	int to_half = c->h.gated && c->rx < c->rx_total / 2;
	if (c->is_client)
		return to_half ? least(limit, c->rx + STEP) : limit;
	if (c->h.gated && c->rx < c->rx_total)
		limit = to_half ? least(c->tx_total / 2, c->rx) : c->tx_total / 2;
	if (c->h.style == CLIENT_RESETS && c->rx < c->rx_total && limit == c->tx_total)
		limit = c->tx_total - 1;
	return limit;
}

/* This end is the one to close, and everything has been said. */
static int my_close(const struct conn *c)
{
	if (c->tx < c->tx_total || c->rx < c->rx_total)
		return 0;
	switch (c->h.style) {
	case CLIENT_CLOSES:
	case CLIENT_RESETS:
		return c->is_client;
	case SERVER_CLOSES:
		return !c->is_client;
	default:
		return 0;
	}
}

/* Nothing is left to do. The end of the peer's stream does not end ours. */
static int over(const struct conn *c)
{
	if (c->ending == RESET || (c->ending != OPEN && c->header_done < sizeof c->h))
		return 1;
	if (c->ending == END_OF_FILE)
		return c->tx_dead || tx_limit(c) == c->tx;
	return c->header_done == sizeof c->h && my_close(c);
}

static void finish(struct conn *c)
{
	int whole = c->header_done == sizeof c->h && c->rx == c->rx_total && c->tx == c->tx_total;
	const char *end;
	if (whole && c->ending == RESET && c->h.style != CLIENT_RESETS)
		end = "reset";
	else if (whole)
		end = "ok";
	else
		/* A reset that a send was told of is not told again: the end of file after it is none. */
		end = c->ending == END_OF_FILE && !c->tx_reset ? "eof" : "reset";
	if (c->is_client && c->h.style == CLIENT_RESETS && whole) {
		struct linger now = {.l_onoff = 1, .l_linger = 0};
		if (setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) < 0)
			die("SO_LINGER");
	}
	if (close(c->fd) < 0)
		wrong(c, "close");
	printf("conn seed=%llu end=%s rx=%llu tx=%llu\n", (unsigned long long)c->h.seed, end,
	       (unsigned long long)c->rx, (unsigned long long)c->tx);
	fflush(stdout);
	c->fd = -1;
	live--;
}

/* One recv. 1: something came; 0: nothing now; the end is in c->ending. */
static int receive(struct conn *c, char *buf)
{
	size_t want;
	ssize_t n;
	if (c->header_done < sizeof c->h) {
		n = recv(c->fd, (char *)&c->h + c->header_done, sizeof c->h - c->header_done, 0);
		if (n > 0) {
			c->header_done += (size_t)n;
			if (c->header_done == sizeof c->h)
				agree(c);
			return 1;
		}
	} else {
		want = draw_size(&c->rng);
		n = recv(c->fd, buf, want, 0);
		if (n > 0) {
			if ((size_t)n > want)
				wrong(c, "more bytes than were asked for");
			if ((uint64_t)n > c->rx_total - c->rx || !same(stream_key(c, !c->is_client), c->rx, buf, (size_t)n))
				wrong_bytes(c, buf, (size_t)n);
			pthread_mutex_lock(&c->lock);
			c->rx += (uint64_t)n;
			if (c->entry)
				c->entry->rx = c->rx;
			pthread_cond_broadcast(&c->moved);
			pthread_mutex_unlock(&c->lock);
			return 1;
		}
	}
	if (n == 0) {
		c->ending = END_OF_FILE;
		return 0;
	}
	if (errno == EINTR)
		return 1;
	if (errno == EAGAIN && mode != THREADS)
		return 0;
	if (errno != ECONNRESET)
		wrong(c, "recv");
	c->ending = RESET;
	return 0;
}

/* One send. 1: something went; 0: not now, or never again. */
static int transmit(struct conn *c, char *buf, uint64_t limit, uint64_t *rng)
{
	size_t len = draw_size(rng);
	ssize_t n;
	if (len > limit - c->tx)
		len = (size_t)(limit - c->tx);
	fill(stream_key(c, c->is_client), c->tx, buf, len);
	if (c->entry)
		c->entry->trying = c->tx + len;
	n = send(c->fd, buf, len, MSG_NOSIGNAL);
	/* What was not taken must not matter any more. */
	memset(buf, 0xee, len);
	if (n > 0) {
		if ((size_t)n > len)
			wrong(c, "send took more than it got");
		pthread_mutex_lock(&c->lock);
		c->tx += (uint64_t)n;
		if (c->entry)
			c->entry->tx = c->tx;
		pthread_cond_broadcast(&c->moved);
		pthread_mutex_unlock(&c->lock);
		return 1;
	}
	if (n == 0)
		wrong(c, "send returned 0");
	if (errno == EINTR)
		return 1;
	if (errno == EAGAIN && mode != THREADS)
		return 0;
	if (errno != EPIPE && errno != ECONNRESET)
		wrong(c, "send");
	c->tx_reset = errno == ECONNRESET;
	c->tx_dead = 1;
	return 0;
}

static void shut_if_done(struct conn *c)
{
	if (c->h.style != SHUTDOWN || c->shut || c->tx_dead || c->tx < c->tx_total)
		return;
	if (shutdown(c->fd, SHUT_WR) < 0 && errno != ENOTCONN)
		wrong(c, "shutdown");
	c->shut = 1;
}

/* --- threads that block --- */

static void *sender(void *arg)
{
	struct conn *c = arg;
	char *buf = buffer(PIECE);
	uint64_t rng = mix(c->h.seed + 5), limit;
	for (;;) {
		pthread_mutex_lock(&c->lock);
		while ((limit = tx_limit(c)) <= c->tx && c->tx < c->tx_total && c->ending == OPEN)
			pthread_cond_wait(&c->moved, &c->lock);
		pthread_mutex_unlock(&c->lock);
		if (c->tx == c->tx_total || limit <= c->tx)
			break;
		if (!transmit(c, buf, limit, &rng))
			break;
	}
	shut_if_done(c);
	free(buf);
	return NULL;
}

/* The client's connections are freed by whoever joins their threads. */
static void *leave(struct conn *c)
{
	finish(c);
	if (!c->is_client)
		drop(c);
	return NULL;
}

static void *serve_blocking(void *arg)
{
	struct conn *c = arg;
	char *buf = buffer(PIECE);
	pthread_t t;
	while (c->ending == OPEN && c->header_done < sizeof c->h)
		receive(c, buf);
	if (c->ending != OPEN) {
		free(buf);
		return leave(c);
	}
	if (pthread_create(&t, NULL, sender, c) != 0)
		die("pthread_create");
	for (;;) {
		/* Whoever closes knows by the count that there is no more to read. */
		int closer = c->is_client ? c->h.style == CLIENT_CLOSES || c->h.style == CLIENT_RESETS
					  : c->h.style == SERVER_CLOSES;
		if (c->ending != OPEN || (closer && c->rx == c->rx_total))
			break;
		receive(c, buf);
	}
	pthread_mutex_lock(&c->lock);
	pthread_cond_broadcast(&c->moved);
	pthread_mutex_unlock(&c->lock);
	pthread_join(t, NULL);
	free(buf);
	return leave(c);
}

static void spawn(struct conn *c, pthread_t *t)
{
	pthread_t detached;
	if (pthread_create(t ? t : &detached, NULL, serve_blocking, c) != 0)
		die("pthread_create");
	if (!t)
		pthread_detach(detached);
}

/* --- epoll --- */

static void set_interest(struct conn *c, int op)
{
	int wants = mode == EDGE || tx_limit(c) > c->tx;
	struct epoll_event ev = {.data.ptr = c};
	ev.events = (wants ? EPOLLOUT : 0) | (mode == EDGE ? EPOLLET : 0);
	if (c->ending == OPEN)
		ev.events |= EPOLLIN | EPOLLRDHUP;
	if (op == EPOLL_CTL_MOD && (c->interest == (int)ev.events || c->tx_dead))
		return;
	if (epoll_ctl(epfd, op, c->fd, &ev) < 0)
		wrong(c, "epoll_ctl");
	c->interest = (int)ev.events;
}

/* A few calls in each direction; 1 if it may be worth coming back without an event. */
static int turn(struct conn *c, char *buf)
{
	int more = 0;
	for (int i = 0; i < 4 && c->can_read && c->ending == OPEN; i++)
		c->can_read = receive(c, buf);
	if (c->header_done == sizeof c->h) {
		for (int i = 0; i < 4 && c->can_write && !c->tx_dead && tx_limit(c) > c->tx; i++)
			c->can_write = transmit(c, buf, tx_limit(c), &c->rng);
		shut_if_done(c);
	}
	if (over(c)) {
		finish(c);
		return 0;
	}
	more = c->can_read || (c->can_write && !c->tx_dead && tx_limit(c) > c->tx);
	if (mode == LEVEL) {
		c->can_read = c->can_write = 0;
		set_interest(c, EPOLL_CTL_MOD);
		return 0;
	}
	return more;
}

static struct conn *conns;

static void enter(struct conn *c)
{
	nonblocking(c->fd);
	c->next = conns;
	conns = c;
	/* Nothing is known yet: try, without waiting for an edge. */
	c->can_read = c->can_write = mode == EDGE;
	set_interest(c, EPOLL_CTL_ADD);
}

/* A set may tell nothing of a descriptor that was closed: what it would have told by is another's memory. */
static int is_open(const struct conn *told)
{
	const struct conn *c = conns;
	while (c && c != told)
		c = c->next;
	return c != NULL;
}

/* One wait, then a turn for whoever has something to do. Events on the two other descriptors are
 * returned as bits: 1 the listener, 2 the standard input. */
static int round_of_epoll(char *buf, int *again)
{
	struct epoll_event ev[64];
	struct conn **link = &conns;
	int n = epoll_wait(epfd, ev, 64, *again ? 0 : -1), other = 0;
	if (n < 0 && errno != EINTR)
		die("epoll_wait");
	for (int i = 0; i < n; i++) {
		struct conn *c = ev[i].data.ptr;
		if (ev[i].data.u64 <= 2) {
			other |= (int)ev[i].data.u64;
			continue;
		}
		if (!is_open(c)) {
			fprintf(stderr, "event %#x under %p, whose connection was closed\n", ev[i].events, (void *)c);
			abort();
		}
		if (ev[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			c->can_read = 1;
		if (ev[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
			c->can_write = 1;
	}
	*again = 0;
	while (*link) {
		struct conn *c = *link;
		if (c->can_read || c->can_write)
			*again |= turn(c, buf);
		if (c->fd < 0) {
			*link = c->next;
			drop(c);
		} else {
			link = &c->next;
		}
	}
	return other;
}

static void watch(int fd, uint64_t tag)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = tag};
	if (epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev) < 0)
		die("epoll_ctl");
}

/* --- a process and its child --- */

enum part { READS = 1, WRITES = 2 };

/* Waits until something can be done of these parts, and does a little of it. 0: there is nothing left of them. */
static int do_some(struct conn *c, int parts, char *buf, uint64_t *rng)
{
	struct pollfd p = {.fd = c->fd};
	int wants_in, wants_out = c->header_done == sizeof c->h && !c->tx_dead && tx_limit(c) > c->tx;
	wants_in = parts & READS && c->ending == OPEN;
	wants_out = wants_out && parts & WRITES;
	if (!wants_in && !wants_out)
		return 0;
	p.events = (short)((wants_in ? POLLIN : 0) | (wants_out ? POLLOUT : 0));
	if (poll(&p, 1, -1) < 0)
		die("poll");
	if (wants_in && p.revents & (POLLIN | POLLHUP | POLLERR))
		receive(c, buf);
	if (wants_out && p.revents & (POLLOUT | POLLHUP | POLLERR)) {
		transmit(c, buf, tx_limit(c), rng);
		shut_if_done(c);
	}
	return 1;
}

/* One of two that take turns: `mine` says that it is this one's, `yours` tells the other so. */
static void in_turns(struct conn *c, int mine, int yours, char *buf, uint64_t *rng)
{
	char baton = 0;
	int more = 1;
	while (more) {
		if (read(mine, &baton, 1) != 1)
			break;
		for (int i = 1 + (int)(draw(rng) % 8); i > 0 && more; i--)
			more = do_some(c, READS | WRITES, buf, rng);
		if (write(yours, &baton, 1) != 1)
			break;
	}
}

/* One connection to its end. Somewhere in its first three quarters this end forks. Then one of the two reads and the
 * other writes, or both do both in turns. */
static void run_forked(struct conn *c)
{
	char *buf = buffer(PIECE);
	uint64_t rng = 0, at;
	int mine[2], its[2], status, parts;
	pid_t child;
	nonblocking(c->fd);
	while (c->header_done < sizeof c->h && do_some(c, READS, buf, &rng))
		;
	rng = mix(c->h.seed + 9) + (uint64_t)c->is_client;
	at = draw(&rng) % ((c->rx_total + c->tx_total) / 4 * 3 + 1);
	while (c->rx + c->tx < at && do_some(c, READS | WRITES, buf, &rng))
		;
	parts = (int)(draw(&rng) % 3);
	/* Each is told its turn by a pipe of its own. It keeps the reading end of the other's, so that the last word
	 * to one that is gone is no error, but not the writing end of its own: the end of the other is seen there. */
	if (pipe2(mine, O_CLOEXEC) < 0 || pipe2(its, O_CLOEXEC) < 0)
		die("pipe2");
	if (write(its[1], "", 1) != 1)
		die("pipe");
	child = fork();
	if (child < 0)
		die("fork");
	close(child == 0 ? its[1] : mine[1]);
	if (child == 0) {
		parts ^= READS | WRITES;
		rng++;
	}
	if (parts == READS || parts == WRITES)
		while (do_some(c, parts, buf, &rng))
			;
	else if (child == 0)
		in_turns(c, its[0], mine[1], buf, &rng);
	else
		in_turns(c, mine[0], its[1], buf, &rng);
	if (child == 0)
		exit(0);
	if (waitpid(child, &status, 0) != child || status != 0)
		wrong(c, "child");
	close(mine[0]);
	close(its[0]);
	close(its[1]);
	free(buf);
	finish(c);
}

/* --- the two programs --- */

static int server(const char *addr)
{
	int listener = serve(addr), again = 0;
	char *buf = buffer(PIECE), c;
	watch(listener, 1);
	watch(0, 2);
	for (;;) {
		int other = round_of_epoll(buf, &again);
		if (other & 1) {
			struct conn *c = new_conn(take(listener), 0);
			if (mode == THREADS) {
				spawn(c, NULL);
			} else if (mode == FORK) {
				run_forked(c);
				drop(c);
			} else {
				enter(c);
			}
		}
		if (other & 2) {
			if (read(0, &c, 1) <= 0)
				break;
			printf("live %d\n", live);
			fflush(stdout);
		}
	}
	return 0;
}

static void wait_for_line(char *line, size_t len)
{
	if (!fgets(line, (int)len, stdin))
		exit(0);
}

static void pause_for_line(const char *word)
{
	char line[256];
	printf("%s\n", word);
	fflush(stdout);
	wait_for_line(line, sizeof line);
}

static int halfway(const struct conn *c)
{
	return c->tx == c->tx_goal && c->rx >= c->rx_total / 2;
}

static void reach_half(struct conn *c, char *buf)
{
	int again = 1;
	if (mode == THREADS) {
		pthread_mutex_lock(&c->lock);
		while (!halfway(c))
			pthread_cond_wait(&c->moved, &c->lock);
		pthread_mutex_unlock(&c->lock);
		return;
	}
	while (!halfway(c))
		round_of_epoll(buf, &again);
}

static void let_go(struct conn *c)
{
	pthread_mutex_lock(&c->lock);
	c->tx_goal = c->tx_total;
	c->can_write = 1;
	pthread_cond_broadcast(&c->moved);
	pthread_mutex_unlock(&c->lock);
}

static void go(const char *addr, const char *line, char *buf)
{
	unsigned port, count, style, hold;
	unsigned long long seed, c2s, s2c;
	struct conn **all;
	pthread_t *threads;
	struct sockaddr_in a;
	int again = 1;
	if (sscanf(line, "go %u %llu %u %llu %llu %u %u", &port, &seed, &count, &c2s, &s2c, &style, &hold) != 7 ||
	    (hold && (style == CLIENT_RESETS || mode == FORK)) || (style != SHUTDOWN && mode == FORK)) {
		fprintf(stderr, "not a command: %s", line);
		exit(2);
	}
	all = calloc(count, sizeof *all);
	threads = calloc(count, sizeof *threads);
	if (!all || !threads)
		die("calloc");
	a = address(addr, (int)port);
	for (unsigned i = 0; i < count; i++) {
		struct conn *c = all[i] = new_conn(dial(&a), 1);
		c->h = (struct header){MAGIC, seed + i, c2s ? c2s : ENDLESS, s2c ? s2c : ENDLESS, style, hold};
		c->header_done = sizeof c->h;
		agree(c);
		send_all(c->fd, (char *)&c->h, sizeof c->h);
		if (mode == THREADS)
			spawn(c, &threads[i]);
		else if (mode != FORK)
			enter(c);
		if (hold)
			reach_half(c, buf);
	}
	printf("started\n");
	fflush(stdout);
	if (hold) {
		pause_for_line("holding");
		for (unsigned i = 0; i < count; i++)
			let_go(all[i]);
	}
	for (unsigned i = 0; i < count && (mode == THREADS || mode == FORK); i++) {
		if (mode == THREADS)
			pthread_join(threads[i], NULL);
		else
			run_forked(all[i]);
		drop(all[i]);
	}
	while (live > 0)
		round_of_epoll(buf, &again);
	free(all);
	free(threads);
	printf("done\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const char *const words = "soak server|client ADDR lt|et|threads|fork [LEDGER]";
	if (argc != 4 && argc != 5)
		usage(words);
	raise_fd_limit();
	if (strcmp(argv[3], "lt") == 0)
		mode = LEVEL;
	else if (strcmp(argv[3], "et") == 0)
		mode = EDGE;
	else if (strcmp(argv[3], "threads") == 0)
		mode = THREADS;
	else if (strcmp(argv[3], "fork") == 0)
		mode = FORK;
	else
		usage(words);
	if (argc == 5)
		book = ledger(argv[4]);
	epfd = epoll_create1(EPOLL_CLOEXEC);
	if (epfd < 0)
		die("epoll_create1");
	if (strcmp(argv[1], "server") == 0)
		return server(argv[2]);
	if (strcmp(argv[1], "client") == 0) {
		char line[256], *buf = buffer(PIECE);
		for (;;) {
			wait_for_line(line, sizeof line);
			go(argv[2], line, buf);
		}
	}
	usage(words);
}
