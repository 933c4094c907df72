//! `syscall()`: system calls that pass no other hook.
//!
//! The exported symbol is a trampoline. It asks [`target`] where to go and jumps there with the
//! caller's registers and stack: straight into the real function for nearly everything, so that
//! calls which return twice, or on another stack, work as without us; and into [`served`] for calls
//! that use or make a descriptor that concerns us.

#![allow(
    non_upper_case_globals,
    reason = "the SYS_* constants of libc, in patterns"
)]

use super::trampoline::{real_syscall, real_syscall_for_child};
use super::{conn, epoll, fd, memory, msg, poll, process, signal, uring};
use crate::api::{self, Error, caller};
use crate::boundary::{NO_FD, created, raw_read, raw_use, tell};
use crate::errno;
use libc::*;
use sluice_stats::Reason;

/// Where `syscall(number, a1, a2, a3, ...)` goes.
pub extern "C" fn target(number: c_long, a1: usize, a2: usize) -> *const c_void {
    if concerns(number, a1, a2) {
        served as *const c_void
    } else if makes_child(number) {
        real_syscall_for_child()
    } else {
        real_syscall() as *const c_void
    }
}

/// Does [`served`] have anything to do? Called for every `syscall()`: a table and a look-up.
fn concerns(number: c_long, a1: usize, a2: usize) -> bool {
    match number {
        n if is_use(n) || is_epoll_wait(n) => api::lookup(a1 as c_int).is_some(),
        SYS_connect | SYS_setsockopt | SYS_getsockopt | SYS_ioctl => {
            api::lookup(a1 as c_int).is_some()
        }
        SYS_close => api::lookup(a1 as c_int).is_some() || api::is_internal(a1 as c_int),
        n if is_fork(n, a1, a2) => true,
        SYS_clone | SYS_clone3 => {
            spawning(number, a1);
            false
        }
        #[cfg(target_arch = "x86_64")]
        SYS_vfork => {
            spawning(number, a1);
            false
        }
        n => makes_descriptor(n) || is_other(n),
    }
}

/// May return a second time, in a child that is on the same stack or on another one.
fn makes_child(number: c_long) -> bool {
    match number {
        #[cfg(target_arch = "x86_64")]
        SYS_vfork => true,
        SYS_clone | SYS_clone3 => true,
        _ => false,
    }
}

/// Makes a child as `fork` does: with a copy of this process's memory, and going on where the call
/// was.
fn is_fork(number: c_long, a1: usize, a2: usize) -> bool {
    match number {
        #[cfg(target_arch = "x86_64")]
        SYS_fork => true,
        SYS_clone => a1 & CLONE_VM as usize == 0 && a2 == 0,
        SYS_clone3 if a1 != 0 && a2 >= 48 => {
            // A `struct clone_args` of `a2` bytes; its first word is the flags, its sixth the
            // stack.
            // SAFETY: any bytes are numbers, and the C caller vouches for them where they are not
            // known to be missing.
            let words = unsafe { caller::copy_on_trust(pointer::<[u64; 6]>(a1)) };
            words.is_some_and(|[flags, .., stack]| flags & CLONE_VM as u64 == 0 && stack == 0)
        }
        _ => false,
    }
}

/// Uses the stream of the descriptor in its first argument.
fn is_use(number: c_long) -> bool {
    matches!(
        number,
        SYS_read
            | SYS_readv
            | SYS_preadv2
            | SYS_recvfrom
            | SYS_recvmmsg
            | SYS_write
            | SYS_writev
            | SYS_pwritev2
            | SYS_sendto
            | SYS_sendmmsg
            | SYS_sendfile
            | SYS_tee
            | SYS_vmsplice
            | SYS_shutdown
    )
}

fn is_epoll_wait(number: c_long) -> bool {
    match number {
        SYS_epoll_pwait | SYS_epoll_pwait2 => true,
        #[cfg(target_arch = "x86_64")]
        SYS_epoll_wait => true,
        _ => false,
    }
}

