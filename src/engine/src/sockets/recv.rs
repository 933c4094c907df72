//! Receiving: from the kernel, from the kernel up to the switch, from the ring.

mod look;

#[cfg(feature = "verbs")]
pub(crate) use self::look::enter_link;
pub(crate) use self::look::has_bytes;
pub(in crate::sockets) use self::look::{AtHand, at_hand, tcp_speaks};
use self::look::{Look, look};
use crate::api::{Error, Pass, READ, Verdict};
use crate::remote;
use crate::sockets::iov::{self, Cursor, Extent};
use crate::sockets::prefix::Way;
use crate::sockets::remains::{self, Step};
use crate::sockets::reset::{self, Resetting};
use crate::sockets::sock::{Sock, state};
use crate::sockets::wait::{self, Waited};
use crate::sockets::{PUBLISH, after_tcp, demote, direct, fault, options, tcp, trigger};
use crate::thread::Nap;
use core::sync::atomic::Ordering;
use libc::{c_int, iovec};
use sluice_fabric::sys::{self, Ends};
use sluice_stats::Reason;

/// Receives for a tracked socket. See [`crate::api::recv`].
///
/// # Safety
/// The arguments are those of a C caller.
#[inline]
pub unsafe fn recv(
    sock: &'static Sock,
    fd: c_int,
    iov: *const iovec,
    count: usize,
    flags: c_int,
    nap: &mut Nap,
) -> Verdict {
    if nap.is_fresh()
        && let Some(pass) = to_kernel(sock, flags)
    {
        return Verdict::Pass(pass);
    }
    // SAFETY: passed on.
    let verdict = unsafe { recv_stream(sock, fd, iov, count, flags, nap) };
    if !matches!(verdict, Verdict::Block) {
        direct::revoke(nap);
    }
    verdict
}

/// Is the call the kernel's alone? Touches none of the caller's memory.
#[inline]
pub fn to_kernel(sock: &'static Sock, flags: c_int) -> Option<Pass> {
    if sock.rx.state() == state::PLAIN && flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0 {
        // A wait for what is owed is made where a close meanwhile is seen.
        if sock.rx.owed.load(Ordering::Relaxed) != 0 {
            return None;
        }
        enter_kernel(sock, flags)
    } else {
        None
    }
}

/// Announces a kernel call on the rx half, unless a stream has come up meanwhile.
#[inline]
fn enter_kernel(sock: &'static Sock, flags: c_int) -> Option<Pass> {
    sock.rx.call_begins();
    if sock.rx.state.load(Ordering::SeqCst) == state::PLAIN {
        if flags & libc::MSG_PEEK != 0 {
            return Some(Pass::rx_uncounted(sock));
        }
        if flags & libc::MSG_TRUNC != 0 {
            // TCP throws the bytes away.
            sock.prefix.end(Way::In);
        }
        return Some(Pass::rx(sock));
    }
    sock.rx.call_ends(0);
    None
}

/// The same for a call that may have waited, and has moved nothing: the kernel knows nothing of
/// handlers that have run. `None` also where the socket was closed meanwhile: look again.
fn go_on(sock: &'static Sock, fd: c_int, flags: c_int, nap: &mut Nap) -> Option<Verdict> {
    // Looked at first, too: the structure may be another connection's, whose own calls are to be
    // alone on it.
    if nap.is_lost() {
        return None;
    }
    let pass = enter_kernel(sock, flags)?;
    if nap.is_lost() {
        sock.rx.call_ends(0);
        return None;
    }
    let would_wait = || sys::poll_one(fd, libc::POLLIN, Some(sys::timespec(0))) == Ok(0);
    if ends(sock, nap).have_run() && sock.may_wait(fd, flags) && would_wait() {
        sock.rx.call_ends(0);
        return Some(Verdict::Failed(Error::Interrupted));
    }
    Some(Verdict::Pass(pass))
}

#[cold]
unsafe fn out_of_band(sock: &'static Sock) -> Verdict {
    if remote::is_remote(sock) {
        // The kernel has it apart from the stream; what comes before it may still be on the link.
        remote::hears(sock);
        return Verdict::Pass(Pass::NOBODY);
    }
    crate::sockets::life::goes_back(sock, Reason::MsgOob);
    // A poll that follows is to find them.
    remains::await_all_owed(sock);
    Verdict::Pass(Pass::NOBODY)
}

