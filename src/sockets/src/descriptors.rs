//! The life of a descriptor, from socket() to the last close().

use crate::demote::{self, Which};
use crate::linger::{
    self, end_before_record, is_unfinished, linger, part, reset_if_unread, withdraw,
};
use crate::resend::{self, Resent};
use crate::socket::watcher::{self, Watcher};
use crate::socket::{self, Known, Socket, State, half, role};
use crate::unread_copy::{self, awaiting};
use crate::verdict::{Pass, Verdict};
use crate::{after_tcp, counts, finish, give_up, jobs, meeting, report, tcp, trigger, wake};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::c_int;
use sluice_fabric::sys;
use sluice_runtime::fd_table::{self, Entry};
use sluice_runtime::{control_thread, own_fds, process, rights, seccomp};
use sluice_stats::Reason;

/// `socket()` returned `fd`.
pub fn created(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    if fd < 0 {
        return;
    }
    let stream = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM;
    let tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && stream
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    renumbered(fd);
    if tcp && tracking() {
        fd_table::store(fd, Entry::FRESH);
        sluice_runtime::trace::open();
    }
}

/// Returns whether anything is tracked at all.
#[inline]
pub fn tracking() -> bool {
    sluice_runtime::copies::works()
        && sluice_runtime::config::config().upgrade != sluice_runtime::config::Upgrade::Off
}

/// A system call returned `fd` as a new descriptor: any table entry of the number is stale, since
/// it was closed without a hook.
#[inline]
pub fn renumbered(fd: c_int) {
    if fd >= 0
        && fd_table::lookup(fd).is_some()
        && !process::is_vfork_child()
        && let Some(entry) = fd_table::remove(fd)
    {
        closed_behind(entry, fd);
    }
}

#[cold]
fn closed_behind(entry: Entry, fd: c_int) {
    if entry == Entry::INTERNAL {
        own_fds::taken();
    } else {
        number_gone(entry, fd, false);
    }
}

/// A number was taken out of the table. `open`: it still refers to the same file.
fn number_gone(entry: Entry, fd: c_int, open: bool) {
    if let Some(sock) = entry.get::<Socket>() {
        drop_entry(sock, fd, open);
    } else if let Some(set) = entry.get::<Watcher>() {
        set.drop_entry();
    } else if entry == Entry::RING {
        crate::uring::closed(fd);
    }
}

/// `connect()` on `fd` returned.
pub fn connected(fd: c_int, ret: c_int, errno: c_int) {
    if ret != 0 && errno != libc::EINPROGRESS && errno != libc::EINTR {
        return;
    }
    after_tcp::acts_by_tcp();
    let entry = fd_table::lookup(fd);
    if entry == Some(Entry::FRESH) {
        track(fd, role::CONNECTING);
    } else if let Some(sock) = entry.and_then(Entry::get::<Socket>) {
        sock.halves.store(0, Ordering::Relaxed);
        let first = sock.role.compare_exchange(
            role::UNKNOWN,
            role::CONNECTING,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if first.is_ok() {
            opened(sock, role::CONNECTING);
        }
    }
}

/// Tracks a socket from here on that is registered in an epoll set, duplicated, or otherwise used
/// before it is connected.
pub fn registered_fresh(fd: c_int) {
    track(fd, role::UNKNOWN);
}

/// The socket of an entry. Options set before connect() must be noted, so a fresh socket is tracked
/// from here on.
pub fn sock_of(e: Entry, fd: c_int) -> Option<&'static Socket> {
    if e != Entry::FRESH {
        return e.get::<Socket>();
    }
    registered_fresh(fd);
    fd_table::lookup(fd).and_then(Entry::get::<Socket>)
}

/// Before a fork: tracks fresh sockets, since a later connection belongs to both processes.
pub fn track_fresh() {
    fd_table::for_range(0, c_int::MAX, |fd, entry| {
        if entry == Entry::FRESH {
            registered_fresh(fd);
        }
    });
}

