//! What the peer says: each message that came, checked before it counts.

use super::Pump;
use super::types::Came;
use crate::error::{Error, PeerFault};
use crate::record::Step;
use crate::wire::{CONTROL_LEN, Control, Immediate, Notice};

/// Steps that a peer can have said and this end not taken: all of a switch.
const STEPS: usize = 5;

impl Pump {
    /// A message came, and its receive is posted again: the immediate, the bytes that came with it,
    /// and where it is of the control ring a private copy of the slot.
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
            Notice::Ring => match self.flow(stream).filter(|flow| !flow.left) {
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

    pub(super) fn on_control(&mut self, stream: u16, control: Control) -> Result<Came, Error> {
        let of_link = match control {
            Control::Meeting(meeting) => Some(Came::Meeting(meeting)),
            Control::DirectQp(direct_qp) => Some(Came::DirectQp(direct_qp)),
            Control::Noticed(count) => Some(self.on_noticed(count)),
            _ => None,
        };
        match of_link {
            Some(_) if stream != 0 => return Err(PeerFault::Malformed.into()),
            Some(came) => return Ok(came),
            None => {}
        }
        if control == Control::Closed && self.flow(stream).is_none() {
            if !self.early.contains(&stream) {
                self.early.push(stream);
            }
            return Ok(Came::Nothing);
        }
        let Some(flow) = self.flow(stream) else {
            return Ok(Came::Nothing);
        };
        if control == Control::Closed {
            if core::mem::replace(&mut flow.peer_left, true) {
                return Err(PeerFault::Malformed.into());
            }
            if flow.left {
                self.forget_if(stream, true);
                return Ok(Came::Free(stream));
            }
            let answered = flow.steps.iter().any(|s| matches!(s, Step::Second(_)));
            if answered || !flow.transit.is_unanswered() {
                // What it has said before, or its record, tells.
                return Ok(Came::Nothing);
            }
            flow.steps.push_back(Step::Cancel);
            return Ok(Came::Step(stream));
        }
        if flow.left {
            return Ok(Came::Nothing);
        }
        match control {
            Control::Ack(ack) => {
                flow.sender.on_ack(ack)?;
                flow.transit.on_credit(ack.seq)?;
                flow.decide(ack.seq);
                self.settle(stream);
                Ok(Came::Credit(stream))
            }
            Control::Switch(step) => {
                if flow.steps.len() == STEPS {
                    return Err(PeerFault::Step.into());
                }
                flow.steps.push_back(step);
                Ok(Came::Step(stream))
            }
            Control::Consent => {
                if core::mem::replace(&mut flow.peer_consented, true) {
                    return Err(PeerFault::Step.into());
                }
                Ok(Came::Step(stream))
            }
            Control::Turn(turn) => flow.on_turn(turn).map(|()| Came::Nothing),
            Control::Advert(advert, times) => {
                flow.sender.on_advert(advert)?;
                flow.their_use = times;
                self.due.set(stream);
                Ok(Came::Nothing)
            }
            Control::Revoke(revoked) => self.on_revoked(stream, revoked).map(|()| Came::Nothing),
            Control::Again(from) => self.on_again(stream, from),
            Control::Return(id) => Ok(self.on_return(stream, id)),
            Control::Meeting(_)
            | Control::DirectQp(_)
            | Control::Noticed(_)
            | Control::Closed
            | Control::Blocked => Err(PeerFault::Malformed.into()),
        }
    }
}
