//! Gives the pages of unused rings back to the kernel.
//!
//! The *writer* of a ring trims it when everything written was read and it has been silent for a
//! while: no reader looks beyond the tail, so the pages go unnoticed, and the next write gets new
//! ones. A ring that was returned to the pool is trimmed by its lender. Neither needs the peer;
//! docs/decisions/006-rings-at-rest.md says why nothing is lost.
//!
//! The control thread trims, and has a timer for it only while a ring may have pages. Writers leave
//! work for it without a lock and without memory, since a writer may be a signal handler that has
//! interrupted malloc.

use crate::socket::{Socket, Stack, State};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sluice_fabric::shm::{self, Cooled, Link};
use sluice_fabric::sys;
use sluice_runtime::control_thread;

/// A millisecond, in ns. Builds for tests trim at every opportunity.
const MS: u64 = if cfg!(feature = "fault") {
    1_000
} else {
    1_000_000
};

/// A ring is trimmed after so much silence,
const QUIET_NS: u64 = 100 * MS;
/// or after this if it holds a single page: a connection that writes a few bytes now and then keeps
/// the page.
const QUIET_PAGE_NS: u64 = 500 * MS;
/// Returned rings are trimmed when none was lent or returned for so long.
const POOL_QUIET_NS: u64 = 500 * MS;
/// Longest time between two looks at a busy ring; the time doubles up to this.
const BUSY_MAX_NS: u64 = 400 * MS;
/// The same for a ring whose reader does not read.
const UNREAD_MAX_NS: u64 = 16_000 * MS;
/// Looks that are closer together than this become one.
const SLACK_NS: u64 = 50 * MS;

const PAGE: u64 = 4096;

/// A ring that may have pages, and its writer.
#[derive(Debug)]
struct Written {
    sock: &'static Socket,
    generation: u32,
    /// Offset at which the ring began to have pages.
    from: u64,
    /// The writer's offset at the last look, and the time of the first look that found it there.
    at: u64,
    since: u64,
    /// Time between the last look and the next.
    wait: u64,
    due: u64,
}

/// A link whose returned rings may have pages.
#[derive(Debug)]
struct Returned {
    link: &'static Link,
    generation: u32,
    /// See [`Cooled::Busy`].
    seen: u64,
    due: u64,
}

/// Sockets whose rings have had pages for a while. SeqCst, as for the next two: one thread adds
/// something and then reads `ARMED`; the control thread writes `ARMED` and then looks here. At
/// least one of them sees the other.
static NOTED: Stack = Stack::new(|sock| &sock.untrimmed);
/// Rings of some link were returned.
static RETURNED: AtomicBool = AtomicBool::new(false);
/// When the control thread looks here unless it is poked earlier; u64::MAX: never.
static ARMED: AtomicU64 = AtomicU64::new(u64::MAX);

/// Makes the control thread look at time `due`.
fn arm(due: u64) {
    if due.saturating_add(SLACK_NS) < ARMED.load(Ordering::SeqCst) {
        ARMED.store(due, Ordering::SeqCst);
        control_thread::poke();
    }
}

/// Notes that the ring of `sock`, which had no pages, was written to at `at`. Call under the tx
/// lock.
#[cold]
pub fn note(sock: &'static Socket, at: u64) {
    sock.tx.resident.store(true, Ordering::Relaxed);
    if !sock.link().is_some_and(Link::can_discard) || !control_thread::is_running() {
        // This ring will never be trimmed.
        return;
    }
    sock.resident_from.store(at, Ordering::Relaxed);
    NOTED.add(sock);
    arm(sys::now_ns() + QUIET_NS);
}

/// Notes that rings of `link` may have been returned.
pub fn returned(link: &'static Link) {
    if link.can_discard() && control_thread::is_running() && !RETURNED.swap(true, Ordering::SeqCst)
    {
        arm(sys::now_ns() + POOL_QUIET_NS);
    }
}

/// The control thread's list of rings to trim.
#[derive(Debug)]
pub struct Trims {
    written: Vec<Written>,
    returned: Vec<Returned>,
    /// When the links are searched for returned rings; u64::MAX: none was returned since.
    search: u64,
    /// When the control thread looks next.
    next: u64,
}

