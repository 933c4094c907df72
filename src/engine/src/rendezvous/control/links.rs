//! Descriptors of links, within the host and to others, and what their control sockets say.

use super::jobs::{Job, add};
use super::*;
use crate::rendezvous::bell::{self, Wanted};
use crate::rendezvous::message::{Brought, Sender};
use crate::rendezvous::price;
use crate::sockets::{recv, remains, reset};
use crate::verbs;
use sluice_fabric::shm::Token;
use sluice_fabric::sys::Fd;

/// The set of all meetings' sockets: its news are looked at by this thread.
pub fn watch_meetings(meetings: i32) {
    enter(meetings, libc::EPOLLIN as u32, KIND_MEETING);
    poke();
}

/// A descriptor of the library's for links to other hosts: what `hosts::on_event` is told of it.
pub fn watch_remote(fd: i32, what: u64, events: u32) {
    let set = SET.load(Ordering::Acquire);
    let data = KIND_REMOTE | what & !KIND_MASK;
    let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data);
}

/// Not any more, or to be told last of all from now on.
pub fn unwatch_remote(fd: i32) {
    let set = SET.load(Ordering::Acquire);
    let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// A new link's control socket.
pub fn watch_link(link: &'static Link) {
    watch_for(link, libc::EPOLLIN);
}

fn watch_for(link: &'static Link, events: i32) {
    let data = KIND_LINK | core::ptr::from_ref(link) as u64;
    // While nobody closes it: the number is another's then.
    link.control().with(|fd| enter(fd, events as u32, data));
}

/// A new link stands: this thread asks over it.
pub fn link_is_up(link: &'static Link) {
    add(Job::Ask(link));
}

/// Whether it was sent.
pub(in crate::rendezvous) fn tell(link: &Link, message: &Message, with: Option<i32>) -> bool {
    link.control()
        .with(|fd| message::send(fd, message, with))
        .is_some_and(|sent| sent.is_ok())
}

/// Records that a peer could not take, since it reads nothing: its thread gets no processor, or is
/// stopped. Told in time, when its socket has room; in between neither end would look.
pub(super) static UNTOLD: Guarded<Vec<Untold>> = Guarded::new(Vec::new());

/// The link and its generation, kind and index.
type Untold = (&'static Link, u32, Kind, u32);

/// Says it now, or when there is room.
fn tell_in_time(link: &'static Link, kind: Kind, index: u32) {
    let message = Message::about(kind, index);
    let Some(mut untold) = UNTOLD.lock() else {
        // In a handler that has interrupted this very section.
        tell(link, &message, None);
        return;
    };
    let generation = link.generation();
    let is_own = |(l, g, ..): &Untold| core::ptr::eq(*l, link) && *g == generation;
    // Not before those that wait.
    let waits = untold.iter().any(is_own);
    if !waits && tell(link, &message, None) || !link.is_alive() {
        return;
    }
    // Each once, in the order in which they were said last: no more of a link than it has slots and
    // streams.
    untold.retain(|of| !is_own(of) || (of.2, of.3) != (kind, index));
    untold.push((link, generation, kind, index));
    if !waits {
        watch_for(link, libc::EPOLLIN | libc::EPOLLOUT);
    }
}

/// By the control thread: there is room again.
pub(super) fn tell_rest(link: &'static Link) {
    let Some(mut untold) = UNTOLD.lock() else {
        return;
    };
    let generation = link.generation();
    let mut full = false;
    untold.retain(|&(l, g, kind, index)| {
        let own = core::ptr::eq(l, link) && g == generation;
        if own && !full {
            full = !tell(link, &Message::about(kind, index), None) && link.is_alive();
            return full;
        }
        own || l.generation() == g && l.is_alive()
    });
    if !full {
        watch_for(link, libc::EPOLLIN);
    }
}

/// The peer must look at the words of stream `index`.
pub fn attention(link: &'static Link, index: u32) {
    match link.twin() {
        Some(_) if verbs::is_to_another_host(link) => {}
        Some(twin) => add(Job::Look(twin, index)),
        None => tell_in_time(link, Kind::Attention, index),
    }
    if !link.is_alive() {
        add(Job::Reap(link));
    }
}

/// The peer's slot sleeps and there is no doorbell for it here: its own process rings it.
pub fn ask_wake(link: &'static Link, slot: u32) {
    tell_in_time(link, Kind::Wake, slot);
}

/// A slot of this process needs a doorbell: asks for it. The name that the peer is to come to,
/// where it is to.
pub fn want_bell(link: &'static Link, slot: u32) -> Option<Fd> {
    if link.twin().is_some() {
        return None;
    }
    match bell::wanted(link) {
        Wanted::Pipe => {
            link.bells_due().fetch_add(1, Ordering::Relaxed);
            tell_in_time(link, Kind::WantBell, slot);
        }
        Wanted::At(name, number) => {
            let want = Message {
                token: [number, 0],
                ..Message::about(Kind::WantBell, slot)
            };
            // Not in time: then the slot has none, and is rung by this thread.
            return tell(link, &want, None).then_some(name);
        }
        Wanted::No => {}
    }
    None
}

/// The peer that has come to the name of a doorbell.
pub fn bell_at(link: &Link, name: &Fd) -> Option<Fd> {
    bell::let_in(link, name)
}

/// A slot of this process is gone.
pub fn drop_bell(link: &'static Link, slot: u32) {
    if link.twin().is_none() {
        tell_in_time(link, Kind::DropBell, slot);
    }
}

/// From hooks: reads what has come over the links, as this thread would.
pub fn read_links() {
    if READING.is_locked() {
        // By the control thread, from which this one has taken the processor, perhaps.
        let _ = crate::readiness::spin::yield_once();
    }
    for link in shm::all().filter(|l| l.is_alive() && l.control().is_open() && !l.is_foreign()) {
        on_link(link);
    }
}

/// The control thread sleeps so long where a hook reads, instead of spinning, in ns.
const READING_NS: u64 = 60_000;
/// So often at most.
const NAPS: u32 = 4;

/// Records that a hook reads from one link before the others have their turn.
const TURN: u32 = 64;

/// Held from before a record is received until the descriptors that it brought are closed or
/// lifted: a child that was forked in between would keep them.
pub(super) static READING: Guarded<()> = Guarded::of_order(lock::BEFORE_SOCKETS, ());

pub(super) fn on_link(link: &'static Link) {
    if !is_own_thread() && READING.is_locked() {
        // Somebody reads already, and goes on until nothing is left.
        return;
    }
    for _ in 0..TURN {
        // A hook that reads goes on until nothing is left, which takes some microseconds.
        let mut naps = 0..NAPS;
        while is_own_thread() && READING.is_locked() && naps.next().is_some() {
            let _ = sys::poll_one(-1, 0, Some(sys::timespec(READING_NS)));
        }
        let Some(_reading) = READING.lock() else {
            return;
        };
        // Closed after the same lock, or by the end of a link that nobody reads any more.
        let Some(fd) = link.control().raw() else {
            return;
        };
        // From others than this user nothing is let in that may wait for somebody when it is
        // closed.
        if !link.is_of_same_user() {
            match message::next(fd) {
                Next::Nothing => return,
                Next::Brings => return give_up(link),
                Next::Plain | Next::End => {}
            }
        }
        // What comes unasked may stand where it likes.
        let is_due = link.bells_due().load(Ordering::Relaxed) != 0;
        let _low = is_due.then(own_fds::Low::begin);
        match message::receive(fd) {
            Received::Nothing => return,
            Received::Gone => return lost(link),
            Received::Wrong => return give_up(link),
            Received::Message(message, sender, brought) => {
                if !price::may_say(link, message.kind) {
                    return give_up(link);
                }
                on_record(link, &message, sender, brought);
            }
        }
        if is_own_thread() {
            // The wait tells of the next one, and most come alone.
            return;
        }
    }
}

fn on_record(
    link: &'static Link,
    message: &Message,
    sender: Option<Sender>,
    brought: Option<Brought>,
) {
    match message.kind {
        Kind::Ask | Kind::Grant | Kind::NotMine | Kind::Joined | Kind::Decline => {
            crate::rendezvous::on_link_record(link, message, sender);
        }
        Kind::WantBell => make_bell(link, message.index, message.token),
        Kind::Bell => {
            let one_less = |due: u32| due.checked_sub(1);
            let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = link.bells_due().fetch_update(set, fetch, one_less);
            let _low = own_fds::Low::begin();
            let bell = brought.and_then(bell::own_end);
            if let Some(set) = set_of(link, message.index) {
                set.add_bell(link, message.index, bell);
            }
        }
        Kind::Wake => {
            if let Some(set) = set_of(link, message.index) {
                set.empty_bell(link, message.index);
            }
            wake::ring_own(link, message.index);
        }
        Kind::Attention => look(link, message.index),
        Kind::DropBell => {
            if link.drop_bell(message.index) {
                // Rung a moment ago, perhaps, where nobody hears it.
                ask_wake(link, message.index);
            }
        }
        // Not for a link: a peer that says it breaks the rules.
        Kind::Challenge | Kind::Claim | Kind::Reply => give_up(link),
    }
}

/// The set that sleeps on a slot of this process.
fn set_of(link: &Link, slot: u32) -> Option<&'static Set> {
    // SAFETY: slots are owned by sets, whose memory is type-stable, or by 0.
    unsafe { (link.slot_owner(slot) as *const Set).as_ref() }
}

/// The peer's slot gets a doorbell. A thread that finds none meanwhile asks for the ring.
fn make_bell(link: &'static Link, slot: u32, [name, _]: Token) {
    link.drop_bell(slot);
    if !price::may_have_bell(link) {
        return;
    }
    let _low = own_fds::Low::begin();
    let (near, far) = if name != 0 {
        (bell::go_to(link, name), None)
    } else if link.is_of_same_user() {
        match sys::doorbell() {
            Ok((near, far)) => (own_fds::lift(near), Some(far)),
            Err(_) => return,
        }
    } else {
        return;
    };
    let Some(near) = near else { return };
    let sent = far.as_ref().map(Fd::raw);
    if tell(link, &Message::about(Kind::Bell, slot), sent) {
        link.set_bell(slot, near, name != 0);
    } else {
        own_fds::forget(near.raw());
    }
}

/// The socket that stream `index` of a link was given out to.
pub(in crate::rendezvous) fn given_to(link: &'static Link, index: u32) -> Option<&'static Sock> {
    // SAFETY: streams are owned by socks, whose memory is type-stable, or by 0.
    unsafe { (link.owner(index) as *const Sock).as_ref() }
}

/// The socket that uses stream `index` of a link.
pub(crate) fn sock_of(link: &'static Link, index: u32) -> Option<&'static Sock> {
    let sock = given_to(link, index)?;
    // Given out in a meeting that is not over, or put to another use meanwhile.
    let uses = sock.link().is_some_and(|l| core::ptr::eq(l, link))
        && sock.index.load(Ordering::Relaxed) == index;
    uses.then_some(sock)
}

/// The peer has changed the words of a stream: goes along with a demotion.
pub(super) fn look(link: &'static Link, index: u32) {
    // It may have left a stream that this end had left before.
    crate::rendezvous::trim::returned(link);
    let Some(sock) = sock_of(link, index) else {
        return;
    };
    demote::follow_tx(sock);
    demote::follow_rx(sock);
}

/// The peer's process is gone. What it left in our rings is still read; what we left in its rings
/// goes to TCP, where the kernel answers for it.
pub(in crate::rendezvous) fn lost(link: &'static Link) {
    end(link, Reason::PeerDied);
}

/// The peer's process breaks the rules, or has this one do more than it may: nothing of it leaves
/// TCP again.
fn give_up(link: &'static Link) {
    end(link, Reason::PeerHostile);
}

fn end(link: &'static Link, reason: Reason) {
    let first = link.kill();
    // Also where it was given up before: a socket at its end that stays watched would never let us
    // sleep again.
    link.control().close(|fd| {
        let set = SET.load(Ordering::Acquire);
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
        own_fds::forget(fd);
        // Descriptors that may lie unread in it are closed elsewhere.
        crate::rendezvous::empty(fd);
    });
    if !first {
        return;
    }
    sluice_stats::ROOT.links.lower(1);
    for index in 0..STREAMS {
        let Some(sock) = sock_of(link, index) else {
            continue;
        };
        if reason == Reason::PeerHostile {
            sock.pin(reason);
        }
        if !lose(link, index, sock, false) {
            let generation = sock.generation.load(Ordering::Acquire);
            let deadline = sys::now_ns() + DYING_NS;
            add(Job::Lost(link, index, sock, generation, deadline));
        }
    }
    crate::rendezvous::on_link_lost(link);
    crate::readiness::link_lost(link);
    link.close_if_unused();
}

/// A process that ends closes its link and its connections in no order of ours, within this time.
const DYING_NS: u64 = 20_000_000;

/// Why a stream has lost its peer: what keeps it on TCP for good from now on, or the peer's death.
fn why_lost(sock: &Sock) -> Reason {
    match sock.pinned.load(Ordering::Relaxed) {
        pinned if pinned == Reason::PeerHostile as u32 => Reason::PeerHostile,
        _ => Reason::PeerDied,
    }
}

/// The peer of a stream is lost. False: it left bytes of ours unread, and its kernel has not said
/// yet what became of it; ask again, and at last `finally`.
pub(super) fn lose(link: &'static Link, index: u32, sock: &'static Sock, finally: bool) -> bool {
    // Under the lock: the structure may have been put to another use meanwhile.
    let still = || sock_of(link, index).is_some_and(|s| core::ptr::eq(s, sock));
    // One that had ended its writing, or was about to leave, has said so to TCP: that has the end
    // that the program is to see.
    demote::follow_rx(sock);
    // Asked once, and first: a peer that closes or shuts down changes a word on the link before,
    // and an end that comes between two looks would find what TCP holds in the way of the reset.
    let on_tcp = tcp::state(sock.fd.load(Ordering::Relaxed));
    if on_tcp == Some(tcp::CLOSE_WAIT) {
        reset_behind_input(sock, still);
    }
    if let Ok(_section) = sock.tx.lock.enter()
        && still()
        && matches!(sock.tx.state(), State::Link | State::Proved)
    {
        if left_unread(sock) {
            match on_tcp {
                // One that only lost its control socket lives on, as do relatives that hold its
                // socket.
                Some(tcp::CLOSE_WAIT) => drop(reset::make(sock)),
                Some(tcp::ESTABLISHED) if !finally => return false,
                _ => {}
            }
        }
        demote::settle_tx(sock, why_lost(sock));
    }
    if let Ok(_section) = sock.rx.lock.enter()
        && still()
        && sock.rx.state() != State::Plain
        && !has_input(sock)
    {
        demote::settle_rx(sock, why_lost(sock));
    }
    true
}

/// The kernel tells of an end beneath a link within the host, perhaps before this thread hears of
/// the peer: if that was killed with bytes of ours unread, what TCP would have made of these is
/// made now, and what is written from now on is TCP's to refuse. Whether it was.
pub fn end_is_told(sock: &'static Sock) -> bool {
    sock.link().is_some_and(|link| {
        died(sock, is_unended) && lose(link, sock.index.load(Ordering::Relaxed), sock, false)
    })
}

/// Under no tx lock: does the kernel have an end of the peer's, and has that left bytes of ours
/// unread without a word? Then it was killed, and TCP would have answered them by a reset.
pub fn died_with_unread(sock: &'static Sock) -> bool {
    died(sock, left_unread)
}

/// The same, whatever has been read: what is written from now on TCP would answer by a reset.
pub fn died_unended(sock: &'static Sock) -> bool {
    died(sock, is_unended)
}

/// Under no tx lock: does the kernel have an end of the peer's, and is it so, asked after that, of
/// what lies on the link?
fn died(sock: &'static Sock, is_so: impl Fn(&Sock) -> bool) -> bool {
    let Ok(_section) = sock.tx.lock.enter() else {
        return false;
    };
    tcp::state(sock.fd.load(Ordering::Relaxed)) == Some(tcp::CLOSE_WAIT) && is_so(sock)
}

/// The kernel has an end of the peer's. If that left bytes of ours unread, and of what it had sent
/// TCP holds some unread, perhaps with more after it on the link, TCP would have been reset after
/// that.
fn reset_behind_input(sock: &'static Sock, still: impl Fn() -> bool) {
    let Ok(_rx) = sock.rx.lock.enter() else {
        return;
    };
    if let Ok(_tx) = sock.tx.lock.enter() {
        let fd = sock.fd.load(Ordering::Relaxed);
        if still()
            && left_unread(sock)
            && recv::has_bytes(fd)
            // On the link all of TCP's part has been read: whatever TCP has is not what comes
            // before the ring's.
            && (sock.rx.state() != State::Link || !has_input(sock))
            && remains::may_keep_of_tcp(sock)
        {
            demote::settle_rx(sock, Reason::PeerDied);
            if remains::keep_of_tcp(sock) {
                let _ = reset::make(sock);
                demote::settle_tx(sock, Reason::PeerDied);
            }
        }
    }
}

/// Under the rx lock: the ring has something that is not sealed.
fn has_input(sock: &'static Sock) -> bool {
    sock.rx.dir().is_some_and(|d| {
        let tail = d.tx.tail.read();
        !tail.flagged
            && d.tx_wishes.switched.load(Ordering::Acquire) == 1
            && tail.offset != sock.rx.at.load(Ordering::Relaxed)
    })
}

/// Under the tx lock, or as a guess: the peer has not read all that we wrote, and is
/// [unended](is_unended).
fn left_unread(sock: &Sock) -> bool {
    // Beyond: an offer that was taken, which our writer has not seen yet.
    unended_head(sock).is_some_and(|head| head < sock.tx.at.load(Ordering::Relaxed))
}

/// Under the tx lock, or as a guess: what we write goes by the link, and the peer has neither
/// demoted that nor ended its side.
pub fn is_unended(sock: &Sock) -> bool {
    unended_head(sock).is_some()
}

/// How far the peer has read, if it is [unended](is_unended).
fn unended_head(sock: &Sock) -> Option<u64> {
    if sock.tx.state() != State::Link {
        return None;
    }
    let dir = sock.tx.dir()?;
    let head = dir.rx.head.read();
    let leaves = head.flagged || dir.tx.tail.read().flagged;
    (!leaves && dir.rx_wishes.ended.load(Ordering::SeqCst) == 0).then_some(head.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::identity;
    use sluice_fabric::arena::Arena;
    use sluice_fabric::shm::{LinkEnd, PeerProcess};

    /// A link of this process with one of that user, whose end of the control socket is the other.
    fn link_with(uid: u32) -> (&'static Link, Fd) {
        let [ours, theirs] = sys::socket_pair().unwrap();
        for end in [&ours, &theirs] {
            identity::prepare(end.raw()).unwrap();
        }
        let _ = identity::let_descriptors_in(theirs.raw(), true);
        let pid = sys::getpid();
        let link = Link::open(LinkEnd {
            arena: Arena::create_local().unwrap(),
            side: 0,
            control: Some(ours),
            token: [3, 4],
            peer: Some(PeerProcess {
                pid,
                uid,
                is_same_user: uid == own_user(),
                dir: None,
            }),
            can_pull: false,
            can_discard: false,
        });
        (link.unwrap(), theirs)
    }

    fn own_user() -> u32 {
        // SAFETY: asks only.
        unsafe { libc::geteuid() }
    }

    /// Says it as often as the socket takes it, and has it heard, so many times.
    fn flood(link: &'static Link, from: &Fd, kind: Kind, times: u32) {
        for index in 0..times {
            while message::send(from.raw(), &Message::about(kind, index % 8), None)
                == Err(libc::EAGAIN)
            {
                on_link(link);
            }
            if !link.is_alive() {
                return;
            }
        }
        on_link(link);
    }

    #[test]
    fn who_says_too_much_is_given_up() {
        for uid in [own_user(), own_user() ^ 1] {
            let (link, peer) = link_with(uid);
            // A busy server's.
            flood(link, &peer, Kind::Attention, 4_000);
            assert!(link.is_alive());
            flood(link, &peer, Kind::Attention, 100_000);
            assert!(!link.is_alive() && !link.control().is_open());
        }
    }

    #[test]
    fn doorbells_come_as_long_as_they_are_cheap() {
        let (link, peer) = link_with(own_user());
        let mut made = 0;
        for round in 0..2_000 {
            message::send(peer.raw(), &Message::about(Kind::WantBell, round % 8), None).unwrap();
            on_link(link);
            if let Received::Message(message, _, Some(_)) = message::receive(peer.raw()) {
                assert_eq!(message.kind, Kind::Bell);
                made += 1;
            }
        }
        assert!(link.is_alive());
        assert!((100..600).contains(&made), "{made}");
        lost(link);
    }

    #[test]
    fn a_name_makes_a_doorbell_towards_another_user_that_rings_until_it_is_full() {
        let (link, peer) = link_with(own_user() ^ 1);
        if !identity::refuses_descriptors() {
            return;
        }
        let Wanted::At(name, number) = bell::wanted(link) else {
            panic!("no name")
        };
        let want = Message {
            token: [number, 0],
            ..Message::about(Kind::WantBell, 5)
        };
        message::send(peer.raw(), &want, None).unwrap();
        on_link(link);
        let Received::Message(answer, _, None) = message::receive(peer.raw()) else {
            panic!("no doorbell")
        };
        assert_eq!((answer.kind, answer.index), (Kind::Bell, 5));
        assert!(link.has_bell(5));
        let far = bell_at(link, &name).unwrap();
        link.peer_slot(5)
            .unwrap()
            .reset_for(sluice_fabric::doorbell::Sleep::Descriptor);
        let mut rung = 0;
        while link.ring_peer(5) {
            rung += 1;
        }
        assert!((50..5_000).contains(&rung), "{rung}");
        let mut byte = [0u8; 2];
        assert_eq!(sys::read(far.raw(), &mut byte), Ok(1));
        while sys::read(far.raw(), &mut byte).is_ok() {}
        assert!(link.ring_peer(5), "emptied");
        // Nobody is woken by a name that is not of the link's process.
        let stranger = Message {
            token: [0xfffff, 0],
            ..want
        };
        message::send(peer.raw(), &stranger, None).unwrap();
        on_link(link);
        assert!(!link.has_bell(5));
        lost(link);
    }

    #[test]
    fn another_user_sends_no_descriptor() {
        let (link, peer) = link_with(own_user() ^ 1);
        let (near, _far) = sys::doorbell().unwrap();
        let sent = message::send(peer.raw(), &Message::about(Kind::Bell, 0), Some(near.raw()));
        if identity::refuses_descriptors() {
            assert_eq!(sent, Err(libc::EPERM));
            // As on an older kernel.
            let control = link.control().raw().unwrap();
            identity::let_descriptors_in(control, true).unwrap();
            message::send(peer.raw(), &Message::about(Kind::Bell, 0), Some(near.raw())).unwrap();
        }
        on_link(link);
        assert!(!link.is_alive());
    }
}
