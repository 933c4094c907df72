//! Meeting the other end of a connection: naming, proving, joining.
//!
//! Both ends try at the same stream offsets. The name is an abstract Unix socket called after the
//! inode of the connecting end's TCP socket. Whoever comes first binds, whoever comes second
//! connects; there are no roles.
//!
//! ```text
//!   first comer                                   second comer
//!   bind, listen (200 ms)
//!                                                  connect; is it the owner of my mirror?
//!                          ◄── Challenge ──
//!   accept; is it the owner of my mirror?
//!   Claim ──►
//!                                                  does it hold my mirror?
//!                          ◄── Claim ──
//!   does it hold my mirror?
//!   Reply (, arena) ──►
//!                          ◄── Joined ──
//!   attach                                         attach
//! ```
//!
//! Everything is non-blocking. There is no control thread until a process connects whose user owns
//! the other end: meetings move on in the hooks of the program's own calls, and the waits of a
//! process with a meeting under way are cut at its end. Once a control thread runs, it does all of
//! it.

mod ask;
mod bell;
mod closer;
pub mod control;
mod decline;
pub mod diag;
pub mod identity;
mod join;
pub mod message;
mod price;
pub mod trim;

use crate::process;
use crate::sockets::sock::{Sock, TELLS_AT, role};
use crate::sockets::{tcp, upgrade};
use closer::Way;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use diag::Mirror;
use identity::Claimant;
use message::{Kind, Message, Nonce, Sender, VERSION};
use sluice_fabric::lock::{self, Guarded};
use sluice_fabric::shm::{self, Link, Token};
use sluice_fabric::sys::{self, Fd};
use sluice_stats::{Reason, Role};

/// A name, and a meeting that has begun, live this long.
pub const NAME_NS: u64 = 200_000_000;
/// Names and meetings at once.
const PENDING_MAX: usize = 64;
/// Tries to connect to a name that was bound a moment ago and does not listen yet.
const CONNECT_TRIES: u32 = 3;

/// How far a meeting has come.
#[derive(Debug)]
enum Stage {
    /// First comer: the name is bound; only strangers have connected, and `sent_away` counts them.
    Named { sent_away: u32 },
    /// First comer: a process of the other end's owner has connected and has sent nothing.
    Greeted,
    /// First comer: Claim is out.
    Claimed,
    /// First comer: Reply is out, stream `index` of the link is given out.
    Replied(&'static Link, u32),
    /// Second comer: Challenge is out.
    Dialled,
    /// Second comer: the first, the process of this token, is believed, and Claim is out.
    Proved(Token),
    /// Second comer: the same, and the answer, which brings the arena, comes by another hand.
    Receiving(Fd, Token),
    /// Second comer: the first gives stream `index` of the link of this token, which another
    /// meeting of the two is about to bring.
    Promised(Token, u32),
    /// The name is given up; the question is kept by peers that were asked over a link.
    Asked,
    /// Stream `index` of the link was granted to the peer that had asked; it has not joined yet.
    Granted(&'static Link, u32),
}

/// A meeting under way.
#[derive(Debug)]
struct Pending {
    sock: &'static Sock,
    generation: u32,
    /// Inode of the connecting end's socket.
    key: u64,
    /// The other end, as the kernel names it.
    mirror: Mirror,
    /// What the peer has to repeat, so that what it says is not older than this meeting.
    nonce: Nonce,
    /// Why this end does not leave TCP: all that the other end is told.
    refuses: Option<Reason>,
    stage: Stage,
    /// The process that has connected, or that listens at the name.
    claimant: Option<Claimant>,
    /// The name, or the way to the visitor or the host; none once only links are left.
    socket: Option<Way>,
    deadline: u64,
    /// First comer: the link was made for this meeting, whose socket becomes its control socket.
    made_link: bool,
}

impl Pending {
    /// Peers with links were asked too.
    fn has_asked(&self) -> bool {
        self.deadline != u64::MAX && shm::all().any(|l| l.is_alive() && l.control().is_open())
            || matches!(self.stage, Stage::Asked)
    }

    /// Has it nothing that is worth to be kept when the connection looks again?
    fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Asked) || self.refuses.is_some()
    }

