//! The handshake of sleeper and wakers.

use super::cursors::{Dir, Reader, Real, Writer, settle};
use super::rt::{Arc, thread};
use sluice_fabric::cursors::{Word, demote};
use sluice_fabric::doorbell::Slot;
use sluice_fabric::sync::{AtomicU32, AtomicU64, Ordering, fence, fence_after_rmw};

/// What the handshake needs of a slot.
pub trait Waiter: Default + Send + Sync + 'static {
    /// The owner does not look again between announcing and sleeping.
    const LOOKS_AGAIN: bool = true;
    /// The owner takes the marks after it looked at the words.
    const TAKES_LATE: bool = false;

    fn announce(&self);
    fn retract(&self);
    fn is_sleeping(&self) -> bool;
    fn wake(&self, stream: u32) -> bool;
    fn must_ring(&self) -> bool;
    fn any_ready(&self) -> bool;
    fn take_ready(&self, each: &mut dyn FnMut(u32));
    /// Between changing a word and looking for sleepers.
    fn published(&self) {
        fence_after_rmw();
    }
}

impl Waiter for Slot {
    fn announce(&self) {
        Slot::announce(self);
    }
    fn retract(&self) {
        Slot::retract(self);
    }
    fn is_sleeping(&self) -> bool {
        Slot::is_sleeping(self)
    }
    fn wake(&self, stream: u32) -> bool {
        Slot::wake(self, stream)
    }
    fn must_ring(&self) -> bool {
        Slot::must_ring(self)
    }
    fn any_ready(&self) -> bool {
        Slot::any_ready(self)
    }
    fn take_ready(&self, each: &mut dyn FnMut(u32)) {
        Slot::take_ready(self, |stream, _| each(stream));
    }
}

/// Bugs of a [`Copied`] slot.
pub const NONE: u8 = 0;
/// The waker looks for the announcement without a fence after its publish.
pub const NO_WAKER_FENCE: u8 = 1;
/// The owner looks without a fence after its announcement.
pub const NO_SLEEPER_FENCE: u8 = 2;
/// No fence between marking and looking for the announcement.
pub const NO_MARK_FENCE: u8 = 3;
/// No fence between taking a mark and looking at its word.
pub const NO_TAKE_FENCE: u8 = 4;
/// The owner takes the marks after looking.
pub const TAKE_LATE: u8 = 5;
/// The summary bit is set before the ready bit.
pub const SUMMARY_FIRST: u8 = 6;
/// The waker looks for the announcement before it marks.
pub const RING_FIRST: u8 = 7;
/// The owner sleeps on its announcement without looking again.
pub const NO_LOOK: u8 = 8;
/// A waker that finds the ready bit set trusts its summary bit to be set too.
pub const TRUSTS_SUMMARY: u8 = 9;
/// A waker that finds the ready bit set leaves all else to the one that set it.
pub const MARKED_IS_RUNG: u8 = 10;
/// Takes a ready word by load and store.
pub const TAKE_STORES: u8 = 11;

/// A copy of [`Slot`], two words of ready bits, with room for a bug.
#[derive(Debug, Default)]
pub struct Copied<const BUG: u8> {
    sleeping: AtomicU32,
    summary: AtomicU64,
    ready: [AtomicU64; 2],
}

impl<const BUG: u8> Waiter for Copied<BUG> {
    const LOOKS_AGAIN: bool = BUG != NO_LOOK;
    const TAKES_LATE: bool = BUG == TAKE_LATE;

    fn announce(&self) {
        self.sleeping.swap(1, Ordering::SeqCst);
        if BUG != NO_SLEEPER_FENCE {
            fence_after_rmw();
        }
    }

    fn retract(&self) {
        self.sleeping.store(0, Ordering::Relaxed);
    }

    fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) != 0
    }

    fn wake(&self, stream: u32) -> bool {
        let early = BUG == RING_FIRST && self.must_ring();
        let (index, bit) = ((stream / 64) as usize, 1u64 << (stream % 64));
        let marked = self.ready[index].load(Ordering::Relaxed) & bit != 0;
        if marked && BUG == MARKED_IS_RUNG {
            return false;
        }
        if !marked && BUG != SUMMARY_FIRST {
            self.ready[index].fetch_or(bit, Ordering::SeqCst);
        }
        let trusted = marked && BUG == TRUSTS_SUMMARY;
        if !trusted && (!marked || self.summary.load(Ordering::Relaxed) & (1 << index) == 0) {
            self.summary.fetch_or(1 << index, Ordering::SeqCst);
            if BUG == SUMMARY_FIRST {
                self.ready[index].fetch_or(bit, Ordering::SeqCst);
            }
            if BUG != NO_MARK_FENCE {
                fence_after_rmw();
            }
        }
        if BUG == RING_FIRST {
            early
        } else {
            self.must_ring()
        }
    }

    fn must_ring(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) != 0 && self.sleeping.swap(0, Ordering::SeqCst) != 0
    }

    fn any_ready(&self) -> bool {
        self.summary.load(Ordering::Relaxed) != 0
    }

    fn take_ready(&self, each: &mut dyn FnMut(u32)) {
        if self.summary.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut summary = self.summary.swap(0, Ordering::SeqCst);
        while summary != 0 {
            let index = summary.trailing_zeros();
            summary &= summary - 1;
            let word = &self.ready[index as usize];
            let mut bits = if BUG == TAKE_STORES {
                let bits = word.load(Ordering::SeqCst);
                word.store(0, Ordering::SeqCst);
                bits
            } else {
                word.swap(0, Ordering::SeqCst)
            };
            if BUG != NO_TAKE_FENCE {
                fence_after_rmw();
            }
            while bits != 0 {
                each(index * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    fn published(&self) {
        if BUG != NO_WAKER_FENCE {
            fence_after_rmw();
        }
    }
}

impl<const BUG: u8> Copied<BUG> {
    /// A waker that is gone in the middle of its call. (The crate's own cannot be torn from
    /// outside.)
    fn wake_halfway(&self, stream: u32) {
        self.ready[stream as usize / 64].fetch_or(1 << (stream % 64), Ordering::SeqCst);
    }
}

/// How the owner finds news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// By its marks, as an epoll set does.
    Marks,
    /// At the word of one stream, as a blocking call does.
    Word,
}

/// What the threads do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub look: Look,
    /// Per waker: its stream, and how many times it publishes.
    pub wakers: &'static [(u32, u64)],
    /// Rounds of looking and sleeping of the owner.
    pub rounds: usize,
}

/// Streams of the models: two in one ready word, one in the next, one for which another bit of the
/// summary stands.
pub const STREAMS: [u32; 4] = [0, 1, 64, 256];

fn place(stream: u32) -> usize {
    STREAMS.iter().position(|s| *s == stream).unwrap()
}

struct Shared<S> {
    slot: S,
    words: [Word; STREAMS.len()],
    /// The doorbell: 1 when rung. The kernel orders a ring before the wake-up that it causes.
    bell: AtomicU32,
}

impl<S: Waiter> Shared<S> {
    fn new() -> Self {
        Self {
            slot: S::default(),
            words: STREAMS.map(|_| Word::new()),
            bell: AtomicU32::new(0),
        }
    }

    fn ring(&self) {
        self.bell.swap(1, Ordering::AcqRel);
    }
}

/// The owner of the slot.
#[derive(Debug, Default)]
struct Owner {
    seen: [u64; STREAMS.len()],
    asleep: bool,
}

impl Owner {
    fn look<S: Waiter>(&mut self, shared: &Shared<S>, plan: &Plan) {
        if plan.look == Look::Word {
            let at = place(plan.wakers[0].0);
            self.seen[at] = shared.words[at].read().offset;
        } else if S::TAKES_LATE {
            for (seen, word) in self.seen.iter_mut().zip(&shared.words) {
                *seen = word.read().offset;
            }
            shared.slot.take_ready(&mut |_| ());
        } else {
            let seen = &mut self.seen;
            shared.slot.take_ready(&mut |stream| {
                seen[place(stream)] = shared.words[place(stream)].read().offset;
            });
        }
    }

    fn any_news<S: Waiter>(&self, shared: &Shared<S>, plan: &Plan) -> bool {
        match plan.look {
            Look::Marks => shared.slot.any_ready(),
            Look::Word => {
                let at = place(plan.wakers[0].0);
                shared.words[at].read().offset != self.seen[at]
            }
        }
    }

    fn run<S: Waiter>(&mut self, shared: &Shared<S>, plan: &Plan) {
        for _ in 0..plan.rounds {
            self.look(shared, plan);
            shared.slot.announce();
            if S::LOOKS_AGAIN && self.any_news(shared, plan) {
                shared.slot.retract();
                continue;
            }
            // Asleep. Only the doorbell ends that.
            if shared.bell.swap(0, Ordering::AcqRel) == 0 {
                self.asleep = true;
                return;
            }
            shared.slot.retract();
        }
    }
}

/// Wakers on streams of one slot, and its owner.
pub fn handshake<S: Waiter>(plan: Plan) {
    wake_and_sleep(Shared::<S>::new(), plan);
}

/// As [`handshake`], after a waker of stream 0 was gone in the middle of its call.
pub fn torn_handshake<const BUG: u8>(plan: Plan) {
    let shared = Shared::<Copied<BUG>>::new();
    shared.slot.wake_halfway(0);
    wake_and_sleep(shared, plan);
}

fn wake_and_sleep<S: Waiter>(shared: Shared<S>, plan: Plan) {
    let shared = Arc::new(shared);
    let wakers: Vec<_> = plan
        .wakers
        .iter()
        .map(|&(stream, count)| {
            let shared = shared.clone();
            thread::spawn(move || {
                for n in 0..count {
                    shared.words[place(stream)].advance(n, n + 1).unwrap();
                    shared.slot.published();
                    let ring = match plan.look {
                        Look::Marks => shared.slot.wake(stream),
                        Look::Word => shared.slot.must_ring(),
                    };
                    if ring {
                        shared.ring();
                    }
                }
            })
        })
        .collect();
    let mut owner = Owner::default();
    owner.run(&shared, &plan);
    for waker in wakers {
        waker.join().unwrap();
    }
    let up_to_date = |owner: &Owner| {
        plan.wakers
            .iter()
            .all(|&(stream, count)| owner.seen[place(stream)] == count)
    };
    if owner.asleep && shared.bell.load(Ordering::Acquire) == 0 {
        assert!(
            up_to_date(&owner),
            "lost wake-up: asleep, not rung, and there are news"
        );
        // Loom lets a load read a swap that `retract` has overwritten, so only on real threads.
        let announced = cfg!(loom) || shared.slot.is_sleeping();
        assert!(
            announced,
            "lost announcement: the next waker would not ring"
        );
    } else {
        owner.look(&shared, &plan);
        assert!(
            up_to_date(&owner),
            "lost mark: awake, and does not find the news"
        );
    }
}

/// A direction, the slot that its reader sleeps in, and the reader's bell.
type Stream<S> = (Dir<Real>, S, AtomicU32);

/// The one stream of [`sleeping_reader`].
const STREAM: u32 = 64;

/// Wakes the reader after a change, if it sleeps.
fn tell<S: Waiter>((_, slot, bell): &Stream<S>, look: Look) {
    slot.published();
    let ring = if look == Look::Marks {
        slot.wake(STREAM)
    } else {
        slot.must_ring()
    };
    if ring {
        bell.swap(1, Ordering::AcqRel);
    }
}

/// Sends all of `sends`, telling the reader of each.
fn write_all<S: Waiter>(shared: &Stream<S>, sends: &[u64], look: Look) -> Writer {
    let dir = &shared.0;
    let mut writer = Writer::default();
    for len in sends {
        if !writer.send(dir, *len) {
            writer.demote(dir);
            writer.send(dir, *len);
        }
        tell(shared, look);
    }
    writer
}

/// A writer, a reader that sleeps when it has nothing, and a third that demotes meanwhile.
pub fn sleeping_reader<S: Waiter>(sends: &'static [u64], reader_demotes: bool, look: Look) {
    let shared: Arc<Stream<S>> = Arc::new((Dir::default(), S::default(), AtomicU32::new(0)));
    let writer = {
        let shared = shared.clone();
        thread::spawn(move || write_all(&shared, sends, look))
    };
    let third = (!reader_demotes).then(|| {
        let shared = shared.clone();
        thread::spawn(move || {
            demote(&shared.0.tail, &shared.0.head);
            tell(&shared, look);
        })
    });
    let (dir, slot, bell) = &*shared;
    let mut reader = Reader::default();
    let news = |reader: &Reader| {
        let tail = dir.tail.read();
        tail.flagged || tail.offset != reader.head
    };
    let take = |reader: &mut Reader| match look {
        Look::Marks => slot.take_ready(&mut |_| while reader.recv(dir, 2) && !reader.left {}),
        Look::Word => while reader.recv(dir, 2) && !reader.left {},
    };
    let mut asleep = false;
    let mut turn = 0;
    while !reader.left && !asleep {
        take(&mut reader);
        turn += 1;
        if reader.left {
            break;
        }
        if reader_demotes && turn == 2 {
            demote(&dir.tail, &dir.head);
            reader.left = true;
            break;
        }
        slot.announce();
        let again = if look == Look::Marks {
            slot.any_ready()
        } else {
            news(&reader)
        };
        if S::LOOKS_AGAIN && again {
            slot.retract();
        } else if bell.swap(0, Ordering::AcqRel) == 0 {
            asleep = true;
        } else {
            slot.retract();
        }
    }
    let writer = writer.join().unwrap();
    if let Some(third) = third {
        third.join().unwrap();
    }
    fence(Ordering::SeqCst);
    if asleep && bell.load(Ordering::Acquire) == 0 {
        assert!(
            !news(&reader),
            "lost wake-up: asleep, not rung, and there are news"
        );
    } else if asleep {
        take(&mut reader);
        assert!(
            reader.left || !news(&reader),
            "lost mark: awake, and does not find the news"
        );
    }
    settle(dir, writer, &reader);
}
