//! Both ends of a link with direct transfers, the memory that is lent, and TCP: bytes are taken
//! back, written late, sent again.

use super::testing::*;
use super::*;
use crate::config::Mode;
use crate::record::{Head, Leave, RECORD_LEN};
use crate::wire::CONTROL_LEN;
use proptest::prelude::*;
use std::vec;

const STREAMS: u16 = 2;

/// A write on the queue pair of direct transfers.
struct Shot {
    word: u32,
    bytes: Vec<u8>,
    to: (u64, u32),
}

/// What TCP carries.
#[derive(Debug)]
enum Item {
    Record([u8; RECORD_LEN]),
    Byte(u8),
}

/// A buffer of the program's. Its key is its number.
struct Buffer {
    bytes: Vec<u8>,
    reachable: bool,
}

#[derive(Default)]
struct Stream {
    staging: Vec<u8>,
    ring: Vec<u8>,
    /// Where bytes begin that lie elsewhere than those before.
    edges: Vec<u64>,
    written: u64,
    read: u64,
    lent: Option<usize>,
    /// Where what this end writes to TCP has come to.
    tcp: Option<u64>,
    sent: VecDeque<Item>,
    left: Option<Leave>,
}

struct End {
    pump: Pump,
    streams: Vec<Stream>,
    buffers: Vec<Buffer>,
    slots: Vec<[u8; CONTROL_LEN]>,
    done: usize,
    direct_done: usize,
    /// Words of direct writes that have come, and their lengths.
    words: VecDeque<(u32, u32)>,
    /// It has heard that the queue pair of direct transfers, or the link, is lost.
    direct: bool,
    lost: bool,
}

struct World {
    ends: [End; 2],
    ways: [VecDeque<Way>; 2],
    shots: [VecDeque<Shot>; 2],
    /// The queue pair of direct transfers works, the link does.
    direct: bool,
    link: bool,
    /// Bytes that came directly.
    direct_bytes: u64,
}

impl World {
    fn new(receives: [u16; 2], ring: u32, sends: u16, modes: [Mode; 2], least: u32) -> Self {
        let end = |me: usize| {
            let terms = Terms {
                ours: receives[me],
                theirs: receives[1 - me],
                sends,
                message_len: 24,
                mode: modes[me],
                direct_min: least,
                proves: false,
            };
            let mut pump = Pump::new(terms).unwrap();
            pump.begin_direct();
            pump.set_direct(true);
            for stream in 0..STREAMS {
                let opening = opening(stream, me, [ring, ring]);
                pump.open(stream, &opening).unwrap();
            }
            let stream = || Stream {
                staging: vec![0; STAGING as usize],
                ring: vec![0; ring as usize],
                ..Stream::default()
            };
            End {
                pump,
                streams: (0..STREAMS).map(|_| stream()).collect(),
                buffers: Vec::new(),
                slots: vec![[0; CONTROL_LEN]; usize::from(receives[me])],
                done: 0,
                direct_done: 0,
                words: VecDeque::new(),
                direct: true,
                lost: false,
            }
        };
        let mut world = Self {
            ends: [end(0), end(1)],
            ways: [VecDeque::new(), VecDeque::new()],
            shots: [VecDeque::new(), VecDeque::new()],
            direct: true,
            link: true,
            direct_bytes: 0,
        };
        for me in ENDS {
            world.act_all(me);
        }
        for _ in 0..60 {
            for me in ENDS {
                world.deliver(me);
                world.complete(me);
            }
        }
        for end in &mut world.ends {
            for stream in 0..STREAMS {
                assert_eq!(end.pump.transit(stream).unwrap().out(), Out::Link);
            }
        }
        world
    }

    fn act_all(&mut self, me: usize) {
        for stream in 0..STREAMS {
            self.act(me, stream);
        }
    }

    /// What the stream has to do on TCP.
    fn act(&mut self, me: usize, stream: u16) {
        let end = &mut self.ends[me];
        let s = &mut end.streams[usize::from(stream)];
        let pump = &mut end.pump;
        switch(pump, stream);
        pump.on_emptied();
        if let Some(record) = pump.record(stream) {
            s.sent.push_back(Item::Record(record.try_into().unwrap()));
            pump.on_record_written(stream, RECORD_LEN);
        }
        assert_eq!(pump.reset(stream), None);
        let transit = pump.transit(stream).unwrap();
        if let Out::Tcp(from) = transit.out()
            && transit.peer_n().is_some() | transit.is_over()
        {
            let at = s.tcp.get_or_insert(from.value());
            while *at < s.written {
                let byte = s.staging[(*at % STAGING) as usize];
                s.sent.push_back(Item::Byte(byte));
                *at += 1;
            }
        }
    }

