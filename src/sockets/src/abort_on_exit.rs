//! What a program writes while its stream is on the way from TCP to a link, or back, waits in the
//! ring of this process. On TCP it would be in the kernel by then, and outlive the process; here it
//! dies with that, and all that the peer sees is an end of TCP before the link was used, or after
//! it, which looks like a clean one. So for as long as such bytes wait, the kernel is told that a
//! close of the socket resets the connection (SO_LINGER with no time, socket(7)): nobody but the
//! end of the process closes it meanwhile.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use sluice_fabric::sys;

/// Of one socket; changed under the tx lock.
#[derive(Debug, Default)]
pub struct Staged {
    phase: AtomicU8,
    /// The time of the program's own SO_LINGER, plus one; 0: it has none. In seconds.
    linger: AtomicU32,
}

/// What is written goes where it outlives the process, or the peer would know.
const NOTHING: u8 = 0;
/// What is written from now on waits.
const BEGUN: u8 = 1;
/// Something waits.
const WAITS: u8 = 2;

impl Staged {
    /// The structure has another connection; or this process is a child, and what waits is its
    /// parent's.
    pub fn forget(&self) {
        self.phase.store(NOTHING, Ordering::Relaxed);
    }

    /// To another host: the switch begins, and nothing more is written on TCP.
    pub fn begin(&self) {
        self.phase.store(BEGUN, Ordering::Relaxed);
    }

    /// Is the next write the first one that waits?
    #[inline]
    pub fn has_begun(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == BEGUN
    }

    /// Under the tx lock, before the first write that waits, or when all does that the link was not
    /// given.
    #[cold]
    pub fn stage(&self, fd: i32) {
        let own = self.linger(fd);
        self.phase.store(WAITS, Ordering::Relaxed);
        self.set_linger(fd, own);
        sys::set_linger(fd, Some(0));
    }

    /// Under the tx lock: nothing waits any more, or the program is about to ask for the option, or
    /// to set it.
    pub(crate) fn unstage(&self, fd: i32) {
        if self.phase.swap(NOTHING, Ordering::Relaxed) == WAITS {
            sys::set_linger(fd, self.own_linger());
        }
    }

    /// The program's own SO_LINGER, in seconds, if it has set it.
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
