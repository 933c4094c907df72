//! Where the engine is called: panics stop here, `errno` is kept, verdicts become return values.

use crate::api::{self, Error, IoWait, Pass, Ran, Verdict, WaitState};
use crate::errno;
use libc::{c_int, ssize_t};
use sluice_stats::Reason;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// In place of a descriptor where a call concerns none, or several.
pub const NO_FD: c_int = -1;

/// Runs engine code for `fd`; `None` after a panic, which has been counted and has cost that one
/// stream. Keeps `errno`.
#[inline(always)]
pub fn contained<R, F: FnOnce() -> R>(fd: c_int, call: F) -> Option<R> {
    let mut asked = Asked {
        call: ManuallyDrop::new(call),
        answer: MaybeUninit::uninit(),
    };
    // SAFETY: written where `run` says so.
    run(fd, &mut asked).then(|| unsafe { asked.answer.assume_init_read() })
}

/// What to ask the engine, and room for its answer: stays where it is, since both are as wide as a
/// call's arguments.
struct Asked<R, F> {
    call: ManuallyDrop<F>,
    answer: MaybeUninit<R>,
}

/// The engine's part of [`contained`]; true: there is an answer.
///
/// `extern "C"` and never inlined, so that the compiler knows that a call of it cannot unwind, and
/// hooks need no landing pad for it: a cancelled thread is unwound through the frames of hooks, and
/// a landing pad there would end the process.
#[inline(never)]
#[allow(
    improper_ctypes_definitions,
    reason = "the ABI stands for `nounwind`; no C code calls it"
)]
extern "C" fn run<R, F: FnOnce() -> R>(fd: c_int, asked: &mut Asked<R, F>) -> bool {
    let errno = errno::kept();
    let cancel = api::hold_cancel();
    let result = catch_unwind(AssertUnwindSafe(|| {
        api::asked(fd);
        // SAFETY: taken once, here.
        let call = unsafe { ManuallyDrop::take(&mut asked.call) };
        asked.answer.write(call());
    }));
    let answered = match result {
        Ok(()) => true,
        Err(payload) => {
            // Dropping the payload could panic again.
            std::mem::forget(payload);
            api::panicked(fd);
            false
        }
    };
    api::release_cancel(cancel);
    errno.restore();
    answered
}

/// Tells the engine something that has no answer. The hook goes on after a panic: nothing was
/// moved.
pub fn tell(fd: c_int, notice: impl FnOnce()) {
    let _ = contained(fd, notice);
}

/// Asks the engine to serve a call on a tracked descriptor, and calls the real function if the
/// verdict is to pass.
#[inline(always)]
pub fn serve(
    fd: c_int,
    engine: impl FnOnce() -> Verdict,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    conclude(fd, contained(fd, engine), real, |_, _| ())
}

/// As [`serve`] for a call that moves bytes: `fed` shows the engine which, if it wants to see them.
#[inline(always)]
pub fn serve_feeding(
    fd: c_int,
    engine: impl FnOnce() -> Verdict,
    real: impl FnOnce() -> ssize_t,
    fed: impl FnOnce(&Pass, ssize_t),
) -> ssize_t {
    conclude(fd, contained(fd, engine), real, fed)
}

/// What a call comes to whose verdict is final; `None` after a panic.
#[inline(always)]
fn conclude(
    fd: c_int,
    verdict: Option<Verdict>,
    real: impl FnOnce() -> ssize_t,
    fed: impl FnOnce(&Pass, ssize_t),
) -> ssize_t {
    match verdict {
        Some(Verdict::Done(ret)) => ret,
        Some(Verdict::Pass(pass)) => {
            let ret = real();
            if !pass.is_nobodys() {
                if pass.wants_bytes() {
                    tell(fd, || fed(&pass, ret));
                }
                tell(fd, || api::finish(pass, ret));
            }
            ret
        }
        // Apart, so that the two above are told by a compare and not by a table of jumps, which a
        // cold call mispredicts.
        other => failed(other),
    }
}

#[cold]
#[inline(never)]
fn failed(verdict: Option<Verdict>) -> ssize_t {
    match verdict {
        Some(Verdict::Failed(error)) => errno::fail(error),
        // The sleeps are over by now, or the engine was lent none to ask for; or it panicked.
        _ => errno::fail(Error::Kernel(libc::EIO)),
    }
}

/// As [`serve_feeding`] for a call that may wait: its sleeps are made here, where a cancelled
/// thread unwinds nothing of the engine's.
#[inline(always)]
pub fn serve_waiting(
    fd: c_int,
    mut engine: impl FnMut(&mut IoWait) -> Verdict,
    real: impl FnOnce() -> ssize_t,
    fed: impl FnOnce(&Pass, ssize_t),
) -> ssize_t {
    let mut io_wait = IoWait::new();
    let verdict = waiting(fd, &mut io_wait, &mut engine);
    conclude(fd, verdict, real, fed)
}

/// What the engine asks the boundary to wait for.
pub trait Wait {
    /// The wait, with nothing held.
    fn sleep(&mut self);
    /// Is the call over with the wait?
    fn woken(&mut self) -> Option<Verdict>;
}

impl Wait for IoWait {
    #[inline(always)]
    fn sleep(&mut self) {
        IoWait::sleep(self);
    }
    #[inline(always)]
    fn woken(&mut self) -> Option<Verdict> {
        api::woken(self)
    }
}

impl Wait for WaitState {
    #[inline(always)]
    fn sleep(&mut self) {
        WaitState::sleep(self);
    }
    /// The call itself sees how it woke up.
    #[inline(always)]
    fn woken(&mut self) -> Option<Verdict> {
        None
    }
}

