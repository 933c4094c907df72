//! In place of `prefix.rs` where no other host is met: nothing is to be proved, and nothing kept
//! for it.

pub use crate::digests::Way;
use crate::socket::Socket;
use libc::{c_int, iovec, mmsghdr, msghdr, off64_t, ssize_t};

/// Nothing to ask for.
#[inline(always)]
pub fn init() {}
/// Nothing is kept.
#[inline(always)]
pub fn after_fork(_: &'static Socket) {}
/// See `prefix.rs`.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "nobody looks at it here")]
pub struct Moved {
    /// See `prefix.rs`.
    pub sock: &'static Socket,
    /// See `prefix.rs`.
    pub way: Way,
    /// See `prefix.rs`.
    pub n: ssize_t,
    /// See `prefix.rs`.
    pub ahead: bool,
}

/// Not called.
/// # Safety
/// None needed.
#[inline(always)]
pub(crate) unsafe fn look_ahead(_: &'static Socket, _: *const iovec, _: usize) -> bool {
    false
}
/// Not called.
/// # Safety
/// None needed.
#[inline(always)]
pub(crate) unsafe fn look_ahead_message(_: &'static Socket, _: *const msghdr) -> bool {
    false
}
/// Not called.
/// # Safety
/// None needed.
#[inline(always)]
pub unsafe fn moved(_: Moved, _: *const iovec, _: usize) {}
/// Not called.
/// # Safety
/// None needed.
#[inline(always)]
pub(crate) unsafe fn moved_message(_: Moved, _: *const msghdr) {}
/// Not called.
/// # Safety
/// None needed.
#[inline(always)]
pub(crate) unsafe fn moved_messages(_: Moved, _: *const mmsghdr, _: usize) {}
/// Not called.
/// # Safety
/// None needed.
#[inline(always)]
pub(crate) unsafe fn moved_file(_: Moved, _: c_int, _: *const off64_t) {}

/// Nothing is kept.
#[inline(always)]
pub fn forget(_: &'static Socket) {}
