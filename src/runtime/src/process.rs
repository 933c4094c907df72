//! Identity of this process: its id, its token towards peers, and whether it is a vfork child.

use crate::{credentials, seccomp};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sluice_fabric::shm::Token;
use sluice_fabric::sys;

/// The cached process id; 0: not known yet.
static PID: AtomicU32 = AtomicU32::new(0);
/// This process's id while it is calling `exec`, else 0. A child has another id, so it does not
/// count.
static EXECUTING: AtomicU32 = AtomicU32::new(0);
/// The program has called vfork or its kin: a child may run hooks in its parent's memory.
static VFORKED: AtomicBool = AtomicBool::new(false);
/// Identity towards peers; 0: not drawn yet.
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

/// Reads the id from /proc if a filter may kill for `getpid`: the loader has read files, too.
#[cold]
fn ask_pid() -> u32 {
    let read = if seccomp::is_filtered() {
        // One id for each PID namespace from that of /proc down: the last is our own.
        credentials::own_number(b"NSpid:").or_else(|| credentials::own_number(b"Pid:"))
    } else {
        None
    };
    read.map_or_else(|| sys::getpid() as u32, |pid| pid as u32)
}

/// True in a `vfork` child, which runs in its parent's memory. If the program never calls vfork,
/// that needs no system call, which would cost time and may be forbidden.
#[inline]
pub fn is_vfork_child() -> bool {
    if !VFORKED.load(Ordering::Relaxed) {
        return false;
    }
    sys::getpid() as u32 != pid()
}

/// This process's identity towards peers, drawn at first use.
pub fn token() -> Option<Token> {
    let [a, b] = &TOKEN;
    if a.load(Ordering::Acquire) == 0 {
        let mut bytes = [0u8; 16];
        sys::random(&mut bytes).ok()?;
        let drawn = u128::from_le_bytes(bytes);
        b.store((drawn >> 64) as u64, Ordering::Relaxed);
        // If two threads draw at once, the first one's lower half counts. Both halves are random.
        let _ = a.compare_exchange(0, drawn as u64 | 1, Ordering::AcqRel, Ordering::Acquire);
    }
    Some([a.load(Ordering::Acquire), b.load(Ordering::Acquire)])
}

/// The address of [`token`], for a peer that reads it out of this process's memory.
pub fn token_at() -> u64 {
    core::ptr::from_ref(&TOKEN) as usize as u64
}

/// True while the process is calling `exec`. Then bytes on a link are lost to the next program.
pub fn is_executing() -> bool {
    EXECUTING.load(Ordering::SeqCst) == pid()
}

/// The process calls `exec`, or that has failed.
pub fn set_executing(executing: bool) {
    EXECUTING.store(if executing { pid() } else { 0 }, Ordering::SeqCst);
}

/// Before `vfork` and its kin.
pub fn before_vfork() {
    pid();
    VFORKED.store(true, Ordering::Relaxed);
}

/// In the child of a fork: forgets the parent's identity.
pub fn after_fork() {
    PID.store(0, Ordering::Relaxed);
    for half in &TOKEN {
        half.store(0, Ordering::Relaxed);
    }
}
