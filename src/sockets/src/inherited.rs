//! A stream that this process inherited by `fork`. Its owner, the process that uses it, demotes it
//! when a relative comes to use the socket.
//!
//! The relative asks, and the owner's control thread answers. If the owner of a stream within the
//! host is dead, the first relative that asks becomes the owner: it has the link's memory mapped.

use crate::carrier::PATIENCE_NS;
use crate::socket::{Event, Half, Socket};
use crate::{emulated_reset, leave, unread_copy, why};
use core::sync::atomic::Ordering;
use sluice_fabric::layout::Direction;
use sluice_fabric::sys;
use sluice_runtime::config::{Level, log};
use sluice_runtime::credentials::Status;
use sluice_runtime::{control_thread, own_fds, process};
use sluice_stats::Reason;

/// How often a relative looks whether the owner still lives, in ns.
const LOOK_NS: u64 = 20_000_000;
/// The same while the owner waits for room in TCP: the caller may be one that must not wait.
const LOOK_RESENT_NS: u64 = 1_000_000;

/// What became of a half whose stream was inherited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The half is on TCP.
    Given,
    /// The owner is dead, and this process owns the stream: it demotes the half itself.
    Own,
    /// tx: the owner re-sends, and TCP has no room now.
    Later,
}

/// Has the owner's control thread demote the stream, and waits for it. After 5 s the connection is
/// reset. Call with the half's lock held, in state Inherited.
pub(crate) fn claim(sock: &'static Socket, half: &Half) -> Claim {
    let reads = core::ptr::eq(half, &sock.rx);
    match ask(sock, reads) {
        Some(Claim::Given) => {}
        Some(other) => return other,
        None => reset(sock),
    }
    why::count(sock, Reason::Fork);
    if reads {
        unread_copy::adopt(sock);
    }
    // The owner has set SO_RCVLOWAT to what the program asked for.
    sock.low_held.store(false, Ordering::Relaxed);
    half.state.on(Event::HandedOver);
    half.set_dir(None);
    leave::leave(sock);
    Claim::Given
}

/// Asks the owner. `None`: the owner does not answer, and no relative can take its place.
fn ask(sock: &'static Socket, reads: bool) -> Option<Claim> {
    let family = sock.family()?;
    let by_record = sock.carrier().ends_by_record;
    let me = process::pid();
    let mut until_ns = 0;
    loop {
        let (handing, owner) = (family.handing(), family.owner());
        let is_own = owner == me && !by_record;
        let is_given = if reads {
            handing.reads_tcp()
        } else {
            // Until both halves are left, the peer takes a FIN for that of a killed process.
            handing.has_left() || is_own && handing.writes_tcp()
        };
        if is_given {
            return Some(Claim::Given);
        }
        if is_own {
            return Some(Claim::Own);
        }
        if until_ns == 0 {
            until_ns = sys::now_ns() + PATIENCE_NS;
            family.want();
            control_thread::call_relatives();
            continue;
        }
        let waits_for_room = handing.resends() && !reads && !by_record;
        let look = if waits_for_room {
            LOOK_RESENT_NS
        } else {
            LOOK_NS
        };
        family.await_handing(handing, look);
        let is_news = || family.handing() != handing;
        if is_news() {
            continue;
        }
        if is_dead(owner) {
            // What the owner did last, before it died, shows now.
            if !is_news() {
                if by_record || handing.resends() || !has_all(sock) {
                    return None;
                }
                family.inherits(owner, me);
            }
        } else if waits_for_room {
            return Some(Claim::Later);
        } else if sys::now_ns() >= until_ns {
            return None;
        }
    }
}

/// Returns whether this process can demote the stream itself. It does not know a ring that the
/// owner got after the fork, and cannot act for the other end of a link of a process with itself.
fn has_all(sock: &Socket) -> bool {
    let wrote = |dir: &Direction| dir.tx.tail.read().offset != 0;
    let lacks_ring = sock.tx.ring().is_none() && sock.tx.dir().is_some_and(wrote);
    !lacks_ring && sock.link().is_some_and(|link| link.twin().is_none())
}

