//! A child of a fork that is about to have other rights than its parent: what the two share beneath
//! the program ends here.
//!
//! A child inherits, beneath the program's own memory, the arenas of its parent's links, with the
//! rings of all connections to those peers; the sockets by which their peers are called; and what
//! relatives keep for each other. It needs them as long as it may use a connection that it has
//! inherited. One that drops rights does so in order not to be able to touch what is not its own,
//! so before that happens its inherited connections go back to TCP, and then all of it is gone,
//! also for connections that it has closed. Those that it makes afterwards are accelerated as ever:
//! a server that forks workers and has them change their user loses nothing.
//!
//! Its parent, and the parent's peers, notice nothing but the demotion of the connections that both
//! hold.

use core::sync::atomic::{AtomicBool, Ordering};
use sluice_fabric::shm;
use sluice_runtime::{control_thread, own_fds, process};
use sluice_sockets::demote::{self, Which};
use sluice_sockets::inherited::is_inherited;
use sluice_sockets::socket::{self, Socket, State};
use sluice_sockets::{finish, fork_shared, give_up};
use sluice_stats::Reason;

/// This process has what it inherited.
static HAS: AtomicBool = AtomicBool::new(false);

/// In the child of a fork.
pub fn after_fork() {
    HAS.store(true, Ordering::Relaxed);
}

/// Before this process changes its rights.
pub fn part() {
    if !HAS.load(Ordering::Relaxed) || process::is_vfork_child() {
        return;
    }
    HAS.store(false, Ordering::Relaxed);
    let me = process::pid();
    let mut are_back = true;
    socket::for_all(|sock| {
        let shared = sock.family().is_some_and(|family| family.is_shared(me));
        if !shared && !is_inherited(sock) {
            return;
        }
        if shared {
            // Nobody tells this process any more what the others do with it.
            give_up::finish(sock, Reason::Shared);
        } else {
            demote::demote(sock, Which::Both, Reason::Fork);
        }
        finish::blocking(sock, Reason::Fork);
        if is_inherited(sock) || sock.tx.state() == State::Resending {
            are_back = false;
        } else if shared {
            sock.detach_family();
        }
    });
    if !are_back {
        // A signal handler has interrupted a call on this socket, and the call will go on. The next
        // change tries again.
        return HAS.store(true, Ordering::Relaxed);
    }
    for link in shm::all().filter(|link| link.is_foreign()) {
        link.part_with_parent(own_fds::forget);
        link.close_if_unused();
    }
    control_thread::part_with_parent();
    let mut families = Vec::new();
    socket::for_every(|sock| families.extend(sock.family()));
    if !fork_shared::part(me, families.into_iter()) {
        socket::for_every(Socket::detach_family);
    }
}
