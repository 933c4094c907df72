//! Digests of the first bytes of a connection, and whether more of them are to be taken.
//!
//! What two ends on two hosts prove to each other by them, and how calls add to them:
//! [`prefix`](super::prefix).

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use sha2::{Digest, Sha256};
use std::alloc::Layout;

/// Bytes of each direction that are hashed.
pub const LEN: usize = 32 << 10;
/// Digests of each direction: at 1, 2, 4 ... [`LEN`] bytes.
const MARKS: usize = LEN.trailing_zeros() as usize + 1;
/// Bytes of a digest.
pub(crate) const DIGEST: usize = 32;

/// Does this process hash at all? Written by [`init`].
pub(crate) static WANTED: AtomicBool = AtomicBool::new(false);

/// Asks whether this host has an RDMA device. Called by the constructor.
pub fn init() {
    // Builds for tests do so anywhere.
    let wanted = cfg!(feature = "fault") || sluice_fabric::verbs::api::is_any_device();
    WANTED.store(wanted, Ordering::Relaxed);
}

/// May connections of this process have to be proved to another host?
#[inline]
pub fn wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// A direction, as this end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What is read.
    In,
    /// What is written.
    Out,
}

/// A socket's part in this. Zero is the state of a new one.
#[derive(Debug)]
pub struct Slot {
    /// By [`Way`]: bytes that pass are to be hashed. Set when the structure is taken into use;
    /// cleared by the thread that ends the direction. SeqCst: see the module's text, and [`free`].
    goes_on: [AtomicBool; 2],
    /// Null until the first byte. Set by compare-and-swap, given back by [`forget`] and [`free`]
    /// under both locks.
    tracks: AtomicPtr<Tracks>,
}

impl Slot {
    /// Are bytes that pass this way to be hashed?
    #[inline]
    pub fn wants(&self, way: Way) -> bool {
        self.goes_on(way).load(Ordering::SeqCst)
    }

    #[inline]
    fn goes_on(&self, way: Way) -> &AtomicBool {
        let [rx, tx] = &self.goes_on;
        match way {
            Way::In => rx,
            Way::Out => tx,
        }
    }

    /// Bytes pass this way that are not seen: the direction ends.
    #[inline]
    pub fn end(&self, way: Way) {
        self.goes_on(way).store(false, Ordering::SeqCst);
    }

    /// Nothing is to be proved of this socket any more.
    pub(crate) fn end_both(&self) {
        self.end(Way::In);
        self.end(Way::Out);
    }

    /// The structure becomes a new connection's. `in_use`: calls of an earlier one are counted on
    /// it.
    pub fn begin(&self, in_use: bool) {
        if !wanted() || in_use {
            return self.end_both();
        }
        // SAFETY: null, or kept by `free`; no call is counted, so nobody uses it, and nobody begins
        // to before the flags are set.
        if let Some(tracks) = unsafe { self.tracks.load(Ordering::Acquire).as_ref() } {
            tracks.renew();
        }
        for flag in &self.goes_on {
            flag.store(true, Ordering::SeqCst);
        }
    }

    /// Both tracks, if there are any.
    ///
    /// # Safety
    /// The caller holds one of the socket's locks, both of which are held when they are freed.
    pub unsafe fn tracks(&self) -> Option<&Tracks> {
        // SAFETY: null, or there (above).
        unsafe { self.tracks.load(Ordering::Acquire).as_ref() }
    }

    /// Nothing is to be proved any more, and the tracks are another's: not even freed.
    pub fn leave(&self) {
        self.end_both();
        self.tracks.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// Under both locks, both directions ended: frees the tracks, unless one of the `calls` that
    /// are counted may be using them. Then they stay with the structure, for its next connection.
    ///
    /// A call is counted before it finds its flag set, and the flags are cleared before the counts
    /// are read. So a call that is not counted here finds the flag cleared, and does not look for
    /// tracks.
    pub fn give_back(&self, calls: u64) {
        if calls != 0 {
            return;
        }
        let old = self.tracks.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: made by `make`; calls do not use it (above), and a proof holds a lock.
            unsafe { std::alloc::dealloc(old.cast(), LAYOUT) };
        }
    }

