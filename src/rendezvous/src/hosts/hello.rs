//! Messages of two processes on two hosts that make a link, in the private data of RDMA CM:
//! `docs/protocol.md`, "Dialling".
//!
//! Guarantees: parsing is total, and one message has one spelling. Whether the content is right is
//! for the caller to check.

use crate::message::{get, put};
use core::net::{IpAddr, SocketAddr};
use sluice_stats::Reason;
use sluice_stream::wire::Proof;
use sluice_transport::verbs::endpoint::Hello;

/// Version of these messages, and of all that follow on the link. Only equal ones make a link.
pub const VERSION: u16 = 5;
/// Length of a request: all that there is room for.
pub const REQUEST_LEN: usize = 56;
/// Length of an answer.
pub const ANSWER_LEN: usize = 40;
/// Length of a refusal.
pub(crate) const REFUSAL_LEN: usize = 4;

/// Identifies a process to other hosts.
pub type Token = u64;

/// Asks the process that holds the other end of a connection for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// [`VERSION`].
    pub version: u16,
    /// How many of the bytes that the dialling end has written, and read, its proof covers.
    pub known: [u8; 2],
    /// The connection: [`connection`].
    pub connection: u64,
    /// The dialling process.
    pub token: Token,
    /// Where the answering end must write its control messages.
    pub hello: Hello,
    /// Proof of the dialling end.
    pub proof: Proof,
}

/// Accepts a request: the link is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// [`VERSION`].
    pub version: u16,
    /// The answering process.
    pub token: Token,
    /// Where the dialling end must write its control messages.
    pub hello: Hello,
    /// Proof of the answering end.
    pub proof: Proof,
}

impl Request {
    /// The bytes that its proof is made of.
    #[must_use]
    pub fn said(&self) -> [u8; REQUEST_LEN] {
        Self {
            proof: [0; 16],
            ..*self
        }
        .emit()
    }

    /// As bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        put(&mut bytes, 0, &self.version.to_le_bytes());
        put(&mut bytes, 2, &self.known);
        put(&mut bytes, 8, &self.connection.to_le_bytes());
        put(&mut bytes, 16, &self.token.to_le_bytes());
        put(&mut bytes, 24, &self.hello.place.to_le_bytes());
        put(&mut bytes, 32, &self.hello.key.to_le_bytes());
        put(&mut bytes, 36, &self.proof);
        bytes
    }

    /// Parses private data, which a connection manager may have padded.
    ///
    /// # Errors
    /// [`Reason::VersionMismatch`], [`Reason::PeerHostile`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let parsed = Self {
            version: u16::from_le_bytes(get(bytes, 0)),
            known: get(bytes, 2),
            connection: u64::from_le_bytes(get(bytes, 8)),
            token: u64::from_le_bytes(get(bytes, 16)),
            hello: Hello {
                place: u64::from_le_bytes(get(bytes, 24)),
                key: u32::from_le_bytes(get(bytes, 32)),
            },
            proof: get(bytes, 36),
        };
        spelled(parsed.version, bytes, &parsed.emit()).map(|()| parsed)
    }
}

impl Answer {
    /// The bytes that its proof is made of.
    #[must_use]
    pub fn said(&self) -> [u8; ANSWER_LEN] {
        Self {
            proof: [0; 16],
            ..*self
        }
        .emit()
    }

    /// As bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; ANSWER_LEN] {
        let mut bytes = [0; ANSWER_LEN];
        put(&mut bytes, 0, &self.version.to_le_bytes());
        put(&mut bytes, 4, &self.hello.key.to_le_bytes());
        put(&mut bytes, 8, &self.hello.place.to_le_bytes());
        put(&mut bytes, 16, &self.token.to_le_bytes());
        put(&mut bytes, 24, &self.proof);
        bytes
    }

    /// As [`Request::parse`].
    ///
    /// # Errors
    /// [`Reason::VersionMismatch`], [`Reason::PeerHostile`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Reason> {
        let parsed = Self {
            version: u16::from_le_bytes(get(bytes, 0)),
            hello: Hello {
                key: u32::from_le_bytes(get(bytes, 4)),
                place: u64::from_le_bytes(get(bytes, 8)),
            },
            token: u64::from_le_bytes(get(bytes, 16)),
            proof: get(bytes, 24),
        };
        spelled(parsed.version, bytes, &parsed.emit()).map(|()| parsed)
    }
}

/// Checks the version and the spelling. The layout of another version is not known.
fn spelled(version: u16, bytes: &[u8], emitted: &[u8]) -> Result<(), Reason> {
    if bytes.len() >= 2 && version != VERSION {
        return Err(Reason::VersionMismatch);
    }
    let (head, tail) = bytes
        .split_at_checked(emitted.len())
        .ok_or(Reason::PeerHostile)?;
    if head == emitted && tail.iter().all(|b| *b == 0) {
        Ok(())
    } else {
        Err(Reason::PeerHostile)
    }
}

/// The refusal of a link, for this reason.
#[must_use]
pub fn refusal(reason: Reason) -> [u8; REFUSAL_LEN] {
    let [a, b] = VERSION.to_le_bytes();
    let [c, d] = (reason as u16).to_le_bytes();
    [a, b, c, d]
}

/// The reason of a refusal.
#[must_use]
pub fn refused(bytes: &[u8]) -> Reason {
    if bytes.len() < REFUSAL_LEN {
        return Reason::NoAnswer;
    }
    match u16::from_le_bytes(get(bytes, 0)) {
        VERSION => {}
        // From the connection manager itself: nobody listens.
        0 => return Reason::NoAnswer,
        _ => return Reason::VersionMismatch,
    }
    Reason::from_u16(u16::from_le_bytes(get(bytes, 2))).unwrap_or(Reason::NoAnswer)
}

