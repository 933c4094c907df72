//! The writer's part: offers, and the turn of the send that makes them.
//!
//! All of it under the socket's tx lock, but for the spin on an offer that is up.

use super::outcome::{OFFERS, OFFERS_NOT, SKIP, SKIP_MAX, UNASKED, is_up, record};
use super::state::Outgoing;
use super::{NEVER, PIECE};
use crate::io_wait::Waited;
use crate::send::job::Job;
use crate::socket::{Socket, State};
use crate::{demote, wait, wake};
use core::sync::atomic::{Ordering, fence};
use libc::iovec;
use sluice_fabric::doorbell::Sleep;
use sluice_fabric::layout::{AdvertLine, Direction};
use sluice_fabric::lock::{Section, me};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_fabric::words::{self, ROUNDS_MAX, Reading, Withdrawal};
use sluice_runtime::config::{Mode, config};
use sluice_runtime::iov::Cursor;
use sluice_runtime::{fault, process, rights, thread};
use sluice_stats::Reason;
use sluice_stream::{self as stream, Action, Advert, AdvertId, Offer, Phase, Route, Seq};
/// Another thread's send that has the turn is given this long. It needs some milliseconds at most,
/// but may have lost its CPU, also to waiters; it never ends if the thread jumped out of it.
const TURN_NS: u64 = 1_000_000_000;
/// Naps of a thread that waits for the turn, once it does not come at once: doubled from the first
/// to the second.
const TURN_NAP_NS: (u64, u64) = (50_000, 1_000_000);
/// A reader that has begun to copy is given this long.
const CLAIM_NS: u64 = 2_000_000;
/// Beyond this a wait for a copy going on gives its CPU away.
const YIELD_NS: u64 = 100_000;
/// A send of so many bytes at most, over TCP, a reader that waits for it gets whole: what one of
/// the kernel's buffers holds.
const WHOLE: usize = 65536;

/// Under the tx lock, before an offer: may the peer read it, and so be told where our memory lies?
/// The kernel is asked at the first of each stream: either end may have gained or lost rights since
/// the link was made.
fn may_offer(sock: &Socket, dir: &Direction, link: &Link) -> bool {
    let offers = &sock.direct.offers;
    if offers.load(Ordering::Relaxed) == UNASKED {
        let may = link.twin().is_none() && rights::may_be_pulled_by(link);
        if may {
            // Before the offer, with which it is read.
            let at = &dir.tx_wishes.token_at;
            at.store(process::token_at(), Ordering::Relaxed);
        }
        offers.store(if may { OFFERS } else { OFFERS_NOT }, Ordering::Relaxed);
    }
    offers.load(Ordering::Relaxed) == OFFERS
}

/// Under the tx lock, on the link: bytes go to the ring that no offer must follow, and that cannot
/// go directly. In direct-only mode there is no ring.
///
/// # Errors
/// As of [`await_turn`].
#[cold]
pub(crate) fn make_way(section: Held, job: &mut Job) -> Result<Held, Waited> {
    let section = await_turn(section, job)?;
    let sock = job.sock;
    if config().mode == Mode::Direct && sock.tx.state() == State::Link {
        sock.pin(Reason::DirectNoAdvert);
        demote::settle_tx(sock, Reason::DirectNoAdvert);
    }
    Ok(section)
}

/// Under the tx lock, which it may give back for a while: no other thread's send has the turn.
///
/// # Errors
/// Why the call may not wait for that, or `News`: the socket was closed meanwhile.
fn await_turn(mut section: Held, job: &mut Job) -> Result<Held, Waited> {
    let sock = job.sock;
    let direct = &sock.direct;
    let mut start = None;
    let mut io_wait = TURN_NAP_NS.0;
    loop {
        let owner = direct.owner.load(Ordering::Relaxed);
        if owner == 0 || sock.tx.state() != State::Link {
            return Ok(section);
        }
        let now = sys::now_ns();
        let mut waited = now - *start.get_or_insert(now);
        if waited >= YIELD_NS && job.is_nonblocking() {
            waited = now - refuse(sock, now);
            if owner != me() && waited < TURN_NS {
                return Err(Waited::TimedOut);
            }
        }
        // Its own thread comes back in a signal handler, or after a jump.
        if owner == me() || waited >= TURN_NS {
            if is_up(sock) {
                resolve(sock);
            }
            yield_turn(sock);
            return Ok(section);
        }
        job.note();
        drop(section);
        if waited < YIELD_NS {
            sys::sched_yield();
        } else {
            let left = job.deadline().map_or(io_wait, |d| d.saturating_sub(now));
            if left == 0 {
                return Err(Waited::TimedOut);
            }
            let time = sys::timespec(io_wait.min(left));
            if let Err(errno) = sys::poll_one_unless(job.ends(), -1, 0, Some(time))
                && wait::ended(errno, job.ends(), false) == Waited::Interrupted
            {
                return Err(Waited::Interrupted);
            }
            io_wait = (io_wait * 2).min(TURN_NAP_NS.1);
        }
        section = sock.tx.lock.enter().map_err(|_| Waited::TimedOut)?;
        if job.is_lost() {
            return Err(Waited::News);
        }
    }
}

