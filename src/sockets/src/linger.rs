//! Closing a socket, or the end of the process: what is still to be re-sent, and by which thread.
//!
//! | function | called | what stays afterwards |
//! |---|---|---|
//! | [`part`] | at the last close, and for each socket at exit | a re-send, if TCP had no room |
//! | [`linger`] | at the last close, if that left something | the socket, on an own descriptor |
//! | [`part_waiting`] | at exit, the same | nothing: it waits |
//! | [`end_before_record`] | before the kernel's close, if a record may come | the FIN, sent |
//! | [`leave_to_peer`] | at a disconnect, a close with unread input | its bytes, in the ring |
//! | [`close_when_drained`] | by the control thread, and before a sandbox | nothing, once drained |
//! | [`leave_and_free`] | when no descriptor is left | nothing |
//! | [`disown`] | in a child, for what its parent lingers on | nothing here |
//! | [`abandon_inherited`] | in a child, for its parent's stream | nothing here |
//!
//! `demote::abandon` is not of this file: it leaves a stream between hosts at once, and what is
//! unread or unsent on the link is lost.
//! `resend::abandon_rest` ends a re-send: TCP lacks the rest, of which a reader on this host has a
//! copy.
//!
//! These functions but [`abandon_inherited`] are called with no lock held, and may wait:
//! [`part_waiting`] for ever, [`linger`] as long as SO_LINGER says, and longer only where no other
//! thread could send the rest.
//! Locks are taken for a step at a time, rx before tx. The program has no descriptor of the socket
//! any more, but other threads may still be in a call on it, and the control thread looks at it
//! until `fds` is 0 and the structure is free.
//!
//! A change must keep these rules:
//! - With unread input, or with SO_LINGER of 0 s, the kernel resets the connection, as on TCP.
//! - The FIN follows the last byte: a re-send ends before TCP's writing half.
//! - Only the last holder ([`Socket::is_shared`]) ends or resets the connection, or waits as
//!   SO_LINGER says: for relatives it goes on.
//! - What lingers has `lingers` set, and its number in `fd`, under both locks: a thread that ends
//!   the re-send then sees it, or has ended it before.

use crate::demote::{self, Which};
use crate::finish::{self, Patience};
use crate::socket::{self, Event, SETS, Socket, State};
use crate::{direct, jobs, leave, report, resend, unread_copy, why};
use core::sync::atomic::Ordering;
use libc::c_int;
use sluice_fabric::sys;
use sluice_runtime::{control_thread, own_fds};
use sluice_stats::Reason;

/// Called when the last descriptor, `fd`, is about to be closed. If the unread copy has bytes, the
/// kernel, which does not know of them, is made to reset the connection as it would with unread
/// input.
pub fn reset_if_unread(sock: &'static Socket, fd: c_int) {
    if unread_copy::unread(sock, fd) != 0 && !sock.is_shared() {
        sock.staged.set_linger(fd, Some(0));
    }
}

/// Gives the stream up for good (close, exit) while the kernel's socket is still open. What was
/// written goes to TCP; with unread input the connection will be reset, as on TCP. Returns whether
/// the peer's library, on another host, may still write a record to TCP.
pub fn part(sock: &'static Socket, reason: Reason) -> bool {
    if leaves_inherited(sock) {
        return false;
    }
    let ends_by_record = sock.carrier().ends_by_record;
    let (mut is_switched, mut unread) = (false, false);
    if let Ok(_section) = sock.rx.lock.enter()
        && let Some(d) = sock.rx.dir()
    {
        let tail = d.tx.tail.read();
        // As in `recv`, any other number than 0 is a switch.
        is_switched = d.tx_wishes.switched.load(Ordering::Acquire) != 0;
        unread = is_switched
            && !d.rx.head.read().flagged
            && tail.offset != sock.rx.at.load(Ordering::Relaxed);
    }
    let alone = !sock.is_shared();
    if alone && ends_by_record {
        let fd = sock.fd.load(Ordering::Relaxed);
        if unread || sock.staged.linger(fd) == Some(0) {
            crate::carrier::deliver(sock);
        }
    }
    if unread && alone {
        // What this end wrote stays in the ring for the peer to read; then it sees the kernel's
        // RST.
        sock.staged
            .set_linger(sock.fd.load(Ordering::Relaxed), Some(0));
        leave_to_peer(sock, Reason::LingerReset);
        return false;
    }
    // No further upgrade.
    sock.pinned.store(reason as u32, Ordering::Relaxed);
    demote::demote(sock, Which::Both, reason);
    if alone {
        finish::make_room(sock);
    } else if ends_by_record {
        // Only this process can bring the stream to TCP for its relatives.
        finish::blocking(sock, Reason::Fork);
    }
    ends_by_record && is_switched
}

