//! Direct transfers: bytes go from the staging ring straight into the buffer of a waiting `recv`,
//! by a queue pair of their own.
//!
//! Guarantees: what is written to a buffer that was taken back is no byte of the stream, and goes
//! again; of bytes that the reader may have or not, it gets each once; no end waits for the other
//! to leave the link, or to take a buffer back.
//!
//! Refuses to know: registration, the second queue pair, and whether it is there (the caller says
//! so by [`Pump::set_direct`]). It is for the caller to make a buffer unreachable *before* it calls
//! [`Pump::revoke`], or uses the buffer itself.
//!
//! # Primer
//!
//! ```text
//!   writer                                                       reader
//!   ──────                                                       ──────
//!                         ◄──────────── ADVERT k ──────────────  recv waits, ring is empty: lend
//!   What::Direct ═══ WRITE and word, by the other queue pair ══► on_direct; still lent: keep them
//!                         ◄──────────── ACK ───────────────────  program has read them
//!                                                                taken back before: drop them
//!                         ◄──────────── REVOKE k ──────────────
//!   the same bytes go again
//! ```
//!
//! The word comes with the bytes (on iWARP, in a SEND after them), so they need nothing more of
//! their writer, which may be stopped or dead by then. They have positions as all others, so a ring
//! has a gap there. From the first WRITE until all is acknowledged, or void, a writer posts nothing
//! else of the stream (a [`Run`]). All but the bytes and their word goes by the link's own queue
//! pair, in order. REVOKE tells up to where the reader has all. So it, or ACK when the program has
//! read them, tells the writer what became of them.
//!
//! A writer that loses the queue pair does not know which WRITEs have come. It asks the reader to
//! revoke (RETURN).
//!
//! A writer that leaves the link cannot wait for the reader. It says AGAIN and posts what is not
//! decided to the ring; then its reader has the bytes in either case, and passes over those that it
//! has already.
//!
//! A WRITE with a word uses up a receive of the peer's. Each end says now and then how many have
//! come (NOTICED), and posts no more than the other has receives for.

use alloc::collections::VecDeque;

use super::flow::{Flow, Said};
use super::{Came, Pump};
use crate::config::Mode;
use crate::error::{Bug, Error, PeerFault};
use crate::receiver::{Landing, Next, Recv};
use crate::record::Out;
use crate::wire::{AdvertId, Control, DirectQp, Immediate, Notice, Revoked, Seq};

/// Direct bytes that may be the reader's or not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Into the buffer of which ADVERT.
    id: AdvertId,
    /// What is before it the reader has.
    from: Seq,
    /// They go again by the ring: the next of them.
    again: Option<Seq>,
    pub fate: Fate,
}

/// What the writer does to learn what became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The reader will tell.
    Told,
    /// The queue pair is lost: the reader is to be asked.
    Lost,
    /// It was asked.
    Asked,
}

/// What the reading end lends.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// ADVERTs and revocations to be told, in this order: at most two.
    pub says: VecDeque<Control>,
    /// Ring bytes to come that are here already.
    again: u64,
    /// The writer wants the buffer to be revoked.
    returned: bool,
}

/// A transfer under way on the queue pair of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    /// The stream, if that still wants to know.
    pub stream: Option<u16>,
    to: Seq,
}

/// Direct transfers under way at once. Each is as large as a ring at most.
const WRITES: usize = 16;

/// Direct transfers that an end posts before it hears that the other has taken some. For each an
/// end keeps two receives posted: a count that was told before the loss of a queue pair may come
/// after it, and be taken for one of the next.
pub const NOTICES: u16 = 32;

/// Counts of direct transfers since the queue pair came up, modulo 2^16.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Posted; those of them that the peer has taken.
    posted: u16,
    taken: u16,
    /// Those that came; as the peer was told.
    came: u16,
    told: u16,
}

impl Notices {
    fn has_room(&self) -> bool {
        self.posted.wrapping_sub(self.taken) < NOTICES
    }

    /// The peer has taken so many. A number that cannot be is of a queue pair before.
    fn on_told(&mut self, count: u16) {
        let more = count.wrapping_sub(self.taken);
        if more <= self.posted.wrapping_sub(self.taken) {
            self.taken = count;
        }
    }

