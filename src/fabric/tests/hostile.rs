//! A peer that writes anything anywhere: nothing leaves the region, nothing panics, nothing waits.
#![cfg(not(loom))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test fails by panicking, prints, and runs in no one's program"
)]

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sluice_fabric::arena::{Arena, ArenaError};
use sluice_fabric::cursors::{Word, demote};
use sluice_fabric::doorbell::{READY_WORDS, SLOTS, Slot};
use sluice_fabric::layout::{
    ARENA_LEN, Direction, Header, RING_MAX, RING_MIN, RING_REGION, STREAMS, Stream, rings_at,
    slots_at,
};
use sluice_fabric::shm::{Cooled, Link};
use sluice_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sluice_fabric::sys;
use std::cell::Cell;
use std::mem::size_of;

/// Numbers that break things: powers of two, ends of ranges, and their neighbours.
fn number() -> impl Strategy<Value = u64> {
    let edges = [
        0,
        u64::from(RING_MIN),
        u64::from(RING_MAX),
        RING_REGION,
        rings_at(0),
        rings_at(1),
        ARENA_LEN,
        u64::from(u32::MAX),
        i64::MAX as u64,
        1 << 63,
    ];
    prop_oneof![
        any::<u64>(),
        (0..64u32, -2i64..=2).prop_map(|(bit, by)| (1u64 << bit).wrapping_add_signed(by)),
        (prop::sample::select(edges.to_vec()), -4097i64..=4097)
            .prop_map(|(at, by)| at.wrapping_add_signed(by)),
        (prop::sample::select(edges.to_vec()), -64i64..=64)
            .prop_map(|(at, by)| at.wrapping_add_signed(by * 4096)),
    ]
}

/// Ring lengths, more of them possible than chance would give.
fn length() -> impl Strategy<Value = u32> {
    prop_oneof![
        number().prop_map(|n| n as u32),
        (8u32..26).prop_map(|bit| 1 << bit)
    ]
}

/// Where the arena lies: slot 0 is at a known place in it.
fn base(arena: &Arena) -> usize {
    std::ptr::from_ref(arena.slot(0, 0)) as usize - slots_at(0)
}

thread_local! {
    static ARENA: Arena = Arena::create_local().unwrap();
}

/// Overwrites a shared type with `noise`.
fn scribble<T>(shared: &T, noise: &[u64]) {
    let words = std::ptr::from_ref(shared).cast::<AtomicU64>();
    for (i, n) in noise.iter().enumerate().take(size_of::<T>() / 8) {
        // SAFETY: inside the type, which is all atomics and aligned to its line.
        unsafe { &*words.add(i) }.store(*n, Ordering::Relaxed);
    }
}

fn noise(len: usize) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(number(), len / 8)
}

/// What a peer or this end does next.
#[derive(Clone, Debug)]
enum Step {
    Tail(u64),
    Head(u64),
    RingAt(u64),
    RingLen(u32),
    Line(usize, u64),
    Recv(usize),
    Send(usize),
    Demote,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        number().prop_map(Step::Tail),
        number().prop_map(Step::Head),
        (0u64..200_000).prop_map(Step::Tail),
        (0u64..200_000).prop_map(Step::Head),
        number().prop_map(Step::RingAt),
        length().prop_map(Step::RingLen),
        (0..size_of::<Direction>() / 8, number()).prop_map(|(at, n)| Step::Line(at, n)),
        (1usize..100_000).prop_map(Step::Recv),
        (1usize..100_000).prop_map(Step::Send),
        Just(Step::Demote),
    ]
}

