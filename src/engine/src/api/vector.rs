//! The calls of hooks for vectors and messages, whose descriptions lie in the program's memory.

use super::{Entry, Error, IoWait, Pass, Verdict, broken, caller};
use core::sync::atomic::Ordering;
use libc::{c_int, iovec, msghdr, size_t};
use sluice_runtime::iov;
use sluice_sockets::socket::Socket;
use sluice_sockets::{counts, give_up, recv as receiving, send as sending};

/// The socket that a receiving call reads from, or the pass by which the kernel serves the call.
fn reader(e: Entry, flags: c_int, io_wait: &IoWait) -> Result<&'static Socket, Pass> {
    let sock = e.get::<Socket>().ok_or(Pass::NOBODY)?;
    match io_wait
        .is_fresh()
        .then(|| receiving::to_kernel(sock, flags))
    {
        Some(Some(pass)) => Err(pass),
        _ => Ok(sock),
    }
}

/// [`recv`](super::recv) for an array of the program.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn readv(
    e: Entry,
    fd: c_int,
    iov: *const iovec,
    iovcnt: size_t,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Verdict {
    let sock = match reader(e, flags, io_wait) {
        Ok(sock) => sock,
        Err(pass) => return Verdict::Pass(pass),
    };
    if iov::is_missing(iov, iovcnt) {
        return Verdict::Failed(Error::BadAddress);
    }
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    unsafe { receiving::recv(sock, fd, iov, iovcnt, flags, io_wait) }
}
/// [`send`](super::send) for an array of the program.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn writev(
    e: Entry,
    fd: c_int,
    iov: *const iovec,
    iovcnt: size_t,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Verdict {
    let Some(sock) = e.get::<Socket>() else {
        return Verdict::Pass(Pass::NOBODY);
    };
    if io_wait.is_fresh()
        && !(sending::may_be_large(sock, flags)
            && !iov::is_missing(iov, iovcnt)
            // SAFETY: the caller's array, which is not known to be unmapped.
            && unsafe { sending::is_large(sock, iov, iovcnt, flags) })
        && let Some(pass) = sending::to_kernel(sock, flags)
    {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        return Verdict::Pass(unsafe { pass.writes(sock, iov, iovcnt) });
    }
    if iov::is_missing(iov, iovcnt) {
        return Verdict::Failed(Error::BadAddress);
    }
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    broken(
        unsafe { sending::send(sock, fd, iov, iovcnt, flags, io_wait) },
        flags,
    )
}
/// `recvmsg`: on `Done` the header's name, control and flags are what a TCP socket leaves.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn recvmsg(
    e: Entry,
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Verdict {
    let sock = match reader(e, flags, io_wait) {
        Ok(sock) => sock,
        Err(pass) => return Verdict::Pass(pass),
    };
    let is_read_only = caller::cannot_write(msg as usize, size_of::<msghdr>());
    if is_read_only && caller::cannot_read(msg as usize, size_of::<msghdr>()) {
        return Verdict::Failed(Error::BadAddress);
    }
    // SAFETY: the caller's header, which is not known to be unmapped.
    let (pieces, count) = unsafe { ((*msg).msg_iov, (*msg).msg_iovlen as size_t) };
    if iov::is_missing(pieces, count) {
        return Verdict::Failed(Error::BadAddress);
    }
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    let verdict = unsafe { receiving::recv(sock, fd, pieces, count, flags, io_wait) };
    // Once a call has got bytes, or if it wants none, it succeeds however its wait ends.
    let is_done = matches!(verdict, Verdict::Block) && (io_wait.done != 0 || io_wait.empty);
    if is_done || matches!(verdict, Verdict::Done(_)) {
        // `tcp_recvmsg` leaves no name, no control data and no flags, and the kernel writes that
        // into the header (net/socket.c, ____sys_recvmsg). If the header cannot be written, the
        // call fails although the bytes are consumed.
        if is_read_only {
            return Verdict::Failed(Error::BadAddress);
        }
        // SAFETY: the caller's header, which was found writable.
        let header = unsafe { &mut *msg };
        if !header.msg_name.is_null() {
            header.msg_namelen = 0;
        }
        let room = core::mem::take(&mut header.msg_controllen);
        header.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
        if sock.tells_unread.load(Ordering::Relaxed) {
            put_unread(header, room, counts::left_to_read(sock, fd));
        }
    }
    verdict
}
/// Adds the TCP_INQ control message, with the number of bytes left, as far as there is room, as
/// `put_cmsg` does.
fn put_unread(header: &mut msghdr, room: usize, left: c_int) {
    // SAFETY: both functions only compute lengths.
    let (len, space) = unsafe { (libc::CMSG_LEN(INT), libc::CMSG_SPACE(INT)) };
    let (len, space) = (len as usize, space as usize);
    const INT: u32 = size_of::<c_int>() as u32;
    let at = header.msg_control as usize;
    if room < size_of::<libc::cmsghdr>() || caller::cannot_write(at, room.min(space)) {
        header.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    if room < len {
        header.msg_flags |= libc::MSG_CTRUNC;
    }
    let told = libc::cmsghdr {
        cmsg_len: len.min(room),
        cmsg_level: libc::IPPROTO_TCP,
        cmsg_type: libc::TCP_INQ,
    };
    let bytes = left.to_ne_bytes();
    // SAFETY: the caller's buffer has `room` bytes, at least a header, and is not known to be
    // unmapped.
    unsafe {
        header
            .msg_control
            .cast::<libc::cmsghdr>()
            .write_unaligned(told);
        let to = header
            .msg_control
            .cast::<u8>()
            .add(size_of::<libc::cmsghdr>());
        core::ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            to,
            bytes.len().min(room - size_of::<libc::cmsghdr>()),
        );
    }
    header.msg_controllen = space.min(room);
}

