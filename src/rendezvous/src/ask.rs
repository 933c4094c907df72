//! Meetings over a link that the two processes already have. They need no name, have no time limit,
//! and need no call of the program's on the asked side.
//!
//! ```text
//!   asker                                           asked
//!   Ask {key, inode, mirror, nonce} ──►
//!                                                   is `mirror` the inode of a socket of mine?
//!                        ◄── NotMine ── or Decline, why not ── or
//!                        ◄── Grant {key, inode, stream, nonce, echo} ──
//!   does the link's process hold my mirror?
//!   Joined {stream, echo} ──►
//!                                                   does the link's process hold my mirror?
//!   attach                                          attach
//! ```
//!
//! Only processes that run as the owner of the other end are asked, one after the other, and only
//! if there are few of them: with many a name is cheaper. Each record says which descriptor its
//! sender's socket has, and the kernel says which process sent it: [`identity`](super::identity).
//!
//! A process that has moved no byte by the socket keeps the question until it has, since another
//! process with the same socket may be the one that uses it. If both ends ask at once, side 0 of
//! the link grants and side 1 waits.

use super::diag::Mirror;
use super::join::{attach, owner, refuse};
use super::message::{Kind, Message, Nonce, Sender};
use super::{Look, Meetings, PENDING, Pending, Stage, abandon, decline, identity};
use core::sync::atomic::Ordering;
use sluice_fabric::lock::{self, Guarded, OverFork};
use sluice_fabric::shm::{self, Link};
use sluice_sockets::socket::{self, Socket};
use sluice_sockets::{inodes, tell, trigger, upgrade};
use sluice_stats::Reason;

/// Processes are asked over links only if no more links than this lead to the other end's owner.
const LINKS: usize = 4;
/// Questions of peers that are kept at most. A new one then replaces the oldest.
const KEPT: usize = 4096;
/// Questions that are kept of one link at most.
const KEPT_OF_ONE: usize = KEPT / 2;

/// A peer's question for a socket of this process that has moved no byte here.
struct Question {
    key: u64,
    link: &'static Link,
    generation: u32,
    /// Inode of the socket that the peer says to hold.
    inode: u64,
    /// To be repeated in the answer.
    nonce: Nonce,
}

static QUESTIONS: Guarded<Vec<Question>> = Guarded::of_order(lock::BEFORE_SOCKETS, Vec::new());

impl Look {
    /// True if the connection is still there.
    pub(super) fn is_current(&self) -> bool {
        self.sock.generation.load(Ordering::Acquire) == self.generation
    }

    /// Why this end stays on TCP, if it does.
    pub(super) fn refusal(&self) -> Option<Reason> {
        self.refuses.or_else(|| self.sock.pinned())
    }
}

/// True if the peer of the link runs as the owner of the other end.
fn may_hold(link: &Link, mirror: Mirror) -> bool {
    link.peer_uid() == mirror.uid
}

/// The socket's descriptor, for a record.
fn descriptor(sock: &Socket) -> u32 {
    sock.fd.load(Ordering::Relaxed) as u32
}

/// Asks over the next link and returns that; `already` links were asked. The first one is the link
/// that the connection used before.
pub(super) fn ask(look: Look, already: u32) -> Option<&'static Link> {
    let last = look.sock.last_link().filter(|l| may_hold(l, look.mirror));
    let others = || {
        open_links().filter(move |l| {
            let is_last = last.is_some_and(|last| core::ptr::eq(last, *l));
            may_hold(l, look.mirror) && !is_last
        })
    };
    let few = others().take(LINKS + 1).count() <= LINKS;
    let others = others().take(if few { LINKS } else { 0 });
    last.into_iter()
        .chain(others)
        .skip(already as usize)
        .find(|link| send_ask(link, look))
}

/// True if there are links, and so few that all of them may be asked.
pub(super) fn can_ask() -> bool {
    (1..=LINKS).contains(&open_links().take(LINKS + 1).count())
}

/// Links whose peers can be sent a record.
fn open_links() -> impl Iterator<Item = &'static Link> {
    shm::all().filter(|l| l.is_alive() && l.control().is_open())
}

