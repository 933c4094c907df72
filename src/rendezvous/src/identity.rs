//! Decides whether the process at the other end of a Unix socket holds the other end of a TCP
//! connection. Only the kernel's answers count (docs/protocol.md, "Proof of identity", whose steps
//! are named here).
//!
//! Knows nothing of how the two have met, or what for.

use super::diag::Mirror;
use super::message::{Message, Nonce, Sender};
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_fabric::lock::{Guarded, OverFork};
use sluice_fabric::shm::{self, Link};
use sluice_fabric::sys::{self, Fd, ShortPath};
use sluice_runtime::{credentials, fault};
use sluice_stats::Reason;

/// Set before a socket is bound or connected: each record carries its sender's credentials
/// (`unix(7)`).
const SO_PASSCRED: i32 = libc::SO_PASSCRED;
/// Lets a socket refuse descriptors, since Linux 6.16.
const SO_PASSRIGHTS: i32 = 83;

/// Whether this kernel lets a socket refuse descriptors. 0: not known yet, 1: yes, 2: no.
static REFUSES: AtomicU32 = AtomicU32::new(0);

/// True if a [prepared](prepare) socket refuses descriptors.
pub(crate) fn refuses_descriptors() -> bool {
    REFUSES.load(Ordering::Relaxed) == 1
}

/// Step 0: records received by this socket carry credentials. They carry no descriptors, where the
/// kernel can refuse them.
///
/// # Errors
/// [`Reason::ProofFailed`] where the kernel gives no credentials.
pub fn prepare(socket: i32) -> Result<(), Reason> {
    sys::setsockopt(socket, libc::SOL_SOCKET, SO_PASSCRED, &1).map_err(|_| Reason::ProofFailed)?;
    let refuses = !fault::is_old_kernel() && let_descriptors_in(socket, false).is_ok();
    REFUSES.store(if refuses { 1 } else { 2 }, Ordering::Relaxed);
    Ok(())
}

/// Sets whether the peer may send descriptors from now on.
///
/// # Errors
/// The kernel's: it always lets them in.
pub fn let_descriptors_in(socket: i32, may: bool) -> Result<(), sys::Errno> {
    sys::setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, &i32::from(may))
}

/// Random bytes for several nonces, and for how many nonces they are left.
struct Drawn {
    bytes: [u8; 16 * NONCE],
    left: usize,
}
const NONCE: usize = size_of::<Nonce>();
static DRAWN: Guarded<Drawn> = Guarded::new(Drawn {
    bytes: [0; 16 * NONCE],
    left: 0,
});

/// A new nonce, which nobody can guess.
///
/// # Errors
/// [`Reason::Limit`] where there is no randomness.
pub fn nonce() -> Result<Nonce, Reason> {
    let mut own = [0; NONCE];
    // A handler that has interrupted a holder of the lock draws its own.
    match DRAWN.lock() {
        Some(mut drawn) => {
            if drawn.left == 0 {
                sys::random(&mut drawn.bytes).map_err(|_| Reason::Limit)?;
                drawn.left = drawn.bytes.len() / NONCE;
            }
            drawn.left -= 1;
            let at = drawn.left * NONCE;
            if let Some(from) = drawn.bytes.get_mut(at..at + NONCE) {
                own.swap_with_slice(from);
            }
        }
        None => sys::random(&mut own).map_err(|_| Reason::Limit)?,
    }
    let drawn = u128::from_le_bytes(own);
    // Not zero, which stands for no nonce.
    Ok([drawn as u64 | 1, (drawn >> 64) as u64])
}

/// Held over a fork.
pub(super) const HELD: &dyn OverFork = &DRAWN;

/// In the child of a fork: drops the random bytes, which the parent uses.
pub fn after_fork() {
    if let Some(mut drawn) = DRAWN.lock() {
        drawn.left = 0;
    }
}

/// A process that claims to hold the other end.
#[derive(Debug)]
pub struct Claimant {
    /// Its process id in this process's PID namespace; never 0.
    pub pid: i32,
    /// The process's effective user when it called `connect` or `listen`.
    pub uid: u32,
    /// /proc/PID, where this process may look into it. The descriptor stays bound to the process.
    pub dir: Option<Fd>,
    /// A link with that process, which has its directory open.
    pub link: Option<&'static Link>,
}

