//! Taking a stream back to TCP: from either end, at any moment, without a message and without
//! waiting.

use crate::inherited::{self, Claim, is_inherited};
use crate::resend::{self, Resent};
use crate::socket::{Event, Half, Socket, State};
use crate::{direct, leave, remote, tell, unread_copy, wake, why};
use core::sync::atomic::Ordering;
use sluice_fabric::words;
use sluice_stats::Reason;

/// Which directions to demote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// What this end reads.
    Rx,
    /// What this end writes.
    Tx,
    /// Both.
    Both,
}

/// Demotes. Idempotent. Returns at once; what TCP cannot take now is sent by the control thread.
pub fn demote(sock: &'static Socket, which: Which, reason: Reason) {
    let inherited = is_inherited(sock);
    if !inherited && sock.carrier().ends_by_record && remote::demote(sock, reason) {
        return;
    }
    // Relatives of a dead owner wait until its heir has left both halves.
    let which = if inherited { Which::Both } else { which };
    let is_on_link =
        |half: &Half| matches!(half.state(), State::Proved | State::Link | State::Inherited);
    if which != Which::Rx
        && sock.tx.state() != State::Plain
        && let Ok(_section) = sock.tx.lock.enter()
        && is_on_link(&sock.tx)
    {
        settle_tx(sock, reason);
    }
    if which != Which::Tx
        && sock.rx.state() != State::Plain
        && let Ok(_section) = sock.rx.lock.enter()
        && sock.rx.state() != State::Plain
    {
        settle_rx(sock, reason);
    }
}

/// Under the rx lock, in any state but Plain: fixes the words and reads TCP from now on.
pub fn settle_rx(sock: &'static Socket, reason: Reason) {
    if sock.rx.state() == State::Inherited && inherited::claim(sock, &sock.rx) != Claim::Own {
        return;
    }
    let Some(dir) = sock.rx.dir() else { return };
    if sock.carrier().ends_by_record {
        why::count(sock, reason);
        return remote::settle_rx(sock, reason);
    }
    // After both shutdowns the peer sends nothing again. And a peer whose TCP ended before it took
    // the stream back was killed.
    let whole = match sock.rx.state() {
        State::Link => sock.unread_copy.will_be_whole() || is_left(sock),
        State::Inherited => is_left(sock),
        _ => false,
    };
    why::tell(&dir.rx_wishes.why, reason);
    let (start, end) = words::demote(&dir.tx.tail, &dir.rx.head);
    why::count(sock, reason);
    if start != end {
        let from = match sock.rx.state() {
            State::Link => sock.rx.kernel_bytes(),
            _ => dir.tx_wishes.from.load(Ordering::Relaxed),
        };
        if sock.rx.state() == State::Inherited {
            unread_copy::count_parents_reads(sock, from);
        }
        let owed = from.wrapping_add(end.wrapping_sub(start));
        unread_copy::keep(sock, (start, end), owed, whole);
    }
    sock.rx.state.on(Event::Settled);
    if let Some(family) = sock.family() {
        family.hand_reading();
    }
    if let Some(link) = sock.link() {
        let index = sock.index.load(Ordering::Relaxed);
        wake::own_threads(link, dir.rx_wishes.waiters.load(Ordering::SeqCst), index);
        if start != end {
            // What the reader did not take is the writer's to send again; its process must hear of
            // it.
            tell::attention(link, index);
        }
    }
    sock.rx.set_dir(None);
    sock.conn().rx.holds_none();
    leave::leave(sock);
}

/// True if the peer's FIN arrived before either end sealed this direction: the peer was killed, so
/// nobody will resend the unread bytes. A peer that lives seals before TCP has any of them.
fn is_left(sock: &Socket) -> bool {
    unread_copy::has_ended(sock.fd.load(Ordering::Relaxed)) && !is_sealed(&sock.rx)
}

/// Has either end of the direction taken it back to TCP?
pub fn is_sealed(half: &Half) -> bool {
    half.dir()
        .is_some_and(|d| d.tx.tail.read().flagged || d.rx.head.read().flagged)
}

/// Before this end's FIN, by whichever way its bytes go: tells the peer that this is no killed
/// process. Called after the shut half is noted, which a stream that comes up meanwhile looks at.
pub(crate) fn tell_end(sock: &'static Socket) {
    // An inherited stream is on TCP by then.
    if sock.carrier().ends_by_record || is_inherited(sock) {
        return;
    }
    // Else a handler in the middle of this thread's own use of the half, which finds that as it
    // was.
    let _section = sock.rx.lock.enter();
    if let Some(dir) = sock.rx.dir() {
        dir.rx_wishes.ended.store(1, Ordering::SeqCst);
    }
}

