//! One link: an arena shared with one other process, a control socket to it, and what this process
//! has lent and taken there.
//!
//! Guarantees: nothing here waits for the peer; every number read from the arena is checked here or
//! marked as unchecked. Knows streams and waiters only as opaque words that its user stores.
//!
//! The memory of a `Link` is a `Link` for the life of the process (type-stable): a late user meets
//! a closed link or, by its generation, another one, never freed memory.

mod waiters;

use super::pool::{Lent, Pool};
use crate::arena::Arena;
use crate::bucket::Bucket;
use crate::cursors;
use crate::doorbell::SLOTS;
use crate::layout::{STREAMS, Stream};
use crate::lock::{Guarded, OverFork};
use crate::shared_fd::SharedFd;
use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use crate::sys;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// Links that one process can have.
const LINKS: usize = 1024;

/// Identity of a process for its peers: random, new after a fork.
pub type Token = [u64; 2];

/// The peer's process, by the kernel's word.
#[derive(Debug)]
pub struct PeerProcess {
    /// Its id as this process sees it.
    pub pid: i32,
    /// The effective user of the process.
    pub uid: u32,
    /// Whether it could stop this process by a signal as well: it acted for the same user when the
    /// link was made.
    pub is_same_user: bool,
    /// Its directory in /proc, which is no other's when the id is: where this process may look into
    /// it.
    pub dir: Option<sys::Fd>,
}

/// What a new link is made of.
#[derive(Debug)]
pub struct LinkEnd {
    /// The shared memory.
    pub arena: Arena,
    /// 0 for the maker of the arena, 1 for the other.
    pub side: usize,
    /// The control socket; `None` for a link of this process with itself.
    pub control: Option<sys::Fd>,
    /// The peer's identity.
    pub token: Token,
    /// The peer's process; `None` for a link of this process with itself.
    pub peer: Option<PeerProcess>,
    /// The kernel lets this process read the peer's memory, and it is safe to.
    pub can_pull: bool,
    /// Pages of rings may go back to the kernel. The call for it waits, beyond any signal's reach,
    /// for the holder of the lock of the memory file, and a peer can hold that for ever: true only
    /// for one that could stop this process by a signal just as well.
    pub can_discard: bool,
}

/// A link. See the module.
#[derive(Debug)]
pub struct Link {
    /// Odd while in use.
    generation: AtomicU32,
    side: AtomicU32,
    arena: AtomicPtr<Arena>,
    /// Control socket; none for a link with oneself, or a peer that is gone.
    control: SharedFd,
    token: [AtomicU64; 2],
    peer_pid: AtomicI32,
    peer_uid: AtomicU32,
    is_same_user: AtomicU32,
    /// See [`PeerProcess::dir`].
    peer_dir: SharedFd,
    can_pull: AtomicU32,
    can_discard: AtomicU32,
    /// The peer's process is gone, or has broken the rules.
    dead: AtomicU32,
    /// The link belongs to the parent of this process.
    foreign: AtomicU32,
    /// The other end, if both are this process.
    twin: AtomicPtr<Link>,
    /// What the user keeps with the link, 0: nothing. The player of the other end, where that is no
    /// process.
    keeper: AtomicUsize,
    /// Waiter slots of this side in use.
    slots: AtomicU64,
    /// What the user keeps with each slot of this side (an epoll set, or 0 for a thread).
    slot_owner: [AtomicUsize; SLOTS],
    /// What the user keeps with each slot of the peer.
    peer_notes: [AtomicU32; SLOTS],
    /// Near ends of the doorbells of the peer's slots.
    bells: [SharedFd; SLOTS],
    /// Doorbells that the peer was asked to send.
    bells_due: AtomicU32,
    /// One bit per slot of the peer whose doorbell is a socket, not a pipe.
    socket_bells: AtomicU64,
    /// What the peer may still have us do by its records, and how many doorbells it may have made.
    budgets: [Bucket; 2],
    /// What the user keeps with each stream. In pages of its own: most links have few streams.
    stream_owner: &'static [AtomicUsize; STREAMS as usize],
    /// Streams in use at this end.
    streams: AtomicU32,
    /// Rings to lend, and stream slots to give out; also the slots that wait for the peer to leave.
    ledger: Guarded<Option<Ledger>>,
}

