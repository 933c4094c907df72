//! What a socket does with a stream over a wire: the switch, and the way back to TCP.
//!
//! Reading and writing are as ever: the wire's pump plays the peer. What differs is what decides.
//! Within a host the two words do; here [`Transit`](sluice_stream::Transit) does, which both halves
//! of the socket ask, and the words only stop the program's threads:
//!
//! ```text
//!   rx  Proved ──peer's N──► Draining ──► Link ──record, all read──► Returning ──► Plain
//!   tx  Proved ──our N─────► Link (held by the pump until the switch is through)
//!                            Link ──left──► Resending (the record first) ──► Plain
//! ```
//!
//! Locks: a socket's rx, then its tx, then the wire's, which is a leaf.

use super::Before;
use super::STARVE_NS;
use super::handing::{claim, finish_within, leaving_of};
use super::hearing::{hear_tcp, hears, part_of, reads_link};
use crate::demote::{self, Resent};
use crate::sock::{Event, Sock, State};
use crate::upgrade::{self, Switch};
use crate::{jobs, options, recv, reset, sock, tcp, wait, wake};
use core::sync::atomic::Ordering;
use sluice_fabric::layout::Direction;
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_stats::Reason;
use sluice_stream::Mode;
use sluice_stream::pump::{Pump, Stepped};
use sluice_stream::record::{Leave, Out, RECORD_LEN};
use sluice_transport::verbs;
use sluice_transport::verbs::parts::Parts;
use sluice_transport::verbs::wire::{Lost, Wire};

/// Does the socket's stream go to another host?
#[inline]
pub fn is_remote(sock: &Sock) -> bool {
    sock.link().is_some_and(verbs::is_to_another_host)
}

/// The queue pair that carries a socket's stream to another host, and the stream's number there.
pub fn of(sock: &Sock) -> Option<(&'static Wire, u16)> {
    let link = sock.link().filter(|link| !link.is_foreign())?;
    Some((
        verbs::wire_of(link)?,
        sock.index.load(Ordering::Relaxed) as u16,
    ))
}

/// Under the tx lock: does a buffer of the peer's wait for what is sent?
pub fn goes_direct(sock: &Sock) -> bool {
    let Some((wire, stream)) = of(sock).filter(|_| sluice_transport::verbs::mode::is_on()) else {
        return false;
    };
    wire.inside(|inner| inner.pump.has_fresh(stream)) == Some(true)
}

/// A send has done all that it had to, but what it wrote to a buffer of the peer's is to be told
/// when it is there: waits for that, so that it takes nothing more of this process. Not for long: a
/// peer that is stopped answers all the same, its device does.
///
/// Where all goes directly, and the call `waits` if it must: also until the reader has lent a
/// buffer for it, or if it does not for a while, until TCP has it.
pub fn land(sock: &'static Sock, waits: impl Fn() -> bool) {
    const LAND_NS: u64 = 5_000_000;
    let Some((wire, stream)) = of(sock).filter(|_| sluice_transport::verbs::mode::is_on()) else {
        return;
    };
    if sluice_transport::verbs::mode::mode() == Mode::Direct && waits() {
        await_taker(sock, wire, stream);
    }
    yield_while(wire, LAND_NS, || {
        wire.inside(|inner| inner.pump.is_writing(stream)) == Some(true)
    });
}

/// Drives the wire, and lets others run, while `goes_on`, at most for so many ns.
fn yield_while(wire: &Wire, ns: u64, goes_on: impl Fn() -> bool) {
    let mut until = 0;
    while goes_on() {
        let now = sys::now_ns();
        if until == 0 {
            until = now + ns;
        } else if now >= until {
            return;
        }
        wire.drive();
        sys::sched_yield();
    }
}

