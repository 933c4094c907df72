//! The control thread: what must happen while the program is elsewhere.
//!
//! Made at the first meeting with a peer, by pthread_create, with every signal blocked but glibc's
//! own 32 and 33. Sleeps in one epoll set; all its sends are non-blocking; it takes a stream's lock
//! only for the short sections of lock.rs.

mod jobs;
mod links;

use super::message::{self, Kind, Message, Next, Received};
use crate::readiness::set::Set;
use crate::rendezvous::hosts;
use crate::sockets::demote::{self, Resent, Which};
use crate::sockets::life;
use crate::sockets::remote;
use crate::sockets::sock::{Sock, State};
use crate::sockets::tcp;
use crate::sockets::wait;
use crate::sockets::wake;
use crate::verbs;
use core::cell::Cell;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use sluice_fabric::layout::STREAMS;
use sluice_fabric::lock::{self, Guarded};
use sluice_fabric::shm::{self, Link};
use sluice_fabric::sys;
use sluice_runtime::own_fds;
use sluice_runtime::process;
use sluice_runtime::rights;
use sluice_runtime::seccomp;
use sluice_stats::Reason;

use jobs::{JOBS, do_jobs};
pub use jobs::{advance, bury, bury_at, watch_full};
#[cfg(feature = "verbs")]
pub use jobs::{advance_at, advance_soon, seek, watch_far};
#[cfg(test)]
pub(super) use links::lost;
#[cfg(feature = "verbs")]
pub(crate) use links::sock_of;
use links::{READING, on_link};
pub use links::{
    ask_wake, attention, bell_at, died_unended, died_with_unread, drop_bell, end_is_told,
    is_unended, link_is_up, read_links, want_bell, watch_link, watch_meetings,
};
pub(super) use links::{given_to, tell};
#[cfg(feature = "verbs")]
pub use links::{unwatch_remote, watch_remote};

const STOPPED: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
static RUN: AtomicU32 = AtomicU32::new(STOPPED);
/// The thread's epoll set and the eventfd that wakes it; -1: none.
static SET: AtomicI32 = AtomicI32::new(-1);
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// What an event of the set is about: kind in the top byte, an address below.
const KIND_WAKE: u64 = 1 << 56;
const KIND_MEETING: u64 = 2 << 56;
const KIND_LINK: u64 = 3 << 56;
const KIND_SOCK: u64 = 4 << 56;
const KIND_REMOTE: u64 = 5 << 56;
const KIND_MASK: u64 = 0xff << 56;

