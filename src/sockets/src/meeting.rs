//! The interface to the layer that finds the other ends of connections, and what sockets know of
//! its work.

use crate::socket::Socket;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

/// How much a try may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// Look whether the other end waits at a name.
    Look,
    /// Answer the other end, which has asked over a link.
    Answer,
    /// Ask over a link.
    Ask,
    /// Bind a name if the other end has none.
    Name,
}

impl Effort {
    /// About what it costs this end if nobody is met, in microseconds.
    pub const fn price(self) -> u32 {
        match self {
            Self::Look | Self::Answer => 15,
            Self::Ask => 20,
            Self::Name => 60,
        }
    }
}

/// The functions of that layer.
#[derive(Clone, Copy, Debug)]
pub struct Finder {
    /// Looks for the other end of a connection.
    pub attempt: fn(&'static Socket, Effort),
    /// Waits until a meeting of the connection has ended, at most until the first time
    /// (`sys::now_ns`), or the second if the other end has not come. Returns whether there is a
    /// stream; `None`: there was no meeting.
    pub settle: fn(&'static Socket, u64, u64) -> Option<bool>,
    /// Ends any meeting of the connection, which is over or stays on TCP.
    pub forget: fn(&'static Socket),
    /// By the control thread: looks for the other end of the connection of this generation on
    /// another host.
    pub seek: fn(&'static Socket, u32),
}

static FINDER: OnceLock<Finder> = OnceLock::new();

/// Registers the functions; called once, when the library is loaded.
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

/// Returns whether this process has a link, over which it may ask.
#[inline]
pub fn has_links() -> bool {
    sluice_stats::ROOT.links.load() != 0
}

/// Why hooks may have to do more than call the real function, as bits: the library is not loaded
/// yet, or a meeting is in progress at a name ([`NAMES`]) or over a link ([`ASKED`]).
pub static BUSY: AtomicU32 = AtomicU32::new(UNLOADED);
/// Bit of [`BUSY`].
pub const NAMES: u32 = 1;
/// Bit of [`BUSY`].
pub const ASKED: u32 = 2;
const UNLOADED: u32 = 4;

/// The library is loaded.
pub fn loaded() {
    BUSY.fetch_and(!UNLOADED, Ordering::Release);
}

/// 0 if the library is loaded and no meeting is in progress.
#[inline(always)]
pub fn busy() -> u32 {
    BUSY.load(Ordering::Acquire)
}

/// Returns whether a meeting is in progress. Hooks move it on, the sooner the better, whether or
/// not a control thread runs.
#[inline]
pub fn is_meeting() -> bool {
    BUSY.load(Ordering::Relaxed) & (NAMES | ASKED) != 0
}
