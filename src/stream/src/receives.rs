//! Credits of receives: over verbs a message takes a receive that the peer has posted, and one that
//! finds none stalls the whole link, or ends it. So each end counts, and every message says how
//! many of the other's were taken and their receives posted again.
//!
//! ```text
//!   messages sent and not yet said to be taken  ≤  receives that the peer keeps posted
//! ```
//!
//! The last of them is kept for a message that says nothing but the count. It is due when the other
//! end has no more than half left by what it was told, and then there is always one to send it
//! with: of what the peer has sent this end has taken half without saying so, so that at most half
//! is on the way, and what comes says how many of ours were taken.
//!
//! A peer that sends more than it may is found by its count alone, before a queue runs empty.

use crate::error::{Error, PeerFault};
use crate::wire::Immediate;

/// Receives of both ends of a link, seen from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receives {
    /// Kept posted here, and at the peer's.
    ours: u16,
    theirs: u16,
    /// Messages sent so far, and of these said to be taken: modulo [`Immediate::COUNTS`], as all
    /// four.
    sent: u16,
    returned: u16,
    /// Messages that came so far, and what the peer was last told of them.
    taken: u16,
    told: u16,
}

/// Fewer than this many receives at one end make no link.
pub const MIN_RECEIVES: u16 = 4;
/// More would not be told apart by what an immediate has room for.
pub const MAX_RECEIVES: u16 = Immediate::COUNTS / 2;

const fn since(later: u16, earlier: u16) -> u16 {
    later.wrapping_sub(earlier) % Immediate::COUNTS
}

impl Receives {
    /// A link whose ends keep so many receives posted.
    ///
    /// # Errors
    /// [`PeerFault::Receives`]: not within [`MIN_RECEIVES`] and [`MAX_RECEIVES`].
    pub fn new(ours: u16, theirs: u16) -> Result<Self, Error> {
        let fits = |n: u16| (MIN_RECEIVES..=MAX_RECEIVES).contains(&n);
        if !fits(ours) || !fits(theirs) {
            return Err(PeerFault::Receives.into());
        }
        Ok(Self {
            ours,
            theirs,
            sent: 0,
            returned: 0,
            taken: 0,
            told: 0,
        })
    }

    /// Messages that may be sent now: all but the one kept for a count.
    #[must_use]
    pub const fn room(&self) -> u16 {
        let on_the_way = since(self.sent, self.returned);
        self.theirs.saturating_sub(1).saturating_sub(on_the_way)
    }

    /// Is a message of nothing but the count due?
    #[must_use]
    pub const fn must_tell(&self) -> bool {
        since(self.taken, self.told) >= self.ours / 2
            && since(self.sent, self.returned) < self.theirs
    }

    /// A message is sent: the count that it carries.
    pub const fn on_send(&mut self) -> u16 {
        self.sent = (self.sent + 1) % Immediate::COUNTS;
        self.told = self.taken;
        self.taken
    }

    /// A message has come with this count, and its receive is posted again.
    ///
    /// # Errors
    /// [`PeerFault::Receives`]: the peer has sent more than it may, or says to have taken what was
    /// not sent.
    pub fn on_came(&mut self, count: u16) -> Result<(), Error> {
        let untold = since(self.taken, self.told);
        let on_the_way = since(self.sent, self.returned);
        let more = since(count, self.returned);
        if untold >= self.ours || more > on_the_way || count >= Immediate::COUNTS {
            return Err(PeerFault::Receives.into());
        }
        self.taken = (self.taken + 1) % Immediate::COUNTS;
        self.returned = count;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    /// Two ends and what is on the way from each: counts, in order.
    struct World {
        ends: [Receives; 2],
        ways: [VecDeque<u16>; 2],
        posted: [usize; 2],
    }

    impl World {
        fn new(receives: [u16; 2]) -> Self {
            let [a, b] = receives;
            Self {
                ends: [Receives::new(a, b).unwrap(), Receives::new(b, a).unwrap()],
                ways: [VecDeque::new(), VecDeque::new()],
                posted: [usize::from(a), usize::from(b)],
            }
        }

        fn send(&mut self, end: usize) {
            let count = self.ends[end].on_send();
            self.ways[end].push_back(count);
            assert!(
                self.ways[end].len() <= self.posted[1 - end],
                "no receive is left"
            );
        }

        fn tell(&mut self, end: usize) {
            while self.ends[end].must_tell() {
                self.send(end);
            }
        }

        fn take(&mut self, end: usize) {
            if let Some(count) = self.ways[1 - end].pop_front() {
                self.ends[end].on_came(count).unwrap();
                self.tell(end);
            }
        }
    }

    proptest! {
        #[test]
        fn no_receive_is_missing_and_nobody_is_stuck(
            receives in [MIN_RECEIVES..20, MIN_RECEIVES..20],
            steps in prop::collection::vec((any::<bool>(), 0usize..2), 0..600),
        ) {
            let mut world = World::new(receives);
            for (sends, end) in steps {
                if sends && world.ends[end].room() > 0 {
                    world.send(end);
                } else {
                    world.take(end);
                }
            }
            // Once all has come, each may send half of what the other keeps posted at least.
            while world.ways.iter().any(|way| !way.is_empty()) {
                world.take(0);
                world.take(1);
            }
            for (end, other) in [(0, 1), (1, 0)] {
                let least = receives[other] - receives[other] / 2 - 1;
                prop_assert!(world.ends[end].room() >= least);
            }
        }

        #[test]
        fn a_lie_is_found_before_a_queue_runs_empty(
            receives in [MIN_RECEIVES..20, MIN_RECEIVES..20],
            counts in prop::collection::vec(
                prop_oneof![any::<u16>(), 0..Immediate::COUNTS, 0u16..40], 0..200,
            ),
            sends in prop::collection::vec(any::<bool>(), 200),
        ) {
            let [ours, theirs] = receives;
            let mut end = Receives::new(ours, theirs).unwrap();
            let (mut untold, mut sent) = (0, 0);
            for (count, sends) in counts.into_iter().zip(sends) {
                if sends && end.room() > 0 {
                    end.on_send();
                    sent += 1;
                    untold = 0;
                }
                if end.on_came(count).is_err() {
                    break;
                }
                untold += 1;
                prop_assert!(untold <= ours);
                prop_assert!(end.returned <= sent);
                prop_assert!(end.room() < theirs);
            }
        }
    }

    #[test]
    fn counts_go_round() {
        let mut world = World::new([5, 7]);
        for _ in 0..100_000 {
            world.send(0);
            world.take(1);
            world.send(1);
            world.take(0);
        }
    }

    #[test]
    fn queues_of_no_length_are_refused() {
        let all: Vec<_> = [0, 1, MAX_RECEIVES + 1, u16::MAX].into();
        for n in all {
            assert!(Receives::new(n, 8).is_err() && Receives::new(8, n).is_err());
        }
    }
}
