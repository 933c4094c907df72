//! Both ends of a stream over verbs on its way from TCP to the link and back: arbitrary
//! interleavings, all interleavings of small ones, and rules switched off to see that it is
//! noticed.
//!
//! Checked after every step, by the harness: each byte read is the one that belongs there, no end
//! is seen before the last byte, nothing is reset but after a kill, no honest end is refused.
//! Checked from there on, letting everything run: all bytes come.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod common;

use common::{are_walked, cases, fault_of, seen_by_all};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, RngAlgorithm, TestRng, TestRunner};
use sluice_stream::harness::transit::{Fault, Op, Seen, Terms, World};
use sluice_stream::record::{Action, Leave, Nonce, Role, Rule, Transit};

fn end() -> impl Strategy<Value = usize> {
    0usize..2
}

fn leave() -> impl Strategy<Value = Leave> {
    prop_oneof![
        2 => Just(Leave::Stay),
        2 => Just(Leave::Shut),
        2 => Just(Leave::Hand),
        1 => Just(Leave::Close),
    ]
}

/// Steps of a stream that nothing happens to.
fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::Begin),
        10 => (end(), 1usize..6).prop_map(|(e, n)| Op::Give(e, n)),
        10 => (end(), 1usize..50).prop_map(|(e, n)| Op::Flush(e, n)),
        14 => end().prop_map(Op::Carry),
        14 => end().prop_map(Op::Poll),
        6 => end().prop_map(Op::Complete),
        4 => end().prop_map(Op::Credit),
        10 => (end(), 1usize..6).prop_map(|(e, n)| Op::Read(e, n)),
        3 => end().prop_map(Op::Look),
        12 => (end(), 1usize..50).prop_map(|(e, n)| Op::Segment(e, n)),
    ]
}

/// What happens to it.
fn event(kills: bool) -> impl Strategy<Value = Op> {
    let usual = prop_oneof![
        6 => (end(), leave()).prop_map(|(e, leave)| Op::Leave(e, leave)),
        2 => end().prop_map(Op::Shutdown),
        4 => end().prop_map(Op::Cut),
        4 => end().prop_map(Op::Lose),
        1 => end().prop_map(Op::Die),
        1 => end().prop_map(Op::Quiet),
    ];
    let kill = (end(), prop::bool::weighted(0.4)).prop_map(|(e, unread)| Op::Kill(e, unread));
    prop_oneof![
        4 => usual.boxed(),
        u32::from(kills) => kill.boxed(),
    ]
}

#[derive(Debug, Clone)]
struct Case {
    terms: Terms,
    ops: Vec<Op>,
}

fn case(kills: bool) -> impl Strategy<Value = Case> {
    let total = || 0usize..60;
    let decoy = || (0usize..8, prop_oneof![3 => Just(0usize), 2 => 1usize..16]);
    (
        (total(), total()),
        1u32..20,
        (decoy(), decoy()),
        prop::bool::weighted(0.95),
        // Enough to come to the link, mostly.
        prop_oneof![1 => 0usize..2, 2 => Just(2usize)],
        prop::collection::vec(op(), 0..160),
        prop::collection::vec((any::<prop::sample::Index>(), event(kills)), 0..4),
        // Both ends leave, at about the same time.
        prop::option::weighted(
            0.4,
            (
                any::<prop::sample::Index>(),
                leave(),
                0usize..12,
                leave(),
                end(),
            ),
        ),
    )
        .prop_map(
            |((a, b), window, (c, d), consents, rounds, mut ops, events, both)| {
                for _ in 0..rounds * 3 {
                    for e in [0, 1] {
                        ops.insert(0, Op::Poll(1 - e));
                        ops.insert(0, Op::Carry(e));
                    }
                }
                if rounds > 0 {
                    ops.insert(0, Op::Begin);
                }
                for (at, event) in events {
                    let at = at.index(ops.len() + 1);
                    ops.insert(at, event);
                }
                if let Some((at, one, apart, other, e)) = both {
                    let at = at.index(ops.len() + 1);
                    ops.insert(at, Op::Leave(e, one));
                    ops.insert((at + apart).min(ops.len()), Op::Leave(1 - e, other));
                }
                Case {
                    terms: Terms {
                        total: [a, b],
                        window,
                        decoy: [c, d],
                        consents,
                        keeps: [false; 2],
                        patient: [false; 2],
                    },
                    ops,
                }
            },
        )
}

