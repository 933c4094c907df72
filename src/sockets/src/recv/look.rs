//! One look of a receive, under the rx lock. It never waits, and either moves bytes, or says where
//! the next ones are, or changes the half's state so that the caller looks again.
//!
//! What changes meanwhile: this thread holds the rx lock, so the rx half's state, `at`, `seen` and
//! `from` are its own. The writer's tail, and both flags (sealed, seized), change at any moment:
//! read a word once, and let `consume` decide whether the bytes were still ours to take. The tx
//! half may be demoted under the rx lock (lock order: rx, then tx), but not the reverse.
//!
//! Of the fields called `seen` two are read here: `rx.seen` is the writer's tail as last read, and
//! `direct.seen` the last offer that was looked at. `head.round` counts withdrawals of offers, and
//! `consume` fails if one came since the head was read.

use crate::demote::{self, Which};
use crate::direct::{self, Found, Wants};
use crate::emulated_reset::{self, Resetting};
use crate::io_wait::IoWait;
use crate::socket::{Event, Socket, State};
use crate::tcp::{self, AtHand, at_hand};
use crate::verdict::Error;
use crate::{carrier, jobs, peer_end, recv, unread_copy, upgrade, wake};
use core::sync::atomic::Ordering;
use libc::{c_int, iovec};
use sluice_fabric::layout::Direction;
use sluice_fabric::sync::fence_after_rmw;
use sluice_fabric::sys;
use sluice_runtime::fault;
use sluice_runtime::iov::Cursor;
use sluice_stats::Reason;
use sluice_stream::receiver::CREDIT_MAX;
use sluice_transport::Carrier;
use sluice_transport::PUBLISH;
use sluice_transport::links;

/// The outcome of one look.
pub(super) enum Look {
    /// Bytes were moved, or seen by a peek. More may be there.
    Moved(usize),
    /// Nothing is there: wait for news.
    Empty,
    /// EOF.
    End,
    /// EOF by this end's SHUT_RD, while another host still owes bytes that TCP would have
    /// delivered: the call waits for them once.
    Owed,
    /// An error to return.
    Failed(Error),
    /// The state has changed: look again.
    Again,
    /// The rx half was demoted for this reason: demote the tx half too, after the lock, since that
    /// may send.
    Leaves(Reason),
    /// Another thread is making an emulated reset: look again after it.
    Resetting,
    /// The half is Plain: the kernel has the rest.
    Kernel,
}

