//! A wait of poll, select or epoll that the hook makes.
//!
//! A thread may be cancelled while it waits, and then its stack is unwound. So the wait is made by
//! the hook, where nothing is held and nothing has a destructor; the engine is left with
//! `Verdict::Block` and entered again. What was announced for the wait is noted in `thread`, which
//! takes it back when nobody does.

use super::epoll::KEPT;
use super::kernel_events::Moment;
use super::poll::List;
use libc::{c_int, pollfd, sigset_t};
use sluice_fabric::sys::{self, Ran};
use sluice_runtime::thread;

/// What the hook waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum On {
    /// Events of the kernel's set, into the program's array.
    Set {
        fd: c_int,
        events: *mut libc::epoll_event,
        max: c_int,
    },
    /// One of a list.
    List { fds: *mut pollfd, count: usize },
}

/// Which wait it was, for the engine when it is entered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// None so far, or the last one has been dealt with.
    Fresh,
    /// On a set, or on a list without streams.
    Kernel,
    /// On a list with streams.
    Streams,
}

/// When a call must return at the latest.
pub(super) struct Deadline {
    pub at: Option<u64>,
    /// The caller does not want to wait at all.
    pub asked_none: bool,
}

impl Deadline {
    /// Nanoseconds left; `None` for ever.
    pub fn left(&self) -> Option<u64> {
        if self.asked_none {
            Some(0)
        } else {
            self.at.map(|at| at.saturating_sub(sys::now_ns()))
        }
    }
}

/// One call of poll, select or epoll_wait: its wait, and what the engine keeps over it.
#[derive(Debug)]
pub struct WaitState {
    /// Handlers that had run when the call began. Any that runs since ends the wait (signal(7)).
    pub(super) ran: Ran,
    pub(super) stage: Stage,
    pub(super) on: On,
    /// At most so many ns; `None`: for ever.
    pub(super) left: Option<u64>,
    pub(super) mask: *const sigset_t,
    /// Of epoll: when the look at the kernel began.
    pub(super) began: Moment,
    /// Of epoll: what the front of the program's array was before the call.
    pub(super) kept: Option<[libc::epoll_event; KEPT]>,
    /// What the kernel said.
    pub(super) answer: Result<usize, sys::Errno>,
    /// When the call ends at the latest.
    pub(super) deadline: Option<u64>,
    /// Turns without an event.
    pub(super) idle: u32,
    /// The wait was shorter than the caller's for a meeting's sake.
    pub(super) sliced: bool,
    /// Of poll and select: what was announced. Owned by the note in `nap` while the hook waits.
    pub(super) list: *mut List,
}

impl WaitState {
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
            stage: Stage::Fresh,
            on: On::List {
                fds: core::ptr::null_mut(),
                count: 0,
            },
            left: None,
            mask: core::ptr::null(),
            began: Moment::unknown(),
            kept: None,
            answer: Ok(0),
            deadline: None,
            idle: 0,
            sliced: false,
            list: core::ptr::null_mut(),
        }
    }

    /// What stands for this call among this thread's sleeps.
    pub(super) fn frame(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// Waits. The thread may be cancelled inside.
    ///
    /// `extern "C"` and never inlined: the frames that a cancellation unwinds hold no landing pad.
    #[inline(never)]
    #[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
    pub extern "C" fn sleep(&mut self) {
        let mut time = sys::timespec(self.left.unwrap_or(0));
        let bounded = self.left.is_some();
        let at = if bounded {
            &raw mut time
        } else {
            core::ptr::null_mut()
        };
        let (ends, mask) = (self.ran.any(), self.mask);
        let before = thread::let_cancel();
        self.answer = match &mut self.on {
            On::Set { fd, events, max } => {
                let time = bounded.then_some(&time);
                // SAFETY: the caller's array and mask.
                unsafe { sys::epoll_wait_unless(ends, *fd, *events, *max, time, mask) }
            }
            On::List { fds, count } => {
                // SAFETY: the caller's array or that of the list, a time of ours, the caller's
                // mask.
                unsafe { sys::ppoll_unless(ends, *fds, *count, at, mask) }
            }
        };
        thread::stop_cancel(before);
    }
}

impl Default for WaitState {
    fn default() -> Self {
        Self::new()
    }
}
