//! Means of measured costs, by the class of a length: lengths of one class differ by less than a
//! factor of two.

use core::sync::atomic::{AtomicU64, Ordering};

const CLASSES: usize = 32;

/// A newer cost counts one part in so many of the mean.
const PART: u64 = 8;
/// A single cost counts at most so many times the mean: the thread may have lost its processor.
const OUTLIER: u64 = 4;

/// Mean costs by the class of the length; 0: not known.
#[derive(Debug)]
pub(super) struct Costs([AtomicU64; CLASSES]);

impl Costs {
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; CLASSES])
    }

    /// What belongs to the class of this length.
    pub fn of(&self, len: usize) -> Option<&AtomicU64> {
        let class = (len.max(1).ilog2() as usize).min(CLASSES - 1);
        self.0.get(class)
    }

    pub fn mean(&self, len: usize) -> u64 {
        self.of(len).map_or(0, |mean| mean.load(Ordering::Relaxed))
    }

    pub fn note(&self, len: usize, cost: u64) {
        let old = self.mean(len);
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

/// In ps a byte.
pub(super) fn by_byte(len: usize, ns: u64) -> u64 {
    ns.saturating_mul(1000) / (len as u64).max(1)
}
