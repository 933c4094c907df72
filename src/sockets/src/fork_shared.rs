//! What the processes that inherited one socket share about it: memory that a fork leaves shared,
//! and that no peer can reach.
//!
//! A stream belongs to one process. A relative that uses the socket has that process bring it to
//! TCP (`inherited.rs`). Relatives tell each other which of them hold the socket, which of them
//! owns the stream, and how far the owner is on its way back to TCP.

use crate::unread_copy::SOME;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sluice_fabric::sys::{self, Ends};

/// Processes that one slot can name. A socket that more of them hold stays on TCP.
const HOLDERS: usize = 6;

/// Stands for a forked child that has not entered its own id yet.
const UNBORN: u32 = u32::MAX;

/// Slots of the region, each for one family: 64 bytes, in pages that are zero until they are used.
const SLOTS: u32 = 1 << 16;

/// What relatives share about one socket. Zeroes are a free slot.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Family {
    /// Processes that may use the socket; 0: a free entry. Each process enters and removes its own
    /// id; `prune` removes those of the dead.
    holders: [AtomicU32; HOLDERS],
    /// Holders that no entry names: [`UNNAMED`], [`IMAGE`].
    crowded: AtomicU32,
    /// 1 + the index of the next free slot; 0: none.
    next: AtomicU32,
    in_use: AtomicU32,
    /// The process that owns the stream: it alone demotes it.
    owner: AtomicU32,
    /// How far the owner is with that: [`WANTED`] and the bits after it.
    handing: AtomicU32,
    /// How many bytes lay unread when the owner left the stream, and [`WHOLE`].
    unread: AtomicU32,
    /// [`Half::owed`](super::socket::Half::owed) of the owner.
    owed: AtomicU64,
}

/// What lay unread in a stream when its owner left it. The owner has the copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// How many bytes; 0: none, or an unknown number if some are owed.
    pub len: usize,
    /// As [`Half::owed`](super::socket::Half::owed): where the last of them ends on TCP.
    pub owed: u64,
    /// TCP brings none of them.
    pub whole: bool,
}

impl Unread {
    /// What a link to another host had brought: TCP brings all of it.
    pub(crate) const OF_LINK: Self = Self {
        len: 0,
        owed: SOME,
        whole: false,
    };
}

/// How far the owner of a stream is on its way back to TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handing(u32);

impl Handing {
    /// Returns whether what is read comes by TCP.
    pub(crate) const fn reads_tcp(self) -> bool {
        self.0 & READS_TCP != 0
    }

    /// Returns whether what is written goes by TCP.
    pub(crate) const fn writes_tcp(self) -> bool {
        self.0 & WRITES_TCP != 0
    }

    /// Returns whether the owner is re-sending what the peer had not read.
    pub(crate) const fn resends(self) -> bool {
        self.0 & (RESENDS | WRITES_TCP) == RESENDS
    }

    /// Returns whether the owner has left the stream.
    pub(crate) const fn has_left(self) -> bool {
        self.0 & LEFT == LEFT
    }
}

const _: () = assert!(size_of::<Family>() == 64);

/// In [`Family::crowded`]: more processes hold the socket than have an entry.
const UNNAMED: u32 = 1;
/// A process that does not use this memory holds the socket.
const IMAGE: u32 = 2;

/// In [`Family::handing`]: a relative wants the stream to be on TCP.
const WANTED: u32 = 1;
/// The owner has begun to re-send what the peer had not read.
const RESENDS: u32 = 2;
/// What is read comes by TCP from now on.
const READS_TCP: u32 = 4;
/// What is written goes by TCP: everything is re-sent.
const WRITES_TCP: u32 = 8;
/// The owner has left the stream.
const LEFT: u32 = READS_TCP | WRITES_TCP;

/// In [`Family::unread`]: TCP brings none of these bytes.
const WHOLE: u32 = 1 << 31;

#[repr(C)]
struct Region {
    /// The first free slot: a tag in the high half, which changes each time, slot + 1 in the low
    /// half.
    free: AtomicU64,
    fresh: AtomicU32,
    /// How often a relative wanted the stream of another process.
    calls: AtomicU32,
    spare: [u32; 12],
    slots: [Family; SLOTS as usize],
}

