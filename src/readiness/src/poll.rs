//! `poll` and `ppoll`; `select` comes here, too.
//!
//! A list without accelerated sockets is the kernel's to wait for. With some, the kernel and the
//! rings are looked at in turn, and the thread sleeps in `ppoll` on the program's entries together
//! with a private set that holds its doorbells ([`super::bells`]). The hook makes the sleeps
//! ([`super::wait_state`]).

use super::bells::bells;
use super::kernel_events::{self, Moment};
use super::set::Set;
use super::wait_state::{On, Stage, WaitState, failed};
use core::sync::atomic::Ordering;
use libc::{c_short, nfds_t, pollfd, sigset_t, timespec};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_runtime::{caller, fd_table, seccomp, spin};
use sluice_sockets::demote::{self, Which};
use sluice_sockets::inherited::is_inherited;
use sluice_sockets::io_wait::{self, Announcement};
use sluice_sockets::socket::{Socket, State};
use sluice_sockets::unread_copy::{self, awaiting};
use sluice_sockets::verdict::{Error, Pass, Verdict};
use sluice_sockets::{events, jobs, meeting, upgrade};
use sluice_stats::Reason;
use sluice_transport::links;

const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// So many tracked sockets of one call are marked one by one while it waits in the kernel; with
/// more of them, all sockets are.
const MARKED: usize = 64;

