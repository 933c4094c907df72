//! What the calls that pass have moved, shown to the engine after the real call: each function
//! here has the arguments of its namesake in [`api`](super), and what the real call returned. For
//! hooks whose [`Pass`] wants it ([`Pass::wants_bytes`]), before [`Pass::finish`].

use super::{Entry, Pass};
use crate::sockets::prefix;
use libc::{c_int, iovec, mmsghdr, msghdr, off64_t, size_t, ssize_t};

/// Of [`recv`](super::recv).
/// # Safety
/// The arguments are those of a C caller, and the real call has returned `ret`.
pub unsafe fn recv(
    pass: &Pass,
    ret: ssize_t,
    _: Entry,
    _: c_int,
    iov: *const iovec,
    count: size_t,
    _: c_int,
) {
    if let Some(call) = pass.moved(ret) {
        // SAFETY: passed on.
        unsafe { prefix::moved(call, iov, count) };
    }
}
/// Of [`send`](super::send).
/// # Safety
/// As [`recv`].
pub unsafe fn send(
    pass: &Pass,
    ret: ssize_t,
    e: Entry,
    fd: c_int,
    iov: *const iovec,
    count: size_t,
    flags: c_int,
) {
    // SAFETY: passed on.
    unsafe { recv(pass, ret, e, fd, iov, count, flags) };
}
/// Of [`readv`](super::readv).
pub use self::recv as readv;
/// Of [`writev`](super::writev).
pub use self::send as writev;
/// Of [`recvmsg`](super::recvmsg).
/// # Safety
/// As [`recv`].
pub unsafe fn recvmsg(pass: &Pass, ret: ssize_t, _: Entry, _: c_int, msg: *const msghdr, _: c_int) {
    if let Some(call) = pass.moved(ret) {
        // SAFETY: passed on.
        unsafe { prefix::moved_message(call, msg) };
    }
}
/// Of [`sendmsg`](super::sendmsg).
/// # Safety
/// As [`recv`].
pub unsafe fn sendmsg(
    pass: &Pass,
    ret: ssize_t,
    e: Entry,
    fd: c_int,
    msg: *const msghdr,
    flags: c_int,
) {
    // SAFETY: passed on.
    unsafe { recvmsg(pass, ret, e, fd, msg, flags) };
}
/// Of `recvmmsg` and `sendmmsg` from `vec` on: the real call has moved `count` messages, `bytes`
/// together.
/// # Safety
/// As [`recv`].
pub unsafe fn messages(pass: &Pass, bytes: ssize_t, vec: *const mmsghdr, count: c_int) {
    if let Some(call) = pass.moved(bytes) {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: passed on.
        unsafe { prefix::moved_messages(call, vec, count) };
    }
}
/// Of [`sendfile`](super::sendfile).
/// # Safety
/// As [`recv`].
pub unsafe fn sendfile(
    pass: &Pass,
    ret: ssize_t,
    _: Entry,
    _: c_int,
    file: c_int,
    offset: *const off64_t,
    _: size_t,
) {
    if let Some(call) = pass.moved(ret) {
        // SAFETY: passed on.
        unsafe { prefix::moved_file(call, file, offset) };
    }
}
