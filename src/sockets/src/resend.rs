//! What the reader of a demoted stream did not take is sent again by TCP.

use crate::remote::{self, Before};
use crate::socket::{Event, SETS, Socket, State};
use crate::{after_tcp, demote, jobs, leave, options, wake};
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_stats::Reason;

/// Where a re-send stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resent {
    /// All is on TCP; the half is Plain again.
    All,
    /// TCP has no room now.
    NoRoom,
    /// From another host: not before the link, or the peer, has told more.
    Held,
    /// Not known: this is a handler that interrupted a send of the same socket.
    Amid,
}

/// A re-send for which TCP has no room is the control thread's to go on with.
pub fn goes_on(sock: &'static Socket, resent: Resent) -> Resent {
    if resent == Resent::NoRoom {
        jobs::watch_room(sock);
    }
    resent
}

/// Under the tx lock, in state Resending: sends as much as TCP takes now.
pub fn now(sock: &'static Socket) -> Resent {
    if sock.tx.dir().is_none() {
        return finish_resend(sock);
    }
    if sock.carrier().ends_by_record {
        match remote::before_resend(sock) {
            Before::Ready(from) => begin_resend(sock, from),
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
            // The error is the program's to see, and a send would take it: what is left is lost
            // anyway.
            at = end;
            break;
        }
        let Some(ring) = sock.tx.ring() else { break };
        let [(piece, len), _] = ring.pieces(at, end - at);
        // SAFETY: the piece lies in the ring.
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
            // The connection is over: the kernel tells the program at its next call.
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
    } else if !remote::may_finish(sock) {
        Resent::Held
    } else {
        finish_resend(sock)
    }
}

/// Under the tx lock: to another host, what the link was given from `from` on goes by TCP.
fn begin_resend(sock: &'static Socket, from: u64) {
    if sock.begun.swap(true, Ordering::Relaxed) {
        return;
    }
    let at = sock.tx.at.load(Ordering::Relaxed);
    let linked = sock.tx.linked.load(Ordering::Relaxed);
    let again = at.saturating_sub(from);
    let linked = linked.saturating_sub(again);
    sock.tx.linked.store(linked, Ordering::Relaxed);
    sock.tx.from.store(from, Ordering::Relaxed);
}

fn finish_resend(sock: &'static Socket) -> Resent {
    sock.staged.unstage(sock.fd.load(Ordering::Relaxed));
    let end = || {
        if sock.shut.load(Ordering::SeqCst) {
            let _ = sys::shutdown(sock.fd.load(Ordering::Relaxed), libc::SHUT_WR);
        }
    };
    // The end that the program asked for follows the last byte.
    end();
    sock.tx.state.on(Event::AllSent);
    if let Some(family) = sock.family()
        && !sock.carrier().ends_by_record
    {
        family.hand_writing();
    }
    // A handler may have asked for it in between.
    end();
    let mut waiters = 0;
    if let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) {
        // A waiter that comes later sees the state.
        waiters = dir.tx_wishes.waiters.load(Ordering::SeqCst);
        wake::own_threads(link, waiters, sock.index.load(Ordering::Relaxed));
    }
    sock.tx.set_dir(None);
    sock.conn().tx.holds_none();
    if sock.lingers.load(Ordering::Relaxed) {
        jobs::close_when_drained(sock);
    }
    // Sets that wait for room wait for the kernel's from now on.
    for i in 0..SETS {
        if let Some(set) = sock.set_at(i) {
            set.writes_by_tcp(sock, waiters);
        }
    }
    leave::leave(sock);
    Resent::All
}

/// What TCP takes of a re-send, if there is one, be it an inherited one.
pub(crate) fn resend_now(sock: &'static Socket) -> Resent {
    let Ok(_section) = sock.tx.lock.enter() else {
        return Resent::Amid;
    };
    match sock.tx.state() {
        State::Resending => now(sock),
        State::Inherited => demote::settle_tx(sock, Reason::Fork),
        _ => Resent::All,
    }
}

/// What is left of a re-send is not sent: the connection is to be reset, or nobody can read it.
pub(crate) fn abandon_rest(sock: &'static Socket) {
    if sock.tx.state() == State::Resending
        && let Ok(_section) = sock.tx.lock.enter()
        && sock.tx.state() == State::Resending
    {
        finish_resend(sock);
    }
}
