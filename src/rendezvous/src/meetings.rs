//! The list of meetings under way, each found by its socket and by the connection's key; and what
//! hooks may know of the list without its lock.

use super::closer::Way;
use super::diag::Mirror;
use super::identity::Claimant;
use super::message::{Message, Nonce};
use super::{NAME_NS, watch};
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_fabric::lock::{self, Guarded};
use sluice_fabric::shm::{Link, Token};
use sluice_fabric::sys::{self, Fd};
use sluice_runtime::control_thread;
use sluice_sockets::meeting::{ASKED, BUSY, Effort, NAMES};
use sluice_sockets::socket::Socket;
use sluice_stats::Reason;
use std::collections::BTreeMap;

/// How far a meeting has come. The *first comer* has bound the name, the *second comer* has
/// connected to it.
#[derive(Debug)]
pub(super) enum Stage {
    /// First comer: the name is bound, and the peer has not connected. `sent_away` counts other
    /// processes that have connected.
    Named { sent_away: u32 },
    /// First comer: a process of the other end's owner has connected and has sent nothing.
    Greeted,
    /// First comer: Claim is sent.
    Claimed,
    /// First comer: Reply is sent, and offers stream `index` of the link.
    Replied(&'static Link, u32),
    /// Second comer: Challenge is sent.
    Dialled,
    /// Second comer: the first comer has proved itself, its link has this token, and Claim is sent.
    Proved(Token),
    /// Second comer: the same, and a porter receives the answer, which brings the arena (see
    /// [`super::closer`]).
    Receiving(Fd, Token),
    /// Second comer: the first comer offers stream `index` of the link with this token, which
    /// another meeting of the two processes is about to make here.
    Promised(Token, u32),
    /// The peer was asked over this link, the last of the given number. `None`: the other end is in
    /// this process, and has not moved a byte.
    Asked(Option<&'static Link>, u32),
    /// Stream `index` of the link was granted to the peer, which has not joined yet.
    Granted(&'static Link, u32),
}

/// A meeting under way.
#[derive(Debug)]
pub(super) struct Pending {
    /// What the meeting began with.
    pub look: Look,
    pub stage: Stage,
    /// The process that has connected, or that listens at the name.
    pub claimant: Option<Claimant>,
    /// The socket that is bound to the name, or connected to the peer. None if only links are
    /// asked.
    pub socket: Option<Way>,
    pub deadline: u64,
    /// First comer: the link was made for this meeting, whose socket becomes its control socket.
    pub made_link: bool,
}

impl Pending {
    /// True if the meeting may be replaced when the connection tries again.
    pub fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Asked(..)) || self.refuses.is_some()
    }

    /// True if the meeting goes on, so that a new try with this effort is not needed.
    pub(crate) fn goes_on_for(&self, effort: Effort) -> bool {
        let is_enough = !self.is_idle() || self.refuses.is_none() && effort != Effort::Name;
        is_enough && self.is_current() && sys::now_ns() < self.deadline
    }

    /// Whether one end has come to the other. `None`: both are in this process, and the other one
    /// must be used first.
    pub fn has_begun(&self) -> Option<bool> {
        match self.stage {
            Stage::Asked(None, _) => None,
            Stage::Named { .. } | Stage::Asked(Some(_), _) => Some(false),
            _ => Some(true),
        }
    }

    /// True if this is the meeting of `look`'s other end, in this process, and has not begun.
    pub(crate) fn is_other_end_of(&self, look: &Look) -> bool {
        self.mirror.inode == look.own
            && matches!(self.stage, Stage::Named { .. } | Stage::Asked(..))
    }

    /// True if `answer` belongs to the question that this meeting has sent.
    pub(crate) fn is_asked_by(&self, answer: &Message) -> bool {
        self.key == answer.token[0] && self.nonce == answer.echo
    }

    pub fn raw(&self) -> i32 {
        self.socket.as_ref().map_or(-1, Way::raw)
    }

    /// The socket at which the peer's next record arrives.
    pub(crate) fn hears_at(&self) -> i32 {
        match &self.stage {
            Stage::Receiving(porter, _) => porter.raw(),
            _ => self.raw(),
        }
    }

    /// True if the meeting can be moved on, given the sockets that have news.
    pub fn is_due(&self, ready: &watch::Ready) -> bool {
        matches!(self.stage, Stage::Promised(..))
            || !self.is_current()
            || ready.has(self.hears_at())
    }

    /// True if the peer's process runs as this user. Such a peer could also stop this process by a
    /// signal, and is guarded against less.
    pub(crate) fn is_with_same_user(&self) -> bool {
        let claimant = self.claimant.as_ref();
        claimant.is_some_and(Claimant::is_same_user)
    }
}

/// What a connection knows when it looks for its peer; the same at any stage of a meeting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub sock: &'static Socket,
    pub generation: u32,
    /// Inode of the connecting end's socket.
    pub key: u64,
    /// Inode of this end's socket.
    pub own: u64,
    /// The other end, as the kernel names it.
    pub mirror: Mirror,
    /// The peer has to repeat it in its proof, so that a proof of an older meeting fails.
    pub nonce: Nonce,
    /// Why this end stays on TCP, if it does. The meeting then only tells the other end.
    pub refuses: Option<Reason>,
}

