//! The calls that hooks make: one function per hook, with the arguments that C passed.
//!
//! Every function may be called before the library's constructor has run, in a signal handler (on
//! descriptors that are not tracked) and in a `vfork` child.
//!
//! The usual hook has three lines: [`lookup`] the descriptor; if it is not tracked, call the real
//! function; else turn the [`Verdict`] into a return value. A hook decides nothing itself.

use crate::lifecycle;
use libc::{
    c_int, epoll_event, fd_set, iovec, msghdr, nfds_t, off64_t, pollfd, sigset_t, size_t,
    socklen_t, ssize_t, timespec,
};
use sluice_readiness::{epoll, epoll_ctl, poll as polling, select as selecting, set::Set};
use sluice_runtime::{control_thread, fd_table};
use sluice_sockets::socket::Socket;
use sluice_sockets::{descriptors, give_up, meeting, raw_use, recv as receiving, send as sending};

mod option;
mod vector;

pub use option::{after_setsockopt, before_getsockopt, before_setsockopt, ioctl, own_value};
pub use sluice_fabric::sys::{Ran, handlers};
pub use sluice_readiness::select::numbers;
pub use sluice_readiness::wait_state::WaitState;
pub use sluice_runtime::caller;
pub use sluice_runtime::fd_table::Entry;
pub use sluice_runtime::thread::{hold_cancel, release_cancel};
pub use sluice_sockets::io_wait::IoWait;
pub use sluice_sockets::observe_passed;
pub use sluice_sockets::uring;
pub use sluice_sockets::verdict::{Error, Pass, READ, Verdict};
pub use sluice_sockets::wait::woken;
pub use vector::{readv, recvmsg, sendmsg, writev};

/// Looks `fd` up in the table: one load and one compare if it is not tracked.
#[inline]
pub fn lookup(fd: c_int) -> Option<Entry> {
    fd_table::lookup(fd)
}

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

/// Takes the descriptor's stream back to TCP for good, counted under `reason`, before a use that
/// hooks cannot follow. Returns when only the kernel's socket carries bytes.
pub fn raw_use(fd: c_int, reason: sluice_stats::Reason) {
    raw_use::used(fd, reason, raw_use::Use::Any);
}
/// [`raw_use()`] for a call that only reads: does not wait until the peer has read everything.
pub fn raw_read(fd: c_int, reason: sluice_stats::Reason) {
    raw_use::used(fd, reason, raw_use::Use::Reading);
}

/// Before `splice` to a tracked descriptor: like [`raw_use()`], but fails if it may not wait and
/// would have to.
pub fn splice(e: Entry, fd: c_int, waits_not: bool) -> Verdict {
    raw_use::spliced(e, fd, waits_not)
}

/// Before a message with descriptors is sent over a Unix socket: demotes each that is tracked.
/// # Safety
/// `msg` is that of a C caller.
pub unsafe fn passing_descriptors(msg: *const msghdr) {
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    unsafe { sluice_sockets::scm_rights::leaving(msg) };
}
/// After a message was received: clears stale table entries of the numbers it brought.
/// # Safety
/// `msg` is that of a C caller, filled by the kernel.
pub unsafe fn received_descriptors(msg: *const msghdr) {
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    unsafe { sluice_sockets::scm_rights::arrived(msg) };
}

// --- a socket's life ---

/// `socket()` returned `fd`.
pub fn socket_created(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    descriptors::created(fd, domain, kind, protocol);
}
/// Any call that makes descriptors returned `fd` (open, pipe, eventfd, ...): clears a stale entry.
#[inline]
pub fn fd_created(fd: c_int) {
    descriptors::renumbered(fd);
}
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
/// `connect()` on `fd` returned 0, or -1 with this errno.
pub fn connected(fd: c_int, ret: c_int, errno: c_int) {
    descriptors::connected(fd, ret, errno);
}
/// `listen()` on `fd` succeeded.
pub fn listening(fd: c_int) {
    descriptors::listening(fd);
}
/// `accept()` on `listener` returned `fd`.
pub fn accepted(listener: c_int, fd: c_int) {
    descriptors::accepted(listener, fd);
}
/// `shutdown`: served here if bytes are still to be re-sent, which the FIN must follow.
pub fn shutdown(e: Entry, fd: c_int, how: c_int) -> Verdict {
    match e.get::<Socket>() {
        Some(sock) => descriptors::shutdown(sock, fd, how),
        None => Verdict::Pass(Pass::NOBODY),
    }
}
/// Before the real `close()` of a tracked descriptor.
pub fn before_close(e: Entry, fd: c_int) {
    descriptors::before_close(e, fd);
}
/// Before the real `dup2`/`dup3` replaces `new` by `old`, unless the call will fail. Also moves a
/// descriptor of the library out of the way.
pub fn before_replace(old: c_int, new: c_int, flags: c_int) {
    descriptors::before_replace(old, new, flags);
}
/// Held during a `dup2` or `dup3` that the hooks were told of: no descriptor of the library is
/// placed at its number.
pub use sluice_runtime::own_fds::Placing;
/// `dup`, `dup2`, `dup3` or `F_DUPFD` returned `new` for `old`.
pub fn duped(old: c_int, new: c_int) {
    descriptors::duped(old, new);
}
/// Returns whether `fd` is one of the library's own. For the program it is closed (`close` gives
/// EBADF).
#[inline]
pub fn is_internal(fd: c_int) -> bool {
    fd_table::is_internal(fd)
}
/// Before `close_range(first, last, flags)` or `closefrom(first)` (`last` = u32::MAX): forgets
/// tracked descriptors in the range and calls `close` for each gap between the library's own, in
/// order, until one fails.
pub fn close_range(
    first: u32,
    last: u32,
    flags: c_int,
    close: impl FnMut(u32, u32) -> c_int,
) -> c_int {
    descriptors::close_range(first, last, flags, close)
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

/// `poll` and `ppoll`; a null `timeout` waits for ever. `Pass` if no descriptor in the list is
/// tracked.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn poll(
    fds: *mut pollfd,
    nfds: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    wait_state: &mut WaitState,
) -> Verdict {
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    unsafe { polling::poll(fds, nfds, timeout, mask, wait_state) }
}
/// `select` and `pselect`; `sets`: read, write, exceptional. On `Done` the sets are updated, and
/// `left`, if not null, gets the time left (as Linux `select` does; `pselect` passes null).
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn select(
    nfds: c_int,
    sets: [*mut fd_set; 3],
    timeout: *const timespec,
    mask: *const sigset_t,
    left: *mut timespec,
    wait_state: &mut WaitState,
) -> Verdict {
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    unsafe { selecting::select(nfds, sets, timeout, mask, left, wait_state) }
}
/// RLIMIT_NOFILE: the most entries that `poll` takes.
pub fn poll_limit() -> nfds_t {
    sluice_fabric::sys::descriptor_limit()
}

