//! Parked registrations: they change in the mirror alone, without a system call.
//!
//! An event loop that waits for "may write" and then for "may read" changes its registrations
//! several times for each request. While both directions of a stream are on a link, the kernel has
//! only one thing to say of its socket: something happened on TCP (bytes of a demotion, a FIN, an
//! error). So the first change *parks* the kernel's registration: it becomes edge-triggered, asks
//! for exactly that, and gets data of the library's. From then on the program's calls of
//! `epoll_ctl` change the mirror only.
//!
//! A registration is *unparked* when something happens on TCP, when the stream goes back to TCP,
//! and before anything but this set's own waits sees the kernel's set: a fork, a set that watches
//! this one, a descriptor that is closed while a dup lives. The kernel then gets what the program
//! last asked for and looks anew, so that no event is lost.
//!
//! A parked registration that the program has deleted is a *ghost*. It is deleted from the kernel's
//! set when it is unparked, or when the peer marks its stream again.

use super::interest_list::{Echo, EpollState, Registration};
use super::set::{self, Set, leave_set};
use super::shared;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_int;
use sluice_fabric::sys;
use sluice_sockets::events::{self, WRITABLE};
use sluice_sockets::give_up;
use sluice_sockets::inherited::is_inherited;
use sluice_sockets::socket::{SETS, Socket, State};
use sluice_sockets::verdict::Verdict;
use sluice_stats::Reason;

const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// What a parked registration asks the kernel for: anything that happens on TCP.
const STIRS: u32 =
    (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP) as u32 | libc::EPOLLET as u32;

/// The events that a parked registration may ask for. ONESHOT and EXCLUSIVE are not among them:
/// the kernel decides which waiter gets their event.
const SERVED: u32 = (libc::EPOLLIN
    | libc::EPOLLPRI
    | libc::EPOLLOUT
    | libc::EPOLLERR
    | libc::EPOLLHUP
    | libc::EPOLLRDNORM
    | libc::EPOLLRDBAND
    | libc::EPOLLWRNORM
    | libc::EPOLLWRBAND
    | libc::EPOLLMSG
    | libc::EPOLLRDHUP) as u32
    | libc::EPOLLET as u32;

/// A ghost comes up in the ready list once for news from before it was deleted. A second time means
/// that the peer marks it and wakes this side for nothing, so it is unparked.
const VAIN_LOOKS: u8 = 2;

/// The upper half of the data of the library's own registrations, drawn at random. It is no
/// pointer, no descriptor and not all ones, so a program uses the same with a chance of 1 in 2^31.
fn prefix() -> u32 {
    static PREFIX: AtomicU32 = AtomicU32::new(0);
    let known = PREFIX.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut bytes = [0u8; 4];
    let _ = sys::random(&mut bytes);
    let drawn = (u32::from_ne_bytes(bytes) | 1 << 31) & !1;
    match PREFIX.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => drawn,
        Err(other) => other,
    }
}

fn token(low: u32) -> u64 {
    u64::from(prefix()) << 32 | u64::from(low)
}

/// The data of every doorbell's registration.
pub(super) fn bell_data() -> u64 {
    token(u32::MAX)
}

/// `Some` if an event with this data is of the library's own registrations: the place of a parked
/// one, or for a doorbell a number beyond all places.
#[inline]
pub(super) fn ours(data: u64) -> Option<u32> {
    ((data >> 32) as u32 == prefix()).then_some(data as u32)
}

/// Are both directions on the link, so that the kernel has nothing to say of the socket?
fn is_wholly_on_link(sock: &'static Socket) -> bool {
    sock.tx.state() == State::Link && events::reads_ring(sock)
}

impl Set {
    /// Serves `epoll_ctl(op, fd)` in the mirror alone. `None`: the kernel has to serve it. `wanted`
    /// is as in [`ctl`].
    ///
    /// [`ctl`]: super::epoll_ctl::ctl
    pub(super) fn ctl_in_mirror(
        &'static self,
        op: c_int,
        fd: c_int,
        sock: &'static Socket,
        wanted: Option<(u32, u64)>,
    ) -> Option<Verdict> {
        if self.adopted.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // Without a readable event the kernel must refuse the call, so a ghost must be gone there.
        let wanted = wanted.unwrap_or((u32::MAX, 0));
        let renewed = self.with(|state| {
            let at = state.find(fd, sock)?;
            let allowed = self.may_park();
            let reg = state.reg(at)?;
            let served = (wanted.0 | reg.events) & !SERVED == 0
                && reg.ghost == (op == libc::EPOLL_CTL_ADD)
                && reg.adopted
                && allowed
                && is_wholly_on_link(sock)
                && (reg.parked || self.park(reg, at));
            if !served {
                if reg.ghost {
                    self.unpark(state, at);
                }
                return None;
            }
            if op == libc::EPOLL_CTL_DEL {
                state.bury(at);
                return Some(false);
            }
            state.renew(at, wanted.0, wanted.1);
            // The kernel, too, tells at once of what is ready.
            state.queue_asked(at);
            Some(true)
        })??;
        if renewed {
            self.tell();
        }
        Some(Verdict::Done(0))
    }

    /// Do only waits of this process on this set see the kernel's registrations?
    fn may_park(&self) -> bool {
        !self.seen.load(Ordering::SeqCst)
            && !self.nested.load(Ordering::Relaxed)
            && !shared::is_marked(self.number)
    }

