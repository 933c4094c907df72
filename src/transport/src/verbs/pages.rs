//! Pages of files that the endpoint's device reads, and which bytes of its streams are such pages.
//!
//! A `sendfile` whose [`Window`] is registered and proved reserves its bytes of the stream's
//! sequence, but leaves the staging ring as it is and notes a span: *these bytes are in that
//! window*. Work requests take address and key from the span. It is kept until its bytes are
//! completed and credited, as those in the staging ring are, since a demotion sends them again: it
//! copies them to their place in that ring first.
//!
//! ```text
//!   (none) ─copied often enough─► Asked ─control thread─► Ready ─stale, old, unused─► (none)
//! ```
//!
//! The program's thread maps a window, since the descriptor is its own, and the control thread
//! registers it. Until then `sendfile` copies. A region gives its device the right to read, and no
//! peer anything.
//!
//! A window that is kept is dropped by the control thread, outside the endpoint's lock: both
//! `ibv_dereg_mr` and `munmap` wait for the kernel.

use super::memory::{FileShare, Share};
use super::page_costs as costs;
use super::window::{Unfit, Version, Window};
use core::ops::Range;
use sluice_fabric::sys::Errno;
use sluice_fabric::verbs::device::{Domain, Region};
use sluice_runtime::config::{Sendfile, config};
use sluice_runtime::pagemap;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A window that nobody has used for so long, in ns, goes back: it holds disk space of a deleted
/// file, and its file system cannot be unmounted.
const UNUSED_NS: u64 = 1_000_000_000;
/// The greatest age of a window, in ns: a lock by flock(2) that was taken since it was mapped lasts
/// as long. Bytes of a span that the peer has not credited for so long are copied into the staging
/// ring, so that its window can go.
const OLD_NS: u64 = 5_000_000_000;
/// For so long, in ns, a window that could not be had is not tried again.
const REFUSED_NS: u64 = 10_000_000_000;
/// For so long, in ns, none is tried where there was no memory for one; twice as long each further
/// time, up to 64 times.
const FULL_NS: u64 = 100_000_000;
const FULL_DOUBLINGS: u32 = 6;
/// Refusals in a row after which no window is tried for [`REFUSED_NS`]: kernels before 6.2 refuse
/// all.
const REFUSALS: u32 = 8;
/// A window has so many parts at most. It is asked for when all were copied, and so are in memory.
const PART: u64 = super::window::LEN / u64::BITS as u64;
/// Windows that are known of. Others are copied from.
const MOST: usize = 4096;
/// Windows that wait for the control thread. Each is a mapping of the process, which may have only
/// so many.
const MOST_ASKED: usize = 16;

/// A window that this endpoint's device may read.
#[derive(Debug)]
pub struct Registered {
    // Drop order: the region before its memory.
    region: Region,
    window: Window,
    _share: FileShare,
}

impl Registered {
    /// Registers a window.
    ///
    /// # Errors
    /// ENOMEM: too much is registered; EACCES: nothing could be proved of it; the device's.
    pub(super) fn new(domain: &Domain, window: Window) -> Result<Self, Errno> {
        if !pagemap::open() {
            return Err(libc::EACCES);
        }
        let share = Share::take_for_file(window.len())?;
        // SAFETY: the window stays mapped until the region has ended.
        let region = unsafe { domain.stage(window.at(), window.len()) }?;
        Ok(Self {
            region,
            window,
            _share: share,
        })
    }

    /// The window.
    #[must_use]
    pub const fn window(&self) -> &Window {
        &self.window
    }
}

/// Bytes of a stream that are pages of a file.
#[derive(Debug)]
struct Span {
    /// Positions in the stream.
    range: Range<u64>,
    pages: Arc<Registered>,
    /// Where the first byte is in the window.
    offset: usize,
    noted_ns: u64,
}

impl Span {
    /// The address of the byte at this position.
    fn at(&self, at: u64) -> *const u8 {
        let offset = self.offset + (at - self.range.start) as usize;
        self.pages.window.at().cast_const().wrapping_add(offset)
    }

    /// Returns whether the mapping still has the pages of the span from this position on.
    fn is_whole(&self, at: u64) -> bool {
        let before = (at - self.range.start) as usize;
        let len = (self.range.end - at) as usize;
        self.pages.window.is_whole(self.offset + before, len)
    }
}

