//! Calls that wait until TCP brings what was in a link before.

use super::owed::{SOME, owed_ns};
use super::{are_others_reading, is_cut_off, is_over, renounce, unread_in_copy};
use crate::io_wait::Waited;
use crate::socket::Socket;
use crate::{remote, tcp};
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::sys;

/// After a peer was late, nobody waits so for so many times as long: a hostile one takes 5 % of our
/// time at most.
const OWED_PAUSE: u64 = 20;
static PAUSES_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Between two looks where the kernel gives no event.
const OWED_NAP_NS: u64 = 200_000;

/// As [`await_owed`], for the first of them to which anything is owed: a call that does not wait
/// waits for one at most. False: there is none. What is not known to have been in a ring ([`SOME`])
/// is left to readers.
#[cold]
pub fn await_first_of(mut socks: impl Iterator<Item = &'static Socket>) -> bool {
    let owes = |sock: &&Socket| !matches!(sock.rx.owed.load(Ordering::Relaxed), 0 | SOME);
    socks.find(owes).map(await_owed).is_some()
}

/// Bytes lay in the ring when the stream was demoted, and the program may know of them (its poll
/// said so, or a message of the peer's by another way). On TCP they would be there: a call that
/// does not wait finds them, too. Waits until the first of them is on TCP.
/// [`Interrupted`](Waited::Interrupted): none of them comes, and a signal did meanwhile, which a
/// call that goes on to wait tells.
#[cold]
pub fn await_owed(sock: &'static Socket) -> Waited {
    let (read, owed) = (sock.rx.kernel_bytes(), sock.rx.owed.load(Ordering::Relaxed));
    if owed == SOME {
        // Of these one call waits.
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
    remote::await_return(sock, end);
    let most = sys::timespec(end.saturating_sub(sys::now_ns()));
    let mut shown = sys::poll_one(fd, libc::POLLIN, Some(most));
    let mut late = shown == Ok(0);
    let mut was_interrupted = false;
    // After the program's SHUT_RD the kernel always says that there is something, and gives no
    // event when there is.
    while !late && !tcp::has_bytes(fd) && !tcp::has_ended(fd) {
        if shown == Err(libc::EINTR) {
            // On TCP they would lie there, and no signal keeps a call from finding them.
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

/// As [`await_owed`], until all of them are: for a call that tells how many there are, or is
/// nobody's to follow. False: not all.
#[cold]
pub fn await_all_owed(sock: &'static Socket) -> bool {
    if sock.rx.owed.load(Ordering::Relaxed) == 0 {
        return true;
    }
    await_owed(sock);
    await_rest_owed(sock, u64::MAX, owed_ns())
}

/// As [`await_owed`], until there is as much as the call asks for, or TCP takes no more of it
/// before some is read.
#[cold]
pub(crate) fn await_owed_for(sock: &'static Socket, asked: usize) -> Waited {
    let waited = await_owed(sock);
    if waited != Waited::Interrupted {
        await_rest_owed(sock, asked as u64, STILL_NS);
    }
    waited
}

/// Where so long no more comes, TCP has no room, in ns.
const STILL_NS: u64 = 3_000_000;

/// After [`await_owed`]: until `most` of what is owed is on TCP, or nothing more has come for
/// `still_ns`. False: there is not so much.
fn await_rest_owed(sock: &'static Socket, most: u64, still_ns: u64) -> bool {
    let (mut last, mut end) = (0, sys::now_ns() + still_ns);
    loop {
        // 0 where the peer was late.
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

/// How many bytes TCP has brought, also those that nobody has read.
pub fn by_tcp(sock: &Socket) -> u64 {
    sock.rx.kernel_bytes() + tcp::unread(sock.fd.load(Ordering::Relaxed))
}

/// A stream was demoted, and the program is about to end what it reads: waits until TCP has
/// [brought](by_tcp) so many bytes. What is not there by then is the copy's.
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

/// Has TCP bring what is owed, so that later calls look for none of it: the program is about to
/// lose what that takes. One whose peer is late goes on looking.
pub fn call_in(sock: &'static Socket) {
    if await_all_owed(sock) {
        renounce_if(sock, || true);
    }
}

/// Has TCP bring what is owed to a program that reads on where nobody counts: no later call can
/// know what of it is still to come. What TCP has ended without stays for a reader by hooks.
pub(crate) fn part_with(sock: &'static Socket) {
    if sock.rx.owed.load(Ordering::Relaxed) == 0 {
        return;
    }
    await_all_owed(sock);
    renounce_if(sock, || {
        unread_in_copy(sock, sock.fd.load(Ordering::Relaxed)) == 0
    });
}

/// A peer was late.
fn pause() {
    PAUSES_UNTIL_NS.store(sys::now_ns() + OWED_PAUSE * owed_ns(), Ordering::Relaxed);
}

/// Whether it did.
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

/// Nobody waits for what is owed any more; but what is kept of it is still watched.
fn settle(sock: &'static Socket) {
    if !sock.unread_copy.are_kept() {
        sock.rx.owed.store(0, Ordering::Relaxed);
    }
}