/// Asks over `link`. Returns true if the question is sent.
fn send_ask(link: &Link, look: Look) -> bool {
    let ask = Message {
        token: [look.key, look.own],
        mirror: look.mirror.inode,
        nonce: look.nonce,
        descriptor: descriptor(look.sock),
        ..Message::new(Kind::Ask)
    };
    tell::tell(link, &ask, None)
}

/// Grants the other end of this connection a stream, if it has asked for one.
pub(super) fn answer(look: Look) -> Option<Pending> {
    let (link, nonce) = take_question(look)?;
    grant(look, link, nonce)
}

/// Takes out the question of the other end, if one is kept: its link and its nonce.
pub(super) fn take_question(look: Look) -> Option<(&'static Link, Nonce)> {
    let question = {
        let mut kept = QUESTIONS.lock()?;
        let at = kept.iter().position(|q| {
            q.key == look.key && q.inode == look.mirror.inode && may_hold(q.link, look.mirror)
        })?;
        kept.swap_remove(at)
    };
    let Question {
        link,
        generation,
        nonce,
        ..
    } = question;
    (link.generation() == generation && link.is_alive()).then_some((link, nonce))
}

/// True if a peer has asked for the connection with this key.
pub(super) fn is_asked_for(key: u64) -> bool {
    let kept = QUESTIONS.lock();
    kept.is_none_or(|kept| kept.iter().any(|q| q.key == key))
}

/// Grants the peer, which has asked with `echo`, a stream.
fn grant(look: Look, link: &'static Link, echo: Nonce) -> Option<Pending> {
    if !may_hold(link, look.mirror) {
        return None;
    }
    if let Some(reason) = look.refusal() {
        decline::answer(look, link, echo, reason);
        return None;
    }
    let sock = look.sock;
    let index = link.give_stream(upgrade::ring_len(link), owner(sock))?;
    let grant = Message {
        index,
        token: [look.key, look.own],
        nonce: look.nonce,
        echo,
        descriptor: descriptor(sock),
        ..Message::new(Kind::Grant)
    };
    if !tell::tell(link, &grant, None) {
        abandon(link, index);
        return None;
    }
    Some(look.at(Stage::Granted(link, index), None))
}

/// True if `claim`, which has come over the link, proves that the link's process holds the other
/// end of the connection.
fn believe(
    link: &Link,
    claim: &Message,
    sender: Option<Sender>,
    nonce: Nonce,
    mirror: Mirror,
) -> bool {
    // A look at a process needs a descriptor for a moment.
    let _low = sluice_runtime::own_fds::Low::begin();
    let socket = link.control().raw().unwrap_or(-1);
    identity::look_over(link, |peer| {
        peer.proves(claim, sender, nonce, mirror, socket).is_ok()
    })
}

/// The peer asks. Its proof is checked only when it joins.
pub(super) fn on_ask(link: &'static Link, ask: &Message, sender: Option<Sender>) {
    let [key, inode] = ask.token;
    let is_peers = identity::of_link(link).has_sent(sender);
    let Some(mut list) = is_peers.then(|| PENDING.lock()).flatten() else {
        return;
    };
    let ours = |p: &&Pending| p.mirror.inode == inode;
    if list.by_key(key).filter(ours).is_none() {
        if let Some(granted) = look_into(link, ask) {
            // The socket may have a meeting for another key, if both ends are in this process.
            if let Some(earlier) = list.take(granted.sock) {
                super::give_up(earlier, Reason::NoAnswer);
            }
            list.add(granted);
        }
        return;
    }
    // A meeting at another stage is with this peer already, and goes on. If both have asked each
    // other, side 0 grants.
    let waits = |p: &Pending| match p.stage {
        Stage::Named { .. } => true,
        Stage::Asked(asked, _) => {
            !asked.is_some_and(|l| core::ptr::eq(l, link)) || link.side() == 0
        }
        _ => false,
    };
    if let Some(waiting) = list.take_by_key(key, waits) {
        let look = waiting.look;
        if look.is_current() {
            list.add(grant(look, link, ask.nonce).unwrap_or(waiting));
        }
    }
}

