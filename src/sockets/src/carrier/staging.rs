//! Bytes of a stream that are pages of a file, copied to their place in the staging ring: a
//! demotion sends them from there, and an idle connection keeps no file mapped.

use super::link::of;
use crate::socket::{Socket, State};
use libc::iovec;
use sluice_fabric::sys;

/// What came of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    /// All bytes are in the ring.
    All,
    /// Those of a file that has been cut since are missing.
    Cut,
    /// This is a handler that interrupted this thread's own driving of the link.
    Unknown,
}

/// Copies the first pages that the peer has not credited, so that their window can go. Called by
/// the control thread.
pub fn stage_old_pages(sock: &'static Socket) {
    if let Ok(_section) = sock.tx.lock.enter()
        && sock.tx.state() == State::Link
    {
        let _ = stage_first(sock, 0);
    }
}

/// Copies all pages under way from `at` on. Call with the tx lock held, before the first byte is
/// sent by TCP.
#[must_use]
pub fn stage_pages(sock: &'static Socket, mut at: u64) -> Staged {
    loop {
        match stage_first(sock, at) {
            Ok(Some(end)) => at = end,
            Ok(None) => return Staged::All,
            Err(why) => return why,
        }
    }
}

/// Copies the first pages from `at` on, if there are any. Returns where they end.
fn stage_first(sock: &'static Socket, at: u64) -> Result<Option<u64>, Staged> {
    let ((endpoint, stream), Some(ring)) = (of(sock).ok_or(Staged::Unknown)?, sock.tx.ring())
    else {
        return Ok(None);
    };
    let first = endpoint.first_pages(stream, at).ok_or(Staged::Unknown)?;
    let Some((range, address)) = first else {
        return Ok(None);
    };
    let len = range.end - range.start;
    let to = ring.pieces(range.start, len).map(|(base, len)| iovec {
        iov_base: base.cast(),
        iov_len: len,
    });
    let from = [iovec {
        iov_base: address.cast_mut().cast(),
        iov_len: len as usize,
    }];
    // SAFETY: the place of uncredited bytes in the ring, which is theirs while the lock is held.
    // The kernel reads the mapping, or says EFAULT.
    let read = unsafe { sys::read_process(sys::getpid(), &from, &to) };
    if read == Ok(len as usize) && endpoint.have_been_staged(stream, &range) {
        Ok(Some(range.end))
    } else {
        Err(Staged::Cut)
    }
}
