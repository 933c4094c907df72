//! Trace files, as `sluice trace` reads them.

use crate::input::Input;
use sluice_stats::TraceFile;
use std::cell::RefCell;

/// Bytes of a file before its events, and of an event.
const HEAD: usize = 80;
const EVENT: usize = 48;

pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let said = if input.byte().is_multiple_of(16) {
        // As it is: of no possible length.
        let said = sluice_tool::fuzzing::told(input.rest().to_vec());
        assert!(said.is_none());
        said
    } else {
        FILE.with_borrow_mut(|file| {
            let changed = write(file, &mut input);
            // SAFETY: as long as a file, aligned as one, and all of it atomics of integers; nobody
            // writes to it meanwhile.
            let said = sluice_tool::fuzzing::told_of(unsafe { &*file.as_ptr().cast() });
            // As it was, for the next input: most of it is as ever.
            bytes_of(file)[..HEAD].copy_from_slice(&BEGUN.with_borrow(|begun| *begun));
            for at in changed {
                bytes_of(file)[HEAD + at * EVENT..][..EVENT].fill(0);
            }
            said
        })
    };
    for text in said.iter().flatten() {
        crate::tables::assert_harmless(text);
    }
}

thread_local! {
    static FILE: RefCell<Vec<u64>> = RefCell::new(begun());
    /// How a file begins without events.
    static BEGUN: RefCell<[u8; HEAD]> =
        RefCell::new(bytes_of(&mut begun())[..HEAD].try_into().unwrap());
}

/// A file without events.
fn begun() -> Vec<u64> {
    let words = vec![0u64; size_of::<TraceFile>() / 8];
    // SAFETY: as in `run`; what is stored goes through the atomics of a vector that is borrowed by
    // nobody else.
    let file: &TraceFile = unsafe { &*words.as_ptr().cast() };
    file.begin(7, b"program");
    words
}

fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    let len = size_of_val(words);
    // SAFETY: the same memory, borrowed alone; any bytes are words.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), len) }
}

/// Writes what is drawn into a file that has just begun. Which events have changed.
fn write(file: &mut [u64], input: &mut Input<'_>) -> Vec<usize> {
    let file = bytes_of(file);
    let head = input.byte();
    if head & 1 != 0 {
        // Its process and program.
        let name = input.bytes(40);
        file[24..24 + name.len()].copy_from_slice(name);
    }
    if head & 2 != 0 {
        // From where on its events count.
        file[HEAD - 8..HEAD].copy_from_slice(&input.number(&[0, 1, u64::MAX]).to_ne_bytes());
    }
    if head & 4 != 0 {
        let at = input.below(64);
        file[at] ^= 1 << (input.byte() % 8);
    }
    let (mut at, mut changed) = (0, Vec::new());
    while !input.is_over() {
        // Mostly one after the other.
        at = match input.byte() % 4 {
            0 => input.below(65_536),
            _ => (at + 1) % 65_536,
        };
        let number = 1 + input.number(&[0, u64::MAX - 1]) % u64::MAX;
        let mut event = Vec::with_capacity(EVENT);
        event.extend(number.to_ne_bytes());
        event.extend(input.number(&[0, u64::MAX]).to_ne_bytes());
        // Slot, generation, ports, kind.
        for most in [4, u32::MAX, u32::MAX, 80] {
            event.extend((input.word() % most).to_ne_bytes());
        }
        event.extend(input.number(&[0, 1, 2, u64::MAX]).to_ne_bytes());
        let end = if input.byte().is_multiple_of(8) {
            input.long()
        } else {
            number
        };
        event.extend(end.to_ne_bytes());
        file[HEAD + at * EVENT..][..EVENT].copy_from_slice(&event);
        changed.push(at);
    }
    changed
}
