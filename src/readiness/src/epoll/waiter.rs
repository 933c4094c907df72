//! One call of `epoll_wait`: the program's array, and what a look at the streams, a look at the
//! kernel and a sleep put into it.

use super::{AT_ONCE, EVENT, is_null_or_users};
use crate::interest_list::EpollState;
use crate::kernel_events::Moment;
use crate::ready_list::Taken;
use crate::set::Set;
use crate::shared;
use crate::wait_state::{On, Stage, WaitState, failed};
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event, sigset_t, timespec};
use sluice_fabric::sys::{self, Ends};
use sluice_runtime::caller;
use sluice_sockets::events;
use sluice_sockets::io_wait::{self, Sleepers};
use sluice_sockets::unread_copy::{self, awaiting};
use sluice_sockets::verdict::Verdict;
use sluice_stats::Reason;

/// The kernel is asked for its events at least this often, in ns, however busy the rings are.
const KERNEL_NS: u64 = 50_000;

/// After this many answers in a row that streams have filled, the kernel is asked, so that a
/// program that takes few events at a time gets to all of them.
const FULL_ANSWERS: u32 = 4;

/// How many places at the front of the program's array are restored if the answer does not fill
/// them: a look may have written there. The kernel leaves them alone, and a program that waits for
/// one or two events may rely on that.
pub(in super::super) const KEPT: usize = 2;
/// How often one call asks the kernel again at most. It does where the answer filled the array, and
/// the translation has freed places: some events were told already, or were doorbells.
const LOOKS: u32 = 8;

/// How many of `count` events can be written at `at`.
fn writable_events(at: usize, count: usize) -> usize {
    if caller::cannot_write(at, count * EVENT) {
        caller::writable(at, count * EVENT) / EVENT
    } else {
        count
    }
}

/// What the array holds after a look at the kernel.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// How many events: those from before the look, and the kernel's.
    pub(super) count: usize,
    /// The place of the event before which the first doorbell stood, if one rang.
    bell: Option<usize>,
}

/// How a sleep ended.
pub(super) enum Slept {
    /// With this many events for the program.
    Events(usize),
    /// Without an event, and streams may be ready: a doorbell rang, or the sleep was cut short.
    News,
    /// Without an event: its time is over.
    Nothing,
}

/// What the first look of a call has put into the array.
pub(super) enum First {
    /// The events of this many streams; the kernel's may follow.
    Streams(usize),
    /// An answer of this many events, to which nothing is to be added: streams, the kernel's
    /// events, and the streams whose writers did something by TCP before.
    Complete(usize),
    /// Nothing: a stream is ready, but the array cannot be written. The call fails as the kernel
    /// would fail it, and the event stays.
    NotWritable,
}

/// One call of `epoll_wait`.
pub(super) struct Waiter {
    pub(super) set: &'static Set,
    epfd: c_int,
    events: *mut epoll_event,
    pub(super) max: usize,
    mask: *const sigset_t,
    /// How many events at the front of the array are known to be writable: as many as streams could
    /// fill when the call began. 0 if the set had no stream then.
    writable: usize,
    /// What the front of the array was before the call, see [`KEPT`].
    pub(super) kept: Option<[epoll_event; KEPT]>,
    /// The kernel's last answer took all the places there were.
    was_full: bool,
}

impl Waiter {
    pub(super) fn new(
        set: &'static Set,
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        mask: *const sigset_t,
    ) -> Self {
        let (mut max, mut writable, mut kept) = (max as usize, 0, None);
        let adopted = set.adopted.load(Ordering::Relaxed) as usize;
        if adopted != 0 {
            let filled = adopted.saturating_add(KEPT).min(max);
            writable = writable_events(events as usize, filled);
            if (1..filled).contains(&writable) {
                // The kernel, too, stops at the first event that it cannot write.
                max = writable;
            }
            let to = kept.insert([epoll_event { events: 0, u64: 0 }; KEPT]);
            // SAFETY: the front of the caller's array, which is there.
            unsafe { core::ptr::copy_nonoverlapping(events, to.as_mut_ptr(), KEPT.min(writable)) };
            if writable == 0 {
                kept = None;
            }
        }
        Self {
            set,
            epfd,
            events,
            max,
            mask,
            writable,
            kept,
            was_full: false,
        }
    }

    /// The kernel has written to the array: what stood there before the call is gone.
    pub(super) fn filled(self) -> Self {
        Self { kept: None, ..self }
    }

    pub(super) fn out(&mut self) -> &mut [epoll_event] {
        if self.events.is_null() {
            // The kernel refuses it only when it has an event for it.
            return &mut [];
        }
        // SAFETY: the caller's array of `max` events, plain integers.
        unsafe { core::slice::from_raw_parts_mut(self.events, self.max) }
    }

