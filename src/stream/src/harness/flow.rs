//! One direction, with its two programs, its memory and its link.

use std::collections::{BTreeSet, VecDeque};
use std::vec::Vec;

use super::link::{Class, Link};
use super::world::{
    Copy, Job, Parcel, Reading, Seen, Want, Words, byte_at, stretch, u32_of, usize_of,
};
use super::{Fault, Mutant};
use crate::wire::{CONTROL_LEN, Control, Revoked};
use crate::{
    Ack, Action, Advert, Arrival, Config, Copied, Landing, Next, Phase, Provider, Receiver, Recv,
    Route, Sender, Wait,
};

/// One direction of a stream. See the [module](super).
#[derive(Debug)]
pub struct Flow {
    provider: Provider,
    sender: Sender,
    receiver: Receiver,
    link: Link<Parcel>,
    mutant: Mutant,
    seen: Seen,
    /// The sender's and the receiver's phase when last looked at.
    phases: (Phase, Phase),

    jobs: VecDeque<Job>,
    /// Bytes that the writing program was told are sent.
    written: u64,
    /// Bytes that it ever asked to send.
    asked: u64,
    blocked: Option<Wait>,

    reading: Option<Reading>,
    /// Bytes that the reading program has.
    read: u64,
    recv_count: u64,
    /// Buffers that the link will not write to any more.
    fenced: BTreeSet<u64>,
    /// For [`Mutant::NoRollback`]: how far S'_r is off.
    drift: u32,

    ring: VecDeque<u8>,
    words: Words,
    /// Ring bytes that the reader has seen arrive, and the writer has seen freed.
    seen_filled: u64,
    seen_freed: u64,
    tcp: VecDeque<u8>,
    writer_left: bool,
    reader_left: bool,
}

