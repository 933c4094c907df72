//! The interest list of a set as the library keeps it: its registrations of tracked sockets, and
//! the ready list of those that may have news.
//!
//! A registration is found by its socket, by its stream's number and by the program's data, each
//! without a walk. So a wait costs what is ready, not what is watched.

use core::hash::{BuildHasherDefault, Hasher};
use core::sync::atomic::Ordering;
use sluice_fabric::doorbell::Slot;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::Fd;
use sluice_sockets::events;
use sluice_sockets::socket::Socket;
use std::collections::{HashMap, VecDeque};

const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// No registration.
const NONE: u32 = u32::MAX;

/// The event that the kernel tells after each `EPOLL_CTL_ADD` and `MOD` of an edge-triggered
/// registration. The ring has been looked at then, too, and must not be told of twice.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Echo {
    /// None is due, as far as known.
    #[default]
    None,
    /// Due.
    Due,
    /// Due, but the program has been told of these bits already: space in the ring, and the end
    /// that a reading half shows once the program has shut it.
    Told(u32),
}

/// One registration of a tracked socket.
pub(super) struct Registration {
    /// `None`: a free place, or one that is free once it leaves the ready list.
    pub sock: Option<&'static Socket>,
    pub fd: i32,
    pub events: u32,
    pub data: u64,
    /// False after a ONESHOT event.
    pub armed: bool,
    /// ONESHOT: the event came from the ring, so the kernel's registration is still armed. Its
    /// next event is dropped, even after the stream has ended.
    pub twin_armed: bool,
    /// Edge-triggered: the kernel owes an event for having been asked (ADD, MOD).
    pub echo: Echo,
    /// In the ready list.
    pub queued: bool,
    /// The writer of the news in the ready list did something by TCP before. The kernel is asked
    /// first, so many times at most.
    pub after_tcp: u8,
    /// Level-triggered: bytes in the ring are not told yet, since bytes that the peer sent earlier
    /// by TCP are still on their way.
    pub deferred: bool,
    /// OUT was taken out of the kernel's registration while the ring is full.
    pub out_removed: bool,
    /// Edge-triggered: space in the ring is to be told, since the program has asked anew or the
    /// peer has made some. Without this a mark means that bytes came.
    pub room_due: bool,
    /// The kernel's registration is one of ours: see [`super::parked`].
    pub parked: bool,
    /// Parked, and the program has deleted it.
    pub ghost: bool,
    /// Its descriptor is out of the table, and not yet closed.
    pub goes: bool,
    /// Times that a ghost came up in the ready list.
    pub vain: u8,
    /// The socket has a stream on a link of this set: the ring decides what is told.
    pub adopted: bool,
    /// The socket had a stream: the kernel's events may be of that stream's end.
    had_stream: bool,
    /// The next registration of the same socket (a dup's).
    next: u32,
    /// In `by_data`, and its neighbours there.
    indexed: bool,
    next_same: u32,
    prev_same: u32,
}

/// A link that carries streams of the set, and the set's waiter slot there. The link is pinned.
pub(super) struct OnLink {
    pub link: &'static Link,
    pub generation: u32,
    pub slot: u32,
    /// First registration + 1 by stream number; 0: none.
    pub reg_of: Vec<u32>,
    /// Streams in `reg_of`.
    pub streams: u32,
    /// The peer is gone. This place is given up with its last stream.
    pub lost: bool,
    /// This side's end of the doorbell that the peer rings.
    pub bell: Option<Fd>,
    /// The socket at which the peer connects to make the doorbell, where that is a socket.
    pub name: Option<Fd>,
}

impl Registration {
    /// Must the kernel's events of it be corrected before the program sees them?
    pub fn is_ours(&self) -> bool {
        self.adopted && !self.ghost || self.events & ONESHOT != 0
    }
}

