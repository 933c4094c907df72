//! A double of the engine's `api`, for the tests of the hooks (feature `probe`).
//!
//! It tracks TCP sockets, listeners and epoll sets, answers every call on them with the verdict
//! named in `SLUICE_PROBE_VERDICT` (default: pass), and appends one line for each call it gets to
//! the file in `SLUICE_PROBE_TRACE`. The descriptor of that file is its one internal descriptor.

#![allow(
    missing_docs,
    clippy::missing_safety_doc,
    reason = "the contract is in the engine's api.rs"
)]

use libc::{
    c_int, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off64_t, pollfd, sigset_t,
    size_t, socklen_t, ssize_t, timespec,
};
pub use sluice_engine::api::{Error, IoWait, READ, Ran, WaitState, caller, handlers};
use sluice_stats::Reason;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering::Relaxed};

#[derive(Clone, Copy)]
pub struct Entry;

#[must_use]
#[allow(
    dead_code,
    reason = "the contract has more verdicts than this stand-in gives"
)]
pub enum Verdict {
    Done(ssize_t),
    Failed(Error),
    Pass(Pass),
    Block,
}

/// Holds the name of the call, so that the trace shows what was finished.
pub struct Pass(&'static str);

impl Pass {
    pub fn is_nobodys(&self) -> bool {
        false
    }
    pub fn is_look(&self) -> bool {
        false
    }
    pub fn may_be_owed(&self) -> bool {
        false
    }
    pub fn wants_bytes(&self) -> bool {
        true
    }
}

pub fn finish(pass: Pass, ret: ssize_t) {
    // An errno disturbed here must not reach the program.
    // SAFETY: the C library gives a pointer to the calling thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOTTY };
    trace(format_args!("finish {} {ret}", pass.0));
}

/// What calls that passed have moved.
pub mod observe_passed {
    use super::*;

    fn shown(pass: &Pass, ret: ssize_t) {
        // SAFETY: as in `finish`.
        unsafe { *libc::__errno_location() = libc::ENOTTY };
        trace(format_args!("fed {} {ret}", pass.0));
    }

    pub unsafe fn recv(
        pass: &Pass,
        ret: ssize_t,
        _: Entry,
        _: c_int,
        _: *const iovec,
        _: size_t,
        _: c_int,
    ) {
        shown(pass, ret);
    }
    pub unsafe fn send(
        pass: &Pass,
        ret: ssize_t,
        _: Entry,
        _: c_int,
        _: *const iovec,
        _: size_t,
        _: c_int,
    ) {
        shown(pass, ret);
    }
    pub use self::{recv as readv, send as writev};
    pub unsafe fn recvmsg(
        pass: &Pass,
        ret: ssize_t,
        _: Entry,
        _: c_int,
        _: *const msghdr,
        _: c_int,
    ) {
        shown(pass, ret);
    }
    pub unsafe fn sendmsg(
        pass: &Pass,
        ret: ssize_t,
        _: Entry,
        _: c_int,
        _: *const msghdr,
        _: c_int,
    ) {
        shown(pass, ret);
    }
    pub unsafe fn messages(pass: &Pass, bytes: ssize_t, _: *const mmsghdr, _: c_int) {
        shown(pass, bytes);
    }
    pub unsafe fn sendfile(
        pass: &Pass,
        ret: ssize_t,
        _: Entry,
        _: c_int,
        _: c_int,
        _: *const off64_t,
        _: size_t,
    ) {
        shown(pass, ret);
    }
}

/// Descriptors that the double can track.
const LIMIT: usize = 1024;
/// One byte for each descriptor: 1 while it is tracked. Written and read by any thread.
static TRACKED: [AtomicU8; LIMIT] = [const { AtomicU8::new(0) }; LIMIT];
/// The trace file, -1 without one. Written by `init` alone.
static TRACE: AtomicI32 = AtomicI32::new(-1);
/// What to answer. Written by `init` alone.
static VERDICT: AtomicU8 = AtomicU8::new(b' ');
/// The next notice panics. Written by `init`, taken by the first notice.
static PANIC_ONCE: AtomicBool = AtomicBool::new(false);

fn slot(fd: c_int) -> Option<&'static AtomicU8> {
    TRACKED.get(usize::try_from(fd).ok()?)
}

fn track(fd: c_int, on: bool) {
    if let Some(slot) = slot(fd) {
        slot.store(on.into(), Relaxed);
    }
}

