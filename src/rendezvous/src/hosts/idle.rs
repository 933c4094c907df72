//! Idle connections give their rings back. Registered memory stays pinned, so many idle connections
//! would hold much of it. They go back to TCP, and are upgraded again when they move bytes.

use super::Up;
use core::sync::atomic::Ordering;
use sluice_sockets::demote::{self, Which};
use sluice_sockets::socket::{self, Socket, State};
use sluice_stats::Reason;

/// Streams of a link that may stay on it however long they are idle.
const FEW: u32 = 4;
/// Idle time after which others go back: at least this, and less than twice as much.
const REST_NS: u64 = 2_000_000_000;

/// The streams of one link, as they were at the last look.
#[derive(Debug, Default)]
pub struct Rest {
    /// By number: the generation of its socket, and the bytes that it had moved by links.
    seen: Vec<(u16, u32, u64)>,
    due: u64,
}

impl Rest {
    /// Takes streams that moved nothing since the last look back to TCP. Returns when to look
    /// again, if ever.
    pub fn look(up: &mut Up, now: u64) -> Option<u64> {
        let [near, _] = up.endpoint.links().filter(|_| up.stands && !up.lost)?;
        // The endpoint itself counts as one.
        if near.stream_count() <= FEW + 1 {
            up.rest.due = 0;
            return None;
        }
        if up.rest.due == 0 {
            up.rest.due = now + REST_NS;
        }
        if now < up.rest.due {
            return Some(up.rest.due);
        }
        up.rest.due = now + REST_NS;
        let before = core::mem::take(&mut up.rest.seen);
        let mut many = near.stream_count() - (FEW + 1);
        for stream in up.endpoint.streams() {
            let Some(sock) = socket::sock_of(near, u32::from(stream)) else {
                continue;
            };
            let generation = sock.generation.load(Ordering::Acquire);
            let now = (stream, generation, sock.linked());
            if many > 0 && before.contains(&now) && is_quiet(sock) {
                many -= 1;
                demote::demote(sock, Which::Both, Reason::Idle);
            } else {
                up.rest.seen.push(now);
            }
        }
        Some(up.rest.due)
    }
}

/// True if nothing is under way, as far as can be seen without a lock.
pub(super) fn is_quiet(sock: &'static Socket) -> bool {
    sock.rx.state() == State::Link
        && sock.tx.state() == State::Link
        && sock.upgraded.load(Ordering::Relaxed)
        && sluice_sockets::counts::unread(sock) == 0
}
