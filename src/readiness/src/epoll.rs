//! `epoll_wait`.

use super::interest_list::EpollState;
use super::kernel_events::Moment;
use super::ready_list::Taken;
use super::set::{self, Set};
use super::shared;
use super::wait_state::{On, Stage, WaitState};
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event, sigset_t, timespec};
use sluice_fabric::sys::{self, Ends};
use sluice_runtime::caller::plausible;
use sluice_runtime::fd_table::{self, Entry};
use sluice_runtime::{caller, seccomp};
use sluice_sockets::nap::{self, Sleepers};
use sluice_sockets::verdict::{Error, Pass, Verdict};
use sluice_sockets::{events, meeting, remains};
use sluice_stats::Reason;

/// The kernel's part of a set is looked at at least this often, however busy the rings are.
const KERNEL_NS: u64 = 50_000;

const AT_ONCE: timespec = sys::timespec(0);

/// ... and once in so many answers that streams fill: a program that takes few events at a time
/// gets to all of them.
const FULL_ANSWERS: u32 = 4;

/// Programs that wait for one event, or two, may use what they gave the array for once more when
/// none came.
pub(super) const KEPT: usize = 2;
/// The kernel refuses to be asked for more events at once (EP_MAX_EVENTS).
const EVENTS_MAX: c_int = c_int::MAX / size_of::<epoll_event>() as c_int;

/// Turns of a wait without an event, after which the kernel is looked at whatever the marks say.
const IDLE_TURNS: u32 = 16;
/// Where the kernel's answer has taken all places, and what it told of took none since it was told
/// already, or is not the program's: so often it is asked for more.
const LOOKS: u32 = 8;

/// `epoll_create*` returned `fd`.
pub fn created(fd: c_int) {
    sluice_sockets::life::renumbered(fd);
    if fd >= 0
        && sluice_sockets::life::tracking()
        && let Some(set) = set::alloc(fd)
    {
        fd_table::store(fd, Entry::of(set));
    }
}

/// Serves `epoll_wait` and its kin.
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
    // SAFETY: the caller's.
    let Ok(timeout) = (unsafe { caller::timeout_at(timeout) }) else {
        return Verdict::Pass(Pass::NOBODY);
    };
    let timeout = timeout.as_ref();
    if wait_state.stage != Stage::Fresh {
        let mut waiter = Waiter::new(set, epfd, events, max, mask);
        waiter.kept = wait_state.kept;
        let slept = waiter.woken(wait_state);
        return match waiter.told(slept, false) {
            Some(verdict) => verdict,
            None => turns(waiter, timeout, wait_state),
        };
    }
    let bad_time =
        timeout.is_some_and(|t| t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec));
    if !(1..=EVENTS_MAX).contains(&max) || bad_time || seccomp::waits_by_itself() {
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
            // The kernel's to refuse, whatever there is to tell.
            return Verdict::Pass(Pass::NOBODY);
        }
    }
    turns(
        Waiter::new(set, epfd, events, max, mask),
        timeout,
        wait_state,
    )
}

const EVENT: usize = size_of::<epoll_event>();

/// Does the kernel find out about such an array only when it writes there? (Null is no other
/// address to it.)
fn is_null_or_users(at: usize, len: usize) -> bool {
    plausible(at.max(4096), len)
}

/// How many of so many events there is room for at `at`.
fn there(at: usize, count: usize) -> usize {
    if caller::cannot_write(at, count * EVENT) {
        caller::writable(at, count * EVENT) / EVENT
    } else {
        count
    }
}

