//! Stubs for a build without links to other hosts.

use core::net::SocketAddr;
use sluice_sockets::socket::Socket;
use sluice_stats::Reason;

pub const fn attempt(_: &'static Socket, _: SocketAddr, _: SocketAddr) -> Result<(), Reason> {
    Err(Reason::PeerRemote)
}
pub const fn begin(_: &'static Socket, _: u32) {}
pub const fn progress() -> Option<u64> {
    None
}
pub const fn on_event(_: u64) {}
pub const fn after_fork() {}
pub const fn hold() {}
pub(crate) const fn release_hold() {}
