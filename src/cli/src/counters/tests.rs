//! Tables as nobody's library makes them, in this process's own memory.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use super::*;
use std::time::Duration;

const CHUNK: usize = size_of::<Chunk>();

/// Where in a root a word lies that `is_there` tells from all others by its value.
fn place_of(is_there: impl Fn(&Root, u64) -> bool) -> usize {
    const MARK: u64 = 0x5151;
    let mut root = Copied::<Root>::new(1);
    let mut is_at = |&at: &usize| {
        root.bytes_mut().fill(0);
        put(root.bytes_mut(), at, MARK);
        is_there(root.root(), MARK)
    };
    (0..size_of::<Root>()).step_by(8).find(&mut is_at).unwrap()
}

/// Where a root has the number of slots in use.
fn used() -> usize {
    place_of(|root, mark| root.used() as u64 == mark)
}

/// Where a root has the addresses of its chunks.
fn chunks_at() -> usize {
    place_of(|root, mark| root.chunk(0).is_some_and(|at| at.addr() as u64 == mark))
}

/// Numbers in an order that looks like none, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A word that a check may have forgotten.
    fn word(&mut self) -> u64 {
        let edges = [
            0,
            1,
            255,
            256,
            257,
            1 << 20,
            1 << 32,
            1 << 63,
            u64::MAX,
            !63,
        ];
        match self.below(edges.len() + 2) {
            n if n < edges.len() => edges[n],
            n if n == edges.len() => self.next(),
            _ => self.next() % 4096,
        }
    }
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
}

fn empty_root() -> Copied<Root> {
    let mut root = Copied::<Root>::new(1);
    let this = std::ptr::from_ref(&Header::THIS).addr();
    let header = root.bytes_mut().first_chunk_mut::<64>().unwrap();
    memory::read(std::process::id() as i32, this, header).unwrap();
    root
}

/// A chunk of connections that are all open.
fn open_chunk() -> Copied<Conn> {
    let conn = Conn::new();
    let any = "127.0.0.1:1".parse().unwrap();
    conn.describe(3, sluice_stats::Role::Accepted, any, any);
    let mut chunk = Copied::<Conn>::new(CHUNK_LEN);
    let len = size_of::<Conn>();
    let me = std::process::id() as i32;
    let from = std::ptr::from_ref(&conn).addr();
    for slot in chunk.bytes_mut().chunks_exact_mut(len) {
        memory::read(me, from, slot).unwrap();
        // An odd generation: in use.
        slot[0] = 1;
    }
    chunk
}

fn limits(listed: usize) -> Limits {
    Limits {
        listed,
        until: Instant::now() + Duration::from_secs(20),
    }
}

fn read_at(root: &Copied<Root>, limits: &Limits) -> Result<Counters, Failure> {
    let found = Found {
        place: root.bytes().as_ptr().addr(),
        path: OsString::new(),
    };
    read(std::process::id() as i32, Some(&found), limits)
}

#[test]
fn a_chunk_that_is_there_twice_ends_the_table() {
    let chunk = open_chunk();
    let place = chunk.bytes().as_ptr().addr() as u64;
    let (mut root, chunks) = (empty_root(), chunks_at());
    put(root.bytes_mut(), used(), 1 << 20);
    // At the same place, over each other, not where a chunk may begin, nowhere, and where nothing
    // is.
    for second in [place, place + 64, place - 64, place + 1, u64::MAX, 0, 4096] {
        put(root.bytes_mut(), chunks, place);
        put(root.bytes_mut(), chunks + 8, second);
        let counters = read_at(&root, &limits(100)).unwrap();
        let cut = Cut::Table {
            read: 256,
            claimed: 1 << 20,
        };
        assert_eq!(counters.cuts, [cut], "{second:#x}");
        assert_eq!((counters.listed().len(), counters.tally.all[0]), (100, 256));
    }
}