impl Default for Trims {
    fn default() -> Self {
        Self {
            written: Vec::new(),
            returned: Vec::new(),
            search: u64::MAX,
            next: u64::MAX,
        }
    }
}

impl Trims {
    /// Trims what is due. Returns the time until more may be due, if ever.
    pub fn progress(&mut self) -> Option<u64> {
        let now = sys::now_ns();
        self.take_noted(now);
        if RETURNED.swap(false, Ordering::SeqCst) && self.search == u64::MAX {
            self.search = now + POOL_QUIET_NS;
            self.look_by(self.search);
        }
        if self.next <= now {
            if self.search <= now {
                self.search = u64::MAX;
                self.find_returned(now);
            }
            let later = |due: u64| due > now;
            self.written.retain_mut(|w| later(w.due) || look(w, now));
            self.returned
                .retain_mut(|r| later(r.due) || look_at_returned(r, now));
            if self.written.is_empty() && self.returned.is_empty() {
                // Nothing left to do: free the memory, too.
                (self.written, self.returned) = (Vec::new(), Vec::new());
            }
            let dues = self.written.iter().map(|w| w.due);
            let dues = dues.chain(self.returned.iter().map(|r| r.due));
            self.next = dues.chain([self.search]).min().unwrap_or(u64::MAX);
            self.next = self.next.max(now + SLACK_NS);
        }
        ARMED.store(self.next, Ordering::SeqCst);
        // A thread may have added something after the look, and trusted the old value of `ARMED`.
        let missed = !NOTED.is_empty() || RETURNED.load(Ordering::SeqCst);
        if missed {
            return Some(0);
        }
        (self.next != u64::MAX).then(|| self.next - now)
    }

    /// Looks at time `due`, or together with a look that is at most [`SLACK_NS`] earlier.
    fn look_by(&mut self, due: u64) {
        if due.saturating_add(SLACK_NS) < self.next {
            self.next = due;
        }
    }

    fn take_noted(&mut self, now: u64) {
        for sock in NOTED.take() {
            self.written.push(Written {
                sock,
                generation: sock.generation.load(Ordering::Acquire),
                from: sock.resident_from.load(Ordering::Relaxed),
                at: sock.tx.at.load(Ordering::Relaxed),
                since: now,
                wait: QUIET_NS,
                due: now + QUIET_NS,
            });
            self.look_by(now + QUIET_NS);
        }
    }

    /// `RETURNED` does not say which link it was.
    fn find_returned(&mut self, now: u64) {
        for link in shm::all().filter(|l| l.can_discard() && !l.is_foreign()) {
            let generation = link.generation();
            let known = |r: &Returned| core::ptr::eq(r.link, link) && r.generation == generation;
            if !self.returned.iter().any(known) {
                self.returned.push(Returned {
                    link,
                    generation,
                    seen: u64::MAX,
                    due: now,
                });
            }
        }
    }
}

/// The outcome of a look at a written ring.
enum Found {
    /// Trimmed, or not to be trimmed: forget the ring.
    Over,
    /// The writer has moved to this offset since.
    Busy(u64),
    /// Bytes are unread, or the tx lock is held.
    Unread,
    /// Silent; to be trimmed at this time.
    Silent(u64),
}

/// Looks at a ring, and trims it if due. False: forget the entry.
fn look(entry: &mut Written, now: u64) -> bool {
    match found(entry, now) {
        Found::Over => return false,
        Found::Busy(at) => {
            (entry.at, entry.since) = (at, now);
            entry.wait = (entry.wait * 2).min(BUSY_MAX_NS);
            entry.due = now + entry.wait;
        }
        Found::Unread => {
            entry.wait = (entry.wait * 2).min(UNREAD_MAX_NS);
            entry.due = now + entry.wait;
        }
        Found::Silent(due) => entry.due = due,
    }
    true
}

