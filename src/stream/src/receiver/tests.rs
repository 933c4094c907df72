use super::*;

fn receiver(provider: Provider) -> Receiver {
    Receiver::new(&Config::new(Mode::Dynamic, provider, 100, 10).unwrap())
}

const RECV: Recv = Recv {
    place: 0,
    key: 0,
    len: 50,
    low: 1,
    waitall: false,
    peek: false,
    wait: true,
};

fn offer(number: u64, seq: u64, len: u32) -> Offer {
    Offer {
        number,
        seq: Seq::new(seq),
        len,
        advert: None,
    }
}

fn turn(phase: u64, seq: u64) -> Turn {
    Turn {
        phase: Phase::new(phase),
        seq: Seq::new(seq),
    }
}

fn lend(rx: &mut Receiver) -> Advert {
    match rx.on_recv(&RECV) {
        Next::Advertise(advert) => advert,
        next => panic!("{next:?}"),
    }
}

#[test]
fn every_lie_of_a_writer_has_its_name() {
    let mut rx = receiver(Provider::Push);
    assert_eq!(rx.on_direct(1, 5), Err(PeerFault::DirectUnasked.into()));
    for lie in [0, 101, u32::MAX] {
        assert_eq!(rx.on_ring(lie), Err(PeerFault::RingOverrun.into()));
    }
    assert_eq!(
        rx.on_offer(offer(1, 0, 5)),
        Err(PeerFault::WrongProvider.into())
    );
    let advert = lend(&mut rx);
    let tag = advert.id.tag();
    for lie in [0, 51] {
        assert_eq!(rx.on_direct(tag, lie), Err(PeerFault::DirectRange.into()));
    }
    assert_eq!(
        rx.on_direct(tag + 1, 5),
        Err(PeerFault::DirectUnasked.into())
    );
    assert_eq!(rx.on_turn(turn(1, 51)), Err(PeerFault::TurnSeq.into()));
    assert_eq!(rx.on_turn(turn(3, 5)), Err(PeerFault::TurnPhase.into()));
    assert!(matches!(rx.on_direct(tag, 5), Ok(Landing::Done(_))));
    assert_eq!(rx.on_ring(5), Err(PeerFault::TurnMissing.into()));
    assert_eq!(rx.on_turn(turn(1, 4)), Err(PeerFault::TurnSeq.into()));
    assert_eq!(rx.on_turn(turn(1, 5)), Ok(Arrival::Held));
    assert_eq!(rx.on_turn(turn(1, 5)), Err(PeerFault::TurnPhase.into()));
    assert_eq!(rx.on_ring(5), Ok(Arrival::Ready));
    assert_eq!(rx.on_copied(6), Err(Bug::Copied.into()));
}

#[test]
fn an_offer_that_cannot_be_is_a_lie() {
    let mut rx = receiver(Provider::Pull);
    let unasked = Offer {
        advert: Some(AdvertId::new(1)),
        ..offer(1, 0, 5)
    };
    for lie in [offer(1, 0, 0), offer(1, 1, 5), unasked] {
        assert_eq!(rx.on_offer(lie), Err(PeerFault::Offer.into()), "{lie:?}");
    }
    assert_eq!(rx.on_taken(1), Err(Bug::NoOffer.into()));
    assert_eq!(rx.on_turn(turn(1, 0)), Err(PeerFault::WrongProvider.into()));
    assert_eq!(rx.on_direct(1, 5), Err(PeerFault::WrongProvider.into()));
}

#[test]
fn a_direct_transfer_after_the_turn_that_ends_it_is_a_lie() {
    let mut rx = receiver(Provider::Push);
    let advert = lend(&mut rx);
    assert_eq!(rx.on_turn(turn(1, 0)), Ok(Arrival::Held));
    assert_eq!(
        rx.on_direct(advert.id.tag(), 5),
        Err(PeerFault::DirectUnasked.into())
    );
}

#[test]
fn ring_bytes_void_an_offer_at_their_position() {
    for lent in [false, true] {
        let mut rx = receiver(Provider::Pull);
        if lent {
            lend(&mut rx);
        }
        assert_eq!(rx.on_offer(offer(1, 0, 20)), Ok(Arrival::Ready));
        assert_eq!(rx.on_ring(5), Ok(Arrival::Ready));
        assert_eq!(rx.on_recv(&RECV), Next::Copy(5));
        assert_eq!(rx.on_copied(5), Ok(Copied::Kept));
        assert!(matches!(rx.on_recv(&RECV), Next::Advertise(_)));
    }
}

#[test]
fn an_offer_seen_after_its_bytes_went_to_the_ring_is_passed_over() {
    let mut rx = receiver(Provider::Pull);
    assert_eq!(rx.on_ring(20), Ok(Arrival::Ready));
    assert_eq!(rx.on_offer(offer(1, 0, 20)), Ok(Arrival::Ready));
    assert_eq!(rx.on_copied(20), Ok(Copied::Kept));
    assert!(matches!(rx.on_recv(&RECV), Next::Advertise(_)));
}

#[test]
fn late_news_of_a_withdrawal_does_not_hide_the_next_offer() {
    let mut rx = receiver(Provider::Pull);
    assert_eq!(rx.on_offer(offer(2, 0, 20)), Ok(Arrival::Ready));
    rx.on_withdrawn(1);
    assert_eq!(rx.on_recv(&RECV), Next::Take(offer(2, 0, 20), 20));
    rx.on_withdrawn(2);
    assert!(matches!(rx.on_recv(&RECV), Next::Advertise(_)));
}

#[test]
fn nothing_is_lent_while_direct_bytes_are_missing() {
    let mut rx = receiver(Provider::Push);
    lend(&mut rx);
    assert_eq!(rx.on_turn(turn(1, 20)), Ok(Arrival::Held));
    assert!(rx.on_revoke().is_some());
    assert_eq!(rx.on_recv(&RECV), Next::Wait);
    assert_eq!(rx.on_ring(5), Ok(Arrival::Held));
    assert_eq!((rx.on_recv(&RECV), rx.readable()), (Next::Wait, 0));
}

#[test]
fn what_was_seized_stays() {
    let mut rx = receiver(Provider::Push);
    assert_eq!(rx.on_ring(20), Ok(Arrival::Ready));
    assert_eq!(rx.on_copied(5), Ok(Copied::Kept));
    assert_eq!(rx.seize(), Seq::new(5));
    assert_eq!(rx.on_copied(5), Ok(Copied::Void));
    assert_eq!(rx.on_ring(5), Ok(Arrival::Void));
    assert_eq!(rx.on_turn(turn(9, 9)), Ok(Arrival::Void));
    assert_eq!(rx.on_direct(1, 5), Ok(Landing::Void));
    assert_eq!(
        (rx.on_recv(&RECV), rx.seize()),
        (Next::Demoted, Seq::new(5))
    );
}
