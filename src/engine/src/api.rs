//! The calls that hooks make: one function per hook, with the arguments that C passed.
//!
//! Every function may be called before the library's constructor has run, in a signal handler (on
//! descriptors that are not tracked) and in a `vfork` child.
//!
//! The usual hook has three lines: [`lookup`] the descriptor; if it is not tracked, call the real
//! function; else turn the [`Verdict`] into a return value. A hook decides nothing itself.

use crate::lifecycle;
use libc::{c_int, epoll_event, iovec, off64_t, sigset_t, size_t, socklen_t, ssize_t, timespec};
use sluice_readiness::{epoll, set::Set};
use sluice_runtime::{control_thread, fd_table};
use sluice_sockets::socket::Socket;
use sluice_sockets::{descriptors, give_up, meeting, recv as receiving, send as sending};

mod option;
mod vector;

pub use crate::lifecycle::{
    after_bare_fork, before_bare_fork, before_daemon, before_exec, before_spawn, exec_failed,
    exiting, forgoes_privileges, fork_failed, hand_over as handing_over, init, kept_over_exec,
};
pub use option::{after_setsockopt, before_getsockopt, before_setsockopt, ioctl, own_value};
pub use sluice_fabric::sys::{Ran, descriptor_limit as poll_limit, handlers};
pub use sluice_readiness::epoll::created as epoll_created;
pub use sluice_readiness::epoll_ctl::ctl as epoll_ctl;
pub use sluice_readiness::poll::poll;
pub use sluice_readiness::select::{numbers, select};
pub use sluice_readiness::wait_state::WaitState;
pub use sluice_runtime::caller;
pub use sluice_runtime::fd_table::{
    Entry, end as tracked_end, is_internal, lookup, saw as fd_seen,
};
pub use sluice_runtime::own_fds::{Placing, clear_lowest, lows as passing_numbers};
pub use sluice_runtime::thread::{hold_cancel, release_cancel};
pub use sluice_runtime::trace::before_use as asked;
pub use sluice_sockets::descriptors::{
    accepted, before_close, before_replace, close_range, connected, created as socket_created,
    duped, listening, renumbered as fd_created,
};
pub use sluice_sockets::io_wait::IoWait;
pub use sluice_sockets::observe_passed;
pub use sluice_sockets::raw_use::{reads as raw_read, spliced as splice, used as raw_use};
pub use sluice_sockets::scm_rights::{
    arrived as received_descriptors, leaving as passing_descriptors,
};
pub use sluice_sockets::uring;
pub use sluice_sockets::verdict::{Error, Pass, READ, Verdict};
pub use sluice_sockets::wait::woken;
pub use vector::{readv, recvmsg, sendmsg, writev};

/// The real call of a [`Pass`] returned `ret`: the number of stream bytes moved, or -1.
#[inline]
pub fn finish(pass: Pass, ret: ssize_t) {
    observe_passed::finish(pass, ret);
    if meeting::is_meeting() {
        sluice_rendezvous::progress_soon();
    }
}

// --- stream input and output (read, readv, recv, recvfrom, recvmsg, write, ..., sendmsg) ---

