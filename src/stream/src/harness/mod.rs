//! Two ends in memory, for tests of this package and of those above it.
//!
//! A [`Flow`] is one direction with everything that the state machines refuse to know: a writing
//! and a reading program, a ring, lent buffers, a virtual link and clock, and the TCP beneath. It
//! carries out every action, feeds back every event, and checks as it goes: each byte against its
//! position, each write against the buffer's owner, phases, and that nothing is stuck. A [`Pair`]
//! is two of them. [`paper`] has the algorithms of the seed taken literally, to show what the
//! repairs repair, and [`transit`] both ends of a stream on its way from TCP to the link and back.
//!
//! Nothing happens by itself. A step of a program, a delivery, a timeout, a withdrawal and a
//! demotion are calls, so a test can put them in any order; [`Flow::run`] puts them in the clock's.

mod flow;
mod link;
pub mod paper;
pub mod transit;
mod world;

use thiserror::Error;

pub use flow::Flow;
pub use link::Class;
pub use world::{Seen, Want};

use crate::{AdvertId, Config, Error};

/// What a test must never see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    /// An honest end's event was refused.
    #[error("refused: {0}")]
    Refused(#[from] Error),
    /// A program read a byte that does not belong at this position.
    #[error("wrong byte at {0}")]
    WrongByte(u64),
    /// Bytes were written into a buffer after its recv had returned.
    #[error("ADVERT {0:?} was used after its buffer was given back")]
    GivenBack(AdvertId),
    /// A phase went down.
    #[error("a phase went down")]
    PhaseFell,
    /// Nothing moves, and a reader waits for bytes that exist.
    #[error("stuck: {read} of {written} bytes read")]
    Stuck {
        /// Bytes the reading program has.
        read: u64,
        /// Bytes the writing program gave.
        written: u64,
    },
    /// Two accounts of one thing differ.
    #[error("accounts differ: {0}")]
    Accounts(&'static str),
}

/// A bug put in on purpose: a property test that does not find it is worth nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutant {
    /// None.
    #[default]
    None,
    /// S'_r is one too high in every ADVERT.
    EstimateOffByOne,
    /// A revoked ADVERT does not roll S'_r back.
    NoRollback,
    /// A revoked buffer stays writable.
    NoFence,
    /// Ring bytes that follow direct ones do not say so.
    NoTurn,
    /// Every credit is given twice.
    CreditTwice,
}

/// Two ends: a direction each way, by one clock.
#[derive(Debug)]
pub struct Pair {
    /// From the first end to the second.
    pub there: Flow,
    /// From the second end to the first.
    pub back: Flow,
}

impl Pair {
    /// Two ends on the same terms.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            there: Flow::new(config),
            back: Flow::new(config),
        }
    }

    /// Lets both directions run for `ticks`.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn run(&mut self, ticks: u64) -> Result<(), Fault> {
        for _ in 0..ticks {
            self.there.run(1)?;
            self.back.run(1)?;
        }
        Ok(())
    }
}
