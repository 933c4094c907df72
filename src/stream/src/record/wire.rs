//! The bytes of a RECORD, and the steps of the switch.
//!
//! Guarantees: parsing is total, what was emitted parses to itself, and one message has one
//! spelling. Whether a message is possible *now* is for [`Transit`](super::Transit) to say.

use core::fmt;

use crate::wire::Seq;

/// Bytes of the nonce.
pub const NONCE_LEN: usize = 16;

/// Bytes of a RECORD on TCP: the nonce, then three little-endian words of eight.
pub const RECORD_LEN: usize = 40;

const KIND_FROM: u64 = 1;
const KIND_ASK: u64 = 2;
/// Bit 8 of the first word: the sender reads no more, and wants no record back.
const FLAG_LAST: u64 = 1 << 8;
/// Bit 9, of an ASK: the sender's link works.
const FLAG_LIVES: u64 = 1 << 9;

/// The secret by which the two ends of one stream know each other's record. Made anew for every
/// stream by a source that the peer's *programs* cannot guess: they choose the bytes it must not be
/// confused with.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce([u8; NONCE_LEN]);

impl Nonce {
    /// The nonce of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; NONCE_LEN]) -> Self {
        Self(bytes)
    }

    /// How many of `head`'s first bytes are the nonce's.
    #[must_use]
    pub fn matches(&self, head: &[u8]) -> usize {
        let pairs = self.0.iter().zip(head);
        pairs.take_while(|(ours, theirs)| ours == theirs).count()
    }
}

impl fmt::Debug for Nonce {
    /// Says nothing: it is a secret, and this goes to logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce")
    }
}

/// Where the sender's TCP goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Goes {
    /// At this position, whatever the other end says.
    From {
        /// The position.
        from: Seq,
        /// Bytes from there on that the program has already given, so that an end of TCP before
        /// them is a death.
        owed: u32,
    },
    /// At the other end's `taken`, which is what that has read. Not before its record has come.
    Ask {
        /// The end of what was given to the link: TCP goes at least this far.
        end: Seq,
        /// The link works, as far as the sender knows.
        lives: bool,
    },
}

/// The one message that a stream over verbs ever puts on TCP: at most one in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Record {
    /// Where the sender's TCP goes on.
    pub goes: Goes,
    /// The sender has all bytes of the other direction before this, and keeps them.
    pub taken: Seq,
    /// The sender reads nothing more, neither bytes nor a record.
    pub last: bool,
}

/// Forty bytes that begin with the nonce and are no RECORD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl Record {
    /// The end of what the sender has given so far: its TCP goes at least to here.
    #[must_use]
    pub fn end(&self) -> Seq {
        match self.goes {
            Goes::From { from, owed } => from.plus(owed),
            Goes::Ask { end, .. } => end,
        }
    }

    /// The record as bytes.
    #[must_use]
    pub fn emit(&self, nonce: &Nonce) -> [u8; RECORD_LEN] {
        let flags = if self.last { FLAG_LAST } else { 0 };
        let (head, from) = match self.goes {
            Goes::From { from, owed } => (KIND_FROM | flags | u64::from(owed) << 32, from),
            Goes::Ask { end, lives } => {
                let lives = if lives { FLAG_LIVES } else { 0 };
                (KIND_ASK | flags | lives, end)
            }
        };
        let mut bytes = [0; RECORD_LEN];
        let (front, words) = bytes.split_at_mut(NONCE_LEN);
        front.copy_from_slice(&nonce.0);
        let values = [head, from.value(), self.taken.value()];
        for (slot, value) in words.chunks_exact_mut(8).zip(values) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// The record in `bytes`, or `None` if they do not begin with the nonce: then they are data.
    ///
    /// # Errors
    /// [`Malformed`]: an unknown kind, a bit set that has no meaning, a position beyond the last
    /// one, an ASK that is the last word.
    pub fn parse(bytes: &[u8; RECORD_LEN], nonce: &Nonce) -> Option<Result<Self, Malformed>> {
        let (front, words) = bytes.split_at(NONCE_LEN);
        if nonce.matches(front) < NONCE_LEN {
            return None;
        }
        let mut words = words.chunks_exact(8).map(|word| {
            word.iter()
                .rev()
                .fold(0, |value, byte| value << 8 | u64::from(*byte))
        });
        let mut word = || words.next().unwrap_or(0);
        let (head, from, taken) = (word(), word(), word());
        // Shifted by half its width, so the cast loses nothing.
        #[allow(clippy::cast_possible_truncation, reason = "32 bits are left")]
        let owed = (head >> 32) as u32;
        let goes = match head & 0xff {
            KIND_FROM if from.checked_add(u64::from(owed)).is_some() => Goes::From {
                from: Seq::new(from),
                owed,
            },
            KIND_ASK if head & FLAG_LAST == 0 => Goes::Ask {
                end: Seq::new(from),
                lives: head & FLAG_LIVES != 0,
            },
            _ => return Some(Err(Malformed)),
        };
        let record = Self {
            goes,
            taken: Seq::new(taken),
            last: head & FLAG_LAST != 0,
        };
        // Whatever else is set has no meaning.
        Some(if record.emit(nonce) == *bytes {
            Ok(record)
        } else {
            Err(Malformed)
        })
    }
}

