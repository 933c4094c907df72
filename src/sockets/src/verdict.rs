//! The engine's answers to a hook, and the token of a call that is passed to the kernel.

use crate::prefix::{self, Moved, Way};
use crate::socket::Socket;
use core::sync::atomic::Ordering;
use libc::{c_int, iovec, msghdr, size_t, ssize_t};

/// The outcome of a call.
#[must_use]
pub enum Verdict {
    /// Served: return this value, and leave `errno` alone.
    Done(ssize_t),
    /// Failed: set `errno` by this error and return -1.
    Failed(Error),
    /// Call the real function with the same arguments, then hand its result to `finish` of the
    /// engine's interface.
    Pass(Pass),
    /// Sleep by `IoWait::sleep`, with no lock held and nothing to drop, then ask `woken`, and call
    /// the engine again with the same arguments and the same `IoWait`.
    Block,
}

/// Why a call failed, in TCP's terms. The preload's errno table translates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Nothing can be moved now, and the call may not wait.
    WouldBlock,
    /// A signal handler without SA_RESTART interrupted the wait.
    Interrupted,
    /// The peer died, or closed with unread input.
    Reset,
    /// The writing half is shut down. The hook also raises SIGPIPE if `raise`, which is false after
    /// MSG_NOSIGNAL.
    BrokenPipe {
        /// Raise SIGPIPE before returning.
        raise: bool,
    },
    /// A buffer of the program is not mapped.
    BadAddress,
    /// The kernel's errno, unchanged.
    Kernel(c_int),
}

/// A call on its way to the kernel; `finish` tells the socket when it has returned.
///
/// It has no destructor, since a thread may be cancelled inside the real call.
pub struct Pass(usize);

/// In the low bits of a [`Pass`]: the half, whether the bytes count, and whether they are to be
/// shown to the proof.
const RX: usize = 1;
const TX: usize = 2;
const UNCOUNTED: usize = 4;
const SHOWN: usize = 8;
/// The bytes were hashed before the call.
const AHEAD: usize = 16;
/// All these bits.
const BITS: usize = 31;
const _: () = assert!(align_of::<Socket>() > BITS);

impl Pass {
    /// No socket is to be told.
    pub const NOBODY: Pass = Pass(0);

    /// A read of `sock`.
    #[inline]
    pub fn rx(sock: &'static Socket) -> Self {
        let shown = usize::from(sock.prefix.wants(Way::In)) * SHOWN;
        Self(core::ptr::from_ref(sock) as usize | RX | shown)
    }
    /// A peek of `sock`: its bytes are not counted.
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

    /// Returns whether no socket is to be told. Then a stream may be on a link, and the real call
    /// must move none of its bytes.
    #[inline]
    pub fn is_nobodys(&self) -> bool {
        self.0 == 0
    }

    /// Returns whether the call is a peek, or a read of no byte, which is not counted. A call that
    /// reads must not go to the kernel with it.
    #[inline]
    pub fn is_look(&self) -> bool {
        self.0 & UNCOUNTED != 0
    }

    /// Returns whether bytes may be owed to the socket. The engine has waited for as many as the
    /// call at hand asks for; a later call has to wait for its own.
    #[inline]
    pub fn may_be_owed(&self) -> bool {
        let is_owed = |sock: &Socket| sock.rx.owed.load(Ordering::Relaxed) != 0;
        self.is_read() && self.subject().is_some_and(is_owed)
    }

    /// Returns whether the bytes that the real call moves are to be shown before `finish`.
    #[inline(always)]
    pub fn wants_bytes(&self) -> bool {
        self.0 & SHOWN != 0
    }

    /// For a write of these buffers: hashes them now if they may be gone after the call.
    ///
    /// # Safety
    /// The arguments are those of a C caller, and the call is counted.
    #[inline(always)]
    pub unsafe fn writes(self, sock: &'static Socket, iov: *const iovec, count: size_t) -> Self {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        let ahead = self.wants_bytes() && unsafe { prefix::look_ahead(sock, iov, count) };
        Self(self.0 | (usize::from(ahead) * AHEAD))
    }
    /// [`Pass::writes`] for a message header.
    ///
    /// # Safety
    /// As [`Pass::writes`].
    #[inline(always)]
    pub unsafe fn writes_message(self, sock: &'static Socket, msg: *const msghdr) -> Self {
        // SAFETY: the hook passes a C caller's arguments, as this function demands.
        let ahead = self.wants_bytes() && unsafe { prefix::look_ahead_message(sock, msg) };
        Self(self.0 | (usize::from(ahead) * AHEAD))
    }

    /// The socket; `None`: no socket is to be told.
    #[inline]
    pub fn subject(&self) -> Option<&'static Socket> {
        // SAFETY: null, or a `&'static Socket`, whose alignment leaves the low bits free.
        unsafe { ((self.0 & !BITS) as *const Socket).as_ref() }
    }

    /// Returns whether the call is a read.
    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        self.0 & RX != 0
    }

    /// What the real call has moved, if its bytes are to be shown.
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

/// A flag of `recv` that the kernel does not have: the call is `read` or its kin, which return 0 at
/// once when asked for no byte, while `recv` waits for data even then.
pub const READ: c_int = 1 << 28;