/// The parent's stream: a child's close does not concern it. False: the stream is this process's
/// own, or another thread has brought it to TCP by now.
fn leaves_inherited(sock: &'static Socket) -> bool {
    if !sock.is_inherited() {
        return false;
    }
    // Another thread of the child may be using the stream. A handler in the middle of this thread's
    // own use goes on without the lock.
    let sections = [&sock.rx, &sock.tx].map(|half| half.lock.enter());
    let still = sock.is_inherited();
    if still {
        abandon_inherited(sock);
    }
    drop(sections);
    still
}

/// Returns whether a socket that the program has closed is still needed here.
pub(super) fn is_unfinished(sock: &Socket) -> bool {
    sock.tx.state() == State::Resending || crate::carrier::awaits_record(sock)
}

/// Called when the last descriptor, `fd`, is about to be closed while TCP has no room for
/// everything to be re-sent. True: the connection goes on under a descriptor of the library's,
/// until the control thread has re-sent the rest. False: `fd` may be closed now.
pub(super) fn linger(sock: &'static Socket, fd: c_int) -> bool {
    let alone = !sock.is_shared();
    let unread = crate::carrier::has_input(sock, fd);
    let seconds = sock.staged.linger(fd);
    if alone && (unread || seconds == Some(0)) {
        // The kernel resets the connection, and drops what it has not sent.
        return false;
    }
    if let Some(seconds) = seconds.filter(|_| alone) {
        let end = sys::now_ns().saturating_add(seconds.max(0) as u64 * 1_000_000_000);
        let sent = finish::parting(sock, Patience::Until(end));
        let rest = end.saturating_sub(sys::now_ns()).div_ceil(1_000_000_000);
        // The close that follows gets the rest of the time. If the re-send is unfinished, SO_LINGER
        // is turned off, since the control thread goes on.
        sock.staged
            .set_linger(fd, sent.then_some(rest.max(1) as c_int));
        if sent {
            return false;
        }
    }
    let Some(own) = own_descriptor(sock, fd) else {
        if alone && !sock.carrier().ends_by_record {
            // As at the end of a process, the reader has a copy of what TCP lacks, and reads it
            // before the FIN.
            resend::abandon_rest(sock);
        } else {
            // Longer than SO_LINGER says: nobody else could send the rest.
            finish::parting(sock, Patience::Endless);
        }
        return false;
    };
    jobs::unwatch(sock);
    for i in 0..SETS {
        sock.leave_set_at(i);
    }
    let mut later = false;
    // A thread that ends the re-send later sees `lingers`, or has ended it by now.
    let rx = sock.rx.lock.enter();
    if let Ok(_tx) = sock.tx.lock.enter()
        && is_unfinished(sock)
    {
        sock.fd.store(own.raw(), Ordering::Relaxed);
        sock.lingers.store(true, Ordering::Release);
        sock.fds.store(1, Ordering::Release);
        if alone {
            end_sending(sock);
        }
        jobs::watch_room(sock);
        if sock.tx.state() == State::Plain {
            jobs::close_when_drained_by(sock, sys::now_ns() + LINGERS_NS);
        }
        later = true;
    }
    drop(rx);
    if later {
        // The socket has it from here on, and closes it.
        let _ = own.release();
    } else {
        // The number is no longer entered as the library's, and `own` closes it.
        own_fds::forget(own.raw());
    }
    later
}

