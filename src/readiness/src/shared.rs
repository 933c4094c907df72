//! Sets that two processes use.
//!
//! A child inherits its parent's epoll sets, and most children never touch them. One that does
//! shares the kernel's registrations with its parent, and could take the events of the parent's
//! doorbells. So from then on the set serves no stream, in either process. One word per set, in
//! memory that they share over `fork`, says so. A set's number whose word is set is not used again.

use super::interest_list::Registration;
use super::parked;
use super::set::{self, Set};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use libc::c_int;
use sluice_fabric::sys;
use sluice_runtime::{own_fds, process};
use sluice_sockets::demote::{self, Which};
use sluice_sockets::events::WRITABLE;
use sluice_sockets::unread_copy::awaiting;
use sluice_stats::Reason;
use sluice_transport::links;
use std::ffi::CString;

/// The events that the kernel adds to every registration.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// Sets of one process.
pub(super) const SETS_MAX: usize = 4096;

/// The words; null before the first fork.
static WORDS: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

fn word(number: usize) -> Option<&'static AtomicU32> {
    let base = WORDS.load(Ordering::Acquire);
    if base.is_null() || number >= SETS_MAX {
        return None;
    }
    // SAFETY: inside the mapping of SETS_MAX words, which is never unmapped.
    Some(unsafe { &*base.add(number) })
}

/// Does more than one process of a fork use the set with this number?
#[inline]
pub(super) fn is_marked(number: usize) -> bool {
    word(number).is_some_and(|w| w.load(Ordering::SeqCst) != 0)
}

/// Before a fork: maps the words, which the child must share, and unparks all registrations.
pub fn before_fork() {
    parked::before_fork();
    if !WORDS.load(Ordering::Relaxed).is_null() || !set::any() {
        return;
    }
    if let Ok(base) = sys::map_zeroes(SETS_MAX * size_of::<AtomicU32>(), true) {
        // If two threads fork at once, the words of the first serve both.
        let (null, order) = (core::ptr::null_mut(), Ordering::AcqRel);
        let first = WORDS.compare_exchange(null, base.cast(), order, Ordering::Relaxed);
        if first.is_err() {
            // SAFETY: just mapped, with this length, and seen by nobody else.
            unsafe { sys::unmap(base, SETS_MAX * size_of::<AtomicU32>()) };
        }
    }
}

/// Events and data of what is registered in the kernel's set under the number `fd`, of several
/// files if it was closed in between (proc_pid_fdinfo(5)). `None`: it cannot be read.
fn registered(set: c_int, fd: c_int) -> Option<Vec<(u32, u64)>> {
    let path = CString::new(format!("/proc/self/fdinfo/{set}")).ok()?;
    let _low = own_fds::Low::begin();
    let file = sys::open(&path, libc::O_RDONLY).ok()?;
    let (mut text, mut piece) = (Vec::new(), [0u8; 4096]);
    loop {
        match sys::read(file.raw(), &mut piece).ok()? {
            0 => break,
            n => text.extend_from_slice(piece.get(..n)?),
        }
    }
    let all = core::str::from_utf8(&text)
        .ok()?
        .lines()
        .filter_map(|line| {
            let mut words = line.strip_prefix("tfd:")?.split_ascii_whitespace();
            (words.next()?.parse() == Ok(fd)).then_some(())?;
            let mut hex = |name| {
                let value = words.find(|&word| word == name).and(words.next())?;
                u64::from_str_radix(value, 16).ok()
            };
            Some((hex("events:")? as u32, hex("data:")?))
        });
    Some(all.collect())
}

impl Set {
    /// Is the kernel's registration as this process believes, as far as can be told? Another
    /// process that uses the set may have changed it.
    pub(super) fn is_as_known(&self, reg: &Registration) -> bool {
        if !is_marked(self.number) {
            return true;
        }
        let removed = if reg.out_removed { WRITABLE } else { 0 };
        // The kernel leaves EPOLLWAKEUP out where the process may not block suspend.
        let of = |events: u32| (events | ALWAYS) & !(libc::EPOLLWAKEUP as u32);
        let known = (of(reg.events & !removed), reg.data);
        registered(self.fd(), reg.fd).is_none_or(|all| {
            all.iter()
                .any(|&(events, data)| (of(events), data) == known)
        })
    }

