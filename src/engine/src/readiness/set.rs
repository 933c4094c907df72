//! An epoll set: the mirror of its registrations of tracked sockets, its doorbells, its ready list.
//!
//! The kernel's registrations stay as the program made them. The mirror finds a stream's
//! registrations by the stream's number, so that a wait costs what is ready, not what is watched.
//!
//! Lock order: a socket's lock, then a set's. Under a set's lock no socket is locked: streams are
//! looked at without (see [`super::of_stream`]); the set's pin on a link keeps the memory there.

use crate::rendezvous::control;
use crate::sockets::internal;
use crate::sockets::sock::{SETS, Sock, state};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sluice_fabric::lock::Lock;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::{self, Fd};
use sluice_stats::Reason;
use std::collections::VecDeque;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// One registration of a tracked socket.
pub(super) struct Reg {
    /// `None`: a free place.
    pub sock: Option<&'static Sock>,
    pub fd: i32,
    pub events: u32,
    pub data: u64,
    /// False after a ONESHOT event.
    armed: bool,
    /// In the ready list.
    queued: bool,
    /// OUT was taken out of the kernel's registration while the ring is full.
    out_removed: bool,
    /// The socket's stream is found by its number.
    pub adopted: bool,
}

/// A link on which streams of the set live.
struct OnLink {
    link: &'static Link,
    generation: u32,
    slot: u32,
    /// Registration + 1 by stream number; 0: none. More than one (dups) are found by walking.
    reg_of: Vec<u32>,
    /// Far end of the peer's doorbell.
    bell: Option<Fd>,
}

#[derive(Default)]
struct Inside {
    regs: Vec<Reg>,
    free: Vec<u32>,
    /// Registration + 1 last made under a number; a hint, checked before use.
    by_fd: Vec<u32>,
    links: Vec<OnLink>,
    ready: VecDeque<u32>,
}

/// An epoll set. Type-stable memory.
pub struct Set {
    lock: Lock,
    inside: UnsafeCell<Option<Inside>>,
    /// Descriptors of this process for it; 0: a free structure.
    entries: AtomicU32,
    /// The kernel's set.
    fd: AtomicI32,
    /// An eventfd in the kernel's set, by which this process itself rings; -1: none yet.
    wake: AtomicI32,
    /// Registrations whose sockets have a stream.
    pub(super) adopted: AtomicU32,
    /// Threads asleep in the kernel's set.
    pub(super) sleepers: AtomicU32,
    /// The set is watched by another set or by poll.
    pub(super) nested: AtomicBool,
    /// When the kernel's part was last looked at.
    pub(super) looked_ns: AtomicU64,
    /// CPU of the last writer, plus one, and the adaptive cells of spin.rs.
    pub(super) peer_cpu: AtomicU32,
    pub(super) spin_ns: AtomicU32,
    pub(super) spin_skip: AtomicU32,
}

// SAFETY: `inside` is reached under the lock only.
unsafe impl Sync for Set {}

static ALL: [AtomicPtr<Set>; 4096] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 4096];
static MAKING: Lock = Lock::new();

/// Data of a doorbell's registration: no program uses this number but by a guess of 1 in 2^64.
pub(super) fn bell_data() -> u64 {
    static DATA: AtomicU64 = AtomicU64::new(0);
    let known = DATA.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut bytes = [0u8; 8];
    let _ = sys::random(&mut bytes);
    let drawn = u64::from_ne_bytes(bytes) | 1;
    match DATA.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => drawn,
        Err(other) => other,
    }
}

