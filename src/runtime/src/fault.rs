//! Faults at random moments, for tests, and defects on request, which tests must find:
//! `SLUICE_FAULT` in builds with feature `fault`. In others each function returns a constant.

#[cfg(feature = "fault")]
use crate::config::{Fault, config};

/// True if a stream must go back to TCP at this look: once in about two hundred, by the seed.
#[inline(always)]
pub fn strikes() -> bool {
    #[cfg(feature = "fault")]
    {
        matches!(config().fault, Some(Fault::Demote(seed)) if drawn(seed) % 199 == 0)
    }
    #[cfg(not(feature = "fault"))]
    false
}

/// True if a link to another host must fail at this move: once in about five hundred, by the seed.
#[cfg(feature = "verbs")]
#[inline(always)]
pub fn cuts() -> bool {
    #[cfg(feature = "fault")]
    {
        matches!(config().fault, Some(Fault::Link(seed)) if drawn(seed) % 499 == 0)
    }
    #[cfg(not(feature = "fault"))]
    false
}

/// A defect on request: true if this wake-up of a peer is omitted, once in about fifty.
#[inline(always)]
pub fn forgets_to_ring() -> bool {
    #[cfg(feature = "fault")]
    {
        matches!(config().fault, Some(Fault::Wakeup(seed)) if drawn(seed) % 47 == 0)
    }
    #[cfg(not(feature = "fault"))]
    false
}

/// A defect on request: the result of a peek of `n` bytes, one less once in about twenty.
#[inline(always)]
pub fn peeked(n: usize) -> usize {
    #[cfg(feature = "fault")]
    let n = n - usize::from(
        n > 1 && matches!(config().fault, Some(Fault::Peek(seed)) if drawn(seed) % 19 == 0),
    );
    n
}

/// True if the kernel must be taken for one before 6.16, where no socket refuses descriptors.
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
    // splitmix64 over a counter that all threads share: each call is one draw.
    let n = STATE
        .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
        .wrapping_add(seed.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    let mut z = n;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
