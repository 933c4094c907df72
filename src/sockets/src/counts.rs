//! Counts of unread and unsent bytes for FIONREAD, SIOCOUTQ and TCP_INQ.

use crate::socket::{Socket, State};
use crate::unread_copy::{self, awaiting};
use crate::verdict::{Error, Pass, Verdict};
use crate::{carrier, demote, events, tcp};
use core::sync::atomic::Ordering;
use libc::c_int;
use sluice_fabric::layout::Direction;
use sluice_fabric::sys;
use sluice_runtime::caller;
use sluice_transport::links;

/// `ioctl` on a tracked socket.
///
/// # Safety
/// `arg` is an argument of a C caller's `ioctl` with this `request`.
pub unsafe fn ioctl(sock: &'static Socket, fd: c_int, request: u64, arg: usize) -> Verdict {
    let counts = request == libc::FIONREAD || request == libc::TIOCOUTQ;
    if counts && demote::takes_back_inherited(sock) && request == libc::FIONREAD {
        awaiting::await_all_owed(sock);
    }
    let total = match count(sock, fd, request) {
        Some(total) => total,
        None => return Verdict::Pass(Pass::NOBODY),
    };
    match total {
        Ok(total) => {
            if caller::cannot_write(arg, size_of::<c_int>()) {
                return Verdict::Failed(Error::BadAddress);
            }
            // SAFETY: `arg` is the caller's pointer to an int for these requests, and was found
            // writable.
            unsafe { core::ptr::write_unaligned(arg as *mut c_int, total) };
            Verdict::Done(0)
        }
        Err(e) => Verdict::Failed(Error::Kernel(e)),
    }
}

/// What FIONREAD or TIOCOUTQ counts; `None`: the kernel knows.
fn count(sock: &'static Socket, fd: c_int, request: u64) -> Option<Result<c_int, sys::Errno>> {
    let (count, kernel) = loop {
        if request == libc::FIONREAD {
            demote::follow_rx(sock);
            if sock.rx.owed.load(Ordering::Relaxed) != 0 {
                awaiting::await_owed(sock);
            }
        }
        let (of_ring, count) = match request {
            libc::FIONREAD if sock.rx.state() != State::Plain => (true, unread(sock)),
            libc::FIONREAD if sock.unread_copy.are_kept() => (false, unread_copy::unread(sock, fd)),
            libc::TIOCOUTQ if sock.tx.state() != State::Plain => (false, unsent(sock)),
            _ => return None,
        };
        let kernel = sys::ioctl_int(fd, request);
        // Bytes that have left the ring may have been counted on TCP already, and would count
        // twice.
        if !of_ring || count == 0 || unread(sock) != 0 {
            break (count, kernel);
        }
    };
    // What TCP holds after the peer's switch is a record, not bytes of the program.
    let of_link = request == libc::FIONREAD && carrier::hides_tcp(sock);
    Some(kernel.map(|kernel| {
        let kernel = if of_link { 0 } else { kernel };
        u64::try_from(kernel)
            .unwrap_or(0)
            .saturating_add(count)
            .min(c_int::MAX as u64) as c_int
    }))
}

/// What TCP_INQ reports after a read from a socket with a stream: bytes left, or 1 for the EOF
/// after them (`tcp_inq_hint`). A program that gets 0 waits for an edge of epoll, so 0 is returned
/// only if nothing is left for certain; if the count is 0, TCP is asked.
pub fn left_to_read(sock: &'static Socket, fd: c_int) -> c_int {
    if sock.has_shut_reading() {
        return 0;
    }
    let is_link = sock.rx.state() == State::Link;
    if is_link {
        let in_ring = unread(sock).min(c_int::MAX as u64) as c_int;
        if in_ring != 0 {
            return in_ring;
        }
    }
    let left = match count(sock, fd, libc::FIONREAD) {
        Some(left) => left,
        None => sys::ioctl_int(fd, libc::FIONREAD),
    };
    match left {
        Ok(0) if is_link && !is_offered(sock) && tcp::is_silent(fd) => 0,
        Ok(left @ 1..) => left,
        _ => 1,
    }
}

/// Returns whether the peer has an offer up, of bytes that are not in the ring.
fn is_offered(sock: &'static Socket) -> bool {
    let Ok(_section) = sock.rx.lock.enter() else {
        return true;
    };
    // 0: an offer is being written.
    let seen = [0, sock.direct.seen.load(Ordering::Relaxed)];
    let offers = |dir: &Direction| !seen.contains(&dir.offer.word.load(Ordering::Acquire));
    sock.rx.dir().is_none_or(offers)
}

/// Bytes in the ring that this end has not read.
pub fn unread(sock: &'static Socket) -> u64 {
    let Ok(_section) = sock.rx.lock.enter() else {
        return 0;
    };
    if let Some(link) = sock.link() {
        links::drive(link);
    }
    let count = sock.rx.dir().map_or(0, |d| {
        let tail = d.tx.tail.read();
        let switched = d.tx_wishes.switched.load(Ordering::Acquire) == 1;
        if switched && !tail.flagged {
            tail.offset.wrapping_sub(sock.rx.at.load(Ordering::Relaxed))
        } else {
            0
        }
    });
    let most = sock.rx.ring().map_or(0, |r| r.len());
    count.min(most)
}

/// Bytes that SIOCOUTQ adds to the kernel's. What lies in the ring has reached the peer, so TCP
/// would have it acknowledged unless its window is closed: only a full ring counts, and bytes being
/// re-sent.
pub(crate) fn unsent(sock: &'static Socket) -> u64 {
    let Ok(_section) = sock.tx.lock.enter() else {
        return 0;
    };
    if let Some(link) = sock.link() {
        links::drive(link);
    }
    match sock.tx.state() {
        State::Link if !events::has_room(sock) => sock.tx.dir().map_or(0, |d| {
            sock.tx
                .at
                .load(Ordering::Relaxed)
                .wrapping_sub(d.rx.head.read().offset)
        }),
        State::Resending => {
            let from = sock.tx.from.load(Ordering::Relaxed);
            sock.tx.at.load(Ordering::Relaxed).saturating_sub(from)
        }
        _ => 0,
    }
}
