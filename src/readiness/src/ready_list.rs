//! The events that a set tells: those of streams in the ready list, and the kernel's, corrected for
//! sockets that have a stream.
//!
//! To hear of space in a ring, a set puts its bit among the waiters in the writer's wishes. Before
//! a look at the ring it takes the bit out. If the ring is full, it puts the bit in again and looks
//! once more. So room that the peer made before the second look is seen, and a peer that makes room
//! later finds the bit.

use super::interest_list::{AfterTcp, Echo, EpollState, OnLink, Registration};
use super::kernel_events::{self, Moment};
use super::parked;
use super::set::Set;
use core::sync::atomic::Ordering;
use sluice_fabric::doorbell::Slot;
use sluice_fabric::sync::fence_after_rmw;
use sluice_fabric::sys;
use sluice_runtime::fd_table::{self, Entry};
use sluice_runtime::spin;
use sluice_sockets::events::{self, READABLE, WRITABLE};
use sluice_sockets::jobs;
use sluice_sockets::socket::{Socket, State};
use sluice_transport::links;

const OUT: u32 = libc::EPOLLOUT as u32;
const ET: u32 = libc::EPOLLET as u32;
/// The events for which bytes that come are an edge (`sock_def_readable` in the kernel).
const READS: u32 = READABLE | (libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;
/// What a reading half shows once the program has shut it.
const END: u32 = READABLE | libc::EPOLLRDHUP as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// What was taken of the ready list.
pub(super) enum Taken {
    /// So many events.
    Events(usize),
    /// So many events. The writer of the next stream did something by TCP before, so the kernel's
    /// events must be told first.
    BeforeTcp(usize),
}

impl Set {
    /// Announces this thread's sleep on every link, with its CPU, and looks once more. True: a
    /// stream is marked or queued.
    pub(super) fn announce_and_look(&self) -> bool {
        let cpu = sluice_runtime::thread::cpu();
        self.with(|state| {
            for slot in state.links.iter().filter_map(OnLink::waiter) {
                slot.publish_cpu(cpu);
                self.announce_to(slot);
            }
            if self.remote.load(Ordering::Relaxed) {
                links::arm_all(state.links.iter().map(|on| on.link));
            }
            // Without streams nothing takes marks of ended ones: they would keep the set awake for
            // ever.
            self.adopted.load(Ordering::SeqCst) != 0 && state.any_news()
        })
        .unwrap_or(false)
    }

    /// Announces sleep on one link; for good if another set watches this one.
    pub(super) fn announce_to(&self, slot: &Slot) {
        if self.nested.load(Ordering::Relaxed) {
            slot.announce_for_good();
        } else {
            slot.announce();
        }
    }

    /// Takes the announcement of a sleep back on every link.
    pub(super) fn retract(&self) {
        self.with(|state| {
            for slot in state.links.iter().filter_map(OnLink::waiter) {
                slot.retract();
            }
        });
    }

    /// Spins until a stream of the set has news; false: sleep.
    pub(super) fn spin_until_ready(&self) -> bool {
        if self.remote.load(Ordering::Relaxed) {
            return spin::remote(&self.spin_ns, &self.spin_skip, || {
                self.drive();
                self.has_news()
            });
        }
        let peer = self.peer_cpu.load(Ordering::Relaxed);
        if !spin::is_worth_it(peer) {
            return false;
        }
        let mut pinned: [Option<(&'static sluice_fabric::shm::Link, u32)>; 4] = [None; 4];
        let few = self.with(|state| {
            if state.links.len() > pinned.len() || state.any_news() {
                return false;
            }
            for (to, on) in pinned.iter_mut().zip(&state.links) {
                on.link.pin();
                *to = Some((on.link, on.slot));
            }
            true
        });
        if few != Some(true) {
            // News, too many links, or a signal handler that interrupted a use of this set.
            return few.is_some() && self.has_news();
        }
        let mut slots = [None; 4];
        for (to, link) in slots.iter_mut().zip(pinned) {
            *to = link.and_then(|(link, slot)| link.my_slot(slot));
        }
        let found = spin::until(&self.spin_ns, &self.spin_skip, peer, || {
            slots.iter().flatten().any(|s| s.any_ready())
        });
        for (link, _) in pinned.into_iter().flatten() {
            link.unpin();
            if !link.is_alive() {
                link.close_if_unused();
            }
        }
        found
    }

    /// Is anything queued or marked?
    pub(super) fn has_news(&self) -> bool {
        self.with(|state| state.any_news()).unwrap_or(false)
    }

    /// Takes what is ready, up to `out.len()` events.
    pub(super) fn collect_ready(&'static self, out: &mut [libc::epoll_event]) -> usize {
        match self.take_ready(out, |state, left| Ok(state.next_ready(left))) {
            Taken::Events(count) | Taken::BeforeTcp(count) => count,
        }
    }

    /// As [`Set::collect_ready`], up to a stream before which the kernel's events go.
    pub(super) fn collect_ready_before_tcp(&'static self, out: &mut [libc::epoll_event]) -> Taken {
        self.take_ready(out, EpollState::next_ready_before_tcp)
    }

    fn take_ready(
        &'static self,
        out: &mut [libc::epoll_event],
        next: impl Fn(&mut EpollState, &mut usize) -> Result<Option<u32>, AfterTcp>,
    ) -> Taken {
        self.with(|state| {
            state.take_marks();
            state.requeue_deferred();
            let mut count = 0;
            // Each registration that is queued now is looked at once at most.
            let mut left = state.ready.len();
            while count != out.len() {
                let index = match next(state, &mut left) {
                    Ok(Some(index)) => index,
                    Ok(None) => break,
                    Err(AfterTcp) => return Taken::BeforeTcp(count),
                };
                let (event, stays) = self.examine(state, index);
                if stays {
                    state.queue(index);
                }
                if let (Some(event), Some(to)) = (event, out.get_mut(count)) {
                    *to = event;
                    count += 1;
                }
            }
            Taken::Events(count)
        })
        .unwrap_or(Taken::Events(0))
    }

    /// Would a wait tell of a stream now? Takes registrations without news out of the ready list,
    /// and leaves the others.
    pub(super) fn would_tell(&'static self) -> bool {
        self.with(|state| {
            state.take_marks();
            state.requeue_deferred();
            let mut left = state.ready.len();
            while let Some(index) = state.next_ready(&mut left) {
                let Some(reg) = state.reg(index) else {
                    continue;
                };
                let Some(sock) = reg.sock.filter(|_| reg.adopted && reg.armed) else {
                    continue;
                };
                let wanted = reg.events;
                let events = self.state_of(state, index, sock) & wanted;
                let is_news = |reg: &mut Registration| events != 0 && !reg.knows(sock, events);
                if state.reg(index).is_some_and(is_news) {
                    state.queue_first(index);
                    return true;
                }
            }
            false
        })
        .unwrap_or(false)
    }

    /// The events that a registered stream shows now: the ring's, and the kernel's where the ring
    /// does not decide. If the ring is full, the set is entered among those that wait for space.
    fn state_of(&self, state: &mut EpollState, index: u32, sock: &'static Socket) -> u32 {
        let bit = bit_of(state, sock);
        let Some(reg) = state.reg(index) else {
            return 0;
        };
        let wants = reg.events & WRITABLE != 0;
        let level = reg.events & ET == 0;
        let once = reg.events & ONESHOT != 0;
        // A stream on its way back to TCP: the kernel is asked, too. ONESHOT would get no later
        // event, and a level-triggered answer contains all that is so.
        let is_going = (level || once) && sock.tx.is_sealed();
        let writes = sock.tx.state() == State::Link && !is_going;
        let asked = writes && stop_asking(sock, bit);
        if asked {
            state.owe_room(sock);
        }
        let Some(reg) = state.reg(index) else {
            return 0;
        };
        let mut shown = events::of_stream(sock);
        let due = asked || level || reg.out_removed || reg.room_due;
        if writes && shown & OUT == 0 && wants && due {
            shown |= ask(sock, bit);
        }
        if reg.out_removed && (!writes || shown & OUT != 0) {
            self.put_back(reg);
        }
        // Edge-triggered: the kernel tells of its edges by itself. Only room is asked for, since an
        // event for a mark shows it, too, and asking makes the kernel tell when a full buffer has
        // room again. ONESHOT: the kernel's own event would be dropped, so everything is asked for.
        let mut of_kernel = if (level || once) && !(writes && events::reads_ring(sock)) {
            reg.events & 0xffff
        } else {
            reg.events & WRITABLE
        };
        if writes {
            of_kernel &= !WRITABLE;
        }
        if of_kernel != 0 {
            // By the socket's number: the registration's own may be closed while a dup lives.
            let told = kernel_events::ask(sock, of_kernel as i16);
            if told != 0 {
                // The socket's other registrations are told by the kernel, in the same answer.
                self.looked_ns.store(0, Ordering::Relaxed);
            }
            shown |= u32::from(told as u16);
        }
        let edge_of_kernel = !level && !once && !events::reads_ring(sock);
        if edge_of_kernel && reg.events & (READS | END) != 0 && shown & reg.events != 0 {
            // The link's news must not be told before TCP's: the kernel is asked in this answer.
            self.looked_ns.store(0, Ordering::Relaxed);
            if sock.has_shut_reading() {
                // As in the kernel, an event for one edge shows all that is so.
                shown |= END;
            }
        }
        shown
    }

    /// Gives the kernel the registration as the program made it, EPOLLOUT included, and so makes it
    /// look anew. One that a process forked from this one has changed stays; the kernel looked
    /// then.
    pub(super) fn put_back(&self, reg: &mut Registration) {
        reg.out_removed = self.is_as_known(reg) && !reg.change(self.fd(), reg.events);
    }

    /// The event of one registration now, if any. True: it stays in the ready list.
    fn examine(&self, state: &mut EpollState, index: u32) -> (Option<libc::epoll_event>, bool) {
        if let Some((sock, true)) = state.reg(index).and_then(|r| Some((r.sock?, r.parked))) {
            self.look_at_parked(state, index, sock);
        }
        let Some(reg) = state.reg(index) else {
            return (None, false);
        };
        let Some(sock) = reg.sock.filter(|_| reg.adopted && reg.armed) else {
            return (None, false);
        };
        if let Some(dir) = sock.rx.dir() {
            self.peer_cpu
                .store(dir.tx.cpu.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let on_link = sock.tx.state() == State::Link;
        let shown = self.state_of(state, index, sock);
        let seen = self.seen.load(Ordering::Relaxed);
        let Some(reg) = state.reg(index) else {
            return (None, false);
        };
        let events = shown & (reg.events | libc::EPOLLERR as u32 | libc::EPOLLHUP as u32);
        if events == 0 {
            let level = reg.events & ET == 0;
            if level && matches!(sock.rx.state(), State::Proved | State::Draining) {
                state.defer(index);
            }
            return (None, false);
        }
        if reg.knows(sock, events) {
            return (None, false);
        }
        if events & WRITABLE != 0 {
            reg.room_due = false;
            if reg.echo == Echo::Due {
                let end = if shown & END == END { END } else { 0 };
                // Room is noted only if it is the ring's. Room on TCP may be used up before the
                // kernel's event, which then tells of new room.
                reg.echo = Echo::Told(end | if on_link { WRITABLE } else { 0 });
            }
        }
        let event = libc::epoll_event {
            events,
            u64: reg.data,
        };
        if reg.events & ONESHOT != 0 {
            reg.armed = false;
            // The kernel's registration stays armed: its next event is dropped, unless the program
            // arms it anew before.
            reg.twin_armed = true;
            if seen && self.is_as_known(reg) {
                // Another set or another process sees the kernel's registration, so it asks for
                // nothing any more. Errors and hang-ups cannot be left out.
                reg.change(self.fd(), ONESHOT);
            }
            return (Some(event), false);
        }
        (Some(event), reg.events & ET == 0)
    }

    /// Turns the kernel's events `all[start..end]` into the program's. `began` is when the kernel
    /// was asked. Doorbells are taken out, events of sockets with a stream are corrected, and what
    /// `all[..start]` tells already is merged into that. Returns the new end, and the place at
    /// which the first doorbell stood, if any.
    pub(super) fn translate(
        &'static self,
        all: &mut [libc::epoll_event],
        start: usize,
        end: usize,
        began: Moment,
    ) -> (usize, Option<usize>) {
        let mut bell = None;
        let mut to = start;
        if (kernel_events::is_any_other() || self.adopted.load(Ordering::Relaxed) != 0)
            && let Some(told) = all.get_mut(start..end)
        {
            self.correct_told(told, began);
        }
        // Not `adopted`, which counts a stream only once it is added. The set is no longer plain
        // before that, so that the lock below waits for a thread that is just adding one.
        let has_streams = !self.is_plain() && self.was_entered();
        let mut keep = |state: Option<&mut EpollState>| {
            let mut state = state;
            for from in start..end {
                let Some(mut event) = all.get(from).copied() else {
                    break;
                };
                if let Some(at) = parked::ours(event.u64) {
                    bell.get_or_insert(to);
                    if let Some(state) = state.as_deref_mut() {
                        self.unpark(state, at);
                    }
                    continue;
                }
                if let Some(state) = state.as_deref_mut() {
                    let (events, sole) = self.correct_all(state, event.u64, event.events);
                    if events == 0 {
                        continue;
                    }
                    event.events = events;
                    let earlier = all
                        .get_mut(..if sole { start } else { 0 })
                        .and_then(|a| a.iter_mut().find(|e| { e.u64 } == { event.u64 }));
                    if let Some(earlier) = earlier {
                        earlier.events |= events;
                        continue;
                    }
                }
                if event.events == 0 {
                    continue;
                }
                if let Some(place) = all.get_mut(to) {
                    *place = event;
                }
                to += 1;
            }
        };
        if !has_streams {
            keep(None);
        } else if self.with(|state| keep(Some(state))).is_none() {
            // A signal handler that interrupted a use of this set: no stream can be looked up.
            keep(None);
        }
        (to, bell)
    }

    /// Corrects events that come from a record or a reset (see [`kernel_events`]), without the
    /// set's lock while sockets are locked. An event may have no bits left.
    fn correct_told(&'static self, told: &mut [libc::epoll_event], began: Moment) {
        let doubtful = self.with(|state| {
            let mut found = Vec::new();
            for (i, event) in told.iter().enumerate() {
                let bits = event.events as u16 as i16;
                let is_doubtful = |(sock, _): (&'static Socket, u32)| {
                    kernel_events::is_doubtful(sock, bits, began)
                };
                if kernel_events::is_of_interest(bits)
                    && state.asked_with_data(event.u64).any(is_doubtful)
                {
                    let registrations: Vec<_> = state.asked_with_data(event.u64).collect();
                    found.push((i, bits, registrations));
                }
            }
            found
        });
        for (i, bits, registrations) in doubtful.unwrap_or_default() {
            // The event may be of any registration with this data.
            let now = registrations.into_iter().fold(0, |now, (sock, asked)| {
                now | kernel_events::correct(sock, bits, asked as u16 as i16, began)
            });
            if let Some(event) = told.get_mut(i) {
                event.events = u32::from(now as u16);
            }
        }
    }

    /// What the program is to see of the kernel's event with this data. True: only one registration
    /// has the data.
    fn correct_all(&self, state: &mut EpollState, data: u64, events: u32) -> (u32, bool) {
        let (first, second) = {
            let mut with = state.ours_with_data(data);
            (with.next(), with.next())
        };
        state.come_back(data);
        match (first, second) {
            // No stream now. One that was told of in this answer may have ended since.
            (None, _) => (events, state.is_sole(data)),
            (Some(only), None) => (self.correct(state, only, events), true),
            (Some(_), Some(_)) => {
                // Several registrations have this data, and neither the library nor the program can
                // tell them apart. So the event is passed on; but a full ring must not keep the
                // kernel's set ready.
                if events & WRITABLE != 0 {
                    let all: Vec<u32> = state.with_data(data).collect();
                    for index in all {
                        let level = state
                            .reg(index)
                            .is_some_and(|r| r.adopted && r.events & ET == 0);
                        if level {
                            self.correct(state, index, events & WRITABLE);
                        }
                    }
                }
                if events == 0 {
                    // Nothing is told, so a ONESHOT registration among them must not be used up.
                    let all: Vec<u32> = state.ours_with_data(data).collect();
                    for index in all {
                        self.correct(state, index, 0);
                    }
                }
                (events, false)
            }
        }
    }

    /// What the program is to see of the kernel's event of one registration. EPOLLOUT is left out
    /// while the ring is full.
    fn correct(&self, state: &mut EpollState, index: u32, events: u32) -> u32 {
        let bit = state
            .reg(index)
            .and_then(|r| r.sock)
            .map_or(0, |sock| bit_of(state, sock));
        let Some(reg) = state.reg(index) else {
            return events;
        };
        let Some(sock) = reg.sock.filter(|_| !reg.parked) else {
            // The kernel has other data for a parked registration, so the event is another's.
            return events;
        };
        let oneshot = reg.events & ONESHOT != 0;
        if oneshot && !reg.armed && core::mem::take(&mut reg.twin_armed) {
            // The ring's event has been told for this one, even if the stream has ended since. Now
            // the kernel's registration is disarmed, too.
            return 0;
        }
        let mut events = events;
        if events == 0 {
            // Nothing of the kernel's event was the program's.
            if reg.adopted && reg.armed {
                events = events::of_stream(sock) & reg.events & READABLE;
            }
            if events == 0 {
                if oneshot && reg.armed {
                    // The event has disarmed the kernel's registration: arm it again.
                    reg.change(self.fd(), reg.events);
                }
                return 0;
            }
        }
        if !reg.adopted {
            // A socket without a stream: the event is told, and noted for a stream that comes
            // later.
            reg.armed = false;
            return events;
        }
        if oneshot && !reg.armed {
            return events;
        }
        let on_link = sock.tx.state() == State::Link;
        let told = match core::mem::take(&mut reg.echo) {
            Echo::None | Echo::Due => 0,
            Echo::Told(told) if on_link => told,
            // Room on TCP may have been used up since it was told, so this event is new.
            Echo::Told(told) => told & !WRITABLE,
        };
        if reg.events & ET != 0 && events & !told == 0 {
            return 0;
        }
        let decides = events & WRITABLE != 0 && on_link && !reg.out_removed;
        if decides && stop_asking(sock, bit) {
            state.owe_room(sock);
        }
        let Some(reg) = state.reg(index) else {
            return events;
        };
        if decides && !events::has_room(sock) && ask(sock, bit) == 0 {
            events &= !WRITABLE;
            if reg.events & ET == 0 || oneshot && events == 0 {
                reg.out_removed = reg.change(self.fd(), reg.events & !WRITABLE);
            }
            if events == 0 {
                return 0;
            }
        }
        if events & WRITABLE != 0 {
            reg.room_due = false;
        }
        if oneshot {
            reg.armed = false;
            reg.twin_armed = false;
        }
        events | events::of_stream(sock) & reg.events & READABLE
    }
}

/// The set's bit in the stream's masks of waiters.
fn bit_of(state: &mut EpollState, sock: &'static Socket) -> u64 {
    sock.link()
        .and_then(|link| state.on_link(link))
        .map_or(0, |on| 1 << on.slot)
}

/// Enters the set among those that wait for space in the ring. Returns EPOLLOUT if there is space
/// by now.
fn ask(sock: &'static Socket, bit: u64) -> u32 {
    let dir = sock.tx.dir();
    if let Some(dir) = dir {
        dir.tx_wishes.waiters.fetch_or(bit, Ordering::SeqCst);
        fence_after_rmw();
    }
    if dir.is_none() || sock.tx.state() == State::Plain {
        // Another thread has taken the half back to TCP, and may have looked for waiters before
        // this one was entered. The kernel is asked instead, and then tells of room by itself.
        return u32::from(kernel_events::ask(sock, kernel_events::WRITE) as u16) & WRITABLE;
    }
    if events::has_room(sock) {
        return WRITABLE;
    }
    jobs::watch_full(sock);
    0
}

/// Takes the set out of those that wait for space in the ring. True: it was among them.
fn stop_asking(sock: &'static Socket, bit: u64) -> bool {
    let Some(dir) = sock.tx.dir() else {
        return false;
    };
    if dir.tx_wishes.waiters.load(Ordering::Relaxed) & bit == 0 {
        return false;
    }
    dir.tx_wishes.waiters.fetch_and(!bit, Ordering::SeqCst);
    fence_after_rmw();
    true
}

impl Registration {
    /// Is this no news for the registration? It is edge-triggered, shows room alone, and the edge
    /// was of bytes, for which it does not ask. (The kernel tells of edges of room on TCP.)
    fn knows(&self, sock: &Socket, events: u32) -> bool {
        let of_room = events & !WRITABLE == 0 && self.events & (ET | READS) == ET;
        of_room && !self.room_due && sock.tx.state() != State::Resending
    }

    /// Does its number still name the socket? One that was closed while a dup lives names nothing,
    /// or another file.
    pub(super) fn is_named(&self) -> bool {
        let Some(sock) = self.sock else { return false };
        match fd_table::lookup(self.fd) {
            // About to be closed.
            None if self.goes => true,
            // The socket's last descriptor, about to be closed.
            None => {
                sock.fds.load(Ordering::Acquire) == 0 && sock.fd.load(Ordering::Relaxed) == self.fd
            }
            named => named == Some(Entry::of(sock)),
        }
    }

    /// Changes the kernel's registration, which makes the kernel look anew. False: no number names
    /// it (see [`super::parked::number_goes`]), and the kernel is only made to look.
    pub(super) fn change(&self, set: i32, events: u32) -> bool {
        let named = self.is_named();
        if named {
            change(set, self.fd, events, self.data);
        } else if let Some(sock) = self
            .sock
            .filter(|_| events & ET != 0 && events & WRITABLE != 0)
        {
            let _ = sys::tell_of_room(sock.fd.load(Ordering::Relaxed));
        }
        named
    }
}

/// Changes the kernel's registration; one with EPOLLEXCLUSIVE cannot be changed, only made anew.
pub(super) fn change(set: i32, fd: i32, events: u32, data: u64) {
    if events & EXCLUSIVE != 0 {
        // If the program deletes it at this moment, it is not added again.
        if sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0).is_ok() {
            let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data);
        }
    } else {
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, data);
    }
}
