//! The steps of a meeting by name: proving, giving out a stream, joining it. From the connection of
//! the second comer to the attached stream.
//!
//! Knows nothing of how the two came to the name, or when a meeting is given up.

use super::closer::{self, Way};
use super::identity::{self, Claimant};
use super::message::{self, Brought, Kind, Message, Next, REUSE, Received, Sender, VERSION};
use super::{NAME_NS, Pending, Stage, abandon, control, decline, discard, watch};
use core::sync::atomic::Ordering;
use sluice_fabric::arena::{Arena, ArenaError};
use sluice_fabric::layout::LAYOUT;
use sluice_fabric::lock::{Guard, Guarded, OverFork};
use sluice_fabric::shm::{self, Link, LinkEnd, PeerProcess};
use sluice_fabric::sys::{self, Fd};
use sluice_runtime::{credentials, process, rights};
use sluice_sockets::socket::Socket;
use sluice_sockets::{tell, trigger, upgrade};
use sluice_stats::Reason;

/// The outcome of a step.
pub(super) enum Step {
    /// Nothing to do now.
    Waits,
    /// The meeting is over.
    Over(Option<Reason>),
    /// The other end has ended the meeting, for this reason of its own.
    Declined(Reason),
    /// The meeting is over and its socket has become the control socket of a new link.
    Link,
}

/// Wrong visitors of one name that are sent away before the name is given up. A process that is not
/// the peer can prevent a meeting, and nothing else.
const VISITORS: u32 = 8;

/// Moves a meeting on by the next record from its socket.
pub(super) fn step(meeting: &mut Pending) -> Step {
    if !meeting.is_current() {
        return Step::Over(Some(Reason::Close));
    }
    if let Stage::Named { .. } = meeting.stage
        && let Some(step) = let_in(meeting)
    {
        return step;
    }
    if let Stage::Replied(link, _) = meeting.stage
        && link.is_alive()
        && !is_confirmed(link)
        && !meeting.made_link
    {
        // Another meeting has made the link, and its socket becomes the control socket at both
        // ends. So that meeting must be looked at first.
        return Step::Waits;
    }
    if let Stage::Promised(token, index) = meeting.stage
        && let Some(link) = shm::by_token(token)
    {
        return decided(meeting, join(meeting, link, index, false));
    }
    let (message, sender, brought) = match hear(meeting) {
        Received::Nothing => return Step::Waits,
        Received::Gone if is_of_another_user(meeting.sock) => {
            return Step::Over(Some(Reason::PeerOwner));
        }
        Received::Gone => return Step::Over(Some(Reason::NoAnswer)),
        Received::Wrong => return Step::Over(Some(Reason::ProofFailed)),
        Received::Message(message, sender, brought) => (message, sender, brought),
    };
    if message.kind == Kind::Decline {
        return Step::Declined(decline::reason(&message));
    }
    let step = match (&meeting.stage, message.kind) {
        (Stage::Greeted, Kind::Challenge) => on_challenge(meeting, &message),
        (Stage::Dialled, Kind::Claim) => on_claim_of_first(meeting, &message, sender),
        (Stage::Claimed, Kind::Claim) => on_claim_of_second(meeting, &message, sender),
        (Stage::Proved(token) | Stage::Receiving(_, token), Kind::Reply) => {
            on_reply(meeting, *token, &message, brought)
        }
        (Stage::Replied(link, index), Kind::Joined) => on_joined(meeting, link, *index),
        _ => Err(Reason::ProofFailed),
    };
    decided(meeting, step)
}

/// True if the program has changed its user since it made the socket. Then the other end cannot
/// find out that this process holds it, and ends the meeting without a word.
fn is_of_another_user(sock: &Socket) -> bool {
    let owner = sys::fstat(sock.fd.load(Ordering::Relaxed)).map(|stat| stat.st_uid);
    owner.is_ok_and(|owner| owner != credentials::own_ids().0)
}

/// First comer: accepts the connection of a process that runs as the owner of the other end.
/// `None`: one was accepted.
fn let_in(meeting: &mut Pending) -> Option<Step> {
    loop {
        let Ok(visitor) = sys::accept(meeting.raw()) else {
            return Some(Step::Waits);
        };
        let Some(visitor) = sluice_runtime::own_fds::lift(visitor) else {
            return Some(Step::Over(Some(Reason::DescriptorLimit)));
        };
        let visitor = Way::new(visitor);
        match Claimant::behind(visitor.raw(), meeting.mirror) {
            Ok(claimant) => {
                meeting.claimant = Some(claimant);
                meeting.socket = Some(visitor);
                meeting.stage = Stage::Greeted;
                meeting.deadline = sys::now_ns() + NAME_NS;
                watch::enter(meeting.raw());
                return None;
            }
            Err(reason) => {
                // Another process, or a peer that this process may not look at.
                drop(visitor);
                let Stage::Named { sent_away } = &mut meeting.stage else {
                    return Some(Step::Over(Some(reason)));
                };
                *sent_away += 1;
                // This process could not look at the next visitor, either.
                let is_blind = matches!(reason, Reason::PeerHidden | Reason::ProcMissing);
                if *sent_away >= VISITORS || is_blind {
                    return Some(Step::Over(Some(reason)));
                }
            }
        }
    }
}

