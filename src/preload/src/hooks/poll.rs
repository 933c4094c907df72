//! Readiness of lists and sets: poll, select and their kin.

use crate::api::{self, Ran, caller};
use crate::boundary::NO_FD;
use crate::real::test_cancel;
use libc::{c_int, c_ulong, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

hooks! {
    unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int => on_poll {
        // The usual list of a program that polls often; first, so that the rest costs it nothing.
        if count == 1
            && caller::is_known_to_be_there(fds)
            // SAFETY: one entry, which is there.
            && api::lookup(unsafe { (*fds).fd }).is_none()
        {
            return forward!(poll(fds, count, timeout_ms));
        }
        // SAFETY: the C caller's arguments.
        unsafe { poll_listed(fds, count, timeout_ms) }
    }

    unsafe fn ppoll(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int => on_ppoll {
        // SAFETY: the C caller vouches for `count` entries.
        if !unsafe { any_listed(fds, count) } {
            return forward!(ppoll(fds, count, timeout, mask));
        }
        test_cancel();
        serve_watching!(
            NO_FD,
            poll(fds, count, timeout, mask),
            forward!(ppoll(fds, count, timeout, mask))
        ) as c_int
    }

    unsafe fn select(
        end: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        excepts: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int => on_select {
        // Before the sets are looked at, which takes a while.
        let ran = Ran::now();
        // SAFETY: the C caller vouches for the sets.
        let end = unsafe { api::numbers(end, [reads, writes, excepts]) };
        // SAFETY: as above.
        if !unsafe { any_set(end, [reads, writes, excepts]) } {
            return forward!(select(end, reads, writes, excepts, timeout));
        }
        // SAFETY: the C caller's arguments.
        unsafe { select_tracked(ran, end, reads, writes, excepts, timeout) }
    }

    unsafe fn pselect(
        end: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        excepts: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int => on_pselect {
        let ran = Ran::now();
        // SAFETY: the C caller vouches for the sets.
        let end = unsafe { api::numbers(end, [reads, writes, excepts]) };
        // SAFETY: as above.
        if !unsafe { any_set(end, [reads, writes, excepts]) } {
            return forward!(pselect(end, reads, writes, excepts, timeout, mask));
        }
        test_cancel();
        serve_watching!(
            since ran,
            NO_FD,
            select(end, [reads, writes, excepts], timeout, mask, std::ptr::null_mut()),
            forward!(pselect(end, reads, writes, excepts, timeout, mask))
        ) as c_int
    }

    // The real functions end the program when the list is too small: let them.
    unsafe fn __poll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout_ms: c_int,
        room: size_t,
    ) -> c_int => on_poll_chk {
        if room / size_of::<pollfd>() < count as usize {
            return forward!(__poll_chk(fds, count, timeout_ms, room));
        }
        // SAFETY: poll's contract is this function's, kept by the C caller.
        unsafe { on_poll(fds, count, timeout_ms) }
    }

    unsafe fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        room: size_t,
    ) -> c_int => on_ppoll_chk {
        if room / size_of::<pollfd>() < count as usize {
            return forward!(__ppoll_chk(fds, count, timeout, mask, room));
        }
        // SAFETY: ppoll's contract is this function's, kept by the C caller.
        unsafe { on_ppoll(fds, count, timeout, mask) }
    }
}

aliases! {
    unsafe fn __poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int = on_poll;
    unsafe fn __select(
        end: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        excepts: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int = on_select;
}

/// `poll` of a list that is yet to be looked at.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(never)]
unsafe extern "C" fn poll_listed(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller's promise.
    if !unsafe { any_listed(fds, count) } {
        return forward!(poll(fds, count, timeout_ms));
    }
    // SAFETY: as above.
    unsafe { poll_tracked(fds, count, timeout_ms) }
}

/// `poll` with a tracked descriptor in the list: a function of its own, see `hooks!`.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(never)]
unsafe extern "C" fn poll_tracked(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    test_cancel();
    let timeout = milliseconds(timeout_ms);
    serve_watching!(
        NO_FD,
        poll(fds, count, pointer(&timeout), std::ptr::null()),
        forward!(poll(fds, count, timeout_ms))
    ) as c_int
}

/// `select` with a tracked descriptor in a set.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(never)]
unsafe extern "C" fn select_tracked(
    ran: Ran,
    end: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the C caller's timeout.
    let Ok(given) = (unsafe { normalised(timeout) }) else {
        return forward!(select(end, reads, writes, excepts, timeout));
    };
    test_cancel();
    let mut left = timespec {
        tv_sec: 0,
        tv_nsec: -1,
    };
    let ret = serve_watching!(
        since ran,
        NO_FD,
        select(
            end,
            [reads, writes, excepts],
            pointer(&given),
            std::ptr::null(),
            &mut left
        ),
        forward!(select(end, reads, writes, excepts, timeout))
    ) as c_int;
    if left.tv_nsec >= 0 && caller::can_write(timeout as usize, size_of::<timeval>()) {
        // SAFETY: the C caller's timeout, which Linux' select brings up to date where it can.
        unsafe {
            timeout.write(timeval {
                tv_sec: left.tv_sec,
                tv_usec: left.tv_nsec / 1000,
            })
        };
    }
    ret
}

/// The descriptors of a list that are tracked. A list that is not there, or longer than the kernel
/// takes (its EINVAL needs no look at it), is the kernel's to refuse. It is not looked at where
/// nothing was ever tracked.
///
/// # Safety
/// `fds` is a C caller's list of `count` entries.
pub unsafe fn listed(fds: *const pollfd, count: nfds_t) -> impl Iterator<Item = c_int> {
    let len = (count as usize).saturating_mul(size_of::<pollfd>());
    let refused = || count > 256 && count > api::poll_limit();
    let is_there = api::tracked_end() != 0 && !refused() && caller::can_read(fds as usize, len);
    let count = if is_there { count as usize } else { 0 };
    // SAFETY: `count` entries are there.
    (0..count)
        .map(move |i| unsafe { (*fds.add(i)).fd })
        .filter(|&fd| api::lookup(fd).is_some())
}

/// Is any descriptor of the list tracked?
///
/// # Safety
/// As [`listed`].
#[inline]
unsafe fn any_listed(fds: *const pollfd, count: nfds_t) -> bool {
    // SAFETY: the caller's promise.
    unsafe { listed(fds, count) }.next().is_some()
}

/// The descriptors of a select set that are tracked. Looks no further than the highest tracked
/// number: programs pass a table's size as `end` with sets that are far smaller, which is right as
/// long as the kernel's table ends before. A set that is not there so far is the kernel's to
/// refuse.
///
/// # Safety
/// The set is null or a C caller's.
#[inline]
pub unsafe fn set(end: c_int, set: *const fd_set) -> impl Iterator<Item = c_int> {
    let mut end = end.min(api::tracked_end());
    let words = usize::try_from(end)
        .unwrap_or(0)
        .div_ceil(c_ulong::BITS as usize);
    if words == 0 || set.is_null() || !caller::can_read(set as usize, words * size_of::<c_ulong>())
    {
        end = 0;
    }
    let (mut next, mut bits): (c_int, c_ulong) = (0, 0);
    std::iter::from_fn(move || {
        loop {
            while bits == 0 {
                if next >= end {
                    return None;
                }
                let word = next as usize / c_ulong::BITS as usize;
                // SAFETY: it is there. The kernel reads this word too: it has a number below `end`
                // that was open at some time, so that the kernel's table reaches beyond it.
                bits = unsafe { set.cast::<c_ulong>().add(word).read() };
                next += c_ulong::BITS as c_int;
            }
            let fd = next - c_ulong::BITS as c_int + bits.trailing_zeros() as c_int;
            bits &= bits - 1;
            if fd < end && api::lookup(fd).is_some() {
                return Some(fd);
            }
        }
    })
}

/// Is any descriptor of the sets tracked?
///
/// # Safety
/// As [`set`].
unsafe fn any_set(end: c_int, sets: [*mut fd_set; 3]) -> bool {
    sets.iter()
        // SAFETY: the caller's promise.
        .any(|each| unsafe { set(end, each.cast_const()) }.next().is_some())
}

/// A timeout in milliseconds; negative waits for ever.
pub fn milliseconds(timeout: c_int) -> Option<timespec> {
    let ms = i64::from(timeout);
    (ms >= 0).then(|| timespec {
        tv_sec: ms / 1000,
        tv_nsec: ms % 1000 * 1_000_000,
    })
}

/// As C passes an optional timeout.
pub fn pointer(timeout: &Option<timespec>) -> *const timespec {
    timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref)
}

/// The timeout of `select`, whose microseconds may exceed a second; `Err` for what it refuses.
///
/// # Safety
/// `timeout` is null or a C caller's.
unsafe fn normalised(timeout: *const timeval) -> Result<Option<timespec>, ()> {
    if timeout.is_null() {
        return Ok(None);
    }
    // SAFETY: any bytes are one.
    let t = unsafe { caller::copy_on_trust(timeout) }.ok_or(())?;
    if t.tv_sec < 0 || t.tv_usec < 0 {
        return Err(());
    }
    let tv_sec = t.tv_sec.checked_add(t.tv_usec / 1_000_000).ok_or(())?;
    Ok(Some(timespec {
        tv_sec,
        tv_nsec: t.tv_usec % 1_000_000 * 1000,
    }))
}
