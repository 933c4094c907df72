//! The two ends, and what lies between.
#![allow(clippy::indexing_slicing, reason = "two ends, numbered 0 and 1")]

use std::collections::VecDeque;
use std::vec::Vec;

use super::{End, Fault, Lane, Message, Op, Pipe, Seen, Terms};
use crate::Seq;
use crate::record::{
    Action, Goes, Head, Leave, NONCE_LEN, Nonce, Out, RECORD_LEN, Reason, Record, Role, Rule, Step,
    Transit,
};

/// Two ends and all between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    terms: Terms,
    ends: [End; 2],
    tcp: [Pipe; 2],
    link: [Lane; 2],
    seen: Seen,
}

const NONCE: [u8; NONCE_LEN] = *b"\xf0\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe";

impl World {
    /// Before the switch.
    #[must_use]
    pub fn new(terms: Terms, without: Option<Rule>) -> Self {
        let end = |role, e: usize| {
            let mut machine = Transit::new(role, Nonce::new(NONCE), 0);
            machine.set_keeps(terms.keeps[e].then_some(0));
            if terms.patient[e] {
                machine.set_patient();
            }
            End {
                machine: match without {
                    Some(rule) => machine.without(rule),
                    None => machine,
                },
                given: 0,
                base: 0,
                posted: 0,
                completed: 0,
                credited: Seq::START,
                arrived: 0,
                read: 0,
                next: None,
                record: VecDeque::new(),
                absorbed: VecDeque::new(),
                part: Vec::new(),
                got: 0,
                ended: false,
                failed: false,
                shut: false,
                hands: false,
                raw: false,
                closes: false,
                bye: false,
                said: false,
                hand_said: false,
                crossed: false,
                heard: false,
                begun: false,
                left: false,
                lost: false,
                died: false,
                killed: false,
            }
        };
        Self {
            terms,
            ends: [end(Role::First, 0), end(Role::Second, 1)],
            tcp: [Pipe::default(), Pipe::default()],
            link: [Lane::default(), Lane::default()],
            seen: Seen::default(),
        }
    }

    /// What has happened so far.
    #[must_use]
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    /// The byte of end `from`'s program at place `at`.
    fn byte(&self, from: usize, at: usize) -> u8 {
        let (begin, len) = self.terms.decoy[from];
        match at.checked_sub(begin) {
            Some(i) if i < len.min(NONCE_LEN - 1) => NONCE[i],
            _ => (at % 113) as u8 + 113 * from as u8,
        }
    }

    /// One step. Whether anything has come of it.
    ///
    /// # Errors
    /// A [`Fault`].
    pub fn apply(&mut self, op: Op) -> Result<bool, Fault> {
        let moved = match op {
            Op::Begin => self.begin()?,
            Op::Give(e, n) => self.give(e, n)?,
            Op::Flush(e, n) => self.flush(e, n)?,
            Op::Carry(e) => self.carry(e),
            Op::Poll(e) => self.poll(e)?,
            Op::Complete(e) => self.complete(e)?,
            Op::Credit(e) => self.credit(e),
            Op::Read(e, n) => self.read(e, n)?,
            Op::Look(e) => self.look(e, true)?,
            Op::Segment(e, n) => self.segment(e, n)?,
            Op::Cut(e) => self.cut(e),
            Op::Lose(e) => self.lose(e)?,
            Op::Die(e) => self.die(e)?,
            Op::Leave(e, leave) => self.leave(e, leave)?,
            Op::Shutdown(e) => self.shutdown(e)?,
            Op::Kill(e, unread) => self.kill(e, unread),
            Op::Quiet(e) => self.quiet(e)?,
        };
        Ok(moved)
    }

    /// Lets everything run: both programs write all they have and read all there is, nobody leaves
    /// the link that has not; then both end, and everything has to have come.
    ///
    /// # Errors
    /// A [`Fault`].
    pub fn finish(&mut self) -> Result<(), Fault> {
        self.run()?;
        for e in [0, 1] {
            self.came(e, self.alive(1 - e) && !self.ends[e].closes)?;
        }
        for e in [0, 1] {
            self.shutdown(e)?;
        }
        self.run()?;
        for e in [0, 1] {
            let (end, peer) = (&self.ends[e], &self.ends[1 - e]);
            if end.killed || end.closes {
                continue;
            }
            if !end.ended && !end.failed {
                return Err(Fault::Stuck(e, end.got, peer.given));
            }
            if end.ended && peer.killed {
                self.seen.whole += 1;
            }
            // What was still to be sent again when the peer was killed, a raw reader does not know
            // of.
            self.came(e, !(end.raw && peer.killed))?;
        }
        Ok(())
    }

