//! A tracked TCP socket: what this process knows of one connection.
//!
//! A socket has two halves, `rx` and `tx`. Each has a lock, and a state that changes only by an
//! [`Event`].
//!
//! A `Socket` lives in a type-stable pool: its memory is a `Socket` for the life of the process, so
//! a stale reference is safe to read. [`Known`] tells whether it still is the same connection.

mod pool;
mod stack;
mod state;
pub mod watcher;

pub use self::pool::{OPENED, after_fork, alloc, for_all, for_every, free};
pub use self::stack::{Place, Stack};
pub use self::state::{Event, State};
use self::watcher::Watcher;
use crate::abort_on_exit::Staged;
use crate::digests;
use crate::direct::state::Direct;
use crate::fork_shared::Family;
use crate::stall_watch::Full;
use crate::unread_copy::store::UnreadCopy;
use core::net::SocketAddr;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering,
};
use sluice_fabric::layout::Direction;
use sluice_fabric::lock::Lock;
use sluice_fabric::ring::Ring;
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_runtime::fd_table::{self, Entry, Kind, Object};
use sluice_stats::{Conn, Reason, Transport};

/// Which end of the TCP connection this is.
pub mod role {
    /// Unknown: no hook saw `connect` or `accept`.
    pub const UNKNOWN: u8 = 0;
    /// This process called `connect`.
    pub const CONNECTING: u8 = 1;
    /// `accept` returned the socket to this process.
    pub const ACCEPTED: u8 = 2;
}

/// Halves that the program has shut down, in [`Socket::halves`].
pub mod half {
    /// `SHUT_RD`.
    pub const READING: u8 = 1;
    /// `SHUT_WR`.
    pub(crate) const WRITING: u8 = 2;
    /// `SHUT_RDWR`.
    pub(crate) const BOTH: u8 = READING | WRITING;
}

/// A connection on a link can be in at most so many epoll sets.
pub const SETS: usize = 8;

/// One half of a socket: all zeroes when new.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Half {
    /// Guards writes to everything below except `calls`, `moves`, `owed` and the spin words.
    pub lock: Lock,
    /// What carries the bytes. Changed under the lock; read without it as a hint.
    pub state: state::Cell,
    /// tx: the ring may have pages, and `trim.rs` knows. Written under the lock.
    pub resident: AtomicBool,
    /// Low 16 bits: calls that are in the kernel now. The rest: bytes that the kernel has moved.
    /// The thread that counted a call uncounts it even if the socket was closed meanwhile, so the
    /// count outlives the socket. SeqCst: one thread counts its call, then reads the state; another
    /// changes the state, then reads the count.
    pub calls: AtomicU64,
    /// About how many calls by the kernel have moved bytes.
    pub moves: AtomicU32,
    /// This end's cursor on the link: bytes published (tx) or consumed (rx) since the switch.
    pub at: AtomicU64,
    /// The peer's cursor as last read and validated: never ahead of the real one.
    pub seen: AtomicU64,
    ring_base: AtomicPtr<u8>,
    ring_len: AtomicU32,
    /// tx: the most bytes that may lie unread in the ring, since TCP has to take them at a
    /// demotion.
    pub unread_max: AtomicU32,
    /// The direction in the link's arena.
    dir: AtomicPtr<Direction>,
    /// rx: the offset in the TCP stream at which the link's bytes begin. tx, during a re-send: the
    /// next byte to send, as in `at`.
    pub from: AtomicU64,
    /// rx, off the link: the byte count of TCP (as in `calls`) up to which the peer re-sends bytes
    /// that the program may have been told of before a demotion. 0: nothing is owed;
    /// [`unread_copy::SOME`](super::unread_copy::SOME): an unknown number is.
    pub owed: AtomicU64,
    /// All bytes that went by links and not also by TCP, over all streams.
    pub linked: AtomicU64,
    /// Adaptive spin budget of waits on this half, in ns.
    pub spin_ns: AtomicU32,
    /// How many waits skip the spin before a half with no budget left tries to spin again.
    pub spin_skip: AtomicU32,
    /// Least size of a transfer that may go directly; 0 while an offer is up.
    pub gate: AtomicU32,
}

