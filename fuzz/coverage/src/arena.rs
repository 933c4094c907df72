//! A connection on a link within the host, whose peer writes anything anywhere in the memory that
//! both share, between calls of the program's: the library's own send, receive, poll and epoll, a
//! real TCP connection beneath, a real link.
//!
//! Nothing may crash, wait, or touch memory outside the arena; a call says what it did in the
//! bounds of what it was asked; and bytes that the program gets were the peer's to give.

mod program;

use crate::input::Input;
use program::{concluded, real};
use sluice_engine::api;
use sluice_engine::fuzzing::{self, End, Peer};
use sluice_fabric::arena::Arena;
use sluice_fabric::doorbell::SLOTS;
use sluice_fabric::layout::{Direction, RING_REGION, rings_at, slots_at, stream_at};
use sluice_fabric::sync::{AtomicU64, Ordering};
use sluice_fabric::sys::{self, Fd};
use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};

/// Longest run of one input.
const STEPS: usize = 120;
/// What the program has room for in one call.
const ROOM: usize = 70_000;

// Which memory a byte has come from, by its value: each kind has a range of its own, and none of
// them is zero.
/// The ring that the victim has lent.
const RING: std::ops::RangeInclusive<u8> = 1..=61;
/// Memory that the peer has on offer.
const OFFERED: std::ops::RangeInclusive<u8> = 62..=99;
/// What the peer has written by TCP.
const TCP: std::ops::RangeInclusive<u8> = 100..=150;
/// Beside the ring.
const BESIDE: u8 = 0xee;
/// In the program's buffer, where nothing has been written.
const UNWRITTEN: u8 = 0xdd;
/// Beside it.
const CANARY: u8 = 0xaa;

/// The longest ring here.
const RING_MOST: usize = 4096 << 3;

/// What is made once for all inputs.
pub(crate) struct Once {
    pub(crate) listener: TcpListener,
    token: Box<[u64; 2]>,
    offered: Vec<u8>,
    sent: Vec<u8>,
    /// What the ring holds that the victim has lent.
    ring: Vec<u8>,
    /// A file to send from.
    file: Fd,
    buffer: Vec<u8>,
}

thread_local! {
    static ONCE: RefCell<Once> = RefCell::new(Once::new());
}

impl Once {
    fn new() -> Self {
        // Nobody is looked for: the peer is here.
        // SAFETY: the first thing of all, while there is no other thread that could look into the
        // environment.
        unsafe {
            std::env::set_var("SLUICE_UPGRADE", "1024M");
            std::env::set_var("SLUICE_LOG", "off");
            std::env::set_var("SLUICE_DIRECT", "4K");
        }
        fuzzing::begin();
        let file = sys::memfd(c"file").unwrap();
        let sent: Vec<u8> = (0..ROOM).map(|at| 200 + (at % 47) as u8).collect();
        sys::write(file.raw(), &sent).unwrap();
        Self {
            listener: TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap(),
            token: Box::new([0x5ca1_ab1e, 0x00de_c0de]),
            offered: (0..ROOM).map(|at| 62 + (at % 38) as u8).collect(),
            sent,
            ring: (0..RING_MOST).map(|at| 1 + (at % 61) as u8).collect(),
            file,
            buffer: vec![CANARY; ROOM + 128],
        }
    }
}

pub fn run(bytes: &[u8]) {
    with(bytes, |world, once, input| {
        let kind = input.byte();
        world.step(kind, once, input);
    });
}

