//! Spinning: whether to spin before a sleep, and how long.
//!
//! * The peer was last seen on this CPU: spinning would only keep it from running. One
//!   `sched_yield`, timed: next to a third runnable task a yield costs milliseconds, and then none
//!   is made for a while. Once in a while a sleep instead, since only a wake-up moves one of the
//!   two to an idle CPU.
//! * On another CPU: spin, up to a budget that halves with each failure and returns with success.
//! * Not known, or spinning is forbidden: sleep.

use crate::config::config;
use crate::thread;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_fabric::sys;

/// A yield that took longer than this gave the CPU to another task.
const YIELD_MAX_NS: u64 = 100_000;
/// Waits without a yield after a long one; doubled while yields stay long.
const YIELD_SKIP: u32 = 256;
/// Time after which two threads that yield to each other on one CPU sleep once. The kernel's load
/// balancing leaves them together for tens of milliseconds, since it does not move a task that has
/// just run.
const TOGETHER_NS: u64 = 1_000_000;
/// Smallest budget that is worth a try, in ns.
const LEAST_NS: u32 = 1_000;
/// Waits after which a used-up budget is tried anew.
const PROBE: u32 = 64;

/// Waits still to be made without a yield.
static SKIP: AtomicU32 = AtomicU32::new(0);
/// The next value of [`SKIP`] after a long yield.
static BACKOFF: AtomicU32 = AtomicU32::new(YIELD_SKIP);

/// Spins until `news`, or returns false: sleep. `peer` is the CPU on which the other end was last
/// seen, plus one. The waiter keeps two adaptive cells: `spin_ns`, the budget (0: not set yet), and
/// `skip`, the waits that must still sleep at once.
pub fn until(spin_ns: &AtomicU32, skip: &AtomicU32, peer: u32, news: impl Fn() -> bool) -> bool {
    let most = config().spin_ns;
    if most == 0 || peer == 0 {
        return false;
    }
    if peer == thread::cpu() {
        return !may_part() && yield_once() && news();
    }
    let mut budget = spin_ns.load(Ordering::Relaxed);
    if budget == 0 {
        budget = most;
    }
    if budget < LEAST_NS {
        let left = skip.load(Ordering::Relaxed);
        if left != 0 {
            skip.store(left - 1, Ordering::Relaxed);
            return false;
        }
        skip.store(PROBE, Ordering::Relaxed);
        budget = most;
    }
    let end = sys::now_ns() + u64::from(budget);
    loop {
        for _ in 0..32 {
            if news() {
                spin_ns.store(most, Ordering::Relaxed);
                return true;
            }
            core::hint::spin_loop();
        }
        if sys::now_ns() >= end {
            spin_ns.store((budget / 2).max(1), Ordering::Relaxed);
            return false;
        }
    }
}

/// True if it is time to sleep, so that the wake-up moves one of two threads that share a CPU.
fn may_part() -> bool {
    /// When a thread of this process last slept for that.
    static PARTED: AtomicU64 = AtomicU64::new(0);
    if processors() == 1 {
        return false;
    }
    is_due(&PARTED, sys::now_ns())
}

/// True if more than [`TOGETHER_NS`] have passed since `last`, which is set to `now`. `last` may be
/// later than `now`: another thread read the clock later and came first.
fn is_due(last: &AtomicU64, now: u64) -> bool {
    let is_due = now.saturating_sub(last.load(Ordering::Relaxed)) > TOGETHER_NS;
    if is_due {
        last.store(now, Ordering::Relaxed);
    }
    is_due
}

/// CPUs that this process may use; asked once.
fn processors() -> u32 {
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    let known = KNOWN.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: zeroes are a valid `cpu_set_t`, and the call writes at most its length.
    let asked = unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        let failed = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        if failed == 0 {
            libc::CPU_COUNT(&set)
        } else {
            1
        }
    };
    let asked = asked.max(1) as u32;
    KNOWN.store(asked, Ordering::Relaxed);
    asked
}

/// Yields before a sleep if there is one CPU: to threads that bring the peer's bytes.
const YIELDS: u32 = 6;
/// A longer yield (`sys::rough_ns`) was a time slice of a computing thread: threads that bring
/// bytes soon sleep.
const SLICE_NS: u64 = 1_000_000;
/// Most waits without yields after some were in vain.
const YIELDS_SKIP: u32 = 63;

/// As [`until`], for news from another host: `news` also drives the device's queue.
pub fn remote(spin_ns: &AtomicU32, skip: &AtomicU32, news: impl Fn() -> bool) -> bool {
    if processors() > 1 {
        return until(spin_ns, skip, u32::MAX, news);
    }
    let left = skip.load(Ordering::Relaxed);
    if left != 0 || config().spin_ns == 0 {
        skip.store(left.saturating_sub(1), Ordering::Relaxed);
        return false;
    }
    for _ in 0..YIELDS {
        let before = sys::rough_ns();
        sys::sched_yield();
        if news() {
            spin_ns.store(0, Ordering::Relaxed);
            return true;
        }
        if sys::rough_ns().wrapping_sub(before) > SLICE_NS {
            break;
        }
    }
    let vain = (2 * spin_ns.load(Ordering::Relaxed) + 1).min(YIELDS_SKIP);
    spin_ns.store(vain, Ordering::Relaxed);
    skip.store(vain, Ordering::Relaxed);
    false
}

/// False if a spin need not be prepared, since none will be made.
pub fn is_worth_it(peer: u32) -> bool {
    peer != 0 && config().spin_ns != 0
}

/// One yield, unless earlier ones took too long; false: not made.
pub fn yield_once() -> bool {
    let left = SKIP.load(Ordering::Relaxed);
    if left != 0 {
        SKIP.store(left - 1, Ordering::Relaxed);
        return false;
    }
    let before = sys::now_ns();
    sys::sched_yield();
    if sys::now_ns() - before > YIELD_MAX_NS {
        let backoff = BACKOFF.load(Ordering::Relaxed);
        SKIP.store(backoff, Ordering::Relaxed);
        BACKOFF.store(backoff.saturating_mul(2).min(1 << 20), Ordering::Relaxed);
    } else {
        BACKOFF.store(YIELD_SKIP, Ordering::Relaxed);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_looked_at_the_clock_before_another_does_not_sleep_for_it() {
        let last = AtomicU64::new(0);
        let now = 10 * TOGETHER_NS;
        assert!(is_due(&last, now));
        assert!(!is_due(&last, now - 1));
        assert!(!is_due(&last, now + TOGETHER_NS));
        assert!(is_due(&last, now + TOGETHER_NS + 1));
    }
}
