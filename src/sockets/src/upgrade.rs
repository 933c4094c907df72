//! From TCP to the link: attaching a stream, the reader's consent, the writer's switch.

use crate::demote::{self, Which};
use crate::socket::{Event, SETS, Socket, State, half, role};
use crate::{direct, events, jobs, options, path, prefix, tcp};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_fabric::shm::Link;
use sluice_runtime::config::{Side, config};
use sluice_runtime::{address, process};
use sluice_stats::Reason;
use sluice_transport::Carrier;
use sluice_transport::verbs::memory;

/// The ring length for one more stream of this process: long for few streams and short for many, so
/// that together they fit into a processor's cache. Longer rings than 256 KiB only if the settings
/// ask for them, since at exec, say, TCP must take the unread bytes, and its buffers are small.
pub fn ring_len(link: &Link) -> u32 {
    let config = config();
    let most = if config.memory.is_some() {
        config.ring_beside(in_use().1)
    } else {
        config.ring_len
    };
    let wanted = match link.stream_count() {
        0..=15 => 256 << 10,
        16..=63 => 128 << 10,
        64..=255 => 64 << 10,
        256..=4095 => 32 << 10,
        // So short that all rings together fit into what one side of a link can lend.
        _ => 8 << 10,
    };
    most.min(if most > 256 << 10 { most } else { wanted })
}

/// As [`ring_len`], for a stream to another host: a longer one where the path needs it, and all
/// rings fit into what may be registered.
pub fn far_ring_len(link: &Link, sock: &Socket) -> u32 {
    let least = ring_len(link).min(memory::share());
    path::ring_len(sock, least, memory::most().min(memory::share()))
}

/// The number of this process's connections with a stream, and the bytes of their rings.
fn in_use() -> (u64, u64) {
    let mut all = (0, 0);
    crate::socket::for_all(|sock| {
        if sock.link().is_some() {
            all.0 += 1;
            all.1 += sock.rx.ring().map_or(0, |ring| ring.len());
        }
    });
    all
}

/// Returns whether the settings let the connection between these addresses leave TCP now. If a rule
/// keeps the connection on TCP, pins it there.
pub fn ask_user(sock: &Socket, local: SocketAddr, peer: SocketAddr) -> Result<(), Reason> {
    let config = config();
    let side = match sock.role.load(Ordering::Relaxed) {
        role::ACCEPTED => Side::Server,
        _ => Side::Client,
    };
    if config.leaves(side, local, peer) {
        sock.pin(Reason::Policy);
        return Err(Reason::Policy);
    }
    let is_bounded = config.connections.is_some() || config.memory.is_some();
    let (count, bytes) = if is_bounded { in_use() } else { (0, 0) };
    if config.allows(count, bytes) {
        Ok(())
    } else {
        Err(Reason::Bounded)
    }
}

