//! The writer's part: offers, and the turn of the send that makes them.
//!
//! Everything here runs under the socket's tx lock, except the spin on an offer that is up.

use super::outcome::{OFFERS, OFFERS_NOT, SKIP, SKIP_MAX, UNASKED, is_up, record};
use super::state::Outgoing;
use super::{NEVER, PIECE};
use crate::io_wait::Waited;
use crate::send::job::Job;
use crate::socket::{Socket, State};
use crate::{demote, wait, wake};
use core::sync::atomic::{Ordering, fence};
use libc::iovec;
use sluice_fabric::cursors::{self, ROUNDS_MAX, Reading, Withdrawal};
use sluice_fabric::doorbell::Sleep;
use sluice_fabric::layout::{AdvertLine, Direction};
use sluice_fabric::lock::{Section, me};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_runtime::config::{Mode, config};
use sluice_runtime::iov::Cursor;
use sluice_runtime::{fault, process, rights, thread};
use sluice_stats::Reason;
use sluice_stream::{self as stream, Action, Advert, AdvertId, Offer, Phase, Route, Seq};
/// How long other sends wait for the send that has the turn. It needs some milliseconds at most,
/// but may have lost its CPU, or never end if its thread jumped out of it.
const TURN_NS: u64 = 1_000_000_000;
/// First and longest nap of a thread that waits for the turn; each is twice as long as the last.
const TURN_NAP_NS: (u64, u64) = (50_000, 1_000_000);
/// How long a reader may take that has begun to copy.
const CLAIM_NS: u64 = 2_000_000;
/// After this, a thread that waits for a copy in progress yields its CPU.
const YIELD_NS: u64 = 100_000;
/// Over TCP, a waiting reader gets a send of up to so many bytes whole: one buffer of the kernel
/// holds it.
const WHOLE: usize = 65536;

/// Returns whether the peer may read an offer, and so learn addresses of this process. The kernel
/// is asked at the first offer of each stream, since either end may have gained or lost rights
/// since the link was made. Call under the tx lock.
fn may_offer(sock: &Socket, dir: &Direction, link: &Link) -> bool {
    let offers = &sock.direct.offers;
    if offers.load(Ordering::Relaxed) == UNASKED {
        let may = link.twin().is_none() && rights::may_be_pulled_by(link);
        if may {
            // Stored before the offer, with which the peer reads it.
            let at = &dir.tx_wishes.token_at;
            at.store(process::token_at(), Ordering::Relaxed);
        }
        offers.store(if may { OFFERS } else { OFFERS_NOT }, Ordering::Relaxed);
    }
    offers.load(Ordering::Relaxed) == OFFERS
}

/// Prepares for bytes that go to the ring: waits until no send has the turn. In direct-only mode,
/// which has no ring, the stream is demoted. Call under the tx lock, on the link.
///
/// # Errors
/// See [`await_turn`].
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

/// Waits until no other thread's send has the turn; may release the lock meanwhile. Call under the
/// tx lock.
///
/// # Errors
/// Why the call may not wait any longer, or `News`: the socket was closed meanwhile.
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
        // If this thread has the turn, it comes back in a signal handler or after a jump.
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

/// Notes that a non-blocking send was refused, so that the end of the turn wakes its epoll sets.
/// Returns when the first one was refused. Call under the tx lock.
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

/// Ends the turn. Call under the tx lock.
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
        // SAFETY: the caller holds the tx lock, and the half is on the link, so `set` was called.
        let gate = unsafe { sock.direct.tx.get() }.gate;
        sock.tx.gate.store(gate, Ordering::Relaxed);
    }
}

/// Ends the turn if this thread's send has it. Call under the tx lock.
#[inline]
pub(crate) fn end_turn(sock: &'static Socket) {
    if sock.direct.owner.load(Ordering::Relaxed) == me() {
        yield_turn(sock);
    }
}

/// [`end_turn`] without the lock.
#[cold]
fn leave(sock: &'static Socket) {
    if let Ok(_section) = sock.tx.lock.enter() {
        end_turn(sock);
    }
}

/// The tx lock of a socket, held.
type Held = Section<'static>;

/// The outcome of a try to send directly.
pub(crate) enum Tried {
    /// So many bytes are sent.
    Sent(Held, usize),
    /// The ring or TCP must take the bytes.
    Ring(Held),
    /// Look again. The lock was released.
    Again,
    /// The wait for an ADVERT, or for the turn, failed. The lock was released.
    Waited(Waited),
}