/// Looks and sleeps in turn until there is an answer, or the hook is to sleep.
fn turns(mut waiter: Waiter, timeout: Option<&timespec>, wait_state: &mut WaitState) -> Verdict {
    let set = waiter.set;
    let adopted = set.adopted.load(Ordering::Acquire) != 0;
    let poll = timeout.is_some_and(|t| t.tv_sec == 0 && t.tv_nsec == 0);
    let mut deadline = wait_state.deadline;
    let mut awaits_owed = poll;
    // Turns in which marks came without an event: a peer that makes them may not keep us here.
    let mut idle = wait_state.idle;
    loop {
        if meeting::is_meeting() {
            sluice_rendezvous::progress_soon();
        }
        set.drive();
        // Streams that fill every answer may not keep the kernel's events from being told.
        let turn = adopted && set.kernel_turn.load(Ordering::Relaxed);
        let most = if turn {
            waiter.max - waiter.max.div_ceil(2)
        } else {
            waiter.max
        };
        let ready = match waiter.first(most, !turn) {
            First::Streams(ready) => ready,
            First::All(count) => return waiter.over(count),
            First::Nowhere => return Verdict::Failed(Error::BadAddress),
        };
        if ready != 0 && !turn {
            let full = ready == waiter.max;
            let due = waiter.kernel_due() || full && waiter.kernel_waits();
            if full || !due {
                set.kernel_turn.store(due, Ordering::Relaxed);
                return waiter.over(ready);
            }
        }
        idle += 1;
        let over = idle > IDLE_TURNS && deadline.is_some_and(|end| sys::now_ns() >= end);
        if turn {
            set.kernel_turn.store(false, Ordering::Relaxed);
        }
        if turn && ready == 0 {
            // An answer of one place: the kernel's, if it has any.
            let found = waiter.kernel(0, Some(&AT_ONCE), Ends::NEVER);
            match found {
                Ok((0, _)) => continue,
                Ok((count, _)) => return waiter.over(count),
                Err(e) => return failed(e),
            }
        }
        if ready != 0 || poll || over {
            match waiter.last_look(ready, turn, &mut awaits_owed) {
                Some(verdict) => return verdict,
                None => continue,
            }
        }
        if !idle.is_multiple_of(IDLE_TURNS)
            && set.adopted.load(Ordering::Acquire) != 0
            && set.spin_until_ready()
        {
            continue;
        }
        let left = timeout.map(|t| left_of(t, &mut deadline));
        (wait_state.deadline, wait_state.idle) = (deadline, idle);
        let Some(slept) = waiter.sleep(left, idle.is_multiple_of(IDLE_TURNS), wait_state) else {
            return Verdict::Block;
        };
        if let Some(verdict) = waiter.told(slept, left == Some(0)) {
            return verdict;
        }
    }
}

/// How many ns are left of the time, which begins with the first question.
fn left_of(time: &timespec, deadline: &mut Option<u64>) -> u64 {
    let now = sys::now_ns();
    let end = *deadline.get_or_insert_with(|| {
        now.saturating_add((time.tv_sec as u64).saturating_mul(1_000_000_000))
            .saturating_add(time.tv_nsec as u64)
    });
    end.saturating_sub(now)
}

/// A look, without a wait, that went straight to the kernel returned `got`, and the set is no
/// longer [plain](Set::is_plain): bells are taken out.
///
/// # Safety
/// The kernel has filled `got` events of a C caller's.
#[cold]
pub unsafe fn looked(set: &'static Set, events: *mut epoll_event, got: c_int) -> Verdict {
    let mut waiter = Waiter::new(set, set.fd(), events, got.max(0), core::ptr::null());
    waiter.kept = None;
    if got <= 0 {
        // With -1 in errno stands what the kernel said.
        return Verdict::Done(got as isize);
    }
    let (count, _) = set.translate(waiter.out(), 0, got as usize, Moment::unknown());
    waiter.over(count)
}

/// A wait that went straight to the kernel returned `got`, and the set is no longer
/// [plain](Set::is_plain). `end` is when the wait ends; `None`: never.
///
/// # Safety
/// As [`wait`]; the kernel has filled `got` events.
#[cold]
pub unsafe fn returned(
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
    let mut waiter = Waiter::new(set, epfd, events, max, mask);
    set.awake();
    if got <= 0 {
        // With -1 in errno stands what the kernel said.
        return Verdict::Done(got as isize);
    }
    let (count, _) = set.translate(waiter.out(), 0, got as usize, Moment::unknown());
    if count != 0 {
        let count = waiter.append(count);
        return waiter.over(count);
    }
    // Bells alone: the wait goes on, the long way.
    // SAFETY: the caller's arguments, a time of ours.
    unsafe { wait(set, epfd, events, max, left, mask, wait_state) }
}