/// Returns a new descriptor that is nothing to us but its number.
fn makes_descriptor(number: c_long) -> bool {
    match number {
        SYS_openat
        | SYS_openat2
        | SYS_eventfd2
        | SYS_timerfd_create
        | SYS_signalfd4
        | SYS_inotify_init1
        | SYS_fanotify_init
        | SYS_memfd_create
        | SYS_pidfd_open
        | SYS_pidfd_getfd
        | SYS_perf_event_open
        | SYS_userfaultfd
        | SYS_bpf
        | SYS_mq_open
        | SYS_open_by_handle_at
        | SYS_open_tree
        | SYS_fsopen
        | SYS_fsmount
        | SYS_fspick
        | SYS_landlock_create_ruleset => true,
        #[cfg(target_arch = "x86_64")]
        SYS_open | SYS_creat | SYS_eventfd | SYS_signalfd | SYS_inotify_init => true,
        _ => false,
    }
}

/// The other calls that [`served`] knows.
fn is_other(number: c_long) -> bool {
    match number {
        SYS_sendmsg
        | SYS_recvmsg
        | SYS_rt_sigaction
        | SYS_splice
        | SYS_ppoll
        | SYS_pselect6
        | SYS_epoll_ctl
        | SYS_epoll_create1
        | SYS_socket
        | SYS_socketpair
        | SYS_pipe2
        | SYS_accept
        | SYS_accept4
        | SYS_listen
        | SYS_dup
        | SYS_dup3
        | SYS_fcntl
        | SYS_close_range
        | SYS_io_uring_setup
        | SYS_io_uring_enter
        | SYS_io_uring_register
        | SYS_execve
        | SYS_execveat
        | SYS_exit_group
        | SYS_seccomp
        | SYS_landlock_restrict_self
        | SYS_munmap
        | SYS_mprotect
        | SYS_pkey_mprotect
        | SYS_mmap
        | SYS_mremap
        | SYS_shmdt
        | SYS_prctl
        | SYS_capset
        | SYS_unshare
        | SYS_setns => true,
        n if sets_ids(n) => true,
        #[cfg(target_arch = "x86_64")]
        SYS_poll | SYS_select | SYS_epoll_create | SYS_pipe | SYS_dup2 => true,
        _ => false,
    }
}

/// Changes ids of the calling thread, and of no other, unlike the C library's functions.
fn sets_ids(number: c_long) -> bool {
    matches!(
        number,
        SYS_setuid
            | SYS_setgid
            | SYS_setreuid
            | SYS_setregid
            | SYS_setresuid
            | SYS_setresgid
            | SYS_setfsuid
            | SYS_setfsgid
            | SYS_setgroups
    )
}

/// A child that shares this process's memory is about to be made.
fn spawning(number: c_long, flags: usize) {
    let shares = match number {
        // Its flags are in memory; rare enough to take each for one.
        SYS_clone3 => true,
        SYS_clone => flags & CLONE_VM as usize != 0 && flags & CLONE_THREAD as usize == 0,
        _ => true,
    };
    if shares {
        tell(NO_FD, api::before_spawn);
    }
}

/// A system call that the program makes.
#[derive(Clone, Copy)]
struct Call {
    number: c_long,
    a1: usize,
    a2: usize,
    a3: usize,
    a4: usize,
    a5: usize,
    a6: usize,
}

impl Call {
    /// The first argument, which in most calls is a descriptor.
    fn fd(&self) -> c_int {
        self.a1 as c_int
    }

    /// Makes the call.
    #[inline(always)]
    fn make(&self) -> c_long {
        let &Call {
            number,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
        } = self;
        // SAFETY: the program makes this very call, or one of the gaps of its close_range.
        unsafe { real_syscall()(number, a1, a2, a3, a4, a5, a6) }
    }
}

