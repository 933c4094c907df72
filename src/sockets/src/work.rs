//! What the control thread does for sockets: the jobs that [`jobs`](super::jobs) has for it, and
//! what the news of their TCP ask for.

use crate::demote::{self, Which};
use crate::jobs::{self, Far, Job, Watch};
use crate::peer_end::lose;
use crate::resend::{self, Resent};
use crate::socket::{Socket, State, sock_of};
use crate::{events, linger, meeting, remote, trigger, trim, wait, wake};
use core::sync::atomic::Ordering;
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_stats::Reason;
use sluice_transport::FULL_REMOTE_NS;
use sluice_transport::links;

/// In how long to look again, if at all.
fn look_at_far(far: &mut Far, now: u64) -> Option<u64> {
    let sock = far.sock;
    let stale = sock.generation.load(Ordering::Acquire) != far.generation;
    if stale || !remote::is_far(sock) {
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

/// What the reader of a full ring has done.
enum Reader {
    /// Nothing.
    Stuck,
    /// There is room, or nobody waits for it any more.
    Reads,
    /// It has read, to here, but not enough for room.
    ReadAndStopped(u64),
}

fn reader_since(sock: &'static Socket, seen: u64) -> Reader {
    let Ok(_section) = sock.tx.lock.enter() else {
        return Reader::Reads;
    };
    let mut did = Reader::Reads;
    if let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) {
        // Nobody may have heard of what another host's reader has read.
        links::drive(link);
        let head = dir.rx.head.read().offset;
        let waiters = dir.tx_wishes.waiters.load(Ordering::SeqCst);
        if head == seen {
            did = Reader::Stuck;
        } else if waiters != 0 && !events::has_room(sock) {
            did = Reader::ReadAndStopped(head);
        } else {
            // A reader rings at half a ring; there is room before that.
            wake::own(link, waiters, sock.index.load(Ordering::Relaxed));
        }
    }
    did
}

/// In how long to look again, if at all. A reader that stands still is found when the patience
/// with it is over, at most twice that time after the call that found the ring full.
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
    // It has less of it after a switch.
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
    // It has read since, and its patience begins anew: it may have stopped for good this time.
    (watch.seen, watch.due) = (sock.full.look(ring)?, now + patience);
    Some(patience)
}

/// Does what is due; the time until the next thing is.
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

/// The peer has changed the words of a stream: goes along with a demotion.
pub fn look(link: &'static Link, index: u32) {
    // It may have left a stream that this end had left before.
    trim::returned(link);
    let Some(sock) = sock_of(link, index) else {
        return;
    };
    demote::follow_tx(sock);
    demote::follow_rx(sock);
}

/// TCP of a watched socket has news: `events` of epoll.
pub fn on_tcp(sock: &'static Socket, events: u32) {
    if sock.fds.load(Ordering::Acquire) == 0 {
        return;
    }
    if sock.carrier().ends_by_record {
        remote::advance(sock);
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
            // The other half may still wait for news of TCP.
            if sock.rx.state() == State::Plain {
                jobs::unwatch(sock);
            } else {
                jobs::watch(sock);
            }
        }
    }
    // Sleepers of blocking calls do not watch TCP themselves.
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
