//! What lies where in an arena.
//!
//! ```text
//!   0        Header            written by the maker before it is shared, then read only
//!   4 KiB    waiter slots      [side 0: SLOTS][side 1: SLOTS]
//!   ...      stream slots      [STREAMS]: two directions each; only headers, no data
//!   RINGS    ring memory       [side 0: RING_REGION][side 1: RING_REGION]
//! ```
//!
//! A side lends rings from its own region.
//!
//! The file is sparse: what was never touched costs nothing. A line of a direction is written by
//! one end only (and by the one that seals or seizes), so that the hot path moves one cache line
//! per message and way.

use crate::cursors::Word;
use crate::doorbell::{READY_WORDS, SLOTS, Slot};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use core::mem::{offset_of, size_of};

/// First bytes of every arena.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sluice\0\x01");

/// Number of this layout: both ends must have the same.
pub const LAYOUT: u32 = 6;

/// Stream slots of a link. Even ones are given out by side 0, odd ones by side 1.
pub const STREAMS: u32 = 16384;

/// Bytes of ring memory that each side can lend. Sparse: touched pages count, not this.
pub const RING_REGION: u64 = 256 << 20;

/// Smallest and largest ring, in bytes; every ring is a power of two.
pub const RING_MIN: u32 = 4 << 10;
/// See [`RING_MIN`].
pub const RING_MAX: u32 = 4 << 20;

/// Types that may lie in an arena.
///
/// # Safety
/// `repr(C)`, no pointers, no niches (every byte pattern is a value), only atomics: the peer writes
/// at any moment.
pub unsafe trait Shared {}

/// The arena's head.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`LAYOUT`].
    pub layout: AtomicU32,
    /// `size_of::<usize>()` of the maker.
    pub word_len: AtomicU32,
    /// [`ARENA_LEN`] of the maker.
    pub arena_len: AtomicU64,
}

/// What the writer's end writes often: one line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WriterLine {
    /// Bytes published. See [`Word`].
    pub tail: Word,
    /// CPU of the last publish: a hint for the reader's wait.
    pub cpu: AtomicU32,
}

/// What the reader's end writes often: one line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ReaderLine {
    /// Bytes consumed. See [`Word`].
    pub head: Word,
    /// CPU of the last look: a hint for the writer's wait.
    pub cpu: AtomicU32,
}

/// What the reader's end writes seldom; the writer reads it at every publish.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ReaderWishes {
    /// Waiter slots of the reader's side that want to hear of data; and one bit more:
    /// [`Self::is_over`].
    pub waiters: AtomicU64,
    /// Where the lent ring lies: offset from the start of the arena. Stable while the stream lives.
    pub ring_at: AtomicU64,
    /// Its length, a power of two.
    pub ring_len: AtomicU32,
    /// 1: no thread of the reader waits in a way that a doorbell cannot end; the writer may switch.
    pub consent: AtomicU32,
    /// 1: the reader's process has left this stream.
    pub detached: AtomicU32,
    /// 1: the last recv that had to wait was blocking and large, so that an offer without an ADVERT
    /// is likely to be taken. A hint.
    pub pulls: AtomicU32,
    /// 1: the reader's end has ended what it writes, or is about to: an end that TCP tells of is
    /// none of a killed process.
    pub ended: AtomicU32,
    /// Why the reader's end has taken the stream back to TCP, a number of `sluice_stats::Reason`. A
    /// hint for people.
    pub why: AtomicU32,
}

impl ReaderWishes {
    /// Bit of `waiters`: the program has shut both halves down, with bytes unread. What is written
    /// from now on goes by TCP, which answers by a reset, as it does to all that arrives after
    /// such a shutdown (`tcp_rcv_state_process`).
    const OVER: u64 = 1 << (SLOTS - 1);

    /// Reader: says so.
    pub fn set_over(&self) {
        self.waiters.fetch_or(Self::OVER, Ordering::SeqCst);
    }

    /// Writer: has the reader said so?
    #[inline]
    pub fn is_over(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) & Self::OVER != 0
    }
}

/// What the writer's end writes seldom; the reader reads it at every consume.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WriterWishes {
    /// Waiter slots of the writer's side that want to hear of space.
    pub waiters: AtomicU64,
    /// Valid once `switched` is 1: the stream's offset in TCP where the link begins.
    pub from: AtomicU64,
    /// 1: bytes beyond `from` are on the link. Stored with release after `from`.
    pub switched: AtomicU32,
    /// 1: the writer's process has left this stream.
    pub detached: AtomicU32,
    /// Where the writer's process keeps its token, valid with its first offer: what is pulled from
    /// it is proved by reading that too. 0 where it offers nothing.
    pub token_at: AtomicU64,
    /// As [`ReaderWishes::why`], of the writer's end.
    pub why: AtomicU32,
}

