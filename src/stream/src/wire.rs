//! Numbers of the protocol and the bytes of its control messages.
//!
//! Guarantees: a message that parses is possible by itself (its kind is known, reserved bits are zero, lengths are not empty, an
//! address range does not wrap, a phase is on the right side), and parsing what was emitted gives it back. Whether it is possible
//! *now* is for [`Sender`](crate::Sender) and [`Receiver`](crate::Receiver) to say.
//! Refuses to know: which stream a message belongs to (the immediate says it), how it travels, and in which memory it lay.
//! Within one host none of these bytes exist: there the words of shared memory carry the same numbers.

use core::fmt;

use crate::error::PeerFault;
use crate::record::Step;

/// A position in the stream of one direction: the number of bytes before it since the stream was made.
///
/// Arithmetic wraps, which at 100 GB/s takes five years; comparison does not look across the wrap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(u64);

impl Seq {
    /// Where every stream begins.
    pub const START: Self = Self(0);

    /// The position after `bytes` bytes.
    #[inline]
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The bytes before this position.
    #[inline]
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }

    /// The position `len` bytes on.
    #[inline]
    #[must_use]
    pub const fn plus(self, len: u32) -> Self {
        Self(self.0.wrapping_add(len as u64))
    }

    /// The bytes from `earlier` to here, or `None` if that is not earlier.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A run of transfers of one sort: even phases are direct, odd ones indirect. Phases never decrease.
///
/// A phase costs at least one transfer, so 64 bits do not run out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Phase(u64);

impl Phase {
    /// The phase in which every stream begins: direct, with nothing sent.
    pub const START: Self = Self(0);

    /// The phase numbered `number`.
    #[inline]
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }

    /// Whether bytes of this phase go straight to the reader's buffer.
    #[inline]
    #[must_use]
    pub const fn is_direct(self) -> bool {
        self.0 & 1 == 0
    }

    /// This phase if it is direct, else the next.
    #[inline]
    #[must_use]
    pub const fn direct(self) -> Self {
        Self(self.0.wrapping_add(self.0 & 1))
    }

    /// This phase if it is indirect, else the next.
    #[inline]
    #[must_use]
    pub const fn indirect(self) -> Self {
        Self(self.0 | 1)
    }
}

/// Ring bytes that the reader has copied out and the writer may fill again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Credit(u32);

impl Credit {
    /// Credit for `bytes` bytes.
    #[inline]
    #[must_use]
    pub const fn new(bytes: u32) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[inline]
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// The number of an ADVERT in its direction: 1, 2, 3 … without a gap. Zero is the one before the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdvertId(u64);

impl AdvertId {
    /// Before the first ADVERT.
    pub const NONE: Self = Self(0);

    /// The ADVERT numbered `number`.
    #[inline]
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }

    /// The one after it.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// What of it fits in an immediate. Enough: a write for the 256th ADVERT before the present one meets a key withdrawn long ago.
    #[inline]
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low eight bits are what is wanted"
    )]
    pub const fn tag(self) -> u8 {
        self.0 as u8
    }
}

/// A reader's buffer, lent to the writer for bytes beginning at `seq` and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advert {
    /// Its number.
    pub id: AdvertId,
    /// Where the buffer lies, in words of the provider. Bounds nothing here; `place + len` does not wrap.
    pub place: u64,
    /// The provider's key to `place`; zero where none is needed.
    pub key: u32,
    /// The most bytes that fit there. Never zero.
    pub len: u32,
    /// The position of the first byte the buffer is for: all before it have reached the program.
    pub seq: Seq,
    /// The direct phase that its first use begins or continues. Always even.
    pub phase: Phase,
    /// Whether the reader waits until the buffer is full, so that it may be used more than once.
    pub waitall: bool,
}

impl Advert {
    /// What is left after `len` bytes went in, or `None` if the reader is served.
    #[must_use]
    pub(crate) fn after(self, len: u32) -> Option<Self> {
        let rest = self.len.checked_sub(len)?;
        (self.waitall && rest > 0).then(|| Self {
            place: self.place.wrapping_add(u64::from(len)),
            len: rest,
            seq: self.seq.plus(len),
            ..self
        })
    }
}

