//! The four algorithms of the seed taken literally, for one synchronous reader, to show what
//! happens.
//!
//! P. MacArthur and R. Russell, *An Efficient Method for Stream Semantics over RDMA*, IPDPS 2014.
//! Its reader estimates where each ADVERT will be used (S'_r). Two repairs can be switched on; the
//! third of the design, one ADVERT outstanding, is in the nature of a synchronous reader and always
//! on. The link is kinder than a real one: a revocation takes effect at once, wherever the ADVERT
//! is, and bytes arrive in one order by either way. What fails here fails by the estimate alone.

use std::collections::VecDeque;
use std::vec::Vec;

use super::{Class, Fault, Flow, Want};
use crate::{Config, Phase, Route};

/// How much of it is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repairs {
    /// As the slides have it.
    None,
    /// A receive that was served without an ADVERT moves S'_r too.
    Unadvertised,
    /// S'_r := S_r whenever no ADVERT is out, a revoked one included.
    All,
}

/// One step of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The writing program sends so many bytes.
    Send(u32),
    /// The reading program begins a recv of so many, if none is under way.
    Recv(u32),
    /// The oldest ADVERT under way arrives.
    DeliverAdvert,
    /// The oldest data under way arrives; with our ends, which split a send where the paper cuts it
    /// short, all of it.
    DeliverData,
    /// The recv under way is interrupted.
    Revoke,
}

/// A schedule of `len` steps, always the same for one seed.
#[must_use]
pub fn schedule(seed: u64, len: usize) -> Vec<Step> {
    let mut state = seed;
    let mut draw = move |below: u64| {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below
    };
    let mut small = move || (draw(16), u32::try_from(draw(8)).map_or(1, |len| len + 1));
    (0..len)
        .map(|_| match small() {
            (0..=3, len) => Step::Send(len),
            (4..=7, len) => Step::Recv(4 * len),
            (8..=10, _) => Step::DeliverAdvert,
            (11..=13, _) => Step::DeliverData,
            _ => Step::Revoke,
        })
        .collect()
}

#[derive(Debug, Clone, Copy)]
struct Lent {
    id: u64,
    len: u64,
    seq: u64,
    phase: Phase,
}

#[derive(Debug, Clone, Copy)]
enum Data {
    Direct { id: u64, len: u64 },
    Indirect { len: u64 },
}

/// A recv that waits, and whose ADVERT is out.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    id: u64,
    len: u64,
}

/// Both ends and the link between, by the paper.
#[derive(Debug)]
pub struct Paper {
    repairs: Repairs,
    tx_phase: Phase,
    tx_seq: u64,
    queue: VecDeque<Lent>,
    rx_phase: Phase,
    rx_seq: u64,
    /// S'_r.
    estimate: u64,
    buffered: u64,
    waiting: Option<Waiting>,
    recv_count: u64,
    adverts: VecDeque<Lent>,
    data: VecDeque<Data>,
    /// Transfers that went direct into the buffer they were meant for.
    pub direct_count: u64,
    /// Transfers that went direct into a buffer given back.
    pub bad_count: u64,
}

impl Paper {
    /// A stream that begins.
    #[must_use]
    pub const fn new(repairs: Repairs) -> Self {
        Self {
            repairs,
            tx_phase: Phase::START,
            tx_seq: 0,
            queue: VecDeque::new(),
            rx_phase: Phase::START,
            rx_seq: 0,
            estimate: 0,
            buffered: 0,
            waiting: None,
            recv_count: 0,
            adverts: VecDeque::new(),
            data: VecDeque::new(),
            direct_count: 0,
            bad_count: 0,
        }
    }

    /// Does one step.
    pub fn step(&mut self, step: Step) {
        match step {
            Step::Send(len) => self.send(u64::from(len)),
            Step::Recv(len) if self.waiting.is_none() => self.recv(u64::from(len)),
            Step::Recv(_) => {}
            Step::DeliverAdvert => self.queue.extend(self.adverts.pop_front()),
            Step::DeliverData => self.arrive(),
            Step::Revoke => self.revoke(),
        }
    }

