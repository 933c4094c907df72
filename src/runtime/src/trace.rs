//! `SLUICE_TRACE=PATH`: every message of this process's connections, in the file PATH.PID.
//!
//! The file is made when the program makes its first TCP socket, when a child first uses one of its
//! parent's, or before the program installs a seccomp filter: always on the way into the engine,
//! with no lock held. Not at the first message: then locks of the engine are held, and such a
//! filter may be in force. And not when the library is loaded: most programs that a shell starts
//! have no connection, and would leave a file of some megabytes each.
//!
//! Its blocks are allocated before it is mapped. A store into a page that the file system has no
//! room for would kill the program by SIGBUS.

use crate::config::{self, Level, Meaning, Path};
use crate::fd_table::{self, Entry};
use crate::own_fds::{self, Low};
use crate::{process, seccomp};
use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_fabric::filter;
use sluice_fabric::sys::{self, Errno, Fd};
use sluice_stats::TraceFile;
use std::io::Write;
use syscalls::Sysno;

/// A process keeps its id over `exec`. Then the file is PATH.PID.2, and so on up to this number.
const FILES_MAX: u32 = 16;

/// The program has installed a seccomp filter: neither it nor a child of it makes a file any more.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// Asks for a file if one is configured: when the library is loaded, and in the child of a fork,
/// which gets its own.
pub fn begin() {
    if config::config().trace.is_some() && !FILTERED.load(Ordering::Relaxed) {
        sluice_stats::want_trace();
    }
}

/// Called when a hook asks the engine about `fd`: a child may begin to use a connection of its
/// parent's.
#[inline(always)]
pub fn before_use(fd: i32) {
    if sluice_stats::wants_trace() {
        open_for(fd);
    }
}

#[cold]
fn open_for(fd: i32) {
    if fd_table::lookup(fd).is_some_and(Entry::is_sock) {
        open();
    }
}

/// Before the program installs a seccomp filter, which may kill for the calls of [`open`].
pub fn before_filter() {
    if process::is_vfork_child() {
        return;
    }
    open();
    FILTERED.store(true, Ordering::Relaxed);
    // If an inherited filter has prevented the file, it is never made.
    let _ = sluice_stats::take_trace_up();
}

/// Makes the file if one is wanted, and logs a failure. Called with no lock held. Allocates
/// nothing, since the program may be in a signal handler.
pub fn open() {
    // While an inherited filter is untried the file stays wanted. Nothing is logged, since that is
    // a system call, too.
    if !sluice_stats::wants_trace()
        || process::is_vfork_child()
        || seccomp::may_use_system_calls().is_err()
        || !sluice_stats::take_trace_up()
    {
        return;
    }
    let Some(path) = config::config().trace.as_deref() else {
        return;
    };
    match make(path) {
        Ok(file) => sluice_stats::trace_to(file),
        Err(failure) => {
            let (path, pid) = (Path(path.to_bytes()), process::pid());
            let line = format_args!("no trace is kept: {path}.{pid} {failure}");
            config::log(Level::Error, line);
        }
    }
}

/// Why there is no file.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// It would be longer than RLIMIT_FSIZE.
    Limit,
    Create(Errno),
    Room(Errno),
    Map(Errno),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LEN: usize = size_of::<TraceFile>();
        match self {
            Failure::Limit => {
                write!(
                    f,
                    "takes {LEN} bytes, more than a file may have (ulimit -f)"
                )
            }
            Failure::Create(errno) => write!(f, "cannot be made ({})", Meaning(*errno)),
            Failure::Room(errno) => {
                write!(f, "finds no room for {LEN} bytes ({})", Meaning(*errno))
            }
            Failure::Map(errno) => write!(f, "cannot be mapped ({})", Meaning(*errno)),
        }
    }
}

fn make(path: &CStr) -> Result<&'static TraceFile, Failure> {
    const LEN: usize = size_of::<TraceFile>();
    // Beyond the limit the kernel raises SIGXFSZ.
    if sys::file_limit() < LEN as u64 {
        return Err(Failure::Limit);
    }
    // Upgrades do not need these calls, so even under a filter that permits upgrades no child has
    // tried them yet.
    let free = !seccomp::has_filter()
        || filter::survives(&[Sysno::wait4, Sysno::fallocate, Sysno::unlink]);
    let (file, name) = create(path).map_err(Failure::Create)?;
    let mapped = match file {
        Some(file) => map(file, LEN, free),
        None => Err(Failure::Create(libc::EMFILE)),
    };
    if mapped.is_err() && free {
        name.unlink();
    }
    // SAFETY: a mapping of this length, which is never unmapped. Zeros are valid, and all of it is
    // atomic, so other writers of the file can only produce wrong numbers. (Only its owner can
    // truncate it, which ends this process by SIGBUS: the owner could kill it, too.)
    let file: &'static TraceFile = unsafe { &*mapped?.cast::<TraceFile>() };
    file.begin(process::pid(), config::program());
    Ok(file)
}

