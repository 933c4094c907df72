//! Each thread's private set, which holds its doorbells for poll and select.

use super::set::{self, Set};
use core::cell::Cell;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_runtime::thread;

thread_local! {
    /// The private set in which this thread's doorbells for poll and select are.
    static BELLS: Cell<Option<&'static Set>> = const { Cell::new(None) };
}

/// This thread's private set, made at first use.
pub(super) fn bells() -> Option<&'static Set> {
    if let Some(set) = BELLS.get() {
        return Some(set);
    }
    let _low = sluice_runtime::own_fds::Low::begin();
    let fd = sluice_runtime::own_fds::lift(sys::epoll_create().ok()?)?;
    let set = set::alloc(fd.raw())?;
    let _ = fd.release();
    set.private.store(true, Ordering::Relaxed);
    BELLS.set(Some(set));
    thread::watch_exit();
    Some(set)
}

/// The thread ends: closes its private set.
pub fn thread_ends() {
    if let Some(set) = BELLS.take() {
        let fd = set.fd();
        set.drop_entry();
        sluice_runtime::own_fds::close(fd);
    }
}

/// In the child of a fork: forgets the private set, whose doorbells are the parent's.
pub fn after_fork() {
    BELLS.set(None);
}

impl Set {
    /// Takes all rings and marks of a private set. It only ever says that something rang; the
    /// streams are looked at one by one.
    pub(super) fn drain(&'static self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let now = sys::timespec(0);
        // SAFETY: an array of ours.
        let _ = unsafe {
            sys::epoll_wait(
                self.fd(),
                events.as_mut_ptr(),
                16,
                Some(&now),
                core::ptr::null(),
            )
        };
        let _ = self.collect_ready(&mut []);
    }
}
