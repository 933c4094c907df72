//! Why a connection is on TCP.

/// Why a connection stayed on TCP, or went back to it. The number is part of the layout that
/// `sluice stat` reads; the words are for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[non_exhaustive]
pub enum Reason {
    /// No reason: not tried yet, or accelerated.
    None = 0,
}
