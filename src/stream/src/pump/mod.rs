//! What an end of a link over verbs posts next, and what came: all streams of it, their switches,
//! their credit and that of receives.
//!
//! Guarantees, for two ends that keep to it and a link that keeps order: a message finds a receive,
//! a place in the control ring and room in the peer's ring; bytes are posted after the steps that
//! allow them; no stream waits while others are served without end; nothing is allocated but by
//! [`Pump::new`] and [`Pump::open`]. What the peer says is checked before it counts.
//!
//! Refuses to know: memory, queue pairs, clocks, sockets. The caller has the rings, posts what
//! [`Pump::poll`] says, in that order, and tells what completed and came. What a stream must do on
//! TCP it asks of the [`Transit`] ([`Pump::transit`]).
//!
//! # Primer
//!
//! ```text
//!    program            this end's pump                      the peer's pump              program
//!    ───────            ───────────────                      ───────────────              ───────
//!    ring, tail ──► on_tail ─► poll ══ WRITE, immediate ═══► on_came ─► Bytes, tail ──►   ring
//!    head ◄── Credit ── on_came ◄═══ WRITE to a control slot ══ poll ◄─ on_head ◄─────────  head
//! ```
//!
//! Positions are bytes on the link since the switch. A byte of the staging ring is free again when
//! it is completed *and* credited ([`Pump::kept`]): until then a demotion may need it.

mod direct;
mod due;
mod fence;
mod flow;
mod heard;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_direct;
mod types;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::config::{Config, MAX_RING_LEN, Provider};
use crate::error::{Bug, Error, PeerFault};
use crate::receiver::{Copied, Receiver};
use crate::receives::Receives;
use crate::record::{Action, Out, Reason, Step, Transit};
use crate::sender::Sender;
use crate::wire::{Ack, Control, Credit, Immediate, Meeting, Notice, Seq};
use direct::{Lending, Notices, Written};
pub use direct::{Loan, NOTICES};
use due::Due;
use fence::Fences;
use flow::{Flow, Said};
pub use types::{Came, Lent, Message, Opening, Stepped, Terms, What};

/// A message given to the device: which stream's ring bytes, if any, and up to where.
type Posted = Option<(u16, Seq)>;

/// An end of a link over verbs. See the [module](self).
#[derive(Debug)]
pub struct Pump {
    terms: Terms,
    receives: Receives,
    flows: Vec<Option<Box<Flow>>>,
    /// How often each number was used before, modulo [`Immediate::COUNTS`].
    uses: Vec<u16>,
    due: Due,
    posted: VecDeque<Posted>,
    /// The slots that the next control messages go to, and come in.
    controls: u16,
    heard: u16,
    /// What is to be said of no stream of this end's, or of one that it has left: by the peer's
    /// number.
    says: VecDeque<(u16, Control)>,
    /// Streams that the peer has left before this end has opened them: its word may overtake what
    /// agrees on them.
    early: Vec<u16>,
    /// A count is due, whatever it says.
    probe: bool,
    /// Some stream waits to hear that the link has been emptied.
    drains: bool,
    /// Streams that are on their way from TCP to the link, or back after a completion of this
    /// end's.
    under_way: u16,
    /// Streams that this end has left and the peer has not.
    left: u16,
    /// Direct transfers can be posted; those under way; and counts of them.
    direct: bool,
    written: VecDeque<Written>,
    notices: Notices,
    /// Some stream may wait to hear what became of what a lost queue pair had.
    asks: bool,
    fences: Fences,
    /// Nothing is posted any more.
    lost: bool,
}

impl Pump {
    /// An end of a link that has just come up.
    ///
    /// # Errors
    /// [`PeerFault::Receives`]: the terms are no possible ones.
    pub fn new(terms: Terms) -> Result<Self, Error> {
        let receives = Receives::new(terms.ours, terms.theirs)?;
        if terms.sends == 0 || terms.message_len == 0 {
            return Err(PeerFault::Receives.into());
        }
        Ok(Self {
            terms,
            receives,
            flows: Vec::new(),
            uses: Vec::new(),
            due: Due::NONE,
            posted: VecDeque::with_capacity(usize::from(terms.sends)),
            controls: 0,
            heard: 0,
            says: VecDeque::new(),
            early: Vec::new(),
            probe: false,
            drains: false,
            under_way: 0,
            left: 0,
            direct: false,
            written: VecDeque::new(),
            notices: Notices::default(),
            asks: false,
            fences: Fences::default(),
            lost: false,
        })
    }

