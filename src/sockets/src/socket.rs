//! A tracked TCP socket: what this process knows of one connection.
//!
//! Its halves change their states by [`Event`]s alone.
//!
//! The memory of a `Socket` is a `Socket` for the life of the process (type-stable pool).

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
    /// Not known: neither `connect` nor `accept` was seen.
    pub const UNKNOWN: u8 = 0;
    /// `connect` was called here.
    pub const CONNECTING: u8 = 1;
    /// `accept` returned it here.
    pub const ACCEPTED: u8 = 2;
}

/// Halves of a connection, in [`Socket::halves`].
pub mod half {
    /// `SHUT_RD`.
    pub const READING: u8 = 1;
    /// `SHUT_WR`.
    pub(crate) const WRITING: u8 = 2;
    /// `SHUT_RDWR`.
    pub(crate) const BOTH: u8 = READING | WRITING;
}

/// Epoll sets that one socket can be in while accelerated.
pub const SETS: usize = 8;

/// One half of a socket. Zero is the state of a new one.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Half {
    /// Guards everything below but `calls` and reads of `state`.
    pub lock: Lock,
    /// What carries the bytes. Changed under the lock; read anywhere.
    pub state: state::Cell,
    /// tx: the ring may have pages, and trim.rs knows of it. Written under the lock.
    pub resident: AtomicBool,
    /// Calls now in the kernel (low 16 bits) and bytes that the kernel has moved (the rest). The
    /// thread that counted a call takes it back, whatever has become of the socket: the count
    /// outlives it. SeqCst: "announce the call, then look at the state" against "change the state,
    /// then look for calls".
    pub calls: AtomicU64,
    /// About how many calls in the kernel have moved bytes.
    pub moves: AtomicU32,
    /// This end's word on the link: bytes published (tx) or consumed (rx) since the switch.
    pub at: AtomicU64,
    /// The peer's word as last seen and found possible: never ahead of the truth.
    pub seen: AtomicU64,
    ring_base: AtomicPtr<u8>,
    ring_len: AtomicU32,
    /// tx: most bytes that may lie unread in the ring: what TCP would take back at a demotion.
    pub unread_max: AtomicU32,
    /// The direction in the arena.
    dir: AtomicPtr<Direction>,
    /// rx: stream offset in TCP at which the link begins.
    pub from: AtomicU64,
    /// rx, off the link: bytes of TCP (as in `calls`) up to which the peer owes what the program
    /// may have been told of already, sent again after a demotion; 0: none;
    /// [`unread_copy::SOME`](super::unread_copy::SOME).
    pub owed: AtomicU64,
    /// Bytes that went by links, ever, without going by TCP too.
    pub linked: AtomicU64,
    /// Spin budget of waits on this half, in ns; adapted.
    pub spin_ns: AtomicU32,
    /// Waits until a half whose budget is used up tries to spin again.
    pub spin_skip: AtomicU32,
    /// Transfers of at least this many bytes may go directly; 0 while an offer is up.
    pub gate: AtomicU32,
}

/// One call in the kernel, in [`Half::calls`].
pub(crate) const CALL: u64 = 1;
/// Bits below the byte count in [`Half::calls`].
pub const CALL_BITS: u32 = 16;

// SAFETY: of sockets alone.
unsafe impl Object for Socket {
    const KIND: Kind = Kind::Socket;
}

