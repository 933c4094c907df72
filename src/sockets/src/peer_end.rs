//! Streams within the host whose peer was killed: the outcome must be what TCP's would have been.

use crate::socket::{Socket, State, sock_of};
use crate::{demote, emulated_reset, tcp, unread_copy};
use core::sync::atomic::Ordering;
use sluice_fabric::shm::Link;
use sluice_stats::Reason;

/// Why a stream has lost its peer: the hostile peer that pinned the connection, or the peer's
/// death.
fn why_lost(sock: &Socket) -> Reason {
    match sock.pinned.load(Ordering::Relaxed) {
        pinned if pinned == Reason::PeerHostile as u32 => Reason::PeerHostile,
        _ => Reason::PeerDied,
    }
}

/// Handles a stream whose peer is lost. False: the peer left bytes of ours unread, and TCP has not
/// told yet what became of it. Then call again, at last with `finally`.
pub fn lose(link: &'static Link, index: u32, sock: &'static Socket, finally: bool) -> bool {
    // Checked under the locks: the structure may have been reused meanwhile.
    let still = || sock_of(link, index).is_some_and(|s| core::ptr::eq(s, sock));
    // A peer that had ended its writing, or was leaving, has told TCP, which has the FIN that the
    // program must see.
    demote::follow_rx(sock);
    // Asked once, and first: a peer that closes or shuts down changes a word on the link before its
    // FIN. A FIN that came between two looks would find bytes on TCP that prevent the reset.
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
                // Otherwise the peer may only have lost its control socket, or relatives of it hold
                // the socket.
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

/// The kernel reports an end beneath a link within the host, perhaps before this process hears of
/// the peer's death. If the peer was killed with bytes of ours unread, resets the connection as TCP
/// would have, and leaves later writes to TCP. Returns whether it was killed.
pub fn end_is_told(sock: &'static Socket) -> bool {
    sock.link().is_some_and(|link| {
        died(sock, is_unended) && lose(link, sock.index.load(Ordering::Relaxed), sock, false)
    })
}

/// Returns whether the peer was killed with bytes of ours unread: its FIN has come, and it had not
/// ended its side on the link. TCP would have answered these bytes by an RST. Call without the tx
/// lock.
pub(crate) fn died_with_unread(sock: &'static Socket) -> bool {
    died(sock, left_unread)
}

/// The same, whatever was read: TCP would answer later writes by an RST.
pub(crate) fn died_unended(sock: &'static Socket) -> bool {
    died(sock, is_unended)
}

/// Returns whether the peer's FIN has come and `is_so` holds on the link afterwards. Call without
/// the tx lock.
fn died(sock: &'static Socket, is_so: impl Fn(&Socket) -> bool) -> bool {
    let Ok(_section) = sock.tx.lock.enter() else {
        return false;
    };
    tcp::state(sock.fd.load(Ordering::Relaxed)) == Some(tcp::CLOSE_WAIT) && is_so(sock)
}

/// The peer's FIN has come, it left bytes of ours unread, and TCP holds unread input, perhaps with
/// more after it on the link. TCP would have been reset after that input, so the input is saved as
/// the unread copy, and then the reset is made.
fn reset_behind_input(sock: &'static Socket, still: impl Fn() -> bool) {
    let Ok(_rx) = sock.rx.lock.enter() else {
        return;
    };
    if let Ok(_tx) = sock.tx.lock.enter() {
        let fd = sock.fd.load(Ordering::Relaxed);
        if still()
            && left_unread(sock)
            && tcp::has_bytes(fd)
            // On the link, TCP's part was read before the ring's, so what TCP has now cannot
            // precede what is in the ring.
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

/// Returns whether the ring has unread bytes that are not sealed. Call under the rx lock.
fn has_input(sock: &'static Socket) -> bool {
    sock.rx.dir().is_some_and(|d| {
        let tail = d.tx.tail.read();
        !tail.flagged
            && d.tx_wishes.switched.load(Ordering::Acquire) == 1
            && tail.offset != sock.rx.at.load(Ordering::Relaxed)
    })
}

/// Returns whether the peer has not read everything written on the link, and is
/// [unended](is_unended). Exact under the tx lock, else a hint.
fn left_unread(sock: &Socket) -> bool {
    // The head is beyond `at` if an offer was taken that the writer has not seen yet.
    unended_head(sock).is_some_and(|head| head < sock.tx.at.load(Ordering::Relaxed))
}

/// Returns whether this end writes to the link and the peer has neither sealed it nor ended its
/// side. Exact under the tx lock, else a hint.
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
