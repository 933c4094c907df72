//! What TCP brings beneath a stream to another host: the peer's record, a FIN, an error.
//!
//! Once the peer's N is known, TCP is read up to N ([`enter_link`](crate::upgrade::enter_link)).
//! What it has next is the peer's record, and the program's bytes follow only after that. A thread
//! that finds TCP readable therefore hears it first.
//!
//! | rx | [`hear_tcp`] |
//! |---|---|
//! | `Link` | looks at the first bytes after N: a record, data, or too few of them (`hear_head`) |
//! | `Returning` | counts what the program has read of the re-sent bytes |
//! | any | asks whether reading goes back to TCP (`go_back`) |
//!
//! Locks: rx, then tx (`follow_tx`), then the endpoint's. [`hears`] takes the rx lock itself, and
//! [`has_input`] is called with none.
//!
//! A change must keep these rules:
//! - TCP's end is asked for before its bytes. Otherwise a record, and the RST after it, may come in
//!   between, and be taken for a TCP that ended without one.
//! - An error of the socket is the program's to see: `recv` is called only where bytes are.
//! - Bytes are removed after a peek has shown what they are, with the rx lock held all the while.
//! - What is removed is counted in the half and noted ([`note_removed`]), since the kernel may have
//!   told a set of it.

use super::link::{hides_tcp, is_remote, of, reads_link};
use super::record::{drop_crossing, part_of};
use super::records::{follow_tx, given_up, go_back};
use crate::socket::{Socket, State};
use crate::{jobs, path, tcp};
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::sys;
use sluice_stats::Reason;
use sluice_stream::record::{Head, RECORD_LEN};
use sluice_transport::verbs::endpoint::{Endpoint, Lost};

/// Looks at what TCP has, up to the peer's record. Returns whether the caller must look at the
/// socket again. Call with the rx lock held.
pub fn hear_tcp(sock: &'static Socket, fd: i32) -> bool {
    let Some((endpoint, stream)) = of(sock) else {
        return false;
    };
    let mut changed = false;
    if sock.rx.state() == State::Link {
        changed = hear_head(sock, fd, endpoint, stream);
    } else if sock.rx.state() == State::Returning {
        let read = sock.rx.kernel_bytes();
        endpoint.with(|pump| pump.on_tcp_read(stream, read));
    }
    go_back(sock, endpoint, stream) || changed
}

fn hear_head(sock: &'static Socket, fd: i32, endpoint: &Endpoint, stream: u16) -> bool {
    let read = sock.rx.from.load(Ordering::Relaxed);
    let at_head = endpoint.with_stream(stream, |pump| {
        let _ = pump.on_tcp_read(stream, read);
        pump.transit(stream).is_some_and(|t| t.is_at_head())
    });
    if at_head != Some(true) {
        return false;
    }
    // A recv that finds no bytes would take an error that the program is to see. Ask first whether
    // TCP is at its end, after which no bytes come.
    let over = tcp::has_ended(fd);
    if over {
        // The link has brought this before TCP's end.
        endpoint.drive();
    }
    let mut head = [0u8; RECORD_LEN];
    let kept = part_of(endpoint, stream, &mut head);
    let mut got = kept;
    if tcp::unread(fd) > 0 {
        let room = head.get_mut(kept..).unwrap_or_default();
        let peek = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: `room` is a slice of `head`, which lies in this frame.
        got += unsafe { sys::recv(fd, room.as_mut_ptr(), room.len(), peek) }.unwrap_or(0);
    } else if over && sys::has_error(fd) {
        // Only if TCP was at its end before its bytes were asked for: otherwise a record, and the
        // RST after it, may have come in between.
        endpoint.with(|pump| {
            if let Some(transit) = pump.transit(stream) {
                transit.on_tcp_error();
            }
            pump.settle(stream);
        });
        follow_tx(sock, Reason::PeerDied);
        return true;
    }
    let ended = over && got < RECORD_LEN;
    if got == kept && !ended {
        return false;
    }
    let head = head.get(..got).unwrap_or_default();
    let is = endpoint.with(|pump| {
        let transit = pump.transit(stream)?;
        transit.set_keeps((!sock.is_shared()).then_some(path::RING_SHORT));
        let is = transit.on_head(head, ended);
        let part = is == Head::Wait && transit.is_part(head);
        pump.settle(stream);
        Some((is, part))
    });
    let Some(Some((is, is_part))) = is else {
        return false;
    };
    match is {
        Head::Record => take_record(sock, fd, endpoint, stream, RECORD_LEN - kept),
        Head::Data => {
            follow_tx(sock, given_up(endpoint));
            true
        }
        Head::Wait if is_part => {
            // Left on TCP, the part would be reported as readable until the rest comes.
            let removed = remove(sock, fd, got - kept);
            let part = head.get(kept..kept + removed).unwrap_or_default();
            endpoint.with(|pump| pump.on_part_removed(stream, part));
            false
        }
        Head::Wait => is_dead_by_silence(sock, endpoint, stream),
    }
}

