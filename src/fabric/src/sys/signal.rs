//! Signals. In masks bit n is signal n + 1.

use super::{call, timespec};
use core::ptr;
use libc::c_int;
use syscalls::Sysno;

/// The handler's address (0 default, 1 ignored) and flags of `signal` (`rt_sigaction(2)`).
#[must_use]
pub fn signal_action(signal: c_int) -> Option<(usize, u64)> {
    // The kernel's own struct: handler, flags, restorer, mask (x86-64 and, without restorer,
    // aarch64).
    let mut action = [0usize; 4];
    sys!(rt_sigaction, signal, 0, action.as_mut_ptr(), 8).ok()?;
    let [handler, flags, ..] = action;
    Some((handler, flags as u64))
}

/// Sets this thread's signal mask by a raw call and returns the one before (bit n: signal n + 1).
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let _ = sys!(
        rt_sigprocmask,
        libc::SIG_SETMASK,
        &raw const mask,
        &raw mut before,
        8
    );
    before
}

/// Signals that wait until this thread's mask lets them through (bit n: signal n + 1).
#[must_use]
pub fn pending_signals() -> u64 {
    let mut pending = 0u64;
    let _ = sys!(rt_sigpending, &raw mut pending, 8);
    pending
}

/// Takes one of these signals, which this thread blocks, if it is pending: nobody sees it.
pub fn take_signal(mask: u64) {
    let now = timespec(0);
    let info = ptr::null::<libc::siginfo_t>();
    let _ = sys!(rt_sigtimedwait, &raw const mask, info, &raw const now, 8);
}
