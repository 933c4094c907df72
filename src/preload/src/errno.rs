//! The one place where an outcome becomes `errno` and -1.

use crate::api::Error;
use libc::{c_int, ssize_t};

/// What TCP leaves in `errno` for this failure.
pub const fn number(error: Error) -> c_int {
    match error {
        Error::WouldBlock => libc::EAGAIN,
        Error::Interrupted => libc::EINTR,
        Error::Reset => libc::ECONNRESET,
        Error::BrokenPipe { .. } => libc::EPIPE,
        Error::BadAddress => libc::EFAULT,
        Error::Kernel(errno) => errno,
    }
}

/// Fails a call as the kernel would: the signal first, then `errno` and -1. A handler of SIGPIPE
/// runs before `errno` is set, as it does when the system call returns.
#[cold]
pub fn fail(error: Error) -> ssize_t {
    if matches!(error, Error::BrokenPipe { raise: true }) {
        // SAFETY: raise() takes any number; it sends to this very thread, as the kernel does, and
        // passes no hook of ours.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    restore(number(error));
    -1
}

/// The C library has no such function: fails as a kernel without the call does.
#[cold]
pub fn missing<R: From<i8>>() -> R {
    restore(libc::ENOSYS);
    R::from(-1)
}

/// The calling thread's `errno`.
#[inline]
pub fn current() -> c_int {
    // SAFETY: the C library gives a pointer to the calling thread's errno, valid while it runs.
    unsafe { *libc::__errno_location() }
}

/// Puts `errno` back to what [`current`] gave.
#[inline]
pub fn restore(errno: c_int) {
    // SAFETY: as in `current`; no other thread writes this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// The calling thread's `errno` as it is now, to be put back.
#[inline]
pub fn kept() -> Kept {
    // SAFETY: as in `current`.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as in `current`.
    Kept(place, unsafe { *place })
}

/// See [`kept`]. Stays on its thread.
pub struct Kept(*mut c_int, c_int);

impl Kept {
    /// Puts it back.
    #[inline]
    pub fn restore(self) {
        // SAFETY: the place is this thread's: a pointer is not sent.
        unsafe { *self.0 = self.1 };
    }
}
