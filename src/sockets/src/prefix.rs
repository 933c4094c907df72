//! The first bytes of a connection, hashed as they pass: what two ends on two hosts prove to each
//! other that they hold the ends of one connection by.
//!
//! Of each direction of a tracked socket the first [`LEN`] bytes are hashed after the calls that
//! moved them, and the digests at 1, 2, 4 ... bytes are kept. The same bytes give the same digests
//! at both ends, whatever calls they were moved by. [`prove`] is an HMAC under two of them, one per
//! direction; how good it is, `docs/threat-model.md` says. This file knows nothing of hosts, dials
//! and messages.
//!
//! **What is not known is not guessed.** A direction whose bytes passed where they were not seen,
//! or in an order that is not known, *ends*: what was taken of it before stays good, and nothing is
//! added. Were an end overlooked, the digests of the two ends would differ and the connection stay
//! on TCP.
//!
//! **No lock.** A half's count of calls is what keeps others out. A call looks at it after the
//! kernel's part and before it is taken back. If it finds itself alone, then every call that it met
//! in the kernel has ended meanwhile, and has found *it* there, and has ended the direction before
//! its own end: the flag is read second. If the flag still stands, order is known, and the hash is
//! this call's alone until it ends, for any later one finds it still counted. So does a handler
//! that interrupts it, and whatever comes after a jump out of the call, or after a cancelled one:
//! those stay counted for ever.
//!
//! A direction that is wanted no more, or never was, costs the load of its flag.

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

/// The tracks, and the hash of one, for a call that is counted and alone, where all bytes up to
/// here were seen.
fn own_track(sock: &'static Socket, way: Way) -> Option<(&'static Tracks, *mut Hash)> {
    let half: &Half = match way {
        Way::In => &sock.rx,
        Way::Out => &sock.tx,
    };
    // In this order: see the module's text.
    let alone = half.in_kernel() == 1;
    if !sock.prefix.wants(way) || !alone || half.state() != State::Plain {
        return None;
    }
    let tracks = sock.prefix.tracks_or_make()?;
    let hash = tracks.of(way).hash.get();
    // SAFETY: the track is this call's.
    let at = unsafe { (*hash).at } as u64;
    // Whatever else moved bytes has counted them, or moved them by a link.
    let seen_all = half.kernel_bytes() == at && half.linked.load(Ordering::Relaxed) == 0;
    seen_all.then_some((tracks, hash))
}

/// A call's bytes on their way into a track, which is the call's until it ends.
struct Feed {
    sock: &'static Socket,
    way: Way,
    track: &'static Track,
    hash: &'static mut Hash,
    /// Bytes still to come, or to [`LEN`] if those are fewer.
    left: usize,
}