/// The same, with ends that keep what they have not read, or ask later.
fn any_case(kills: bool) -> impl Strategy<Value = Case> {
    let ends = any::<[[bool; 2]; 2]>();
    (case(kills), ends).prop_map(|(mut case, [keeps, patient])| {
        (case.terms.keeps, case.terms.patient) = (keeps, patient);
        for op in &mut case.ops {
            if let Op::Leave(e, leave @ Leave::Hand) = op
                && keeps.get(*e) == Some(&true)
            {
                *leave = Leave::Stay;
            }
        }
        case
    })
}

fn play(case: &Case, without: Option<Rule>) -> Result<Seen, Fault> {
    let mut world = World::new(case.terms, without);
    for op in &case.ops {
        world.apply(*op)?;
    }
    world.finish()?;
    Ok(*world.seen())
}

fn holds(case: &Case) -> Result<(), TestCaseError> {
    play(case, None)
        .map(drop)
        .map_err(|fault| TestCaseError::fail(fault.to_string()))
}

proptest! {
    #![proptest_config(cases(10_000))]

    #[test]
    fn no_byte_is_lost_repeated_or_reordered(case in any_case(false)) { holds(&case)? }

    #[test]
    fn a_killed_peer_is_never_a_short_end(case in any_case(true)) { holds(&case)? }
}

/// The interleavings reach what they are for: no path is proved by never being walked.
#[test]
fn every_path_is_walked() {
    let play = |case: &_| play(case, None);
    let add = |sum: &mut Seen, seen: Seen| {
        sum.open += seen.open;
        sum.from += seen.from;
        sum.ask += seen.ask;
        sum.answer += seen.answer;
        sum.crossed += seen.crossed;
        sum.resent += seen.resent;
        sum.beyond += seen.beyond;
        sum.data += seen.data;
        sum.handed += seen.handed;
        sum.reset += seen.reset;
        sum.whole += seen.whole;
    };
    let sum = seen_by_all(10_000, case(true), play, add);
    let paths = [
        ("streams on the link", sum.open),
        ("records FROM", sum.from),
        ("records ASK", sum.ask),
        ("answers", sum.answer),
        ("records that crossed", sum.crossed),
        ("bytes sent again", sum.resent),
        ("bytes kept beyond `taken`", sum.beyond),
        ("ends that left without a record", sum.data),
        ("sockets handed on", sum.handed),
        ("resets", sum.reset),
        ("whole streams of the killed", sum.whole),
    ];
    are_walked(&paths, sum);
}

/// The same properties over the same strategy without one rule: they must fail, and soon.
#[track_caller]
fn is_caught(rule: Rule) -> Fault {
    let cases = Cases {
        cases: 60_000,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Cases::default()
    };
    // The same cases every time: a rare one is either among them or not.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let runner = TestRunner::new_with_rng(cases, rng);
    let found = fault_of(runner, case(true), |case| play(case, Some(rule)).map(drop));
    found.unwrap_or_else(|| panic!("{rule:?} was not missed"))
}

#[test]
fn every_rule_left_out_is_missed() {
    for rule in Rule::ALL {
        is_caught(rule);
    }
}

#[test]
fn a_from_that_yields_repeats_or_loses_bytes() {
    let fault = is_caught(Rule::FromStands);
    assert!(matches!(fault, Fault::WrongByte(..)), "{fault}");
}

