//! This process: its identity, and what fork, exec and exit do to its streams.

use crate::caller;
use crate::credentials::{self, Status};
use crate::readiness;
use crate::relatives;
use crate::rendezvous::control;
use crate::report;
use crate::sockets::demote::{self, Which};
use crate::sockets::life;
use crate::sockets::parting::{self, end_before_record};
use crate::sockets::prefix;
use crate::sockets::sock::{self, CALL_BITS, Half, Sock, State};
use crate::sockets::table;
use crate::thread;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sluice_fabric::filter;
use sluice_fabric::lock;
use sluice_fabric::shm::{self, Link, Token};
use sluice_fabric::sys;
use sluice_stats::Reason;

/// Process id as cached; 0: not asked yet.
static PID: AtomicU32 = AtomicU32::new(0);
/// This process was forked off another one that had the library.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The id of this process while it is about to execute another program; 0: it is not. A child has
/// another.
static EXECUTING: AtomicU32 = AtomicU32::new(0);
/// The program sandboxes itself, or cannot bear our system calls: no more upgrades.
static SANDBOXED: AtomicU32 = AtomicU32::new(0);
/// Identity towards peers; zero: not drawn yet.
static TOKEN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// This process's id, cached.
#[inline]
pub fn pid() -> u32 {
    let pid = PID.load(Ordering::Relaxed);
    if pid != 0 {
        return pid;
    }
    let asked = ask_pid();
    PID.store(asked, Ordering::Relaxed);
    asked
}

/// Where a filter may kill for `getpid`, the number is read: the loader has read files, too.
#[cold]
fn ask_pid() -> u32 {
    let read = if is_filtered() {
        // In each namespace of process ids from the reader's down: the last is our own.
        status_field(b"NSpid:").or_else(|| status_field(b"Pid:"))
    } else {
        None
    };
    read.map_or_else(|| sys::getpid() as u32, |pid| pid as u32)
}

/// The program has made a process.
static SPAWNED: AtomicBool = AtomicBool::new(false);
/// The program has called vfork or its kin, whose child runs our hooks in its parent's memory.
static VFORKED: AtomicBool = AtomicBool::new(false);

/// Before `vfork` and its kin.
pub fn before_spawn() {
    pid();
    SPAWNED.store(true, Ordering::Relaxed);
    VFORKED.store(true, Ordering::Relaxed);
    if ANY_FOR_EXEC.load(Ordering::Relaxed) && !is_vfork_child() {
        sock::for_all(|sock| {
            if sock.for_exec.load(Ordering::Relaxed) {
                life::give_up(sock, Reason::Exec);
            }
        });
    }
}

/// Some socket was to be kept over `exec`, by the program's word.
static ANY_FOR_EXEC: AtomicBool = AtomicBool::new(false);

/// The program has said whether a descriptor is to be there after `exec`. Most that could be there
/// are never looked at; of one of which it is said the new image knows the number.
pub fn kept_over_exec(entry: table::Entry, kept: bool) {
    let Some(sock) = entry.as_sock() else { return };
    if !is_vfork_child() {
        sock.for_exec.store(kept, Ordering::Relaxed);
        if kept {
            ANY_FOR_EXEC.store(true, Ordering::Relaxed);
        }
    } else if kept {
        // The table and the stream are the parent's.
        life::give_up(sock, Reason::Exec);
    }
}

/// Is this a `vfork` child, which runs in its parent's memory? A program that never calls
/// vfork is never asked for its process id: a system call that costs, and may not be allowed.
#[inline]
pub fn is_vfork_child() -> bool {
    if !VFORKED.load(Ordering::Relaxed) {
        return false;
    }
    sys::getpid() as u32 != pid()
}

/// Identity of this process, drawn at first use.
pub fn token() -> Option<Token> {
    let [a, b] = &TOKEN;
    if a.load(Ordering::Acquire) == 0 {
        let mut bytes = [0u8; 16];
        sys::random(&mut bytes).ok()?;
        let drawn = u128::from_le_bytes(bytes);
        b.store((drawn >> 64) as u64, Ordering::Relaxed);
        // Two threads may draw; the first one's lower half stands, and both halves are random.
        let _ = a.compare_exchange(0, drawn as u64 | 1, Ordering::AcqRel, Ordering::Acquire);
    }
    Some([a.load(Ordering::Acquire), b.load(Ordering::Acquire)])
}

/// Where [`token`] lies, for a peer that reads it out of this process's memory.
pub fn token_at() -> u64 {
    core::ptr::from_ref(&TOKEN) as usize as u64
}

/// Why this process may not upgrade at all, if so.
pub fn forbidden() -> Option<Reason> {
    match SANDBOXED.load(Ordering::Relaxed) {
        0 => None,
        reason => Some(Reason::from_u16(reason as u16).unwrap_or(Reason::Sandboxed)),
    }
}

