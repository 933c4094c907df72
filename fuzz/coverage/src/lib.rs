//! What others say to Sluice, drawn by a fuzzer: one module for each kind of hostile input, whose
//! `run` takes any bytes, comes to an end soon, and panics where something is wrong.
//!
//! The fuzzer's programs (`targets`) and the replay of what it has found (`tests/replay.rs`) call
//! the same functions.

pub mod arena;
pub mod configuration;
pub mod dial;
mod input;
pub mod messages;
pub mod pump;
pub mod records;
pub mod tables;
pub mod trace;
pub mod transit;

/// A kind of input: its name, that of its corpus, and what takes it.
pub type Target = (&'static str, fn(&[u8]));

/// All kinds.
pub const TARGETS: &[Target] = &[
    ("arena", arena::run),
    ("configuration", configuration::run),
    ("dial", dial::run),
    ("messages", messages::run),
    ("pump", pump::run),
    ("records", records::run),
    ("tables", tables::run),
    ("trace", trace::run),
    ("transit", transit::run),
];
