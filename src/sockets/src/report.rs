//! `SLUICE_REPORT=PATH`: one line per finished connection, for tests and for the curious.

use crate::socket::{self, Socket};
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use sluice_fabric::lock::{Guarded, OverFork};
use sluice_fabric::sys;
use sluice_runtime::own_fds::Low;
use sluice_runtime::{address, control_thread, rights, seccomp};
use sluice_stats::{Reason, Role};
use std::io::Write;

/// A line is being written. A thread that finds another one writing may be about to end the
/// process.
static WRITING: Guarded<()> = Guarded::new(());

/// Held over a fork: no thread writes that the child would wait for.
pub const HELD: &dyn OverFork = &WRITING;

/// After a fork, in the child: what it has inherited gets a line of its own. What another thread of
/// the parent is closing gets none, since that thread is not here.
pub fn after_fork() {
    socket::for_every(|sock| {
        let is_closing = sock.fds.load(Ordering::Relaxed) == 0;
        sock.reported.store(is_closing, Ordering::Relaxed);
    });
}

/// The process ends: each connection that has no line yet gets it. Among these are the ones that
/// other threads are closing, whose peers may have seen the end before.
pub fn process_ends() {
    if sluice_runtime::config::config().report.is_some() {
        socket::for_every(finished);
    }
}

/// The connection is over, or the process is: appends its line. Once for each connection and
/// process; when this returns it is written.
pub fn finished(sock: &Socket) {
    let Some(path) = sluice_runtime::config::config().report.as_deref() else {
        return;
    };
    // None in a handler that has interrupted another line of this thread's.
    let _writing = WRITING.lock();
    if sock.reported.swap(true, Ordering::Relaxed) {
        return;
    }
    let conn = sock.conn();
    if conn.family().is_none() && !describe(sock) {
        return;
    }
    let (Some(local), Some(peer)) = (conn.local(), conn.peer()) else {
        return;
    };
    let mut line = [0u8; 512];
    let mut rest = line.as_mut_slice();
    let reason = Reason::from_u16(conn.reason())
        .unwrap_or(Reason::None)
        .code();
    let written = writeln!(
        rest,
        "conn local={local} peer={peer} upgrades={} demotions={} \
         tx_tcp={} tx_direct={} tx_indirect={} tx_file={} \
         rx_tcp={} rx_direct={} rx_indirect={} rx_file={} reason={reason} reason_of={}",
        conn.upgrades(),
        conn.demotions(),
        conn.tx.bytes.tcp.load(),
        conn.tx.bytes.direct.load(),
        conn.tx.bytes.indirect.load(),
        conn.tx.bytes.file.load(),
        conn.rx.bytes.tcp.load(),
        conn.rx.bytes.direct.load(),
        conn.rx.bytes.indirect.load(),
        conn.rx.bytes.file.load(),
        if conn.is_reason_of_peer() {
            "peer"
        } else {
            "own"
        },
    );
    let left = rest.len();
    if written.is_err() {
        return;
    }
    let Some(text) = line.get(..512 - left) else {
        return;
    };
    // A thread of the program's makes it as the program would.
    let _low = control_thread::is_own_thread().then(Low::begin);
    if let Ok(fd) = sys::open_append(path) {
        let _ = sys::write(fd.raw(), text);
    }
}

/// The connection stands, or is about to lose a half: its addresses are asked for if there will be
/// a line, since the kernel knows no peer of a connection whose both ends are over.
pub fn named(sock: &Socket) {
    let conn = sock.conn();
    if sluice_runtime::config::config().report.is_none() || conn.family().is_some() {
        return;
    }
    if rights::forbidden().is_some() || seccomp::is_filtered() {
        return;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    if let (Some(role), Some(local), Some(peer)) = (
        conn.role(),
        address::name(fd, false),
        address::name(fd, true),
    ) {
        conn.describe(fd, role, local, peer);
    }
}

/// Asks for the addresses of a connection on which nothing was tried; its descriptor is open still,
/// or known to be gone. False: there was no connection.
fn describe(sock: &Socket) -> bool {
    let conn = sock.conn();
    let Some(role) = conn.role() else {
        return false;
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    // A filter may kill for the question.
    let name = |peer| (!seccomp::is_filtered()).then(|| address::name(fd, peer))?;
    let (local, peer) = (name(false), name(true));
    // A connection that was reset has no peer any more; one that never came about has moved
    // nothing.
    if peer.is_none() && role == Role::Connecting && sock.offset() == 0 {
        return false;
    }
    let unknown = SocketAddr::from(([0; 4], 0));
    conn.describe(fd, role, local.unwrap_or(unknown), peer.unwrap_or(unknown));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Held};

    #[test]
    fn a_child_waits_for_no_line_of_its_parents() {
        let held = Held {
            hold: || WRITING.hold(),
            release: || WRITING.release(),
        };
        assert!(testing::is_free_in_child(held, &WRITING));
    }
}
