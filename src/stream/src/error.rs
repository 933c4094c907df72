//! What can go wrong in the protocol, by the end that is to blame.
//!
//! Nothing else can: there is no I/O here that could fail, and a full ring or a missing ADVERT is
//! an action, not an error.

use thiserror::Error;

/// A refused event. Its stream is to be demoted, which works as ever: every number stays in bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Error {
    /// The other end said something that an honest one never says.
    #[error("the peer misbehaved: {0}")]
    Peer(#[from] PeerFault),
    /// The provider on this side drove the machine wrongly.
    #[error("a bug on this side: {0}")]
    Bug(#[from] Bug),
}

/// How the peer lied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PeerFault {
    /// A control message that is not one: unknown kind, reserved bits set, a field out of its
    /// range.
    #[error("malformed control message")]
    Malformed,
    /// More bytes than the ring has room for, or none at all.
    #[error("bytes beyond the ring")]
    RingOverrun,
    /// Credit for bytes that were never sent.
    #[error("more credit than the ring has bytes")]
    CreditTooLarge,
    /// An acknowledgement that goes back, or covers bytes never sent.
    #[error("acknowledged sequence out of range")]
    AckSeq,
    /// ADVERTs are numbered without a gap; this one is not the next.
    #[error("ADVERT out of order")]
    AdvertId,
    /// An ADVERT without room for a byte, or reaching beyond the address space.
    #[error("ADVERT of no possible buffer")]
    AdvertRange,
    /// An ADVERT whose reader claims bytes that were never sent.
    #[error("ADVERT ahead of the stream")]
    AdvertAhead,
    /// An ADVERT of an odd phase, of one already left, or of one not yet reached.
    #[error("ADVERT of an impossible phase")]
    AdvertPhase,
    /// Revocations go forward; this one does not.
    #[error("revocation out of order")]
    RevokeId,
    /// Bytes claimed as taken from an offer that is not there, or more than it holds.
    #[error("more taken than offered")]
    Taken,
    /// The place where the peer ended the link is outside what it may have read.
    #[error("seized outside the sent bytes")]
    SeizedRange,
    /// A direct transfer into an ADVERT that the same peer had already made stale, or one never
    /// made.
    #[error("direct transfer without a fresh ADVERT")]
    DirectUnasked,
    /// A direct transfer longer than its ADVERT, or empty.
    #[error("direct transfer beyond its ADVERT")]
    DirectRange,
    /// A TURN of another phase than the next, or while ring bytes were still under way.
    #[error("TURN in an impossible phase")]
    TurnPhase,
    /// A TURN to a sequence that no direct transfer can have reached.
    #[error("TURN to an impossible sequence")]
    TurnSeq,
    /// Ring bytes after direct ones, without the TURN that places them.
    #[error("ring bytes without their TURN")]
    TurnMissing,
    /// An offer of nothing, of bytes not next in the stream, or against an ADVERT never made.
    #[error("impossible offer")]
    Offer,
    /// A step of the switch that is not the next, or bytes before it.
    #[error("the switch out of order")]
    Step,
    /// More messages than receives were posted for, or a count of taken ones that cannot be.
    #[error("messages beyond the credit of receives")]
    Receives,
    /// A message of the other kind of provider.
    #[error("message of another provider")]
    WrongProvider,
}

/// How the provider on this side erred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Bug {
    /// A ring of no byte, or of more than [`MAX_RING_LEN`](crate::MAX_RING_LEN).
    #[error("no possible ring size")]
    RingLen,
    /// More copied out of the ring than could be read there.
    #[error("more copied than was readable")]
    Copied,
    /// An offer withdrawn or taken that was not there.
    #[error("no such offer")]
    NoOffer,
    /// Bytes written, completed or fixed where the state of the stream does not allow it.
    #[error("not in this state of the switch")]
    Switch,
    /// The end of a stream was asked for before it was sealed.
    #[error("not sealed yet")]
    NotSealed,
}
