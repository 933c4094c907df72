//! What a connection knows of the path to another host: how long a round trip takes, and how fast
//! TCP was. The length of its ring follows from both, and whether a link is faster than TCP.
//!
//! Over a *far* path, of [`FAR_NS`] and more, the bytes under way decide how fast a stream is, by
//! TCP as well as by a link. So a connection leaves TCP there when TCP's rate has stopped growing,
//! and goes back for good if the link turns out to be slower. Over any path it goes back once to
//! get a longer ring, if a longer one would carry more.

use crate::socket::Socket;
use crate::tcp;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sluice_fabric::sys;
use sluice_transport::verbs::pace;
pub use sluice_transport::verbs::pace::FAR_NS;

/// TCP's rate has stopped growing when it is less than 5/4 of what it was in the look before.
const GROWS: (u64, u64) = (5, 4);
/// A rate is measured over so many round trips at least, and over so many ns.
const ROUND_TRIPS: u64 = 4;
/// See [`ROUND_TRIPS`].
const LEAST_NS: u64 = 1_000_000;

/// What is unread in a ring of so many bytes fits into TCP's buffers, however small they are. A
/// longer ring is one process's alone.
pub const RING_SHORT: u64 = 256 << 10;

/// See the [module](self). Used by one thread at a time: the one that plans the next try.
#[derive(Debug, Default)]
pub struct Path {
    /// The shortest round trip, in ns; 0: not known.
    rtt_ns: AtomicU64,
    /// The highest rate of TCP so far, read and written, in bytes per second; 0: not known.
    rates: [AtomicU64; 2],
    /// Both together at the last look.
    rate: AtomicU64,
    /// The program has written more than TCP could carry.
    is_full: AtomicBool,
    /// What had been read from TCP and what the peer had acknowledged when the measurement in
    /// progress began, and when that was; 0: none is.
    from: [AtomicU64; 2],
    since_ns: AtomicU64,
    /// The length that the ring is to have, since a shorter one did not do; 0: none has been
    /// too short.
    ring_len: AtomicU32,
    /// The stream in use is being given up, through no fault of the connection's.
    comes_back: AtomicBool,
}

impl Path {
    /// For a new connection.
    pub(crate) fn forget(&self) {
        let [a, b] = &self.rates;
        let [c, d] = &self.from;
        for word in [&self.rtt_ns, &self.rate, &self.since_ns, a, b, c, d] {
            word.store(0, Ordering::Relaxed);
        }
        self.ring_len.store(0, Ordering::Relaxed);
        self.comes_back.store(false, Ordering::Relaxed);
        self.is_full.store(false, Ordering::Relaxed);
    }

    /// Sets whether the stream in use is given up through no fault of the connection's. Returns
    /// what was set before.
    pub(crate) fn set_comes_back(&self, comes: bool) -> bool {
        self.comes_back.swap(comes, Ordering::Relaxed)
    }

    /// Begins to measure TCP's rate, from `bytes` read and written on.
    fn measure(&self, bytes: [u64; 2], now: u64) {
        for (from, bytes) in self.from.iter().zip(bytes) {
            from.store(bytes, Ordering::Relaxed);
        }
        self.since_ns.store(now, Ordering::Relaxed);
    }

    /// TCP has read and written `bytes` by `now`. Returns whether its rate is known: a near path
    /// needs none.
    fn look(&self, rtt_ns: u64, bytes: [u64; 2], now: u64) -> bool {
        self.rtt_ns.store(rtt_ns, Ordering::Relaxed);
        let (far, since) = (rtt_ns >= FAR_NS, self.since_ns.load(Ordering::Relaxed));
        let took = now.saturating_sub(since);
        if since == 0 || took < LEAST_NS || far && took < ROUND_TRIPS * rtt_ns {
            if since == 0 {
                self.measure(bytes, now);
            }
            return !far;
        }
        let mut sum = 0;
        for ((rate, from), bytes) in self.rates.iter().zip(&self.from).zip(bytes) {
            let moved = u128::from(bytes.saturating_sub(from.load(Ordering::Relaxed)));
            let now = (moved * 1_000_000_000 / u128::from(took.max(1))) as u64;
            rate.fetch_max(now, Ordering::Relaxed);
            sum += now;
        }
        self.measure(bytes, now);
        let before = self.rate.swap(sum, Ordering::Relaxed);
        !far || before != 0 && sum * GROWS.1 < before * GROWS.0
    }

    /// The length of a ring for what this end reads, at least `least` and at most `most` bytes. A
    /// ring of two round trips' bytes is never full, since credit comes back by parts of it.
    fn ring_len(&self, least: u32, most: u32) -> u32 {
        let [read, _] = &self.rates;
        let (rate, rtt) = (
            read.load(Ordering::Relaxed),
            self.rtt_ns.load(Ordering::Relaxed),
        );
        let needs = (u128::from(rate) * u128::from(rtt) * 2 / 1_000_000_000) as u64;
        let needs = needs.min(u64::from(most)) as u32;
        let wants = self.ring_len.load(Ordering::Relaxed);
        needs.next_power_of_two().max(wants).min(most).max(least)
    }
}

