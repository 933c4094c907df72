//! The library's own thread: starting and stopping it, waking it, and its epoll set.
//!
//! What it does is up to a higher layer (`rendezvous::control`). It is made at the first meeting
//! with a peer, by pthread_create, with every signal blocked but glibc's own 32 and 33, and sleeps
//! in one epoll set.

use crate::{own_fds, process, rights, seccomp};
use core::cell::Cell;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use sluice_fabric::{lock, sys};
use sluice_stats::Reason;

const STOPPED: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
static RUN: AtomicU32 = AtomicU32::new(STOPPED);
/// The thread's epoll set and the eventfd that wakes it; -1: none.
static SET: AtomicI32 = AtomicI32::new(-1);
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// The thread's main function, a `fn(i32)`; 0: not set.
static SERVE: AtomicUsize = AtomicUsize::new(0);

/// What an event of the set is about, in the top byte. This one: the thread was woken.
pub(crate) const WOKEN: u64 = 1 << 56;
/// Meetings.
pub const MEETING: u64 = 2 << 56;
/// A link, whose address is in the lower bytes.
pub const LINK: u64 = 3 << 56;
/// A socket, whose address is in the lower bytes.
pub const SOCK: u64 = 4 << 56;
/// Links to other hosts; the lower bytes say what of them.
pub const REMOTE: u64 = 5 << 56;
/// For an eventfd that nobody reads: each ring is an event.
const LOUD: u32 = (libc::EPOLLIN | libc::EPOLLET) as u32;
/// Mask of the top byte.
pub const KINDS: u64 = 0xff << 56;

