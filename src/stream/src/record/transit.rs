//! The machine: its states, and what each event makes of them.

mod tcp;

use super::{Action, Goes, Head, Leave, Nonce, Out, Reason, Record, Role, Rule, Step};
use crate::error::{Bug, Error, PeerFault};
use crate::wire::Seq;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// TCP as ever.
    Plain,
    /// Second end: the first has fixed its N.
    Asked,
    /// First end: N is fixed, and the other may not know it.
    Fixed,
    /// Second end: N is fixed, and the other may not know it. It leaves when it does.
    Answered(Option<Leave>),
    /// The other end knows N.
    Known,
    /// The link is used.
    Open,
    /// Nothing is posted any more, some of it is not complete.
    Ending(Leave),
    /// Second end: gone on on TCP from [`State::Answered`]. Whether it has written there.
    Quit(bool),
    /// Our record is written, nothing has come. `loose`: none may come, if the peer was in
    /// [`State::Answered`].
    Said {
        ours: Record,
        loose: bool,
    },
    /// All is decided: bytes from here on are TCP's.
    Over(Seq),
    Dead(Reason),
}

/// One stream's way from TCP to the link and back, at one end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transit {
    role: Role,
    nonce: Nonce,
    state: State,
    /// The peer's N, an offset of its TCP bytes; meaningful from [`State::Asked`] or
    /// [`State::Known`] on.
    peer_n: u64,
    /// The peer's TCP bytes removed from the socket. Not counted any more beyond N.
    tcp_read: u64,
    /// Given to the link.
    posted: Seq,
    /// Of these, known to be at the peer's end of the link. At most `posted`.
    completed: Seq,
    /// Of these, known to have been read there. May be ahead of `completed`; at most `posted`.
    credited: Seq,
    /// Brought by the link.
    received: Seq,
    /// Of these, read by the program. At most `link_end`.
    read: Seq,
    /// Where the peer's bytes leave the link, as far as known: what we said that we took, then what
    /// was agreed.
    end: Option<Seq>,
    /// Bytes of the peer that are accounted for: `end`, then TCP's after it.
    reached: Seq,
    /// Bytes that the peer has promised.
    promised: Seq,
    /// The nonce may have begun at N, and `Quit` or `loose` cannot tell.
    undecided: bool,
    lost: bool,
    /// See [`Transit::set_keeps`].
    keeps: Option<u64>,
    /// See [`Transit::set_patient`].
    patient: bool,
    /// The peer's record said that it has lost the link.
    peer_lost: bool,
    /// Our record said that it is the last word.
    last: bool,
    fix: bool,
    tell: Option<Step>,
    write: Option<Record>,
    drain: bool,
    reset: bool,
    #[cfg(any(test, feature = "testing"))]
    without: Option<Rule>,
}

impl Transit {
    /// A stream that was agreed on and is still on TCP, of which the peer's first `tcp_read` bytes
    /// have been removed from the socket.
    #[must_use]
    pub const fn new(role: Role, nonce: Nonce, tcp_read: u64) -> Self {
        Self {
            role,
            nonce,
            state: State::Plain,
            peer_n: 0,
            tcp_read,
            posted: Seq::START,
            completed: Seq::START,
            credited: Seq::START,
            received: Seq::START,
            read: Seq::START,
            end: None,
            reached: Seq::START,
            promised: Seq::START,
            undecided: false,
            lost: false,
            keeps: None,
            patient: false,
            peer_lost: false,
            last: false,
            fix: false,
            tell: None,
            write: None,
            drain: false,
            reset: false,
            #[cfg(any(test, feature = "testing"))]
            without: None,
        }
    }