fn found(entry: &Written, now: u64) -> Found {
    let sock = entry.sock;
    let still = || {
        sock.generation.load(Ordering::Acquire) == entry.generation
            && sock.tx.state() == State::Link
            && sock.tx.resident.load(Ordering::Relaxed)
    };
    let at = sock.tx.at.load(Ordering::Relaxed);
    if !still() {
        return Found::Over;
    }
    if at != entry.at {
        return Found::Busy(at);
    }
    let one_page = entry.from / PAGE == at.saturating_sub(1) / PAGE;
    let quiet = if one_page { QUIET_PAGE_NS } else { QUIET_NS };
    if now < entry.since + quiet {
        return Found::Silent(entry.since + quiet);
    }
    // A thread is inside, or has jumped out of the section: try again later.
    let Some(_section) = sock.tx.lock.try_enter() else {
        return Found::Unread;
    };
    if still() {
        trim(sock, entry.at)
    } else {
        Found::Over
    }
}

/// Gives the ring's pages back if nothing in it is unread. Call under the tx lock, on the link.
fn trim(sock: &'static Socket, silent_at: u64) -> Found {
    let (Some(dir), Some(ring)) = (sock.tx.dir(), sock.tx.ring()) else {
        return Found::Over;
    };
    let at = sock.tx.at.load(Ordering::Relaxed);
    if at != silent_at {
        return Found::Busy(at);
    }
    let head = dir.rx.head.read();
    if head.flagged {
        // A demotion, which may have fixed bytes in the ring for a re-send.
        return Found::Over;
    }
    if head.offset != at {
        return Found::Unread;
    }
    if ring.discard() {
        sock.tx.resident.store(false, Ordering::Relaxed);
    }
    Found::Over
}

fn look_at_returned(entry: &mut Returned, now: u64) -> bool {
    if entry.link.generation() != entry.generation {
        return false;
    }
    match entry.link.cool(entry.seen) {
        Cooled::All => return false,
        Cooled::More => entry.due = now + SLACK_NS,
        Cooled::Busy(seen) => {
            entry.seen = seen;
            entry.due = now + POOL_QUIET_NS;
        }
    }
    true
}