thread_local! {
    /// See [`is_own_thread`].
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// True in the control thread.
pub fn is_own_thread() -> bool {
    OWN.get()
}

/// Wakes the thread, to look for work.
pub fn poke() {
    let wake = WAKE.load(Ordering::Acquire);
    if wake >= 0 {
        let _ = sys::ring(wake);
    }
}

/// An eventfd that children inherit, and that wakes the control threads of all that have it; -1:
/// none.
static RELATIVES: AtomicI32 = AtomicI32::new(-1);

/// Before a fork: lets the child wake this thread, if it runs. False: no descriptor is left for
/// that.
pub fn hears_relatives() -> bool {
    if !is_running() || RELATIVES.load(Ordering::Acquire) >= 0 {
        return true;
    }
    let _low = own_fds::Low::begin();
    let made = sys::eventfd(libc::EFD_NONBLOCK).ok();
    let Some(made) = made.and_then(own_fds::lift) else {
        return false;
    };
    let is_heard = add(made.raw(), LOUD, WOKEN).is_ok();
    let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
    // Another thread may be about to fork, too.
    let is_first = || {
        RELATIVES
            .compare_exchange(-1, made.raw(), set, fetch)
            .is_ok()
    };
    if is_heard && is_first() {
        let _ = made.release();
    } else {
        own_fds::forget(made.raw());
    }
    RELATIVES.load(Ordering::Acquire) >= 0
}

/// Wakes the control threads of all relatives, to look for work.
pub fn call_relatives() {
    let relatives = RELATIVES.load(Ordering::Acquire);
    if relatives >= 0 {
        let _ = sys::ring(relatives);
    }
}

/// In a child of a fork that has nothing to do with its parent any more: closes that eventfd.
pub fn part_with_parent() {
    let relatives = RELATIVES.swap(-1, Ordering::AcqRel);
    if relatives >= 0 {
        unwatch(relatives);
        own_fds::close(relatives);
    }
}

/// True if the thread runs.
#[inline]
pub fn is_running() -> bool {
    RUN.load(Ordering::Acquire) == RUNNING
}

/// Called once, when the library is loaded: sets the thread's main function. It gets the epoll set,
/// and returns when that [`is_current`] no more.
pub fn served_by(serve: fn(i32)) {
    SERVE.store(serve as usize, Ordering::Release);
}

/// Starts the thread if it does not run yet.
///
/// # Errors
/// [`Reason::ThreadRefused`], [`Reason::DescriptorLimit`].
pub fn start() -> Result<(), Reason> {
    if is_running() {
        return Ok(());
    }
    if SERVE.load(Ordering::Acquire) == 0 {
        return Err(Reason::ThreadRefused);
    }
    if let Some(reason) = rights::forbidden() {
        return Err(reason);
    }
    if lock::on_signal_stack() {
        // A handler, which may have interrupted malloc; pthread_create calls that, too.
        return Err(Reason::WriterBlocked);
    }
    if RUN
        .compare_exchange(STOPPED, STARTING, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        // Another thread is starting it, which takes microseconds.
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
    for heard in [wake.raw(), RELATIVES.load(Ordering::Acquire)] {
        if heard >= 0 {
            sys::epoll_ctl(set.raw(), libc::EPOLL_CTL_ADD, heard, LOUD, WOKEN)
                .map_err(|_| limit)?;
        }
    }
    SET.store(set.raw(), Ordering::Release);
    WAKE.store(wake.raw(), Ordering::Release);
    TID.store(BORN, Ordering::Release);
    // Passed to the thread, since both cells may be reset before it reads them.
    let both = set.raw() as usize | (wake.raw() as usize) << 32;
    if let Err(refused) = spawn(run, both) {
        TID.store(0, Ordering::Release);
        SET.store(-1, Ordering::Release);
        WAKE.store(-1, Ordering::Release);
        own_fds::forget(set.raw());
        own_fds::forget(wake.raw());
        return Err(refused);
    }
    let _ = (set.release(), wake.release());
    Ok(())
}

/// Makes a detached thread of the library's own, with all signals blocked but glibc's own.
///
/// # Errors
/// [`Reason::ThreadRefused`].
pub fn spawn(
    run: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    argument: usize,
) -> Result<(), Reason> {
    // The new thread inherits the mask. Signals 32 and 33 are glibc's: without them setuid() hangs.
    let before = sys::set_signal_mask(!(1 << 31 | 1 << 32));
    let mut thread: libc::pthread_t = 0;
    let argument = core::ptr::without_provenance_mut(argument);
    // SAFETY: pthread_attr_init sets the attributes up; all pointers are to live variables.
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
    if failed == 0 {
        Ok(())
    } else {
        Err(Reason::ThreadRefused)
    }
}

/// Scheduler slice of the thread. Where two threads wake each other in turns (a request, an
/// answer), the kernel lets a third one that it has preempted once wait for 100 ms and more. One
/// with a short slice runs again within a few.
const TURN_NS: u64 = 100_000;

extern "C" fn run(both: *mut libc::c_void) -> *mut libc::c_void {
    sys::name_thread(c"sluice");
    // A seccomp filter may kill for this call, even if it lets all others pass.
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
    // SAFETY: `served_by` has stored a `fn(i32)` before the first start.
    let serve = unsafe { core::mem::transmute::<usize, fn(i32)>(SERVE.load(Ordering::Acquire)) };
    serve(set);
    for fd in [set, wake] {
        own_fds::close(fd);
    }
    core::ptr::null_mut()
}

/// By this thread, after each wait: true if the set is still the one to serve. Then also gives up
/// privileges, if told to.
pub fn is_current(set: i32) -> bool {
    let current = SET.load(Ordering::Acquire) == set;
    if current {
        follow_privileges(false);
    }
    current
}

/// Whether this thread must set PR_SET_NO_NEW_PRIVS, since a thread of the program has: 0 no,
/// [`FORGO`] yes, [`FORGONE`] done.
static PRIVILEGES: AtomicU32 = AtomicU32::new(0);
const FORGO: u32 = 1;
const FORGONE: u32 = 2;

/// A thread of the program sets PR_SET_NO_NEW_PRIVS: so does this thread, at once if it runs.
/// Returns false if that has not happened in time.
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

/// By this thread: gives up privileges if it, or an earlier one, was told to.
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

/// The thread's id while it runs. 0: there was none, or nobody waits for its end any more.
static TID: AtomicI32 = AtomicI32::new(0);
/// Made, and not yet running.
const BORN: i32 = -1;

/// Time that the thread was on a processor, in ns.
pub fn cpu_ns() -> u64 {
    match TID.load(Ordering::Relaxed) {
        0 | BORN => 0,
        tid => sys::thread_cpu_ns(tid),
    }
}

/// Longest wait for the end of the thread, which may be opening a device, in ns; and the time
/// between two looks.
const END_NS: u64 = 1_000_000_000;
const END_LOOK_NS: u64 = 100_000;

/// After [`stop`], with no lock held: waits until the thread has ended. Otherwise the exit status
/// of a process that ends by `exit` of its one thread would be that of this thread.
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

/// Adds a descriptor to the thread's set, or changes its registration.
pub fn watch(fd: i32, events: u32, data: u64) {
    if add(fd, events, data) == Err(libc::EEXIST) {
        let set = SET.load(Ordering::Acquire);
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, data);
    }
}

/// The same for a descriptor that is mostly registered already.
pub fn watch_again(fd: i32, events: u32, data: u64) {
    let set = SET.load(Ordering::Acquire);
    if sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, data) == Err(libc::ENOENT) {
        let _ = add(fd, events, data);
    }
}

/// Adds a descriptor that is not registered.
///
/// # Errors
/// The kernel's; EEXIST: it is registered.
pub fn add(fd: i32, events: u32, data: u64) -> Result<(), sys::Errno> {
    let set = SET.load(Ordering::Acquire);
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data)
}

/// Removes a descriptor.
pub fn unwatch(fd: i32) {
    let set = SET.load(Ordering::Acquire);
    let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// In the child of a fork: there is no thread.
pub fn after_fork() {
    RUN.store(STOPPED, Ordering::Release);
    TID.store(0, Ordering::Release);
    for cell in [&SET, &WAKE] {
        let fd = cell.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            own_fds::close(fd);
        }
    }
}

/// For the fuzzer: makes the library believe that the thread runs. Returns its set.
///
/// # Errors
/// [`Reason::DescriptorLimit`].
#[cfg(feature = "fuzzing")]
pub fn seem_to_run() -> Result<i32, Reason> {
    if !is_running() {
        let limit = Reason::DescriptorLimit;
        let lifted = |fd: Result<sys::Fd, _>| own_fds::lift(fd.map_err(|_| limit)?).ok_or(limit);
        let (set, wake) = (
            lifted(sys::epoll_create())?,
            lifted(sys::eventfd(libc::EFD_NONBLOCK))?,
        );
        SET.store(set.release(), Ordering::Release);
        WAKE.store(wake.release(), Ordering::Release);
        RUN.store(RUNNING, Ordering::Release);
    }
    Ok(SET.load(Ordering::Acquire))
}
