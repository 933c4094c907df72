//! The sleeps of blocking calls that move bytes, and a note of what any sleep has announced, so
//! that it is taken back even if a cancellation or a `longjmp` ends the sleep.

use crate::socket::{Known, Socket};
use core::cell::Cell;
use sluice_fabric::lock::on_signal_stack;
use sluice_fabric::shm::Link;
use sluice_fabric::sys::{self, Ends, Ran};
use sluice_runtime::thread::{self, ends, gone_on, let_cancel, stop_cancel};
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    // Constant and without destructors, so that reading them neither registers nor allocates
    // anything.
    static ASLEEP: [Cell<Asleep>; DEEP] = const { [const { Cell::new(AWAKE) }; DEEP] };
    /// The end of this thread is watched, so that `ASLEEP` is taken back then.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Sleeps that one thread can be in at once: its own, and those of signal handlers on top of it.
const DEEP: usize = 4;

/// What a sleep has announced. The sleeper takes it back; if a cancellation or a jump out of a
/// handler ended the sleep, the thread's next sleep or its end does.
#[derive(Clone, Copy)]
struct Asleep {
    /// An address in the sleeper's frame; 0: no sleep.
    frame: usize,
    what: Announced,
}

/// What is to be taken back.
#[derive(Clone, Copy)]
enum Announced {
    Nothing,
    Stream {
        /// Address and generation of the link, which is pinned.
        link: (usize, u32),
        slot: u32,
        /// The stream's mask of waiters, in the link's arena.
        waiters: *const AtomicU64,
    },
    /// The thread is counted among the sleepers of an epoll set.
    Set(&'static dyn Sleepers),
    /// A wait of poll or select. The list comes from a `Box`; the thread that removes the note
    /// frees it.
    List(*mut dyn Announcement),
}

/// A structure on which several threads sleep: an epoll set.
pub trait Sleepers {
    /// One sleeper less.
    fn leave(&self);
    /// A sleeper was woken but never returns: wakes another one, since the news may concern all.
    fn pass_on(&'static self);
}

/// What a wait has announced on many streams.
pub trait Announcement {
    /// Takes the announcements back: the wait is over.
    fn take_back(&mut self);
}

const AWAKE: Asleep = Asleep {
    frame: 0,
    what: Announced::Nothing,
};

/// Notes that this thread is about to sleep on `slot` of `link`, and is entered in `waiters`. The
/// link is pinned; `frame` is an address in the sleeper's frame. False: too many nested sleeps.
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

/// Notes that this thread is about to sleep in `set`; see `falls_asleep`.
pub fn falls_asleep_in(frame: usize, set: &'static dyn Sleepers) -> bool {
    watch_exit_once();
    note(frame, Announced::Set(set))
}

/// Notes a sleep of poll or select; see `falls_asleep`. `list` comes from a `Box`. The note owns
/// it until [`wakes_up`] gives it back.
pub fn falls_asleep_over(frame: usize, list: *mut dyn Announcement) -> bool {
    watch_exit_once();
    note(frame, Announced::List(list))
}

/// The thread ends: takes back what its sleeps have announced.
pub fn thread_ends() {
    // Destructors of other keys may run later and sleep once more.
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

/// In the child of a fork: the parent's thread takes back what it has announced.
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

/// Takes back what sleeps in deeper frames than `frame` have announced: the thread has jumped out
/// of them. Call before announcing a new sleep.
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

/// The sleep of `frame` is over: takes back what it has announced.
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

/// The sleeper will not return to this sleep.
fn abandoned(old: Asleep) {
    take_back(old);
    match old.what {
        // What woke this thread may concern all that sleep in the set.
        Announced::Set(set) => set.pass_on(),
        // SAFETY: `falls_asleep_over` got the list from a `Box`, and the note that owned it is
        // removed.
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
        // SAFETY: the note, removed by the caller, owned the list; no other reference exists.
        Announced::List(list) => return unsafe { &mut *list }.take_back(),
        Announced::Nothing => return,
    };
    let (at, generation) = link;
    // SAFETY: the memory of links is type-stable (`link.rs`).
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
    /// Something may have changed: look again.
    News,
    /// A signal handler without SA_RESTART ran.
    Interrupted,
    /// The socket's timeout ran out.
    TimedOut,
    /// The hook must sleep: return [`crate::verdict::Verdict::Block`] from the engine.
    Parked,
}

/// A blocking call: what it has done so far, and the sleep that the hook makes for it.
///
/// A thread may be cancelled while it sleeps, and then its stack is unwound. So the engine returns,
/// the hook sleeps where no lock is held and nothing has a destructor, and the engine is called
/// again.
#[derive(Debug)]
pub struct IoWait {
    /// Count of handlers that had run when the call began.
    pub ran: Ran,
    /// Bytes moved so far.
    pub done: usize,
    /// When the socket's timeout runs out; 0: no timeout, or no wait yet.
    pub deadline: u64,
    /// Sleep while this futex word is 1; null: poll `fd` for `events`.
    pub word: *const u32,
    /// The socket's descriptor, for a wait for TCP.
    pub fd: i32,
    /// The events of that poll.
    pub events: i16,
    /// The sleep stands for one inside a call of the kernel, and is counted as such on its half.
    pub counts_as_call: bool,
    /// When the sleep ends at the latest; 0: never.
    pub until: u64,
    /// Less than the socket's SO_RCVLOWAT ends the sleep, so the kernel's is 1 meanwhile.
    pub low: bool,
    /// The socket, noted before the call's first wait.
    pub known: Option<Known>,
    /// Withdraws a lent buffer if the call never returns from its sleep.
    pub abandoned: Option<fn(Known, &mut IoWait)>,
    /// The writing half waits.
    pub writer: bool,
    /// The peer's cursor when the wait began.
    pub seen_head: u64,
    /// A `recv` has advertised its buffer; the ADVERT ends with the call.
    pub lent: bool,
    /// A `recv` of zero bytes: the kernel waits once, and does not look again.
    pub empty: bool,
    /// The program's signal mask, while a `recv` has lent its buffer to another host with signals
    /// blocked.
    pub mask: Option<u64>,
    /// The sleep's `errno`.
    pub errno: i32,
}

impl IoWait {
    /// A call that begins now.
    #[inline(always)]
    #[must_use]
    pub fn new() -> Self {
        Self::since(Ran::now())
    }

    /// A call that began when `ran` handlers had run, and has not waited yet.
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
            counts_as_call: false,
            until: 0,
            low: false,
            known: None,
            abandoned: None,
            writer: false,
            seen_head: 0,
            lent: false,
            empty: false,
            mask: None,
            errno: 0,
        }
    }