/// Asks the engine until the call is over, sleeping in between.
#[inline(always)]
pub fn waiting<W: Wait>(
    fd: c_int,
    wait: &mut W,
    engine: &mut impl FnMut(&mut W) -> Verdict,
) -> Option<Verdict> {
    let mut verdict = contained(fd, || engine(wait));
    while let Some(Verdict::Block) = verdict {
        let before = errno::current();
        wait.sleep();
        errno::restore(before);
        verdict = contained(fd, || match wait.woken() {
            Some(end) => end,
            None => engine(wait),
        });
    }
    verdict
}

/// As [`serve`] for poll, select and epoll_wait, whose waits are made here, too. The call began
/// when so many handlers had run.
#[inline(always)]
pub fn serve_watching(
    ran: Ran,
    fd: c_int,
    mut engine: impl FnMut(&mut WaitState) -> Verdict,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let mut wait_state = WaitState::since(ran);
    let verdict = waiting(fd, &mut wait_state, &mut engine);
    conclude(fd, verdict, real, |_, _| ())
}

/// Calls the real function of epoll on numbers that are not tracked. If it says that this is no
/// set, or that the other is not in it, it may have seen a descriptor of ours that stood there for
/// a moment: it is asked again, and then says EBADF.
#[inline(always)]
pub fn of_set(mut real: impl FnMut() -> c_int) -> c_int {
    let mut ret = real();
    let mut before = None;
    while ret == -1 && matches!(errno::current(), libc::EINVAL | libc::ENOENT) {
        let now = contained(NO_FD, api::passing_numbers).filter(|&n| n != 0);
        if now == before {
            break;
        }
        before = now;
        ret = real();
    }
    ret
}

/// `fd` was made by a call that hooks see: an entry of a descriptor that had this number, and was
/// closed where no hook saw it, goes.
///
/// Descriptors made inside the C library (fopen, opendir, getaddrinfo, ...) are not seen here.
/// Their numbers hold no entry all the same: a number becomes free by `close` and its kin, which
/// pass our hooks, or inside the C library for a stream made by `fdopen`, which has put that
/// descriptor on TCP for good (`raw_use`), where an entry changes nothing.
#[inline]
pub fn created(fd: c_int) -> c_int {
    api::fd_seen(fd);
    if fd >= 0 && (api::lookup(fd).is_some() || api::is_internal(fd)) {
        tell(fd, || api::fd_created(fd));
    }
    fd
}

/// A call that may take long, and makes a descriptor of another kind than sockets.
#[inline(always)]
pub fn opened(call: impl FnOnce() -> c_int) -> c_int {
    api::clear_lowest();
    created(call())
}

/// `fd` is used in a way that hooks cannot follow.
#[inline]
pub fn raw_use(fd: c_int, reason: Reason) {
    if api::lookup(fd).is_some() {
        tell(fd, || api::raw_use(fd, reason));
    }
}

/// As [`raw_use`], by a call that reads alone.
#[inline]
pub fn raw_read(fd: c_int, reason: Reason) {
    if api::lookup(fd).is_some() {
        tell(fd, || api::raw_read(fd, reason));
    }
}

/// [`serve_waiting`] with the engine's function and the real one written as calls. Only for use in
/// a hook.
macro_rules! serve_waiting {
    ($fd:expr, $engine:ident($($a:expr),*), $real:expr) => {
        $crate::boundary::serve_waiting(
            $fd,
            // SAFETY: as in `serve`.
            |io_wait| unsafe { $crate::api::$engine($($a),*, io_wait) },
            || $real as libc::ssize_t,
            // SAFETY: as above, after the real call.
            |pass, ret| unsafe { $crate::api::observe_passed::$engine(pass, ret, $($a),*) },
        )
    };
}

/// [`serve_watching`] with the engine's function and the real one written as calls. Only for use in
/// a hook.
macro_rules! serve_watching {
    ($fd:expr, $engine:ident($($a:expr),*), $real:expr) => {
        serve_watching!(since $crate::api::Ran::now(), $fd, $engine($($a),*), $real)
    };
    (since $ran:expr, $fd:expr, $engine:ident($($a:expr),*), $real:expr) => {
        $crate::boundary::serve_watching(
            $ran,
            $fd,
            // SAFETY: as in `serve`.
            |wait_state| unsafe { $crate::api::$engine($($a),*, wait_state) },
            || $real as libc::ssize_t,
        )
    };
}

/// [`serve`] with the engine's function and the real one written as calls. Only for use in a hook.
macro_rules! serve {
    ($fd:expr, $engine:ident($($a:expr),*), $real:expr) => {
        $crate::boundary::serve(
            $fd,
            // SAFETY: the engine asks for the arguments of a C caller, and gets them: they are the
            // hook's own, or headers built on its stack from them that outlive the call.
            || unsafe { $crate::api::$engine($($a),*) },
            || $real as libc::ssize_t,
        )
    };
}

/// [`serve_feeding`] with the engine's function and the real one written as calls. Only for use in
/// a hook.
macro_rules! serve_feeding {
    ($fd:expr, $engine:ident($($a:expr),*), $real:expr) => {
        $crate::boundary::serve_feeding(
            $fd,
            // SAFETY: as in `serve`.
            || unsafe { $crate::api::$engine($($a),*) },
            || $real as libc::ssize_t,
            // SAFETY: as above, after the real call.
            |pass, ret| unsafe { $crate::api::observe_passed::$engine(pass, ret, $($a),*) },
        )
    };
}
