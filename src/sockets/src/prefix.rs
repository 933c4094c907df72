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

use crate::sock::{Half, Sock, State};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use libc::{c_int, iovec, mmsghdr, msghdr, off64_t, ssize_t};
use sha2::{Digest, Sha256};
use sluice_fabric::sys;
use sluice_runtime::iov::{self, Cursor};
use sluice_runtime::{caller, process, seccomp, thread};
use std::alloc::Layout;

mod proof;

pub use proof::{prove, reach, secret, verify};

/// Bytes of each direction that are hashed.
pub const LEN: usize = 32 << 10;
/// Digests of each direction: at 1, 2, 4 ... [`LEN`] bytes.
const MARKS: usize = LEN.trailing_zeros() as usize + 1;
/// Bytes of a digest.
const DIGEST: usize = 32;

/// Does this process hash at all? Written by [`init`].
static WANTED: AtomicBool = AtomicBool::new(false);

/// Asks whether this host has an RDMA device. Called by the constructor.
pub fn init() {
    // Builds for tests do so anywhere.
    let wanted = cfg!(feature = "fault") || sluice_fabric::verbs::api::is_any_device();
    WANTED.store(wanted, Ordering::Relaxed);
}

/// May connections of this process have to be proved to another host?
#[inline]
pub fn wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// A direction, as this end sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What is read.
    In,
    /// What is written.
    Out,
}

/// A socket's part in this. Zero is the state of a new one.
#[derive(Debug)]
pub struct Slot {
    /// By [`Way`]: bytes that pass are to be hashed. Set when the structure is taken into use;
    /// cleared by the thread that ends the direction. SeqCst: see the module's text, and [`free`].
    goes_on: [AtomicBool; 2],
    /// Null until the first byte. Set by compare-and-swap, given back by [`forget`] and [`free`]
    /// under both locks.
    tracks: AtomicPtr<Tracks>,
}

impl Slot {
    /// Are bytes that pass this way to be hashed?
    #[inline]
    pub fn wants(&self, way: Way) -> bool {
        self.goes_on(way).load(Ordering::SeqCst)
    }

    #[inline]
    fn goes_on(&self, way: Way) -> &AtomicBool {
        let [rx, tx] = &self.goes_on;
        match way {
            Way::In => rx,
            Way::Out => tx,
        }
    }

    /// Bytes pass this way that are not seen: the direction ends.
    #[inline]
    pub fn end(&self, way: Way) {
        self.goes_on(way).store(false, Ordering::SeqCst);
    }

    /// Nothing is to be proved of this socket any more.
    pub fn end_both(&self) {
        self.end(Way::In);
        self.end(Way::Out);
    }

    /// The structure becomes a new connection's. `in_use`: calls of an earlier one are counted on
    /// it.
    pub fn begin(&self, in_use: bool) {
        if !wanted() || in_use {
            return self.end_both();
        }
        // SAFETY: null, or kept by `free`; no call is counted, so nobody uses it, and nobody begins
        // to before the flags are set.
        if let Some(tracks) = unsafe { self.tracks.load(Ordering::Acquire).as_ref() } {
            tracks.renew();
        }
        for flag in &self.goes_on {
            flag.store(true, Ordering::SeqCst);
        }
    }

    /// Both tracks, made if there are none yet; `None` where there is no memory.
    fn tracks_or_make(&self) -> Option<&'static Tracks> {
        let mut at = self.tracks.load(Ordering::Acquire);
        if at.is_null() {
            at = self.make()?;
        }
        // SAFETY: made, and kept while a call is counted that has found its flag set (`give_back`).
        Some(unsafe { &*at })
    }

    #[cold]
    fn make(&self) -> Option<*mut Tracks> {
        // SAFETY: not of no length.
        let made = unsafe { std::alloc::alloc(LAYOUT) }.cast::<Tracks>();
        if made.is_null() {
            return None;
        }
        // SAFETY: as long and as aligned as that.
        unsafe { made.write(Tracks::new()) };
        let null = core::ptr::null_mut();
        let order = (Ordering::AcqRel, Ordering::Acquire);
        match self.tracks.compare_exchange(null, made, order.0, order.1) {
            Ok(_) => Some(made),
            Err(other) => {
                // SAFETY: made above, and nobody else's.
                unsafe { std::alloc::dealloc(made.cast(), LAYOUT) };
                Some(other)
            }
        }
    }
}

const LAYOUT: Layout = Layout::new::<Tracks>();
const _: () = assert!(size_of::<Tracks>() <= 1536);

/// What is kept of a connection: bytes of this process alone.
struct Tracks {
    rx: Track,
    tx: Track,
    /// What `tx` comes to when the call under way has moved all that it wants to. Of that call, see
    /// [`look_ahead`].
    ahead: UnsafeCell<Hash>,
}

impl Tracks {
    fn new() -> Self {
        Self {
            rx: Track::new(),
            tx: Track::new(),
            ahead: UnsafeCell::default(),
        }
    }

    fn of(&self, way: Way) -> &Track {
        match way {
            Way::In => &self.rx,
            Way::Out => &self.tx,
        }
    }

    fn renew(&self) {
        for track in [&self.rx, &self.tx] {
            track.taken.store(0, Ordering::Release);
            // SAFETY: the caller has seen that no call uses it.
            unsafe { *track.hash.get() = Hash::default() };
        }
    }
}

/// The hash so far, of how many bytes it is, and how many digests they have reached.
#[derive(Clone, Default)]
struct Hash {
    state: Sha256,
    at: usize,
    taken: u8,
}

/// One direction.
struct Track {
    /// Of the one call that may add to it: see the module's text.
    hash: UnsafeCell<Hash>,
    /// Digests that are there. Written by that call (release), read for proofs (acquire).
    taken: AtomicU8,
    /// Written before they count as taken, and never changed then. (Words, since a structure may be
    /// renewed under a reader.)
    digests: [[AtomicU64; DIGEST / 8]; MARKS],
}