/// Grants the peer a stream for a socket that this process does not look for, or says why not. If
/// the connection's other end is not the peer's, the answer is the same as for a socket that is not
/// here.
fn look_into(link: &'static Link, ask: &Message) -> Option<Pending> {
    let found = inodes::find(ask.mirror).map(|(sock, _)| sock);
    let keep_for = |sock| {
        keep(link, ask);
        trigger::when_used(sock);
    };
    // Another user's process may learn only of its own connections, and silence tells, too: so for
    // it the socket is looked up first.
    if let Some(sock) = found.filter(|sock| link.is_of_same_user() && is_unused(sock)) {
        keep_for(sock);
        return None;
    }
    let its_own =
        |look: &Look| [look.key, look.mirror.inode] == ask.token && may_hold(link, look.mirror);
    let found = found.and_then(|sock| super::look(sock).ok().flatten());
    let Some(look) = found.filter(its_own) else {
        let not_mine = Message {
            token: ask.token,
            echo: ask.nonce,
            ..Message::new(Kind::NotMine)
        };
        tell::tell(link, &not_mine, None);
        return None;
    };
    let sock = look.sock;
    if sock.link().is_some() || sock.is_accelerated() {
        return None;
    }
    if is_unused(sock) {
        keep_for(sock);
        return None;
    }
    grant(look, link, ask.nonce)
}

/// True if the socket has moved no byte in this process, and may leave TCP once it does.
fn is_unused(sock: &Socket) -> bool {
    sock.offset() == 0 && sock.pinned().is_none()
}

/// Keeps a question until this process uses the socket.
fn keep(link: &'static Link, ask: &Message) {
    let [key, inode] = ask.token;
    let Some(mut kept) = QUESTIONS.lock() else {
        return;
    };
    // A peer asks again at a later offset: only its last question counts.
    kept.retain(|q| q.key != key || !core::ptr::eq(q.link, link));
    // A peer that has half of the places loses its own oldest question.
    let own = |q: &Question| core::ptr::eq(q.link, link);
    let first = if kept.iter().filter(|q| own(q)).count() >= KEPT_OF_ONE {
        kept.iter().position(own)
    } else {
        (kept.len() >= KEPT).then_some(0)
    };
    if let Some(first) = first {
        kept.remove(first);
    }
    kept.push(Question {
        key,
        link,
        generation: link.generation(),
        inode,
        nonce: ask.nonce,
    });
}

/// The peer has no such socket: asks the next one, or goes to the other end's name.
pub(super) fn on_not_mine(link: &Link, message: &Message, sender: Option<Sender>) {
    let is_peers = identity::of_link(link).is_process(sender);
    let Some(mut list) = is_peers.then(|| PENDING.lock()).flatten() else {
        return;
    };
    let asks = |p: &Pending| p.is_asked_by(message) && matches!(p.stage, Stage::Asked(..));
    if let Some(next) = list.take_by_key(message.token[0], asks).and_then(ask_next) {
        super::enlist(next, &mut list);
    }
}

/// Asks over the next link. After the last one connects to the other end's name, if it waits there.
fn ask_next(meeting: Pending) -> Option<Pending> {
    let look = meeting.look;
    let Stage::Asked(_, already) = meeting.stage else {
        return None;
    };
    if !look.is_current() || look.refusal().is_some() {
        return None;
    }
    match ask(look, already) {
        Some(link) => Some(look.at(Stage::Asked(Some(link), already + 1), None)),
        None => {
            trigger::has_asked_in_vain(look.sock);
            super::names::visit(look).ok().flatten()
        }
    }
}

