//! The buffer of a waiting recv, lent to the peer: registered, told, and taken back before the
//! program has it again.
//!
//! From the registration to its end the thread takes no signal but in its sleep. There a jump out
//! of a handler, or a cancellation, runs what glibc keeps for frames that are left so
//! (`thread.rs`), which takes the buffer back. What has landed in it by then and is nobody's yet
//! goes to its place in the ring, where any recv finds it.
//!
//! Under the socket's rx lock, but for [`Lent::shut`](super::lent::Lent::shut).

use super::link::of;
use crate::io_wait::IoWait;
use crate::socket::{Known, Socket};
use crate::wake;
use core::ptr;
use core::sync::atomic::{Ordering, fence};
use libc::iovec;
use sluice_runtime::iov::Cursor;
use sluice_stream::pump::Loan;
use sluice_transport::verbs::{self, memory};

/// Of one buffer no more is lent.
const MOST: usize = 64 << 20;

/// Has the socket lent a buffer?
#[inline]
pub fn is_any(sock: &Socket) -> bool {
    sock.lent.frame.load(Ordering::Relaxed) != 0
}

/// What a recv that waits has found.
pub enum Found {
    /// So many bytes more are in its buffer.
    Bytes(usize),
    /// It waits on.
    Nothing,
    /// Its buffer is its own again: look at the ring.
    Ended,
}

/// A recv is about to wait, and nothing is there: lends its buffer if that is worth it. True: it
/// did.
pub fn lend(sock: &'static Socket, cursor: &Cursor, waitall: bool, io_wait: &mut IoWait) -> bool {
    let Some((endpoint, stream)) = of(sock) else {
        return false;
    };
    let mut room = [iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    }; 2];
    let Some((base, len)) = cursor
        .rest(&mut room)
        .first()
        .map(|p| (p.iov_base, p.iov_len))
    else {
        return false;
    };
    let len = len.min(MOST);
    if is_any(sock) || len < verbs::least() as usize {
        return false;
    }
    let now = endpoint.with_stream(stream, |pump| {
        (
            pump.may_lend(stream, len as u32),
            pump.is_direct() && !pump.has_direct(),
        )
    });
    match now {
        Some((true, _)) => {}
        Some((_, true)) => {
            endpoint.want_lane();
            return false;
        }
        _ => return false,
    }
    if !memory::take(len) {
        return false;
    }
    // Neither is a handler to find libibverbs in the middle of this, nor to leave it there. They
    // are blocked already where this recv has lent before, and somebody else's has taken the buffer
    // back: what its mask was is known.
    if io_wait.mask.is_none() {
        io_wait.mask = sluice_runtime::thread::block_signals();
    }
    // SAFETY: the buffer of a call that waits; a buffer that is none is refused.
    let region = endpoint.inside(|inner| unsafe { inner.lend_out(base.cast(), len) });
    let Some(Ok(region)) = region else {
        memory::give(len);
        sluice_runtime::thread::unblock_signals(io_wait.mask.take());
        return false;
    };
    let loan = Loan {
        place: region.first(),
        key: region.remote_key(),
        len: len as u32,
        waitall,
    };
    let lent = &sock.lent;
    lent.base.store(base as usize, Ordering::Relaxed);
    lent.len.store(len, Ordering::Relaxed);
    lent.taken.store(0, Ordering::Relaxed);
    lent.frame.store(io_wait.frame(), Ordering::Relaxed);
    lent.region.store(region.into_raw(), Ordering::SeqCst);
    io_wait.note(sock);
    io_wait.lent = true;
    io_wait.abandoned = Some(revoke);
    let told = endpoint.with_stream(stream, |pump| pump.lend(stream, &loan).is_some());
    if told != Some(true) {
        back(sock, io_wait);
        return false;
    }
    true
}

