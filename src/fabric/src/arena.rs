//! Arenas: memory that two processes share, made by one and checked by the other.

use crate::doorbell::{SLOTS, Slot};
use crate::layout::{ARENA_LEN, Header, LAYOUT, MAGIC, Shared, rings_at, slots_at, stream_at};
use crate::layout::{RING_MAX, RING_MIN, RING_REGION, STREAMS, Stream};
use crate::sync::Ordering;
use crate::sys::{self, Fd};
use core::mem::size_of;
use core::sync::atomic::AtomicU64;

/// Why an arena cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// The kernel refused memory.
    #[error("the kernel refused shared memory (errno {0})")]
    Refused(sys::Errno),
    /// No address space, or the process has enough of it in arenas.
    #[error("shared memory could not be mapped (errno {0})")]
    Unmapped(sys::Errno),
    /// The peer's file could be changed under us, or is not what it should be.
    #[error("the peer's memory is not sealed or not of the agreed shape")]
    Unsealed,
    /// The peer's header does not fit this build.
    #[error("the peer's memory has another layout")]
    Layout,
}

/// The seals without which a peer could make our accesses fail: no shrinking (SIGBUS), no growing,
/// no change of the seals. F_GET_SEALS succeeds on other files too, so the bits are compared.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Bytes of all arenas that this process has mapped.
static MAPPED: AtomicU64 = AtomicU64::new(0);

/// A mapped arena. Unmapped on drop.
#[derive(Debug)]
pub struct Arena {
    base: *mut u8,
    /// Unmap on drop. False for the second end of a link with oneself.
    owned: bool,
}

