//! Every interleaving of the words, the ring and the handshake, by loom, and of copies with one bug
//! each, which must fail. Run by `scripts/loom.sh`.
#![cfg(loom)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_macros,
    reason = "a test fails by panicking, prints, and runs in no one's program"
)]

mod common;

use common::cursors::*;
use common::sleep::{self, Copied as Slots, Look, Plan as Sleep};
use sluice_fabric::doorbell::Slot;

/// `body` in every interleaving, up to the number of preemptions that the script sets.
fn all(body: impl Fn() + Send + Sync + 'static) {
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = count.clone();
    let start = std::time::Instant::now();
    loom::model(move || {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        body();
    });
    let count = count.load(std::sync::atomic::Ordering::Relaxed);
    println!("{count} interleavings in {:?}", start.elapsed());
}

const QUIET: Plan = Plan {
    sends: &[1, 1, 1],
    writer_demotes: None,
    recvs: 2,
    reader_demotes: None,
    third: Third::Absent,
};
const BY_THIRD: Plan = Plan {
    third: Third::Demotes,
    ..QUIET
};
const BY_WRITER: Plan = Plan {
    writer_demotes: Some(2),
    recvs: 3,
    ..QUIET
};
const BY_READER: Plan = Plan {
    reader_demotes: Some(1),
    ..QUIET
};
const BY_BOTH: Plan = Plan {
    writer_demotes: Some(1),
    reader_demotes: Some(1),
    ..QUIET
};
const BY_ALL: Plan = Plan {
    third: Third::Demotes,
    ..BY_BOTH
};
const HALFWAY: Plan = Plan {
    third: Third::DiesHalfway,
    ..QUIET
};

