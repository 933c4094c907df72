//! A peer that says anything at all, in any order, and goes on after it was caught.
//!
//! Checked: no event panics (arithmetic is checked in this profile), no number leaves its bounds,
//! and nothing is sent anywhere that was not lent. What an honest stream holds besides is in
//! `properties.rs`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use proptest::prelude::*;
use sluice_stream::record::{
    Action as Deed, Goes, Head, Leave, Nonce, Out, RECORD_LEN, Reason, Record, Role, Step,
};
use sluice_stream::wire::Control;
use sluice_stream::{
    Ack, Action, Advert, AdvertId, Config, Copied, Credit, Mode, Next, Offer, Phase, Provider,
    Receiver, Recv, Route, Sender, Seq, Transit, Turn,
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

#[derive(Debug, Clone)]
enum ToTransit {
    Fix(u64),
    Refuse,
    Step(Step),
    /// The one that an honest peer would send now.
    NextStep,
    Post(u32),
    Completed(u64),
    Credit(u64),
    Received(u64),
    Read(u64),
    TcpRead(u64),
    /// A record, cut to so many bytes, and whether TCP ends there.
    Head(Record, usize, bool),
    Data(Vec<u8>, bool),
    End,
    Error,
    Drained,
    Lost,
    Leave(Leave),
    GiveUp,
}

fn record() -> impl Strategy<Value = Record> {
    let small = || prop_oneof![8 => 0u64..40, 1 => 0..u64::MAX / 2];
    let goes = prop_oneof![
        (small(), 0u32..40).prop_map(|(from, owed)| Goes::From {
            from: Seq::new(from),
            owed
        }),
        small().prop_map(|end| Goes::Ask {
            end: Seq::new(end),
            lives: end % 2 == 0
        }),
    ];
    (goes, small(), any::<bool>()).prop_map(|(goes, taken, last)| Record {
        goes,
        taken: Seq::new(taken),
        last: last && matches!(goes, Goes::From { .. }),
    })
}

fn to_transit() -> impl Strategy<Value = ToTransit> {
    let step = prop_oneof![
        number().prop_map(Step::First),
        number().prop_map(Step::Second),
        Just(Step::Go),
        Just(Step::Ready),
        Just(Step::Open),
        Just(Step::Cancel),
    ];
    let leave = prop::sample::select(vec![Leave::Stay, Leave::Shut, Leave::Hand, Leave::Close]);
    prop_oneof![
        2 => Just(ToTransit::Fix(0)),
        1 => Just(ToTransit::Refuse),
        2 => step.prop_map(ToTransit::Step),
        16 => Just(ToTransit::NextStep),
        8 => (1u32..20).prop_map(ToTransit::Post),
        3 => number().prop_map(ToTransit::Completed),
        3 => number().prop_map(ToTransit::Credit),
        6 => number().prop_map(ToTransit::Received),
        4 => number().prop_map(ToTransit::Read),
        1 => number().prop_map(ToTransit::TcpRead),
        4 => (record(), 0..=RECORD_LEN, any::<bool>())
            .prop_map(|(record, cut, end)| ToTransit::Head(record, cut, end)),
        4 => record().prop_map(|record| ToTransit::Head(record, RECORD_LEN, false)),
        1 => (prop::collection::vec(any::<u8>(), 0..50), any::<bool>())
            .prop_map(|(bytes, end)| ToTransit::Data(bytes, end)),
        1 => Just(ToTransit::End),
        1 => Just(ToTransit::Error),
        2 => Just(ToTransit::Drained),
        1 => Just(ToTransit::Lost),
        2 => leave.prop_map(ToTransit::Leave),
        1 => Just(ToTransit::GiveUp),
    ]
}

/// What an end was told in events that it took.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    credited: u64,
    received: u64,
    read: u64,
    /// What the peer's record says the link has brought here. It may be ahead of what was
    /// reported.
    brought: u64,
}

