//! Sending on a tracked socket: to TCP, to the link, or to TCP after the bytes being re-sent.
//!
//! [`send`] passes the call to the kernel while the tx half is [`Plain`](State::Plain), and counts
//! it there. Any other call is a `Write`, which loops: take the tx lock, `look` where bytes may
//! go, then write, wait, or look again. The tx lock guards the fields of the tx half and the
//! writer's word in the ring (`tail`); no thread sleeps with it.

mod by_pages;
mod file;
pub(crate) mod job;

pub use file::sendfile;

use self::job::Job;
use crate::demote::{self};
use crate::direct::{self, Tried};
use crate::give_up;
use crate::io_wait::IoWait;
use crate::io_wait::Waited;
use crate::prefix::{self, Moved, Way};
use crate::resend::{self, Resent};
use crate::socket::{Socket, State};
use crate::trigger::LARGE;
use crate::unread_copy::awaiting;
use crate::upgrade::{self, Switch};
use crate::verdict::{Error, Pass, Verdict};
use crate::wait;
use crate::{after_tcp, carrier, meeting, recv, trigger, trim, wake};
use core::sync::atomic::Ordering;
use libc::{c_int, iovec};
use sluice_fabric::cursors::OFFSET_MAX;
use sluice_fabric::lock::Section;
use sluice_fabric::ring::Ring;
use sluice_fabric::sync::fence_after_rmw;
use sluice_fabric::sys::{self};
use sluice_runtime::fault;
use sluice_runtime::iov::{self, Cursor, Extent};
use sluice_stats::Reason;
use sluice_transport::PUBLISH;
use sluice_transport::links;

/// Where bytes may go, as one look under the tx lock found.
pub(super) enum Room {
    /// So many bytes may be written at offset `at` of `ring`.
    Bytes(Ring, u64, usize),
    /// The ring is full.
    Full,
    /// TCP has no room for the bytes being re-sent.
    Resending,
    /// The re-send waits for the link or the peer to tell where it begins.
    Held,
    /// The state has changed: look again.
    Again,
    /// The tx half was demoted for this reason: demote the rx half too, then look again.
    Leaves(Reason),
    /// TCP takes the bytes, by a counted call.
    Kernel,
    /// The program has shut down the writing half; TCP's follows when everything is re-sent.
    Shut,
}

