//! What the engine answers a hook, and a call on its way to the kernel.

use crate::prefix::{self, Moved, Way};
use crate::socket::Socket;
use libc::{c_int, iovec, msghdr, size_t, ssize_t};

/// What became of a call.
#[must_use]
pub enum Verdict {
    /// Served here: return this value, leave `errno` alone.
    Done(ssize_t),
    /// Failed here: set `errno` to this value and return -1.
    Failed(Error),
    /// Call the real function with the same arguments, then hand its result to the
    /// interface's `finish`.
    Pass(Pass),
    /// Sleep by `IoWait::sleep` with nothing held and nothing to drop, then ask `woken`, and call
    /// the engine again with the same arguments and the same `IoWait`.
    Block,
}

/// Why a call failed, in the terms of TCP. The preload's errno table translates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Nothing can be moved now and the caller does not want to wait.
    WouldBlock,
    /// A signal handler that does not restart calls interrupted the wait.
    Interrupted,
    /// The peer died or closed with unread input.
    Reset,
    /// The writing direction is closed. The hook also raises SIGPIPE unless told not to
    /// (`raise` is false after MSG_NOSIGNAL).
    BrokenPipe {
        /// Raise SIGPIPE before returning.
        raise: bool,
    },
    /// A user buffer cannot be read or written.
    BadAddress,
    /// What the kernel said, passed on as it is.
    Kernel(c_int),
}

/// A call on its way to the kernel; the socket is told when it is over.
///
/// Has no destructor: a thread may be cancelled inside the real call.
pub struct Pass(usize);

/// In the low bits of a [`Pass`]: which half, whether its bytes count, and whether they are to be
/// shown.
const RX: usize = 1;
const TX: usize = 2;
const UNCOUNTED: usize = 4;
const SHOWN: usize = 8;
/// They were looked at before.
const AHEAD: usize = 16;
/// All of them.
const BITS: usize = 31;
const _: () = assert!(align_of::<Socket>() > BITS);

impl Pass {
    /// Nobody has to be told.
    pub const NOBODY: Pass = Pass(0);

    /// A read of `sock`.
    #[inline]
    pub fn rx(sock: &'static Socket) -> Self {
        let shown = usize::from(sock.prefix.wants(Way::In)) * SHOWN;
        Self(core::ptr::from_ref(sock) as usize | RX | shown)
    }
    /// A peek: its bytes stay where they are.
    #[inline]
    pub(crate) fn rx_uncounted(sock: &'static Socket) -> Self {
        Self(core::ptr::from_ref(sock) as usize | RX | UNCOUNTED)
    }
    /// A write to `sock`.
    #[inline]
    pub fn tx(sock: &'static Socket) -> Self {
        let shown = usize::from(sock.prefix.wants(Way::Out)) * SHOWN;
        Self(core::ptr::from_ref(sock) as usize | TX | shown)
    }

    /// Has nobody to be told? Then streams may be on the link, and the real call must move no byte
    /// of theirs.
    #[inline]
    pub fn is_nobodys(&self) -> bool {
        self.0 == 0
    }

    /// Is it a look, be it for a read of nothing, whose bytes are not counted? No read may go to
    /// the kernel with it.
    #[inline]
    pub fn is_look(&self) -> bool {
        self.0 & UNCOUNTED != 0
    }

    /// Are the bytes that the real call moves to be shown, before
    /// the call is finished?
    #[inline(always)]
    pub fn wants_bytes(&self) -> bool {
        self.0 & SHOWN != 0
    }

    /// A write of these buffers: what is to be shown of them later may have to be looked at now.
    ///
    /// # Safety
    /// The arguments are those of a C caller.
    #[inline(always)]
    pub unsafe fn writes(self, sock: &'static Socket, iov: *const iovec, count: size_t) -> Self {
        // SAFETY: passed on.
        let ahead = self.wants_bytes() && unsafe { prefix::look_ahead(sock, iov, count) };
        Self(self.0 | (usize::from(ahead) * AHEAD))
    }
    /// As [`Pass::writes`], by a message header.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn writes_message(self, sock: &'static Socket, msg: *const msghdr) -> Self {
        // SAFETY: passed on.
        let ahead = self.wants_bytes() && unsafe { prefix::look_ahead_message(sock, msg) };
        Self(self.0 | (usize::from(ahead) * AHEAD))
    }

    /// The socket; `None`: nobody has to be told.
    #[inline]
    pub fn subject(&self) -> Option<&'static Socket> {
        // SAFETY: null, or made from a `&'static Socket`, whose alignment leaves the low bits free.
        unsafe { ((self.0 & !BITS) as *const Socket).as_ref() }
    }

    /// Is it a read?
    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        self.0 & RX != 0
    }

    /// What the real call has done, if its bytes are to be shown.
    pub fn moved(&self, ret: ssize_t) -> Option<Moved> {
        let way = if self.is_read() { Way::In } else { Way::Out };
        let sock = self.subject()?;
        let ahead = self.0 & AHEAD != 0;
        let call = Moved {
            sock,
            way,
            n: ret,
            ahead,
        };
        self.wants_bytes().then_some(call)
    }
}

/// A flag of `recv` that the kernel does not have: the call is `read` or its kin, which return 0
/// at once when asked for nothing, while `recv` waits for data even then.
pub const READ: c_int = 1 << 28;
