//! Room for one connection more, where little memory may be locked: idle streams give theirs up at
//! once, and then those that have more than their share.
//!
//! A connection that finds no room waits for a second, with a look each few milliseconds. A look
//! takes streams back to TCP. The next one sees what that has freed, since the peer has a word in
//! it, which takes a round trip.

use super::idle::is_quiet;
use super::{ASK_NS, Hosts, Seek};
use core::sync::atomic::Ordering;
use sluice_fabric::bucket::{Bucket, Rate};
use sluice_fabric::sys;
use sluice_fabric::verbs::cm::Key;
use sluice_sockets::demote::{self, Which};
use sluice_sockets::socket::{self, Half, Socket, State};
use sluice_stats::Reason;
use sluice_transport::verbs::memory;

/// The time between two looks.
const LOOK_NS: u64 = 10_000_000;
/// A stream that has moved nothing for so long is idle.
const IDLE_NS: u64 = 20_000_000;
/// How long a connection waits for room.
const PATIENCE_NS: u64 = 1_000_000_000;
/// So many streams give their memory up in one look for each connection that waits.
const FOR_EACH: usize = 2;
/// Streams that may give their memory up: where more connections take turns than there is room for,
/// most are better off on TCP.
const STREAMS: Rate = Rate {
    most: 200,
    per_second: 100,
};

/// The connections that wait for room, and what streams had moved at the last look.
#[derive(Debug, Default)]
pub struct Room {
    /// Until when some connection waits.
    until: u64,
    /// Connections for which this end asks, and over which link.
    waiting: Vec<(Seek, Key, u64)>,
    /// What each stream had moved at the last look, and since when it has moved no more.
    seen: Vec<(Seen, u64)>,
    due: u64,
    /// The last turn of the control thread had a look.
    looked: bool,
}

static BUDGET: Bucket = Bucket::new();

impl Room {
    /// Whether there may be room by now for questions that found none.
    pub(crate) fn has_looked(&self) -> bool {
        self.looked
    }

    /// How many connections wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// Link, number of a stream there, generation of its socket, and the bytes that it has moved by
/// links.
type Seen = (Key, u16, u32, u64);

/// A stream that can give its memory up.
struct Stream {
    sock: &'static Socket,
    idle: bool,
    len: u64,
}

impl Hosts {
    /// A peer's question has found no room.
    pub(crate) fn wants_room(&mut self) {
        self.room.until = sys::now_ns() + PATIENCE_NS;
    }

    /// The connection has found no room to ask over this link: it asks when there is some.
    pub(crate) fn waits_for_room(&mut self, seek: Seek, key: Key) {
        self.room.until = sys::now_ns() + PATIENCE_NS;
        let until = self.room.until;
        self.room.waiting.push((seek, key, until));
    }

    /// Whether the connection waits for room.
    pub(crate) fn is_waiting_for_room(&self, seek: &Seek) -> bool {
        self.room.waiting.iter().any(|(other, ..)| other.is(seek))
    }

    /// Makes room while somebody waits for it. Returns when to look again.
    pub(crate) fn make_room(&mut self, now: u64) -> Option<u64> {
        if now >= self.room.until && self.room.waiting.is_empty() {
            if self.room.due != 0 {
                self.room = Room::default();
            }
            return None;
        }
        self.room.looked = now >= self.room.due;
        if !self.room.looked {
            return Some(self.room.due);
        }
        let first = core::mem::replace(&mut self.room.due, now + LOOK_NS) == 0;
        let mut is_full = false;
        for (seek, key, until) in core::mem::take(&mut self.room.waiting) {
            if !seek.is_open() {
                continue;
            }
            if is_full && now < until {
                self.room.waiting.push((seek, key, until));
                continue;
            }
            match self.ask(seek, key, ASK_NS) {
                Ok(()) => {}
                Err(Some(Reason::MemoryLimit)) if now < until => {
                    is_full = true;
                    self.room.waiting.push((seek, key, until));
                }
                Err(Some(reason)) => seek.stays(reason),
                // The link is gone.
                Err(None) => self.dial(seek, None),
            }
        }
        let questions = self.questions.iter().filter(|q| q.finds_no_room).count();
        let wanted = self.room.waiting.len() + questions;
        self.look_for_room(if first { 0 } else { wanted * FOR_EACH });
        Some(self.room.due)
    }

    /// Takes up to `most` streams back to TCP: idle ones, then those that have more than their
    /// share, the longest rings first. Those that are on their way back count.
    fn look_for_room(&mut self, most: usize) {
        let before = core::mem::take(&mut self.room.seen);
        let (mut streams, mut leaving, time) = (Vec::new(), 0, sys::now_ns());
        for up in self.ups.iter().filter(|up| up.stands && !up.lost) {
            up.endpoint.trim();
            let Some([near, _]) = up.endpoint.links() else {
                continue;
            };
            for stream in up.endpoint.streams() {
                let Some(sock) = socket::sock_of(near, u32::from(stream)) else {
                    leaving += 1;
                    continue;
                };
                let generation = sock.generation.load(Ordering::Acquire);
                let now = (up.key, stream, generation, sock.linked());
                let since = before.iter().find(|(seen, _)| *seen == now);
                let since = since.map_or(time, |(_, since)| *since);
                let idle = time >= since + IDLE_NS && is_quiet(sock);
                leaving += usize::from(sock.tx.state() == State::Resending);
                self.room.seen.push((now, since));
                if sock.rx.state() == State::Link && sock.tx.state() == State::Link {
                    let len = |half: &Half| half.ring().map_or(0, |ring| ring.len());
                    let len = len(&sock.rx).max(len(&sock.tx));
                    streams.push(Stream { sock, idle, len });
                }
            }
        }
        let share = u64::from(memory::share());
        streams.retain(|stream| stream.idle || stream.len > share);
        streams.sort_by_key(|stream| (!stream.idle, core::cmp::Reverse(stream.len)));
        // Some may wait for a peer that does not answer.
        let most = most.saturating_sub(leaving).max(most.min(1));
        for Stream { sock, idle, .. } in streams.iter().take(most) {
            if !BUDGET.spend(STREAMS, 1, sys::now_ns()) {
                break;
            }
            let reason = if *idle {
                Reason::Idle
            } else {
                Reason::MakesRoom
            };
            demote::demote(sock, Which::Both, reason);
        }
    }
}