/// Sends for a tracked socket.
///
/// # Safety
/// `iov` points to `count` vectors of a C caller, valid for the length of the call.
#[inline]
pub unsafe fn send(
    sock: &'static Socket,
    fd: c_int,
    iov: *const iovec,
    count: usize,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Verdict {
    if io_wait.is_fresh()
        // SAFETY: `iov` points to `count` vectors of the C caller, as this function demands.
        && !unsafe { is_large(sock, iov, count, flags) }
        && let Some(pass) = to_kernel(sock, flags)
    {
        // SAFETY: `iov` points to `count` vectors of the C caller, as this function demands.
        return Verdict::Pass(unsafe { pass.writes(sock, iov, count) });
    }
    // SAFETY: `iov` points to `count` vectors of the C caller, as this function demands.
    unsafe { send_stream(sock, fd, iov, count, flags, io_wait) }
}

/// A call that writes at least [`LARGE`] bytes to TCP does so in pieces, between which the
/// connection may switch: of this size during a meeting, else of [`LONG_PIECE`]. Smaller pieces
/// cost more than 1 %, see `docs/decisions/025-a-trigger-by-cost.md`.
const PIECE: usize = 256 << 10;
const LONG_PIECE: usize = 1 << 20;

/// Returns whether the call is to be made in pieces.
///
/// # Safety
/// `iov` points to `count` vectors of a C caller.
#[inline]
pub unsafe fn is_large(sock: &Socket, iov: *const iovec, count: usize, flags: c_int) -> bool {
    if !may_be_large(sock, flags) || count > iov::MAX {
        return false;
    }
    // SAFETY: the caller guarantees `count` vectors at `iov`.
    let extent = unsafe { Cursor::new(iov, count) }.extent(false);
    matches!(extent, Extent::Bytes(total) if total >= LARGE)
}

/// Returns whether the connection may switch in the middle of a call with these flags.
#[inline]
pub fn may_be_large(sock: &Socket, flags: c_int) -> bool {
    let whole = libc::MSG_OOB | libc::MSG_EOR | libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY;
    sock.next_try.load(Ordering::Relaxed) != u64::MAX
        && sock.pinned.load(Ordering::Relaxed) == 0
        && flags & whole == 0
}

/// Passes the call to the kernel if no stream concerns it. Does not touch the caller's memory.
#[inline]
pub fn to_kernel(sock: &'static Socket, flags: c_int) -> Option<Pass> {
    if sock.tx.state() == State::Plain && flags & libc::MSG_OOB == 0 {
        enter_kernel(sock)
    } else {
        None
    }
}

#[inline]
fn enter_kernel(sock: &'static Socket) -> Option<Pass> {
    sock.tx.call_begins();
    if sock.tx.state.get_in_order() == State::Plain {
        after_tcp::acts_on(sock);
        return Some(Pass::tx(sock));
    }
    sock.tx.call_ends(0);
    None
}

unsafe fn send_stream(
    sock: &'static Socket,
    fd: c_int,
    iov: *const iovec,
    count: usize,
    flags: c_int,
    io_wait: &mut IoWait,
) -> Verdict {
    if flags & libc::MSG_OOB != 0 {
        return out_of_band(sock, fd, flags);
    }
    if count > iov::MAX {
        return Verdict::Pass(Pass::NOBODY);
    }
    // SAFETY: the caller guarantees `count` vectors at `iov`.
    let mut cursor = unsafe { Cursor::new(iov, count) };
    let total = match cursor.extent(false) {
        Extent::Bytes(total) => total,
        Extent::BadAddress => return Verdict::Failed(Error::BadAddress),
        // The kernel refuses it.
        Extent::NoAddress | Extent::Refused => return Verdict::Pass(Pass::NOBODY),
    };
    cursor.limit(total);
    if total == 0 && sock.shut.load(Ordering::Relaxed) && sock.tx.state() == State::Resending {
        return Verdict::Failed(Error::BrokenPipe { raise: true });
    }
    // No byte to send, or MSG_FASTOPEN on an established connection: the kernel answers these
    // without moving bytes past those in the ring.
    if total == 0 || flags & libc::MSG_FASTOPEN != 0 {
        return Verdict::Pass(Pass::NOBODY);
    }
    // Only SO_ZEROCOPY gives this flag a meaning, and such a socket is not upgraded.
    let flags = flags & !libc::MSG_ZEROCOPY;
    let job = Job {
        sock,
        fd,
        flags,
        ran: io_wait.ran,
        done: io_wait.done,
        deadline: (io_wait.deadline != 0).then_some(io_wait.deadline),
        patience: None,
        known: io_wait.known,
        waited: io_wait.known.is_some(),
    };
    if job.done != 0 {
        cursor.advance(job.done, |_, _| ());
    }
    let is_large = total >= LARGE && may_be_large(sock, flags);
    if is_large && io_wait.is_fresh() {
        trigger::before_large(sock, total);
    }
    let mut write = Write {
        job,
        given: fd,
        cursor,
        total,
        is_large,
        patience: trigger::Patience::default(),
    };
    loop {
        let Ok(section) = sock.tx.lock.enter() else {
            return write.job.partly(Error::WouldBlock);
        };
        if write.job.is_lost() {
            drop(section);
            return write.job.lost();
        }
        write.job.fd = sock.valid_number(fd);
        // SAFETY: `send`'s caller guarantees the buffers; `section` holds the lock.
        if let Some(verdict) = unsafe { write.go_on(section, io_wait) } {
            return verdict;
        }
    }
}

#[cold]
fn out_of_band(sock: &'static Socket, fd: c_int, flags: c_int) -> Verdict {
    if let Err(e) = give_up::before_write(sock, fd, flags, Reason::MsgOob) {
        return Verdict::Failed(e);
    }
    awaiting::await_all_owed(sock);
    Verdict::Pass(Pass::NOBODY)
}

/// A send from a caller's buffers. Its steps are called with the tx lock held and release it; they
/// return the call's answer, or `None` to look again.
struct Write {
    job: Job,
    /// The caller's number.
    given: c_int,
    cursor: Cursor,
    total: usize,
    is_large: bool,
    patience: trigger::Patience,
}

impl Write {
    #[inline]
    unsafe fn go_on(
        &mut self,
        mut section: Section<'static>,
        io_wait: &mut IoWait,
    ) -> Option<Verdict> {
        let sock = self.job.sock;
        let left = self.total - self.job.done;
        if left >= sock.tx.gate.load(Ordering::Relaxed) as usize && sock.tx.state() == State::Link {
            match direct::try_send(section, &mut self.job, &self.cursor, left) {
                Tried::Sent(held, n) => return self.has_sent(held, n),
                Tried::Ring(held) => section = held,
                Tried::Again => return None,
                Tried::Waited(Waited::Interrupted) => {
                    return Some(self.job.partly(Error::Interrupted));
                }
                Tried::Waited(_) => return Some(self.job.partly(Error::WouldBlock)),
            }
        }
        match look(sock, left) {
            Room::Bytes(ring, at, n) => {
                let before = self.cursor;
                let mut to = at;
                self.cursor.advance(n, |from, len| {
                    // SAFETY: `from` has `len` bytes of the caller's buffer; `look` has reserved
                    // the ring's space, which the reader does not read before the tail moves.
                    unsafe { ring.copy_in(to, from, len) };
                    to += len as u64;
                });
                if publish(sock, at, n) {
                    sock.conn().tx.bytes.indirect.add(n as u64);
                    self.job.done += n;
                } else {
                    // Sealed during the copy: these bytes go to TCP.
                    self.cursor = before;
                }
                drop(section);
                if self.job.done != self.total {
                    return None;
                }
                carrier::await_placement(sock, || !self.job.is_nonblocking());
                Some(finish(sock, self.total))
            }
            // SAFETY: `send`'s caller guarantees the buffers; the lock is held.
            Room::Kernel => unsafe { self.by_tcp(section, io_wait) },
            other => self.job.pause(section, other, Some(io_wait)),
        }
    }

    /// The reader took `n` bytes directly from the buffers.
    fn has_sent(&mut self, section: Section<'static>, n: usize) -> Option<Verdict> {
        let sock = self.job.sock;
        self.cursor.advance(n, |_, _| ());
        self.job.done += n;
        if self.job.done != self.total {
            return None;
        }
        direct::end_turn(sock);
        drop(section);
        Some(finish(sock, self.total))
    }

    unsafe fn by_tcp(
        &mut self,
        section: Section<'static>,
        io_wait: &mut IoWait,
    ) -> Option<Verdict> {
        let job = &mut self.job;
        let sock = job.sock;
        after_tcp::acts_on(sock);
        // If the caller's number is closed, or another file's by now, the library must make the
        // call.
        if job.done == 0 && job.fd == self.given && !self.is_large {
            if job.is_interrupted() {
                return Some(Verdict::Failed(Error::Interrupted));
            }
            sock.tx.call_begins();
            return Some(Verdict::Pass(Pass::tx(sock)));
        }
        job.note();
        // SAFETY: `send`'s caller guarantees the buffers. Under the lock no switch and no close
        // comes between the look and the call.
        let rest = unsafe { rest_to_kernel(job, &mut self.cursor) };
        if rest == Rest::Full && sock.tx.state() == State::Proved && !job.is_nonblocking() {
            // When TCP has room again, the ring may be ready instead.
            return job.pause(section, Room::Resending, Some(io_wait));
        }
        drop(section);
        match rest {
            Rest::Cut => return Some(job.cut_off(self.total)),
            Rest::Over => return Some(job.partly(Error::Reset)),
            Rest::Failed(error) => return Some(Verdict::Failed(error)),
            Rest::Moved | Rest::Full => {}
        }
        if job.done == self.total {
            return Some(finish(sock, job.done));
        }
        if self.is_large {
            trigger::amid(sock, &mut self.patience);
        }
        if rest == Rest::Full {
            if job.is_nonblocking() {
                return Some(job.partly(Error::WouldBlock));
            }
            if !job.waited {
                recv::note_limit(sock, job.fd, io_wait);
            }
            let deadline = job.deadline();
            job.waited = true;
            job.leave_word(io_wait);
            if wait::for_kernel(&sock.tx, job.fd, libc::POLLOUT, deadline, io_wait) {
                return Some(Verdict::Block);
            }
        }
        None
    }
}

fn finish(sock: &'static Socket, done: usize) -> Verdict {
    if sock.offset() >= sock.next_try.load(Ordering::Relaxed) {
        trigger::crossed(sock, false);
    }
    Verdict::Done(done as isize)
}

/// How far TCP took a call that the library makes.
#[derive(PartialEq, Eq)]
enum Rest {
    Moved,
    Full,
    /// Nothing more can be written; the next call gets the error.
    Over,
    /// TCP was reset by the peer.
    Cut,
    /// TCP has taken nothing of the call.
    Failed(Error),
}

/// Writes as much as TCP takes without waiting: the rest of a send that began on the link, or one
/// piece of a large one. Call under the tx lock.
unsafe fn rest_to_kernel(job: &mut Job, cursor: &mut Cursor) -> Rest {
    let Job {
        sock, fd, flags, ..
    } = *job;
    let mut room = [iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; 64];
    let most = cursor.most();
    let piece = if meeting::is_meeting() {
        PIECE
    } else {
        LONG_PIECE
    };
    cursor.limit(most.min(piece));
    // More than 64 buffers take more than one call.
    let pieces = cursor.rest(&mut room);
    cursor.limit(most);
    // An error is left to the next call: a try would consume it.
    if pieces.is_empty() {
        return Rest::Over;
    }
    let is_first = job.done == 0;
    if !is_first && sys::has_error(fd) {
        return Rest::Cut;
    }
    // SAFETY: zeroes are a valid header.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = pieces.as_mut_ptr();
    msg.msg_iovlen = pieces.len();
    // No SIGPIPE here: part of the call may have been sent.
    let asked = flags | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    sock.tx.call_begins();
    // SAFETY: `send`'s caller guarantees the buffers, which `msg` lists; `pieces` outlives the
    // call.
    let sent = unsafe { sys::sendmsg(fd, &raw const msg, asked) };
    call_by_tcp_ends(sock, sent.unwrap_or(0), |call| {
        // SAFETY: the kernel has just read these bytes from the same buffers.
        unsafe { prefix::moved(call, pieces.as_ptr(), pieces.len()) };
    });
    match sent {
        Ok(n) => {
            cursor.advance(n, |_, _| ());
            job.done += n;
            Rest::Moved
        }
        Err(libc::EAGAIN) => Rest::Full,
        Err(libc::EINTR) => Rest::Moved,
        // The hook raises SIGPIPE unless the program asked for none.
        Err(libc::EPIPE) if is_first => Rest::Failed(Error::BrokenPipe { raise: true }),
        Err(errno) if is_first => Rest::Failed(Error::Kernel(errno)),
        // EPIPE is no reset: this end may have been shut down in between.
        Err(libc::ECONNRESET) => Rest::Cut,
        Err(_) => Rest::Over,
    }
}

/// Ends a counted call of which TCP has taken `n` bytes; `note` keeps them if the connection's
/// first bytes are being kept.
fn call_by_tcp_ends(sock: &'static Socket, n: usize, note: impl FnOnce(Moved)) {
    if sock.prefix.wants(Way::Out) {
        note(Moved {
            sock,
            way: Way::Out,
            n: n as isize,
            ahead: false,
        });
    }
    sock.tx.call_ends(n as u64);
    sock.conn().tx.bytes.tcp.add(n as u64);
}

/// Finds where bytes may go, and how many of `left`. Call with the tx lock held.
#[inline]
pub(super) fn look(sock: &'static Socket, left: usize) -> Room {
    if sock.tx.state() != State::Link {
        return look_off_link(sock);
    }
    if fault::strikes() {
        demote::settle_tx(sock, Reason::Fault);
        return Room::Leaves(Reason::Fault);
    }
    if sock.staged.has_begun() {
        sock.staged.stage(sock.fd.load(Ordering::Relaxed));
    }
    let (Some(dir), Some(ring)) = (sock.tx.dir(), sock.tx.ring()) else {
        return Room::Kernel;
    };
    let at = sock.tx.at.load(Ordering::Relaxed);
    let most = u64::from(sock.tx.unread_max.load(Ordering::Relaxed));
    let mut seen = sock.tx.seen.load(Ordering::Relaxed);
    let (portion, rest) = if left <= PUBLISH {
        (PUBLISH, 0)
    } else {
        let carrier = sock.carrier();
        if carrier.lends && carrier::goes_direct(sock) {
            // All at once if the reader has lent a buffer.
            (left, 0)
        } else {
            (carrier.portion, carrier.rest)
        }
    };
    // The cached head is refreshed only when it leaves too little room.
    if at - seen + (left.min(portion) as u64) > most {
        if let Some(link) = sock.link() {
            links::drive(link);
        }
        let head = dir.rx.head.read();
        if head.flagged {
            demote::settle_tx(sock, Reason::PeerDemoted);
            return Room::Again;
        }
        if head.offset > at || head.offset < seen || at >= OFFSET_MAX {
            if at >= OFFSET_MAX {
                demote::settle_tx(sock, Reason::Limit);
                return Room::Again;
            }
            // Impossible: the reader lies about its head.
            sock.pin(Reason::PeerHostile);
            demote::settle_tx(sock, Reason::PeerHostile);
            return Room::Again;
        }
        seen = head.offset;
        sock.tx.seen.store(seen, Ordering::Relaxed);
    }
    // Negative if the program has just made the send buffer smaller.
    let room = most.saturating_sub(at - seen);
    if room == 0 {
        return Room::Full;
    }
    let fits = left.min(room as usize);
    // A small rest after a whole portion goes with it: it is not worth a message.
    let now = if fits <= portion + rest {
        fits
    } else {
        portion
    };
    Room::Bytes(ring, at, now)
}

#[cold]
fn look_off_link(sock: &'static Socket) -> Room {
    match sock.tx.state() {
        State::Proved => {
            let sealed = sock
                .tx
                .dir()
                .is_some_and(|d| d.tx.tail.read().flagged || d.rx.head.read().flagged);
            if sealed {
                demote::settle_tx(sock, Reason::PeerDemoted);
                return Room::Again;
            }
            match upgrade::try_switch(sock) {
                Switch::Done => Room::Again,
                Switch::Later => Room::Kernel,
                Switch::Never(reason) => {
                    sock.pin(reason);
                    demote::settle_tx(sock, reason);
                    Room::Leaves(reason)
                }
            }
        }
        State::Resending => match resend::now(sock) {
            Resent::All => Room::Again,
            Resent::NoRoom | Resent::Held if sock.shut.load(Ordering::Relaxed) => Room::Shut,
            Resent::NoRoom => Room::Resending,
            Resent::Held => Room::Held,
            // Under the lock there is no other call of this thread's.
            Resent::Amid => Room::Again,
        },
        State::Inherited => {
            demote::settle_tx(sock, Reason::Fork);
            match sock.tx.state() {
                State::Inherited => Room::Resending,
                _ => Room::Leaves(Reason::Fork),
            }
        }
        _ => Room::Kernel,
    }
}

/// Publishes `n` bytes written at `at`. False: the stream is sealed and they are not on the link.
/// Call with the tx lock held.
#[inline]
pub fn publish(sock: &'static Socket, at: u64, n: usize) -> bool {
    let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) else {
        return false;
    };
    let to = at + n as u64;
    if dir.rx_wishes.is_over() {
        refused(sock, to);
        return true;
    }
    dir.tx
        .cpu
        .store(sluice_runtime::thread::cpu(), Ordering::Relaxed);
    if dir.tx.tail.advance(at, to).is_err() {
        demote::settle_tx(sock, Reason::PeerDemoted);
        return false;
    }
    fence_after_rmw();
    sock.tx.at.store(to, Ordering::Relaxed);
    if !sock.tx.resident.load(Ordering::Relaxed) {
        trim::note(sock, at);
    }
    let waiters = dir.rx_wishes.waiters.load(Ordering::Relaxed);
    let rung = wake::peer(link, waiters, sock.index.load(Ordering::Relaxed));
    if rung != 0 {
        sock.conn().tx.doorbells.add(rung);
    }
    sock.tx.linked.store(
        sock.tx.linked.load(Ordering::Relaxed) + n as u64,
        Ordering::Relaxed,
    );
    true
}

/// The reader did SHUT_RDWR with unread data. Later bytes must go over TCP so that its kernel
/// answers RST; the bytes just written, up to `to`, are withdrawn from the ring. Call with the tx
/// lock held.
#[cold]
fn refused(sock: &'static Socket, to: u64) {
    let at = sock.tx.at.swap(to, Ordering::Relaxed);
    let linked = sock.tx.linked.load(Ordering::Relaxed);
    sock.tx.linked.store(linked + (to - at), Ordering::Relaxed);
    demote::settle_tx_since(sock, Reason::Shutdown, Some(at));
}
