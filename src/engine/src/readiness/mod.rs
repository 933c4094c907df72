//! Readiness: poll, select and epoll over accelerated and kernel descriptors together.

pub mod bells;
mod changed;
pub mod ctl;
pub mod epoll;
mod nest;
mod parked;
pub mod poll;
mod ready;
mod regs;
pub mod select;
pub mod set;
mod shared;
pub mod spin;
mod told;
pub mod vigil;

use crate::sockets::remote;
use crate::sockets::sock::{Sock, State};
use crate::sockets::{tcp, wake};
use core::sync::atomic::{AtomicU32, Ordering, fence};
use sluice_fabric::layout::Direction;
use sluice_fabric::shm::Link;

/// Threads in a kernel `poll` or `select` over more tracked sockets than are marked one by one.
pub(crate) static BIG_WAITS: AtomicU32 = AtomicU32::new(0);

/// What says that there is something to read, and that there is space to write.
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

pub use parked::{number_goes, number_gone};
pub use shared::before_fork;

/// See [`BIG_WAITS`]: while there are any, no reader consents.
pub fn big_waits() -> u32 {
    BIG_WAITS.load(Ordering::SeqCst)
}

/// A link has lost its peer: no set waits on it any more.
pub fn link_lost(link: &'static Link) {
    set::for_all(|set| set.drop_link(link));
}

