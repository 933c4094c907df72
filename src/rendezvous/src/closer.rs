//! Closing, and receiving, a descriptor that another process has sent: either may block for ever,
//! so it is done where nobody waits for it.
//!
//! A file may be on a file system whose server never answers (FUSE), a TCP socket may linger, a
//! memory file takes long to be freed; and to close a Unix socket is to close all descriptors that
//! are unread in it. A thread that is stuck in such a close cannot be ended by any signal, and then
//! the program cannot exit, call `exec` or change its user.
//!
//! From a process of another user this process accepts one kind of descriptor: a memory file of the
//! arena's length. A *porter* receives it: a child process that shares this process's memory but
//! has its own descriptor table. It checks the file and passes it on. A porter also holds the last
//! reference to a socket that is closed with descriptors unread. At worst only the porter hangs. A
//! peer of the same user could stop the program by a signal anyway, so its unwanted descriptors are
//! closed in a thread.

use super::message::{self, Next};
use super::{identity, watch};
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_fabric::layout::ARENA_LEN;
use sluice_fabric::lock::{Guarded, OverFork};
use sluice_fabric::sys::{self, Fd};
use sluice_runtime::{control_thread, own_fds};

// --- threads ---

/// Closing threads at once. Other descriptors wait for one.
const THREADS: u32 = 16;
static BUSY: AtomicU32 = AtomicU32::new(0);
/// Descriptors that wait to be closed.
static WAITING: Guarded<Vec<Fd>> = Guarded::new(Vec::new());

/// The number of closing threads.
#[cfg(test)]
pub(super) fn busy() -> u32 {
    BUSY.load(Ordering::Acquire)
}

extern "C" fn close_waiting(_: *mut libc::c_void) -> *mut libc::c_void {
    sys::name_thread(c"sluice-close");
    let next = || WAITING.lock().and_then(|mut waiting| waiting.pop());
    while let Some(fd) = next() {
        drop(fd);
    }
    BUSY.fetch_sub(1, Ordering::AcqRel);
    core::ptr::null_mut()
}

/// Closes descriptors that a peer of this user has sent, in another thread.
pub(super) fn dispose(fds: Vec<Fd>) {
    if fds.is_empty() {
        return;
    }
    if let Some(mut waiting) = WAITING.lock() {
        waiting.extend(fds);
    }
    close_in_thread();
}

/// Starts one more closing thread, if there may be one.
fn close_in_thread() {
    let room = |n: u32| (n < THREADS).then_some(n + 1);
    let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
    if BUSY.fetch_update(set, fetch, room).is_ok()
        && control_thread::spawn(close_waiting, 0).is_err()
    {
        BUSY.fetch_sub(1, Ordering::AcqRel);
    }
}

// --- porters ---

/// Porters at once, stuck ones included, and those for one other user.
const PORTERS: usize = 16;
const PORTERS_OF_USER: usize = 4;
/// Length of a porter's stack.
const STACK: usize = 64 << 10;

/// What a porter does.
#[derive(Clone, Copy)]
enum Errand {
    /// Receives one record, and passes it on if its descriptor may be an arena.
    Receive,
    /// Keeps the socket open until this process has closed it.
    Hold,
}

/// The number of porters.
#[cfg(test)]
pub(super) fn porters() -> usize {
    reap();
    OUT.lock().map_or(0, |out| out.len())
}

struct Task {
    errand: Errand,
    socket: i32,
    /// The porter's end of the socket pair to this process.
    answer: i32,
}

struct Porter {
    pid: i32,
    /// The user whose descriptors it handles; `None`: not known.
    user: Option<u32>,
    /// Address of its stack.
    stack: usize,
}

