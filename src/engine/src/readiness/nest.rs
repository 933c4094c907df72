//! A set inside another set, or in poll and select.
//!
//! Whoever watches a set sees in the kernel whether it is readable. Two things make that differ
//! from what TCP would show: a doorbell that rang for bytes read since, and bytes that were there
//! before. So before such a watcher looks, the watched sets are settled: readable exactly if a
//! stream or the kernel has something to tell.
//!
//! A set with streams to other hosts may become readable at any moment for a record, or for what a device tells
//! of other things: it is settled once more before the program hears of it.

use super::ready;
use super::regs::{OnLink, SetReg};
use super::set::{self, Set};
use crate::remote;
use crate::sockets::sock::Sock;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;

/// Rings that are taken out of one doorbell at once: more than a socket holds.
const RINGS: u32 = 1024;

const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// Any set is watched at all.
static ANY: AtomicBool = AtomicBool::new(false);

/// See [`ANY`].
#[inline]
pub(super) fn is_any() -> bool {
    ANY.load(Ordering::Acquire)
}

/// Settles all watched sets.
pub(super) fn settle_all() {
    if is_any() {
        set::for_all(|set| {
            if set.nested.load(Ordering::Relaxed) {
                set.follow_relatives();
                set.settle();
            }
        });
    }
}

/// Is the kernel's set `fd` readable now?
fn readable(fd: i32) -> bool {
    kernel_ready(fd, libc::POLLIN) != 0
}

/// What the kernel says of one descriptor now.
pub(super) fn kernel_ready(fd: i32, events: i16) -> i16 {
    sys::poll_one(fd, events, Some(sys::timespec(0))).unwrap_or(0)
}

/// How often a set is looked at that is readable: a device may tell of something else between two looks at any time.
const LOOKS: usize = 4;

/// Sets within each other, as the kernel allows (EP_MAX_NESTS).
pub(super) const DEPTH: usize = 4;

/// The kernel has told that this set is readable: has it something to tell?
pub(super) fn is_readable(set: &'static Set) -> bool {
    if !set.has_sets.load(Ordering::Relaxed) && !set.wake.is_open() {
        // Neither streams nor sets ever lived in it.
        return true;
    }
    let mut was_others = false;
    for _ in 0..LOOKS {
        if set.has_sets.load(Ordering::Relaxed) {
            settle_all();
        } else {
            set.follow_relatives();
            set.settle();
        }
        // The set first: what of ours makes it readable is so a moment later.
        let mut all = vec![readable_at(set.fd())];
        set.own_descriptors(DEPTH, &mut all);
        look_at(&mut all);
        let (of_set, own) = all
            .split_first()
            .map_or((0, &[][..]), |(p, own)| (p.revents, own));
        if of_set == 0 {
            return false;
        }
        if set.streams_tell(DEPTH) {
            return true;
        }
        let is_others = own.iter().all(|p| p.revents == 0);
        // A record that came between the two looks is heard in the next one, and so is a bell that entered the set behind the list.
        if is_others && was_others {
            return true;
        }
        was_others = is_others;
    }
    true
}

/// What the kernel says of them now.
fn look_at(fds: &mut [libc::pollfd]) {
    let _ = sys::poll(fds, Some(sys::timespec(0)));
}

/// For [`look_at`]: is the descriptor readable?
const fn readable_at(fd: i32) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// The number `fd` of `inner` is about to be closed, and a dup may live. Where another set is told of it once only under that number,
/// nobody could ask anew behind a ring that brought nothing: no stream is served by `inner` any more.
///
/// Before the number is taken out of the table.
pub fn set_number_goes(inner: &'static Set, fd: i32) {
    if !inner.nested.load(Ordering::Relaxed) || !inner.has_dups() {
        return;
    }
    let mut needs = false;
    set::for_all(|outer| {
        // The parent's is told by the parent's number.
        if outer.has_sets.load(Ordering::Relaxed) && !outer.inherited.load(Ordering::Relaxed) {
            let asks = outer.with(|inside| inside.is_told_once(fd, inner));
            needs |= asks == Some(true);
        }
    });
    if needs {
        inner.used_elsewhere();
    }
}