    fn flow(&mut self, stream: u16) -> Option<&mut Flow> {
        self.flows.get_mut(usize::from(stream))?.as_deref_mut()
    }

    /// A stream that both ends have agreed on, of which the peer may have gone again: then a step
    /// is to be taken. Its number must be free: by both, what the peer says of its last use is
    /// over.
    ///
    /// # Errors
    /// [`PeerFault::Malformed`]: a number is in use or none, or the ring that was lent cannot be
    /// one.
    pub fn open(&mut self, stream: u16, with: &Opening) -> Result<(), Error> {
        let Opening { lent, .. } = *with;
        let wraps = lent.place.checked_add(u64::from(lent.len)).is_none();
        let free = stream < Immediate::STREAM_COUNT && self.flow(stream).is_none();
        let named = with.theirs < Immediate::STREAM_COUNT;
        if !free
            || !named
            || wraps
            || !lent.len.is_power_of_two()
            || lent.len > MAX_RING_LEN
            || !with.staging_len.is_power_of_two()
        {
            return Err(PeerFault::Malformed.into());
        }
        let Terms {
            mode, direct_min, ..
        } = self.terms;
        let terms = |len| Config::new(mode, Provider::Push, len, direct_min);
        let early = self.early.iter().position(|of| *of == stream);
        let peer_left = early.map(|at| self.early.swap_remove(at)).is_some();
        let flow = Flow {
            transit: Transit::new(with.role, with.nonce, with.tcp_read),
            nonce: with.nonce,
            sender: Sender::new(&terms(lent.len)?),
            receiver: Receiver::new(&terms(with.ring_len)?),
            theirs: with.theirs,
            lent,
            staging_len: with.staging_len,
            ring_len: with.ring_len,
            mode,
            direct_min,
            tail: Seq::START,
            edges: VecDeque::new(),
            completed: Seq::START,
            given: Seq::START,
            fenced: Seq::START,
            came: Seq::START,
            ack: None,
            step: None,
            held: None,
            run: None,
            lending: Lending::default(),
            number_use: self.uses.get(usize::from(stream)).copied().unwrap_or(0),
            their_use: 0,
            consented: false,
            peer_consented: false,
            steps: peer_left.then_some(Step::Cancel).into_iter().collect(),
            tcp_read: with.tcp_read,
            record: None,
            written: 0,
            part: Vec::new(),
            reset: None,
            drain: false,
            under_way: true,
            ticks: 0,
            left: false,
            peer_left,
        };
        self.under_way += 1;
        self.keep(stream, Box::new(flow));
        Ok(())
    }

    fn keep(&mut self, stream: u16, flow: Box<Flow>) {
        let at = usize::from(stream);
        if self.flows.len() <= at {
            self.flows.resize_with(at + 1, || None);
            self.uses.resize(at + 1, 0);
        }
        if let Some(place) = self.flows.get_mut(at) {
            *place = Some(flow);
        }
    }

    /// This end leaves the stream: what still comes of it is ignored. Whether its number is free,
    /// since the peer had left it.
    pub fn close(&mut self, stream: u16) -> bool {
        self.due.clear(stream);
        let Some(flow) = self.flow(stream) else {
            return false;
        };
        let (theirs, free) = (flow.theirs, flow.peer_left);
        if core::mem::replace(&mut flow.left, true) {
            return false;
        }
        // Else the peer would wait for a record.
        let unsaid = flow.step.take().filter(|step| *step == Step::Cancel);
        let under_way = core::mem::take(&mut flow.under_way);
        self.under_way -= u16::from(under_way);
        self.left += 1;
        let unsaid = unsaid.map(|step| (theirs, Control::Switch(step)));
        self.says.extend(unsaid);
        self.says.push_back((theirs, Control::Closed));
        self.forget_if(stream, free)
    }

