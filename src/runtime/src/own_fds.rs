//! The library's own descriptors: at the top of the soft limit, close-on-exec, known to the table
//! so that no hook closes or replaces them, and never more than a tenth of the limit.
//!
//! The kernel gives a new descriptor the lowest free number, so each of ours stands there for a
//! moment before it is lifted. [`Low`] says when that may be, and [`Placing`] keeps it from being
//! when the program puts a descriptor of its own at a number that is free: ours would be closed
//! there, and what lifts it would lift, and close, the program's. Nor is the program to be given
//! another number than the lowest free one: shells and daemons close 1 and rely on what `dup` or
//! `open` gives them next.

use crate::fd_table::{self, Entry};
use crate::seccomp;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sluice_fabric::sys::{self, Fd};

/// However high the limit: the kernel's table of descriptors grows with the highest number in use.
const TOP: u64 = 16 << 10;

static HELD: AtomicU32 = AtomicU32::new(0);

/// Threads that may be making descriptors now, and how often one had done so. The first is taken
/// back last: a thread that finds it 0 and the second unchanged since an earlier look knows that
/// there was none in between.
static LOW: AtomicU32 = AtomicU32::new(0);
static LOWS: AtomicU32 = AtomicU32::new(0);
/// Threads that are putting the program's descriptors at numbers now, of its choice or the lowest
/// free ones.
static PLACING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// In how many of the sections of each kind this thread is, be it that a handler interrupts it
    /// there: it does not wait for itself. One that was left by a jump stays counted.
    static MINE: Cell<u32> = const { Cell::new(0) };
    static PLACED: Cell<u32> = const { Cell::new(0) };
}

/// Each side waits for the other for so long at most, in ns. Both sections are a few system calls,
/// but the thread that makes them may wait for a processor, on a machine that is busy for many
/// slices of time, and in the kernel for all processors, where several threads have the table of
/// descriptors that is to grow up to our numbers (fs/file.c, expand_fdtable). Not for ever: a
/// signal handler may have jumped out of one, or hold in the middle of one what the other side
/// waits for.
const PATIENCE_NS: u64 = 250_000_000;

/// A thread seen in such a section a moment ago may just be on its way out, and has so long, in ns,
/// however long the wait was.
const GRACE_NS: u64 = 10_000_000;

/// Within a [`Low`], the control thread has libraries and devices opened: many system calls, by a
/// thread that no handler interrupts. No thread waits for longer than this, in ns: it may hold
/// the dynamic linker's lock.
static OPENING: AtomicU32 = AtomicU32::new(0);
const OPENING_NS: u64 = 1_000_000_000;

/// Whether the control thread is in a [`Low`], which is its whole turn then.
static TURN: AtomicBool = AtomicBool::new(false);

/// Enters the section that `mine` counts, at a moment when nobody is in that of `other`.
fn enter_apart(mine: &AtomicU32, other: &AtomicU32) {
    let mut patience = Patience::default();
    loop {
        mine.fetch_add(1, Ordering::SeqCst);
        if other.load(Ordering::SeqCst) == 0 {
            return;
        }
        if patience.is_over() {
            // Left by a jump: nobody is to wait for it again.
            other.store(0, Ordering::SeqCst);
            return;
        }
        leave_apart(mine);
        sys::sched_yield();
    }
}

/// How long somebody waits for the other side.
#[derive(Default)]
struct Patience {
    /// When it began; 0: not yet.
    began: u64,
    /// When it ends, as far as is known.
    until: u64,
    waits: Waits,
}

/// For what somebody waits longer than for a few system calls.
#[derive(Clone, Copy, Default)]
enum Waits {
    /// For threads that are there, and for libraries that open what they need.
    #[default]
    ForBoth,
    /// The same, holding nothing that the control thread may want.
    WithNothing,
    /// For no libraries.
    ForFew,
}

impl Patience {
    fn is_over(&mut self) -> bool {
        let now = sys::now_ns();
        if self.began == 0 {
            self.began = now;
            self.until = now + GRACE_NS;
        }
        let opens = OPENING.load(Ordering::SeqCst) != 0;
        let longest = match (self.waits, TURN.load(Ordering::SeqCst)) {
            (Waits::ForFew, _) if opens => 0,
            (Waits::WithNothing, true) => OPENING_NS,
            _ if opens => OPENING_NS,
            _ => PATIENCE_NS,
        };
        let until = (now + GRACE_NS).min(self.began + longest);
        self.until = self.until.max(until);
        now > self.until
    }
}