/// Removes the peer's record, of which TCP still has `len` bytes, and follows it.
fn take_record(
    sock: &'static Socket,
    fd: i32,
    endpoint: &Endpoint,
    stream: u16,
    len: usize,
) -> bool {
    let removed = remove(sock, fd, len);
    let asks = endpoint.with_stream(stream, |pump| {
        pump.on_record_removed(stream, removed as u64);
        pump.transit(stream).is_some_and(|t| t.peer_lost())
    });
    if asks == Some(true) {
        // The peer has lost the link, and its device may have no way to tell ours.
        endpoint.lose(Lost::Gone);
    }
    follow_tx(sock, given_up(endpoint));
    true
}

/// Called while only more bytes can tell whether those on TCP are a record. If none came for too
/// long, gives the connection up. Returns whether the peer is taken for dead.
fn is_dead_by_silence(sock: &'static Socket, endpoint: &Endpoint, stream: u16) -> bool {
    if is_silent(sock, endpoint, stream) {
        endpoint.with(|pump| {
            if let Some(transit) = pump.transit(stream) {
                transit.give_up();
            }
            pump.settle(stream);
        });
    }
    let dead = endpoint.with(|pump| pump.transit(stream).is_some_and(|t| t.is_dead().is_some()));
    if dead == Some(true) {
        follow_tx(sock, Reason::PeerDied);
    }
    dead == Some(true)
}

/// How long bytes may lie on TCP that may be a record's or the program's, in ns: as long as a link
/// may be silent. Meanwhile waits that TCP ends spin, since its level is reported again and again.
const UNDECIDED_NS: u64 = 2_000_000_000;

/// Returns whether such bytes have lain there for that long.
fn is_silent(sock: &'static Socket, endpoint: &Endpoint, stream: u16) -> bool {
    let undecided = endpoint.with(|pump| pump.transit(stream).is_some_and(|t| t.is_undecided()));
    if undecided != Some(true) {
        return false;
    }
    let now = sys::now_ns();
    let since = sock.undecided_ns.load(Ordering::Relaxed);
    if since == 0 {
        sock.undecided_ns.store(now, Ordering::Relaxed);
        jobs::advance_at(sock, now + UNDECIDED_NS);
    }
    since != 0 && now >= since + UNDECIDED_NS
}

/// Removes `len` bytes of a record from TCP. Returns how many it got. Call with the rx lock held,
/// after a peek has shown them: no other thread reads meanwhile.
fn remove(sock: &Socket, fd: i32, len: usize) -> usize {
    let mut gone = [0u8; RECORD_LEN];
    let len = len.min(RECORD_LEN);
    // SAFETY: `gone` lies in this frame, and `len` is at most its length.
    let removed = unsafe { sys::recv(fd, gone.as_mut_ptr(), len, libc::MSG_DONTWAIT) };
    let removed = removed.unwrap_or(0);
    sock.rx.add_kernel_bytes(removed as u64);
    note_removed(sock);
    removed
}

/// Notes that a record, or a part of one, was removed from the socket's TCP.
pub fn note_removed(sock: &Socket) {
    let count = REMOVED.fetch_add(1, Ordering::SeqCst) + 1;
    sock.heard.store(count, Ordering::SeqCst);
}

/// How often a record, or a part of one, was removed from TCP.
static REMOVED: AtomicU64 = AtomicU64::new(0);

/// How often this process has removed a record, or a part of one, from TCP. If a socket's
/// [`Socket::heard`] is later above this count, the kernel's events of that socket since then may
/// have been about the record.
pub fn records() -> u64 {
    REMOVED.load(Ordering::SeqCst)
}

/// Called when TCP is at its end while bytes of the link, or re-sent ones, are to come. Returns
/// whether the program sees that end; if not, the connection is reset. Call with the rx lock held.
pub fn tcp_ended(sock: &'static Socket) -> bool {
    let Some((endpoint, stream)) = of(sock) else {
        return true;
    };
    let read = sock.rx.kernel_bytes();
    let whole = endpoint.with_stream(stream, |pump| {
        let _ = pump.on_tcp_read(stream, read);
        let whole = pump.transit(stream).is_none_or(|t| t.on_tcp_end());
        pump.settle(stream);
        whole
    });
    if whole == Some(false) {
        go_back(sock, endpoint, stream);
        follow_tx(sock, Reason::PeerDied);
        return false;
    }
    true
}

/// Hears what TCP has, if that is not the program's. Returns whether some of it is left.
pub fn hears(sock: &'static Socket) -> bool {
    if reads_link(sock)
        && let Ok(_section) = sock.rx.lock.enter()
    {
        hear_tcp(sock, sock.fd.load(Ordering::Relaxed));
    }
    hides_tcp(sock)
}

/// Returns whether TCP holds bytes for the program, which reads no more. The peer's record is not
/// counted. Call with no lock held.
pub fn has_input(sock: &'static Socket, fd: i32) -> bool {
    if tcp::unread(fd) == 0 {
        return false;
    }
    if !is_remote(sock) {
        return true;
    }
    let hidden = hears(sock);
    if let Some((endpoint, stream)) = of(sock) {
        drop_crossing(endpoint, stream, fd);
    }
    !hidden && tcp::unread(fd) > 0
}
