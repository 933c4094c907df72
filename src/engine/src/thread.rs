//! What this thread is: its identity, its CPU, and the slots that it sleeps on.

use crate::caller;
use crate::readiness::poll::List;
use crate::readiness::set::Set;
use crate::sockets::sock::{Known, Sock};
use core::cell::Cell;
use sluice_fabric::lock::{me, on_signal_stack};
use sluice_fabric::shm::Link;
use sluice_fabric::sys::{self, Ends, Ran, handlers};
use std::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering};

/// Offset of this thread's `struct rseq` from its thread pointer; 0: not there (glibc before 2.35).
static RSEQ: AtomicIsize = AtomicIsize::new(0);

/// Address of glibc's `__libc_single_threaded`, a char that is 0 once there was a second thread; 0:
/// not there (before 2.32).
static SINGLE: AtomicUsize = AtomicUsize::new(0);

/// Has this process several threads, or had? `None` where the C library does not say.
pub fn are_several() -> Option<bool> {
    let at = SINGLE.load(Ordering::Relaxed) as *const u8;
    // SAFETY: null, or the C library's variable, which it writes when it makes a thread.
    (!at.is_null()).then(|| unsafe { core::ptr::read_volatile(at) } == 0)
}

/// Finds what glibc tells of threads. Called once, by the constructor.
pub fn init() {
    // SAFETY: dlsym with a NUL-terminated name; the symbols are an isize and an unsigned int.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        let single = libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr());
        let cleanup = |name: &core::ffi::CStr| libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        PUSH.store(
            cleanup(c"_pthread_cleanup_push") as usize,
            Ordering::Relaxed,
        );
        POP.store(cleanup(c"_pthread_cleanup_pop") as usize, Ordering::Relaxed);
        SINGLE.store(single as usize, Ordering::Relaxed);
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
        if !offset.is_null() && !size.is_null() && *size >= 8 {
            RSEQ.store(*offset, Ordering::Relaxed);
        }
    }
}

/// The CPU this thread runs on, plus one: 0 means unknown. A hint, stale at once.
#[inline]
pub fn cpu() -> u32 {
    let offset = RSEQ.load(Ordering::Relaxed);
    if offset != 0 {
        // SAFETY: glibc registered a `struct rseq` of at least 8 bytes there for every thread;
        // `cpu_id` is its second word and the kernel writes it.
        let id = unsafe { core::ptr::read_volatile((me() as isize + offset + 4) as *const u32) };
        // Negative values mean that the kernel refused the registration.
        return if id < 1 << 20 { id + 1 } else { 0 };
    }
    // SAFETY: no arguments; a vDSO call, not hooked.
    (unsafe { libc::sched_getcpu() }).wrapping_add(1) as u32
}

/// Slots that one thread can hold on links at once; a thread that needs more gives up the oldest.
const HELD: usize = 8;

/// The waiter slots of this thread, for blocking calls.
struct Held {
    /// Link (address, generation) and slot number + 1; 0: unused.
    slots: [Cell<(usize, u32, u32)>; HELD],
    next: Cell<usize>,
}

thread_local! {
    // Constant and without destructors: reading them needs no registration and no allocation.
    static ASLEEP: [Cell<Asleep>; DEEP] = const { [const { Cell::new(AWAKE) }; DEEP] };
    /// This thread's end is watched for the sake of `ASLEEP`.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    /// How many handlers had run when this thread was last found in one, and since when it was.
    static FOUND: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static SLOTS: Held = const { Held { slots: [const { Cell::new((0, 0, 0)) }; HELD], next: Cell::new(0) } };
}

/// The pthread key whose destructor returns the slots of a thread that ends; 0: none yet
/// (the number is stored plus one).
static KEY: AtomicUsize = AtomicUsize::new(0);

/// This thread's slot on `link`, taken on first use.
pub fn slot_on(link: &'static Link) -> Option<u32> {
    let id = (core::ptr::from_ref(link) as usize, link.generation());
    SLOTS.with(|held| {
        for cell in &held.slots {
            let (at, generation, slot) = cell.get();
            if (at, generation) == id && slot != 0 {
                return Some(slot - 1);
            }
        }
        let slot = link.take_slot(0)?;
        let next = held.next.get();
        held.next.set(next.wrapping_add(1));
        if let Some(cell) = held.slots.get(next % HELD) {
            give_back(cell.replace((id.0, id.1, slot + 1)));
        }
        watch_exit();
        Some(slot)
    })
}

