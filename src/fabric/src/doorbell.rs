//! Waiter slots: how a sleeper says that it sleeps, and how a waker finds out.
//!
//! Each side of a link owns [`SLOTS`] slots in the arena, one per epoll set or sleeping thread that
//! waits on streams of that link. A direction names its waiters by a mask of slots.
//!
//! The handshake (W = whoever changes a word, S = the sleeper):
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
//! No mark is lost: S takes a bit, then a full fence, then looks at the word. A W that finds the bit
//! still set leaves it alone, and its first fence makes its word visible behind S's.
//! (`tests/loom.rs` runs every interleaving, and shows a loss with any one of these fences taken away.)

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, fence_after_rmw};

/// Waiter slots per side of a link; a direction names its waiters by a mask of this many bits. The last one is nobody's: its bit says
/// something else ([`is_over`](crate::layout::ReaderWishes::is_over)).
pub const SLOTS: usize = 64;

/// Words of ready bits per slot: one bit per stream of the link.
pub const READY_WORDS: usize = 256;
/// Words of ready bits for which one bit of a slot's summary stands.
const SUMMED: usize = READY_WORDS / 64;

/// Marks of which a slot knows the order.
const ORDERED: usize = 8;
/// No stream of a link.
const NOBODY: u32 = u32::MAX;
/// A word of the order: the stream in the lower bits, above it a [`Stamp`].
const STREAM_BITS: u32 = (READY_WORDS * 64).ilog2();

/// When a mark was made, as far as is known: milliseconds of the coarse clock, of which as many bits are kept as an order's word has left but one.
/// Who compares knows how long he has not looked, and whether they tell. That one says what no clock can: see [`Stamp::behind_tcp`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp(u32);

impl Stamp {
    /// Not known.
    pub const NONE: Self = Self(0);
    /// Milliseconds after which a stamp comes again.
    pub const ROUND_MS: u32 = 1 << (u32::BITS - STREAM_BITS - 1);
    const BEHIND_TCP: u32 = Self::ROUND_MS;

    /// That of this moment.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        #[cfg(not(loom))]
        return Self::of(crate::sys::coarse_ms());
        #[cfg(loom)]
        Self::NONE
    }

    /// That of a time on the same clock. Two values are taken, by [`Self::NONE`] and, in its word, by [`NOBODY`]: a millisecond is no matter.
    #[inline]
    #[must_use]
    pub fn of(ms: u64) -> Self {
        Self((ms as u32 % Self::ROUND_MS).clamp(1, Self::ROUND_MS - 2))
    }

    /// The same, and: whoever made the mark has written by TCP before, so what that has may be older than the mark.
    #[inline]
    #[must_use]
    pub fn behind_tcp(self) -> Self {
        Self(self.0 | Self::BEHIND_TCP)
    }

    /// See [`Stamp::behind_tcp`].
    #[inline]
    #[must_use]
    pub fn is_behind_tcp(self) -> bool {
        self.0 & Self::BEHIND_TCP != 0
    }

    /// The time alone.
    #[inline]
    #[must_use]
    pub fn time(self) -> Self {
        Self(self.0 % Self::ROUND_MS)
    }

    /// Is the time known?
    #[inline]
    #[must_use]
    pub fn is_known(self) -> bool {
        self.time() != Self::NONE
    }

    /// Milliseconds from then until `now`.
    #[inline]
    #[must_use]
    pub fn age(self, now: Self) -> Option<u32> {
        self.is_known()
            .then(|| now.0.wrapping_sub(self.0) % Self::ROUND_MS)
    }

    /// In the order's word of a stream.
    #[inline]
    fn beside(self, stream: u32) -> u32 {
        (self.0 << STREAM_BITS) | (stream % (1 << STREAM_BITS))
    }
}

/// How the owner of a slot sleeps, and thus how it is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// On the slot's own sleep word (`futex(2)`), which no peer can make a waker block on.
    Futex,
    /// On descriptors: by its doorbell.
    Descriptor,
}

