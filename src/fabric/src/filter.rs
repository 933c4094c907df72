//! Which system calls a process may make under a seccomp filter that it was put under.
//!
//! A forbidden call may end the process, so it is not tried in it: a child makes all of them, and
//! has come through or not. Refuses to know what the calls are for.

use crate::sys::{call, map_zeroes, unmap};
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::c_int;
use syscalls::Sysno;

/// The kinds of system calls that this library makes on behalf of an upgrade, all of those in
/// [`crate::sys`] among them.
pub const OURS: [Sysno; 63] = [
    // First: with it the child is reaped.
    Sysno::wait4,
    Sysno::socket,
    Sysno::socketpair,
    Sysno::bind,
    Sysno::listen,
    Sysno::connect,
    Sysno::accept4,
    Sysno::sendto,
    Sysno::recvfrom,
    Sysno::sendmsg,
    Sysno::recvmsg,
    Sysno::shutdown,
    Sysno::getsockname,
    Sysno::getpeername,
    Sysno::getsockopt,
    Sysno::setsockopt,
    Sysno::ioctl,
    Sysno::fcntl,
    Sysno::fstat,
    Sysno::newfstatat,
    Sysno::fstatfs,
    Sysno::statx,
    Sysno::openat,
    Sysno::readlinkat,
    Sysno::memfd_create,
    // Of a thread's time the vDSO does not tell.
    Sysno::clock_gettime,
    Sysno::ftruncate,
    Sysno::mmap,
    Sysno::munmap,
    Sysno::madvise,
    Sysno::mincore,
    Sysno::epoll_create1,
    Sysno::epoll_ctl,
    Sysno::epoll_pwait,
    Sysno::eventfd2,
    Sysno::pipe2,
    Sysno::ppoll,
    Sysno::futex,
    Sysno::getrandom,
    Sysno::process_vm_readv,
    Sysno::prctl,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigpending,
    Sysno::rt_sigtimedwait,
    Sysno::sched_yield,
    Sysno::kill,
    Sysno::prlimit64,
    Sysno::epoll_pwait2,
    Sysno::getpid,
    Sysno::gettid,
    Sysno::geteuid,
    Sysno::getegid,
    Sysno::rt_sigaction,
    Sysno::sigaltstack,
    Sysno::read,
    Sysno::readv,
    Sysno::preadv,
    Sysno::sendfile,
    Sysno::lseek,
    Sysno::write,
    Sysno::close,
    Sysno::close_range,
    Sysno::clone3,
];

/// Does a process under this one's seccomp filter survive these calls? A child tries them, with
/// arguments that do nothing; it is no child that the program's own `wait` would see.
#[must_use]
pub fn survives(calls: &[Sysno]) -> bool {
    // How many calls the child has survived.
    let Ok(page) = map_zeroes(4096, true) else {
        return false;
    };
    // SAFETY: the start of a mapping that only this call and its child know.
    let survived = unsafe { AtomicUsize::from_ptr(page.cast()) };
    // No exit signal, no shared memory but the page: everything the child does stays with it. This
    // thread goes on when it has ended (CLONE_VFORK): not even to wait for it is known to be
    // allowed. SAFETY: without shared memory and on a copy of this stack, the child is as a fork's.
    match unsafe { call(Sysno::clone, [libc::CLONE_VFORK as usize, 0, 0, 0, 0, 0]) } {
        // Raw calls only from here: the child is a copy of one thread.
        Ok(0) => try_all(calls, survived),
        Ok(pid) => {
            if survived.load(Ordering::Relaxed) != 0 {
                reap(pid);
            }
        }
        Err(_) => {}
    }
    let all = survived.load(Ordering::Relaxed) == calls.len();
    // SAFETY: nobody knows the page any more.
    unsafe { unmap(page, 4096) };
    all
}

fn reap(child: usize) {
    let mut status: c_int = 0;
    let status = &raw mut status as usize;
    let args = [child, status, libc::__WCLONE as usize, 0, 0, 0];
    // SAFETY: a status of ours, and no usage asked for.
    while unsafe { call(Sysno::wait4, args) } == Err(libc::EINTR) {}
}

fn try_all(calls: &[Sysno], survived: &AtomicUsize) -> ! {
    for (index, &number) in calls.iter().enumerate() {
        // A list of no descriptors would be waited on for ever; one of so many is refused.
        let count = if number == Sysno::ppoll {
            usize::MAX
        } else {
            0
        };
        // SAFETY: a descriptor that is none, null pointers, and lengths that are zero or refused:
        // each call fails or does nothing.
        let _ = unsafe { call(number, [usize::MAX, count, 0, 0, 0, 0]) };
        survived.store(index + 1, Ordering::Relaxed);
    }
    loop {
        // SAFETY: the child's own end.
        let _ = unsafe { call(Sysno::exit_group, [0; 6]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made only where there is no filter: see [`crate::sys::shorten_turns`].
    const WITHOUT_FILTER: [Sysno; 2] = [Sysno::sched_getattr, Sysno::sched_setattr];

    #[test]
    fn a_process_without_a_filter_survives_all_calls() {
        assert!(survives(&OURS));
    }

    #[test]
    fn every_call_of_the_wrappers_is_tried() {
        let wrappers = concat!(
            include_str!("sys.rs"),
            include_str!("sys/file.rs"),
            include_str!("sys/process.rs"),
            include_str!("sys/signal.rs")
        );
        let mut count = 0;
        for (at, _) in wrappers.match_indices("sys!(") {
            let rest = wrappers[at + "sys!(".len()..].trim_start();
            let name = rest
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .next()
                .unwrap();
            let mut known = OURS.iter().chain(&WITHOUT_FILTER);
            assert!(
                known.any(|call| call.name() == name),
                "`{name}` is made, and no child has tried it"
            );
            count += 1;
        }
        // None of them is found if they are written in another way.
        assert!(count >= 40, "only {count} calls found");
    }
}
