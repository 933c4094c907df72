//! The process: its identity, and what fork, exec and exit do to its streams.

use crate::relatives;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_fabric::lock;
use sluice_fabric::shm;
use sluice_runtime::credentials;
use sluice_runtime::{caller, control_thread, fd_table, process, rights, seccomp, thread};
use sluice_sockets::demote::{self, Which};
use sluice_sockets::linger::{self, end_before_record};
use sluice_sockets::socket::{self, CALL_BITS, Half, Socket, State};
use sluice_sockets::{descriptors, finish, give_up, io_wait, meeting, path, prefix, report};
use sluice_sockets::{unread_copy, wake};
use sluice_stats::Reason;
use sluice_transport::verbs::users::Users;

/// This process was forked from one that had the library.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Before `vfork` and its kin.
pub fn before_spawn() {
    seccomp::note_spawn();
    process::before_vfork();
    if ANY_FOR_EXEC.load(Ordering::Relaxed) && !process::is_vfork_child() {
        socket::for_all(|sock| {
            if sock.for_exec.load(Ordering::Relaxed) {
                give_up::finish(sock, Reason::Exec);
            }
        });
    }
}

/// The program has cleared FD_CLOEXEC of some socket.
static ANY_FOR_EXEC: AtomicBool = AtomicBool::new(false);

/// The program has set or cleared FD_CLOEXEC. Most descriptors that survive `exec` are never used;
/// one for which the flag was cleared will be, since the new image knows its number.
pub fn kept_over_exec(entry: fd_table::Entry, kept: bool) {
    let Some(sock) = entry.get::<Socket>() else {
        return;
    };
    if !process::is_vfork_child() {
        sock.for_exec.store(kept, Ordering::Relaxed);
        if kept {
            ANY_FOR_EXEC.store(true, Ordering::Relaxed);
        }
    } else if kept {
        // The table and the stream belong to the parent.
        give_up::finish(sock, Reason::Exec);
    }
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> libc::c_int;
}

/// Reads the settings and registers the fork handlers. Called by the constructor.
pub fn init() {
    if !sluice_runtime::copies::works() {
        meeting::loaded();
        return sluice_runtime::config::tell_idle();
    }
    if sluice_runtime::config::config().upgrade == sluice_runtime::config::Upgrade::Off {
        sluice_stats::ROOT.set_off();
    }
    sluice_runtime::trace::begin();
    thread::init(thread_ends);
    rights::on_sandbox(sandboxed);
    sluice_rendezvous::offer();
    sluice_transport::verbs::users::used_by(Users {
        wake: |near, waiters, index| {
            let _ = wake::own(near, waiters, index);
        },
        wake_threads: wake::own_threads,
        owes: unread_copy::owed::owes_on,
        bell_goes: sluice_readiness::bell_goes,
    });
    prefix::init();
    // SAFETY: the three functions live as long as the library, which is never unloaded.
    unsafe {
        pthread_atfork(
            Some(before_fork),
            Some(after_fork_parent),
            Some(after_fork_child),
        )
    };
    meeting::loaded();
}

/// A thread ends that has slept, or has waiter slots or doorbells.
fn thread_ends() {
    io_wait::thread_ends();
    sluice_readiness::bells::thread_ends();
}

extern "C" fn before_fork() {
    process::pid();
    seccomp::note_spawn();
    sluice_readiness::before_fork();
    descriptors::track_fresh();
    sluice_sockets::options::shares_listeners();
    let hears_child = control_thread::hears_relatives();
    sluice_rendezvous::hold();
    socket::for_all(|sock| {
        sock.was_inherited.store(true, Ordering::Relaxed);
        if let Some(family) = sock.family_or_take() {
            family.expect_child();
            if !hears_child || path::has_long_ring(sock) {
                demote::demote(sock, Which::Both, Reason::Fork);
            }
        } else {
            sock.pin(Reason::Shared);
            demote::demote(sock, Which::Both, Reason::Shared);
        }
        // Relatives may change O_NONBLOCK, so the kernel is asked from now on.
        sock.forget_nonblocking();
    });
    // In lock order: each after everything that may be done while it is held.
    sluice_readiness::hold();
    sluice_rendezvous::hold_last();
    report::HELD.hold();
}