    /// One more came. What the peer is to be told, if it is time.
    fn on_came(&mut self) -> Option<u16> {
        self.came = self.came.wrapping_add(1);
        let is_time = self.came.wrapping_sub(self.told) >= NOTICES / 2;
        is_time.then(|| {
            self.told = self.came;
            self.came
        })
    }
}

impl Lending {
    /// Of ring bytes that came those that are new.
    pub fn pass_over(&mut self, len: u32) -> u32 {
        let over = self.again.min(u64::from(len));
        self.again -= over;
        len - over as u32
    }
}

/// A recv that may be served directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loan {
    /// Its buffer's address.
    pub place: u64,
    /// The key by which the peer writes there, and nowhere else.
    pub key: u32,
    /// Bytes.
    pub len: u32,
    /// It waits for all of them.
    pub waitall: bool,
}

impl Flow {
    /// See [`Pump::awaits_buffer`].
    pub fn awaits_buffer(&self) -> Option<Seq> {
        let posted = self.transit.posted();
        let waits = self.tail > posted && !self.left && self.transit.out() == Out::Link;
        (self.mode == Mode::Direct && waits).then_some(posted)
    }

    /// Is it decided how the next bytes go? Not while a run is not, nor where all are to go
    /// directly.
    pub fn holds(&self) -> bool {
        self.run.is_some() || self.mode == Mode::Direct
    }

    /// What direct transfers have to say, or to post.
    pub fn next_direct(&mut self, message_len: u32, direct: bool) -> Option<Said> {
        if self.transit.is_ending() {
            return self.next_again(message_len);
        }
        if self.transit.out() != Out::Link {
            return None;
        }
        if let Some(run) = &mut self.run
            && run.fate == Fate::Lost
        {
            run.fate = Fate::Asked;
            return Some(Said::Control(Control::Return(run.id)));
        }
        if direct { self.aim() } else { None }
    }

    /// Bytes for the buffer that is lent, if that is worth it.
    fn aim(&mut self) -> Option<Said> {
        let advert = *self.sender.fresh()?;
        let goes_on = |run: Run| run.id == advert.id && run.fate == Fate::Told;
        if !self.run.is_none_or(goes_on) {
            return None;
        }
        let from = self.sender.seq();
        let waiting = self.tail.since(from).unwrap_or(0);
        let open = self.run.and_then(|run| from.since(run.from)).unwrap_or(0);
        // They may have to go by the ring in the end.
        let room = match self.mode {
            Mode::Direct => self.lent.len,
            _ => self.sender.free(),
        };
        let most = u64::from(room).saturating_sub(open).min(waiting) as u32;
        let fills = self.run.is_some() && advert.len <= most;
        if most == 0 || most < self.direct_min && !fills && self.mode != Mode::Direct {
            return None;
        }
        let to_end = u64::from(self.staging_len) - from.value() % u64::from(self.staging_len);
        let most = self.to_edge(from, to_end.min(u64::from(most))) as u32;
        let (advert, len) = self.sender.on_send_direct(most)?;
        self.transit.on_posted(len).ok()?;
        self.run.get_or_insert(Run {
            id: advert.id,
            from,
            again: None,
            fate: Fate::Told,
        });
        Some(Said::Direct {
            from,
            len,
            to: (advert.place, advert.key),
            tag: advert.id.tag(),
        })
    }

    /// This end leaves the link: what is not decided goes again, by the ring.
    fn next_again(&mut self, message_len: u32) -> Option<Said> {
        let end = self.transit.posted();
        let run = self.run.as_mut()?;
        let Some(next) = run.again else {
            if run.from == end {
                return None;
            }
            run.again = Some(run.from);
            return Some(Said::Control(Control::Again(run.from)));
        };
        let waiting = end.since(next).filter(|waiting| *waiting != 0)?;
        let len = self.piece(next, waiting, message_len);
        if let Some(run) = &mut self.run {
            run.again = Some(next.plus(len));
        }
        Some(self.bytes(next, len))
    }

    /// The reader has all before `to`.
    pub fn decide(&mut self, to: Seq) {
        if let Some(run) = &mut self.run {
            run.from = run.from.max(to);
            if run.fate != Fate::Told {
                // No completion will tell.
                self.completed = self.completed.max(to);
            }
            if run.from == self.sender.seq() {
                self.run = None;
            }
        }
    }

    /// What went directly from `to` on is forgotten, since nobody has it.
    fn void(&mut self, to: Seq) -> Result<(), Error> {
        self.sender.on_void(to)?;
        self.transit.on_void(to)?;
        self.completed = self.completed.min(to);
        self.run = None;
        Ok(())
    }

