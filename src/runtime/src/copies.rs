//! Only one copy of the library works in a process.
//!
//! Two files of it in one `LD_PRELOAD` are two libraries. Each has its own hooks, tables and
//! control thread, and would take the other's descriptors and doorbells for the program's. The
//! first in the loader's order works. Every other tracks nothing, so that its hooks pass each call
//! on, and logs that.
//!
//! Each copy exports a [`MARK`], a pointer to its counters. The loader's look-up of this symbol
//! returns the first copy's, at any time, even in a hook that runs before a constructor.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};
use sluice_stats::{ROOT, Root};

/// Name of the symbol that the preload package defines.
const MARK: &CStr = c"sluice_counters";

/// Whether this copy works: one of the next three.
static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const WORKS: u8 = 1;
const IDLE: u8 = 2;

/// True if this is the copy that works.
#[inline]
pub fn works() -> bool {
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => look(),
        known => known == WORKS,
    }
}

#[cold]
fn look() -> bool {
    let mark = first_mark();
    // SAFETY: not null, so the first copy's mark, which the loader has filled in before any of its
    // code runs.
    let works = mark.is_null() || core::ptr::eq(unsafe { mark.read() }, &raw const ROOT);
    if !works {
        ROOT.set_idle();
    }
    let known = if works { WORKS } else { IDLE };
    KNOWN.store(known, Ordering::Relaxed);
    works
}

/// The first copy's mark. Null in a process without one, such as a test.
fn first_mark() -> *const *const Root {
    // SAFETY: a look-up by a NUL-terminated name, as for each hook's real function.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, MARK.as_ptr()) }.cast()
}

/// Calls `then` with the file names of the copy that works and of this one.
pub(crate) fn with_files(then: impl FnOnce(&[u8], &[u8])) {
    then(
        file_of(first_mark().cast()),
        file_of((&raw const KNOWN).cast()),
    );
}

/// The file that an address was loaded from.
fn file_of(address: *const libc::c_void) -> &'static [u8] {
    // SAFETY: a plain C structure, for which all zeroes are a valid value.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: takes any address, and `info` is alive.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return b"?";
    }
    // SAFETY: a string of the loader's, which lives as long as the library; that is never unloaded.
    unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes()
}
