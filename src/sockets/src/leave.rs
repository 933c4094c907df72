//! The last step of a demotion: this process gives the stream back to the link.

use crate::fork_shared::Unread;
use crate::socket::{SETS, Socket, State};
use crate::{jobs, tell, trigger, trim, wake};
use core::sync::atomic::Ordering;
use sluice_fabric::shm::Link;
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
            wake_all(link, index);
            link.leave_stream(index);
            if !links::left(link, index) {
                trim::returned(link);
                tell::attention(link, index);
            }
        }
        trigger::rearm(sock);
    }
}

/// Wakes this process's threads that sleep on either direction. The thread that made the other half
/// Plain wakes that half's sleepers, too, but only if it still finds the link.
fn wake_all(link: &'static Link, index: u32) {
    if let Some(stream) = link.stream(index) {
        let (outgoing, incoming) = link.directions(stream);
        for waiters in [&outgoing.tx_wishes.waiters, &incoming.rx_wishes.waiters] {
            wake::own_threads(link, waiters.load(Ordering::SeqCst), index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use sluice_runtime::thread;

    #[test]
    fn the_last_half_to_leave_wakes_the_readers_too() {
        let (a, b, index) = testing::link();
        let sock = testing::writer(a, b, index);
        let bit = thread::slot_on(a).unwrap();
        let slot = a.my_slot(bit).unwrap();
        slot.announce();
        let [_, incoming] = testing::directions(a, index);
        incoming
            .rx_wishes
            .waiters
            .fetch_or(1 << bit, Ordering::SeqCst);
        sock.tx.state.put(State::Plain);
        leave(sock);
        assert!(!slot.is_sleeping());
    }
}
