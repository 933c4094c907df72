//! What the processes that inherited one socket share about it: memory that a fork leaves shared,
//! and that no peer can reach.
//!
//! A stream belongs to one process. A relative that uses the socket demotes the stream by the two
//! words; what is left to say between relatives is which of them sends the fixed bytes again on
//! TCP, how far that has come, and which hold the socket at all.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sluice_fabric::sys::{self, Ends};

/// Processes that one slot can name; a socket held by more stays on TCP.
const HOLDERS: usize = 6;

/// Stands for a child that is being forked and has not yet entered its own id.
const UNBORN: u32 = u32::MAX;

/// Slots of one family. 128 bytes each, in zero pages.
const SLOTS: u32 = 1 << 16;

/// Shared between relatives. Zero is a free slot.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Family {
    /// Processes that may use the socket, 0 where none. Each writes its own id and takes it out;
    /// ids of the dead are taken out by the next that looks.
    holders: [AtomicU32; HOLDERS],
    /// Process that is sending the fixed bytes again right now; 0: nobody. Held for one
    /// non-blocking send.
    resender: AtomicU32,
    /// Holders without a name: [`UNNAMED`], [`IMAGE`].
    crowded: AtomicU32,
    /// How far the re-send has come: offset of the next byte on the link's count.
    resent: AtomicU64,
    /// 1 + next free slot.
    next: AtomicU32,
    in_use: AtomicU32,
    /// The process whose stream to another host the socket has: only that can take it back to TCP.
    owner: AtomicU32,
    /// Whether a relative wants that, and whether it is done: [`KEPT`], [`WANTED`], [`HANDED`],
    /// [`OWING`].
    handing: AtomicU32,
    /// Relatives that are at the words of the stream now, which is another process's; [`LEFT`],
    /// [`ORPHANED`].
    visitors: AtomicU32,
    /// The process that has the copy of what lay unread in the ring (unread_copy.rs); 0: none.
    keeper: AtomicU32,
    /// As [`Half::owed`](super::socket::Half::owed), of the stream that the owner has left.
    owed: AtomicU64,
    /// How many bytes of that lay unread; 0: none.
    unread: AtomicU32,
    /// TCP brings nothing of these.
    absent: AtomicU32,
}

/// What lay unread in a stream when its process left it, of which that process has the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// So many bytes.
    pub len: usize,
    /// As [`Half::owed`](super::socket::Half::owed): the place of the last one in TCP.
    pub owed: u64,
    /// Nothing of it comes by TCP.
    pub whole: bool,
}

const _: () = assert!(size_of::<Family>() == 128);

/// In [`Family::crowded`]: more processes than fit.
const UNNAMED: u32 = 1;
/// An image that does not know of us.
const IMAGE: u32 = 2;

/// In [`Family::visitors`]: the process whose stream it was has left it. Its words and rings may be
/// another connection's by now.
const LEFT: u32 = 1 << 31;
/// In [`Family::visitors`], too: TCP had ended before anybody took the stream back, so none of what
/// lies unread in the ring comes by it.
const ORPHANED: u32 = 1 << 30;
/// For visitors, which are there for microseconds, in ns: a killed one never goes.
const VISIT_NS: u64 = 10_000_000;

