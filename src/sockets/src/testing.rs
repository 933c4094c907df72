//! For tests: a link between two ends of this process, with a stream on it; and a fork at a given
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

/// The same, and the number of a stream that both have joined.
pub fn link() -> (&'static Link, &'static Link, u32) {
    let (a, b) = links();
    let index = stream(a, b);
    (a, b, index)
}

/// One more stream of a link. Its owner is no connection: the control thread, if a test has it run,
/// finds nothing to do.
pub fn stream(a: &'static Link, b: &'static Link) -> u32 {
    // SAFETY: zeroes are a new structure, as in the pool.
    let nobody: Box<Socket> = unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
    let owner = core::ptr::from_ref(Box::leak(nobody)).addr();
    let index = a.give_stream(64 << 10, owner).unwrap();
    assert!(b.join_stream(index, 64 << 10, owner));
    index
}

/// The two directions of a stream: what side 0 writes, what side 1 writes.
pub fn directions(link: &'static Link, index: u32) -> &'static [Direction; 2] {
    let stream: &'static Stream = link.stream(index).unwrap();
    &stream.dir
}

/// A socket of side 0 that writes to the link.
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

/// What is held over a fork, and given back after it on both sides.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Before.
    pub hold: fn(),
    /// After.
    pub release: fn(),
}

/// Forks, with `held`, when another thread, in `section`, has called what it is given, which takes
/// a while. Does the child come to the end of `then`, and find there what it expects?
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
        // SAFETY: the child does what a program's may, and ends; an alarm ends one that spins.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above.
            unsafe {
                libc::alarm(5);
                (held.release)();
                libc::_exit(i32::from(then()));
            }
        }
        (held.release)();
        let mut status = 0;
        // SAFETY: room for a status.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        waited == pid && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1
    })
}

/// Starts the control thread, which has no links within the host to read.
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
        // SAFETY: an array of ours.
        let got = unsafe { sys::epoll_wait(set, to, 8, wait.as_ref(), none) };
        for event in events.iter().take(got.unwrap_or(0)) {
            if event.u64 & control_thread::KINDS == control_thread::SOCK {
                let sock = (event.u64 & !control_thread::KINDS) as *const Socket;
                // SAFETY: only addresses of type-stable, never freed structures are watched.
                work::on_tcp(unsafe { &*sock }, event.events);
            }
        }
        descriptors::make_ends();
        let due = hosts::progress();
        timeout = work::do_jobs().into_iter().chain(due).min();
    }
}

/// Numbers by chance, the same ones for a seed, which is not 0.
pub fn draws(seed: u64) -> impl FnMut() -> u64 {
    let mut n = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed);
    move || {
        n ^= n << 13;
        n ^= n >> 7;
        n ^= n << 17;
        n
    }
}

/// Does a child that is forked with `held`, while another thread has `guarded`, find it free?
pub fn is_free_in_child<T: Send>(held: Held, guarded: &Guarded<T>) -> bool {
    let section = |pause: &dyn Fn()| {
        let _inside = guarded.lock();
        pause();
    };
    forked_amid(held, section, || guarded.lock().is_some())
}
