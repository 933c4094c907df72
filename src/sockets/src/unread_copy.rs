//! What lay unread in the ring when a stream was demoted, kept until it has come again by TCP.
//!
//! The writer's side sends it again. If its process is killed before it has, nobody else has those
//! bytes, while on TCP they would long have been in the reader's kernel. So the reader keeps a
//! copy, and reads from it what is missing when TCP has ended.
//!
//! Hooks do not see all reads: `splice`, stdio, another process that holds the socket. What the
//! kernel counts beyond what hooks have read, somebody else has got, perhaps these very bytes: then
//! the copy is thrown away.
//!
//! Of processes that share the socket one has the copy ([`Family::keeps`]). Another that reads up
//! to the place where bytes are missing gets ECONNRESET: it must not take that for the end of the
//! stream.
//!
//! [`Family::keeps`]: super::family::Family::keeps

pub mod store;

use crate::family::{Family, Unread};
use crate::nap::Waited;
use crate::sock::{Event, Sock, State, half};
use crate::tcp::{AtHand, at_hand};
use crate::{full, remote, tcp};
use core::sync::atomic::{AtomicU64, Ordering};
use libc::c_int;
use sluice_fabric::sys;
use sluice_runtime::iov::Cursor;
use sluice_runtime::process;
use sluice_stats::Reason;
use sluice_transport::verbs;

/// Where the next byte of a demoted stream is.
pub enum Step {
    /// The kernel's to say.
    Kernel,
    /// Not there yet.
    Late,
    /// In another thread's hands, perhaps: it is on its way back from the kernel, and what it has
    /// got is not counted.
    Busy,
    /// So many were taken from the copy.
    Moved(usize),
    /// A relative's: the connection looks reset here.
    Lost,
}

/// Under the rx lock, of a connection that is about to be reset as its peer's kernel would have
/// done it: may what TCP holds unread become the copy? It must not be readable by a call in the
/// kernel, nor by others.
pub fn may_keep_of_tcp(sock: &'static Sock) -> bool {
    let shared = sock.family().is_none_or(|f| f.is_shared(process::pid()));
    !shared && !sock.unread_copy.are_kept() && sock.rx.in_kernel() == 0
}

/// The same lock, after [`may_keep_of_tcp`] and the stream, what lay unread in which is the copy
/// by now: what TCP holds unread, which a reset made here would drop, goes in front of it. False: a
/// call has gone to the kernel meanwhile, or there is no memory.
pub fn keep_of_tcp(sock: &'static Sock) -> bool {
    // A thread that comes from here on waits for the lock, and finds what is owed then: the kernel
    // would tell of the end at once.
    sock.rx.state.on(Event::ResetBegins);
    let mut kept = None;
    if sock.rx.in_kernel() == 0 {
        let fd = sock.fd.load(Ordering::Relaxed);
        let len = tcp::unread(fd) as usize;
        kept = sock.unread_copy.keep_of_tcp(fd, len);
    }
    if let Some(kept) = kept {
        let owed = sock.rx.kernel_bytes() + kept as u64;
        sock.rx.owed.store(owed, Ordering::Relaxed);
    }
    sock.rx.state.on(Event::ResetOver);
    kept.is_some()
}