/// From now on nothing is upgraded in this process.
pub fn forbid(reason: Reason) {
    SANDBOXED.store(reason as u32, Ordering::Relaxed);
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> libc::c_int;
}

/// Reads the settings and registers the fork handlers. Called by the constructor.
pub fn init() {
    if !crate::copies::works() {
        crate::rendezvous::loaded();
        return crate::config::tell_idle();
    }
    if crate::config::config().upgrade == crate::config::Upgrade::Off {
        sluice_stats::ROOT.set_off();
    }
    crate::trace::begin();
    thread::init();
    prefix::init();
    // SAFETY: three functions that live as long as the library, which is never unloaded.
    unsafe {
        pthread_atfork(
            Some(before_fork),
            Some(after_fork_parent),
            Some(after_fork_child),
        )
    };
    crate::rendezvous::loaded();
}

extern "C" fn before_fork() {
    pid();
    SPAWNED.store(true, Ordering::Relaxed);
    readiness::before_fork();
    life::track_fresh();
    crate::sockets::options::shares_listeners();
    control::hold();
    sock::for_all(|sock| {
        sock.was_inherited.store(true, Ordering::Relaxed);
        if let Some(family) = sock.family_or_take() {
            if !family.is_shared(pid()) {
                demote::keep_for_child(sock);
            }
            family.expect_child();
            if no_child_can_use(sock) {
                demote::demote(sock, Which::Both, Reason::Fork);
            }
        } else {
            sock.pin(Reason::Shared);
            demote::demote(sock, Which::Both, Reason::Shared);
        }
        // Relatives may change O_NONBLOCK: ask from now on.
        sock.forget_nonblocking();
    });
    // In the order in which they nest, each after all that may be done under it.
    readiness::hold();
    control::hold_last();
    report::hold();
}

/// A stream within the host that no child could take back to TCP: one that is not in use yet, for
/// which this process may get a ring that the child knows nothing of, and one to this process
/// itself, which would have to send again what the child takes, and whose control thread no child
/// can reach.
fn no_child_can_use(sock: &Sock) -> bool {
    let to_itself = sock.link().is_some_and(|link| link.twin().is_some());
    (to_itself || sock.tx.state() == State::Proved) && !crate::remote::is_remote(sock)
}

extern "C" fn after_fork_parent() {
    release();
}

/// On both sides: what was held over the fork is given back.
fn release() {
    report::release();
    control::release_last();
    readiness::release();
    control::release();
}

/// `fork` failed: no child holds the sockets.
pub fn fork_failed() {
    sock::for_all(|sock| {
        if let Some(family) = sock.family() {
            family.no_child();
        }
    });
}

extern "C" fn after_fork_child() {
    release();
    PID.store(0, Ordering::Relaxed);
    // Of what the parent has mapped, some need not be here (MADV_DONTFORK).
    caller::mappings_changed();
    let me = pid();
    FORKED.store(true, Ordering::Relaxed);
    EXITED.store(false, Ordering::Relaxed);
    for half in &TOKEN {
        half.store(0, Ordering::Relaxed);
    }
    lock::after_fork();
    sock::after_fork();
    relatives::after_fork();
    thread::after_fork();
    control::after_fork();
    crate::sockets::internal::after_fork();
    crate::uring::after_fork();
    sluice_stats::reset_after_fork(me);
    crate::trace::begin();
    for link in shm::all() {
        link.after_fork();
    }
    readiness::after_fork();
    report::after_fork();
    sock::for_all(|sock| {
        prefix::after_fork(sock);
        for half in [&sock.rx, &sock.tx] {
            inherit(half);
        }
        sock.polls.store(0, Ordering::Relaxed);
        if let Some(family) = sock.family() {
            family.born(me);
        }
        sluice_stats::adopt_conn(sock.conn());
        crate::sockets::remains::after_fork(sock);
        // The parent keeps it.
        sock.staged.forget();
        parting::disown(sock);
    });
    for link in shm::all() {
        if link.stream_count() == 0 {
            link.close_if_unused();
        }
    }
}

fn inherit(half: &Half) {
    half.lock.reset();
    half.calls
        .fetch_and(!((1 << CALL_BITS) - 1), Ordering::Relaxed);
    half.state.forked();
}

/// Under the rx lock: this process uses a stream of its parent.
pub fn inherited_rx(sock: &'static Sock) {
    if crate::remote::is_remote(sock) {
        return crate::remote::claim(sock, &sock.rx);
    }
    demote::settle_rx(sock, Reason::Fork);
}