impl Look {
    /// Makes a meeting at this stage. It has a time limit only if it has a socket.
    pub fn at(self, stage: Stage, socket: Option<Way>) -> Pending {
        let deadline = match &socket {
            Some(_) => sys::now_ns() + NAME_NS,
            None => u64::MAX,
        };
        Pending {
            look: self,
            stage,
            claimant: None,
            socket,
            deadline,
            made_link: false,
        }
    }
}

impl Deref for Pending {
    type Target = Look;
    fn deref(&self) -> &Look {
        &self.look
    }
}

/// All meetings under way, at most one for each socket.
pub(super) struct Meetings {
    /// By the address of the socket's structure.
    by_sock: BTreeMap<usize, Pending>,
    /// By the connection's key. If both ends are in this process, the one that began last.
    by_key: BTreeMap<u64, usize>,
    /// The meetings with a socket of their own.
    with_socket: Vec<usize>,
    /// The number of meetings that wait for an answer over a link.
    awaiting: usize,
}

/// See [`Meetings`].
pub(super) static PENDING: Guarded<Meetings> =
    Guarded::of_order(lock::BEFORE_SOCKETS, Meetings::new());
/// The number of meetings in `PENDING` that have a socket, to be read without the lock.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// The number of all meetings in `PENDING`, to be read without the lock.
static TOTAL: AtomicU32 = AtomicU32::new(0);

fn address(sock: &Socket) -> usize {
    core::ptr::from_ref(sock).addr()
}

impl Pending {
    fn awaits_answer(&self) -> bool {
        matches!(self.stage, Stage::Asked(Some(_), _) | Stage::Granted(..))
    }
}

impl Meetings {
    const fn new() -> Self {
        Self {
            by_sock: BTreeMap::new(),
            by_key: BTreeMap::new(),
            with_socket: Vec::new(),
            awaiting: 0,
        }
    }

    /// Adds a meeting of a socket that has none.
    pub fn add(&mut self, meeting: Pending) {
        let at = address(meeting.sock);
        // No answer comes sooner.
        look_again(LOOK_NS);
        if meeting.socket.is_some() {
            self.with_socket.push(at);
        }
        if meeting.awaits_answer() {
            self.awaiting += 1;
            ASKED_UNTIL.store(sys::now_ns() + NAME_NS, Ordering::SeqCst);
        }
        self.by_key.insert(meeting.key, at);
        self.by_sock.insert(at, meeting);
        self.show();
    }

    /// Takes this socket's meeting out.
    pub fn take(&mut self, sock: &Socket) -> Option<Pending> {
        self.take_at(address(sock))
    }

    fn take_at(&mut self, at: usize) -> Option<Pending> {
        let meeting = self.by_sock.remove(&at)?;
        if self.by_key.get(&meeting.key) == Some(&at) {
            self.by_key.remove(&meeting.key);
        }
        if meeting.socket.is_some() {
            self.with_socket.retain(|&other| other != at);
        }
        self.awaiting -= usize::from(meeting.awaits_answer());
        self.show();
        Some(meeting)
    }

    /// This socket's meeting.
    pub fn of(&self, sock: &Socket) -> Option<&Pending> {
        self.by_sock.get(&address(sock))
    }

    /// This socket's meeting, to change. Not its stage and its socket, by which it is listed.
    pub(crate) fn of_mut(&mut self, sock: &Socket) -> Option<&mut Pending> {
        self.by_sock.get_mut(&address(sock))
    }

    /// The meeting of the connection with this key.
    pub(crate) fn by_key(&self, key: u64) -> Option<&Pending> {
        self.by_sock.get(self.by_key.get(&key)?)
    }

    /// Takes out the meeting of the connection with this key, if it is `wanted`.
    pub(crate) fn take_by_key(
        &mut self,
        key: u64,
        wanted: impl FnOnce(&Pending) -> bool,
    ) -> Option<Pending> {
        let at = *self.by_key.get(&key)?;
        let is_wanted = self.by_sock.get(&at).is_some_and(wanted);
        is_wanted.then(|| self.take_at(at)).flatten()
    }

    /// Takes out the `wanted` ones of the meetings with a socket of their own.
    pub(crate) fn take_with_socket(&mut self, wanted: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let is_wanted = |at: &&usize| self.by_sock.get(at).is_some_and(&wanted);
        let chosen: Vec<usize> = self.with_socket.iter().filter(is_wanted).copied().collect();
        chosen
            .into_iter()
            .filter_map(|at| self.take_at(at))
            .collect()
    }

