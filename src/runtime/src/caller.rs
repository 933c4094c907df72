//! Checks the program's pointers before they are used.
//!
//! A system call that gets an address where nothing is mapped fails with EFAULT. The kernel notices
//! by a page fault; here a fault would kill the program. So the kernel is asked first, page by
//! page, by a call that only looks at the page. Its answer is cached until the program changes its
//! mappings, since event loops and vectored calls pass the same few structures each time. The page
//! of this thread's stack need not be asked for (`docs/decisions/020-pointers-are-asked-for.md`).

use crate::seccomp;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_fabric::sys;

const PAGE: usize = 4096;

/// Lowest user address: nothing is mapped in the first page.
pub const FIRST: usize = 4096;
/// End of the user addresses.
pub(crate) const TOP: usize = 1 << 47;

/// True if the range is in user space: otherwise the kernel returns EFAULT. Whether it is mapped is
/// for [`can_read`] and its kin, which are used for structures that describe a call. Buffers that
/// are not mapped kill the program (docs/limitations.md).
pub fn plausible(at: usize, len: usize) -> bool {
    (FIRST..TOP).contains(&at) && len <= TOP - at
}

/// Whether a range is mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum There {
    Yes,
    No,
    /// An inherited seccomp filter may kill for asking. Then there are no streams.
    Untold,
}

/// True if all of this can certainly be read.
#[inline(always)]
#[must_use]
pub fn can_read(at: usize, len: usize) -> bool {
    there(at, len, false) == There::Yes
}

/// True if not all of this can be read, for certain.
#[inline(always)]
#[must_use]
pub fn cannot_read(at: usize, len: usize) -> bool {
    there(at, len, false) == There::No
}

/// True if it can be read and that is cached. The kernel is not asked.
#[inline(always)]
#[must_use]
pub fn is_known_to_be_there<T>(at: *const T) -> bool {
    let at = at as usize;
    at % PAGE <= PAGE - size_of::<T>() && is_known(at / PAGE, false)
}

/// As [`can_read`], for writing.
#[inline(always)]
#[must_use]
pub fn can_write(at: usize, len: usize) -> bool {
    there(at, len, true) == There::Yes
}

/// As [`cannot_read`], for writing.
#[inline(always)]
#[must_use]
pub fn cannot_write(at: usize, len: usize) -> bool {
    there(at, len, true) == There::No
}

/// How many of the `len` bytes from `at` on can certainly be written, by pages.
#[must_use]
pub fn writable(at: usize, len: usize) -> usize {
    let end = at.saturating_add(len);
    let mut to = at;
    while to < end {
        let next = (to / PAGE + 1) * PAGE;
        if !can_write(to, next.min(end) - to) {
            break;
        }
        to = next;
    }
    to.min(end) - at
}

/// Copies the `T` at `at`, if it can certainly be read.
///
/// # Safety
/// Any bytes are a valid `T`.
#[inline(always)]
#[must_use]
pub unsafe fn copy<T: Copy>(at: *const T) -> Option<T> {
    // SAFETY: it can be read, and by this function's contract any bytes are a `T`.
    can_read(at as usize, size_of::<T>()).then(|| unsafe { at.read_unaligned() })
}

/// As [`copy`], unless it certainly cannot be read: for structures that are needed even where the
/// kernel must not be asked.
///
/// # Safety
/// Any bytes are a valid `T`. Where a filter forbids asking, the caller knows that `at` is mapped.
#[inline(always)]
#[must_use]
pub unsafe fn copy_on_trust<T: Copy>(at: *const T) -> Option<T> {
    // SAFETY: readable, or by this function's contract mapped; any bytes are a `T`.
    (!cannot_read(at as usize, size_of::<T>())).then(|| unsafe { at.read_unaligned() })
}

/// A pointer leads to unmapped memory: EFAULT, which the kernel returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing;

/// The time limit at `at`, or none for null.
///
/// # Errors
/// It cannot be read.
///
/// # Safety
/// `at` is null or an argument of a C caller.
pub unsafe fn timeout_at(at: *const libc::timespec) -> Result<Option<libc::timespec>, Missing> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: any bytes are a `timespec`; unasked, the C caller vouches for its argument.
    unsafe { copy_on_trust(at) }.map(Some).ok_or(Missing)
}

/// True if `mask` is neither null nor readable. The kernel checks that before anything else.
pub fn is_mask_missing(mask: *const libc::sigset_t) -> bool {
    // The kernel's mask has 64 bits.
    !mask.is_null() && cannot_read(mask as usize, 8)
}

#[inline(always)]
fn there(at: usize, len: usize, writes: bool) -> There {
    let last = len.wrapping_sub(1);
    let is_on_one = last < PAGE && at % PAGE <= PAGE - 1 - last;
    if is_on_one && is_known(at / PAGE, writes) {
        There::Yes
    } else {
        elsewhere(at, len, writes)
    }
}

/// The number of the page that the top of this thread's stack is on.
fn own_page() -> usize {
    let top: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: copies a register, and nothing else.
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) top, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let here = core::mem::MaybeUninit::<u8>::uninit();
        top = core::hint::black_box(here.as_ptr()) as usize;
    }
    top / PAGE
}

#[inline(never)]
fn elsewhere(at: usize, len: usize, writes: bool) -> There {
    if len == 0 {
        return There::Yes;
    }
    if !plausible(at, len) {
        return There::No;
    }
    for page in at / PAGE..=(at + len - 1) / PAGE {
        if !is_known(page, writes) {
            match ask(page, at, writes) {
                There::Yes => {}
                other => return other,
            }
        }
    }
    There::Yes
}

