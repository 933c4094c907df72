//! What both halves of a direction are told when the stream is made.

use crate::error::{Bug, Error};

/// Which transfers are allowed. Each end follows its own; they need not agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Direct when an ADVERT is fresh, else through the ring.
    #[default]
    Dynamic,
    /// The paper's first baseline: a sender always waits for an ADVERT.
    Direct,
    /// The paper's second baseline: a reader never sends an ADVERT.
    Indirect,
}

/// The end that moves the bytes of a direct transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// The writer puts them into the advertised buffer, on another path than ring bytes (verbs).
    Push,
    /// The reader takes them from the offered buffer, in order with ring bytes (shm).
    Pull,
}

/// One GiB: two rings' bytes can be added in 32 bits, and no ring comes near it.
pub const MAX_RING_LEN: u32 = 1 << 30;

/// The terms of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The policy.
    pub mode: Mode,
    /// The kind of provider. Both ends of a direction have the same.
    pub provider: Provider,
    ring_len: u32,
    direct_min: u32,
}

impl Config {
    /// A ring of `ring_len` bytes; transfers and buffers shorter than `direct_min` are not worth a
    /// direct one ([`Mode::Direct`] uses one for every byte).
    ///
    /// # Errors
    /// [`Bug::RingLen`]: without a ring the first byte could never go.
    pub fn new(
        mode: Mode,
        provider: Provider,
        ring_len: u32,
        direct_min: u32,
    ) -> Result<Self, Error> {
        if ring_len == 0 || ring_len > MAX_RING_LEN {
            return Err(Bug::RingLen.into());
        }
        Ok(Self {
            mode,
            provider,
            ring_len,
            direct_min,
        })
    }

    /// Bytes of the ring.
    #[must_use]
    pub const fn ring_len(&self) -> u32 {
        self.ring_len
    }

    /// The shortest transfer that may go direct.
    #[must_use]
    pub fn direct_min(&self) -> u32 {
        if self.mode == Mode::Direct {
            1
        } else {
            self.direct_min.max(1)
        }
    }
}
