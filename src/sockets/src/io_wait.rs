//! Waits of calls that move bytes, and what any wait has announced, so that it is taken back where
//! a cancellation or a jump ends it.

use crate::socket::{Known, Socket};
use core::cell::Cell;
use sluice_fabric::lock::on_signal_stack;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::{self, Ends, Ran};
use sluice_runtime::thread::{self, ends, gone_on, let_cancel, stop_cancel};
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    // Constant and without destructors: reading them needs no registration and no allocation.
    static ASLEEP: [Cell<Asleep>; DEEP] = const { [const { Cell::new(AWAKE) }; DEEP] };
    /// This thread's end is watched for the sake of `ASLEEP`.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
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
    Set(&'static dyn Sleepers),
    /// A wait of poll or select; made by a `Box`, and freed by the thread that takes the note out.
    List(*mut dyn Announcement),
}

/// A structure on which several threads sleep: an epoll set.
pub trait Sleepers {
    /// One of them is awake.
    fn leave(&self);
    /// What woke one that nobody comes back to may have been meant for all.
    fn pass_on(&'static self);
}

/// What a wait has announced at many streams.
pub trait Announcement {
    /// The wait is over.
    fn take_back(&mut self);
}

const AWAKE: Asleep = Asleep {
    frame: 0,
    what: Announced::Nothing,
};

/// This thread, in the frame of `frame`, is about to sleep on `slot` of `link` and has entered
/// itself in `waiters`; the link is pinned. False: more sleeps on top of each other than are kept.
pub(crate) fn falls_asleep(
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
pub fn falls_asleep_in(frame: usize, set: &'static dyn Sleepers) -> bool {
    watch_exit_once();
    note(frame, Announced::Set(set))
}

/// The same for a wait of poll or select. `list` was made by a `Box`. While the note stands it is
/// the note's; after [`wakes_up`] its maker's again.
pub fn falls_asleep_over(frame: usize, list: *mut dyn Announcement) -> bool {
    watch_exit_once();
    note(frame, Announced::List(list))
}

/// This thread ends: nobody comes back to its sleeps.
pub fn thread_ends() {
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
}

/// In the child of a fork: what was announced is announced by the parent.
pub fn after_fork() {
    ASLEEP.with(|all| all.iter().for_each(|cell| cell.set(AWAKE)));
}

#[inline]
fn watch_exit_once() {
    if !WATCHED.replace(true) {
        thread::watch_exit();
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

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Something may have changed: look.
    News,
    /// A signal handler that does not restart calls.
    Interrupted,
    /// The socket's timeout.
    TimedOut,
    /// The edge sleeps: leave the engine with [`crate::verdict::Verdict::Block`].
    Parked,
}

/// A blocking call that waits: what it has done so far, and the sleep that the edge makes for it.
///
/// A thread may be cancelled while it sleeps, and then its stack is unwound. So the sleep is made
/// by the hook, where nothing is held and nothing has a destructor; the engine is left and entered
/// again.
#[derive(Debug)]
pub struct IoWait {
    /// Handlers that had run when the call began.
    pub ran: Ran,
    /// Bytes moved so far.
    pub done: usize,
    /// When the socket's timeout runs out; 0: no wait so far, or no timeout.
    pub deadline: u64,
    /// Sleep while this is 1; null: wait until TCP has `events` for `fd`.
    pub word: *const u32,
    /// The socket, for a wait of TCP's.
    pub fd: i32,
    /// Of `poll`.
    pub events: i16,
    /// The sleep stands for one in a call of the kernel's, and is counted as such on the half that
    /// waits.
    pub announced: bool,
    /// When the sleep ends at the latest; 0: never.
    pub until: u64,
    /// The sleep is to end for less than the socket's SO_RCVLOWAT, which the kernel does not have
    /// meanwhile.
    pub low: bool,
    /// The socket of a call that has waited, noted before its first wait.
    pub known: Option<Known>,
    /// Takes back what it has lent, where nobody returns to it.
    pub abandoned: Option<fn(Known, &mut IoWait)>,
    /// It is the writing half that waits.
    pub writer: bool,
    /// What its peer's word was.
    pub seen: u64,
    /// A recv that has made an ADVERT, which ends with it.
    pub lent: bool,
    /// A recv that asks for no byte: the kernel waits once and does not look what came of it.
    pub empty: bool,
    /// A recv that has lent its buffer to another host: signals wait, and what the program's mask
    /// is.
    pub mask: Option<u64>,
    /// `errno` of the sleep.
    pub errno: i32,
}

impl IoWait {
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
            abandoned: None,
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
    pub fn is_fresh(&self) -> bool {
        self.known.is_none()
    }

    /// Under a lock of `sock`, or after no wait: the call is about to wait.
    pub fn note(&mut self, sock: &'static Socket) {
        if self.known.is_none() {
            self.known = Some(Known::of(sock));
        }
    }

    /// Was the socket closed while the call waited? Under one of its locks a no holds until that is
    /// given back.
    #[inline(always)]
    pub fn is_lost(&self) -> bool {
        self.known.is_some_and(|known| !known.is_open())
    }

    /// Which handlers end the call where it would wait.
    pub fn ends(&self) -> Ends {
        ends(self.ran, self.done, self.deadline != 0)
    }

    /// A wait has ended, and no handler has ended the call.
    pub fn goes_on(&mut self) {
        self.ran = gone_on(self.ran, self.done, self.deadline != 0);
    }

    /// What stands for this call among this thread's sleeps.
    pub fn frame(&self) -> usize {
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

/// Nobody comes back to a sleep whose buffer is lent.
extern "C" fn left(io_wait: *mut libc::c_void) {
    // SAFETY: pushed by the frame that holds it, which is still there.
    let io_wait = unsafe { &mut *io_wait.cast::<IoWait>() };
    // The mask is the handler's, or nobody's any more.
    io_wait.mask = None;
    if let (Some(known), Some(abandoned)) = (io_wait.known, io_wait.abandoned) {
        abandoned(known, io_wait);
    }
}

impl IoWait {
    /// As [`sleep`](Self::sleep), of a recv whose buffer is lent: it takes signals here alone, and
    /// is told when it is left.
    #[inline(never)]
    #[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
    extern "C" fn sleep_lent(&mut self) {
        let Some(mask) = self.mask.take() else { return };
        let io_wait = core::ptr::from_mut(self);
        // SAFETY: else nothing is lent; the frame outlives its sleep, which is not lent a second
        // time, since the mask was taken.
        unsafe {
            thread::unless_left(left, io_wait.cast(), || {
                // Handlers that this lets run end the sleep.
                sys::set_signal_mask(mask);
                (*io_wait).sleep();
                (*io_wait).mask = thread::block_signals();
            });
        }
    }
}

impl Default for IoWait {
    fn default() -> Self {
        Self::new()
    }
}
