//! The two words of a direction: a writer, a reader, and a third that demotes.

use super::rt::{Arc, CAP, Cells, pause, thread};
use sluice_fabric::cursors::{self, Demoted, Reading, Word};
use sluice_fabric::sync::{AtomicU64, Ordering};

const FLAG: u64 = 1 << 63;

/// What a direction needs of a word.
pub trait EndWord: Default + Send + Sync + 'static {
    fn read(&self) -> Reading;
    fn advance(&self, from: u64, to: u64) -> Result<(), Demoted>;
    fn flag(&self) -> u64;
}

impl EndWord for Word {
    fn read(&self) -> Reading {
        Word::read(self)
    }
    fn advance(&self, from: u64, to: u64) -> Result<(), Demoted> {
        Word::advance(self, from, to)
    }
    fn flag(&self) -> u64 {
        Word::flag(self)
    }
}

/// Bugs of a [`Copied`] word.
pub const NONE: u8 = 0;
/// `advance` looks at the flag, then stores. (By a swap that does not look: loom does not order a
/// store against other threads' swaps, and would fail for that alone.)
pub const ADVANCE_STORES: u8 = 1;
/// `flag` loads, then stores.
pub const FLAG_STORES: u8 = 2;
/// `advance` publishes nothing but the number.
pub const ADVANCE_RELAXED: u8 = 3;
/// `read` does not acquire.
pub const READ_RELAXED: u8 = 4;
/// A failed `advance` does not acquire.
pub const FAIL_RELAXED: u8 = 5;

/// A copy of [`Word`] with room for a bug.
#[derive(Debug, Default)]
pub struct Copied<const BUG: u8>(AtomicU64);

impl<const BUG: u8> EndWord for Copied<BUG> {
    fn read(&self) -> Reading {
        let order = if BUG == READ_RELAXED {
            Ordering::Relaxed
        } else {
            Ordering::Acquire
        };
        let word = self.0.load(order);
        Reading {
            offset: word & !FLAG,
            flagged: word & FLAG != 0,
            round: 0,
        }
    }

    fn advance(&self, from: u64, to: u64) -> Result<(), Demoted> {
        if BUG == ADVANCE_STORES {
            if self.0.load(Ordering::Acquire) & FLAG != 0 {
                return Err(Demoted);
            }
            self.0.swap(to, Ordering::SeqCst);
            return Ok(());
        }
        let order = if BUG == ADVANCE_RELAXED {
            Ordering::Relaxed
        } else {
            Ordering::SeqCst
        };
        let fail = if BUG == FAIL_RELAXED {
            Ordering::Relaxed
        } else {
            Ordering::Acquire
        };
        match self.0.compare_exchange(from, to, order, fail) {
            Ok(_) => Ok(()),
            Err(_) => Err(Demoted),
        }
    }

    fn flag(&self) -> u64 {
        if BUG == FLAG_STORES {
            let word = self.0.load(Ordering::SeqCst);
            self.0.swap(word | FLAG, Ordering::SeqCst);
            return word & !FLAG;
        }
        self.0.fetch_or(FLAG, Ordering::SeqCst) & !FLAG
    }
}

/// An algorithm: two words and the way to demote.
pub trait Rules: Send + Sync + 'static {
    type Tail: EndWord;
    type Head: EndWord;

    /// Fixes the part of the ring that is sent again: (start, end).
    fn demote(tail: &Self::Tail, head: &Self::Head) -> (u64, u64);

    /// The one that demotes dies between the two steps.
    fn demote_halfway(tail: &Self::Tail, head: &Self::Head);

    /// A writer whose publish failed finds out what to send again.
    fn resend(tail: &Self::Tail, head: &Self::Head) -> (u64, u64) {
        Self::demote(tail, head)
    }

    /// Bytes that a writer takes for free when the ring holds `used`.
    fn free(used: u64) -> u64 {
        CAP - used
    }
}

/// The crate's words.
#[derive(Debug)]
pub struct Real;

impl Rules for Real {
    type Tail = Word;
    type Head = Word;
    fn demote(tail: &Word, head: &Word) -> (u64, u64) {
        cursors::demote(tail, head)
    }
    fn demote_halfway(tail: &Word, _: &Word) {
        tail.flag();
    }
}

/// Copied words, each with its bug.
#[derive(Debug)]
pub struct Bug<const TAIL: u8, const HEAD: u8>;

impl<const TAIL: u8, const HEAD: u8> Rules for Bug<TAIL, HEAD> {
    type Tail = Copied<TAIL>;
    type Head = Copied<HEAD>;
    fn demote(tail: &Self::Tail, head: &Self::Head) -> (u64, u64) {
        let end = tail.flag();
        (head.flag(), end)
    }
    fn demote_halfway(tail: &Self::Tail, _: &Self::Head) {
        tail.flag();
    }
}