/// [`ask_user`] with the addresses looked up.
fn ask_user_here(sock: &Socket) -> Result<(), Reason> {
    let config = config();
    if config.rules.is_empty() && config.connections.is_none() && config.memory.is_none() {
        return Ok(());
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    match (address::name(fd, false), address::name(fd, true)) {
        (Some(local), Some(peer)) => ask_user(sock, local, peer),
        _ => Err(Reason::NotEstablished),
    }
}

/// Attaches stream `index` of `link`, which both ends have joined, to the connection that `sock`
/// was in `generation`. From now on hooks of the socket wait only in ways that a doorbell can end.
///
/// Another thread may close the socket, give it up, or exec meanwhile. That thread first says so in
/// `fds`, `pinned` or [`process::is_executing`], then takes both locks for a moment
/// ([`Socket::synchronize_locks`]), then looks for a stream. This function asks those words under
/// both locks. So either this function sees the word, or that thread sees the stream.
pub fn attach(
    sock: &'static Socket,
    generation: u32,
    link: &'static Link,
    index: u32,
) -> Result<(), Reason> {
    let Some(arena) = link.arena() else {
        return Err(Reason::LinkLost);
    };
    let Some(stream) = arena.stream(index) else {
        return Err(Reason::LinkFull);
    };
    // SAFETY: the arena stays mapped while the link counts a stream, as it does from before this
    // call until `leave`. Later a link unmaps its arena only when no thread can look at it.
    let stream: &'static sluice_fabric::layout::Stream = unsafe { &*core::ptr::from_ref(stream) };
    let (outgoing, incoming) = link.directions(stream);
    let Some(lent) = link.lent_for(index) else {
        return Err(Reason::LinkLost);
    };
    // The peer can write to this record, and takes its ring from there. A record that differs from
    // what this end has lent is refused.
    let said = &incoming.rx_wishes;
    let unchanged = said.ring_at.load(Ordering::Relaxed) == lent.at
        && said.ring_len.load(Ordering::Relaxed) == lent.len;
    let ring = arena.ring(link.side(), lent.at, lent.len);
    let (Some(ring), true) = (ring, unchanged) else {
        return Err(Reason::PeerHostile);
    };
    let blocked = |_| Reason::WriterBlocked;
    let rx = sock.rx.lock.enter().map_err(blocked)?;
    let tx = sock.tx.lock.enter().map_err(blocked)?;
    let refused = take_in(sock, generation);
    if refused.is_ok() {
        options::note(sock, sock.fd.load(Ordering::Relaxed));
        // Set before the switch, which clears it under the lock.
        sock.conn().awaits(Reason::Met);
        sock.set_stream(link, index);
        incoming.rx_wishes.ended.store(0, Ordering::SeqCst);
        sock.rx.set_dir(Some(incoming));
        // A thread that shuts the half down after this load finds the direction, and marks it.
        if sock.halves.load(Ordering::SeqCst) & half::WRITING != 0 {
            incoming.rx_wishes.ended.store(1, Ordering::SeqCst);
        }
        sock.rx.set_ring(ring);
        sock.tx.set_dir(Some(outgoing));
        sock.linked_before.store(sock.linked(), Ordering::Relaxed);
        // In the child of a fork, the watch of the parent's control thread does not exist.
        sock.full.reset();
        sock.adopted.store(false, Ordering::Relaxed);
        sock.counted.store(false, Ordering::Relaxed);
        sock.upgraded.store(false, Ordering::Relaxed);
        sock.far.store(false, Ordering::Relaxed);
        sock.begun.store(false, Ordering::Relaxed);
        sock.handed.store(false, Ordering::Relaxed);
        sock.undecided_ns.store(0, Ordering::Relaxed);
        sock.rx.state.on(Event::Attached);
        sock.tx.state.on(Event::Attached);
    }
    drop((tx, rx));
    refused?;
    if !Carrier::of(link).proves_by_digests {
        // Both ends are on this host and stay there, so digests need not prove the peer.
        prefix::forget(sock);
    }
    jobs::watch(sock);
    for i in 0..SETS {
        if let Some(set) = sock.set_at(i) {
            set.adopt_stream(sock);
        }
    }
    // From now on a thread that returns from the kernel may consent, too.
    sock.adopted.store(true, Ordering::SeqCst);
    consent(sock);
    Ok(())
}

/// Checks that the socket still is the connection of `generation` and may have a stream, and makes
/// this process the owner of the stream. Call under both locks.
fn take_in(sock: &'static Socket, generation: u32) -> Result<(), Reason> {
    // `fds` first: `alloc` stores it last, so a thread that sees a later connection's descriptor
    // also sees its generation.
    if sock.fds.load(Ordering::Acquire) == 0
        || sock.generation.load(Ordering::Acquire) != generation
    {
        return Err(Reason::Close);
    }
    if let pinned @ 1.. = sock.pinned.load(Ordering::Relaxed) {
        return Err(Reason::from_u16(pinned as u16).unwrap_or(Reason::Close));
    }
    if process::is_executing() {
        return Err(Reason::Exec);
    }
    if sock.is_accelerated() || sock.link().is_some() {
        return Err(Reason::WriterBlocked);
    }
    if let Some(reason) = options::inherited_pin(sock) {
        sock.pin(reason);
        return Err(reason);
    }
    ask_user_here(sock)?;
    let family = sock.family_or_take().ok_or(Reason::Limit)?;
    if family.is_shared(process::pid()) {
        return Err(Reason::Shared);
    }
    family.begin_stream(process::pid());
    Ok(())
}

/// Some reader has not consented because a thread was in a big wait: a poll of more sockets than
/// are marked one by one.
static REFUSED_FOR_BIG_WAIT: AtomicBool = AtomicBool::new(false);

/// Returns whether a stream for writing is attached whose reader has not consented yet.
pub fn awaits_consent(sock: &'static Socket) -> bool {
    if sock.tx.state() != State::Proved {
        return false;
    }
    let Ok(_section) = sock.tx.lock.enter() else {
        return false;
    };
    let dir = sock.tx.dir();
    dir.is_some_and(|dir| dir.rx_wishes.consent.load(Ordering::Acquire) == 0)
}

/// Called when a big wait ends: the readers that did not consent because of one are asked again,
/// also those of sockets that were not in it.
pub fn consent_behind_big_wait() {
    if !events::is_any_big_wait() && REFUSED_FOR_BIG_WAIT.swap(false, Ordering::SeqCst) {
        crate::socket::for_all(consent);
    }
}

/// Lets the reader consent if no thread is in a kernel wait that a doorbell cannot end, and the
/// kernel and the hooks have counted the same bytes, so nothing was read past the hooks. If they
/// have not, or the connection is not established, demotes the stream. Call with no lock held.
#[cold]
pub fn consent(sock: &'static Socket) {
    if sock.rx.state() != State::Proved
        || !sock.adopted.load(Ordering::SeqCst)
        || sock.rx.in_kernel() != 0
    {
        return;
    }
    if sock.polls.load(Ordering::SeqCst) != 0 {
        return;
    }
    if events::is_any_big_wait() {
        REFUSED_FOR_BIG_WAIT.store(true, Ordering::SeqCst);
        // Looks again, since the last big wait may have ended before the flag was set.
        if events::is_any_big_wait() {
            return;
        }
    }
    let Ok(section) = sock.rx.lock.enter() else {
        return;
    };
    let carrier = sock.carrier();
    let mut refuse = None;
    if sock.rx.state() == State::Proved
        && let Some(dir) = sock.rx.dir()
        && dir.rx_wishes.consent.load(Ordering::Relaxed) == 0
    {
        let fd = sock.fd.load(Ordering::Relaxed);
        let input = tcp::input_after(fd, sock.rx.kernel_bytes());
        match input.map(|input| (input.state, input.read)) {
            Some((tcp::ESTABLISHED, n)) if n == sock.rx.kernel_bytes() => {
                dir.rx_wishes.consent.store(1, Ordering::Release)
            }
            // This end has sent its FIN, and may still read.
            Some((tcp::FIN_WAIT1 | tcp::FIN_WAIT2, n))
                if n == sock.rx.kernel_bytes() && !carrier.switches_together =>
            {
                dir.rx_wishes.consent.store(1, Ordering::Release)
            }
            Some((tcp::ESTABLISHED, _)) => refuse = Some((Which::Both, Reason::NotHooked)),
            // Within the host, only what this end reads has ended; it may still write.
            Some((tcp::CLOSE_WAIT, _)) if !carrier.switches_together => {
                refuse = Some((Which::Rx, Reason::NotEstablished));
            }
            _ => refuse = Some((Which::Both, Reason::NotEstablished)),
        }
    }
    drop(section);
    if carrier.switches_together && refuse.is_none() {
        jobs::advance(sock);
    }
    if let Some((which, reason)) = refuse {
        if reason == Reason::NotHooked {
            sock.pin(reason);
        }
        demote::demote(sock, which, reason);
    }
}

/// The outcome of a writer's try to switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The writer is on the link.
    Done,
    /// It cannot switch yet, and TCP takes these bytes.
    Later,
    /// It cannot switch, and the stream must be demoted for this reason.
    Never(Reason),
}

