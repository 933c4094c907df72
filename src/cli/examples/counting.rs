//! Stands in for libsluice.so in the tests of `sluice stat`: it counts what a test can know
//! beforehand. The functions are called through Python's ctypes.

use sluice_stats::{ROOT, Reason, Role, Transport, adopt_conn, alloc_conn, free_conn};
use std::net::SocketAddr;

/// Tells the story of five connections.
#[unsafe(no_mangle)]
pub extern "C" fn counting_begin() {
    let v4 = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let v6 = |port| SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port));

    ROOT.identify(std::process::id());
    if let Some(fast) = alloc_conn() {
        fast.opened(Role::Connecting);
        fast.describe(5, Role::Connecting, v4(1000), v4(2000));
        fast.upgraded(Transport::Shm);
        fast.tx.bytes.tcp.add(32 << 10);
        fast.tx.bytes.indirect.add(5 << 20);
        fast.tx.ring_len.set(256 << 10);
        fast.rx.bytes.direct.add(70_000);
        fast.rx.bytes.file.add(3);
        fast.rx.adverts_fresh.add(2);
        fast.rx.adverts_stale.add(1);
        fast.rx.adverts_revoked.add(4);
        fast.rx.spins.add(6);
        fast.rx.sleeps.add(7);
        fast.rx.doorbells.add(8);
    }
    if let Some(plain) = alloc_conn() {
        plain.opened(Role::Accepted);
        plain.describe(6, Role::Accepted, v6(443), v6(50_000));
        plain.stays(Reason::BelowThreshold);
        plain.stays(Reason::NoAnswer);
        plain.rx.bytes.tcp.add(1);
    }
    if let Some(closed) = alloc_conn() {
        closed.opened(Role::Connecting);
        closed.describe(7, Role::Connecting, v4(1001), v4(2000));
        closed.tx.bytes.tcp.add(11);
        free_conn(closed);
    }
    if let Some(demoted) = alloc_conn() {
        demoted.opened(Role::Connecting);
        demoted.describe(7, Role::Connecting, v4(1002), v4(2000));
        demoted.upgraded(Transport::Shm);
        demoted.tx.bytes.indirect.add(100);
        demoted.tx.resent.add(40);
        demoted.demoted(Reason::Fdopen, false);
        demoted.moved_to(-1);
    }
    // Not described yet: not listed.
    if let Some(young) = alloc_conn() {
        young.opened(Role::Accepted);
        young.stays(Reason::BelowThreshold);
        young.tx.bytes.tcp.add(2);
    }
    // No connection yet.
    let _ = alloc_conn();
    ROOT.links.raise(1);
    ROOT.links_made.add_shared(2);
}

/// What the library does in the child of a fork, and the child's first use of a connection.
#[unsafe(no_mangle)]
pub extern "C" fn counting_forked() {
    sluice_stats::reset_after_fork(std::process::id());
    if let Some(mine) = alloc_conn() {
        mine.opened(Role::Connecting);
        mine.describe(
            9,
            Role::Connecting,
            SocketAddr::from(([10, 0, 0, 1], 1)),
            SocketAddr::from(([10, 0, 0, 2], 2)),
        );
        // As the engine does when a child uses a connection that it inherited; this one is new, so
        // nothing may change.
        adopt_conn(mine);
        mine.tx.bytes.tcp.add(17);
    }
}

/// Adds more connections than one chunk holds.
#[unsafe(no_mangle)]
pub extern "C" fn counting_many() {
    for port in 0..600 {
        if let Some(conn) = alloc_conn() {
            let addr = SocketAddr::from(([192, 0, 2, 1], port));
            conn.opened(Role::Accepted);
            conn.describe(100 + i32::from(port), Role::Accepted, addr, addr);
            conn.tx.bytes.tcp.add(1);
        }
    }
}

/// Forges the table: so many slots are said to be in use, and chunks to lie `step` bytes apart from
/// `first` on.
#[unsafe(no_mangle)]
pub extern "C" fn counting_forge(used: u32, first: usize, step: usize) {
    let root = std::ptr::from_ref(&ROOT).cast::<u8>().cast_mut();
    let word = |at: usize| {
        // SAFETY: inside the root, whose fields after the header are atomics; aligned; no other
        // thread runs now.
        unsafe { std::sync::atomic::AtomicUsize::from_ptr(root.add(at).cast()) }
    };
    let order = std::sync::atomic::Ordering::Relaxed;
    // Their places are the library's own affair: those are taken that tell.
    let place_of = |is_there: &dyn Fn(usize) -> bool| {
        const MARK: usize = 0x5151;
        let mut all = (size_of::<sluice_stats::Header>()..size_of_val(&ROOT)).step_by(8);
        all.find(|&at| {
            let before = word(at).swap(MARK, order);
            let found = is_there(MARK);
            word(at).store(before, order);
            found
        })
    };
    let chunks = place_of(&|mark| ROOT.chunk(0).is_some_and(|at| at.addr() == mark));
    let in_use = place_of(&|mark| ROOT.used() == mark);
    let (Some(chunks), Some(in_use)) = (chunks, in_use) else {
        std::process::abort();
    };
    for number in 0..sluice_stats::CHUNK_SLOTS {
        word(chunks + number * size_of::<usize>()).store(first + number * step, order);
    }
    word(in_use).store(used as usize, order);
}

/// How long a chunk is.
#[unsafe(no_mangle)]
pub extern "C" fn counting_chunk_len() -> usize {
    size_of::<sluice_stats::Chunk>()
}

/// Makes a chunk at `place`, of open connections whose counts are as high as they can be.
///
/// # Safety
/// `place` is memory of this program's, aligned and long enough.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn counting_fill(place: *mut u8) {
    for slot in 0..sluice_stats::CHUNK_LEN {
        let conn = sluice_stats::Conn::new();
        let addr = SocketAddr::from(([0xffff; 8], 65535));
        conn.describe(i32::MIN, Role::Connecting, addr, addr);
        let longest = Reason::ALL.iter().max_by_key(|reason| reason.words().len());
        conn.demoted(longest.copied().unwrap_or(Reason::Off), false);
        for way in [&conn.tx, &conn.rx] {
            for count in [&way.bytes.tcp, &way.bytes.direct, &way.bytes.indirect] {
                count.add(u64::MAX);
            }
            for count in [&way.bytes.file, &way.resent, &way.spins, &way.sleeps] {
                count.add(u64::MAX);
            }
            way.ring_len.set(u64::MAX);
        }
        // SAFETY: the caller's word. The generation, which comes first, is odd for a slot in use.
        unsafe {
            let at = place.add(slot * size_of_val(&conn));
            at.cast::<sluice_stats::Conn>().write(conn);
            at.cast::<u32>().write(1);
        }
    }
}