/// One test per line: a name, an algorithm, a plan; before it, whether it must fail, and how.
macro_rules! models {
    ($($(#[$attr:meta])* $name:ident: $body:expr;)*) => {
        $($(#[$attr])* #[test] fn $name() { all(|| $body); })*
    };
}

mod demotion {
    use super::*;
    use common::cursors::demotion;

    models! {
        by_third: demotion::<Real>(BY_THIRD);
        by_writer: demotion::<Real>(BY_WRITER);
        by_reader: demotion::<Real>(BY_READER);
        by_both: demotion::<Real>(BY_BOTH);
        by_all: demotion::<Real>(BY_ALL);
        halfway: demotion::<Real>(HALFWAY);
        two_byte_sends: demotion::<Real>(Plan { sends: &[2, 1, 2], ..BY_THIRD });
        copy_without_bug: demotion::<Bug<NONE, NONE>>(BY_THIRD);
    }

    models! {
        #[should_panic(expected = "bytes lost or repeated")]
        reader_stores_beside_third: demotion::<Bug<NONE, ADVANCE_STORES>>(BY_THIRD);
        #[should_panic(expected = "bytes lost or repeated")]
        reader_stores_beside_writer: demotion::<Bug<NONE, ADVANCE_STORES>>(BY_WRITER);
        #[should_panic(expected = "seized, but the end is not fixed")]
        failed_consume_relaxed: demotion::<Bug<NONE, FAIL_RELAXED>>(BY_THIRD);
        #[should_panic(expected = "two answers to one demotion")]
        writer_stores_beside_reader: demotion::<Bug<ADVANCE_STORES, NONE>>(BY_READER);
        #[should_panic(expected = "two answers to one demotion")]
        writer_stores_beside_third: demotion::<Bug<ADVANCE_STORES, NONE>>(BY_THIRD);
        #[should_panic(expected = "bytes lost or repeated")]
        seal_is_a_store: demotion::<Bug<FLAG_STORES, NONE>>(BY_THIRD);
        #[should_panic(expected = "bytes lost or repeated")]
        seize_is_a_store: demotion::<Bug<NONE, FLAG_STORES>>(BY_THIRD);
        #[should_panic(expected = "seized, but the end is not fixed")]
        seize_before_seal: demotion::<SeizeBeforeSeal>(BY_THIRD);
        #[should_panic(expected = "seized, but the end is not fixed")]
        seize_before_seal_halfway: demotion::<SeizeBeforeSeal>(HALFWAY);
        #[should_panic(expected = "bytes lost or repeated")]
        seal_without_seize: demotion::<SealWithoutSeize>(BY_WRITER);
        #[should_panic(expected = "bytes lost or repeated")]
        resend_without_seize: demotion::<ResendWithoutSeize>(BY_WRITER);
    }
}

mod offers {
    use super::*;
    use common::offers::{Bug as Wrong, Plan as Offers, offers};

    const ONE: Offers = Offers {
        bug: Wrong::None,
        messages: 1,
        patience: 1,
        looks: 2,
        short: false,
        demoted: false,
    };
    const TWO: Offers = Offers { messages: 2, ..ONE };
    const DEMOTED: Offers = Offers {
        demoted: true,
        patience: 0,
        looks: 1,
        ..ONE
    };

    models! {
        withdrawn: offers(ONE);
        in_a_row: offers(TWO);
        in_pieces: offers(Offers { short: true, ..ONE });
        demoted: offers(DEMOTED);
        demoted_in_pieces: offers(Offers { short: true, ..DEMOTED });
    }

    models! {
        #[should_panic(expected = "bytes lost or repeated")]
        round_is_not_compared: offers(Offers { bug: Wrong::AnyRound, ..ONE });
        #[should_panic(expected = "bytes lost or repeated")]
        withdrawal_only_looks: offers(Offers { bug: Wrong::WithdrawOnlyLooks, ..ONE });
        #[should_panic(expected = "bytes lost or repeated")]
        taken_before_copied: offers(Offers { bug: Wrong::TakeFirst, ..ONE });
        #[should_panic(expected = "bytes lost or repeated")]
        taken_is_sent_again: offers(Offers { bug: Wrong::TakenIsForgotten, ..DEMOTED });
        #[should_panic(expected = "bytes lost or repeated")]
        tail_stays: offers(Offers { bug: Wrong::TailStays, looks: 3, ..TWO });
    }
}

mod ring {
    use super::*;
    use common::cursors::ring;

    models! {
        bytes_pass: ring::<Real>(&[1, 1, 1, 1], 1);
        pieces_pass: ring::<Real>(&[1, 2, 2], 2);
        copy_without_bug: ring::<Bug<NONE, NONE>>(&[1, 2, 1], 2);
    }

    models! {
        #[should_panic(expected = "Causality violation")]
        tail_publishes_nothing: ring::<Bug<ADVANCE_RELAXED, NONE>>(&[1, 2, 1], 2);
        #[should_panic(expected = "Causality violation")]
        tail_read_relaxed: ring::<Bug<READ_RELAXED, NONE>>(&[1, 2, 1], 2);
        #[should_panic(expected = "Causality violation")]
        head_publishes_nothing: ring::<Bug<NONE, ADVANCE_RELAXED>>(&[1, 2, 1], 2);
        #[should_panic(expected = "Causality violation")]
        head_read_relaxed: ring::<Bug<NONE, READ_RELAXED>>(&[1, 2, 1], 2);
        #[should_panic(expected = "Causality violation")]
        overrun: ring::<Overrun>(&[1, 1, 1], 1);
    }
}

const BLOCKING: Sleep = Sleep {
    look: Look::Word,
    wakers: &[(0, 2)],
    rounds: 3,
};
const ONE: Sleep = Sleep {
    look: Look::Marks,
    wakers: &[(64, 2)],
    rounds: 3,
};
const ONCE: Sleep = Sleep {
    wakers: &[(64, 1)],
    ..ONE
};
const TWO: Sleep = Sleep {
    wakers: &[(0, 1), (1, 1)],
    rounds: 2,
    ..ONE
};
const APART: Sleep = Sleep {
    wakers: &[(0, 1), (64, 1)],
    rounds: 2,
    ..ONE
};
const FAR_APART: Sleep = Sleep {
    wakers: &[(64, 1), (256, 1)],
    ..APART
};
const ALONE: Sleep = Sleep {
    wakers: &[(0, 1)],
    ..ONE
};

mod doorbell {
    use super::sleep::*;
    use super::*;

    models! {
        blocking: handshake::<Slot>(BLOCKING);
        one_waker: handshake::<Slot>(ONE);
        two_wakers: handshake::<Slot>(TWO);
        two_words: handshake::<Slot>(APART);
        two_words_of_two_sums: handshake::<Slot>(FAR_APART);
        copy_without_bug: handshake::<Slots<{ sleep::NONE }>>(ONE);
        copy_without_bug_two: handshake::<Slots<{ sleep::NONE }>>(TWO);
        copy_without_bug_torn: torn_handshake::<{ sleep::NONE }>(ALONE);
    }

    models! {
        #[should_panic(expected = "lost wake-up")]
        no_waker_fence: handshake::<Slots<NO_WAKER_FENCE>>(BLOCKING);
        #[should_panic(expected = "lost")]
        no_waker_fence_marks: handshake::<Slots<NO_WAKER_FENCE>>(ONE);
        #[should_panic(expected = "lost wake-up")]
        no_sleeper_fence: handshake::<Slots<NO_SLEEPER_FENCE>>(BLOCKING);
        #[should_panic(expected = "lost wake-up")]
        no_sleeper_fence_marks: handshake::<Slots<NO_SLEEPER_FENCE>>(ONE);
        #[should_panic(expected = "lost wake-up")]
        no_fence_behind_mark: handshake::<Slots<NO_MARK_FENCE>>(ONE);
        #[should_panic(expected = "lost")]
        no_fence_behind_take: handshake::<Slots<NO_TAKE_FENCE>>(ONE);
        #[should_panic(expected = "lost")]
        take_after_look: handshake::<Slots<TAKE_LATE>>(ONE);
        #[should_panic(expected = "lost")]
        summary_before_bit: handshake::<Slots<SUMMARY_FIRST>>(ONCE);
        #[should_panic(expected = "lost wake-up")]
        ring_before_mark: handshake::<Slots<RING_FIRST>>(ONCE);
        #[should_panic(expected = "lost wake-up")]
        sleeper_does_not_look: handshake::<Slots<NO_LOOK>>(ONE);
        #[should_panic(expected = "lost")]
        torn_mark_is_trusted: torn_handshake::<TRUSTS_SUMMARY>(ALONE);
        #[should_panic(expected = "lost")]
        marked_is_not_rung: torn_handshake::<MARKED_IS_RUNG>(ALONE);
        #[should_panic(expected = "lost")]
        take_is_a_store: handshake::<Slots<TAKE_STORES>>(TWO);
    }
}

mod whole {
    use super::sleep::*;
    use super::*;

    /// Both ways of looking.
    fn run<S: Waiter>(sends: &'static [u64], reader_demotes: bool, look: Look) {
        sleeping_reader::<S>(sends, reader_demotes, look);
    }

    models! {
        blocking_reader: run::<Slot>(&[1, 1], false, Look::Word);
        blocking_reader_demotes: run::<Slot>(&[1, 1, 1], true, Look::Word);
        marked_reader: run::<Slot>(&[1], false, Look::Marks);
        marked_reader_demotes: run::<Slot>(&[1, 1, 1], true, Look::Marks);
    }

    models! {
        #[should_panic(expected = "lost wake-up")]
        no_waker_fence: run::<Slots<NO_WAKER_FENCE>>(&[1, 1], false, Look::Word);
        #[should_panic(expected = "lost wake-up")]
        no_sleeper_fence: run::<Slots<NO_SLEEPER_FENCE>>(&[1, 1], false, Look::Word);
        #[should_panic(expected = "lost wake-up")]
        sleeper_does_not_look: run::<Slots<NO_LOOK>>(&[1], false, Look::Marks);
        #[should_panic(expected = "lost")]
        no_fence_behind_mark: run::<Slots<NO_MARK_FENCE>>(&[1, 1], true, Look::Marks);
    }
}
