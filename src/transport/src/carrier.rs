//! What carries a stream, and how the kinds differ.
//!
//! Within the host it is memory that both ends share: either end sees where the other one stands in
//! two words, and takes the stream back by them alone. To another host it is a queue pair: each end
//! has a ring of its own, and says on TCP, by a record, where the link ended.
//!
//! Code above asks for the fact that it needs, never for the kind.

use sluice_fabric::shm::Link;
use sluice_stats::Transport;

/// A long transfer publishes after so many bytes, so that the other end copies at the same time.
pub const PUBLISH: usize = 64 << 10;
/// The same between hosts, where a message costs more: credit comes by half rings, and the other
/// half is in flight meanwhile.
const PUBLISH_REMOTE: usize = 2 * PUBLISH;

/// The facts of one kind.
#[derive(Debug)]
pub struct Carrier {
    /// By this name it is counted and shown.
    pub transport: Transport,
    /// Each end says by a record on TCP where the link ended: TCP may hold one, and brings nothing
    /// of the program's before it. Else the words say so to both ends.
    pub ends_by_record: bool,
    /// Both directions leave TCP together, after steps of both ends, and go back together. Else
    /// each does alone.
    pub switches_together: bool,
    /// What has come to the peer's end stays there when the stream goes back to TCP. Else all that
    /// the peer has not read must fit into TCP.
    pub keeps_arrived: bool,
    /// The tail that a reader sees moves back, under its lock, when the stream is given up: what it
    /// has not read by then comes again by TCP.
    pub tail_moves_back: bool,
    /// Bytes move only while a thread of this process drives the link.
    pub is_driven: bool,
    /// A large send may be copied by the reader out of the writer's memory.
    pub pulls: bool,
    /// A waiting recv may lend its buffer, for the peer's device to write to.
    pub lends: bool,
    /// A long transfer is published in pieces of so many bytes,
    pub portion: usize,
    /// and a rest of so many goes with the last one: it is not worth a message.
    pub rest: usize,
    /// A reader that leaves a full ring unread for so long has the stream go back to TCP, in ns.
    pub full_ns: u64,
    /// The peer proves that it has the connection's other end by digests of what TCP has brought.
    /// Else credentials of the kernel prove it.
    pub proves_by_digests: bool,
    /// A writer hears of room by a message, which is worth sending early where a ring is long.
    pub credits_by_message: bool,
}

/// A stream whose reader leaves a full ring untouched for so long is demoted: TCP takes megabytes
/// more, and a program may rely on that. Long enough for a reader that waits for its disk or CPU.
const FULL_NS: u64 = 50_000_000;
/// The same for a reader on another host, whose credit takes longer to come.
pub const FULL_REMOTE_NS: u64 = 200_000_000;

static MEMORY: Carrier = Carrier {
    transport: Transport::Shm,
    ends_by_record: false,
    switches_together: false,
    keeps_arrived: false,
    tail_moves_back: false,
    is_driven: false,
    pulls: true,
    lends: false,
    portion: PUBLISH,
    rest: 0,
    full_ns: FULL_NS,
    proves_by_digests: false,
    credits_by_message: false,
};

static QUEUE_PAIR: Carrier = Carrier {
    transport: Transport::Verbs,
    ends_by_record: true,
    switches_together: true,
    keeps_arrived: true,
    tail_moves_back: true,
    is_driven: true,
    pulls: false,
    lends: true,
    portion: PUBLISH_REMOTE,
    rest: PUBLISH_REMOTE / 4,
    full_ns: FULL_REMOTE_NS,
    proves_by_digests: true,
    credits_by_message: true,
};

impl Carrier {
    /// What carries the streams of a link.
    #[inline]
    pub fn of(link: &Link) -> &'static Self {
        if link.keeper() == 0 {
            &MEMORY
        } else {
            &QUEUE_PAIR
        }
    }

    /// What would carry a stream within the host.
    #[inline]
    pub const fn here() -> &'static Self {
        &MEMORY
    }
}
