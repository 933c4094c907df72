//! Raw system calls. The library's own input and output never takes the library's own hooks, and
//! never touches `errno`; so nothing here goes through a C symbol.

use core::mem::{MaybeUninit, size_of};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use libc::c_int;
pub use syscalls::Sysno;
use syscalls::raw;

/// What the kernel said, as a positive errno number.
pub type Errno = c_int;

/// The kernel's answer as a result.
#[inline]
fn result(ret: usize) -> Result<usize, Errno> {
    // Linux answers -4095..=-1 for errors (syscall(2)).
    if ret > usize::MAX - 4095 {
        Err((ret as isize).unsigned_abs() as Errno)
    } else {
        Ok(ret)
    }
}

/// Any system call, arguments as the kernel takes them.
///
/// # Safety
/// As the call: pointers must be valid for what the kernel does with them.
#[inline]
pub unsafe fn call(nr: Sysno, a: [usize; 6]) -> Result<usize, Errno> {
    let [a0, a1, a2, a3, a4, a5] = a;
    // SAFETY: the caller vouches for the arguments.
    result(unsafe { raw::syscall6(nr, a0, a1, a2, a3, a4, a5) })
}

/// Calls with arguments that carry no pointers, or pointers that the wrapper owns.
macro_rules! sys {
    ($nr:ident $(, $a:expr)* $(,)?) => {
        // SAFETY: every wrapper in this module passes only numbers and pointers to memory that it
        // borrows for the time of the call.
        unsafe { call(Sysno::$nr, args!($($a),*)) }
    };
    // The same, unless handlers end it before it is made.
    ($nr:ident $(, $a:expr)*; unless $ends:expr) => {
        // SAFETY: as above.
        unsafe { handlers::call(Sysno::$nr, args!($($a),*), $ends) }
    };
}

macro_rules! args {
    ($($a:expr),*) => {{
        let mut args = [0usize; 6];
        let given = [$($a as usize),*];
        for (to, from) in args.iter_mut().zip(given) { *to = from; }
        args
    }};
}

mod clock;
mod file;
pub mod handlers;
mod option;
mod path;
mod process;
mod signal;
mod wait;

pub use clock::{now_ns, rough_ns, seconds, thread_cpu_ns, timespec};
pub use file::{
    create, file_system, fstat, identity, is_memory, is_pipe, is_tmpfs, number_in, open_append,
    read_link_at, socket_inode, stat_at,
};
pub use handlers::{Ends, Ran};
pub use option::{getsockopt, has_filter, set_linger, setsockopt, tell_of_room};
pub use path::ShortPath;
pub use process::{is_process, read_process, reap};
pub use signal::{pending_signals, set_signal_mask, signal_action, take_signal};
pub use wait::{
    epoll_wait, epoll_wait_unless, futex_wait, futex_wake, poll, poll_one, poll_one_unless, ppoll,
    ppoll_unless,
};

/// A descriptor of our own; closed on drop, by a raw call.
#[derive(Debug)]
pub struct Fd(c_int);

impl Fd {
    /// Takes the number over.
    ///
    /// The caller gives the descriptor up: nobody else closes it.
    #[must_use]
    pub const fn own(fd: c_int) -> Self {
        Self(fd)
    }
    /// The number.
    #[must_use]
    pub const fn raw(&self) -> c_int {
        self.0
    }
    /// Gives the number away without closing it.
    #[must_use]
    pub fn release(self) -> c_int {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if !IS_ANY_GIVEN.load(Ordering::Relaxed) || !take_given(self.0) {
            let _ = close(self.0);
        }
    }
}

/// Numbers that were ours and have come to be another file's: their former owner does not close
/// them.
static GIVEN: [AtomicI32; 16] = [const { AtomicI32::new(-1) }; 16];
static IS_ANY_GIVEN: AtomicBool = AtomicBool::new(false);

