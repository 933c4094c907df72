//! Readiness of epoll sets.

use super::poll::{milliseconds, pointer};
use crate::api;
use crate::edge::tell;
use crate::real::test_cancel;
use libc::{c_int, epoll_event, sigset_t, timespec};

hooks! {
    unsafe fn epoll_create(size: c_int) -> c_int => on_epoll_create {
        let epfd = forward!(epoll_create(size));
        set_made(epfd)
    }

    unsafe fn epoll_create1(flags: c_int) -> c_int => on_epoll_create1 {
        let epfd = forward!(epoll_create1(flags));
        set_made(epfd)
    }

    unsafe fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int => on_epoll_ctl {
        if api::lookup(epfd).is_none() && api::lookup(fd).is_none() {
            return forward!(epoll_ctl(epfd, op, fd, event));
        }
        serve!(fd, epoll_ctl(epfd, op, fd, event), forward!(epoll_ctl(epfd, op, fd, event))) as c_int
    }

    unsafe fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int) -> c_int => on_epoll_wait {
        let Some(e) = api::lookup(epfd) else { return forward!(epoll_wait(epfd, events, max, timeout_ms)) };
        if timeout_ms == 0 && let Some(plain) = api::plain(e) {
            let got = forward!(epoll_wait(epfd, events, max, 0));
            if got <= 0 || plain.is_still() {
                return got;
            }
            // SAFETY: the C caller's arguments.
            return unsafe { returned(plain, epfd, events, max, Some(0), std::ptr::null(), got) };
        }
        // SAFETY: the C caller's arguments.
        unsafe { waiting(e, epfd, events, max, timeout_ms, None) }
    }

    unsafe fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int => on_epoll_pwait {
        let Some(e) = api::lookup(epfd) else { return forward!(epoll_pwait(epfd, events, max, timeout_ms, mask)) };
        if timeout_ms == 0 && let Some(plain) = api::plain(e) {
            let got = forward!(epoll_pwait(epfd, events, max, 0, mask));
            if got <= 0 || plain.is_still() {
                return got;
            }
            // SAFETY: the C caller's arguments.
            return unsafe { returned(plain, epfd, events, max, Some(0), mask, got) };
        }
        // SAFETY: the C caller's arguments.
        unsafe { waiting(e, epfd, events, max, timeout_ms, Some(mask)) }
    }
}

late_hooks! {
    unsafe fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int => on_epoll_pwait2 {
        let Some(e) = api::lookup(epfd) else { return late!(epoll_pwait2(epfd, events, max, timeout, mask)) };
        test_cancel();
        serve!(epfd, epoll_wait(e, epfd, events, max, timeout, mask), late!(epoll_pwait2(epfd, events, max, timeout, mask))) as c_int
    }
}

/// `epoll_wait`, and `epoll_pwait` with its mask, on a tracked set.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(never)]
#[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
unsafe extern "C" fn waiting(
    e: api::Entry,
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
    mask: Option<*const sigset_t>,
) -> c_int {
    let real = || match mask {
        Some(mask) => forward!(epoll_pwait(epfd, events, max, timeout_ms, mask)),
        None => forward!(epoll_wait(epfd, events, max, timeout_ms)),
    };
    let pointed = mask.unwrap_or(std::ptr::null());
    if let Some(plain) = api::plain(e)
        && let Some(end) = plain.lie_down(timeout_ms)
    {
        let got = real();
        plain.get_up();
        if plain.is_still() {
            return got;
        }
        // SAFETY: the caller's promise.
        return unsafe { returned(plain, epfd, events, max, end, pointed, got) };
    }
    test_cancel();
    let timeout = milliseconds(timeout_ms);
    serve!(epfd, epoll_wait(e, epfd, events, max, pointer(&timeout), pointed), real()) as c_int
}

/// A real call on a set that was plain returned `got`; it is plain no longer.
///
/// # Safety
/// As [`waiting`]; the kernel has filled `got` events.
#[cold]
#[inline(never)]
#[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
unsafe extern "C" fn returned(
    plain: api::Plain,
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    end: Option<u64>,
    mask: *const sigset_t,
    got: c_int,
) -> c_int {
    serve!(epfd, epoll_returned(plain, epfd, events, max, end, mask, got), got) as c_int
}

/// `epoll_create*` returned `epfd`.
pub fn set_made(epfd: c_int) -> c_int {
    if epfd >= 0 {
        tell(epfd, || api::epoll_created(epfd));
    }
    epfd
}