/// Demotes the stream of a peer that has broken the protocol. Call under the tx lock.
fn distrust(sock: &'static Socket) {
    sock.pin(Reason::PeerHostile);
    demote::settle_tx(sock, Reason::PeerHostile);
}

/// Tries to send `left` bytes directly, at least the half's gate. Call under the tx lock, on the
/// link.
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
        // The rest goes to the ring under this lock.
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
    // SAFETY: the tx lock is held, and the half is on the link, so `set` was called.
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
            // A new upgrade would end the same way.
            sock.pin(Reason::DirectNoAdvert);
            demote::settle_tx(sock, Reason::DirectNoAdvert);
        }
        return Tried::Ring(section);
    }
    let Some((from, len)) = first_piece(cursor, left) else {
        return Tried::Ring(section);
    };
    if len < left && left <= WHOLE && !only {
        // The reader would get this piece of the offer alone.
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
                // This reader never blocks in recv, and a new upgrade would only wait for it again.
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

/// Chooses the way of a large send that may wait.
fn route_of(out: &mut Outgoing, dir: &Direction) -> Route {
    let peer_cpu = dir.rx.cpu.load(Ordering::Relaxed);
    if config().mode == Mode::Direct {
        Route::Advert
    } else if out.skip != 0 {
        out.skip -= 1;
        Route::Ring
    } else if peer_cpu == thread::cpu() || peer_cpu == 0 || config().spin_ns == 0 {
        // The reader could not run while this thread spins.
        Route::Ring
    } else if dir.rx_wishes.pulls.load(Ordering::Relaxed) == 1 {
        Route::Offer
    } else {
        Route::Advert
    }
}

/// Spins, without the lock, until the reader takes the offer.
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
        // The closed socket has no record of what was taken.
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

/// Returns whether the reader waits in epoll, and so makes no ADVERT.
fn polls(dir: &Direction, link: &Link) -> bool {
    let waiters = dir.rx_wishes.waiters.load(Ordering::Relaxed);
    (0..u64::BITS).any(|i| {
        waiters & 1 << i != 0
            && link
                .peer_slot(i)
                .is_some_and(|slot| slot.sleep() == Sleep::Descriptor)
    })
}

/// Tells the sender what went by the ring, and of the current ADVERT. Returns its serial.
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

/// The first contiguous bytes to be sent.
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

/// Publishes the offer and wakes the reader. Call under the tx lock.
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
    // Until the turn is over, every send comes to this module.
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
    // Publish, then look for sleepers, as after a publish of the tail.
    fence(Ordering::SeqCst);
    let waiters = dir.rx_wishes.waiters.load(Ordering::Relaxed);
    let rung = wake::peer(link, waiters, sock.index.load(Ordering::Relaxed));
    if rung != 0 {
        sock.conn().tx.doorbells.add(rung);
    }
}

/// Spins until the offer is resolved or patience runs out. No lock is held; the link is pinned.
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

/// Ends the caller's offer, and returns how many bytes of it were taken. Call under the tx lock.
fn fetch(sock: &'static Socket, number: u64) -> u32 {
    let direct = &sock.direct;
    if direct.up.load(Ordering::Relaxed) == number {
        resolve(sock);
    }
    if direct.resolved.load(Ordering::Relaxed) == number {
        direct.resolved.store(0, Ordering::Relaxed);
        direct.resolved_len.load(Ordering::Relaxed)
    } else {
        // The offer belongs to an earlier stream; the demotion in between has counted what was
        // taken.
        0
    }
}

/// Withdraws the offer that is up, or learns what was taken. The half may be off the link
/// afterwards. Call under the tx lock.
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
    // SAFETY: the tx lock is held, and the half is on the link, so `set` was called.
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
            if cursors::follow(&dir.tx.tail, at, at + n).is_err() {
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

    /// A socket on a link where a thread that never returns has the turn.
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
        // SAFETY: `iov` is one valid vector of this frame.
        unsafe { send::send(sock, -1, &raw const iov, 1, flags, &mut IoWait::new()) }
    }

    #[test]
    fn a_send_that_may_not_wait_does_not_wait_for_its_turn() {
        let sock = taken();
        let start = Instant::now();
        let sent = send(sock, libc::MSG_DONTWAIT);
        assert!(matches!(sent, Verdict::Failed(Error::WouldBlock)));
        assert!(start.elapsed() < Duration::from_nanos(TURN_NS / 2));
        // A turn that never ends is taken over.
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
        // SAFETY: the handler does nothing and restarts no call; this thread, which gets the
        // signals, joins their sender.
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
