//! A socket that the program is through with, by its last close or its own end: what is still to be
//! sent, and by which thread.

use crate::demote::{self, Which};
use crate::finish::{self, Patience};
use crate::socket::{self, Event, SETS, Socket, State};
use crate::{direct, jobs, leave, report, resend, tcp, unread_copy, why};
use core::sync::atomic::Ordering;
use libc::c_int;
use sluice_fabric::sys;
use sluice_runtime::{control_thread, own_fds};
use sluice_stats::Reason;

/// The last descriptor is about to be closed, `fd`, while bytes lie unread in the copy: the kernel,
/// which does not know of them, is to reset the connection as if it had them.
pub fn reset_if_unread(sock: &'static Socket, fd: c_int) {
    if unread_copy::unread(sock, fd) != 0 && !sock.is_shared() {
        sock.staged.set_linger(fd, Some(0));
    }
}

/// This process parts with the stream for good (close, exit), while the kernel's socket is still
/// open: what was written goes to TCP; with unread input the connection is to be reset, as TCP
/// does. Whether the peer's library, on another host, may write a word of its own on TCP.
pub fn part(sock: &'static Socket, reason: Reason) -> bool {
    let inherited = sock.rx.state() == State::Inherited || sock.tx.state() == State::Inherited;
    if inherited {
        // The parent's stream: the child's close is none of its business.
        abandon_inherited(sock);
        return false;
    }
    let far = sock.carrier().ends_by_record;
    let (mut on_link, mut unread) = (false, false);
    if let Ok(_section) = sock.rx.lock.enter()
        && let Some(d) = sock.rx.dir()
    {
        let tail = d.tx.tail.read();
        on_link = d.tx_wishes.switched.load(Ordering::Acquire) == 1;
        unread = on_link
            && !d.rx.head.read().flagged
            && tail.offset != sock.rx.at.load(Ordering::Relaxed);
    }
    let alone = !sock.is_shared();
    if alone && far {
        let fd = sock.fd.load(Ordering::Relaxed);
        if unread || sock.staged.linger(fd) == Some(0) {
            crate::remote::deliver(sock);
        }
    }
    if unread && alone {
        // Our own unread bytes stay in the ring for the peer; the kernel's reset follows.
        sock.staged
            .set_linger(sock.fd.load(Ordering::Relaxed), Some(0));
        leave_to_peer(sock, Reason::LingerReset);
        return false;
    }
    // No new try.
    sock.pinned.store(reason as u32, Ordering::Relaxed);
    demote::demote(sock, Which::Both, reason);
    if alone {
        finish::make_room(sock);
    } else if sock.carrier().ends_by_record {
        // Only this process can bring it to TCP for its relatives.
        finish::blocking(sock, Reason::Fork);
    }
    far && on_link
}

/// Is a socket that the program is through with still in use here?
pub(super) fn goes_on(sock: &Socket) -> bool {
    sock.tx.state() == State::Resending || crate::remote::awaits_record(sock)
}

/// The last descriptor `fd` is about to be closed while TCP has no room for all that is to be sent
/// again: the reader is slow, and the program had filled TCP before. True: the connection lives on
/// under a number of ours, until the control thread has sent the rest. False: nothing is left to
/// send.
pub(super) fn linger(sock: &'static Socket, fd: c_int) -> bool {
    let alone = !sock.is_shared();
    let unread = crate::remote::has_input(sock, fd);
    let seconds = sock.staged.linger(fd);
    if alone && (unread || seconds == Some(0)) {
        // The kernel resets the connection, and drops what it has not sent, too.
        return false;
    }
    if let Some(seconds) = seconds.filter(|_| alone) {
        let end = sys::now_ns().saturating_add(seconds.max(0) as u64 * 1_000_000_000);
        let sent = finish::parting(sock, Patience::Until(end));
        let rest = end.saturating_sub(sys::now_ns()).div_ceil(1_000_000_000);
        // For the close that follows, the rest of the time; or none, for the control thread's.
        sock.staged
            .set_linger(fd, sent.then_some(rest.max(1) as c_int));
        if sent {
            return false;
        }
    }
    let own = (control_thread::is_running() && (alone || seconds.is_none()))
        // With relatives that hold the file, its registrations stay.
        .then(|| !alone || withdraw(sock, fd))
        .filter(|&gone| gone)
        .and_then(|_| {
            let _low = own_fds::Low::begin();
            own_fds::copy(fd)
        });
    let Some(own) = own else {
        if alone && seconds.is_none() && !sock.carrier().ends_by_record {
            // No number for it: as of a process that ends here, the reader has kept a copy of what
            // TCP lacks, and finds it in front of the end.
            resend::abandon_rest(sock);
        } else {
            finish::parting(sock, Patience::Endless);
        }
        return false;
    };
    jobs::unwatch(sock);
    for i in 0..SETS {
        sock.leave_set_at(i);
    }
    let mut later = false;
    // A thread that ends it finds that it lingers, or has done so by now.
    let rx = sock.rx.lock.enter();
    if let Ok(_tx) = sock.tx.lock.enter()
        && goes_on(sock)
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
        let _ = own.release();
    } else {
        own_fds::forget(own.raw());
    }
    later
}