/// The number of a descriptor of ours is about to be another file's, by `dup2`: its [`Fd`] does not
/// close it. (Of more than sixteen the rest do.)
pub fn give_away(fd: c_int) {
    IS_ANY_GIVEN.store(true, Ordering::SeqCst);
    let _ = GIVEN.iter().any(|cell| swap_if(cell, -1, fd));
}

fn take_given(fd: c_int) -> bool {
    GIVEN.iter().any(|cell| swap_if(cell, fd, -1))
}

fn swap_if(cell: &AtomicI32, from: c_int, to: c_int) -> bool {
    cell.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok()
}

/// `close(2)`.
///
/// # Errors
/// The kernel's.
pub fn close(fd: c_int) -> Result<(), Errno> {
    sys!(close, fd).map(drop)
}

/// `getpid(2)`, asked of the kernel each time (a `vfork` child shares our memory).
#[must_use]
pub fn getpid() -> c_int {
    sys!(getpid).unwrap_or(0) as c_int
}

/// `gettid(2)`.
#[must_use]
pub fn gettid() -> c_int {
    sys!(gettid).unwrap_or(0) as c_int
}

/// `sched_yield(2)`.
pub fn sched_yield() {
    let _ = sys!(sched_yield);
}

/// `memfd_create(2)` with close-on-exec and sealing allowed.
///
/// # Errors
/// The kernel's: no such call, no descriptors, forbidden.
pub fn memfd(name: &core::ffi::CStr) -> Result<Fd, Errno> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    sys!(memfd_create, name.as_ptr(), flags).map(|fd| Fd(fd as c_int))
}

/// `ftruncate(2)`.
///
/// # Errors
/// The kernel's.
pub fn ftruncate(fd: c_int, len: u64) -> Result<(), Errno> {
    sys!(ftruncate, fd, len).map(drop)
}

/// `fcntl(2)` with a number as its argument.
///
/// # Errors
/// The kernel's.
#[inline]
pub fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> Result<c_int, Errno> {
    sys!(fcntl, fd, cmd, arg).map(|r| r as c_int)
}

/// Maps `len` bytes of `fd`, shared, readable and writable.
///
/// # Errors
/// The kernel's.
pub fn map_shared(fd: c_int, len: usize) -> Result<*mut u8, Errno> {
    map_part(fd, len, 0)
}

/// As [`map_shared`], from `offset` on, a multiple of the page size.
///
/// # Errors
/// The kernel's.
pub fn map_part(fd: c_int, len: usize, offset: usize) -> Result<*mut u8, Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    sys!(mmap, 0, len, prot, flags, fd, offset).map(|p| p as *mut u8)
}

/// Maps `len` bytes of `fd` from `offset` on, a multiple of the page size: shared, to be read.
///
/// # Errors
/// The kernel's.
pub fn map_file(fd: c_int, len: usize, offset: u64) -> Result<*mut u8, Errno> {
    sys!(mmap, 0, len, libc::PROT_READ, libc::MAP_SHARED, fd, offset).map(|p| p as *mut u8)
}

/// Maps `len` bytes of zeroes, shared with children of this process or private to it.
///
/// # Errors
/// The kernel's.
pub fn map_zeroes(len: usize, shared: bool) -> Result<*mut u8, Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let kind = if shared {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    sys!(mmap, 0, len, prot, flags, -1isize, 0).map(|p| p as *mut u8)
}

/// Shared zeroes in the place of `len` bytes at `at`, as [`map_zeroes`].
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The range is a mapping of the caller's, and zeroes are valid for all that refers to it.
pub unsafe fn map_zeroes_over(at: *mut u8, len: usize) -> Result<(), Errno> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    sys!(mmap, at, len, prot, flags, -1isize, 0).map(drop)
}

/// `munmap(2)`.
///
/// # Safety
/// Nothing refers to the range any more.
pub unsafe fn unmap(at: *mut u8, len: usize) {
    let _ = sys!(munmap, at, len);
}