#[test]
fn bytes_dropped_beyond_taken_are_lost() {
    let fault = is_caught(Rule::KeepBeyondTaken);
    assert!(matches!(fault, Fault::WrongByte(..)), "{fault}");
}

#[test]
fn bytes_behind_an_ask_are_misplaced() {
    let fault = is_caught(Rule::AskWaits);
    assert!(matches!(fault, Fault::WrongByte(..)), "{fault}");
}

#[test]
fn a_record_that_is_not_expected_is_read_as_data() {
    for rule in [Rule::NoRecordUnknown, Rule::LookAtN] {
        let fault = is_caught(rule);
        assert!(matches!(fault, Fault::WrongByte(..)), "{rule:?}: {fault}");
    }
}

#[test]
fn a_kill_unnoticed_is_a_short_end() {
    for rule in [Rule::EndNeedsRecord, Rule::OwedComes] {
        let fault = is_caught(rule);
        assert!(matches!(fault, Fault::ShortEnd(..)), "{rule:?}: {fault}");
    }
}

/// Up to where both ends use the link, or as many steps of that.
fn switch(world: &mut World, steps: usize) {
    let ways = [0, 1, 0, 1, 0];
    world.apply(Op::Begin).unwrap();
    for e in ways.into_iter().take(steps) {
        assert!(world.apply(Op::Carry(e)).unwrap());
        assert!(world.apply(Op::Poll(1 - e)).unwrap());
    }
}

fn apply(world: &mut World, ops: &[Op]) {
    for op in ops {
        assert!(world.apply(*op).unwrap(), "{op:?} did nothing");
    }
}

#[test]
fn both_leave_at_once_with_bytes_between() {
    let mut world = World::new(small([4, 4], 0), None);
    switch(&mut world, 5);
    let leave = |e| {
        [
            Op::Give(e, 2),
            Op::Carry(e),
            Op::Complete(e),
            Op::Leave(e, Leave::Shut),
        ]
    };
    apply(&mut world, &[leave(0), leave(1)].concat());
    world.finish().unwrap();
    let seen = world.seen();
    // What had arrived, and was not yet looked at when `taken` was said, is named by the FROM that
    // crossed it.
    assert_eq!(
        (seen.crossed, seen.beyond, seen.resent),
        (1, 4, 0),
        "{seen:?}"
    );
}

#[test]
fn a_link_lost_early_in_the_switch_leaves_no_trace() {
    for steps in 0..3 {
        let mut world = World::new(small([4, 4], 0), None);
        switch(&mut world, steps);
        apply(&mut world, &[Op::Lose(0), Op::Lose(1)]);
        world.finish().unwrap();
        let seen = world.seen();
        assert_eq!(
            seen.from + seen.ask,
            u64::from(steps == 2),
            "{steps} {seen:?}"
        );
    }
}

#[test]
fn a_record_that_crossed_the_last_word_is_known_and_nothing_else_is() {
    let nonce = Nonce::new([7; 16]);
    let mut ends = [Role::First, Role::Second].map(|role| Transit::new(role, nonce, 0));
    ends[0].fix(0).unwrap();
    for turn in 0..5 {
        if turn == 1 {
            assert_eq!(ends[1].poll_action(), Some(Action::Fix));
            ends[1].fix(0).unwrap();
        }
        let Some(Action::Tell(step)) = ends[turn % 2].poll_action() else {
            panic!("no step")
        };
        ends[1 - turn % 2].on_step(step).unwrap();
    }
    let mut says = |e: usize, leave| {
        ends[e].leave(leave);
        let Some(Action::Write(record)) = ends[e].poll_action() else {
            panic!("no record")
        };
        record.emit(&nonce)
    };
    let record = says(1, Leave::Stay);
    says(0, Leave::Close);
    let end = &ends[0];
    assert!(end.said_last());
    assert!(end.is_crossing(&record) && end.is_crossing(&record[..7]));
    assert!(!end.is_crossing(&[]) && !end.is_crossing(&[0; 40]) && !end.is_crossing(b"data"));
    assert!(!ends[1].is_crossing(&record));
}