unsafe fn recv_stream(
    sock: &'static Sock,
    fd: c_int,
    iov: *const iovec,
    count: usize,
    flags: c_int,
    nap: &mut Nap,
) -> Verdict {
    if flags & libc::MSG_OOB != 0 {
        // SAFETY: passed on.
        return unsafe { out_of_band(sock) };
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Verdict::Pass(Pass::NOBODY);
    }
    if count > iov::MAX {
        return Verdict::Pass(Pass::NOBODY);
    }
    // SAFETY: the caller's array.
    let mut cursor = unsafe { Cursor::new(iov, count) };
    // MSG_TRUNC on TCP discards: the addresses are never used.
    let total = match cursor.extent(flags & libc::MSG_TRUNC != 0) {
        Extent::Bytes(total) => total,
        Extent::NoAddress | Extent::BadAddress => return Verdict::Failed(Error::BadAddress),
        Extent::Refused => return Verdict::Pass(Pass::NOBODY),
    };
    cursor.limit(total);
    if total == 0 {
        // SAFETY: passed on.
        return unsafe { recv_nothing(sock, fd, flags, nap) };
    }
    let flags = flags & !READ;
    let peek = flags & libc::MSG_PEEK != 0;
    let want = if flags & libc::MSG_WAITALL != 0 {
        total
    } else {
        (sock.rcvlowat.load(Ordering::Relaxed).max(1) as usize).min(total)
    };
    // What a peek has seen is seen anew.
    let mut done = if peek { 0 } else { nap.done };
    let mut busy_until = None;
    let mut has_waited = false;
    // If TCP is over no more comes after what the next look finds.
    let mut over = peek && nap.done != 0 && matches!(at_hand(fd), AtHand::Over);
    if done != 0 {
        cursor.advance(done, |_, _| ());
    }
    let given = fd;
    loop {
        let Ok(section) = sock.rx.lock.enter() else {
            return partly(done, Error::WouldBlock);
        };
        if nap.is_lost() {
            // Most programs that want the call to end have shut the socket down before, and TCP has
            // come to its end.
            return Verdict::Done(done.max(nap.done) as isize);
        }
        let fd = sock.valid_number(given);
        let need = want.saturating_sub(done);
        // What TCP has to say against going on is the next call's, if this one has got something.
        nap.done = done;
        // SAFETY: the caller's buffers; the lock is held.
        let look = unsafe { look(sock, fd, &mut cursor, total - done, flags, need, nap) };
        match look {
            Look::Moved(n) if peek => {
                let nonblocking = !sock.may_wait(fd, flags);
                let current = sock.rx.state();
                if n >= want || nonblocking || over || current == state::RETURNING {
                    return Verdict::Done(fault::peeked(n) as isize);
                }
                nap.note(sock);
                if current != state::LINK {
                    // No wait is for both TCP and the link that follows it: TCP gets it all.
                    demote::settle_rx(sock, Reason::PeekWaits);
                    continue;
                }
                // A peek that wants more than there is waits for more; what is there stays.
                let beyond = sock.rx.at.load(Ordering::Relaxed) + n as u64 + 1;
                nap.done = n;
                match wait::for_data(section, sock, fd, deadline_of(sock, nap), beyond, nap) {
                    Waited::News => over = matches!(at_hand(fd), AtHand::Over),
                    Waited::Parked => return Verdict::Block,
                    Waited::Interrupted | Waited::TimedOut => return Verdict::Done(n as isize),
                }
            }
            Look::Moved(n) => {
                done += n;
                let on_link = sock.rx.state() == state::LINK;
                drop(section);
                // A full portion, or the last of TCP before the link: perhaps more lies ready, and
                // TCP would hand it over in the same call.
                if done == total || done >= want && on_link && n != PUBLISH {
                    return finish(sock, done);
                }
            }
            Look::Again => {}
            Look::Leaves(reason) => {
                drop(section);
                demote::demote(sock, demote::Which::Tx, reason);
            }
            Look::Resetting => {
                drop(section);
                reset::let_end(sock);
                if reset::resetting(sock) == Resetting::Begun {
                    // This thread's own, which a handler has interrupted.
                    return partly(done, Error::WouldBlock);
                }
            }
            Look::End => {
                drop(section);
                return finish(sock, done);
            }
            Look::Owed => {
                drop(section);
                if core::mem::replace(&mut has_waited, true) {
                    return finish(sock, done);
                }
                sock.rx.owed.store(0, Ordering::Relaxed);
                remote::await_return(sock, sys::now_ns() + remains::owed_ns());
            }
            Look::Failed(e) => {
                drop(section);
                // What the next call finds is what stands after it.
                reset::let_end(sock);
                return partly(done, e);
            }
            Look::Kernel => {
                nap.note(sock);
                drop(section);
                let waits = || sock.may_wait(fd, flags);
                if sock.rx.owed.load(Ordering::Relaxed) != 0
                    && remains::await_owed_for(sock, total - done) == Waited::Interrupted
                    && waits()
                    && ends(sock, nap).have_run()
                {
                    return partly(done, Error::Interrupted);
                }
                let kept = sock.remains.are_kept();
                if kept {
                    let Ok(section) = sock.rx.lock.enter() else {
                        return partly(done, Error::WouldBlock);
                    };
                    let goes_on = sock.rx.state() == state::PLAIN && !nap.is_lost();
                    let step = if goes_on && sock.remains.are_kept() {
                        // SAFETY: the caller's buffers.
                        unsafe { remains::step(sock, fd, &mut cursor, total - done, flags) }
                    } else {
                        Step::Kernel
                    };
                    drop(section);
                    match step {
                        Step::Kernel => {}
                        Step::Busy => {
                            let now = sys::now_ns();
                            if now < *busy_until.get_or_insert(now + remains::owed_ns()) {
                                sys::sched_yield();
                                continue;
                            }
                            // A thread that jumped out of its call stays counted for ever. Rather
                            // nothing than a byte twice.
                        }
                        Step::Moved(n) if peek => return Verdict::Done(n as isize),
                        Step::Moved(n) => {
                            done += n;
                            if done >= want {
                                return finish(sock, done);
                            }
                            continue;
                        }
                        Step::Lost => return partly(done, Error::Reset),
                        Step::Late if done != 0 && done >= want => return finish(sock, done),
                        Step::Late if !waits() => return partly(done, Error::WouldBlock),
                        Step::Late => {
                            nap.done = done;
                            let deadline = deadline_of(sock, nap);
                            if wait::for_rest(sock, fd, want - done, deadline, nap) {
                                return Verdict::Block;
                            }
                            continue;
                        }
                    }
                }
                // In the kernel the call would meet the end of TCP, and not the copy after it.
                let meets_end = || flags & libc::MSG_WAITALL != 0 || remains::follows(sock, fd);
                let by_hand = !peek && (fd != given || kept && meets_end());
                if peek && fd != given {
                    return Verdict::Failed(Error::Kernel(libc::EBADF));
                }
                if done == 0 && !by_hand {
                    match go_on(sock, fd, flags, nap) {
                        Some(verdict) => return verdict,
                        None => continue,
                    }
                }
                let Ok(section) = sock.rx.lock.enter() else {
                    return partly(done, Error::WouldBlock);
                };
                let rest = if sock.rx.state() != state::PLAIN || nap.is_lost() {
                    // The next look decides.
                    Rest::Moved(0)
                } else {
                    // SAFETY: the caller's buffers; the lock is held.
                    unsafe { rest_from_kernel(sock, fd, &mut cursor, flags) }
                };
                drop(section);
                match rest {
                    Rest::Moved(n) => {
                        done += n;
                        if done == total {
                            return finish(sock, done);
                        }
                    }
                    Rest::Over if done != 0 => return finish(sock, done),
                    // The caller's number is closed, or another file's by now.
                    Rest::Over if fd != given && sys::has_error(fd) => {
                        return Verdict::Failed(Error::Reset);
                    }
                    Rest::Over if fd != given => return finish(sock, 0),
                    // The end or an error, which the kernel tells; or another thread was faster.
                    Rest::Over if !sock.remains.are_kept() || !remains::has_ended(fd) => {
                        match go_on(sock, fd, flags, nap) {
                            Some(verdict) => return verdict,
                            None => continue,
                        }
                    }
                    Rest::Over => {}
                    Rest::Nothing => {
                        if done != 0 && (done >= want || !waits()) {
                            return finish(sock, done);
                        }
                        if !waits() {
                            return partly(done, Error::WouldBlock);
                        }
                        nap.done = done;
                        note_limit(sock, fd, nap);
                        let deadline = deadline_of(sock, nap);
                        if wait::for_rest(sock, fd, want - done, deadline, nap) {
                            return Verdict::Block;
                        }
                    }
                }
            }
            Look::Empty => {
                if done >= want {
                    drop(section);
                    return finish(sock, done);
                }
                if !sock.may_wait(fd, flags) {
                    drop(section);
                    if done == 0 && sock.rx.owed.load(Ordering::Relaxed) == remains::SOME {
                        remains::await_owed(sock);
                        continue;
                    }
                    return partly(done, Error::WouldBlock);
                }
                let beyond = sock.rx.at.load(Ordering::Relaxed) + 1;
                nap.note(sock);
                if sock.rx.state() != state::LINK {
                    wait::begin_below_low(sock, need, nap);
                }
                let deadline = deadline_of(sock, nap);
                let waited = wait::for_data(section, sock, fd, deadline, beyond, nap);
                if waited != Waited::Parked {
                    wait::end_below_low(nap);
                }
                match waited {
                    Waited::News => nap.goes_on(),
                    Waited::Parked => {
                        nap.done = done;
                        return Verdict::Block;
                    }
                    Waited::Interrupted => return partly(done, Error::Interrupted),
                    Waited::TimedOut => return partly(done, Error::WouldBlock),
                }
            }
        }
    }
}

