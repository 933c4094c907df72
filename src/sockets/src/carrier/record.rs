//! The record that this end writes to TCP when a stream is demoted. It says where the link's bytes
//! end; `record_rx` reads the peer's.
//!
//! [`before_resend`] writes it as the half enters `Resending`, before any other byte. An end that
//! is through with the connection says in its record that it is the last: the peer then writes
//! none. One that the peer wrote at the same time crosses that word, and `drop_crossing` removes
//! it.
//!
//! Locks: [`before_resend`] and [`may_finish`] are called with the tx lock held, the others with
//! any. The endpoint's lock is the innermost, and is not held while TCP is read or written.
//!
//! A change must keep these rules:
//! - No byte of a re-send precedes the end of the record: `Ready` is told only when no rest is due.
//! - An error of the socket is the program's to see. A `send` would take it, so none is made then.
//! - TCP is not closed on a record that is unread or under way: the kernel would answer with an
//!   RST, which drops what this end has sent.
//! - `may_cross` asks first whether TCP has acknowledged everything, and then for the record.

use super::Before;
use super::link::of;
use crate::socket::Socket;
use crate::{jobs, options, tcp};
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_stats::Reason;
use sluice_stream::record::{Leave, Out, RECORD_LEN};
use sluice_transport::verbs::endpoint::Endpoint;

/// Leaves the stream, in the way that `how` says.
pub fn leave_stream(sock: &Socket, endpoint: &Endpoint, stream: u16, how: Leave) {
    if how == Leave::Hand {
        sock.handed.store(true, Ordering::Relaxed);
    }
    // What has arrived by now counts as received.
    endpoint.drive();
    endpoint.with_stream(stream, |pump| {
        if let Some(transit) = pump.transit(stream) {
            transit.leave(how);
        }
        pump.settle(stream);
    });
}

/// Leaves the stream so that the peer writes no record: both halves are shut down, and the kernel
/// would answer it with an RST.
pub fn wants_no_answer(sock: &'static Socket) {
    if let Some((endpoint, stream)) = of(sock) {
        leave_stream(sock, endpoint, stream, Leave::Close);
    }
}

/// Writes the record, if one is due. Call with the tx lock held, in state Resending.
pub fn before_resend(sock: &'static Socket) -> Before {
    let Some((endpoint, stream)) = of(sock) else {
        return Before::Over;
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    let left = endpoint.with(|pump| pump.transit(stream).is_none_or(|t| t.is_leaving()));
    if left == Some(false) {
        // The stream was given up in a handler that interrupted this thread's own driving: the pump
        // has not heard of it.
        leave_stream(sock, endpoint, stream, Leave::Shut);
    }
    loop {
        let now = endpoint.with(|pump| {
            let mut record = [0u8; RECORD_LEN];
            let rest = pump.record(stream).map_or(0, |rest| {
                for (to, from) in record.iter_mut().zip(rest) {
                    *to = *from;
                }
                rest.len()
            });
            let transit = pump.transit(stream)?;
            let dead = transit.is_dead().is_some();
            if rest == 0 && !dead && matches!(transit.out(), Out::Tcp(_)) {
                transit.on_tcp_write();
            }
            Some((record, rest, transit.out(), dead))
        });
        let Some(Some((record, rest, out, dead))) = now else {
            return if endpoint.is_interrupted() {
                Before::Held
            } else {
                Before::Over
            };
        };
        if dead {
            return Before::Over;
        }
        if rest == 0 {
            return match out {
                Out::Tcp(from) => Before::Ready(from.value()),
                Out::Link | Out::Held => Before::Held,
            };
        }
        if sys::has_error(fd) {
            // The error is the program's to see, and a send would take it.
            return Before::Over;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `record` lies in this frame, and `rest` is at most its length.
        match unsafe { sys::send(fd, record.as_ptr(), rest, flags) } {
            Ok(n) => {
                sock.tx.add_kernel_bytes(n as u64);
                endpoint.with(|pump| pump.on_record_written(stream, n));
                options::push_out(sock, fd);
            }
            Err(libc::EAGAIN) => return Before::Full,
            Err(libc::EINTR) => {}
            Err(_) => return Before::Over,
        }
    }
}

/// Copies the part of the peer's record that was removed from TCP before the rest came. Returns its
/// length.
pub(crate) fn part_of(endpoint: &Endpoint, stream: u16, head: &mut [u8; RECORD_LEN]) -> usize {
    let kept = endpoint.with(|pump| {
        let part = pump.part(stream);
        let room = head.iter_mut().zip(part);
        room.for_each(|(to, from)| *to = *from);
        part.len()
    });
    kept.unwrap_or(0)
}

/// Returns whether TCP may be closed once everything is re-sent. A record that crossed this end's
/// last word would meet a closed socket, whose kernel answers with an RST, so TCP must have
/// acknowledged everything first. Call with the tx lock held.
pub fn may_finish(sock: &'static Socket) -> bool {
    let Some((endpoint, stream)) = of(sock) else {
        return true;
    };
    let parting = [Reason::Close, Reason::Exit].map(|reason| reason as u32);
    let is_through = parting.contains(&sock.pinned.load(Ordering::Relaxed)) || sock.has_shut_both();
    !is_through || !may_cross(sock, endpoint, stream)
}

/// Returns whether a record of the peer may still come that crossed this end's last word. Removes
/// one that is here.
pub(super) fn may_cross(sock: &'static Socket, endpoint: &Endpoint, stream: u16) -> bool {
    let last = endpoint.with(|pump| pump.transit(stream).is_some_and(|t| t.said_last()));
    if last != Some(true) {
        return false;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    // Before the look for the record: what the peer wrote before it acknowledged our word is then
    // here.
    let acknowledged = sys::ioctl_int(fd, libc::TIOCOUTQ).unwrap_or(0) == 0;
    let may = !drop_crossing(endpoint, stream, fd) && !acknowledged && !sys::has_error(fd);
    if may {
        jobs::advance_soon(sock);
    }
    may
}

/// Returns whether the peer's record is still to come, to a socket that the program is through
/// with. A close before it comes would draw an RST, which drops what this end has sent.
pub fn awaits_record(sock: &Socket) -> bool {
    let awaits = of(sock).and_then(|(endpoint, stream)| {
        endpoint.with(|pump| pump.transit(stream).is_some_and(|t| t.awaits_record()))
    });
    let fd = sock.fd.load(Ordering::Relaxed);
    let comes = || !tcp::has_ended(fd) || tcp::unread(fd) > 0;
    awaits == Some(true) && comes()
}

/// Removes the peer's record that crossed our last word. Returns whether it was here.
pub(super) fn drop_crossing(endpoint: &Endpoint, stream: u16, fd: i32) -> bool {
    let mut head = [0u8; RECORD_LEN];
    let kept = part_of(endpoint, stream, &mut head);
    let rest = head.get_mut(kept..).unwrap_or_default();
    if tcp::unread(fd) < rest.len() as u64 {
        return false;
    }
    let receive = |rest: &mut [u8], flags| {
        let flags = flags | libc::MSG_DONTWAIT;
        // SAFETY: `rest` is a slice of `head`, which lies in this frame.
        unsafe { sys::recv(fd, rest.as_mut_ptr(), rest.len(), flags) }
    };
    let _ = receive(rest, libc::MSG_PEEK);
    let is = endpoint.with(|pump| pump.transit(stream).is_some_and(|t| t.is_crossing(&head)));
    let rest = head.get_mut(kept..).unwrap_or_default();
    is == Some(true) && receive(rest, 0).is_ok()
}
