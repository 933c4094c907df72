//! The watch over a ring that a non-blocking writer found full. The control thread finds a reader
//! that has stopped reading, by a look when the patience with it ends. A reader that is only slow
//! costs its writer one word: no clock, and the control thread is woken once in that time.
//!
//! ```text
//!   writer: found -> Some(ring): adds a job, told(ring)
//!   control thread: watch(ring), then look(ring) ... end(ring) or again
//!           found -> None: the control thread watches, or will
//! ```
//!
//! A handler may jump out between `found` and `told`. Then the next writer that finds the ring full
//! adds another job, and one of the two jobs watches.

use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::cursors::OFFSET_MAX;

/// See the [module](self). From the lowest bit on: [`TOLD`] and [`WATCHED`]; the reader's count
/// when the ring was last found full, plus one (0: not found full); the [`Epoch`] of the ring.
#[derive(Debug, Default)]
pub struct Full(AtomicU64);

/// There is a job for the control thread.
const TOLD: u64 = 1;
/// The control thread watches.
const WATCHED: u64 = 2;
const WHO: u64 = TOLD | WATCHED;
const AT_SHIFT: u32 = 2;
const RING_SHIFT: u32 = 57;
const AT_BITS: u64 = (1 << (RING_SHIFT - AT_SHIFT)) - 1;
const _: () = assert!(OFFSET_MAX < AT_BITS);

/// Tells rings apart: the next 127 rings of a socket have other epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

const fn ring(word: u64) -> Epoch {
    Epoch(word >> RING_SHIFT)
}

/// The reader's count, plus one.
const fn after(word: u64) -> u64 {
    word >> AT_SHIFT & AT_BITS
}

const fn word(ring: Epoch, at: u64, who: u64) -> u64 {
    ring.0 << RING_SHIFT | (at + 1) << AT_SHIFT | who
}

impl Full {
    /// Begins a new epoch, in which nobody watches.
    pub fn reset(&self) {
        let next = |word: u64| Some((ring(word).0 + 1) << RING_SHIFT);
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
    }

    /// A writer found the ring full when the reader had read `at`. `Some`: add a job for the
    /// control thread, then call `told`.
    pub fn found(&self, at: u64) -> Option<Epoch> {
        // Another writer may have found the ring full at a later count.
        let later = |now: u64| (after(now) < at + 1).then(|| word(ring(now), at, now & WHO));
        let (Ok(before) | Err(before)) =
            self.0
                .fetch_update(Ordering::AcqRel, Ordering::Relaxed, later);
        (before & WHO == 0).then(|| ring(before))
    }

    /// The job has been added.
    pub fn told(&self, of: Epoch) {
        let tell = |now: u64| (ring(now) == of && now & WHO == 0).then_some(now | TOLD);
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, tell);
    }

    /// The control thread begins to watch, for a job; returns the reader's count. `None`: it
    /// watches already, or need not.
    pub fn watch(&self, of: Epoch) -> Option<u64> {
        let begin = |now: u64| {
            let is_due = ring(now) == of && after(now) != 0 && now & WATCHED == 0;
            is_due.then_some(now | WHO)
        };
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, begin)
            .ok()
            .map(|now| after(now) - 1)
    }

    /// The watcher reads the reader's count at which the ring was last found full. `None`: it is
    /// another ring.
    pub fn look(&self, of: Epoch) -> Option<u64> {
        let now = self.0.load(Ordering::Acquire);
        (ring(now) == of && now & WATCHED != 0).then(|| after(now) - 1)
    }

    /// The watcher, which last saw `at`, sets the count to `to`, as if the ring had been found full
    /// then.
    pub fn moves(&self, of: Epoch, at: u64, to: u64) {
        let (from, to) = (word(of, at, WHO), word(of, to, WHO));
        let _ = self
            .0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The watcher, which last saw `at`, stops watching. False: the ring was found full since, so
    /// it must go on.
    pub fn end(&self, of: Epoch, at: u64) -> bool {
        let nothing = of.0 << RING_SHIFT;
        self.0
            .compare_exchange(
                word(of, at, WHO),
                nothing,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_thread_is_told_once() {
        let full = Full::default();
        let ring = full.found(0).unwrap();
        // The first writer has not called `told` yet, and may never.
        assert_eq!(full.found(0), Some(ring));
        full.told(ring);
        assert_eq!(full.found(5), None);
        assert_eq!(full.look(ring), None);
        assert_eq!(full.watch(ring), Some(5));
        assert_eq!(full.watch(ring), None);
        full.told(ring);
        assert_eq!(full.found(9), None);
        assert_eq!(full.look(ring), Some(9));
    }

    #[test]
    fn a_writer_that_looked_earlier_does_not_hide_a_later_one() {
        let full = Full::default();
        let ring = full.found(9).unwrap();
        assert_eq!(full.watch(ring), Some(9));
        assert_eq!(full.found(7), None);
        assert_eq!(full.look(ring), Some(9));
    }

    #[test]
    fn a_watch_over_a_ring_that_was_full_again_does_not_end() {
        let full = Full::default();
        let ring = full.found(7).unwrap();
        full.watch(ring).unwrap();
        assert_eq!(full.found(9), None);
        assert!(!full.end(ring, 7));
        full.moves(ring, 7, 20);
        assert_eq!(full.look(ring), Some(9));
        full.moves(ring, 9, 8);
        assert_eq!(full.look(ring), Some(8));
        assert!(full.end(ring, 8));
        assert_eq!(full.look(ring), None);
        assert_eq!(full.found(9), Some(ring));
    }

    #[test]
    fn of_another_ring_a_job_knows_nothing() {
        let full = Full::default();
        for _ in 0..300 {
            let ring = full.found(7).unwrap();
            assert_eq!(full.watch(ring), Some(7));
            full.reset();
            let next = full.found(3).unwrap();
            full.told(ring);
            assert_eq!((full.watch(ring), full.look(ring)), (None, None));
            assert!(!full.end(ring, 3));
            assert_eq!(full.watch(next), Some(3));
            full.reset();
        }
    }
}
