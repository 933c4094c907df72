//! The reset that a killed peer's kernel would have sent, made here: the peer's process died with
//! bytes of ours unread in its ring, of which its kernel knew nothing.

use crate::socket::Socket;
use crate::tcp;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_fabric::sys;

/// The peer's process died leaving bytes of ours unread in its ring: where they had gone by TCP,
/// its kernel would have reset the connection, and ours would say so. Has our kernel do that, once:
/// dissolving the association leaves ECONNRESET on the socket, and shutting it down the end that
/// follows it. False: done before, TCP holds bytes for us, which would be lost, a thread is in the
/// kernel's recv, or the peer's kernel has reset the connection after its FIN, of which TCP makes
/// an end.
pub fn make(sock: &Socket) -> bool {
    let fd = sock.fd.load(Ordering::Relaxed);
    // A thread that still wakes up in the kernel's recv, for the FIN, would get EPIPE from a socket
    // dissolved under it.
    if sock.rx.in_kernel() != 0
        || sys::ioctl_int(fd, libc::FIONREAD) != Ok(0)
        || sock.reset_seen.swap(true, Ordering::SeqCst)
    {
        return false;
    }
    ANY.store(true, Ordering::Relaxed);
    // A reset that comes while we are at it would leave EPIPE on the socket, which no recv shows on
    // TCP: from here on none comes in.
    keep_out(fd);
    let stands = !sys::has_error(fd);
    if stands {
        // SAFETY: zeroes are a valid address; its family is AF_UNSPEC.
        let nobody: libc::sockaddr = unsafe { core::mem::zeroed() };
        let _ = sys::connect(fd, &nobody, size_of::<libc::sockaddr>());
        let _ = sys::shutdown(fd, libc::SHUT_RDWR);
    }
    let_in(fd);
    sock.reset_made.store(true, Ordering::SeqCst);
    stands
}

/// From here on the kernel takes nothing more in for the socket.
fn keep_out(fd: i32) {
    let mut nothing = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let filter = libc::sock_fprog {
        len: 1,
        filter: &raw mut nothing,
    };
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter);
}

/// The end of [`keep_out`].
fn let_in(fd: i32) {
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0i32);
}

/// Was a connection of this process ever [reset](make)?
pub static ANY: AtomicBool = AtomicBool::new(false);

/// See [`ANY`].
#[inline]
pub fn is_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// How far a [reset](make) has come. The kernel tells of its two steps as they are made, an end
/// without an error in between: nothing of that is the program's to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resetting {
    /// There was none.
    None,
    /// It is being made.
    Begun,
    /// The kernel tells all of it.
    Made,
}

/// See [`Resetting`]. Asked after what the kernel has told.
pub fn resetting(sock: &Socket) -> Resetting {
    if !is_any() || !sock.reset_seen.load(Ordering::SeqCst) {
        Resetting::None
    } else if sock.reset_made.load(Ordering::SeqCst) {
        Resetting::Made
    } else {
        Resetting::Begun
    }
}

/// Under no lock: a reset that another thread has begun is made after this. It holds one of the
/// locks, or both.
pub fn let_end(sock: &Socket) {
    if resetting(sock) == Resetting::Begun {
        sock.synchronize_locks();
    }
}

/// As [`make`], whatever TCP still holds for us, which is worth nothing.
pub(crate) fn make_hard(sock: &Socket) {
    // What it left on the socket is the program's to see.
    if sock.reset_seen.load(Ordering::Relaxed) {
        return;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    // What came in between would keep the reset from being made.
    keep_out(fd);
    drop_tcp(fd);
    if !make(sock) {
        let_in(fd);
    }
}

/// Drops what TCP holds unread. An error stays on the socket.
pub(crate) fn drop_tcp(fd: i32) {
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    let drop = || {
        // SAFETY: with MSG_TRUNC nothing is written.
        unsafe { sys::recv(fd, core::ptr::null_mut(), 1 << 20, flags) }
    };
    while tcp::has_bytes(fd) && drop().is_ok_and(|n| n > 0) {}
}
