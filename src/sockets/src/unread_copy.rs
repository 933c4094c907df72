//! The unread copy: what lay unread in the ring at a demotion, kept until TCP has brought it.
//!
//! The writer re-sends those bytes. If its process is killed first, they would be lost, though on
//! TCP they would have been in the reader's kernel. So the reader keeps a copy, and reads the
//! missing bytes from it when TCP has ended.
//!
//! Hooks do not see all reads: `splice`, stdio, another process that holds the socket. If the
//! kernel counts more bytes read than the hooks have, another reader may have got these very bytes,
//! and the copy is discarded.
//!
//! Of processes that share the socket, the stream's owner has the copy. Another that reads up to
//! the missing bytes gets ECONNRESET, since it must not take that place for the stream's end.

pub mod awaiting;
pub mod owed;
pub mod store;

pub use self::owed::{SOME, is_any_owed, owed_ns, owes};

use crate::fork_shared::{Family, Unread};
use crate::socket::{Event, Socket, half};
use crate::tcp;
use crate::tcp::{AtHand, at_hand};
use core::sync::atomic::Ordering;
use libc::c_int;
use sluice_runtime::iov::Cursor;
use sluice_runtime::process;
use sluice_stats::Reason;

/// Where the next byte of a demoted stream is.
pub enum Step {
    /// The kernel decides.
    Kernel,
    /// Not here yet.
    NotYet,
    /// Unknown: another thread returning from the kernel may not have counted its bytes yet.
    Busy,
    /// So many bytes were taken from the copy, or from TCP in front of it.
    Moved(usize),
    /// In a relative's copy: the connection looks reset here.
    Lost,
}

/// Returns whether an emulated reset may move what TCP holds unread into the copy: no relative and
/// no call in the kernel may be able to read it meanwhile. Call with the rx lock held.
pub(crate) fn may_keep_of_tcp(sock: &'static Socket) -> bool {
    let shared = sock.family().is_none_or(|f| f.is_shared(process::pid()));
    !shared && !sock.unread_copy.are_kept() && sock.rx.in_kernel() == 0
}

