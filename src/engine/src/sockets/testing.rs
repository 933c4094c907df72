//! A link between two ends of this process, with a stream on it, for tests.

use crate::sockets::sock::{self, Sock, role, state};
use core::sync::atomic::Ordering;
use sluice_fabric::arena::Arena;
use sluice_fabric::layout::{Direction, Stream};
use sluice_fabric::shm::{Link, LinkEnd};

/// Both ends of a new link, and the number of a stream that both have joined.
pub fn link() -> (&'static Link, &'static Link, u32) {
    let arena = Arena::create_local().unwrap();
    let twin = arena.alias();
    let end = |arena, side| LinkEnd {
        arena,
        side,
        control: None,
        token: [side as u64, 1],
        peer_pid: 0,
        can_pull: false,
        can_discard: true,
    };
    let a = Link::open(end(arena, 0)).unwrap();
    let b = Link::open(end(twin, 1)).unwrap();
    let index = stream(a, b);
    (a, b, index)
}

/// One more stream of a link.
pub fn stream(a: &'static Link, b: &'static Link) -> u32 {
    let index = a.give_stream(64 << 10, 1).unwrap();
    assert!(b.join_stream(index, 64 << 10, 1));
    index
}

/// The two directions of a stream: what side 0 writes, what side 1 writes.
pub fn directions(link: &'static Link, index: u32) -> &'static [Direction; 2] {
    let stream: &'static Stream = link.stream(index).unwrap();
    &stream.dir
}

/// A socket of side 0 that writes to the link.
pub fn writer(a: &'static Link, b: &'static Link, index: u32) -> &'static Sock {
    let sock = sock::alloc(-1, role::CONNECTING).unwrap();
    let lent = b.lent_for(index).unwrap();
    let ring = a.arena().unwrap().ring(1, lent.at, lent.len).unwrap();
    sock.set_stream(a, index);
    sock.tx.set_dir(Some(&directions(a, index)[0]));
    sock.tx.set_ring(ring);
    sock.tx.unread_max.store(lent.len, Ordering::Relaxed);
    sock.tx.state.store(state::LINK, Ordering::SeqCst);
    sock
}
