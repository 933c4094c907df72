//! What the layers above do when a link to another host has news of one of its streams.

use sluice_fabric::shm::Link;
use std::sync::OnceLock;

/// Their functions. `near` is this process's end of the link, and the number that of a stream.
#[derive(Debug)]
pub struct Users {
    /// Wakes those waiters of this process that the mask names.
    pub wake: fn(near: &'static Link, waiters: u64, index: u32),
    /// The same, of threads alone: no epoll set.
    pub wake_threads: fn(near: &'static Link, waiters: u64, index: u32),
    /// What the reader has not read comes again by TCP.
    pub owes: fn(near: &'static Link, index: u32),
    /// Bytes of ring for one more stream.
    pub ring_len: fn(near: &Link) -> u32,
    /// A device's descriptor has nothing more to tell, though it may be readable until it is
    /// closed.
    pub bell_goes: fn(fd: i32),
}

static USERS: OnceLock<Users> = OnceLock::new();

/// Called once, before the first link.
pub fn used_by(users: Users) {
    let _ = USERS.set(users);
}

/// Calls one of them.
pub(super) fn with<R>(call: impl FnOnce(&Users) -> R) -> Option<R> {
    USERS.get().map(call)
}
