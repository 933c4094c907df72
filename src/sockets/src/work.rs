//! The control thread's work on sockets.
//!
//! | function | called | does |
//! |---|---|---|
//! | [`do_jobs`] | in every turn of the thread | the jobs of [`jobs`](super::jobs) that are due |
//! | [`answer_calls`] | in every turn | demotes the streams that relatives want on TCP |
//! | [`look`] | when a link's peer asks for it | follows a demotion by the peer |
//! | [`on_tcp`] | when TCP of a watched socket has news | goes on with a re-send, wakes threads |
//!
//! These functions are called with no lock held, and take a socket's locks for one step at a time.
//! They do not wait for a peer or for room in TCP, since one thread serves all connections: what is
//! unfinished stays a job, or goes on with the next event.
//!
//! The program may have closed the socket meanwhile, and its structure may be another connection's.
//! A job compares the generation first, or, for a watch, the epoch of the ring; an event of TCP is
//! only a hint, which is right for any connection.

use crate::demote::{self, Which};
use crate::fork_shared::{self, Family};
use crate::jobs::{self, Far, Job, Watch};
use crate::peer_end::lose;
use crate::resend::{self, Resent};
use crate::socket::{self, Socket, State, sock_of};
use crate::{carrier, events, linger, meeting, trigger, trim, wait, wake};
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_stats::Reason;
use sluice_transport::FULL_REMOTE_NS;
use sluice_transport::links;

/// Between hosts: the peer waits until the program has read TCP up to the switch. Demotes the
/// stream if the program reads nothing, or not enough in time. Returns the ns until the next look;
/// `None`: no further look is needed.
fn look_at_far(far: &mut Far, now: u64) -> Option<u64> {
    let sock = far.sock;
    let stale = sock.generation.load(Ordering::Acquire) != far.generation;
    if stale || !carrier::is_far(sock) {
        return None;
    }
    if now >= far.look {
        let read = sock.rx.kernel_bytes();
        if read == far.read || now >= far.until {
            demote::demote(sock, Which::Both, Reason::RingFull);
            return None;
        }
        (far.read, far.look) = (read, now + FULL_REMOTE_NS);
    }
    Some(far.look - now)
}

/// What the reader of a full ring has done since the last look.
enum Reader {
    /// It has read nothing.
    Stuck,
    /// It has made room, or no thread waits for room any more.
    Reads,
    /// It has read up to this offset, which does not make enough room.
    ReadAndStopped(u64),
}

/// Looks what the reader, which stood at `seen`, has done since. If there is room, wakes the
/// threads that wait for it.
fn reader_since(sock: &'static Socket, seen: u64) -> Reader {
    let Ok(_section) = sock.tx.lock.enter() else {
        return Reader::Reads;
    };
    let mut did = Reader::Reads;
    if let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) {
        // Between hosts the head moves only while some thread drives the endpoint.
        links::drive(link);
        let head = dir.rx.head.read().offset;
        let waiters = dir.tx_wishes.waiters.load(Ordering::SeqCst);
        if head == seen {
            did = Reader::Stuck;
        } else if waiters != 0 && !events::has_room(sock) {
            did = Reader::ReadAndStopped(head);
        } else {
            // The reader rings only once half the ring is free, and there is room before that.
            wake::own(link, waiters, sock.index.load(Ordering::Relaxed));
        }
    }
    did
}

/// Demotes the stream if the reader of its full ring has stopped for the patience that `full_ns`
/// allows. Such a reader is found at most twice that time after the call that found the ring full.
/// Returns the ns until the next look; `None`: the watch is over.
fn look_at_reader(watch: &mut Watch, now: u64) -> Option<u64> {
    let Watch { sock, ring, .. } = *watch;
    let patience = wait::full_ns(sock);
    if watch.due == 0 {
        watch.seen = sock.full.watch(ring)?;
        watch.due = now + patience;
    }
    let seen = sock.full.look(ring)?;
    if sock.tx.state() != State::Link && sock.full.end(ring, seen) {
        return None;
    }
    // The patience is shorter once the switch is over.
    watch.due = watch.due.min(now + patience);
    if now < watch.due {
        return Some((watch.due - now).min(FULL_REMOTE_NS));
    }
    if seen == watch.seen {
        match reader_since(sock, seen) {
            Reader::Stuck => demote::demote(sock, Which::Both, Reason::RingFull),
            Reader::Reads => {}
            Reader::ReadAndStopped(head) => sock.full.moves(ring, seen, head),
        }
        if sock.full.end(ring, seen) {
            return None;
        }
    }
    // The reader has read since. The patience begins anew, since it may have stopped after that.
    (watch.seen, watch.due) = (sock.full.look(ring)?, now + patience);
    Some(patience)
}

