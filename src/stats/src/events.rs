//! What happened to connections, in order: the flight recorder.
//!
//! What is rare, each way to a link and back, is always kept, the last [`KEPT`] of a process, in
//! memory that its reader copies as it copies the counters. Where the user asks for it every
//! message is kept as well, the last [`TRACED`], in a file that is shared memory, so that it is
//! there when the process has been killed. A message is what a [counter](crate::Counter) of a
//! connection's counted: there is no other place that could forget to say so.

use crate::cell::Counter;
use crate::conn::Conn;
use crate::reason::Reason;
use crate::root::{CHUNK_LEN, CHUNK_SLOTS, Chunk, ROOT, monotonic_ns};
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

/// Events that a process keeps always.
pub const KEPT: usize = 512;

/// Events that a file holds.
pub const TRACED: usize = 1 << 16;

/// The first bytes of a file.
pub const TRACE_MAGIC: [u8; 16] = *b"\x7fSluice.Trace\xd6\x1c\xa5";

/// Version of the layout of a file.
pub const TRACE_LAYOUT: u32 = 2;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $code:literal;)+) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Kind {
            $($(#[$doc])* $name = $number,)+
        }

        impl Kind {
            /// Every kind, by number.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),+];

            /// A kebab-case name that never changes.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self {
                    $(Kind::$name => $code,)+
                }
            }

            /// The kind with this number; `None` for one that this build does not know.
            #[must_use]
            pub const fn from_u16(number: u16) -> Option<Kind> {
                match number {
                    $($number => Some(Kind::$name),)+
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// The socket was connected, or was accepted; `value` is the [`Role`](crate::Role). Of a file
    /// only: most connections never become worth more than this.
    Opened = 1, "opened";
    /// The connection's addresses are known from here on; `value` is the descriptor.
    Named = 2, "named";
    /// It stays on TCP; `value` is the [`Reason`].
    Stays = 3, "stays";
    /// A decision is near; `value` is the [`Reason`] that says what is waited for.
    Awaits = 4, "awaits";
    /// A stream took over; `value` is the [`Transport`](crate::Transport).
    Upgraded = 5, "upgraded";
    /// It went back to TCP; `value` is the [`Reason`].
    Demoted = 6, "demoted";
    /// It was closed, or is not tracked any more.
    Closed = 7, "closed";

    // Messages: of a file only. `value` is what was counted.
    /// Bytes accepted from the program, by TCP.
    SentTcp = 32, "sent-tcp";
    /// The same, straight into the reader's buffer.
    SentDirect = 33, "sent-direct";
    /// The same, into the ring.
    SentRing = 34, "sent-ring";
    /// The same, out of a file.
    SentFile = 35, "sent-file";
    /// The same, from the file's own pages.
    SentPages = 36, "sent-pages";
    /// Bytes sent again on TCP.
    Resent = 37, "resent";
    /// The reader's ADVERT was used.
    AdvertUsed = 38, "advert-used";
    /// The reader's ADVERT came too late.
    AdvertStale = 39, "advert-stale";
    /// The reader had taken its ADVERT back.
    AdvertGone = 40, "advert-gone";
    /// A wait to send ended while it was spinning.
    SendSpun = 41, "send-spun";
    /// A wait to send has slept.
    SendSlept = 42, "send-slept";
    /// The reader was woken.
    WokeReader = 43, "woke-reader";
    /// Bytes handed to the program, from TCP.
    GotTcp = 64, "got-tcp";
    /// The same, straight into its buffer.
    GotDirect = 65, "got-direct";
    /// The same, from the ring.
    GotRing = 66, "got-ring";
    /// The same, out of a file.
    GotFile = 67, "got-file";
    /// The same, from a file's own pages.
    GotPages = 68, "got-pages";
    /// Bytes that the writer sent again.
    GotResent = 69, "got-resent";
    /// An ADVERT of ours was used.
    OwnAdvertUsed = 70, "own-advert-used";
    /// An ADVERT of ours came too late.
    OwnAdvertStale = 71, "own-advert-stale";
    /// An ADVERT of ours was taken back.
    OwnAdvertRevoked = 72, "own-advert-revoked";
    /// A wait for bytes ended while it was spinning.
    ReceiveSpun = 73, "receive-spun";
    /// A wait for bytes has slept.
    ReceiveSlept = 74, "receive-slept";
    /// The writer was woken.
    WokeWriter = 75, "woke-writer";
}

impl Kind {
    /// Is it one that a file alone has?
    #[must_use]
    pub const fn is_message(self) -> bool {
        self as u16 >= Kind::SentTcp as u16
    }
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number in the process, from 0 on.
    pub number: u64,
    /// When, on CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The connection's slot in the table.
    pub slot: u32,
    /// Tells the connections apart that had the slot.
    pub generation: u32,
    /// 0 while the addresses are not known.
    pub local_port: u16,
    /// As `local_port`.
    pub peer_port: u16,
    /// A [`Kind`]; a newer library may know more.
    pub kind: u16,
    /// See [`Kind`].
    pub value: u64,
}

/// An event in memory that others read, mostly by a copy that goes upwards. So the last word is
/// written first and the first one last: a reader that finds both the same, and looked at the first
/// one first, has a whole event.
#[derive(Debug)]
#[repr(C)]
struct Record {
    /// 1 + its number, as soon as all is there.
    begin: AtomicU64,
    time_ns: AtomicU64,
    slot: AtomicU32,
    generation: AtomicU32,
    /// The local one in the high half.
    ports: AtomicU32,
    kind: AtomicU32,
    value: AtomicU64,
    /// The same, before anything else is.
    end: AtomicU64,
}

impl Record {
    const fn new() -> Record {
        Record {
            begin: AtomicU64::new(0),
            time_ns: AtomicU64::new(0),
            slot: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            ports: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            value: AtomicU64::new(0),
            end: AtomicU64::new(0),
        }
    }

    fn event(&self) -> Option<Event> {
        let begin = self.begin.load(Acquire);
        let ports = self.ports.load(Relaxed);
        let event = Event {
            number: begin.checked_sub(1)?,
            time_ns: self.time_ns.load(Relaxed),
            slot: self.slot.load(Relaxed),
            generation: self.generation.load(Relaxed),
            local_port: (ports >> 16) as u16,
            peer_port: ports as u16,
            kind: self.kind.load(Relaxed) as u16,
            value: self.value.load(Relaxed),
        };
        fence(Acquire);
        (self.end.load(Relaxed) == begin).then_some(event)
    }
}

/// The last `N` events.
#[derive(Debug)]
#[repr(C)]
pub struct Log<const N: usize> {
    next: AtomicU64,
    /// The first one of this process: those before are its parent's.
    first: AtomicU64,
    records: [Record; N],
}

impl<const N: usize> Log<N> {
    /// Nothing has happened.
    #[must_use]
    pub const fn new() -> Log<N> {
        Log {
            next: AtomicU64::new(0),
            first: AtomicU64::new(0),
            records: [const { Record::new() }; N],
        }
    }

    /// Adds an event, with the next number. Async-signal-safe; of two that are a whole turn apart
    /// one may be lost.
    fn put(&self, event: &Event) {
        let number = self.next.fetch_add(1, Relaxed);
        let Some(record) = self.records.get((number % N as u64) as usize) else {
            return;
        };
        record.end.store(number + 1, Relaxed);
        fence(Release);
        record.time_ns.store(event.time_ns, Relaxed);
        record.slot.store(event.slot, Relaxed);
        record.generation.store(event.generation, Relaxed);
        let ports = u32::from(event.local_port) << 16 | u32::from(event.peer_port);
        record.ports.store(ports, Relaxed);
        record.kind.store(u32::from(event.kind), Relaxed);
        record.value.store(event.value, Relaxed);
        record.begin.store(number + 1, Release);
    }

    /// From here on the events are another process's: this one was forked.
    pub(crate) fn begin_anew(&self) {
        self.first.store(self.next.load(Relaxed), Relaxed);
    }

    /// How many there were since the process began, those that are no longer kept too.
    #[must_use]
    pub fn count(&self) -> u64 {
        let (next, first) = (self.next.load(Relaxed), self.first.load(Relaxed));
        next.saturating_sub(first)
    }

    /// Those that are kept and whole, in no order, as [`Event::number`] has it.
    pub fn events(&self) -> impl Iterator<Item = Event> + '_ {
        let first = self.first.load(Relaxed);
        let whole = self.records.iter().filter_map(Record::event);
        whole.filter(move |event| event.number >= first)
    }
}

impl<const N: usize> Default for Log<N> {
    fn default() -> Log<N> {
        Log::new()
    }
}

/// What a file holds, from its first byte on.
#[derive(Debug)]
#[repr(C)]
pub struct TraceFile {
    /// [`TRACE_MAGIC`], stored last.
    magic: [AtomicU64; 2],
    layout: AtomicU32,
    /// `size_of::<TraceFile>()`.
    len: AtomicU32,
    pid: AtomicU32,
    spare: AtomicU32,
    /// The program's name, filled up with zeros.
    program: [AtomicU64; 4],
    /// The events.
    pub log: Log<TRACED>,
}

const _: () = assert!(align_of::<TraceFile>() == 8 && size_of::<TraceFile>().is_multiple_of(8));

impl TraceFile {
    /// Begins a file of zeros.
    pub fn begin(&self, pid: u32, program: &[u8]) {
        self.layout.store(TRACE_LAYOUT, Relaxed);
        self.len.store(size_of::<TraceFile>() as u32, Relaxed);
        self.pid.store(pid, Relaxed);
        for (word, bytes) in self.program.iter().zip(program.chunks(8)) {
            word.store(word_of(bytes), Relaxed);
        }
        for (word, bytes) in self.magic.iter().zip(TRACE_MAGIC.chunks(8)) {
            word.store(word_of(bytes), Release);
        }
    }

    /// Which layout it has; `None`: it is no such file.
    #[must_use]
    pub fn layout(&self) -> Option<u32> {
        let mut all = self.magic.iter().zip(TRACE_MAGIC.chunks(8));
        let is_ours = all.all(|(word, bytes)| word.load(Acquire) == word_of(bytes));
        is_ours.then(|| self.layout.load(Relaxed))
    }

    /// The process that wrote it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.load(Relaxed)
    }

    /// The program's name, filled up with zeros.
    #[must_use]
    pub fn program(&self) -> [u8; 32] {
        let mut name = [0; 32];
        for (to, word) in name.chunks_mut(8).zip(&self.program) {
            to.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        name
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_ne_bytes(word)
}

/// Null: messages are not kept, or their file is being made. [`WANTED`]: there is none yet. Written
/// after [`TraceFile::begin`], read by all that put something into it: Release there pairs with
/// Acquire here, so that the file is seen with what [`TraceFile::begin`] has stored.
static TRACE: AtomicPtr<TraceFile> = AtomicPtr::new(ptr::null_mut());

const WANTED: *mut TraceFile = ptr::without_provenance_mut(1);

/// Every message is to be kept, as soon as somebody has made a file for it: what comes before that
/// is lost. Nothing here makes one, since messages are told of under locks, in signal handlers, and
/// where the program can bear no other system call than its own.
pub fn want_trace() {
    TRACE.store(WANTED, Release);
}

/// Is a file wanted that nobody makes as yet?
#[inline]
#[must_use]
pub fn wants_trace() -> bool {
    TRACE.load(Relaxed) == WANTED
}

/// True for one caller: makes the file, and says so by [`trace_to`]; or leaves it, and none is
/// wanted any more.
#[must_use]
pub fn take_trace_up() -> bool {
    let (null, relaxed) = (ptr::null_mut(), Relaxed);
    TRACE
        .compare_exchange(WANTED, null, AcqRel, relaxed)
        .is_ok()
}

/// From here on every message goes into this file; not if another one has come to be wanted since:
/// this process was forked.
pub fn trace_to(file: &'static TraceFile) {
    let (null, file) = (ptr::null_mut(), ptr::from_ref(file).cast_mut());
    let _ = TRACE.compare_exchange(null, file, Release, Relaxed);
}

fn trace() -> Option<&'static TraceFile> {
    let at = TRACE.load(Acquire);
    let at = if at == WANTED { ptr::null_mut() } else { at };
    // SAFETY: null, or what `trace_to` has stored, which lives for ever.
    unsafe { at.as_ref() }
}

/// Is every message kept, or wanted to be?
#[inline]
pub(crate) fn is_tracing() -> bool {
    !TRACE.load(Relaxed).is_null()
}

/// Something rare has happened to a connection; of one on which nothing was tried so far a file
/// alone tells.
pub(crate) fn note(conn: &Conn, kind: Kind, value: u64) {
    let (is_kept, file) = (conn.family().is_some(), trace());
    if !is_kept && file.is_none() {
        return;
    }
    let event = event_of(conn, kind, value);
    if is_kept {
        ROOT.events.put(&event);
    }
    if let Some(file) = file {
        file.log.put(&event);
    }
}

/// As [`note`], of a [`Reason`].
pub(crate) fn note_reason(conn: &Conn, kind: Kind, reason: Reason) {
    note(conn, kind, u64::from(reason as u16));
}

/// A counter has counted `n`, and every message is kept.
#[cold]
pub(crate) fn counted(counter: &Counter, n: u64) {
    let at = ptr::from_ref(counter).addr();
    if let Some(file) = trace()
        && let Some((conn, offset)) = conn_at(at)
        && let Some(kind) = kind_at(offset)
    {
        file.log.put(&event_of(conn, kind, n));
    }
}

fn event_of(conn: &Conn, kind: Kind, value: u64) -> Event {
    let (local_port, peer_port) = conn.ports();
    Event {
        number: 0,
        time_ns: monotonic_ns(),
        slot: conn.index.load(Relaxed),
        generation: conn.generation(),
        local_port,
        peer_port,
        kind: kind as u16,
        value,
    }
}

/// The connection in which this address lies, and how far from its beginning.
fn conn_at(at: usize) -> Option<(&'static Conn, usize)> {
    let chunks = (0..CHUNK_SLOTS).map_while(|number| ROOT.chunk(number));
    for chunk in chunks {
        let from_chunk = at.wrapping_sub(chunk.addr());
        if from_chunk < size_of::<Chunk>() {
            // SAFETY: a chunk of the table, which is never unmapped.
            let chunk: &'static Chunk = unsafe { &*chunk };
            let conn = chunk
                .conns
                .get(from_chunk / size_of::<Conn>() % CHUNK_LEN)?;
            return Some((conn, from_chunk % size_of::<Conn>()));
        }
    }
    None
}

/// What a counter at this offset of a connection counts.
fn kind_at(offset: usize) -> Option<Kind> {
    let (first, from) = match offset {
        _ if offset >= offset_of!(Conn, rx) => (Kind::GotTcp, offset_of!(Conn, rx)),
        _ if offset >= offset_of!(Conn, tx) => (Kind::SentTcp, offset_of!(Conn, tx)),
        _ => return None,
    };
    let word = (offset - from) / size_of::<Counter>();
    Kind::from_u16(first as u16 + u16::try_from(word).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::Direction;
    use std::vec::Vec;

    fn event(value: u64) -> Event {
        Event {
            number: 0,
            time_ns: value + 1,
            slot: 2,
            generation: 3,
            local_port: 4,
            peer_port: 5,
            kind: Kind::Resent as u16,
            value,
        }
    }

    fn values<const N: usize>(log: &Log<N>) -> Vec<u64> {
        let mut all: Vec<_> = log.events().collect();
        all.sort_by_key(|event| event.number);
        all.iter().map(|event| event.value).collect()
    }

    #[test]
    fn the_last_events_are_kept_as_they_were() {
        let log = Log::<4>::new();
        assert_eq!(values(&log), []);
        for value in 0..3 {
            log.put(&event(value));
        }
        assert_eq!(values(&log), [0, 1, 2]);
        for value in 3..10 {
            log.put(&event(value));
        }
        assert_eq!(values(&log), [6, 7, 8, 9]);
        assert_eq!(log.count(), 10);
        let last = log.events().max_by_key(|e| e.number).unwrap();
        let expected = Event {
            number: 9,
            ..event(9)
        };
        assert_eq!(last, expected);
    }

    #[test]
    fn what_a_parent_did_is_no_childs() {
        let log = Log::<4>::new();
        log.put(&event(1));
        log.begin_anew();
        assert_eq!((values(&log), log.count()), (Vec::new(), 0));
        log.put(&event(2));
        assert_eq!((values(&log), log.count()), ([2].to_vec(), 1));
    }

    #[test]
    fn an_event_that_is_being_written_is_left_out() {
        let log = Log::<2>::new();
        log.put(&event(1));
        log.records[0].end.store(0, Relaxed);
        assert_eq!(values(&log), []);
        log.records[0].end.store(3, Relaxed);
        assert_eq!(values(&log), []);
    }

    #[test]
    fn each_counter_has_a_kind_of_its_own() {
        let tx = offset_of!(Conn, tx);
        let rx = offset_of!(Conn, rx);
        let at = |counter| kind_at(counter);
        assert_eq!(at(tx), Some(Kind::SentTcp));
        assert_eq!(at(tx + offset_of!(Direction, resent)), Some(Kind::Resent));
        let doorbells = offset_of!(Direction, doorbells);
        assert_eq!(at(tx + doorbells), Some(Kind::WokeReader));
        assert_eq!(at(rx + doorbells), Some(Kind::WokeWriter));
        let stale = offset_of!(Direction, adverts_stale);
        assert_eq!(at(rx + stale), Some(Kind::OwnAdvertStale));
        assert_eq!(at(tx + offset_of!(Direction, ring_len)), None);
        assert_eq!(at(0), None);
    }

    #[test]
    fn kinds_are_distinct() {
        for (i, a) in Kind::ALL.iter().enumerate() {
            assert_eq!(Kind::from_u16(*a as u16), Some(*a));
            assert!(Kind::ALL[i + 1..].iter().all(|b| a.code() != b.code()));
        }
    }

    #[test]
    fn a_file_says_whose_it_is() {
        let zeros = std::vec![0_u64; size_of::<TraceFile>() / 8];
        // SAFETY: as long and as aligned as a file, and zeros are a valid one.
        let file: &TraceFile = unsafe { &*zeros.as_ptr().cast() };
        assert_eq!(file.layout(), None);
        file.begin(42, b"redis-server");
        assert_eq!((file.layout(), file.pid()), (Some(TRACE_LAYOUT), 42));
        assert_eq!(
            file.program(),
            *b"redis-server\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
        );
    }
}
