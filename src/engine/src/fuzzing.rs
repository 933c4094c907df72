//! For the fuzzer: a connection of this process on a link whose other end the fuzzer plays by hand,
//! in the same process.
//!
//! Instead of a meeting, this module makes the link, a stream on it, and attaches the socket.
//! Everything else is the library's own code: the calls of [`api`](crate::api), and the control
//! thread's turns.

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

/// The other end.
#[derive(Debug)]
pub struct Peer {
    /// The memory that both ends share.
    pub arena: Arena,
    /// This end of the control socket.
    pub control: Fd,
    /// The peer's token.
    pub token: Token,
    /// The peer's process.
    pub pid: i32,
    /// The peer's user.
    pub uid: u32,
    /// Whether the peer counts as the same user, and so may send descriptors.
    pub is_same_user: bool,
    /// Whether the peer's memory may be read.
    pub can_pull: bool,
}

/// Call once, before anything else.
///
/// # Panics
/// If there are no descriptors.
pub fn begin() {
    crate::api::init();
    assert!(by_hand::begin().is_ok(), "there are no descriptors");
}

/// Makes the connection at `fd` meet a peer that gets a ring of `ring_len` bytes to write to.
/// `None`: the connection may not leave TCP.
#[must_use]
pub fn meet(fd: i32, peer: Peer, ring_len: u32) -> Option<End> {
    let sock = fd_table::lookup(fd).and_then(Entry::get::<Socket>)?;
    let control = peer.control.raw();
    identity::prepare(control).ok()?;
    // Fails on an older kernel that cannot refuse descriptors; then they are let in.
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

/// A record of a control socket, for the fuzzer to mutate.
#[must_use]
pub fn record() -> Vec<u8> {
    Message::about(Kind::Wake, 0).to_bytes().to_vec()
}

/// Closes descriptors that are kept for later meetings.
pub fn keep_nothing() {
    sluice_rendezvous::keep_nothing();
}

/// Makes the connection at `fd` look for its peer, as at a due offset.
pub fn seek(fd: i32) {
    if let Some(sock) = fd_table::lookup(fd).and_then(Entry::get::<Socket>) {
        sluice_rendezvous::attempt(sock, meeting::Effort::Name);
    }
}

/// The abstract name of a connection whose connecting end has this inode.
#[must_use]
pub fn name(inode: u64) -> String {
    format!("sluice/{VERSION}/{inode:x}")
}

/// One turn of the control thread.
pub fn turn() {
    by_hand::turn();
}

impl End {
    /// The stream's index.
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }

    /// Position and length of the ring that this end has lent, by its own record.
    #[must_use]
    pub fn lent(self) -> Option<(u64, u32)> {
        self.link
            .lent_for(self.index)
            .map(|lent| (lent.at, lent.len))
    }

    /// Tells this end that the words of the stream have changed.
    pub fn look(self) {
        by_hand::look(self.link, self.index);
    }

    /// Ends the peer's process, as far as this end can tell.
    pub fn lose(self) {
        by_hand::lose(self.link);
    }

    /// The number of streams on the link; `None`: the link is closed.
    #[must_use]
    pub fn streams(self) -> Option<u32> {
        self.link.is_open().then(|| self.link.stream_count())
    }
}
