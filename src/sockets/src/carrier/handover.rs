//! Waits until TCP has what the next user of a socket needs, after its stream to another host is
//! given up.
//!
//! | function | next on the socket | waits until |
//! |---|---|---|
//! | [`finish`] | as the reason tells (`leaving`) | as one of the next two |
//! | `hand_over` | a user without links | TCP is clean both ways, or is reset |
//! | [`finish_within`] | this program | nothing is left to re-send |
//! | [`finish_reading`] | this program, reading past the hooks | TCP has all that it reads |
//! | [`release`] | nothing: it closes | also the peer's record is here |
//! | [`await_return`] | this program | TCP has the first re-sent byte |
//!
//! Each calls [`advance`], asks whether that is so, and sleeps, in turn until a time limit. After
//! the limit `hand_over` resets the connection, and the others return.
//!
//! A change must keep these rules:
//! - Call them with no lock held: `advance` takes a socket's locks, and `wait` sleeps.
//! - `wait` asks for input only while TCP has none. Bytes that nobody reads would end each sleep.
//! - A sleep ends after 1 ms: no event tells that TCP has acknowledged everything.

use super::PATIENCE_NS;
use super::advance::advance;
use super::leaving::leaving;
use super::link::{is_held, is_remote, of};
use super::record::awaits_record;
use crate::socket::{Socket, State};
use crate::tcp;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_stats::Reason;
use sluice_stream::record::Leave;

/// Waits until the next user may have the socket, whose stream was given up for this reason.
pub fn finish(sock: &'static Socket, reason: Reason) {
    let until_ns = sys::now_ns() + PATIENCE_NS;
    if leaving(reason) == Leave::Hand {
        hand_over(sock, until_ns);
    } else {
        drive_while(sock, until_ns, || sock.tx.state() == State::Resending);
    }
}

/// As [`finish`], for a program that reads past the hooks, where nobody hides the peer's record. It
/// does not wait for what the program has written.
pub fn finish_reading(sock: &'static Socket, reason: Reason) {
    let until_ns = sys::now_ns() + PATIENCE_NS;
    drive_while(sock, until_ns, || sock.rx.state() != State::Plain);
    if sock.rx.state() != State::Plain {
        finish(sock, reason);
    }
}

/// As [`finish`], if the program goes on with the stream; for at most `ns`.
pub fn finish_within(sock: &'static Socket, ns: u64) {
    drive_while(sock, sys::now_ns() + ns, || {
        sock.tx.state() == State::Resending
    });
}

/// Drives the link until TCP is clean, for a user without links; after the limit resets the
/// connection.
fn hand_over(sock: &'static Socket, until_ns: u64) {
    loop {
        advance(sock);
        let Some((endpoint, stream)) = of(sock) else {
            return;
        };
        let clean = endpoint.with_stream(stream, |pump| {
            pump.transit(stream)
                .is_none_or(|t| t.is_clean() || t.is_dead().is_some())
        });
        if clean == Some(true) && sock.tx.state() == State::Plain {
            return;
        }
        let now = sys::now_ns();
        if now >= until_ns {
            endpoint.with(|pump| {
                if let Some(transit) = pump.transit(stream) {
                    transit.give_up();
                }
                pump.settle(stream);
            });
            return advance(sock);
        }
        wait(sock, until_ns);
    }
}

/// Waits until nothing is left to re-send and the peer's record is here, for a socket that the
/// program is through with.
pub fn release(sock: &'static Socket, until_ns: u64) {
    drive_while(sock, until_ns, || {
        sock.tx.state() == State::Resending || awaits_record(sock)
    });
}

/// Waits until TCP brings the first of the dropped bytes, or the stream is left. The program may
/// have been told of these bytes.
pub fn await_return(sock: &'static Socket, until_ns: u64) {
    drive_while(sock, until_ns, || {
        let fd = sock.fd.load(Ordering::Relaxed);
        sock.rx.state() != State::Returning || !tcp::has_bytes(fd)
    });
}

fn drive_while(sock: &'static Socket, until_ns: u64, goes_on: impl Fn() -> bool) {
    while is_remote(sock) && goes_on() && sys::now_ns() < until_ns {
        advance(sock);
        if goes_on() {
            wait(sock, until_ns);
        }
    }
}

/// Sleeps until the link or TCP has news, 1 ms at most: no event tells that TCP has acknowledged
/// everything.
fn wait(sock: &'static Socket, until_ns: u64) {
    let Some((endpoint, _)) = of(sock) else {
        return;
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    endpoint.drain_events();
    let mut tcp = libc::POLLIN;
    // Bytes before the record that nobody reads, or a part of a record, are no news.
    if tcp::has_bytes(fd) {
        tcp = 0;
    }
    if sock.tx.state() == State::Resending && !is_held(sock) {
        tcp |= libc::POLLOUT;
    }
    let link = endpoint.descriptor().unwrap_or(-1);
    let mut fds = [(link, libc::POLLIN), (fd, tcp)].map(|(fd, events)| libc::pollfd {
        fd,
        events,
        revents: 0,
    });
    let most = until_ns.saturating_sub(sys::now_ns()).min(1_000_000);
    let _ = sys::poll(&mut fds, Some(sys::timespec(most)));
}
