//! The pool of `Socket` structures. Chunks are never unmapped, and a freed structure is reused.

use super::{Socket, Stack};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use sluice_fabric::lock::{self, Lock};
use sluice_fabric::sys;

/// Sockets opened since `inodes.rs` last looked.
pub static OPENED: Stack = Stack::new(|sock| &sock.opened);

const CHUNK: usize = 128;

/// Guards both lists of free structures.
static FREE: Lock = Lock::new();
/// Free structures, the most recently freed first.
static IDLE: AtomicPtr<Socket> = AtomicPtr::new(core::ptr::null_mut());
/// Free structures on which a call is still counted. Reused, such a socket could not consent to a
/// switch; they move to [`IDLE`] when the count drops to zero.
static BUSY: AtomicPtr<Socket> = AtomicPtr::new(core::ptr::null_mut());
/// Number of structures in [`BUSY`].
static BUSY_COUNT: AtomicU32 = AtomicU32::new(0);
/// Limit of [`BUSY`]. A thread cancelled in the kernel leaves its call counted for ever, so
/// structures above the limit are reused as they are, and their connections stay on TCP.
const BUSY_MOST: u32 = 256;
/// If a sweep frees fewer than this, a chunk is added too, so that the next sweep is far off.
const FEW: u32 = 32;

/// Every chunk, for walks over all sockets.
static CHUNKS: [AtomicPtr<Socket>; 8192] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 8192];

/// Allocates a structure for a new connection on `fd`, with no upgrade due.
pub fn alloc(fd: i32, role: u8) -> Option<&'static Socket> {
    let free = FREE.enter().ok()?;
    if IDLE.load(Ordering::Relaxed).is_null() && sweep() < FEW {
        grow();
    }
    let mut sock = pop(&IDLE);
    // A thread that had looked the descriptor up before may count a call after the free.
    while let Some(used) = sock.filter(|sock| sock.is_in_use())
        && BUSY_COUNT.load(Ordering::Relaxed) < BUSY_MOST
    {
        if IDLE.load(Ordering::Relaxed).is_null() {
            grow();
        }
        let Some(other) = pop(&IDLE) else { break };
        BUSY_COUNT.fetch_add(1, Ordering::Relaxed);
        push(&BUSY, used);
        sock = Some(other);
    }
    drop(free);
    let sock = sock?;
    sock.rx.reset();
    sock.tx.reset();
    // Release pairs with the load in `upgrade::attach`.
    sock.fds.store(1, Ordering::Release);
    sock.fd.store(fd, Ordering::Relaxed);
    sock.role.store(role, Ordering::Relaxed);
    sock.forget_nonblocking();
    sock.halves.store(0, Ordering::Relaxed);
    clear(sock);
    sock.last_link
        .store(core::ptr::null_mut(), Ordering::Relaxed);
    for set in &sock.sets {
        set.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    sock.family.store(core::ptr::null_mut(), Ordering::Relaxed);
    sock.link.store(core::ptr::null_mut(), Ordering::Relaxed);
    sock.next_try.store(u64::MAX, Ordering::Relaxed);
    let conn = sluice_stats::alloc_conn();
    let conn = conn.map_or(core::ptr::null_mut(), |c| core::ptr::from_ref(c).cast_mut());
    sock.conn.store(conn, Ordering::Relaxed);
    sock.full.reset();
    sock.path.forget();
    sock.staged.forget();
    sock.inode.store(0, Ordering::Relaxed);
    OPENED.add(sock);
    sock.prefix.begin(sock.is_in_use());
    Some(sock)
}

/// Clears what a connection has noted, for the next one.
fn clear(sock: &Socket) {
    sock.lent.begin();
    for word in [&sock.rcvlowat, &sock.low_waits, &sock.pinned, &sock.backoff] {
        word.store(0, Ordering::Relaxed);
    }
    for flag in [
        &sock.counted,
        &sock.reset_seen,
        &sock.reset_made,
        &sock.shut,
        &sock.lingers,
        &sock.reported,
        &sock.far,
        &sock.begun,
        &sock.handed,
        &sock.low_held,
        &sock.for_exec,
        &sock.is_early,
        &sock.was_inherited,
        &sock.is_asked_for,
        &sock.has_asked,
        &sock.was_large,
        &sock.tells_unread,
    ] {
        flag.store(false, Ordering::Relaxed);
    }
    for word in [
        &sock.rcv_timeout_ns,
        &sock.snd_timeout_ns,
        &sock.retry_step,
        &sock.written_off,
        &sock.heard,
        &sock.key,
        &sock.mirror,
    ] {
        word.store(0, Ordering::Relaxed);
    }
}

