//! Socket options.

use super::{Errno, call, poll_one, timespec};
use core::mem::{MaybeUninit, size_of};
use libc::c_int;
use syscalls::Sysno;

/// `getsockopt(2)` of a plain value; a shorter answer leaves the rest zero.
///
/// # Errors
/// The kernel's.
pub fn getsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    sys!(
        getsockopt,
        fd,
        level,
        name,
        value.as_mut_ptr(),
        &raw mut len
    )?;
    // SAFETY: only used with integers and C structs of integers, for which every byte pattern,
    // zeroes included, is a value.
    Ok(unsafe { value.assume_init() })
}

/// `setsockopt(2)` of a plain value.
///
/// # Errors
/// The kernel's.
pub fn setsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &T) -> Result<(), Errno> {
    sys!(
        setsockopt,
        fd,
        level,
        name,
        core::ptr::from_ref(value),
        size_of::<T>()
    )
    .map(drop)
}

/// Sets SO_LINGER: for so many seconds a close waits, with none not at all. Where it is refused the
/// close is as before.
pub fn set_linger(fd: c_int, seconds: Option<c_int>) {
    let linger = libc::linger {
        l_onoff: seconds.is_some().into(),
        l_linger: seconds.unwrap_or(0),
    };
    let _ = setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
}

/// A waiter for a TCP socket's room, edge-triggered, is told once more, at once
/// (`do_tcp_setsockopt`: `sk_write_space`) or later.
///
/// # Errors
/// The error number.
pub fn tell_of_room(fd: c_int) -> Result<(), Errno> {
    // Where there is none the kernel notes that somebody waits for it.
    poll_one(fd, libc::POLLOUT, Some(timespec(0)))?;
    let limit: u32 = getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT)?;
    setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &limit)
}

/// Has the socket a filter, of either kind (`sk_get_filter`)?
#[must_use]
pub fn has_filter(fd: c_int) -> bool {
    let mut len: libc::socklen_t = 0;
    // Without room for it the kernel says how long it is, and of one that is not of the older kind
    // nothing.
    let got = sys!(
        getsockopt,
        fd,
        libc::SOL_SOCKET,
        libc::SO_GET_FILTER,
        core::ptr::null_mut::<u8>(),
        &raw mut len
    );
    got == Err(libc::EACCES) || got.is_ok() && len != 0
}
