//! The calls that hooks make. One call here per hook, argument for argument as C passed them.
//!
//! Every function is safe to call before the library's constructor ran, in a signal handler (on
//! descriptors that are not tracked) and in a `vfork` child.
//!
//! The usual hook is three lines: [`lookup`] the descriptor, pass through when it is not ours,
//! else turn the [`Verdict`] into a return value. A hook never decides anything itself.

use libc::{c_int, c_void, epoll_event, fd_set, iovec, msghdr, nfds_t, off64_t, pollfd, sigset_t, size_t,
    socklen_t, ssize_t, timespec};

/// A descriptor that Sluice tracks: a TCP socket, a listener or an epoll set.
#[derive(Clone, Copy)]
pub struct Entry(pub(crate) usize);

/// What became of a call.
#[must_use]
pub enum Verdict {
    /// Served here: return this value, leave `errno` alone.
    Done(ssize_t),
    /// Failed here: set `errno` to this value and return -1.
    Failed(Error),
    /// Call the real function with the same arguments, then hand its result to [`Pass::finish`].
    Pass(Pass),
}

/// Why a call failed, in the terms of TCP. The preload's errno table translates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Nothing can be moved now and the caller does not want to wait.
    WouldBlock,
    /// A signal handler that does not restart calls interrupted the wait.
    Interrupted,
    /// The peer died or closed with unread input.
    Reset,
    /// The writing direction is closed. The hook also raises SIGPIPE unless told not to
    /// (`raise` is false after MSG_NOSIGNAL).
    BrokenPipe {
        /// Raise SIGPIPE before returning.
        raise: bool,
    },
    /// A user buffer cannot be read or written.
    BadAddress,
    /// What the kernel said, passed on as it is.
    Kernel(c_int),
}

/// A call on its way to the kernel; the socket is told when it is over.
///
/// Has no destructor: a thread may be cancelled inside the real call.
pub struct Pass(pub(crate) usize);

impl Pass {
    /// Nobody has to be told.
    pub const NOBODY: Pass = Pass(0);
    /// The real call returned `ret`, the number of stream bytes moved or -1.
    #[inline]
    pub fn finish(self, ret: ssize_t) {
        if self.0 != 0 { let _ = ret; }
    }
}

/// Finds `fd` in the table: one load and one compare for a descriptor that is not tracked.
#[inline]
pub fn lookup(fd: c_int) -> Option<Entry> { let _ = fd; None }

// --- stream input and output (read, readv, recv, recvfrom, recvmsg, write, ..., sendmsg) ---

/// Receives into `iov[..iovcnt]` with MSG_* `flags` (0 for `read`). Call only with an [`Entry`].
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn recv(e: Entry, fd: c_int, iov: *const iovec, iovcnt: size_t, flags: c_int) -> Verdict {
    let _ = (e, fd, iov, iovcnt, flags); Verdict::Pass(Pass::NOBODY) }
/// Sends `iov[..iovcnt]` with MSG_* `flags` (0 for `write`: SIGPIPE is raised).
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn send(e: Entry, fd: c_int, iov: *const iovec, iovcnt: size_t, flags: c_int) -> Verdict {
    let _ = (e, fd, iov, iovcnt, flags); Verdict::Pass(Pass::NOBODY) }
/// `recvmsg`: on `Done` the header's name, control and flags are those a TCP socket leaves.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn recvmsg(e: Entry, fd: c_int, msg: *mut msghdr, flags: c_int) -> Verdict {
    let _ = (e, fd, msg, flags); Verdict::Pass(Pass::NOBODY) }
/// `sendmsg` on a tracked TCP socket; control messages send it to the kernel.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn sendmsg(e: Entry, fd: c_int, msg: *const msghdr, flags: c_int) -> Verdict {
    let _ = (e, fd, msg, flags); Verdict::Pass(Pass::NOBODY) }
/// `sendfile` and `sendfile64` to a tracked socket.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn sendfile(e: Entry, out_fd: c_int, in_fd: c_int, offset: *mut off64_t, count: size_t) -> Verdict {
    let _ = (e, out_fd, in_fd, offset, count); Verdict::Pass(Pass::NOBODY) }

/// The descriptor is about to be used in a way that hooks cannot follow: its stream goes back to
/// TCP for good, counted under `reason`. Returns when the kernel's socket is the only path.
pub fn raw_use(fd: c_int, reason: sluice_stats::Reason) { let _ = (fd, reason); }

/// A message with descriptors leaves by a Unix socket: each of them that is tracked is demoted first.
/// # Safety
/// `msg` is that of a C caller.
pub unsafe fn passing_descriptors(msg: *const msghdr) { let _ = msg; }
/// A message arrived: numbers it brought may be stale in the table.
/// # Safety
/// `msg` is that of a C caller, filled by the kernel.
pub unsafe fn received_descriptors(msg: *const msghdr) { let _ = msg; }

// --- a socket's life ---

