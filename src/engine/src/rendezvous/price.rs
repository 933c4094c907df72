//! What a peer's records cost it: each has a price, and who has spent more than comes in is given up.
//!
//! A link between two busy servers needs some thousand records in a second: three for a connection that joins it, one for each that leaves
//! it, one for each waiter that comes or goes. Rings and bytes need none.

use super::message::Kind;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice_fabric::bucket::{Bucket, Rate};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;

/// Of one link: some hundred thousandths of a second each, so a twentieth of a processor at most.
const RECORDS: Rate = Rate {
    most: 1 << 14,
    // A test machine may be slow.
    per_second: if cfg!(test) { 500 } else { 50_000 },
};
/// Of all links with the processes of one other user.
const RECORDS_OF_USER: Rate = Rate {
    most: 1 << 16,
    per_second: 200_000,
};
/// Doorbells of one link: each needs a descriptor at both ends, and is made while the program's own `dup` and `open` wait. A waiter without one
/// is rung by its own control thread.
const BELLS: Rate = Rate {
    most: 128,
    per_second: 100,
};

/// Users whose spending is known at once.
const USERS: usize = 64;

/// A user, plus 1, and his budget. Of two with the same place the later one begins anew.
static USER: [(AtomicU32, Bucket); USERS] = [const { (AtomicU32::new(0), Bucket::new()) }; USERS];

const fn price(kind: Kind) -> u32 {
    match kind {
        // Looked for among all that look for their peer, and kept.
        Kind::Ask => 4,
        Kind::Grant => 2,
        _ => 1,
    }
}

/// A record has come over the link: may the peer have it? Else the link is to be given up.
pub(super) fn may_say(link: &Link, kind: Kind) -> bool {
    let (price, now) = (price(kind), sys::now_ns());
    if !link.record_budget().spend(RECORDS, price, now) {
        return false;
    }
    if link.is_of_same_user() {
        return true;
    }
    let uid = link.peer_uid();
    let Some((user, bucket)) = USER.get(uid as usize % USERS) else {
        return true;
    };
    let name = uid.wrapping_add(1);
    if user.swap(name, Ordering::Relaxed) != name {
        bucket.fill();
    }
    bucket.spend(RECORDS_OF_USER, price, now)
}

/// May the peer have one more doorbell made?
pub(super) fn may_have_bell(link: &Link) -> bool {
    link.bell_budget().spend(BELLS, 1, sys::now_ns())
}
