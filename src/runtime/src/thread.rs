//! The calling thread: its CPU, whether it may be cancelled, its signals, and its waiter slots.

use core::cell::Cell;
use sluice_fabric::lock::me;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::{self, Ends, Ran};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

/// Offset of this thread's `struct rseq` from its thread pointer; 0: none (glibc before 2.35).
static RSEQ: AtomicIsize = AtomicIsize::new(0);

/// Address of glibc's `__libc_single_threaded`, a char that becomes 0 with the second thread; 0:
/// none (glibc before 2.32).
static SINGLE: AtomicUsize = AtomicUsize::new(0);

/// True if this process has, or had, several threads. `None`: the C library does not say.
pub fn are_several() -> Option<bool> {
    let at = SINGLE.load(Ordering::Relaxed) as *const u8;
    // SAFETY: null, or the C library's variable, a char that it writes when it makes a thread.
    (!at.is_null()).then(|| unsafe { core::ptr::read_volatile(at) } == 0)
}

/// What higher layers do when a thread ends that has called [`watch_exit`].
static AT_END: OnceLock<fn()> = OnceLock::new();

/// Looks up what glibc exports about threads. Called once, by the constructor. `at_end` is called
/// by each thread that ends and has called [`watch_exit`].
pub fn init(at_end: fn()) {
    let _ = AT_END.set(at_end);
    // SAFETY: dlsym with NUL-terminated names. `__rseq_offset` is an isize and `__rseq_size` an
    // unsigned int, and both were checked for null.
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

/// The CPU this thread runs on, plus one; 0: unknown. A hint, stale at once.
#[inline]
pub fn cpu() -> u32 {
    let offset = RSEQ.load(Ordering::Relaxed);
    if offset != 0 {
        // SAFETY: glibc registered a `struct rseq` of at least 8 bytes there for every thread;
        // `cpu_id` is its second word, which the kernel writes.
        let id = unsafe { core::ptr::read_volatile((me() as isize + offset + 4) as *const u32) };
        // Negative values mean that the kernel refused the registration.
        return if id < 1 << 20 { id + 1 } else { 0 };
    }
    // SAFETY: has no arguments; not hooked.
    (unsafe { libc::sched_getcpu() }).wrapping_add(1) as u32
}

/// Slots that one thread can hold on links at once. A thread that needs more gives up the oldest.
const HELD: usize = 8;

/// The waiter slots of this thread, for blocking calls.
struct Held {
    /// Link (address, generation) and slot number + 1; 0: unused.
    slots: [Cell<(usize, u32, u32)>; HELD],
    next: Cell<usize>,
}

thread_local! {
    // Constant and without a destructor: reading it needs no registration and no allocation.
    static SLOTS: Held = const {
        Held { slots: [const { Cell::new((0, 0, 0)) }; HELD], next: Cell::new(0) }
    };
}

/// The pthread key, plus one, whose destructor returns the slots of a thread that ends; 0: none
/// yet.
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
        // SAFETY: a link's address, whose memory stays a link for the life of the process
        // (link.rs). `return_slot` checks the generation.
        let link = unsafe { &*(at as *const Link) };
        link.return_slot(generation, slot - 1);
    }
}

/// Has this thread return its slots, and call the layers above, when it ends.
pub fn watch_exit() {
    let mut key = KEY.load(Ordering::Acquire);
    if key == 0 {
        let mut made: libc::pthread_key_t = 0;
        // SAFETY: a live variable, and a destructor that ignores what setspecific stored.
        if unsafe { libc::pthread_key_create(&raw mut made, Some(thread_ends)) } != 0 {
            return;
        }
        match KEY.compare_exchange(0, made as usize + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => key = made as usize + 1,
            Err(other) => {
                // SAFETY: this call has made the key, and nobody else knows it.
                unsafe { libc::pthread_key_delete(made) };
                key = other;
            }
        }
    }
    // SAFETY: `KEY` has a key that exists. Any non-null value makes the destructor run.
    unsafe { libc::pthread_setspecific((key - 1) as libc::pthread_key_t, me() as *const _) };
}

extern "C" fn thread_ends(_: *mut libc::c_void) {
    if let Some(at_end) = AT_END.get() {
        at_end();
    }
    SLOTS.with(|held| {
        for cell in &held.slots {
            give_back(cell.replace((0, 0, 0)));
        }
    });
}

/// In the child of a fork: forgets the slots, which are the parent's.
pub fn after_fork() {
    SLOTS.with(|held| {
        for cell in &held.slots {
            cell.set((0, 0, 0));
        }
    });
}

/// Threads of this process run code of RDMA devices' libraries.
static RUNS_DEVICES: AtomicBool = AtomicBool::new(false);

