//! Numbers of the protocol and the bytes of its control messages.
//!
//! Guarantees: a message that parses is possible by itself (its kind is known, reserved bits are
//! zero, lengths are not empty, an address range does not wrap, a phase is on the right side), and
//! parsing what was emitted gives it back. Whether it is possible *now* is for
//! [`Sender`](crate::Sender) and [`Receiver`](crate::Receiver) to say. Refuses to know: which
//! stream a message belongs to (the immediate says it), how it travels, and in which memory it lay.
//! Within one host none of these bytes exist: there the words of shared memory carry the same
//! numbers.

mod control;

use core::fmt;

use crate::error::PeerFault;
use crate::record::Step;
pub use control::{Berth, CONTROL_LEN, Control, DirectQp, Meeting, Proof, Revoked};

/// A position in the stream of one direction: the number of bytes before it since the stream was
/// made.
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

/// A run of transfers of one sort: even phases are direct, odd ones indirect. Phases never
/// decrease.
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

/// The number of an ADVERT in its direction: 1, 2, 3 … without a gap. Zero is the one before the
/// first.
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

    /// What of it fits in an immediate. Enough: a write for the 256th ADVERT before the present one
    /// meets a key withdrawn long ago.
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
    /// Where the buffer lies, in words of the provider. Bounds nothing here; `place + len` does not
    /// wrap.
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

/// The writer's first ring bytes after direct ones, which travel by another queue pair and may
/// arrive later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The phase that begins. Always odd.
    pub phase: Phase,
    /// The position of its first ring byte: the end of the direct ones.
    pub seq: Seq,
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

/// The 32 bits of an immediate: whose, what, and how many messages were taken. The length is the
/// completion's to tell.
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
        let bytes = Control::Advert(advert(), 0x309).emit();
        assert_eq!(bytes[..8], [1, 1, 9, 3, 0, 0x10, 0, 0]);
        assert_eq!(bytes[8..16], 7u64.to_le_bytes());
        assert_eq!(bytes[16..24], 99u64.to_le_bytes());
        assert_eq!(bytes[24..32], 4u64.to_le_bytes());
        assert_eq!(bytes[32..40], 0x1000u64.to_le_bytes());
        assert_eq!(bytes[40..], 0xabcdu64.to_le_bytes());
    }

    #[test]
    fn every_kind_survives() {
        for message in [
            Control::Advert(advert(), Immediate::COUNTS - 1),
            Control::Advert(
                Advert {
                    waitall: false,
                    ..advert()
                },
                0,
            ),
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
            Control::Noticed(u16::MAX),
            Control::Again(Seq(1 << 50)),
            Control::Return(AdvertId(u64::MAX)),
            Control::DirectQp(DirectQp {
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
        assert_eq!(
            refused(Control::Advert(lie, 0)),
            Err(PeerFault::AdvertRange)
        );
        let lie = Advert {
            place: u64::MAX - 4000,
            ..advert()
        };
        assert_eq!(
            refused(Control::Advert(lie, 0)),
            Err(PeerFault::AdvertRange)
        );
        let lie = Advert {
            phase: Phase(3),
            ..advert()
        };
        assert_eq!(
            refused(Control::Advert(lie, 0)),
            Err(PeerFault::AdvertPhase)
        );
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
        for kind in [0, 16, 255] {
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
        fn any_bytes_parse_or_are_refused(
            bytes in proptest::collection::vec(any::<u8>(), CONTROL_LEN),
            kind in 0u8..16,
        ) {
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
                let (notice, count) = (immediate.notice(), immediate.count());
                let again = Immediate::new(immediate.stream(), notice, count);
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
