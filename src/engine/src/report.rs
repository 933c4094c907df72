//! `SLUICE_REPORT=PATH`: one line per finished connection, for tests and for the curious.

use crate::process;
use crate::rendezvous::{control, diag};
use crate::sockets::internal::Low;
use crate::sockets::sock::{self, Sock};
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use sluice_fabric::lock::Guarded;
use sluice_fabric::sys;
use sluice_stats::{Reason, Role};
use std::ffi::CString;
use std::io::Write;
use syscalls::{Sysno, syscall};

/// The file as it is opened at each end of a connection. Opened once, to find out whether it can
/// be.
///
/// # Errors
/// What the kernel says.
pub fn prepare(path: CString) -> Result<CString, i32> {
    let path = absolute(path)?;
    sys::open_append(&path)?;
    Ok(path)
}

/// As an absolute path: a program may change its directory.
///
/// # Errors
/// What the kernel says of the current one.
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

/// The current directory, an absolute path.
fn current_dir(buffer: &mut [u8]) -> Result<&[u8], i32> {
    // SAFETY: room of our own, and its length. Not among the calls that are made for upgrades.
    let asked = unsafe { syscall!(Sysno::getcwd, buffer.as_mut_ptr(), buffer.len()) };
    let len = asked.map_err(|errno| errno.into_raw())?;
    // The kernel counts the NUL. What cannot be reached from the root has no such path.
    let path = buffer.get(..len.saturating_sub(1)).unwrap_or_default();
    if path.first() == Some(&b'/') {
        Ok(path)
    } else {
        Err(libc::ENOENT)
    }
}

/// A line is being written. A thread that finds another one writing may be about to end the
/// process.
static WRITING: Guarded<()> = Guarded::new(());

/// Before a fork: no thread writes that the child would wait for.
pub fn hold() {
    WRITING.hold();
}

/// After the fork, on both sides: of [`hold`].
pub fn release() {
    WRITING.release();
}

/// After a fork, in the child: what it has inherited gets a line of its own. What another thread of
/// the parent is closing gets none, since that thread is not here.
pub fn after_fork() {
    sock::for_every(|sock| {
        let is_closing = sock.fds.load(Ordering::Relaxed) == 0;
        sock.reported.store(is_closing, Ordering::Relaxed);
    });
}

/// The process ends: each connection that has no line yet gets it. Among these are the ones that
/// other threads are closing, whose peers may have seen the end before.
pub fn process_ends() {
    if crate::config::config().report.is_some() {
        sock::for_every(finished);
    }
}

/// The connection is over, or the process is: appends its line. Once for each connection and
/// process; when this returns it is written.
pub fn finished(sock: &Sock) {
    let Some(path) = crate::config::config().report.as_deref() else {
        return;
    };
    // None in a handler that has interrupted another line of this thread's.
    let _writing = WRITING.lock();
    if sock.reported.swap(true, Ordering::Relaxed) {
        return;
    }
    let conn = sock.conn();
    if conn.family().is_none() && !describe(sock) {
        return;
    }
    let (Some(local), Some(peer)) = (conn.local(), conn.peer()) else {
        return;
    };
    let mut line = [0u8; 512];
    let mut rest = line.as_mut_slice();
    let reason = Reason::from_u16(conn.reason())
        .unwrap_or(Reason::None)
        .code();
    let written = writeln!(
        rest,
        "conn local={local} peer={peer} upgrades={} demotions={} tx_tcp={} tx_direct={} tx_indirect={} tx_file={} \
         rx_tcp={} rx_direct={} rx_indirect={} rx_file={} reason={reason} reason_of={}",
        conn.upgrades(),
        conn.demotions(),
        conn.tx.bytes.tcp.load(),
        conn.tx.bytes.direct.load(),
        conn.tx.bytes.indirect.load(),
        conn.tx.bytes.file.load(),
        conn.rx.bytes.tcp.load(),
        conn.rx.bytes.direct.load(),
        conn.rx.bytes.indirect.load(),
        conn.rx.bytes.file.load(),
        if conn.is_reason_of_peer() {
            "peer"
        } else {
            "own"
        },
    );
    let left = rest.len();
    if written.is_err() {
        return;
    }
    let Some(text) = line.get(..512 - left) else {
        return;
    };
    // A thread of the program's makes it as the program would.
    let _low = control::is_own_thread().then(Low::begin);
    if let Ok(fd) = sys::open_append(path) {
        let _ = sys::write(fd.raw(), text);
    }
}

/// The connection stands, or is about to lose a half: its addresses are asked for if there will be
/// a line, since the kernel knows no peer of a connection whose both ends are over.
pub fn named(sock: &Sock) {
    let conn = sock.conn();
    if crate::config::config().report.is_none() || conn.family().is_some() {
        return;
    }
    if process::forbidden().is_some() || process::is_filtered() {
        return;
    }
    let fd = sock.fd.load(Ordering::Relaxed);
    if let (Some(role), Some(local), Some(peer)) =
        (conn.role(), diag::name(fd, false), diag::name(fd, true))
    {
        conn.describe(fd, role, local, peer);
    }
}

/// Asks for the addresses of a connection on which nothing was tried; its descriptor is open still,
/// or known to be gone. False: there was no connection.
fn describe(sock: &Sock) -> bool {
    let conn = sock.conn();
    let Some(role) = conn.role() else {
        return false;
    };
    let fd = sock.fd.load(Ordering::Relaxed);
    // A filter may kill for the question.
    let name = |peer| (!process::is_filtered()).then(|| diag::name(fd, peer))?;
    let (local, peer) = (name(false), name(true));
    // A connection that was reset has no peer any more; one that never came about has moved
    // nothing.
    if peer.is_none() && role == Role::Connecting && sock.offset() == 0 {
        return false;
    }
    let unknown = SocketAddr::from(([0; 4], 0));
    conn.describe(fd, role, local.unwrap_or(unknown), peer.unwrap_or(unknown));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::testing;

    #[test]
    fn a_child_waits_for_no_line_of_its_parents() {
        assert!(testing::is_free_in_child(&WRITING));
    }

    #[test]
    fn only_a_regular_file_of_this_user_alone_gets_lines() {
        let place = format!("/tmp/sluice-report-kinds-{}", sys::getpid());
        let path = |name: &str| CString::new(format!("{place}/{name}")).unwrap();
        let (file, link, fifo) = (path("file"), path("link"), path("fifo"));
        let place = CString::new(place.clone()).unwrap();
        // SAFETY: paths of our own.
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
        // SAFETY: as above.
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
        // SAFETY: a path of our own.
        assert_eq!(unsafe { libc::unlink(prepared.as_ptr()) }, 0);
        for bad in [c"/nonexistent/x", c"/", c"nonexistent/x"] {
            assert!(prepare(bad.into()).is_err(), "{bad:?}");
        }
    }
}
