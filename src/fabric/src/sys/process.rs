//! Other processes.

use super::{Errno, call};
use libc::c_int;
use syscalls::Sysno;

/// `kill(2)` with signal 0: is there such a process, be it another user's, or such a thread?
#[must_use]
pub fn is_process(pid: u32) -> bool {
    sys!(kill, pid, 0) != Err(libc::ESRCH)
}

/// Is a child that was made without a signal for its end through (`wait4(2)`)? Then it is no more;
/// also if it never was ours.
#[must_use]
pub fn reap(pid: c_int) -> bool {
    let options = libc::WNOHANG | libc::__WALL;
    let status = core::ptr::null_mut::<c_int>();
    let usage = core::ptr::null_mut::<u8>();
    sys!(wait4, pid, status, options, usage) != Ok(0)
}

/// `process_vm_readv(2)`. All of it is read from one memory: if the process executes another image
/// meanwhile, every piece is still the old one's.
///
/// # Errors
/// The kernel's: EPERM, ESRCH, EFAULT.
///
/// # Safety
/// The pieces of `to` are writable, or the kernel says EFAULT. `from` lives in the other process.
pub unsafe fn read_process(
    pid: c_int,
    from: &[libc::iovec],
    to: &[libc::iovec],
) -> Result<usize, Errno> {
    sys!(
        process_vm_readv,
        pid,
        to.as_ptr(),
        to.len(),
        from.as_ptr(),
        from.len(),
        0
    )
}
