//! What of a link's arena the device may reach: slabs in which rings are lent, registered when the
//! first ring in them is.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::ring::Ring;
use sluice_fabric::sys::{self, Errno};
use sluice_fabric::verbs::device::{Domain, Region};

/// A region is registered in pieces of this length; a larger ring by itself.
const SLAB: usize = 256 << 10;

/// What the peer, or the device alone, may do with a slab.
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
    /// Rings of streams that lie in it.
    rings: u32,
    /// Of the link's messages, how many must be complete before it may go: those may still be sent
    /// from it again.
    until: u64,
    _share: Share,
}

/// Slabs without a ring that stay registered, for the next streams.
const SPARE: usize = 4;

/// Bytes that all links of this process have registered.
static REGISTERED: AtomicU64 = AtomicU64::new(0);

/// A part of what may be.
#[derive(Debug)]
struct Share(u64);

impl Share {
    /// Half of what may be locked, for all links: the rest is the program's.
    fn take(len: usize) -> Result<Self, Errno> {
        let share = Self(len as u64);
        let all = REGISTERED.fetch_add(share.0, Ordering::Relaxed) + share.0;
        // Dropped where it is too much.
        if all > sys::lockable() / 2 {
            return Err(libc::ENOMEM);
        }
        Ok(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        REGISTERED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Room for so many bytes of the program's, until [`give`]; false: there is none.
pub fn take(len: usize) -> bool {
    Share::take(len).map(core::mem::forget).is_ok()
}

/// See [`take`].
pub fn give(len: usize) {
    drop(Share(len as u64));
}

/// The registered slabs of a link, in its protection domain.
#[derive(Debug, Default)]
pub struct Slabs {
    all: Vec<Slab>,
    /// Some without a ring, more than [`SPARE`], stay for messages that are not complete.
    late: bool,
}

/// Where a ring lies, for work requests.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its first byte.
    pub at: *mut u8,
    /// For requests of this end.
    pub local_key: u32,
    /// For those of the peer.
    pub remote_key: u32,
    /// What the peer calls its first byte.
    pub remote: u64,
}

// SAFETY: an address; the words of the stream decide which end reads and writes there.
unsafe impl Send for Place {}

impl Slabs {
    /// The place of a ring, which lies at `at` in its arena, registered with its slab if that is
    /// not yet.
    ///
    /// # Safety
    /// The arena of the ring, in which two regions begin and end on multiples of the slab, stays
    /// mapped as long as these slabs are.
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
            return Ok(key(slab));
        }
        let (before, whole) = span(at_arena as usize, len);
        let from = first - before;
        let base = ptr::with_exposed_provenance_mut::<u8>(from);
        let share = Share::take(whole)?;
        // SAFETY: the caller's word; both kinds are parts of a region that one side lends from.
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
        Ok(place)
    }

    /// A ring that was placed is no stream's any more: neither end writes to it, or reads from it,
    /// and of the link's messages only those before the `posted`th may still be sent from it again.
    /// `complete` are.
    pub fn give_back(&mut self, place: Place, [complete, posted]: [u64; 2]) {
        // By its key: others may hold the same bytes.
        let holds = |slab: &&mut Slab| slab.region.local_key() == place.local_key;
        if let Some(slab) = self.all.iter_mut().find(holds) {
            slab.rings = slab.rings.saturating_sub(1);
            slab.until = posted;
        }
        self.trim(complete);
    }

    /// So many of the link's messages are complete now.
    #[inline]
    pub fn completed(&mut self, complete: u64) {
        if self.late {
            self.trim(complete);
        }
    }

    /// Of the slabs without a ring all but [`SPARE`] go that may.
    fn trim(&mut self, complete: u64) {
        let mut more = self.all.iter().filter(|slab| slab.rings == 0).count();
        self.all.retain(|slab| {
            let goes = more > SPARE && slab.rings == 0 && slab.until <= complete;
            more -= usize::from(goes);
            !goes
        });
        self.late = more > SPARE;
    }
}

/// What is registered for a ring of `len` bytes at `at` of its arena: from so many bytes before it
/// on, so many. The arena itself begins on any page, and rings of several lengths lie after each
/// other: a small one may lie across two slabs.
fn span(at: usize, len: usize) -> (usize, usize) {
    if len >= SLAB {
        return (0, len);
    }
    let before = at % SLAB;
    (before, (before + len).next_multiple_of(SLAB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_ring_is_registered_and_nothing_beyond_its_slabs() {
        const K: usize = 1 << 10;
        assert_eq!(span(512 * K, 32 * K), (0, SLAB));
        assert_eq!(span(736 * K, 32 * K), (224 * K, SLAB));
        // After a smaller one.
        assert_eq!(span(672 * K, 128 * K), (160 * K, 2 * SLAB));
        assert_eq!(span(544 * K, 256 * K), (0, 256 * K));
    }
}