    fn raw(&self) -> i32 {
        self.socket.as_ref().map_or(-1, Way::raw)
    }

    /// Is the process that has come one that could stop this one by a signal just as well?
    fn is_with_same_user(&self) -> bool {
        let claimant = self.claimant.as_ref();
        claimant.is_some_and(Claimant::is_same_user)
    }
}

/// Notes how many meetings need looking after.
fn count_names(list: &[Pending]) {
    let names = list.iter().filter(|p| p.socket.is_some()).count();
    COUNT.store(names as u32, Ordering::Relaxed);
    TOTAL.store(list.len() as u32, Ordering::Relaxed);
    // In order: the list's lock is held.
    if names == 0 {
        BUSY.fetch_and(!NAMES, Ordering::Relaxed);
    } else {
        BUSY.fetch_or(NAMES, Ordering::Relaxed);
    }
}

/// Why hooks may have more to do than to call the real function, in one word: the library is not
/// loaded yet, or a meeting is under way ([`NAMES`]: `COUNT`, [`ASKED`]: `ASKED_UNTIL`).
static BUSY: AtomicU32 = AtomicU32::new(UNLOADED);
const NAMES: u32 = 1;
const ASKED: u32 = 2;
const UNLOADED: u32 = 4;

/// The library is loaded.
pub fn loaded() {
    BUSY.fetch_and(!UNLOADED, Ordering::Release);
}

/// 0: the library is loaded, and no meeting is under way.
#[inline(always)]
pub fn busy() -> u32 {
    BUSY.load(Ordering::Acquire)
}

static PENDING: Guarded<Vec<Pending>> = Guarded::of_order(lock::BEFORE_SOCKETS, Vec::new());
/// Meetings in `PENDING` that have a socket, to be read without the lock.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Length of `PENDING`.
static TOTAL: AtomicU32 = AtomicU32::new(0);

/// Is a meeting under way? Hooks move it on, the sooner the better, whether or not a control thread runs.
#[inline]
pub fn is_meeting() -> bool {
    BUSY.load(Ordering::Relaxed) & (NAMES | ASKED) != 0
}

/// Until when hooks look for answers over links, in ns; 0: nobody was asked lately.
static ASKED_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Somebody was asked, or granted a stream, over a link: for a while hooks read what comes back, as
/// they look after names, so that an answer does not wait for the control thread to be scheduled.
fn expect_answers() {
    ASKED_UNTIL.store(sys::now_ns() + NAME_NS, Ordering::SeqCst);
    BUSY.fetch_or(ASKED, Ordering::SeqCst);
}

/// No more answers are to be read, of this process. So hooks do not ask for the time any more, which is fatal under strict seccomp:
/// the kernel takes the processor's clock away with it.
pub fn expect_nothing() {
    ASKED_UNTIL.store(0, Ordering::SeqCst);
    BUSY.fetch_and(!ASKED, Ordering::SeqCst);
}

/// Is a meeting under way that only hooks move on? Then waits are cut at its end.
#[inline]
pub fn needs_hooks() -> bool {
    COUNT.load(Ordering::Relaxed) != 0 && !control::is_running()
}

/// Tries to upgrade `sock`, whose stream has come to one of the agreed offsets.
pub fn attempt(sock: &'static Sock) {
    if let Err(reason) = try_meet(sock) {
        crate::config::log(
            crate::config::Level::Debug,
            format_args!(
                "fd {} not upgraded: {}",
                sock.fd.load(Ordering::Relaxed),
                reason.words()
            ),
        );
        let conn = sock.conn();
        if !reason.is_end() || conn.is_undecided() {
            conn.stays(reason);
        }
    }
}