/// What the reader has done with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Ring bytes freed since the previous one. May be zero, after a direct transfer.
    pub credit: Credit,
    /// All bytes before this have reached the program, by either way.
    pub seq: Seq,
}

/// The writer's first ring bytes after direct ones, which travel by another queue pair and may arrive later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The phase that begins. Always odd.
    pub phase: Phase,
    /// The position of its first ring byte: the end of the direct ones.
    pub seq: Seq,
}

/// A message that carries no bytes of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Reader to writer: a buffer is lent.
    Advert(Advert),
    /// Reader to writer: the ADVERT of this number, and all before it, are void.
    Revoke(Revoked),
    /// Reader to writer: ring bytes are free, direct bytes have landed.
    Ack(Ack),
    /// Writer to reader: the ring is full; return credit at the next byte.
    Blocked,
    /// Writer to reader, in order with ring bytes: where they go on.
    Turn(Turn),
    /// Either end, before any byte: a step of the switch.
    Switch(Step),
    /// Either end, of no stream yet: two ends of a connection look for each other.
    Meeting(Meeting),
    /// Either end: it has left the stream, and says nothing more of it.
    Closed,
    /// Either end, before the switch: its program reads TCP through it alone, so that no read waits there for what is on the link.
    Consent,
    /// Writer to reader: bytes have landed in the buffer of an ADVERT. They are the reader's if it has not taken the buffer back.
    Direct(Landed),
    /// Writer to reader, which leaves the link: the bytes from here on, that it has said to have landed, follow by the ring. The
    /// reader passes over what it has of them.
    Again(Seq),
    /// Of no stream: a queue pair for direct transfers is wanted.
    Lane(Lane),
}

/// Where a queue pair for direct transfers is to be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    /// The sender listens at this port of its address on the link; 0: the receiver is to.
    pub port: u16,
    /// What is said there, by whom was told it here; zeroes without a port.
    pub cookie: [u8; 16],
}

/// What ends with an ADVERT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revoked {
    /// Which one.
    pub id: AdvertId,
    /// All bytes before this the reader has.
    pub seq: Seq,
}

/// Bytes in the buffer of an ADVERT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landed {
    /// Whose.
    pub id: AdvertId,
    /// How many more. Never zero.
    pub len: u32,
}

/// An end of a new stream: its number there, and the ring that it lends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Berth {
    /// By which the peer is to name the stream.
    pub stream: u16,
    /// Where the ring lies.
    pub place: u64,
    /// By which key it is written to.
    pub key: u32,
    /// Its bytes, a power of two.
    pub len: u32,
}

/// That an end holds the connection: what only the two of them have seen makes this of it.
pub type Proof = [u8; 16];

/// What is said of a connection that has no stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meeting {
    /// Whoever holds the other end of this connection: here is mine.
    Ask {
        /// The connection, by a number that both ends make of its addresses.
        connection: u64,
        /// The asker's end of the stream.
        berth: Berth,
        /// How much of what the asker has written, and read, its proof covers.
        known: [u8; 2],
        /// The asker's.
        proof: Proof,
    },
    /// Here is the other.
    Grant {
        /// As asked.
        connection: u64,
        /// The answerer's end of the stream.
        berth: Berth,
        /// The answerer's.
        proof: Proof,
    },
    /// There is none, for this reason.
    Deny {
        /// As asked.
        connection: u64,
        /// A number that both know.
        reason: u16,
    },
}

/// Bytes of a control message: six little-endian words of eight, whatever its kind, so that a ring of them has fixed slots.
pub const CONTROL_LEN: usize = 48;

const KIND_ADVERT: u64 = 1;
const KIND_REVOKE: u64 = 2;
const KIND_ACK: u64 = 3;
const KIND_BLOCKED: u64 = 4;
const KIND_TURN: u64 = 5;
const KIND_SWITCH: u64 = 6;
const KIND_ASK: u64 = 7;
const KIND_GRANT: u64 = 8;
const KIND_DENY: u64 = 9;
const KIND_CLOSED: u64 = 10;
const KIND_CONSENT: u64 = 11;
const KIND_DIRECT: u64 = 12;
const KIND_AGAIN: u64 = 13;
const KIND_LANE: u64 = 14;
/// Bit 8 of the first word: the ADVERT's reader waits for all of it.
const FLAG_WAITALL: u64 = 1 << 8;

