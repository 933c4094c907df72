//! What the processes that inherited one socket share about it: memory that a fork leaves shared,
//! and that no peer can reach.
//!
//! A stream belongs to one process. A relative that uses the socket has that process bring it to
//! TCP (`inherited.rs`). What relatives tell each other is which of them hold the socket, whose the
//! stream is, and how far it is on its way back.

use crate::unread_copy::SOME;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sluice_fabric::sys::{self, Ends};

/// Processes that one slot can name; a socket held by more stays on TCP.
const HOLDERS: usize = 6;

/// Stands for a child that is being forked and has not yet entered its own id.
const UNBORN: u32 = u32::MAX;

/// Slots of one family. 64 bytes each, in zero pages.
const SLOTS: u32 = 1 << 16;

/// Shared between relatives. Zero is a free slot.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Family {
    /// Processes that may use the socket, 0 where none. Each writes its own id and takes it out;
    /// ids of the dead are taken out by the next that looks.
    holders: [AtomicU32; HOLDERS],
    /// Holders without a name: [`UNNAMED`], [`IMAGE`].
    crowded: AtomicU32,
    /// 1 + next free slot.
    next: AtomicU32,
    in_use: AtomicU32,
    /// The process whose stream the socket has: only that takes it back to TCP.
    owner: AtomicU32,
    /// How far that is: [`WANTED`] and the bits after it.
    handing: AtomicU32,
    /// How many bytes lay unread when the owner left the stream; [`WHOLE`].
    unread: AtomicU32,
    /// As [`Half::owed`](super::socket::Half::owed), of the owner.
    owed: AtomicU64,
}

/// What lay unread in a stream when its process left it, of which that process has the copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// So many bytes; 0: their number is not known.
    pub len: usize,
    /// As [`Half::owed`](super::socket::Half::owed): the place of the last one in TCP.
    pub owed: u64,
    /// Nothing of it comes by TCP.
    pub whole: bool,
}

impl Unread {
    /// What the link to another host had brought: all of it comes by TCP.
    pub(crate) const OF_LINK: Self = Self {
        len: 0,
        owed: SOME,
        whole: false,
    };
}

/// How far the owner of a stream is on the way back to TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handing(u32);

impl Handing {
    /// Does what is read come by TCP?
    pub(crate) const fn reads_tcp(self) -> bool {
        self.0 & READS_TCP != 0
    }

    /// Does what is written go by TCP?
    pub(crate) const fn writes_tcp(self) -> bool {
        self.0 & WRITES_TCP != 0
    }

    /// Is the owner re-sending what the peer had not read?
    pub(crate) const fn resends(self) -> bool {
        self.0 & (RESENDS | WRITES_TCP) == RESENDS
    }

    /// Has it left the stream?
    pub(crate) const fn has_left(self) -> bool {
        self.0 & LEFT == LEFT
    }
}

const _: () = assert!(size_of::<Family>() == 64);

/// In [`Family::crowded`]: more processes than fit.
const UNNAMED: u32 = 1;
/// An image that does not know of us.
const IMAGE: u32 = 2;

/// In [`Family::handing`]: a relative wants the stream to be on TCP.
const WANTED: u32 = 1;
/// The owner has begun to re-send what the peer had not read.
const RESENDS: u32 = 2;
/// Reads are TCP's from now on.
const READS_TCP: u32 = 4;
/// Writes are TCP's: everything is re-sent.
const WRITES_TCP: u32 = 8;
/// The owner has left the stream.
const LEFT: u32 = READS_TCP | WRITES_TCP;

/// In [`Family::unread`]: TCP brings nothing of these.
const WHOLE: u32 = 1 << 31;

#[repr(C)]
struct Region {
    /// Tag in the high half, slot + 1 in the low half.
    free: AtomicU64,
    fresh: AtomicU32,
    /// How often a relative wanted a stream of another process.
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
                // SAFETY: just mapped and seen by nobody else.
                unsafe { sys::unmap(made.cast(), size_of::<Region>()) };
                at = other;
            }
        }
    }
    // SAFETY: mapped for the life of the process; zeroes are a valid `Region`, atomics throughout.
    Some(unsafe { &*at })
}

/// Takes a slot, held by process `pid` alone.
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

/// In a child of a fork, `pid`, that has nothing to do with its parent any more: the memory of all
/// families is its own from now on. `families`: of its sockets; those that relatives hold, too,
/// have left theirs. False: there is no memory, and no socket of this process has one any more.
#[must_use]
pub fn part(pid: u32, families: impl Iterator<Item = &'static Family>) -> bool {
    let old = REGION.load(Ordering::Acquire);
    // SAFETY: null, or mapped for the life of the process.
    let Some(region) = (unsafe { old.as_ref() }) else {
        return true;
    };
    let fresh = region.fresh.load(Ordering::Relaxed);
    // SAFETY: all of it is atomics; as they are now.
    let words = |family| unsafe { core::ptr::from_ref::<Family>(family).read_volatile() };
    let own: Vec<_> = families.map(|family| (family, words(family))).collect();
    for (family, _) in &own {
        // The old memory, where the slot is another's from now on.
        family.leave(pid);
    }
    // SAFETY: the whole of our own mapping, for which the new one is as good.
    if unsafe { sys::map_zeroes_over(old.cast(), size_of::<Region>()) }.is_err() {
        // Nobody here uses the old one any more.
        REGION.store(core::ptr::null_mut(), Ordering::Release);
        return false;
    }
    // The slots before it, which others have had or have, are not given out here.
    region.fresh.store(fresh, Ordering::Relaxed);
    for (family, words) in own {
        // SAFETY: in the new mapping, atomics throughout.
        unsafe { core::ptr::from_ref(family).cast_mut().write_volatile(words) };
    }
    true
}