impl OnLink {
    /// This set's waiter slot; the pin keeps the memory while the set is locked.
    pub fn waiter(&self) -> Option<&'static Slot> {
        // SAFETY: in the arena of a pinned link; callers hold the set's lock or a pin of their own.
        self.link
            .my_slot(self.slot)
            .map(|s| unsafe { &*core::ptr::from_ref(s) })
    }

    fn set_reg(&mut self, stream: u32, first: u32) {
        let at = stream as usize;
        if self.reg_of.len() <= at {
            if first == 0 {
                return;
            }
            self.reg_of.resize(at + 1, 0);
        }
        if let Some(cell) = self.reg_of.get_mut(at) {
            match (*cell, first) {
                (0, 1..) => self.streams += 1,
                (1.., 0) => self.streams -= 1,
                _ => {}
            }
            *cell = first;
        }
    }
}

/// A hash for keys that are addresses or the program's own data: one multiplication mixes them
/// well enough.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

type Map<K> = HashMap<K, u32, BuildHasherDefault<Mix>>;

/// The kernel's events must be told before the next registration of the ready list.
pub(super) struct AfterTcp;

/// A stream's news wait for at most so many answers that the kernel's events fill. By then what
/// its writer did by TCP before is told, however short the program's array is.
const FULL_BY_TCP: u8 = 8;

/// What a set's lock guards: its interest list, its ready list, and its places on links.
#[derive(Default)]
pub(super) struct EpollState {
    registrations: Vec<Registration>,
    /// Places in `registrations` to use again.
    free: Vec<u32>,
    /// First registration by socket.
    by_sock: Map<usize>,
    /// First registration by data, see [`EpollState::index`].
    by_data: Map<u64>,
    pub links: Vec<OnLink>,
    /// The ready list: places in `registrations`.
    pub ready: VecDeque<u32>,
    /// Registrations with [`Registration::deferred`].
    deferred: Vec<u32>,
}

fn key(sock: &Socket) -> usize {
    core::ptr::from_ref(sock) as usize
}

impl EpollState {
    pub fn reg(&mut self, index: u32) -> Option<&mut Registration> {
        self.registrations.get_mut(index as usize)
    }

    /// Bytes in this registration's ring are not told, since earlier ones come by TCP.
    pub(crate) fn defer(&mut self, index: u32) {
        if let Some(reg) = self.registrations.get_mut(index as usize)
            && !core::mem::replace(&mut reg.deferred, true)
        {
            self.deferred.push(index);
        }
    }

    /// The kernel told of an event with this data: its deferred registrations are looked at again.
    pub(crate) fn come_back(&mut self, data: u64) {
        if self.deferred.is_empty() {
            return;
        }
        let all: Vec<u32> = self.with_data(data).collect();
        for index in all {
            if self.take_deferred(index) {
                self.queue(index);
            }
        }
    }

    /// Takes a registration out of the deferred ones; false: it was none of them.
    fn take_deferred(&mut self, index: u32) -> bool {
        let was = self
            .reg(index)
            .is_some_and(|r| core::mem::take(&mut r.deferred));
        if was {
            self.deferred.retain(|&other| other != index);
        }
        was
    }

    /// Queues deferred registrations that have something to read by now: the program may have read
    /// TCP's bytes without waiting for them.
    pub(crate) fn requeue_deferred(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.deferred.get(at) {
            let reads = |sock| events::of_stream(sock) & events::READABLE != 0;
            let reg = self.reg(index).filter(|r| r.adopted);
            if let Some(reg) = reg.filter(|r| r.sock.is_some_and(reads)) {
                reg.deferred = false;
                self.deferred.swap_remove(at);
                self.queue(index);
            } else {
                at += 1;
            }
        }
    }

    /// Enters a registration.
    pub fn insert(&mut self, sock: &'static Socket, fd: i32, events: u32, data: u64) -> u32 {
        let first = self.by_sock.get(&key(sock)).copied();
        let reg = Registration {
            sock: Some(sock),
            fd,
            events,
            data,
            armed: true,
            twin_armed: false,
            echo: Echo::None,
            queued: false,
            after_tcp: 0,
            deferred: false,
            out_removed: false,
            room_due: false,
            parked: false,
            ghost: false,
            goes: false,
            vain: 0,
            adopted: false,
            had_stream: false,
            next: first.unwrap_or(NONE),
            indexed: false,
            next_same: NONE,
            prev_same: NONE,
        };
        let at = self.free.pop().unwrap_or(self.registrations.len() as u32);
        match self.registrations.get_mut(at as usize) {
            Some(place) => *place = reg,
            None => self.registrations.push(reg),
        }
        self.by_sock.insert(key(sock), at);
        sock.last_reg.store(at, Ordering::Relaxed);
        self.index(at);
        at
    }