/// Under the rx lock of a socket that reads TCP and has a copy: takes at most `most` bytes from it
/// if TCP has ended without them. With MSG_TRUNC they are dropped; with MSG_PEEK they stay.
///
/// # Safety
/// The caller's buffers.
pub unsafe fn step(
    sock: &'static Sock,
    fd: c_int,
    cursor: &mut Cursor,
    most: usize,
    flags: c_int,
) -> Step {
    if missing(sock, 0).is_none_left() {
        renounce(sock);
        return Step::Kernel;
    }
    let takes = flags & libc::MSG_PEEK == 0;
    let mut before = 0;
    let over = match at_hand(fd) {
        // What TCP brings came after it.
        _ if sock.unread_copy.is_whole() => true,
        AtHand::Bytes if !takes && follows(sock, fd) => {
            // SAFETY: the caller's buffers.
            before = unsafe { tcp::peek(fd, cursor, flags) };
            if before == 0 {
                return Step::Kernel;
            }
            if before == most || before as u64 != tcp::unread(fd) {
                // Of very many pieces it looks at the first.
                return Step::Moved(before);
            }
            true
        }
        AtHand::Bytes => return Step::Kernel,
        AtHand::Nothing => false,
        AtHand::Over if !is_the_copys(sock, fd) => return Step::Kernel,
        AtHand::Over => true,
    };
    if are_others_reading(sock, fd) {
        renounce(sock);
        return Step::Kernel;
    }
    if !over {
        return Step::Late;
    }
    if sock.rx.in_kernel() != 0 {
        return Step::Busy;
    }
    if sock.unread_copy.are_lost() {
        if before != 0 {
            return Step::Moved(before);
        }
        renounce(sock);
        sock.conn().stays(Reason::Shared);
        return Step::Lost;
    }
    let Some((at, n)) = take(sock, before as u64, most - before, takes) else {
        renounce(sock);
        return Step::Kernel;
    };
    // SAFETY: `take` gives a piece of the copy.
    let mut from = unsafe { sock.unread_copy.base.load(Ordering::Relaxed).add(at) };
    let mut beyond = *cursor;
    beyond.advance(before, |_, _| ());
    beyond.advance(n, |to, n| {
        if flags & libc::MSG_TRUNC == 0 {
            // SAFETY: the caller's buffer, and as many bytes of the copy.
            unsafe { core::ptr::copy_nonoverlapping(from, to, n) };
        }
        // SAFETY: still inside, or its end.
        from = unsafe { from.add(n) };
    });
    if takes {
        *cursor = beyond;
    }
    Step::Moved(before + n)
}

/// Under the rx lock, where bytes lie on TCP: are they the last that it brings, so that a read
/// which takes them goes on in the copy?
pub fn follows(sock: &Sock, fd: c_int) -> bool {
    is_over(fd) && !sock.unread_copy.is_whole() && unread_in_copy(sock, fd) != 0
}

/// Takes at most `most` bytes out of the copy, or only looks for them: where they begin, after
/// `unread` ones that TCP has, and how many. `None`: TCP has ended before the copy begins.
fn take(sock: &Sock, unread: u64, most: usize, takes: bool) -> Option<(usize, usize)> {
    let len = sock.unread_copy.len.load(Ordering::Relaxed);
    let missing = missing(sock, unread);
    let all = usize::try_from(missing.all)
        .ok()
        .filter(|&all| all <= len)?;
    let n = (all - missing.gone).min(most);
    if takes {
        sock.unread_copy.taken.fetch_add(n, Ordering::Relaxed);
    }
    (n != 0).then_some((len - all + missing.gone, n))
}

/// Under the rx lock, when a stream is left with `start..end` of its ring unread, up to whose end
/// TCP brings `owed` bytes, or nothing of these if they are `whole`: keeps a copy, unless a
/// relative has one.
pub fn keep(sock: &Sock, (start, end): (u64, u64), owed: u64, whole: bool) {
    let len = end.wrapping_sub(start) as usize;
    owes(sock, owed);
    let family = sock.family();
    if family.is_none_or(|family| family.keeps(process::pid())) {
        if let Some(ring) = sock.rx.ring() {
            sock.unread_copy.keep(ring, start, end, whole);
        }
    } else {
        sock.unread_copy.lose(len, whole);
    }
    if let Some(family) = family
        && sock.rx.state() != State::Inherited
    {
        family.leave_unread(Unread { len, owed, whole });
    }
}

/// Under the rx lock, in a relative that finds the stream left: what lay unread in it is to come by
/// TCP, and the copy is the other process's.
pub fn adopt(sock: &'static Sock) {
    let Some(unread) = sock.family().and_then(Family::unread) else {
        return;
    };
    sock.unread_copy.lose(unread.len, unread.whole);
    count_parents_reads(sock, unread.owed.saturating_sub(unread.len as u64));
    owes(sock, unread.owed);
    let fd = sock.fd.load(Ordering::Relaxed);
    if missing(sock, 0).is_none_left() || are_others_reading(sock, fd) {
        renounce(sock);
    }
}