/// Asked for no byte: `read` returns at once, `recv` waits until there is something to read
/// (sock_rcvlowat in the kernel: a target of none is a target of one).
unsafe fn recv_nothing(sock: &'static Sock, fd: c_int, flags: c_int, nap: &mut Nap) -> Verdict {
    if flags & READ != 0 {
        return Verdict::Done(0);
    }
    let mut byte = 0u8;
    let one = iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let peek = (flags | libc::MSG_PEEK) & !libc::MSG_WAITALL;
    nap.empty = sock.may_wait(fd, flags);
    // SAFETY: one byte of ours.
    match unsafe { recv_stream(sock, fd, &raw const one, 1, peek, nap) } {
        Verdict::Done(_) => Verdict::Done(0),
        Verdict::Failed(Error::WouldBlock | Error::Interrupted) if nap.empty => Verdict::Done(0),
        other => other,
    }
}

/// The time at which SO_RCVTIMEO runs out, fixed at the first wait of a call.
fn deadline_of(sock: &Sock, nap: &mut Nap) -> Option<u64> {
    let timeout = sock.rcv_timeout_ns.load(Ordering::Relaxed);
    if timeout != 0 && nap.deadline == 0 {
        nap.deadline = sys::now_ns().saturating_add(timeout);
    }
    (nap.deadline != 0).then_some(nap.deadline)
}