/// Demotes in the wrong order.
#[derive(Debug)]
pub struct SeizeBeforeSeal;

impl Rules for SeizeBeforeSeal {
    type Tail = Word;
    type Head = Word;
    fn demote(tail: &Word, head: &Word) -> (u64, u64) {
        let start = head.flag();
        (start, tail.flag())
    }
    fn demote_halfway(_: &Word, head: &Word) {
        head.flag();
    }
}

/// A failed writer reads the head instead of seizing it.
#[derive(Debug)]
pub struct ResendWithoutSeize;

impl Rules for ResendWithoutSeize {
    type Tail = Word;
    type Head = Word;
    fn demote(tail: &Word, head: &Word) -> (u64, u64) {
        cursors::demote(tail, head)
    }
    fn demote_halfway(tail: &Word, _: &Word) {
        tail.flag();
    }
    fn resend(tail: &Word, head: &Word) -> (u64, u64) {
        (head.read().offset, tail.read().offset)
    }
}

/// Seals only.
#[derive(Debug)]
pub struct SealWithoutSeize;

impl Rules for SealWithoutSeize {
    type Tail = Word;
    type Head = Word;
    fn demote(tail: &Word, head: &Word) -> (u64, u64) {
        let end = tail.flag();
        (head.read().offset, end)
    }
    fn demote_halfway(tail: &Word, _: &Word) {
        tail.flag();
    }
}

/// A writer that overwrites one byte not yet read.
#[derive(Debug)]
pub struct Overrun;

impl Rules for Overrun {
    type Tail = Word;
    type Head = Word;
    fn demote(tail: &Word, head: &Word) -> (u64, u64) {
        cursors::demote(tail, head)
    }
    fn demote_halfway(tail: &Word, _: &Word) {
        tail.flag();
    }
    fn free(used: u64) -> u64 {
        CAP + 1 - used
    }
}

/// The byte at a stream offset.
pub fn byte_at(offset: u64) -> u8 {
    offset as u8 + 1
}

/// One direction with its ring.
pub struct Dir<R: Rules> {
    pub tail: R::Tail,
    pub head: R::Head,
    pub cells: Cells,
}

impl<R: Rules> Default for Dir<R> {
    fn default() -> Self {
        Self {
            tail: R::Tail::default(),
            head: R::Head::default(),
            cells: Cells::default(),
        }
    }
}

impl<R: Rules> Dir<R> {
    /// The bytes of the ring in `[start, end)`, as the writer's side reads them to send them again.
    pub fn part(&self, (start, end): (u64, u64)) -> Vec<u8> {
        assert!(
            start <= end && end - start <= CAP,
            "bytes lost or repeated: an impossible part"
        );
        (start..end).map(|o| self.cells.read(o)).collect()
    }
}

/// The writer's end, and what it put on TCP.
#[derive(Debug, Default)]
pub struct Writer {
    pub tail: u64,
    /// The demoted part and the bytes after it, once the stream is back on TCP.
    pub tcp: Option<Vec<u8>>,
    /// The next byte of the program.
    next: u64,
}

impl Writer {
    /// Takes the stream to TCP: the demoted part first.
    pub fn demote<R: Rules>(&mut self, dir: &Dir<R>) {
        if self.tcp.is_none() {
            let part = R::resend(&dir.tail, &dir.head);
            assert_eq!(
                part.1, self.tail,
                "the writer's end of the ring is not its tail"
            );
            self.tcp = Some(dir.part(part));
        }
    }

    /// Sends `len` bytes by ring or TCP. `false`: the ring is full.
    pub fn send<R: Rules>(&mut self, dir: &Dir<R>, len: u64) -> bool {
        if self.tcp.is_none() {
            let head = dir.head.read();
            if !head.flagged {
                if R::free(self.tail - head.offset) < len {
                    return false;
                }
                for i in 0..len {
                    dir.cells.write(self.tail + i, byte_at(self.next + i));
                }
            }
            if !head.flagged && dir.tail.advance(self.tail, self.tail + len).is_ok() {
                self.tail += len;
            } else {
                self.demote(dir);
            }
        }
        if let Some(tcp) = &mut self.tcp {
            tcp.extend((self.next..self.next + len).map(byte_at));
        }
        self.next += len;
        true
    }
}

/// The reader's end, and what it took from the ring.
#[derive(Debug, Default)]
pub struct Reader {
    pub head: u64,
    pub taken: Vec<u8>,
    /// What it was told when it demoted.
    pub fixed: Option<(u64, u64)>,
    /// The stream is back on TCP.
    pub left: bool,
}

