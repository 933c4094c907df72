//! `sendfile` into a tracked socket.

use super::by_pages::{self, Part, Sent};
use super::job::Job;
use super::{
    LARGE, PIECE, Room, call_by_tcp_ends, enter_kernel, finish, look, may_be_large, publish,
};
use crate::io_wait::Waited;
use crate::socket::{Socket, State};
use crate::verdict::{Error, Pass, Verdict};
use crate::{after_tcp, carrier, direct, give_up, prefix, trigger};
use core::sync::atomic::Ordering;
use libc::{c_int, iovec, off64_t};
use sluice_fabric::ring::Ring;
use sluice_fabric::sys::{self, Ran};
use sluice_runtime::{caller, iov};
use sluice_stats::Reason;

/// `sendfile` into a tracked socket: the file is read straight into the ring.
///
/// # Safety
/// `offset` is null or an argument of a C caller's `sendfile`.
pub unsafe fn sendfile(
    sock: &'static Socket,
    fd: c_int,
    file: c_int,
    offset: *mut off64_t,
    count: usize,
) -> Verdict {
    // Only regular files and block devices go by the ring; pipes and sockets are left to the
    // kernel. A read at an offset would not tell them apart: some devices allow one, and it may
    // wait.
    let kind = || sys::fstat(file).map_or(0, |st| st.st_mode & libc::S_IFMT);
    let is_large = count >= LARGE && may_be_large(sock, 0) && kind() == libc::S_IFREG;
    if !is_large
        && sock.tx.state() == State::Plain
        && let Some(pass) = enter_kernel(sock)
    {
        return Verdict::Pass(pass);
    }
    let kind = kind();
    let refused = kind == 0 || kind == libc::S_IFDIR || (count as isize) < 0;
    if refused || !matches!(kind, libc::S_IFREG | libc::S_IFBLK) {
        if !refused && let Err(e) = give_up::before_write(sock, fd, 0, Reason::Splice) {
            return Verdict::Failed(e);
        }
        return Verdict::Pass(Pass::NOBODY);
    }
    // sendfile(2) moves at most this many bytes.
    let total = count.min(iov::MOST);
    let mut position = None;
    if !offset.is_null() {
        // SAFETY: any bytes are a valid offset; `copy_on_trust` reads nothing where memory is known
        // to be missing.
        position = unsafe { caller::copy_on_trust(offset) };
        if position.is_none() {
            return Verdict::Failed(Error::BadAddress);
        }
    }
    let ran = Ran::now();
    if is_large {
        trigger::before_large(sock, total);
    }
    // SAFETY: `fd` and `file` are the caller's numbers, and `position` is this frame's.
    let verdict = unsafe { send_from(sock, fd, file, &mut position, total, is_large, ran) };
    if let Some(position) = position {
        if caller::cannot_write(offset as usize, size_of::<off64_t>()) {
            return Verdict::Failed(Error::BadAddress);
        }
        // SAFETY: the caller's address, which is not null and was found writable.
        unsafe { offset.write_unaligned(position) };
    }
    verdict
}

/// Sends `total` bytes of the file from `position` on, or from the file's own position if `None`.
/// `ran`: count of handlers that had run when the call began.
unsafe fn send_from(
    sock: &'static Socket,
    fd: c_int,
    file: c_int,
    position: &mut Option<i64>,
    total: usize,
    is_large: bool,
    ran: Ran,
) -> Verdict {
    let mut job = Job {
        sock,
        fd,
        flags: 0,
        ran,
        done: 0,
        deadline: None,
        patience: None,
        known: None,
        waited: false,
    };
    let mut patience = trigger::Patience::default();
    loop {
        if job.done == total {
            carrier::await_placement(sock, || !job.is_nonblocking());
            return finish(sock, job.done);
        }
        let Ok(mut section) = sock.tx.lock.enter() else {
            return job.partly(Error::WouldBlock);
        };
        if job.is_lost() {
            drop(section);
            return job.lost();
        }
        if sock.tx.gate.load(Ordering::Relaxed) == 0 && sock.tx.state() == State::Link {
            section = match direct::make_way(section, &mut job) {
                Ok(held) => held,
                Err(Waited::News) => return job.lost(),
                Err(Waited::Interrupted) => return job.partly(Error::Interrupted),
                Err(_) => return job.partly(Error::WouldBlock),
            };
        }
        match look(sock, total - job.done) {
            Room::Bytes(ring, at, n) => {
                let moved = move_bytes(&mut job, (&ring, at, n), file, position, total);
                drop(section);
                match moved {
                    Ok(true) => {}
                    Ok(false) => return finish(sock, job.done),
                    Err(e) => return job.partly(Error::Kernel(e)),
                }
            }
            Room::Kernel => {
                after_tcp::acts_on(sock);
                if job.is_interrupted() {
                    drop(section);
                    return job.partly(Error::Interrupted);
                }
                sock.tx.call_begins();
                drop(section);
                let left = total - job.done;
                let piece = if is_large { left.min(PIECE) } else { left };
                // SAFETY: `position` points to the offset where the ring's part ended, in
                // `sendfile`'s frame. The call was counted above, under the lock.
                let sent = unsafe { rest_by_sendfile(&mut job, file, position, piece) };
                match sent {
                    // A short count is the end of the file, a full buffer or a signal: the call
                    // ends.
                    Ok(n) if is_large && n == piece => trigger::amid(sock, &mut patience),
                    Err(error) if job.done == 0 => return Verdict::Failed(error),
                    _ => return finish(sock, job.done),
                }
            }
            other => {
                if let Some(verdict) = job.pause(section, other, None) {
                    return verdict;
                }
            }
        }
    }
}