/// Which handlers end a call that would wait now.
fn ends(sock: &Sock, nap: &mut Nap) -> Ends {
    deadline_of(sock, nap);
    nap.ends()
}

/// Off the link the limit is the kernel's, and may have been set since this end left it, be it by a
/// relative.
pub(super) fn note_limit(sock: &'static Sock, fd: c_int, nap: &Nap) {
    if nap.deadline == 0
        && let Ok(_section) = sock.rx.lock.enter()
    {
        options::note(sock, fd);
    }
}

fn partly(done: usize, error: Error) -> Verdict {
    if done == 0 {
        Verdict::Failed(error)
    } else {
        Verdict::Done(done as isize)
    }
}

fn finish(sock: &'static Sock, done: usize) -> Verdict {
    if sock.offset() >= sock.next_try.load(Ordering::Relaxed) {
        trigger::crossed(sock, true);
    }
    Verdict::Done(done as isize)
}

/// Bytes were read from TCP. Where what this end writes goes by the link no answer acknowledges
/// them.
#[inline]
pub fn came_by_tcp(sock: &Sock) {
    after_tcp::is_answered(sock);
    if sock.tx.state() == state::LINK {
        tcp::acknowledge(sock.fd.load(Ordering::Relaxed));
    }
}

/// What TCP has now, from where the cursor is on.
///
/// # Safety
/// The caller's buffers.
unsafe fn recv_now(fd: c_int, cursor: &Cursor, flags: c_int) -> Result<usize, sys::Errno> {
    let mut room = [iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; 64];
    let pieces = cursor.rest(&mut room);
    // SAFETY: zeroes are a valid header.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = pieces.as_mut_ptr();
    msg.msg_iovlen = pieces.len();
    let asked = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    // SAFETY: passed on.
    unsafe { sys::recvmsg(fd, &raw mut msg, asked) }
}

/// Looks at what TCP has, before what is kept: so many bytes.
///
/// # Safety
/// The caller's buffers.
pub unsafe fn peek_at_kernel(fd: c_int, cursor: &Cursor, flags: c_int) -> usize {
    // SAFETY: passed on.
    unsafe { recv_now(fd, cursor, flags | libc::MSG_PEEK) }.unwrap_or(0)
}

/// What TCP had for a call that began on the link.
enum Rest {
    Moved(usize),
    /// Nothing now.
    Nothing,
    /// The end, or what the next call has to say.
    Over,
}

/// Under the rx lock, off the link: what TCP has now for a call that began on it.
unsafe fn rest_from_kernel(
    sock: &'static Sock,
    fd: c_int,
    cursor: &mut Cursor,
    flags: c_int,
) -> Rest {
    match at_hand(fd) {
        AtHand::Bytes => {}
        AtHand::Nothing => return Rest::Nothing,
        AtHand::Over => return Rest::Over,
    }
    // SAFETY: the caller's buffers.
    let got = unsafe { recv_now(fd, cursor, flags) };
    let n = got.unwrap_or(0);
    sock.rx.add_kernel_bytes(n as u64);
    sock.conn().rx.bytes.tcp.add(n as u64);
    match got {
        Ok(0) => Rest::Over,
        Ok(n) => {
            came_by_tcp(sock);
            cursor.advance(n, |_, _| ());
            Rest::Moved(n)
        }
        Err(libc::EAGAIN) => Rest::Nothing,
        Err(libc::EINTR) => Rest::Moved(0),
        Err(_) => Rest::Over,
    }
}
