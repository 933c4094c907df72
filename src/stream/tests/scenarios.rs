//! One story each, as lines of send and recv.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use sluice_stream::harness::{Class, Fault, Flow, Mutant, Pair, Want};
use sluice_stream::{Config, Mode, Provider, Route, Seq};

const RING: u32 = 64;

fn terms(mode: Mode, provider: Provider) -> Config {
    Config::new(mode, provider, RING, 16).unwrap()
}

fn push() -> Flow {
    Flow::new(terms(Mode::Dynamic, Provider::Push))
}

fn pull() -> Flow {
    Flow::new(terms(Mode::Dynamic, Provider::Pull))
}

#[test]
fn a_small_send_goes_by_the_ring_though_a_buffer_waits() {
    for mut flow in [push(), pull()] {
        flow.recv(Want::some(100));
        flow.run(1).unwrap();
        assert!(flow.receiver().lent().is_some());
        flow.send(15, Route::Advert);
        flow.run(1).unwrap();
        assert_eq!((flow.read(), flow.seen().ring_bytes), (15, 15));
    }
}

#[test]
fn a_large_send_meets_a_waiting_recv() {
    for mut flow in [push(), pull()] {
        flow.recv(Want::some(100));
        flow.run(1).unwrap();
        flow.send(1000, Route::Advert);
        flow.run(1).unwrap();
        assert_eq!((flow.read(), flow.seen().direct_bytes), (100, 100));
        flow.drain().unwrap();
        assert_eq!(flow.read(), 1000);
    }
}

#[test]
fn waitall_takes_several_direct_transfers_into_one_buffer() {
    for mut flow in [push(), pull()] {
        flow.recv(Want::all(96));
        for _ in 0..3 {
            flow.run(1).unwrap();
            assert!(flow.is_reading());
            flow.send(32, Route::Advert);
            flow.run(1).unwrap();
        }
        assert!(!flow.is_reading());
        assert_eq!((flow.seen().direct_count, flow.seen().advert_count), (3, 1));
    }
}

#[test]
fn waitall_longer_than_the_ring_gets_it_all_by_the_ring() {
    for mut flow in [push(), pull()] {
        flow.recv(Want::all(20 * RING));
        for _ in 0..200 {
            flow.send(15, Route::Ring);
        }
        flow.run(1).unwrap();
        assert_eq!(
            (flow.read(), flow.seen().direct_bytes),
            (u64::from(20 * RING), 0)
        );
        flow.drain().unwrap();
    }
}

#[test]
fn ring_bytes_that_overtake_direct_ones_are_held() {
    let mut flow = push();
    flow.recv(Want::all(40));
    flow.run(1).unwrap();
    flow.set_delay(Class::Direct, 50);
    flow.send(30, Route::Advert);
    flow.send(10, Route::Ring);
    flow.run(49).unwrap();
    assert_eq!(flow.receiver().readable(), 0);
    assert!(flow.is_reading());
    flow.run(5).unwrap();
    assert_eq!((flow.read(), flow.seen().direct_bytes), (40, 30));
}

#[test]
fn a_timeout_takes_the_buffer_back_without_asking() {
    for mut flow in [push(), pull()] {
        for class in Class::ALL {
            flow.set_delay(class, 1_000_000);
        }
        flow.recv(Want {
            patience: Some(10),
            ..Want::some(100)
        });
        flow.run(11).unwrap();
        assert!(!flow.is_reading());
        assert_eq!(flow.seen().revoke_count, 1);
    }
}

#[test]
fn a_revocation_that_overtakes_its_advert_voids_it() {
    for mut flow in [push(), pull()] {
        flow.recv(Want::some(100));
        flow.step_reader().unwrap();
        flow.give_up().unwrap();
        assert!(flow.deliver(Class::Revoke).unwrap());
        assert!(flow.deliver(Class::Advert).unwrap());
        flow.send(50, Route::Advert);
        flow.step_writer().unwrap();
        assert_eq!(flow.seen().ring_bytes, 50);
        flow.drain().unwrap();
    }
}

#[test]
fn a_direct_write_that_meets_a_revoked_buffer_ends_the_link_and_loses_nothing() {
    let mut flow = push();
    flow.recv(Want::some(100));
    flow.run(1).unwrap();
    flow.send(50, Route::Advert);
    flow.step_writer().unwrap();
    flow.give_up().unwrap();
    flow.recv(Want::all(50));
    flow.drain().unwrap();
    let seen = flow.seen();
    assert_eq!(
        (seen.refused_count, seen.resent_bytes, flow.read()),
        (1, 50, 50)
    );
}

