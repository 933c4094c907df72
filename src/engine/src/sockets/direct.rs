//! Direct transfer: the reader copies out of the writer's memory, without a ring in between.
//!
//! The rules (phases, ADVERTs, which transfer when) are `sluice-stream`'s; here they meet the words of
//! shared memory. Small sends and receives do not come here: what they do to the ring is told to the
//! state machines in one go, when a large transfer has use for them.
//!
//! ```text
//!   writer                                    reader
//!   offer line, number last; ring whoever sleeps
//!   spin on the head, no lock held             sees the number; looks that the ring is empty
//!                                              claim; one process_vm_readv: bytes, then the token
//!                                              take: head (round, T) → (round, T+n)
//!   sees the head beyond T: n are sent         tail follows
//!   or, out of patience:
//!   withdraw: head (round, H) → (round+1, H)   take fails; copy thrown away
//! ```
//!
//! The token is the peer process's identity, read from where it said at the meeting, by the same call
//! and thus out of the same memory: an image that was executed since, or another process with the
//! number, does not have it.
//!
//! An offer is up only while its `send` spins, without the lock. From its first offer to its end that
//! send has the turn: TCP would not put another thread's bytes into the middle of it, so others wait,
//! for a bounded time (a thread that jumped out of its send never ends it). A demotion by another thread,
//! or a handler of the same one, resolves the offer and leaves word of the outcome for its owner.

use crate::config::{Mode, config};
use crate::sockets::demote;
use crate::sockets::fault;
use crate::sockets::iov::Cursor;
use crate::sockets::send::Job;
use crate::sockets::sock::{Sock, state};
use crate::sockets::wait::{self, Waited};
use crate::sockets::wake;
use crate::thread::{self, Nap};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use libc::iovec;
use sluice_fabric::doorbell::Sleep;
use sluice_fabric::layout::{AdvertLine, Direction};
use sluice_fabric::lock::me;
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_fabric::words::{self, ROUNDS_MAX, Reading, Withdrawal};
use sluice_stats::Reason;
use sluice_stream::{
    self as stream, Action, Advert, AdvertId, Next, Offer, Phase, Provider, Receiver, Recv, Route,
    Sender, Seq,
};

/// Most bytes of one take: beyond, a copy falls out of the processor's cache.
const PIECE: usize = 256 << 10;
/// Pieces of a scattered buffer that one take fills.
const PIECES: usize = 16;
/// A reader that has begun to copy is given this long.
const CLAIM_NS: u64 = 2_000_000;
/// Beyond this a wait for a copy going on gives its CPU away.
const YIELD_NS: u64 = 100_000;
/// Large sends that go without an offer after one that nobody took; doubled up to [`SKIP_MAX`].
const SKIP: u32 = 4;
/// See [`SKIP`].
const SKIP_MAX: u32 = 512;
/// A size that no transfer has.
const NEVER: u32 = u32::MAX;

/// What the lock of a half guards. Uninitialised until that half is on the link.
#[derive(Debug)]
struct Owned<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: reached under the lock of its half only.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// # Safety
    /// The lock of the half is held, and `set` was called.
    #[expect(clippy::mut_from_ref, reason = "the half's lock makes it unique")]
    unsafe fn get(&self) -> &mut T {
        // SAFETY: the caller vouches for both.
        unsafe { (*self.0.get()).assume_init_mut() }
    }

    /// # Safety
    /// The lock of the half is held.
    unsafe fn set(&self, value: T) {
        // SAFETY: the lock makes this the only access. The old value needs no drop.
        unsafe { self.0.get().write(MaybeUninit::new(value)) };
    }
}