impl Flow {
    /// A direction on which nothing was sent.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self::with(config, config, Mutant::None)
    }

    /// A direction whose ends have policies of their own, with a bug of choice.
    #[must_use]
    pub fn with(tx: Config, rx: Config, mutant: Mutant) -> Self {
        Self {
            provider: tx.provider,
            sender: Sender::new(&tx),
            receiver: Receiver::new(&rx),
            link: Link::new(),
            mutant,
            seen: Seen::default(),
            phases: (Phase::START, Phase::START),
            jobs: VecDeque::new(),
            written: 0,
            asked: 0,
            blocked: None,
            reading: None,
            read: 0,
            recv_count: 0,
            fenced: BTreeSet::new(),
            drift: 0,
            ring: VecDeque::new(),
            words: Words::default(),
            seen_filled: 0,
            seen_freed: 0,
            tcp: VecDeque::new(),
            writer_left: false,
            reader_left: false,
        }
    }

    /// What happened so far.
    #[must_use]
    pub const fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Bytes that the reading program has.
    #[must_use]
    pub const fn read(&self) -> u64 {
        self.read
    }

    /// Bytes that the writing program was told are sent.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Whether a recv is under way.
    #[must_use]
    pub const fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Whether the direction is on TCP.
    #[must_use]
    pub const fn is_demoted(&self) -> bool {
        self.words.ended
    }

    /// The writing half.
    #[must_use]
    pub const fn sender(&self) -> &Sender {
        &self.sender
    }

    /// The reading half.
    #[must_use]
    pub const fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Messages of `class` take `ticks` from now on, when the clock delivers them.
    pub fn set_delay(&mut self, class: Class, ticks: u64) {
        self.link.set_delay(class, ticks);
    }

    /// The writing program sends `len` bytes, after what it has not got rid of yet.
    pub fn send(&mut self, len: u32, route: Route) {
        self.asked += u64::from(len);
        self.jobs.push_back(Job { len, route });
    }

    /// The reading program begins a recv, unless one is under way.
    pub fn recv(&mut self, want: Want) {
        if self.reading.is_none() {
            self.recv_count += 1;
            self.reading = Some(Reading {
                want,
                place: self.recv_count << 32,
                deadline: want
                    .patience
                    .map(|ticks| self.link.now().saturating_add(ticks)),
                got: Vec::new(),
                copy: None,
            });
        }
    }

    /// The recv under way returns with what it has: a signal, or its time is up.
    ///
    /// # Errors
    /// The first [`Fault`], here and below.
    pub fn give_up(&mut self) -> Result<(), Fault> {
        if self.reading.is_some() {
            self.finish()
        } else {
            Ok(())
        }
    }

    /// The writing program runs until its next action. Whether it got anywhere.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn step_writer(&mut self) -> Result<bool, Fault> {
        if self.words.ended {
            let moved = self.leave_writer()?;
            return Ok(self.write_tcp() || moved);
        }
        let Some(job) = self.jobs.front() else {
            return Ok(false);
        };
        if self.sender.is_offering() {
            return Ok(false);
        }
        self.blocked = None;
        match self.sender.on_send(job.len, job.route) {
            Action::Ring { len, turn } => {
                let bytes = stretch(self.written, len);
                self.advance(len);
                self.seen.ring_bytes += u64::from(len);
                if let Some(turn) = turn.filter(|_| self.mutant != Mutant::NoTurn) {
                    self.control(Class::Ring, Control::Turn(turn));
                }
                if self.provider == Provider::Pull {
                    self.ring.extend(bytes);
                    self.words.filled += u64::from(len);
                    self.link.send(Class::Ring, Parcel::Look);
                } else if len > 0 {
                    self.link.send(Class::Ring, Parcel::Ring(bytes));
                }
            }
            Action::Direct { advert, len } => {
                let bytes = stretch(self.written, len);
                self.advance(len);
                self.count_direct(len);
                self.link
                    .send(Class::Direct, Parcel::Direct { advert, bytes });
            }
            Action::Offer(offer) => {
                self.seen.offer_count += u64::from(offer.advert.is_none());
                self.words.offer = Some(offer);
                self.link.send(Class::Direct, Parcel::Look);
            }
            Action::Blocked { on, tell } => {
                self.blocked = Some(on);
                if tell {
                    self.control(Class::Blocked, Control::Blocked);
                }
                return Ok(tell);
            }
            Action::Demoted => return Err(Fault::Accounts("demoted without a demotion")),
        }
        self.check()?;
        Ok(true)
    }

    /// The reading program runs until its next action; a copy and its commit are two. Whether it
    /// got anywhere.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn step_reader(&mut self) -> Result<bool, Fault> {
        if self.words.ended {
            let moved = self.leave_reader()?;
            return Ok(self.read_tcp()? || moved);
        }
        let Some(reading) = &mut self.reading else {
            return Ok(false);
        };
        if let Some(copy) = reading.copy.take() {
            self.commit(copy)?;
            self.check()?;
            return Ok(true);
        }
        let got = u32_of(reading.got.len());
        let want = reading.want;
        let next = self.receiver.on_recv(&Recv {
            place: reading.place + u64::from(got),
            key: 0,
            len: want.len - got,
            low: want.low.saturating_sub(got),
            waitall: want.waitall,
            peek: want.peek,
            wait: want.patience != Some(0),
        });
        match next {
            Next::Copy(len) => {
                let bytes = self.ring.iter().copied().take(usize_of(len)).collect();
                reading.copy = Some(Copy::Ring(bytes));
            }
            Next::Peek(len) => {
                reading.got = self.ring.iter().copied().take(usize_of(len)).collect();
                self.finish()?;
            }
            Next::Take(offer, len) => {
                // The writer's buffer may be the program's again by now; then the take will fail.
                let bytes = stretch(self.written, len);
                reading.copy = Some(Copy::Offer {
                    number: offer.number,
                    bytes,
                });
            }
            Next::PeekOffer(offer, len) => {
                if self.words.offer == Some(offer) {
                    reading.got = stretch(self.written, len);
                    self.finish()?;
                } else {
                    self.receiver.on_withdrawn(offer.number);
                }
            }
            Next::Withdraw(offer) => {
                self.receiver.on_withdrawn(offer.number);
                if self.words.offer == Some(offer) {
                    self.words.offer = None;
                    self.link.send(Class::Ack, Parcel::Look);
                }
            }
            Next::Advertise(advert) => {
                self.seen.advert_count += 1;
                let seq = match self.mutant {
                    Mutant::EstimateOffByOne => advert.seq.plus(1),
                    Mutant::NoRollback => advert.seq.plus(self.drift),
                    _ => advert.seq,
                };
                self.control(Class::Advert, Control::Advert(Advert { seq, ..advert }, 0));
            }
            Next::Wait if want.patience == Some(0) => self.finish()?,
            Next::Wait => {
                let wants_more = self.provider == Provider::Push && self.receiver.readable() != 0;
                match wants_more.then(|| self.receiver.flush()).flatten() {
                    Some(ack) => self.ack(ack),
                    None => return Ok(false),
                }
            }
            Next::Demoted => return Err(Fault::Accounts("demoted without a demotion")),
        }
        self.check()?;
        Ok(true)
    }

    /// Delivers the next message of `class`. Whether there was one.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn deliver(&mut self, class: Class) -> Result<bool, Fault> {
        let Some(parcel) = self.link.take(class) else {
            return Ok(false);
        };
        self.open(parcel)?;
        Ok(true)
    }

    /// The writer's patience with its offer is at an end; it goes to the ring. Pull only.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn withdraw(&mut self) -> Result<(), Fault> {
        if self.words.ended || !self.sender.is_offering() {
            return Ok(());
        }
        self.words.offer = None;
        self.look_as_writer()
    }

    /// The writer looks at the words of its own accord. Pull only.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn look(&mut self) -> Result<(), Fault> {
        if self.provider == Provider::Pull {
            self.look_as_writer()
        } else {
            Ok(())
        }
    }

    /// Either end, or a third, ends the link's part. With pull both programs find out in their own
    /// time; with push they agree first, so they know at once.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn demote(&mut self) -> Result<(), Fault> {
        if self.words.ended {
            return Ok(());
        }
        if self.provider == Provider::Push {
            self.words.head = self.receiver.seize();
            self.words.ended = true;
            self.leave_reader()?;
            self.leave_writer()?;
        }
        self.words.ended = true;
        self.words.offer = None;
        Ok(())
    }

    /// Lets programs, messages and timeouts go on by the clock for `ticks`.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn run(&mut self, ticks: u64) -> Result<(), Fault> {
        for _ in 0..ticks {
            loop {
                let mut moved = self.step_reader()? | self.step_writer()?;
                if let Some(parcel) = self.link.take_due() {
                    self.open(parcel)?;
                    moved = true;
                }
                if !moved {
                    break;
                }
            }
            self.link.tick();
            let now = self.link.now();
            let deadline = self.reading.as_ref().and_then(|reading| reading.deadline);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.finish()?;
            }
        }
        Ok(())
    }

    /// Lets everything that is under way arrive and a patient reader read it.
    ///
    /// # Errors
    /// The first [`Fault`]; [`Fault::Stuck`] if bytes are left.
    pub fn drain(&mut self) -> Result<(), Fault> {
        // Far more rounds than any honest exchange of what is under way could need.
        for _ in 0..10_000 + 10 * self.asked {
            let mut moved = self.step_writer()? | self.step_reader()?;
            for class in Class::ALL {
                moved |= self.deliver(class)?;
            }
            if moved {
                continue;
            }
            if self.jobs.is_empty() && self.read == self.asked {
                return self.give_up();
            }
            // A sender that waits for an ADVERT in vain demotes; but not while there is one for it.
            let fed = self.receiver.lent().is_some()
                && self
                    .jobs
                    .front()
                    .is_some_and(|job| job.route >= Route::Advert);
            if self.reading.is_none() {
                self.recv(Want::some(64));
            } else if self.blocked == Some(Wait::Advert) && !fed {
                self.seen.hungry_count += 1;
                self.demote()?;
            } else if self.waits_in_vain() {
                self.give_up()?;
            } else {
                break;
            }
        }
        Err(Fault::Stuck {
            read: self.read,
            written: self.asked,
        })
    }

    /// Whether the recv under way asks for more than will ever be sent, and has, or if it is one
    /// that leaves bytes where they are, sees, all the rest.
    fn waits_in_vain(&self) -> bool {
        let Some(reading) = &self.reading else {
            return false;
        };
        let here = match (reading.want.is_plain(), self.words.ended) {
            (true, _) => 0,
            (false, true) => self.tcp.len(),
            (false, false) => self.ring.len(),
        };
        let rest = self.asked - self.read;
        let enough = u64::from(u32_of(reading.want.enough()));
        self.jobs.is_empty() && rest < enough && u64::from(u32_of(reading.got.len() + here)) == rest
    }

    fn open(&mut self, parcel: Parcel) -> Result<(), Fault> {
        match parcel {
            Parcel::Look => {
                self.look_as_writer()?;
                self.look_as_reader()?;
            }
            Parcel::Control(bytes) => self.take_control(&bytes)?,
            Parcel::Ring(bytes) => {
                let arrival = self.receiver.on_ring(u32_of(bytes.len()))?;
                if arrival != Arrival::Void {
                    self.ring.extend(bytes);
                }
            }
            Parcel::Direct { advert, bytes } => self.land(&advert, &bytes)?,
        }
        self.check()
    }

    fn take_control(&mut self, bytes: &[u8; CONTROL_LEN]) -> Result<(), Fault> {
        match Control::parse(bytes).map_err(crate::Error::from)? {
            Control::Advert(advert, _) => self.sender.on_advert(advert)?,
            Control::Revoke(revoked) => self.sender.on_revoke(revoked.id)?,
            Control::Ack(ack) => self.sender.on_ack(ack)?,
            Control::Blocked => {
                if let Some(ack) = self.receiver.on_blocked() {
                    self.ack(ack);
                }
            }
            Control::Turn(turn) => {
                if self.receiver.on_turn(turn)? == Arrival::Lost {
                    self.demote()?;
                }
            }
            Control::Switch(_)
            | Control::Meeting(_)
            | Control::Closed
            | Control::Consent
            | Control::Return(_)
            | Control::Noticed(_)
            | Control::Again(_)
            | Control::DirectQp(_) => {
                return Err(Fault::Accounts("no message of a stream in mid-stream"));
            }
        }
        Ok(())
    }

    /// Push: a direct write reaches memory, unless its key was taken back.
    fn land(&mut self, advert: &Advert, bytes: &[u8]) -> Result<(), Fault> {
        let buffer = advert.place >> 32;
        if self.fenced.contains(&buffer) {
            // It fails at the writer, and takes its path with it.
            self.seen.refused_count += 1;
            return self.demote();
        }
        let reading = self
            .reading
            .as_mut()
            .filter(|reading| reading.place >> 32 == buffer);
        let Some(reading) = reading else {
            return Err(Fault::GivenBack(advert.id));
        };
        if advert.place != reading.place + u64::from(u32_of(reading.got.len())) {
            return Err(Fault::Accounts("a direct write in the wrong place"));
        }
        match self
            .receiver
            .on_direct(advert.id.tag(), u32_of(bytes.len()))?
        {
            Landing::Done(ack) | Landing::More(ack) => {
                reading.got.extend(bytes);
                self.ack(ack);
                self.finish_if_enough()
            }
            Landing::Lost => self.demote(),
            Landing::Void => Ok(()),
        }
    }

    /// Pull: the reader looks at offer and tail, in this order.
    fn look_as_reader(&mut self) -> Result<(), Fault> {
        if self.provider == Provider::Push || self.words.ended {
            return Ok(());
        }
        let offer = self.words.offer;
        let fresh = self.words.filled - self.seen_filled;
        self.seen_filled = self.words.filled;
        if let Some(len) = u32::try_from(fresh).ok().filter(|len| *len > 0) {
            let _ = self.receiver.on_ring(len)?;
        }
        if let Some(offer) = offer {
            let _ = self.receiver.on_offer(offer)?;
        }
        Ok(())
    }

    /// Pull: the writer looks at what became of its offer, and at the head.
    fn look_as_writer(&mut self) -> Result<(), Fault> {
        if self.provider == Provider::Push || self.words.ended {
            return Ok(());
        }
        if let Some(len) = self.words.taken.take() {
            self.sender.on_taken(len)?;
            self.advance(len);
        } else if self.sender.is_offering() && self.words.offer.is_none() {
            self.sender.on_withdrawn()?;
            if let Some(job) = self.jobs.front_mut() {
                job.route = Route::Ring;
            }
        }
        // The reader was there before us: it may be beyond a take we have yet to see.
        if self.words.head <= self.sender.seq() {
            let credit = crate::Credit::new(u32_of_u64(self.words.freed - self.seen_freed)?);
            self.seen_freed = self.words.freed;
            self.sender.on_ack(Ack {
                credit,
                seq: self.words.head,
            })?;
        }
        self.check()
    }

    /// The copy counts, if nothing came between.
    fn commit(&mut self, copy: Copy) -> Result<(), Fault> {
        let (bytes, ack) = match copy {
            Copy::Ring(bytes) => {
                let copied = self.receiver.on_copied(u32_of(bytes.len()))?;
                self.ring.drain(..bytes.len());
                self.words.freed += u64::from(u32_of(bytes.len()));
                let ack = match copied {
                    Copied::Ack(ack) => Some(ack),
                    Copied::Kept => None,
                    Copied::Void => return Err(Fault::Accounts("seized unseen")),
                };
                (bytes, ack)
            }
            Copy::Offer { number, bytes } => {
                if self.words.offer.is_none_or(|offer| offer.number != number) {
                    self.receiver.on_withdrawn(number);
                    return Ok(());
                }
                let len = u32_of(bytes.len());
                let ack = match self.receiver.on_taken(len)? {
                    Landing::Done(ack) | Landing::More(ack) => ack,
                    Landing::Lost | Landing::Void => return Err(Fault::Accounts("taken in vain")),
                };
                self.count_direct(len);
                self.words.offer = None;
                self.words.taken = Some(len);
                (bytes, Some(ack))
            }
        };
        self.words.head = self.words.head.plus(u32_of(bytes.len()));
        if let Some(ack) = ack {
            self.ack(ack);
        }
        if let Some(reading) = &mut self.reading {
            reading.got.extend(bytes);
        }
        self.finish_if_enough()
    }

    fn ack(&mut self, ack: Ack) {
        self.seen.ack_count += 1;
        if self.provider == Provider::Pull {
            self.link.send(Class::Ack, Parcel::Look);
            return;
        }
        self.control(Class::Ack, Control::Ack(ack));
        if self.mutant == Mutant::CreditTwice {
            self.control(Class::Ack, Control::Ack(ack));
        }
    }

    fn finish_if_enough(&mut self) -> Result<(), Fault> {
        let reading = self.reading.as_ref();
        if reading.is_some_and(|reading| reading.got.len() >= reading.want.enough()) {
            self.finish()
        } else {
            Ok(())
        }
    }

    /// The recv returns: its buffer is the program's, and what is in it is looked at.
    fn finish(&mut self) -> Result<(), Fault> {
        let Some(reading) = self.reading.take() else {
            return Ok(());
        };
        if let Some(id) = self.receiver.on_revoke() {
            self.seen.revoke_count += 1;
            self.drift += 1;
            if self.mutant != Mutant::NoFence {
                self.fenced.insert(reading.place >> 32);
            }
            let seq = self.receiver.seq();
            self.control(Class::Revoke, Control::Revoke(Revoked { id, seq }));
        }
        for (at, byte) in (self.read..).zip(&reading.got) {
            if *byte != byte_at(at) {
                return Err(Fault::WrongByte(at));
            }
        }
        if !reading.want.peek {
            self.read += u64::from(u32_of(reading.got.len()));
            if !reading.got.is_empty() {
                self.drift = 0;
            }
        }
        Ok(())
    }

    /// The writer finds the words ended: what the reader has not got goes on TCP.
    fn leave_writer(&mut self) -> Result<bool, Fault> {
        if self.writer_left {
            return Ok(false);
        }
        self.writer_left = true;
        self.blocked = None;
        self.sender.seal();
        let resend = self.sender.on_seized(self.words.head)?;
        self.advance(resend.taken);
        if resend.to.value() != self.written {
            return Err(Fault::Accounts("bytes sent"));
        }
        self.seen.resent_bytes += resend.len();
        self.tcp
            .extend((resend.from.value()..resend.to.value()).map(byte_at));
        Ok(true)
    }

    fn write_tcp(&mut self) -> bool {
        let moved = !self.jobs.is_empty();
        while let Some(job) = self.jobs.front() {
            let len = job.len;
            self.tcp.extend(stretch(self.written, len));
            self.advance(len);
        }
        moved
    }

    /// The reader finds the words ended: a copy that does not count yet is thrown away.
    fn leave_reader(&mut self) -> Result<bool, Fault> {
        if self.reader_left {
            return Ok(false);
        }
        self.reader_left = true;
        if let Some(reading) = &mut self.reading {
            reading.copy = None;
            self.fenced.insert(reading.place >> 32);
        }
        if self.receiver.seize() != self.words.head {
            return Err(Fault::Accounts("bytes consumed"));
        }
        Ok(true)
    }

    fn read_tcp(&mut self) -> Result<bool, Fault> {
        let Some(reading) = &mut self.reading else {
            return Ok(false);
        };
        let want = reading.want;
        let most = usize_of(want.len) - reading.got.len();
        let len = most.min(self.tcp.len());
        if len == 0 && want.patience != Some(0) {
            return Ok(false);
        }
        if want.peek {
            if len < want.enough() && want.patience != Some(0) {
                return Ok(false);
            }
            reading.got = self.tcp.iter().copied().take(len).collect();
            self.finish()?;
            return Ok(true);
        }
        reading.got.extend(self.tcp.drain(..len));
        if want.patience == Some(0) {
            self.finish()?
        } else {
            self.finish_if_enough()?
        }
        Ok(true)
    }

    /// The front job has got rid of `len` bytes.
    fn advance(&mut self, len: u32) {
        self.written += u64::from(len);
        if let Some(job) = self.jobs.front_mut() {
            job.len -= len;
            if job.len == 0 {
                self.jobs.pop_front();
            }
        }
    }

    fn count_direct(&mut self, len: u32) {
        self.seen.direct_bytes += u64::from(len);
        self.seen.direct_count += 1;
    }

    fn control(&mut self, class: Class, message: Control) {
        self.link.send(class, Parcel::Control(message.emit()));
    }

    /// What holds after every step.
    fn check(&mut self) -> Result<(), Fault> {
        let phases = (self.sender.phase(), self.receiver.phase());
        if phases.0 < self.phases.0 || phases.1 < self.phases.1 {
            return Err(Fault::PhaseFell);
        }
        self.phases = phases;
        if !self.sender.is_sealed() && self.sender.seq().value() != self.written {
            return Err(Fault::Accounts("bytes sent"));
        }
        let in_hand = match &self.reading {
            Some(reading) if !reading.want.peek => u64::from(u32_of(reading.got.len())),
            _ => 0,
        };
        if !self.receiver.is_seized() && self.receiver.seq().value() != self.read + in_hand {
            return Err(Fault::Accounts("bytes consumed"));
        }
        if self
            .receiver
            .lent()
            .is_some_and(|advert| advert.seq != self.receiver.seq())
        {
            return Err(Fault::Accounts(
                "a buffer lent for other bytes than the next",
            ));
        }
        Ok(())
    }
}

fn u32_of_u64(len: u64) -> Result<u32, Fault> {
    u32::try_from(len).map_err(|_| Fault::Accounts("credit"))
}