/// Looks at TCP before the connection leaves it. Returns false if TCP may still become faster over
/// this path: then the next try decides.
pub fn is_known(sock: &Socket) -> bool {
    let tcp = tcp::path(sock.fd.load(Ordering::Relaxed));
    sock.path.is_full.fetch_or(tcp.has_more, Ordering::Relaxed);
    let moved = [sock.rx.kernel_bytes(), tcp.acked];
    sock.path.look(tcp.rtt_ns, moved, sys::now_ns())
}

/// The connection goes on by TCP: what that carries from now on tells its rate.
pub(crate) fn goes_on(sock: &Socket) {
    let tcp = tcp::path(sock.fd.load(Ordering::Relaxed));
    let moved = [sock.rx.kernel_bytes(), tcp.acked];
    sock.path.measure(moved, sys::now_ns());
}

/// Whether the path is far.
pub fn is_far(sock: &Socket) -> bool {
    rtt_ns(sock) >= FAR_NS
}

/// The shortest round trip, in ns; 0: not known.
pub fn rtt_ns(sock: &Socket) -> u64 {
    sock.path.rtt_ns.load(Ordering::Relaxed)
}

/// Whether the connection's ring to another host is too long to be shared with a relative.
pub fn has_long_ring(sock: &Socket) -> bool {
    let len = sock.rx.ring().map_or(0, |ring| ring.len());
    len > RING_SHORT && sock.carrier().ends_by_record
}

/// What a link must know of the path.
pub fn of(sock: &Socket) -> pace::Path {
    let [_, written] = &sock.path.rates;
    pace::Path {
        rtt_ns: rtt_ns(sock),
        tcp_rate: written.load(Ordering::Relaxed),
        is_full: sock.path.is_full.load(Ordering::Relaxed),
    }
}

/// The program writes as fast as it can: what TCP carries from now on is its full rate. Returns
/// false if it was that before.
pub fn begins_to_count(sock: &Socket) -> bool {
    !sock.path.is_full.swap(true, Ordering::Relaxed)
}

/// The length of the ring that this end lends to another host, where a ring of `least` bytes is
/// what every stream gets, and `most` what may be had. Bytes that lie in the ring of a process of
/// several must come by TCP at a hand-over, which has room for short rings only.
pub(crate) fn ring_len(sock: &Socket, least: u32, most: u32) -> u32 {
    if sock.is_shared() {
        return least;
    }
    sock.path.ring_len(least, most)
}

/// The ring proved too short for the path, and a stream with one of `len` bytes is to follow.
pub fn wants_ring(sock: &Socket, len: u32) {
    sock.path.ring_len.store(len, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const RING_MOST: u32 = 4 << 20;

    /// Looks at each of these sums of read bytes, 100 ms apart. Returns at which one the rate was
    /// known.
    fn known_at(path: &Path, rtt: u64, read: &[u64]) -> Option<usize> {
        let mut now = MS;
        read.iter().position(|bytes| {
            now += 100 * MS;
            path.look(rtt, [*bytes, 0], now)
        })
    }

    #[test]
    fn a_near_path_is_known_at_once() {
        assert_eq!(known_at(&Path::default(), FAR_NS - 1, &[1]), Some(0));
    }

    #[test]
    fn tcp_is_waited_for_while_its_rate_grows_over_a_far_path() {
        let (path, mb) = (Path::default(), 1_000_000);
        let sums = [mb, 2 * mb, 4 * mb, 8 * mb, 13 * mb - 1];
        assert_eq!(known_at(&path, 10 * MS, &sums), Some(4));
        // 40 MB/s and then 50 MB/s.
        assert_eq!(path.rates[0].load(Ordering::Relaxed), 49_999_990);
        assert_eq!(path.ring_len(4096, RING_MOST), 1 << 20);
        assert_eq!(path.ring_len(4096, 512 << 10), 512 << 10);
        assert_eq!(path.ring_len(2 << 20, RING_MOST), 2 << 20);
    }

    #[test]
    fn a_rate_is_measured_over_some_round_trips() {
        let (path, mb) = (Path::default(), 1_000_000);
        assert_eq!(known_at(&path, 30 * MS, &[mb, 2 * mb, 3 * mb]), None);
        assert_eq!(path.rate.load(Ordering::Relaxed), 10 * mb);
        assert_eq!(
            known_at(&Path::default(), 30 * MS, &[mb; 4]),
            None,
            "nothing moves"
        );
    }
}