impl Half {
    /// Calls in the kernel now.
    #[inline]
    pub fn in_kernel(&self) -> u64 {
        self.calls.load(Ordering::SeqCst) & ((1 << CALL_BITS) - 1)
    }
    /// Bytes that the kernel has moved for this process's hooks, re-sent ones included.
    #[inline]
    pub fn kernel_bytes(&self) -> u64 {
        self.calls.load(Ordering::Relaxed) >> CALL_BITS
    }
    /// A call is on its way to the kernel. SeqCst: see [`Half::calls`].
    #[inline]
    pub(crate) fn call_begins(&self) {
        self.calls.fetch_add(CALL, Ordering::SeqCst);
    }
    /// It is over, and has moved `n` bytes: one step, so that nobody finds the call gone and its
    /// bytes not counted.
    #[inline]
    pub(crate) fn call_ends(&self, n: u64) {
        self.calls
            .fetch_add((n << CALL_BITS).wrapping_sub(CALL), Ordering::SeqCst);
        if n != 0 {
            // One that another thread's overwrites is not missed.
            let moves = self.moves.load(Ordering::Relaxed);
            self.moves.store(moves.wrapping_add(1), Ordering::Relaxed);
        }
    }
    /// Counts bytes that the kernel has moved.
    #[inline]
    pub(crate) fn add_kernel_bytes(&self, n: u64) {
        self.calls.fetch_add(n << CALL_BITS, Ordering::Relaxed);
    }
    /// The state, for a decision that the lock will confirm.
    #[inline]
    pub fn state(&self) -> State {
        self.state.get()
    }
    /// The direction, in every state but Plain. Call under the lock.
    #[inline]
    pub fn dir(&self) -> Option<&'static Direction> {
        // SAFETY: null, or a direction of the link's arena, which stays mapped while a stream of it
        // is in use here; `detach` clears it under the lock.
        unsafe { self.dir.load(Ordering::Relaxed).as_ref() }
    }
    /// Is this its direction still? Without the lock, a moment ago.
    #[inline]
    pub fn is_at(&self, dir: &Direction) -> bool {
        core::ptr::eq(self.dir.load(Ordering::Relaxed), dir)
    }
    /// The ring, once known. Call under the lock.
    #[inline]
    pub fn ring(&self) -> Option<Ring> {
        let base = self.ring_base.load(Ordering::Relaxed);
        // SAFETY: set together by `set_ring` from a checked ring of the arena.
        (!base.is_null()).then(|| unsafe { Ring::new(base, self.ring_len.load(Ordering::Relaxed)) })
    }
    /// Sets the ring.
    pub(crate) fn set_ring(&self, ring: Ring) {
        let [(base, _), _] = ring.pieces(0, ring.len());
        self.ring_len.store(ring.len() as u32, Ordering::Relaxed);
        self.ring_base.store(base, Ordering::Relaxed);
    }
    /// Tells `sluice stat` of the ring that is in use now.
    pub(crate) fn show_ring(&self, to: &sluice_stats::Direction) {
        if let (Some(dir), Some(ring)) = (self.dir(), self.ring()) {
            let words = [&dir.tx.tail, &dir.rx.head];
            to.holds_ring(
                ring.len(),
                words.map(|word| core::ptr::from_ref(word).addr()),
            );
        }
    }
    /// Points the half at a direction. Call under the lock.
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
    /// What is read.
    pub rx: Half,
    /// What is written.
    pub tx: Half,
    /// Stream bytes, both directions together, at which an upgrade is tried next; u64::MAX: never.
    pub next_try: AtomicU64,
    /// The other end could not be looked for yet: that is done when it has answered.
    pub is_early: AtomicBool,
    /// A fork has given it to a relative, which may set options of it.
    pub was_inherited: AtomicBool,
    /// The other end has asked for this one over a link, before a byte was moved here.
    pub is_asked_for: AtomicBool,
    /// Looked for the other end before a large write.
    pub was_large: AtomicBool,
    /// Peers were asked over links, since a link last came up.
    pub has_asked: AtomicBool,
    /// By which others name it; 0: not asked for yet. See inodes.rs.
    pub inode: AtomicU64,
    /// In [`OPENED`].
    opened: Place,
    /// What of its first bytes is kept for a proof.
    pub prefix: digests::Slot,
    /// Entries of the table that point here: descriptors of this process.
    pub fds: AtomicU32,
    /// Grows when the structure is put back: tells a stale reference.
    pub generation: AtomicU32,
    /// A descriptor number that is valid now (dup'd ones are equal).
    pub fd: AtomicI32,
    /// See [`role`].
    pub role: AtomicU8,
    /// Threads of this process in a kernel `poll` or `select`, entered before the proof, that watch
    /// it. Outlives the socket, as [`Half::calls`] does.
    pub polls: AtomicU32,
    /// O_NONBLOCK as last set through a hook: in the lowest bits ([`ASKED`]) 0 not known, or one of
    /// these; above the count of the times when that was forgotten.
    pub nonblock: AtomicU32,
    /// TCP_NODELAY as last set through a hook in the lowest bit, the count of such calls above.
    pub nodelay: AtomicU32,
    /// SO_RCVTIMEO and SO_SNDTIMEO in ns, of a socket with a stream; 0: none.
    pub rcv_timeout_ns: AtomicU64,
    /// See `rcv_timeout_ns`.
    pub snd_timeout_ns: AtomicU64,
    /// TCP_INQ of a socket with a stream.
    pub tells_unread: AtomicBool,
    /// SO_RCVLOWAT of a socket with a stream; 0 means 1.
    pub rcvlowat: AtomicU32,
    /// The kernel has 1 instead, since it is to tell of the peer's record, or to `low_waits`.
    /// Changed under the rx lock.
    pub low_held: AtomicBool,
    /// Sleeps of calls that have a part of what they want, and that fewer bytes are to end than
    /// `rcvlowat`. Likewise.
    pub low_waits: AtomicU32,
    /// By the program's word it is to be there after `exec`.
    pub for_exec: AtomicBool,
    /// The watch over a full ring.
    pub full: Full,
    /// Among those whose rings have pages: see trim.rs.
    pub untrimmed: Place,
    /// Offset at which the ring that is written began to have pages. Under the tx lock.
    pub resident_from: AtomicU64,
    /// What is kept of a demoted stream.
    pub unread_copy: UnreadCopy,
    /// What direct transfers need.
    pub direct: Direct,
    /// What is lent to another host.
    pub lent: crate::remote::lent::Lent,
    /// Why it may never be upgraded again; a [`Reason`] as a number, 0 if it may.
    pub pinned: AtomicU32,
    /// Demotions since the connection last did well on a link: spaces new tries.
    pub backoff: AtomicU32,
    /// Bytes between two tries to meet again after a demotion; 0: never demoted, the tries go by
    /// [`first_try`].
    ///
    /// [`first_try`]: crate::trigger::first_try
    pub retry_step: AtomicU64,
    /// Bytes by links when the stream in use was attached.
    pub linked_before: AtomicU64,
    /// By what the other end names this connection, and the inode of the other end's socket; 0: not
    /// known yet.
    pub key: AtomicU64,
    /// See `key`.
    pub mirror: AtomicU64,
    /// Where a set has the registration of this socket that was made last: a guess, to be verified
    /// there.
    pub last_reg: AtomicU32,
    /// The link of the last stream, and its generation: the other end is known to be at it.
    last_link: AtomicPtr<Link>,
    last_generation: AtomicU32,
    /// A demotion of the stream in use has been counted.
    pub counted: AtomicBool,
    /// The sets that the socket is in know of the stream in use. Before that no reader consents:
    /// what the peer wrote would be told to nobody.
    pub adopted: AtomicBool,
    /// The stream in use has carried over a direction, and has been counted as an upgrade.
    pub upgraded: AtomicBool,
    /// The peer died leaving unread input: recv says ECONNRESET once, where TCP would.
    pub reset_seen: AtomicBool,
    /// That reset is made: the kernel tells all of it.
    pub reset_made: AtomicBool,
    /// The writing half is shut down for the program; TCP's is when all is sent again.
    pub shut: AtomicBool,
    /// What the program has shut down, of [`half`].
    pub halves: AtomicU8,
    /// 1 + the generation that it had when the program last shut a writing half down.
    pub shut_in: AtomicU32,
    /// Every descriptor of the program is closed; `fd` is one of ours, closed when all is sent
    /// again.
    pub lingers: AtomicBool,
    /// The line of this connection has been written (see report.rs).
    pub reported: AtomicBool,
    /// To another host: what is written during the switch.
    pub staged: Staged,
    /// From another host: a step of the switch waits until more of TCP is read.
    pub far: AtomicBool,
    /// From another host: where the re-send begins is known.
    pub begun: AtomicBool,
    /// From another host: how many records this process had taken out of TCP when it last took one
    /// out here. See `remote::records`.
    pub heard: AtomicU64,
    /// From another host: since when TCP has bytes of which only more can tell whether they are a
    /// record's; 0: it has none.
    pub undecided_ns: AtomicU64,
    /// From another host: the stream was left for another reader, which reads TCP past
    /// this library.
    pub handed: AtomicBool,
    /// Counters for the outside; null if none could be had.
    conn: AtomicPtr<Conn>,
    /// Shared with relatives; null until a fork or an upgrade.
    family: AtomicPtr<Family>,
    /// The link of the stream in use, if any.
    link: AtomicPtr<Link>,
    /// Slot of the stream on the link.
    pub index: AtomicU32,
    /// Epoll sets that this socket is registered in.
    pub sets: [AtomicPtr<Watcher>; SETS],
    /// 1 + index of the next free structure.
    next_free: AtomicPtr<Socket>,
}