/// How often descriptors of the library have been, for a moment, at numbers that are free for the
/// program; none is there when this returns. If the count has changed over a call on such a number,
/// the call may have met the library's descriptor.
pub fn passing_numbers() -> u32 {
    sluice_runtime::own_fds::lows()
}

/// Before a call that gives the program the lowest free number, and may take long: moves the
/// library's own descriptors away from it.
#[inline]
pub fn clear_lowest() {
    sluice_runtime::own_fds::clear_lowest();
}

/// A hooked call gave the program this descriptor.
#[inline]
pub fn fd_seen(fd: c_int) {
    fd_table::saw(fd);
}

/// One more than the highest descriptor ever tracked; 0: none was. A `select` set may be read up to
/// here and no further, since the kernel, too, stops at the end of its table, whatever `nfds` is.
#[inline]
pub fn tracked_end() -> c_int {
    fd_table::end()
}
/// `epoll_create*` returned `fd`.
pub fn epoll_created(fd: c_int) {
    epoll::created(fd);
}
/// Serves `epoll_ctl` completely (it calls the kernel itself). `Pass` if the set is not tracked.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Verdict {
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    unsafe { epoll_ctl::ctl(epfd, op, fd, event) }
}
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

/// The library was loaded: reads `SLUICE_*` and registers the fork handlers.
pub fn init() {
    lifecycle::init();
}
/// Before `exec*` in this process: demotes the streams that the new image could use.
pub fn before_exec() {
    lifecycle::before_exec();
}
/// `exec*` returned, so it failed.
pub fn exec_failed() {
    lifecycle::exec_failed();
}
/// Before `posix_spawn*`, `system`, `popen`, `vfork`: a child image will inherit descriptors.
pub fn before_spawn() {
    lifecycle::before_spawn();
}
/// Before `posix_spawn_file_actions_adddup2(_, fd, _)`, or another call that hands one descriptor
/// to a new image.
pub fn handing_over(fd: c_int) {
    lifecycle::hand_over(fd);
}
/// After a call that set or cleared `FD_CLOEXEC` of a tracked descriptor.
pub use crate::lifecycle::kept_over_exec;
/// The process ends (`exit`'s destructors, `_exit`, `_Exit`, `quick_exit`): takes every stream back
/// to TCP.
pub fn exiting() {
    lifecycle::exiting();
}
/// Before a hook looks up `fd`, with no lock held.
#[inline(always)]
pub fn asked(fd: c_int) {
    sluice_runtime::trace::before_use(fd);
}
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
/// Before `prctl(PR_SET_NO_NEW_PRIVS)`.
pub fn forgoes_privileges() {
    lifecycle::forgoes_privileges();
}
/// Before a fork without the handlers of `pthread_atfork`: `_Fork`, `syscall(SYS_fork)` and their
/// kin.
pub fn before_bare_fork() {
    lifecycle::before_bare_fork();
}
/// After it, in both processes, with what it returned.
pub fn after_bare_fork(pid: libc::pid_t) {
    lifecycle::after_bare_fork(pid);
}
/// Before `daemon()`: the process ends inside it without passing a hook, and its child goes on with
/// the descriptors. Takes every stream back to TCP, but is no end of the process, since the call
/// may fail.
pub fn before_daemon() {
    lifecycle::before_daemon();
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

/// Called if a `fork` failed after the handlers that prepare for it ran.
pub fn fork_failed() {
    lifecycle::fork_failed();
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