/// The peer may have taken the stream back to TCP, and nobody has looked at it here since: what it
/// does not send again is the copy's.
pub(crate) fn follow_rx(sock: &'static Socket) {
    if sock.rx.state() == State::Plain {
        return;
    }
    let Ok(_section) = sock.rx.lock.enter() else {
        return;
    };
    let on_link = matches!(
        sock.rx.state(),
        State::Link | State::Proved | State::Draining
    );
    if on_link && is_sealed(&sock.rx) {
        settle_rx(sock, Reason::PeerDemoted);
    }
}

/// As [`follow_rx`]: what the peer has not read goes by TCP.
pub(crate) fn follow_tx(sock: &'static Socket) {
    if sock.tx.state() == State::Plain {
        return;
    }
    let Ok(_section) = sock.tx.lock.enter() else {
        return;
    };
    if matches!(sock.tx.state(), State::Link | State::Proved) && is_sealed(&sock.tx) {
        settle_tx(sock, Reason::PeerDemoted);
    }
}

/// Under the tx lock, in state Proved, Link or Inherited: fixes the words and begins to send again
/// what the reader did not take.
pub fn settle_tx(sock: &'static Socket, reason: Reason) -> Resent {
    settle_tx_since(sock, reason, None)
}

/// The same, where a reader has shut both halves down: what was written from `since` on is to meet
/// its kernel.
pub(crate) fn settle_tx_since(sock: &'static Socket, reason: Reason, since: Option<u64>) -> Resent {
    if sock.tx.state() == State::Inherited {
        match inherited::claim(sock, &sock.tx) {
            Claim::Given => return Resent::All,
            Claim::Later => return Resent::NoRoom,
            Claim::Own => {}
        }
    }
    let Some(dir) = sock.tx.dir() else {
        return Resent::All;
    };
    if sock.carrier().ends_by_record {
        why::count(sock, reason);
        return resend::goes_on(sock, remote::settle_tx(sock, reason));
    }
    if let Some(family) = sock.family() {
        family.begin_resend();
    }
    why::tell(&dir.tx_wishes.why, reason);
    let (start, end) = words::demote(&dir.tx.tail, &dir.rx.head);
    why::count(sock, reason);
    let ring_len = sock.tx.ring().map_or(0, |r| r.len());
    if sock.tx.state() == State::Inherited {
        // The parent has published more since the fork; only the shared word knows how much.
        if end.wrapping_sub(start) <= ring_len {
            sock.tx.at.store(end, Ordering::Relaxed);
        }
    }
    direct::settled(sock, start, end);
    // The tail is ours: nobody else advances it. The head is the peer's word: if it is not
    // possible, the last possible one stands.
    let at = sock.tx.at.load(Ordering::Relaxed);
    let start = if start <= at && at - start <= ring_len {
        start
    } else {
        sock.tx.seen.load(Ordering::Relaxed)
    };
    let linked = sock.tx.linked.load(Ordering::Relaxed);
    sock.tx
        .linked
        .store(linked.saturating_sub(at - start), Ordering::Relaxed);
    // A reader that has shut both halves down has what was there then, and keeps it: on TCP it
    // would reset the connection.
    let from = if dir.rx_wishes.is_over() {
        since.unwrap_or(at)
    } else {
        start
    };
    sock.tx.from.store(from, Ordering::Relaxed);
    sock.tx.state.on(Event::Sealed);
    if let Some(link) = sock.link() {
        wake::own_threads(
            link,
            dir.tx_wishes.waiters.load(Ordering::SeqCst),
            sock.index.load(Ordering::Relaxed),
        );
    }
    resend::goes_on(sock, resend::now(sock))
}

/// The stream, to another host, is given up as it is: the connection is to be reset, or TCP has all
/// that it is to have.
pub fn abandon(sock: &'static Socket, reason: Reason) {
    let Ok(_rx) = sock.rx.lock.enter() else {
        return;
    };
    if let Ok(_tx) = sock.tx.lock.enter() {
        why::count(sock, reason);
        sock.staged.unstage(sock.fd.load(Ordering::Relaxed));
        super::options::release_low(sock);
        for half in [&sock.rx, &sock.tx] {
            half.state.on(Event::Abandoned);
            half.set_dir(None);
        }
        sock.conn().rx.holds_none();
        sock.conn().tx.holds_none();
        leave::leave(sock);
    }
}

/// A use that does not move bytes: is the stream one of the parent's, which goes back to TCP now?
pub fn takes_back_inherited(sock: &'static Socket) -> bool {
    let inherited = is_inherited(sock);
    if inherited {
        demote(sock, Which::Both, Reason::Fork);
    }
    inherited
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linger::leave_to_peer;
    use crate::testing;

    #[test]
    fn a_stream_left_to_the_peer_behind_its_end_is_given_back() {
        let (a, b, index) = testing::link();
        let sock = testing::writer(a, b, index);
        assert_eq!((sock.rx.state(), a.stream_count()), (State::Plain, 1));
        leave_to_peer(sock, Reason::Disconnected);
        assert_eq!(sock.tx.state(), State::Plain);
        assert!(sock.link().is_none());
        assert_eq!(a.stream_count(), 0);
    }
}
