//! Whose turn it is, the links' or TCP's, where a writer has used both, or the program was away.
//!
//! The kernel tells of sockets in the order in which they became ready. A set has two such lists, its own of streams and the kernel's, and one
//! that is awake tells of the streams first, which costs nothing: for a program that waits again at once all that is in them came within
//! microseconds. No clock tells these apart, but who wrote knows, and says so with the mark ([`behind`](crate::sockets::behind)): streams are told
//! up to such a one, then what the kernel has, then the others. One that was busy for long finds what came in all that time: what an old
//! client has sent last stands in one list, what a new one, still on TCP, has sent long before stands in the other.
//!
//! So whoever within the host marks a stream says when ([`Stamp`]), and TCP says how long it has had what there is to
//! read. A wait whose program was away for [`AWAY_NS`] compares the two, and where TCP has something that came before a stream's news, the kernel is
//! asked first, for as many places as the streams leave, and the answer is put in order. What came closer together than the clocks tell, or at a time
//! that nobody knows (what other hosts have brought, listeners, pipes), is told as if the program had been awake. In each of the two lists the order
//! stays what it is.
//!
//! Neither kind keeps the other from being told: what has waited longest has the next place, and behind [`LATE_WAITS`] answers by time that were
//! full comes an ordinary one, with its turn of the kernel's.

use super::epoll::{AT_ONCE, Waiter};
use super::nest::kernel_ready;
use super::ready::Order;
use super::regs::Inside;
use super::set::Set;
use super::{READABLE, of_stream, reads_ring};
use crate::sockets::tcp;
use core::sync::atomic::Ordering;
use sluice_fabric::doorbell::Stamp;
use sluice_fabric::sys;

/// A program that has looked at the kernel's part no later than this ago (`sys::rough_ns`, so it may be a third of this, or three times it) was
/// away: while it waits, it does so more often.
const AWAY_NS: u64 = 1_000_000;

/// The registrations that TCP is asked about are one for so many ns of the time away, which makes the look cheap beside that, within these limits.
/// In a set of more it is not asked.
const NS_PER_REG: u64 = 8192;
const REGS: core::ops::RangeInclusive<u64> = 64..=16_384;

/// Of so many connections TCP is asked how long they could be read; and so many streams beyond an answer are looked at.
const ASKED: usize = 64;

/// So many waits go by time, the one that came late and those behind it, while each is full: what there was is told in turn however few
/// places the program has.
const LATE_WAITS: u32 = 8;
/// Behind these: one wait goes the ordinary way.
const REST: u32 = u32::MAX;

/// Milliseconds by which ages must differ to tell: two ticks of the slowest clock that a kernel may have, of 100 Hz.
pub(crate) const GRAIN_MS: u32 = 20;
/// As ages are counted here.
const SLACK_MS: i64 = GRAIN_MS as i64;

/// The age of news that came nobody knows when: nothing is told before them for being older.
const UNKNOWN: i64 = i64::MAX;

/// What is to be told.
struct Lists {
    /// Of streams, in the order in which they are told: the data that they are told by, and the age, in ms, from which on what TCP has goes first.
    streams: Vec<(u64, i64)>,
    /// Ages are those of this moment.
    now: Stamp,
    /// Connections that TCP may tell of, and the data that it tells of them by.
    fds: Vec<libc::pollfd>,
    data: Vec<u64>,
}

/// TCP's news that are older than this, in ms, go before those of a stream, which are of this age: not so if they may be younger, but where the
/// writer has written by TCP before ([`Stamp::behind_tcp`]), unless they are.
fn bar(age: Option<i64>, is_behind_tcp: bool) -> i64 {
    if is_behind_tcp {
        age.unwrap_or(0) - SLACK_MS - 1
    } else {
        age.map_or(UNKNOWN, |age| age + SLACK_MS)
    }
}

/// Two lists as one, of streams' bars and TCP's ages, both in ms: true where the next is TCP's.
fn merge(streams: &[i64], tcp: &[i64]) -> impl Iterator<Item = bool> {
    let (mut s, mut t) = (0, 0);
    core::iter::from_fn(move || {
        let is_tcp = match (streams.get(s), tcp.get(t)) {
            (None, None) => return None,
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (Some(&bar), Some(&tcp)) => tcp > bar,
        };
        *(if is_tcp { &mut t } else { &mut s }) += 1;
        Some(is_tcp)
    })
}

