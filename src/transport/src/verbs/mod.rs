//! Links to other hosts: `docs/decisions/008-verbs-links.md`.
//!
//! * `endpoint`, `endpoint_state`: a link's queue pair, its local arena, and the pump between them.
//! * `stream_slots`, `direct_qp`: its streams' places, and a queue pair for direct transfers.
//! * `queue`, `inbox`: the completion queue that the links of a device share, and what of it goes
//!   to which.
//! * `memory`, `control_memory`: what of the arena is registered, and what lies beside it.
//! * `terms`: the numbers that these share, and what they say to each other.
//! * `links`: what threads ask of a link that they look at, or sleep on.
//! * `users`: what the layers above do at its news.
//! * `mode`: which direct transfers are made.
//!
//! What a socket does with a stream over one is in `sockets/remote`; how hosts meet in
//! `rendezvous/hosts`. Without the feature `verbs` there are none, and `none` answers.

#[cfg(feature = "verbs")]
mod control_memory;
#[cfg(feature = "verbs")]
mod direct_qp;
#[cfg(feature = "verbs")]
pub mod endpoint;
#[cfg(feature = "verbs")]
pub mod endpoint_state;
#[cfg(feature = "verbs")]
mod inbox;
#[cfg(feature = "verbs")]
mod links;
#[cfg(feature = "verbs")]
pub mod memory;
#[cfg(feature = "verbs")]
pub mod mode;
#[cfg(not(feature = "verbs"))]
#[allow(
    missing_docs,
    reason = "as those that have their names in other builds"
)]
mod none;
#[cfg(feature = "verbs")]
pub mod queue;
#[cfg(feature = "verbs")]
mod stream_slots;
#[cfg(feature = "verbs")]
mod terms;
#[cfg(feature = "verbs")]
pub mod users;

#[cfg(feature = "verbs")]
pub use endpoint::endpoint_of;
#[cfg(feature = "verbs")]
pub use links::{arm, drive, is_to_another_host, left, moved};
#[cfg(feature = "verbs")]
pub use mode::least;
#[cfg(not(feature = "verbs"))]
pub use none::*;
#[cfg(feature = "verbs")]
pub use queue::{arm_all, bell, drive_all, unbell, watch};
/// Has this process looked for other hosts?
#[cfg(feature = "verbs")]
pub use sluice_runtime::thread::{runs_devices as is_used, set_runs_devices as set_used};