/// One call in the kernel, as counted in [`Half::calls`].
pub(crate) const CALL: u64 = 1;
/// Bits of the call count, below the byte count, in [`Half::calls`].
pub const CALL_BITS: u32 = 16;

// SAFETY: only entries made from a `Socket` have this kind, so the table's pointer is one.
unsafe impl Object for Socket {
    const KIND: Kind = Kind::Socket;
}

impl Half {
    /// Calls that are in the kernel now.
    #[inline]
    pub fn in_kernel(&self) -> u64 {
        self.calls.load(Ordering::SeqCst) & ((1 << CALL_BITS) - 1)
    }
    /// Bytes that the kernel has moved for this process's hooks, including re-sent ones.
    #[inline]
    pub fn kernel_bytes(&self) -> u64 {
        self.calls.load(Ordering::Relaxed) >> CALL_BITS
    }
    /// Counts a call that is about to enter the kernel. SeqCst: see [`Half::calls`].
    #[inline]
    pub(crate) fn call_begins(&self) {
        self.calls.fetch_add(CALL, Ordering::SeqCst);
    }
    /// Uncounts a call that has moved `n` bytes. One atomic step, so that no thread sees the call
    /// gone and its bytes not counted yet.
    #[inline]
    pub(crate) fn call_ends(&self, n: u64) {
        self.calls
            .fetch_add((n << CALL_BITS).wrapping_sub(CALL), Ordering::SeqCst);
        if n != 0 {
            // A lost update does no harm: the count is approximate.
            let moves = self.moves.load(Ordering::Relaxed);
            self.moves.store(moves.wrapping_add(1), Ordering::Relaxed);
        }
    }
    /// Counts bytes that the kernel has moved outside a counted call.
    #[inline]
    pub(crate) fn add_kernel_bytes(&self, n: u64) {
        self.calls.fetch_add(n << CALL_BITS, Ordering::Relaxed);
    }
    /// The state as a hint: confirm a decision under the lock.
    #[inline]
    pub fn state(&self) -> State {
        self.state.get()
    }
    /// The direction, in every state but Plain. Call with the lock held.
    #[inline]
    pub fn dir(&self) -> Option<&'static Direction> {
        // SAFETY: null, or a direction in the arena of the link. `detach` clears the pointer under
        // the lock before the arena may be unmapped.
        unsafe { self.dir.load(Ordering::Relaxed).as_ref() }
    }
    /// Returns whether either end has taken the direction back to TCP. Call with the lock held.
    pub fn is_sealed(&self) -> bool {
        self.dir()
            .is_some_and(|d| d.tx.tail.read().flagged || d.rx.head.read().flagged)
    }
    /// Returns whether the half uses this direction. A hint: reads without the lock.
    #[inline]
    pub fn is_at(&self, dir: &Direction) -> bool {
        core::ptr::eq(self.dir.load(Ordering::Relaxed), dir)
    }
    /// The ring, if known. Call with the lock held.
    #[inline]
    pub fn ring(&self) -> Option<Ring> {
        let base = self.ring_base.load(Ordering::Relaxed);
        // SAFETY: `set_ring` stores base and length together, from a validated ring of the arena.
        (!base.is_null()).then(|| unsafe { Ring::new(base, self.ring_len.load(Ordering::Relaxed)) })
    }
    pub(crate) fn set_ring(&self, ring: Ring) {
        let [(base, _), _] = ring.pieces(0, ring.len());
        self.ring_len.store(ring.len() as u32, Ordering::Relaxed);
        self.ring_base.store(base, Ordering::Relaxed);
    }
    /// Publishes the ring in use to `sluice stat`.
    pub(crate) fn show_ring(&self, to: &sluice_stats::Direction) {
        if let (Some(dir), Some(ring)) = (self.dir(), self.ring()) {
            let words = [&dir.tx.tail, &dir.rx.head];
            to.holds_ring(
                ring.len(),
                words.map(|word| core::ptr::from_ref(word).addr()),
            );
        }
    }
    /// Sets or clears the direction, and resets both cursors. Call with the lock held.
    pub fn set_dir(&self, dir: Option<&'static Direction>) {
        self.dir.store(
            dir.map_or(core::ptr::null_mut(), |d| core::ptr::from_ref(d).cast_mut()),
            Ordering::Relaxed,
        );
        if dir.is_none() {
            self.ring_base
                .store(core::ptr::null_mut(), Ordering::Relaxed);
        }
        self.at.store(0, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        self.resident.store(false, Ordering::Relaxed);
    }

    fn reset(&self) {
        self.lock.reset();
        self.state.renew();
        self.calls
            .fetch_and((1 << CALL_BITS) - 1, Ordering::Relaxed);
        self.set_dir(None);
        for word in [&self.from, &self.owed, &self.linked] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.spin_ns,
            &self.spin_skip,
            &self.unread_max,
            &self.moves,
        ] {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// A tracked socket.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Socket {
    /// The reading half.
    pub rx: Half,
    /// The writing half.
    pub tx: Half,
    /// Stream bytes, both directions together, at which the next upgrade is tried; u64::MAX: never.
    pub next_try: AtomicU64,
    /// An upgrade was due while the other end could not be looked for yet; it is tried once the
    /// peer has answered.
    pub is_early: AtomicBool,
    /// A fork gave the socket to a relative, which may set its options.
    pub was_inherited: AtomicBool,
    /// The peer asked over a link for this end before this process moved a byte.
    pub is_asked_for: AtomicBool,
    /// A large write has already made this process look for the other end.
    pub was_large: AtomicBool,
    /// Peers were asked for this connection over links since a link last came up.
    pub has_asked: AtomicBool,
    /// The inode by which other processes name the socket; 0: not looked up. See `inodes.rs`.
    pub inode: AtomicU64,
    /// Place in [`OPENED`].
    opened: Place,
    /// What is kept of the connection's first bytes, to prove it to another host.
    pub prefix: digests::Slot,
    /// Entries of the descriptor table that point here: descriptors of this process.
    pub fds: AtomicU32,
    /// Counts how often the structure was freed, so that a stale reference can be detected.
    pub generation: AtomicU32,
    /// A descriptor number of this process that is valid now; with dups, any of them.
    pub fd: AtomicI32,
    /// See [`role`].
    pub role: AtomicU8,
    /// Threads of this process in a kernel `poll` or `select` that watch the socket and began
    /// before the peer was proved. Outlives the socket, as [`Half::calls`] does.
    pub polls: AtomicU32,
    /// O_NONBLOCK as last set through a hook. The low bits (`ASKED`) are 0 if unknown, else
    /// `BLOCKS` or `BLOCKS_NOT`; the bits above count how often the value was forgotten.
    pub nonblock: AtomicU32,
    /// Low bit: TCP_NODELAY as last set through a hook. The bits above count such calls.
    pub nodelay: AtomicU32,
    /// SO_RCVTIMEO of a socket with a stream, in ns; 0: none.
    pub rcv_timeout_ns: AtomicU64,
    /// SO_SNDTIMEO, likewise.
    pub snd_timeout_ns: AtomicU64,
    /// TCP_INQ of a socket with a stream.
    pub tells_unread: AtomicBool,
    /// SO_RCVLOWAT of a socket with a stream; 0 means 1.
    pub rcvlowat: AtomicU32,
    /// The kernel's SO_RCVLOWAT is 1 instead of `rcvlowat`: TCP may bring the peer's record, or a
    /// call counted in `low_waits` sleeps. Changed under the rx lock.
    pub low_held: AtomicBool,
    /// Sleeping calls that have part of what they want and need fewer bytes than `rcvlowat` to go
    /// on. Changed under the rx lock.
    pub low_waits: AtomicU32,
    /// The program cleared FD_CLOEXEC: the descriptor survives `exec`.
    pub for_exec: AtomicBool,
    /// Watches for a reader that leaves the ring full.
    pub full: Full,
    /// Place among the sockets whose rings have pages; see `trim.rs`.
    pub untrimmed: Place,
    /// Offset at which the ring for writing began to have pages. Guarded by the tx lock.
    pub resident_from: AtomicU64,
    /// The unread bytes of a demoted stream.
    pub unread_copy: UnreadCopy,
    /// State of direct transfers.
    pub direct: Direct,
    /// Buffers lent to another host.
    pub lent: crate::carrier::lent::Lent,
    /// The [`Reason`], as a number, for which the socket may never be upgraded again; 0: it may.
    pub pinned: AtomicU32,
    /// Demotions since the connection last did well on a link; spaces the next tries.
    pub backoff: AtomicU32,
    /// Bytes between two tries after a demotion. 0: never demoted, so [`first_try`] decides.
    ///
    /// [`first_try`]: crate::trigger::first_try
    pub retry_step: AtomicU64,
    /// What TCP had cost, in bytes, that counts no more for the next upgrade; see `trigger.rs`.
    pub written_off: AtomicU64,
    /// Bytes moved by links before the stream in use was attached.
    pub linked_before: AtomicU64,
    /// Between hosts: the path to the other end.
    pub path: crate::path::Path,
    /// The key by which the other end names this connection; 0: unknown.
    pub key: AtomicU64,
    /// The inode of the other end's socket; 0: unknown.
    pub mirror: AtomicU64,
    /// Index of this socket's latest registration in its set: a hint that the set verifies.
    pub last_reg: AtomicU32,
    /// The link of the last stream, and its generation. The peer's process is at its other end.
    last_link: AtomicPtr<Link>,
    last_generation: AtomicU32,
    /// The demotion of the stream in use has been counted.
    pub counted: AtomicBool,
    /// The sets of this socket know the stream in use. No reader consents before, since no set
    /// would report what the peer writes.
    pub adopted: AtomicBool,
    /// The stream in use has carried a direction, and has been counted as an upgrade.
    pub upgraded: AtomicBool,
    /// The peer died with unread input: `recv` returns ECONNRESET once, as on TCP.
    pub reset_seen: AtomicBool,
    /// This end's kernel has reset the connection, so the kernel reports it.
    pub reset_made: AtomicBool,
    /// The program has shut down the writing half. TCP's follows when everything is re-sent.
    pub shut: AtomicBool,
    /// The halves that the program has shut down, as bits of [`half`].
    pub halves: AtomicU8,
    /// 1 + the generation in which the program last shut down a writing half.
    pub shut_in: AtomicU32,
    /// The program has closed all its descriptors. `fd` is the library's own, closed after the
    /// re-send.
    pub lingers: AtomicBool,
    /// The report line of this connection has been written; see `report.rs`.
    pub reported: AtomicBool,
    /// Between hosts: bytes written during the switch, which this process alone holds.
    pub staged: Staged,
    /// Between hosts: a step of the switch waits until more of TCP is read.
    pub far: AtomicBool,
    /// Between hosts: the offset at which the peer's re-send begins is known.
    pub begun: AtomicBool,
    /// Between hosts: the process-wide count of records taken out of TCP, at the last one taken out
    /// of this connection. See `carrier::records_removed`.
    pub heard: AtomicU64,
    /// Between hosts: since when TCP holds bytes that may be the beginning of a record; 0: it holds
    /// none.
    pub undecided_ns: AtomicU64,
    /// Between hosts: the stream was left to another reader, which reads TCP without this library.
    pub handed: AtomicBool,
    /// Counters for `sluice stat`; null if none could be allocated.
    conn: AtomicPtr<Conn>,
    /// Memory shared with relatives; null until a fork or an upgrade.
    family: AtomicPtr<Family>,
    /// The link of the stream in use; null if none.
    link: AtomicPtr<Link>,
    /// The stream's index on the link.
    pub index: AtomicU32,
    /// The epoll sets that this socket is registered in.
    pub sets: [AtomicPtr<Watcher>; SETS],
    /// The next free structure.
    next_free: AtomicPtr<Socket>,
}

/// The bits of [`Socket::nonblock`] that hold the value.
const ASKED: u32 = 3;
/// O_NONBLOCK is off.
const BLOCKS: u32 = 1;
/// O_NONBLOCK is on.
const BLOCKS_NOT: u32 = 2;

/// An end that stays on TCP tells the other end why from this stream offset on. The other end
/// seldom looks earlier, and a short connection should not pay for the message.
pub const TELLS_AT: u64 = 32 << 10;

impl Socket {
    /// The connection's counters, or a shared dummy if it has none.
    #[inline]
    pub fn conn(&self) -> &'static Conn {
        static NOBODY: Conn = Conn::new();
        // SAFETY: null, or from `alloc_conn`, whose memory is never unmapped.
        unsafe { self.conn.load(Ordering::Relaxed).as_ref() }.unwrap_or(&NOBODY)
    }

    /// This end's address and the peer's, if they are known.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: null, or from `alloc_conn`, whose memory is never unmapped.
        let conn = unsafe { self.conn.load(Ordering::Relaxed).as_ref() }?;
        conn.local().zip(conn.peer())
    }

    /// The memory shared with relatives, if any.
    #[inline]
    pub fn family(&self) -> Option<&'static Family> {
        // SAFETY: null, or a slot of the family region, which is never unmapped.
        unsafe { self.family.load(Ordering::Acquire).as_ref() }
    }

    /// Process `pid` gives the socket up (an `exec`, which may fail and come back). If no other
    /// process holds the family slot, it becomes free, and this socket takes a new slot with its
    /// next stream.
    pub fn leave_family(&self, pid: u32) {
        let Some(family) = self.family() else { return };
        if family.leave(pid) {
            self.family.store(core::ptr::null_mut(), Ordering::Release);
        }
    }

    /// Stops using the family slot without leaving it: relatives count this process as a holder
    /// until it ends.
    pub fn detach_family(&self) {
        self.family.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// The family slot, taken first if there is none.
    pub fn family_or_take(&self) -> Option<&'static Family> {
        if let Some(family) = self.family() {
            return Some(family);
        }
        let made = crate::fork_shared::take(sluice_runtime::process::pid())?;
        let raw = core::ptr::from_ref(made).cast_mut();
        match self.family.compare_exchange(
            core::ptr::null_mut(),
            raw,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => Some(made),
            Err(_) => {
                made.leave(sluice_runtime::process::pid());
                self.family()
            }
        }
    }

    /// Returns whether either half's stream is of the process that forked this one.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.rx.state() == State::Inherited || self.tx.state() == State::Inherited
    }

    /// The link of the stream in use.
    #[inline]
    pub fn link(&self) -> Option<&'static Link> {
        // SAFETY: null, or a link; links are leaked and stay valid.
        unsafe { self.link.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn set_stream(&self, link: &'static Link, index: u32) {
        self.index.store(index, Ordering::Relaxed);
        self.link
            .store(core::ptr::from_ref(link).cast_mut(), Ordering::Release);
    }

    /// The link of the last stream, if its peer is still connected.
    pub fn last_link(&self) -> Option<&'static Link> {
        // SAFETY: null, or a link; links are leaked and stay valid.
        let link = unsafe { self.last_link.load(Ordering::Acquire).as_ref() }?;
        let same = link.generation() == self.last_generation.load(Ordering::Relaxed);
        (same && link.is_alive() && link.control().is_open()).then_some(link)
    }

    /// Takes the stream out of the socket. The caller must leave it on the link.
    pub(crate) fn take_stream(&self) -> Option<(&'static Link, u32)> {
        let link = self.link.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: null, or a link; links are leaked and stay valid.
        let link = unsafe { link.as_ref() }?;
        self.last_generation
            .store(link.generation(), Ordering::Relaxed);
        self.last_link
            .store(core::ptr::from_ref(link).cast_mut(), Ordering::Release);
        Some((link, self.index.load(Ordering::Relaxed)))
    }

    /// Bytes that went by links, both directions together.
    pub fn linked(&self) -> u64 {
        self.rx.linked.load(Ordering::Relaxed) + self.tx.linked.load(Ordering::Relaxed)
    }

    /// Returns `fd` if it still belongs to the socket, else another of its numbers: another thread
    /// may close `fd` during the call while a dup lives.
    #[inline]
    pub(crate) fn valid_number(&'static self, fd: i32) -> i32 {
        if fd_table::lookup(fd) == Some(Entry::of(self)) {
            fd
        } else {
            self.fd.load(Ordering::Relaxed)
        }
    }

    /// Stream bytes, both directions together, as both ends count them.
    pub fn offset(&self) -> u64 {
        self.linked() + self.rx.kernel_bytes() + self.tx.kernel_bytes()
    }

    /// Returns whether O_NONBLOCK is set. Relatives share the flag, since it belongs to the open
    /// file: while there are any, the kernel is asked.
    #[inline]
    pub(crate) fn is_nonblocking(&self, fd: i32) -> bool {
        match self.nonblock.load(Ordering::Relaxed) & ASKED {
            BLOCKS => false,
            BLOCKS_NOT => true,
            _ => self.ask_nonblocking(fd),
        }
    }

    /// Returns whether a call with these flags may wait.
    #[inline]
    pub(crate) fn may_wait(&self, fd: i32, flags: i32) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && !self.is_nonblocking(fd)
    }

    /// Returns whether this end has looked for the other end, so that the control thread may have
    /// work for the socket.
    pub(crate) fn was_sought(&self) -> bool {
        self.key.load(Ordering::Relaxed) != 0
    }

    /// Returns whether relatives hold the socket too.
    pub fn is_shared(&self) -> bool {
        self.family()
            .is_some_and(|f| f.is_shared(sluice_runtime::process::pid()))
    }

    #[cold]
    fn ask_nonblocking(&self, fd: i32) -> bool {
        let before = self.nonblock.load(Ordering::SeqCst);
        let flags = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
        let on = flags & libc::O_NONBLOCK != 0;
        if !self.is_shared() {
            let known = before | if on { BLOCKS_NOT } else { BLOCKS };
            // Fails if the flag was set meanwhile.
            let _ =
                self.nonblock
                    .compare_exchange(before, known, Ordering::SeqCst, Ordering::Relaxed);
        }
        on
    }

    /// Forgets the known O_NONBLOCK: a relative may change it, or it has just been set.
    pub fn forget_nonblocking(&self) {
        let count = |now: u32| Some((now & !ASKED).wrapping_add(ASKED + 1));
        let _ = self
            .nonblock
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, count);
    }

    /// Counts the stream as an upgrade when its first direction switches.
    pub(crate) fn note_upgraded(&self, by: Transport) {
        if !self.upgraded.swap(true, Ordering::Relaxed) {
            self.conn().upgraded(by);
            self.tell_upgraded(match by {
                Transport::Verbs => "RDMA",
                _ => "shared memory",
            });
        }
    }

    #[cold]
    fn tell_upgraded(&self, on: &str) {
        if let (Some(local), Some(peer)) = (self.conn().local(), self.conn().peer()) {
            sluice_runtime::config::log(
                sluice_runtime::config::Level::Info,
                format_args!(
                    "fd {} {local} -> {peer}: on {on} after {} bytes",
                    self.fd.load(Ordering::Relaxed),
                    self.offset()
                ),
            );
        }
    }

    /// Why the socket may never be upgraded, if so.
    #[must_use]
    pub fn pinned(&self) -> Option<Reason> {
        match self.pinned.load(Ordering::Relaxed) {
            0 => None,
            reason => Some(Reason::from_u16(reason as u16).unwrap_or(Reason::Close)),
        }
    }

    /// Never upgrades the socket (again), for this reason. The peer is told when it looks for this
    /// end.
    pub fn pin(&self, reason: Reason) {
        self.pinned.store(reason as u32, Ordering::Relaxed);
        // A process that has sandboxed itself may not make the calls that tell the peer.
        let least = match sluice_runtime::rights::forbidden() {
            Some(_) => u64::MAX,
            None => TELLS_AT,
        };
        // The peer is told at the next offset at which it may try.
        let next = self.next_try.load(Ordering::Relaxed).max(least);
        self.next_try.store(next, Ordering::Relaxed);
        self.prefix.end_both();
        if self.link().is_some() {
            return;
        }
        if reason.is_end() {
            self.conn().ends(reason);
        } else {
            self.conn().stays(reason);
        }
    }

    /// Waits until every thread that was inside a section of either lock has left it. Call with
    /// neither lock held. After it, an attach by another thread sees what this thread has stored
    /// before (in `fds`, say) and does not happen; and a thread that had already published a state
    /// change is done with the stream.
    pub fn synchronize_locks(&self) {
        for half in [&self.rx, &self.tx] {
            drop(half.lock.enter());
        }
    }

    /// Returns whether either half is off plain TCP.
    #[inline]
    pub fn is_accelerated(&self) -> bool {
        self.rx.state() != State::Plain || self.tx.state() != State::Plain
    }

    /// Returns whether the program has shut down its reading half, so that the kernel reports EOF.
    #[inline]
    pub fn has_shut_reading(&self) -> bool {
        self.halves.load(Ordering::Relaxed) & half::READING != 0
    }

    /// Returns whether the program has shut down both halves.
    #[inline]
    pub fn has_shut_both(&self) -> bool {
        self.halves.load(Ordering::Relaxed) == half::BOTH
    }

    /// Calls of both halves that are in the kernel now.
    pub(crate) fn calls_in_kernel(&self) -> u64 {
        self.rx.in_kernel() + self.tx.in_kernel()
    }

    /// Returns whether a call, of this or of an earlier socket, is still counted on the structure.
    fn is_in_use(&self) -> bool {
        self.calls_in_kernel() != 0 || self.polls.load(Ordering::SeqCst) != 0
    }
}

