//! Rings without use hold no memory: their pages go back to the kernel.
//!
//! A ring in use is trimmed by its *writer*, when all it wrote has been read and it was silent for
//! a while: nobody reads beyond the tail, so nobody sees the pages go, and the next write gets new
//! ones. Returned rings are trimmed by their lender. Neither needs the peer. Why nothing is lost:
//! docs/decisions/006-rings-at-rest.md.
//!
//! The control thread does it. It has a timer for that only while a ring may have pages.
//!
//! What is to be looked after is left for it without a lock and without memory: the writer may be a
//! signal handler that has interrupted malloc.

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

/// A ring that was silent for so long is trimmed,
const QUIET_NS: u64 = 100 * MS;
/// or for so long if it holds one page only: a connection that says a few bytes now and then keeps
/// it.
const QUIET_PAGE_NS: u64 = 500 * MS;
/// Returned rings are trimmed when none was lent or came back for so long.
const POOL_QUIET_NS: u64 = 500 * MS;
/// What is busy is looked at ever more seldom, up to this.
const BUSY_MAX_NS: u64 = 400 * MS;
/// So is a ring whose reader does not read, up to this.
const UNREAD_MAX_NS: u64 = 16_000 * MS;
/// Looks closer to each other than this are made together.
const SLACK_NS: u64 = 50 * MS;

const PAGE: u64 = 4096;

/// A ring that may have pages, with its writer.
#[derive(Debug)]
struct Written {
    sock: &'static Socket,
    generation: u32,
    /// Offset at which it began to have pages.
    from: u64,
    /// The writer's offset at the last look, and the time of the first look that found it there.
    at: u64,
    since: u64,
    /// Between the last look and this one.
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

/// Sockets whose rings have pages since a while ago. SeqCst, as the next two: a thread that adds
/// something then reads `ARMED`, and the control thread writes `ARMED` and then looks here, so that
/// one of them sees the other.
static NOTED: Stack = Stack::new(|sock| &sock.untrimmed);
/// Rings were returned, on whatever link.
static RETURNED: AtomicBool = AtomicBool::new(false);
/// The control thread looks here by then, if nobody pokes it; u64::MAX: it does not.
static ARMED: AtomicU64 = AtomicU64::new(u64::MAX);

/// Something is due then: the control thread must know.
fn arm(due: u64) {
    if due.saturating_add(SLACK_NS) < ARMED.load(Ordering::SeqCst) {
        ARMED.store(due, Ordering::SeqCst);
        control_thread::poke();
    }
}

/// Under the tx lock: the ring of `sock`, which had no pages, has been written to at `at`.
#[cold]
pub fn note(sock: &'static Socket, at: u64) {
    sock.tx.resident.store(true, Ordering::Relaxed);
    if !sock.link().is_some_and(Link::can_discard) || !control_thread::is_running() {
        // Never to be trimmed.
        return;
    }
    sock.resident_from.store(at, Ordering::Relaxed);
    NOTED.add(sock);
    arm(sys::now_ns() + QUIET_NS);
}

/// Rings of `link` may have been returned.
pub fn returned(link: &'static Link) {
    if link.can_discard() && control_thread::is_running() && !RETURNED.swap(true, Ordering::SeqCst)
    {
        arm(sys::now_ns() + POOL_QUIET_NS);
    }
}

/// What the control thread looks after.
#[derive(Debug)]
pub struct Trims {
    written: Vec<Written>,
    returned: Vec<Returned>,
    /// When the links are searched for returned rings; u64::MAX: none was returned since.
    search: u64,
    /// When it looks next.
    next: u64,
}

impl Default for Trims {
    /// Nothing yet.
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
    /// Trims what is to be trimmed. Time until there may be more, if ever.
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
                // Nothing to do, and no memory either.
                (self.written, self.returned) = (Vec::new(), Vec::new());
            }
            let dues = self.written.iter().map(|w| w.due);
            let dues = dues.chain(self.returned.iter().map(|r| r.due));
            self.next = dues.chain([self.search]).min().unwrap_or(u64::MAX);
            self.next = self.next.max(now + SLACK_NS);
        }
        ARMED.store(self.next, Ordering::SeqCst);
        // A thread that came too late for the above has gone by what stood there before.
        let missed = !NOTED.is_empty() || RETURNED.load(Ordering::SeqCst);
        if missed {
            return Some(0);
        }
        (self.next != u64::MAX).then(|| self.next - now)
    }

    /// Looks closer to each other than [`SLACK_NS`] are one.
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

    /// Whose rings they were was not said.
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

/// What a look at a written ring found.
enum Found {
    /// Trimmed, or not to be trimmed: nobody's business any more.
    Over,
    /// The writer has written since.
    Busy(u64),
    /// Bytes in it are unread, or its lock is taken.
    Unread,
    /// Silent, and to be trimmed then.
    Silent(u64),
}

/// Looks at a ring, and trims it if it is time. False: the entry is over.
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
    // Somebody is inside, or has jumped out of it: another time.
    let Some(_section) = sock.tx.lock.try_enter() else {
        return Found::Unread;
    };
    if still() {
        trim(sock, entry.at)
    } else {
        Found::Over
    }
}

/// Under the tx lock, on the link: gives the pages of the ring back if nothing in it is unread.
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
        // A demotion, which may have fixed bytes in the ring to be sent again.
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

/// In the child of a fork: the rings are the parent's.
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
    use sluice_fabric::words;

    /// As `send` does under the tx lock: bytes into the ring, then the tail.
    fn write(sock: &'static Socket, bytes: &[u8]) {
        let _section = sock.tx.lock.enter().unwrap();
        let at = sock.tx.at.load(Ordering::Relaxed);
        let ring = sock.tx.ring().unwrap();
        // SAFETY: a slice of ours, shorter than the ring, which nobody reads meanwhile.
        unsafe { ring.copy_in(at, bytes.as_ptr(), bytes.len()) };
        assert!(publish(sock, at, bytes.len()));
    }

    /// What the reader finds, taken or left there.
    fn read(sock: &'static Socket, take: bool) -> Vec<u8> {
        let (dir, ring) = (sock.tx.dir().unwrap(), sock.tx.ring().unwrap());
        let (head, tail) = (dir.rx.head.read(), dir.tx.tail.read());
        let mut bytes = vec![0; (tail.offset - head.offset) as usize];
        // SAFETY: as long as what is unread.
        unsafe { ring.copy_out(head.offset, bytes.as_mut_ptr(), bytes.len()) };
        if take {
            let head_word = &dir.rx.head;
            head_word
                .consume(head.round, head.offset, tail.offset)
                .unwrap();
        }
        bytes
    }

    /// The first byte of each page of the ring: zero where it has been given back.
    fn first_bytes(sock: &'static Socket) -> Vec<u8> {
        let ring = sock.tx.ring().unwrap();
        let mut bytes = vec![0; ring.len() as usize];
        // SAFETY: as long as the ring.
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
        // There is no control thread to note it with.
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
        // Nothing is lost of what comes next, over the ring's end too.
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
        // By a relative or the peer, which this end has not noticed yet.
        let sock = writer();
        let dir = sock.tx.dir().unwrap();
        words::demote(&dir.tx.tail, &dir.rx.head);
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
