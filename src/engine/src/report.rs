//! `SLUICE_REPORT=PATH`: one line per finished connection, for tests and for the curious.

use crate::sockets::sock::Sock;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_stats::Reason;
use std::io::Write;

/// The connection is over, or the process is: appends its line. Once for each connection and process.
pub fn finished(sock: &Sock) {
    let Some(path) = crate::config::config().report.as_deref() else {
        return;
    };
    if sock.reported.swap(true, Ordering::Relaxed) {
        return;
    }
    let conn = sock.conn();
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
        "conn local={local} peer={peer} upgrades={} demotions={} tx_tcp={} tx_direct={} tx_indirect={} tx_file={} \
         rx_tcp={} rx_direct={} rx_indirect={} rx_file={} reason={reason}",
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
    );
    let left = rest.len();
    if written.is_err() {
        return;
    }
    let Some(text) = line.get(..512 - left) else {
        return;
    };
    if let Ok(fd) = sys::open_append(path) {
        let _ = sys::write(fd.raw(), text);
    }
}
