//! What /proc and process_vm_readv(2) tell of other processes. Every process may be gone at the
//! next line; nothing read here is trusted to be whole.

use std::ffi::OsString;
use std::fmt::{self, Write};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Bytes from elsewhere, made harmless for a terminal.
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.utf8_chunks() {
            for letter in part.valid().chars() {
                if letter.is_control() {
                    f.write_char('?')?
                } else {
                    f.write_char(letter)?
                }
            }
            if !part.invalid().is_empty() {
                f.write_char('?')?;
            }
        }
        Ok(())
    }
}

/// One part of a process's address space.
#[derive(Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    pub is_writable: bool,
    pub is_executable: bool,
    /// Empty for memory without a file.
    pub path: OsString,
}

/// All processes of this pid namespace, by number.
pub fn all() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    let mut pids: Vec<i32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    Ok(pids)
}

/// The name that ps(1) shows.
pub fn name(pid: i32) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    Shown(comm.trim_ascii_end()).to_string()
}

/// Is the process called this? By its command name, which the kernel cuts to 15 bytes, by its
/// program file or by its first argument.
pub fn is_named(pid: i32, wanted: &str) -> bool {
    let is_wanted = |path: &[u8]| {
        let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        file == wanted.as_bytes()
    };
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    if is_wanted(comm.trim_ascii_end()) {
        return true;
    }
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    if is_wanted(program.as_os_str().as_bytes()) {
        return true;
    }
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command
        .split(|&byte| byte == 0)
        .next()
        .is_some_and(is_wanted)
}

/// The process's number in its own pid namespace, which is what it sees itself.
pub fn own_pid(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// Is the process there, and not merely waiting for its parent to notice its end?
pub fn is_alive(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        // The name is in brackets and may hold brackets itself; the state follows the last one.
        let state = stat
            .rsplitn(2, |&byte| byte == b')')
            .next()
            .unwrap_or_default();
        !matches!(state.trim_ascii_start().first(), None | Some(b'Z' | b'X'))
    })
}

/// The address space of a process.
pub fn mappings(pid: i32) -> io::Result<Vec<Mapping>> {
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    Ok(maps
        .split(|&byte| byte == b'\n')
        .filter_map(mapping)
        .collect())
}

/// A line of proc_pid_maps(5): `start-end perms offset dev inode path`.
fn mapping(line: &[u8]) -> Option<Mapping> {
    let mut words = line.splitn(6, |&byte| byte == b' ');
    let mut range = std::str::from_utf8(words.next()?).ok()?.splitn(2, '-');
    let start = usize::from_str_radix(range.next()?, 16).ok()?;
    let end = usize::from_str_radix(range.next()?, 16).ok()?;
    let permissions = words.next()?;
    let is_writable = permissions.get(1) == Some(&b'w');
    let is_executable = permissions.get(2) == Some(&b'x');
    let path = words.nth(3).unwrap_or_default().trim_ascii_start();
    (start <= end).then(|| Mapping {
        start,
        end,
        is_writable,
        is_executable,
        path: OsString::from_vec(path.to_vec()),
    })
}

impl Mapping {
    /// Does it belong to a file of this name, or to one with a version behind the name, that may
    /// have been deleted since?
    pub fn is_of(&self, library: &str) -> bool {
        let path = self.path.as_bytes();
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        is_file_of(path, library)
    }
}

/// Is this the path of a file of this name, or of one with a version behind the name?
pub fn is_file_of(path: &[u8], library: &str) -> bool {
    let file = Path::new(std::ffi::OsStr::from_bytes(path))
        .file_name()
        .unwrap_or_default();
    file.as_bytes()
        .strip_prefix(library.as_bytes())
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
}

/// Types that any bytes are a valid value of.
///
/// # Safety
/// Integers and atomics of integers or pointers only, without padding that is ever read.
pub unsafe trait Plain {}

// SAFETY: an integer.
unsafe impl Plain for u8 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: integers only.
unsafe impl Plain for sluice_stats::Header {}
// SAFETY: integers, and atomics of integers and pointers; the pointers are never followed here.
unsafe impl Plain for sluice_stats::Root {}
// SAFETY: atomics of integers only.
unsafe impl Plain for sluice_stats::Conn {}

/// Fills `to` with what lies at `addr` in the process. Only a whole copy is a success.
pub fn read<T: Plain>(pid: i32, addr: usize, to: &mut [T]) -> io::Result<()> {
    let len = size_of_val(to);
    let base = to.as_mut_ptr().cast::<u8>();
    let mut done = 0;
    while done < len {
        // SAFETY: `done` is less than `len`, so the pointer stays inside `to`.
        let rest = unsafe { base.add(done) };
        let local = libc::iovec {
            iov_base: rest.cast(),
            iov_len: len - done,
        };
        let place = addr.checked_add(done).ok_or(io::ErrorKind::InvalidInput)?;
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(place),
            iov_len: len - done,
        };
        // SAFETY: the kernel writes into the rest of `to`, which we borrow alone and where any
        // bytes will do; the remote address is checked by the kernel.
        let copied =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(copied) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(copied) => done += copied,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_understood() {
        let line = b"7f00-7fff rw-p 00001000 08:01 42                         /usr/my lib/libsluice.so (deleted)";
        let found = mapping(line).unwrap();
        assert_eq!(
            (found.start, found.end, found.is_writable),
            (0x7f00, 0x7fff, true)
        );
        assert!(found.is_of("libsluice.so"));
        let anonymous = mapping(b"1000-2000 r--p 00000000 00:00 0 ").unwrap();
        assert_eq!((anonymous.is_writable, anonymous.path.len()), (false, 0));
        assert!(!anonymous.is_of("libsluice.so"));
        for line in [
            &b""[..],
            b"zz-1 rw-p",
            b"2000-1000 rw-p 0 0 0 ",
            b"1000 rw-p",
            b"\xff-\xff r",
        ] {
            assert_eq!(mapping(line), None);
        }
    }

    #[test]
    fn a_library_is_known_by_its_file_name() {
        let of = |path: &str| {
            Mapping {
                start: 0,
                end: 0,
                is_writable: true,
                is_executable: false,
                path: path.into(),
            }
            .is_of("libsluice.so")
        };
        assert!(of("/lib/libsluice.so"));
        assert!(of("/lib/libsluice.so.0.1"));
        assert!(!of("/lib/libsluice.sox"));
        assert!(!of("/lib/mylibsluice.so"));
        assert!(!of("/libsluice.so/other"));
    }

    #[test]
    fn our_own_memory_reads_back() {
        let pid = std::process::id() as i32;
        let from = *b"some bytes";
        let mut to = [0_u8; 10];
        read(pid, from.as_ptr().addr(), &mut to).unwrap();
        assert_eq!(to, from);
        assert!(read(pid, 0, &mut to).is_err());
        assert!(read(pid, usize::MAX - 3, &mut to).is_err());
        assert!(is_alive(pid));
        assert_eq!(own_pid(pid).unwrap(), std::process::id());
        assert!(all().unwrap().contains(&pid));
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(Shown(b"a\x1b[2Jb\n\xff\xc3\xa9").to_string(), "a?[2Jb??é");
    }
}