/// Accelerated sockets of one call, each with its position in the array.
type Streams = [(usize, &'static Socket)];

/// Are these the same sockets at the same positions?
fn are_same(now: &Streams, before: &Streams) -> bool {
    let key = |&(i, sock): &(usize, &'static Socket)| (i, core::ptr::from_ref(sock));
    now.iter().map(key).eq(before.iter().map(key))
}

/// Is the socket accelerated, by this process? A parent's stream is taken back to TCP first.
pub(super) fn own(sock: &'static Socket) -> bool {
    if demote::takes_back_inherited(sock) && sock.rx.owed.load(Ordering::Relaxed) != 0 {
        // The bytes that lay in the ring come by TCP: they must be readable there.
        awaiting::await_owed(sock);
    }
    // Else the parent still sends again, and the kernel says the rest.
    sock.is_accelerated() && !is_inherited(sock)
}

/// The tracked socket that an entry names, if it is one.
fn sock_of(p: &pollfd) -> Option<&'static Socket> {
    fd_table::lookup(p.fd)?.get::<Socket>()
}

fn accelerated(fds: &[pollfd]) -> Vec<(usize, &'static Socket)> {
    fds.iter()
        .enumerate()
        .filter_map(|(i, p)| Some((i, sock_of(p)?)))
        .filter(|(_, sock)| sock.is_accelerated() && own(sock))
        .collect()
}

/// `poll` and `ppoll`; `timeout` null waits for ever. `Verdict::Block`: the hook sleeps as
/// `wait_state` says, and calls again.
///
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn poll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    wait_state: &mut WaitState,
) -> Verdict {
    // SAFETY: the caller's.
    let Ok(timeout) = (unsafe { caller::timeout_at(timeout) }) else {
        return Verdict::Pass(Pass::NOBODY);
    };
    if wait_state.stage != Stage::Fresh {
        // SAFETY: the caller's array, looked at before the wait.
        let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
        // SAFETY: the mask is the caller's.
        return verdict(unsafe { run(fds, mask, wait_state) });
    }
    if count == 0 || fds.is_null() || count > fd_table::TABLE_LEN as nfds_t {
        return Verdict::Pass(Pass::NOBODY);
    }
    if count > 256 && count > sys::descriptor_limit() {
        // The kernel refuses without a look at the array.
        return Verdict::Pass(Pass::NOBODY);
    }
    let len = count as usize * size_of::<pollfd>();
    let is_read_only = caller::cannot_write(fds as usize, len);
    if caller::is_mask_missing(mask) || is_read_only && caller::cannot_read(fds as usize, len) {
        // The kernel refuses these.
        return Verdict::Pass(Pass::NOBODY);
    }
    // SAFETY: the caller's array.
    let list = unsafe { core::slice::from_raw_parts(fds, count as usize) };
    let mut tracked = false;
    for p in list {
        if let Some(entry) = fd_table::lookup(p.fd) {
            tracked = true;
            if let Some(set) = entry.get::<Set>() {
                watched(set);
            }
        }
    }
    if !tracked || seccomp::waits_by_itself() || !wait_state.ends_after(timeout.as_ref()) {
        return Verdict::Pass(Pass::NOBODY);
    }
    if is_read_only {
        // As in the kernel: at once, however long the call would wait.
        return Verdict::Failed(Error::BadAddress);
    }
    // SAFETY: the caller's array.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    // SAFETY: the mask is the caller's.
    verdict(unsafe { run(fds, mask, wait_state) })
}

fn verdict(answer: Option<Result<usize, sys::Errno>>) -> Verdict {
    match answer {
        None => Verdict::Block,
        Some(Ok(n)) => Verdict::Done(n as isize),
        Some(Err(e)) => failed(e),
    }
}

/// A set is among the descriptors of a poll or select.
pub(super) fn watched(set: &'static Set) {
    if set.inherited.load(Ordering::Relaxed) {
        set.use_inherited();
    }
    set.is_nested();
}

/// Waits until a descriptor is ready, and fills the array's `revents` as `ppoll` does. `None`: the
/// hook sleeps as `wait_state` says, and meanwhile the array must stay where it is.
///
/// # Safety
/// `mask` is null or valid.
pub(super) unsafe fn run(
    fds: &mut [pollfd],
    mask: *const sigset_t,
    wait_state: &mut WaitState,
) -> Option<Result<usize, sys::Errno>> {
    // SAFETY: the caller's.
    let answer = unsafe { turns(fds, mask, wait_state) };
    // Bytes that a demotion sends again may be on their way. Under TCP they would be there already,
    // and the call would tell of them with the rest.
    let is_over = matches!(answer, Some(Ok(n)) if n > 0 || !wait_state.may_wait());
    if is_over && unread_copy::is_any_owed() {
        let untold = |p: &&pollfd| p.events & READ != 0 && p.revents & READ == 0;
        if awaiting::await_first_of(fds.iter().filter(untold).filter_map(sock_of)) {
            // SAFETY: the caller's.
            return unsafe { turns(fds, mask, wait_state) };
        }
    }
    answer
}

/// As [`run`], without waiting for bytes that a demotion sends again.
unsafe fn turns(
    fds: &mut [pollfd],
    mask: *const sigset_t,
    wait_state: &mut WaitState,
) -> Option<Result<usize, sys::Errno>> {
    match core::mem::replace(&mut wait_state.stage, Stage::Fresh) {
        Stage::Fresh => {}
        Stage::Kernel => {
            drop(unpark(wait_state));
            if let Some(answer) = kernel_over(fds, wait_state) {
                return Some(answer);
            }
        }
        Stage::Streams => {
            let list = unpark(wait_state);
            match sleep_over(fds, &list, wait_state) {
                Ok(0) => {}
                answer => return Some(answer),
            }
        }
    }
    loop {
        if meeting::is_meeting() {
            sluice_rendezvous::progress_soon();
        }
        let streams = accelerated(fds);
        if streams.is_empty() {
            match in_kernel(fds, mask, wait_state) {
                Step::Answer(answer) => return Some(answer),
                Step::Again => continue,
                Step::Parked => return None,
            }
        }
        let left = wait_state.time_left();
        let is_last = left == Some(0);
        let last = if is_last { mask } else { core::ptr::null() };
        // SAFETY: the mask is the caller's.
        let ready = match unsafe { look(fds, &streams, last) } {
            Ok(0) if is_last && wait_state.may_wait() && wait_state.ran.any().have_run() => {
                return Some(Err(libc::EINTR));
            }
            Ok(ready) => ready,
            Err(e) => return Some(Err(e)),
        };
        if ready != 0 || is_last {
            return Some(Ok(ready));
        }
        if spin(fds, &streams) {
            continue;
        }
        match sleep(fds, &streams, left, mask, wait_state) {
            Step::Answer(Ok(0)) => {}
            Step::Answer(answer) => return Some(answer),
            Step::Again => {}
            Step::Parked => return None,
        }
    }
}

/// What follows from one turn of a wait.
enum Step {
    /// The call returns.
    Answer(Result<usize, sys::Errno>),
    /// Look again.
    Again,
    /// The hook sleeps.
    Parked,
}

/// What a wait has announced, and what it waits for.
#[derive(Default)]
#[allow(
    missing_debug_implementations,
    reason = "sets have none, and nobody prints it"
)]
pub struct List {
    /// Sockets whose input comes by TCP. They are marked so that no reader consents to an upgrade
    /// during the wait: no doorbell would wake this thread for their streams.
    marked: Vec<&'static Socket>,
    /// There are more than can be marked one by one: see [`events::is_any_big_wait`].
    big: bool,
    /// This thread's private set, which holds its doorbells.
    bells: Option<&'static Set>,
    /// Streams that have this thread's slot in their masks of waiters. Their links are pinned.
    wished: Vec<(&'static Socket, c_short, u32, &'static Link)>,
    /// What the kernel is asked to wait for: the caller's entries, and the private set.
    all: Vec<pollfd>,
    /// When the look at the kernel began.
    began: Moment,
    /// The entries of a `select`, which has no array of the caller's.
    pub(super) own: Vec<pollfd>,
}

