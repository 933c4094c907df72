//! Waits until TCP has everything of a demoted stream, or makes room for it.
//!
//! | function | called | waits |
//! |---|---|---|
//! | [`blocking`] | before code without hooks, or another process, uses the descriptor | yes |
//! | [`parting`] | when the process ends, or at a close with SO_LINGER | as [`Patience`] says |
//! | [`resend_now`] | as a step of both, and before `shutdown` | for an owner, if inherited |
//! | [`make_room`] | before the last close, so that it need not wait | no |
//!
//! Within the host a wait is a poll for room in TCP. Between hosts the peer's record counts, too,
//! and the carrier waits (`carrier::finish`, `carrier::release`), for at most 5 s at a time.
//!
//! Call these functions with no lock held. They take the tx lock for one step, and sleep without
//! it, so another thread may end the re-send meanwhile: each turn reads the state again. A failed
//! connection ends a wait, since [`resend::now`] then drops the rest.

use crate::resend::{self, Resent};
use crate::socket::{Socket, State};
use crate::{carrier, demote};
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_runtime::seccomp;
use sluice_stats::Reason;

/// Sends the rest of a re-send, before a use of the descriptor that no hook of this process serves
/// (exec, passing, `splice`). Waits for room without a time limit, also over signals, until the
/// connection fails; between hosts 5 s.
pub fn blocking(sock: &'static Socket, reason: Reason) {
    if sock.carrier().ends_by_record {
        return carrier::finish(sock, reason);
    }
    while matches!(sock.tx.state(), State::Resending | State::Inherited) {
        match resend_now(sock) {
            Resent::All | Resent::Amid | Resent::Held => return,
            Resent::NoRoom => {
                let fd = sock.fd.load(Ordering::Relaxed);
                let _ = sys::poll_one(fd, libc::POLLOUT, None);
            }
        }
    }
}

/// Sends what TCP takes of a re-send, if there is one. An inherited stream is demoted for it.
pub(crate) fn resend_now(sock: &'static Socket) -> Resent {
    let Ok(_section) = sock.tx.lock.enter() else {
        return Resent::Amid;
    };
    match sock.tx.state() {
        State::Resending => resend::now(sock),
        State::Inherited => demote::settle_tx(sock, Reason::Fork),
        _ => Resent::All,
    }
}

/// How long [`parting`] waits for TCP to take the rest of a re-send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As long as it takes, since no thread could go on with it later.
    Endless,
    /// Until this time (`sys::now_ns`) or a signal: SO_LINGER of a close.
    Until(u64),
}

impl Patience {
    const fn until(self) -> Option<u64> {
        match self {
            Self::Endless => None,
            Self::Until(deadline) => Some(deadline),
        }
    }
}

/// Like [`blocking`], for a socket that the program no longer reads. Input ends the wait and drops
/// the rest, since the close that follows then resets the connection. Returns false if the time is
/// over or a signal has come, and the re-send is not finished.
pub(crate) fn parting(sock: &'static Socket, patience: Patience) -> bool {
    let fd = sock.fd.load(Ordering::Relaxed);
    let mut events = libc::POLLOUT | libc::POLLIN;
    loop {
        if sock.carrier().ends_by_record {
            // The link or the peer must say first what TCP is to carry. The link's own time limits
            // end that.
            let most = sys::now_ns() + carrier::PATIENCE_NS;
            carrier::release(sock, patience.until().map_or(most, |until| most.min(until)));
        }
        if carrier::has_input(sock, fd) {
            resend::abandon_rest(sock);
            return true;
        }
        if sock.tx.state() != State::Resending {
            return true;
        }
        let resent = resend_now(sock);
        if !matches!(resent, Resent::NoRoom | Resent::Held) {
            return true;
        }
        let left = patience
            .until()
            .map(|until| until.saturating_sub(sys::now_ns()));
        if left == Some(0) {
            return false;
        }
        if resent == Resent::Held {
            continue;
        }
        let left = left.map(sys::timespec);
        let shown = sys::poll_one(fd, events, left);
        if shown == Err(libc::EINTR) && patience != Patience::Endless {
            return false;
        }
        if shown.is_ok_and(|s| s & libc::POLLIN != 0) && !carrier::has_input(sock, fd) {
            // A FIN, or a part of the peer's record: both stay readable, and poll would return at
            // once.
            events = libc::POLLOUT;
        }
    }
}

/// Enlarges TCP's send buffer for the rest of a re-send, as far as the system allows, and sends on.
/// A buffer that the kernel's own tuning has made larger stays as it is. Call with no lock held,
/// before the last close.
pub fn make_room(sock: &'static Socket) {
    if sock.tx.state() != State::Resending {
        return;
    }
    let Some(most) = send_buffer_max() else {
        return;
    };
    let Ok(_section) = sock.tx.lock.enter() else {
        return;
    };
    if sock.tx.state() == State::Resending {
        let fd = sock.fd.load(Ordering::Relaxed);
        let now = sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
        let end = sock.tx.at.load(Ordering::Relaxed);
        let left = end.saturating_sub(sock.tx.from.load(Ordering::Relaxed));
        // The kernel doubles the value for its own overhead.
        let asked = i64::from(now)
            .saturating_add(2 * left.min(1 << 30) as i64)
            .min(most);
        if asked * 2 > i64::from(now) && asked <= i64::from(i32::MAX) {
            let asked = asked as i32;
            let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &asked);
            resend::now(sock);
        }
    }
}

/// The largest SO_SNDBUF that the system allows. `None`: unknown.
fn send_buffer_max() -> Option<i64> {
    // In builds with faults the buffer stays small, so that the close has to linger.
    if cfg!(feature = "fault") {
        return None;
    }
    seccomp::may_use_system_calls().ok()?;
    let _low = sluice_runtime::own_fds::Low::begin();
    let most = sys::number_in(c"/proc/sys/net/core/wmem_max")?;
    most.try_into().ok()
}
