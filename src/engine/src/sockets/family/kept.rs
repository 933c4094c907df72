//! What a process leaves to its relatives when it gives a stream back: the bytes that lay unread in it.
//!
//! They lie in the families' shared memory, block by block, so that a relative finds them that comes when the process, its stream and the
//! writer are gone. They are given back when all has been read, when the last process that holds the socket gives it up, or, where those
//! were killed, when others keep something. What finds no room is not kept: that is only missed if the writer does not send it again.

use super::{Family, Region, SLOTS, region};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use sluice_fabric::sys;

/// A page.
const BLOCK: usize = 4096;
/// 16 MiB: several rings of the largest class.
const BLOCKS: usize = 4096;

/// A block whose page goes back to the kernel just now.
const FREEING: u32 = u32::MAX;
/// The blocks are being filled, by a process that may be killed meanwhile.
const FILLING: u32 = u32::MAX;

/// What is kept for a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// So many bytes.
    pub len: usize,
    /// As [`Half::owed`](crate::sockets::sock::Half::owed): the place of the last one in TCP.
    pub owed: u64,
    /// Nothing of it comes by TCP.
    pub whole: bool,
}

/// The same in shared memory. Zero: nothing is kept.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Label {
    owed: AtomicU64,
    whole: AtomicU32,
    /// Written behind the other two and the blocks (release), read before them (acquire), and again behind the blocks; or [`FILLING`].
    len: AtomicU32,
}

#[repr(C, align(4096))]
struct Block(UnsafeCell<[u8; BLOCK]>);

/// The blocks of all families. Those of one are in the order of its bytes.
#[repr(C)]
pub(super) struct Store {
    /// The [number](Family::number) of the family that has the block; 0: none; [`FREEING`].
    owners: [AtomicU32; BLOCKS],
    /// Where the next look for dead owners begins.
    hand: AtomicU32,
    blocks: [Block; BLOCKS],
}

impl Store {
    /// Each block, and whose it is.
    fn all(&self) -> impl Iterator<Item = (&AtomicU32, *mut u8)> {
        let blocks = self.blocks.iter().map(|block| block.0.get().cast());
        self.owners.iter().zip(blocks)
    }

    /// The blocks of `owner`.
    fn of(&self, owner: u32) -> impl Iterator<Item = (&AtomicU32, *mut u8)> {
        self.all()
            .filter(move |(cell, _)| cell.load(Ordering::Acquire) == owner)
    }

    /// Copies `len` bytes into blocks that are `owner`'s from now on. False: there are not so many; the first ones may be its own.
    ///
    /// # Safety
    /// There are `len` bytes at `from`, and `owner` fills no others meanwhile.
    unsafe fn fill(&self, owner: u32, from: *const u8, len: usize) -> bool {
        let mut done = 0;
        for (cell, block) in self.all() {
            if done == len {
                break;
            }
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            if cell.compare_exchange(0, owner, order.0, order.1).is_err() {
                continue;
            }
            let n = BLOCK.min(len - done);
            // SAFETY: inside the caller's bytes, and the block is the owner's.
            unsafe { core::ptr::copy_nonoverlapping(from.add(done), block, n) };
            done += n;
        }
        done == len
    }

    /// Copies `len` bytes out of the blocks of `owner`. False: there are not so many, or one became another's meanwhile.
    ///
    /// # Safety
    /// There is room for `len` bytes at `to`.
    unsafe fn copy(&self, owner: u32, to: *mut u8, len: usize) -> bool {
        let mut done = 0;
        for (cell, block) in self.of(owner) {
            let n = BLOCK.min(len - done);
            // SAFETY: inside the caller's room; nobody unmaps the block.
            unsafe { core::ptr::copy_nonoverlapping(block, to.add(done), n) };
            fence(Ordering::Acquire);
            if cell.load(Ordering::Relaxed) != owner {
                return false;
            }
            done += n;
        }
        done == len
    }

    fn free(&self, owner: u32) {
        for (cell, block) in self.of(owner) {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            if cell
                .compare_exchange(owner, FREEING, order.0, order.1)
                .is_ok()
            {
                // SAFETY: the block is nobody's now.
                let _ = unsafe { sys::madvise(block, BLOCK, libc::MADV_REMOVE) };
                cell.store(0, Ordering::Release);
            }
        }
    }

    /// Looks at the owners of so many blocks: what was kept for processes that are all gone goes.
    fn reclaim(&self, region: &'static Region, most: usize) {
        let begin = self.hand.load(Ordering::Relaxed) as usize;
        let all = self.owners.iter().enumerate().cycle();
        let used = all.skip(begin).take(BLOCKS).filter_map(|(at, cell)| {
            let number = cell.load(Ordering::Acquire);
            (!matches!(number, 0 | FREEING)).then_some((at, number))
        });
        for (at, number) in used.take(most) {
            if let Some(family) = region.slots.get(number as usize - 1) {
                family.drop_if_dead();
            }
            self.hand
                .store(((at + 1) % BLOCKS) as u32, Ordering::Relaxed);
        }
    }
}