/// Receives into `iov[..iovcnt]` with MSG_* `flags` ([`READ`] for `read`). Call only with an
/// [`Entry`].
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn recv(
    e: Entry,
    fd: c_int,
    iov: *const iovec,
    iovcnt: size_t,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Verdict {
    match e.get::<Socket>() {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        Some(sock) => unsafe { receiving::recv(sock, fd, iov, iovcnt, flags, io_wait) },
        None => Verdict::Pass(Pass::NOBODY),
    }
}
/// Sends `iov[..iovcnt]` with MSG_* `flags` (0 for `write`: SIGPIPE is raised).
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn send(
    e: Entry,
    fd: c_int,
    iov: *const iovec,
    iovcnt: size_t,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Verdict {
    match e.get::<Socket>() {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        Some(sock) => broken(
            unsafe { sending::send(sock, fd, iov, iovcnt, flags, io_wait) },
            flags,
        ),
        None => Verdict::Pass(Pass::NOBODY),
    }
}
/// `sendfile` and `sendfile64` to a tracked socket.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn sendfile(
    e: Entry,
    out_fd: c_int,
    in_fd: c_int,
    offset: *mut off64_t,
    count: size_t,
) -> Verdict {
    match e.get::<Socket>() {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        Some(sock) => broken(
            unsafe { sending::sendfile(sock, out_fd, in_fd, offset, count) },
            0,
        ),
        None => Verdict::Pass(Pass::NOBODY),
    }
}

// --- a socket's life ---

/// Before the real `connect()`: with AF_UNSPEC it dissolves a connection.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn before_connect(e: Entry, fd: c_int, addr: *const libc::sockaddr, len: socklen_t) {
    let _ = fd;
    let Some(sock) = e.get::<Socket>() else {
        return;
    };
    let whole = size_of::<libc::sa_family_t>()..=size_of::<libc::sockaddr_storage>();
    if !whole.contains(&(len as usize)) || caller::cannot_read(addr as usize, len as usize) {
        // The kernel refuses the call.
        return;
    }
    // SAFETY: the caller's address holds at least the family, and is not known to be unmapped.
    let family = unsafe { core::ptr::read_unaligned(addr.cast::<libc::sa_family_t>()) };
    if i32::from(family) == libc::AF_UNSPEC {
        descriptors::before_disconnect(sock);
    }
}
/// `shutdown`: served here if bytes are still to be re-sent, which the FIN must follow.
pub fn shutdown(e: Entry, fd: c_int, how: c_int) -> Verdict {
    match e.get::<Socket>() {
        Some(sock) => descriptors::shutdown(sock, fd, how),
        None => Verdict::Pass(Pass::NOBODY),
    }
}

/// After `fcntl(fd, F_SETFL, flags)`, or `ioctl` with FIONBIO or FIOASYNC (`flags` then has at most
/// that flag), succeeded.
pub fn flags_set(e: Entry, fd: c_int, flags: c_int) {
    let signals = flags & libc::O_ASYNC != 0;
    let sock = if signals {
        descriptors::sock_of(e, fd)
    } else {
        e.get::<Socket>()
    };
    if let Some(sock) = sock {
        sock.forget_nonblocking();
        if signals {
            // Only the kernel's socket sends SIGIO.
            give_up::begin(sock, sluice_stats::Reason::SignalDriven);
        }
    }
}
// --- readiness ---

/// The entry of a set whose waits may go straight to the real function, see [`plain`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Plain(Entry);

/// Returns the set `fd` if only the kernel has events for it, and no meeting needs this thread. The
/// hook then calls the real function and asks [`Plain::is_still`] after it; if not,
/// [`epoll_after_plain_poll`] or [`epoll_after_plain_wait`] gives the call's outcome. `None` before
/// [`init`].
#[inline(always)]
#[must_use]
pub fn plain(fd: c_int) -> Option<Plain> {
    let e = fd_table::lookup_set(fd)?;
    let not = e.get::<Set>()?.specialty() | meeting::busy();
    (not == 0).then_some(Plain(e))
}

impl Plain {
    /// Returns whether still only the kernel has events for the set.
    #[inline(always)]
    pub fn is_still(self) -> bool {
        self.0.get::<Set>().is_some_and(Set::is_plain)
    }

    /// Call before a real call that may sleep, for `timeout_ns` or for ever. Returns when the wait
    /// ends, for [`epoll_after_plain_wait`]. `None`: the set is not plain any more, so the real
    /// function must not be called.
    pub fn lie_down(self, timeout_ns: Option<u64>) -> Option<Option<u64>> {
        let end = timeout_ns.map(|ns| sluice_fabric::sys::now_ns().saturating_add(ns));
        let set = self.0.get::<Set>()?;
        set.lies_down();
        if set.is_plain() {
            return Some(end);
        }
        set.gets_up();
        None
    }

