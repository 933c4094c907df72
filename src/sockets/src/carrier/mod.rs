//! What a socket does with the stream that carries its bytes: memory of this host, or a queue pair
//! to another one.
//!
//! The two kinds differ in the facts of [`Carrier`], and in how they bring a stream to the link and
//! back to TCP. Every function here answers for both kinds, and the code above calls it without
//! asking for the kind:
//!
//! | | memory | queue pair |
//! |---|---|---|
//! | to the link | each writer alone (`upgrade`) | both directions, by steps: `advance` |
//! | back to TCP | `cursors` | `records`, `record` |
//! | TCP beneath the stream | brings a FIN or an RST at most | may bring a record: `record_rx` |
//! | the next user has no link | TCP gets all (`finish`) | so it does: `handover`, `leaving` |
//! | a large transfer | from memory to memory (`direct`) | into the recv's buffer |
//!
//! The last row is in `advertised_buffer`, `lent` and `await_placement`. `link` has the questions
//! that threads ask most.

mod advance;
mod advertised_buffer;
mod await_placement;
pub(crate) mod cursors;
mod handover;
mod leaving;
pub mod lent;
mod link;
mod loan_trial;
mod record;
mod record_rx;
pub(crate) mod records;
mod staging;

pub use advance::{advance, lost};
pub use advertised_buffer::{
    Found, back as end_loan, is_any as is_lent, is_over as is_loan_over, lend,
    look as look_at_loan, revoke as revoke_loan,
};
pub use await_placement::await_placement;
pub(crate) use cursors::tell_end;
pub use handover::{await_return, finish, finish_reading, finish_within, release};
pub(crate) use link::of;
pub use link::{
    deliver, goes_direct, hides_tcp, is_far, is_held, is_switching, reads_link, wants_more,
};
pub use record::{awaits_record, before_resend, may_finish, wants_no_answer};
#[cfg(any(test, feature = "testing"))]
pub use record_rx::note_removed;
pub use record_rx::{has_input, hear_tcp, hears, records as records_removed, tcp_ended};
pub use records::demote as give_up;
/// How many bytes a waiting recv must miss at least to lend its buffer.
pub use sluice_transport::verbs::least as lends_from;
pub use staging::{Staged, stage_old_pages, stage_pages};

use crate::socket::Socket;
use sluice_transport::Carrier;

impl Socket {
    /// What carries the socket's stream. Without a stream: what would carry one within the host.
    #[inline]
    pub fn carrier(&self) -> &'static Carrier {
        self.link().map_or(Carrier::here(), Carrier::of)
    }
}

/// How long a direct-only stream waits for an advertised buffer before it is demoted, in ns: with
/// the direct queue pair in place, and while that is being made.
pub const STARVE_NS: [u64; 2] = [20_000_000, 200_000_000];

/// How long exec, passing and raw use wait for the peer's record, and a relative for the stream's
/// owner, in ns.
pub const PATIENCE_NS: u64 = 5_000_000_000;

/// What a half finds before it may re-send.
pub enum Before {
    /// The re-send begins at this position of the stream.
    Ready(u64),
    /// The link or the peer must tell more first.
    Held,
    /// TCP has no room for the record.
    Full,
    /// The connection is over: nothing is re-sent.
    Over,
}
