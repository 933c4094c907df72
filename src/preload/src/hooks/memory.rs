//! Mappings that the program takes away or replaces: after these calls the library forgets which
//! addresses it knows to be mapped.
//!
//! Allocators make these calls before anything else, and while the loader looks names up for us. So
//! nobody looks for the real function here: until the library is loaded the kernel is called.

use crate::api::{Error, caller};
use crate::errno;
use libc::{c_int, c_void, off_t, size_t};
use sluice_fabric::sys::{self, Sysno};

late_hooks! {
    unsafe fn munmap(at: *mut c_void, len: size_t) -> c_int => on_munmap {
        let ret = match late_slots::munmap.known() {
            // SAFETY: as in `forward`.
            Some(real) => unsafe { real(at, len) },
            // SAFETY: the program makes this very call.
            None => unsafe { of_kernel(Sysno::munmap, [at as usize, len, 0, 0, 0, 0]) as c_int },
        };
        changed(ret)
    }

    unsafe fn mprotect(at: *mut c_void, len: size_t, protection: c_int) -> c_int => on_mprotect {
        let ret = match late_slots::mprotect.known() {
            // SAFETY: as in `forward`.
            Some(real) => unsafe { real(at, len, protection) },
            None => {
                let args = [at as usize, len, protection as usize, 0, 0, 0];
                // SAFETY: the program makes this very call.
                unsafe { of_kernel(Sysno::mprotect, args) as c_int }
            }
        };
        changed(ret)
    }

    unsafe fn mmap(
        at: *mut c_void,
        len: size_t,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: off_t,
    ) -> *mut c_void => on_mmap {
        let ret = match late_slots::mmap.known() {
            // SAFETY: as in `forward`.
            Some(real) => unsafe { real(at, len, protection, flags, fd, offset) },
            None => {
                let args = [
                    at as usize,
                    len,
                    protection as usize,
                    flags as usize,
                    fd as usize,
                    offset as usize,
                ];
                // SAFETY: the program makes this very call.
                let answer = unsafe { of_kernel(Sysno::mmap, args) };
                std::ptr::with_exposed_provenance_mut(answer as usize)
            }
        };
        // Else it takes the place of nothing.
        if flags & libc::MAP_FIXED != 0 { changed(ret) } else { ret }
    }

    // The last argument is variadic in C and passed as here on x86-64 and aarch64
    // (docs/decisions/001-hooks.md).
    unsafe fn mremap(
        at: *mut c_void,
        len: size_t,
        new_len: size_t,
        flags: c_int,
        new: *mut c_void,
    ) -> *mut c_void => on_mremap {
        let ret = match late_slots::mremap.known() {
            // SAFETY: as in `forward`.
            Some(real) => unsafe { real(at, len, new_len, flags, new) },
            None => {
                let args = [at as usize, len, new_len, flags as usize, new as usize, 0];
                // SAFETY: the program makes this very call.
                let answer = unsafe { of_kernel(Sysno::mremap, args) };
                std::ptr::with_exposed_provenance_mut(answer as usize)
            }
        };
        changed(ret)
    }

    unsafe fn shmdt(at: *const c_void) -> c_int => on_shmdt {
        changed(late!(shmdt(at)))
    }

    // Never before 2.27 here.
    unsafe fn pkey_mprotect(
        at: *mut c_void,
        len: size_t,
        protection: c_int,
        key: c_int,
    ) -> c_int => on_pkey_mprotect {
        changed(late!(pkey_mprotect(at, len, protection, key)))
    }
}

aliases! {
    unsafe fn mmap64(
        at: *mut c_void,
        len: size_t,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: off_t,
    ) -> *mut c_void = on_mmap;
}

/// A call has changed what is mapped, unless it failed.
#[inline(always)]
pub fn changed<R>(returned: R) -> R {
    caller::mappings_changed();
    returned
}

/// Until the library is loaded: the kernel's own answer, as the C library's function gives it.
///
/// # Safety
/// As the call.
#[cold]
pub unsafe fn of_kernel(number: Sysno, args: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    match unsafe { sys::call(number, args) } {
        Ok(n) => n as isize,
        Err(e) => errno::fail(Error::Kernel(e)),
    }
}
