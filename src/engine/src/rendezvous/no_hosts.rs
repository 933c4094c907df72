//! A build without links to other hosts: none is looked for.

use crate::sockets::sock::Sock;
use core::net::SocketAddr;
use sluice_stats::Reason;

pub(crate) const fn attempt(_: &'static Sock, _: SocketAddr, _: SocketAddr) -> Result<(), Reason> {
    Err(Reason::PeerRemote)
}
pub(crate) const fn begin(_: &'static Sock, _: u32) {}
pub(crate) const fn progress() -> Option<u64> {
    None
}
pub(crate) const fn on_event(_: u64) {}
pub(crate) const fn after_fork() {}
pub(crate) const fn hold() {}
pub(crate) const fn release_hold() {}