/// `syscall()` for the calls that [`concerns`] picks.
///
/// The functions for each family of calls are inlined: a thread that is cancelled inside the real
/// call must find no landing pad on its way out (see `hooks!`).
///
/// # Safety
/// The arguments are those of a C caller of `syscall`.
unsafe extern "C" fn served(
    number: c_long,
    a1: usize,
    a2: usize,
    a3: usize,
    a4: usize,
    a5: usize,
    a6: usize,
) -> c_long {
    let call = Call {
        number,
        a1,
        a2,
        a3,
        a4,
        a5,
        a6,
    };
    // SAFETY: `call` has the arguments of this function's C caller.
    if let Some(ret) = unsafe { transfer(&call) } {
        return ret;
    }
    // SAFETY: `call` has the arguments of this function's C caller.
    if let Some(ret) = unsafe { wait(&call) } {
        return ret;
    }
    // SAFETY: `call` has the arguments of this function's C caller.
    if let Some(ret) = unsafe { socket_call(&call) } {
        return ret;
    }
    // SAFETY: `call` has the arguments of this function's C caller.
    if let Some(ret) = unsafe { descriptor_call(&call) } {
        return ret;
    }
    // SAFETY: `call` has the arguments of this function's C caller.
    unsafe { process_call(&call) }
}

/// Calls that move bytes or messages; `None`: `call` is none of them.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(always)]
unsafe fn transfer(call: &Call) -> Option<c_long> {
    let fd = call.fd();
    let ret = match call.number {
        SYS_sendfile | SYS_splice | SYS_tee => {
            let (from, to) = match call.number {
                SYS_sendfile => (call.a2 as c_int, fd),
                SYS_splice => (fd, call.a3 as c_int),
                _ => (fd, call.a2 as c_int),
            };
            raw_read(from, Reason::RawSyscall);
            raw_use(to, Reason::RawSyscall);
            call.make()
        }
        n if is_use(n) => {
            raw_use(fd, Reason::RawSyscall);
            call.make()
        }
        SYS_sendmsg => {
            raw_use(fd, Reason::RawSyscall);
            // SAFETY: the C caller vouches for the header.
            unsafe { msg::takes(pointer(call.a2)) };
            call.make()
        }
        SYS_recvmsg => {
            raw_use(fd, Reason::RawSyscall);
            let ret = call.make();
            // SAFETY: the kernel has filled the header if the call succeeded.
            unsafe { msg::brought(ret as ssize_t, pointer(call.a2)) };
            ret
        }
        _ => return None,
    };
    Some(ret)
}