/// A device's descriptor has nothing more to tell, though it may be readable until it is closed: no
/// set shows that.
#[cfg(feature = "verbs")]
pub fn bell_goes(fd: i32) {
    set::for_all(|set| {
        if set.remote.load(Ordering::Relaxed) {
            let _ = sluice_fabric::sys::epoll_ctl(set.fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
    });
}

/// Before a fork, when nothing more is done to a stream: nobody makes a set or is inside one.
pub fn hold() {
    set::hold_all();
}

/// After the fork, on both sides.
pub fn release() {
    set::release_all();
}

/// In the child of a fork: nothing here waits for anything yet.
pub fn after_fork() {
    BIG_WAITS.store(0, Ordering::Relaxed);
    bells::after_fork();
    set::after_fork();
}

/// What the ring says of an accelerated socket, in poll's bits: IN and OUT, and HUP of one that the
/// program has shut down, though the kernel's half ends only after what is to be sent. The kernel's
/// socket says the rest (HUP else, RDHUP, ERR, and all of it off the link).
///
/// Reads without a lock: the caller keeps the link's arena mapped (a set by its pin, others by the
/// socket's locks).
pub(crate) fn of_stream(sock: &'static Sock) -> u32 {
    let mut ready = 0;
    if let Some(dir) = sock.rx.dir()
        && can_read(sock, dir)
    {
        ready |= READABLE;
    }
    let writable = match sock.tx.state() {
        State::Link => has_room(sock),
        // A write fails at once.
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

/// Can something be read from the ring?
fn can_read(sock: &'static Sock, dir: &Direction) -> bool {
    // Our place first: a tail read later is never less.
    let at = sock.rx.at.load(Ordering::Acquire);
    let tail = dir.tx.tail.read();
    let low = u64::from(sock.rcvlowat.load(Ordering::Relaxed).max(1));
    let unread = tail.offset.wrapping_sub(at);
    let news = match sock.rx.state() {
        State::Link => {
            if low > unread {
                let ring_len = sock.rx.ring().map_or(0, |ring| ring.len());
                remote::wants_more(sock, unread, ring_len);
            }
            unread >= low
        }
        // TCP's part goes first: while it is on its way nothing can be read, and its arrival is the
        // kernel's to tell.
        State::Proved | State::Draining => {
            let is_switched = dir.tx_wishes.switched.load(Ordering::Acquire) == 1;
            let from = dir.tx_wishes.from.load(Ordering::Relaxed);
            let of_tcp = from.saturating_sub(sock.rx.kernel_bytes());
            let fd = sock.fd.load(Ordering::Relaxed);
            // Less than the program wants to hear of may be on TCP, and the rest of it here.
            let both_do = || {
                let here = tcp::unread(fd);
                here >= of_tcp && of_tcp + unread >= low
            };
            is_switched
                && if of_tcp == 0 {
                    unread >= low
                } else {
                    unread != 0
                        && (nest::kernel_ready(fd, libc::POLLIN) != 0 || low > 1 && both_do())
                }
        }
        _ => false,
    };
    news && !tail.flagged
}

/// SO_RCVLOWAT was set: what is there may be enough now, and waiters are told, as the kernel
/// tells (`tcp_set_rcvlowat`).
pub fn rcvlowat_set(sock: &'static Sock) {
    if !sock.is_accelerated() {
        return;
    }
    let Ok(_section) = sock.rx.lock.enter() else {
        return;
    };
    if let (Some(dir), Some(link)) = (sock.rx.dir(), sock.link())
        && can_read(sock, dir)
    {
        // A waiter that announces itself later finds the new number.
        fence(Ordering::SeqCst);
        let waiters = dir.rx_wishes.waiters.load(Ordering::SeqCst);
        wake::own(link, waiters, sock.index.load(Ordering::Relaxed));
    }
}

/// Is the ring the only place where something to read can be? Once the program has shut its reading
/// half, the kernel tells of an end.
fn reads_ring(sock: &'static Sock) -> bool {
    sock.rx.state() == State::Link
        && !sock.has_shut_reading()
        && sock.rx.dir().is_some_and(|dir| !dir.tx.tail.read().flagged)
}

/// Would TCP call the socket writable: a third of the buffer is free?
pub(crate) fn has_room(sock: &'static Sock) -> bool {
    let Some(dir) = sock.tx.dir() else {
        return true;
    };
    let most = u64::from(sock.tx.unread_max.load(Ordering::Relaxed));
    // The head first, and the tail's word instead of our note of it, which a writer that publishes
    // now writes a moment later: what was unread at some moment, never less than nothing.
    let head = dir.rx.head.read();
    let unread = dir.tx.tail.read().offset.saturating_sub(head.offset);
    head.flagged || unread <= most - most / 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::sock::{self, role};
    use crate::sockets::testing::forked_amid;

    #[test]
    fn a_child_finds_the_making_of_sets_free() {
        let section = |pause: &dyn Fn()| {
            let _making = set::MAKING.lock();
            pause();
        };
        assert!(forked_amid(section, || set::alloc(-1).is_some()));
    }

    #[test]
    fn a_set_is_empty_when_two_threads_have_closed_its_last_two_descriptors() {
        let sock = sock::alloc(-1, role::CONNECTING).unwrap();
        for _ in 0..3000 {
            let set = set::alloc(-1).unwrap();
            set.add_entry();
            set.with(|inside| inside.insert(sock, -1, 0, 0));
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
            assert_eq!(set.with(|inside| inside.places()), Some(0));
        }
    }

    #[test]
    fn a_child_finds_every_set_whole() {
        let sets = [0; 2].map(|_| set::alloc(-1).unwrap());
        let [_, closed] = sets;
        let sock = sock::alloc(-1, role::CONNECTING).unwrap();
        for set in sets {
            set.with(|inside| inside.insert(sock, -1, 0, 0));
        }
        // While one thread is inside, another closes the set's last descriptor.
        closed.drop_entry();
        closed.with(|inside| inside.insert(sock, -1, 0, 0));
        for set in sets {
            let section = |pause: &dyn Fn()| {
                set.with(|inside| {
                    // As when its memory is about to be another.
                    let whole = core::mem::take(inside);
                    pause();
                    *inside = whole;
                });
            };
            let then = || set.with(|inside| inside.places()) == Some(1);
            assert!(forked_amid(section, then));
        }
    }
}