    /// Returns whether the call has not waited yet.
    #[inline(always)]
    pub fn is_fresh(&self) -> bool {
        self.known.is_none()
    }

    /// Notes the socket before a wait. Call with one of its locks held, or before the first wait.
    pub fn note(&mut self, sock: &'static Socket) {
        if self.known.is_none() {
            self.known = Some(Known::of(sock));
        }
    }

    /// Returns whether the socket was closed while the call waited. With one of its locks held, a
    /// false stays true until the lock is released.
    #[inline(always)]
    pub fn is_lost(&self) -> bool {
        self.known.is_some_and(|known| !known.is_open())
    }

    /// The handlers that end the call where it would wait.
    pub fn ends(&self) -> Ends {
        ends(self.ran, self.done, self.deadline != 0)
    }

    /// A wait has ended, and no handler has ended the call.
    pub fn goes_on(&mut self) {
        self.ran = gone_on(self.ran, self.done, self.deadline != 0);
    }

    /// The address by which this thread's sleeps know the call.
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

/// Called when the thread leaves a sleep with a lent buffer for good.
extern "C" fn left(io_wait: *mut libc::c_void) {
    // SAFETY: `sleep_lent` registered its own `IoWait`, and its frame still exists.
    let io_wait = unsafe { &mut *io_wait.cast::<IoWait>() };
    // The mask is the handler's now, or of no use to an ending thread.
    io_wait.mask = None;
    if let (Some(known), Some(abandoned)) = (io_wait.known, io_wait.abandoned) {
        abandoned(known, io_wait);
    }
}

impl IoWait {
    /// Like [`sleep`](Self::sleep), for a `recv` whose buffer is lent: signals are unblocked only
    /// here, and `left` runs if the thread leaves the sleep for good.
    #[inline(never)]
    #[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
    extern "C" fn sleep_lent(&mut self) {
        let Some(mask) = self.mask.take() else { return };
        let io_wait = core::ptr::from_mut(self);
        // SAFETY: `io_wait` is this frame's argument and outlives the sleep. The inner `sleep` does
        // not come here again, since the mask was taken.
        unsafe {
            thread::unless_left(left, io_wait.cast(), || {
                // A handler that this lets run ends the sleep.
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
