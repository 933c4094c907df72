//! Paths of files that are written later, when the program may have changed its directory.

use sluice_fabric::sys;
use std::ffi::CString;
use syscalls::{Sysno, syscall};

/// Returns the absolute path of a file that is opened at the end of each connection. Opens it once,
/// to see whether that works.
///
/// # Errors
/// The kernel's.
pub fn prepare(path: CString) -> Result<CString, i32> {
    let path = absolute(path)?;
    sys::open_append(&path)?;
    Ok(path)
}

/// Makes a path absolute, since the program may change its directory.
///
/// # Errors
/// The kernel's, for the current directory.
pub fn absolute(path: CString) -> Result<CString, i32> {
    if path.as_bytes().first() == Some(&b'/') {
        return Ok(path);
    }
    let mut buffer = [0u8; libc::PATH_MAX as usize];
    let mut whole = current_dir(&mut buffer)?.to_vec();
    whole.push(b'/');
    whole.extend_from_slice(path.as_bytes());
    CString::new(whole).map_err(|_| libc::ENOENT)
}

/// The absolute path of the current directory.
fn current_dir(buffer: &mut [u8]) -> Result<&[u8], i32> {
    // SAFETY: `buffer` has that length and is alive. Not among the calls that upgrades need.
    let asked = unsafe { syscall!(Sysno::getcwd, buffer.as_mut_ptr(), buffer.len()) };
    let len = asked.map_err(|errno| errno.into_raw())?;
    // The kernel counts the NUL. A directory that the root does not lead to has no absolute path.
    let path = buffer.get(..len.saturating_sub(1)).unwrap_or_default();
    if path.first() == Some(&b'/') {
        Ok(path)
    } else {
        Err(libc::ENOENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_of_this_user_alone_gets_lines() {
        let place = format!("/tmp/sluice-report-kinds-{}", sys::getpid());
        let path = |name: &str| CString::new(format!("{place}/{name}")).unwrap();
        let (file, link, fifo) = (path("file"), path("link"), path("fifo"));
        let place = CString::new(place.clone()).unwrap();
        // SAFETY: NUL-terminated paths that are alive.
        unsafe {
            assert_eq!(libc::mkdir(place.as_ptr(), 0o700), 0);
            assert_eq!(libc::symlink(file.as_ptr(), link.as_ptr()), 0);
            assert_eq!(libc::mkfifo(fifo.as_ptr(), 0o600), 0);
        }
        let none_reads = prepare(fifo.clone());
        let reader = sys::open(&fifo, libc::O_RDWR).unwrap();
        let one_reads = prepare(fifo.clone());
        drop(reader);
        let by_link = prepare(link.clone());
        let made = prepare(file.clone());
        let mode = sys::fstat(sys::open(&file, libc::O_RDONLY).unwrap().raw()).map(|st| st.st_mode);
        // SAFETY: NUL-terminated paths that are alive.
        unsafe {
            for name in [&file, &link, &fifo] {
                libc::unlink(name.as_ptr());
            }
            libc::rmdir(place.as_ptr());
        }
        assert_eq!(none_reads, Err(libc::ENXIO));
        assert_eq!(one_reads, Err(libc::EINVAL));
        assert_eq!(by_link, Err(libc::ELOOP));
        assert_eq!(made, Ok(file));
        assert_eq!(mode, Ok(libc::S_IFREG | 0o600));
    }

    #[test]
    fn a_path_becomes_absolute_and_is_tried() {
        let name = format!("sluice-report-{}", sys::getpid());
        let from_root = CString::new(format!("/tmp/{name}")).unwrap();
        assert_eq!(prepare(from_root.clone()), Ok(from_root.clone()));
        let mut buffer = [0u8; 4096];
        let up = current_dir(&mut buffer).unwrap();
        let depth = up.iter().filter(|&&b| b == b'/').count();
        let relative = format!("{}tmp/{name}", "../".repeat(depth));
        let prepared = prepare(CString::new(relative.clone()).unwrap()).unwrap();
        let expected = [up, b"/", relative.as_bytes()].concat();
        assert_eq!(prepared.as_bytes(), expected);
        // SAFETY: a NUL-terminated path that is alive.
        assert_eq!(unsafe { libc::unlink(prepared.as_ptr()) }, 0);
        for bad in [c"/nonexistent/x", c"/", c"nonexistent/x"] {
            assert!(prepare(bad.into()).is_err(), "{bad:?}");
        }
    }
}
