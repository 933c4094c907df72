//! `select` and `pselect`, by way of poll.

use super::poll;
use super::wait_state::{WaitState, failed};
use crate::set::Set;
use libc::{c_int, fd_set, pollfd, sigset_t, timespec};
use sluice_fabric::sys;
use sluice_runtime::fd_table::{self, Entry};
use sluice_runtime::own_fds::Placing;
use sluice_runtime::{caller, seccomp};
use sluice_sockets::verdict::{Error, Pass, Verdict};

/// What select calls readable, writable and exceptional (select(2)).
const READ: i16 =
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR;
const EXCEPT: i16 = libc::POLLPRI;

/// One of the three sets: bits in words, of any length (`nfds` may exceed FD_SETSIZE).
#[derive(Clone, Copy)]
struct Bits(*mut u64);

impl Bits {
    const NONE: Self = Self(core::ptr::null_mut());

    /// The place and the length of these words.
    fn bytes(self, words: &core::ops::Range<usize>) -> (usize, usize) {
        (
            (self.0 as usize).wrapping_add(words.start * 8),
            words.len() * 8,
        )
    }
    fn can_read(self, words: &core::ops::Range<usize>) -> bool {
        let (at, len) = self.bytes(words);
        self.0.is_null() || caller::can_read(at, len)
    }
    fn cannot_read(self, words: &core::ops::Range<usize>) -> bool {
        let (at, len) = self.bytes(words);
        !self.0.is_null() && caller::cannot_read(at, len)
    }
    fn cannot_write(self, words: &core::ops::Range<usize>) -> bool {
        let (at, len) = self.bytes(words);
        !self.0.is_null() && caller::cannot_write(at, len)
    }
    fn has(self, fd: usize) -> bool {
        self.word(fd / 64) & (1 << (fd % 64)) != 0
    }
    /// Those of 64 numbers.
    fn word(self, at: usize) -> u64 {
        if self.0.is_null() {
            return 0;
        }
        // SAFETY: the caller's set holds `nfds` bits, rounded up to words, and the word one of
        // them.
        unsafe { *self.0.add(at) }
    }
    /// The bits at and after `end` in its word.
    fn behind(self, end: usize) -> u64 {
        if end.is_multiple_of(64) {
            return 0;
        }
        self.word(end / 64) & (u64::MAX << (end % 64))
    }
    fn set(self, fd: usize, on: bool) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: as in `word`.
        let word = unsafe { &mut *self.0.add(fd / 64) };
        if on {
            *word |= 1 << (fd % 64);
        } else {
            *word &= !(1 << (fd % 64));
        }
    }
}

/// Places of the kernel's table of descriptors where this is the highest number that was ever open:
/// 64, then 128, 256 … (fs/file.c, alloc_fdtable).
fn places(highest: c_int) -> c_int {
    match highest {
        ..64 => 64,
        _ => 2 << highest.ilog2().min(29),
    }
}

/// How many numbers the kernel would look at if the program ran alone. It stops at the end of its
/// descriptor table, whatever `nfds` says. The library's own descriptors have high numbers and
/// make that table longer, perhaps longer than the program's sets.
///
/// # Safety
/// The sets are a C caller's.
pub unsafe fn numbers(nfds: c_int, sets: [*mut fd_set; 3]) -> c_int {
    let known = places(fd_table::highest_seen());
    // An empty table of ours means that the library has opened no descriptor.
    if nfds <= known || fd_table::end() == 0 || seccomp::waits_by_itself() {
        return nfds;
    }
    let longest = places(fd_table::end().max(fd_table::highest_seen()));
    let end = nfds.min(longest.max(libc::FD_SETSIZE as c_int));
    let beyond = known as usize / 64..(end as usize).div_ceil(64);
    // A set whose memory ends before has no bits there.
    let sets = sets.map(|set| Bits(set.cast())).map(|set| {
        if set.can_read(&beyond) {
            set
        } else {
            Bits::NONE
        }
    });
    let all = |at| sets.iter().fold(0, |all, set| all | set.word(at));
    if beyond.clone().all(|at| all(at) == 0) {
        return nfds.min(known);
    }
    // Waits until all of the library's descriptors are entered: one that is not yet would be taken
    // for the program's.
    let _all_entered = Placing::begin();
    let mut there: Vec<pollfd> = beyond
        .map(|at| (at, all(at)))
        .flat_map(|(at, all)| {
            (0..64).filter_map(move |bit| (all >> bit & 1 != 0).then_some(at * 64 + bit))
        })
        .map(|fd| fd as c_int)
        .filter(|&fd| fd < end && !fd_table::is_internal(fd))
        .map(|fd| pollfd {
            fd,
            events: 0,
            revents: 0,
        })
        .collect();
    for some in there.chunks_mut(256) {
        let _ = sys::poll(some, Some(sys::timespec(0)));
    }
    // Asked again, since that wait is bounded and opening a device may take longer.
    let open = there
        .iter()
        .filter(|p| p.revents & libc::POLLNVAL == 0 && !fd_table::is_internal(p.fd));
    let highest = open.map(|p| p.fd).max().unwrap_or(0);
    nfds.min(known.max(places(highest)))
}

