use super::testing::*;
use super::*;
use crate::config::Mode;
use crate::record::{Leave, Nonce, Role};
use crate::wire::CONTROL_LEN;
use proptest::prelude::*;
use std::vec;

const STREAMS: u16 = 3;

struct End {
    pump: Pump,
    /// By stream: staging, ring, and what the program has written and read.
    staging: Vec<Vec<u8>>,
    rings: Vec<Vec<u8>>,
    written: Vec<u64>,
    read: Vec<u64>,
    readable: Vec<u64>,
    /// Where bytes begin that lie elsewhere, by stream.
    edges: Vec<Vec<u64>>,
    slots: Vec<[u8; CONTROL_LEN]>,
    receives: usize,
    done: usize,
    fences: usize,
}

struct World {
    ends: [End; 2],
    ways: [VecDeque<Way>; 2],
}

impl World {
    fn new(receives: [u16; 2], rings: [u32; 2], sends: u16, message_len: u32) -> Self {
        Self::with(receives, rings, sends, message_len, false)
    }

    fn with(
        receives: [u16; 2],
        rings: [u32; 2],
        sends: u16,
        message_len: u32,
        proves: bool,
    ) -> Self {
        let end = |me: usize| {
            let (ours, theirs) = (receives[me], receives[1 - me]);
            let terms = Terms {
                ours,
                theirs,
                sends,
                message_len,
                mode: Mode::Indirect,
                direct_min: 1,
                proves,
            };
            let mut pump = Pump::new(terms).unwrap();
            for stream in 0..STREAMS {
                let opening = opening(stream, me, [rings[me], rings[1 - me]]);
                pump.open(stream, &opening).unwrap();
            }
            let each = |len: u32| vec![vec![0; len as usize]; usize::from(STREAMS)];
            let none = || vec![0; usize::from(STREAMS)];
            End {
                pump,
                staging: each(STAGING as u32),
                rings: each(rings[me]),
                written: none(),
                read: none(),
                readable: none(),
                edges: vec![Vec::new(); usize::from(STREAMS)],
                slots: vec![[0; CONTROL_LEN]; usize::from(ours)],
                receives: usize::from(ours),
                done: 0,
                fences: 0,
            }
        };
        let mut world = Self {
            ends: [end(0), end(1)],
            ways: [VecDeque::new(), VecDeque::new()],
        };
        for me in ENDS {
            for stream in 0..STREAMS {
                if usize::from(stream % 2) == me {
                    world.act(me, stream);
                }
            }
        }
        world
    }

    fn act(&mut self, me: usize, stream: u16) {
        switch(&mut self.ends[me].pump, stream);
    }

    fn post(&mut self, me: usize) {
        let end = &mut self.ends[me];
        while let Some(Message { what, word, .. }) = end.pump.poll() {
            let way = match what {
                What::Bytes {
                    stream,
                    from,
                    len,
                    to: (place, key),
                } => {
                    assert_eq!(key, KEY);
                    let range = from.value() + 1..from.value() + u64::from(len);
                    let mut edges = end.edges[usize::from(stream)].iter();
                    assert!(!edges.any(|edge| range.contains(edge)), "{range:?}");
                    let at = (from.value() % STAGING) as usize;
                    let bytes = end.staging[usize::from(stream)][at..][..len as usize].to_vec();
                    let to = To::Ring(place);
                    Way { word, bytes, to }
                }
                What::Control { slot, bytes } => Way::of_no_stream(word, Some((slot, bytes))),
                What::Direct { .. } => unreachable!("none is wanted"),
                What::Fence => {
                    end.fences += 1;
                    continue;
                }
                What::Count => Way::of_no_stream(word, None),
            };
            self.ways[me].push_back(way);
        }
        assert!(
            self.ways[me].len() <= self.ends[1 - me].receives,
            "a receive is missing"
        );
    }