#[test]
fn a_reader_without_time_says_how_far_it_came() {
    let mut root = empty_root();
    put(root.bytes_mut(), used(), 1 << 20);
    let no_time = Limits {
        listed: 1,
        until: Instant::now() - Duration::from_millis(1),
    };
    let counters = read_at(&root, &no_time).unwrap();
    let cut = Cut::Time {
        read: 0,
        claimed: 1 << 20,
    };
    assert_eq!(counters.cuts, [cut]);
}

#[test]
fn forged_memory_never_costs_more_than_its_bounds() {
    let mut random = Random(0x0051_0ce5);
    let mut chunks = [(); 3].map(|()| open_chunk());
    let places = chunks
        .each_ref()
        .map(|chunk| chunk.bytes().as_ptr().addr() as u64);
    let (used, chunks_at) = (used(), chunks_at());
    let begin = Instant::now();
    let mut whole = 0;
    for _ in 0..3000 {
        let mut root = empty_root();
        let bytes = root.bytes_mut();
        put(bytes, used, random.word());
        for slot in 0..random.below(6) {
            let place = match random.below(4) {
                0 => random.word(),
                _ => places[random.below(places.len())],
            };
            put(bytes, chunks_at + 8 * slot, place);
        }
        for _ in 0..random.below(20) {
            // The header says what can be read at all, and is tried elsewhere.
            let at = 64 + 8 * random.below(chunks_at / 8 - 8);
            put(bytes, at, random.word());
        }
        for chunk in &mut chunks {
            for _ in 0..random.below(50) {
                let at = 8 * random.below(CHUNK / 8);
                put(chunk.bytes_mut(), at, random.word());
            }
        }
        let Ok(counters) = read_at(&root, &limits(300)) else {
            continue;
        };
        whole += 1;
        assert!(counters.listed().len() <= 300);
        assert!(counters.tally.all.iter().sum::<u64>() <= 3 * CHUNK_LEN as u64);
        assert!(counters.tally.untried.len() <= REASON_SLOTS + 1);
        // It arrives at the tool, which shows it in each of its ways.
        let (_, answer) = wire::take(&mut wire::message(0, &Ok(counters))).unwrap();
        let answer = answer.unwrap();
        let mut report = crate::report::Report::new();
        let mut process = crate::report::Process::new(&answer, u64::MAX);
        process.say_what_is_not_listed();
        report.processes.push(process);
        let json = serde_json::to_string_pretty(&report).unwrap();
        assert!(json.len() < 1 << 20, "{}", json.len());
        assert!(
            json.chars()
                .all(|letter| letter == '\n' || !letter.is_control())
        );
        let mut text = Vec::new();
        crate::prometheus::write(&mut text, &report).unwrap();
        let screen = crate::terminal::Screen {
            width: Some(80),
            has_colours: false,
        };
        crate::table::write(&mut text, &report.processes, screen).unwrap();
        assert!(!text.contains(&0x1b));
        crate::top::rows_of(&report);
    }
    assert!(whole > 1000, "{whole} of them could be read");
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn any_header_is_read_or_refused() {
    let mut random = Random(7);
    for _ in 0..3000 {
        let mut root = empty_root();
        for _ in 0..1 + random.below(3) {
            let at = 16 + random.below(48);
            root.bytes_mut()[at] = random.next() as u8;
        }
        match read_at(&root, &limits(1)) {
            Ok(counters) => assert!(counters.listed().is_empty()),
            // It is asked at a known place alone, and searched for then; this program has no
            // library.
            Err(failure) => assert!(matches!(failure, Failure::NoSluice), "{failure}"),
        }
        let place = root.bytes().as_ptr().addr();
        if let Err(failure) = read_root(std::process::id() as i32, place) {
            let words = failure.to_string();
            assert!(words.starts_with("has Sluice "), "{words}");
            assert!(
                words.len() < 200 && !words.contains(char::is_control),
                "{words}"
            );
        }
    }
}