static OUT: Guarded<Vec<Porter>> = Guarded::new(Vec::new());
/// Porters that run, and sockets that wait for one, to be read without a lock.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Starts a porter for `socket`. Returns this process's end of the socket pair with it.
fn send_out(errand: Errand, socket: i32, user: Option<u32>) -> Option<Fd> {
    let mut out = OUT.lock()?;
    reap_of(&mut out);
    let of_user = out.iter().filter(|porter| porter.user == user).count();
    if out.len() >= PORTERS || of_user >= PORTERS_OF_USER {
        return None;
    }
    let [ours, theirs] = sys::socket_pair().ok()?;
    let ours = own_fds::lift(ours)?;
    let stack = sys::map_zeroes(STACK, false).ok()?;
    let task = stack.cast::<Task>();
    let answer = theirs.raw();
    // SAFETY: the lowest bytes of a fresh mapping, which is larger and aligned to a page. The stack
    // grows down to them from the other end.
    unsafe {
        task.write(Task {
            errand,
            socket,
            answer,
        });
    }
    // The porter shares this thread's memory, so no handler of the program may run in it.
    let before = sys::set_signal_mask(u64::MAX);
    // SAFETY: `run` needs no more than this stack, and only makes system calls of the library's
    // own. `reap_of` unmaps the stack when the porter has ended.
    let pid = unsafe {
        let top = stack.add(STACK).cast();
        libc::clone(run, top, libc::CLONE_VM, task.cast())
    };
    sys::set_signal_mask(before);
    if pid <= 0 {
        // SAFETY: mapped above, and no porter was made that uses it.
        unsafe { sys::unmap(stack, STACK) };
        return None;
    }
    let stack = stack.addr();
    out.push(Porter { pid, user, stack });
    COUNT.fetch_add(1, Ordering::Relaxed);
    Some(ours)
}

/// The porter's main function. It shares this process's memory and the thread-local storage of the
/// thread that made it, and touches neither.
extern "C" fn run(task: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `send_out` has written it before this process was made, and nobody changes it.
    let &Task {
        errand,
        socket,
        answer,
    } = unsafe { &*task.cast::<Task>() };
    let (low, high) = (socket.min(answer), socket.max(answer));
    // The porter keeps none of the program's descriptors: a port would stay in use.
    sys::close_range(0, low - 1);
    sys::close_range(low + 1, high - 1);
    sys::close_range(high + 1, i32::MAX);
    match errand {
        Errand::Receive => message::forward(socket, answer, is_arena),
        Errand::Hold => {
            let mut byte = [0];
            // Returns at end of file: the parent closes its end after it has closed the socket.
            let _ = sys::poll_one(answer, libc::POLLIN, None);
            let _ = sys::read(answer, &mut byte);
        }
    }
    0
}

/// True if it may be an arena. Makes no call on its file that could block.
fn is_arena(fd: i32) -> bool {
    sys::is_memory(fd) && sys::fstat(fd).is_ok_and(|st| st.st_size as u64 == ARENA_LEN)
}

/// Has a porter receive the record unread at `socket`, and send it to the returned one.
pub(super) fn receive(socket: i32, user: Option<u32>) -> Option<Fd> {
    send_out(Errand::Receive, socket, user)
}

