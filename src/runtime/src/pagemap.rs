//! Which pages of this process's memory are there, as /proc/self/pagemap tells
//! (proc_pid_pagemap(5)). That needs no privilege.

use crate::control_thread;
use crate::own_fds::{self, Low};
use core::sync::atomic::{AtomicI32, Ordering};
use sluice_fabric::sys::{self, Fd};

/// The descriptor; or one of these.
static FD: AtomicI32 = AtomicI32::new(UNOPENED);
const UNOPENED: i32 = -1;
/// It cannot be had: /proc is not mounted, or the process may not read its own entry there.
const REFUSED: i32 = -2;

/// Bit of an entry: the page is in memory and mapped.
const PRESENT: u64 = 1 << 63;
const ENTRY_LEN: usize = size_of::<u64>();
/// Entries read at once.
const ENTRIES: usize = 256;

/// Opens it, if that was not tried before. Returns whether it is open.
pub fn open() -> bool {
    if FD.load(Ordering::Relaxed) == UNOPENED {
        let _low = (!control_thread::is_own_thread()).then(Low::begin);
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let opened = sys::open(c"/proc/self/pagemap", flags);
        let fd = opened.ok().and_then(own_fds::lift);
        let number = fd.map_or(REFUSED, Fd::release);
        let kept = FD.compare_exchange(UNOPENED, number, Ordering::Relaxed, Ordering::Relaxed);
        if kept.is_err() && number >= 0 {
            own_fds::close(number);
        }
    }
    FD.load(Ordering::Relaxed) >= 0
}

/// Returns whether all pages of `len` bytes at `at` are mapped. False also before [`open`].
#[must_use]
pub fn are_present(at: usize, len: usize) -> bool {
    let fd = FD.load(Ordering::Relaxed);
    if fd < 0 || len == 0 {
        return false;
    }
    let page = sys::page_size();
    let (mut next, end) = (at / page, (at + len).div_ceil(page));
    let mut entries = [0u8; ENTRIES * ENTRY_LEN];
    while next < end {
        let count = (end - next).min(ENTRIES);
        let Some(part) = entries.get_mut(..count * ENTRY_LEN) else {
            return false;
        };
        if sys::pread(fd, part, (next * ENTRY_LEN) as u64) != Ok(part.len()) {
            return false;
        }
        let (entries, _) = part.as_chunks::<ENTRY_LEN>();
        if !entries
            .iter()
            .all(|e| u64::from_ne_bytes(*e) & PRESENT != 0)
        {
            return false;
        }
        next += count;
    }
    true
}

/// In the child of a fork: the descriptor tells of the parent's memory.
pub fn after_fork() {
    let fd = FD.swap(UNOPENED, Ordering::Relaxed);
    if fd >= 0 {
        own_fds::close(fd);
    }
}
