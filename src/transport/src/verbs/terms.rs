//! Numbers that the parts of a link to another host share, and what they say to each other.

use sluice_fabric::verbs::queue::Shape;
use sluice_stream::Error;
use sluice_stream::wire::{Lane, Meeting};

/// Receives that each end of a link keeps posted: part of the protocol.
pub const RECEIVES: u16 = 64;
/// Messages that may be posted and not completed.
pub const SENDS: u16 = 64;
/// A queue pair.
pub const SHAPE: Shape = Shape {
    // Each message may be two requests; and a fence.
    sends: 2 * SENDS as u32 + 1,
    receives: RECEIVES as u32,
    inline: 64,
};

/// Completions that the queue must have room for: when a queue pair fails, all that is posted
/// completes, asked for or not.
pub(crate) const NEED: u32 = SHAPE.sends + SHAPE.receives;

/// Between two looks whether posted work comes to an end.
pub(crate) const TICK_NS: u64 = 1_000_000_000;

/// Why a link works no more; its streams go on on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The device refused, or reported this `ibv_wc_status`.
    Device(u32),
    /// The peer broke the rules.
    Peer(Error),
    /// The peer, its host or a device on the way has ended the connection.
    Gone,
    /// Posted work did not come to an end in time.
    Silent,
    /// A step of a switch did not come in time.
    Late,
}

impl From<Error> for Lost {
    fn from(error: Error) -> Self {
        Self::Peer(error)
    }
}

/// How a peer reaches this end's control slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Address of the first slot.
    pub place: u64,
    /// Their key.
    pub key: u32,
}

/// Left for the control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// This stream has something to do on TCP, or a step of its switch has come.
    Stream(u16),
    /// The peer looks for the other end of a connection, or answers.
    Meeting(Meeting),
    /// A queue pair for direct transfers is wanted, by the peer or by this end, or is lost.
    Lane(Option<Lane>),
}

/// Messages given to the device at once.
pub const BATCH: usize = 16;

/// [`News::Done`](sluice_fabric::verbs::queue::News::Done) of a [`What::Fence`], which is no
/// message.
pub(crate) const FENCE: u64 = u64::MAX;

/// So many looks that find posted work where it was, and the link is lost.
pub(crate) const TICKS: u8 = 2;
