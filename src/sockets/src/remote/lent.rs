//! What a socket keeps of a buffer that it has lent to another host.

use core::sync::atomic::{AtomicU32, AtomicUsize};

/// What a socket lends.
#[derive(Debug, Default)]
pub struct Lent {
    /// Its region; 0: none. The thread that makes it 0 deregisters.
    pub(super) region: AtomicUsize,
    pub(super) base: AtomicUsize,
    pub(super) len: AtomicUsize,
    /// Bytes of it that the recv has.
    pub(super) taken: AtomicU32,
    /// Whose it is: [`Nap::frame`](crate::nap::Nap::frame).
    pub(super) frame: AtomicUsize,
}
