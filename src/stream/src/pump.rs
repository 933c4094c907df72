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

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::action::{Action as Transfer, Route};
use crate::config::{Config, Mode, Provider};
use crate::error::{Bug, Error, PeerFault};
use crate::receiver::{Copied, Receiver};
use crate::receives::Receives;
use crate::record::{Action, Nonce, Out, Role, Step, Transit};
use crate::sender::Sender;
use crate::wire::{Ack, CONTROL_LEN, Control, Credit, Immediate, Notice, Seq};

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

/// One stream at this end.
#[derive(Debug)]
struct Flow {
    transit: Transit,
    sender: Sender,
    receiver: Receiver,
    theirs: u16,
    lent: Lent,
    staging_len: u32,
    /// Bytes in the staging ring so far.
    tail: Seq,
    /// Of these completed.
    completed: Seq,
    /// Bytes that came.
    came: Seq,
    /// What is to be told, each once.
    ack: Option<Ack>,
    step: Option<Step>,
    /// Bytes behind a TURN: they count as posted.
    held: Option<Said>,
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
    /// Control messages sent so far.
    controls: u16,
    /// Control messages that came so far.
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
                let slot = self.controls % self.terms.theirs;
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
                let slot = self.heard % self.terms.ours;
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

/// What a stream has to say.
#[derive(Debug)]
enum Said {
    Bytes { from: Seq, len: u32, to: (u64, u32) },
    Control(Control),
}

impl Flow {
    fn may_post(&self) -> bool {
        self.transit.out() == Out::Link && self.tail > self.sender.seq()
    }

    /// Credit for the peer; false: it is told by the link no more.
    fn tell(&mut self, ack: Ack) -> bool {
        if !self.transit.gives_credit() {
            return false;
        }
        let before = self.ack.map_or(0, |a| a.credit.value());
        self.ack = Some(Ack {
            credit: Credit::new(before + ack.credit.value()),
            ..ack
        });
        true
    }

    fn on_bytes(&mut self, len: u32) -> Result<Seq, Error> {
        // In the order in which the peer must have acted: first it may post, then there is room.
        self.transit.on_received(self.came.plus(len))?;
        let _ = self.receiver.on_ring(len)?;
        self.came = self.came.plus(len);
        Ok(self.came)
    }

