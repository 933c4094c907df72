//! The two words of a direction, `tail|SEALED` and `head|SEIZED`.
//!
//! ```text
//!            writer: publish(from, to)            reader: consume(from, to)
//!   tail  0 ───────────────► T ──seal──► T|SEALED      (no publish succeeds any more)
//!   head  0 ───────────────► H ──seize─► H|SEIZED      (no consume succeeds any more)
//! ```
//!
//! Both are changed by compare-and-swap only, by any holder of the mapping. The end that demotes
//! seals the tail first, then seizes the head. From then on `[H, T)` is fixed once for all: the
//! bytes that the reader will never take from the ring and that the writer's side sends again on
//! TCP. A writer whose publish fails takes its bytes to TCP after them; a reader whose consume
//! fails throws its copy away and reads TCP. Nobody waits and no message is sent. With either
//! compare-and-swap replaced by a store, bytes are lost or repeated (`tests/loom.rs` shows it).
//!
//! Offers (`docs/protocol.md`): the writer lets the reader take bytes from its own memory, after
//! all that is in the ring. The head decides those too, so that two words stay enough:
//!
//! ```text
//!   63      62 ... 55   54 ... 0
//!   SEIZED  round       offset          (a tail has no round)
//!
//!   take      (round, T) ──► (round, T+n)     reader; head passes tail, which then follows to T+n
//!   withdraw  (round, H) ──► (round+1, H)     either end, H ≤ T
//!   seize     ──► SEIZED                      anyone: no take succeeds any more
//! ```
//!
//! The reader copies first and takes afterwards, so of take, withdrawal and seizure exactly one
//! happens to an offer, and a copy whose take failed is thrown away. A round comes again after 256
//! withdrawals: a writer makes at most [`ROUNDS_MAX`] while the head's offset stands still, and
//! none that copies meanwhile can be deceived, since only its own reader moves the offset.
//!
//! Offsets count bytes of the stream from the switch on, up to [`OFFSET_MAX`].

use crate::sync::{AtomicU64, Ordering};

/// Bit 63: the tail is sealed or the head is seized.
const FLAG: u64 = 1 << 63;
/// Bits 55 to 62: how many offers were withdrawn, modulo 256.
const ROUND_SHIFT: u32 = 55;
/// Bits 0 to 54.
const OFFSET: u64 = (1 << ROUND_SHIFT) - 1;
/// Tries of a compare-and-swap that only the peer's own doings can fail: an honest one fails a few.
const TRIES: u32 = 1000;

/// A stream is taken back to TCP before an offset grows beyond this: 16 PiB.
pub const OFFSET_MAX: u64 = 1 << 54;

/// Withdrawals that a writer may make while the head's offset stands still.
pub const ROUNDS_MAX: u8 = 250;

fn word(round: u8, offset: u64) -> u64 {
    u64::from(round) << ROUND_SHIFT | offset & OFFSET
}

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
    /// A head's round: withdrawals of offers so far, modulo 256. Zero in an honest tail.
    pub round: u8,
}

impl Reading {
    /// Of a word's bits: also of one that was copied from another process.
    #[must_use]
    pub fn of(word: u64) -> Self {
        Self {
            offset: word & OFFSET,
            flagged: word & FLAG != 0,
            round: (word >> ROUND_SHIFT) as u8,
        }
    }
}

/// What a withdrawal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// The offer is gone, by this call or by the other end: it can never be taken.
    Done,
    /// The reader was faster: this many bytes are its own.
    Taken(u64),
    /// Seized: what became of the offer is told by where the head stands for good.
    Demoted,
}

/// A stream offset with a flag, shared with a peer that may write anything into it.
///
/// As a tail: written by the writer's [`advance`](Word::advance) and by anyone's
/// [`flag`](Word::flag) (seal); its release pairs with the reader's acquire in
/// [`read`](Word::read). As a head: written by the reader's `advance` and by anyone's `flag`
/// (seize); its release (the copy out is over) pairs with the writer's acquire before it writes
/// into the freed space.
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
        Reading::of(self.0.load(Ordering::Acquire))
    }

    /// Moves a tail, or a head of round 0, from `from` to `to`: publishes (tail) or consumes
    /// (head).
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

    /// Moves a head from `from` to `to`: consumes ring bytes. `round` is as last read; a withdrawal
    /// that comes in between is no obstacle.
    ///
    /// # Errors
    /// As [`advance`](Word::advance).
    #[inline]
    pub fn consume(&self, round: u8, from: u64, to: u64) -> Result<(), Demoted> {
        let mut round = round;
        for _ in 0..TRIES {
            // A full barrier, as in `advance`.
            match self.0.compare_exchange(
                word(round, from),
                word(round, to),
                Ordering::SeqCst,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => {
                    let now = Reading::of(now);
                    if now.flagged || now.offset != from {
                        return Err(Demoted);
                    }
                    round = now.round;
                }
            }
        }
        Err(Demoted)
    }

    /// Reader: takes an offer made in `round` at `from`, whose bytes up to `to` it has copied.
    /// False: the offer was withdrawn or the head seized, and the copy is worth nothing.
    #[inline]
    pub fn take(&self, round: u8, from: u64, to: u64) -> bool {
        self.0
            .compare_exchange(
                word(round, from),
                word(round, to),
                Ordering::SeqCst,
                Ordering::Acquire,
            )
            .is_ok()
    }

    /// Either end: withdraws the offer made in `round` at offset `tail`. Does not wait: a peer that
    /// keeps changing the word is answered as if it had demoted, and the caller does.
    pub fn withdraw(&self, round: u8, tail: u64) -> Withdrawal {
        let mut now = self.0.load(Ordering::Acquire);
        for _ in 0..TRIES {
            let seen = Reading::of(now);
            if seen.flagged {
                return Withdrawal::Demoted;
            }
            if seen.offset > tail {
                return Withdrawal::Taken(seen.offset - tail);
            }
            if seen.round != round {
                return Withdrawal::Done;
            }
            match self.0.compare_exchange(
                now,
                word(round.wrapping_add(1), seen.offset),
                Ordering::SeqCst,
                Ordering::Acquire,
            ) {
                Ok(_) => return Withdrawal::Done,
                Err(other) => now = other,
            }
        }
        Withdrawal::Demoted
    }

    /// Sets the flag (seals or seizes) and returns the offset at which it stands for good.
    pub fn flag(&self) -> u64 {
        self.0.fetch_or(FLAG, Ordering::SeqCst) & OFFSET
    }
}

/// Makes the tail follow a take that moved the head from `from` to `to`. Both ends do; the
/// later one changes nothing.
///
/// # Errors
/// [`Demoted`] when the tail was sealed at `from`, or stands where no take can have put it.
#[inline]
pub fn follow(tail: &Word, from: u64, to: u64) -> Result<(), Demoted> {
    if tail.advance(from, to).is_ok() {
        return Ok(());
    }
    let now = tail.read();
    if now.flagged || now.offset < to {
        Err(Demoted)
    } else {
        Ok(())
    }
}

/// Fixes `[head, tail)` for good: seals the tail, then seizes the head. Idempotent; every caller,
/// in any process, gets the same answer. The head is beyond the tail when an offer was taken and
/// the tail had not followed: then nothing is left, and the writer had the difference taken.
///
/// The order matters: a head seized first would let the writer publish bytes that nobody takes and
/// whose end is not yet known.
pub fn demote(tail: &Word, head: &Word) -> (u64, u64) {
    let end = tail.flag();
    let start = head.flag();
    (start, end)
}
