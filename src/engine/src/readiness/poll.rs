//! `poll` and `ppoll`.

use super::nest;
use super::set::{self, Set};
use crate::api::{Error, Pass, Verdict};
use crate::process;
use crate::rendezvous;
use crate::sockets::demote::{self, Which};
use crate::sockets::sock::{Sock, state};
use crate::sockets::{table, upgrade};
use core::sync::atomic::Ordering;
use libc::{c_short, nfds_t, pollfd, sigset_t, timespec};
use sluice_fabric::sys;
use sluice_stats::Reason;
use std::cell::Cell;

const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// Tracked sockets of one call that are marked one by one while it waits in the kernel.
const MARKED: usize = 64;

/// Accelerated sockets of one call.
struct Streams {
    /// Position in the array, and the socket.
    list: Vec<(usize, &'static Sock)>,
}

/// Streams of a parent's are not served here: they go back to TCP at their first use.
fn own(sock: &'static Sock) -> bool {
    let inherited = state::INHERITED;
    if sock.rx.state() == inherited || sock.tx.state() == inherited {
        demote::demote(sock, Which::Both, Reason::Fork);
    }
    sock.is_accelerated()
}

fn accelerated(fds: &[pollfd]) -> Streams {
    let list = fds
        .iter()
        .enumerate()
        .filter_map(|(i, p)| Some((i, table::lookup(p.fd)?.as_sock()?)))
        .filter(|(_, sock)| sock.is_accelerated() && own(sock))
        .collect();
    Streams { list }
}

/// `poll` and `ppoll`.
///
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn poll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Verdict {
    if count == 0 || fds.is_null() || count > table::TABLE_LEN as nfds_t {
        return Verdict::Pass(Pass::NOBODY);
    }
    if count > 256 && count > soft_limit() {
        // The kernel refuses without a look at the array.
        return Verdict::Pass(Pass::NOBODY);
    }
    // SAFETY: the caller's array.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    let mut tracked = false;
    for p in fds.iter() {
        if let Some(entry) = table::lookup(p.fd) {
            tracked = true;
            if let Some(set) = entry.as_set() {
                watched(set);
            }
        }
    }
    if !tracked || process::waits_by_itself() {
        return Verdict::Pass(Pass::NOBODY);
    }
    // SAFETY: null, or the caller's.
    let timeout = unsafe { timeout.as_ref() };
    if timeout.is_some_and(|t| t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec)) {
        return Verdict::Pass(Pass::NOBODY);
    }
    let deadline = timeout.map(|t| {
        sys::now_ns()
            .saturating_add((t.tv_sec as u64).saturating_mul(1_000_000_000))
            .saturating_add(t.tv_nsec as u64)
    });
    let mut end = Deadline {
        at: deadline,
        asked_none: timeout.is_some_and(|t| t.tv_sec == 0 && t.tv_nsec == 0),
    };
    // SAFETY: the mask is the caller's.
    match unsafe { run(fds, &mut end, mask) } {
        Ok(n) => Verdict::Done(n as isize),
        Err(libc::EINTR) => Verdict::Failed(Error::Interrupted),
        Err(e) => Verdict::Failed(Error::Kernel(e)),
    }
}

/// RLIMIT_NOFILE: the most entries that poll takes.
pub fn soft_limit() -> nfds_t {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid pointer; getrlimit is not hooked.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if failed == 0 { limit.rlim_cur } else { 1024 }
}

/// A set is among the descriptors of a poll or select.
pub(super) fn watched(set: &'static Set) {
    if set.inherited.load(Ordering::Relaxed) {
        set.use_inherited();
    }
    set.is_nested();
}

/// When a call must return at the latest.
pub(super) struct Deadline {
    pub at: Option<u64>,
    /// The caller does not want to wait at all.
    pub asked_none: bool,
}

