//! Waiter slots: how a sleeper says that it sleeps, and how a waker finds out.
//!
//! Each side of a link owns [`SLOTS`] slots in the arena, one per epoll set or sleeping thread that
//! waits on streams of that link. A direction names its waiters by a mask of slots.
//!
//! The handshake (W = the end that changes a word, S = the sleeper):
//!
//! ```text
//!   W: advance(word)          S: sleeping := 1
//!      full fence                full fence
//!      set the ready bit         look at ready bits and words: anything? then sleeping := 0, go on
//!      full fence                sleep in the kernel
//!      sleeping == 1? swap to 0, ring
//! ```
//!
//! No wake-up is lost: of two fences one comes first in the order of all fences. If W's does, S's
//! look comes after it and sees the word (the first fence) and the bit (the second). If S's does,
//! W's load sees `sleeping == 1` and rings.
//!
//! No mark is lost: S takes a bit, then a full fence, then looks at the word. A W that finds the
//! bit still set leaves it alone, and its first fence makes its word visible after S's.
//! (`tests/loom.rs` runs every interleaving, and shows a loss with any one of these fences taken
//! away.)

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, fence_after_rmw};

/// Waiter slots per side of a link; a direction names its waiters by a mask of this many bits. The
/// last one is nobody's: its bit says something else
/// ([`is_over`](crate::layout::ReaderWishes::is_over)).
pub const SLOTS: usize = 64;

/// Words of ready bits per slot: one bit per stream of the link.
pub const READY_WORDS: usize = 256;
/// Words of ready bits for which one bit of a slot's summary stands.
const SUMMED: usize = READY_WORDS / 64;

/// Marks of which a slot knows the order.
const ORDERED: usize = 8;
/// No stream of a link.
const NOBODY: u32 = u32::MAX;
/// A word of the order: the stream in the lower bits, and this one.
const STREAM_BITS: u32 = (READY_WORDS * 64).ilog2();
/// The thread that made the mark has written by TCP before.
const AFTER_TCP: u32 = 1 << 31;

/// How the owner of a slot sleeps, and thus how it is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// On the slot's own sleep word (`futex(2)`), which no peer can make a waker block on.
    Futex,
    /// On descriptors: by its doorbell.
    Descriptor,
}

/// The owner is rung once.
const ASLEEP: u32 = 1;
/// The owner is rung for each mark, until it says otherwise.
const WATCHED: u32 = 2;

/// One waiter: an epoll set or a thread. In shared memory, so plain integers only.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// [`ASLEEP`] while the owner sleeps or is about to, [`WATCHED`] while others look at it.
    /// Written by the owner, and by wakers, which make 0 of [`ASLEEP`].
    sleeping: AtomicU32,
    /// The CPU that the owner last waited on. Written by the owner, read by the peer: a hint.
    cpu: AtomicU32,
    /// How the owner sleeps ([`Sleep`] as a number). Written by the owner when it takes the slot.
    kind: AtomicU32,
    /// The stream that was marked when no other was, or [`NOBODY`]: the one whose news came first.
    /// Written by wakers, taken by the owner; like `order` a hint.
    first: AtomicU32,
    /// One bit per [`SUMMED`] words of `ready` that may be non-zero. Set by wakers after the word,
    /// taken by the owner.
    summary: AtomicU64,
    /// One bit per stream with news. Set by wakers, taken by the owner.
    ready: [AtomicU64; READY_WORDS],
    /// How many streams were marked after a first one, and how many of these the owner has looked
    /// at.
    marked: AtomicU32,
    seen: AtomicU32,
    /// The last of these, in the order in which they were marked.
    order: [AtomicU32; ORDERED],
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            sleeping: AtomicU32::new(0),
            cpu: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            first: AtomicU32::new(NOBODY),
            summary: AtomicU64::new(0),
            ready: [(); READY_WORDS].map(|()| AtomicU64::new(0)),
            marked: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            order: [(); ORDERED].map(|()| AtomicU32::new(NOBODY)),
        }
    }
}

/// The word of [`Slot::ready`], and the bit in it, that stand for a stream.
const fn mark_of(stream: u32) -> (usize, u64) {
    ((stream / 64) as usize % READY_WORDS, 1 << (stream % 64))
}

impl Slot {
    /// Owner: empties the slot for a new owner that sleeps in this way.
    pub fn reset_for(&self, sleep: Sleep) {
        self.kind
            .store(u32::from(sleep == Sleep::Descriptor), Ordering::Relaxed);
        self.reset();
    }