/// Unmaps the stacks of porters that have ended, and starts porters and threads for what waits.
pub(super) fn reap() {
    // These came while all threads were busy, or about to end.
    if WAITING.lock().is_some_and(|waiting| !waiting.is_empty()) {
        close_in_thread();
    }
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(mut out) = OUT.lock() {
        reap_of(&mut out);
    }
    loop {
        let next = LEFT.lock().and_then(|mut left| left.pop());
        let Some(fd) = next else { return };
        if let Err(fd) = hand_over(fd) {
            if let Some(mut left) = LEFT.lock() {
                left.push(fd);
            }
            return;
        }
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

fn reap_of(out: &mut Vec<Porter>) {
    let before = out.len();
    out.retain(|porter| {
        let is_through = sys::reap(porter.pid);
        if is_through {
            let stack = core::ptr::with_exposed_provenance_mut(porter.stack);
            // SAFETY: the stack of a porter that has ended, and that `out` no longer lists.
            unsafe { sys::unmap(stack, STACK) };
        }
        !is_through
    });
    COUNT.fetch_sub((before - out.len()) as u32, Ordering::Relaxed);
}

// --- sockets ---

/// A Unix socket to an untrusted process. Closing it does not wait for descriptors that are unread
/// in it.
#[derive(Debug)]
pub(super) struct Way {
    fd: Option<Fd>,
    /// Descriptors may arrive at it.
    is_open: bool,
}

impl Way {
    /// Takes a socket that is [prepared](identity::prepare).
    pub fn new(fd: Fd) -> Self {
        Self {
            fd: Some(fd),
            is_open: !identity::refuses_descriptors(),
        }
    }

    /// The descriptor's number.
    pub fn raw(&self) -> i32 {
        self.fd.as_ref().map_or(-1, Fd::raw)
    }

    /// Lets the peer send descriptors from now on.
    pub fn open(&mut self) {
        self.is_open = true;
        let _ = identity::let_descriptors_in(self.raw(), true);
    }

    /// True if a record may have brought descriptors.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Gives the socket to another owner.
    pub fn release(mut self) -> i32 {
        self.fd.take().map_or(-1, Fd::release)
    }

    /// Closes it in a child of a fork: records that are unread stay with the parent's copy.
    pub(crate) fn close_copy(mut self) {
        drop(self.fd.take());
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        if self.is_open {
            close(fd);
        }
    }
}

/// Closes a socket at which descriptors may have arrived.
pub(super) fn close(fd: Fd) {
    // No more records come in, and no more connections.
    let _ = sys::shutdown(fd.raw(), libc::SHUT_RD);
    // If the socket listens: closes the connections that were not accepted.
    while let Ok(visitor) = sys::accept(fd.raw()) {
        let _ = sys::shutdown(visitor.raw(), libc::SHUT_RD);
        let_go(visitor);
    }
    let_go(fd);
}

/// Sockets that wait for a porter.
static LEFT: Guarded<Vec<Fd>> = Guarded::new(Vec::new());

/// Closes a socket after SHUT_RD. If descriptors are unread in it, a porter closes it last.
pub(super) fn let_go(fd: Fd) {
    // Reads what honest peers leave unread.
    while message::next(fd.raw()) == Next::Plain {
        let _ = message::receive(fd.raw());
    }
    if !has_unread(fd.raw()) {
        return;
    }
    // While the porter has it open, a set of this process would still report it.
    watch::leave(fd.raw());
    if let Err(fd) = hand_over(fd)
        && let Some(mut left) = LEFT.lock()
    {
        left.push(fd);
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Has a porter close the socket last. Returns it if there can be no porter.
fn hand_over(fd: Fd) -> Result<(), Fd> {
    match send_out(Errand::Hold, fd.raw(), None) {
        Some(porter) => {
            own_fds::forget(fd.raw());
            drop(fd);
            own_fds::forget(porter.raw());
            Ok(())
        }
        None => Err(fd),
    }
}

/// True if a record is unread at a socket.
pub(super) fn has_unread(fd: i32) -> bool {
    matches!(message::next(fd), Next::Plain | Next::Brings)
}

/// Held over a fork, in this order.
pub(super) const HELD: [&dyn OverFork; 3] = [&WAITING, &OUT, &LEFT];

/// In the child of a fork: there are no such threads, and the porters are the parent's. Their
/// stacks are unused here.
pub(super) fn after_fork() {
    BUSY.store(0, Ordering::Relaxed);
    if let Some(mut waiting) = WAITING.lock() {
        // Copies of the parent's. Closing one may block for ever, so they stay open.
        for fd in waiting.drain(..) {
            own_fds::enter(fd.release());
        }
    }
    COUNT.store(0, Ordering::Relaxed);
    if let Some(mut left) = LEFT.lock() {
        // Copies of the parent's.
        left.clear();
    }
    if let Some(mut out) = OUT.lock() {
        for Porter { stack, .. } in out.drain(..) {
            let stack = core::ptr::with_exposed_provenance_mut(stack);
            // SAFETY: this process's copy of a stack; only the parent's porter runs on it, there.
            unsafe { sys::unmap(stack, STACK) };
        }
    }
}

const _: () = assert!(size_of::<Task>() < STACK / 16);
