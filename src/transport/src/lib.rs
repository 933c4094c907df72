//! What carries the bytes of streams, beneath sockets: links to other hosts.
//!
//! (A link within a host is memory that both ends write to: `sluice_fabric::shm`.)

pub mod verbs;
