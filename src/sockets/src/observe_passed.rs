//! After the real call of a [`Pass`]: counts what it moved, and gives its bytes to the proof of the
//! stream's beginning.
//!
//! Each function except [`finish`] takes the arguments of the hook's call to the engine and the
//! real call's result. Call it for a [`Pass`] with [`Pass::wants_bytes`], before [`finish`].

use crate::socket::State;
use crate::verdict::Pass;
use crate::{prefix, recv as receiving, trigger, upgrade};
use core::sync::atomic::Ordering;
use libc::{c_int, iovec, mmsghdr, msghdr, off64_t, size_t, ssize_t};
use sluice_runtime::fd_table::Entry;

/// The real call of a [`Pass`] returned `ret`: the number of stream bytes moved, or -1.
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
    // In one step the call ends and its bytes are counted.
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

/// After a receive.
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
        // SAFETY: the kernel has just used these buffers of the C caller.
        unsafe { prefix::moved(call, iov, count) };
    }
}
/// After a send.
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
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    unsafe { recv(pass, ret, e, fd, iov, count, flags) };
}
/// After `readv`.
pub use self::recv as readv;
/// After `writev`.
pub use self::send as writev;
/// After `recvmsg`.
/// # Safety
/// As [`recv`].
pub unsafe fn recvmsg(pass: &Pass, ret: ssize_t, _: Entry, _: c_int, msg: *const msghdr, _: c_int) {
    if let Some(call) = pass.moved(ret) {
        // SAFETY: the kernel has just used this message of the C caller.
        unsafe { prefix::moved_message(call, msg) };
    }
}
/// After `sendmsg`.
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
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    unsafe { recvmsg(pass, ret, e, fd, msg, flags) };
}
/// After `recvmmsg` or `sendmmsg`, which moved the `count` messages from `vec` on, of `bytes` bytes
/// together.
/// # Safety
/// As [`recv`].
pub unsafe fn messages(pass: &Pass, bytes: ssize_t, vec: *const mmsghdr, count: c_int) {
    if let Some(call) = pass.moved(bytes) {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the kernel has just used these messages of the C caller.
        unsafe { prefix::moved_messages(call, vec, count) };
    }
}
/// After `sendfile`.
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
        // SAFETY: `offset` is null or the C caller's, and the kernel has just written it.
        unsafe { prefix::moved_file(call, file, offset) };
    }
}
