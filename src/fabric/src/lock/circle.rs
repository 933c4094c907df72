//! Waits that would never end, since a signal handler does not keep to the order of locks.
//!
//! A thread that holds the later of two locks never waits for the earlier one, unless a handler
//! that interrupted it does. If the holder of the earlier lock waits for the later one meanwhile,
//! neither goes on. So a thread that waits for long says for which one, and the handler that finds
//! itself at the end of such a chain gives up.

use super::me;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// What a thread that waits says.
struct Place {
    /// Its [`me`]; 0: nobody's place.
    thread: AtomicUsize,
    /// The thread that holds the lock.
    owner: AtomicUsize,
    /// The lock's order.
    order: AtomicU8,
    /// Changes each time that the thread has found the lock held.
    looks: AtomicU32,
}

/// Threads that wait for long at a time; one that finds no place is not seen by others.
const PLACES: usize = 64;

static WAITING: [Place; PLACES] = [const {
    Place {
        thread: AtomicUsize::new(0),
        owner: AtomicUsize::new(0),
        order: AtomicU8::new(0),
        looks: AtomicU32::new(0),
    }
}; PLACES];

/// Most threads in a chain that is followed.
const CHAIN: usize = 8;

/// The threads of a chain, and what they had last said.
type Chain = [(usize, u32); CHAIN];

/// A wait for a lock of that order.
pub(super) struct Wait {
    order: u8,
    place: Option<&'static Place>,
    /// The circle as it was found first; the thread 0 ends it.
    before: Chain,
}

impl Wait {
    pub(super) const fn new(order: u8) -> Self {
        Self {
            order,
            place: None,
            before: [(0, 0); CHAIN],
        }
    }

    /// The lock is held by `owner`: does that wait, perhaps by way of others, for a later lock that
    /// an outer frame of this thread holds?
    pub(super) fn closes_circle(&mut self, owner: usize) -> bool {
        self.say(owner);
        let Some(chain) = self.chain_from(owner) else {
            self.before = [(0, 0); CHAIN];
            return false;
        };
        // Each has begun another look since it was seen first, so that it waits still, for what
        // this thread has not given back meanwhile.
        let pairs = || chain.iter().zip(&self.before);
        if pairs().any(|(now, then)| now.0 != then.0) {
            self.before = chain;
            return false;
        }
        pairs().all(|(now, then)| now.0 == 0 || now.1.wrapping_sub(then.1) >= 2)
    }

    fn say(&mut self, owner: usize) {
        let own = |place: &&Place| place.thread.load(Ordering::Relaxed) == me();
        let free = |place: &&Place| {
            let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
            place.thread.compare_exchange(0, me(), set, fetch).is_ok()
        };
        // One for all waits of a thread: of one that a handler has interrupted nothing is to be
        // seen until it goes on.
        let place = WAITING.iter().find(own);
        self.place = place.or_else(|| WAITING.iter().find(free));
        if let Some(place) = self.place {
            place.owner.store(owner, Ordering::Relaxed);
            place.order.store(self.order, Ordering::Relaxed);
            place.looks.fetch_add(1, Ordering::Release);
        }
    }

    /// The threads from `owner` on of which each waits for the next, and the last one for this
    /// thread and a lock that comes after the wanted one.
    fn chain_from(&self, owner: usize) -> Option<Chain> {
        let mut chain = [(0, 0); CHAIN];
        let mut thread = owner;
        for link in &mut chain {
            // The lock is free: what the place of nobody still says is nothing.
            if thread == 0 {
                return None;
            }
            let waits = |place: &&Place| place.thread.load(Ordering::Acquire) == thread;
            let place = WAITING.iter().find(waits)?;
            *link = (thread, place.looks.load(Ordering::Acquire));
            thread = place.owner.load(Ordering::Relaxed);
            if thread == me() {
                return (place.order.load(Ordering::Relaxed) < self.order).then_some(chain);
            }
        }
        None
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            // Unless it was a handler's meanwhile, which has given it back.
            let (set, fetch) = (Ordering::Release, Ordering::Relaxed);
            let _ = place.thread.compare_exchange(me(), 0, set, fetch);
        }
    }
}

/// In the child of a fork: nobody waits.
pub fn after_fork() {
    for place in &WAITING {
        place.thread.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::lock::Guarded;
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    /// Three locks, the first of which is to be taken first.
    fn locks() -> [Guarded<()>; 3] {
        [2, 1, 0].map(|order| Guarded::of_order(order, ()))
    }

    /// Threads that have each of these locks and want the next; and this one, which has the last
    /// one and wants the first, as a handler may.
    fn a_handler_gives_up(locks: &[Guarded<()>]) {
        let begun = AtomicU32::new(0);
        let last = locks.last().unwrap().lock();
        thread::scope(|scope| {
            for pair in locks.windows(2).rev() {
                let before = begun.load(Ordering::SeqCst);
                let begun = &begun;
                scope.spawn(move || {
                    let _first = pair[0].lock().unwrap();
                    begun.fetch_add(1, Ordering::SeqCst);
                    // In order, so that it is this one that gets what it waits for.
                    assert!(pair[1].lock().is_some());
                });
                while begun.load(Ordering::SeqCst) == before {
                    thread::yield_now();
                }
            }
            assert!(locks[0].lock().is_none());
            drop(last);
        });
        assert!(locks.iter().all(|lock| lock.lock().is_some()));
    }

    #[test]
    fn a_lock_that_was_just_given_back_closes_no_circle() {
        let mut wait = super::Wait::new(3);
        for _ in 0..1000 {
            // What threads said that waited once for a lock of this one's.
            for place in &super::WAITING {
                place.owner.store(crate::lock::me(), Ordering::Relaxed);
            }
            assert!(!wait.closes_circle(0));
        }
    }

    #[test]
    fn a_handler_gives_up_what_its_own_section_holds_off() {
        for _ in 0..200 {
            a_handler_gives_up(&locks()[..2]);
        }
    }

    #[test]
    fn so_it_does_at_the_end_of_a_chain() {
        a_handler_gives_up(&locks());
    }

    #[test]
    fn a_holder_that_waits_for_nobody_here_is_waited_for() {
        let [first, second, third] = locks();
        let begun = AtomicU32::new(0);
        let _second = second.lock();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _first = first.lock().unwrap();
                begun.store(1, Ordering::SeqCst);
                let _third = third.lock().unwrap();
                thread::sleep(Duration::from_millis(20));
            });
            while begun.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            assert!(first.lock().is_some());
        });
    }

    #[test]
    fn many_threads_that_keep_to_the_order_all_get_what_they_want() {
        let locks = locks();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..20_000 {
                        let wanted = locks.iter().skip(round % 3);
                        let held: Vec<_> = wanted.map(Guarded::lock).collect();
                        assert!(held.iter().all(Option::is_some));
                    }
                });
            }
        });
    }
}
