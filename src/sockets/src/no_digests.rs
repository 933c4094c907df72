//! In place of `digests.rs` where no other host is met.

/// See `digests.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What is read.
    In,
    /// What is written.
    Out,
}

/// Nothing.
#[derive(Debug)]
pub struct Slot;

impl Slot {
    /// Never.
    #[inline(always)]
    pub fn wants(&self, _: Way) -> bool {
        false
    }
    /// Nothing to end.
    #[inline(always)]
    pub fn end(&self, _: Way) {}
    /// Nothing to end.
    #[inline(always)]
    pub(crate) fn end_both(&self) {}
    /// Nothing to begin.
    #[inline(always)]
    pub fn begin(&self, _: bool) {}
    /// Nothing is kept.
    #[inline(always)]
    pub fn give_back(&self, _: u64) {}
    /// Nothing to tell.
    #[cfg(feature = "fault")]
    pub fn tell(&self, _: u8) {}
}
