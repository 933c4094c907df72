//! Epoll sets, and the thread sets of poll and select, as sockets and links see them.
//!
//! `readiness` implements them, and registers its functions here when it makes the first set.
//! Before that no socket is in a set, and the calls below do nothing.

use crate::socket::Socket;
use core::sync::atomic::Ordering;
use libc::c_int;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::Fd;
use sluice_runtime::fd_table::{Kind, Object};
use std::sync::OnceLock;

/// A set, known only by the address of its structure in `readiness`.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Watcher([u8; 0]);

// SAFETY: only entries made from a set of `readiness` have this kind, and a `Watcher` is its
// address.
unsafe impl Object for Watcher {
    const KIND: Kind = Kind::Set;
}

/// The functions of `readiness`.
#[derive(Debug)]
pub struct Calls {
    /// See [`Watcher::ring`].
    pub ring: fn(&'static Watcher),
    /// See [`Watcher::is_private`].
    pub is_private: fn(&'static Watcher) -> bool,
    /// See [`Watcher::adopt_stream`].
    pub adopt_stream: fn(&'static Watcher, &'static Socket),
    /// See [`Watcher::forget_stream`].
    pub forget_stream: fn(&'static Watcher, &'static Socket, &'static Link, u32),
    /// See [`Watcher::writes_by_tcp`].
    pub writes_by_tcp: fn(&'static Watcher, &'static Socket, u64),
    /// See [`Watcher::forget_sock`].
    pub forget_sock: fn(&'static Watcher, &'static Socket),
    /// See [`Watcher::withdraw`].
    pub withdraw: fn(&'static Watcher, &'static Socket, c_int) -> bool,
    /// See [`Watcher::add_entry`].
    pub add_entry: fn(&'static Watcher),
    /// See [`Watcher::drop_entry`].
    pub drop_entry: fn(&'static Watcher),
    /// See [`Watcher::used_elsewhere`].
    pub used_elsewhere: fn(&'static Watcher),
    /// See [`Watcher::add_bell`].
    pub add_bell: fn(&'static Watcher, &'static Link, u32, Option<Fd>),
    /// See [`Watcher::empty_bell`].
    pub empty_bell: fn(&'static Watcher, &'static Link, u32),
    /// See [`number_goes`].
    pub number_goes: fn(&'static Socket, c_int),
    /// See [`number_gone`].
    pub number_gone: fn(&'static Socket, c_int),
    /// See [`slots_of`].
    pub slots_of: fn(&'static Socket, &'static Link) -> u64,
    /// See [`link_lost`].
    pub link_lost: fn(&'static Link),
}

static CALLS: OnceLock<Calls> = OnceLock::new();

/// Registers the functions of `readiness`; called when the first set is made.
pub fn served_by(calls: Calls) {
    let _ = CALLS.set(calls);
}

impl Watcher {
    /// Wakes one thread that sleeps in the set.
    pub fn ring(&'static self) {
        if let Some(calls) = CALLS.get() {
            (calls.ring)(self);
        }
    }

    /// Returns whether the set is a thread's own, for poll and select.
    pub fn is_private(&'static self) -> bool {
        CALLS.get().is_some_and(|calls| (calls.is_private)(self))
    }

    /// A registered socket has got a stream.
    pub fn adopt_stream(&'static self, sock: &'static Socket) {
        if let Some(calls) = CALLS.get() {
            (calls.adopt_stream)(self, sock);
        }
    }

    /// The stream of a registered socket has ended, and its index may be reused soon.
    pub fn forget_stream(&'static self, sock: &'static Socket, link: &'static Link, index: u32) {
        if let Some(calls) = CALLS.get() {
            (calls.forget_stream)(self, sock, link, index);
        }
    }

    /// A registered socket writes to TCP again. `waiters`: the slots that wait for space in its
    /// ring.
    pub fn writes_by_tcp(&'static self, sock: &'static Socket, waiters: u64) {
        if let Some(calls) = CALLS.get() {
            (calls.writes_by_tcp)(self, sock, waiters);
        }
    }

    /// A registered socket is closed.
    pub fn forget_sock(&'static self, sock: &'static Socket) {
        if let Some(calls) = CALLS.get() {
            (calls.forget_sock)(self, sock);
        }
    }

    /// Takes the number of a socket that lingers out of the kernel's set. False: not possible.
    pub fn withdraw(&'static self, sock: &'static Socket, fd: c_int) -> bool {
        CALLS
            .get()
            .is_some_and(|calls| (calls.withdraw)(self, sock, fd))
    }

    /// One more descriptor of this process refers to the set.
    pub fn add_entry(&'static self) {
        if let Some(calls) = CALLS.get() {
            (calls.add_entry)(self);
        }
    }

    /// One descriptor less refers to the set.
    pub fn drop_entry(&'static self) {
        if let Some(calls) = CALLS.get() {
            (calls.drop_entry)(self);
        }
    }

    /// The set is waited on where no hook serves it: its sockets stay on TCP.
    pub fn used_elsewhere(&'static self) {
        if let Some(calls) = CALLS.get() {
            (calls.used_elsewhere)(self);
        }
    }

    /// The peer's doorbell for a slot of the set has come, or the peer has connected to its name.
    pub fn add_bell(&'static self, link: &'static Link, slot: u32, bell: Option<Fd>) {
        if let Some(calls) = CALLS.get() {
            (calls.add_bell)(self, link, slot, bell);
        }
    }

    /// Drains the doorbell of a slot.
    pub fn empty_bell(&'static self, link: &'static Link, slot: u32) {
        if let Some(calls) = CALLS.get() {
            (calls.empty_bell)(self, link, slot);
        }
    }
}

/// A descriptor of a socket that has others is about to be closed.
pub fn number_goes(sock: &'static Socket, fd: c_int) {
    if let Some(calls) = CALLS.get() {
        (calls.number_goes)(sock, fd);
    }
}

/// A descriptor of a socket was closed without a hook.
pub fn number_gone(sock: &'static Socket, fd: c_int) {
    if let Some(calls) = CALLS.get() {
        (calls.number_gone)(sock, fd);
    }
}

/// The slots, as a mask, on which the sets of a socket wait on its link.
pub fn slots_of(sock: &'static Socket, link: &'static Link) -> u64 {
    CALLS.get().map_or(0, |calls| (calls.slots_of)(sock, link))
}

/// A link has lost its peer: no set waits on it any more.
pub fn link_lost(link: &'static Link) {
    if let Some(calls) = CALLS.get() {
        (calls.link_lost)(link);
    }
}

/// The sets of a socket, by index.
impl Socket {
    /// The set at index `i`, if any.
    pub fn set_at(&self, i: usize) -> Option<&'static Watcher> {
        // SAFETY: null, or a set, whose memory is type-stable.
        self.sets
            .get(i)
            .and_then(|s| unsafe { s.load(Ordering::Acquire).as_ref() })
    }

    /// Takes the socket out of the set at index `i`.
    pub(crate) fn leave_set_at(&'static self, i: usize) {
        if let Some(set) = self.set_at(i) {
            set.forget_sock(self);
        }
        if let Some(cell) = self.sets.get(i) {
            cell.store(core::ptr::null_mut(), Ordering::Release);
        }
    }
}