/// Receives the next record. A descriptor is received only at the stage where one is expected.
fn hear(meeting: &mut Pending) -> Received {
    if let Stage::Receiving(porter, _) = &meeting.stage {
        return message::receive(porter.raw());
    }
    let Some(way) = &meeting.socket else {
        return Received::Gone;
    };
    if !way.is_open() {
        return message::receive(way.raw());
    }
    match (message::next(way.raw()), &meeting.stage) {
        // A peer of the same user could stop this process by a signal anyway, so its descriptors
        // are received without a porter.
        (Next::Brings, Stage::Proved(_)) if meeting.is_with_same_user() => {
            message::receive(way.raw())
        }
        (Next::Brings, &Stage::Proved(token)) => receive_apart(meeting, token),
        (Next::Brings, _) => Received::Wrong,
        (Next::Nothing, _) => Received::Nothing,
        (Next::End, _) => Received::Gone,
        (Next::Plain, _) => message::receive(way.raw()),
    }
}

/// Has a porter receive the record with the arena, see [`closer`].
fn receive_apart(meeting: &mut Pending, token: shm::Token) -> Received {
    let user = meeting.claimant.as_ref().map(|claimant| claimant.uid);
    let Some(porter) = closer::receive(meeting.raw(), user) else {
        return Received::Gone;
    };
    watch::leave(meeting.raw());
    watch::enter(porter.raw());
    meeting.stage = Stage::Receiving(porter, token);
    Received::Nothing
}

/// Ends the meeting if a step failed, and tells the peer.
fn decided(meeting: &Pending, step: Result<Step, Reason>) -> Step {
    step.unwrap_or_else(|reason| {
        let _ = message::send(meeting.raw(), &decline::message(reason), None);
        Step::Over(Some(reason))
    })
}

/// The number by which a link knows the socket of a stream.
pub(super) fn owner(sock: &'static Socket) -> usize {
    core::ptr::from_ref(sock) as usize
}

/// Checks that this process can share a link with the peer's version and settings.
fn compatible(message: &Message) -> Result<(), Reason> {
    if message.version != VERSION {
        return Err(Reason::VersionMismatch);
    }
    if message.layout != LAYOUT {
        return Err(Reason::LayoutMismatch);
    }
    if usize::from(message.word_len) != size_of::<usize>() {
        return Err(Reason::WordSizeMismatch);
    }
    Ok(())
}

/// The Claim of this end.
fn claim(meeting: &Pending, echo: message::Nonce) -> Result<Message, Reason> {
    Ok(Message {
        token: process::token().ok_or(Reason::Limit)?,
        nonce: meeting.nonce,
        echo,
        descriptor: meeting.sock.fd.load(Ordering::Relaxed) as u32,
        ..Message::new(Kind::Claim)
    })
}

/// Checks that the process that sent this Claim holds the other end of the connection.
fn believe(meeting: &Pending, claim: &Message, sender: Option<Sender>) -> Result<(), Reason> {
    let claimant = meeting.claimant.as_ref().ok_or(Reason::ProofFailed)?;
    claimant.with(|known| known.proves(claim, sender, meeting.nonce, meeting.mirror, meeting.raw()))
}

/// First comer: answers a Challenge by a Claim.
fn on_challenge(meeting: &mut Pending, challenge: &Message) -> Result<Step, Reason> {
    compatible(challenge)?;
    if let Some(reason) = meeting.refusal() {
        return Err(reason);
    }
    // The visitor runs the library, as the owner of the other end. From here on the control threads
    // finish the meeting even if the programs make no more calls.
    sluice_runtime::control_thread::start()?;
    let claim = claim(meeting, challenge.nonce)?;
    message::send(meeting.raw(), &claim, None).map_err(|_| Reason::NoAnswer)?;
    meeting.stage = Stage::Claimed;
    Ok(Step::Waits)
}

/// Second comer: checks the first comer's Claim and sends its own.
fn on_claim_of_first(
    meeting: &mut Pending,
    first: &Message,
    sender: Option<Sender>,
) -> Result<Step, Reason> {
    compatible(first)?;
    believe(meeting, first, sender)?;
    sluice_runtime::control_thread::start()?;
    let claim = claim(meeting, first.nonce)?;
    // The answer may bring the arena.
    if let Some(way) = &mut meeting.socket {
        way.open();
    }
    message::send(meeting.raw(), &claim, None).map_err(|_| Reason::NoAnswer)?;
    meeting.stage = Stage::Proved(first.token);
    Ok(Step::Waits)
}

