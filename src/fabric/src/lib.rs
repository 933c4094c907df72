//! Links: memory that two processes share, and the words, rings and doorbells in it.
//!
//! Guarantees: whatever a peer writes into shared memory, this crate reads it once, checks it
//! against what is possible, and then uses the checked copy; a peer can spoil its own streams and
//! nothing else, and no function here waits for a peer. Knows nothing of sockets or of stream
//! contents.
//!
//! * [`words`]: `tail|SEALED` and `head|SEIZED`, the two words that decide a demotion.
//! * [`layout`]: what lies where in an arena.
//! * [`arena`]: sealed memory files, made and checked.
//! * [`ring`]: copies into and out of a ring.
//! * [`doorbell`]: waiter slots: announce sleep, look again, ring.
//! * [`heap`]: memory for lists and records, amid the program's `malloc` too.
//! * [`outlet`]: a descriptor that threads write to and one of them closes.
//! * [`filter`]: whether a seccomp filter lets this library's system calls through.
//! * [`shm`]: a [`shm::Link`] between two processes of one host.
//! * `verbs`: queue pairs to another host.

#[cfg(not(loom))]
pub mod arena;
pub mod bucket;
pub mod doorbell;
#[cfg(not(loom))]
pub mod filter;
#[cfg(not(loom))]
pub mod heap;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod lock;
#[cfg(not(loom))]
pub mod outlet;
#[cfg(not(loom))]
pub mod ring;
#[cfg(not(loom))]
pub mod shm;
pub mod sync;
#[cfg(not(loom))]
pub mod sys;
#[cfg(all(feature = "verbs", not(loom)))]
pub mod verbs;
pub mod words;
