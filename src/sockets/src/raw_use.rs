//! Uses of a tracked descriptor that hooks cannot follow: only the kernel's socket may carry bytes.

use super::socket::Socket;
use crate::give_up;
use crate::socket::watcher::Watcher;
use crate::unread_copy::awaiting;
use crate::verdict::{Pass, Verdict};
use libc::c_int;
use sluice_runtime::fd_table::{self, Entry};
use sluice_stats::Reason;

/// Takes the descriptor's stream back to TCP for good, counted under `reason`, before such a use.
/// What the program has written is re-sent before the use writes.
pub fn used(fd: c_int, reason: Reason) {
    leave(fd, reason, give_up::finish);
}

/// As [`used`], for a use that only reads: the control thread may re-send later what the program
/// has written, since the peer may not read it before it has sent something itself.
pub fn reads(fd: c_int, reason: Reason) {
    leave(fd, reason, give_up::to_read);
}

fn leave(fd: c_int, reason: Reason, give_up: fn(&'static Socket, Reason)) {
    let Some(entry) = fd_table::lookup(fd) else {
        return;
    };
    if let Some(sock) = entry.get::<Socket>() {
        give_up(sock, reason);
        // The next reader must find what a poll has reported; and after SHUT_RD the kernel would
        // report EOF while it has nothing yet.
        awaiting::part_with(sock);
    } else if entry == Entry::FRESH && reason != Reason::RawSyscall {
        // Passed on before it is connected. (A raw system call on it says nothing about later
        // ones.)
        if let Some(sock) = crate::descriptors::sock_of(entry, fd) {
            give_up::finish(sock, reason);
        }
    } else if let Some(set) = entry.get::<Watcher>() {
        set.used_elsewhere();
    }
}

/// Called before `splice` to a tracked descriptor. If `waits_not`, the call fails where it would
/// have to wait for the peer.
pub fn spliced(entry: Entry, fd: c_int, waits_not: bool) -> Verdict {
    let Some(sock) = entry.get::<Socket>() else {
        used(fd, Reason::Splice);
        return Verdict::Pass(Pass::NOBODY);
    };
    let flags = if waits_not { libc::MSG_DONTWAIT } else { 0 };
    if let Err(e) = give_up::before_write(sock, fd, flags, Reason::Splice) {
        return Verdict::Failed(e);
    }
    awaiting::part_with(sock);
    Verdict::Pass(Pass::NOBODY)
}