/// `madvise(2)`.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The range is mapped and `advice` loses no byte that anyone still needs.
pub unsafe fn madvise(at: *mut u8, len: usize, advice: c_int) -> Result<(), Errno> {
    sys!(madvise, at, len, advice).map(drop)
}

/// `mincore(2)`: a byte for each page, of which the lowest bit says whether it is in memory.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The range is mapped, and `pages` has a byte for each page of it.
pub unsafe fn mincore(at: *mut u8, len: usize, pages: &mut [u8]) -> Result<(), Errno> {
    sys!(mincore, at, len, pages.as_mut_ptr()).map(drop)
}

/// `eventfd2(2)`: close-on-exec; `flags` adds EFD_NONBLOCK.
///
/// # Errors
/// The kernel's.
pub fn eventfd(flags: c_int) -> Result<Fd, Errno> {
    sys!(eventfd2, 0, libc::EFD_CLOEXEC | flags).map(|fd| Fd(fd as c_int))
}

/// A doorbell: a pipe whose far end goes to the sleeper. The near end, kept by the ringer, is a
/// description of its own that can also read, so that nobody else can make a ring block or raise
/// SIGPIPE. Returns (near, far).
///
/// # Errors
/// The kernel's; ENOENT where /proc is not mounted.
pub fn doorbell() -> Result<(Fd, Fd), Errno> {
    let mut ends: [c_int; 2] = [-1; 2];
    sys!(pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK)?;
    let [far, near] = ends.map(Fd);
    let path = ShortPath::of_fd(near.raw());
    let near = open(path.as_c_str(), libc::O_RDWR | libc::O_NONBLOCK)?;
    Ok((near, far))
}

/// Adds 1 to an eventfd.
///
/// # Errors
/// The kernel's; EAGAIN when a thief has filled the counter.
#[inline]
pub fn ring(fd: c_int) -> Result<(), Errno> {
    let one = 1u64;
    sys!(write, fd, &raw const one, 8).map(drop)
}

/// `write(2)` of bytes that are ours.
///
/// # Errors
/// The kernel's.
pub fn write(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    sys!(write, fd, bytes.as_ptr(), bytes.len())
}

/// `read(2)` into memory that is ours.
///
/// # Errors
/// The kernel's.
pub fn read(fd: c_int, bytes: &mut [u8]) -> Result<usize, Errno> {
    sys!(read, fd, bytes.as_mut_ptr(), bytes.len())
}

/// `openat(2)` of an absolute path.
///
/// # Errors
/// The kernel's.
pub fn open(path: &core::ffi::CStr, flags: c_int) -> Result<Fd, Errno> {
    sys!(
        openat,
        libc::AT_FDCWD,
        path.as_ptr(),
        flags | libc::O_CLOEXEC,
        0
    )
    .map(|fd| Fd(fd as c_int))
}

/// `openat(2)` of a path below a directory.
///
/// # Errors
/// The kernel's.
pub fn open_at(dir: c_int, path: &core::ffi::CStr, flags: c_int) -> Result<Fd, Errno> {
    sys!(openat, dir, path.as_ptr(), flags | libc::O_CLOEXEC, 0).map(|fd| Fd(fd as c_int))
}

/// `socket(2)`, close-on-exec and non-blocking.
///
/// # Errors
/// The kernel's.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<Fd, Errno> {
    sys!(
        socket,
        domain,
        kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
        protocol
    )
    .map(|fd| Fd(fd as c_int))
}

/// `socketpair(2)` of two SEQPACKET ends, close-on-exec and non-blocking.
///
/// # Errors
/// The kernel's.
pub fn socket_pair() -> Result<[Fd; 2], Errno> {
    let mut ends: [c_int; 2] = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    sys!(socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr())?;
    Ok(ends.map(Fd))
}

/// Closes all descriptors from `first` to `last` of this process, one by one where the kernel
/// cannot at once (`close_range(2)`).
pub fn close_range(first: c_int, last: c_int) {
    if first > last || sys!(close_range, first, last, 0).is_ok() {
        return;
    }
    let limit = descriptor_limit().min(1 << 20) as c_int;
    for fd in first.max(0)..=last.min(limit) {
        let _ = close(fd);
    }
}