thread_local! {
    /// See [`is_own_thread`].
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// Is it the control thread that calls?
pub fn is_own_thread() -> bool {
    OWN.get()
}

/// Has the thread look at what there is to do.
pub fn poke() {
    let wake = WAKE.load(Ordering::Acquire);
    if wake >= 0 {
        let _ = sys::ring(wake);
    }
}

/// The eventfd of the parent's thread, where that has links to other hosts; -1: none.
static PARENT: AtomicI32 = AtomicI32::new(-1);

/// Has the parent's thread look.
pub fn call_parent() {
    let parent = PARENT.load(Ordering::Acquire);
    if parent >= 0 {
        let _ = sys::ring(parent);
    }
}

/// In a child of a fork that has nothing to do with its parent any more.
pub fn part_with_parent() {
    let parent = PARENT.swap(-1, Ordering::AcqRel);
    if parent >= 0 {
        own_fds::close(parent);
    }
}

/// Does the thread run?
#[inline]
pub fn is_running() -> bool {
    RUN.load(Ordering::Acquire) == RUNNING
}

/// Starts the thread if it does not run yet.
///
/// # Errors
/// [`Reason::ThreadRefused`], [`Reason::DescriptorLimit`].
pub fn start() -> Result<(), Reason> {
    if is_running() {
        return Ok(());
    }
    if let Some(reason) = rights::forbidden() {
        return Err(reason);
    }
    if lock::on_signal_stack() {
        // A handler, which may have interrupted malloc: that makes threads, too.
        return Err(Reason::WriterBlocked);
    }
    if RUN
        .compare_exchange(STOPPED, STARTING, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        // Another thread is at it; it takes microseconds.
        while RUN.load(Ordering::Acquire) == STARTING {
            sys::sched_yield();
        }
        return if is_running() {
            Ok(())
        } else {
            Err(Reason::ThreadRefused)
        };
    }
    let started = launch();
    RUN.store(
        if started.is_ok() { RUNNING } else { STOPPED },
        Ordering::Release,
    );
    started
}

fn launch() -> Result<(), Reason> {
    let limit = Reason::DescriptorLimit;
    let set = own_fds::lift(sys::epoll_create().map_err(|_| limit)?).ok_or(limit)?;
    let wake = own_fds::lift(sys::eventfd(libc::EFD_NONBLOCK).map_err(|_| limit)?).ok_or(limit)?;
    sys::epoll_ctl(
        set.raw(),
        libc::EPOLL_CTL_ADD,
        wake.raw(),
        (libc::EPOLLIN | libc::EPOLLET) as u32,
        KIND_WAKE,
    )
    .map_err(|_| limit)?;
    SET.store(set.raw(), Ordering::Release);
    WAKE.store(wake.raw(), Ordering::Release);
    TID.store(BORN, Ordering::Release);
    // Told to the thread, which may come to its first look when it is to end already.
    let both = set.raw() as usize | (wake.raw() as usize) << 32;
    if spawn(run, core::ptr::without_provenance_mut(both)).is_err() {
        TID.store(0, Ordering::Release);
        SET.store(-1, Ordering::Release);
        WAKE.store(-1, Ordering::Release);
        own_fds::forget(set.raw());
        own_fds::forget(wake.raw());
        return Err(Reason::ThreadRefused);
    }
    let _ = (set.release(), wake.release());
    Ok(())
}

/// A detached thread of the library's own, with no signal but glibc's own.
pub(super) fn spawn(
    run: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    argument: *mut libc::c_void,
) -> Result<(), ()> {
    // The new thread inherits the mask. Signals 32 and 33 are glibc's: without them setuid() hangs.
    let before = sys::set_signal_mask(!(1 << 31 | 1 << 32));
    let mut thread: libc::pthread_t = 0;
    // SAFETY: zeroes are a valid attribute object once initialised; all pointers are valid.
    let failed = unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, 256 << 10);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let failed = libc::pthread_create(&raw mut thread, &raw const attributes, run, argument);
        libc::pthread_attr_destroy(&raw mut attributes);
        failed
    };
    sys::set_signal_mask(before);
    if failed == 0 { Ok(()) } else { Err(()) }
}

/// Turns of the thread on a processor. Where two threads wake each other in turns (a request, an
/// answer) the kernel lets a third one that it has preempted once wait for 100 ms and more; one of
/// short turns gets its next one within a few.
const TURN_NS: u64 = 100_000;

extern "C" fn run(both: *mut libc::c_void) -> *mut libc::c_void {
    sys::name_thread(c"sluice");
    // A filter for system calls, be it one that lets all others pass, may kill for this one.
    if !seccomp::has_filter() {
        sys::shorten_turns(TURN_NS);
    }
    OWN.set(true);
    TID.store(sys::gettid(), Ordering::Release);
    let (set, wake) = (both.addr() as i32, (both.addr() >> 32) as i32);
    while RUN.load(Ordering::Acquire) == STARTING {
        sys::sched_yield();
    }
    follow_privileges(true);
    super::hand_over_to_control();
    let mut timeout = None;
    let mut trims = super::trim::Trims::new();
    while SET.load(Ordering::Acquire) == set {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let wait = timeout.map(sys::timespec);
        // SAFETY: an array of ours.
        let got = unsafe {
            sys::epoll_wait(
                set,
                events.as_mut_ptr(),
                64,
                wait.as_ref(),
                core::ptr::null(),
            )
        };
        if SET.load(Ordering::Acquire) != set {
            break;
        }
        follow_privileges(false);
        // Within the host only short sections make descriptors, and each says so itself; libraries
        // of devices do not.
        let _turn = verbs::is_used().then(own_fds::Turn::begin);
        for event in events.iter().take(got.unwrap_or(0)) {
            handle(event.events, event.u64);
        }
        super::progress();
        super::closer::reap();
        remote::answer_calls();
        life::make_ends();
        let jobs_left = do_jobs();
        let meetings_left = super::time_left();
        let trims_left = trims.progress();
        let hosts_left = hosts::progress();
        timeout = [jobs_left, meetings_left, trims_left, hosts_left]
            .into_iter()
            .flatten()
            .min();
    }
    for fd in [set, wake] {
        own_fds::close(fd);
    }
    core::ptr::null_mut()
}

/// Whether this thread is to get no more rights by executing something (PR_SET_NO_NEW_PRIVS), since
/// a thread of the program's gets none: 0 no, [`FORGO`] yes, [`FORGONE`] it gets none.
static PRIVILEGES: AtomicU32 = AtomicU32::new(0);
const FORGO: u32 = 1;
const FORGONE: u32 = 2;

