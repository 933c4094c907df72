//! One stream of a link: what it has to say, and what is said to it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::Lent;
use super::direct::{Fate, Lending, Run};
use crate::action::{Action as Transfer, Route};
use crate::config::Mode;
use crate::error::{Error, PeerFault};
use crate::receiver::{Arrival, Receiver};
use crate::record::{Nonce, Out, RECORD_LEN, Reason, Step, Transit};
use crate::sender::Sender;
use crate::wire::{Ack, Control, Credit, Seq, Turn};

/// One stream at this end.
#[derive(Debug)]
pub(super) struct Flow {
    pub transit: Transit,
    pub nonce: Nonce,
    pub sender: Sender,
    pub receiver: Receiver,
    pub theirs: u16,
    pub lent: Lent,
    pub staging_len: u32,
    pub ring_len: u32,
    pub mode: Mode,
    pub direct_min: u32,
    /// Bytes in the staging ring so far.
    pub tail: Seq,
    /// Where bytes begin that lie elsewhere than those before: see [`Pump::on_edge`].
    ///
    /// [`Pump::on_edge`]: super::Pump::on_edge
    pub edges: VecDeque<Seq>,
    /// Of these completed.
    pub completed: Seq,
    /// Of these, in the peer's ring but for what its device may still lose: see
    /// [`fence`](super::fence). And those that the read which was posted last proves.
    pub given: Seq,
    pub fenced: Seq,
    /// Bytes that came.
    pub came: Seq,
    /// What is to be told, each once.
    pub ack: Option<Ack>,
    pub step: Option<Step>,
    /// Bytes after a TURN: they count as posted.
    pub held: Option<Said>,
    /// Direct bytes whose fate is not known; no others are posted meanwhile.
    pub run: Option<Run>,
    /// What the program lends.
    pub lending: Lending,
    /// Which use of its number this is, and of the peer's number: see [`Control::Advert`].
    pub number_use: u16,
    pub their_use: u16,
    /// This end has told that it consents to the switch; the peer has.
    pub consented: bool,
    pub peer_consented: bool,
    /// The peer's steps of the switch that were not taken yet.
    pub steps: VecDeque<Step>,
    /// What was removed from TCP, as the transit was told.
    pub tcp_read: u64,
    /// Our record, and how much of it is on TCP.
    pub record: Option<[u8; RECORD_LEN]>,
    pub written: usize,
    /// What of the peer's record was removed from TCP before the rest had come.
    pub part: Vec<u8>,
    pub reset: Option<Reason>,
    /// The transit waits to hear that the link is empty.
    pub drain: bool,
    /// On its way from TCP to the link, or back after a completion of this end's.
    pub under_way: bool,
    /// See [`Pump::tick`](super::Pump::tick).
    pub ticks: u8,
    /// This end has left the stream; the peer has.
    pub left: bool,
    pub peer_left: bool,
}

/// What a stream has to say.
#[derive(Debug)]
pub(super) enum Said {
    Bytes {
        from: Seq,
        len: u32,
        to: (u64, u32),
    },
    Direct {
        from: Seq,
        len: u32,
        to: (u64, u32),
        tag: u8,
    },
    Control(Control),
}

impl Flow {
    /// Has it something to post, or perhaps?
    pub fn may_post(&self) -> bool {
        match self.transit.out() {
            Out::Link => {
                let asks = self.run.is_some_and(|run| run.fate == Fate::Lost);
                asks || self.tail > self.sender.seq()
            }
            _ => self.transit.is_ending() && self.run.is_some(),
        }
    }

    /// Is it under way still, or again? What it counts for that, before and now: it is `through` to
    /// the link, or off it; what ends it waits for a completion.
    pub fn note_under_way(&mut self, through: bool, ending: bool) -> (u16, u16) {
        let before = self.under_way;
        self.under_way = ending && !self.left || !through && before;
        (u16::from(before), u16::from(self.under_way))
    }