impl Set {
    /// The sets in this one; none where that is `depth` 0.
    pub(super) fn sets_within(&'static self, depth: usize) -> impl Iterator<Item = &'static Set> {
        let has_some = depth != 0 && self.has_sets.load(Ordering::Relaxed);
        let sets = has_some.then(|| self.with(|inside| inside.sets()));
        sets.flatten().unwrap_or_default().into_iter()
    }

    /// The library's own in it, and in the sets in it.
    fn own_descriptors(&'static self, depth: usize, to: &mut Vec<libc::pollfd>) {
        self.wake.with(|fd| to.push(readable_at(fd)));
        self.with(|inside| {
            let bells = inside.links.iter().filter_map(|on| on.bell.as_ref());
            to.extend(bells.map(|bell| readable_at(bell.raw())));
        });
        if self.remote.load(Ordering::Relaxed) {
            to.extend(remote::descriptors().map(readable_at));
        }
        self.sets_within(depth)
            .for_each(|set| set.own_descriptors(depth - 1, to));
    }

    /// Would a wait on it tell of a stream, or one on a set in it?
    fn streams_tell(&'static self, depth: usize) -> bool {
        let mut within = self.sets_within(depth);
        self.would_tell() || within.any(|set| set.streams_tell(depth - 1))
    }

    /// `epoll_ctl` for another set, `inner`, in this one, by the kernel and in the mirror in one step: a thread that waits has the kernel's
    /// word of that set at once, and must find it here. `None`: this thread has the lock.
    ///
    /// # Safety
    /// `event` is a C caller's.
    pub(super) unsafe fn ctl_of_set(
        &'static self,
        (epfd, op, fd): (i32, i32, i32),
        inner: &'static Set,
        event: *mut libc::epoll_event,
    ) -> Option<Result<(), sys::Errno>> {
        if op == libc::EPOLL_CTL_ADD {
            // A thread that went straight to the kernel looks at both when it is back.
            self.has_sets.store(true, Ordering::SeqCst);
            self.no_longer_plain();
        }
        // SAFETY: the caller's.
        unsafe {
            self.ctl_at_once((epfd, op, fd), event, |inside, wanted| {
                inside.note_set(fd, inner, (op != libc::EPOLL_CTL_DEL).then_some(wanted));
            })
        }
    }

    /// What the kernel tells of sets inside this one is left out where these have nothing to tell.
    pub(super) fn look_into_sets(&'static self, told: &mut [libc::epoll_event]) {
        for event in told {
            // Of several under the same data it may be any one's.
            let regs = self.with(|inside| inside.sets_with_data(event.u64));
            let regs = regs.unwrap_or_default();
            // One that is used up and could not be made good stands.
            let is_silent = |reg: &SetReg| {
                (reg.events & ONESHOT == 0 || reg.is_named())
                    && reg.set().is_some_and(|inner| !is_readable(inner))
            };
            if regs.is_empty() || !regs.iter().all(is_silent) {
                continue;
            }
            event.events = 0;
            // Used up by what was none of the program's, unless that has changed it since.
            self.with(|inside| {
                let now = inside.sets_with_data(event.u64);
                let used_up = |reg: &&SetReg| reg.events & ONESHOT != 0 && reg.is_named();
                for reg in now.iter().filter(used_up) {
                    ready::change(self.fd(), reg.fd, reg.events, reg.data);
                }
            });
        }
    }

    /// Another set or a poll watches this one: news ring at once, whoever waits.
    pub fn is_nested(&'static self) {
        ANY.store(true, Ordering::Release);
        if !self.nested.swap(true, Ordering::SeqCst) {
            self.shows_itself();
            self.silence_twins();
            self.announce_and_look();
        }
    }

    /// What a ring has told once the kernel's registration is not to show.
    fn silence_twins(&self) {
        self.with(|inside| {
            for at in 0..inside.places() {
                if let Some(reg) = inside.reg(at).filter(|reg| reg.twin_armed) {
                    reg.change(self.fd(), ONESHOT);
                }
            }
        });
    }

    /// Makes the kernel's set readable exactly if there is something to tell.
    pub(super) fn settle(&'static self) {
        // A parent's is the parent's to ring: this process knows nothing of what there is to tell.
        if !self.wake.is_open() || self.inherited.load(Ordering::Relaxed) {
            return;
        }
        self.announce_and_look();
        if self.would_tell() {
            if !readable(self.fd()) {
                self.ring();
            }
            return;
        }
        if readable(self.fd()) {
            self.silence();
            if self.remote.load(Ordering::Relaxed) {
                // A device tells of all links, also of those that the set has no streams of any more.
                remote::calm_all();
                if readable(self.fd()) {
                    self.hear_all();
                }
            }
            // What came before the bells were emptied has rung in vain.
            self.announce_and_look();
            if self.would_tell() {
                self.ring();
            }
        }
    }

    /// The kernel's part may be readable for records alone: they are heard.
    fn hear_all(&'static self) {
        let socks = self.with(|inside| inside.socks()).unwrap_or_default();
        let far = |sock: &&Sock| remote::reads_link(sock);
        let socks: Vec<_> = socks.into_iter().filter(far).collect();
        let fd_of = |sock: &&Sock| readable_at(sock.fd.load(Ordering::Relaxed));
        let mut fds: Vec<_> = socks.iter().map(fd_of).collect();
        look_at(&mut fds);
        for (sock, told) in socks.into_iter().zip(&fds) {
            if told.revents != 0 {
                remote::hears(sock);
            }
        }
    }

    /// Empties the doorbells.
    fn silence(&self) {
        let mut bytes = [0u8; 4096];
        self.wake.with(|fd| sys::read(fd, &mut bytes));
        self.with(|inside| {
            for on in &mut inside.links {
                self.empty(on);
            }
        });
    }

    /// The peer has found the doorbell of the slot full.
    pub fn empty_bell(&self, link: &'static Link, slot: u32) {
        self.with(|inside| {
            let on = inside.on_link(link);
            if let Some(on) = on.filter(|on| on.slot == slot) {
                self.empty(on);
            }
        });
    }

    /// Takes the rings out of a doorbell, which never waits: nobody else has its description. A
    /// peer that fills it as fast as it is emptied is left to it.
    fn empty(&self, on: &mut OnLink) {
        let mut bytes = [0u8; 4096];
        for _ in 0..RINGS {
            let Some(bell) = &on.bell else { break };
            match sys::read(bell.raw(), &mut bytes) {
                Ok(0) => self.take_bell_out(on),
                // A socket whose other end went away with something unread says so once.
                Ok(_) | Err(libc::ECONNRESET) => {}
                Err(_) => break,
            }
        }
    }
}
