//! What a socket keeps of a buffer that it has lent to another host.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use sluice_fabric::verbs::device::Region;
use sluice_transport::verbs::memory;

/// What a socket lends.
#[derive(Debug, Default)]
pub struct Lent {
    /// Its region; 0: none. The thread that makes it 0 deregisters.
    pub(super) region: AtomicUsize,
    pub(super) base: AtomicUsize,
    pub(super) len: AtomicUsize,
    /// Bytes of it that the recv has.
    pub(super) taken: AtomicU32,
    /// Whose it is: [`IoWait::frame`](crate::io_wait::IoWait::frame).
    pub(super) frame: AtomicUsize,
}

impl Lent {
    /// No byte lands in the buffer from now on.
    pub fn shut(&self) {
        let raw = self.region.swap(0, Ordering::SeqCst);
        if raw != 0 {
            // SAFETY: made when it was lent; the swap gives it to one.
            unsafe { Region::end_raw(raw) };
            memory::give(self.len.load(Ordering::Relaxed));
        }
    }
}
