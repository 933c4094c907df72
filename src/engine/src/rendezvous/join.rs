//! The steps of a meeting by name, from the visitor to the stream that stands: proving, giving out,
//! joining.
//!
//! Refuses to know how the two came to the name and when a meeting is given up.

use super::message::{self, Brought, Kind, Message, REUSE, Received, VERSION};
use super::{NAME_NS, Pending, Stage, abandon, control, discard, introduction, is_proof, proof};
use crate::process;
use crate::sockets::sock::Sock;
use crate::sockets::upgrade;
use core::sync::atomic::Ordering;
use sluice_fabric::arena::Arena;
use sluice_fabric::layout::LAYOUT;
use sluice_fabric::lock::{Guard, Guarded};
use sluice_fabric::shm::{self, Link, LinkEnd};
use sluice_fabric::sys::{self, Fd};
use sluice_stats::Reason;

/// How a meeting goes on.
pub(super) enum Step {
    /// Nothing to do now.
    Waits,
    /// The meeting is over.
    Over(Option<Reason>),
    /// The meeting is over and its socket has become the control socket of a new link.
    Link(&'static Link),
}

/// Moves a meeting on by what its socket has brought.
pub(super) fn step(meeting: &mut Pending) -> Step {
    if meeting.sock.generation.load(Ordering::Acquire) != meeting.generation {
        return Step::Over(Some(Reason::Close));
    }
    if let Stage::Named = meeting.stage {
        let Ok(visitor) = sys::accept(meeting.raw()) else {
            return Step::Waits;
        };
        let Some(visitor) = crate::sockets::internal::lift(visitor) else {
            return Step::Over(Some(Reason::DescriptorLimit));
        };
        meeting.socket = Some(visitor);
        meeting.stage = Stage::Greeted;
        meeting.deadline = sys::now_ns() + NAME_NS;
        if control::is_running() {
            control::watch_meeting(meeting.raw());
        }
    }
    if let Stage::Replied(link, _) = meeting.stage
        && link.is_alive()
        && !is_confirmed(link)
        && !meeting.made_link
    {
        // The peer has joined this stream, if it has, after that of the meeting that made the link: that is
        // looked at first, since its socket is the one that both ends keep.
        return Step::Waits;
    }
    if let Stage::Promised(token, index) = meeting.stage
        && let Some(link) = shm::by_token(token)
    {
        return decided(meeting, join(meeting, link, index, false));
    }
    let (message, brought) = match message::receive(meeting.raw()) {
        Received::Nothing => return Step::Waits,
        Received::Gone => return Step::Over(Some(Reason::PeerPlain)),
        Received::Message(message, brought) => (message, brought),
    };
    let step = match (&meeting.stage, message.kind) {
        (_, Kind::Decline) => {
            return Step::Over(Some(
                Reason::from_u16(message.reason).unwrap_or(Reason::ProofFailed),
            ));
        }
        (Stage::Greeted, Kind::Hello) => on_hello(meeting, &message, &brought),
        (Stage::Dialled, Kind::Reply) => on_reply(meeting, &message, brought),
        (Stage::Replied(link, index), Kind::Joined) => on_joined(meeting, link, *index),
        _ => Err(Reason::ProofFailed),
    };
    decided(meeting, step)
}

/// A step that failed ends the meeting, for the peer too.
fn decided(meeting: &Pending, step: Result<Step, Reason>) -> Step {
    step.unwrap_or_else(|reason| {
        let decline = Message {
            reason: reason as u16,
            ..Message::new(Kind::Decline)
        };
        let _ = message::send(meeting.raw(), &decline, &[]);
        Step::Over(Some(reason))
    })
}

/// By what a link knows the socket of a stream.
pub(super) fn owner(sock: &'static Sock) -> usize {
    core::ptr::from_ref(sock) as usize
}

/// Does the peer speak as we do?
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

/// First comer: proves the visitor, gives out a stream, replies.
fn on_hello(meeting: &mut Pending, hello: &Message, brought: &Brought) -> Result<Step, Reason> {
    compatible(hello)?;
    let [first, _] = brought;
    if !is_proof(first.as_ref(), meeting.mirror) {
        return Err(Reason::ProofFailed);
    }
    let fd = meeting.sock.fd.load(Ordering::Relaxed);
    let proof = proof(fd)?;
    let mut reply = introduction(
        Kind::Reply,
        sys::fstat(fd).map_err(|_| Reason::NotEstablished)?.st_ino,
    )?;
    let mut arena_fd = None;
    let link = match shm::by_token(hello.token) {
        Some(link) => {
            is_with(meeting, link)?;
            reply.flags |= REUSE;
            link
        }
        None => {
            control::start()?;
            let (arena, fd) = Arena::create().map_err(|_| Reason::MemfdRefused)?;
            arena_fd = Some(fd);
            meeting.made_link = true;
            open_link(arena, 0, hello, meeting.raw(), None)?
        }
    };
    let index = link
        .give_stream(upgrade::ring_len(link), owner(meeting.sock))
        .ok_or(Reason::LinkFull)?;
    reply.index = index;
    meeting.stage = Stage::Replied(link, index);
    let sent = match &arena_fd {
        Some(arena) => message::send(meeting.raw(), &reply, &[proof.raw(), arena.raw()]),
        None => message::send(meeting.raw(), &reply, &[proof.raw()]),
    };
    sent.map_err(|_| Reason::PeerPlain)?;
    Ok(Step::Waits)
}

/// A token is the peer's word: is the link that it names the one with the process that has come?
fn is_with(meeting: &Pending, link: &Link) -> Result<(), Reason> {
    process::is_peer(meeting.raw(), link.peer_pid())
        .then_some(())
        .ok_or(Reason::ProofFailed)
}

fn open_link(
    arena: Arena,
    side: usize,
    peer: &Message,
    socket: i32,
    control: Option<Fd>,
) -> Result<&'static Link, Reason> {
    let (peer_pid, can_pull) = process::may_pull(socket, peer.capabilities);
    let can_discard = process::may_discard(Some(socket));
    let link = Link::open(LinkEnd {
        arena,
        side,
        control,
        token: peer.token,
        peer_pid,
        can_pull,
        can_discard,
    })
    .ok_or(Reason::LinkFull)?;
    sluice_stats::ROOT.links_made.add_shared(1);
    sluice_stats::ROOT.links.raise(1);
    Ok(link)
}

