//! The counters of one connection.

use crate::cell::{Counter, Gauge};
use crate::events::{self, Kind};
use crate::reason::Reason;
use crate::root::ROOT;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{
    AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Which end made the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// This end called `connect`.
    Connecting = 1,
    /// This end called `accept`.
    Accepted = 2,
}

/// What carries the bytes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Transport {
    /// The kernel's socket.
    Tcp = 0,
    /// Shared memory, between two processes of one host.
    Shm = 1,
    /// An RDMA queue pair.
    Verbs = 2,
}

/// Address family of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Family {
    /// AF_INET.
    V4 = 4,
    /// AF_INET6, with v4-mapped addresses too.
    V6 = 6,
}

/// Stream bytes of one direction, by the way they went.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Bytes {
    /// Through the kernel's socket.
    pub tcp: Counter,
    /// From one program's buffer straight into the other's.
    pub direct: Counter,
    /// Through a ring.
    pub indirect: Counter,
    /// Out of a file, through no buffer of the program (sendfile).
    pub file: Counter,
    /// Out of a file's own pages, which the device reads: no processor copies them.
    pub pages: Counter,
}

/// Counters of one direction. The holder of the direction's lock uses [`Counter::add`]; a waiter
/// without it uses [`Counter::add_shared`].
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Direction {
    /// Bytes accepted from the program (tx) or handed to it (rx).
    pub bytes: Bytes,
    /// Bytes that a demotion took out of a ring and sent again on TCP; counted in `bytes` once,
    /// where they went first.
    pub resent: Counter,
    /// ADVERTs acted on.
    pub adverts_fresh: Counter,
    /// ADVERTs discarded because they belonged to an earlier phase.
    pub adverts_stale: Counter,
    /// ADVERTs taken back by the reader.
    pub adverts_revoked: Counter,
    /// Waits that ended while spinning.
    pub spins: Counter,
    /// Waits that went to sleep in the kernel.
    pub sleeps: Counter,
    /// Doorbells rung to wake the peer.
    pub doorbells: Counter,
    /// Length of the ring held now; 0 when none is.
    pub ring_len: Gauge,
    /// While one is held: where in this process the words lie that say what is in it, its tail and
    /// its head.
    pub words: [Gauge; 2],
}

impl Direction {
    /// A direction that has counted nothing.
    #[must_use]
    pub const fn new() -> Direction {
        Direction {
            bytes: Bytes {
                tcp: Counter::new(),
                direct: Counter::new(),
                indirect: Counter::new(),
                file: Counter::new(),
                pages: Counter::new(),
            },
            resent: Counter::new(),
            adverts_fresh: Counter::new(),
            adverts_stale: Counter::new(),
            adverts_revoked: Counter::new(),
            spins: Counter::new(),
            sleeps: Counter::new(),
            doorbells: Counter::new(),
            ring_len: Gauge::new(),
            words: [Gauge::new(), Gauge::new()],
        }
    }

    /// A ring is held, and its tail and its head are at these addresses.
    pub fn holds_ring(&self, len: u64, words: [usize; 2]) {
        for (gauge, word) in self.words.iter().zip(words) {
            gauge.set(word as u64);
        }
        self.ring_len.set(len);
    }

    /// None is held any more.
    pub fn holds_none(&self) {
        self.ring_len.set(0);
        for gauge in &self.words {
            gauge.set(0);
        }
    }

    /// The counters, in the order of the struct; the ring is a state, not a count.
    fn counters(&self) -> [&Counter; 12] {
        let Direction {
            bytes:
                Bytes {
                    tcp,
                    direct,
                    indirect,
                    file,
                    pages,
                },
            resent,
            adverts_fresh,
            adverts_stale,
            adverts_revoked,
            spins,
            sleeps,
            doorbells,
            ring_len: _,
            words: _,
        } = self;
        [
            tcp,
            direct,
            indirect,
            file,
            pages,
            resent,
            adverts_fresh,
            adverts_stale,
            adverts_revoked,
            spins,
            sleeps,
            doorbells,
        ]
    }

