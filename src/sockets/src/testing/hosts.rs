//! For tests: two hosts in this process, with a device in memory between them. Outside tests
//! `rendezvous/hosts` has them meet, and looks after their link.

use crate::socket::{self, Socket};
use crate::{carrier, jobs, path, upgrade, wake};
use core::sync::atomic::Ordering;
use sluice_fabric::arena::Arena;
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_fabric::verbs::fake::{self, Faults, Kind};
use sluice_runtime::control_thread;
use sluice_stream::record::{Nonce, Role};
use sluice_transport::links;
use sluice_transport::verbs;
use sluice_transport::verbs::endpoint::{Endpoint, Hello, Lost, Note};
use sluice_transport::verbs::queue::{self, BELL, QUEUE};
use sluice_transport::verbs::users::{self, Users};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long TCP may take to show that the peer has died, in ns.
const DYING_NS: u64 = 20_000_000;

/// One end of a link between two hosts.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// The end of the arena that the program uses.
    pub near: &'static Link,
    far: &'static Link,
    endpoint: &'static Endpoint,
}

/// A link that the control thread looks after.
#[derive(Debug)]
struct Up {
    ends: [Host; 2],
    lost: [Option<u64>; 2],
}

static UPS: Mutex<Vec<Up>> = Mutex::new(Vec::new());

fn ups() -> MutexGuard<'static, Vec<Up>> {
    UPS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    fn new(id: sluice_fabric::verbs::cm::Id) -> (Self, Hello) {
        let links = Link::open_both(Arena::create_local().unwrap(), [0, 1], false).unwrap();
        let endpoint: &Endpoint = Box::leak(Box::new(Endpoint::new(control_thread::poke)));
        let hello = endpoint.begin(id, links).unwrap();
        let [near, far] = links;
        near.set_keeper(core::ptr::from_ref(endpoint).addr());
        near.pin();
        far.pin();
        verbs::watch(endpoint.descriptor().unwrap(), QUEUE, BELL);
        endpoint.arm();
        let host = Self {
            near,
            far,
            endpoint,
        };
        (host, hello)
    }

    /// Returns whether both ends of the arena have left all streams; their pin counts as one.
    fn is_left(&self) -> bool {
        self.near.stream_count() == 1 && self.far.stream_count() == 1
    }

    /// Returns whether the link is lost.
    pub fn is_lost(&self) -> bool {
        self.endpoint.is_lost().is_some()
    }

    /// Loses the link, as when the device has failed.
    pub fn lose(&self) {
        self.endpoint.lose(Lost::Gone);
    }

    fn end(&self) {
        self.near.set_keeper(0);
        self.endpoint.end();
        for link in [self.far, self.near] {
            link.kill();
            link.unpin();
            link.close_if_unused();
        }
    }
}

/// Connects two hosts by a new link, over devices with these faults.
pub fn connect(kind: Kind, faults: Faults) -> [Host; 2] {
    users::used_by(Users {
        wake: |near, waiters, index| {
            let _ = wake::own(near, waiters, index);
        },
        wake_threads: wake::own_threads,
        owes: crate::unread_copy::owed::owes_on,
        bell_goes: |_| {},
    });
    links::set_driven(true);
    let [(a, to_b), (b, to_a)] = fake::connection(kind, faults).map(Host::new);
    a.endpoint.heard(to_a);
    b.endpoint.heard(to_b);
    let ends = [a, b];
    for end in ends {
        end.endpoint.stands();
    }
    // The memory of a link that was left would stay registered, and the limit is low.
    assert!(ups().is_empty(), "a test before this one has failed");
    ups().push(Up {
        ends,
        lost: [None; 2],
    });
    ends
}

/// Waits until all streams of the link are left, and ends it.
pub fn disconnect(ends: [Host; 2]) {
    let until = sys::now_ns() + 5_000_000_000;
    while !ends.iter().all(Host::is_left) {
        assert!(sys::now_ns() < until, "streams are not left: {ends:?}");
        control_thread::poke();
        std::thread::yield_now();
    }
    ups().retain(|up| !core::ptr::eq(up.ends[0].near, ends[0].near));
    for end in ends {
        end.end();
    }
}

/// Gives both ends of a connection a stream, as a question over the link and its answer do. Returns
/// false if one of them cannot have one.
pub fn meet(hosts: [Host; 2], socks: [&'static Socket; 2]) -> bool {
    let [a, b] = [0, 1].map(|i| {
        let owner = core::ptr::from_ref(socks[i]).addr();
        hosts[i].endpoint.offer(64 << 10, owner)
    });
    let offers = match (a, b) {
        (Ok(a), Ok(b)) => [a, b],
        (a, b) => {
            for (host, offer) in hosts.iter().zip([a, b]) {
                if let Ok(offer) = offer {
                    host.endpoint.withdraw(offer.stream);
                }
            }
            return false;
        }
    };
    let attach = |i: usize, role| {
        let (endpoint, sock, ours) = (hosts[i].endpoint, socks[i], offers[i]);
        let owner = core::ptr::from_ref(sock).addr();
        let generation = sock.generation.load(Ordering::Acquire);
        let terms = (role, Nonce::new([7; 16]));
        let read = sock.rx.kernel_bytes();
        if endpoint
            .open(ours, offers[1 - i], terms, (read, path::of(sock)), owner)
            .is_err()
        {
            return false;
        }
        let index = u32::from(ours.stream);
        let attached = upgrade::attach(sock, generation, hosts[i].near, index);
        if attached.is_err() {
            hosts[i].near.leave_stream(index);
            match role {
                Role::First => endpoint.leave(ours.stream),
                Role::Second => endpoint.discard(ours.stream),
            }
        }
        attached.is_ok()
    };
    // The end that was asked opens first, and the other one when it hears of that.
    if !attach(1, Role::Second) {
        hosts[0].endpoint.withdraw(offers[0].stream);
        return false;
    }
    let both = attach(0, Role::First);
    jobs::advance(socks[0]);
    both
}

/// What the control thread does for these links. Returns the ns until something is due.
pub(super) fn progress() -> Option<u64> {
    let now = sys::now_ns();
    let mut next = queue::see_to_leases(now);
    queue::drive_all();
    for up in ups().iter_mut() {
        for (i, end) in up.ends.iter().enumerate() {
            while let Some(note) = end.endpoint.note() {
                match note {
                    Note::Stream(index) => {
                        let sock = socket::sock_of(end.near, u32::from(index));
                        sock.into_iter().for_each(carrier::advance);
                    }
                    Note::Pages => end.endpoint.see_to_pages(),
                    _ => {}
                }
            }
            end.endpoint.watch(false);
            next = next.into_iter().chain(end.endpoint.tick(now)).min();
            if !end.is_lost() {
                continue;
            }
            // As the connection manager tells the other end.
            up.ends[1 - i].endpoint.lose(Lost::Gone);
            end.near.kill();
            end.far.kill();
            let until = *up.lost[i].get_or_insert(now + DYING_NS);
            if until != 0 && carrier::lost(end.near, end.endpoint, now >= until) {
                up.lost[i] = Some(0);
                socket::watcher::link_lost(end.near);
            }
            next = next.into_iter().chain([DYING_NS / 10]).min();
        }
    }
    next
}