// SAFETY: the base address is only a number; everything at it is atomics or raw bytes.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Makes an arena in a sealed memory file, to be sent to the peer.
    ///
    /// # Errors
    /// [`ArenaError::Refused`]: no memfd, no descriptors, a file size limit;
    /// [`ArenaError::Unmapped`].
    pub fn create() -> Result<(Self, Fd), ArenaError> {
        // A limit on file sizes would kill us by SIGXFSZ: ask first.
        if sys::file_limit() < ARENA_LEN {
            return Err(ArenaError::Refused(libc::EFBIG));
        }
        let fd = sys::memfd(c"sluice").map_err(ArenaError::Refused)?;
        sys::ftruncate(fd.raw(), ARENA_LEN).map_err(ArenaError::Refused)?;
        sys::fcntl(fd.raw(), libc::F_ADD_SEALS, SEALS as usize).map_err(ArenaError::Refused)?;
        let arena = Self::mapped(|| sys::map_shared(fd.raw(), ARENA_LEN as usize))?;
        arena.write_header();
        Ok((arena, fd))
    }

    /// An arena for a link of this process with itself: no file, shared with children.
    ///
    /// # Errors
    /// [`ArenaError::Unmapped`].
    pub fn create_local() -> Result<Self, ArenaError> {
        let arena = Self::mapped(|| sys::map_zeroes(ARENA_LEN as usize, true))?;
        arena.write_header();
        Ok(arena)
    }

    /// All arenas together take half of what the process may have of addresses (RLIMIT_AS); the
    /// rest is its program's.
    fn mapped(map: impl FnOnce() -> Result<*mut u8, sys::Errno>) -> Result<Self, ArenaError> {
        let taken = MAPPED.fetch_add(ARENA_LEN, Ordering::Relaxed) + ARENA_LEN;
        let mapped = if taken > sys::address_limit() / 2 {
            Err(libc::ENOMEM)
        } else {
            map()
        };
        if mapped.is_err() {
            MAPPED.fetch_sub(ARENA_LEN, Ordering::Relaxed);
        }
        let base = mapped.map_err(ArenaError::Unmapped)?;
        // Keeps the contents of connections out of core files.
        // SAFETY: the mapping just made, whose contents this leaves alone.
        let _ = unsafe { sys::madvise(base, ARENA_LEN as usize, libc::MADV_DONTDUMP) };
        Ok(Self { base, owned: true })
    }

    /// The same memory for the other end of a link with oneself. The first end must outlive it:
    /// such links are never closed.
    #[must_use]
    pub fn alias(&self) -> Self {
        Self {
            base: self.base,
            owned: false,
        }
    }

    fn write_header(&self) {
        let header = self.header();
        header.layout.store(LAYOUT, Ordering::Relaxed);
        header
            .word_len
            .store(size_of::<usize>() as u32, Ordering::Relaxed);
        header.arena_len.store(ARENA_LEN, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
    }

    /// Maps the arena that a peer has sent, after checking that it cannot change under us.
    ///
    /// # Errors
    /// [`ArenaError::Unsealed`], [`ArenaError::Layout`], or [`ArenaError::Unmapped`].
    pub fn adopt(fd: &Fd) -> Result<Self, ArenaError> {
        let seals = sys::fcntl(fd.raw(), libc::F_GET_SEALS, 0).map_err(|_| ArenaError::Unsealed)?;
        let st = sys::fstat(fd.raw()).map_err(|_| ArenaError::Unsealed)?;
        // Ordinary shared memory only: on hugetlbfs a hole punched by the peer would be a SIGBUS.
        let ordinary = sys::is_tmpfs(fd.raw());
        if seals & SEALS != SEALS || st.st_size as u64 != ARENA_LEN || !ordinary {
            return Err(ArenaError::Unsealed);
        }
        let arena = Self::mapped(|| sys::map_shared(fd.raw(), ARENA_LEN as usize))?;
        let header = arena.header();
        let fits = header.magic.load(Ordering::Acquire) == MAGIC
            && header.layout.load(Ordering::Relaxed) == LAYOUT
            && header.word_len.load(Ordering::Relaxed) == size_of::<usize>() as u32
            && header.arena_len.load(Ordering::Relaxed) == ARENA_LEN;
        if fits {
            Ok(arena)
        } else {
            Err(ArenaError::Layout)
        }
    }

    /// A reference to a shared type at `offset`, which this module computes from constants.
    fn at<T: Shared>(&self, offset: usize) -> &T {
        debug_assert!(offset + size_of::<T>() <= ARENA_LEN as usize);
        // SAFETY: the offset is inside the mapping and aligned (layout.rs asserts sizes), `Shared`
        // types are atomics for which every byte pattern is a value, and the mapping lives as long
        // as `self`.
        unsafe { &*self.base.add(offset).cast::<T>() }
    }

    fn header(&self) -> &Header {
        self.at(0)
    }

    /// Stream slot `index`, or `None` beyond the last.
    #[inline]
    #[must_use]
    pub fn stream(&self, index: u32) -> Option<&Stream> {
        (index < STREAMS).then(|| self.at(stream_at(index)))
    }

    /// Waiter slot `index` of `side` (both taken modulo their ranges).
    #[inline]
    #[must_use]
    pub fn slot(&self, side: usize, index: usize) -> &Slot {
        self.at(slots_at(side & 1) + (index % SLOTS) * size_of::<Slot>())
    }

    /// The ring of `len` bytes at `at` in the region lent by `side`, if that is a possible ring.
    /// Both numbers may come from the peer.
    #[must_use]
    pub fn ring(&self, side: usize, at: u64, len: u32) -> Option<crate::ring::Ring> {
        let region = rings_at(side & 1);
        let fits = len.is_power_of_two()
            && (RING_MIN..=RING_MAX).contains(&len)
            && at.is_multiple_of(4096)
            && at >= region
            && at - region <= RING_REGION - u64::from(len);
        // SAFETY: just checked to lie inside the mapping.
        fits.then(|| unsafe { crate::ring::Ring::new(self.base.add(at as usize), len) })
    }

    /// Lets go of the shared memory and leaves zeroes of our own in its place: for late readers
    /// that hold no lock.
    pub fn blank(&self) {
        // SAFETY: replaces the whole of our own mapping; a thread that still looks reads zeroes.
        // mmap is not hooked. If it fails the memory stays until the arena is dropped.
        unsafe {
            libc::mmap(
                self.base.cast(),
                ARENA_LEN as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
    }

    /// Gives the pages of a ring lent by `side` back to the kernel (they read as zeroes
    /// afterwards): one that its lender has taken back. What is no possible ring is left alone.
    /// False: the pages are where they were.
    ///
    /// A peer that shares the memory file can keep this waiting ([`LinkEnd::can_discard`]).
    ///
    /// [`LinkEnd::can_discard`]: crate::shm::LinkEnd::can_discard
    pub fn discard(&self, side: usize, at: u64, len: u32) -> bool {
        // A peer that still writes there spoils only bytes that nobody reads.
        self.ring(side, at, len).is_some_and(|ring| ring.discard())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: references into the arena borrow it, so none is left.
            unsafe { sys::unmap(self.base, ARENA_LEN as usize) };
            MAPPED.fetch_sub(ARENA_LEN, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_adopted_and_shared() {
        let (a, fd) = Arena::create().unwrap();
        let b = Arena::adopt(&fd).unwrap();
        a.stream(7).unwrap().dir[1].tx.tail.advance(0, 42).unwrap();
        assert_eq!(b.stream(7).unwrap().dir[1].tx.tail.read().offset, 42);
        assert!(b.stream(STREAMS).is_none());
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "no hook is loaded into a test")]
    fn rings_are_not_in_core_files() {
        let (made, fd) = Arena::create().unwrap();
        let adopted = Arena::adopt(&fd).unwrap();
        let local = Arena::create_local().unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        for arena in [made, adopted, local] {
            let begin = format!("{:x}-", arena.base as usize);
            let rest = &maps[maps.find(&format!("\n{begin}")).unwrap() + 1..];
            let flags = rest.lines().find(|l| l.starts_with("VmFlags:")).unwrap();
            // proc_pid_smaps(5): do not include area into core dump.
            assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
        }
    }

    #[test]
    fn an_unsealed_or_misshapen_file_is_refused() {
        let fd = sys::memfd(c"test").unwrap();
        sys::ftruncate(fd.raw(), ARENA_LEN).unwrap();
        assert_eq!(Arena::adopt(&fd).unwrap_err(), ArenaError::Unsealed);
        sys::fcntl(fd.raw(), libc::F_ADD_SEALS, SEALS as usize).unwrap();
        assert_eq!(Arena::adopt(&fd).unwrap_err(), ArenaError::Layout);
        let short = sys::memfd(c"test").unwrap();
        sys::ftruncate(short.raw(), 4096).unwrap();
        sys::fcntl(short.raw(), libc::F_ADD_SEALS, SEALS as usize).unwrap();
        assert_eq!(Arena::adopt(&short).unwrap_err(), ArenaError::Unsealed);
    }

    #[test]
    fn impossible_rings_are_refused() {
        let arena = Arena::create_local().unwrap();
        let at = rings_at(1);
        assert!(arena.ring(1, at, 4096).is_some());
        assert!(arena.ring(1, at + RING_REGION - 4096, 4096).is_some());
        assert!(arena.ring(1, at + RING_REGION - 4096, 8192).is_none());
        assert!(arena.ring(0, at, 4096).is_none());
        assert!(arena.ring(1, at + 64, 4096).is_none());
        assert!(arena.ring(1, at, 5000).is_none());
        assert!(arena.ring(1, u64::MAX - 4095, 4096).is_none());
        assert!(arena.ring(1, at, 0).is_none());
    }
}