    fn park(&self, reg: &mut Registration, at: u32) -> bool {
        let (set, events) = (self.fd(), STIRS);
        reg.parked = reg.is_named()
            && sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, reg.fd, events, token(at)).is_ok();
        if reg.parked {
            reg.echo = Echo::None;
            reg.out_removed = false;
        }
        reg.parked
    }

    /// Gives the kernel what the program last asked for, which makes the kernel look anew. A ghost
    /// is deleted.
    pub(super) fn unpark(&self, state: &mut EpollState, at: u32) {
        let Some(reg) = state.reg(at).filter(|r| r.parked) else {
            return;
        };
        reg.parked = false;
        if !reg.ghost {
            reg.echo = Echo::Due;
            reg.change(self.fd(), reg.events);
            return;
        }
        if reg.is_named() {
            let _ = sys::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, reg.fd, 0, 0);
        }
        if let Some(sock) = reg.sock
            && self.drop_reg(state, at, sock)
        {
            leave_set(sock, self);
        }
    }

    /// A parked registration has come up in the ready list. Unparks it if its stream is no longer
    /// wholly on the link, or if it is a ghost once too often.
    pub(super) fn look_at_parked(&self, state: &mut EpollState, at: u32, sock: &'static Socket) {
        let Some(reg) = state.reg(at) else { return };
        reg.vain += u8::from(reg.ghost);
        if reg.vain == VAIN_LOOKS || !is_wholly_on_link(sock) {
            self.unpark(state, at);
        }
    }

    /// Unparks all registrations of `sock`.
    pub(super) fn unpark_sock(&self, state: &mut EpollState, sock: &'static Socket) {
        let all: Vec<u32> = state.of_sock(sock).collect();
        for at in all {
            self.unpark(state, at);
        }
    }

    /// Gives the kernel its final registration of `sock` under the number `fd`, which is about to
    /// be closed. True: it may have to be changed once more as long as the socket has a stream.
    fn settle_number(
        &self,
        state: &mut EpollState,
        sock: &'static Socket,
        fd: c_int,
    ) -> Option<bool> {
        let at = state.find(fd, sock)?;
        self.unpark(state, at);
        // A ghost is gone now.
        let reg = state.reg(at).filter(|reg| reg.sock.is_some())?;
        if reg.twin_armed && !shared::is_marked(self.number) {
            reg.change(self.fd(), ONESHOT);
        }
        Some(reg.events & (ET | ONESHOT | WRITABLE) != 0)
    }

    /// As [`Set::settle_number`] where the stream is on its way back to TCP: POLLOUT is the
    /// kernel's to tell again.
    fn put_number_back(&self, state: &mut EpollState, sock: &'static Socket, fd: c_int) {
        if sock.tx.state() != State::Link
            && let Some(at) = state.find(fd, sock)
            && let Some(reg) = state.reg(at).filter(|reg| reg.out_removed)
        {
            self.put_back(reg);
        }
    }

    /// From now on nothing is parked: another process or set sees the kernel's registrations.
    pub(super) fn shows_itself(&self) {
        // Read before the swap: a write would make the next fork copy the page.
        if self.seen.load(Ordering::SeqCst)
            || self.seen.swap(true, Ordering::SeqCst)
            || !self.was_entered()
        {
            return;
        }
        self.with(|state| {
            for at in 0..state.places() {
                self.unpark(state, at);
            }
        });
    }
}

/// The descriptor `fd` of `sock` is about to be closed while a dup lives.
///
/// Registrations under that number then live on in the kernel, but no `epoll_ctl` can name them any
/// more. So a socket whose registration may have to change goes back to TCP first. A
/// level-triggered one for input alone never has to change.
///
/// Called before the number is taken out of the table.
pub fn number_goes(sock: &'static Socket, fd: c_int) {
    let sets = || (0..SETS).filter_map(|i| set::at(sock, i));
    let mut needs = false;
    // In an inherited set the kernel has had the program's registrations since the fork.
    for set in sets().filter(|set| !set.inherited.load(Ordering::Relaxed)) {
        let asks = set.with(|state| set.settle_number(state, sock, fd));
        needs |= asks.flatten() == Some(true);
    }
    if !needs {
        return;
    }
    let reason = Reason::RegisteredClosed;
    if is_inherited(sock) {
        // The stream is the parent's, which the child's close must not demote.
        sock.pin(reason);
        return;
    }
    give_up::begin(sock, reason);
    for set in sets() {
        set.with(|state| set.put_number_back(state, sock, fd));
    }
}

/// The descriptor `fd` is out of the table, and not yet closed. Unparks what another thread has
/// parked under the number since [`number_goes`]. The set's lock also waits for a thread that
/// looked the number up before.
pub fn number_gone(sock: &'static Socket, fd: c_int) {
    for set in (0..SETS).filter_map(|i| set::at(sock, i)) {
        set.with(|state| {
            let at = state.find(fd, sock)?;
            state.reg(at)?.goes = true;
            set.unpark(state, at);
            state.reg(at)?.goes = false;
            Some(())
        });
    }
}

/// Before a fork: unparks everything, since the child shares the kernel's sets and not the mirrors.
/// The prefix is drawn first, so that the child knows the parent's doorbells by it, also later
/// ones.
pub(super) fn before_fork() {
    set::for_all(Set::shows_itself);
    if set::any() {
        let _ = prefix();
    }
}