    /// Takes a registration out. True: it was the socket's last in this set.
    pub fn remove(&mut self, at: u32) -> bool {
        self.unindex(at);
        self.take_deferred(at);
        let Some(reg) = self.registrations.get_mut(at as usize) else {
            return true;
        };
        (reg.adopted, reg.parked, reg.ghost) = (false, false, false);
        reg.had_stream = false;
        let (next, queued) = (reg.next, reg.queued);
        let Some(sock) = reg.sock.take() else {
            return true;
        };
        if !queued {
            self.free.push(at);
        }
        let first = self.by_sock.get(&key(sock)).copied().unwrap_or(NONE);
        if first == at {
            if next == NONE {
                self.by_sock.remove(&key(sock));
                return true;
            }
            self.by_sock.insert(key(sock), next);
            return false;
        }
        let mut i = first;
        while let Some(reg) = self.registrations.get_mut(i as usize) {
            if reg.next == at {
                reg.next = next;
                break;
            }
            i = reg.next;
        }
        false
    }

    /// The registrations of a socket.
    pub(crate) fn of_sock(&self, sock: &Socket) -> impl Iterator<Item = u32> + use<'_> {
        let mut i = self.by_sock.get(&key(sock)).copied().unwrap_or(NONE);
        core::iter::from_fn(move || {
            let reg = self.registrations.get(i as usize)?;
            Some(core::mem::replace(&mut i, reg.next))
        })
    }

    /// The registration of `sock` under the number `fd`.
    pub fn find(&self, fd: i32, sock: &Socket) -> Option<u32> {
        let is_it = |at: u32| {
            self.registrations
                .get(at as usize)
                .is_some_and(|r| r.fd == fd && r.sock.is_some_and(|s| core::ptr::eq(s, sock)))
        };
        let hint = sock.last_reg.load(Ordering::Relaxed);
        if is_it(hint) {
            return Some(hint);
        }
        self.of_sock(sock).find(|&at| is_it(at))
    }

    /// The registrations with this data whose kernel events may need a correction.
    pub fn with_data(&self, data: u64) -> impl Iterator<Item = u32> + use<'_> {
        let mut i = self.by_data.get(&data).copied().unwrap_or(NONE);
        core::iter::from_fn(move || {
            let reg = self.registrations.get(i as usize)?;
            Some(core::mem::replace(&mut i, reg.next_same))
        })
    }

    /// Is there one registration with this data, and no more?
    pub(crate) fn is_sole(&self, data: u64) -> bool {
        let mut all = self.with_data(data);
        all.next().is_some() && all.next().is_none()
    }

    /// The sockets of the registrations with this data, and the events that these ask for.
    pub(crate) fn asked_with_data(
        &self,
        data: u64,
    ) -> impl Iterator<Item = (&'static Socket, u32)> + use<'_> {
        let reg = |at| self.registrations.get(at as usize);
        self.with_data(data)
            .filter_map(move |at| reg(at).and_then(|reg| Some((reg.sock?, reg.events))))
    }

    /// The registrations with this data for which [`Registration::is_ours`] holds.
    pub(crate) fn ours_with_data(&self, data: u64) -> impl Iterator<Item = u32> + use<'_> {
        let is_ours = |at: &u32| {
            self.registrations
                .get(*at as usize)
                .is_some_and(Registration::is_ours)
        };
        self.with_data(data).filter(is_ours)
    }

    /// The socket of a registration has a stream on a link, or none. True: that is a change.
    pub(crate) fn set_adopted(&mut self, at: u32, on: bool) -> bool {
        let Some(reg) = self.registrations.get_mut(at as usize) else {
            return false;
        };
        let changed = reg.adopted != on;
        reg.adopted = on;
        reg.had_stream |= on;
        self.index(at);
        changed
    }

    /// The program gives a registration another mask and other data, or adds one again that it had
    /// deleted while it was parked.
    pub fn renew(&mut self, at: u32, events: u32, data: u64) {
        self.unindex(at);
        if let Some(reg) = self.reg(at) {
            (reg.events, reg.data) = (events, data);
            (reg.armed, reg.twin_armed, reg.out_removed) = (true, false, false);
            reg.ghost = false;
        }
        self.index(at);
    }

    /// The program has deleted a parked registration, which stays in the kernel's set as a ghost:
    /// nothing is told of it.
    pub fn bury(&mut self, at: u32) {
        self.unindex(at);
        if let Some(reg) = self.registrations.get_mut(at as usize) {
            (reg.armed, reg.ghost, reg.vain) = (false, true, 0);
        }
        self.take_deferred(at);
    }

    /// The end of the places at which registrations are.
    pub fn places(&self) -> u32 {
        self.registrations.len() as u32
    }

    /// Makes a registration findable by its data, if the kernel's events of it may need a
    /// correction: its socket has or had a stream, or its events disarm it.
    #[inline]
    fn index(&mut self, at: u32) {
        let Some(reg) = self.registrations.get_mut(at as usize) else {
            return;
        };
        let told = reg.had_stream && !reg.ghost || reg.events & ONESHOT != 0;
        if reg.sock.is_none() || !told {
            self.unindex(at);
            return;
        }
        if core::mem::replace(&mut reg.indexed, true) {
            return;
        }
        let first = self.by_data.insert(reg.data, at).unwrap_or(NONE);
        (reg.prev_same, reg.next_same) = (NONE, first);
        if let Some(reg) = self.registrations.get_mut(first as usize) {
            reg.prev_same = at;
        }
    }

    #[inline]
    fn unindex(&mut self, at: u32) {
        if let Some(reg) = self.registrations.get_mut(at as usize)
            && core::mem::take(&mut reg.indexed)
        {
            self.unlink(at);
        }
    }

    fn unlink(&mut self, at: u32) {
        let Some(reg) = self.registrations.get_mut(at as usize) else {
            return;
        };
        let (data, prev, next) = (reg.data, reg.prev_same, reg.next_same);
        if let Some(reg) = self.registrations.get_mut(next as usize) {
            reg.prev_same = prev;
        }
        match self.registrations.get_mut(prev as usize) {
            Some(reg) => reg.next_same = next,
            None if next == NONE => {
                self.by_data.remove(&data);
            }
            None => {
                self.by_data.insert(data, next);
            }
        }
    }

    /// Notes that a registration is in the ready list from now on. False: it is already, or its
    /// place is free.
    fn enlist(&mut self, index: u32) -> bool {
        let reg = self.registrations.get_mut(index as usize);
        reg.filter(|reg| reg.sock.is_some())
            .is_some_and(|reg| !core::mem::replace(&mut reg.queued, true))
    }

    /// Puts a registration at the end of the ready list, as the kernel does with one that it has
    /// told of.
    pub fn queue(&mut self, index: u32) {
        self.queue_after(index, 0);
    }

    fn queue_after(&mut self, index: u32, after_tcp: u8) {
        if self.enlist(index) {
            self.ready.push_back(index);
            if let Some(reg) = self.reg(index) {
                reg.after_tcp = after_tcp;
            }
        }
    }

    /// As [`next_ready`](Self::next_ready), but stops at a registration whose writer did something
    /// by TCP before. It stays the first, and the kernel's events are to be told before it.
    pub(crate) fn next_ready_before_tcp(
        &mut self,
        left: &mut usize,
    ) -> Result<Option<u32>, AfterTcp> {
        let Some(index) = self.next_ready(left) else {
            return Ok(None);
        };
        if let Some(reg) = self.reg(index)
            && reg.after_tcp != 0
        {
            reg.after_tcp -= 1;
            self.queue_first(index);
            return Err(AfterTcp);
        }
        Ok(Some(index))
    }

    /// The kernel has no more events: the first of the ready list need not wait for any.
    pub(crate) fn kernel_has_told(&mut self) {
        let next = self.ready.front().copied();
        if let Some(reg) = next.and_then(|index| self.reg(index)) {
            reg.after_tcp = 0;
        }
    }

    /// Puts back what [`next_ready`](Self::next_ready) gave, as the first.
    pub(crate) fn queue_first(&mut self, index: u32) {
        if self.enlist(index) {
            self.ready.push_front(index);
        }
    }

    /// Queues a registration that the program has just made or changed: it expects to be told of
    /// whatever is ready.
    pub(crate) fn queue_asked(&mut self, index: u32) {
        if let Some(reg) = self.reg(index) {
            reg.room_due = true;
        }
        self.queue(index);
    }

    /// The peer may have made space in the ring: each registration of the socket is to tell of it.
    pub(crate) fn owe_room(&mut self, sock: &Socket) {
        let mut i = self.by_sock.get(&key(sock)).copied().unwrap_or(NONE);
        while let Some(reg) = self.registrations.get_mut(i as usize) {
            reg.room_due = true;
            i = reg.next;
        }
    }

    /// Takes the first of the ready list. `left` counts down the places that a walk still visits.
    pub(crate) fn next_ready(&mut self, left: &mut usize) -> Option<u32> {
        while *left != 0 {
            *left -= 1;
            let index = self.ready.pop_front()?;
            let Some(reg) = self.registrations.get_mut(index as usize) else {
                continue;
            };
            reg.queued = false;
            if reg.sock.is_some() {
                return Some(index);
            }
            self.free.push(index);
        }
        None
    }

    /// Queues every registration of a stream.
    fn queue_stream(&mut self, at: usize, stream: u32, is_after_tcp: bool) {
        let first = self
            .links
            .get(at)
            .and_then(|l| l.reg_of.get(stream as usize))
            .copied()
            .unwrap_or(0);
        let mut i = first.wrapping_sub(1);
        while let Some(next) = self.registrations.get(i as usize).map(|r| r.next) {
            self.queue_after(i, if is_after_tcp { FULL_BY_TCP } else { 0 });
            i = next;
        }
    }

    /// Takes the marks of all links into the ready list.
    pub(crate) fn take_marks(&mut self) {
        for at in 0..self.links.len() {
            if let Some(slot) = self.links.get(at).and_then(OnLink::waiter) {
                slot.take_ready(|stream, is_after| self.queue_stream(at, stream, is_after));
            }
        }
    }

    /// Is anything queued or marked?
    pub fn any_news(&self) -> bool {
        !self.ready.is_empty()
            || self
                .links
                .iter()
                .any(|l| l.waiter().is_some_and(Slot::any_ready))
    }

    /// The set's place on a link.
    pub fn on_link(&mut self, link: &'static Link) -> Option<&mut OnLink> {
        let generation = link.generation();
        self.links
            .iter_mut()
            .find(|l| core::ptr::eq(l.link, link) && l.generation == generation)
    }

    /// Has a stream's number lead to the registrations of `sock`, or to none. The caller releases
    /// the place on a lost link that is returned when its last stream is gone.
    pub fn point(
        &mut self,
        link: &'static Link,
        stream: u32,
        sock: Option<&Socket>,
    ) -> Option<OnLink> {
        let first = sock
            .and_then(|s| self.by_sock.get(&key(s)))
            .map_or(0, |&i| i + 1);
        let on = self.on_link(link)?;
        on.set_reg(stream, first);
        if on.lost && on.streams == 0 {
            let at = self
                .links
                .iter()
                .position(|l| core::ptr::eq(l.link, link))?;
            return Some(self.links.swap_remove(at));
        }
        None
    }

    /// Every socket that is registered here.
    pub fn socks(&self) -> Vec<&'static Socket> {
        self.registrations.iter().filter_map(|r| r.sock).collect()
    }

    /// The sockets of which the program would be told that there are bytes to read.
    pub fn readers(&self) -> Vec<&'static Socket> {
        let reads = |r: &&Registration| r.armed && !r.ghost && r.events & events::READABLE != 0;
        self.registrations
            .iter()
            .filter(reads)
            .filter_map(|r| r.sock)
            .collect()
    }

    /// In the child of a fork: the streams are the parent's. Returns the places on its links.
    pub fn disown(&mut self) -> Vec<OnLink> {
        for i in 0..self.registrations.len() as u32 {
            self.set_adopted(i, false);
            if let Some(reg) = self.reg(i) {
                reg.out_removed = false;
            }
        }
        core::mem::take(&mut self.links)
    }
}