/// Of the streams that wait for the peer to leave them, too, so many are looked at when one is
/// given out or left, in turn.
const REAPED_AT_ONCE: usize = 16;
/// The same by the control thread, which has the time.
const REAPED_BY_CONTROL: usize = 512;

#[derive(Debug)]
struct Ledger {
    pool: Pool,
    /// Stream slots of this side's parity, never used so far.
    fresh: u32,
    free: Vec<u32>,
    /// What is lent for each stream in use at this end: the peer can write to the arena's own
    /// record of it.
    lent: Vec<Option<Lent>>,
    /// Streams that this end has left and the peer perhaps not yet: slot, ring lent, slot is ours
    /// to give out.
    leaving: VecDeque<(u32, Option<Lent>)>,
    /// Rings lent and taken back so far.
    moves: u64,
}

/// What a look at the returned rings of a link came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cooled {
    /// Rings were lent or came back since the last look; the number to bring along to the next.
    Busy(u64),
    /// Some gave their pages back, others still have theirs.
    More,
    /// None has pages that can be given back.
    All,
}

/// Rings whose pages go back in one look, for which the ledger is locked.
const COOL_AT_ONCE: usize = 8;

static ALL: [AtomicPtr<Link>; LINKS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; LINKS];
/// Serialises making and closing links; held for no system call but mmap, munmap and close. Arenas
/// of closed links, each with the time of its end: a thread that looked at one without a lock reads
/// zeroes there.
static MAKING: Guarded<Vec<(u64, Box<Arena>)>> = Guarded::new(Vec::new());

/// So long a look without a lock may take, and so many arenas are kept however long it is.
const LATE_NS: u64 = 1_000_000_000;
const LATE_KEPT: usize = 4;

/// Unmaps the arenas that nobody can still look at.
fn unmap_late(retired: &mut Vec<(u64, Box<Arena>)>) {
    let now = sys::now_ns();
    while retired.len() > LATE_KEPT
        && retired
            .first()
            .is_some_and(|(end, _)| now.saturating_sub(*end) > LATE_NS)
    {
        retired.remove(0);
    }
}

/// Every structure ever made.
fn every() -> impl Iterator<Item = &'static Link> {
    ALL.iter().filter_map(|cell| {
        // SAFETY: null, or a leaked `Link`.
        unsafe { cell.load(Ordering::Acquire).as_ref() }
    })
}

/// Every link in use.
pub fn all() -> impl Iterator<Item = &'static Link> {
    every().filter(|l| l.is_open())
}

/// Before a fork, when nothing more is done to a stream: holds the making and closing of links
/// still, and every ledger. Somebody may still look into that of a link that was closed.
pub fn hold() {
    MAKING.hold();
    for link in every() {
        link.ledger.hold();
    }
}

/// After the fork, on both sides: of [`hold`].
pub fn release() {
    for link in every() {
        link.ledger.release();
    }
    MAKING.release();
}

/// The live link to the process with this token.
pub fn by_token(token: Token) -> Option<&'static Link> {
    all().find(|l| l.is_alive() && l.token() == token && l.twin().is_none())
}

