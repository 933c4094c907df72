//! Registered parts of a link's arena. A slab of it is registered with the first ring that is lent
//! there.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::ring::Ring;
use sluice_fabric::sys::Errno;
use sluice_fabric::verbs::device::{Domain, Region};
use sluice_runtime::config::{Config, config};
use sluice_runtime::limits;

/// Greatest length of a slab. A ring that is larger is registered by itself.
const SLAB_MOST: usize = 256 << 10;
/// Least length of a slab.
const SLAB_LEAST: usize = 16 << 10;

/// What a slab is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The peer writes there.
    Lent,
    /// The device reads there what this end posts.
    Staging,
}

#[derive(Debug)]
struct Slab {
    from: usize,
    len: usize,
    for_what: Use,
    region: Region,
    /// Rings of streams in the slab.
    rings: u32,
    /// How many of the link's messages must be complete before the slab is deregistered: until then
    /// one may be retransmitted from it.
    until: u64,
    _share: Share,
}

impl Drop for Slab {
    fn drop(&mut self) {
        count(self.for_what, u64::from(self.rings).wrapping_neg());
    }
}

/// Slabs without a ring that stay registered, for later streams, while less than half of the
/// [`budget`] is registered.
const SPARE: usize = 4;

/// The least share of a ring, in bytes. A program that writes more than rings hold before it reads,
/// at both ends, waits until its stream is taken back to TCP: better it stays there.
const RING_LEAST: u64 = 32 << 10;

/// Bytes that all links of this process have registered.
static REGISTERED: AtomicU64 = AtomicU64::new(0);

/// What all links of this process may register, in bytes; 0: not known yet.
static BUDGET: AtomicU64 = AtomicU64::new(0);

/// Learns what all links of this process may register, in bytes: three quarters of what it may
/// lock, since libibverbs locks queues of its own, and an eighth of its memory. Called before a
/// ring is lent: the limits may change.
pub fn learn_budget() -> u64 {
    let lockable = limits::lockable().unwrap_or(u64::MAX);
    let budget = (lockable - lockable / 4).min(limits::memory() / 8);
    BUDGET.store(budget.max(1), Ordering::Relaxed);
    budget
}

/// What was [learnt](learn_budget) last.
fn budget() -> u64 {
    match BUDGET.load(Ordering::Relaxed) {
        0 => learn_budget(),
        known => known,
    }
}

/// The longest ring, in bytes, that a stream gets: what the user has set, or this.
#[must_use]
pub fn most() -> u32 {
    const MOST: u32 = 4 << 20;
    let config = config();
    if config.ring_len == Config::DEFAULT.ring_len && config.memory.is_none() {
        MOST
    } else {
        config.ring_len
    }
}

/// Whether `len` bytes more may be registered.
#[must_use]
pub fn has_room(len: u64) -> bool {
    REGISTERED.load(Ordering::Relaxed) + len <= budget()
}

/// Reserves what is registered for a staging ring of this length.
///
/// # Errors
/// ENOMEM: that would be too much.
pub fn reserve(len: u32) -> Result<Share, Errno> {
    Share::take((len as usize).next_multiple_of(slab_len()))
}

/// Rings that are lent to peers, by all links of this process.
static RINGS: AtomicU64 = AtomicU64::new(0);

/// What each ring of this process may have, a power of two, with one more of them than there are
/// now: half of the budget is for their staging rings, and a half of the rest for what is lost in
/// slabs.
#[must_use]
pub fn share() -> u32 {
    let rings = RINGS.load(Ordering::Relaxed) + 1;
    floor((budget() / 4 / rings).max(RING_LEAST))
}

/// The greatest power of two up to `len`, and up to 2 GiB.
fn floor(len: u64) -> u32 {
    1 << len.max(1).ilog2().min(31)
}

/// The length of slabs: a 128th of the budget at most, so that half as many links can have one for
/// each use.
fn slab_len() -> usize {
    (floor(budget() / 128) as usize).clamp(SLAB_LEAST, SLAB_MOST)
}

/// A part of [`REGISTERED`], in bytes.
#[derive(Debug)]
pub struct Share(u64);

impl Share {
    /// Counts `len` bytes of the [`budget`].
    ///
    /// # Errors
    /// ENOMEM: that would be too much.
    pub fn take(len: usize) -> Result<Self, Errno> {
        let share = Self(len as u64);
        let all = REGISTERED.fetch_add(share.0, Ordering::Relaxed) + share.0;
        // On the error, the drop of `share` uncounts them.
        if all > budget() {
            return Err(libc::ENOMEM);
        }
        Ok(share)
    }

    /// As [`take`](Self::take), for pages of a file, which leave a quarter of the budget to rings.
    ///
    /// # Errors
    /// ENOMEM: that would be too much.
    pub fn take_for_file(len: usize) -> Result<FileShare, Errno> {
        let share = Self::take(len)?;
        if REGISTERED.load(Ordering::Relaxed) > budget() / 4 * 3 {
            return Err(libc::ENOMEM);
        }
        FILES.fetch_add(share.0, Ordering::Relaxed);
        Ok(FileShare(share))
    }
}

/// A share for pages of a file.
#[derive(Debug)]
pub struct FileShare(Share);

impl Drop for FileShare {
    fn drop(&mut self) {
        FILES.fetch_sub(self.0.0, Ordering::Relaxed);
    }
}

/// Pages of files that all links of this process have registered, in bytes.
static FILES: AtomicU64 = AtomicU64::new(0);

