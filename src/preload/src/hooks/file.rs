//! Calls that make descriptors of other kinds, whose numbers may have belonged to a socket of ours,
//! and the one that puts stdio on a descriptor.

use super::conn::pair_made;
use super::fd::placing;
use crate::boundary::{created, opened, raw_use};
use libc::{FILE, c_char, c_int, c_uint, c_void, mode_t, pid_t, sigset_t};
use sluice_stats::Reason;

// The mode of the open family is variadic in C and passed as here on x86-64 and aarch64; it is
// garbage where the caller gave none, and the real function then does not look at it.
hooks! {
    unsafe fn open(path: *const c_char, flags: c_int, mode: usize) -> c_int => on_open {
        opened(|| forward!(open(path, flags, mode)))
    }
    unsafe fn open64(path: *const c_char, flags: c_int, mode: usize) -> c_int => on_open64 {
        opened(|| forward!(open64(path, flags, mode)))
    }
    unsafe fn openat(
        dir: c_int,
        path: *const c_char,
        flags: c_int,
        mode: usize,
    ) -> c_int => on_openat {
        opened(|| forward!(openat(dir, path, flags, mode)))
    }
    unsafe fn openat64(
        dir: c_int,
        path: *const c_char,
        flags: c_int,
        mode: usize,
    ) -> c_int => on_openat64 {
        opened(|| forward!(openat64(dir, path, flags, mode)))
    }
    unsafe fn __open_2(path: *const c_char, flags: c_int) -> c_int => on_open_2 {
        opened(|| forward!(__open_2(path, flags)))
    }
    unsafe fn __open64_2(path: *const c_char, flags: c_int) -> c_int => on_open64_2 {
        opened(|| forward!(__open64_2(path, flags)))
    }
    unsafe fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int => on_openat_2 {
        opened(|| forward!(__openat_2(dir, path, flags)))
    }
    unsafe fn __openat64_2(
        dir: c_int,
        path: *const c_char,
        flags: c_int,
    ) -> c_int => on_openat64_2 {
        opened(|| forward!(__openat64_2(dir, path, flags)))
    }
    unsafe fn creat(path: *const c_char, mode: mode_t) -> c_int => on_creat {
        opened(|| forward!(creat(path, mode)))
    }
    unsafe fn creat64(path: *const c_char, mode: mode_t) -> c_int => on_creat64 {
        opened(|| forward!(creat64(path, mode)))
    }
    unsafe fn mkstemp(template: *mut c_char) -> c_int => on_mkstemp {
        opened(|| forward!(mkstemp(template)))
    }
    unsafe fn mkstemp64(template: *mut c_char) -> c_int => on_mkstemp64 {
        opened(|| forward!(mkstemp64(template)))
    }
    unsafe fn mkostemp(template: *mut c_char, flags: c_int) -> c_int => on_mkostemp {
        opened(|| forward!(mkostemp(template, flags)))
    }
    unsafe fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int => on_mkostemp64 {
        opened(|| forward!(mkostemp64(template, flags)))
    }
    unsafe fn mkstemps(template: *mut c_char, suffix_len: c_int) -> c_int => on_mkstemps {
        opened(|| forward!(mkstemps(template, suffix_len)))
    }
    unsafe fn mkstemps64(template: *mut c_char, suffix_len: c_int) -> c_int => on_mkstemps64 {
        opened(|| forward!(mkstemps64(template, suffix_len)))
    }
    unsafe fn mkostemps(
        template: *mut c_char,
        suffix_len: c_int,
        flags: c_int,
    ) -> c_int => on_mkostemps {
        opened(|| forward!(mkostemps(template, suffix_len, flags)))
    }
    unsafe fn mkostemps64(
        template: *mut c_char,
        suffix_len: c_int,
        flags: c_int,
    ) -> c_int => on_mkostemps64 {
        opened(|| forward!(mkostemps64(template, suffix_len, flags)))
    }

    unsafe fn pipe(pair: *mut c_int) -> c_int => on_pipe {
        piped(pair, || forward!(pipe(pair)))
    }
    unsafe fn pipe2(pair: *mut c_int, flags: c_int) -> c_int => on_pipe2 {
        piped(pair, || forward!(pipe2(pair, flags)))
    }

    unsafe fn eventfd(value: c_uint, flags: c_int) -> c_int => on_eventfd {
        created(forward!(eventfd(value, flags)))
    }
    unsafe fn timerfd_create(clock: c_int, flags: c_int) -> c_int => on_timerfd_create {
        created(forward!(timerfd_create(clock, flags)))
    }
    unsafe fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int => on_signalfd {
        let new = forward!(signalfd(fd, mask, flags));
        if new == fd { new } else { created(new) }
    }
    unsafe fn inotify_init() -> c_int => on_inotify_init {
        created(forward!(inotify_init()))
    }
    unsafe fn inotify_init1(flags: c_int) -> c_int => on_inotify_init1 {
        created(forward!(inotify_init1(flags)))
    }
    unsafe fn fanotify_init(flags: c_uint, event_flags: c_uint) -> c_int => on_fanotify_init {
        created(forward!(fanotify_init(flags, event_flags)))
    }

    // stdio's own reads and writes pass no hook.
    unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE => on_fdopen {
        raw_use(fd, Reason::Fdopen);
        forward!(fdopen(fd, mode))
    }
    unsafe fn vdprintf(
        fd: c_int,
        format: *const c_char,
        args: *mut c_void,
    ) -> c_int => on_vdprintf {
        raw_use(fd, Reason::Dprintf);
        forward!(vdprintf(fd, format, args))
    }
    unsafe fn __vdprintf_chk(
        fd: c_int,
        flag: c_int,
        format: *const c_char,
        args: *mut c_void,
    ) -> c_int => on_vdprintf_chk {
        raw_use(fd, Reason::Dprintf);
        forward!(__vdprintf_chk(fd, flag, format, args))
    }
}

/// A call that makes a pipe.
fn piped(pair: *const c_int, call: impl FnOnce() -> c_int) -> c_int {
    let apart = placing();
    let ret = call();
    drop(apart);
    if ret == 0 {
        // SAFETY: the call succeeded, so the kernel has written both numbers there.
        unsafe { pair_made(pair) };
    }
    ret
}

late_hooks! {
    unsafe fn memfd_create(name: *const c_char, flags: c_uint) -> c_int => on_memfd_create {
        created(late!(memfd_create(name, flags)))
    }
    unsafe fn pidfd_open(pid: pid_t, flags: c_uint) -> c_int => on_pidfd_open {
        created(late!(pidfd_open(pid, flags)))
    }
    unsafe fn pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int => on_pidfd_getfd {
        created(late!(pidfd_getfd(pidfd, target, flags)))
    }
    // In librt before 2.34, which not every program loads.
    unsafe fn shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int => on_shm_open {
        created(late!(shm_open(name, flags, mode)))
    }
}

aliases! {
    unsafe fn __open(path: *const c_char, flags: c_int, mode: usize) -> c_int = on_open;
    unsafe fn __open64(path: *const c_char, flags: c_int, mode: usize) -> c_int = on_open64;
    unsafe fn __pipe(pair: *mut c_int) -> c_int = on_pipe;
    unsafe fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = on_fdopen;
}