    fn came(&self, e: usize, due: bool) -> Result<(), Fault> {
        let (end, peer) = (&self.ends[e], &self.ends[1 - e]);
        if due && !end.killed && !end.closes && !end.failed && !peer.failed && end.got != peer.given
        {
            return Err(Fault::Stuck(e, end.got, peer.given));
        }
        Ok(())
    }

    fn alive(&self, e: usize) -> bool {
        !self.ends[e].killed && !self.ends[e].failed
    }

    /// Until nothing moves. Only then does a clock run out.
    fn run(&mut self) -> Result<(), Fault> {
        loop {
            let mut moved = false;
            for e in [0, 1] {
                for op in [
                    Op::Give(e, usize::MAX),
                    Op::Flush(e, usize::MAX),
                    Op::Carry(e),
                    Op::Poll(e),
                    Op::Complete(e),
                    Op::Look(e),
                    Op::Read(e, usize::MAX),
                    Op::Credit(e),
                    Op::Segment(e, usize::MAX),
                ] {
                    moved |= self.apply(op)?;
                }
            }
            if moved {
                continue;
            }
            // The link's timer, at either end.
            let broken =
                self.link.iter().any(|lane| lane.cut) || self.ends.iter().any(|end| end.lost);
            for e in [0, 1] {
                moved |= broken && self.lose(e)?;
            }
            for e in [0, 1] {
                moved |= !moved && (self.quiet(e)? || self.late(e)?);
            }
            if !moved {
                return Ok(());
            }
        }
    }

    fn begin(&mut self) -> Result<bool, Fault> {
        let end = &self.ends[0];
        if end.begun || end.left || end.lost || end.killed {
            return Ok(false);
        }
        self.ends[0].begun = true;
        self.fix(0)?;
        self.settle(0)?;
        Ok(true)
    }

    fn fix(&mut self, e: usize) -> Result<(), Fault> {
        let end = &mut self.ends[e];
        end.base = end.given;
        end.machine.fix(self.tcp[e].written as u64)?;
        Ok(())
    }

    /// Carries out what the machine wants.
    fn settle(&mut self, e: usize) -> Result<(), Fault> {
        while let Some(action) = self.ends[e].machine.poll_action() {
            match action {
                Action::Fix if self.terms.consents && !self.ends[e].shut => self.fix(e)?,
                Action::Fix => self.ends[e].machine.refuse(),
                Action::Tell(step) => self.post(e, Message::Step(step)),
                Action::Write(record) => self.record(e, &record)?,
                Action::Drain => {
                    while self.poll_one(e)? {}
                    self.ends[e].machine.on_drained();
                }
                Action::Reset(reason) => {
                    self.seen.reset += 1;
                    self.may_reset(e, reason)?;
                    self.tcp[e].reset = true;
                }
            }
        }
        Ok(())
    }

    /// Without a kill there are two reasons only: an undecided beginning, and a socket that could
    /// not be handed on.
    fn may_reset(&self, e: usize, reason: Reason) -> Result<(), Fault> {
        let decoys = self.terms.decoy[1 - e].1 > 0;
        let end = &self.ends[e];
        // The peer was asked to send the rest again, and has.
        let in_order = end.heard && !end.crossed && (end.hand_said || self.ends[1 - e].hand_said);
        let ok = match reason {
            Reason::Killed => self.ends[1 - e].killed,
            Reason::Missing => end.died,
            Reason::Undecided => decoys || self.ends[1 - e].killed,
            Reason::Unclean => end.hands && !in_order,
            _ => false,
        };
        if ok {
            Ok(())
        } else {
            Err(Fault::Reset(e, reason))
        }
    }