    /// The stream does not come to be, and the peer has not been told that it is open: its number
    /// is free.
    pub fn discard(&mut self, stream: u16) {
        self.due.clear(stream);
        if let Some(flow) = self.flow(stream) {
            let under_way = core::mem::take(&mut flow.under_way);
            self.under_way -= u16::from(under_way);
            self.forget_if(stream, true);
        }
    }

    fn forget_if(&mut self, stream: u16, free: bool) -> bool {
        if free && let Some(place) = self.flows.get_mut(usize::from(stream)) {
            let flow = place.take();
            self.left -= u16::from(flow.is_some_and(|flow| flow.left));
            if let Some(uses) = self.uses.get_mut(usize::from(stream)) {
                *uses = (*uses + 1) % Immediate::COUNTS;
            }
            // The next stream of this number has posted nothing.
            for posted in &mut self.posted {
                *posted = posted.filter(|(of, _)| *of != stream);
            }
            self.forget_written(stream, Seq::START);
        }
        free
    }

    /// Says something of no stream.
    pub fn meet(&mut self, meeting: Meeting) {
        self.says.push_back((0, Control::Meeting(meeting)));
    }

    /// The stream's way between TCP and the link, to ask and to tell. After what is told:
    /// [`settle`](Self::settle).
    pub fn transit(&mut self, stream: u16) -> Option<&mut Transit> {
        self.flow(stream).map(|flow| &mut flow.transit)
    }

    /// The streams of this end that it has not left.
    pub fn streams(&self) -> impl Iterator<Item = u16> {
        let open = |flow: &Option<Box<Flow>>| flow.as_ref().is_some_and(|flow| !flow.left);
        let numbers = 0..Immediate::STREAM_COUNT;
        numbers
            .zip(&self.flows)
            .filter(move |(_, flow)| open(flow))
            .map(|(stream, _)| stream)
    }

    /// The program, or this library, has removed all of TCP before `offset`.
    ///
    /// # Errors
    /// [`Bug::Copied`]: more than [`Transit::tcp_room`] allows.
    pub fn on_tcp_read(&mut self, stream: u16, offset: u64) -> Result<(), Error> {
        let Some(flow) = self.flow(stream) else {
            return Ok(());
        };
        let more = offset.saturating_sub(flow.tcp_read);
        flow.tcp_read += more;
        if more != 0 {
            flow.transit.on_tcp_read(more)?;
            self.settle(stream);
        }
        Ok(())
    }

    /// The record at the peer's N was removed from TCP: no byte of the stream's.
    pub fn on_record_removed(&mut self, stream: u16, len: u64) {
        if let Some(flow) = self.flow(stream) {
            flow.tcp_read += len;
        }
    }

    /// The beginning of the record at the peer's N was removed from TCP: as the transit allows by
    /// [`Transit::is_part`].
    pub fn on_part_removed(&mut self, stream: u16, part: &[u8]) {
        self.on_record_removed(stream, part.len() as u64);
        if let Some(flow) = self.flow(stream) {
            flow.part.extend_from_slice(part);
        }
    }

    /// What of the record at the peer's N was removed already.
    pub fn part(&mut self, stream: u16) -> &[u8] {
        self.flow(stream).map_or(&[], |flow| &flow.part)
    }

    /// No read of this end's program waits on TCP for what will come by the link: the peer is told,
    /// once. The second end tells when it has heard the first, which by then has opened the stream.
    pub fn consent(&mut self, stream: u16) {
        let goes_on = |flow: &&mut Flow| !flow.left && !flow.transit.is_leaving();
        let Some(flow) = self.flow(stream).filter(goes_on) else {
            return;
        };
        let tells = !flow.consented && (flow.transit.is_first() || flow.peer_consented);
        if tells {
            flow.consented = true;
            let theirs = flow.theirs;
            self.says.push_back((theirs, Control::Consent));
        }
    }

    /// Whether this end is to fix its N as soon as it can: the first not before the second
    /// consents, since from then on its bytes wait for the link.
    #[must_use]
    pub fn wants_fix(&mut self, stream: u16) -> bool {
        self.flow(stream).is_some_and(|flow| {
            flow.transit.wants_fix() && (flow.peer_consented || !flow.transit.is_first())
        })
    }