/// Under the tx lock: a send that may not wait is refused. Its epoll sets will hear of the end of
/// the turn. Returns when the first was.
fn refuse(sock: &'static Socket, now: u64) -> u64 {
    wait::ask_for_tcp_room(sock);
    match sock.direct.refused_ns.load(Ordering::Relaxed) {
        0 => {
            sock.direct.refused_ns.store(now, Ordering::Relaxed);
            now
        }
        first => first,
    }
}

/// Under the tx lock: the turn is anybody's.
fn yield_turn(sock: &'static Socket) {
    sock.direct.owner.store(0, Ordering::Relaxed);
    if sock.direct.refused_ns.load(Ordering::Relaxed) != 0 {
        sock.direct.refused_ns.store(0, Ordering::Relaxed);
        if let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) {
            let waiters = dir.tx_wishes.waiters.load(Ordering::SeqCst);
            wake::own(link, waiters, sock.index.load(Ordering::Relaxed));
        }
    }
    if sock.tx.state() == State::Link {
        // SAFETY: the tx lock is held, and the half is on the link.
        let gate = unsafe { sock.direct.tx.get() }.gate;
        sock.tx.gate.store(gate, Ordering::Relaxed);
    }
}

/// Under the tx lock: a send that may have the turn is at its end.
#[inline]
pub(crate) fn end_turn(sock: &'static Socket) {
    if sock.direct.owner.load(Ordering::Relaxed) == me() {
        yield_turn(sock);
    }
}

/// The same without the lock.
#[cold]
fn leave(sock: &'static Socket) {
    if let Ok(_section) = sock.tx.lock.enter() {
        end_turn(sock);
    }
}

/// The tx lock of a socket.
type Held = Section<'static>;

/// What a try to send directly came to.
pub(crate) enum Tried {
    /// So many bytes are sent.
    Sent(Held, usize),
    /// The ring, or TCP.
    Ring(Held),
    /// Look again. The lock was given back.
    Again,
    /// The wait for an ADVERT, or for the turn, ended without one. The lock was given back.
    Waited(Waited),
}

/// The peer did what no honest one does. Under the tx lock.
fn distrust(sock: &'static Socket) {
    sock.pin(Reason::PeerHostile);
    demote::settle_tx(sock, Reason::PeerHostile);
}

/// Under the tx lock, the half on the link: `left` bytes are at least the half's gate.
#[cold]
pub(crate) fn try_send(mut section: Held, job: &mut Job, cursor: &Cursor, left: usize) -> Tried {
    job.note();
    if job.done == 0 || job.sock.direct.owner.load(Ordering::Relaxed) != me() {
        match await_turn(section, job) {
            Ok(held) => section = held,
            Err(Waited::News) => return Tried::Again,
            Err(waited) => return Tried::Waited(waited),
        }
    }
    let tried = try_directly(section, job, cursor, left);
    match tried {
        // What is left goes to the ring under this very lock.
        Tried::Ring(_) => end_turn(job.sock),
        Tried::Waited(_) => leave(job.sock),
        Tried::Sent(..) | Tried::Again => {}
    }
    tried
}