    /// How many events streams may write after the first `start`: no more than the array is known
    /// to hold, and no more than there are streams.
    fn room(&self, start: usize) -> usize {
        let adopted = self.set.adopted.load(Ordering::Acquire) as usize;
        let left = self.max.saturating_sub(start);
        let most = adopted.saturating_add(KEPT).min(left);
        if start + most <= self.writable {
            return most;
        }
        writable_events((self.events as usize).wrapping_add(start * EVENT), most)
    }

    /// The first look of a round: up to `most` streams go into the front of the array. With
    /// `in_order` it stops at a stream whose writer did something by TCP before, and the kernel's
    /// events go in between.
    pub(super) fn first(&mut self, most: usize, in_order: bool) -> First {
        let set = self.set;
        if set.adopted.load(Ordering::Acquire) == 0 {
            return First::Streams(0);
        }
        let room = self.room(0).min(most);
        if room == 0 && most != 0 {
            return if set.would_tell() {
                First::NotWritable
            } else {
                First::Streams(0)
            };
        }
        let out = self.out().get_mut(..room).unwrap_or_default();
        if !in_order {
            return First::Streams(set.collect_ready(out));
        }
        match set.collect_ready_before_tcp(out) {
            Taken::Events(ready) => First::Streams(ready),
            Taken::BeforeTcp(ready) => match self.kernel_between(ready) {
                0 => First::Streams(0),
                count => First::Complete(count),
            },
        }
    }

    /// Completes an answer that begins with `ready` streams: the kernel's events, and after these
    /// the other streams. The program's signal mask is left out: a call that has an answer delivers
    /// no signal that only the mask lets through.
    #[cold]
    fn kernel_between(&mut self, ready: usize) -> usize {
        let mask = core::mem::replace(&mut self.mask, core::ptr::null());
        let found = self.all_of_kernel(ready);
        self.mask = mask;
        if !self.was_full {
            self.set.with(EpollState::kernel_has_told);
        }
        self.append(found.map_or(ready, |found| found.count))
    }

    /// The answer of a call that does not sleep: `ready` streams, and the kernel's events after
    /// them. On the kernel's turn half of the streams were left out: they follow here. `None`: look
    /// anew, since bytes that a demotion had to send again have arrived; once in a call.
    pub(super) fn last_look(
        &mut self,
        ready: usize,
        kernel_turn: bool,
        awaits_owed: &mut bool,
    ) -> Option<Verdict> {
        let found = self.all_of_kernel(ready);
        if matches!(found, Ok(Found { count: 0, .. }))
            && core::mem::take(awaits_owed)
            && unread_copy::is_any_owed()
        {
            let socks = self.set.with(|state| state.readers()).unwrap_or_default();
            if awaiting::await_first_of(socks.into_iter()) {
                return None;
            }
        }
        Some(match found {
            Ok(Found { count, .. }) => {
                let count = if kernel_turn {
                    self.append(count)
                } else {
                    count
                };
                self.answer(count)
            }
            Err(_) if ready != 0 => self.answer(ready),
            Err(e) => self.fails(e),
        })
    }

    /// Counts an answer that streams have filled. True: the [`FULL_ANSWERS`]th in a row, so that
    /// the kernel is to be asked.
    pub(super) fn count_full_answer(&self) -> bool {
        let full = &self.set.full_answers;
        let filled = full.load(Ordering::Relaxed) + 1;
        full.store(filled % FULL_ANSWERS, Ordering::Relaxed);
        filled == FULL_ANSWERS
    }

    /// Returns whether the kernel was last asked [`KERNEL_NS`] ago or longer.
    pub(super) fn is_kernel_due(&self) -> bool {
        sys::rough_ns().wrapping_sub(self.set.looked_ns.load(Ordering::Relaxed)) >= KERNEL_NS
    }

    /// Asks the kernel for events after the first `ready` ones, and translates them.
    pub(super) fn ask_kernel(
        &mut self,
        ready: usize,
        timeout: Option<&timespec>,
        ends: Ends,
    ) -> Result<Found, sys::Errno> {
        let room = self.max - ready;
        // A call that has an answer delivers no signal that only its mask lets through.
        let mask = if ready == 0 {
            self.mask
        } else {
            core::ptr::null()
        };
        let began = Moment::now();
        // SAFETY: inside the caller's array; the mask is the caller's.
        let got = unsafe {
            sys::epoll_wait_unless(
                ends,
                self.epfd,
                self.events.add(ready),
                room as c_int,
                timeout,
                mask,
            )
        };
        self.take_kernels(ready, got, began)
    }

