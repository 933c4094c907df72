//! Two ends of one stream over verbs: [`Transit`]s, a link that may die at any point, and the TCP
//! beneath.
//!
//! TCP is a reliable pipe of real bytes in each direction, cut as one likes, and ends with a FIN or
//! a reset. The link loses everything after a point, in each direction by itself; completions and
//! credits can be lost while the bytes were placed; each end finds out when it does. Ring bytes
//! exist as positions, which each end reads by its own account. Whatever a program reads is
//! compared with what belongs at that place of the connection, wherever it came from.
//!
//! Nothing happens by itself: every step is an [`Op`], so a test can try any order, or all.

mod world;

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::vec::Vec;

use thiserror::Error;

pub use world::World;

use crate::record::{Leave, Reason, Step, Transit};
use crate::{Error, Seq};

/// What a test must never see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// An honest end's event was refused.
    #[error("refused: {0}")]
    Refused(#[from] Error),
    /// A program read a byte that does not belong at this place of the connection.
    #[error("end {0} read a wrong byte at {1}")]
    WrongByte(usize, usize),
    /// A program saw an end of the connection before the last byte that the other end had accepted.
    #[error("end {0} saw an end at {1}")]
    ShortEnd(usize, usize),
    /// Bytes that the other end had already read were dropped, and are wanted.
    #[error("end {0} did not keep a byte")]
    NotKept(usize),
    /// A connection was reset and nobody had been killed.
    #[error("end {0} reset it: {1:?}")]
    Reset(usize, Reason),
    /// Nothing moves, and a program waits for what is there.
    #[error("stuck: end {0} has read {1} of {2}")]
    Stuck(usize, usize, usize),
    /// A record went to an end that had said that it reads no more.
    #[error("end {0} wrote to a closed socket")]
    Unwanted(usize),
}

/// One step. The first number is the end, or the end that the direction begins at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The first end begins the switch.
    Begin,
    /// The program writes up to so many bytes.
    Give(usize, usize),
    /// The library writes up to so many bytes of a record, or of what is sent again.
    Flush(usize, usize),
    /// The link delivers its next message into the other end's completion queue.
    Carry(usize),
    /// The library takes the next one out of its completion queue.
    Poll(usize),
    /// The library learns that a write is complete.
    Complete(usize),
    /// The library tells the other end what was read.
    Credit(usize),
    /// The program reads up to so many bytes.
    Read(usize, usize),
    /// The library looks at what TCP has, also after bytes that the program has not read.
    Look(usize),
    /// TCP brings so many bytes, and a FIN after the last, or a reset.
    Segment(usize, usize),
    /// What the link has under way from here is lost, and all that follows.
    Cut(usize),
    /// This end learns that the link is lost, or decides so.
    Lose(usize),
    /// This end's device dies with what it had acknowledged.
    Die(usize),
    /// The end leaves the link.
    Leave(usize, Leave),
    /// The program writes no more.
    Shutdown(usize),
    /// The process is killed. Whether with bytes unread, which makes it a reset.
    Kill(usize, bool),
    /// So long a silence on TCP that an undecided head is given up.
    Quiet(usize),
}

/// How often interleavings went where they were meant to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Streams that came to use the link at both ends.
    pub open: u64,
    /// Records FROM an end that decided.
    pub from: u64,
    /// Records that ask.
    pub ask: u64,
    /// Records that answered one.
    pub answer: u64,
    /// Records that crossed.
    pub crossed: u64,
    /// Bytes sent again.
    pub resent: u64,
    /// Bytes beyond what was said to be taken that a FROM then named.
    pub beyond: u64,
    /// Ends that found data at N instead of a record.
    pub data: u64,
    /// Connections handed to another program.
    pub handed: u64,
    /// Resets, of any reason.
    pub reset: u64,
    /// Ends of the connection that came whole after a kill.
    pub whole: u64,
}

impl PartialEq for Seen {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Seen {}
impl Hash for Seen {
    /// What was seen on the way does not make two states differ.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// What a world is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Bytes that each program has to say.
    pub total: [usize; 2],
    /// Ring bytes that an end lends.
    pub window: u32,
    /// Bytes of each program that are the nonce's first ones: where they begin, how many. Fewer
    /// than all.
    pub decoy: [(usize, usize); 2],
    /// Whether the second end consents.
    pub consents: bool,
    /// Whether each end keeps what it has not read when the other one asks. Such an end must not
    /// leave by [`Leave::Hand`](crate::record::Leave::Hand).
    pub keeps: [bool; 2],
    /// Whether each end is [patient](crate::record::Transit::set_patient).
    pub patient: [bool; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Message {
    Step(Step),
    Bytes(u32),
    Credit(Seq),
}

/// One direction of TCP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Pipe {
    flight: VecDeque<u8>,
    here: VecDeque<u8>,
    fin: bool,
    fin_here: bool,
    reset: bool,
    reset_here: bool,
    /// Bytes ever written.
    written: usize,
}

/// One direction of the link, and the completion queue at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Lane {
    flight: VecDeque<Message>,
    queue: VecDeque<Message>,
    /// Positions whose completions wait at the sender.
    done: VecDeque<u32>,
    cut: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct End {
    machine: Transit,
    /// Bytes of the program that the library has accepted.
    given: usize,
    /// Bytes before the switch, so that position 0 of the link is this byte of the program's.
    base: usize,
    posted: u32,
    completed: u32,
    credited: Seq,
    /// Ring bytes brought here.
    arrived: u32,
    read: u32,
    /// The program's next byte to write on TCP, once the stream has left the link.
    next: Option<usize>,
    /// Of a record, not yet written.
    record: VecDeque<u8>,
    /// Taken from TCP before the program wanted it.
    absorbed: VecDeque<u8>,
    /// What of the peer's record was removed from TCP before the rest had come.
    part: Vec<u8>,
    /// Bytes that the program has read.
    got: usize,
    ended: bool,
    failed: bool,
    shut: bool,
    hands: bool,
    /// Another program has the socket, and no library.
    raw: bool,
    closes: bool,
    /// Our record said, or should have, that we read no more.
    bye: bool,
    said: bool,
    /// Our record was for handing on, the peer's crossed it.
    hand_said: bool,
    crossed: bool,
    heard: bool,
    begun: bool,
    left: bool,
    lost: bool,
    died: bool,
    killed: bool,
}
