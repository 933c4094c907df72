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
//! `rendezvous/hosts`.

mod control_memory;
mod direct_qp;
pub mod endpoint;
pub mod endpoint_state;
mod inbox;
mod links;
pub mod memory;
pub mod mode;
pub mod queue;
mod stream_slots;
mod terms;
pub mod users;

pub use endpoint::endpoint_of;
pub use links::{arm, drive, is_to_another_host, left, moved};
pub use mode::least;
pub use queue::{arm_all, bell, drive_all, unbell, watch};
/// Has this process looked for other hosts?
pub use sluice_runtime::thread::{runs_devices as is_used, set_runs_devices as set_used};