/// Switches the writer if the reader has consented: fixes the offset N at which TCP's part of this
/// direction ends. Call under the tx lock, in state Proved.
pub(crate) fn try_switch(sock: &'static Socket) -> Switch {
    let Some(dir) = sock.tx.dir() else {
        return Switch::Later;
    };
    // Directions that switch together are switched by the pump's steps (`carrier::advance`).
    let carrier = sock.carrier();
    // Before `adopted`, no epoll set would wait for room in the ring.
    if dir.rx_wishes.consent.load(Ordering::Acquire) != 1
        || !sock.adopted.load(Ordering::SeqCst)
        || sock.tx.in_kernel() != 0
        || carrier.switches_together
    {
        return Switch::Later;
    }
    take_ring(sock, |written| {
        dir.tx_wishes.from.store(written, Ordering::Relaxed);
        dir.tx_wishes.switched.store(1, Ordering::Release);
        sock.note_upgraded(carrier.transport);
        true
    })
}

/// Puts the program's writes into the ring from now on. `announce` tells the peer the offset N, and
/// returns false if the switch cannot be yet. Call under the tx lock, in state Proved, with no
/// thread in a kernel write.
pub(crate) fn take_ring(sock: &'static Socket, announce: impl FnOnce(u64) -> bool) -> Switch {
    let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) else {
        return Switch::Later;
    };
    let at = dir.rx_wishes.ring_at.load(Ordering::Acquire);
    let len = dir.rx_wishes.ring_len.load(Ordering::Relaxed);
    let Some(ring) = link.arena().and_then(|a| a.ring(1 - link.side(), at, len)) else {
        return Switch::Never(Reason::PeerHostile);
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    let connected = sock.role.load(Ordering::Relaxed) == role::CONNECTING;
    // Between hosts both directions leave TCP together, so neither may have ended.
    let is_open = !sock.carrier().switches_together || !tcp::has_ended(fd);
    let Some(written) = tcp::written(fd, connected).filter(|_| is_open) else {
        return Switch::Never(Reason::NotEstablished);
    };
    if written.bytes != sock.tx.kernel_bytes() {
        return Switch::Never(Reason::NotHooked);
    }
    let unread_max = match most_unread(sock, fd, ring.len()) {
        Ok(most) => most,
        Err(not_now) => return not_now,
    };
    sock.tx.unread_max.store(unread_max, Ordering::Relaxed);
    sock.tx.set_ring(ring);
    direct::begin_tx(sock);
    sock.tx.show_ring(&sock.conn().tx);
    if !announce(written.bytes) {
        return Switch::Later;
    }
    // The reader must read TCP's bytes first, and no later write would make TCP send them.
    if !written.is_acknowledged {
        options::push_out(sock, fd);
    }
    tcp::acknowledge(fd);
    sock.tx.state.on(Event::Entered);
    Switch::Done
}