/// Second comer: proves the first, joins its stream.
fn on_reply(meeting: &mut Pending, reply: &Message, brought: Brought) -> Result<Step, Reason> {
    compatible(reply)?;
    let [first, second] = brought;
    if !is_proof(first.as_ref(), meeting.mirror) {
        return Err(Reason::ProofFailed);
    }
    if reply.flags & REUSE == 0 {
        control::start()?;
        let arena = Arena::adopt(second.as_ref().ok_or(Reason::ProofFailed)?)
            .map_err(|_| Reason::MmapRefused)?;
        let link = open_link(arena, 1, reply, meeting.raw(), None)?;
        return join(meeting, link, reply.index, true);
    }
    match shm::by_token(reply.token) {
        Some(link) => join(meeting, link, reply.index, false),
        None => {
            // Made in another meeting, whose Reply was sent before this one and is read after it.
            meeting.stage = Stage::Promised(reply.token, reply.index);
            Ok(Step::Waits)
        }
    }
}

/// Second comer: joins the stream that the first has given out.
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
    if message::send(meeting.raw(), &Message::new(Kind::Joined), &[]).is_err() {
        abandon(link, index);
        return Err(Reason::PeerPlain);
    }
    Ok(over_with(meeting, link, index, fresh))
}

/// Has the link a control socket, or no need of one?
fn is_confirmed(link: &Link) -> bool {
    link.control().is_open() || link.twin().is_some()
}

/// First comer: the second has joined.
fn on_joined(meeting: &Pending, link: &'static Link, index: u32) -> Result<Step, Reason> {
    if !link.is_alive() {
        // The meeting that made it came to nothing: nobody would hear of the peer's end.
        return Err(Reason::LinkLost);
    }
    let fresh = meeting.made_link && !is_confirmed(link);
    Ok(over_with(meeting, link, index, fresh))
}

/// Both are proved and joined: the stream stands.
fn over_with(meeting: &Pending, link: &'static Link, index: u32, fresh: bool) -> Step {
    if fresh {
        // Its owner from now on: the caller releases the meeting's.
        let _ = link
            .control()
            .offer(Fd::own(meeting.raw()))
            .map_err(Fd::release);
        control::watch_link(link);
        control::link_is_up(link);
    }
    attach(meeting.sock, meeting.generation, link, index);
    if fresh {
        Step::Link(link)
    } else {
        Step::Over(None)
    }
}

/// The stream is attached, or given up for the reason that forbids it.
pub(super) fn attach(
    sock: &'static Sock,
    generation: u32,
    link: &'static Link,
    index: u32,
) -> bool {
    let attached = upgrade::attach(sock, generation, link, index);
    if let Err(reason) = attached {
        if sock.generation.load(Ordering::Acquire) == generation {
            sock.conn().stays(reason);
        }
        // The peer may have attached its end, for which this reason is none.
        let is_sealed = link.owner(index) != 0 && link.seal_stream(index);
        abandon(link, index);
        if is_sealed && link.is_alive() {
            control::attention(link, index);
        }
    }
    attached.is_ok()
}

/// Both ends of the link of this process with itself, and the process: a child makes its own.
static SELF: Guarded<Option<(&'static Link, &'static Link, u32)>> = Guarded::new(None);

/// Holds the making of the link with oneself still over a fork.
pub(super) fn hold() {
    SELF.hold();
}

/// After the fork, on both sides.
pub(super) fn release() {
    SELF.release();
}

/// Both ends are in this process: a link with itself, made once. Each with its generation.
pub(super) fn pair_within(
    first: (&'static Sock, u32),
    second: (&'static Sock, u32),
) -> Result<(), Reason> {
    control::start()?;
    let (a, b) = {
        let mut made: Guard<'_, _> = SELF.lock().ok_or(Reason::Limit)?;
        match *made {
            Some((a, b, pid)) if pid == process::pid() => (a, b),
            _ => {
                let token = process::token().ok_or(Reason::Limit)?;
                let arena = Arena::create_local().map_err(|_| Reason::MmapRefused)?;
                let can_discard = process::may_discard(None);
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
    use crate::sockets::testing;

    #[test]
    fn a_child_finds_the_making_of_its_own_link_free() {
        assert!(testing::is_free_in_child(&SELF));
    }
}