/// A step of the switch, a message on the link. They alternate, the first end begins; each says
/// that the one before has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// First to second: my TCP ends at this offset.
    First(u64),
    /// Second to first: mine ends at this one.
    Second(u64),
    /// First to second: I know yours. A record of mine may come.
    Go,
    /// Second to first: a record of mine may come. You may post.
    Ready,
    /// First to second: you may post.
    Open,
    /// First to second before [`Step::Go`], second to first instead of [`Step::Second`]: all stays
    /// on TCP, and no record comes.
    Cancel,
}

impl Step {
    /// Number and offset, as a control message carries them.
    #[must_use]
    pub(crate) const fn emit(self) -> (u32, u64) {
        match self {
            Self::Cancel => (0, 0),
            Self::First(n) => (1, n),
            Self::Second(n) => (2, n),
            Self::Go => (3, 0),
            Self::Ready => (4, 0),
            Self::Open => (5, 0),
        }
    }

    /// The step of this number. An offset where none belongs is for the caller to find: the step
    /// emits another.
    #[must_use]
    pub(crate) const fn parse(number: u32, n: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Cancel),
            1 => Some(Self::First(n)),
            2 => Some(Self::Second(n)),
            3 => Some(Self::Go),
            4 => Some(Self::Ready),
            5 => Some(Self::Open),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONCE: Nonce = Nonce::new(*b"sixteen bytes ..");

    fn from(from: u64, owed: u32, taken: u64, last: bool) -> Record {
        Record {
            goes: Goes::From {
                from: Seq::new(from),
                owed,
            },
            taken: Seq::new(taken),
            last,
        }
    }

    fn ask(end: u64, taken: u64, lives: bool) -> Record {
        Record {
            goes: Goes::Ask {
                end: Seq::new(end),
                lives,
            },
            taken: Seq::new(taken),
            last: false,
        }
    }

    #[test]
    fn layout_is_fixed() {
        let bytes = from(0x1122, 0x99, 0x3344, true).emit(&NONCE);
        assert_eq!(bytes[..16], *b"sixteen bytes ..");
        assert_eq!(bytes[16..24], [1, 1, 0, 0, 0x99, 0, 0, 0]);
        assert_eq!(bytes[24..32], 0x1122u64.to_le_bytes());
        assert_eq!(bytes[32..], 0x3344u64.to_le_bytes());
        let bytes = ask(5, 6, true).emit(&NONCE);
        assert_eq!(bytes[16..24], [2, 2, 0, 0, 0, 0, 0, 0]);
        let bytes = ask(5, 6, false).emit(&NONCE);
        assert_eq!(bytes[16..24], [2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..32], 5u64.to_le_bytes());
    }

    #[test]
    fn a_nonce_is_not_printed() {
        assert_eq!(std::format!("{NONCE:?}"), "Nonce");
    }

    fn record() -> impl Strategy<Value = Record> {
        let word = || prop_oneof![0u64..9, any::<u64>()];
        prop_oneof![
            (word(), any::<u32>(), word(), any::<bool>()).prop_map(|(at, owed, taken, last)| {
                from(at.min(u64::MAX - u64::from(owed)), owed, taken, last)
            }),
            (word(), word(), any::<bool>()).prop_map(|(end, taken, lives)| ask(end, taken, lives)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(2_000)
        })]

        #[test]
        fn what_is_emitted_is_parsed(record in record()) {
            prop_assert_eq!(Record::parse(&record.emit(&NONCE), &NONCE), Some(Ok(record)));
        }

        #[test]
        fn any_bytes_are_data_or_refused_or_possible(
            bytes in prop::collection::vec(any::<u8>(), RECORD_LEN),
            ours in any::<bool>(),
            kind in any::<Option<u8>>(),
        ) {
            let mut bytes: [u8; RECORD_LEN] = bytes.try_into().unwrap();
            if ours {
                bytes[..NONCE_LEN].copy_from_slice(&NONCE.0);
            }
            if let Some(kind) = kind {
                bytes[NONCE_LEN..24].fill(0);
                bytes[NONCE_LEN] = kind & 3;
                bytes[NONCE_LEN + 1] = kind >> 6;
                bytes[20] = kind;
            }
            match Record::parse(&bytes, &NONCE) {
                None => prop_assert!(NONCE.matches(&bytes) < NONCE_LEN),
                Some(Ok(record)) => prop_assert_eq!(record.emit(&NONCE), bytes),
                Some(Err(Malformed)) => prop_assert!(ours),
            }
        }

        #[test]
        fn a_changed_bit_is_another_record_or_none(record in record(), bit in 0..RECORD_LEN * 8) {
            let mut bytes = record.emit(&NONCE);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(Record::parse(&bytes, &NONCE), Some(Ok(record)));
        }
    }

    #[test]
    fn every_step_survives() {
        let steps = [
            Step::First(7),
            Step::Second(9),
            Step::Go,
            Step::Ready,
            Step::Open,
            Step::Cancel,
        ];
        for step in steps {
            let (number, n) = step.emit();
            assert_eq!(Step::parse(number, n), Some(step));
        }
        assert_eq!(Step::parse(6, 0), None);
    }
}
