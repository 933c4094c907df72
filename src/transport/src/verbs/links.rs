//! What a link to another host is asked for by threads that look at it, or sleep on it.

use super::terms::Lost;
use super::wire::wire_of;
use sluice_fabric::shm::Link;

/// Does the link go to another host?
#[inline]
pub fn is_to_another_host(link: &Link) -> bool {
    link.keeper() != 0
}

/// The program has moved a word of stream `index`; false: no wire plays the other end.
#[inline]
pub fn moved(link: &Link, index: u32) -> bool {
    let Some(wire) = wire_of(link) else {
        return false;
    };
    if !link.is_foreign() {
        if sluice_runtime::fault::cuts() {
            wire.lose(Lost::Silent);
        }
        wire.moved(index as u16);
    }
    true
}

/// The program has left stream `index`; false: no wire plays the other end.
pub fn left(link: &Link, index: u32) -> bool {
    let Some(wire) = wire_of(link) else {
        return false;
    };
    wire.leave(index as u16);
    true
}

/// Takes and gives all that can be, for a thread of the program that looks for news; false: no wire
/// plays the other end.
#[inline]
pub fn drive(link: &Link) -> bool {
    let Some(wire) = wire_of(link).filter(|_| !link.is_foreign()) else {
        return false;
    };
    wire.drive();
    true
}

/// Before a sleep on streams of the link: what comes by it from now on wakes waiters for
/// [`bell`]. False: nothing comes, since a handler that interrupted this thread's own driving is to
/// sleep.
pub fn arm(link: &Link) -> bool {
    let wire = wire_of(link).filter(|_| !link.is_foreign());
    wire.is_none_or(|wire| {
        wire.arm();
        !wire.is_interrupted()
    })
}