impl Drop for Share {
    fn drop(&mut self) {
        REGISTERED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Counts `len` bytes of the program's memory until [`give`]. Returns false if that is too much.
pub fn take(len: usize) -> bool {
    Share::take(len).map(core::mem::forget).is_ok()
}

/// Uncounts what [`take`] has counted.
pub fn give(len: usize) {
    drop(Share(len as u64));
}

/// The registered slabs of a link, in its protection domain.
#[derive(Debug, Default)]
pub struct Slabs {
    all: Vec<Slab>,
    /// More than [`SPARE`] slabs without a ring are registered: some have incomplete messages.
    late: bool,
}

/// The address and the keys of a ring, for work requests.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its first byte.
    pub at: *mut u8,
    /// The local key, for work requests of this end.
    pub local_key: u32,
    /// The remote key, for work requests of the peer.
    pub remote_key: u32,
    /// The address of the first byte in work requests of the peer.
    pub remote: u64,
}

// SAFETY: an address; the cursors of the stream decide which end reads and writes there.
unsafe impl Send for Place {}

impl Slabs {
    /// Returns the place of a ring that lies at `at_arena` in its arena. Registers its slab first,
    /// if that is not registered.
    ///
    /// # Safety
    /// The arena of the ring stays mapped as long as these slabs exist, and its two regions begin
    /// and end on multiples of the slab.
    ///
    /// # Errors
    /// The device's; ENOMEM beyond RLIMIT_MEMLOCK.
    pub unsafe fn place(
        &mut self,
        domain: &Domain,
        ring: Ring,
        at_arena: u64,
        for_what: Use,
    ) -> Result<Place, Errno> {
        let [(at, len), _] = ring.pieces(0, ring.len());
        let key = |slab: &Slab| Place {
            at,
            local_key: slab.region.local_key(),
            remote_key: slab.region.remote_key(),
            remote: slab.region.first() + (at.addr() - slab.from) as u64,
        };
        let first = at as usize;
        let holds = |slab: &&Slab| {
            slab.for_what == for_what && slab.from <= first && first + len <= slab.from + slab.len
        };
        if let Some(slab) = self.all.iter_mut().find(|slab| holds(&&**slab)) {
            slab.rings += 1;
            count(for_what, 1);
            return Ok(key(slab));
        }
        let (before, whole) = span(at_arena as usize, len, slab_len());
        let from = first - before;
        let base = ptr::with_exposed_provenance_mut::<u8>(from);
        let share = Share::take(whole)?;
        // SAFETY: whole slabs around the ring lie in its region, mapped by this function's
        // contract.
        let region = unsafe {
            match for_what {
                Use::Lent => domain.lend(base, whole),
                Use::Staging => domain.stage(base, whole),
            }
        }?;
        let slab = Slab {
            from,
            len: whole,
            for_what,
            region,
            rings: 1,
            until: 0,
            _share: share,
        };
        let place = key(&slab);
        self.all.push(slab);
        count(for_what, 1);
        Ok(place)
    }

    /// Gives back a ring that was placed, when neither end reads or writes it any more. Of the
    /// link's messages `complete` are complete; those from there to the `posted`th may be
    /// retransmitted from it.
    pub fn give_back(&mut self, place: Place, [complete, posted]: [u64; 2]) {
        // By the key: several slabs may contain the same bytes.
        let holds = |slab: &&mut Slab| slab.region.local_key() == place.local_key;
        if let Some(slab) = self.all.iter_mut().find(holds) {
            slab.rings = slab.rings.saturating_sub(1);
            slab.until = posted;
            count(slab.for_what, u64::MAX);
        }
        self.trim(complete);
    }

    /// `complete` of the link's messages are complete now.
    #[inline]
    pub fn completed(&mut self, complete: u64) {
        if self.late {
            self.trim(complete);
        }
    }

    /// Deregisters slabs without a ring or an incomplete message, all but [`SPARE`].
    pub fn trim(&mut self, complete: u64) {
        let rings = REGISTERED
            .load(Ordering::Relaxed)
            .saturating_sub(FILES.load(Ordering::Relaxed));
        let spare = if rings < budget() / 2 { SPARE } else { 0 };
        let mut more = self.all.iter().filter(|slab| slab.rings == 0).count();
        self.all.retain(|slab| {
            let goes = more > spare && slab.rings == 0 && slab.until <= complete;
            more -= usize::from(goes);
            !goes
        });
        self.late = more > spare;
    }
}

/// What is registered for a ring of `len` bytes at `at` of its arena: the number of bytes before
/// the ring, and the length of all. Rings of several lengths lie one after the other on pages, so a
/// small one may lie across two slabs.
fn span(at: usize, len: usize, slab: usize) -> (usize, usize) {
    if len >= slab {
        return (0, len);
    }
    let before = at % slab;
    (before, (before + len).next_multiple_of(slab))
}

/// Counts rings more, or less (negated), if they are lent.
fn count(for_what: Use, change: u64) {
    if for_what == Use::Lent {
        RINGS.fetch_add(change, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_ring_is_registered_and_nothing_beyond_its_slabs() {
        const K: usize = 1 << 10;
        const SLAB: usize = 256 * K;
        assert_eq!(span(512 * K, 32 * K, SLAB), (0, SLAB));
        assert_eq!(span(736 * K, 32 * K, SLAB), (224 * K, SLAB));
        // A larger ring after a smaller one lies across two slabs.
        assert_eq!(span(672 * K, 128 * K, SLAB), (160 * K, 2 * SLAB));
        assert_eq!(span(544 * K, 256 * K, SLAB), (0, 256 * K));
        assert_eq!(span(736 * K, 32 * K, 32 * K), (0, 32 * K));
        assert_eq!(span(744 * K, 8 * K, 32 * K), (8 * K, 32 * K));
    }
}