impl List {
    /// From now on no reader of this socket consents to an upgrade, until this is taken back.
    fn mark(&mut self, sock: &'static Socket) {
        if self.marked.len() < MARKED {
            sock.polls.fetch_add(1, Ordering::SeqCst);
            self.marked.push(sock);
        } else if !core::mem::replace(&mut self.big, true) {
            events::big_wait_begins();
        }
    }
}

impl Announcement for List {
    /// Takes back what was announced.
    fn take_back(&mut self) {
        for sock in &self.marked {
            sock.polls.fetch_sub(1, Ordering::SeqCst);
        }
        if core::mem::take(&mut self.big) {
            events::big_wait_ends();
            upgrade::consent_behind_big_wait();
        }
        for sock in self.marked.drain(..) {
            if sock.rx.state() == State::Proved {
                upgrade::consent(sock);
            }
        }
        let Some(set) = self.bells.take() else { return };
        set.sleepers.fetch_sub(1, Ordering::SeqCst);
        set.retract();
        for (sock, events, slot, link) in self.wished.drain(..) {
            wish(sock, events, link, slot, false);
            link.unpin();
        }
        set.drain();
    }
}

/// Has the hook sleep, with `list` in the care of the thread's note of its sleeps. If there is no
/// room for a note, returns the list, and the caller sleeps itself.
fn park(
    wait_state: &mut WaitState,
    stage: Stage,
    left: Option<u64>,
    mask: *const sigset_t,
    list: List,
) -> Option<Box<List>> {
    (wait_state.left, wait_state.mask) = (left, mask);
    let list = Box::into_raw(Box::new(list));
    if !io_wait::falls_asleep_over(wait_state.frame(), list) {
        // SAFETY: made a moment ago, and noted nowhere.
        return Some(unsafe { Box::from_raw(list) });
    }
    wait_state.list = list;
    wait_state.stage = stage;
    None
}

/// The hook has slept: takes back what was announced for it.
fn unpark(wait_state: &mut WaitState) -> Box<List> {
    io_wait::wakes_up(wait_state.frame());
    let list = core::mem::replace(&mut wait_state.list, core::ptr::null_mut());
    // SAFETY: made in `park` for this call, whose note is taken out.
    unsafe { Box::from_raw(list) }
}

/// Waits in the kernel for a list without streams. The sockets are marked, so that no reader
/// consents to an upgrade meanwhile. While a meeting needs this thread the wait is cut at its end.
fn in_kernel(fds: &mut [pollfd], mask: *const sigset_t, wait_state: &mut WaitState) -> Step {
    let mut left = wait_state.time_left();
    if left == Some(0) {
        // It does not wait: nothing to mark.
        let mut now = sys::timespec(0);
        let began = Moment::now();
        // SAFETY: the caller's array and mask; a time of ours.
        let answer = unsafe { sys::ppoll(fds.as_mut_ptr(), fds.len(), &raw mut now, mask) };
        for p in fds.iter() {
            if let Some(sock) = sock_of(p)
                && sock.rx.state() == State::Proved
            {
                upgrade::consent(sock);
            }
        }
        correct(fds, began, false);
        hang_up(fds);
        return Step::Answer(answer.map(|_| count(fds)));
    }
    io_wait::left_sleeps(wait_state.frame());
    let mut list = List::default();
    for p in fds.iter() {
        if let Some(sock) = sock_of(p) {
            list.mark(sock);
        }
    }
    // A reader may have consented before it could see the marks.
    let came_up = |p: &pollfd| sock_of(p).is_some_and(Socket::is_accelerated);
    if list.marked.iter().any(|s| s.is_accelerated()) || list.big && fds.iter().any(came_up) {
        list.take_back();
        return Step::Again;
    }
    let mut sliced = false;
    if sluice_rendezvous::needs_hooks()
        && let Some(meeting) = sluice_rendezvous::time_left()
    {
        sliced = left.is_none_or(|l| meeting < l);
        left = Some(left.map_or(meeting, |l| l.min(meeting)));
    }
    (wait_state.sliced, wait_state.on) = (
        sliced,
        On::List {
            fds: fds.as_mut_ptr(),
            count: fds.len(),
        },
    );
    let Some(mut list) = park(wait_state, Stage::Kernel, left, mask, list) else {
        return Step::Parked;
    };
    wait_state.call();
    list.take_back();
    kernel_over(fds, wait_state).map_or(Step::Again, Step::Answer)
}

