//! For tests: a link between two ends of this process with a stream on it, and a fork at a given
//! moment.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_types,
    reason = "what a test needs and has not is its failure"
)]

pub mod hosts;

use crate::socket::{self, Socket, State, role};
use crate::{descriptors, work};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_fabric::arena::Arena;
use sluice_fabric::layout::{Direction, Stream};
use sluice_fabric::lock::Guarded;
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_runtime::control_thread;
use std::time::Duration;

/// Both ends of a new link.
pub fn links() -> (&'static Link, &'static Link) {
    let arena = Arena::create_local().unwrap();
    let [a, b] = Link::open_both(arena, [0, 1], true).unwrap();
    (a, b)
}

/// A new link, and the number of a stream on it that both ends have joined.
pub fn link() -> (&'static Link, &'static Link, u32) {
    let (a, b) = links();
    let index = stream(a, b);
    (a, b, index)
}

/// Opens one more stream of a link. Its owner is a socket without a connection: the control thread,
/// if a test runs it, finds nothing to do.
pub fn stream(a: &'static Link, b: &'static Link) -> u32 {
    // SAFETY: zeroes are a valid `Socket`, as in the pool.
    let nobody: Box<Socket> = unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
    let owner = core::ptr::from_ref(Box::leak(nobody)).addr();
    let index = a.give_stream(64 << 10, owner).unwrap();
    assert!(b.join_stream(index, 64 << 10, owner));
    index
}

/// The two directions of a stream: the one that side 0 writes, then the one that side 1 writes.
pub fn directions(link: &'static Link, index: u32) -> &'static [Direction; 2] {
    let stream: &'static Stream = link.stream(index).unwrap();
    &stream.dir
}

/// A socket of side 0 whose writing half is on the link.
pub fn writer(a: &'static Link, b: &'static Link, index: u32) -> &'static Socket {
    let sock = socket::alloc(-1, role::CONNECTING).unwrap();
    let lent = b.lent_for(index).unwrap();
    let ring = a.arena().unwrap().ring(1, lent.at, lent.len).unwrap();
    sock.set_stream(a, index);
    sock.tx.set_dir(Some(&directions(a, index)[0]));
    sock.tx.set_ring(ring);
    sock.tx.unread_max.store(lent.len, Ordering::Relaxed);
    sock.tx.state.put(State::Link);
    sock
}

/// Locks that are held over a fork, and released on both sides after it.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Called before the fork.
    pub hold: fn(),
    /// Called after it, in the parent and in the child.
    pub release: fn(),
}

/// Forks, with `held`, while another thread is in `section`: in the call that it is given, which
/// takes 100 ms. Returns whether the child came to the end of `then`, which found what it expects.
pub fn forked_amid(
    held: Held,
    section: impl FnOnce(&dyn Fn()) + Send,
    then: impl FnOnce() -> bool,
) -> bool {
    let inside = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            section(&|| {
                inside.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(100));
            });
        });
        while !inside.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        (held.hold)();
        // SAFETY: the child calls only what a child of a program may, and ends. An alarm ends it if
        // it spins.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: these calls take no pointer, and the child ends with the last.
            unsafe {
                libc::alarm(5);
                (held.release)();
                libc::_exit(i32::from(then()));
            }
        }
        (held.release)();
        let mut status = 0;
        // SAFETY: `status` lies in this frame.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        waited == pid && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1
    })
}

/// Starts the control thread, which here has no links within the host to read.
pub fn control_thread() {
    control_thread::served_by(serve);
    control_thread::start().unwrap();
}

fn serve(set: i32) {
    let mut timeout = None;
    while control_thread::is_current(set) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let wait = timeout.map(sys::timespec);
        let (to, none) = (events.as_mut_ptr(), core::ptr::null());
        // SAFETY: `events` lies in this frame, with room for 8.
        let got = unsafe { sys::epoll_wait(set, to, 8, wait.as_ref(), none) };
        for event in events.iter().take(got.unwrap_or(0)) {
            if event.u64 & control_thread::KINDS == control_thread::SOCK {
                let sock = (event.u64 & !control_thread::KINDS) as *const Socket;
                // SAFETY: `jobs` watches with addresses of sockets in the pool alone, and these are
                // never freed.
                work::on_tcp(unsafe { &*sock }, event.events);
            }
        }
        descriptors::make_ends();
        let due = hosts::progress();
        timeout = work::do_jobs().into_iter().chain(due).min();
    }
}

/// Pseudo-random numbers, the same ones for the same seed, which is not 0.
pub fn draws(seed: u64) -> impl FnMut() -> u64 {
    let mut n = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed);
    move || {
        n ^= n << 13;
        n ^= n >> 7;
        n ^= n << 17;
        n
    }
}

/// Returns whether a child that is forked with `held`, while another thread has `guarded`, finds it
/// free.
pub fn is_free_in_child<T: Send>(held: Held, guarded: &Guarded<T>) -> bool {
    let section = |pause: &dyn Fn()| {
        let _inside = guarded.lock();
        pause();
    };
    forked_amid(held, section, || guarded.lock().is_some())
}
