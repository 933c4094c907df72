//! Offers: one writer that offers and withdraws, one reader that copies and takes, and a third that
//! demotes. The writer's buffer is overwritten at once when the offer is over, as a program would.

use super::rt::{Arc, pause, thread};
use sluice_fabric::cursors::{self, Withdrawal, Word, follow};
use sluice_fabric::sync::{AtomicU64, Ordering};

/// Which one step is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// The reader takes without looking at the round.
    AnyRound,
    /// A withdrawal reads the head and leaves it as it is.
    WithdrawOnlyLooks,
    /// The take is made before the copy.
    TakeFirst,
    /// A writer that is demoted with an offer up sends all of it again.
    TakenIsForgotten,
    /// The tail does not follow a take, and the writer goes on where it was.
    TailStays,
}

/// What the threads do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub bug: Bug,
    /// Messages, of two bytes each.
    pub messages: u64,
    /// Looks at the head before an offer is withdrawn.
    pub patience: usize,
    /// Looks of the reader.
    pub looks: usize,
    /// Of an offer of two bytes the reader takes one.
    pub short: bool,
    /// Somebody demotes meanwhile.
    pub demoted: bool,
}

const LEN: u64 = 2;

#[derive(Default)]
struct Dir {
    tail: Word,
    head: Word,
    /// Offer: (number + 1) << 8 | round, sequence, and the writer's buffer: first byte of two.
    offer: AtomicU64,
    seq: AtomicU64,
    buffer: AtomicU64,
}

/// The bytes from `from` on, counted, as the stream has them.
fn bytes(from: u64, n: u64) -> impl Iterator<Item = u64> {
    from..from + n
}

/// The number in a buffer that the program has overwritten.
const SPOILT: u64 = 1 << 40;

/// Every byte arrives once, in order: by takes, or on TCP.
pub fn offers(plan: Plan) {
    let dir = Arc::new(Dir::default());
    let reader = {
        let dir = dir.clone();
        thread::spawn(move || read(&dir, plan))
    };
    let third = plan.demoted.then(|| {
        let dir = dir.clone();
        thread::spawn(move || cursors::demote(&dir.tail, &dir.head))
    });
    let tcp = write(&dir, plan);
    let mut got = reader.join().unwrap();
    if let Some(third) = third {
        third.join().unwrap();
    }
    got.extend(tcp);
    let sent: Vec<u64> = bytes(0, plan.messages * LEN).collect();
    assert_eq!(got, sent, "bytes lost or repeated");
}

/// The writer; what it put on TCP.
fn write(dir: &Dir, plan: Plan) -> Vec<u64> {
    let mut at = 0;
    let mut round = 0;
    let mut tcp = None;
    for message in 0..plan.messages {
        let mut next = message * LEN;
        let end = next + LEN;
        while next < end && tcp.is_none() {
            let taken = offer(dir, plan, message, next, &mut at, &mut round);
            match taken {
                Ok(0) => {
                    // Nobody took it. There is no ring in this model: demoted.
                    tcp = Some(Vec::new());
                    let (start, _) = cursors::demote(&dir.tail, &dir.head);
                    assert_eq!(
                        start, at,
                        "bytes lost or repeated: taken after a withdrawal"
                    );
                }
                Ok(n) => next += n,
                Err(n) => {
                    next += n;
                    tcp = Some(Vec::new());
                }
            }
        }
        if let Some(tcp) = &mut tcp {
            tcp.extend(bytes(next, end - next));
        }
    }
    let (start, end) = cursors::demote(&dir.tail, &dir.head);
    assert!(start >= end, "bytes lost or repeated: left in the link");
    tcp.unwrap_or_default()
}

/// One offer, made twice if need be: bytes taken, or with `Err` those taken before a demotion.
fn offer(
    dir: &Dir,
    plan: Plan,
    message: u64,
    next: u64,
    at: &mut u64,
    round: &mut u8,
) -> Result<u64, u64> {
    for turn in 0..2 {
        let head = dir.head.read();
        if head.flagged {
            cursors::demote(&dir.tail, &dir.head);
            return Err(0);
        }
        *round = head.round;
        dir.offer.store(0, Ordering::SeqCst);
        dir.buffer.store(next, Ordering::SeqCst);
        dir.seq.store(*at, Ordering::SeqCst);
        let number = message * 4 + next % LEN * 2 + turn + 1;
        dir.offer
            .store(number << 8 | u64::from(*round), Ordering::Release);
        for _ in 0..plan.patience {
            if dir.head.read().offset > *at {
                break;
            }
            pause();
        }
        let outcome = if plan.bug == Bug::WithdrawOnlyLooks {
            let head = dir.head.read();
            match (head.flagged, head.offset.checked_sub(*at)) {
                (true, _) => Withdrawal::Demoted,
                (false, Some(n)) if n != 0 => Withdrawal::Taken(n),
                _ => Withdrawal::Done,
            }
        } else {
            dir.head.withdraw(*round, *at)
        };
        // The buffer is the program's again.
        dir.buffer.store(SPOILT, Ordering::SeqCst);
        match outcome {
            Withdrawal::Taken(n) => {
                let to = *at + n;
                let followed = plan.bug == Bug::TailStays || follow(&dir.tail, *at, to).is_ok();
                if plan.bug != Bug::TailStays {
                    *at = to;
                }
                return if followed { Ok(n) } else { Err(n) };
            }
            Withdrawal::Demoted => {
                let (start, _) = cursors::demote(&dir.tail, &dir.head);
                let n = start.saturating_sub(*at);
                *at += n;
                return Err(if plan.bug == Bug::TakenIsForgotten {
                    0
                } else {
                    n
                });
            }
            Withdrawal::Done => {}
        }
    }
    Ok(0)
}

/// The reader; what it took.
fn read(dir: &Dir, plan: Plan) -> Vec<u64> {
    let mut got = Vec::new();
    let mut at = 0;
    for _ in 0..plan.looks {
        let tail = dir.tail.read();
        let head = dir.head.read();
        if tail.flagged || head.flagged {
            break;
        }
        let word = dir.offer.load(Ordering::Acquire);
        let seq = dir.seq.load(Ordering::SeqCst);
        if word == 0 || seq != at || dir.tail.read().offset != at {
            pause();
            continue;
        }
        let round = if plan.bug == Bug::AnyRound {
            None
        } else if word as u8 == head.round {
            Some(head.round)
        } else {
            pause();
            continue;
        };
        let n = if plan.short { 1 } else { LEN };
        // An offer of one byte left over by a short take.
        let n = n.min(LEN - at % LEN);
        let copy = |dir: &Dir| {
            let from = dir.buffer.load(Ordering::SeqCst);
            bytes(from, n).collect::<Vec<_>>()
        };
        let take = |dir: &Dir| {
            let round = round.unwrap_or_else(|| dir.head.read().round);
            dir.head.take(round, at, at + n)
        };
        let (copied, taken) = if plan.bug == Bug::TakeFirst {
            let taken = take(dir);
            (copy(dir), taken)
        } else {
            let copied = copy(dir);
            (copied, take(dir))
        };
        if taken {
            got.extend(copied);
            if plan.bug != Bug::TailStays {
                let _ = follow(&dir.tail, at, at + n);
            }
            at += n;
        }
    }
    got
}
