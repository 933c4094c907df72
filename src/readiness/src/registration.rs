//! Registrations that are made and changed in the kernel's set and in the mirror alike, and the
//! streams that registered sockets get later. Changes in the mirror alone: [`super::parked`].

use super::interest_list::{Echo, EpollState};
use super::set::{Set, enter_set};
use super::shared;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_sockets::demote::{self, Which};
use sluice_sockets::give_up;
use sluice_sockets::socket::Socket;
use sluice_stats::Reason;

impl Set {
    /// The kernel has accepted a registration of a tracked socket.
    pub(super) fn added(&'static self, fd: i32, sock: &'static Socket, wanted: (u32, u64)) {
        // In one step: the control thread may take the socket's last registration out meanwhile,
        // and with it the socket's note of this set.
        let entered = self.with(|state| self.enter(state, fd, sock, wanted));
        if self.holds(sock, entered == Some(true)) && sock.link().is_some() {
            self.adopt(sock, true);
        }
    }

    /// `EPOLL_CTL_ADD` in the kernel and in the mirror under one lock, for a connection that is on
    /// a link, or with ONESHOT. A waiting thread gets the kernel's event at once, and must find the
    /// registration in the mirror then. `None`: not possible here, see [`Set::added`].
    ///
    /// # Safety
    /// `event` is a C caller's.
    pub(super) unsafe fn add(
        &'static self,
        (epfd, fd): (i32, i32),
        sock: &'static Socket,
        event: *mut libc::epoll_event,
    ) -> Option<Result<(), sys::Errno>> {
        // A thread that went straight to the kernel asks for this when it has returned.
        self.no_longer_plain();
        // SAFETY: the caller's.
        let done = unsafe {
            self.ctl_at_once((epfd, libc::EPOLL_CTL_ADD, fd), event, |state, wanted| {
                let entered = self.enter(state, fd, sock, wanted);
                let placed = entered && self.place_stream(state, sock, true).is_some();
                (entered, placed)
            })
        }?;
        Some(done.map(|(entered, placed)| {
            if self.holds(sock, entered) {
                self.placed(sock, placed, true);
            }
        }))
    }

    /// Enters a registration in the mirror. False: the socket is in as many sets as it can note.
    fn enter(
        &'static self,
        state: &mut EpollState,
        fd: i32,
        sock: &'static Socket,
        (events, data): (u32, u64),
    ) -> bool {
        let enters = enter_set(sock, self);
        if enters {
            state.insert(sock, fd, events, data);
        }
        enters
    }

    /// Does the set serve a socket whose registration has been `entered`, or could not be? If not,
    /// the socket stays on TCP.
    fn holds(&self, sock: &'static Socket, entered: bool) -> bool {
        if !entered {
            give_up::finish(sock, Reason::Limit);
            return false;
        }
        // Read after the registration is entered: a thread that sets the flag then walks over the
        // registrations, so one of the two sees the other.
        let is_elsewhere = self.is_used_elsewhere.load(Ordering::SeqCst);
        if is_elsewhere {
            give_up::to_read(sock, Reason::SetElsewhere);
        }
        !is_elsewhere
    }

    /// Why no stream may be in the set, if so: another process, or a wait that no hook serves,
    /// would see the set's doorbells.
    pub(super) fn keeps_to_tcp(&self) -> Option<Reason> {
        if shared::is_marked(self.number) {
            return Some(Reason::Shared);
        }
        let is_elsewhere = self.is_used_elsewhere.load(Ordering::SeqCst);
        is_elsewhere.then_some(Reason::SetElsewhere)
    }

    /// A registered socket has got a stream.
    pub fn adopt_stream(&'static self, sock: &'static Socket) {
        self.adopt(sock, false);
    }

    /// `asked`: by a new registration, so that the program must be told of what is ready already.
    fn adopt(&'static self, sock: &'static Socket, asked: bool) {
        let placed = self.with(|state| self.place_stream(state, sock, asked));
        self.placed(sock, placed.flatten().is_some(), asked);
    }