extern "C" fn after_fork_parent() {
    release();
}

/// In both processes: releases what was held over the fork.
fn release() {
    report::HELD.release();
    sluice_rendezvous::release_last();
    sluice_readiness::release();
    sluice_rendezvous::release();
}

/// `fork` failed: no child holds the sockets.
pub fn fork_failed() {
    socket::for_all(|sock| {
        if let Some(family) = sock.family() {
            family.no_child();
        }
    });
}

extern "C" fn after_fork_child() {
    release();
    process::after_fork();
    // Some of the parent's mappings may be missing here (MADV_DONTFORK).
    caller::mappings_changed();
    let me = process::pid();
    FORKED.store(true, Ordering::Relaxed);
    EXITED.store(false, Ordering::Relaxed);
    lock::after_fork();
    socket::after_fork();
    relatives::after_fork();
    thread::after_fork();
    io_wait::after_fork();
    sluice_rendezvous::after_fork();
    sluice_runtime::own_fds::after_fork();
    sluice_runtime::pagemap::after_fork();
    sluice_sockets::uring::after_fork();
    sluice_stats::reset_after_fork(me);
    sluice_runtime::trace::begin();
    for link in shm::all() {
        link.after_fork();
    }
    sluice_readiness::after_fork();
    report::after_fork();
    socket::for_all(|sock| {
        prefix::after_fork(sock);
        for half in [&sock.rx, &sock.tx] {
            inherit(half);
        }
        sock.polls.store(0, Ordering::Relaxed);
        if let Some(family) = sock.family() {
            family.born(me);
        }
        sluice_stats::adopt_conn(sock.conn());
        sluice_sockets::unread_copy::after_fork(sock);
        // The staged bytes belong to the parent.
        sock.staged.forget();
        sock.lent.forget();
        linger::disown(sock);
    });
    for link in shm::all() {
        if link.stream_count() == 0 {
            link.close_if_unused();
        }
    }
}

fn inherit(half: &Half) {
    half.lock.reset();
    half.calls
        .fetch_and(!((1 << CALL_BITS) - 1), Ordering::Relaxed);
    half.state.forked();
}

/// Before `exec*`: takes every stream that the new image could use back to TCP.
pub fn before_exec() {
    if process::is_vfork_child() {
        // A `vfork` child runs in its parent's memory: the parent keeps its streams, except those
        // at 0 to 2, which the new image gets.
        for fd in 0..=2 {
            hand_over(fd);
        }
        return;
    }
    let forked = FORKED.load(Ordering::Relaxed);
    process::set_executing(true);
    socket::for_all(|sock| {
        sock.synchronize_locks();
        if forked && sock.is_inherited() && !is_for_new_image(sock) && !parent_closed(sock) {
            return;
        }
        demote::demote(sock, Which::Both, Reason::Exec);
        finish::blocking(sock, Reason::Exec);
    });
    // Unread bytes must be on TCP: they make the kernel reset a connection that the new image does
    // not get, and are readable at once on one that it gets.
    socket::for_all(|sock| {
        sluice_sockets::unread_copy::awaiting::await_all_owed(sock);
    });
    let me = process::pid();
    socket::for_all(|sock| {
        if is_for_new_image(sock)
            && let Some(family) = sock.family()
        {
            family.share_for_good();
        }
        sock.leave_family(me);
    });
    report::process_ends();
}

/// Returns whether the new image will probably use the socket.
fn is_for_new_image(sock: &'static Socket) -> bool {
    sock.for_exec.load(Ordering::Relaxed) || stands_at_stdio(sock)
}

fn stands_at_stdio(sock: &'static Socket) -> bool {
    (0..=2).any(|fd| {
        fd_table::lookup(fd)
            .and_then(fd_table::Entry::get::<Socket>)
            .is_some_and(|s| core::ptr::eq(s, sock))
    })
}

fn parent_closed(sock: &'static Socket) -> bool {
    sock.family().is_some_and(|f| !f.is_shared(process::pid()))
}