#[derive(Debug)]
enum State {
    /// These parts of it were copied, a bit each, which has cost so many ns.
    Copied(u64, u64),
    /// The control thread is to register it, or does.
    Asked(Option<Window>),
    /// Since when.
    Ready(Arc<Registered>, u64),
    /// Until when.
    Refused(u64),
}

/// The parts that have some of these bytes of a window.
fn parts(bytes: Range<u64>) -> u64 {
    let first = bytes.start / PART;
    let count = bytes.end.div_ceil(PART).saturating_sub(first).min(64);
    let mask = if count == 64 {
        u64::MAX
    } else {
        (1 << count) - 1
    };
    mask.checked_shl(first as u32).unwrap_or(0)
}

#[derive(Debug)]
struct Known {
    version: Version,
    state: State,
    used_ns: u64,
}

impl Known {
    /// Returns whether nothing but this refers to its window.
    fn is_unused(&self) -> bool {
        match &self.state {
            State::Ready(pages, _) => Arc::strong_count(pages) == 1,
            State::Asked(_) => false,
            State::Copied(..) | State::Refused(_) => true,
        }
    }

    /// When it goes, if it is unused.
    fn ends_ns(&self) -> u64 {
        let unused = self.used_ns + UNUSED_NS;
        match self.state {
            State::Refused(until) => unused.max(until),
            _ => unused,
        }
    }
}

/// Which window: the file's device and inode, and the number of the window there.
pub(super) type Key = (u64, u64, u64);

/// A window that the control thread is to register.
#[derive(Debug)]
pub(super) struct Asked {
    pub key: Key,
    pub window: Window,
}

/// Whose bytes may still be read from a window after it is used no more: so many messages of the
/// link, and transfers of its queue pair for direct ones, must be complete.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Until {
    pub messages: u64,
    pub transfers: u64,
}

/// What an endpoint has of files.
#[derive(Debug, Default)]
pub struct Pages {
    known: BTreeMap<Key, Known>,
    asked: VecDeque<Key>,
    /// When to look for windows that nobody uses.
    look_ns: u64,
    /// Refusals in a row, tries in a row without memory, and until when no window is tried.
    refusals: u32,
    full: u32,
    waits_ns: u64,
    /// By this end's number of the stream.
    spans: Vec<VecDeque<Span>>,
    parting: Vec<(Until, Arc<Registered>)>,
    /// To be dropped by the control thread.
    gone: Vec<Arc<Registered>>,
    unmapped: Vec<Window>,
}

/// What a `sendfile` finds.
#[derive(Debug)]
pub enum Found {
    /// The window is registered; whether it is proved is the caller's to ask.
    Ready(Arc<Registered>),
    /// It should be: the caller maps it and calls
    /// [`ask_for_pages`](super::endpoint::Endpoint::ask_for_pages).
    Wanted,
    /// The bytes are to be copied.
    Copy,
}

/// Positions of bytes of a stream, and where they are in a mapping.
pub type Place = (Range<u64>, *const u8);

impl Pages {
    /// Notes a span: the stream's bytes of this range are in a window.
    pub(super) fn note(
        &mut self,
        stream: u16,
        range: Range<u64>,
        pages: Arc<Registered>,
        (offset, noted_ns): (usize, u64),
    ) {
        let at = usize::from(stream);
        if self.spans.len() <= at {
            self.spans.resize_with(at + 1, VecDeque::new);
        }
        if let Some(spans) = self.spans.get_mut(at) {
            spans.push_back(Span {
                range,
                pages,
                offset,
                noted_ns,
            });
        }
    }

    fn span(&self, stream: u16, at: u64) -> Option<&Span> {
        let spans = self.spans.get(usize::from(stream))?;
        let after = spans.partition_point(|span| span.range.end <= at);
        spans.get(after).filter(|span| span.range.contains(&at))
    }

    /// The place of a stream's byte in a file's pages, for a work request: its address and the
    /// local key.
    pub(crate) fn place(&self, stream: u16, at: u64) -> Option<(*const u8, u32)> {
        let span = self.span(stream, at)?;
        Some((span.at(at), span.pages.region.local_key()))
    }

