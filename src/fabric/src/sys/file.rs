//! What a descriptor is of.

use super::{Errno, Fd, call, fcntl, open, read};
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

/// The last number of a short file, such as those of /proc/sys.
#[must_use]
pub fn number_in(path: &core::ffi::CStr) -> Option<u64> {
    let fd = open(path, libc::O_RDONLY).ok()?;
    let mut text = [0u8; 128];
    let len = read(fd.raw(), &mut text).ok()?;
    let text = core::str::from_utf8(text.get(..len)?).ok()?;
    text.split_ascii_whitespace().next_back()?.parse().ok()
}

/// Is `fd` a regular file? Asked as the loader asks of those that it loads, so that no inherited
/// filter kills for it (`newfstatat(2)`).
///
/// # Errors
/// The kernel's.
pub fn is_regular(fd: c_int) -> Result<bool, Errno> {
    let mut st = MaybeUninit::<libc::stat>::zeroed();
    let empty = c"".as_ptr();
    sys!(newfstatat, fd, empty, st.as_mut_ptr(), libc::AT_EMPTY_PATH)?;
    // SAFETY: zeroed is a valid `stat`, and the kernel has filled it.
    Ok(unsafe { st.assume_init() }.st_mode & libc::S_IFMT == libc::S_IFREG)
}

/// Opens a regular file for appending, made for this user alone if it is not there. A link is not
/// followed: another user that can write to the directory must not choose the file.
///
/// # Errors
/// The kernel's; EINVAL: it is no regular file.
pub fn open_append(path: &core::ffi::CStr) -> Result<Fd, Errno> {
    // A FIFO that nobody reads is refused, not waited for.
    let kept = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | kept;
    let fd =
        sys!(openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600).map(|fd| Fd::own(fd as c_int))?;
    if is_regular(fd.raw())? {
        Ok(fd)
    } else {
        Err(libc::EINVAL)
    }
}

/// Makes a file that is not there yet, for this user alone, to be read and written.
///
/// # Errors
/// The kernel's.
pub fn create(path: &core::ffi::CStr) -> Result<Fd, Errno> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    sys!(openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600).map(|fd| Fd::own(fd as c_int))
}

/// The kind of file system that `fd` is on, by its magic number (`fstatfs(2)`).
///
/// # Errors
/// The kernel's.
pub fn file_system(fd: c_int) -> Result<i64, Errno> {
    let mut fs = MaybeUninit::<libc::statfs>::zeroed();
    sys!(fstatfs, fd, fs.as_mut_ptr())?;
    // SAFETY: zeroed is a valid `statfs`, and the kernel has filled it.
    Ok(unsafe { fs.assume_init() }.f_type)
}

/// Is `fd` a file of ordinary shared memory?
#[must_use]
pub fn is_tmpfs(fd: c_int) -> bool {
    file_system(fd) == Ok(libc::TMPFS_MAGIC)
}

/// `statx(2)` of a path below a directory, without a request to a file server; of a symbolic link
/// itself with AT_SYMLINK_NOFOLLOW. What it says of type, mode and inode is always there.
///
/// # Errors
/// The kernel's.
pub fn stat_at(dir: c_int, path: &core::ffi::CStr, flags: c_int) -> Result<libc::statx, Errno> {
    let mut st = MaybeUninit::<libc::statx>::zeroed();
    let flags = flags | libc::AT_STATX_DONT_SYNC;
    let wanted = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_INO;
    sys!(statx, dir, path.as_ptr(), flags, wanted, st.as_mut_ptr())?;
    // SAFETY: zeroed is a valid `statx`, and the kernel has filled it.
    Ok(unsafe { st.assume_init() })
}

/// `readlinkat(2)` into `text`: how many bytes of it are the target.
///
/// # Errors
/// The kernel's.
pub fn read_link_at(dir: c_int, path: &core::ffi::CStr, text: &mut [u8]) -> Result<usize, Errno> {
    sys!(
        readlinkat,
        dir,
        path.as_ptr(),
        text.as_mut_ptr(),
        text.len()
    )
}

/// The inode of `fd`, if it is a socket's: as the kernel has it, without asking the server of
/// a file (`statx(2)`).
#[must_use]
pub fn socket_inode(fd: c_int) -> Option<u64> {
    match stat_at(fd, c"", libc::AT_EMPTY_PATH) {
        Ok(st) => (u32::from(st.stx_mode) & libc::S_IFMT == libc::S_IFSOCK).then_some(st.stx_ino),
        // An old kernel, or a filter that does not know it.
        Err(libc::ENOSYS | libc::EPERM) => {
            let st = fstat(fd).ok()?;
            (st.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(st.st_ino)
        }
        Err(_) => None,
    }
}

/// Device and number of what `path`, an absolute one, leads to, without opening it (`statx(2)`).
/// `None`: not there, out of bounds, or not known.
#[must_use]
pub fn identity(path: &core::ffi::CStr) -> Option<(u64, u64)> {
    let mut st = MaybeUninit::<libc::statx>::zeroed();
    let at = libc::AT_FDCWD;
    let wanted = libc::STATX_INO;
    sys!(statx, at, path.as_ptr(), 0, wanted, st.as_mut_ptr()).ok()?;
    // SAFETY: zeroed is a valid `statx`, and the kernel has filled it.
    let st = unsafe { st.assume_init() };
    let device = u64::from(st.stx_dev_major) << 32 | u64::from(st.stx_dev_minor);
    Some((device, st.stx_ino))
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
