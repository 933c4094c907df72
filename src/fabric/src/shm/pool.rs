//! Ring memory of one side of a link: lent to directions in size classes, taken back warm.

use crate::arena::Arena;
use crate::layout::{RING_MAX, RING_MIN, RING_REGION, rings_at};

/// Size classes: 4 KiB, 8 KiB ... 4 MiB.
const CLASSES: usize = (RING_MAX.ilog2() - RING_MIN.ilog2()) as usize + 1;

/// Bytes of returned rings that a pool keeps warm; beyond, pages go back to the kernel.
const WARM_LEN: u64 = 8 << 20;

/// A ring lent to the peer, to be given back to the pool it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Offset from the start of the arena.
    pub at: u64,
    /// Length, a power of two.
    pub len: u32,
}

/// Which parts of this side's region are lent. In private memory: the peer has no say.
#[derive(Debug)]
pub struct Pool {
    side: usize,
    /// Bytes of the region never lent so far.
    fresh: u64,
    /// Returned rings by class.
    free: [Free; CLASSES],
    /// Bytes of returned rings whose pages were kept.
    warm: u64,
    /// The kernel may be asked to take pages back
    /// ([`LinkEnd::can_discard`](super::LinkEnd::can_discard)).
    discards: bool,
}

/// Returned rings of one class, last in first out.
#[derive(Debug)]
struct Free {
    /// May have pages: used again first.
    warm: Vec<u64>,
    /// Have none.
    cold: Vec<u64>,
}

impl Pool {
    /// The pool of `side`'s region, all of it free. `discards`: pages may go back to the kernel.
    #[must_use]
    pub fn new(side: usize, discards: bool) -> Self {
        const NONE: Free = Free {
            warm: Vec::new(),
            cold: Vec::new(),
        };
        Self {
            side,
            fresh: 0,
            free: [NONE; CLASSES],
            warm: 0,
            discards,
        }
    }

    fn class(len: u32) -> usize {
        (len.clamp(RING_MIN, RING_MAX).next_power_of_two().ilog2() - RING_MIN.ilog2()) as usize
    }

    /// Lends a ring of at least `len` bytes, or a smaller one when the region is nearly used up.
    pub fn lend(&mut self, len: u32) -> Option<Lent> {
        for class in (0..=Self::class(len)).rev() {
            let len = RING_MIN << class;
            if let Some(free) = self.free.get_mut(class) {
                if let Some(at) = free.warm.pop() {
                    self.warm -= u64::from(len);
                    return Some(Lent { at, len });
                }
                if let Some(at) = free.cold.pop() {
                    return Some(Lent { at, len });
                }
            }
            if self.fresh + u64::from(len) <= RING_REGION {
                let at = rings_at(self.side) + self.fresh;
                self.fresh += u64::from(len);
                return Some(Lent { at, len });
            }
        }
        None
    }

    /// Takes a ring back. Nobody reads or writes it any more.
    pub fn take_back(&mut self, arena: &Arena, lent: Lent) {
        let Some(free) = self.free.get_mut(Self::class(lent.len)) else {
            return;
        };
        let full = self.warm + u64::from(lent.len) > WARM_LEN;
        if full && self.discards && arena.discard(self.side, lent.at, lent.len) {
            free.cold.push(lent.at);
        } else {
            self.warm += u64::from(lent.len);
            free.warm.push(lent.at);
        }
    }

