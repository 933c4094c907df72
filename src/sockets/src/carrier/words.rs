//! The way back to TCP within the host, by the two words of a direction, the writer's tail and the
//! reader's head. Either end seals both at any moment, without a message. What the reader has taken
//! by then is fixed, and the writer sends the rest again.

use crate::resend::{self, Resent};
use crate::socket::{Event, Socket, State};
use crate::{direct, leave, tell, unread_copy, wake, why};
use core::sync::atomic::Ordering;
use sluice_fabric::layout::Direction;
use sluice_fabric::words;
use sluice_stats::Reason;

/// Seals what this end reads, and reads TCP from now on. Call under the rx lock, in any state but
/// Plain.
pub(crate) fn settle_rx(sock: &'static Socket, dir: &Direction, reason: Reason) {
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
    unread_copy::has_ended(sock.fd.load(Ordering::Relaxed)) && !sock.rx.is_sealed()
}

/// Seals what this end writes, and begins to send again what the reader did not take; after a
/// reader's SHUT_RDWR what was written from `since` on. Call under the tx lock, in state Proved,
/// Link or Inherited.
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

/// Before this end's FIN, by whichever way its bytes go: tells the peer that this is no killed
/// process. Called after the shut half is noted, which a stream that comes up meanwhile looks at.
pub(crate) fn tell_end(sock: &'static Socket) {
    // An inherited stream is on TCP by then.
    if sock.carrier().ends_by_record || sock.is_inherited() {
        return;
    }
    // Else a handler in the middle of this thread's own use of the half, which finds that as it
    // was.
    let _section = sock.rx.lock.enter();
    if let Some(dir) = sock.rx.dir() {
        dir.rx_wishes.ended.store(1, Ordering::SeqCst);
    }
}
