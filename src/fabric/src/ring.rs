//! Copies into and out of a ring; giving its pages back.
//!
//! A ring is bytes only; its words live in the direction's lines. The peer may write here at any
//! moment, so there is no reference to the bytes, only raw copies.

use core::ptr::copy_nonoverlapping;

/// A ring of `len` bytes (a power of two). Stream offset `o` lies at `o % len`.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    base: *mut u8,
    len: u32,
}

// SAFETY: only an address; the words decide which end may copy when, under the direction's locks.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// A ring at `base`.
    ///
    /// # Safety
    /// `len` is a power of two and `base` is mapped, readable and writable for `len` bytes as long
    /// as the ring is used.
    #[must_use]
    pub const unsafe fn new(base: *mut u8, len: u32) -> Self {
        Self { base, len }
    }

    /// Bytes that the ring holds.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len as u64
    }

    /// Never: a ring has room for at least a page.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the pages back to the kernel: whatever was written is zero from now on, and the next
    /// write gets new pages. False: refused, nothing has changed. For memory that shares a file,
    /// else nothing happens.
    ///
    /// By [`Ring::new`] the ring is mapped. Its bytes are lost, so the caller holds it back from
    /// a reader: it is empty and its writer locked out, or nobody's.
    #[must_use]
    pub fn discard(&self) -> bool {
        // SAFETY: mapped by `new`'s contract; shared memory holds no Rust object that would miss
        // its bytes.
        unsafe { crate::sys::madvise(self.base, self.len as usize, libc::MADV_REMOVE) }.is_ok()
    }

    /// The one or two pieces of `[offset, offset + len)`; `len` is at most the ring's.
    #[inline]
    #[must_use]
    pub fn pieces(&self, offset: u64, len: u64) -> [(*mut u8, usize); 2] {
        let at = (offset & u64::from(self.len - 1)) as usize;
        let len = (len as usize).min(self.len as usize);
        let first = len.min(self.len as usize - at);
        // SAFETY: `at < len of the ring`, so the address stays inside.
        let start = unsafe { self.base.add(at) };
        [(start, first), (self.base, len - first)]
    }

    /// Copies `len` bytes from `from` to offset `offset`.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes, `len` is at most the ring's length, and the words say
    /// that this space is the writer's.
    #[inline]
    pub unsafe fn copy_in(&self, offset: u64, from: *const u8, len: usize) {
        let [(a, a_len), (b, b_len)] = self.pieces(offset, len as u64);
        // SAFETY: the pieces lie in the ring; the caller vouches for `from`.
        unsafe { copy_nonoverlapping(from, a, a_len) };
        if b_len != 0 {
            // SAFETY: as above.
            unsafe { copy_nonoverlapping(from.add(a_len), b, b_len) };
        }
    }

    /// Copies `len` bytes from offset `offset` to `to`.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes and `len` is at most the ring's length.
    #[inline]
    pub unsafe fn copy_out(&self, offset: u64, to: *mut u8, len: usize) {
        let [(a, a_len), (b, b_len)] = self.pieces(offset, len as u64);
        // SAFETY: the pieces lie in the ring; the caller vouches for `to`.
        unsafe { copy_nonoverlapping(a, to, a_len) };
        if b_len != 0 {
            // SAFETY: as above.
            unsafe { copy_nonoverlapping(b, to.add(a_len), b_len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_wrap_and_come_back() {
        let mut memory = vec![0u8; 4096];
        // SAFETY: the vector outlives the ring.
        let ring = unsafe { Ring::new(memory.as_mut_ptr(), 4096) };
        let data: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
        for start in [0u64, 1, 4095, 4096, 9000, u64::from(u32::MAX) + 4000] {
            let mut back = vec![0u8; data.len()];
            // SAFETY: both vectors hold 3000 bytes and the ring more.
            unsafe {
                ring.copy_in(start, data.as_ptr(), data.len());
                ring.copy_out(start, back.as_mut_ptr(), back.len());
            }
            assert_eq!(back, data);
        }
    }
}
