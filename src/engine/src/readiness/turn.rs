//! Whose turn it is, the links' or TCP's, where the program was away.
//!
//! The kernel tells of sockets in the order in which they became ready. A set has two such lists, its own of streams and the kernel's, and one
//! that is awake tells of the streams first, which costs nothing: for a program that waits again at once all that is in them came within
//! microseconds. One that was busy for long finds what came in all that time: what an old client has sent last stands in one list, what a new one,
//! still on TCP, has sent long before stands in the other.
//!
//! So whoever marks a stream of a set that is awake says when ([`Stamp`]), and TCP says how long it has had what there is to read. A wait that
//! comes [`AWAY_NS`] behind the last one puts both lists together by that. The order in each stays what it is; what came closer together
//! than the clocks tell, or at a time that nobody knows (what other hosts have brought, listeners, pipes), is told as ever, streams first.
//!
//! What the kernel has told it does not take back. So TCP is asked first what it has, and how old that is, and then as many places as that
//! is worth are filled in turn.

use super::epoll::{AT_ONCE, LOOKS, Waiter};
use super::regs::Inside;
use super::set::Set;
use super::{READABLE, of_stream, reads_ring};
use crate::sockets::tcp;
use core::sync::atomic::Ordering;
use sluice_fabric::doorbell::Stamp;
use sluice_fabric::sys;

/// A program that has looked at the kernel's part no later than this ago (`sys::rough_ns`) was away: while it waits, it does so more often.
const AWAY_NS: u64 = 1_000_000;

/// The registrations that TCP is asked about are one for so many ns of the time away, which makes the look cheap beside that.
const NS_PER_REG: u64 = 2048;
/// ... and never more than these, nor ever less than the others.
const REGS: core::ops::RangeInclusive<u64> = 512..=16_384;

/// Of so many connections TCP is asked how long they could be read.
const ASKED: usize = 64;

/// So many waits behind the one that came late go by time, too, while each is full: what there was is told in turn however few places
/// the program has.
const LATE_WAITS: u32 = 16;

/// Whose the next places of an answer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Streams(usize),
    Kernel(usize),
}

/// What is to be told.
struct Lists {
    /// How old the news of streams are, in ms, in the order in which they are told.
    streams: Vec<Option<u32>>,
    /// Connections that TCP may tell of, and the data that it tells of them by.
    fds: Vec<libc::pollfd>,
    data: Vec<u64>,
}

/// Two lists as one of `most` places at most. Ages in ms; TCP's goes first where it is older by more than `slack`.
fn merge(streams: &[Option<u32>], tcp: &[u32], slack: u32, most: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    let (mut s, mut t) = (0, 0);
    while s + t < most {
        let is_tcp = match (streams.get(s), tcp.get(t)) {
            (None, None) => break,
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (Some(stream), Some(&tcp)) => stream.is_some_and(|age| tcp > age.saturating_add(slack)),
        };
        if is_tcp {
            t += 1;
        } else {
            s += 1;
        }
        match (is_tcp, runs.last_mut()) {
            (true, Some(Run::Kernel(n))) | (false, Some(Run::Streams(n))) => *n += 1,
            (true, _) => runs.push(Run::Kernel(1)),
            (false, _) => runs.push(Run::Streams(1)),
        }
    }
    runs
}

impl Set {
    /// For how long the program has been away; 0: it was not, as far as known.
    fn away_ns(&self) -> u64 {
        let looked = self.looked_ns.load(Ordering::Relaxed);
        let away = sys::rough_ns().wrapping_sub(looked);
        // The clock may differ between processors.
        if looked != 0 && (AWAY_NS..1 << 63).contains(&away) {
            away
        } else {
            0
        }
    }

    /// Is this wait to tell by time?
    #[cold]
    #[inline(never)]
    pub(super) fn is_late(&self) -> bool {
        self.late_waits.load(Ordering::Relaxed) != 0 || self.away_ns() != 0
    }
}