/// `bind(2)`.
///
/// # Errors
/// The kernel's.
pub fn bind<T>(fd: c_int, addr: &T, len: usize) -> Result<(), Errno> {
    sys!(bind, fd, core::ptr::from_ref(addr), len.min(size_of::<T>())).map(drop)
}

/// `connect(2)`.
///
/// # Errors
/// The kernel's.
pub fn connect<T>(fd: c_int, addr: &T, len: usize) -> Result<(), Errno> {
    sys!(
        connect,
        fd,
        core::ptr::from_ref(addr),
        len.min(size_of::<T>())
    )
    .map(drop)
}

/// `shutdown(2)`.
///
/// # Errors
/// The kernel's.
pub fn shutdown(fd: c_int, how: c_int) -> Result<(), Errno> {
    sys!(shutdown, fd, how).map(drop)
}

/// `listen(2)`.
///
/// # Errors
/// The kernel's.
pub fn listen(fd: c_int, backlog: c_int) -> Result<(), Errno> {
    sys!(listen, fd, backlog).map(drop)
}

/// `accept4(2)`, close-on-exec and non-blocking, without the peer's name.
///
/// # Errors
/// The kernel's.
pub fn accept(fd: c_int) -> Result<Fd, Errno> {
    sys!(accept4, fd, 0, 0, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).map(|fd| Fd(fd as c_int))
}

/// `getsockname(2)` or `getpeername(2)`: the address and its length.
///
/// # Errors
/// The kernel's.
pub fn socket_name(fd: c_int, peer: bool) -> Result<(libc::sockaddr_storage, usize), Errno> {
    let mut addr = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    if peer {
        sys!(getpeername, fd, addr.as_mut_ptr(), &raw mut len)?;
    } else {
        sys!(getsockname, fd, addr.as_mut_ptr(), &raw mut len)?;
    }
    // SAFETY: zeroed is a valid `sockaddr_storage`, and the kernel has filled it.
    Ok((unsafe { addr.assume_init() }, len as usize))
}

/// `ioctl(2)` that fills an integer.
///
/// # Errors
/// The kernel's.
pub fn ioctl_int(fd: c_int, request: u64) -> Result<c_int, Errno> {
    let mut value: c_int = 0;
    sys!(ioctl, fd, request, &raw mut value)?;
    Ok(value)
}

/// `sendto(2)` without an address, of bytes that are ours or that the caller vouches for.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `at` is readable for `len` bytes, or the kernel says EFAULT.
pub unsafe fn send(fd: c_int, at: *const u8, len: usize, flags: c_int) -> Result<usize, Errno> {
    sys!(sendto, fd, at, len, flags, 0, 0)
}

/// `recvfrom(2)` without an address.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `at` is writable for `len` bytes, or the kernel says EFAULT.
pub unsafe fn recv(fd: c_int, at: *mut u8, len: usize, flags: c_int) -> Result<usize, Errno> {
    sys!(recvfrom, fd, at, len, flags, 0, 0)
}

/// `sendmsg(2)`.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `msg` is a valid header whose pointers are valid.
pub unsafe fn sendmsg(fd: c_int, msg: *const libc::msghdr, flags: c_int) -> Result<usize, Errno> {
    sys!(sendmsg, fd, msg, flags)
}

/// `recvmsg(2)`.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `msg` is a valid header whose pointers are valid.
pub unsafe fn recvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) -> Result<usize, Errno> {
    sys!(recvmsg, fd, msg, flags)
}

/// `epoll_create1(2)`, close-on-exec.
///
/// # Errors
/// The kernel's.
pub fn epoll_create() -> Result<Fd, Errno> {
    sys!(epoll_create1, libc::EPOLL_CLOEXEC).map(|fd| Fd(fd as c_int))
}

