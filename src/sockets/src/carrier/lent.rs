//! What a socket keeps about a buffer that it has lent to another host.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use sluice_fabric::verbs::device::Region;
use sluice_transport::verbs::memory;

/// The buffer that a socket has lent.
#[derive(Debug, Default)]
pub struct Lent {
    /// The registered region; 0: none. The thread that swaps 0 in deregisters it.
    pub(super) region: AtomicUsize,
    pub(super) base: AtomicUsize,
    pub(super) len: AtomicUsize,
    /// Bytes of it that the recv has got.
    pub(super) taken: AtomicU32,
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
}
