//! Epoll sets, and the lists of poll and select, as sockets and links know them.
//!
//! What one is made of is the business of `readiness`, which gives its functions here when the
//! first is made: until then no socket is in one.

use crate::socket::Socket;
use core::sync::atomic::Ordering;
use libc::c_int;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::Fd;
use sluice_runtime::fd_table::{Kind, Object};
use std::sync::OnceLock;

/// A set. Only ever by its address, which is that of the structure of `readiness`.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Watcher([u8; 0]);

// SAFETY: the same structure as that of `readiness`, of which it knows the address alone.
unsafe impl Object for Watcher {
    const KIND: Kind = Kind::Set;
}

/// What `readiness` does.
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

/// Called when the first set is made.
pub fn served_by(calls: Calls) {
    let _ = CALLS.set(calls);
}

impl Watcher {
    /// Wakes one thread that sleeps in it.
    pub fn ring(&'static self) {
        if let Some(calls) = CALLS.get() {
            (calls.ring)(self);
        }
    }

    /// Is it a thread's own, for poll and select?
    pub fn is_private(&'static self) -> bool {
        CALLS.get().is_some_and(|calls| (calls.is_private)(self))
    }

    /// A registered socket has a stream.
    pub fn adopt_stream(&'static self, sock: &'static Socket) {
        if let Some(calls) = CALLS.get() {
            (calls.adopt_stream)(self, sock);
        }
    }

    /// A registered socket's stream is over; its memory may be another stream's soon.
    pub fn forget_stream(&'static self, sock: &'static Socket, link: &'static Link, index: u32) {
        if let Some(calls) = CALLS.get() {
            (calls.forget_stream)(self, sock, link, index);
        }
    }

    /// What a registered socket writes goes to TCP again. `waiters`: slots that wait for room.
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

    /// Takes a number that lingers out of the kernel's set. False: not possible.
    pub fn withdraw(&'static self, sock: &'static Socket, fd: c_int) -> bool {
        CALLS
            .get()
            .is_some_and(|calls| (calls.withdraw)(self, sock, fd))
    }

    /// One more descriptor of this process is for it.
    pub fn add_entry(&'static self) {
        if let Some(calls) = CALLS.get() {
            (calls.add_entry)(self);
        }
    }

    /// One less.
    pub fn drop_entry(&'static self) {
        if let Some(calls) = CALLS.get() {
            (calls.drop_entry)(self);
        }
    }

    /// No hook serves all that wait for it: what is in it stays on TCP.
    pub fn used_elsewhere(&'static self) {
        if let Some(calls) = CALLS.get() {
            (calls.used_elsewhere)(self);
        }
    }

    /// The peer's doorbell for a slot of it has come, or the peer to its name.
    pub fn add_bell(&'static self, link: &'static Link, slot: u32, bell: Option<Fd>) {
        if let Some(calls) = CALLS.get() {
            (calls.add_bell)(self, link, slot, bell);
        }
    }

    /// Takes the rings out of the doorbell of a slot.
    pub fn empty_bell(&'static self, link: &'static Link, slot: u32) {
        if let Some(calls) = CALLS.get() {
            (calls.empty_bell)(self, link, slot);
        }
    }
}

/// Before a number of a socket that has others is closed.
pub fn number_goes(sock: &'static Socket, fd: c_int) {
    if let Some(calls) = CALLS.get() {
        (calls.number_goes)(sock, fd);
    }
}

/// A number of a socket was closed unseen.
pub fn number_gone(sock: &'static Socket, fd: c_int) {
    if let Some(calls) = CALLS.get() {
        (calls.number_gone)(sock, fd);
    }
}

/// Waiter slots, as a mask, of all sets that a socket is in, on its link.
pub fn slots_of(sock: &'static Socket, link: &'static Link) -> u64 {
    CALLS.get().map_or(0, |calls| (calls.slots_of)(sock, link))
}

/// A link has lost its peer: no set waits on it any more.
pub fn link_lost(link: &'static Link) {
    if let Some(calls) = CALLS.get() {
        (calls.link_lost)(link);
    }
}

/// A structure's sets, by index.
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