    /// For tests of the hooks: what this end, of that role, has seen of each direction, to be
    /// compared with the other's.
    #[cfg(feature = "fault")]
    pub fn tell(&self, role: u8) {
        struct Shown<'a>(&'a Track);
        impl core::fmt::Display for Shown<'_> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                for k in 1..=self.0.taken.load(Ordering::Acquire) {
                    let digest = self.0.digest(k).unwrap_or_default();
                    let word = digest.first_chunk().map_or(0, |w| u32::from_be_bytes(*w));
                    write!(f, " {word:08x}")?;
                }
                Ok(())
            }
        }

        // SAFETY: null, or kept until `give_back`, after this.
        let Some(tracks) = (unsafe { self.tracks.load(Ordering::Acquire).as_ref() }) else {
            return;
        };
        for (track, what) in [(&tracks.tx, "wrote"), (&tracks.rx, "read")] {
            let what = format_args!("prefix: end {role} {what}{}", Shown(track));
            sluice_runtime::config::log(sluice_runtime::config::Level::Debug, what);
        }
    }

    /// Both tracks, made if there are none yet; `None` where there is no memory.
    pub(crate) fn tracks_or_make(&self) -> Option<&'static Tracks> {
        let mut at = self.tracks.load(Ordering::Acquire);
        if at.is_null() {
            at = self.make()?;
        }
        // SAFETY: made, and kept while a call is counted that has found its flag set (`give_back`).
        Some(unsafe { &*at })
    }

    #[cold]
    fn make(&self) -> Option<*mut Tracks> {
        // SAFETY: not of no length.
        let made = unsafe { std::alloc::alloc(LAYOUT) }.cast::<Tracks>();
        if made.is_null() {
            return None;
        }
        // SAFETY: as long and as aligned as that.
        unsafe { made.write(Tracks::new()) };
        let null = core::ptr::null_mut();
        let order = (Ordering::AcqRel, Ordering::Acquire);
        match self.tracks.compare_exchange(null, made, order.0, order.1) {
            Ok(_) => Some(made),
            Err(other) => {
                // SAFETY: made above, and nobody else's.
                unsafe { std::alloc::dealloc(made.cast(), LAYOUT) };
                Some(other)
            }
        }
    }
}

const LAYOUT: Layout = Layout::new::<Tracks>();
const _: () = assert!(size_of::<Tracks>() <= 1536);

/// What is kept of a connection: bytes of this process alone.
pub struct Tracks {
    pub(crate) rx: Track,
    pub(crate) tx: Track,
    /// What `tx` comes to when the call under way has moved all that it wants to. Of that call, see
    /// [`look_ahead`].
    pub(crate) ahead: UnsafeCell<Hash>,
}

impl Tracks {
    fn new() -> Self {
        Self {
            rx: Track::new(),
            tx: Track::new(),
            ahead: UnsafeCell::default(),
        }
    }

    pub(crate) fn of(&self, way: Way) -> &Track {
        match way {
            Way::In => &self.rx,
            Way::Out => &self.tx,
        }
    }

    fn renew(&self) {
        for track in [&self.rx, &self.tx] {
            track.taken.store(0, Ordering::Release);
            // SAFETY: the caller has seen that no call uses it.
            unsafe { *track.hash.get() = Hash::default() };
        }
    }
}

/// The hash so far, of how many bytes it is, and how many digests they have reached.
#[derive(Clone, Default)]
pub struct Hash {
    pub(crate) state: Sha256,
    pub(crate) at: usize,
    pub(crate) taken: u8,
}

/// One direction.
pub struct Track {
    /// Of the one call that may add to it: see the module's text.
    pub(crate) hash: UnsafeCell<Hash>,
    /// Digests that are there. Written by that call (release), read for proofs (acquire).
    pub(crate) taken: AtomicU8,
    /// Written before they count as taken, and never changed then. (Words, since a structure may be
    /// renewed under a reader.)
    digests: [[AtomicU64; DIGEST / 8]; MARKS],
}

impl Track {
    fn new() -> Self {
        Self {
            hash: UnsafeCell::default(),
            taken: AtomicU8::new(0),
            digests: [const { [const { AtomicU64::new(0) }; DIGEST / 8] }; MARKS],
        }
    }

    /// Hashes the next bytes of the direction, and takes the digests that they reach.
    pub(crate) fn add(&self, hash: &mut Hash, mut bytes: &[u8]) {
        while !bytes.is_empty() && hash.at < LEN {
            let mark = 1usize << hash.taken;
            let here = bytes.len().min(mark - hash.at);
            let (now, rest) = bytes.split_at(here);
            hash.state.update(now);
            hash.at += here;
            bytes = rest;
            if hash.at == mark {
                let digest = hash.state.clone().finalize();
                for (to, from) in self
                    .digests
                    .get(usize::from(hash.taken))
                    .into_iter()
                    .flatten()
                    .zip(digest.as_chunks::<8>().0)
                {
                    to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
                }
                hash.taken += 1;
            }
        }
    }

    /// The digest number `k`, counted from 1; zeroes for 0.
    pub(crate) fn digest(&self, k: u8) -> Option<[u8; DIGEST]> {
        let mut digest = [0; DIGEST];
        if k > self.taken.load(Ordering::Acquire) {
            return None;
        }
        if let Some(i) = usize::from(k).checked_sub(1) {
            let words = self.digests.get(i)?;
            for (to, from) in digest.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *to = from.load(Ordering::Relaxed).to_ne_bytes();
            }
        }
        Some(digest)
    }
}
