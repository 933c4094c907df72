//! What is to be done later, or by the control thread only.

use super::links::{look, lose};
use super::*;
use crate::rendezvous::hosts;
use crate::sockets::full::Epoch;
use crate::verbs;

/// Something to do later, or by the control thread only.
pub(super) enum Job {
    /// Look at stream `index` of a link with oneself.
    Look(&'static Link, u32),
    /// A non-blocking writer found the ring full.
    Full(Watch),
    /// The peer of a stream to another host waits for the program to read TCP up to the switch.
    Far(Far),
    /// Ask over a new link for all that look for a peer.
    Ask(&'static Link),
    /// Close the link if nothing uses it any more.
    Reap(&'static Link),
    /// Look for the other end of a connection on another host: its socket and generation.
    Seek(&'static Sock, u32),
    /// Go on with the switch, or the way back, of a stream to another host: its socket and
    /// generation.
    Advance(&'static Sock, u32),
    /// The same, not before then.
    AdvanceLater(&'static Sock, u32, u64),
    /// Stream of a lost link, its socket and generation, and until when TCP may tell what became of
    /// the peer.
    Lost(&'static Link, u32, &'static Sock, u32, u64),
    /// A connection that lingers, with its generation, has nothing left to send. Then, or when so
    /// much time is over, it is closed.
    Bury(&'static Sock, u32, u64),
}

pub(super) struct Far {
    sock: &'static Sock,
    generation: u32,
    /// What had been read from TCP, and when that is looked at again.
    read: u64,
    look: u64,
    /// The end of all patience.
    until: u64,
}

/// The watch over the reader of a ring that was full.
pub(super) struct Watch {
    sock: &'static Sock,
    ring: Epoch,
    /// What it had read at the last look, and when to look again; 0: at once, for the first time.
    seen: u64,
    due: u64,
}

pub(super) static JOBS: Guarded<Vec<Job>> = Guarded::new(Vec::new());

pub(super) fn add(job: Job) {
    if let Some(mut jobs) = JOBS.lock() {
        jobs.push(job);
    }
    poke();
}

/// The other end of a connection is on another host: this thread looks for it there.
pub fn seek(sock: &'static Sock) {
    add(Job::Seek(sock, sock.generation.load(Ordering::Acquire)));
}

/// The stream of a socket to another host may go on, or back.
pub fn advance(sock: &'static Sock) {
    add(Job::Advance(sock, sock.generation.load(Ordering::Acquire)));
}

/// The same in a moment: there is no event for what it waits for.
pub fn advance_soon(sock: &'static Sock) {
    advance_at(sock, sys::now_ns() + SOON_NS);
}

/// The same at that time (`sys::now_ns`), or sooner.
pub fn advance_at(sock: &'static Sock, due: u64) {
    let generation = sock.generation.load(Ordering::Acquire);
    let Some(mut list) = JOBS.lock() else { return };
    let known = list.iter().any(|job| matches!(job, Job::AdvanceLater(s, g, at) if core::ptr::eq(*s, sock) && *g == generation && *at <= due));
    if !known {
        list.push(Job::AdvanceLater(sock, generation, due));
        drop(list);
        poke();
    }
}

/// See [`advance_soon`].
const SOON_NS: u64 = 1_000_000;

/// A connection that lingers has nothing left to send: its descriptor is closed, under no lock.
pub fn bury(sock: &'static Sock) {
    add(Job::Bury(sock, sock.generation.load(Ordering::Acquire), 0));
}

/// The same at that time (`sys::now_ns`), whatever the peer still has to say.
pub fn bury_at(sock: &'static Sock, due: u64) {
    let generation = sock.generation.load(Ordering::Acquire);
    let Some(mut list) = JOBS.lock() else { return };
    list.push(Job::Bury(sock, generation, due));
    drop(list);
    poke();
}

/// A non-blocking writer found the ring full: if the reader does not read, the stream is demoted.
pub fn watch_full(sock: &'static Sock) {
    // What the reader has read by now; callers keep the direction's memory by a lock or a pin.
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

/// Before a switch the program has so much of TCP to read that the peer must wait. It waits no
/// longer than for a full ring while nothing is read, and not so long that the link's timer would
/// take it for lost.
pub fn watch_far(sock: &'static Sock) {
    let generation = sock.generation.load(Ordering::Acquire);
    let Some(mut list) = JOBS.lock() else { return };
    let known = list.iter().any(|j| matches!(j, Job::Far(far) if core::ptr::eq(far.sock, sock) && far.generation == generation));
    if !known {
        let now = sys::now_ns();
        list.push(Job::Far(Far {
            sock,
            generation,
            read: sock.rx.kernel_bytes(),
            look: now + wait::FULL_REMOTE_NS,
            until: now + FAR_NS,
        }));
        drop(list);
        poke();
    }
}

/// See [`watch_far`].
const FAR_NS: u64 = 2_000_000_000;

impl Far {
    /// In how long to look again, if at all.
    fn look(&mut self, now: u64) -> Option<u64> {
        let sock = self.sock;
        let stale = sock.generation.load(Ordering::Acquire) != self.generation;
        if stale || !remote::is_far(sock) {
            return None;
        }
        if now >= self.look {
            let read = sock.rx.kernel_bytes();
            if read == self.read || now >= self.until {
                demote::demote(sock, Which::Both, Reason::RingFull);
                return None;
            }
            (self.read, self.look) = (read, now + wait::FULL_REMOTE_NS);
        }
        Some(self.look - now)
    }
}

/// What the reader of a full ring has done.
enum Reader {
    /// Nothing.
    Stuck,
    /// There is room, or nobody waits for it any more.
    Reads,
    /// It has read, to here, but not enough for room.
    ReadAndStopped(u64),
}

fn reader_since(sock: &'static Sock, seen: u64) -> Reader {
    let Ok(_section) = sock.tx.lock.enter() else {
        return Reader::Reads;
    };
    let mut did = Reader::Reads;
    if let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) {
        // Nobody may have heard of what another host's reader has read.
        verbs::drive(link);
        let head = dir.rx.head.read().offset;
        let waiters = dir.tx_wishes.waiters.load(Ordering::SeqCst);
        if head == seen {
            did = Reader::Stuck;
        } else if waiters != 0 && !crate::readiness::has_room(sock) {
            did = Reader::ReadAndStopped(head);
        } else {
            // A reader rings at half a ring; there is room before that.
            wake::own(link, waiters, sock.index.load(Ordering::Relaxed));
        }
    }
    did
}

impl Watch {
    /// In how long to look again, if at all. A reader that stands still is found when the patience
    /// with it is over, at most twice that time after the call that found the ring full.
    fn look(&mut self, now: u64) -> Option<u64> {
        let Self { sock, ring, .. } = *self;
        let patience = wait::full_ns(sock);
        if self.due == 0 {
            self.seen = sock.full.watch(ring)?;
            self.due = now + patience;
        }
        let seen = sock.full.look(ring)?;
        if sock.tx.state() != State::Link && sock.full.end(ring, seen) {
            return None;
        }
        // It has less of it after a switch.
        self.due = self.due.min(now + patience);
        if now < self.due {
            return Some((self.due - now).min(wait::FULL_REMOTE_NS));
        }
        if seen == self.seen {
            match reader_since(sock, seen) {
                Reader::Stuck => demote::demote(sock, Which::Both, Reason::RingFull),
                Reader::Reads => {}
                Reader::ReadAndStopped(head) => sock.full.moves(ring, seen, head),
            }
            if sock.full.end(ring, seen) {
                return None;
            }
        }
        // It has read since, and its patience begins anew: it may have stopped for good this time.
        (self.seen, self.due) = (sock.full.look(ring)?, now + patience);
        Some(patience)
    }
}

/// Does what is due; the time until the next thing is.
pub(super) fn do_jobs() -> Option<u64> {
    let mut due = JOBS
        .lock()
        .map(|mut list| core::mem::take(&mut *list))
        .unwrap_or_default();
    let now = sys::now_ns();
    let mut next = None;
    due.retain_mut(|job| match job {
        Job::Look(link, index) => {
            look(link, *index);
            false
        }
        Job::Ask(link) => {
            if link.is_alive() {
                crate::rendezvous::on_link_up(link);
            }
            false
        }
        Job::Reap(link) => {
            link.close_if_unused();
            false
        }
        Job::Seek(sock, generation) => {
            if sock.generation.load(Ordering::Acquire) == *generation {
                let _turn = own_fds::Turn::begin();
                hosts::begin(sock, *generation);
            }
            false
        }
        Job::Advance(sock, generation) => {
            if sock.generation.load(Ordering::Acquire) == *generation {
                remote::advance(sock);
            }
            false
        }
        Job::AdvanceLater(sock, generation, due) => {
            if now < *due {
                let left = *due - now;
                next = Some(next.map_or(left, |n: u64| n.min(left)));
                return true;
            }
            if sock.generation.load(Ordering::Acquire) == *generation {
                remote::advance(sock);
            }
            false
        }
        Job::Bury(sock, generation, due) => {
            if sock.generation.load(Ordering::Acquire) != *generation {
                return false;
            }
            if now < *due {
                let left = *due - now;
                next = Some(next.map_or(left, |n: u64| n.min(left)));
                return true;
            }
            crate::sockets::parting::bury(sock, *due != 0);
            false
        }
        Job::Lost(link, index, sock, generation, deadline) => {
            if sock.generation.load(Ordering::Acquire) != *generation
                || lose(link, *index, sock, now >= *deadline)
            {
                return false;
            }
            next = Some(next.map_or(1_000_000, |n: u64| n.min(1_000_000)));
            true
        }
        Job::Far(far) => {
            let left = far.look(now);
            next = next.into_iter().chain(left).min();
            left.is_some()
        }
        Job::Full(watch) => {
            let left = watch.look(now);
            next = next.into_iter().chain(left).min();
            left.is_some()
        }
    });
    if let Some(mut list) = JOBS.lock() {
        if !list.is_empty() {
            // Came up meanwhile.
            next = Some(0);
        }
        list.append(&mut due);
    }
    next
}