/// Stores anything into a word, as a peer does.
fn lie(word: &Word, value: u64) {
    scribble(word, &[value]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A ring that the peer names is possible, or is none.
    #[test]
    fn rings_lie_in_their_region(
        side in any::<usize>(), at in number(), len in length(),
        offset in number(), part in number(),
    ) {
        ARENA.with(|arena| {
            let Some(ring) = arena.ring(side, at, len) else { return Ok(()) };
            prop_assert!(len.is_power_of_two() && (RING_MIN..=RING_MAX).contains(&len));
            let region = base(arena) + rings_at(side & 1) as usize;
            let (first, end) = (region, region + RING_REGION as usize);
            let pieces = ring.pieces(offset, part);
            prop_assert_eq!(
                pieces.iter().map(|p| p.1 as u64).sum::<u64>(),
                part.min(u64::from(len))
            );
            for (start, piece) in pieces {
                let start = start as usize;
                prop_assert!(start >= first && start < end && piece <= end - start);
                prop_assert!(start >= base(arena) + at as usize);
                prop_assert!(start + piece <= base(arena) + at as usize + len as usize);
            }
            // And the memory is there, at both ends.
            // SAFETY: one byte each, in a ring that was just accepted.
            unsafe {
                ring.copy_in(0, [1u8].as_ptr(), 1);
                ring.copy_in(u64::from(len) - 1, [2u8].as_ptr(), 1);
            }
            Ok(())
        })?;
    }

    /// Indices from the peer name slots that exist, or none.
    #[test]
    fn indices_stay_inside(index in any::<u32>(), side in any::<usize>(), slot in any::<usize>()) {
        ARENA.with(|arena| {
            let inside = |at: usize, len: usize| {
                at >= base(arena) && at + len <= base(arena) + rings_at(0) as usize
            };
            let stream = arena.stream(index);
            prop_assert_eq!(stream.is_some(), index < STREAMS);
            if let Some(stream) = stream {
                prop_assert!(inside(std::ptr::from_ref(stream) as usize, size_of::<Stream>()));
            }
            let slot = arena.slot(side, slot);
            prop_assert!(inside(std::ptr::from_ref(slot) as usize, size_of::<Slot>()));
            Ok(())
        })?;
    }

    /// A word with anything in it moves only from where this end left it, and never once flagged.
    #[test]
    fn words_refuse_lies(value in number(), from in 0..1u64 << 63, to in 0..1u64 << 63) {
        let word = Word::new();
        lie(&word, value);
        let before = word.read();
        prop_assert!(before.offset < 1 << 63);
        let moved = word.advance(from, to);
        prop_assert_eq!(moved.is_ok(), !before.flagged && before.offset == from);
        let end = word.flag();
        prop_assert_eq!(end, if moved.is_ok() { to } else { before.offset });
        prop_assert!(word.advance(end, to).is_err());
        prop_assert_eq!(word.flag(), end);
    }

    /// Marks from the peer name streams that exist; taken, they are gone; a wake is still noticed.
    #[test]
    fn marks_name_streams(noise in noise(size_of::<Slot>()), stream in any::<u32>()) {
        let slot = Slot::default();
        scribble(&slot, &noise);
        let taken = |slot: &Slot| {
            let mut streams = Vec::new();
            slot.take_ready(|s, _| streams.push(s));
            streams
        };
        let _ = slot.wake(stream);
        prop_assert!(slot.any_ready());
        let streams = taken(&slot);
        prop_assert!(streams.iter().all(|s| (*s as usize) < READY_WORDS * 64));
        prop_assert!(streams.contains(&(stream % (READY_WORDS as u32 * 64))));
        prop_assert!(!slot.any_ready());
        prop_assert!(taken(&slot).is_empty());
        slot.announce();
        prop_assert!(slot.must_ring());
        prop_assert!(!slot.must_ring());
        slot.reset();
        prop_assert!(!slot.is_sleeping() && !slot.any_ready());
    }

    /// A waker that was gone between ready bit and summary bit hides no later one.
    #[test]
    fn a_torn_mark_is_repaired(stream in 0..STREAMS) {
        ARENA.with(|arena| {
            let slot = arena.slot(1, 5);
            slot.reset();
            // A whole wake, then the summary bit taken away, which stands before the ready words.
            let _ = slot.wake(stream);
            let first = std::ptr::from_ref(slot).cast::<AtomicU64>();
            for at in 0..size_of::<Slot>() / 8 {
                // SAFETY: inside the slot, which is all atomics.
                unsafe { &*first.add(at) }.store(0, Ordering::Relaxed);
                if !slot.any_ready() {
                    break;
                }
            }
            prop_assert!(!slot.any_ready());
            let _ = slot.wake(stream);
            let mut taken = Vec::new();
            slot.take_ready(|s, _| taken.push(s));
            prop_assert_eq!(taken, vec![stream]);
            Ok(())
        })?;
    }

    /// A slot given out again is as new, whatever its last users left there.
    #[test]
    fn a_reset_direction_is_fresh(noise in noise(size_of::<Direction>())) {
        let dir = Direction::default();
        scribble(&dir, &noise);
        dir.reset();
        prop_assert_eq!(demote(&dir.tx.tail, &dir.rx.head), (0, 0));
        dir.reset();
        prop_assert_eq!((dir.tx.tail.read().flagged, dir.rx.head.read().flagged), (false, false));
        let (rx, tx) = (&dir.rx_wishes, &dir.tx_wishes);
        let (serial, offer) = (&dir.advert.serial, &dir.offer.word);
        for word in [&rx.waiters, &rx.ring_at, &tx.waiters, &tx.from, serial, offer] {
            prop_assert_eq!(word.load(Ordering::Relaxed), 0);
        }
        for word in [&rx.ring_len, &rx.consent, &rx.detached, &tx.switched, &tx.detached] {
            prop_assert_eq!(word.load(Ordering::Relaxed), 0);
        }
    }

    /// Both ends of a stream, in the way the engine uses the words, while the peer writes into
    /// every field: copies stay in the ring, and at the latest the check of the numbers demotes.
    #[test]
    fn both_ends_survive_a_lying_peer(
        len in 12u32..16, steps in prop::collection::vec(step(), 1..60),
    ) {
        ARENA.with(|arena| {
            let dir = &arena.stream(9).unwrap().dir[0];
            dir.reset();
            dir.rx_wishes.ring_at.store(rings_at(1), Ordering::Relaxed);
            dir.rx_wishes.ring_len.store(1 << len, Ordering::Relaxed);
            let mut buf = vec![0u8; RING_MAX as usize];
            // Each end's own counts, in its own memory.
            let (mut sent, mut taken) = (0u64, 0u64);
            for step in steps {
                match step {
                    Step::Tail(n) => lie(&dir.tx.tail, n),
                    Step::Head(n) => lie(&dir.rx.head, n),
                    Step::RingAt(n) => dir.rx_wishes.ring_at.store(n, Ordering::Relaxed),
                    Step::RingLen(n) => dir.rx_wishes.ring_len.store(n, Ordering::Relaxed),
                    Step::Line(at, n) => {
                        let mut words = vec![0; at + 1];
                        let line = std::ptr::from_ref(dir).cast::<AtomicU64>();
                        for (i, word) in words.iter_mut().enumerate() {
                            // SAFETY: inside the direction, which is all atomics.
                            *word = unsafe { &*line.add(i) }.load(Ordering::Relaxed);
                        }
                        words[at] = n;
                        scribble(dir, &words);
                    }
                    Step::Recv(want) => {
                        let at = dir.rx_wishes.ring_at.load(Ordering::Relaxed);
                        let len = dir.rx_wishes.ring_len.load(Ordering::Relaxed);
                        let Some(ring) = arena.ring(1, at, len) else { continue };
                        let there = dir.tx.tail.read().offset.wrapping_sub(taken);
                        if there > ring.len() {
                            demote(&dir.tx.tail, &dir.rx.head);
                            continue;
                        }
                        let n = there.min(want as u64);
                        // SAFETY: `buf` holds the largest ring, and `n` is within this one.
                        unsafe { ring.copy_out(taken, buf.as_mut_ptr(), n as usize) };
                        if dir.rx.head.advance(taken, taken + n).is_ok() {
                            taken += n;
                        }
                    }
                    Step::Send(want) => {
                        let at = dir.rx_wishes.ring_at.load(Ordering::Relaxed);
                        let len = dir.rx_wishes.ring_len.load(Ordering::Relaxed);
                        let Some(ring) = arena.ring(1, at, len) else { continue };
                        let used = sent.wrapping_sub(dir.rx.head.read().offset);
                        if used > ring.len() {
                            demote(&dir.tx.tail, &dir.rx.head);
                            continue;
                        }
                        let n = (ring.len() - used).min(want as u64);
                        // SAFETY: as above.
                        unsafe { ring.copy_in(sent, buf.as_ptr(), n as usize) };
                        if dir.tx.tail.advance(sent, sent + n).is_ok() {
                            sent += n;
                        }
                    }
                    Step::Demote => {
                        let answer = demote(&dir.tx.tail, &dir.rx.head);
                        prop_assert_eq!(answer, demote(&dir.tx.tail, &dir.rx.head));
                        prop_assert!(dir.tx.tail.advance(sent, sent).is_err());
                        prop_assert!(dir.rx.head.advance(taken, taken).is_err());
                    }
                }
            }
            Ok(())
        })?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    })]

    /// An arena whose header, seals or length are not ours is refused.
    #[test]
    fn a_strange_arena_is_refused(
        noise in noise(size_of::<Header>()), field in 0usize..8, seals in 0i32..64,
        grow in prop_oneof![Just(0i64), -8192i64..8192],
    ) {
        let (arena, fd) = Arena::create().unwrap();
        let header = base(&arena) as *const AtomicU32;
        let half = noise[0] as u32;
        // SAFETY: the header's first eight halves, at the start of the mapping.
        let before = unsafe { &*header.add(field) }.swap(half, Ordering::Relaxed);
        // The last two halves are padding.
        let same = before == half || field >= 6;
        match Arena::adopt(&fd) {
            Ok(_) => prop_assert!(same),
            Err(e) => prop_assert!(!same && e == ArenaError::Layout),
        }
        // SAFETY: as above.
        unsafe { &*header.add(field) }.store(before, Ordering::Relaxed);

        let other = sys::memfd(c"strange").unwrap();
        sys::ftruncate(other.raw(), ARENA_LEN.wrapping_add_signed(grow)).unwrap();
        let _ = sys::fcntl(other.raw(), libc::F_ADD_SEALS, seals as usize);
        // Never: an empty file has no header.
        prop_assert!(Arena::adopt(&other).is_err());
        prop_assert!(Arena::adopt(&sys::eventfd(0).unwrap()).is_err());
    }
}