/// Looks once; call with the rx lock held. `need`: bytes missing before the call may return.
///
/// The function is long on purpose: split up, it takes 2 to 4 % more instructions.
///
/// # Safety
/// `cursor` covers valid buffers of the caller.
pub(super) unsafe fn look(
    sock: &'static Socket,
    fd: c_int,
    cursor: &mut Cursor,
    left: usize,
    flags: c_int,
    need: usize,
    io_wait: &mut IoWait,
) -> Look {
    let current = sock.rx.state();
    if io_wait.mask.is_some() && current != State::Link {
        carrier::end_loan(sock, io_wait);
    }
    if current == State::Plain {
        return Look::Kernel;
    }
    let Some(dir) = sock.rx.dir() else {
        return Look::Kernel;
    };
    if current == State::Inherited {
        demote::settle_rx(sock, Reason::Fork);
        return Look::Leaves(Reason::Fork);
    }
    if fault::strikes() {
        demote::settle_rx(sock, Reason::Fault);
        return Look::Leaves(Reason::Fault);
    }
    let head = dir.rx.head.read();
    let at = sock.rx.at.load(Ordering::Relaxed);
    if current == State::Link && !head.flagged && flags & libc::MSG_PEEK == 0 {
        // While the cached tail fills the call, the writer's cache line is not touched.
        let available = sock.rx.seen.load(Ordering::Relaxed).saturating_sub(at);
        if available >= left as u64 && !carrier::is_lent(sock) {
            // SAFETY: the caller guarantees the cursor's buffers.
            return unsafe { from_ring(sock, cursor, left, flags, at, available, head.round) };
        }
    }
    let tail = dir.tx.tail.read();
    if (tail.flagged || head.flagged) && current != State::Returning {
        demote::settle_rx(sock, Reason::PeerDemoted);
        return Look::Again;
    }
    match current {
        State::Link => {
            if !sock.carrier().tail_moves_back {
                sock.rx.seen.store(tail.offset, Ordering::Relaxed);
            }
            let mut available = tail.offset.wrapping_sub(at);
            if carrier::is_lent(sock) {
                match carrier::look_at_loan(sock, cursor, io_wait) {
                    carrier::Found::Bytes(n) => return Look::Moved(n),
                    carrier::Found::Nothing => return empty(sock, fd, io_wait.done != 0),
                    carrier::Found::Ended => available = dir.tx.tail.read().offset.wrapping_sub(at),
                }
            }
            let peeks_beyond = flags & libc::MSG_PEEK != 0 && (left as u64) > available;
            if (available == 0 || peeks_beyond)
                && let Some(link) = sock.link()
                && links::drive(link)
            {
                available = dir.tx.tail.read().offset.wrapping_sub(at);
            }
            if available != 0 {
                // SAFETY: the caller guarantees the cursor's buffers.
                return unsafe { from_ring(sock, cursor, left, flags, at, available, head.round) };
            }
            if need == 0 {
                return Look::Empty;
            }
            let waits = || sock.may_wait(fd, flags);
            let copies = flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0;
            if copies
                && left >= carrier::lends_from() as usize
                && need.min(sock.rcvlowat.load(Ordering::Relaxed) as usize) <= 1
                && sock.carrier().lends
                && waits()
            {
                // Whether it did shows at the next look.
                carrier::lend(sock, cursor, flags & libc::MSG_WAITALL != 0, io_wait);
            }
            // The buffer is worth an ADVERT, or the writer has put up an offer.
            if left >= sock.rx.gate.load(Ordering::Relaxed) as usize
                || dir.offer.word.load(Ordering::Relaxed)
                    != sock.direct.seen.load(Ordering::Relaxed)
            {
                let mut wants = Wants {
                    sock,
                    left,
                    low: need.min(sock.rcvlowat.load(Ordering::Relaxed).max(1) as usize),
                    waitall: flags & libc::MSG_WAITALL != 0,
                    peek: !copies,
                    nonblocking: !waits(),
                    io_wait,
                };
                match direct::try_recv(&mut wants, cursor, head, at) {
                    Found::Nothing => {}
                    // A writer that answers the ADVERT does so at once.
                    Found::Lent => return Look::Empty,
                    Found::Taken(n) => return Look::Moved(n),
                    Found::Again => return Look::Again,
                    Found::Hostile => {
                        sock.pin(Reason::PeerHostile);
                        demote::settle_rx(sock, Reason::PeerHostile);
                        return Look::Again;
                    }
                }
            }
            if io_wait.is_fresh() && waits() {
                // TCP is asked before the sleep, not before the spin.
                return Look::Empty;
            }
            empty(sock, fd, io_wait.done != 0)
        }
        // SAFETY: the caller guarantees the cursor's buffers.
        _ => unsafe { look_between(sock, fd, cursor, flags, io_wait.done != 0, dir) },
    }
}