/// A descriptor to linger by. `None`: there is no control thread or no number for it, or a
/// registration of the socket would outlive the program's descriptor.
fn own_descriptor(sock: &'static Socket, fd: c_int) -> Option<sys::Fd> {
    if !control_thread::is_running() {
        return None;
    }
    // With relatives that hold the file, its registrations in epoll sets stay.
    if !sock.is_shared() && !withdraw(sock, fd) {
        return None;
    }
    let _low = own_fds::Low::begin();
    own_fds::copy(fd)
}

/// How long a closed connection that has re-sent everything waits for the peer's record: as long as
/// the kernel waits for a peer's FIN (tcp_fin_timeout, tcp(7)).
const LINGERS_NS: u64 = 60_000_000_000;

/// Ends what this end writes: by a FIN now, or after the re-send. The peer's program must see the
/// end even if its library sends no record. Call under the tx lock.
fn end_sending(sock: &'static Socket) {
    if sock.tx.state() == State::Plain {
        let _ = sys::shutdown(sock.fd.load(Ordering::Relaxed), libc::SHUT_WR);
    } else {
        sock.shut.store(true, Ordering::Relaxed);
    }
}

/// The process ends, so nobody would go on with a re-send: waits until TCP has taken all of it,
/// unless the connection is to be reset or the other end is in this process.
pub fn part_waiting(sock: &'static Socket) {
    let fd = sock.fd.load(Ordering::Relaxed);
    if !is_unfinished(sock) {
        return;
    }
    let resets = sock.staged.linger(fd) == Some(0);
    if !resets && !ends_here(sock, fd) {
        let alone = !sock.is_shared();
        if alone && let Ok(_section) = sock.tx.lock.enter() {
            end_sending(sock);
        }
        finish::parting(sock, Patience::Endless);
    }
    resend::abandon_rest(sock);
}

/// Sends the FIN before the peer's record comes. Call after [`part`] returned true, just before the
/// kernel closes the connection: a record that came first would be unread input and turn the close
/// into a reset.
pub fn end_before_record(sock: &'static Socket, fd: c_int) {
    let resets = sock.staged.linger(fd) == Some(0);
    let is_last = !sock.is_shared() && sock.tx.in_kernel() == 0;
    // A record that has come by now is taken out.
    if !resets && is_last && !crate::carrier::has_input(sock, fd) {
        let _ = sys::shutdown(fd, libc::SHUT_WR);
    }
}

/// Returns whether this process alone holds the other end.
fn ends_here(sock: &'static Socket, fd: c_int) -> bool {
    let Ok(inode) = sys::fstat(fd).map(|st| st.st_ino) else {
        return false;
    };
    let mut found = false;
    socket::for_all(|other| {
        found |= !core::ptr::eq(other, sock)
            && other.mirror.load(Ordering::Relaxed) == inode
            && !other.is_shared();
    });
    found
}

/// Takes a descriptor that is about to be closed out of the program's epoll sets, as the kernel
/// would with the last descriptor of a file. False: not possible.
pub(super) fn withdraw(sock: &'static Socket, fd: c_int) -> bool {
    let mut gone = true;
    for set in (0..SETS).filter_map(|i| sock.set_at(i)) {
        gone &= set.withdraw(sock, fd);
    }
    gone
}