impl Deadline {
    /// Nanoseconds left; `None` for ever.
    pub fn left(&self) -> Option<u64> {
        if self.asked_none {
            Some(0)
        } else {
            self.at.map(|at| at.saturating_sub(sys::now_ns()))
        }
    }
}

/// Waits until a descriptor is ready. The array's `revents` are filled as `ppoll` fills them.
///
/// # Safety
/// `mask` is null or valid.
pub(super) unsafe fn run(
    fds: &mut [pollfd],
    end: &mut Deadline,
    mask: *const sigset_t,
) -> Result<usize, sys::Errno> {
    let sets = fds
        .iter()
        .any(|p| table::lookup(p.fd).is_some_and(|e| e.as_set().is_some()));
    // A list with sets was found ready: what is ready now, with the sets settled, is the answer.
    let mut seen = false;
    loop {
        if rendezvous::is_meeting() {
            rendezvous::progress();
        }
        if sets {
            nest::settle_all();
        }
        let streams = accelerated(fds);
        if streams.list.is_empty() && !(sets && seen) {
            seen = sets;
            // SAFETY: the mask is the caller's.
            match unsafe { in_kernel(fds, end, mask) } {
                // A set's doorbell may have rung for bytes that are read already.
                Some(Ok(1..)) if sets => {}
                Some(answer) => return answer,
                None => continue,
            }
        }
        let left = end.left();
        let last = if left == Some(0) {
            mask
        } else {
            core::ptr::null()
        };
        // SAFETY: the mask is the caller's.
        let ready = unsafe { look(fds, &streams, Some(0), None, last) }?;
        if ready != 0 || left == Some(0) {
            return Ok(ready);
        }
        seen = false;
        if !streams.list.is_empty() && spin(fds, &streams) {
            continue;
        }
        if streams.list.is_empty() {
            continue;
        }
        // SAFETY: the mask is the caller's.
        match unsafe { sleep(fds, &streams, left, mask) }? {
            0 => {}
            _ if sets => {}
            ready => return Ok(ready),
        }
    }
}