/// Cache of mapped pages: a direct-mapped table by page number, one for all threads. An entry is
/// twice the page number, plus 1 if the page is writable, plus [`CHANGES`] as of before the kernel
/// was asked.
static KNOWN: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
/// How often the program has changed its mappings, in units of [`CHANGE`]. Begins at one, so that
/// an empty entry matches no page.
static CHANGES: AtomicU64 = AtomicU64::new(CHANGE);
/// The program installs a seccomp filter, which may kill for asking: from now on nothing is asked.
static IS_FILTERED: AtomicBool = AtomicBool::new(false);

const WRITABLE: u64 = 1;
/// More than twice the number of any user page.
const CHANGE: u64 = 1 << 36;

#[inline(always)]
fn place_of(page: usize) -> Option<&'static AtomicU64> {
    KNOWN.get(page % KNOWN.len())
}

#[inline(always)]
fn is_known(page: usize, writes: bool) -> bool {
    let Some(place) = place_of(page) else {
        return false;
    };
    let known = place.load(Ordering::Relaxed);
    // A page that can be written can be read.
    let known = if writes { known } else { known | WRITABLE };
    // A page number beyond user space gives a sum that no entry has.
    let changes = CHANGES.load(Ordering::Relaxed);
    known == changes.wrapping_add(2 * page as u64 + WRITABLE)
}

/// Looks whether a page is mapped, and asks the kernel unless it is the stack's. `at` is an address
/// in the page or before it.
#[cold]
#[inline(never)]
fn ask(page: usize, at: usize, writes: bool) -> There {
    let changes = CHANGES.load(Ordering::Acquire);
    let note = |writes: bool| {
        let how = if writes { WRITABLE } else { 0 };
        if let Some(place) = place_of(page) {
            place.store(
                changes.wrapping_add(2 * page as u64 + how),
                Ordering::Relaxed,
            );
        }
    };
    if page == own_page() {
        note(true);
        return There::Yes;
    }
    if IS_FILTERED.load(Ordering::Relaxed) {
        return There::Yes;
    }
    if seccomp::may_use_system_calls().is_err() {
        return There::Untold;
    }
    let word = at.max(page * PAGE) & !7;
    let found = if writes {
        sys::is_writable(word)
    } else {
        sys::is_readable(word)
    };
    if !found {
        return There::No;
    }
    note(writes);
    There::Yes
}

/// Called after the program has unmapped or replaced memory. (Not before: another thread's answer
/// from in between would be cached.)
#[inline]
pub fn mappings_changed() {
    let before = CHANGES.fetch_add(CHANGE, Ordering::AcqRel);
    if before.wrapping_add(CHANGE) == 0 {
        CHANGES.fetch_add(CHANGE, Ordering::AcqRel);
    }
}

/// Before the program installs a seccomp filter. Streams go back to TCP, and pointers are no longer
/// checked.
pub fn before_filter() {
    IS_FILTERED.store(true, Ordering::Relaxed);
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "tests map memory of their own")]
mod tests {
    use super::*;

    struct Pages(usize);

    impl Pages {
        fn new() -> Self {
            Self(sys::map_zeroes(2 * PAGE, false).unwrap() as usize)
        }
        fn protect(&self, index: usize, how: libc::c_int) {
            let at = core::ptr::without_provenance_mut(self.0 + index * PAGE);
            // SAFETY: a page of this test, which has no references into it.
            assert_eq!(unsafe { libc::mprotect(at, PAGE, how) }, 0);
            mappings_changed();
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: `new` has mapped it, and no reference into it is left.
            unsafe {
                sys::unmap(core::ptr::with_exposed_provenance_mut(self.0), 2 * PAGE);
            };
            mappings_changed();
        }
    }

    #[test]
    fn what_is_there_is_told_from_what_is_not() {
        let pages = Pages::new();
        let at = pages.0 + PAGE - 8;
        assert!(can_read(at, 16) && can_write(at, 16));
        pages.protect(1, libc::PROT_READ);
        assert!(can_read(at, 16) && !can_write(at, 16) && cannot_write(at, 16));
        assert!(can_write(at, 8));
        assert_eq!(writable(at - 100, 1000), 108);
        pages.protect(1, libc::PROT_NONE);
        assert!(!can_read(at, 9) && cannot_read(at, 9) && can_read(at, 8));
        pages.protect(1, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(writable(at, 1000), 1000);
        assert!(can_write(at, 8) && cannot_write(at | 1 << 47, 8) && cannot_write(at | 1 << 48, 8));
        for nowhere in [0, 100, usize::MAX, usize::MAX - 7, 1 << 47, 1 << 63] {
            assert!(cannot_read(nowhere, 8) && cannot_write(nowhere, 8));
            assert!(can_read(nowhere, 0));
        }
        assert!(cannot_read(at, usize::MAX) && cannot_read(at, usize::MAX - at));
    }

    #[test]
    fn a_page_that_was_there_is_asked_for_anew_behind_a_change() {
        let pages = Pages::new();
        let word = pages.0 as *const u64;
        // SAFETY: any bytes are a `u64`.
        let look = || unsafe { copy(word) };
        assert_eq!(look(), Some(0));
        pages.protect(0, libc::PROT_NONE);
        assert_eq!(look(), None);
        pages.protect(0, libc::PROT_READ);
        assert_eq!(look(), Some(0));
        assert!(cannot_write(pages.0, 8));
    }

    #[test]
    fn the_page_of_the_stack_is_there() {
        let local = [7u64; 2];
        let page = core::ptr::from_ref(&local) as usize / PAGE;
        // SAFETY: any bytes are a `[u64; 2]`.
        assert_eq!(unsafe { copy(&raw const local) }, Some(local));
        assert!(can_write(own_page() * PAGE, PAGE));
        mappings_changed();
        assert!(can_write(page * PAGE, 8) && is_known(page, true) && is_known(page, false));
    }
}