fn try_meet(sock: &'static Sock) -> Result<(), Reason> {
    let role = may_ask(sock)?;
    let _low = crate::sockets::internal::Low::begin();
    let Some((look, own)) = look_for_peer(sock, role)? else {
        return Ok(());
    };
    if let Some(reason) = look.refuses {
        decline::tell(look, own);
        return Err(reason);
    }
    // Not after a first try in vain, or a demotion: their reason holds until there is another.
    sock.conn()
        .awaits_after(Reason::BelowThreshold, Reason::Meeting);
    let Some(mut list) = PENDING.lock() else {
        return Err(Reason::TooManyNames);
    };
    if sock.link().is_some() || sock.is_accelerated() {
        // Another thread has just attached a stream.
        return Ok(());
    }
    drop_expired(&mut list);
    meet(look, own, &mut list)
}

/// May this process ask the kernel for the other end of the connection? Which end this one is.
fn may_ask(sock: &Sock) -> Result<Role, Reason> {
    let role = match sock.role.load(Ordering::Relaxed) {
        role::CONNECTING => Role::Connecting,
        role::ACCEPTED => Role::Accepted,
        _ => return Err(Reason::NotHooked),
    };
    let forbidden = process::forbidden().or(process::may_use_system_calls().err());
    let Some(reason) = forbidden else {
        return Ok(role);
    };
    if matches!(reason, Reason::Sandboxed | Reason::SeccompFatal) {
        // Not even the names may be asked for; `sluice stat` shows the connection all the same.
        let unknown = SocketAddr::from(([0; 4], 0));
        let fd = sock.fd.load(Ordering::Relaxed);
        sock.conn().describe(fd, role, unknown, unknown);
    }
    Err(reason)
}

/// Finds the socket at the other end, with the inode of this one. `None`: it is on another host,
/// where the control thread looks for it.
fn look_for_peer(sock: &'static Sock, role: Role) -> Result<Option<(Look, u64)>, Reason> {
    let generation = sock.generation.load(Ordering::Acquire);
    let fd = sock.fd.load(Ordering::Relaxed);
    let (Some(local), Some(peer)) = (diag::name(fd, false), diag::name(fd, true)) else {
        return Err(Reason::NotEstablished);
    };
    sock.conn().describe(fd, role, local, peer);
    let user = upgrade::ask_user(sock, local, peer).err();
    let shared = sock.is_shared().then_some(Reason::Shared);
    let mut refuses = sock.pinned().or(shared).or(user);
    if let Some(reason) = refuses.filter(|_| sock.offset() < TELLS_AT) {
        return Err(reason);
    }
    let looks = match role {
        Role::Connecting => diag::Looks::Twice,
        Role::Accepted => diag::Looks::Once,
    };
    let mirror = match (diag::mirror(local, peer, looks), refuses) {
        (Ok(mirror), _) => mirror,
        (Err(_), Some(why)) => return Err(why),
        (Err(Reason::PeerRemote), None) => {
            return crate::remote::attempt(sock, local, peer).map(|()| None);
        }
        (Err(reason), None) => return Err(reason),
    };
    refuses = refuses.or(process::may_share_memory().err());
    let own = sys::fstat(fd).map_err(|_| Reason::NotEstablished)?.st_ino;
    let key = match role {
        Role::Connecting => own,
        Role::Accepted => mirror.inode,
    };
    sock.key.store(key, Ordering::Relaxed);
    sock.set_mirror(mirror);
    let nonce = identity::nonce()?;
    let look = Look {
        of: (sock, generation),
        key,
        mirror,
        nonce,
        refuses,
    };
    Ok(Some((look, own)))
}