/// The recv whose buffer is lent looks again.
pub fn look(sock: &'static Socket, cursor: &mut Cursor, io_wait: &mut IoWait) -> Found {
    let lent = &sock.lent;
    if lent.frame.load(Ordering::Relaxed) != io_wait.frame() {
        // Another recv's: what is there goes to the first that comes.
        end(sock);
        return Found::Ended;
    }
    let Some((endpoint, stream)) = of(sock) else {
        back(sock, io_wait);
        return Found::Ended;
    };
    let now = endpoint.with_stream(stream, |pump| (pump.landed(stream), pump.is_lent(stream)));
    let (mut landed, goes_on) = now.unwrap_or((0, false));
    if !goes_on {
        sock.lent.shut();
        // Between the look and this more may have come.
        landed = endpoint
            .with_stream(stream, |pump| pump.revoke(stream))
            .unwrap_or(landed);
    }
    let n = landed as usize;
    let had = lent.taken.load(Ordering::Relaxed);
    let fits = had as usize + n <= lent.len.load(Ordering::Relaxed);
    if n != 0 && fits && consume(sock, n) {
        lent.taken.store(had + landed, Ordering::Relaxed);
        cursor.advance(n, |_, _| ());
    } else {
        landed = 0;
    }
    if !goes_on {
        let used = lent.taken.load(Ordering::Relaxed) != 0;
        let rx = &sock.conn().rx;
        if used {
            &rx.adverts_fresh
        } else {
            &rx.adverts_stale
        }
        .add(1);
        forget(sock, io_wait);
    }
    match (landed, goes_on) {
        (0, true) => Found::Nothing,
        (0, false) => Found::Ended,
        _ => Found::Bytes(n),
    }
}

/// The words move over bytes that did not lie in the ring.
fn consume(sock: &'static Socket, n: usize) -> bool {
    let (Some(dir), Some(link)) = (sock.rx.dir(), sock.link()) else {
        return false;
    };
    let at = sock.rx.at.load(Ordering::Relaxed);
    let to = at + n as u64;
    let head = dir.rx.head.read();
    if dir.rx.head.consume(head.round, at, to).is_err() {
        return false;
    }
    sock.rx.at.store(to, Ordering::Relaxed);
    let linked = sock.rx.linked.load(Ordering::Relaxed);
    sock.rx.linked.store(linked + n as u64, Ordering::Relaxed);
    sock.conn().rx.bytes.direct.add(n as u64);
    fence(Ordering::SeqCst);
    let waiters = dir.tx_wishes.waiters.load(Ordering::Relaxed);
    wake::peer(link, waiters, sock.index.load(Ordering::Relaxed));
    true
}

fn forget(sock: &Socket, io_wait: &mut IoWait) {
    sock.lent.frame.store(0, Ordering::Relaxed);
    io_wait.lent = false;
    sluice_runtime::thread::unblock_signals(io_wait.mask.take());
}

/// The buffer is its program's again, of whichever recv: what has landed there goes to the ring.
pub fn end(sock: &'static Socket) {
    sock.lent.shut();
    if sock.lent.frame.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    let Some((endpoint, stream)) = of(sock) else {
        return;
    };
    let landed = endpoint.with_stream(stream, |pump| pump.revoke(stream));
    sock.conn().rx.adverts_revoked.add(1);
    let had = sock.lent.taken.load(Ordering::Relaxed) as usize;
    let n = landed.unwrap_or(0) as usize;
    let (Some(ring), true) = (
        sock.rx.ring(),
        had + n <= sock.lent.len.load(Ordering::Relaxed),
    ) else {
        return;
    };
    let from = ptr::with_exposed_provenance::<u8>(sock.lent.base.load(Ordering::Relaxed));
    let at = sock.rx.at.load(Ordering::Relaxed);
    if n != 0 && n as u64 <= ring.len() {
        // SAFETY: the recv's buffer, in which so much has landed; the peer has written nothing to
        // this part of the ring, and does not before it is told that it was read.
        unsafe { ring.copy_in(at, from.add(had), n) };
    }
}

/// The recv of this wait leaves, or does not sleep: its buffer is its own again.
pub fn back(sock: &'static Socket, io_wait: &mut IoWait) {
    if sock.lent.frame.load(Ordering::Relaxed) == io_wait.frame() {
        end(sock);
    }
    io_wait.lent = false;
    sluice_runtime::thread::unblock_signals(io_wait.mask.take());
}

/// As [`back`], without the lock: the recv ends, or its frame is left by a jump or a cancellation.
#[cold]
pub fn revoke(known: Known, io_wait: &mut IoWait) {
    let sock = known.sock();
    if sock.lent.frame.load(Ordering::Relaxed) == io_wait.frame() {
        sock.lent.shut();
        if let Ok(_section) = sock.rx.lock.enter() {
            back(sock, io_wait);
        }
    }
    io_wait.lent = false;
    sluice_runtime::thread::unblock_signals(io_wait.mask.take());
}
