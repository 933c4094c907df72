//! `epoll_ctl` and `epoll_wait`.

use super::set::{self, Set};
use crate::api::{Error, Pass, Verdict};
use crate::rendezvous;
use crate::sockets::table::{self, Entry, Kind};
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event, sigset_t, timespec};
use sluice_fabric::sys;

/// The kernel's part of a set is looked at at least this often, however busy the rings are.
const KERNEL_NS: u64 = 50_000;

/// `epoll_create*` returned `fd`.
pub fn created(fd: c_int) {
    crate::sockets::life::renumbered(fd);
    if fd >= 0 && crate::sockets::life::tracking() {
        if let Some(set) = set::alloc(fd) {
            table::store(fd, Entry::set(set));
        }
    }
}

/// Serves `epoll_ctl`.
///
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Verdict {
    let Some(set) = table::lookup(epfd).and_then(Entry::as_set) else {
        return Verdict::Pass(Pass::NOBODY);
    };
    let target = table::lookup(fd);
    if matches!(target.map(Entry::kind), Some(Kind::Internal)) {
        return Verdict::Failed(Error::Kernel(libc::EBADF));
    }
    if target.is_none() {
        return Verdict::Pass(Pass::NOBODY);
    }
    // SAFETY: the caller's arguments.
    if let Err(e) = unsafe { sys::epoll_ctl_raw(epfd, op, fd, event) } {
        return Verdict::Failed(Error::Kernel(e));
    }
    match target.map(Entry::kind) {
        Some(Kind::Sock(sock)) => {
            // SAFETY: the kernel has read it where it must be valid.
            let wanted = unsafe { event.as_ref() }.map_or((0, 0), |e| ({ e.events }, { e.u64 }));
            match op {
                libc::EPOLL_CTL_ADD => set.added(fd, sock, wanted.0, wanted.1),
                libc::EPOLL_CTL_MOD => set.modified(fd, sock, wanted.0, wanted.1),
                _ => set.removed(fd, sock),
            }
        }
        Some(Kind::Set(inner)) if op == libc::EPOLL_CTL_ADD => inner.is_nested(),
        _ => {
            // A fresh socket registered before connect(): it is tracked from here on.
            if op == libc::EPOLL_CTL_ADD && target == Some(Entry::FRESH) {
                crate::sockets::life::registered_fresh(fd);
                if let Some(sock) = table::lookup(fd).and_then(Entry::as_sock) {
                    // SAFETY: as above.
                    let wanted =
                        unsafe { event.as_ref() }.map_or((0, 0), |e| ({ e.events }, { e.u64 }));
                    set.added(fd, sock, wanted.0, wanted.1);
                }
            }
        }
    }
    Verdict::Done(0)
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
) -> Verdict {
    // SAFETY: null, or the caller's.
    let timeout = unsafe { timeout.as_ref() };
    let bad_time =
        timeout.is_some_and(|t| t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec));
    if max <= 0 || bad_time {
        return Verdict::Pass(Pass::NOBODY);
    }
    let mut waiter = Waiter {
        set,
        epfd,
        events,
        max: max as usize,
        mask,
    };
    let poll = timeout.is_some_and(|t| t.tv_sec == 0 && t.tv_nsec == 0);
    let mut deadline = None;
    loop {
        if rendezvous::is_meeting() {
            rendezvous::progress();
        }
        let ready = waiter.streams();
        if ready != 0 && (ready == waiter.max || !waiter.kernel_due()) {
            return waiter.over(ready);
        }
        if ready != 0 || poll {
            return match waiter.kernel(
                ready,
                Some(&timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                }),
            ) {
                Ok((count, _)) => waiter.over(count),
                Err(_) if ready != 0 => waiter.over(ready),
                Err(e) => failed(e),
            };
        }
        if set.adopted.load(Ordering::Acquire) != 0 && set.spin_until_ready() {
            continue;
        }
        let left = match timeout {
            None => None,
            Some(t) => {
                let now = sys::now_ns();
                let end = *deadline.get_or_insert_with(|| {
                    now.saturating_add((t.tv_sec as u64).saturating_mul(1_000_000_000))
                        .saturating_add(t.tv_nsec as u64)
                });
                Some(end.saturating_sub(now))
            }
        };
        match waiter.sleep(left) {
            Ok(Slept::Events(count)) => return waiter.over(count),
            Ok(Slept::News) => {}
            Ok(Slept::Nothing) if left.is_some_and(|l| l == 0) => return waiter.over(0),
            Ok(Slept::Nothing) => {}
            Err(e) => {
                // News that came with the signal are reported first, as the kernel does.
                let ready = waiter.streams();
                let verdict = waiter.over(ready);
                return if ready != 0 { verdict } else { failed(e) };
            }
        }
    }
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