/// One waiter: an epoll set or a thread. In shared memory, so plain integers only.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// 1 while the owner sleeps or is about to. Written by the owner (1, 0) and by wakers (0).
    sleeping: AtomicU32,
    /// The CPU that the owner last waited on. Written by the owner, read by the peer: a hint.
    cpu: AtomicU32,
    /// How the owner sleeps ([`Sleep`] as a number). Written by the owner when it takes the slot.
    kind: AtomicU32,
    /// The stream that was marked when no other was, and when, or [`NOBODY`]: the one whose news came first. Written by wakers, taken by the
    /// owner; like `order` a hint.
    first: AtomicU32,
    /// One bit per [`SUMMED`] words of `ready` that may be non-zero. Set by wakers after the word,
    /// taken by the owner.
    summary: AtomicU64,
    /// One bit per stream with news. Set by wakers, taken by the owner.
    ready: [AtomicU64; READY_WORDS],
    /// How many streams were marked behind a first one, and how many of these the owner has looked at.
    marked: AtomicU32,
    seen: AtomicU32,
    /// The last of these, in the order in which they were marked, and when.
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
        self.sleeping.swap(1, Ordering::SeqCst);
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

    /// Waker, behind a successful [`Word::advance`](crate::words::Word::advance) and
    /// [`fence_after_rmw`]: marks `stream` and says whether the owner must be rung.
    #[inline]
    #[must_use]
    pub fn wake(&self, stream: u32) -> bool {
        self.mark(stream, Stamp::now)
    }

    /// As [`Self::wake`], and says whether this process has written by TCP before; asked only where the mark is new.
    #[inline]
    #[must_use]
    pub fn wake_behind(&self, stream: u32, is_behind_tcp: impl FnOnce() -> bool) -> bool {
        self.mark(stream, || {
            let now = Stamp::now();
            if is_behind_tcp() {
                now.behind_tcp()
            } else {
                now
            }
        })
    }

    /// As [`Self::wake`], and does not say when: this process's own moment is not that of the news.
    #[inline]
    #[must_use]
    pub fn wake_timeless(&self, stream: u32) -> bool {
        self.mark(stream, || Stamp::NONE)
    }

    #[inline]
    fn mark(&self, stream: u32, when: impl FnOnce() -> Stamp) -> bool {
        let (index, bit) = mark_of(stream);
        if let Some(word) = self.ready.get(index) {
            // Set already and not yet taken: the owner will look at the words after it takes it.
            // The summary bit is looked at on its own: whoever set the ready bit may have been
            // stopped, or left by a signal handler, before it came to the summary.
            let marked = word.load(Ordering::Relaxed) & bit != 0;
            if !marked {
                self.queue(stream, when);
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

    /// Waker: notes that `stream` comes behind those that are marked now.
    #[inline]
    fn queue(&self, stream: u32, when: impl FnOnce() -> Stamp) {
        // Only the order hangs on these words, which loom need not see.
        if cfg!(loom) {
            return;
        }
        let word = when().beside(stream);
        if self.summary.load(Ordering::Relaxed) == 0 {
            return self.first.store(word, Ordering::Relaxed);
        }
        let at = self.marked.fetch_add(1, Ordering::Relaxed);
        if let Some(place) = self.order.get(at as usize % ORDERED) {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// Owner: the streams that were marked, in that order, as far as it is known, and when; also some that are not marked any more.
    fn queued(&self) -> impl Iterator<Item = (u32, Stamp)> + '_ {
        let first = self.first.load(Ordering::Relaxed);
        if first != NOBODY {
            self.first.store(NOBODY, Ordering::Relaxed);
        }
        let end = self.marked.load(Ordering::Relaxed);
        let begin = self.seen.load(Ordering::Relaxed);
        self.seen.store(end, Ordering::Relaxed);
        // Of more the earliest ones are not known any more.
        let behind = end.wrapping_sub(begin).min(ORDERED as u32);
        let place = move |back: u32| end.wrapping_sub(back) as usize % ORDERED;
        let order = (1..=behind)
            .rev()
            .filter_map(move |back| self.order.get(place(back)));
        core::iter::once(first)
            .chain(order.map(|word| word.load(Ordering::Relaxed)))
            .filter(|&word| word != NOBODY)
            // A peer may write anything.
            .map(|word| (word % (1 << STREAM_BITS), Stamp(word >> STREAM_BITS)))
    }

    /// Waker, behind a full fence: takes the announcement, if there is one; true: ring now.
    #[inline]
    #[must_use]
    pub fn must_ring(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) != 0 && self.sleeping.swap(0, Ordering::SeqCst) != 0
    }

    /// Owner: is any stream marked?
    #[inline]
    pub fn any_ready(&self) -> bool {
        self.summary.load(Ordering::Relaxed) != 0
    }

    /// Owner: takes all marks, calling `each` with the stream's number, in the order in which they were made where that is known.
    #[inline]
    pub fn take_ready(&self, mut each: impl FnMut(u32)) {
        self.take_stamped(|stream, _| each(stream));
    }

    /// As [`Self::take_ready`], and says of each mark when it was made, where that is known.
    #[inline]
    pub fn take_stamped(&self, mut each: impl FnMut(u32, Stamp)) {
        if self.summary.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut summary = self.summary.swap(0, Ordering::SeqCst);
        if !cfg!(loom) {
            for (stream, when) in self.queued() {
                let (index, bit) = mark_of(stream);
                if let Some(word) = self.ready.get(index)
                    && word.fetch_and(!bit, Ordering::SeqCst) & bit != 0
                {
                    // As below.
                    fence_after_rmw();
                    each(stream, when);
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
                    each(index as u32 * 64 + bits.trailing_zeros(), Stamp::NONE);
                    bits &= bits - 1;
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn taken(slot: &Slot) -> Vec<(u32, Stamp)> {
        let mut all = Vec::new();
        slot.take_stamped(|stream, when| all.push((stream, when)));
        all
    }

    #[test]
    fn a_mark_says_when_it_was_made() {
        let slot = Slot::default();
        let before = Stamp::now();
        let _ = slot.wake(16383);
        let _ = slot.wake(7);
        // Again before it is taken: the news are as old as they were.
        let _ = slot.wake_timeless(7);
        let all = taken(&slot);
        let names: Vec<u32> = all.iter().map(|&(stream, _)| stream).collect();
        assert_eq!(names, [16383, 7]);
        for (_, when) in all {
            assert!(before.age(when).unwrap() < 60_000);
        }
        let _ = slot.wake_timeless(16383);
        assert_eq!(taken(&slot), [(16383, Stamp::NONE)]);
    }

    #[test]
    fn a_new_mark_says_that_it_comes_behind_tcp() {
        let slot = Slot::default();
        let _ = slot.wake_behind(16383, || false);
        let _ = slot.wake_behind(16383, || unreachable!("the mark stands"));
        let _ = slot.wake_behind(7, || true);
        let all = taken(&slot);
        let behind: Vec<_> = all
            .iter()
            .map(|&(s, when)| (s, when.is_behind_tcp()))
            .collect();
        assert_eq!(behind, [(16383, false), (7, true)]);
        let now = Stamp::now();
        for (_, when) in all {
            assert!(when.is_known() && when.age(now).unwrap() < 60_000);
        }
    }

    #[test]
    fn more_marks_than_are_known_in_order_have_no_time() {
        let slot = Slot::default();
        for stream in 0..20 {
            let _ = slot.wake(stream);
        }
        let all = taken(&slot);
        assert_eq!(all.len(), 20);
        let known = all.iter().filter(|(_, when)| when.is_known()).count();
        assert_eq!(known, ORDERED + 1);
    }

    #[test]
    fn no_time_looks_like_none_or_like_nobody() {
        let last = u64::from(Stamp::ROUND_MS) - 1;
        for ms in [0, 1, last, last + 1, 7 * (last + 1)] {
            for stamp in [Stamp::of(ms), Stamp::of(ms).behind_tcp()] {
                let word = stamp.beside(16383);
                assert!(word != NOBODY && stamp.is_known());
                assert_eq!(word % (1 << STREAM_BITS), 16383);
                assert_eq!(Stamp(word >> STREAM_BITS), stamp);
            }
        }
        let (early, late) = (Stamp::of(last - 5), Stamp::of(last + 6));
        assert_eq!(early.age(late), Some(11));
        assert_eq!(early.behind_tcp().age(late), Some(11));
        assert_eq!(early.behind_tcp().time(), early);
        assert!(!Stamp::NONE.behind_tcp().is_known());
        assert_eq!(Stamp::NONE.age(late), None);
    }
}
