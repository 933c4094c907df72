//! Where the bytes of a stream over verbs travel: on TCP, then on a link, then on TCP again.
//!
//! Guarantees, for two ends that keep to it, wherever the link is lost, and whichever leaves it
//! when: each direction goes on on TCP at exactly one position that both ends know; every byte
//! before it was received, every byte from there on is still kept; nothing but the program's bytes
//! and one [`Record`] is on TCP; and a peer that was killed is never taken for one that had no more
//! to say. A peer that lies hurts its own stream.
//!
//! Refuses to know: payload, sockets, queue pairs, clocks. Offsets go in, [`Action`]s and answers
//! come out. A call costs a few compares.
//!
//! # Primer
//!
//! Within a host two words changed by compare-and-swap demote a stream. Between hosts there is no
//! such word, and two ends that leave at once cannot agree over a link that may die: so **TCP
//! decides**, by one RECORD in each direction, the first bytes after the offset N at which that
//! direction left TCP. The difficulty is that a reader must know where N is: a record it does not
//! expect is data to it. So N is said on the link, and the steps of the switch give each end three
//! certainties, one after the other:
//!
//! | | first end | second end |
//! |---|---|---|
//! | my N is fixed; does the peer know it? Then I leave *without* a record | `Fixed` | `Answered` |
//! | it does, so I leave with a record; does it know that I know its N? | `Known` | `Known` |
//! | it does, so it leaves with a record: what I post cannot be lost unseen | `Open` | `Open` |
//!
//! ```text
//!   first end                                                second end
//!   Plain                                                    Plain
//!     │ fix(N1)                                                │
//!   Fixed ─────────── First{N1} ─────────────────────────► Asked
//!     │ leave, lost: Over                                      │ fix(N2)   refuse: Cancel, Over
//!   Known ◄────────── Second{N2} ────────────────────────  Answered
//!     │     ───────── Go ────────────────────────────────►     │      lost: Quit; Cancel: Over
//!   Open  ◄────────── Ready ─────────────────────────────  Known
//!     │     ───────── Open ──────────────────────────────► Open
//!     ╞═══════════════ bytes ══════════════════════════════════╡
//!
//!   Known, Open ── close ──► Ending ── own work complete ──► Said{FROM} ┐
//!       │                                                               ├ the peer's record ► Over
//!       ├───── goes on by TCP, or the link is lost ────────► Said{ASK}  ┘
//!       └───── the peer's record: answer FROM its `taken` ──────────────────────────────────► Over
//!   Quit ── the peer's first byte after N: a record (answered) or data ──► Over
//!   any ── a lie, or the end of TCP where a record is due ──► Dead
//! ```
//!
//! Once an end has said what it took, its program reads the link's bytes up to there and no
//! further, until the peer's record has come. That may name more, never less: an end that says FROM
//! M had seen all of its work complete, so bytes up to M have arrived. What the link brought beyond
//! is ignored, and comes by TCP.
//!
//! `docs/protocol.md` has the bytes, and what a lie brings;
//! `docs/decisions/007-records-at-known-places.md` why the steps are five.

mod transit;
mod wire;

pub use transit::Transit;
pub use wire::{Goes, Malformed, NONCE_LEN, Nonce, RECORD_LEN, Record, Step};

use crate::wire::Seq;

/// Which end fixes its N first. The rendezvous says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The one that begins.
    First,
    /// The one that answers.
    Second,
}

/// How an end leaves the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Leave {
    /// Both directions go on by TCP (demotion): what neither program has read comes again. Nobody
    /// reads the link's bytes meanwhile.
    Stay,
    /// What the programs have not read stays in their rings: a link was lost, or somebody may be
    /// reading now.
    Shut,
    /// As `Stay`, and somebody else reads TCP next (exec, passing, raw use).
    Hand,
    /// Nobody reads any more (close, exit). The peer sends no record back, which would meet a
    /// closed socket.
    Close,
}

impl Leave {
    /// Does the connection go on by TCP, so that what was not read comes again there?
    pub fn goes_on(self) -> bool {
        matches!(self, Self::Stay | Self::Hand)
    }
}

/// Where the program's next byte goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Out {
    /// To TCP: first what was given to the link from this position on, then the program's bytes.
    Tcp(Seq),
    /// To the link.
    Link,
    /// Nowhere yet: a write waits, or is told to come again.
    Held,
}

/// What the caller has to do, in this order, before it asks anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Action {
    /// Consent, with no thread in a kernel call on the socket: [`Transit::fix`]. Or
    /// [`Transit::refuse`].
    Fix,
    /// Send this on the link, in order with everything else.
    Tell(Step),
    /// Write this on TCP before any other byte.
    Write(Record),
    /// Report all that the link has delivered ([`Transit::on_received`]), then
    /// [`Transit::on_drained`].
    Drain,
    /// Reset the connection. What [`Transit::link_end`] allows is read first, then comes the error.
    Reset(Reason),
}

/// Why a connection was reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// TCP ended before the record that was due, or before bytes that the record promised.
    Killed,
    /// TCP itself failed.
    Tcp,
    /// Other bytes where the record was due, or a record that is none.
    Malformed,
    /// The peer goes on at a position that cannot be.
    From,
    /// The peer took less than it had said, or more than was sent.
    Taken,
    /// The peer's work was complete, but the bytes are not here: a device died.
    Missing,
    /// The switch was cut short, the peer's first bytes since could be the beginning of a record,
    /// and nothing followed.
    Undecided,
    /// The peer's record did not come in time for exec or passing, or bytes are here that only this
    /// process can read.
    Unclean,
}

/// What the bytes at N are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Head {
    /// Not known yet: leave them there.
    Wait,
    /// The record: remove its [`RECORD_LEN`] bytes.
    Record,
    /// The program's.
    Data,
}

/// A rule of the protocol, so that tests can show what breaks without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A FROM that was sent stands, whatever crosses it.
    FromStands,
    /// Bytes beyond what one said to have taken are kept, until the peer's record says what becomes
    /// of them.
    KeepBeyondTaken,
    /// After an ASK, bytes follow only the peer's record.
    AskWaits,
    /// An end whose N the peer may not know leaves without a record.
    NoRecordUnknown,
    /// An end that has left so still looks for a record at the peer's N.
    LookAtN,
    /// Nothing is posted before the peer is known to leave by record alone.
    PostWhenOpen,
    /// After its own record an end reads no further than that says, until the peer's has come.
    ReadToTaken,
    /// Without a record the end of TCP is a death.
    EndNeedsRecord,
    /// An end of TCP before the bytes that a record promised is a death.
    OwedComes,
    /// The end that hands the socket on has taken what was read, not what was received.
    HandSaysRead,
    /// The end that goes on by TCP asks what the peer has read, also on a link that works.
    LeaverAsks,
    /// FROM waits for the end's own work.
    FromWaits,
    /// TCP is clean only when the peer's record is out of it.
    CleanWaits,
    /// An end that has said what it took gives no more credit.
    CreditEnds,
    /// The whole record is looked at, however it was cut.
    WholeRecord,
    /// A close that is decided says that no record is wanted back.
    CloseSaysLast,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::FromStands,
        Self::KeepBeyondTaken,
        Self::AskWaits,
        Self::NoRecordUnknown,
        Self::LookAtN,
        Self::PostWhenOpen,
        Self::ReadToTaken,
        Self::EndNeedsRecord,
        Self::OwedComes,
        Self::HandSaysRead,
        Self::LeaverAsks,
        Self::FromWaits,
        Self::CleanWaits,
        Self::CreditEnds,
        Self::WholeRecord,
        Self::CloseSaysLast,
    ];
}