    fn record(&mut self, e: usize, record: &Record) -> Result<(), Fault> {
        let (end, peer) = (&self.ends[e], &self.ends[1 - e]);
        if peer.bye && end.heard {
            return Err(Fault::Unwanted(e));
        }
        match record.goes {
            _ if end.heard => self.seen.answer += 1,
            Goes::From { .. } => self.seen.from += 1,
            Goes::Ask { .. } => self.seen.ask += 1,
        }
        let crossed = !end.heard && peer.said;
        if crossed {
            self.seen.crossed += 1;
            self.ends[1 - e].crossed = true;
        }
        let bytes = record.emit(&Nonce::new(NONCE));
        let end = &mut self.ends[e];
        end.crossed |= crossed;
        if !end.heard {
            end.said = true;
            end.hand_said = end.hands;
            end.bye = end.closes && matches!(record.goes, Goes::From { .. });
        }
        end.record.extend(bytes);
        Ok(())
    }

    fn post(&mut self, e: usize, message: Message) {
        let lane = &mut self.link[e];
        if !lane.cut && !self.ends[e].lost {
            lane.flight.push_back(message);
        }
    }

    fn give(&mut self, e: usize, n: usize) -> Result<bool, Fault> {
        let end = &self.ends[e];
        if end.killed || end.failed || end.shut || end.closes || (end.hands && !end.raw) {
            return Ok(false);
        }
        let n = n.min(self.terms.total[e] - end.given);
        if n == 0 {
            return Ok(false);
        }
        if end.raw {
            return Ok(self.write_tcp(e, n));
        }
        match end.machine.out() {
            Out::Tcp(_) => {
                self.find_place(e)?;
                if self.ends[e]
                    .next
                    .is_some_and(|next| next < self.ends[e].given)
                    || !self.ends[e].record.is_empty()
                {
                    return Ok(false);
                }
                self.ends[e].machine.on_tcp_write();
                self.write_tcp(e, n);
                Ok(true)
            }
            Out::Link => {
                let free = self.terms.window - (end.posted - end.credited.value() as u32);
                let n = n.min(free as usize) as u32;
                if n == 0 {
                    return Ok(false);
                }
                let end = &mut self.ends[e];
                end.machine.on_posted(n)?;
                end.posted += n;
                end.given += n as usize;
                self.post(e, Message::Bytes(n));
                Ok(true)
            }
            Out::Held => Ok(false),
        }
    }

    /// New bytes of the program, straight to TCP.
    fn write_tcp(&mut self, e: usize, n: usize) -> bool {
        for _ in 0..n {
            let byte = self.byte(e, self.ends[e].given);
            self.push(e, byte);
            self.ends[e].given += 1;
        }
        if let Some(next) = &mut self.ends[e].next {
            *next += n;
        }
        n > 0
    }

    fn push(&mut self, e: usize, byte: u8) {
        let pipe = &mut self.tcp[e];
        pipe.written += 1;
        if !pipe.fin && !pipe.reset {
            pipe.flight.push_back(byte);
        }
    }

    /// Where TCP goes on after the link.
    fn find_place(&mut self, e: usize) -> Result<(), Fault> {
        let end = &mut self.ends[e];
        if let (None, Out::Tcp(from), true) = (end.next, end.machine.out(), end.posted > 0) {
            if from < end.credited {
                return Err(Fault::NotKept(e));
            }
            end.next = Some(end.base + from.value() as usize);
            self.seen.resent += u64::from(end.posted) - from.value();
        }
        Ok(())
    }

    /// What the library still owes TCP, then the FIN.
    fn flush(&mut self, e: usize, n: usize) -> Result<bool, Fault> {
        if self.ends[e].killed || self.tcp[e].reset {
            return Ok(false);
        }
        if self.tcp[e].fin {
            return Ok(self.hand_over(e));
        }
        let mut moved = 0;
        while moved < n {
            let Some(byte) = self.ends[e].record.pop_front() else {
                break;
            };
            self.push(e, byte);
            moved += 1;
        }
        if !self.ends[e].record.is_empty() {
            return Ok(moved > 0);
        }
        self.find_place(e)?;
        while let Some(next) = self.ends[e].next.filter(|next| *next < self.ends[e].given) {
            if moved == n {
                return Ok(true);
            }
            let byte = self.byte(e, next);
            self.push(e, byte);
            self.ends[e].next = Some(next + 1);
            moved += 1;
        }
        moved += usize::from(self.hand_over(e));
        let end = &mut self.ends[e];
        let ends = end.shut || end.closes;
        if ends && (end.raw || matches!(end.machine.out(), Out::Tcp(_))) {
            end.machine.on_tcp_write();
            self.tcp[e].fin = true;
            moved += 1;
        }
        Ok(moved > 0)
    }

