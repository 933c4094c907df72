//! Rings without use hold no memory: their pages go back to the kernel.
//!
//! A ring in use is trimmed by its *writer*, when all it wrote has been read and it was silent for a while:
//! nobody reads beyond the tail, so nobody sees the pages go, and the next write gets new ones. Returned rings
//! are trimmed by their lender. Neither needs the peer. Why nothing is lost: docs/decisions/006-rings-at-rest.md.
//!
//! The control thread does it. It has a timer for that only while a ring may have pages.

use super::control;
use crate::sockets::sock::{Sock, state};
use core::sync::atomic::Ordering;
use sluice_fabric::lock::Guarded;
use sluice_fabric::shm::{Cooled, Link};
use sluice_fabric::sys;

/// A millisecond, in ns. Builds for tests trim at every opportunity.
const MS: u64 = if cfg!(feature = "fault") {
    1_000
} else {
    1_000_000
};

/// A ring that was silent for so long is trimmed,
const QUIET_NS: u64 = 100 * MS;
/// or for so long if it holds one page only: a connection that says a few bytes now and then keeps it.
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
    sock: &'static Sock,
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

#[derive(Debug)]
struct List {
    written: Vec<Written>,
    returned: Vec<Returned>,
    /// When the control thread looks here next; u64::MAX: not before it is poked.
    armed: u64,
}

static LIST: Guarded<List> = Guarded::new(List {
    written: Vec::new(),
    returned: Vec::new(),
    armed: u64::MAX,
});

impl List {
    /// Something is due then. True: the control thread must be told.
    fn arm(&mut self, due: u64) -> bool {
        let early = due.saturating_add(SLACK_NS) < self.armed;
        if early {
            self.armed = due;
        }
        early
    }
}

/// Under the tx lock: the ring of `sock`, which had no pages, has been written to at `at`.
#[cold]
pub fn note(sock: &'static Sock, at: u64) {
    if !sock.link().is_some_and(Link::can_discard) || !control::is_running() {
        // Never to be trimmed.
        sock.tx.resident.store(true, Ordering::Relaxed);
        return;
    }
    // In a handler that interrupted this very list: the next write notes it.
    let Some(mut list) = LIST.lock() else { return };
    sock.tx.resident.store(true, Ordering::Relaxed);
    let now = sys::now_ns();
    list.written.push(Written {
        sock,
        generation: sock.generation.load(Ordering::Acquire),
        from: at,
        at: sock.tx.at.load(Ordering::Relaxed),
        since: now,
        wait: QUIET_NS,
        due: now + QUIET_NS,
    });
    let early = list.arm(now + QUIET_NS);
    drop(list);
    if early {
        control::poke();
    }
}

/// Rings of `link` may have been returned.
pub fn returned(link: &'static Link) {
    if !link.can_discard() || !control::is_running() {
        return;
    }
    let Some(mut list) = LIST.lock() else { return };
    let generation = link.generation();
    let known = |r: &Returned| core::ptr::eq(r.link, link) && r.generation == generation;
    if list.returned.iter().any(known) {
        return;
    }
    let due = sys::now_ns() + POOL_QUIET_NS;
    list.returned.push(Returned {
        link,
        generation,
        seen: u64::MAX,
        due,
    });
    let early = list.arm(due);
    drop(list);
    if early {
        control::poke();
    }
}

/// Takes out what is due.
fn take_due<T>(list: &mut Vec<T>, due: impl Fn(&T) -> bool) -> Vec<T> {
    let mut taken = Vec::new();
    let mut index = 0;
    while let Some(entry) = list.get(index) {
        if due(entry) {
            taken.push(list.swap_remove(index));
        } else {
            index += 1;
        }
    }
    taken
}

/// The control thread: trims what is to be trimmed. Time until there may be more, if ever.
pub fn progress() -> Option<u64> {
    let mut list = LIST.lock()?;
    let now = sys::now_ns();
    if now < list.armed {
        return (list.armed != u64::MAX).then(|| list.armed - now);
    }
    let mut written = take_due(&mut list.written, |w| w.due <= now);
    let mut returned = take_due(&mut list.returned, |r| r.due <= now);
    // Whoever notes something meanwhile pokes, and is found below.
    list.armed = u64::MAX;
    drop(list);
    written.retain_mut(|entry| look(entry, now));
    returned.retain_mut(|entry| look_at_returned(entry, now));
    let mut list = LIST.lock()?;
    list.written.append(&mut written);
    list.returned.append(&mut returned);
    let dues = list.written.iter().map(|w| w.due);
    let next = dues.chain(list.returned.iter().map(|r| r.due)).min();
    let Some(next) = next else {
        // Nothing to do: no timer, and no memory either.
        (list.written, list.returned) = (Vec::new(), Vec::new());
        list.armed = u64::MAX;
        return None;
    };
    list.armed = next.max(now + SLACK_NS);
    Some(list.armed - now)
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
            && sock.tx.state() == state::LINK
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
    if !sock.tx.lock.try_lock() {
        return Found::Unread;
    }
    let found = if still() {
        trim(sock, entry.at)
    } else {
        Found::Over
    };
    sock.tx.lock.unlock();
    found
}

/// Under the tx lock, on the link: gives the pages of the ring back if nothing in it is unread.
fn trim(sock: &'static Sock, silent_at: u64) -> Found {
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

/// Holds the list still over a fork.
pub fn hold() {
    LIST.hold();
}

/// After the fork, on both sides.
pub fn release() {
    LIST.release();
}

/// In the child of a fork: the rings are the parent's.
pub fn after_fork() {
    if let Some(mut list) = LIST.lock() {
        list.written.clear();
        list.returned.clear();
        list.armed = u64::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::send::publish;
    use crate::sockets::testing;
    use sluice_fabric::words;

    /// As `send` does under the tx lock: bytes into the ring, then the tail.
    fn write(sock: &'static Sock, bytes: &[u8]) {
        sock.tx.lock.lock().unwrap();
        let at = sock.tx.at.load(Ordering::Relaxed);
        let ring = sock.tx.ring().unwrap();
        // SAFETY: a slice of ours, shorter than the ring, which nobody reads meanwhile.
        unsafe { ring.copy_in(at, bytes.as_ptr(), bytes.len()) };
        assert!(publish(sock, at, bytes.len()));
        sock.tx.lock.unlock();
    }

    /// What the reader finds, taken or left there.
    fn read(sock: &'static Sock, take: bool) -> Vec<u8> {
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
    fn first_bytes(sock: &'static Sock) -> Vec<u8> {
        let ring = sock.tx.ring().unwrap();
        let mut bytes = vec![0; ring.len() as usize];
        // SAFETY: as long as the ring.
        unsafe { ring.copy_out(0, bytes.as_mut_ptr(), bytes.len()) };
        bytes.iter().step_by(PAGE as usize).copied().collect()
    }

    fn entry(sock: &'static Sock, since: u64) -> Written {
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

    fn writer() -> &'static Sock {
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