#[test]
fn half_a_nonce_after_a_cut_switch_is_reset_not_guessed() {
    // The second end has said N and heard nothing; the first writes what may be a record's first
    // byte, and no more.
    let mut world = World::new(small([1, 1], 1), None);
    switch(&mut world, 1);
    apply(&mut world, &[Op::Lose(0), Op::Lose(1)]);
    world.finish().unwrap();
    assert!(world.seen().reset > 0);
}

#[test]
fn half_a_nonce_with_more_behind_it_is_data() {
    let mut world = World::new(small([2, 2], 1), None);
    switch(&mut world, 1);
    apply(&mut world, &[Op::Lose(0), Op::Lose(1)]);
    world.finish().unwrap();
    assert_eq!(world.seen().reset, 0);
}

#[test]
fn a_device_that_forgets_what_it_acknowledged_is_a_reset() {
    let mut world = World::new(small([1, 0], 0), None);
    switch(&mut world, 5);
    let ops = [
        Op::Give(0, 1),
        Op::Carry(0),
        Op::Complete(0),
        Op::Leave(0, Leave::Shut),
        Op::Die(1),
    ];
    apply(&mut world, &ops);
    world.finish().unwrap();
    assert!(world.seen().reset > 0);
}

#[test]
fn a_killed_peer_that_had_answered_still_owes_its_bytes() {
    let mut world = World::new(small([0, 2], 0), None);
    switch(&mut world, 5);
    // Two bytes are lost with the link; the answer says that they will come again, and they do not.
    let ops = [
        Op::Give(1, 2),
        Op::Cut(1),
        Op::Lose(0),
        Op::Flush(0, 40),
        Op::Segment(0, 40),
        Op::Look(1),
        Op::Flush(1, 41),
        Op::Kill(1, false),
    ];
    apply(&mut world, &ops);
    world.finish().unwrap();
    assert_eq!((world.seen().whole, world.seen().reset), (0, 1));
}

/// What may still happen to a small world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    leaves: u8,
    cuts: u8,
    kills: u8,
}

fn path(steps: &[(usize, Op)], last: usize) -> Vec<Op> {
    let back = |(before, _): &(usize, Op)| steps.get(*before).copied();
    let mut path: Vec<Op> = std::iter::successors(steps.get(last).copied(), back)
        .map(|(_, op)| op)
        .collect();
    path.reverse();
    path
}

/// The steps that are always allowed, each with whether it is progress when it changes the world.
fn usual_steps(cut: usize) -> impl Iterator<Item = (Op, bool)> {
    let of_end = move |e| {
        [
            (Op::Give(e, 1), true),
            (Op::Flush(e, usize::MAX), true),
            (Op::Carry(e), true),
            (Op::Poll(e), true),
            (Op::Complete(e), true),
            (Op::Credit(e), true),
            (Op::Read(e, 1), true),
            (Op::Look(e), true),
            (Op::Segment(e, cut), true),
            (Op::Segment(e, usize::MAX), true),
            (Op::Quiet(e), false),
        ]
    };
    std::iter::once((Op::Begin, true)).chain([0, 1].into_iter().flat_map(of_end))
}

/// The steps that a budget still allows, each with what is left of it afterwards.
fn budgeted_steps(budget: Budget, leaves: &[Leave]) -> Vec<(Op, Budget)> {
    let mut steps = Vec::new();
    for e in [0usize, 1] {
        if let Some(left) = budget.leaves.checked_sub(1) {
            let budget = Budget {
                leaves: left,
                ..budget
            };
            steps.extend(leaves.iter().map(|leave| (Op::Leave(e, *leave), budget)));
        }
        if let Some(left) = budget.cuts.checked_sub(1) {
            let budget = Budget {
                cuts: left,
                ..budget
            };
            steps.extend([(Op::Cut(e), budget), (Op::Lose(e), budget)]);
        }
        if let Some(left) = budget.kills.checked_sub(1) {
            let budget = Budget {
                kills: left,
                ..budget
            };
            steps.extend([(Op::Kill(e, false), budget), (Op::Kill(e, true), budget)]);
        }
    }
    steps
}

