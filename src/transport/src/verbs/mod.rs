//! Links to other hosts: `docs/decisions/008-verbs-links.md`.
//!
//! * `endpoint`, `endpoint_state`: a link's queue pair, its local arena, and the pump between them.
//! * `stream_slots`, `direct_qp`: the slots of its streams, and a queue pair for direct transfers.
//! * `queue`, `inbox`: the completion queue that the links of a device share, and an inbox of
//!   completions for each queue pair.
//! * `memory`, `control_memory`: registered parts of the arena, and registered memory beside it.
//! * `terms`: constants and messages that these files share.
//! * `links`: what threads that look at a link, or sleep on it, call.
//! * `users`: callbacks into the layers above.
//! * `mode`: which direct transfers are made.
//!
//! `sockets/remote` sends and receives over such a link, and `rendezvous/hosts` sets it up. Without
//! the feature `verbs`, `none` has stubs.

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
/// True if this process has looked for other hosts.
#[cfg(feature = "verbs")]
pub use sluice_runtime::thread::{runs_devices as is_used, set_runs_devices as set_used};