/// `listen()` on `fd` succeeded.
pub fn listening(fd: c_int) {
    match fd_table::lookup(fd) {
        Some(Entry::FRESH) => {
            fd_table::store(fd, Entry::LISTENER);
        }
        // Registered in a set before listen(): there is nothing to upgrade.
        Some(entry) if entry.get::<Socket>().is_some() => {
            before_close(entry, fd);
            fd_table::store(fd, Entry::LISTENER);
        }
        _ => {}
    }
}

/// `accept()` on `listener` returned `fd`.
pub fn accepted(listener: c_int, fd: c_int) {
    if fd < 0 {
        return;
    }
    renumbered(fd);
    if !tracking() {
        return;
    }
    if fd_table::lookup(listener) != Some(Entry::LISTENER) {
        // An inherited listener: asked once, unless a seccomp filter may kill for the question.
        if seccomp::waits_by_itself() {
            return;
        }
        let option = |name| sys::getsockopt::<c_int>(listener, libc::SOL_SOCKET, name);
        if option(libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP)
            || option(libc::SO_TYPE) != Ok(libc::SOCK_STREAM)
        {
            return;
        }
        super::options::shares_listeners();
        if fd_table::lookup(listener).is_none() {
            fd_table::store(listener, Entry::LISTENER);
        }
    }
    sluice_runtime::trace::open();
    track(fd, role::ACCEPTED);
}

fn track(fd: c_int, side: u8) {
    sluice_stats::ROOT.identify(process::pid());
    if let Some(sock) = socket::alloc(fd, side) {
        trigger::begin(sock);
        if fd_table::store(fd, Entry::of(sock)) {
            opened(sock, side);
        } else {
            sock.fds.store(0, Ordering::Release);
            report::finished(sock);
            socket::free(sock);
        }
    }
}

/// The socket is a connection from here on. While its role is unknown, it may still become a
/// listener.
fn opened(sock: &'static Socket, side: u8) {
    let side = match side {
        role::CONNECTING => sluice_stats::Role::Connecting,
        role::ACCEPTED => sluice_stats::Role::Accepted,
        _ => return,
    };
    sock.conn().opened(side);
    crate::report::named(sock);
    if sock.pinned.load(Ordering::Relaxed) == 0 {
        sock.conn().stays(Reason::BelowThreshold);
    }
}

/// `shutdown()`: sends what was written to TCP first, so that the kernel's FIN follows it. If TCP
/// has no room for all of it, the call returns at once, and the control thread shuts TCP down after
/// the last byte.
pub fn shutdown(sock: &'static Socket, fd: c_int, how: c_int) -> Verdict {
    let halves = match how {
        libc::SHUT_RD => half::READING,
        libc::SHUT_WR => half::WRITING,
        libc::SHUT_RDWR => half::BOTH,
        _ => return Verdict::Pass(Pass::NOBODY),
    };
    let halves = halves | sock.halves.fetch_or(halves, Ordering::AcqRel);
    let both = halves == half::BOTH;
    crate::report::named(sock);
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        after_tcp::acts_on(sock);
        Known::of(sock).shuts();
        crate::carrier::tell_end(sock);
        if how == libc::SHUT_RDWR {
            crate::carrier::wants_no_answer(sock);
        }
        let later = ends_later(sock);
        if both || sock.is_accelerated() {
            sock.pin(Reason::Shutdown);
        } else {
            // The peer's direction may still leave TCP.
            sock.conn().ends(Reason::Shutdown);
        }
        if both {
            end_input(sock);
        }
        if later {
            if how == libc::SHUT_RDWR {
                let _ = sys::shutdown(fd, libc::SHUT_RD);
            }
            return Verdict::Done(0);
        }
    } else if how == libc::SHUT_RD {
        // From now on the kernel reports POLLIN whatever comes, so nothing may be read elsewhere.
        // After the peer's FIN nothing comes, and this end's writes may still leave TCP.
        if both || sock.is_accelerated() || !tcp::has_ended(fd) {
            sock.pin(Reason::Shutdown);
        } else {
            sock.conn().ends(Reason::Shutdown);
        }
        if both {
            end_input(sock);
        } else if counts::unread(sock) == 0 {
            demote::demote(sock, Which::Rx, Reason::Shutdown);
        }
    }
    Verdict::Pass(Pass::NOBODY)
}