/// In the child of a fork: the rings belong to the parent.
pub fn after_fork() {
    NOTED.clear();
    RETURNED.store(false, Ordering::Relaxed);
    ARMED.store(u64::MAX, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::send::publish;
    use crate::testing;
    use sluice_fabric::cursors;

    /// As `send` does: copies bytes into the ring, then publishes the tail, under the tx lock.
    fn write(sock: &'static Socket, bytes: &[u8]) {
        let _section = sock.tx.lock.enter().unwrap();
        let at = sock.tx.at.load(Ordering::Relaxed);
        let ring = sock.tx.ring().unwrap();
        // SAFETY: the slice is shorter than the ring, and nobody reads the ring meanwhile.
        unsafe { ring.copy_in(at, bytes.as_ptr(), bytes.len()) };
        assert!(publish(sock, at, bytes.len()));
    }

    /// What the reader finds; consumed if `take`.
    fn read(sock: &'static Socket, take: bool) -> Vec<u8> {
        let (dir, ring) = (sock.tx.dir().unwrap(), sock.tx.ring().unwrap());
        let (head, tail) = (dir.rx.head.read(), dir.tx.tail.read());
        let mut bytes = vec![0; (tail.offset - head.offset) as usize];
        // SAFETY: `bytes` is as long as what is unread.
        unsafe { ring.copy_out(head.offset, bytes.as_mut_ptr(), bytes.len()) };
        if take {
            let head_word = &dir.rx.head;
            head_word
                .consume(head.round, head.offset, tail.offset)
                .unwrap();
        }
        bytes
    }

    /// The first byte of each page of the ring: zero if the page was given back.
    fn first_bytes(sock: &'static Socket) -> Vec<u8> {
        let ring = sock.tx.ring().unwrap();
        let mut bytes = vec![0; ring.len() as usize];
        // SAFETY: `bytes` is as long as the ring.
        unsafe { ring.copy_out(0, bytes.as_mut_ptr(), bytes.len()) };
        bytes.iter().step_by(PAGE as usize).copied().collect()
    }

    fn entry(sock: &'static Socket, since: u64) -> Written {
        Written {
            sock,
            generation: sock.generation.load(Ordering::Acquire),
            from: 0,
            at: sock.tx.at.load(Ordering::Relaxed),
            since,
            wait: QUIET_NS,
            due: since,
        }
    }

    fn writer() -> &'static Socket {
        let (a, b, index) = testing::link();
        let sock = testing::writer(a, b, index);
        write(sock, &[7; 50_000]);
        // The test has no control thread that could be told.
        assert!(sock.tx.resident.load(Ordering::Relaxed));
        sock
    }

    #[test]
    fn a_ring_is_trimmed_when_all_is_read_and_never_before() {
        let sock = writer();
        assert!(matches!(found(&entry(sock, 0), QUIET_NS), Found::Unread));
        assert_eq!(read(sock, false), [7; 50_000], "a peek still finds it all");
        read(sock, true);
        assert!(matches!(
            found(&entry(sock, 5), QUIET_NS),
            Found::Silent(due) if due == 5 + QUIET_NS
        ));
        assert!(first_bytes(sock).contains(&7));
        assert!(matches!(found(&entry(sock, 0), QUIET_NS), Found::Over));
        assert!(!sock.tx.resident.load(Ordering::Relaxed));
        assert_eq!(first_bytes(sock), [0; 16]);
        // Later bytes are not lost, also across the ring's end.
        let next: Vec<u8> = (0..60_000u32).map(|i| (i % 251) as u8).collect();
        write(sock, &next);
        assert!(sock.tx.resident.load(Ordering::Relaxed));
        assert_eq!(read(sock, true), next);
    }

    #[test]
    fn a_writer_that_has_written_since_is_left_alone() {
        let sock = writer();
        read(sock, true);
        let entry = entry(sock, 0);
        write(sock, b"more");
        assert!(matches!(found(&entry, QUIET_NS), Found::Busy(50_004)));
        assert!(matches!(trim(sock, entry.at), Found::Busy(50_004)));
        assert_eq!(read(sock, true), b"more");
    }

    #[test]
    fn one_page_is_kept_longer() {
        let (a, b, index) = testing::link();
        let sock = testing::writer(a, b, index);
        write(sock, &[7; 4096]);
        read(sock, true);
        assert!(matches!(
            found(&entry(sock, 0), QUIET_NS),
            Found::Silent(QUIET_PAGE_NS)
        ));
        assert!(matches!(found(&entry(sock, 0), QUIET_PAGE_NS), Found::Over));
        assert_eq!(first_bytes(sock), [0; 16]);
    }

    #[test]
    fn what_a_demotion_sends_again_stays() {
        // By a relative or the peer; this end has not noticed yet.
        let sock = writer();
        let dir = sock.tx.dir().unwrap();
        cursors::demote(&dir.tx.tail, &dir.rx.head);
        assert!(matches!(found(&entry(sock, 0), QUIET_NS), Found::Over));
        assert_eq!(read(sock, false), [7; 50_000]);
    }

    #[test]
    fn a_head_that_is_not_possible_trims_nothing() {
        let sock = writer();
        let dir = sock.tx.dir().unwrap();
        dir.rx.head.consume(0, 0, 60_000).unwrap();
        assert!(matches!(found(&entry(sock, 0), QUIET_NS), Found::Unread));
        assert!(first_bytes(sock).contains(&7));
    }

    #[test]
    fn looks_at_what_is_busy_or_unread_grow_rare() {
        let sock = writer();
        let (mut entry, mut now, mut looks) = (entry(sock, 0), 0, 0);
        while now < 600_000 * MS {
            now = entry.due.max(now);
            assert!(look(&mut entry, now));
            looks += 1;
        }
        assert!(looks < 50, "{looks} looks in ten minutes");
        // Read at last: it is trimmed within the longest wait.
        read(sock, true);
        now = entry.due;
        assert!(!look(&mut entry, now));
        assert_eq!(first_bytes(sock), [0; 16]);
    }
}
