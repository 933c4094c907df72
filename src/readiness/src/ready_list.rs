//! What a set tells: the rings' news and the kernel's, put together.
//!
//! Space in a ring is told by the set's bit in the writer's wishes. It is taken back first, then
//! the ring is looked at, then, if it is full, the bit is put in again and the ring looked at once
//! more. A peer that made room before the look is seen by it, one that makes room later finds the
//! bit in place.

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
use sluice_sockets::events::{READABLE, WRITABLE};
use sluice_sockets::sock::{Sock, State};
use sluice_sockets::{demote, events, jobs};
use sluice_transport::verbs;

const OUT: u32 = libc::EPOLLOUT as u32;
const ET: u32 = libc::EPOLLET as u32;
/// What bytes that come are news for (`sock_def_readable` in the kernel).
const READS: u32 = READABLE | (libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;
/// What a reading half that the program has shut shows at any time.
const END: u32 = READABLE | libc::EPOLLRDHUP as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// What was taken of the ready list.
pub(super) enum Taken {
    /// So many events.
    Events(usize),
    /// So many. The writer of the next stream did something by TCP before: the kernel's events go
    /// first.
    BeforeTcp(usize),
}

impl Set {
    /// Publishes where this thread waits, announces sleep to every link, and looks: is anything
    /// marked or queued?
    pub(super) fn announce_and_look(&self) -> bool {
        let cpu = sluice_runtime::thread::cpu();
        self.with(|state| {
            for slot in state.links.iter().filter_map(OnLink::waiter) {
                slot.publish_cpu(cpu);
                self.announce_to(slot);
            }
            if self.remote.load(Ordering::Relaxed) {
                verbs::arm_all(state.links.iter().map(|on| on.link));
            }
            // Marks of streams that are over are nobody's to take: they would keep the set awake
            // for ever.
            self.adopted.load(Ordering::SeqCst) != 0 && state.any_news()
        })
        .unwrap_or(false)
    }

    /// Announces sleep to one link.
    pub(super) fn announce_to(&self, slot: &Slot) {
        if self.nested.load(Ordering::Relaxed) {
            slot.announce_for_good();
        } else {
            slot.announce();
        }
    }

    /// Awake again.
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
            // News, too many links, or a handler inside this very set.
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
            // Every queued registration is looked at once at most.
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

    /// Would a wait tell of a stream now? Takes nothing but what would not.
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

    /// A registered stream now, as the ring has it, and as the kernel has it where the ring does
    /// not decide. Sees to it that the set hears of what is missing.
    fn state_of(&self, state: &mut EpollState, index: u32, sock: &'static Sock) -> u32 {
        let bit = bit_of(state, sock);
        let Some(reg) = state.reg(index) else {
            return 0;
        };
        let wants = reg.events & WRITABLE != 0;
        let level = reg.events & ET == 0;
        let once = reg.events & ONESHOT != 0;
        // Of a stream that is going back the kernel has to say what it will not tell later to one
        // that tells once, and what belongs to every answer of a level.
        let is_going = (level || once) && demote::is_sealed(&sock.tx);
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
        // Edges of the kernel's come by themselves, but a mark's event tells of space, too. Asked,
        // the kernel also tells when a full buffer has room again. The twin of one that tells once
        // is not heard any more.
        let mut of_kernel = if (level || once) && !(writes && events::reads_ring(sock)) {
            reg.events & 0xffff
        } else {
            reg.events & WRITABLE
        };
        if writes {
            of_kernel &= !WRITABLE;
        }
        if of_kernel != 0 {
            // Not by the registration's own number, which may be closed while a dup keeps it alive.
            let told = kernel_events::ask(sock, of_kernel as i16);
            if told != 0 {
                // Its other registrations hear of it from the kernel, in the same answer.
                self.looked_ns.store(0, Ordering::Relaxed);
            }
            shown |= u32::from(told as u16);
        }
        let edge_of_kernel = !level && !once && !events::reads_ring(sock);
        if edge_of_kernel && reg.events & (READS | END) != 0 && shown & reg.events != 0 {
            // What is told of the link does not go ahead of what TCP has.
            self.looked_ns.store(0, Ordering::Relaxed);
            if sock.has_shut_reading() {
                // An edge of one thing tells of all that is so.
                shown |= END;
            }
        }
        shown
    }

    /// The kernel gets the registration as the program made it, OUT with it, and looks anew. One
    /// that a relative has changed stays as that made it; the kernel has looked then.
    pub(super) fn put_back(&self, reg: &mut Registration) {
        reg.out_removed = self.is_as_known(reg) && !reg.change(self.fd(), reg.events);
    }

    /// One registration: its event now, if any, and whether it stays in the ready list.
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
                // What is told of TCP's room is not the ring's: the kernel's next may be of room
                // that was used up meanwhile.
                reg.echo = Echo::Told(end | if on_link { WRITABLE } else { 0 });
            }
        }
        let event = libc::epoll_event {
            events,
            u64: reg.data,
        };
        if reg.events & ONESHOT != 0 {
            reg.armed = false;
            // The kernel's twin is left armed: what it says before it is armed anew is dropped.
            reg.twin_armed = true;
            if seen && self.is_as_known(reg) {
                // A watcher of the set, or a relative, sees the kernel's registration. Errors and
                // the end cannot be left out of it.
                reg.change(self.fd(), ONESHOT);
            }
            return (Some(event), false);
        }
        (Some(event), reg.events & ET == 0)
    }

    /// Turns the kernel's events `all[start..end]`, of a look that began then, into the program's:
    /// doorbells out, streams' states in, merged with what `all[..start]` says of the same
    /// registrations. Returns the new end, and where the first bell stood among them, if any did.
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
        // This counts a stream that is about to come: what the kernel tells of it is told only
        // after it has come.
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
            // A handler inside this very set: nothing can be looked up.
            keep(None);
        }
        (to, bell)
    }

    /// What the kernel has told that may be none of the program's is put right, without the set's
    /// lock. No bit may be left.
    fn correct_told(&'static self, told: &mut [libc::epoll_event], began: Moment) {
        let doubtful = self.with(|state| {
            let mut found = Vec::new();
            for (i, event) in told.iter().enumerate() {
                let bits = event.events as u16 as i16;
                let is_doubtful =
                    |(sock, _): (&'static Sock, u32)| kernel_events::is_doubtful(sock, bits, began);
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
            // Of several under the same data it may be any one's.
            let now = registrations.into_iter().fold(0, |now, (sock, asked)| {
                now | kernel_events::correct(sock, bits, asked as u16 as i16, began)
            });
            if let Some(event) = told.get_mut(i) {
                event.events = u32::from(now as u16);
            }
        }
    }

    /// The kernel's events under this data as the program is to see them, and whether they are
    /// those of one stream.
    fn correct_all(&self, state: &mut EpollState, data: u64, events: u32) -> (u32, bool) {
        let (first, second) = {
            let mut with = state.ours_with_data(data);
            (with.next(), with.next())
        };
        state.come_back(data);
        match (first, second) {
            // What was told of a stream in this very answer may be over.
            (None, _) => (events, state.is_sole(data)),
            (Some(only), None) => (self.correct(state, only, events), true),
            (Some(_), Some(_)) => {
                // Whose event it is cannot be told, by the program neither. None is held back; but
                // a full ring must not keep the kernel's set ready.
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
                    // One that tells once, whichever it was, is not used up.
                    let all: Vec<u32> = state.ours_with_data(data).collect();
                    for index in all {
                        self.correct(state, index, 0);
                    }
                }
                (events, false)
            }
        }
    }

    /// The kernel's event of an accelerated socket: OUT means nothing while the ring is full.
    fn correct(&self, state: &mut EpollState, index: u32, events: u32) -> u32 {
        let bit = state
            .reg(index)
            .and_then(|r| r.sock)
            .map_or(0, |sock| bit_of(state, sock));
        let Some(reg) = state.reg(index) else {
            return events;
        };
        let Some(sock) = reg.sock.filter(|_| !reg.parked) else {
            // The kernel has nothing under this data of a parked one: it is another's.
            return events;
        };
        let oneshot = reg.events & ONESHOT != 0;
        if oneshot && !reg.armed && core::mem::take(&mut reg.twin_armed) {
            // The ring has told already, be it of a stream that is over; with this the kernel's
            // twin is used up, too.
            return 0;
        }
        let mut events = events;
        if events == 0 {
            // Of what the kernel told nothing was the program's.
            if reg.adopted && reg.armed {
                events = events::of_stream(sock) & reg.events & READABLE;
            }
            if events == 0 {
                if oneshot && reg.armed {
                    // ... which has used its registration up.
                    reg.change(self.fd(), reg.events);
                }
                return 0;
            }
        }
        if !reg.adopted {
            // The kernel's alone so far; but a stream that comes up finds it disarmed.
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
            // Of TCP's room it may also be that there was none since.
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

/// The set's bit among the waiters of a stream.
fn bit_of(state: &mut EpollState, sock: &'static Sock) -> u64 {
    sock.link()
        .and_then(|link| state.on_link(link))
        .map_or(0, |on| 1 << on.slot)
}

/// The set wants to hear of space: OUT if it came up meanwhile.
fn ask(sock: &'static Sock, bit: u64) -> u32 {
    let dir = sock.tx.dir();
    if let Some(dir) = dir {
        dir.tx_wishes.waiters.fetch_or(bit, Ordering::SeqCst);
        fence_after_rmw();
    }
    if dir.is_none() || sock.tx.state() == State::Plain {
        // A thread that took the half back to TCP meanwhile may have looked for waiters before. The
        // kernel tells of its room, once it was asked.
        return u32::from(kernel_events::ask(sock, kernel_events::WRITE) as u16) & WRITABLE;
    }
    if events::has_room(sock) {
        return WRITABLE;
    }
    jobs::watch_full(sock);
    0
}

/// Takes the set's wish to hear of space back; whether there was one.
fn stop_asking(sock: &'static Sock, bit: u64) -> bool {
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
    /// Is what it shows of room alone, and that no news? The edge was of bytes, for which this one
    /// does not ask. (That of TCP's room is the kernel's to tell.)
    fn knows(&self, sock: &Sock, events: u32) -> bool {
        let of_room = events & !WRITABLE == 0 && self.events & (ET | READS) == ET;
        of_room && !self.room_due && sock.tx.state() != State::Resending
    }

    /// Is its number the socket's still? By one that is closed while a dup lives nobody is named,
    /// or another file.
    pub(super) fn is_named(&self) -> bool {
        let Some(sock) = self.sock else { return false };
        match fd_table::lookup(self.fd) {
            // About to be closed.
            None if self.goes => true,
            // The last one, about to be closed.
            None => {
                sock.fds.load(Ordering::Acquire) == 0 && sock.fd.load(Ordering::Relaxed) == self.fd
            }
            named => named == Some(Entry::of(sock)),
        }
    }

    /// Changes the kernel's registration, and has the kernel look anew. False: there is no number
    /// to name it by (see [`super::parked::number_goes`]); the kernel is only made to look.
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
        // Where the program deletes it in this moment it is not there any more.
        if sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0).is_ok() {
            let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data);
        }
    } else {
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, data);
    }
}