static REGION: AtomicPtr<Region> = AtomicPtr::new(core::ptr::null_mut());

fn region() -> Option<&'static Region> {
    let mut at = REGION.load(Ordering::Acquire);
    if at.is_null() {
        let made = sys::map_zeroes(size_of::<Region>(), true)
            .ok()?
            .cast::<Region>();
        match REGION.compare_exchange(
            core::ptr::null_mut(),
            made,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => at = made,
            Err(other) => {
                // SAFETY: this thread has just mapped it, and no other has its address.
                unsafe { sys::unmap(made.cast(), size_of::<Region>()) };
                at = other;
            }
        }
    }
    // SAFETY: the region stays mapped for the life of the process; zeroes are a valid `Region`,
    // which has atomics throughout.
    Some(unsafe { &*at })
}

/// Takes a slot that process `pid` alone holds. `None`: there is no free one, or no memory.
pub fn take(pid: u32) -> Option<&'static Family> {
    let region = region()?;
    let mut head = region.free.load(Ordering::Acquire);
    let slot = loop {
        let index = (head as u32).wrapping_sub(1);
        let Some(slot) = region.slots.get(index as usize) else {
            let fresh = region.fresh.fetch_add(1, Ordering::Relaxed);
            if fresh >= SLOTS {
                region.fresh.store(SLOTS, Ordering::Relaxed);
                return None;
            }
            break region.slots.get(fresh as usize)?;
        };
        let next = u64::from(slot.next.load(Ordering::Relaxed));
        let tagged = (head >> 32).wrapping_add(1) << 32 | next;
        match region
            .free
            .compare_exchange_weak(head, tagged, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => break slot,
            Err(now) => head = now,
        }
    };
    for holder in &slot.holders {
        holder.store(0, Ordering::Relaxed);
    }
    slot.crowded.store(0, Ordering::Relaxed);
    slot.begin_stream(0);
    slot.in_use.store(1, Ordering::Relaxed);
    slot.join(pid);
    Some(slot)
}

/// Replaces what this process, `pid`, a child of a fork, shares with its relatives by memory of its
/// own. `families` are those of its sockets; sockets that relatives hold, too, have been detached
/// from theirs. Returns false if there is no memory: then no socket may use its family any more.
#[must_use]
pub fn part(pid: u32, families: impl Iterator<Item = &'static Family>) -> bool {
    let old = REGION.load(Ordering::Acquire);
    // SAFETY: null, or the region, which stays mapped for the life of the process.
    let Some(region) = (unsafe { old.as_ref() }) else {
        return true;
    };
    let fresh = region.fresh.load(Ordering::Relaxed);
    // SAFETY: `family` is a slot in use; its atomics are copied as they are at this moment.
    let words = |family| unsafe { core::ptr::from_ref::<Family>(family).read_volatile() };
    let own: Vec<_> = families.map(|family| (family, words(family))).collect();
    for (family, _) in &own {
        // In the shared memory, where the slot belongs to others from now on.
        family.leave(pid);
    }
    // SAFETY: this is the whole of the region's mapping, and zeroes there are a valid `Region`.
    if unsafe { sys::map_zeroes_over(old.cast(), size_of::<Region>()) }.is_err() {
        // No thread of this process uses the shared memory any more.
        REGION.store(core::ptr::null_mut(), Ordering::Release);
        return false;
    }
    // Relatives have or had the slots before it: none of these is handed out here.
    region.fresh.store(fresh, Ordering::Relaxed);
    for (family, words) in own {
        // SAFETY: `family` lies in the new mapping, where it has its old address; atomics
        // throughout.
        unsafe { core::ptr::from_ref(family).cast_mut().write_volatile(words) };
    }
    true
}

/// How often relatives wanted the stream of another process, to be compared with an earlier count.
pub fn calls() -> u32 {
    let region = REGION.load(Ordering::Acquire);
    // SAFETY: null, or the region, which stays mapped for the life of the process.
    unsafe { region.as_ref() }.map_or(0, |region| region.calls.load(Ordering::SeqCst))
}