impl Feed {
    /// After a call that has moved bytes, and while it is still counted; `None`: they are not to
    /// be hashed.
    fn begin(call: Moved) -> Option<Self> {
        let Moved { sock, way, n, .. } = call;
        let n = usize::try_from(n).ok().filter(|&n| n != 0)?;
        let Some((tracks, hash)) = own_track(sock, way) else {
            sock.prefix.end(way);
            return None;
        };
        let track = tracks.of(way);
        // SAFETY: this call's, until it ends.
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

    /// All has been handed over that there is: if that is too little, bytes have passed unseen.
    fn finish(self) {
        self.track.taken.store(self.hash.taken, Ordering::Release);
        if self.left != 0 || self.hash.at == LEN {
            self.sock.prefix.end(self.way);
        }
    }

    /// Adds `n` bytes that went to or came from a caller's buffers.
    ///
    /// # Safety
    /// They did.
    unsafe fn add_pieces(&mut self, at: *const iovec, count: usize, n: usize) {
        let n = n.min(self.left);
        if memory_of(self.way) == Memory::Own {
            // SAFETY: the kernel has just used them for `n` bytes, and they are still the call's.
            let mut pieces = unsafe { Cursor::new(at, count) };
            pieces.advance(n, |at, len| {
                // SAFETY: as above.
                self.add(unsafe { core::slice::from_raw_parts(at, len) });
            });
        } else {
            self.add_foreign(at, count, n);
        }
    }

    /// As [`Feed::add_pieces`], of memory that may be gone.
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

    /// Goes where [`look_ahead`] was, if the call has moved all that it had looked at.
    fn catch_up(&mut self) {
        if let Some(tracks) = self.sock.prefix.tracks_or_make() {
            // SAFETY: this call's, which has filled it.
            let ahead = unsafe { &*tracks.ahead.get() };
            if ahead.at == self.hash.at + self.left {
                self.left = 0;
                self.hash.clone_from(ahead);
            }
        }
    }

    /// What stands at `at`: a header of the caller's.
    ///
    /// # Safety
    /// The kernel has just read it there.
    unsafe fn header<T: Header>(&self, at: *const T) -> Option<T> {
        if memory_of(self.way) == Memory::Own {
            // SAFETY: the caller's promise, and it is still the call's.
            Some(unsafe { at.read_unaligned() })
        } else {
            copy_of(at)
        }
    }

    /// Adds what a message of `n` bytes brought or took.
    ///
    /// # Safety
    /// The kernel has just used its buffers.
    unsafe fn add_message(&mut self, msg: &msghdr, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.add_pieces(msg.msg_iov, msg.msg_iovlen, n) };
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// The call's: it is there.
    Own,
    /// Perhaps the program has given it back.
    Anyones,
}

/// Whose is the memory that a call's bytes lie in, when the call is over?
///
/// What was read lies in buffers whose owner waits for them. What was written has reached the peer,
/// whose answer may have come to another thread, which then has no use for the buffers any more.
fn memory_of(way: Way) -> Memory {
    if way == Way::In || thread::are_several() == Some(false) {
        Memory::Own
    } else {
        Memory::Anyones
    }
}

/// A call is about to be made that will write these buffers: hashes them now, if they may be gone
/// when it is over. To read them then as one reads another process takes longer than the call.
///
/// They are the caller's own as yet; but where they are not even there the call is to say so, and
/// is asked nothing else.
///
/// # Safety
/// The arguments are those of a C caller, whose call is counted.
#[cold]
pub(crate) unsafe fn look_ahead(sock: &'static Socket, iov: *const iovec, count: usize) -> bool {
    if memory_of(Way::Out) == Memory::Own || seccomp::may_use_system_calls().is_err() {
        return false;
    }
    // SAFETY: passed on.
    unsafe { hash_ahead(sock, iov, count) }.is_some()
}

/// As [`look_ahead`], by a message header.
///
/// # Safety
/// As there.
#[cold]
pub(crate) unsafe fn look_ahead_message(sock: &'static Socket, msg: *const msghdr) -> bool {
    if memory_of(Way::Out) == Memory::Own || seccomp::may_use_system_calls().is_err() {
        return false;
    }
    if !is_there(msg as usize, size_of::<msghdr>()) {
        return false;
    }
    // SAFETY: it is there.
    let msg = unsafe { msg.read_unaligned() };
    // SAFETY: passed on.
    unsafe { hash_ahead(sock, msg.msg_iov, msg.msg_iovlen) }.is_some()
}

/// # Safety
/// As for [`look_ahead`].
unsafe fn hash_ahead(sock: &'static Socket, iov: *const iovec, count: usize) -> Option<()> {
    let (tracks, hash) = own_track(sock, Way::Out)?;
    // SAFETY: this call's, as the hash is.
    let ahead = unsafe { &mut *tracks.ahead.get() };
    // SAFETY: as above.
    ahead.clone_from(unsafe { &*hash });
    if count > iov::MAX || !is_there(iov as usize, count * size_of::<iovec>()) {
        return None;
    }
    for i in 0..count {
        // SAFETY: it is there.
        let piece = unsafe { iov.add(i).read_unaligned() };
        let n = piece.iov_len.min(LEN - ahead.at);
        if n == 0 {
            continue;
        }
        if !is_there(piece.iov_base as usize, n) {
            return None;
        }
        // SAFETY: it is there, and belongs to a caller that writes it.
        let bytes = unsafe { core::slice::from_raw_parts(piece.iov_base.cast::<u8>(), n) };
        tracks.tx.add(ahead, bytes);
    }
    Some(())
}

/// Can all of this be read? Asks the kernel for each page.
fn is_there(at: usize, len: usize) -> bool {
    const PAGE: usize = 4096;
    caller::plausible(at, len)
        && (at & !(PAGE - 1)..at + len)
            .step_by(PAGE)
            .all(|page| sys::is_readable(page.max(at & !7)))
}

/// Structures of C that any bytes are one of.
///
/// # Safety
/// The type is one.
unsafe trait Header: Copy {}
// SAFETY: numbers and raw pointers.
unsafe impl Header for iovec {}
// SAFETY: as above.
unsafe impl Header for msghdr {}
// SAFETY: as above.
unsafe impl Header for mmsghdr {}
// SAFETY: a number.
unsafe impl Header for off64_t {}

/// Copies memory of this process that may not be there, as one reads another process.
fn copy(from: *const u8, to: &mut [u8]) -> bool {
    let piece = |base: *const u8| iovec {
        iov_base: base.cast_mut().cast(),
        iov_len: to.len(),
    };
    let (from, into) = (piece(from), piece(to.as_ptr()));
    seccomp::may_use_system_calls().is_ok()
        // SAFETY: `to` is written, within its length.
        && unsafe { sys::read_process(process::pid() as c_int, &[from], &[into]) } == Ok(to.len())
}

fn copy_of<T: Header>(at: *const T) -> Option<T> {
    // SAFETY: any bytes are one.
    let mut value: T = unsafe { core::mem::zeroed() };
    // SAFETY: all of it.
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
    /// For this socket, whose count it is still in.
    pub sock: &'static Socket,
    /// This way.
    pub way: Way,
    /// So many, or -1.
    pub n: ssize_t,
    /// [`look_ahead`] has seen what it was to write.
    pub ahead: bool,
}

/// By an array of buffers.
///
/// # Safety
/// The arguments are those of a C caller, and the kernel has served the call.
#[cold]
pub unsafe fn moved(call: Moved, iov: *const iovec, count: usize) {
    if let Some(mut feed) = Feed::begin(call) {
        // SAFETY: the caller's promise.
        unsafe { feed.add_pieces(iov, count, feed.left) };
        feed.finish();
    }
}

/// By a message header.
///
/// # Safety
/// As [`moved`].
#[cold]
pub(crate) unsafe fn moved_message(call: Moved, msg: *const msghdr) {
    if let Some(mut feed) = Feed::begin(call) {
        if feed.left != 0 {
            // SAFETY: the caller's promise.
            let msg = unsafe { feed.header(msg) };
            if let Some(msg) = msg {
                // SAFETY: as above.
                unsafe { feed.add_message(&msg, feed.left) };
            }
        }
        feed.finish();
    }
}

/// By `count` messages.
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
        // SAFETY: as above.
        unsafe { feed.add_message(&one.msg_hdr, one.msg_len as usize) };
    }
    feed.finish();
}

