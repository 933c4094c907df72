//! Blocking on a stream: spin a little where that helps, then announce, look again, sleep.
//!
//! | wait of | function | ends with |
//! |---|---|---|
//! | a recv on a stream | [`for_data`] | bytes in the ring, an offer, a demotion, or news of TCP |
//! | a recv on TCP | [`for_rest`] | what TCP has of the missing bytes |
//! | a send, ring full | [`for_space`] | room; else the stream is demoted after [`full_ns`] |
//! | a send, direct | [`for_advert`], [`for_taker`] | the reader's buffer, or its copy |
//! | a send, re-sending | [`for_tcp_room`], [`for_link`] | room in TCP, or the peer's word |
//! | a send on TCP | [`for_kernel`] | room in TCP |
//!
//! A wait on a stream takes the half's [`Section`] and releases it, since no thread sleeps with a
//! lock. Before that it pins the link, so that the words that it watches stay mapped. If it returns
//! [`Parked`](Waited::Parked) it has announced its sleep: the hook makes it, with nothing locked,
//! and `io_wait::wakes_up` takes the announcement back and unpins the link. [`woken`] then says how
//! the call ends, or that the engine is to be called again.
//!
//! A sleeper is woken on its slot's word by the peer, which reads the waiters after it has changed
//! a word of the stream; by a thread of this process that changes the half's state; and by the
//! control thread when TCP has news (`work::on_tcp`), since a futex does not watch TCP.
//!
//! A change must keep these rules:
//! - The bit among the waiters and the slot are announced first, then the state and the words are
//!   read again: a thread that changes them reads the waiters afterwards.
//! - What ends the sleep is looked at before it, too. A word that stays as it is, as a flag does
//!   after a demotion, is no news, or the call runs in circles.
//! - A signal handler that has run since the call began ends it as in the kernel ([`Ends`]).

use crate::demote::{self, Which};
use crate::io_wait::{self, IoWait, Waited};
use crate::socket::{Half, Known, Socket, State};
use crate::verdict::{Error, Verdict};
use crate::{carrier, direct, jobs, options, path, tcp};
use core::sync::atomic::Ordering;
use sluice_fabric::layout::Direction;
use sluice_fabric::lock::Section;
use sluice_fabric::shm::Link;
use sluice_fabric::sync::fence_after_rmw;
use sluice_fabric::sys::{self, Ends};
use sluice_runtime::{spin, thread};
use sluice_stats::Reason;
use sluice_transport::Carrier;
use sluice_transport::links;

/// [`full_ns`] while the stream is on its way to a link between hosts: its reader has TCP to read
/// first, megabytes perhaps. It gives up before this ([`jobs::watch_far`]), and the link's timer
/// after it.
const SWITCH_NS: u64 = 3_000_000_000;

/// The reader of a full ring is given so many round trips at least.
const ROUND_TRIPS: u64 = 8;

/// How long the reader of a full ring may be without reading, in ns.
pub(crate) fn full_ns(sock: &Socket) -> u64 {
    if carrier::is_switching(sock) {
        SWITCH_NS
    } else {
        // Room is heard of a round trip later.
        sock.carrier().full_ns.max(ROUND_TRIPS * path::rtt_ns(sock))
    }
}

/// Under the rx lock, which it releases: waits until the tail is at least `beyond`, or the
/// stream or TCP has other news.
#[cold]
pub(crate) fn for_data(
    section: Section<'_>,
    sock: &'static Socket,
    fd: i32,
    deadline: Option<u64>,
    beyond: u64,
    io_wait: &mut IoWait,
) -> Waited {
    let (Some(dir), Some(link)) = (sock.rx.dir(), sock.link()) else {
        return Waited::News;
    };
    let on_link = sock.rx.state() == State::Link;
    // The look before this wait took the writer for not switched: if it is by now, that is news.
    // (To read the word here again and wait for it to change would miss a switch between the two.)
    let unswitched = sock.rx.state() == State::Proved;
    // Both words stay flagged then, so only the state tells of news, and TCP of bytes.
    let returning = sock.rx.state() == State::Returning;
    // An offer after unread bytes is not next: a wait for more than there is does not look at it.
    let offers = on_link && beyond == sock.rx.at.load(Ordering::Relaxed) + 1;
    let seen = sock.direct.seen.load(Ordering::Relaxed);
    let lends = io_wait.lent && sock.carrier().is_driven;
    let frame = io_wait.frame();
    link.pin();
    drop(section);
    let news = || {
        if returning {
            return sock.rx.state.get_in_order() != State::Returning;
        }
        // No word of the stream tells that a writer wants the buffer back.
        if lends && carrier::is_loan_over(sock, frame) {
            return true;
        }
        let tail = dir.tx.tail.read();
        tail.flagged
            || dir.rx.head.read().flagged
            || if on_link {
                tail.offset >= beyond
                    || offers && is_new(dir.offer.word.load(Ordering::Acquire), seen)
            } else {
                unswitched && dir.tx_wishes.switched.load(Ordering::Acquire) != 0
            }
    };
    let waited = if on_link && spins(&sock.rx, link, dir.tx.cpu.load(Ordering::Relaxed), news) {
        sock.conn().rx.spins.add_shared(1);
        Waited::News
    } else {
        sock.conn().rx.sleeps.add_shared(1);
        let look = || news() || tcp::speaks(fd, sock.rcvlowat.load(Ordering::Relaxed));
        let ends = io_wait.ends();
        sleep(
            sock,
            link,
            Side::Reader(dir),
            deadline,
            ends,
            look,
            Some(io_wait),
        )
    };
    if waited != Waited::Parked {
        link.unpin();
    }
    waited
}

