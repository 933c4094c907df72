//! The table of all connections and the counters of the process.
//!
//! Slots for connections lie in chunks of [`CHUNK_LEN`], mapped when the first slot of one is
//! needed and never unmapped. A slot is taken from the free list, the last one freed first, or else
//! it is the next one that was never used, so a process with one connection touches one page.
//!
//! The free list is a stack of slot numbers. Its head carries a tag that grows with every change:
//! a thread that slept between reading `next` and its compare-and-swap fails, even if the same slot
//! is on top again (ABA). Reading `next` of a slot that another thread has taken meanwhile is
//! harmless because slots are never anything else. The tag has 32 bits; to be fooled, a thread must
//! sleep through an exact multiple of 2^32 changes.

use crate::cell::{Counter, Gauge};
use crate::conn::{Conn, Direction};
use crate::events::{KEPT, Log};
use crate::reason::{REASON_SLOTS, Reason};
use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use syscalls::{Sysno, syscall};

/// The first bytes of [`ROOT`].
pub const MAGIC: [u8; 16] = *b"\x7fSluice.Stats\xd6\x1c\xa5";

/// Version of the layout of everything that another process reads. [`Header`] itself never changes.
pub const LAYOUT: u32 = 3;

/// Connections in one chunk.
pub const CHUNK_LEN: usize = 256;

/// Chunks at most: 2^20 connections, the kernel's own default bound for one process (fs.nr_open).
pub const CHUNK_SLOTS: usize = 4096;

/// What every version of the library has at the start of its root, so that every version of the
/// tool can say why it cannot read the rest.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 16],
    /// [`LAYOUT`].
    pub layout: u32,
    /// `size_of::<Root>()`.
    pub root_len: u32,
    /// `size_of::<Conn>()`.
    pub conn_len: u32,
    /// [`CHUNK_LEN`].
    pub chunk_len: u16,
    /// Bytes of a pointer.
    pub word_len: u8,
    /// 0.
    pub spare: u8,
    /// The library's version in UTF-8, filled up with zeros.
    pub version: [u8; 32],
}

const _: () = assert!(size_of::<Header>() == 64);

impl Header {
    /// The header of this build.
    pub const THIS: Header = Header {
        magic: MAGIC,
        layout: LAYOUT,
        root_len: size_of::<Root>() as u32,
        conn_len: size_of::<Conn>() as u32,
        chunk_len: CHUNK_LEN as u16,
        word_len: size_of::<usize>() as u8,
        spare: 0,
        version: padded(env!("CARGO_PKG_VERSION").as_bytes()),
    };

    /// Can this build read what follows the header?
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let (this, that) = (&Header::THIS, self);
        that.magic == this.magic
            && (that.layout, that.root_len) == (this.layout, this.root_len)
            && (that.conn_len, that.chunk_len) == (this.conn_len, this.chunk_len)
            && that.word_len == this.word_len
    }

    /// The library's version.
    #[must_use]
    pub fn version(&self) -> &str {
        let text = self.version.split(|&b| b == 0).next().unwrap_or_default();
        core::str::from_utf8(text).unwrap_or("?")
    }
}

/// `text` cut or filled up with zeros to the length of a version.
const fn padded(text: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    let (mut to, mut from): (&mut [u8], &[u8]) = (&mut out, text);
    while let (Some((byte, to_rest)), Some((&next, from_rest))) =
        (to.split_first_mut(), from.split_first())
    {
        *byte = next;
        (to, from) = (to_rest, from_rest);
    }
    out
}

/// In [`Root::flags`]: the user has turned upgrades off, and nothing is tracked.
const OFF: u32 = 1;
/// In [`Root::flags`]: another copy of the library works in this process, and this one does
/// nothing.
const IDLE: u32 = 2;

/// Connections that were mapped together.
#[derive(Debug)]
#[repr(C)]
pub struct Chunk {
    /// The slots, in the order of their numbers.
    pub conns: [Conn; CHUNK_LEN],
}

impl Chunk {
    /// A chunk of unused slots.
    #[must_use]
    pub const fn new() -> Chunk {
        Chunk {
            conns: [const { Conn::new() }; CHUNK_LEN],
        }
    }
}

impl Default for Chunk {
    fn default() -> Chunk {
        Chunk::new()
    }
}