/// `exec*` failed: this image goes on.
pub fn exec_failed() {
    if process::is_vfork_child() {
        return;
    }
    let me = process::pid();
    socket::for_all(|sock| {
        if let Some(family) = sock.family() {
            family.join(me);
        }
    });
    // Cleared last: a stream that is attached now enters the family, in which this process must be
    // only once.
    process::set_executing(false);
}

/// A new image will get `fd`: takes its stream back to TCP for good.
pub fn hand_over(fd: i32) {
    if let Some(sock) = fd_table::lookup(fd).and_then(fd_table::Entry::get::<Socket>) {
        give_up::finish(sock, Reason::Exec);
    }
}

/// `exiting` has run: `_exit` after `exit` has nothing left to do.
static EXITED: AtomicBool = AtomicBool::new(false);

/// The process ends: takes every stream of its own back to TCP; the kernel delivers the rest.
pub fn exiting() {
    if process::is_vfork_child() || EXITED.swap(true, Ordering::Relaxed) {
        return;
    }
    let mut ending: Vec<&'static Socket> = Vec::new();
    socket::for_all(|sock| {
        let own = |half: &Half| !matches!(half.state(), State::Plain | State::Inherited);
        let ours = own(&sock.rx) || own(&sock.tx);
        let far = ours && linger::part(sock, Reason::Exit);
        linger::reset_if_unread(sock, sock.fd.load(Ordering::Relaxed));
        if ours {
            linger::part_waiting(sock);
        }
        if far {
            ending.push(sock);
        }
        if let Some(family) = sock.family() {
            family.leave(process::pid());
        }
    });
    report::process_ends();
    // After all waits, since other threads may go on until then.
    for sock in ending {
        end_before_record(sock, sock.fd.load(Ordering::Relaxed));
    }
}

/// The program sandboxes itself: takes streams back to TCP for good, and ends the control thread.
pub fn sandboxed(reason: Reason) {
    if process::is_vfork_child() {
        return;
    }
    relatives::part();
    rights::forbid(reason);
    socket::for_all(|sock| {
        give_up::finish(sock, reason);
        sluice_sockets::unread_copy::awaiting::call_in(sock);
        // The control thread, which would do this, is about to end.
        linger::close_when_drained(sock, true);
    });
    control_thread::stop();
    sluice_rendezvous::expect_nothing();
}

/// Before `unshare`, `setns`, `capset`, a `prctl` that gives up rights, or a raw call that changes
/// ids. These change the calling thread alone; the control thread stays as it was. If there is no
/// other thread, every later thread inherits the change, and links remain possible.
pub fn changes_itself(reason: Reason) {
    credentials::ids_change();
    relatives::part();
    let alone = thread::are_several() == Some(false)
        && !control_thread::is_running()
        && !meeting::is_meeting();
    if !alone {
        sandboxed(reason);
    }
    sluice_rendezvous::diag::forget();
}

/// Before `prctl(PR_SET_NO_NEW_PRIVS)`, which many servers call in a thread once they have others.
/// The control thread, which never executes a program, does the same.
pub fn forgoes_privileges() {
    relatives::part();
    if !process::is_vfork_child() && !control_thread::forgo_privileges() {
        sandboxed(Reason::Sandboxed);
    }
}

/// Before a fork that runs no handlers: `_Fork`, or a raw system call.
pub fn before_bare_fork() {
    before_fork();
}

/// After it, in both processes; a negative `pid`: it failed.
pub fn after_bare_fork(pid: libc::pid_t) {
    if pid == 0 {
        after_fork_child();
    } else {
        after_fork_parent();
        if pid < 0 {
            fork_failed();
        }
    }
}

/// Before `daemon()`: the process ends inside it, and its child goes on with the descriptors. The
/// call may fail, so this is no end of the process.
pub fn before_daemon() {
    socket::for_all(|sock| {
        if sock.is_accelerated() {
            demote::demote(sock, Which::Both, Reason::Fork);
            finish::blocking(sock, Reason::Fork);
        }
    });
}
