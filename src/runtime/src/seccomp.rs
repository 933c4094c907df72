//! Whether the library may make system calls that the program itself may never make.

use crate::{credentials, thread};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sluice_fabric::filter;
use sluice_stats::Reason;

/// The program has made a process.
static SPAWNED: AtomicBool = AtomicBool::new(false);

/// The program is about to make a process, so that the library may make one, too.
pub fn note_spawn() {
    SPAWNED.store(true, Ordering::Relaxed);
}

/// What is known of an inherited seccomp filter: one of the next four.
static FILTER: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
/// There is none, or it lets the library's calls pass or fail.
const FREE: u32 = 1;
/// It kills for one of the library's calls.
const FATAL: u32 = 2;
/// There is one, and no child may be made yet to try it.
const UNTRIED: u32 = 3;

/// True if there is an inherited filter, unless it was found harmless. Looked up once.
pub fn is_filtered() -> bool {
    let mut known = FILTER.load(Ordering::Relaxed);
    if known == UNKNOWN {
        known = if has_filter() { UNTRIED } else { FREE };
        FILTER.store(known, Ordering::Relaxed);
    }
    known != FREE
}

/// True if no system call of the library's is fatal, for certain: there is no inherited filter, or
/// it has been tried.
pub fn is_free() -> bool {
    FILTER.load(Ordering::Relaxed) == FREE || !is_filtered()
}

/// True if there is a filter now, even if it lets the library's calls pass.
pub fn has_filter() -> bool {
    credentials::own_number(b"Seccomp:").unwrap_or(0) != 0
}

/// True if the program makes processes or threads: then the library may, too.
fn makes_tasks() -> bool {
    SPAWNED.load(Ordering::Relaxed)
        || match thread::are_several() {
            Some(several) => several,
            None => credentials::own_number(b"Threads:").unwrap_or(1) > 1,
        }
}

/// Whether this process may make system calls that the program itself may never make. An inherited
/// seccomp filter may kill for one, so a child tries them all first.
pub fn may_use_system_calls() -> Result<(), Reason> {
    if is_free() {
        return Ok(());
    }
    // Making a child may be fatal, too, unless the program makes processes or threads.
    if FILTER.load(Ordering::Relaxed) == UNTRIED && makes_tasks() {
        let survived = filter::survives(&filter::OURS);
        FILTER.store(if survived { FREE } else { FATAL }, Ordering::Relaxed);
    }
    match FILTER.load(Ordering::Relaxed) {
        FREE => Ok(()),
        _ => Err(Reason::SeccompFatal),
    }
}

/// True if a wait must be the program's own call, since another one may be fatal. Then there is no
/// stream, and none begins during the wait: that takes a second thread, and with a second thread
/// the filter is tried.
#[inline]
pub fn waits_by_itself() -> bool {
    FILTER.load(Ordering::Relaxed) != FREE && must_wait_by_itself()
}

#[cold]
fn must_wait_by_itself() -> bool {
    if is_filtered() && thread::are_several().is_none() && !makes_tasks() {
        // This C library does not report threads, and asking before each wait costs too much.
        FILTER.store(FATAL, Ordering::Relaxed);
    }
    may_use_system_calls().is_err()
}
