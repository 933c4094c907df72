//! The end of a send whose bytes go straight into a buffer of the peer.

use super::STARVE_NS;
use super::handover::finish_within;
use super::link::of;
use super::records::demote;
use crate::socket::{Socket, State};
use crate::wait;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_stats::Reason;
use sluice_stream::Mode;
use sluice_transport::verbs;
use sluice_transport::verbs::endpoint::Endpoint;
use sluice_transport::verbs::endpoint_state::EndpointState;

/// Where all must go directly, and the call `waits` if it must: waits until the reader has
/// advertised a buffer, or until the stream is demoted because it has not; then until what was
/// written is there.
pub fn await_placement(sock: &'static Socket, waits: impl Fn() -> bool) {
    if let Some((endpoint, stream)) = of(sock)
        && verbs::mode::mode() == Mode::Direct
        && waits()
    {
        await_taker(sock, endpoint, stream);
    }
}

#[cold]
fn await_taker(sock: &'static Socket, endpoint: &Endpoint, stream: u16) {
    // Short, since a stopped reader answers nothing.
    const WORD_NS: u64 = 200_000_000;
    let generation = sock.generation.load(Ordering::Acquire);
    let waits = || {
        endpoint
            .inside(|inner| inner.pump.awaits_buffer(stream))
            .flatten()
    };
    let starves = |at| {
        let starves = |inner: &mut EndpointState| inner.pump.starved().any(|of| of == (stream, at));
        endpoint.inside(starves) == Some(true)
    };
    endpoint.drive();
    let [there, not_yet] = STARVE_NS;
    while let Some(at) = waits() {
        let patience = if endpoint.has_direct_qp() {
            there
        } else {
            not_yet
        };
        let Ok(section) = sock.tx.lock.enter() else {
            return;
        };
        if sock.tx.state() != State::Link {
            drop(section);
            break;
        }
        wait::for_taker(section, sock, sys::now_ns() + patience, || {
            waits() != Some(at)
        });
        if sock.generation.load(Ordering::Acquire) != generation {
            return;
        }
        if starves(at) {
            sock.pin(Reason::DirectNoAdvert);
            demote(sock, Reason::DirectNoAdvert);
            break;
        }
    }
    finish_within(sock, WORD_NS);
}