    /// Takes out the `wanted` ones of all meetings.
    pub(crate) fn take_all(&mut self, wanted: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let of = self.by_sock.iter().filter(|(_, p)| wanted(p));
        let chosen: Vec<usize> = of.map(|(&at, _)| at).collect();
        chosen
            .into_iter()
            .filter_map(|at| self.take_at(at))
            .collect()
    }

    /// The meetings with a socket of their own.
    pub(crate) fn with_socket(&self) -> impl Iterator<Item = &Pending> {
        self.with_socket
            .iter()
            .filter_map(|at| self.by_sock.get(at))
    }

    /// Publishes the counts and flags that hooks read without the lock.
    fn show(&self) {
        COUNT.store(self.with_socket.len() as u32, Ordering::Relaxed);
        TOTAL.store(self.by_sock.len() as u32, Ordering::Relaxed);
        let names = if self.with_socket.is_empty() {
            0
        } else {
            NAMES
        };
        let asked = if self.awaiting == 0 { 0 } else { ASKED };
        // The list's lock is held, so these updates come in order.
        let is = names | asked;
        BUSY.fetch_and(!(NAMES | ASKED) | is, Ordering::SeqCst);
        BUSY.fetch_or(is, Ordering::SeqCst);
    }
}

/// The number of meetings with a socket of their own.
pub(super) fn with_sockets() -> usize {
    COUNT.load(Ordering::Acquire) as usize
}

/// True if no meeting is under way.
pub(super) fn are_none() -> bool {
    TOTAL.load(Ordering::Relaxed) == 0
}

/// Hooks look at the meetings no more often than this, in ns, and less often the longer no meeting
/// has moved: each look costs a system call, and the peer may never come.
const LOOK_NS: u64 = 20_000;
/// When a meeting last began or moved on, in ns.
static MOVED_AT: AtomicU64 = AtomicU64::new(0);
/// Before this time no hook looks.
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);

/// A meeting may go on at any moment now.
pub(super) fn look_soon() {
    look_again(0);
}

/// Hooks look again after `ns`.
fn look_again(ns: u64) {
    let now = sys::now_ns();
    MOVED_AT.store(now, Ordering::Relaxed);
    NEXT_LOOK.store(now + ns, Ordering::Relaxed);
}

/// True if the calling hook should look at the meetings. It then does so for all others, too.
pub(super) fn is_time_to_look(now: u64) -> bool {
    let next = NEXT_LOOK.load(Ordering::Relaxed);
    let quiet = now.saturating_sub(MOVED_AT.load(Ordering::Relaxed));
    let then = now + LOOK_NS.max(quiet / 8);
    let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
    now >= next && NEXT_LOOK.compare_exchange(next, then, set, fetch).is_ok()
}

/// Until when hooks look for answers over links, in ns.
static ASKED_UNTIL: AtomicU64 = AtomicU64::new(0);

/// True if a meeting waits for an answer over a link. Hooks look for the answer for a while, so
/// that it does not depend on when the control thread is scheduled.
pub(super) fn awaits_answers(now: u64) -> bool {
    let asked = BUSY.load(Ordering::SeqCst) & ASKED != 0;
    if asked && now > ASKED_UNTIL.load(Ordering::SeqCst) {
        BUSY.fetch_and(!ASKED, Ordering::SeqCst);
        if now <= ASKED_UNTIL.load(Ordering::SeqCst) {
            // Another thread has asked meanwhile.
            BUSY.fetch_or(ASKED, Ordering::SeqCst);
        }
    }
    asked
}

/// Ends the wait for answers, before strict seccomp. Hooks then no longer read the clock, which
/// would be fatal: with strict seccomp the kernel takes the processor's clock away, too.
pub fn expect_nothing() {
    BUSY.fetch_and(!ASKED, Ordering::SeqCst);
}

/// True if a meeting is under way that only hooks move on: it limits the program's waits.
#[inline]
pub fn needs_hooks() -> bool {
    COUNT.load(Ordering::Relaxed) != 0 && !control_thread::is_running() && super::may_meet_here()
}

/// The time until hooks look at the meetings again, in ns.
pub(super) fn next_look(now: u64) -> u64 {
    NEXT_LOOK.load(Ordering::Relaxed).saturating_sub(now)
}

/// In the child of a fork: drops the parent's meetings, and closes the child's copies of their
/// sockets. Streams that were given out belong to the parent's links, and stay.
pub(super) fn after_fork() {
    if let Some(mut list) = PENDING.lock() {
        for meeting in list.take_all(|_| true) {
            if let Some(way) = meeting.socket {
                way.close_copy();
            }
        }
    }
}