/// Does the jobs that are due, and returns the ns until the next one is.
pub fn do_jobs() -> Option<u64> {
    let mut due = jobs::take();
    let now = sys::now_ns();
    let mut next = None;
    due.retain_mut(|job| match job {
        Job::Look(link, index) => {
            look(link, *index);
            false
        }
        Job::Ask(link) => {
            if link.is_alive() && !link.is_foreign() {
                trigger::new_link();
            }
            false
        }
        Job::Reap(link) => {
            link.close_if_unused();
            false
        }
        Job::Seek(sock, generation) => {
            if sock.generation.load(Ordering::Acquire) == *generation {
                meeting::seek(sock, *generation);
            }
            false
        }
        Job::Advance(sock, generation) => {
            if sock.generation.load(Ordering::Acquire) == *generation {
                carrier::advance(sock);
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
                carrier::advance(sock);
            }
            false
        }
        Job::CloseWhenDrained(sock, generation, due) => {
            if sock.generation.load(Ordering::Acquire) != *generation {
                return false;
            }
            if now < *due {
                let left = *due - now;
                next = Some(next.map_or(left, |n: u64| n.min(left)));
                return true;
            }
            linger::close_when_drained(sock, *due != 0);
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
            let left = look_at_far(far, now);
            next = next.into_iter().chain(left).min();
            left.is_some()
        }
        Job::Full(watch) => {
            let left = look_at_reader(watch, now);
            next = next.into_iter().chain(left).min();
            left.is_some()
        }
    });
    if jobs::put_back(due) {
        next = Some(0);
    }
    next
}

/// Demotes the streams of this process that relatives want on TCP (`inherited`).
pub fn answer_calls() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    let calls = fork_shared::calls();
    if SEEN.swap(calls, Ordering::Relaxed) == calls {
        return;
    }
    socket::for_all(|sock| {
        let is_wanted = sock.is_accelerated()
            && !sock.is_inherited()
            && sock.family().is_some_and(Family::is_wanted);
        if is_wanted {
            demote::demote(sock, Which::Both, Reason::Fork);
        }
    });
}

/// The peer asks this end to look at the words of a stream: follows a demotion, if there was one.
pub fn look(link: &'static Link, index: u32) {
    // The peer may have left a stream that this end left before, so its rings may be unused now.
    trim::returned(link);
    let Some(sock) = sock_of(link, index) else {
        return;
    };
    demote::follow_tx(sock);
    demote::follow_rx(sock);
}

/// TCP of a watched socket has news, `events` of epoll: goes on with a re-send or, between hosts,
/// with the switch or the demotion, and wakes threads in blocking calls.
pub fn on_tcp(sock: &'static Socket, events: u32) {
    if sock.fds.load(Ordering::Acquire) == 0 {
        return;
    }
    if sock.carrier().ends_by_record {
        carrier::advance(sock);
    }
    if events & libc::EPOLLOUT as u32 != 0
        && sock.tx.state() == State::Resending
        && let Ok(_section) = sock.tx.lock.enter()
    {
        let resent = if sock.tx.state() == State::Resending {
            resend::now(sock)
        } else {
            Resent::NoRoom
        };
        if !matches!(resent, Resent::NoRoom | Resent::Held) {
            // If rx is off TCP, its threads still need to hear of a FIN or an RST.
            if sock.rx.state() == State::Plain {
                jobs::unwatch(sock);
            } else {
                jobs::watch(sock);
            }
        }
    }
    // A thread that sleeps in a blocking call does not watch TCP itself.
    for half in [&sock.rx, &sock.tx] {
        if half.state() == State::Plain {
            continue;
        }
        let Ok(_section) = half.lock.enter() else {
            continue;
        };
        if let (Some(dir), Some(link)) = (half.dir(), sock.link()) {
            let waiters = if core::ptr::eq(half, &sock.rx) {
                &dir.rx_wishes.waiters
            } else {
                &dir.tx_wishes.waiters
            };
            wake::own_threads(
                link,
                waiters.load(Ordering::Relaxed),
                sock.index.load(Ordering::Relaxed),
            );
        }
    }
}
