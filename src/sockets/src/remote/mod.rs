//! What a socket does with a stream to another host.
//!
//! * `link`: what a socket asks of its link.
//! * `advance`: the switch.
//! * `stream`, `record`: the way back to TCP.
//! * `claim`, `handover`: which process goes on with a socket whose stream ends.
//! * `record_rx`: what TCP tells beneath a stream.
//! * `advertised_buffer`, `lent`: the buffer of a waiting recv, lent to the peer.
//! * `await_placement`: the end of a send to such a buffer.

mod advance;
mod advertised_buffer;
mod await_placement;
mod claim;
mod handover;
pub mod lent;
mod link;
mod record;
mod record_rx;
mod stream;

pub use advance::{advance, lost};
pub use advertised_buffer::{
    Found, back as end_loan, is_any as is_lent, lend, look as look_at_loan, revoke as revoke_loan,
};
pub use await_placement::await_placement;
pub use handover::{await_return, finish, finish_reading, finish_within, release};
pub use link::{
    deliver, goes_direct, hides_tcp, is_far, is_held, is_remote, is_switching, of, reads_link,
    wants_more,
};
pub use record::{awaits_record, before_resend, may_finish, wants_no_answer};
#[cfg(any(test, feature = "testing"))]
pub use record_rx::note_removed;
pub use record_rx::{has_input, hear_tcp, hears, records, tcp_ended};
pub use stream::{demote, settle_rx, settle_tx};

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