    /// Another program takes the socket as it is, when the library has nothing to do with it any
    /// more.
    fn hand_over(&mut self, e: usize) -> bool {
        let end = &mut self.ends[e];
        let now = end.hands && !end.raw && end.machine.is_clean() && end.absorbed.is_empty();
        end.raw |= now;
        self.seen.handed += u64::from(now);
        now
    }

    fn carry(&mut self, e: usize) -> bool {
        let Some(message) = self.link[e].flight.pop_front() else {
            return false;
        };
        let there = &self.ends[1 - e];
        if !there.lost && !there.killed {
            self.link[e].queue.push_back(message);
            if let Message::Bytes(n) = message {
                self.link[e].done.push_back(n);
            }
        }
        true
    }

    fn poll(&mut self, e: usize) -> Result<bool, Fault> {
        let moved = self.poll_one(e)?;
        self.settle(e)?;
        Ok(moved)
    }

    fn poll_one(&mut self, e: usize) -> Result<bool, Fault> {
        if self.ends[e].killed {
            return Ok(false);
        }
        let queue = &mut self.link[1 - e].queue;
        let Some(message) = queue.front().copied() else {
            return Ok(false);
        };
        let end = &mut self.ends[e];
        // A step waits until TCP before it is read, unless its sender has left again.
        let left = || queue.contains(&Message::Step(Step::Cancel));
        if let Message::Step(step) = message
            && !end.machine.may_take(step)
            && !left()
        {
            return Ok(false);
        }
        queue.pop_front();
        let was_open = end.machine.out() == Out::Link;
        match message {
            Message::Step(step) => end.machine.on_step(step)?,
            Message::Bytes(n) => {
                end.arrived += n;
                end.machine.on_received(Seq::new(u64::from(end.arrived)))?;
            }
            Message::Credit(to) => {
                end.machine.on_credit(to)?;
                end.credited = to;
            }
        }
        if !was_open && end.machine.out() == Out::Link {
            self.seen.open += 1;
        }
        Ok(true)
    }

    fn complete(&mut self, e: usize) -> Result<bool, Fault> {
        let end = &mut self.ends[e];
        if end.killed || end.lost {
            return Ok(false);
        }
        let Some(n) = self.link[e].done.pop_front() else {
            return Ok(false);
        };
        end.completed += n;
        end.machine
            .on_completed(Seq::new(u64::from(end.completed)))?;
        self.settle(e)?;
        Ok(true)
    }

    fn credit(&mut self, e: usize) -> bool {
        let end = &self.ends[e];
        let to = Seq::new(u64::from(end.read));
        let told = |message: &&Message| matches!(message, Message::Credit(_));
        let lane = &self.link[e];
        let last = lane.flight.iter().chain(&lane.queue).rev().find(told);
        let last = match last {
            Some(Message::Credit(to)) => *to,
            _ => self.ends[1 - e].credited,
        };
        if end.killed
            || !end.machine.gives_credit()
            || lane.cut
            || self.ends[1 - e].lost
            || to <= last
        {
            return false;
        }
        self.post(e, Message::Credit(to));
        true
    }

    fn take(&mut self, e: usize, byte: u8) -> Result<(), Fault> {
        let got = self.ends[e].got;
        if got >= self.ends[1 - e].given || byte != self.byte(1 - e, got) {
            return Err(Fault::WrongByte(e, got));
        }
        self.ends[e].got += 1;
        Ok(())
    }

    fn read(&mut self, e: usize, n: usize) -> Result<bool, Fault> {
        let mut moved = 0;
        while moved < n && self.read_one(e)? {
            moved += 1;
        }
        Ok(moved > 0)
    }

