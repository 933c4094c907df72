//! Receiving on a tracked socket: from TCP, from the link, or from one after the other.
//!
//! [`recv`] passes the call to the kernel while the rx half is [`Plain`](State::Plain) and nothing
//! is owed. Any other call is a `Read`, which loops: take the rx lock, `look` once, then
//! return, wait, or look again. The state of the half says where the next byte is:
//!
//! | state | the next byte is |
//! |---|---|
//! | `Plain` | on TCP, or in the unread copy after TCP has ended (`Read::take_plain`) |
//! | `Proved` | on TCP, until the writer switches |
//! | `Draining` | on TCP up to the writer's switch, then on the link |
//! | `Link` | in the ring, or in the writer's buffer (`direct`) |
//! | `Returning` | between hosts: on TCP, which brings what the peer re-sends |
//! | `Inherited` | with the parent: the first use demotes the stream |
//!
//! The rx lock guards the fields of the rx half, the reader's word in the ring (`head`) and the
//! unread copy. No thread sleeps with it: a function that takes a [`Section`] releases it before it
//! waits or returns. After a wait the state may be another, and the socket may be closed
//! ([`IoWait::is_lost`]), so every turn of the loop begins with the lock and that question.
//!
//! `lock.enter()` fails in a signal handler that interrupted the lock's holder, which is its own
//! thread, and nowhere else. The handler's call then ends with EAGAIN, or with what it has got.
//! [`Pass::NOBODY`] passes a call that moves no byte of the stream: no socket hears of its outcome.
//!
//! A change must keep these rules:
//! - A kernel call is counted first (`enter_kernel`), then the state is read: a switch changes
//!   the state, then reads the count. Otherwise a thread sleeps in the kernel and misses the link.
//! - Bytes copied from the ring are the program's only after `consume` has moved the head. If the
//!   head was seized meanwhile, they come again by TCP, and the call forgets them.
//! - An end or an error found after the call has got bytes is left to the next call. Taking it from
//!   the kernel would lose it.
//! - Each byte of TCP is added to the half's count, since the switch and the re-send go by offsets.

mod look;

use self::look::{Look, look};
use crate::emulated_reset::{self, Resetting};
use crate::io_wait::{IoWait, Waited};
use crate::prefix::Way;
use crate::socket::{Socket, State};
use crate::tcp::{self, AtHand, at_hand};
use crate::unread_copy::{self, Step, awaiting};
use crate::verdict::{Error, Pass, READ, Verdict};
use crate::{after_tcp, carrier, demote, direct, give_up, options, trigger, wait};
use core::sync::atomic::Ordering;
use libc::{c_int, iovec};
use sluice_fabric::lock::Section;
use sluice_fabric::sys::{self, Ends};
use sluice_runtime::fault;
use sluice_runtime::iov::{self, Cursor, Extent};
use sluice_stats::Reason;
use sluice_transport::PUBLISH;

