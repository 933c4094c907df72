//! A peer that says anything at all, in any order, and goes on after it was caught.
//!
//! Checked: no event panics (arithmetic is checked in this profile), no number leaves its bounds, and
//! nothing is sent anywhere that was not lent. What an honest stream holds besides is in
//! `properties.rs`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use proptest::prelude::*;
use sluice_stream::wire::Control;
use sluice_stream::{
    Ack, Action, Advert, AdvertId, Config, Copied, Credit, Mode, Next, Offer, Phase, Provider,
    Receiver, Recv, Route, Sender, Seq, Turn,
};

const RING: u32 = 100;

/// Small numbers meet each other; large ones wrap.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..8, 4 => 0u64..300, 1 => (u64::MAX - 300)..=u64::MAX, 1 => any::<u64>()]
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0u32..120, 1 => any::<u32>()]
}

fn advert() -> impl Strategy<Value = Advert> {
    (
        number(),
        number(),
        length(),
        number(),
        number(),
        any::<bool>(),
    )
        .prop_map(|(id, place, len, seq, phase, waitall)| Advert {
            id: AdvertId::new(id),
            place,
            key: 0,
            len,
            seq: Seq::new(seq),
            phase: Phase::new(phase),
            waitall,
        })
}

fn terms() -> impl Strategy<Value = Config> {
    let modes = prop::sample::select(vec![Mode::Dynamic, Mode::Direct, Mode::Indirect]);
    let providers = prop::sample::select(vec![Provider::Push, Provider::Pull]);
    (modes, providers).prop_map(|(mode, provider)| Config::new(mode, provider, RING, 10).unwrap())
}

#[derive(Debug, Clone)]
enum ToSender {
    Send(u32, Route),
    Advert(Advert),
    /// The next by number, so that lies about the rest get past the first check.
    NextAdvert(Advert),
    Revoke(u64),
    Ack(u32, u64),
    Taken(u32),
    Withdrawn,
    Seal,
    Seized(u64),
}

fn to_sender() -> impl Strategy<Value = ToSender> {
    let routes = prop::sample::select(vec![Route::Ring, Route::Advert, Route::Offer]);
    prop_oneof![
        4 => (length(), routes).prop_map(|(len, route)| ToSender::Send(len, route)),
        1 => advert().prop_map(ToSender::Advert),
        4 => advert().prop_map(ToSender::NextAdvert),
        1 => number().prop_map(ToSender::Revoke),
        2 => (length(), number()).prop_map(|(credit, seq)| ToSender::Ack(credit, seq)),
        2 => length().prop_map(ToSender::Taken),
        1 => Just(ToSender::Withdrawn),
        1 => Just(ToSender::Seal),
        1 => number().prop_map(ToSender::Seized),
    ]
}

#[derive(Debug, Clone)]
enum ToReceiver {
    Recv(Recv),
    Copied(u32),
    Revoke,
    Ring(u32),
    Turn(u64, u64),
    Direct(u8, u32),
    Offer(Offer),
    Taken(u32),
    Withdrawn(u64),
    Blocked,
    Seize,
}

fn recv() -> impl Strategy<Value = Recv> {
    (
        length(),
        0u32..200,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(len, low, waitall, peek, wait)| Recv {
            place: 0,
            key: 0,
            len,
            low,
            waitall,
            peek,
            wait,
        })
}

fn offer() -> impl Strategy<Value = Offer> {
    (number(), number(), length(), prop::option::of(number())).prop_map(
        |(number, seq, len, advert)| Offer {
            number,
            seq: Seq::new(seq),
            len,
            advert: advert.map(AdvertId::new),
        },
    )
}

