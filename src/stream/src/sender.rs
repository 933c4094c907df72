//! The writing half of one direction.
//!
//! Guarantees: every byte it lets go has exactly one position; bytes go straight to a buffer only
//! while that buffer is the next thing the reader will read into; the ring is never over-filled;
//! and once sealed, the end of what went over the link never moves, but for an offer that the
//! reader had already taken. Refuses to know: where the bytes come from and how they travel, how
//! long anything took, and which thread calls (the caller's tx lock makes it one at a time).
//!
//! # Freshness
//!
//! The paper's sender (seed algorithm 1) keeps a queue of ADVERTs and takes one for stale if it is
//! of an earlier phase or position than its own. Here the reader has at most one ADVERT outstanding
//! and makes it only when it has read all it knows of, so the position in an ADVERT is exact, never
//! an estimate. Then there is one test: **an ADVERT is fresh while its position equals ours**, for
//! then every byte ever sent has been read. A lower one is stale, a higher one a lie, and a queue
//! is not needed: the newest ADVERT is the only one that can be alive.
//!
//! # Two kinds of provider
//!
//! A *push* provider writes into the advertised buffer, so a direct transfer counts as sent when it
//! is ordered ([`Action::Direct`]). A *pull* provider only offers its own buffer
//! ([`Action::Offer`]): nothing counts as sent until the reader has taken it, and either end may
//! withdraw it before.

use crate::action::{Action, Offer, Resend, Route, Wait};
use crate::config::{Config, Mode, Provider};
use crate::error::{Bug, Error, PeerFault};
use crate::wire::{Ack, Advert, AdvertId, Phase, Seq, Turn};

/// ```text
///              fresh ADVERT                  push: direct, used up
///   ┌──────┐ ───────────────► ┌───────┐ ───────────────────────────┐
///   │ Ring │                  │ Fresh │ ◄─┐ direct, waitall: rest  │
///   └──────┘ ◄─────────────── └───────┘ ──┘                        │
///    ▲ │ ▲    ring bytes, REVOKE  │ ▲                              │
///    │ │ └────────────────────────│─│──────────────────────────────┘
///    │ │ offer without ADVERT     │ │ withdrawn, or taken with waitall: rest,
///    │ ▼          pull: offer     ▼ │ or a fresh ADVERT came meanwhile
///    │ ┌──────────────────────────────┐
///    └─│           Offered            │       seal, from anywhere: Sealed
/// taken└──────────────────────────────┘
/// ```
#[derive(Debug, Clone, Copy)]
enum State {
    /// No fresh ADVERT: bytes go into the ring.
    Ring,
    /// The reader has read everything and lends this buffer.
    Fresh(Advert),
    /// Pull: a source is on offer; nothing else is sent until it is resolved.
    Offered(Pending),
    /// Demoted. `offered` bounds how far the reader may turn out to be beyond the sent bytes.
    Sealed {
        offered: u32,
        resend: Option<Resend>,
    },
}

/// An offer that is up.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// Bytes on offer: bounds what can be taken.
    len: u32,
    /// The ADVERT it answers.
    against: Option<Advert>,
    /// The newest ADVERT that came meanwhile. Judged when the offer is resolved: until then it may
    /// be ahead of us, made after a take that we have not seen.
    next: Option<Advert>,
}

/// The writing half of one direction. See the [module](self).
#[derive(Debug, Clone)]
pub struct Sender {
    state: State,
    /// Bytes sent by either way (S_s of the paper). Bounds what the reader can have received.
    seq: Seq,
    /// Ring bytes that may be filled without hearing from the reader (b_s). At most `ring_len`.
    free: u32,
    /// The phase of the last transfer, or a later one known to be due (P_s).
    phase: Phase,
    /// The size of the ring: bounds `free`. Zero in [`Mode::Direct`], which never uses it.
    ring_len: u32,
    /// A send shorter than this is worth no ADVERT and no offer.
    direct_min: u32,
    mode: Mode,
    provider: Provider,
    /// Whether the reader knows that we wait for credit.
    told: bool,
    /// Bytes that the reader said it has, for good. Below `seq` by what a demotion may re-send.
    acked: Seq,
    /// The newest ADVERT that came: the next has the next number.
    last_id: AdvertId,
    /// Its phase: the next one's is this or the next direct one.
    last_phase: Phase,
    /// Every ADVERT up to this one is void, including those that have yet to come.
    revoked: AdvertId,
    /// Bytes of `seq` that went straight to the reader.
    direct_bytes: u64,
    /// Offers ever made: the number of the last one.
    offer_count: u64,
}

