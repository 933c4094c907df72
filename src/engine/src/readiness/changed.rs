//! Registrations that the program changes by the kernel: those that the mirror does not serve alone
//! ([`super::parked`]).

use super::regs::{Echo, Inside};
use super::set::Set;
use crate::sockets::sock::Sock;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;

impl Set {
    /// The kernel has accepted a change.
    pub(super) fn modified(
        &'static self,
        fd: i32,
        sock: &'static Sock,
        (events, data): (u32, u64),
    ) {
        self.note(events);
        let told = self.with(|inside| renewed(inside, fd, sock, (events, data)));
        if told == Some(true) {
            self.tell();
        }
    }

    /// `EPOLL_CTL_MOD`, by the kernel and in the mirror in one step: a thread that waits may have the event of a
    /// registration that is armed anew at once, and must not find it disarmed here. `None`: in two, see
    /// [`Set::modified`].
    ///
    /// # Safety
    /// `event` is a C caller's.
    #[inline]
    pub(super) unsafe fn modify(
        &'static self,
        (epfd, fd): (i32, i32),
        sock: &'static Sock,
        event: *mut libc::epoll_event,
    ) -> Option<Result<(), sys::Errno>> {
        if !self.has_oneshots.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the caller's.
        unsafe { self.modify_at_once((epfd, fd), sock, event) }
    }

    /// # Safety
    /// As for [`Set::modify`].
    unsafe fn modify_at_once(
        &'static self,
        (epfd, fd): (i32, i32),
        sock: &'static Sock,
        event: *mut libc::epoll_event,
    ) -> Option<Result<(), sys::Errno>> {
        let told = self.with(|inside| {
            // SAFETY: the caller's.
            unsafe { sys::epoll_ctl_raw(epfd, libc::EPOLL_CTL_MOD, fd, event) }?;
            // SAFETY: the kernel has read it.
            let wanted = unsafe { ((*event).events, (*event).u64) };
            Ok(renewed(inside, fd, sock, wanted))
        })?;
        if told == Ok(true) {
            self.tell();
        }
        Some(told.map(|_| ()))
    }
}

/// The kernel has accepted a change; whether a stream is to be looked at.
fn renewed(inside: &mut Inside, fd: i32, sock: &'static Sock, (events, data): (u32, u64)) -> bool {
    let Some(at) = inside.find(fd, sock) else {
        return false;
    };
    inside.renew(at, events, data);
    let Some(reg) = inside.reg(at) else {
        return false;
    };
    reg.parked = false;
    reg.echo = Echo::Due;
    let adopted = reg.adopted;
    if adopted {
        inside.queue_asked(at);
    }
    adopted
}
