//! What a link's peer within the host is told by the control socket: to look at a stream, or to
//! wake a sleeper.

use crate::jobs::{self, Job};
use crate::record::{self, Kind, Message};
use sluice_fabric::lock::{Guarded, OverFork};
use sluice_fabric::shm::Link;
use sluice_runtime::control_thread;
use sluice_transport::Carrier;

/// Watches a new link's control socket.
pub fn watch_link(link: &'static Link) {
    watch_for(link, libc::EPOLLIN);
}

fn watch_for(link: &'static Link, events: i32) {
    let data = control_thread::LINK | core::ptr::from_ref(link) as u64;
    // Under the fd's lock: once closed, the number may be reused.
    link.control()
        .with(|fd| control_thread::watch(fd, events as u32, data));
}

/// Sends a record. Returns whether it was sent.
pub fn tell(link: &Link, message: &Message, with: Option<i32>) -> bool {
    link.control()
        .with(|fd| record::send(fd, message, with))
        .is_some_and(|sent| sent.is_ok())
}

/// Records that a peer could not take, since its control thread reads nothing: it has no CPU, or is
/// stopped. They are sent when its socket has room; until then neither end would look.
static UNTOLD: Guarded<Vec<Untold>> = Guarded::new(Vec::new());

/// Link, its generation, kind and index.
type Untold = (&'static Link, u32, Kind, u32);

/// Sends the record now, or when there is room.
pub fn tell_in_time(link: &'static Link, kind: Kind, index: u32) {
    let message = Message::about(kind, index);
    let Some(mut untold) = UNTOLD.lock() else {
        // In a signal handler that has interrupted this section.
        tell(link, &message, None);
        return;
    };
    let generation = link.generation();
    let is_own = |(l, g, ..): &Untold| core::ptr::eq(*l, link) && *g == generation;
    // Keeps the order: not before records that wait.
    let waits = untold.iter().any(is_own);
    if !waits && tell(link, &message, None) || !link.is_alive() {
        return;
    }
    // Each record once, in the order of the last request: no more per link than it has slots and
    // streams.
    untold.retain(|of| !is_own(of) || (of.2, of.3) != (kind, index));
    untold.push((link, generation, kind, index));
    if !waits {
        watch_for(link, libc::EPOLLIN | libc::EPOLLOUT);
    }
}

/// By the control thread: the socket has room again.
pub fn tell_rest(link: &'static Link) {
    let Some(mut untold) = UNTOLD.lock() else {
        return;
    };
    let generation = link.generation();
    let mut full = false;
    untold.retain(|&(l, g, kind, index)| {
        let own = core::ptr::eq(l, link) && g == generation;
        if own && !full {
            full = !tell(link, &Message::about(kind, index), None) && link.is_alive();
            return full;
        }
        own || l.generation() == g && l.is_alive()
    });
    if !full {
        watch_for(link, libc::EPOLLIN);
    }
}

/// Tells the peer to look at the words of stream `index`.
pub fn attention(link: &'static Link, index: u32) {
    match link.twin() {
        Some(_) if Carrier::of(link).is_driven => {}
        Some(twin) => jobs::add(Job::Look(twin, index)),
        None => tell_in_time(link, Kind::Attention, index),
    }
    if !link.is_alive() {
        jobs::add(Job::Reap(link));
    }
}

/// The peer's slot sleeps and this end has no doorbell for it: its own process must ring.
pub fn ask_wake(link: &'static Link, slot: u32) {
    tell_in_time(link, Kind::Wake, slot);
}

/// Held over a fork.
pub const HELD: &dyn OverFork = &UNTOLD;

/// In the child: forgets the parent's records.
pub fn after_fork() {
    if let Some(mut list) = UNTOLD.lock() {
        list.clear();
    }
}