/// Takes what is written off the link. Returns whether the control thread will shut the half down,
/// once everything is on TCP.
fn ends_later(sock: &'static Socket) -> bool {
    /// Longest wait for another host to say how far it has read, which the re-send needs.
    const WORD_NS: u64 = 20_000_000;
    demote::demote(sock, Which::Tx, Reason::Shutdown);
    if !control_thread::is_running() || sock.is_inherited() {
        finish::blocking(sock, Reason::Shutdown);
        return false;
    }
    if is_amid_write(sock) {
        sock.shut.store(true, Ordering::SeqCst);
        ENDS_LEFT.store(true, Ordering::SeqCst);
        control_thread::poke();
        return true;
    }
    if sock.tx.state() != State::Resending {
        return false;
    }
    if finish::resend_now(sock) == Resent::Held {
        crate::carrier::finish_within(sock, WORD_NS);
    }
    let Ok(_section) = sock.tx.lock.enter() else {
        return false;
    };
    let later = sock.tx.state() == State::Resending
        && matches!(resend::now(sock), Resent::NoRoom | Resent::Held);
    if later {
        sock.shut.store(true, Ordering::SeqCst);
        // A write that waits for room must fail now.
        if let Some((link, dir)) = sock.link().zip(sock.tx.dir()) {
            let waiters = dir.tx_wishes.waiters.load(Ordering::SeqCst);
            wake::own(link, waiters, sock.index.load(Ordering::Relaxed));
        }
        jobs::watch_room(sock);
    }
    later
}

/// Returns whether this is a signal handler that interrupted this thread's write. What that write
/// has put on the link must precede the FIN.
fn is_amid_write(sock: &Socket) -> bool {
    sock.tx.lock.enter().is_err() && matches!(sock.tx.state(), State::Link | State::Resending)
}

/// Some writing halves are left to the control thread to shut down.
static ENDS_LEFT: AtomicBool = AtomicBool::new(false);

/// By the control thread: shuts down what handlers have left to it in the middle of a write.
pub fn make_ends() {
    if !ENDS_LEFT.swap(false, Ordering::SeqCst) {
        return;
    }
    socket::for_all(|sock| {
        if !sock.shut.load(Ordering::SeqCst) {
            return;
        }
        if sock.tx.state() == State::Link {
            demote::demote(sock, Which::Tx, Reason::Shutdown);
        }
        if sock.tx.state() == State::Resending {
            jobs::watch_room(sock);
        }
    });
}

/// Both halves are about to be shut down. What the peer writes later must meet the kernel, which
/// answers by an RST. What it wrote before is still to be read, also by a relative or after exec:
/// TCP brings it first if it has room, else it stays on the link.
fn end_input(sock: &'static Socket) {
    /// An unused TCP window is at least this large, in bytes.
    const FITS: u64 = 1 << 15;
    let unread = counts::unread(sock);
    let fd = sock.fd.load(Ordering::Relaxed);
    let is_here = !sock.carrier().keeps_arrived;
    if unread == 0 || is_here && (unread <= FITS || tcp::takes(fd, unread)) {
        let on_tcp = awaiting::by_tcp(sock);
        demote::demote(sock, Which::Rx, Reason::Shutdown);
        let wait = || awaiting::await_by_tcp(sock, on_tcp + unread);
        if unread <= FITS {
            return wait();
        }
        return tcp::while_acknowledging(fd, wait);
    }
    if let Ok(_section) = sock.rx.lock.enter()
        && let Some(dir) = sock.rx.dir()
    {
        dir.rx_wishes.set_over();
        // An end that seals from now on sees `is_over`.
        if !sock.rx.is_sealed() {
            sock.unread_copy.expect_whole();
        }
    }
}

/// Before `connect()` with AF_UNSPEC: the kernel resets the connection, and drops what is unread
/// here.
pub fn before_disconnect(sock: &'static Socket) {
    sock.pin(Reason::Disconnected);
    meeting::forget(sock);
    sock.synchronize_locks();
    if sock.is_accelerated() {
        crate::carrier::deliver(sock);
        linger::leave_to_peer(sock, Reason::Disconnected);
    }
    if let Ok(_section) = sock.rx.lock.enter() {
        unread_copy::renounce(sock);
    }
}

