//! The words between a [`Sender`](crate::Sender) and its caller: how a send may go, what to do
//! next, what to send again.

use crate::wire::{Advert, AdvertId, Seq, Turn};

/// The most direct route that the caller of a send can stand by for. Each allows those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// The buffer is the program's again as soon as the call returns: the ring.
    Ring,
    /// The buffer stays until an advertised transfer is over or withdrawn.
    Advert,
    /// The buffer stays, and may be offered without an ADVERT (pull only).
    Offer,
}

/// What a send does next. `len` is never more than was asked; the caller comes back for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Action {
    /// Put `len` bytes into the ring. They count as sent.
    Ring {
        /// Bytes to copy; zero only for a send of nothing.
        len: u32,
        /// Push: send this first, in order with the ring bytes.
        turn: Option<Turn>,
    },
    /// Push: write `len` bytes into this buffer. They count as sent; the source stays readable
    /// until an [`Ack`](crate::wire::Ack) covers them, or their completion where that means they
    /// have landed.
    Direct {
        /// Where they go, from its first byte on.
        advert: Advert,
        /// Bytes to write, never more than `advert.len`.
        len: u32,
    },
    /// Pull: put the source on offer. Nothing counts as sent; the end of it is
    /// [`Sender::on_taken`](crate::Sender::on_taken),
    /// [`Sender::on_withdrawn`](crate::Sender::on_withdrawn) or the seal.
    Offer(Offer),
    /// Nothing can go now.
    Blocked {
        /// What has to happen first.
        on: Wait,
        /// Whether to tell the reader ([`Control::Blocked`](crate::wire::Control::Blocked)): true
        /// once per credit waited for.
        tell: bool,
    },
    /// The direction is sealed: the bytes belong on TCP, after what is re-sent there.
    Demoted,
}

/// What a blocked sender waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Credit: the ring is full.
    Credit,
    /// An ADVERT, in [`Mode::Direct`](crate::Mode::Direct). None may ever come (the reader polls,
    /// peeks, or never blocks): after a while the caller demotes and counts it.
    Advert,
    /// The end of the offer that an earlier send has up.
    Offer,
}

/// Bytes a pull sender lets the reader take. Where they lie is the provider's to publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Counts the offers of the direction, from 1: the generation by which a take or a withdrawal
    /// names the one it means.
    pub number: u64,
    /// The position of the first of them. The reader may take it when it has read all before.
    pub seq: Seq,
    /// Bytes on offer. Never zero. A take of fewer ends the offer as well.
    pub len: u32,
    /// The ADVERT it answers. Without one it is like an indirect transfer as far as phases go.
    pub advert: Option<AdvertId>,
}

/// What to send again on TCP after a demotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resend {
    /// The first byte the reader has not got.
    pub from: Seq,
    /// The end of what the link was given.
    pub to: Seq,
    /// Bytes of the offer that was up at the seal which the reader had taken by then: the send
    /// that offered them has that many done, and they are before `from`.
    pub taken: u32,
}

impl Resend {
    /// Bytes to re-send; never more than the ring and one direct transfer.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.to.since(self.from).unwrap_or(0)
    }

    /// Whether the reader has everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
