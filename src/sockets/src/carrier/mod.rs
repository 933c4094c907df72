//! What a socket asks of the stream that carries its bytes, be that memory of this host or a queue
//! pair to another one.
//!
//! The kinds differ in facts ([`Carrier`]), and in how they bring a stream to TCP and back. Both
//! answer every function here, and the code above calls them without asking for the kind:
//!
//! | | memory | queue pair |
//! |---|---|---|
//! | to the link | a writer enters alone (`upgrade`) | both directions, by steps: `advance` |
//! | way back | `words` | `records`, `record` |
//! | TCP beneath the stream | silent, but for a FIN or RST | may hold a record: `record_rx` |
//! | users that know no link | TCP gets all (`finish`) | so it does: `handover`, `leaving` |
//! | a large transfer | from memory to memory (`direct`) | into the recv's buffer |
//!
//! The last is `advertised_buffer`, `lent` and `await_placement`. `link` has what threads ask most.

mod advance;
mod advertised_buffer;
mod await_placement;
mod handover;
mod leaving;
pub mod lent;
mod link;
mod record;
mod record_rx;
pub(crate) mod records;
pub(crate) mod words;

pub use advance::{advance, lost};
pub use advertised_buffer::{
    Found, back as end_loan, is_any as is_lent, lend, look as look_at_loan, revoke as revoke_loan,
};
pub use await_placement::await_placement;
pub use handover::{await_return, finish, finish_reading, finish_within, release};
pub use link::{
    deliver, goes_direct, hides_tcp, is_far, is_held, is_switching, reads_link, wants_more,
};
pub use record::{awaits_record, before_resend, may_finish, wants_no_answer};
#[cfg(any(test, feature = "testing"))]
pub use record_rx::note_removed;
pub use record_rx::{has_input, hear_tcp, hears, records as records_removed, tcp_ended};
pub use records::demote as give_up;
pub(crate) use words::tell_end;

use crate::socket::Socket;
use sluice_transport::Carrier;

impl Socket {
    /// What carries the stream in use, or would carry one within the host where there is none.
    #[inline]
    pub fn carrier(&self) -> &'static Carrier {
        self.link().map_or(Carrier::here(), Carrier::of)
    }
}

/// A direct-only stream whose reader lends nothing for so long goes back to TCP; while the queue
/// pair for it is made, for so long.
pub const STARVE_NS: [u64; 2] = [20_000_000, 200_000_000];

/// So long exec, passing and raw use wait for the peer's record.
pub const PATIENCE_NS: u64 = 5_000_000_000;

/// What a half that is on its way back to TCP finds before it may send again.
pub enum Before {
    /// TCP takes the program's bytes from this position on.
    Ready(u64),
    /// Not before the link, or the peer, has told more.
    Held,
    /// TCP has no room for the record.
    Full,
    /// The connection is over.
    Over,
}