    /// Waker: how the owner sleeps. A peer that lies about it is not woken.
    #[inline]
    pub fn sleep(&self) -> Sleep {
        if self.kind.load(Ordering::Relaxed) == 0 {
            Sleep::Futex
        } else {
            Sleep::Descriptor
        }
    }

    /// The word to sleep on while it is 1.
    #[cfg(not(loom))]
    pub fn sleep_word(&self) -> *const u32 {
        self.sleeping.as_ptr()
    }

    /// Owner: empties the slot for a new owner.
    pub fn reset(&self) {
        self.sleeping.store(0, Ordering::Relaxed);
        self.first.store(NOBODY, Ordering::Relaxed);
        for word in [&self.marked, &self.seen] {
            word.store(0, Ordering::Relaxed);
        }
        self.summary.store(0, Ordering::Relaxed);
        for word in &self.ready {
            word.store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Owner: announces sleep. The owner must look again afterwards, before it sleeps.
    #[inline]
    pub fn announce(&self) {
        self.sleeping.swap(ASLEEP, Ordering::SeqCst);
        fence_after_rmw();
    }

    /// Owner: as [`Self::announce`], of one that others watch: each mark rings.
    pub fn announce_for_good(&self) {
        self.sleeping.swap(WATCHED, Ordering::SeqCst);
        fence_after_rmw();
    }

    /// Owner: awake again.
    #[inline]
    pub fn retract(&self) {
        self.sleeping.store(0, Ordering::Relaxed);
    }

    /// Anyone: does the owner sleep, as far as can be seen?
    #[inline]
    pub fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) != 0
    }

    /// Owner: publishes its CPU.
    #[inline]
    pub fn publish_cpu(&self, cpu: u32) {
        self.cpu.store(cpu, Ordering::Relaxed);
    }

    /// Anyone: the CPU that the owner last waited on.
    #[inline]
    pub fn cpu(&self) -> u32 {
        self.cpu.load(Ordering::Relaxed)
    }

    /// Waker, after a successful [`Word::advance`](crate::cursors::Word::advance) and
    /// [`fence_after_rmw`]: marks `stream` and says whether the owner must be rung.
    #[inline]
    #[must_use]
    pub fn wake(&self, stream: u32) -> bool {
        self.wake_after(stream, || false)
    }

    /// As [`Self::wake`], and tells the owner whether this process has written by TCP before, which
    /// no other word says. Asked only where the mark is new.
    #[inline]
    #[must_use]
    pub fn wake_after(&self, stream: u32, is_after_tcp: impl FnOnce() -> bool) -> bool {
        let (index, bit) = mark_of(stream);
        if let Some(word) = self.ready.get(index) {
            // Set already and not yet taken: the owner will look at the words after it takes it.
            // The summary bit is looked at on its own: the thread that set the ready bit may have
            // been stopped, or left by a signal handler, before it came to the summary.
            let marked = word.load(Ordering::Relaxed) & bit != 0;
            if !marked {
                self.queue(stream, is_after_tcp);
                word.fetch_or(bit, Ordering::SeqCst);
            }
            let sum = 1 << (index / SUMMED);
            if !marked || self.summary.load(Ordering::Relaxed) & sum == 0 {
                self.summary.fetch_or(sum, Ordering::SeqCst);
                // The mark, too, must be there before we look whether the owner sleeps: an owner
                // that waits by marks looks at nothing else.
                fence_after_rmw();
            }
        }
        self.must_ring()
    }

