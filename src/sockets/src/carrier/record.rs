//! The record by which each end says, on TCP, where the link ended: this end's is written, and the
//! peer's is removed if it crossed this end's last word.

use super::Before;
use super::link::of;
use crate::socket::Socket;
use crate::{jobs, options, tcp};
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_stats::Reason;
use sluice_stream::record::{Leave, Out, RECORD_LEN};
use sluice_transport::verbs::endpoint::Endpoint;

/// Tells the pump that this end gives the stream up.
pub fn leave_stream(sock: &Socket, endpoint: &Endpoint, stream: u16, how: Leave) {
    if how == Leave::Hand {
        sock.handed.store(true, Ordering::Relaxed);
    }
    // What has come by now counts as received.
    endpoint.drive();
    endpoint.with_stream(stream, |pump| {
        if let Some(transit) = pump.transit(stream) {
            transit.leave(how);
        }
        pump.settle(stream);
    });
}

/// Both directions are shut down: the peer's record would meet a socket that answers by a reset.
pub fn wants_no_answer(sock: &'static Socket) {
    if let Some((endpoint, stream)) = of(sock) {
        leave_stream(sock, endpoint, stream, Leave::Close);
    }
}

/// Under the tx lock, in state Resending: writes the record, if one is due.
pub fn before_resend(sock: &'static Socket) -> Before {
    let Some((endpoint, stream)) = of(sock) else {
        return Before::Over;
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    let left = endpoint.with(|pump| pump.transit(stream).is_none_or(|t| t.is_leaving()));
    if left == Some(false) {
        // A handler that interrupted this thread's own driving has given the stream up.
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
            // It is the program's to see, and a send would take it.
            return Before::Over;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: bytes of ours.
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

/// Copies what of the peer's record was taken out of TCP before the rest had come; how much that
/// is.
pub(crate) fn part_of(endpoint: &Endpoint, stream: u16, head: &mut [u8; RECORD_LEN]) -> usize {
    let kept = endpoint.with(|pump| {
        let part = pump.part(stream);
        let room = head.iter_mut().zip(part);
        room.for_each(|(to, from)| *to = *from);
        part.len()
    });
    kept.unwrap_or(0)
}

/// Under the tx lock, when all is sent again: may TCP be closed? After the word that no record is
/// wanted one may be under way that crossed it, and would meet a closed socket, which resets: not
/// before TCP has acknowledged all.
pub fn may_finish(sock: &'static Socket) -> bool {
    let Some((endpoint, stream)) = of(sock) else {
        return true;
    };
    let parting = [Reason::Close, Reason::Exit].map(|reason| reason as u32);
    let is_through = parting.contains(&sock.pinned.load(Ordering::Relaxed)) || sock.has_shut_both();
    !is_through || !may_cross(sock, endpoint, stream)
}

/// After this end's word that it wants no record: may one of the peer's still come that crossed
/// it? One that is here is removed.
pub(super) fn may_cross(sock: &'static Socket, endpoint: &Endpoint, stream: u16) -> bool {
    let last = endpoint.with(|pump| pump.transit(stream).is_some_and(|t| t.said_last()));
    if last != Some(true) {
        return false;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    // First: what was written before TCP acknowledged our word is here after that.
    let acknowledged = sys::ioctl_int(fd, libc::TIOCOUTQ).unwrap_or(0) == 0;
    let may = !drop_crossing(endpoint, stream, fd) && !acknowledged && !sys::has_error(fd);
    if may {
        jobs::advance_soon(sock);
    }
    may
}

/// Is the peer's record under way to a socket that the program is through with? A close before it
/// comes would be answered by a reset, which takes what is under way from here.
pub fn awaits_record(sock: &Socket) -> bool {
    let awaits = of(sock).and_then(|(endpoint, stream)| {
        endpoint.with(|pump| pump.transit(stream).is_some_and(|t| t.awaits_record()))
    });
    let fd = sock.fd.load(Ordering::Relaxed);
    let comes = || !tcp::has_ended(fd) || tcp::unread(fd) > 0;
    awaits == Some(true) && comes()
}

/// Removes the peer's record that crossed our last word, if it is here.
pub(super) fn drop_crossing(endpoint: &Endpoint, stream: u16, fd: i32) -> bool {
    let mut head = [0u8; RECORD_LEN];
    let kept = part_of(endpoint, stream, &mut head);
    let rest = head.get_mut(kept..).unwrap_or_default();
    if tcp::unread(fd) < rest.len() as u64 {
        return false;
    }
    let receive = |rest: &mut [u8], flags| {
        let flags = flags | libc::MSG_DONTWAIT;
        // SAFETY: room of ours.
        unsafe { sys::recv(fd, rest.as_mut_ptr(), rest.len(), flags) }
    };
    let _ = receive(rest, libc::MSG_PEEK);
    let is = endpoint.with(|pump| pump.transit(stream).is_some_and(|t| t.is_crossing(&head)));
    let rest = head.get_mut(kept..).unwrap_or_default();
    is == Some(true) && receive(rest, 0).is_ok()
}
