//! Whether this process may share memory with peers of its host, and read theirs.

use crate::credentials::{self, Status};
use crate::own_fds::Low;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_stats::Reason;
use std::sync::OnceLock;

/// Why no more connections are upgraded (a sandbox, a strict filter); 0: they are.
static SANDBOXED: AtomicU32 = AtomicU32::new(0);

/// The reason why this process may upgrade nothing, if there is one.
pub fn forbidden() -> Option<Reason> {
    match SANDBOXED.load(Ordering::Relaxed) {
        0 => None,
        reason => Some(Reason::from_u16(reason as u16).unwrap_or(Reason::Sandboxed)),
    }
}

/// What higher layers do when the program sandboxes itself.
static SANDBOX: OnceLock<fn(Reason)> = OnceLock::new();

/// Called once, when the library is loaded: sets the function.
pub fn on_sandbox(then: fn(Reason)) {
    let _ = SANDBOX.set(then);
}

/// The program is about to sandbox itself, or to do what the library cannot follow: streams go back
/// to TCP for good.
pub fn sandbox(reason: Reason) {
    match SANDBOX.get() {
        Some(then) => then(reason),
        None => forbid(reason),
    }
}

/// Forbids upgrades in this process from now on.
pub fn forbid(reason: Reason) {
    SANDBOXED.store(reason as u32, Ordering::Relaxed);
}

/// True if the memory of the peer at `control` may be read: its user and group were this process's
/// when it connected, and the kernel says now that it has no fewer rights than this process. Its
/// own word on its capabilities is no evidence.
pub fn may_pull(control: i32) -> bool {
    peer(control).is_some_and(|peer| is_of_our_user(&peer) && credentials::may_pull(peer.pid))
}

/// True if a link's peer will read this process's memory, and may. Else it is told no address.
pub fn may_be_pulled_by(link: &Link) -> bool {
    let peer = link.control().with(peer).flatten();
    // Another process may have this id by now; user and group are those of the connect or listen.
    peer.is_some_and(|peer| is_of_our_user(&peer) && credentials::may_be_pulled_by(peer.pid))
}

fn is_of_our_user(peer: &libc::ucred) -> bool {
    (peer.uid, peer.gid) == credentials::own_ids()
}

/// The process at the other end of a Unix socket, as the kernel saw it connect or listen.
fn peer(control: i32) -> Option<libc::ucred> {
    sys::getsockopt(control, libc::SOL_SOCKET, libc::SO_PEERCRED).ok()
}

/// True if pages of a link's rings may go back to the kernel. `control` leads to the peer; none:
/// the peer is this process.
///
/// A process that shares the memory file can make that call block for ever
/// (`LinkEnd::can_discard`). So the peer must be one that could stop this process by a signal
/// anyway: it has the same user, and is in the same PID namespace. And the pages must be sure to
/// come back.
pub fn may_discard(control: Option<i32>) -> bool {
    if promises_kept() != Some(true) {
        return false;
    }
    control.is_none_or(|control| could_be_stopped(control) == Some(true))
}

/// Whether the kernel keeps its promises of memory: one of the next three.
static PROMISES: AtomicU32 = AtomicU32::new(UNASKED);
const UNASKED: u32 = 0;
const KEPT: u32 = 1;
const BROKEN: u32 = 2;

/// Whether this process may share pages of a memory file, which are allocated at first touch. With
/// `vm.overcommit_memory=2` the kernel may refuse a page by SIGBUS, and a peer that punches holes
/// chooses the moment. Asked once.
pub fn may_share_memory() -> Result<(), Reason> {
    if PROMISES.load(Ordering::Relaxed) == UNASKED {
        // If /proc does not say (systemd: ProcSubset=pid), they are kept as on most hosts.
        let known = match promises_kept() {
            Some(false) => BROKEN,
            _ => KEPT,
        };
        PROMISES.store(known, Ordering::Relaxed);
    }
    match PROMISES.load(Ordering::Relaxed) {
        BROKEN => Err(Reason::Overcommit),
        _ => Ok(()),
    }
}

/// True if the kernel never refuses a page by SIGBUS, as it may under strict overcommit. `None`:
/// not known.
fn promises_kept() -> Option<bool> {
    let _low = Low::begin();
    let fd = sys::open(c"/proc/sys/vm/overcommit_memory", libc::O_RDONLY).ok()?;
    let mut mode = [0u8; 16];
    let len = sys::read(fd.raw(), &mut mode).ok()?;
    keeps_promises(mode.get(..len)?)
}

/// The same, from the text of `vm.overcommit_memory` (proc_sys_vm(5)).
fn keeps_promises(mode: &[u8]) -> Option<bool> {
    match mode.trim_ascii() {
        b"0" | b"1" => Some(true),
        b"2" => Some(false),
        _ => None,
    }
}