fn failed(e: sys::Errno) -> Verdict {
    Verdict::Failed(if e == libc::EINTR {
        Error::Interrupted
    } else {
        Error::Kernel(e)
    })
}

enum Slept {
    /// Events for the program.
    Events(usize),
    /// A doorbell: look at the streams.
    News,
    /// The time is over, or a slice of it.
    Nothing,
}

/// The front of an answer.
enum First {
    /// So many streams, after which the kernel's events may go.
    Streams(usize),
    /// Streams, the kernel's, and other streams: the whole answer.
    All(usize),
    /// Streams have something to tell, and none of the array is there: the kernel finds that out
    /// when it has an event to write, which stays.
    Nowhere,
}

/// One call of `epoll_wait`.
struct Waiter {
    set: &'static Set,
    epfd: c_int,
    events: *mut epoll_event,
    max: usize,
    mask: *const sigset_t,
    /// So many events of the array are certain to be there, and as many as streams could fill when
    /// the call began.
    sure: usize,
    /// What the front of the array was before the call.
    kept: Option<[epoll_event; KEPT]>,
    /// The kernel's last answer took all the places there were.
    was_full: bool,
}

impl Waiter {
    fn new(
        set: &'static Set,
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        mask: *const sigset_t,
    ) -> Self {
        let (mut max, mut sure, mut kept) = (max as usize, 0, None);
        let adopted = set.adopted.load(Ordering::Relaxed) as usize;
        if adopted != 0 {
            let filled = adopted.saturating_add(KEPT).min(max);
            sure = there(events as usize, filled);
            if (1..filled).contains(&sure) {
                // As the kernel, which ends in front of an event that it cannot write.
                max = sure;
            }
            let to = kept.insert([epoll_event { events: 0, u64: 0 }; KEPT]);
            // SAFETY: the front of the caller's array, which is there.
            unsafe { core::ptr::copy_nonoverlapping(events, to.as_mut_ptr(), KEPT.min(sure)) };
            if sure == 0 {
                kept = None;
            }
        }
        Self {
            set,
            epfd,
            events,
            max,
            mask,
            sure,
            kept,
            was_full: false,
        }
    }

    fn out(&mut self) -> &mut [epoll_event] {
        // SAFETY: the caller's array of `max` events, plain integers.
        unsafe { core::slice::from_raw_parts_mut(self.events, self.max) }
    }

    /// How many events streams may write after the first `start`: as many as the array is known to
    /// hold, or as streams can have.
    fn room(&self, start: usize) -> usize {
        let adopted = self.set.adopted.load(Ordering::Acquire) as usize;
        let left = self.max.saturating_sub(start);
        let most = adopted.saturating_add(KEPT).min(left);
        if start + most <= self.sure {
            return most;
        }
        there((self.events as usize).wrapping_add(start * EVENT), most)
    }

    /// What a look tells first, streams in the front of the array: all, or those that come before
    /// the kernel's events.
    fn first(&mut self, most: usize, before_tcp: bool) -> First {
        let set = self.set;
        if set.adopted.load(Ordering::Acquire) == 0 {
            return First::Streams(0);
        }
        let room = self.room(0).min(most);
        if room == 0 && most != 0 {
            return if set.would_tell() {
                First::Nowhere
            } else {
                First::Streams(0)
            };
        }
        let out = self.out().get_mut(..room).unwrap_or_default();
        if !before_tcp {
            return First::Streams(set.collect_ready(out));
        }
        match set.collect_ready_before_tcp(out) {
            Taken::Events(ready) => First::Streams(ready),
            Taken::BeforeTcp(ready) => match self.kernel_between(ready) {
                0 => First::Streams(0),
                count => First::All(count),
            },
        }
    }

    /// An answer whose first `ready` streams are there: the kernel's events, and after these the
    /// other streams. No signal that only the mask lets through is delivered, since there is an
    /// answer.
    #[cold]
    fn kernel_between(&mut self, ready: usize) -> usize {
        let mask = core::mem::replace(&mut self.mask, core::ptr::null());
        let found = self.all_of_kernel(ready);
        self.mask = mask;
        if !self.was_full {
            self.set.with(EpollState::kernel_has_told);
        }
        self.append(found.map_or(ready, |(count, _)| count))
    }

