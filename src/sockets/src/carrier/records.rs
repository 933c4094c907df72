//! The demotion of a stream to another host.
//!
//! | function | half | called |
//! |---|---|---|
//! | [`demote`] | both | by the end that gives the stream up, with no lock held |
//! | [`settle_tx`], [`settle_rx`] | one | the same, with that half's lock held |
//! | [`follow_tx`] | tx | when the peer or the link has ended the stream |
//! | [`go_back`] | rx | after each step, to ask whether reading goes back to TCP |
//!
//! tx goes from `Proved` or `Link` to `Resending`, and with the last byte to `Plain` (`resend`). rx
//! stays on `Link` until the link's bytes are read and the peer's record is here, is `Returning`
//! while TCP owes bytes that the peer re-sends, and then `Plain`. On a reset `Plain` follows once
//! the link's bytes are read.
//!
//! Locks: a socket's rx, then its tx, then the endpoint's, which is a leaf. A function that holds
//! tx alone only tries rx.
//!
//! A change must keep these rules:
//! - The record says what the program has read, which is certain only while no thread reads: with
//!   the rx lock. Without that lock the stream is left as `Shut`, and the record says what has
//!   arrived.
//! - The ring is sealed and staged before the state is `Resending`: from then on a kill of this
//!   process must reset the connection.
//! - The head is seized before waiting threads are woken: a thread about to sleep sees it.

use super::leaving::leaving_of;
use super::link::of;
use super::record::{leave_stream, may_cross};
use crate::resend::{self, Resent};
use crate::socket::{Event, Socket, State};
use crate::{emulated_reset, jobs, leave, options, trigger, wake, why};
use core::sync::atomic::Ordering;
use sluice_fabric::layout::Direction;
use sluice_stats::Reason;
use sluice_stream::record::Leave;
use sluice_transport::verbs::endpoint::{Endpoint, Lost};

/// Gives the stream up, and begins to re-send by TCP. Call with the tx lock held, in state Proved
/// or Link.
pub fn settle_tx(sock: &'static Socket, reason: Reason) -> Resent {
    let (Some((endpoint, stream)), Some(dir)) = (of(sock), sock.tx.dir()) else {
        return Resent::All;
    };
    // What was read is certain while no other thread can read.
    let how = leaving_of(sock, reason);
    let needs_still = how.goes_on();
    let still = if needs_still {
        sock.rx.lock.try_enter()
    } else {
        None
    };
    let how = if needs_still && still.is_none() {
        Leave::Shut
    } else {
        how
    };
    leave_stream(sock, endpoint, stream, how);
    drop(still);
    settle(sock, dir)
}

/// Seals the ring, and begins to re-send. Call with the tx lock held.
fn settle(sock: &'static Socket, dir: &Direction) -> Resent {
    dir.tx.tail.flag();
    // The ring may hold bytes that the record does not name: a kill must not look like a clean end.
    sock.staged.stage(sock.fd.load(Ordering::Relaxed));
    sock.tx.state.on(Event::Sealed);
    if let Some(link) = sock.link() {
        let index = sock.index.load(Ordering::Relaxed);
        wake::own_threads(link, dir.tx_wishes.waiters.load(Ordering::SeqCst), index);
    }
    resend::now(sock)
}

/// Gives the stream up. Returns false, having done nothing, in a handler that interrupted a read of
/// this thread.
pub fn demote(sock: &'static Socket, reason: Reason) -> bool {
    let Ok(_rx) = sock.rx.lock.enter() else {
        return false;
    };
    if let Ok(_tx) = sock.tx.lock.enter()
        && let Some((endpoint, stream)) = of(sock)
    {
        why::count(sock, reason);
        leave_stream(sock, endpoint, stream, leaving_of(sock, reason));
        follow_tx_locked(sock, reason);
        go_back(sock, endpoint, stream);
    }
    true
}

/// Gives the stream up; what the link has brought is still read. Call with the rx lock held, in any
/// state but Plain.
pub fn settle_rx(sock: &'static Socket, reason: Reason) {
    let Some((endpoint, stream)) = of(sock) else {
        return;
    };
    leave_stream(sock, endpoint, stream, leaving_of(sock, reason));
    go_back(sock, endpoint, stream);
    // The control thread demotes the other half.
    jobs::advance(sock);
}

