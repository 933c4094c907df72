//! Two processes with a link over verbs, each with its own arena and pump: streams both ways at
//! once, then throughput and latency. Needs two hosts: does nothing unless `SLUICE_VERBS_ROLE` says
//! which of the two this is, `listen=ADDR:PORT` or `dial=ADDR:PORT` (`scripts/guest/provider`).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test fails by panicking, prints, and runs in no one's program"
)]

#[path = "../../fabric/tests/common/hosts.rs"]
mod hosts;

use sluice_fabric::arena::Arena;
use sluice_fabric::layout::Direction;
use sluice_fabric::ring::Ring;
use sluice_fabric::shm::Link;
use sluice_fabric::verbs::cm::{Event, Id};
use sluice_stream::pump::{Lent, Pump, Stepped};
use sluice_stream::record::{Nonce, Out, Role};
use sluice_transport::verbs::endpoint::{Endpoint, Hello, Note, Offered};
use sluice_transport::verbs::pace::Path;
use std::time::{Duration, Instant};

const STREAMS: usize = 2;
/// Different at the two ends, and for each stream.
const RING: [u32; STREAMS] = [256 << 10, 16 << 10];
const EACH_WAY: u64 = 24 << 20;

fn byte(stream: usize, dials: bool, at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8 ^ (stream as u8) << 1 ^ u8::from(dials)
}

/// Takes the steps of a stream's switch that can be taken.
fn step(pump: &mut Pump, stream: u16) {
    loop {
        if pump.transit(stream).unwrap().wants_fix() {
            pump.transit(stream).unwrap().fix(0).unwrap();
        }
        pump.settle(stream);
        if pump.step(stream).unwrap() == Stepped::None {
            return;
        }
    }
}