#[test]
fn a_turn_beyond_a_revoked_buffer_ends_the_link_and_loses_nothing() {
    let mut flow = push();
    flow.recv(Want::some(100));
    flow.run(1).unwrap();
    flow.send(50, Route::Advert);
    flow.send(5, Route::Ring);
    while flow.step_writer().unwrap() {}
    flow.give_up().unwrap();
    assert!(flow.deliver(Class::Ring).unwrap());
    assert!(flow.is_demoted());
    flow.drain().unwrap();
    assert_eq!((flow.seen().resent_bytes, flow.read()), (55, 55));
}

#[test]
fn peek_low_water_and_non_blocking_never_lend() {
    let wants = [
        Want {
            peek: true,
            ..Want::some(100)
        },
        Want {
            low: 2,
            ..Want::some(100)
        },
        Want {
            low: 2,
            ..Want::all(100)
        },
        Want {
            patience: Some(0),
            ..Want::some(100)
        },
    ];
    for want in wants {
        for mut flow in [push(), pull()] {
            flow.recv(want);
            flow.run(3).unwrap();
            assert_eq!(flow.seen().advert_count, 0, "{want:?}");
            flow.send(40, Route::Offer);
            flow.drain().unwrap();
        }
    }
}

#[test]
fn a_peek_sees_bytes_that_are_on_offer_and_leaves_them() {
    let mut flow = pull();
    flow.send(40, Route::Offer);
    flow.run(1).unwrap();
    assert!(flow.sender().is_offering());
    flow.recv(Want {
        peek: true,
        ..Want::some(100)
    });
    flow.run(1).unwrap();
    assert!(!flow.is_reading() && flow.sender().is_offering());
    assert_eq!(flow.read(), 0);
    flow.recv(Want::some(100));
    flow.run(1).unwrap();
    assert_eq!((flow.read(), flow.seen().offer_count), (40, 1));
}

#[test]
fn a_low_water_mark_beyond_an_offer_sends_it_to_the_ring() {
    let mut flow = pull();
    flow.send(40, Route::Offer);
    flow.send(20, Route::Offer);
    flow.run(1).unwrap();
    flow.recv(Want {
        low: 60,
        ..Want::some(60)
    });
    flow.run(1).unwrap();
    assert_eq!(flow.read(), 60);
}

#[test]
fn credit_comes_back_by_half_rings() {
    let mut flow = push();
    for _ in 0..1_000 {
        flow.send(8, Route::Ring);
        flow.recv(Want::some(8));
        flow.run(1).unwrap();
    }
    assert_eq!(flow.read(), 8_000);
    assert_eq!(flow.seen().ack_count, 8_000 / u64::from(RING / 2));
}

#[test]
fn a_reader_slower_than_its_writer_gives_credit_by_half_rings() {
    let mut flow = push();
    flow.send(10 * RING, Route::Ring);
    for _ in 0..5 * RING {
        flow.recv(Want::some(1));
        flow.run(1).unwrap();
    }
    assert_eq!(
        (flow.read(), flow.seen().ack_count),
        (u64::from(5 * RING), 10)
    );
    flow.drain().unwrap();
}

#[test]
fn a_reader_that_wants_more_than_there_is_gives_credit_for_every_byte() {
    for want in [
        Want {
            peek: true,
            ..Want::all(RING)
        },
        Want {
            low: RING,
            ..Want::some(RING)
        },
    ] {
        let mut flow = push();
        flow.send(RING + 1, Route::Ring);
        flow.run(1).unwrap();
        assert_eq!(flow.written(), u64::from(RING));
        flow.recv(Want::some(1));
        flow.run(1).unwrap();
        assert_eq!(
            (flow.seen().ack_count, flow.written()),
            (0, u64::from(RING))
        );
        flow.recv(want);
        flow.run(1).unwrap();
        assert_eq!(flow.written(), u64::from(RING) + 1);
        flow.drain().unwrap();
    }
}

#[test]
fn a_blocked_writer_that_had_seen_the_old_credit_is_woken_by_the_new() {
    let mut flow = pull();
    flow.send(1, Route::Ring);
    flow.send(RING + 1, Route::Ring);
    flow.step_writer().unwrap();
    flow.deliver(Class::Ring).unwrap();
    flow.recv(Want::some(1));
    while flow.step_reader().unwrap() {}
    // It uses the byte just freed, without having been told, and says that it wants more.
    flow.look().unwrap();
    while flow.step_writer().unwrap() {}
    assert_eq!(flow.written(), u64::from(RING) + 1);
    flow.deliver(Class::Blocked).unwrap();
    flow.deliver(Class::Ack).unwrap();
    flow.deliver(Class::Ring).unwrap();
    flow.recv(Want::some(1));
    while flow.step_reader().unwrap() {}
    // A peek for all of the ring: only the writer's last byte can satisfy it.
    flow.recv(Want {
        peek: true,
        ..Want::all(RING)
    });
    flow.drain().unwrap();
}