/// `select` and `pselect`, of no more than [`numbers`]. `sets`: read, write, exceptional. `left`,
/// if not null, gets the time left (`pselect` passes null).
///
/// # Safety
/// The arguments are those of a C caller.
pub unsafe fn select(
    nfds: c_int,
    sets: [*mut fd_set; 3],
    timeout: *const timespec,
    mask: *const sigset_t,
    left: *mut timespec,
    wait_state: &mut WaitState,
) -> Verdict {
    // SAFETY: the caller's.
    let Ok(timeout) = (unsafe { caller::timeout_at(timeout) }) else {
        return Verdict::Pass(Pass::NOBODY);
    };
    let sets = sets.map(|set| Bits(set.cast()));
    // SAFETY: the note of the wait that is over owned the list, and nothing else refers to it.
    if let Some(list) = unsafe { wait_state.list.as_mut() } {
        let fds = core::mem::take(&mut list.own);
        // SAFETY: the mask and `left` are the C caller's.
        return unsafe { turns(nfds, sets, fds, mask, left, wait_state) };
    }
    if nfds <= 0 || seccomp::waits_by_itself() {
        return Verdict::Pass(Pass::NOBODY);
    }
    let words = 0..(nfds as usize).div_ceil(64);
    let is_read_only = sets.iter().any(|set| set.cannot_write(&words));
    if caller::is_mask_missing(mask)
        || is_read_only && sets.iter().any(|set| set.cannot_read(&words))
    {
        // The kernel refuses these.
        return Verdict::Pass(Pass::NOBODY);
    }
    let Asked {
        fds,
        tracked,
        is_closed,
    } = asked(nfds, sets);
    if !tracked || !wait_state.ends_after(timeout.as_ref()) {
        return Verdict::Pass(Pass::NOBODY);
    }
    if is_closed {
        return Verdict::Failed(Error::Kernel(libc::EBADF));
    }
    if is_read_only {
        // As in the kernel: at once, however long the call would wait.
        return Verdict::Failed(Error::BadAddress);
    }
    // SAFETY: the mask and `left` are the C caller's.
    unsafe { turns(nfds, sets, fds, mask, left, wait_state) }
}

/// What the three sets ask for.
#[derive(Default)]
struct Asked {
    fds: Vec<pollfd>,
    /// One of the descriptors is tracked.
    tracked: bool,
    /// One of them is the library's own, which is closed as far as the program knows.
    is_closed: bool,
}

fn asked(nfds: c_int, [r, w, x]: [Bits; 3]) -> Asked {
    let mut asked = Asked::default();
    for fd in 0..nfds as usize {
        let mut events = 0;
        for (set, event) in [(r, libc::POLLIN), (w, libc::POLLOUT), (x, libc::POLLPRI)] {
            if set.has(fd) {
                events |= event;
            }
        }
        if events == 0 {
            continue;
        }
        let fd = fd as c_int;
        if let Some(entry) = fd_table::lookup(fd) {
            if entry == Entry::INTERNAL {
                asked.is_closed = true;
                continue;
            }
            asked.tracked = true;
            if let Some(set) = entry.get::<Set>() {
                poll::watched(set);
            }
        }
        asked.fds.push(pollfd {
            fd,
            events,
            revents: 0,
        });
    }
    asked
}

/// For each of the three sets: the event to ask `poll` for, and the events that put a number into
/// the answer.
const SHOWN: [(i16, i16); 3] = [
    (libc::POLLIN, READ),
    (libc::POLLOUT, WRITE),
    (libc::POLLPRI, EXCEPT),
];

/// Does an entry show an event of a set that it is in, or that its descriptor is closed?
fn is_shown(p: &pollfd) -> bool {
    let own = |(asked, bits): (i16, i16)| p.events & asked != 0 && p.revents & bits != 0;
    p.revents & libc::POLLNVAL != 0 || SHOWN.into_iter().any(own)
}

/// Polls until there is an answer, or the hook is to sleep. An entry with a negated number is
/// ignored, as `poll` does: it has shown an event that is of none of its sets.
unsafe fn turns(
    nfds: c_int,
    [r, w, x]: [Bits; 3],
    mut fds: Vec<pollfd>,
    mask: *const sigset_t,
    left: *mut timespec,
    wait_state: &mut WaitState,
) -> Verdict {
    let answer = loop {
        // SAFETY: the mask is the caller's.
        let Some(answer) = (unsafe { poll::run(&mut fds, mask, wait_state) }) else {
            // Moving the vector does not move its entries, to which `wait_state` points.
            // SAFETY: the hook has not begun to wait.
            if let Some(list) = unsafe { wait_state.list.as_mut() } {
                list.own = fds;
            }
            return Verdict::Block;
        };
        if !answer.is_ok_and(|n| n != 0) || fds.iter().any(is_shown) {
            break answer;
        }
        // An event that no set asks for, such as a reset where only POLLPRI is asked for, does not
        // end a select, and would show at each look.
        for p in fds.iter_mut().filter(|p| p.revents != 0) {
            (p.fd, p.revents) = (!p.fd, 0);
        }
    };
    let remaining = wait_state.time_left().unwrap_or(0);
    // SAFETY: null, or the hook's own.
    if let Some(left) = unsafe { left.as_mut() } {
        *left = sys::timespec(remaining);
    }
    match answer {
        Err(e) => return failed(e),
        Ok(_) if fds.iter().any(|p| p.revents & libc::POLLNVAL != 0) => {
            return Verdict::Failed(Error::Kernel(libc::EBADF));
        }
        Ok(_) => {}
    }
    // The kernel writes whole words: bits after the last number asked about become 0.
    let end = nfds as usize;
    for set in [r, w, x] {
        let behind = set.behind(end);
        for bit in (end % 64..64).filter(|bit| behind & (1 << bit) != 0) {
            set.set(end - end % 64 + bit, false);
        }
    }
    let mut count = 0;
    for p in &fds {
        let fd = p.fd.max(!p.fd) as usize;
        for (set, (asked, bits)) in [r, w, x].into_iter().zip(SHOWN) {
            if p.events & asked != 0 {
                let on = p.revents & bits != 0;
                set.set(fd, on);
                count += isize::from(on);
            }
        }
    }
    Verdict::Done(count)
}
