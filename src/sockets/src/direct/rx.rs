//! The reader's part: finding and taking offers, making and revoking ADVERTs. Everything here runs
//! under the socket's rx lock.

use super::state::Incoming;
use super::{NEVER, PIECE, terms};
use crate::io_wait::IoWait;
use crate::socket::{Known, Socket, State};
use crate::wake;
use core::sync::atomic::{Ordering, fence};
use libc::iovec;
use sluice_fabric::cursors::{self, Reading};
use sluice_fabric::layout::{AdvertLine, Direction};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_runtime::iov::Cursor;
use sluice_runtime::{credentials, fault, thread};
use sluice_stream::{Advert, AdvertId, Next, Offer, Receiver, Recv, Seq};
/// Most pieces of a scattered buffer that one take fills.
const PIECES: usize = 16;

/// Resets the reader's state. Call under the rx lock, before the half enters the link.
pub(crate) fn begin_rx(sock: &'static Socket) {
    sock.direct.seen.store(0, Ordering::Relaxed);
    let ring_len = sock.rx.ring().map_or(0, |r| r.len());
    let gate = terms(sock, ring_len).map_or(NEVER, |(terms, gate)| {
        let made = Incoming {
            receiver: Receiver::new(&terms),
            pulls: false,
            token_at: 0,
        };
        // SAFETY: the caller holds the rx lock.
        unsafe { sock.direct.rx.set(made) };
        let may = sock.link().is_some_and(Link::can_pull);
        if may { gate } else { NEVER }
    });
    sock.rx.gate.store(gate, Ordering::Relaxed);
}

/// What a recv wants that finds the ring empty.
pub(crate) struct Wants<'a> {
    pub sock: &'static Socket,
    pub left: usize,
    /// The call returns nothing below so many bytes.
    pub low: usize,
    pub waitall: bool,
    /// The call consumes nothing, or discards what it consumes.
    pub peek: bool,
    pub nonblocking: bool,
    /// Notes that an ADVERT was made, and by which socket: [`revoke`] it when the recv ends.
    pub io_wait: &'a mut IoWait,
}

/// The outcome of a look for an offer.
pub(crate) enum Found {
    /// So many bytes were taken.
    Taken(usize),
    /// No offer.
    Nothing,
    /// No offer, and an ADVERT was made just now.
    Lent,
    /// The words have changed: look again.
    Again,
    /// The peer lies.
    Hostile,
}

