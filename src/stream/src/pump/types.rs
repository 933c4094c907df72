//! Types that the pump and its caller exchange.

use crate::config::Mode;
use crate::record::{Nonce, Role};
use crate::wire::{CONTROL_LEN, DirectQp, Meeting, Seq};

/// The terms of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Receives that this end keeps posted, and so many slots of [`CONTROL_LEN`] bytes it lends for
    /// control messages.
    pub ours: u16,
    /// The same of the peer.
    pub theirs: u16,
    /// Messages that may be posted and not completed at once.
    pub sends: u16,
    /// Bytes of one message at most.
    pub message_len: u32,
    /// Which transfers this end makes. The peer has its own mind; [`Mode::Indirect`] where it knows
    /// of no direct ones.
    pub mode: Mode,
    /// Bytes from which on a direct transfer is worth it.
    pub direct_min: u32,
    /// A completion tells nothing of the peer's end: before an end leaves a read must come back
    /// from there ([`What::Fence`]).
    pub proves: bool,
}

/// Memory that the peer has lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// Its address there.
    pub place: u64,
    /// By which key it is written to.
    pub key: u32,
    /// Its bytes: a power of two for a ring.
    pub len: u32,
}

/// How a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Which end fixes its N first.
    pub role: Role,
    /// The stream's secret.
    pub nonce: Nonce,
    /// By which number the peer knows it: each end numbers its streams itself.
    pub theirs: u16,
    /// Bytes of the peer's that the program has read from TCP.
    pub tcp_read: u64,
    /// The ring that this end has lent to the peer, in bytes.
    pub ring_len: u32,
    /// The staging ring, in which the program's bytes lie until they are credited.
    pub staging_len: u32,
    /// The ring that the peer has lent.
    pub lent: Lent,
}

/// What to post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Bytes of a stream, that lie together in the staging ring and in the peer's.
    Bytes {
        /// Whose.
        stream: u16,
        /// Position of the first; it lies in the staging ring at this modulo its length.
        from: Seq,
        /// How many.
        len: u32,
        /// Where they go in the peer's memory, and the key.
        to: (u64, u32),
    },
    /// A control message, to be written into this slot of the peer's control ring.
    Control {
        /// Below [`Terms::theirs`].
        slot: u16,
        /// What to write there.
        bytes: [u8; CONTROL_LEN],
    },
    /// Bytes of a stream for the buffer that its reader has lent, by the queue pair of direct
    /// transfers, with their word, of which the other end tells [`Pump::on_direct`]. That they are
    /// complete is told by [`Pump::on_direct_done`].
    ///
    /// [`Pump::on_direct`]: super::Pump::on_direct
    /// [`Pump::on_direct_done`]: super::Pump::on_direct_done
    Direct {
        /// Whose.
        stream: u16,
        /// Position of the first; as with [`What::Bytes`].
        from: Seq,
        /// How many.
        len: u32,
        /// Where they go in the peer's memory, and the key.
        to: (u64, u32),
    },
    /// No bytes: the word alone.
    Count,
    /// A read of anything of the peer's, after all that was posted: no message, and no word. Its
    /// end is told by [`Pump::on_fenced`](super::Pump::on_fenced).
    Fence,
}

/// A message: what, and the immediate that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// What to post.
    pub what: What,
    /// The immediate.
    pub word: u32,
}

/// What a message that came means for the stream that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Came {
    /// The program can read up to here.
    Bytes(u16, Seq),
    /// Bytes up to here have come into the buffer that the program has lent
    /// ([`Pump::landed`](super::Pump::landed)).
    Direct(u16, Seq),
    /// The buffer that the program has lent is to be taken back
    /// ([`Pump::revoke`](super::Pump::revoke)).
    Return(u16),
    /// The staging ring is free up to [`Pump::kept`](super::Pump::kept).
    Credit(u16),
    /// A step of the switch, to be taken by [`Pump::step`](super::Pump::step).
    Step(u16),
    /// The peer looks for the other end of a connection, or answers.
    Meeting(Meeting),
    /// The peer wants a queue pair for direct transfers.
    DirectQp(DirectQp),
    /// Both ends have left the stream: its number is free.
    Free(u16),
    /// Nothing to be done.
    Nothing,
}

/// What became of a step that had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Stepped {
    /// There is none.
    None,
    /// Too much of TCP before it is unread: it waits.
    Far,
    /// It was taken; perhaps there is another.
    Taken,
}