/// True after [`set_runs_devices`] with true.
#[inline]
pub fn runs_devices() -> bool {
    RUNS_DEVICES.load(Ordering::Relaxed)
}

/// Sets whether threads of this process run code of devices' libraries.
pub fn set_runs_devices(runs: bool) {
    RUNS_DEVICES.store(runs, Ordering::Relaxed);
}

unsafe extern "C" {
    fn pthread_setcanceltype(kind: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// Disables cancellation of this thread: devices' libraries call the C library, whose functions are
/// cancellation points. The library's own system calls are none, so without a device nothing is
/// needed. Returns the argument of [`release_cancel`].
#[inline(always)]
pub fn hold_cancel() -> Option<libc::c_int> {
    const DISABLE: libc::c_int = 1;
    if !runs_devices() {
        return None;
    }
    let mut before = 0;
    // SAFETY: a live variable; the call is not hooked.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    Some(before)
}

/// Restores the state before [`hold_cancel`].
#[inline(always)]
pub fn release_cancel(held: Option<libc::c_int>) {
    if let Some(before) = held {
        // SAFETY: null is allowed for the old state.
        unsafe { pthread_setcancelstate(before, core::ptr::null_mut()) };
    }
}

/// Lets this thread be cancelled at any moment; a pending cancellation acts at once. Returns the
/// argument of [`stop_cancel`].
#[inline(always)]
pub fn let_cancel() -> libc::c_int {
    const ASYNCHRONOUS: libc::c_int = 1;
    let mut before = 0;
    // SAFETY: a live variable; the call is not hooked.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut before) };
    before
}

/// Restores the cancellation type before [`let_cancel`].
#[inline(always)]
pub fn stop_cancel(before: libc::c_int) {
    // SAFETY: null is allowed for the old type.
    unsafe { pthread_setcanceltype(before, core::ptr::null_mut()) };
}

/// Which signal handlers end a call that moves bytes and began at `ran`. If it has moved some, or
/// the program has set a time limit: any. Otherwise those without SA_RESTART (signal(7);
/// tcp_recvmsg_locked, sk_stream_wait_memory).
pub fn ends(ran: Ran, done: usize, is_limited: bool) -> Ends {
    if done != 0 || is_limited {
        ran.any()
    } else {
        ran.unless_restarted()
    }
}

/// When such a call goes on after a wait: where the kernel would restart it, it counts as begun
/// after the handlers that have run.
pub fn gone_on(ran: Ran, done: usize, is_limited: bool) -> Ran {
    if done != 0 || is_limited {
        ran
    } else {
        ran.restarted()
    }
}

/// glibc's `struct _pthread_cleanup_buffer`: what it calls if a cancellation or `longjmp` leaves
/// the frame.
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

/// True if a frame can learn that it is left by `longjmp`.
pub fn hears_of_jumps() -> bool {
    PUSH.load(Ordering::Relaxed) != 0 && POP.load(Ordering::Relaxed) != 0
}

/// Runs `body`. If a cancellation or `longjmp` leaves it, calls `routine` with `arg`.
///
/// Inlined: a frame that a cancellation unwinds may have no landing pad.
///
/// # Safety
/// [`hears_of_jumps`] is true, `body` has nothing to drop, and `routine` takes `arg`.
#[inline(always)]
pub unsafe fn unless_left(
    routine: extern "C" fn(*mut libc::c_void),
    arg: *mut libc::c_void,
    body: impl FnOnce(),
) {
    let (push, pop) = (PUSH.load(Ordering::Relaxed), POP.load(Ordering::Relaxed));
    // SAFETY: `hears_of_jumps`, so `init` has found both; these are their types in glibc.
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
    // SAFETY: the buffer lives in this frame, which pops it before it ends.
    unsafe { push(&raw mut cleanup, routine, arg) };
    body();
    // SAFETY: this is the buffer that was pushed last.
    unsafe { pop(&raw mut cleanup, 0) };
}

/// Signals that are never blocked: glibc's own, and those of faults.
const NEVER_BLOCKED: u64 = 1 << 31
    | 1 << 32
    | 1 << (libc::SIGSEGV - 1)
    | 1 << (libc::SIGBUS - 1)
    | 1 << (libc::SIGFPE - 1)
    | 1 << (libc::SIGILL - 1)
    | 1 << (libc::SIGTRAP - 1);

/// Blocks the signals of this thread. Returns its mask before.
pub fn block_signals() -> Option<u64> {
    Some(sys::set_signal_mask(!NEVER_BLOCKED))
}

/// Restores the mask before [`block_signals`].
pub fn unblock_signals(mask: Option<u64>) {
    if let Some(mask) = mask {
        sys::set_signal_mask(mask);
    }
}
