//! The short lock: of one direction of a socket, and of this process's lists.
//!
//! Held for a copy and a compare-and-swap, never while waiting. It notes its owner, so that a
//! signal handler which meets its own thread's lock knows it, and so that a section left by
//! `siglongjmp` is found and taken over (every change of state under it is one compare-and-swap).

mod circle;

pub use circle::after_fork;

use circle::Wait;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// This thread's identity: its thread pointer, unique among living threads of the process. One
/// instruction, no thread-local storage, right in a signal handler.
#[inline(always)]
pub fn me() -> usize {
    let id: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the x86-64 ABI keeps the thread pointer at fs:0 (ELF TLS, variant II).
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) id, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: tpidr_el0 is readable and holds the thread pointer.
    unsafe {
        core::arch::asm!(
            "mrs {}, tpidr_el0", out(reg) id,
            options(nostack, preserves_flags, nomem),
        );
    }
    id
}

/// The order of locks that are taken before a socket's.
pub const BEFORE_SOCKETS: u8 = 3;
/// The order of a socket's rx lock.
pub const OF_RX: u8 = 2;
/// The order of a socket's tx lock.
pub const OF_TX: u8 = 1;

/// Zero is an unlocked lock. Two words: that a half of a socket fits into its cache lines.
#[derive(Debug, Default)]
pub struct Lock {
    /// Thread pointer of the owner; 0: free. Acquire when taken, release when given back.
    owner: AtomicUsize,
    /// The lower half of an address in the owner's frame when it took the lock.
    frame: AtomicU32,
    /// A thread takes locks of a higher order first; 0: it takes none of an order in this one.
    order: AtomicU8,
}

/// The lock is held by an outer frame of this very thread, or by a thread that waits for one that
/// is: this is a signal handler.
#[derive(Debug)]
pub struct Nested;