    /// A child of a fork uses a set of its parent's for the first time.
    #[cold]
    pub(super) fn use_inherited(&'static self) {
        if !self.inherited.swap(false, Ordering::AcqRel) {
            return;
        }
        // If a signal handler forked in the middle of a use of this set, this was not possible
        // right after the fork.
        self.disown();
        if let Some(word) = word(self.number) {
            word.store(1, Ordering::SeqCst);
        }
        self.back_to_tcp(Reason::Fork);
        // Sleepers in the parent wake up and see the word.
        self.ring();
    }

    /// If another process has come to use the set, takes its streams back to TCP: the kernel must
    /// tell both processes of their events.
    #[inline]
    pub(super) fn follow_relatives(&'static self) {
        if self.adopted.load(Ordering::Acquire) != 0 && is_marked(self.number) {
            self.back_to_tcp(Reason::Shared);
        }
    }

    /// A wait that no hook serves may be on the set from now on. It sees only what the kernel
    /// tells, so all sockets in the set go to TCP.
    #[cold]
    pub fn used_elsewhere(&'static self) {
        self.is_used_elsewhere.store(true, Ordering::SeqCst);
        for sock in self.with(|state| state.socks()).unwrap_or_default() {
            sluice_sockets::give_up::to_read(sock, Reason::SetElsewhere);
            awaiting::await_all_owed(sock);
        }
        self.takes_bells_out();
    }

    /// Takes doorbells out of the kernel's set that no stream needs any more.
    fn takes_bells_out(&'static self) {
        let idle = self.with(|state| {
            let (idle, rest) = core::mem::take(&mut state.links)
                .into_iter()
                .partition::<Vec<_>, _>(|on| on.streams == 0);
            state.links = rest;
            idle
        });
        idle.into_iter().flatten().for_each(set::release);
        if self.remote.load(Ordering::Relaxed) {
            links::unbell(self.fd());
        }
        self.wake.close(own_fds::forget);
    }

    /// Takes all streams of the set back to TCP.
    #[cold]
    pub(super) fn back_to_tcp(&'static self, reason: Reason) {
        if reason == Reason::Shared && self.remote.load(Ordering::Relaxed) {
            links::unbell(self.fd());
        }
        let mut socks = self.with(|state| state.socks()).unwrap_or_default();
        socks.retain(|sock| !process::is_vfork_child() && sock.is_accelerated());
        for sock in &socks {
            sock.pin(Reason::Shared);
            demote::demote(sock, Which::Both, reason);
        }
        // Bytes that lay in the rings come by TCP. They are waited for: a wait that told of room
        // alone would hide that there is something to read.
        for sock in socks {
            awaiting::await_owed(sock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_has_under_a_number_is_read() {
        let set = sys::epoll_create().unwrap();
        let bells = [(); 2].map(|()| sys::eventfd(0).unwrap());
        let edge = (libc::EPOLLIN | libc::EPOLLET) as u32;
        for (bell, data) in bells.iter().zip([7, u64::MAX]) {
            sys::epoll_ctl(set.raw(), libc::EPOLL_CTL_ADD, bell.raw(), edge, data).unwrap();
        }
        let of = |bell: &sys::Fd| registered(set.raw(), bell.raw()).unwrap();
        let [first, second] = &bells;
        assert_eq!(of(first), [(edge | ALWAYS, 7)]);
        assert_eq!(of(second), [(edge | ALWAYS, u64::MAX)]);
        let level = libc::EPOLLOUT as u32;
        sys::epoll_ctl(set.raw(), libc::EPOLL_CTL_MOD, first.raw(), level, 8).unwrap();
        assert_eq!(of(first), [(level | ALWAYS, 8)]);
        assert_eq!(registered(set.raw(), set.raw()), Some(Vec::new()));
        assert_eq!(registered(-1, 0), None);
    }
}
