//! Walks over a caller's `iovec` array.

use crate::caller::{self, FIRST, TOP, plausible};
use libc::iovec;

/// Most pieces of one call (UIO_MAXIOV). The kernel refuses more.
pub const MAX: usize = 1024;

/// Most bytes that one call moves (MAX_RW_COUNT), however many are asked for.
pub const MOST: usize = 0x7fff_f000;

/// True if an array that the kernel would read is not mapped.
#[inline(always)]
pub fn is_missing(at: *const iovec, count: usize) -> bool {
    // Without pieces the kernel does not look at the address.
    (1..=MAX).contains(&count) && caller::cannot_read(at as usize, count * size_of::<iovec>())
}

/// A caller's buffers, and how far they have been used.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    at: *const iovec,
    left: usize,
    /// Bytes of the first piece that were used.
    skip: usize,
    /// Bytes that may still be used.
    most: usize,
}

/// How many bytes a call may move, by its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// This number. Pieces may follow that cannot be used: in the kernel a call ends before one.
    Bytes(usize),
    /// None: the first piece has no address. The kernel returns EFAULT, unless it has another error
    /// to return.
    NoAddress,
    /// None: an address is not in user space. The kernel returns EFAULT before it looks at the
    /// socket.
    BadAddress,
    /// The kernel refuses the array, or a negative length, by its own error.
    Refused,
}

impl Cursor {
    /// # Safety
    /// `at` points to `count` pieces that stay valid while the cursor is used.
    pub const unsafe fn new(at: *const iovec, count: usize) -> Self {
        Self {
            at,
            left: count,
            skip: 0,
            most: usize::MAX,
        }
    }

    /// How many bytes a call may move. `discards`: the addresses are never used.
    pub fn extent(&self, discards: bool) -> Extent {
        if self.left == 0 {
            // Without pieces the kernel does not look at the address.
            return Extent::Bytes(0);
        }
        if !plausible(self.at as usize, self.left * size_of::<iovec>()) {
            return Extent::Refused;
        }
        let (mut total, mut ends) = (0usize, false);
        for i in 0..self.left {
            // SAFETY: `i < left`, and by the contract of `new` that many pieces are valid.
            let piece = unsafe { &*self.at.add(i) };
            let (at, len) = (piece.iov_base as usize, piece.iov_len);
            if len > isize::MAX as usize {
                return Extent::Refused;
            }
            if len != 0 && !discards {
                if at >= TOP || len > TOP - at {
                    return Extent::BadAddress;
                }
                ends |= at < FIRST;
            }
            if !ends {
                total += len.min(MOST - total);
            }
        }
        if ends && total == 0 {
            return Extent::NoAddress;
        }
        Extent::Bytes(total)
    }

    /// Ends the cursor after `most` more bytes.
    pub fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Bytes that may still be used, once [`Cursor::limit`] was called.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Uses up to `len` bytes, piece by piece: `each(address, length)`.
    #[inline]
    pub fn advance(&mut self, len: usize, mut each: impl FnMut(*mut u8, usize)) {
        let mut len = len.min(self.most);
        self.most -= len;
        while len != 0 && self.left != 0 {
            // SAFETY: `left` is not 0, so by the contract of `new` a valid piece is here.
            let piece = unsafe { &*self.at };
            let here = (piece.iov_len - self.skip).min(len);
            if here != 0 {
                // SAFETY: `skip + here` is at most the length of the piece.
                each(unsafe { piece.iov_base.cast::<u8>().add(self.skip) }, here);
            }
            len -= here;
            self.skip += here;
            if self.skip == piece.iov_len {
                // SAFETY: at most one past the last of the pieces that `new` was given.
                self.at = unsafe { self.at.add(1) };
                self.left -= 1;
                self.skip = 0;
            }
        }
    }

    /// Writes the rest into `room` as an array for the kernel, as many pieces as fit. Empty ones
    /// are left out: a call with only empty pieces would return 0, as at an end.
    pub fn rest<'a>(&self, room: &'a mut [iovec]) -> &'a mut [iovec] {
        let (mut count, mut skip, mut most) = (0, self.skip, self.most);
        for i in 0..self.left {
            if most == 0 {
                break;
            }
            // SAFETY: `i < left`, and by the contract of `new` that many pieces are valid.
            let piece = unsafe { *self.at.add(i) };
            let len = (piece.iov_len - skip).min(most);
            if len == 0 {
                skip = 0;
                continue;
            }
            let Some(to) = room.get_mut(count) else {
                break;
            };
            *to = iovec {
                // SAFETY: `skip` is less than the length of the piece.
                iov_base: unsafe { piece.iov_base.cast::<u8>().add(skip) }.cast(),
                iov_len: len,
            };
            most -= len;
            skip = 0;
            count += 1;
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
        assert_eq!(cursor.extent(false), Extent::Bytes(9));
        cursor.limit(9);
        let mut got = Vec::new();
        let mut take = |at: *mut u8, n: usize| {
            // SAFETY: the pieces point into arrays that are alive.
            got.extend_from_slice(unsafe { core::slice::from_raw_parts(at, n) })
        };
        cursor.advance(4, &mut take);
        assert_eq!(cursor.most(), 5);
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
    #[test]
    fn a_cursor_ends_where_the_kernel_would_end_the_call() {
        let bytes = *b"abcdef";
        let good = |len| iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: len,
        };
        let at = |address: usize, len| iovec {
            iov_base: core::ptr::without_provenance_mut(address),
            iov_len: len,
        };
        let extent = |pieces: &[iovec], discards| {
            // SAFETY: the slice outlives the cursor.
            unsafe { Cursor::new(pieces.as_ptr(), pieces.len()) }.extent(discards)
        };
        assert_eq!(
            extent(&[good(6), at(0, 5), good(6)], false),
            Extent::Bytes(6)
        );
        assert_eq!(extent(&[good(6), at(0, 5)], true), Extent::Bytes(11));
        assert_eq!(extent(&[at(0, 0), at(0, 5)], false), Extent::NoAddress);
        assert_eq!(extent(&[good(6), at(TOP, 1)], false), Extent::BadAddress);
        assert_eq!(extent(&[good(6), good(usize::MAX)], false), Extent::Refused);
        assert_eq!(
            extent(&[at(FIRST, MOST), at(FIRST, MOST)], false),
            Extent::Bytes(MOST)
        );
        let pieces = [good(6), good(6), at(0, 5)];
        // SAFETY: the array outlives the cursor.
        let mut cursor = unsafe { Cursor::new(pieces.as_ptr(), pieces.len()) };
        cursor.limit(9);
        let mut room = [at(0, 0); 4];
        assert_eq!(cursor.rest(&mut room).len(), 2);
        assert_eq!(room.map(|p| p.iov_len), [6, 3, 0, 0]);
        let mut n = 0;
        cursor.advance(99, |_, len| n += len);
        assert_eq!((n, cursor.most(), cursor.rest(&mut room).len()), (9, 0, 0));
        // More empty pieces than there is room for.
        let pieces = [[at(FIRST, 0); 4].as_slice(), &[good(6), at(0, 0), good(6)]].concat();
        // SAFETY: the vector outlives the cursor.
        let mut cursor = unsafe { Cursor::new(pieces.as_ptr(), pieces.len()) };
        cursor.limit(12);
        let lens = |rest: &mut [iovec]| rest.iter().map(|p| p.iov_len).collect::<Vec<_>>();
        assert_eq!(lens(cursor.rest(&mut room)), [6, 6]);
        cursor.advance(6, |_, _| ());
        assert_eq!(lens(cursor.rest(&mut room)), [6]);
    }
}
