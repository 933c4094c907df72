//! Options that the link honours in the kernel's place, and options that keep a connection on TCP.

use crate::carrier;
use crate::socket::{Socket, role};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::c_int;
use sluice_fabric::sys;
use sluice_stats::Reason;

/// From linux/tcp.h and asm-generic/socket.h, as far as libc lacks them.
pub(crate) mod name {
    use libc::c_int;
    pub(crate) const TCP_MD5SIG_EXT: c_int = 32;
    pub const TCP_ZEROCOPY_RECEIVE: c_int = 35;
    pub(crate) const TCP_AO_ADD_KEY: c_int = 38;
    pub(crate) const TCP_AO_REPAIR: c_int = 42;
    pub(crate) const SO_ATTACH_REUSEPORT_CBPF: c_int = 51;
    pub(crate) const SO_ATTACH_REUSEPORT_EBPF: c_int = 52;
    pub(crate) const SO_TIMESTAMP_NEW: c_int = 63;
    pub(crate) const SO_TIMESTAMPNS_NEW: c_int = 64;
    pub(crate) const SO_TIMESTAMPING_NEW: c_int = 65;
    pub(crate) const SO_RCVTIMEO_NEW: c_int = 66;
    pub(crate) const SO_SNDTIMEO_NEW: c_int = 67;
    pub(crate) const SOL_TLS: c_int = 282;
    pub(crate) const TLS_TX: c_int = 1;
    pub(crate) const TLS_RX: c_int = 2;
}

/// Why a link cannot honour an option, if so.
pub(crate) fn pins(level: c_int, option: c_int) -> Option<Reason> {
    match (level, option) {
        (libc::IPPROTO_TCP, libc::TCP_ULP) | (name::SOL_TLS, name::TLS_TX | name::TLS_RX) => {
            Some(Reason::TcpUlp)
        }
        (libc::IPPROTO_TCP, libc::TCP_REPAIR) => Some(Reason::TcpRepair),
        (libc::IPPROTO_TCP, libc::TCP_MD5SIG | name::TCP_MD5SIG_EXT) => Some(Reason::TcpMd5),
        (libc::IPPROTO_TCP, name::TCP_AO_ADD_KEY..=name::TCP_AO_REPAIR) => Some(Reason::TcpMd5),
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF) => {
            Some(Reason::AttachFilter)
        }
        (libc::SOL_SOCKET, name::SO_ATTACH_REUSEPORT_CBPF | name::SO_ATTACH_REUSEPORT_EBPF) => {
            Some(Reason::AttachFilter)
        }
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => Some(Reason::Zerocopy),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING | name::SO_TIMESTAMPING_NEW) => {
            Some(Reason::Timestamping)
        }
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS) => Some(Reason::Timestamping),
        (libc::SOL_SOCKET, name::SO_TIMESTAMP_NEW | name::SO_TIMESTAMPNS_NEW) => {
            Some(Reason::Timestamping)
        }
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => Some(Reason::PeekOff),
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => Some(Reason::PacingRate),
        _ => None,
    }
}

/// True if any socket of this process may have an option that [concerns
/// streams](crate::setsockopt::Asked). While this and the next are false, the kernel need not be
/// asked for a dozen options.
static ANY: AtomicBool = AtomicBool::new(false);
/// The same for sockets that `accept` returned.
static FROM_LISTENERS: AtomicBool = AtomicBool::new(false);

/// The program may set options without a hook.
pub(crate) fn may_be_set_unseen() {
    ANY.store(true, Ordering::Relaxed);
}

/// Another process has a listener too, and may set its options: a relative, or a previous owner.
pub fn shares_listeners() {
    FROM_LISTENERS.store(true, Ordering::Relaxed);
}

/// Returns whether the socket may have such an option.
fn may_have_options(sock: &Socket) -> bool {
    let is_accepted = sock.role.load(Ordering::Relaxed) != role::CONNECTING;
    ANY.load(Ordering::Relaxed)
        || is_accepted && FROM_LISTENERS.load(Ordering::Relaxed)
        || sock.was_inherited.load(Ordering::Relaxed)
}

/// A timeout below zero: the kernel does not wait at all. `getsockopt` reports no timeout then.
pub(crate) const AT_ONCE: u64 = 1;

/// Reads from the kernel what the link must honour: the kernel has validated the values, and an
/// accepted socket has those of its listener. Call under the rx lock, so that the later of two
/// calls decides.
pub fn note(sock: &'static Socket, fd: c_int) {
    if !may_have_options(sock) {
        return;
    }
    for (option, cell) in [
        (libc::SO_RCVTIMEO, &sock.rcv_timeout_ns),
        (libc::SO_SNDTIMEO, &sock.snd_timeout_ns),
    ] {
        let Ok(time) = sys::getsockopt::<libc::timeval>(fd, libc::SOL_SOCKET, option) else {
            continue;
        };
        let (seconds, micros) = (time.tv_sec.max(0) as u64, time.tv_usec.max(0) as u64);
        let ns = seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(micros * 1000);
        if ns != 0 || cell.load(Ordering::Relaxed) != AT_ONCE {
            cell.store(ns, Ordering::Relaxed);
        }
    }
    note_tells_unread(sock, fd);
    if sock.low_held.load(Ordering::Relaxed) {
        return;
    }
    if let Ok(low) = sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
        sock.rcvlowat.store(low.max(1) as u32, Ordering::Relaxed);
    }
}