impl Counts {
    /// Hands an event to `transit`; `steps` are those of a peer that keeps to the protocol.
    fn apply(
        &mut self,
        event: ToTransit,
        transit: &mut Transit,
        steps: &mut impl Iterator<Item = Step>,
        nonce: &Nonce,
    ) {
        match event {
            ToTransit::Fix(n) => drop(transit.fix(n)),
            ToTransit::Refuse => transit.refuse(),
            ToTransit::Step(step) => drop(transit.on_step(step)),
            ToTransit::NextStep => {
                if let Some(step) = steps.next() {
                    let _ = transit.on_step(step);
                }
                let _ = transit.fix(0);
            }
            ToTransit::Post(len) => drop(transit.on_posted(len)),
            ToTransit::Completed(to) => drop(transit.on_completed(Seq::new(to))),
            ToTransit::Credit(to) => {
                if transit.on_credit(Seq::new(to)).is_ok() && transit.out() == Out::Link {
                    self.credited = to;
                }
            }
            ToTransit::Received(to) => {
                if transit.on_received(Seq::new(to)).is_ok() {
                    self.received = to.max(self.received);
                }
            }
            ToTransit::Read(to) => {
                if transit.on_read(Seq::new(to)).is_ok() {
                    self.read = to;
                }
            }
            ToTransit::TcpRead(len) => drop(transit.on_tcp_read(len)),
            ToTransit::Head(record, cut, end) => {
                let heard = transit.on_head(&record.emit(nonce)[..cut], end);
                if let (Head::Record, Goes::From { from, .. }) = (heard, record.goes) {
                    self.brought = from.value();
                }
            }
            ToTransit::Data(bytes, end) => drop(transit.on_head(&bytes, end)),
            ToTransit::End => drop(transit.on_tcp_end()),
            ToTransit::Error => transit.on_tcp_error(),
            ToTransit::Drained => transit.on_drained(),
            ToTransit::Lost => transit.on_link_lost(),
            ToTransit::Leave(leave) => transit.leave(leave),
            ToTransit::GiveUp => transit.give_up(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(4_000)
    })]

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
    fn a_transit_survives_any_peer(
        first in any::<bool>(),
        events in prop::collection::vec(to_transit(), 0..60),
    ) {
        let nonce = Nonce::new(*b"0123456789abcdef");
        let role = if first { Role::First } else { Role::Second };
        let mut transit = Transit::new(role, nonce, 0);
        let steps = if first {
            [Step::Second(0), Step::Ready]
        } else {
            [Step::First(0), Step::Go]
        };
        let mut steps = steps.into_iter().chain([Step::Open]);
        let mut counts = Counts::default();
        let mut died = None;
        let mut decided = None;
        let mut records = 0;
        for event in events {
            if let ToTransit::Post(len) = event {
                let link = transit.out() == Out::Link;
                prop_assert_eq!(transit.on_posted(len).is_ok(), link);
            } else {
                counts.apply(event, &mut transit, &mut steps, &nonce);
            }
            let Counts {
                credited,
                received,
                read,
                brought,
            } = counts;
            while let Some(action) = transit.poll_action() {
                if let Deed::Write(record) = action {
                    records += 1;
                    prop_assert!(record.taken.value() <= received.max(brought));
                    prop_assert!(record.end() <= transit.posted());
                    prop_assert!(record.end().value() >= credited);
                }
            }
            prop_assert!(records <= 1, "one record in a direction");
            prop_assert!(transit.link_end().value() <= received);
            prop_assert!(transit.kept().value() >= credited);
            prop_assert!(transit.kept() <= transit.posted());
            prop_assert!(read <= received);
            // What is decided stays so, and so does death.
            prop_assert!(died.is_none() || died == transit.is_dead());
            died = transit.is_dead();
            if let (Out::Tcp(from), true) = (transit.out(), records > 0) {
                prop_assert!(decided.is_none_or(|decided| decided == from));
                decided = Some(from);
            }
        }
    }

