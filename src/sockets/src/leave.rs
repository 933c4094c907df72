//! The last step of a demotion: this process gives the stream back to the link.

use crate::fork_shared::Unread;
use crate::socket::{SETS, Socket, State};
use crate::{jobs, tell, trigger, trim};
use core::sync::atomic::Ordering;
use sluice_runtime::process;
use sluice_transport::{Carrier, links};

/// Leaves the stream if both halves are Plain. Each thread that makes a half Plain calls this under
/// that half's lock; if two do so at once, `take_stream` gives the stream to one of them.
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
        // Relatives are told before the stream's index and rings can be another connection's.
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