/// Receives for a tracked socket.
///
/// # Safety
/// `iov` points to `count` vectors of a C caller, valid for the length of the call.
#[inline]
pub unsafe fn recv(
    sock: &'static Socket,
    fd: c_int,
    iov: *const iovec,
    count: usize,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Verdict {
    if io_wait.is_fresh()
        && let Some(pass) = to_kernel(sock, flags)
    {
        return Verdict::Pass(pass);
    }
    // SAFETY: `iov` points to `count` vectors of the C caller, as this function demands.
    let verdict = unsafe { recv_stream(sock, fd, iov, count, flags, io_wait) };
    if !matches!(verdict, Verdict::Block) {
        direct::revoke(io_wait);
    }
    verdict
}

/// Passes the call to the kernel if there is no stream and nothing is owed. Does not touch the
/// caller's memory.
#[inline]
pub fn to_kernel(sock: &'static Socket, flags: c_int) -> Option<Pass> {
    if sock.rx.state() == State::Plain && flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0 {
        // `recv_stream` waits for owed bytes, since it notices a close meanwhile.
        if sock.rx.owed.load(Ordering::Relaxed) != 0 {
            return None;
        }
        enter_kernel(sock, flags)
    } else {
        None
    }
}

/// Counts a kernel call on the rx half. `None`: a stream has been attached meanwhile.
#[inline]
fn enter_kernel(sock: &'static Socket, flags: c_int) -> Option<Pass> {
    sock.rx.call_begins();
    if sock.rx.state.get_in_order() == State::Plain {
        if flags & libc::MSG_PEEK != 0 {
            return Some(Pass::rx_uncounted(sock));
        }
        if flags & libc::MSG_TRUNC != 0 {
            // TCP drops the bytes, so none can be kept for a proof.
            sock.prefix.end(Way::In);
        }
        return Some(Pass::rx(sock));
    }
    sock.rx.call_ends(0);
    None
}

/// Like [`enter_kernel`], for a call that may have waited and has moved nothing: the kernel does
/// not know which handlers have run since the call began. `None`: look again, also if the socket
/// was closed.
fn hand_to_kernel(
    sock: &'static Socket,
    fd: c_int,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Option<Verdict> {
    // Before counting, too: the structure may belong to another connection, where no call of ours
    // may be counted.
    if io_wait.is_lost() {
        return None;
    }
    let pass = enter_kernel(sock, flags)?;
    if io_wait.is_lost() {
        sock.rx.call_ends(0);
        return None;
    }
    let would_wait = || sys::poll_one(fd, libc::POLLIN, Some(sys::timespec(0))) == Ok(0);
    if ending_handlers(sock, io_wait).have_run() && sock.may_wait(fd, flags) && would_wait() {
        sock.rx.call_ends(0);
        return Some(Verdict::Failed(Error::Interrupted));
    }
    Some(Verdict::Pass(pass))
}

#[cold]
fn out_of_band(sock: &'static Socket) -> Verdict {
    if sock.carrier().ends_by_record {
        // The kernel keeps the urgent byte apart; the bytes before it may still be on the link.
        carrier::hears(sock);
        return Verdict::Pass(Pass::NOBODY);
    }
    give_up::begin(sock, Reason::MsgOob);
    // A poll after this call should find the re-sent bytes.
    awaiting::await_all_owed(sock);
    Verdict::Pass(Pass::NOBODY)
}

unsafe fn recv_stream(
    sock: &'static Socket,
    fd: c_int,
    iov: *const iovec,
    count: usize,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Verdict {
    if flags & libc::MSG_OOB != 0 {
        return out_of_band(sock);
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Verdict::Pass(Pass::NOBODY);
    }
    if count > iov::MAX {
        return Verdict::Pass(Pass::NOBODY);
    }
    // SAFETY: the caller guarantees `count` vectors at `iov`.
    let mut cursor = unsafe { Cursor::new(iov, count) };
    // MSG_TRUNC on TCP discards the bytes, so the addresses are never used.
    let total = match cursor.extent(flags & libc::MSG_TRUNC != 0) {
        Extent::Bytes(total) => total,
        Extent::NoAddress | Extent::BadAddress => return Verdict::Failed(Error::BadAddress),
        Extent::Refused => return Verdict::Pass(Pass::NOBODY),
    };
    cursor.limit(total);
    if total == 0 {
        return recv_nothing(sock, fd, flags, io_wait);
    }
    let flags = flags & !READ;
    let peek = flags & libc::MSG_PEEK != 0;
    let want = if flags & libc::MSG_WAITALL != 0 {
        total
    } else {
        (sock.rcvlowat.load(Ordering::Relaxed).max(1) as usize).min(total)
    };
    // A peek starts again from the first byte.
    let done = if peek { 0 } else { io_wait.done };
    if done != 0 {
        cursor.advance(done, |_, _| ());
    }
    let mut read = Read {
        sock,
        caller_fd: fd,
        fd,
        flags,
        peek,
        total,
        want,
        cursor: &mut cursor,
        done,
        tcp_had_ended: peek && io_wait.done != 0 && matches!(at_hand(fd), AtHand::End),
        has_waited: false,
        busy_until: None,
    };
    loop {
        let Ok(section) = sock.rx.lock.enter() else {
            return read.partly(Error::WouldBlock);
        };
        if io_wait.is_lost() {
            // Closed during the wait. Most programs shut the socket down first, so the call ends as
            // at EOF.
            return Verdict::Done(read.done.max(io_wait.done) as isize);
        }
        read.fd = sock.valid_number(fd);
        if let Some(verdict) = read.look(section, io_wait) {
            return verdict;
        }
    }
}

/// A receive in progress. Its steps return the call's answer, or `None` to look again.
struct Read<'a> {
    sock: &'static Socket,
    /// The number that the program gave. It may be closed by now, or another file's.
    caller_fd: c_int,
    /// A number of this process that refers to the socket.
    fd: c_int,
    flags: c_int,
    peek: bool,
    /// Bytes asked for, and how many of them the call waits for.
    total: usize,
    want: usize,
    cursor: &'a mut Cursor,
    done: usize,
    /// A peek only: TCP had ended before the last look, so nothing more comes.
    tcp_had_ended: bool,
    /// The call has waited once for bytes that another host owes.
    has_waited: bool,
    /// Until when the call waits for another thread to count its bytes, once it has begun to.
    busy_until: Option<u64>,
}

impl Read<'_> {
    /// Looks once, under the rx lock, and acts on the outcome. Releases the lock.
    #[inline]
    fn look(&mut self, section: Section<'_>, io_wait: &mut IoWait) -> Option<Verdict> {
        let Self { sock, fd, .. } = *self;
        let need = self.want.saturating_sub(self.done);
        let left = self.total - self.done;
        // If this call has got bytes, an end or an error is left to the next call.
        io_wait.done = self.done;
        // SAFETY: `recv`'s caller guarantees the buffers; `section` holds the lock.
        match unsafe { look(sock, fd, self.cursor, left, self.flags, need, io_wait) } {
            Look::Moved(n) if self.peek => self.has_peeked(section, n, io_wait),
            Look::Moved(n) => {
                self.done += n;
                let on_link = sock.rx.state() == State::Link;
                drop(section);
                // After a full portion, or the last bytes of TCP before the link, more may be
                // ready, and TCP would return all of it in one call.
                let is_enough =
                    self.done == self.total || self.done >= self.want && on_link && n != PUBLISH;
                is_enough.then(|| self.finish())
            }
            Look::Again => None,
            Look::Leaves(reason) => {
                drop(section);
                demote::demote(sock, demote::Which::Tx, reason);
                None
            }
            Look::Resetting => {
                drop(section);
                emulated_reset::let_end(sock);
                // If it is still begun, this thread is making the reset, and a signal handler
                // interrupted it.
                let is_own = emulated_reset::resetting(sock) == Resetting::Begun;
                is_own.then(|| self.partly(Error::WouldBlock))
            }
            Look::End => {
                drop(section);
                Some(self.finish())
            }
            Look::Owed => {
                if core::mem::replace(&mut self.has_waited, true) {
                    drop(section);
                    return Some(self.finish());
                }
                // Under the lock: a later demotion, or another connection, notes a debt of its own.
                sock.rx.owed.store(0, Ordering::Relaxed);
                drop(section);
                carrier::await_return(sock, sys::now_ns() + unread_copy::owed_ns());
                None
            }
            Look::Failed(e) => {
                drop(section);
                // Wait for another thread's reset, so that the next call finds its outcome.
                emulated_reset::let_end(sock);
                Some(self.partly(e))
            }
            Look::Kernel => {
                io_wait.note(sock);
                drop(section);
                self.take_plain(io_wait)
            }
            Look::Empty => self.waits(section, need, io_wait),
        }
    }

    /// Ends a peek that has seen `n` bytes, or waits for more if it wants more; nothing is
    /// consumed. Called with the rx lock held; releases it.
    #[cold]
    fn has_peeked(
        &mut self,
        section: Section<'_>,
        n: usize,
        io_wait: &mut IoWait,
    ) -> Option<Verdict> {
        let Self { sock, fd, .. } = *self;
        let nonblocking = !self.may_wait();
        let current = sock.rx.state();
        if n >= self.want || nonblocking || self.tcp_had_ended || current == State::Returning {
            return Some(Verdict::Done(fault::peeked(n) as isize));
        }
        io_wait.note(sock);
        if current != State::Link || tcp::has_bytes(fd) {
            // No wait covers both TCP and the link, so the stream goes back to TCP. On the link the
            // bytes of TCP are another process's or a demotion's, and they would end every sleep.
            demote::settle_rx(sock, Reason::PeekWaits);
            return None;
        }
        let beyond = sock.rx.at.load(Ordering::Relaxed) + n as u64 + 1;
        io_wait.done = n;
        match wait::for_data(
            section,
            sock,
            fd,
            deadline_of(sock, io_wait),
            beyond,
            io_wait,
        ) {
            Waited::News => {
                self.tcp_had_ended = matches!(at_hand(fd), AtHand::End);
                None
            }
            Waited::Parked => Some(Verdict::Block),
            Waited::Interrupted | Waited::TimedOut => Some(Verdict::Done(n as isize)),
        }
    }

    /// Nothing is there: waits, or says why not. `need` bytes are missing. Called with the rx
    /// lock held; releases it.
    #[inline]
    fn waits(
        &mut self,
        section: Section<'_>,
        need: usize,
        io_wait: &mut IoWait,
    ) -> Option<Verdict> {
        let Self { sock, fd, .. } = *self;
        if self.done >= self.want {
            drop(section);
            return Some(self.finish());
        }
        if !self.may_wait() {
            drop(section);
            if self.done == 0 && sock.rx.owed.load(Ordering::Relaxed) == unread_copy::SOME {
                // It stores 0 before it waits, so only another demotion brings the call here again.
                awaiting::await_owed(sock);
                return None;
            }
            return Some(self.partly(Error::WouldBlock));
        }
        let beyond = sock.rx.at.load(Ordering::Relaxed) + 1;
        io_wait.note(sock);
        if sock.rx.state() != State::Link {
            wait::begin_below_low(sock, need, io_wait);
        }
        let deadline = deadline_of(sock, io_wait);
        let waited = wait::for_data(section, sock, fd, deadline, beyond, io_wait);
        if waited != Waited::Parked {
            wait::end_below_low(io_wait);
        }
        match waited {
            Waited::News => {
                io_wait.goes_on();
                None
            }
            Waited::Parked => {
                io_wait.done = self.done;
                Some(Verdict::Block)
            }
            Waited::Interrupted => Some(self.partly(Error::Interrupted)),
            Waited::TimedOut => Some(self.partly(Error::WouldBlock)),
        }
    }

    /// The half is Plain: takes the rest from TCP, then from the copy of a demoted stream.
    #[inline(never)]
    fn take_plain(&mut self, io_wait: &mut IoWait) -> Option<Verdict> {
        let Self { sock, fd, .. } = *self;
        if sock.rx.owed.load(Ordering::Relaxed) != 0
            && awaiting::await_owed_for(sock, self.total - self.done) == Waited::Interrupted
            && self.may_wait()
            && ending_handlers(sock, io_wait).have_run()
        {
            return Some(self.partly(Error::Interrupted));
        }
        let kept = sock.unread_copy.are_kept();
        if kept {
            match self.take_copy(io_wait) {
                FromCopy::Tcp => {}
                FromCopy::Again => return None,
                FromCopy::Answer(verdict) => return Some(verdict),
            }
        }
        let is_callers = fd == self.caller_fd;
        if self.peek && !is_callers {
            return Some(Verdict::Failed(Error::Kernel(libc::EBADF)));
        }
        // In the kernel the call would stop at the end of TCP and miss the copy after it.
        let meets_end = || self.flags & libc::MSG_WAITALL != 0 || unread_copy::follows(sock, fd);
        // The kernel's recv takes a part, then sleeps until SO_RCVLOWAT more bytes come
        // (`tcp_data_ready`): for ever, if this call had already waited for all of them.
        let has_low_mark = || self.may_wait() && sock.rcvlowat.load(Ordering::Relaxed) > 1;
        let by_hand = !self.peek && (!is_callers || kept && meets_end() || has_low_mark());
        if self.done == 0 && !by_hand {
            return hand_to_kernel(sock, fd, self.flags, io_wait);
        }
        self.take_tcp(io_wait)
    }

    /// Takes from the copy what TCP will not bring.
    fn take_copy(&mut self, io_wait: &mut IoWait) -> FromCopy {
        let Self { sock, fd, .. } = *self;
        let Ok(section) = sock.rx.lock.enter() else {
            return FromCopy::Answer(self.partly(Error::WouldBlock));
        };
        let is_plain = sock.rx.state() == State::Plain && !io_wait.is_lost();
        let step = if is_plain && sock.unread_copy.are_kept() {
            let left = self.total - self.done;
            // SAFETY: `recv`'s caller guarantees the buffers; the rx lock is held.
            unsafe { unread_copy::step(sock, fd, self.cursor, left, self.flags) }
        } else {
            Step::Kernel
        };
        drop(section);
        let answer = match step {
            Step::Kernel => return FromCopy::Tcp,
            Step::Busy => {
                let now = sys::now_ns();
                if now >= *self.busy_until.get_or_insert(now + unread_copy::owed_ns()) {
                    Some(self.gives_copy_up(io_wait))
                } else {
                    sys::sched_yield();
                    None
                }
            }
            Step::Moved(n) if self.peek => Some(Verdict::Done(n as isize)),
            Step::Moved(n) => {
                self.done += n;
                (self.done >= self.want).then(|| self.finish())
            }
            Step::Lost => Some(self.partly(Error::Reset)),
            Step::NotYet if self.done != 0 && self.done >= self.want => Some(self.finish()),
            Step::NotYet if !self.may_wait() => Some(self.partly(Error::WouldBlock)),
            Step::NotYet => self.waits_for_tcp(io_wait),
        };
        answer.map_or(FromCopy::Again, FromCopy::Answer)
    }

    /// Another thread stays counted in the kernel, most likely since it jumped out of its call, and
    /// may have read any of the owed bytes. The copy is dropped, since missing bytes are better
    /// than repeated ones, and the call fails, since their place is not the stream's end.
    #[cold]
    fn gives_copy_up(&self, io_wait: &IoWait) -> Verdict {
        if self.done == 0
            && let Ok(_section) = self.sock.rx.lock.enter()
            && self.sock.rx.state() == State::Plain
            && !io_wait.is_lost()
        {
            unread_copy::renounce(self.sock);
        }
        self.partly(Error::Reset)
    }

    /// Reads TCP in the library: the call already has a part, or the copy follows TCP.
    fn take_tcp(&mut self, io_wait: &mut IoWait) -> Option<Verdict> {
        let Self { sock, fd, .. } = *self;
        let Ok(section) = sock.rx.lock.enter() else {
            return Some(self.partly(Error::WouldBlock));
        };
        let rest = if sock.rx.state() != State::Plain || io_wait.is_lost() {
            Rest::Again
        } else {
            // SAFETY: `recv`'s caller guarantees the buffers; `section` holds the lock.
            unsafe { rest_from_kernel(sock, fd, self.cursor, self.flags) }
        };
        drop(section);
        let is_callers = fd == self.caller_fd;
        match rest {
            Rest::Again => None,
            Rest::Moved(n) => {
                self.done += n;
                (self.done == self.total).then(|| self.finish())
            }
            Rest::End if self.done != 0 => Some(self.finish()),
            // The caller's number is closed, or another file's by now, so the kernel cannot answer
            // by it.
            Rest::End if !is_callers && sys::has_error(fd) => Some(Verdict::Failed(Error::Reset)),
            Rest::End if !is_callers => Some(self.finish()),
            // The end or an error, which the kernel reports; or another thread took the bytes.
            Rest::End if !sock.unread_copy.are_kept() || !unread_copy::has_ended(fd) => {
                hand_to_kernel(sock, fd, self.flags, io_wait)
            }
            Rest::End => None,
            Rest::Nothing => {
                if self.done != 0 && (self.done >= self.want || !self.may_wait()) {
                    return Some(self.finish());
                }
                if !self.may_wait() {
                    return Some(self.partly(Error::WouldBlock));
                }
                note_limit(sock, fd, io_wait);
                self.waits_for_tcp(io_wait)
            }
        }
    }

    /// Waits until TCP has more of what is missing.
    fn waits_for_tcp(&self, io_wait: &mut IoWait) -> Option<Verdict> {
        io_wait.done = self.done;
        let deadline = deadline_of(self.sock, io_wait);
        wait::for_rest(self.sock, self.fd, self.want - self.done, deadline, io_wait)
            .then_some(Verdict::Block)
    }

    fn may_wait(&self) -> bool {
        self.sock.may_wait(self.fd, self.flags)
    }

    fn partly(&self, error: Error) -> Verdict {
        if self.done == 0 {
            Verdict::Failed(error)
        } else {
            Verdict::Done(self.done as isize)
        }
    }

    fn finish(&self) -> Verdict {
        let sock = self.sock;
        if sock.offset() >= sock.next_try.load(Ordering::Relaxed) {
            trigger::crossed(sock, true);
        }
        Verdict::Done(self.done as isize)
    }
}

/// A receive of no byte: `read` returns at once, `recv` waits until there is something to read
/// (`sock_rcvlowat` in the kernel makes a target of 0 one of 1).
fn recv_nothing(sock: &'static Socket, fd: c_int, flags: c_int, io_wait: &mut IoWait) -> Verdict {
    if flags & READ != 0 {
        return Verdict::Done(0);
    }
    let mut byte = 0u8;
    let one = iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let peek = (flags | libc::MSG_PEEK) & !libc::MSG_WAITALL;
    io_wait.empty = sock.may_wait(fd, flags);
    // SAFETY: `one` is a valid vector of one byte of this frame.
    match unsafe { recv_stream(sock, fd, &raw const one, 1, peek, io_wait) } {
        Verdict::Done(_) => Verdict::Done(0),
        // The kernel does not look at how its wait ended: it copies nothing, and returns that.
        Verdict::Failed(Error::WouldBlock | Error::Interrupted) if io_wait.empty => {
            Verdict::Done(0)
        }
        other => other,
    }
}

/// When SO_RCVTIMEO runs out; fixed at the call's first wait.
fn deadline_of(sock: &Socket, io_wait: &mut IoWait) -> Option<u64> {
    let timeout = sock.rcv_timeout_ns.load(Ordering::Relaxed);
    if timeout != 0 && io_wait.deadline == 0 {
        io_wait.deadline = sys::now_ns().saturating_add(timeout);
    }
    (io_wait.deadline != 0).then_some(io_wait.deadline)
}

/// The handlers that end a call that would wait now.
fn ending_handlers(sock: &Socket, io_wait: &mut IoWait) -> Ends {
    deadline_of(sock, io_wait);
    io_wait.ends()
}

/// Reads the timeouts before the first wait off the link: the kernel has the current ones, which
/// the program or a relative may have set since the demotion.
pub(super) fn note_limit(sock: &'static Socket, fd: c_int, io_wait: &IoWait) {
    if io_wait.deadline == 0
        && let Ok(_section) = sock.rx.lock.enter()
    {
        options::note(sock, fd);
    }
}

/// Notes that bytes came by TCP. If this end writes to the link, no TCP segment acknowledges them,
/// so the kernel is told to.
#[inline]
pub(crate) fn came_by_tcp(sock: &Socket) {
    after_tcp::is_answered(sock);
    if sock.tx.state() == State::Link {
        tcp::acknowledge(sock.fd.load(Ordering::Relaxed));
    }
}

/// What [`Read::take_copy`] has come to.
enum FromCopy {
    /// TCP has the next byte.
    Tcp,
    /// Look again.
    Again,
    Answer(Verdict),
}

/// What TCP had for a call that the library finishes.
enum Rest {
    Moved(usize),
    /// The state has changed, or a handler ended the look: look again.
    Again,
    /// Nothing yet.
    Nothing,
    /// EOF, or an error that the next call reports.
    End,
}

/// Takes what TCP has now. Call under the rx lock, off the link.
unsafe fn rest_from_kernel(
    sock: &'static Socket,
    fd: c_int,
    cursor: &mut Cursor,
    flags: c_int,
) -> Rest {
    match at_hand(fd) {
        AtHand::Bytes => {}
        AtHand::Nothing => return Rest::Nothing,
        AtHand::End => return Rest::End,
    }
    // SAFETY: the caller guarantees the cursor's buffers.
    let got = unsafe { tcp::recv_now(fd, cursor, flags) };
    let n = got.unwrap_or(0);
    sock.rx.add_kernel_bytes(n as u64);
    sock.conn().rx.bytes.tcp.add(n as u64);
    match got {
        Ok(0) => Rest::End,
        Ok(n) => {
            came_by_tcp(sock);
            cursor.advance(n, |_, _| ());
            Rest::Moved(n)
        }
        Err(libc::EAGAIN) => Rest::Nothing,
        Err(libc::EINTR) => Rest::Again,
        Err(_) => Rest::End,
    }
}