/// Takes reading back to TCP if all of the link's bytes are read and the peer's record is here.
/// Returns whether the state has changed. Call with the rx lock held.
pub(crate) fn go_back(sock: &'static Socket, endpoint: &Endpoint, stream: u16) -> bool {
    let Some(dir) = sock.rx.dir() else {
        return false;
    };
    let now = endpoint.with_stream(stream, |pump| {
        let reset = pump.reset(stream);
        let transit = pump.transit(stream)?;
        let open = transit.tcp_room() == u64::MAX && transit.is_over();
        let dead = transit.is_dead().is_some();
        Some((open, dead, transit.owed(), reset))
    });
    let Some(Some((open, dead, owed, reset))) = now else {
        return false;
    };
    if let Some(reason) = reset {
        sluice_runtime::config::log(
            sluice_runtime::config::Level::Info,
            format_args!("fd {} reset: {reason:?}", sock.fd.load(Ordering::Relaxed)),
        );
        emulated_reset::make_hard(sock);
        jobs::advance(sock);
    }
    let unread = dir.tx.tail.read().offset != sock.rx.at.load(Ordering::Relaxed);
    let drained = sock.rx.state() != State::Link || !unread;
    // Bytes that another process reads are not counted here.
    let settled = owed == 0 || sock.handed.load(Ordering::Relaxed);
    if open && sock.has_shut_both() && may_cross(sock, endpoint, stream) {
        return false;
    }
    if dead && drained || open && settled {
        if dead {
            // TCP has none of the program's bytes, but perhaps a part of a record.
            emulated_reset::drop_tcp(sock.fd.load(Ordering::Relaxed));
        }
        finish_rx(sock);
        return true;
    }
    if open && sock.rx.state() != State::Returning {
        dir.rx.head.flag();
        options::release_low(sock);
        let from = sock.rx.kernel_bytes() + owed;
        sock.rx.from.store(from, Ordering::Relaxed);
        sock.rx.state.on(Event::Returns);
        tell_readers(sock);
        return true;
    }
    false
}

/// Wakes threads that wait for bytes: the kernel has them now, or soon.
pub(super) fn tell_readers(sock: &'static Socket) {
    if let (Some(dir), Some(link)) = (sock.rx.dir(), sock.link()) {
        let waiters = dir.rx_wishes.waiters.load(Ordering::SeqCst);
        wake::own_threads(link, waiters, sock.index.load(Ordering::Relaxed));
    }
}

fn finish_rx(sock: &'static Socket) {
    if let Some(dir) = sock.rx.dir() {
        // A thread about to sleep on the link sees it.
        dir.rx.head.flag();
    }
    options::release_low(sock);
    sock.rx.state.on(Event::AllRead);
    tell_readers(sock);
    sock.rx.set_dir(None);
    sock.conn().rx.holds_none();
    leave::leave(sock);
    if sock.lingers.load(Ordering::Relaxed) {
        jobs::close_when_drained(sock);
    }
}

/// Why a stream is demoted that this end has not given up.
pub(crate) fn given_up(endpoint: &Endpoint) -> Reason {
    match endpoint.is_lost() {
        None => Reason::PeerDemoted,
        Some(Lost::Peer(_)) => Reason::PeerHostile,
        Some(_) => Reason::LinkLost,
    }
}

/// Demotes the writing half, of a stream that is on its way back. Call with the rx lock held.
pub(crate) fn follow_tx(sock: &'static Socket, reason: Reason) {
    if let Ok(_section) = sock.tx.lock.enter() {
        follow_tx_locked(sock, reason);
    }
}

/// Returns whether nothing was under way: the peer has taken an idle stream back, or one of
/// requests and responses, to use its memory for others.
fn is_at_rest(sock: &'static Socket) -> bool {
    let (Some(rx), Some(tx)) = (sock.rx.dir(), sock.tx.dir()) else {
        return false;
    };
    let uncredited = tx.tx.tail.read().offset - tx.rx.head.read().offset;
    let most = sock.tx.ring().map_or(0, |ring| ring.len()) / 2;
    rx.tx.tail.read().offset == sock.rx.at.load(Ordering::Relaxed) && uncredited <= most
}

pub(super) fn follow_tx_locked(sock: &'static Socket, reason: Reason) {
    match sock.tx.state() {
        State::Proved | State::Link => {
            why::count(sock, reason);
            // A peer that demotes again and again has another cause.
            let seldom = sock.backoff.load(Ordering::Relaxed) <= 8;
            if reason == Reason::PeerDemoted && seldom && is_at_rest(sock) {
                trigger::comes_back(sock);
            }
            if let Some((endpoint, stream)) = of(sock) {
                leave_stream(sock, endpoint, stream, leaving_of(sock, reason));
            }
            if let Some(dir) = sock.tx.dir() {
                resend::goes_on(sock, settle(sock, dir));
            }
        }
        State::Resending => {
            resend::goes_on(sock, resend::now(sock));
        }
        _ => {}
    }
}
