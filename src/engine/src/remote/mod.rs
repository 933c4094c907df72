//! Links to other hosts: `docs/decisions/008-verbs-links.md`.
//!
//! * [`wire`]: a link's queue pair, its local arena, and the pump between them.
//! * [`memory`], `small`: what of the arena is registered, and what lies beside it.

pub mod memory;
mod small;
pub mod wire;