/// The peer grants a stream.
pub(super) fn on_grant(link: &'static Link, grant: &Message, sender: Option<Sender>) {
    let [key, inode] = grant.token;
    let decline = || {
        let no = Message::about(Kind::Decline, grant.index);
        tell::tell(link, &no, None);
    };
    let Some(mut list) = PENDING.lock() else {
        return decline();
    };
    // The grant replaces this end's meeting, whatever its stage is: the peer has no other one. Only
    // of two grants that cross, the one of side 0 counts.
    let crossed = |p: &Pending| matches!(p.stage, Stage::Granted(l, _) if core::ptr::eq(l, link));
    let meeting = list.take_by_key(key, |p| {
        p.mirror.inode == inode
            && believe(link, grant, sender, p.nonce, p.mirror)
            && (!crossed(p) || link.side() == 1)
    });
    let Some(meeting) = meeting else {
        return decline();
    };
    // The list stays locked until the stream is attached. Otherwise a thread of the program would
    // find neither meeting nor stream, and could grant a second one: each end would be on another.
    if let Stage::Replied(link, index) | Stage::Granted(link, index) = meeting.stage {
        abandon(link, index);
    }
    let sock = meeting.sock;
    if !meeting.is_current() || !link.join_stream(grant.index, upgrade::ring_len(link), owner(sock))
    {
        return decline();
    }
    let joined = Message {
        echo: grant.nonce,
        descriptor: descriptor(sock),
        ..Message::about(Kind::Joined, grant.index)
    };
    if !tell::tell(link, &joined, None) {
        return abandon(link, grant.index);
    }
    attach(sock, meeting.generation, link, grant.index);
}

/// Takes out the meeting for which stream `index` of a link was granted.
fn take_granted(list: &mut Meetings, link: &'static Link, index: u32) -> Option<Pending> {
    let is_it = |p: &Pending| match p.stage {
        Stage::Granted(l, i) => core::ptr::eq(l, link) && i == index,
        _ => false,
    };
    let sock = socket::given_to(link, index)?;
    list.of(sock)
        .is_some_and(is_it)
        .then(|| list.take(sock))
        .flatten()
}

/// The peer has joined a stream that was granted to it.
pub(super) fn on_joined(link: &'static Link, joined: &Message, sender: Option<Sender>) {
    let is_peers = identity::of_link(link).has_sent(sender);
    let Some(mut list) = is_peers.then(|| PENDING.lock()).flatten() else {
        return;
    };
    let index = joined.index;
    let Some(meeting) = take_granted(&mut list, link, index) else {
        return;
    };
    // The list stays locked, as in `on_grant`.
    let of = (meeting.sock, meeting.generation);
    if believe(link, joined, sender, meeting.nonce, meeting.mirror) {
        attach(of.0, of.1, link, index);
    } else {
        refuse(of, link, index, Reason::ProofFailed);
    }
}

/// The peer declines a stream that was granted to it, or says why it grants none.
pub(super) fn on_declined(link: &'static Link, declined: &Message, sender: Option<Sender>) {
    let is_peers = identity::of_link(link).is_process(sender);
    let Some(mut list) = is_peers.then(|| PENDING.lock()).flatten() else {
        return;
    };
    if declined.reason == 0 {
        if let Some(meeting) = take_granted(&mut list, link, declined.index) {
            super::give_up(meeting, Reason::NoAnswer);
        }
        return;
    }
    let waits = |p: &Pending| {
        p.is_asked_by(declined) && matches!(p.stage, Stage::Named { .. } | Stage::Asked(..))
    };
    if let Some(meeting) = list.take_by_key(declined.token[0], waits) {
        decline::heard(meeting, decline::reason(declined));
    }
}

/// The link is gone: ends what was asked or granted on it.
pub(super) fn lost(link: &'static Link) {
    if let Some(mut kept) = QUESTIONS.lock() {
        kept.retain(|q| !core::ptr::eq(q.link, link));
    }
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    let is_of_it = |p: &Pending| match p.stage {
        Stage::Granted(l, _) | Stage::Asked(Some(l), _) => core::ptr::eq(l, link),
        _ => false,
    };
    for meeting in list.take_all(is_of_it) {
        if let Stage::Granted(_, index) = meeting.stage {
            abandon(link, index);
        } else if let Some(next) = ask_next(meeting) {
            super::enlist(next, &mut list);
        }
    }
}

/// Held over a fork.
pub(super) const HELD: &dyn OverFork = &QUESTIONS;

/// In the child of a fork: drops the questions, which the parent answers.
pub(super) fn after_fork() {
    if let Some(mut kept) = QUESTIONS.lock() {
        kept.clear();
    }
}
