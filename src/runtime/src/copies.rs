//! One copy of the library works in a process.
//!
//! Two files of it in one `LD_PRELOAD` are two libraries: each has hooks, tables and a control
//! thread of its own, and would take the other's descriptors and doorbells for the program's. The
//! one that the loader finds first works; every other tracks nothing, so that its hooks pass each
//! call on, and says so.
//!
//! Each copy exports a [`MARK`], a pointer to its counters. Looked up as the program's own
//! symbols are, it is that of the first copy. This can be done at any time, also for a
//! hook that runs before a constructor.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};
use sluice_stats::{ROOT, Root};

/// The symbol's name; the preload package defines it.
const MARK: &CStr = c"sluice_counters";

/// What is known, one of the next three.
static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const WORKS: u8 = 1;
const IDLE: u8 = 2;

/// Is this the copy that works?
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
    // SAFETY: not null, so it is the first copy's mark, which the loader has filled in before any
    // code of it runs.
    let works = mark.is_null() || core::ptr::eq(unsafe { mark.read() }, &raw const ROOT);
    if !works {
        ROOT.set_idle();
    }
    let known = if works { WORKS } else { IDLE };
    KNOWN.store(known, Ordering::Relaxed);
    works
}

/// The first copy's; null in a process that has no such symbol: a test.
fn first_mark() -> *const *const Root {
    // SAFETY: a look-up by name, which is what every hook's real function is found by.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, MARK.as_ptr()) }.cast()
}

/// Calls `then` with the files of the copy that works and of this one, as the loader names them.
pub(crate) fn with_files(then: impl FnOnce(&[u8], &[u8])) {
    then(
        file_of(first_mark().cast()),
        file_of((&raw const KNOWN).cast()),
    );
}

/// The file that an address was loaded from.
fn file_of(address: *const libc::c_void) -> &'static [u8] {
    // SAFETY: zeroes are a valid answer: nothing was found.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: looks any address up, and writes to a struct of ours.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return b"?";
    }
    // SAFETY: a text of the loader's, which lives as long as the library: it is never unloaded.
    unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes()
}
