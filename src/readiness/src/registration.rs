//! Registrations that the program makes and changes by the kernel, those that the mirror does not
//! serve alone ([`super::parked`]), and the streams that come to them.

use super::interest_list::{Echo, EpollState};
use super::set::{Set, enter_set};
use super::shared;
use core::sync::atomic::Ordering;
use sluice_fabric::sys;
use sluice_sockets::demote::{self, Which};
use sluice_sockets::life;
use sluice_sockets::sock::Sock;
use sluice_stats::Reason;

impl Set {
    /// The kernel has accepted a registration of a tracked socket.
    pub(super) fn added(&'static self, fd: i32, sock: &'static Sock, wanted: (u32, u64)) {
        // In one step: what the control thread takes out meanwhile may be the socket's last
        // registration here.
        let entered = self.with(|state| self.enter(state, fd, sock, wanted));
        if self.holds(sock, entered == Some(true)) && sock.link().is_some() {
            self.adopt(sock, true);
        }
    }

    /// `EPOLL_CTL_ADD` of a connection that is on a link, or with ONESHOT, by the kernel and in the
    /// mirror in one step: a thread that waits has the kernel's word of it at once, and must find
    /// that of the link with it, or what that word uses up. `None`: in two, see [`Set::added`].
    ///
    /// # Safety
    /// `event` is a C caller's.
    pub(super) unsafe fn add(
        &'static self,
        (epfd, fd): (i32, i32),
        sock: &'static Sock,
        event: *mut libc::epoll_event,
    ) -> Option<Result<(), sys::Errno>> {
        // A thread that went straight to the kernel looks at this when it is back.
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

    /// False: the socket is in as many sets as it can be.
    fn enter(
        &'static self,
        state: &mut EpollState,
        fd: i32,
        sock: &'static Sock,
        (events, data): (u32, u64),
    ) -> bool {
        let enters = enter_set(sock, self);
        if enters {
            state.insert(sock, fd, events, data);
        }
        enters
    }

    /// A registration has been `entered`, or could not be: does the set serve the socket?
    fn holds(&self, sock: &'static Sock, entered: bool) -> bool {
        if !entered {
            life::give_up(sock, Reason::Limit);
            return false;
        }
        // The flag after the registration, since a thread that sets it then looks for
        // registrations.
        let is_elsewhere = self.is_used_elsewhere.load(Ordering::SeqCst);
        if is_elsewhere {
            life::give_up_to_read(sock, Reason::SetElsewhere);
        }
        !is_elsewhere
    }

    /// Why no stream is to be in the set, nor a bell for it: another process would see that.
    pub(super) fn keeps_to_tcp(&self) -> Option<Reason> {
        if shared::is_marked(self.number) {
            return Some(Reason::Shared);
        }
        let is_elsewhere = self.is_used_elsewhere.load(Ordering::SeqCst);
        is_elsewhere.then_some(Reason::SetElsewhere)
    }

    /// A registered socket has got a stream.
    pub fn adopt_stream(&'static self, sock: &'static Sock) {
        self.adopt(sock, false);
    }

    /// `asked`: by a registration, so that the program waits for an answer about what is there.
    fn adopt(&'static self, sock: &'static Sock, asked: bool) {
        let placed = self.with(|state| self.place_stream(state, sock, asked));
        self.placed(sock, placed.flatten().is_some(), asked);
    }

    /// Enters the stream with all registrations of its socket. `None`: the set cannot serve it.
    fn place_stream(
        &'static self,
        state: &mut EpollState,
        sock: &'static Sock,
        asked: bool,
    ) -> Option<()> {
        // A thread that takes it out then looks for sets, and this one is among them: it undoes
        // what is done here.
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
                    // Looks are noted from here on.
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

    /// A stream has been `placed`, or goes back to TCP.
    fn placed(&'static self, sock: &'static Sock, placed: bool, asked: bool) {
        if !placed {
            let reason = self.keeps_to_tcp().unwrap_or(Reason::Limit);
            demote::demote(sock, Which::Both, reason);
            return;
        }
        // Threads that sleep in the kernel's set since before look again.
        if self.sleepers.load(Ordering::SeqCst) != 0 || asked {
            self.tell();
        }
    }

    /// The kernel has accepted a change.
    pub(super) fn modified(
        &'static self,
        fd: i32,
        sock: &'static Sock,
        (events, data): (u32, u64),
    ) {
        let told = self.with(|state| renewed(state, fd, sock, (events, data)));
        if told == Some(true) {
            self.tell();
        }
    }

    /// `EPOLL_CTL_MOD`, by the kernel and in the mirror in one step: a thread that waits may have
    /// the event of a registration that is armed anew at once, and must not find it disarmed here;
    /// and one whose stream ends gives the kernel what the mirror has. `None`: in two, see
    /// [`Set::modified`].
    ///
    /// # Safety
    /// `event` is a C caller's.
    #[inline]
    pub(super) unsafe fn modify(
        &'static self,
        (epfd, fd): (i32, i32),
        sock: &'static Sock,
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

    /// `epoll_ctl` by the kernel, and what follows from what is `wanted` in the mirror, nothing
    /// after `EPOLL_CTL_DEL`, under one lock. `None`: this thread has it.
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

/// The kernel has accepted a change; whether a stream is to be looked at.
fn renewed(
    state: &mut EpollState,
    fd: i32,
    sock: &'static Sock,
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