/// Frees a structure that no descriptor entry points to and no stream uses.
pub fn free(sock: &'static Socket) {
    // The generation changes under both locks, see `Known`. This also waits for the control thread
    // if it is still finishing with a half whose state it has already changed.
    let sections = [&sock.rx, &sock.tx].map(|half| half.lock.enter());
    sock.generation.fetch_add(1, Ordering::AcqRel);
    sock.unread_copy.forget();
    sock.prefix.end_both();
    #[cfg(feature = "fault")]
    sock.prefix.tell(sock.role.load(Ordering::Relaxed));
    if sections.iter().all(Result::is_ok) {
        sock.prefix.give_back(sock.calls_in_kernel());
    }
    drop(sections);
    // Calls that have yet to return find no upgrade due.
    sock.next_try.store(u64::MAX, Ordering::Relaxed);
    let conn = sock.conn.swap(core::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: null, or from `alloc_conn`, whose memory is never unmapped.
    if let Some(conn) = unsafe { conn.as_ref() } {
        sluice_stats::free_conn(conn);
    }
    if !sock.family.load(Ordering::Acquire).is_null() {
        let family = sock.family.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: null, or a slot of the family region, which is never unmapped.
        if let Some(family) = unsafe { family.as_ref() } {
            family.leave(sluice_runtime::process::pid());
        }
    }
    if let Ok(_section) = FREE.enter() {
        put_back(sock);
    }
}

/// Puts a structure into one of the free lists. Call with [`FREE`] held.
fn put_back(sock: &'static Socket) {
    let mut busy = sock.is_in_use();
    if busy && BUSY_COUNT.load(Ordering::Relaxed) >= BUSY_MOST {
        sweep();
        busy = BUSY_COUNT.load(Ordering::Relaxed) < BUSY_MOST;
    }
    if busy {
        BUSY_COUNT.fetch_add(1, Ordering::Relaxed);
    }
    push(if busy { &BUSY } else { &IDLE }, sock);
}

/// Moves structures on which no call is counted any more to [`IDLE`], and returns how many. Call
/// with [`FREE`] held.
fn sweep() -> u32 {
    let mut next = BUSY.swap(core::ptr::null_mut(), Ordering::Relaxed);
    let before = BUSY_COUNT.swap(0, Ordering::Relaxed);
    // SAFETY: null, or a structure of a chunk, which is never unmapped.
    while let Some(sock) = unsafe { next.as_ref() } {
        next = sock.next_free.load(Ordering::Relaxed);
        if sock.is_in_use() {
            BUSY_COUNT.fetch_add(1, Ordering::Relaxed);
            push(&BUSY, sock);
        } else {
            push(&IDLE, sock);
        }
    }
    before.saturating_sub(BUSY_COUNT.load(Ordering::Relaxed))
}

fn push(list: &AtomicPtr<Socket>, sock: &'static Socket) {
    let head = list.load(Ordering::Relaxed);
    sock.next_free.store(head, Ordering::Relaxed);
    list.store(core::ptr::from_ref(sock).cast_mut(), Ordering::Relaxed);
}

fn pop(list: &AtomicPtr<Socket>) -> Option<&'static Socket> {
    // SAFETY: null, or a structure of a chunk, which is never unmapped.
    let sock: &'static Socket = unsafe { list.load(Ordering::Relaxed).as_ref() }?;
    list.store(sock.next_free.load(Ordering::Relaxed), Ordering::Relaxed);
    Some(sock)
}

/// Adds a chunk of idle structures, if memory allows. Call with [`FREE`] held.
fn grow() {
    let Some(cell) = CHUNKS.iter().find(|c| c.load(Ordering::Relaxed).is_null()) else {
        return;
    };
    let Ok(base) = sys::map_zeroes(CHUNK * size_of::<Socket>(), false) else {
        return;
    };
    let base = base.cast::<Socket>();
    cell.store(base, Ordering::Release);
    for i in 0..CHUNK {
        // SAFETY: inside the mapping just made; all zeroes is a valid `Socket`.
        let sock = unsafe { &*base.add(i) };
        sock.rx.lock.set_order(lock::OF_RX);
        sock.tx.lock.set_order(lock::OF_TX);
        push(&IDLE, sock);
    }
}

