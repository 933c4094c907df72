//! Marks of link writes that follow a TCP write of the same process.
//!
//! A server hears of its streams from links and of all other sockets from the kernel, and nothing
//! tells which news came first. The writing process knows. So it notes when it has done something
//! by TCP that another process may hear of, and its next new mark for a waiter says so
//! ([`Slot::wake_after`](sluice_fabric::doorbell::Slot::wake_after)): that waiter asks the kernel
//! before it reports the stream. An answer on the connection cancels the note, since the other
//! process has heard by then.
//!
//! The note is one word that grows: odd after a use of TCP, even again after the next mark for any
//! waiter. Each waiter also has a word, the even number that its last mark found or made. All of it
//! is a hint.

use crate::meeting;
use crate::socket::Socket;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

#[repr(align(64))]
struct Turn {
    number: AtomicU32,
    /// The connection on which TCP was used last; 0: unknown.
    on: AtomicUsize,
}

static TURN: Turn = Turn::new();

/// Notes that this process is about to use TCP, or just did, in a way that another process of the
/// host may hear of. Without links there are no marks that could follow.
pub(crate) fn acts_by_tcp() {
    if meeting::has_links() {
        TURN.acts(0);
    }
}

/// [`acts_by_tcp`] on this connection. If it will never be on a link, no reader heeds the note.
#[inline]
pub(crate) fn acts_on(sock: &Socket) {
    if meeting::has_links()
        && sock.next_try.load(Ordering::Relaxed) != u64::MAX
        && sock.pinned.load(Ordering::Relaxed) == 0
    {
        TURN.acts(address(sock));
    }
}

/// Cancels the note: bytes of this connection have come by TCP, an answer.
#[inline]
pub fn is_answered(sock: &Socket) {
    TURN.is_answered(address(sock));
}

/// Returns whether a mark made now, for the waiter with this word, follows a use of TCP that its
/// last mark did not follow.
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
        // Only changes are stored, since other threads read the words all the time.
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
            // A faster thread has made it the same, or more.
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

    /// Two waiters that have heard of everything so far.
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
        // What one waiter has heard of is still news to the other.
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
        // The other waiter knows nothing of that mark, nor whether the answer was to everything.
        turn.is_answered(8);
        assert!(turn.is_after(&other));
        turn.acts(7);
        turn.is_answered(7);
        assert!(!turn.is_after(&one) && !turn.is_after(&other));
    }
}
