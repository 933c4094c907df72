//! Links to other hosts, for the layer of sockets.
//!
//! A link within a host is memory that both ends write to: `sluice_fabric::shm`.

#![cfg_attr(
    not(feature = "verbs"),
    allow(dead_code, reason = "some of it only streams to other hosts use")
)]

pub mod verbs;
