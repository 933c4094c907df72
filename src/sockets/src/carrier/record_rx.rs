//! What TCP tells beneath a stream to another host: the peer's record, its end, its errors.
//!
//! From the moment in which the peer's N is known TCP is read up to there
//! ([`enter_link`](crate::upgrade::enter_link)), and brings nothing of the program's but after a
//! record. A thread that finds that TCP has something hears it first.

use super::link::{hides_tcp, is_remote, of, reads_link};
use super::record::{drop_crossing, part_of};
use super::records::{follow_tx, given_up, go_back};
use crate::socket::{Socket, State};
use crate::{jobs, tcp};
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::sys;
use sluice_stats::Reason;
use sluice_stream::record::{Head, RECORD_LEN};
use sluice_transport::verbs::endpoint::{Endpoint, Lost};

/// Under the rx lock: what TCP has to tell is looked at, up to the peer's record. True: look again.
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
    // A recv would take an error that the program is to see, unless it finds bytes. First whether
    // TCP is at its end: then no more come.
    let over = tcp::has_ended(fd);
    if over {
        // What the link has brought by now came before that.
        endpoint.drive();
    }
    let mut head = [0u8; RECORD_LEN];
    let kept = part_of(endpoint, stream, &mut head);
    let mut got = kept;
    if tcp::unread(fd) > 0 {
        let room = head.get_mut(kept..).unwrap_or_default();
        let peek = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: room of ours.
        got += unsafe { sys::recv(fd, room.as_mut_ptr(), room.len(), peek) }.unwrap_or(0);
    } else if over && sys::has_error(fd) {
        // Only of a TCP that was over before its bytes were looked for: else a record and the reset
        // after it may have come in between.
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
            // Left there it would be told as something to read until the rest has come.
            let removed = remove(sock, fd, got - kept);
            let part = head.get(kept..kept + removed).unwrap_or_default();
            endpoint.with(|pump| pump.on_part_removed(stream, part));
            false
        }
        Head::Wait => is_dead_by_silence(sock, endpoint, stream),
    }
}

/// The peer's record is here, `len` bytes of it on TCP still.
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
        // Its device may have no way to tell ours.
        endpoint.lose(Lost::Gone);
    }
    follow_tx(sock, given_up(endpoint));
    true
}

/// Bytes lie on TCP that only more can decide about. Have they for so long that the peer is taken
/// for dead, or is it already?
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

/// So long bytes may lie on TCP that could be a record's or the program's, as long as a link may be
/// silent. Meanwhile waits that TCP ends run in circles: a level is told again and again.
const UNDECIDED_NS: u64 = 2_000_000_000;

/// Have bytes that only more can decide about been there for that long?
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

/// Takes so many bytes of a record out of TCP: they lie there, a peek has shown them, and nobody
/// else reads.
fn remove(sock: &Socket, fd: i32, len: usize) -> usize {
    let mut gone = [0u8; RECORD_LEN];
    let len = len.min(RECORD_LEN);
    // SAFETY: room of ours.
    let removed = unsafe { sys::recv(fd, gone.as_mut_ptr(), len, libc::MSG_DONTWAIT) };
    let removed = removed.unwrap_or(0);
    sock.rx.add_kernel_bytes(removed as u64);
    note_removed(sock);
    removed
}

/// A record, or a part of one, was taken out of the socket's TCP.
pub fn note_removed(sock: &Socket) {
    let count = REMOVED.fetch_add(1, Ordering::SeqCst) + 1;
    sock.heard.store(count, Ordering::SeqCst);
}

/// Times that a record, or a part of one, was taken out of TCP.
static REMOVED: AtomicU64 = AtomicU64::new(0);

/// How many records, or parts of them, this process has taken out of TCP. If it takes one out of a
/// socket's later on ([`Socket::heard`]), what the kernel has told of that since may have been this
/// one.
pub fn records() -> u64 {
    REMOVED.load(Ordering::SeqCst)
}

/// Under the rx lock: TCP has come to its end while the link's bytes, or those that come after
/// them, are awaited. Whether the program sees that end; else the connection is reset.
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

/// Hears what TCP has to tell, if that is no byte of the program's; whether there is something of
/// that kind left.
pub fn hears(sock: &'static Socket) -> bool {
    if reads_link(sock)
        && let Ok(_section) = sock.rx.lock.enter()
    {
        hear_tcp(sock, sock.fd.load(Ordering::Relaxed));
    }
    hides_tcp(sock)
}

/// Under no lock, of a socket that the program is through with: does TCP hold bytes for it, which
/// nobody reads any more? The peer's record is none of them.
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
