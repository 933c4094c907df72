//! Emulates the RST of a killed peer's kernel: the process died with bytes unread in its ring, of
//! which its kernel knew nothing.

use crate::socket::Socket;
use crate::tcp;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_fabric::sys;

/// Makes this end's kernel reset the connection, once. The peer's process died with bytes of ours
/// unread in its ring; if they had gone by TCP, its kernel would have sent an RST. Dissolving the
/// association leaves ECONNRESET on the socket, and shutting it down adds the EOF after it.
///
/// False: done before; TCP has unread bytes, which would be lost; a thread is in the kernel's recv;
/// or an error, such as a real RST after the FIN, is already on the socket.
pub fn make(sock: &Socket) -> bool {
    let fd = sock.fd.load(Ordering::Relaxed);
    // A thread that the FIN wakes in the kernel's recv would get EPIPE from a dissolved socket.
    if sock.rx.in_kernel() != 0
        || sys::ioctl_int(fd, libc::FIONREAD) != Ok(0)
        || sock.reset_seen.swap(true, Ordering::SeqCst)
    {
        return false;
    }
    ANY.store(true, Ordering::Relaxed);
    // A real RST from now on would leave EPIPE on the socket, which no recv shows on TCP: keep it
    // out.
    keep_out(fd);
    let stands = !sys::has_error(fd);
    if stands {
        dissolve(fd);
        let _ = sys::shutdown(fd, libc::SHUT_RDWR);
    }
    let_in(fd);
    sock.reset_made.store(true, Ordering::SeqCst);
    stands
}

/// Makes the kernel drop every segment that arrives for the socket.
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

/// Ends [`keep_out`].
fn let_in(fd: i32) {
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0i32);
}

/// True if this process has ever [reset](make) a connection.
pub static ANY: AtomicBool = AtomicBool::new(false);

/// See [`ANY`].
#[inline]
pub fn is_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// How far a [reset](make) has come. The kernel reports its two steps as they happen, with an EOF
/// without an error in between, so nothing of a begun reset may be shown to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resetting {
    /// No reset.
    None,
    /// A thread is making the reset.
    Begun,
    /// The reset is complete, and the kernel reports it.
    Made,
}

/// How far the reset is. Ask after the kernel was asked, so that its answer can be judged.
pub fn resetting(sock: &Socket) -> Resetting {
    if !is_any() || !sock.reset_seen.load(Ordering::SeqCst) {
        Resetting::None
    } else if sock.reset_made.load(Ordering::SeqCst) {
        Resetting::Made
    } else {
        Resetting::Begun
    }
}

/// Waits for a reset that another thread has begun. That thread holds one or both locks. Call with
/// neither held.
pub fn let_end(sock: &Socket) {
    if resetting(sock) == Resetting::Begun {
        sock.synchronize_locks();
    }
}

/// Like [`make`], but drops what TCP holds unread.
pub(crate) fn make_hard(sock: &Socket) {
    // An earlier reset's error is the program's to see.
    if sock.reset_seen.load(Ordering::Relaxed) {
        return;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    // Bytes that come in between would prevent the reset.
    keep_out(fd);
    drop_tcp(fd);
    if !make(sock) {
        let_in(fd);
    }
}

/// Resets a connection of which bytes are missing for ever, whatever the program then sees of it:
/// the peer must not take what follows for them.
#[cold]
pub(crate) fn cut(sock: &Socket) {
    make_hard(sock);
    let fd = sock.fd.load(Ordering::Relaxed);
    if sock.reset_made.load(Ordering::SeqCst) || dissolve(fd) {
        return;
    }
    // Some kernels refuse while a thread waits in the kernel's recv (Linux 6.4 and 6.5).
    let _ = sys::shutdown(fd, libc::SHUT_RD);
    if !dissolve(fd) {
        let _ = sys::shutdown(fd, libc::SHUT_WR);
    }
}

/// Dissolves the association: the kernel sends an RST. Returns whether it did.
fn dissolve(fd: i32) -> bool {
    // SAFETY: zeroes are a valid address of family AF_UNSPEC.
    let nobody: libc::sockaddr = unsafe { core::mem::zeroed() };
    sys::connect(fd, &nobody, size_of::<libc::sockaddr>()).is_ok()
}

/// Drops what TCP holds unread. An error stays on the socket.
pub(crate) fn drop_tcp(fd: i32) {
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    let drop = || {
        // SAFETY: with MSG_TRUNC nothing is written to the address.
        unsafe { sys::recv(fd, core::ptr::null_mut(), 1 << 20, flags) }
    };
    while tcp::has_bytes(fd) && drop().is_ok_and(|n| n > 0) {}
}
