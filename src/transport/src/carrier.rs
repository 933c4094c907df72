//! The facts in which the carriers of a stream differ.
//!
//! Within the host a stream is carried by memory that both ends share. Two words show each end
//! where the other one stands, and either end demotes the stream by them alone. To another host it
//! is carried by a queue pair: each end has a ring of its own, and tells by a record on TCP where
//! the link ended.
//!
//! Code above asks for the fact that it needs, never for the kind.

use sluice_fabric::shm::Link;
use sluice_stats::Transport;

/// A long transfer is published after this many bytes, so that the other end copies meanwhile.
pub const PUBLISH: usize = 64 << 10;
/// The same between hosts, where a message costs more. Credit comes by half rings, so the other
/// half is in flight meanwhile.
const PUBLISH_REMOTE: usize = 2 * PUBLISH;

/// The facts of one carrier.
#[derive(Debug)]
pub struct Carrier {
    /// How counters name it.
    pub transport: Transport,
    /// Each end tells by a record on TCP where the link ended. TCP may hold a record, and brings
    /// none of the program's bytes before it. If false, the words tell both ends.
    pub ends_by_record: bool,
    /// Both directions leave TCP together, by steps of both ends, and go back together. If false,
    /// each one goes alone.
    pub switches_together: bool,
    /// What has arrived at the peer's end need not come by TCP when the stream is left for good. If
    /// false, TCP must have room for all that the peer has not read.
    pub keeps_arrived: bool,
    /// At a demotion the tail that the reader sees moves back, under the reader's lock: bytes not
    /// read by then come again by TCP.
    pub tail_moves_back: bool,
    /// Bytes move only while a thread of this process drives the link.
    pub is_driven: bool,
    /// A reader may copy a large send out of the writer's memory.
    pub pulls: bool,
    /// A waiting recv may lend its buffer, and the peer's device writes to it.
    pub lends: bool,
    /// A long transfer is published in pieces of this many bytes.
    pub portion: usize,
    /// A rest of this many bytes goes with the last piece: it is not worth a message.
    pub rest: usize,
    /// How long a reader may leave a full ring unread before the stream is demoted, in ns.
    pub full_ns: u64,
    /// The peer proves that it has the connection's other end by digests of what TCP has brought.
    /// If false, the kernel's credentials prove it.
    pub proves_by_digests: bool,
    /// A writer hears of room by a message, which a long ring's reader sends early.
    pub credits_by_message: bool,
}

/// How long a reader may leave a full ring untouched before its stream is demoted: TCP takes
/// megabytes more, and a program may rely on that. A reader that waits for its disk or CPU takes
/// less.
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
    /// The carrier of a link's streams.
    #[inline]
    pub fn of(link: &Link) -> &'static Self {
        if link.keeper() == 0 {
            &MEMORY
        } else {
            &QUEUE_PAIR
        }
    }

    /// The carrier of a stream within the host.
    #[inline]
    pub const fn here() -> &'static Self {
        &MEMORY
    }
}