impl Reader {
    /// Takes what is there, at most `len`. `false`: nothing was there.
    pub fn recv<R: Rules>(&mut self, dir: &Dir<R>, len: u64) -> bool {
        let tail = dir.tail.read();
        assert!(
            tail.offset - self.head <= CAP,
            "the tail is beyond the ring"
        );
        let len = len.min(tail.offset - self.head);
        if len == 0 {
            // Sealed and drained: nothing is left here for anyone.
            self.left |= tail.flagged;
            return false;
        }
        let copy: Vec<u8> = (self.head..self.head + len)
            .map(|o| dir.cells.read(o))
            .collect();
        if dir.head.advance(self.head, self.head + len).is_ok() {
            self.head += len;
            self.taken.extend(copy);
        } else {
            self.left = true;
            // What the reader leaves must be known by now. Were it still to grow, and
            // the one that demotes dead, the writer would go on into a ring that nobody reads.
            assert!(dir.tail.read().flagged, "seized, but the end is not fixed");
        }
        true
    }
}

/// Everything that was sent must have arrived, in order, once. `writer` is at its end.
pub fn settle<R: Rules>(dir: &Dir<R>, mut writer: Writer, reader: &Reader) {
    // As close does.
    writer.demote(dir);
    let fixed = R::demote(&dir.tail, &dir.head);
    let told = reader.fixed.unwrap_or(fixed);
    assert_eq!(
        told, fixed,
        "bytes lost or repeated: two answers to one demotion"
    );
    assert_eq!(
        fixed.0, reader.head,
        "bytes lost or repeated: the reader stopped elsewhere"
    );
    let mut stream = reader.taken.clone();
    stream.extend(writer.tcp.unwrap_or_default());
    let sent: Vec<u8> = (0..writer.next).map(byte_at).collect();
    assert_eq!(stream, sent, "bytes lost or repeated");
}

/// Another holder of the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Third {
    Absent,
    /// Demotes, and reads the demoted part as the writer's control thread would.
    Demotes,
    /// Seals, then dies.
    DiesHalfway,
}

/// What the threads do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Lengths of the writer's sends.
    pub sends: &'static [u64],
    /// The writer demotes before this send.
    pub writer_demotes: Option<usize>,
    /// Number of the reader's receives, each of up to two bytes.
    pub recvs: usize,
    /// The reader demotes before this receive.
    pub reader_demotes: Option<usize>,
    pub third: Third,
}

/// One direction, from the switch to its end.
pub fn demotion<R: Rules>(plan: Plan) {
    let dir = Arc::new(Dir::<R>::default());
    let reader = {
        let dir = dir.clone();
        thread::spawn(move || {
            let mut reader = Reader::default();
            for turn in 0..plan.recvs {
                if plan.reader_demotes == Some(turn) {
                    reader.fixed = Some(R::demote(&dir.tail, &dir.head));
                    reader.left = true;
                }
                if reader.left {
                    break;
                }
                if !reader.recv(&dir, CAP) {
                    pause();
                }
            }
            reader
        })
    };
    let third = (plan.third != Third::Absent).then(|| {
        let dir = dir.clone();
        thread::spawn(move || {
            if plan.third == Third::DiesHalfway {
                R::demote_halfway(&dir.tail, &dir.head);
                return None;
            }
            let part = R::demote(&dir.tail, &dir.head);
            Some((part, dir.part(part)))
        })
    });
    let mut writer = Writer::default();
    for (turn, len) in plan.sends.iter().enumerate() {
        if plan.writer_demotes == Some(turn) {
            writer.demote(&dir);
        }
        if !writer.send(&dir, *len) {
            // Full, and no waiting in this model: back to TCP, as for a reader that does not read.
            writer.demote(&dir);
            writer.send(&dir, *len);
        }
    }
    let reader = reader.join().unwrap();
    let third = third.and_then(|t| t.join().unwrap());
    if let Some((part, bytes)) = third {
        let now = R::demote(&dir.tail, &dir.head);
        assert_eq!(
            part, now,
            "bytes lost or repeated: two answers to one demotion"
        );
        let want: Vec<u8> = (part.0..part.1).map(byte_at).collect();
        assert_eq!(
            bytes, want,
            "bytes lost or repeated: the demoted part was not whole"
        );
    }
    settle(&dir, writer, &reader);
}

/// A ring without demotion: both ends wait for each other until all is through.
pub fn ring<R: Rules>(sends: &'static [u64], recv_len: u64) {
    let total: u64 = sends.iter().sum();
    let dir = Arc::new(Dir::<R>::default());
    let reader = {
        let dir = dir.clone();
        thread::spawn(move || {
            let mut reader = Reader::default();
            while reader.head < total {
                if !reader.recv(&dir, recv_len) {
                    pause();
                }
            }
            reader
        })
    };
    let mut writer = Writer::default();
    for len in sends {
        while !writer.send(&dir, *len) {
            pause();
        }
    }
    let reader = reader.join().unwrap();
    settle(&dir, writer, &reader);
}
