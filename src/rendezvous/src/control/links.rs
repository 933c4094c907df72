//! Control sockets of links within the host: reads and handles their records, and makes doorbells.

use super::*;
use crate::bell::{self, Wanted};
use crate::message::{Brought, Sender};
use crate::price;
use sluice_fabric::shm::Token;
use sluice_fabric::sys::Fd;
use sluice_runtime::{control_thread, spin};
use sluice_sockets::socket::sock_of;
use sluice_sockets::socket::watcher::Watcher;
use sluice_sockets::tell::{ask_wake, tell, tell_in_time};
use sluice_sockets::{jobs, peer_end};

/// A new link is up: has the control thread ask over it.
pub fn link_is_up(link: &'static Link) {
    jobs::ask(link);
}

/// Asks the peer for a doorbell of a slot of this process. Returns the bound name if the peer must
/// connect to it.
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
            // If it cannot be sent now, the slot gets no doorbell, and the control thread rings it.
            return tell(link, &want, None).then_some(name);
        }
        Wanted::No => {}
    }
    None
}

/// Accepts the peer's connection to the name of a doorbell.
pub fn bell_at(link: &Link, name: &Fd) -> Option<Fd> {
    bell::let_in(link, name)
}

/// A slot of this process is given up: so is its doorbell.
pub fn drop_bell(link: &'static Link, slot: u32) {
    if link.twin().is_none() {
        tell_in_time(link, Kind::DropBell, slot);
    }
}

/// From hooks: reads the records of all links, as the control thread would.
pub fn read_links() {
    if READING.is_locked() {
        // The control thread may hold the lock without a CPU, since this thread has it.
        let _ = spin::yield_once();
    }
    for link in shm::all().filter(|l| l.is_alive() && l.control().is_open() && !l.is_foreign()) {
        on_link(link);
    }
}

/// How long the control thread sleeps while a hook reads, instead of spinning, in ns.
const READING_NS: u64 = 60_000;
/// Most such sleeps in a row.
const NAPS: u32 = 4;

/// Records that a hook reads from one link before it turns to the next.
const TURN: u32 = 64;

/// Held from before a record is received until its descriptors are closed or lifted: a child that
/// was forked in between would keep them.
pub(crate) static READING: Guarded<()> = Guarded::of_order(lock::BEFORE_SOCKETS, ());

pub(super) fn on_link(link: &'static Link) {
    if !control_thread::is_own_thread() && READING.is_locked() {
        // Another thread is reading, and goes on until nothing is left.
        return;
    }
    for _ in 0..TURN {
        // A hook that reads goes on until nothing is left, which takes a few microseconds.
        let mut naps = 0..NAPS;
        while control_thread::is_own_thread() && READING.is_locked() && naps.next().is_some() {
            let _ = sys::poll_one(-1, 0, Some(sys::timespec(READING_NS)));
        }
        let Some(_reading) = READING.lock() else {
            return;
        };
        // Only a holder of this lock, or the end of an unused link, closes the control socket.
        let Some(fd) = link.control().raw() else {
            return;
        };
        // From other users no descriptor is received, since closing one may block.
        if !link.is_of_same_user() {
            match message::next(fd) {
                Next::Nothing => return,
                Next::Brings => return give_up(link),
                Next::Plain | Next::End => {}
            }
        }
        // A descriptor that nobody asked for may be received at any number.
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
        if control_thread::is_own_thread() {
            // The next wait reports the next record, and most come alone.
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
            crate::on_link_record(link, message, sender);
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
        Kind::Attention => work::look(link, message.index),
        Kind::DropBell => {
            if link.drop_bell(message.index) {
                // The doorbell may have been rung a moment ago, and is gone: so asks for a Wake.
                ask_wake(link, message.index);
            }
        }
        // A peer that sends these over a link breaks the protocol.
        Kind::Challenge | Kind::Claim | Kind::Reply => give_up(link),
    }
}

/// The set that sleeps on a slot of this process.
fn set_of(link: &Link, slot: u32) -> Option<&'static Watcher> {
    // SAFETY: a slot's owner is 0 or the address of a set, whose memory stays a set.
    unsafe { (link.slot_owner(slot) as *const Watcher).as_ref() }
}

/// Makes a doorbell for a slot of the peer. Until it is set, threads that find none send a Wake.
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

/// The peer's process is gone. Unread bytes that it left in this end's rings are still read. Those
/// that this end left in its rings go to TCP, where the kernel answers for it.
pub(crate) fn lost(link: &'static Link) {
    end(link, Reason::PeerDied);
}

/// The peer's process breaks the protocol, or exceeds its budget: none of its connections leaves
/// TCP again.
fn give_up(link: &'static Link) {
    end(link, Reason::PeerHostile);
}

fn end(link: &'static Link, reason: Reason) {
    let first = link.kill();
    // Also if the link was given up before: a closed connection that stays in the set would be
    // reported for ever.
    link.control().close(|fd| {
        control_thread::unwatch(fd);
        own_fds::forget(fd);
        // Descriptors that may be unread in it are closed in another process.
        crate::empty(fd);
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
        if !peer_end::lose(link, index, sock, false) {
            jobs::lose(link, index, sock);
        }
    }
    crate::on_link_lost(link);
    sluice_sockets::socket::watcher::link_lost(link);
    link.close_if_unused();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity;
    use sluice_fabric::arena::Arena;
    use sluice_fabric::shm::{LinkEnd, PeerProcess};

    /// A link with a process of this user, and the peer's end of its control socket.
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
        // SAFETY: has no arguments and no effect.
        unsafe { libc::geteuid() }
    }

    /// Sends `times` records, and has this end read when the socket is full.
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
            // As many as a busy server sends.
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
        // A name that is not the link's process's makes no doorbell.
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
            // As on an older kernel, which lets descriptors in.
            let control = link.control().raw().unwrap();
            identity::let_descriptors_in(control, true).unwrap();
            message::send(peer.raw(), &Message::about(Kind::Bell, 0), Some(near.raw())).unwrap();
        }
        on_link(link);
        assert!(!link.is_alive());
    }
}
