//! What becomes of a stream within the host whose peer was killed: what TCP would have made of it.

use crate::socket::{Socket, State, sock_of};
use crate::{demote, emulated_reset, tcp, unread_copy};
use core::sync::atomic::Ordering;
use sluice_fabric::shm::Link;
use sluice_stats::Reason;

/// Why a stream has lost its peer: what keeps it on TCP for good from now on, or the peer's death.
fn why_lost(sock: &Socket) -> Reason {
    match sock.pinned.load(Ordering::Relaxed) {
        pinned if pinned == Reason::PeerHostile as u32 => Reason::PeerHostile,
        _ => Reason::PeerDied,
    }
}

/// The peer of a stream is lost. False: it left bytes of ours unread, and its kernel has not said
/// yet what became of it; ask again, and at last `finally`.
pub fn lose(link: &'static Link, index: u32, sock: &'static Socket, finally: bool) -> bool {
    // Under the lock: the structure may have been put to another use meanwhile.
    let still = || sock_of(link, index).is_some_and(|s| core::ptr::eq(s, sock));
    // One that had ended its writing, or was about to leave, has said so to TCP: that has the end
    // that the program is to see.
    demote::follow_rx(sock);
    // Asked once, and first: a peer that closes or shuts down changes a word on the link before,
    // and an end that comes between two looks would find what TCP holds in the way of the reset.
    let on_tcp = tcp::state(sock.fd.load(Ordering::Relaxed));
    if on_tcp == Some(tcp::CLOSE_WAIT) {
        reset_behind_input(sock, still);
    }
    if let Ok(_section) = sock.tx.lock.enter()
        && still()
        && matches!(sock.tx.state(), State::Link | State::Proved)
    {
        if left_unread(sock) {
            match on_tcp {
                // One that only lost its control socket lives on, as do relatives that hold its
                // socket.
                Some(tcp::CLOSE_WAIT) => drop(emulated_reset::make(sock)),
                Some(tcp::ESTABLISHED) if !finally => return false,
                _ => {}
            }
        }
        demote::settle_tx(sock, why_lost(sock));
    }
    if let Ok(_section) = sock.rx.lock.enter()
        && still()
        && sock.rx.state() != State::Plain
        && !has_input(sock)
    {
        demote::settle_rx(sock, why_lost(sock));
    }
    true
}

/// The kernel tells of an end beneath a link within the host, perhaps before this thread hears of
/// the peer: if that was killed with bytes of ours unread, what TCP would have made of these is
/// made now, and what is written from now on is TCP's to refuse. Whether it was.
pub fn end_is_told(sock: &'static Socket) -> bool {
    sock.link().is_some_and(|link| {
        died(sock, is_unended) && lose(link, sock.index.load(Ordering::Relaxed), sock, false)
    })
}

/// Under no tx lock: does the kernel have an end of the peer's, and has that left bytes of ours
/// unread without a word? Then it was killed, and TCP would have answered them by a reset.
pub(crate) fn died_with_unread(sock: &'static Socket) -> bool {
    died(sock, left_unread)
}

/// The same, whatever has been read: what is written from now on TCP would answer by a reset.
pub(crate) fn died_unended(sock: &'static Socket) -> bool {
    died(sock, is_unended)
}

/// Under no tx lock: does the kernel have an end of the peer's, and is it so, asked after that, of
/// what lies on the link?
fn died(sock: &'static Socket, is_so: impl Fn(&Socket) -> bool) -> bool {
    let Ok(_section) = sock.tx.lock.enter() else {
        return false;
    };
    tcp::state(sock.fd.load(Ordering::Relaxed)) == Some(tcp::CLOSE_WAIT) && is_so(sock)
}

/// The kernel has an end of the peer's. If that left bytes of ours unread, and of what it had sent
/// TCP holds some unread, perhaps with more after it on the link, TCP would have been reset after
/// that.
fn reset_behind_input(sock: &'static Socket, still: impl Fn() -> bool) {
    let Ok(_rx) = sock.rx.lock.enter() else {
        return;
    };
    if let Ok(_tx) = sock.tx.lock.enter() {
        let fd = sock.fd.load(Ordering::Relaxed);
        if still()
            && left_unread(sock)
            && tcp::has_bytes(fd)
            // On the link all of TCP's part has been read: whatever TCP has is not what comes
            // before the ring's.
            && (sock.rx.state() != State::Link || !has_input(sock))
            && unread_copy::may_keep_of_tcp(sock)
        {
            demote::settle_rx(sock, Reason::PeerDied);
            if unread_copy::keep_of_tcp(sock) {
                let _ = emulated_reset::make(sock);
                demote::settle_tx(sock, Reason::PeerDied);
            }
        }
    }
}

/// Under the rx lock: the ring has something that is not sealed.
fn has_input(sock: &'static Socket) -> bool {
    sock.rx.dir().is_some_and(|d| {
        let tail = d.tx.tail.read();
        !tail.flagged
            && d.tx_wishes.switched.load(Ordering::Acquire) == 1
            && tail.offset != sock.rx.at.load(Ordering::Relaxed)
    })
}

/// Under the tx lock, or as a guess: the peer has not read all that we wrote, and is
/// [unended](is_unended).
fn left_unread(sock: &Socket) -> bool {
    // Beyond: an offer that was taken, which our writer has not seen yet.
    unended_head(sock).is_some_and(|head| head < sock.tx.at.load(Ordering::Relaxed))
}

/// Under the tx lock, or as a guess: what we write goes by the link, and the peer has neither
/// demoted that nor ended its side.
pub fn is_unended(sock: &Socket) -> bool {
    unended_head(sock).is_some()
}

/// How far the peer has read, if it is [unended](is_unended).
fn unended_head(sock: &Socket) -> Option<u64> {
    if sock.tx.state() != State::Link {
        return None;
    }
    let dir = sock.tx.dir()?;
    let head = dir.rx.head.read();
    let leaves = head.flagged || dir.tx.tail.read().flagged;
    (!leaves && dir.rx_wishes.ended.load(Ordering::SeqCst) == 0).then_some(head.offset)
}
