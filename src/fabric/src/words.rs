//! The two words of a direction, `tail|SEALED` and `head|SEIZED`.
//!
//! ```text
//!            writer: publish(from, to)            reader: consume(from, to)
//!   tail  0 ───────────────► T ──seal──► T|SEALED      (no publish succeeds any more)
//!   head  0 ───────────────► H ──seize─► H|SEIZED      (no consume succeeds any more)
//! ```
//!
//! Both are changed by compare-and-swap only, by anyone who holds the mapping. Whoever demotes seals
//! the tail first, then seizes the head. From then on `[H, T)` is fixed once for all: the bytes that
//! the reader will never take from the ring and that the writer's side sends again on TCP. A writer
//! whose publish fails takes its bytes to TCP behind them; a reader whose consume fails throws its
//! copy away and reads TCP. Nobody waits and no message is sent. With either compare-and-swap
//! replaced by a store, bytes are lost or repeated (`tests/loom.rs` shows it).
//!
//! Offsets count bytes of the stream from the switch on; bit 63 is the flag, so a direction carries
//! up to 2^63 bytes.

use crate::sync::{AtomicU64, Ordering};

/// Bit 63: the tail is sealed or the head is seized.
const FLAG: u64 = 1 << 63;

/// The word was sealed or seized; the direction is on its way back to TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demoted;

/// One reading of a [`Word`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Stream offset in bytes since the switch.
    pub offset: u64,
    /// Sealed (a tail) or seized (a head).
    pub flagged: bool,
}

/// A stream offset with a flag, shared with a peer who may write anything into it.
///
/// As a tail: written by the writer's [`advance`](Word::advance) and by anyone's
/// [`flag`](Word::flag) (seal); its release pairs with the reader's acquire in [`read`](Word::read).
/// As a head: written by the reader's `advance` and by anyone's `flag` (seize); its release (the
/// copy out is over) pairs with the writer's acquire before it writes into the freed space.
#[repr(transparent)]
#[derive(Debug)]
pub struct Word(AtomicU64);

impl Default for Word {
    fn default() -> Self {
        Self::new()
    }
}

impl Word {
    /// A word at offset 0, not flagged.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Back to offset 0, for a new stream in a slot that both ends have left.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Reads the word.
    #[inline]
    pub fn read(&self) -> Reading {
        let word = self.0.load(Ordering::Acquire);
        Reading {
            offset: word & !FLAG,
            flagged: word & FLAG != 0,
        }
    }

    /// Moves the word from `from` to `to`: publishes (tail) or consumes (head).
    ///
    /// # Errors
    /// [`Demoted`] when the word is flagged, or is not where this end left it (then the peer lied
    /// and the direction is treated in the same way).
    #[inline]
    pub fn advance(&self, from: u64, to: u64) -> Result<(), Demoted> {
        // The success ordering is a full barrier on purpose: it is the fence of "publish, then look
        // whether anyone sleeps" (doorbell.rs).
        match self
            .0
            .compare_exchange(from, to & !FLAG, Ordering::SeqCst, Ordering::Acquire)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(Demoted),
        }
    }

    /// Sets the flag (seals or seizes) and returns the offset at which it stands for good.
    pub fn flag(&self) -> u64 {
        self.0.fetch_or(FLAG, Ordering::SeqCst) & !FLAG
    }
}

/// Fixes `[head, tail)` for good: seals the tail, then seizes the head. Idempotent; every caller,
/// in any process, gets the same answer.
///
/// The order matters: a head seized first would let the writer publish bytes that nobody takes and
/// whose end is not yet known.
pub fn demote(tail: &Word, head: &Word) -> (u64, u64) {
    let end = tail.flag();
    let start = head.flag();
    (start, end)
}
