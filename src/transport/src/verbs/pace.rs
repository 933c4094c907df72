//! How a stream fares over its path: whether its ring is too short for the round trip, and whether
//! TCP was faster.
//!
//! A writer sends at most what the reader's ring has room for, and hears of room a round trip
//! later. So a ring that is read to its end within a few round trips is what limits the stream, as
//! a window limits TCP; Linux finds its receive window in the same way (`tcp_rcv_space_adjust`).

use sluice_stream::receiver::CREDIT_MAX;

/// From this round trip on, in ns, bytes under way decide how fast a stream is, and TCP may keep
/// more of them under way than a link.
pub const FAR_NS: u64 = 1_000_000;

/// What is known of the path before a stream is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// The shortest round trip that TCP has seen, in ns; 0: not known.
    pub rtt_ns: u64,
    /// Bytes per second that TCP carried for this end's program.
    pub tcp_rate: u64,
    /// The program wrote more than TCP could carry then.
    pub is_full: bool,
}

/// The reader's part: finds a ring that is too short.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReaderPace {
    rtt_ns: u64,
    /// Position and time of the last look; 0: there was none.
    from: u64,
    since_ns: u64,
    /// Looks in a row that found the ring too short.
    times: u8,
}

impl ReaderPace {
    /// So many rings in a row were read too fast.
    const TIMES: u8 = 4;

    /// For a stream over this path.
    #[must_use]
    pub const fn new(path: Path) -> Self {
        Self {
            rtt_ns: path.rtt_ns,
            from: 0,
            since_ns: 0,
            times: 0,
        }
    }

    /// The program has read the stream before `to`. Returns true, once, if a longer ring would
    /// carry more. `now` is asked once for each ring.
    pub fn on_read(&mut self, to: u64, ring_len: u32, now: impl FnOnce() -> u64) -> bool {
        if to.saturating_sub(self.from) < u64::from(ring_len) || self.times >= Self::TIMES {
            return false;
        }
        let (now, before) = (now(), self.since_ns);
        let rings = (to - self.from) / u64::from(ring_len);
        (self.from, self.since_ns) = (to, now);
        let took = now.saturating_sub(before) / rings.max(1);
        // What is read and not yet told is no room for the writer. By half of it a round trip of
        // the link may take longer than TCP's shortest.
        let whole = u64::from(ring_len);
        let told = whole - u64::from(CREDIT_MAX.min(ring_len / 2));
        let least = u128::from(self.rtt_ns) * u128::from(whole) * 3 / 2;
        let short = before != 0 && u128::from(took) * u128::from(told) <= least;
        self.times = if short { self.times + 1 } else { 0 };
        self.times == Self::TIMES
    }
}

/// What a writer has given to the link: positions of its stream.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// The program has written up to here.
    pub tail: u64,
    /// The peer's device has it up to here; where that is not known, its program.
    pub completed: u64,
    /// The peer's program had read up to here, as was known before, and is known now.
    pub credited: [u64; 2],
    /// Length of the staging ring.
    pub ring_len: u32,
}

/// The writer's part: compares the link's rate with TCP's, over a far path.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriterPace {
    path: Path,
    /// Position and time since which the program had more to send at every look, and the reader
    /// read what came; 0: not now.
    from: u64,
    since_ns: u64,
    /// Times in a row that the link was slower, and its rate at the last comparison.
    slow: u8,
    rate: u128,
}

impl WriterPace {
    /// The rates are compared over so many round trips,
    const ROUND_TRIPS: u64 = 16;
    /// and so many ns at least,
    const LEAST_NS: u64 = 250_000_000;
    /// and so many times in a row the link must be slower, if it is not much slower.
    const TIMES: u8 = 4;

    /// For a stream over this path. One that is not far is never compared.
    #[must_use]
    pub const fn new(path: Path) -> Self {
        Self {
            path,
            from: 0,
            since_ns: 0,
            slow: 0,
            rate: 0,
        }
    }

    /// Returns whether this stream is compared at all.
    #[must_use]
    #[inline]
    pub const fn compares(&self) -> bool {
        self.path.rtt_ns >= FAR_NS
    }

