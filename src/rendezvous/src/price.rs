//! Budgets for a peer's records: each record has a price, and a peer that exceeds its budget is
//! given up.
//!
//! A link between two busy servers needs some thousand records in a second: three for a connection
//! that joins it, one for each that leaves it, one for each waiter that comes or goes. Ring data
//! needs none.

use super::message::Kind;
use sluice_fabric::bucket::{Bucket, Rate};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;

/// Budget of one link. The cheapest record, Wake, rings a waiter that has no doorbell: that takes 2
/// us.
const RECORDS: Rate = Rate {
    most: 1 << 18,
    // A test machine may be slow.
    per_second: if cfg!(test) { 2000 } else { 200_000 },
};
/// Budget of all links with the processes of one other user.
const RECORDS_OF_USER: Rate = Rate {
    most: 1 << 19,
    per_second: 400_000,
};
/// Budget for doorbells of one link. Each needs a descriptor at both ends, and the program's own
/// `dup` and `open` wait while it is made. A waiter without one is rung by its own control thread.
const BELLS: Rate = Rate {
    most: 128,
    per_second: 100,
};

/// Number of budgets for users.
const USERS: usize = 64;

/// Budgets of users, by user number modulo [`USERS`]. Users with the same place share one.
static USER: [Bucket; USERS] = [const { Bucket::new() }; USERS];

const fn price(kind: Kind) -> u32 {
    match kind {
        Kind::Wake => 1,
        // Searches all meetings, and may be kept.
        Kind::Ask | Kind::Grant => 8,
        _ => 4,
    }
}

/// Pays for a record that has come over the link. False: the link must be given up.
pub(super) fn may_say(link: &Link, kind: Kind) -> bool {
    let (price, now) = (price(kind), sys::now_ns());
    if !link.record_budget().spend(RECORDS, price, now) {
        return false;
    }
    if link.is_of_same_user() {
        return true;
    }
    let uid = link.peer_uid();
    let bucket = USER.get(uid as usize % USERS);
    bucket.is_none_or(|bucket| bucket.spend(RECORDS_OF_USER, price, now))
}

/// Pays for one more doorbell. False: the peer gets none.
pub(super) fn may_have_bell(link: &Link) -> bool {
    link.bell_budget().spend(BELLS, 1, sys::now_ns())
}