    /// As [`Waiter::ask_kernel`] without a wait. Asks again where the kernel may have more events
    /// and the translation has left places for them.
    fn all_of_kernel(&mut self, ready: usize) -> Result<Found, sys::Errno> {
        let mut found = self.ask_kernel(ready, Some(&AT_ONCE), Ends::NEVER)?;
        for _ in 0..LOOKS {
            // The event of a parked registration (`parked.rs`) is none of the program's. It gives
            // the registration back to the program, and the next look tells of that.
            let only_bells = found.count == ready && found.bell.is_some();
            if !(only_bells || self.was_full) || found.count == self.max {
                break;
            }
            let Ok(next) = self.ask_kernel(found.count, Some(&AT_ONCE), Ends::NEVER) else {
                break;
            };
            // The kernel tells of a level-triggered event again at the end of a second look. In
            // one call a program expects it once, so both become one. Two registrations with the
            // same data become one, too: the program tells them apart by nothing else.
            let count = self.fold(found.count, next.count);
            let is_news = count != found.count || next.bell.is_some();
            let is_parked_silent = only_bells && count == ready && !self.was_full;
            let bell = found.bell.or(next.bell);
            found = Found { count, bell };
            if !is_news || is_parked_silent {
                break;
            }
        }
        Ok(found)
    }

    /// Translates the `got` events that the kernel has put after the first `ready` ones, in a look
    /// that began at `began`.
    fn take_kernels(
        &mut self,
        ready: usize,
        got: Result<usize, sys::Errno>,
        began: Moment,
    ) -> Result<Found, sys::Errno> {
        // A sleep that a signal ended was no look at the kernel's events.
        let got = match got {
            Err(libc::EFAULT) if self.was_bell() => {
                return Ok(Found {
                    count: ready,
                    bell: Some(ready),
                });
            }
            got => got?,
        };
        if self.set.adopted.load(Ordering::Relaxed) != 0 {
            self.set.looked_ns.store(sys::rough_ns(), Ordering::Relaxed);
        }
        self.was_full = ready + got == self.max;
        if got == 0 {
            return Ok(Found {
                count: ready,
                bell: None,
            });
        }
        let set = self.set;
        let (count, bell) = set.translate(self.out(), ready, ready + got, began);
        self.restore_rest(count);
        Ok(Found { count, bell })
    }

    /// The kernel had an event and could not write it into the array. Was it only a doorbell of the
    /// library's? Then the program has no event, and the call does not fail.
    fn was_bell(&self) -> bool {
        if !is_null_or_users(self.events as usize, self.max * EVENT)
            || caller::is_mask_missing(self.mask)
        {
            // The kernel refuses such an array or mask whatever there is to tell.
            return false;
        }
        self.set.silence();
        events::kernel_ready(self.epfd, libc::POLLIN) == 0
    }

    /// Restores the front of the array after `count` events: the kernel would not have touched it.
    fn restore_rest(&mut self, count: usize) {
        if let Some(kept) = self.kept {
            for (event, old) in self.out().iter_mut().zip(kept).skip(count) {
                *event = old;
            }
        }
    }

    /// Sleeps in the kernel's set, at most `left` ns. If a stream is marked the call does not
    /// sleep: it looks at the streams again, or with `asks_kernel` at the kernel. `None`: the hook
    /// sleeps, by `wait_state`.
    pub(super) fn sleep(
        &mut self,
        left: Option<u64>,
        asks_kernel: bool,
        wait_state: &mut WaitState,
    ) -> Option<Result<Slept, sys::Errno>> {
        let set = self.set;
        // A handler that jumped out of an earlier sleep left its announcement: it is taken back
        // first.
        io_wait::left_sleeps(wait_state.frame());
        let mut left = left;
        let mut sliced = false;
        if sluice_rendezvous::needs_hooks() {
            // A meeting ends in time even if nothing else happens.
            if let Some(meeting) = sluice_rendezvous::time_left() {
                let meeting = meeting.max(1_000_000);
                sliced = left.is_none_or(|l| meeting < l);
                left = Some(left.map_or(meeting, |l| l.min(meeting)));
            }
        }
        if set.looked_ns.load(Ordering::Relaxed) == 0 && set.adopted.load(Ordering::Relaxed) != 0 {
            // A sleep in the kernel's set begins with a look at it.
            set.looked_ns.store(sys::rough_ns(), Ordering::Relaxed);
        }
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        let marked = set.announce_and_look();
        if marked && !asks_kernel {
            set.leave();
            return Some(Ok(Slept::News));
        }
        if marked {
            left = Some(0);
            sliced = true;
        }
        if shared::is_marked(set.number) && set.adopted.load(Ordering::SeqCst) != 0 {
            // A relative came to use the set while this thread was on its way.
            set.leave();
            set.back_to_tcp(Reason::Shared);
            return Some(Ok(Slept::News));
        }
        if left != Some(0) && io_wait::falls_asleep_in(wait_state.frame(), set) {
            wait_state.on = On::Set {
                fd: self.epfd,
                events: self.events,
                max: self.max as c_int,
            };
            wait_state.kept = self.kept;
            wait_state.stage = Stage::Kernel;
            wait_state.sliced = sliced;
            wait_state.began = Moment::now();
            (wait_state.left, wait_state.mask) = (left, self.mask);
            return None;
        }
        let timeout = left.map(sys::timespec);
        let found = self.ask_kernel(0, timeout.as_ref(), wait_state.ran.any());
        set.leave();
        Some(self.after_sleep(found, sliced))
    }

