//! Demotions at random moments, for tests: `SLUICE_FAULT=demote:SEED` in builds with the feature `fault`.

/// Does a fault strike at this look? One in about two hundred, drawn from the seed.
#[inline(always)]
pub fn strikes() -> bool {
    #[cfg(feature = "fault")]
    {
        drawn()
    }
    #[cfg(not(feature = "fault"))]
    false
}

#[cfg(feature = "fault")]
fn drawn() -> bool {
    use core::sync::atomic::{AtomicU64, Ordering};
    static STATE: AtomicU64 = AtomicU64::new(0);
    let Some(seed) = crate::config::config().fault else {
        return false;
    };
    // splitmix64 over a shared counter: each look is one draw, whatever thread it is on.
    let n = STATE
        .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
        .wrapping_add(seed.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    let mut z = n;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % 199 == 0
}