/// Out of `file`, up to where `offset`, or else the file's own position, stands now.
///
/// # Safety
/// As [`moved`].
#[cold]
pub(crate) unsafe fn moved_file(call: Moved, file: c_int, offset: *const off64_t) {
    if let Some(mut feed) = Feed::begin(call) {
        if seccomp::may_use_system_calls().is_ok() {
            let end = if offset.is_null() {
                // SAFETY: no pointers; lseek is not hooked.
                Some(unsafe { libc::lseek64(file, 0, libc::SEEK_CUR) })
            } else {
                // SAFETY: the caller's promise.
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
    /// Adds what is left, out of a regular file from `at` on. (Another kind cannot be read twice.)
    #[inline(never)]
    fn add_file(&mut self, file: c_int, mut at: i64) {
        let regular = sys::fstat(file).is_ok_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFREG);
        let mut bytes = [0u8; 4096];
        while regular && at >= 0 && self.left != 0 {
            let room = iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len().min(self.left),
            };
            // SAFETY: room of ours.
            let read = unsafe { sys::readv(file, &[room], Some(at)) }.unwrap_or(0);
            let Some(read) = bytes.get(..read).filter(|read| !read.is_empty()) else {
                return;
            };
            self.add(read);
            at += read.len() as i64;
        }
    }
}

/// In the child of a fork, before its counts of calls are cleared: what a call under way moves, and
/// half of what it has hashed, is the parent's. So nothing is left here; not even freed, since a
/// handler of that very call may have forked.
pub fn after_fork(sock: &'static Socket) {
    if sock.calls_in_kernel() != 0 {
        sock.prefix.leave();
    }
}

/// Nothing is to be proved of the socket any more, now or later. Takes both locks for a moment.
pub fn forget(sock: &'static Socket) {
    sock.prefix.end_both();
    if let Ok(_rx) = sock.rx.lock.enter()
        && let Ok(_tx) = sock.tx.lock.enter()
    {
        sock.prefix.give_back(sock.calls_in_kernel());
    }
}

/// What `look` finds in the tracks; `None` also where there are none, or in a handler that
/// interrupted this thread's use of the socket.
fn with_tracks<R>(sock: &'static Socket, look: impl FnOnce(&Tracks) -> Option<R>) -> Option<R> {
    let _section = sock.rx.lock.enter().ok()?;
    // SAFETY: one of the locks under which it is freed is held.
    unsafe { sock.prefix.tracks() }.and_then(look)
}

#[cfg(test)]
mod tests;