/// An offer that the reader has not looked at; 0 is one in the making.
fn is_new(offer: u64, seen: u64) -> bool {
    offer != seen && offer != 0
}

/// Under the tx lock, which it releases: waits until the reader's ADVERT is another than that of
/// `serial`.
#[cold]
pub(crate) fn for_advert(
    section: Section<'_>,
    sock: &'static Socket,
    until: u64,
    ends: Ends,
    serial: u64,
) -> Waited {
    let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) else {
        return Waited::News;
    };
    link.pin();
    drop(section);
    let news = || {
        dir.rx.head.read().flagged
            || dir.tx.tail.read().flagged
            || dir.advert.serial.load(Ordering::Acquire) != serial
    };
    let waited = if spin::until(
        &sock.tx.spin_ns,
        &sock.tx.spin_skip,
        dir.rx.cpu.load(Ordering::Relaxed),
        news,
    ) {
        sock.conn().tx.spins.add_shared(1);
        Waited::News
    } else {
        sock.conn().tx.sleeps.add_shared(1);
        // Slept here, not in the hook: a cancellation waits for the end of our patience.
        sleep(sock, link, Side::Writer(dir), Some(until), ends, news, None)
    };
    link.unpin();
    waited
}

/// Under the tx lock, which it releases: waits until another host's reader `takes` something, or
/// the stream has other news.
#[cold]
pub(crate) fn for_taker(
    section: Section<'_>,
    sock: &'static Socket,
    until: u64,
    takes: impl Fn() -> bool,
) {
    let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) else {
        return;
    };
    link.pin();
    drop(section);
    let has_left = || sock.tx.state.get_in_order() == State::Plain || !sock.tx.is_at(dir);
    let news = || dir.rx.head.read().flagged || dir.tx.tail.read().flagged || takes() || has_left();
    let mut waited = Waited::News;
    // `TimedOut` at once ends the loop, too: in a handler nobody else can drive the link.
    while waited == Waited::News && !news() {
        let side = Side::Writer(dir);
        waited = sleep(sock, link, side, Some(until), Ends::NEVER, news, None);
    }
    link.unpin();
}

/// Under the tx lock, which it releases: waits until the ring has room again. A reader that does
/// not read has the stream demoted.
#[cold]
pub(crate) fn for_space(
    section: Section<'_>,
    sock: &'static Socket,
    deadline: Option<u64>,
    ends: Ends,
    mut io_wait: Option<&mut IoWait>,
) -> Waited {
    let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) else {
        return Waited::News;
    };
    let seen = sock.tx.seen.load(Ordering::Relaxed);
    link.pin();
    drop(section);
    let news = || {
        let head = dir.rx.head.read();
        head.flagged || head.offset != seen || dir.tx.tail.read().flagged
    };
    let waited = if spins(&sock.tx, link, dir.rx.cpu.load(Ordering::Relaxed), news) {
        sock.conn().tx.spins.add_shared(1);
        Waited::News
    } else {
        sock.conn().tx.sleeps.add_shared(1);
        let patience = sys::now_ns() + full_ns(sock);
        let until = deadline.map_or(patience, |d| d.min(patience));
        if let Some(io_wait) = &mut io_wait {
            io_wait.seen_head = seen;
        }
        match sleep(
            sock,
            link,
            Side::Writer(dir),
            Some(until),
            ends,
            news,
            io_wait,
        ) {
            // Also where the program's own patience (SO_SNDTIMEO) was shorter: TCP has room for
            // more than the ring, and says itself when it has none.
            Waited::TimedOut => {
                if !news() {
                    demote::demote(sock, Which::Both, Reason::RingFull);
                }
                Waited::News
            }
            other => other,
        }
    };
    if waited != Waited::Parked {
        link.unpin();
    }
    waited
}

