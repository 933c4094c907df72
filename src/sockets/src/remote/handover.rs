//! What goes on with a socket whose stream ends: this program, nothing, or others that know nothing
//! of links. The last need a TCP that has all of it, for which they, or the library on their
//! behalf, wait.

use super::PATIENCE_NS;
use super::advance::advance;
use super::claim::leaving;
use super::link::{is_held, is_remote, of};
use super::record::awaits_record;
use crate::socket::{Socket, State};
use crate::tcp;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_stats::Reason;
use sluice_stream::record::Leave;

/// The stream was given up for this reason: waits until the next user may use the socket.
pub fn finish(sock: &'static Socket, reason: Reason) {
    let until_ns = sys::now_ns() + PATIENCE_NS;
    if leaving(reason) == Leave::Hand {
        hand_over(sock, until_ns);
    } else {
        drive_while(sock, until_ns, || sock.tx.state() == State::Resending);
    }
}

/// As [`finish`], for a program that reads on where nobody hides the peer's record: what it has
/// written may follow.
pub fn finish_reading(sock: &'static Socket, reason: Reason) {
    let until_ns = sys::now_ns() + PATIENCE_NS;
    drive_while(sock, until_ns, || sock.rx.state() != State::Plain);
    if sock.rx.state() != State::Plain {
        finish(sock, reason);
    }
}

/// As [`finish`], of a stream whose program goes on with it, no longer than `ns`.
pub fn finish_within(sock: &'static Socket, ns: u64) {
    drive_while(sock, sys::now_ns() + ns, || {
        sock.tx.state() == State::Resending
    });
}

/// For a socket that others are to read and write next, or that is about to be closed with the
/// process: drives the link until TCP has all of it, 5 s at most; then it is reset.
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

/// As [`hand_over`], for what the program is through with: until nothing is left to send, and the
/// peer's record is here.
pub fn release(sock: &'static Socket, until_ns: u64) {
    drive_while(sock, until_ns, || {
        sock.tx.state() == State::Resending || awaits_record(sock)
    });
}

/// The program may know of bytes that were dropped: waits until TCP brings the first of them, or
/// the stream has returned to it.
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

/// Sleeps until the link or TCP has news, or 1 ms is over, since TCP does not tell that all was
/// acknowledged.
fn wait(sock: &'static Socket, until_ns: u64) {
    let Some((endpoint, _)) = of(sock) else {
        return;
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    endpoint.drain_events();
    let mut tcp = libc::POLLIN;
    // Bytes before the record that nobody reads, or a part of one: these make no news.
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
