//! What Sluice does beneath the C symbols: the calls that hooks make, and the life of the process.
//!
//! [`api`] is the whole of what the preload's hooks may call. Nothing here defines a C symbol, and
//! nothing here calls one that the preload exports: system calls are raw (`sluice_fabric::sys`).
//!
//! The layers are drawn in `docs/architecture.md`.

pub mod api;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub(crate) mod lifecycle;
pub(crate) mod relatives;

pub use sluice_rendezvous::hosts::hello;