    fn post(&mut self, me: usize) {
        let end = &mut self.ends[me];
        while let Some(Message { what, word, .. }) = end.pump.poll() {
            let staged = |stream: u16, from: Seq, len: u32| {
                let s = &end.streams[usize::from(stream)];
                let all = from.value()..from.value() + u64::from(len);
                assert!(all.end <= s.written);
                let mut inside = s.edges.iter().filter(|edge| **edge != all.start);
                assert!(!inside.any(|edge| all.contains(edge)), "{all:?}");
                all.map(|at| s.staging[(at % STAGING) as usize]).collect()
            };
            let way = match what {
                What::Bytes {
                    stream,
                    from,
                    len,
                    to: (place, key),
                } => {
                    assert_eq!(key, KEY);
                    let (bytes, to) = (staged(stream, from, len), To::Ring(place));
                    Way { word, bytes, to }
                }
                What::Direct {
                    stream,
                    from,
                    len,
                    to,
                } => {
                    let bytes = staged(stream, from, len);
                    if self.link {
                        self.shots[me].push_back(Shot { word, bytes, to });
                    }
                    continue;
                }
                What::Control { slot, bytes } => Way::of_no_stream(word, Some((slot, bytes))),
                What::Fence => unreachable!("completions prove"),
                What::Count => Way::of_no_stream(word, None),
            };
            if self.link {
                self.ways[me].push_back(way);
            }
        }
    }

    /// The other end takes what `me` has sent.
    fn deliver(&mut self, me: usize) {
        if self.ends[1 - me].lost {
            return;
        }
        let Some(way) = self.ways[me].pop_front() else {
            return;
        };
        self.ends[me].done += 1;
        let end = &mut self.ends[1 - me];
        let _ = way.arrive(&mut end.pump, &mut end.slots, |stream, at, bytes| {
            end.streams[stream].ring[at..][..bytes.len()].copy_from_slice(bytes);
        });
        self.act_all(1 - me);
        self.post(1 - me);
    }

    fn complete(&mut self, me: usize) {
        let end = &mut self.ends[me];
        let done = core::mem::take(&mut end.done);
        if !end.lost {
            end.pump.on_done(done, |_| ()).unwrap();
        }
        self.act_all(me);
        self.post(me);
    }

    /// The oldest direct write of `me` comes to the other's memory.
    fn shoot(&mut self, me: usize) {
        if !self.direct {
            return;
        }
        let Some(Shot { word, bytes, to }) = self.shots[me].pop_front() else {
            return;
        };
        let buffer = &mut self.ends[1 - me].buffers[to.1 as usize];
        if !buffer.reachable {
            self.direct = false;
            return;
        }
        buffer.bytes[to.0 as usize..][..bytes.len()].copy_from_slice(&bytes);
        self.ends[me].direct_done += 1;
        let words = &mut self.ends[1 - me].words;
        words.push_back((word, bytes.len() as u32));
        assert!(
            words.len() <= 2 * usize::from(NOTICES),
            "no receive is posted"
        );
    }

    /// The end takes the word of a direct write.
    fn hear(&mut self, me: usize) {
        let end = &mut self.ends[me];
        if end.lost {
            return;
        }
        if let Some((word, len)) = end.words.pop_front()
            && let Came::Direct(..) = end.pump.on_direct(word, len).unwrap()
        {
            self.direct_bytes += u64::from(len);
        }
        self.post(me);
    }

    fn complete_direct(&mut self, me: usize) {
        let end = &mut self.ends[me];
        let done = core::mem::take(&mut end.direct_done);
        if end.direct && !end.lost {
            end.pump.on_direct_done(done, |_| ()).unwrap();
        }
        self.post(me);
    }

    /// The end hears that the queue pair of direct transfers works no more.
    fn notice(&mut self, me: usize) {
        let end = &mut self.ends[me];
        if !self.direct && end.direct {
            end.direct = false;
            end.direct_done = 0;
            // What it has not heard goes with the queue pair.
            end.words.clear();
            end.pump.set_direct(false);
            self.shots[me].clear();
        }
        self.post(me);
    }