/// First comer: checks the second comer's Claim, gives out a stream and replies.
fn on_claim_of_second(
    meeting: &mut Pending,
    second: &Message,
    sender: Option<Sender>,
) -> Result<Step, Reason> {
    compatible(second)?;
    believe(meeting, second, sender)?;
    let mut reply = Message::new(Kind::Reply);
    let mut arena_fd = None;
    let link = match shm::by_token(second.token) {
        Some(link) => {
            is_with(meeting, link)?;
            reply.flags |= REUSE;
            link
        }
        None => {
            let (arena, fd) = Arena::create().map_err(|error| match error {
                ArenaError::Unmapped(_) => Reason::MmapRefused,
                _ => Reason::MemfdRefused,
            })?;
            arena_fd = Some(fd);
            meeting.made_link = true;
            open_link(meeting, arena, 0, second.token)?
        }
    };
    let index = link
        .give_stream(upgrade::ring_len(link), owner(meeting.sock))
        .ok_or(Reason::LinkFull)?;
    reply.index = index;
    meeting.stage = Stage::Replied(link, index);
    message::send(meeting.raw(), &reply, arena_fd.as_ref().map(Fd::raw))
        .map_err(|_| Reason::NoAnswer)?;
    Ok(Step::Waits)
}

/// Checks that a link that the peer has named by its token leads to the peer's process.
fn is_with(meeting: &Pending, link: &Link) -> Result<(), Reason> {
    let pid = meeting.claimant.as_ref().map(|claimant| claimant.pid);
    (pid == Some(link.peer_pid()))
        .then_some(())
        .ok_or(Reason::ProofFailed)
}

/// Most links with one process, and with all processes of other users together, so that none of
/// them takes what the others need.
const LINKS_OF_PROCESS: usize = 8;
const LINKS_OF_OTHERS: usize = 768;

/// A new link with the process that has proved itself.
fn open_link(
    meeting: &mut Pending,
    arena: Arena,
    side: usize,
    token: shm::Token,
) -> Result<&'static Link, Reason> {
    let socket = meeting.raw();
    let can_pull = rights::may_pull(socket);
    let can_discard = rights::may_discard(Some(socket));
    let claimant = meeting.claimant.as_mut().ok_or(Reason::ProofFailed)?;
    let (pid, uid) = (claimant.pid, claimant.uid);
    let others = || shm::all().filter(|link| link.is_alive() && link.twin().is_none());
    let is_same_user = claimant.is_same_user();
    if others().filter(|link| link.peer_pid() == pid).count() >= LINKS_OF_PROCESS
        || !is_same_user
            && others().filter(|link| !link.is_of_same_user()).count() >= LINKS_OF_OTHERS
    {
        return Err(Reason::LinkFull);
    }
    let dir = match claimant.link {
        // The process called `exec` since: a link with its earlier image holds its directory.
        Some(link) => link
            .peer_dir()
            .with(sluice_runtime::own_fds::copy)
            .flatten(),
        None => claimant.dir.take(),
    };
    let link = Link::open(LinkEnd {
        arena,
        side,
        control: None,
        token,
        peer: Some(PeerProcess {
            pid,
            uid,
            is_same_user,
            dir,
        }),
        can_pull,
        can_discard,
    })
    .ok_or(Reason::LinkFull)?;
    sluice_stats::ROOT.links_made.add_shared(1);
    sluice_stats::ROOT.links.raise(1);
    Ok(link)
}

/// Second comer: the first comer has replied.
fn on_reply(
    meeting: &mut Pending,
    token: shm::Token,
    reply: &Message,
    brought: Option<Brought>,
) -> Result<Step, Reason> {
    compatible(reply)?;
    if reply.flags & REUSE == 0 {
        let memory = brought.ok_or(Reason::ProofFailed)?;
        let arena = Arena::adopt(memory.fd().ok_or(Reason::ProofFailed)?);
        let arena = arena.map_err(|_| Reason::MmapRefused)?;
        drop(memory.accept());
        let link = open_link(meeting, arena, 1, token)?;
        return join(meeting, link, reply.index, true);
    }
    match shm::by_token(token) {
        Some(link) => join(meeting, link, reply.index, false),
        None => {
            // Another meeting makes this link. Its Reply was sent before this one, and is read
            // later.
            meeting.stage = Stage::Promised(token, reply.index);
            Ok(Step::Waits)
        }
    }
}

