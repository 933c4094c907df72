//! `libsluice.so`: the exported C symbols, and nothing else.
//!
//! A hook looks its descriptor up, hands the call to the real function when the descriptor is not
//! tracked, and else asks the engine ([`api`]) and turns the answer into a return value. Nothing is
//! decided here. What this package guarantees:
//!
//! - Hooks are right before [`load`] ran (other libraries' constructors call them), in a signal
//!   handler on untracked descriptors and in a `vfork` child: the untracked path has no lock, no
//!   allocation and no thread-local.
//! - A thread may be cancelled in the real call of a hook: nothing with a destructor is alive
//!   there.
//! - `errno` is changed by the real call and by [`errno`] only.
//! - A panic of the engine ends in [`boundary::contained`]. A hook that moves bytes does not call
//!   the real function after one, which could repeat them.
//!
//! `docs/decisions/001-hooks.md` says which hooks redhook makes, which it cannot, and why.
#![cfg(target_env = "gnu")]

#[macro_use]
mod real;
#[macro_use]
mod boundary;
mod errno;
mod hooks;

use sluice_fabric::heap::{Heap, Room};

#[cfg(feature = "probe")]
#[path = "../tests/probe.rs"]
mod api;
#[cfg(not(feature = "probe"))]
use sluice_engine::api;

/// What a heap has at once.
static ROOM: Room = Room::new();
/// Hooks run in signal handlers, which may have interrupted the program's `malloc`.
#[global_allocator]
static HEAP: Heap = Heap::new(Some(&ROOM));

/// By this symbol copies of the library in one process find out which of them is the first and
/// works (`copies.rs` of `runtime`): it leads to the counters of the copy that it belongs to.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a C symbol")]
pub static sluice_counters: &sluice_stats::Root = &sluice_stats::ROOT;

/// Runs when the library is loaded, though not before every hook: see the module's text.
#[ctor::ctor(unsafe)]
fn load() {
    // The default hook would print with the program's descriptor 2, through our own `write`.
    std::panic::set_hook(Box::new(|_| {}));
    hooks::resolve();
    boundary::tell(boundary::NO_FD, api::init);
}

/// Runs in `exit()` after the program's own handlers and destructors, as late as a library can.
extern "C" fn unload() {
    boundary::tell(boundary::NO_FD, api::exiting);
}

// A preloaded library is needed by no other, so the loader finalises it after the program itself.
// `atexit` would run it before handlers that were registered earlier.
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