    /// When both know, there can be another.
    fn renew(&mut self) {
        if self.direct || !self.link || self.ends.iter().any(|end| end.direct) {
            return;
        }
        self.direct = true;
        for end in &mut self.ends {
            end.pump.begin_direct();
        }
        for me in ENDS {
            self.ends[me].direct = true;
            self.ends[me].pump.set_direct(true);
            self.post(me);
        }
    }

    fn lose(&mut self, me: usize) {
        self.link = false;
        self.direct = false;
        let end = &mut self.ends[me];
        if !core::mem::replace(&mut end.lost, true) {
            end.pump.on_lost();
        }
        self.act_all(me);
    }

    fn leave(&mut self, me: usize, stream: u16, how: Leave) {
        let end = &mut self.ends[me];
        let left = &mut end.streams[usize::from(stream)].left;
        if *left != Some(Leave::Close) {
            *left = Some(how);
        }
        end.pump.transit(stream).unwrap().leave(how);
        self.act(me, stream);
        self.post(me);
    }

    fn write(&mut self, me: usize, stream: u16, len: u64) {
        let end = &mut self.ends[me];
        let s = &mut end.streams[usize::from(stream)];
        if matches!(s.left, Some(Leave::Close)) {
            return;
        }
        let kept = s.tcp.unwrap_or(end.pump.kept(stream).value());
        if len.is_multiple_of(3) {
            end.pump.on_edge(stream, Seq::new(s.written));
            s.edges.push(s.written);
        }
        for _ in 0..len.min(STAGING - (s.written - kept)) {
            let at = s.written;
            s.staging[(at % STAGING) as usize] = byte(stream, me, at);
            s.written += 1;
        }
        let tail = Seq::new(s.written);
        end.pump.on_tail(stream, tail);
        self.act(me, stream);
        self.post(me);
    }

    /// A recv with this buffer waits.
    fn lend(&mut self, me: usize, stream: u16, len: u32, waitall: bool) {
        let end = &mut self.ends[me];
        let s = &mut end.streams[usize::from(stream)];
        if s.lent.is_some() || end.pump.transit(stream).unwrap().link_end().value() != s.read {
            return;
        }
        let loan = Loan {
            place: 0,
            key: end.buffers.len() as u32,
            len,
            waitall,
        };
        if end.pump.lend(stream, &loan).is_some() {
            s.lent = Some(end.buffers.len());
            end.buffers.push(Buffer {
                bytes: vec![0xee; len as usize],
                reachable: true,
            });
        }
        self.post(me);
    }

    /// The recv ends: its buffer is the program's.
    fn take_back(&mut self, me: usize, stream: u16) {
        let end = &mut self.ends[me];
        let s = &mut end.streams[usize::from(stream)];
        let Some(buffer) = s.lent.take() else { return };
        end.buffers[buffer].reachable = false;
        let landed = end.pump.revoke(stream);
        for i in 0..landed as usize {
            let got = end.buffers[buffer].bytes[i];
            assert_eq!(got, byte(stream, 1 - me, s.read), "at {}", s.read);
            s.read += 1;
        }
        end.pump.on_head(stream, Seq::new(s.read)).unwrap();
        self.act(me, stream);
        self.post(me);
    }

    /// A recv that takes what is there, from the link and then from TCP.
    fn read(&mut self, me: usize, stream: u16, len: u64) {
        self.take_back(me, stream);
        let [a, b] = &mut self.ends;
        let (end, other) = if me == 0 { (a, b) } else { (b, a) };
        let s = &mut end.streams[usize::from(stream)];
        // An end that has closed wants to know of nothing but the record.
        let len = if s.left == Some(Leave::Close) { 0 } else { len };
        let to = end.pump.transit(stream).unwrap().link_end().value();
        for _ in 0..len.min(to.saturating_sub(s.read)) {
            let at = (s.read % s.ring.len() as u64) as usize;
            assert_eq!(s.ring[at], byte(stream, 1 - me, s.read), "at {}", s.read);
            s.read += 1;
        }
        // After the link's bytes come TCP's.
        end.pump.on_head(stream, Seq::new(s.read.min(to))).unwrap();
        let sent = &mut other.streams[usize::from(stream)].sent;
        loop {
            let transit = end.pump.transit(stream).unwrap();
            match sent.front() {
                Some(Item::Record(record)) if transit.is_at_head() => {
                    assert_eq!(transit.on_head(record, false), Head::Record);
                    sent.pop_front();
                    end.pump.settle(stream);
                    end.pump.on_record_removed(stream, RECORD_LEN as u64);
                }
                Some(Item::Byte(got))
                    if len != 0 && transit.is_over() && transit.tcp_room() == u64::MAX =>
                {
                    assert_eq!(*got, byte(stream, 1 - me, s.read), "TCP at {}", s.read);
                    sent.pop_front();
                    s.read += 1;
                }
                _ => break,
            }
        }
        self.act(me, stream);
        self.post(me);
    }

