//! Meetings: the two ends of a TCP connection find each other, prove that they hold that
//! connection, and join one stream of a link.
//!
//! Within a host they meet at a *name*: an abstract Unix socket called after the inode of the
//! connecting end's TCP socket. Both ends try at the same stream offsets. The end that comes first
//! binds the name, the second connects to it. Two processes that have a link already ask over that
//! (`ask.rs`), and other hosts are met over RDMA (`hosts/`).
//!
//! An end's *mirror* is the other end's TCP socket as this host's kernel names it, by inode and
//! owner.
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
//! Nothing here blocks. The control thread starts only when a process has connected to the name of
//! one that runs as the owner of the other end. Before that the hooks move meetings on, within the
//! program's own calls, and no wait of the program lasts longer than a meeting under way. Once the
//! control thread runs, it moves them on, too.

mod ask;
mod bell;
mod closer;
pub mod control;
mod decline;
pub mod diag;
pub mod hosts;
pub mod identity;
mod join;
mod meetings;
pub mod message;
mod names;
mod price;
mod watch;

use closer::Way;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use meetings::{Look, Meetings, PENDING, Pending, Stage};
pub use meetings::{expect_nothing, needs_hooks};
use message::{Kind, Message, Sender};
use sluice_fabric::lock::OverFork;
use sluice_fabric::shm::{self, Link};
use sluice_fabric::sys;
use sluice_runtime::{address, control_thread, own_fds, rights, seccomp};
use sluice_sockets::meeting::{self, Effort, Finder};
use sluice_sockets::socket::{Socket, TELLS_AT, role};
use sluice_sockets::{inodes, jobs, tcp, tell, trigger, trim, upgrade};
use sluice_stats::{Reason, Role};

/// A meeting by name is given up after this time, with or without a visitor.
pub(crate) const NAME_NS: u64 = 200_000_000;
/// Meetings with a socket of their own at once.
const PENDING_MAX: usize = 64;

/// Gives the sockets the functions by which they look for their other ends.
pub fn offer() {
    control_thread::served_by(control::serve);
    meeting::found_by(Finder {
        attempt,
        settle,
        forget,
        seek: |sock, generation| {
            let _turn = own_fds::Turn::begin();
            hosts::begin(sock, generation);
        },
    });
}

/// Looks for the other end of `sock`. If there is no upgrade, notes the reason in its counters.
pub fn attempt(sock: &'static Socket, effort: Effort) {
    if let Err(reason) = try_meet(sock, effort) {
        sluice_runtime::config::log(
            sluice_runtime::config::Level::Debug,
            format_args!(
                "fd {} not upgraded: {}",
                sock.fd.load(Ordering::Relaxed),
                reason.words()
            ),
        );
        if reason == Reason::NotEstablished {
            trigger::when_answered(sock);
        }
        let conn = sock.conn();
        if !reason.is_end() || conn.is_undecided() {
            conn.stays(reason);
        }
    }
}

fn try_meet(sock: &'static Socket, effort: Effort) -> Result<(), Reason> {
    may_ask(sock)?;
    if !may_meet_here() {
        return Err(Reason::WriterBlocked);
    }
    let goes_on = || {
        let list = PENDING.lock();
        list.is_none_or(|list| list.of(sock).is_some_and(|p| p.goes_on_for(effort)))
    };
    if goes_on() {
        return Ok(());
    }
    if effort > Effort::Look && meeting::has_links() {
        // The other end may have asked a moment ago.
        control::read_links();
        if sock.link().is_some() || goes_on() {
            return Ok(());
        }
    }
    let _low = sluice_runtime::own_fds::Low::begin();
    let Some((look, arrived)) = look_within(sock, Some(effort))? else {
        return Ok(());
    };
    if let Some(reason) = look.refuses {
        decline::tell(look);
        return Err(reason);
    }
    let Some(mut list) = PENDING.lock() else {
        return Err(Reason::TooManyNames);
    };
    move_on(&mut list);
    if sock.link().is_some() || sock.is_accelerated() {
        // One of these meetings was this connection's, or another thread has attached a stream.
        return Ok(());
    }
    meet(look, effort, &mut list, arrived)
}

