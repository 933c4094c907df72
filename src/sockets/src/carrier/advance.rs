//! The control thread goes on with the switch of a stream to another host, or with its way back.
//!
//! Reading and writing are as ever: the endpoint's pump plays the peer. What differs is what
//! decides. Within a host the two words do; here [`Transit`](sluice_stream::Transit) does, which
//! both halves of the socket ask, and the words only stop the program's threads:
//!
//! ```text
//!   rx  Proved ──peer's N──► Draining ──► Link ──record, all read──► Returning ──► Plain
//!   tx  Proved ──our N─────► Link (held by the pump until the switch is through)
//!                            Link ──left──► Resending (the record first) ──► Plain
//! ```

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

/// By the control thread: goes on with the switch of the socket's stream, or with its way back.
pub fn advance(sock: &'static Socket) {
    let Ok(_rx) = sock.rx.lock.enter() else {
        return;
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    if reads_link(sock) {
        // First, since a peer that has died is sent no record: it would be answered by a reset, of
        // another kind.
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

/// Under both locks.
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
                    // A read that was in the kernel by then is counted without a lock: told before
                    // it looks, or seen here.
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
        // A reader of TCP without a limit looks anew.
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

/// Before the peer is told what lets it write a record: once its N is known TCP is read up to
/// there, and not only when the program reads on. From here on what TCP has may be for this
/// library. Whether that is new.
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

/// Under the rx lock: is no read in the kernel, and comes none there that a doorbell does not end?
fn consents(sock: &Socket) -> bool {
    let dir = sock.rx.dir();
    dir.is_some_and(|dir| dir.rx_wishes.consent.load(Ordering::Relaxed) == 1)
}

/// Under both locks: fixes our N, if it may be now.
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

/// The endpoint is lost: by the control thread. A peer that has died shows it on TCP in a moment,
/// and a record written before would make a reset of that: true when all streams went on, in any
/// case when it is `late`.
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
