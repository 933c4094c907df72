/* What a program gains that is written for verbs: the measure of what Sluice reaches with one that is not. One RC queue
 * pair by RDMA CM, a ring of 256 KiB at each end, as Sluice's, data by RDMA WRITE with immediate (WRITE and SEND where the device has no
 * immediate), one copy into registered memory and one out of it, credit at half a ring, and a sleep on the completion
 * channel when there is nothing: no busy polling.
 *
 * `vst` is a one-way stream measured by the receiver, as st.c; `vpp` a ping-pong, as pp.c. */
#include "bench.h"

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

static const char text[] =
	"vst server ADDR RSIZE WARM_SECONDS | client ADDR PORT SIZE SECONDS\n"
	"       vpp server ADDR SIZE | client ADDR PORT SIZE SECONDS";

enum {
	RING = 256 << 10,
	/* Messages that may be without a credit, and what is posted for them and for the peer's credits. */
	UNCREDITED = 128,
	RECEIVES = 256,
	SENDS = 256,
	/* A completion is asked for once in so many posts. */
	SIGNAL = 8,
	/* Of an immediate or a SEND: a credit, not data. Below it messages and bytes. */
	CREDIT = 1 << 30,
	BYTES_BITS = 21,
};

/* Where the peer's ring is: private data of the connection. */
struct place {
	uint64_t addr;
	uint32_t rkey;
} __attribute__((packed));

struct end {
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	char *staging, *ring;
	struct ibv_mr *staging_mr, *ring_mr, *small_mr;
	struct place peer;
	/* iWARP: the length of each message comes by a SEND into here. */
	uint32_t small[RECEIVES];
	int has_imm, over;
	/* Bytes: given to the device, credited by the peer; arrived, taken by the program, credited to the peer. */
	uint64_t posted, credited, arrived, taken, told;
	/* Messages likewise. */
	uint64_t messages, messages_credited, messages_in, messages_told;
	unsigned in_queue, unsignalled;
	unsigned events_seen;
};

static void check(int failed, const char *what)
{
	if (failed)
		die(what);
}

static void expect(struct end *e, enum rdma_cm_event_type type, struct rdma_conn_param *param)
{
	struct rdma_cm_event *event;
	check(rdma_get_cm_event(e->events, &event), "rdma_get_cm_event");
	if (event->event != type) {
		fprintf(stderr, "%s, not %s\n", rdma_event_str(event->event), rdma_event_str(type));
		exit(1);
	}
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
		e->id = event->id;
	if (param) {
		if (event->param.conn.private_data_len < sizeof e->peer) {
			fprintf(stderr, "the peer does not say where its ring is\n");
			exit(1);
		}
		memcpy(&e->peer, event->param.conn.private_data, sizeof e->peer);
		*param = event->param.conn;
	}
	rdma_ack_cm_event(event);
}

static void post_receive(struct end *e, uint64_t slot)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)&e->small[slot], .length = 4, .lkey = e->small_mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = slot}, *bad;
	if (!e->has_imm) {
		wr.sg_list = &sge;
		wr.num_sge = 1;
	}
	check(ibv_post_recv(e->id->qp, &wr, &bad), "ibv_post_recv");
}

