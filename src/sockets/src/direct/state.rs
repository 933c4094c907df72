//! What a socket keeps for direct transfers.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use sluice_stream::{Receiver, Sender};

/// What the lock of a half guards. Uninitialised until that half is on the link.
#[derive(Debug)]
pub(super) struct Owned<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: reached under the lock of its half only.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// # Safety
    /// The lock of the half is held, and `set` was called.
    #[expect(clippy::mut_from_ref, reason = "the half's lock makes it unique")]
    pub(super) unsafe fn get(&self) -> &mut T {
        // SAFETY: the caller vouches for both.
        unsafe { (*self.0.get()).assume_init_mut() }
    }

    /// # Safety
    /// The lock of the half is held.
    pub(super) unsafe fn set(&self, value: T) {
        // SAFETY: the lock makes this the only access. The old value needs no drop.
        unsafe { self.0.get().write(MaybeUninit::new(value)) };
    }
}

/// A socket's part in direct transfers. Zero is the state of a new one.
#[derive(Debug)]
pub struct Direct {
    pub(super) tx: Owned<Outgoing>,
    pub(super) rx: Owned<Incoming>,
    /// Under the tx lock: number of the offer that is up, 0 for none.
    pub(super) up: AtomicU64,
    pub(super) up_len: AtomicU32,
    pub(super) up_round: AtomicU8,
    /// Under the tx lock: whether the peer may read what is offered, as far as asked.
    pub(super) offers: AtomicU8,
    /// The thread whose send has the turn, 0 for none.
    pub(super) owner: AtomicUsize,
    /// Under the tx lock: when (`sys::now_ns`) a send that may not wait was first refused for
    /// another's turn, 0: none was.
    pub(super) refused_ns: AtomicU64,
    /// Under the tx lock: an offer that was resolved by another than its owner, and how much of it
    /// was taken. Until the owner has read it, none is made.
    pub(super) resolved: AtomicU64,
    pub(super) resolved_len: AtomicU32,
    /// Under the rx lock: the offer line's word that needs no look any more.
    pub seen: AtomicU64,
}

/// What the rx lock guards.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) receiver: Receiver,
    /// The hint in the reader's wishes, as last written.
    pub(super) pulls: bool,
    /// Where the peer says with its first offer that its token lies; 0: none came so far, or its
    /// memory is not read.
    pub(super) token_at: u64,
}

/// What the tx lock guards.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) sender: Sender,
    /// What `Half::gate` is while no offer is up.
    pub(super) gate: u32,
    /// Withdrawals since the head was at `still_at`.
    pub(super) rounds: u8,
    pub(super) still_at: u64,
    /// Large sends that go without an offer, and how many it will be after the next failure.
    pub(super) skip: u32,
    pub(super) next_skip: u32,
}
