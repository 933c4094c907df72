//! The library's own descriptors: at the top of the soft limit, close-on-exec, in the table so that
//! no hook closes or replaces them, and at most a tenth of the limit.
//!
//! The kernel gives a new descriptor the lowest free number, so each of the library's is low for a
//! moment before it is lifted. [`Low`] marks these moments, and [`Placing`] excludes them while the
//! program puts a descriptor of its own at a free number. Otherwise the library's would be closed
//! there, and then the program's lifted and closed in its place. Nor may the program get another
//! number than the lowest free one: shells and daemons close 1 and rely on what `dup` or `open`
//! returns next.

use crate::fd_table::{self, Entry};
use crate::seccomp;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sluice_fabric::sys::{self, Fd};

/// Limit of the numbers used: the kernel's table of descriptors grows with the highest number.
const TOP: u64 = 16 << 10;

static HELD: AtomicU32 = AtomicU32::new(0);

/// Threads that may be making descriptors now, and how often one had done so. A thread that leaves
/// changes the second first: if the first is 0 and the second as before, no descriptor was made in
/// between.
static LOW: AtomicU32 = AtomicU32::new(0);
static LOWS: AtomicU32 = AtomicU32::new(0);
/// Threads that are putting descriptors of the program's at numbers of its choice, or at the lowest
/// free ones.
static PLACING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// In how many sections of each kind this thread is: a handler that interrupts one must not
    /// wait for its own thread. A section that was left by `longjmp` stays counted.
    static MINE: Cell<u32> = const { Cell::new(0) };
    static PLACED: Cell<u32> = const { Cell::new(0) };
}

/// Longest wait of each side for the other, in ns. Both sections are a few system calls. But their
/// thread may wait for a CPU, and in the kernel for all CPUs, when several threads share the table
/// of descriptors and it grows (fs/file.c, expand_fdtable). A limit is needed: a signal handler may
/// have left a section by `longjmp`, or hold in one what the other side waits for.
const PATIENCE_NS: u64 = 250_000_000;

/// Shortest wait after a thread was seen in such a section, in ns, however long the wait was
/// before: the thread may be about to leave.
const GRACE_NS: u64 = 10_000_000;

/// Calls of the control thread, within a [`Low`], that open libraries and devices: many system
/// calls, by a thread that no handler interrupts. Longest wait for them, in ns: the waiting thread
/// may hold the dynamic linker's lock.
static OPENING: AtomicU32 = AtomicU32::new(0);
const OPENING_NS: u64 = 1_000_000_000;

/// True while the control thread is in a [`Low`] for a whole turn.
static TURN: AtomicBool = AtomicBool::new(false);

/// Enters the section that `mine` counts, at a moment when no thread is in that of `other`.
fn enter_apart(mine: &AtomicU32, other: &AtomicU32) {
    let mut patience = Patience::default();
    loop {
        mine.fetch_add(1, Ordering::SeqCst);
        if other.load(Ordering::SeqCst) == 0 {
            return;
        }
        if patience.is_over() {
            // It was left by `longjmp`, so nobody must wait for it again.
            other.store(0, Ordering::SeqCst);
            return;
        }
        leave_apart(mine);
        sys::sched_yield();
    }
}

/// How long a thread waits for the other side.
#[derive(Default)]
struct Patience {
    /// When the wait began; 0: not yet.
    began: u64,
    /// When it ends, as far as is known.
    until: u64,
    waits: Waits,
}