/// Moves what TCP holds unread into the copy, before what the ring held, since an emulated reset
/// drops it from the kernel. Call under the same lock, after [`may_keep_of_tcp`] and after the
/// ring's unread bytes were copied. False: a call has entered the kernel meanwhile, or there is no
/// memory.
pub(crate) fn keep_of_tcp(sock: &'static Socket) -> bool {
    // A thread that comes now waits for the lock, and then finds what is owed. In the kernel it
    // would find the end at once.
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

/// Takes at most `most` bytes from the copy, if TCP has ended without them. With MSG_TRUNC they are
/// dropped; with MSG_PEEK they stay. Call with the rx lock held, for a socket that reads TCP and
/// has a copy.
///
/// # Safety
/// `cursor` covers the program's valid buffers.
pub unsafe fn step(
    sock: &'static Socket,
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
        // What TCP brings comes after the copy.
        _ if sock.unread_copy.is_whole() => true,
        AtHand::Bytes if !takes && follows(sock, fd) => {
            // SAFETY: the caller guarantees the cursor's buffers.
            before = unsafe { tcp::peek(fd, cursor, flags) };
            if before == 0 {
                return Step::Kernel;
            }
            if before == most || before as u64 != tcp::unread(fd) {
                // The peek looks at the first few pieces only.
                return Step::Moved(before);
            }
            true
        }
        AtHand::Bytes => return Step::Kernel,
        AtHand::Nothing => false,
        AtHand::End if !is_the_copys(sock, fd) => return Step::Kernel,
        AtHand::End => true,
    };
    if are_others_reading(sock, fd) {
        renounce(sock);
        return Step::Kernel;
    }
    if !over {
        return Step::NotYet;
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
    // SAFETY: `take` returns a range inside the copy.
    let mut from = unsafe { sock.unread_copy.base.load(Ordering::Relaxed).add(at) };
    let mut beyond = *cursor;
    beyond.advance(before, |_, _| ());
    beyond.advance(n, |to, n| {
        if flags & libc::MSG_TRUNC == 0 {
            // SAFETY: `to` is `n` bytes of the program's buffer, and the copy has `n` bytes left.
            unsafe { core::ptr::copy_nonoverlapping(from, to, n) };
        }
        // SAFETY: still inside the copy, or at its end.
        from = unsafe { from.add(n) };
    });
    if takes {
        *cursor = beyond;
    }
    Step::Moved(before + n)
}

/// Returns whether the bytes that lie on TCP are its last ones, so that a read of them goes on in
/// the copy. Call with the rx lock held.
pub fn follows(sock: &Socket, fd: c_int) -> bool {
    is_over(fd) && !sock.unread_copy.is_whole() && unread_in_copy(sock, fd) != 0
}

/// Takes at most `most` bytes out of the copy, or only finds them if not `takes`: their position,
/// after the `unread` bytes that TCP has, and their number. `None`: TCP has ended before the copy
/// begins.
fn take(sock: &Socket, unread: u64, most: usize, takes: bool) -> Option<(usize, usize)> {
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

/// Keeps a copy of `start..end` of the ring, which lay unread at a demotion. `owed` is the byte
/// count of TCP at which the re-sent bytes end; of a `whole` copy TCP brings nothing. Call with the
/// rx lock held.
pub fn keep(sock: &Socket, (start, end): (u64, u64), owed: u64, whole: bool) {
    let len = end.wrapping_sub(start) as usize;
    owes(sock, owed);
    if let Some(ring) = sock.rx.ring() {
        sock.unread_copy.keep(ring, start, end, whole);
    }
    if let Some(family) = sock.family() {
        family.leave_unread(Unread { len, owed, whole });
    }
}

/// In a relative of the process that has demoted the stream: TCP is to bring the unread bytes, and
/// the copy belongs to that process. Call with the rx lock held.
pub(crate) fn adopt(sock: &'static Socket) {
    let Some(unread) = sock.family().map(Family::unread) else {
        return;
    };
    if unread == Unread::OF_LINK {
        return owes(sock, SOME);
    }
    if unread.len == 0 {
        return;
    }
    sock.unread_copy.lose(unread.len, unread.whole);
    count_parents_reads(sock, unread.owed.saturating_sub(unread.len as u64));
    owes(sock, unread.owed);
    let fd = sock.fd.load(Ordering::Relaxed);
    if missing(sock, 0).is_none_left() || are_others_reading(sock, fd) {
        renounce(sock);
    }
}

/// In the child of a fork: the copy belongs to the parent.
pub fn after_fork(sock: &'static Socket) {
    if !sock.unread_copy.are_kept() {
        return;
    }
    if missing(sock, 0).is_none_left() {
        return renounce(sock);
    }
    let len = sock.unread_copy.len.load(Ordering::Relaxed);
    sock.unread_copy.lose(len, sock.unread_copy.is_whole());
}

/// Forgets what is owed, and the copy. Call with the rx lock held.
pub(crate) fn renounce(sock: &'static Socket) {
    sock.rx.owed.store(0, Ordering::Relaxed);
    sock.unread_copy.forget();
}

/// Returns whether another reader took bytes from TCP that did not pass this process's hooks.
fn are_others_reading(sock: &Socket, fd: c_int) -> bool {
    if sock.unread_copy.is_whole() {
        return false;
    }
    let calls = sock.rx.calls.load(Ordering::SeqCst);
    let Some(input) = tcp::input(fd) else {
        return false;
    };
    // The kernel counts a FIN as one byte, but not a reset, and after a reset nobody can tell
    // whether a FIN came first. If everything owed has come without a FIN, a relative may have read
    // it.
    let doubtful = input.state == tcp::CLOSE
        && input.received >= sock.rx.owed.load(Ordering::Relaxed)
        && sock.is_shared();
    let mine = sock.rx.kernel_bytes() + u64::from(tcp::is_over(input.state));
    let more = input.read > mine || doubtful;
    // A thread returning from `recv` may not have added its bytes to the count yet.
    more && sock.rx.in_kernel() == 0 && sock.rx.calls.load(Ordering::SeqCst) == calls
}

/// The bytes up to the end of the copy that TCP has not brought.
struct Missing {
    /// Their number; the copy's bytes are the last of them.
    all: u64,
    /// Of the copy's bytes, the first so many have been taken.
    gone: usize,
}

impl Missing {
    const fn is_none_left(&self) -> bool {
        self.all == self.gone as u64
    }
}

/// `unread`: bytes that TCP has brought and that are not read yet.
fn missing(sock: &Socket, unread: u64) -> Missing {
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

/// Counts what the parent may have read since the fork, of the first `from` bytes of TCP, which
/// precede the inherited stream's. Call with the rx lock held.
pub(crate) fn count_parents_reads(sock: &Socket, from: u64) {
    let Some(input) = tcp::input(sock.fd.load(Ordering::Relaxed)) else {
        return;
    };
    let fin = u64::from(tcp::is_over(input.state));
    let read = from.min(input.read.saturating_sub(fin));
    let known = sock.rx.kernel_bytes();
    sock.rx.add_kernel_bytes(read.saturating_sub(known));
}

/// Returns whether TCP brings nothing more of what the copy holds.
fn is_the_copys(sock: &Socket, fd: c_int) -> bool {
    is_cut_off(sock, fd) || has_ended(fd)
}

/// Returns whether the writer's bytes cannot come by TCP: the program has shut down both halves,
/// and the writer keeps them back or the kernel answers them by an RST.
fn is_cut_off(sock: &Socket, fd: c_int) -> bool {
    sock.unread_copy.is_whole()
        || sock.halves.load(Ordering::Acquire) == half::BOTH
            && tcp::state(fd) != Some(tcp::ESTABLISHED)
}

/// Returns whether the peer's FIN or RST has come by TCP and all bytes before it are read.
pub fn has_ended(fd: c_int) -> bool {
    is_over(fd) && !tcp::has_bytes(fd)
}

/// Returns whether TCP receives nothing more. What it has may still be unread.
fn is_over(fd: c_int) -> bool {
    tcp::state(fd).is_some_and(tcp::is_over)
}

/// For FIONREAD on a socket that reads TCP: the bytes that can be read from the copy after TCP's.
pub fn unread(sock: &'static Socket, fd: c_int) -> u64 {
    if !sock.unread_copy.are_kept() {
        return 0;
    }
    let section = sock.rx.lock.enter();
    section.map_or(0, |_section| unread_in_copy(sock, fd))
}

/// See [`unread`]. Call with the rx lock held.
fn unread_in_copy(sock: &Socket, fd: c_int) -> u64 {
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
    use crate::socket;
    use sluice_fabric::sys;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// What a relative reads at the end of TCP, where 3 bytes are missing: the bytes of its own
    /// copy, or a reset if the process that left the stream has the copy.
    fn reads(is_left: bool) -> (Result<Vec<u8>, ()>, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let here = listener.accept().unwrap().0;
        let fd = here.as_raw_fd();
        let sock = socket::alloc(fd, socket::role::ACCEPTED).unwrap();
        let family = sock.family_or_take().unwrap();
        peer.write_all(b"by TCP").unwrap();
        let (owed, len) = (9, 3);
        if is_left {
            let whole = false;
            family.leave_unread(Unread { len, owed, whole });
            adopt(sock);
        } else {
            let ring = b"own".to_vec();
            let base = sys::map_zeroes(len, false).unwrap();
            // SAFETY: both are `len` bytes long.
            unsafe { core::ptr::copy_nonoverlapping(ring.as_ptr(), base, len) };
            sock.unread_copy.hold(base, len, false);
            owes(sock, owed);
        }
        drop(peer);
        let mut bytes = [0u8; 16];
        // SAFETY: `bytes` has room for 6 bytes.
        let by_tcp = unsafe { sys::recv(fd, bytes.as_mut_ptr(), 6, libc::MSG_WAITALL) };
        sock.rx.add_kernel_bytes(by_tcp.unwrap() as u64);
        while !has_ended(fd) {
            std::thread::yield_now();
        }
        let piece = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: 16,
        };
        // SAFETY: one piece, which outlives the cursor.
        let mut cursor = unsafe { Cursor::new(&raw const piece, 1) };
        // SAFETY: the cursor covers `bytes`.
        let got = match unsafe { step(sock, fd, &mut cursor, 16, 0) } {
            Step::Moved(n) => Ok(bytes[..n].to_vec()),
            Step::Lost => Err(()),
            _ => unreachable!("TCP has ended"),
        };
        let is_over = missing(sock, 0).is_none_left();
        sock.fds.store(0, Ordering::Release);
        socket::free(sock);
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