const _: () = assert!(SLOTS < FREEING);

impl Family {
    /// By the process whose stream it was: keeps a copy for its relatives.
    ///
    /// # Safety
    /// There are `kept.len` bytes at `from`.
    pub unsafe fn keep(&self, kept: &Kept, from: *const u8) {
        self.drop_kept();
        let Some(region) = region().filter(|_| kept.len < FILLING as usize) else {
            return;
        };
        let store = &region.store;
        // One that is dead for each that comes: so the dead do not become many.
        store.reclaim(region, 1);
        // SAFETY: the caller's.
        if !unsafe { self.fill(region, kept, from) } {
            store.reclaim(region, BLOCKS);
            // SAFETY: the caller's.
            unsafe { self.fill(region, kept, from) };
        }
    }

    unsafe fn fill(&self, region: &Region, kept: &Kept, from: *const u8) -> bool {
        let label = &self.kept;
        label.len.store(FILLING, Ordering::Release);
        // SAFETY: the caller's.
        if !unsafe { region.store.fill(self.number(region), from, kept.len) } {
            self.drop_kept();
            return false;
        }
        label.owed.store(kept.owed, Ordering::Relaxed);
        label.whole.store(u32::from(kept.whole), Ordering::Relaxed);
        label.len.store(kept.len as u32, Ordering::Release);
        true
    }

    /// What there is for a relative that comes now.
    pub fn kept(&self) -> Option<Kept> {
        let len = self.kept.len.load(Ordering::Acquire);
        (!matches!(len, 0 | FILLING)).then(|| Kept {
            len: len as usize,
            owed: self.kept.owed.load(Ordering::Relaxed),
            whole: self.kept.whole.load(Ordering::Relaxed) != 0,
        })
    }

    /// Copies it. False: it has gone meanwhile.
    ///
    /// # Safety
    /// There is room for `kept.len` bytes at `to`.
    pub unsafe fn copy_kept(&self, kept: &Kept, to: *mut u8) -> bool {
        let Some(region) = region() else { return false };
        // SAFETY: the caller's.
        let copied = unsafe { region.store.copy(self.number(region), to, kept.len) };
        fence(Ordering::Acquire);
        copied && self.kept() == Some(*kept)
    }

    /// Nobody needs it any more.
    pub fn drop_kept(&self) {
        if self.kept.len.load(Ordering::Relaxed) == 0
            || self.kept.len.swap(0, Ordering::AcqRel) == 0
        {
            return;
        }
        if let Some(region) = region() {
            region.store.free(self.number(region));
        }
    }

    /// The same, if no process that holds the socket lives.
    fn drop_if_dead(&self) {
        self.prune();
        if self.is_empty() {
            self.drop_kept();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::take;
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i % 251) as u8).collect()
    }

    fn used_by(family: &Family) -> usize {
        let region = region().unwrap();
        region.store.of(family.number(region)).count()
    }

    fn keep(family: &Family, bytes: &[u8], owed: u64) -> Kept {
        let kept = Kept {
            len: bytes.len(),
            owed,
            whole: false,
        };
        // SAFETY: a slice.
        unsafe { family.keep(&kept, bytes.as_ptr()) };
        kept
    }

    #[test]
    fn what_is_kept_is_found_until_the_last_holder_leaves() {
        let me = std::process::id();
        let family = take(me).unwrap();
        assert_eq!(family.kept(), None);
        let sent = bytes(3 * BLOCK + 7);
        let kept = keep(family, &sent, 9);
        assert_eq!(family.kept(), Some(kept));
        let mut got = vec![0; kept.len];
        // SAFETY: as long.
        assert!(unsafe { family.copy_kept(&kept, got.as_mut_ptr()) });
        assert_eq!(got, sent);
        assert_eq!(used_by(family), 4);
        // init lives
        family.join(1);
        family.leave(me);
        assert_eq!(used_by(family), 4);
        family.leave(1);
        assert_eq!(used_by(family), 0);
        // SAFETY: as long.
        assert!(!unsafe { family.copy_kept(&kept, got.as_mut_ptr()) });
    }

    #[test]
    fn what_was_kept_for_the_dead_makes_room() {
        let me = std::process::id();
        let dead = take(0x3fff_ffff).unwrap();
        let family = take(me).unwrap();
        let all = bytes(BLOCK * (BLOCKS - 8));
        keep(dead, &all, 1);
        let kept = keep(family, &all, 2);
        assert_eq!((dead.kept(), family.kept()), (None, Some(kept)));
        let other = take(me).unwrap();
        keep(other, &all, 3);
        assert_eq!((other.kept(), used_by(other)), (None, 0));
        for family in [dead, other, family] {
            family.leave(me);
        }
        assert_eq!(used_by(family), 0);
        dead.leave(0x3fff_ffff);
    }
}