/// Comes to the other end by the shortest way that there is: within this process, by a link, or by
/// a name.
fn meet(look: Look, own: u64, list: &mut Vec<Pending>) -> Result<(), Reason> {
    let (sock, _) = look.of;
    if let Some(at) = list.iter().position(|p| core::ptr::eq(p.sock, sock)) {
        if !list.get(at).is_some_and(Pending::is_idle) {
            return Ok(());
        }
        // Nobody has answered so far, or this end would have refused: everything anew.
        list.swap_remove(at);
    } else if sock.retry_step.load(Ordering::Relaxed) != 0
        && let Some(other) = upgrade::demoted(look.key, own)
    {
        // The other end is in this process.
        return join::pair_within(other, look.of);
    } else if ask::ask_again(look, own) {
        expect_answers();
        return enlist(look.waiting(), list);
    }
    if let Some(at) = list
        .iter()
        .position(|p| p.key == look.key && matches!(p.stage, Stage::Named { .. }))
    {
        // The other end is in this process.
        let other = list.swap_remove(at);
        count_names(list);
        if other.sock.generation.load(Ordering::Acquire) != other.generation {
            return Err(Reason::PeerClosed);
        }
        if let Some(reason) = other.refuses {
            sock.conn().stays_for_peer(reason);
            return Ok(());
        }
        return join::pair_within((other.sock, other.generation), look.of);
    }
    if let Some(granted) = ask::answer(look) {
        expect_answers();
        return enlist(granted, list);
    }
    let asked = ask::ask(look, own);
    if asked {
        expect_answers();
    }
    let has_room = (COUNT.load(Ordering::Relaxed) as usize) < PENDING_MAX;
    match has_room.then(|| first_or_second(look)) {
        Some(Ok(meeting)) => {
            if control::is_running() {
                control::watch_meeting(meeting.raw());
            }
            enlist(meeting, list)
        }
        _ if asked => enlist(look.waiting(), list),
        Some(Err(reason)) => Err(reason),
        None => {
            ask::in_vain(look);
            Err(Reason::TooManyNames)
        }
    }
}

fn enlist(meeting: Pending, list: &mut Vec<Pending>) -> Result<(), Reason> {
    list.push(meeting);
    count_names(list);
    Ok(())
}

/// The search of a connection for its peer.
#[derive(Clone, Copy)]
struct Look {
    /// The socket, and its generation.
    of: (&'static Sock, u32),
    /// See [`Pending::key`].
    key: u64,
    /// See [`Pending::mirror`].
    mirror: Mirror,
    /// See [`Pending::nonce`].
    nonce: Nonce,
    /// See [`Pending::refuses`].
    refuses: Option<Reason>,
}

impl Look {
    /// Has not come to an end, and has a time limit only with a socket.
    fn at(self, stage: Stage, socket: Option<Way>) -> Pending {
        let (sock, generation) = self.of;
        let deadline = match &socket {
            Some(_) => sys::now_ns() + NAME_NS,
            None => u64::MAX,
        };
        Pending {
            sock,
            generation,
            key: self.key,
            mirror: self.mirror,
            nonce: self.nonce,
            refuses: self.refuses,
            stage,
            claimant: None,
            socket,
            deadline,
            made_link: false,
        }
    }

