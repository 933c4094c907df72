//! Tests of a set that was never plain, or is so no longer, and has no stream: its calls go through
//! the engine, and their outcome is the kernel's.

use super::*;
use core::ptr::{null, null_mut};
use sluice_sockets::verdict::Error;

/// A set of an epoll instance with nothing in it.
fn empty() -> (sys::Fd, &'static Set) {
    // SAFETY: no memory is passed.
    let fd = sys::Fd::own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    let set = set::alloc(fd.raw()).unwrap();
    (fd, set)
}

/// The outcome of one call, sleeps included. `again` is the time limit of the calls after a sleep.
fn outcome(
    set: &'static Set,
    events: *mut epoll_event,
    (first, again): (*const timespec, *const timespec),
    mask: *const sigset_t,
) -> Verdict {
    let mut state = WaitState::new();
    let mut timeout = first;
    loop {
        // SAFETY: null, memory of the test, or addresses that the engine is to refuse.
        let verdict = unsafe { wait(set, set.fd(), events, 1, timeout, mask, &mut state) };
        if !matches!(verdict, Verdict::Block) {
            return verdict;
        }
        state.sleep();
        timeout = again;
    }
}

fn bad<T>() -> *const T {
    core::ptr::without_provenance(8)
}

#[test]
fn a_mask_that_cannot_be_read_is_no_doorbell() {
    let (_fd, set) = empty();
    let mut event = epoll_event { events: 0, u64: 0 };
    for ns in [0, 20_000_000] {
        let time = sys::timespec(ns);
        let times = (&raw const time, &raw const time);
        let verdict = outcome(set, &raw mut event, times, bad());
        let error = Error::Kernel(libc::EFAULT);
        assert!(matches!(verdict, Verdict::Failed(e) if e == error));
    }
}

#[test]
fn a_time_limit_is_read_once() {
    let (_fd, set) = empty();
    let mut event = epoll_event { events: 0, u64: 0 };
    let time = sys::timespec(20_000_000);
    let began = sys::now_ns();
    let verdict = outcome(set, &raw mut event, (&raw const time, bad()), null());
    assert!(matches!(verdict, Verdict::Done(0)));
    assert!(sys::now_ns() - began >= 20_000_000);
    assert_eq!(set.sleepers.load(Ordering::SeqCst), 0);
}

#[test]
fn an_array_at_null_has_no_place() {
    let (_fd, set) = empty();
    let mut waiter = Waiter::new(set, set.fd(), null_mut(), 1, null());
    assert!(waiter.out().is_empty());
}

#[test]
fn what_the_kernel_has_written_is_not_put_back() {
    let (_fd, set) = empty();
    set.adopted.store(1, Ordering::Relaxed);
    let mut events = [epoll_event { events: 1, u64: 7 }; 2];
    let waiter = Waiter::new(set, set.fd(), events.as_mut_ptr(), 2, null()).filled();
    assert!(waiter.kept.is_none());
    set.adopted.store(0, Ordering::Relaxed);
}