fn try_directly(section: Held, job: &mut Job, cursor: &Cursor, left: usize) -> Tried {
    let sock = job.sock;
    let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) else {
        return Tried::Ring(section);
    };
    let head = dir.rx.head.read();
    let sealed = head.flagged || dir.tx.tail.read().flagged || dir.rx_wishes.is_over();
    if sock.tx.state() != State::Link || sealed {
        return Tried::Ring(section);
    }
    let at = sock.tx.at.load(Ordering::Relaxed);
    if head.offset > at || head.offset < sock.tx.seen.load(Ordering::Relaxed) {
        distrust(sock);
        return Tried::Ring(section);
    }
    sock.tx.seen.store(head.offset, Ordering::Relaxed);
    let only = config().mode == Mode::Direct;
    // SAFETY: the tx lock is held, and the half is on the link.
    let out = unsafe { sock.direct.tx.get() };
    let Ok(serial) = catch_up(sock, out, dir, at, head) else {
        distrust(sock);
        return Tried::Ring(section);
    };
    let nonblocking = job.is_nonblocking();
    let busy = sock.direct.resolved.load(Ordering::Relaxed) != 0 || out.rounds >= ROUNDS_MAX;
    let route = if nonblocking || busy {
        Route::Ring
    } else {
        route_of(out, dir)
    };
    if route != Route::Ring && !may_offer(sock, dir, link) {
        out.gate = NEVER;
        if only {
            // An upgrade anew would come to the same.
            sock.pin(Reason::DirectNoAdvert);
            demote::settle_tx(sock, Reason::DirectNoAdvert);
        }
        return Tried::Ring(section);
    }
    let Some((from, len)) = first_piece(cursor, left) else {
        return Tried::Ring(section);
    };
    if len < left && left <= WHOLE && !only {
        // Of an offer the reader gets its own piece alone.
        return Tried::Ring(section);
    }
    match out.sender.on_offerable(len as u32, route) {
        Some(Action::Offer(offer)) => {
            put_up(sock, dir, link, &offer, from, head.round);
            await_taker(section, job, dir, link, &offer, head.round)
        }
        Some(Action::Blocked { .. })
            if nonblocking || polls(dir, link) || job.out_of_patience() =>
        {
            if out.sender.last_advert() == AdvertId::NONE {
                // This reader never blocks in a recv. An upgrade anew would only wait for it again.
                sock.pin(Reason::DirectNoAdvert);
            }
            demote::settle_tx(sock, Reason::DirectNoAdvert);
            Tried::Ring(section)
        }
        Some(Action::Blocked { .. }) => {
            match wait::for_advert(section, sock, job.until(), job.ends(), serial) {
                Waited::TimedOut | Waited::News => Tried::Again,
                other => Tried::Waited(other),
            }
        }
        _ => Tried::Ring(section),
    }
}

/// By which way a large send that may wait goes.
fn route_of(out: &mut Outgoing, dir: &Direction) -> Route {
    let peer_cpu = dir.rx.cpu.load(Ordering::Relaxed);
    if config().mode == Mode::Direct {
        Route::Advert
    } else if out.skip != 0 {
        out.skip -= 1;
        Route::Ring
    } else if peer_cpu == thread::cpu() || peer_cpu == 0 || config().spin_ns == 0 {
        // It could not run while we spin.
        Route::Ring
    } else if dir.rx_wishes.pulls.load(Ordering::Relaxed) == 1 {
        Route::Offer
    } else {
        Route::Advert
    }
}

/// An offer is up: spins, without the lock, until the reader takes it.
fn await_taker(
    section: Held,
    job: &mut Job,
    dir: &Direction,
    link: &Link,
    offer: &Offer,
    round: u8,
) -> Tried {
    let sock = job.sock;
    let only = config().mode == Mode::Direct;
    link.pin();
    drop(section);
    spin(dir, offer, round);
    let section = sock.tx.lock.enter();
    link.unpin();
    let Ok(section) = section else {
        return Tried::Again;
    };
    if job.is_lost() {
        // What was taken of it, nobody is left to say.
        return Tried::Again;
    }
    let taken = fetch(sock, offer.number);
    if taken != 0 {
        job.patience = None;
        Tried::Sent(section, taken as usize)
    } else if !only {
        Tried::Ring(section)
    } else {
        drop(section);
        sys::sched_yield();
        if job.out_of_patience() {
            demote::demote(sock, demote::Which::Tx, Reason::DirectNoAdvert);
        }
        Tried::Again
    }
}

/// Does the reader wait in epoll? Then it makes no ADVERT, however long it is waited for.
fn polls(dir: &Direction, link: &Link) -> bool {
    let waiters = dir.rx_wishes.waiters.load(Ordering::Relaxed);
    (0..u64::BITS).any(|i| {
        waiters & 1 << i != 0
            && link
                .peer_slot(i)
                .is_some_and(|slot| slot.sleep() == Sleep::Descriptor)
    })
}