    /// The hook has slept: takes the kernel's answer from `wait_state`.
    pub(super) fn woken(&mut self, wait_state: &mut WaitState) -> Result<Slept, sys::Errno> {
        io_wait::wakes_up(wait_state.frame());
        wait_state.stage = Stage::Fresh;
        let found = self.take_kernels(0, wait_state.answer, wait_state.began);
        self.after_sleep(found, wait_state.sliced)
    }

    /// What the kernel gave at the end of a sleep.
    fn after_sleep(
        &mut self,
        found: Result<Found, sys::Errno>,
        sliced: bool,
    ) -> Result<Slept, sys::Errno> {
        let Found { count, bell } = found?;
        if bell.is_some() {
            // One thread is woken for all that sleep on links to other hosts, and the program may
            // not wait again soon.
            self.set.drive();
        }
        if count != 0 {
            // Streams that became ready too go into the same answer where there is room. The kernel
            // tells of sockets in the order in which they became ready, and programs with clients
            // that do not wait for each other (Redis' tests) see that one command came before
            // another: the stream that rang, which is the first, goes where its bell stands.
            let all = self.append(count);
            if let Some(at) = bell
                && all != count
                && let Some(told) = self.out().get_mut(at..=count)
            {
                told.rotate_right(1);
            }
            return Ok(Slept::Events(all));
        }
        Ok(if bell.is_some() || sliced {
            Slept::News
        } else {
            Slept::Nothing
        })
    }

    /// The answer that a sleep has brought, if any. `last`: no time is left for another sleep.
    pub(super) fn answer_of(
        &mut self,
        slept: Result<Slept, sys::Errno>,
        last: bool,
    ) -> Option<Verdict> {
        match slept {
            Ok(Slept::Events(count)) => Some(self.answer(count)),
            Ok(Slept::Nothing) if last => Some(self.answer(0)),
            Ok(Slept::News | Slept::Nothing) => None,
            Err(e) => {
                // As in the kernel, news that came with the signal are told instead of it. The
                // kernel's events go with them: a program that was stopped for long must not be
                // told of streams alone.
                let ready = match self.first(self.max, true) {
                    First::Streams(0) => return Some(self.fails(e)),
                    First::Streams(ready) => {
                        self.all_of_kernel(ready).map_or(ready, |found| found.count)
                    }
                    First::Complete(count) => count,
                    First::NotWritable => return Some(self.fails(libc::EFAULT)),
                };
                Some(self.answer(ready))
            }
        }
    }

    /// Adds ready streams after `count` kernel events.
    pub(super) fn append(&mut self, count: usize) -> usize {
        let set = self.set;
        if count == self.max || set.adopted.load(Ordering::Relaxed) == 0 {
            return count;
        }
        let end = count + self.room(count);
        let back = self.out().get_mut(count..end).unwrap_or_default();
        let more = set.collect_ready(back);
        self.fold(count, count + more)
    }

    /// Merges `start..end` of the array into the first `start` events where the data is the same.
    /// Returns the count of all.
    fn fold(&mut self, start: usize, end: usize) -> usize {
        let (front, back) = self.out().split_at_mut(start);
        let mut kept = 0;
        for i in 0..end - start {
            let Some(event) = back.get(i).copied() else {
                break;
            };
            match front.iter_mut().find(|e| { e.u64 } == { event.u64 }) {
                Some(same) => same.events |= event.events,
                None => {
                    if let Some(to) = back.get_mut(kept) {
                        *to = event;
                    }
                    kept += 1;
                }
            }
        }
        self.restore_rest(start + kept);
        start + kept
    }

    /// Ends the call with an error. What woke this thread is passed on, since its event stays.
    pub(super) fn fails(&self, e: sys::Errno) -> Verdict {
        self.set.pass_on();
        failed(e)
    }

    /// Ends the call with `count` events. Other threads that wait on this set are woken for what is
    /// left.
    pub(super) fn answer(&self, count: usize) -> Verdict {
        self.set.pass_on();
        Verdict::Done(count as isize)
    }
}