/// Looks at TCP while the half moves to the link or back: reads up to the byte at which the link
/// begins, or at which the peer's re-send ends. `has_part`: see [`empty`].
#[cold]
unsafe fn look_between(
    sock: &'static Socket,
    fd: c_int,
    cursor: &mut Cursor,
    flags: c_int,
    has_part: bool,
    dir: &Direction,
) -> Look {
    match sock.rx.state() {
        State::Proved => {
            if dir.tx_wishes.switched.load(Ordering::Acquire) == 0 {
                // Without a limit, since TCP brings nothing that belongs after the switch and is
                // not a re-send: between hosts the peer writes its record only after
                // `carrier::advance` has set `switched`, under this lock.
                // SAFETY: the caller guarantees the cursor's buffers.
                return unsafe { from_kernel(sock, fd, cursor, flags, u64::MAX, has_part) };
            }
            sock.rx.from.store(
                dir.tx_wishes.from.load(Ordering::Relaxed),
                Ordering::Relaxed,
            );
            sock.rx.state.on(Event::Switched);
            Look::Again
        }
        State::Returning => {
            let (read, from) = (sock.rx.kernel_bytes(), sock.rx.from.load(Ordering::Relaxed));
            if read >= from {
                if carrier::hear_tcp(sock, fd) {
                    return Look::Again;
                }
                // The half stays: after both shutdowns until the peer's TCP has acknowledged all,
                // or in a handler that interrupted this thread's own driving of the link.
                return if sock.has_shut_reading() {
                    Look::End
                } else {
                    Look::Empty
                };
            }
            // SAFETY: the caller guarantees the cursor's buffers.
            let look = unsafe { from_kernel(sock, fd, cursor, flags, from - read, has_part) };
            if matches!(look, Look::Moved(_)) {
                // The first owed byte is here.
                sock.rx.owed.store(0, Ordering::Relaxed);
            }
            end_of_tcp(sock, fd, look)
        }
        State::Draining => {
            let (read, from) = (sock.rx.kernel_bytes(), sock.rx.from.load(Ordering::Relaxed));
            if read == from {
                let carrier = sock.carrier();
                if !carrier.switches_together {
                    sock.note_upgraded(carrier.transport);
                }
                upgrade::enter_link(sock, from);
                return Look::Again;
            }
            if read > from {
                // The writer claims a switch before a byte that was already read.
                sock.pin(Reason::PeerHostile);
                demote::settle_rx(sock, Reason::PeerHostile);
                return Look::Again;
            }
            // SAFETY: the caller guarantees the cursor's buffers.
            let look = unsafe { from_kernel(sock, fd, cursor, flags, from - read, has_part) };
            end_of_tcp(sock, fd, look)
        }
        // `look` has served the others.
        State::Plain | State::Link | State::Inherited | State::Resending => Look::Again,
    }
}

/// Between hosts, an end of TCP before the link's bytes, or before the bytes that the peer owes,
/// means that the peer died, unless this end shut its reading down.
fn end_of_tcp(sock: &'static Socket, fd: c_int, look: Look) -> Look {
    if !matches!(look, Look::End) || !sock.carrier().ends_by_record {
        return look;
    }
    if sock.has_shut_reading() && !tcp::has_ended(fd) {
        return Look::Owed;
    }
    if carrier::tcp_ended(sock) {
        look
    } else {
        Look::Again
    }
}

/// Reads TCP without waiting while a stream is attached, at most `most` bytes. `has_part`: see
/// [`empty`].
unsafe fn from_kernel(
    sock: &'static Socket,
    fd: c_int,
    cursor: &mut Cursor,
    flags: c_int,
    most: u64,
    has_part: bool,
) -> Look {
    if has_part {
        match at_hand(fd) {
            AtHand::Bytes => {}
            AtHand::Nothing => return Look::Empty,
            AtHand::End => return Look::End,
        }
    }
    let mut room = [iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; 64];
    // Between hosts, what the peer writes to TCP after the switch may be its record.
    let mut first = *cursor;
    first.limit(
        cursor
            .most()
            .min(usize::try_from(most).unwrap_or(usize::MAX)),
    );
    let pieces = first.rest(&mut room);
    // SAFETY: zeroes are a valid header.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = pieces.as_mut_ptr();
    msg.msg_iovlen = pieces.len();
    let asked = flags & (libc::MSG_PEEK | libc::MSG_TRUNC) | libc::MSG_DONTWAIT;
    // SAFETY: the caller guarantees the buffers, which `msg` lists; `pieces` outlives the call.
    match unsafe { sys::recvmsg(fd, &raw mut msg, asked) } {
        Ok(0) => Look::End,
        Ok(n) if flags & libc::MSG_PEEK != 0 => {
            if most != n as u64 {
                return Look::Moved(n);
            }
            // The peek reaches the switch: the next bytes are in the ring.
            let mut beyond = *cursor;
            beyond.advance(n, |_, _| ());
            // SAFETY: `beyond` covers the rest of the caller's buffers.
            Look::Moved(n + unsafe { peek_ring(sock, &mut beyond, flags) })
        }
        Ok(n) => {
            sock.rx.add_kernel_bytes(n as u64);
            sock.conn().rx.bytes.tcp.add(n as u64);
            cursor.advance(n, |_, _| ());
            recv::came_by_tcp(sock);
            // The control thread waits for more to be read, before its next step of the switch.
            if sock.far.swap(false, Ordering::Relaxed) {
                jobs::advance(sock);
            }
            Look::Moved(n)
        }
        Err(libc::EAGAIN) => Look::Empty,
        Err(libc::EINTR) => Look::Again,
        Err(e) => Look::Failed(Error::Kernel(e)),
    }
}

