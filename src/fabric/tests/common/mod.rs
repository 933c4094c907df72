//! Bodies that run twice: under loom in every interleaving (`loom.rs`), and on real threads
//! (`stress.rs`). Each takes the algorithm as a type parameter: the one of the crate, or a copy
//! with one seeded bug, which must fail.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(missing_docs, reason = "private to the tests")]

pub mod cursors;
#[cfg(not(loom))]
pub mod link;
pub mod offers;
pub mod rt;
pub mod sleep;
