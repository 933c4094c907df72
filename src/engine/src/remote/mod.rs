//! Links to other hosts: `docs/decisions/008-verbs-links.md`.
//!
//! * `wire`, `parts`: a link's queue pair, its local arena, and the pump between them.
//! * `queue`, `inbox`: the completion queue that the links of a device share, and what of it goes
//!   to which.
//! * `memory`, `small`: what of the arena is registered, and what lies beside it.
//! * `handing`: which process goes on with a socket whose stream ends.
//! * `hearing`: what TCP tells beneath a stream.
//! * `stream`: what a socket does with a stream over a wire.
//! * `hosts`, `hello`, `proof`: dialling, listening, asking over wires that there are; what is said
//!   and proved then.
//!
//! Without the feature `verbs` there are none, and `none` answers.

#[cfg(feature = "verbs")]
mod berths;
#[cfg(feature = "verbs")]
mod handing;
#[cfg(feature = "verbs")]
mod hearing;
#[cfg(feature = "verbs")]
pub mod hello;
#[cfg(feature = "verbs")]
mod hosts;
#[cfg(feature = "verbs")]
mod inbox;
#[cfg(feature = "verbs")]
mod lane;
#[cfg(feature = "verbs")]
mod loan;
#[cfg(feature = "verbs")]
pub mod memory;
#[cfg(not(feature = "verbs"))]
mod none;
#[cfg(feature = "verbs")]
mod parts;
#[cfg(feature = "verbs")]
mod proof;
#[cfg(feature = "verbs")]
mod queue;
#[cfg(feature = "verbs")]
mod small;
#[cfg(feature = "verbs")]
mod stream;
#[cfg(feature = "verbs")]
pub mod wire;

#[cfg(feature = "verbs")]
pub(crate) use handing::{
    answer_calls, await_return, claim, finish, finish_reading, finish_within, release,
};
#[cfg(feature = "verbs")]
#[cfg(test)]
pub(crate) use hearing::note_removed;
#[cfg(feature = "verbs")]
pub(crate) use hearing::{hear_tcp, hears, hides_tcp, reads_link, records, tcp_ended};
#[cfg(feature = "verbs")]
pub(crate) use hosts::{
    after_fork, attempt, begin, hold, is_used, on_event, progress, release_hold,
};
#[cfg(feature = "verbs")]
pub(crate) use loan::{
    Found, Lent, back as end_loan, is_any as is_lent, least, lend, look as look_at_loan,
    revoke as revoke_loan, shut as shut_loan,
};
#[cfg(not(feature = "verbs"))]
pub(crate) use none::*;
#[cfg(feature = "verbs")]
pub(crate) use queue::{arm_all, bell, drive_all, unbell};
#[cfg(feature = "verbs")]
pub(crate) use stream::{
    advance, arm, awaits_record, before_resend, deliver, demote, drive, goes_direct, has_input,
    is_far, is_held, is_remote, is_switching, is_to_another_host, land, left, may_finish, moved,
    settle_rx, settle_tx, wants_more, wants_no_answer,
};

/// So long exec, passing and raw use wait for the peer's record.
pub(crate) const PATIENCE_NS: u64 = 5_000_000_000;

/// What a half that is on its way back to TCP finds before it may send again.
pub(crate) enum Before {
    /// TCP takes the program's bytes from this position on.
    Ready(u64),
    /// Not before the link, or the peer, has told more.
    Held,
    /// TCP has no room for the record.
    Full,
    /// The connection is over.
    Over,
}
