//! Digests of a connection's first bytes, taken as they pass. With them two ends on two hosts prove
//! to each other that they hold the same connection.
//!
//! Of each direction of a tracked socket the first [`LEN`] bytes are hashed after the calls that
//! moved them, and the digests at 1, 2, 4 ... bytes are kept. The same bytes give the same digests
//! at both ends, whatever calls moved them. [`prove`] is an HMAC under two digests, one per
//! direction; `docs/threat-model.md` says how strong it is. This file knows nothing of hosts, dials
//! and messages.
//!
//! **Nothing is guessed.** If bytes of a direction pass unseen or in an unknown order, the
//! direction *ends*: its earlier digests stay valid, and no more are taken. If an end were
//! overlooked, the digests of the two ends would differ and the connection would stay on TCP.
//!
//! **No lock.** A half's count of calls excludes others. A call reads the count after the kernel's
//! part, while it is still counted itself, and then reads the flag. If the count is one, every call
//! that it met in the kernel has returned, has found this one counted, and has cleared the flag
//! before its own end. So if the flag is still set, the order is known, and the hash belongs to
//! this call until it ends: any later call finds it counted. The same holds for a signal handler
//! that interrupts it, and after a jump or a cancellation, whose calls stay counted for ever.
//!
//! A direction that is not wanted costs the load of its flag.

use crate::digests::{Hash, Track, Tracks};
use crate::socket::{Half, Socket, State};
use core::sync::atomic::Ordering;
use libc::{c_int, iovec, mmsghdr, msghdr, off64_t, ssize_t};
use sluice_fabric::sys;
use sluice_runtime::iov::{self, Cursor};
use sluice_runtime::{caller, process, seccomp, thread};

mod proof;

pub use crate::digests::{LEN, Way, init, wanted};
pub use proof::{prove, reach, secret, verify};

/// The tracks and the hash of one, for a counted call that is alone, if all earlier bytes were
/// seen.
fn own_track(sock: &'static Socket, way: Way) -> Option<(&'static Tracks, *mut Hash)> {
    let half: &Half = match way {
        Way::In => &sock.rx,
        Way::Out => &sock.tx,
    };
    // In this order, see the module.
    let alone = half.in_kernel() == 1;
    if !sock.prefix.wants(way) || !alone || half.state() != State::Plain {
        return None;
    }
    let tracks = sock.prefix.tracks_or_make()?;
    let hash = tracks.of(way).hash.get();
    // SAFETY: the call is counted and alone, so the hash is its own (see the module).
    let at = unsafe { (*hash).at } as u64;
    // Bytes moved in other ways were counted, or went by a link.
    let seen_all = half.kernel_bytes() == at && half.linked.load(Ordering::Relaxed) == 0;
    seen_all.then_some((tracks, hash))
}

/// A call's bytes on their way into a track, which belongs to the call until it ends.
struct Feed {
    sock: &'static Socket,
    way: Way,
    track: &'static Track,
    hash: &'static mut Hash,
    /// Bytes still to come, or up to [`LEN`] if that is less.
    left: usize,
}

impl Feed {
    /// Begins after a call has moved bytes, while it is still counted. `None`: not to be hashed.
    fn begin(call: Moved) -> Option<Self> {
        let Moved { sock, way, n, .. } = call;
        let n = usize::try_from(n).ok().filter(|&n| n != 0)?;
        let Some((tracks, hash)) = own_track(sock, way) else {
            sock.prefix.end(way);
            return None;
        };
        let track = tracks.of(way);
        // SAFETY: `own_track` gave the hash to this call alone, until it ends.
        let hash = unsafe { &mut *hash };
        let left = n.min(LEN - hash.at);
        let mut feed = Self {
            sock,
            way,
            track,
            hash,
            left,
        };
        if call.ahead {
            feed.catch_up();
        }
        Some(feed)
    }

    fn add(&mut self, bytes: &[u8]) {
        let bytes = bytes.get(..self.left).unwrap_or(bytes);
        self.left -= bytes.len();
        self.track.add(self.hash, bytes);
    }

    /// Ends the feed. If bytes are missing, they passed unseen.
    fn finish(self) {
        self.track.taken.store(self.hash.taken, Ordering::Release);
        if self.left != 0 || self.hash.at == LEN {
            self.sock.prefix.end(self.way);
        }
    }