/// Looks for an offer or makes an ADVERT. Call under the rx lock, on the link, with the ring empty
/// at `at`.
#[cold]
pub(crate) fn try_recv(
    wants: &mut Wants<'_>,
    cursor: &mut Cursor,
    head: Reading,
    at: u64,
) -> Found {
    let sock = wants.sock;
    let (Some(dir), Some(link)) = (sock.rx.dir(), sock.link()) else {
        return Found::Again;
    };
    // SAFETY: the caller holds the rx lock, and the half is on the link, so `set` was called.
    let inc = unsafe { sock.direct.rx.get() };
    let lent_before = inc.receiver.lent().is_some();
    match inc.receiver.on_passed(Seq::new(at), 0) {
        Ok(came) if came && lent_before => sock.conn().rx.adverts_stale.add(1),
        Ok(_) => {}
        Err(_) => return Found::Hostile,
    }
    let place = match see_offer(sock, inc, dir, head, at) {
        Ok(place) => place,
        Err(found) => return found,
    };
    let recv = Recv {
        place: 0,
        key: 0,
        len: wants.left.min(1 << 30) as u32,
        low: wants.low.min(1 << 30) as u32,
        waitall: wants.waitall,
        peek: wants.peek,
        wait: !wants.nonblocking && wants.left >= sock.rx.gate.load(Ordering::Relaxed) as usize,
    };
    let asks = recv.wait && !recv.peek && !wants.io_wait.lent;
    if asks && inc.receiver.lent().is_some_and(|a| a.len < recv.len) {
        // The ADVERT of another thread, perhaps a cancelled one. This call has more room, so it
        // ends that ADVERT.
        end_lent(sock, inc, dir);
    }
    match inc.receiver.on_recv(&recv) {
        Next::Take(offer, len) => {
            invite(inc, dir, !wants.nonblocking);
            // SAFETY: the cursor covers the caller's buffers, and `len` is at most what is left of
            // them.
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
            wants.io_wait.note(sock);
            wants.io_wait.lent = true;
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

/// Looks for a new offer, and returns the address of its bytes; 0: there is none.
///
/// # Errors
/// The outcome of the look, if there is something else to do.
fn see_offer(
    sock: &'static Socket,
    inc: &mut Incoming,
    dir: &Direction,
    head: Reading,
    at: u64,
) -> Result<u64, Found> {
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
            return Err(Found::Again);
        }
        // Read after the offer: if the tail has moved, other bytes come first.
        if dir.tx.tail.read().offset != at {
            return Err(Found::Again);
        }
        sock.direct.seen.store(word, Ordering::Relaxed);
        // If the round or the offset differs, the offer is already resolved.
        if word as u8 == head.round && offer.seq.value() == at {
            if inc.token_at == 0 {
                // The writer waits for the token's read as long as for a copy.
                dir.advert.claim.store(offer.number, Ordering::Relaxed);
                inc.token_at = proved_token(sock).unwrap_or(0);
            }
            if inc.token_at == 0 {
                // Take no offers of this stream, and make no ADVERTs.
                sock.rx.gate.store(NEVER, Ordering::Relaxed);
                dir.rx.head.withdraw(head.round, at);
            } else if inc.receiver.on_offer(offer).is_err() {
                return Err(Found::Hostile);
            }
        }
    }
    Ok(place)
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

fn advertise(sock: &'static Socket, dir: &Direction, link: &'static Link, advert: &Advert) {
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

/// Revokes the ADVERT of a recv that ends, if it made one.
#[inline]
pub(crate) fn revoke(io_wait: &mut IoWait) {
    if io_wait.lent
        && let Some(known) = io_wait.known
    {
        if io_wait.mask.is_some() {
            return crate::carrier::revoke_loan(known, io_wait);
        }
        io_wait.lent = false;
        end_advert(known);
    }
}

#[cold]
fn end_advert(known: Known) {
    let sock = known.sock();
    let Ok(_section) = sock.rx.lock.enter() else {
        return;
    };
    if known.is_same()
        && sock.rx.state() == State::Link
        && let Some(dir) = sock.rx.dir()
    {
        // SAFETY: the rx lock is held, and the half is on the link, so `set` was called.
        let inc = unsafe { sock.direct.rx.get() };
        let at = Seq::new(sock.rx.at.load(Ordering::Relaxed));
        let lent_before = inc.receiver.lent().is_some();
        match inc.receiver.on_passed(at, 0) {
            Ok(came) if came && lent_before => sock.conn().rx.adverts_stale.add(1),
            _ => {}
        }
        end_lent(sock, inc, dir);
    }
}

/// Ends the current ADVERT unanswered. Call under the rx lock, on the link.
fn end_lent(sock: &Socket, inc: &mut Incoming, dir: &Direction) {
    if let Some(id) = inc.receiver.on_revoke() {
        dir.advert
            .serial
            .store(id.value().wrapping_mul(2), Ordering::Release);
        sock.conn().rx.adverts_revoked.add(1);
    }
}

/// Copies `len` bytes of the offer, then takes the offer.
#[expect(clippy::too_many_arguments, reason = "the parts of one step")]
unsafe fn take(
    sock: &'static Socket,
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
    // SAFETY: the caller guarantees the cursor's buffers for `len` bytes.
    let Some(n) = (unsafe { pull(link, inc.token_at, cursor, place, len as usize) }) else {
        dir.rx.head.withdraw(round, at);
        inc.receiver.on_withdrawn(offer.number);
        return Found::Again;
    };
    if fault::strikes() {
        // A withdrawal by the reader at the last moment, or a demotion by another thread.
        if offer.number.is_multiple_of(2) {
            dir.rx.head.withdraw(round, at);
        } else {
            cursors::demote(&dir.tx.tail, &dir.rx.head);
        }
    }
    let to = at + n as u64;
    dir.rx.cpu.store(thread::cpu(), Ordering::Relaxed);
    if !dir.rx.head.take(round, at, to) {
        inc.receiver.on_withdrawn(offer.number);
        return Found::Again;
    }
    // The tail follows; an end that seals first computes the same result. Release: a poll without
    // this lock that sees the new head also sees the tail.
    let _ = cursors::follow(&dir.tx.tail, at, to);
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

/// Reads up to `len` bytes at `place` of the peer into the cursor's buffers, and its token by the
/// same system call. `None`: the peer is gone, has executed another image, or has no such memory.
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
    // SAFETY: `to` lists at most `n` bytes of the caller's buffers, and `token` of this frame.
    let read = unsafe { sys::read_process(link.peer_pid(), &from, to.get(..=used)?) };
    (n != 0 && read == Ok(n + token_len) && token == link.token()).then_some(n)
}

/// After an offer: the address of the peer's token, if its memory may be read and a trial works.
/// Asked at the first offer of each stream, since either end may have gained or lost rights since
/// the link was made.
fn proved_token(sock: &'static Socket) -> Option<u64> {
    let link = sock.link().filter(|l| l.can_pull())?;
    let at = sock.rx.dir()?.tx_wishes.token_at.load(Ordering::Relaxed);
    if at == 0 || !credentials::may_pull(link.peer_pid()) {
        return None;
    }
    let mut got = [0u64; 2];
    let len = size_of_val(&got);
    let piece = |base: *mut libc::c_void| iovec {
        iov_base: base,
        iov_len: len,
    };
    let to = [piece((&raw mut got).cast())];
    let from = [piece(at as usize as *mut libc::c_void)];
    // SAFETY: `got` is a local of this length.
    let read = unsafe { sys::read_process(link.peer_pid(), &from, &to) };
    (read == Ok(len) && got == link.token()).then_some(at)
}
