//! The counters that `sluice stat` copies out of another process: here this one, which keeps forged
//! ones.

use crate::input::Input;
use sluice_stats::{CHUNK_SLOTS, Chunk, Conn, Root};
use std::cell::RefCell;

/// Chunks that there are, so that a table can have several. The tool's own bound of how many it
/// reads is not this test's subject.
const CHUNKS: usize = 3;
/// Connections of a chunk that are forged.
const CONNS: usize = 8;

struct Forged {
    root: Box<Root>,
    chunks: Vec<Box<Chunk>>,
}

thread_local! {
    static FORGED: RefCell<Forged> = RefCell::new(Forged {
        root: Box::new(Root::new()),
        chunks: (0..CHUNKS).map(|_| Box::new(Chunk::new())).collect(),
    });
}

/// The words of a structure that others read.
fn words<T>(of: &mut T) -> &mut [u64] {
    // SAFETY: atomics of integers and pointers, none of which is followed here, in a whole number
    // of words; borrowed alone.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(of).cast(), size_of::<T>() / 8) }
}

pub fn run(bytes: &[u8]) {
    FORGED.with_borrow_mut(|forged| forge(forged, &mut Input::new(bytes)));
}

fn forge(Forged { root, chunks }: &mut Forged, input: &mut Input<'_>) {
    **root = Root::new();
    let places: Vec<u64> = chunks
        .iter()
        .map(|c| std::ptr::from_ref(&**c).addr() as u64)
        .collect();
    for chunk in chunks.iter_mut() {
        for conn in chunk.conns.iter_mut().take(CONNS) {
            *conn = Conn::new();
        }
    }
    let edges = [
        0,
        1,
        8,
        256,
        u64::MAX,
        u64::from(std::process::id()),
        places[0],
        std::ptr::from_ref(&**root).addr() as u64,
    ];
    let table = table(root);
    // The pid and the slots in use, which most tables have.
    let all = words(&mut **root);
    all[8] = u64::from(std::process::id());
    all[11] = u64::from(input.byte());
    for (to, place) in all[table..].iter_mut().zip(&places) {
        *to = *place;
    }
    let now_ns = input.number(&edges);
    while !input.is_over() {
        match input.byte() % 4 {
            // A word before the chunks.
            0 => all[input.below(table)] = input.number(&edges),
            1 => {
                let at = input.below(CHUNKS);
                all[table + at] = input.number(&edges);
            }
            // A word of a connection.
            _ => {
                let at = input.below(CHUNKS * CONNS);
                let conn = &mut chunks[at / CONNS].conns[at % CONNS];
                let of = words(conn);
                let field = input.below(of.len());
                of[field] = input.number(&edges);
            }
        }
    }
    let place = std::ptr::from_ref(&**root).addr();
    if let Some(said) = sluice_tool::fuzzing::shown(std::process::id() as i32, place, now_ns) {
        for text in &said {
            assert_harmless(text);
        }
    }
}

/// At which word of a new root the places of its chunks begin: near its end, where there may be
/// padding.
fn table(root: &mut Root) -> usize {
    let most = size_of::<Root>() / 8 - CHUNK_SLOTS;
    let begins = (0..=most).rev().find(|at| {
        words(root)[*at] = 64;
        let is_first = root.chunk(0).is_some();
        words(root)[*at] = 0;
        is_first
    });
    begins.expect("a root without chunks")
}

/// Nothing of it does a terminal harm.
pub fn assert_harmless(text: &[u8]) {
    let text = std::str::from_utf8(text).expect("not UTF-8");
    assert!(
        text.chars().all(|c| c == '\n' || !c.is_control()),
        "{text:?}"
    );
}