    /// Marks all registrations of the socket as having a stream, and enters the set among the
    /// stream's waiters. `None`: the set cannot serve the stream.
    fn place_stream(
        &'static self,
        state: &mut EpollState,
        sock: &'static Socket,
        asked: bool,
    ) -> Option<()> {
        // A thread that takes the socket off its link then looks at the socket's sets. This one is
        // noted there, so that thread undoes what is done here.
        let Some(link) = sock.link() else {
            return Some(());
        };
        if self.keeps_to_tcp().is_some() {
            return None;
        }
        let index = sock.index.load(Ordering::Relaxed);
        let at = self.place(state, link)?;
        let all: Vec<u32> = state.of_sock(sock).collect();
        for i in all {
            if state.set_adopted(i, true) {
                if self.adopted.fetch_add(1, Ordering::SeqCst) == 0 {
                    // The time of the last look at the kernel is noted from here on.
                    self.looked_ns.store(0, Ordering::Relaxed);
                }
                if asked {
                    state.queue_asked(i);
                    if let Some(reg) = state.reg(i) {
                        reg.echo = Echo::Due;
                    }
                }
            }
        }
        let slot = state.links.get(at)?.slot;
        state.point(link, index, Some(sock));
        let (_, incoming) = link.directions(link.stream(index)?);
        incoming
            .rx_wishes
            .waiters
            .fetch_or(1 << slot, Ordering::SeqCst);
        Some(())
    }

    /// After [`Set::place_stream`]: tells sleepers of a stream that was `placed`, and demotes one
    /// that could not be.
    fn placed(&'static self, sock: &'static Socket, placed: bool, asked: bool) {
        if !placed {
            let reason = self.keeps_to_tcp().unwrap_or(Reason::Limit);
            demote::demote(sock, Which::Both, reason);
            return;
        }
        // Threads that went to sleep before the stream came have no doorbell for it yet.
        if self.sleepers.load(Ordering::SeqCst) != 0 || asked {
            self.tell();
        }
    }

    /// The kernel has accepted an `EPOLL_CTL_MOD`.
    pub(super) fn modified(
        &'static self,
        fd: i32,
        sock: &'static Socket,
        (events, data): (u32, u64),
    ) {
        let told = self.with(|state| renewed(state, fd, sock, (events, data)));
        if told == Some(true) {
            self.tell();
        }
    }

    /// `EPOLL_CTL_MOD` in the kernel and in the mirror under one lock. A waiting thread may get the
    /// event of a ONESHOT registration at once, and must not find it disarmed in the mirror; and
    /// the end of a stream gives the kernel what the mirror has. `None`: not possible here, see
    /// [`Set::modified`].
    ///
    /// # Safety
    /// `event` is a C caller's.
    #[inline]
    pub(super) unsafe fn modify(
        &'static self,
        (epfd, fd): (i32, i32),
        sock: &'static Socket,
        event: *mut libc::epoll_event,
    ) -> Option<Result<(), sys::Errno>> {
        // SAFETY: the caller's.
        let told = unsafe {
            self.ctl_at_once((epfd, libc::EPOLL_CTL_MOD, fd), event, |state, wanted| {
                renewed(state, fd, sock, wanted)
            })
        }?;
        if told == Ok(true) {
            self.tell();
        }
        Some(told.map(|_| ()))
    }

    /// Under the set's lock: `epoll_ctl` in the kernel, and then `follow` with the events and data
    /// that the program asked for (zeroes for `EPOLL_CTL_DEL`). `None`: a signal handler that
    /// interrupted this thread while it held the lock.
    ///
    /// # Safety
    /// `event` is a C caller's.
    #[inline(never)]
    pub(super) unsafe fn ctl_at_once<R>(
        &self,
        (epfd, op, fd): (i32, i32, i32),
        event: *mut libc::epoll_event,
        follow: impl FnOnce(&mut EpollState, (u32, u64)) -> R,
    ) -> Option<Result<R, sys::Errno>> {
        self.with(|state| {
            // SAFETY: the caller's.
            unsafe { sys::epoll_ctl_raw(epfd, op, fd, event) }?;
            let wanted = if op == libc::EPOLL_CTL_DEL {
                (0, 0)
            } else {
                // SAFETY: the kernel has read it.
                unsafe { ((*event).events, (*event).u64) }
            };
            Ok(follow(state, wanted))
        })
    }
}

/// Makes an accepted `EPOLL_CTL_MOD` in the mirror. True: the socket's stream is to be looked at.
fn renewed(
    state: &mut EpollState,
    fd: i32,
    sock: &'static Socket,
    (events, data): (u32, u64),
) -> bool {
    let Some(at) = state.find(fd, sock) else {
        return false;
    };
    state.renew(at, events, data);
    let Some(reg) = state.reg(at) else {
        return false;
    };
    reg.parked = false;
    reg.echo = Echo::Due;
    let adopted = reg.adopted;
    if adopted {
        state.queue_asked(at);
    }
    adopted
}