/// A socket's part in direct transfers. Zero is the state of a new one.
#[derive(Debug)]
pub struct Direct {
    tx: Owned<Outgoing>,
    rx: Owned<Incoming>,
    /// Under the tx lock: number of the offer that is up, 0 for none.
    up: AtomicU64,
    up_len: AtomicU32,
    up_round: AtomicU8,
    /// The thread whose send has the turn, 0 for none.
    owner: AtomicUsize,
    /// Under the tx lock: an offer that was resolved by another than its owner, and how much of it
    /// was taken. Until the owner has read it, none is made.
    resolved: AtomicU64,
    resolved_len: AtomicU32,
    /// Under the rx lock: the offer line's word that needs no look any more.
    pub seen: AtomicU64,
}

#[derive(Debug)]
struct Outgoing {
    sender: Sender,
    /// What `Half::gate` is while no offer is up.
    gate: u32,
    /// Withdrawals since the head was at `still_at`.
    rounds: u8,
    still_at: u64,
    /// Large sends that go without an offer, and how many it will be after the next failure.
    skip: u32,
    next_skip: u32,
}

#[derive(Debug)]
struct Incoming {
    receiver: Receiver,
    /// The hint in the reader's wishes, as last written.
    pulls: bool,
    /// Where the peer said that its token lies; 0: its memory is not read.
    token_at: u64,
}

fn mode() -> stream::Mode {
    match config().mode {
        Mode::Dynamic => stream::Mode::Dynamic,
        Mode::Direct => stream::Mode::Direct,
        Mode::Indirect => stream::Mode::Indirect,
    }
}

/// The terms of one direction, and the size from which direct transfer is thought of.
fn terms(ring_len: u64) -> Option<(stream::Config, u32)> {
    let gate = match (config().mode, config().direct_min) {
        (Mode::Indirect, _) | (Mode::Dynamic, None) => NEVER,
        (Mode::Direct, _) => 0,
        (Mode::Dynamic, Some(least)) => least,
    };
    let terms = stream::Config::new(mode(), Provider::Pull, ring_len as u32, gate).ok()?;
    Some((terms, gate))
}

/// Under the tx lock: has a send of this process an offer up?
pub fn is_up(sock: &Sock) -> bool {
    sock.direct.up.load(Ordering::Relaxed) != 0
}

/// Under the tx lock, on the link: bytes go to the ring that no offer must follow, and that cannot go
/// directly. In direct-only mode there is no ring.
#[cold]
pub fn make_way(sock: &'static Sock) {
    await_turn(sock);
    if config().mode == Mode::Direct && sock.tx.state() == state::LINK {
        sock.pin(Reason::DirectNoAdvert);
        demote::settle_tx(sock, Reason::DirectNoAdvert);
    }
}

/// With the tx lock held, which it may give back for a while: no other thread's send has the turn.
fn await_turn(sock: &'static Sock) {
    let direct = &sock.direct;
    let mut end = None;
    loop {
        let owner = direct.owner.load(Ordering::Relaxed);
        if owner == 0 || sock.tx.state() != state::LINK {
            return;
        }
        let now = sys::now_ns();
        let end = *end.get_or_insert_with(|| now + CLAIM_NS + wait::FULL_NS);
        // Its own thread comes back in a signal handler, or after a jump.
        if owner == me() || now >= end {
            if is_up(sock) {
                resolve(sock);
            }
            yield_turn(sock);
            return;
        }
        sock.tx.lock.unlock();
        sys::sched_yield();
        if sock.tx.lock.lock().is_err() {
            return;
        }
    }
}

/// Under the tx lock: the turn is anybody's.
fn yield_turn(sock: &'static Sock) {
    sock.direct.owner.store(0, Ordering::Relaxed);
    if sock.tx.state() == state::LINK {
        // SAFETY: the tx lock is held, and the half is on the link.
        let gate = unsafe { sock.direct.tx.get() }.gate;
        sock.tx.gate.store(gate, Ordering::Relaxed);
    }
}

/// Under the tx lock: a send that may have the turn is at its end.
#[inline]
pub(super) fn end_turn(sock: &'static Sock) {
    if sock.direct.owner.load(Ordering::Relaxed) == me() {
        yield_turn(sock);
    }
}

