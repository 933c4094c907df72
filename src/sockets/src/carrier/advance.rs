//! Takes a stream to another host through its switch from TCP to the link, and on through its
//! demotion.
//!
//! Within a host the two words decide where each direction is. Between hosts
//! [`Transit`](sluice_stream::Transit) decides, which the endpoint's pump holds and both halves
//! ask; the words only stop the program's threads. The pump plays the peer, so reads and writes use
//! the rings as within a host.
//!
//! ```text
//!   rx  Proved ──peer's N──► Draining ──► Link ──record, all read──► Returning ──► Plain
//!   tx  Proved ──our N─────► Link (held by the pump until the switch is through)
//!                            Link ──left──► Resending (the record first) ──► Plain
//! ```
//!
//! [`advance`] is called by the control thread, and by a thread that waits for TCP (`handover`). It
//! takes the rx lock, then the tx lock; the endpoint's lock is the innermost.
//!
//! A change must keep these rules:
//! - TCP is heard before the steps go on, since it may show that the peer has died.
//! - `enter` comes before the step that tells the peer that it may write a record. Both are in one
//!   call on the pump, which sends only afterwards.
//! - N is fixed only after this reader has consented, and with no write in the kernel (`fix`).

use super::link::{is_remote, of, reads_link};
use super::record_rx::hear_tcp;
use super::records::{follow_tx_locked, given_up, settle_tx, tell_readers};
use crate::socket::{self, Socket, State};
use crate::upgrade::{self, Switch};
use crate::{jobs, resend, tcp};
use core::sync::atomic::Ordering;
use sluice_fabric::shm::Link;
use sluice_stream::pump::{Pump, Stepped};
use sluice_stream::record::Out;
use sluice_transport::verbs::endpoint::{Endpoint, Lost};

/// Goes on with the switch of the socket's stream, or with its demotion.
pub fn advance(sock: &'static Socket) {
    let Ok(_rx) = sock.rx.lock.enter() else {
        return;
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    if reads_link(sock) {
        // Before the switch: a peer that has died must be sent no record, since its kernel would
        // answer with an RST, which shows the program another error.
        hear_tcp(sock, fd);
    }
    if let Ok(_tx) = sock.tx.lock.enter()
        && let Some((endpoint, stream)) = of(sock)
    {
        switch(sock, endpoint, stream);
    }
    if is_remote(sock) && sock.rx.state() != State::Plain {
        hear_tcp(sock, fd);
    }
}

/// Takes the steps of the switch, then follows if the stream is left. Call with both locks held.
fn switch(sock: &'static Socket, endpoint: &Endpoint, stream: u16) {
    let mut entered = false;
    loop {
        let read = match sock.rx.state() {
            State::Proved | State::Draining => sock.rx.kernel_bytes(),
            _ => 0,
        };
        let now = endpoint.with_stream(stream, |pump| {
            let fine = pump.on_tcp_read(stream, read);
            let stepped = fine.and_then(|()| pump.step(stream));
            entered |= enter(sock, pump, stream);
            if consents(sock) {
                pump.consent(stream);
            }
            (stepped, pump.wants_fix(stream))
        });
        match now {
            Some((Err(lie), _)) => {
                endpoint.lose(Lost::Peer(lie));
                break;
            }
            Some((Ok(stepped), wants)) => {
                if wants && fix(sock, endpoint, stream, &mut entered) || stepped == Stepped::Taken {
                    continue;
                }
                if stepped == Stepped::Far {
                    // A `recv` in the kernel is counted without the lock: it may have moved bytes
                    // since `read` was taken.
                    sock.far.store(true, Ordering::SeqCst);
                    if sock.rx.kernel_bytes() != read {
                        continue;
                    }
                    jobs::watch_far(sock);
                }
                break;
            }
            None => return,
        }
    }
    if entered {
        // A thread that reads TCP without a limit must look again: its bytes now end at N.
        tell_readers(sock);
    }
    let now = endpoint.with(|pump| {
        let transit = pump.transit(stream)?;
        let leaves = transit.is_leaving();
        Some((transit.out(), leaves))
    });
    let Some(Some((out, leaves))) = now else {
        return;
    };
    if out == Out::Link {
        sock.staged.unstage(sock.fd.load(Ordering::Relaxed));
        sock.note_upgraded(sluice_stats::Transport::Verbs);
    }
    if leaves {
        follow_tx_locked(sock, given_up(endpoint));
    }
}

/// Limits the reader to the peer's N on TCP once N is known, and enters the link if TCP is read up
/// to there: TCP may bring a record next. Call with the rx lock held, before the peer is told that
/// it may write one. Returns whether N is new.
fn enter(sock: &'static Socket, pump: &mut Pump, stream: u16) -> bool {
    let known = pump.transit(stream).and_then(|t| t.peer_n());
    let (Some(n), Some(dir)) = (known, sock.rx.dir()) else {
        return false;
    };
    if dir.tx_wishes.switched.load(Ordering::Relaxed) != 0 {
        return false;
    }
    dir.tx_wishes.from.store(n, Ordering::Relaxed);
    dir.tx_wishes.switched.store(1, Ordering::Release);
    upgrade::enter_link(sock, n);
    true
}

/// Returns whether no read is in the kernel, and none enters it that a doorbell does not end. Call
/// with the rx lock held.
fn consents(sock: &Socket) -> bool {
    let dir = sock.rx.dir();
    dir.is_some_and(|dir| dir.rx_wishes.consent.load(Ordering::Relaxed) == 1)
}

/// Fixes this end's N, if that is possible now. Returns whether it did. Call with both locks held.
fn fix(sock: &'static Socket, endpoint: &Endpoint, stream: u16, entered: &mut bool) -> bool {
    if sock.tx.state() != State::Proved || !consents(sock) || sock.tx.in_kernel() != 0 {
        return false;
    }
    let fixed = upgrade::take_ring(sock, |n| {
        let fixed = endpoint.with(|pump| {
            let fixed = pump.transit(stream).is_some_and(|t| t.fix(n).is_ok());
            *entered |= enter(sock, pump, stream);
            pump.settle(stream);
            fixed
        });
        fixed == Some(true)
    });
    match fixed {
        Switch::Done => {
            sock.staged.begin();
            true
        }
        Switch::Later => false,
        Switch::Never(reason) => {
            sock.pin(reason);
            let _ = resend::goes_on(sock, settle_tx(sock, reason));
            false
        }
    }
}

/// The link is lost: goes on with its streams. One whose TCP has not ended waits until it is
/// `late`, since a peer that died shows that on TCP in a moment, and would answer a record with an
/// RST. Returns whether all streams went on. Called by the control thread.
pub fn lost(near: &'static Link, endpoint: &Endpoint, late: bool) -> bool {
    let mut all = true;
    for stream in endpoint.streams() {
        let Some(sock) = socket::sock_of(near, u32::from(stream)) else {
            continue;
        };
        let over = || tcp::has_ended(sock.fd.load(Ordering::Relaxed));
        if late || over() {
            advance(sock);
        } else {
            all = false;
        }
    }
    all
}