/// Waits for news on the processor, within reason.
fn spins(half: &Half, link: &'static Link, peer: u32, news: impl Fn() -> bool) -> bool {
    if !Carrier::of(link).is_driven {
        return spin::until(&half.spin_ns, &half.spin_skip, peer, news);
    }
    let news = || {
        links::drive(link);
        news()
    };
    news() || spin::remote(&half.spin_ns, &half.spin_skip, news)
}

enum Side<'a> {
    Reader(&'a Direction),
    Writer(&'a Direction),
}

/// Announces, looks again, sleeps on the slot of this thread, or has the hook do so. The caller has
/// pinned the link, and unpins it unless the sleep is parked.
fn sleep(
    sock: &'static Socket,
    link: &'static Link,
    side: Side<'_>,
    deadline: Option<u64>,
    ends: Ends,
    news: impl Fn() -> bool,
    io_wait: Option<&mut IoWait>,
) -> Waited {
    let slot_index = thread::slot_on(link);
    let Some((index, slot)) = slot_index.and_then(|i| Some((i, link.my_slot(i)?))) else {
        // More sleeping threads than a link has slots: this stream does without.
        demote::demote(sock, Which::Both, Reason::Limit);
        return Waited::News;
    };
    let (half, dir, waiters, writer) = match side {
        Side::Reader(dir) => (&sock.rx, dir, &dir.rx_wishes.waiters, false),
        Side::Writer(dir) => (&sock.tx, dir, &dir.tx_wishes.waiters, true),
    };
    // The stream may have ended since the lock was released, and its words may be another's. A
    // thread that ends it stores the state, then reads the waiters; a stream that begins clears the
    // waiters, so this thread's bit is gone and nobody would wake it.
    let bit = 1 << index;
    let is_over = || {
        half.state.get_in_order() == State::Plain
            || !half.is_at(dir)
            || waiters.load(Ordering::SeqCst) & bit == 0
    };
    if let Some(io_wait) = &io_wait {
        // What a sleep left by a jump has announced goes before this one announces the same.
        io_wait::left_sleeps(io_wait.frame());
    }
    waiters.fetch_or(bit, Ordering::SeqCst);
    slot.publish_cpu(thread::cpu());
    slot.announce();
    // The thread that hears of news wakes this one: the kernel would not restart a sleep on the
    // link's descriptor after a signal handler. A handler that interrupted this thread's own
    // driving of the link would sleep for ever: its call ends with EAGAIN, as where it meets a
    // lock of its own thread.
    let is_driven = links::arm(link);
    let mut waited = Waited::News;
    if !is_over() && !news() {
        let left = deadline.map(|d| d.saturating_sub(sys::now_ns()));
        if left == Some(0) || !is_driven {
            waited = Waited::TimedOut;
        } else if let Some(io_wait) = io_wait
            && io_wait::falls_asleep(io_wait.frame(), link, index, waiters)
        {
            io_wait.word = slot.sleep_word();
            io_wait.counts_as_call = false;
            io_wait.until = deadline.unwrap_or(0);
            io_wait.writer = writer;
            return Waited::Parked;
        } else {
            let timeout = left.map(sys::timespec);
            // (A recv that lent its buffer sleeps in the hook: only that takes the loan back if a
            // handler jumps out.)
            // SAFETY: the word lies in the pinned arena.
            let slept = unsafe { sys::futex_wait(slot.sleep_word(), 1, timeout.as_ref(), ends) };
            waited = ended(slept.err().unwrap_or(0), ends, timeout.is_none());
        }
    }
    slot.retract();
    waiters.fetch_and(!bit, Ordering::SeqCst);
    waited
}

/// How a sleep has ended that any of `handlers` ends. The kernel ends it for other handlers, too,
/// unless `kernel_restarts` it after them, as it does a futex's without a time limit. Then EINTR is
/// of a handler that ends the call.
pub(super) fn ended(errno: i32, handlers: Ends, kernel_restarts: bool) -> Waited {
    let ends_call = || kernel_restarts || handlers.are_any() || handlers.have_run();
    match errno {
        // Another one that is not counted is the C library's, most likely.
        libc::EINTR if ends_call() => Waited::Interrupted,
        // No last look: a writer whose call returned before the time was over has woken the futex.
        libc::ETIMEDOUT => Waited::TimedOut,
        _ => Waited::News,
    }
}

/// The hook has slept for a call: how that ends, or `None` when the engine is to be called again.
pub fn woken(io_wait: &mut IoWait) -> Option<Verdict> {
    let error = match how_it_slept(io_wait) {
        Waited::News | Waited::Parked => return None,
        Waited::Interrupted => Error::Interrupted,
        Waited::TimedOut => Error::WouldBlock,
    };
    Some(if io_wait.done == 0 && !io_wait.empty {
        Verdict::Failed(error)
    } else {
        Verdict::Done(io_wait.done as isize)
    })
}

/// The thread has slept for a call: takes back what was announced, and says how the wait ended.
#[cold]
fn how_it_slept(io_wait: &mut IoWait) -> Waited {
    io_wait::wakes_up(io_wait.frame());
    end_below_low(io_wait);
    let waited = if io_wait.counts_as_call {
        woken_in_kernel(io_wait)
    } else {
        ended(
            io_wait.errno,
            io_wait.ends(),
            !io_wait.word.is_null() && io_wait.until == 0,
        )
    };
    if waited != Waited::News {
        direct::revoke(io_wait);
    } else {
        io_wait.goes_on();
    }
    if waited != Waited::TimedOut {
        return waited;
    }
    // A writer's time is over: the patience with the reader, the program's SO_SNDTIMEO (as in
    // `for_space`), or the time between two looks.
    if let Some(known) = io_wait
        .known
        .filter(|_| io_wait.writer && !io_wait.word.is_null())
    {
        let sock = known.sock();
        let stuck = sock.tx.lock.enter().is_ok_and(|_section| {
            let dir = sock
                .tx
                .dir()
                .filter(|_| known.is_same() && sock.tx.state() == State::Link);
            dir.is_some_and(|d| {
                let head = d.rx.head.read();
                !head.flagged && head.offset == io_wait.seen_head
            })
        });
        if stuck {
            demote::demote(sock, Which::Both, Reason::RingFull);
        }
        // The reader has just read some. What the ring does not take now TCP does.
        return Waited::News;
    }
    if io_wait.deadline != 0 && sys::now_ns() >= io_wait.deadline {
        Waited::TimedOut
    } else {
        Waited::News
    }
}

/// Under the tx lock, which it releases: waits until the link, or the peer, has told how a
/// re-send goes on.
#[cold]
pub(crate) fn for_link(
    section: Section<'_>,
    sock: &'static Socket,
    deadline: Option<u64>,
    ends: Ends,
    io_wait: Option<&mut IoWait>,
) -> Waited {
    let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) else {
        return Waited::News;
    };
    link.pin();
    drop(section);
    let news = || !carrier::is_held(sock);
    let waited = sleep(sock, link, Side::Writer(dir), deadline, ends, news, io_wait);
    if waited != Waited::Parked {
        link.unpin();
    }
    waited
}