/// While this lives, libraries open what they need: a thread that waits for them has more patience.
#[derive(Debug)]
pub struct Opening(());

impl Opening {
    /// From here on, by the control thread.
    pub fn begin() -> Self {
        OPENING.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let _ = OPENING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    }
}

/// Leaves the section, unless it was taken for one that was left by a jump.
fn leave_apart(mine: &AtomicU32) {
    let _ = mine.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
}

/// While this lives, the program may put a descriptor at any number, or at the lowest free one:
/// none of ours stands there, nor comes to.
#[derive(Debug)]
pub struct Placing {
    /// Not by a library that opens what we need.
    apart: bool,
}

impl Placing {
    /// From here on.
    pub fn begin() -> Self {
        let apart = MINE.get() == 0;
        if apart {
            enter_apart(&PLACING, &LOW);
            PLACED.set(PLACED.get() + 1);
        }
        Self { apart }
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        if self.apart {
            PLACED.set(PLACED.get() - 1);
            leave_apart(&PLACING);
        }
    }
}

/// Whether the kernel's table of descriptors has been made to reach up to our numbers.
static GROWN: AtomicBool = AtomicBool::new(false);

/// Before the first of ours stands at a low number: where several threads have the table the kernel
/// waits for all processors to grow it, for as long as a machine that is busy needs. A standard
/// stream goes up at once, and is nowhere else meanwhile.
///
/// Not while an inherited filter may kill for it: what stands low then is opened by calls that the
/// loader made, too.
fn grow() {
    if GROWN.load(Ordering::Acquire) || !seccomp::is_free() {
        return;
    }
    let (first, _) = numbers();
    for stream in 0..=2 {
        // A close of another descriptor takes a process's locks on a file away (F_SETLK).
        let is_file = |st: libc::stat| st.st_mode & libc::S_IFMT == libc::S_IFREG;
        if sys::fstat(stream).map_or(true, is_file) {
            continue;
        }
        if let Ok(high) = sys::fcntl(stream, libc::F_DUPFD_CLOEXEC, first) {
            enter(high);
            close(high);
            break;
        }
    }
    // A thread that comes meanwhile waits in the same call.
    GROWN.store(true, Ordering::Release);
}

/// While this lives, descriptors of ours may stand at numbers that are free for the program.
#[derive(Debug)]
pub struct Low(());

impl Low {
    /// From here on.
    pub fn begin() -> Self {
        grow();
        if PLACED.get() == 0 {
            enter_apart(&LOW, &PLACING);
        } else {
            LOW.fetch_add(1, Ordering::SeqCst);
        }
        MINE.set(MINE.get() + 1);
        Self(())
    }
}

impl Drop for Low {
    fn drop(&mut self) {
        MINE.set(MINE.get() - 1);
        LOWS.fetch_add(1, Ordering::SeqCst);
        leave_apart(&LOW);
    }
}

/// A turn of the control thread.
#[derive(Debug)]
pub struct Turn(Low);

impl Turn {
    /// From here on, by the control thread.
    pub fn begin() -> Self {
        let low = Low::begin();
        TURN.store(true, Ordering::SeqCst);
        Self(low)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURN.store(false, Ordering::SeqCst);
    }
}

/// Waits until no descriptor of ours stands at a low number, not for ever.
#[cold]
fn await_high(waits: Waits) {
    let mut patience = Patience {
        waits,
        ..Patience::default()
    };
    let ended = LOWS.load(Ordering::SeqCst);
    loop {
        let low = LOW.load(Ordering::SeqCst);
        if low == 0 {
            return;
        }
        if patience.is_over() {
            let is_known = TURN.load(Ordering::SeqCst) || OPENING.load(Ordering::SeqCst) != 0;
            if !is_known && LOWS.load(Ordering::SeqCst) == ended {
                // Left by a jump: nobody is to wait for it again.
                let _ = LOW.compare_exchange(low, 0, Ordering::SeqCst, Ordering::SeqCst);
            }
            return;
        }
        sys::sched_yield();
    }
}