/// Bits of [`Socket::nonblock`].
const ASKED: u32 = 3;
/// In these: O_NONBLOCK is off.
const BLOCKS: u32 = 1;
/// In these: it is on.
const BLOCKS_NOT: u32 = 2;

/// An end that does not leave TCP tells the other end so from this offset of the stream on. Before
/// it, the other end seldom looks, and a short connection shall not pay for it.
pub const TELLS_AT: u64 = 32 << 10;

impl Socket {
    /// The outside's counters.
    #[inline]
    pub fn conn(&self) -> &'static Conn {
        static NOBODY: Conn = Conn::new();
        // SAFETY: null, or from `alloc_conn`, whose memory is never unmapped.
        unsafe { self.conn.load(Ordering::Relaxed).as_ref() }.unwrap_or(&NOBODY)
    }

    /// This end's address and the peer's, if they are known.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: as in `conn`.
        let conn = unsafe { self.conn.load(Ordering::Relaxed).as_ref() }?;
        conn.local().zip(conn.peer())
    }

    /// What relatives share.
    #[inline]
    pub fn family(&self) -> Option<&'static Family> {
        // SAFETY: null, or a slot of the family region, which is never unmapped.
        unsafe { self.family.load(Ordering::Acquire).as_ref() }
    }

    /// Process `pid` gives the socket up, and may come back to it (an `exec` that fails). A slot
    /// that nobody else holds is others' from now on: this socket takes another one with its next
    /// stream.
    pub fn leave_family(&self, pid: u32) {
        let Some(family) = self.family() else { return };
        if family.leave(pid) {
            self.family.store(core::ptr::null_mut(), Ordering::Release);
        }
    }

    /// This process shares no memory with the relatives that hold the socket, too, from now on;
    /// there it stays one of them until it ends.
    pub fn detach_family(&self) {
        self.family.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// The family slot, taken if there is none yet.
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

    /// The link of the stream in use.
    #[inline]
    pub fn link(&self) -> Option<&'static Link> {
        // SAFETY: null, or a leaked link.
        unsafe { self.link.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the stream in use.
    pub(crate) fn set_stream(&self, link: &'static Link, index: u32) {
        self.index.store(index, Ordering::Relaxed);
        self.link
            .store(core::ptr::from_ref(link).cast_mut(), Ordering::Release);
    }

    /// The link of the last stream, if it still stands.
    pub fn last_link(&self) -> Option<&'static Link> {
        // SAFETY: null, or a leaked link.
        let link = unsafe { self.last_link.load(Ordering::Acquire).as_ref() }?;
        let same = link.generation() == self.last_generation.load(Ordering::Relaxed);
        (same && link.is_alive() && link.control().is_open()).then_some(link)
    }

    /// Takes the stream out: the caller leaves it on the link.
    pub(crate) fn take_stream(&self) -> Option<(&'static Link, u32)> {
        let link = self.link.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: null, or a leaked link.
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

    /// `fd` if it still is the socket's, else a number that is: another thread may close one, while
    /// a dup lives, under a call that began by it.
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

    /// Is a read or write of the program non-blocking by O_NONBLOCK? The flag belongs to the open
    /// file, which relatives share: with one of those about, the kernel is asked.
    #[inline]
    pub(crate) fn is_nonblocking(&self, fd: i32) -> bool {
        match self.nonblock.load(Ordering::Relaxed) & ASKED {
            BLOCKS => false,
            BLOCKS_NOT => true,
            _ => self.ask_nonblocking(fd),
        }
    }

    /// May a call with these flags wait?
    #[inline]
    pub(crate) fn may_wait(&self, fd: i32, flags: i32) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && !self.is_nonblocking(fd)
    }

    /// Was the other end looked for, so that the control thread has calls to make about this one?
    pub(crate) fn was_sought(&self) -> bool {
        self.key.load(Ordering::Relaxed) != 0
    }

    /// Do relatives hold the socket, too?
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
            // Not where it was set meanwhile.
            let _ =
                self.nonblock
                    .compare_exchange(before, known, Ordering::SeqCst, Ordering::Relaxed);
        }
        on
    }

    /// Whether it blocks is another's to say again, or was said anew.
    pub fn forget_nonblocking(&self) {
        let count = |now: u32| Some((now & !ASKED).wrapping_add(ASKED + 1));
        let _ = self
            .nonblock
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, count);
    }

    /// A direction has switched: counted once per stream.
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

    /// Why it never is, if so.
    #[must_use]
    pub fn pinned(&self) -> Option<Reason> {
        match self.pinned.load(Ordering::Relaxed) {
            0 => None,
            reason => Some(Reason::from_u16(reason as u16).unwrap_or(Reason::Close)),
        }
    }

    /// Never to be upgraded (again), for this reason. The peer is told when it looks for this end.
    pub fn pin(&self, reason: Reason) {
        self.pinned.store(reason as u32, Ordering::Relaxed);
        // A process that has sandboxed itself may make no call for that.
        let least = match sluice_runtime::rights::forbidden() {
            Some(_) => u64::MAX,
            None => TELLS_AT,
        };
        // At an offset of the other end's tries.
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

    /// Under no lock: when this returns, threads that were in a section under either have left it.
    /// A stream may be about to be attached by another thread that has not seen what this one has
    /// said before, in `fds`, say: after this it shows, and none is attached any more. Or it may
    /// be about to be left, by one that has told its state already.
    pub fn synchronize_locks(&self) {
        for half in [&self.rx, &self.tx] {
            drop(half.lock.enter());
        }
    }

    /// Does either half use the stream?
    #[inline]
    pub fn is_accelerated(&self) -> bool {
        self.rx.state() != State::Plain || self.tx.state() != State::Plain
    }

    /// Has the program shut its reading half down? Then the kernel has an end to tell, whatever
    /// else there is.
    #[inline]
    pub fn has_shut_reading(&self) -> bool {
        self.halves.load(Ordering::Relaxed) & half::READING != 0
    }

    /// Has the program shut both halves down?
    #[inline]
    pub fn has_shut_both(&self) -> bool {
        self.halves.load(Ordering::Relaxed) == half::BOTH
    }

    /// Calls of both halves that are in the kernel now.
    pub(crate) fn calls_in_kernel(&self) -> u64 {
        self.rx.in_kernel() + self.tx.in_kernel()
    }

    /// Is a call counted on the structure, of this socket or of an earlier one?
    fn is_in_use(&self) -> bool {
        self.calls_in_kernel() != 0 || self.polls.load(Ordering::SeqCst) != 0
    }
}

