//! Whether the library may make system calls that the program itself perhaps never makes.

use crate::{credentials, thread};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sluice_fabric::filter;
use sluice_stats::Reason;

/// The program has made a process.
static SPAWNED: AtomicBool = AtomicBool::new(false);

/// The program is about to make a process, so that one may also be made for it.
pub fn note_spawn() {
    SPAWNED.store(true, Ordering::Relaxed);
}

/// What is known of an inherited seccomp filter, one of the next four.
static FILTER: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
/// There is none, or it lets our calls pass or fail.
const FREE: u32 = 1;
/// It kills for one of our calls.
const FATAL: u32 = 2;
/// There is one, and no child may be made yet to try it.
const UNTRIED: u32 = 3;

/// Is there an inherited filter? Asked once, by calls that the loader made in this very process.
pub fn is_filtered() -> bool {
    let mut known = FILTER.load(Ordering::Relaxed);
    if known == UNKNOWN {
        known = if has_filter() { UNTRIED } else { FREE };
        FILTER.store(known, Ordering::Relaxed);
    }
    known != FREE
}

/// Is it known that no system call of ours is fatal: there is no inherited filter, or it has been
/// tried?
pub fn is_free() -> bool {
    FILTER.load(Ordering::Relaxed) == FREE || !is_filtered()
}

/// Is there a filter now, be it one that lets our calls pass?
pub fn has_filter() -> bool {
    credentials::own_number(b"Seccomp:").unwrap_or(0) != 0
}

/// Does the program make processes or threads? Then it may also be done for it.
fn makes_tasks() -> bool {
    SPAWNED.load(Ordering::Relaxed)
        || match thread::are_several() {
            Some(several) => several,
            None => credentials::own_number(b"Threads:").unwrap_or(1) > 1,
        }
}

/// May this process make system calls that the program itself perhaps never makes? A seccomp filter
/// that it has inherited may kill for one: then a child tries them all first.
pub fn may_use_system_calls() -> Result<(), Reason> {
    if is_free() {
        return Ok(());
    }
    // Making a child is itself a call that may be fatal, unless the program does such things.
    if FILTER.load(Ordering::Relaxed) == UNTRIED && makes_tasks() {
        let survived = filter::survives(&filter::OURS);
        FILTER.store(if survived { FREE } else { FATAL }, Ordering::Relaxed);
    }
    match FILTER.load(Ordering::Relaxed) {
        FREE => Ok(()),
        _ => Err(Reason::SeccompFatal),
    }
}

/// Must a wait be the program's own call, since another one may be fatal? Then there is no stream,
/// and none comes up during the wait: that takes a second thread, and with that the filter is
/// tried.
#[inline]
pub fn waits_by_itself() -> bool {
    FILTER.load(Ordering::Relaxed) != FREE && must_wait_by_itself()
}

#[cold]
fn must_wait_by_itself() -> bool {
    if is_filtered() && thread::are_several().is_none() && !makes_tasks() {
        // A C library that does not tell of threads: to ask before each wait costs too much.
        FILTER.store(FATAL, Ordering::Relaxed);
    }
    may_use_system_calls().is_err()
}