/// What happens to the streams of a link.
#[derive(Clone, Debug)]
enum Turn {
    /// This end gives a stream out; the other joins it if it likes to.
    Give(u32, bool),
    /// The other end gives one out, which this end joins.
    Join(u32),
    /// This end leaves the stream of this number in its list; the other one too.
    Leave(usize),
    /// The other end leaves a stream.
    Left(usize),
    /// The other end says of one stream's ring what is true of another's, or makes it up.
    Swap(usize, usize),
    Lie(usize, u64, u32),
    /// It says of one of the first slots that it was left, or was not.
    Detached(u32, u32),
}

/// So many slots are lied about: each end gives its own out from the lowest number on.
const FIRST: u32 = 8;

fn turn() -> impl Strategy<Value = Turn> {
    let len = || prop::sample::select(vec![4096u32, 65536, 1 << 20, 4 << 20]);
    prop_oneof![
        (len(), any::<bool>()).prop_map(|(len, joins)| Turn::Give(len, joins)),
        len().prop_map(Turn::Join),
        any::<usize>().prop_map(Turn::Leave),
        any::<usize>().prop_map(Turn::Left),
        (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Turn::Swap(a, b)),
        (any::<usize>(), number(), length()).prop_map(|(i, at, len)| Turn::Lie(i, at, len)),
        (0..FIRST, prop_oneof![0..4u32, any::<u32>()])
            .prop_map(|(i, word)| Turn::Detached(i, word)),
    ]
}