    fn read_one(&mut self, e: usize) -> Result<bool, Fault> {
        let end = &self.ends[e];
        if end.killed || end.failed || end.ended || end.closes || (end.hands && !end.raw) {
            return Ok(false);
        }
        if let Some(byte) = self.ends[e].absorbed.pop_front() {
            self.take(e, byte)?;
            return Ok(true);
        }
        if self.ends[e].raw {
            if let Some(byte) = self.tcp[1 - e].here.pop_front() {
                self.take(e, byte)?;
                return Ok(true);
            }
            return self.end_of_tcp(e, true);
        }
        let looked = self.look(e, false)?;
        let end = &mut self.ends[e];
        if end.machine.tcp_room() > 0 {
            if let Some(byte) = self.tcp[1 - e].here.pop_front() {
                end.machine.on_tcp_read(1)?;
                self.take(e, byte)?;
                return Ok(true);
            }
            if self.tcp[1 - e].fin_here {
                let whole = end.machine.on_tcp_end();
                self.settle(e)?;
                return self.end_of_tcp(e, whole);
            }
        } else if u64::from(end.read) < end.machine.link_end().value() {
            if end.read >= end.arrived {
                return Err(Fault::WrongByte(e, end.got));
            }
            let at = end.read as usize;
            let got = end.got;
            end.read += 1;
            end.machine.on_read(Seq::new(u64::from(end.read)))?;
            let at = self.ends[1 - e].base + at;
            if at != got {
                return Err(Fault::WrongByte(e, got));
            }
            self.take(e, self.byte(1 - e, at))?;
            return Ok(true);
        } else if self.ends[e].machine.is_dead().is_some() {
            self.ends[e].failed = true;
            return Ok(true);
        }
        if self.tcp[1 - e].reset_here {
            self.ends[e].failed = true;
            return Ok(true);
        }
        Ok(looked)
    }

    fn end_of_tcp(&mut self, e: usize, whole: bool) -> Result<bool, Fault> {
        let pipe = &self.tcp[1 - e];
        if pipe.fin_here && whole {
            self.ends[e].ended = true;
            let end = &self.ends[e];
            // A raw reader is on its own.
            if end.got != self.ends[1 - e].given && !end.raw {
                return Err(Fault::ShortEnd(e, end.got));
            }
            return Ok(true);
        }
        if pipe.reset_here {
            self.ends[e].failed = true;
            return Ok(true);
        }
        Ok(false)
    }

    /// Looks for the record. `absorb`: takes the program's bytes before it into memory.
    fn look(&mut self, e: usize, absorb: bool) -> Result<bool, Fault> {
        let end = &mut self.ends[e];
        if end.killed || end.raw {
            return Ok(false);
        }
        let pipe = &mut self.tcp[1 - e];
        let mut moved = false;
        while absorb && (1..u64::MAX).contains(&end.machine.tcp_room()) {
            let Some(byte) = pipe.here.pop_front() else {
                break;
            };
            end.machine.on_tcp_read(1)?;
            end.absorbed.push_back(byte);
            moved = true;
        }
        if !end.machine.is_at_head() {
            return Ok(moved);
        }
        let rest = RECORD_LEN - end.part.len();
        let mut head = end.part.clone();
        head.extend(pipe.here.iter().take(rest));
        let ended = pipe.fin_here && pipe.here.len() <= rest;
        let before = end.machine.clone();
        let beyond = end.machine.link_end();
        match end.machine.on_head(&head, ended) {
            // Left there or not, as a reader likes.
            Head::Wait if head.len() % 2 == 1 && end.machine.is_part(&head) => {
                pipe.here.clear();
                end.part = head;
            }
            Head::Wait => {}
            Head::Record => {
                pipe.here.drain(..rest);
                end.part.clear();
                end.heard = true;
                let more = end.machine.link_end().since(beyond).unwrap_or(0);
                self.seen.beyond += more;
            }
            Head::Data => {
                assert!(end.part.is_empty(), "the program's bytes were removed");
                self.seen.data += 1;
            }
        }
        moved |= end.machine != before;
        self.settle(e)?;
        Ok(moved)
    }

