//! What a stream measures whose reader could lend its buffers, so that later ones know what pays
//! (`sluice_transport::verbs::loan_costs`).
//!
//! A measurement lasts from one wait on an empty ring to the next: a call that does not wait gets
//! what came during another's, so calls alone would not tell. Call these functions with the rx lock
//! held.

use super::lent::Trial;
use crate::socket::{Socket, State};
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_runtime::control_thread;
use sluice_transport::verbs::loan_costs::{self, Way};

/// A measurement that took longer says more about the peer's pauses than about the way.
const LONG_NS: u64 = 1_000_000_000;

thread_local! {
    /// Its address tells threads apart.
    static THREAD: u8 = const { 0 };
}

/// The time on a processor of this thread, and of the control thread, which wakes it.
fn busy_ns() -> u64 {
    sys::thread_cpu_ns(0) + control_thread::cpu_ns()
}

fn thread() -> usize {
    THREAD.with(|of| core::ptr::from_ref(of) as usize)
}

/// Returns whether the call that begins to wait is to lend its buffer. `is_first`: it has not
/// waited yet; it goes one way to its end.
pub(super) fn lends(sock: &Socket, (len, fills): (usize, bool), is_first: bool) -> bool {
    let trial = &sock.lent.trial;
    let before = trial.way.load(Ordering::Relaxed);
    if before != 0 && !is_first {
        return before == Trial::LOAN;
    }
    if before != 0 {
        end(sock);
    }
    let (way, measured) = if sock.lent.is_in_vain() {
        (Way::Ring, false)
    } else {
        loan_costs::way(len, fills)
    };
    let lends = way == Way::Loan;
    let way = if lends { Trial::LOAN } else { Trial::RING };
    trial.way.store(way, Ordering::Relaxed);
    trial.len.store(len, Ordering::Relaxed);
    trial.fills.store(fills, Ordering::Relaxed);
    let began = if measured { sys::now_ns() } else { 0 };
    trial.began_ns.store(began, Ordering::Relaxed);
    if measured {
        trial.busy_ns.store(busy_ns(), Ordering::Relaxed);
        trial.thread.store(thread(), Ordering::Relaxed);
        let linked = sock.rx.linked.load(Ordering::Relaxed);
        trial.linked.store(linked, Ordering::Relaxed);
    }
    lends
}

fn end(sock: &Socket) {
    let trial = &sock.lent.trial;
    let began = trial.began_ns.load(Ordering::Relaxed);
    if began == 0
        || trial.thread.load(Ordering::Relaxed) != thread()
        || sock.rx.state() != State::Link
    {
        return;
    }
    let elapsed = sys::now_ns() - began;
    let linked = sock.rx.linked.load(Ordering::Relaxed);
    let got = linked.saturating_sub(trial.linked.load(Ordering::Relaxed));
    if got != 0 && elapsed < LONG_NS {
        let busy = busy_ns().saturating_sub(trial.busy_ns.load(Ordering::Relaxed));
        let way = match trial.way.load(Ordering::Relaxed) {
            Trial::LOAN => Way::Loan,
            _ => Way::Ring,
        };
        let len = trial.len.load(Ordering::Relaxed);
        let wants = (len, trial.fills.load(Ordering::Relaxed));
        loan_costs::has_received(way, wants, got, [elapsed, busy]);
    }
}

/// The call goes by the ring, as it cannot lend now. Others will hardly be able to, either.
pub(super) fn cannot_lend(sock: &Socket) {
    sock.lent.trial.way.store(Trial::RING, Ordering::Relaxed);
    sock.lent.was_used(false);
}