    /// Gives the pages of up to `most` returned rings back to the kernel. True: there are more.
    pub fn cool(&mut self, arena: &Arena, most: usize) -> bool {
        if !self.discards {
            return false;
        }
        let mut left = most;
        for (class, free) in self.free.iter_mut().enumerate() {
            let len = RING_MIN << class;
            while let Some(at) = free.warm.last().copied() {
                if left == 0 {
                    return true;
                }
                left -= 1;
                if !arena.discard(self.side, at, len) {
                    // Memory locked by the program: so are the others.
                    return false;
                }
                free.warm.pop();
                free.cold.push(at);
                self.warm -= u64::from(len);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_never_overlap_and_come_back() {
        let arena = Arena::create_local().unwrap();
        let mut pool = Pool::new(1, true);
        let mut lent = Vec::new();
        for len in [4096, 1 << 18, 100_000, 4 << 20, 1] {
            lent.push(pool.lend(len).unwrap());
        }
        lent.sort_by_key(|l| l.at);
        for pair in lent.windows(2) {
            assert!(pair[0].at + u64::from(pair[0].len) <= pair[1].at);
        }
        for l in &lent {
            assert!(arena.ring(1, l.at, l.len).is_some());
            pool.take_back(&arena, *l);
        }
        assert_eq!(pool.lend(1 << 18).unwrap().len, 1 << 18);
    }

    #[test]
    fn what_is_no_ring_is_not_discarded() {
        let arena = Arena::create_local().unwrap();
        let lent = Pool::new(0, true).lend(4096).unwrap();
        let ring = arena.ring(0, lent.at, lent.len).unwrap();
        // SAFETY: a byte of ours, and the ring's length.
        unsafe { ring.copy_in(0, [7u8].as_ptr(), 1) };
        let byte = || {
            let mut byte = [0u8];
            // SAFETY: as above.
            unsafe { ring.copy_out(0, byte.as_mut_ptr(), 1) };
            byte[0]
        };
        for (side, at, len) in [
            (1, lent.at, 4096),
            (0, lent.at, 4097),
            (0, lent.at + 1, 4096),
            (0, u64::MAX - 4095, 4096),
            (0, 0, u32::MAX),
        ] {
            assert!(!arena.discard(side, at, len));
            assert_eq!(byte(), 7);
        }
        assert!(arena.discard(0, lent.at, lent.len));
        assert_eq!(byte(), 0);
    }

    /// Writes a byte into each page of the ring, or counts the pages that have it.
    fn dirty(arena: &Arena, lent: Lent) {
        let ring = arena.ring(0, lent.at, lent.len).unwrap();
        for page in 0..u64::from(lent.len) / 4096 {
            // SAFETY: a byte of ours, and one of the ring.
            unsafe { ring.copy_in(page * 4096, [7u8].as_ptr(), 1) };
        }
    }

    fn dirty_pages(arena: &Arena, lent: Lent) -> usize {
        let ring = arena.ring(0, lent.at, lent.len).unwrap();
        let pages = 0..u64::from(lent.len) / 4096;
        pages
            .filter(|page| {
                let mut byte = [0u8];
                // SAFETY: as above.
                unsafe { ring.copy_out(page * 4096, byte.as_mut_ptr(), 1) };
                byte[0] == 7
            })
            .count()
    }

    #[test]
    fn returned_rings_are_cooled_and_warm_ones_lent_first() {
        let arena = Arena::create_local().unwrap();
        let mut pool = Pool::new(0, true);
        let lent: Vec<Lent> = (0..4).map(|_| pool.lend(16384).unwrap()).collect();
        let kept = pool.lend(16384).unwrap();
        for l in lent.iter().chain([&kept]) {
            dirty(&arena, *l);
        }
        for l in &lent {
            pool.take_back(&arena, *l);
        }
        assert!(pool.cool(&arena, 3));
        let left: Vec<usize> = lent.iter().map(|l| dirty_pages(&arena, *l)).collect();
        assert_eq!(
            left.iter().sum::<usize>(),
            4,
            "one of four is warm: {left:?}"
        );
        let warm = lent[left.iter().position(|&n| n != 0).unwrap()];
        assert_eq!(pool.lend(16384), Some(warm));
        pool.take_back(&arena, warm);
        assert!(!pool.cool(&arena, 3));
        assert_eq!(dirty_pages(&arena, warm), 0);
        assert_eq!(dirty_pages(&arena, kept), 4, "a lent ring is left alone");
        assert_eq!(pool.warm, 0);
        // All four are still there to be lent.
        let mut again: Vec<Lent> = (0..4).map(|_| pool.lend(16384).unwrap()).collect();
        again.sort_by_key(|l| l.at);
        assert_eq!(again, lent);
    }

    #[test]
    fn a_pool_that_may_not_discard_keeps_every_page() {
        let arena = Arena::create_local().unwrap();
        let mut pool = Pool::new(0, false);
        let lent: Vec<Lent> = (0..3).map(|_| pool.lend(RING_MAX).unwrap()).collect();
        for l in &lent {
            dirty(&arena, *l);
        }
        for l in &lent {
            pool.take_back(&arena, *l);
        }
        assert!(!pool.cool(&arena, 9));
        for l in &lent {
            assert_eq!(dirty_pages(&arena, *l), RING_MAX as usize / 4096);
        }
    }

    #[test]
    fn a_used_up_region_lends_smaller_rings_then_none() {
        let mut pool = Pool::new(0, true);
        let mut total = 0;
        while let Some(l) = pool.lend(RING_MAX) {
            total += u64::from(l.len);
        }
        assert_eq!(total, RING_REGION);
    }
}