    /// The same machine with one rule switched off.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub const fn without(mut self, rule: Rule) -> Self {
        self.without = Some(rule);
        self
    }

    #[cfg(any(test, feature = "testing"))]
    fn keeps_to(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    #[cfg(not(any(test, feature = "testing")))]
    #[allow(clippy::unused_self, reason = "tests have a rule to look at")]
    const fn keeps_to(&self, _rule: Rule) -> bool {
        true
    }

    // What the caller asks.

    /// No other process reads the socket: when the peer asks, and more than `beyond` bytes lie
    /// unread in the ring, they stay there and need not come by TCP. `None`: there may be one.
    pub const fn set_keeps(&mut self, beyond: Option<u64>) {
        self.keeps = beyond;
    }

    /// An end that goes on by TCP ([`Leave::Stay`]) asks only when what it has posted is at the
    /// peer's end, for what is not would be sent again. Worth a round trip where much is under way.
    pub const fn set_patient(&mut self) {
        self.patient = true;
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        if let Some(step) = self.tell.take() {
            return Some(Action::Tell(step));
        }
        if let Some(record) = self.write.take() {
            return Some(Action::Write(record));
        }
        if core::mem::take(&mut self.fix) {
            return Some(Action::Fix);
        }
        if core::mem::take(&mut self.drain) {
            return Some(Action::Drain);
        }
        match self.state {
            State::Dead(reason) if core::mem::take(&mut self.reset) => Some(Action::Reset(reason)),
            _ => None,
        }
    }

    /// Where the program's next byte goes.
    #[must_use]
    pub fn out(&self) -> Out {
        if self.write.is_some() || self.tell.is_some() {
            return Out::Held;
        }
        match self.state {
            State::Plain | State::Asked | State::Quit(_) => Out::Tcp(Seq::START),
            State::Open => Out::Link,
            State::Known if !self.keeps_to(Rule::PostWhenOpen) => Out::Link,
            State::Over(from) => Out::Tcp(from),
            State::Said { ours, .. } => match ours.goes {
                Goes::From { from, .. } => Out::Tcp(from),
                Goes::Ask { .. } if !self.keeps_to(Rule::AskWaits) => Out::Tcp(self.credited),
                Goes::Ask { .. } => Out::Held,
            },
            State::Fixed
            | State::Answered(_)
            | State::Known
            | State::Ending(_)
            | State::Dead(_) => Out::Held,
        }
    }

    /// The first byte given to the link that has to be kept. What is before it the peer has.
    #[must_use]
    pub fn kept(&self) -> Seq {
        match self.out() {
            Out::Tcp(from) => from,
            Out::Link | Out::Held => self.credited,
        }
    }

    /// How far the program may read the link's bytes, after those of TCP up to N: what is beyond
    /// is not there, or may come by TCP.
    #[must_use]
    pub fn link_end(&self) -> Seq {
        match self.state {
            State::Said { .. } if !self.keeps_to(Rule::ReadToTaken) => self.received,
            _ => self.end.map_or(self.received, |end| end.min(self.received)),
        }
    }

    /// How many bytes may be taken from TCP, for the program, before the link's and after them. In
    /// the first case the library takes them into memory when they lie before a record.
    #[must_use]
    pub fn tcp_room(&self) -> u64 {
        match self.state {
            State::Plain | State::Asked | State::Fixed => u64::MAX,
            State::Over(_) if self.end == Some(self.read) => u64::MAX,
            State::Over(_) | State::Dead(_) => 0,
            State::Answered(_)
            | State::Known
            | State::Open
            | State::Ending(_)
            | State::Quit(_)
            | State::Said { .. } => self.peer_n.saturating_sub(self.tcp_read),
        }
    }

    /// Whether what TCP has next is the peer's first since N: to be looked at, and given to
    /// [`Transit::on_head`].
    #[must_use]
    pub fn is_at_head(&self) -> bool {
        self.awaits_head() && self.tcp_read == self.peer_n
    }

    /// Whether TCP is the program's bytes alone, and all of the link's are read: anybody may read
    /// and write the socket, if nothing was taken into memory that the program has not read.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        match self.state {
            State::Plain => true,
            State::Over(_) => self.end == Some(self.read) && self.write.is_none(),
            State::Said { .. } => !self.keeps_to(Rule::CleanWaits),
            _ => false,
        }
    }

    /// Whether the bytes at N may be a record's beginning or the program's, and only more of them
    /// can tell. If none come for as long as a link may be silent: [`Transit::give_up`].
    #[must_use]
    pub const fn is_undecided(&self) -> bool {
        self.undecided
    }

    /// Whether credit is still told by the link: not after our record. That says what we took, and
    /// a credit for bytes that the peer's record has since named would overtake it.
    #[must_use]
    pub fn gives_credit(&self) -> bool {
        let on_link = matches!(self.state, State::Known | State::Open | State::Ending(_));
        !self.lost && (on_link || !self.keeps_to(Rule::CreditEnds))
    }

    /// Why the connection is reset, if it is.
    #[must_use]
    pub const fn is_dead(&self) -> Option<Reason> {
        match self.state {
            State::Dead(reason) => Some(reason),
            _ => None,
        }
    }

    /// Given to the link.
    #[must_use]
    pub const fn posted(&self) -> Seq {
        self.posted
    }

    /// Of what the link has brought, read by the program.
    #[must_use]
    pub const fn read(&self) -> Seq {
        self.read
    }

    /// The offset at which the peer's TCP bytes end, once nothing after it is the program's
    /// without a look ([`Transit::on_head`]).
    #[must_use]
    pub fn peer_n(&self) -> Option<u64> {
        self.awaits_head().then_some(self.peer_n)
    }

    /// Whether this end fixes its N before the other.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        matches!(self.role, Role::First)
    }

    /// Whether this end is to fix its N as soon as it can.
    #[must_use]
    pub fn wants_fix(&self) -> bool {
        match self.role {
            Role::First => self.state == State::Plain,
            Role::Second => self.state == State::Asked,
        }
    }

    /// Whether this end, or the peer, has left the link: nothing of the program's is posted any
    /// more.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        !matches!(
            self.state,
            State::Plain
                | State::Asked
                | State::Fixed
                | State::Answered(None)
                | State::Known
                | State::Open
        )
    }

    /// Whether the record waits for the end of this end's own work.
    #[must_use]
    pub const fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending(_))
    }

    /// Whether the second end has not answered with its N, as far as is known here: an end that
    /// leaves by then has written no record.
    #[must_use]
    pub const fn is_unanswered(&self) -> bool {
        match self.role {
            Role::First => matches!(self.state, State::Plain | State::Fixed),
            Role::Second => matches!(self.state, State::Plain | State::Asked),
        }
    }

    /// Whether this end has said in its record that it reads nothing more.
    #[must_use]
    pub const fn said_last(&self) -> bool {
        self.last
    }

    /// Whether this end's record is out and the peer's is to come.
    #[must_use]
    pub const fn awaits_record(&self) -> bool {
        matches!(self.state, State::Said { .. })
    }

    /// Whether the peer has lost the link, as it says in its record: nothing comes by that any
    /// more.
    #[must_use]
    pub const fn peer_lost(&self) -> bool {
        self.peer_lost
    }

    /// Whether all is decided, so that nothing more of the link matters.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Over(_))
    }

    /// Whether a step of the switch, or of what ends it, is the peer's to send: for so long the
    /// link's timer runs.
    #[must_use]
    pub const fn awaits_step(&self) -> bool {
        matches!(self.state, State::Fixed | State::Answered(_) | State::Known)
    }

    /// Bytes that the peer has promised to bring by TCP and that were not read yet. An end of TCP
    /// before them is a death.
    #[must_use]
    pub fn owed(&self) -> u64 {
        match self.state {
            State::Over(_) => self.promised.since(self.reached).unwrap_or(0),
            _ => 0,
        }
    }

    /// Whether a step that tells N may be taken now: the peer's bytes before it are read, or more
    /// than these, or they do not matter any more. So whenever a record may stand at N, TCP is read
    /// up to it.
    #[must_use]
    pub const fn may_take(&self, step: Step) -> bool {
        if !matches!(self.state, State::Plain | State::Fixed) {
            return true;
        }
        match step {
            Step::First(n) | Step::Second(n) => n <= self.tcp_read,
            _ => true,
        }
    }

    // The switch.

    /// Our TCP ends at offset `n`: nothing is written there any more until [`Transit::out`] says
    /// so.
    ///
    /// # Errors
    /// [`Bug::Switch`]: not now.
    pub fn fix(&mut self, n: u64) -> Result<(), Error> {
        match (self.role, self.state) {
            (Role::First, State::Plain) => {
                self.state = State::Fixed;
                self.tell = Some(Step::First(n));
            }
            (Role::Second, State::Asked) => {
                self.fix = false;
                self.state = State::Answered(None);
                self.tell = Some(Step::Second(n));
            }
            // The first end has left before we came to it.
            (Role::Second, State::Over(_)) => {}
            _ => return Err(Bug::Switch.into()),
        }
        Ok(())
    }

    /// The second end stays on TCP.
    pub fn refuse(&mut self) {
        if self.state == State::Asked {
            self.cancel();
        }
    }

    /// A step has come by the link.
    ///
    /// # Errors
    /// [`PeerFault::Step`]: not the next.
    pub fn on_step(&mut self, step: Step) -> Result<(), Error> {
        if self.lost {
            return Ok(());
        }
        match (self.role, self.state, step) {
            (Role::Second, State::Plain, Step::First(n)) => {
                self.peer_n = n;
                if self.is_here(n) {
                    self.state = State::Asked;
                    self.fix = true;
                } else {
                    self.cancel();
                }
            }
            (Role::First, State::Fixed, Step::Second(n)) => {
                if self.is_here(n) {
                    self.peer_n = n;
                    self.state = State::Known;
                    self.tell = Some(Step::Go);
                } else {
                    self.cancel();
                }
            }
            // Left before it was asked: the first end waits for an answer.
            (Role::Second, State::Over(_), Step::First(_)) => self.tell = Some(Step::Cancel),
            (Role::Second, State::Answered(leave), Step::Go) => {
                self.state = State::Known;
                match leave {
                    Some(leave) => self.say(leave),
                    None => self.tell = Some(Step::Ready),
                }
            }
            (Role::First, State::Known, Step::Ready) => {
                self.state = State::Open;
                self.tell = Some(Step::Open);
            }
            (Role::Second, State::Known, Step::Open) => self.state = State::Open,
            (Role::First, State::Plain | State::Fixed, Step::Cancel)
            | (Role::Second, State::Plain | State::Asked | State::Answered(_), Step::Cancel) => {
                self.over(Seq::START);
            }
            // The last steps of a switch may still be under way to an end that has left.
            (_, State::Quit(_) | State::Said { .. } | State::Over(_) | State::Dead(_), _) => {}
            _ => return Err(PeerFault::Step.into()),
        }
        Ok(())
    }

    // The link.

    /// `len` more bytes were given to the link, as [`Transit::out`] allows.
    ///
    /// # Errors
    /// [`Bug::Switch`]: it does not.
    pub fn on_posted(&mut self, len: u32) -> Result<(), Error> {
        if self.out() != Out::Link {
            return Err(Bug::Switch.into());
        }
        self.posted = self.posted.plus(len);
        Ok(())
    }

    /// Everything before `to` is at the peer's end: completed, and on iWARP a READ after it.
    ///
    /// # Errors
    /// [`Bug::Switch`]: it was not given to the link.
    pub fn on_completed(&mut self, to: Seq) -> Result<(), Error> {
        if to > self.posted {
            return Err(Bug::Switch.into());
        }
        if self.lost {
            return Ok(());
        }
        self.completed = self.completed.max(to);
        self.ending_goes_on();
        Ok(())
    }

    /// The peer's program has read everything before `to`.
    ///
    /// # Errors
    /// [`PeerFault::AckSeq`]: that goes back, or was never sent.
    pub fn on_credit(&mut self, to: Seq) -> Result<(), Error> {
        if to < self.credited || to > self.posted {
            return Err(PeerFault::AckSeq.into());
        }
        if !self.lost && !matches!(self.state, State::Over(_) | State::Dead(_)) {
            self.credited = to;
            self.ending_goes_on();
        }
        Ok(())
    }

    /// What was given to the link from `to` on, straight to the peer's program, did not become its
    /// own: it goes again.
    ///
    /// # Errors
    /// [`Bug::Switch`]: it did, or was not given.
    pub fn on_void(&mut self, to: Seq) -> Result<(), Error> {
        if self.lost || !matches!(self.state, State::Open | State::Ending(_)) {
            return Ok(());
        }
        if to > self.posted || to < self.completed || to < self.credited {
            return Err(Bug::Switch.into());
        }
        self.posted = to;
        self.ending_goes_on();
        Ok(())
    }

    /// The link has brought everything before `to`: immediates taken from the completion queue,
    /// nothing else counts.
    ///
    /// # Errors
    /// [`PeerFault::Step`]: before the peer can know that it may post.
    pub fn on_received(&mut self, to: Seq) -> Result<(), Error> {
        self.may_receive()?;
        if !self.lost && !matches!(self.state, State::Quit(_) | State::Dead(_)) {
            self.received = self.received.max(to);
        }
        Ok(())
    }

    /// May bytes come over the link, be it that they do not count any more?
    ///
    /// # Errors
    /// As [`Transit::on_received`].
    pub fn may_receive(&self) -> Result<(), Error> {
        match self.state {
            _ if self.lost => Ok(()),
            State::Known if self.role == Role::First => Err(PeerFault::Step.into()),
            State::Plain | State::Asked | State::Fixed | State::Answered(_) => {
                Err(PeerFault::Step.into())
            }
            State::Known
            | State::Open
            | State::Ending(_)
            | State::Said { .. }
            | State::Over(_)
            | State::Quit(_)
            | State::Dead(_) => Ok(()),
        }
    }

    /// After [`Action::Drain`]: there is nothing more.
    pub fn on_drained(&mut self) {
        if matches!(self.state, State::Over(_)) && self.end > Some(self.received) {
            let _ = self.die(Reason::Missing);
        }
    }

    /// The link is lost, and what it had delivered is reported: an error, its end, or too long a
    /// silence with work outstanding, a step of the switch included. Nothing of it is believed from
    /// now on.
    pub fn on_link_lost(&mut self) {
        if core::mem::replace(&mut self.lost, true) {
            return;
        }
        self.tell = None;
        match self.state {
            State::Plain | State::Asked => self.over(Seq::START),
            State::Fixed if !self.keeps_to(Rule::NoRecordUnknown) => self.say(Leave::Shut),
            State::Fixed => self.over(Seq::START),
            State::Answered(_) if !self.keeps_to(Rule::LookAtN) => self.over(Seq::START),
            State::Answered(_) => self.state = State::Quit(false),
            State::Known | State::Open => self.say(Leave::Shut),
            State::Ending(leave) => self.say_late(leave),
            State::Over(_) => self.on_drained(),
            State::Quit(_) | State::Said { .. } | State::Dead(_) => {}
        }
    }

    /// The program has read the link's bytes before `to`.
    ///
    /// # Errors
    /// [`Bug::Copied`]: these were not for it.
    pub fn on_read(&mut self, to: Seq) -> Result<(), Error> {
        if to < self.read || to > self.link_end() {
            return Err(Bug::Copied.into());
        }
        self.read = to;
        Ok(())
    }

    // The program.

    /// This end leaves the link. [`Transit::out`] tells when TCP takes bytes, [`Transit::is_clean`]
    /// when others may have it.
    pub fn leave(&mut self, leave: Leave) {
        match self.state {
            State::Plain => self.over(Seq::START),
            State::Asked | State::Fixed => self.cancel(),
            // Whether the peer expects a record is its next word to say.
            State::Answered(Some(before)) if outranks(before, leave) => {}
            State::Answered(_) => self.state = State::Answered(Some(leave)),
            State::Known => self.say(leave),
            State::Open => self.try_say(leave),
            State::Ending(before) if outranks(before, leave) => {}
            State::Ending(_) => self.try_say(leave),
            State::Quit(_) | State::Said { .. } | State::Over(_) | State::Dead(_) => {}
        }
    }

    /// What was waited for has not come in time: the peer's record, for exec or passing, or what
    /// decides whether bytes are one.
    pub fn give_up(&mut self) {
        let reason = if self.undecided {
            Reason::Undecided
        } else {
            Reason::Unclean
        };
        if !self.is_clean() {
            let _ = self.die(reason);
        }
    }

    // Within.

    const fn awaits_head(&self) -> bool {
        matches!(
            self.state,
            State::Answered(_)
                | State::Known
                | State::Open
                | State::Ending(_)
                | State::Quit(_)
                | State::Said { .. }
        )
    }

    /// Whether a peer's N is where TCP was read to: not passed by, which happens when it has left
    /// again, and not ahead.
    const fn is_here(&self, n: u64) -> bool {
        n == self.tcp_read
    }

    /// Back to TCP, nothing ever having been on the link.
    fn cancel(&mut self) {
        self.over(Seq::START);
        self.tell = Some(Step::Cancel);
    }

    /// The positions are decided; bytes of ours from `from` on are TCP's.
    fn over(&mut self, from: Seq) {
        self.end.get_or_insert(Seq::START);
        self.fix = false;
        self.tell = None;
        self.undecided = false;
        self.state = State::Over(from);
    }

    fn die(&mut self, reason: Reason) -> Head {
        if !matches!(self.state, State::Dead(_)) {
            self.end = Some(self.link_end());
            self.fix = false;
            self.tell = None;
            self.write = None;
            self.drain = false;
            self.undecided = false;
            self.reset = true;
            self.state = State::Dead(reason);
        }
        Head::Wait
    }

    /// On a link that lives: for an end of what is sent FROM, as soon as all that was posted is at
    /// the peer's end. Else an ASK, at once or, of a patient end, then too: what the peer has not
    /// read by now comes by TCP.
    fn try_say(&mut self, leave: Leave) {
        if self.is_through()
            || leave.goes_on() && !(self.patient && leave == Leave::Stay)
            || !self.keeps_to(Rule::FromWaits)
        {
            self.say(leave);
        } else {
            self.state = State::Ending(leave);
        }
    }

    /// The record of an end that had to wait, if nothing is under way any more.
    fn ending_goes_on(&mut self) {
        if let State::Ending(leave) = self.state
            && self.is_through()
        {
            self.say_late(leave);
        }
    }

    /// Whether nothing that was posted is under way any more.
    fn is_through(&self) -> bool {
        self.completed == self.posted || self.credited == self.posted
    }

    /// The record of an end that had to wait. Its program may have read on meanwhile, and be
    /// reading now: so it names what was received.
    fn say_late(&mut self, leave: Leave) {
        self.say_taken(leave, self.received);
    }

    /// Our record, before the peer's has come.
    fn say(&mut self, leave: Leave) {
        self.say_taken(leave, self.taken(leave));
    }

    fn say_taken(&mut self, leave: Leave, taken: Seq) {
        // On a lost link only what was read is certain to be the peer's. What stays in a ring only
        // one process can read, and the peer's program may have forked: so no more of it than where
        // nothing follows by TCP.
        let asks = self.lost || leave.goes_on() && self.keeps_to(Rule::LeaverAsks);
        let decided = self.credited == self.posted || !asks;
        let goes = if decided {
            let from = self.posted;
            Goes::From { from, owed: 0 }
        } else {
            Goes::Ask {
                end: self.posted,
                lives: !self.lost,
            }
        };
        let ours = Record {
            goes,
            taken,
            last: decided && leave == Leave::Close && self.keeps_to(Rule::CloseSaysLast),
        };
        let loose = self.state == State::Known && self.role == Role::First;
        self.end = Some(ours.taken);
        self.tell = None;
        self.last = ours.last;
        if ours.last {
            // Whatever the peer says, nobody wants to know.
            self.over(self.posted);
        } else {
            self.state = State::Said { ours, loose };
        }
        self.write = Some(ours);
    }

    /// What this end says that it took, to a peer that asks. The peer sends the rest again by TCP,
    /// where all processes that share the socket can read it.
    fn taken_asked(&self) -> Seq {
        let unread = self.received.since(self.read).unwrap_or(0);
        if self.keeps.is_some_and(|beyond| unread > beyond) {
            self.received
        } else {
            self.taken(Leave::Hand)
        }
    }

    fn taken(&self, leave: Leave) -> Seq {
        if leave.goes_on() && self.keeps_to(Rule::HandSaysRead) {
            self.read
        } else {
            self.received
        }
    }
}

/// Does what was said before of how this end leaves stand against this? First counts that another
/// process reads on, or none does; then that nothing more is sent.
const fn outranks(before: Leave, leave: Leave) -> bool {
    match leave {
        Leave::Stay => true,
        Leave::Shut => matches!(before, Leave::Hand | Leave::Close),
        Leave::Hand | Leave::Close => false,
    }
}