/// The same without the lock.
#[cold]
pub(super) fn leave(sock: &'static Sock) {
    if sock.tx.lock.lock().is_ok() {
        end_turn(sock);
        sock.tx.lock.unlock();
    }
}

/// Under the tx lock, before the state becomes LINK.
pub fn begin_tx(sock: &'static Sock) {
    sock.direct.up.store(0, Ordering::Relaxed);
    sock.direct.owner.store(0, Ordering::Relaxed);
    sock.direct.resolved.store(0, Ordering::Relaxed);
    let ring_len = u64::from(sock.tx.unread_max.load(Ordering::Relaxed));
    let gate = terms(ring_len).map_or(NEVER, |(terms, gate)| {
        let made = Outgoing {
            sender: Sender::new(&terms),
            gate,
            rounds: 0,
            still_at: 0,
            skip: 0,
            next_skip: SKIP,
        };
        // SAFETY: the tx lock is held.
        unsafe { sock.direct.tx.set(made) };
        gate
    });
    sock.tx.gate.store(gate, Ordering::Relaxed);
}

/// Under the rx lock, before the state becomes LINK.
pub fn begin_rx(sock: &'static Sock) {
    sock.direct.seen.store(0, Ordering::Relaxed);
    let ring_len = sock.rx.ring().map_or(0, |r| r.len());
    let gate = terms(ring_len).map_or(NEVER, |(terms, gate)| {
        let token_at = (gate != NEVER).then(|| proved_token(sock)).flatten();
        let made = Incoming {
            receiver: Receiver::new(&terms),
            pulls: false,
            token_at: token_at.unwrap_or(0),
        };
        // SAFETY: the rx lock is held.
        unsafe { sock.direct.rx.set(made) };
        if token_at.is_some() { gate } else { NEVER }
    });
    sock.rx.gate.store(gate, Ordering::Relaxed);
}

// --- the writer ---

/// What a try to send directly came to.
pub(super) enum Tried {
    /// So many bytes are sent. The lock is held.
    Sent(usize),
    /// The ring, or TCP. The lock is held.
    Ring,
    /// Look again. The lock was given back.
    Again,
    /// The wait for an ADVERT ended without one. The lock was given back.
    Waited(Waited),
}

/// The peer did what no honest one does. Under the tx lock.
fn distrust(sock: &'static Sock) {
    sock.pin(Reason::PeerHostile);
    demote::settle_tx(sock, Reason::PeerHostile);
}

/// With the tx lock held and the half on the link: `left` bytes are at least the half's gate.
#[cold]
pub(super) fn try_send(job: &mut Job, cursor: &Cursor, left: usize) -> Tried {
    if job.done == 0 || job.sock.direct.owner.load(Ordering::Relaxed) != me() {
        await_turn(job.sock);
    }
    let tried = try_directly(job, cursor, left);
    match tried {
        // What is left goes to the ring under this very lock.
        Tried::Ring => end_turn(job.sock),
        Tried::Waited(_) => leave(job.sock),
        Tried::Sent(_) | Tried::Again => {}
    }
    tried
}