/// True if a meeting may be moved on in this call. That may start the control thread, and
/// pthread_create must not be called in a signal handler.
fn may_meet_here() -> bool {
    control_thread::is_running() || !sluice_runtime::in_handler::is_in_handler()
}

/// Which end of the connection this is, or why this process may not ask the kernel for the other.
fn may_ask(sock: &Socket) -> Result<Role, Reason> {
    let role = match sock.role.load(Ordering::Relaxed) {
        role::CONNECTING => Role::Connecting,
        role::ACCEPTED => Role::Accepted,
        _ => return Err(Reason::NotHooked),
    };
    let forbidden = rights::forbidden().or(seccomp::may_use_system_calls().err());
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

/// Finds the mirror of `sock` for a peer that has asked for this end. `None`: the other end is on
/// another host.
fn look(sock: &'static Socket) -> Result<Option<Look>, Reason> {
    let _low = sluice_runtime::own_fds::Low::begin();
    Ok(look_within(sock, None)?.map(|(look, _)| look))
}

/// Finds the mirror of `sock`, if that costs no more than `effort`. With it comes the socket that
/// has connected to the other end's name, if one has.
///
/// `None`: it would cost more, or no process waits at the name, or the other end is on another host
/// and the control thread looks for it.
fn look_within(
    sock: &'static Socket,
    effort: Option<Effort>,
) -> Result<Option<(Look, Option<Way>)>, Reason> {
    let role = may_ask(sock)?;
    let generation = sock.generation.load(Ordering::Acquire);
    let (local, peer) = describe(sock, role)?;
    if effort == Some(Effort::Look)
        && diag::is_on_this_host(local, peer)
        && trigger::will_ask(sock)
        && ask::can_ask()
    {
        return Ok(None);
    }
    let user = upgrade::ask_user(sock, local, peer).err();
    let shared = sock.is_shared().then_some(Reason::Shared);
    let mut refuses = sock.pinned().or(shared).or(user);
    if let Some(reason) = refuses.filter(|_| effort.is_some() && sock.offset() < TELLS_AT) {
        return Err(reason);
    }
    // To ask another host over a link costs nothing like a search.
    let asks_host = sluice_transport::links::are_driven() && !diag::is_on_this_host(local, peer);
    if effort.is_some_and(|effort| !asks_host && !trigger::may_spend(sock, effort)) {
        return Ok(None);
    }
    let mut arrived = None;
    if effort == Some(Effort::Look)
        && role == Role::Connecting
        && local.ip() == peer.ip()
        && refuses.is_none()
    {
        // The other end is on this host, and the name is known without asking the kernel: the
        // connecting end's own inode. Whether a process waits there costs one `connect`.
        let own = inodes::of(sock).ok_or(Reason::NotEstablished)?;
        if !ask::is_asked_for(own) {
            arrived = names::come_to(own)?;
            if arrived.is_none() {
                return Ok(None);
            }
        }
    }
    let looks = match role {
        Role::Connecting => diag::Looks::Twice,
        Role::Accepted => diag::Looks::Once,
    };
    let mirror = match (diag::mirror(local, peer, looks), refuses) {
        (Ok(mirror), _) => mirror,
        (Err(_), Some(why)) => return Err(why),
        (Err(Reason::PeerRemote), None) => {
            // Over a link to another host the accepted end asks.
            let looks = matches!(effort, Some(Effort::Look | Effort::Name))
                || effort == Some(Effort::Ask) && asks_host && role == Role::Accepted;
            if looks && sock.offset() >= trigger::first_far_try() {
                hosts::attempt(sock, local, peer)?;
            }
            return Ok(None);
        }
        (Err(reason), None) => return Err(reason),
    };
    refuses = refuses.or(rights::may_share_memory().err());
    let own = inodes::of(sock).ok_or(Reason::NotEstablished)?;
    let key = match role {
        Role::Connecting => own,
        Role::Accepted => mirror.inode,
    };
    sock.key.store(key, Ordering::Relaxed);
    sock.mirror.store(mirror.inode, Ordering::Relaxed);
    let look = Look {
        sock,
        generation,
        key,
        own,
        mirror,
        nonce: identity::nonce()?,
        refuses,
    };
    Ok(Some((look, arrived)))
}

/// The local and the peer's address of the connection, which also go into its counters.
fn describe(sock: &Socket, role: Role) -> Result<(SocketAddr, SocketAddr), Reason> {
    let fd = sock.fd.load(Ordering::Relaxed);
    let (local, peer) = match sock.addresses() {
        Some(known) => known,
        None => address::name(fd, false)
            .zip(address::name(fd, true))
            .ok_or(Reason::NotEstablished)?,
    };
    sock.conn().describe(fd, role, local, peer);
    Ok((local, peer))
}

/// Begins a meeting by the shortest way that there is: within this process, over a link, or by a
/// name. `arrived` is a socket that is connected to the other end's name already.
fn meet(
    mut look: Look,
    effort: Effort,
    list: &mut Meetings,
    arrived: Option<Way>,
) -> Result<(), Reason> {
    let sock = look.sock;
    if let Some(earlier) = list.of(sock) {
        if !earlier.is_idle() || effort != Effort::Name {
            return Ok(());
        }
        // The earlier meeting has got no answer so far. One that still comes repeats its nonce, so
        // the new meeting keeps that.
        look.nonce = earlier.nonce;
        list.take(sock);
    }
    if let Some(other) = list.take_by_key(look.key, |p| p.is_other_end_of(&look)) {
        if !other.is_current() {
            return Err(Reason::PeerClosed);
        }
        if let Some(reason) = other.refuses {
            sock.conn().stays_for_peer(reason);
            return Ok(());
        }
        return join::pair_within((other.sock, other.generation), (sock, look.generation));
    }
    if let Some(granted) = ask::answer(look) {
        return begin(granted, list);
    }
    if effort <= Effort::Answer {
        let meeting = match arrived {
            Some(way) => Some(names::greet(look, way)?),
            None => names::visit(look)?,
        };
        return meeting.map_or(Ok(()), |meeting| begin(meeting, list));
    }
    if let Some(other) = inodes::find(look.mirror.inode) {
        return meet_within(other, look, list);
    }
    if !sock.has_asked.swap(true, Ordering::Relaxed) {
        if let Some(link) = ask::ask(look, 0) {
            return begin(look.at(Stage::Asked(Some(link), 1), None), list);
        }
        trigger::has_asked_in_vain(sock);
    }
    match effort {
        Effort::Name if make_room(list) => begin(names::first_or_second(look)?, list),
        Effort::Name => Err(Reason::TooManyNames),
        _ => Ok(()),
    }
}

/// Meets an end in this process that does not look for its peer.
fn meet_within(
    other: (&'static Socket, u32),
    look: Look,
    list: &mut Meetings,
) -> Result<(), Reason> {
    let (sock, _) = other;
    if let Some(reason) = sock.pinned() {
        look.sock.conn().stays_for_peer(reason);
        return Ok(());
    }
    let [role, other_role] = [look.sock, sock].map(|sock| sock.role.load(Ordering::Relaxed));
    // Simultaneous open: both ends are connecting ones and have no common key. They stay on TCP.
    if sock.link().is_some() || sock.is_accelerated() || role == other_role {
        return Ok(());
    }
    if sock.offset() == 0 {
        trigger::when_used(sock);
        return begin(look.at(Stage::Asked(None, 0), None), list);
    }
    join::pair_within(other, (look.sock, look.generation))
}

/// Enters a meeting that has begun.
fn begin(meeting: Pending, list: &mut Meetings) -> Result<(), Reason> {
    // The shown reason changes only if it is "below the threshold": one of an earlier try or of a
    // demotion stays until there is a new one.
    let conn = meeting.sock.conn();
    conn.awaits_after(Reason::BelowThreshold, Reason::Meeting);
    enlist(meeting, list);
    Ok(())
}

fn enlist(meeting: Pending, list: &mut Meetings) {
    if meeting.socket.is_some() {
        watch::enter(meeting.raw());
        if meetings::with_sockets() == 0 {
            // The control thread must wake up when this meeting's time is over.
            control_thread::poke();
        }
    }
    list.add(meeting);
}

/// Shortest life of a name before another may take its place, in ns.
const LEAST_NS: u64 = 2_000_000;

/// Makes room for one more name, or returns false. With all places taken, the oldest name without a
/// visitor is given up: peers without the library must not keep others out.
fn make_room(list: &mut Meetings) -> bool {
    if meetings::with_sockets() < PENDING_MAX {
        return true;
    }
    let is_name = |p: &&Pending| matches!(p.stage, Stage::Named { .. });
    let names = list.with_socket().filter(is_name);
    let Some(oldest) = names.min_by_key(|p| p.deadline) else {
        return false;
    };
    if oldest.deadline + LEAST_NS > sys::now_ns() + NAME_NS {
        return false;
    }
    let sock = oldest.sock;
    if let Some(oldest) = list.take(sock) {
        expire(oldest);
    }
    true
}

/// Called by hooks: moves meetings on, unless that was done a moment ago.
#[cold]
pub fn progress_soon() {
    let now = sys::now_ns();
    if meetings::is_time_to_look(now) {
        if meetings::awaits_answers(now) && control_thread::is_running() {
            control::read_links();
        }
        progress();
    }
}

/// The time between two looks at a meeting that a call waits for, in ns.
const STEP_NS: u64 = 20_000;

/// Longest wait of a writer for the consent of its reader, in ns. A reader that sleeps consents
/// when the next bytes have woken it.
const CONSENT_NS: u64 = 100_000;

/// Waits for the meeting of `sock`: at most until `comes_until` for the other end to come to the
/// name, at most until `until` for the meeting to end, and then briefly for the reader's consent.
/// False: the other end has not come; `None`: it is this process's, and cannot come while this
/// thread waits.
fn settle(sock: &'static Socket, until: u64, comes_until: u64) -> Option<bool> {
    let mut consent_until = 0;
    loop {
        progress();
        let has_begun = PENDING
            .lock()
            .and_then(|list| list.of(sock).map(Pending::has_begun));
        let now = sys::now_ns();
        let waits = match has_begun {
            Some(Some(true)) => now < until,
            Some(Some(false)) => now < comes_until,
            Some(None) => false,
            None => {
                if consent_until == 0 {
                    consent_until = until.min(now + CONSENT_NS);
                }
                upgrade::awaits_consent(sock) && now < consent_until
            }
        };
        if !waits {
            return has_begun.unwrap_or(Some(true));
        }
        watch::wait(STEP_NS);
    }
}

/// Moves all meetings on as far as they go without waiting.
#[cold]
pub fn progress() {
    if meetings::with_sockets() == 0 || !may_meet_here() {
        return;
    }
    let Some(mut list) = PENDING.lock() else {
        return;
    };
    let _low = sluice_runtime::own_fds::Low::begin();
    move_on(&mut list);
}

/// Moves on the meetings in `list`. Those that have news are served before any is given up.
fn move_on(list: &mut Meetings) {
    if meetings::with_sockets() != 0 {
        let ready = watch::Ready::now();
        // A meeting may wait for the link that another one makes.
        while step_all(list, &ready) {}
        if meetings::are_none() && !meeting::has_links() {
            keep_nothing();
        }
    }
}

/// Closes the descriptors that are kept open for meetings to come.
pub fn keep_nothing() {
    watch::close();
    diag::forget();
}

/// Moves each meeting on that has news or whose time is over. True: one has made a link.
fn step_all(list: &mut Meetings, ready: &watch::Ready) -> bool {
    let now = sys::now_ns();
    let mut made = false;
    for mut meeting in list.take_with_socket(|p| p.is_due(ready) || p.deadline <= now) {
        let step = if meeting.is_due(ready) {
            join::step(&mut meeting)
        } else {
            join::Step::Waits
        };
        match step {
            join::Step::Waits if now < meeting.deadline => list.add(meeting),
            join::Step::Waits => expire(meeting),
            join::Step::Over(Some(reason)) => give_up(meeting, reason),
            join::Step::Over(None) => {}
            join::Step::Declined(reason) => decline::heard(meeting, reason),
            join::Step::Link => {
                // The socket of this meeting is the link's control socket from now on.
                let _ = meeting.socket.map(Way::release);
                made = true;
            }
        }
    }
    made
}

/// Gives up a meeting whose time is over.
fn expire(meeting: Pending) {
    let reason = match meeting.stage {
        Stage::Named { sent_away: 1.. } => Reason::PeerOwner,
        _ => Reason::NoAnswer,
    };
    give_up(meeting, reason);
}

/// True if one end has shut down or closed: then a proof may fail as the socket is gone.
fn is_half_closed(sock: &Socket) -> bool {
    tcp::state(sock.fd.load(Ordering::Relaxed)) != Some(tcp::ESTABLISHED)
}

fn give_up(meeting: Pending, reason: Reason) {
    let reason = match reason {
        Reason::ProofFailed if is_half_closed(meeting.sock) => Reason::NotEstablished,
        _ => reason,
    };
    let sock = meeting.sock;
    if let Some(conn) = end(meeting) {
        trigger::has_failed(sock);
        conn.stays(reason);
    }
}

/// Ends a meeting. Returns the counters of its connection, unless the connection is gone or has
/// another reason to stay on TCP.
fn end(meeting: Pending) -> Option<&'static sluice_stats::Conn> {
    if let Stage::Replied(link, index) | Stage::Granted(link, index) = meeting.stage {
        abandon(link, index);
    }
    let sock = meeting.sock;
    // The end of the connection is no such reason.
    let has_own_reason =
        meeting.refuses.is_some() || sock.pinned().is_some_and(|reason| !reason.is_end());
    (meeting.is_current() && !has_own_reason).then(|| sock.conn())
}

/// Takes back a stream that was given out and that no peer joined.
fn abandon(link: &'static Link, index: u32) {
    if link.owner(index) != 0 {
        link.leave_stream(index);
        trim::returned(link);
    }
    if !link.control().is_open() && link.twin().is_none() {
        // The link was made for this stream, and the peer never confirmed it.
        discard(link);
    }
}

/// Closes a new link that is not used.
fn discard(link: &'static Link) {
    if link.kill() {
        sluice_stats::ROOT.links.lower(1);
    }
    link.close_if_unused();
}

/// The control thread has started: it moves on the meetings that hooks have begun.
pub(crate) fn hand_over_to_control() {
    if let Some(_list) = PENDING.lock() {
        watch::tell_control();
    }
}

/// The socket is closed: its meeting ends.
fn forget(sock: &'static Socket) {
    if meetings::are_none() {
        return;
    }
    let taken = PENDING.lock().and_then(|mut list| list.take(sock));
    if let Some(Stage::Replied(link, stream) | Stage::Granted(link, stream)) =
        taken.map(|meeting| meeting.stage)
    {
        abandon(link, stream);
    }
}

/// The time until the first meeting ends, in ns: no wait of the program may be longer.
pub fn time_left() -> Option<u64> {
    let list = PENDING.lock()?;
    let now = sys::now_ns();
    let left = list.with_socket().map(|p| p.deadline.saturating_sub(now));
    // At least until hooks look again: a shorter wait would move nothing on.
    left.min().map(|left| left.max(meetings::next_look(now)))
}

/// A record of a meeting has come over a link.
pub(crate) fn on_link_record(link: &'static Link, message: &Message, sender: Option<Sender>) {
    match message.kind {
        Kind::Ask => ask::on_ask(link, message, sender),
        Kind::Grant => ask::on_grant(link, message, sender),
        Kind::NotMine => ask::on_not_mine(link, message, sender),
        Kind::Joined => ask::on_joined(link, message, sender),
        _ => ask::on_declined(link, message, sender),
    }
}

/// Before the control socket of a link is closed: has another process or thread close descriptors
/// that are unread in it, since that may block for ever (see [`closer`]).
fn empty(control: i32) {
    let _ = sys::shutdown(control, libc::SHUT_RD);
    if closer::has_unread(control)
        && let Some(copy) = sluice_runtime::own_fds::copy(control)
    {
        closer::let_go(copy);
    }
}

/// The link is gone.
pub fn on_link_lost(link: &'static Link) {
    ask::lost(link);
}

// --- fork ---

/// The locks that come before the sockets' locks, in their order.
static FIRST: [&dyn OverFork; 7] = [
    &control::READING,
    hosts::HELD,
    &PENDING,
    ask::HELD,
    inodes::HELD,
    diag::HELD,
    identity::HELD,
];
/// Those that come after the locks of the sockets and sets, before those of links.
static LAST: [&dyn OverFork; 6] = {
    let [waiting, out, left] = closer::HELD;
    [join::HELD, waiting, out, left, jobs::HELD, tell::HELD]
};

/// Before a fork: takes the locks that come before the sockets' locks, so that the child finds
/// nothing half changed.
pub fn hold() {
    FIRST.iter().for_each(|lock| lock.hold());
}

/// Before a fork: takes the locks that come after those of the sockets and sets, when no stream
/// changes any more.
pub fn hold_last() {
    LAST.iter().for_each(|lock| lock.hold());
    shm::hold();
}

/// After a fork, in parent and child: ends [`hold_last`].
pub fn release_last() {
    shm::release();
    LAST.iter().rev().for_each(|lock| lock.release());
}

/// After a fork, in parent and child: ends [`hold`].
pub fn release() {
    FIRST.iter().rev().for_each(|lock| lock.release());
}

/// In the child of a fork: there is no control thread, no job and no meeting.
pub fn after_fork() {
    control_thread::after_fork();
    jobs::after_fork();
    tell::after_fork();
    meetings::after_fork();
    keep_nothing();
    identity::after_fork();
    ask::after_fork();
    closer::after_fork();
    trim::after_fork();
    hosts::after_fork();
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_fabric::arena::Arena;
    use sluice_fabric::shm::LinkEnd;
    use sluice_sockets::socket;

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

    /// A meeting at a name that was bound `since_ns` ago.
    fn named(key: u64, since_ns: u64) -> Pending {
        let sock = socket::alloc(-1, role::CONNECTING).unwrap();
        let look = Look {
            sock,
            generation: sock.generation.load(Ordering::Relaxed),
            key,
            own: key,
            mirror: diag::Mirror { inode: 0, uid: 0 },
            nonce: [0; 2],
            refuses: None,
        };
        let (socket, _) = sys::doorbell().unwrap();
        let mut meeting = look.at(Stage::Named { sent_away: 0 }, Some(Way::new(socket)));
        meeting.deadline -= since_ns;
        meeting
    }

    #[test]
    fn where_all_places_are_taken_the_oldest_name_goes_if_it_has_stood_a_while() {
        let mut list = PENDING.lock().unwrap();
        for key in 1..=PENDING_MAX as u64 {
            assert!(make_room(&mut list));
            list.add(named(key, 0));
        }
        assert!(!make_room(&mut list), "all have just begun");
        for (key, since_ns) in [(2, LEAST_NS), (3, 2 * LEAST_NS)] {
            list.take_by_key(key, |_| true);
            list.add(named(key, since_ns));
        }
        assert!(make_room(&mut list));
        assert!(list.by_key(2).is_some() && list.by_key(3).is_none());
        for meeting in list.take_all(|_| true) {
            socket::free(meeting.sock);
        }
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
