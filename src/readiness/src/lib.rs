//! Readiness: poll, select and epoll over accelerated sockets and all other descriptors together.

pub mod bells;
pub mod epoll;
pub mod epoll_ctl;
mod interest_list;
mod kernel_events;
mod nest;
mod parked;
pub mod poll;
mod ready_list;
mod registration;
pub mod select;
pub mod set;
mod shared;
pub mod wait_state;

use core::sync::atomic::Ordering;
use sluice_fabric::shm::Link;
use sluice_sockets::events;

pub use parked::{number_goes, number_gone};
pub use set::{hold_all as hold, release_all as release};
pub use shared::before_fork;

/// A link has lost its peer: no set waits on it any more.
pub fn link_lost(link: &'static Link) {
    set::for_all(|set| set.drop_link(link));
}

/// Takes a device's descriptor out of all sets. It has nothing more to tell, but may stay readable
/// until it is closed.
pub fn bell_goes(fd: i32) {
    set::for_all(|set| {
        if set.remote.load(Ordering::Relaxed) {
            let _ = sluice_fabric::sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
    });
}

/// In the child of a fork: forgets the parent's waits.
pub fn after_fork() {
    events::after_fork();
    bells::after_fork();
    set::after_fork();
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};
    use sluice_sockets::socket::{self, role};
    use sluice_sockets::testing::{Held, forked_amid};

    const HELD: Held = Held {
        hold: || {
            before_fork();
            hold();
        },
        release,
    };

    #[test]
    fn a_child_finds_the_making_of_sets_free() {
        let section = |pause: &dyn Fn()| {
            let _making = set::MAKING.lock();
            pause();
        };
        assert!(forked_amid(HELD, section, || set::alloc(-1).is_some()));
    }

    #[test]
    fn a_set_is_empty_when_two_threads_have_closed_its_last_two_descriptors() {
        let sock = socket::alloc(-1, role::CONNECTING).unwrap();
        for _ in 0..3000 {
            let set = set::alloc(-1).unwrap();
            set.add_entry();
            set.with(|state| state.insert(sock, -1, 0, 0));
            let ready = AtomicU32::new(0);
            let close = || {
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) != 2 {
                    std::thread::yield_now();
                }
                set.drop_entry();
            };
            std::thread::scope(|scope| {
                scope.spawn(close);
                close();
            });
            assert_eq!(set.with(|state| state.places()), Some(0));
        }
    }

    #[test]
    fn a_child_finds_every_set_whole() {
        let sets = [0; 2].map(|_| set::alloc(-1).unwrap());
        let [_, closed] = sets;
        let sock = socket::alloc(-1, role::CONNECTING).unwrap();
        for set in sets {
            set.with(|state| state.insert(sock, -1, 0, 0));
        }
        // While one thread is inside, another closes the set's last descriptor.
        closed.drop_entry();
        closed.with(|state| state.insert(sock, -1, 0, 0));
        for set in sets {
            let section = |pause: &dyn Fn()| {
                set.with(|state| {
                    // As when its memory is about to be another.
                    let whole = core::mem::take(state);
                    pause();
                    *state = whole;
                });
            };
            let then = || set.with(|state| state.places()) == Some(1);
            assert!(forked_amid(HELD, section, then));
        }
    }
}
