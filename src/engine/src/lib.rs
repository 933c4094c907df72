//! The engine beneath the C symbols: the calls that hooks make, and the life of the process.
//!
//! Hooks of the preload call nothing but [`api`]. The engine defines no C symbol, and calls none
//! that the preload exports: its system calls are raw (`sluice_fabric::sys`).
//!
//! `docs/architecture.md` describes the layers.

pub mod api;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub(crate) mod lifecycle;
pub(crate) mod relatives;

pub use sluice_rendezvous::hosts::hello;
