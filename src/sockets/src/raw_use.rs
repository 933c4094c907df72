//! Calls on a tracked descriptor that hooks cannot follow: the kernel's socket is to be the only
//! path.

use super::socket::Socket;
use crate::give_up;
use crate::socket::watcher::Watcher;
use crate::unread_copy::awaiting;
use crate::verdict::{Pass, Verdict};
use libc::c_int;
use sluice_runtime::fd_table::{self, Entry};
use sluice_stats::Reason;

/// The descriptor is about to be used so: its stream goes back to TCP for good, counted under
/// `reason`. What the program has written goes before what it writes now.
pub fn used(fd: c_int, reason: Reason) {
    leave(fd, reason, give_up::finish);
}

/// As [`used`], by a call that only reads. What the program has written follows by the control
/// thread: the peer may not read it before it is read from.
pub fn reads(fd: c_int, reason: Reason) {
    leave(fd, reason, give_up::to_read);
}

fn leave(fd: c_int, reason: Reason, give_up: fn(&'static Socket, Reason)) {
    let Some(entry) = fd_table::lookup(fd) else {
        return;
    };
    if let Some(sock) = entry.get::<Socket>() {
        give_up(sock, reason);
        // What a poll has told of is there for the next reader; and after the program's SHUT_RD the
        // kernel would tell of an end where it has nothing yet.
        awaiting::part_with(sock);
    } else if entry == Entry::FRESH && reason != Reason::RawSyscall {
        // Given away before it is connected. (A raw call about one that is not says nothing of
        // later ones.)
        if let Some(sock) = crate::descriptors::sock_of(entry, fd) {
            give_up::finish(sock, reason);
        }
    } else if let Some(set) = entry.get::<Watcher>() {
        set.used_elsewhere();
    }
}

/// Before `splice` to a tracked descriptor; what is to wait for the peer fails where the program
/// does not.
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