impl Control {
    /// The message as bytes. Fields that its kind lacks are zero.
    #[must_use]
    pub fn emit(&self) -> [u8; CONTROL_LEN] {
        let long = |value: u32| u64::from(value) << 32;
        let words = match *self {
            Self::Advert(a) => {
                let flags = if a.waitall { FLAG_WAITALL } else { 0 };
                [
                    KIND_ADVERT | flags | long(a.len),
                    a.id.0,
                    a.seq.0,
                    a.phase.0,
                    a.place,
                    u64::from(a.key),
                ]
            }
            Self::Revoke(Revoked { id, seq }) => [KIND_REVOKE, id.0, seq.0, 0, 0, 0],
            Self::Ack(ack) => [KIND_ACK | long(ack.credit.0), 0, ack.seq.0, 0, 0, 0],
            Self::Blocked => [KIND_BLOCKED, 0, 0, 0, 0, 0],
            Self::Turn(turn) => [KIND_TURN, 0, turn.seq.0, turn.phase.0, 0, 0],
            Self::Switch(step) => {
                let (number, offset) = step.emit();
                [KIND_SWITCH | long(number), offset, 0, 0, 0, 0]
            }
            Self::Meeting(meeting) => meeting.emit(),
            Self::Closed => [KIND_CLOSED, 0, 0, 0, 0, 0],
            Self::Consent => [KIND_CONSENT, 0, 0, 0, 0, 0],
            Self::Direct(Landed { id, len }) => [KIND_DIRECT | long(len), id.0, 0, 0, 0, 0],
            Self::Again(seq) => [KIND_AGAIN, 0, seq.0, 0, 0, 0],
            Self::Lane(Lane { port, cookie }) => {
                let (low, high) = halves(&cookie);
                [KIND_LANE | long(u32::from(port)), low, high, 0, 0, 0]
            }
        };
        let mut bytes = [0; CONTROL_LEN];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The message in `bytes`, which must be a private copy: the peer can write to the original at any moment.
    ///
    /// # Errors
    /// [`PeerFault::Malformed`], [`PeerFault::AdvertRange`], [`PeerFault::AdvertPhase`] or [`PeerFault::TurnPhase`].
    pub fn parse(bytes: &[u8; CONTROL_LEN]) -> Result<Self, PeerFault> {
        let mut words = bytes.chunks_exact(8).map(|word| {
            word.iter()
                .rev()
                .fold(0, |value, byte| value << 8 | u64::from(*byte))
        });
        let mut word = || words.next().unwrap_or(0);
        let words = [word(), word(), word(), word(), word(), word()];
        let [head, id, seq, phase, place, key] = words;
        let value = u32::try_from(head >> 32).map_err(|_| PeerFault::Malformed)?;
        let key = u32::try_from(key);
        let key = match head & 0xff {
            KIND_ASK | KIND_GRANT => 0,
            _ => key.map_err(|_| PeerFault::Malformed)?,
        };
        let message = match head & 0xff {
            KIND_ADVERT => Self::Advert(Advert {
                id: AdvertId(id),
                place,
                key,
                len: value,
                seq: Seq(seq),
                phase: Phase(phase),
                waitall: head & FLAG_WAITALL != 0,
            }),
            KIND_REVOKE => Self::Revoke(Revoked {
                id: AdvertId(id),
                seq: Seq(seq),
            }),
            KIND_ACK => Self::Ack(Ack {
                credit: Credit(value),
                seq: Seq(seq),
            }),
            KIND_BLOCKED => Self::Blocked,
            KIND_TURN => Self::Turn(Turn {
                phase: Phase(phase),
                seq: Seq(seq),
            }),
            KIND_SWITCH => Self::Switch(Step::parse(value, id).ok_or(PeerFault::Malformed)?),
            KIND_ASK | KIND_GRANT | KIND_DENY => Self::Meeting(Meeting::parse(words)?),
            KIND_CLOSED => Self::Closed,
            KIND_CONSENT => Self::Consent,
            KIND_DIRECT => Self::Direct(Landed {
                id: AdvertId(id),
                len: value,
            }),
            KIND_AGAIN => Self::Again(Seq(seq)),
            KIND_LANE => Self::Lane(Lane {
                port: u16::try_from(value).map_err(|_| PeerFault::Malformed)?,
                cookie: (u128::from(seq) << 64 | u128::from(id)).to_le_bytes(),
            }),
            _ => return Err(PeerFault::Malformed),
        };
        // One message has one spelling, so whatever its kind has no use for must be zero.
        if message.emit() != *bytes {
            return Err(PeerFault::Malformed);
        }
        match message {
            Self::Advert(a) if a.len == 0 || a.place.checked_add(u64::from(a.len)).is_none() => {
                Err(PeerFault::AdvertRange)
            }
            Self::Advert(a) if !a.phase.is_direct() => Err(PeerFault::AdvertPhase),
            Self::Turn(turn) if turn.phase.is_direct() => Err(PeerFault::TurnPhase),
            Self::Direct(landed) if landed.len == 0 => Err(PeerFault::DirectRange),
            _ => Ok(message),
        }
    }
}

/// Sixteen bytes as two words.
#[allow(clippy::cast_possible_truncation, reason = "its low half is wanted")]
const fn halves(bytes: &[u8; 16]) -> (u64, u64) {
    let number = u128::from_le_bytes(*bytes);
    (number as u64, (number >> 64) as u64)
}

impl Meeting {
    fn emit(&self) -> [u64; 6] {
        let with = |kind, connection, berth: &Berth, [a, b]: [u8; 2], proof: &Proof| {
            let (low, high) = halves(proof);
            let sizes = u64::from(berth.len.trailing_zeros()) << 8;
            let known = u64::from(a) << 16 | u64::from(b) << 24;
            let numbers = u64::from(berth.key) | u64::from(berth.stream) << 32;
            [
                kind | sizes | known,
                connection,
                berth.place,
                numbers,
                low,
                high,
            ]
        };
        match self {
            Self::Ask {
                connection,
                berth,
                known,
                proof,
            } => with(KIND_ASK, *connection, berth, *known, proof),
            Self::Grant {
                connection,
                berth,
                proof,
            } => with(KIND_GRANT, *connection, berth, [0; 2], proof),
            Self::Deny { connection, reason } => [
                KIND_DENY | u64::from(*reason) << 32,
                *connection,
                0,
                0,
                0,
                0,
            ],
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "parts of words")]
    fn parse([head, connection, place, numbers, low, high]: [u64; 6]) -> Result<Self, PeerFault> {
        if head & 0xff == KIND_DENY {
            let reason = (head >> 32) as u16;
            return Ok(Self::Deny { connection, reason });
        }
        let len = 1u32.checked_shl((head >> 8) as u8 as u32);
        let berth = Berth {
            stream: (numbers >> 32) as u16,
            place,
            key: numbers as u32,
            len: len.ok_or(PeerFault::Malformed)?,
        };
        let proof = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        Ok(if head & 0xff == KIND_ASK {
            Self::Ask {
                connection,
                berth,
                known: [(head >> 16) as u8, (head >> 24) as u8],
                proof,
            }
        } else {
            Self::Grant {
                connection,
                berth,
                proof,
            }
        })
    }
}

/// What a write with immediate has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Bytes in the stream's ring; the completion says how many.
    Ring,
    /// Bytes in the buffer of the ADVERT with this tag; the completion says how many.
    Direct(u8),
    /// A [`Control`] message in the link's control ring.
    Control,
    /// Nothing but the count: credit for receives.
    Count,
}