const KEPT: u32 = 0;
const WANTED: u32 = 1;
const HANDED: u32 = 2;
/// As [`HANDED`], and TCP has yet to bring some of what lay unread.
const OWING: u32 = 3;

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
    slot.resender.store(0, Ordering::Relaxed);
    slot.resent.store(0, Ordering::Relaxed);
    slot.owner.store(0, Ordering::Relaxed);
    slot.handing.store(KEPT, Ordering::Relaxed);
    slot.visitors.store(0, Ordering::Relaxed);
    slot.forget_unread();
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
    /// The socket's stream to another host is `pid`'s.
    pub(crate) fn is_owned_by(&self, pid: u32) {
        self.owner.store(pid, Ordering::Relaxed);
        self.handing.store(KEPT, Ordering::SeqCst);
    }

    /// A relative wants the socket to be on TCP; the process that can bring it there, which is to
    /// be woken.
    pub fn want(&self) -> u32 {
        let _ = self
            .handing
            .compare_exchange(KEPT, WANTED, Ordering::SeqCst, Ordering::SeqCst);
        if let Some(region) = region() {
            region.calls.fetch_add(1, Ordering::SeqCst);
        }
        self.owner.load(Ordering::Relaxed)
    }

    /// Is the stream wanted on TCP by a relative?
    pub fn is_wanted(&self) -> bool {
        self.handing.load(Ordering::SeqCst) == WANTED
    }

    /// It is there; `owing`: the peer sends again what lay unread.
    pub fn hand(&self, owing: bool) {
        let handed = if owing { OWING } else { HANDED };
        if self.handing.swap(handed, Ordering::SeqCst) == WANTED {
            // SAFETY: in the shared region.
            unsafe { sys::futex_wake(self.handing.as_ptr()) };
        }
    }

    /// Waits until it is, for at most `ns`: whether the peer sends again what lay unread.
    pub(crate) fn await_handing(&self, ns: u64) -> Option<bool> {
        let most = sys::timespec(ns);
        // SAFETY: in the shared region.
        let _ = unsafe { sys::futex_wait(self.handing.as_ptr(), WANTED, Some(&most), Ends::NEVER) };
        match self.handing.load(Ordering::SeqCst) {
            HANDED => Some(false),
            OWING => Some(true),
            _ => None,
        }
    }

    /// By a process that has inherited the stream: may it touch its words? Then
    /// [`Family::exit_shared`] is to follow.
    pub fn enter_shared(&self) -> bool {
        let one_more = |now: u32| (now & LEFT == 0).then_some(now + 1);
        self.visitors
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more)
            .is_ok()
    }

    /// See [`Family::enter_shared`].
    pub fn exit_shared(&self) {
        self.visitors.fetch_sub(1, Ordering::SeqCst);
    }

    /// By the process whose stream it is, before it gives that back: no relative touches it any
    /// more.
    pub fn leave_stream(&self) {
        let are_there = |visitors: u32| visitors & !(LEFT | ORPHANED) != 0;
        if !are_there(self.visitors.fetch_or(LEFT, Ordering::SeqCst)) {
            return;
        }
        let end = sys::now_ns() + VISIT_NS;
        while are_there(self.visitors.load(Ordering::SeqCst)) && sys::now_ns() < end {
            sys::sched_yield();
        }
    }

    /// By a process that takes the stream back and finds that TCP has ended before: none of what
    /// lies unread in the ring comes by it. Before the words tell relatives that the stream is
    /// over.
    pub(crate) fn orphan(&self) {
        self.visitors.fetch_or(ORPHANED, Ordering::SeqCst);
    }

    /// See [`Family::orphan`]; asked after the words.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.visitors.load(Ordering::SeqCst) & ORPHANED != 0
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

    /// Starts the count of a re-send at offset `at`; the first caller wins (`at` is never 0 plus
    /// one).
    pub(crate) fn begin_resend(&self, at: u64) {
        let _ = self
            .resent
            .compare_exchange(0, at + 1, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Ready for another stream of the same socket, which only this process holds.
    pub(crate) fn begin_stream(&self) {
        self.visitors.store(0, Ordering::SeqCst);
        self.resent.store(0, Ordering::Release);
        self.forget_unread();
    }

    fn forget_unread(&self) {
        for word in [&self.keeper, &self.unread, &self.absent] {
            word.store(0, Ordering::Relaxed);
        }
        self.owed.store(0, Ordering::Release);
    }

    /// Is the copy of what lay unread `pid`'s? The first process that asks has it: bytes that two
    /// had would be read twice.
    pub fn keeps(&self, pid: u32) -> bool {
        let first = self
            .keeper
            .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire);
        first.is_ok() || first == Err(pid)
    }

    /// By the process that leaves the stream: so much lay unread. Before relatives can find it
    /// left.
    pub(crate) fn leave_unread(&self, unread: Unread) {
        self.absent
            .store(u32::from(unread.whole), Ordering::Relaxed);
        self.owed.store(unread.owed, Ordering::Relaxed);
        self.unread.store(unread.len as u32, Ordering::Release);
    }

    /// See [`Family::leave_unread`].
    pub fn unread(&self) -> Option<Unread> {
        let len = self.unread.load(Ordering::Acquire) as usize;
        (len != 0).then(|| Unread {
            len,
            owed: self.owed.load(Ordering::Relaxed),
            whole: self.absent.load(Ordering::Relaxed) != 0,
        })
    }

    /// Where the re-send stands.
    pub fn resent(&self) -> u64 {
        self.resent.load(Ordering::Acquire).saturating_sub(1)
    }

    /// Claims the next piece of the re-send.
    ///
    /// # Errors
    /// The process that is at it now, which may be dead.
    pub fn claim(&self, pid: u32) -> Result<(), u32> {
        self.resender
            .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }

    /// The piece was sent up to `at`.
    pub(crate) fn unclaim(&self, at: u64) {
        self.resent.store(at + 1, Ordering::Release);
        self.resender.store(0, Ordering::Release);
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
        a.begin_resend(0);
        a.begin_resend(7);
        assert_eq!(a.resent(), 0);
        a.claim(me).unwrap();
        assert_eq!(a.claim(me), Err(me));
        a.unclaim(9);
        assert_eq!(a.resent(), 9);
        a.leave(me);
        let b = take(me).unwrap();
        assert!(core::ptr::eq(a, b));
        assert_eq!(b.resent(), 0);
    }

    #[test]
    fn one_process_has_the_copy() {
        let family = take(std::process::id()).unwrap();
        assert!(family.keeps(7) && family.keeps(7) && !family.keeps(8));
        assert_eq!(family.unread(), None);
        let unread = Unread {
            len: 3,
            owed: 9,
            whole: true,
        };
        family.leave_unread(unread);
        assert_eq!(family.unread(), Some(unread));
        family.begin_stream();
        assert!(family.unread().is_none() && family.keeps(8));
        family.leave(std::process::id());
    }

    #[test]
    fn the_dead_do_not_hold() {
        let me = std::process::id();
        let slot = take(me).unwrap();
        slot.join(0x3fff_ffff);
        assert!(!slot.is_shared(me));
    }
}
