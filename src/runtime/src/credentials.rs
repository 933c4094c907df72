//! The identity of a process as the kernel states it. A peer's own statements are not used.
//!
//! Every question fails closed: what cannot be read, or is not as expected, is a no. An answer
//! holds at the moment it is given; a later decision asks again.

use crate::own_fds::Low;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_fabric::sys::{self, ShortPath};

/// The effective user and group of this process, the user in the upper half; or one of the next
/// two.
static IDS: AtomicU64 = AtomicU64::new(NOT_ASKED);
const NOT_ASKED: u64 = u64::MAX;
/// The program changes them, perhaps in one thread only.
const CHANGE: u64 = u64::MAX - 1;

/// The effective user and group of the calling thread. The kernel is asked once, unless the program
/// changes them.
pub fn own_ids() -> (u32, u32) {
    let known = IDS.load(Ordering::Relaxed);
    if known < CHANGE {
        return ((known >> 32) as u32, known as u32);
    }
    // SAFETY: neither call can fail, and neither is hooked.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let asked = u64::from(user) << 32 | u64::from(group);
    let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
    let _ = IDS.compare_exchange(NOT_ASKED, asked, set, fetch);
    (user, group)
}

/// The program is about to change them.
pub fn ids_change() {
    IDS.store(CHANGE, Ordering::Relaxed);
}

/// The last number of a line of /proc/self/status; hexadecimal for the capability sets.
pub(crate) fn own_number(name: &[u8]) -> Option<u64> {
    Status::own()?.number(name)
}

/// The text of a process's /proc/PID/status.
pub struct Status {
    text: [u8; 4096],
    len: usize,
}

impl Status {
    /// This process's.
    pub fn own() -> Option<Self> {
        Self::read(c"/proc/self/status")
    }

    /// Another process's.
    pub fn of(pid: i32) -> Option<Self> {
        Self::read(path_of(pid, "status")?.as_c_str())
    }

    fn read(path: &CStr) -> Option<Self> {
        let _low = Low::of_filters();
        let fd = sys::open(path, libc::O_RDONLY).ok()?;
        let mut text = [0u8; 4096];
        let len = sys::read(fd.raw(), &mut text).ok()?;
        Some(Self { text, len })
    }

    /// The words of a line.
    pub fn words(&self, name: &[u8]) -> Option<core::str::SplitAsciiWhitespace<'_>> {
        let mut lines = self.text.get(..self.len)?.split(|&b| b == b'\n');
        let line = lines.find(|l| l.starts_with(name))?;
        let value = core::str::from_utf8(line.get(name.len()..)?).ok()?;
        Some(value.split_ascii_whitespace())
    }

    /// The last number of a line; hexadecimal for the capability sets.
    pub fn number(&self, name: &[u8]) -> Option<u64> {
        let radix = if name.starts_with(b"Cap") { 16 } else { 10 };
        u64::from_str_radix(self.words(name)?.next_back()?, radix).ok()
    }

    /// True if the process is in the PID namespace of this /proc, and in none below. It has one id
    /// then.
    pub(crate) fn is_in_this_proc(&self) -> bool {
        self.words(b"NSpid:").is_some_and(|ids| ids.count() == 1)
    }
}

/// A path below `/proc/PID`. `None`: the process is not in this PID namespace.
fn path_of(pid: i32, name: &str) -> Option<ShortPath> {
    (pid > 0).then(|| ShortPath::new(format_args!("/proc/{pid}/{name}")))
}

/// What decides whether a process may read another one's memory (`ptrace(2)`, "access mode
/// checking").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rights {
    /// Real, effective and saved ids.
    users: [u32; 3],
    groups: [u32; 3],
    permitted: u64,
    effective: u64,
    /// The user namespace in which the capabilities count: device and inode number.
    within: (u64, u64),
    in_this_proc: bool,
}

impl Rights {
    fn own() -> Option<Self> {
        Self::of_status(&Status::own()?, c"/proc/self/ns/user")
    }

    fn of(pid: i32) -> Option<Self> {
        let within = path_of(pid, "ns/user")?;
        Self::of_status(&Status::of(pid)?, within.as_c_str())
    }

    fn of_status(status: &Status, within: &CStr) -> Option<Self> {
        let ids = |name| {
            let mut words = status.words(name)?.map(str::parse::<u32>);
            Some([
                words.next()?.ok()?,
                words.next()?.ok()?,
                words.next()?.ok()?,
            ])
        };
        Some(Self {
            users: ids(b"Uid:")?,
            groups: ids(b"Gid:")?,
            permitted: status.number(b"CapPrm:")?,
            effective: status.number(b"CapEff:")?,
            within: sys::identity(within)?,
            in_this_proc: status.is_in_this_proc(),
        })
    }

    /// True if both have one user, one group and one user namespace, the same, and no other ids.
    fn has_ids_of(&self, other: &Self) -> bool {
        let is_one = |ids: &[u32; 3]| ids.iter().all(|id| Some(id) == ids.first());
        is_one(&self.users)
            && is_one(&self.groups)
            && (self.users, self.groups, self.within) == (other.users, other.groups, other.within)
    }

    /// True if this process may read for `peer`, from its memory, without reading what `peer` may
    /// not: it has no right that `peer` lacks.
    fn may_read_for(&self, peer: &Self) -> bool {
        self.has_ids_of(peer) && self.in_this_proc && self.effective & !peer.effective == 0
    }