/// Every order of every step, from the first one to the last. How many states there are.
fn explore(terms: Terms, budget: Budget, leaves: &[Leave], cut: usize) -> usize {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, RandomState};
    // Two keys: among some millions of states, no two are the same by chance.
    let (one, two) = (RandomState::new(), RandomState::new());
    let mut seen = HashSet::new();
    let mut steps: Vec<(usize, Op)> = Vec::new();
    let mut todo = vec![(World::new(terms, None), budget, usize::MAX)];
    while let Some((world, budget, last)) = todo.pop() {
        let key = (&world, budget);
        if !seen.insert((one.hash_one(key), two.hash_one(key))) {
            continue;
        }
        let mut next = |op: Op, budget: Budget| {
            let mut world = world.clone();
            match world.apply(op) {
                Ok(moved) => {
                    if moved {
                        steps.push((last, op));
                        todo.push((world, budget, steps.len() - 1));
                    }
                    moved
                }
                Err(fault) => panic!("{fault}: {op:?} after {:?}", path(&steps, last)),
            }
        };
        let mut moved = false;
        for (op, is_progress) in usual_steps(cut) {
            moved |= next(op, budget) && is_progress;
        }
        for (op, budget) in budgeted_steps(budget, leaves) {
            next(op, budget);
        }
        if !moved || one.hash_one(&world) % 16 == 0 {
            let mut end = world.clone();
            if let Err(fault) = end.finish() {
                panic!("{fault}, letting all run after {:?}", path(&steps, last));
            }
        }
    }
    seen.len()
}

const ALL_LEAVES: [Leave; 4] = [Leave::Stay, Leave::Shut, Leave::Hand, Leave::Close];

/// `total` bytes of the two programs, of which the first so many look like the nonce.
fn small(total: [usize; 2], decoy: usize) -> Terms {
    Terms {
        total,
        window: 2,
        decoy: [(0, decoy), (0, decoy)],
        consents: true,
        keeps: [false; 2],
        patient: [false; 2],
    }
}

fn budget(leaves: u8, cuts: u8, kills: u8) -> Budget {
    Budget {
        leaves,
        cuts,
        kills,
    }
}

#[test]
fn all_orders_of_few_steps() {
    for (terms, budget, leaves, cut) in [
        (small([1, 0], 0), budget(1, 1, 0), &ALL_LEAVES[..], 15),
        (small([0, 1], 1), budget(0, 1, 0), &[], 1),
        (small([1, 0], 0), budget(1, 0, 1), &[Leave::Stay], 15),
        (small([0, 1], 0), budget(2, 0, 0), &ALL_LEAVES, 15),
    ] {
        let count = explore(terms, budget, leaves, cut);
        assert!(count > 1_000, "only {count} states");
    }
}

#[test]
#[ignore = "twenty seconds in release"]
fn all_orders_of_more() {
    for (terms, budget, leaves, cut) in [
        (small([1, 1], 0), budget(1, 1, 0), &[Leave::Stay][..], 15),
        (small([1, 0], 0), budget(2, 1, 0), &ALL_LEAVES, 15),
        (
            small([0, 1], 0),
            budget(2, 1, 0),
            &[Leave::Stay, Leave::Hand],
            15,
        ),
        (small([1, 0], 1), budget(0, 2, 0), &[], 1),
        (small([1, 1], 0), budget(1, 0, 1), &[Leave::Stay], 15),
        (small([0, 1], 0), budget(0, 1, 1), &[], 1),
    ] {
        let count = explore(terms, budget, leaves, cut);
        assert!(count > 1_000, "only {count} states");
    }
}
