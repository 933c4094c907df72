//! Takes a connection back to TCP for good, since this end's program does what a link cannot serve.

use crate::demote::{self, Which};
use crate::resend::{self, Resent};
use crate::socket::{Socket, State};
use crate::verdict::Error;
use crate::{finish, meeting, wait};
use core::sync::atomic::Ordering;
use libc::c_int;
use sluice_stats::Reason;

/// Takes the connection back to TCP for good, and waits until TCP has what the program has written.
/// Between hosts the wait ends after 5 s, with a reset if other code is to use the descriptor.
pub fn finish(sock: &'static Socket, reason: Reason) {
    if begin(sock, reason) {
        finish::blocking(sock, reason);
    }
}

/// Like [`finish`], for a program that will only read past the hooks: the control thread re-sends
/// what TCP has no room for. Between hosts, waits until what is read comes by TCP without a record.
pub fn to_read(sock: &'static Socket, reason: Reason) {
    if begin(sock, reason) {
        crate::carrier::finish_reading(sock, reason);
    }
}

/// Like [`finish`], before a write past the hooks.
///
/// # Errors
/// [`Error::WouldBlock`]: the re-send is not finished, and the call may not wait.
/// [`Error::BrokenPipe`]: the program has shut the writing half down.
pub fn before_write(
    sock: &'static Socket,
    fd: c_int,
    flags: c_int,
    reason: Reason,
) -> Result<(), Error> {
    if !begin(sock, reason) {
        return Ok(());
    }
    if sock.shut.load(Ordering::SeqCst) {
        return Err(Error::BrokenPipe { raise: true });
    }
    if sock.may_wait(fd, flags) {
        finish::blocking(sock, reason);
        return Ok(());
    }
    if let Ok(_section) = sock.tx.lock.enter()
        && sock.tx.state() == State::Resending
        && resend::now(sock) != Resent::All
    {
        // The socket's epoll sets are told when the re-send ends.
        wait::ask_for_tcp_room(sock);
    }
    if sock.tx.state() == State::Plain {
        Ok(())
    } else {
        Err(Error::WouldBlock)
    }
}

/// Like [`finish`], without a wait: the control thread re-sends what TCP has no room for. Returns
/// whether a half was off plain TCP.
pub fn begin(sock: &'static Socket, reason: Reason) -> bool {
    sock.pin(reason);
    meeting::forget(sock);
    sock.synchronize_locks();
    let accelerated = sock.is_accelerated();
    if accelerated {
        demote::demote(sock, Which::Both, reason);
    }
    accelerated
}