/// A process whose identity is known, with its directory.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// As [`Claimant::pid`].
    pub pid: i32,
    /// As [`Claimant::uid`].
    pub uid: u32,
    /// The descriptor of [`Claimant::dir`].
    pub dir: Option<i32>,
}

impl Claimant {
    /// Step 1: the process at the other end of a connected Unix socket, if its user owns `mirror`.
    ///
    /// # Errors
    /// [`Reason::PeerOwner`], [`Reason::PeerHidden`], [`Reason::ProcMissing`],
    /// [`Reason::DescriptorLimit`].
    pub fn behind(socket: i32, mirror: Mirror) -> Result<Self, Reason> {
        let who: libc::ucred = sys::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED)
            .map_err(|_| Reason::ProofFailed)?;
        if who.pid <= 0 {
            return Err(Reason::PeerHidden);
        }
        if who.uid != mirror.uid {
            return Err(Reason::PeerOwner);
        }
        let known = shm::all().find(|link| {
            let is_it = link.peer_pid() == who.pid && link.peer_uid() == who.uid;
            // A child may keep a dead process's link up, and another process may have got its id.
            let lives = |dir| sys::stat_at(dir, c"stat", 0).is_ok();
            is_it && link.is_alive() && link.peer_dir().with(lives) == Some(true)
        });
        if known.is_some() {
            return Ok(Self {
                pid: who.pid,
                uid: who.uid,
                dir: None,
                link: known,
            });
        }
        let dir = match relation(who.uid) {
            Relation::Stranger => None,
            Relation::Same => Some(directory(who.pid)?),
            Relation::Root => directory(who.pid).ok(),
        };
        if let (Relation::Same, Some(dir)) = (relation(who.uid), &dir) {
            is_of_our_namespace(dir.raw())?;
        }
        Ok(Self {
            pid: who.pid,
            uid: who.uid,
            dir,
            link: None,
        })
    }

    /// Runs `look` with the process and its directory.
    pub fn with<R>(&self, look: impl FnOnce(Known) -> R) -> R {
        let known = |dir| Known {
            pid: self.pid,
            uid: self.uid,
            dir,
        };
        match self.link {
            Some(link) => look_over(link, look),
            None => look(known(self.dir.as_ref().map(Fd::raw))),
        }
    }

    /// True if the process could also stop this one by a signal.
    pub fn is_same_user(&self) -> bool {
        relation(self.uid) == Relation::Same
    }
}

/// Runs `look` with the process of a link and its directory.
pub(crate) fn look_over<R>(link: &Link, look: impl FnOnce(Known) -> R) -> R {
    link.peer_dir().with_any(|dir| {
        look(Known {
            dir,
            ..of_link(link)
        })
    })
}

/// The process at the other end of a link, without its directory.
pub fn of_link(link: &Link) -> Known {
    Known {
        pid: link.peer_pid(),
        uid: link.peer_uid(),
        dir: None,
    }
}

impl Known {
    /// True if this process sent the record.
    pub fn is_process(&self, sender: Option<Sender>) -> bool {
        sender.is_some_and(|sender| sender.pid == self.pid)
    }

    /// True if this process sent the record, with explicit credentials, as that user.
    pub fn has_sent(&self, sender: Option<Sender>) -> bool {
        self.is_process(sender) && sender.is_some_and(|sender| sender.uid == self.uid)
    }

    /// Steps 3 and 4: checks that this process sent `claim` after it got `nonce`, and that it holds
    /// the other end, `mirror`. `socket` is any socket of this process.
    ///
    /// # Errors
    /// [`Reason::PeerOwner`], [`Reason::PeerHidden`], [`Reason::ProofFailed`].
    pub fn proves(
        &self,
        claim: &Message,
        sender: Option<Sender>,
        nonce: Nonce,
        mirror: Mirror,
        socket: i32,
    ) -> Result<(), Reason> {
        if self.uid != mirror.uid {
            return Err(Reason::PeerOwner);
        }
        if !self.has_sent(sender) || claim.echo != nonce || nonce == [0; 2] {
            return Err(Reason::ProofFailed);
        }
        match (relation(self.uid), self.dir) {
            (Relation::Stranger, _) | (Relation::Root, None) => Ok(()),
            (Relation::Same, None) => Err(Reason::PeerHidden),
            (Relation::Same, Some(dir)) => holds(dir, claim.descriptor, mirror, socket),
            (Relation::Root, Some(dir)) => match seems_to_hold(dir, claim.descriptor, mirror) {
                // Root without CAP_SYS_PTRACE sees as little as other users do.
                Err(Reason::PeerHidden) => Ok(()),
                looked => looked,
            },
        }
    }
}

