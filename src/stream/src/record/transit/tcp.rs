//! What TCP tells of the peer: its bytes, its record, its end.

use super::{State, Transit};
use crate::error::{Bug, Error};
use crate::record::{
    Goes, Head, Leave, Malformed, NONCE_LEN, RECORD_LEN, Reason, Record, Role, Rule,
};
use crate::wire::Seq;

impl Transit {
    /// `len` bytes were removed from TCP, as [`Transit::tcp_room`] allows.
    ///
    /// # Errors
    /// [`Bug::Copied`]: it does not.
    pub fn on_tcp_read(&mut self, len: u64) -> Result<(), Error> {
        if len > self.tcp_room() {
            return Err(Bug::Copied.into());
        }
        if let State::Over(_) = self.state {
            self.reached = Seq::new(self.reached.value().saturating_add(len));
            return Ok(());
        }
        self.tcp_read = self.tcp_read.saturating_add(len);
        if self.state == State::Asked && self.tcp_read > self.peer_n {
            // The first end has written on: it has left the switch, and its word is under way.
            self.over(Seq::START);
        }
        Ok(())
    }

    /// The program's bytes, or its FIN, are about to be written on TCP.
    pub fn on_tcp_write(&mut self) {
        if let State::Quit(wrote) = &mut self.state {
            *wrote = true;
        }
    }

    /// What TCP has at N: its first bytes, at most [`RECORD_LEN`] of them count, and whether it
    /// ends after those.
    pub fn on_head(&mut self, head: &[u8], ended: bool) -> Head {
        if !self.is_at_head() {
            return Head::Wait;
        }
        let loose = self.is_loose();
        self.undecided = false;
        let whole = head.first_chunk::<RECORD_LEN>();
        if let Some(parsed) = whole.and_then(|bytes| Record::parse(bytes, &self.nonce)) {
            let heard = parsed.map_err(|Malformed| Reason::Malformed);
            return match heard.and_then(|record| self.hear(&record)) {
                Ok(()) => Head::Record,
                Err(reason) => self.die(reason),
            };
        }
        let like = self.nonce.matches(head);
        if like < head.len().min(NONCE_LEN) {
            if loose {
                self.hear_data();
                return Head::Data;
            }
            return self.die(Reason::Malformed);
        }
        if !self.keeps_to(Rule::WholeRecord) && loose && !head.is_empty() {
            self.hear_data();
            return Head::Data;
        }
        match (loose, like, ended) {
            // Nothing was posted yet, so that nothing is missing.
            (true, 0, true) => {
                self.hear_data();
                Head::Data
            }
            (false, 0, true) if !self.keeps_to(Rule::EndNeedsRecord) => {
                self.end = Some(self.received);
                self.reached = self.received;
                self.over(self.posted);
                Head::Data
            }
            (true, 1..NONCE_LEN, true) => self.die(Reason::Undecided),
            (_, _, true) => self.die(Reason::Killed),
            (_, _, false) => {
                self.undecided = loose && (1..NONCE_LEN).contains(&like);
                Head::Wait
            }
        }
    }

    /// Whether `head`, what TCP has next, is a record of the peer's that crossed our word that we
    /// want none ([`Transit::said_last`]), or its beginning: to be removed, and of no account.
    #[must_use]
    pub fn is_crossing(&self, head: &[u8]) -> bool {
        let at_n = self.last && self.tcp_read == self.peer_n && self.reached == Seq::START;
        at_n && !head.is_empty() && self.nonce.matches(head) == head.len().min(NONCE_LEN)
    }

    /// Whether these first bytes since N, for which [`Transit::on_head`] has said [`Head::Wait`],
    /// are a record's and nothing else: they may be removed before the rest has come, which is
    /// given to `on_head` after them.
    #[must_use]
    pub fn is_part(&self, head: &[u8]) -> bool {
        self.is_at_head() && (!self.is_loose() || self.nonce.matches(head) == NONCE_LEN)
    }

    /// Whether the peer may have gone on without a record.
    fn is_loose(&self) -> bool {
        match self.state {
            State::Answered(_) | State::Quit(_) | State::Said { loose: true, .. } => true,
            State::Known => self.role == Role::First,
            _ => false,
        }
    }

    /// TCP has ended, where it is not [`Transit::on_head`] that finds out. Whether the program sees
    /// that; else it is a reset.
    pub fn on_tcp_end(&mut self) -> bool {
        let whole = match self.state {
            State::Plain | State::Asked | State::Fixed => true,
            State::Over(_) => self.reached >= self.promised || !self.keeps_to(Rule::OwedComes),
            _ => false,
        };
        if !whole {
            let _ = self.die(Reason::Killed);
        }
        whole
    }

    /// TCP has failed. The error is TCP's, and seen when the link's bytes are read.
    pub fn on_tcp_error(&mut self) {
        if self.awaits_head() {
            let _ = self.die(Reason::Tcp);
            self.reset = false;
        }
    }

    /// The peer has gone on on TCP without a record, from a state in which nothing was posted by
    /// either.
    fn hear_data(&mut self) {
        if self.state == State::Known {
            self.say(Leave::Shut);
        }
        self.over(Seq::START);
    }

    /// The peer's record.
    fn hear(&mut self, theirs: &Record) -> Result<(), Reason> {
        let ours = match self.state {
            State::Said { ours, .. } => Some(ours),
            _ => None,
        };
        if theirs.taken < self.credited || theirs.taken > self.posted {
            return Err(Reason::Taken);
        }
        let taken = match (ours, self.state) {
            (Some(ours), _) => ours.taken,
            (None, _) if matches!(theirs.goes, Goes::Ask { .. }) => self.taken_asked(),
            (None, State::Ending(leave) | State::Answered(Some(leave))) => self.taken(leave),
            (None, _) => self.received,
        };
        let promised = theirs.end();
        if promised < self.received {
            return Err(Reason::From);
        }
        let end = match theirs.goes {
            Goes::From { .. } if !self.keeps_to(Rule::KeepBeyondTaken) => taken,
            Goes::From { from, owed } => {
                // Its own decision, or its answer to ours.
                let decided = owed == 0 && from >= self.received;
                let answered = ours.is_some_and(|ours| ours.taken == from);
                if !decided && !answered {
                    return Err(Reason::From);
                }
                from
            }
            Goes::Ask { lives, .. } => {
                self.peer_lost = !lives;
                taken
            }
        };
        if end > self.received {
            if self.lost {
                return Err(Reason::Missing);
            }
            self.drain = true;
        }
        let from = match ours.map(|ours| ours.goes) {
            Some(Goes::From { from, .. }) if self.keeps_to(Rule::FromStands) => from,
            _ => theirs.taken,
        };
        let mute = theirs.last || matches!(self.state, State::Quit(true));
        if ours.is_none() && !mute {
            let owed = self.posted.since(from).unwrap_or(0);
            let owed = u32::try_from(owed).unwrap_or(u32::MAX);
            self.write = Some(Record {
                goes: Goes::From { from, owed },
                taken: end,
                last: false,
            });
        }
        self.end = Some(end);
        self.reached = end;
        self.promised = promised;
        self.over(from);
        Ok(())
    }
}
