//! Threads and cells: loom's, or the real ones.

#[cfg(loom)]
pub use loom::{sync::Arc, thread};
#[cfg(not(loom))]
pub use std::{sync::Arc, thread};

/// Bytes of a ring in a model.
pub const CAP: u64 = 2;

/// A ring of [`CAP`] bytes. Under loom every access is watched: two that are not ordered by the
/// words fail the model.
#[derive(Debug)]
pub struct Cells([Cell; CAP as usize]);

#[cfg(loom)]
type Cell = loom::cell::UnsafeCell<u8>;
#[cfg(not(loom))]
type Cell = core::cell::UnsafeCell<u8>;

// SAFETY: the models examine which thread may touch which byte; loom fails on two accesses that
// race, and elsewhere they are volatile copies of single bytes.
unsafe impl Sync for Cells {}

impl Default for Cells {
    fn default() -> Self {
        Self([(); CAP as usize].map(|()| Cell::new(0)))
    }
}

impl Cells {
    pub fn write(&self, offset: u64, byte: u8) {
        let cell = &self.0[(offset % CAP) as usize];
        #[cfg(loom)]
        // SAFETY: loom hands out a valid pointer, and has checked that no other access is going on.
        cell.with_mut(|at| unsafe { *at = byte });
        #[cfg(not(loom))]
        // SAFETY: the pointer comes from the cell.
        unsafe {
            cell.get().write_volatile(byte);
        }
    }

    pub fn read(&self, offset: u64) -> u8 {
        let cell = &self.0[(offset % CAP) as usize];
        #[cfg(loom)]
        // SAFETY: as in `write`.
        return cell.with(|at| unsafe { *at });
        #[cfg(not(loom))]
        // SAFETY: as in `write`.
        return unsafe { cell.get().read_volatile() };
    }
}

/// Lets the others run, where going on would only look at the same state again.
pub fn pause() {
    thread::yield_now();
}