fn pick(list: &[u32], at: usize) -> Option<u32> {
    (!list.is_empty()).then(|| list[at % list.len()])
}

/// Whatever the peer writes into the slots of streams, no ring is lent twice, and the pool gets
/// back what it had lent.
#[test]
fn what_is_lent_is_the_lenders_to_know() {
    let config = ProptestConfig {
        failure_persistence: None,
        cases: 48,
        ..ProptestConfig::default()
    };
    let hits = Cell::new(0);
    TestRunner::new(config)
        .run(&prop::collection::vec(turn(), 1..120), |turns| {
            lend_to_a_liar(turns, &hits)
        })
        .unwrap();
    // A lie about a slot that no stream is in is hardly one.
    assert!(hits.get() >= 60, "{} lies hit a stream", hits.get());
}

/// Counts the lies of [`Turn::Detached`] about a stream that this end is in.
fn lend_to_a_liar(turns: Vec<Turn>, hits: &Cell<u32>) -> Result<(), TestCaseError> {
    let (arena, _fd) = Arena::create().unwrap();
    let [ours, theirs] = Link::open_both(arena, [0, 1], true).unwrap();
    let mut used = Vec::new();
    for turn in turns {
        match turn {
            Turn::Detached(i, word) => {
                hits.set(hits.get() + u32::from(used.contains(&i)));
                for dir in &ours.stream(i).unwrap().dir {
                    dir.tx_wishes.detached.store(word, Ordering::Relaxed);
                    dir.rx_wishes.detached.store(word >> 1, Ordering::Relaxed);
                }
            }
            Turn::Swap(..) | Turn::Lie(..) => lie_of_rings(&turn, ours, &used),
            _ => come_or_go(&turn, [ours, theirs], &mut used)?,
        }
        let mut lent: Vec<_> = used.iter().map(|i| ours.lent_for(*i).unwrap()).collect();
        lent.sort_by_key(|l| l.at);
        for pair in lent.windows(2) {
            prop_assert!(pair[0].at + u64::from(pair[0].len) <= pair[1].at);
        }
        let mut seen = u64::MAX;
        while let Cooled::Busy(now) = ours.cool(seen) {
            prop_assert!(now != seen);
            seen = now;
        }
    }
    for link in [ours, theirs] {
        for index in 0..STREAMS {
            while link.owner(index) != 0 {
                link.leave_stream(index);
            }
        }
        link.kill();
        prop_assert_eq!(link.stream_count(), 0);
        prop_assert!(link.close_if_unused());
    }
    Ok(())
}

