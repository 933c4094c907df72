//! What carries the bytes of streams, beneath sockets: links to other hosts.
//!
//! (A link within a host is memory that both ends write to: `sluice_fabric::shm`.)

#![cfg_attr(
    not(feature = "verbs"),
    allow(dead_code, reason = "some of it only streams to other hosts use")
)]

pub mod verbs;