    /// True if the kernel lets this process read the memory of `other` (by its permitted
    /// capabilities), and first look at its namespace (by its effective ones). Knows nothing of
    /// `dumpable` and of security modules, which forbid more.
    fn is_let_into(&self, other: &Self) -> bool {
        let rights = self.permitted & self.effective;
        self.has_ids_of(other) && self.in_this_proc && other.permitted & !rights == 0
    }
}

/// True if this process may read the memory of process `pid`, at addresses that `pid` chooses: it
/// has this process's user, group and user namespace, and every capability of this process. A trial
/// must work, too.
pub fn may_pull(pid: i32) -> bool {
    let both = Rights::of(pid).zip(Rights::own());
    both.is_some_and(|(peer, own)| own.may_read_for(&peer))
}

/// True if process `pid` will read this process's memory, as [`may_pull`] decides there, and the
/// kernel allows it. Other peers are told no address.
pub fn may_be_pulled_by(pid: i32) -> bool {
    let both = Rights::of(pid).zip(Rights::own());
    both.is_some_and(|(peer, own)| peer.may_read_for(&own) && peer.is_let_into(&own))
        && sys::is_dumpable()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of `then` about a child that has called `first`, and about this process, asked
    /// by the child.
    fn about_child(first: impl FnOnce() -> bool, then: impl Fn(i32) -> bool) -> (bool, bool) {
        let me = std::process::id() as i32;
        let ((up, up_far), (down, down_far)) = (sys::doorbell().unwrap(), sys::doorbell().unwrap());
        let read = |fd: &sys::Fd| {
            let _ = sys::poll_one(fd.raw(), libc::POLLIN, None);
            let mut byte = [9];
            assert_eq!(sys::read(fd.raw(), &mut byte), Ok(1));
            byte[0]
        };
        // SAFETY: the child only makes system calls on its own memory, and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let said = if first() { u8::from(then(me)) } else { 2 };
            let _ = sys::write(up.raw(), &[said]);
            let _ = sys::poll_one(down_far.raw(), libc::POLLIN, None);
            // SAFETY: ends the child, which has nothing to clean up.
            unsafe { libc::_exit(0) };
        }
        let from_child = read(&up_far);
        assert_ne!(from_child, 2, "the child could not change");
        let from_here = then(pid);
        sys::write(down.raw(), b"!").unwrap();
        // SAFETY: reaps the child; no status is wanted.
        unsafe { libc::waitpid(pid, core::ptr::null_mut(), 0) };
        (from_here, from_child == 1)
    }

    fn is_root() -> bool {
        // SAFETY: has no arguments and no effect.
        unsafe { libc::geteuid() == 0 }
    }

    fn call(number: libc::c_long, a: i64, b: i64, c: i64) -> bool {
        // SAFETY: the tests only pass system calls whose arguments are numbers.
        unsafe { libc::syscall(number, a, b, c) == 0 }
    }

    /// Gives up the effective CAP_SYS_PTRACE and CAP_CHOWN, and the permitted ones if `permitted`.
    fn lose_capabilities(permitted: bool) -> bool {
        let gone = !(1u32 << 19 | 1);
        let header = [0x2008_0522u32, 0];
        let mut data = [0u32; 6];
        // SAFETY: `header` and `data` have the layout and length of version 3 (capget(2)).
        unsafe {
            if libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) != 0 {
                return false;
            }
            data[0] &= gone;
            if permitted {
                data[1] &= gone;
            }
            libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) == 0
        }
    }

    #[test]
    fn equals_may_pull_and_be_pulled() {
        assert_eq!(about_child(|| true, may_pull), (true, true));
        assert_eq!(about_child(|| true, may_be_pulled_by), (true, true));
    }

    #[test]
    fn no_process_and_one_out_of_sight_are_refused() {
        for pid in [-1, 0, i32::MAX] {
            assert!(!may_pull(pid) && !may_be_pulled_by(pid), "{pid}");
        }
    }

    #[test]
    fn other_users_and_groups_are_neither_pulled_from_nor_told_addresses() {
        if !is_root() {
            return;
        }
        let changes: [fn() -> bool; 6] = [
            || call(libc::SYS_setresuid, 9999, 9999, 9999),
            || call(libc::SYS_setresgid, 9999, 9999, 9999),
            // Only one of the three ids: the others are there to fall back to.
            || call(libc::SYS_setresuid, -1, 9999, -1),
            || call(libc::SYS_setresuid, 9999, -1, -1),
            || call(libc::SYS_setresgid, -1, -1, 9999),
            // Root of a new user namespace, with all of its capabilities. SAFETY: called in a child
            // with one thread, which shares no memory.
            || unsafe { libc::unshare(libc::CLONE_NEWUSER) == 0 },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_eq!(about_child(change, may_pull), (false, false), "{number}");
            let told = about_child(change, may_be_pulled_by);
            assert_eq!(told, (false, false), "{number}");
        }
    }

    #[test]
    fn a_process_with_more_capabilities_is_not_sent_to_read_by_one_with_less() {
        if !is_root() {
            return;
        }
        for permitted in [false, true] {
            let lose = || lose_capabilities(permitted);
            // The child has less than this process. It may not read here, so it would not read for
            // it.
            assert_eq!(about_child(lose, may_pull), (false, false), "{permitted}");
            let told = about_child(lose, may_be_pulled_by);
            assert_eq!(told, (false, false), "{permitted}");
        }
    }

    #[test]
    fn who_is_not_dumpable_tells_no_addresses() {
        // SAFETY: called in the child, and changes only that.
        let hide = || unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 };
        let told = about_child(hide, may_be_pulled_by);
        assert!(!told.1);
    }
}
