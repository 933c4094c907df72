//! An epoll instance: the library's mirror of its interest list, and the doorbells that wake the
//! threads which wait on it.
//!
//! The program's registrations stay in the kernel's set as the program made them. Only those that
//! change all the time while their stream is on a link are the library's there
//! (`parked.rs`).
//!
//! Lock order: a socket's lock, then a set's. Under a set's lock no socket is locked. Streams are
//! looked at without a lock (see [`sluice_sockets::events::of_stream`]), and the set's pin on
//! their link keeps that memory mapped.

use super::interest_list::{Echo, EpollState, OnLink};
use super::parked::bell_data;
use super::shared;
use super::shared::SETS_MAX;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sluice_fabric::lock::{Guarded, OverFork};
use sluice_fabric::shared_fd::SharedFd;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::{self, Fd};
use sluice_rendezvous::control;
use sluice_runtime::fd_table::{self, Entry, Kind, Object};
use sluice_runtime::own_fds;
use sluice_sockets::events::{READABLE, WRITABLE};
use sluice_sockets::socket::watcher::{self, Calls, Watcher};
use sluice_sockets::socket::{SETS, Socket};
use sluice_transport::Carrier;
use sluice_transport::links;

const IN: u32 = libc::EPOLLIN as u32;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// An epoll instance of the program, or a thread's own for poll and select. Its memory stays a
/// `Set` for the life of the process, and may serve another instance later.
pub struct Set {
    state: Guarded<Option<EpollState>>,
    /// `state` was ever locked. Set under [`MAKING`], so that it does not change over a fork.
    entered: AtomicBool,
    /// Descriptors of this process for it; 0: the structure is free.
    entries: AtomicU32,
    /// A descriptor of the kernel's set.
    fd: AtomicI32,
    /// An eventfd in the kernel's set, by which this process rings its own sleepers. Made at first
    /// use.
    pub(super) wake: SharedFd,
    /// Its place among all sets, which is the same in a child of a fork.
    pub(super) number: usize,
    /// A thread's own, for poll and select.
    pub(super) private: AtomicBool,
    /// The parent's, and not yet used by this process.
    pub(super) inherited: AtomicBool,
    /// Not 0: the kernel's answers may need a correction, see [`Set::is_plain`]. Stored before the
    /// kernel's set can tell of the change, and kept for the life of the set.
    special: AtomicU32,
    /// Registrations whose sockets have a stream.
    pub(super) adopted: AtomicU32,
    /// Threads asleep in the kernel's set.
    pub(super) sleepers: AtomicU32,
    /// The set is watched by another set or by poll.
    pub(super) nested: AtomicBool,
    /// Another process may see the kernel's set: nothing is parked in it any more.
    pub(super) seen: AtomicBool,
    /// A wait that no hook serves may be on it (io_uring, a raw system call). Its sockets stay on
    /// TCP, also those registered later.
    pub(super) is_used_elsewhere: AtomicBool,
    /// The next answer leaves room for the kernel's events: streams filled the last one while it
    /// was time to ask the kernel.
    pub(super) kernel_turn: AtomicBool,
    /// Answers filled by streams in a row.
    pub(super) full_answers: AtomicU32,
    /// When the kernel was last asked for its events (`sys::rough_ns`).
    pub(super) looked_ns: AtomicU64,
    /// CPU of the last writer, plus one. The next two are the adaptive cells of spin.rs.
    pub(super) peer_cpu: AtomicU32,
    pub(super) spin_ns: AtomicU32,
    pub(super) spin_skip: AtomicU32,
    /// Some of its streams go to other hosts: a thread that waits drives their links.
    pub(super) remote: AtomicBool,
}

static ALL: [AtomicPtr<Set>; SETS_MAX] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SETS_MAX];
/// Held while a set is taken into use, or is entered for the first time.
pub(super) static MAKING: Guarded<()> = Guarded::new(());

/// Every structure ever made.
fn all() -> impl Iterator<Item = &'static Set> {
    // SAFETY: null, or a leaked set.
    ALL.iter()
        .map_while(|cell| unsafe { cell.load(Ordering::Acquire).as_ref() })
}