static void prepare(struct end *e)
{
	struct ibv_qp_init_attr attr = {
		.cap = {.max_send_wr = SENDS, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
		.qp_type = IBV_QPT_RC};
	e->has_imm = e->id->verbs->device->transport_type != IBV_TRANSPORT_IWARP;
	e->channel = ibv_create_comp_channel(e->id->verbs);
	check(!e->channel, "ibv_create_comp_channel");
	e->cq = ibv_create_cq(e->id->verbs, SENDS + RECEIVES, NULL, e->channel, 0);
	check(!e->cq, "ibv_create_cq");
	attr.send_cq = attr.recv_cq = e->cq;
	check(rdma_create_qp(e->id, NULL, &attr), "rdma_create_qp");
	e->staging = buffer(RING);
	e->ring = buffer(RING);
	e->staging_mr = ibv_reg_mr(e->id->pd, e->staging, RING, 0);
	e->ring_mr = ibv_reg_mr(e->id->pd, e->ring, RING, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	e->small_mr = ibv_reg_mr(e->id->pd, e->small, sizeof e->small, IBV_ACCESS_LOCAL_WRITE);
	check(!e->staging_mr || !e->ring_mr || !e->small_mr, "ibv_reg_mr");
	for (uint64_t i = 0; i < RECEIVES; i++)
		post_receive(e, i);
}

static struct rdma_conn_param param(struct end *e, struct place *own)
{
	*own = (struct place){(uintptr_t)e->ring, e->ring_mr->rkey};
	return (struct rdma_conn_param){.private_data = own, .private_data_len = sizeof *own,
		.retry_count = 6, .rnr_retry_count = 7, .responder_resources = 1, .initiator_depth = 1};
}

static struct end *start(void)
{
	struct end *e = calloc(1, sizeof *e);
	check(!e, "calloc");
	e->events = rdma_create_event_channel();
	check(!e->events, "rdma_create_event_channel");
	return e;
}

static struct end *wait_client(const char *addr)
{
	struct end *e = start();
	struct sockaddr_in a = address(addr, 0);
	struct rdma_conn_param got, say;
	struct rdma_cm_id *listener;
	struct place own;
	check(rdma_create_id(e->events, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_bind_addr(listener, (struct sockaddr *)&a), "rdma_bind_addr");
	check(rdma_listen(listener, 1), "rdma_listen");
	printf("port %d\n", ntohs(rdma_get_src_port(listener)));
	fflush(stdout);
	expect(e, RDMA_CM_EVENT_CONNECT_REQUEST, &got);
	prepare(e);
	say = param(e, &own);
	check(rdma_accept(e->id, &say), "rdma_accept");
	expect(e, RDMA_CM_EVENT_ESTABLISHED, NULL);
	return e;
}

static struct end *reach_server(const char *addr, int port)
{
	struct end *e = start();
	struct sockaddr_in a = address(addr, port);
	struct rdma_conn_param got, say;
	struct place own;
	check(rdma_create_id(e->events, &e->id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_resolve_addr(e->id, NULL, (struct sockaddr *)&a, 2000), "rdma_resolve_addr");
	expect(e, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	check(rdma_resolve_route(e->id, 2000), "rdma_resolve_route");
	expect(e, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	prepare(e);
	say = param(e, &own);
	check(rdma_connect(e->id, &say), "rdma_connect");
	expect(e, RDMA_CM_EVENT_ESTABLISHED, &got);
	return e;
}

static void on_message(struct end *e, uint32_t said, uint32_t len)
{
	if (said & CREDIT) {
		e->credited += said & ((1u << BYTES_BITS) - 1);
		e->messages_credited += (said & ~CREDIT) >> BYTES_BITS;
	} else if (e->has_imm ? len : said) {
		e->arrived += e->has_imm ? len : said;
		e->messages_in++;
	} else {
		e->over = 1;
	}
}

/* Takes what has completed; how much that was. */
static int reap(struct end *e)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(e->cq, 16, wc);
	check(n < 0, "ibv_poll_cq");
	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS) {
			fprintf(stderr, "%s\n", ibv_wc_status_str(wc[i].status));
			exit(1);
		}
		if (!(wc[i].opcode & IBV_WC_RECV)) {
			e->in_queue -= (unsigned)wc[i].wr_id;
			continue;
		}
		on_message(e, e->has_imm ? ntohl(wc[i].imm_data) : e->small[wc[i].wr_id], wc[i].byte_len);
		post_receive(e, wc[i].wr_id);
	}
	return n;
}

/* Sleeps until something has completed. */
static void wait_news(struct end *e)
{
	struct ibv_cq *cq;
	void *context;
	if (reap(e))
		return;
	check(ibv_req_notify_cq(e->cq, 0), "ibv_req_notify_cq");
	if (reap(e))
		return;
	check(ibv_get_cq_event(e->channel, &cq, &context), "ibv_get_cq_event");
	if (++e->events_seen == 64) {
		ibv_ack_cq_events(e->cq, 64);
		e->events_seen = 0;
	}
	reap(e);
}

static void post(struct end *e, uint64_t from, uint32_t len, uint32_t said)
{
	uint64_t at = from % RING;
	struct ibv_sge sge = {.addr = (uintptr_t)e->staging + at, .length = len, .lkey = e->staging_mr->lkey};
	struct ibv_sge word = {.addr = (uintptr_t)&said, .length = 4};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = len > 0,
		.opcode = e->has_imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
		.imm_data = htonl(said),
		.wr.rdma = {.remote_addr = e->peer.addr + at, .rkey = e->peer.rkey}};
	struct ibv_send_wr send = {.sg_list = &word, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE};
	struct ibv_send_wr *first = &wr, *last = &wr, *bad;

	if (len && len <= 64)
		wr.send_flags = IBV_SEND_INLINE;
	if (!e->has_imm) {
		/* Data without its length, then the length; a credit is the second alone. */
		wr.next = last = &send;
		first = len ? &wr : &send;
	}
	while (e->in_queue + 2 > SENDS)
		wait_news(e);
	e->unsignalled += first == last ? 1 : 2;
	e->in_queue += first == last ? 1 : 2;
	if (e->unsignalled >= SIGNAL) {
		last->send_flags |= IBV_SEND_SIGNALED;
		last->wr_id = e->unsignalled;
		e->unsignalled = 0;
	}
	check(ibv_post_send(e->id->qp, first, &bad), "ibv_post_send");
}

static void tell_credit(struct end *e)
{
	uint32_t bytes = (uint32_t)(e->taken - e->told), messages = (uint32_t)(e->messages_in - e->messages_told);
	/* Messages whose bytes lie in the ring are told with those of the last one taken. */
	if (bytes < RING / 2 && messages < UNCREDITED / 2)
		return;
	e->told += bytes;
	e->messages_told += messages;
	post(e, 0, 0, CREDIT | messages << BYTES_BITS | bytes);
}

static void put(struct end *e, const char *buf, size_t len)
{
	while (len > 0) {
		uint64_t room = RING - (e->posted - e->credited), edge = RING - e->posted % RING;
		size_t n = len < room ? len : room;
		if (n > edge)
			n = edge;
		if (n == 0 || e->messages - e->messages_credited == UNCREDITED) {
			wait_news(e);
			continue;
		}
		memcpy(e->staging + e->posted % RING, buf, n);
		post(e, e->posted, (uint32_t)n, e->has_imm ? 0 : (uint32_t)n);
		e->posted += n;
		e->messages++;
		buf += n;
		len -= n;
	}
}

/* At least one byte; 0: the peer has no more. */
static size_t get(struct end *e, char *buf, size_t len)
{
	size_t n, edge;
	while (e->arrived == e->taken && !e->over)
		wait_news(e);
	n = e->arrived - e->taken;
	edge = RING - e->taken % RING;
	n = n < len ? n : len;
	n = n < edge ? n : edge;
	memcpy(buf, e->ring + e->taken % RING, n);
	e->taken += n;
	tell_credit(e);
	return n;
}

static int receive(const char *addr, size_t rsize, uint64_t warm)
{
	struct end *e = wait_client(addr);
	char *buf = buffer(rsize);
	double cpu = cpu_secs();
	uint64_t begin = now_ns(), from = 0, bytes = 0, total = 0, calls = 0;
	size_t n;

	while ((n = get(e, buf, rsize)) > 0) {
		total += n;
		if (from) {
			bytes += n;
		} else if ((++calls & 63) == 0 || rsize >= 4096) {
			uint64_t t = now_ns();
			if (t - begin >= warm)
				from = t;
		}
	}
	if (!from) {
		fprintf(stderr, "the stream ended during the warm-up\n");
		return 1;
	}
	printf("bytes=%llu total_bytes=%llu secs=%.6f cpu=%.6f\n", (unsigned long long)bytes, (unsigned long long)total,
	       (double)(now_ns() - from) / 1e9, cpu_secs() - cpu);
	/* The client has its word that all has come. */
	post(e, 0, 0, 0);
	expect(e, RDMA_CM_EVENT_DISCONNECTED, NULL);
	return 0;
}

static int transmit(const char *addr, int port, size_t size, uint64_t secs)
{
	struct end *e = reach_server(addr, port);
	char *buf = buffer(size);
	double cpu = cpu_secs();
	uint64_t begin = now_ns(), messages = 0, every = size >= 65536 ? 1 : 65536 / size;

	do
		put(e, buf, size);
	while (++messages % every || now_ns() - begin < secs);
	cpu = cpu_secs() - cpu;
	post(e, 0, 0, 0);
	while (!e->over)
		wait_news(e);
	printf("messages=%llu cpu=%.6f\n", (unsigned long long)messages, cpu);
	rdma_disconnect(e->id);
	return 0;
}

static int answer(const char *addr, size_t size)
{
	struct end *e = wait_client(addr);
	char *buf = buffer(size);
	for (;;) {
		for (size_t got = 0; got < size;) {
			size_t n = get(e, buf + got, size - got);
			if (n == 0) {
				post(e, 0, 0, 0);
				expect(e, RDMA_CM_EVENT_DISCONNECTED, NULL);
				return 0;
			}
			got += n;
		}
		put(e, buf, size);
	}
}

static int ask(const char *addr, int port, size_t size, uint64_t secs)
{
	struct end *e = reach_server(addr, port);
	char *buf = buffer(size);
	double cpu = cpu_secs();
	uint64_t begin = now_ns(), trips = 0, end;
	do {
		put(e, buf, size);
		for (size_t got = 0; got < size;)
			got += get(e, buf + got, size - got);
		trips++;
		end = now_ns();
	} while (end - begin < secs);
	cpu = cpu_secs() - cpu;
	printf("round_trips=%llu secs=%.6f cpu=%.6f\n", (unsigned long long)trips, (double)(end - begin) / 1e9, cpu);
	post(e, 0, 0, 0);
	while (!e->over)
		wait_news(e);
	rdma_disconnect(e->id);
	return 0;
}

int main(int argc, char **argv)
{
	const char *name = strrchr(argv[0], '/');
	int pingpong = strcmp(name ? name + 1 : argv[0], "vpp") == 0;
	int server = argc > 1 && strcmp(argv[1], "server") == 0, client = argc > 1 && strcmp(argv[1], "client") == 0;

	if (pingpong && server && argc == 4)
		return answer(argv[2], size_arg(argv[3], text));
	if (!pingpong && server && argc == 5)
		return receive(argv[2], size_arg(argv[3], text), secs_arg(argv[4], text));
	if (client && argc == 6)
		return (pingpong ? ask : transmit)(argv[2], atoi(argv[3]), size_arg(argv[4], text), secs_arg(argv[5], text));
	usage(text);
}