    /// The other end takes what `me` has sent.
    fn deliver(&mut self, me: usize) {
        let Some(way) = self.ways[me].pop_front() else {
            return;
        };
        self.ends[me].done += 1;
        let end = &mut self.ends[1 - me];
        let came = way.arrive(&mut end.pump, &mut end.slots, |stream, at, bytes| {
            end.rings[stream][at..][..bytes.len()].copy_from_slice(bytes);
        });
        match came {
            Came::Bytes(stream, to) => end.readable[usize::from(stream)] = to.value(),
            Came::Step(stream) => self.act(1 - me, stream),
            Came::Credit(_)
            | Came::Direct(..)
            | Came::Return(_)
            | Came::DirectQp(_)
            | Came::Meeting(_)
            | Came::Free(_)
            | Came::Nothing => {}
        }
        self.post(1 - me);
    }

    fn complete(&mut self, me: usize) {
        let end = &mut self.ends[me];
        let done = core::mem::take(&mut end.done);
        end.pump.on_done(done, |_| ()).unwrap();
        for stream in 0..STREAMS {
            let kept = self.ends[me].pump.kept(stream).value();
            assert!(kept <= self.ends[1 - me].read[usize::from(stream)]);
        }
        self.post(me);
    }

    fn write(&mut self, me: usize, stream: u16, len: u64) {
        let end = &mut self.ends[me];
        let s = usize::from(stream);
        let room = STAGING - (end.written[s] - end.pump.kept(stream).value());
        if len.is_multiple_of(3) {
            let at = end.written[s];
            end.pump.on_edge(stream, Seq::new(at));
            end.edges[s].push(at);
        }
        for _ in 0..len.min(room) {
            let at = end.written[s];
            end.staging[s][(at % STAGING) as usize] = byte(stream, me, at);
            end.written[s] += 1;
        }
        let tail = Seq::new(end.written[s]);
        end.pump.on_tail(stream, tail);
        self.post(me);
    }

    fn read(&mut self, me: usize, stream: u16, len: u64) {
        let end = &mut self.ends[me];
        let s = usize::from(stream);
        for _ in 0..len.min(end.readable[s] - end.read[s]) {
            let at = end.read[s];
            let ring = &end.rings[s];
            assert_eq!(
                ring[(at % ring.len() as u64) as usize],
                byte(stream, 1 - me, at)
            );
            end.read[s] += 1;
        }
        let head = Seq::new(end.read[s]);
        end.pump.on_head(stream, head).unwrap();
        self.post(me);
    }

    /// All streams come to be on the link.
    fn switch(&mut self) {
        for me in ENDS {
            self.post(me);
        }
        while !self.quiet() {
            for me in ENDS {
                self.deliver(me);
                self.complete(me);
            }
        }
        for (me, stream) in ENDS
            .into_iter()
            .flat_map(|me| (0..STREAMS).map(move |s| (me, s)))
        {
            let flow = self.ends[me].pump.flow(stream).unwrap();
            assert_eq!(flow.transit.out(), Out::Link);
        }
    }

    fn quiet(&self) -> bool {
        self.ways.iter().all(VecDeque::is_empty) && self.ends.iter().all(|e| e.done == 0)
    }
}

#[derive(Debug, Clone, Copy)]
enum Turn {
    Write(usize, u16, u64),
    Read(usize, u16, u64),
    Deliver(usize),
    Complete(usize),
}

fn turn() -> impl Strategy<Value = Turn> {
    let end = 0usize..2;
    let of = (end.clone(), 0..STREAMS, 1u64..50);
    prop_oneof![
        of.clone().prop_map(|(e, s, n)| Turn::Write(e, s, n)),
        of.prop_map(|(e, s, n)| Turn::Read(e, s, n)),
        end.clone().prop_map(Turn::Deliver),
        end.prop_map(Turn::Complete),
    ]
}

/// Terms of small messages, and a stream whose second end this is.
fn alone() -> (Terms, Opening) {
    let terms = Terms {
        ours: 8,
        theirs: 8,
        sends: 8,
        message_len: 64,
        mode: Mode::Indirect,
        direct_min: 1,
        proves: false,
    };
    let opening = Opening {
        role: Role::Second,
        nonce: Nonce::new([1; 16]),
        theirs: 0,
        tcp_read: 0,
        ring_len: 64,
        staging_len: 64,
        lent: Lent {
            place: 0,
            key: 7,
            len: 64,
        },
    };
    (terms, opening)
}

