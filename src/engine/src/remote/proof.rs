//! That an end holds a connection, and what only its two ends know: [`prefix`] applied to what they say.
//!
//! How much of the bytes a proof covers is the asker's to say: what it has read, which its peer has written, and half of
//! what it has written, which its peer has likely read by now.

use crate::sockets::prefix;
use crate::sockets::sock::Sock;
use sluice_stream::record::Nonce;
use sluice_stream::wire::Proof;

/// How much of the bytes that this end has written, and read, a proof covers, as [`prefix::reach`] counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Written.
    pub out: u8,
    /// Read.
    pub into: u8,
}

impl Known {
    /// What this end can ask with; `None`: nothing of the connection was seen.
    pub fn of(sock: &'static Sock) -> Option<Self> {
        let (out, into) = prefix::reach(sock);
        let out = if into > 0 || out > 1 {
            out.saturating_sub(1)
        } else {
            out
        };
        (out > 0 || into > 0).then_some(Self { out, into })
    }

    /// As the other end sees it.
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

    /// From a message of the other end's, turned.
    pub fn heard([out, into]: [u8; 2]) -> Self {
        Self { out, into }.turned()
    }

    /// Has this end seen as much?
    pub fn is_reached(self, sock: &'static Sock) -> bool {
        let (out, into) = prefix::reach(sock);
        self.out <= out && self.into <= into
    }

    /// This end's proof with what it says.
    pub fn prove(self, sock: &'static Sock, said: &[&[u8]]) -> Option<Proof> {
        prefix::prove(sock, self.out, self.into, said)
    }

    /// Is it the other end that has said this?
    pub fn verify(self, sock: &'static Sock, said: &[&[u8]], proof: &Proof) -> bool {
        prefix::verify(sock, self.out, self.into, said, proof)
    }

    /// What a stream's records are known by.
    pub fn secret(self, sock: &'static Sock, said: &[&[u8]]) -> Option<Nonce> {
        prefix::secret(sock, self.out, self.into, said).map(Nonce::new)
    }
}
