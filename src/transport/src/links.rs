//! What a thread calls that looks at a link or sleeps on it. A link in memory needs no driving, so
//! these do nothing for it.

use crate::verbs::endpoint::endpoint_of;
pub use crate::verbs::queue::{arm_all, bell, drive_all, unbell};
use crate::verbs::terms::Lost;
use sluice_fabric::shm::Link;
/// Whether this process has looked for other hosts, so that a link may have to be driven.
pub use sluice_runtime::thread::{runs_devices as are_driven, set_runs_devices as set_driven};

/// Tells the endpoint that the program has moved a cursor of stream `index`. Returns false if no
/// endpoint plays the other end.
#[inline]
pub fn moved(link: &Link, index: u32) -> bool {
    let Some(endpoint) = endpoint_of(link) else {
        return false;
    };
    if !link.is_foreign() {
        if sluice_runtime::fault::cuts() {
            endpoint.lose(Lost::Silent);
        }
        if sluice_runtime::fault::cuts_direct() {
            endpoint.lose_direct_qp();
        }
        endpoint.moved(index as u16);
    }
    true
}

/// Tells the endpoint that the program has left stream `index`. Returns false if no endpoint plays
/// the other end.
pub fn left(link: &Link, index: u32) -> bool {
    let Some(endpoint) = endpoint_of(link) else {
        return false;
    };
    endpoint.leave(index as u16);
    true
}

/// Drives the link's endpoint, for a thread of the program that looks for news. Returns false if no
/// endpoint plays the other end, or if it is the parent's.
#[inline]
pub fn drive(link: &Link) -> bool {
    let Some(endpoint) = endpoint_of(link).filter(|_| !link.is_foreign()) else {
        return false;
    };
    endpoint.drive();
    true
}

/// Called before a sleep on streams of the link: from then on their news make the descriptor of
/// [`bell`] readable. Returns false in a signal handler that interrupted this thread's own driving:
/// no thread can drive the endpoint then, so news would not come.
pub fn arm(link: &Link) -> bool {
    let endpoint = endpoint_of(link).filter(|_| !link.is_foreign());
    endpoint.is_none_or(|endpoint| {
        endpoint.arm();
        !endpoint.is_interrupted()
    })
}
