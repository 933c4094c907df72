//! What threads ask an endpoint about pages of files. See [`pages`](super::pages).

use super::endpoint::Endpoint;
use super::page_costs as costs;
use super::pages::{Asked, Found, Place, Registered};
use super::terms::Note;
use super::window::{Unfit, Version, Window};
use core::ops::Range;
use sluice_fabric::sys::{self, Errno};
use sluice_runtime::config::{Level, log};
use sluice_stream::Seq;
use std::sync::Arc;

impl Endpoint {
    /// Looks for the window with this number, of so many bytes, of a file as it is now.
    pub fn find_pages(&self, version: &Version, (number, len): (u64, u64)) -> Found {
        let found = self.inside(|inner| {
            // Streams whose every byte goes into a reader's buffer are measured against copies.
            if inner.lost.is_some() || inner.pump.only_direct() {
                return Found::Copy;
            }
            inner.pages.find(version, (number, len), sys::now_ns())
        });
        found.unwrap_or(Found::Copy)
    }

    /// These bytes of a window were copied, which took so many ns.
    pub fn has_copied(&self, version: &Version, number: u64, bytes: Range<u64>, ns: u64) {
        let (key, now) = (version.key(number), sys::now_ns());
        self.inside(|inner| inner.pages.has_copied(key, bytes, ns, now));
    }

    /// Has the control thread register a window that the caller has mapped, or notes why there is
    /// none.
    pub fn ask_for_pages(&self, version: &Version, number: u64, window: Result<Window, Unfit>) {
        if let Err(why) = &window {
            tell(*why);
        }
        let mut left = Some(window);
        self.work(false, |_, inner| {
            if let Some(window) = left.take() {
                match inner.pages.ask(version, number, window, sys::now_ns()) {
                    Ok(true) => inner.notes.push_back(Note::Pages),
                    Ok(false) => {}
                    Err(window) => left = Some(window),
                }
            }
            Ok(())
        });
    }

    /// The window that [`find_pages`](Self::find_pages) has given is not proved: it is registered
    /// anew, if it is used again.
    pub fn retire_pages(&self, version: &Version, number: u64, pages: Arc<Registered>) {
        let key = version.key(number);
        self.work(false, |_, inner| {
            inner.pages.retire(key, pages);
            inner.notes.push_back(Note::Pages);
            Ok(())
        });
    }

    /// Registers a window for one call (`SLUICE_SENDFILE=register`).
    ///
    /// # Errors
    /// Those of registering; ENOTCONN.
    pub fn register_once(&self, window: Window) -> Result<Arc<Registered>, Errno> {
        let domain = self.inside(|inner| {
            let can = inner.lost.is_none() && !inner.pump.only_direct();
            can.then(|| Arc::clone(&inner.domain))
        });
        let domain = domain.flatten().ok_or(libc::ENOTCONN)?;
        Registered::new(&domain, window).map(Arc::new)
    }

    /// Notes that the stream's bytes of this range, which are not published yet, are in a window.
    /// Returns whether it could.
    #[must_use]
    pub fn send_pages(
        &self,
        stream: u16,
        range: Range<u64>,
        pages: Arc<Registered>,
        offset: usize,
    ) -> bool {
        let now = sys::now_ns();
        let noted = self.inside(|inner| {
            inner.pump.on_edge(stream, Seq::new(range.start));
            inner.pump.on_edge(stream, Seq::new(range.end));
            inner.pages.note(stream, range, pages, (offset, now));
        });
        noted.is_some()
    }

    /// The first of the stream's bytes from `at` on, or from where the peer's credit ends, that are
    /// pages of a file: their positions, and where they are. `None` in a handler that interrupted
    /// this thread's own driving.
    ///
    /// The mapping stays while the control thread, which alone unmaps, or the stream's writer, for
    /// whose lock it waits, has the kernel read it.
    pub fn first_pages(&self, stream: u16, at: u64) -> Option<Option<Place>> {
        self.inside(|inner| {
            let place = inner.places.get(usize::from(stream)).copied().flatten();
            let head = place.map_or(0, |place| place.head);
            inner.pages.first(stream, at.max(head))
        })
    }

    /// The stream's pages of this range were copied to their place in the staging ring. Returns
    /// whether they were the registered ones, and so need not be kept any more.
    pub fn have_been_staged(&self, stream: u16, range: &Range<u64>) -> bool {
        let whole = self.inside(|inner| {
            let whole = inner.pages.is_whole(stream, range.start);
            if whole {
                inner.release_pages(stream, range.end);
            }
            whole
        });
        whole == Some(true)
    }

    /// By the control thread: drops what has gone, and registers one window that was asked for. If
    /// there are more, there is another note.
    pub fn see_to_pages(&self) {
        drop(self.inside(|inner| inner.pages.take_gone()));
        let next = self.inside(|inner| {
            let (asked, has_more) = inner.pages.take_asked()?;
            if has_more {
                inner.notes.push_back(Note::Pages);
            }
            Some((asked, Arc::clone(&inner.domain)))
        });
        let Some((Asked { key, window }, domain)) = next.flatten() else {
            return;
        };
        let (len, begin) = (window.len(), sys::now_ns());
        let made = Registered::new(&domain, window);
        let now = sys::now_ns();
        match &made {
            Ok(_) => costs::has_registered(len, now - begin),
            Err(errno) => tell(Unfit::Refused(*errno)),
        }
        // Is dropped here, outside the lock, if the answer is not wanted any more.
        drop(self.inside(|inner| inner.pages.answer(key, made, now)));
    }

    /// By the control thread: drops windows that nobody has used for a while. Returns when to look
    /// again, and a stream that has pages which the peer has not credited for long.
    pub fn rest_pages(&self, now: u64) -> (Option<u64>, Option<u16>) {
        let rest = self.inside(|inner| {
            let look = inner.pages.rest(now);
            let old = look.and_then(|_| inner.pages.old(now));
            (look, old, inner.pages.take_gone())
        });
        let (look, old, gone) = rest.unwrap_or_default();
        drop(gone);
        (look, old)
    }

    /// By the control thread: drops the windows that no stream uses now, since others need the
    /// memory.
    pub(crate) fn drop_pages(&self) {
        let gone = self.inside(|inner| {
            inner.pages.forget_ready();
            inner.pages.take_gone()
        });
        drop(gone);
    }
}

fn tell(why: Unfit) {
    log(
        Level::Debug,
        format_args!("sendfile copies, no pages of the file are registered: {why:?}"),
    );
}
