//! A forked child that is about to change its rights gives up what it shares with its parent.
//!
//! Beneath the program's own memory a child inherits the arenas of its parent's links, with the
//! rings of all connections to those peers; the control sockets to those peers; and what relatives
//! keep for each other. It needs them while it may use an inherited connection. A process drops
//! rights so that it cannot touch what is not its own. So its inherited connections are demoted
//! first, and then all of that is unmapped and closed, also for connections that it has closed.
//! Connections that it makes later are accelerated as ever: a server that forks workers and has
//! them change their user loses nothing.
//!
//! The parent and its peers notice only that connections which both processes hold are demoted.

use core::sync::atomic::{AtomicBool, Ordering};
use sluice_fabric::shm;
use sluice_runtime::{control_thread, own_fds, process};
use sluice_sockets::demote::{self, Which};
use sluice_sockets::socket::{self, Socket, State};
use sluice_sockets::{finish, fork_shared, give_up};
use sluice_stats::Reason;

/// This process still has what it inherited.
static HAS: AtomicBool = AtomicBool::new(false);

/// Called in the child of a fork.
pub fn after_fork() {
    HAS.store(true, Ordering::Relaxed);
}

/// Called before this process changes its rights: gives up what it inherited.
pub fn part() {
    if !HAS.load(Ordering::Relaxed) || process::is_vfork_child() {
        return;
    }
    HAS.store(false, Ordering::Relaxed);
    let me = process::pid();
    let mut are_back = true;
    socket::for_all(|sock| {
        let shared = sock.family().is_some_and(|family| family.is_shared(me));
        if !shared && !sock.is_inherited() {
            return;
        }
        if shared {
            // From now on no relative tells this process what it does with the socket.
            give_up::finish(sock, Reason::Shared);
        } else {
            demote::demote(sock, Which::Both, Reason::Fork);
        }
        finish::blocking(sock, Reason::Fork);
        if sock.is_inherited() || sock.tx.state() == State::Resending {
            are_back = false;
        } else if shared {
            sock.detach_family();
        }
    });
    if !are_back {
        // A signal handler has interrupted a call on one of the sockets, which goes on later. The
        // next change of rights tries again.
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