#[test]
fn direct_only_waits_for_a_buffer_and_copies_nothing() {
    for provider in [Provider::Push, Provider::Pull] {
        let mut flow = Flow::new(terms(Mode::Direct, provider));
        flow.send(1000, Route::Advert);
        flow.run(10).unwrap();
        assert_eq!(flow.written(), 0);
        flow.drain().unwrap();
        assert_eq!(
            (flow.seen().direct_bytes, flow.seen().ring_bytes),
            (1000, 0)
        );
        assert!(!flow.is_demoted());
    }
}

#[test]
fn direct_only_demotes_for_a_reader_that_never_lends() {
    let mut flow = Flow::new(terms(Mode::Direct, Provider::Push));
    flow.send(10, Route::Advert);
    flow.recv(Want {
        low: 5,
        ..Want::some(10)
    });
    flow.drain().unwrap();
    assert_eq!(
        (
            flow.seen().hungry_count,
            flow.seen().resent_bytes,
            flow.read()
        ),
        (1, 0, 10)
    );
}

#[test]
fn indirect_only_never_lends() {
    for provider in [Provider::Push, Provider::Pull] {
        let mut flow = Flow::new(terms(Mode::Indirect, provider));
        flow.recv(Want::some(100));
        flow.run(1).unwrap();
        flow.send(1000, Route::Offer);
        flow.drain().unwrap();
        let seen = flow.seen();
        assert_eq!(
            (seen.advert_count, seen.direct_bytes, seen.ring_bytes),
            (0, 0, 1000)
        );
    }
}

#[test]
fn request_and_response_go_direct_both_ways() {
    for provider in [Provider::Push, Provider::Pull] {
        let mut pair = Pair::new(terms(Mode::Dynamic, provider));
        for class in Class::ALL {
            pair.there.set_delay(class, 3);
            pair.back.set_delay(class, 5);
        }
        for _ in 0..100 {
            pair.there.recv(Want::some(64));
            pair.back.recv(Want::some(64));
            pair.run(20).unwrap();
            pair.there.send(64, Route::Advert);
            pair.run(20).unwrap();
            assert!(!pair.there.is_reading());
            pair.back.send(64, Route::Advert);
            pair.run(20).unwrap();
            assert!(!pair.back.is_reading());
        }
        assert_eq!(pair.there.seen().direct_count, 100);
        assert_eq!(pair.back.seen().direct_count, 100);
    }
}

#[test]
fn demotion_divides_the_stream_once_for_all() {
    for mut flow in [push(), pull()] {
        flow.send(40, Route::Ring);
        flow.recv(Want::some(15));
        flow.run(1).unwrap();
        flow.demote().unwrap();
        flow.demote().unwrap();
        flow.send(100, Route::Ring);
        flow.drain().unwrap();
        assert_eq!((flow.seen().resent_bytes, flow.read()), (25, 140));
        assert_eq!(flow.receiver().seq(), Seq::new(15));
        assert_eq!(flow.sender().seq(), Seq::new(40));
    }
}

#[test]
fn a_take_that_the_writer_has_not_seen_survives_demotion() {
    let mut flow = pull();
    flow.set_delay(Class::Ack, 1_000);
    flow.send(40, Route::Offer);
    flow.recv(Want::some(30));
    flow.run(5).unwrap();
    assert_eq!((flow.read(), flow.written()), (30, 0));
    flow.demote().unwrap();
    flow.drain().unwrap();
    assert_eq!(
        (flow.read(), flow.written(), flow.seen().resent_bytes),
        (40, 40, 0)
    );
}

#[test]
fn a_copy_that_lost_its_race_is_thrown_away() {
    for mut flow in [push(), pull()] {
        flow.send(40, Route::Ring);
        flow.run(1).unwrap();
        flow.recv(Want::some(40));
        flow.step_reader().unwrap();
        flow.demote().unwrap();
        flow.drain().unwrap();
        assert_eq!((flow.read(), flow.seen().resent_bytes), (40, 40));
    }
}

#[test]
fn a_lying_reader_is_found_by_the_writer() {
    let config = terms(Mode::Dynamic, Provider::Push);
    let mut flow = Flow::with(config, config, Mutant::EstimateOffByOne);
    flow.recv(Want::some(100));
    assert!(matches!(flow.run(1), Err(Fault::Refused(_))));
}
