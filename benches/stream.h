/* Streams whose every byte follows from a key and its offset, and a ledger in shared memory of how far an end has come
 * with each of its connections: whoever kills it can read there what it had been told. */
#ifndef SLUICE_STREAM_H
#define SLUICE_STREAM_H

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

static inline uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static inline uint64_t word_at(uint64_t key, uint64_t index)
{
	return mix(key + (index + 1) * 0x9e3779b97f4a7c15ull);
}

static inline void fill(uint64_t key, uint64_t at, char *buf, size_t len)
{
	while (len > 0) {
		uint64_t w = word_at(key, at >> 3);
		size_t skip = at & 7, n = 8 - skip < len ? 8 - skip : len;
		memcpy(buf, (char *)&w + skip, n);
		buf += n;
		at += n;
		len -= n;
	}
}

static inline int same(uint64_t key, uint64_t at, const char *buf, size_t len)
{
	while (len > 0) {
		uint64_t w = word_at(key, at >> 3);
		size_t skip = at & 7, n = 8 - skip < len ? 8 - skip : len;
		if (memcmp(buf, (char *)&w + skip, n) != 0)
			return 0;
		buf += n;
		at += n;
		len -= n;
	}
	return 1;
}

static inline uint64_t draw(uint64_t *rng)
{
	*rng += 0x9e3779b97f4a7c15ull;
	return mix(*rng);
}

/* Sizes of all orders: bytes, kilobytes, the whole buffer. */
static inline size_t draw_size(uint64_t *rng)
{
	uint64_t r = draw(rng);
	size_t most = (size_t)1 << (r % 19);
	return 1 + (size_t)(r >> 8) % most;
}

/* --- the ledger --- */

#define ENTRIES 64

struct entry {
	uint64_t seed, rx, tx;
	uint64_t trying;       /* `tx` if the call under way takes all that it is given */
};

/* The ledger in `path`, which this makes. */
static inline struct entry *ledger(const char *path)
{
	size_t len = ENTRIES * sizeof(struct entry);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct entry *all;
	if (fd < 0 || ftruncate(fd, (off_t)len) < 0)
		die(path);
	all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (all == MAP_FAILED)
		die("mmap");
	close(fd);
	return all;
}

#endif