fn give_back((at, generation, slot): (usize, u32, u32)) {
    if slot != 0 {
        // SAFETY: links are never unmapped structures: their memory is type-stable (link.rs), and
        // the generation says whether it is still the same link.
        let link = unsafe { &*(at as *const Link) };
        link.return_slot(generation, slot - 1);
    }
}

/// Has the slots returned when this thread ends.
pub fn watch_exit() {
    let mut key = KEY.load(Ordering::Acquire);
    if key == 0 {
        let mut made: libc::pthread_key_t = 0;
        // SAFETY: a valid pointer and a destructor that takes what setspecific stored.
        if unsafe { libc::pthread_key_create(&raw mut made, Some(thread_ends)) } != 0 {
            return;
        }
        match KEY.compare_exchange(0, made as usize + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => key = made as usize + 1,
            Err(other) => {
                // SAFETY: the key was just made and nobody else knows it.
                unsafe { libc::pthread_key_delete(made) };
                key = other;
            }
        }
    }
    // SAFETY: the key exists; any non-null value makes the destructor run.
    unsafe { libc::pthread_setspecific((key - 1) as libc::pthread_key_t, me() as *const _) };
}

extern "C" fn thread_ends(_: *mut libc::c_void) {
    // Destructors of other keys that run later may sleep once more.
    WATCHED.set(false);
    ASLEEP.with(|all| {
        all.iter().for_each(|cell| {
            let old = cell.replace(AWAKE);
            if old.frame != 0 {
                abandoned(old);
            }
        })
    });
    crate::readiness::bells::thread_ends();
    SLOTS.with(|held| {
        for cell in &held.slots {
            give_back(cell.replace((0, 0, 0)));
        }
    });
}

/// In the child of a fork: the slots belong to the parent's links.
pub fn after_fork() {
    SLOTS.with(|held| {
        for cell in &held.slots {
            cell.set((0, 0, 0));
        }
    });
    ASLEEP.with(|all| all.iter().for_each(|cell| cell.set(AWAKE)));
}

/// Sleeps that one thread can be in at once: its own, and those of signal handlers on top of it.
const DEEP: usize = 4;

/// What a sleep has announced, for the thread that must take it back: the sleeper itself, or, where
/// a cancellation or a jump out of a handler ended it, this thread's next sleep or its end.
#[derive(Clone, Copy)]
struct Asleep {
    /// Address in the sleeper's frame; 0: none.
    frame: usize,
    what: Announced,
}