/// What this process is to the user of another one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relation {
    /// It runs as the same user.
    Same,
    /// It is root, and may look as far as the kernel lets it.
    Root,
    /// Neither: /proc shows it nothing of the other's descriptors.
    Stranger,
}

fn relation(uid: u32) -> Relation {
    match credentials::own_ids() {
        (own, _) if own == uid => Relation::Same,
        (0, _) => Relation::Root,
        _ => Relation::Stranger,
    }
}

/// Opens /proc/PID of the process that has the id now.
fn directory(pid: i32) -> Result<Fd, Reason> {
    let path = ShortPath::new(format_args!("/proc/{pid}"));
    let dir = sys::open(path.as_c_str(), libc::O_PATH | libc::O_DIRECTORY);
    let dir = dir.map_err(|_| match sys::stat_at(libc::AT_FDCWD, c"/proc/self", 0) {
        Ok(_) => Reason::PeerHidden,
        Err(_) => Reason::ProcMissing,
    })?;
    sluice_runtime::own_fds::lift(dir).ok_or(Reason::DescriptorLimit)
}

/// Checks that the process is in this process's PID namespace. A process in a child namespace
/// cannot signal this one, but could block it: a read of the fdinfo of an epoll set waits for the
/// thread that uses the set.
fn is_of_our_namespace(dir: i32) -> Result<(), Reason> {
    let theirs = sys::stat_at(dir, c"ns/pid", 0);
    let ours = sys::stat_at(libc::AT_FDCWD, c"/proc/self/ns/pid", 0);
    match (theirs, ours) {
        (Ok(theirs), Ok(ours)) if theirs.stx_ino == ours.stx_ino => Ok(()),
        (_, Err(_)) => Err(Reason::ProcMissing),
        _ => Err(Reason::PeerHidden),
    }
}

/// What /proc/PID/fdinfo tells of a descriptor.
#[derive(Debug, Default)]
struct Info {
    flags: Option<u64>,
    mount: Option<u64>,
    inode: Option<u64>,
}

fn info(dir: i32, path: &CStr) -> Result<Info, Reason> {
    let file = sys::open_at(dir, path, libc::O_RDONLY).map_err(refusal)?;
    let mut text = [0u8; 512];
    let len = sys::read(file.raw(), &mut text).map_err(refusal)?;
    let text = text.get(..len).unwrap_or_default();
    let mut info = Info::default();
    for line in text.split(|&b| b == b'\n') {
        let Ok(line) = core::str::from_utf8(line) else {
            continue;
        };
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match name {
            "flags" => info.flags = u64::from_str_radix(value, 8).ok(),
            "mnt_id" => info.mount = value.parse().ok(),
            "ino" => info.inode = value.parse().ok(),
            _ => {}
        }
    }
    Ok(info)
}

/// The reason for an error of /proc: no permission, or no such descriptor.
fn refusal(errno: sys::Errno) -> Reason {
    match errno {
        libc::EACCES | libc::EPERM => Reason::PeerHidden,
        _ => Reason::ProofFailed,
    }
}

/// Checks that descriptor `number` of the process is this socket, with the right to use it. One
/// read tells all, so nothing can be replaced between two looks.
fn holds(dir: i32, number: u32, mirror: Mirror, socket: i32) -> Result<(), Reason> {
    let there = ShortPath::new(format_args!("fdinfo/{number}"));
    let shown = info(dir, there.as_c_str())?;
    let is_usable = shown
        .flags
        .is_some_and(|flags| flags & libc::O_PATH as u64 == 0);
    if !is_usable {
        return Err(Reason::ProofFailed);
    }
    match shown.inode {
        // All sockets are on one mount.
        Some(inode) if inode == mirror.inode && shown.mount == Some(mount(socket)?) => Ok(()),
        Some(_) => Err(Reason::ProofFailed),
        // Before Linux 5.14 fdinfo has no inode.
        None => seems_to_hold(dir, number, mirror),
    }
}