/// How many of `most` places are the streams', where TCP has something that goes before one of these, or they take more than one answer. `None`:
/// they go first, all of them, as ever.
fn places_of_streams(streams: &[i64], tcp: &[i64], most: usize) -> Option<usize> {
    let before = merge(streams, tcp).position(|is_tcp| is_tcp)?;
    (before < streams.len() || before > most).then(|| {
        let order = merge(streams, tcp).take(most);
        order.filter(|&is_tcp| !is_tcp).count()
    })
}

/// Links are taken one by one, so what is older may stand behind what is younger: that is not to be told later still for it.
fn no_older_behind(bars: &mut [i64]) {
    let mut oldest = i64::MIN;
    for bar in bars.iter_mut().rev() {
        oldest = oldest.max(*bar);
        *bar = oldest;
    }
}

/// Of the kernel's events, in its order, what is none of TCP's came no later than the next that is.
fn ages_of_kernel(known: impl DoubleEndedIterator<Item = Option<i64>>) -> Vec<i64> {
    let mut next = 0;
    let mut ages: Vec<i64> = known
        .rev()
        .map(|age| {
            next = age.unwrap_or(next);
            next
        })
        .collect();
    ages.reverse();
    ages
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

    /// Is this wait to tell by time? Counts it; `_inside`: the set is locked.
    pub(super) fn is_late(&self, _inside: &Inside) -> bool {
        let waits = self.late_waits.load(Ordering::Relaxed);
        let away = self.away_ns();
        let (is_late, next) = match waits {
            0 if away == 0 => (false, 0),
            0 => (true, LATE_WAITS - 1),
            REST => (false, 0),
            1 => (true, REST),
            left => (true, left - 1),
        };
        if is_late {
            let before = if waits == 0 {
                0
            } else {
                self.late_ns.load(Ordering::Relaxed)
            };
            self.late_ns
                .store(before.saturating_add(away), Ordering::Relaxed);
        }
        if next != waits {
            self.late_waits.store(next, Ordering::Relaxed);
        }
        is_late
    }

    /// No more waits go by time for what there is.
    pub(super) fn ends_late(&self) {
        self.late_waits.store(0, Ordering::Relaxed);
    }
}

