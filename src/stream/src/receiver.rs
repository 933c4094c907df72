//! The reading half of one direction.
//!
//! Guarantees: bytes reach the program in the order of their positions; a buffer is lent only while
//! nothing else can come before it, and may be taken back at any moment without asking; credit is
//! never given twice; once seized, the end of what was read from the link never moves. Refuses to
//! know: where the ring lies, how bytes get out of it, how long a recv may wait, and which thread
//! calls (the caller's rx lock makes it one recv at a time, in order of arrival).
//!
//! # One ADVERT
//!
//! The paper's reader (seed algorithms 2 to 4) has many ADVERTs out and must estimate (S'_r) at
//! which position each will be used. Taken literally that estimate drifts: a receive served from
//! the ring without an ADVERT leaves it too low for good, and a revoked ADVERT leaves it too high,
//! so that a later, stale ADVERT passes as fresh. Here at most one is out, it is made only when
//! everything that arrived has been read, and S'_r := S_r whenever none is out, by which a
//! revocation also rolls it back. So the estimate *is* S_r, exact, and the number S'_r does not
//! exist in this code. The counts k_a and k_b (receives waiting with an ADVERT of an earlier phase,
//! and without one) are zero whenever an ADVERT is made, and have no field either.
//!
//! # Two paths
//!
//! A push provider's direct bytes and ring bytes travel apart. Ring bytes that follow direct ones
//! come after a [`Turn`] that says where they belong, and are held until the direct ones are in.

use crate::action::Offer;
use crate::config::{Config, Mode, Provider};
use crate::error::{Bug, Error, PeerFault};
use crate::wire::{Ack, Advert, AdvertId, Credit, Phase, Seq, Turn};

/// Credit comes back by so many bytes at most: so often a writer hears of a slow reader with a long
/// ring, and so much, twice, is what a writer needs at least that keeps less than the ring holds.
pub const CREDIT_MAX: u32 = 128 << 10;

/// What a recv still wants. After each part it comes back with `place`, `len` and `low` moved on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recv {
    /// Where its buffer lies, in words of the provider; only copied into the ADVERT.
    pub place: u64,
    /// The provider's key to `place`, likewise.
    pub key: u32,
    /// Bytes wanted at most.
    pub len: u32,
    /// `SO_RCVLOWAT`, less what this recv has already. More than one: it never lends its buffer,
    /// for the program would sleep on with bytes in it that it may not see yet.
    pub low: u32,
    /// `MSG_WAITALL`: it waits until all of `len` is in. It copies as bytes arrive, as TCP does.
    pub waitall: bool,
    /// `MSG_PEEK`: it takes nothing, so it never lends its buffer.
    pub peek: bool,
    /// Whether it may wait at all. If not, it never lends its buffer.
    pub wait: bool,
}

impl Recv {
    /// Bytes that must be there before any are handed out. The whole ring is the most there can be.
    fn need(&self, ring_len: u32) -> u32 {
        let need = match self {
            Self { wait: false, .. } => 1,
            Self {
                waitall: true,
                peek: true,
                ..
            } => self.len,
            Self { waitall: true, .. } => 1,
            _ => self.low,
        };
        need.min(self.len).min(ring_len).max(1)
    }
}

/// What a recv does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Copy this many bytes out of the ring, then [`Receiver::on_copied`].
    Copy(u32),
    /// Copy them, and leave them there.
    Peek(u32),
    /// Pull: copy this many bytes from the offer, take it, then [`Receiver::on_taken`]. If it turns
    /// out to be withdrawn, throw the copy away and report [`Receiver::on_withdrawn`].
    Take(Offer, u32),
    /// Pull: copy them, look that the offer still stands, and leave it there.
    PeekOffer(Offer, u32),
    /// Pull: the offer cannot serve this recv. Withdraw it, report [`Receiver::on_withdrawn`], and
    /// let the writer put its bytes into the ring.
    Withdraw(Offer),
    /// Send this, then wait. The buffer is lent until [`Receiver::on_revoke`] or until it is used.
    Advertise(Advert),
    /// Wait for an arrival, or return empty-handed. Push: [`Receiver::flush`] first, if it wants
    /// more than there is: what was read and is not yet said to be may be what the writer waits
    /// for.
    Wait,
    /// The direction is seized: read TCP.
    Demoted,
}

/// What an arrival was good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Arrival {
    /// A recv has something to do.
    Ready,
    /// Ring bytes that come after direct ones which have yet to land: nobody can read them.
    Held,
    /// Bytes landed, or will, in a buffer that was taken back: they are not in the stream, and the
    /// writer's link has no other copy. Demote; the re-send brings them.
    Lost,
    /// The direction is seized: the re-send brings it.
    Void,
}

