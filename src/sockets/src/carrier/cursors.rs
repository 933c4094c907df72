//! The demotion of a stream within the host, by the two words of a direction: the writer's tail and
//! the reader's head.
//!
//! Either end seals the tail and seizes the head at any moment, without a message. That fixes which
//! bytes the reader has taken, and the writer re-sends the rest by TCP.
//!
//! | function | half, and its states | then |
//! |---|---|---|
//! | [`settle_rx`] | rx, in any but `Plain` | `Plain`, with a copy of the unread bytes |
//! | [`settle_tx`] | tx, in `Proved`, `Link`, `Inherited` | `Resending`, later `Plain` |
//!
//! Each is called with its half's lock held, and leaves the other half alone.
//!
//! A change must keep these rules:
//! - The reason is stored before the words are sealed (`why::tell`): the peer that finds them
//!   sealed reads it. Relatives learn of a re-send before its first byte (`begin_resend`).
//! - The unread bytes are copied before the stream is left, which frees its ring.
//! - The state changes before threads are woken, which look at it.
//! - The head is the peer's word. A value that it cannot have is replaced by the last one seen.

use crate::resend::{self, Resent};
use crate::socket::{Event, Socket, State};
use crate::{direct, leave, tell, unread_copy, wake, why};
use core::sync::atomic::Ordering;
use sluice_fabric::cursors;
use sluice_fabric::layout::Direction;
use sluice_stats::Reason;

/// Seals what this end reads, keeps a copy of the unread bytes, and reads TCP from now on. Call
/// with the rx lock held, in any state but Plain.
pub(crate) fn settle_rx(sock: &'static Socket, dir: &Direction, reason: Reason) {
    // After both shutdowns the peer re-sends nothing. Nor does a peer whose TCP ended before it
    // sealed the stream: it was killed.
    let whole = match sock.rx.state() {
        State::Link => sock.unread_copy.will_be_whole() || is_left(sock),
        State::Inherited => is_left(sock),
        _ => false,
    };
    why::tell(&dir.rx_wishes.why, reason);
    let (start, end) = cursors::demote(&dir.tx.tail, &dir.rx.head);
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
            // The writer must re-send what was not read, so its process must hear of it.
            tell::attention(link, index);
        }
    }
    sock.rx.set_dir(None);
    sock.conn().rx.holds_none();
    leave::leave(sock);
}

/// Returns whether the peer's FIN arrived before either end sealed this direction. The peer was
/// killed then, and nobody will re-send the unread bytes: a living peer seals before it sends a
/// FIN.
fn is_left(sock: &Socket) -> bool {
    unread_copy::has_ended(sock.fd.load(Ordering::Relaxed)) && !sock.rx.is_sealed()
}

/// Seals what this end writes, and begins to re-send what the reader did not take. After the
/// reader's SHUT_RDWR, only what was written from `since` on. Call with the tx lock held, in state
/// Proved, Link or Inherited.
pub(crate) fn settle_tx(
    sock: &'static Socket,
    dir: &Direction,
    reason: Reason,
    since: Option<u64>,
) -> Resent {
    if let Some(family) = sock.family() {
        family.begin_resend();
    }
    why::tell(&dir.tx_wishes.why, reason);
    let (start, end) = cursors::demote(&dir.tx.tail, &dir.rx.head);
    why::count(sock, reason);
    let ring_len = sock.tx.ring().map_or(0, |r| r.len());
    if sock.tx.state() == State::Inherited {
        // The owner has published more since the fork; only the shared word knows how much.
        if end.wrapping_sub(start) <= ring_len {
            sock.tx.at.store(end, Ordering::Relaxed);
        }
    }
    direct::settled(sock, start, end);
    // The tail is this end's word: no peer advances it. The head is the peer's: if its value is not
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
    // A reader that has shut both halves down keeps what was unread then: on TCP it would reset the
    // connection.
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

/// Tells the peer that this end sends its FIN, and was not killed. Call before the FIN, whichever
/// way the bytes go, and after the shut half is noted: a stream that comes up meanwhile looks at
/// the note.
pub(crate) fn tell_end(sock: &'static Socket) {
    // An inherited stream is demoted before its FIN.
    if sock.carrier().ends_by_record || sock.is_inherited() {
        return;
    }
    // If the lock is not to be had, this is a handler that interrupted this thread's use of the
    // half, which does not change meanwhile.
    let _section = sock.rx.lock.enter();
    if let Some(dir) = sock.rx.dir() {
        dir.rx_wishes.ended.store(1, Ordering::SeqCst);
    }
}
