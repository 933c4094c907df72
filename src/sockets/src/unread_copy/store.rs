//! The copy itself.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use libc::c_int;
use sluice_fabric::ring::Ring;
use sluice_fabric::sys;

/// The copy; changed under the rx lock. Its last byte is that of TCP at
/// [`owed`](crate::socket::Half::owed).
#[derive(Debug)]
pub struct UnreadCopy {
    pub(super) base: AtomicPtr<u8>,
    pub(super) len: AtomicUsize,
    /// The bytes that have been taken out of it.
    pub(super) taken: AtomicUsize,
    /// There is one, and a relative has it.
    pub(super) lost: AtomicBool,
    /// Nothing of it comes by TCP.
    pub(super) whole: AtomicBool,
    /// So it will be: the program has shut both halves down before either end left the link.
    pub(super) expected: AtomicBool,
}

impl UnreadCopy {
    /// Is there a copy, here or at a relative?
    #[inline]
    pub(crate) fn are_kept(&self) -> bool {
        !self.base.load(Ordering::Relaxed).is_null() || self.are_lost()
    }

    /// Has a relative the copy?
    pub(super) fn are_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Under the rx lock: the peer knows that both halves are shut down before it can leave the
    /// link, and sends nothing of it again.
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

    /// Keeps `start..end` of the ring; of a `whole` copy TCP brings nothing. Pages of its own: a
    /// handler may have interrupted malloc.
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
            // SAFETY: inside the ring, and the new mapping is as long as both pieces.
            unsafe {
                core::ptr::copy_nonoverlapping(from, to, n);
                to = to.add(n);
            }
        }
        self.hold(base, len as usize, whole);
    }

    /// The same of the `len` bytes that TCP holds unread at most, which are read: they come before
    /// what is kept already, of which nothing has been taken. How many bytes are kept then; `None`:
    /// as they were.
    pub(super) fn keep_of_tcp(&self, fd: c_int, len: usize) -> Option<usize> {
        let after = self.base.load(Ordering::Relaxed);
        let kept = if self.are_kept() {
            self.len.load(Ordering::Relaxed)
        } else {
            0
        };
        let base = sys::map_zeroes(len + kept, false).ok()?;
        let mut got = 0;
        while got < len {
            // SAFETY: in the front of the new mapping.
            match unsafe { sys::recv(fd, base.add(got), len - got, libc::MSG_DONTWAIT) } {
                Ok(n) if n > 0 => got += n,
                Err(libc::EINTR) => {}
                _ => break,
            }
        }
        if kept != 0 {
            // SAFETY: the copy, under its lock, and room for it.
            unsafe { core::ptr::copy_nonoverlapping(after, base.add(got), kept) };
        }
        self.forget();
        self.hold(base, got + kept, false);
        Some(got + kept)
    }

    /// A relative has the copy of so many bytes.
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

    /// Nobody needs the copy any more.
    pub fn forget(&self) {
        for flag in [&self.whole, &self.expected, &self.lost] {
            flag.store(false, Ordering::Relaxed);
        }
        let base = self.base.swap(core::ptr::null_mut(), Ordering::Relaxed);
        if !base.is_null() {
            // SAFETY: mapped by `keep` with this length; readers hold the same lock.
            unsafe { sys::unmap(base, self.len.load(Ordering::Relaxed)) };
        }
    }
}
