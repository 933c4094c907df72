//! Links to other hosts: `docs/decisions/008-verbs-links.md`.
//!
//! * [`wire`]: a link's queue pair, its local arena, and the pump between them.
//! * [`memory`]: what of the arena is registered.

pub mod memory;
pub mod wire;
