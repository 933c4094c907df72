//! Arbitrary interleavings of everything that can happen to one direction, and bugs put in on
//! purpose to see that they are found.
//!
//! Checked after every step, by the harness: each byte read is the byte of its position (none lost,
//! repeated, reordered), no buffer is written after it was given back, no phase goes down, an
//! honest end is never refused. Checked at the end: everything sent is read, so nothing was stuck.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod common;

use common::{are_walked, cases, fault_of, seen_by_all};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use sluice_stream::harness::{Class, Fault, Flow, Mutant, Seen, Want};
use sluice_stream::{Config, Mode, Provider, Route};

#[derive(Debug, Clone, Copy)]
enum Op {
    Send(u32, Route),
    Recv(Want),
    Write,
    Read,
    Deliver(Class),
    GiveUp,
    Withdraw,
    Look,
    Demote,
}

fn route() -> impl Strategy<Value = Route> {
    prop_oneof![Just(Route::Ring), Just(Route::Advert), Just(Route::Offer)]
}

fn want() -> impl Strategy<Value = Want> {
    let low = prop_oneof![6 => Just(1u32), 1 => 0u32..60];
    let patience = prop_oneof![4 => Just(None), 1 => Just(Some(0))];
    (
        1u32..150,
        low,
        any::<bool>(),
        prop::bool::weighted(0.1),
        patience,
    )
        .prop_map(|(len, low, waitall, peek, patience)| Want {
            len,
            low,
            waitall,
            peek,
            patience,
        })
}

fn class() -> impl Strategy<Value = Class> {
    prop::sample::select(Class::ALL.to_vec())
}

/// Delivery of any class, so that each can be later than all others for as long as it takes.
fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0u32..120, route()).prop_map(|(len, route)| Op::Send(len, route)),
        10 => want().prop_map(Op::Recv),
        14 => Just(Op::Write),
        16 => Just(Op::Read),
        24 => class().prop_map(Op::Deliver),
        4 => Just(Op::GiveUp),
        2 => Just(Op::Withdraw),
        2 => Just(Op::Look),
    ]
}

#[derive(Debug, Clone)]
struct Case {
    tx: Config,
    rx: Config,
    ops: Vec<Op>,
}

fn terms(mode: Mode, provider: Provider, ring_len: u32, direct_min: u32) -> Config {
    Config::new(mode, provider, ring_len, direct_min).unwrap()
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        Just(Mode::Dynamic),
        Just(Mode::Direct),
        Just(Mode::Indirect)
    ]
}

fn provider() -> impl Strategy<Value = Provider> {
    prop_oneof![Just(Provider::Push), Just(Provider::Pull)]
}

/// Half of the cases demote somewhere, sometimes.
fn with_demotion(ops: Vec<Op>, at: Option<prop::sample::Index>) -> Vec<Op> {
    let mut ops = ops;
    if let Some(at) = at {
        let at = at.index(ops.len() + 1);
        ops.insert(at, Op::Demote);
    }
    ops
}

/// `modes` are the writer's policy and the reader's.
fn case(
    modes: impl Strategy<Value = (Mode, Mode)>,
    provider: impl Strategy<Value = Provider>,
) -> impl Strategy<Value = Case> {
    (
        (
            modes,
            provider,
            1u32..200,
            prop_oneof![Just(1u32), 1u32..60],
        ),
        prop::collection::vec(op(), 0..160),
        any::<Option<prop::sample::Index>>(),
    )
        .prop_map(
            |(((tx, rx), provider, ring_len, direct_min), ops, demote)| Case {
                tx: terms(tx, provider, ring_len, direct_min),
                rx: terms(rx, provider, ring_len, direct_min),
                ops: with_demotion(ops, demote),
            },
        )
}

fn both(mode: Mode) -> impl Strategy<Value = (Mode, Mode)> {
    Just((mode, mode))
}

