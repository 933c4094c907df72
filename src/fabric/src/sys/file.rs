//! What a descriptor is of.

use super::{Errno, call, fcntl};
use core::mem::MaybeUninit;
use libc::c_int;
use syscalls::Sysno;

/// `fstat(2)`.
///
/// # Errors
/// The kernel's.
pub fn fstat(fd: c_int) -> Result<libc::stat, Errno> {
    let mut st = MaybeUninit::<libc::stat>::zeroed();
    sys!(fstat, fd, st.as_mut_ptr())?;
    // SAFETY: zeroed is a valid `stat`, and the kernel has filled it.
    Ok(unsafe { st.assume_init() })
}

/// Is `fd` a file of ordinary shared memory (`fstatfs(2)`)?
#[must_use]
pub fn is_tmpfs(fd: c_int) -> bool {
    let mut fs = MaybeUninit::<libc::statfs>::zeroed();
    if sys!(fstatfs, fd, fs.as_mut_ptr()).is_err() {
        return false;
    }
    // SAFETY: zeroed is a valid `statfs`, and the kernel has filled it.
    (unsafe { fs.assume_init() }).f_type == libc::TMPFS_MAGIC
}

/// The inode behind `fd`, if it is a socket's: as the kernel has it, without asking whoever serves a file (`statx(2)`).
#[must_use]
pub fn socket_inode(fd: c_int) -> Option<u64> {
    let mut st = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let wanted = libc::STATX_TYPE | libc::STATX_INO;
    if let Err(e) = sys!(statx, fd, c"".as_ptr(), flags, wanted, st.as_mut_ptr()) {
        // An old kernel, or a filter that does not know it.
        let st = fstat(fd)
            .ok()
            .filter(|_| matches!(e, libc::ENOSYS | libc::EPERM))?;
        return (st.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(st.st_ino);
    }
    // SAFETY: zeroed is a valid `statx`, and the kernel has filled it.
    let st = unsafe { st.assume_init() };
    (u32::from(st.stx_mode) & libc::S_IFMT == libc::S_IFSOCK).then_some(st.stx_ino)
}

/// Does `fd` only name a file (O_PATH)? Nobody can do anything by it, and its close does nothing either.
#[must_use]
pub fn is_name(fd: c_int) -> bool {
    fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_PATH != 0)
}

/// Is `fd` an end of a pipe?
#[must_use]
pub fn is_pipe(fd: c_int) -> bool {
    fcntl(fd, libc::F_GETPIPE_SZ, 0).is_ok()
}

/// Is `fd` a memory file, of whatever kind?
#[must_use]
pub fn is_memory(fd: c_int) -> bool {
    fcntl(fd, libc::F_GET_SEALS, 0).is_ok()
}
