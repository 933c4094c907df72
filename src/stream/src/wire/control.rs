//! Messages that carry no bytes of a stream, as values and as the bytes of a slot of the control
//! ring.

use super::*;

/// A message that carries no bytes of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Reader to writer: a buffer is lent, in this [use](Immediate::COUNTS) of the stream's number:
    /// the word of each transfer repeats it, so that a late one is not taken for the next stream's.
    Advert(Advert, u16),
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
    /// Either end, before the switch: its program reads TCP through it alone, so that no read waits
    /// there for what is on the link.
    Consent,
    /// Writer to reader, which leaves the link: the bytes from here on, which have gone directly,
    /// follow by the ring. The reader passes over what it has of them.
    Again(Seq),
    /// Writer to reader: the queue pair for direct transfers was lost with some for the buffer of
    /// this ADVERT. The reader is to revoke it, and so to say what it has.
    Return(AdvertId),
    /// Of no stream: so many direct transfers have come by the queue pair for them, modulo 2^16.
    Noticed(u16),
    /// Of no stream: a queue pair for direct transfers is wanted.
    DirectQp(DirectQp),
}

/// Where a queue pair for direct transfers is to be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectQp {
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
    /// To the holder of the other end of this connection: here is mine.
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

/// Bytes of a control message: six little-endian words of eight, whatever its kind, so that a ring
/// of them has fixed slots.
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
const KIND_NOTICED: u64 = 12;
const KIND_AGAIN: u64 = 13;
const KIND_DIRECT_QP: u64 = 14;
const KIND_RETURN: u64 = 15;
/// Bit 8 of the first word: the ADVERT's reader waits for all of it.
const FLAG_WAITALL: u64 = 1 << 8;

impl Control {
    /// The message as bytes. Fields that its kind lacks are zero.
    #[must_use]
    pub fn emit(&self) -> [u8; CONTROL_LEN] {
        let long = |value: u32| u64::from(value) << 32;
        let words = match *self {
            Self::Advert(a, times) => {
                let flags = if a.waitall { FLAG_WAITALL } else { 0 };
                [
                    KIND_ADVERT | flags | u64::from(times) << 16 | long(a.len),
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
            Self::Noticed(count) => [KIND_NOTICED | long(u32::from(count)), 0, 0, 0, 0, 0],
            Self::Again(seq) => [KIND_AGAIN, 0, seq.0, 0, 0, 0],
            Self::Return(id) => [KIND_RETURN, id.0, 0, 0, 0, 0],
            Self::DirectQp(DirectQp { port, cookie }) => {
                let (low, high) = halves(&cookie);
                [KIND_DIRECT_QP | long(u32::from(port)), low, high, 0, 0, 0]
            }
        };
        let mut bytes = [0; CONTROL_LEN];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The message in `bytes`, which must be a private copy: the peer can write to the original at
    /// any moment.
    ///
    /// # Errors
    /// [`PeerFault::Malformed`], [`PeerFault::AdvertRange`], [`PeerFault::AdvertPhase`] or
    /// [`PeerFault::TurnPhase`].
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
            KIND_ADVERT => {
                let advert = Advert {
                    id: AdvertId(id),
                    place,
                    key,
                    len: value,
                    seq: Seq(seq),
                    phase: Phase(phase),
                    waitall: head & FLAG_WAITALL != 0,
                };
                Self::Advert(advert, (head >> 16) as u16 % Immediate::COUNTS)
            }
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
            KIND_NOTICED => Self::Noticed(u16::try_from(value).map_err(|_| PeerFault::Malformed)?),
            KIND_AGAIN => Self::Again(Seq(seq)),
            KIND_RETURN => Self::Return(AdvertId(id)),
            KIND_DIRECT_QP => Self::DirectQp(DirectQp {
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
            Self::Advert(a, _) if a.len == 0 || a.place.checked_add(u64::from(a.len)).is_none() => {
                Err(PeerFault::AdvertRange)
            }
            Self::Advert(a, _) if !a.phase.is_direct() => Err(PeerFault::AdvertPhase),
            Self::Turn(turn) if turn.phase.is_direct() => Err(PeerFault::TurnPhase),
            // An asker for one has no secret yet.
            Self::DirectQp(DirectQp { port: 0, cookie }) if cookie != [0; 16] => {
                Err(PeerFault::Malformed)
            }
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
