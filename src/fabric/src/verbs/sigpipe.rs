//! SIGPIPE of a device that is none.
//!
//! Soft-iWARP sends from within the call that posts, by a kernel socket, and does not ask for silence: when the peer has closed that
//! socket the program's thread is sent SIGPIPE, of which it usually dies, though nothing of its own was broken. So the signal is
//! kept from it while work is posted, unless it is ignored anyway, as most servers do.

use crate::sys::{self, Errno};
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering};
use syscalls::Sysno;

/// What the process does with SIGPIPE, as it was seen last.
static SEEN: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const IGNORED: u8 = 1;
const OTHER: u8 = 2;

/// SIGPIPE in the kernel's signal masks, which have so many bytes.
const SIGPIPE: u64 = 1 << (libc::SIGPIPE - 1);
const MASK_LEN: usize = 8;

/// The program has said anew what becomes of SIGPIPE.
pub fn changed() {
    SEEN.store(UNKNOWN, Ordering::Relaxed);
}

/// Does something that may send this thread SIGPIPE, which it does not get to see. Async-signal-safe.
pub fn without<R>(f: impl FnOnce() -> R) -> R {
    if is_ignored() {
        return f();
    }
    let before = sys::set_signal_mask(u64::MAX);
    // One that was pending is the program's own: where it blocks the signal.
    let own = before & SIGPIPE != 0 && pending().is_ok_and(|mask| mask & SIGPIPE != 0);
    let done = f();
    if !own {
        take();
    }
    sys::set_signal_mask(before);
    done
}

fn is_ignored() -> bool {
    let seen = SEEN.load(Ordering::Relaxed);
    if seen != UNKNOWN {
        return seen == IGNORED;
    }
    // The kernel's `struct sigaction` begins with the handler on all machines but MIPS.
    let mut action = [0usize; 4];
    let at = action.as_mut_ptr() as usize;
    let signal = libc::SIGPIPE as usize;
    // SAFETY: room for the answer; nothing is set.
    let asked = unsafe { sys::call(Sysno::rt_sigaction, [signal, 0, at, MASK_LEN, 0, 0]) };
    let [handler, ..] = action;
    let ignored = asked.is_ok() && handler == libc::SIG_IGN;
    SEEN.store(if ignored { IGNORED } else { OTHER }, Ordering::Relaxed);
    ignored
}

fn pending() -> Result<u64, Errno> {
    let mut mask = 0u64;
    let at = (&raw mut mask) as usize;
    // SAFETY: room for the answer.
    unsafe { sys::call(Sysno::rt_sigpending, [at, MASK_LEN, 0, 0, 0, 0]) }.map(|_| mask)
}

/// Takes the signal from this thread, where it is blocked, if it is pending.
fn take() {
    let mask = SIGPIPE;
    let now = sys::timespec(0);
    let (mask, now) = ((&raw const mask) as usize, (&raw const now) as usize);
    let nobody = ptr::null::<u8>() as usize;
    // SAFETY: a mask and a time of ours; nobody wants to know more.
    let _ = unsafe { sys::call(Sysno::rt_sigtimedwait, [mask, nobody, now, MASK_LEN, 0, 0]) };
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
        assert_eq!(pending().map(|mask| mask & SIGPIPE), Ok(SIGPIPE));
        take();
        without(raise);
        assert_eq!(pending().map(|mask| mask & SIGPIPE), Ok(0));
        sys::set_signal_mask(kept);
        act(libc::SIG_IGN);
        assert!(is_ignored());
        without(raise);
    }
}
