//! An epoll set with the sockets of all meetings. A look at it costs one system call for any number
//! of meetings, and says which of them have news.

use super::PENDING_MAX;
use core::sync::atomic::{AtomicI32, Ordering};
use sluice_fabric::sys;
use sluice_runtime::{control_thread, own_fds};

/// The set; -1: there was no meeting yet, or the kernel refused to make one.
static SET: AtomicI32 = AtomicI32::new(-1);

/// Enters the socket of a meeting. The list of meetings is locked.
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

/// Takes a socket out, before it is closed: another process may hold the file open.
pub(super) fn leave(fd: i32) {
    let set = SET.load(Ordering::Acquire);
    let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// Has the control thread watch the set, if both exist.
pub(super) fn tell_control() {
    let set = SET.load(Ordering::Acquire);
    if set >= 0 && control_thread::is_running() {
        control_thread::watch(set, libc::EPOLLIN as u32, control_thread::MEETING);
        control_thread::poke();
    }
}

/// Sleeps until one of the sockets has news, or for `ns`.
pub(super) fn wait(ns: u64) {
    let set = SET.load(Ordering::Acquire);
    let _ = sys::poll_one(set, libc::POLLIN, Some(sys::timespec(ns)));
}

/// The sockets that have news.
pub(super) struct Ready {
    events: [libc::epoll_event; PENDING_MAX],
    /// `None`: not known, so any socket may have news.
    count: Option<usize>,
}

impl Ready {
    /// The sockets that have news now.
    pub fn now() -> Ready {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; PENDING_MAX];
        let (set, at_once) = (SET.load(Ordering::Acquire), sys::timespec(0));
        let (at, most) = (events.as_mut_ptr(), PENDING_MAX as i32);
        // SAFETY: `events` has room for `most` events and is alive until the call returns.
        let count =
            unsafe { sys::epoll_wait(set, at, most, Some(&at_once), core::ptr::null()) }.ok();
        Ready { events, count }
    }

    /// True if this socket may have news.
    pub fn has(&self, fd: i32) -> bool {
        self.count.is_none_or(|count| {
            let mut ready = self.events.iter().take(count);
            ready.any(|event| event.u64 == fd as u64)
        })
    }
}

/// Closes the set: there is no meeting, or this is a child and the set is the parent's.
pub(super) fn close() {
    let set = SET.swap(-1, Ordering::AcqRel);
    if set >= 0 {
        own_fds::close(set);
    }
}