/// Under the tx lock: this process uses a stream of its parent.
pub fn inherited_tx(sock: &'static Sock) {
    if crate::remote::is_remote(sock) {
        return crate::remote::claim(sock, &sock.tx);
    }
    demote::settle_tx(sock, Reason::Fork);
}

/// A use that does not move bytes: is the stream one of the parent's, which goes back to TCP now?
pub fn takes_back_inherited(sock: &'static Sock) -> bool {
    let inherited = sock.rx.state() == State::Inherited || sock.tx.state() == State::Inherited;
    if inherited {
        demote::demote(sock, Which::Both, Reason::Fork);
    }
    inherited
}

/// Before `exec*`: the new image finds every stream on TCP that it could use.
pub fn before_exec() {
    if is_vfork_child() {
        // Our parent's memory: it keeps its streams. What the child hands on at 0 to 2 goes back to
        // TCP.
        for fd in 0..=2 {
            hand_over(fd);
        }
        return;
    }
    let forked = FORKED.load(Ordering::Relaxed);
    EXECUTING.store(pid(), Ordering::SeqCst);
    sock::for_all(|sock| {
        sock.let_sections_end();
        let inherited = sock.rx.state() == State::Inherited || sock.tx.state() == State::Inherited;
        if forked && inherited && !is_for_new_image(sock) && !parent_closed(sock) {
            return;
        }
        demote::demote(sock, Which::Both, Reason::Exec);
        demote::finish_blocking(sock, Reason::Exec);
    });
    // What lies unread makes the kernel reset a connection that the new image does not get, and is
    // readable at once on one that it gets.
    sock::for_all(|sock| {
        crate::sockets::remains::await_all_owed(sock);
    });
    let me = pid();
    sock::for_all(|sock| {
        if is_for_new_image(sock)
            && let Some(family) = sock.family()
        {
            family.share_for_good();
        }
        sock.leave_family(me);
    });
    report::process_ends();
}

/// Will the new image use it, as far as known?
fn is_for_new_image(sock: &'static Sock) -> bool {
    sock.for_exec.load(Ordering::Relaxed) || stands_at_stdio(sock)
}

fn stands_at_stdio(sock: &'static Sock) -> bool {
    (0..=2).any(|fd| {
        table::lookup(fd)
            .and_then(table::Entry::as_sock)
            .is_some_and(|s| core::ptr::eq(s, sock))
    })
}

fn parent_closed(sock: &'static Sock) -> bool {
    sock.family().is_some_and(|f| !f.is_shared(pid()))
}

/// Is it about to execute another program? What is on a link then is lost to that.
pub fn is_executing() -> bool {
    EXECUTING.load(Ordering::SeqCst) == pid()
}

/// `exec*` failed: this image goes on.
pub fn exec_failed() {
    if is_vfork_child() {
        return;
    }
    let me = pid();
    sock::for_all(|sock| {
        if let Some(family) = sock.family() {
            family.join(me);
        }
    });
    // After that: a stream takes a family that this process is not in twice.
    EXECUTING.store(0, Ordering::SeqCst);
}

/// A new image will find `fd`: its stream goes back to TCP for good.
pub fn hand_over(fd: i32) {
    if let Some(sock) = table::lookup(fd).and_then(table::Entry::as_sock) {
        life::give_up(sock, Reason::Exec);
    }
}

/// The end was prepared: `_exit` after `exit` finds nothing to do.
static EXITED: AtomicBool = AtomicBool::new(false);

/// The process ends: every stream of its own goes back to TCP, and the kernel delivers the rest.
pub fn exiting() {
    if is_vfork_child() || EXITED.swap(true, Ordering::Relaxed) {
        return;
    }
    let mut ending: Vec<&'static Sock> = Vec::new();
    sock::for_all(|sock| {
        let own = |half: &Half| !matches!(half.state(), State::Plain | State::Inherited);
        let ours = own(&sock.rx) || own(&sock.tx);
        let far = ours && parting::part(sock, Reason::Exit);
        parting::reset_if_unread(sock, sock.fd.load(Ordering::Relaxed));
        if ours {
            parting::part_waiting(sock);
        }
        if far {
            ending.push(sock);
        }
        if let Some(family) = sock.family() {
            family.leave(pid());
        }
    });
    report::process_ends();
    // After all waits: other threads may go on until then.
    for sock in ending {
        end_before_record(sock, sock.fd.load(Ordering::Relaxed));
    }
}

/// The program sandboxes itself: streams go back to TCP for good, and the control thread ends.
pub fn sandboxed(reason: Reason) {
    if is_vfork_child() {
        return;
    }
    relatives::part();
    forbid(reason);
    sock::for_all(|sock| {
        life::give_up(sock, reason);
        crate::sockets::remains::call_in(sock);
        // The control thread, which would, is about to end.
        parting::bury(sock, true);
    });
    control::stop();
    crate::rendezvous::expect_nothing();
}