/// Counters of one process, and the way to those of its connections.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Root {
    header: Header,
    /// Process id as the process itself sees it; 0 until its first connection. Written by
    /// [`Root::identify`] and by the child of a fork.
    pid: AtomicU32,
    /// Grows at every fork in the child; a connection of an earlier epoch counts for the parent.
    epoch: AtomicU32,
    started_ns: AtomicU64,
    /// Head of the free list: tag in the high half, slot number + 1 in the low half, 0 for none.
    /// Changed by compare-and-swap alone; Release when a slot is put down, Acquire when one is
    /// taken.
    free: AtomicU64,
    /// The lowest slot number never used. Grows by compare-and-swap, after its chunk is in place.
    fresh: AtomicU32,
    /// Of [`OFF`] and [`IDLE`]. Written while the library is loaded.
    flags: AtomicU32,
    /// Connections so far: sockets that were connected or accepted.
    pub tracked: Counter,
    /// Streams that took over from TCP.
    pub upgrades: Counter,
    /// Connections that went back to TCP.
    pub demotions: Counter,
    /// Links held now.
    pub links: Gauge,
    /// Links ever made.
    pub links_made: Counter,
    /// Doorbells rung, those that belong to no single connection too.
    pub doorbells: Counter,
    /// Panics caught; each cost one stream and nothing else.
    pub panics: Counter,
    /// Everything that closed connections have sent.
    pub closed_tx: Direction,
    /// Everything that closed connections have received.
    pub closed_rx: Direction,
    /// How often each reason was given, by its number.
    reasons: [Counter; REASON_SLOTS],
    /// What happened to connections, but for messages.
    pub events: Log<KEPT>,
    /// Null until the chunk is mapped; then never changed. Release when set, Acquire when read.
    chunks: [AtomicPtr<Chunk>; CHUNK_SLOTS],
}

/// The counters of this process.
///
/// `#[used]`: no code reads the header, and an optimiser that saw this might drop it, or take the
/// static apart.
#[used]
pub static ROOT: Root = Root::new();

