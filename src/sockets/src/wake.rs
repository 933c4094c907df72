//! Waking threads that wait on a stream: the peer's waiters, and this process's own.

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

/// Marks the waiters in `mask`, each in its way, and says which of them are to be rung. All marks
/// come first: a thread that is rung may run at once in this thread's place, and look at other sets
/// of its own, too.
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

/// Tells the peer's waiters in `mask` that there is news of stream `index`; how many had to be
/// rung. Call after a successful `advance` and `fence_after_rmw`, with the stream locked.
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

/// Tells this process's own waiters in `mask`; how many had to be rung.
pub fn own(link: &'static Link, mask: u64, index: u32) -> u64 {
    let slot = |slot_index| link.my_slot(slot_index);
    let to_ring = mark(mask, slot, |slot, _| slot.wake(index));
    for slot_index in bits(to_ring) {
        ring_own(link, slot_index);
    }
    u64::from(to_ring.count_ones())
}

/// Wakes this process's threads in `mask` that sleep in blocking calls, in poll and in select.
/// Epoll sets watch TCP themselves: to mark the stream would tell them twice of news of TCP, or of
/// a demotion, which is none.
pub fn own_threads(link: &'static Link, mask: u64, index: u32) {
    for slot_index in bits(mask) {
        let Some(slot) = link.my_slot(slot_index) else {
            return;
        };
        let of_thread = match slot.sleep() {
            Sleep::Futex => true,
            Sleep::Descriptor => {
                let owner = link.slot_owner(slot_index) as *const Watcher;
                // SAFETY: slots are owned by sets only, whose memory is type-stable, or by 0.
                unsafe { owner.as_ref() }.is_some_and(Watcher::is_private)
            }
        };
        if of_thread {
            own(link, 1 << slot_index, index);
        }
    }
}

/// Rings a slot of this process.
pub fn ring_own(link: &'static Link, slot_index: u32) {
    let owner = link.slot_owner(slot_index);
    if owner == 0 {
        if let Some(slot) = link.my_slot(slot_index) {
            // SAFETY: the word lies in the arena of an open link, pinned by the caller's stream.
            unsafe { sys::futex_wake(slot.sleep_word()) };
        }
    } else {
        // SAFETY: slots are owned by sets only, whose memory is type-stable.
        unsafe { &*(owner as *const Watcher) }.ring();
    }
}