impl Inside {
    /// What there is to tell, if there may be something in both lists; of no more than `regs_max` registrations. Ages beyond `oldest` are none: the
    /// peer's clock is another, or it lies.
    fn lists(&mut self, most: usize, regs_max: u64, oldest: u32) -> Option<Lists> {
        if u64::from(self.places()) > regs_max {
            return None;
        }
        let now = Stamp::now();
        let mut lists = Lists {
            streams: Vec::new(),
            fds: Vec::new(),
            data: Vec::new(),
        };
        for i in 0..self.ready.len() {
            let index = self.ready.get(i).copied();
            let Some(reg) = index.and_then(|index| self.reg(index)) else {
                continue;
            };
            let has_news = |sock| of_stream(sock) & reg.events != 0;
            if reg.adopted && reg.armed && reg.sock.is_some_and(has_news) {
                let age = reg.since.age(now).filter(|&age| age <= oldest);
                lists.streams.push(age);
                if lists.streams.len() == most {
                    break;
                }
            }
        }
        if lists.streams.iter().all(Option::is_none) {
            return None;
        }
        for index in 0..self.places() {
            let reg = self
                .reg(index)
                .filter(|reg| reg.armed && !reg.ghost && !reg.parked && reg.events & READABLE != 0);
            if let Some(reg) = reg
                && let Some(sock) = reg.sock
                && !(reg.adopted && reads_ring(sock))
            {
                lists.fds.push(libc::pollfd {
                    fd: sock.fd.load(Ordering::Relaxed),
                    events: libc::POLLIN,
                    revents: 0,
                });
                lists.data.push(reg.data);
            }
        }
        (!lists.fds.is_empty()).then_some(lists)
    }
}

impl Lists {
    /// What TCP can be read of: how old that is, in ms, and the data that the kernel tells of it by; the oldest first.
    fn of_tcp(&mut self) -> Vec<(u32, u64)> {
        if sys::poll(&mut self.fds, Some(AT_ONCE)).is_ok_and(|shown| shown == 0) {
            return Vec::new();
        }
        let mut all: Vec<_> = self
            .fds
            .iter()
            .zip(&self.data)
            .filter(|(shown, _)| shown.revents & libc::POLLIN != 0)
            .take(ASKED)
            .filter_map(|(shown, &data)| Some((tcp::unread_for(shown.fd)?, data)))
            .collect();
        all.sort_by_key(|&(age, _)| core::cmp::Reverse(age));
        all
    }
}

impl Waiter {
    /// An answer in the order in which the news came, streams' and TCP's. `None`, and nothing is taken: there are none of one kind, or it is not
    /// known which came first.
    #[cold]
    #[inline(never)]
    pub(super) fn by_time(&mut self) -> Option<usize> {
        let set = self.set;
        let away = set.away_ns();
        let waits = match set.late_waits.swap(0, Ordering::Relaxed) {
            _ if away != 0 => LATE_WAITS,
            left => left.saturating_sub(1),
        };
        // The time away is known to a factor of three.
        let oldest = match away / 1_000_000 {
            0 => Stamp::ROUND_MS / 2,
            ms => ms
                .saturating_mul(3)
                .saturating_add(100)
                .min(u64::from(Stamp::ROUND_MS)) as u32,
        };
        if oldest > Stamp::ROUND_MS / 2 {
            return None;
        }
        let regs_max = (away / NS_PER_REG).clamp(*REGS.start(), *REGS.end());
        let most = self.max;
        let mut lists = set
            .with(|inside| inside.lists(most, regs_max, oldest))
            .flatten()?;
        let tcp = lists.of_tcp();
        if tcp.is_empty() {
            return None;
        }
        let ages: Vec<u32> = tcp.iter().map(|&(age, _)| age).collect();
        let runs = merge(&lists.streams, &ages, 2 * sys::coarse_tick_ms(), most);
        // There is an answer: no signal that only the mask lets through is delivered.
        let mask = core::mem::replace(&mut self.mask, core::ptr::null());
        let count = self.fill(&runs, &lists.streams, &tcp);
        self.mask = mask;
        set.kernel_turn.store(false, Ordering::Relaxed);
        set.late_waits
            .store(if count == most { waits } else { 0 }, Ordering::Relaxed);
        (count != 0).then_some(count)
    }

    /// Fills the array in turn, and then with what else there is.
    fn fill(&mut self, runs: &[Run], streams: &[Option<u32>], tcp: &[(u32, u64)]) -> usize {
        let mut count = 0;
        let mut streams_left = streams.len();
        let mut tcp = tcp.iter();
        for &run in runs {
            count = match run {
                Run::Streams(n) => {
                    streams_left -= n;
                    self.append_some(count, n)
                }
                Run::Kernel(n) => {
                    let due: Vec<u64> = tcp.by_ref().take(n).map(|&(_, data)| data).collect();
                    self.until_told(count, &due)
                }
            };
        }
        count = self.append_some(count, streams_left);
        self.kernel_some(count, self.max - count)
    }