/// What is to be taken back.
#[derive(Clone, Copy)]
enum Announced {
    Nothing,
    Stream {
        /// Link (address, generation), which is pinned, and slot on it.
        link: (usize, u32),
        slot: u32,
        /// The stream's mask of waiters, in the arena.
        waiters: *const AtomicU64,
    },
    /// One of the sleepers of an epoll set.
    Set(&'static Set),
    /// A wait of poll or select; made by a `Box`, and freed by the thread that takes the note out.
    List(*mut List),
}

const AWAKE: Asleep = Asleep {
    frame: 0,
    what: Announced::Nothing,
};

/// This thread, in the frame of `frame`, is about to sleep on `slot` of `link` and has entered
/// itself in `waiters`; the link is pinned. False: more sleeps on top of each other than are kept.
pub fn falls_asleep(
    frame: usize,
    link: &'static Link,
    slot: u32,
    waiters: *const AtomicU64,
) -> bool {
    note(
        frame,
        Announced::Stream {
            link: (core::ptr::from_ref(link) as usize, link.generation()),
            slot,
            waiters,
        },
    )
}

/// The same for a thread that is one of the sleepers of `set`.
pub fn falls_asleep_in(frame: usize, set: &'static Set) -> bool {
    watch_exit_once();
    note(frame, Announced::Set(set))
}

/// The same for a wait of poll or select. `list` was made by a `Box`. While the note stands it is
/// the note's; after [`wakes_up`] its maker's again.
pub fn falls_asleep_over(frame: usize, list: *mut List) -> bool {
    watch_exit_once();
    note(frame, Announced::List(list))
}

#[inline]
fn watch_exit_once() {
    if !WATCHED.replace(true) {
        watch_exit();
    }
}

fn note(frame: usize, what: Announced) -> bool {
    ASLEEP.with(|all| {
        let Some(cell) = all.iter().find(|cell| cell.get().frame == 0) else {
            return false;
        };
        cell.set(Asleep { frame, what });
        true
    })
}

/// Takes back what sleeps in deeper frames than that of `frame` have announced: somebody jumped out
/// of them. Call before announcing anew.
pub fn left_sleeps(frame: usize) {
    ASLEEP.with(|all| {
        for cell in all {
            let old = cell.get();
            if old.frame != 0 && old.frame < frame && !on_signal_stack() {
                cell.set(AWAKE);
                abandoned(old);
            }
        }
    });
}

/// The sleep of the frame of `frame` is over: its announcement is taken back.
pub fn wakes_up(frame: usize) {
    ASLEEP.with(|all| {
        for cell in all {
            let old = cell.get();
            if old.frame == frame {
                cell.set(AWAKE);
                take_back(old);
            }
        }
    });
}

/// Nobody comes back to this sleep.
fn abandoned(old: Asleep) {
    take_back(old);
    match old.what {
        // What woke it may have been meant for all that sleep there.
        Announced::Set(set) => set.pass_on(),
        // SAFETY: made by a `Box`, and the note that owned it is taken out.
        Announced::List(list) => drop(unsafe { Box::from_raw(list) }),
        Announced::Nothing | Announced::Stream { .. } => {}
    }
}

fn take_back(old: Asleep) {
    let (link, slot, waiters) = match old.what {
        Announced::Stream {
            link,
            slot,
            waiters,
        } => (link, slot, waiters),
        Announced::Set(set) => return set.leave(),
        // SAFETY: the note owns it.
        Announced::List(list) => return unsafe { &mut *list }.take_back(),
        Announced::Nothing => return,
    };
    let (at, generation) = link;
    // SAFETY: the memory of links is type-stable (link.rs).
    let link = unsafe { &*(at as *const Link) };
    if link.generation() != generation {
        return;
    }
    if let Some(slot) = link.my_slot(slot) {
        slot.retract();
    }
    // SAFETY: the mask lies in the arena of the link, which the sleeper has pinned.
    unsafe { &*waiters }.fetch_and(!(1 << slot), Ordering::SeqCst);
    link.unpin();
}

unsafe extern "C" {
    fn pthread_setcanceltype(kind: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// From here on this thread is not cancelled: libraries of a device's call the C library, whose
/// functions are cancellation points. Our own system calls are none, so without a device there is
/// nothing to hold. Returns what [`release_cancel`] needs.
#[inline(always)]
pub fn hold_cancel() -> Option<libc::c_int> {
    const DISABLE: libc::c_int = 1;
    if !crate::remote::is_used() {
        return None;
    }
    let mut before = 0;
    // SAFETY: a valid pointer; the call is not hooked.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    Some(before)
}

/// As before [`hold_cancel`].
#[inline(always)]
pub fn release_cancel(held: Option<libc::c_int>) {
    if let Some(before) = held {
        // SAFETY: null is allowed for the old state.
        unsafe { pthread_setcancelstate(before, core::ptr::null_mut()) };
    }
}

/// From here on this thread may be cancelled at any moment; a pending cancellation acts at once.
/// Returns what [`stop_cancel`] needs.
#[inline(always)]
pub fn let_cancel() -> libc::c_int {
    const ASYNCHRONOUS: libc::c_int = 1;
    let mut before = 0;
    // SAFETY: a valid pointer; the call is not hooked.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut before) };
    before
}

/// Only at cancellation points again, if it was so before.
#[inline(always)]
pub fn stop_cancel(before: libc::c_int) {
    // SAFETY: null is allowed for the old type.
    unsafe { pthread_setcanceltype(before, core::ptr::null_mut()) };
}

/// Which handlers end a call that moves bytes, and began when `ran` had: any, where it has moved
/// some or the program has set it a limit; else those that restart nothing (signal(7);
/// tcp_recvmsg_locked, sk_stream_wait_memory).
pub(crate) fn ends(ran: Ran, done: usize, is_limited: bool) -> Ends {
    if done != 0 || is_limited {
        ran.any()
    } else {
        ran.unless_restarted()
    }
}

/// Such a call goes on after a wait: where the kernel would restart it, it counts as begun after
/// the handlers that have run.
pub(crate) fn gone_on(ran: Ran, done: usize, is_limited: bool) -> Ran {
    if done != 0 || is_limited {
        ran
    } else {
        ran.restarted()
    }
}

/// Does a signal handler of the program's run on this thread? It may have interrupted the C library
/// (`malloc`), so nothing of that may be called which has locks. True also for a while after one
/// whose place on the stack nothing has been written to since.
pub(crate) fn is_in_handler() -> bool {
    /// No handler runs so long.
    const LONG_NS: u64 = 1_000_000_000;
    /// No call is so deep, in bytes of stack.
    const DEEP: usize = 1 << 20;
    let Some((ran, last)) = handlers::last_entered() else {
        return false;
    };
    let here = core::ptr::from_ref(&last).addr();
    let stands = |entered: &handlers::Entered| {
        let is_below = here < entered.at && entered.at - here < DEEP;
        // SAFETY: any bytes are a number; this thread's stack reaches from here to there.
        let there = || unsafe { caller::copy_on_trust(entered.at as *const usize) };
        is_below && there() == Some(entered.returns_to)
    };
    if !(last.iter().any(stands) || on_signal_stack()) {
        return false;
    }
    let now = sys::now_ns();
    FOUND.with(|found| {
        let (number, since) = found.get();
        let since = if number == ran { since } else { now };
        found.set((ran, since));
        now.saturating_sub(since) < LONG_NS
    })
}

/// A blocking call that waits: what it has done so far, and the sleep that the edge makes for it.
///
/// A thread may be cancelled while it sleeps, and then its stack is unwound. So the sleep is made
/// by the hook, where nothing is held and nothing has a destructor; the engine is left and entered
/// again.
#[derive(Debug)]
pub struct Nap {
    /// Handlers that had run when the call began.
    pub(crate) ran: Ran,
    /// Bytes moved so far.
    pub(crate) done: usize,
    /// When the socket's timeout runs out; 0: no wait so far, or no timeout.
    pub(crate) deadline: u64,
    /// Sleep while this is 1; null: wait until TCP has `events` for `fd`.
    pub(crate) word: *const u32,
    pub(crate) fd: i32,
    pub(crate) events: i16,
    /// The sleep stands for one in a call of the kernel's, and is counted as such on the half that
    /// waits.
    pub(crate) announced: bool,
    /// When the sleep ends at the latest; 0: never.
    pub(crate) until: u64,
    /// The sleep is to end for less than the socket's SO_RCVLOWAT, which the kernel does not have
    /// meanwhile.
    pub(crate) low: bool,
    /// The socket of a call that has waited, noted before its first wait.
    pub(crate) known: Option<Known>,
    /// The half that waits, and what its peer's word was.
    pub(crate) writer: bool,
    pub(crate) seen: u64,
    /// A recv that has made an ADVERT, which ends with it.
    pub(crate) lent: bool,
    /// A recv that asks for no byte: the kernel waits once and does not look what came of it.
    pub(crate) empty: bool,
    /// A recv that has lent its buffer to another host: signals wait, and what the program's mask
    /// is.
    pub(crate) mask: Option<u64>,
    /// `errno` of the sleep.
    pub(crate) errno: i32,
}

impl Nap {
    /// A call that begins.
    #[inline(always)]
    #[must_use]
    pub fn new() -> Self {
        Self::since(Ran::now())
    }

    /// A call that has not waited yet, and began when so many handlers had run.
    #[inline(always)]
    #[must_use]
    pub const fn since(ran: Ran) -> Self {
        Self {
            ran,
            done: 0,
            deadline: 0,
            word: core::ptr::null(),
            fd: -1,
            events: 0,
            announced: false,
            until: 0,
            low: false,
            known: None,
            writer: false,
            seen: 0,
            lent: false,
            empty: false,
            mask: None,
            errno: 0,
        }
    }

    /// Has the call not waited yet?
    #[inline(always)]
    pub(crate) fn is_fresh(&self) -> bool {
        self.known.is_none()
    }

    /// Under a lock of `sock`, or after no wait: the call is about to wait.
    pub(crate) fn note(&mut self, sock: &'static Sock) {
        if self.known.is_none() {
            self.known = Some(Known::of(sock));
        }
    }

    /// Was the socket closed while the call waited? Under one of its locks a no holds until that is
    /// given back.
    #[inline(always)]
    pub(crate) fn is_lost(&self) -> bool {
        self.known.is_some_and(|known| !known.is_open())
    }

    /// Which handlers end the call where it would wait.
    pub(crate) fn ends(&self) -> Ends {
        ends(self.ran, self.done, self.deadline != 0)
    }

    /// A wait has ended, and no handler has ended the call.
    pub(crate) fn goes_on(&mut self) {
        self.ran = gone_on(self.ran, self.done, self.deadline != 0);
    }

    /// What stands for this call among this thread's sleeps.
    pub(crate) fn frame(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// Sleeps. The thread may be cancelled inside.
    ///
    /// `extern "C"` and never inlined: the frames that a cancellation unwinds hold no landing pad.
    #[inline(never)]
    #[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
    pub extern "C" fn sleep(&mut self) {
        if self.mask.is_some() {
            return self.sleep_lent();
        }
        let left =
            (self.until != 0).then(|| sys::timespec(self.until.saturating_sub(sys::now_ns())));
        let ends = self.ends();
        let before = let_cancel();
        self.errno = if self.word.is_null() {
            match sys::poll_one_unless(ends, self.fd, self.events, left) {
                Ok(0) => libc::ETIMEDOUT,
                Ok(_) => 0,
                Err(e) => e,
            }
        } else {
            // SAFETY: the word lies in the arena of a link that the call has pinned.
            match unsafe { sys::futex_wait(self.word, 1, left.as_ref(), ends) } {
                Ok(_) => 0,
                Err(e) => e,
            }
        };
        stop_cancel(before);
    }
}

/// What glibc runs for a frame that a cancellation or a `longjmp` leaves: its `struct
/// _pthread_cleanup_buffer`.
#[repr(C)]
struct Cleanup {
    routine: Option<extern "C" fn(*mut libc::c_void)>,
    arg: *mut libc::c_void,
    kind: libc::c_int,
    before: *mut Cleanup,
}

type Push = unsafe extern "C" fn(*mut Cleanup, extern "C" fn(*mut libc::c_void), *mut libc::c_void);
type Pop = unsafe extern "C" fn(*mut Cleanup, libc::c_int);

/// glibc's functions for that; 0: it has none.
static PUSH: AtomicUsize = AtomicUsize::new(0);
static POP: AtomicUsize = AtomicUsize::new(0);

/// Can a frame be told that it is left by a jump?
pub fn hears_of_jumps() -> bool {
    PUSH.load(Ordering::Relaxed) != 0 && POP.load(Ordering::Relaxed) != 0
}

/// Signals that are never kept waiting: glibc's own, and those of faults.
const NEVER_BLOCKED: u64 = 1 << 31
    | 1 << 32
    | 1 << (libc::SIGSEGV - 1)
    | 1 << (libc::SIGBUS - 1)
    | 1 << (libc::SIGFPE - 1)
    | 1 << (libc::SIGILL - 1)
    | 1 << (libc::SIGTRAP - 1);

/// Keeps signals of this thread waiting; what its mask was.
pub fn block_signals() -> Option<u64> {
    Some(sys::set_signal_mask(!NEVER_BLOCKED))
}

/// See [`block_signals`].
pub fn unblock_signals(mask: Option<u64>) {
    if let Some(mask) = mask {
        sys::set_signal_mask(mask);
    }
}

/// Nobody comes back to a sleep whose buffer is lent.
extern "C" fn left(nap: *mut libc::c_void) {
    // SAFETY: pushed by the frame that holds it, which is still there.
    let nap = unsafe { &mut *nap.cast::<Nap>() };
    // The mask is the handler's, or nobody's any more.
    nap.mask = None;
    if let Some(known) = nap.known {
        crate::remote::revoke_loan(known, nap);
    }
}

impl Nap {
    /// As [`sleep`](Self::sleep), of a recv whose buffer is lent: it takes signals here alone, and
    /// is told when it is left.
    #[inline(never)]
    #[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
    extern "C" fn sleep_lent(&mut self) {
        let Some(mask) = self.mask.take() else { return };
        let (push, pop) = (PUSH.load(Ordering::Relaxed), POP.load(Ordering::Relaxed));
        // SAFETY: `init` has found them, else nothing is lent.
        let (push, pop) = unsafe {
            (
                core::mem::transmute::<usize, Push>(push),
                core::mem::transmute::<usize, Pop>(pop),
            )
        };
        let mut cleanup = Cleanup {
            routine: None,
            arg: core::ptr::null_mut(),
            kind: 0,
            before: core::ptr::null_mut(),
        };
        let nap = core::ptr::from_mut(self);
        // SAFETY: the buffer lies in this frame, which pops it before it ends.
        unsafe { push(&raw mut cleanup, left, nap.cast()) };
        // Handlers that this lets run end the sleep.
        sys::set_signal_mask(mask);
        // SAFETY: of this frame; not lent a second time, since the mask was taken.
        unsafe { (*nap).sleep() };
        let mask = block_signals();
        // SAFETY: pushed above.
        unsafe { pop(&raw mut cleanup, 0) };
        // SAFETY: as above.
        unsafe { (*nap).mask = mask };
    }
}

impl Default for Nap {
    fn default() -> Self {
        Self::new()
    }
}
