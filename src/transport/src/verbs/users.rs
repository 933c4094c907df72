//! Callbacks into the layers above, for news of streams of links to other hosts.

use sluice_fabric::shm::Link;
use std::sync::OnceLock;

/// The callbacks. `near` is this process's end of the link, and `index` the number of a stream
/// there.
#[derive(Debug)]
pub struct Users {
    /// Wakes the waiters of this process that the mask names.
    pub wake: fn(near: &'static Link, waiters: u64, index: u32),
    /// Wakes those of them that are threads, and no epoll set.
    pub wake_threads: fn(near: &'static Link, waiters: u64, index: u32),
    /// The stream went back to TCP: the peer sends its unread bytes again there.
    pub owes: fn(near: &'static Link, index: u32),
    /// A device's descriptor is about to be closed, and has no more news.
    pub bell_goes: fn(fd: i32),
}

static USERS: OnceLock<Users> = OnceLock::new();

/// Sets the callbacks. Called once, before the first link.
pub fn used_by(users: Users) {
    let _ = USERS.set(users);
}

/// Calls one of the callbacks; `None` before [`used_by`].
pub(super) fn with<R>(call: impl FnOnce(&Users) -> R) -> Option<R> {
    USERS.get().map(call)
}
