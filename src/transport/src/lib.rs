//! What carries a stream: memory of this host that both ends share (`sluice_fabric::shm`), or a
//! queue pair to another host ([`verbs`]).
//!
//! The layers above use both by one interface. [`Carrier`] has the facts in which they differ, and
//! [`links`] what a thread calls that looks at a link or sleeps on it.

mod carrier;
pub mod links;
pub mod verbs;

pub use carrier::{Carrier, FULL_REMOTE_NS, PUBLISH};
