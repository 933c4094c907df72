//! Meeting over a link that both processes already have: no name, no time limit, no thread of the
//! program needed.
//!
//! ```text
//!   first comer                                     second comer
//!   Ask {key, inode, nonce} ──►                     keeps it until its own socket comes to an offset
//!                        ◄── Grant {key, inode, stream, nonce, echo} ──
//!   does the link's process hold my mirror?
//!   Joined {stream, echo} ──►
//!                                                   does the link's process hold my mirror?
//!   attach                                          attach
//! ```
//!
//! Only processes of the user that owns the other end are asked. Each record names the descriptor
//! of its sender's socket, and the kernel names the sender: [`identity`](super::identity).
//!
//! A connection that went by a link before asks over that one, and whoever is asked for a connection that was
//! demoted grants at once. Otherwise asked are the links made last, since the peer is likelier behind
//! one of those; who is not the other end of the connection keeps the question and never finds a socket
//! for it. When both ask at once, side 0 of the link grants and side 1 waits.

use super::diag::Mirror;
use super::join::{attach, owner, refuse};
use super::message::{self, Kind, Message, Nonce, Sender};
use super::{Look, PENDING, Pending, Stage, abandon, control, count_names, decline, identity};
use crate::sockets::sock::Sock;
use crate::sockets::upgrade;
use core::sync::atomic::Ordering;
use sluice_fabric::lock::{self, Guarded};
use sluice_fabric::shm::{self, Link};
use sluice_fabric::sys;
use sluice_stats::Reason;

/// Links that are asked at most.
const LINKS: usize = 4;
/// Questions of peers that are kept; the oldest goes first.
const KEPT: usize = 4096;
/// Of one link, which has as many streams.
const KEPT_OF_ONE: usize = KEPT / 2;

/// A peer's question for which no socket of ours has come up yet.
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

/// Connections that have looked for their peer in vain: they take a later question, whatever its
/// offset.
static TRIED: Guarded<Vec<Look>> = Guarded::of_order(lock::BEFORE_SOCKETS, Vec::new());

impl Look {
    /// Is the connection still there?
    pub(super) fn is_current(&self) -> bool {
        let (sock, generation) = self.of;
        sock.generation.load(Ordering::Acquire) == generation
    }

    /// Is it still there, on TCP, and may leave it?
    fn is_wanted(&self) -> bool {
        self.is_on_tcp() && self.refusal().is_none()
    }

    fn is_on_tcp(&self) -> bool {
        self.is_current() && !self.of.0.is_accelerated()
    }

    /// Why this end does not leave TCP, if so.
    pub(super) fn refusal(&self) -> Option<Reason> {
        self.refuses.or_else(|| self.of.0.pinned())
    }
}

/// The search of a connection ended without a peer. An end that refused for the moment alone is not
/// kept: what it would say may not be true any more.
pub(super) fn in_vain(look: Look) {
    let (sock, _) = look.of;
    if look.refuses.is_some() && sock.pinned().is_none() {
        return;
    }
    let Some(mut tried) = TRIED.lock() else {
        return;
    };
    tried.retain(|earlier| !core::ptr::eq(earlier.of.0, sock));
    if tried.len() >= KEPT {
        tried.retain(Look::is_current);
        let oldest = tried.len().saturating_sub(KEPT / 2);
        tried.drain(..oldest);
    }
    tried.push(Look {
        refuses: None,
        ..look
    });
}

/// A connection that looked for the peer that now asks for it, if it is still there and on TCP.
fn take_tried(key: u64, inode: u64) -> Option<Look> {
    let mut tried = TRIED.lock()?;
    let at = tried
        .iter()
        .position(|t| t.key == key && t.mirror.inode == inode)?;
    Some(tried.swap_remove(at)).filter(Look::is_on_tcp)
}

/// A connection that was demoted, and for which the peer now asks.
fn demoted(key: u64, inode: u64) -> Option<Look> {
    let of = upgrade::demoted(key, inode)?;
    Some(Look {
        of,
        key,
        mirror: of.0.mirror(),
        nonce: identity::nonce().ok()?,
        refuses: None,
    })
}

/// Asks over the links that there are; true: somebody was asked. The inode of this end is `own`.
pub(super) fn ask(look: Look, own: u64) -> bool {
    let mut asked = false;
    for link in shm::all()
        .filter(|l| l.is_alive() && l.control().is_open() && may_hold(l, look.mirror))
        .take(LINKS)
    {
        asked |= send_ask(link, look, own, 0);
    }
    asked
}

/// Is the peer of the link one that may hold this end?
fn may_hold(link: &Link, mirror: Mirror) -> bool {
    link.peer_uid() == mirror.uid
}

/// The number by which a socket is held here.
fn descriptor(sock: &Sock) -> u32 {
    sock.fd.load(Ordering::Relaxed) as u32
}

