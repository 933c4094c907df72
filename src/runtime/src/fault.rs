//! Faults at random moments, for tests, and defects on request, which tests must find:
//! `SLUICE_FAULT` in builds with feature `fault`. In others each function returns a constant.

use crate::config::{Fault, config};

/// True if a stream must go back to TCP at this look: once in about two hundred, by the seed.
#[inline(always)]
pub fn strikes() -> bool {
    matches!(asked(), Some(Fault::Demote(seed)) if draws(seed, 199))
}

/// True if a link to another host must fail at this move: once in about five hundred, by the seed.
#[inline(always)]
pub fn cuts() -> bool {
    matches!(asked(), Some(Fault::Link(seed)) if draws(seed, 499))
}

/// True if a link's queue pair for direct transfers must fail at this move: once in about fifty, by
/// the seed.
#[inline(always)]
pub fn cuts_direct() -> bool {
    matches!(asked(), Some(Fault::Direct(seed)) if draws(seed, 49))
}

/// A defect on request: true if this wake-up of a peer is omitted, once in about fifty.
#[inline(always)]
pub fn forgets_to_ring() -> bool {
    matches!(asked(), Some(Fault::Wakeup(seed)) if draws(seed, 47))
}

/// A defect on request: the result of a peek of `n` bytes, one less once in about twenty.
#[inline(always)]
pub fn peeked(n: usize) -> usize {
    n - usize::from(n > 1 && matches!(asked(), Some(Fault::Peek(seed)) if draws(seed, 19)))
}

/// True if the kernel must be taken for one before 6.16, where no socket refuses descriptors.
#[inline(always)]
pub fn is_old_kernel() -> bool {
    matches!(asked(), Some(Fault::OldKernel))
}

/// The fault that this process must make.
#[inline(always)]
fn asked() -> Option<Fault> {
    if cfg!(feature = "fault") {
        config().fault
    } else {
        None
    }
}

/// True once in about `n` calls, by the seed.
fn draws(seed: u64, n: u64) -> bool {
    use core::sync::atomic::{AtomicU64, Ordering};
    static STATE: AtomicU64 = AtomicU64::new(0);
    // splitmix64 over a counter that all threads share: each call is one draw.
    let mut z = STATE
        .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
        .wrapping_add(seed.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).is_multiple_of(n)
}