/// Closes the last descriptor of a lingering connection that has nothing left to send. If the peer
/// still owes a record, only when that is `late`.
pub fn close_when_drained(sock: &'static Socket, late: bool) {
    if sock.tx.state() != State::Plain || !sock.lingers.load(Ordering::Acquire) {
        return;
    }
    if !late && crate::carrier::awaits_record(sock) {
        return jobs::close_when_drained_by(sock, sys::now_ns() + LINGERS_NS);
    }
    if !sock.lingers.swap(false, Ordering::AcqRel) {
        return;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    if !sock.is_shared() && sock.staged.linger(fd).is_some_and(|seconds| seconds > 0) {
        // Relatives had the socket at the program's close, and are gone: this close may not wait.
        sock.staged.set_linger(fd, None);
    }
    // The report at the end of the process waits for this, and finds the socket while it is
    // unreported.
    crate::report::finished(sock);
    sock.fds.store(0, Ordering::Release);
    leave_and_free(sock);
    own_fds::close(fd);
}

/// No descriptor is left: takes the socket out of everything that refers to it, and frees it.
pub(super) fn leave_and_free(sock: &'static Socket) {
    resend::abandon_rest(sock);
    if sock.carrier().ends_by_record {
        demote::abandon(sock, Reason::Close);
    }
    // A thread that is leaving the stream still tells the sets, which it finds by the socket.
    sock.synchronize_locks();
    for i in 0..SETS {
        sock.leave_set_at(i);
    }
    report::finished(sock);
    socket::free(sock);
}

/// Closes with unread input: what this end wrote stays in the ring for the peer, which reads it and
/// then sees the RST. Only the reading direction is demoted, so that the peer's writes reach the
/// kernel.
pub(crate) fn leave_to_peer(sock: &'static Socket, reason: Reason) {
    if sock.carrier().ends_by_record {
        return demote::abandon(sock, reason);
    }
    if let Ok(_section) = sock.tx.lock.enter() {
        if sock.tx.state() == State::Link && direct::is_up(sock) {
            direct::resolve(sock);
        }
        if sock.tx.state() != State::Plain {
            why::count(sock, reason);
            sock.tx.state.on(Event::LeftToPeer);
            sock.tx.set_dir(None);
            sock.conn().tx.holds_none();
            // If the peer has ended its side, the rx half is Plain, and the stream can be left.
            leave::leave(sock);
        }
    }
    if let Ok(_section) = sock.rx.lock.enter() {
        drop_unread(sock);
    }
    demote::demote(sock, Which::Rx, reason);
}

/// Drops what is unread in the ring. Otherwise the peer would re-send it, and its `send` would get
/// the reset that its program should see. Call under the rx lock.
fn drop_unread(sock: &Socket) {
    let (Some(dir), Some(ring)) = (sock.rx.dir(), sock.rx.ring()) else {
        return;
    };
    let at = sock.rx.at.load(Ordering::Relaxed);
    let (tail, head) = (dir.tx.tail.read(), dir.rx.head.read());
    // The peer's word may say anything.
    let fits_ring = tail.offset > at && tail.offset - at <= ring.len();
    if fits_ring && !tail.flagged && dir.rx.head.consume(head.round, at, tail.offset).is_ok() {
        sock.rx.at.store(tail.offset, Ordering::Relaxed);
    }
}

/// In the child of a fork: the parent finishes what lingers.
pub fn disown(sock: &'static Socket) {
    if !sock.lingers.swap(false, Ordering::AcqRel) {
        return;
    }
    abandon_inherited(sock);
    let fd = sock.fd.load(Ordering::Relaxed);
    sock.reported.store(true, Ordering::Relaxed);
    sock.fds.store(0, Ordering::Release);
    socket::free(sock);
    own_fds::close(fd);
}

pub(super) fn abandon_inherited(sock: &'static Socket) {
    sock.low_held.store(false, Ordering::Relaxed);
    for half in [&sock.rx, &sock.tx] {
        half.state.on(Event::Disowned);
        half.set_dir(None);
    }
    if let Some((link, index)) = sock.take_stream() {
        link.abandon_stream(index);
        if link.stream_count() == 0 {
            link.close_if_unused();
        }
    }
}