/// A stream is given out, joined or left; `used` are those that this end is in.
fn come_or_go(
    turn: &Turn,
    [ours, theirs]: [&Link; 2],
    used: &mut Vec<u32>,
) -> Result<(), TestCaseError> {
    match *turn {
        Turn::Give(len, joins) => {
            if let Some(index) = ours.give_stream(len, 1) {
                prop_assert!(!used.contains(&index));
                if joins {
                    theirs.join_stream(index, len, 1);
                }
                used.push(index);
            }
        }
        Turn::Join(len) => {
            if let Some(index) = theirs.give_stream(len, 1)
                && ours.join_stream(index, len, 1)
            {
                prop_assert!(!used.contains(&index));
                used.push(index);
            }
        }
        Turn::Leave(at) => {
            if let Some(index) = pick(used, at) {
                used.retain(|i| *i != index);
                let lent = ours.lent_for(index).unwrap();
                prop_assert!(ours.arena().unwrap().ring(0, lent.at, lent.len).is_some());
                ours.leave_stream(index);
                prop_assert_eq!(ours.lent_for(index), None);
                if theirs.owner(index) != 0 {
                    theirs.leave_stream(index);
                }
            }
        }
        Turn::Left(at) => {
            if let Some(index) = pick(used, at)
                && theirs.owner(index) != 0
            {
                theirs.leave_stream(index);
            }
        }
        Turn::Swap(..) | Turn::Lie(..) | Turn::Detached(..) => {}
    }
    Ok(())
}

/// The other end lies about the rings of the streams `used`.
fn lie_of_rings(turn: &Turn, ours: &Link, used: &[u32]) {
    let said = |index: u32| &ours.stream(index).unwrap().dir[1].rx_wishes;
    match *turn {
        Turn::Swap(a, b) => {
            if let (Some(a), Some(b)) = (pick(used, a), pick(used, b)) {
                let at = said(b).ring_at.load(Ordering::Relaxed);
                said(a).ring_at.store(at, Ordering::Relaxed);
                let len = said(b).ring_len.load(Ordering::Relaxed);
                said(a).ring_len.store(len, Ordering::Relaxed);
            }
        }
        Turn::Lie(i, at, len) => {
            if let Some(index) = pick(used, i) {
                said(index).ring_at.store(at, Ordering::Relaxed);
                said(index).ring_len.store(len, Ordering::Relaxed);
            }
        }
        _ => {}
    }
}

#[test]
fn slots_of_both_sides_are_apart() {
    ARENA.with(|arena| {
        let mut at: Vec<_> = (0..2)
            .flat_map(|side| (0..SLOTS).map(move |i| (side, i)))
            .map(|(side, i)| std::ptr::from_ref(arena.slot(side, i)) as usize)
            .collect();
        at.dedup();
        assert_eq!(at.len(), 2 * SLOTS);
        assert!(
            at.windows(2)
                .all(|pair| pair[1] - pair[0] >= size_of::<Slot>())
        );
    });
}
