//! State of direct transfers in a socket.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use sluice_stream::{Receiver, Sender};

/// Data guarded by the lock of a half. Uninitialised until that half is on the link.
#[derive(Debug)]
pub(super) struct Owned<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: `get` and `set` demand the lock of the half, so one thread at a time has access.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// # Safety
    /// The caller holds the lock of the half, and `set` was called.
    #[expect(clippy::mut_from_ref, reason = "the half's lock makes it unique")]
    pub(super) unsafe fn get(&self) -> &mut T {
        // SAFETY: the caller holds the lock, so this is the only reference; `set` was called.
        unsafe { (*self.0.get()).assume_init_mut() }
    }

    /// # Safety
    /// The caller holds the lock of the half.
    pub(super) unsafe fn set(&self, value: T) {
        // SAFETY: the caller holds the lock, so this is the only access. The old value needs no
        // drop.
        unsafe { self.0.get().write(MaybeUninit::new(value)) };
    }
}

/// A socket's state of direct transfers; all zeroes when new.
#[derive(Debug)]
pub struct Direct {
    pub(super) tx: Owned<Outgoing>,
    pub(super) rx: Owned<Incoming>,
    /// Number of the offer that is up; 0: none. Under the tx lock.
    pub(super) up: AtomicU64,
    pub(super) up_len: AtomicU32,
    pub(super) up_round: AtomicU8,
    /// Whether the peer may read what is offered, if known. Under the tx lock.
    pub(super) offers: AtomicU8,
    /// The thread whose send has the turn; 0: none.
    pub(super) owner: AtomicUsize,
    /// When (`sys::now_ns`) a non-blocking send was first refused because another has the turn; 0:
    /// not refused. Under the tx lock.
    pub(super) refused_ns: AtomicU64,
    /// An offer that another thread than its owner has resolved, and how much of it was taken. No
    /// new offer is made until the owner has read it. Under the tx lock.
    pub(super) resolved: AtomicU64,
    pub(super) resolved_len: AtomicU32,
    /// The offer line's word that needs no further look. Under the rx lock.
    pub seen: AtomicU64,
}

/// Guarded by the rx lock.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) receiver: Receiver,
    /// The hint in the reader's wishes, as last written.
    pub(super) pulls: bool,
    /// Address of the peer's token, from its first offer; 0: no offer so far, or its memory is not
    /// read.
    pub(super) token_at: u64,
}

/// Guarded by the tx lock.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) sender: Sender,
    /// The value of `Half::gate` while no offer is up.
    pub(super) gate: u32,
    /// Withdrawals since the head was at `still_at`.
    pub(super) rounds: u8,
    pub(super) still_at: u64,
    /// How many large sends go without an offer now, and will after the next failure.
    pub(super) skip: u32,
    pub(super) next_skip: u32,
}
