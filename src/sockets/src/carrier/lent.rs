//! What a socket keeps about a buffer that it has lent to another host.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use sluice_fabric::lock::Guarded;
use sluice_fabric::verbs::device::Region;
use sluice_transport::verbs::loan_costs::Way;
use sluice_transport::verbs::memory;

/// A stream lends seldom after so many loans in a row without a byte: its peer writes too little at
/// once, or does not write to buffers.
const VAIN: u32 = 4;
/// Then it lends once in so many waits.
const SELDOM: u32 = 64;

/// A stream from one wait to the next.
#[derive(Clone, Copy, Debug)]
pub struct LoanTrial {
    pub(super) way: Way,
    /// What the call wants, and whether it waits for all of it.
    pub(super) wants: (usize, bool),
    pub(super) began: Option<Mark>,
}

/// Where a measurement begins.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// The time, and that on a processor of this thread, and of the control thread, which wakes it.
    pub(super) ns: [u64; 2],
    pub(super) thread: usize,
    /// The connection, and the bytes that its reader has got by the link.
    pub(super) generation: u32,
    pub(super) linked: u64,
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
    pub(super) trial: Guarded<Option<LoanTrial>>,
    /// The recv that lent it, by [`IoWait::frame`](crate::io_wait::IoWait::frame); 0: none.
    pub(super) frame: AtomicUsize,
}

impl Lent {
    /// Ends the peer's access: no byte lands in the buffer from now on.
    pub fn shut(&self) {
        let raw = self.region.swap(0, Ordering::SeqCst);
        if raw != 0 {
            // SAFETY: `lend` got `raw` from `Region::into_raw`, and the swap gives it to one thread
            // alone.
            unsafe { Region::end_raw(raw) };
            memory::give(self.len.load(Ordering::Relaxed));
        }
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
