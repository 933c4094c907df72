//! The last step on the way back to TCP: this process gives the stream back.

use crate::fork_shared::Unread;
use crate::socket::{SETS, Socket, State};
use crate::{jobs, tell, trigger, trim};
use core::sync::atomic::Ordering;
use sluice_runtime::process;
use sluice_transport::{Carrier, links};

/// Under either lock: when both halves are Plain, this process leaves the stream.
pub fn leave(sock: &'static Socket) {
    if sock.rx.state() != State::Plain || sock.tx.state() != State::Plain {
        return;
    }
    sock.lent.shut();
    if let Some((link, index)) = sock.take_stream() {
        for i in 0..SETS {
            if let Some(set) = sock.set_at(i) {
                set.forget_stream(sock, link, index);
            }
        }
        // Before the stream's number and its rings may be another connection's.
        if let Some(family) = sock.family().filter(|f| f.owner() == process::pid()) {
            if Carrier::of(link).ends_by_record && sock.rx.owed.load(Ordering::Relaxed) != 0 {
                family.leave_unread(Unread::OF_LINK);
            }
            family.hand_both();
        }
        if link.is_foreign() {
            link.abandon_stream(index);
        } else {
            jobs::unwatch(sock);
            link.leave_stream(index);
            if !links::left(link, index) {
                trim::returned(link);
                tell::attention(link, index);
            }
        }
        trigger::rearm(sock);
    }
}
