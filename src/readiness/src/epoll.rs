//! `epoll_wait` and its kin: one answer out of two sources.
//!
//! Streams on links are told from the set's ready list (`ready_list.rs`). Everything else is
//! the kernel's to tell, by its own set under the same descriptor. A call looks at both,
//! and sleeps in the kernel's set, which also holds the doorbells that peers ring. The sleep itself
//! is made by the hook ([`super::wait_state`]).
//!
//! A registration is *adopted* while its socket has a stream, and a set counts these. A set that
//! never had one is [plain](Set::is_plain), and its calls go straight to the kernel.
//!
//! | function | the hook calls it |
//! |---|---|
//! | [`wait`] | for a set that is not plain, and again after each sleep |
//! | [`after_plain_poll`] | after a poll of a plain set that became another meanwhile |
//! | [`after_plain_wait`] | the same after a wait; goes on by [`wait`] if no event is left |
//!
//! [`wait`] makes rounds: it collects the streams that are ready, asks the kernel if that is due,
//! and sleeps. No lock is held over a round. The set's lock is taken for each step, and the kernel
//! is asked with nothing locked; an array and its events are the call's own ([`Waiter`]).
//!
//! A change must keep these rules:
//! - A call that has taken a doorbell's event looks at the streams, or ends by `answer` or `fails`:
//!   these ring another sleeper for what is left.
//! - A sleep is announced (`sleepers`, and the slots of the links) before the last look at the
//!   streams, and is noted for a thread that never returns from it (`io_wait`).
//! - Neither source may hide the other. Streams that fill every answer leave room for the kernel's
//!   events from time to time (`kernel_turn`), and marks in vain do not keep it from being asked.
//! - What the kernel refuses is refused here: arguments, an array or a mask that is not there.
//! - Places of the array after the answer are left as they were.

mod waiter;

pub(super) use self::waiter::KEPT;

use self::waiter::{First, Found, Waiter};
use super::kernel_events::Moment;
use super::set::{self, Set};
use super::wait_state::{Stage, WaitState, end_of, is_refused, is_zero};
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event, sigset_t, timespec};
use sluice_fabric::sys::{self, Ends};
use sluice_runtime::caller::{self, plausible};
use sluice_runtime::fd_table::{self, Entry};
use sluice_runtime::seccomp;
use sluice_sockets::io_wait::Sleepers;
use sluice_sockets::meeting;
use sluice_sockets::verdict::{Pass, Verdict};

const AT_ONCE: timespec = sys::timespec(0);

/// The kernel refuses to be asked for more events at once (EP_MAX_EVENTS).
const EVENTS_MAX: c_int = c_int::MAX / size_of::<epoll_event>() as c_int;

/// In this many rounds without an event the kernel is asked once, whatever the marks say: a peer
/// that marks in vain must not hide the kernel's events.
const IDLE_ROUNDS: u32 = 16;

/// `epoll_create*` returned `fd`.
pub fn created(fd: c_int) {
    sluice_sockets::descriptors::renumbered(fd);
    if fd >= 0
        && sluice_sockets::descriptors::tracking()
        && let Some(set) = set::alloc(fd)
    {
        fd_table::store(fd, Entry::of(set));
    }
}

/// Serves `epoll_wait` and its kin. `Verdict::Block`: the hook sleeps as `wait_state` says, and
/// calls again.
///
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn wait(
    set: &'static Set,
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
    wait_state: &mut WaitState,
) -> Verdict {
    if wait_state.stage != Stage::Fresh {
        let mut waiter = Waiter::new(set, epfd, events, max, mask);
        waiter.kept = wait_state.kept;
        let slept = waiter.woken(wait_state);
        // The first call has fixed the end. The program's time is not read again: its memory may be
        // gone by now.
        let timeout = wait_state.deadline.map(|_| Timeout::Ends);
        return match waiter.answer_of(slept, false) {
            Some(verdict) => verdict,
            None => look_and_sleep(waiter, timeout, wait_state),
        };
    }
    // SAFETY: the C caller's argument, as this function demands.
    let Ok(timeout) = (unsafe { caller::timeout_at(timeout) }) else {
        return Verdict::Pass(Pass::NOBODY);
    };
    let is_refused = !(1..=EVENTS_MAX).contains(&max) || is_refused(timeout.as_ref());
    if is_refused || seccomp::waits_by_itself() {
        return Verdict::Pass(Pass::NOBODY);
    }
    if set.inherited.load(Ordering::Relaxed) {
        set.use_inherited();
    }
    let adopted = set.adopted.load(Ordering::Acquire) != 0;
    set.follow_relatives();
    if adopted {
        let is_users = is_null_or_users(events as usize, max as usize * EVENT);
        if caller::is_mask_missing(mask) || !is_users {
            // The kernel refuses these, whatever there is to tell.
            return Verdict::Pass(Pass::NOBODY);
        }
    }
    look_and_sleep(
        Waiter::new(set, epfd, events, max, mask),
        timeout.map(Timeout::of),
        wait_state,
    )
}