/// Calls `each` for every set in use.
pub fn for_all(mut each: impl FnMut(&'static Set)) {
    for cell in &ALL {
        // SAFETY: null, or a leaked set.
        let Some(set) = (unsafe { cell.load(Ordering::Acquire).as_ref() }) else {
            return;
        };
        if set.entries.load(Ordering::Acquire) != 0 {
            each(set);
        }
    }
}

/// A structure for the kernel's set `fd`. `None`: too many sets; the kernel serves it alone, and sockets in it
/// stay on TCP.
pub fn alloc(fd: i32) -> Option<&'static Set> {
    MAKING.lock().ok()?;
    let mut found = None;
    for cell in &ALL {
        // SAFETY: null, or a leaked set.
        match unsafe { cell.load(Ordering::Acquire).as_ref() } {
            Some(set) if set.entries.load(Ordering::Acquire) == 0 => {
                found = Some(set);
                break;
            }
            Some(_) => {}
            None => {
                let made: &'static Set = Box::leak(Box::new(Set {
                    lock: Lock::new(),
                    inside: UnsafeCell::new(None),
                    entries: AtomicU32::new(0),
                    fd: AtomicI32::new(-1),
                    wake: AtomicI32::new(-1),
                    adopted: AtomicU32::new(0),
                    sleepers: AtomicU32::new(0),
                    nested: AtomicBool::new(false),
                    looked_ns: AtomicU64::new(0),
                    peer_cpu: AtomicU32::new(0),
                    spin_ns: AtomicU32::new(0),
                    spin_skip: AtomicU32::new(0),
                }));
                cell.store(core::ptr::from_ref(made).cast_mut(), Ordering::Release);
                found = Some(made);
                break;
            }
        }
    }
    if let Some(set) = found {
        set.fd.store(fd, Ordering::Relaxed);
        set.adopted.store(0, Ordering::Relaxed);
        set.sleepers.store(0, Ordering::Relaxed);
        set.nested.store(false, Ordering::Relaxed);
        set.entries.store(1, Ordering::Release);
    }
    MAKING.unlock();
    found
}

/// Waiter slots, as a mask, of all sets that `sock` is in, on its link.
pub fn slots_of(sock: &'static Sock, link: &'static Link) -> u64 {
    let mut mask = 0;
    for i in 0..SETS {
        if let Some(set) = sock.set_at(i) {
            if let Some(slot) = set
                .with(|inside| inside.on_link(link).map(|l| l.slot))
                .flatten()
            {
                mask |= 1 << slot;
            }
        }
    }
    mask
}

impl Inside {
    fn on_link(&mut self, link: &'static Link) -> Option<&mut OnLink> {
        let generation = link.generation();
        self.links
            .iter_mut()
            .find(|l| core::ptr::eq(l.link, link) && l.generation == generation)
    }

    fn queue(&mut self, index: u32) {
        if let Some(reg) = self.regs.get_mut(index as usize) {
            if reg.sock.is_some() && !reg.queued {
                reg.queued = true;
                self.ready.push_back(index);
            }
        }
    }

    fn find(&self, fd: i32, sock: &'static Sock) -> Option<u32> {
        let is_it = |r: &Reg| r.fd == fd && r.sock.is_some_and(|s| core::ptr::eq(s, sock));
        let hint = self
            .by_fd
            .get(fd as usize)
            .copied()
            .unwrap_or(0)
            .wrapping_sub(1);
        if self.regs.get(hint as usize).is_some_and(is_it) {
            return Some(hint);
        }
        self.regs.iter().position(is_it).map(|i| i as u32)
    }

    /// The adopted registration with this data. Most programs keep the number or a pointer to what they
    /// know of it there: the number is tried first.
    fn by_data(&self, data: u64) -> Option<usize> {
        let is_it = |r: &Reg| r.adopted && r.data == data;
        let hint = self
            .by_fd
            .get((data & 0xffff_ffff) as usize)
            .copied()
            .unwrap_or(0)
            .wrapping_sub(1) as usize;
        if self.regs.get(hint).is_some_and(is_it) {
            return Some(hint);
        }
        self.regs.iter().position(is_it)
    }