/// With the tx lock held: a non-blocking writer found the ring full. Its epoll sets will hear of
/// space; a reader that does not read is found by the control thread. False: there is space now.
#[cold]
pub(crate) fn ask_for_space(sock: &'static Socket) -> bool {
    let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) else {
        return false;
    };
    let sets = crate::socket::watcher::slots_of(sock, link);
    dir.tx_wishes.waiters.fetch_or(sets, Ordering::SeqCst);
    fence_after_rmw();
    let head = dir.rx.head.read();
    if head.flagged || head.offset != sock.tx.seen.load(Ordering::Relaxed) {
        return false;
    }
    jobs::watch_full(sock);
    true
}

/// With the tx lock held: a non-blocking writer has to wait for the end of a re-send, or of
/// another's turn. Its epoll sets will hear of it. No second look as in [`ask_for_space`]: the
/// thread that ends the re-send reads the waiters under this lock.
#[cold]
pub(crate) fn ask_for_tcp_room(sock: &'static Socket) {
    if let (Some(dir), Some(link)) = (sock.tx.dir(), sock.link()) {
        let sets = crate::socket::watcher::slots_of(sock, link);
        dir.tx_wishes.waiters.fetch_or(sets, Ordering::SeqCst);
    }
}

/// A wait for TCP after a re-send looks this often whether the program has shut the socket
/// down, or closed it: TCP itself is only shut down after the last byte, and a poll that has begun
/// does not learn of a close.
const SHUT_LOOK_NS: u64 = 200_000_000;

