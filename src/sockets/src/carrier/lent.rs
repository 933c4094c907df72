//! What a socket keeps about a buffer that it has lent to another host.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sluice_fabric::verbs::device::Region;
use sluice_transport::verbs::memory;

/// A stream lends seldom after so many loans in a row without a byte: its peer writes too little at
/// once, or does not write to buffers.
const VAIN: u32 = 4;
/// Then it lends once in so many waits.
const SELDOM: u32 = 64;

/// A stream from one wait to the next: see [`loan_trial`](super::loan_trial). Guarded by the rx
/// lock.
#[derive(Debug, Default)]
pub(super) struct Trial {
    /// How the call goes that began it: [`Trial::RING`] or [`Trial::LOAN`]; 0: none.
    pub way: AtomicU8,
    /// What that call wants, and whether it waits for all of it.
    pub len: AtomicUsize,
    pub fills: AtomicBool,
    /// When it began (`sys::now_ns`), if it is measured, else 0.
    pub began_ns: AtomicU64,
    /// Then the time on processors, the thread, and what its reader had got by the link.
    pub busy_ns: AtomicU64,
    pub thread: AtomicUsize,
    pub linked: AtomicU64,
}

impl Trial {
    pub const RING: u8 = 1;
    pub const LOAN: u8 = 2;
}

/// The buffer that a socket has lent.
#[derive(Debug, Default)]
pub struct Lent {
    /// The registered region; 0: none. The thread that swaps 0 in deregisters it.
    pub(super) region: AtomicUsize,
    pub(super) base: AtomicUsize,
    pub(super) len: AtomicUsize,
    /// Bytes of it that the recv has got.
    pub(super) taken: AtomicU32,
    /// Loans in a row that got no byte, and calls that therefore did not lend.
    pub(super) vain: AtomicU32,
    /// What it measures.
    pub(super) trial: Trial,
    /// The recv that lent it, by [`IoWait::frame`](crate::io_wait::IoWait::frame); 0: none.
    pub(super) frame: AtomicUsize,
}

impl Lent {
    /// Ends the peer's access: no byte lands in the buffer from now on.
    pub fn shut(&self) {
        // Before the swap: after it another call may lend.
        let len = self.len.load(Ordering::Relaxed);
        let raw = self.region.swap(0, Ordering::SeqCst);
        if raw != 0 {
            // SAFETY: `lend` got `raw` from `Region::into_raw`, and the swap gives it to one thread
            // alone.
            unsafe { Region::end_raw(raw) };
            memory::give(len);
        }
    }

    /// What the last connection has learnt is of no use to the next.
    pub fn begin(&self) {
        self.vain.store(0, Ordering::Relaxed);
        self.trial.way.store(0, Ordering::Relaxed);
    }

    /// In the child of a fork: the loan is the parent's, and so is its registration.
    pub fn forget(&self) {
        self.region.store(0, Ordering::Relaxed);
        self.frame.store(0, Ordering::Relaxed);
        self.begin();
    }

    /// The loan has ended, with a byte or without.
    pub(super) fn was_used(&self, used: bool) {
        let vain = self.vain.load(Ordering::Relaxed);
        let now = if used { 0 } else { vain.saturating_add(1) };
        self.vain.store(now, Ordering::Relaxed);
    }

    /// Returns whether a loan would probably get nothing. Asked once for each wait.
    pub(super) fn is_in_vain(&self) -> bool {
        let vain = self.vain.load(Ordering::Relaxed);
        if vain < VAIN {
            return false;
        }
        self.vain
            .store(vain.wrapping_add(1).max(VAIN), Ordering::Relaxed);
        !vain.is_multiple_of(SELDOM)
    }
}