/// A socket as a call in progress knows it. While the call sleeps, another thread may close the
/// socket, and the structure and the fd number may be reused for a connection that the call must
/// not touch.
///
/// The generation tells. It changes only under both locks, so a socket found open under one of them
/// stays open until that lock is released. (A reference count instead would leak when a thread is
/// cancelled or jumps out of a handler, and the number would be reusable all the same.)
#[derive(Clone, Copy, Debug)]
pub struct Known {
    sock: &'static Socket,
    generation: u32,
}

impl Known {
    /// Captures the socket as it is now. Call under one of its locks, or where no sleep follows the
    /// look-up.
    #[inline]
    pub fn of(sock: &'static Socket) -> Self {
        Self {
            sock,
            generation: sock.generation.load(Ordering::Acquire),
        }
    }

    /// The structure, even if it belongs to another connection by now.
    #[inline]
    pub fn sock(self) -> &'static Socket {
        self.sock
    }

    /// Returns whether the structure still belongs to the same socket: a hint unless a lock is
    /// held.
    #[inline]
    pub fn is_same(self) -> bool {
        self.sock.generation.load(Ordering::Acquire) == self.generation
    }

    /// Returns whether it is the same socket, and the program has a descriptor of it.
    pub fn is_open(self) -> bool {
        // In this order: a closed socket that lingers counts a descriptor of the library's.
        self.is_same()
            && self.sock.fds.load(Ordering::Acquire) != 0
            && !self.sock.lingers.load(Ordering::Acquire)
    }

    /// Returns whether the program has shut down the writing half of this socket.
    pub(crate) fn was_shut(self) -> bool {
        self.sock.shut_in.load(Ordering::Acquire) == self.generation.wrapping_add(1)
    }

    /// Notes that the program shuts down the writing half.
    pub fn shuts(self) {
        let shut_in = self.generation.wrapping_add(1);
        self.sock.shut_in.store(shut_in, Ordering::Release);
    }
}

/// The socket that stream `index` of a link was allocated for.
pub fn given_to(link: &'static Link, index: u32) -> Option<&'static Socket> {
    // SAFETY: an owner is 0 or the address of a `Socket`, whose memory is type-stable.
    unsafe { (link.owner(index) as *const Socket).as_ref() }
}

/// The socket that uses stream `index` of a link now.
pub fn sock_of(link: &'static Link, index: u32) -> Option<&'static Socket> {
    let sock = given_to(link, index)?;
    // The stream may belong to a meeting in progress, or have been reused since.
    let uses = sock.link().is_some_and(|l| core::ptr::eq(l, link))
        && sock.index.load(Ordering::Relaxed) == index;
    uses.then_some(sock)
}
