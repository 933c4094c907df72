//! Atomics, or loom's in their place, and the one fence that the hot path needs.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

/// A full fence directly after a read-modify-write of the same thread.
///
/// On x86 a locked instruction is a full fence already, so only the compiler has to be told;
/// elsewhere (and in the models) it is a real one.
#[inline(always)]
pub fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), loom))]
    fence(Ordering::SeqCst);
}