    /// Adds what `other` has counted.
    pub fn absorb(&self, other: &Direction) {
        for (mine, theirs) in self.counters().into_iter().zip(other.counters()) {
            mine.absorb(theirs);
        }
    }

    pub(crate) fn reset(&self) {
        for counter in self.counters() {
            counter.reset();
        }
    }
}

/// One connection. Made by [`crate::alloc_conn`]; its memory is a `Conn` for the life of the
/// process, so a late reader or writer meets old or foreign counts, never freed memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Conn {
    /// Odd while the slot is in use. Written by `alloc_conn` and `free_conn`.
    generation: AtomicU32,
    /// Place in the table. Written at each allocation, always with the same value.
    pub(crate) index: AtomicU32,
    /// Index + 1 of the next free slot while on the free list. Ordered by the list's head.
    pub(crate) next: AtomicU32,
    /// The root's epoch when the counts began: tells counts copied by fork from the process's own.
    pub(crate) epoch: AtomicU32,
    fd: AtomicI32,
    /// 0 until the connection is described. Stored last (Release) by `describe`, so a reader of
    /// this process that finds it set (Acquire) finds the addresses too.
    family: AtomicU8,
    role: AtomicU8,
    transport: AtomicU8,
    /// 1: `reason` is what the other end has said of itself.
    of_peer: AtomicU8,
    reason: AtomicU16,
    last_demotion: AtomicU16,
    local_port: AtomicU16,
    peer_port: AtomicU16,
    created_ns: AtomicU64,
    upgrades: Counter,
    demotions: Counter,
    spare_word: AtomicU64,
    /// Addresses in network order; a v4 address takes the first four bytes.
    local_addr: [AtomicU64; 2],
    peer_addr: [AtomicU64; 2],
    /// From the program to the peer.
    pub tx: Direction,
    /// From the peer to the program.
    pub rx: Direction,
}

const _: () = assert!(
    size_of::<Direction>() == 128,
    "two cache lines for each direction"
);
const _: () = assert!(
    size_of::<Conn>() == 384,
    "a change of layout needs a new LAYOUT"
);

impl Conn {
    /// A slot that is not in use: all zeros, as fresh memory is.
    #[must_use]
    pub const fn new() -> Conn {
        Conn {
            generation: AtomicU32::new(0),
            index: AtomicU32::new(0),
            next: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            fd: AtomicI32::new(0),
            family: AtomicU8::new(0),
            role: AtomicU8::new(0),
            transport: AtomicU8::new(0),
            of_peer: AtomicU8::new(0),
            reason: AtomicU16::new(0),
            last_demotion: AtomicU16::new(0),
            local_port: AtomicU16::new(0),
            peer_port: AtomicU16::new(0),
            created_ns: AtomicU64::new(0),
            upgrades: Counter::new(),
            demotions: Counter::new(),
            spare_word: AtomicU64::new(0),
            local_addr: [const { AtomicU64::new(0) }; 2],
            peer_addr: [const { AtomicU64::new(0) }; 2],
            tx: Direction::new(),
            rx: Direction::new(),
        }
    }

    // --- for the process that counts ---

    /// The socket is being connected, or was accepted: from here on it counts as a connection.
    pub fn opened(&self, role: Role) {
        self.role.store(role as u8, Relaxed);
        ROOT.tracked.add_shared(1);
        events::note(self, Kind::Opened, role as u64);
    }

    /// Says which connection this is; unspecified addresses: they could not be asked for. Until
    /// then the tool passes over the slot.
    pub fn describe(&self, fd: i32, role: Role, local: SocketAddr, peer: SocketAddr) {
        self.fd.store(fd, Relaxed);
        self.role.store(role as u8, Relaxed);
        store_addr(&self.local_addr, &self.local_port, local);
        store_addr(&self.peer_addr, &self.peer_port, peer);
        let family = if local.is_ipv4() {
            Family::V4
        } else {
            Family::V6
        };
        let first = self.family.swap(family as u8, Release) == 0;
        if first {
            events::note(self, Kind::Named, fd as u64);
        }
    }