/// The 32 bits of an immediate: whose, what, and how many messages were taken. The length is the completion's to tell.
///
/// ```text
///   31             22 21           14 13  12 11                0
///  ┌─────────────────┬───────────────┬──────┬──────────────────┐
///  │ count           │ tag (Direct)  │ kind │ stream           │
///  └─────────────────┴───────────────┴──────┴──────────────────┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Immediate {
    stream: u16,
    notice: Notice,
    count: u16,
}

impl Immediate {
    /// The most streams of one link: what 12 bits can number.
    pub const STREAM_COUNT: u16 = 1 << 12;
    /// Counts of messages taken are modulo this: see [`Receives`](crate::receives::Receives).
    pub const COUNTS: u16 = 1 << 10;

    /// The immediate for `notice` of `stream`, with a count, or `None` if either has no room in it.
    #[must_use]
    pub const fn new(stream: u16, notice: Notice, count: u16) -> Option<Self> {
        if stream < Self::STREAM_COUNT && count < Self::COUNTS {
            Some(Self {
                stream,
                notice,
                count,
            })
        } else {
            None
        }
    }

    /// The stream's number on its link.
    #[must_use]
    pub const fn stream(self) -> u16 {
        self.stream
    }

    /// What has arrived.
    #[must_use]
    pub const fn notice(self) -> Notice {
        self.notice
    }

