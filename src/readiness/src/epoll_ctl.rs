//! `epoll_ctl`: which part of a call the kernel does, and which the mirror alone.

use super::poll;
use super::set::Set;
use core::sync::atomic::Ordering;
use libc::{c_int, epoll_event};
use sluice_fabric::sys;
use sluice_runtime::caller;
use sluice_runtime::fd_table::{self, Entry, Kind};
use sluice_sockets::socket::Socket;
use sluice_sockets::unread_copy::{self, awaiting};
use sluice_sockets::verdict::{Error, Pass, Verdict};
use sluice_sockets::{descriptors, give_up};
use sluice_stats::Reason;

/// Serves `epoll_ctl`.
///
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Verdict {
    let target = fd_table::lookup(fd);
    let Some(set) = fd_table::lookup(epfd).and_then(Entry::get::<Set>) else {
        if op == libc::EPOLL_CTL_ADD && target != Some(Entry::INTERNAL) {
            // A set that another process made, or one too many: the kernel alone serves it, so the
            // socket stays on TCP.
            sluice_sockets::raw_use::used(fd, Reason::SetElsewhere);
        }
        return Verdict::Pass(Pass::NOBODY);
    };
    if target == Some(Entry::INTERNAL) {
        return Verdict::Failed(Error::Kernel(libc::EBADF));
    }
    if target.is_none() {
        return Verdict::Pass(Pass::NOBODY);
    }
    if set.inherited.load(Ordering::Relaxed) {
        set.use_inherited();
    }
    if op != libc::EPOLL_CTL_DEL && caller::cannot_read(event as usize, size_of::<epoll_event>()) {
        // The kernel, too, checks the pointer first.
        return Verdict::Failed(Error::BadAddress);
    }
    // SAFETY: the caller's arguments.
    let wanted = unsafe { wanted_by(op, event) };
    let once = wanted.is_some_and(|(events, _)| events & libc::EPOLLONESHOT as u32 != 0);
    if once && matches!(target.map(Entry::kind), Some(Kind::Socket | Kind::Fresh)) {
        // Before the kernel can tell of the registration: the mirror decides which thread is told.
        set.no_longer_plain();
    }
    if let Some(sock) = target.and_then(Entry::get::<Socket>) {
        if op != libc::EPOLL_CTL_DEL {
            bring_unread(set, sock, op);
        }
        if let Some(done) = set.ctl_in_mirror(op, fd, sock, wanted) {
            return done;
        }
        if op == libc::EPOLL_CTL_MOD
            // SAFETY: the caller's arguments.
            && let Some(done) = unsafe { set.modify((epfd, fd), sock, event) }
        {
            return done_by_both(done);
        }
        if op == libc::EPOLL_CTL_ADD
            // A parent's stream goes back to TCP before the kernel looks at it.
            && (sock.is_accelerated() && poll::own(sock) || once)
            // SAFETY: the caller's arguments.
            && let Some(done) = unsafe { set.add((epfd, fd), sock, event) }
        {
            return done_by_both(done);
        }
    }
    if let Some(inner) = target.and_then(Entry::get::<Set>)
        && op != libc::EPOLL_CTL_DEL
    {
        inner.is_nested();
    }
    // SAFETY: the caller's arguments.
    if let Err(e) = unsafe { sys::epoll_ctl_raw(epfd, op, fd, event) } {
        return Verdict::Failed(Error::Kernel(e));
    }
    let wanted = match wanted {
        // SAFETY: what the kernel has accepted could be read.
        None if op != libc::EPOLL_CTL_DEL => unsafe { ((*event).events, (*event).u64) },
        _ => wanted.unwrap_or_default(),
    };
    mirror(set, (op, fd), target, wanted);
    Verdict::Done(0)
}

/// Makes the change in the mirror that the kernel has accepted.
fn mirror(set: &'static Set, (op, fd): (c_int, c_int), target: Option<Entry>, wanted: (u32, u64)) {
    let mut target = target;
    if target == Some(Entry::FRESH) && op == libc::EPOLL_CTL_ADD {
        // A socket that is registered before connect() is tracked from here on.
        descriptors::registered_fresh(fd);
        target = fd_table::lookup(fd);
    }
    let Some(sock) = target.and_then(Entry::get::<Socket>) else {
        return;
    };
    match op {
        libc::EPOLL_CTL_ADD => set.added(fd, sock, wanted),
        libc::EPOLL_CTL_MOD => set.modified(fd, sock, wanted),
        _ => set.removed(fd, sock),
    }
}

/// Waits for bytes that a demotion sends again on `sock`. The kernel looks at the socket during
/// `epoll_ctl`, and must find them there.
fn bring_unread(set: &'static Set, sock: &'static Socket, op: c_int) {
    if op == libc::EPOLL_CTL_ADD
        && sock.is_accelerated()
        && let Some(reason) = set.keeps_to_tcp()
    {
        give_up::to_read(sock, reason);
    }
    if unread_copy::is_any_owed() {
        awaiting::await_first_of(core::iter::once(sock));
    }
}

/// Events and data that a call of `epoll_ctl` asks for; zeroes for `EPOLL_CTL_DEL`. `None`: they
/// are known only after the kernel has accepted the call.
///
/// # Safety
/// `event` is a C caller's.
unsafe fn wanted_by(op: c_int, event: *mut epoll_event) -> Option<(u32, u64)> {
    match op {
        libc::EPOLL_CTL_DEL => Some((0, 0)),
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            // SAFETY: any bytes are one.
            let event = unsafe { caller::copy(event) }?;
            Some((event.events, event.u64))
        }
        _ => None,
    }
}

/// The verdict of a change that kernel and mirror made in one step.
fn done_by_both(done: Result<(), sys::Errno>) -> Verdict {
    match done {
        Ok(()) => Verdict::Done(0),
        Err(e) => Verdict::Failed(Error::Kernel(e)),
    }
}