/// The kernel's answer to a list without streams, completed where it caught a FIN half shown (see
/// [`kernel_events::whole`]).
fn complete(fds: &mut [pollfd], answer: Result<usize, sys::Errno>) -> Result<usize, sys::Errno> {
    for p in fds.iter_mut().filter(|p| p.revents & READ != 0) {
        if let Some(sock) = sock_of(p) {
            p.revents = kernel_events::whole(sock, p.revents, p.events);
        }
    }
    hang_up(fds);
    answer
}

/// Adds POLLHUP to sockets that the program has shut in both directions. Where a stream has just
/// gone back to TCP, the kernel's own shutdown may not be done yet.
fn hang_up(fds: &mut [pollfd]) {
    let told = fds.iter_mut().filter(|p| p.revents & WRITE != 0);
    for p in told {
        if let Some(sock) = sock_of(p)
            && sock.has_shut_both()
        {
            p.revents |= libc::POLLHUP;
        }
    }
}

/// The sleep on a list without streams is over. `None`: look again.
fn kernel_over(fds: &mut [pollfd], wait_state: &WaitState) -> Option<Result<usize, sys::Errno>> {
    match wait_state.answer {
        Ok(0) if wait_state.sliced => None,
        answer => Some(complete(fds, answer)),
    }
}

/// What a stream shows, as poll's bits. Takes the socket's locks.
fn of(sock: &'static Socket) -> c_short {
    let Ok(_rx) = sock.rx.lock.enter() else {
        return 0;
    };
    let tx = sock.tx.lock.enter();
    tx.map_or(0, |_tx| events::of_stream(sock) as c_short)
}

/// The bits of a stream that an entry is told of.
const fn asked(p: &pollfd) -> c_short {
    p.events & (READ | WRITE) | libc::POLLHUP
}

/// One look at the streams and at the kernel.
unsafe fn look(
    fds: &mut [pollfd],
    streams: &Streams,
    mask: *const sigset_t,
) -> Result<usize, sys::Errno> {
    drive(streams);
    // POLLOUT of a socket that writes to a link is the ring's to say: TCP always has room.
    let mut held: Vec<(usize, c_short)> = Vec::new();
    let mut masked: Vec<usize> = Vec::new();
    for &(i, sock) in streams {
        let Some(p) = fds.get_mut(i) else { continue };
        held.push((i, p.events));
        if sock.tx.state() == State::Link {
            p.events &= !WRITE;
            masked.push(i);
        }
    }
    let began = Moment::now();
    let mut now = sys::timespec(0);
    // SAFETY: the caller's array and mask; a time of ours.
    let answer = unsafe { sys::ppoll(fds.as_mut_ptr(), fds.len(), &raw mut now, mask) };
    for (i, events) in held {
        if let Some(p) = fds.get_mut(i) {
            p.events = events;
        }
    }
    answer?;
    correct(fds, began, !streams.is_empty());
    for &(i, sock) in streams {
        let Some(p) = fds.get_mut(i) else { continue };
        p.revents |= of(sock) & asked(p);
        if masked.contains(&i) {
            p.revents |= room_of_tcp(sock, p);
        }
    }
    hang_up(fds);
    Ok(count(fds))
}

/// Room on TCP of a socket that was on a link when the kernel was asked, so that the kernel was not
/// asked for room, and has gone back to TCP since.
fn room_of_tcp(sock: &Socket, p: &pollfd) -> c_short {
    let unasked = p.events & WRITE;
    if unasked == 0 || sock.tx.state() == State::Link {
        return 0;
    }
    events::kernel_ready(p.fd, unasked)
}

/// The number of entries that show something.
fn count(fds: &[pollfd]) -> usize {
    fds.iter().filter(|p| p.revents != 0).count()
}