#[cold]
fn await_taker(sock: &'static Sock, wire: &Wire, stream: u16) {
    // Not for long: a reader that is stopped has nothing to say.
    const WORD_NS: u64 = 200_000_000;
    let generation = sock.generation.load(Ordering::Acquire);
    let waits = || {
        wire.inside(|inner| inner.pump.awaits_buffer(stream))
            .flatten()
    };
    let starves = |at| {
        let starves = |inner: &mut Parts| inner.pump.starved().any(|of| of == (stream, at));
        wire.inside(starves) == Some(true)
    };
    wire.drive();
    let [there, not_yet] = STARVE_NS;
    while let Some(at) = waits() {
        let patience = if wire.has_lane() { there } else { not_yet };
        let Ok(section) = sock.tx.lock.enter() else {
            return;
        };
        if sock.tx.state() != State::Link {
            drop(section);
            break;
        }
        wait::for_taker(section, sock, sys::now_ns() + patience, || {
            waits() != Some(at)
        });
        if sock.generation.load(Ordering::Acquire) != generation {
            return;
        }
        if starves(at) {
            sock.pin(Reason::DirectNoAdvert);
            demote(sock, Reason::DirectNoAdvert);
            break;
        }
    }
    finish_within(sock, WORD_NS);
}

/// The connection is about to be reset, and what was sent has gone by another way, which the reset
/// may overtake: waits until the peer's device has what was posted. Not for long: a peer's device
/// answers also for one that is stopped.
pub fn deliver(sock: &Sock) {
    const DELIVER_NS: u64 = 20_000_000;
    let Some((wire, _)) = of(sock) else { return };
    wire.drive();
    let done = wire.inside(|inner| {
        inner.pump.probe();
        inner.complete + inner.pump.outstanding() as u64
    });
    yield_while(wire, DELIVER_NS, || {
        wire.inside(|inner| Some(inner.complete) < done) == Some(true) && wire.is_lost().is_none()
    });
}

/// The program wants more than the `unread` bytes of the ring, of `ring_len`: the peer gets credit
/// for all that was read. It may wait for that from two thirds of the ring on, of which half may
/// have been read without a word.
#[inline]
pub fn wants_more(sock: &Sock, unread: u64, ring_len: u64) {
    const LEAST: u64 = 32 << 10;
    if unread > LEAST.min(ring_len / 8) && is_remote(sock) {
        flush(sock);
    }
}

#[cold]
fn flush(sock: &Sock) {
    if let Some((wire, stream)) = of(sock) {
        wire.with_stream(stream, |pump| pump.flush(stream));
    }
}

/// Under the tx lock, in state Proved or Link: the stream is given up, and what is not sent goes
/// back to TCP.
pub fn settle_tx(sock: &'static Sock, reason: Reason) -> Resent {
    let (Some((wire, stream)), Some(dir)) = (of(sock), sock.tx.dir()) else {
        return Resent::All;
    };
    // What was read is certain while nobody reads.
    let how = leaving_of(sock, reason);
    let needs_still = how.goes_on();
    let still = if needs_still {
        sock.rx.lock.try_enter()
    } else {
        None
    };
    let how = if needs_still && still.is_none() {
        Leave::Shut
    } else {
        how
    };
    leave(sock, wire, stream, how);
    drop(still);
    settle(sock, dir)
}

/// Under the tx lock: nothing more is put into the ring.
fn settle(sock: &'static Sock, dir: &Direction) -> Resent {
    dir.tx.tail.flag();
    // What the ring holds beyond what the record will tell of.
    sock.staged.stage(sock.fd.load(Ordering::Relaxed));
    sock.tx.state.on(Event::Sealed);
    if let Some(link) = sock.link() {
        let index = sock.index.load(Ordering::Relaxed);
        wake::own_threads(link, dir.tx_wishes.waiters.load(Ordering::SeqCst), index);
    }
    demote::resend(sock)
}

fn leave(sock: &Sock, wire: &Wire, stream: u16, how: Leave) {
    if how == Leave::Hand {
        sock.handed.store(true, Ordering::Relaxed);
    }
    // What has come by now counts as received.
    wire.drive();
    wire.with_stream(stream, |pump| {
        if let Some(transit) = pump.transit(stream) {
            transit.leave(how);
        }
        pump.settle(stream);
    });
}

/// Both directions are shut down: the peer's record would meet a socket that answers by a reset.
pub fn wants_no_answer(sock: &'static Sock) {
    if let Some((wire, stream)) = of(sock) {
        leave(sock, wire, stream, Leave::Close);
    }
}