impl Track {
    fn new() -> Self {
        Self {
            hash: UnsafeCell::default(),
            taken: AtomicU8::new(0),
            digests: [const { [const { AtomicU64::new(0) }; DIGEST / 8] }; MARKS],
        }
    }

    /// Hashes the next bytes of the direction, and takes the digests that they reach.
    fn add(&self, hash: &mut Hash, mut bytes: &[u8]) {
        while !bytes.is_empty() && hash.at < LEN {
            let mark = 1usize << hash.taken;
            let here = bytes.len().min(mark - hash.at);
            let (now, rest) = bytes.split_at(here);
            hash.state.update(now);
            hash.at += here;
            bytes = rest;
            if hash.at == mark {
                let digest = hash.state.clone().finalize();
                for (to, from) in self
                    .digests
                    .get(usize::from(hash.taken))
                    .into_iter()
                    .flatten()
                    .zip(digest.as_chunks::<8>().0)
                {
                    to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
                }
                hash.taken += 1;
            }
        }
    }

    /// The digest number `k`, counted from 1; zeroes for 0.
    fn digest(&self, k: u8) -> Option<[u8; DIGEST]> {
        let mut digest = [0; DIGEST];
        if k > self.taken.load(Ordering::Acquire) {
            return None;
        }
        if let Some(i) = usize::from(k).checked_sub(1) {
            let words = self.digests.get(i)?;
            for (to, from) in digest.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *to = from.load(Ordering::Relaxed).to_ne_bytes();
            }
        }
        Some(digest)
    }
}

/// The tracks, and the hash of one, for a call that is counted and alone, where all bytes up to
/// here were seen.
fn own_track(sock: &'static Sock, way: Way) -> Option<(&'static Tracks, *mut Hash)> {
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
    sock: &'static Sock,
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
pub unsafe fn look_ahead(sock: &'static Sock, iov: *const iovec, count: usize) -> bool {
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
pub unsafe fn look_ahead_message(sock: &'static Sock, msg: *const msghdr) -> bool {
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
unsafe fn hash_ahead(sock: &'static Sock, iov: *const iovec, count: usize) -> Option<()> {
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
    pub sock: &'static Sock,
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
pub unsafe fn moved_message(call: Moved, msg: *const msghdr) {
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
pub unsafe fn moved_messages(call: Moved, vec: *const mmsghdr, count: usize) {
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
pub unsafe fn moved_file(call: Moved, file: c_int, offset: *const off64_t) {
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
pub fn after_fork(sock: &'static Sock) {
    if sock.rx.in_kernel() != 0 || sock.tx.in_kernel() != 0 {
        sock.prefix.end_both();
        let none = core::ptr::null_mut();
        sock.prefix.tracks.store(none, Ordering::Release);
    }
}

/// The socket is closed. `locked`: both its locks are held.
pub fn free(sock: &'static Sock, locked: bool) {
    sock.prefix.end_both();
    #[cfg(feature = "fault")]
    tell(sock);
    if locked {
        give_back(sock);
    }
}

/// Nothing is to be proved of the socket any more, now or later. Takes both locks for a moment.
pub fn forget(sock: &'static Sock) {
    sock.prefix.end_both();
    if let Ok(_rx) = sock.rx.lock.enter()
        && let Ok(_tx) = sock.tx.lock.enter()
    {
        give_back(sock);
    }
}

/// Under both locks, both directions ended: frees the tracks, unless a call may be using them. Then
/// they stay with the structure, for its next connection.
///
/// A call is counted before it finds its flag set, and here the flags are cleared before the counts
/// are read. So a call that is not counted here finds the flag cleared, and does not look for
/// tracks.
fn give_back(sock: &'static Sock) {
    if sock.rx.in_kernel() != 0 || sock.tx.in_kernel() != 0 {
        return;
    }
    let old = &sock.prefix.tracks;
    let old = old.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if !old.is_null() {
        // SAFETY: made by `make`; calls do not use it (above), and a proof holds a lock.
        unsafe { std::alloc::dealloc(old.cast(), LAYOUT) };
    }
}

/// For tests of the hooks: what this end has seen of each direction, to be compared with the
/// other's.
#[cfg(feature = "fault")]
fn tell(sock: &'static Sock) {
    struct Shown<'a>(&'a Track);
    impl core::fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            for k in 1..=self.0.taken.load(Ordering::Acquire) {
                let digest = self.0.digest(k).unwrap_or_default();
                let word = digest.first_chunk().map_or(0, |w| u32::from_be_bytes(*w));
                write!(f, " {word:08x}")?;
            }
            Ok(())
        }
    }

    // SAFETY: null, or kept until `give_back`, after this.
    let Some(tracks) = (unsafe { sock.prefix.tracks.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    let role = sock.role.load(Ordering::Relaxed);
    for (track, what) in [(&tracks.tx, "wrote"), (&tracks.rx, "read")] {
        let what = format_args!("prefix: end {role} {what}{}", Shown(track));
        sluice_runtime::config::log(sluice_runtime::config::Level::Debug, what);
    }
}

/// What `look` finds in the tracks; `None` also where there are none, or in a handler that
/// interrupted this thread's use of the socket.
fn with_tracks<R>(sock: &'static Sock, look: impl FnOnce(&Tracks) -> Option<R>) -> Option<R> {
    let _section = sock.rx.lock.enter().ok()?;
    // SAFETY: null, or there until both locks are held by the thread that frees it.
    unsafe { sock.prefix.tracks.load(Ordering::Acquire).as_ref() }.and_then(look)
}

#[cfg(test)]
mod tests;
