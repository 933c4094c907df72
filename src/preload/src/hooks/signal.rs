//! What becomes of signals. The kernel is given thunks in place of the program's handlers (see
//! [`handlers`]), and the program is told of its own.

use crate::api::{self, caller, handlers};
use crate::boundary::{NO_FD, tell};
use libc::{c_int, c_long, sigaction as action_t, sighandler_t};

hooks! {
    unsafe fn sigaction(
        number: c_int,
        new: *const action_t,
        old: *mut action_t,
    ) -> c_int => on_sigaction {
        let real = |new| forward!(sigaction(number, new, old));
        // SAFETY: the C caller's arguments.
        unsafe { acting(number, new, old, real) }
    }
    unsafe fn __sigaction(
        number: c_int,
        new: *const action_t,
        old: *mut action_t,
    ) -> c_int => on_sigaction_inner {
        let real = |new| forward!(__sigaction(number, new, old));
        // SAFETY: the C caller's arguments.
        unsafe { acting(number, new, old, real) }
    }
    unsafe fn signal(number: c_int, handler: sighandler_t) -> sighandler_t => on_signal {
        let restarts = handlers::signal_restarts(number);
        handling(number, handler, restarts, |given| forward!(signal(number, given)))
    }
    unsafe fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t => on_bsd_signal {
        let restarts = handlers::signal_restarts(number);
        handling(number, handler, restarts, |given| forward!(bsd_signal(number, given)))
    }
    unsafe fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t => on_ssignal {
        let restarts = handlers::signal_restarts(number);
        handling(number, handler, restarts, |given| forward!(ssignal(number, given)))
    }
    // These two install handlers without SA_RESTART, as does sigset.
    unsafe fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t => on_sysv_signal {
        handling(number, handler, false, |given| forward!(sysv_signal(number, given)))
    }
    unsafe fn __sysv_signal(
        number: c_int,
        handler: sighandler_t,
    ) -> sighandler_t => on_sysv_signal_inner {
        handling(number, handler, false, |given| forward!(__sysv_signal(number, given)))
    }
    unsafe fn sigset(number: c_int, handler: sighandler_t) -> sighandler_t => on_sigset {
        handling(number, handler, false, |given| forward!(sigset(number, given)))
    }
    unsafe fn sigignore(number: c_int) -> c_int => on_sigignore {
        acted(number, forward!(sigignore(number)))
    }
    unsafe fn siginterrupt(number: c_int, flag: c_int) -> c_int => on_siginterrupt {
        let ret = forward!(siginterrupt(number, flag));
        if ret == 0 {
            handlers::signal_interrupts(number, flag != 0);
            // SAFETY: zeroes are an action, for the kernel's.
            let mut action: action_t = unsafe { std::mem::zeroed() };
            // The handler that there is may be the thunk of the other kind.
            if forward!(sigaction(number, std::ptr::null(), &raw mut action)) == 0 {
                // SAFETY: the program's own action.
                unsafe { on_sigaction(number, &raw const action, std::ptr::null_mut()) };
            }
        }
        ret
    }
}

/// `sigaction`, by a call that installs `new`.
///
/// # Safety
/// The arguments are those of a C caller. The C library, too, reads and writes the actions.
#[inline(always)]
unsafe fn acting(
    number: c_int,
    new: *const action_t,
    old: *mut action_t,
    real: impl FnOnce(*const action_t) -> c_int,
) -> c_int {
    if !handlers::are_counted(number) {
        return real(new);
    }
    // SAFETY: the caller's promise.
    let given = unsafe { new.as_ref() }.map(|new| {
        let restarts = new.sa_flags & libc::SA_RESTART != 0;
        action_t {
            sa_sigaction: handlers::given(number, new.sa_sigaction, restarts),
            ..*new
        }
    });
    let ret = real(given.as_ref().map_or(std::ptr::null(), std::ptr::from_ref));
    if ret == 0
        // SAFETY: as above.
        && let Some(old) = unsafe { old.as_mut() }
    {
        old.sa_sigaction = handlers::own(old.sa_sigaction);
    }
    acted(number, ret)
}

/// The kernel's struct: handler, flags, restorer, mask.
type RawAction = [usize; 4];

/// As [`acting`], by a raw system call.
///
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn acting_raw(
    number: c_int,
    new: *const RawAction,
    old: *mut usize,
    real: impl FnOnce(*const RawAction) -> c_long,
) -> c_long {
    let is_counted = handlers::are_counted(number);
    let mut given = None;
    if is_counted && !new.is_null() {
        // SAFETY: any bytes are an action. One that is missing is the kernel's to refuse.
        given = unsafe { caller::copy_on_trust(new) };
    }
    if let Some([handler, flags, ..]) = &mut given {
        let restarts = *flags & libc::SA_RESTART as usize != 0;
        *handler = handlers::given(number, *handler, restarts);
    }
    let ret = real(given.as_ref().map_or(new, std::ptr::from_ref));
    if is_counted && ret == 0 && !old.is_null() {
        // SAFETY: the kernel has just written there.
        unsafe { old.write_unaligned(handlers::own(old.read_unaligned())) };
    }
    acted(number, ret)
}

/// `signal` and its kin, by a call that installs what it is given.
#[inline(always)]
fn handling(
    number: c_int,
    handler: sighandler_t,
    restarts: bool,
    real: impl FnOnce(sighandler_t) -> sighandler_t,
) -> sighandler_t {
    let given = handlers::given(number, handler, restarts);
    acted(number, handlers::own(real(given)))
}

/// The program has said what becomes of this signal; with what that returned.
fn acted<R>(number: c_int, returned: R) -> R {
    tell(NO_FD, || api::signal_changed(number));
    returned
}