    /// The stream's bytes before `to` are completed and credited; of direct transfers those before
    /// `until` may read them yet.
    pub(crate) fn release(&mut self, stream: u16, to: u64, until: Until) {
        if let Some(spans) = self.spans.get_mut(usize::from(stream)) {
            while spans.front().is_some_and(|span| span.range.end <= to) {
                let span = spans.pop_front();
                self.parting.extend(span.map(|span| (until, span.pages)));
            }
        }
    }

    /// The stream was left. Messages and transfers before `until` may be sent again from its spans.
    pub(crate) fn give_back(&mut self, stream: u16, until: Until) {
        self.release(stream, u64::MAX, until);
    }

    /// What was sent before `done` is complete. Returns whether the control thread has something to
    /// drop that it has not been told of.
    pub(crate) fn completed(&mut self, done: Until) -> bool {
        if self.parting.is_empty() {
            return false;
        }
        let had_none = self.gone.is_empty();
        let is_over =
            |until: &Until| until.messages <= done.messages && until.transfers <= done.transfers;
        let over = self.parting.extract_if(.., |(until, _)| is_over(until));
        self.gone.extend(over.filter_map(|(_, pages)| last(pages)));
        had_none && !self.gone.is_empty()
    }

    /// Looks for a window of so many bytes, as the file is now.
    pub(super) fn find(&mut self, version: &Version, (number, len): (u64, u64), now: u64) -> Found {
        let key = version.key(number);
        let is_over = |known: &Known| {
            let too_old = match known.state {
                State::Ready(_, since) => now.saturating_sub(since) >= OLD_NS,
                State::Refused(until) => until <= now,
                State::Copied(..) | State::Asked(_) => false,
            };
            known.version != *version || too_old
        };
        if self.known.get(&key).is_some_and(is_over) {
            self.forget(key);
        }
        if self.known.len() >= MOST && !self.known.contains_key(&key) {
            return Found::Copy;
        }
        let may_ask = self.asked.len() < MOST_ASKED && now >= self.waits_ns;
        let known = self.known.entry(key).or_insert(Known {
            version: *version,
            state: State::Copied(0, 0),
            used_ns: now,
        });
        match &known.state {
            State::Ready(pages, _) => {
                known.used_ns = now;
                Found::Ready(Arc::clone(pages))
            }
            State::Copied(copied, ns) if may_ask && *copied == parts(0..len) => {
                let pays = costs::is_worth_registering(*ns, len);
                if config().sendfile == Sendfile::Pages || pays {
                    Found::Wanted
                } else {
                    Found::Copy
                }
            }
            State::Copied(..) | State::Asked(_) | State::Refused(_) => Found::Copy,
        }
    }

    /// Bytes of a window were copied, which took so long.
    pub(super) fn has_copied(&mut self, key: Key, bytes: Range<u64>, ns: u64, now: u64) {
        if let Some(known) = self.known.get_mut(&key)
            && let State::Copied(all, spent) = &mut known.state
        {
            *all |= parts(bytes);
            *spent = spent.saturating_add(ns);
            known.used_ns = now;
        }
    }

    /// Takes a window that is to be registered, or why there is none. Returns whether the control
    /// thread has to look; a window that is not wanted comes back.
    pub(super) fn ask(
        &mut self,
        version: &Version,
        number: u64,
        window: Result<Window, Unfit>,
        now: u64,
    ) -> Result<bool, Result<Window, Unfit>> {
        let key = version.key(number);
        let wants = |known: &&mut Known| {
            known.version == *version && matches!(known.state, State::Copied(..))
        };
        let Some(known) = self.known.get_mut(&key).filter(wants) else {
            return Err(window);
        };
        known.used_ns = now;
        known.state = match window {
            Ok(window) => State::Asked(Some(window)),
            // Asked for again when as much was copied again.
            Err(Unfit::Fresh) => State::Copied(0, 0),
            Err(_) => State::Refused(now + REFUSED_NS),
        };
        let asks = matches!(known.state, State::Asked(_));
        if asks {
            self.asked.push_back(key);
        }
        Ok(asks)
    }

    /// The next window that is to be registered, and whether there are more.
    pub(super) fn take_asked(&mut self) -> Option<(Asked, bool)> {
        while let Some(key) = self.asked.pop_front() {
            if let Some(known) = self.known.get_mut(&key)
                && let State::Asked(window) = &mut known.state
                && let Some(window) = window.take()
            {
                return Some((Asked { key, window }, !self.asked.is_empty()));
            }
        }
        None
    }