/// True if the listener at this port is for another connection.
#[must_use]
pub fn is_for_another(bytes: &[u8]) -> bool {
    bytes.get(..REFUSAL_LEN) == Some(&refusal(Reason::NoAnswer))
}

/// Identifies a connection at both ends: a hash of its addresses, the connecting end's first.
#[must_use]
pub fn connection(connecting: SocketAddr, accepted: SocketAddr) -> u64 {
    // FNV-1a.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for end in [connecting, accepted] {
        match end.ip().to_canonical() {
            IpAddr::V4(v4) => add(&v4.octets()),
            IpAddr::V6(v6) => add(&v6.octets()),
        }
        add(&end.port().to_be_bytes());
    }
    hash
}

/// The two ports at which the connecting end may listen for the accepted one, whose peer's TCP port
/// this is. Not that port, since iWARP shares TCP's ports. The first is at least 61000, which Linux
/// gives only to programs that ask for it: a program's listener there would get the dial, unseen by
/// either end. The second is used if the first is in use, if only by a closed connection.
#[must_use]
pub const fn ports(tcp: u16) -> [u16; 2] {
    const HALF: u16 = 1 << 14;
    const LAST: u16 = 61_000;
    let second = if tcp < 1 << 15 {
        tcp + HALF
    } else {
        tcp - HALF
    };
    [LAST + tcp % (u16::MAX - LAST), second]
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Request = Request {
        version: VERSION,
        known: [16, 7],
        connection: 0x0123_4567_89ab_cdef,
        token: u64::MAX - 1,
        hello: Hello {
            place: 0x7f00_0000_1000,
            key: 0xfeed,
        },
        proof: *b"as long as these",
    };
    const ANSWER: Answer = Answer {
        version: VERSION,
        token: 9,
        hello: REQUEST.hello,
        proof: REQUEST.proof,
    };

    #[test]
    fn what_is_said_is_understood() {
        let mut long = REQUEST.emit().to_vec();
        assert_eq!(Request::parse(&long), Ok(REQUEST));
        long.extend([0; 36]);
        assert_eq!(Request::parse(&long), Ok(REQUEST));
        assert_eq!(Answer::parse(&ANSWER.emit()), Ok(ANSWER));
        let refusal = refusal(Reason::LinkFull);
        assert_eq!(refused(&refusal), Reason::LinkFull);
        assert!(is_for_another(&super::refusal(Reason::NoAnswer)));
        assert!(
            ![&refusal[..], &[], &[0; 148]]
                .into_iter()
                .any(is_for_another)
        );
    }

    #[test]
    fn what_is_not_is_refused() {
        assert_eq!(Request::parse(&[]), Err(Reason::PeerHostile));
        let [ours, _] = VERSION.to_le_bytes();
        assert_eq!(Answer::parse(&[ours, 0]), Err(Reason::PeerHostile));
        let mut bytes = REQUEST.emit();
        bytes[0] = ours + 1;
        assert_eq!(Request::parse(&bytes), Err(Reason::VersionMismatch));
        assert_eq!(Request::parse(&bytes[..2]), Err(Reason::VersionMismatch));
        for at in [4, 5, 6, 7, 52, 55] {
            let mut bytes = REQUEST.emit();
            bytes[at] = 1;
            assert_eq!(Request::parse(&bytes), Err(Reason::PeerHostile), "{at}");
        }
        let mut long = ANSWER.emit().to_vec();
        assert_eq!(Answer::parse(&long[..39]), Err(Reason::PeerHostile));
        assert!(
            Answer::parse(&{
                long[2] = 1;
                long.clone()
            })
            .is_err()
        );
        assert_eq!(refused(&[]), Reason::NoAnswer);
        assert_eq!(refused(&[0; 148]), Reason::NoAnswer);
        assert_eq!(refused(&[ours + 1, 0, 0, 0]), Reason::VersionMismatch);
        assert_eq!(refused(&[ours, 0, 0xff, 0xff]), Reason::NoAnswer);
    }

    #[test]
    fn any_bytes_are_understood_in_one_way_or_refused() {
        let mut draw = sluice_sockets::testing::draws(1);
        for round in 0..200_000 {
            let mut bytes = REQUEST.emit().to_vec();
            if round % 2 == 0 {
                bytes = ANSWER.emit().to_vec();
            }
            for _ in 0..draw() % 4 {
                let at = draw() as usize % bytes.len();
                bytes[at] = draw() as u8;
            }
            bytes.truncate(draw() as usize % (2 * bytes.len()));
            bytes.resize(bytes.len() + draw() as usize % 2 * 50, 0);
            let whole = |emitted: &[u8]| {
                let (head, tail) = bytes.split_at(emitted.len());
                head == emitted && tail.iter().all(|b| *b == 0)
            };
            if let Ok(request) = Request::parse(&bytes) {
                assert!(whole(&request.emit()));
            }
            if let Ok(answer) = Answer::parse(&bytes) {
                assert!(whole(&answer.emit()));
            }
            let _ = refused(&bytes);
        }
    }

    #[test]
    fn both_ends_have_one_number_for_a_connection() {
        let (a, b) = (
            "10.0.0.1:5".parse().unwrap(),
            "10.0.0.2:80".parse().unwrap(),
        );
        let mapped = "[::ffff:10.0.0.1]:5".parse().unwrap();
        assert_eq!(connection(a, b), connection(mapped, b));
        assert_ne!(connection(a, b), connection(b, a));
    }

    #[test]
    fn no_port_is_its_own() {
        for tcp in 1024..=u16::MAX {
            let [first, second] = ports(tcp);
            assert!(first >= 61_000 && second >= 1024);
            assert!(first != tcp && second != tcp);
            assert_ne!(first, second);
        }
    }
}