    /// Adds `n` bytes of the caller's buffers.
    ///
    /// # Safety
    /// The kernel has just moved `n` bytes by these `count` buffers.
    unsafe fn add_pieces(&mut self, at: *const iovec, count: usize, n: usize) {
        let n = n.min(self.left);
        if memory_of(self.way) == Memory::Own {
            // SAFETY: the kernel has just used them for `n` bytes, and they still belong to the
            // call.
            let mut pieces = unsafe { Cursor::new(at, count) };
            pieces.advance(n, |at, len| {
                // SAFETY: the kernel has just used these `len` bytes, and they still belong to the
                // call.
                self.add(unsafe { core::slice::from_raw_parts(at, len) });
            });
        } else {
            self.add_foreign(at, count, n);
        }
    }

    /// Like [`Feed::add_pieces`], for memory that may be unmapped by now.
    #[inline(never)]
    fn add_foreign(&mut self, at: *const iovec, count: usize, mut n: usize) {
        let mut bytes = [0u8; 4096];
        for i in 0..count {
            if n == 0 {
                break;
            }
            let Some(piece) = copy_of(at.wrapping_add(i)) else {
                return;
            };
            let mut from = piece.iov_base.cast_const().cast::<u8>();
            let mut len = piece.iov_len.min(n);
            n -= len;
            while len != 0 {
                let here = len.min(bytes.len());
                let Some(room) = bytes.get_mut(..here) else {
                    return;
                };
                if !copy(from, room) {
                    return;
                }
                self.add(room);
                from = from.wrapping_add(here);
                len -= here;
            }
        }
    }

    /// Takes over the hash of [`look_ahead`], if the call has moved everything it had seen.
    fn catch_up(&mut self) {
        if let Some(tracks) = self.sock.prefix.tracks_or_make() {
            // SAFETY: the track belongs to this call, and so does `ahead`, which it has filled.
            let ahead = unsafe { &*tracks.ahead.get() };
            if ahead.at == self.hash.at + self.left {
                self.left = 0;
                self.hash.clone_from(ahead);
            }
        }
    }

    /// Reads a header of the caller's at `at`.
    ///
    /// # Safety
    /// The kernel has just read it there.
    unsafe fn header<T: Header>(&self, at: *const T) -> Option<T> {
        if memory_of(self.way) == Memory::Own {
            // SAFETY: the kernel has just read it there, and it still belongs to the call.
            Some(unsafe { at.read_unaligned() })
        } else {
            copy_of(at)
        }
    }