    /// A window was registered, or could not be. Gives it back if it is wanted no more.
    pub(super) fn answer(
        &mut self,
        key: Key,
        made: Result<Registered, Errno>,
        now: u64,
    ) -> Option<Registered> {
        match made {
            Ok(_) => (self.refusals, self.full) = (0, 0),
            Err(libc::ENOMEM) => {
                // Others make room for the next try.
                self.forget_unused(|known| now.saturating_sub(known.used_ns) >= FULL_NS);
                self.waits_ns = now + (FULL_NS << self.full);
                self.full = (self.full + 1).min(FULL_DOUBLINGS);
            }
            Err(_) => {
                self.refusals = self.refusals.saturating_add(1);
                if self.refusals >= REFUSALS {
                    self.waits_ns = now + REFUSED_NS;
                }
            }
        }
        let waits = |known: &&mut Known| matches!(known.state, State::Asked(None));
        let Some(known) = self.known.get_mut(&key).filter(waits) else {
            return made.ok();
        };
        known.used_ns = now;
        known.state = match made {
            Ok(pages) => State::Ready(Arc::new(pages), now),
            Err(libc::ENOMEM) => State::Copied(0, 0),
            Err(_) => State::Refused(now + REFUSED_NS),
        };
        None
    }

    /// The window is not proved any more.
    pub(super) fn retire(&mut self, key: Key, pages: Arc<Registered>) {
        let is_it =
            |known: &Known| matches!(&known.state, State::Ready(of, _) if Arc::ptr_eq(of, &pages));
        if self.known.get(&key).is_some_and(is_it) {
            self.known.remove(&key);
        }
        self.parting.push((Until::default(), pages));
    }

    /// Forgets windows that nobody has used for a while. Returns when to look again (ns), if ever.
    pub(super) fn rest(&mut self, now: u64) -> Option<u64> {
        if self.known.is_empty() && self.spans.iter().all(VecDeque::is_empty) {
            return None;
        }
        if now < self.look_ns {
            return Some(self.look_ns);
        }
        self.forget_unused(|known| known.ends_ns() <= now);
        let unused = self.known.values().filter(|known| known.is_unused());
        let windows = unused.map(Known::ends_ns).min();
        let firsts = self.spans.iter().filter_map(VecDeque::front);
        let spans = firsts.map(|span| span.noted_ns + OLD_NS).min();
        let next = windows.into_iter().chain(spans).min().unwrap_or(u64::MAX);
        // Others may come meanwhile, but none that goes sooner than after that time.
        self.look_ns = next.clamp(now + UNUSED_NS / 8, now + UNUSED_NS);
        Some(self.look_ns)
    }

    /// A stream that has a span which the peer has not credited for long. The next look at it is
    /// later.
    pub(super) fn old(&mut self, now: u64) -> Option<u16> {
        let mut streams = (0..).zip(&mut self.spans);
        streams.find_map(|(stream, spans)| {
            let first = spans.front_mut()?;
            let is_old = now.saturating_sub(first.noted_ns) >= OLD_NS;
            is_old.then(|| first.noted_ns = now)?;
            Some(stream)
        })
    }

    /// The first of the stream's bytes from `at` on that are pages of a file: their positions, and
    /// where they are. The caller has the kernel read them, and asks
    /// [`is_whole`](Self::is_whole) afterwards.
    pub(super) fn first(&self, stream: u16, at: u64) -> Option<Place> {
        let spans = self.spans.get(usize::from(stream))?;
        let span = spans.iter().find(|span| span.range.end > at)?;
        let from = span.range.start.max(at);
        // A page that is taken out of the cache from here on is mapped anew by the kernel: the
        // window is not proved any more.
        span.pages.window.touch();
        Some((from..span.range.end, span.at(from)))
    }

    /// Returns whether the stream's bytes from `at` on to the end of their span are still the pages
    /// that were registered.
    pub(super) fn is_whole(&self, stream: u16, at: u64) -> bool {
        let span = self.span(stream, at);
        span.is_some_and(|span| span.is_whole(at))
    }

