//! Links to other hosts, for the layer of sockets.
//!
//! A link within a host is memory that both ends write to: `sluice_fabric::shm`.

pub mod verbs;
