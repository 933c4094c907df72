//! Waits until TCP brings what was on a link before.

use super::owed::{SOME, owed_ns};
use super::{are_others_reading, is_cut_off, is_over, renounce, unread_in_copy};
use crate::io_wait::Waited;
use crate::socket::Socket;
use crate::{carrier, tcp};
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::sys;

/// After a peer was late, no call waits for owed bytes for so many times as long: a hostile peer
/// costs at most 5 % of our time.
const OWED_PAUSE: u64 = 20;
static PAUSES_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Between two looks where the kernel gives no event.
const OWED_NAP_NS: u64 = 200_000;

/// [`await_owed`] for the first socket to which a known number of bytes is owed: a call that does
/// not wait waits for one at most. False: there is none. A socket owed [`SOME`] is left to readers.
#[cold]
pub fn await_first_of(mut socks: impl Iterator<Item = &'static Socket>) -> bool {
    let owes = |sock: &&Socket| !matches!(sock.rx.owed.load(Ordering::Relaxed), 0 | SOME);
    socks.find(owes).map(await_owed).is_some()
}

/// Waits until the first owed byte is on TCP. The bytes lay in the ring when the stream was
/// demoted, and the program may know of them, from poll or from the peer: on TCP a call that does
/// not wait would find them. [`Interrupted`](Waited::Interrupted): none has come, and a signal
/// handler ran meanwhile.
#[cold]
pub fn await_owed(sock: &'static Socket) -> Waited {
    let (read, owed) = (sock.rx.kernel_bytes(), sock.rx.owed.load(Ordering::Relaxed));
    if owed == SOME {
        // Only one call waits for an unknown number.
        sock.rx.owed.store(0, Ordering::Relaxed);
    }
    if read >= owed {
        settle(sock);
        return Waited::News;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    if is_cut_off(sock, fd) || sys::now_ns() < PAUSES_UNTIL_NS.load(Ordering::Relaxed) {
        return Waited::News;
    }
    // A relative may have read them by now.
    if renounce_if(sock, || are_others_reading(sock, fd)) {
        return Waited::News;
    }
    let end = sys::now_ns() + owed_ns();
    carrier::await_return(sock, end);
    let most = sys::timespec(end.saturating_sub(sys::now_ns()));
    let mut shown = sys::poll_one(fd, libc::POLLIN, Some(most));
    let mut late = shown == Ok(0);
    let mut was_interrupted = false;
    // After SHUT_RD the kernel always reports POLLIN, and gives no event when bytes come.
    while !late && !tcp::has_bytes(fd) && !tcp::has_ended(fd) {
        if shown == Err(libc::EINTR) {
            // On TCP the bytes would be there, and a signal would not keep the call from them.
            was_interrupted = true;
            if renounce_if(sock, || are_others_reading(sock, fd)) {
                return Waited::Interrupted;
            }
        }
        shown = sys::poll_one(-1, 0, Some(sys::timespec(OWED_NAP_NS)));
        late = sys::now_ns() >= end;
    }
    if late {
        settle(sock);
        pause();
    }
    if late && was_interrupted {
        Waited::Interrupted
    } else {
        Waited::News
    }
}

/// Like [`await_owed`], but for all owed bytes: for a call that reports their number, or hands the
/// socket to a reader without hooks. False: some are missing.
#[cold]
pub fn await_all_owed(sock: &'static Socket) -> bool {
    if sock.rx.owed.load(Ordering::Relaxed) == 0 {
        return true;
    }
    await_owed(sock);
    await_rest_owed(sock, u64::MAX, owed_ns())
}

/// Like [`await_owed`], but until TCP has as many as the call asks for, or has no room for more.
#[cold]
pub(crate) fn await_owed_for(sock: &'static Socket, asked: usize) -> Waited {
    let waited = await_owed(sock);
    if waited != Waited::Interrupted {
        await_rest_owed(sock, asked as u64, STILL_NS);
    }
    waited
}

/// If nothing more comes for so long, in ns, TCP has no room.
const STILL_NS: u64 = 3_000_000;

/// After [`await_owed`]: waits until `most` of the owed bytes are on TCP, or nothing more has come
/// for `still_ns`. False: fewer are there.
fn await_rest_owed(sock: &'static Socket, most: u64, still_ns: u64) -> bool {
    let (mut last, mut end) = (0, sys::now_ns() + still_ns);
    loop {
        // 0 if the peer was late.
        let owed = sock.rx.owed.load(Ordering::Relaxed);
        let missing = owed.saturating_sub(sock.rx.kernel_bytes()).min(most);
        let fd = sock.fd.load(Ordering::Relaxed);
        let here = tcp::unread(fd);
        if here > last {
            (last, end) = (here, sys::now_ns() + still_ns);
        }
        let over = sock.unread_copy.is_whole() || tcp::has_ended(fd);
        if here >= missing || over || sys::now_ns() >= end {
            return here >= missing;
        }
        if renounce_if(sock, || are_others_reading(sock, fd)) {
            return true;
        }
        let _ = sys::poll_one(-1, 0, Some(sys::timespec(OWED_NAP_NS)));
    }
}

/// How many bytes TCP has brought, read or not.
pub fn by_tcp(sock: &Socket) -> u64 {
    sock.rx.kernel_bytes() + tcp::unread(sock.fd.load(Ordering::Relaxed))
}

/// The program is about to shut down reading after a demotion: waits until TCP has
/// [brought](by_tcp) `bytes`. The rest must come from the copy.
pub(crate) fn await_by_tcp(sock: &'static Socket, bytes: u64) {
    let begin = sys::now_ns();
    if begin < PAUSES_UNTIL_NS.load(Ordering::Relaxed) {
        return;
    }
    while by_tcp(sock) < bytes && !is_over(sock.fd.load(Ordering::Relaxed)) {
        if sys::now_ns() >= begin + owed_ns() {
            return pause();
        }
        if renounce_if(sock, || {
            are_others_reading(sock, sock.fd.load(Ordering::Relaxed))
        }) {
            return;
        }
        let _ = sys::poll_one(-1, 0, Some(sys::timespec(OWED_NAP_NS)));
    }
}

/// Waits for everything owed and then forgets the debt, since the program is about to give up what
/// later waits need. If the peer is late, the debt stays.
pub fn call_in(sock: &'static Socket) {
    if await_all_owed(sock) {
        renounce_if(sock, || true);
    }
}

/// Waits for everything owed before the program reads on past the hooks, where reads are not
/// counted. Bytes that TCP has ended without stay in the copy for a reader by hooks.
pub(crate) fn part_with(sock: &'static Socket) {
    if sock.rx.owed.load(Ordering::Relaxed) == 0 {
        return;
    }
    await_all_owed(sock);
    renounce_if(sock, || {
        unread_in_copy(sock, sock.fd.load(Ordering::Relaxed)) == 0
    });
}

/// A peer was late: see [`OWED_PAUSE`].
fn pause() {
    PAUSES_UNTIL_NS.store(sys::now_ns() + OWED_PAUSE * owed_ns(), Ordering::Relaxed);
}

/// Renounces under the rx lock if `is_so`. Returns whether it did.
fn renounce_if(sock: &'static Socket, is_so: impl Fn() -> bool) -> bool {
    let Ok(_section) = sock.rx.lock.enter() else {
        return false;
    };
    let renounces = is_so();
    if renounces {
        renounce(sock);
    }
    renounces
}

/// No call waits for owed bytes any more. If there is a copy, the count stays, to watch the copy.
fn settle(sock: &'static Socket) {
    if !sock.unread_copy.are_kept() {
        sock.rx.owed.store(0, Ordering::Relaxed);
    }
}
