//! Digests of the first bytes of a connection, and whether more are to be taken.
//!
//! [`prefix`](super::prefix) says what two ends on two hosts prove by them, and how calls add to
//! them.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use sha2::{Digest, Sha256};
use std::alloc::Layout;

/// How many bytes of each direction are hashed.
pub const LEN: usize = 32 << 10;
/// Digests of each direction: at 1, 2, 4 ... [`LEN`] bytes.
const MARKS: usize = LEN.trailing_zeros() as usize + 1;
/// Bytes of a digest.
pub(crate) const DIGEST: usize = 32;

/// True if this process hashes at all. Written by [`init`].
pub(crate) static WANTED: AtomicBool = AtomicBool::new(false);

/// Looks whether this host has an RDMA device. Called by the constructor.
pub fn init() {
    // Builds for tests hash anywhere.
    let wanted = cfg!(feature = "fault") || sluice_fabric::verbs::api::is_any_device();
    WANTED.store(wanted, Ordering::Relaxed);
}

/// Returns whether connections of this process may have to be proved to another host.
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

/// A socket's digests; all zeroes when new.
#[derive(Debug)]
pub struct Slot {
    /// By [`Way`]: bytes that pass are to be hashed. Set for a new connection, cleared by the
    /// thread that ends the direction. SeqCst: see [`prefix`](super::prefix) and
    /// [`Slot::give_back`].
    goes_on: [AtomicBool; 2],
    /// Null until the first byte. Set by compare-and-swap; freed by [`Slot::give_back`] under both
    /// locks.
    tracks: AtomicPtr<Tracks>,
}

impl Slot {
    /// Returns whether bytes that pass this way are to be hashed.
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

    /// Ends the direction: bytes pass unseen.
    #[inline]
    pub fn end(&self, way: Way) {
        self.goes_on(way).store(false, Ordering::SeqCst);
    }

    /// Ends both directions: nothing more is to be proved.
    pub(crate) fn end_both(&self) {
        self.end(Way::In);
        self.end(Way::Out);
    }

    /// Begins a new connection. `in_use`: calls of an earlier connection are still counted.
    pub fn begin(&self, in_use: bool) {
        if !wanted() || in_use {
            return self.end_both();
        }
        // SAFETY: null, or kept by `give_back`. No call is counted, so no thread uses the tracks,
        // and none begins to before the flags are set.
        if let Some(tracks) = unsafe { self.tracks.load(Ordering::Acquire).as_ref() } {
            tracks.renew();
        }
        for flag in &self.goes_on {
            flag.store(true, Ordering::SeqCst);
        }
    }

    /// Both tracks, if any.
    ///
    /// # Safety
    /// The caller holds one of the socket's locks; the tracks are freed under both.
    pub unsafe fn tracks(&self) -> Option<&Tracks> {
        // SAFETY: null, or not freed while the caller holds one of the locks.
        unsafe { self.tracks.load(Ordering::Acquire).as_ref() }
    }

    /// Abandons the tracks to the parent process, without freeing them.
    pub fn leave(&self) {
        self.end_both();
        self.tracks.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// Frees the tracks, unless one of the `calls` that are counted may be using them. Then they
    /// stay with the structure, for its next connection. Call under both locks, with both
    /// directions ended.
    ///
    /// A call is counted before it finds its flag set, and the flags are cleared before the counts
    /// are read. So a call that is not counted here finds the flag cleared, and does not touch the
    /// tracks.
    pub fn give_back(&self, calls: u64) {
        if calls != 0 {
            return;
        }
        let old = self.tracks.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: allocated by `make`. No call that may use them is counted, and a proof would
            // hold a lock.
            unsafe { std::alloc::dealloc(old.cast(), LAYOUT) };
        }
    }

    /// For tests of the hooks: logs the digests of this end, to be compared with the other end's.
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

        // SAFETY: null, or kept until `give_back`, which the caller runs after this.
        let Some(tracks) = (unsafe { self.tracks.load(Ordering::Acquire).as_ref() }) else {
            return;
        };
        for (track, what) in [(&tracks.tx, "wrote"), (&tracks.rx, "read")] {
            let what = format_args!("prefix: end {role} {what}{}", Shown(track));
            sluice_runtime::config::log(sluice_runtime::config::Level::Debug, what);
        }
    }

    /// Both tracks, made if there are none; `None` if there is no memory.
    pub(crate) fn tracks_or_make(&self) -> Option<&'static Tracks> {
        let mut at = self.tracks.load(Ordering::Acquire);
        if at.is_null() {
            at = self.make()?;
        }
        // SAFETY: not freed while a call is counted that has found its flag set (see `give_back`).
        Some(unsafe { &*at })
    }

    #[cold]
    fn make(&self) -> Option<*mut Tracks> {
        // SAFETY: the layout is not empty.
        let made = unsafe { std::alloc::alloc(LAYOUT) }.cast::<Tracks>();
        if made.is_null() {
            return None;
        }
        // SAFETY: the allocation has the size and alignment of `Tracks`.
        unsafe { made.write(Tracks::new()) };
        let null = core::ptr::null_mut();
        let order = (Ordering::AcqRel, Ordering::Acquire);
        match self.tracks.compare_exchange(null, made, order.0, order.1) {
            Ok(_) => Some(made),
            Err(other) => {
                // SAFETY: allocated above, and never published.
                unsafe { std::alloc::dealloc(made.cast(), LAYOUT) };
                Some(other)
            }
        }
    }
}

const LAYOUT: Layout = Layout::new::<Tracks>();
const _: () = assert!(size_of::<Tracks>() <= 1536);

/// What is kept of a connection; private to this process.
pub struct Tracks {
    pub(crate) rx: Track,
    pub(crate) tx: Track,
    /// The hash of `tx` as it will be once the call in progress has written everything. Belongs to
    /// that call, see `prefix::look_ahead`.
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
            // SAFETY: the caller has checked that no call is counted, so no thread uses the hash.
            unsafe { *track.hash.get() = Hash::default() };
        }
    }
}

/// The hash so far, of how many bytes, and how many digests were taken.
#[derive(Clone, Default)]
pub struct Hash {
    pub(crate) state: Sha256,
    pub(crate) at: usize,
    pub(crate) taken: u8,
}

/// One direction.
pub struct Track {
    /// Belongs to the one call that may add to it, see [`prefix`](super::prefix).
    pub(crate) hash: UnsafeCell<Hash>,
    /// How many digests are valid. Written by that call (release), read for proofs (acquire).
    pub(crate) taken: AtomicU8,
    /// A digest is written before `taken` counts it, and not changed then. (Atomic words, since a
    /// new connection may reset the structure under a reader.)
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

    /// Digest number `k`, counted from 1; zeroes for 0.
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
