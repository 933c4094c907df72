//! Registrations that change in the mirror alone.
//!
//! An event loop that waits for "may write" and then for "may read" changes its registrations
//! several times for each request. While a stream is wholly on the link the kernel has nothing to
//! say of its socket but that TCP has stirred (bytes of a demotion, an end, an error). So the first
//! change *parks* the kernel's registration: edge-triggered, asking for exactly that, under data of
//! ours. From then on the program adds, changes and deletes in the mirror, without a system call.
//!
//! When TCP stirs, the stream goes back to it, or somebody but this set's own waits is to see the
//! kernel's registrations (a fork, a set that watches this one, a number that is closed while a dup
//! lives), the registration is *unparked*: the kernel gets what the program last asked for, and
//! looks anew, so that no event is lost. One that the program has deleted meanwhile (a *ghost*)
//! goes then, or once the peer's news show that it costs more than it saves.

use super::interest_list::{Echo, EpollState, Registration};
use super::set::{self, Set, leave_set};
use super::shared;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_int;
use sluice_fabric::sys;
use sluice_sockets::events::WRITABLE;
use sluice_sockets::sock::{SETS, Sock, State};
use sluice_sockets::verdict::Verdict;
use sluice_sockets::{events, life};
use sluice_stats::Reason;

const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// What TCP does under a stream that is wholly on the link: nothing, unless it stirs.
const STIRS: u32 =
    (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP) as u32 | libc::EPOLLET as u32;

/// What a registration may ask for to be served by the mirror alone. ONESHOT and EXCLUSIVE are
/// between the kernel and its waiters.
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

/// A ghost is looked at in vain once for what was known before it was deleted. A second time means
/// that the peer marks it, and wakes this side for nothing: it goes.
const VAIN_LOOKS: u8 = 2;

/// The upper half of the data of our own registrations. No program uses it but by a guess of 1 in
/// 2^31: it is no pointer, no descriptor, and not all ones.
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

/// Data of a doorbell's registration.
pub(super) fn bell_data() -> u64 {
    token(u32::MAX)
}

/// Of an event's data: `Some` if the registration is ours, with the place of a parked one, or one
/// beyond all places for a bell.
#[inline]
pub(super) fn ours(data: u64) -> Option<u32> {
    ((data >> 32) as u32 == prefix()).then_some(data as u32)
}

/// Has the kernel nothing to say of this socket?
fn is_wholly_on_link(sock: &'static Sock) -> bool {
    sock.tx.state() == State::Link && events::reads_ring(sock)
}

impl Set {
    /// Serves `epoll_ctl(op, fd)` in the mirror; `None`: the kernel has to. What is `wanted`: see
    /// [`ctl`].
    ///
    /// [`ctl`]: super::epoll_ctl::ctl
    pub(super) fn ctl_in_mirror(
        &'static self,
        op: c_int,
        fd: c_int,
        sock: &'static Sock,
        wanted: Option<(u32, u64)>,
    ) -> Option<Verdict> {
        if self.adopted.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // The kernel's to refuse; but a ghost is none of its business.
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
            // What is there is told at once, as the kernel would.
            state.queue_asked(at);
            Some(true)
        })??;
        if renewed {
            self.tell();
        }
        Some(Verdict::Done(0))
    }

    /// Does nobody but this set's own waiters see the kernel's registrations?
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

    /// The kernel's registration is the program's again, and the kernel looks anew.
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

    /// A parked registration has come up in the ready list: does it stay parked?
    pub(super) fn look_at_parked(&self, state: &mut EpollState, at: u32, sock: &'static Sock) {
        let Some(reg) = state.reg(at) else { return };
        reg.vain += u8::from(reg.ghost);
        if reg.vain == VAIN_LOOKS || !is_wholly_on_link(sock) {
            self.unpark(state, at);
        }
    }

    /// Unparks what is registered of `sock`.
    pub(super) fn unpark_sock(&self, state: &mut EpollState, sock: &'static Sock) {
        let all: Vec<u32> = state.of_sock(sock).collect();
        for at in all {
            self.unpark(state, at);
        }
    }

    /// What is registered of `sock` under the number `fd`, which goes: the kernel gets what it is
    /// to have from now on. Whether it may have to be changed once more while the socket has a
    /// stream.
    fn settle_number(
        &self,
        state: &mut EpollState,
        sock: &'static Sock,
        fd: c_int,
    ) -> Option<bool> {
        let at = state.find(fd, sock)?;
        self.unpark(state, at);
        // A ghost is gone with that.
        let reg = state.reg(at).filter(|reg| reg.sock.is_some())?;
        if reg.twin_armed && !shared::is_marked(self.number) {
            reg.change(self.fd(), ONESHOT);
        }
        Some(reg.events & (ET | ONESHOT | WRITABLE) != 0)
    }

    /// The same where the stream is on its way back to TCP: OUT is the kernel's again.
    fn put_number_back(&self, state: &mut EpollState, sock: &'static Sock, fd: c_int) {
        if sock.tx.state() != State::Link
            && let Some(at) = state.find(fd, sock)
            && let Some(reg) = state.reg(at).filter(|reg| reg.out_removed)
        {
            self.put_back(reg);
        }
    }

    /// Others are to see the kernel's registrations as the program made them, from now on.
    pub(super) fn shows_itself(&self) {
        // Looked at first: a write would cost a copied page at each fork.
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

/// The number `fd` of `sock` is about to be closed while a dup lives, by which the registrations
/// under it live on: from then on it names nothing by which the kernel could be told, or another
/// file. So what may have to change goes back to TCP first. A registration for what is there to
/// read, as long as it is there, never has to.
///
/// Before the number is taken out of the table.
pub fn number_goes(sock: &'static Sock, fd: c_int) {
    let sets = || (0..SETS).filter_map(|i| set::at(sock, i));
    let mut needs = false;
    // What lies in a set of the parent's is as the kernel is to have it since the fork.
    for set in sets().filter(|set| !set.inherited.load(Ordering::Relaxed)) {
        let asks = set.with(|state| set.settle_number(state, sock, fd));
        needs |= asks.flatten() == Some(true);
    }
    if !needs {
        return;
    }
    let reason = Reason::RegisteredClosed;
    if sock.rx.state() == State::Inherited || sock.tx.state() == State::Inherited {
        // The parent's stream: the child's close is none of its business.
        sock.pin(reason);
        return;
    }
    life::goes_back(sock, reason);
    for set in sets() {
        set.with(|state| set.put_number_back(state, sock, fd));
    }
}

/// The number `fd` is out of the table, and still the kernel's: what another thread has parked
/// under it since is unparked, and a thread that looked it up there before and is about to use it
/// is waited for.
pub fn number_gone(sock: &'static Sock, fd: c_int) {
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

/// Before a fork: the child has the same kernel's sets, and knows nothing of this mirror. But it
/// knows our own registrations, also of bells that come later.
pub(super) fn before_fork() {
    set::for_all(Set::shows_itself);
    if set::any() {
        let _ = prefix();
    }
}