impl Link {
    /// Puts a link into service. `None` when the process has too many.
    pub fn open(end: LinkEnd) -> Option<&'static Link> {
        let mut retired = MAKING.lock()?;
        unmap_late(&mut retired);
        let (cell, link) = ALL.iter().find_map(|cell| {
            // SAFETY: null, or a leaked `Link`.
            match unsafe { cell.load(Ordering::Acquire).as_ref() } {
                None => Some((cell, None)),
                Some(link) if !link.is_open() => Some((cell, Some(link))),
                Some(_) => None,
            }
        })?;
        let link: &'static Link = match link {
            Some(link) => link,
            None => {
                let made: &'static Link = Box::leak(Box::new(Link::empty()?));
                cell.store(core::ptr::from_ref(made).cast_mut(), Ordering::Release);
                made
            }
        };
        let LinkEnd {
            arena,
            side,
            control,
            token,
            peer,
            can_pull,
            can_discard,
        } = end;
        link.side.store(side as u32, Ordering::Relaxed);
        if let Some(control) = control {
            drop(link.control.offer(control));
        }
        for (to, from) in link.token.iter().zip(token) {
            to.store(from, Ordering::Relaxed);
        }
        let (pid, uid, same) = match &peer {
            Some(peer) => (peer.pid, peer.uid, peer.is_same_user),
            None => (0, 0, true),
        };
        link.peer_pid.store(pid, Ordering::Relaxed);
        link.peer_uid.store(uid, Ordering::Relaxed);
        link.is_same_user.store(u32::from(same), Ordering::Relaxed);
        if let Some(dir) = peer.and_then(|peer| peer.dir) {
            drop(link.peer_dir.offer(dir));
        }
        link.can_pull.store(u32::from(can_pull), Ordering::Relaxed);
        link.can_discard
            .store(u32::from(can_discard), Ordering::Relaxed);
        link.dead.store(0, Ordering::Relaxed);
        link.foreign.store(0, Ordering::Relaxed);
        link.twin.store(core::ptr::null_mut(), Ordering::Relaxed);
        link.keeper.store(0, Ordering::Relaxed);
        link.slots.store(0, Ordering::Relaxed);
        for note in &link.peer_notes {
            note.store(0, Ordering::Relaxed);
        }
        link.bells_due.store(0, Ordering::Relaxed);
        link.budgets.iter().for_each(Bucket::fill);
        link.streams.store(0, Ordering::Relaxed);
        *link.ledger.lock()? = Some(Ledger {
            pool: Pool::new(side, can_discard),
            fresh: side as u32,
            free: Vec::new(),
            lent: Vec::new(),
            leaving: VecDeque::new(),
            moves: 0,
        });
        link.arena
            .store(Box::into_raw(Box::new(arena)), Ordering::Release);
        link.generation.fetch_add(1, Ordering::Release);
        Some(link)
    }

    /// Puts both ends of a link of this process with itself into service, side 0 first. `None` when
    /// the process has too many.
    pub fn open_both(arena: Arena, token: Token, can_discard: bool) -> Option<[&'static Link; 2]> {
        let end = |arena, side| {
            Link::open(LinkEnd {
                arena,
                side,
                control: None,
                token,
                peer: None,
                can_pull: false,
                can_discard,
            })
        };
        let twin = arena.alias();
        let first = end(arena, 0)?;
        let Some(second) = end(twin, 1) else {
            first.kill();
            first.close_if_unused();
            return None;
        };
        first.set_twin(second);
        second.set_twin(first);
        Some([first, second])
    }

    fn empty() -> Option<Self> {
        let owners = size_of::<[AtomicUsize; STREAMS as usize]>();
        let owners = sys::map_zeroes(owners, false).ok()?.cast();
        Some(Self {
            generation: AtomicU32::new(0),
            side: AtomicU32::new(0),
            arena: AtomicPtr::new(core::ptr::null_mut()),
            control: SharedFd::new(),
            token: [const { AtomicU64::new(0) }; 2],
            peer_pid: AtomicI32::new(0),
            peer_uid: AtomicU32::new(0),
            is_same_user: AtomicU32::new(0),
            peer_dir: SharedFd::new(),
            can_pull: AtomicU32::new(0),
            can_discard: AtomicU32::new(0),
            dead: AtomicU32::new(0),
            foreign: AtomicU32::new(0),
            twin: AtomicPtr::new(core::ptr::null_mut()),
            keeper: AtomicUsize::new(0),
            slots: AtomicU64::new(0),
            slot_owner: [const { AtomicUsize::new(0) }; SLOTS],
            peer_notes: [const { AtomicU32::new(0) }; SLOTS],
            bells: [const { SharedFd::new() }; SLOTS],
            bells_due: AtomicU32::new(0),
            socket_bells: AtomicU64::new(0),
            budgets: [const { Bucket::new() }; 2],
            // SAFETY: mapped above, zeroes, on a page, and never unmapped.
            stream_owner: unsafe { &*owners },
            streams: AtomicU32::new(0),
            ledger: Guarded::new(None),
        })
    }

    fn set_twin(&self, twin: &'static Link) {
        self.twin
            .store(core::ptr::from_ref(twin).cast_mut(), Ordering::Release);
    }

    /// The other end, if both are this process.
    #[inline]
    pub fn twin(&self) -> Option<&'static Link> {
        // SAFETY: null, or a leaked `Link`.
        unsafe { self.twin.load(Ordering::Acquire).as_ref() }
    }

    /// What the user keeps with the link, 0: nothing.
    #[inline]
    pub fn keeper(&self) -> usize {
        self.keeper.load(Ordering::Acquire)
    }

    /// Keeps a word with the link as long as that is open.
    pub fn set_keeper(&self, keeper: usize) {
        self.keeper.store(keeper, Ordering::Release);
    }

    /// Odd while in use; another number is another link.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// In use at all.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.generation() & 1 == 1
    }

    /// The peer's process lives and plays by the rules, as far as known.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.is_open() && self.dead.load(Ordering::Acquire) == 0
    }

    /// The peer is gone or breaks the rules: nothing new is started here. True for the first
    /// caller.
    pub fn kill(&self) -> bool {
        self.dead.swap(1, Ordering::AcqRel) == 0
    }

    /// Does the link belong to the parent of this process?
    #[inline]
    pub fn is_foreign(&self) -> bool {
        self.foreign.load(Ordering::Acquire) != 0
    }

    /// In the child of a fork: gives up a stream of the parent's.
    pub fn abandon_stream(&self, index: u32) {
        if let Some(cell) = self.stream_owner.get(index as usize) {
            cell.store(0, Ordering::Release);
        }
        self.streams.fetch_sub(1, Ordering::AcqRel);
    }

    /// This end's number.
    #[inline]
    pub fn side(&self) -> usize {
        self.side.load(Ordering::Relaxed) as usize & 1
    }

    /// The peer's identity.
    pub fn token(&self) -> Token {
        [0, 1].map(|i: usize| self.token.get(i).map_or(0, |t| t.load(Ordering::Relaxed)))
    }

    /// The peer's process id, 0 if unknown.
    pub fn peer_pid(&self) -> i32 {
        self.peer_pid.load(Ordering::Relaxed)
    }

    /// The effective user of the peer's process when the link was made.
    pub fn peer_uid(&self) -> u32 {
        self.peer_uid.load(Ordering::Relaxed)
    }

    /// See [`PeerProcess::is_same_user`].
    pub fn is_of_same_user(&self) -> bool {
        self.is_same_user.load(Ordering::Relaxed) != 0
    }

    /// See [`PeerProcess::dir`].
    pub fn peer_dir(&self) -> &SharedFd {
        &self.peer_dir
    }

    /// What the peer may still have us do by its records.
    pub fn record_budget(&self) -> &Bucket {
        let [records, _] = &self.budgets;
        records
    }

    /// The doorbells that the peer may still have made.
    pub fn bell_budget(&self) -> &Bucket {
        let [_, bells] = &self.budgets;
        bells
    }

    /// May this process read out of the peer's memory?
    #[inline]
    pub fn can_pull(&self) -> bool {
        self.can_pull.load(Ordering::Relaxed) != 0
    }

    /// May pages of rings go back to the kernel? See [`LinkEnd::can_discard`].
    #[inline]
    pub fn can_discard(&self) -> bool {
        self.can_discard.load(Ordering::Relaxed) != 0
    }

    /// The control socket.
    pub fn control(&self) -> &SharedFd {
        &self.control
    }

    /// The ring that this side has lent for stream `index`, by its private record.
    pub fn lent_for(&self, index: u32) -> Option<Lent> {
        let ledger = self.ledger.lock()?;
        ledger.as_ref()?.lent.get(index as usize).copied()?
    }

    /// The shared memory, while the link is open.
    #[inline]
    pub fn arena(&self) -> Option<&Arena> {
        // SAFETY: null, or a boxed arena, which is freed long after the last stream, thus the last
        // user, is gone (`unmap_late`).
        unsafe { self.arena.load(Ordering::Acquire).as_ref() }
    }

    /// Stream slot `index`.
    #[inline]
    pub fn stream(&self, index: u32) -> Option<&Stream> {
        self.arena()?.stream(index)
    }

    // --- streams ---

    /// Gives out a stream slot that both ends have left, with `ring_len` bytes of ring for what
    /// the peer will send.
    pub fn give_stream(&self, ring_len: u32, owner: usize) -> Option<u32> {
        self.give_stream_below(STREAMS, ring_len, owner)
    }

    /// As [`Self::give_stream`], on a link that uses only the slots below `count`.
    pub fn give_stream_below(&self, count: u32, ring_len: u32, owner: usize) -> Option<u32> {
        let (arena, count) = (self.arena()?, count.min(STREAMS));
        let mut ledger = self.ledger.lock()?;
        let ledger = ledger.as_mut()?;
        Self::reap(arena, self.side(), ledger, REAPED_AT_ONCE);
        if ledger.free.is_empty() && ledger.fresh >= count {
            Self::reap(arena, self.side(), ledger, usize::MAX);
        }
        let index = match ledger.free.pop() {
            Some(index) => index,
            None if ledger.fresh < count => {
                ledger.fresh += 2;
                ledger.fresh - 2
            }
            None => return None,
        };
        let stream = arena.stream(index)?;
        for dir in &stream.dir {
            dir.reset();
        }
        if self.lend(ledger, index, stream, ring_len) {
            self.own(index, owner);
            Some(index)
        } else {
            ledger.free.push(index);
            None
        }
    }

    /// Joins the stream that the peer gave out in slot `index`: lends it a ring for what the peer
    /// sends.
    pub fn join_stream(&self, index: u32, ring_len: u32, owner: usize) -> bool {
        let Some(stream) = self.stream(index) else {
            return false;
        };
        let (Some(arena), Some(mut ledger)) = (self.arena(), self.ledger.lock()) else {
            return false;
        };
        let Some(ledger) = ledger.as_mut() else {
            return false;
        };
        // The peer's own numbers only: it cannot make us enter a slot twice.
        if index as usize & 1 == self.side() || self.owner(index) != 0 {
            return false;
        }
        // The end that gives a slot out anew has seen that both had left it, and has wiped what
        // told us so.
        let Ledger {
            pool,
            leaving,
            moves,
            ..
        } = ledger;
        leaving.retain(|(left, lent)| {
            if *left == index
                && let Some(lent) = lent
            {
                pool.take_back(arena, *lent);
                *moves += 1;
            }
            *left != index
        });
        if self.lend(ledger, index, stream, ring_len) {
            self.own(index, owner);
            true
        } else {
            false
        }
    }

    fn lend(&self, ledger: &mut Ledger, index: u32, stream: &Stream, ring_len: u32) -> bool {
        let (_, incoming) = self.directions(stream);
        if ledger.lent.len() <= index as usize {
            ledger.lent.resize(index as usize + 1, None);
        }
        let Some(record) = ledger.lent.get_mut(index as usize) else {
            return false;
        };
        // Left in a signal handler that found the ledger in use: the end that gives the slot out
        // has seen that both have.
        if let (Some(old), Some(arena)) = (record.take(), self.arena()) {
            ledger.pool.take_back(arena, old);
        }
        let Some(lent) = ledger.pool.lend(ring_len) else {
            return false;
        };
        *record = Some(lent);
        ledger.moves += 1;
        incoming
            .rx_wishes
            .ring_len
            .store(lent.len, Ordering::Relaxed);
        incoming.rx_wishes.ring_at.store(lent.at, Ordering::Release);
        true
    }

    fn own(&self, index: u32, owner: usize) {
        if let Some(cell) = self.stream_owner.get(index as usize) {
            cell.store(owner, Ordering::Release);
        }
        self.streams.fetch_add(1, Ordering::AcqRel);
    }

    /// What the user keeps with stream `index`; 0: not in use here.
    #[inline]
    pub fn owner(&self, index: u32) -> usize {
        self.stream_owner
            .get(index as usize)
            .map_or(0, |c| c.load(Ordering::Acquire))
    }

    /// Streams in use at this end.
    pub fn stream_count(&self) -> u32 {
        self.streams.load(Ordering::Acquire)
    }

    /// This process leaves stream `index`, for which it had lent a ring.
    pub fn leave_stream(&self, index: u32) {
        let Some(arena) = self.arena() else { return };
        let Some(stream) = arena.stream(index) else {
            return;
        };
        let (outgoing, incoming) = self.directions(stream);
        // After the marks the peer may give the slot out again, and the control thread join it:
        // not before this end is through with it.
        let mut ledger = self.ledger.lock();
        let mut ledger = ledger.as_mut().and_then(|ledger| ledger.as_mut());
        if let Some(ledger) = &mut ledger {
            let record = ledger.lent.get_mut(index as usize);
            let lent = record.and_then(Option::take);
            ledger.leaving.push_back((index, lent));
        }
        if let Some(cell) = self.stream_owner.get(index as usize) {
            cell.store(0, Ordering::Release);
        }
        outgoing.tx_wishes.detached.store(1, Ordering::Release);
        incoming.rx_wishes.detached.store(1, Ordering::Release);
        if let Some(ledger) = ledger {
            Self::reap(arena, self.side(), ledger, REAPED_AT_ONCE);
        }
        self.streams.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes stream `index` of this end back to TCP, both ways, before a byte of it was read or
    /// written here, and tells the peer why. Whether there is one.
    pub fn seal_stream(&self, index: u32, why: u16) -> bool {
        let Some(stream) = self.stream(index) else {
            return false;
        };
        let (outgoing, incoming) = self.directions(stream);
        outgoing.tx_wishes.why.store(why.into(), Ordering::Relaxed);
        incoming.rx_wishes.why.store(why.into(), Ordering::Relaxed);
        for dir in &stream.dir {
            let _ = cursors::demote(&dir.tx.tail, &dir.rx.head);
        }
        true
    }

    /// The other end has given stream `index` out and left it again, and nobody joined it at this
    /// one.
    pub fn leave_unjoined(&self, index: u32) {
        if let Some(stream) = self.stream(index) {
            let (outgoing, incoming) = self.directions(stream);
            outgoing.tx_wishes.detached.store(1, Ordering::Release);
            incoming.rx_wishes.detached.store(1, Ordering::Release);
        }
    }

    /// Keeps the arena mapped while a thread sleeps in it, as a stream does. Call it while a stream
    /// of the link is locked.
    pub fn pin(&self) {
        self.streams.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends [`pin`](Link::pin).
    pub fn unpin(&self) {
        let last = self.streams.fetch_sub(1, Ordering::AcqRel) == 1;
        if last && self.dead.load(Ordering::Acquire) != 0 {
            // The thread that lost the link left it to us.
            self.close_if_unused();
        }
    }

    /// This end's (outgoing, incoming) directions of `stream`.
    #[inline]
    pub fn directions<'a>(
        &self,
        stream: &'a Stream,
    ) -> (&'a crate::layout::Direction, &'a crate::layout::Direction) {
        let [a, b] = &stream.dir;
        if self.side() == 0 { (a, b) } else { (b, a) }
    }

    /// Takes back what the peer has let go of too, among the first `most` that wait for it. Those
    /// that it has not left come last again.
    fn reap(arena: &Arena, side: usize, ledger: &mut Ledger, most: usize) {
        for _ in 0..most.min(ledger.leaving.len()) {
            let Some((index, mut lent)) = ledger.leaving.pop_front() else {
                return;
            };
            let Some(stream) = arena.stream(index) else {
                continue;
            };
            let [a, b] = &stream.dir;
            let (outgoing, incoming) = if side == 0 { (a, b) } else { (b, a) };
            let writer_left = incoming.tx_wishes.detached.load(Ordering::Acquire) != 0;
            let reader_left = outgoing.rx_wishes.detached.load(Ordering::Acquire) != 0;
            if writer_left && let Some(lent) = lent.take() {
                ledger.pool.take_back(arena, lent);
                ledger.moves += 1;
            }
            if !(writer_left && reader_left) {
                ledger.leaving.push_back((index, lent));
            } else if index as usize & 1 == side {
                ledger.free.push(index);
            }
        }
    }

    /// Gives pages of returned rings back to the kernel if none was lent or came back since the
    /// look that told [`Cooled::Busy`] with `seen`.
    pub fn cool(&self, seen: u64) -> Cooled {
        let Some(mut ledger) = self.ledger.lock() else {
            return Cooled::More;
        };
        let (Some(arena), Some(ledger)) = (self.arena(), ledger.as_mut()) else {
            return Cooled::All;
        };
        Self::reap(arena, self.side(), ledger, REAPED_BY_CONTROL);
        if ledger.moves != seen {
            Cooled::Busy(ledger.moves)
        } else if ledger.pool.cool(arena, COOL_AT_ONCE) {
            Cooled::More
        } else {
            Cooled::All
        }
    }

    // --- the end ---

    /// Closes a link that no stream uses any more. True if this call closed it.
    pub fn close_if_unused(&self) -> bool {
        let Some(mut retired) = MAKING.lock() else {
            return false;
        };
        if !self.is_open() || self.stream_count() != 0 || self.dead.load(Ordering::Acquire) == 0 {
            return false;
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
        for shared in self.bells.iter().chain([&self.control, &self.peer_dir]) {
            shared.close(|_| ());
        }
        if let Some(mut ledger) = self.ledger.lock() {
            *ledger = None;
        }
        // A thread that writes to the arena holds a stream's lock or a pin, and both count as
        // streams.
        let arena = self.arena.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !arena.is_null() {
            // SAFETY: made by Box::into_raw in `open`, taken out by the swap once.
            let arena = unsafe { Box::from_raw(arena) };
            arena.blank();
            retired.push((sys::now_ns(), arena));
            unmap_late(&mut retired);
        }
        true
    }

    /// In the child of a fork, when it needs no stream of the parent's any more: neither the shared
    /// memory nor the peer can be reached from here. A late reader finds zeroes in private pages.
    pub fn part_with_parent(&self, forget: impl FnOnce(i32)) {
        if !self.is_foreign() {
            return;
        }
        if let Some(arena) = self.arena() {
            arena.blank();
        }
        self.control.close(forget);
    }

    /// In the child of a fork: the link is the parent's. Its descriptors are closed here (all but
    /// the control socket, by which the child can still call the peer), and the mapping stays for
    /// the streams that the child may have to demote.
    pub fn after_fork(&self) {
        self.kill();
        self.foreign.store(1, Ordering::Release);
        self.control.after_fork();
        for shared in self.bells.iter().chain([&self.peer_dir]) {
            shared.after_fork();
            shared.close(|_| ());
        }
        for cell in &self.slot_owner {
            cell.store(0, Ordering::Relaxed);
        }
    }
}
