//! What a link to another host is asked for by threads that look at it, or sleep on it.

use super::endpoint::endpoint_of;
use super::terms::Lost;
use sluice_fabric::shm::Link;

/// Does the link go to another host?
#[inline]
pub fn is_to_another_host(link: &Link) -> bool {
    link.keeper() != 0
}

/// The program has moved a word of stream `index`; false: no endpoint plays the other end.
#[inline]
pub fn moved(link: &Link, index: u32) -> bool {
    let Some(endpoint) = endpoint_of(link) else {
        return false;
    };
    if !link.is_foreign() {
        if sluice_runtime::fault::cuts() {
            endpoint.lose(Lost::Silent);
        }
        endpoint.moved(index as u16);
    }
    true
}

/// The program has left stream `index`; false: no endpoint plays the other end.
pub fn left(link: &Link, index: u32) -> bool {
    let Some(endpoint) = endpoint_of(link) else {
        return false;
    };
    endpoint.leave(index as u16);
    true
}

/// Takes and gives all that can be, for a thread of the program that looks for news; false: no
/// endpoint plays the other end.
#[inline]
pub fn drive(link: &Link) -> bool {
    let Some(endpoint) = endpoint_of(link).filter(|_| !link.is_foreign()) else {
        return false;
    };
    endpoint.drive();
    true
}

/// Before a sleep on streams of the link: what comes by it from now on wakes waiters for
/// [`bell`]. False: nothing comes, since a handler that interrupted this thread's own driving is to
/// sleep.
pub fn arm(link: &Link) -> bool {
    let endpoint = endpoint_of(link).filter(|_| !link.is_foreign());
    endpoint.is_none_or(|endpoint| {
        endpoint.arm();
        !endpoint.is_interrupted()
    })
}