#[inline]
pub fn lookup(fd: c_int) -> Option<Entry> {
    (slot(fd)?.load(Relaxed) == 1).then_some(Entry)
}

#[inline]
pub fn is_internal(fd: c_int) -> bool {
    fd >= 0 && fd == TRACE.load(Relaxed)
}

#[inline]
pub fn tracked_end() -> c_int {
    LIMIT as c_int
}

/// A line on the stack, cut where it is full.
struct Line {
    text: [u8; 128],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        for (to, from) in self.text.iter_mut().skip(self.len).zip(s.bytes()) {
            *to = from;
            self.len += 1;
        }
        Ok(())
    }
}

fn trace(what: std::fmt::Arguments) {
    let fd = TRACE.load(Relaxed);
    if fd >= 0 {
        let mut line = Line {
            text: [0; 128],
            len: 0,
        };
        let _ = writeln!(line, "{what}");
        // SAFETY: the line is ours and `len` bytes of it are written.
        unsafe { libc::syscall(libc::SYS_write, fd, line.text.as_ptr(), line.len) };
    }
}

/// The verdict asked for.
#[allow(clippy::panic, reason = "the panic is what is tested")]
fn verdict(name: &'static str) -> Verdict {
    trace(format_args!("{name}"));
    match VERDICT.load(Relaxed) {
        b'd' => Verdict::Done(3),
        b'w' => Verdict::Failed(Error::WouldBlock),
        b'i' => Verdict::Failed(Error::Interrupted),
        b'r' => Verdict::Failed(Error::Reset),
        b'p' => Verdict::Failed(Error::BrokenPipe { raise: true }),
        b'q' => Verdict::Failed(Error::BrokenPipe { raise: false }),
        b'f' => Verdict::Failed(Error::BadAddress),
        b'k' => Verdict::Failed(Error::Kernel(libc::ETIMEDOUT)),
        b'!' => panic!("asked for"),
        _ => Verdict::Pass(Pass(name)),
    }
}

/// A call without an answer.
#[allow(clippy::panic, reason = "the panic is what is tested")]
fn notice(what: std::fmt::Arguments) {
    trace(what);
    // SAFETY: as in `finish`.
    unsafe { *libc::__errno_location() = libc::ENOTTY };
    if PANIC_ONCE.swap(false, Relaxed) {
        panic!("asked for");
    }
}

pub fn init() {
    if let Ok(path) = std::env::var("SLUICE_PROBE_TRACE") {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
        let path = format!("{path}\0");
        // SAFETY: the path ends in NUL.
        let low = unsafe {
            libc::syscall(
                libc::SYS_openat,
                libc::AT_FDCWD,
                path.as_ptr(),
                flags,
                0o600,
            )
        } as c_int;
        // SAFETY: plain descriptor calls.
        let high =
            unsafe { libc::syscall(libc::SYS_fcntl, low, libc::F_DUPFD_CLOEXEC, 900) } as c_int;
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_close, low) };
        TRACE.store(high, Relaxed);
    }
    if let Some(first) = std::env::var("SLUICE_PROBE_VERDICT")
        .ok()
        .and_then(|v| v.bytes().next())
    {
        VERDICT.store(first, Relaxed);
        PANIC_ONCE.store(first == b'!', Relaxed);
    }
}

