//! The algorithms of the seed fail as they are; ours do not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use sluice_stream::harness::paper::{Paper, Repairs, Step, replay, schedule};
use sluice_stream::{Config, Mode, Provider};

const ROUNDS: u64 = 1_000;
const SCHEDULES: u64 = 700;

fn terms(provider: Provider) -> Config {
    Config::new(Mode::Dynamic, provider, 4096, 1).unwrap()
}

/// Strict request and response, the receive always posted first: but for one message that came
/// early.
fn one_early_message() -> Vec<Step> {
    let early = [Step::Send(10), Step::DeliverData, Step::Recv(100)];
    let round = [
        Step::Recv(100),
        Step::DeliverAdvert,
        Step::Send(10),
        Step::DeliverData,
    ];
    let rounds = (0..ROUNDS).flat_map(|_| round);
    early.into_iter().chain(rounds).collect()
}

fn direct_by_the_paper(repairs: Repairs) -> u64 {
    let mut paper = Paper::new(repairs);
    for step in one_early_message() {
        paper.step(step);
    }
    paper.direct_count
}

#[test]
fn literally_one_early_message_loses_the_direct_path_for_good() {
    assert_eq!(direct_by_the_paper(Repairs::None), 0);
    assert_eq!(direct_by_the_paper(Repairs::Unadvertised), ROUNDS);
    assert_eq!(direct_by_the_paper(Repairs::All), ROUNDS);
}

#[test]
fn repaired_every_round_goes_direct() {
    for provider in [Provider::Push, Provider::Pull] {
        let flow = replay(terms(provider), &one_early_message()).unwrap();
        assert_eq!(flow.seen().direct_count, ROUNDS, "{provider:?}");
        assert_eq!(flow.sender().direct_bytes(), 10 * ROUNDS, "{provider:?}");
        assert!(!flow.is_demoted());
    }
}

/// Random schedules in which a buffer was written after it had been given back.
fn bad_schedules(repairs: Repairs) -> u64 {
    let bad = |seed: &u64| {
        let mut paper = Paper::new(repairs);
        for step in schedule(*seed, 300) {
            paper.step(step);
        }
        paper.bad_count > 0
    };
    (0..SCHEDULES).filter(bad).count() as u64
}

#[test]
fn literally_revocation_lets_stale_adverts_pass_as_fresh() {
    let literal = bad_schedules(Repairs::None);
    let half = bad_schedules(Repairs::Unadvertised);
    assert!(literal > 0, "{literal} of {SCHEDULES}");
    assert!(
        half > literal,
        "{half} of {SCHEDULES}, and {literal} without that repair"
    );
    assert_eq!(bad_schedules(Repairs::All), 0);
}

#[test]
fn repaired_no_schedule_writes_into_a_buffer_given_back() {
    for provider in [Provider::Push, Provider::Pull] {
        let (mut direct, mut revoked) = (0, 0);
        for seed in 0..SCHEDULES {
            let flow = replay(terms(provider), &schedule(seed, 300))
                .unwrap_or_else(|fault| panic!("seed {seed}, {provider:?}: {fault}"));
            assert!(!flow.is_demoted(), "seed {seed}, {provider:?}");
            direct += flow.seen().direct_count;
            revoked += flow.seen().revoke_count;
        }
        assert!(
            direct > SCHEDULES && revoked > SCHEDULES,
            "{direct}, {revoked}, {provider:?}"
        );
    }
}
