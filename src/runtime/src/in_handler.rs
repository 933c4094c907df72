//! Whether a signal handler of the program's runs on this thread.

use crate::caller;
use core::cell::Cell;
use sluice_fabric::lock::on_signal_stack;
use sluice_fabric::sys::{self, handlers};

thread_local! {
    // Constant and without a destructor: reading it needs no registration and no allocation.
    /// How many handlers had run when this thread was last found in one, and since when it was.
    static FOUND: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// True if a signal handler of the program's runs on this thread. It may have interrupted the C
/// library (`malloc`), so no function of that may be called that takes locks. Stays true for a
/// while after a handler until its place on the stack is overwritten.
pub fn is_in_handler() -> bool {
    /// Longer than any handler runs.
    const LONG_NS: u64 = 1_000_000_000;
    /// More than any chain of calls needs, in bytes of stack.
    const DEEP: usize = 1 << 20;
    let Some((ran, last)) = handlers::last_entered() else {
        return false;
    };
    let here = core::ptr::from_ref(&last).addr();
    let stands = |entered: &handlers::Entered| {
        let is_below = here < entered.at && entered.at - here < DEEP;
        // SAFETY: any bytes are a number, and this thread's stack is mapped from here to there.
        let there = || unsafe { caller::copy_on_trust(entered.at as *const usize) };
        is_below && there() == Some(entered.returns_to)
    };
    if !(last.iter().any(stands) || on_signal_stack()) {
        return false;
    }
    let now = sys::now_ns();
    FOUND.with(|found| {
        let (number, since) = found.get();
        let since = if number == ran { since } else { now };
        found.set((ran, since));
        now.saturating_sub(since) < LONG_NS
    })
}
