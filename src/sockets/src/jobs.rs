//! The control thread's work on sockets: now, later, or when TCP has news.

use crate::socket::Socket;
use crate::stall_watch::Epoch;
use core::sync::atomic::Ordering;
use sluice_fabric::lock::{Guarded, OverFork};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_runtime::control_thread;
use sluice_transport::FULL_REMOTE_NS;

const WATCHED: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;

/// Watches the TCP of a socket on a link for FIN, RST, and bytes after a demotion.
pub fn watch(sock: &'static Socket) {
    let fd = sock.fd.load(Ordering::Relaxed);
    let data = control_thread::SOCK | core::ptr::from_ref(sock) as u64;
    control_thread::watch(fd, WATCHED, data);
}

/// Stops watching: the stream has ended.
pub fn unwatch(sock: &'static Socket) {
    let fd = sock.fd.load(Ordering::Relaxed);
    control_thread::unwatch(fd);
}

/// A re-send waits for room in TCP: the control thread goes on with it.
pub(crate) fn watch_room(sock: &'static Socket) {
    let fd = sock.fd.load(Ordering::Relaxed);
    let data = control_thread::SOCK | core::ptr::from_ref(sock) as u64;
    control_thread::watch_again(fd, WATCHED | libc::EPOLLOUT as u32, data);
}