    /// All that is under way comes, waiting readers read on.
    fn finish(&mut self) {
        let mut idle = 0;
        let mut before = 0;
        while idle < 60 {
            for me in ENDS {
                if !self.link {
                    self.lose(me);
                }
                self.notice(me);
                self.post(me);
                self.deliver(me);
                self.complete(me);
                self.shoot(me);
                self.complete_direct(me);
                self.hear(me);
            }
            self.renew();
            for me in ENDS {
                for stream in 0..STREAMS {
                    if idle % 16 == 15 || self.ends[me].pump.landed(stream) != 0 {
                        self.take_back(me, stream);
                    }
                    if self.ends[me].streams[usize::from(stream)].lent.is_none() {
                        self.read(me, stream, u64::MAX);
                        self.lend(me, stream, 32, false);
                    }
                }
            }
            let streams = self.ends.iter().flat_map(|end| &end.streams);
            let sum = streams.map(|s| s.read).sum::<u64>();
            idle = if sum == before { idle + 1 } else { 0 };
            before = sum;
        }
    }

    fn check(&mut self) {
        for me in ENDS {
            for stream in 0..STREAMS {
                let s = usize::from(stream);
                if matches!(self.ends[1 - me].streams[s].left, Some(Leave::Close)) {
                    continue;
                }
                let (written, read) = (
                    self.ends[me].streams[s].written,
                    self.ends[1 - me].streams[s].read,
                );
                assert_eq!(written, read, "end {me} stream {stream}");
            }
        }
    }
}

fn dynamic(ring: u32) -> World {
    World::new([16, 16], ring, 8, [Mode::Dynamic; 2], 8)
}

/// A transfer that its reader has not heard of, of the first stream and of all of a buffer of 20.
fn landed() -> World {
    let mut world = dynamic(32);
    world.lend(1, 0, 20, false);
    world.deliver(1);
    world.write(0, 0, 20);
    assert_eq!(world.shots[0].len(), 1);
    assert!(world.ways[0].is_empty());
    world.shoot(0);
    // The writer is stopped or dead from here on.
    world
}

#[test]
fn what_lands_is_read_without_the_ring() {
    let mut world = landed();
    world.hear(1);
    assert_eq!(world.ends[1].pump.landed(0), 20);
    world.take_back(1, 0);
    assert_eq!(world.ends[1].streams[0].read, 20);
    // It is acknowledged at once.
    world.deliver(1);
    world.complete(0);
    assert_eq!(world.ends[0].pump.kept(0), Seq::START, "not complete");
    world.complete_direct(0);
    assert_eq!(world.ends[0].pump.kept(0), Seq::new(20));
    world.finish();
    world.check();
}

#[test]
fn a_buffer_taken_back_costs_its_bytes_another_way() {
    let mut world = landed();
    world.take_back(1, 0);
    world.hear(1);
    assert_eq!(world.ends[1].streams[0].read, 0);
    world.deliver(1);
    assert!(!world.ways[0].is_empty(), "they go by the ring");
    world.finish();
    world.check();
}

#[test]
fn who_leaves_waits_for_no_reader() {
    for taken_back in [false, true] {
        let mut world = landed();
        world.leave(0, 0, Leave::Stay);
        // The peer's device takes all, the peer is stopped.
        for _ in 0..4 {
            world.ends[0].done = world.ends[0].pump.outstanding();
            world.complete(0);
        }
        let record = world.ends[0].streams[0].sent.front();
        assert!(matches!(record, Some(Item::Record(_))));
        if taken_back {
            world.take_back(1, 0);
        }
        while !world.ways[0].is_empty() {
            world.deliver(0);
            world.ends[0].done = 0;
        }
        world.finish();
        world.check();
    }
}

