//! `sendfile` to another host by the file's own pages, which the device reads: no processor copies
//! them (`docs/decisions/034-pages-of-files.md`).
//!
//! | `SLUICE_SENDFILE` | |
//! |---|---|
//! | `copy` | never |
//! | `register` | a window is registered for the call, by the calling thread |
//! | `pages` | a window stays registered for later calls; until it is, the bytes are copied |
//! | `auto` | as `pages`, where that was measured to cost less than copying |
//!
//! Call these functions with the tx lock held.

use super::publish;
use crate::carrier::of;
use crate::socket::Socket;
use core::sync::atomic::Ordering;
use libc::c_int;
use sluice_fabric::sys;
use sluice_runtime::config::{Sendfile, config};
use sluice_runtime::thread;
use sluice_transport::verbs::endpoint::Endpoint;
use sluice_transport::verbs::page_costs as costs;
use sluice_transport::verbs::pages::{Found, Registered};
use sluice_transport::verbs::window::{LEN, Version, Window};
use std::sync::Arc;

/// Fewer bytes are copied, whatever is set: a span costs a message of its own.
const LEAST: usize = 4096;

/// Which bytes of a file a `sendfile` is at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The file, open in the program.
    pub file: c_int,
    /// Where in the file the bytes are.
    pub from: u64,
    /// How many the call still has to send.
    pub left: usize,
    /// Their position in the stream.
    pub at: u64,
    /// The file's own position is to follow. As with the kernel's `sendfile`, other calls on the
    /// file meanwhile do not matter.
    pub moves_file: bool,
}

/// What came of a try.
pub(super) enum Sent {
    /// So many bytes were published.
    Bytes(usize),
    /// The stream was sealed: look again where bytes may go.
    Sealed,
    /// The bytes are to be copied.
    Copy,
}

/// Returns whether bytes of files may go by pages.
pub(super) fn may_be(sock: &Socket) -> bool {
    config().sendfile != Sendfile::Copy && sock.carrier().is_driven
}

/// Publishes bytes of a file without copying them, if they [may be](may_be).
pub(super) fn send(sock: &'static Socket, part: Part) -> Sent {
    let way = config().sendfile;
    let begin = (way == Sendfile::Auto).then(sys::now_ns);
    let pays = |len: &usize| *len >= LEAST && (way != Sendfile::Auto || costs::pay(*len));
    let Some(len) = length(sock, &part).filter(pays) else {
        return Sent::Copy;
    };
    // A handler that jumped out of here would leave a span for bytes that others write then, or the
    // file at bytes that were sent.
    let mask = thread::block_signals();
    let sent = match note(sock, part, len, way) {
        None => Sent::Copy,
        Some(noted) if publish(sock, part.at, noted) => {
            if part.moves_file {
                // An error is impossible here: the file is regular.
                let to = part.from + noted as u64;
                let _ = sys::seek(part.file, to as i64, libc::SEEK_SET);
            }
            Sent::Bytes(noted)
        }
        Some(_) => Sent::Sealed,
    };
    thread::unblock_signals(mask);
    if let Sent::Bytes(noted) = sent {
        sock.conn().tx.bytes.pages.add(noted as u64);
        if let Some(begin) = begin {
            costs::has_sent_pages(noted, sys::now_ns() - begin);
        }
    }
    sent
}

/// How many bytes the stream and the window have room for.
fn length(sock: &Socket, part: &Part) -> Option<usize> {
    let in_flight = part.at - sock.tx.seen.load(Ordering::Relaxed);
    let room = u64::from(sock.tx.unread_max.load(Ordering::Relaxed)).saturating_sub(in_flight);
    let len = part.left.min(room.min(LEN - part.from % LEN) as usize);
    (len != 0).then_some(len)
}

/// Notes a span for at most `len` bytes of the file: how many. `None`: they are to be copied.
fn note(sock: &'static Socket, part: Part, len: usize, way: Sendfile) -> Option<usize> {
    let (endpoint, stream) = of(sock)?;
    // A read says what the kernel has against the descriptor.
    let flags = sys::fcntl(part.file, libc::F_GETFL, 0).ok()?;
    let is_odd = flags & (libc::O_PATH | libc::O_DIRECT) != 0;
    if is_odd || flags & libc::O_ACCMODE == libc::O_WRONLY {
        return None;
    }
    let st = sys::fstat(part.file).ok()?;
    let version = Version::of(&st);
    let (number, offset) = (part.from / LEN, (part.from % LEN) as usize);
    let len = len.min(version.size.saturating_sub(part.from) as usize);
    if len == 0 {
        return None;
    }
    let (pages, offset) = if way == Sendfile::Register {
        let before = offset % sys::page_size();
        let from = part.from - before as u64;
        let pages = register(endpoint, part.file, &st, from, before + len)?;
        (pages, before)
    } else {
        (kept(endpoint, part.file, &st, number)?, offset)
    };
    if !pages.window().is_proved(offset, len) {
        endpoint.retire_pages(&version, number, pages);
        return None;
    }
    let range = part.at..part.at + len as u64;
    endpoint
        .send_pages(stream, range, pages, offset)
        .then_some(len)
}

/// The window of this number, if it is registered for calls to come. Asks for it if it should be.
fn kept(
    endpoint: &'static Endpoint,
    file: c_int,
    st: &libc::stat,
    number: u64,
) -> Option<Arc<Registered>> {
    let version = Version::of(st);
    let len = (version.size - number * LEN).min(LEN);
    match endpoint.find_pages(&version, (number, len)) {
        Found::Ready(pages) => Some(pages),
        Found::Wanted => {
            endpoint.ask_for_pages(&version, number, Window::map(file, st, number * LEN, LEN));
            None
        }
        Found::Copy => None,
    }
}

/// Registers a window of these bytes for one call.
fn register(
    endpoint: &'static Endpoint,
    file: c_int,
    st: &libc::stat,
    from: u64,
    len: usize,
) -> Option<Arc<Registered>> {
    let window = Window::map(file, st, from, len as u64).ok()?;
    endpoint.register_once(window).ok()
}

/// So many bytes of a file were copied and published, which began at `begin` (`sys::now_ns`).
pub(super) fn has_copied(sock: &Socket, part: Part, len: usize, begin: u64) {
    let ns = sys::now_ns() - begin;
    costs::has_copied(len, ns);
    if let Some((endpoint, _)) = of(sock)
        && let Ok(st) = sys::fstat(part.file)
    {
        let offset = part.from % LEN;
        let bytes = offset..(offset + len as u64).min(LEN);
        endpoint.has_copied(&Version::of(&st), part.from / LEN, bytes, ns);
    }
}

/// Returns whether costs of copies are to be [told](has_copied).
pub(super) fn wants_costs(sock: &Socket) -> bool {
    matches!(config().sendfile, Sendfile::Auto | Sendfile::Pages) && sock.carrier().is_driven
}