/// Puts bytes of the file on the link: by its own pages if that can be, else at most `n` into the
/// ring at `at`. Returns false at the end of the file. Call with the tx lock held.
fn move_bytes(
    job: &mut Job,
    (ring, at, n): (&Ring, u64, usize),
    file: c_int,
    position: &mut Option<i64>,
    total: usize,
) -> Result<bool, sys::Errno> {
    if let Some(place) = *position {
        let part = Part {
            file,
            from: place as u64,
            left: total - job.done,
            at,
        };
        match by_pages::send(job.sock, part) {
            Sent::Copy => {}
            Sent::Sealed => return Ok(true),
            Sent::Bytes(sent) => {
                job.done += sent;
                *position = Some(place + sent as i64);
                return Ok(true);
            }
        }
    }
    read_into_ring(job, ring, at, n, file, position).map(|read| read != 0)
}

/// Reads at most `n` bytes of the file into the ring at `at`, and publishes them. Returns how many
/// it has read; 0: the end of the file. Call with the tx lock held.
fn read_into_ring(
    job: &mut Job,
    ring: &Ring,
    at: u64,
    n: usize,
    file: c_int,
    position: &mut Option<i64>,
) -> Result<usize, sys::Errno> {
    let pieces = ring.pieces(at, n as u64).map(|(base, len)| iovec {
        iov_base: base.cast(),
        iov_len: len,
    });
    let used = if pieces[1].iov_len == 0 { 1 } else { 2 };
    let begin = by_pages::wants_costs(job.sock).then(sys::now_ns);
    // SAFETY: `look` has reserved this space of the ring, which the reader does not read before the
    // tail moves.
    let read = unsafe { sys::readv(file, pieces.get(..used).unwrap_or_default(), *position) }?;
    if read == 0 {
        return Ok(0);
    }
    if publish(job.sock, at, read) {
        job.sock.conn().tx.bytes.file.add(read as u64);
        job.done += read;
        if let (Some(begin), Some(from)) = (begin, *position) {
            let part = Part {
                file,
                from: from as u64,
                left: read,
                at,
            };
            by_pages::has_copied(job.sock, part, read, begin);
        }
        *position = position.map(|p| p + read as i64);
    } else if position.is_none() {
        // Not published: the kernel will read these bytes again, so the file's own position goes
        // back.
        // SAFETY: takes no pointers; lseek is not hooked.
        unsafe { libc::lseek64(file, -(read as i64), libc::SEEK_CUR) };
    }
    Ok(read)
}

/// Sends the rest, or a piece of it, by the kernel, as a call that was counted before.
unsafe fn rest_by_sendfile(
    job: &mut Job,
    file: c_int,
    position: &mut Option<i64>,
    piece: usize,
) -> Result<usize, Error> {
    let Job { sock, fd, .. } = *job;
    let at = position
        .as_mut()
        .map_or(core::ptr::null_mut(), core::ptr::from_mut);
    // SAFETY: `at` is null or points to the caller's `position`.
    let sent = unsafe { sys::sendfile(fd, file, at, piece) };
    let n = sent.unwrap_or(0);
    call_by_tcp_ends(sock, n, |call| {
        // SAFETY: `at` is null or points to the caller's `position`.
        unsafe { prefix::moved_file(call, file, at) };
    });
    job.done += n;
    sent.map_err(|errno| match errno {
        libc::EPIPE => Error::BrokenPipe { raise: false },
        errno => Error::Kernel(errno),
    })
}