/// Copies what is in the ring without consuming it; with MSG_TRUNC only counts it.
unsafe fn peek_ring(sock: &'static Socket, cursor: &mut Cursor, flags: c_int) -> usize {
    let (Some(dir), Some(ring)) = (sock.rx.dir(), sock.rx.ring()) else {
        return 0;
    };
    let mut at = sock.rx.at.load(Ordering::Relaxed);
    let available = dir.tx.tail.read().offset.wrapping_sub(at);
    let n = cursor.most().min(available.min(ring.len()) as usize);
    cursor.advance(n, |to, len| {
        if flags & libc::MSG_TRUNC == 0 {
            // SAFETY: `to` has `len` bytes of the caller's buffer, and `len` is at most the ring's
            // length.
            unsafe { ring.copy_out(at, to, len) };
        }
        at += len as u64;
    });
    n
}

#[inline]
unsafe fn from_ring(
    sock: &'static Socket,
    cursor: &mut Cursor,
    left: usize,
    flags: c_int,
    at: u64,
    available: u64,
    round: u8,
) -> Look {
    let (Some(dir), Some(ring), Some(link)) = (sock.rx.dir(), sock.rx.ring(), sock.link()) else {
        return Look::Kernel;
    };
    if available > ring.len() {
        // Impossible: the writer lies about its tail.
        sock.pin(Reason::PeerHostile);
        if sock.carrier().is_driven {
            // The ring is this process's own, and the pump never writes more than fits.
            return Look::Failed(Error::Reset);
        }
        demote::settle_rx(sock, Reason::PeerHostile);
        return Look::Again;
    }
    let n = left.min(available as usize).min(PUBLISH);
    if flags & libc::MSG_PEEK != 0 {
        if left as u64 > available {
            carrier::wants_more(sock, available, ring.len());
        }
        // SAFETY: the cursor's copy covers the same buffers of the caller.
        return Look::Moved(unsafe { peek_ring(sock, &mut { *cursor }, flags) });
    }
    let before = *cursor;
    if flags & libc::MSG_TRUNC != 0 {
        cursor.advance(n, |_, _| ());
    } else {
        let mut from = at;
        cursor.advance(n, |to, len| {
            // SAFETY: `to` has `len` bytes of the caller's buffer, and `len` is at most the ring's
            // length.
            unsafe { ring.copy_out(from, to, len) };
            from += len as u64;
        });
    }
    let to = at + n as u64;
    dir.rx
        .cpu
        .store(sluice_runtime::thread::cpu(), Ordering::Relaxed);
    if dir.rx.head.consume(round, at, to).is_err() {
        // Seized during the copy: TCP brings these bytes again.
        *cursor = before;
        demote::settle_rx(sock, Reason::PeerDemoted);
        return Look::Again;
    }
    fence_after_rmw();
    let waiters = dir.tx_wishes.waiters.load(Ordering::Relaxed);
    if waiters != 0 {
        // Wake a blocked writer when it can go on for a while, not at every byte.
        let unread = dir.tx.tail.read().offset.wrapping_sub(to);
        if unread <= ring.len() / 2
            || ring.len() > 2 * u64::from(CREDIT_MAX) && Carrier::of(link).credits_by_message
        {
            let rung = wake::peer(link, waiters, sock.index.load(Ordering::Relaxed));
            sock.conn().rx.doorbells.add(rung);
        }
    }
    sock.rx.at.store(to, Ordering::Relaxed);
    sock.rx.linked.store(
        sock.rx.linked.load(Ordering::Relaxed) + n as u64,
        Ordering::Relaxed,
    );
    sock.conn().rx.bytes.indirect.add(n as u64);
    Look::Moved(n)
}