/// True if the peer at `control` could send this process any signal. `None`: not known.
fn could_be_stopped(control: i32) -> Option<bool> {
    let peer = peer(control)?;
    let own = Status::own()?;
    // kill(2) compares with the real and the saved user.
    let mut users = own.words(b"Uid:")?;
    let (real, saved) = (users.next()?, users.nth(1)?);
    let same_user = [real, saved]
        .iter()
        .any(|user| user.parse() == Ok(peer.uid));
    // 0: the peer is neither in this process's namespace nor below it.
    if !same_user || peer.pid <= 0 || !own.is_in_this_proc() {
        return Some(false);
    }
    Some(Status::of(peer.pid)?.is_in_this_proc())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of `then` in a child of this process after `first`; 2: `first` failed.
    fn in_child(first: impl Fn() -> bool, then: impl Fn() -> bool) -> i32 {
        // SAFETY: the child only makes system calls on its own memory, and exits.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::_exit(if !first() { 2 } else { i32::from(then()) });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            assert!(libc::WIFEXITED(status));
            libc::WEXITSTATUS(status)
        }
    }

    fn pair() -> [sys::Fd; 2] {
        let mut fds = [0; 2];
        // SAFETY: `fds` has room for two numbers.
        let made =
            unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, &raw mut fds[0]) };
        assert_eq!(made, 0);
        fds.map(sys::Fd::own)
    }

    #[test]
    fn only_a_peer_that_could_stop_us_may_keep_us_waiting() {
        let [end, _other] = pair();
        assert_eq!(could_be_stopped(end.raw()), Some(true));
        assert_eq!(could_be_stopped(-1), None);
        // SAFETY: has no arguments and no effect.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let stopped = || could_be_stopped(end.raw()) == Some(true);
        // SAFETY: called in children, which change their user or the namespace of their children.
        unsafe {
            // The peer stays root, which is another user now.
            let other_user = || libc::syscall(libc::SYS_setresuid, 9999, 9999, 9999) == 0;
            assert_eq!(in_child(other_user, stopped), 0);
            // Only the effective user has changed: root may still signal this process.
            let acts_as_other = || libc::syscall(libc::SYS_setresuid, -1, 9999, -1) == 0;
            assert_eq!(in_child(acts_as_other, stopped), 1);
            // From a PID namespace below the peer's.
            let below = || libc::unshare(libc::CLONE_NEWPID) == 0;
            assert_eq!(in_child(below, || in_child(|| true, stopped) == 1), 0);
        }
    }

    #[test]
    fn under_strict_overcommit_no_memory_is_shared() {
        assert_eq!(keeps_promises(b"0\n"), Some(true));
        assert_eq!(keeps_promises(b"1\n"), Some(true));
        assert_eq!(keeps_promises(b"2\n"), Some(false));
        for unknown in [b"".as_slice(), b"\n", b"20\n", b"3\n"] {
            assert_eq!(keeps_promises(unknown), None);
        }
        let before = PROMISES.swap(BROKEN, Ordering::Relaxed);
        assert_eq!(may_share_memory(), Err(Reason::Overcommit));
        PROMISES.store(UNASKED, Ordering::Relaxed);
        let strict = promises_kept() == Some(false);
        assert_eq!(may_share_memory().is_err(), strict);
        PROMISES.store(before, Ordering::Relaxed);
    }

    #[test]
    fn a_peer_in_a_namespace_below_ours_cannot_stop_us() {
        // SAFETY: has no arguments and no effect.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let listener = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
        let family = libc::AF_UNIX as libc::sa_family_t;
        sys::bind(listener.raw(), &family, size_of_val(&family)).unwrap();
        sys::listen(listener.raw(), 1).unwrap();
        let (name, len) = sys::socket_name(listener.raw(), false).unwrap();
        let [ours, theirs] = pair();
        // SAFETY: the children only make system calls on their own memory, and exit.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let moved = libc::unshare(libc::CLONE_NEWPID) == 0;
                let below = if moved { libc::fork() } else { -1 };
                if below == 0 {
                    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
                    let met = sys::connect(socket.raw(), &name, len).is_ok();
                    // Lives until the parent has looked.
                    let _ = sys::read(theirs.raw(), &mut [0]);
                    libc::_exit(i32::from(!met));
                }
                let mut status = 0;
                libc::waitpid(below, &raw mut status, 0);
                libc::_exit(status);
            }
            let mut come = libc::pollfd {
                fd: listener.raw(),
                events: libc::POLLIN,
                revents: 0,
            };
            libc::poll(&raw mut come, 1, -1);
            let peer = sys::accept(listener.raw()).unwrap();
            assert_eq!(could_be_stopped(peer.raw()), Some(false));
            assert_eq!(sys::write(ours.raw(), b"!"), Ok(1));
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            assert_eq!(status, 0);
        }
    }
}