/// What direct bytes did to their recv. The [`Ack`] tells the writer that its source is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Landing {
    /// They are the recv's, and its ADVERT is used up.
    Done(Ack),
    /// They are the recv's; more may come into the same buffer.
    More(Ack),
    /// As [`Arrival::Lost`].
    Lost,
    /// As [`Arrival::Void`].
    Void,
}

/// What became of bytes copied out of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Copied {
    /// They are the program's.
    Kept,
    /// They are the program's, and this is due to the writer.
    Ack(Ack),
    /// The direction was seized meanwhile: throw the copy away, TCP brings them.
    Void,
}

/// ```text
///             recv on an empty stream: ADVERT
///   ┌──────┐ ────────────────────────────────► ┌──────┐ ──┐ direct bytes,
///   │ Idle │                                   │ Lent │   │ waitall: rest
///   └──────┘ ◄──────────────────────────────── └──────┘ ◄─┘
///             used up, revoked, or overtaken
///             by ring bytes (then the writer            seize, from
///             knows it is stale: no message)            anywhere: Seized
/// ```
#[derive(Debug, Clone, Copy)]
enum State {
    /// The writer has no buffer of ours.
    Idle,
    /// It has this one; `seq` is ours.
    Lent(Advert),
    /// Demoted.
    Seized,
}

/// The reading half of one direction. See the [module](self).
#[derive(Debug, Clone)]
pub struct Receiver {
    state: State,
    /// Bytes that reached the program by either way (S_r of the paper).
    seq: Seq,
    /// Ring bytes that arrived and were not copied out (b_r). At most `ring_len`.
    buffered: u32,
    /// The position of the next byte to be copied out of the ring, or, with none there, to arrive
    /// in it. Below `seq` after direct bytes whose turn has not come; above it, by at most what is
    /// lent, while direct bytes are under way that ring bytes have overtaken.
    ring_at: Seq,
    /// Ring bytes copied out and not yet returned as credit. Push: the writer cannot use them.
    /// Pull: it may have, so this bounds only how often it is woken.
    freed: u32,
    /// The phase of the last arrival or ADVERT (P_r).
    phase: Phase,
    /// The size of the ring: bounds `buffered`, with push `buffered + freed`.
    ring_len: u32,
    /// Half a ring, or [`CREDIT_MAX`]: `freed` never stays at or above it.
    batch: u32,
    /// A buffer shorter than this is not worth lending.
    direct_min: u32,
    mode: Mode,
    provider: Provider,
    /// Pull: the writer waits for credit: return it at the next byte.
    peer_blocked: bool,
    /// Pull: the offer last seen up. It may be gone; a take finds out.
    offer: Option<Offer>,
    /// The newest ADVERT made.
    last_id: AdvertId,
    /// The newest ADVERT revoked: with one, direct bytes for no ADVERT of ours may be late, not a
    /// lie.
    revoked: AdvertId,
    /// The furthest end of a revoked buffer: bounds where lost direct bytes can have been aimed.
    revoked_end: Seq,
}