    /// Takes the next step of the switch that has come.
    ///
    /// # Errors
    /// [`PeerFault::Step`]: not the next.
    pub fn step(&mut self, stream: u16) -> Result<Stepped, Error> {
        let Some(flow) = self.flow(stream) else {
            return Ok(Stepped::None);
        };
        let Some(step) = flow.steps.front().copied() else {
            return Ok(Stepped::None);
        };
        // After its N an end says nothing, but that it has left.
        let left = flow.steps.contains(&Step::Cancel);
        if !left && !flow.transit.may_take(step) {
            return Ok(Stepped::Far);
        }
        flow.steps.pop_front();
        flow.transit.on_step(step)?;
        self.settle(stream);
        Ok(Stepped::Taken)
    }

    /// Whether a step waits until more of TCP is read.
    #[must_use]
    pub fn is_far(&mut self, stream: u16) -> bool {
        self.flow(stream).is_some_and(|flow| {
            let next = flow.steps.front();
            let left = flow.left || flow.steps.contains(&Step::Cancel);
            !left && next.is_some_and(|step| !flow.transit.may_take(*step))
        })
    }

    /// Takes note of what the stream has to do: on the link by [`poll`](Self::poll), on TCP by
    /// [`record`](Self::record) and [`reset`](Self::reset). Whether to fix its N tells
    /// [`Transit::wants_fix`].
    pub fn settle(&mut self, stream: u16) {
        let Some(flow) = self.flow(stream) else {
            return;
        };
        let mut drains = false;
        while let Some(action) = flow.transit.poll_action() {
            match action {
                Action::Tell(step) => flow.step = Some(step),
                Action::Write(record) => flow.record = Some(record.emit(&flow.nonce)),
                Action::Reset(reason) => flow.reset = Some(reason),
                Action::Drain => drains = true,
                Action::Fix => {}
            }
        }
        flow.drain |= drains;
        let leaving = flow.transit.is_leaving();
        if leaving {
            flow.sender.seal();
            flow.withdraw();
        }
        let ending = flow.transit.is_ending();
        let through = flow.transit.out() == Out::Link || leaving;
        let (was_under_way, is_under_way) = flow.note_under_way(through, ending);
        if flow.step.is_some() || flow.may_post() {
            self.due.set(stream);
        }
        self.drains |= drains;
        self.under_way = self.under_way - was_under_way + is_under_way;
        // Its end is told by a completion that was asked for.
        self.probe |= ending;
        if ending {
            self.want_fence(stream);
        }
        if leaving && !self.written.is_empty() {
            self.forget_written(stream, Seq::START);
        }
    }