impl Root {
    /// A root that has counted nothing.
    #[must_use]
    pub const fn new() -> Root {
        Root {
            header: Header::THIS,
            pid: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            started_ns: AtomicU64::new(0),
            free: AtomicU64::new(0),
            fresh: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            tracked: Counter::new(),
            upgrades: Counter::new(),
            demotions: Counter::new(),
            links: Gauge::new(),
            links_made: Counter::new(),
            doorbells: Counter::new(),
            panics: Counter::new(),
            closed_tx: Direction::new(),
            closed_rx: Direction::new(),
            reasons: [const { Counter::new() }; REASON_SLOTS],
            events: Log::new(),
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNK_SLOTS],
        }
    }

    // --- for the process that counts ---

    /// Counts `reason` for the process; [`Conn`]'s own methods do so already.
    pub fn count_reason(&self, reason: Reason) {
        if let Some(counter) = self.reasons.get(usize::from(reason as u16)) {
            counter.add_shared(1);
        }
    }

    /// Says whose counters these are. The caller asks for the number: here no call may be made that
    /// a program itself perhaps never makes.
    pub fn identify(&self, pid: u32) {
        self.pid.store(pid, Relaxed);
    }

    /// The user has turned upgrades off.
    pub fn set_off(&self) {
        self.flags.fetch_or(OFF, Relaxed);
    }

    /// Another copy of the library works in this process.
    pub fn set_idle(&self) {
        self.flags.fetch_or(IDLE, Relaxed);
    }

    fn alloc(&self) -> Option<&'static Conn> {
        let now_ns = monotonic_ns();
        if self.started_ns.load(Relaxed) == 0 {
            self.started_ns.store(now_ns, Relaxed);
        }
        let (index, conn) = self.pop().or_else(|| self.take_fresh())?;
        conn.begin(index, self.epoch.load(Relaxed), now_ns);
        Some(conn)
    }

    fn release(&self, conn: &'static Conn) {
        let index = conn.index.load(Relaxed);
        if !self.at(index).is_some_and(|own| ptr::eq(own, conn)) || !conn.end() {
            return;
        }
        if !self.is_inherited(conn) {
            self.closed_tx.absorb(&conn.tx);
            self.closed_rx.absorb(&conn.rx);
        }
        self.push(index, conn);
    }

    fn adopt(&self, conn: &Conn) {
        if self.is_inherited(conn) {
            conn.restart(self.epoch.load(Relaxed));
        }
    }

    fn forked(&self, pid: u32) {
        self.epoch.fetch_add(1, Relaxed);
        self.events.begin_anew();
        if self.started_ns.load(Relaxed) == 0 {
            return;
        }
        self.pid.store(pid, Relaxed);
        self.started_ns.store(monotonic_ns(), Relaxed);
        for counter in [
            &self.tracked,
            &self.upgrades,
            &self.demotions,
            &self.links_made,
            &self.doorbells,
            &self.panics,
        ] {
            counter.reset();
        }
        self.closed_tx.reset();
        self.closed_rx.reset();
        for counter in &self.reasons {
            counter.reset();
        }
    }

    // --- for readers ---

    /// What every version begins with.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Process id as the process sees it itself, in its own pid namespace; 0 before its first
    /// connection. After a fork that no handler saw, the parent's.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.load(Relaxed)
    }

    /// Are upgrades turned off? Then nothing is tracked.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.flags.load(Relaxed) & OFF != 0
    }

    /// Does another copy of the library work in this process, so that this one counts nothing?
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.flags.load(Relaxed) & IDLE != 0
    }

    /// When the process began to count, on CLOCK_MONOTONIC.
    #[must_use]
    pub fn started_ns(&self) -> u64 {
        self.started_ns.load(Relaxed)
    }

    /// How often `reason` was given.
    #[must_use]
    pub fn reason_count(&self, reason: Reason) -> u64 {
        self.reasons
            .get(usize::from(reason as u16))
            .map_or(0, Counter::load)
    }

    /// The counts of all reasons by number, those unknown to this build too.
    pub fn reason_counts(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        (0..).zip(self.reasons.iter().map(Counter::load))
    }

    /// Slots that were ever in use: the only ones worth reading.
    #[must_use]
    pub fn used(&self) -> usize {
        let capacity = CHUNK_LEN * CHUNK_SLOTS;
        (self.fresh.load(Acquire) as usize).min(capacity)
    }

    /// Where chunk `number` lies in the process that counts; `None` while it is not mapped.
    #[must_use]
    pub fn chunk(&self, number: usize) -> Option<*const Chunk> {
        let chunk = self.chunks.get(number)?.load(Acquire);
        (!chunk.is_null()).then_some(chunk.cast_const())
    }

    /// Did `conn` come with a fork? Its counts are then the parent's.
    #[must_use]
    pub fn is_inherited(&self, conn: &Conn) -> bool {
        conn.epoch.load(Relaxed) != self.epoch.load(Relaxed)
    }

    // --- the table ---

    fn at(&self, index: u32) -> Option<&'static Conn> {
        let chunk = self.chunk(index as usize / CHUNK_LEN)?;
        // SAFETY: a pointer gets into the table in `take_fresh` alone, as a mapping of the length
        // and alignment of a chunk that is never unmapped. Zeroed memory is a valid `Chunk`, and
        // nothing but shared references to its atomics is ever made.
        let chunk: &'static Chunk = unsafe { &*chunk };
        chunk.conns.get(index as usize % CHUNK_LEN)
    }

    fn pop(&self) -> Option<(u32, &'static Conn)> {
        let mut head = self.free.load(Acquire);
        loop {
            let index = (head as u32).checked_sub(1)?;
            let conn = self.at(index)?;
            let next = retagged(head, conn.next.load(Relaxed));
            match self.free.compare_exchange_weak(head, next, AcqRel, Acquire) {
                Ok(_) => return Some((index, conn)),
                Err(now) => head = now,
            }
        }
    }

    fn push(&self, index: u32, conn: &Conn) {
        let mut head = self.free.load(Relaxed);
        loop {
            conn.next.store(head as u32, Relaxed);
            let next = retagged(head, index.wrapping_add(1));
            match self
                .free
                .compare_exchange_weak(head, next, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn take_fresh(&self) -> Option<(u32, &'static Conn)> {
        let mut index = self.fresh.load(Acquire);
        loop {
            let slot = self.chunks.get(index as usize / CHUNK_LEN)?;
            if slot.load(Acquire).is_null() {
                let chunk = map_chunk()?;
                if slot
                    .compare_exchange(ptr::null_mut(), chunk, Release, Relaxed)
                    .is_err()
                {
                    unmap_chunk(chunk);
                }
            }
            // `index` can only be used up if the table is longer than a slot number: it is not.
            match self
                .fresh
                .compare_exchange_weak(index, index.wrapping_add(1), AcqRel, Acquire)
            {
                Ok(_) => return self.at(index).map(|conn| (index, conn)),
                Err(now) => index = now,
            }
        }
    }
}

const _: () = assert!(CHUNK_LEN * CHUNK_SLOTS < u32::MAX as usize);

impl Default for Root {
    fn default() -> Root {
        Root::new()
    }
}

/// `top` as the new head of the free list, with the next tag.
fn retagged(head: u64, top: u32) -> u64 {
    let tag = (head >> 32).wrapping_add(1);
    tag << 32 | u64::from(top)
}

fn map_chunk() -> Option<*mut Chunk> {
    let len = size_of::<Chunk>();
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory that
    // is in use.
    let mapped = unsafe { syscall!(Sysno::mmap, 0, len, prot, flags, usize::MAX, 0) };
    mapped.ok().map(ptr::with_exposed_provenance_mut)
}

fn unmap_chunk(chunk: *mut Chunk) {
    // SAFETY: the caller has just mapped this chunk and lost the race to publish it, so nobody
    // else knows the address. A refusal leaves an unused mapping, which hurts nobody.
    let _ = unsafe { syscall!(Sysno::munmap, chunk, size_of::<Chunk>()) };
}

/// Nanoseconds on CLOCK_MONOTONIC, the clock of every time in this layout.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a timespec of our own. clock_gettime is async-signal-safe, and Sluice does
    // not interpose it.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    if rc != 0 {
        return 0;
    }
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Takes a slot for a connection, with all counters at zero; `None` when the table is full or
/// memory is refused. Async-signal-safe.
#[must_use]
pub fn alloc_conn() -> Option<&'static Conn> {
    ROOT.alloc()
}