/// How often a relative wanted a stream of another process: to be compared.
pub fn calls() -> u32 {
    let region = REGION.load(Ordering::Acquire);
    // SAFETY: null, or mapped for the life of the process.
    unsafe { region.as_ref() }.map_or(0, |region| region.calls.load(Ordering::SeqCst))
}

impl Family {
    /// Begins a new stream of the socket, which only process `pid` holds.
    pub(crate) fn begin_stream(&self, pid: u32) {
        self.leave_unread(Unread::default());
        self.owner.store(pid, Ordering::Relaxed);
        self.handing.store(0, Ordering::SeqCst);
    }

    /// A relative wants the stream to be on TCP.
    pub(crate) fn want(&self) {
        self.handing.fetch_or(WANTED, Ordering::SeqCst);
        if let Some(region) = region() {
            region.calls.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Is the stream wanted on TCP by a relative?
    pub(crate) fn is_wanted(&self) -> bool {
        self.handing.load(Ordering::SeqCst) & WANTED != 0 && !self.handing().has_left()
    }

    /// The owner begins to re-send what the peer has not read. Call before the first byte.
    pub(crate) fn begin_resend(&self) {
        self.handing.fetch_or(RESENDS, Ordering::SeqCst);
    }

    /// The owner has demoted what it reads.
    pub(crate) fn hand_reading(&self) {
        self.hand(READS_TCP);
    }

    /// The owner has demoted what it writes, and re-sent all of it.
    pub(crate) fn hand_writing(&self) {
        self.hand(WRITES_TCP);
    }

    /// The owner leaves the stream. Call before other connections may get its memory.
    pub(crate) fn hand_both(&self) {
        self.hand(LEFT);
    }

    fn hand(&self, handed: u32) {
        if self.handing.fetch_or(handed, Ordering::SeqCst) & WANTED != 0 {
            // SAFETY: in the shared region.
            unsafe { sys::futex_wake(self.handing.as_ptr()) };
        }
    }

    /// How far the owner is.
    pub(crate) fn handing(&self) -> Handing {
        Handing(self.handing.load(Ordering::SeqCst))
    }

    /// Waits until the owner is further than it `was`, for at most `ns`.
    pub(crate) fn await_handing(&self, was: Handing, ns: u64) {
        let most = sys::timespec(ns);
        // SAFETY: in the shared region.
        let _ = unsafe { sys::futex_wait(self.handing.as_ptr(), was.0, Some(&most), Ends::NEVER) };
    }

    /// The process whose stream it is.
    pub(crate) fn owner(&self) -> u32 {
        self.owner.load(Ordering::SeqCst)
    }

    /// The owner is dead: makes `heir` the owner, unless another relative is by now.
    pub(crate) fn inherits(&self, owner: u32, heir: u32) -> bool {
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        self.owner.compare_exchange(owner, heir, set, fetch).is_ok()
    }

    /// Notes how much lies unread, before relatives can find that the owner has left the stream.
    pub(crate) fn leave_unread(&self, unread: Unread) {
        let whole = if unread.whole { WHOLE } else { 0 };
        self.owed.store(unread.owed, Ordering::Relaxed);
        self.unread
            .store(unread.len as u32 | whole, Ordering::Release);
    }

    /// See [`Family::leave_unread`].
    pub(crate) fn unread(&self) -> Unread {
        let unread = self.unread.load(Ordering::Acquire);
        Unread {
            len: (unread & !WHOLE) as usize,
            owed: self.owed.load(Ordering::Relaxed),
            whole: unread & WHOLE != 0,
        }
    }

    /// Before a fork: the child will hold the socket too.
    pub fn expect_child(&self) {
        self.join(UNBORN);
    }

    /// In the child: enters its own id.
    pub fn born(&self, pid: u32) {
        let named = self.holders.iter().any(|h| {
            h.compare_exchange(UNBORN, pid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        if !named {
            self.join(pid);
        }
    }

    /// The fork failed.
    pub fn no_child(&'static self) {
        self.leave(UNBORN);
    }

    /// A process that does not know of us may use the socket from now on, for good: another image,
    /// or one that a relative has passed it to.
    pub fn share_for_good(&self) {
        self.crowded.fetch_or(IMAGE, Ordering::Relaxed);
    }

    /// `pid` may use the socket from now on.
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

    /// `pid` has given the socket up; the last one out frees the slot. Whether it is free now, and
    /// nobody's to use any more.
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

    /// Does any process but `pid` hold the socket?
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
