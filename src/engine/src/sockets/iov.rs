//! Walking over a caller's `iovec` array.

use libc::iovec;

/// Most pieces that one call can have (UIO_MAXIOV); more is the kernel's to refuse.
pub const MAX: usize = 1024;

/// Can this range be a user's at all? Not in the first page, not in the kernel's half: the kernel
/// says EFAULT. A range that is plausible and not mapped ends the program (docs/limitations.md).
pub fn plausible(at: usize, len: usize) -> bool {
    const TOP: usize = 1 << 47;
    (4096..TOP).contains(&at) && len <= TOP - at
}

/// The caller's buffers, and how far they have been used.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    at: *const iovec,
    left: usize,
    /// Bytes of the first piece already used.
    skip: usize,
}

impl Cursor {
    /// # Safety
    /// `at` points to `count` pieces that stay valid while the cursor is used.
    pub const unsafe fn new(at: *const iovec, count: usize) -> Self {
        Self {
            at,
            left: count,
            skip: 0,
        }
    }

    /// Bytes left, whatever the addresses; `None` when they overflow (EINVAL to the kernel).
    pub fn count(&self) -> Option<usize> {
        if !plausible(self.at as usize, self.left * size_of::<iovec>()) {
            return None;
        }
        let mut total = 0usize;
        for i in 0..self.left {
            // SAFETY: `left` pieces are valid.
            total = total.checked_add(unsafe { (*self.at.add(i)).iov_len })?;
        }
        (total <= isize::MAX as usize).then(|| total - self.skip)
    }

    /// Bytes left; `None` when they overflow (EINVAL to the kernel) or a piece with a length has no
    /// address (EFAULT to the kernel).
    pub fn len(&self) -> Option<usize> {
        if !plausible(self.at as usize, self.left * size_of::<iovec>()) {
            return None;
        }
        let mut total = 0usize;
        for i in 0..self.left {
            // SAFETY: `left` pieces are valid.
            let piece = unsafe { &*self.at.add(i) };
            if piece.iov_len != 0 && !plausible(piece.iov_base as usize, piece.iov_len) {
                return None;
            }
            total = total.checked_add(piece.iov_len)?;
        }
        (total <= isize::MAX as usize).then(|| total - self.skip)
    }

    /// Uses up to `len` bytes, piece by piece: `each(address, length)`.
    #[inline]
    pub fn advance(&mut self, mut len: usize, mut each: impl FnMut(*mut u8, usize)) {
        while len != 0 && self.left != 0 {
            // SAFETY: `left` pieces are valid.
            let piece = unsafe { &*self.at };
            let here = (piece.iov_len - self.skip).min(len);
            if here != 0 {
                // SAFETY: `skip + here` is within the piece.
                each(unsafe { piece.iov_base.cast::<u8>().add(self.skip) }, here);
            }
            len -= here;
            self.skip += here;
            if self.skip == piece.iov_len {
                // SAFETY: one past a valid piece at most.
                self.at = unsafe { self.at.add(1) };
                self.left -= 1;
                self.skip = 0;
            }
        }
    }

    /// The rest as an array of the kernel's, in `room`; as many pieces as fit.
    pub fn rest<'a>(&self, room: &'a mut [iovec]) -> &'a mut [iovec] {
        let count = self.left.min(room.len());
        for (i, to) in room.iter_mut().take(count).enumerate() {
            // SAFETY: `i < left`.
            *to = unsafe { *self.at.add(i) };
        }
        if let Some(first) = room.first_mut().filter(|_| count != 0) {
            // SAFETY: `skip` is within the first piece.
            first.iov_base = unsafe { first.iov_base.cast::<u8>().add(self.skip) }.cast();
            first.iov_len -= self.skip;
        }
        room.get_mut(..count).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_walks_over_empty_and_partly_used_pieces() {
        let mut bytes = [*b"abc", *b"def", *b"ghi"];
        let mut pieces: Vec<iovec> = Vec::new();
        for (i, b) in bytes.iter_mut().enumerate() {
            if i == 1 {
                pieces.push(iovec {
                    iov_base: core::ptr::null_mut(),
                    iov_len: 0,
                });
            }
            pieces.push(iovec {
                iov_base: b.as_mut_ptr().cast(),
                iov_len: 3,
            });
        }
        // SAFETY: the vector outlives the cursor.
        let mut cursor = unsafe { Cursor::new(pieces.as_ptr(), pieces.len()) };
        assert_eq!(cursor.len(), Some(9));
        let mut got = Vec::new();
        let mut take = |at: *mut u8, n: usize| {
            // SAFETY: the pieces point at living arrays.
            got.extend_from_slice(unsafe { core::slice::from_raw_parts(at, n) })
        };
        cursor.advance(4, &mut take);
        assert_eq!(cursor.len(), Some(5));
        let mut room = [iovec {
            iov_base: core::ptr::null_mut(),
            iov_len: 0,
        }; 4];
        assert_eq!(
            cursor
                .rest(&mut room)
                .iter()
                .map(|p| p.iov_len)
                .collect::<Vec<_>>(),
            [2, 3]
        );
        cursor.advance(99, &mut take);
        assert_eq!(got, b"abcdefghi");
    }
}
