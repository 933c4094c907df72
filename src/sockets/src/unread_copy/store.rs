//! The memory of the unread copy.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use libc::c_int;
use sluice_fabric::ring::Ring;
use sluice_fabric::sys;

/// The copy; changed under the rx lock. It ends at TCP's byte count
/// [`owed`](crate::socket::Half::owed).
#[derive(Debug)]
pub struct UnreadCopy {
    pub(super) base: AtomicPtr<u8>,
    pub(super) len: AtomicUsize,
    /// So many bytes have been taken out of it.
    pub(super) taken: AtomicUsize,
    /// There is a copy, and a relative has it.
    pub(super) lost: AtomicBool,
    /// TCP brings nothing of it.
    pub(super) whole: AtomicBool,
    /// A copy will be whole: the program has shut down both halves while both ends were on the
    /// link.
    pub(super) expected: AtomicBool,
}

impl UnreadCopy {
    /// Returns whether there is a copy, here or in a relative.
    #[inline]
    pub(crate) fn are_kept(&self) -> bool {
        !self.base.load(Ordering::Relaxed).is_null() || self.are_lost()
    }

    /// Returns whether a relative has the copy.
    pub(super) fn are_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// The program has shut down both halves, which the peer learns before it can leave the link,
    /// so the peer will re-send nothing. Call with the rx lock held.
    pub(crate) fn expect_whole(&self) {
        self.expected.store(true, Ordering::Relaxed);
    }

    /// See [`UnreadCopy::expect_whole`].
    pub(crate) fn will_be_whole(&self) -> bool {
        self.expected.load(Ordering::Relaxed)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Relaxed)
    }

    /// Keeps `start..end` of the ring; of a `whole` copy TCP brings nothing. Uses pages of its own,
    /// since a signal handler may have interrupted malloc.
    pub fn keep(&self, ring: Ring, start: u64, end: u64, whole: bool) {
        self.forget();
        let len = end.wrapping_sub(start);
        if len == 0 || len > ring.len() {
            return;
        }
        let Ok(base) = sys::map_zeroes(len as usize, false) else {
            return;
        };
        let mut to = base;
        for (from, n) in ring.pieces(start, len) {
            // SAFETY: inside the ring, and the new mapping is as long as both pieces together.
            unsafe {
                core::ptr::copy_nonoverlapping(from, to, n);
                to = to.add(n);
            }
        }
        self.hold(base, len as usize, whole);
    }

    /// Reads at most `len` unread bytes from TCP and puts them before what is kept, of which
    /// nothing has been taken. Returns how many bytes are kept then; `None`: nothing has changed.
    pub(super) fn keep_of_tcp(&self, fd: c_int, len: usize) -> Option<usize> {
        if self.are_lost() {
            // A relative has the bytes that were to follow.
            return None;
        }
        let after = self.base.load(Ordering::Relaxed);
        let kept = if self.are_kept() {
            self.len.load(Ordering::Relaxed)
        } else {
            0
        };
        let base = sys::map_zeroes(len + kept, false).ok()?;
        let mut got = 0;
        while got < len {
            // SAFETY: `len - got` bytes of the new mapping follow `base + got`.
            match unsafe { sys::recv(fd, base.add(got), len - got, libc::MSG_DONTWAIT) } {
                Ok(n) if n > 0 => got += n,
                Err(libc::EINTR) => {}
                _ => break,
            }
        }
        if kept != 0 {
            // SAFETY: the old copy has `kept` bytes and does not change under the rx lock; as many
            // are left in the new mapping.
            unsafe { core::ptr::copy_nonoverlapping(after, base.add(got), kept) };
        }
        self.forget();
        self.hold(base, got + kept, false);
        Some(got + kept)
    }

    /// Notes that a relative has the copy, of `len` bytes.
    pub(super) fn lose(&self, len: usize, whole: bool) {
        self.forget();
        self.hold(core::ptr::null_mut(), len, whole);
        self.lost.store(true, Ordering::Relaxed);
    }

    pub(super) fn hold(&self, base: *mut u8, len: usize, whole: bool) {
        self.whole.store(whole, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
        self.base.store(base, Ordering::Relaxed);
    }

    /// Frees the copy.
    pub fn forget(&self) {
        for flag in [&self.whole, &self.expected, &self.lost] {
            flag.store(false, Ordering::Relaxed);
        }
        let base = self.base.swap(core::ptr::null_mut(), Ordering::Relaxed);
        if !base.is_null() {
            // SAFETY: a mapping of this length by `keep` or `keep_of_tcp`; readers hold the rx
            // lock, too.
            unsafe { sys::unmap(base, self.len.load(Ordering::Relaxed)) };
        }
    }
}
