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
use sluice_fabric::lock::Section;
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
    let job = Job {
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
    let mut sends = Sends {
        job,
        file,
        position,
        total,
        is_large,
    };
    let verdict = sends.all();
    if let Some(position) = sends.position {
        if caller::cannot_write(offset as usize, size_of::<off64_t>()) {
            return Verdict::Failed(Error::BadAddress);
        }
        // SAFETY: the caller's address, which is not null and was found writable.
        unsafe { offset.write_unaligned(position) };
    }
    verdict
}

/// A file's bytes on their way.
struct Sends {
    job: Job,
    file: c_int,
    /// `None`: the file's own position.
    position: Option<i64>,
    total: usize,
    is_large: bool,
}

impl Sends {
    fn all(&mut self) -> Verdict {
        let sock = self.job.sock;
        let mut patience = trigger::Patience::default();
        loop {
            if self.job.done == self.total {
                carrier::await_placement(sock, || !self.job.is_nonblocking());
                return finish(sock, self.total);
            }
            let Ok(section) = sock.tx.lock.enter() else {
                return self.job.partly(Error::WouldBlock);
            };
            if self.job.is_lost() {
                drop(section);
                return self.job.lost();
            }
            if let Some(verdict) = self.go_on(section, &mut patience) {
                return verdict;
            }
        }
    }

    /// A step, called with the tx lock held, which it releases: the call's answer, or `None` to
    /// look again.
    fn go_on(
        &mut self,
        mut section: Section<'static>,
        patience: &mut trigger::Patience,
    ) -> Option<Verdict> {
        let sock = self.job.sock;
        if sock.tx.gate.load(Ordering::Relaxed) == 0 && sock.tx.state() == State::Link {
            section = match direct::make_way(section, &mut self.job) {
                Ok(held) => held,
                Err(Waited::News) => return Some(self.job.lost()),
                Err(Waited::Interrupted) => return Some(self.job.partly(Error::Interrupted)),
                Err(_) => return Some(self.job.partly(Error::WouldBlock)),
            };
        }
        let left = self.total - self.job.done;
        match look(sock, left) {
            Room::Bytes(ring, at, n) => {
                let moved = self.onto_link(&ring, at, n);
                drop(section);
                match moved {
                    Ok(true) => None,
                    Ok(false) => Some(finish(sock, self.job.done)),
                    Err(e) => Some(self.job.partly(Error::Kernel(e))),
                }
            }
            Room::Kernel => {
                after_tcp::acts_on(sock);
                if self.job.is_interrupted() {
                    drop(section);
                    return Some(self.job.partly(Error::Interrupted));
                }
                sock.tx.call_begins();
                drop(section);
                let is_large = self.is_large;
                let piece = if is_large { left.min(PIECE) } else { left };
                match self.rest_by_sendfile(piece) {
                    // A short count is the end of the file, a full buffer or a signal: the call
                    // ends.
                    Ok(n) if is_large && n == piece => {
                        trigger::amid(sock, patience);
                        None
                    }
                    Err(error) if self.job.done == 0 => Some(Verdict::Failed(error)),
                    _ => Some(finish(sock, self.job.done)),
                }
            }
            other => self.job.pause(section, other, None),
        }
    }

    /// Puts bytes of the file on the link: by its own pages if that can be, else at most `n` into
    /// the ring at `at`. Returns false at the end of the file. Call with the tx lock held.
    fn onto_link(&mut self, ring: &Ring, at: u64, n: usize) -> Result<bool, sys::Errno> {
        let may_be = by_pages::may_be(self.job.sock);
        let from = may_be.then(|| self.place()).flatten();
        if let Some(from) = from {
            let part = Part {
                file: self.file,
                from,
                left: self.total - self.job.done,
                at,
                moves_file: self.position.is_none(),
            };
            match by_pages::send(self.job.sock, part) {
                Sent::Copy => {}
                Sent::Sealed => return Ok(true),
                Sent::Bytes(sent) => {
                    self.job.done += sent;
                    self.position = self.position.map(|p| p + sent as i64);
                    return Ok(true);
                }
            }
        }
        let read = self.read_into_ring((ring, at, n), from)?;
        Ok(read != 0)
    }

    /// Where in the file the next byte is.
    fn place(&self) -> Option<u64> {
        let place = match self.position {
            None => sys::seek(self.file, 0, libc::SEEK_CUR).ok()?,
            Some(place) => place,
        };
        u64::try_from(place).ok()
    }

    /// Reads at most `n` bytes of the file into the ring at `at`, and publishes them. `from`: where
    /// in the file they are, if pages may be used. Returns how many it has read; 0: the end of the
    /// file. Call with the tx lock held.
    fn read_into_ring(
        &mut self,
        (ring, at, n): (&Ring, u64, usize),
        from: Option<u64>,
    ) -> Result<usize, sys::Errno> {
        let sock = self.job.sock;
        let pieces = ring.pieces(at, n as u64).map(|(base, len)| iovec {
            iov_base: base.cast(),
            iov_len: len,
        });
        let used = if pieces[1].iov_len == 0 { 1 } else { 2 };
        let begin = by_pages::wants_costs(sock).then(sys::now_ns);
        let pieces = pieces.get(..used).unwrap_or_default();
        // SAFETY: `look` has reserved this space of the ring, which the reader does not read before
        // the tail moves.
        let read = unsafe { sys::readv(self.file, pieces, self.position) }?;
        if read == 0 {
            return Ok(0);
        }
        if publish(sock, at, read) {
            sock.conn().tx.bytes.file.add(read as u64);
            self.job.done += read;
            if let (Some(begin), Some(from)) = (begin, from) {
                let part = Part {
                    file: self.file,
                    from,
                    left: read,
                    at,
                    moves_file: false,
                };
                by_pages::has_copied(sock, part, read, begin);
            }
            self.position = self.position.map(|p| p + read as i64);
        } else if self.position.is_none() {
            // Not published: the kernel will read these bytes again, so the file's own position
            // goes back.
            let _ = sys::seek(self.file, -(read as i64), libc::SEEK_CUR);
        }
        Ok(read)
    }

    /// Sends the rest, or a piece of it, by the kernel, as a call that was counted before.
    fn rest_by_sendfile(&mut self, piece: usize) -> Result<usize, Error> {
        let Job { sock, fd, .. } = self.job;
        let at = self
            .position
            .as_mut()
            .map_or(core::ptr::null_mut(), core::ptr::from_mut);
        // SAFETY: `at` is null or points to the position.
        let sent = unsafe { sys::sendfile(fd, self.file, at, piece) };
        let n = sent.unwrap_or(0);
        call_by_tcp_ends(sock, n, |call| {
            // SAFETY: `at` is null or points to the position.
            unsafe { prefix::moved_file(call, self.file, at) };
        });
        self.job.done += n;
        sent.map_err(|errno| match errno {
            libc::EPIPE => Error::BrokenPipe { raise: false },
            errno => Error::Kernel(errno),
        })
    }
}