/// Second comer: joins the stream that the first comer has given out.
fn join(meeting: &Pending, link: &'static Link, index: u32, fresh: bool) -> Result<Step, Reason> {
    if !fresh {
        is_with(meeting, link)?;
    }
    if !link.join_stream(index, upgrade::ring_len(link), owner(meeting.sock)) {
        if fresh {
            discard(link);
        }
        return Err(Reason::LinkFull);
    }
    if message::send(meeting.raw(), &Message::new(Kind::Joined), None).is_err() {
        abandon(link, index);
        return Err(Reason::NoAnswer);
    }
    Ok(over_with(meeting, link, index, fresh))
}

/// True if the link has a control socket, or needs none since it is within this process.
fn is_confirmed(link: &Link) -> bool {
    link.control().is_open() || link.twin().is_some()
}

/// First comer: the second comer has joined.
fn on_joined(meeting: &Pending, link: &'static Link, index: u32) -> Result<Step, Reason> {
    if !link.is_alive() {
        // The meeting that made the link failed. Without its socket this process would not learn
        // that the peer has ended.
        return Err(Reason::LinkLost);
    }
    let fresh = meeting.made_link && !is_confirmed(link);
    Ok(over_with(meeting, link, index, fresh))
}

/// Both ends are proved and have joined: attaches the stream.
fn over_with(meeting: &Pending, link: &'static Link, index: u32, fresh: bool) -> Step {
    if fresh {
        // A peer of this user may send descriptors of doorbells; others may send none.
        let may = link.is_of_same_user();
        let _ = identity::let_descriptors_in(meeting.raw(), may);
        // The link owns the socket from now on: the caller releases it from the meeting.
        let _ = link
            .control()
            .offer(Fd::own(meeting.raw()))
            .map_err(Fd::release);
        watch::leave(meeting.raw());
        tell::watch_link(link);
        control::link_is_up(link);
    }
    attach(meeting.sock, meeting.generation, link, index);
    if fresh { Step::Link } else { Step::Over(None) }
}

/// Attaches the stream, or gives it up for the reason that forbids it.
pub(super) fn attach(
    sock: &'static Socket,
    generation: u32,
    link: &'static Link,
    index: u32,
) -> bool {
    let attached = upgrade::attach(sock, generation, link, index);
    match attached {
        Ok(()) => trigger::has_met(sock),
        Err(reason) => refuse((sock, generation), link, index, reason),
    }
    attached.is_ok()
}

/// Gives up a stream that the peer may have attached already. Sealing it takes the peer back to
/// TCP.
pub(super) fn refuse(
    (sock, generation): (&'static Socket, u32),
    link: &'static Link,
    index: u32,
    reason: Reason,
) {
    if sock.generation.load(Ordering::Acquire) == generation {
        sock.conn().stays(reason);
    }
    let is_sealed = link.owner(index) != 0 && link.seal_stream(index, reason as u16);
    abandon(link, index);
    if is_sealed && link.is_alive() {
        tell::attention(link, index);
    }
}

/// Both ends of the link of this process with itself, and the process id: a child makes its own
/// link.
static SELF: Guarded<Option<(&'static Link, &'static Link, u32)>> = Guarded::new(None);

/// Held over a fork.
pub(super) const HELD: &dyn OverFork = &SELF;

/// Joins two ends that are both in this process, over a link with itself that is made once. Each
/// end comes with its generation.
pub(super) fn pair_within(
    first: (&'static Socket, u32),
    second: (&'static Socket, u32),
) -> Result<(), Reason> {
    sluice_runtime::control_thread::start()?;
    let (a, b) = {
        let mut made: Guard<'_, _> = SELF.lock().ok_or(Reason::Limit)?;
        match *made {
            Some((a, b, pid)) if pid == process::pid() => (a, b),
            _ => {
                let token = process::token().ok_or(Reason::Limit)?;
                let arena = Arena::create_local().map_err(|_| Reason::MmapRefused)?;
                let can_discard = rights::may_discard(None);
                let [a, b] = Link::open_both(arena, token, can_discard).ok_or(Reason::LinkFull)?;
                sluice_stats::ROOT.links_made.add_shared(1);
                sluice_stats::ROOT.links.raise(1);
                *made = Some((a, b, process::pid()));
                (a, b)
            }
        }
    };
    let index = a
        .give_stream(upgrade::ring_len(a), owner(first.0))
        .ok_or(Reason::LinkFull)?;
    if !b.join_stream(index, upgrade::ring_len(b), owner(second.0)) {
        abandon(a, index);
        return Err(Reason::LinkFull);
    }
    if attach(first.0, first.1, a, index) {
        attach(second.0, second.1, b, index);
    } else {
        abandon(b, index);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sockets::testing::{self, Held};

    #[test]
    fn a_child_finds_the_making_of_its_own_link_free() {
        let held = Held {
            hold: crate::hold_last,
            release: crate::release_last,
        };
        assert!(testing::is_free_in_child(held, &SELF));
    }
}