#[test]
fn a_peer_may_leave_a_stream_before_this_end_has_opened_it() {
    let (terms, opening) = alone();
    let word = Immediate::new(3, Notice::Control, 0).unwrap().emit();
    for role in [Role::First, Role::Second] {
        let mut pump = Pump::new(terms).unwrap();
        let came = pump.on_came(word, CONTROL_LEN as u32, |_| Control::Closed.emit());
        assert_eq!(came, Ok(Came::Nothing));
        pump.open(3, &Opening { role, ..opening }).unwrap();
        assert_eq!(pump.step(3), Ok(Stepped::Taken));
        assert!(pump.transit(3).unwrap().is_over());
        // Its number is free at once, and the next stream of that number is another.
        assert!(pump.close(3));
        pump.open(3, &Opening { role, ..opening }).unwrap();
        assert_eq!(pump.step(3), Ok(Stepped::None));
        assert!(!pump.close(3));
    }
}

#[test]
fn a_ring_longer_than_any_is_the_peers_lie() {
    let (terms, opening) = alone();
    let mut pump = Pump::new(terms).unwrap();
    let lent = Lent {
        place: 0,
        len: MAX_RING_LEN << 1,
        ..opening.lent
    };
    let opened = pump.open(0, &Opening { lent, ..opening });
    assert_eq!(opened, Err(PeerFault::Malformed.into()));
    pump.open(0, &opening).unwrap();
}

#[test]
fn behind_the_answer_a_record_tells_that_the_peer_has_left() {
    let (terms, opening) = alone();
    for role in [Role::First, Role::Second] {
        let mut pump = Pump::new(terms).unwrap();
        pump.open(0, &Opening { role, ..opening }).unwrap();
        assert_eq!(pump.on_control(0, Control::Consent), Ok(Came::Step(0)));
        pump.consent(0);
        if role == Role::First {
            pump.transit(0).unwrap().fix(0).unwrap();
            pump.settle(0);
            // Not looked at yet.
            let answer = Control::Switch(Step::Second(0));
            assert_eq!(pump.on_control(0, answer), Ok(Came::Step(0)));
        } else {
            let asked = Control::Switch(Step::First(0));
            assert_eq!(pump.on_control(0, asked), Ok(Came::Step(0)));
            assert_eq!(pump.step(0), Ok(Stepped::Taken));
            pump.transit(0).unwrap().fix(0).unwrap();
            pump.settle(0);
        }
        assert_eq!(pump.on_control(0, Control::Closed), Ok(Came::Nothing));
        while pump.step(0) == Ok(Stepped::Taken) {}
        let transit = pump.transit(0).unwrap();
        assert!(transit.is_at_head() && !transit.is_over());
        // Its number is the peer's no more.
        assert!(pump.close(0));
    }
}

#[test]
fn who_calls_the_switch_off_says_so_before_it_has_left() {
    let (terms, opening) = alone();
    let mut pump = Pump::new(terms).unwrap();
    let role = Role::First;
    pump.open(0, &Opening { role, ..opening }).unwrap();
    pump.transit(0).unwrap().fix(0).unwrap();
    pump.settle(0);
    pump.transit(0).unwrap().leave(Leave::Close);
    pump.settle(0);
    assert!(!pump.close(0));
    let mut said = Vec::new();
    while let Some(message) = pump.poll() {
        if let What::Control { bytes, .. } = message.what {
            said.push(Control::parse(&bytes).unwrap());
        }
    }
    assert_eq!(said, [Control::Switch(Step::Cancel), Control::Closed]);
}

#[test]
fn a_step_waits_for_tcp_and_for_nobody_who_has_left() {
    let (terms, opening) = alone();
    let far = Control::Switch(Step::First(2));
    let word = Immediate::new(0, Notice::Control, 0).unwrap().emit();
    for leaves in [false, true] {
        let mut pump = Pump::new(terms).unwrap();
        pump.open(0, &opening).unwrap();
        let came = pump.on_came(word, CONTROL_LEN as u32, |_| far.emit());
        assert_eq!(came, Ok(Came::Step(0)));
        assert_eq!(pump.step(0), Ok(Stepped::Far));
        assert!(pump.is_far(0));
        if leaves {
            pump.transit(0).unwrap().leave(Leave::Stay);
        } else {
            pump.on_tcp_read(0, 1).unwrap();
            assert_eq!(pump.step(0), Ok(Stepped::Far));
            pump.on_tcp_read(0, 2).unwrap();
        }
        assert!(!pump.is_far(0));
        assert_eq!(pump.step(0), Ok(Stepped::Taken));
        // An end that has left says so.
        let out = pump.transit(0).unwrap().out();
        assert_eq!(out == Out::Held || leaves, leaves);
        assert_eq!(pump.wants_fix(0), !leaves);
    }
}