/// Before the real `close()` of a tracked descriptor.
pub fn before_close(entry: Entry, fd: c_int) {
    if process::is_vfork_child() {
        return;
    }
    let sock = entry.get::<Socket>();
    if let Some(sock) = sock
        && sock.fds.load(Ordering::Acquire) > 1
        && fd_table::lookup(fd) == Some(entry)
    {
        watcher::number_goes(sock, fd);
    }
    if !fd_table::remove_if(fd, entry) {
        return;
    }
    if let Some(sock) = sock {
        after_tcp::acts_on(sock);
    }
    number_gone(entry, fd, true);
}

/// A descriptor of `sock` is closed or about to be. `open`: the number still refers to the socket.
fn drop_entry(sock: &'static Socket, fd: c_int, open: bool) {
    if sock.fds.fetch_sub(1, Ordering::AcqRel) != 1 {
        if open {
            watcher::number_gone(sock, fd);
        }
        // A dup lives: the structure needs a number that stays valid.
        if sock.fd.load(Ordering::Relaxed) == fd {
            adopt_other_number(sock, fd);
        }
        return;
    }
    meeting::forget(sock);
    sock.synchronize_locks();
    if !open {
        // The number belongs to another file by now.
        sock.fd.store(-1, Ordering::Relaxed);
    }
    if sock.is_accelerated() && open {
        let record_may_come = part(sock, Reason::Close);
        if is_unfinished(sock) && linger(sock, fd) {
            return;
        }
        if record_may_come {
            end_before_record(sock, fd);
        }
    } else if sock.is_accelerated() {
        demote::demote(sock, Which::Both, Reason::RawSyscall);
    }
    if open {
        reset_if_unread(sock, fd);
    }
    if open && sock.was_sought() && !sock.is_shared() {
        // The control thread may be in a system call on the file, which would keep it and its epoll
        // registrations alive after this close.
        withdraw(sock, fd);
    }
    linger::leave_and_free(sock);
}

fn adopt_other_number(sock: &'static Socket, gone: c_int) {
    let entry = Entry::of(sock);
    let mut other = -1;
    fd_table::for_range(0, c_int::MAX, |fd, e| {
        if e == entry && fd != gone && other < 0 {
            other = fd;
        }
    });
    if other >= 0 {
        if sock.is_accelerated() {
            jobs::unwatch(sock);
        }
        sock.fd.store(other, Ordering::Relaxed);
        sock.conn().moved_to(other);
        // Another thread may be about to use the old number, which will soon be free or another
        // file's.
        sock.synchronize_locks();
        if sock.is_accelerated() {
            jobs::watch(sock);
            if let Ok(_section) = sock.tx.lock.enter()
                && sock.tx.state() == State::Resending
            {
                // The control thread goes on with the re-send.
                jobs::watch_room(sock);
            }
        }
    }
}

/// `dup`, `dup2`, `dup3` or `F_DUPFD` returned `new` for `old`.
pub fn duped(old: c_int, new: c_int) {
    if new < 0 || old == new {
        return;
    }
    if process::is_vfork_child() {
        // The table is the parent's. The child is probably handing a connection to the program that
        // it will execute.
        if let Some(sock) = fd_table::lookup(old).and_then(Entry::get::<Socket>) {
            give_up::finish(sock, Reason::Exec);
        }
        return;
    }
    renumbered(new);
    if fd_table::lookup(old) == Some(Entry::FRESH) {
        // Both numbers will belong to the connection.
        registered_fresh(old);
    }
    let Some(entry) = fd_table::lookup(old) else {
        return;
    };
    // A ring is read under one number only.
    if matches!(entry, Entry::INTERNAL | Entry::RING) {
        return;
    }
    let sock = entry.get::<Socket>();
    if let Some(sock) = sock {
        sock.fds.fetch_add(1, Ordering::AcqRel);
    } else if let Some(set) = entry.get::<Watcher>() {
        set.add_entry();
    }
    fd_table::store(new, entry);
    // From now on printf and fgets reach this connection without a hook.
    if let Some(sock) = sock
        && new <= libc::STDERR_FILENO
    {
        give_up::finish(sock, Reason::Fdopen);
    }
}

