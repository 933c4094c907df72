//! Budgets for a peer's records: each record has a price, and a peer that exceeds its budget is
//! given up.
//!
//! A link between two busy servers needs some thousand records in a second: three for a connection
//! that joins it, one for each that leaves it, one for each waiter that comes or goes. Rings and
//! bytes need none.

use super::message::Kind;
use sluice_fabric::bucket::{Bucket, Rate};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;

/// Of one link. The cheapest record, Wake, is a ring where there is no doorbell: two millionths of
/// a second.
const RECORDS: Rate = Rate {
    most: 1 << 18,
    // A test machine may be slow.
    per_second: if cfg!(test) { 2000 } else { 200_000 },
};
/// Of all links with the processes of one other user.
const RECORDS_OF_USER: Rate = Rate {
    most: 1 << 19,
    per_second: 400_000,
};
/// Doorbells of one link: each needs a descriptor at both ends, and is made while the program's own
/// `dup` and `open` wait. A waiter without one is rung by its own control thread.
const BELLS: Rate = Rate {
    most: 128,
    per_second: 100,
};

/// Budgets for users.
const USERS: usize = 64;

/// Budgets of users, by their number. Two with the same place have one: there is no way to begin
/// anew.
static USER: [Bucket; USERS] = [const { Bucket::new() }; USERS];

const fn price(kind: Kind) -> u32 {
    match kind {
        Kind::Wake => 1,
        // Looked for among all that look for their peer, and kept.
        Kind::Ask | Kind::Grant => 8,
        _ => 4,
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
    let bucket = USER.get(uid as usize % USERS);
    bucket.is_none_or(|bucket| bucket.spend(RECORDS_OF_USER, price, now))
}

/// May the peer have one more doorbell made?
pub(super) fn may_have_bell(link: &Link) -> bool {
    link.bell_budget().spend(BELLS, 1, sys::now_ns())
}
