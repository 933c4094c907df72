//! What a stream measures whose reader could lend its buffers, so that later ones know what pays
//! (`sluice_transport::verbs::loan_costs`).
//!
//! A measurement lasts from one wait on an empty ring to the next: a call that does not wait gets
//! what came during another's, so calls alone would not tell.

use super::lent::{LoanTrial, Mark};
use crate::socket::{Socket, State};
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_runtime::control_thread;
use sluice_transport::verbs::loan_costs::{self, Way};

thread_local! {
    /// Its address tells threads apart.
    static THREAD: u8 = const { 0 };
}

impl Mark {
    fn now(sock: &Socket) -> Self {
        Self {
            ns: [
                sys::now_ns(),
                sys::thread_cpu_ns(0) + control_thread::cpu_ns(),
            ],
            thread: THREAD.with(|of| core::ptr::from_ref(of) as usize),
            generation: sock.generation.load(Ordering::Relaxed),
            linked: sock.rx.linked.load(Ordering::Relaxed),
        }
    }
}

/// Returns whether the call that begins to wait is to lend its buffer. `is_first`: it has not
/// waited yet; it goes one way to its end. Call with the rx lock held.
pub(super) fn lends(sock: &Socket, wants: (usize, bool), is_first: bool) -> bool {
    let Some(mut place) = sock.lent.trial.lock() else {
        return false;
    };
    if let Some(trial) = place.filter(|_| !is_first) {
        return trial.way == Way::Loan;
    }
    if let Some(trial) = *place {
        end(sock, &trial);
    }
    let (way, measured) = if sock.lent.is_in_vain() {
        (Way::Ring, false)
    } else {
        loan_costs::way(wants.0, wants.1)
    };
    let began = measured.then(|| Mark::now(sock));
    *place = Some(LoanTrial { way, wants, began });
    way == Way::Loan
}

fn end(sock: &Socket, trial: &LoanTrial) {
    let Some(began) = trial.began else {
        return;
    };
    let now = Mark::now(sock);
    let is_same = (now.thread, now.generation) == (began.thread, began.generation);
    let got = now.linked.saturating_sub(began.linked) as usize;
    let is_vain = trial.way == Way::Loan && sock.lent.vain.load(Ordering::Relaxed) != 0;
    if is_same && got != 0 && !is_vain && sock.rx.state() == State::Link {
        let ([elapsed, busy], [from, busy_from]) = (now.ns, began.ns);
        let took = [elapsed - from, busy.saturating_sub(busy_from)];
        loan_costs::has_received(trial.way, trial.wants, got, took);
    }
}

/// The call goes by the ring, as it cannot lend now.
pub(super) fn cannot_lend(sock: &Socket) {
    if let Some(mut place) = sock.lent.trial.lock()
        && let Some(trial) = place.as_mut()
    {
        trial.way = Way::Ring;
    }
}