/// In the child of a fork: the copy is the parent's.
pub fn after_fork(sock: &'static Sock) {
    if !sock.unread_copy.are_kept() {
        return;
    }
    if missing(sock, 0).is_none_left() {
        return renounce(sock);
    }
    let len = sock.unread_copy.len.load(Ordering::Relaxed);
    sock.unread_copy.lose(len, sock.unread_copy.is_whole());
}

/// Under the rx lock: nothing is owed to this process any more.
pub fn renounce(sock: &'static Sock) {
    sock.rx.owed.store(0, Ordering::Relaxed);
    sock.unread_copy.forget();
}

/// Has anybody read bytes from TCP that did not pass through this process's hooks?
fn are_others_reading(sock: &Sock, fd: c_int) -> bool {
    if sock.unread_copy.is_whole() {
        return false;
    }
    let calls = sock.rx.calls.load(Ordering::SeqCst);
    let Some(input) = tcp::input(fd) else {
        return false;
    };
    // One more after the end: a FIN is counted, a reset is not. After a reset nobody can tell
    // whether a FIN came first: if without one all has come that is owed, a relative may have read
    // what is missing here.
    let doubtful = input.state == tcp::CLOSE
        && input.received >= sock.rx.owed.load(Ordering::Relaxed)
        && sock.is_shared();
    let mine = sock.rx.kernel_bytes() + u64::from(tcp::is_over(input.state));
    let more = input.read > mine || doubtful;
    // A thread returning from `recv` may not have added its bytes to the count yet.
    more && sock.rx.in_kernel() == 0 && sock.rx.calls.load(Ordering::SeqCst) == calls
}

/// What of the stream, up to the end of the copy, TCP has not brought.
struct Missing {
    /// So many bytes; those of the copy are the last ones,
    all: u64,
    /// of which these, the first, have been taken out of a copy.
    gone: usize,
}

impl Missing {
    const fn is_none_left(&self) -> bool {
        self.all == self.gone as u64
    }
}

/// Of what TCP has brought `unread` bytes have not been read yet.
fn missing(sock: &Sock, unread: u64) -> Missing {
    let by_tcp = sock.rx.kernel_bytes() + unread;
    let owed = sock.rx.owed.load(Ordering::Relaxed);
    let most = sock.unread_copy.len.load(Ordering::Relaxed) as u64;
    let all = if sock.unread_copy.is_whole() {
        most
    } else {
        owed.saturating_sub(by_tcp)
    };
    let gone = sock.unread_copy.taken.load(Ordering::Relaxed);
    Missing {
        all,
        gone: gone.min(all.min(most) as usize),
    }
}

/// Under the rx lock of an inherited stream, whose bytes follow the first `from` of TCP: the parent
/// may have read these since the fork.
pub fn count_parents_reads(sock: &Sock, from: u64) {
    let Some(input) = tcp::input(sock.fd.load(Ordering::Relaxed)) else {
        return;
    };
    let fin = u64::from(tcp::is_over(input.state));
    let read = from.min(input.read.saturating_sub(fin));
    let known = sock.rx.kernel_bytes();
    sock.rx.add_kernel_bytes(read.saturating_sub(known));
}

/// Longest wait for bytes that a peer sends again, in ns. It does so at once; it may have lost its
/// CPU, or be on another host.
pub fn owed_ns() -> u64 {
    if verbs::is_used() {
        full::FULL_REMOTE_NS
    } else {
        50_000_000
    }
}
/// After a peer was late, nobody waits so for so many times as long: a hostile one takes 5 % of our
/// time at most.
const OWED_PAUSE: u64 = 20;
static PAUSES_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Between two looks where the kernel gives no event.
const OWED_NAP_NS: u64 = 200_000;