/// A socket as a call under way knows it. While the call sleeps another thread may close it, and
/// then its structure, like its number, may be another connection's, which must get none of the
/// call's bytes and lose none to it.
///
/// The generation tells. It changes under both locks, so a thread that holds one of them and finds
/// a socket open has it open until it gives the lock back. (To keep structures from being reused
/// while calls sleep over them would take a count that a cancelled thread, or one that jumps out of
/// a handler, never takes back; and the call would still have to ask whether its socket is closed,
/// since the number is free at once.)
#[derive(Clone, Copy, Debug)]
pub struct Known {
    sock: &'static Socket,
    generation: u32,
}

impl Known {
    /// The socket as it is now. Call under one of its locks, or where no sleep lies after the
    /// call.
    #[inline]
    pub fn of(sock: &'static Socket) -> Self {
        Self {
            sock,
            generation: sock.generation.load(Ordering::Acquire),
        }
    }

    /// The structure, whosever it is by now.
    #[inline]
    pub fn sock(self) -> &'static Socket {
        self.sock
    }

    /// Is the structure still the same socket's? A decision to be confirmed under a lock.
    #[inline]
    pub fn is_same(self) -> bool {
        self.sock.generation.load(Ordering::Acquire) == self.generation
    }

    /// Is it, and has the program a descriptor of it?
    pub fn is_open(self) -> bool {
        // In this order: a closed socket that lingers counts a descriptor of ours.
        self.is_same()
            && self.sock.fds.load(Ordering::Acquire) != 0
            && !self.sock.lingers.load(Ordering::Acquire)
    }

    /// Did the program shut the socket's writing half down?
    pub(crate) fn was_shut(self) -> bool {
        self.sock.shut_in.load(Ordering::Acquire) == self.generation.wrapping_add(1)
    }

    /// The program shuts the writing half down.
    pub fn shuts(self) {
        let shut_in = self.generation.wrapping_add(1);
        self.sock.shut_in.store(shut_in, Ordering::Release);
    }
}

/// The socket that stream `index` of a link was given out to.
pub fn given_to(link: &'static Link, index: u32) -> Option<&'static Socket> {
    // SAFETY: streams are owned by socks, whose memory is type-stable, or by 0.
    unsafe { (link.owner(index) as *const Socket).as_ref() }
}

/// The socket that uses stream `index` of a link.
pub fn sock_of(link: &'static Link, index: u32) -> Option<&'static Socket> {
    let sock = given_to(link, index)?;
    // Given out in a meeting that is not over, or put to another use meanwhile.
    let uses = sock.link().is_some_and(|l| core::ptr::eq(l, link))
        && sock.index.load(Ordering::Relaxed) == index;
    uses.then_some(sock)
}
