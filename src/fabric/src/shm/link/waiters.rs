//! Waiters at either end of a link: slots, what is kept with them, and doorbells.

use super::Link;
use crate::doorbell::{SLOTS, Sleep, Slot};
use crate::shared_fd::SharedFd;
use crate::sync::{AtomicU32, Ordering};
use crate::sys;

impl Link {
    /// Takes a waiter slot of this side. `owner` is what the user keeps with it (0: a thread, which
    /// sleeps on the slot itself). None of a parent's link: which ones are in use only that knows.
    pub fn take_slot(&self, owner: usize) -> Option<u32> {
        if self.is_foreign() {
            return None;
        }
        let arena = self.arena()?;
        let mut used = self.slots.load(Ordering::Acquire);
        loop {
            let index = used.trailing_ones();
            if index as usize >= SLOTS - 1 {
                return None;
            }
            match self.slots.compare_exchange(
                used,
                used | 1 << index,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    let sleep = if owner == 0 {
                        Sleep::Futex
                    } else {
                        Sleep::Descriptor
                    };
                    arena.slot(self.side(), index as usize).reset_for(sleep);
                    if let Some(cell) = self.slot_owner.get(index as usize) {
                        cell.store(owner, Ordering::Release);
                    }
                    return Some(index);
                }
                Err(now) => used = now,
            }
        }
    }

    /// Has anybody of this side a waiter slot?
    pub fn has_waiters(&self) -> bool {
        self.slots.load(Ordering::Acquire) != 0
    }

    /// Does the owner of a waiter slot of this side sleep, or is about to?
    pub fn is_anybody_asleep(&self) -> bool {
        let mut used = self.slots.load(Ordering::Acquire);
        while used != 0 {
            let index = used.trailing_zeros();
            used &= used - 1;
            if self.my_slot(index).is_some_and(Slot::is_sleeping) {
                return true;
            }
        }
        false
    }

    /// Gives slot `index` back, if this is still the link of that generation.
    pub fn return_slot(&self, generation: u32, index: u32) {
        if self.generation() == generation {
            if let Some(cell) = self.slot_owner.get(index as usize) {
                cell.store(0, Ordering::Release);
            }
            self.slots
                .fetch_and(!(1 << (index % SLOTS as u32)), Ordering::AcqRel);
        }
    }

    /// What the user keeps with slot `index` of this side.
    pub fn slot_owner(&self, index: u32) -> usize {
        self.slot_owner
            .get(index as usize)
            .map_or(0, |c| c.load(Ordering::Acquire))
    }

    /// Slot `index` of this side.
    #[inline]
    pub fn my_slot(&self, index: u32) -> Option<&Slot> {
        Some(self.arena()?.slot(self.side(), index as usize))
    }

    /// Slot `index` of the peer's side.
    #[inline]
    pub fn peer_slot(&self, index: u32) -> Option<&Slot> {
        Some(self.arena()?.slot(1 - self.side(), index as usize))
    }

    /// What is kept with the peer's slot `index`; 0 at first.
    #[inline]
    pub fn peer_note(&self, index: u32) -> Option<&AtomicU32> {
        self.peer_notes.get(index as usize)
    }

    /// How many doorbells the peer was asked to send, and has not sent yet.
    pub fn bells_due(&self) -> &AtomicU32 {
        &self.bells_due
    }

    /// Keeps the near end of the doorbell of the peer's slot `index`, which has none: a socket, or
    /// a pipe.
    pub fn set_bell(&self, index: u32, near: sys::Fd, is_socket: bool) {
        if let Some(bell) = self.bells.get(index as usize) {
            let bit = 1 << index;
            if is_socket {
                self.socket_bells.fetch_or(bit, Ordering::Relaxed);
            } else {
                self.socket_bells.fetch_and(!bit, Ordering::Relaxed);
            }
            drop(bell.offer(near));
        }
    }

    /// Gives up the doorbell of the peer's slot `index`; was there one?
    pub fn drop_bell(&self, index: u32) -> bool {
        self.bells
            .get(index as usize)
            .is_some_and(|bell| bell.close(|_| ()))
    }

    /// Is there a doorbell for the peer's slot `index`?
    pub fn has_bell(&self, index: u32) -> bool {
        self.bells
            .get(index as usize)
            .is_some_and(SharedFd::is_open)
    }

    /// Rings the peer's slot `index`; false: there is no way from here, its process must do it.
    pub fn ring_peer(&self, index: u32) -> bool {
        let Some(slot) = self.peer_slot(index) else {
            return true;
        };
        if slot.sleep() == Sleep::Futex {
            // SAFETY: the word lies in the arena, which is mapped while the link is open.
            unsafe { sys::futex_wake(slot.sleep_word()) };
            return true;
        }
        let Some(bell) = self.bells.get(index as usize) else {
            return false;
        };
        if self.socket_bells.load(Ordering::Relaxed) & 1 << index != 0 {
            // One that is full, or has no other end any more, tells nobody.
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: one byte of ours.
            let ring = |near| unsafe { sys::send(near, b"!".as_ptr(), 1, flags) };
            return bell.with(ring).is_some_and(|rung| rung.is_ok());
        }
        // A full pipe tells all the same: a write that finds no room still wakes the watching epoll
        // sets.
        bell.with(|near| sys::write(near, b"!")).is_some()
    }
}