/// Before `unshare`, `setns`, `capset`, `prctl` that gives rights up, and raw calls that change
/// ids, which change the calling thread alone: another one, as the control thread, stays as it was.
/// Where there never was another one, all that are made later are what this one becomes, and
/// nothing stands in the way of links.
pub fn changes_itself(reason: Reason) {
    credentials::ids_change();
    relatives::part();
    let alone = thread::are_several() == Some(false)
        && !control::is_running()
        && !crate::rendezvous::is_meeting();
    if !alone {
        sandboxed(reason);
    }
    crate::rendezvous::diag::forget();
}

/// Before `prctl(PR_SET_NO_NEW_PRIVS)`, which many servers call when they have their threads, for
/// the calling one. The control thread, which executes nothing, does the same.
pub fn forgoes_privileges() {
    relatives::part();
    if !is_vfork_child() && !control::forgo_privileges() {
        sandboxed(Reason::Sandboxed);
    }
}

/// What is known of an inherited seccomp filter, one of the next four.
static FILTER: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
/// There is none, or it lets our calls pass or fail.
const FREE: u32 = 1;
/// It kills for one of our calls.
const FATAL: u32 = 2;
/// There is one, and no child may be made yet to try it.
const UNTRIED: u32 = 3;

/// Is there an inherited filter? Asked once, by calls that the loader made in this very process.
pub fn is_filtered() -> bool {
    let mut known = FILTER.load(Ordering::Relaxed);
    if known == UNKNOWN {
        known = if has_filter() { UNTRIED } else { FREE };
        FILTER.store(known, Ordering::Relaxed);
    }
    known != FREE
}

/// Is it known that no system call of ours is fatal: there is no inherited filter, or it has been
/// tried?
pub fn is_free() -> bool {
    FILTER.load(Ordering::Relaxed) == FREE || !is_filtered()
}

/// Is there a filter now, be it one that lets our calls pass?
pub fn has_filter() -> bool {
    status_field(b"Seccomp:").unwrap_or(0) != 0
}

/// Does the program make processes or threads? Then it may also be done for it.
fn makes_tasks() -> bool {
    SPAWNED.load(Ordering::Relaxed)
        || match thread::are_several() {
            Some(several) => several,
            None => status_field(b"Threads:").unwrap_or(1) > 1,
        }
}

/// May this process make system calls that the program itself perhaps never makes? A seccomp filter
/// that it has inherited may kill for one: then a child tries them all first.
pub fn may_use_system_calls() -> Result<(), Reason> {
    if is_free() {
        return Ok(());
    }
    // Making a child is itself a call that may be fatal, unless the program does such things.
    if FILTER.load(Ordering::Relaxed) == UNTRIED && makes_tasks() {
        let survived = filter::survives(&filter::OURS);
        FILTER.store(if survived { FREE } else { FATAL }, Ordering::Relaxed);
    }
    match FILTER.load(Ordering::Relaxed) {
        FREE => Ok(()),
        _ => Err(Reason::SeccompFatal),
    }
}

/// Must a wait be the program's own call, since another one may be fatal? Then there is no stream,
/// and none comes up during the wait: that takes a second thread, and with that the filter is
/// tried.
#[inline]
pub fn waits_by_itself() -> bool {
    FILTER.load(Ordering::Relaxed) != FREE && must_wait_by_itself()
}

#[cold]
fn must_wait_by_itself() -> bool {
    if is_filtered() && thread::are_several().is_none() && !makes_tasks() {
        // A C library that does not tell of threads: to ask before each wait costs too much.
        FILTER.store(FATAL, Ordering::Relaxed);
    }
    may_use_system_calls().is_err()
}

/// The last number of a line of /proc/self/status; hexadecimal for the capability sets.
fn status_field(name: &[u8]) -> Option<u64> {
    Status::own()?.number(name)
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
    let _low = crate::sockets::internal::Low::begin();
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

/// Before a fork that calls no handlers: `_Fork`, or a raw system call.
pub fn before_bare_fork() {
    before_fork();
}

/// After it, on both sides; a negative `pid`: it failed.
pub fn after_bare_fork(pid: libc::pid_t) {
    if pid == 0 {
        after_fork_child();
    } else {
        after_fork_parent();
        if pid < 0 {
            fork_failed();
        }
    }
}

/// Before `daemon()`: the process ends inside, its child goes on with the descriptors.
pub fn before_daemon() {
    sock::for_all(|sock| {
        if sock.is_accelerated() {
            demote::demote(sock, Which::Both, Reason::Fork);
            demote::finish_blocking(sock, Reason::Fork);
        }
    });
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
