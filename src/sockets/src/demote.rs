//! Taking a stream back to TCP: from either end, at any moment, without a message and without
//! waiting.

use crate::inherited::{self, Claim};
use crate::resend::{self, Resent};
use crate::socket::{Event, Half, Socket, State};
use crate::{carrier, leave, why};
use core::sync::atomic::Ordering;
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
    let inherited = sock.is_inherited();
    if !inherited && sock.carrier().ends_by_record && carrier::give_up(sock, reason) {
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
        return carrier::records::settle_rx(sock, reason);
    }
    carrier::words::settle_rx(sock, dir, reason);
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
    if on_link && sock.rx.is_sealed() {
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
    if matches!(sock.tx.state(), State::Link | State::Proved) && sock.tx.is_sealed() {
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
        return resend::goes_on(sock, carrier::records::settle_tx(sock, reason));
    }
    carrier::words::settle_tx(sock, dir, reason, since)
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
    let inherited = sock.is_inherited();
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