pub fn woken(_: &mut IoWait) -> Option<Verdict> {
    None
}
pub unsafe fn recv(
    _: Entry,
    _: c_int,
    iov: *const iovec,
    count: size_t,
    flags: c_int,
    _: &mut IoWait,
) -> Verdict {
    // SAFETY: the caller's promise.
    let len: usize = (0..count).map(|i| unsafe { (*iov.add(i)).iov_len }).sum();
    trace(format_args!("recv count {count} len {len} flags {flags}"));
    verdict("recv")
}
pub unsafe fn send(
    _: Entry,
    _: c_int,
    iov: *const iovec,
    count: size_t,
    flags: c_int,
    _: &mut IoWait,
) -> Verdict {
    // SAFETY: the caller's promise.
    let len: usize = (0..count).map(|i| unsafe { (*iov.add(i)).iov_len }).sum();
    trace(format_args!("send count {count} len {len} flags {flags}"));
    verdict("send")
}
pub use self::{recv as readv, send as writev};
pub unsafe fn recvmsg(_: Entry, _: c_int, _: *mut msghdr, _: c_int, _: &mut IoWait) -> Verdict {
    verdict("recvmsg")
}
pub unsafe fn sendmsg(_: Entry, _: c_int, _: *const msghdr, _: c_int, _: &mut IoWait) -> Verdict {
    verdict("sendmsg")
}
pub unsafe fn sendfile(_: Entry, _: c_int, _: c_int, _: *mut off64_t, _: size_t) -> Verdict {
    verdict("sendfile")
}
pub unsafe fn ioctl(_: Entry, _: c_int, _: u64, _: usize) -> Verdict {
    verdict("ioctl")
}
pub unsafe fn poll(
    _: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    _: *const sigset_t,
    _: &mut WaitState,
) -> Verdict {
    trace(format_args!(
        "poll count {count} forever {}",
        timeout.is_null()
    ));
    verdict("poll")
}
pub unsafe fn numbers(end: c_int, _: [*mut fd_set; 3]) -> c_int {
    end
}
pub unsafe fn select(
    end: c_int,
    _: [*mut fd_set; 3],
    timeout: *const timespec,
    _: *const sigset_t,
    _: *mut timespec,
    _: &mut WaitState,
) -> Verdict {
    trace(format_args!(
        "select end {end} forever {}",
        timeout.is_null()
    ));
    verdict("select")
}
pub unsafe fn epoll_ctl(_: c_int, _: c_int, _: c_int, _: *mut epoll_event) -> Verdict {
    verdict("epoll_ctl")
}

/// No set is plain here: every wait asks for a verdict.
#[derive(Clone, Copy)]
pub struct Plain;

pub fn plain(_: c_int) -> Option<Plain> {
    None
}

impl Plain {
    pub fn is_still(self) -> bool {
        true
    }
    pub fn lie_down(self, _: Option<u64>) -> Option<Option<u64>> {
        None
    }
    pub fn get_up(self) {}
}

pub unsafe fn epoll_after_plain_poll(_: Plain, _: *mut epoll_event, got: c_int) -> Verdict {
    Verdict::Done(got as ssize_t)
}
pub unsafe fn epoll_after_plain_wait(
    _: Plain,
    _: c_int,
    _: (*mut epoll_event, c_int),
    _: Option<u64>,
    _: *const sigset_t,
    got: c_int,
    _: &mut WaitState,
) -> Verdict {
    Verdict::Done(got as ssize_t)
}
pub unsafe fn epoll_wait(
    _: Entry,
    _: c_int,
    _: *mut epoll_event,
    _: c_int,
    timeout: *const timespec,
    _: *const sigset_t,
    _: &mut WaitState,
) -> Verdict {
    trace(format_args!("epoll_wait forever {}", timeout.is_null()));
    verdict("epoll_wait")
}

/// Nothing is kept apart from the double's descriptors: it has none.
#[derive(Debug)]
pub struct Placing(());

impl Placing {
    pub fn begin() -> Self {
        Self(())
    }
}

impl Drop for Placing {
    /// As the engine's, which its hooks drop at a certain place.
    fn drop(&mut self) {}
}

