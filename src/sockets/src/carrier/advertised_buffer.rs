//! The buffer of a waiting recv, lent to the peer: registered, advertised, and taken back before
//! the program has it again.
//!
//! From the registration to its end the thread blocks signals, but not in its sleep. If a handler's
//! jump or a cancellation ends the sleep, glibc's clean-up of the frames (`thread.rs`) takes the
//! buffer back. Bytes that landed in it, and that no recv has got, then go to their place in the
//! ring, where any recv finds them.
//!
//! Call these functions with the socket's rx lock held, all but [`is_any`], [`is_over`], [`revoke`]
//! and [`Lent::shut`](super::lent::Lent::shut).

use super::link::of;
use super::loan_trial;
use crate::io_wait::IoWait;
use crate::socket::{Known, Socket};
use crate::wake;
use core::ptr;
use core::sync::atomic::{Ordering, fence};
use libc::iovec;
use sluice_runtime::in_handler::is_in_handler;
use sluice_runtime::iov::Cursor;
use sluice_stream::pump::Loan;
use sluice_transport::verbs::endpoint::Endpoint;
use sluice_transport::verbs::{self, memory};

/// The most that is lent of one buffer.
const MOST: usize = 64 << 20;

/// Returns whether the socket has lent a buffer.
#[inline]
pub fn is_any(sock: &Socket) -> bool {
    sock.lent.frame.load(Ordering::Relaxed) != 0
}

/// Returns whether the buffer that the recv of this frame has lent is to be taken back: it is full,
/// or its writer wants it so. Not if another recv has taken it back, since that is no news twice.
pub fn is_over(sock: &'static Socket, frame: usize) -> bool {
    if sock.lent.frame.load(Ordering::Relaxed) != frame {
        return false;
    }
    of(sock).is_none_or(|(endpoint, stream)| {
        let is_lent = endpoint.inside(|inner| inner.pump.is_lent(stream));
        is_lent == Some(false)
    })
}

/// What a recv that waits on its lent buffer finds.
pub enum Found {
    /// This many more bytes are in the buffer.
    Bytes(usize),
    /// Nothing: the recv waits on.
    Nothing,
    /// The loan has ended: look at the ring.
    Ended,
}

/// Lends the buffer of a recv that is about to wait with nothing unread, if that is worth it.
/// Returns whether it did.
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
    let ring_len = sock.rx.ring().map_or(0, |ring| ring.len() as usize);
    // The first bytes end a call that does not wait for all, and they come by the ring's length.
    let len = len.min(if waitall { MOST } else { ring_len });
    // `ibv_reg_mr` calls `malloc`, which a handler may have interrupted.
    if is_any(sock) || len.min(ring_len) < verbs::least() as usize || is_in_handler() {
        return false;
    }
    if verbs::mode::is_learnt() && !loan_trial::lends(sock, (len, waitall), io_wait.is_fresh()) {
        return false;
    }
    if !lend_now(sock, (endpoint, stream), (base, len), waitall, io_wait) {
        loan_trial::cannot_lend(sock);
        return false;
    }
    true
}

fn lend_now(
    sock: &'static Socket,
    (endpoint, stream): (&'static Endpoint, u16),
    (base, len): (*mut libc::c_void, usize),
    waitall: bool,
    io_wait: &mut IoWait,
) -> bool {
    let now = endpoint.with_stream(stream, |pump| {
        (
            pump.may_lend(stream, len as u32),
            pump.is_direct() && !pump.has_direct(),
        )
    });
    match now {
        Some((true, _)) => {}
        Some((_, true)) => {
            endpoint.want_direct_qp();
            return false;
        }
        _ => return false,
    }
    if !memory::take(len) {
        return false;
    }
    // A handler must neither find libibverbs in the middle of a call nor leave it by a jump. If
    // this recv has lent before, and another thread has taken that buffer back, the signals are
    // still blocked: `mask` keeps what to restore.
    if io_wait.mask.is_none() {
        io_wait.mask = sluice_runtime::thread::block_signals();
    }
    // SAFETY: `cursor` covers the buffers of a recv that waits, which takes its buffer back before
    // it returns. The device refuses an address that is not mapped.
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

/// Looks for bytes in the buffer that the recv of `io_wait` has lent.
pub fn look(sock: &'static Socket, cursor: &mut Cursor, io_wait: &mut IoWait) -> Found {
    let lent = &sock.lent;
    if lent.frame.load(Ordering::Relaxed) != io_wait.frame() {
        // Another recv has lent it. Its bytes go to the ring, for the first recv that comes.
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
        // More may have landed before the buffer was shut.
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
        lent.was_used(used);
        forget(sock, io_wait);
    }
    match (landed, goes_on) {
        (0, true) => Found::Nothing,
        (0, false) => Found::Ended,
        _ => Found::Bytes(n),
    }
}

/// Moves the cursors over `n` bytes that did not lie in the ring. False: the head was seized.
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

/// Takes the lent buffer back, whichever recv lent it. What has landed there goes to the ring.
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
    sock.lent.was_used(had + n != 0);
    let (Some(ring), true) = (
        sock.rx.ring(),
        had + n <= sock.lent.len.load(Ordering::Relaxed),
    ) else {
        return;
    };
    let from = ptr::with_exposed_provenance::<u8>(sock.lent.base.load(Ordering::Relaxed));
    let at = sock.rx.at.load(Ordering::Relaxed);
    if n != 0 && n as u64 <= ring.len() {
        // SAFETY: `from` is the buffer of a recv that has not returned, and `had + n` bytes of it
        // have landed. The peer writes to this part of the ring only after credit for it, which
        // comes later.
        unsafe { ring.copy_in(at, from.add(had), n) };
    }
}

/// Takes the buffer of this wait's recv back: it leaves, or does not sleep.
pub fn back(sock: &'static Socket, io_wait: &mut IoWait) {
    if sock.lent.frame.load(Ordering::Relaxed) == io_wait.frame() {
        end(sock);
    }
    io_wait.lent = false;
    sluice_runtime::thread::unblock_signals(io_wait.mask.take());
}

/// As [`back`], but takes the lock: the recv ends, or a jump or a cancellation leaves its frame.
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
