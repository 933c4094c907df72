//! `splice` of a pipe into a tracked socket.
//!
//! A program that sends a file this way fills a pipe with the file's pages, and empties the pipe
//! into the connection. A pipe does not tell what it has, so the call that fills it notes which
//! bytes of which file they are. The call that empties it then sends those bytes as
//! [`sendfile`](super::sendfile) would, and throws away as many of the pipe's.
//!
//! The pipe is taken to have what was noted if it was empty before, has exactly as many bytes as
//! were put there, and the same thread fills and empties it in the same process. Any other `splice`
//! takes its connection back to TCP for good (`docs/decisions/035-splice-from-a-file.md`).

use super::file;
use crate::raw_use;
use crate::socket::Socket;
use crate::verdict::Verdict;
use core::cell::Cell;
use libc::{c_int, loff_t, ssize_t};
use sluice_fabric::sys;
use sluice_runtime::fd_table::Entry;
use sluice_runtime::own_fds::Low;
use sluice_runtime::{caller, process, seccomp};
use sluice_transport::verbs::window::Version;

/// Pipes of a thread that may be full at a time. Of more, those that were filled last are known.
const PIPES: usize = 8;

thread_local! {
    // Constant and without a destructor: reading it needs no registration and no allocation.
    static FILLED: [Cell<Option<Filled>>; PIPES] = const { [const { Cell::new(None) }; PIPES] };
}

/// Bytes of a file that are in a pipe.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// The process whose thread has filled it.
    pid: u32,
    /// Device and inode of the pipe.
    pipe: (u64, u64),
    /// The file, open in the program, as it was.
    file: c_int,
    version: Version,
    /// Position of the first of them in the file.
    from: u64,
    /// How many there are.
    len: u64,
}

fn pipe_of(fd: c_int) -> Option<(u64, u64)> {
    let st = sys::fstat(fd).ok()?;
    (st.st_mode & libc::S_IFMT == libc::S_IFIFO).then_some((st.st_dev, st.st_ino))
}

fn bytes_in(pipe: c_int) -> Option<u64> {
    u64::try_from(sys::ioctl_int(pipe, libc::FIONREAD).ok()?).ok()
}

impl Filled {
    /// The note of this pipe, if this process has made it.
    fn of(pipe: (u64, u64)) -> Option<Self> {
        let is_it = |filled: &Self| filled.pipe == pipe && filled.pid == process::pid();
        FILLED.with(|all| all.iter().filter_map(Cell::get).find(is_it))
    }

    /// Keeps it in the place of an older one of the same pipe; of no byte, removes that.
    fn keep(self) {
        FILLED.with(|all| {
            let is_of_it = |cell: &&Cell<Option<Self>>| {
                cell.get().is_some_and(|filled| filled.pipe == self.pipe)
            };
            let old = all.iter().position(|cell| is_of_it(&cell));
            // The first is the newest.
            let last = old.unwrap_or(PIPES - 1);
            for (to, from) in (0..last).map(|at| (at + 1, at)).rev() {
                if let (Some(to), Some(from)) = (all.get(to), all.get(from)) {
                    to.set(from.get());
                }
            }
            if let Some(first) = all.first() {
                first.set((self.len != 0).then_some(self));
            }
        });
    }
}

/// Before `splice` to a descriptor that is not tracked: what the pipe would have after it, of a
/// file that nobody changes. Hand it to [`filled`] after the call.
///
/// # Safety
/// `offset` is null or an argument of a C caller's `splice`.
#[must_use]
pub unsafe fn fills(file: c_int, offset: *const loff_t, pipe: c_int) -> Option<Filled> {
    if !seccomp::is_free() || process::is_vfork_child() {
        return None;
    }
    let st = sys::fstat(file).ok()?;
    let version = Version::of(&st);
    if st.st_mode & libc::S_IFMT != libc::S_IFREG || !version.is_at_rest() {
        return None;
    }
    let from = if offset.is_null() {
        sys::seek(file, 0, libc::SEEK_CUR).ok()?
    } else {
        // SAFETY: any bytes are a valid offset.
        unsafe { caller::copy_on_trust(offset) }?
    };
    let from = u64::try_from(from).ok()?;
    let (id, there) = (pipe_of(pipe)?, bytes_in(pipe)?);
    let mut filled = Filled {
        pid: process::pid(),
        pipe: id,
        file,
        version,
        from,
        len: 0,
    };
    if there != 0 {
        // More of the same.
        filled = Filled::of(id)?;
        let is_next = filled.len == there && filled.from + there == from;
        if !is_next || (filled.file, filled.version) != (file, version) {
            return None;
        }
    }
    Some(filled)
}