pub fn passing_numbers() -> u32 {
    0
}
pub fn clear_lowest() {}
pub fn socket_created(fd: c_int, domain: c_int, kind: c_int, _: c_int) {
    track(
        fd,
        domain == libc::AF_INET && kind & 0xf == libc::SOCK_STREAM,
    );
    notice(format_args!("socket_created {domain} {kind}"));
}
pub fn accepted(listener: c_int, fd: c_int) {
    track(fd, lookup(listener).is_some());
    notice(format_args!("accepted"));
}
pub fn epoll_created(fd: c_int) {
    track(fd, true);
    notice(format_args!("epoll_created"));
}
pub fn poll_limit() -> libc::nfds_t {
    LIMIT as libc::nfds_t
}
pub fn fd_seen(_: c_int) {}
pub unsafe fn before_connect(_: Entry, _: c_int, _: *const libc::sockaddr, _: socklen_t) {
    notice(format_args!("before_connect"));
}
pub fn fd_created(fd: c_int) {
    track(fd, false);
    notice(format_args!("fd_created"));
}
pub fn before_close(_: Entry, fd: c_int) {
    track(fd, false);
    notice(format_args!("before_close"));
}
pub fn before_replace(_: c_int, fd: c_int, _: c_int) {
    track(fd, false);
    notice(format_args!("before_replace"));
}
pub fn duped(_: c_int, new: c_int) {
    track(new, true);
    notice(format_args!("duped"));
}
pub fn close_range(
    first: u32,
    last: u32,
    _: c_int,
    mut close: impl FnMut(u32, u32) -> c_int,
) -> c_int {
    (first..=last)
        .take(LIMIT)
        .for_each(|fd| track(fd as c_int, false));
    notice(format_args!("close_range"));
    match u32::try_from(TRACE.load(Relaxed)) {
        Ok(own) if (first..=last).contains(&own) => {
            let below = if first < own {
                close(first, own - 1)
            } else {
                0
            };
            if below == 0 && own < last {
                close(own + 1, last)
            } else {
                below
            }
        }
        _ => close(first, last),
    }
}
pub fn connected(_: c_int, ret: c_int, error: c_int) {
    notice(format_args!("connected {ret} {error}"));
}
pub fn shutdown(_: Entry, _: c_int, how: c_int) -> Verdict {
    trace(format_args!("shutdown {how}"));
    verdict("shutdown")
}
pub fn flags_set(_: Entry, _: c_int, flags: c_int) {
    notice(format_args!("flags_set {:o}", flags & libc::O_NONBLOCK));
}
pub unsafe fn before_setsockopt(
    _: Entry,
    _: c_int,
    level: c_int,
    name: c_int,
    _: *const c_void,
    _: socklen_t,
) {
    notice(format_args!("before_setsockopt {level} {name}"));
}
pub unsafe fn after_setsockopt(_: c_int, level: c_int, name: c_int, _: *const c_void) {
    notice(format_args!("after_setsockopt {level} {name}"));
}
pub fn before_getsockopt(_: Entry, level: c_int, name: c_int) {
    notice(format_args!("before_getsockopt {level} {name}"));
}
pub fn own_value(_: Entry, _: c_int, _: c_int) -> Option<c_int> {
    None
}
pub fn raw_read(_: c_int, reason: Reason) {
    notice(format_args!("raw_read {}", reason.code()));
}
pub fn raw_use(_: c_int, reason: Reason) {
    notice(format_args!("raw_use {}", reason.code()));
}
pub fn splice(_: Entry, _: c_int, _: bool) -> Verdict {
    verdict("splice")
}
pub fn hold_cancel() -> Option<c_int> {
    None
}
pub fn release_cancel(_: Option<c_int>) {}
pub unsafe fn passing_descriptors(_: *const msghdr) {
    notice(format_args!("passing_descriptors"));
}
pub unsafe fn received_descriptors(_: *const msghdr) {
    notice(format_args!("received_descriptors"));
}
pub fn asked(_: c_int) {}
pub fn before_filter() {}
pub fn sandboxed(reason: Reason) {
    notice(format_args!("sandboxed {}", reason.code()));
}
pub fn changes_ids() {
    notice(format_args!("changes_ids"));
}
pub fn forgoes_privileges() {
    notice(format_args!("forgoes_privileges"));
}
pub fn changes_itself(reason: Reason) {
    notice(format_args!("changes_itself {}", reason.code()));
}
pub fn kept_over_exec(_: Entry, kept: bool) {
    notice(format_args!("kept_over_exec {kept}"));
}
pub fn panicked(_: c_int) {
    trace(format_args!("panicked"));
}

/// Rings are made, and nobody looks into them.
pub mod uring {
    use super::*;
    pub use sluice_engine::api::uring::{Params, Sqe};

    pub fn made(_: c_int, _: &Params) {
        notice(format_args!("uring::made"));
    }
    pub fn not_seen() {
        notice(format_args!("uring::not_seen"));
    }
    pub fn entries(_: c_int, _: u32) -> Option<std::iter::Empty<*mut Sqe>> {
        notice(format_args!("uring::entries"));
        None
    }
}

macro_rules! notices {
    ($($name:ident($($arg:ident)?);)*) => {
        $(pub fn $name($($arg: c_int)?) {
            $(let _ = $arg;)?
            notice(format_args!(stringify!($name)));
        })*
    };
}

notices! {
    listening(fd);
    handing_over(fd);
    before_exec();
    exec_failed();
    before_spawn();
    before_daemon();
    exiting();
    before_bare_fork();
    after_bare_fork(pid);
    fork_failed();
    signal_changed(number);
}
