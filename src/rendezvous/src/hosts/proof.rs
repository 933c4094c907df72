//! Proves that an end holds a connection, by the bytes that have passed over it: only the two ends
//! know them ([`prefix`]).
//!
//! The asker says how many bytes its proof covers: all that it has read, which its peer has
//! written, and half of what it has written, which its peer has likely read by now. The asked end
//! demands as many as an asker with the same threshold can show ([`Known::is_enough`]), since a few
//! bytes could be guessed.

use sluice_sockets::socket::Socket;
use sluice_sockets::{prefix, trigger};
use sluice_stream::record::Nonce;
use sluice_stream::wire::Proof;

/// How many of the bytes that this end has written, and read, a proof covers, as [`prefix::reach`]
/// counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Written.
    pub out: u8,
    /// Read.
    pub into: u8,
}

impl Known {
    /// What this end's proof can cover. `None`: no byte of the connection was seen.
    pub fn of(sock: &'static Socket) -> Option<Self> {
        Self::of_reach(prefix::reach(sock))
    }

    fn of_reach((out, into): (u8, u8)) -> Option<Self> {
        let out = if into > 0 || out > 1 {
            out.saturating_sub(1)
        } else {
            out
        };
        (out > 0 || into > 0).then_some(Self { out, into })
    }

    /// The same from the other end's view.
    pub fn turned(self) -> Self {
        Self {
            out: self.into,
            into: self.out,
        }
    }

    /// For messages.
    pub fn emit(self) -> [u8; 2] {
        [self.out, self.into]
    }

    /// From the other end's message, turned to this end's view.
    pub fn heard([out, into]: [u8; 2]) -> Self {
        Self { out, into }.turned()
    }

    /// True if this end has seen as many bytes.
    pub(crate) fn is_reached(self, sock: &'static Socket) -> bool {
        let (out, into) = prefix::reach(sock);
        self.out <= out && self.into <= into
    }

    /// True if a proof that covers this much is enough for this end, by its own threshold.
    pub(crate) fn is_enough(self) -> bool {
        self.covers(trigger::first_far_try())
    }

    /// True if it covers what an asker can show that has moved `threshold` bytes. Of each
    /// direction's first [`prefix::LEN`] that is more than half of what it has read, and more than
    /// a quarter of what it has written.
    fn covers(self, threshold: u64) -> bool {
        let bytes = |k: u8| k.checked_sub(1).map_or(0, |k| 1u64 << k.min(32));
        let least = threshold.min(prefix::LEN as u64) / 4;
        bytes(self.out) + bytes(self.into) >= least.max(1)
    }

    /// A proof of the bytes and of what this end says.
    pub fn prove(self, sock: &'static Socket, said: &[&[u8]]) -> Option<Proof> {
        prefix::prove(sock, self.out, self.into, said)
    }

    /// True if the proof shows that the other end has said this.
    pub fn verify(self, sock: &'static Socket, said: &[&[u8]], proof: &Proof) -> bool {
        prefix::verify(sock, self.out, self.into, said, proof)
    }

    /// The nonce of a stream's records.
    pub fn secret(self, sock: &'static Socket, said: &[&[u8]]) -> Option<Nonce> {
        prefix::secret(sock, self.out, self.into, said).map(Nonce::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [`prefix::reach`] of `bytes` bytes.
    fn reach(bytes: u64) -> u8 {
        let seen = bytes.min(prefix::LEN as u64);
        seen.checked_ilog2().map_or(0, |log| log as u8 + 1)
    }

    #[test]
    fn whoever_has_come_to_the_offset_shows_enough() {
        for threshold in [1, 2, 3, 5, 100, 4096, 32 << 10, 40_000, 1 << 20] {
            for written in 0..=threshold.min(70_000) {
                let read = threshold - written;
                let known = Known::of_reach((reach(written), reach(read))).unwrap();
                assert!(known.covers(threshold), "{written} written of {threshold}");
                assert!(known.turned().covers(threshold));
            }
        }
    }

    #[test]
    fn few_bytes_show_nothing_but_where_few_are_wanted() {
        let byte = Known { out: 0, into: 1 };
        assert!(byte.covers(1));
        for threshold in [8, 32 << 10, u64::MAX] {
            assert!(!byte.covers(threshold));
        }
        // Counts that no end can mean cover any threshold; `is_reached` refuses them.
        assert!(
            Known {
                out: 255,
                into: 255
            }
            .covers(u64::MAX)
        );
        assert!(!Known { out: 0, into: 0 }.covers(1));
    }
}