/// A section under a [`Lock`]; gives that back on drop.
#[derive(Debug)]
#[must_use = "the lock is given back at once"]
pub struct Section<'a>(&'a Lock);

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl Lock {
    /// An unlocked lock.
    #[must_use]
    pub const fn new() -> Self {
        Self::of_order(0)
    }

    /// One that a thread takes before those of a lower order.
    const fn of_order(order: u8) -> Self {
        Self {
            owner: AtomicUsize::new(0),
            frame: AtomicU32::new(0),
            order: AtomicU8::new(order),
        }
    }

    /// A thread takes this one before those of a lower order. Said before it is used.
    pub fn set_order(&self, order: u8) {
        self.order.store(order, Ordering::Relaxed);
    }

    /// Takes the lock if it is free.
    #[inline]
    fn try_lock(&self) -> bool {
        let free = self.owner.load(Ordering::Relaxed) == 0
            && self
                .owner
                .compare_exchange(0, me(), Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if free {
            self.frame.store(frame(), Ordering::Relaxed);
        }
        free
    }

    /// The section under the lock, if that is free.
    #[inline]
    pub fn try_enter(&self) -> Option<Section<'_>> {
        self.try_lock().then(|| Section(self))
    }

    /// The section under the lock, once another thread's short one is over.
    ///
    /// # Errors
    /// [`Nested`] in a signal handler that interrupted this thread's own section, or a section of
    /// a later lock for which the holder of this one waits.
    #[inline]
    pub fn enter(&self) -> Result<Section<'_>, Nested> {
        self.lock().map(|()| Section(self))
    }

    /// Takes the lock; see [`enter`](Lock::enter).
    #[inline]
    fn lock(&self) -> Result<(), Nested> {
        if self.try_lock() {
            Ok(())
        } else {
            self.lock_contended()
        }
    }

    #[cold]
    fn lock_contended(&self) -> Result<(), Nested> {
        let mut spins = 0u32;
        let mut wait = Wait::new(self.order.load(Ordering::Relaxed));
        loop {
            let owner = self.owner.load(Ordering::Relaxed);
            if owner == me() {
                if on_signal_stack() || is_nested(frame(), self.frame.load(Ordering::Relaxed)) {
                    return Err(Nested);
                }
                // We stand in an older frame than the section did: it was left by a jump.
                self.frame.store(frame(), Ordering::Relaxed);
                return Ok(());
            }
            if self.try_lock() {
                return Ok(());
            }
            spins += 1;
            if spins.is_multiple_of(64) {
                if wait.closes_circle(owner) {
                    return Err(Nested);
                }
                crate::sys::sched_yield();
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// Gives the lock back.
    #[inline]
    fn unlock(&self) {
        self.owner.store(0, Ordering::Release);
    }

    /// In the child of a fork: its holder does not exist here.
    pub fn reset(&self) {
        self.owner.store(0, Ordering::Relaxed);
    }

    /// As [`reset`](Lock::reset), where a handler may have forked in the middle of this thread's
    /// own section.
    pub fn reset_if_others(&self) {
        if self.owner.load(Ordering::Relaxed) != me() {
            self.reset();
        }
    }
}

/// The lower half of an address in the current frame.
#[inline(always)]
fn frame() -> u32 {
    let here = 0u8;
    core::ptr::from_ref(&here) as u32
}

/// Stacks grow down, so a nested call's frame has a smaller address; within 2 GiB of the outer one.
const fn is_nested(frame: u32, outer: u32) -> bool {
    frame.wrapping_sub(outer).cast_signed() < 0
}

/// Does this thread run on its alternate signal stack? Then addresses tell nothing, but it is a
/// handler.
#[must_use]
pub fn on_signal_stack() -> bool {
    let mut stack = libc::stack_t {
        ss_sp: core::ptr::null_mut(),
        ss_flags: 0,
        ss_size: 0,
    };
    // SAFETY: asks only; sigaltstack is not hooked.
    unsafe { libc::sigaltstack(core::ptr::null(), &raw mut stack) };
    stack.ss_flags & libc::SS_ONSTACK != 0
}

/// A value under a [`Lock`]: for lists that hooks, the control thread and a forked child use.
///
/// Unlike `std::sync::Mutex` it can be held over a fork and given back on both sides.
#[derive(Debug, Default)]
pub struct Guarded<T> {
    lock: Lock,
    /// Forks over which the lock is held.
    forks: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the lock only.
unsafe impl<T: Send> Sync for Guarded<T> {}

/// Access to a [`Guarded`] value, in a section under its lock.
#[derive(Debug)]
pub struct Guard<'a, T> {
    value: &'a UnsafeCell<T>,
    _section: Section<'a>,
}

impl<T> Guarded<T> {
    /// A guarded value.
    pub const fn new(value: T) -> Self {
        Self::of_order(0, value)
    }

    /// One whose lock a thread takes before those of a lower order.
    pub const fn of_order(order: u8, value: T) -> Self {
        Self {
            lock: Lock::of_order(order),
            forks: AtomicUsize::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, once no other thread has it; `None` in a signal handler, where [`Lock::enter`] is
    /// [`Nested`].
    pub fn lock(&self) -> Option<Guard<'_, T>> {
        let section = self.lock.enter().ok()?;
        Some(Guard {
            value: &self.value,
            _section: section,
        })
    }

    /// Is somebody inside? A moment ago.
    pub fn is_locked(&self) -> bool {
        self.lock.owner.load(Ordering::Relaxed) != 0
    }
}

/// A lock that is held over a fork, so that the child finds whole what it guards.
pub trait OverFork: Sync {
    /// Before a fork: nobody is inside, and nobody comes in.
    ///
    /// In a handler that forks in the middle of this thread's own section nothing is done: on both
    /// sides of the fork that section goes on, and is what gives the lock back.
    fn hold(&self);

    /// After a fork, on both sides: of [`hold`](OverFork::hold).
    fn release(&self);
}

impl<T: Send> OverFork for Guarded<T> {
    fn hold(&self) {
        let mine = self.lock.lock().is_ok();
        // Only the holder of the lock writes this.
        let forks = self.forks.load(Ordering::Relaxed);
        if mine || forks != 0 {
            self.forks.store(forks + 1, Ordering::Relaxed);
        }
    }

    fn release(&self) {
        let forks = self.forks.load(Ordering::Relaxed);
        self.forks.store(forks.saturating_sub(1), Ordering::Relaxed);
        if forks == 1 {
            self.lock.unlock();
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock and is borrowed exclusively.
        unsafe { &mut *self.value.get() }
    }
}