    /// Adds `n` bytes that a message brought or took.
    ///
    /// # Safety
    /// The kernel has just used the message's buffers.
    unsafe fn add_message(&mut self, msg: &msghdr, n: usize) {
        // SAFETY: the kernel has just used these buffers.
        unsafe { self.add_pieces(msg.msg_iov, msg.msg_iovlen, n) };
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// It belongs to the call, and is mapped.
    Own,
    /// The program may have freed it.
    Anyones,
}

/// Whether the buffers of a call are still its own when the call is over.
///
/// Bytes that were read lie in buffers whose owner waits for them. Bytes that were written have
/// reached the peer, and its answer may have told another thread to free the buffers.
fn memory_of(way: Way) -> Memory {
    if way == Way::In || thread::are_several() == Some(false) {
        Memory::Own
    } else {
        Memory::Anyones
    }
}

/// Hashes the buffers of a call that is about to write them, if they may be freed before it is
/// over. Reading them later like another process's memory takes longer than the call.
///
/// The buffers still belong to the caller here. If they are not mapped, the kernel is to say so, so
/// each page is checked first.
///
/// # Safety
/// The arguments are those of a C caller, and the call is counted.
#[cold]
pub(crate) unsafe fn look_ahead(sock: &'static Socket, iov: *const iovec, count: usize) -> bool {
    if memory_of(Way::Out) == Memory::Own || seccomp::may_use_system_calls().is_err() {
        return false;
    }
    // SAFETY: the hook passes a C caller's arguments, as this function demands.
    unsafe { hash_ahead(sock, iov, count) }.is_some()
}

/// Like [`look_ahead`], for a message header.
///
/// # Safety
/// `msg` is an argument of a C caller, and the call is counted.
#[cold]
pub(crate) unsafe fn look_ahead_message(sock: &'static Socket, msg: *const msghdr) -> bool {
    if memory_of(Way::Out) == Memory::Own || seccomp::may_use_system_calls().is_err() {
        return false;
    }
    if !is_there(msg as usize, size_of::<msghdr>()) {
        return false;
    }
    // SAFETY: `is_there` found it readable.
    let msg = unsafe { msg.read_unaligned() };
    // SAFETY: the header is the C caller's, and the call is counted.
    unsafe { hash_ahead(sock, msg.msg_iov, msg.msg_iovlen) }.is_some()
}

/// # Safety
/// See [`look_ahead`].
unsafe fn hash_ahead(sock: &'static Socket, iov: *const iovec, count: usize) -> Option<()> {
    let (tracks, hash) = own_track(sock, Way::Out)?;
    // SAFETY: `own_track` gave the tracks to this call alone, `ahead` included.
    let ahead = unsafe { &mut *tracks.ahead.get() };
    // SAFETY: `own_track` gave the hash to this call alone.
    ahead.clone_from(unsafe { &*hash });
    if count > iov::MAX || !is_there(iov as usize, count * size_of::<iovec>()) {
        return None;
    }
    for i in 0..count {
        // SAFETY: `is_there` found the array readable.
        let piece = unsafe { iov.add(i).read_unaligned() };
        let n = piece.iov_len.min(LEN - ahead.at);
        if n == 0 {
            continue;
        }
        if !is_there(piece.iov_base as usize, n) {
            return None;
        }
        // SAFETY: `is_there` found the piece readable, and its owner is in a call that writes it.
        let bytes = unsafe { core::slice::from_raw_parts(piece.iov_base.cast::<u8>(), n) };
        tracks.tx.add(ahead, bytes);
    }
    Some(())
}

/// Returns whether all of this can be read. Asks the kernel for each page.
fn is_there(at: usize, len: usize) -> bool {
    const PAGE: usize = 4096;
    caller::plausible(at, len)
        && (at & !(PAGE - 1)..at + len)
            .step_by(PAGE)
            .all(|page| sys::is_readable(page.max(at & !7)))
}

/// C structures for which any bytes are valid.
///
/// # Safety
/// Any bytes are a valid value of the type.
unsafe trait Header: Copy {}
// SAFETY: a raw pointer and a number.
unsafe impl Header for iovec {}
// SAFETY: raw pointers and numbers.
unsafe impl Header for msghdr {}
// SAFETY: raw pointers and numbers.
unsafe impl Header for mmsghdr {}
// SAFETY: a number.
unsafe impl Header for off64_t {}

/// Copies memory of this process that may be unmapped, as one reads another process's.
fn copy(from: *const u8, to: &mut [u8]) -> bool {
    let piece = |base: *const u8| iovec {
        iov_base: base.cast_mut().cast(),
        iov_len: to.len(),
    };
    let (from, into) = (piece(from), piece(to.as_ptr()));
    seccomp::may_use_system_calls().is_ok()
        // SAFETY: `to` is writable for its length.
        && unsafe { sys::read_process(process::pid() as c_int, &[from], &[into]) } == Ok(to.len())
}

fn copy_of<T: Header>(at: *const T) -> Option<T> {
    // SAFETY: any bytes are a valid `Header`, zeroes included.
    let mut value: T = unsafe { core::mem::zeroed() };
    // SAFETY: the bytes of `value`, all initialised.
    let bytes = unsafe {
        core::slice::from_raw_parts_mut(
            core::ptr::from_mut(&mut value).cast::<u8>(),
            size_of::<T>(),
        )
    };
    copy(at.cast(), bytes).then_some(value)
}

/// A call has moved bytes.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// The socket, on which the call is still counted.
    pub sock: &'static Socket,
    /// The direction.
    pub way: Way,
    /// How many bytes, or -1.
    pub n: ssize_t,
    /// [`look_ahead`] has hashed what the call was to write.
    pub ahead: bool,
}