fn try_directly(job: &mut Job, cursor: &Cursor, left: usize) -> Tried {
    let sock = job.sock;
    let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) else {
        return Tried::Ring;
    };
    let head = dir.rx.head.read();
    if sock.tx.state() != state::LINK || head.flagged || dir.tx.tail.read().flagged {
        return Tried::Ring;
    }
    let at = sock.tx.at.load(Ordering::Relaxed);
    if head.offset > at || head.offset < sock.tx.seen.load(Ordering::Relaxed) {
        distrust(sock);
        return Tried::Ring;
    }
    sock.tx.seen.store(head.offset, Ordering::Relaxed);
    // SAFETY: the tx lock is held, and the half is on the link.
    let out = unsafe { sock.direct.tx.get() };
    let only = config().mode == Mode::Direct;
    let Ok(serial) = catch_up(sock, out, dir, at, head) else {
        distrust(sock);
        return Tried::Ring;
    };
    let nonblocking = job.is_nonblocking();
    let busy = sock.direct.resolved.load(Ordering::Relaxed) != 0 || out.rounds >= ROUNDS_MAX;
    let peer_cpu = dir.rx.cpu.load(Ordering::Relaxed);
    let route = if nonblocking || busy {
        Route::Ring
    } else if only {
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
    };
    let Some((from, len)) = first_piece(cursor, left) else {
        return Tried::Ring;
    };
    match out.sender.on_offerable(len as u32, route) {
        Some(Action::Offer(offer)) => {
            put_up(sock, dir, link, &offer, from, head.round);
            link.pin();
            sock.tx.lock.unlock();
            spin(dir, &offer, head.round);
            let locked = sock.tx.lock.lock().is_ok();
            link.unpin();
            if !locked {
                return Tried::Again;
            }
            let taken = fetch(sock, offer.number);
            if taken != 0 {
                job.patience = None;
                Tried::Sent(taken as usize)
            } else if !only {
                Tried::Ring
            } else {
                sock.tx.lock.unlock();
                sys::sched_yield();
                if job.out_of_patience() {
                    demote::demote(sock, demote::Which::Tx, Reason::DirectNoAdvert);
                }
                Tried::Again
            }
        }
        Some(Action::Blocked { .. })
            if nonblocking || polls(dir, link) || job.out_of_patience() =>
        {
            if out.sender.last_advert() == AdvertId::NONE {
                // This reader never blocks in a recv. An upgrade anew would only wait for it again.
                sock.pin(Reason::DirectNoAdvert);
            }
            demote::settle_tx(sock, Reason::DirectNoAdvert);
            Tried::Ring
        }
        Some(Action::Blocked { .. }) => {
            let deadline = job.deadline();
            match wait::for_advert(sock, job.until(), serial) {
                Waited::TimedOut if deadline.is_none_or(|d| sys::now_ns() < d) => Tried::Again,
                Waited::News => Tried::Again,
                other => Tried::Waited(other),
            }
        }
        _ => Tried::Ring,
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
    sock: &'static Sock,
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
    sock: &'static Sock,
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
    // "Publish, then look whether anyone sleeps", as behind a publish of the tail.
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
fn fetch(sock: &'static Sock, number: u64) -> u32 {
    let direct = &sock.direct;
    if direct.up.load(Ordering::Relaxed) == number {
        resolve(sock);
    }
    if direct.resolved.load(Ordering::Relaxed) == number {
        direct.resolved.store(0, Ordering::Relaxed);
        direct.resolved_len.load(Ordering::Relaxed)
    } else {
        // Left behind by a new stream: it was withdrawn or counted by the demotion in between.
        0
    }
}

/// Under the tx lock, with an offer up: withdraws it, or learns what was taken. The half may be off
/// the link afterwards.
pub fn resolve(sock: &'static Sock) {
    let direct = &sock.direct;
    let Some(dir) = sock.tx.dir() else {
        record(sock, 0);
        return;
    };
    if sock.tx.state() != state::LINK {
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

/// Under the tx lock: the offer that is up is over, `taken` bytes of it are the reader's.
fn record(sock: &'static Sock, taken: u32) {
    let direct = &sock.direct;
    let number = direct.up.swap(0, Ordering::Relaxed);
    direct.resolved_len.store(taken, Ordering::Relaxed);
    direct.resolved.store(number, Ordering::Relaxed);
    if taken != 0 {
        let n = u64::from(taken);
        let to = sock.tx.at.load(Ordering::Relaxed) + n;
        sock.tx.at.store(to, Ordering::Relaxed);
        sock.tx.seen.store(to, Ordering::Relaxed);
        sock.tx.linked.store(
            sock.tx.linked.load(Ordering::Relaxed) + n,
            Ordering::Relaxed,
        );
        sock.conn().tx.bytes.direct.add(n);
    }
}

/// Under the tx lock, the words just fixed at `start` and `end`: an offer that was up counts as sent as
/// far as the head has passed the tail.
pub fn settled(sock: &'static Sock, start: u64, end: u64) {
    let direct = &sock.direct;
    if sock.tx.state() == state::INHERITED {
        // The parent's offer, if any. What the reader took of it is not sent again.
        direct.up.store(0, Ordering::Relaxed);
        direct.resolved.store(0, Ordering::Relaxed);
        if start > end {
            sock.tx.at.store(start, Ordering::Relaxed);
        }
        return;
    }
    if direct.up.load(Ordering::Relaxed) == 0 {
        return;
    }
    let ahead = start.saturating_sub(sock.tx.at.load(Ordering::Relaxed));
    let most = u64::from(direct.up_len.load(Ordering::Relaxed));
    record(sock, if ahead <= most { ahead as u32 } else { 0 });
}

// --- the reader ---

/// What a recv that finds the ring empty wants.
pub(super) struct Wants<'a> {
    pub sock: &'static Sock,
    pub left: usize,
    /// Bytes below which nothing is handed out.
    pub low: usize,
    pub waitall: bool,
    /// Takes nothing, or discards.
    pub peek: bool,
    pub nonblocking: bool,
    /// Notes that an ADVERT was made: [`revoke`] it when the recv leaves.
    pub nap: &'a mut Nap,
}

/// What the look for an offer came to.
pub(super) enum Found {
    /// So many bytes were taken.
    Taken(usize),
    /// Nothing on offer.
    Nothing,
    /// Nothing on offer, and an ADVERT was made just now.
    Lent,
    /// The words have changed: look again.
    Again,
    /// The peer lies.
    Hostile,
}

/// Under the rx lock, on the link, the ring empty at `at`.
#[cold]
pub(super) fn try_recv(
    wants: &mut Wants<'_>,
    cursor: &mut Cursor,
    head: Reading,
    at: u64,
) -> Found {
    let sock = wants.sock;
    let (Some(dir), Some(link)) = (sock.rx.dir(), sock.link()) else {
        return Found::Again;
    };
    // SAFETY: the rx lock is held, and the half is on the link.
    let inc = unsafe { sock.direct.rx.get() };
    let lent_before = inc.receiver.lent().is_some();
    match inc.receiver.on_passed(Seq::new(at), 0) {
        Ok(came) if came && lent_before => sock.conn().rx.adverts_stale.add(1),
        Ok(_) => {}
        Err(_) => return Found::Hostile,
    }
    let line = &dir.offer;
    let word = line.word.load(Ordering::Acquire);
    let mut place = 0;
    if word != sock.direct.seen.load(Ordering::Relaxed) && word != 0 {
        let offer = Offer {
            number: word >> 8,
            seq: Seq::new(line.seq.load(Ordering::Relaxed)),
            len: line.len.load(Ordering::Relaxed).min(PIECE as u64) as u32,
            advert: match line.advert.load(Ordering::Relaxed) {
                0 => None,
                id => Some(AdvertId::new(id)),
            },
        };
        place = line.at.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if line.word.load(Ordering::Relaxed) != word {
            return Found::Again;
        }
        // Read after the offer: were its bytes in the ring by now, the tail would be beyond it.
        if dir.tx.tail.read().offset != at {
            return Found::Again;
        }
        sock.direct.seen.store(word, Ordering::Relaxed);
        // Another round, or bytes that went otherwise: it was resolved.
        if word as u8 == head.round && offer.seq.value() == at {
            if inc.token_at == 0 {
                dir.rx.head.withdraw(head.round, at);
            } else if inc.receiver.on_offer(offer).is_err() {
                return Found::Hostile;
            }
        }
    }
    let recv = Recv {
        place: 0,
        key: 0,
        len: wants.left.min(1 << 30) as u32,
        low: wants.low.min(1 << 30) as u32,
        waitall: wants.waitall,
        peek: wants.peek,
        wait: !wants.nonblocking && wants.left >= sock.rx.gate.load(Ordering::Relaxed) as usize,
    };
    match inc.receiver.on_recv(&recv) {
        Next::Take(offer, len) => {
            invite(inc, dir, !wants.nonblocking);
            // SAFETY: the cursor is the caller's buffer, `len` at most what is left of it.
            unsafe { take(sock, inc, dir, link, cursor, &offer, place, len, head.round) }
        }
        Next::PeekOffer(offer, _) | Next::Withdraw(offer) => {
            invite(inc, dir, false);
            dir.rx.head.withdraw(head.round, at);
            inc.receiver.on_withdrawn(offer.number);
            Found::Nothing
        }
        Next::Advertise(advert) => {
            invite(inc, dir, true);
            wants.nap.lent = true;
            advertise(sock, dir, link, &advert);
            Found::Lent
        }
        Next::Wait if recv.wait => Found::Nothing,
        _ => {
            invite(inc, dir, false);
            Found::Nothing
        }
    }
}

/// Tells the writer whether an offer without an ADVERT is likely to be taken.
fn invite(inc: &mut Incoming, dir: &Direction, pulls: bool) {
    if inc.pulls != pulls {
        inc.pulls = pulls;
        dir.rx_wishes
            .pulls
            .store(u32::from(pulls), Ordering::Relaxed);
    }
}

fn advertise(sock: &'static Sock, dir: &Direction, link: &'static Link, advert: &Advert) {
    let line = &dir.advert;
    let serial = advert.id.value().wrapping_mul(2);
    line.serial.store(serial.wrapping_sub(2), Ordering::Relaxed);
    fence(Ordering::Release);
    line.seq.store(advert.seq.value(), Ordering::Relaxed);
    line.phase.store(advert.phase.value(), Ordering::Relaxed);
    let waitall = if advert.waitall {
        AdvertLine::WAITALL
    } else {
        0
    };
    line.len
        .store(u64::from(advert.len) | waitall, Ordering::Relaxed);
    dir.rx.cpu.store(thread::cpu(), Ordering::Relaxed);
    line.serial.store(serial.wrapping_sub(1), Ordering::Release);
    // A writer in direct-only mode may sleep until this.
    fence(Ordering::SeqCst);
    let waiters = dir.tx_wishes.waiters.load(Ordering::Relaxed);
    let rung = wake::peer(link, waiters, sock.index.load(Ordering::Relaxed));
    if rung != 0 {
        sock.conn().rx.doorbells.add(rung);
    }
}

/// The recv that made an ADVERT leaves.
#[cold]
pub(super) fn revoke(sock: &'static Sock) {
    if sock.rx.lock.lock().is_err() {
        return;
    }
    if sock.rx.state() == state::LINK
        && let Some(dir) = sock.rx.dir()
    {
        // SAFETY: the rx lock is held, and the half is on the link.
        let inc = unsafe { sock.direct.rx.get() };
        let at = Seq::new(sock.rx.at.load(Ordering::Relaxed));
        let lent_before = inc.receiver.lent().is_some();
        match inc.receiver.on_passed(at, 0) {
            Ok(came) if came && lent_before => sock.conn().rx.adverts_stale.add(1),
            _ => {}
        }
        if let Some(id) = inc.receiver.on_revoke() {
            dir.advert
                .serial
                .store(id.value().wrapping_mul(2), Ordering::Release);
            sock.conn().rx.adverts_revoked.add(1);
        }
    }
    sock.rx.lock.unlock();
}

/// Copies `len` bytes from the offer, then takes it.
#[expect(clippy::too_many_arguments, reason = "the parts of one step")]
unsafe fn take(
    sock: &'static Sock,
    inc: &mut Incoming,
    dir: &Direction,
    link: &'static Link,
    cursor: &mut Cursor,
    offer: &Offer,
    place: u64,
    len: u32,
    round: u8,
) -> Found {
    let at = offer.seq.value();
    dir.advert.claim.store(offer.number, Ordering::Relaxed);
    // SAFETY: passed on.
    let Some(n) = (unsafe { pull(link, inc.token_at, cursor, place, len as usize) }) else {
        dir.rx.head.withdraw(round, at);
        inc.receiver.on_withdrawn(offer.number);
        return Found::Again;
    };
    if fault::strikes() {
        // A withdrawal by the reader in the last moment; or a demotion by a third.
        if offer.number % 2 == 0 {
            dir.rx.head.withdraw(round, at);
        } else {
            words::demote(&dir.tx.tail, &dir.rx.head);
        }
    }
    let to = at + n as u64;
    dir.rx.cpu.store(thread::cpu(), Ordering::Relaxed);
    if !dir.rx.head.take(round, at, to) {
        inc.receiver.on_withdrawn(offer.number);
        return Found::Again;
    }
    // The tail follows; whoever seals it first settles the same.
    // Release: a poll without our lock that sees this place sees the tail there too.
    let _ = words::follow(&dir.tx.tail, at, to);
    sock.rx.at.store(to, Ordering::Release);
    sock.rx.linked.store(
        sock.rx.linked.load(Ordering::Relaxed) + n as u64,
        Ordering::Relaxed,
    );
    sock.conn().rx.bytes.direct.add(n as u64);
    let lent = inc.receiver.lent().map(|a| a.id);
    if inc.receiver.on_taken(n as u32).is_err() {
        return Found::Hostile;
    }
    if let Some(id) = lent {
        let answered = offer.advert == Some(id);
        if answered {
            sock.conn().rx.adverts_fresh.add(1);
        } else {
            sock.conn().rx.adverts_stale.add(1);
        }
        if inc.receiver.lent().is_none() {
            dir.advert
                .serial
                .store(id.value().wrapping_mul(2), Ordering::Release);
        }
    }
    cursor.advance(n, |_, _| ());
    Found::Taken(n)
}

/// Reads up to `len` bytes at `place` of the peer into the cursor's buffers, and its token by the same
/// call. `None`: the peer is gone, has executed another image, or has no such memory.
unsafe fn pull(
    link: &'static Link,
    token_at: u64,
    cursor: &Cursor,
    place: u64,
    len: usize,
) -> Option<usize> {
    let none = iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    };
    let mut to = [none; PIECES + 1];
    let mut room = [none; PIECES];
    let mut used = 0;
    let mut n = 0;
    for (piece, to) in cursor.rest(&mut room).iter().zip(&mut to) {
        let here = piece.iov_len.min(len - n);
        *to = iovec {
            iov_base: piece.iov_base,
            iov_len: here,
        };
        used += 1;
        n += here;
        if n == len {
            break;
        }
    }
    let mut token = [0u64; 2];
    let token_len = size_of_val(&token);
    *to.get_mut(used)? = iovec {
        iov_base: (&raw mut token).cast(),
        iov_len: token_len,
    };
    let remote = |at: u64, len| iovec {
        iov_base: at as usize as *mut libc::c_void,
        iov_len: len,
    };
    let from = [remote(place, n), remote(token_at, token_len)];
    // SAFETY: the caller's buffers, `n` bytes of them at most, and a local.
    let read = unsafe { sys::read_process(link.peer_pid(), &from, to.get(..=used)?) };
    (n != 0 && read == Ok(n + token_len) && token == link.token()).then_some(n)
}

/// Where the peer's token lies, if its memory may be read and one trial works.
fn proved_token(sock: &'static Sock) -> Option<u64> {
    let link = sock.link().filter(|l| l.can_pull())?;
    let at = sock.rx.dir()?.tx_wishes.token_at.load(Ordering::Relaxed);
    let mut got = [0u64; 2];
    let len = size_of_val(&got);
    let piece = |base: *mut libc::c_void| iovec {
        iov_base: base,
        iov_len: len,
    };
    let to = [piece((&raw mut got).cast())];
    let from = [piece(at as usize as *mut libc::c_void)];
    // SAFETY: a local of this length.
    let read = unsafe { sys::read_process(link.peer_pid(), &from, &to) };
    (read == Ok(len) && got == link.token()).then_some(at)
}