fn to_receiver() -> impl Strategy<Value = ToReceiver> {
    prop_oneof![
        8 => recv().prop_map(ToReceiver::Recv),
        4 => length().prop_map(ToReceiver::Copied),
        2 => Just(ToReceiver::Revoke),
        4 => length().prop_map(ToReceiver::Ring),
        4 => (number(), number()).prop_map(|(phase, seq)| ToReceiver::Turn(phase, seq)),
        4 => (0u8..8, length()).prop_map(|(tag, len)| ToReceiver::Direct(tag, len)),
        4 => offer().prop_map(ToReceiver::Offer),
        4 => length().prop_map(ToReceiver::Taken),
        2 => number().prop_map(ToReceiver::Withdrawn),
        2 => Just(ToReceiver::Blocked),
        1 => Just(ToReceiver::Seize),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) })]

    #[test]
    fn a_sender_survives_any_reader(
        config in terms(),
        events in prop::collection::vec(to_sender(), 0..60),
    ) {
        let mut sender = Sender::new(&config);
        let mut last = AdvertId::NONE;
        let mut lent = None;
        for event in events {
            let phase = sender.phase();
            match event {
                ToSender::Send(len, route) => match sender.on_send(len, route) {
                    Action::Ring { len: part, .. } => prop_assert!(part <= len && part <= RING),
                    Action::Direct { advert, len: part } => {
                        let Some(Advert { place, len: most, .. }) = lent else {
                            return Err(TestCaseError::fail("nothing was lent"));
                        };
                        let at = advert.place.wrapping_sub(place);
                        prop_assert!(part <= len && at + u64::from(part) <= u64::from(most));
                    }
                    Action::Offer(offer) => prop_assert!(offer.len <= len && offer.len > 0),
                    Action::Blocked { .. } | Action::Demoted => {}
                },
                ToSender::Advert(advert) => {
                    if sender.on_advert(advert).is_ok() && !sender.is_sealed() {
                        last = advert.id;
                        lent = Some(advert);
                    }
                }
                ToSender::NextAdvert(advert) => {
                    let advert = Advert { id: last.next(), ..advert };
                    if sender.on_advert(advert).is_ok() && !sender.is_sealed() {
                        last = advert.id;
                        lent = Some(advert);
                    }
                }
                ToSender::Revoke(id) => drop(sender.on_revoke(AdvertId::new(id))),
                ToSender::Ack(credit, seq) => {
                    let ack = Ack { credit: Credit::new(credit), seq: Seq::new(seq) };
                    let _ = sender.on_ack(ack);
                }
                ToSender::Taken(len) => drop(sender.on_taken(len)),
                ToSender::Withdrawn => drop(sender.on_withdrawn()),
                ToSender::Seal => sender.seal(),
                ToSender::Seized(at) => {
                    if let Ok(resend) = sender.on_seized(Seq::new(at)) {
                        prop_assert!(resend.from <= resend.to && resend.to == sender.seq());
                        prop_assert!(resend.from >= sender.acked());
                    }
                }
            }
            prop_assert!(sender.free() <= RING);
            prop_assert!(sender.acked() <= sender.seq());
            prop_assert!(sender.phase() >= phase);
        }
    }

    #[test]
    fn a_receiver_survives_any_writer(
        config in terms(),
        events in prop::collection::vec(to_receiver(), 0..60),
    ) {
        let mut receiver = Receiver::new(&config);
        let mut credit = 0;
        let mut copied = 0;
        for event in events {
            let (phase, seq) = (receiver.phase(), receiver.seq());
            match event {
                ToReceiver::Recv(recv) => match receiver.on_recv(&recv) {
                    Next::Copy(len) | Next::Peek(len) => {
                        prop_assert!(len <= recv.len && len <= receiver.readable());
                    }
                    Next::Take(offer, len) | Next::PeekOffer(offer, len) => {
                        prop_assert!(len <= recv.len && len <= offer.len);
                    }
                    Next::Advertise(advert) => prop_assert_eq!(advert.seq, receiver.seq()),
                    Next::Withdraw(_) | Next::Wait | Next::Demoted => {}
                },
                ToReceiver::Copied(len) => match receiver.on_copied(len) {
                    Ok(Copied::Kept) => copied += u64::from(len),
                    Ok(Copied::Ack(ack)) => {
                        copied += u64::from(len);
                        credit += u64::from(ack.credit.value());
                    }
                    Ok(Copied::Void) | Err(_) => {}
                },
                ToReceiver::Revoke => drop(receiver.on_revoke()),
                ToReceiver::Ring(len) => drop(receiver.on_ring(len)),
                ToReceiver::Turn(phase, seq) => {
                    let turn = Turn { phase: Phase::new(phase), seq: Seq::new(seq) };
                    let _ = receiver.on_turn(turn);
                }
                ToReceiver::Direct(tag, len) => drop(receiver.on_direct(tag, len)),
                ToReceiver::Offer(offer) => drop(receiver.on_offer(offer)),
                ToReceiver::Taken(len) => drop(receiver.on_taken(len)),
                ToReceiver::Withdrawn(number) => receiver.on_withdrawn(number),
                ToReceiver::Blocked => {
                    let ack = receiver.on_blocked();
                    credit += ack.map_or(0, |ack| u64::from(ack.credit.value()));
                }
                ToReceiver::Seize => {
                    let end = receiver.seize();
                    prop_assert_eq!(end, seq);
                }
            }
            prop_assert!(receiver.readable() <= RING);
            prop_assert!(receiver.seq() >= seq && receiver.phase() >= phase);
            prop_assert!(!receiver.is_seized() || receiver.lent().is_none());
        }
        // Landings and takes return credit too, so this is a bound from one side.
        prop_assert!(credit <= copied);
    }

    #[test]
    fn any_control_message_is_refused_or_possible(words in prop::collection::vec(number(), 6), kind in 0u64..7) {
        let mut bytes = [0; sluice_stream::wire::CONTROL_LEN];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(&words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes[0] = kind.to_le_bytes()[0];
        match Control::parse(&bytes) {
            Ok(Control::Advert(advert)) => {
                prop_assert!(advert.len > 0 && advert.phase.is_direct());
                prop_assert!(advert.place.checked_add(u64::from(advert.len)).is_some());
            }
            Ok(Control::Turn(turn)) => prop_assert!(!turn.phase.is_direct()),
            Ok(message) => prop_assert_eq!(message.emit(), bytes),
            Err(_) => {}
        }
    }
}