/// The `splice` that [`fills`] was asked about has moved so many bytes, or -1.
pub fn filled(mut filled: Filled, moved: ssize_t) {
    if let Ok(moved @ 1..) = u64::try_from(moved) {
        filled.len += moved;
        filled.keep();
    }
}

/// So many bytes of the pipe have gone.
fn has_gone(mut filled: Filled, moved: u64) {
    filled.from += moved;
    filled.len = filled.len.saturating_sub(moved);
    filled.keep();
}

/// A `splice` that the engine passed to the kernel has moved so many bytes of the pipe, or -1.
pub fn emptied(pipe: c_int, moved: ssize_t) {
    if let Ok(moved @ 1..) = u64::try_from(moved)
        && let Some(filled) = pipe_of(pipe).and_then(Filled::of)
    {
        has_gone(filled, moved);
    }
}

/// `splice` of at most `len` bytes from `pipe` to a tracked descriptor. If `waits_not`, the call
/// fails where it would have to wait for the peer. `has_offset`: the caller has given one, which
/// the kernel refuses.
pub fn splice(
    entry: Entry,
    pipe: c_int,
    fd: c_int,
    len: usize,
    (has_offset, waits_not): (bool, bool),
) -> Verdict {
    let known = || {
        let filled = Filled::of(pipe_of(pipe)?)?;
        let there = bytes_in(pipe)? == filled.len;
        let now = sys::fstat(filled.file).ok()?;
        (there && Version::of(&now) == filled.version).then_some(filled)
    };
    match entry.get::<Socket>().zip(known()) {
        Some((sock, filled)) if !has_offset && len != 0 => from_file(sock, pipe, fd, filled, {
            let flags = if waits_not { libc::MSG_DONTWAIT } else { 0 };
            (len, flags)
        }),
        _ => raw_use::spliced(entry, fd, waits_not),
    }
}

fn from_file(
    sock: &'static Socket,
    pipe: c_int,
    fd: c_int,
    filled: Filled,
    (len, flags): (usize, c_int),
) -> Verdict {
    let len = len.min(filled.len as usize);
    let verdict = file::send(sock, fd, filled.file, (filled.from, len), flags);
    if let Verdict::Done(sent @ 1..) = verdict {
        discard(pipe, sent as usize);
        has_gone(filled, sent as u64);
    }
    verdict
}

/// Takes bytes out of the pipe that were sent from the file.
fn discard(pipe: c_int, len: usize) {
    let _low = Low::begin();
    let sink = sys::open(c"/dev/null", libc::O_WRONLY | libc::O_CLOEXEC).ok();
    let mut scratch = [0u8; 4096];
    let mut left = len;
    while left != 0 {
        let spliced = sink.as_ref().map(|to| sys::splice(pipe, to.raw(), left));
        let gone = match spliced {
            Some(Ok(gone)) => Ok(gone),
            // Another thread has emptied it.
            Some(Err(libc::EAGAIN)) => return,
            // No device there (chroot(2)), or no right to open it.
            _ => {
                let room = scratch.len().min(left);
                sys::read(pipe, scratch.get_mut(..room).unwrap_or_default())
            }
        };
        match gone {
            Ok(gone @ 1..) => left = left.saturating_sub(gone),
            Err(libc::EINTR) => {}
            Ok(0) | Err(_) => return,
        }
    }
}
