//! Marks of link writes that follow a TCP write of the same process.
//!
//! A server hears of its streams from their links and of all other sockets from the kernel, and
//! nothing tells which of the two came first. The process that wrote knows. So it notes that it did
//! something by TCP that another process may hear of, and its next new mark for a waiter says so
//! ([`Slot::wake_after`](sluice_fabric::doorbell::Slot::wake_after)): the waiter asks the kernel
//! before it tells of that stream. An answer on the connection takes the note back, since the other
//! process has heard by then.
//!
//! The note is one word that grows: odd after something by TCP, even again after the next mark for
//! anybody. Each waiter has a note of its own, the even number that its last mark found or made.
//! All of it is a hint.

use crate::meeting;
use crate::socket::Socket;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

#[repr(align(64))]
struct Turn {
    number: AtomicU32,
    /// The connection on which something was done by TCP last; 0: none that is known.
    on: AtomicUsize,
}

static TURN: Turn = Turn::new();

/// This process is about to do something by TCP, or just did, that another of this host may hear
/// of. Without links it makes no marks that could come after that.
pub(crate) fn acts_by_tcp() {
    if meeting::has_links() {
        TURN.acts(0);
    }
}

/// As [`acts_by_tcp`], on this connection. One that will never come to a link has no reader that
/// would heed it.
#[inline]
pub(crate) fn acts_on(sock: &Socket) {
    if meeting::has_links()
        && sock.next_try.load(Ordering::Relaxed) != u64::MAX
        && sock.pinned.load(Ordering::Relaxed) == 0
    {
        TURN.acts(address(sock));
    }
}

/// Bytes of this connection have come by TCP: an answer.
#[inline]
pub fn is_answered(sock: &Socket) {
    TURN.is_answered(address(sock));
}

/// Does a mark that is made now, for the waiter with this note, come after something by TCP that
/// its last one did not?
#[inline]
pub fn is_after_tcp(note: &AtomicU32) -> bool {
    TURN.is_after(note)
}

fn address(sock: &Socket) -> usize {
    core::ptr::from_ref(sock) as usize
}

impl Turn {
    const fn new() -> Self {
        Self {
            number: AtomicU32::new(0),
            on: AtomicUsize::new(0),
        }
    }

    #[inline]
    fn acts(&self, on: usize) {
        // Only what changes is stored: others read the words all the time.
        if self.on.load(Ordering::Relaxed) != on {
            self.on.store(on, Ordering::Relaxed);
        }
        if self.number.load(Ordering::Relaxed).is_multiple_of(2) {
            self.number.fetch_or(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn is_answered(&self, on: usize) {
        if self.on.load(Ordering::Relaxed) == on {
            self.number.fetch_and(!1, Ordering::Relaxed);
            self.on.store(0, Ordering::Relaxed);
        }
    }

    fn is_after(&self, note: &AtomicU32) -> bool {
        let mut number = self.number.load(Ordering::Relaxed);
        if number.is_multiple_of(2) && note.load(Ordering::Relaxed) == number {
            return false;
        }
        if !number.is_multiple_of(2) {
            let next = number.wrapping_add(1);
            // A thread that was faster has made it the same, or more.
            let _ =
                self.number
                    .compare_exchange(number, next, Ordering::Relaxed, Ordering::Relaxed);
            number = next;
        }
        note.swap(number, Ordering::Relaxed) != number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two waiters that have heard of all so far.
    fn fresh() -> (Turn, AtomicU32, AtomicU32) {
        let turn = Turn::new();
        turn.number.store(u32::MAX - 7, Ordering::Relaxed);
        let (one, other) = (AtomicU32::new(0), AtomicU32::new(0));
        let _ = (turn.is_after(&one), turn.is_after(&other));
        (turn, one, other)
    }

    #[test]
    fn each_waiter_hears_once_of_what_went_by_tcp() {
        let (turn, one, other) = fresh();
        for _ in 0..8 {
            assert!(!turn.is_after(&one) && !turn.is_after(&other));
            turn.acts(7);
            turn.acts(8);
            assert!(turn.is_after(&one) && !turn.is_after(&one));
            assert!(turn.is_after(&other) && !turn.is_after(&other));
        }
        // What only one has heard of is news to the other still.
        for _ in 0..2 {
            turn.acts(7);
            assert!(turn.is_after(&one));
        }
        assert!(turn.is_after(&other) && !turn.is_after(&other));
    }

    #[test]
    fn what_is_answered_was_heard() {
        let (turn, one, other) = fresh();
        turn.acts(7);
        turn.acts(8);
        turn.is_answered(7);
        assert!(turn.is_after(&one));
        // Of one waiter's mark the other knows nothing, nor whether the answer was of all.
        turn.is_answered(8);
        assert!(turn.is_after(&other));
        turn.acts(7);
        turn.is_answered(7);
        assert!(!turn.is_after(&one) && !turn.is_after(&other));
    }
}
