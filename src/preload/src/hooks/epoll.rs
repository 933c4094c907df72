//! Readiness of epoll sets.

use super::poll::{milliseconds, pointer};
use crate::api::{self, Ran, caller};
use crate::boundary::{NO_FD, of_set, tell};
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

    unsafe fn epoll_ctl(
        epfd: c_int,
        op: c_int,
        fd: c_int,
        event: *mut epoll_event,
    ) -> c_int => on_epoll_ctl {
        if api::lookup(epfd).is_none() && api::lookup(fd).is_none() {
            return of_set(|| forward!(epoll_ctl(epfd, op, fd, event)));
        }
        serve!(
            fd,
            epoll_ctl(epfd, op, fd, event),
            of_set(|| forward!(epoll_ctl(epfd, op, fd, event)))
        ) as c_int
    }

    unsafe fn epoll_wait(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout_ms: c_int,
    ) -> c_int => on_epoll_wait {
        if timeout_ms == 0 && let Some(plain) = api::plain(epfd) {
            let got = forward_loaded!(epoll_wait(epfd, events, max, timeout_ms));
            if plain.is_still() {
                return got;
            }
            // SAFETY: the kernel has filled `got` events.
            return unsafe { looked(plain, events, got) };
        }
        // SAFETY: the C caller's arguments.
        unsafe { waiting(epfd, events, max, timeout_ms, std::ptr::null(), false) }
    }

    unsafe fn epoll_pwait(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout_ms: c_int,
        mask: *const sigset_t,
    ) -> c_int => on_epoll_pwait {
        if timeout_ms == 0 && let Some(plain) = api::plain(epfd) {
            let got = forward_loaded!(epoll_pwait(epfd, events, max, timeout_ms, mask));
            if plain.is_still() {
                return got;
            }
            // SAFETY: the kernel has filled `got` events.
            return unsafe { looked(plain, events, got) };
        }
        // SAFETY: the C caller's arguments.
        unsafe { waiting(epfd, events, max, timeout_ms, mask, true) }
    }
}

late_hooks! {
    unsafe fn epoll_pwait2(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int => on_epoll_pwait2 {
        let Some(e) = api::lookup(epfd) else {
            return of_set(|| late!(epoll_pwait2(epfd, events, max, timeout, mask)));
        };
        // SAFETY: the C caller's, and any bytes are one.
        let time = unsafe { caller::copy_on_trust(timeout) };
        let ns = match time.map(|t| (u64::try_from(t.tv_sec), u64::try_from(t.tv_nsec))) {
            None if timeout.is_null() => Some(None),
            Some((Ok(s), Ok(ns))) => Some(Some(s.saturating_mul(1_000_000_000).saturating_add(ns))),
            // The kernel refuses it.
            _ => None,
        };
        if let Some(ns) = ns
            && let Some(plain) = api::plain(epfd)
            && let Some(end) = plain.lie_down(ns)
        {
            let ran = Ran::now();
            let got = late!(epoll_pwait2(epfd, events, max, timeout, mask));
            plain.get_up();
            if plain.is_still() {
                return got;
            }
            return serve_watching!(
                since ran,
                epfd,
                epoll_after_plain_wait(plain, epfd, (events, max), end, mask, got),
                got
            ) as c_int;
        }
        test_cancel();
        serve_watching!(
            epfd,
            epoll_wait(e, epfd, events, max, timeout, mask),
            of_set(|| late!(epoll_pwait2(epfd, events, max, timeout, mask)))
        ) as c_int
    }
}

/// `epoll_wait`, and `epoll_pwait` with its mask (`masked`), unless it is a mere look at a plain
/// set.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(never)]
unsafe extern "C" fn waiting(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
    masked: bool,
) -> c_int {
    let real = || {
        if masked {
            forward!(epoll_pwait(epfd, events, max, timeout_ms, mask))
        } else {
            forward!(epoll_wait(epfd, events, max, timeout_ms))
        }
    };
    if let Some(plain) = api::plain(epfd)
        && let Some(end) = plain.lie_down(u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000))
    {
        // One that runs in it, when bells alone have ended it, ends what follows.
        let ran = Ran::now();
        let got = real();
        plain.get_up();
        if plain.is_still() {
            return got;
        }
        return serve_watching!(
            since ran,
            epfd,
            epoll_after_plain_wait(plain, epfd, (events, max), end, mask, got),
            got
        ) as c_int;
    }
    let Some(e) = api::lookup(epfd) else {
        return of_set(real);
    };
    test_cancel();
    let timeout = milliseconds(timeout_ms);
    serve_watching!(
        epfd,
        epoll_wait(e, epfd, events, max, pointer(&timeout), mask),
        of_set(real)
    ) as c_int
}

/// A real look, without a wait, returned `got` for a set that was plain and is so no longer.
///
/// # Safety
/// The kernel has filled `got` events.
#[inline(never)]
#[allow(
    improper_ctypes_definitions,
    reason = "the ABI stands for `nounwind`; no C code calls it"
)]
unsafe extern "C" fn looked(plain: api::Plain, events: *mut epoll_event, got: c_int) -> c_int {
    serve!(NO_FD, epoll_after_plain_poll(plain, events, got), got) as c_int
}

/// `epoll_create*` returned `epfd`.
pub fn set_made(epfd: c_int) -> c_int {
    if epfd >= 0 {
        tell(epfd, || api::epoll_created(epfd));
    }
    epfd
}