/// Tells the sender what went by the ring, and of the ADVERT that stands now. Returns its serial.
fn catch_up(
    sock: &'static Socket,
    out: &mut Outgoing,
    dir: &Direction,
    at: u64,
    head: Reading,
) -> Result<u64, stream::Error> {
    if head.offset != out.still_at {
        (out.still_at, out.rounds) = (head.offset, 0);
    }
    let sender = &mut out.sender;
    sender.on_passed(Seq::new(at), Seq::new(head.offset))?;
    let line = &dir.advert;
    let serial = line.serial.load(Ordering::Acquire);
    let id = AdvertId::new(serial.div_ceil(2));
    let stands = serial % 2 == 1;
    if stands && id > sender.last_advert() {
        let len = line.len.load(Ordering::Relaxed);
        let advert = Advert {
            id,
            place: 0,
            key: 0,
            len: (len & !AdvertLine::WAITALL).min(u64::from(u32::MAX)) as u32,
            seq: Seq::new(line.seq.load(Ordering::Relaxed)),
            phase: Phase::new(line.phase.load(Ordering::Relaxed)),
            waitall: len & AdvertLine::WAITALL != 0,
        };
        fence(Ordering::Acquire);
        if line.serial.load(Ordering::Relaxed) == serial {
            sender.on_advert(advert)?;
            if !sender.is_fresh() {
                sock.conn().tx.adverts_stale.add(1);
            }
        }
    } else if !stands && sender.is_fresh() {
        sender.on_revoke(sender.last_advert())?;
        sock.conn().tx.adverts_revoked.add(1);
    }
    Ok(serial)
}

/// The first bytes of what is to be sent that lie in one piece.
fn first_piece(cursor: &Cursor, left: usize) -> Option<(u64, usize)> {
    let mut room = [iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; 4];
    let piece = cursor.rest(&mut room).iter().find(|p| p.iov_len != 0)?;
    Some((
        piece.iov_base as usize as u64,
        piece.iov_len.min(left).min(PIECE),
    ))
}

/// Under the tx lock: publishes the offer and wakes the reader.
fn put_up(
    sock: &'static Socket,
    dir: &Direction,
    link: &'static Link,
    offer: &Offer,
    from: u64,
    round: u8,
) {
    let direct = &sock.direct;
    direct.up.store(offer.number, Ordering::Relaxed);
    direct.up_len.store(offer.len, Ordering::Relaxed);
    direct.up_round.store(round, Ordering::Relaxed);
    // Every send comes here until the turn is over.
    direct.owner.store(me(), Ordering::Relaxed);
    sock.tx.gate.store(0, Ordering::Relaxed);
    let line = &dir.offer;
    line.word.store(0, Ordering::Relaxed);
    fence(Ordering::Release);
    line.at.store(from, Ordering::Relaxed);
    line.len.store(u64::from(offer.len), Ordering::Relaxed);
    line.seq.store(offer.seq.value(), Ordering::Relaxed);
    line.advert
        .store(offer.advert.map_or(0, AdvertId::value), Ordering::Relaxed);
    dir.tx.cpu.store(thread::cpu(), Ordering::Relaxed);
    line.word
        .store(offer.number << 8 | u64::from(round), Ordering::Release);
    if offer.advert.is_some() {
        sock.conn().tx.adverts_fresh.add(1);
    }
    // "Publish, then look whether anyone sleeps", as after a publish of the tail.
    fence(Ordering::SeqCst);
    let waiters = dir.rx_wishes.waiters.load(Ordering::Relaxed);
    let rung = wake::peer(link, waiters, sock.index.load(Ordering::Relaxed));
    if rung != 0 {
        sock.conn().tx.doorbells.add(rung);
    }
}

/// Spins until the offer is resolved or the patience over. Without a lock; the link is pinned.
fn spin(dir: &Direction, offer: &Offer, round: u8) {
    if fault::strikes() {
        return;
    }
    let over = || {
        let head = dir.rx.head.read();
        head.flagged || head.offset > offer.seq.value() || head.round != round
    };
    let start = sys::now_ns();
    let budget = u64::from(config().spin_ns);
    loop {
        for _ in 0..32 {
            if over() {
                return;
            }
            core::hint::spin_loop();
        }
        let spent = sys::now_ns() - start;
        let claimed = dir.advert.claim.load(Ordering::Relaxed) == offer.number;
        if spent >= if claimed { CLAIM_NS } else { budget } {
            return;
        }
        if spent >= YIELD_NS {
            sys::sched_yield();
        }
    }
}

/// Under the tx lock: the end of an offer of the caller's; bytes taken of it.
fn fetch(sock: &'static Socket, number: u64) -> u32 {
    let direct = &sock.direct;
    if direct.up.load(Ordering::Relaxed) == number {
        resolve(sock);
    }
    if direct.resolved.load(Ordering::Relaxed) == number {
        direct.resolved.store(0, Ordering::Relaxed);
        direct.resolved_len.load(Ordering::Relaxed)
    } else {
        // Left by an earlier stream: it was withdrawn or counted by the demotion in between.
        0
    }
}

