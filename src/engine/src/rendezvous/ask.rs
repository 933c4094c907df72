//! Meeting over a link that both processes already have: no name, no time limit, no thread of the
//! program needed.
//!
//! ```text
//!   first comer                                     second comer
//!   Ask {key, inode}, O_PATH fd ──►                 keeps it until its own socket comes to an offset
//!                                                   the fd's inode is that of my mirror?
//!                        ◄── Grant {key, inode, stream}, O_PATH fd ──
//!   the fd's inode is that of my mirror?
//!   Joined {stream} ──►
//!   attach                                          attach
//! ```
//!
//! A connection that went by a link before asks over that one, and whoever is asked for a connection that was
//! demoted grants at once. Otherwise asked are the links made last, since the peer is likelier behind
//! one of those; who is not the other end of the connection keeps the question and never finds a socket
//! for it. When both ask at once, side 0 of the link grants and side 1 waits.

use super::join::{attach, owner};
use super::message::{self, Brought, Kind, Message};
use super::{PENDING, Pending, Stage, abandon, control, count_names, is_proof, proof};
use crate::sockets::sock::Sock;
use crate::sockets::upgrade;
use core::sync::atomic::Ordering;
use sluice_fabric::lock::Guarded;
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
    /// Inode of the socket that the peer has shown to hold.
    inode: u64,
}

static QUESTIONS: Guarded<Vec<Question>> = Guarded::new(Vec::new());

/// A connection that has looked for its peer in vain: it takes a later question, whatever its offset.
struct Tried {
    key: u64,
    mirror: u64,
    sock: &'static Sock,
    generation: u32,
}

static TRIED: Guarded<Vec<Tried>> = Guarded::new(Vec::new());

/// The search of a connection ended without a peer.
pub(super) fn in_vain(sock: &'static Sock, generation: u32, key: u64, mirror: u64) {
    let Some(mut tried) = TRIED.lock() else {
        return;
    };
    if tried.len() >= KEPT {
        tried.retain(|t| t.sock.generation.load(Ordering::Acquire) == t.generation);
        tried.truncate(KEPT / 2);
    }
    tried.push(Tried {
        key,
        mirror,
        sock,
        generation,
    });
}

/// A connection that looked for the peer that now asks for it, if it is still there and on TCP.
fn take_tried(key: u64, mirror: u64) -> Option<(&'static Sock, u32)> {
    let mut tried = TRIED.lock()?;
    let at = tried
        .iter()
        .position(|t| t.key == key && t.mirror == mirror)?;
    let Tried {
        sock, generation, ..
    } = tried.swap_remove(at);
    let there = sock.generation.load(Ordering::Acquire) == generation;
    (there && !sock.is_accelerated() && sock.pinned.load(Ordering::Relaxed) == 0)
        .then_some((sock, generation))
}

/// Asks for the stream of `key` over the links that there are; true: somebody was asked.
pub(super) fn ask(fd: i32, key: u64, own: u64) -> bool {
    let mut asked = false;
    for link in shm::all()
        .filter(|l| l.is_alive() && l.control().is_open())
        .take(LINKS)
    {
        asked |= send_ask(link, fd, key, own, 0);
    }
    asked
}

/// Asks over `link` for the stream of `key`, whose end here is the descriptor `fd` of the inode `own`;
/// true: the question is out.
fn send_ask(link: &Link, fd: i32, key: u64, own: u64, flags: u32) -> bool {
    let Ok(proof) = proof(fd) else { return false };
    let ask = Message {
        inode: own,
        token: [key, 0],
        flags,
        ..Message::new(Kind::Ask)
    };
    control::tell(link, &ask, &[proof.raw()])
}

/// Asks over the link by which this connection has gone before; true: the peer was asked.
pub(super) fn ask_again(sock: &'static Sock, fd: i32, key: u64, own: u64) -> bool {
    sock.last_link()
        .is_some_and(|link| send_ask(link, fd, key, own, 0))
}

/// A link has come up: whoever looks for a peer, or has done so in vain, asks over it.
pub(super) fn ask_all(link: &'static Link) {
    let tried = TRIED.lock().map(|mut tried| core::mem::take(&mut *tried));
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    for t in tried.unwrap_or_default() {
        let there = t.sock.generation.load(Ordering::Acquire) == t.generation
            && !t.sock.is_accelerated()
            && t.sock.pinned.load(Ordering::Relaxed) == 0
            && !list.iter().any(|p| core::ptr::eq(p.sock, t.sock));
        if there {
            list.push(super::waiting((t.sock, t.generation), t.key, t.mirror));
        }
    }
    for p in list.iter() {
        if !matches!(p.stage, Stage::Named | Stage::Asked) {
            continue;
        }
        let fd = p.sock.fd.load(Ordering::Relaxed);
        if let Ok(st) = sys::fstat(fd) {
            send_ask(link, fd, p.key, st.st_ino, message::IDLE);
        }
    }
    count_names(&list);
    drop(list);
    super::expect_answers();
}