/// Gives the slot back. What it counted goes into the totals of the process first. A second call
/// for the same connection does nothing.
pub fn free_conn(conn: &'static Conn) {
    ROOT.release(conn);
}

/// A child of fork begins to use a connection that it inherited: from here on it counts for the
/// child. Does nothing for the process's own connections.
pub fn adopt_conn(conn: &Conn) {
    ROOT.adopt(conn);
}

/// To be called first in the child of a fork: the counters of the process begin anew. Inherited
/// connections stay where they are and count for the parent until [`adopt_conn`]; walking them
/// here would copy a page for every dozen of them at each fork.
///
/// A slot that another thread was taking or giving back at the moment of the fork is lost to the
/// child; nothing else is. `pid`: the child's process id.
pub fn reset_after_fork(pid: u32) {
    ROOT.forked(pid);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::conn::{Role, Transport};
    use std::boxed::Box;
    use std::collections::HashSet;
    use std::vec::Vec;

    fn root() -> &'static Root {
        Box::leak(Box::new(Root::new()))
    }

    #[test]
    fn the_slot_freed_last_is_taken_first() {
        let root = root();
        let conns: Vec<_> = (0..3).map(|_| root.alloc().unwrap()).collect();
        assert_eq!(root.used(), 3);
        for conn in &conns {
            root.release(conn);
        }
        for conn in conns.iter().rev() {
            assert!(ptr::eq(root.alloc().unwrap(), *conn));
        }
        assert_eq!(root.used(), 3);
    }

    #[test]
    fn a_freed_connection_leaves_its_counts_to_the_process() {
        let root = root();
        let conn = root.alloc().unwrap();
        assert!(conn.is_live());
        conn.describe(
            4,
            Role::Connecting,
            "1.2.3.4:5".parse().unwrap(),
            "1.2.3.4:6".parse().unwrap(),
        );
        conn.upgraded(Transport::Shm);
        conn.tx.bytes.indirect.add(100);
        conn.rx.bytes.tcp.add(7);
        conn.rx.ring_len.set(4096);
        root.release(conn);
        assert!(!conn.is_live());
        root.release(conn);
        assert_eq!(
            root.closed_tx.bytes.indirect.load(),
            100,
            "a second release must not count again"
        );
        assert_eq!(root.closed_rx.bytes.tcp.load(), 7);
        let again = root.alloc().unwrap();
        assert!(ptr::eq(again, conn));
        assert_eq!(again.family(), None);
        assert_eq!(
            (
                again.upgrades(),
                again.rx.bytes.tcp.load(),
                again.rx.ring_len.load()
            ),
            (0, 0, 0)
        );
        assert!(again.created_ns() >= root.started_ns() && root.started_ns() > 0);
    }

    #[test]
    fn a_connection_of_another_table_is_left_alone() {
        let (mine, other) = (root(), root());
        let stranger = other.alloc().unwrap();
        let _ = mine.alloc().unwrap();
        mine.release(stranger);
        assert!(stranger.is_live());
    }

    #[test]
    fn chunks_are_mapped_as_they_are_needed() {
        let root = root();
        let mut seen = HashSet::new();
        for n in 0..CHUNK_LEN + 1 {
            assert_eq!(root.chunk(1).is_some(), n > CHUNK_LEN);
            assert!(seen.insert(ptr::from_ref(root.alloc().unwrap())));
        }
        assert!(root.chunk(1).is_some());
        assert!(root.chunk(2).is_none());
        assert!(root.chunk(CHUNK_SLOTS).is_none());
    }

    #[test]
    fn a_full_table_refuses() {
        let root = root();
        root.fresh.store((CHUNK_LEN * CHUNK_SLOTS) as u32, Relaxed);
        assert!(root.alloc().is_none());
    }

    #[test]
    fn a_child_counts_for_itself() {
        let root = root();
        let conn = root.alloc().unwrap();
        conn.tx.bytes.tcp.add(50);
        root.links.raise(1);
        root.tracked.add_shared(1);
        root.count_reason(Reason::NoAnswer);
        root.forked(7);
        assert!(root.is_inherited(conn));
        assert_eq!(root.pid(), 7);
        assert_eq!(root.reason_count(Reason::NoAnswer), 0);
        assert_eq!(root.tracked.load(), 0);
        assert_eq!(root.links.load(), 1, "what is held is still held");

        let second = root.alloc().unwrap();
        assert!(!root.is_inherited(second));
        root.adopt(conn);
        assert!(!root.is_inherited(conn));
        assert_eq!(conn.tx.bytes.tcp.load(), 0);
        conn.tx.bytes.tcp.add(3);
        root.adopt(conn);
        root.release(conn);
        assert_eq!(root.closed_tx.bytes.tcp.load(), 3);

        second.tx.bytes.tcp.add(9);
        root.forked(8);
        root.release(second);
        assert_eq!(
            root.closed_tx.bytes.tcp.load(),
            0,
            "the parent's bytes are the parent's"
        );
    }

    #[test]
    fn a_fork_before_the_first_connection_leaves_the_root_untouched() {
        let root = root();
        root.forked(7);
        assert_eq!((root.pid(), root.started_ns()), (0, 0));
        let conn = root.alloc().unwrap();
        assert!(!root.is_inherited(conn));
        assert!(root.started_ns() != 0);
    }

    #[test]
    fn threads_never_share_a_slot_and_lose_no_count() {
        let taken = AtomicU64::new(0);
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 20_000;
        let root = root();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let held: Vec<_> =
                            (0..1 + round % 3).map(|_| root.alloc().unwrap()).collect();
                        for conn in held {
                            assert_eq!(conn.tx.bytes.tcp.load(), 0, "somebody else has this slot");
                            conn.tx.bytes.tcp.add(1);
                            root.release(conn);
                            taken.fetch_add(1, Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(root.closed_tx.bytes.tcp.load(), taken.load(Relaxed));
        assert!(root.used() <= 3 * THREADS as usize);
    }

    #[test]
    fn the_header_says_what_follows() {
        let header = ROOT.header();
        assert!(header.is_readable());
        assert_eq!(header.version(), env!("CARGO_PKG_VERSION"));
        assert_eq!(ptr::from_ref(header).addr(), ptr::from_ref(&ROOT).addr());
        let newer = Header {
            layout: LAYOUT + 1,
            ..*header
        };
        assert!(!newer.is_readable());
    }
}