/// Under the tx lock, with an offer up: withdraws it, or learns what was taken. The half may be off
/// the link afterwards.
pub(crate) fn resolve(sock: &'static Socket) {
    let direct = &sock.direct;
    let Some(dir) = sock.tx.dir() else {
        record(sock, 0);
        return;
    };
    if sock.tx.state() != State::Link {
        record(sock, 0);
        return;
    }
    let at = sock.tx.at.load(Ordering::Relaxed);
    // SAFETY: the tx lock is held, and the half is on the link.
    let out = unsafe { direct.tx.get() };
    let round = direct.up_round.load(Ordering::Relaxed);
    match dir.rx.head.withdraw(round, at) {
        Withdrawal::Done => {
            out.rounds = out.rounds.saturating_add(1);
            out.skip = out.next_skip;
            out.next_skip = (out.next_skip * 2).min(SKIP_MAX);
            record(sock, 0);
            let _ = out.sender.on_withdrawn();
        }
        Withdrawal::Taken(n) if n <= u64::from(direct.up_len.load(Ordering::Relaxed)) => {
            out.next_skip = SKIP;
            record(sock, n as u32);
            let _ = out.sender.on_taken(n as u32);
            if words::follow(&dir.tx.tail, at, at + n).is_err() {
                demote::settle_tx(sock, Reason::PeerDemoted);
            }
        }
        Withdrawal::Taken(_) => distrust(sock),
        Withdrawal::Demoted => {
            demote::settle_tx(sock, Reason::PeerDemoted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct::begin_tx;
    use crate::io_wait::IoWait;
    use crate::verdict::{Error, Verdict};
    use crate::{send, testing};
    use std::time::{Duration, Instant};

    /// A socket on a link, where a thread that never comes back has the turn.
    fn taken() -> &'static Socket {
        let (a, b, index) = testing::link();
        let sock = testing::writer(a, b, index);
        begin_tx(sock);
        sock.direct.owner.store(usize::MAX, Ordering::Relaxed);
        sock.tx.gate.store(0, Ordering::Relaxed);
        sock
    }

    fn send(sock: &'static Socket, flags: i32) -> Verdict {
        let mut bytes = *b"ten bytes!";
        let iov = iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: a buffer of ours.
        unsafe { send::send(sock, -1, &raw const iov, 1, flags, &mut IoWait::new()) }
    }

    #[test]
    fn a_send_that_may_not_wait_does_not_wait_for_its_turn() {
        let sock = taken();
        let start = Instant::now();
        let sent = send(sock, libc::MSG_DONTWAIT);
        assert!(matches!(sent, Verdict::Failed(Error::WouldBlock)));
        assert!(start.elapsed() < Duration::from_nanos(TURN_NS / 2));
        // A turn that never ends is taken all the same.
        let first = sys::now_ns() - TURN_NS;
        sock.direct.refused_ns.store(first, Ordering::Relaxed);
        let sent = send(sock, libc::MSG_DONTWAIT);
        assert!(matches!(sent, Verdict::Done(10)));
        assert_eq!(sock.direct.refused_ns.load(Ordering::Relaxed), 0);
        assert_eq!(sock.direct.owner.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_wait_for_the_turn_ends_with_the_time_limit() {
        let sock = taken();
        let limit = Duration::from_millis(20);
        let ns = limit.as_nanos() as u64;
        sock.snd_timeout_ns.store(ns, Ordering::Relaxed);
        sock.nonblock.store(1, Ordering::Relaxed);
        let start = Instant::now();
        assert!(matches!(send(sock, 0), Verdict::Failed(Error::WouldBlock)));
        assert!(start.elapsed() >= limit);
        assert_eq!(sock.direct.owner.load(Ordering::Relaxed), usize::MAX);
    }

    #[test]
    fn a_signal_ends_a_wait_for_the_turn() {
        extern "C" fn nothing(_: i32) {}
        let sock = taken();
        sock.nonblock.store(1, Ordering::Relaxed);
        // SAFETY: a handler that does nothing and restarts nothing; the thread lives until it is
        // joined.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            let handler = nothing as *const () as usize;
            action.sa_sigaction = sys::handlers::given(libc::SIGUSR2, handler, false);
            libc::sigaction(libc::SIGUSR2, &raw const action, core::ptr::null_mut());
            let me = libc::pthread_self();
            let over = std::sync::Arc::new(core::sync::atomic::AtomicBool::new(false));
            let seen = over.clone();
            let signals = std::thread::spawn(move || {
                while !seen.load(Ordering::Relaxed) {
                    libc::pthread_kill(me, libc::SIGUSR2);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let sent = send(sock, 0);
            over.store(true, Ordering::Relaxed);
            let _ = signals.join();
            assert!(matches!(sent, Verdict::Failed(Error::Interrupted)));
        }
    }
}