/// `epoll_ctl(2)`.
///
/// # Errors
/// The kernel's.
pub fn epoll_ctl(set: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Result<(), Errno> {
    let mut event = libc::epoll_event { events, u64: data };
    sys!(epoll_ctl, set, op, fd, &raw mut event).map(drop)
}

/// `preadv(2)` into up to two pieces, or `readv(2)` when `offset` is `None`.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// The pieces are writable, or the kernel says EFAULT.
pub unsafe fn readv(
    fd: c_int,
    pieces: &[libc::iovec],
    offset: Option<i64>,
) -> Result<usize, Errno> {
    match offset {
        Some(at) => sys!(preadv, fd, pieces.as_ptr(), pieces.len(), at, 0),
        None => sys!(readv, fd, pieces.as_ptr(), pieces.len()),
    }
}

/// `pread(2)`.
///
/// # Errors
/// The kernel's.
pub fn pread(fd: c_int, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let piece = [libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    }];
    // SAFETY: the piece is `into`, which may be written.
    unsafe { readv(fd, &piece, Some(offset as i64)) }
}

/// Random bytes that a peer cannot guess (`getrandom(2)`).
///
/// # Errors
/// The kernel's.
pub fn random(bytes: &mut [u8]) -> Result<(), Errno> {
    let got = sys!(getrandom, bytes.as_mut_ptr(), bytes.len(), 0)?;
    if got == bytes.len() {
        Ok(())
    } else {
        Err(libc::EIO)
    }
}

/// `sendfile(2)`; `offset` null uses and moves the file's position.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `offset` is null or valid.
pub unsafe fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut i64,
    count: usize,
) -> Result<usize, Errno> {
    sys!(sendfile, to, from, offset, count)
}

/// `lseek(2)`: the file's position after it.
///
/// # Errors
/// The kernel's.
pub fn seek(fd: c_int, offset: i64, whence: c_int) -> Result<i64, Errno> {
    sys!(lseek, fd, offset, whence).map(|at| at as i64)
}

/// Can the word of 64 bits at this address be read? Asked by a call that reads it, and then refuses
/// what it was to do.
#[must_use]
pub fn is_readable(at: usize) -> bool {
    // No such `how`.
    sys!(rt_sigprocmask, usize::MAX, at, 0, 8) != Err(libc::EFAULT)
}

/// Can the word of 32 bits at this address, a multiple of four, be written? Tested by an atomic
/// futex operation that sets no bit. A thread that waits on this word may be woken once in vain.
#[must_use]
pub fn is_writable(at: usize) -> bool {
    /// Nobody waits for it.
    static OWN: AtomicI32 = AtomicI32::new(0);
    const FUTEX_WAKE_OP: c_int = 5;
    // Waiters are woken only if the word was 0x7ff.
    let or_nothing = 2 << 28 | 0x7ff;
    let operation = FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    sys!(futex, OWN.as_ptr(), operation, 0, 0, at, or_nothing) != Err(libc::EFAULT)
}

/// Names this thread for `ps` and `gdb`.
pub fn name_thread(name: &core::ffi::CStr) {
    let _ = sys!(prctl, libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0);
}

/// Gives this thread turns of `ns` on its processor, and so earlier ones (`sched_setattr(2)`; the
/// slice of an ordinary thread, since Linux 6.12). Its policy and its niceness stay. Not under a
/// seccomp filter: common ones kill for this call.
pub fn shorten_turns(ns: u64) {
    // SAFETY: zeroes are a valid value.
    let mut attributes: libc::sched_attr = unsafe { core::mem::zeroed() };
    let len = size_of::<libc::sched_attr>();
    let asked = sys!(sched_getattr, 0, &raw mut attributes, len, 0).is_ok();
    if asked && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = ns;
        let _ = sys!(sched_setattr, 0, &raw const attributes, 0);
    }
}