#[test]
fn the_first_end_keeps_to_tcp_until_both_consent() {
    let mut world = World::new([8, 8], [32, 32], 8, 8);
    let [first, second] = &mut world.ends;
    // Of the stream of which it is the first.
    while second.pump.poll().is_some() {}
    assert!(!first.pump.wants_fix(0));
    // Not before the first has said so: it may not have opened the stream.
    second.pump.consent(0);
    assert!(second.pump.poll().is_none());
    assert_eq!(
        second.pump.on_control(0, Control::Consent),
        Ok(Came::Step(0))
    );
    second.pump.consent(0);
    second.pump.consent(0);
    assert!(second.pump.poll().is_some() && second.pump.poll().is_none());
    assert_eq!(
        first.pump.on_control(0, Control::Consent),
        Ok(Came::Step(0))
    );
    assert!(first.pump.wants_fix(0));
    assert_eq!(
        first.pump.on_control(0, Control::Consent),
        Err(PeerFault::Step.into())
    );
}

#[test]
fn streams_take_turns() {
    let mut world = World::new([64, 64], [32, 32], 64, 8);
    for _ in 0..20 {
        for me in ENDS {
            world.deliver(me);
            world.complete(me);
        }
    }
    for stream in 0..STREAMS {
        world.ends[0].pump.on_tail(stream, Seq::new(32));
    }
    let mut order = Vec::new();
    while let Some(message) = world.ends[0].pump.poll() {
        if let What::Bytes { stream, .. } = message.what {
            order.push(stream);
        }
    }
    assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

/// Everything that is under way comes, and is answered.
fn settle_all(world: &mut World) {
    for _ in 0..200 {
        for me in ENDS {
            world.post(me);
            world.deliver(me);
            world.complete(me);
        }
    }
}

#[test]
fn where_completions_prove_nothing_who_leaves_reads_before_it_says_so() {
    for proves in [false, true] {
        let mut world = World::with([16, 16], [32, 32], 8, 64, proves);
        settle_all(&mut world);
        world.write(0, 0, 5);
        let leaves = |world: &mut World| {
            let pump = &mut world.ends[0].pump;
            pump.transit(0).unwrap().leave(Leave::Shut);
            pump.settle(0);
            world.post(0);
            world.ends[0].pump.record(0).is_some()
        };
        assert!(!leaves(&mut world));
        while !world.ways[0].is_empty() {
            world.deliver(0);
        }
        let done = core::mem::take(&mut world.ends[0].done);
        world.ends[0].pump.on_done(done, |_| ()).unwrap();
        world.post(0);
        let end = &mut world.ends[0];
        assert_eq!(end.pump.record(0).is_some(), !proves);
        assert_eq!(end.fences, usize::from(proves));
        assert_eq!(end.pump.is_fencing(), proves);
        if proves {
            let mut told = vec![];
            end.pump.on_fenced(|stream| told.push(stream)).unwrap();
            assert_eq!(told, [0]);
            assert!(end.pump.record(0).is_some());
        }
        assert!(end.pump.on_fenced(|_| ()).is_err());
    }
}

#[test]
fn a_number_is_free_when_both_ends_have_left_its_stream() {
    for first in ENDS {
        let mut world = World::new([16, 16], [32, 32], 8, 64);
        settle_all(&mut world);
        let left = [first, 1 - first].map(|me| world.ends[me].pump.close(1));
        assert_eq!(left, [false, false]);
        settle_all(&mut world);
        assert!(world.ends.iter_mut().all(|e| e.pump.flow(1).is_none()));
        // Where the peer's word has come before.
        assert!(!world.ends[first].pump.close(2));
        settle_all(&mut world);
        assert!(world.ends[1 - first].pump.close(2));
        settle_all(&mut world);
        assert!(world.ends.iter_mut().all(|e| e.pump.flow(2).is_none()));
        assert!(world.ends.iter_mut().all(|e| e.pump.flow(0).is_some()));
    }
}

#[test]
fn who_leaves_before_the_switch_is_through_calls_it_off() {
    for me in ENDS {
        let mut world = World::new([16, 16], [32, 32], 8, 64);
        world.ends[me].pump.close(0);
        settle_all(&mut world);
        let other = world.ends[1 - me].pump.transit(0).unwrap();
        assert!(other.is_over(), "{other:?}");
        assert!(!world.ends[1 - me].pump.is_busy());
    }
}

#[test]
fn an_end_that_waits_for_a_completion_of_this_ends_is_heard_of() {
    let mut world = World::new([64, 64], [32, 32], 64, 8);
    settle_all(&mut world);
    let pump = &mut world.ends[0].pump;
    assert!(!pump.is_busy());
    pump.on_tail(0, Seq::new(8));
    while pump.poll().is_some() {}
    assert!(!pump.is_busy());
    pump.transit(0).unwrap().leave(Leave::Close);
    pump.settle(0);
    assert!(pump.transit(0).unwrap().is_ending() && pump.is_busy());
    let posted = pump.outstanding();
    pump.on_done(posted, |_| ()).unwrap();
    assert!(!pump.transit(0).unwrap().is_ending());
    assert_eq!(pump.under_way, 0);
}

#[test]
fn what_was_posted_of_a_stream_is_none_of_the_next_one_of_its_number() {
    let mut world = World::new([64, 64], [32, 32], 64, 8);
    for _ in 0..10 {
        for me in ENDS {
            world.deliver(me);
            world.complete(me);
        }
    }
    let pump = &mut world.ends[0].pump;
    pump.on_tail(0, Seq::new(8));
    let of_it = |message: Message| matches!(message.what, What::Bytes { stream: 0, .. });
    assert!(core::iter::from_fn(|| pump.poll()).any(of_it));
    assert!(!pump.close(0));
    // The peer leaves, too, before the device has said that the bytes are through.
    let closed = pump.on_control(0, Control::Closed);
    assert_eq!(closed, Ok(Came::Free(0)));
    let opening = Opening {
        role: Role::First,
        nonce: Nonce::new([1; 16]),
        theirs: 0,
        tcp_read: 0,
        ring_len: 32,
        staging_len: 32,
        lent: Lent {
            place: 0,
            key: 0,
            len: 32,
        },
    };
    pump.open(0, &opening).unwrap();
    let posted = pump.outstanding();
    assert_eq!(pump.on_done(posted, |_| ()), Ok(()));
}

#[test]
fn a_stream_that_the_peer_has_not_heard_of_is_given_up_without_a_word() {
    let mut world = World::new([64, 64], [32, 32], 64, 8);
    let pump = &mut world.ends[0].pump;
    let said = pump.says.len();
    pump.discard(1);
    assert!(pump.flow(1).is_none());
    assert_eq!(pump.says.len(), said);
}

#[test]
fn a_stream_that_the_peer_had_not_left_is_free_when_the_link_is_lost() {
    let mut world = World::new([64, 64], [32, 32], 64, 8);
    let pump = &mut world.ends[0].pump;
    assert!(!pump.close(1));
    assert_eq!(pump.take_left(), None);
    pump.on_lost();
    assert_eq!(pump.take_left(), Some(1));
    assert_eq!(pump.take_left(), None);
}

#[test]
fn more_than_the_ring_holds_does_not_count() {
    let mut world = World::new([8, 8], [32, 32], 4, 64);
    world.switch();
    let [end, peer] = &mut world.ends;
    let (pump, word) = (&mut end.pump, peer.pump.word(1, Notice::Ring));
    let nothing = |_| [0; CONTROL_LEN];
    let all = pump.on_came(word, 32, nothing);
    assert_eq!(all, Ok(Came::Bytes(1, Seq::new(32))));
    let word = peer.pump.word(1, Notice::Ring);
    let more = pump.on_came(word, 1, nothing);
    assert_eq!(more, Err(PeerFault::RingOverrun.into()));
    pump.on_lost();
    assert_eq!(pump.transit(1).unwrap().link_end(), Seq::new(32));
}

proptest! {
    #[test]
    fn every_byte_comes_once_and_nobody_is_stuck(
        receives in [4u16..12, 4u16..12],
        rings in [3u32..8, 3u32..8].prop_map(|rings| rings.map(|n| 1 << n)),
        sends in 1u16..6,
        message_len in 1u32..100,
        turns in prop::collection::vec(turn(), 0..400),
    ) {
        let mut world = World::new(receives, rings, sends, message_len);
        for turn in turns {
            match turn {
                Turn::Write(me, stream, len) => world.write(me, stream, len),
                Turn::Read(me, stream, len) => world.read(me, stream, len),
                Turn::Deliver(me) => world.deliver(me),
                Turn::Complete(me) => world.complete(me),
            }
        }
        // Both programs read on: all that was written comes, and the staging is free.
        let mut last = 0;
        loop {
            for me in ENDS {
                world.post(me);
                world.deliver(me);
                world.complete(me);
            }
            for (me, stream) in ENDS.into_iter().flat_map(|me| (0..STREAMS).map(move |s| (me, s))) {
                world.read(me, stream, u64::MAX);
            }
            let sum = world.ends.iter().flat_map(|e| &e.read).sum::<u64>();
            if world.quiet() && sum == last {
                break;
            }
            last = sum;
        }
        for me in ENDS {
            prop_assert_eq!(&world.ends[me].written, &world.ends[1 - me].read);
            prop_assert_eq!(world.ends[me].pump.outstanding(), 0);
            for stream in 0..STREAMS {
                let flow = world.ends[me].pump.flow(stream).unwrap();
                prop_assert_eq!(flow.transit.out(), Out::Link);
                // Less than half a ring of credit is kept back.
                prop_assert!(flow.sender.free() > rings[1 - me] / 2);
            }
        }
    }

    #[test]
    fn a_lie_is_an_error_or_nothing(
        words in prop::collection::vec((any::<u32>(), 0u32..70, any::<[u8; CONTROL_LEN]>()), 0..60),
        switched in any::<bool>(),
    ) {
        let mut world = World::new([8, 8], [32, 32], 4, 64);
        if switched {
            world.switch();
        }
        let pump = &mut world.ends[0].pump;
        for (word, len, bytes) in words {
            // Kinds and streams that exist more often than chance has them.
            for word in [word, word & 0x3fff] {
                let came = pump.on_came(word & 0xffc0_3003 | word & 0xff, len, |_| bytes);
                if came.is_err() {
                    pump.on_lost();
                }
                // Nobody reads: never more than the ring holds.
                for stream in 0..STREAMS {
                    let end = pump.transit(stream).unwrap().link_end();
                    prop_assert!(end.value() <= 32);
                }
                if came.is_err() {
                    return Ok(());
                }
            }
        }
    }

    #[test]
    fn a_lie_about_a_stream_on_the_link_is_an_error_or_nothing(
        says in prop::collection::vec(
            (0..STREAMS, 0u32..40, 1u8..16, any::<[u8; 4]>(), prop::array::uniform5(0u64..40)),
            1..30,
        ),
    ) {
        let mut world = World::new([64, 64], [32, 32], 4, 64);
        world.switch();
        let [End { pump, .. }, peer] = &mut world.ends;
        for (stream, len, kind, [ring, flags, step, _], words) in says {
            let mut bytes = [0; CONTROL_LEN];
            for (slot, word) in bytes.chunks_exact_mut(8).skip(1).zip(words) {
                slot.copy_from_slice(&word.to_le_bytes());
            }
            (bytes[0], bytes[1], bytes[4]) = (kind, flags & 1, step & 63);
            let is_ring = ring & 1 == 0;
            let notice = if is_ring { Notice::Ring } else { Notice::Control };
            let word = peer.pump.word(stream, notice);
            let len = if is_ring { len } else { CONTROL_LEN as u32 };
            let came = pump.on_came(word, len, |_| bytes);
            if came.is_err() {
                pump.on_lost();
            }
            for stream in 0..STREAMS {
                // None may be there any more, where the peer has left it.
                let end = pump.transit(stream).map_or(0, |t| t.link_end().value());
                prop_assert!(end <= 32);
            }
            if came.is_err() {
                return Ok(());
            }
        }
    }
}