    /// Waits for a peer that was asked over a link.
    fn waiting(self) -> Pending {
        self.at(Stage::Asked, None)
    }
}

impl Pending {
    /// The same search.
    fn look(&self) -> Look {
        Look {
            of: (self.sock, self.generation),
            key: self.key,
            mirror: self.mirror,
            nonce: self.nonce,
            refuses: self.refuses,
        }
    }
}

/// The abstract address of a connection.
fn address(key: u64) -> (libc::sockaddr_un, usize) {
    use std::io::Write;
    // SAFETY: zeroes are a valid address.
    let mut addr: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let mut name = [0u8; 64];
    let mut rest = name.as_mut_slice();
    let _ = write!(rest, "sluice/{VERSION}/{key:x}");
    let len = 64 - rest.len();
    // The first byte stays 0: an abstract name.
    for (to, from) in addr.sun_path.iter_mut().skip(1).zip(name.iter().take(len)) {
        *to = *from as libc::c_char;
    }
    (addr, size_of::<libc::sa_family_t>() + 1 + len)
}

/// Binds the name, or connects to the process that has bound it and sends a Challenge, or why not.
fn first_or_second(look: Look) -> Result<Pending, Reason> {
    let (addr, len) = address(look.key);
    for _ in 0..CONNECT_TRIES {
        let socket = own_socket()?;
        if sys::bind(socket.raw(), &addr, len).is_ok() {
            sys::listen(socket.raw(), 1).map_err(|_| Reason::NameTaken)?;
            return Ok(look.at(Stage::Named { sent_away: 0 }, Some(socket)));
        }
        // Bound by somebody: a new socket, since a failed bind leaves nothing behind, can connect.
        match sys::connect(socket.raw(), &addr, len) {
            Ok(()) => {
                let claimant = Claimant::behind(socket.raw(), look.mirror)?;
                let first = look.refuses.map_or(
                    Message {
                        nonce: look.nonce,
                        ..Message::new(Kind::Challenge)
                    },
                    decline::message,
                );
                message::send(socket.raw(), &first, None).map_err(|_| Reason::NameTaken)?;
                let mut meeting = look.at(Stage::Dialled, Some(socket));
                meeting.claimant = Some(claimant);
                return Ok(meeting);
            }
            // Bound and not listening yet, or gone meanwhile.
            Err(libc::ECONNREFUSED) => {}
            Err(_) => return Err(Reason::NameTaken),
        }
    }
    Err(Reason::NameTaken)
}

fn own_socket() -> Result<Way, Reason> {
    let socket =
        sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).map_err(|_| Reason::DescriptorLimit)?;
    let socket = crate::sockets::internal::lift(socket).ok_or(Reason::DescriptorLimit)?;
    identity::prepare(socket.raw())?;
    Ok(Way::new(socket))
}

/// A hook looks after the meetings no more often than this, in ns.
const LOOK_NS: u64 = 20_000;