/// A connection on a link, and one `step` after the other until the input is used up.
pub(crate) fn with(bytes: &[u8], mut step: impl FnMut(&mut World, &mut Once, &mut Input<'_>)) {
    ONCE.with_borrow_mut(|once| {
        let mut input = Input::new(bytes);
        let mut world = World::new(once, &mut input);
        for _ in 0..STEPS {
            if input.is_over() {
                break;
            }
            step(&mut world, once, &mut input);
        }
        world.ends();
    });
}

pub(crate) struct World {
    /// The program's.
    fd: i32,
    set: i32,
    is_open: bool,
    pub(crate) end: End,
    // The peer's.
    pub(crate) tcp: Option<TcpStream>,
    arena: Arena,
    pub(crate) memory: Fd,
    pub(crate) control: Fd,
    lent: (u64, u32),
    by_tcp: u64,
    published: u64,
    read: u64,
    /// The ring has other bytes than at first.
    is_spoilt: bool,
    /// The peer has named an address of its own memory of which nobody knows what lies there.
    names_any_address: bool,
    /// What the program gets with an event.
    data: u64,
}

/// A set of the program's.
fn new_set() -> i32 {
    // SAFETY: no pointers.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(set >= 0);
    api::epoll_created(set);
    set
}

impl World {
    fn new(once: &Once, input: &mut Input<'_>) -> Self {
        let (fd, tcp) = connected(once);
        let set = new_set();
        let (arena, memory) = Arena::create().unwrap();
        let theirs = Arena::adopt(&memory).unwrap();
        let mut pair = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: room for two descriptors.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) };
        assert_eq!(made, 0);
        let [near, far] = pair.map(Fd::own);
        let setup = input.byte();
        let mut world = Self {
            fd,
            set,
            is_open: true,
            end: {
                let pulls = setup & 1 != 0;
                let peer = Peer {
                    arena,
                    control: near,
                    token: *once.token,
                    pid: std::process::id() as i32,
                    // SAFETY: asks only.
                    uid: unsafe { libc::geteuid() },
                    is_same_user: setup & 16 == 0,
                    can_pull: pulls,
                };
                if setup & 2 != 0 {
                    watch(set, fd, libc::EPOLL_CTL_ADD, libc::EPOLLIN as u32, 7);
                }
                let len = 4096 << (setup >> 2 & 3);
                let met = fuzzing::meet(fd, peer, len);
                let Some(end) = met else {
                    closes(fd);
                    closes(set);
                    panic!("nothing stands in the way, and no stream was attached");
                };
                end
            },
            tcp: Some(tcp),
            arena: theirs,
            memory,
            control: far,
            lent: (0, 0),
            by_tcp: 0,
            published: 0,
            read: 0,
            is_spoilt: false,
            names_any_address: false,
            data: 7,
        };
        world.lent = world.end.lent().unwrap();
        world.paint(once);
        // An honest peer's part of the meeting, which a hostile one may leave out.
        let [out, incoming] = world.directions();
        if setup & 16 == 0 {
            out.rx_wishes
                .ring_len
                .store(4096 << (setup >> 6), Ordering::Relaxed);
            out.rx_wishes.ring_at.store(rings_at(1), Ordering::Relaxed);
            out.rx_wishes.consent.store(1, Ordering::SeqCst);
        }
        if setup & 32 == 0 {
            let place = once.token.as_ptr().addr() as u64;
            incoming.tx_wishes.token_at.store(place, Ordering::Relaxed);
            incoming.tx_wishes.switched.store(1, Ordering::SeqCst);
        }
        world
    }

    fn base(&self) -> *mut u8 {
        let slot = std::ptr::from_ref(self.arena.slot(0, 0))
            .cast_mut()
            .cast::<u8>();
        // SAFETY: where the mapping begins, in which the slot lies.
        unsafe { slot.sub(slots_at(0)) }
    }

    /// What the victim writes, and what the peer does.
    fn directions(&self) -> [&Direction; 2] {
        let [a, b] = &self.arena.stream(self.end.index()).unwrap().dir;
        [a, b]
    }

    /// The ring that the victim has lent, and what lies beside it, get bytes by which they are
    /// known.
    fn paint(&self, once: &Once) {
        let (at, len) = (self.lent.0 as usize, self.lent.1 as usize);
        // SAFETY: inside the mapping, where nobody reads meanwhile; as long as the largest ring
        // here.
        unsafe { std::ptr::copy_nonoverlapping(once.ring.as_ptr(), self.base().add(at), len) };
        let region = rings_at(0) as usize;
        let before = (at > region).then(|| at - 4096);
        let after = (at + len < region + RING_REGION as usize).then_some(at + len);
        for page in [before, after].into_iter().flatten() {
            // SAFETY: as above.
            unsafe { self.base().add(page).write_bytes(BESIDE, 4096) };
        }
    }

    pub(crate) fn edges(&self) -> [u64; 14] {
        let [out, incoming] = self.directions();
        [
            0,
            1,
            self.lent.0,
            u64::from(self.lent.1),
            rings_at(1),
            rings_at(1) + RING_REGION,
            out.tx.tail.read().offset,
            out.rx.head.read().offset,
            incoming.tx.tail.read().offset,
            incoming.rx.head.read().offset,
            self.by_tcp,
            1 << 63,
            u64::MAX >> 9,
            u64::MAX,
        ]
    }

    /// The peer stores anything into a word of the arena.
    fn store(&self, at: usize, value: u64) {
        // SAFETY: a word inside the mapping, which is written by atomics alone.
        unsafe { &*self.base().add(at & !7).cast::<AtomicU64>() }.store(value, Ordering::SeqCst);
    }

    /// A call of the program's, or something that the peer does; which, says `kind`.
    pub(crate) fn step(&mut self, kind: u8, once: &mut Once, input: &mut Input<'_>) {
        match kind % 32 {
            // The peer.
            0..=4 => {
                let edges = self.edges();
                let side = input.below(2);
                let word = input.below(size_of::<Direction>() / 8);
                // That may be an offer's place.
                self.names_any_address |= word * 8 >= std::mem::offset_of!(Direction, offer);
                let at = stream_at(self.end.index()) + side * size_of::<Direction>() + word * 8;
                self.store(at, input.number(&edges));
            }
            5 => {
                // A waiter slot, of either side.
                let len = slots_at(1) - slots_at(0);
                let (side, slot) = (
                    input.below(2),
                    input.below(4) * (SLOTS / 4) + input.below(3),
                );
                let word = input.below(12) * 8;
                let at = slots_at(side) + slot * (len / SLOTS) + word;
                let edges = self.edges();
                self.store(at, input.number(&edges));
            }
            6 | 7 => self.publish(input),
            8 => {
                let out = self.directions()[0];
                let (tail, head) = (out.tx.tail.read(), out.rx.head.read());
                let there = tail.offset.wrapping_sub(head.offset);
                let n = (1 + u64::from(input.half())).min(there);
                if out
                    .rx
                    .head
                    .consume(head.round, head.offset, head.offset.wrapping_add(n))
                    .is_ok()
                {
                    self.read = head.offset.wrapping_add(n);
                }
            }
            9 => {
                let dir = self.directions()[input.below(2)];
                match input.byte() % 3 {
                    0 => drop(dir.tx.tail.flag()),
                    1 => drop(dir.rx.head.flag()),
                    _ => drop(sluice_fabric::cursors::demote(&dir.tx.tail, &dir.rx.head)),
                }
            }
            10 => self.offer(once, input),
            11 => self.punch(input),
            12 => {
                // By TCP, and perhaps with the place where that ends.
                let n = 1 + usize::from(input.half()) % 9000;
                let bytes: Vec<u8> = (0..n).map(|at| 100 + (at % 51) as u8).collect();
                if let Some(tcp) = &self.tcp {
                    // SAFETY: bytes of ours.
                    let sent = unsafe {
                        sys::send(tcp.as_raw_fd(), bytes.as_ptr(), n, libc::MSG_NOSIGNAL)
                    };
                    self.by_tcp += sent.unwrap_or(0) as u64;
                }
                if input.chance() {
                    let wishes = &self.directions()[1].tx_wishes;
                    wishes.from.store(self.by_tcp, Ordering::SeqCst);
                }
            }
            13 => {
                let mut room = [0u8; 16 << 10];
                if let Some(tcp) = &self.tcp {
                    // SAFETY: room of ours.
                    let _ = unsafe { sys::recv(tcp.as_raw_fd(), room.as_mut_ptr(), room.len(), 0) };
                }
            }
            14 => match input.byte() % 8 {
                0 => self.tcp = None,
                1 => {
                    if let Some(tcp) = &self.tcp {
                        let _ = sys::shutdown(tcp.as_raw_fd(), libc::SHUT_WR);
                    }
                }
                2 => self.end.lose(),
                3 => self.end.look(),
                4 => {
                    let mut room = [0u8; 256];
                    // SAFETY: room of ours.
                    let _ =
                        unsafe { sys::recv(self.control.raw(), room.as_mut_ptr(), room.len(), 0) };
                }
                _ => fuzzing::turn(),
            },
            15 => fuzzing::turn(),
            // The program.
            16..=19 => self.receives(once, input),
            20..=22 => self.sends(once, input),
            23 => self.polls(input),
            24 | 25 => self.waits(input),
            26 => {
                let op = [
                    libc::EPOLL_CTL_ADD,
                    libc::EPOLL_CTL_MOD,
                    libc::EPOLL_CTL_DEL,
                ][input.below(3)];
                let flags =
                    [0, libc::EPOLLET, libc::EPOLLONESHOT, libc::EPOLLEXCLUSIVE][input.below(4)];
                let events = u32::from(input.half()) & 0x201f | flags as u32;
                if self.is_open && watch(self.set, self.fd, op, events, self.data + 1) {
                    self.data += 1;
                }
            }
            27 if input.chance() => self.shuts(input),
            28 => self.options(input),
            29 => self.sends_file(once, input),
            30 => self.copies(),
            31 if input.byte().is_multiple_of(4) && self.is_open => {
                self.is_open = false;
                closes(self.fd);
            }
            _ => {}
        }
    }

    /// The peer's writing, as an honest one does it or nearly.
    fn publish(&mut self, input: &mut Input<'_>) {
        let incoming = self.directions()[1];
        let (tail, head) = (incoming.tx.tail.read(), incoming.rx.head.read());
        let room = u64::from(self.lent.1).saturating_sub(tail.offset.wrapping_sub(head.offset));
        let n = 1 + u64::from(input.half());
        let n = if input.byte().is_multiple_of(8) {
            n
        } else {
            n.min(room)
        };
        if incoming
            .tx
            .tail
            .advance(tail.offset, tail.offset.wrapping_add(n))
            .is_ok()
        {
            self.published += n;
        }
        let _ = self.arena.slot(0, input.below(3)).wake(self.end.index());
    }

    /// Memory of the peer's, to be read there.
    fn offer(&mut self, once: &Once, input: &mut Input<'_>) {
        let edges = self.edges();
        let number = u64::from(input.byte());
        let offered = once.offered.as_ptr().addr() as u64;
        let other = input.byte().is_multiple_of(4);
        let place = if other {
            input.number(&[offered, 0, u64::MAX])
        } else {
            offered
        };
        let len = if input.chance() {
            30_000
        } else {
            input.number(&edges)
        };
        self.names_any_address |= place != offered || len > ROOM as u64;
        let incoming = self.directions()[1];
        let line = &incoming.offer;
        let head = incoming.rx.head.read();
        line.word.store(0, Ordering::Relaxed);
        line.at.store(place, Ordering::Relaxed);
        line.len.store(len, Ordering::Relaxed);
        let seq = if input.byte().is_multiple_of(4) {
            input.number(&edges)
        } else {
            incoming.tx.tail.read().offset
        };
        line.seq.store(seq, Ordering::Relaxed);
        line.advert
            .store(u64::from(input.byte() % 4), Ordering::Relaxed);
        let round = if input.byte().is_multiple_of(4) {
            input.byte()
        } else {
            head.round
        };
        line.word
            .store(number << 8 | u64::from(round), Ordering::SeqCst);
    }

    /// The peer takes pages out of the file, or has others there.
    fn punch(&mut self, input: &mut Input<'_>) {
        self.is_spoilt = true;
        let (at, len) = match input.byte() % 3 {
            0 => (self.lent.0, u64::from(self.lent.1)),
            1 => (rings_at(1), 1 << 20),
            _ => (0, rings_at(0)),
        };
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no pointers.
        unsafe { libc::fallocate(self.memory.raw(), flags, at as i64, len as i64) };
    }

    /// Both ends go. What is left of the connection is nothing.
    fn ends(mut self) {
        if self.is_open {
            closes(self.fd);
        }
        closes(self.set);
        drop(self.tcp.take());
        fuzzing::turn();
        self.end.lose();
        for _ in 0..200 {
            fuzzing::turn();
            if self.end.streams().is_none() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!(
            "the link is still there, with {:?} streams",
            self.end.streams()
        );
    }
}

