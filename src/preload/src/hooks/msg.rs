//! Stream input and output by the sockets' own calls, and descriptors in messages.

use crate::api::{self, Entry, Error, IoWait, Ran, Verdict, caller};
use crate::boundary::{NO_FD, tell, waiting};
use crate::errno;
use crate::real::test_cancel;
use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

/// The kernel looks at no more of a buffer than this (MAX_RW_COUNT), not even whether it can be
/// one.
const MOST: size_t = 0x7fff_f000;

hooks! {
    unsafe fn recv(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        flags: c_int,
    ) -> ssize_t => on_recv, tracked e of fd {
        test_cancel();
        let iov = iovec { iov_base: buf, iov_len: len.min(MOST) };
        serve_waiting!(fd, recv(e, fd, &iov, 1, flags), forward!(recv(fd, buf, len, flags)))
    }

    unsafe fn recvfrom(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        addr_len: *mut socklen_t,
    ) -> ssize_t => on_recvfrom, tracked e of fd {
        test_cancel();
        let iov = iovec { iov_base: buf, iov_len: len.min(MOST) };
        let ret = serve_waiting!(
            fd,
            recv(e, fd, &iov, 1, flags),
            forward!(recvfrom(fd, buf, len, flags, addr, addr_len))
        );
        // SAFETY: the C caller's pointers.
        unsafe { unnamed(ret, addr, addr_len) }
    }

    unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t => on_recvmsg {
        if let Some(e) = api::lookup(fd) {
            // SAFETY: the C caller's arguments.
            return unsafe { recvmsg_tracked(fd, msg, flags, e) };
        }
        let ret = forward!(recvmsg(fd, msg, flags));
        // SAFETY: the kernel has filled the header if the call succeeded.
        unsafe { brought(ret, msg) };
        ret
    }

    unsafe fn recvmmsg(
        fd: c_int,
        vec: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int => on_recvmmsg {
        let Some(e) = api::lookup(fd) else {
            let ret = forward!(recvmmsg(fd, vec, count, flags, timeout));
            for i in 0..usize::try_from(ret).unwrap_or(0) {
                // SAFETY: the kernel has filled the first `ret` headers.
                unsafe { brought(0, &raw mut (*vec.add(i)).msg_hdr) };
            }
            return ret;
        };
        test_cancel();
        // An error that is pending comes before any message, as from no other call (`do_recvmmsg`).
        if forward!(recvmmsg(fd, vec, 0, flags, core::ptr::null_mut())) < 0 {
            return -1;
        }
        let kernel = |from, left, flags| forward!(recvmmsg(fd, from, left, flags, timeout));
        // SAFETY: the C caller's headers and timeout.
        unsafe { receive_each(e, fd, vec, count, flags, timeout, kernel) }
    }

    unsafe fn send(
        fd: c_int,
        buf: *const c_void,
        len: size_t,
        flags: c_int,
    ) -> ssize_t => on_send, tracked e of fd {
        test_cancel();
        let iov = iovec { iov_base: buf.cast_mut(), iov_len: len.min(MOST) };
        serve_waiting!(fd, send(e, fd, &iov, 1, flags), forward!(send(fd, buf, len, flags)))
    }

    // A connected TCP socket ignores the address, so a plain send serves; with MSG_FASTOPEN, the
    // one case where it counts, the engine passes.
    unsafe fn sendto(
        fd: c_int,
        buf: *const c_void,
        len: size_t,
        flags: c_int,
        addr: *const sockaddr,
        addr_len: socklen_t,
    ) -> ssize_t => on_sendto, tracked e of fd {
        test_cancel();
        if !addr.is_null() && addr_len as usize > size_of::<libc::sockaddr_storage>() {
            // No address is so long: refused unseen.
            return forward!(sendto(fd, buf, len, flags, addr, addr_len));
        }
        let mut iov = iovec { iov_base: buf.cast_mut(), iov_len: len.min(MOST) };
        let msg = named(&mut iov, addr, addr_len);
        serve_waiting!(
            fd,
            sendmsg(e, fd, &msg, flags),
            forward!(sendto(fd, buf, len, flags, addr, addr_len))
        )
    }

    unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t => on_sendmsg {
        if let Some(e) = api::lookup(fd) {
            // SAFETY: the C caller's arguments.
            return unsafe { sendmsg_tracked(fd, msg, flags, e) };
        }
        // SAFETY: the C caller's header.
        unsafe { takes(msg) };
        forward!(sendmsg(fd, msg, flags))
    }

    unsafe fn sendmmsg(
        fd: c_int,
        vec: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
    ) -> c_int => on_sendmmsg {
        let Some(e) = api::lookup(fd) else {
            // SAFETY: the C caller's headers.
            unsafe { take(vec, count) };
            return forward!(sendmmsg(fd, vec, count, flags));
        };
        test_cancel();
        let kernel = |from, left| forward!(sendmmsg(fd, from, left, flags));
        // SAFETY: the C caller's headers.
        unsafe { send_each(e, fd, vec, count, flags, kernel) }
    }

    // The real functions end the program when the buffer is too small: let them.
    unsafe fn __recv_chk(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
    ) -> ssize_t => on_recv_chk {
        if len > room {
            return forward!(__recv_chk(fd, buf, len, room, flags));
        }
        // SAFETY: recv's contract is this function's, kept by the C caller.
        unsafe { on_recv(fd, buf, len, flags) }
    }

    unsafe fn __recvfrom_chk(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        addr_len: *mut socklen_t,
    ) -> ssize_t => on_recvfrom_chk {
        if len > room {
            return forward!(__recvfrom_chk(fd, buf, len, room, flags, addr, addr_len));
        }
        // SAFETY: recvfrom's contract is this function's, kept by the C caller.
        unsafe { on_recvfrom(fd, buf, len, flags, addr, addr_len) }
    }
}

aliases! {
    unsafe fn __send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t = on_send;
}

/// `recvmsg` on a tracked descriptor. Like the next a function of its own, see `hooks!`.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(never)]
#[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
unsafe extern "C" fn recvmsg_tracked(
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
    e: Entry,
) -> ssize_t {
    test_cancel();
    serve_waiting!(
        fd,
        recvmsg(e, fd, msg, flags),
        forward!(recvmsg(fd, msg, flags))
    )
}

/// `sendmsg` on a tracked descriptor.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(never)]
#[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
unsafe extern "C" fn sendmsg_tracked(
    fd: c_int,
    msg: *const msghdr,
    flags: c_int,
    e: Entry,
) -> ssize_t {
    test_cancel();
    serve_waiting!(
        fd,
        sendmsg(e, fd, msg, flags),
        forward!(sendmsg(fd, msg, flags))
    )
}

/// The header of a message to `addr`.
fn named(iov: &mut iovec, addr: *const sockaddr, addr_len: socklen_t) -> msghdr {
    // SAFETY: a message header of zeros is valid: null pointers and no lengths. (It has private
    // padding in some C libraries, so it cannot be written out.)
    let mut msg: msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov;
    msg.msg_iovlen = 1;
    if !addr.is_null() {
        msg.msg_name = addr.cast_mut().cast();
        msg.msg_namelen = addr_len;
    }
    msg
}

/// What `recvfrom` does to the address after a TCP socket gave bytes: the length becomes 0, the
/// address stays as it was (net/socket.c, move_addr_to_user).
///
/// # Safety
/// The pointers are those of a C caller.
unsafe fn unnamed(ret: ssize_t, addr: *const sockaddr, addr_len: *mut socklen_t) -> ssize_t {
    if ret < 0 || addr.is_null() {
        return ret;
    }
    // SAFETY: any bytes are a length.
    let room = unsafe { caller::copy(addr_len) };
    if room.is_some_and(|room| room > c_int::MAX as socklen_t) {
        return errno::fail(Error::Kernel(libc::EINVAL));
    }
    if caller::cannot_write(addr_len as usize, size_of::<socklen_t>()) {
        return errno::fail(Error::BadAddress);
    }
    if room.is_some() {
        // SAFETY: it is there, and can be written. The kernel has written the same 0 if it was the
        // kernel that served the call.
        unsafe { addr_len.write_unaligned(0) };
    }
    ret
}

/// A message is about to leave by a socket of another kind: descriptors in it are demoted. A header
/// that is not there is the kernel's to refuse, and where nothing was ever tracked nothing can be
/// among the descriptors.
///
/// # Safety
/// `msg` is that of a C caller.
pub unsafe fn takes(msg: *const msghdr) {
    if api::tracked_end() == 0 || caller::cannot_read(msg as usize, size_of::<msghdr>()) {
        return;
    }
    // SAFETY: the C caller's header, which is not certain to be missing.
    if unsafe { (*msg).msg_controllen } != 0 {
        // SAFETY: as above.
        unsafe { takes_descriptors(msg) };
    }
}

/// As [`takes`], of so many messages: the kernel stops at the first one that cannot be read.
///
/// # Safety
/// As there.
unsafe fn take(vec: *const mmsghdr, count: c_uint) {
    if api::tracked_end() == 0 {
        return;
    }
    for i in 0..limited(vec, count) {
        let entry = vec.wrapping_add(i);
        if caller::cannot_read(entry as usize, size_of::<mmsghdr>()) {
            return;
        }
        // SAFETY: the C caller's header.
        unsafe { takes(&raw const (*entry).msg_hdr) };
    }
}

/// A message arrived by a socket of another kind: the numbers of its descriptors are new.
///
/// # Safety
/// If `ret` is not negative, the kernel has filled the C caller's `msg`.
pub unsafe fn brought(ret: ssize_t, msg: *const msghdr) {
    // SAFETY: the kernel has written the header, so it is there.
    if ret >= 0 && api::tracked_end() != 0 && unsafe { (*msg).msg_controllen } != 0 {
        // SAFETY: as above.
        unsafe { brought_descriptors(msg) };
    }
}

/// # Safety
/// As [`takes`].
#[inline(never)]
unsafe extern "C" fn takes_descriptors(msg: *const msghdr) {
    // SAFETY: the caller's promise.
    tell(NO_FD, || unsafe { api::passing_descriptors(msg) });
}

/// # Safety
/// As [`brought`].
#[inline(never)]
unsafe extern "C" fn brought_descriptors(msg: *const msghdr) {
    // SAFETY: the caller's promise.
    tell(NO_FD, || unsafe { api::received_descriptors(msg) });
}

/// How many of the headers the kernel will look at (UIO_MAXIOV).
pub fn limited(vec: *const mmsghdr, count: c_uint) -> usize {
    if vec.is_null() {
        0
    } else {
        count.min(1024) as usize
    }
}

/// `recvmmsg`, message by message as the kernel does it (net/socket.c, do_recvmmsg): an error
/// after the first message is left for the next call, and the timeout is looked at after each
/// message only. From where the engine passes, the kernel takes the rest.
///
/// # Safety
/// `vec` and `timeout` are a C caller's; `kernel` is recvmmsg on `fd`.
#[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
unsafe extern "C" fn receive_each(
    e: Entry,
    fd: c_int,
    vec: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
    kernel: impl Fn(*mut mmsghdr, c_uint, c_int) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let mut left = match unsafe { Left::new(timeout) } {
        Ok(left) => left,
        Err(error) => return errno::fail(error) as c_int,
    };
    // SAFETY: as above.
    let done = unsafe { receive_in_time(e, fd, vec, count, flags, &mut left, kernel) };
    if done > 0 && left.is_untold() {
        return errno::fail(Error::BadAddress) as c_int;
    }
    done
}

/// # Safety
/// As [`receive_each`].
#[inline(always)]
unsafe fn receive_in_time(
    e: Entry,
    fd: c_int,
    vec: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    left: &mut Left,
    kernel: impl Fn(*mut mmsghdr, c_uint, c_int) -> c_int,
) -> c_int {
    if vec.is_null() && count != 0 {
        return errno::fail(Error::BadAddress) as c_int;
    }
    let ran = Ran::now();
    let mut flags = flags;
    let mut done: c_uint = 0;
    while (done as usize) < limited(vec, count) {
        let one = flags & !libc::MSG_WAITFORONE;
        // SAFETY: the header is the C caller's.
        let engine = |msg: *mut msghdr, io_wait: &mut IoWait| unsafe {
            api::recvmsg(e, fd, msg, one, io_wait)
        };
        let rest = |from, alone| kernel(from, if alone { 1 } else { count - done }, flags);
        // SAFETY: `done` is below `count`.
        if let Some(ret) = unsafe { move_one(fd, ran, vec, done, engine, rest) } {
            return ret;
        }
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        if left.is_over() {
            break;
        }
    }
    done as c_int
}

/// `sendmmsg`, as [`receive_each`].
///
/// # Safety
/// `vec` is a C caller's; `kernel` is sendmmsg on `fd`.
#[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
unsafe extern "C" fn send_each(
    e: Entry,
    fd: c_int,
    vec: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    kernel: impl Fn(*mut mmsghdr, c_uint) -> c_int,
) -> c_int {
    if vec.is_null() && count != 0 {
        return errno::fail(Error::BadAddress) as c_int;
    }
    let ran = Ran::now();
    let mut done: c_uint = 0;
    while (done as usize) < limited(vec, count) {
        // SAFETY: the header is the C caller's.
        let engine = |msg: *mut msghdr, io_wait: &mut IoWait| unsafe {
            api::sendmsg(e, fd, msg, flags, io_wait)
        };
        let rest = |from, alone| kernel(from, if alone { 1 } else { count - done });
        // SAFETY: `done` is below `count`.
        if let Some(ret) = unsafe { move_one(fd, ran, vec, done, engine, rest) } {
            return ret;
        }
        done += 1;
        // Nothing goes after one that went in part (__sys_sendmmsg).
        // SAFETY: the one that has just been moved.
        if unsafe { is_cut(vec.add(done as usize - 1)) } {
            break;
        }
    }
    done as c_int
}

/// Did less of the message go than it has?
///
/// # Safety
/// It was sent.
unsafe fn is_cut(entry: *const mmsghdr) -> bool {
    // SAFETY: the caller's promise.
    let entry = unsafe { &*entry };
    // SAFETY: as above: its array was read.
    let len: usize = (0..entry.msg_hdr.msg_iovlen)
        .map(|i| unsafe { (*entry.msg_hdr.msg_iov.add(i)).iov_len })
        .fold(0, usize::saturating_add);
    (entry.msg_len as usize) < len
}

/// Moves the message after the first `done`, in a call that began when `ran` had run; what the
/// whole call returns if it is over with that. `rest` is the kernel's call from this message on, or
/// on this message alone: those after it may have to go by the link, be counted where this one is
/// not, or wait for bytes that are owed to them.
///
/// # Safety
/// `vec` is a C caller's, of more than `done` headers.
#[inline(always)]
unsafe fn move_one(
    fd: c_int,
    ran: Ran,
    vec: *mut mmsghdr,
    done: c_uint,
    mut engine: impl FnMut(*mut msghdr, &mut IoWait) -> Verdict,
    rest: impl FnOnce(*mut mmsghdr, bool) -> c_int,
) -> Option<c_int> {
    // Perhaps there is none.
    let entry = vec.wrapping_add(done as usize);
    let msg = entry.cast::<msghdr>();
    match waiting(fd, &mut IoWait::since(ran), &mut |io_wait| {
        engine(msg, io_wait)
    }) {
        Some(Verdict::Done(n)) => {
            if caller::cannot_write(entry as usize, size_of::<mmsghdr>()) {
                // It has been moved.
                return Some(partial(done, Error::BadAddress));
            }
            // SAFETY: it can be written.
            unsafe { (*entry).msg_len = n as c_uint };
            None
        }
        Some(Verdict::Pass(pass)) => {
            let alone = pass.is_nobodys() || pass.is_look() || pass.may_be_owed();
            let ret = rest(entry, alone);
            // SAFETY: the kernel has filled `ret` entries from this one on.
            let bytes = unsafe { total(entry, ret) };
            if pass.wants_bytes() {
                // SAFETY: as above.
                tell(fd, || unsafe {
                    api::observe_passed::messages(&pass, bytes, entry, ret);
                });
            }
            tell(fd, || api::finish(pass, bytes));
            if alone && ret == 1 {
                return None;
            }
            Some(sum(done, ret))
        }
        Some(Verdict::Failed(error)) => Some(partial(done, error)),
        Some(Verdict::Block) | None => Some(partial(done, Error::Kernel(libc::EIO))),
    }
}

/// The bytes of the first `count` messages, or -1 where `count` is that.
///
/// # Safety
/// `vec` has `count` filled entries.
unsafe fn total(vec: *const mmsghdr, count: c_int) -> ssize_t {
    let Ok(count) = usize::try_from(count) else {
        return -1;
    };
    // SAFETY: the caller vouches for `count` entries.
    (0..count)
        .map(|i| unsafe { (*vec.add(i)).msg_len } as ssize_t)
        .sum()
}

/// `done` messages were moved here, then the kernel's call returned `ret`.
fn sum(done: c_uint, ret: c_int) -> c_int {
    if ret < 0 && done > 0 {
        done as c_int
    } else {
        done as c_int + ret
    }
}

/// `done` messages were moved, then one failed.
fn partial(done: c_uint, error: Error) -> c_int {
    if done > 0 {
        done as c_int
    } else {
        errno::fail(error) as c_int
    }
}

/// The time a `recvmmsg` has left. The caller's timeout is brought up to date after each message,
/// as the kernel does.
struct Left {
    timeout: *mut timespec,
    /// When the time is over, in nanoseconds of the monotonic clock.
    end_ns: i128,
}

impl Left {
    /// Fails for a timeout that the kernel refuses.
    ///
    /// # Safety
    /// `timeout` is null or a C caller's.
    unsafe fn new(timeout: *mut timespec) -> Result<Left, Error> {
        if timeout.is_null() {
            return Ok(Left { timeout, end_ns: 0 });
        }
        // SAFETY: any bytes are one.
        let given = unsafe { caller::copy_on_trust(timeout) }.ok_or(Error::BadAddress)?;
        if given.tv_sec < 0 || !(0..1_000_000_000).contains(&given.tv_nsec) {
            return Err(Error::Kernel(libc::EINVAL));
        }
        Ok(Left {
            timeout,
            end_ns: now_ns() + nanoseconds(given),
        })
    }

    fn is_over(&mut self) -> bool {
        if self.timeout.is_null() {
            return false;
        }
        let left = (self.end_ns - now_ns()).max(0);
        let rest = timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        };
        if !self.is_untold() {
            // SAFETY: it can be written.
            unsafe { self.timeout.write_unaligned(rest) };
        }
        left == 0
    }

    /// Can the time left not be told?
    fn is_untold(&self) -> bool {
        !self.timeout.is_null()
            && caller::cannot_write(self.timeout as usize, size_of::<timespec>())
    }
}

fn nanoseconds(t: timespec) -> i128 {
    i128::from(t.tv_sec) * 1_000_000_000 + i128::from(t.tv_nsec)
}

fn now_ns() -> i128 {
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock exists on every Linux, and `now` is ours to write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    nanoseconds(now)
}