/// The ring is empty: asks TCP, which only reports a FIN or an RST while the link carries the
/// bytes. `has_part`: the call has got bytes, so an end or an error is left to the next one.
#[cold]
fn empty(sock: &'static Socket, fd: c_int, has_part: bool) -> Look {
    if !tcp::speaks(fd, sock.rcvlowat.load(Ordering::Relaxed)) {
        return Look::Empty;
    }
    // The writer may have published or demoted before TCP had news: its words come first.
    let has_more = || {
        sock.rx.dir().is_none_or(|dir| {
            let tail = dir.tx.tail.read();
            tail.flagged
                || tail.offset != sock.rx.at.load(Ordering::Relaxed)
                || dir.rx.head.read().flagged
        })
    };
    if has_more() {
        return Look::Again;
    }
    if sock.carrier().ends_by_record {
        return empty_beside_record(sock, fd, has_more);
    }
    if has_part && !tcp::has_bytes(fd) {
        return Look::End;
    }
    // Read once: of a reset that begins between two reads nothing would be seen below.
    let before = emulated_reset::resetting(sock);
    if before == Resetting::Begun {
        return Look::Resetting;
    }
    let mut byte = [0u8; 1];
    // SAFETY: one byte of this frame.
    let got = unsafe {
        sys::recv(
            fd,
            byte.as_mut_ptr(),
            1,
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        )
    };
    match got {
        Ok(0) => {
            // A FIN while neither word is sealed: the peer's process died, or either end shut down.
            let is_reset = peer_end::died_with_unread(sock) && emulated_reset::make(sock);
            if is_reset || peer_end::died_unended(sock) {
                // Later writes must get the kernel's error.
                demote::demote(sock, Which::Tx, Reason::PeerDied);
            }
            // Another thread may have begun a reset since.
            let is_news =
                before == Resetting::None && emulated_reset::resetting(sock) != Resetting::None;
            if is_reset || is_news {
                Look::Again
            } else {
                Look::End
            }
        }
        // After SHUT_RD TCP always has news; these bytes have come only now.
        Ok(_) if has_more() => Look::Again,
        Err(libc::EAGAIN | libc::EINTR) => Look::Empty,
        Ok(_) => {
            // Bytes on TCP that no demotion announced: another process writes to the socket.
            sock.pin(Reason::Shared);
            demote::settle_rx(sock, Reason::Shared);
            Look::Again
        }
        Err(e) => Look::Failed(Error::Kernel(e)),
    }
}

/// Like [`empty`], between hosts, where TCP's news may be the peer's record.
fn empty_beside_record(sock: &'static Socket, fd: c_int, has_more: impl Fn() -> bool) -> Look {
    let had_ended = tcp::has_ended(fd);
    if carrier::hear_tcp(sock, fd) || has_more() || !had_ended && tcp::has_ended(fd) {
        return Look::Again;
    }
    if sock.has_shut_reading() {
        // TCP has part of a record, or a record that has come since.
        return if sock.rx.owed.load(Ordering::Relaxed) == unread_copy::SOME {
            Look::Owed
        } else {
            Look::End
        };
    }
    if tcp::has_bytes(fd) {
        // Part of a record.
        return Look::Empty;
    }
    // POLLIN without bytes: a relative has shut down the reading half.
    match sys::poll_one(fd, libc::POLLIN, Some(sys::timespec(0))) {
        Ok(shown) if shown & libc::POLLIN != 0 && !tcp::has_bytes(fd) => Look::End,
        _ => Look::Empty,
    }
}
