//! What an end of a link over verbs posts next, and what came: all streams of it, their switches, their credit and that of
//! receives.
//!
//! Guarantees, for two ends that keep to it and a link that keeps order: a message finds a receive, a place in the control ring
//! and room in the peer's ring; bytes are posted after the steps that allow them; no stream waits while others are served without
//! end; nothing is allocated but by [`Pump::new`] and [`Pump::open`]. What the peer says is checked before it counts.
//!
//! Refuses to know: memory, queue pairs, clocks, sockets. The caller has the rings, posts what [`Pump::poll`] says, in that order,
//! and tells what completed and came. What a stream must do on TCP it asks of the [`Transit`] ([`Pump::transit`]).
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
//! Positions are bytes on the link since the switch. A byte of the staging ring is free again when it is completed *and* credited
//! ([`Pump::kept`]): until then a demotion may need it.

mod flow;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::config::{Config, Mode, Provider};
use crate::error::{Bug, Error, PeerFault};
use crate::receiver::{Copied, Receiver};
use crate::receives::Receives;
use crate::record::{Action, Nonce, Role, Transit};
use crate::sender::Sender;
use crate::wire::{CONTROL_LEN, Control, Immediate, Notice, Seq};
use flow::{Flow, Said};

/// The terms of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Receives that this end keeps posted, and so many slots of [`CONTROL_LEN`] bytes it lends for control messages.
    pub ours: u16,
    /// The same of the peer.
    pub theirs: u16,
    /// Messages that may be posted and not completed at once.
    pub sends: u16,
    /// Bytes of one message at most.
    pub message_len: u32,
}

/// Memory that the peer has lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// Its address there.
    pub place: u64,
    /// By which key it is written to.
    pub key: u32,
    /// Its bytes: a power of two for a ring.
    pub len: u32,
}

/// How a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Which end fixes its N first.
    pub role: Role,
    /// The stream's secret.
    pub nonce: Nonce,
    /// By which number the peer knows it: each end numbers its streams itself.
    pub theirs: u16,
    /// Bytes of the peer's that the program has read from TCP.
    pub tcp_read: u64,
    /// The ring that this end has lent to the peer, in bytes.
    pub ring_len: u32,
    /// The staging ring, in which the program's bytes lie until they are credited.
    pub staging_len: u32,
    /// The ring that the peer has lent.
    pub lent: Lent,
}

/// What to post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Bytes of a stream, that lie together in the staging ring and in the peer's.
    Bytes {
        /// Whose.
        stream: u16,
        /// Position of the first; it lies in the staging ring at this modulo its length.
        from: Seq,
        /// How many.
        len: u32,
        /// Where they go in the peer's memory, and the key.
        to: (u64, u32),
    },
    /// A control message, to be written into this slot of the peer's control ring.
    Control {
        /// Below [`Terms::theirs`].
        slot: u16,
        /// What to write there.
        bytes: [u8; CONTROL_LEN],
    },
    /// No bytes: the word alone.
    Count,
}

/// A message: what, and the immediate that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// What to post.
    pub what: What,
    /// The immediate.
    pub word: u32,
}

/// What a message that came means for the stream that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Came {
    /// The program can read up to here.
    Bytes(u16, Seq),
    /// The staging ring is free up to [`Pump::kept`].
    Credit(u16),
    /// A step of the switch: [`Pump::action`] may have something to do.
    Step(u16),
    /// Nothing to be done.
    Nothing,
}

/// A message given to the device.
#[derive(Debug, Clone, Copy)]
struct Posted {
    /// Which stream's bytes, up to where.
    bytes: Option<(u16, Seq)>,
}

const WORDS: usize = Immediate::STREAM_COUNT as usize / 64;

/// Streams with something to post.
#[derive(Debug)]
struct Due {
    bits: [u64; WORDS],
    /// Where the next look begins: behind the stream that was served last.
    from: u16,
}

impl Due {
    fn set(&mut self, stream: u16) {
        if let Some(word) = self.bits.get_mut(usize::from(stream) / 64) {
            *word |= 1 << (stream % 64);
        }
    }

    fn clear(&mut self, stream: u16) {
        if let Some(word) = self.bits.get_mut(usize::from(stream) / 64) {
            *word &= !(1 << (stream % 64));
        }
    }

