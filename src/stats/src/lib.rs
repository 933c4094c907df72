//! Counters of every connection and the reasons why it is, or is not, on TCP.
//!
//! The counters live in ordinary private memory of the process that counts. `sluice stat` copies
//! them out with `process_vm_readv`, so the kernel's ptrace rule decides which user may look,
//! nothing is visible to other users, and a killed process leaves nothing. That makes the types
//! here a layout: `repr(C)`, integers only, versioned by [`LAYOUT`].
//!
//! Everything here may be called from a signal handler, before any constructor ran and after a
//! fork: no lock, no allocator, no thread-local, no panic, and the only system calls are `mmap`
//! and `munmap`, made raw. This package knows nothing of sockets, streams and links.
//!
//! # How the tool finds the counters
//!
//! [`ROOT`] starts with [`MAGIC`] and is initialised at compile time, so it lies in a writable
//! mapping of `libsluice.so` as soon as the program has been loaded. A reader takes the mappings
//! that lie as the loader puts them from `/proc/PID/maps`, looks for the magic at each multiple of
//! 64 bytes and checks what follows it. Unlike a symbol table this also works when the file on disk
//! was stripped or replaced.
#![no_std]

#[cfg(test)]
extern crate std;

mod cell;
mod conn;
mod events;
mod reason;
mod root;

pub use cell::{Counter, Gauge};
pub use conn::{Bytes, Conn, Direction, Family, Role, Transport};
pub use events::{Event, KEPT, Kind, Log, TRACE_LAYOUT, TRACED, TraceFile};
pub use events::{take_trace_up, trace_to, want_trace, wants_trace};
pub use reason::{REASON_SLOTS, Reason};
pub use root::{
    CHUNK_LEN, CHUNK_SLOTS, Chunk, Header, LAYOUT, MAGIC, ROOT, Root, adopt_conn, alloc_conn,
    free_conn, monotonic_ns, reset_after_fork,
};

/// Version of what two processes say to each other before they share memory. Those of different
/// versions stay on TCP with each other.
pub const PROTOCOL: u16 = 3;