    /// The stream leaves the link: nothing is lent any more.
    pub fn withdraw(&mut self) {
        let _ = self.receiver.on_revoke();
        self.lending.returned = false;
        self.lending.says.clear();
    }

    /// So many bytes came into the buffer of the ADVERT with this tag. False: it was taken back
    /// before.
    fn on_direct(&mut self, tag: u8, len: u32) -> Result<bool, Error> {
        let fits = self.landed() + u64::from(len) <= u64::from(self.ring_len);
        match self.receiver.on_direct(tag, len)? {
            Landing::Done(_) | Landing::More(_) if !fits => Err(PeerFault::DirectRange.into()),
            // Acknowledged when the program has them: until then they may have to lie in the ring.
            Landing::Done(_) | Landing::More(_) => {
                self.came = self.came.plus(len);
                self.transit.on_received(self.came)?;
                Ok(true)
            }
            Landing::Lost | Landing::Void => Ok(false),
        }
    }

    /// Direct bytes that the program has not read, and may.
    pub fn landed(&self) -> u64 {
        let end = self.receiver.seq().min(self.transit.link_end());
        end.since(self.transit.read()).unwrap_or(0)
    }

    fn on_again(&mut self, from: Seq) -> Result<(), Error> {
        let over = self.came.since(from).ok_or(PeerFault::TurnSeq)?;
        if over > u64::from(self.ring_len) || self.lending.again != 0 {
            return Err(PeerFault::TurnSeq.into());
        }
        // What comes for the buffer yet is void.
        let _ = self.receiver.on_revoke();
        self.receiver.on_again()?;
        self.lending.again = over;
        Ok(())
    }
}

impl Pump {
    /// A queue pair for direct transfers is being made: call before its receives are posted, since
    /// the peer may use it before this end knows that it is [up](Self::set_direct).
    pub fn begin_direct(&mut self) {
        self.notices = Notices::default();
    }

    /// Whether there is a queue pair for direct transfers, from now on. After a no, what was under
    /// way there is lost, and staging of all streams may have become free.
    pub fn set_direct(&mut self, is_up: bool) {
        self.direct = is_up && self.terms.mode != Mode::Indirect;
        if is_up {
            self.may_post_again(false);
            return;
        }
        self.says
            .retain(|(_, control)| !matches!(control, Control::Noticed(_)));
        while let Some(Written { stream, to }) = self.written.pop_front() {
            if let Some(flow) = stream.and_then(|stream| self.flow(stream))
                && flow.run.is_none()
                && !flow.left
            {
                // The reader has it.
                flow.completed = flow.completed.max(to);
            }
        }
        for (stream, flow) in (0..).zip(self.flows.iter_mut()) {
            if let Some(flow) = flow.as_mut().filter(|flow| !flow.left)
                && let Some(run) = &mut flow.run
                && run.fate == Fate::Told
            {
                run.fate = Fate::Lost;
                self.due.set(stream);
                self.asks = true;
            }
        }
    }

    /// Direct transfers may be posted, and before they `could` or not: streams that wait have
    /// another try.
    fn may_post_again(&mut self, could: bool) {
        if could || !self.can_write() {
            return;
        }
        for (stream, flow) in (0..).zip(&self.flows) {
            if flow
                .as_ref()
                .is_some_and(|flow| !flow.left && flow.may_post())
            {
                self.due.set(stream);
            }
        }
    }

    /// Does a stream wait to hear what became of what the lost queue pair had?
    pub(super) fn asks_for_fate(&self) -> bool {
        let asks = |flow: &Flow| flow.run.is_some_and(|run| run.fate != Fate::Told);
        let mut flows = self.flows.iter().flatten();
        self.asks && flows.any(|flow| !flow.left && asks(flow))
    }

    /// Asks the peer for a queue pair for direct transfers, or tells where to ask.
    pub fn want(&mut self, direct_qp: DirectQp) {
        self.says.push_back((0, Control::DirectQp(direct_qp)));
    }

    /// Whether all goes directly, or not at all.
    #[must_use]
    pub fn only_direct(&self) -> bool {
        self.terms.mode == Mode::Direct
    }

    /// Whether there is a queue pair for direct transfers.
    #[must_use]
    pub const fn has_direct(&self) -> bool {
        self.direct
    }

