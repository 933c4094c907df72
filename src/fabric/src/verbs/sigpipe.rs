//! SIGPIPE of a device that is none.
//!
//! Soft-iWARP sends from within the call that posts, by a kernel socket, and does not ask for
//! silence: when the peer has closed that socket the program's thread is sent SIGPIPE, of which it
//! usually dies, though nothing of its own was broken. So the signal is kept from it while work is
//! posted, unless it is ignored anyway, as most servers do.

use crate::sys;
use core::sync::atomic::{AtomicU8, Ordering};

/// What the process does with SIGPIPE, as it was seen last.
static SEEN: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const IGNORED: u8 = 1;
const OTHER: u8 = 2;

/// SIGPIPE in a signal mask.
const SIGPIPE: u64 = 1 << (libc::SIGPIPE - 1);

/// The program has said anew what becomes of SIGPIPE.
pub fn changed() {
    SEEN.store(UNKNOWN, Ordering::Relaxed);
}

/// Does something that may send this thread SIGPIPE, which it does not get to see.
/// Async-signal-safe.
pub fn without<R>(f: impl FnOnce() -> R) -> R {
    if is_ignored() {
        return f();
    }
    let before = sys::set_signal_mask(u64::MAX);
    // One that was pending is the program's own: where it blocks the signal.
    let own = before & SIGPIPE != 0 && sys::pending_signals() & SIGPIPE != 0;
    let done = f();
    if !own {
        sys::take_signal(SIGPIPE);
    }
    sys::set_signal_mask(before);
    done
}

fn is_ignored() -> bool {
    let seen = SEEN.load(Ordering::Relaxed);
    if seen != UNKNOWN {
        return seen == IGNORED;
    }
    let action = sys::signal_action(libc::SIGPIPE);
    let ignored = action.is_some_and(|(handler, _)| handler == libc::SIG_IGN);
    SEEN.store(if ignored { IGNORED } else { OTHER }, Ordering::Relaxed);
    ignored
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raise() {
        // SAFETY: to this thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
    }

    fn act(handler: libc::sighandler_t) {
        // SAFETY: no handler of Rust's own.
        unsafe { libc::signal(libc::SIGPIPE, handler) };
        changed();
    }

    /// One test: what is done with a signal is the process's.
    #[test]
    fn the_signal_is_kept_from_the_thread_and_the_programs_own_is_not() {
        act(libc::SIG_DFL);
        assert!(!is_ignored());
        // The process would die of it.
        without(raise);
        let kept = sys::set_signal_mask(SIGPIPE);
        raise();
        without(raise);
        assert_eq!(sys::pending_signals() & SIGPIPE, SIGPIPE);
        sys::take_signal(SIGPIPE);
        without(raise);
        assert_eq!(sys::pending_signals() & SIGPIPE, 0);
        sys::set_signal_mask(kept);
        act(libc::SIG_IGN);
        assert!(is_ignored());
        without(raise);
    }
}
