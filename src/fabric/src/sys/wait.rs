//! Waits: for a word in memory, and for descriptors. Those that are made for a call of the
//! program's do not begin if a signal handler has ended that ([`handlers`]).

use super::handlers::{self, Ends};
use super::{Errno, call, timespec};
use libc::{c_int, c_short};
use syscalls::Sysno;

/// Sleeps while `*word == value`, at most for `timeout` (`futex(2)`, FUTEX_WAIT, shared).
///
/// Without a timeout the kernel restarts the wait after a signal handler with SA_RESTART, unless
/// that is one that `ends` it.
///
/// # Errors
/// EAGAIN when the word had changed, EINTR, ETIMEDOUT.
///
/// # Safety
/// `word` is mapped.
pub unsafe fn futex_wait(
    word: *const u32,
    value: u32,
    timeout: Option<&libc::timespec>,
    ends: Ends,
) -> Result<(), Errno> {
    let timeout = timeout.map_or(core::ptr::null(), core::ptr::from_ref);
    match sys!(futex, word, libc::FUTEX_WAIT, value, timeout, 0, 0; unless ends) {
        Err(handlers::NOT_MADE) => Err(libc::EINTR),
        answer => answer.map(drop),
    }
}

/// Wakes all sleepers on `word`. Never blocks.
///
/// # Safety
/// `word` is mapped.
pub unsafe fn futex_wake(word: *const u32) {
    let _ = sys!(futex, word, libc::FUTEX_WAKE, i32::MAX, 0, 0, 0);
}

/// `epoll_pwait2(2)` or, where the kernel lacks it, `epoll_pwait(2)` with the time rounded up.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `events` is writable for `max` events; `timeout` and `mask` are null or valid.
pub unsafe fn epoll_wait(
    set: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: Option<&libc::timespec>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    // SAFETY: passed on.
    unsafe { epoll_wait_unless(Ends::NEVER, set, events, max, timeout, mask) }
}

/// What a look has found in place of a wait that a handler has ended.
fn first(found: Result<usize, Errno>) -> Result<usize, Errno> {
    match found {
        Ok(0) => Err(libc::EINTR),
        found => found,
    }
}

/// As [`epoll_wait`], unless handlers end it before it sleeps. What there is to tell is told, as by
/// the kernel, which looks first.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// As there.
pub unsafe fn epoll_wait_unless(
    ends: Ends,
    set: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: Option<&libc::timespec>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    // Whole milliseconds and the two commonest cases need no new system call.
    let ms: isize = match timeout {
        None => -1,
        Some(t) if t.tv_sec == 0 && t.tv_nsec == 0 => 0,
        Some(t) => {
            let time = core::ptr::from_ref(t);
            let answer = sys!(epoll_pwait2, set, events, max, time, mask, 8; unless ends);
            match answer {
                Err(libc::ENOSYS) => {}
                Err(handlers::NOT_MADE) => {
                    return first(sys!(epoll_pwait, set, events, max, 0, 0, 8));
                }
                answer => return answer,
            }
            (t.tv_sec as isize)
                .saturating_mul(1000)
                .saturating_add((t.tv_nsec as isize + 999_999) / 1_000_000)
        }
    };
    match sys!(epoll_pwait, set, events, max, ms, mask, 8; unless ends) {
        Err(handlers::NOT_MADE) => first(sys!(epoll_pwait, set, events, max, 0, 0, 8)),
        answer => answer,
    }
}

/// `ppoll(2)`; the kernel may write the time left into `timeout`.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `fds` is valid for `count` entries; `timeout` and `mask` are null or valid.
pub unsafe fn ppoll(
    fds: *mut libc::pollfd,
    count: usize,
    timeout: *mut libc::timespec,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    sys!(ppoll, fds, count, timeout, mask, 8)
}

/// As [`ppoll`], unless handlers end it before it sleeps; see [`epoll_wait_unless`].
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// As there.
pub unsafe fn ppoll_unless(
    ends: Ends,
    fds: *mut libc::pollfd,
    count: usize,
    timeout: *mut libc::timespec,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    match sys!(ppoll, fds, count, timeout, mask, 8; unless ends) {
        Err(handlers::NOT_MADE) => {
            let now = timespec(0);
            first(sys!(ppoll, fds, count, &raw const now, 0, 8))
        }
        answer => answer,
    }
}

/// `ppoll(2)` with the signal mask as it is; `None` waits for ever.
///
/// # Errors
/// The kernel's.
#[inline]
pub fn poll(fds: &mut [libc::pollfd], mut timeout: Option<libc::timespec>) -> Result<usize, Errno> {
    let timeout = timeout
        .as_mut()
        .map_or(core::ptr::null_mut(), core::ptr::from_mut);
    // SAFETY: an array, a time of ours or none.
    unsafe { ppoll(fds.as_mut_ptr(), fds.len(), timeout, core::ptr::null()) }
}

/// `ppoll(2)` of one descriptor: what it shows of `events`; 0: the time is over.
///
/// # Errors
/// The kernel's.
#[inline]
pub fn poll_one(
    fd: c_int,
    events: c_short,
    timeout: Option<libc::timespec>,
) -> Result<c_short, Errno> {
    let mut one = [libc::pollfd {
        fd,
        events,
        revents: 0,
    }];
    poll(&mut one, timeout)?;
    let [one] = one;
    Ok(one.revents)
}

/// As [`poll_one`], unless handlers end it before it sleeps; see [`epoll_wait_unless`].
///
/// # Errors
/// The kernel's.
pub fn poll_one_unless(
    ends: Ends,
    fd: c_int,
    events: c_short,
    mut timeout: Option<libc::timespec>,
) -> Result<c_short, Errno> {
    let mut one = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let timeout = timeout
        .as_mut()
        .map_or(core::ptr::null_mut(), core::ptr::from_mut);
    // SAFETY: one entry, a time of ours or none.
    unsafe { ppoll_unless(ends, &raw mut one, 1, timeout, core::ptr::null()) }?;
    Ok(one.revents)
}