/// A new file, lifted if there is room. A thread that places descriptors waits for it, but not for
/// a disk.
fn create(path: &CStr) -> Result<(Option<Fd>, Name), Errno> {
    let _low = Low::begin();
    let mut made = Err(libc::EEXIST);
    for number in 1..=FILES_MAX {
        let name = Name::new(path, process::pid(), number).ok_or(libc::ENAMETOOLONG)?;
        made = sys::create(name.as_c_str()).map(|file| (file, name));
        if !matches!(made, Err(libc::EEXIST)) {
            break;
        }
    }
    made.map(|(file, name)| (own_fds::lift(file), name))
}

/// Maps an empty file, and closes it.
fn map(file: Fd, len: usize, by_fallocate: bool) -> Result<*mut u8, Failure> {
    let mapped = reserve(file.raw(), len, by_fallocate)
        .map_err(Failure::Room)
        .and_then(|()| sys::map_shared(file.raw(), len).map_err(Failure::Map));
    if mapped.is_err() {
        // It frees the blocks even where the name cannot be removed.
        let _ = sys::ftruncate(file.raw(), 0);
    }
    own_fds::forget(file.raw());
    mapped
}

/// Gives an empty file `len` bytes of zeros, and their blocks.
fn reserve(fd: i32, len: usize, by_fallocate: bool) -> Result<(), Errno> {
    if by_fallocate {
        // SAFETY: all arguments are numbers.
        let reserved = unsafe { sys::call(Sysno::fallocate, [fd as usize, 0, 0, len, 0, 0]) };
        match reserved {
            // The file system cannot, the kernel is old, or a signal came: writes zeros.
            Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINTR) => {}
            other => return other.map(drop),
        }
    }
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut left = len;
    while left > 0 {
        match sys::write(fd, ZEROS.get(..left).unwrap_or(&ZEROS)) {
            Ok(0) => return Err(libc::EIO),
            Ok(n) => left -= n,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The name of a file.
struct Name([u8; libc::PATH_MAX as usize]);

impl Name {
    /// `None`: longer than any path.
    fn new(path: &CStr, pid: u32, number: u32) -> Option<Name> {
        let mut text = [0; libc::PATH_MAX as usize];
        let mut rest = text.as_mut_slice();
        rest.write_all(path.to_bytes()).ok()?;
        write!(rest, ".{pid}").ok()?;
        if number > 1 {
            write!(rest, ".{number}").ok()?;
        }
        // A byte is left for the NUL.
        (!rest.is_empty()).then_some(Name(text))
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }

    fn unlink(&self) {
        // SAFETY: a C string that outlives the call. A failure is ignored: the file does no harm.
        let _ = unsafe { sys::call(Sysno::unlink, [self.0.as_ptr() as usize, 0, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn a_file_is_named_by_its_process() {
        let named = |path: &CStr, number| {
            let name = Name::new(path, 42, number)?;
            Some(name.as_c_str().to_str().unwrap().to_owned())
        };
        assert_eq!(named(c"/x/t", 1).as_deref(), Some("/x/t.42"));
        assert_eq!(named(c"/x/t", 3).as_deref(), Some("/x/t.42.3"));
        let long = |len| CString::new("x".repeat(len)).unwrap();
        assert_eq!(named(&long(4092), 1).map(|name| name.len()), Some(4095));
        for len in [4093, 4096, 5000] {
            assert_eq!(named(&long(len), 1), None, "{len}");
        }
    }

    #[test]
    fn a_file_has_its_blocks_before_anything_is_stored() {
        let path = format!("/tmp/sluice-reserve-{}", sys::getpid());
        let path = CString::new(path).unwrap();
        for by_fallocate in [true, false] {
            let name = Name::new(&path, u32::from(by_fallocate), 1).unwrap();
            let file = sys::create(name.as_c_str()).unwrap();
            name.unlink();
            assert_eq!(reserve(file.raw(), 100_000, by_fallocate), Ok(()));
            let stat = sys::fstat(file.raw()).unwrap();
            assert_eq!(stat.st_size, 100_000);
            assert!(stat.st_blocks * 512 >= 100_000, "{by_fallocate}");
            assert_eq!(stat.st_nlink, 0);
        }
        assert_eq!(reserve(-1, 1, false), Err(libc::EBADF));
    }
}