fn play(case: &Case, mutant: Mutant) -> Result<Seen, Fault> {
    let mut flow = Flow::with(case.tx, case.rx, mutant);
    let mut asked = 0;
    for op in &case.ops {
        match *op {
            Op::Send(len, route) => {
                asked += u64::from(len);
                flow.send(len, route);
            }
            Op::Recv(want) => flow.recv(want),
            Op::Write => drop(flow.step_writer()?),
            Op::Read => drop(flow.step_reader()?),
            Op::Deliver(class) => drop(flow.deliver(class)?),
            Op::GiveUp => flow.give_up()?,
            Op::Withdraw => flow.withdraw()?,
            Op::Look => flow.look()?,
            Op::Demote => flow.demote()?,
        }
    }
    flow.drain()?;
    if flow.read() != asked || flow.written() != asked {
        return Err(Fault::Accounts("bytes at the end"));
    }
    Ok(*flow.seen())
}

fn holds(case: Case) -> Result<(), TestCaseError> {
    play(&case, Mutant::None)
        .map(drop)
        .map_err(|fault| TestCaseError::fail(fault.to_string()))
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn dynamic_push(case in case(both(Mode::Dynamic), Just(Provider::Push))) { holds(case)? }

    #[test]
    fn dynamic_pull(case in case(both(Mode::Dynamic), Just(Provider::Pull))) { holds(case)? }

    #[test]
    fn direct_only(case in case(both(Mode::Direct), provider())) { holds(case)? }

    #[test]
    fn indirect_only(case in case(both(Mode::Indirect), provider())) { holds(case)? }

    #[test]
    fn ends_of_different_policies(case in case((mode(), mode()), provider())) { holds(case)? }
}

/// The interleavings reach what they are for: no path is proved by never being walked.
#[test]
fn every_path_is_walked() {
    let play = |case: &_| play(case, Mutant::None);
    let add = |sum: &mut Seen, seen: Seen| {
        sum.ring_bytes += seen.ring_bytes;
        sum.direct_count += seen.direct_count;
        sum.revoke_count += seen.revoke_count;
        sum.offer_count += seen.offer_count;
        sum.resent_bytes += seen.resent_bytes;
        sum.refused_count += seen.refused_count;
    };
    let sum = seen_by_all(2_000, case(both(Mode::Dynamic), provider()), play, add);
    let paths = [
        ("ring bytes", sum.ring_bytes),
        ("direct transfers", sum.direct_count),
        ("revocations", sum.revoke_count),
        ("offers without an ADVERT", sum.offer_count),
        ("bytes re-sent", sum.resent_bytes),
        ("writes into revoked buffers", sum.refused_count),
    ];
    are_walked(&paths, sum);
}

/// The same property over the same strategy, with one bug: it must fail, and soon.
#[track_caller]
fn is_caught(mutant: Mutant, provider: Provider) -> Fault {
    let cases = Cases {
        cases: 2_000,
        failure_persistence: None,
        ..Cases::default()
    };
    let strategy = case(both(Mode::Dynamic), Just(provider));
    let found = fault_of(TestRunner::new(cases), strategy, |case| {
        play(case, mutant).map(drop)
    });
    found.unwrap_or_else(|| panic!("{mutant:?} was not found"))
}

#[test]
fn an_estimate_off_by_one_is_caught() {
    is_caught(Mutant::EstimateOffByOne, Provider::Push);
    is_caught(Mutant::EstimateOffByOne, Provider::Pull);
}

#[test]
fn a_missing_rollback_is_caught() {
    is_caught(Mutant::NoRollback, Provider::Push);
    is_caught(Mutant::NoRollback, Provider::Pull);
}

#[test]
fn a_buffer_given_back_without_a_fence_is_caught() {
    let fault = is_caught(Mutant::NoFence, Provider::Push);
    assert!(matches!(fault, Fault::GivenBack(_)), "{fault}");
}

#[test]
fn a_turn_left_out_is_caught() {
    is_caught(Mutant::NoTurn, Provider::Push);
}

#[test]
fn credit_given_twice_is_caught() {
    is_caught(Mutant::CreditTwice, Provider::Push);
}