/// Corrects the kernel's answer of a look that began at `began` (see [`kernel_events`]). `streams`:
/// some of the sockets may be on links.
pub(super) fn correct(fds: &mut [pollfd], began: Moment, streams: bool) {
    if !streams && !kernel_events::is_any_other() {
        return;
    }
    for p in fds.iter_mut().filter(|p| p.revents != 0) {
        let Some(entry) = fd_table::lookup(p.fd) else {
            continue;
        };
        if let Some(sock) = entry.get::<Socket>() {
            let told = kernel_events::correct(sock, p.revents, p.events, began);
            p.revents = kernel_events::whole(sock, told, p.events);
        }
    }
}

/// Moves links to other hosts on, if one of the streams goes to one.
fn drive(streams: &Streams) {
    let far = |(_, sock): &(usize, &Socket)| sock.carrier().is_driven;
    if links::are_driven() && streams.iter().any(far) {
        links::drive_all();
    }
}

/// Spins until one of the streams has news, if there are at most four. False: sleep.
fn spin(fds: &[pollfd], streams: &Streams) -> bool {
    if streams.len() > 4 {
        return false;
    }
    let Some(&(_, first)) = streams.first() else {
        return false;
    };
    let Some(link) = first.link() else {
        return false;
    };
    if first.carrier().is_driven {
        return spin::remote(&first.rx.spin_ns, &first.rx.spin_skip, || {
            drive(streams);
            has_news(fds, streams)
        });
    }
    let Ok(section) = first.rx.lock.enter() else {
        return false;
    };
    let Some(peer) = first.rx.dir().map(|d| d.tx.cpu.load(Ordering::Relaxed)) else {
        return false;
    };
    link.pin();
    drop(section);
    let found = spin::until(&first.rx.spin_ns, &first.rx.spin_skip, peer, || {
        has_news(fds, streams)
    });
    link.unpin();
    found
}

/// Announces the sleep on every stream, looks again, and has the hook sleep.
fn sleep(
    fds: &mut [pollfd],
    streams: &Streams,
    left: Option<u64>,
    mask: *const sigset_t,
    wait_state: &mut WaitState,
) -> Step {
    let Some(set) = bells() else {
        for &(_, sock) in streams {
            demote::demote(sock, Which::Both, Reason::DescriptorLimit);
        }
        return Step::Again;
    };
    // A handler that jumped out of an earlier sleep left its announcement: it is taken back first.
    io_wait::left_sleeps(wait_state.frame());
    let (mut list, moved) = announce(fds, streams, set);
    // Has a stream come or gone since the list was made, or has one news? Then a look without a
    // sleep.
    let stale = moved || !are_same(&accelerated(fds), streams);
    if stale || has_news(fds, streams) || left == Some(0) {
        // SAFETY: the mask is the caller's.
        let answer = unsafe { look(fds, streams, mask) };
        list.take_back();
        return Step::Answer(answer);
    }
    let mut list = for_the_kernel(list, fds, streams, set);
    wait_state.on = On::List {
        fds: list.all.as_mut_ptr(),
        count: list.all.len(),
    };
    let Some(mut list) = park(wait_state, Stage::Streams, left, mask, list) else {
        return Step::Parked;
    };
    wait_state.call();
    list.take_back();
    Step::Answer(sleep_over(fds, &list, wait_state))
}

/// Announces the thread's sleep on every stream, and marks the sockets that are on TCP. True: a
/// stream has left its link meanwhile.
fn announce(fds: &[pollfd], streams: &Streams, set: &'static Set) -> (List, bool) {
    let mut list = List {
        bells: Some(set),
        ..List::default()
    };
    let mut moved = false;
    // This thread has no slot for streams that come up during the sleep, so none may.
    for p in fds.iter() {
        if let Some(sock) = sock_of(p)
            && !sock.is_accelerated()
        {
            list.mark(sock);
        }
    }
    for &(i, sock) in streams {
        let Some(p) = fds.get(i) else { continue };
        let Ok(section) = sock.rx.lock.enter() else {
            continue;
        };
        let link = sock.link();
        if let Some(link) = link {
            link.pin();
        }
        // The reading half is on TCP already. If the writing half follows and a new stream comes
        // up, the mark keeps its reader from consenting.
        if p.events & READ != 0 && sock.rx.dir().is_none() {
            list.mark(sock);
        }
        drop(section);
        let Some(link) = link else { continue };
        match set.slot_for(link) {
            Some(slot) => {
                moved |= !wish(sock, p.events, link, slot, true);
                list.wished.push((sock, p.events, slot, link));
            }
            None => {
                link.unpin();
                demote::demote(sock, Which::Both, Reason::Limit);
            }
        }
    }
    set.sleepers.fetch_add(1, Ordering::SeqCst);
    set.announce_and_look();
    (list, moved)
}