impl Family {
    /// Notes a new stream of the socket, which process `pid` owns.
    pub(crate) fn begin_stream(&self, pid: u32) {
        self.leave_unread(Unread::default());
        self.owner.store(pid, Ordering::Relaxed);
        self.handing.store(0, Ordering::SeqCst);
    }

    /// Notes that a relative wants the stream to be on TCP.
    pub(crate) fn want(&self) {
        self.handing.fetch_or(WANTED, Ordering::SeqCst);
        if let Some(region) = region() {
            region.calls.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns whether a relative wants the stream to be on TCP, and its owner has not left it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.handing.load(Ordering::SeqCst) & WANTED != 0 && !self.handing().has_left()
    }

    /// Notes that the owner re-sends what the peer has not read. Call before the first byte.
    pub(crate) fn begin_resend(&self) {
        self.handing.fetch_or(RESENDS, Ordering::SeqCst);
    }

    /// Notes that the owner has demoted what it reads.
    pub(crate) fn hand_reading(&self) {
        self.hand(READS_TCP);
    }

    /// Notes that the owner has demoted what it writes, and re-sent all of it.
    pub(crate) fn hand_writing(&self) {
        self.hand(WRITES_TCP);
    }

    /// Notes that the owner leaves the stream. Call before other connections may get its memory.
    pub(crate) fn hand_both(&self) {
        self.hand(LEFT);
    }

    fn hand(&self, handed: u32) {
        if self.handing.fetch_or(handed, Ordering::SeqCst) & WANTED != 0 {
            // SAFETY: the word lies in the region, which stays mapped.
            unsafe { sys::futex_wake(self.handing.as_ptr()) };
        }
    }

    /// How far the owner is.
    pub(crate) fn handing(&self) -> Handing {
        Handing(self.handing.load(Ordering::SeqCst))
    }

    /// Waits until the owner is further than `was`, for at most `ns`.
    pub(crate) fn await_handing(&self, was: Handing, ns: u64) {
        let most = sys::timespec(ns);
        // SAFETY: the word lies in the region, which stays mapped.
        let _ = unsafe { sys::futex_wait(self.handing.as_ptr(), was.0, Some(&most), Ends::NEVER) };
    }

    /// The process that owns the stream.
    pub(crate) fn owner(&self) -> u32 {
        self.owner.load(Ordering::SeqCst)
    }

    /// Makes `heir` the owner in place of the dead `owner`. False: another relative was first.
    pub(crate) fn inherits(&self, owner: u32, heir: u32) -> bool {
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        self.owner.compare_exchange(owner, heir, set, fetch).is_ok()
    }

    /// Notes how much lies unread. Call before relatives can see that the owner has left the
    /// stream.
    pub(crate) fn leave_unread(&self, unread: Unread) {
        let whole = if unread.whole { WHOLE } else { 0 };
        self.owed.store(unread.owed, Ordering::Relaxed);
        self.unread
            .store(unread.len as u32 | whole, Ordering::Release);
    }

    /// What [`Family::leave_unread`] has noted.
    pub(crate) fn unread(&self) -> Unread {
        let unread = self.unread.load(Ordering::Acquire);
        Unread {
            len: (unread & !WHOLE) as usize,
            owed: self.owed.load(Ordering::Relaxed),
            whole: unread & WHOLE != 0,
        }
    }

    /// Called before a fork: the child will hold the socket, too.
    pub fn expect_child(&self) {
        self.join(UNBORN);
    }

    /// Called in the child: enters its own id.
    pub fn born(&self, pid: u32) {
        let named = self.holders.iter().any(|h| {
            h.compare_exchange(UNBORN, pid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        if !named {
            self.join(pid);
        }
    }

    /// Called if the fork failed.
    pub fn no_child(&'static self) {
        self.leave(UNBORN);
    }

    /// Notes that a process that does not use this memory may use the socket from now on, for good:
    /// another image, or one that a relative has passed it to.
    pub fn share_for_good(&self) {
        self.crowded.fetch_or(IMAGE, Ordering::Relaxed);
    }

    /// Notes that process `pid` may use the socket from now on.
    pub fn join(&self, pid: u32) {
        let free = self.holders.iter().any(|h| {
            h.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        if !free {
            self.prune();
            let now = self.holders.iter().any(|h| {
                h.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            });
            if !now {
                self.crowded.fetch_or(UNNAMED, Ordering::Relaxed);
            }
        }
    }

    /// Notes that process `pid` has given the socket up. The last holder frees the slot. Returns
    /// whether it did: nobody may use the slot any more.
    pub fn leave(&'static self, pid: u32) -> bool {
        for holder in &self.holders {
            if holder
                .compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                break;
            }
        }
        let last = self.crowded.load(Ordering::Relaxed) == 0
            && self.is_empty()
            && self.in_use.swap(0, Ordering::AcqRel) == 1;
        if last {
            self.put_back();
        }
        last
    }

    fn is_empty(&self) -> bool {
        self.holders.iter().all(|h| h.load(Ordering::Acquire) == 0)
    }

    /// 1 + the index of the slot.
    fn number(&self, region: &Region) -> u32 {
        let base = region.slots.as_ptr() as usize;
        let index = (core::ptr::from_ref(self) as usize - base) / size_of::<Self>();
        index as u32 + 1
    }

    fn put_back(&'static self) {
        let Some(region) = region() else { return };
        let number = u64::from(self.number(region));
        let mut head = region.free.load(Ordering::Acquire);
        loop {
            self.next.store(head as u32, Ordering::Relaxed);
            let tagged = (head >> 32).wrapping_add(1) << 32 | number;
            match region.free.compare_exchange_weak(
                head,
                tagged,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn prune(&self) {
        for holder in &self.holders {
            let pid = holder.load(Ordering::Acquire);
            if pid != 0 && pid != UNBORN && !sys::is_process(pid) {
                let _ = holder.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether any process but `pid` holds the socket.
    pub fn is_shared(&self, pid: u32) -> bool {
        if self.crowded.load(Ordering::Relaxed) != 0 {
            return true;
        }
        let others = || {
            self.holders.iter().any(|h| {
                !matches!(h.load(Ordering::Acquire), 0) && h.load(Ordering::Acquire) != pid
            })
        };
        if !others() {
            return false;
        }
        self.prune();
        others()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_shared_and_put_back() {
        let me = std::process::id();
        let a = take(me).unwrap();
        assert!(!a.is_shared(me));
        a.join(1); // init lives
        assert!(a.is_shared(me));
        a.leave(1);
        assert!(!a.is_shared(me));
        a.want();
        a.hand_both();
        a.leave(me);
        let b = take(me).unwrap();
        assert!(core::ptr::eq(a, b));
        assert!(!b.is_wanted() && !b.handing().has_left());
    }

    #[test]
    fn a_relative_learns_how_far_the_owner_is() {
        let family = take(7).unwrap();
        family.begin_stream(7);
        family.want();
        assert!(family.is_wanted() && family.unread() == Unread::default());
        let unread = Unread {
            len: 3,
            owed: 9,
            whole: false,
        };
        family.leave_unread(unread);
        family.begin_resend();
        family.hand_reading();
        let handing = family.handing();
        assert!(handing.reads_tcp() && handing.resends() && !handing.has_left());
        assert_eq!(family.unread(), unread);
        family.hand_writing();
        assert!(family.handing().has_left() && !family.is_wanted());
        family.leave(7);
    }

    #[test]
    fn a_dead_owner_has_one_heir() {
        let family = take(7).unwrap();
        family.begin_stream(7);
        assert!(family.inherits(7, 8) && !family.inherits(7, 9));
        assert_eq!(family.owner(), 8);
        family.leave(7);
    }

    #[test]
    fn the_dead_do_not_hold() {
        let me = std::process::id();
        let slot = take(me).unwrap();
        slot.join(0x3fff_ffff);
        assert!(!slot.is_shared(me));
    }
}