/// The id of the mount that `socket` is on.
fn mount(socket: i32) -> Result<u64, Reason> {
    static MOUNT: AtomicU64 = AtomicU64::new(u64::MAX);
    let known = MOUNT.load(Ordering::Relaxed);
    if known != u64::MAX {
        return Ok(known);
    }
    let own = ShortPath::new(format_args!("/proc/self/fdinfo/{socket}"));
    let found = info(libc::AT_FDCWD, own.as_c_str()).map_err(|_| Reason::ProcMissing)?;
    let found = found.mount.ok_or(Reason::ProcMissing)?;
    MOUNT.store(found, Ordering::Relaxed);
    Ok(found)
}

/// Checks the same by two calls that the other process cannot block: the target of the link in
/// /proc, and its mode, which shows the access rights of the descriptor.
fn seems_to_hold(dir: i32, number: u32, mirror: Mirror) -> Result<(), Reason> {
    let at = ShortPath::new(format_args!("fd/{number}"));
    let at = at.as_c_str();
    let wanted = ShortPath::new(format_args!("socket:[{}]", mirror.inode));
    let mut target = [0u8; 32];
    match sys::read_link_at(dir, at, &mut target) {
        Ok(len) if target.get(..len) == Some(wanted.as_c_str().to_bytes()) => {}
        Ok(_) => return Err(Reason::ProofFailed),
        Err(e) => return Err(refusal(e)),
    }
    // An O_PATH descriptor shows no right at all.
    match sys::stat_at(dir, at, libc::AT_SYMLINK_NOFOLLOW) {
        Ok(st) if u32::from(st.stx_mode) & libc::S_IRUSR != 0 => Ok(()),
        _ => Err(Reason::ProofFailed),
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a test process has no hooks"
)]
mod tests {
    use super::*;
    use crate::message::Kind;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    const NONCE: Nonce = [7, 8];

