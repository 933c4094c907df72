//! `libsluice.so`: the exported C symbols, and nothing else.
#![cfg(target_env = "gnu")]