/// `list` with the entries that the kernel is to wait for: the caller's and the doorbells.
fn for_the_kernel(mut list: List, fds: &[pollfd], streams: &Streams, set: &Set) -> List {
    list.began = Moment::now();
    list.all = fds.to_vec();
    for &(i, sock) in streams {
        // POLLOUT of a socket that writes to a link is the ring's to say.
        if let Some(p) = list.all.get_mut(i)
            && sock.tx.state() == State::Link
        {
            p.events &= !WRITE;
        }
    }
    list.all.push(pollfd {
        fd: set.fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    list
}

/// The sleep on a list with streams is over. Returns what is ready now.
fn sleep_over(
    fds: &mut [pollfd],
    list: &List,
    wait_state: &WaitState,
) -> Result<usize, sys::Errno> {
    wait_state.answer?;
    for (to, from) in fds.iter_mut().zip(&list.all) {
        to.revents = from.revents;
    }
    correct(fds, list.began, true);
    for (i, sock) in accelerated(fds) {
        let Some(p) = fds.get_mut(i) else { continue };
        p.revents |= of(sock) & asked(p);
    }
    for (to, from) in fds.iter_mut().zip(&list.all) {
        // The kernel was not asked for room, and a shutdown in another thread may have ended the
        // stream since.
        if from.events != to.events
            && to.revents != 0
            && let Some(sock) = sock_of(to)
        {
            to.revents |= room_of_tcp(sock, to);
        }
    }
    hang_up(fds);
    Ok(count(fds))
}

/// Does a stream show something that its entry asks for?
fn has_news(fds: &[pollfd], streams: &Streams) -> bool {
    streams
        .iter()
        .any(|&(i, sock)| fds.get(i).is_some_and(|p| of(sock) & asked(p) != 0))
}

/// Enters this thread's slot on `link` among the waiters of the socket's stream, or takes it out.
/// False: the socket is not on this link (any more), where alone the slot is this thread's.
fn wish(sock: &'static Socket, events: c_short, link: &'static Link, slot: u32, on: bool) -> bool {
    let bit = 1u64 << slot;
    // Under the lock of a half that has a direction, the socket's link is the direction's.
    let is_here = || sock.link().is_some_and(|l| core::ptr::eq(l, link));
    if events & READ != 0
        && let Ok(_section) = sock.rx.lock.enter()
        && let Some(dir) = sock.rx.dir().filter(|_| is_here())
    {
        if on {
            dir.rx_wishes.waiters.fetch_or(bit, Ordering::SeqCst);
        } else {
            dir.rx_wishes.waiters.fetch_and(!bit, Ordering::SeqCst);
        }
    }
    if events & WRITE != 0
        && let Ok(_section) = sock.tx.lock.enter()
        && let Some(dir) = sock.tx.dir().filter(|_| is_here())
    {
        if on {
            dir.tx_wishes.waiters.fetch_or(bit, Ordering::SeqCst);
            if sock.tx.state() == State::Link && !events::has_room(sock) {
                jobs::watch_full(sock);
            }
        } else {
            dir.tx_wishes.waiters.fetch_and(!bit, Ordering::SeqCst);
        }
    }
    is_here()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sockets::testing;

    #[test]
    fn a_waiter_is_taken_out_on_its_own_link_only() {
        let (before, _, _) = testing::link();
        let (link, peer, index) = testing::link();
        // The structure of a socket that was on the one is a socket's on the other.
        let sock = testing::writer(link, peer, index);
        let waiters = || {
            let dir = &testing::directions(link, index)[0];
            dir.tx_wishes.waiters.load(Ordering::Relaxed)
        };
        assert!(wish(sock, WRITE, link, 3, true));
        assert!(!wish(sock, WRITE, before, 3, false));
        assert!(!wish(sock, WRITE, before, 4, true));
        assert_eq!(waiters(), 1 << 3);
        assert!(wish(sock, WRITE, link, 3, false));
        assert_eq!(waiters(), 0);
    }
}
