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
    /// Returned rings by class, last in first out so that warm pages are used again.
    free: [Vec<u64>; CLASSES],
    /// Bytes in `free` whose pages were kept.
    warm: u64,
}

impl Pool {
    /// The pool of `side`'s region, all of it free.
    #[must_use]
    pub fn new(side: usize) -> Self {
        Self {
            side,
            fresh: 0,
            free: [const { Vec::new() }; CLASSES],
            warm: 0,
        }
    }

    fn class(len: u32) -> usize {
        (len.clamp(RING_MIN, RING_MAX).next_power_of_two().ilog2() - RING_MIN.ilog2()) as usize
    }

    /// Lends a ring of at least `len` bytes, or a smaller one when the region is nearly used up.
    pub fn lend(&mut self, len: u32) -> Option<Lent> {
        for class in (0..=Self::class(len)).rev() {
            let len = RING_MIN << class;
            if let Some(at) = self.free.get_mut(class).and_then(Vec::pop) {
                self.warm = self.warm.saturating_sub(u64::from(len));
                return Some(Lent { at, len });
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
        if self.warm + u64::from(lent.len) > WARM_LEN {
            arena.discard(self.side, lent.at, lent.len);
        } else {
            self.warm += u64::from(lent.len);
        }
        if let Some(list) = self.free.get_mut(Self::class(lent.len)) {
            list.push(lent.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_never_overlap_and_come_back() {
        let arena = Arena::create_local().unwrap();
        let mut pool = Pool::new(1);
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
        let lent = Pool::new(0).lend(4096).unwrap();
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
            arena.discard(side, at, len);
            assert_eq!(byte(), 7);
        }
        arena.discard(0, lent.at, lent.len);
        assert_eq!(byte(), 0);
    }

    #[test]
    fn a_used_up_region_lends_smaller_rings_then_none() {
        let mut pool = Pool::new(0);
        let mut total = 0;
        while let Some(l) = pool.lend(RING_MAX) {
            total += u64::from(l.len);
        }
        assert_eq!(total, RING_REGION);
    }
}