    /// The kernel's events, in its order, until those under this data are among them. It tells of others that came before, of which nobody
    /// knows when.
    fn until_told(&mut self, mut count: usize, due: &[u64]) -> usize {
        for _ in 0..LOOKS.max(due.len() as u32) {
            let told = self.out().get(..count).unwrap_or_default();
            let is_missing = |data: &&u64| !told.iter().any(|event| { event.u64 } == **data);
            let missing = due.iter().filter(is_missing).count();
            if missing == 0 {
                break;
            }
            let more = self.kernel_some(count, missing);
            // Bells take places, and are told to nobody.
            if more == count && !self.was_full {
                break;
            }
            count = more;
        }
        count
    }

    /// So many events of the kernel's at most, behind the first `count`.
    fn kernel_some(&mut self, count: usize, most: usize) -> usize {
        let places = self.max;
        let most = most.min(places - count);
        if most == 0 {
            self.was_full = false;
            return count;
        }
        self.max = count + most;
        let found = self.kernel(count, Some(&AT_ONCE));
        self.max = places;
        match found {
            // Asked again, it tells of a level again.
            Ok((end, _)) => self.fold(count, end),
            Err(_) => {
                self.was_full = false;
                count
            }
        }
    }

    /// So many streams' events at most, behind the first `count`.
    fn append_some(&mut self, count: usize, most: usize) -> usize {
        let places = self.max;
        self.max = places.min(count + most);
        let count = self.append(count);
        self.max = places;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Run::{Kernel, Streams};

    #[test]
    fn what_came_first_is_told_first() {
        let streams = [Some(100), Some(50)];
        let all = |tcp: &[u32]| merge(&streams, tcp, 8, 9);
        assert_eq!(all(&[70]), [Streams(1), Kernel(1), Streams(1)]);
        assert_eq!(all(&[200, 150]), [Kernel(2), Streams(2)]);
        assert_eq!(all(&[20]), [Streams(2), Kernel(1)]);
        assert_eq!(
            all(&[200, 70, 1]),
            [Kernel(1), Streams(1), Kernel(1), Streams(1), Kernel(1)]
        );
    }

    #[test]
    fn what_came_within_the_clocks_grain_is_told_streams_first() {
        assert_eq!(merge(&[Some(50)], &[58], 8, 9), [Streams(1), Kernel(1)]);
        assert_eq!(merge(&[Some(50)], &[59], 8, 9), [Kernel(1), Streams(1)]);
        assert_eq!(
            merge(&[Some(u32::MAX)], &[u32::MAX], 8, 9),
            [Streams(1), Kernel(1)]
        );
    }

    #[test]
    fn of_streams_at_no_known_time_none_waits() {
        assert_eq!(merge(&[None], &[1000], 8, 9), [Streams(1), Kernel(1)]);
        let behind = merge(&[None, Some(10)], &[1000], 8, 9);
        assert_eq!(behind, [Streams(1), Kernel(1), Streams(1)]);
    }

    #[test]
    fn the_order_of_each_kind_stays() {
        // The second is older, as that of a stream which was told before may be: it keeps its place.
        let runs = merge(&[Some(10), Some(90)], &[50], 8, 9);
        assert_eq!(runs, [Kernel(1), Streams(2)]);
    }

    #[test]
    fn no_more_places_are_given_than_there_are() {
        let (streams, tcp) = ([Some(100), Some(50)], [200, 70]);
        assert_eq!(merge(&streams, &tcp, 8, 1), [Kernel(1)]);
        assert_eq!(merge(&streams, &tcp, 8, 2), [Kernel(1), Streams(1)]);
        assert_eq!(merge(&streams, &tcp, 8, 0), []);
        assert_eq!(merge(&[], &tcp, 8, 9), [Kernel(2)]);
        assert_eq!(merge(&streams, &[], 8, 9), [Streams(2)]);
        assert_eq!(merge(&[], &[], 8, 9), []);
    }
}
