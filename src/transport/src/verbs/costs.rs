//! Numbers by the class of a length, such as means of measured costs: lengths of one class differ
//! by less than a factor of two.

use core::sync::atomic::{AtomicU64, Ordering};

const CLASSES: usize = 32;

/// A newer cost counts one part in so many of the mean.
const PART: u64 = 8;
/// A single cost counts at most so many times the mean: the thread may have lost its processor.
const OUTLIER: u64 = 4;

/// A number for each class; 0 until it is set.
#[derive(Debug)]
pub(super) struct ByClass([AtomicU64; CLASSES]);

impl ByClass {
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; CLASSES])
    }

    /// What belongs to the class of this length.
    pub fn of(&self, len: usize) -> Option<&AtomicU64> {
        let class = (len.max(1).ilog2() as usize).min(CLASSES - 1);
        self.0.get(class)
    }

    pub fn get(&self, len: usize) -> u64 {
        self.of(len)
            .map_or(0, |number| number.load(Ordering::Relaxed))
    }

    /// Takes a cost into the mean.
    pub fn note(&self, len: usize, cost: u64) {
        let old = self.get(len);
        if old == 0 {
            self.note_first(len, 0, cost);
        } else {
            self.note_first(len, PART - 1, cost.min(OUTLIER * old));
        }
    }

    /// As [`note`](Self::note), but a cost counts as much as each of those `before`, while they are
    /// few.
    pub fn note_first(&self, len: usize, before: u64, cost: u64) {
        if let Some(mean) = self.of(len) {
            let old = mean.load(Ordering::Relaxed);
            let new = (old * before + cost) / (before + 1);
            mean.store(new.max(1), Ordering::Relaxed);
        }
    }
}