    /// Forgets all windows that no stream uses now.
    pub(super) fn forget_ready(&mut self) {
        self.forget_unused(|known| matches!(known.state, State::Ready(..)));
    }

    /// What the control thread is to drop, outside the endpoint's lock.
    pub(super) fn take_gone(&mut self) -> (Vec<Arc<Registered>>, Vec<Window>) {
        self.completed(Until::default());
        (
            core::mem::take(&mut self.gone),
            core::mem::take(&mut self.unmapped),
        )
    }

    fn forget(&mut self, key: Key) {
        match self.known.remove(&key).map(|known| known.state) {
            Some(State::Ready(pages, _)) => self.gone.extend(last(pages)),
            Some(State::Asked(window)) => self.unmapped.extend(window),
            Some(State::Copied(..) | State::Refused(_)) | None => {}
        }
    }

    /// Forgets the windows that no span refers to and for which `goes` says so.
    fn forget_unused(&mut self, goes: impl Fn(&Known) -> bool) {
        let over = self
            .known
            .iter()
            .filter(|(_, known)| known.is_unused() && goes(known));
        let keys: Vec<Key> = over.map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.forget(key));
    }
}

/// The window if this was the last use of it.
fn last(pages: Arc<Registered>) -> Option<Arc<Registered>> {
    (Arc::strong_count(&pages) == 1).then_some(pages)
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests read a file"
)]
mod tests {
    use super::super::window::LEN;
    use super::*;
    use sluice_fabric::sys;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    /// Copies all of a window, asks for it, and has it answered; false: it may not be asked for.
    fn ask(pages: &mut Pages, file: &File, inode: u64, now: u64, answer: Errno) -> bool {
        let st = sys::fstat(file.as_raw_fd()).unwrap();
        // As many files as a test wants, all with these bytes.
        let mut other = st;
        other.st_ino = inode;
        let version = Version::of(&other);
        let found = pages.find(&version, (0, LEN), now);
        assert!(matches!(found, Found::Copy));
        pages.has_copied(version.key(0), 0..LEN, u64::MAX, now);
        if !matches!(pages.find(&version, (0, LEN), now), Found::Wanted) {
            return false;
        }
        let window = loop {
            match Window::map(file.as_raw_fd(), &st, 0, LEN) {
                // Not all of it is in memory: a read brings it there.
                Err(Unfit::Fresh) => drop(std::fs::read("/proc/self/exe")),
                window => break window,
            }
        };
        assert!(pages.ask(&version, 0, window, now).is_ok_and(|asks| asks));
        let (asked, more) = pages.take_asked().unwrap();
        assert!(!more);
        drop(asked.window);
        assert!(pages.answer(asked.key, Err(answer), now).is_none());
        true
    }

    /// This program, once nobody has changed it for a while.
    fn own_file() -> File {
        let file = File::open("/proc/self/exe").unwrap();
        while !Version::of(&sys::fstat(file.as_raw_fd()).unwrap()).is_at_rest() {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        file
    }

    #[test]
    fn a_kernel_that_refuses_the_pin_is_asked_a_few_times_and_then_seldom() {
        let (mut pages, file, now) = (Pages::default(), own_file(), 1);
        for inode in 0..u64::from(REFUSALS) {
            assert!(ask(&mut pages, &file, inode, now, libc::EFAULT));
        }
        let next = u64::from(REFUSALS);
        assert!(!ask(
            &mut pages,
            &file,
            next,
            now + REFUSED_NS - 1,
            libc::EFAULT
        ));
        assert!(ask(
            &mut pages,
            &file,
            next + 1,
            now + REFUSED_NS,
            libc::EFAULT
        ));
    }

    #[test]
    fn without_memory_tries_become_rarer_and_what_was_refused_is_copied() {
        let (mut pages, file, mut now) = (Pages::default(), own_file(), 1);
        for time in 0..u64::from(FULL_DOUBLINGS) + 3 {
            let inode = time % 4;
            assert!(ask(&mut pages, &file, inode, now, libc::ENOMEM), "{time}");
            let waits = FULL_NS << time.min(u64::from(FULL_DOUBLINGS));
            let other = 4 + time;
            assert!(!ask(
                &mut pages,
                &file,
                other,
                now + waits - 1,
                libc::ENOMEM
            ));
            now += waits;
        }
    }
}