/// Asks over `link`; true: the question is out.
fn send_ask(link: &Link, look: Look, own: u64, flags: u32) -> bool {
    let ask = Message {
        token: [look.key, own],
        nonce: look.nonce,
        descriptor: descriptor(look.of.0),
        flags,
        ..Message::new(Kind::Ask)
    };
    control::tell(link, &ask, None)
}

/// Asks over the link by which this connection has gone before; true: the peer was asked.
pub(super) fn ask_again(look: Look, own: u64) -> bool {
    let link = look.of.0.last_link();
    link.is_some_and(|link| may_hold(link, look.mirror) && send_ask(link, look, own, 0))
}

/// A link has come up: whoever looks for a peer, or has done so in vain, asks over it.
pub(super) fn ask_all(link: &'static Link) {
    let tried = TRIED.lock().map(|mut tried| {
        let all = core::mem::take(&mut *tried).into_iter();
        let (ask, refuse): (Vec<_>, _) = all.partition(Look::is_wanted);
        *tried = refuse;
        ask
    });
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    for look in tried.unwrap_or_default() {
        let (sock, _) = look.of;
        if look.is_wanted() && !list.iter().any(|p| core::ptr::eq(p.sock, sock)) {
            list.push(look.waiting());
        }
    }
    for p in list.iter() {
        let is_open = matches!(p.stage, Stage::Named { .. } | Stage::Asked);
        if !is_open || !may_hold(link, p.mirror) || p.look().refusal().is_some() {
            continue;
        }
        let fd = p.sock.fd.load(Ordering::Relaxed);
        if let Ok(st) = sys::fstat(fd) {
            send_ask(link, p.look(), st.st_ino, message::IDLE);
        }
    }
    count_names(&list);
    drop(list);
    super::expect_answers();
}

/// Has the other end of this connection asked for it? Then grants it a stream.
pub(super) fn answer(look: Look) -> Option<Pending> {
    let (link, nonce) = take_question(look)?;
    grant(look, link, nonce)
}

/// The question of the other end: over which link it came, and the nonce that it came with.
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

/// Grants the peer, which has asked with `echo`, a stream.
fn grant(look: Look, link: &'static Link, echo: Nonce) -> Option<Pending> {
    if !may_hold(link, look.mirror) {
        return None;
    }
    if let Some(reason) = look.refusal() {
        decline::answer(look, link, echo, reason);
        return None;
    }
    let (sock, _) = look.of;
    let own = sys::fstat(sock.fd.load(Ordering::Relaxed)).ok()?.st_ino;
    let index = link.give_stream(upgrade::ring_len(link), owner(sock))?;
    let grant = Message {
        index,
        token: [look.key, own],
        nonce: look.nonce,
        echo,
        descriptor: descriptor(sock),
        ..Message::new(Kind::Grant)
    };
    if !control::tell(link, &grant, None) {
        abandon(link, index);
        return None;
    }
    Some(look.at(Stage::Granted(link, index), None))
}

/// Does the process at the other end of the link, which has sent `claim`, hold the other end of the
/// connection?
fn believe(
    link: &Link,
    claim: &Message,
    sender: Option<Sender>,
    nonce: Nonce,
    mirror: Mirror,
) -> bool {
    // A look at a process needs a descriptor for a moment.
    let _low = crate::sockets::internal::Low::begin();
    let socket = link.control().raw().unwrap_or(-1);
    identity::look_over(link, |peer| {
        peer.proves(claim, sender, nonce, mirror, socket).is_ok()
    })
}

/// The peer asks. What it says of itself is looked into when it has joined.
pub(super) fn on_ask(link: &'static Link, ask: &Message, sender: Option<Sender>) {
    let [key, inode] = ask.token;
    if !identity::of_link(link).has_sent(sender) {
        return;
    }
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    let ours = list
        .iter()
        .position(|p| p.key == key && p.mirror.inode == inode);
    // A name of ours that nobody has come to, and an asker who is not on the way to it.
    let idle = ask.flags & message::IDLE != 0;
    let only_asks = |p: &Pending| match p.stage {
        Stage::Asked => true,
        Stage::Named { .. } => idle,
        _ => false,
    };
    match ours {
        // Nothing but links is left to both.
        Some(at) if list.get(at).is_some_and(only_asks) => {
            let waiting = list.swap_remove(at);
            let look = waiting.look();
            if look.is_current() {
                list.push(grant(look, link, ask.nonce).unwrap_or(waiting));
            }
        }
        // A meeting by name is under way; the question counts if that comes to nothing.
        Some(_) => keep(link, ask),
        None => match take_tried(key, inode).or_else(|| demoted(key, inode)) {
            Some(look) => list.extend(grant(look, link, ask.nonce)),
            None => keep(link, ask),
        },
    }
    count_names(&list);
}