#[test]
fn who_loses_the_queue_pair_asks_what_has_come() {
    for heard in [false, true] {
        let mut world = landed();
        if heard {
            world.hear(1);
        }
        world.direct = false;
        world.notice(0);
        assert_eq!(world.ways[0].len(), 1, "RETURN");
        world.deliver(0);
        assert!(!world.ends[1].pump.is_lent(0));
        world.take_back(1, 0);
        assert_eq!(world.ends[1].streams[0].read, if heard { 20 } else { 0 });
        world.finish();
        world.check();
    }
}

#[test]
fn direct_bytes_that_nobody_has_asked_for_end_the_link() {
    let told = |tag, len| {
        let mut world = dynamic(32);
        world.lend(1, 0, 20, false);
        let word = Immediate::new(0, Notice::Direct(tag), 0).unwrap();
        world.ends[1].pump.on_direct(word.emit(), len).map(|_| ())
    };
    assert_eq!(told(1, 20), Ok(()));
    assert_eq!(told(1, 21), Err(PeerFault::DirectRange.into()));
    assert_eq!(told(2, 20), Err(PeerFault::DirectUnasked.into()));
    let mut world = dynamic(32);
    let pump = &mut world.ends[1].pump;
    let word = |notice| Immediate::new(0, notice, 0).unwrap().emit();
    let none = Err(PeerFault::DirectUnasked.into());
    assert_eq!(pump.on_direct(word(Notice::Direct(0)), 1), none);
    let other = Err(PeerFault::Malformed.into());
    assert_eq!(pump.on_direct(word(Notice::Ring), 1), other);
    let ahead = Control::Again(Seq::new(1));
    assert_eq!(pump.on_control(0, ahead), Err(PeerFault::TurnSeq.into()));
}

#[test]
fn a_late_word_is_not_taken_for_the_next_stream_of_its_number() {
    let mut world = landed();
    let (word, len) = world.ends[1].words.pop_front().unwrap();
    world.take_back(1, 0);
    let pump = &mut world.ends[1].pump;
    let closed = pump.on_control(0, Control::Closed);
    assert!(closed.is_ok() && pump.close(0));
    let next = world.ends[1].pump.open(0, &opening(0, 1, [32, 32]));
    next.unwrap();
    let came = world.ends[1].pump.on_direct(word, len);
    assert_eq!(came, Ok(Came::Nothing));
}

#[test]
fn what_waits_for_receives_goes_when_there_are_some() {
    let mut world = World::new([64, 64], 64, 8, [Mode::Direct; 2], 1);
    let len = u32::from(NOTICES) + 8;
    world.lend(1, 0, len, true);
    world.deliver(1);
    for at in 0..u64::from(len) {
        world.write(0, 0, 1);
        world.shoot(0);
        world.complete_direct(0);
        assert_eq!(world.shots[0].len(), 0);
        let came = world.ends[1].words.len() as u64;
        assert_eq!(came, (at + 1).min(u64::from(NOTICES)));
    }
    for _ in 0..NOTICES {
        world.hear(1);
    }
    // NOTICED, and nothing else that would have this stream looked at.
    while let Some(way) = world.ways[1].pop_front() {
        let end = &mut world.ends[0];
        let _ = way.arrive(&mut end.pump, &mut end.slots, |_, _, _| ());
    }
    world.post(0);
    assert_eq!(world.shots[0].len(), 1, "all that waited");
    world.finish();
    world.check();
}

#[test]
fn no_more_is_posted_than_the_reader_has_receives_for() {
    let mut world = World::new([64, 64], 32, 8, [Mode::Dynamic; 2], 1);
    let mut posted = 0;
    for _ in 0..200 {
        // What a reader takes back before it has heard goes again, by the ring.
        world.read(1, 0, u64::MAX);
        for _ in 0..4 {
            world.deliver(1);
            world.complete(1);
        }
        world.lend(1, 0, 1, false);
        for _ in 0..3 {
            world.deliver(1);
            world.complete(1);
        }
        world.write(0, 0, 1);
        posted += world.shots[0].len();
        world.shoot(0);
        world.complete_direct(0);
        world.take_back(1, 0);
        for _ in 0..4 {
            world.deliver(1);
            world.complete(1);
            world.deliver(0);
            world.complete(0);
        }
    }
    assert_eq!(posted, usize::from(NOTICES));
    world.finish();
    world.check();
}

