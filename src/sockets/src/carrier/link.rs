//! What a socket asks of the link that its stream to another host goes by.

use crate::socket::{Socket, State};
use crate::tcp;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_stream::record::Out;
use sluice_transport::verbs;
use sluice_transport::verbs::endpoint::Endpoint;

/// Does the socket's stream go to another host?
#[inline]
pub fn is_remote(sock: &Socket) -> bool {
    sock.carrier().ends_by_record
}

/// The queue pair that carries a socket's stream to another host, and the stream's number there.
pub fn of(sock: &Socket) -> Option<(&'static Endpoint, u16)> {
    let link = sock.link().filter(|link| !link.is_foreign())?;
    Some((
        verbs::endpoint_of(link)?,
        sock.index.load(Ordering::Relaxed) as u16,
    ))
}

/// Does nothing of the program's come by TCP any more, unless the stream is given up? So it is
/// before the peer can know that a record of its own may come, and until that is taken out.
#[inline]
pub fn reads_link(sock: &Socket) -> bool {
    sock.rx.state() == State::Link && is_remote(sock)
}

/// Is what TCP has next not the program's? Else it lies after bytes of the link's, which are to be
/// read first, or there is none.
pub fn hides_tcp(sock: &Socket) -> bool {
    reads_link(sock) && tcp::has_bytes(sock.fd.load(Ordering::Relaxed)) && !is_decided(sock)
}

/// Is the record heard, or none to come?
fn is_decided(sock: &Socket) -> bool {
    let Some((endpoint, stream)) = of(sock) else {
        return true;
    };
    let over = endpoint.with(|pump| pump.transit(stream).is_none_or(|t| t.is_over()));
    over == Some(true)
}

/// Under the tx lock: does a buffer of the peer's wait for what is sent?
pub fn goes_direct(sock: &Socket) -> bool {
    let Some((endpoint, stream)) = of(sock).filter(|_| sluice_transport::verbs::mode::is_on())
    else {
        return false;
    };
    endpoint.inside(|inner| inner.pump.has_fresh(stream)) == Some(true)
}

/// Drives the endpoint, and lets others run, while `goes_on`, at most for so many ns.
pub(super) fn yield_while(endpoint: &Endpoint, ns: u64, goes_on: impl Fn() -> bool) {
    let mut until = 0;
    while goes_on() {
        let now = sys::now_ns();
        if until == 0 {
            until = now + ns;
        } else if now >= until {
            return;
        }
        endpoint.drive();
        sys::sched_yield();
    }
}

/// The connection is about to be reset, and what was sent has gone by another way, which the reset
/// may overtake: waits until the peer's device has what was posted. Not for long: a peer's device
/// answers also for one that is stopped.
pub fn deliver(sock: &Socket) {
    const DELIVER_NS: u64 = 20_000_000;
    let Some((endpoint, _)) = of(sock) else {
        return;
    };
    endpoint.drive();
    let done = endpoint.inside(|inner| {
        inner.pump.probe();
        inner.complete + inner.pump.outstanding() as u64
    });
    yield_while(endpoint, DELIVER_NS, || {
        endpoint.inside(|inner| Some(inner.complete) < done) == Some(true)
            && endpoint.is_lost().is_none()
    });
}

/// The program wants more than the `unread` bytes of the ring, of `ring_len`: the peer gets credit
/// for all that was read. It may wait for that from two thirds of the ring on, of which half may
/// have been read without a word.
#[inline]
pub fn wants_more(sock: &Socket, unread: u64, ring_len: u64) {
    const LEAST: u64 = 32 << 10;
    if unread > LEAST.min(ring_len / 8) && is_remote(sock) {
        flush(sock);
    }
}

#[cold]
fn flush(sock: &Socket) {
    if let Some((endpoint, stream)) = of(sock) {
        endpoint.with_stream(stream, |pump| pump.flush(stream));
    }
}

/// Is the stream on its way from TCP to the link? What its program writes waits in the ring.
pub fn is_switching(sock: &Socket) -> bool {
    is_remote(sock) && !sock.upgraded.load(Ordering::Relaxed)
}

/// Does the peer wait for this end to read TCP?
pub fn is_far(sock: &Socket) -> bool {
    of(sock)
        .is_some_and(|(endpoint, stream)| endpoint.with(|pump| pump.is_far(stream)) == Some(true))
}

/// Must a write after a demotion wait for the link, or the peer, rather than for TCP?
pub fn is_held(sock: &'static Socket) -> bool {
    let Some((endpoint, stream)) = of(sock) else {
        return false;
    };
    let held = endpoint.with(|pump| {
        let due = pump.record(stream).is_some();
        let held = pump.transit(stream).is_some_and(|t| t.out() == Out::Held);
        held && !due
    });
    held.unwrap_or_else(|| endpoint.is_interrupted())
}
