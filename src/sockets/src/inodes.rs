//! Finds a socket of this process by its inode, by which other processes name it.
//!
//! A new socket is noted without a system call. Inodes are looked up when one is searched that is
//! not known, once for each socket that is still open.

use crate::socket::{self, Socket};
use core::sync::atomic::Ordering;
use sluice_fabric::lock::{self, Guarded, OverFork};
use sluice_fabric::sys;
use std::collections::BTreeMap;

/// The sockets whose inodes are known.
struct Known {
    /// Sockets by inode, each with its generation.
    socks: BTreeMap<u64, (&'static Socket, u32)>,
    /// With more entries than this, those of closed sockets are removed.
    most: usize,
}
static KNOWN: Guarded<Known> = Guarded::of_order(
    lock::BEFORE_SOCKETS,
    Known {
        socks: BTreeMap::new(),
        most: FEW,
    },
);
const FEW: usize = 128;

/// The socket's inode; `None`: the kernel does not say.
pub fn of(sock: &Socket) -> Option<u64> {
    let noted = &sock.inode;
    match noted.load(Ordering::Relaxed) {
        0 => {
            let generation = sock.generation.load(Ordering::Acquire);
            let inode = sys::fstat(sock.fd.load(Ordering::Relaxed)).ok()?.st_ino;
            let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = noted.compare_exchange(0, inode, set, fetch);
            if sock.generation.load(Ordering::Acquire) != generation {
                // The structure may belong to another connection, while the inode is the old one's.
                let _ = noted.compare_exchange(inode, 0, set, fetch);
                return None;
            }
            Some(inode)
        }
        known => Some(known),
    }
}

/// The socket of this process with this inode, and its generation.
pub fn find(inode: u64) -> Option<(&'static Socket, u32)> {
    let mut known = KNOWN.lock()?;
    let is_open = |&(sock, generation): &(&'static Socket, u32)| {
        sock.generation.load(Ordering::Acquire) == generation
            && sock.fds.load(Ordering::Acquire) != 0
    };
    if let Some(found) = known.socks.get(&inode).copied().filter(is_open) {
        return Some(found);
    }
    take_in(&mut known);
    if known.socks.len() > known.most {
        known.socks.retain(|_, of| is_open(of));
        known.most = (2 * known.socks.len()).max(FEW);
    }
    known.socks.get(&inode).copied().filter(is_open)
}

/// Looks up the inodes of the sockets opened since the last search.
fn take_in(known: &mut Known) {
    // Taken out of the stack first: a socket opened from now on is in it again.
    for sock in socket::OPENED.take() {
        let generation = sock.generation.load(Ordering::Acquire);
        if sock.fds.load(Ordering::Acquire) != 0
            && let Some(inode) = of(sock)
        {
            known.socks.insert(inode, (sock, generation));
        }
    }
}

/// Held over a fork.
pub const HELD: &dyn OverFork = &KNOWN;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{self, role};

    #[test]
    fn a_socket_is_found_by_its_inode_as_long_as_it_is_open() {
        let open = || sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        for _ in 0..3 {
            let fds = [open(), open()];
            let socks = fds.each_ref().map(|fd| {
                let sock = socket::alloc(fd.raw(), role::CONNECTING).unwrap();
                let inode = sys::fstat(fd.raw()).unwrap().st_ino;
                (sock, inode, sock.generation.load(Ordering::Acquire))
            });
            for (sock, inode, generation) in socks {
                let (found, its) = find(inode).unwrap();
                assert!(core::ptr::eq(found, sock) && its == generation);
                assert_eq!(of(sock), Some(inode));
            }
            assert!(find(u64::MAX).is_none());
            for (sock, inode, _) in socks {
                socket::free(sock);
                assert!(find(inode).is_none());
            }
        }
    }

    #[test]
    fn entries_of_closed_sockets_do_not_pile_up() {
        for _ in 0..16 * FEW {
            let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
            let sock = socket::alloc(fd.raw(), role::CONNECTING).unwrap();
            assert!(find(of(sock).unwrap()).is_some());
            socket::free(sock);
        }
        assert!(KNOWN.lock().unwrap().socks.len() <= 2 * FEW);
    }
}
