//! Links to other hosts: `docs/decisions/008-verbs-links.md`.
//!
//! * `endpoint`, `endpoint_state`: a link's queue pair, its local arena, and the pump between them.
//! * `stream_slots`, `direct_qp`: the slots of its streams, and a queue pair for direct transfers.
//! * `queue`, `inbox`: the completion queue that the links of a device share, and an inbox of
//!   completions for each queue pair.
//! * `memory`, `control_memory`: registered parts of the arena, and registered memory beside it.
//! * `window`, `pages`, `page_costs`: a part of a file whose own pages the device reads; those of
//!   an endpoint, and which bytes of its streams they are (`endpoint_pages`); what that costs.
//! * `pace`: whether a stream's ring is too short for its path, or TCP faster.
//! * `terms`: constants and messages that these files share.
//! * `users`: callbacks into the layers above.
//! * `mode`: which direct transfers are made; `loan_costs`: what they cost. `costs`: numbers
//!   by the class of a length.
//!
//! `sockets/carrier` sends and receives over such a link, and `rendezvous/hosts` sets it up.

mod control_memory;
mod costs;
mod direct_qp;
pub mod endpoint;
mod endpoint_pages;
pub mod endpoint_state;
mod inbox;
pub mod loan_costs;
pub mod memory;
pub mod mode;
pub mod pace;
pub mod page_costs;
pub mod pages;
pub mod queue;
mod stream_slots;
pub(crate) mod terms;
pub mod users;
pub mod window;

pub use endpoint::endpoint_of;
pub use mode::least;
pub use queue::watch;
