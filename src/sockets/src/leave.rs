//! The last step on the way back to TCP: this process gives the stream back.

use crate::socket::{SETS, Socket, State};
use crate::{jobs, tell, trigger, trim};
use core::sync::atomic::Ordering;
use sluice_transport::links;

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
        if link.is_foreign() {
            link.abandon_stream(index);
        } else {
            jobs::unwatch(sock);
            let family = sock.family();
            // Of a dead link nothing is put to another use, and relatives may still have to read
            // what the peer left.
            if link.is_alive() {
                family.inspect(|f| f.leave_stream());
            }
            link.leave_stream(index);
            let owing = sock.rx.owed.load(Ordering::Relaxed) != 0;
            family.inspect(|f| f.hand(owing));
            if !links::left(link, index) {
                trim::returned(link);
                tell::attention(link, index);
            }
        }
        trigger::rearm(sock);
    }
}
