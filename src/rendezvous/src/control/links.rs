//! Descriptors of links, within the host and to others, and what their control sockets say.

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

/// A new link stands: this thread asks over it.
pub fn link_is_up(link: &'static Link) {
    jobs::ask(link);
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
        let _ = spin::yield_once();
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
    if !control_thread::is_own_thread() && READING.is_locked() {
        // Somebody reads already, and goes on until nothing is left.
        return;
    }
    for _ in 0..TURN {
        // A hook that reads goes on until nothing is left, which takes some microseconds.
        let mut naps = 0..NAPS;
        while control_thread::is_own_thread() && READING.is_locked() && naps.next().is_some() {
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
        if control_thread::is_own_thread() {
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
                // Rung a moment ago, perhaps, where nobody hears it.
                ask_wake(link, message.index);
            }
        }
        // Not for a link: a peer that says it breaks the rules.
        Kind::Challenge | Kind::Claim | Kind::Reply => give_up(link),
    }
}

/// The set that sleeps on a slot of this process.
fn set_of(link: &Link, slot: u32) -> Option<&'static Watcher> {
    // SAFETY: slots are owned by sets, whose memory is type-stable, or by 0.
    unsafe { (link.slot_owner(slot) as *const Watcher).as_ref() }
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

/// The peer's process is gone. What it left in our rings is still read; what we left in its rings
/// goes to TCP, where the kernel answers for it.
pub(crate) fn lost(link: &'static Link) {
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
        control_thread::unwatch(fd);
        own_fds::forget(fd);
        // Descriptors that may lie unread in it are closed elsewhere.
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
