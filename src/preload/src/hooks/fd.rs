//! Descriptors: their ends, their copies, their flags.

use crate::api::{self, Error};
use crate::boundary::{NO_FD, contained, created, tell};
use crate::errno;
use crate::real::test_cancel;
use libc::{c_int, c_uint, c_ulong};

hooks! {
    unsafe fn close(fd: c_int) -> c_int => on_close {
        if !closing(fd) {
            return errno::fail(Error::Kernel(libc::EBADF)) as c_int;
        }
        forward!(close(fd))
    }

    unsafe fn dup(old: c_int) -> c_int => on_dup {
        duplicated(old, || forward!(dup(old)))
    }

    unsafe fn dup2(old: c_int, new: c_int) -> c_int => on_dup2 {
        replaced(old, new, 0, || forward!(dup2(old, new)))
    }

    unsafe fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int => on_dup3 {
        replaced(old, new, flags, || forward!(dup3(old, new, flags)))
    }

    // The last argument is variadic in C and passed as here on x86-64 and aarch64
    // (docs/decisions/001-hooks.md).
    unsafe fn fcntl(fd: c_int, command: c_int, arg: usize) -> c_int => on_fcntl {
        if !matters(command) {
            return forward!(fcntl(fd, command, arg));
        }
        controlled(fd, command, arg, || forward!(fcntl(fd, command, arg)))
    }

    // Variadic in C, as fcntl.
    unsafe fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int => on_ioctl, tracked e of fd {
        let ret = serve!(
            fd,
            ioctl(e, fd, request, arg),
            forward!(ioctl(fd, request, arg))
        ) as c_int;
        let flag = match request {
            libc::FIONBIO => libc::O_NONBLOCK,
            libc::FIOASYNC => libc::O_ASYNC,
            libc::FIOCLEX | libc::FIONCLEX => {
                if ret == 0 {
                    tell(fd, || api::kept_over_exec(e, request == libc::FIONCLEX));
                }
                return ret;
            }
            _ => return ret,
        };
        if ret == 0 {
            let value = std::ptr::with_exposed_provenance::<c_int>(arg);
            // SAFETY: the call succeeded, so the kernel has read an int there.
            let on = unsafe { value.read_unaligned() } != 0;
            tell(fd, || api::flags_set(e, fd, if on { flag } else { 0 }));
        }
        ret
    }
}

late_hooks! {
    unsafe fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int => on_close_range {
        closing_range(first, last, flags, |first, last| late!(close_range(first, last, flags)))
    }

    // Where the range call is refused (a kernel before 5.9), the numbers between two of our own
    // descriptors are closed one by one; the last gap is closefrom's own again.
    unsafe fn closefrom(first: c_int) -> () => on_closefrom {
        let first = c_uint::try_from(first).unwrap_or(0);
        closing_range(first, c_uint::MAX, 0, |first, last| {
            if last == c_uint::MAX {
                if let Some(real) = late_slots::closefrom.function() {
                    // SAFETY: it takes any number; the C caller wants these descriptors closed.
                    unsafe { real(first as c_int) };
                }
            } else if late!(close_range(first, last, 0)) != 0 {
                (first..=last).for_each(|fd| { forward!(close(fd as c_int)); });
            }
            0
        });
    }

    // Before 2.28 there is fcntl alone, the same on 64-bit machines.
    unsafe fn fcntl64(fd: c_int, command: c_int, arg: usize) -> c_int => on_fcntl64 {
        controlled(fd, command, arg, || match late_slots::fcntl64.function() {
            // SAFETY: as in `forward`.
            Some(real) => unsafe { real(fd, command, arg) },
            None => forward!(fcntl(fd, command, arg)),
        })
    }
}

aliases! {
    unsafe fn __close(fd: c_int) -> c_int = on_close;
    unsafe fn __dup2(old: c_int, new: c_int) -> c_int = on_dup2;
    unsafe fn __fcntl(fd: c_int, command: c_int, arg: usize) -> c_int = on_fcntl;
}

/// Before `close(fd)`. False for one of our own descriptors, which for the program is not open.
pub fn closing(fd: c_int) -> bool {
    let entry = api::lookup(fd);
    // Ours have entries too.
    if api::is_internal(fd) {
        return false;
    }
    let Some(e) = entry else { return true };
    // A thread cancelled at the entry of close has not closed it.
    test_cancel();
    tell(fd, || api::before_close(e, fd));
    true
}

/// Closes a range by `kernel`, for the gaps between our own descriptors.
pub fn closing_range(
    first: c_uint,
    last: c_uint,
    flags: c_int,
    kernel: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    let mut error = errno::current();
    let closed = contained(NO_FD, || {
        let ret = api::close_range(first, last, flags, &kernel);
        error = errno::current();
        ret
    });
    match closed {
        Some(ret) => {
            // The real call ran inside: what it left in errno is the answer.
            errno::restore(error);
            ret
        }
        None => kernel(first, last),
    }
}

/// `dup2` or `dup3`, by `kernel`: puts a copy of `old` in the place of `new`.
pub fn replaced(old: c_int, new: c_int, flags: c_int, kernel: impl FnOnce() -> c_int) -> c_int {
    if old != new && new >= 0 && (api::lookup(new).is_some() || api::is_internal(new)) {
        tell(new, || api::before_replace(old, new, flags));
    }
    let apart = contained(new, api::Placing::begin);
    let ret = kernel();
    drop(apart);
    // With one number for both dup2 makes no copy, and dup3 fails.
    if ret == old { ret } else { copied(old, ret) }
}

/// `dup`, or what does the same, by `kernel`: a copy of `old` at the lowest free number.
pub fn duplicated(old: c_int, kernel: impl FnOnce() -> c_int) -> c_int {
    let apart = placing();
    let new = kernel();
    drop(apart);
    copied(old, new)
}

/// Before a call that gives the program the lowest free number at once; what it returns lives until
/// that is done.
pub fn placing() -> Option<api::Placing> {
    contained(NO_FD, api::Placing::begin)
}

/// A call that copies `old` returned `new`.
fn copied(old: c_int, new: c_int) -> c_int {
    if new >= 0 && api::lookup(old).is_some() {
        api::fd_seen(new);
        tell(old, || api::duped(old, new));
        return new;
    }
    created(new)
}

/// Is a command of `fcntl` one that [`controlled`] has to hear of?
#[inline(always)]
fn matters(command: c_int) -> bool {
    matches!(
        command,
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_SETFL | libc::F_SETFD
    )
}

/// `fcntl`, by `kernel`.
pub fn controlled(fd: c_int, command: c_int, arg: usize, kernel: impl FnOnce() -> c_int) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return duplicated(fd, kernel);
    }
    let ret = kernel();
    match command {
        libc::F_SETFL if ret >= 0 => {
            if let Some(e) = api::lookup(fd) {
                tell(fd, || api::flags_set(e, fd, arg as c_int));
            }
        }
        libc::F_SETFD if ret >= 0 => {
            if let Some(e) = api::lookup(fd) {
                tell(fd, || {
                    api::kept_over_exec(e, arg as c_int & libc::FD_CLOEXEC == 0)
                });
            }
        }
        _ => {}
    }
    ret
}