    /// A connection: this end, the other end, and that end's mirror.
    fn connection() -> (TcpStream, TcpStream, Mirror) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let local = near.local_addr().unwrap();
        let peer = near.peer_addr().unwrap();
        let looks = crate::diag::Looks::Twice;
        let mirror = crate::diag::mirror(local, peer, looks).unwrap();
        (near, far, mirror)
    }

    /// Judges a claim of this process to hold its own descriptor `number`.
    fn judge(number: i32, mirror: Mirror) -> Result<(), Reason> {
        let dir = sys::open(c"/proc/self", libc::O_PATH | libc::O_DIRECTORY).unwrap();
        // SAFETY: has no arguments and no effect.
        let uid = unsafe { libc::geteuid() };
        let pid = sys::getpid();
        let known = Known {
            pid,
            uid,
            dir: Some(dir.raw()),
        };
        let claim = Message {
            echo: NONCE,
            descriptor: number as u32,
            ..Message::new(Kind::Claim)
        };
        let own = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).unwrap();
        known.proves(&claim, Some(Sender { pid, uid }), NONCE, mirror, own.raw())
    }

    #[test]
    fn who_holds_the_other_end_is_believed() {
        let (near, far, mirror) = connection();
        assert_eq!(judge(far.as_raw_fd(), mirror), Ok(()));
        assert_eq!(judge(near.as_raw_fd(), mirror), Err(Reason::ProofFailed));
        assert_eq!(judge(i32::MAX, mirror), Err(Reason::ProofFailed));
    }

    #[test]
    fn a_name_of_the_other_end_is_not_enough() {
        let (_near, far, mirror) = connection();
        let name = sys::open(ShortPath::of_fd(far.as_raw_fd()).as_c_str(), libc::O_PATH).unwrap();
        assert_eq!(judge(name.raw(), mirror), Err(Reason::ProofFailed));
        assert_eq!(
            seems_to_hold(libc::AT_FDCWD, 0, mirror).map_err(|_| ()),
            Err(()),
            "there is no such path"
        );
        let dir = sys::open(c"/proc/self", libc::O_PATH | libc::O_DIRECTORY).unwrap();
        let there = |fd| seems_to_hold(dir.raw(), fd, mirror);
        assert_eq!(there(name.raw() as u32), Err(Reason::ProofFailed));
        assert_eq!(there(far.as_raw_fd() as u32), Ok(()));
    }

    #[test]
    fn a_file_with_the_inode_of_the_other_end_is_none() {
        let (_near, _far, mirror) = connection();
        let dir = std::env::temp_dir();
        let file = std::fs::File::open(&dir).unwrap();
        let st = sys::fstat(file.as_raw_fd()).unwrap();
        let same = Mirror {
            inode: st.st_ino,
            ..mirror
        };
        assert_eq!(judge(file.as_raw_fd(), same), Err(Reason::ProofFailed));
    }

    #[test]
    fn another_process_user_or_nonce_proves_nothing() {
        let (_near, far, mirror) = connection();
        let dir = sys::open(c"/proc/self", libc::O_PATH | libc::O_DIRECTORY).unwrap();
        let known = Known {
            pid: sys::getpid(),
            uid: mirror.uid,
            dir: Some(dir.raw()),
        };
        let fd = far.as_raw_fd();
        let claim = Message {
            echo: NONCE,
            descriptor: fd as u32,
            ..Message::new(Kind::Claim)
        };
        let own = Sender {
            pid: known.pid,
            uid: known.uid,
        };
        let says = |sender, nonce, mirror| known.proves(&claim, sender, nonce, mirror, fd);
        let failed = Err(Reason::ProofFailed);
        assert_eq!(says(Some(own), NONCE, mirror), Ok(()));
        assert_eq!(says(None, NONCE, mirror), failed);
        assert_eq!(says(Some(Sender { pid: 1, ..own }), NONCE, mirror), failed);
        assert_eq!(says(Some(Sender { pid: 0, ..own }), NONCE, mirror), failed);
        let other = own.uid ^ 1;
        assert_eq!(
            says(Some(Sender { uid: other, ..own }), NONCE, mirror),
            failed
        );
        assert_eq!(says(Some(own), [7, 9], mirror), failed);
        let claim_of_none = Message {
            echo: [0; 2],
            ..claim
        };
        let none = known.proves(&claim_of_none, Some(own), [0; 2], mirror, fd);
        assert_eq!(none, failed);
        let theirs = Mirror {
            uid: other,
            ..mirror
        };
        assert_eq!(says(Some(own), NONCE, theirs), Err(Reason::PeerOwner));
    }

    #[test]
    fn a_process_of_this_user_that_cannot_be_seen_is_not_believed() {
        let (_near, far, mirror) = connection();
        let fd = far.as_raw_fd();
        // SAFETY: the child and its own child change only themselves, and exit.
        unsafe {
            if libc::geteuid() != 0 {
                return;
            }
            let child = libc::fork();
            if child == 0 {
                // The checking process runs as an ordinary user, since root may look into all
                // processes.
                let mut ends = [0; 2];
                libc::pipe(ends.as_mut_ptr());
                let target = libc::fork();
                libc::setresuid(4712, 4712, 4712);
                if target == 0 {
                    // A change of users makes its descriptors invisible.
                    libc::write(ends[1], b"!".as_ptr().cast(), 1);
                    libc::pause();
                }
                libc::read(ends[0], [0u8].as_mut_ptr().cast(), 1);
                let seen = directory(target).and_then(|dir| {
                    is_of_our_namespace(dir.raw())?;
                    holds(dir.raw(), fd as u32, mirror, fd)
                });
                libc::kill(target, libc::SIGKILL);
                libc::_exit(i32::from(seen != Err(Reason::PeerHidden)));
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            assert_eq!(status, 0);
        }
    }

    #[test]
    fn a_process_of_another_namespace_of_ids_is_not_believed() {
        // SAFETY: the children change only themselves, and exit.
        unsafe {
            if libc::geteuid() != 0 {
                return;
            }
            let child = libc::fork();
            if child == 0 {
                libc::unshare(libc::CLONE_NEWPID);
                let below = libc::fork();
                if below == 0 {
                    libc::pause();
                }
                let seen = directory(below).and_then(|dir| is_of_our_namespace(dir.raw()));
                libc::kill(below, libc::SIGKILL);
                libc::_exit(i32::from(seen != Err(Reason::PeerHidden)));
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            assert_eq!(status, 0);
        }
    }
}
