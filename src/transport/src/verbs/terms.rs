//! Constants and messages that the files of a link to another host share.

use sluice_fabric::verbs::queue::Shape;
use sluice_stream::Error;
use sluice_stream::pump::NOTICES;
use sluice_stream::wire::{DirectQp, Meeting};

/// Receives that each end of a link keeps posted. Part of the protocol.
pub const RECEIVES: u16 = 64;
/// Messages that may be posted and incomplete at once.
pub const SENDS: u16 = 64;
/// Receives for direct transfers that each end keeps posted on the queue pair for them.
pub(crate) const DIRECT_RECEIVES: u16 = 2 * NOTICES;
/// Sizes of a link's queue pair.
pub const SHAPE: Shape = Shape {
    // Each message may be two work requests; one more is a fence.
    sends: 2 * SENDS as u32 + 1,
    receives: RECEIVES as u32,
    inline: 64,
};

/// Completions of one queue pair that its queue must have room for. When a queue pair fails, each
/// posted work request completes, signaled or not.
pub(crate) const NEED: u32 = SHAPE.sends + SHAPE.receives;

/// Time between two looks whether posted work requests complete.
pub(crate) const TICK_NS: u64 = 1_000_000_000;

/// Why a link was lost. Its streams go on on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The device refused a call, or reported this `ibv_wc_status`.
    Device(u32),
    /// The peer broke the protocol.
    Peer(Error),
    /// The peer, its host or a device on the way has ended the connection.
    Gone,
    /// Posted work requests did not complete in time.
    Silent,
    /// A step of a stream's switch did not come in time.
    Late,
}

impl From<Error> for Lost {
    fn from(error: Error) -> Self {
        Self::Peer(error)
    }
}

/// Where the peer writes control messages of this link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Address of the first control slot.
    pub place: u64,
    /// Remote key of the slots.
    pub key: u32,
}

/// News for the control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// This stream has something to do on TCP, or a step of its switch has come.
    Stream(u16),
    /// The peer looks for the other end of a connection, or answers such a question.
    Meeting(Meeting),
    /// A longer ring of this stream would carry more.
    RingShort(u16),
    /// TCP was faster than this stream is.
    Slower(u16),
    /// Pages of a file are to be registered, or are used no more.
    Pages,
    /// A queue pair for direct transfers was lost, or one end wants one.
    DirectQp(Option<DirectQp>),
}

/// Work requests posted, or completions polled, at once.
pub const BATCH: usize = 16;

/// Mark of a [`What::Fence`] in [`News::Done`](sluice_fabric::verbs::queue::News::Done). Other
/// marks count messages, and a fence is none.
pub(crate) const FENCE: u64 = u64::MAX;

/// Looks in a row without a completion of posted work requests, after which the link is lost.
pub(crate) const TICKS: u8 = 2;
