//! What this process may do with peers of its host, and they with it.

use crate::credentials::{self, Status};
use crate::own_fds::Low;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_stats::Reason;
use std::sync::OnceLock;

/// The program sandboxes itself, or cannot bear our system calls: no more upgrades.
static SANDBOXED: AtomicU32 = AtomicU32::new(0);

/// Why this process may not upgrade at all, if so.
pub fn forbidden() -> Option<Reason> {
    match SANDBOXED.load(Ordering::Relaxed) {
        0 => None,
        reason => Some(Reason::from_u16(reason as u16).unwrap_or(Reason::Sandboxed)),
    }
}

/// What higher layers do when the program sandboxes itself.
static SANDBOX: OnceLock<fn(Reason)> = OnceLock::new();

/// Called once, when the library is loaded.
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

/// From now on nothing is upgraded in this process.
pub fn forbid(reason: Reason) {
    SANDBOXED.store(reason as u32, Ordering::Relaxed);
}

/// The peer's process id, and whether its memory may be read: its user and group were ours when it
/// came, and the kernel says now that it has no less rights than this process. What it says of its
/// capabilities itself is no evidence.
pub fn may_pull(control: i32) -> bool {
    peer(control).is_some_and(|peer| is_of_our_user(&peer) && credentials::may_pull(peer.pid))
}

/// Will the peer of a link read this process's memory, and may it? If not, it is told no address.
pub fn may_be_pulled_by(link: &Link) -> bool {
    let peer = link.control().with(peer).flatten();
    // Another process may have the number by now; the ids are those at connect or listen time.
    peer.is_some_and(|peer| is_of_our_user(&peer) && credentials::may_be_pulled_by(peer.pid))
}

fn is_of_our_user(peer: &libc::ucred) -> bool {
    (peer.uid, peer.gid) == credentials::own_ids()
}

/// The process at the other end of a Unix socket, as the kernel saw it connect or listen.
fn peer(control: i32) -> Option<libc::ucred> {
    sys::getsockopt(control, libc::SOL_SOCKET, libc::SO_PEERCRED).ok()
}

/// May pages of a link's rings go back to the kernel, towards the peer at `control` (none: this
/// process)?
///
/// The process that shares the memory file can keep the call for it waiting for ever
/// (`LinkEnd::can_discard`). So the peer must be one that could stop us by a signal just as well:
/// its user is ours, and it sees us, by being in the same namespace of process ids. And pages given
/// back must be sure to be had again.
pub fn may_discard(control: Option<i32>) -> bool {
    if promises_kept() != Some(true) {
        return false;
    }
    control.is_none_or(|control| could_be_stopped(control) == Some(true))
}

/// What is known of the kernel's promises, one of the next three.
static PROMISES: AtomicU32 = AtomicU32::new(UNASKED);
const UNASKED: u32 = 0;
const KEPT: u32 = 1;
const BROKEN: u32 = 2;

/// May this process share pages of a memory file, which come when they are first touched? Where the
/// kernel has promised no more memory than there is (`vm.overcommit_memory=2`), it refuses such a
/// page by SIGBUS, and a peer that punches holes chooses the moment. Asked once.
pub fn may_share_memory() -> Result<(), Reason> {
    if PROMISES.load(Ordering::Relaxed) == UNASKED {
        // Where /proc does not say (systemd: ProcSubset=pid), as on most hosts.
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

/// Where the kernel promises no more memory than there is, a page can be refused, by SIGBUS.
/// `None`: not known.
fn promises_kept() -> Option<bool> {
    let _low = Low::begin();
    let fd = sys::open(c"/proc/sys/vm/overcommit_memory", libc::O_RDONLY).ok()?;
    let mut mode = [0u8; 16];
    let len = sys::read(fd.raw(), &mut mode).ok()?;
    keeps_promises(mode.get(..len)?)
}

/// The same, by the text of `vm.overcommit_memory` (proc_sys_vm(5)).
fn keeps_promises(mode: &[u8]) -> Option<bool> {
    match mode.trim_ascii() {
        b"0" | b"1" => Some(true),
        b"2" => Some(false),
        _ => None,
    }
}

/// Could the peer at `control` send us any signal? `None`: not known.
fn could_be_stopped(control: i32) -> Option<bool> {
    let peer = peer(control)?;
    let own = Status::own()?;
    // kill(2) compares with the real and the saved one.
    let mut users = own.words(b"Uid:")?;
    let (real, saved) = (users.next()?, users.nth(1)?);
    let same_user = [real, saved]
        .iter()
        .any(|user| user.parse() == Ok(peer.uid));
    // 0: the peer is not in our namespace nor below it.
    if !same_user || peer.pid <= 0 || !own.is_in_this_proc() {
        return Some(false);
    }
    Some(Status::of(peer.pid)?.is_in_this_proc())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child of this process makes of a connection, after `first`; 2: `first` failed.
    fn in_child(first: impl Fn() -> bool, then: impl Fn() -> bool) -> i32 {
        // SAFETY: the child makes system calls on memory of its own and ends.
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
        // SAFETY: room for two numbers.
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
        // SAFETY: asks only.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let stopped = || could_be_stopped(end.raw()) == Some(true);
        // SAFETY: in a child: changes its user, or where its children live.
        unsafe {
            // The peer stays root, which is another user now.
            let other_user = || libc::syscall(libc::SYS_setresuid, 9999, 9999, 9999) == 0;
            assert_eq!(in_child(other_user, stopped), 0);
            // Where only the effective one has changed, root may signal us.
            let acts_as_other = || libc::syscall(libc::SYS_setresuid, -1, 9999, -1) == 0;
            assert_eq!(in_child(acts_as_other, stopped), 1);
            // From a namespace of process ids below the peer's.
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
        // SAFETY: asks only.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let listener = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
        let family = libc::AF_UNIX as libc::sa_family_t;
        sys::bind(listener.raw(), &family, size_of_val(&family)).unwrap();
        sys::listen(listener.raw(), 1).unwrap();
        let (name, len) = sys::socket_name(listener.raw(), false).unwrap();
        let [ours, theirs] = pair();
        // SAFETY: the children make system calls on memory of their own and end.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let moved = libc::unshare(libc::CLONE_NEWPID) == 0;
                let below = if moved { libc::fork() } else { -1 };
                if below == 0 {
                    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
                    let met = sys::connect(socket.raw(), &name, len).is_ok();
                    // Lives until the other has looked.
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