    fn segment(&mut self, e: usize, n: usize) -> Result<bool, Fault> {
        let pipe = &mut self.tcp[e];
        let there = &mut self.ends[1 - e];
        if pipe.reset {
            let news = !pipe.reset_here;
            pipe.flight.clear();
            pipe.reset_here = true;
            if news && !there.killed && !there.raw {
                there.machine.on_tcp_error();
            }
            return Ok(news);
        }
        let n = n.min(pipe.flight.len());
        let part: Vec<u8> = pipe.flight.drain(..n).collect();
        pipe.here.extend(part);
        let ends = pipe.fin && !pipe.fin_here && pipe.flight.is_empty();
        pipe.fin_here |= ends;
        Ok(n > 0 || ends)
    }

    fn cut(&mut self, e: usize) -> bool {
        let lane = &mut self.link[e];
        lane.flight.clear();
        !core::mem::replace(&mut lane.cut, true)
    }

    fn lose(&mut self, e: usize) -> Result<bool, Fault> {
        if self.ends[e].lost || self.ends[e].killed {
            return Ok(false);
        }
        // In error, so that nothing more arrives; then what had arrived is taken.
        while self.poll_one(e)? {}
        self.settle(e)?;
        let end = &mut self.ends[e];
        end.lost = true;
        end.machine.on_link_lost();
        self.settle(e)?;
        Ok(true)
    }

    fn die(&mut self, e: usize) -> Result<bool, Fault> {
        if self.ends[e].lost || self.ends[e].killed {
            return Ok(false);
        }
        self.ends[e].died = !self.link[1 - e].queue.is_empty();
        self.link[1 - e].queue.clear();
        self.lose(e)
    }

    fn leave(&mut self, e: usize, leave: Leave) -> Result<bool, Fault> {
        let end = &mut self.ends[e];
        if end.killed || end.failed || end.hands || end.closes {
            return Ok(false);
        }
        end.left = true;
        end.hands = leave == Leave::Hand;
        end.closes = leave == Leave::Close;
        end.machine.leave(leave);
        self.settle(e)?;
        Ok(true)
    }

    fn shutdown(&mut self, e: usize) -> Result<bool, Fault> {
        let end = &mut self.ends[e];
        if end.killed || end.failed || end.shut || end.closes || (end.hands && !end.raw) {
            return Ok(false);
        }
        end.shut = true;
        end.left = true;
        if !end.raw {
            end.machine.leave(Leave::Shut);
        }
        self.settle(e)?;
        Ok(true)
    }

    fn kill(&mut self, e: usize, unread: bool) -> bool {
        if self.ends[e].killed {
            return false;
        }
        self.ends[e].killed = true;
        self.link[e].done.clear();
        self.link[e].cut = true;
        self.link[1 - e].cut = true;
        if unread {
            self.tcp[e].reset = true;
        } else {
            self.tcp[e].fin = true;
        }
        true
    }

    /// Whether TCP has nothing under way to `e`, nor its peer anything to write there.
    fn is_silent(&self, e: usize) -> bool {
        self.tcp[1 - e].flight.is_empty()
            && (self.ends[1 - e].record.is_empty() || self.ends[1 - e].killed)
    }

    fn quiet(&mut self, e: usize) -> Result<bool, Fault> {
        // Silence: there is nothing that was not looked at.
        let looked = self.look(e, false)?;
        if self.ends[e].killed || !self.ends[e].machine.is_undecided() || !self.is_silent(e) {
            return Ok(looked);
        }
        self.ends[e].machine.give_up();
        self.settle(e)?;
        Ok(true)
    }

    /// A hand-over has waited long enough.
    fn late(&mut self, e: usize) -> Result<bool, Fault> {
        let end = &mut self.ends[e];
        let stuck = end.hands && !end.raw && !end.killed;
        if !stuck || end.failed {
            return Ok(false);
        }
        if end.machine.is_dead().is_some() {
            end.failed = true;
            return Ok(true);
        }
        if end.machine.is_clean() {
            // Only this process has what was taken from TCP before the record.
            if end.absorbed.is_empty() {
                return Ok(false);
            }
            self.tcp[e].reset = true;
            end.failed = true;
            return Ok(true);
        }
        end.machine.give_up();
        end.failed = true;
        self.settle(e)?;
        Ok(true)
    }
}
