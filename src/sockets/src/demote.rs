//! The way of a stream back to TCP. Either end may demote it, at any moment.
//!
//! A demotion fixes which bytes the reader has taken. The writer's end then re-sends the others on
//! TCP, and new bytes follow them. The carrier decides how:
//!
//! | | within the host (`carrier/cursors`) | between hosts (`carrier/records`) |
//! |---|---|---|
//! | directions | each by itself | both together |
//! | taken is | what the reader's word, the head, says | what the reader's record on TCP says |
//! | rx becomes | `Plain`; the unread is copied | `Returning` once the ring is read, then `Plain` |
//! | tx becomes | `Resending`, then `Plain` | the same; its own record goes to TCP first |
//!
//! Within the host a half takes these steps under its lock:
//!
//! 1. It tells the peer the reason (`why`), which the peer reads when it finds the words changed.
//! 2. The words: `cursors::demote` seals the tail, then seizes the head. From then on no byte can
//!    be published or consumed, and both ends see the same unread bytes.
//! 3. rx: it copies the unread bytes and notes them as owed.
//! 4. The state changes, by [`Event::Settled`] or [`Event::Sealed`].
//! 5. The waiters: it wakes this process's threads, and rx has the peer look at the words if bytes
//!    are to be re-sent.
//! 6. tx: [`resend::now`] sends what TCP takes. The control thread sends the rest later, and the
//!    half is `Plain` after the last byte.
//! 7. It clears the direction, and [`leave::leave`] gives the stream back once both halves are
//!    `Plain`.
//!
//! Between hosts the pump is told first, since it decides what goes by TCP. Then, as above, the
//! half's word is flagged, the state changes, and waiters are woken. The control thread takes the
//! steps that need the peer's record (`carrier::advance`).
//!
//! | function | for | locks |
//! |---|---|---|
//! | [`demote`] | any thread, owner or relative | takes each half's, one after the other |
//! | [`settle_rx`], [`settle_tx`] | a call that finds a reason | the caller holds the half's |
//! | [`follow_rx`], [`follow_tx`] | the control thread: the peer has demoted | takes the half's |
//! | [`takes_back_inherited`] | a relative's call that moves no bytes | as [`demote`] |
//! | [`abandon`] | between hosts: a close that re-sends nothing | takes rx, then tx |
//!
//! The stream's owner does all this itself. In a relative (state `Inherited`) the `settle`
//! functions have the owner's control thread do it, and wait for that with the half's lock, at most
//! 5 s (`inherited::claim`). Within the host, the relative of a killed owner becomes the owner.
//!
//! A change must keep these rules:
//! - First the words, then the state, then the waiters. A thread that waits announces itself, then
//!   reads the state and the words, so it is woken or does not sleep.
//! - What is owed is noted before rx is `Plain`: `recv` passes a call to the kernel if the half is
//!   `Plain` and nothing is owed.
//! - Both words are final, and a second demotion of a half changes nothing.
//! - New bytes go to TCP only after the re-send, and the FIN after both.
//! - A half clears its direction under its lock before it leaves the stream, whose memory may then
//!   be another connection's.

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

/// Demotes the directions of `which`; between hosts, and if the stream is inherited, both. What TCP
/// has no room for is re-sent by the control thread. Call with neither lock held.
///
/// Idempotent. Waits only for the owner of an inherited stream. In a signal handler, a half whose
/// lock the interrupted call holds stays as it is.
pub fn demote(sock: &'static Socket, which: Which, reason: Reason) {
    let inherited = sock.is_inherited();
    if !inherited && sock.carrier().ends_by_record && carrier::give_up(sock, reason) {
        return;
    }
    // If the owner is dead, this process becomes its heir, and other relatives that write wait
    // until the heir has left both halves.
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

/// Demotes what this end reads. If the stream is inherited, waits for its owner. Call under the rx
/// lock, in any state but Plain.
pub fn settle_rx(sock: &'static Socket, reason: Reason) {
    if sock.rx.state() == State::Inherited && inherited::claim(sock, &sock.rx) != Claim::Own {
        return;
    }
    let Some(dir) = sock.rx.dir() else { return };
    if sock.carrier().ends_by_record {
        why::count(sock, reason);
        return carrier::records::settle_rx(sock, reason);
    }
    carrier::cursors::settle_rx(sock, dir, reason);
}

/// Follows a demotion by the peer that no call has seen yet, for what this end reads: the unread
/// bytes are copied, since the peer may be killed before it has re-sent them.
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

/// Follows a demotion by the peer that no call has seen yet, for what this end writes: what the
/// peer has not read is re-sent.
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

/// Demotes what this end writes, and begins to re-send what the reader did not take. If the stream
/// is inherited, waits for its owner. Call under the tx lock, in state Proved, Link or Inherited.
pub fn settle_tx(sock: &'static Socket, reason: Reason) -> Resent {
    settle_tx_since(sock, reason, None)
}

/// [`settle_tx`] after the reader did SHUT_RDWR: only bytes from `since` on are re-sent, so that
/// the reader's kernel answers them by an RST. Within the host only.
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
    carrier::cursors::settle_tx(sock, dir, reason, since)
}

/// Gives up a stream between hosts as it is, and re-sends nothing: the connection is to be reset,
/// or TCP has everything that it is to have. Takes both locks.
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

/// Demotes the stream if it is inherited, before a use that moves no bytes, as poll or FIONREAD.
/// Returns whether it was inherited.
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
