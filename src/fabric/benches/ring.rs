//! The hot path on one thread: what a message costs before any cache line travels.
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that cannot be set up has nothing to measure"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sluice_fabric::cursors::{Word, demote};
use sluice_fabric::doorbell::Slot;
use sluice_fabric::ring::Ring;
use sluice_fabric::sync::fence_after_rmw;
use std::hint::black_box;

/// A ring for the largest message of this file.
const RING_LEN: u32 = 128 << 10;

/// Publish, then consume: both words and both copies.
fn publish_consume(c: &mut Criterion) {
    let mut group = c.benchmark_group("publish+consume");
    for (name, len) in [("64 B", 64usize), ("4 KiB", 4 << 10), ("64 KiB", 64 << 10)] {
        let mut memory = vec![0u8; RING_LEN as usize];
        // SAFETY: the vector is that long and outlives the ring.
        let ring = unsafe { Ring::new(memory.as_mut_ptr(), RING_LEN) };
        let (tail, head) = (Word::new(), Word::new());
        let (from, mut to) = (vec![1u8; len], vec![0u8; len]);
        let mut at = 0u64;
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let next = at + len as u64;
                assert!(at - head.read().offset <= ring.len() - len as u64);
                // SAFETY: `from` and `to` are `len` bytes, the ring is longer, and one thread plays
                // both ends in turn.
                unsafe { ring.copy_in(at, black_box(from.as_ptr()), len) };
                tail.advance(at, next).unwrap();
                assert!(tail.read().offset == next);
                // SAFETY: as above.
                unsafe { ring.copy_out(at, black_box(to.as_mut_ptr()), len) };
                head.advance(at, next).unwrap();
                at = next;
            });
        });
    }
    group.finish();
}

/// The words alone: a compare-and-swap at each end.
fn words(c: &mut Criterion) {
    let (tail, head) = (Word::new(), Word::new());
    let mut at = 0u64;
    c.bench_function("words: advance both", |b| {
        b.iter(|| {
            tail.advance(at, at + 64).unwrap();
            head.advance(at, black_box(tail.read().offset)).unwrap();
            at += 64;
        });
    });
    c.bench_function("words: demote", |b| {
        b.iter(|| {
            let (tail, head) = (Word::new(), Word::new());
            black_box(demote(&tail, &head))
        });
    });
}

/// What a waker pays after its publish.
fn wake(c: &mut Criterion) {
    let mut group = c.benchmark_group("wake");
    let slot = Slot::default();
    group.bench_function("bit set, owner awake", |b| {
        let _ = slot.wake(70);
        b.iter(|| {
            fence_after_rmw();
            black_box(slot.wake(black_box(70)))
        });
    });
    group.bench_function("bit not set, taken at once", |b| {
        b.iter(|| {
            fence_after_rmw();
            black_box(slot.wake(black_box(70)));
            slot.take_ready(|stream, _| {
                black_box(stream);
            });
        });
    });
    group.bench_function("owner announced, to be rung", |b| {
        b.iter(|| {
            slot.announce();
            black_box(slot.wake(black_box(70)))
        });
    });
    group.bench_function("nobody sleeps, no marks", |b| {
        b.iter(|| {
            fence_after_rmw();
            black_box(slot.must_ring())
        });
    });
    group.bench_function("announce and retract", |b| {
        b.iter(|| {
            slot.announce();
            slot.retract();
        });
    });
    group.finish();
}

criterion_group!(benches, publish_consume, words, wake);
criterion_main!(benches);