/// A connection: the program's end, which does not wait, and the peer's.
pub(crate) fn connected(once: &Once) -> (i32, TcpStream) {
    let fd = TcpStream::connect(once.listener.local_addr().unwrap())
        .unwrap()
        .into_raw_fd();
    api::socket_created(fd, libc::AF_INET, libc::SOCK_STREAM, 0);
    api::connected(fd, 0, 0);
    let tcp = once.listener.accept().unwrap().0;
    tcp.set_nonblocking(true).unwrap();
    // Reset when it is closed, so that no port waits.
    sys::set_linger(tcp.as_raw_fd(), Some(0));
    sys::set_nonblocking(fd).unwrap();
    (fd, tcp)
}

pub(crate) fn closes(fd: i32) {
    if let Some(entry) = api::lookup(fd) {
        api::before_close(entry, fd);
    }
    // SAFETY: ours, and nobody uses it any more.
    unsafe { libc::close(fd) };
}

fn watch(set: i32, fd: i32, op: i32, events: u32, data: u64) -> bool {
    let mut event = libc::epoll_event { events, u64: data };
    let at = &raw mut event;
    // SAFETY: an event of ours.
    let verdict = unsafe { api::epoll_ctl(set, op, fd, at) };
    // SAFETY: as above.
    concluded(verdict, || {
        real(unsafe { libc::epoll_ctl(set, op, fd, at) } as isize)
    }) == 0
}