/// Work for later, or for the control thread only.
pub(crate) enum Job {
    /// Look at stream `index` of a link whose two ends are in this process.
    Look(&'static Link, u32),
    /// A non-blocking writer found the ring full: watch its reader.
    Full(Watch),
    /// Between hosts: the peer of a stream waits for the program to read TCP up to the switch.
    Far(Far),
    /// Ask over a new link for all sockets that look for a peer.
    Ask(&'static Link),
    /// Close the link if nothing uses it any more.
    Reap(&'static Link),
    /// Look for the other end of a connection on another host. Socket and generation.
    Seek(&'static Socket, u32),
    /// Between hosts: go on with the switch or the demotion of a stream. Socket and generation.
    Advance(&'static Socket, u32),
    /// The same, not before this time.
    AdvanceLater(&'static Socket, u32, u64),
    /// A stream of a lost link, its socket and generation, and until when TCP may tell what became
    /// of the peer.
    Lost(&'static Link, u32, &'static Socket, u32, u64),
    /// Close a lingering connection that has nothing left to send: socket, generation, and when,
    /// even if the peer's record has not come by then; 0: now, unless a record is to come.
    CloseWhenDrained(&'static Socket, u32, u64),
}

pub(crate) struct Far {
    pub(crate) sock: &'static Socket,
    pub(crate) generation: u32,
    /// Bytes that had been read from TCP, and when to compare again.
    pub(crate) read: u64,
    pub(crate) look: u64,
    /// When the patience ends in any case.
    pub(crate) until: u64,
}

/// A watch over the reader of a ring that was full.
pub(crate) struct Watch {
    pub(crate) sock: &'static Socket,
    pub(crate) ring: Epoch,
    /// The reader's count at the last look, and when to look again; 0: at once, for the first time.
    pub(crate) seen: u64,
    pub(crate) due: u64,
}

static JOBS: Guarded<Vec<Job>> = Guarded::new(Vec::new());

pub(crate) fn add(job: Job) {
    if let Some(mut jobs) = JOBS.lock() {
        jobs.push(job);
    }
    control_thread::poke();
}

/// A new link is up: asks over it for all sockets that look for a peer.
pub fn ask(link: &'static Link) {
    add(Job::Ask(link));
}

/// Looks again, soon, at a stream of a lost link: TCP may not have told yet what became of the
/// peer.
pub fn lose(link: &'static Link, index: u32, sock: &'static Socket) {
    let generation = sock.generation.load(Ordering::Acquire);
    let deadline = sys::now_ns() + DYING_NS;
    add(Job::Lost(link, index, sock, generation, deadline));
}

/// A process that ends closes its link and its connections in any order, within this time.
const DYING_NS: u64 = 20_000_000;

/// The other end of a connection is on another host: the control thread looks for it there.
pub fn seek(sock: &'static Socket) {
    add(Job::Seek(sock, sock.generation.load(Ordering::Acquire)));
}

/// Between hosts: a stream's switch or demotion can go on.
pub fn advance(sock: &'static Socket) {
    add(Job::Advance(sock, sock.generation.load(Ordering::Acquire)));
}

/// [`advance`] in a moment: no event comes for what the stream waits for.
pub(crate) fn advance_soon(sock: &'static Socket) {
    advance_at(sock, sys::now_ns() + SOON_NS);
}

/// [`advance`] at this time (`sys::now_ns`), or sooner.
pub(crate) fn advance_at(sock: &'static Socket, due: u64) {
    let generation = sock.generation.load(Ordering::Acquire);
    let Some(mut list) = JOBS.lock() else { return };
    let known = list.iter().any(|job| match job {
        Job::AdvanceLater(of, g, at) => core::ptr::eq(*of, sock) && *g == generation && *at <= due,
        _ => false,
    });
    if !known {
        list.push(Job::AdvanceLater(sock, generation, due));
        drop(list);
        control_thread::poke();
    }
}

/// See [`advance_soon`].
const SOON_NS: u64 = 1_000_000;

/// A lingering connection has nothing left to send: closes its descriptor, with no lock held.
pub fn close_when_drained(sock: &'static Socket) {
    add(Job::CloseWhenDrained(
        sock,
        sock.generation.load(Ordering::Acquire),
        0,
    ));
}

/// The same at this time (`sys::now_ns`), even if the peer's record has not come.
pub(crate) fn close_when_drained_by(sock: &'static Socket, due: u64) {
    let generation = sock.generation.load(Ordering::Acquire);
    let Some(mut list) = JOBS.lock() else { return };
    list.push(Job::CloseWhenDrained(sock, generation, due));
    drop(list);
    control_thread::poke();
}

/// A non-blocking writer found the ring full: the stream is demoted if its reader reads nothing.
pub fn watch_full(sock: &'static Socket) {
    // The reader's count now. The caller keeps the direction mapped by a lock or a pin.
    let seen = sock.tx.dir().map_or_else(
        || sock.tx.seen.load(Ordering::Relaxed),
        |d| d.rx.head.read().offset,
    );
    if let Some(ring) = sock.full.found(seen) {
        add(Job::Full(Watch {
            sock,
            ring,
            seen,
            due: 0,
        }));
        sock.full.told(ring);
    }
}

/// Between hosts: before the switch the program has so much of TCP to read that the peer must wait.
/// While nothing is read, it waits no longer than for a full ring; in any case less than the link's
/// timer, which would take this end for dead.
pub fn watch_far(sock: &'static Socket) {
    let generation = sock.generation.load(Ordering::Acquire);
    let Some(mut list) = JOBS.lock() else { return };
    let known = list.iter().any(|job| match job {
        Job::Far(far) => core::ptr::eq(far.sock, sock) && far.generation == generation,
        _ => false,
    });
    if !known {
        let now = sys::now_ns();
        list.push(Job::Far(Far {
            sock,
            generation,
            read: sock.rx.kernel_bytes(),
            look: now + FULL_REMOTE_NS,
            until: now + FAR_NS,
        }));
        drop(list);
        control_thread::poke();
    }
}

/// See [`watch_far`].
const FAR_NS: u64 = 2_000_000_000;

/// Takes all jobs.
pub(crate) fn take() -> Vec<Job> {
    JOBS.lock()
        .map(|mut list| core::mem::take(&mut *list))
        .unwrap_or_default()
}

/// Puts jobs back that are not due. Returns whether new ones have come meanwhile.
pub(crate) fn put_back(mut undone: Vec<Job>) -> bool {
    JOBS.lock().is_some_and(|mut list| {
        let more = !list.is_empty();
        list.append(&mut undone);
        more
    })
}

/// Held over a fork.
pub const HELD: &dyn OverFork = &JOBS;

/// In the child: forgets the parent's jobs.
pub fn after_fork() {
    if let Some(mut list) = JOBS.lock() {
        list.clear();
    }
}