    /// Messages that the sender has taken so far, modulo [`COUNTS`](Self::COUNTS).
    #[must_use]
    pub const fn count(self) -> u16 {
        self.count
    }

    /// As the 32 bits, in the machine's order; verbs wants them in network order.
    #[must_use]
    pub const fn emit(self) -> u32 {
        let (kind, tag) = match self.notice {
            Notice::Ring => (0, 0),
            Notice::Direct(tag) => (1, tag),
            Notice::Control => (2, 0),
            Notice::Count => (3, 0),
        };
        (self.count as u32) << 22 | (tag as u32) << 14 | kind << 12 | self.stream as u32
    }

    /// From the 32 bits.
    ///
    /// # Errors
    /// [`PeerFault::Malformed`] if it has a tag, or a stream, and should not.
    pub const fn parse(bits: u32) -> Result<Self, PeerFault> {
        let stream = (bits & 0xfff) as u16;
        let tag = (bits >> 14 & 0xff) as u8;
        let notice = match (bits >> 12 & 3, tag, stream) {
            (0, 0, _) => Notice::Ring,
            (1, tag, _) => Notice::Direct(tag),
            (2, 0, _) => Notice::Control,
            (3, 0, 0) => Notice::Count,
            _ => return Err(PeerFault::Malformed),
        };
        let count = (bits >> 22) as u16;
        Ok(Self {
            stream,
            notice,
            count,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn advert() -> Advert {
        Advert {
            id: AdvertId(7),
            place: 0x1000,
            key: 0xabcd,
            len: 4096,
            seq: Seq(99),
            phase: Phase(4),
            waitall: true,
        }
    }

    const BERTH: Berth = Berth {
        stream: 4095,
        place: 0x7fff_1234_5678_9000,
        key: 0xffff_fffe,
        len: 1 << 22,
    };

    #[test]
    fn layout_is_fixed() {
        let bytes = Control::Advert(advert()).emit();
        assert_eq!(bytes[..8], [1, 1, 0, 0, 0, 0x10, 0, 0]);
        assert_eq!(bytes[8..16], 7u64.to_le_bytes());
        assert_eq!(bytes[16..24], 99u64.to_le_bytes());
        assert_eq!(bytes[24..32], 4u64.to_le_bytes());
        assert_eq!(bytes[32..40], 0x1000u64.to_le_bytes());
        assert_eq!(bytes[40..], 0xabcdu64.to_le_bytes());
    }

    #[test]
    fn every_kind_survives() {
        for message in [
            Control::Advert(advert()),
            Control::Advert(Advert {
                waitall: false,
                ..advert()
            }),
            Control::Revoke(Revoked {
                id: AdvertId(u64::MAX),
                seq: Seq(7),
            }),
            Control::Ack(Ack {
                credit: Credit(u32::MAX),
                seq: Seq(1),
            }),
            Control::Blocked,
            Control::Switch(Step::First(1 << 40)),
            Control::Switch(Step::Cancel),
            Control::Closed,
            Control::Consent,
            Control::Direct(Landed {
                id: AdvertId(9),
                len: 1,
            }),
            Control::Again(Seq(1 << 50)),
            Control::Lane(Lane {
                port: 65535,
                cookie: *b"0123456789abcdef",
            }),
            Control::Meeting(Meeting::Ask {
                connection: u64::MAX - 1,
                berth: BERTH,
                known: [16, 3],
                proof: [0xa5; 16],
            }),
            Control::Meeting(Meeting::Grant {
                connection: 7,
                berth: BERTH,
                proof: *b"0123456789abcdef",
            }),
            Control::Meeting(Meeting::Deny {
                connection: 8,
                reason: 50,
            }),
            Control::Turn(Turn {
                phase: Phase(5),
                seq: Seq(u64::MAX),
            }),
        ] {
            assert_eq!(Control::parse(&message.emit()), Ok(message));
        }
    }

    #[test]
    fn impossible_messages_are_refused() {
        let refused = |message: Control| Control::parse(&message.emit());
        let lie = Advert { len: 0, ..advert() };
        assert_eq!(refused(Control::Advert(lie)), Err(PeerFault::AdvertRange));
        let lie = Advert {
            place: u64::MAX - 4000,
            ..advert()
        };
        assert_eq!(refused(Control::Advert(lie)), Err(PeerFault::AdvertRange));
        let lie = Advert {
            phase: Phase(3),
            ..advert()
        };
        assert_eq!(refused(Control::Advert(lie)), Err(PeerFault::AdvertPhase));
        let lie = Turn {
            phase: Phase(4),
            seq: Seq(1),
        };
        assert_eq!(refused(Control::Turn(lie)), Err(PeerFault::TurnPhase));
        let beyond = Control::Meeting(Meeting::Deny {
            connection: 8,
            reason: 50,
        });
        for at in [1, 2, 6, 16, 47] {
            let mut bytes = beyond.emit();
            bytes[at] = 1;
            assert_eq!(Control::parse(&bytes), Err(PeerFault::Malformed), "{at}");
        }
        for kind in [0, 15, 255] {
            let mut bytes = Control::Blocked.emit();
            bytes[0] = kind;
            assert_eq!(Control::parse(&bytes), Err(PeerFault::Malformed));
        }
    }

    #[test]
    fn no_reserved_byte_goes_unseen() {
        for at in 1..CONTROL_LEN {
            let mut bytes = Control::Blocked.emit();
            bytes[at] = 1;
            assert_eq!(
                Control::parse(&bytes),
                Err(PeerFault::Malformed),
                "byte {at}"
            );
        }
    }

    #[test]
    fn an_advert_shrinks_only_for_waitall() {
        let rest = advert().after(96).unwrap();
        assert_eq!((rest.place, rest.len, rest.seq), (0x1060, 4000, Seq(195)));
        assert_eq!(advert().after(4096), None);
        assert_eq!(advert().after(4097), None);
        assert_eq!(
            Advert {
                waitall: false,
                ..advert()
            }
            .after(1),
            None
        );
    }

    #[test]
    fn phases_alternate() {
        let start = Phase::START;
        assert_eq!(start.direct(), start);
        assert_eq!(start.indirect(), Phase(1));
        assert_eq!(start.indirect().indirect(), Phase(1));
        assert_eq!(start.indirect().direct(), Phase(2));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), CONTROL_LEN), kind in 0u8..12) {
            let mut bytes: [u8; CONTROL_LEN] = bytes.try_into().unwrap();
            bytes[0] = kind;
            if let Ok(message) = Control::parse(&bytes) {
                prop_assert_eq!(message.emit(), bytes);
            }
        }

        #[test]
        fn any_immediate_parses_or_is_refused(bits in any::<u32>()) {
            if let Ok(immediate) = Immediate::parse(bits) {
                prop_assert_eq!(immediate.emit(), bits);
                let again = Immediate::new(immediate.stream(), immediate.notice(), immediate.count());
                prop_assert_eq!(again, Some(immediate));
            }
        }
    }

    #[test]
    fn immediates_have_room_for_their_streams() {
        assert_eq!(
            Immediate::new(Immediate::STREAM_COUNT, Notice::Ring, 0),
            None
        );
        assert_eq!(Immediate::new(0, Notice::Ring, Immediate::COUNTS), None);
        let last = Immediate::new(
            Immediate::STREAM_COUNT - 1,
            Notice::Direct(0xfe),
            Immediate::COUNTS - 1,
        )
        .unwrap();
        assert_eq!(last.emit(), 0xffff_9fff);
        assert_eq!(Immediate::parse(last.emit()), Ok(last));
    }
}