pub(crate) fn note_tells_unread(sock: &Socket, fd: c_int) {
    let tells = sys::getsockopt::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_INQ);
    let tells = tells.is_ok_and(|on| on != 0);
    sock.tells_unread.store(tells, Ordering::Relaxed);
}

/// Sets the kernel's SO_RCVLOWAT to 1, since TCP may bring the peer's record, which may be shorter
/// than the program's value. Call under the rx lock.
pub(crate) fn hold_low(sock: &Socket) {
    if sock.rcvlowat.load(Ordering::Relaxed) > 1 && !sock.low_held.swap(true, Ordering::Relaxed) {
        set_low(sock, 1);
    }
}

/// Sets the kernel's SO_RCVLOWAT to the program's again. Call under the rx lock.
pub(crate) fn release_low(sock: &Socket) {
    if sock.low_held.load(Ordering::Relaxed) {
        set_low(sock, sock.rcvlowat.load(Ordering::Relaxed) as c_int);
        // Cleared last: until then what the kernel reports is checked.
        sock.low_held.store(false, Ordering::Release);
    }
}

/// A call is about to sleep that fewer bytes are to wake than the program's SO_RCVLOWAT: sets the
/// kernel's to 1. Call under the rx lock.
pub(crate) fn wait_below_low(sock: &Socket) {
    sock.low_waits.fetch_add(1, Ordering::Relaxed);
    hold_low(sock);
}

/// Ends [`wait_below_low`] after the sleep. Call under the rx lock.
pub(crate) fn waited_below_low(sock: &Socket) {
    let waits = sock.low_waits.load(Ordering::Relaxed).saturating_sub(1);
    sock.low_waits.store(waits, Ordering::Relaxed);
    if waits == 0 && !carrier::reads_link(sock) {
        release_low(sock);
    }
}

fn set_low(sock: &Socket, low: c_int) {
    let fd = sock.fd.load(Ordering::Relaxed);
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &low);
}

/// The program has set this SO_RCVLOWAT. Call under the rx lock.
pub(crate) fn note_low(sock: &'static Socket, fd: c_int, asked: c_int) {
    if sock.low_held.swap(false, Ordering::Relaxed) {
        // The kernel's may have been changed to 1 again since the program's call. (If not, setting
        // it twice would be a second edge.)
        set_low(sock, asked);
    }
    note(sock, fd);
    if carrier::reads_link(sock) || sock.low_waits.load(Ordering::Relaxed) != 0 {
        hold_low(sock);
    }
}

/// What the socket has from its listener that a link cannot honour, as far as the kernel tells.
pub(crate) fn inherited_pin(sock: &Socket) -> Option<Reason> {
    if !may_have_options(sock) {
        return None;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    if sys::has_filter(fd) {
        return Some(Reason::AttachFilter);
    }
    let option = |level, option| sys::getsockopt::<c_int>(fd, level, option);
    let is_on = |&(level, name): &_| option(level, name).is_ok_and(|value| value != 0);
    let flags = [
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    ];
    // All bits are set if there is no limit.
    let pace = sys::getsockopt::<u32>(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
    if pace.is_ok_and(|rate| rate != u32::MAX) {
        return Some(Reason::PacingRate);
    }
    if let Some((level, name)) = flags.into_iter().find(is_on) {
        return pins(level, name);
    }
    // Off is -1.
    option(libc::SOL_SOCKET, libc::SO_PEEK_OFF)
        .is_ok_and(|at| at >= 0)
        .then_some(Reason::PeekOff)
}

/// Bytes that TCP has not sent even once (linux/sockios.h).
const SIOCOUTQNSD: u64 = 0x894b;

/// Makes TCP send what it holds back (a partial last segment, by Nagle's rule, TCP_CORK or
/// MSG_MORE), since the next write goes to the ring. Setting TCP_NODELAY does that whatever else is
/// set; the program's own setting is restored.
pub(crate) fn push_out(sock: &Socket, fd: c_int) {
    if sys::ioctl_int(fd, SIOCOUTQNSD) == Ok(0) {
        return;
    }
    let before = sock.nodelay.load(Ordering::SeqCst);
    let was = sys::getsockopt::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    let set = |on: c_int| {
        let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on);
    };
    set(1);
    if was == Ok(0) {
        set(0);
        let now = sock.nodelay.load(Ordering::SeqCst);
        if now != before && now & 1 != 0 {
            // The program set it in between, and its call is over or still to come.
            set(1);
        }
    }
}
