//! The watch over a ring that a non-blocking writer found full: a reader that does not read any more is found by the control
//! thread, which looks when its patience may be over. A writer that finds the ring full again and again, since its reader is
//! only slower, pays for it by one word: no clock, and the control thread is woken once in that time.

use core::sync::atomic::{AtomicU64, Ordering};

/// See the [module](self). 0: nobody watches; else what the reader had read when the ring was last found full, plus one, twice, and
/// whether the control thread knows.
#[derive(Debug, Default)]
pub struct Full(AtomicU64);

const TOLD: u64 = 1;

const fn mark(seen: u64) -> u64 {
    (seen + 1) << 1
}

const fn seen(mark: u64) -> u64 {
    (mark >> 1) - 1
}

impl Full {
    /// Nobody watches.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The ring was found full when the reader had read `at`. True: the control thread is to be told to watch.
    pub fn found(&self, at: u64) -> bool {
        let mut before = self.0.load(Ordering::Relaxed);
        // Another writer may have found it full behind that.
        while before & !TOLD < mark(at) {
            let after = mark(at) | before & TOLD;
            match self
                .0
                .compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        before & TOLD == 0
    }

    /// By the control thread, which was told: it watches from now on, the reader had read so much. `None`: it does already, or need not.
    pub fn watch(&self) -> Option<u64> {
        let told = |mark: u64| (mark != 0 && mark & TOLD == 0).then_some(mark | TOLD);
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, told)
            .ok()
            .map(seen)
    }

    /// By who watches: what the reader had read when the ring was last found full. `None`: there is nothing to watch any more.
    pub fn look(&self) -> Option<u64> {
        let mark = self.0.load(Ordering::Acquire);
        (mark & TOLD != 0).then(|| seen(mark))
    }

    /// By who watches, and has seen `at` last: nobody does any more. False: the ring was found full since, so that somebody must.
    pub fn end(&self, at: u64) -> bool {
        self.0
            .compare_exchange(mark(at) | TOLD, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_thread_is_told_until_it_knows() {
        let full = Full::default();
        assert_eq!((full.watch(), full.look()), (None, None));
        assert!(full.found(0));
        assert!(full.found(0));
        assert_eq!(full.look(), None);
        assert_eq!(full.watch(), Some(0));
        assert_eq!(full.watch(), None);
        assert!(!full.found(0));
        assert!(!full.found(9));
        assert_eq!(full.look(), Some(9));
    }

    #[test]
    fn a_writer_that_looked_earlier_does_not_hide_a_later_one() {
        let full = Full::default();
        assert!(full.found(9));
        assert_eq!(full.watch(), Some(9));
        assert!(!full.found(7));
        assert_eq!(full.look(), Some(9));
    }

    #[test]
    fn a_watch_over_a_ring_that_was_full_again_does_not_end() {
        let full = Full::default();
        assert!(full.found(7));
        assert_eq!(full.watch(), Some(7));
        assert!(!full.found(9));
        assert!(!full.end(7));
        assert!(full.end(9));
        assert_eq!(full.look(), None);
        assert!(full.found(9));
    }

    #[test]
    fn what_was_reset_is_told_of_anew() {
        let full = Full::default();
        assert!(full.found(7));
        assert_eq!(full.watch(), Some(7));
        full.reset();
        assert!(full.found(3));
        assert_eq!(full.look(), None);
        assert_eq!(full.watch(), Some(3));
    }
}
