//! The readiness of a socket's stream, for poll, select and epoll.

use crate::socket::{Socket, State};
use crate::{carrier, tcp, wake};
use core::sync::atomic::{AtomicU32, Ordering, fence};
use sluice_fabric::layout::Direction;
use sluice_fabric::sys;

/// Threads in a kernel `poll` or `select` over more tracked sockets than are marked one by one.
/// While there are any, no reader consents.
static BIG_WAITS: AtomicU32 = AtomicU32::new(0);

/// The events for something to read.
pub const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// The events for space to write.
pub const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

/// Returns whether a thread is in such a wait.
pub fn is_any_big_wait() -> bool {
    BIG_WAITS.load(Ordering::SeqCst) != 0
}

/// Such a wait begins.
pub fn big_wait_begins() {
    BIG_WAITS.fetch_add(1, Ordering::SeqCst);
}

/// Such a wait ends.
pub fn big_wait_ends() {
    BIG_WAITS.fetch_sub(1, Ordering::SeqCst);
}

/// In the child of a fork: no other thread waits.
pub fn after_fork() {
    BIG_WAITS.store(0, Ordering::Relaxed);
}

/// The kernel's readiness of one descriptor now.
pub fn kernel_ready(fd: i32, events: i16) -> i16 {
    sys::poll_one(fd, events, Some(sys::timespec(0))).unwrap_or(0)
}

/// The ring's readiness of a socket with a stream, in poll's bits: IN, OUT, and HUP if the program
/// has shut it down while the kernel's half ends only after the re-send. The kernel's socket has
/// the rest (other HUP, RDHUP, ERR, and everything off the link).
///
/// Reads without a lock: the caller keeps the link's arena mapped (a set by its pin, others by the
/// socket's locks).
pub fn of_stream(sock: &'static Socket) -> u32 {
    let mut ready = 0;
    if let Some(dir) = sock.rx.dir()
        && can_read(sock, dir)
    {
        ready |= READABLE;
    }
    let writable = match sock.tx.state() {
        State::Link => has_room(sock),
        // Writable after `shutdown`: a write fails at once.
        State::Resending => sock.shut.load(Ordering::Relaxed),
        _ => false,
    };
    if writable {
        ready |= WRITABLE;
        if sock.shut.load(Ordering::Relaxed) && sock.has_shut_both() {
            ready |= libc::EPOLLHUP as u32;
        }
    }
    ready
}

/// Returns whether the ring has enough to read.
fn can_read(sock: &'static Socket, dir: &Direction) -> bool {
    // This end's place first: a tail read later is never less.
    let at = sock.rx.at.load(Ordering::Acquire);
    let tail = dir.tx.tail.read();
    let low = u64::from(sock.rcvlowat.load(Ordering::Relaxed).max(1));
    let unread = tail.offset.wrapping_sub(at);
    let news = match sock.rx.state() {
        State::Link => {
            if low > unread {
                let ring_len = sock.rx.ring().map_or(0, |ring| ring.len());
                carrier::wants_more(sock, unread, ring_len);
            }
            unread >= low
        }
        // TCP's part comes first: until it is here nothing can be read, and the kernel reports its
        // arrival.
        State::Proved | State::Draining => {
            let is_switched = dir.tx_wishes.switched.load(Ordering::Acquire) == 1;
            let from = dir.tx_wishes.from.load(Ordering::Relaxed);
            let of_tcp = from.saturating_sub(sock.rx.kernel_bytes());
            let fd = sock.fd.load(Ordering::Relaxed);
            // SO_RCVLOWAT may be above what TCP has, while TCP and the ring together have enough.
            let both_do = || {
                let here = tcp::unread(fd);
                here >= of_tcp && of_tcp + unread >= low
            };
            is_switched
                && if of_tcp == 0 {
                    unread >= low
                } else {
                    unread != 0 && (kernel_ready(fd, libc::POLLIN) != 0 || low > 1 && both_do())
                }
        }
        _ => false,
    };
    news && !tail.flagged
}

/// SO_RCVLOWAT was set: what is there may be enough now, so waiters are woken as the kernel does
/// (`tcp_set_rcvlowat`).
pub(crate) fn rcvlowat_set(sock: &'static Socket) {
    if !sock.is_accelerated() {
        return;
    }
    let Ok(_section) = sock.rx.lock.enter() else {
        return;
    };
    if let (Some(dir), Some(link)) = (sock.rx.dir(), sock.link())
        && can_read(sock, dir)
    {
        // A waiter that announces itself later sees the new value.
        fence(Ordering::SeqCst);
        let waiters = dir.rx_wishes.waiters.load(Ordering::SeqCst);
        wake::own(link, waiters, sock.index.load(Ordering::Relaxed));
    }
}

/// Returns whether only the ring can have something to read. After SHUT_RD the kernel reports EOF
/// too.
pub fn reads_ring(sock: &'static Socket) -> bool {
    sock.rx.state() == State::Link
        && !sock.has_shut_reading()
        && sock.rx.dir().is_some_and(|dir| !dir.tx.tail.read().flagged)
}

/// Returns whether TCP would report the socket as writable: a third of the buffer is free.
pub fn has_room(sock: &'static Socket) -> bool {
    let Some(dir) = sock.tx.dir() else {
        return true;
    };
    let most = u64::from(sock.tx.unread_max.load(Ordering::Relaxed));
    // The head first, then the tail's word, since a writer that is publishing updates `at` a moment
    // later: the difference was true at some moment, and is never negative.
    let head = dir.rx.head.read();
    let unread = dir.tx.tail.read().offset.saturating_sub(head.offset);
    head.flagged || unread <= most - most / 3
}