/// Waits until no descriptor of ours stands at a low number, not for ever; how often one may have
/// so far. Not with a lock.
#[cold]
pub fn lows() -> u32 {
    await_high(Waits::WithNothing);
    LOWS.load(Ordering::SeqCst)
}

/// Before a call that may take long, and gives the program the lowest free number: waits until no
/// descriptor of ours stands there, but not for libraries that open what they need. For a short
/// call there is [`Placing`].
#[inline]
pub fn clear_lowest() {
    if LOW.load(Ordering::SeqCst) != 0 && MINE.get() == 0 {
        await_high(Waits::ForFew);
    }
}

/// In the child of a fork: the threads that made descriptors do not exist here.
pub fn after_fork() {
    GROWN.store(false, Ordering::Relaxed);
    LOW.store(0, Ordering::Relaxed);
    TURN.store(false, Ordering::Relaxed);
    OPENING.store(0, Ordering::Relaxed);
    PLACING.store(0, Ordering::Relaxed);
}

/// The lowest of our numbers, and how many we may have.
fn numbers() -> (usize, u64) {
    let top = sys::descriptor_limit().min(TOP);
    let room = top / 10;
    ((top - room) as usize, room)
}

/// Moves a descriptor to the top and enters it; `None`: no room there.
pub fn lift(fd: Fd) -> Option<Fd> {
    copy(fd.raw())
}

/// As [`lift`], for a descriptor that stays where it is.
pub fn copy(fd: i32) -> Option<Fd> {
    let (first, room) = numbers();
    if u64::from(HELD.load(Ordering::Relaxed)) >= room {
        prune();
        if u64::from(HELD.load(Ordering::Relaxed)) >= room {
            return None;
        }
    }
    let lifted = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, first).ok()?;
    enter(lifted);
    Some(Fd::own(lifted))
}

/// Enters a number that is ours.
pub fn enter(fd: i32) {
    // A number that was ours before, and was closed where nobody told us, is counted already.
    if !fd_table::is_internal(fd) && fd_table::store(fd, Entry::INTERNAL) {
        HELD.fetch_add(1, Ordering::Relaxed);
    }
}

/// A number of ours was taken out of the table: it is somebody else's now.
pub fn taken() {
    HELD.fetch_sub(1, Ordering::Relaxed);
}

/// Forgets numbers that are closed: by their owner's end, or by the program, unseen.
fn prune() {
    fd_table::for_range(0, i32::MAX, |fd, entry| {
        if entry == Entry::INTERNAL && sys::fcntl(fd, libc::F_GETFD, 0) == Err(libc::EBADF) {
            forget(fd);
        }
    });
}

/// The number is about to be closed, or is the program's again.
pub fn forget(fd: i32) {
    if fd_table::remove_if(fd, Entry::INTERNAL) {
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closes a number of ours, unless it has come to be another's.
pub fn close(fd: i32) {
    forget(fd);
    drop(Fd::own(fd));
}

/// The program wants this very number, which is ours, for itself, and nothing of ours uses it from
/// now on. Only numbers that nothing has cached could move, so the descriptor is given up instead.
pub fn yield_number(fd: i32) {
    forget(fd);
    // Threads, sets and the control thread come to their ends later, and each closes what is its
    // own.
    sys::give_away(fd);
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test reads /proc")]
mod tests {
    use super::*;

    /// How far the kernel's table of descriptors reaches.
    fn reach() -> Option<usize> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let size = status.lines().find_map(|l| l.strip_prefix("FDSize:"))?;
        size.trim().parse().ok()
    }

    #[test]
    fn the_table_reaches_up_before_one_of_ours_stands_low() {
        let (first, _) = numbers();
        // A child's table is as small as its parent's descriptors allow.
        // SAFETY: the children make system calls on memory of their own and end; the first has one
        // thread, and no use for its descriptors.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::close_range(3, libc::c_uint::MAX, 0);
                let pid = libc::fork();
                if pid == 0 {
                    after_fork();
                    let before = reach();
                    let _low = Low::begin();
                    let grows =
                        before.is_some_and(|n| n <= first) && reach().is_some_and(|n| n > first);
                    libc::_exit(i32::from(!grows))
                }
                let mut status = 0;
                let waited = libc::waitpid(pid, &raw mut status, 0);
                libc::_exit(i32::from(waited != pid || status != 0));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
    }
}
