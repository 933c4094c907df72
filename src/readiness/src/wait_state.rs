//! A call of poll, select or epoll_wait between its sleeps.
//!
//! A thread may be cancelled while it sleeps, and then its stack is unwound. So the hook makes the
//! sleep, where no lock is held and nothing has a destructor. The engine returns `Verdict::Block`,
//! and is called again after the sleep. What was announced for the sleep is noted in
//! `sluice_sockets::io_wait`, so that it is taken back even if the call never returns.

use super::epoll::KEPT;
use super::kernel_events::Moment;
use super::poll::List;
use libc::{c_int, pollfd, sigset_t, timespec};
use sluice_fabric::sys::{self, Ran};
use sluice_runtime::thread;
use sluice_sockets::verdict::{Error, Verdict};

/// The system call in which the hook sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) enum On {
    /// `epoll_wait` on the kernel's set, into the program's array.
    Set {
        fd: c_int,
        events: *mut libc::epoll_event,
        max: c_int,
    },
    /// `ppoll` on a list.
    List { fds: *mut pollfd, count: usize },
}

/// Which sleep it was, for the engine when it is called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// None so far, or its outcome has been used.
    Fresh,
    /// On a set, or on a list without streams.
    Kernel,
    /// On a list with streams.
    Streams,
}

/// True if the kernel refuses such a timeout.
#[inline(always)]
pub(super) fn is_refused(timeout: Option<&timespec>) -> bool {
    timeout.is_some_and(|t| t.tv_sec < 0 || !(0..1_000_000_000).contains(&t.tv_nsec))
}

/// True if the call must not wait.
#[inline(always)]
pub(super) fn is_zero(timeout: Option<&timespec>) -> bool {
    timeout.is_some_and(|t| t.tv_sec == 0 && t.tv_nsec == 0)
}

/// When a timeout that begins at `now` ends, in ns.
pub(super) fn end_of(timeout: &timespec, now: u64) -> u64 {
    now.saturating_add((timeout.tv_sec as u64).saturating_mul(1_000_000_000))
        .saturating_add(timeout.tv_nsec as u64)
}

/// The verdict on a call that the kernel refuses.
pub(super) fn failed(e: sys::Errno) -> Verdict {
    Verdict::Failed(if e == libc::EINTR {
        Error::Interrupted
    } else {
        Error::Kernel(e)
    })
}

/// One call of poll, select or epoll_wait: how it sleeps, and what the engine keeps over a sleep.
#[derive(Debug)]
pub struct WaitState {
    /// Handlers that had run when the call began. Any that runs since ends the wait (signal(7)).
    pub(super) ran: Ran,
    pub(super) stage: Stage,
    pub(super) on: On,
    /// The longest sleep in ns; `None`: for ever.
    pub(super) left: Option<u64>,
    pub(super) mask: *const sigset_t,
    /// Of epoll: when the look at the kernel began.
    pub(super) began: Moment,
    /// Of epoll: what the front of the program's array was before the call, see [`KEPT`].
    pub(super) kept: Option<[libc::epoll_event; KEPT]>,
    /// What the kernel's call returned.
    pub(super) answer: Result<usize, sys::Errno>,
    /// When the call ends at the latest; 0: it must not wait.
    pub(super) deadline: Option<u64>,
    /// Rounds without an event.
    pub(super) idle: u32,
    /// The sleep was cut short since a meeting needs this thread.
    pub(super) sliced: bool,
    /// Of poll and select: what was announced. Owned by the note in `io_wait` while the hook waits.
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

    /// Notes when the call ends, unless the kernel refuses such a timeout: then false.
    pub(super) fn ends_after(&mut self, timeout: Option<&timespec>) -> bool {
        self.deadline = match timeout {
            Some(_) if is_zero(timeout) => Some(0),
            timeout => timeout.map(|t| end_of(t, sys::now_ns())),
        };
        !is_refused(timeout)
    }

    /// True unless the program's timeout is 0.
    pub(super) fn may_wait(&self) -> bool {
        self.deadline != Some(0)
    }

    /// Nanoseconds left; `None`: for ever.
    pub(super) fn time_left(&self) -> Option<u64> {
        match self.deadline {
            Some(at @ 1..) => Some(at.saturating_sub(sys::now_ns())),
            never_or_none => never_or_none,
        }
    }

    /// Identifies this call among the noted sleeps of its thread.
    pub(super) fn frame(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// Sleeps. The thread may be cancelled meanwhile.
    ///
    /// `extern "C"` and never inlined: the frames that a cancellation unwinds hold no landing pad.
    #[inline(never)]
    #[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
    pub extern "C" fn sleep(&mut self) {
        let before = thread::let_cancel();
        self.call();
        thread::stop_cancel(before);
    }

    /// Makes the system call of a sleep.
    #[inline(always)]
    pub(super) fn call(&mut self) {
        let mut time = sys::timespec(self.left.unwrap_or(0));
        let bounded = self.left.is_some();
        let at = if bounded {
            &raw mut time
        } else {
            core::ptr::null_mut()
        };
        let (ends, mask) = (self.ran.any(), self.mask);
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
    }
}

impl Default for WaitState {
    fn default() -> Self {
        Self::new()
    }
}
