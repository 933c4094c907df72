//! After the real call of a [`Pass`]: what it moved is counted, and its bytes are shown to the
//! proof of the stream's beginning.
//!
//! Each function but [`finish`] has the arguments of the call that a hook made of the engine, and
//! what the real call returned. They are for a [`Pass`] that wants it ([`Pass::wants_bytes`]), and
//! come before [`finish`].

use crate::socket::State;
use crate::verdict::Pass;
use crate::{prefix, recv as receiving, trigger, upgrade};
use core::sync::atomic::Ordering;
use libc::{c_int, iovec, mmsghdr, msghdr, off64_t, size_t, ssize_t};
use sluice_runtime::fd_table::Entry;

/// The real call of a [`Pass`] returned `ret`, the number of stream bytes moved or -1.
#[inline]
pub fn finish(pass: Pass, ret: ssize_t) {
    let Some(sock) = pass.subject() else {
        return;
    };
    let moved = if pass.is_look() { 0 } else { ret.max(0) as u64 };
    let is_read = pass.is_read();
    let (half, bytes) = if is_read {
        (&sock.rx, &sock.conn().rx.bytes.tcp)
    } else {
        (&sock.tx, &sock.conn().tx.bytes.tcp)
    };
    // One step: the call is over and its bytes are counted.
    half.call_ends(moved);
    bytes.add(moved);
    if moved != 0 && is_read {
        receiving::came_by_tcp(sock);
    }
    if sock.offset() >= sock.next_try.load(Ordering::Relaxed) {
        trigger::crossed(sock, is_read);
    }
    if half.state() != State::Plain {
        upgrade::consent(sock);
    }
}

/// Of a receive.
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
/// Of a send.
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
/// Of `readv`.
pub use self::recv as readv;
/// Of `writev`.
pub use self::send as writev;
/// Of `recvmsg`.
/// # Safety
/// As [`recv`].
pub unsafe fn recvmsg(pass: &Pass, ret: ssize_t, _: Entry, _: c_int, msg: *const msghdr, _: c_int) {
    if let Some(call) = pass.moved(ret) {
        // SAFETY: passed on.
        unsafe { prefix::moved_message(call, msg) };
    }
}
/// Of `sendmsg`.
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
/// Of `sendfile`.
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