impl Receiver {
    /// The reading half of a stream that begins.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            state: State::Idle,
            seq: Seq::START,
            buffered: 0,
            ring_at: Seq::START,
            freed: 0,
            phase: Phase::START,
            ring_len: config.ring_len(),
            batch: config.ring_len().div_ceil(2).min(CREDIT_MAX),
            direct_min: config.direct_min(),
            mode: config.mode,
            provider: config.provider,
            peer_blocked: false,
            offer: None,
            last_id: AdvertId::NONE,
            revoked: AdvertId::NONE,
            revoked_end: Seq::START,
        }
    }

    /// Ring bytes that can be copied out now.
    #[inline]
    #[must_use]
    pub fn readable(&self) -> u32 {
        if self.ring_at == self.seq {
            self.buffered
        } else {
            0
        }
    }

    /// A recv has begun, or goes on after one of its parts, or was woken.
    #[inline]
    pub fn on_recv(&mut self, recv: &Recv) -> Next {
        let readable = self.readable();
        if readable != 0 && recv.low <= 1 && !recv.peek && !matches!(self.state, State::Seized) {
            return Next::Copy(recv.len.min(readable));
        }
        self.choose(recv, readable)
    }

    /// Everything but the common case of [`on_recv`](Self::on_recv).
    #[cold]
    fn choose(&mut self, recv: &Recv, readable: u32) -> Next {
        if matches!(self.state, State::Seized) {
            return Next::Demoted;
        }
        let need = recv.need(self.ring_len);
        let offer = self.offer;
        // A recv reads the ring and then the offer after it; a peek sees only one of them.
        let reach = match offer {
            Some(offer) if !recv.peek => readable.saturating_add(offer.len),
            _ => readable,
        };
        if readable != 0 && reach >= need {
            let len = recv.len.min(readable);
            return if recv.peek {
                Next::Peek(len)
            } else {
                Next::Copy(len)
            };
        }
        if let Some(offer) = offer {
            let len = recv.len.min(offer.len);
            // A small piece out of a large offer costs the writer a round trip, and is copied
            // faster.
            let worth = recv.len >= offer.len.min(self.direct_min);
            return match (readable, offer.len >= need) {
                (0, true) if recv.peek => Next::PeekOffer(offer, len),
                (0, true) if worth => Next::Take(offer, len),
                _ => Next::Withdraw(offer),
            };
        }
        if self.may_lend(recv) {
            self.lend(recv)
        } else {
            Next::Wait
        }
    }

    /// Seed algorithm 2, line 1. With bytes held for a turn the ring is not empty, or is not at
    /// `seq`.
    fn may_lend(&self, recv: &Recv) -> bool {
        matches!(self.state, State::Idle)
            && self.mode != Mode::Indirect
            && self.buffered == 0
            && self.ring_at <= self.seq
            && recv.wait
            && !recv.peek
            && recv.low <= 1
            && recv.len >= self.direct_min
    }

    /// Seed algorithm 2, lines 5 to 14, where S'_r is S_r.
    fn lend(&mut self, recv: &Recv) -> Next {
        self.phase = self.phase.direct();
        self.last_id = self.last_id.next();
        let advert = Advert {
            id: self.last_id,
            place: recv.place,
            key: recv.key,
            len: recv.len,
            seq: self.seq,
            phase: self.phase,
            waitall: recv.waitall,
        };
        self.state = State::Lent(advert);
        Next::Advertise(advert)
    }

    /// The recv leaves, for whatever reason: its buffer is the program's again. A provider whose
    /// writer can reach the buffer stops it first (a key taken back, a copy that can be thrown
    /// away) and delivers what had landed by then. `Some`: tell the writer, without waiting for it.
    #[must_use = "the writer has to be told"]
    pub fn on_revoke(&mut self) -> Option<AdvertId> {
        let State::Lent(advert) = self.state else {
            return None;
        };
        self.state = State::Idle;
        self.revoked = advert.id;
        self.revoked_end = self.revoked_end.max(advert.seq.plus(advert.len));
        Some(advert.id)
    }

    /// `len` bytes have arrived in the ring.
    ///
    /// # Errors
    /// [`PeerFault::RingOverrun`], [`PeerFault::TurnMissing`].
    #[inline]
    pub fn on_ring(&mut self, len: u32) -> Result<Arrival, Error> {
        // Pull: the writer sees what is copied out at once, without waiting for the credit.
        let lent_back = if self.provider == Provider::Push {
            self.freed
        } else {
            0
        };
        let room = self
            .ring_len
            .saturating_sub(self.buffered)
            .saturating_sub(lent_back);
        if matches!(self.state, State::Idle)
            && len.wrapping_sub(1) < room
            && self.ring_at == self.seq
            && self.offer.is_none()
        {
            self.buffered += len;
            self.phase = self.phase.indirect();
            return Ok(Arrival::Ready);
        }
        self.accept(len, room)
    }

    /// Everything but the common case of [`on_ring`](Self::on_ring).
    #[cold]
    fn accept(&mut self, len: u32, room: u32) -> Result<Arrival, Error> {
        if matches!(self.state, State::Seized) {
            return Ok(Arrival::Void);
        }
        if len == 0 || len > room {
            return Err(PeerFault::RingOverrun.into());
        }
        if self.ring_at < self.seq {
            return Err(PeerFault::TurnMissing.into());
        }
        self.buffered += len;
        self.phase = self.phase.indirect();
        // An offer with ring bytes after its position was withdrawn.
        self.offer = None;
        if self.ring_at > self.seq {
            return Ok(Arrival::Held);
        }
        // The writer has passed the position in our ADVERT, so it will discard it.
        self.state = State::Idle;
        Ok(Arrival::Ready)
    }

    /// Push: ring bytes will follow direct ones.
    ///
    /// # Errors
    /// [`PeerFault::TurnPhase`], [`PeerFault::TurnSeq`], [`PeerFault::WrongProvider`].
    pub fn on_turn(&mut self, turn: Turn) -> Result<Arrival, Error> {
        if matches!(self.state, State::Seized) {
            return Ok(Arrival::Void);
        }
        if self.provider == Provider::Pull {
            return Err(PeerFault::WrongProvider.into());
        }
        if !self.phase.is_direct() || turn.phase != self.phase.indirect() || self.buffered != 0 {
            return Err(PeerFault::TurnPhase.into());
        }
        let ahead = turn.seq.since(self.seq).ok_or(PeerFault::TurnSeq)?;
        let lent = match self.state {
            State::Lent(advert) => u64::from(advert.len),
            State::Idle | State::Seized => 0,
        };
        if ahead > lent {
            // Direct bytes that we shall never see: the writer used what was revoked.
            return if turn.seq <= self.revoked_end {
                Ok(Arrival::Lost)
            } else {
                Err(PeerFault::TurnSeq.into())
            };
        }
        self.ring_at = turn.seq;
        self.phase = turn.phase;
        Ok(Arrival::Held)
    }

    /// Push: `len` bytes have landed in the buffer of the ADVERT with this tag.
    ///
    /// # Errors
    /// [`PeerFault::DirectUnasked`], [`PeerFault::DirectRange`], [`PeerFault::WrongProvider`].
    pub fn on_direct(&mut self, tag: u8, len: u32) -> Result<Landing, Error> {
        if self.provider == Provider::Pull {
            return Err(PeerFault::WrongProvider.into());
        }
        let advert = match self.state {
            State::Seized => return Ok(Landing::Void),
            State::Lent(advert) if advert.id.tag() == tag => advert,
            _ if self.revoked != AdvertId::NONE => return Ok(Landing::Lost),
            _ => return Err(PeerFault::DirectUnasked.into()),
        };
        // Ring bytes that wait for direct ones say how many there are.
        let ahead = self.ring_at.since(self.seq).filter(|ahead| *ahead > 0);
        if ahead.is_none() && !self.phase.is_direct() {
            return Err(PeerFault::DirectUnasked.into());
        }
        let most = ahead.map_or(u64::from(advert.len), |ahead| {
            ahead.min(u64::from(advert.len))
        });
        if len == 0 || u64::from(len) > most {
            return Err(PeerFault::DirectRange.into());
        }
        self.seq = self.seq.plus(len);
        let rest = advert.after(len).filter(|_| self.ring_at != self.seq);
        self.state = rest.map_or(State::Idle, State::Lent);
        let ack = self.ack();
        Ok(if rest.is_some() {
            Landing::More(ack)
        } else {
            Landing::Done(ack)
        })
    }

    /// Pull: an offer is up. Read the offer first, then the ring's tail, then report both, the tail
    /// first: an offer of bytes that are in the ring by now was withdrawn and is passed over.
    ///
    /// # Errors
    /// [`PeerFault::Offer`], [`PeerFault::WrongProvider`].
    pub fn on_offer(&mut self, offer: Offer) -> Result<Arrival, Error> {
        if matches!(self.state, State::Seized) {
            return Ok(Arrival::Void);
        }
        if self.provider == Provider::Push {
            return Err(PeerFault::WrongProvider.into());
        }
        let unknown = offer
            .advert
            .is_some_and(|id| id == AdvertId::NONE || id > self.last_id);
        let next = self.seq.plus(self.buffered);
        if offer.len == 0 || unknown || offer.seq > next {
            return Err(PeerFault::Offer.into());
        }
        self.offer = (offer.seq == next).then_some(offer);
        Ok(Arrival::Ready)
    }

    /// Pull: the offer of this number is gone, untaken. A newer one that was seen stays.
    pub fn on_withdrawn(&mut self, number: u64) {
        if self.offer.is_some_and(|offer| offer.number <= number) {
            self.offer = None;
        }
    }

    /// Pull: `len` bytes of the offer have been taken for the program. `Void` if the direction was
    /// seized before: then the take cannot have succeeded.
    ///
    /// # Errors
    /// [`Bug::NoOffer`] if it was not the next thing to read, or not so long.
    pub fn on_taken(&mut self, len: u32) -> Result<Landing, Error> {
        if matches!(self.state, State::Seized) {
            return Ok(Landing::Void);
        }
        let offer = self
            .offer
            .filter(|offer| offer.seq == self.seq && self.buffered == 0);
        let Some(offer) = offer.filter(|offer| len != 0 && len <= offer.len) else {
            return Err(Bug::NoOffer.into());
        };
        self.offer = None;
        let rest = match self.state {
            State::Lent(advert) if offer.advert == Some(advert.id) => advert.after(len),
            // Not against our ADVERT, if there is one: the writer has passed it, as with ring
            // bytes.
            _ => {
                self.phase = self.phase.indirect();
                None
            }
        };
        self.state = rest.map_or(State::Idle, State::Lent);
        self.seq = self.seq.plus(len);
        self.ring_at = self.seq;
        let ack = self.ack();
        Ok(if rest.is_some() {
            Landing::More(ack)
        } else {
            Landing::Done(ack)
        })
    }

    /// `len` bytes were copied out of the ring for the program.
    ///
    /// # Errors
    /// [`Bug::Copied`] if so many were not readable.
    #[inline]
    pub fn on_copied(&mut self, len: u32) -> Result<Copied, Error> {
        if matches!(self.state, State::Seized) {
            return Ok(Copied::Void);
        }
        if len > self.readable() {
            return Err(Bug::Copied.into());
        }
        self.buffered -= len;
        self.freed += len;
        self.seq = self.seq.plus(len);
        self.ring_at = self.seq;
        if self.freed >= self.batch || (self.peer_blocked && len != 0) {
            self.peer_blocked = false;
            Ok(Copied::Ack(self.ack()))
        } else {
            Ok(Copied::Kept)
        }
    }

    /// Pull: ring bytes have come and gone without a call: all up to `seq` have reached the
    /// program, and `buffered` more can be read. Equal to so many [`on_ring`](Self::on_ring) and
    /// [`on_copied`](Self::on_copied). Report it before an offer. True if bytes came.
    ///
    /// # Errors
    /// [`PeerFault::RingOverrun`]; [`Bug::Copied`] if the position goes back.
    pub fn on_passed(&mut self, seq: Seq, buffered: u32) -> Result<bool, Error> {
        if matches!(self.state, State::Seized) {
            return Ok(false);
        }
        if buffered > self.ring_len {
            return Err(PeerFault::RingOverrun.into());
        }
        let came = seq
            .plus(buffered)
            .since(self.seq.plus(self.buffered))
            .ok_or(Bug::Copied)?;
        if came != 0 {
            self.phase = self.phase.indirect();
            self.offer = None;
            self.state = State::Idle;
        }
        self.seq = seq;
        self.ring_at = seq;
        self.buffered = buffered;
        self.freed = 0;
        Ok(came != 0)
    }

    /// Pull: the writer waits for credit. `Some`: return this at once; else the next byte copied
    /// does.
    ///
    /// The writer sees by itself what is copied out, and may have used some of `freed` already. So
    /// what is returned here may be nothing new to it, and the next byte is due as well.
    ///
    /// A push writer does not say that it waits: half of a full ring is read before long, and
    /// credit for less would have it send less, and say so again.
    #[must_use = "the writer waits for it"]
    pub fn on_blocked(&mut self) -> Option<Ack> {
        if matches!(self.state, State::Seized) || self.provider == Provider::Push {
            return None;
        }
        self.peer_blocked = true;
        (self.freed != 0).then(|| self.ack())
    }

    /// Credit that is due, without waiting until there is more of it.
    pub fn flush(&mut self) -> Option<Ack> {
        (self.freed != 0).then(|| self.ack())
    }

    /// Push: direct bytes whose fate the writer does not know come by the ring.
    ///
    /// # Errors
    /// [`PeerFault::TurnPhase`]: ring bytes are still there.
    pub fn on_again(&mut self) -> Result<(), Error> {
        if self.buffered != 0 {
            return Err(PeerFault::TurnPhase.into());
        }
        if !matches!(self.state, State::Seized) {
            self.state = State::Idle;
            self.ring_at = self.seq;
            self.phase = self.phase.indirect();
        }
        Ok(())
    }

    fn ack(&mut self) -> Ack {
        let credit = Credit::new(self.freed);
        self.freed = 0;
        Ack {
            credit,
            seq: self.seq,
        }
    }

    /// Ends the link's part of this direction, once for all, and says where. A buffer that is lent
    /// is lent no more; a provider that can still be written to stops that first. Idempotent.
    #[must_use]
    pub fn seize(&mut self) -> Seq {
        self.state = State::Seized;
        self.offer = None;
        self.seq
    }

    /// Bytes that reached the program over the link.
    #[inline]
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.seq
    }

    /// The ADVERT that is out.
    #[inline]
    #[must_use]
    pub const fn lent(&self) -> Option<&Advert> {
        match &self.state {
            State::Lent(advert) => Some(advert),
            State::Idle | State::Seized => None,
        }
    }

    /// The present phase. Never decreases.
    #[inline]
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the link's part has ended.
    #[inline]
    #[must_use]
    pub const fn is_seized(&self) -> bool {
        matches!(self.state, State::Seized)
    }
}

#[cfg(test)]
mod tests;
