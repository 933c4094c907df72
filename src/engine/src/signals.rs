//! Whether the program's signal handlers restart the calls that they interrupt (signal(7)). The kernel restarts none of the waits that are made
//! here in their place, and does not say which handler has ended one.

use core::sync::atomic::{AtomicU64, Ordering};
use libc::c_int;
use sluice_fabric::sys;

/// What a thread does to itself, and no wait is interrupted by: handlers of crashes seldom ask for restarts.
const CRASHES: [c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// What the C library keeps for itself, and `sigaction` gives to nobody. Before its version 2.34 it handles one of them without restarts in every
/// program with threads; what they are for ends no call.
const OF_LIBRARY: [c_int; 2] = [32, 33];

/// Signals whose handler is for the first one alone (SA_RESETHAND): behind that the kernel knows of none.
static ONCE: AtomicU64 = AtomicU64::new(0);
/// Those among them whose handler restarts nothing.
static ENDS: AtomicU64 = AtomicU64::new(0);

/// Of a signal, in masks.
pub fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Is it a function of the program's?
pub fn is_handler(handler: usize) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

/// By the flags of its handler.
pub fn restarts(flags: u64) -> bool {
    flags & libc::SA_RESTART as u64 != 0
}

/// The program has said anew what becomes of a signal.
pub fn changed(signal: c_int) {
    if !(1..=64).contains(&signal) || CRASHES.contains(&signal) {
        return;
    }
    let action = sys::signal_action(signal);
    let once = action
        .filter(|&(handler, flags)| is_handler(handler) && flags & libc::SA_RESETHAND as u64 != 0);
    for (cell, holds) in [
        (&ENDS, once.is_some_and(|(_, flags)| !restarts(flags))),
        (&ONCE, once.is_some()),
    ] {
        if holds {
            cell.fetch_or(bit(signal), Ordering::Relaxed);
        } else if cell.load(Ordering::Relaxed) & bit(signal) != 0 {
            cell.fetch_and(!bit(signal), Ordering::Relaxed);
        }
    }
}

/// A handler has interrupted a wait: has it asked for restarts? So it has where all do.
pub fn all_restart() -> bool {
    let mut any = false;
    for signal in (1..=64).filter(|signal| !CRASHES.contains(signal)) {
        match sys::signal_action(signal) {
            Some((handler, flags)) if is_handler(handler) => {
                if !restarts(flags) && !OF_LIBRARY.contains(&signal) {
                    return false;
                }
                any = true;
            }
            // It may be the one.
            Some(_) if ONCE.fetch_and(!bit(signal), Ordering::Relaxed) & bit(signal) != 0 => {
                if ENDS.fetch_and(!bit(signal), Ordering::Relaxed) & bit(signal) != 0 {
                    return false;
                }
                any = true;
            }
            _ => {}
        }
    }
    // Where there is none, the one that there was has put none in its place.
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing(_: c_int) {}

    fn set(handler: usize, flags: c_int) {
        // SAFETY: zeroes are a valid action.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        // SAFETY: a handler that does nothing, or none.
        unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, core::ptr::null_mut()) };
        changed(libc::SIGUSR2);
    }

    #[test]
    fn a_handler_for_one_signal_is_known_behind_that() {
        let handler = nothing as extern "C" fn(c_int) as usize;
        set(handler, libc::SA_RESTART);
        assert!(all_restart());
        set(handler, 0);
        assert!(!all_restart());
        set(handler, libc::SA_RESETHAND);
        // SAFETY: this thread's.
        unsafe { libc::raise(libc::SIGUSR2) };
        assert!(!all_restart(), "it was the one, perhaps");
        assert_eq!(ENDS.load(Ordering::Relaxed) & bit(libc::SIGUSR2), 0);
        set(handler, libc::SA_RESETHAND | libc::SA_RESTART);
        // SAFETY: this thread's.
        unsafe { libc::raise(libc::SIGUSR2) };
        assert!(all_restart());
        assert_eq!(ONCE.load(Ordering::Relaxed) & bit(libc::SIGUSR2), 0);
    }
}