/// The program's time limit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Timeout {
    /// None at all: the call looks and does not sleep.
    Zero,
    /// This many ns from the call's first sleep on.
    Ns(u64),
    /// It runs by now, to the deadline in the wait state.
    Ends,
}

impl Timeout {
    fn of(time: timespec) -> Self {
        if is_zero(Some(&time)) {
            Self::Zero
        } else {
            Self::Ns(end_of(&time, 0))
        }
    }
}

const EVENT: usize = size_of::<epoll_event>();

/// Does the kernel accept such an array until it writes there? It refuses addresses that cannot be
/// a program's at once, but not null.
fn is_null_or_users(at: usize, len: usize) -> bool {
    plausible(at.max(4096), len)
}

/// Makes rounds until there is an answer, or the hook is to sleep.
fn look_and_sleep(
    mut waiter: Waiter,
    timeout: Option<Timeout>,
    wait_state: &mut WaitState,
) -> Verdict {
    let set = waiter.set;
    let adopted = set.adopted.load(Ordering::Acquire) != 0;
    let poll = timeout == Some(Timeout::Zero);
    let mut deadline = wait_state.deadline;
    let mut awaits_owed = poll;
    // Rounds in which marks came without an event.
    let mut idle = wait_state.idle;
    loop {
        if meeting::is_meeting() {
            sluice_rendezvous::progress_soon();
        }
        set.drive();
        // Streams that fill every answer may not keep the kernel's events from being told.
        let kernel_turn = adopted && set.kernel_turn.load(Ordering::Relaxed);
        let most = if kernel_turn {
            waiter.max - waiter.max.div_ceil(2)
        } else {
            waiter.max
        };
        let ready = match waiter.first(most, !kernel_turn) {
            First::Streams(ready) => ready,
            First::Complete(count) => return waiter.answer(count),
            First::NotWritable => return waiter.fails(libc::EFAULT),
        };
        if ready != 0 && !kernel_turn {
            let full = ready == waiter.max;
            let due = waiter.is_kernel_due() || full && waiter.count_full_answer();
            if full || !due {
                set.kernel_turn.store(due, Ordering::Relaxed);
                return waiter.answer(ready);
            }
        }
        idle += 1;
        let is_late = idle > IDLE_ROUNDS && deadline.is_some_and(|end| sys::now_ns() >= end);
        if kernel_turn {
            set.kernel_turn.store(false, Ordering::Relaxed);
        }
        if kernel_turn && ready == 0 {
            // No stream is in the answer: it is the kernel's, if that has any event.
            let found = waiter.ask_kernel(0, Some(&AT_ONCE), Ends::NEVER);
            match found {
                Ok(Found { count: 0, .. }) => continue,
                Ok(found) => return waiter.answer(found.count),
                Err(e) => return waiter.fails(e),
            }
        }
        if ready != 0 || poll || is_late {
            match waiter.last_look(ready, kernel_turn, &mut awaits_owed) {
                Some(verdict) => return verdict,
                None => continue,
            }
        }
        if !idle.is_multiple_of(IDLE_ROUNDS)
            && set.adopted.load(Ordering::Acquire) != 0
            && set.spin_until_ready()
        {
            continue;
        }
        let left = timeout.map(|timeout| left_of(timeout, &mut deadline));
        (wait_state.deadline, wait_state.idle) = (deadline, idle);
        let Some(slept) = waiter.sleep(left, idle.is_multiple_of(IDLE_ROUNDS), wait_state) else {
            return Verdict::Block;
        };
        if let Some(verdict) = waiter.answer_of(slept, left == Some(0)) {
            return verdict;
        }
    }
}

