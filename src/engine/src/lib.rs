//! What Sluice does beneath the C symbols: the calls that hooks make, and the life of the process.
//!
//! [`api`] is the whole of what the preload's hooks may call. Nothing here defines a C symbol, and
//! nothing here calls one that the preload exports: system calls are raw (`sluice_fabric::sys`).
//!
//! The layers are drawn in `docs/architecture.md`.

#![cfg_attr(
    not(feature = "verbs"),
    allow(dead_code, reason = "some of it only streams to other hosts use")
)]

pub mod api;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub(crate) mod lifecycle;
pub(crate) mod relatives;

#[cfg(feature = "verbs")]
pub use sluice_rendezvous::hosts::hello;
