//! Which process this is: its number, its token towards peers, and whether it is a vfork child.

use crate::{credentials, seccomp};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sluice_fabric::shm::Token;
use sluice_fabric::sys;

/// Process id as cached; 0: not asked yet.
static PID: AtomicU32 = AtomicU32::new(0);
/// The id of this process while it is about to execute another program; 0: it is not. A child has
/// another.
static EXECUTING: AtomicU32 = AtomicU32::new(0);
/// The program has called vfork or its kin, whose child runs our hooks in its parent's memory.
static VFORKED: AtomicBool = AtomicBool::new(false);
/// Identity towards peers; zero: not drawn yet.
static TOKEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// This process's id, cached.
#[inline]
pub fn pid() -> u32 {
    let pid = PID.load(Ordering::Relaxed);
    if pid != 0 {
        return pid;
    }
    let asked = ask_pid();
    PID.store(asked, Ordering::Relaxed);
    asked
}

/// Where a filter may kill for `getpid`, the number is read: the loader has read files, too.
#[cold]
fn ask_pid() -> u32 {
    let read = if seccomp::is_filtered() {
        // In each namespace of process ids from the reader's down: the last is our own.
        credentials::own_number(b"NSpid:").or_else(|| credentials::own_number(b"Pid:"))
    } else {
        None
    };
    read.map_or_else(|| sys::getpid() as u32, |pid| pid as u32)
}

/// Is this a `vfork` child, which runs in its parent's memory? A program that never calls
/// vfork is never asked for its process id: a system call that costs, and may not be allowed.
#[inline]
pub fn is_vfork_child() -> bool {
    if !VFORKED.load(Ordering::Relaxed) {
        return false;
    }
    sys::getpid() as u32 != pid()
}

/// Identity of this process, drawn at first use.
pub fn token() -> Option<Token> {
    let [a, b] = &TOKEN;
    if a.load(Ordering::Acquire) == 0 {
        let mut bytes = [0u8; 16];
        sys::random(&mut bytes).ok()?;
        let drawn = u128::from_le_bytes(bytes);
        b.store((drawn >> 64) as u64, Ordering::Relaxed);
        // Two threads may draw; the first one's lower half stands, and both halves are random.
        let _ = a.compare_exchange(0, drawn as u64 | 1, Ordering::AcqRel, Ordering::Acquire);
    }
    Some([a.load(Ordering::Acquire), b.load(Ordering::Acquire)])
}

/// Where [`token`] lies, for a peer that reads it out of this process's memory.
pub fn token_at() -> u64 {
    core::ptr::from_ref(&TOKEN) as usize as u64
}

/// Is it about to execute another program? What is on a link then is lost to that.
pub fn is_executing() -> bool {
    EXECUTING.load(Ordering::SeqCst) == pid()
}

/// It is about to execute another program, or that has failed.
pub fn set_executing(executing: bool) {
    EXECUTING.store(if executing { pid() } else { 0 }, Ordering::SeqCst);
}

/// Before `vfork` and its kin.
pub fn before_vfork() {
    pid();
    VFORKED.store(true, Ordering::Relaxed);
}

/// In the child of a fork: another process.
pub fn after_fork() {
    PID.store(0, Ordering::Relaxed);
    for half in &TOKEN {
        half.store(0, Ordering::Relaxed);
    }
}