/// Under the tx lock, which it releases: bytes are being sent again and TCP has no room.
#[cold]
pub(crate) fn for_tcp_room(
    section: Section<'_>,
    fd: i32,
    deadline: Option<u64>,
    ends: Ends,
    io_wait: Option<&mut IoWait>,
) -> Waited {
    drop(section);
    let look = sys::now_ns() + SHUT_LOOK_NS;
    let until = deadline.map_or(look, |d| d.min(look));
    if let Some(io_wait) = io_wait {
        io_wait.word = core::ptr::null();
        io_wait.fd = fd;
        io_wait.events = libc::POLLOUT;
        io_wait.counts_as_call = false;
        io_wait.until = until;
        io_wait.writer = true;
        return Waited::Parked;
    }
    let left = sys::timespec(until.saturating_sub(sys::now_ns()));
    let errno = match sys::poll_one_unless(ends, fd, libc::POLLOUT, Some(left)) {
        Ok(0) => libc::ETIMEDOUT,
        Ok(_) => 0,
        Err(e) => e,
    };
    match ended(errno, ends, false) {
        Waited::TimedOut if deadline.is_none_or(|d| sys::now_ns() < d) => Waited::News,
        other => other,
    }
}

/// Under the rx lock: a recv is about to sleep until it gets `missing` bytes. Of fewer than
/// SO_RCVLOWAT the kernel would not tell. The socket is noted.
#[cold]
pub(crate) fn begin_below_low(sock: &Socket, missing: usize, io_wait: &mut IoWait) {
    if missing < sock.rcvlowat.load(Ordering::Relaxed) as usize {
        options::wait_below_low(sock);
        io_wait.low = true;
    }
}

/// After the sleep. Where the socket was closed meanwhile there is nothing to put back.
#[cold]
pub(crate) fn end_below_low(io_wait: &mut IoWait) {
    let low = core::mem::take(&mut io_wait.low);
    let Some(known) = io_wait.known.filter(|_| low) else {
        return;
    };
    let sock = known.sock();
    if let Ok(_section) = sock.rx.lock.enter()
        && known.is_open()
    {
        options::waited_below_low(sock);
    }
}

/// As [`for_kernel`], for a recv that gets `missing` bytes more, from whichever TCP has of them.
#[cold]
pub(crate) fn for_rest(
    sock: &'static Socket,
    fd: i32,
    missing: usize,
    deadline: Option<u64>,
    io_wait: &mut IoWait,
) -> bool {
    if let Ok(_section) = sock.rx.lock.enter()
        && !io_wait.is_lost()
    {
        begin_below_low(sock, missing, io_wait);
    }
    let waits = for_kernel(&sock.rx, fd, libc::POLLIN, deadline, io_wait);
    if !waits {
        end_below_low(io_wait);
    }
    waits
}

/// A call that began on the link goes on, on TCP, when that has `events`: has the hook wait for
/// them. Counted as a call in the kernel, since no doorbell ends the sleep. The socket is noted.
/// False: a stream has come up, or the socket is closed, look again.
#[cold]
pub(crate) fn for_kernel(
    half: &Half,
    fd: i32,
    events: i16,
    deadline: Option<u64>,
    io_wait: &mut IoWait,
) -> bool {
    if io_wait.is_lost() {
        return false;
    }
    half.call_begins();
    if half.state.get_in_order() != State::Plain || io_wait.is_lost() {
        half.call_ends(0);
        return false;
    }
    io_wait.word = core::ptr::null();
    io_wait.fd = fd;
    io_wait.events = events;
    io_wait.counts_as_call = true;
    io_wait.until = deadline.unwrap_or(0);
    io_wait.writer = events & libc::POLLOUT != 0;
    true
}

/// The sleep of [`for_kernel`], which the kernel never restarts, is over.
fn woken_in_kernel(io_wait: &mut IoWait) -> Waited {
    io_wait.counts_as_call = false;
    if let Some(sock) = io_wait.known.map(Known::sock) {
        // Also where the socket is closed: the count is the structure's.
        let half = if io_wait.writer { &sock.tx } else { &sock.rx };
        half.call_ends(0);
        if sock.rx.state() != State::Plain {
            crate::upgrade::consent(sock);
        }
    }
    ended(io_wait.errno, io_wait.ends(), false)
}
