//! On iWARP a completed WRITE is one that was given to TCP, and nobody knows whether it came. So
//! where an end that leaves must know, it reads something of the peer's: the answer comes after
//! all that was posted before.

use super::Pump;
use crate::error::Error;
use crate::wire::Seq;

/// The reads of an end.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// Some stream waits for one that is not posted yet.
    due: bool,
    /// One is under way.
    posted: bool,
}

impl Pump {
    /// Bytes of a stream before `to` are through with this end's device.
    pub(super) fn on_given(&mut self, stream: u16, to: Seq) -> Result<(), Error> {
        let proves = self.terms.proves;
        let Some(flow) = self.flow(stream) else {
            return Ok(());
        };
        if proves {
            flow.given = flow.given.max(to);
        } else {
            flow.transit.on_completed(to)?;
        }
        self.settle(stream);
        Ok(())
    }

    /// Has a read posted, if this stream waits for nothing else.
    pub(super) fn want_fence(&mut self, stream: u16) {
        let wants = self.terms.proves
            && self
                .flow(stream)
                .is_some_and(|flow| flow.transit.is_ending() && flow.given > flow.fenced);
        self.fences.due |= wants;
    }

    /// Is a read to be posted now? For what the streams have given by now.
    pub(super) fn poll_fence(&mut self) -> bool {
        if self.fences.posted || !core::mem::take(&mut self.fences.due) {
            return false;
        }
        self.fences.posted = true;
        for flow in self.flows.iter_mut().flatten() {
            flow.fenced = flow.given;
        }
        true
    }

    /// The read has come back: what was given before it was posted is at the peer's end. `each`
    /// gets the streams for which that may be news.
    ///
    /// # Errors
    /// [`Bug::Switch`](crate::error::Bug::Switch): none was posted.
    pub fn on_fenced(&mut self, mut each: impl FnMut(u16)) -> Result<(), Error> {
        if !core::mem::take(&mut self.fences.posted) {
            return Err(crate::error::Bug::Switch.into());
        }
        for stream in 0..u16::try_from(self.flows.len()).unwrap_or(u16::MAX) {
            let Some(flow) = self.flow(stream).filter(|flow| !flow.left) else {
                continue;
            };
            let ending = flow.transit.is_ending();
            flow.transit.on_completed(flow.fenced)?;
            self.settle(stream);
            if ending {
                each(stream);
            }
        }
        Ok(())
    }

    /// Is a read under way? Then the link's timer runs.
    #[must_use]
    pub const fn is_fencing(&self) -> bool {
        self.fences.posted
    }
}