    /// The peer has read more. Returns true if the link has been slower than TCP, or may be.
    pub fn on_credit(&mut self, at: Written, now: u64) -> bool {
        let [before, credited] = at.credited;
        let ring = u64::from(at.ring_len);
        // The program waits for room, or nearly.
        let has_more = at.tail.saturating_sub(before) >= ring / 4 * 3;
        let is_read = at.completed.saturating_sub(credited) <= ring / 2;
        if !has_more || !is_read {
            self.since_ns = 0;
            return false;
        }
        if self.since_ns == 0 {
            (self.from, self.since_ns) = (credited, now);
            return false;
        }
        let took = now.saturating_sub(self.since_ns);
        if took < (Self::ROUND_TRIPS * self.path.rtt_ns).max(Self::LEAST_NS) {
            return false;
        }
        let moved = u128::from(credited.saturating_sub(self.from)) * 1_000_000_000;
        (self.from, self.since_ns) = (credited, now);
        let rate = moved / u128::from(took.max(1));
        // TCP's own rate varies by some hundredths.
        let tcp_rate = u128::from(self.path.tcp_rate);
        let is_slower = rate * 20 < tcp_rate * 19;
        self.slow = if is_slower {
            self.slow.saturating_add(1)
        } else {
            0
        };
        // A device that has a TCP connection of its own (soft iWARP) begins slowly.
        let grows = rate * 4 > self.rate * 5;
        self.rate = rate;
        let is_much_slower = rate * 5 < tcp_rate * 4 && !grows;
        !self.path.is_full || self.slow >= Self::TIMES || is_much_slower
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const RING: u32 = 256 << 10;
    const FAR: Path = Path {
        rtt_ns: 10 * MS,
        tcp_rate: 50_000_000,
        is_full: true,
    };

    /// Reads rings, each in so many ns. Returns how many were read when the ring proved too short.
    fn read_by(path: Path, len: u32, ring_ns: u64) -> Option<u64> {
        let mut pace = ReaderPace::new(path);
        (1..=100).find(|rings| pace.on_read(rings * u64::from(len), len, || MS + rings * ring_ns))
    }

    fn read(path: Path, ring_ns: u64) -> Option<u64> {
        read_by(path, RING, ring_ns)
    }

    #[test]
    fn a_ring_that_is_read_in_a_round_trip_is_too_short() {
        assert_eq!(read(FAR, 10 * MS), Some(5));
        assert_eq!(read(FAR, 29 * MS), Some(5));
        assert_eq!(read(FAR, 31 * MS), None);
        // A longer ring is told of in more parts.
        assert_eq!(read_by(FAR, 4 * RING, 17 * MS), Some(5));
        assert_eq!(read_by(FAR, 4 * RING, 18 * MS), None);
        assert_eq!(read(Path::default(), 1), None);
    }

    #[test]
    fn a_ring_is_called_too_short_once() {
        let mut pace = ReaderPace::new(FAR);
        let times = (1..100u64)
            .filter(|n| pace.on_read(n * u64::from(RING), RING, || n * MS))
            .count();
        assert_eq!(times, 1);
    }

    /// Credit for half a ring comes each `half_ns`, while so much is written and unread.
    fn write(path: Path, half_ns: u64, written: u64, unread: u64) -> bool {
        let mut pace = WriterPace::new(path);
        let half = u64::from(RING / 2);
        (1..=2000).any(|n| {
            let credited = [(n - 1) * half, n * half];
            let at = Written {
                tail: credited[0] + written,
                completed: credited[1] + unread,
                credited,
                ring_len: RING,
            };
            pace.on_credit(at, MS + n * half_ns)
        })
    }

    #[test]
    fn a_full_ring_that_moves_less_than_tcp_did_is_slower() {
        let ring = u64::from(RING);
        // 26 MB/s and 52 MB/s.
        assert!(write(FAR, 5 * MS, ring, 0));
        assert!(!write(FAR, 5 * MS / 2, ring, 0));
        // The program has no more to send; the reader does not read.
        assert!(!write(FAR, 5 * MS, ring / 2, 0));
        assert!(!write(FAR, 5 * MS, ring, ring));
    }

    #[test]
    fn a_near_path_is_not_compared() {
        let near = Path {
            rtt_ns: FAR_NS - 1,
            ..FAR
        };
        assert!(!WriterPace::new(near).compares() && WriterPace::new(FAR).compares());
    }

    #[test]
    fn where_tcp_had_less_to_carry_the_link_may_be_slower() {
        let idle = Path {
            tcp_rate: 1000,
            is_full: false,
            ..FAR
        };
        assert!(write(idle, 5 * MS / 2, u64::from(RING), 0));
        assert!(!write(idle, 5 * MS / 2, u64::from(RING) / 2, 0));
    }
}