    /// The next after the one served last, round and round.
    fn next(&self) -> Option<u16> {
        let first = usize::from(self.from) / 64;
        for i in 0..=WORDS {
            let at = (first + i) % WORDS;
            let mut word = *self.bits.get(at)?;
            if i == 0 {
                word &= u64::MAX << (self.from % 64);
            }
            if word != 0 {
                return u16::try_from(at * 64 + word.trailing_zeros() as usize).ok();
            }
        }
        None
    }
}

/// An end of a link over verbs. See the [module](self).
#[derive(Debug)]
pub struct Pump {
    terms: Terms,
    receives: Receives,
    flows: Vec<Option<Box<Flow>>>,
    due: Due,
    posted: VecDeque<Posted>,
    /// The slots that the next control messages go to, and come in.
    controls: u16,
    heard: u16,
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
            due: Due {
                bits: [0; WORDS],
                from: 0,
            },
            posted: VecDeque::with_capacity(usize::from(terms.sends)),
            controls: 0,
            heard: 0,
            lost: false,
        })
    }

    fn flow(&mut self, stream: u16) -> Option<&mut Flow> {
        self.flows.get_mut(usize::from(stream))?.as_deref_mut()
    }

    /// A stream that both ends have agreed on. Its number must be free: by both, what the peer says of its last use is over.
    ///
    /// # Errors
    /// [`PeerFault::Malformed`]: a number is in use or none, or the ring that was lent cannot be one.
    pub fn open(&mut self, stream: u16, with: &Opening) -> Result<(), Error> {
        let Opening { lent, .. } = *with;
        let wraps = lent.place.checked_add(u64::from(lent.len)).is_none();
        let free = stream < Immediate::STREAM_COUNT && self.flow(stream).is_none();
        let named = with.theirs < Immediate::STREAM_COUNT;
        if !free
            || !named
            || wraps
            || !lent.len.is_power_of_two()
            || !with.staging_len.is_power_of_two()
        {
            return Err(PeerFault::Malformed.into());
        }
        let terms = |len| Config::new(Mode::Indirect, Provider::Push, len, 1);
        let flow = Flow {
            transit: Transit::new(with.role, with.nonce, with.tcp_read),
            sender: Sender::new(&terms(lent.len)?),
            receiver: Receiver::new(&terms(with.ring_len)?),
            theirs: with.theirs,
            lent,
            staging_len: with.staging_len,
            tail: Seq::START,
            completed: Seq::START,
            came: Seq::START,
            ack: None,
            step: None,
            held: None,
        };
        let at = usize::from(stream);
        if self.flows.len() <= at {
            self.flows.resize_with(at + 1, || None);
        }
        if let Some(place) = self.flows.get_mut(at) {
            *place = Some(Box::new(flow));
        }
        Ok(())
    }

    /// The stream is over at this end; what still comes of it is ignored.
    pub fn close(&mut self, stream: u16) {
        self.due.clear(stream);
        if let Some(place) = self.flows.get_mut(usize::from(stream)) {
            *place = None;
        }
    }

    /// The stream's way between TCP and the link, to ask and to tell. Behind every call of it: [`action`](Self::action).
    pub fn transit(&mut self, stream: u16) -> Option<&mut Transit> {
        self.flow(stream).map(|flow| &mut flow.transit)
    }

    /// What the stream has to do on TCP; what it has to tell goes out by [`poll`](Self::poll).
    pub fn action(&mut self, stream: u16) -> Option<Action> {
        let flow = self.flow(stream)?;
        let action = loop {
            match flow.transit.poll_action() {
                Some(Action::Tell(step)) => flow.step = Some(step),
                other => break other,
            }
        };
        if flow.step.is_some() || flow.may_post() {
            self.due.set(stream);
        }
        action
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
        let read = head.since(flow.receiver.seq()).unwrap_or(0);
        let read = u32::try_from(read).map_err(|_| Bug::Copied)?;
        if read == 0 {
            return Ok(());
        }
        let copied = flow.receiver.on_copied(read)?;
        flow.transit.on_read(head)?;
        if let Copied::Ack(ack) = copied
            && flow.tell(ack)
        {
            self.due.set(stream);
        }
        Ok(())
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
        while self.receives.room() > 0
            && let Some(stream) = self.due.next()
        {
            // Others first, before this one is served again.
            self.due.from = (stream + 1) % Immediate::STREAM_COUNT;
            let message_len = self.terms.message_len;
            let said = self.flow(stream).and_then(|flow| flow.next(message_len));
            let Some(said) = said else {
                self.due.clear(stream);
                continue;
            };
            return Some(self.message(stream, said));
        }
        if self.receives.must_tell() {
            let word = self.word(0, Notice::Count);
            self.posted.push_back(Posted { bytes: None });
            return Some(Message {
                what: What::Count,
                word,
            });
        }
        None
    }

    fn word(&mut self, stream: u16, notice: Notice) -> u32 {
        let count = self.receives.on_send();
        // Both are in range: the number by `open`, the count by `Receives`.
        Immediate::new(stream, notice, count).map_or(0, Immediate::emit)
    }

    fn message(&mut self, stream: u16, said: Said) -> Message {
        let (what, notice, bytes) = match said {
            Said::Bytes { from, len, to } => {
                let what = What::Bytes {
                    stream,
                    from,
                    len,
                    to,
                };
                (what, Notice::Ring, Some((stream, from.plus(len))))
            }
            Said::Control(control) => {
                let slot = self.controls;
                self.controls = (slot + 1) % self.terms.theirs;
                let bytes = control.emit();
                (What::Control { slot, bytes }, Notice::Control, None)
            }
        };
        let theirs = self.flow(stream).map_or(0, |flow| flow.theirs);
        let word = self.word(theirs, notice);
        self.posted.push_back(Posted { bytes });
        Message { what, word }
    }

    /// The oldest `messages` that were posted are complete; `each` gets the streams whose staging may have become free.
    ///
    /// # Errors
    /// [`Bug::Switch`]: so many were not posted.
    pub fn on_done(&mut self, messages: usize, mut each: impl FnMut(u16)) -> Result<(), Error> {
        for _ in 0..messages {
            let Some(Posted { bytes }) = self.posted.pop_front() else {
                return Err(Bug::Switch.into());
            };
            let Some((stream, to)) = bytes else { continue };
            if let Some(flow) = self.flow(stream) {
                flow.completed = to;
                flow.transit.on_completed(to)?;
                each(stream);
            }
        }
        Ok(())
    }

    /// A message came, and its receive is posted again: the immediate, the bytes that came with it, and where it is of the
    /// control ring a private copy of the slot.
    ///
    /// # Errors
    /// [`PeerFault`]: the link is to be given up, as if lost.
    pub fn on_came(
        &mut self,
        word: u32,
        len: u32,
        control: impl FnOnce(u16) -> [u8; CONTROL_LEN],
    ) -> Result<Came, Error> {
        let immediate = Immediate::parse(word)?;
        self.receives.on_came(immediate.count())?;
        let stream = immediate.stream();
        match immediate.notice() {
            Notice::Count if len == 0 => Ok(Came::Nothing),
            Notice::Ring => match self.flow(stream) {
                Some(flow) => flow.on_bytes(len).map(|to| Came::Bytes(stream, to)),
                None => Ok(Came::Nothing),
            },
            Notice::Control if len as usize == CONTROL_LEN => {
                let slot = self.heard;
                self.heard = (slot + 1) % self.terms.ours;
                let control = Control::parse(&control(slot))?;
                self.on_control(stream, control)
            }
            Notice::Count | Notice::Control | Notice::Direct(_) => Err(PeerFault::Malformed.into()),
        }
    }

    fn on_control(&mut self, stream: u16, control: Control) -> Result<Came, Error> {
        let Some(flow) = self.flow(stream) else {
            return Ok(Came::Nothing);
        };
        match control {
            Control::Ack(ack) => {
                flow.sender.on_ack(ack)?;
                flow.transit.on_credit(ack.seq)?;
                if flow.may_post() {
                    self.due.set(stream);
                }
                Ok(Came::Credit(stream))
            }
            Control::Blocked => {
                let ack = flow.receiver.on_blocked();
                if ack.is_some_and(|ack| flow.tell(ack)) {
                    self.due.set(stream);
                }
                Ok(Came::Nothing)
            }
            Control::Switch(step) => {
                flow.transit.on_step(step)?;
                Ok(Came::Step(stream))
            }
            Control::Turn(turn) => {
                let _ = flow.receiver.on_turn(turn)?;
                Ok(Came::Nothing)
            }
            // Direct transfers are not agreed on.
            Control::Advert(_) | Control::Revoke(_) => Err(PeerFault::WrongProvider.into()),
        }
    }

    /// The link is lost, and all that it had delivered was reported. Each stream goes on by its [`action`](Self::action).
    pub fn on_lost(&mut self) {
        self.lost = true;
        for flow in self.flows.iter_mut().flatten() {
            flow.transit.on_link_lost();
        }
    }

    /// Messages given to the device and not complete: while there are any the link's timer runs.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.posted.len()
    }
}
