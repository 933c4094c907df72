//! What sockets ask of the layer that finds their other ends, and what they know of its work.

use crate::socket::Socket;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

/// How much a try may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// A look whether the other end waits at a name.
    Look,
    /// An answer to the other end, which has asked over a link.
    Answer,
    /// A question over a link.
    Ask,
    /// A name, where the other end has none.
    Name,
}

impl Effort {
    /// About what it costs at this end if nobody is met, in microseconds.
    pub const fn price(self) -> u32 {
        match self {
            Self::Look | Self::Answer => 15,
            Self::Ask => 20,
            Self::Name => 60,
        }
    }
}

/// The layer above.
#[derive(Clone, Copy, Debug)]
pub struct Finder {
    /// Looks for the other end of a connection.
    pub attempt: fn(&'static Socket, Effort),
    /// Waits until a meeting of the connection has come to an end, or until the first time
    /// (`sys::now_ns`), or the second where the other end has not come; whether it came to a
    /// stream. `None`: there was no meeting.
    pub settle: fn(&'static Socket, u64, u64) -> Option<bool>,
    /// The connection is over, or stays on TCP: no meeting of it goes on.
    pub forget: fn(&'static Socket),
    /// By the control thread: looks for the other end of a connection, of that generation, on
    /// another host.
    pub seek: fn(&'static Socket, u32),
}

static FINDER: OnceLock<Finder> = OnceLock::new();

/// Called once, when the library is loaded.
pub fn found_by(finder: Finder) {
    let _ = FINDER.set(finder);
}

/// See [`Finder::attempt`].
pub fn attempt(sock: &'static Socket, effort: Effort) {
    if let Some(finder) = FINDER.get() {
        (finder.attempt)(sock, effort);
    }
}

/// See [`Finder::settle`].
pub fn settle(sock: &'static Socket, until: u64, comes_until: u64) -> Option<bool> {
    (FINDER.get()?.settle)(sock, until, comes_until)
}

/// See [`Finder::forget`].
pub fn forget(sock: &'static Socket) {
    if let Some(finder) = FINDER.get() {
        (finder.forget)(sock);
    }
}

/// See [`Finder::seek`].
pub fn seek(sock: &'static Socket, generation: u32) {
    if let Some(finder) = FINDER.get() {
        (finder.seek)(sock, generation);
    }
}

/// Has this process a link, over which it may ask?
#[inline]
pub fn has_links() -> bool {
    sluice_stats::ROOT.links.load() != 0
}

/// Why hooks may have more to do than to call the real function, in one word: the library is not
/// loaded yet, or a meeting is under way, at a name ([`NAMES`]) or over a link ([`ASKED`]).
pub static BUSY: AtomicU32 = AtomicU32::new(UNLOADED);
/// Of [`BUSY`].
pub const NAMES: u32 = 1;
/// Likewise.
pub const ASKED: u32 = 2;
const UNLOADED: u32 = 4;

/// The library is loaded.
pub fn loaded() {
    BUSY.fetch_and(!UNLOADED, Ordering::Release);
}

/// 0: the library is loaded, and no meeting is under way.
#[inline(always)]
pub fn busy() -> u32 {
    BUSY.load(Ordering::Acquire)
}

/// Is a meeting under way? Hooks move it on, the sooner the better, whether or not a control thread
/// runs.
#[inline]
pub fn is_meeting() -> bool {
    BUSY.load(Ordering::Relaxed) & (NAMES | ASKED) != 0
}
