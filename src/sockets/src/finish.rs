//! Waits until a demoted stream is all on TCP: before others use the descriptor, or the process
//! ends.

use crate::remote;
use crate::resend::{self, Resent};
use crate::socket::{Socket, State};
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_runtime::seccomp;
use sluice_stats::Reason;

/// Sends the rest of a re-send, waiting for room: for a descriptor that is about to leave our hands
/// (exec, passing). Waits as a blocking write would; gives up when the connection fails.
pub fn blocking(sock: &'static Socket, reason: Reason) {
    if sock.carrier().ends_by_record {
        return remote::finish(sock, reason);
    }
    while matches!(sock.tx.state(), State::Resending | State::Inherited) {
        match resend::resend_now(sock) {
            Resent::All | Resent::Amid | Resent::Held => return,
            Resent::NoRoom => {
                let fd = sock.fd.load(Ordering::Relaxed);
                let _ = sys::poll_one(fd, libc::POLLOUT, None);
            }
        }
    }
}

/// How a parting process waits for TCP to take what is left of a re-send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As long as it takes: nobody is left to go on with it.
    Endless,
    /// Until then (`sys::now_ns`), or until a signal: a close that lingers.
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

/// As [`blocking`], for a socket that nobody will read from any more: input that has come,
/// or comes while we wait, makes an end of it, since TCP answers it by a reset then. False: the
/// time is over.
pub(crate) fn parting(sock: &'static Socket, patience: Patience) -> bool {
    let fd = sock.fd.load(Ordering::Relaxed);
    let mut events = libc::POLLOUT | libc::POLLIN;
    loop {
        if sock.carrier().ends_by_record {
            // The link, or the peer, is to say how much of it is TCP's: within its own time limits.
            let most = sys::now_ns() + remote::PATIENCE_NS;
            remote::release(sock, patience.until().map_or(most, |until| most.min(until)));
        }
        if remote::has_input(sock, fd) {
            resend::abandon_rest(sock);
            return true;
        }
        if sock.tx.state() != State::Resending {
            return true;
        }
        let resent = resend::resend_now(sock);
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
        if shown.is_ok_and(|s| s & libc::POLLIN != 0) && !remote::has_input(sock, fd) {
            // The peer's end, or a part of its record: these stay readable.
            events = libc::POLLOUT;
        }
    }
}

/// Under no lock, before a last close: makes TCP's buffer as large as what is left, where it may be
/// so large. (The kernel caps what is asked for, and what it then sets may be less than its own
/// tuning gave.)
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
        // The kernel doubles it, for its own overhead.
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

/// The most that SO_SNDBUF may be set to here.
fn send_buffer_max() -> Option<i64> {
    // Builds for tests go the long way.
    if cfg!(feature = "fault") {
        return None;
    }
    seccomp::may_use_system_calls().ok()?;
    let _low = sluice_runtime::own_fds::Low::begin();
    let most = sys::number_in(c"/proc/sys/net/core/wmem_max")?;
    most.try_into().ok()
}