/// One call of `epoll_wait`.
struct Waiter {
    set: &'static Set,
    epfd: c_int,
    events: *mut epoll_event,
    max: usize,
    mask: *const sigset_t,
}

impl Waiter {
    fn out(&mut self) -> &mut [epoll_event] {
        // SAFETY: the caller's array of `max` events, plain integers.
        unsafe { core::slice::from_raw_parts_mut(self.events, self.max) }
    }

    /// Ready streams, into the front of the array.
    fn streams(&mut self) -> usize {
        if self.set.adopted.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let set = self.set;
        set.harvest(self.out())
    }

    fn kernel_due(&self) -> bool {
        sys::now_ns().saturating_sub(self.set.looked_ns.load(Ordering::Relaxed)) >= KERNEL_NS
    }

    /// The kernel's events behind the first `ready` ones, translated: the count of all, and whether a bell rang.
    fn kernel(
        &mut self,
        ready: usize,
        timeout: Option<&timespec>,
    ) -> Result<(usize, bool), sys::Errno> {
        let room = self.max - ready;
        // A call that has an answer delivers no signal that only its mask lets through.
        let mask = if ready == 0 {
            self.mask
        } else {
            core::ptr::null()
        };
        // SAFETY: inside the caller's array; the mask is the caller's.
        let got = unsafe {
            sys::epoll_wait(
                self.epfd,
                self.events.add(ready),
                room as c_int,
                timeout,
                mask,
            )
        };
        if self.set.adopted.load(Ordering::Relaxed) != 0 {
            self.set.looked_ns.store(sys::now_ns(), Ordering::Relaxed);
        }
        let got = got?;
        if got == 0 {
            return Ok((ready, false));
        }
        let set = self.set;
        Ok(set.translate(self.out(), ready, ready + got))
    }

    /// Sleeps in the kernel's set, at most `left` ns.
    fn sleep(&mut self, left: Option<u64>) -> Result<Slept, sys::Errno> {
        let set = self.set;
        let mut left = left;
        let mut sliced = false;
        if rendezvous::needs_hooks() {
            // A meeting ends in time even if nothing else happens.
            if let Some(meeting) = rendezvous::watched(|_| ()) {
                sliced = left.is_none_or(|l| meeting < l);
                left = Some(left.map_or(meeting, |l| l.min(meeting)).max(1_000_000));
            }
        }
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        set.announce();
        if set.adopted.load(Ordering::SeqCst) != 0 && set.any_ready() {
            set.sleepers.fetch_sub(1, Ordering::SeqCst);
            self.awake();
            return Ok(Slept::News);
        }
        let timeout = left.map(|ns| timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let got = self.kernel(0, timeout.as_ref());
        set.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.awake();
        let (count, bell) = got?;
        if count != 0 {
            // Streams that became ready too go into the same answer where there is room.
            return Ok(Slept::Events(self.append(count)));
        }
        Ok(if bell || sliced {
            Slept::News
        } else {
            Slept::Nothing
        })
    }

    /// Adds ready streams behind `count` kernel events.
    fn append(&mut self, count: usize) -> usize {
        let set = self.set;
        if count == self.max || set.adopted.load(Ordering::Relaxed) == 0 {
            return count;
        }
        let (front, back) = self.out().split_at_mut(count);
        let more = set.harvest(back);
        let mut kept = 0;
        for i in 0..more {
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
        count + kept
    }

    /// Retracts the announcement, unless others still sleep.
    fn awake(&self) {
        let set = self.set;
        let wanted =
            || set.sleepers.load(Ordering::SeqCst) != 0 || set.nested.load(Ordering::Relaxed);
        if wanted() {
            return;
        }
        set.retract();
        if wanted() {
            // Somebody lay down in between: the announcement that was just taken back was its, too.
            set.announce();
            if set.any_ready() {
                set.ring();
            }
        }
    }

    /// The call is over: whoever else waits on this set hears of what is left.
    fn over(&self, count: usize) -> Verdict {
        let set = self.set;
        let others = set.sleepers.load(Ordering::SeqCst) != 0 || set.nested.load(Ordering::Relaxed);
        if others && set.adopted.load(Ordering::Relaxed) != 0 {
            set.announce();
            if set.has_queue() || set.any_ready() {
                set.ring();
            }
        }
        Verdict::Done(count as isize)
    }
}

impl Set {
    /// Another set or a poll watches this one: news ring at once, whoever waits.
    pub fn is_nested(&self) {
        self.nested.store(true, Ordering::SeqCst);
        self.announce();
        if self.any_ready() {
            self.ring();
        }
    }
}