    /// Queues every registration of the stream.
    fn queue_stream(&mut self, at: usize, stream: u32) {
        let first = self
            .links
            .get(at)
            .and_then(|l| l.reg_of.get(stream as usize))
            .copied()
            .unwrap_or(0);
        if first == 0 {
            return;
        }
        let Some(sock) = self.regs.get(first as usize - 1).and_then(|r| r.sock) else {
            return;
        };
        self.queue(first - 1);
        if sock.fds.load(Ordering::Relaxed) > 1 {
            // Dups of one socket may be registered side by side.
            for i in 0..self.regs.len() as u32 {
                if self
                    .regs
                    .get(i as usize)
                    .is_some_and(|r| r.sock.is_some_and(|s| core::ptr::eq(s, sock)))
                {
                    self.queue(i);
                }
            }
        }
    }
}

impl Set {
    /// The kernel's set.
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Runs `f` on what the lock guards; `None` in a handler that interrupted this thread's own use.
    fn with<R>(&self, f: impl FnOnce(&mut Inside) -> R) -> Option<R> {
        self.lock.lock().ok()?;
        // SAFETY: the lock is held.
        let inside = unsafe { &mut *self.inside.get() };
        let answer = f(inside.get_or_insert_default());
        self.lock.unlock();
        Some(answer)
    }

    /// One more descriptor for the set.
    pub fn add_entry(&self) {
        self.entries.fetch_add(1, Ordering::AcqRel);
    }