    /// Whether what the peer says next matters although no program may wait for it: a switch is
    /// under way, something is to be said and could not be yet, bytes wait for a buffer of the
    /// peer's, or for its word of what became of them, or a stream that this end has left is the
    /// peer's to leave.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let under_way = self.under_way != 0 || self.left != 0;
        let waits = || {
            let says = !self.says.is_empty() || self.due.any();
            says || self.waits_for_buffer() || self.asks_for_fate()
        };
        !self.lost && (under_way || waits())
    }

    /// Does a stream wait for [`on_emptied`](Self::on_emptied)?
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.drains
    }

    /// All that the link has delivered by now was reported.
    pub fn on_emptied(&mut self) {
        if !core::mem::take(&mut self.drains) {
            return;
        }
        for flow in self.flows.iter_mut().flatten() {
            if core::mem::take(&mut flow.drain) {
                flow.transit.on_drained();
                if let Some(Action::Reset(reason)) = flow.transit.poll_action() {
                    flow.reset = Some(reason);
                }
            }
        }
    }

    /// What of the stream's record is still to be written to TCP, before any other byte.
    pub fn record(&mut self, stream: u16) -> Option<&[u8]> {
        let flow = self.flow(stream)?;
        let rest = flow.record.as_ref()?.get(flow.written..)?;
        (!rest.is_empty()).then_some(rest)
    }

    /// So many bytes more of the record are on TCP.
    pub fn on_record_written(&mut self, stream: u16, len: usize) {
        if let Some(flow) = self.flow(stream) {
            flow.written += len;
        }
    }

    /// Whether the connection is to be reset, and why; once.
    pub fn reset(&mut self, stream: u16) -> Option<Reason> {
        self.flow(stream)?.reset.take()
    }

    /// The stream's bytes from `at` on, which are not there yet, will lie elsewhere than those
    /// before: no message takes bytes of both.
    pub fn on_edge(&mut self, stream: u16, at: Seq) {
        let kept = self.kept(stream);
        if let Some(flow) = self.flow(stream) {
            while flow.edges.front().is_some_and(|edge| *edge <= kept) {
                flow.edges.pop_front();
            }
            if flow.edges.back() != Some(&at) {
                flow.edges.push_back(at);
            }
        }
    }

    /// The program has put bytes into the staging ring: all before `tail` are there.
    pub fn on_tail(&mut self, stream: u16, tail: Seq) {
        let Some(flow) = self.flow(stream) else {
            return;
        };
        flow.tail = flow.tail.max(tail);
        if flow.may_post() {
            self.due.set(stream);
        }
    }

    /// The program has read all before `head`.
    ///
    /// # Errors
    /// [`Bug::Copied`]: so much was not there.
    pub fn on_head(&mut self, stream: u16, head: Seq) -> Result<(), Error> {
        let Some(flow) = self.flow(stream) else {
            return Ok(());
        };
        let passed = head.since(flow.transit.read()).unwrap_or(0);
        if passed == 0 {
            return Ok(());
        }
        flow.has_read_tcp()?;
        let read = head.since(flow.receiver.seq()).unwrap_or(0);
        let mut due = false;
        if read < passed {
            // Some had come directly: their writer waits for the word.
            let seq = head.min(flow.receiver.seq());
            let credit = Credit::new(0);
            due |= flow.tell(Ack { credit, seq });
        }
        if read != 0 {
            let read = u32::try_from(read).map_err(|_| Bug::Copied)?;
            if let Copied::Ack(ack) = flow.receiver.on_copied(read)? {
                due |= flow.tell(ack);
            }
        }
        flow.transit.on_read(head)?;
        if due {
            self.due.set(stream);
        }
        Ok(())
    }

    /// The program waits for more than the ring holds: all that it has read is the peer's to use
    /// again.
    pub fn flush(&mut self, stream: u16) {
        let Some(flow) = self.flow(stream) else {
            return;
        };
        if let Some(ack) = flow.receiver.flush()
            && flow.tell(ack)
        {
            self.due.set(stream);
        }
    }

    /// What this end has written before here is in the peer's ring.
    #[must_use]
    pub fn completed(&mut self, stream: u16) -> Seq {
        self.flow(stream).map_or(Seq::START, |flow| flow.completed)
    }

    /// Where the staging ring begins that must be kept: what is before was completed and credited.
    #[must_use]
    pub fn kept(&mut self, stream: u16) -> Seq {
        self.flow(stream)
            .map_or(Seq::START, |flow| flow.completed.min(flow.transit.kept()))
    }

    /// The next message to post, if one may go now.
    pub fn poll(&mut self) -> Option<Message> {
        if self.lost || self.posted.len() >= usize::from(self.terms.sends) {
            return None;
        }
        if self.receives.room() > 0
            && let Some((theirs, control)) = self.says.pop_front()
        {
            return Some(self.control(theirs, control));
        }
        while self.receives.room() > 0
            && let Some(stream) = self.due.next()
        {
            // Others first, before this one is served again.
            self.due.pass(stream);
            let message_len = self.terms.message_len;
            let direct = self.can_write();
            let said = self
                .flow(stream)
                .and_then(|flow| flow.next(message_len, direct));
            let Some(said) = said else {
                self.due.clear(stream);
                continue;
            };
            return Some(self.message(stream, said));
        }
        if self.receives.must_tell() || self.probe && self.receives.room() > 0 {
            self.probe = false;
            let word = self.word(0, Notice::Count);
            self.posted.push_back(None);
            let what = What::Count;
            return Some(Message { what, word });
        }
        let what = What::Fence;
        self.poll_fence().then_some(Message { what, word: 0 })
    }

    fn word(&mut self, stream: u16, notice: Notice) -> u32 {
        let count = self.receives.on_send();
        // Both are in range: the number by `open`, the count by `Receives`.
        Immediate::new(stream, notice, count).map_or(0, Immediate::emit)
    }

    /// Has a message of nothing but the count sent, whose completion tells that the link lives.
    pub fn probe(&mut self) {
        self.probe = true;
    }

    fn message(&mut self, stream: u16, said: Said) -> Message {
        let (theirs, their_use) = self
            .flow(stream)
            .map_or((0, 0), |flow| (flow.theirs, flow.their_use));
        let (from, len, to) = match said {
            Said::Control(control) => return self.control(theirs, control),
            Said::Direct { from, len, to, tag } => {
                self.on_write(stream, from.plus(len));
                let word = Immediate::new(theirs, Notice::Direct(tag), their_use);
                let word = word.map_or(0, Immediate::emit);
                let what = What::Direct {
                    stream,
                    from,
                    len,
                    to,
                };
                return Message { what, word };
            }
            Said::Bytes { from, len, to } => (from, len, to),
        };
        let what = What::Bytes {
            stream,
            from,
            len,
            to,
        };
        let word = self.word(theirs, Notice::Ring);
        self.posted.push_back(Some((stream, from.plus(len))));
        Message { what, word }
    }

    /// A control message of the stream that the peer knows by this number.
    fn control(&mut self, theirs: u16, control: Control) -> Message {
        let slot = self.controls;
        self.controls = (slot + 1) % self.terms.theirs;
        let bytes = control.emit();
        let word = self.word(theirs, Notice::Control);
        self.posted.push_back(None);
        let what = What::Control { slot, bytes };
        Message { what, word }
    }

    /// The oldest `messages` that were posted are complete; `each` gets the streams whose staging
    /// may have become free.
    ///
    /// # Errors
    /// [`Bug::Switch`]: so many were not posted.
    pub fn on_done(&mut self, messages: usize, mut each: impl FnMut(u16)) -> Result<(), Error> {
        for _ in 0..messages {
            let posted = self.posted.pop_front().ok_or(Bug::Switch)?;
            let Some((stream, to)) = posted else { continue };
            if let Some(flow) = self.flow(stream).filter(|flow| !flow.left) {
                flow.completed = flow.completed.max(to);
                self.on_given(stream, to)?;
                each(stream);
            }
        }
        Ok(())
    }

    /// The link is lost, and all that it had delivered was reported.
    pub fn on_lost(&mut self) {
        self.lost = true;
        self.direct = false;
        self.written.clear();
        self.says.clear();
        for stream in 0..Immediate::STREAM_COUNT {
            if let Some(flow) = self.flow(stream) {
                flow.steps.clear();
                flow.transit.on_link_lost();
                self.settle(stream);
            }
        }
        self.on_emptied();
    }

    /// After [`on_lost`](Self::on_lost): a stream that this end had left and the peer had not. Its
    /// number is free.
    pub fn take_left(&mut self) -> Option<u16> {
        let is_left = |flow: &Option<Box<Flow>>| flow.as_ref().is_some_and(|flow| flow.left);
        let at = self.flows.iter().position(is_left).filter(|_| self.lost)?;
        let at = u16::try_from(at).ok()?;
        self.forget_if(at, true);
        Some(at)
    }

    /// Called at even intervals: for how many of them, with this one, a step of the switch was due,
    /// of the stream that waits longest.
    pub fn tick(&mut self) -> u8 {
        self.asks = self.asks_for_fate();
        let flows = self.flows.iter_mut().flatten();
        let ticks = flows.map(|flow| {
            let waits = !flow.left && flow.transit.awaits_step();
            flow.ticks = if waits {
                flow.ticks.saturating_add(1)
            } else {
                0
            };
            flow.ticks
        });
        ticks.max().unwrap_or(0)
    }

    /// Messages given to the device and not complete: while there are any the link's timer runs.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.posted.len()
    }
}