/// Calls `each` for every socket that a descriptor entry points to.
pub fn for_all(mut each: impl FnMut(&'static Socket)) {
    for_every(|sock| {
        if sock.fds.load(Ordering::Acquire) != 0 {
            each(sock);
        }
    });
}

/// Calls `each` for every structure, free or not.
pub fn for_every(mut each: impl FnMut(&'static Socket)) {
    for cell in &CHUNKS {
        let base = cell.load(Ordering::Acquire);
        if base.is_null() {
            return;
        }
        for i in 0..CHUNK {
            // SAFETY: inside a chunk, which is never unmapped.
            let sock: &'static Socket = unsafe { &*base.add(i) };
            each(sock);
        }
    }
}

/// In the child of a fork: no thread holds `FREE`, and calls of the parent's other threads never
/// return here.
pub fn after_fork() {
    FREE.reset();
    let mut next = BUSY.load(Ordering::Relaxed);
    // SAFETY: null, or a structure of a chunk, which is never unmapped.
    while let Some(sock) = unsafe { next.as_ref() } {
        next = sock.next_free.load(Ordering::Relaxed);
        for half in [&sock.rx, &sock.tx] {
            half.calls.store(0, Ordering::Relaxed);
        }
        sock.polls.store(0, Ordering::Relaxed);
    }
    sweep();
}

#[cfg(test)]
mod tests {
    use super::super::role;
    use super::*;

    /// Allocates until `sock` comes; returns the other structures.
    fn take(sock: &'static Socket) -> Vec<&'static Socket> {
        (0..10_000)
            .map_while(|_| alloc(-1, role::UNKNOWN).filter(|got| !core::ptr::eq(*got, sock)))
            .collect()
    }

    #[test]
    fn a_structure_is_not_used_again_under_a_call() {
        for begins in [
            |s: &Socket| s.rx.call_begins(),
            |s: &Socket| s.tx.call_begins(),
            |s: &Socket| {
                s.polls.fetch_add(1, Ordering::SeqCst);
            },
        ] {
            let sock = alloc(-1, role::UNKNOWN).unwrap();
            begins(sock);
            free(sock);
            let others: Vec<_> = (0..3 * CHUNK)
                .map(|_| alloc(-1, role::UNKNOWN).unwrap())
                .collect();
            assert!(others.iter().all(|other| !core::ptr::eq(*other, sock)));
            sock.rx.calls.store(0, Ordering::SeqCst);
            sock.tx.calls.store(0, Ordering::SeqCst);
            sock.polls.store(0, Ordering::SeqCst);
            // From here on it can be reused.
            let more = take(sock);
            assert!(more.len() < 10_000);
            others.into_iter().chain(more).for_each(free);
            free(sock);
        }
    }

    #[test]
    fn a_call_that_outlives_its_socket_is_taken_back_where_it_was_counted() {
        let sock = alloc(-1, role::UNKNOWN).unwrap();
        sock.rx.add_kernel_bytes(10);
        free(sock);
        // The thread had looked the descriptor up before.
        sock.rx.call_begins();
        sock.polls.fetch_add(1, Ordering::SeqCst);
        let mut others: Vec<_> = (0..3 * CHUNK)
            .map(|_| alloc(-1, role::UNKNOWN).unwrap())
            .collect();
        assert!(others.iter().all(|other| !core::ptr::eq(*other, sock)));
        sock.rx.call_ends(0);
        assert_eq!(sock.polls.fetch_sub(1, Ordering::SeqCst), 1);
        others.extend(take(sock));
        assert!(others.len() < 10_000);
        assert_eq!((sock.rx.in_kernel(), sock.rx.kernel_bytes()), (0, 0));
        others.into_iter().for_each(free);
        free(sock);
    }

    #[test]
    fn calls_that_nobody_takes_back_cost_a_bounded_number_of_structures() {
        let used: Vec<_> = (0..CHUNK * 64)
            .map(|_| {
                let sock = alloc(-1, role::UNKNOWN).unwrap();
                sock.polls.store(1, Ordering::SeqCst);
                free(sock);
                sock
            })
            .collect();
        let made = CHUNKS
            .iter()
            .filter(|c| !c.load(Ordering::Relaxed).is_null())
            .count();
        assert!(made < 32, "{made} chunks");
        used.iter().for_each(|s| s.polls.store(0, Ordering::SeqCst));
    }
}
