//! What a waiting `recv` costs this process by the ring and into its own buffer, which it lends to
//! the peer, as measured.
//!
//! Lending saves the copy out of the ring, and costs a registration for each call, and the time in
//! which the ring would have taken the next bytes. Which of them is more depends on the host, its
//! device and the length. So each class of length learns from what its calls have taken: the ring
//! first, then loans, then whichever was cheaper, and the other now and then, since costs change.

use super::costs::ByClass;
use core::sync::atomic::Ordering;

/// How a `recv` gets its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the ring.
    Ring,
    /// It lends its buffer.
    Loan,
}

/// What the calls of a way took, as means.
struct Taken {
    /// From the first wait to the next call's, in ns.
    elapsed: ByClass,
    /// Time on a processor meanwhile, in ns.
    busy: ByClass,
    /// Bytes.
    got: ByClass,
    /// Calls measured.
    calls: ByClass,
}

impl Taken {
    const fn new() -> Self {
        Self {
            elapsed: ByClass::new(),
            busy: ByClass::new(),
            got: ByClass::new(),
            calls: ByClass::new(),
        }
    }

    fn is_known(&self, len: usize) -> bool {
        self.calls.get(len) >= FIRST
    }
}

/// One of each pair for calls that wait until their buffer is full.
struct Kinds<T>([T; 2]);

impl<T> Kinds<T> {
    fn of(&self, fills: bool) -> &T {
        let [any, full] = &self.0;
        if fills { full } else { any }
    }
}

static RING: Kinds<Taken> = Kinds([const { Taken::new() }; 2]);
static LOAN: Kinds<Taken> = Kinds([const { Taken::new() }; 2]);
/// Calls of a class, and at which of them the dearer way is tried next.
static CALLS: Kinds<ByClass> = Kinds([const { ByClass::new() }; 2]);
static NEXT: Kinds<ByClass> = Kinds([const { ByClass::new() }; 2]);

/// A way is known after so many calls. A program of few never lends.
const FIRST: u64 = 16;
/// Calls until some go the way that was dearer: as many as there were before, within these.
const GAPS: [u64; 2] = [512, 1 << 15];
/// Later calls count one part in so many, and one, of the means.
const MEAN: u64 = 15;
/// So many in a row, since the first of them meets what the other way has left.
const RUN: u64 = 4;
/// Of those that go as most do, one in so many is measured.
const MEASURED: u64 = 32;
/// A loan pays if it takes at most so many hundredths of the ring's time, by the clock and on
/// processors: one way must be much better, since costs are noisy, and the other no worse.
const PAYS: [[u64; 2]; 2] = [[100, 80], [80, 100]];

/// The way that a call which wants so many bytes is to go, and whether it is to be measured.
/// `fills`: it waits for all of them.
#[must_use]
pub fn way(len: usize, fills: bool) -> (Way, bool) {
    let (ring, loan) = (RING.of(fills), LOAN.of(fills));
    if !ring.is_known(len) {
        return (Way::Ring, true);
    }
    if !loan.is_known(len) {
        return (Way::Loan, true);
    }
    // By the byte, of sums: a call that gets little tells little.
    let within = |of: fn(&Taken) -> &ByClass, most: u64| {
        let cost = |taken: &Taken, bytes: &Taken| {
            u128::from(of(taken).get(len)) * u128::from(bytes.got.get(len))
        };
        cost(loan, ring) * 100 <= cost(ring, loan) * u128::from(most)
    };
    let pays = PAYS.iter().any(|[elapsed, busy]| {
        within(|taken| &taken.elapsed, *elapsed) && within(|taken| &taken.busy, *busy)
    });
    let calls = CALLS.of(fills).of(len);
    let calls = calls.map_or(1, |n| n.fetch_add(1, Ordering::Relaxed));
    let tries = tries((len, fills), calls);
    let way = if pays != tries { Way::Loan } else { Way::Ring };
    (way, tries || calls.is_multiple_of(MEASURED))
}

/// Returns whether the call of this number tries the dearer way.
fn tries((len, fills): (usize, bool), number: u64) -> bool {
    let Some(next) = NEXT.of(fills).of(len) else {
        return false;
    };
    let begin = next.load(Ordering::Relaxed);
    if begin != 0 && number < begin + RUN {
        return number >= begin;
    }
    let [least, most] = GAPS;
    next.store(number + number.clamp(least, most), Ordering::Relaxed);
    false
}

/// Such a call got so many bytes; it took so many ns, and so many on processors.
pub fn has_received(way: Way, (len, fills): (usize, bool), got: u64, [elapsed, busy]: [u64; 2]) {
    let taken = match way {
        Way::Ring => RING.of(fills),
        Way::Loan => LOAN.of(fills),
    };
    let before = taken.calls.get(len);
    for (mean, value) in [
        (&taken.elapsed, elapsed),
        (&taken.busy, busy),
        (&taken.got, got),
    ] {
        mean.note_first(len, before.min(MEAN), value);
    }
    if let Some(calls) = taken.calls.of(len) {
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls of a length, each of which takes and is busy for so many ns by the ring and lent. How
    /// many of the last 1,000 lent.
    fn lent(len: usize, ring: [u64; 2], loan: [u64; 2]) -> usize {
        let call = |_| {
            let (way, _) = way(len, true);
            let took = if way == Way::Ring { ring } else { loan };
            has_received(way, (len, true), len as u64, took);
            way == Way::Loan
        };
        let first: Vec<bool> = (0..32).map(call).collect();
        assert!(first[..16].iter().all(|lends| !lends) && first[16..].iter().all(|lends| *lends));
        (0..1000).map(call).filter(|lends| *lends).count()
    }

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_tried() {
        let ms = |elapsed: u64, busy: u64| [elapsed * 100_000, busy * 100_000];
        assert_eq!(lent(1 << 17, ms(10, 2), ms(13, 1)), 4, "slower");
        assert_eq!(lent(1 << 20, ms(90, 20), ms(90, 10)), 996, "cheaper");
        assert_eq!(lent(1 << 22, ms(90, 20), ms(70, 20)), 996, "much faster");
        assert_eq!(lent(1 << 23, ms(90, 20), ms(89, 17)), 4, "hardly cheaper");
    }

    #[test]
    fn costs_that_change_change_the_way() {
        let len = 1 << 25;
        let (ring, loan) = ([9_000_000, 2_000_000], [9_000_000, 1_000_000]);
        assert_eq!(lent(len, ring, loan), 996);
        let lends = |_| {
            let (way, _) = way(len, true);
            let took = [ring, [20_000_000, 3_000_000]][way as usize];
            has_received(way, (len, true), len as u64, took);
            way == Way::Loan
        };
        let later = (0..6000).map(lends).collect::<Vec<_>>();
        assert!(later[3000..].iter().filter(|lends| **lends).count() <= 8);
    }
}