    /// The answer of a call that is not to sleep, with the kernel's events after the first `ready`
    /// ones. `None`: something that was owed has come, for which it looks anew, once.
    fn last_look(&mut self, ready: usize, turn: bool, awaits_owed: &mut bool) -> Option<Verdict> {
        let found = self.all_of_kernel(ready);
        if matches!(found, Ok((0, _))) && core::mem::take(awaits_owed) && remains::is_any_owed() {
            let socks = self.set.with(|state| state.readers()).unwrap_or_default();
            if remains::await_first_of(socks.into_iter()) {
                return None;
            }
        }
        Some(match found {
            Ok((count, _)) => {
                let count = if turn { self.append(count) } else { count };
                self.over(count)
            }
            Err(_) if ready != 0 => self.over(ready),
            Err(e) => failed(e),
        })
    }

    /// Streams have filled one more answer: was that the last in a row?
    fn kernel_waits(&self) -> bool {
        let full = &self.set.full_answers;
        let filled = full.load(Ordering::Relaxed) + 1;
        full.store(filled % FULL_ANSWERS, Ordering::Relaxed);
        filled == FULL_ANSWERS
    }

    fn kernel_due(&self) -> bool {
        sys::rough_ns().wrapping_sub(self.set.looked_ns.load(Ordering::Relaxed)) >= KERNEL_NS
    }

    /// The kernel's events after the first `ready` ones, translated: the count of all, and before
    /// which of them a bell rang.
    fn kernel(
        &mut self,
        ready: usize,
        timeout: Option<&timespec>,
        ends: Ends,
    ) -> Result<(usize, Option<usize>), sys::Errno> {
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
        self.took(ready, got, began)
    }

    /// As [`Waiter::kernel`] without a wait, and anew where what it told has left places that it
    /// may have more for.
    fn all_of_kernel(&mut self, ready: usize) -> Result<(usize, Option<usize>), sys::Errno> {
        let mut found = self.kernel(ready, Some(&AT_ONCE), Ends::NEVER)?;
        for _ in 0..LOOKS {
            let (count, bell) = found;
            // After a bell alone comes what the kernel says of a registration that is the
            // program's again.
            let only_rang = count == ready && bell.is_some();
            if !(only_rang || self.was_full) || count == self.max {
                break;
            }
            let Ok((more, rang)) = self.kernel(count, Some(&AT_ONCE), Ends::NEVER) else {
                break;
            };
            // The kernel tells of a level-triggered event again at the end of a second look. In
            // one call a program expects it once, so both become one. Two registrations with the
            // same data become one, too: the program tells them apart by nothing else.
            let more = self.fold(count, more);
            found = (more, bell.or(rang));
            let is_all = more == count && rang.is_none();
            if is_all || only_rang && more == ready && !self.was_full {
                break;
            }
        }
        Ok(found)
    }

    /// The kernel has put events after the first `ready` ones, in a look that began then: they are
    /// translated.
    fn took(
        &mut self,
        ready: usize,
        got: Result<usize, sys::Errno>,
        began: Moment,
    ) -> Result<(usize, Option<usize>), sys::Errno> {
        // A sleep that a signal ended, perhaps after a stop, is no look.
        let got = match got {
            Err(libc::EFAULT) if self.was_bell() => return Ok((ready, Some(ready))),
            got => got?,
        };
        if self.set.adopted.load(Ordering::Relaxed) != 0 {
            self.set.looked_ns.store(sys::rough_ns(), Ordering::Relaxed);
        }
        self.was_full = ready + got == self.max;
        if got == 0 {
            return Ok((ready, None));
        }
        let set = self.set;
        let found = set.translate(self.out(), ready, ready + got, began);
        self.leave_rest(found.0);
        Ok(found)
    }

    /// The kernel had something to tell and the array is not there. Was it one of the library's own
    /// doorbells in the set? Then the program has no event.
    fn was_bell(&self) -> bool {
        if !is_null_or_users(self.events as usize, self.max * EVENT) {
            // The kernel refuses that one whatever there is to tell.
            return false;
        }
        self.set.silence();
        events::kernel_ready(self.epfd, libc::POLLIN) == 0
    }