/// The stream is given up. False: it is not, since this is a handler that interrupted a read of
/// this thread's.
pub fn demote(sock: &'static Sock, reason: Reason) -> bool {
    let Ok(_rx) = sock.rx.lock.enter() else {
        return false;
    };
    if let Ok(_tx) = sock.tx.lock.enter() {
        if let Some((wire, stream)) = of(sock) {
            demote::count(sock, reason);
            leave(sock, wire, stream, leaving_of(sock, reason));
            follow_tx_locked(sock, reason);
            go_back(sock, wire, stream);
        } else {
            claim(sock, &sock.tx);
            claim(sock, &sock.rx);
        }
    }
    true
}

/// Under the rx lock, in any state but Plain: the stream is given up. What the link has brought is
/// still read.
pub fn settle_rx(sock: &'static Sock, reason: Reason) {
    let Some((wire, stream)) = of(sock) else {
        return;
    };
    leave(sock, wire, stream, leaving_of(sock, reason));
    go_back(sock, wire, stream);
    // The other half is to follow.
    jobs::advance(sock);
}

/// Under the tx lock, in state Resending: writes the record, if one is due.
pub fn before_resend(sock: &'static Sock) -> Before {
    let Some((wire, stream)) = of(sock) else {
        return Before::Over;
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    let left = wire.with(|pump| pump.transit(stream).is_none_or(|t| t.is_leaving()));
    if left == Some(false) {
        // A handler that interrupted this thread's own driving has given the stream up.
        leave(sock, wire, stream, Leave::Shut);
    }
    loop {
        let now = wire.with(|pump| {
            let mut record = [0u8; RECORD_LEN];
            let rest = pump.record(stream).map_or(0, |rest| {
                for (to, from) in record.iter_mut().zip(rest) {
                    *to = *from;
                }
                rest.len()
            });
            let transit = pump.transit(stream)?;
            let dead = transit.is_dead().is_some();
            if rest == 0 && !dead && matches!(transit.out(), Out::Tcp(_)) {
                transit.on_tcp_write();
            }
            Some((record, rest, transit.out(), dead))
        });
        let Some(Some((record, rest, out, dead))) = now else {
            return if wire.is_interrupted() {
                Before::Held
            } else {
                Before::Over
            };
        };
        if dead {
            return Before::Over;
        }
        if rest == 0 {
            return match out {
                Out::Tcp(from) => Before::Ready(from.value()),
                Out::Link | Out::Held => Before::Held,
            };
        }
        if sys::has_error(fd) {
            // It is the program's to see, and a send would take it.
            return Before::Over;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: bytes of ours.
        match unsafe { sys::send(fd, record.as_ptr(), rest, flags) } {
            Ok(n) => {
                sock.tx.add_kernel_bytes(n as u64);
                wire.with(|pump| pump.on_record_written(stream, n));
                options::push_out(sock, fd);
            }
            Err(libc::EAGAIN) => return Before::Full,
            Err(libc::EINTR) => {}
            Err(_) => return Before::Over,
        }
    }
}

/// Under both locks or the rx lock: when all of the link's bytes are read and TCP goes on, it is
/// TCP's turn.
pub fn go_back(sock: &'static Sock, wire: &Wire, stream: u16) -> bool {
    let Some(dir) = sock.rx.dir() else {
        return false;
    };
    let now = wire.with_stream(stream, |pump| {
        let reset = pump.reset(stream);
        let transit = pump.transit(stream)?;
        let open = transit.tcp_room() == u64::MAX && transit.is_over();
        let dead = transit.is_dead().is_some();
        Some((open, dead, transit.owed(), reset))
    });
    let Some(Some((open, dead, owed, reset))) = now else {
        return false;
    };
    if let Some(reason) = reset {
        sluice_runtime::config::log(
            sluice_runtime::config::Level::Info,
            format_args!("fd {} reset: {reason:?}", sock.fd.load(Ordering::Relaxed)),
        );
        reset::make_hard(sock);
        jobs::advance(sock);
    }
    let unread = dir.tx.tail.read().offset != sock.rx.at.load(Ordering::Relaxed);
    let drained = sock.rx.state() != State::Link || !unread;
    // What others read is not counted here.
    let settled = owed == 0 || sock.handed.load(Ordering::Relaxed);
    if open && sock.has_shut_both() && may_cross(sock, wire, stream) {
        return false;
    }
    if dead && drained || open && settled {
        if dead {
            // Nothing that TCP still has is the program's: a part of a record, at most.
            reset::drop_tcp(sock.fd.load(Ordering::Relaxed));
        }
        finish_rx(sock);
        return true;
    }
    if open && sock.rx.state() != State::Returning {
        dir.rx.head.flag();
        options::release_low(sock);
        let from = sock.rx.kernel_bytes() + owed;
        sock.rx.from.store(from, Ordering::Relaxed);
        sock.rx.state.on(Event::Returns);
        tell_readers(sock);
        return true;
    }
    false
}

/// Wakes threads that wait for bytes: the kernel has them from now on, or soon.
fn tell_readers(sock: &'static Sock) {
    if let (Some(dir), Some(link)) = (sock.rx.dir(), sock.link()) {
        let waiters = dir.rx_wishes.waiters.load(Ordering::SeqCst);
        wake::own_threads(link, waiters, sock.index.load(Ordering::Relaxed));
    }
}

fn finish_rx(sock: &'static Sock) {
    if let Some(dir) = sock.rx.dir() {
        // A thread about to sleep for the link's bytes sees it.
        dir.rx.head.flag();
    }
    options::release_low(sock);
    sock.rx.state.on(Event::AllRead);
    tell_readers(sock);
    sock.rx.set_dir(None);
    sock.conn().rx.holds_none();
    demote::leave(sock);
    if sock.lingers.load(Ordering::Relaxed) {
        jobs::bury(sock);
    }
}

/// Why a stream that this end did not leave is on its way back.
pub fn given_up(wire: &Wire) -> Reason {
    match wire.is_lost() {
        None => Reason::PeerDemoted,
        Some(Lost::Peer(_)) => Reason::PeerHostile,
        Some(_) => Reason::LinkLost,
    }
}

/// Under the rx lock: the stream is on its way back. So is what is written.
pub fn follow_tx(sock: &'static Sock, reason: Reason) {
    if let Ok(_section) = sock.tx.lock.enter() {
        follow_tx_locked(sock, reason);
    }
}

fn follow_tx_locked(sock: &'static Sock, reason: Reason) {
    match sock.tx.state() {
        State::Proved | State::Link => {
            demote::count(sock, reason);
            if let Some((wire, stream)) = of(sock) {
                leave(sock, wire, stream, leaving_of(sock, reason));
            }
            if let Some(dir) = sock.tx.dir() {
                demote::goes_on(sock, settle(sock, dir));
            }
        }
        State::Resending => {
            demote::goes_on(sock, demote::resend(sock));
        }
        _ => {}
    }
}

/// By the control thread: goes on with the switch of the socket's stream, or with its way back.
pub fn advance(sock: &'static Sock) {
    let Ok(_rx) = sock.rx.lock.enter() else {
        return;
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    if reads_link(sock) {
        // First, since a peer that has died is sent no record: it would be answered by a reset, of
        // another kind.
        hear_tcp(sock, fd);
    }
    if let Ok(_tx) = sock.tx.lock.enter()
        && let Some((wire, stream)) = of(sock)
    {
        switch(sock, wire, stream);
    }
    if is_remote(sock) && sock.rx.state() != State::Plain {
        hear_tcp(sock, fd);
    }
}

/// Under both locks.
fn switch(sock: &'static Sock, wire: &Wire, stream: u16) {
    let mut entered = false;
    loop {
        let read = match sock.rx.state() {
            State::Proved | State::Draining => sock.rx.kernel_bytes(),
            _ => 0,
        };
        let now = wire.with_stream(stream, |pump| {
            let fine = pump.on_tcp_read(stream, read);
            let stepped = fine.and_then(|()| pump.step(stream));
            entered |= enter(sock, pump, stream);
            if consents(sock) {
                pump.consent(stream);
            }
            (stepped, pump.wants_fix(stream))
        });
        match now {
            Some((Err(lie), _)) => {
                wire.lose(Lost::Peer(lie));
                break;
            }
            Some((Ok(stepped), wants)) => {
                if wants && fix(sock, wire, stream, &mut entered) || stepped == Stepped::Taken {
                    continue;
                }
                if stepped == Stepped::Far {
                    // A read that was in the kernel by then is counted without a lock: told before
                    // it looks, or seen here.
                    sock.far.store(true, Ordering::SeqCst);
                    if sock.rx.kernel_bytes() != read {
                        continue;
                    }
                    jobs::watch_far(sock);
                }
                break;
            }
            None => return,
        }
    }
    if entered {
        // A reader of TCP without a limit looks anew.
        tell_readers(sock);
    }
    let now = wire.with(|pump| {
        let transit = pump.transit(stream)?;
        let leaves = transit.is_leaving();
        Some((transit.out(), leaves))
    });
    let Some(Some((out, leaves))) = now else {
        return;
    };
    if out == Out::Link {
        sock.staged.unstage(sock.fd.load(Ordering::Relaxed));
        sock.note_upgraded(sluice_stats::Transport::Verbs);
    }
    if leaves {
        follow_tx_locked(sock, given_up(wire));
    }
}

/// Before the peer is told what lets it write a record: once its N is known TCP is read up to
/// there, and not only when the program reads on. From here on what TCP has may be for this
/// library. Whether that is new.
fn enter(sock: &'static Sock, pump: &mut Pump, stream: u16) -> bool {
    let known = pump.transit(stream).and_then(|t| t.peer_n());
    let (Some(n), Some(dir)) = (known, sock.rx.dir()) else {
        return false;
    };
    if dir.tx_wishes.switched.load(Ordering::Relaxed) != 0 {
        return false;
    }
    dir.tx_wishes.from.store(n, Ordering::Relaxed);
    dir.tx_wishes.switched.store(1, Ordering::Release);
    recv::enter_link(sock, n);
    true
}

/// Is the stream on its way from TCP to the link? What its program writes waits in the ring.
pub fn is_switching(sock: &Sock) -> bool {
    is_remote(sock) && !sock.upgraded.load(Ordering::Relaxed)
}

/// Does the peer wait for this end to read TCP?
pub fn is_far(sock: &Sock) -> bool {
    of(sock).is_some_and(|(wire, stream)| wire.with(|pump| pump.is_far(stream)) == Some(true))
}

/// Under the rx lock: is no read in the kernel, and comes none there that a doorbell does not end?
fn consents(sock: &Sock) -> bool {
    let dir = sock.rx.dir();
    dir.is_some_and(|dir| dir.rx_wishes.consent.load(Ordering::Relaxed) == 1)
}

/// Under both locks: fixes our N, if it may be now.
fn fix(sock: &'static Sock, wire: &Wire, stream: u16, entered: &mut bool) -> bool {
    if sock.tx.state() != State::Proved || !consents(sock) || sock.tx.in_kernel() != 0 {
        return false;
    }
    let fixed = upgrade::take_ring(sock, |n| {
        let fixed = wire.with(|pump| {
            let fixed = pump.transit(stream).is_some_and(|t| t.fix(n).is_ok());
            *entered |= enter(sock, pump, stream);
            pump.settle(stream);
            fixed
        });
        fixed == Some(true)
    });
    match fixed {
        Switch::Done => {
            sock.staged.begin();
            true
        }
        Switch::Later => false,
        Switch::Never(reason) => {
            sock.pin(reason);
            let _ = demote::settle_tx(sock, reason);
            false
        }
    }
}

/// The wire is lost: by the control thread. A peer that has died shows it on TCP in a moment, and a
/// record written before would make a reset of that: true when all streams went on, in any case
/// when it is `late`.
pub fn lost(near: &'static Link, wire: &Wire, late: bool) -> bool {
    let mut all = true;
    for stream in wire.streams() {
        let Some(sock) = sock::sock_of(near, u32::from(stream)) else {
            continue;
        };
        let over = || tcp::has_ended(sock.fd.load(Ordering::Relaxed));
        if late || over() {
            advance(sock);
        } else {
            all = false;
        }
    }
    all
}

/// Must a write after a demotion wait for the link, or the peer, rather than for TCP?
pub fn is_held(sock: &'static Sock) -> bool {
    let Some((wire, stream)) = of(sock) else {
        return false;
    };
    let held = wire.with(|pump| {
        let due = pump.record(stream).is_some();
        let held = pump.transit(stream).is_some_and(|t| t.out() == Out::Held);
        held && !due
    });
    held.unwrap_or_else(|| wire.is_interrupted())
}

/// The program has left stream `index`; false: no wire plays the other end.
pub fn left(link: &'static Link, index: u32) -> bool {
    let Some(wire) = verbs::wire_of(link) else {
        return false;
    };
    wire.leave(index as u16);
    true
}

/// Under the tx lock, when all is sent again: may TCP be closed? After the word that no record is
/// wanted one may be under way that crossed it, and would meet a closed socket, which resets: not
/// before TCP has acknowledged all.
pub fn may_finish(sock: &'static Sock) -> bool {
    let Some((wire, stream)) = of(sock) else {
        return true;
    };
    let parting = [Reason::Close, Reason::Exit].map(|reason| reason as u32);
    let is_through = parting.contains(&sock.pinned.load(Ordering::Relaxed)) || sock.has_shut_both();
    !is_through || !may_cross(sock, wire, stream)
}

/// After this end's word that it wants no record: may one of the peer's still come that crossed
/// it? One that is here is removed.
fn may_cross(sock: &'static Sock, wire: &Wire, stream: u16) -> bool {
    let last = wire.with(|pump| pump.transit(stream).is_some_and(|t| t.said_last()));
    if last != Some(true) {
        return false;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    // First: what was written before TCP acknowledged our word is here after that.
    let acknowledged = sys::ioctl_int(fd, libc::TIOCOUTQ).unwrap_or(0) == 0;
    let may = !drop_crossing(wire, stream, fd) && !acknowledged && !sys::has_error(fd);
    if may {
        jobs::advance_soon(sock);
    }
    may
}

/// Is the peer's record under way to a socket that the program is through with? A close before it
/// comes would be answered by a reset, which takes what is under way from here.
pub fn awaits_record(sock: &Sock) -> bool {
    let awaits = of(sock).and_then(|(wire, stream)| {
        wire.with(|pump| pump.transit(stream).is_some_and(|t| t.awaits_record()))
    });
    let fd = sock.fd.load(Ordering::Relaxed);
    let comes = || !tcp::has_ended(fd) || tcp::unread(fd) > 0;
    awaits == Some(true) && comes()
}

/// Removes the peer's record that crossed our last word, if it is here.
fn drop_crossing(wire: &Wire, stream: u16, fd: i32) -> bool {
    let mut head = [0u8; RECORD_LEN];
    let kept = part_of(wire, stream, &mut head);
    let rest = head.get_mut(kept..).unwrap_or_default();
    if tcp::unread(fd) < rest.len() as u64 {
        return false;
    }
    let receive = |rest: &mut [u8], flags| {
        let flags = flags | libc::MSG_DONTWAIT;
        // SAFETY: room of ours.
        unsafe { sys::recv(fd, rest.as_mut_ptr(), rest.len(), flags) }
    };
    let _ = receive(rest, libc::MSG_PEEK);
    let is = wire.with(|pump| pump.transit(stream).is_some_and(|t| t.is_crossing(&head)));
    let rest = head.get_mut(kept..).unwrap_or_default();
    is == Some(true) && receive(rest, 0).is_ok()
}

/// Under no lock, of a socket that the program is through with: does TCP hold bytes for it, which
/// nobody reads any more? The peer's record is none of them.
pub fn has_input(sock: &'static Sock, fd: i32) -> bool {
    if tcp::unread(fd) == 0 {
        return false;
    }
    if !is_remote(sock) {
        return true;
    }
    let hidden = hears(sock);
    if let Some((wire, stream)) = of(sock) {
        drop_crossing(wire, stream, fd);
    }
    !hidden && tcp::unread(fd) > 0
}