/// Calls that wait for descriptors, or say for which; `None`: `call` is none of them.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(always)]
unsafe fn wait(call: &Call) -> Option<c_long> {
    let &Call { a2, a3, a4, a5, .. } = call;
    let fd = call.fd();
    let events = |at: usize| pointer::<epoll_event>(at).cast_mut();
    let ret = match call.number {
        // SAFETY: the C caller vouches for the entries.
        SYS_ppoll => unsafe { wait_for_list(call) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the C caller vouches for the entries.
        SYS_poll => unsafe { wait_for_list(call) },
        // SAFETY: the C caller vouches for the sets.
        SYS_pselect6 => unsafe { wait_for_sets(call) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the C caller vouches for the sets.
        SYS_select => unsafe { wait_for_sets(call) },
        SYS_epoll_ctl => {
            // SAFETY: the C caller vouches for the event, as it would to epoll_ctl.
            let ret = unsafe { epoll::on_epoll_ctl(fd, a2 as c_int, a3 as c_int, events(a4)) };
            c_long::from(ret)
        }
        SYS_epoll_pwait => {
            let (max, timeout_ms) = (a3 as c_int, a4 as c_int);
            // SAFETY: the C caller vouches for the events; of the mask no more is read than the
            // kernel would read.
            let ret =
                unsafe { epoll::on_epoll_pwait(fd, events(a2), max, timeout_ms, pointer(a5)) };
            c_long::from(ret)
        }
        SYS_epoll_pwait2 => {
            let (max, timeout) = (a3 as c_int, pointer(a4));
            // SAFETY: the C caller vouches for the events and the timeout; of the mask no more is
            // read than the kernel would read.
            let ret = unsafe { epoll::on_epoll_pwait2(fd, events(a2), max, timeout, pointer(a5)) };
            c_long::from(ret)
        }
        #[cfg(target_arch = "x86_64")]
        SYS_epoll_wait => {
            let (max, timeout_ms) = (a3 as c_int, a4 as c_int);
            // SAFETY: the C caller vouches for the events.
            c_long::from(unsafe { epoll::on_epoll_wait(fd, events(a2), max, timeout_ms) })
        }
        SYS_epoll_create1 => c_long::from(epoll::set_made(call.make() as c_int)),
        #[cfg(target_arch = "x86_64")]
        SYS_epoll_create => c_long::from(epoll::set_made(call.make() as c_int)),
        _ => return None,
    };
    Some(ret)
}

/// `poll` and `ppoll`.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(always)]
unsafe fn wait_for_list(call: &Call) -> c_long {
    // SAFETY: the C caller vouches for `a2` entries.
    unsafe { poll::listed(pointer(call.a1), call.a2 as nfds_t) }.for_each(raw_wait);
    call.make()
}

/// `select` and `pselect6`.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(always)]
unsafe fn wait_for_sets(call: &Call) -> c_long {
    for set in [call.a2, call.a3, call.a4] {
        // SAFETY: the C caller vouches for the sets.
        unsafe { poll::set(call.fd(), pointer(set)) }.for_each(raw_wait);
    }
    call.make()
}

/// A connection's life and options; `None`: `call` is none of these calls.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(always)]
unsafe fn socket_call(call: &Call) -> Option<c_long> {
    let &Call { a2, a3, a4, a5, .. } = call;
    let fd = call.fd();
    let ret = match call.number {
        SYS_socket => c_long::from(conn::socket_made(
            call.make() as c_int,
            call.a1 as c_int,
            a2 as c_int,
            a3 as c_int,
        )),
        // SAFETY: the numbers are written where the call was told to, if it succeeds.
        SYS_socketpair => unsafe { pair(call.make(), a4) },
        SYS_accept | SYS_accept4 => c_long::from(conn::accepted(fd, call.make() as c_int)),
        SYS_listen => c_long::from(conn::listening(fd, call.make() as c_int)),
        SYS_connect => {
            // SAFETY: the C caller vouches for the address, as it would to connect.
            c_long::from(unsafe { conn::on_connect(fd, pointer(a2), a3 as socklen_t) })
        }
        SYS_setsockopt => {
            let (level, name) = (a2 as c_int, a3 as c_int);
            // SAFETY: the C caller vouches for the value, as it would to setsockopt.
            let ret = unsafe { conn::on_setsockopt(fd, level, name, pointer(a4), a5 as socklen_t) };
            c_long::from(ret)
        }
        SYS_getsockopt => {
            let (level, name) = (a2 as c_int, a3 as c_int);
            let value = pointer::<c_void>(a4).cast_mut();
            let len = pointer::<socklen_t>(a5).cast_mut();
            // SAFETY: the C caller vouches for value and length, as it would to getsockopt.
            c_long::from(unsafe { conn::on_getsockopt(fd, level, name, value, len) })
        }
        _ => return None,
    };
    Some(ret)
}

/// Descriptors that are made, copied, changed and closed; `None`: `call` is none of these calls.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(always)]
unsafe fn descriptor_call(call: &Call) -> Option<c_long> {
    let &Call { a2, a3, a4, .. } = call;
    let fd = call.fd();
    let make = || call.make() as c_int;
    let ret = match call.number {
        n if makes_descriptor(n) => c_long::from(created(make())),
        // SAFETY: the numbers are written where the call was told to, if it succeeds.
        SYS_pipe2 => unsafe { pair(call.make(), call.a1) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the numbers are written where the call was told to, if it succeeds.
        SYS_pipe => unsafe { pair(call.make(), call.a1) },
        // SAFETY: the C caller vouches for the argument, as it would to ioctl.
        SYS_ioctl => c_long::from(unsafe { fd::on_ioctl(fd, a2 as c_ulong, a3) }),
        SYS_close => {
            if fd::closing(fd) {
                call.make()
            } else {
                errno::fail(Error::Kernel(EBADF)) as c_long
            }
        }
        SYS_close_range => {
            let close = |first: c_uint, last: c_uint| {
                let (a1, a2) = (first as usize, last as usize);
                Call { a1, a2, ..*call }.make() as c_int
            };
            let (first, last) = (call.a1 as c_uint, a2 as c_uint);
            c_long::from(fd::closing_range(first, last, a3 as c_int, close))
        }
        SYS_dup => c_long::from(fd::duplicated(fd, make)),
        SYS_dup3 => c_long::from(fd::replaced(fd, a2 as c_int, a3 as c_int, make)),
        #[cfg(target_arch = "x86_64")]
        SYS_dup2 => c_long::from(fd::replaced(fd, a2 as c_int, 0, make)),
        SYS_fcntl => c_long::from(fd::controlled(fd, a2 as c_int, a3, make)),
        // SAFETY: the kernel has filled the settings if the call succeeded.
        SYS_io_uring_setup => c_long::from(unsafe { uring::made(make(), pointer(a2)) }),
        SYS_io_uring_enter => {
            uring::entering(fd, a2 as c_uint, a4 as c_uint);
            call.make()
        }
        SYS_io_uring_register => {
            // SAFETY: the C caller vouches for the argument.
            unsafe { uring::registering(a2 as c_uint, a3, a4 as c_uint) };
            call.make()
        }
        _ => return None,
    };
    Some(ret)
}

/// The calls that are left: they change the whole process, or the thread.
///
/// # Safety
/// The arguments are those of a C caller.
#[inline(always)]
unsafe fn process_call(call: &Call) -> c_long {
    let &Call {
        number, a1, a2, a3, ..
    } = call;
    match number {
        SYS_rt_sigaction => {
            let (new, old) = (pointer(a2), pointer::<usize>(a3).cast_mut());
            let kernel = |new| {
                let a2 = new as usize;
                Call { a2, ..*call }.make()
            };
            // SAFETY: the C caller vouches for the actions, as it would to sigaction.
            unsafe { signal::acting_raw(a1 as c_int, new, old, kernel) }
        }
        SYS_munmap | SYS_mprotect | SYS_pkey_mprotect | SYS_mmap | SYS_mremap | SYS_shmdt => {
            memory::changed(call.make())
        }
        n if is_fork(n, a1, a2) => process::forked_bare(|| call.make() as pid_t).into(),
        SYS_execve | SYS_execveat => process::replaced_by(|| call.make()),
        SYS_exit_group => {
            tell(NO_FD, api::exiting);
            call.make()
        }
        // SECCOMP_GET_ACTION_AVAIL and later operations only ask.
        SYS_seccomp if a1 > SECCOMP_SET_MODE_FILTER as usize => call.make(),
        // What only asks (credentials(7): -1 is no id).
        SYS_setfsuid | SYS_setfsgid if a1 as u32 == u32::MAX => call.make(),
        SYS_prctl if a1 as c_int == libc::PR_SET_NO_NEW_PRIVS => {
            tell(NO_FD, api::forgoes_privileges);
            call.make()
        }
        SYS_prctl
            if a1 as c_int != PR_SET_SECCOMP
                && !process::gives_up_rights(a1 as c_int, a2 as c_ulong) =>
        {
            call.make()
        }
        // What is left changes what the process may do: seccomp, Landlock, prctl, capset, unshare,
        // setns, ids.
        _ => {
            if is_sandbox(number, a1) {
                if number != SYS_landlock_restrict_self {
                    tell(NO_FD, api::before_filter);
                }
                tell(NO_FD, || api::sandboxed(Reason::Sandboxed));
            } else {
                tell(NO_FD, || api::changes_itself(Reason::Sandboxed));
            }
            call.make()
        }
    }
}

/// Is it one for the whole process, or for whatever the thread does from then on?
fn is_sandbox(number: c_long, a1: usize) -> bool {
    match number {
        SYS_prctl => a1 as c_int == PR_SET_SECCOMP,
        _ => matches!(number, SYS_seccomp | SYS_landlock_restrict_self),
    }
}

/// A descriptor is waited for by a raw call.
fn raw_wait(fd: c_int) {
    raw_use(fd, Reason::RawSyscall);
}

/// A call that writes two descriptors to `address` returned `ret`.
///
/// # Safety
/// If `ret` is 0, the numbers are there.
unsafe fn pair(ret: c_long, address: usize) -> c_long {
    if ret == 0 {
        // SAFETY: the caller's promise.
        unsafe { conn::pair_made(pointer(address)) };
    }
    ret
}

/// An argument that is an address.
pub(super) fn pointer<T>(argument: usize) -> *const T {
    std::ptr::with_exposed_provenance(argument)
}
