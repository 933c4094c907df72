//! How many bytes TCP is to bring that were on a link before, and how long calls wait for them.

use crate::socket::Socket;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::sys;
use sluice_transport::links;

/// Longest wait for re-sent bytes, in ns. A peer re-sends at once, but may have lost its CPU or be
/// on another host.
pub fn owed_ns() -> u64 {
    if links::are_driven() {
        sluice_transport::FULL_REMOTE_NS
    } else {
        50_000_000
    }
}
/// Value of [`owed`](crate::socket::Half::owed) for a stream between hosts that dropped bytes of
/// the link: TCP will bring an unknown number of them.
pub const SOME: u64 = u64::MAX;

/// Until when a call that does not wait may wait for owed bytes after all; 0: none ever were.
static OWED_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// Notes that [`SOME`] bytes are owed to the socket that uses a stream of a link between hosts.
pub fn owes_on(near: &'static sluice_fabric::shm::Link, index: u32) {
    if let Some(sock) = crate::socket::sock_of(near, index) {
        owes(sock, SOME);
    }
}

/// Notes that TCP owes what lay on the link, up to its byte count `bytes`. Call with the rx lock
/// held.
pub fn owes(sock: &Socket, bytes: u64) {
    sock.rx.owed.store(bytes, Ordering::Relaxed);
    OWED_UNTIL_NS.store(sys::rough_ns() + owed_ns(), Ordering::Relaxed);
}

/// Returns whether any socket may be [owed](owes) bytes: for a poll of many that finds nothing.
#[inline]
pub fn is_any_owed() -> bool {
    let until = OWED_UNTIL_NS.load(Ordering::Relaxed);
    until != 0 && sys::rough_ns() < until
}
