//! Addresses of sockets.

use core::net::SocketAddr;
use sluice_fabric::sys;

/// The address of the socket at `fd`, or of its peer. `None`: not connected, or no such socket.
#[must_use]
pub fn name(fd: i32, peer: bool) -> Option<SocketAddr> {
    let (storage, _) = sys::socket_name(fd, peer).ok()?;
    socket_addr(&storage)
}

/// A socket's address as the standard library's type.
#[must_use]
pub(crate) fn socket_addr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let at = core::ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which struct this is, and sockaddr_storage is large and
            // aligned enough for it.
            let v4 = unsafe { &*at.cast::<libc::sockaddr_in>() };
            let ip = core::net::Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: AF_INET6 says that it is this struct, for which sockaddr_storage has room.
            let v6 = unsafe { &*at.cast::<libc::sockaddr_in6>() };
            let ip = core::net::Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

/// The address with v4-mapped ones as v4, by which the kernel finds sockets of either family.
#[must_use]
pub fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