impl Inside {
    /// What there is to tell, if there may be something in both lists; of no more than `regs_max` registrations. Ages beyond `oldest` are none: the
    /// peer's clock is another, or it lies. What stayed when it was told is as old as the last wait, in ms.
    fn lists(&mut self, most: usize, regs_max: u64, oldest: u32, last_wait: u32) -> Option<Lists> {
        if u64::from(self.places()) > regs_max {
            return None;
        }
        let now = Stamp::now();
        let mut lists = Lists {
            now,
            streams: Vec::new(),
            fds: Vec::new(),
            data: Vec::new(),
        };
        let mut is_behind_tcp = false;
        for i in 0..self.ready.len() {
            let index = self.ready.get(i).copied();
            let Some(reg) = index.and_then(|index| self.reg(index)) else {
                continue;
            };
            let has_news = |sock| of_stream(sock) & reg.events != 0;
            if reg.adopted && reg.armed && reg.sock.is_some_and(has_news) {
                let age = if reg.told {
                    Some(last_wait)
                } else {
                    reg.since.age(now)
                };
                let age = age.filter(|&age| age <= oldest).map(i64::from);
                // Those behind one that is are, too.
                is_behind_tcp |= reg.since.is_behind_tcp();
                lists.streams.push((reg.data, bar(age, is_behind_tcp)));
                if lists.streams.len() == most.saturating_add(ASKED) {
                    break;
                }
            }
        }
        if lists.streams.iter().all(|&(_, bar)| bar == UNKNOWN) {
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
    /// What TCP can be read of: the data that the kernel tells of it by, and how old that is, in ms; the oldest first.
    fn of_tcp(&mut self) -> Vec<(u64, i64)> {
        if sys::poll(&mut self.fds, Some(AT_ONCE)).is_ok_and(|shown| shown == 0) {
            return Vec::new();
        }
        let mut all: Vec<_> = self
            .fds
            .iter()
            .zip(&self.data)
            .filter(|(shown, _)| shown.revents & libc::POLLIN != 0)
            .take(ASKED)
            .filter_map(|(shown, &data)| {
                // This thread may have been off its processor for long since the streams' ages were taken.
                let later = self.now.age(Stamp::now()).unwrap_or(0);
                let age = tcp::unread_for(shown.fd)?.saturating_sub(later);
                Some((data, i64::from(age)))
            })
            .collect();
        all.sort_by_key(|&(_, age)| core::cmp::Reverse(age));
        all
    }
}

/// How old the news are of whoever is told by some data, or the bars.
struct Ages(Vec<(u64, i64)>);

impl Ages {
    fn of(list: &[(u64, i64)]) -> Self {
        let mut list = list.to_vec();
        list.sort_unstable();
        Self(list)
    }

    fn age(&self, data: u64) -> Option<i64> {
        let at = self.0.partition_point(|&(of, _)| of < data);
        let found = self.0.get(at).filter(|&&(of, _)| of == data);
        found.map(|&(_, age)| age)
    }
}

fn ages(list: &[(u64, i64)]) -> Vec<i64> {
    list.iter().map(|&(_, age)| age).collect()
}

impl Waiter {
    /// An answer in the order in which the news came, streams' and TCP's. An order, and nothing is taken: that gives the same, as far as is
    /// known.
    #[cold]
    pub(super) fn by_time(&mut self) -> Result<usize, Order> {
        let count = self.answer_by_time();
        if count != Ok(self.max) {
            self.set.ends_late();
        }
        match count {
            Ok(0) => Err(Order::Writers),
            told => told,
        }
    }

    /// The kernel's events behind the first `ready` ones: the count of all. There is an answer: no signal that only the mask lets through is
    /// delivered.
    fn kernel_unmasked(&mut self, ready: usize) -> Result<usize, sys::Errno> {
        let mask = core::mem::replace(&mut self.mask, core::ptr::null());
        let found = self.all_of_kernel(ready);
        self.mask = mask;
        found.map(|(count, _)| count)
    }

    /// An answer whose first `ready` streams are there: the kernel's events, and behind these the other streams.
    #[cold]
    pub(super) fn kernel_between(&mut self, ready: usize) -> usize {
        let count = self.kernel_unmasked(ready).unwrap_or(ready);
        self.append(count)
    }

    fn answer_by_time(&mut self) -> Result<usize, Order> {
        let set = self.set;
        let ms = |ns: u64| (ns / 1_000_000).min(u64::from(Stamp::ROUND_MS)) as u32;
        let late = set.late_ns.load(Ordering::Relaxed);
        // It is known to a factor of three.
        let oldest = ms(late).saturating_mul(3).saturating_add(100);
        if oldest > Stamp::ROUND_MS / 2 || kernel_ready(set.fd(), libc::POLLIN) == 0 {
            return Err(Order::Writers);
        }
        let most = self.max;
        let regs_max = (late / NS_PER_REG).clamp(*REGS.start(), *REGS.end());
        let last_wait = ms(set.away_ns());
        let mut lists = set
            .with(|inside| inside.lists(most, regs_max, oldest, last_wait))
            .flatten()
            .ok_or(Order::Writers)?;
        let of_tcp = lists.of_tcp();
        if of_tcp.is_empty() {
            return Err(Order::Writers);
        }
        let mut streams = ages(&lists.streams);
        no_older_behind(&mut streams);
        let of_streams = places_of_streams(&streams, &ages(&of_tcp), most).ok_or(Order::Streams)?;
        let mut of_kernel = 0;
        if of_streams != most {
            // There is an answer: no signal that only the mask lets through is delivered.
            self.max = most - of_streams;
            let found = self.kernel_unmasked(0);
            self.max = most;
            of_kernel = found.map_err(|_| Order::Writers)?;
        }
        let count = self.append(of_kernel);
        self.put_in_order(
            of_kernel,
            count,
            &Ages::of(&lists.streams),
            &Ages::of(&of_tcp),
        );
        Ok(count)
    }

    /// The first `of_kernel` events are the kernel's, those behind them streams'.
    fn put_in_order(&mut self, of_kernel: usize, count: usize, streams: &Ages, of_tcp: &Ages) {
        let told = self.out().get(..count).unwrap_or_default().to_vec();
        let (kernel, ours) = told.split_at(of_kernel.min(told.len()));
        let of_kernel = ages_of_kernel(kernel.iter().map(|event| of_tcp.age(event.u64)));
        // What has come since is as young as can be.
        let young = bar(Some(0), false);
        let mut of_ours: Vec<i64> = ours
            .iter()
            .map(|event| streams.age(event.u64).unwrap_or(young))
            .collect();
        no_older_behind(&mut of_ours);
        let (mut kernel, mut ours) = (kernel.iter(), ours.iter());
        for (to, is_tcp) in self.out().iter_mut().zip(merge(&of_ours, &of_kernel)) {
            let next = if is_tcp { kernel.next() } else { ours.next() };
            if let Some(event) = next {
                *to = *event;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: bool = false;
    const T: bool = true;

    fn bars(ages: &[i64]) -> Vec<i64> {
        let known = |&age: &i64| Some(age).filter(|&age| age != UNKNOWN);
        ages.iter().map(|age| bar(known(age), false)).collect()
    }

    fn merged(streams: &[i64], tcp: &[i64]) -> Vec<bool> {
        merge(&bars(streams), tcp).collect()
    }

    fn places(streams: &[i64], tcp: &[i64], most: usize) -> Option<usize> {
        places_of_streams(&bars(streams), tcp, most)
    }

    #[test]
    fn what_came_first_is_told_first() {
        assert_eq!(merged(&[200, 50], &[100]), [S, T, S]);
        assert_eq!(merged(&[200, 50], &[300, 250]), [T, T, S, S]);
        assert_eq!(merged(&[200, 50], &[20]), [S, S, T]);
        assert_eq!(merged(&[200, 50], &[300, 100, 1]), [T, S, T, S, T]);
        assert_eq!(merged(&[], &[300, 100]), [T, T]);
        assert_eq!(merged(&[300, 100], &[]), [S, S]);
        assert_eq!(merged(&[], &[]), []);
    }

    #[test]
    fn what_came_within_the_clocks_grain_is_told_streams_first() {
        assert_eq!(merged(&[50], &[50 + SLACK_MS]), [S, T]);
        assert_eq!(merged(&[50], &[51 + SLACK_MS]), [T, S]);
        assert_eq!(merged(&[UNKNOWN], &[i64::MAX]), [S, T]);
    }

    #[test]
    fn what_its_writer_wrote_by_tcp_before_is_told_first_within_the_grain() {
        let behind = |age| [bar(age, true)];
        for (age, tcp) in [(0, 0), (50, 50), (50, 50 - SLACK_MS), (50, 300)] {
            assert_eq!(
                merge(&behind(Some(age)), &[tcp]).collect::<Vec<_>>(),
                [T, S]
            );
        }
        // That of the writer is read, and this is another's.
        let another = merge(&behind(Some(50)), &[49 - SLACK_MS]).collect::<Vec<_>>();
        assert_eq!(another, [S, T]);
        assert_eq!(merge(&behind(None), &[0]).collect::<Vec<_>>(), [T, S]);
    }

    #[test]
    fn places_are_counted_only_where_tcp_goes_before_a_stream() {
        assert_eq!(places(&[100, 10], &[50], 9), Some(2));
        assert_eq!(places(&[100, 10], &[50], 2), Some(1));
        assert_eq!(places(&[10], &[100, 90], 1), Some(0));
        assert_eq!(places(&[100, 10], &[50], 1), Some(1));
        assert_eq!(places(&[100, 90], &[50], 1), Some(1));
        // Streams go first anyway.
        assert_eq!(places(&[100, 90], &[50], 9), None);
        assert_eq!(places(&[UNKNOWN, 10], &[50], 9), Some(2));
        assert_eq!(places(&[100], &[], 9), None);
        assert_eq!(places(&[], &[100], 9), None);
    }

    #[test]
    fn nothing_old_waits_behind_something_young() {
        let mut ages = [5, 100, 30, 40];
        no_older_behind(&mut ages);
        assert_eq!(ages, [100, 100, 40, 40]);
        let mut ages = [UNKNOWN, 10, UNKNOWN, 3];
        no_older_behind(&mut ages);
        assert_eq!(ages, [UNKNOWN, UNKNOWN, UNKNOWN, 3]);
    }

    #[test]
    fn what_the_kernel_tells_of_others_came_before_the_next_of_tcps() {
        let known = [None, Some(9), None, None, Some(70), None];
        assert_eq!(ages_of_kernel(known.into_iter()), [9, 9, 70, 70, 70, 0]);
    }
}
