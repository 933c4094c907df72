//! A budget that refills with time, for what somebody else can have us do.

use core::sync::atomic::{AtomicU64, Ordering};

/// What may be spent: at once, and for how long a burst is paid back.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Most that may be spent at once.
    pub most: u32,
    /// What comes in again each second.
    pub per_second: u32,
}

impl Rate {
    /// Time that one unit takes to come in again, in ns.
    const fn unit_ns(self) -> u64 {
        1_000_000_000 / self.per_second as u64
    }
}

/// A budget. Full at first.
///
/// It is the moment at which it will be full again: what is spent puts that off, and where it would
/// come to lie further away than a whole refill nothing is left. (The generic cell rate algorithm:
/// one word, no timer.)
#[derive(Debug, Default)]
pub struct Bucket(AtomicU64);

impl Bucket {
    /// A full one.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Fills it.
    pub fn fill(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Takes back what was spent on something that has turned out well.
    pub fn give_back(&self, rate: Rate, price: u32) {
        let back = u64::from(price) * rate.unit_ns();
        let sooner = |full_at: u64| Some(full_at.saturating_sub(back));
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, sooner);
    }

    /// Spends `price` at the time `now`, in ns; false: so much is not left, and nothing is spent.
    pub fn spend(&self, rate: Rate, price: u32, now: u64) -> bool {
        let unit = rate.unit_ns();
        let put_off = |full_at: u64| {
            let full_at = full_at.max(now) + u64::from(price) * unit;
            (full_at <= now + u64::from(rate.most) * unit).then_some(full_at)
        };
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, put_off)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        most: 10,
        per_second: 1000,
    };
    const MS: u64 = 1_000_000;

    #[test]
    fn what_is_spent_comes_in_again_and_no_more() {
        let bucket = Bucket::new();
        let now = 77 * MS;
        assert!((0..10).all(|_| bucket.spend(RATE, 1, now)));
        assert!(!bucket.spend(RATE, 1, now));
        assert!(!bucket.spend(RATE, 1, now + MS - 1));
        assert!(bucket.spend(RATE, 1, now + MS));
        assert!(!bucket.spend(RATE, 1, now + MS));
        assert!(bucket.spend(RATE, 10, now + 60_000 * MS));
        assert!(!bucket.spend(RATE, 1, now + 60_000 * MS));
        bucket.fill();
        assert!(!bucket.spend(RATE, 11, now));
        assert!(bucket.spend(RATE, 10, now));
    }

    #[test]
    fn any_spending_stays_within_the_rate() {
        let bucket = Bucket::new();
        let (mut spent, mut now, mut draw) = (0u64, 5 * MS, 12345u64);
        let begin = now;
        for _ in 0..100_000 {
            draw = draw.wrapping_mul(6364136223846793005).wrapping_add(1);
            now += (draw >> 40) % (MS / 2);
            let price = 1 + (draw >> 33) as u32 % 3;
            if bucket.spend(RATE, price, now) {
                spent += u64::from(price);
            }
            assert!(spent <= 10 + (now - begin) / MS);
        }
        assert!(spent + 10 >= (now - begin) / MS, "refused too much");
    }
}