/// From hooks: moves meetings on, unless that was done a moment ago.
#[cold]
pub fn progress_soon() {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = sys::now_ns();
    let next = NEXT.load(Ordering::Relaxed);
    if now >= next
        && NEXT
            .compare_exchange(next, now + LOOK_NS, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    {
        let until = ASKED_UNTIL.load(Ordering::Relaxed);
        if until != 0 && control::is_running() {
            control::read_links();
            if now > until {
                // The flag first: whoever asks anew meanwhile has changed the time by then, or sets the
                // flag later.
                BUSY.fetch_and(!ASKED, Ordering::SeqCst);
                if ASKED_UNTIL
                    .compare_exchange(until, 0, Ordering::SeqCst, Ordering::SeqCst)
                    .is_err()
                {
                    BUSY.fetch_or(ASKED, Ordering::SeqCst);
                }
            }
        }
        if COUNT.load(Ordering::Relaxed) != 0 {
            progress();
        }
    }
}

/// Moves all meetings on as far as they go without waiting.
#[cold]
pub fn progress() {
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    let _low = crate::sockets::internal::Low::begin();
    let mut index = 0;
    while let Some(meeting) = list.get_mut(index) {
        if meeting.socket.is_none() {
            index += 1;
            continue;
        }
        match join::step(meeting) {
            join::Step::Waits if sys::now_ns() < meeting.deadline => index += 1,
            join::Step::Waits => expire(&mut list, index),
            join::Step::Over(reason) => {
                let meeting = list.swap_remove(index);
                if let Some(reason) = reason {
                    give_up(meeting, reason);
                }
            }
            join::Step::Declined(reason) => {
                let meeting = list.swap_remove(index);
                decline::heard(meeting, reason);
            }
            join::Step::Link(link) => {
                // The socket of this meeting is the link's control socket from now on.
                let meeting = list.swap_remove(index);
                let _ = (meeting.socket.map(Way::release), link);
                // Meetings before it in the list may have waited for this link.
                index = 0;
            }
        }
    }
    count_names(&list);
}

fn drop_expired(list: &mut Vec<Pending>) {
    let now = sys::now_ns();
    let mut index = 0;
    while let Some(meeting) = list.get(index) {
        let stale = meeting.sock.generation.load(Ordering::Acquire) != meeting.generation;
        if stale {
            let meeting = list.swap_remove(index);
            give_up(meeting, Reason::Close);
        } else if meeting.deadline <= now {
            expire(list, index);
        } else {
            index += 1;
        }
    }
    count_names(list);
}

/// The time of a meeting is over. Peers that were asked over links may still answer; a name or a visitor's
/// socket is given up.
fn expire(list: &mut Vec<Pending>, index: usize) {
    let meeting = list.swap_remove(index);
    let look = meeting.look();
    let reason = match meeting.stage {
        Stage::Named { sent_away: 1.. } => Reason::PeerOwner,
        _ => Reason::NoAnswer,
    };
    let is_current = meeting.generation == meeting.sock.generation.load(Ordering::Acquire);
    let asked = meeting.refuses.is_none() && meeting.has_asked() && is_current;
    give_up(meeting, reason);
    if asked {
        // The other end may have asked meanwhile.
        list.push(ask::answer(look).unwrap_or_else(|| look.waiting()));
    } else {
        ask::in_vain(look);
    }
}

/// Has the other end shut its half down, or closed? What it claims to hold may be gone then.
fn is_half_closed(sock: &Sock) -> bool {
    tcp::state(sock.fd.load(Ordering::Relaxed)) != Some(tcp::ESTABLISHED)
}

fn give_up(meeting: Pending, reason: Reason) {
    let reason = match reason {
        Reason::ProofFailed if is_half_closed(meeting.sock) => Reason::NotEstablished,
        _ => reason,
    };
    if let Some(conn) = end(meeting) {
        conn.stays(reason);
    }
}

/// A meeting is over; its connection, if that is still there and this end would have left TCP.
fn end(meeting: Pending) -> Option<&'static sluice_stats::Conn> {
    if let Stage::Replied(link, index) | Stage::Granted(link, index) = meeting.stage {
        abandon(link, index);
    }
    let sock = meeting.sock;
    let is_current = sock.generation.load(Ordering::Acquire) == meeting.generation;
    // The end of the connection is none.
    let has_own_reason =
        meeting.refuses.is_some() || sock.pinned().is_some_and(|reason| !reason.is_end());
    (is_current && !has_own_reason).then(|| sock.conn())
}

/// A stream was given out and nobody joined it.
fn abandon(link: &'static Link, index: u32) {
    if link.owner(index) != 0 {
        link.leave_stream(index);
        trim::returned(link);
    }
    if !link.control().is_open() && link.twin().is_none() {
        // A new link whose peer never confirmed it.
        discard(link);
    }
}

/// A new link comes to nothing.
fn discard(link: &'static Link) {
    if link.kill() {
        sluice_stats::ROOT.links.lower(1);
    }
    link.close_if_unused();
}

/// The control thread has come up: it moves on what hooks have begun.
pub fn hand_over_to_control() {
    if let Some(list) = PENDING.lock() {
        for meeting in list.iter() {
            if meeting.socket.is_some() {
                control::watch_meeting(meeting.raw());
            }
        }
    }
}

/// The socket is closed: its meetings end.
pub fn forget(sock: &'static Sock) {
    if TOTAL.load(Ordering::Relaxed) == 0 {
        return;
    }
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    let mut index = 0;
    while let Some(meeting) = list.get(index) {
        if core::ptr::eq(meeting.sock, sock) {
            let meeting = list.swap_remove(index);
            if let Stage::Replied(link, stream) | Stage::Granted(link, stream) = meeting.stage {
                abandon(link, stream);
            }
        } else {
            index += 1;
        }
    }
    count_names(&list);
}

