//! The two kinds of number that other processes may read at any moment.

use crate::events;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that only grows.
///
/// Written by the process that counts, read by it and by `sluice stat`. Always relaxed: a count
/// orders nothing, and a reader is content with a value that was true a moment ago.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    #[must_use]
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds `n` as a plain load and store, without a locked instruction. For the one thread that
    /// may write at this time, because it holds the lock of the direction that the counter belongs
    /// to; two concurrent calls can lose one of the amounts, nothing worse.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
        self.tell(n);
    }

    /// Adds `n` where several threads may count at once.
    #[inline]
    pub fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
        self.tell(n);
    }

    /// To a trace, if one is written.
    #[inline]
    fn tell(&self, n: u64) {
        if events::is_tracing() {
            events::counted(self, n);
        }
    }

    /// The count.
    #[inline]
    #[must_use]
    pub fn load(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn reset(&self) {
        self.0.store(0, Relaxed);
    }

    /// Adds what another counter has reached.
    pub(crate) fn absorb(&self, other: &Counter) {
        let n = other.load();
        if n != 0 {
            self.0.fetch_add(n, Relaxed);
        }
    }
}

/// A number that goes up and down. Written and read as a [`Counter`] is.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// A gauge at zero.
    #[must_use]
    pub const fn new() -> Gauge {
        Gauge(AtomicU64::new(0))
    }

    /// Sets the value.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Raises the value where several threads may do so at once.
    #[inline]
    pub fn raise(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Lowers the value where several threads may do so at once.
    #[inline]
    pub fn lower(&self, n: u64) {
        self.0.fetch_sub(n, Relaxed);
    }

    /// The value.
    #[inline]
    #[must_use]
    pub fn load(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
