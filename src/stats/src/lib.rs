//! Counters and reasons. `#![no_std]`-friendly, no I/O.

mod reason;
pub use reason::Reason;