/// A thread of the program's forgoes privileges: this thread does as well, at once if it runs.
/// False: it was not heard of in time.
pub fn forgo_privileges() -> bool {
    PRIVILEGES.store(FORGO, Ordering::SeqCst);
    let end = sys::now_ns() + END_NS;
    while is_running() && !is_own_thread() && PRIVILEGES.load(Ordering::SeqCst) == FORGO {
        poke();
        if sys::now_ns() > end {
            return false;
        }
        let _ = sys::poll_one(-1, 0, Some(sys::timespec(END_LOOK_NS)));
    }
    true
}

/// By this thread: does what it was told, or what an earlier one was.
fn follow_privileges(is_new: bool) {
    let told = PRIVILEGES.load(Ordering::SeqCst);
    if told == FORGO || is_new && told != 0 {
        sys::forgo_privileges();
        PRIVILEGES.store(FORGONE, Ordering::SeqCst);
    }
}

/// Ends the thread: the program sandboxes itself.
pub fn stop() {
    if RUN
        .compare_exchange(RUNNING, STOPPED, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
    {
        let wake = WAKE.swap(-1, Ordering::AcqRel);
        SET.store(-1, Ordering::Release);
        let _ = sys::ring(wake);
    }
}

/// The thread's number, from when it runs; 0: there was none, or nobody asks any more.
static TID: AtomicI32 = AtomicI32::new(0);
/// Made, and not yet running.
const BORN: i32 = -1;

/// Longest wait for the end of the thread, which may be opening a device, in ns; and the time
/// between two looks.
const END_NS: u64 = 1_000_000_000;
const END_LOOK_NS: u64 = 100_000;

/// After [`stop`], with no lock held: the thread is gone. What is told of a process that ends by
/// `exit` of its one thread is how the last one ended.
pub fn await_end() {
    if process::is_vfork_child() || is_running() || is_own_thread() {
        return;
    }
    let end = sys::now_ns() + END_NS;
    let lives = || match TID.load(Ordering::Acquire) {
        0 => false,
        tid => tid == BORN || sys::is_process(tid as u32),
    };
    while lives() && sys::now_ns() < end {
        let _ = sys::poll_one(-1, 0, Some(sys::timespec(END_LOOK_NS)));
    }
    TID.store(0, Ordering::Release);
}

fn address<T>(data: u64) -> Option<&'static T> {
    // SAFETY: only addresses of type-stable, never freed structures are put into events.
    unsafe { ((data & !KIND_MASK) as *const T).as_ref() }
}

fn handle(events: u32, data: u64) {
    match data & KIND_MASK {
        KIND_LINK => {
            if let Some(link) = address::<Link>(data) {
                if events & libc::EPOLLOUT as u32 != 0 {
                    links::tell_rest(link);
                }
                on_link(link);
            }
        }
        KIND_SOCK => {
            if let Some(sock) = address::<Sock>(data) {
                on_tcp(sock, events);
            }
        }
        KIND_REMOTE => hosts::on_event(data & !KIND_MASK),
        // Wake: the jobs are looked at anyway. Meetings: so are they.
        _ => {}
    }
}

/// For the fuzzer: what the thread does, at moments that it says, without a thread.
#[cfg(feature = "fuzzing")]
pub mod by_hand {
    use super::*;

    /// From here on the thread seems to run.
    pub fn begin() -> Result<(), Reason> {
        if is_running() {
            return Ok(());
        }
        let limit = Reason::DescriptorLimit;
        let lifted = |fd: Result<sys::Fd, _>| own_fds::lift(fd.map_err(|_| limit)?).ok_or(limit);
        let (set, wake) = (
            lifted(sys::epoll_create())?,
            lifted(sys::eventfd(libc::EFD_NONBLOCK))?,
        );
        SET.store(set.release(), Ordering::Release);
        WAKE.store(wake.release(), Ordering::Release);
        RUN.store(RUNNING, Ordering::Release);
        Ok(())
    }

    /// One turn of the thread.
    pub fn turn() {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let (set, at_once) = (SET.load(Ordering::Acquire), sys::timespec(0));
        let none = core::ptr::null();
        // SAFETY: an array of ours.
        let got = unsafe { sys::epoll_wait(set, events.as_mut_ptr(), 64, Some(&at_once), none) };
        let _turn = own_fds::Turn::begin();
        for event in events.iter().take(got.unwrap_or(0)) {
            handle(event.events, event.u64);
        }
        super::super::progress();
        super::super::closer::reap();
        do_jobs();
    }