/// Before `dup2` or `dup3` closes `new`.
pub fn before_replace(old: c_int, new: c_int, flags: c_int) {
    if process::is_vfork_child() || fails_to_replace(old, new, flags) {
        return;
    }
    if fd_table::is_internal(new) {
        // The streams that used the descriptor fall back to TCP.
        rights::forbid(Reason::DescriptorLimit);
        rights::sandbox(Reason::DescriptorLimit);
        own_fds::yield_number(new);
    }
    if let Some(entry) = fd_table::lookup(new) {
        before_close(entry, new);
    }
}

/// Returns whether the call will fail and leave `new` as it is (fs/file.c, ksys_dup3). The kernel
/// is asked unless a seccomp filter may kill for the question.
fn fails_to_replace(old: c_int, new: c_int, flags: c_int) -> bool {
    flags & !libc::O_CLOEXEC != 0
        || !seccomp::waits_by_itself()
            && (new as u64 >= sys::descriptor_limit() || sys::fcntl(old, libc::F_GETFD, 0).is_err())
}

/// `close_range` or `closefrom` (`last` = u32::MAX): closes tracked descriptors one by one, and
/// calls `close` for each gap between the library's own, in order, until one fails.
pub fn close_range(
    first: u32,
    last: u32,
    flags: c_int,
    mut close: impl FnMut(u32, u32) -> c_int,
) -> c_int {
    const CLOEXEC_ONLY: c_int = 4;
    const UNSHARE: c_int = 2;
    if first > last || flags & !(CLOEXEC_ONLY | UNSHARE) != 0 {
        // The kernel refuses the call, and closes nothing.
        return close(first, last);
    }
    if flags & UNSHARE != 0 {
        // From here on this thread and the control thread have different descriptor tables.
        rights::sandbox(Reason::Sandboxed);
    }
    let end = last.min(c_int::MAX as u32) as c_int;
    let start = first.min(c_int::MAX as u32) as c_int;
    if flags & CLOEXEC_ONLY != 0 {
        // The library's own are close-on-exec anyway.
        return close(first, last);
    }
    if !process::is_vfork_child() {
        fd_table::for_range(start, end, |fd, entry| {
            if entry != Entry::INTERNAL {
                before_close(entry, fd);
            }
        });
    }
    // Lingering sockets have got numbers of the library's by now. No more are made until all is
    // closed.
    let _apart = own_fds::Placing::begin();
    let mut internal: Vec<u32> = Vec::new();
    fd_table::for_range(start, end, |fd, entry| {
        if entry == Entry::INTERNAL {
            internal.push(fd as u32);
        }
    });
    let mut from = first;
    for ours in internal {
        if ours > from {
            let ret = close(from, ours - 1);
            if ret != 0 {
                return ret;
            }
        }
        from = ours + 1;
    }
    if from <= last { close(from, last) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use core::sync::atomic::AtomicBool;

    #[test]
    fn a_stream_that_is_attached_while_the_socket_is_closed_is_left() {
        let (a, b, index) = testing::link();
        let fd = sys::open(c"/dev/null", libc::O_RDONLY).unwrap();
        let sock = socket::alloc(fd.raw(), role::CONNECTING).unwrap();
        let entry = Entry::of(sock);
        fd_table::store(fd.raw(), entry);
        let inside = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // As `upgrade::attach` does, once it has found the socket open.
            scope.spawn(|| {
                let halves = [&sock.rx, &sock.tx];
                let sections = halves.map(|half| half.lock.enter().unwrap());
                inside.store(true, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(50));
                sock.set_stream(a, index);
                let [outgoing, incoming] = testing::directions(b, index);
                sock.rx.set_dir(Some(incoming));
                sock.tx.set_dir(Some(outgoing));
                for half in halves {
                    half.state.put(State::Proved);
                }
                drop(sections);
            });
            while !inside.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            before_close(entry, fd.raw());
        });
        assert_eq!(a.stream_count(), 0);
    }
}