    /// Call after the real call, if [`Plain::lie_down`] was called before it.
    pub fn get_up(self) {
        if let Some(set) = self.0.get::<Set>() {
            set.gets_up();
        }
    }
}

/// After a real call that looked at a plain set without waiting, and returned `got`: the set has
/// stopped being plain meanwhile.
/// # Safety
/// The kernel has filled `got` events of a C caller's.
pub unsafe fn epoll_after_plain_poll(
    plain: Plain,
    events: *mut epoll_event,
    got: c_int,
) -> Verdict {
    match plain.0.get::<Set>() {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        Some(set) => unsafe { epoll::after_plain_poll(set, events, got) },
        None => Verdict::Done(got as isize),
    }
}

/// After a real wait on a plain set that returned `got`: the set has stopped being plain meanwhile.
/// `end` comes from [`Plain::lie_down`].
/// # Safety
/// The arguments are those of a C caller, and the kernel has filled `got` events.
pub unsafe fn epoll_after_plain_wait(
    plain: Plain,
    epfd: c_int,
    out: (*mut epoll_event, c_int),
    end: Option<u64>,
    mask: *const sigset_t,
    got: c_int,
    wait_state: &mut WaitState,
) -> Verdict {
    match plain.0.get::<Set>() {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        Some(set) => unsafe { epoll::after_plain_wait(set, epfd, out, end, mask, got, wait_state) },
        None => Verdict::Done(got as isize),
    }
}

/// `epoll_wait`, `epoll_pwait` and `epoll_pwait2`; a null `timeout` waits for ever.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn epoll_wait(
    e: Entry,
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
    wait_state: &mut WaitState,
) -> Verdict {
    match e.get::<Set>() {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        Some(set) => unsafe { epoll::wait(set, epfd, events, max, timeout, mask, wait_state) },
        None => Verdict::Pass(Pass::NOBODY),
    }
}

// --- processes ---

/// Before the program installs a seccomp filter; [`sandboxed`] follows.
pub fn before_filter() {
    caller::before_filter();
    sluice_runtime::trace::before_filter();
}
/// The program sandboxes itself (seccomp, unshare, setns, Landlock): demotes all streams for good.
pub fn sandboxed(reason: sluice_stats::Reason) {
    lifecycle::sandboxed(reason);
    control_thread::await_end();
}
/// Before the C library changes the ids of all threads: the child of a fork stops sharing memory
/// with its parent.
pub fn changes_ids() {
    sluice_runtime::credentials::ids_change();
    crate::relatives::part();
}
/// Before a call that changes the rights of the calling thread alone: like [`sandboxed`], unless
/// there is one thread, no control thread, and no meeting.
pub fn changes_itself(reason: sluice_stats::Reason) {
    lifecycle::changes_itself(reason);
    control_thread::await_end();
}
/// The program has changed the disposition of a signal.
pub fn signal_changed(number: c_int) {
    if number == libc::SIGPIPE {
        sluice_fabric::verbs::sigpipe::changed();
    }
}

/// A panic was caught at the boundary of a hook for `fd` (-1: for none, or several): counts it, and
/// never upgrades that connection again. Must not panic, lock or allocate.
pub fn panicked(fd: c_int) {
    sluice_stats::ROOT.panics.add_shared(1);
    if let Some(sock) = fd_table::lookup(fd).and_then(Entry::get::<Socket>) {
        sock.pin(sluice_stats::Reason::Panic);
    }
}

/// Sets whether a broken pipe raises SIGPIPE: not with MSG_NOSIGNAL.
fn broken(verdict: Verdict, flags: c_int) -> Verdict {
    match verdict {
        Verdict::Failed(Error::Kernel(libc::EPIPE)) => Verdict::Failed(Error::BrokenPipe {
            raise: flags & libc::MSG_NOSIGNAL == 0,
        }),
        Verdict::Failed(Error::BrokenPipe { raise }) => Verdict::Failed(Error::BrokenPipe {
            raise: raise && flags & libc::MSG_NOSIGNAL == 0,
        }),
        other => other,
    }
}