/// The reader's advertisement of a buffer (ADVERT). Written by the reader, read by the writer as a
/// sequence lock: `serial` before and after the rest.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct AdvertLine {
    /// 2k − 1: ADVERT number k stands; even: none does, and the rest may change. Never decreases.
    pub serial: AtomicU64,
    /// Sequence of the first byte that the buffer is for.
    pub seq: AtomicU64,
    /// Phase.
    pub phase: AtomicU64,
    /// Bytes that the buffer takes; [`AdvertLine::WAITALL`].
    pub len: AtomicU64,
    /// Number of the offer that the reader copies from now or copied from last: a writer that sees
    /// its own waits a little longer. A hint.
    pub claim: AtomicU64,
}

impl AdvertLine {
    /// Bit of `len`: the recv waits until the buffer is full.
    pub const WAITALL: u64 = 1 << 63;
}

/// The writer's offer of a buffer to take from. Written by the writer, read by the reader as a
/// sequence lock: `word` before and after the rest. Whether it still stands is decided by the head.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct OfferLine {
    /// Number of the offer (from 1), times 256, plus the head's round in which it can be taken;
    /// 0: none was made yet, or the rest is being changed.
    pub word: AtomicU64,
    /// Address in the writer's process.
    pub at: AtomicU64,
    /// Bytes on offer.
    pub len: AtomicU64,
    /// Sequence of the first of them: the tail.
    pub seq: AtomicU64,
    /// Number of the ADVERT that it answers, 0 for none.
    pub advert: AtomicU64,
}

/// One direction of a stream.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Direction {
    /// Written by the writer.
    pub tx: WriterLine,
    /// Written by the reader.
    pub rx: ReaderLine,
    /// Seldom written by the reader.
    pub rx_wishes: ReaderWishes,
    /// Seldom written by the writer.
    pub tx_wishes: WriterWishes,
    /// Written by the reader.
    pub advert: AdvertLine,
    /// Written by the writer.
    pub offer: OfferLine,
}

impl Direction {
    /// By the end that gives the slot out, when both have left it: a fresh direction.
    pub fn reset(&self) {
        self.tx.tail.reset();
        self.rx.head.reset();
        let zero64 = [
            &self.rx_wishes.waiters,
            &self.rx_wishes.ring_at,
            &self.tx_wishes.waiters,
            &self.tx_wishes.from,
            &self.tx_wishes.token_at,
            &self.advert.serial,
            &self.advert.claim,
            &self.offer.word,
        ];
        for word in zero64 {
            word.store(0, Ordering::Relaxed);
        }
        let zero32 = [
            &self.rx_wishes.ring_len,
            &self.rx_wishes.consent,
            &self.rx_wishes.detached,
            &self.rx_wishes.pulls,
            &self.rx_wishes.ended,
            &self.rx_wishes.why,
            &self.tx_wishes.switched,
            &self.tx_wishes.detached,
            &self.tx_wishes.why,
        ];
        for word in zero32 {
            word.store(0, Ordering::Release);
        }
    }
}

/// A stream: direction 0 is written by side 0, direction 1 by side 1.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Stream {
    /// The two directions.
    pub dir: [Direction; 2],
}

// SAFETY: only atomics, repr(C), no niches.
unsafe impl Shared for Header {}
// SAFETY: as above.
unsafe impl Shared for Slot {}
// SAFETY: as above.
unsafe impl Shared for Stream {}

const fn align_up(at: usize, to: usize) -> usize {
    at.div_ceil(to) * to
}

/// Offset of the waiter slots of `side`.
#[must_use]
pub const fn slots_at(side: usize) -> usize {
    4096 + side * SLOTS * size_of::<Slot>()
}

const STREAMS_AT: usize = align_up(slots_at(2), 4096);

/// Offset of stream slot `index`; the caller has checked `index < STREAMS`.
#[must_use]
pub const fn stream_at(index: u32) -> usize {
    STREAMS_AT + index as usize * size_of::<Stream>()
}

/// Offset of the ring memory that `side` lends.
#[must_use]
pub const fn rings_at(side: usize) -> u64 {
    (align_up(stream_at(STREAMS), 1 << 20) as u64) + side as u64 * RING_REGION
}

/// Bytes of a whole arena.
pub const ARENA_LEN: u64 = rings_at(2);

const _: () = assert!(size_of::<Direction>() == 6 * 64);
const _: () = assert!(size_of::<Stream>() == 12 * 64);
const _: () = assert!(size_of::<Slot>().is_multiple_of(64) && offset_of!(Stream, dir) == 0);
const _: () = assert!(size_of::<Header>() <= 4096);
const _: () = assert!(STREAMS as usize == READY_WORDS * 64);