#[derive(Debug, Clone, Copy)]
enum Turn {
    Write(usize, u16, u64),
    Read(usize, u16, u64),
    Lend(usize, u16, u32, bool),
    TakeBack(usize, u16),
    Deliver(usize),
    Complete(usize),
    Shoot(usize),
    CompleteDirect(usize),
    Hear(usize),
    Notice(usize),
    Renew,
    Break,
    Leave(usize, u16, u8),
    Lose(usize),
}

fn turn() -> impl Strategy<Value = Turn> {
    let end = 0usize..2;
    let of = (end.clone(), 0..STREAMS);
    prop_oneof![
        8 => (of.clone(), 1u64..50).prop_map(|((e, s), n)| Turn::Write(e, s, n)),
        4 => (of.clone(), 1u64..50).prop_map(|((e, s), n)| Turn::Read(e, s, n)),
        8 => (of.clone(), 1u32..90, any::<bool>())
            .prop_map(|((e, s), n, w)| Turn::Lend(e, s, n, w)),
        3 => of.prop_map(|(e, s)| Turn::TakeBack(e, s)),
        16 => end.clone().prop_map(Turn::Deliver),
        8 => end.clone().prop_map(Turn::Complete),
        8 => end.clone().prop_map(Turn::Shoot),
        8 => end.clone().prop_map(Turn::CompleteDirect),
        8 => end.clone().prop_map(Turn::Hear),
        3 => end.prop_map(Turn::Notice),
        2 => Just(Turn::Renew),
        1 => Just(Turn::Break),
    ]
}

fn turn_or_end() -> impl Strategy<Value = Turn> {
    let end = 0usize..2;
    prop_oneof![
        60 => turn(),
        1 => (end.clone(), 0..STREAMS, 0u8..4).prop_map(|(e, s, how)| Turn::Leave(e, s, how)),
        1 => end.prop_map(Turn::Lose),
    ]
}

impl World {
    fn turn(&mut self, turn: Turn) {
        match turn {
            Turn::Write(me, stream, len) => self.write(me, stream, len),
            Turn::Read(me, stream, len) => self.read(me, stream, len),
            Turn::Lend(me, stream, len, all) => self.lend(me, stream, len, all),
            Turn::TakeBack(me, stream) => self.take_back(me, stream),
            Turn::Deliver(me) => self.deliver(me),
            Turn::Complete(me) => self.complete(me),
            Turn::Shoot(me) => self.shoot(me),
            Turn::CompleteDirect(me) => self.complete_direct(me),
            Turn::Hear(me) => self.hear(me),
            Turn::Notice(me) => self.notice(me),
            Turn::Renew => self.renew(),
            Turn::Break => self.direct = false,
            Turn::Leave(me, stream, how) => {
                let how = [Leave::Stay, Leave::Hand, Leave::Close, Leave::Shut][usize::from(how)];
                self.leave(me, stream, how);
            }
            Turn::Lose(me) => self.lose(me),
        }
    }
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        3 => Just(Mode::Dynamic),
        1 => Just(Mode::Direct),
        1 => Just(Mode::Indirect),
    ]
}

proptest! {
    #[test]
    fn every_byte_comes_once_whoever_takes_what_back(
        receives in [4u16..12, 4u16..12],
        ring in (4u32..8).prop_map(|n| 1 << n),
        sends in 1u16..6,
        modes in [mode(), mode()],
        least in 1u32..20,
        turns in prop::collection::vec(turn(), 0..500),
    ) {
        let mut world = World::new(receives, ring, sends, modes, least);
        for turn in turns {
            world.turn(turn);
        }
        // An end that sends directly alone needs one that lends.
        if !(modes.contains(&Mode::Direct) && modes.contains(&Mode::Indirect)) {
            world.finish();
            world.check();
        }
    }

    #[test]
    fn nor_wherever_a_stream_or_the_link_ends(
        receives in [4u16..12, 4u16..12],
        ring in (4u32..8).prop_map(|n| 1 << n),
        sends in 1u16..6,
        modes in [mode(), mode()],
        least in 1u32..20,
        turns in prop::collection::vec(turn_or_end(), 0..500),
    ) {
        let mut world = World::new(receives, ring, sends, modes, least);
        for turn in turns {
            world.turn(turn);
        }
        for stream in 0..STREAMS {
            world.leave(usize::from(stream), stream, Leave::Stay);
        }
        world.finish();
        world.check();
    }
}