    /// The local and the peer's; 0 while they are not known.
    pub(crate) fn ports(&self) -> (u16, u16) {
        match self.family.load(Acquire) {
            0 => (0, 0),
            _ => (self.local_port.load(Relaxed), self.peer_port.load(Relaxed)),
        }
    }

    /// The descriptor got another number, or -1: the program has closed it.
    pub fn moved_to(&self, fd: i32) {
        self.fd.store(fd, Relaxed);
    }

    /// The connection is on TCP for `reason`. Counted when this differs from the reason so far.
    pub fn stays(&self, reason: Reason) {
        self.stays_since(reason, false);
    }

    /// The connection ends by `reason`, which is why it is on TCP only where nothing else is.
    pub fn ends(&self, reason: Reason) {
        if [Reason::None as u16, Reason::Met as u16].contains(&self.reason()) {
            self.stays(reason);
        }
    }

    /// Is the connection on TCP for no reason that has to do with what either end wants?
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        let passing = [
            Reason::None,
            Reason::Met,
            Reason::Meeting,
            Reason::BelowThreshold,
        ];
        passing.iter().any(|&reason| reason as u16 == self.reason())
    }

    /// The same, for a reason that the other end has told.
    pub fn stays_for_peer(&self, reason: Reason) {
        self.stays_since(reason, true);
    }

    fn stays_since(&self, reason: Reason, of_peer: bool) {
        let changed = self.reason.swap(reason as u16, Relaxed) != reason as u16;
        self.of_peer.store(of_peer.into(), Relaxed);
        if changed {
            ROOT.count_reason(reason);
            events::note_reason(self, Kind::Stays, reason);
        }
    }

    /// The connection is on TCP, and a decision is near: `reason` says what is waited for, and is
    /// not counted.
    pub fn awaits(&self, reason: Reason) {
        self.reason.store(reason as u16, Relaxed);
        self.of_peer.store(0, Relaxed);
        events::note_reason(self, Kind::Awaits, reason);
    }

    /// The same, unless the connection is on TCP for another reason than `before`.
    pub fn awaits_after(&self, before: Reason, reason: Reason) {
        let (old, new) = (before as u16, reason as u16);
        let changed = self.reason.compare_exchange(old, new, Relaxed, Relaxed);
        if changed.is_ok() {
            events::note_reason(self, Kind::Awaits, reason);
        }
    }

    /// A stream has taken over from TCP.
    pub fn upgraded(&self, transport: Transport) {
        self.transport.store(transport as u8, Relaxed);
        self.reason.store(Reason::None as u16, Relaxed);
        self.of_peer.store(0, Relaxed);
        self.upgrades.add_shared(1);
        ROOT.upgrades.add_shared(1);
        events::note(self, Kind::Upgraded, transport as u64);
    }

    /// The connection went back to TCP for `reason`, `of_peer` if the other end has told it.
    /// Counted each time.
    pub fn demoted(&self, reason: Reason, of_peer: bool) {
        self.transport.store(Transport::Tcp as u8, Relaxed);
        self.of_peer.store(of_peer.into(), Relaxed);
        self.reason.store(reason as u16, Relaxed);
        self.last_demotion.store(reason as u16, Relaxed);
        self.demotions.add_shared(1);
        ROOT.demotions.add_shared(1);
        ROOT.count_reason(reason);
        events::note_reason(self, Kind::Demoted, reason);
    }

    // --- for readers ---

    /// Is the slot in use?
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.generation.load(Acquire) & 1 == 1
    }

    /// Grows at each allocation and each release of the slot.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    /// The file descriptor; -1 once the program has closed it.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd.load(Relaxed)
    }

    /// `None` until the connection has been described.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        match self.family.load(Acquire) {
            4 => Some(Family::V4),
            6 => Some(Family::V6),
            _ => None,
        }
    }

    /// `None` until the connection has been [opened](Conn::opened) or described: a socket that is
    /// none yet.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        match self.role.load(Relaxed) {
            1 => Some(Role::Connecting),
            2 => Some(Role::Accepted),
            _ => None,
        }
    }

    /// What carries the bytes now; `None` for a number that this build does not know.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        match self.transport.load(Relaxed) {
            0 => Some(Transport::Tcp),
            1 => Some(Transport::Shm),
            2 => Some(Transport::Verbs),
            _ => None,
        }
    }

    /// Why the connection is on TCP, as a number: a newer library may know more reasons.
    #[must_use]
    pub fn reason(&self) -> u16 {
        self.reason.load(Relaxed)
    }

    /// Is [`reason`](Self::reason) what the other end has said of itself?
    #[must_use]
    pub fn is_reason_of_peer(&self) -> bool {
        self.of_peer.load(Relaxed) != 0
    }

    /// Why it was demoted last, as a number; 0 if it never was.
    #[must_use]
    pub fn last_demotion(&self) -> u16 {
        self.last_demotion.load(Relaxed)
    }

    /// How often a stream took over.
    #[must_use]
    pub fn upgrades(&self) -> u64 {
        self.upgrades.load()
    }

    /// How often the connection went back to TCP.
    #[must_use]
    pub fn demotions(&self) -> u64 {
        self.demotions.load()
    }

    /// When the slot was taken, on CLOCK_MONOTONIC.
    #[must_use]
    pub fn created_ns(&self) -> u64 {
        self.created_ns.load(Relaxed)
    }

    /// The local address; `None` until the connection has been described.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        Some(load_addr(
            self.family()?,
            &self.local_addr,
            &self.local_port,
        ))
    }

    /// The peer's address; `None` until the connection has been described.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        Some(load_addr(self.family()?, &self.peer_addr, &self.peer_port))
    }

    // --- for the table ---

    /// Marks a slot that its caller has just taken off the free list as in use.
    pub(crate) fn begin(&self, index: u32, epoch: u32, now_ns: u64) {
        self.index.store(index, Relaxed);
        self.fd.store(-1, Relaxed);
        self.family.store(0, Relaxed);
        self.role.store(0, Relaxed);
        self.transport.store(0, Relaxed);
        self.reason.store(0, Relaxed);
        self.of_peer.store(0, Relaxed);
        self.last_demotion.store(0, Relaxed);
        self.created_ns.store(now_ns, Relaxed);
        self.tx.holds_none();
        self.rx.holds_none();
        self.restart(epoch);
        self.generation.fetch_add(1, Release);
    }

    /// Begins to count anew.
    pub(crate) fn restart(&self, epoch: u32) {
        self.upgrades.reset();
        self.demotions.reset();
        self.tx.reset();
        self.rx.reset();
        self.epoch.store(epoch, Relaxed);
    }

    /// Ends the use of the slot; false if it was not in use, or another thread ends it now.
    pub(crate) fn end(&self) -> bool {
        let generation = self.generation.load(Acquire);
        if generation & 1 == 0 {
            return false;
        }
        // A socket without a role was never a connection.
        if self.role().is_some() {
            events::note(self, Kind::Closed, 0);
        }
        self.generation
            .compare_exchange(generation, generation.wrapping_add(1), AcqRel, Relaxed)
            .is_ok()
    }
}