impl Sender {
    /// The writing half of a stream that begins.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let ring_len = if config.mode == Mode::Direct {
            0
        } else {
            config.ring_len()
        };
        Self {
            state: State::Ring,
            seq: Seq::START,
            free: ring_len,
            phase: Phase::START,
            ring_len,
            direct_min: config.direct_min(),
            mode: config.mode,
            provider: config.provider,
            told: false,
            acked: Seq::START,
            last_id: AdvertId::NONE,
            last_phase: Phase::START,
            revoked: AdvertId::NONE,
            direct_bytes: 0,
            offer_count: 0,
        }
    }

    /// The program has `len` bytes to send, and can wait as `route` says.
    #[inline]
    pub fn on_send(&mut self, len: u32, route: Route) -> Action {
        // One more of many small sends: no ADVERT, no turn, room for all of it. A send of nothing
        // wraps round and is not small.
        if matches!(self.state, State::Ring)
            && !self.phase.is_direct()
            && len.wrapping_sub(1) < self.free
            && (route != Route::Offer || len < self.direct_min)
        {
            self.free -= len;
            self.seq = self.seq.plus(len);
            return Action::Ring { len, turn: None };
        }
        self.choose(len, route)
    }

    /// Everything but the common case of [`on_send`](Self::on_send).
    #[cold]
    fn choose(&mut self, len: u32, route: Route) -> Action {
        let large = len >= self.direct_min;
        match self.state {
            State::Sealed { .. } => Action::Demoted,
            State::Offered(_) => Action::Blocked {
                on: Wait::Offer,
                tell: false,
            },
            _ if len == 0 => Action::Ring { len, turn: None },
            // A small send goes direct too where the ring cannot take it: the reader waits.
            State::Fresh(advert) if route >= Route::Advert && (large || self.free == 0) => {
                self.direct(advert, len)
            }
            State::Ring
                if route == Route::Offer
                    && large
                    && self.provider == Provider::Pull
                    && self.mode == Mode::Dynamic =>
            {
                self.offer(len, None)
            }
            State::Ring | State::Fresh(_) => self.ring(len),
        }
    }

    /// Pull: as [`on_send`](Self::on_send), for a provider that fills the ring by itself and
    /// reports it by [`on_passed`](Self::on_passed). `None`: the ring; nothing is counted here.
    pub fn on_offerable(&mut self, len: u32, route: Route) -> Option<Action> {
        let before = self.clone();
        match self.on_send(len, route) {
            Action::Ring { .. }
            | Action::Blocked {
                on: Wait::Credit, ..
            } => {
                *self = before;
                None
            }
            action => Some(action),
        }
    }

    /// Pull: ring bytes up to `seq` have been sent without a call, and the reader has copied out
    /// those up to `read`. Equal to so many [`on_send`](Self::on_send) and
    /// [`on_ack`](Self::on_ack).
    ///
    /// # Errors
    /// [`PeerFault::AckSeq`] if the reader claims more than there is, or goes back.
    pub fn on_passed(&mut self, seq: Seq, read: Seq) -> Result<(), Error> {
        match self.state {
            State::Sealed { .. } => return Ok(()),
            State::Offered(_) => return Err(Bug::NoOffer.into()),
            State::Ring | State::Fresh(_) => {}
        }
        if read < self.acked || read > seq {
            return Err(PeerFault::AckSeq.into());
        }
        if seq > self.seq {
            if let State::Fresh(advert) = self.state {
                self.state = State::Ring;
                self.phase = self.phase.max(advert.phase);
            }
            self.phase = self.phase.indirect();
            self.seq = seq;
        }
        let unread = u32::try_from(seq.since(read).unwrap_or(0)).unwrap_or(u32::MAX);
        self.free = self.ring_len.saturating_sub(unread);
        self.acked = read;
        self.told = false;
        Ok(())
    }

    /// The newest ADVERT that was looked at.
    #[inline]
    #[must_use]
    pub const fn last_advert(&self) -> AdvertId {
        self.last_id
    }

    /// Whether the reader is known to wait, with nothing before it.
    #[inline]
    #[must_use]
    pub const fn is_fresh(&self) -> bool {
        matches!(self.state, State::Fresh(_))
    }

    /// Seed algorithm 1, lines 4 to 14: the ADVERT is fresh.
    fn direct(&mut self, advert: Advert, len: u32) -> Action {
        let len = len.min(advert.len);
        if self.provider == Provider::Pull {
            return self.offer(len, Some(advert));
        }
        self.count_direct(advert.phase, len);
        self.state = advert.after(len).map_or(State::Ring, State::Fresh);
        Action::Direct { advert, len }
    }

    /// The buffer that is lent and fresh.
    #[inline]
    #[must_use]
    pub const fn fresh(&self) -> Option<&Advert> {
        match &self.state {
            State::Fresh(advert) => Some(advert),
            _ => None,
        }
    }

    /// Push: of the program's bytes so many may go straight to the buffer that is lent, whatever
    /// else [`Sender::on_send`] would choose: what goes where. `None`: none is lent.
    pub fn on_send_direct(&mut self, len: u32) -> Option<(Advert, u32)> {
        let State::Fresh(advert) = self.state else {
            return None;
        };
        match self.direct(advert, len) {
            Action::Direct { advert, len } => Some((advert, len)),
            _ => None,
        }
    }

    /// Push: the direct bytes from `to` on are not the reader's, and go again. Nothing has gone
    /// after them.
    ///
    /// # Errors
    /// [`Bug::Switch`]: the reader has them, or they never went.
    pub fn on_void(&mut self, to: Seq) -> Result<(), Error> {
        let void = self.seq.since(to).ok_or(Bug::Switch)?;
        if to < self.acked {
            return Err(Bug::Switch.into());
        }
        self.direct_bytes = self.direct_bytes.saturating_sub(void);
        self.seq = to;
        if let State::Fresh(_) = self.state {
            self.state = State::Ring;
        }
        Ok(())
    }

    fn offer(&mut self, len: u32, against: Option<Advert>) -> Action {
        self.state = State::Offered(Pending {
            len,
            against,
            next: None,
        });
        self.offer_count = self.offer_count.wrapping_add(1);
        Action::Offer(Offer {
            number: self.offer_count,
            seq: self.seq,
            len,
            advert: against.map(|advert| advert.id),
        })
    }

    /// Seed algorithm 1, lines 17 to 25: into the ring, as far as it has room.
    fn ring(&mut self, len: u32) -> Action {
        if self.free == 0 {
            if self.mode == Mode::Direct {
                return Action::Blocked {
                    on: Wait::Advert,
                    tell: false,
                };
            }
            let tell = self.provider == Provider::Pull && !self.told;
            self.told |= tell;
            return Action::Blocked {
                on: Wait::Credit,
                tell,
            };
        }
        let len = len.min(self.free);
        // Bytes that pass a fresh ADVERT make it stale.
        let before = match self.state {
            State::Fresh(advert) => {
                self.state = State::Ring;
                self.phase.max(advert.phase)
            }
            _ => self.phase,
        };
        let turn = (self.phase.is_direct() && self.provider == Provider::Push).then(|| Turn {
            phase: before.indirect(),
            seq: self.seq,
        });
        self.phase = before.indirect();
        self.free -= len;
        self.seq = self.seq.plus(len);
        Action::Ring { len, turn }
    }

    fn count_direct(&mut self, phase: Phase, len: u32) {
        self.phase = self.phase.max(phase);
        self.seq = self.seq.plus(len);
        self.direct_bytes = self.direct_bytes.wrapping_add(u64::from(len));
    }

    /// The reader lends a buffer.
    ///
    /// # Errors
    /// [`PeerFault`], if no honest reader would have sent it now.
    pub fn on_advert(&mut self, advert: Advert) -> Result<(), Error> {
        if matches!(self.state, State::Sealed { .. }) {
            return Ok(());
        }
        // A pull writer looks at the newest ADVERT when it has use for one, and may miss others.
        let gap = advert.id.value().wrapping_sub(self.last_id.value());
        if gap == 0 || gap > u64::MAX / 4 || gap > 1 && self.provider == Provider::Push {
            return Err(PeerFault::AdvertId.into());
        }
        if advert.len == 0 {
            return Err(PeerFault::AdvertRange.into());
        }
        // Between two ADVERTs a reader either has seen indirect bytes or has not.
        let step = advert.phase.value().wrapping_sub(self.last_phase.value());
        if !advert.phase.is_direct() || step > gap * 2 {
            return Err(PeerFault::AdvertPhase.into());
        }
        if let State::Offered(pending) = &mut self.state {
            // The reader may be ahead by what it took of our offer, which we have yet to see.
            if advert.seq > self.seq.plus(pending.len) {
                return Err(PeerFault::AdvertAhead.into());
            }
            pending.next = Some(advert);
        } else {
            self.state = self.judge(advert)?;
        }
        self.last_id = advert.id;
        self.last_phase = advert.phase;
        Ok(())
    }

    /// Seed algorithm 1, lines 3 to 7. Whatever it says of this ADVERT, the one before is dead.
    fn judge(&mut self, advert: Advert) -> Result<State, Error> {
        if advert.seq > self.seq {
            return Err(PeerFault::AdvertAhead.into());
        }
        if advert.seq < self.seq {
            // Stale. The bytes that made it so will move the reader to the next indirect phase.
            if advert.phase > self.phase {
                self.phase = advert.phase.indirect();
            }
            return Ok(State::Ring);
        }
        if advert.phase < self.phase {
            return Err(PeerFault::AdvertPhase.into());
        }
        if advert.id <= self.revoked || self.mode == Mode::Indirect {
            return Ok(State::Ring);
        }
        Ok(State::Fresh(advert))
    }

    /// The reader wants back the buffer of ADVERT `id` (and of all before it). An offer against it
    /// stays up until it is withdrawn; it is nothing worse than one without an ADVERT.
    ///
    /// # Errors
    /// [`PeerFault::RevokeId`] if that one was revoked before.
    pub fn on_revoke(&mut self, id: AdvertId) -> Result<(), Error> {
        if matches!(self.state, State::Sealed { .. }) {
            return Ok(());
        }
        if id <= self.revoked {
            return Err(PeerFault::RevokeId.into());
        }
        self.revoked = id;
        if matches!(self.state, State::Fresh(advert) if advert.id <= id) {
            self.state = State::Ring;
        }
        Ok(())
    }

    /// The reader has freed ring bytes, or says how far it is. After a take, report the take first.
    ///
    /// # Errors
    /// [`PeerFault::CreditTooLarge`], [`PeerFault::AckSeq`].
    #[inline]
    pub fn on_ack(&mut self, ack: Ack) -> Result<(), Error> {
        if matches!(self.state, State::Sealed { .. }) {
            return Ok(());
        }
        let credit = ack.credit.value();
        if credit > self.ring_len - self.free {
            return Err(PeerFault::CreditTooLarge.into());
        }
        if ack.seq < self.acked || ack.seq > self.seq {
            return Err(PeerFault::AckSeq.into());
        }
        self.free += credit;
        self.acked = ack.seq;
        self.told &= credit == 0;
        Ok(())
    }

    /// Pull: the reader has taken `len` bytes of the offer.
    ///
    /// # Errors
    /// [`PeerFault::Taken`] if there is no offer, or not of so much.
    pub fn on_taken(&mut self, len: u32) -> Result<(), Error> {
        if matches!(self.state, State::Sealed { .. }) {
            return Ok(());
        }
        let State::Offered(pending) = self.state else {
            return Err(PeerFault::Taken.into());
        };
        if len == 0 || len > pending.len {
            return Err(PeerFault::Taken.into());
        }
        let phase = pending
            .against
            .map_or(self.phase.indirect(), |advert| advert.phase);
        self.count_direct(phase, len);
        let rest = pending.against.and_then(|advert| advert.after(len));
        self.resolve(rest, pending.next)
    }

    /// Pull: the offer is gone, untaken: withdrawn by either end.
    ///
    /// # Errors
    /// [`Bug::NoOffer`] if none was up.
    pub fn on_withdrawn(&mut self) -> Result<(), Error> {
        if matches!(self.state, State::Sealed { .. }) {
            return Ok(());
        }
        let State::Offered(pending) = self.state else {
            return Err(Bug::NoOffer.into());
        };
        self.resolve(pending.against, pending.next)
    }

    /// The offer is resolved and leaves `rest` of its ADVERT, if no newer one came.
    fn resolve(&mut self, rest: Option<Advert>, next: Option<Advert>) -> Result<(), Error> {
        let live = rest.filter(|advert| advert.id > self.revoked);
        self.state = live.map_or(State::Ring, State::Fresh);
        if let Some(next) = next {
            self.state = self.judge(next)?;
        }
        Ok(())
    }

    /// Ends the link's part of this direction, once for all. An offer that is up counts as
    /// withdrawn unless [`on_seized`](Self::on_seized) learns otherwise. Idempotent.
    pub fn seal(&mut self) {
        let offered = match self.state {
            State::Sealed { .. } => return,
            State::Offered(pending) => pending.len,
            State::Ring | State::Fresh(_) => 0,
        };
        self.state = State::Sealed {
            offered,
            resend: None,
        };
    }

    /// The reader has read up to `consumed`, and will read no more from the link. The answer is
    /// fixed by the first call.
    ///
    /// # Errors
    /// [`Bug::NotSealed`]; [`PeerFault::SeizedRange`] if no honest reader can be there.
    pub fn on_seized(&mut self, consumed: Seq) -> Result<Resend, Error> {
        let State::Sealed { offered, resend } = self.state else {
            return Err(Bug::NotSealed.into());
        };
        if let Some(resend) = resend {
            return Ok(resend);
        }
        let ahead = consumed.since(self.seq).unwrap_or(0);
        let taken = u32::try_from(ahead).ok().filter(|taken| *taken <= offered);
        let Some(taken) = taken.filter(|_| consumed >= self.acked) else {
            return Err(PeerFault::SeizedRange.into());
        };
        self.count_direct(self.phase, taken);
        let resend = Resend {
            from: consumed,
            to: self.seq,
            taken,
        };
        self.state = State::Sealed {
            offered: 0,
            resend: Some(resend),
        };
        Ok(resend)
    }

    /// Bytes sent over the link so far.
    #[inline]
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.seq
    }

    /// Bytes the reader said it has: the source of later ones must be kept.
    #[inline]
    #[must_use]
    pub const fn acked(&self) -> Seq {
        self.acked
    }

    /// Bytes that went straight to the reader's buffer, for the share of them in
    /// [`seq`](Self::seq).
    #[inline]
    #[must_use]
    pub const fn direct_bytes(&self) -> u64 {
        self.direct_bytes
    }

    /// The present phase. Never decreases.
    #[inline]
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Bytes the ring takes at once: whether a socket is writable.
    #[inline]
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.free
    }

    /// Whether a source is on offer.
    #[inline]
    #[must_use]
    pub const fn is_offering(&self) -> bool {
        matches!(self.state, State::Offered(_))
    }

    /// Whether the link's part has ended.
    #[inline]
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        matches!(self.state, State::Sealed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Credit;

    fn sender(provider: Provider) -> Sender {
        Sender::new(&Config::new(Mode::Dynamic, provider, 100, 10).unwrap())
    }

    fn advert(id: u64, seq: u64, phase: u64) -> Advert {
        Advert {
            id: AdvertId::new(id),
            place: 0,
            key: 0,
            len: 50,
            seq: Seq::new(seq),
            phase: Phase::new(phase),
            waitall: true,
        }
    }

    fn ack(credit: u32, seq: u64) -> Ack {
        Ack {
            credit: Credit::new(credit),
            seq: Seq::new(seq),
        }
    }

    #[test]
    fn every_lie_of_a_reader_has_its_name() {
        let mut tx = sender(Provider::Push);
        let _ = tx.on_send(20, Route::Ring);
        let lies = [
            (advert(2, 20, 2), PeerFault::AdvertId),
            (advert(0, 20, 2), PeerFault::AdvertId),
            (
                Advert {
                    len: 0,
                    ..advert(1, 20, 2)
                },
                PeerFault::AdvertRange,
            ),
            (advert(1, 20, 1), PeerFault::AdvertPhase),
            (advert(1, 20, 4), PeerFault::AdvertPhase),
            (advert(1, 20, 0), PeerFault::AdvertPhase),
            (advert(1, 21, 2), PeerFault::AdvertAhead),
        ];
        for (lie, fault) in lies {
            assert_eq!(tx.on_advert(lie), Err(fault.into()), "{lie:?}");
        }
        assert_eq!(
            tx.on_ack(ack(21, 20)),
            Err(PeerFault::CreditTooLarge.into())
        );
        assert_eq!(tx.on_ack(ack(20, 21)), Err(PeerFault::AckSeq.into()));
        assert_eq!(tx.on_ack(ack(5, 5)), Ok(()));
        assert_eq!(tx.on_ack(ack(5, 4)), Err(PeerFault::AckSeq.into()));
        assert_eq!(
            tx.on_revoke(AdvertId::NONE),
            Err(PeerFault::RevokeId.into())
        );
        assert_eq!(tx.on_taken(1), Err(PeerFault::Taken.into()));
        assert_eq!(tx.on_withdrawn(), Err(Bug::NoOffer.into()));
        assert_eq!(tx.on_seized(Seq::new(20)), Err(Bug::NotSealed.into()));
        assert_eq!(tx.on_advert(advert(1, 20, 2)), Ok(()));
        tx.seal();
        for lie in [4, 21] {
            assert_eq!(
                tx.on_seized(Seq::new(lie)),
                Err(PeerFault::SeizedRange.into())
            );
        }
        let resend = Resend {
            from: Seq::new(5),
            to: Seq::new(20),
            taken: 0,
        };
        assert_eq!(tx.on_seized(Seq::new(5)), Ok(resend));
        assert_eq!(tx.on_seized(Seq::new(9)), Ok(resend), "fixed by the first");
    }

    #[test]
    fn an_offer_bounds_what_can_be_taken_and_advertised() {
        let mut tx = sender(Provider::Pull);
        let Action::Offer(offer) = tx.on_send(30, Route::Offer) else {
            panic!("not offered")
        };
        assert_eq!((offer.number, offer.len, offer.advert), (1, 30, None));
        assert_eq!(tx.on_taken(31), Err(PeerFault::Taken.into()));
        assert_eq!(tx.on_taken(0), Err(PeerFault::Taken.into()));
        assert_eq!(
            tx.on_advert(advert(1, 31, 2)),
            Err(PeerFault::AdvertAhead.into())
        );
        assert_eq!(tx.on_advert(advert(1, 30, 2)), Ok(()));
        assert_eq!(tx.on_taken(30), Ok(()));
        assert!(matches!(tx.state, State::Fresh(_)));
    }

    #[test]
    fn an_advert_revoked_under_an_offer_does_not_come_back() {
        for taken in [None, Some(10)] {
            let mut tx = sender(Provider::Pull);
            tx.on_advert(advert(1, 0, 0)).unwrap();
            assert!(matches!(tx.on_send(30, Route::Advert), Action::Offer(_)));
            tx.on_revoke(AdvertId::new(1)).unwrap();
            assert!(tx.is_offering());
            match taken {
                Some(len) => tx.on_taken(len).unwrap(),
                None => tx.on_withdrawn().unwrap(),
            }
            assert!(matches!(tx.state, State::Ring), "{taken:?}");
        }
    }

    #[test]
    fn ring_bytes_that_pass_a_fresh_advert_begin_the_phase_after_it() {
        let mut tx = sender(Provider::Push);
        let _ = tx.on_send(20, Route::Ring);
        tx.on_advert(advert(1, 20, 2)).unwrap();
        assert_eq!(
            tx.on_send(5, Route::Ring),
            Action::Ring { len: 5, turn: None }
        );
        assert_eq!(tx.phase(), Phase::new(3));
    }

    #[test]
    fn ring_bytes_after_direct_ones_say_where_they_belong() {
        let mut tx = sender(Provider::Push);
        tx.on_advert(advert(1, 0, 0)).unwrap();
        assert!(matches!(
            tx.on_send(20, Route::Advert),
            Action::Direct { len: 20, .. }
        ));
        let turn = Some(Turn {
            phase: Phase::new(1),
            seq: Seq::new(20),
        });
        assert_eq!(tx.on_send(5, Route::Advert), Action::Ring { len: 5, turn });
        assert_eq!(
            tx.on_send(5, Route::Advert),
            Action::Ring { len: 5, turn: None }
        );
    }

    #[test]
    fn a_full_ring_is_told_to_a_puller_once_per_credit() {
        for (provider, tells) in [(Provider::Pull, true), (Provider::Push, false)] {
            let mut tx = sender(provider);
            let blocked = |tell| Action::Blocked {
                on: Wait::Credit,
                tell,
            };
            let sent = |tx: &mut Sender, len| match tx.on_send(len, Route::Ring) {
                Action::Ring { len, .. } => len,
                action => panic!("{action:?}"),
            };
            assert_eq!(sent(&mut tx, 150), 100);
            assert_eq!(tx.on_send(50, Route::Ring), blocked(tells));
            assert_eq!(tx.on_send(50, Route::Ring), blocked(false));
            tx.on_ack(ack(0, 0)).unwrap();
            assert_eq!(tx.on_send(50, Route::Ring), blocked(false));
            tx.on_ack(ack(50, 50)).unwrap();
            assert_eq!(sent(&mut tx, 50), 50);
            assert_eq!(tx.on_send(1, Route::Ring), blocked(tells));
            assert_eq!(sent(&mut tx, 0), 0);
        }
    }
}