/// Keeps a question for the socket of ours that will come to it.
fn keep(link: &'static Link, ask: &Message) {
    let [key, inode] = ask.token;
    let Some(mut kept) = QUESTIONS.lock() else {
        return;
    };
    // Asked again at a later offset: the last question stands.
    kept.retain(|q| q.key != key || !core::ptr::eq(q.link, link));
    // No peer has all the places: it loses its own first.
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

/// The peer grants a stream.
pub(super) fn on_grant(link: &'static Link, grant: &Message, sender: Option<Sender>) {
    let [key, inode] = grant.token;
    let decline = || {
        let no = Message::about(Kind::Decline, grant.index);
        control::tell(link, &no, None);
    };
    let Some(mut list) = PENDING.lock() else {
        return decline();
    };
    let at = list.iter().position(|p| {
        p.key == key && p.mirror.inode == inode && believe(link, grant, sender, p.nonce, p.mirror)
    });
    // Whatever stage ours has come to ends here: the peer's stands at this. Only two grants that cross need a
    // rule: that of side 0 stands.
    let crossed = |p: &Pending| matches!(p.stage, Stage::Granted(l, _) if core::ptr::eq(l, link));
    let yields = |p: &Pending| !crossed(p) || link.side() == 1;
    let meeting = at
        .filter(|&at| list.get(at).is_some_and(yields))
        .map(|at| list.swap_remove(at));
    count_names(&list);
    let Some(meeting) = meeting else {
        return decline();
    };
    // The list stays locked until the stream is attached: a try of the program's thread would find neither meeting nor
    // stream, and grant another stream meanwhile; the two ends could come to stand on one each.
    if let Stage::Replied(link, index) | Stage::Granted(link, index) = meeting.stage {
        abandon(link, index);
    }
    let sock = meeting.sock;
    let stale = sock.generation.load(Ordering::Acquire) != meeting.generation;
    if stale || !link.join_stream(grant.index, upgrade::ring_len(link), owner(sock)) {
        return decline();
    }
    let joined = Message {
        echo: grant.nonce,
        descriptor: descriptor(sock),
        ..Message::about(Kind::Joined, grant.index)
    };
    if !control::tell(link, &joined, None) {
        return abandon(link, grant.index);
    }
    attach(sock, meeting.generation, link, grant.index);
}

/// Takes the meeting out for which stream `index` of a link was granted.
fn take_granted(list: &mut Vec<Pending>, link: &'static Link, index: u32) -> Option<Pending> {
    let at = list.iter().position(
        |p| matches!(p.stage, Stage::Granted(l, i) if core::ptr::eq(l, link) && i == index),
    )?;
    Some(list.swap_remove(at))
}

/// The peer has joined a stream that was granted to it.
pub(super) fn on_joined(link: &'static Link, joined: &Message, sender: Option<Sender>) {
    if !identity::of_link(link).has_sent(sender) {
        return;
    }
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    let index = joined.index;
    let Some(meeting) = take_granted(&mut list, link, index) else {
        return;
    };
    // With the list locked, see `on_grant`.
    let of = (meeting.sock, meeting.generation);
    if believe(link, joined, sender, meeting.nonce, meeting.mirror) {
        attach(of.0, of.1, link, index);
    } else {
        refuse(of, link, index, Reason::ProofFailed);
    }
}

/// The peer has declined a stream that was granted to it, or tells why it grants none.
pub(super) fn on_declined(link: &'static Link, declined: &Message, sender: Option<Sender>) {
    if !identity::of_link(link).is_process(sender) {
        return;
    }
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    if declined.reason == 0 {
        if let Some(meeting) = take_granted(&mut list, link, declined.index) {
            super::give_up(meeting, Reason::NoAnswer);
        }
    } else if let Some(meeting) = decline::take_asked(&mut list, declined) {
        decline::heard(meeting, decline::reason(declined));
    }
    count_names(&list);
}

/// The link is gone: nothing asked or granted on it comes to anything.
pub(super) fn lost(link: &'static Link) {
    if let Some(mut kept) = QUESTIONS.lock() {
        kept.retain(|q| !core::ptr::eq(q.link, link));
    }
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    let mut granted = Vec::new();
    list.retain(|p| match p.stage {
        Stage::Granted(l, index) if core::ptr::eq(l, link) => {
            granted.push(index);
            false
        }
        _ => true,
    });
    drop(list);
    for index in granted {
        abandon(link, index);
    }
}

/// Holds the questions still over a fork.
pub(super) fn hold() {
    QUESTIONS.hold();
    TRIED.hold();
}

/// After the fork, on both sides.
pub(super) fn release() {
    TRIED.release();
    QUESTIONS.release();
}

/// In the child of a fork: the questions were the parent's to answer.
pub(super) fn after_fork() {
    if let Some(mut kept) = QUESTIONS.lock() {
        kept.clear();
    }
    if let Some(mut tried) = TRIED.lock() {
        tried.clear();
    }
}