    /// Waker: notes that `stream` comes after those that are marked now.
    #[inline]
    fn queue(&self, stream: u32, is_after_tcp: impl FnOnce() -> bool) {
        // Only the order hangs on these words, which loom need not see.
        if cfg!(loom) {
            return;
        }
        let flag = if is_after_tcp() { AFTER_TCP } else { 0 };
        let word = (stream % (1 << STREAM_BITS)) | flag;
        if self.summary.load(Ordering::Relaxed) == 0 {
            return self.first.store(word, Ordering::Relaxed);
        }
        let at = self.marked.fetch_add(1, Ordering::Relaxed);
        if let Some(place) = self.order.get(at as usize % ORDERED) {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// Owner: the streams that were marked, in that order, as far as it is known, and whether after
    /// something by TCP; also some that are not marked any more.
    fn queued(&self) -> impl Iterator<Item = (u32, bool)> + '_ {
        let first = self.first.load(Ordering::Relaxed);
        if first != NOBODY {
            self.first.store(NOBODY, Ordering::Relaxed);
        }
        let end = self.marked.load(Ordering::Relaxed);
        let begin = self.seen.load(Ordering::Relaxed);
        self.seen.store(end, Ordering::Relaxed);
        // Of more the earliest ones are not known any more.
        let known = end.wrapping_sub(begin).min(ORDERED as u32);
        let place = move |back: u32| end.wrapping_sub(back) as usize % ORDERED;
        let order = (1..=known)
            .rev()
            .filter_map(move |back| self.order.get(place(back)));
        core::iter::once(first)
            .chain(order.map(|word| word.load(Ordering::Relaxed)))
            .filter(|&word| word != NOBODY)
            // A peer may write anything.
            .map(|word| (word % (1 << STREAM_BITS), word & AFTER_TCP != 0))
    }

    /// Waker, after a full fence: takes the announcement, if there is one; true: ring now.
    #[inline]
    #[must_use]
    pub fn must_ring(&self) -> bool {
        match self.sleeping.load(Ordering::Relaxed) {
            0 => false,
            WATCHED => true,
            seen => {
                let order = (Ordering::SeqCst, Ordering::Relaxed);
                self.sleeping
                    .compare_exchange(seen, 0, order.0, order.1)
                    .is_ok()
            }
        }
    }

    /// Owner: is any stream marked?
    #[inline]
    pub fn any_ready(&self) -> bool {
        self.summary.load(Ordering::Relaxed) != 0
    }

    /// Owner: takes all marks, calling `each` with the stream's number, in the order in which they
    /// were made where that is known, and with whether this one comes after something by TCP.
    #[inline]
    pub fn take_ready(&self, mut each: impl FnMut(u32, bool)) {
        if self.summary.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut summary = self.summary.swap(0, Ordering::SeqCst);
        if !cfg!(loom) {
            for (stream, is_after_tcp) in self.queued() {
                let (index, bit) = mark_of(stream);
                if let Some(word) = self.ready.get(index)
                    && word.fetch_and(!bit, Ordering::SeqCst) & bit != 0
                {
                    // As below.
                    fence_after_rmw();
                    each(stream, is_after_tcp);
                }
            }
        }
        while summary != 0 {
            let first = summary.trailing_zeros() as usize * SUMMED;
            summary &= summary - 1;
            for (index, word) in self.ready.iter().enumerate().skip(first).take(SUMMED) {
                // A waker that sets a bit later sets the summary's, too.
                if word.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                let mut bits = word.swap(0, Ordering::SeqCst);
                // A waker that still finds the bit does not set it again; so its word must be seen
                // by all that look from here on.
                fence_after_rmw();
                while bits != 0 {
                    each(index as u32 * 64 + bits.trailing_zeros(), false);
                    bits &= bits - 1;
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn taken(slot: &Slot) -> Vec<(u32, bool)> {
        let mut all = Vec::new();
        slot.take_ready(|stream, is_after_tcp| all.push((stream, is_after_tcp)));
        all
    }

    #[test]
    fn marks_are_taken_in_their_order() {
        let slot = Slot::default();
        for stream in [16383, 7, 300, 7, 0] {
            let _ = slot.wake(stream);
        }
        let order = [16383, 7, 300, 0].map(|stream| (stream, false));
        assert_eq!(taken(&slot), order);
        assert_eq!(taken(&slot), []);
    }

    #[test]
    fn a_new_mark_says_that_it_comes_after_tcp() {
        let slot = Slot::default();
        let _ = slot.wake_after(16383, || true);
        let _ = slot.wake_after(16383, || unreachable!("the mark stands"));
        let _ = slot.wake_after(7, || false);
        let _ = slot.wake_after(16382, || true);
        assert_eq!(taken(&slot), [(16383, true), (7, false), (16382, true)]);
    }

    #[test]
    fn of_many_marks_the_first_and_the_last_keep_their_order() {
        let slot = Slot::default();
        for stream in (0..20).rev() {
            let _ = slot.wake_after(stream, || true);
        }
        let all = taken(&slot);
        let (known, others) = all.split_at(1 + ORDERED);
        let streams: Vec<u32> = known.iter().map(|&(stream, _)| stream).collect();
        assert_eq!(streams, [19, 7, 6, 5, 4, 3, 2, 1, 0]);
        assert!(known.iter().all(|&(_, is_after_tcp)| is_after_tcp));
        assert_eq!(others.len(), 20 - known.len());
    }
}