    /// The next thing to say: steps before bytes, credit before both.
    fn next(&mut self, message_len: u32) -> Option<Said> {
        if let Some(ack) = self.ack.take() {
            return Some(Said::Control(Control::Ack(ack)));
        }
        if let Some(step) = self.step.take() {
            return Some(Said::Control(Control::Switch(step)));
        }
        if let Some(held) = self.held.take() {
            return Some(held);
        }
        if !self.may_post() {
            return None;
        }
        let from = self.sender.seq();
        let waiting = self.tail.since(from).unwrap_or(0);
        let to_end = |len: u32| u64::from(len) - from.value() % u64::from(len);
        let len = waiting
            .min(to_end(self.staging_len))
            .min(to_end(self.lent.len))
            .min(u64::from(message_len)) as u32;
        match self.sender.on_send(len, Route::Ring) {
            Transfer::Ring { len, turn } => {
                let at = from.value() % u64::from(self.lent.len);
                // The transit's word was asked for in `may_post`.
                self.transit.on_posted(len).ok()?;
                let bytes = Said::Bytes {
                    from,
                    len,
                    to: (self.lent.place + at, self.lent.key),
                };
                let Some(turn) = turn else {
                    return Some(bytes);
                };
                self.held = Some(bytes);
                Some(Said::Control(Control::Turn(turn)))
            }
            Transfer::Blocked { tell: true, .. } => Some(Said::Control(Control::Blocked)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Out;
    use proptest::prelude::*;
    use std::vec;

    const STREAMS: u16 = 3;
    const ENDS: [usize; 2] = [0, 1];

    fn byte(stream: u16, end: usize, at: u64) -> u8 {
        (at.wrapping_mul(31) >> 3) as u8 ^ (stream as u8) << 1 ^ end as u8 ^ at as u8
    }

    /// What is on the way: the word, its bytes, and where they go.
    struct Way {
        word: u32,
        bytes: Vec<u8>,
        to: To,
    }

    enum To {
        Ring(u64),
        Slot(u16),
        Nowhere,
    }

    struct End {
        pump: Pump,
        /// By stream: staging, ring, and what the program has written and read.
        staging: Vec<Vec<u8>>,
        rings: Vec<Vec<u8>>,
        written: Vec<u64>,
        read: Vec<u64>,
        readable: Vec<u64>,
        slots: Vec<[u8; CONTROL_LEN]>,
        receives: usize,
        done: usize,
    }

    struct World {
        ends: [End; 2],
        ways: [VecDeque<Way>; 2],
    }

    impl World {
        fn new(receives: [u16; 2], rings: [u32; 2], sends: u16, message_len: u32) -> Self {
            let end = |me: usize| {
                let (ours, theirs) = (receives[me], receives[1 - me]);
                let terms = Terms {
                    ours,
                    theirs,
                    sends,
                    message_len,
                };
                let mut pump = Pump::new(terms).unwrap();
                for stream in 0..STREAMS {
                    let first = usize::from(stream % 2) == me;
                    let opening = Opening {
                        role: if first { Role::First } else { Role::Second },
                        nonce: Nonce::new([stream as u8; 16]),
                        theirs: stream,
                        tcp_read: 0,
                        ring_len: rings[me],
                        staging_len: 64,
                        // The place tells the stream.
                        lent: Lent {
                            place: u64::from(stream) << 32,
                            key: 7,
                            len: rings[1 - me],
                        },
                    };
                    pump.open(stream, &opening).unwrap();
                }
                let each = |len: u32| vec![vec![0; len as usize]; usize::from(STREAMS)];
                let none = || vec![0; usize::from(STREAMS)];
                End {
                    pump,
                    staging: each(64),
                    rings: each(rings[me]),
                    written: none(),
                    read: none(),
                    readable: none(),
                    slots: vec![[0; CONTROL_LEN]; usize::from(ours)],
                    receives: usize::from(ours),
                    done: 0,
                }
            };
            let mut world = Self {
                ends: [end(0), end(1)],
                ways: [VecDeque::new(), VecDeque::new()],
            };
            for me in ENDS {
                for stream in 0..STREAMS {
                    if usize::from(stream % 2) == me {
                        world.ends[me].pump.transit(stream).unwrap().fix(0).unwrap();
                        world.act(me, stream);
                    }
                }
            }
            world
        }

        fn act(&mut self, me: usize, stream: u16) {
            let pump = &mut self.ends[me].pump;
            while let Some(action) = pump.action(stream) {
                assert_eq!(action, Action::Fix);
                pump.transit(stream).unwrap().fix(0).unwrap();
            }
        }

        fn post(&mut self, me: usize) {
            let end = &mut self.ends[me];
            while let Some(Message { what, word }) = end.pump.poll() {
                let way = match what {
                    What::Bytes {
                        stream,
                        from,
                        len,
                        to: (place, key),
                    } => {
                        assert_eq!(key, 7);
                        let at = (from.value() % 64) as usize;
                        let bytes = end.staging[usize::from(stream)][at..][..len as usize].to_vec();
                        let to = To::Ring(place);
                        Way { word, bytes, to }
                    }
                    What::Control { slot, bytes } => Way {
                        word,
                        bytes: bytes.to_vec(),
                        to: To::Slot(slot),
                    },
                    What::Count => Way {
                        word,
                        bytes: Vec::new(),
                        to: To::Nowhere,
                    },
                };
                self.ways[me].push_back(way);
            }
            assert!(
                self.ways[me].len() <= self.ends[1 - me].receives,
                "a receive is missing"
            );
        }

        /// The other end takes what `me` has sent.
        fn deliver(&mut self, me: usize) {
            let Some(Way { word, bytes, to }) = self.ways[me].pop_front() else {
                return;
            };
            self.ends[me].done += 1;
            let end = &mut self.ends[1 - me];
            match to {
                To::Ring(place) => {
                    let (stream, at) = ((place >> 32) as usize, place as u32 as usize);
                    end.rings[stream][at..][..bytes.len()].copy_from_slice(&bytes);
                }
                To::Slot(slot) => end.slots[usize::from(slot)].copy_from_slice(&bytes),
                To::Nowhere => {}
            }
            let slots = &end.slots;
            let came = end
                .pump
                .on_came(word, bytes.len() as u32, |slot| slots[usize::from(slot)])
                .unwrap();
            match came {
                Came::Bytes(stream, to) => end.readable[usize::from(stream)] = to.value(),
                Came::Step(stream) => self.act(1 - me, stream),
                Came::Credit(_) | Came::Nothing => {}
            }
            self.post(1 - me);
        }

        fn complete(&mut self, me: usize) {
            let end = &mut self.ends[me];
            let done = core::mem::take(&mut end.done);
            end.pump.on_done(done, |_| ()).unwrap();
            for stream in 0..STREAMS {
                let kept = self.ends[me].pump.kept(stream).value();
                assert!(kept <= self.ends[1 - me].read[usize::from(stream)]);
            }
            self.post(me);
        }

        fn write(&mut self, me: usize, stream: u16, len: u64) {
            let end = &mut self.ends[me];
            let s = usize::from(stream);
            let room = 64 - (end.written[s] - end.pump.kept(stream).value());
            for _ in 0..len.min(room) {
                let at = end.written[s];
                end.staging[s][(at % 64) as usize] = byte(stream, me, at);
                end.written[s] += 1;
            }
            let tail = Seq::new(end.written[s]);
            end.pump.on_tail(stream, tail);
            self.post(me);
        }

        fn read(&mut self, me: usize, stream: u16, len: u64) {
            let end = &mut self.ends[me];
            let s = usize::from(stream);
            for _ in 0..len.min(end.readable[s] - end.read[s]) {
                let at = end.read[s];
                let ring = &end.rings[s];
                assert_eq!(
                    ring[(at % ring.len() as u64) as usize],
                    byte(stream, 1 - me, at)
                );
                end.read[s] += 1;
            }
            let head = Seq::new(end.read[s]);
            end.pump.on_head(stream, head).unwrap();
            self.post(me);
        }

        fn quiet(&self) -> bool {
            self.ways.iter().all(VecDeque::is_empty) && self.ends.iter().all(|e| e.done == 0)
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Turn {
        Write(usize, u16, u64),
        Read(usize, u16, u64),
        Deliver(usize),
        Complete(usize),
    }

    fn turn() -> impl Strategy<Value = Turn> {
        let end = 0usize..2;
        let of = (end.clone(), 0..STREAMS, 1u64..50);
        prop_oneof![
            of.clone().prop_map(|(e, s, n)| Turn::Write(e, s, n)),
            of.prop_map(|(e, s, n)| Turn::Read(e, s, n)),
            end.clone().prop_map(Turn::Deliver),
            end.prop_map(Turn::Complete),
        ]
    }

    #[test]
    fn streams_take_turns() {
        let mut world = World::new([64, 64], [32, 32], 64, 8);
        for _ in 0..10 {
            for me in ENDS {
                world.deliver(me);
                world.complete(me);
            }
        }
        for stream in 0..STREAMS {
            world.ends[0].pump.on_tail(stream, Seq::new(32));
        }
        let mut order = Vec::new();
        while let Some(message) = world.ends[0].pump.poll() {
            if let What::Bytes { stream, .. } = message.what {
                order.push(stream);
            }
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    proptest! {
        #[test]
        fn every_byte_comes_once_and_nobody_is_stuck(
            receives in [4u16..12, 4u16..12],
            rings in [3u32..8, 3u32..8].prop_map(|rings| rings.map(|n| 1 << n)),
            sends in 1u16..6,
            message_len in 1u32..100,
            turns in prop::collection::vec(turn(), 0..400),
        ) {
            let mut world = World::new(receives, rings, sends, message_len);
            for turn in turns {
                match turn {
                    Turn::Write(me, stream, len) => world.write(me, stream, len),
                    Turn::Read(me, stream, len) => world.read(me, stream, len),
                    Turn::Deliver(me) => world.deliver(me),
                    Turn::Complete(me) => world.complete(me),
                }
            }
            // Both programs read on: all that was written comes, and the staging is free.
            let mut last = 0;
            loop {
                for me in ENDS {
                    world.post(me);
                    world.deliver(me);
                    world.complete(me);
                }
                for (me, stream) in ENDS.into_iter().flat_map(|me| (0..STREAMS).map(move |s| (me, s))) {
                    world.read(me, stream, u64::MAX);
                }
                let sum = world.ends.iter().flat_map(|e| &e.read).sum::<u64>();
                if world.quiet() && sum == last {
                    break;
                }
                last = sum;
            }
            for me in ENDS {
                prop_assert_eq!(&world.ends[me].written, &world.ends[1 - me].read);
                prop_assert_eq!(world.ends[me].pump.outstanding(), 0);
                for stream in 0..STREAMS {
                    let flow = world.ends[me].pump.flow(stream).unwrap();
                    prop_assert_eq!(flow.transit.out(), Out::Link);
                    // Less than half a ring of credit is kept back.
                    prop_assert!(flow.sender.free() > rings[1 - me] / 2);
                }
            }
        }

        #[test]
        fn a_lie_is_an_error_or_nothing(
            words in prop::collection::vec((any::<u32>(), 0u32..70, any::<[u8; CONTROL_LEN]>()), 0..60),
        ) {
            let mut world = World::new([8, 8], [32, 32], 4, 64);
            for (word, len, bytes) in words {
                // Kinds and streams that exist more often than chance has them.
                for word in [word, word & 0x3fff] {
                    let came = world.ends[0].pump.on_came(word & 0xffc0_3003 | word & 0xff, len, |_| bytes);
                    if came.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
}
