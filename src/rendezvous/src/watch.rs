//! The sockets of all meetings in one epoll set: a look costs one call, for one name and for
//! sixty-four, and only a meeting that something has come to goes on.

use super::PENDING_MAX;
use core::sync::atomic::{AtomicI32, Ordering};
use sluice_fabric::sys;
use sluice_runtime::{control_thread, own_fds};

/// The set; -1: there was no meeting yet, or it was refused.
static SET: AtomicI32 = AtomicI32::new(-1);

/// With the list of meetings locked: the socket of one is looked at from here on.
pub(super) fn enter(fd: i32) {
    if SET.load(Ordering::Relaxed) < 0
        && let Ok(set) = sys::epoll_create()
        && let Some(set) = own_fds::lift(set)
    {
        SET.store(set.release(), Ordering::Release);
        tell_control();
    }
    let set = SET.load(Ordering::Relaxed);
    let _ = sys::epoll_ctl(
        set,
        libc::EPOLL_CTL_ADD,
        fd,
        libc::EPOLLIN as u32,
        fd as u64,
    );
}

/// No more, though somebody else may have it open.
pub(super) fn leave(fd: i32) {
    let set = SET.load(Ordering::Acquire);
    let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// The control thread hears of the set's news, if both are there.
pub(super) fn tell_control() {
    let set = SET.load(Ordering::Acquire);
    if set >= 0 && control_thread::is_running() {
        control_thread::watch(set, libc::EPOLLIN as u32, control_thread::MEETING);
        control_thread::poke();
    }
}

/// Sleeps until something has come to one of them, or for so long.
pub(super) fn wait(ns: u64) {
    let set = SET.load(Ordering::Acquire);
    let _ = sys::poll_one(set, libc::POLLIN, Some(sys::timespec(ns)));
}

/// The sockets that something has come to.
pub(super) struct Ready {
    events: [libc::epoll_event; PENDING_MAX],
    /// `None`: it is not known, and may be any.
    count: Option<usize>,
}

impl Ready {
    /// Those of now.
    pub fn now() -> Ready {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; PENDING_MAX];
        let (set, at_once) = (SET.load(Ordering::Acquire), sys::timespec(0));
        let (at, most) = (events.as_mut_ptr(), PENDING_MAX as i32);
        // SAFETY: an array of ours, and no mask.
        let count =
            unsafe { sys::epoll_wait(set, at, most, Some(&at_once), core::ptr::null()) }.ok();
        Ready { events, count }
    }

    /// Is this one of them?
    pub fn has(&self, fd: i32) -> bool {
        self.count.is_none_or(|count| {
            let mut ready = self.events.iter().take(count);
            ready.any(|event| event.u64 == fd as u64)
        })
    }
}

/// Nobody is met, or, in the child of a fork, the set is the parent's.
pub(super) fn close() {
    let set = SET.swap(-1, Ordering::AcqRel);
    if set >= 0 {
        own_fds::close(set);
    }
}
