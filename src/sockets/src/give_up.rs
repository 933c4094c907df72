//! A connection goes back to TCP for good, for a reason of this end's.

use crate::demote::{self, Which};
use crate::resend::{self, Resent};
use crate::socket::{Socket, State};
use crate::verdict::Error;
use crate::{finish, meeting, wait};
use core::sync::atomic::Ordering;
use libc::c_int;
use sluice_stats::Reason;

/// The socket goes back to TCP for good, with what it has written.
pub fn finish(sock: &'static Socket, reason: Reason) {
    if begin(sock, reason) {
        finish::blocking(sock, reason);
    }
}

/// The same for one that reads where nobody hides the peer's record, writes nothing, and does not
/// wait until the peer has read.
pub fn to_read(sock: &'static Socket, reason: Reason) {
    if begin(sock, reason) {
        crate::remote::finish_reading(sock, reason);
    }
}

/// The same for one that writes, after what was written before.
///
/// # Errors
/// [`Error::WouldBlock`]: no room now, and it may not wait. [`Error::BrokenPipe`] after `shutdown`.
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
        // Its sets hear of the end of that.
        wait::ask_for_tcp_room(sock);
    }
    if sock.tx.state() == State::Plain {
        Ok(())
    } else {
        Err(Error::WouldBlock)
    }
}

/// The same at once; what TCP has no room for is sent by the control thread. Whether it was
/// accelerated.
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