/// How many ns are left of the timeout, which begins to run at the first call of this.
fn left_of(timeout: Timeout, deadline: &mut Option<u64>) -> u64 {
    let now = sys::now_ns();
    let ns = if let Timeout::Ns(ns) = timeout { ns } else { 0 };
    let end = *deadline.get_or_insert(now.saturating_add(ns));
    end.saturating_sub(now)
}

/// After `epoll_wait` with timeout 0 went straight to the kernel and returned `got`, and the set is
/// no longer [plain](Set::is_plain): takes the library's own events out of the answer.
///
/// # Safety
/// The kernel has filled `got` events of a C caller's.
#[cold]
pub unsafe fn after_plain_poll(set: &'static Set, events: *mut epoll_event, got: c_int) -> Verdict {
    if got <= 0 {
        // With -1 in errno stands what the kernel said.
        return Verdict::Done(got as isize);
    }
    let mut waiter = Waiter::new(set, set.fd(), events, got, core::ptr::null()).filled();
    let (count, _) = set.translate(waiter.out(), 0, got as usize, Moment::unknown());
    // Of doorbells alone 0 is left, and no stream is looked at: none was in the set when the call
    // began, so its bytes have come since, and the next call finds them.
    waiter.answer(count)
}

/// After a wait that went straight to the kernel returned `got`, and the set is no longer
/// [plain](Set::is_plain): corrects the answer, or goes on waiting. `end` is when the wait ends;
/// `None`: never.
///
/// # Safety
/// As [`wait`]; the kernel has filled `got` events.
#[cold]
pub unsafe fn after_plain_wait(
    set: &'static Set,
    epfd: c_int,
    (events, max): (*mut epoll_event, c_int),
    end: Option<u64>,
    mask: *const sigset_t,
    got: c_int,
    wait_state: &mut WaitState,
) -> Verdict {
    let left = end.map(|end| sys::timespec(end.saturating_sub(sys::now_ns())));
    let left = left.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    if wait_state.stage != Stage::Fresh {
        // The sleep that the long way asked for is over.
        // SAFETY: the caller's arguments, a time of ours.
        return unsafe { wait(set, epfd, events, max, left, mask, wait_state) };
    }
    set.retract_if_last();
    if got <= 0 {
        // With -1 in errno stands what the kernel said.
        return Verdict::Done(got as isize);
    }
    let mut waiter = Waiter::new(set, epfd, events, max, mask).filled();
    let (count, _) = set.translate(waiter.out(), 0, got as usize, Moment::unknown());
    if count != 0 {
        let count = waiter.append(count);
        return waiter.answer(count);
    }
    // Doorbells alone: the wait goes on, this time by `wait`.
    // SAFETY: the caller's arguments, a time of ours.
    unsafe { wait(set, epfd, events, max, left, mask, wait_state) }
}

impl Set {
    /// A sleeper was counted out: the last one takes the announcement back.
    fn retract_if_last(&self) {
        let wanted =
            || self.sleepers.load(Ordering::SeqCst) != 0 || self.nested.load(Ordering::Relaxed);
        if wanted() {
            return;
        }
        self.retract();
        if wanted() {
            // A thread went to sleep meanwhile: the announcement that was just taken back was its,
            // too.
            if self.announce_and_look() {
                self.ring();
            }
        }
    }
}

impl Sleepers for Set {
    /// One sleeper less; retracts the announcement, unless others still sleep.
    fn leave(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.retract_if_last();
    }

    /// Wakes another thread that waits on this set if there is more to tell.
    fn pass_on(&'static self) {
        if self.adopted.load(Ordering::Relaxed) != 0 {
            if self.sleepers.load(Ordering::SeqCst) != 0 && self.announce_and_look() {
                self.ring();
            }
            if self.nested.load(Ordering::Relaxed) {
                self.shows_news();
            }
        }
    }
}

#[cfg(test)]
mod tests;