/// Returns whether the message is to be written in pieces; never one with control data.
unsafe fn is_large(sock: &Socket, msg: *const msghdr, flags: c_int) -> bool {
    if !sending::may_be_large(sock, flags) || caller::cannot_read(msg as usize, size_of::<msghdr>())
    {
        return false;
    }
    // SAFETY: the caller's header, which is not known to be unmapped.
    let header = unsafe { &*msg };
    let (pieces, count) = (header.msg_iov, header.msg_iovlen as size_t);
    header.msg_controllen == 0
        && !iov::is_missing(pieces, count)
        // SAFETY: the caller's array, which is not known to be unmapped.
        && unsafe { sending::is_large(sock, pieces, count, flags) }
}
/// `sendmsg` on a tracked TCP socket; with control messages the connection goes back to TCP.
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn sendmsg(
    e: Entry,
    fd: c_int,
    msg: *const msghdr,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Verdict {
    let Some(sock) = e.get::<Socket>() else {
        return Verdict::Pass(Pass::NOBODY);
    };
    if io_wait.is_fresh()
        // SAFETY: `is_large` checks that the header is mapped; `msg` is the C caller's.
        && !unsafe { is_large(sock, msg, flags) }
        && let Some(pass) = sending::to_kernel(sock, flags)
    {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        return Verdict::Pass(unsafe { pass.writes_message(sock, msg) });
    }
    if caller::cannot_read(msg as usize, size_of::<msghdr>()) {
        return Verdict::Failed(Error::BadAddress);
    }
    // SAFETY: the caller's header, which is not known to be unmapped.
    let header = unsafe { &*msg };
    // TCP ignores a name, but the kernel copies it first.
    if iov::is_missing(header.msg_iov, header.msg_iovlen as size_t) {
        return Verdict::Failed(Error::BadAddress);
    }
    let name_len = (header.msg_namelen as usize).min(size_of::<libc::sockaddr_storage>());
    if !header.msg_name.is_null() && caller::cannot_read(header.msg_name as usize, name_len) {
        return Verdict::Failed(Error::BadAddress);
    }
    if header.msg_controllen != 0 {
        if header.msg_controllen <= c_int::MAX as size_t
            && caller::cannot_read(header.msg_control as usize, header.msg_controllen)
        {
            return Verdict::Failed(Error::BadAddress);
        }
        // The kernel must handle timestamps and marks, and cannot do so for bytes in a ring.
        let reason = sluice_stats::Reason::Timestamping;
        if sock.is_accelerated()
            && let Err(e) = give_up::before_write(sock, fd, flags, reason)
        {
            return broken(Verdict::Failed(e), flags);
        }
    }
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    broken(
        unsafe {
            sending::send(
                sock,
                fd,
                header.msg_iov,
                header.msg_iovlen as size_t,
                flags,
                io_wait,
            )
        },
        flags,
    )
}
