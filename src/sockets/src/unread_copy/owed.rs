//! How much TCP is to bring that was in a link before, and until when calls wait for it.

use crate::socket::Socket;
use crate::stall_watch;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::sys;
use sluice_transport::verbs;

/// Longest wait for bytes that a peer sends again, in ns. It does so at once; it may have lost its
/// CPU, or be on another host.
pub fn owed_ns() -> u64 {
    if verbs::is_used() {
        stall_watch::FULL_REMOTE_NS
    } else {
        50_000_000
    }
}
/// [`owed`](crate::socket::Half::owed) of a stream from another host that dropped bytes of the
/// link: how many come by TCP instead is not known yet.
pub const SOME: u64 = u64::MAX;

/// Until when a call that does not wait may have to wait for what is owed; 0: nothing ever was.
static OWED_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// The same, of the socket that uses a stream of a link to another host.
pub fn owes_on(near: &'static sluice_fabric::shm::Link, index: u32) {
    if let Some(sock) = crate::socket::sock_of(near, index) {
        owes(sock, SOME);
    }
}

/// Under the rx lock: what TCP is to bring by then was there before.
pub fn owes(sock: &Socket, bytes: u64) {
    sock.rx.owed.store(bytes, Ordering::Relaxed);
    OWED_UNTIL_NS.store(sys::rough_ns() + owed_ns(), Ordering::Relaxed);
}

/// For a look at many that does not wait and finds nothing: may anything be [owed](owes) to one of
/// them?
#[inline]
pub fn is_any_owed() -> bool {
    let until = OWED_UNTIL_NS.load(Ordering::Relaxed);
    until != 0 && sys::rough_ns() < until
}