    #[test]
    fn any_control_message_is_refused_or_possible(
        words in prop::collection::vec(number(), 6),
        kind in 0u64..16,
    ) {
        let mut bytes = [0; sluice_stream::wire::CONTROL_LEN];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(&words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes[0] = kind.to_le_bytes()[0];
        match Control::parse(&bytes) {
            Ok(Control::Advert(advert, _)) => {
                prop_assert!(advert.len > 0 && advert.phase.is_direct());
                prop_assert!(advert.place.checked_add(u64::from(advert.len)).is_some());
            }
            Ok(Control::Turn(turn)) => prop_assert!(!turn.phase.is_direct()),
            Ok(message) => prop_assert_eq!(message.emit(), bytes),
            Err(_) => {}
        }
    }
}

const NONCE: Nonce = Nonce::new(*b"0123456789abcdef");

/// A second end on the link that has posted 10 bytes, of which 4 were credited, and received 6.
fn on_the_link() -> Transit {
    let mut transit = Transit::new(Role::Second, NONCE, 0);
    transit.on_step(Step::First(0)).unwrap();
    transit.fix(0).unwrap();
    transit.on_step(Step::Go).unwrap();
    transit.on_step(Step::Open).unwrap();
    while transit.poll_action().is_some() {}
    transit.on_posted(10).unwrap();
    transit.on_credit(Seq::new(4)).unwrap();
    transit.on_received(Seq::new(6)).unwrap();
    transit
}

fn from(from: u64, owed: u32, taken: u64) -> Record {
    Record {
        goes: Goes::From {
            from: Seq::new(from),
            owed,
        },
        taken: Seq::new(taken),
        last: false,
    }
}

fn ask(end: u64, taken: u64) -> Record {
    Record {
        goes: Goes::Ask {
            end: Seq::new(end),
            lives: false,
        },
        ..from(0, 0, taken)
    }
}

/// What comes of a head: where our TCP goes on, or why the connection is reset.
fn outcome(mut transit: Transit, head: &[u8], ended: bool) -> Result<Out, Reason> {
    let said = transit.on_head(head, ended);
    while let Some(action) = transit.poll_action() {
        if action == Deed::Drain {
            transit.on_drained();
        }
    }
    match transit.is_dead() {
        Some(reason) => Err(reason),
        None => {
            assert_eq!(said, Head::Record);
            Ok(transit.out())
        }
    }
}

#[test]
fn a_lie_in_a_record_is_a_reset_with_its_reason() {
    for (record, expected) in [
        (from(6, 0, 4), Ok(Out::Tcp(Seq::new(4)))),
        (from(6, 0, 10), Ok(Out::Tcp(Seq::new(10)))),
        (ask(6, 7), Ok(Out::Tcp(Seq::new(7)))),
        (ask(60, 7), Ok(Out::Tcp(Seq::new(7)))),
        (from(6, 0, 3), Err(Reason::Taken)),
        (from(6, 0, 11), Err(Reason::Taken)),
        (ask(6, 11), Err(Reason::Taken)),
        (from(5, 0, 4), Err(Reason::From)),
        (from(6, 1, 4), Err(Reason::From)),
        (ask(5, 4), Err(Reason::From)),
        (from(7, 0, 4), Err(Reason::Missing)),
        (from(u64::MAX, 0, 4), Err(Reason::Missing)),
    ] {
        let head = record.emit(&NONCE);
        assert_eq!(outcome(on_the_link(), &head, false), expected, "{record:?}");
    }
    // To an end that has said that it took 6, and was given 2 more since.
    for (record, expected) in [
        (from(6, 2, 10), Ok(Out::Tcp(Seq::new(10)))),
        (from(8, 0, 10), Ok(Out::Tcp(Seq::new(10)))),
        (from(7, 0, 10), Err(Reason::From)),
        (from(6, 1, 10), Err(Reason::From)),
    ] {
        let mut transit = on_the_link();
        transit.on_completed(Seq::new(10)).unwrap();
        transit.leave(Leave::Shut);
        transit.on_received(Seq::new(8)).unwrap();
        let head = record.emit(&NONCE);
        assert_eq!(outcome(transit, &head, false), expected, "{record:?}");
    }
}

#[test]
fn what_is_no_record_is_a_reset_where_one_is_due() {
    let good = from(6, 0, 4).emit(&NONCE);
    let mut kind = good;
    kind[16] = 3;
    let mut bit = good;
    bit[17] = 2;
    let mut nonce = good;
    nonce[15] ^= 1;
    for (head, ended, expected) in [
        (&kind[..], false, Reason::Malformed),
        (&bit[..], false, Reason::Malformed),
        (&nonce[..], false, Reason::Malformed),
        (&b"x"[..], false, Reason::Malformed),
        (&good[..39], true, Reason::Killed),
        (&good[..1], true, Reason::Killed),
        (&[][..], true, Reason::Killed),
    ] {
        assert_eq!(outcome(on_the_link(), head, ended), Err(expected));
    }
    let mut transit = on_the_link();
    assert_eq!(transit.on_head(&good[..39], false), Head::Wait);
    assert!(transit.is_dead().is_none());
}

#[test]
fn a_second_record_is_data() {
    let mut transit = on_the_link();
    let good = from(6, 0, 4).emit(&NONCE);
    assert_eq!(transit.on_head(&good, false), Head::Record);
    transit.on_read(Seq::new(6)).unwrap();
    assert!(!transit.is_at_head());
    assert_eq!(transit.tcp_room(), u64::MAX);
}

#[test]
fn an_n_that_was_passed_or_is_ahead_is_refused() {
    for (n, near) in [(9, false), (10, true), (11, false), (u64::MAX, false)] {
        let mut transit = Transit::new(Role::Second, NONCE, 10);
        transit.on_step(Step::First(n)).unwrap();
        let expected = if near {
            Deed::Fix
        } else {
            Deed::Tell(Step::Cancel)
        };
        assert_eq!(transit.poll_action(), Some(expected), "{n}");
        let mut transit = Transit::new(Role::First, NONCE, 10);
        transit.fix(0).unwrap();
        let _ = transit.poll_action();
        transit.on_step(Step::Second(n)).unwrap();
        let expected = if near { Step::Go } else { Step::Cancel };
        assert_eq!(transit.poll_action(), Some(Deed::Tell(expected)), "{n}");
    }
}