/// Resets the connection: what the stream held is lost.
fn reset(sock: &'static Socket) {
    let fd = sock.fd.load(Ordering::Relaxed);
    log(
        Level::Info,
        format_args!("fd {fd} reset: the process whose stream it was did not hand it over"),
    );
    emulated_reset::make_hard(sock);
    sock.conn().stays(Reason::Shared);
    // So the other half does not wait as long.
    if let Some(family) = sock.family() {
        family.hand_both();
    }
}

/// Returns whether the process has ended, even if its parent has not waited for it yet.
fn is_dead(pid: u32) -> bool {
    if !sys::is_process(pid) {
        return true;
    }
    let _low = own_fds::Low::begin();
    let status = Status::of(pid as i32);
    // Other threads may go on after the main thread has ended.
    status.is_some_and(|status| {
        let is_zombie = status.words(b"State:").and_then(|mut words| words.next()) == Some("Z");
        is_zombie && status.number(b"Threads:") == Some(1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demote;
    use crate::fork_shared::Family;
    use crate::resend::Resent;
    use crate::socket::State;
    use crate::testing;
    use sluice_fabric::arena::Arena;
    use sluice_fabric::shm::{Link, LinkEnd};
    use std::sync::OnceLock;

    /// A process that lives, and a number that no process has.
    const INIT: u32 = 1;
    const NOBODY: u32 = 0x3fff_ffff;

    /// The inherited end of a link, and the peer's. Neither knows of the other, as in two
    /// processes.
    fn links() -> [&'static Link; 2] {
        static LINKS: OnceLock<[&Link; 2]> = OnceLock::new();
        *LINKS.get_or_init(|| {
            let arena = Arena::create_local().unwrap();
            let ends = [(arena.alias(), 0), (arena, 1)].map(|(arena, side)| LinkEnd {
                arena,
                side,
                control: None,
                token: [0, 1],
                peer: None,
                can_pull: false,
                can_discard: false,
            });
            let links = ends.map(|end| Link::open(end).unwrap());
            links[0].after_fork();
            links
        })
    }

    /// A socket whose stream, with `unread` bytes in it, this process inherited from `owner`.
    fn heir_of(owner: u32, unread: usize) -> (&'static Socket, &'static Family) {
        let [a, b] = links();
        let index = testing::stream(a, b);
        let sock = testing::writer(a, b, index);
        if unread != 0 {
            assert!(crate::send::publish(sock, 0, unread));
        }
        sock.tx.state.forked();
        let family = sock.family_or_take().unwrap();
        family.begin_stream(owner);
        (sock, family)
    }

    #[test]
    fn an_owner_that_has_left_the_stream_is_not_asked() {
        let (sock, family) = heir_of(INIT, 0);
        family.hand_both();
        assert_eq!(demote::settle_tx(sock, Reason::Fork), Resent::All);
        assert!(!family.is_wanted());
        assert_eq!(sock.tx.state(), State::Plain);
        assert!(sock.link().is_none());
    }

    #[test]
    fn a_writer_comes_back_while_the_owner_waits_for_room() {
        let (sock, family) = heir_of(INIT, 0);
        family.begin_resend();
        assert_eq!(demote::settle_tx(sock, Reason::Fork), Resent::NoRoom);
        assert_eq!(sock.tx.state(), State::Inherited);
        family.hand_writing();
        family.hand_reading();
        assert_eq!(demote::settle_tx(sock, Reason::Fork), Resent::All);
        assert_eq!(sock.tx.state(), State::Plain);
    }

    #[test]
    fn of_a_dead_owner_the_relative_takes_the_stream_back() {
        let (sock, family) = heir_of(NOBODY, 3);
        demote::settle_tx(sock, Reason::Fork);
        assert_eq!(family.owner(), process::pid());
        assert!(family.handing().has_left());
        assert_eq!(sock.tx.state(), State::Plain);
    }

    #[test]
    fn an_owner_that_died_while_it_sent_again_has_no_heir() {
        let (sock, family) = heir_of(NOBODY, 3);
        family.begin_resend();
        assert_eq!(demote::settle_tx(sock, Reason::Fork), Resent::All);
        assert_eq!(family.owner(), NOBODY);
        assert!(family.handing().has_left());
        assert_eq!(sock.tx.state(), State::Plain);
    }
}