/// [`owed`](super::sock::Half::owed) of a stream from another host that dropped bytes of the link:
/// how many come by TCP instead is not known yet.
pub const SOME: u64 = u64::MAX;

/// Until when a call that does not wait may have to wait for what is owed; 0: nothing ever was.
static OWED_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// The same, of the socket that uses a stream of a link to another host.
#[cfg(feature = "verbs")]
pub fn owes_on(near: &'static sluice_fabric::shm::Link, index: u32) {
    if let Some(sock) = crate::sock::sock_of(near, index) {
        owes(sock, SOME);
    }
}

/// Under the rx lock: what TCP is to bring by then was there before.
pub fn owes(sock: &Sock, bytes: u64) {
    sock.rx.owed.store(bytes, Ordering::Relaxed);
    OWED_UNTIL_NS.store(sys::rough_ns() + owed_ns(), Ordering::Relaxed);
}

/// For a look at many that does not wait and finds nothing: may anything be [owed](owes) to one of
/// them?
#[inline]
pub fn is_any_owed() -> bool {
    let until = OWED_UNTIL_NS.load(Ordering::Relaxed);
    until != 0 && sys::rough_ns() < until
}

/// As [`await_owed`], for the first of them to which anything is owed: a call that does not wait
/// waits for one at most. False: there is none. What is not known to have been in a ring ([`SOME`])
/// is left to readers.
#[cold]
pub fn await_first_of(mut socks: impl Iterator<Item = &'static Sock>) -> bool {
    let owes = |sock: &&Sock| !matches!(sock.rx.owed.load(Ordering::Relaxed), 0 | SOME);
    socks.find(owes).map(await_owed).is_some()
}

