//! For the fuzzer: a connection of this process on a link whose other end the fuzzer plays, in the
//! same process and by hand.
//!
//! What a meeting comes to is made here without one: a link, a stream on it, and the socket
//! attached to that. All else is the library's own doing: the calls of [`api`](crate::api), and the
//! control thread's turns.

use core::sync::atomic::Ordering;
use sluice_fabric::arena::Arena;
use sluice_fabric::shm::{Link, LinkEnd, PeerProcess, Token};
use sluice_fabric::sys::Fd;
use sluice_rendezvous::message::{Kind, Message, VERSION};
use sluice_rendezvous::{self, control::by_hand, identity};
use sluice_runtime::fd_table::{self, Entry};
use sluice_runtime::own_fds;
use sluice_sockets::socket::Socket;
use sluice_sockets::{meeting, tell, upgrade};

/// This end of a link, and its stream.
#[derive(Clone, Copy, Debug)]
pub struct End {
    link: &'static Link,
    index: u32,
}

/// What there is to say of the other end.
#[derive(Debug)]
pub struct Peer {
    /// The memory that both share.
    pub arena: Arena,
    /// This end's way to it.
    pub control: Fd,
    /// Its token.
    pub token: Token,
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Whether that is taken for this process's, so that it may send descriptors.
    pub is_same_user: bool,
    /// Whether its memory may be read.
    pub can_pull: bool,
}

/// Before all else, once.
///
/// # Panics
/// Without descriptors.
pub fn begin() {
    crate::api::init();
    assert!(by_hand::begin().is_ok(), "there are no descriptors");
}

/// The connection at `fd` meets a peer: with a ring of so many bytes for what that sends. `None`:
/// it may not leave TCP.
#[must_use]
pub fn meet(fd: i32, peer: Peer, ring_len: u32) -> Option<End> {
    let sock = fd_table::lookup(fd).and_then(Entry::get::<Socket>)?;
    let control = peer.control.raw();
    identity::prepare(control).ok()?;
    // As those of an older kernel where that knows of no refusal.
    let _ = identity::let_descriptors_in(control, peer.is_same_user);
    let link = Link::open(LinkEnd {
        arena: peer.arena,
        side: 0,
        control: own_fds::lift(peer.control),
        token: peer.token,
        peer: Some(PeerProcess {
            pid: peer.pid,
            uid: peer.uid,
            is_same_user: peer.is_same_user,
            dir: None,
        }),
        can_pull: peer.can_pull,
        can_discard: true,
    })?;
    sluice_stats::ROOT.links.raise(1);
    tell::watch_link(link);
    let owner = core::ptr::from_ref(sock) as usize;
    let index = link.give_stream(ring_len, owner)?;
    let generation = sock.generation.load(Ordering::Acquire);
    let end = End { link, index };
    if upgrade::attach(sock, generation, link, index).is_err() {
        link.leave_stream(index);
        end.lose();
        return None;
    }
    Some(end)
}

/// A record of a control socket, for the fuzzer to change.
#[must_use]
pub fn record() -> Vec<u8> {
    Message::about(Kind::Wake, 0).to_bytes().to_vec()
}

/// No descriptor stays open for meetings to come.
pub fn keep_nothing() {
    sluice_rendezvous::keep_nothing();
}

/// The connection at `fd` has come to the offset where its peer is looked for.
pub fn seek(fd: i32) {
    if let Some(sock) = fd_table::lookup(fd).and_then(Entry::get::<Socket>) {
        sluice_rendezvous::attempt(sock, meeting::Effort::Name);
    }
}

/// The abstract name at which a connection is met whose connecting end has this inode.
#[must_use]
pub fn name(inode: u64) -> String {
    format!("sluice/{VERSION}/{inode:x}")
}

/// The control thread's turn.
pub fn turn() {
    by_hand::turn();
}

impl End {
    /// The stream's number.
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }

    /// Where the ring lies that this end has lent, by its own record, and how long it is.
    #[must_use]
    pub fn lent(self) -> Option<(u64, u32)> {
        self.link
            .lent_for(self.index)
            .map(|lent| (lent.at, lent.len))
    }

    /// The peer says that the words of the stream have changed.
    pub fn look(self) {
        by_hand::look(self.link, self.index);
    }

    /// The peer's process is gone.
    pub fn lose(self) {
        by_hand::lose(self.link);
    }

    /// Is the link still in use, and by how many streams?
    #[must_use]
    pub fn streams(self) -> Option<u32> {
        self.link.is_open().then(|| self.link.stream_count())
    }
}
