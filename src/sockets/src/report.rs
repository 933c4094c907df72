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

/// Held while a line is written. A thread that has to wait for it may be about to end the process.
static WRITING: Guarded<()> = Guarded::new(());

/// Held over a fork: no thread writes that the child would wait for.
pub const HELD: &dyn OverFork = &WRITING;

/// In the child of a fork: an inherited connection gets a line of its own. One that another thread
/// of the parent was closing gets none, since that thread is not here.
pub fn after_fork() {
    socket::for_every(|sock| {
        let is_closing = sock.fds.load(Ordering::Relaxed) == 0;
        sock.reported.store(is_closing, Ordering::Relaxed);
    });
}

/// At the end of the process: writes the missing lines, also of connections that other threads are
/// closing, whose peers may have seen the end already.
pub fn process_ends() {
    if sluice_runtime::config::config().report.is_some() {
        socket::for_every(finished);
    }
}

/// Appends the line of a connection that is over, or whose process is. Once per connection and
/// process; when this returns, the line is written.
pub fn finished(sock: &Socket) {
    let Some(path) = sluice_runtime::config::config().report.as_deref() else {
        return;
    };
    // Fails in a handler that has interrupted this thread's own writing; then it writes without the
    // lock.
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
         tx_tcp={} tx_direct={} tx_indirect={} tx_file={} tx_pages={} \
         rx_tcp={} rx_direct={} rx_indirect={} rx_file={} rx_pages={} reason={reason} reason_of={}",
        conn.upgrades(),
        conn.demotions(),
        conn.tx.bytes.tcp.load(),
        conn.tx.bytes.direct.load(),
        conn.tx.bytes.indirect.load(),
        conn.tx.bytes.file.load(),
        conn.tx.bytes.pages.load(),
        conn.rx.bytes.tcp.load(),
        conn.rx.bytes.direct.load(),
        conn.rx.bytes.indirect.load(),
        conn.rx.bytes.file.load(),
        conn.rx.bytes.pages.load(),
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
    // In a thread of the program the file gets a descriptor as the program would get it.
    let _low = control_thread::is_own_thread().then(Low::begin);
    if let Ok(fd) = sys::open_append(path) {
        let _ = sys::write(fd.raw(), text);
    }
}

/// Looks up the addresses of a connection that is established or about to lose a half, if there
/// will be a line: the kernel forgets the peer once both directions have ended.
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

/// Looks up the addresses of a connection on which no upgrade was tried. Its descriptor is still
/// open, or known to be gone. False: there was no connection.
fn describe(sock: &Socket) -> bool {
    let conn = sock.conn();
    let Some(role) = conn.role() else {
        return false;
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    // A seccomp filter may kill the process for the question.
    let name = |peer| (!seccomp::is_filtered()).then(|| address::name(fd, peer))?;
    let (local, peer) = (name(false), name(true));
    // A connection that was reset has no peer any more; one that was never established has moved
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
