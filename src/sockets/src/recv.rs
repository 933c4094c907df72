//! Receiving: from the kernel, from the kernel up to the switch, from the ring.

mod look;

use self::look::{Look, look};
use crate::emulated_reset::{self, Resetting};
use crate::io_wait::{IoWait, Waited};
use crate::prefix::Way;
use crate::socket::{Socket, State};
use crate::tcp::{self, AtHand, at_hand};
use crate::unread_copy::{self, Step, awaiting};
use crate::verdict::{Error, Pass, READ, Verdict};
use crate::{PUBLISH, after_tcp, demote, direct, give_up, options, remote, trigger, wait};
use core::ops::ControlFlow;
use core::sync::atomic::Ordering;
use libc::{c_int, iovec};
use sluice_fabric::lock::Section;
use sluice_fabric::sys::{self, Ends};
use sluice_runtime::fault;
use sluice_runtime::iov::{self, Cursor, Extent};
use sluice_stats::Reason;

/// Receives for a tracked socket.
///
/// # Safety
/// The arguments are those of a C caller.
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
    // SAFETY: passed on.
    let verdict = unsafe { recv_stream(sock, fd, iov, count, flags, io_wait) };
    if !matches!(verdict, Verdict::Block) {
        direct::revoke(io_wait);
    }
    verdict
}