    /// The peer has asked for a look at the words of a stream.
    pub fn look(link: &'static Link, index: u32) {
        links::look(link, index);
    }

    /// The peer's process is gone.
    pub fn lose(link: &'static Link) {
        links::lost(link);
    }
}

// --- sockets ---

const WATCHED: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;

/// Watches the silent TCP of an accelerated socket: FIN, RST, and bytes after a demotion.
pub fn watch(sock: &'static Sock) {
    let fd = sock.fd.load(Ordering::Relaxed);
    let data = KIND_SOCK | core::ptr::from_ref(sock) as u64;
    enter(fd, WATCHED, data);
}

/// Registers a descriptor with this thread's set, or changes what it is registered for.
fn enter(fd: i32, events: u32, data: u64) {
    let set = SET.load(Ordering::Acquire);
    if sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data) == Err(libc::EEXIST) {
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, data);
    }
}

/// The stream is over.
pub fn unwatch(sock: &'static Sock) {
    let fd = sock.fd.load(Ordering::Relaxed);
    let _ = sys::epoll_ctl(SET.load(Ordering::Acquire), libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// A re-send waits for room in TCP: this thread goes on with it.
pub fn watch_room(sock: &'static Sock) {
    let fd = sock.fd.load(Ordering::Relaxed);
    let data = KIND_SOCK | core::ptr::from_ref(sock) as u64;
    let set = SET.load(Ordering::Acquire);
    let events = WATCHED | libc::EPOLLOUT as u32;
    if sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, data) == Err(libc::ENOENT) {
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data);
    }
}

fn on_tcp(sock: &'static Sock, events: u32) {
    if sock.fds.load(Ordering::Acquire) == 0 {
        return;
    }
    if remote::is_remote(sock) {
        remote::advance(sock);
    }
    if events & libc::EPOLLOUT as u32 != 0
        && sock.tx.state() == State::Resending
        && let Ok(_section) = sock.tx.lock.enter()
    {
        let resent = if sock.tx.state() == State::Resending {
            demote::resend(sock)
        } else {
            Resent::NoRoom
        };
        if resent == Resent::Lost && sock.lingers.load(Ordering::Relaxed) {
            // Nobody else will reset it.
            demote::lose_rest(sock);
        }
        if !matches!(resent, Resent::NoRoom | Resent::Held) {
            // The other half may still wait for news of TCP.
            if sock.rx.state() == State::Plain {
                unwatch(sock);
            } else {
                watch(sock);
            }
        }
    }
    // Sleepers of blocking calls do not watch TCP themselves.
    for half in [&sock.rx, &sock.tx] {
        if half.state() == State::Plain {
            continue;
        }
        let Ok(_section) = half.lock.enter() else {
            continue;
        };
        if let (Some(dir), Some(link)) = (half.dir(), sock.link()) {
            let waiters = if core::ptr::eq(half, &sock.rx) {
                &dir.rx_wishes.waiters
            } else {
                &dir.tx_wishes.waiters
            };
            wake::own_threads(
                link,
                waiters.load(Ordering::Relaxed),
                sock.index.load(Ordering::Relaxed),
            );
        }
    }
}

// --- fork ---

/// Before a fork: nobody is inside what the child will use. This is what comes before the sockets'
/// locks.
pub fn hold() {
    READING.hold();
    hosts::hold();
    super::hold();
}

/// What comes after the sockets' and the sets' locks: when nothing more is done to a stream.
pub fn hold_last() {
    super::hold_last();
    JOBS.hold();
    links::UNTOLD.hold();
    shm::hold();
    shm::hold_ledgers();
}

/// After a fork, on both sides: of [`hold_last`].
pub fn release_last() {
    shm::release();
    links::UNTOLD.release();
    JOBS.release();
    super::release_last();
}

/// Of [`hold`].
pub fn release() {
    super::release();
    hosts::release_hold();
    READING.release();
}

/// In the child: no thread, no jobs, no meetings.
pub fn after_fork() {
    RUN.store(STOPPED, Ordering::Release);
    TID.store(0, Ordering::Release);
    if verbs::is_used() {
        let wake = WAKE.swap(-1, Ordering::AcqRel);
        let old = PARENT.swap(wake, Ordering::AcqRel);
        WAKE.store(old, Ordering::Release);
    }
    for cell in [&SET, &WAKE] {
        let fd = cell.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            own_fds::close(fd);
        }
    }
    if let Some(mut list) = JOBS.lock() {
        list.clear();
    }
    if let Some(mut list) = links::UNTOLD.lock() {
        list.clear();
    }
    super::after_fork();
    hosts::after_fork();
}
