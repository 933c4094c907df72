//! The watch over a ring that a non-blocking writer found full: a reader that does not read any more is found by the control
//! thread, which looks when its patience may be over. A writer that finds the ring full again and again, since its reader is
//! only slower, pays for it by two words, and the control thread is woken once in that time.

use core::sync::atomic::{AtomicU64, Ordering};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Full {
    /// When the control thread is to look (`sys::now_ns`); 0: it does not watch.
    due: AtomicU64,
    /// What the reader had read when the ring was found full.
    seen: AtomicU64,
}

/// What the control thread is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing: it does not watch.
    Nothing,
    /// Nothing for so many ns.
    Later(u64),
    /// The patience of `due` is over: has the reader read beyond `seen`?
    Now { due: u64, seen: u64 },
}

impl Full {
    /// Nobody watches.
    pub fn reset(&self) {
        self.due.store(0, Ordering::Relaxed);
    }

    /// The ring was found full when the reader had read `seen`; it has until `due` to go on. True: the control thread is to be told to
    /// watch.
    pub fn begin(&self, seen: u64, due: u64) -> bool {
        let before = self.due.load(Ordering::Relaxed);
        if is_watched(before, due) && self.seen.load(Ordering::Relaxed) == seen {
            // Its time runs already.
            return false;
        }
        // In this order: whoever sees the new position sees the new time.
        let before = self.due.swap(due, Ordering::AcqRel);
        self.seen.store(seen, Ordering::Release);
        !is_watched(before, due)
    }

    /// By who watches.
    pub fn look(&self, now: u64) -> Look {
        let seen = self.seen.load(Ordering::Acquire);
        let due = self.due.load(Ordering::Acquire);
        if due == 0 {
            Look::Nothing
        } else if now < due {
            Look::Later(due - now)
        } else {
            Look::Now { due, seen }
        }
    }

    /// Nobody watches any more; false: the ring was found full since `due` was looked at, so that somebody must.
    pub fn end(&self, due: u64) -> bool {
        self.due
            .compare_exchange(due, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

/// Does the control thread watch until `before`, when somebody wants it to until `due`? What it has not looked at long after that it was
/// never told: a handler left by a jump the call that was to tell it.
const fn is_watched(before: u64, due: u64) -> bool {
    const LONG_NS: u64 = 10_000_000_000;
    before != 0 && due < before + LONG_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_tries_again_does_not_prolong_the_patience() {
        let full = Full::default();
        assert!(full.begin(7, 100));
        assert!(!full.begin(7, 150));
        assert_eq!(full.look(99), Look::Later(1));
        assert_eq!(full.look(100), Look::Now { due: 100, seen: 7 });
    }

    #[test]
    fn a_reader_that_has_read_has_all_the_time_again() {
        let full = Full::default();
        assert!(full.begin(7, 100));
        assert!(!full.begin(9, 150));
        assert_eq!(full.look(100), Look::Later(50));
        assert_eq!(full.look(150), Look::Now { due: 150, seen: 9 });
    }

    #[test]
    fn a_watch_that_nobody_keeps_begins_anew() {
        let full = Full::default();
        assert_eq!(full.look(50), Look::Nothing);
        assert!(full.begin(7, 100));
        assert!(!full.begin(7, 10_000_000_099));
        assert!(full.begin(7, 10_000_000_100));
    }

    #[test]
    fn a_watch_that_was_begun_meanwhile_does_not_end() {
        let full = Full::default();
        assert!(full.begin(7, 100));
        assert!(!full.begin(9, 150));
        assert!(!full.end(100));
        assert!(full.end(150));
        assert!(full.begin(9, 200));
    }
}
