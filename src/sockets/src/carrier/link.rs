//! What a socket asks of the link that carries its stream to another host.

use crate::socket::{Socket, State};
use crate::tcp;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_stream::record::Out;
use sluice_transport::verbs;
use sluice_transport::verbs::endpoint::Endpoint;

/// Returns whether the socket's stream goes to another host.
#[inline]
pub fn is_remote(sock: &Socket) -> bool {
    sock.carrier().ends_by_record
}

/// The endpoint that carries the socket's stream to another host, and the stream's number there.
pub fn of(sock: &Socket) -> Option<(&'static Endpoint, u16)> {
    let link = sock.link().filter(|link| !link.is_foreign())?;
    Some((
        verbs::endpoint_of(link)?,
        sock.index.load(Ordering::Relaxed) as u16,
    ))
}

/// Returns whether TCP brings none of the program's bytes unless the stream is given up. That
/// begins before the peer can know that it may write a record, and lasts until the record is
/// removed.
#[inline]
pub fn reads_link(sock: &Socket) -> bool {
    sock.rx.state() == State::Link && is_remote(sock)
}

/// Returns whether what TCP has next is not the program's. If false, TCP has nothing, or bytes that
/// follow those of the link.
pub fn hides_tcp(sock: &Socket) -> bool {
    reads_link(sock) && tcp::has_bytes(sock.fd.load(Ordering::Relaxed)) && !is_decided(sock)
}

/// Returns whether the peer's record was heard, or none will come.
fn is_decided(sock: &Socket) -> bool {
    let Some((endpoint, stream)) = of(sock) else {
        return true;
    };
    let over = endpoint.with(|pump| pump.transit(stream).is_none_or(|t| t.is_over()));
    over == Some(true)
}

/// Returns whether the peer has advertised a buffer for what is sent next. Call with the tx lock
/// held.
pub fn goes_direct(sock: &Socket) -> bool {
    let Some((endpoint, stream)) = of(sock).filter(|_| sluice_transport::verbs::mode::is_on())
    else {
        return false;
    };
    endpoint.inside(|inner| inner.pump.has_fresh(stream)) == Some(true)
}

/// While `goes_on`, drives the endpoint and yields the processor, for at most `ns`.
fn yield_while(endpoint: &Endpoint, ns: u64, goes_on: impl Fn() -> bool) {
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

/// Waits until the peer's device has what was posted, at most 20 ms. The connection is about to be
/// reset, and the RST may overtake those bytes. The device answers even if the peer is stopped.
pub fn deliver(sock: &Socket) {
    const DELIVER_NS: u64 = 20_000_000;
    let Some((endpoint, _)) = of(sock) else {
        return;
    };
    endpoint.drive();
    let done = endpoint.inside(|inner| {
        inner.pump.probe();
        let messages = inner.complete + inner.pump.outstanding() as u64;
        (messages, inner.direct_shots())
    });
    yield_while(endpoint, DELIVER_NS, || {
        let waits = endpoint.inside(|inner| {
            done.is_some_and(|(messages, transfers)| {
                inner.complete < messages || inner.direct_landed() < transfers
            })
        });
        waits == Some(true) && endpoint.is_lost().is_none()
    });
}

/// Gives the peer credit for all that was read, if the program wants more than the `unread` bytes
/// of the ring, since the peer may wait for that. With at most an eighth of the ring unread, or 32
/// KiB, the peer has room.
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

/// Returns whether the stream is on its way from TCP to the link: writes wait in the ring.
pub fn is_switching(sock: &Socket) -> bool {
    is_remote(sock) && !sock.upgraded.load(Ordering::Relaxed)
}

/// Returns whether the peer waits until this end has read TCP up to the peer's N.
pub fn is_far(sock: &Socket) -> bool {
    of(sock)
        .is_some_and(|(endpoint, stream)| endpoint.with(|pump| pump.is_far(stream)) == Some(true))
}

/// Returns whether a write after a demotion waits for the link or the peer, rather than for TCP.
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