/// Is the call the kernel's alone? Touches none of the caller's memory.
#[inline]
pub fn to_kernel(sock: &'static Socket, flags: c_int) -> Option<Pass> {
    if sock.rx.state() == State::Plain && flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0 {
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
fn enter_kernel(sock: &'static Socket, flags: c_int) -> Option<Pass> {
    sock.rx.call_begins();
    if sock.rx.state.get_in_order() == State::Plain {
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
fn go_on(sock: &'static Socket, fd: c_int, flags: c_int, io_wait: &mut IoWait) -> Option<Verdict> {
    // Looked at first, too: the structure may be another connection's, whose own calls are to be
    // alone on it.
    if io_wait.is_lost() {
        return None;
    }
    let pass = enter_kernel(sock, flags)?;
    if io_wait.is_lost() {
        sock.rx.call_ends(0);
        return None;
    }
    let would_wait = || sys::poll_one(fd, libc::POLLIN, Some(sys::timespec(0))) == Ok(0);
    if ends(sock, io_wait).have_run() && sock.may_wait(fd, flags) && would_wait() {
        sock.rx.call_ends(0);
        return Some(Verdict::Failed(Error::Interrupted));
    }
    Some(Verdict::Pass(pass))
}

#[cold]
unsafe fn out_of_band(sock: &'static Socket) -> Verdict {
    if sock.carrier().ends_by_record {
        // The kernel has it apart from the stream; what comes before it may still be on the link.
        remote::hears(sock);
        return Verdict::Pass(Pass::NOBODY);
    }
    give_up::begin(sock, Reason::MsgOob);
    // A poll that follows is to find them.
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
        return unsafe { recv_nothing(sock, fd, flags, io_wait) };
    }
    let flags = flags & !READ;
    let peek = flags & libc::MSG_PEEK != 0;
    let want = if flags & libc::MSG_WAITALL != 0 {
        total
    } else {
        (sock.rcvlowat.load(Ordering::Relaxed).max(1) as usize).min(total)
    };
    // What a peek has seen is seen anew.
    let done = if peek { 0 } else { io_wait.done };
    if done != 0 {
        cursor.advance(done, |_, _| ());
    }
    let mut read = Read {
        sock,
        given: fd,
        fd,
        flags,
        peek,
        total,
        want,
        cursor: &mut cursor,
        done,
        // If TCP is over no more comes after what the next look finds.
        over: peek && io_wait.done != 0 && matches!(at_hand(fd), AtHand::Over),
        has_waited: false,
        busy_until: None,
    };
    loop {
        let Ok(section) = sock.rx.lock.enter() else {
            return read.partly(Error::WouldBlock);
        };
        if io_wait.is_lost() {
            // Most programs that want the call to end have shut the socket down before, and TCP has
            // come to its end.
            return Verdict::Done(read.done.max(io_wait.done) as isize);
        }
        read.fd = sock.valid_number(fd);
        if let Some(verdict) = read.look(section, io_wait) {
            return verdict;
        }
    }
}

/// A receive going on. Its steps answer for the call, or `None`: look again.
struct Read<'a> {
    sock: &'static Socket,
    /// The caller's number, and the one by which the socket is reached now.
    given: c_int,
    fd: c_int,
    flags: c_int,
    peek: bool,
    /// Bytes asked for, and how many of them the call waits for.
    total: usize,
    want: usize,
    cursor: &'a mut Cursor,
    done: usize,
    /// A peek: TCP was over before the last look.
    over: bool,
    /// It has waited once for bytes that another host owes.
    has_waited: bool,
    /// How long another thread's count is waited for, once it has begun.
    busy_until: Option<u64>,
}

impl Read<'_> {
    /// Under the rx lock, which it gives back.
    #[inline]
    fn look(&mut self, section: Section<'_>, io_wait: &mut IoWait) -> Option<Verdict> {
        let Self { sock, fd, .. } = *self;
        let need = self.want.saturating_sub(self.done);
        let left = self.total - self.done;
        // What TCP has to say against going on is the next call's, if this one has got something.
        io_wait.done = self.done;
        // SAFETY: the caller's buffers; the lock is held.
        match unsafe { look(sock, fd, self.cursor, left, self.flags, need, io_wait) } {
            Look::Moved(n) if self.peek => self.has_peeked(section, n, io_wait),
            Look::Moved(n) => {
                self.done += n;
                let on_link = sock.rx.state() == State::Link;
                drop(section);
                // A full portion, or the last of TCP before the link: perhaps more lies ready, and
                // TCP would hand it over in the same call.
                let is_over =
                    self.done == self.total || self.done >= self.want && on_link && n != PUBLISH;
                is_over.then(|| self.finish())
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
                // One that is still begun is this thread's own, which a handler has interrupted.
                let is_own = emulated_reset::resetting(sock) == Resetting::Begun;
                is_own.then(|| self.partly(Error::WouldBlock))
            }
            Look::End => {
                drop(section);
                Some(self.finish())
            }
            Look::Owed => {
                drop(section);
                if core::mem::replace(&mut self.has_waited, true) {
                    return Some(self.finish());
                }
                sock.rx.owed.store(0, Ordering::Relaxed);
                remote::await_return(sock, sys::now_ns() + unread_copy::owed_ns());
                None
            }
            Look::Failed(e) => {
                drop(section);
                // What the next call finds is what stands after it.
                emulated_reset::let_end(sock);
                Some(self.partly(e))
            }
            Look::Kernel => {
                io_wait.note(sock);
                drop(section);
                self.off_link(io_wait)
            }
            Look::Empty => self.waits(section, need, io_wait),
        }
    }

    /// Under the rx lock, which it gives back: a peek has seen `n` bytes. One that wants more than
    /// there is waits for more; what is there stays.
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
        if n >= self.want || nonblocking || self.over || current == State::Returning {
            return Some(Verdict::Done(fault::peeked(n) as isize));
        }
        io_wait.note(sock);
        if current != State::Link {
            // No wait is for both TCP and the link that follows it: TCP gets it all.
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
                self.over = matches!(at_hand(fd), AtHand::Over);
                None
            }
            Waited::Parked => Some(Verdict::Block),
            Waited::Interrupted | Waited::TimedOut => Some(Verdict::Done(n as isize)),
        }
    }

    /// Under the rx lock, which it gives back: nothing is there. `need` bytes more are waited for.
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

    /// The rest is TCP's, and what the copy of a demoted stream has after that.
    #[inline(never)]
    fn off_link(&mut self, io_wait: &mut IoWait) -> Option<Verdict> {
        let Self { sock, fd, .. } = *self;
        if sock.rx.owed.load(Ordering::Relaxed) != 0
            && awaiting::await_owed_for(sock, self.total - self.done) == Waited::Interrupted
            && self.may_wait()
            && ends(sock, io_wait).have_run()
        {
            return Some(self.partly(Error::Interrupted));
        }
        let kept = sock.unread_copy.are_kept();
        if kept && let ControlFlow::Break(answer) = self.take_copy(io_wait) {
            return answer;
        }
        let is_given = fd == self.given;
        if self.peek && !is_given {
            return Some(Verdict::Failed(Error::Kernel(libc::EBADF)));
        }
        // In the kernel the call would meet the end of TCP, and not the copy after it.
        let meets_end = || self.flags & libc::MSG_WAITALL != 0 || unread_copy::follows(sock, fd);
        // A recv of the kernel's takes a part, and sleeps until SO_RCVLOWAT bytes more are there
        // (tcp_data_ready): for ever, if the part has come since this call waited for all of them.
        let is_low = || self.may_wait() && sock.rcvlowat.load(Ordering::Relaxed) > 1;
        let by_hand = !self.peek && (!is_given || kept && meets_end() || is_low());
        if self.done == 0 && !by_hand {
            return go_on(sock, fd, self.flags, io_wait);
        }
        self.take_tcp(io_wait)
    }

    /// What TCP does not bring any more is taken from the copy. `Continue`: TCP has the next byte.
    fn take_copy(&mut self, io_wait: &mut IoWait) -> ControlFlow<Option<Verdict>> {
        let Self { sock, fd, .. } = *self;
        let Ok(section) = sock.rx.lock.enter() else {
            return ControlFlow::Break(Some(self.partly(Error::WouldBlock)));
        };
        let goes_on = sock.rx.state() == State::Plain && !io_wait.is_lost();
        let step = if goes_on && sock.unread_copy.are_kept() {
            let left = self.total - self.done;
            // SAFETY: the caller's buffers.
            unsafe { unread_copy::step(sock, fd, self.cursor, left, self.flags) }
        } else {
            Step::Kernel
        };
        drop(section);
        let answer = match step {
            Step::Kernel => return ControlFlow::Continue(()),
            Step::Busy => {
                let now = sys::now_ns();
                if now >= *self.busy_until.get_or_insert(now + unread_copy::owed_ns()) {
                    // A thread that jumped out of its call stays counted for ever. Rather nothing
                    // than a byte twice.
                    return ControlFlow::Continue(());
                }
                sys::sched_yield();
                None
            }
            Step::Moved(n) if self.peek => Some(Verdict::Done(n as isize)),
            Step::Moved(n) => {
                self.done += n;
                (self.done >= self.want).then(|| self.finish())
            }
            Step::Lost => Some(self.partly(Error::Reset)),
            Step::Late if self.done != 0 && self.done >= self.want => Some(self.finish()),
            Step::Late if !self.may_wait() => Some(self.partly(Error::WouldBlock)),
            Step::Late => self.waits_for_tcp(io_wait),
        };
        ControlFlow::Break(answer)
    }

    /// The library itself reads from TCP: a part of the call is done, or the copy follows.
    fn take_tcp(&mut self, io_wait: &mut IoWait) -> Option<Verdict> {
        let Self { sock, fd, .. } = *self;
        let Ok(section) = sock.rx.lock.enter() else {
            return Some(self.partly(Error::WouldBlock));
        };
        let rest = if sock.rx.state() != State::Plain || io_wait.is_lost() {
            // The next look decides.
            Rest::Moved(0)
        } else {
            // SAFETY: the caller's buffers; the lock is held.
            unsafe { rest_from_kernel(sock, fd, self.cursor, self.flags) }
        };
        drop(section);
        let is_given = fd == self.given;
        match rest {
            Rest::Moved(n) => {
                self.done += n;
                (self.done == self.total).then(|| self.finish())
            }
            Rest::Over if self.done != 0 => Some(self.finish()),
            // The caller's number is closed, or another file's by now.
            Rest::Over if !is_given && sys::has_error(fd) => Some(Verdict::Failed(Error::Reset)),
            Rest::Over if !is_given => Some(self.finish()),
            // The end or an error, which the kernel tells; or another thread was faster.
            Rest::Over if !sock.unread_copy.are_kept() || !unread_copy::has_ended(fd) => {
                go_on(sock, fd, self.flags, io_wait)
            }
            Rest::Over => None,
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

    /// Waits for what is missing, of which TCP has nothing yet.
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

/// Asked for no byte: `read` returns at once, `recv` waits until there is something to read
/// (sock_rcvlowat in the kernel: a target of none is a target of one).
unsafe fn recv_nothing(
    sock: &'static Socket,
    fd: c_int,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Verdict {
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
    // SAFETY: one byte of ours.
    match unsafe { recv_stream(sock, fd, &raw const one, 1, peek, io_wait) } {
        Verdict::Done(_) => Verdict::Done(0),
        Verdict::Failed(Error::WouldBlock | Error::Interrupted) if io_wait.empty => {
            Verdict::Done(0)
        }
        other => other,
    }
}

/// The time at which SO_RCVTIMEO runs out, fixed at the first wait of a call.
fn deadline_of(sock: &Socket, io_wait: &mut IoWait) -> Option<u64> {
    let timeout = sock.rcv_timeout_ns.load(Ordering::Relaxed);
    if timeout != 0 && io_wait.deadline == 0 {
        io_wait.deadline = sys::now_ns().saturating_add(timeout);
    }
    (io_wait.deadline != 0).then_some(io_wait.deadline)
}

/// Which handlers end a call that would wait now.
fn ends(sock: &Socket, io_wait: &mut IoWait) -> Ends {
    deadline_of(sock, io_wait);
    io_wait.ends()
}

/// Off the link the limit is the kernel's, and may have been set since this end left it, be it by a
/// relative.
pub(super) fn note_limit(sock: &'static Socket, fd: c_int, io_wait: &IoWait) {
    if io_wait.deadline == 0
        && let Ok(_section) = sock.rx.lock.enter()
    {
        options::note(sock, fd);
    }
}

/// Bytes were read from TCP. Where what this end writes goes by the link no answer acknowledges
/// them.
#[inline]
pub(crate) fn came_by_tcp(sock: &Socket) {
    after_tcp::is_answered(sock);
    if sock.tx.state() == State::Link {
        tcp::acknowledge(sock.fd.load(Ordering::Relaxed));
    }
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
    sock: &'static Socket,
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
    let got = unsafe { tcp::recv_now(fd, cursor, flags) };
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
