//! What threads call that look at links or sleep on them. Nobody has to drive a link in memory, so
//! for one of those these do nothing.

use crate::verbs::endpoint::endpoint_of;
pub use crate::verbs::queue::{arm_all, bell, drive_all, unbell};
use crate::verbs::terms::Lost;
use sluice_fabric::shm::Link;
/// Whether this process has looked for other hosts: some link may have to be driven.
pub use sluice_runtime::thread::{runs_devices as are_driven, set_runs_devices as set_driven};

/// The program moved a cursor of stream `index`. False if no endpoint plays the other end.
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

/// The program left stream `index`. False if no endpoint plays the other end.
pub fn left(link: &Link, index: u32) -> bool {
    let Some(endpoint) = endpoint_of(link) else {
        return false;
    };
    endpoint.leave(index as u16);
    true
}

/// Drives the link's endpoint, for a thread of the program that looks for news. False if no
/// endpoint plays the other end.
#[inline]
pub fn drive(link: &Link) -> bool {
    let Some(endpoint) = endpoint_of(link).filter(|_| !link.is_foreign()) else {
        return false;
    };
    endpoint.drive();
    true
}

/// Before a sleep on streams of the link: its later news make the descriptor readable that [`bell`]
/// watches. Returns false in a signal handler that interrupted this thread's own driving: nobody
/// can drive the endpoint then, so news would not come.
pub fn arm(link: &Link) -> bool {
    let endpoint = endpoint_of(link).filter(|_| !link.is_foreign());
    endpoint.is_none_or(|endpoint| {
        endpoint.arm();
        !endpoint.is_interrupted()
    })
}