/// Calls `each` for every set in use.
pub fn for_all(each: impl FnMut(&'static Set)) {
    all()
        .filter(|set| set.entries.load(Ordering::Acquire) != 0)
        .for_each(each);
}

/// Before a fork, when no stream changes any more: from now on no thread makes a set or has one
/// locked, so that the child finds every mirror whole. Sets that are no longer in use count, too:
/// one may be locked while it is emptied.
pub fn hold_all() {
    MAKING.hold();
    // Most sets of most programs never were entered. To lock these would write to their pages,
    // which the fork would then have to copy.
    let entered = all().filter(|set| set.was_entered());
    entered.for_each(|set| set.state.hold());
}

/// After the fork, in parent and child: ends [`hold_all`].
pub fn release_all() {
    let entered = all().filter(|set| set.was_entered());
    entered.for_each(|set| set.state.release());
    MAKING.release();
}

/// In the child of a fork.
pub(super) fn after_fork() {
    all().for_each(|set| set.wake.after_fork());
    for_all(Set::after_fork);
}

/// Was a set ever made?
pub(super) fn any() -> bool {
    ALL.first()
        .is_some_and(|first| !first.load(Ordering::Acquire).is_null())
}

/// A structure for the kernel's set `fd`. `None`: there are too many sets. The kernel then serves
/// this one alone, and sockets in it stay on TCP.
pub fn alloc(fd: i32) -> Option<&'static Set> {
    let making = MAKING.lock()?;
    let mut found: Option<&'static Set> = None;
    for (number, cell) in ALL.iter().enumerate() {
        // SAFETY: null, or a leaked set.
        match unsafe { cell.load(Ordering::Acquire).as_ref() } {
            // A closed set in which a thread still sleeps is not used again.
            Some(set)
                if set.entries.load(Ordering::Acquire) == 0
                    && set.sleepers.load(Ordering::SeqCst) == 0
                    && !shared::is_marked(number) =>
            {
                found = Some(set);
                break;
            }
            Some(_) => {}
            None => {
                offer();
                let made: &'static Set = Box::leak(Box::new(Set {
                    state: Guarded::new(None),
                    entered: AtomicBool::new(false),
                    entries: AtomicU32::new(0),
                    fd: AtomicI32::new(-1),
                    wake: SharedFd::new(),
                    number,
                    private: AtomicBool::new(false),
                    inherited: AtomicBool::new(false),
                    special: AtomicU32::new(0),
                    adopted: AtomicU32::new(0),
                    sleepers: AtomicU32::new(0),
                    nested: AtomicBool::new(false),
                    seen: AtomicBool::new(false),
                    is_used_elsewhere: AtomicBool::new(false),
                    kernel_turn: AtomicBool::new(false),
                    full_answers: AtomicU32::new(0),
                    looked_ns: AtomicU64::new(0),
                    peer_cpu: AtomicU32::new(0),
                    spin_ns: AtomicU32::new(0),
                    spin_skip: AtomicU32::new(0),
                    remote: AtomicBool::new(false),
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
        set.special.store(0, Ordering::Relaxed);
        for flag in [
            &set.nested,
            &set.seen,
            &set.is_used_elsewhere,
            &set.private,
            &set.inherited,
            &set.kernel_turn,
            &set.remote,
        ] {
            flag.store(false, Ordering::Relaxed);
        }
        set.looked_ns.store(0, Ordering::Relaxed);
        set.entries.store(1, Ordering::Release);
    }
    drop(making);
    if let Some(set) = found.filter(|set| set.was_entered()) {
        // It could not be emptied if a signal handler closed it in the middle of its own use.
        set.clear();
    }
    found
}

/// Gives the lower layers the functions by which sockets and links call their sets.
fn offer() {
    watcher::served_by(Calls {
        ring: |set| Set::of(set).ring(),
        is_private: |set| Set::of(set).is_private(),
        adopt_stream: |set, sock| Set::of(set).adopt_stream(sock),
        forget_stream: |set, sock, link, index| Set::of(set).forget_stream(sock, link, index),
        writes_by_tcp: |set, sock, waiters| Set::of(set).writes_by_tcp(sock, waiters),
        forget_sock: |set, sock| Set::of(set).forget_sock(sock),
        withdraw: |set, sock, fd| Set::of(set).withdraw(sock, fd),
        add_entry: |set| Set::of(set).add_entry(),
        drop_entry: |set| Set::of(set).drop_entry(),
        used_elsewhere: |set| Set::of(set).used_elsewhere(),
        add_bell: |set, link, slot, bell| Set::of(set).add_bell(link, slot, bell),
        empty_bell: |set, link, slot| Set::of(set).empty_bell(link, slot),
        number_goes: super::number_goes,
        number_gone: super::number_gone,
        slots_of,
        link_lost: super::link_lost,
    });
}

/// The set at index `i` of a socket's, if any.
pub(super) fn at(sock: &Socket, i: usize) -> Option<&'static Set> {
    sock.set_at(i).map(Set::of)
}

/// Waiter slots, as a mask, of all sets that `sock` is in, on its link.
pub fn slots_of(sock: &'static Socket, link: &'static Link) -> u64 {
    let mut mask = 0;
    for i in 0..SETS {
        if let Some(set) = at(sock, i)
            && let Some(slot) = set
                .with(|state| state.on_link(link).map(|l| l.slot))
                .flatten()
        {
            mask |= 1 << slot;
        }
    }
    mask
}

// SAFETY: no other type of object has this kind.
unsafe impl Object for Set {
    const KIND: Kind = Kind::Set;
}

impl Set {
    /// The set that sockets and links know by its address.
    pub(super) fn of(watcher: &'static Watcher) -> &'static Set {
        let at = core::ptr::from_ref(watcher) as usize;
        // SAFETY: a watcher's address is that of a set, whose memory is type-stable.
        unsafe { &*(at as *const Set) }
    }

    fn as_watcher(&self) -> *mut Watcher {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// The kernel's set.
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Is it a thread's own, for poll and select?
    pub fn is_private(&self) -> bool {
        self.private.load(Ordering::Relaxed)
    }

    /// Runs `f` on the locked state. `None`: a signal handler that interrupted this thread while it
    /// held the lock.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut EpollState) -> R) -> Option<R> {
        if !self.entered.load(Ordering::Relaxed) {
            self.is_entered()?;
        }
        let mut state = self.state.lock()?;
        Some(f(state.get_or_insert_default()))
    }

    #[cold]
    fn is_entered(&self) -> Option<()> {
        let _making = MAKING.lock()?;
        self.entered.store(true, Ordering::SeqCst);
        Some(())
    }

    /// Was the state ever locked? A thread that stores something and then reads false here knows
    /// that the first thread to lock it will see the store.
    pub(super) fn was_entered(&self) -> bool {
        self.entered.load(Ordering::SeqCst)
    }

    /// May a wait go straight to the kernel's function? Only while the kernel's answer is the
    /// program's: no stream ever lived here (so no bell is registered), no ONESHOT is registered,
    /// and the set is this process's own.
    ///
    /// Another thread may end that while the wait is in the kernel. So the caller asks again after
    /// the wait, and hands the answer to [`super::epoll::after_plain_wait`] if it is no longer so.
    /// - *No doorbell is shown to the program.* `special` is set before a doorbell enters the
    ///   kernel's set. A thread that takes its event out, under the kernel's lock of the set, sees
    ///   `special`.
    /// - *No sleeper is forgotten.* A wait that may sleep first counts in `sleepers`, then asks
    ///   (both SeqCst). A thread that adopts a stream first sets `special`, then reads `sleepers`.
    ///   So either the waiter sees `special` and calls [`super::epoll::wait`], or its count is seen
    ///   and the set is rung. As for every sleeper, no announcement is taken back until it has
    ///   left.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.specialty() == 0
    }

    /// 0 where [`Set::is_plain`]. A number, so that a hook can test it together with another one.
    #[inline(always)]
    pub fn specialty(&self) -> u32 {
        self.special.load(Ordering::SeqCst)
    }

    /// From now on waits do not go straight to the kernel.
    pub(super) fn no_longer_plain(&self) {
        self.special.store(1, Ordering::SeqCst);
    }

    /// Counts a thread as asleep before it goes straight to the kernel and may sleep there. If it
    /// is cancelled there, or a handler jumps out, it stays counted, which costs needless rings
    /// and nothing else.
    pub fn lies_down(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// The thread has returned from the kernel.
    pub fn gets_up(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// One more descriptor for the set.
    pub fn add_entry(&self) {
        self.entries.fetch_add(1, Ordering::AcqRel);
    }

    /// One descriptor less; with the last, the mirror is emptied.
    pub fn drop_entry(&'static self) {
        let mut entries = self.entries.load(Ordering::Acquire);
        // Each in one step: of two threads that close the last two, exactly one sees the last.
        while entries > 1 {
            match self.entries.compare_exchange_weak(
                entries,
                entries - 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return self.find_number(),
                Err(now) => entries = now,
            }
        }
        // Emptied before the count is 0, so that no thread takes the structure for another set.
        self.clear();
        self.entries.store(0, Ordering::Release);
    }

    /// Replaces `fd` by another descriptor of the set if it was the one just closed.
    fn find_number(&'static self) {
        let mine = Entry::of(self);
        if fd_table::lookup(self.fd()) != Some(mine) {
            fd_table::for_range(0, libc::c_int::MAX, |fd, entry| {
                if entry == mine {
                    self.fd.store(fd, Ordering::Relaxed);
                }
            });
        }
    }

    fn clear(&'static self) {
        let state = self.with(core::mem::take).unwrap_or_default();
        for sock in state.socks() {
            leave_set(sock, self);
        }
        for on in state.links {
            let streams: Vec<u32> = (0..on.reg_of.len() as u32)
                .filter(|&s| on.reg_of.get(s as usize) != Some(&0))
                .collect();
            for stream in streams {
                self.unwish(on.link, stream, on.slot);
            }
            release(on);
        }
        self.adopted.store(0, Ordering::Relaxed);
        self.wake.close(own_fds::forget);
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

    /// Makes the eventfd by which this process rings the set, at first use.
    fn want_wake(&self) -> Option<()> {
        if self.wake.is_open() {
            return Some(());
        }
        let _low = own_fds::Low::begin();
        let made = own_fds::lift(sys::eventfd(libc::EFD_NONBLOCK).ok()?)?;
        sys::epoll_ctl(
            self.fd(),
            libc::EPOLL_CTL_ADD,
            made.raw(),
            IN | ET,
            bell_data(),
        )
        .ok()?;
        if let Err(second) = self.wake.offer(made) {
            own_fds::forget(second.raw());
        }
        Some(())
    }

    /// Wakes one thread that sleeps in the kernel's set.
    pub fn ring(&self) {
        self.wake.with(sys::ring);
    }

    /// Puts the doorbell for this set's waiter slot into the kernel's set. The peer has sent it, or
    /// has connected to the set's name for it (`bell` is `None`).
    ///
    /// Before that the peer may have rung the doorbell of the slot's last owner, not knowing that
    /// it is gone. So sleepers look again.
    pub fn add_bell(&'static self, link: &'static Link, slot: u32, bell: Option<Fd>) {
        let entered = self.with(|state| {
            let on = state.on_link(link);
            let Some(on) = on.filter(|l| l.slot == slot && !l.lost) else {
                return true;
            };
            let bell = match (bell, on.name.take()) {
                (Some(bell), _) => Some(bell),
                (None, Some(name)) => {
                    let visitor = control::bell_at(link, &name);
                    own_fds::forget(name.raw());
                    visitor
                }
                (None, None) => None,
            };
            let Some(bell) = bell.and_then(own_fds::lift) else {
                return false;
            };
            let (raw, events) = (bell.raw(), IN | ET);
            if sys::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, raw, events, bell_data()).is_err() {
                own_fds::forget(raw);
                return false;
            }
            // Closing the old one takes it out of the kernel's set.
            if let Some(old) = on.bell.replace(bell) {
                own_fds::forget(old.raw());
            }
            true
        });
        if entered != Some(true) {
            // No thread would hear a ring of the peer. Without a doorbell the peer asks this
            // process to ring instead.
            control::drop_bell(link, slot);
        }
        self.tell();
    }

    /// Closes a doorbell whose other end the peer has closed: the kernel would tell of that for
    /// ever.
    pub(super) fn take_bell_out(&self, on: &mut OnLink) {
        if let Some(bell) = on.bell.take() {
            // A process forked from this one may hold it open, too. Then closing it here would
            // leave it in the kernel's set.
            let _ = sys::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, bell.raw(), 0, 0);
            own_fds::forget(bell.raw());
        }
    }

    /// Moves links to other hosts on: takes what has arrived, and posts what is to be sent.
    #[inline]
    pub(super) fn drive(&self) {
        // Also links of which this set has no stream any more: this thread may have been woken in
        // place of one that sleeps on them.
        if self.remote.load(Ordering::Relaxed) {
            links::drive_all();
        }
    }

    /// The index of `link` among the set's links. At first use it takes a waiter slot there and
    /// asks the peer for a doorbell.
    pub(super) fn place(
        &'static self,
        state: &mut EpollState,
        link: &'static Link,
    ) -> Option<usize> {
        let generation = link.generation();
        let known = state
            .links
            .iter()
            .position(|l| core::ptr::eq(l.link, link) && l.generation == generation);
        if known.is_some() {
            return known;
        }
        // Before any bell: see `is_plain`.
        self.no_longer_plain();
        self.want_wake()?;
        let slot = link.take_slot(core::ptr::from_ref(self) as usize)?;
        link.pin();
        // Threads may be asleep in the kernel's set already: the first news rings.
        if let Some(s) = link.my_slot(slot) {
            self.announce_to(s);
        }
        let name = if Carrier::of(link).is_driven {
            self.remote.store(true, Ordering::Release);
            links::bell(link, self.fd(), bell_data());
            None
        } else {
            control::want_bell(link, slot)
        };
        state.links.push(OnLink {
            link,
            generation,
            slot,
            reg_of: Vec::new(),
            streams: 0,
            lost: false,
            bell: None,
            name,
        });
        Some(state.links.len() - 1)
    }

    /// The slot of this set on `link`; for poll and select, whose private set has no registrations.
    pub(super) fn slot_for(&'static self, link: &'static Link) -> Option<u32> {
        self.with(|state| {
            let at = self.place(state, link)?;
            state.links.get(at).map(|l| l.slot)
        })
        .flatten()
    }

    /// A link has lost its peer. Bytes that the peer left in the rings are still told of.
    pub(crate) fn drop_link(&'static self, link: &'static Link) {
        let gone = self.with(|state| {
            state.take_marks();
            let at = state
                .links
                .iter()
                .position(|l| core::ptr::eq(l.link, link))?;
            let on = state.links.get_mut(at)?;
            // A set that watches this one would see the hang-up of the doorbell.
            self.take_bell_out(on);
            on.lost = true;
            (on.streams == 0).then(|| state.links.swap_remove(at))
        });
        if let Some(on) = gone.flatten() {
            release(on);
        }
        self.tell();
    }

    // --- registrations ---

    /// Wakes threads that wait on the set, in this process or through a set that watches it.
    pub(super) fn tell(&'static self) {
        if self.nested.load(Ordering::Relaxed) {
            self.shows_news();
        }
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.ring();
        }
    }

    /// The kernel has deleted the registration of `sock` under the number `fd`.
    pub(super) fn removed(&'static self, fd: i32, sock: &'static Socket) {
        self.with(|state| {
            if state
                .find(fd, sock)
                .is_none_or(|at| self.drop_reg(state, at, sock))
            {
                leave_set(sock, self);
            }
        });
    }

    /// Takes a registration out of the mirror, and of the stream's waiters if it was the socket's
    /// last here. True: it was.
    pub(super) fn drop_reg(&self, state: &mut EpollState, at: u32, sock: &'static Socket) -> bool {
        if state.reg(at).is_some_and(|r| r.adopted) {
            self.adopted.fetch_sub(1, Ordering::SeqCst);
        }
        let last = state.remove(at);
        if let Some(link) = sock.link() {
            let index = sock.index.load(Ordering::Relaxed);
            let slot = state.on_link(link).map(|on| on.slot);
            if let Some(slot) = slot {
                if last {
                    self.unwish(link, index, slot);
                }
                if let Some(on) = state.point(link, index, Some(sock)) {
                    release(on);
                }
            }
        }
        last
    }

    /// The socket's last descriptor is closed: the kernel drops its registrations.
    pub fn forget_sock(&'static self, sock: &'static Socket) {
        self.with(|state| {
            let all: Vec<u32> = state.of_sock(sock).collect();
            for at in all {
                self.drop_reg(state, at, sock);
            }
        });
    }

    /// Deletes the socket's registrations from the kernel's set before its last descriptor `fd` is
    /// closed. The kernel does not do it, since the library keeps the open file. False: one was
    /// made under another number, which is closed, and stays.
    pub fn withdraw(&'static self, sock: &'static Socket, fd: i32) -> bool {
        self.with(|state| {
            let all: Vec<u32> = state.of_sock(sock).collect();
            let reachable = all
                .iter()
                .all(|&at| state.reg(at).is_none_or(|reg| reg.fd == fd));
            if !all.is_empty() {
                let _ = sys::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
            reachable
        })
        .unwrap_or(false)
    }

    /// A registered socket writes to TCP again. The kernel's edge for room is long past: if the set
    /// is among the `waiters` for space in the ring, the kernel is made to look anew, and tells if
    /// TCP has room.
    pub fn writes_by_tcp(&'static self, sock: &'static Socket, waiters: u64) {
        self.with(|state| {
            self.unpark_sock(state, sock);
            let slot = sock
                .link()
                .and_then(|link| state.on_link(link))
                .map(|on| on.slot);
            let asked = slot.is_some_and(|slot| waiters & (1 << slot) != 0);
            let all: Vec<u32> = state.of_sock(sock).collect();
            for i in all {
                if let Some(reg) = state.reg(i) {
                    let waits = reg.events & WRITABLE != 0;
                    if waits && reg.armed && (asked && reg.events & ET != 0 || reg.out_removed) {
                        self.put_back(reg);
                    }
                }
            }
        });
    }

    /// A registered socket's stream is over: the registrations are the kernel's alone again. The
    /// stream's number may soon be another's.
    pub fn forget_stream(&'static self, sock: &'static Socket, link: &'static Link, index: u32) {
        let is_shared = shared::is_marked(self.number);
        // A set of the parent's that this process has not used: the mirror is as old as the fork.
        let is_stale = self.inherited.load(Ordering::Relaxed);
        let gone = self.with(|state| {
            let slot = state.on_link(link).map(|on| on.slot);
            // Does a registration wait for space in the ring, which goes now?
            let asked = slot
                .and_then(|slot| {
                    let (outgoing, _) = link.directions(link.stream(index)?);
                    Some(outgoing.tx_wishes.waiters.load(Ordering::SeqCst) & (1 << slot) != 0)
                })
                .unwrap_or(false);
            self.unpark_sock(state, sock);
            let all: Vec<u32> = state.of_sock(sock).collect();
            for i in all {
                if state.set_adopted(i, false) {
                    self.adopted.fetch_sub(1, Ordering::SeqCst);
                }
                if let Some(reg) = state.reg(i) {
                    let edge = reg.events & ET != 0;
                    let owed = edge
                        && (asked && reg.events & WRITABLE != 0
                            || reg.queued && reg.events & READABLE != 0);
                    reg.echo = Echo::None;
                    if is_stale {
                        // The parent may have changed the kernel's registration since.
                    } else if reg.twin_armed {
                        // Its event is dropped, but a set that watches this one would be told of
                        // every byte. Not where another process may have changed it.
                        if self.nested.load(Ordering::Relaxed) && !is_shared {
                            reg.change(self.fd(), ONESHOT);
                        }
                    } else if reg.armed && (reg.out_removed || owed) {
                        // The kernel looks anew, and tells if TCP is ready.
                        self.put_back(reg);
                    }
                    reg.out_removed = false;
                }
            }
            state.point(link, index, None)
        });
        if let Some(on) = gone.flatten() {
            release(on);
        }
    }

    /// In a child: gives up the links, which are the parent's. False: a signal handler forked while
    /// this thread had the set locked.
    pub(super) fn disown(&'static self) -> bool {
        if !self.was_entered() {
            return true;
        }
        let Some(links) = self.with(EpollState::disown) else {
            return false;
        };
        for on in links {
            on.link.unpin();
            for fd in [on.bell, on.name].into_iter().flatten() {
                own_fds::forget(fd.raw());
            }
        }
        true
    }

    /// In the child of a fork: the links are the parent's, and so are the doorbells in the kernel's
    /// set, which both processes share.
    fn after_fork(&'static self) {
        self.inherited.store(true, Ordering::Relaxed);
        self.no_longer_plain();
        self.adopted.store(0, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
        // A private set that the interrupted thread still uses is not freed.
        if self.disown() && self.private.load(Ordering::Relaxed) {
            // Its thread does not exist here.
            self.clear();
            own_fds::close(self.fd());
            self.entries.store(0, Ordering::Release);
        }
    }
}

/// Gives up a set's place on a link: doorbell, waiter slot and pin.
pub(super) fn release(on: OnLink) {
    for fd in [&on.bell, &on.name].into_iter().flatten() {
        own_fds::forget(fd.raw());
    }
    if on.link.generation() == on.generation {
        control::drop_bell(on.link, on.slot);
        on.link.return_slot(on.generation, on.slot);
        on.link.unpin();
        if !on.link.is_alive() {
            on.link.close_if_unused();
        }
    }
}

/// Notes in the socket that it is in `set`. False: it is in as many sets as it can note.
pub(super) fn enter_set(sock: &'static Socket, set: &'static Set) -> bool {
    let mine = set.as_watcher();
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

pub(super) fn leave_set(sock: &'static Socket, set: &Set) {
    let mine = set.as_watcher();
    for cell in &sock.sets {
        let _ = cell.compare_exchange(
            mine,
            core::ptr::null_mut(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}