/// Bytes lay in the ring when the stream was demoted, and the program may know of them (its poll
/// said so, or a message of the peer's by another way). On TCP they would be there: a call that
/// does not wait finds them, too. Waits until the first of them is on TCP.
/// [`Interrupted`](Waited::Interrupted): none of them comes, and a signal did meanwhile, which a
/// call that goes on to wait tells.
#[cold]
pub fn await_owed(sock: &'static Sock) -> Waited {
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
pub fn await_all_owed(sock: &'static Sock) -> bool {
    if sock.rx.owed.load(Ordering::Relaxed) == 0 {
        return true;
    }
    await_owed(sock);
    await_rest_owed(sock, u64::MAX, owed_ns())
}

/// As [`await_owed`], until there is as much as the call asks for, or TCP takes no more of it
/// before some is read.
#[cold]
pub fn await_owed_for(sock: &'static Sock, asked: usize) -> Waited {
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
fn await_rest_owed(sock: &'static Sock, most: u64, still_ns: u64) -> bool {
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
pub fn by_tcp(sock: &Sock) -> u64 {
    sock.rx.kernel_bytes() + tcp::unread(sock.fd.load(Ordering::Relaxed))
}

/// A stream was demoted, and the program is about to end what it reads: waits until TCP has
/// [brought](by_tcp) so many bytes. What is not there by then is the copy's.
pub fn await_by_tcp(sock: &'static Sock, bytes: u64) {
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
pub fn call_in(sock: &'static Sock) {
    if await_all_owed(sock) {
        renounce_if(sock, || true);
    }
}

/// Has TCP bring what is owed to a program that reads on where nobody counts: no later call can
/// know what of it is still to come. What TCP has ended without stays for a reader by hooks.
pub fn part_with(sock: &'static Sock) {
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
fn renounce_if(sock: &'static Sock, is_so: impl Fn() -> bool) -> bool {
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
fn settle(sock: &'static Sock) {
    if !sock.unread_copy.are_kept() {
        sock.rx.owed.store(0, Ordering::Relaxed);
    }
}

/// Does TCP bring nothing more of what the copy has?
fn is_the_copys(sock: &Sock, fd: c_int) -> bool {
    is_cut_off(sock, fd) || has_ended(fd)
}

/// Has the program shut both halves down, and has the writer kept back what it had, or will the
/// kernel answer it by a reset?
fn is_cut_off(sock: &Sock, fd: c_int) -> bool {
    sock.unread_copy.is_whole()
        || sock.halves.load(Ordering::Acquire) == half::BOTH
            && tcp::state(fd) != Some(tcp::ESTABLISHED)
}

/// Has the peer's end, or its reset, come by TCP, so that no byte follows? It is there after the
/// last one.
pub fn has_ended(fd: c_int) -> bool {
    is_over(fd) && !tcp::has_bytes(fd)
}

/// Does TCP get nothing more? What it has may not be read yet.
fn is_over(fd: c_int) -> bool {
    tcp::state(fd).is_some_and(tcp::is_over)
}

/// For FIONREAD of a socket that reads TCP: what can be read from the copy, after what TCP has.
pub fn unread(sock: &'static Sock, fd: c_int) -> u64 {
    if !sock.unread_copy.are_kept() {
        return 0;
    }
    let section = sock.rx.lock.enter();
    section.map_or(0, |_section| unread_in_copy(sock, fd))
}

/// See [`unread`]; under the rx lock.
fn unread_in_copy(sock: &Sock, fd: c_int) -> u64 {
    if !sock.unread_copy.are_kept()
        || sock.unread_copy.are_lost()
        || !(is_cut_off(sock, fd) || is_over(fd))
    {
        return 0;
    }
    let Missing { all, gone } = missing(sock, tcp::unread(fd));
    let within = all <= sock.unread_copy.len.load(Ordering::Relaxed) as u64;
    if within && !are_others_reading(sock, fd) {
        all - gone as u64
    } else {
        0
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "tests make real connections")]
mod tests {
    use super::*;
    use crate::sock;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// What a relative reads at the end of TCP that 3 bytes are missing before: the bytes of its
    /// own copy, or, where the process that left the stream has it, a reset.
    fn reads(is_left: bool) -> (Result<Vec<u8>, ()>, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let here = listener.accept().unwrap().0;
        let fd = here.as_raw_fd();
        let sock = sock::alloc(fd, sock::role::ACCEPTED).unwrap();
        let family = sock.family_or_take().unwrap();
        peer.write_all(b"by TCP").unwrap();
        let (owed, len) = (9, 3);
        if is_left {
            assert!(family.keeps(1));
            let whole = false;
            family.leave_unread(Unread { len, owed, whole });
            adopt(sock);
        } else {
            let ring = b"own".to_vec();
            assert!(family.keeps(process::pid()) && family.keeps(process::pid()));
            let base = sys::map_zeroes(len, false).unwrap();
            // SAFETY: as long as the bytes.
            unsafe { core::ptr::copy_nonoverlapping(ring.as_ptr(), base, len) };
            sock.unread_copy.hold(base, len, false);
            owes(sock, owed);
        }
        drop(peer);
        let mut bytes = [0u8; 16];
        // SAFETY: room of ours.
        let by_tcp = unsafe { sys::recv(fd, bytes.as_mut_ptr(), 6, libc::MSG_WAITALL) };
        sock.rx.add_kernel_bytes(by_tcp.unwrap() as u64);
        while !has_ended(fd) {
            std::thread::yield_now();
        }
        let piece = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: 16,
        };
        // SAFETY: one piece, of ours.
        let mut cursor = unsafe { Cursor::new(&raw const piece, 1) };
        // SAFETY: room of ours.
        let got = match unsafe { step(sock, fd, &mut cursor, 16, 0) } {
            Step::Moved(n) => Ok(bytes[..n].to_vec()),
            Step::Lost => Err(()),
            _ => unreachable!("TCP has ended"),
        };
        let is_over = missing(sock, 0).is_none_left();
        sock.fds.store(0, Ordering::Release);
        sock::free(sock);
        (got, is_over)
    }

    #[test]
    fn bytes_that_a_killed_writer_owes_are_read_from_the_copy() {
        assert_eq!(reads(false), (Ok(b"own".to_vec()), true));
    }

    #[test]
    fn a_relative_without_the_copy_sees_a_reset_and_no_end() {
        assert_eq!(reads(true), (Err(()), true));
    }
}
