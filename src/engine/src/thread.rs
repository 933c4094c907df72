//! What this thread is: its identity, its CPU, and the slots that it sleeps on.

use core::cell::Cell;
use sluice_fabric::lock::me;
use sluice_fabric::shm::Link;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

/// Offset of this thread's `struct rseq` from its thread pointer; 0: not there (glibc before 2.35).
static RSEQ: AtomicIsize = AtomicIsize::new(0);

/// Finds glibc's rseq area. Called once, by the constructor.
pub fn init() {
    // SAFETY: dlsym with a NUL-terminated name; the symbols are an isize and an unsigned int.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
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
    // Constant and without a destructor: reading it needs no registration and no allocation.
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
    crate::readiness::poll::thread_ends();
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
}

unsafe extern "C" {
    fn pthread_setcanceltype(kind: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// From here on the thread may be cancelled at any instruction: around a sleep in the kernel, with
/// nothing held and nothing to drop. Returns what to give to [`cancel_as`].
pub fn cancel_asynchronously() -> libc::c_int {
    const ASYNCHRONOUS: libc::c_int = 1;
    let mut before = 0;
    // SAFETY: a valid pointer; the call is not hooked.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut before) };
    before
}

/// Ends [`cancel_asynchronously`].
pub fn cancel_as(before: libc::c_int) {
    // SAFETY: null is allowed for the old type.
    unsafe { pthread_setcanceltype(before, core::ptr::null_mut()) };
}