    /// One descriptor less; with the last, the mirror is emptied.
    pub fn drop_entry(&'static self) {
        if self.entries.load(Ordering::Acquire) != 1 {
            self.entries.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        self.clear();
        self.entries.store(0, Ordering::Release);
    }

    fn clear(&'static self) {
        let inside = self.with(core::mem::take).unwrap_or_default();
        for reg in &inside.regs {
            if let Some(sock) = reg.sock {
                for cell in &sock.sets {
                    let mine = core::ptr::from_ref(self).cast_mut();
                    let _ = cell.compare_exchange(
                        mine,
                        core::ptr::null_mut(),
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                }
            }
        }
        for on in inside.links {
            let streams: Vec<u32> = (0..on.reg_of.len() as u32)
                .filter(|&s| on.reg_of.get(s as usize) != Some(&0))
                .collect();
            for stream in streams {
                self.unwish(on.link, stream, on.slot);
            }
            release(on);
        }
        self.adopted.store(0, Ordering::Relaxed);
        let wake = self.wake.swap(-1, Ordering::AcqRel);
        if wake >= 0 {
            internal::forget(wake);
            let _ = sys::close(wake);
        }
    }

    fn unwish(&self, link: &'static Link, stream: u32, slot: u32) {
        if let Some(stream) = link.stream(stream) {
            let (outgoing, incoming) = link.directions(stream);
            incoming
                .rx_wishes
                .waiters
                .fetch_and(!(1 << slot), Ordering::SeqCst);
            outgoing
                .tx_wishes
                .waiters
                .fetch_and(!(1 << slot), Ordering::SeqCst);
        }
    }

    // --- doorbells ---

    /// The eventfd by which this process rings the set, made at first use.
    fn wake_fd(&self) -> Option<i32> {
        let known = self.wake.load(Ordering::Acquire);
        if known >= 0 {
            return Some(known);
        }
        let made = internal::lift(sys::eventfd(libc::EFD_NONBLOCK).ok()?)?;
        sys::epoll_ctl(
            self.fd(),
            libc::EPOLL_CTL_ADD,
            made.raw(),
            IN | ET,
            bell_data(),
        )
        .ok()?;
        match self
            .wake
            .compare_exchange(-1, made.raw(), Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Some(made.release()),
            Err(other) => {
                internal::forget(made.raw());
                Some(other)
            }
        }
    }

    /// Wakes one thread that sleeps in the kernel's set.
    pub fn ring(&self) {
        let wake = self.wake.load(Ordering::Acquire);
        if wake >= 0 {
            let _ = sys::ring(wake);
        }
    }

    /// The peer's doorbell for our slot has come: into the kernel's set with it.
    pub fn add_bell(&'static self, link: &'static Link, slot: u32, bell: Fd) {
        let Some(bell) = internal::lift(bell) else {
            return;
        };
        let entered = self.with(|inside| {
            let on = inside.on_link(link).filter(|l| l.slot == slot)?;
            sys::epoll_ctl(
                self.fd(),
                libc::EPOLL_CTL_ADD,
                bell.raw(),
                IN | ET,
                bell_data(),
            )
            .ok()?;
            // An old one leaves the kernel's set with its descriptor.
            let raw = bell.raw();
            if let Some(old) = on.bell.replace(bell) {
                internal::forget(old.raw());
            }
            Some(raw)
        });
        let _ = entered;
    }

    /// The place of `link` in the set, made at first use: a waiter slot, and a doorbell asked for.
    fn place(&'static self, inside: &mut Inside, link: &'static Link) -> Option<usize> {
        let generation = link.generation();
        let known = inside
            .links
            .iter()
            .position(|l| core::ptr::eq(l.link, link) && l.generation == generation);
        if known.is_some() {
            return known;
        }
        self.wake_fd()?;
        let slot = link.take_slot(core::ptr::from_ref(self) as usize)?;
        link.pin();
        // Threads may be asleep in the kernel's set already: the first news rings.
        if let Some(s) = link.my_slot(slot) {
            s.announce();
        }
        control::want_bell(link, slot);
        inside.links.push(OnLink {
            link,
            generation,
            slot,
            reg_of: Vec::new(),
            bell: None,
        });
        Some(inside.links.len() - 1)
    }

    /// The slot of this set on `link`; for poll and select, whose private set has no registrations.
    pub(super) fn slot_for(&'static self, link: &'static Link) -> Option<u32> {
        self.with(|inside| {
            let at = self.place(inside, link)?;
            inside.links.get(at).map(|l| l.slot)
        })
        .flatten()
    }

    /// A link has lost its peer.
    pub fn drop_link(&'static self, link: &'static Link) {
        let gone = self.with(|inside| {
            let at = inside
                .links
                .iter()
                .position(|l| core::ptr::eq(l.link, link))?;
            Some(inside.links.swap_remove(at))
        });
        if let Some(on) = gone.flatten() {
            release(on);
            self.ring();
        }
    }

    // --- registrations ---

    /// The kernel has accepted a registration of a tracked socket.
    pub(super) fn added(&'static self, fd: i32, sock: &'static Sock, events: u32, data: u64) {
        if !enter_set(sock, self) {
            crate::sockets::life::give_up(sock, Reason::Limit);
            return;
        }
        self.with(|inside| {
            let reg = Reg {
                sock: Some(sock),
                fd,
                events,
                data,
                armed: true,
                queued: false,
                out_removed: false,
                adopted: false,
            };
            let at = inside.free.pop().unwrap_or(inside.regs.len() as u32);
            match inside.regs.get_mut(at as usize) {
                Some(place) => *place = reg,
                None => inside.regs.push(reg),
            }
            if inside.by_fd.len() <= fd as usize {
                inside.by_fd.resize(fd as usize + 1, 0);
            }
            if let Some(hint) = inside.by_fd.get_mut(fd as usize) {
                *hint = at + 1;
            }
        });
        if sock.link().is_some() {
            self.adopt_stream(sock);
        }
    }

    /// The kernel has accepted a change.
    pub(super) fn modified(&'static self, fd: i32, sock: &'static Sock, events: u32, data: u64) {
        self.with(|inside| {
            let Some(at) = inside.find(fd, sock) else {
                return;
            };
            if let Some(reg) = inside.regs.get_mut(at as usize) {
                reg.events = events;
                reg.data = data;
                reg.armed = true;
                reg.out_removed = false;
            }
            inside.queue(at);
        });
        if self.sleepers.load(Ordering::SeqCst) != 0 && self.adopted.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// The kernel has dropped a registration.
    pub(super) fn removed(&'static self, fd: i32, sock: &'static Sock) {
        let last = self.with(|inside| {
            let Some(at) = inside.find(fd, sock) else {
                return true;
            };
            self.drop_reg(inside, at);
            !inside
                .regs
                .iter()
                .any(|r| r.sock.is_some_and(|s| core::ptr::eq(s, sock)))
        });
        if last == Some(true) {
            leave_set(sock, self);
        }
    }

    fn drop_reg(&self, inside: &mut Inside, at: u32) {
        let Some(reg) = inside.regs.get_mut(at as usize) else {
            return;
        };
        let (sock, adopted) = (reg.sock.take(), reg.adopted);
        reg.adopted = false;
        reg.fd = -1;
        if reg.queued {
            inside.ready.retain(|&i| i != at);
            if let Some(reg) = inside.regs.get_mut(at as usize) {
                reg.queued = false;
            }
        }
        inside.free.push(at);
        if adopted {
            self.adopted.fetch_sub(1, Ordering::Relaxed);
            if let Some((link, index)) =
                sock.and_then(|s| Some((s.link()?, s.index.load(Ordering::Relaxed))))
            {
                let other = inside
                    .regs
                    .iter()
                    .position(|r| {
                        r.sock.is_some()
                            && r.sock.map(core::ptr::from_ref) == sock.map(core::ptr::from_ref)
                    })
                    .map_or(0, |i| i as u32 + 1);
                if let Some(on) = inside.on_link(link) {
                    if let Some(cell) = on.reg_of.get_mut(index as usize) {
                        *cell = other;
                    }
                    if other == 0 {
                        let slot = on.slot;
                        self.unwish(link, index, slot);
                    }
                }
            }
        }
    }

    /// The socket's last descriptor is closed: the kernel drops its registrations.
    pub fn forget_sock(&'static self, sock: &'static Sock) {
        self.with(|inside| {
            for at in 0..inside.regs.len() as u32 {
                if inside
                    .regs
                    .get(at as usize)
                    .is_some_and(|r| r.sock.is_some_and(|s| core::ptr::eq(s, sock)))
                {
                    self.drop_reg(inside, at);
                }
            }
        });
    }

    /// A registered socket has got a stream.
    pub fn adopt_stream(&'static self, sock: &'static Sock) {
        let Some(link) = sock.link() else { return };
        let index = sock.index.load(Ordering::Relaxed);
        let placed = self.with(|inside| {
            let at = self.place(inside, link)?;
            let mut first = 0;
            for i in 0..inside.regs.len() {
                let Some(reg) = inside.regs.get_mut(i) else {
                    continue;
                };
                if reg.sock.is_some_and(|s| core::ptr::eq(s, sock)) {
                    if !reg.adopted {
                        reg.adopted = true;
                        self.adopted.fetch_add(1, Ordering::SeqCst);
                    }
                    first = i as u32 + 1;
                    inside.queue(i as u32);
                }
            }
            let on = inside.links.get_mut(at)?;
            if on.reg_of.len() <= index as usize {
                on.reg_of.resize(index as usize + 1, 0);
            }
            if let Some(cell) = on.reg_of.get_mut(index as usize) {
                *cell = first;
            }
            let (_, incoming) = link.directions(link.stream(index)?);
            incoming
                .rx_wishes
                .waiters
                .fetch_or(1 << on.slot, Ordering::SeqCst);
            Some(())
        });
        if placed.flatten().is_none() {
            crate::sockets::demote::demote(
                sock,
                crate::sockets::demote::Which::Both,
                Reason::Limit,
            );
        }
        // Whoever sleeps in the kernel's set since before looks again.
        self.ring();
    }

    /// A registered socket's stream is over; its memory may be another stream's soon.
    pub fn forget_stream(&'static self, sock: &'static Sock, link: &'static Link, index: u32) {
        self.with(|inside| {
            let mut restore = Vec::new();
            for reg in &mut inside.regs {
                if reg.adopted && reg.sock.is_some_and(|s| core::ptr::eq(s, sock)) {
                    reg.adopted = false;
                    self.adopted.fetch_sub(1, Ordering::SeqCst);
                    if reg.out_removed {
                        reg.out_removed = false;
                        restore.push((reg.fd, reg.events, reg.data));
                    }
                }
            }
            for (fd, events, data) in restore {
                change(self.fd(), fd, events, data);
            }
            if let Some(on) = inside.on_link(link) {
                if let Some(cell) = on.reg_of.get_mut(index as usize) {
                    *cell = 0;
                }
            }
        });
    }

    // --- waiting ---

    /// Is any stream marked ready, as far as can be seen without the lock of the sockets?
    pub(super) fn any_ready(&self) -> bool {
        self.with(|inside| {
            !inside.ready.is_empty()
                || inside
                    .links
                    .iter()
                    .any(|l| l.link.my_slot(l.slot).is_some_and(|s| s.any_ready()))
        })
        .unwrap_or(true)
    }

    /// Publishes where this thread waits, and announces sleep to every link.
    pub(super) fn announce(&self) {
        let cpu = crate::thread::cpu();
        self.with(|inside| {
            for on in &inside.links {
                if let Some(slot) = on.link.my_slot(on.slot) {
                    slot.publish_cpu(cpu);
                    slot.announce();
                }
            }
        });
    }

    /// Awake again.
    pub(super) fn retract(&self) {
        self.with(|inside| {
            for on in &inside.links {
                if let Some(slot) = on.link.my_slot(on.slot) {
                    slot.retract();
                }
            }
        });
    }

    /// The slots' marks of ready streams, for a spinning thread: addresses stay valid while pinned.
    pub(super) fn spin_until_ready(&self) -> bool {
        let mut slots: [Option<&sluice_fabric::doorbell::Slot>; 8] = [None; 8];
        let few = self.with(|inside| {
            for (to, on) in slots.iter_mut().zip(&inside.links) {
                // SAFETY: the set's pin keeps the arena mapped; a link dropped meanwhile stays mapped until the
                // control thread has closed it, which takes longer than a spin.
                *to = on
                    .link
                    .my_slot(on.slot)
                    .map(|s| unsafe { &*core::ptr::from_ref(s) });
            }
            inside.links.len() <= 8
        });
        if few != Some(true) {
            return false;
        }
        let news = || slots.iter().flatten().any(|s| s.any_ready());
        super::spin::until_with(
            &self.spin_ns,
            &self.spin_skip,
            self.peer_cpu.load(Ordering::Relaxed),
            news,
        )
    }

    /// Takes what is ready, up to `out.len()` events.
    pub(super) fn harvest(&'static self, out: &mut [libc::epoll_event]) -> usize {
        self.with(|inside| {
            for at in 0..inside.links.len() {
                let Some(on) = inside.links.get(at) else {
                    continue;
                };
                let (link, slot) = (on.link, on.slot);
                if let Some(slot) = link.my_slot(slot) {
                    // SAFETY: the set's pin keeps the arena mapped while the lock is held.
                    let slot = unsafe { &*core::ptr::from_ref(slot) };
                    slot.take_ready(|stream| inside.queue_stream(at, stream));
                }
            }
            let mut count = 0;
            // Every queued registration is looked at once at most.
            for _ in 0..inside.ready.len() {
                if count == out.len() {
                    break;
                }
                let Some(index) = inside.ready.pop_front() else {
                    break;
                };
                let (event, stays) = self.examine(inside, index);
                if stays {
                    inside.ready.push_back(index);
                } else if let Some(reg) = inside.regs.get_mut(index as usize) {
                    reg.queued = false;
                }
                if let (Some(event), Some(to)) = (event, out.get_mut(count)) {
                    *to = event;
                    count += 1;
                }
            }
            count
        })
        .unwrap_or(0)
    }

    /// One registration: its event now, if any, and whether it stays in the ready list.
    fn examine(&self, inside: &mut Inside, index: u32) -> (Option<libc::epoll_event>, bool) {
        let Some(reg) = inside.regs.get_mut(index as usize) else {
            return (None, false);
        };
        let Some(sock) = reg.sock.filter(|_| reg.adopted && reg.armed) else {
            return (None, false);
        };
        let state = super::of_stream(sock);
        if let Some(dir) = sock.rx.dir() {
            self.peer_cpu
                .store(dir.tx.cpu.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if reg.out_removed && state & OUT != 0 {
            reg.out_removed = false;
            change(self.fd(), reg.fd, reg.events, reg.data);
            stop_asking(sock);
        } else if state & OUT != 0 && sock.tx.state() == state::LINK {
            stop_asking(sock);
        }
        let events = state & reg.events;
        if events == 0 {
            return (None, false);
        }
        let event = libc::epoll_event {
            events,
            u64: reg.data,
        };
        if reg.events & ONESHOT != 0 {
            reg.armed = false;
            // The kernel's twin is disarmed too, as its own event would have done.
            change(self.fd(), reg.fd, ONESHOT, reg.data);
            return (Some(event), false);
        }
        (Some(event), reg.events & ET == 0)
    }

    /// Turns the kernel's events `all[start..end]` into the program's: doorbells out, streams' states in, merged with
    /// what `all[..start]` says of the same registrations. Returns the new end, and whether a bell was among them.
    pub(super) fn translate(
        &'static self,
        all: &mut [libc::epoll_event],
        start: usize,
        end: usize,
    ) -> (usize, bool) {
        let bell = bell_data();
        let mut bells = false;
        if self.adopted.load(Ordering::Relaxed) == 0 {
            // Only doorbells can be in the way.
            let mut to = start;
            for from in start..end {
                let Some(event) = all.get(from).copied() else {
                    break;
                };
                if event.u64 == bell {
                    bells = true;
                } else {
                    put(all, to, event);
                    to += 1;
                }
            }
            return (to, bells);
        }
        let to = self.with(|inside| {
            let mut to = start;
            for from in start..end {
                let Some(mut event) = all.get(from).copied() else {
                    break;
                };
                let data = event.u64;
                if data == bell {
                    bells = true;
                    continue;
                }
                let own = inside.by_data(data);
                if let Some(index) = own {
                    event.events = self.correct(inside, index as u32, event.events);
                    if event.events == 0 {
                        continue;
                    }
                    let earlier = all
                        .get_mut(..start)
                        .and_then(|a| a.iter_mut().find(|e| { e.u64 } == data));
                    if let Some(earlier) = earlier {
                        earlier.events |= event.events;
                        continue;
                    }
                }
                put(all, to, event);
                to += 1;
            }
            to
        });
        (to.unwrap_or(start), bells)
    }

    /// The kernel's event of an accelerated socket: OUT means nothing while the ring is full.
    fn correct(&self, inside: &mut Inside, index: u32, events: u32) -> u32 {
        let Some(reg) = inside.regs.get_mut(index as usize) else {
            return events;
        };
        let Some(sock) = reg.sock else { return events };
        let mut events = events;
        if reg.events & ONESHOT != 0 {
            reg.armed = false;
        }
        let state = super::of_stream(sock);
        if events & OUT != 0 && sock.tx.state() == state::LINK && state & OUT == 0 {
            events &= !(OUT | libc::EPOLLWRNORM as u32);
            ask(sock);
            // Space may have come up while we asked.
            if super::has_room(sock) {
                events |= OUT;
            } else if reg.events & ET == 0 && !reg.out_removed {
                reg.out_removed = true;
                change(self.fd(), reg.fd, reg.events & !OUT, reg.data);
            } else if reg.events & ONESHOT != 0 {
                // Nothing is left to report: armed as before.
                reg.armed = true;
                change(self.fd(), reg.fd, reg.events, reg.data);
            }
        }
        events | state & reg.events & IN
    }

    /// Is anything queued?
    pub(super) fn has_queue(&self) -> bool {
        self.with(|inside| !inside.ready.is_empty())
            .unwrap_or(false)
    }

    /// In the child of a fork: the links are the parent's, and so are the bells in the shared set.
    pub fn after_fork(&'static self) {
        self.lock.reset();
        let links = self.with(|inside| {
            for reg in &mut inside.regs {
                reg.adopted = false;
            }
            core::mem::take(&mut inside.links)
        });
        for on in links.unwrap_or_default() {
            on.link.unpin();
            if let Some(bell) = on.bell {
                internal::forget(bell.raw());
            }
        }
        self.adopted.store(0, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
    }
}

fn put(all: &mut [libc::epoll_event], at: usize, event: libc::epoll_event) {
    if let Some(to) = all.get_mut(at) {
        *to = event;
    }
}

/// Gives a place on a link up.
fn release(on: OnLink) {
    if let Some(bell) = &on.bell {
        internal::forget(bell.raw());
    }
    if on.link.generation() == on.generation {
        control::drop_bell(on.link, on.slot);
        on.link.return_slot(on.generation, on.slot);
        on.link.unpin();
    }
}

/// The writer's sets want to hear of space.
fn ask(sock: &'static Sock) {
    let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) else {
        return;
    };
    let (_, incoming) = match link.stream(sock.index.load(Ordering::Relaxed)) {
        Some(stream) => link.directions(stream),
        None => return,
    };
    // The same slots that hear of data: all sets that the socket is in.
    let sets = incoming.rx_wishes.waiters.load(Ordering::Relaxed);
    dir.tx_wishes.waiters.fetch_or(sets, Ordering::SeqCst);
    sluice_fabric::sync::fence_after_rmw();
    control::watch_full(sock);
}

/// There is space: the reader need not tell any more.
fn stop_asking(sock: &'static Sock) {
    if let Some(dir) = sock.tx.dir() {
        if dir.tx_wishes.waiters.load(Ordering::Relaxed) != 0 {
            if let Some(link) = sock.link() {
                if let Some(stream) = link.stream(sock.index.load(Ordering::Relaxed)) {
                    let (_, incoming) = link.directions(stream);
                    let sets = incoming.rx_wishes.waiters.load(Ordering::Relaxed);
                    dir.tx_wishes.waiters.fetch_and(!sets, Ordering::SeqCst);
                }
            }
        }
    }
}

/// Changes the kernel's registration; one with EPOLLEXCLUSIVE cannot be changed, only made anew.
fn change(set: i32, fd: i32, events: u32, data: u64) {
    if events & EXCLUSIVE != 0 {
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data);
    } else {
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, data);
    }
}

/// Notes in the socket that it is in `set`; false: it is in too many.
fn enter_set(sock: &'static Sock, set: &'static Set) -> bool {
    let mine = core::ptr::from_ref(set).cast_mut();
    if sock
        .sets
        .iter()
        .any(|c| core::ptr::eq(c.load(Ordering::Acquire), mine))
    {
        return true;
    }
    sock.sets.iter().any(|c| {
        c.compare_exchange(
            core::ptr::null_mut(),
            mine,
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok()
    })
}

fn leave_set(sock: &'static Sock, set: &'static Set) {
    let mine = core::ptr::from_ref(set).cast_mut();
    for cell in &sock.sets {
        let _ = cell.compare_exchange(
            mine,
            core::ptr::null_mut(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}
