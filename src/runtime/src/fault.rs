//! Faults at random moments, for tests, and defects on request, which tests must find:
//! `SLUICE_FAULT` in builds with the feature `fault`. In others each of these is a constant.

#[cfg(feature = "fault")]
use crate::config::{Fault, config};

/// Is a stream to be taken back to TCP at this look? One in about two hundred, drawn from the seed.
#[inline(always)]
pub fn strikes() -> bool {
    #[cfg(feature = "fault")]
    {
        matches!(config().fault, Some(Fault::Demote(seed)) if drawn(seed) % 199 == 0)
    }
    #[cfg(not(feature = "fault"))]
    false
}

/// Is the link to another host to end its work at this move? One in about two thousand.
#[inline(always)]
pub fn cuts() -> bool {
    #[cfg(feature = "fault")]
    {
        matches!(config().fault, Some(Fault::Link(seed)) if drawn(seed) % 499 == 0)
    }
    #[cfg(not(feature = "fault"))]
    false
}

/// A defect on request: is this wake-up of a peer forgotten? One in about fifty.
#[inline(always)]
pub fn forgets_to_ring() -> bool {
    #[cfg(feature = "fault")]
    {
        matches!(config().fault, Some(Fault::Wakeup(seed)) if drawn(seed) % 47 == 0)
    }
    #[cfg(not(feature = "fault"))]
    false
}

/// A defect on request: what a peek that has seen `n` bytes says. One in about twenty says one
/// less.
#[inline(always)]
pub fn peeked(n: usize) -> usize {
    #[cfg(feature = "fault")]
    let n = n - usize::from(
        n > 1 && matches!(config().fault, Some(Fault::Peek(seed)) if drawn(seed) % 19 == 0),
    );
    n
}

/// Is the kernel to be taken for one before Linux 6.16, where no socket refuses descriptors?
#[inline(always)]
pub fn is_old_kernel() -> bool {
    #[cfg(feature = "fault")]
    {
        matches!(config().fault, Some(Fault::OldKernel))
    }
    #[cfg(not(feature = "fault"))]
    false
}

#[cfg(feature = "fault")]
fn drawn(seed: u64) -> u64 {
    use core::sync::atomic::{AtomicU64, Ordering};
    static STATE: AtomicU64 = AtomicU64::new(0);
    // splitmix64 over a shared counter: each look is one draw, whatever thread it is on.
    let n = STATE
        .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
        .wrapping_add(seed.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    let mut z = n;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
