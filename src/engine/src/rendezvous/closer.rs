//! Threads for what may wait for ever: closing a descriptor that somebody else has sent, or receiving one.
//!
//! A file may be on a file system whose server never answers (FUSE), a TCP socket may linger, a memory file takes long to be freed; and a
//! Unix socket is closed with all that lies unread in it. Whoever sends such a thing must not hold up a thread that has anything else
//! to do. So each gets a thread of its own, which is stuck at worst.

use super::control;
use super::identity;
use super::message::{self, Next};
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_fabric::sys::{self, Fd};

/// Threads at once. What comes beyond stays open, as long as the process lives.
const THREADS: u32 = 16;
static BUSY: AtomicU32 = AtomicU32::new(0);

/// How many there are.
#[cfg(test)]
pub(super) fn busy() -> u32 {
    BUSY.load(Ordering::Acquire)
}

type Work = Box<dyn FnOnce() + Send>;

extern "C" fn run(work: *mut libc::c_void) -> *mut libc::c_void {
    sys::name_thread(c"sluice-close");
    // SAFETY: made by `apart` for this thread alone.
    let work = unsafe { Box::from_raw(work.cast::<Work>()) };
    work();
    BUSY.fetch_sub(1, Ordering::AcqRel);
    core::ptr::null_mut()
}

/// Does something in a thread of its own; false: there are too many, or none can be made, and it was not done.
pub(super) fn apart(work: impl FnOnce() + Send + 'static) -> bool {
    let room = |n: u32| (n < THREADS).then_some(n + 1);
    if BUSY
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, room)
        .is_err()
    {
        return false;
    }
    let work: *mut Work = Box::into_raw(Box::new(Box::new(work)));
    let spawned = control::spawn(run, work.cast()).is_ok();
    if !spawned {
        BUSY.fetch_sub(1, Ordering::AcqRel);
        // SAFETY: no thread has it. What it owns is not dropped: that is what may wait.
        core::mem::forget(unsafe { Box::from_raw(work) });
    }
    spawned
}

/// Closes a descriptor that came from somebody else.
pub(super) fn dispose(fd: Fd) {
    let fd = fd.release();
    if !apart(move || drop(Fd::own(fd))) {
        // It stays open, and the program is not to take it for one of its own.
        crate::sockets::internal::enter(fd);
    }
}

/// A Unix socket to somebody who is not trusted: closed without waiting for what lies unread in it.
#[derive(Debug)]
pub(super) struct Way {
    fd: Option<Fd>,
    /// Descriptors may come by it.
    is_open: bool,
}

impl Way {
    /// A socket that is [prepared](identity::prepare).
    pub fn new(fd: Fd) -> Self {
        Self {
            fd: Some(fd),
            is_open: !identity::refuses_descriptors(),
        }
    }

    /// The number.
    pub fn raw(&self) -> i32 {
        self.fd.as_ref().map_or(-1, Fd::raw)
    }

    /// From now on the peer may send descriptors.
    pub fn open(&mut self) {
        self.is_open = true;
        let _ = identity::let_descriptors_in(self.raw(), true);
    }

    /// May a record have brought descriptors?
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The socket has another owner from now on.
    pub fn release(mut self) -> i32 {
        self.fd.take().map_or(-1, Fd::release)
    }

    /// Closes it in a child of a fork: what lies in it stays with the parent's.
    pub fn close_copy(mut self) {
        drop(self.fd.take());
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        if self.is_open {
            close(fd);
        }
    }
}

/// Closes a socket by which descriptors may have come: by itself if none have.
pub(super) fn close(fd: Fd) {
    // Nothing more comes in, and nobody.
    let _ = sys::shutdown(fd.raw(), libc::SHUT_RD);
    // Of a name: who had come, and was not let in.
    while let Ok(visitor) = sys::accept(fd.raw()) {
        let _ = sys::shutdown(visitor.raw(), libc::SHUT_RD);
        if has_unread(&visitor) {
            dispose(visitor);
        }
    }
    if has_unread(&fd) {
        crate::sockets::internal::forget(fd.raw());
        dispose(fd);
    }
}

fn has_unread(fd: &Fd) -> bool {
    matches!(message::next(fd.raw()), Next::Plain | Next::Brings)
}

/// In the child of a fork: there are no such threads.
pub(super) fn after_fork() {
    BUSY.store(0, Ordering::Relaxed);
}