    /// Whether the peer has lent a buffer for the stream's next bytes, and they can go there.
    #[must_use]
    pub fn has_fresh(&mut self, stream: u16) -> bool {
        let can = self.can_write();
        self.flow(stream)
            .is_some_and(|flow| can && flow.sender.fresh().is_some())
    }

    /// Whether this end makes direct transfers, and lends for them.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.terms.mode != Mode::Indirect
    }

    /// Streams of which all goes directly, and something waits that could not for want of a buffer:
    /// each with where it waits.
    pub fn starved(&self) -> impl Iterator<Item = (u16, Seq)> {
        let numbered = (0..).zip(&self.flows);
        numbered.filter_map(|(stream, flow)| {
            let flow = flow.as_deref().filter(|flow| flow.run.is_none())?;
            Some((stream, flow.awaits_buffer()?))
        })
    }

    /// Does something wait to go directly, as all of its stream does?
    pub(super) fn waits_for_buffer(&self) -> bool {
        self.terms.mode == Mode::Direct
            && self
                .flows
                .iter()
                .flatten()
                .any(|flow| flow.awaits_buffer().is_some())
    }

    /// Where the bytes begin that wait for a buffer of the peer's, if all of the stream goes
    /// directly and some do.
    #[must_use]
    pub fn awaits_buffer(&mut self, stream: u16) -> Option<Seq> {
        self.flow(stream)?.awaits_buffer()
    }

    /// Whether a recv of so many bytes may lend its buffer: nothing that came is unread, and the
    /// peer may post.
    #[must_use]
    pub fn may_lend(&mut self, stream: u16, len: u32) -> bool {
        let (direct, mode, least) = (self.direct, self.terms.mode, self.terms.direct_min);
        direct
            && (len >= least || mode == Mode::Direct)
            && self.flow(stream).is_some_and(|flow| {
                let read = flow.transit.read() == flow.came && flow.receiver.seq() == flow.came;
                let quiet = read && flow.lending.says.is_empty();
                !flow.left
                    && quiet
                    && flow.receiver.lent().is_none()
                    && flow.transit.out() == Out::Link
            })
    }

    /// A recv waits: the peer may write to its buffer until that is taken back. Under which number;
    /// `None`: not now.
    pub fn lend(&mut self, stream: u16, loan: &Loan) -> Option<AdvertId> {
        if !self.may_lend(stream, loan.len) {
            return None;
        }
        let flow = self.flow(stream)?;
        let Next::Advertise(advert) = flow.receiver.on_recv(&Recv {
            place: loan.place,
            key: loan.key,
            len: loan.len,
            low: 1,
            waitall: loan.waitall,
            peek: false,
            wait: true,
        }) else {
            return None;
        };
        // What is direct may have to go by the ring in the end, which is empty: so it is said to
        // be.
        if let Some(ack) = flow.receiver.flush() {
            flow.tell(ack);
        }
        let advert_said = Control::Advert(advert, flow.number_use);
        flow.lending.says.push_back(advert_said);
        self.due.set(stream);
        Some(advert.id)
    }

    /// The buffer that was lent last is the program's again; the caller has made it unreachable.
    /// How many bytes of the stream have come into it that were not [read](Pump::on_head): the
    /// first of what the program is to read.
    pub fn revoke(&mut self, stream: u16) -> u32 {
        let Some(flow) = self.flow(stream) else {
            return 0;
        };
        let landed = flow.landed() as u32;
        flow.lending.returned = false;
        if let Some(id) = flow.receiver.on_revoke()
            && flow.transit.gives_credit()
        {
            let seq = flow.came;
            let revoked = Revoked { id, seq };
            flow.lending.says.push_back(Control::Revoke(revoked));
            self.due.set(stream);
        }
        landed
    }

    /// Bytes of the stream that have come into the buffer lent last, and were not
    /// [read](Pump::on_head).
    #[must_use]
    pub fn landed(&mut self, stream: u16) -> u32 {
        self.flow(stream).map_or(0, |flow| flow.landed() as u32)
    }

    /// Whether that buffer still is lent: not when it is full, has been passed by, or is to be
    /// [revoked](Pump::revoke).
    #[must_use]
    pub fn is_lent(&mut self, stream: u16) -> bool {
        self.flow(stream)
            .is_some_and(|flow| flow.receiver.lent().is_some() && !flow.lending.returned)
    }

    /// The oldest `transfers` of those that were posted are complete; `each` gets the streams whose
    /// staging may have become free.
    ///
    /// # Errors
    /// [`Bug::Switch`]: so many were not posted.
    pub fn on_direct_done(
        &mut self,
        transfers: usize,
        mut each: impl FnMut(u16),
    ) -> Result<(), Error> {
        let could = self.can_write();
        for _ in 0..transfers {
            let Written { stream, to } = self.written.pop_front().ok_or(Bug::Switch)?;
            if let Some(stream) = stream
                && let Some(flow) = self.flow(stream).filter(|flow| !flow.left)
            {
                flow.completed = flow.completed.max(to);
                each(stream);
            }
        }
        self.may_post_again(could);
        Ok(())
    }

    /// The peer has taken so many of this end's transfers.
    pub(super) fn on_noticed(&mut self, count: u16) -> Came {
        let could = self.can_write();
        self.notices.on_told(count);
        self.may_post_again(could);
        Came::Nothing
    }

    /// A direct transfer of the peer's has come, and its receive is posted again: its word, and its
    /// length.
    ///
    /// # Errors
    /// [`PeerFault`]: the link is to be given up, as if lost.
    pub fn on_direct(&mut self, word: u32, len: u32) -> Result<Came, Error> {
        let immediate = Immediate::parse(word)?;
        let Notice::Direct(tag) = immediate.notice() else {
            return Err(PeerFault::Malformed.into());
        };
        if let Some(count) = self.notices.on_came() {
            self.says.push_back((0, Control::Noticed(count)));
        }
        let stream = immediate.stream();
        // On iWARP a word may come after all else of its stream.
        let is_its = |flow: &&mut Flow| !flow.left && flow.number_use == immediate.count();
        let Some(flow) = self.flow(stream).filter(is_its) else {
            return Ok(Came::Nothing);
        };
        if !flow.on_direct(tag, len)? {
            return Ok(Came::Nothing);
        }
        let to = flow.came;
        self.due.set(stream);
        Ok(Came::Direct(stream, to))
    }

    /// The writer asks what it has of this ADVERT's bytes.
    pub(super) fn on_return(&mut self, stream: u16, id: AdvertId) -> Came {
        let Some(flow) = self.flow(stream) else {
            return Came::Nothing;
        };
        // What is lent no more is told of already, or is when the program has read it.
        let is_lent = flow.receiver.lent().is_some_and(|advert| advert.id == id);
        if !is_lent {
            return Came::Nothing;
        }
        flow.lending.returned = true;
        Came::Return(stream)
    }

    /// Transfers posted and not told to be done.
    #[must_use]
    pub fn direct_outstanding(&self) -> usize {
        self.written.len()
    }

    pub(super) fn can_write(&self) -> bool {
        self.direct && self.written.len() < WRITES && self.notices.has_room()
    }

    pub(super) fn on_write(&mut self, stream: u16, to: Seq) {
        let stream = Some(stream);
        self.written.push_back(Written { stream, to });
        self.notices.posted = self.notices.posted.wrapping_add(1);
    }

    /// What is under way of the stream after `from` is of no interest any more.
    pub(super) fn forget_written(&mut self, stream: u16, from: Seq) {
        for written in &mut self.written {
            let is_it = |of: &u16| *of == stream && written.to > from;
            written.stream = written.stream.filter(|of| !is_it(of));
        }
    }

    pub(super) fn on_revoked(&mut self, stream: u16, revoked: Revoked) -> Result<(), Error> {
        let Some(flow) = self.flow(stream) else {
            return Ok(());
        };
        flow.sender.on_revoke(revoked.id)?;
        if let Some(run) = flow.run
            && run.id <= revoked.id
            && run.again.is_none()
        {
            let has = run.from.max(revoked.seq);
            if has > flow.transit.posted() {
                return Err(PeerFault::AckSeq.into());
            }
            flow.void(has)?;
            if run.fate != Fate::Told {
                // No completion will tell.
                flow.completed = flow.completed.max(has);
            }
            flow.transit.on_completed(has)?;
            self.forget_written(stream, has);
            self.settle(stream);
        }
        self.due.set(stream);
        Ok(())
    }

    pub(super) fn on_again(&mut self, stream: u16, from: Seq) -> Result<Came, Error> {
        if let Some(flow) = self.flow(stream) {
            flow.on_again(from)?;
        }
        Ok(Came::Nothing)
    }
}
