//! Streams that do not fare well over their path: one whose ring is too short goes back to TCP and
//! comes again with a longer one, and one that is slower than TCP stays there.

use super::Hosts;
use core::net::IpAddr;
use sluice_fabric::sys;
use sluice_fabric::verbs::cm::Key;
use sluice_sockets::demote::{self, Which};
use sluice_sockets::socket::Socket;
use sluice_sockets::{path, upgrade};
use sluice_stats::Reason;

/// A ring that is too short is followed by one of so many times its length.
const LONGER: u32 = 4;
/// How long no other connection tries a link to a host to which one was slower than TCP, in ns.
const SLOW_NS: u64 = 60_000_000_000;

/// A longer ring would carry more. Nothing is done if none can be had.
pub fn outgrown(sock: &'static Socket) {
    let Some(link) = sock.link() else { return };
    let len = sock.rx.ring().map_or(0, |ring| ring.len() as u32);
    path::wants_ring(sock, len.saturating_mul(LONGER));
    if upgrade::far_ring_len(link, sock) > len {
        demote::demote(sock, Which::Both, Reason::Path);
    } else {
        path::wants_ring(sock, len);
    }
}

impl Hosts {
    /// TCP was faster than this stream, if its rate was known: the connection stays on it, and
    /// others to that host, if it is as far, do not leave it for a while. Else TCP carries the
    /// stream for a moment, since the program now writes as fast as it can.
    pub(crate) fn slower(&mut self, key: Key, sock: &'static Socket) {
        if path::begins_to_count(sock) {
            return demote::demote(sock, Which::Both, Reason::Path);
        }
        if let Some(host) = self.up(key).map(|up| up.host) {
            self.slow.retain(|(other, _)| *other != host);
            self.slow.push((host, sys::now_ns() + SLOW_NS));
        }
        sock.pin(Reason::Far);
        demote::demote(sock, Which::Both, Reason::Far);
    }

    /// Whether a link to that host was slower than TCP lately.
    pub(crate) fn is_slow(&mut self, host: IpAddr) -> bool {
        let now = sys::now_ns();
        self.slow.retain(|(_, until)| now < *until);
        self.slow.iter().any(|(slow, _)| *slow == host)
    }
}