struct Stream {
    number: u16,
    out: (&'static Direction, Ring),
    into: (&'static Direction, Ring),
    /// Cursors of the program.
    written: u64,
    read: u64,
}

/// mmap places nothing below it.
const LOWEST_ADDRESS: u64 = 16 << 20;

struct End {
    endpoint: &'static Endpoint,
    hello: Hello,
    streams: Vec<Stream>,
    dials: bool,
    sleeps: u64,
}

fn words(hello: Hello, offers: &[Offered]) -> Vec<u8> {
    let mut bytes = [
        hello.place.to_le_bytes().as_slice(),
        &hello.key.to_le_bytes(),
    ]
    .concat();
    for Offered { stream, ring } in offers {
        bytes.extend_from_slice(&stream.to_le_bytes());
        bytes.extend_from_slice(&ring.place.to_le_bytes());
        bytes.extend_from_slice(&ring.key.to_le_bytes());
        bytes.extend_from_slice(&ring.len.to_le_bytes());
    }
    bytes
}

fn understand(bytes: &[u8]) -> (Hello, Vec<Offered>) {
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let hello = Hello {
        place: long(0),
        key: word(8),
    };
    let offers = (0..STREAMS).map(|i| 12 + i * 18).map(|at| Offered {
        stream: word(at) as u16,
        ring: Lent {
            place: long(at + 2),
            key: word(at + 10),
            len: word(at + 14),
        },
    });
    (hello, offers.collect())
}

impl End {
    fn new(id: Id, dials: bool) -> (Self, Vec<Offered>) {
        let links = Link::open_both(Arena::create_local().unwrap(), [1, 2], false).unwrap();
        // The ends number their streams differently.
        if dials {
            links[0].give_stream(4096, 1).unwrap();
        }
        let endpoint: &Endpoint = Box::leak(Box::new(Endpoint::new(|| ())));
        let numbers = id.device().unwrap().limits.numbers;
        let hello = endpoint.begin(id, links).unwrap();
        let offers = RING.map(|len| endpoint.offer(len >> u32::from(dials), 1).unwrap());
        // Mapped memory has higher addresses. If these are lower, the peer was told offsets.
        let told = offers.iter().map(|offer| offer.ring.place);
        let highest = told.chain([hello.place]).max().unwrap();
        assert_eq!(highest < LOWEST_ADDRESS, numbers, "{highest:#x}");
        let end = Self {
            endpoint,
            hello,
            streams: Vec::new(),
            dials,
            sleeps: 0,
        };
        (end, offers.to_vec())
    }

    fn open(&mut self, ours: &[Offered], peer: &[u8], links: [&'static Link; 2]) {
        let (hello, theirs) = understand(peer);
        self.endpoint.heard(hello);
        for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            let role = if self.dials {
                Role::First
            } else {
                Role::Second
            };
            let nonce = Nonce::new([i as u8; 16]);
            self.endpoint
                .open(*ours, theirs, (role, nonce), (0, Path::default()), 1)
                .unwrap();
            let [near, far] = links;
            let dir = &near.stream(u32::from(ours.stream)).unwrap().dir;
            let ring = |link: &'static Link| {
                let lent = link.lent_for(u32::from(ours.stream)).unwrap();
                link.arena()
                    .unwrap()
                    .ring(link.side(), lent.at, lent.len)
                    .unwrap()
            };
            self.streams.push(Stream {
                number: ours.stream,
                out: (&dir[0], ring(far)),
                into: (&dir[1], ring(near)),
                written: 0,
                read: 0,
            });
        }
    }

    fn links(&self) -> [&'static Link; 2] {
        self.endpoint.links().unwrap()
    }

    fn begin(&mut self) {
        for i in 0..STREAMS {
            let number = self.streams[i].number;
            self.endpoint.with(|pump| step(pump, number)).unwrap();
        }
    }

    /// Drives the endpoint, and takes steps of switches.
    fn drive(&self) {
        self.endpoint.drive();
        while let Some(note) = self.endpoint.note() {
            let Note::Stream(stream) = note else {
                panic!("{note:?}")
            };
            self.endpoint.with(|pump| step(pump, stream)).unwrap();
        }
        assert_eq!(self.endpoint.is_lost(), None);
    }

    /// Drives until `step` returns `None`, and sleeps when it returns `Some(false)` twice.
    fn run(&mut self, mut step: impl FnMut(&mut Self) -> Option<bool>) {
        let begun = Instant::now();
        loop {
            match step(self) {
                None => return,
                Some(true) => continue,
                Some(false) => {}
            }
            self.drive();
            match step(self) {
                None => return,
                Some(true) => continue,
                Some(false) => {}
            }
            self.endpoint.arm();
            self.drive();
            match step(self) {
                None => return,
                Some(true) => continue,
                Some(false) => {}
            }
            self.sleeps += 1;
            let mut poll = libc::pollfd {
                fd: self.endpoint.descriptor().unwrap(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one entry.
            let ready = unsafe { libc::poll(&raw mut poll, 1, 10_000) };
            assert_eq!(
                ready,
                1,
                "asleep for 10 s after {:?}: {:?}",
                begun.elapsed(),
                self.endpoint
            );
        }
    }

    /// Writes at most `most` bytes, as far as there is room. Returns how many.
    fn write(&mut self, i: usize, most: u64, real: bool) -> u64 {
        let dials = self.dials;
        let stream = &mut self.streams[i];
        let (dir, ring) = stream.out;
        let room = ring.len() - (stream.written - dir.rx.head.read().offset);
        let len = room.min(most);
        if len == 0 {
            return 0;
        }
        let from = stream.written;
        let bytes: Vec<u8> = if real {
            (0..len).map(|n| byte(i, dials, from + n)).collect()
        } else {
            vec![7; len as usize]
        };
        // SAFETY: the room of this end, which the peer does not read.
        unsafe { ring.copy_in(from, bytes.as_ptr(), len as usize) };
        dir.tx.tail.advance(from, from + len).unwrap();
        stream.written += len;
        let number = stream.number;
        self.endpoint.moved(number);
        len
    }

    /// Reads at most `most` bytes, as far as there are some. Returns how many.
    fn read(&mut self, i: usize, most: u64, real: bool) -> u64 {
        let dials = self.dials;
        let stream = &mut self.streams[i];
        let (dir, ring) = stream.into;
        let len = (dir.tx.tail.read().offset - stream.read).min(most);
        if len == 0 {
            return 0;
        }
        let mut bytes = vec![0u8; len as usize];
        // SAFETY: bytes that have come, which the peer does not write.
        unsafe { ring.copy_out(stream.read, bytes.as_mut_ptr(), len as usize) };
        if real {
            for (n, b) in bytes.iter().enumerate() {
                let at = stream.read + n as u64;
                assert_eq!(*b, byte(i, !dials, at), "stream {i} at {at}");
            }
        }
        dir.rx
            .head
            .consume(0, stream.read, stream.read + len)
            .unwrap();
        stream.read += len;
        let number = stream.number;
        self.endpoint.moved(number);
        len
    }

    fn is_open(&self) -> bool {
        self.streams.iter().all(|s| {
            let number = s.number;
            let out = self
                .endpoint
                .with(|pump| pump.transit(number).unwrap().out());
            out == Some(Out::Link)
        })
    }

    fn both_ways(&mut self) {
        let mut n = 0u64;
        self.run(|end| {
            let mut did = 0;
            for i in 0..STREAMS {
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let most = [1 + (n >> 60), 1 + (n >> 50), 1 + (n >> 44)][(n >> 33) as usize % 3];
                did += end.write(i, most.min(EACH_WAY - end.streams[i].written), true);
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                did += end.read(i, 1 + (n >> 45), true);
            }
            let over = end
                .streams
                .iter()
                .all(|s| s.written == EACH_WAY && s.read == EACH_WAY);
            (!over).then_some(did > 0)
        });
    }

    /// One way for two seconds, then a byte back.
    fn one_way(&mut self) {
        let chunk = 64 << 10;
        let begin = Instant::now();
        if self.dials {
            self.run(|end| {
                let did = end.write(0, chunk, false);
                (begin.elapsed() < Duration::from_secs(2)).then_some(did > 0)
            });
            self.run(|end| (end.write(1, 1, false) == 0).then_some(false));
        } else {
            let (before, last) = (self.streams[0].read, self.streams[1].read);
            self.run(|end| {
                let did = end.read(0, u64::MAX, false);
                end.read(1, 1, false);
                (end.streams[1].read == last).then_some(did > 0)
            });
            let total = (self.streams[0].read - before) as f64;
            let rate = total / begin.elapsed().as_secs_f64() / 1e6;
            println!("one way, {chunk} bytes a write: {rate:.0} MB/s");
        }
    }

    fn ping_pong(&mut self) {
        let (rounds, len) = (3000u32, 64);
        let begin = Instant::now();
        for _ in 0..rounds {
            if self.dials {
                self.exchange(len, true);
                self.exchange(len, false);
            } else {
                self.exchange(len, false);
                self.exchange(len, true);
            }
        }
        if self.dials {
            println!(
                "ping-pong of {len} bytes: {:.0} us",
                begin.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
            );
        }
    }

    fn exchange(&mut self, len: u64, writes: bool) {
        let mut left = len;
        self.run(|end| {
            let did = if writes {
                end.write(0, left, false)
            } else {
                end.read(0, left, false)
            };
            left -= did;
            (left > 0).then_some(did > 0)
        });
    }

    fn everything(&mut self) {
        self.run(|end| (!end.is_open()).then_some(false));
        self.both_ways();
        println!(
            "{} MiB each way on each of {STREAMS} streams, {} sleeps",
            EACH_WAY >> 20,
            self.sleeps
        );
        self.ping_pong();
        self.one_way();
    }
}

fn listen(at: &str) {
    let channel = hosts::channel();
    let (id, data, _listener) = hosts::asked(&channel, at);
    let (mut end, ours) = End::new(id, false);
    end.open(&ours, &data, end.links());
    let said = words(end.hello, &ours);
    end.endpoint
        .with_id(|id| id.accept(&said))
        .unwrap()
        .unwrap();
    let Event::Established(2, _) = hosts::event(&channel) else {
        panic!()
    };
    end.everything();
    end.endpoint.with_id(Id::disconnect);
    end.endpoint.end();
}

fn dial(to: &str) {
    let channel = hosts::channel();
    let id = hosts::routed(&channel, to);
    let (mut end, ours) = End::new(id, true);
    let said = words(end.hello, &ours);
    end.endpoint
        .with_id(|id| id.connect(&said))
        .unwrap()
        .unwrap();
    let Event::Established(3, data) = hosts::event(&channel) else {
        panic!()
    };
    end.open(&ours, &data, end.links());
    end.begin();
    end.everything();
    // The other end disconnects: a WRITE that is on its way must not be cut off.
    let Event::Gone(3) = hosts::event(&channel) else {
        panic!()
    };
    end.endpoint.end();
}

#[test]
fn streams_between_two_hosts() {
    hosts::play(listen, dial);
}