/// Returns how much may lie unread in a ring of `len` bytes. TCP must have room for these bytes at
/// any moment, after those that it holds, since a close may not wait. `Err`: no switch now, or
/// never.
fn most_unread(sock: &Socket, fd: i32, len: u64) -> Result<u32, Switch> {
    /// A smaller ring is not worth a switch.
    const LEAST: u32 = 4096;
    let len = len.min(u64::from(u32::MAX)) as u32;
    if sock.carrier().keeps_arrived {
        // Between hosts, bytes that have arrived at the peer's end need no room in TCP.
        return if len < LEAST {
            Err(Switch::Never(Reason::SendBufferSmall))
        } else {
            Ok(len)
        };
    }
    let buffer = tcp::send_buffer(fd).unwrap_or_default();
    let most = len.min(buffer.size / 2);
    if most < LEAST {
        return Err(Switch::Never(Reason::SendBufferSmall));
    }
    // On the link TCP gets no more bytes, so the room stays. An eighth is left for the kernel's own
    // overhead, which is small for large pieces.
    let free = buffer.size.saturating_sub(buffer.used);
    let fits = free - free / 8;
    // A writer that finds TCP full waits until a third is free (`sk_stream_is_writeable`), so its
    // next write finds more than a quarter here.
    if fits < most.min(buffer.size / 4).max(LEAST) {
        return Err(Switch::Later);
    }
    Ok(most.min(fits))
}

