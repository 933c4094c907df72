//! Resets the connection if the process dies with bytes that only its ring holds.
//!
//! What a program writes while its stream moves from TCP to a link, or back, is staged in this
//! process's ring. On TCP the kernel would have it, and it would outlive the process. Here it dies
//! with the process, and the FIN looks like a clean end to the peer. So while bytes are staged,
//! SO_LINGER with time 0 makes a close reset the connection (socket(7)); only the end of the
//! process closes it meanwhile.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use sluice_fabric::sys;

/// The staging of one socket; changed under the tx lock.
#[derive(Debug, Default)]
pub struct Staged {
    phase: AtomicU8,
    /// The program's own SO_LINGER in seconds, plus one; 0: off.
    linger: AtomicU32,
}

/// What is written outlives the process, or the peer can tell that it was lost.
const NOTHING: u8 = 0;
/// The next write is staged.
const BEGUN: u8 = 1;
/// Staged bytes exist, and the kernel's SO_LINGER is ours.
const WAITS: u8 = 2;

impl Staged {
    /// Resets the state for a new connection, or in a child, where the staged bytes are the
    /// parent's.
    pub fn forget(&self) {
        self.phase.store(NOTHING, Ordering::Relaxed);
    }

    /// Between hosts: the switch begins, and nothing more is written to TCP.
    pub fn begin(&self) {
        self.phase.store(BEGUN, Ordering::Relaxed);
    }

    /// Returns whether the next write is the first staged one.
    #[inline]
    pub fn has_begun(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == BEGUN
    }

    /// Arms the reset before the first staged write, or when all bytes become staged because the
    /// link did not take them. Call with the tx lock held.
    #[cold]
    pub fn stage(&self, fd: i32) {
        let own = self.linger(fd);
        self.phase.store(WAITS, Ordering::Relaxed);
        self.set_linger(fd, own);
        sys::set_linger(fd, Some(0));
    }

    /// Restores the program's SO_LINGER: nothing is staged any more, or the program is about to
    /// read or set the option. Call with the tx lock held.
    pub(crate) fn unstage(&self, fd: i32) {
        if self.phase.swap(NOTHING, Ordering::Relaxed) == WAITS {
            sys::set_linger(fd, self.own_linger());
        }
    }

    /// The program's own SO_LINGER in seconds, if on.
    pub fn linger(&self, fd: i32) -> Option<i32> {
        if self.phase.load(Ordering::Relaxed) == WAITS {
            return self.own_linger();
        }
        let option = sys::getsockopt::<libc::linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER);
        option.ok().filter(|l| l.l_onoff != 0).map(|l| l.l_linger)
    }

    /// Sets the program's own SO_LINGER.
    pub fn set_linger(&self, fd: i32, seconds: Option<i32>) {
        if self.phase.load(Ordering::Relaxed) != WAITS {
            return sys::set_linger(fd, seconds);
        }
        let seconds = seconds.map_or(0, |seconds| seconds.max(0) as u32 + 1);
        self.linger.store(seconds, Ordering::Relaxed);
    }

    fn own_linger(&self) -> Option<i32> {
        let seconds = self.linger.load(Ordering::Relaxed);
        seconds.checked_sub(1).map(|seconds| seconds as i32)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, reason = "no hook is loaded into a test")]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn an_end_of_the_process_resets_while_something_waits() {
        let (near, mut far) = connection();
        let staged = Staged::default();
        staged.begin();
        assert!(staged.has_begun());
        staged.stage(near.as_raw_fd());
        assert!(!staged.has_begun());
        drop(near);
        let got = far.read(&mut [0; 1]);
        assert_eq!(got.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn the_programs_option_is_its_own() {
        let (near, mut far) = connection();
        let fd = near.as_raw_fd();
        let staged = Staged::default();
        assert_eq!(staged.linger(fd), None);
        staged.set_linger(fd, Some(7));
        staged.begin();
        staged.stage(fd);
        assert_eq!(staged.linger(fd), Some(7));
        staged.set_linger(fd, Some(3));
        staged.unstage(fd);
        let kernel = sys::getsockopt::<libc::linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER);
        let kernel = kernel.unwrap();
        assert_eq!((kernel.l_onoff, kernel.l_linger), (1, 3));
        drop(near);
        assert_eq!(far.read(&mut [0; 1]).unwrap(), 0);
    }
}
