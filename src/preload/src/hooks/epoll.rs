//! Readiness of epoll sets.

use super::poll::{milliseconds, pointer};
use crate::api;
use crate::edge::{of_set, tell};
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
            return of_set(|| forward!(epoll_ctl(epfd, op, fd, event)));
        }
        serve!(fd, epoll_ctl(epfd, op, fd, event), of_set(|| forward!(epoll_ctl(epfd, op, fd, event)))) as c_int
    }

    unsafe fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int) -> c_int => on_epoll_wait {
        let Some(e) = api::lookup(epfd) else { return of_set(|| forward!(epoll_wait(epfd, events, max, timeout_ms))) };
        test_cancel();
        let timeout = milliseconds(timeout_ms);
        serve_watching!(epfd, epoll_wait(e, epfd, events, max, pointer(&timeout), std::ptr::null()), of_set(|| forward!(epoll_wait(epfd, events, max, timeout_ms)))) as c_int
    }

    unsafe fn epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int => on_epoll_pwait {
        let Some(e) = api::lookup(epfd) else { return of_set(|| forward!(epoll_pwait(epfd, events, max, timeout_ms, mask))) };
        test_cancel();
        let timeout = milliseconds(timeout_ms);
        serve_watching!(epfd, epoll_wait(e, epfd, events, max, pointer(&timeout), mask), of_set(|| forward!(epoll_pwait(epfd, events, max, timeout_ms, mask)))) as c_int
    }
}

late_hooks! {
    unsafe fn epoll_pwait2(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int => on_epoll_pwait2 {
        let Some(e) = api::lookup(epfd) else { return of_set(|| late!(epoll_pwait2(epfd, events, max, timeout, mask))) };
        test_cancel();
        serve_watching!(epfd, epoll_wait(e, epfd, events, max, timeout, mask), of_set(|| late!(epoll_pwait2(epfd, events, max, timeout, mask)))) as c_int
    }
}

/// `epoll_create*` returned `epfd`.
pub fn set_made(epfd: c_int) -> c_int {
    if epfd >= 0 {
        tell(epfd, || api::epoll_created(epfd));
    }
    epfd
}