    /// Algorithm 1.
    fn send(&mut self, len: u64) {
        while let Some(advert) = self.queue.pop_front() {
            let indirect = !self.tx_phase.is_direct();
            if indirect && (advert.phase < self.tx_phase || advert.seq < self.tx_seq) {
                if self.tx_phase < advert.phase {
                    self.tx_phase = advert.phase.indirect();
                }
                continue;
            }
            if indirect {
                self.tx_phase = advert.phase;
            }
            let len = len.min(advert.len);
            self.tx_seq += len;
            self.data.push_back(Data::Direct { id: advert.id, len });
            return;
        }
        self.tx_phase = self.tx_phase.indirect();
        self.tx_seq += len;
        self.data.push_back(Data::Indirect { len });
    }

    /// Algorithm 2, or at once the copy of algorithm 4.
    fn recv(&mut self, len: u64) {
        self.recv_count += 1;
        if self.buffered > 0 {
            let copied = self.copy(len);
            match self.repairs {
                Repairs::None => {}
                Repairs::Unadvertised => self.estimate += copied,
                Repairs::All => self.estimate = self.rx_seq,
            }
            return;
        }
        self.rx_phase = self.rx_phase.direct();
        let id = self.recv_count;
        self.adverts.push_back(Lent {
            id,
            len,
            seq: self.estimate,
            phase: self.rx_phase,
        });
        self.estimate += 1;
        self.waiting = Some(Waiting { id, len });
    }

    /// Algorithm 3, and algorithm 4 for a recv that waits.
    fn arrive(&mut self) {
        match self.data.pop_front() {
            None => {}
            Some(Data::Direct { id, len }) => {
                self.rx_seq += len;
                self.estimate += len - 1;
                if self.waiting.is_some_and(|waiting| waiting.id == id) {
                    self.direct_count += 1;
                    self.waiting = None;
                    self.settle();
                } else {
                    self.bad_count += 1;
                }
            }
            Some(Data::Indirect { len }) => {
                self.rx_phase = self.rx_phase.indirect();
                self.buffered += len;
                if let Some(waiting) = self.waiting.take() {
                    let copied = self.copy(waiting.len);
                    self.estimate += copied - 1;
                    self.settle();
                }
            }
        }
    }

    /// Takes the ADVERT back wherever it is, unless it was used: then its data is waited for.
    fn revoke(&mut self) {
        let Some(Waiting { id, .. }) = self.waiting else {
            return;
        };
        if self
            .data
            .iter()
            .any(|data| matches!(data, Data::Direct { id: used, .. } if *used == id))
        {
            return;
        }
        self.waiting = None;
        self.adverts.retain(|advert| advert.id != id);
        self.queue.retain(|advert| advert.id != id);
        self.settle();
    }

    fn copy(&mut self, len: u64) -> u64 {
        let copied = len.min(self.buffered);
        self.buffered -= copied;
        self.rx_seq += copied;
        copied
    }

    /// No ADVERT is out.
    fn settle(&mut self) {
        if self.repairs == Repairs::All {
            self.estimate = self.rx_seq;
        }
    }
}

/// The same steps by this package's own ends.
///
/// # Errors
/// The first [`Fault`].
pub fn replay(config: Config, steps: &[Step]) -> Result<Flow, Fault> {
    let mut flow = Flow::new(config);
    for step in steps {
        match *step {
            Step::Send(len) => {
                flow.send(len, Route::Advert);
                while flow.step_writer()? {}
            }
            Step::Recv(len) => {
                flow.recv(Want::some(len));
                flow.step_reader()?;
            }
            Step::DeliverAdvert => {
                flow.deliver(Class::Advert)?;
            }
            Step::DeliverData => {
                while flow.deliver(Class::Direct)? || flow.deliver(Class::Ring)? {}
            }
            Step::Revoke => {
                while flow.deliver(Class::Direct)? {}
                flow.give_up()?;
                flow.deliver(Class::Revoke)?;
            }
        }
        while flow.step_reader()? {}
        while flow.deliver(Class::Ack)? {}
    }
    flow.drain()?;
    Ok(flow)
}
