//! The outcome of an offer, and the state at the beginning of a stream.

use super::state::Outgoing;
use super::{NEVER, terms};
use crate::socket::{Socket, State};
use core::sync::atomic::Ordering;
use sluice_stream::Sender;

/// After an offer that nobody took, so many large sends go without one; doubled up to [`SKIP_MAX`].
pub(super) const SKIP: u32 = 4;
/// See [`SKIP`].
pub(super) const SKIP_MAX: u32 = 512;

/// Resets the writer's state. Call under the tx lock, before the half enters the link.
pub(crate) fn begin_tx(sock: &'static Socket) {
    sock.direct.up.store(0, Ordering::Relaxed);
    sock.direct.owner.store(0, Ordering::Relaxed);
    sock.direct.refused_ns.store(0, Ordering::Relaxed);
    sock.direct.resolved.store(0, Ordering::Relaxed);
    sock.direct.offers.store(UNASKED, Ordering::Relaxed);
    let ring_len = u64::from(sock.tx.unread_max.load(Ordering::Relaxed));
    let gate = terms(sock, ring_len).map_or(NEVER, |(terms, gate)| {
        let made = Outgoing {
            sender: Sender::new(&terms),
            gate,
            rounds: 0,
            still_at: 0,
            skip: 0,
            next_skip: SKIP,
        };
        // SAFETY: the caller holds the tx lock.
        unsafe { sock.direct.tx.set(made) };
        gate
    });
    sock.tx.gate.store(gate, Ordering::Relaxed);
}

/// See [`Direct::offers`](super::state::Direct).
pub(super) const UNASKED: u8 = 0;
pub(super) const OFFERS: u8 = 1;
pub(super) const OFFERS_NOT: u8 = 2;

/// Returns whether a send of this process has an offer up. Call under the tx lock.
pub(crate) fn is_up(sock: &Socket) -> bool {
    sock.direct.up.load(Ordering::Relaxed) != 0
}

/// Ends the offer that is up: the reader has taken `taken` bytes of it. Call under the tx lock.
pub(super) fn record(sock: &'static Socket, taken: u32) {
    let direct = &sock.direct;
    let number = direct.up.swap(0, Ordering::Relaxed);
    direct.resolved_len.store(taken, Ordering::Relaxed);
    direct.resolved.store(number, Ordering::Relaxed);
    if taken != 0 {
        let n = u64::from(taken);
        let to = sock.tx.at.load(Ordering::Relaxed) + n;
        sock.tx.at.store(to, Ordering::Relaxed);
        sock.tx.seen.store(to, Ordering::Relaxed);
        sock.tx.linked.store(
            sock.tx.linked.load(Ordering::Relaxed) + n,
            Ordering::Relaxed,
        );
        sock.conn().tx.bytes.direct.add(n);
    }
}

/// Ends an offer at a demotion that has just fixed the words at `start` and `end`: the reader has
/// taken what its head is beyond the tail. Call under the tx lock.
pub(crate) fn settled(sock: &'static Socket, start: u64, end: u64) {
    let direct = &sock.direct;
    if sock.tx.state() == State::Inherited {
        // The parent's offer, if any. What the reader took of it is not re-sent.
        direct.up.store(0, Ordering::Relaxed);
        direct.resolved.store(0, Ordering::Relaxed);
        if start > end {
            sock.tx.at.store(start, Ordering::Relaxed);
        }
        return;
    }
    if direct.up.load(Ordering::Relaxed) == 0 {
        return;
    }
    let ahead = start.saturating_sub(sock.tx.at.load(Ordering::Relaxed));
    let most = u64::from(direct.up_len.load(Ordering::Relaxed));
    record(sock, if ahead <= most { ahead as u32 } else { 0 });
}