/// No stream is among them: the kernel's call, in slices while a meeting needs us, marked so that no reader consents
/// meanwhile. `None`: look again.
unsafe fn in_kernel(
    fds: &mut [pollfd],
    end: &Deadline,
    mask: *const sigset_t,
) -> Option<Result<usize, sys::Errno>> {
    let mut marked: [Option<&'static Sock>; MARKED] = [None; MARKED];
    let mut count = 0;
    let mut big = false;
    for p in fds.iter() {
        if let Some(sock) = table::lookup(p.fd).and_then(table::Entry::as_sock) {
            match marked.get_mut(count) {
                Some(to) => {
                    sock.polls.fetch_add(1, Ordering::SeqCst);
                    *to = Some(sock);
                    count += 1;
                }
                None => big = true,
            }
        }
    }
    if big {
        super::BIG_WAITS.fetch_add(1, Ordering::SeqCst);
    }
    // A stream may have come up before the marks were seen.
    let late = marked.iter().flatten().any(|s| s.is_accelerated());
    let mut left = end.left();
    let mut sliced = false;
    if rendezvous::needs_hooks() {
        if let Some(meeting) = rendezvous::watched(|_| ()) {
            sliced = left.is_none_or(|l| meeting < l);
            left = Some(left.map_or(meeting, |l| l.min(meeting)));
        }
    }
    let answer = if late {
        None
    } else {
        let mut time = left.map(to_timespec);
        let at = time
            .as_mut()
            .map_or(core::ptr::null_mut(), core::ptr::from_mut);
        // SAFETY: the caller's array and mask; a time of ours.
        Some(unsafe { sys::ppoll(fds.as_mut_ptr(), fds.len(), at, mask) })
    };
    for sock in marked.iter().flatten() {
        sock.polls.fetch_sub(1, Ordering::SeqCst);
    }
    if big {
        super::BIG_WAITS.fetch_sub(1, Ordering::SeqCst);
    }
    for sock in marked.iter().flatten() {
        if sock.rx.state() == state::PROVED {
            upgrade::consent(sock);
        }
    }
    match answer {
        Some(Ok(0)) if sliced => None,
        other => other,
    }
}

fn to_timespec(ns: u64) -> timespec {
    timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

/// What the ring says of `sock`, as poll's bits, under its locks.
fn of(sock: &'static Sock) -> c_short {
    if sock.rx.lock.lock().is_err() {
        return 0;
    }
    if sock.tx.lock.lock().is_err() {
        sock.rx.lock.unlock();
        return 0;
    }
    let bits = super::of_stream(sock) as c_short;
    sock.tx.lock.unlock();
    sock.rx.lock.unlock();
    bits
}

/// One look at streams and kernel, waiting in the kernel for at most `wait` ns, also for `bell`.
unsafe fn look(
    fds: &mut [pollfd],
    streams: &Streams,
    wait: Option<u64>,
    bell: Option<i32>,
    mask: *const sigset_t,
) -> Result<usize, sys::Errno> {
    // OUT of a socket on the link is the ring's to say: the kernel's is always ready.
    let mut held: Vec<(usize, c_short)> = Vec::new();
    let mut any = false;
    for &(i, sock) in &streams.list {
        let Some(p) = fds.get_mut(i) else { continue };
        held.push((i, p.events));
        if of(sock) & p.events != 0 {
            any = true;
        }
        if sock.tx.state() == state::LINK {
            p.events &= !WRITE;
        }
    }
    let mut time = if any {
        Some(to_timespec(0))
    } else {
        wait.map(to_timespec)
    };
    let at = time
        .as_mut()
        .map_or(core::ptr::null_mut(), core::ptr::from_mut);
    let answer = match bell {
        None => {
            // SAFETY: the caller's array and mask.
            unsafe { sys::ppoll(fds.as_mut_ptr(), fds.len(), at, mask) }
        }
        Some(bell) => {
            let mut all: Vec<pollfd> = fds.to_vec();
            all.push(pollfd {
                fd: bell,
                events: libc::POLLIN,
                revents: 0,
            });
            // SAFETY: an array of ours, the caller's mask.
            let answer = unsafe { sys::ppoll(all.as_mut_ptr(), all.len(), at, mask) };
            for (to, from) in fds.iter_mut().zip(&all) {
                to.revents = from.revents;
            }
            answer
        }
    };
    for (i, events) in held {
        if let Some(p) = fds.get_mut(i) {
            p.events = events;
        }
    }
    answer?;
    for &(i, sock) in &streams.list {
        let Some(p) = fds.get_mut(i) else { continue };
        p.revents |= of(sock) & p.events & (READ | WRITE);
    }
    Ok(fds.iter().filter(|p| p.revents != 0).count())
}

/// Spins on up to four streams.
fn spin(fds: &[pollfd], streams: &Streams) -> bool {
    if streams.list.len() > 4 {
        return false;
    }
    let Some(&(_, first)) = streams.list.first() else {
        return false;
    };
    let Some(link) = first.link() else {
        return false;
    };
    if first.rx.lock.lock().is_err() {
        return false;
    }
    let Some(peer) = first.rx.dir().map(|d| d.tx.cpu.load(Ordering::Relaxed)) else {
        first.rx.lock.unlock();
        return false;
    };
    link.pin();
    first.rx.lock.unlock();
    let news = || {
        streams
            .list
            .iter()
            .any(|&(i, sock)| fds.get(i).is_some_and(|p| of(sock) & p.events != 0))
    };
    let found = super::spin::until(&first.rx, peer, news);
    link.unpin();
    found
}

thread_local! {
    /// The private set in which this thread's doorbells for poll and select are.
    static BELLS: Cell<Option<&'static Set>> = const { Cell::new(None) };
}

/// This thread's private set, made at first use.
fn bells() -> Option<&'static Set> {
    if let Some(set) = BELLS.get() {
        return Some(set);
    }
    let fd = crate::sockets::internal::lift(sys::epoll_create().ok()?)?;
    let set = set::alloc(fd.raw())?;
    let _ = fd.release();
    set.private.store(true, Ordering::Relaxed);
    BELLS.set(Some(set));
    crate::thread::watch_exit();
    Some(set)
}

/// The thread ends: its set goes.
pub fn thread_ends() {
    if let Some(set) = BELLS.take() {
        let fd = set.fd();
        set.drop_entry();
        crate::sockets::internal::forget(fd);
        let _ = sys::close(fd);
    }
}

/// In the child of a fork: the private set's bells are the parent's.
pub fn after_fork() {
    BELLS.set(None);
}

/// Announces on every stream, looks again, sleeps.
unsafe fn sleep(
    fds: &mut [pollfd],
    streams: &Streams,
    left: Option<u64>,
    mask: *const sigset_t,
) -> Result<usize, sys::Errno> {
    let Some(set) = bells() else {
        for &(_, sock) in &streams.list {
            demote::demote(sock, Which::Both, Reason::DescriptorLimit);
        }
        return Ok(0);
    };
    let mut wished = Vec::new();
    for &(i, sock) in &streams.list {
        let Some(p) = fds.get(i) else { continue };
        if sock.rx.lock.lock().is_err() {
            continue;
        }
        let link = sock.link();
        if let Some(link) = link {
            link.pin();
        }
        sock.rx.lock.unlock();
        let Some(link) = link else { continue };
        match set.slot_for(link) {
            Some(slot) => {
                wish(sock, p.events, slot, true);
                wished.push((sock, p.events, slot, link));
            }
            None => {
                link.unpin();
                demote::demote(sock, Which::Both, Reason::Limit);
            }
        }
    }
    set.sleepers.fetch_add(1, Ordering::SeqCst);
    set.announce_and_look();
    // Streams that came or went since the list was made: a short look, then again.
    let stale = accelerated(fds).list.len() != streams.list.len();
    let wait = if stale { Some(0) } else { left };
    // SAFETY: the mask is the caller's.
    let answer = unsafe { look(fds, streams, wait, Some(set.fd()), mask) };
    set.sleepers.fetch_sub(1, Ordering::SeqCst);
    set.retract();
    for (sock, events, slot, link) in wished {
        wish(sock, events, slot, false);
        link.unpin();
    }
    set.drain();
    answer
}

/// Enters or takes out this thread's slot as a waiter of the stream.
fn wish(sock: &'static Sock, events: c_short, slot: u32, on: bool) {
    let bit = 1u64 << slot;
    if events & READ != 0 && sock.rx.lock.lock().is_ok() {
        if let Some(dir) = sock.rx.dir() {
            if on {
                dir.rx_wishes.waiters.fetch_or(bit, Ordering::SeqCst);
            } else {
                dir.rx_wishes.waiters.fetch_and(!bit, Ordering::SeqCst);
            }
        }
        sock.rx.lock.unlock();
    }
    if events & WRITE != 0 && sock.tx.lock.lock().is_ok() {
        if let Some(dir) = sock.tx.dir() {
            if on {
                dir.tx_wishes.waiters.fetch_or(bit, Ordering::SeqCst);
                if sock.tx.state() == state::LINK && !super::has_room(sock) {
                    rendezvous::control::watch_full(sock);
                }
            } else {
                dir.tx_wishes.waiters.fetch_and(!bit, Ordering::SeqCst);
            }
        }
        sock.tx.lock.unlock();
    }
}

impl Set {
    /// Takes the rings and the marks of a private set, which is only ever asked whether it was rung.
    pub(super) fn drain(&'static self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let now = timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: an array of ours.
        let _ = unsafe {
            sys::epoll_wait(
                self.fd(),
                events.as_mut_ptr(),
                16,
                Some(&now),
                core::ptr::null(),
            )
        };
        let _ = self.harvest(&mut []);
    }
}