    /// The kernel leaves alone what it has no event for: after `count` events the front of the
    /// array is what it was.
    fn leave_rest(&mut self, count: usize) {
        if let Some(kept) = self.kept {
            for (event, old) in self.out().iter_mut().zip(kept).skip(count) {
                *event = old;
            }
        }
    }

    /// Sleeps in the kernel's set, at most `left` ns. `None`: the hook does, by `wait_state`.
    fn sleep(
        &mut self,
        left: Option<u64>,
        look: bool,
        wait_state: &mut WaitState,
    ) -> Option<Result<Slept, sys::Errno>> {
        let set = self.set;
        // What a sleep left by a jump has announced goes before this one announces the same.
        nap::left_sleeps(wait_state.frame());
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
            // The sleep begins with a look.
            set.looked_ns.store(sys::rough_ns(), Ordering::Relaxed);
        }
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        let marked = set.announce_and_look();
        if marked && !look {
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
        if left != Some(0) && nap::falls_asleep_in(wait_state.frame(), set) {
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
        let got = self.kernel(0, timeout.as_ref(), wait_state.ran.any());
        set.leave();
        Some(self.slept(got, sliced))
    }

    /// The hook has slept.
    fn woken(&mut self, wait_state: &mut WaitState) -> Result<Slept, sys::Errno> {
        nap::wakes_up(wait_state.frame());
        wait_state.stage = Stage::Fresh;
        let got = self.took(0, wait_state.answer, wait_state.began);
        self.slept(got, wait_state.sliced)
    }

    /// What the kernel gave at the end of a sleep.
    fn slept(
        &mut self,
        got: Result<(usize, Option<usize>), sys::Errno>,
        sliced: bool,
    ) -> Result<Slept, sys::Errno> {
        let (count, bell) = got?;
        if bell.is_some() {
            // Woken for all that sleep for links to other hosts: the program may not come back
            // soon.
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

    /// The answer that a sleep has brought, if any. `last`: there was no time left for it.
    fn told(&mut self, slept: Result<Slept, sys::Errno>, last: bool) -> Option<Verdict> {
        match slept {
            Ok(Slept::Events(count)) => Some(self.over(count)),
            Ok(Slept::Nothing) if last => Some(self.over(0)),
            Ok(Slept::News | Slept::Nothing) => None,
            Err(e) => {
                // News that came with the signal are reported first, as the kernel does, and with
                // what it has by now: a program that was stopped for long is not told of streams
                // alone.
                let ready = match self.first(self.max, true) {
                    First::Streams(0) => {
                        self.set.pass_on();
                        return Some(failed(e));
                    }
                    First::Streams(ready) => {
                        self.all_of_kernel(ready).map_or(ready, |(all, _)| all)
                    }
                    First::All(count) => count,
                    First::Nowhere => return Some(Verdict::Failed(Error::BadAddress)),
                };
                Some(self.over(ready))
            }
        }
    }

    /// Adds ready streams after `count` kernel events.
    fn append(&mut self, count: usize) -> usize {
        let set = self.set;
        if count == self.max || set.adopted.load(Ordering::Relaxed) == 0 {
            return count;
        }
        let end = count + self.room(count);
        let back = self.out().get_mut(count..end).unwrap_or_default();
        let more = set.collect_ready(back);
        self.fold(count, count + more)
    }

    /// What `start..end` of the array says of those that the first `start` events tell of already
    /// goes into these.
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
        self.leave_rest(start + kept);
        start + kept
    }

    /// The call is over: other threads that wait on this set hear of what is left.
    fn over(&self, count: usize) -> Verdict {
        self.set.pass_on();
        Verdict::Done(count as isize)
    }
}

impl Set {
    /// One sleeper less was counted: the announcement goes with the last.
    fn awake(&self) {
        let wanted =
            || self.sleepers.load(Ordering::SeqCst) != 0 || self.nested.load(Ordering::Relaxed);
        if wanted() {
            return;
        }
        self.retract();
        if wanted() {
            // Somebody lay down in between: the announcement that was just taken back was its, too.
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
        self.awake();
    }

    /// Other threads that wait on this set hear of what is left.
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