/// Has the reader enter the link if it has read the `from` bytes of TCP before it. Does nothing in
/// a state other than Proved and Draining. Call under the rx lock.
pub(crate) fn enter_link(sock: &'static Socket, from: u64) {
    let comes = matches!(sock.rx.state(), State::Proved | State::Draining);
    if comes && sock.rx.kernel_bytes() == from {
        sock.rx.from.store(from, Ordering::Relaxed);
        direct::begin_rx(sock);
        sock.rx.show_ring(&sock.conn().rx);
        sock.rx.state.on(Event::Entered);
        if sock.carrier().ends_by_record {
            options::hold_low(sock);
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "tests make real connections")]
mod tests {
    use super::*;
    use crate::{socket, testing};
    use sluice_fabric::sys;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn no_stream_is_attached_to_what_was_closed_or_given_up() {
        let (a, _, index) = testing::link();
        let sock = socket::alloc(-1, role::CONNECTING).unwrap();
        let generation = sock.generation.load(Ordering::Acquire);
        // The structure belongs to another connection.
        let other = attach(sock, generation.wrapping_sub(1), a, index);
        assert_eq!(other, Err(Reason::Close));
        sock.fds.store(0, Ordering::Relaxed);
        assert_eq!(attach(sock, generation, a, index), Err(Reason::Close));
        sock.fds.store(1, Ordering::Relaxed);
        sock.pin(Reason::Passed);
        assert_eq!(attach(sock, generation, a, index), Err(Reason::Passed));
        assert!(sock.link().is_none() && sock.family().is_none());
        sock.pinned.store(0, Ordering::Relaxed);
        assert_eq!(attach(sock, generation, a, index), Ok(()));
        demote::demote(sock, Which::Both, Reason::Close);
        assert_eq!(a.stream_count(), 0);
    }

    #[test]
    fn a_writer_switches_once_its_sets_know_of_the_stream() {
        let (a, b, index) = testing::link();
        let sock = testing::writer(a, b, index);
        sock.tx.state.put(State::Proved);
        let dir = sock.tx.dir().unwrap();
        dir.rx_wishes.consent.store(1, Ordering::SeqCst);
        sock.adopted.store(false, Ordering::SeqCst);
        assert_eq!(try_switch(sock), Switch::Later);
        sock.adopted.store(true, Ordering::SeqCst);
        assert_ne!(try_switch(sock), Switch::Later);
        demote::demote(sock, Which::Both, Reason::Close);
    }

    #[test]
    fn what_may_lie_unread_fits_into_tcp() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        let fd = here.as_raw_fd();
        let sock = socket::alloc(fd, role::CONNECTING).unwrap();
        let size = 64 << 10;
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &size).unwrap();
        // The kernel doubles the value.
        assert_eq!(most_unread(sock, fd, 1 << 20), Ok(64 << 10));
        assert_eq!(most_unread(sock, fd, 8192), Ok(8192));
        here.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(n) = here.write(&[7; 4096]) {
            written += n;
        }
        assert_eq!(most_unread(sock, fd, 1 << 20), Err(Switch::Later));
        // Reads until TCP reports room.
        let mut piece = [0; 4096];
        while sys::poll_one(fd, libc::POLLOUT, Some(sys::timespec(0))).unwrap() == 0 {
            written -= peer.read(&mut piece).unwrap();
        }
        let most = most_unread(sock, fd, 1 << 20).unwrap() as usize;
        assert!((32 << 10..=64 << 10).contains(&most), "{most}");
        assert_eq!(here.write(&vec![7; most]).unwrap(), most);
        peer.read_exact(&mut vec![0; written + most]).unwrap();
        let least = 1;
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &least).unwrap();
        let never = Err(Switch::Never(Reason::SendBufferSmall));
        assert_eq!(most_unread(sock, fd, 1 << 20), never);
        socket::free(sock);
    }

    #[test]
    fn a_ring_that_the_peer_has_put_in_anothers_place_is_refused() {
        let (a, b, index) = testing::link();
        let other = testing::stream(a, b);
        let (own, others) = (a.lent_for(index).unwrap(), a.lent_for(other).unwrap());
        // Side 1 writes into the ring that side 0 lends. The record of that ring lies where both
        // sides can write.
        let said = &testing::directions(b, index)[1].rx_wishes;
        for (at, len) in [(others.at, others.len), (own.at, own.len / 2), (0, 0)] {
            said.ring_at.store(at, Ordering::Relaxed);
            said.ring_len.store(len, Ordering::Relaxed);
            let sock = socket::alloc(-1, role::CONNECTING).unwrap();
            let generation = sock.generation.load(Ordering::Acquire);
            assert_eq!(attach(sock, generation, a, index), Err(Reason::PeerHostile));
            assert_eq!(a.lent_for(index), Some(own));
            assert!(sock.link().is_none());
            socket::free(sock);
        }
        // The pool gets back what was lent, not what the peer's record says.
        said.ring_at.store(others.at, Ordering::Relaxed);
        said.ring_len.store(others.len, Ordering::Relaxed);
        b.leave_stream(index);
        a.leave_stream(index);
        assert_eq!(a.lent_for(index), None);
        let again = testing::stream(a, b);
        assert_eq!(a.lent_for(again), Some(own));
        assert_eq!(a.lent_for(other), Some(others));
    }
}