/// For what a thread waits longer than for a few system calls.
#[derive(Clone, Copy, Default)]
enum Waits {
    /// For other threads, and for libraries that open what they need.
    #[default]
    ForBoth,
    /// The same, by a thread that holds nothing that the control thread may want.
    WithNothing,
    /// For other threads, not for libraries.
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

/// While this lives, libraries open what they need: a thread that waits for them waits longer.
#[derive(Debug)]
pub struct Opening(());

impl Opening {
    /// Begins it. Called by the control thread.
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

/// Leaves the section, unless another thread has reset its count.
fn leave_apart(mine: &AtomicU32) {
    let _ = mine.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
}

/// While this lives, the program may put a descriptor at any number, or at the lowest free one:
/// none of the library's is low, or gets low.
#[derive(Debug)]
pub struct Placing {
    /// False for a library that opens what the control thread needs: this thread is in a [`Low`].
    apart: bool,
}

impl Placing {
    /// Waits until no descriptor of the library's is low.
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

/// Whether the kernel's table of descriptors has been made to reach up to the library's numbers.
static GROWN: AtomicBool = AtomicBool::new(false);

/// Grows the kernel's table before the first descriptor of the library's is low: where several
/// threads share the table, the kernel waits for all CPUs to grow it, which takes long on a busy
/// machine. For that a standard stream is duplicated to a high number.
///
/// Not while an inherited filter may kill for it. Low descriptors then come from calls that the
/// loader made, too.
fn grow() {
    if GROWN.load(Ordering::Acquire) || !seccomp::is_free() {
        return;
    }
    let (first, _) = numbers();
    for stream in 0..=2 {
        // Closing a duplicate would drop the process's locks on a file (F_SETLK).
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
    // Stored last: a thread that comes meanwhile waits in the same call.
    GROWN.store(true, Ordering::Release);
}

/// While this lives, descriptors of the library's may be at numbers that are free for the program.
#[derive(Debug)]
pub struct Low(());

impl Low {
    /// Waits until no thread places a descriptor.
    pub fn begin() -> Self {
        grow();
        Self::of_filters()
    }

    /// As [`begin`](Self::begin), for what must be read before the kernel's table may be grown:
    /// whether a filter forbids that.
    pub(crate) fn of_filters() -> Self {
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

/// A turn of the control thread's loop, which may make descriptors at any moment.
#[derive(Debug)]
pub struct Turn(Low);

impl Turn {
    /// Begins it. Called by the control thread.
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

/// Waits until no descriptor of the library's is low, with a limit.
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
                // It was left by `longjmp`, so nobody must wait for it again.
                let _ = LOW.compare_exchange(low, 0, Ordering::SeqCst, Ordering::SeqCst);
            }
            return;
        }
        sys::sched_yield();
    }
}

/// Waits until no descriptor of the library's is low, with a limit. Returns how often one may have
/// been so far. Called without a lock.
#[cold]
pub fn lows() -> u32 {
    await_high(Waits::WithNothing);
    LOWS.load(Ordering::SeqCst)
}

/// Before a call that may take long, and returns the lowest free number: waits until no descriptor
/// of the library's is low, but not for libraries that open what they need. For a short call use
/// [`Placing`].
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

/// The lowest number for the library's descriptors, and how many it may have.
fn numbers() -> (usize, u64) {
    let top = sys::descriptor_limit().min(TOP);
    let room = top / 10;
    ((top - room) as usize, room)
}

/// Moves a descriptor to the top and enters it. `None`: there is no room.
pub fn lift(fd: Fd) -> Option<Fd> {
    copy(fd.raw())
}

/// As [`lift`], but leaves the descriptor itself open.
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

/// Enters a number as the library's.
pub fn enter(fd: i32) {
    // A number that was closed unseen, and is the library's again, is counted already.
    if !fd_table::is_internal(fd) && fd_table::store(fd, Entry::INTERNAL) {
        HELD.fetch_add(1, Ordering::Relaxed);
    }
}

/// A number of the library's was taken out of the table: it has another owner now.
pub fn taken() {
    HELD.fetch_sub(1, Ordering::Relaxed);
}

/// Removes numbers that were closed unseen: by their owner's end, or by the program.
fn prune() {
    fd_table::for_range(0, i32::MAX, |fd, entry| {
        if entry == Entry::INTERNAL && sys::fcntl(fd, libc::F_GETFD, 0) == Err(libc::EBADF) {
            forget(fd);
        }
    });
}

/// Removes a number that is about to be closed, or is the program's again.
pub fn forget(fd: i32) {
    if fd_table::remove_if(fd, Entry::INTERNAL) {
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closes a descriptor of the library's, if the number is still entered as that.
pub fn close(fd: i32) {
    forget(fd);
    drop(Fd::own(fd));
}

/// Gives up a number of the library's that the program wants, and that nothing of the library's
/// uses any more. It is not moved, since other threads may have cached the number.
pub fn yield_number(fd: i32) {
    forget(fd);
    // Threads, sets and the control thread end later, and each closes what is its own.
    sys::give_away(fd);
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test reads /proc")]
mod tests {
    use super::*;

    /// The length of the kernel's table of descriptors.
    fn reach() -> Option<usize> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let size = status.lines().find_map(|l| l.strip_prefix("FDSize:"))?;
        size.trim().parse().ok()
    }

    #[test]
    fn the_table_reaches_up_before_one_of_ours_stands_low() {
        let (first, _) = numbers();
        // A child's table is as short as its parent's descriptors allow. SAFETY: the children only
        // make system calls on their own memory, and exit. The first one has one thread, and uses
        // none of the descriptors that it closes.
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