/// For how long a closed connection that has sent all waits for its peer's word: as long as the
/// kernel waits for a peer's end (tcp_fin_timeout, tcp(7)).
const LINGERS_NS: u64 = 60_000_000_000;

/// Under the tx lock: nothing follows what there is to send, and the peer's program is to see so,
/// though its library may have no word for us.
fn end_sending(sock: &'static Socket) {
    if sock.tx.state() == State::Plain {
        let _ = sys::shutdown(sock.fd.load(Ordering::Relaxed), libc::SHUT_WR);
    } else {
        sock.shut.store(true, Ordering::Relaxed);
    }
}

/// The process ends, and nobody is left to go on with a re-send: waits until TCP has taken all of
/// it, unless the connection is to be reset, or its other end is this process's own.
pub fn part_waiting(sock: &'static Socket) {
    let fd = sock.fd.load(Ordering::Relaxed);
    if !goes_on(sock) {
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

/// After [`part`], which has said that the peer's library may write a word of its own, and as the
/// last before the kernel closes the connection: if that word came first it would be unread input,
/// which makes a reset of the end. So the end goes first.
pub fn end_before_record(sock: &'static Socket, fd: c_int) {
    let resets = sock.staged.linger(fd) == Some(0);
    let alone = !sock.is_shared() && sock.tx.in_kernel() == 0;
    if !resets && alone && !tcp::has_bytes(fd) {
        let _ = sys::shutdown(fd, libc::SHUT_WR);
    }
}

/// Does this process alone hold the other end?
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
/// would at the end of its file. False: not possible.
pub(super) fn withdraw(sock: &'static Socket, fd: c_int) -> bool {
    let mut gone = true;
    for set in (0..SETS).filter_map(|i| sock.set_at(i)) {
        gone &= set.withdraw(sock, fd);
    }
    gone
}

/// A lingering connection has nothing left to send: its last descriptor is closed, unless the peer
/// has a word to say. Also then, if that is `late`.
pub fn close_when_drained(sock: &'static Socket, late: bool) {
    if sock.tx.state() != State::Plain || !sock.lingers.load(Ordering::Acquire) {
        return;
    }
    if !late && crate::remote::awaits_record(sock) {
        return jobs::close_when_drained_by(sock, sys::now_ns() + LINGERS_NS);
    }
    if !sock.lingers.swap(false, Ordering::AcqRel) {
        return;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    // The end of the process, which waited for this, finds it here as long as it has no line.
    crate::report::finished(sock);
    sock.fds.store(0, Ordering::Release);
    leave_and_free(sock);
    own_fds::close(fd);
}

/// No descriptor is left: takes the structure out of all that names it, and puts it back.
pub(super) fn leave_and_free(sock: &'static Socket) {
    resend::abandon_rest(sock);
    if sock.carrier().ends_by_record {
        demote::abandon(sock, Reason::Close);
    }
    // A thread that leaves the stream tells the sets, and finds them by the structure.
    sock.synchronize_locks();
    for i in 0..SETS {
        sock.leave_set_at(i);
    }
    report::finished(sock);
    socket::free(sock);
}

/// A close with unread input: what we wrote stays in the ring for the peer, which drains it and
/// then sees the reset. Only the reading half's words are fixed, so that the peer's writes reach
/// the kernel.
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
            // Where the peer has ended its side nothing is read from the stream any more, either.
            leave::leave(sock);
        }
    }
    if let Ok(_section) = sock.rx.lock.enter() {
        drop_unread(sock);
    }
    demote::demote(sock, Which::Rx, reason);
}

/// Under the rx lock: takes what is unread out of the ring. The peer would send it again, and if
/// the reset came in between its `send` would be told of that, and not the program.
fn drop_unread(sock: &Socket) {
    let (Some(dir), Some(ring)) = (sock.rx.dir(), sock.rx.ring()) else {
        return;
    };
    let at = sock.rx.at.load(Ordering::Relaxed);
    let (tail, head) = (dir.tx.tail.read(), dir.rx.head.read());
    let possible = tail.offset > at && tail.offset - at <= ring.len();
    if possible && !tail.flagged && dir.rx.head.consume(head.round, at, tail.offset).is_ok() {
        sock.rx.at.store(tail.offset, Ordering::Relaxed);
    }
}

/// In the child of a fork: what lingers is the parent's to finish.
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