    /// Credit for the peer; false: it is told by the link no more.
    pub fn tell(&mut self, ack: Ack) -> bool {
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

    /// So many bytes came into the ring. Nothing of them counts before both have been asked: may
    /// the peer post, and is there room?
    pub fn on_bytes(&mut self, len: u32) -> Result<Seq, Error> {
        if len == 0 {
            return Err(PeerFault::RingOverrun.into());
        }
        let len = self.lending.pass_over(len);
        if len == 0 {
            return Ok(self.came);
        }
        self.transit.may_receive()?;
        // Ahead of direct bytes nobody could read them, and a peer that keeps the rules has told of
        // those before.
        if self.receiver.on_ring(len)? == Arrival::Held {
            return Err(PeerFault::TurnSeq.into());
        }
        self.came = self.came.plus(len);
        self.transit.on_received(self.came)?;
        Ok(self.came)
    }

    /// Ring bytes will follow direct ones.
    pub fn on_turn(&mut self, turn: Turn) -> Result<(), Error> {
        // Direct bytes that never came: what a revoked buffer was to have is said again before
        // (AGAIN).
        match self.receiver.on_turn(turn)? {
            Arrival::Lost => Err(PeerFault::TurnSeq.into()),
            Arrival::Ready | Arrival::Held | Arrival::Void => Ok(()),
        }
    }

    /// The reader of the link has read TCP before it.
    pub fn has_read_tcp(&mut self) -> Result<(), Error> {
        if let Some(n) = self.transit.peer_n() {
            let more = n.saturating_sub(self.tcp_read);
            self.tcp_read += more;
            self.transit.on_tcp_read(more)?;
        }
        Ok(())
    }

    /// The next thing to say: steps before bytes, credit before both. `direct`: a direct transfer
    /// can be posted.
    pub fn next(&mut self, message_len: u32, direct: bool) -> Option<Said> {
        if let Some(ack) = self.ack.take() {
            return Some(Said::Control(Control::Ack(ack)));
        }
        if let Some(step) = self.step.take() {
            return Some(Said::Control(Control::Switch(step)));
        }
        if let Some(held) = self.held.take() {
            return Some(held);
        }
        if let Some(lends) = self.lending.says.pop_front() {
            return Some(Said::Control(lends));
        }
        if let Some(said) = self.next_direct(message_len, direct) {
            return Some(said);
        }
        if self.transit.out() != Out::Link || self.holds() {
            return None;
        }
        let from = self.sender.seq();
        let waiting = self.tail.since(from).unwrap_or(0);
        if waiting == 0 {
            return None;
        }
        let len = self.piece(from, waiting, message_len);
        match self.sender.on_send(len, Route::Ring) {
            Transfer::Ring { len, turn } => {
                // The transit's word was asked for above.
                self.transit.on_posted(len).ok()?;
                let bytes = self.bytes(from, len);
                let Some(turn) = turn else {
                    return Some(bytes);
                };
                self.held = Some(bytes);
                Some(Said::Control(Control::Turn(turn)))
            }
            _ => None,
        }
    }

    /// Of so many bytes at `from` those before the next edge.
    pub fn to_edge(&self, from: Seq, waiting: u64) -> u64 {
        let next = self.edges.partition_point(|edge| *edge <= from);
        let edge = self.edges.get(next);
        edge.and_then(|edge| edge.since(from))
            .map_or(waiting, |len| waiting.min(len))
    }

    /// Of so many bytes at `from` what lies together at both ends, and fits in a message.
    pub fn piece(&self, from: Seq, waiting: u64, message_len: u32) -> u32 {
        let to_end = |len: u32| u64::from(len) - from.value() % u64::from(len);
        self.to_edge(from, waiting)
            .min(to_end(self.staging_len))
            .min(to_end(self.lent.len))
            .min(u64::from(message_len)) as u32
    }

    /// Into the ring.
    pub fn bytes(&self, from: Seq, len: u32) -> Said {
        let at = from.value() % u64::from(self.lent.len);
        Said::Bytes {
            from,
            len,
            to: (self.lent.place + at, self.lent.key),
        }
    }
}
