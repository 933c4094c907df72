//! Tests with two ends, each run in a host of its own: which end this is, and how the two come to a
//! connection.

use sluice_fabric::verbs::api;
use sluice_fabric::verbs::cm::{Channel, Event, Id};

/// Does nothing unless `SLUICE_VERBS_ROLE` says which of the two this is: `listen=ADDR:PORT`, or
/// `dial=ADDR:PORT`.
pub fn play(listen: fn(&str), dial: fn(&str)) {
    let Ok(role) = std::env::var("SLUICE_VERBS_ROLE") else {
        return;
    };
    match role.split_once('=') {
        Some(("listen", at)) => listen(at),
        Some(("dial", to)) => dial(to),
        _ => panic!("SLUICE_VERBS_ROLE={role}"),
    }
}

/// The next event, which comes within 10 s.
pub fn event(channel: &Channel) -> Event {
    loop {
        let mut poll = libc::pollfd {
            fd: channel.descriptor(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 10_000) };
        assert_eq!(ready, 1, "no event in 10 s");
        if let Some(event) = channel.next() {
            return event;
        }
    }
}

/// Somebody has asked at this address, by key 2 from here on, with these data; and the listener.
pub fn asked(channel: &Channel, at: &str) -> (Id, Vec<u8>, Id) {
    let listener = Id::listen(channel, 1, at.parse().unwrap()).unwrap();
    println!("port {}", listener.port());
    let Event::Asked(1, id, data) = event(channel) else {
        panic!()
    };
    id.set_key(2);
    (id, data, listener)
}

/// There is a route to this address, by key 3.
pub fn routed(channel: &Channel, to: &str) -> Id {
    let id = Id::dial(channel, 3, None, to.parse().unwrap(), 1000).unwrap();
    let Event::Resolved(3) = event(channel) else {
        panic!()
    };
    id.route(1000).unwrap();
    let Event::Routed(3) = event(channel) else {
        panic!()
    };
    id
}

/// A channel of this host's, which has a device.
pub fn channel() -> Channel {
    Channel::new(api::load().unwrap()).unwrap()
}