/// Takes the bytes of an array of buffers.
///
/// # Safety
/// The arguments are those of a C caller, and the kernel has served the call.
#[cold]
pub unsafe fn moved(call: Moved, iov: *const iovec, count: usize) {
    if let Some(mut feed) = Feed::begin(call) {
        // SAFETY: the kernel has just used these buffers.
        unsafe { feed.add_pieces(iov, count, feed.left) };
        feed.finish();
    }
}

/// Takes the bytes of a message.
///
/// # Safety
/// As [`moved`].
#[cold]
pub(crate) unsafe fn moved_message(call: Moved, msg: *const msghdr) {
    if let Some(mut feed) = Feed::begin(call) {
        if feed.left != 0 {
            // SAFETY: the kernel has just read the header.
            let msg = unsafe { feed.header(msg) };
            if let Some(msg) = msg {
                // SAFETY: the kernel has just used the message's buffers.
                unsafe { feed.add_message(&msg, feed.left) };
            }
        }
        feed.finish();
    }
}

/// Takes the bytes of `count` messages.
///
/// # Safety
/// As [`moved`].
#[cold]
pub(crate) unsafe fn moved_messages(call: Moved, vec: *const mmsghdr, count: usize) {
    let Some(mut feed) = Feed::begin(call) else {
        return;
    };
    for i in 0..count {
        if feed.left == 0 {
            break;
        }
        // SAFETY: the kernel has filled `count` of them.
        let Some(one) = (unsafe { feed.header(vec.wrapping_add(i)) }) else {
            break;
        };
        // SAFETY: the kernel has just used the message's buffers for so many bytes.
        unsafe { feed.add_message(&one.msg_hdr, one.msg_len as usize) };
    }
    feed.finish();
}

/// Takes the bytes of `file` before the place where `offset`, or else the file's position, stands
/// now.
///
/// # Safety
/// As [`moved`].
#[cold]
pub(crate) unsafe fn moved_file(call: Moved, file: c_int, offset: *const off64_t) {
    if let Some(mut feed) = Feed::begin(call) {
        if seccomp::may_use_system_calls().is_ok() {
            let end = if offset.is_null() {
                sys::seek(file, 0, libc::SEEK_CUR).ok()
            } else {
                // SAFETY: the kernel has just written the offset.
                unsafe { feed.header(offset) }
            };
            if let Some(end) = end {
                feed.add_file(file, end - call.n as i64);
            }
        }
        feed.finish();
    }
}

impl Feed {
    /// Adds what is left, from `at` of a regular file. (Other kinds cannot be read twice.)
    #[inline(never)]
    fn add_file(&mut self, file: c_int, mut at: i64) {
        let regular = sys::fstat(file).is_ok_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFREG);
        let mut bytes = [0u8; 4096];
        while regular && at >= 0 && self.left != 0 {
            let room = iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len().min(self.left),
            };
            // SAFETY: `room` lies in `bytes`.
            let read = unsafe { sys::readv(file, &[room], Some(at)) }.unwrap_or(0);
            let Some(read) = bytes.get(..read).filter(|read| !read.is_empty()) else {
                return;
            };
            self.add(read);
            at += read.len() as i64;
        }
    }
}

/// In the child of a fork, before its counts of calls are cleared. What a call in progress moves
/// and has half hashed belongs to the parent, so the tracks are abandoned. They are not freed,
/// since a handler of that call may have forked.
pub fn after_fork(sock: &'static Socket) {
    if sock.calls_in_kernel() != 0 {
        sock.prefix.leave();
    }
}

/// Nothing more is to be proved of the socket. Takes both locks for a moment.
pub fn forget(sock: &'static Socket) {
    sock.prefix.end_both();
    if let Ok(_rx) = sock.rx.lock.enter()
        && let Ok(_tx) = sock.tx.lock.enter()
    {
        sock.prefix.give_back(sock.calls_in_kernel());
    }
}

/// Runs `look` on the tracks. `None` also if there are none, or in a signal handler that
/// interrupted this thread's use of the socket.
fn with_tracks<R>(sock: &'static Socket, look: impl FnOnce(&Tracks) -> Option<R>) -> Option<R> {
    let _section = sock.rx.lock.enter().ok()?;
    // SAFETY: the rx lock is held, and tracks are freed only under both locks.
    unsafe { sock.prefix.tracks() }.and_then(look)
}

#[cfg(test)]
mod tests;
