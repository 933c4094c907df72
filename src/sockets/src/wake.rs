//! Waking threads that wait on a stream: the peer's waiters, and this process's own.
//!
//! A waiter, a thread or an epoll set, has a slot on the link. Each half of a direction has a mask
//! of the slots that wait for it (`waiters`). The functions here take such a mask, mark the stream
//! in the slots, and ring the owners that sleep.
//!
//! | function | wakes | called after |
//! |---|---|---|
//! | [`peer`] | the other end's waiters | this end has moved a word |
//! | [`own`] | this process's waiters | a change made here, or by the pump that plays the peer |
//! | [`own_threads`] | the same without epoll sets | a change of state, or news of TCP |
//! | [`ring_own`] | the owner of one slot | its mark, or a request of the peer |
//!
//! A change must keep these rules:
//! - The caller changes the word or the state first, then reads the mask, with a full fence in
//!   between. A waiter does the reverse, so at least one of the two sees the other.
//! - All marks come before the first ring, since a thread that is rung may run at once.
//! - The slots lie in memory that the peer can write, so nothing here waits for their contents.

use crate::socket::watcher::Watcher;
use crate::{after_tcp, tell};
use sluice_fabric::doorbell::{Sleep, Slot};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_runtime::fault;
use sluice_transport::links;

fn bits(mut mask: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        (mask != 0).then(|| {
            let bit = mask.trailing_zeros();
            mask &= mask - 1;
            bit
        })
    })
}

/// Marks the waiters in `mask`, by `wake` where they sleep on descriptors, and returns which of
/// them must be rung. Rings none: a thread that is rung may run at once in place of this one, and
/// may look at further sets of its own, which must be marked then.
#[inline]
fn mark<'a>(
    mask: u64,
    slot: impl Fn(u32) -> Option<&'a Slot>,
    wake: impl Fn(&Slot, u32) -> bool,
) -> u64 {
    let mut to_ring = 0;
    for slot_index in bits(mask) {
        let Some(slot) = slot(slot_index) else {
            break;
        };
        let sleeps = match slot.sleep() {
            Sleep::Futex => slot.must_ring(),
            Sleep::Descriptor => wake(slot, slot_index),
        };
        to_ring |= u64::from(sleeps) << slot_index;
    }
    to_ring
}

/// Tells the peer's waiters in `mask` that stream `index` has news, and returns how many had to be
/// rung. Call after a successful `advance` and `fence_after_rmw`, with the half locked.
#[inline]
pub fn peer(link: &'static Link, mask: u64, index: u32) -> u64 {
    if mask == 0 {
        0
    } else {
        peer_some(link, mask, index)
    }
}

fn peer_some(link: &'static Link, mask: u64, index: u32) -> u64 {
    if let Some(twin) = link.twin() {
        if links::moved(link, index) {
            return 0;
        }
        return own(twin, mask, index);
    }
    let slot = |slot_index| link.peer_slot(slot_index);
    let to_ring = mark(mask, slot, |slot, slot_index| {
        slot.wake_after(index, || {
            link.peer_note(slot_index)
                .is_some_and(after_tcp::is_after_tcp)
        })
    });
    for slot_index in bits(to_ring) {
        if !fault::forgets_to_ring() && !link.ring_peer(slot_index) {
            tell::ask_wake(link, slot_index);
        }
    }
    u64::from(to_ring.count_ones())
}

/// Tells this process's own waiters in `mask` that stream `index` has news, and returns how many
/// had to be rung.
pub fn own(link: &'static Link, mask: u64, index: u32) -> u64 {
    let slot = |slot_index| link.my_slot(slot_index);
    let to_ring = mark(mask, slot, |slot, _| slot.wake(index));
    for slot_index in bits(to_ring) {
        ring_own(link, slot_index);
    }
    u64::from(to_ring.count_ones())
}

/// Wakes this process's threads in `mask` that sleep in blocking calls, poll and select, but no
/// epoll set. An epoll set watches TCP itself: a mark would report news of TCP twice, or report a
/// demotion, which is no event for the program.
pub fn own_threads(link: &'static Link, mask: u64, index: u32) {
    for slot_index in bits(mask) {
        let Some(slot) = link.my_slot(slot_index) else {
            return;
        };
        let of_thread = match slot.sleep() {
            Sleep::Futex => true,
            Sleep::Descriptor => {
                let owner = link.slot_owner(slot_index) as *const Watcher;
                // SAFETY: the owner of a slot is 0 or the address of a set, entered by `readiness`,
                // which never frees a set's memory or uses it for anything else.
                unsafe { owner.as_ref() }.is_some_and(Watcher::is_private)
            }
        };
        if of_thread {
            own(link, 1 << slot_index, index);
        }
    }
}

/// Wakes the owner of a slot of this process.
pub fn ring_own(link: &'static Link, slot_index: u32) {
    let owner = link.slot_owner(slot_index);
    if owner == 0 {
        if let Some(slot) = link.my_slot(slot_index) {
            // SAFETY: the word lies in the link's arena, which a stream or a pin keeps mapped. A
            // link that has neither, as after a request of the peer, unmaps its arena late.
            unsafe { sys::futex_wake(slot.sleep_word()) };
        }
    } else {
        // SAFETY: an owner other than 0 is the address of a set, entered by `readiness`, which
        // never frees a set's memory or uses it for anything else.
        unsafe { &*(owner as *const Watcher) }.ring();
    }
}
