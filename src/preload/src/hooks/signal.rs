//! What becomes of signals: asked behind these.

use crate::api;
use crate::edge::{NO_FD, tell};
use libc::{c_int, sigaction as action_t, sighandler_t};

hooks! {
    unsafe fn sigaction(number: c_int, new: *const action_t, old: *mut action_t) -> c_int => on_sigaction {
        acted(number, forward!(sigaction(number, new, old)))
    }
    unsafe fn __sigaction(number: c_int, new: *const action_t, old: *mut action_t) -> c_int => on_sigaction_inner {
        acted(number, forward!(__sigaction(number, new, old)))
    }
    unsafe fn signal(number: c_int, handler: sighandler_t) -> sighandler_t => on_signal {
        acted(number, forward!(signal(number, handler)))
    }
    unsafe fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t => on_bsd_signal {
        acted(number, forward!(bsd_signal(number, handler)))
    }
    unsafe fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t => on_ssignal {
        acted(number, forward!(ssignal(number, handler)))
    }
    unsafe fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t => on_sysv_signal {
        acted(number, forward!(sysv_signal(number, handler)))
    }
    unsafe fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t => on_sysv_signal_inner {
        acted(number, forward!(__sysv_signal(number, handler)))
    }
    unsafe fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t => on_sigset {
        acted(number, forward!(sigset(number, handler)))
    }
    unsafe fn sigignore(number: c_int) -> c_int => on_sigignore {
        acted(number, forward!(sigignore(number)))
    }
}

/// The program has called for this signal, or is about to; with what that returned.
pub fn acted<R>(number: c_int, returned: R) -> R {
    tell(NO_FD, || api::signal_changed(number));
    returned
}