impl Default for Conn {
    fn default() -> Conn {
        Conn::new()
    }
}

fn store_addr(words: &[AtomicU64; 2], port: &AtomicU16, addr: SocketAddr) {
    let bits = match addr.ip() {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let [high, low] = words;
    high.store(((bits >> 64) as u64).to_be(), Relaxed);
    low.store((bits as u64).to_be(), Relaxed);
    port.store(addr.port(), Relaxed);
}

fn load_addr(family: Family, words: &[AtomicU64; 2], port: &AtomicU16) -> SocketAddr {
    let [high, low] = words;
    let high = u64::from_be(high.load(Relaxed));
    let low = u64::from_be(low.load(Relaxed));
    let ip = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits((high >> 32) as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(
            u128::from(high) << 64 | u128::from(low),
        )),
    };
    SocketAddr::new(ip, port.load(Relaxed))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_as_it_was_stored() {
        for text in [
            "127.0.0.1:80",
            "10.1.2.3:65535",
            "[::1]:443",
            "[::ffff:192.0.2.7]:1",
            "[fe80::1:2]:9",
        ] {
            let addr: SocketAddr = text.parse().unwrap();
            let conn = Conn::new();
            assert_eq!(conn.local(), None);
            conn.describe(7, Role::Accepted, addr, addr);
            assert_eq!(conn.local(), Some(addr));
            assert_eq!(conn.peer(), Some(addr));
            assert_eq!(conn.role(), Some(Role::Accepted));
            assert_eq!(conn.fd(), 7);
        }
    }

    #[test]
    fn the_story_of_a_connection_is_told_by_its_reason_and_transport() {
        let conn = Conn::new();
        let count = |reason| ROOT.reason_count(reason);
        let before = count(Reason::TcpRepair);
        conn.stays(Reason::TcpRepair);
        conn.stays(Reason::TcpRepair);
        assert_eq!(
            count(Reason::TcpRepair),
            before + 1,
            "the same reason twice is one cause"
        );
        assert_eq!(conn.transport(), Some(Transport::Tcp));
        conn.upgraded(Transport::Shm);
        assert_eq!((conn.transport(), conn.reason()), (Some(Transport::Shm), 0));
        let before = count(Reason::Dprintf);
        conn.demoted(Reason::Dprintf, false);
        conn.upgraded(Transport::Shm);
        conn.demoted(Reason::Dprintf, false);
        assert_eq!(count(Reason::Dprintf), before + 2);
        assert_eq!(conn.reason(), Reason::Dprintf as u16);
        assert_eq!(conn.last_demotion(), Reason::Dprintf as u16);
        assert_eq!((conn.upgrades(), conn.demotions()), (2, 2));
    }

    #[test]
    fn what_is_waited_for_is_no_count() {
        let conn = Conn::new();
        let counts = || [Reason::Meeting, Reason::Met].map(|r| ROOT.reason_count(r));
        conn.stays(Reason::BelowThreshold);
        conn.awaits_after(Reason::BelowThreshold, Reason::Meeting);
        assert_eq!(conn.reason(), Reason::Meeting as u16);
        conn.awaits(Reason::Met);
        assert_eq!(conn.reason(), Reason::Met as u16);
        conn.awaits_after(Reason::BelowThreshold, Reason::Meeting);
        assert_eq!(conn.reason(), Reason::Met as u16);
        assert_eq!(counts(), [0, 0]);
    }

    #[test]
    fn a_socket_is_a_connection_once_it_is_opened() {
        let conn = Conn::new();
        assert_eq!(conn.role(), None);
        let before = ROOT.tracked.load();
        conn.opened(Role::Connecting);
        assert_eq!(ROOT.tracked.load(), before + 1);
        assert_eq!((conn.role(), conn.family()), (Some(Role::Connecting), None));
    }

    #[test]
    fn absorbing_adds_every_counter() {
        let (sum, one) = (Direction::new(), Direction::new());
        for (n, counter) in (1..).zip(one.counters()) {
            counter.add(n);
        }
        sum.absorb(&one);
        sum.absorb(&one);
        for (n, counter) in (1..).zip(sum.counters()) {
            assert_eq!(counter.load(), 2 * n);
        }
        sum.reset();
        assert!(sum.counters().iter().all(|c| c.load() == 0));
    }
}