/// `socket()` returned `fd`.
pub fn socket_created(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) { let _ = (fd, domain, kind, protocol); }
/// Any call that makes descriptors returned `fd` (open, pipe, eventfd, ...): clears a stale entry.
#[inline]
pub fn fd_created(fd: c_int) { let _ = fd; }
/// `connect()` on `fd` returned 0, or -1 with this errno.
pub fn connected(fd: c_int, ret: c_int, errno: c_int) { let _ = (fd, ret, errno); }
/// `bind()` on `fd` succeeded: its local name is known from here on.
pub fn bound(fd: c_int) { let _ = fd; }
/// `listen()` on `fd` succeeded.
pub fn listening(fd: c_int) { let _ = fd; }
/// `accept()` on `listener` returned `fd`.
pub fn accepted(listener: c_int, fd: c_int) { let _ = (listener, fd); }
/// Before the real `shutdown()`.
pub fn before_shutdown(e: Entry, fd: c_int, how: c_int) { let _ = (e, fd, how); }
/// Before the real `close()` of a tracked descriptor.
pub fn before_close(e: Entry, fd: c_int) { let _ = (e, fd); }
/// Before the real `dup2`/`dup3` replaces `new` (also moves an internal descriptor out of the way).
pub fn before_replace(new: c_int) { let _ = new; }
/// `dup`, `dup2`, `dup3`, `F_DUPFD` gave `new` for `old`.
pub fn duped(old: c_int, new: c_int) { let _ = (old, new); }
/// Is `fd` one of our own? Such a number is closed for the program already (`close` gives EBADF).
#[inline]
pub fn is_internal(fd: c_int) -> bool { let _ = fd; false }
/// Before `close_range(first, last, flags)` or `closefrom(first)` (`last` = u32::MAX): forgets tracked
/// descriptors in the range and calls `close` for each gap between internal ones, in order, until one fails.
pub fn close_range(first: u32, last: u32, flags: c_int, mut close: impl FnMut(u32, u32) -> c_int) -> c_int {
    let _ = flags; close(first, last) }

/// After `fcntl(fd, F_SETFL, flags)` succeeded, or `ioctl(fd, FIONBIO)` (`flags` then has only O_NONBLOCK).
pub fn flags_set(e: Entry, flags: c_int) { let _ = (e, flags); }
/// `ioctl` on a tracked descriptor (FIONREAD, SIOCOUTQ, SIOCATMARK, FIONBIO, ...).
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn ioctl(e: Entry, fd: c_int, request: u64, arg: usize) -> Verdict { let _ = (e, fd, request, arg); Verdict::Pass(Pass::NOBODY) }
/// Before the real `setsockopt`: notes timeouts and low-water marks, demotes for options that a link cannot honour.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn before_setsockopt(e: Entry, fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) { let _ = (e, fd, level, name, value, len); }
/// `getsockopt` on a tracked descriptor.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn getsockopt(e: Entry, fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> Verdict { let _ = (e, fd, level, name, value, len); Verdict::Pass(Pass::NOBODY) }

// --- readiness ---

/// `poll` and `ppoll`; `timeout` null waits for ever. `Pass` when no descriptor in the list concerns us.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn poll(fds: *mut pollfd, nfds: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> Verdict { let _ = (fds, nfds, timeout, mask); Verdict::Pass(Pass::NOBODY) }
/// `select` and `pselect`. On `Done` the sets are updated; `left`, if not null, gets the time left
/// (as Linux `select` does; `pselect` passes null).
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn select(nfds: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t, left: *mut timespec) -> Verdict { let _ = (nfds, read, write, except, timeout, mask, left); Verdict::Pass(Pass::NOBODY) }
/// One more than the highest descriptor ever tracked, 0 if none was. A `select` set may be read up
/// to here and no further: the kernel, too, stops at the end of its table, whatever `nfds` says.
#[inline]
pub fn tracked_end() -> c_int { 0 }
/// `epoll_create*` returned `fd`.
pub fn epoll_created(fd: c_int) { let _ = fd; }
/// Serves `epoll_ctl` wholly (it calls the kernel itself). `Pass` when the set is not tracked.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Verdict { let _ = (epfd, op, fd, event); Verdict::Pass(Pass::NOBODY) }
/// `epoll_wait`, `epoll_pwait`, `epoll_pwait2`; `timeout` null waits for ever.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn epoll_wait(e: Entry, epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> Verdict { let _ = (e, epfd, events, max, timeout, mask); Verdict::Pass(Pass::NOBODY) }

// --- processes ---

/// The library was loaded. Reads `SLUICE_*`; registers the fork handlers.
pub fn init() {}
/// Before `exec*` in this process: demotes what the new image could use.
pub fn before_exec() {}
/// `exec*` returned: it failed.
pub fn exec_failed() {}
/// Before `posix_spawn*`, `system`, `popen`, `vfork`: a child image will inherit descriptors.
pub fn before_spawn() {}
/// Before `posix_spawn_file_actions_adddup2(_, fd, _)` or a like hand-over of one descriptor to a new image.
pub fn handing_over(fd: c_int) { let _ = fd; }
/// The process ends (`exit`'s destructors, `_exit`, `_Exit`, `quick_exit`): every stream goes back to TCP.
pub fn exiting() {}
/// The program sandboxes itself (seccomp, unshare, setns, Landlock): streams are demoted for good.
pub fn sandboxed(reason: sluice_stats::Reason) { let _ = reason; }
/// First thing a child of `fork` or `_Fork` runs after the handlers of `pthread_atfork`, which
/// `_Fork` does not call: does what the child's handler does, if that has not been done.
pub fn forked_child() {}
/// Before `daemon()`: this process ends inside it without passing any hook, and its child goes on
/// with the descriptors. Every stream goes back to TCP; it is no end otherwise, the call may fail.
pub fn before_daemon() {}
/// The process made or used an io_uring by `syscall()`: from here on it stays on TCP.
pub fn io_uring_used() {}
/// A panic was caught at the edge of a hook for `fd` (-1: for none, or for several): counts it, and
/// ends that one stream as TCP ends a lost connection. Must not panic, lock or allocate.
pub fn panicked(fd: c_int) { let _ = fd; }
