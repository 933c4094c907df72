//! The re-send: after a demotion the writer's end sends on TCP what the reader did not take.
//!
//! These bytes lie in the ring between `tx.from` and `tx.at`. [`now`] sends what TCP takes without
//! a wait, and moves `from`. The demotion calls it first; then each send does, each thread that
//! waits for the end (`finish`), and the control thread when TCP has room (`work::on_tcp`). Between
//! hosts [`now`] writes this end's record first, and re-sends nothing until the peer has told where
//! to begin.
//!
//! Once TCP has taken everything, `finish_resend` lets the FIN follow if the program has asked for
//! it. Then it makes the half `Plain`, tells relatives, wakes threads that wait for room, clears
//! the direction, and has epoll sets watch TCP for room again.
//!
//! All this is done under the tx lock by the owner of the stream; [`abandon_rest`] takes the lock.
//!
//! A change must keep these rules:
//! - No new byte of the program goes to TCP while the half is `Resending`.
//! - The FIN follows the last byte.
//! - An error of the socket is left to the program: a send here would take it.
//! - Each byte sent is added to the half's count, since a later switch goes by offsets.

use crate::carrier::{self, Before, Staged};
use crate::socket::{Event, SETS, Socket, State};
use crate::{after_tcp, emulated_reset, jobs, leave, options, wake};
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_stats::Reason;

/// Where a re-send stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resent {
    /// TCP has everything, and the half is Plain.
    All,
    /// TCP has no room now. Or the stream is inherited, and its owner waits for room.
    NoRoom,
    /// Between hosts: it cannot go on or end before the link or the peer has told more, or before
    /// TCP has acknowledged everything.
    Held,
    /// Unknown: a signal handler has interrupted this thread's use of the tx half.
    Amid,
}

/// Leaves a re-send for which TCP has no room to the control thread. Returns `resent`.
pub fn goes_on(sock: &'static Socket, resent: Resent) -> Resent {
    if resent == Resent::NoRoom {
        jobs::watch_room(sock);
    }
    resent
}

/// Sends as much as TCP takes now. Call under the tx lock, in state Resending.
pub fn now(sock: &'static Socket) -> Resent {
    if sock.tx.dir().is_none() {
        return finish_resend(sock);
    }
    if sock.carrier().ends_by_record {
        match carrier::before_resend(sock) {
            Before::Ready(from) => match begin_resend(sock, from) {
                Staged::All => {}
                Staged::Cut => return cut(sock),
                Staged::Unknown => return Resent::Held,
            },
            Before::Held => return Resent::Held,
            Before::Full => return Resent::NoRoom,
            Before::Over => return finish_resend(sock),
        }
    }
    let end = sock.tx.at.load(Ordering::Relaxed);
    let begin = sock.tx.from.load(Ordering::Relaxed);
    let mut at = begin;
    let fd = sock.fd.load(Ordering::Relaxed);
    let mut full = false;
    while at < end {
        if sys::has_error(fd) {
            // A send would take the error, which the program must see. The connection is over, so
            // the rest is lost anyway.
            at = end;
            break;
        }
        let Some(ring) = sock.tx.ring() else { break };
        let [(piece, len), _] = ring.pieces(at, end - at);
        // SAFETY: `pieces` returns memory of the ring, whose arena stays mapped while this stream,
        // whose lock the caller holds, counts on the link.
        match unsafe { sys::send(fd, piece, len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } {
            Ok(n) => {
                at += n as u64;
                sock.tx.add_kernel_bytes(n as u64);
                sock.conn().tx.resent.add(n as u64);
            }
            Err(libc::EAGAIN) => {
                full = true;
                break;
            }
            Err(libc::EINTR) => {}
            // The connection is over, and the kernel tells the program at its next call.
            Err(_) => at = end,
        }
    }
    if at != begin {
        after_tcp::acts_on(sock);
        options::push_out(sock, fd);
    }
    sock.tx.from.store(at, Ordering::Relaxed);
    if full {
        Resent::NoRoom
    } else if !carrier::may_finish(sock) {
        Resent::Held
    } else {
        finish_resend(sock)
    }
}

/// Bytes of a file were to be sent that has been cut since: what follows them must not be sent.
#[cold]
fn cut(sock: &'static Socket) -> Resent {
    sock.conn().stays(Reason::FileCut);
    emulated_reset::cut(sock);
    sock.tx
        .from
        .store(sock.tx.at.load(Ordering::Relaxed), Ordering::Relaxed);
    finish_resend(sock)
}

/// Between hosts: begins the re-send at `from`, and no longer counts these bytes as moved by the
/// link. Does nothing if that was done before. Returns whether all of them are in the ring. Call
/// under the tx lock.
fn begin_resend(sock: &'static Socket, from: u64) -> Staged {
    if sock.begun.load(Ordering::Relaxed) {
        return Staged::All;
    }
    let staged = carrier::stage_pages(sock, from);
    if staged != Staged::All {
        return staged;
    }
    sock.begun.store(true, Ordering::Relaxed);
    let at = sock.tx.at.load(Ordering::Relaxed);
    let linked = sock.tx.linked.load(Ordering::Relaxed);
    let again = at.saturating_sub(from);
    let linked = linked.saturating_sub(again);
    sock.tx.linked.store(linked, Ordering::Relaxed);
    sock.tx.from.store(from, Ordering::Relaxed);
    Staged::All
}

/// Ends the re-send: from now on the kernel carries what this end writes. Call under the tx lock,
/// in state Resending.
fn finish_resend(sock: &'static Socket) -> Resent {
    sock.staged.unstage(sock.fd.load(Ordering::Relaxed));
    let end = || {
        if sock.shut.load(Ordering::SeqCst) {
            let _ = sys::shutdown(sock.fd.load(Ordering::Relaxed), libc::SHUT_WR);
        }
    };
    // The FIN that the program has asked for follows the last byte.
    end();
    sock.tx.state.on(Event::AllSent);
    if let Some(family) = sock.family()
        && !sock.carrier().ends_by_record
    {
        family.hand_writing();
    }
    // A signal handler may have shut the half down since the first look.
    end();
    let mut waiters = 0;
    if let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) {
        // A thread that announces itself after this load sees the new state.
        waiters = dir.tx_wishes.waiters.load(Ordering::SeqCst);
        wake::own_threads(link, waiters, sock.index.load(Ordering::Relaxed));
    }
    sock.tx.set_dir(None);
    sock.conn().tx.holds_none();
    if sock.lingers.load(Ordering::Relaxed) {
        jobs::close_when_drained(sock);
    }
    // From now on the kernel tells epoll sets that there is room.
    for i in 0..SETS {
        if let Some(set) = sock.set_at(i) {
            set.writes_by_tcp(sock, waiters);
        }
    }
    leave::leave(sock);
    Resent::All
}

/// Ends a re-send without the rest: the connection is to be reset, nobody is left to read it, or
/// the reader, on this host, has a copy.
pub(crate) fn abandon_rest(sock: &'static Socket) {
    if sock.tx.state() == State::Resending
        && let Ok(_section) = sock.tx.lock.enter()
        && sock.tx.state() == State::Resending
    {
        finish_resend(sock);
    }
}