/// This thread, and what it executes, gets no more rights by that (PR_SET_NO_NEW_PRIVS).
pub fn forgo_privileges() {
    let _ = sys!(prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

/// May processes of this one's user look into its memory, as far as this one says
/// (PR_SET_DUMPABLE)?
#[must_use]
pub fn is_dumpable() -> bool {
    sys!(prctl, libc::PR_GET_DUMPABLE, 0, 0, 0, 0) == Ok(1)
}

/// `epoll_ctl(2)` with the caller's event.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `event` is valid, or the kernel says EFAULT.
pub unsafe fn epoll_ctl_raw(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> Result<(), Errno> {
    sys!(epoll_ctl, set, op, fd, event).map(drop)
}

/// Does the socket have an error to report, or is it reset? Asks without taking the error.
#[must_use]
pub fn has_error(fd: c_int) -> bool {
    poll_one(fd, 0, Some(timespec(0))).is_ok_and(|shown| shown & libc::POLLERR != 0)
}

/// How many bytes a file may have that this process makes longer (RLIMIT_FSIZE): beyond, the kernel
/// raises SIGXFSZ.
#[must_use]
pub fn file_limit() -> u64 {
    soft_limit(libc::RLIMIT_FSIZE).unwrap_or(u64::MAX)
}

/// Bytes of addresses that this process may have mapped (RLIMIT_AS).
#[must_use]
pub fn address_limit() -> u64 {
    soft_limit(libc::RLIMIT_AS).unwrap_or(u64::MAX)
}

/// Bytes of a page.
#[must_use]
pub fn page_size() -> usize {
    // SAFETY: no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Bytes of memory that this process may lock without a capability (RLIMIT_MEMLOCK).
#[must_use]
pub fn lockable() -> u64 {
    soft_limit(libc::RLIMIT_MEMLOCK).unwrap_or(0)
}

/// Bytes of memory that this host has.
#[must_use]
pub fn memory() -> u64 {
    // SAFETY: no pointers.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0) * page_size() as u64
}

/// Where the numbers of descriptors end that this process may get, which are also the most entries
/// that poll takes (RLIMIT_NOFILE).
#[must_use]
pub fn descriptor_limit() -> u64 {
    soft_limit(libc::RLIMIT_NOFILE).unwrap_or(1024)
}

fn soft_limit(which: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid pointer; getrlimit is not hooked.
    let answer = unsafe { libc::getrlimit(which, &raw mut limit) };
    (answer == 0).then_some(limit.rlim_cur)
}

/// What a function of another library has left in `errno`.
#[must_use]
pub fn last_errno() -> Errno {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets O_NONBLOCK.
///
/// # Errors
/// The kernel's.
pub fn set_nonblocking(fd: c_int) -> Result<(), Errno> {
    let flags = fcntl(fd, libc::F_GETFL, 0)?;
    fcntl(
        fd,
        libc::F_SETFL,
        flags as usize | libc::O_NONBLOCK as usize,
    )
    .map(drop)
}

/// An address as the kernel and other libraries take it.
#[must_use]
pub fn socket_address(addr: core::net::SocketAddr) -> (libc::sockaddr_storage, usize) {
    // SAFETY: zeroes are a valid value of it.
    let mut storage: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let at = &raw mut storage;
    let len = match addr {
        core::net::SocketAddr::V4(v4) => {
            // SAFETY: the storage is large and aligned enough for every address.
            let to = unsafe { &mut *at.cast::<libc::sockaddr_in>() };
            to.sin_family = libc::AF_INET as libc::sa_family_t;
            to.sin_port = v4.port().to_be();
            to.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            size_of::<libc::sockaddr_in>()
        }
        core::net::SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let to = unsafe { &mut *at.cast::<libc::sockaddr_in6>() };
            to.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            to.sin6_port = v6.port().to_be();
            to.sin6_addr.s6_addr = v6.ip().octets();
            to.sin6_flowinfo = v6.flowinfo();
            to.sin6_scope_id = v6.scope_id();
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len)
}
