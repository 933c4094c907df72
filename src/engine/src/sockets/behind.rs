//! What this process does by links, behind what it did by TCP.
//!
//! A server hears of its streams from their links, and of all else from the kernel, and nothing tells which of the two came first where they came
//! within microseconds. Whoever wrote knows. So a process notes that it did something by TCP that another may hear of, and the next new mark
//! that it makes for a waiter says so ([`Stamp::behind_tcp`](sluice_fabric::doorbell::Stamp::behind_tcp)).
//!
//! What was heard long ago is no matter: an answer on the connection takes the note back, and [`RECENT_MS`] do.
//!
//! The note is one word that grows: odd behind something by TCP, even again behind the next mark for anybody. Beside each waiter stands the
//! even number that its last mark found, or made. All of it is a hint.

use crate::readiness;
use crate::rendezvous;
use crate::sockets::sock::Sock;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use sluice_fabric::sys;

/// What was done by TCP longer ago, in ms, has either been heard, or clocks tell that it came before.
const RECENT_MS: u32 = readiness::GRAIN_MS;

#[repr(align(64))]
struct Turn {
    number: AtomicU32,
    /// When something was done by TCP last, by the coarse clock.
    at_ms: AtomicU32,
    /// The connection on which it was; 0: none that is known.
    on: AtomicUsize,
}

static TURN: Turn = Turn::new();

/// This process is about to do something by TCP, or just did, that another of this host may hear
/// of. Without links it makes no marks that could come after that.
pub fn acts_by_tcp() {
    if rendezvous::has_links() {
        TURN.acts(0, sys::coarse_ms() as u32);
    }
}

/// As [`acts_by_tcp`], on this connection. One that will never come to a link has no reader that would heed it.
#[inline]
pub fn acts_on(sock: &Sock) {
    if rendezvous::has_links()
        && sock.next_try.load(Ordering::Relaxed) != u64::MAX
        && sock.pinned.load(Ordering::Relaxed) == 0
    {
        TURN.acts(address(sock), sys::coarse_ms() as u32);
    }
}

/// Bytes of this connection have come by TCP: an answer.
#[inline]
pub fn is_answered(sock: &Sock) {
    TURN.is_answered(address(sock));
}

/// Does a mark that is made now, for the waiter with this note, come behind something by TCP that its last one did not?
#[inline]
pub fn is_behind_tcp(note: &AtomicU32) -> bool {
    TURN.is_behind(note, || sys::coarse_ms() as u32)
}

fn address(sock: &Sock) -> usize {
    core::ptr::from_ref(sock) as usize
}

impl Turn {
    const fn new() -> Self {
        Self {
            number: AtomicU32::new(0),
            at_ms: AtomicU32::new(0),
            on: AtomicUsize::new(0),
        }
    }

    #[inline]
    fn acts(&self, on: usize, now: u32) {
        // What is new alone: others read the words all the time.
        if self.at_ms.load(Ordering::Relaxed) != now {
            self.at_ms.store(now, Ordering::Relaxed);
        }
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

    fn is_behind(&self, note: &AtomicU32, now: impl FnOnce() -> u32) -> bool {
        let mut number = self.number.load(Ordering::Relaxed);
        if number.is_multiple_of(2) && note.load(Ordering::Relaxed) == number {
            return false;
        }
        let is_recent = now().wrapping_sub(self.at_ms.load(Ordering::Relaxed)) <= RECENT_MS;
        if !number.is_multiple_of(2) {
            let next = number.wrapping_add(1);
            // Whoever was faster has made it the same, or more.
            let _ =
                self.number
                    .compare_exchange(number, next, Ordering::Relaxed, Ordering::Relaxed);
            number = next;
        }
        note.swap(number, Ordering::Relaxed) != number && is_recent
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
        let _ = (turn.is_behind(&one, || 9), turn.is_behind(&other, || 9));
        (turn, one, other)
    }

    #[test]
    fn each_waiter_hears_once_of_what_went_by_tcp() {
        let (turn, one, other) = fresh();
        let behind = |note: &AtomicU32| turn.is_behind(note, || 9);
        for _ in 0..8 {
            assert!(!behind(&one) && !behind(&other));
            turn.acts(7, 9);
            turn.acts(8, 9);
            assert!(behind(&one) && !behind(&one));
            assert!(behind(&other) && !behind(&other));
        }
        // What only one has heard of is news to the other still.
        for _ in 0..2 {
            turn.acts(7, 9);
            assert!(behind(&one));
        }
        assert!(behind(&other) && !behind(&other));
    }

    #[test]
    fn what_is_answered_was_heard() {
        let (turn, one, other) = fresh();
        let behind = |note: &AtomicU32| turn.is_behind(note, || 9);
        turn.acts(7, 9);
        turn.acts(8, 9);
        turn.is_answered(7);
        assert!(behind(&one));
        // Of one waiter's mark the other knows nothing, nor whether the answer was of all.
        turn.is_answered(8);
        assert!(behind(&other));
        turn.acts(7, 9);
        turn.is_answered(7);
        assert!(!behind(&one) && !behind(&other));
    }

    #[test]
    fn what_was_long_ago_is_no_matter() {
        let (turn, one, other) = fresh();
        turn.acts(7, u32::MAX);
        assert!(turn.is_behind(&one, || RECENT_MS - 1));
        assert!(!turn.is_behind(&other, || RECENT_MS));
        assert!(!turn.is_behind(&other, || RECENT_MS - 1));
    }
}