/// Time left of the meeting that ends first, and the sockets to wait on; for hooks that wait.
pub fn watched(mut each: impl FnMut(i32)) -> Option<u64> {
    let list = PENDING.lock()?;
    let now = sys::now_ns();
    list.iter()
        .filter(|p| p.socket.is_some())
        .map(|p| {
            each(p.raw());
            p.deadline.saturating_sub(now)
        })
        .min()
}

/// A record of a meeting has come over a link.
pub fn on_link_record(link: &'static Link, message: &Message, sender: Option<Sender>) {
    match message.kind {
        Kind::Ask => ask::on_ask(link, message, sender),
        Kind::Grant => ask::on_grant(link, message, sender),
        Kind::Joined => ask::on_joined(link, message, sender),
        _ => ask::on_declined(link, message, sender),
    }
}

/// The control socket of a link is about to be closed: what lies unread in it, with descriptors
/// perhaps, is closed where nobody waits.
fn empty(control: i32) {
    let _ = sys::shutdown(control, libc::SHUT_RD);
    if closer::has_unread(control)
        && let Some(copy) = crate::sockets::internal::copy(control)
    {
        closer::let_go(copy);
    }
}

/// A link has come up.
pub fn on_link_up(link: &'static Link) {
    ask::ask_all(link);
}

/// The link is gone.
pub fn on_link_lost(link: &'static Link) {
    ask::lost(link);
}

/// Holds the lists of meetings still over a fork.
pub fn hold() {
    PENDING.hold();
    ask::hold();
}

/// After the fork, on both sides.
pub fn release() {
    ask::release();
    PENDING.release();
}

/// What is locked last of all.
pub fn hold_last() {
    join::hold();
    closer::hold();
}

/// Of [`hold_last`].
pub fn release_last() {
    closer::release();
    join::release();
}

/// In the child of a fork: the meetings are the parent's.
pub fn after_fork() {
    if let Some(mut list) = PENDING.lock() {
        // Closes the child's copies of the sockets only. Streams given out belong to the parent's links.
        for meeting in list.drain(..) {
            if let Some(way) = meeting.socket {
                way.close_copy();
            }
        }
    }
    COUNT.store(0, Ordering::Relaxed);
    TOTAL.store(0, Ordering::Relaxed);
    ASKED_UNTIL.store(0, Ordering::Relaxed);
    BUSY.fetch_and(UNLOADED, Ordering::Relaxed);
    ask::after_fork();
    closer::after_fork();
    trim::after_fork();
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_fabric::arena::Arena;
    use sluice_fabric::shm::LinkEnd;

    fn new_link() -> &'static Link {
        Link::open(LinkEnd {
            arena: Arena::create_local().unwrap(),
            side: 0,
            control: None,
            token: [1, 2],
            peer: None,
            can_pull: false,
            can_discard: false,
        })
        .unwrap()
    }

    #[test]
    fn a_new_link_goes_with_the_last_of_its_meetings() {
        let link = new_link();
        let first = link.give_stream(4096, 1).unwrap();
        let second = link.give_stream(4096, 1).unwrap();
        abandon(link, first);
        assert!(link.is_open() && !link.is_alive());
        abandon(link, second);
        assert!(!link.is_open());
    }

    #[test]
    fn a_link_given_up_before_its_control_socket_came_closes_it() {
        let link = new_link();
        link.give_stream(4096, 0).unwrap();
        assert!(link.kill());
        let (near, _) = sys::doorbell().unwrap();
        link.control().offer(near).unwrap();
        control::lost(link);
        assert!(!link.control().is_open(), "its end would be told for ever");
    }
}