/// Has the other end of this connection asked for it? Then grants it a stream.
pub(super) fn answer(of: (&'static Sock, u32), key: u64, mirror: u64) -> Option<Pending> {
    let question = {
        let mut kept = QUESTIONS.lock()?;
        let at = kept
            .iter()
            .position(|q| q.key == key && q.inode == mirror)?;
        kept.swap_remove(at)
    };
    let Question {
        link, generation, ..
    } = question;
    if link.generation() != generation || !link.is_alive() {
        return None;
    }
    grant(of, key, mirror, link)
}

fn grant(
    (sock, generation): (&'static Sock, u32),
    key: u64,
    mirror: u64,
    link: &'static Link,
) -> Option<Pending> {
    let fd = sock.fd.load(Ordering::Relaxed);
    let own = sys::fstat(fd).ok()?.st_ino;
    let proof = proof(fd).ok()?;
    let index = link.give_stream(upgrade::ring_len(link), owner(sock))?;
    let grant = Message {
        index,
        inode: own,
        token: [key, 0],
        ..Message::new(Kind::Grant)
    };
    if !control::tell(link, &grant, &[proof.raw()]) {
        abandon(link, index);
        return None;
    }
    Some(Pending {
        sock,
        generation,
        key,
        mirror,
        stage: Stage::Granted(link, index),
        socket: None,
        deadline: u64::MAX,
        made_link: false,
    })
}

/// The peer asks.
pub(super) fn on_ask(link: &'static Link, ask: &Message, brought: &Brought) {
    let [first, _] = brought;
    let [key, _] = ask.token;
    if !is_proof(first.as_ref(), ask.inode) {
        return;
    }
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    let ours = list
        .iter()
        .position(|p| p.key == key && p.mirror == ask.inode);
    // A name of ours that nobody has come to, and an asker who is not on the way to it.
    let idle = ask.flags & message::IDLE != 0;
    let only_asks = |p: &Pending| match p.stage {
        Stage::Asked => true,
        Stage::Named => idle,
        _ => false,
    };
    match ours {
        // Nothing but links is left to both.
        Some(at) if list.get(at).is_some_and(only_asks) => {
            let waiting = list.swap_remove(at);
            if waiting.sock.generation.load(Ordering::Acquire) == waiting.generation {
                let of = (waiting.sock, waiting.generation);
                list.push(grant(of, key, ask.inode, link).unwrap_or(waiting));
            }
        }
        // A meeting by name is under way; the question counts if that comes to nothing.
        Some(_) => keep(link, key, ask.inode),
        None => match take_tried(key, ask.inode).or_else(|| upgrade::demoted(key, ask.inode)) {
            Some(of) => list.extend(grant(of, key, ask.inode, link)),
            None => keep(link, key, ask.inode),
        },
    }
    count_names(&list);
}

/// Keeps a question for the socket of ours that will come to it.
fn keep(link: &'static Link, key: u64, inode: u64) {
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
    let generation = link.generation();
    kept.push(Question {
        key,
        link,
        generation,
        inode,
    });
}

/// The peer grants a stream.
pub(super) fn on_grant(link: &'static Link, grant: &Message, brought: &Brought) {
    let [first, _] = brought;
    let [key, _] = grant.token;
    let decline = || {
        let no = Message::about(Kind::Decline, grant.index);
        control::tell(link, &no, &[]);
    };
    let Some(mut list) = PENDING.lock() else {
        return decline();
    };
    let at = list.iter().position(|p| {
        p.key == key && p.mirror == grant.inode && is_proof(first.as_ref(), p.mirror)
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
    if !control::tell(link, &Message::about(Kind::Joined, grant.index), &[]) {
        return abandon(link, grant.index);
    }
    attach(sock, meeting.generation, link, grant.index);
}

/// The peer has joined, or declined, a stream that was granted to it.
pub(super) fn on_decision(link: &'static Link, message: &Message, joined: bool) {
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    let at = list.iter().position(
        |p| matches!(p.stage, Stage::Granted(l, index) if core::ptr::eq(l, link) && index == message.index),
    );
    let Some(meeting) = at.map(|at| list.swap_remove(at)) else {
        return;
    };
    // With the list locked, see `on_grant`.
    if joined {
        attach(meeting.sock, meeting.generation, link, message.index);
    } else {
        super::give_up(meeting, Reason::PeerPlain);
    }
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
