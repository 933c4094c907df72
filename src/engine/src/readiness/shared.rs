//! Sets that two processes use.
//!
//! A child inherits its parent's epoll sets. Most never touch them. One that does shares the
//! kernel's registrations with its parent, and could take the parent's doorbells: from then on no
//! stream is served by such a set, in either process. One word per set, in memory shared over fork,
//! says so. A number that was used once by a relative is never given out again.

use super::nest;
use super::parked;
use super::set::{self, Set};
use crate::process;
use crate::sockets::demote::{self, Which};
use crate::sockets::internal;
use crate::sockets::remains;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use sluice_fabric::sys;
use sluice_stats::Reason;

/// Sets of one process.
pub(super) const SETS_MAX: usize = 4096;

/// The words; null before the first fork.
static WORDS: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

fn word(number: usize) -> Option<&'static AtomicU32> {
    let base = WORDS.load(Ordering::Acquire);
    if base.is_null() || number >= SETS_MAX {
        return None;
    }
    // SAFETY: inside the mapping of SETS_MAX words, which is never unmapped.
    Some(unsafe { &*base.add(number) })
}

/// Has a relative of this process used the set with this number?
#[inline]
pub(super) fn is_marked(number: usize) -> bool {
    word(number).is_some_and(|w| w.load(Ordering::SeqCst) != 0)
}

/// Before a fork: the words must be there.
pub fn before_fork() {
    parked::before_fork();
    if !WORDS.load(Ordering::Relaxed).is_null() || !set::any() {
        return;
    }
    if let Ok(base) = sys::map_zeroes(SETS_MAX * size_of::<AtomicU32>(), true) {
        // Of two threads that fork at once the first has made them for both.
        let (null, order) = (core::ptr::null_mut(), Ordering::AcqRel);
        let first = WORDS.compare_exchange(null, base.cast(), order, Ordering::Relaxed);
        if first.is_err() {
            // SAFETY: just mapped, with this length, and seen by nobody else.
            unsafe { sys::unmap(base, SETS_MAX * size_of::<AtomicU32>()) };
        }
    }
}

impl Set {
    /// A child of a fork uses a set of its parent's for the first time.
    #[cold]
    pub(super) fn use_inherited(&'static self) {
        if !self.inherited.swap(false, Ordering::AcqRel) {
            return;
        }
        // Where a handler forked in the middle of a use of this very set, that has waited until now.
        self.disown();
        if let Some(word) = word(self.number) {
            word.store(1, Ordering::SeqCst);
        }
        self.back_to_tcp(Reason::Fork);
        // Whoever sleeps in the parent looks at the word.
        self.ring();
    }

    /// Somebody waits for the set, or may, whom no hook serves: who sees what the kernel has in it, and that alone.
    #[cold]
    pub fn used_elsewhere(&'static self) {
        self.goes_elsewhere(nest::DEPTH);
    }

    fn goes_elsewhere(&'static self, depth: usize) {
        self.is_used_elsewhere.store(true, Ordering::SeqCst);
        for sock in self.with(|inside| inside.socks()).unwrap_or_default() {
            crate::sockets::life::give_up_to_read(sock, Reason::SetElsewhere);
            remains::await_all_owed(sock);
        }
        self.takes_bells_out();
        self.sets_within(depth)
            .for_each(|inner| inner.goes_elsewhere(depth - 1));
    }

    /// No stream is left to ring for: takes what is the library's out of the kernel's set.
    fn takes_bells_out(&'static self) {
        let idle = self.with(|inside| {
            let (idle, rest) = core::mem::take(&mut inside.links)
                .into_iter()
                .partition::<Vec<_>, _>(|on| on.streams == 0);
            inside.links = rest;
            idle
        });
        idle.into_iter().flatten().for_each(set::release);
        if self.remote.load(Ordering::Relaxed) {
            crate::remote::unbell(self.fd());
        }
        self.wake.close(internal::forget);
    }

    /// No stream is served by this set any more.
    #[cold]
    pub(super) fn back_to_tcp(&'static self, reason: Reason) {
        if reason == Reason::Shared && self.remote.load(Ordering::Relaxed) {
            crate::remote::unbell(self.fd());
        }
        let mut socks = self.with(|inside| inside.socks()).unwrap_or_default();
        socks.retain(|sock| !process::is_vfork_child() && sock.is_accelerated());
        for sock in &socks {
            sock.pin(Reason::Shared);
            demote::demote(sock, Which::Both, reason);
        }
        // What lay in the rings is readable on TCP: a wait that tells of room alone would deny it.
        for sock in socks {
            remains::await_owed(sock);
        }
    }
}
