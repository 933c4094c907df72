//! The messages of a link to another host: control slots, immediates, and the record on TCP.

use crate::input::Input;
use sluice_stream::record::{NONCE_LEN, Nonce, RECORD_LEN, Record};
use sluice_stream::wire::{CONTROL_LEN, Control, Immediate};

pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.byte() % 4 {
        0 => {
            let mut slot = [0; CONTROL_LEN];
            let said = input.bytes(CONTROL_LEN);
            slot[..said.len()].copy_from_slice(said);
            control(&slot);
        }
        // A kind that there is, and fields that are there.
        1 => {
            let mut slot = [0; CONTROL_LEN];
            slot[0] = input.byte() % 16;
            slot[1] = input.byte() & 1;
            slot[4..8].copy_from_slice(&input.word().to_le_bytes());
            for field in slot.chunks_exact_mut(8).skip(1) {
                field.copy_from_slice(&input.number(&[0, 1, u64::MAX]).to_le_bytes());
            }
            control(&slot);
        }
        2 => {
            let nonce = *b"sixteen bytes ..";
            let mut said = [0; RECORD_LEN];
            if input.chance() {
                said[..NONCE_LEN].copy_from_slice(&nonce);
            }
            let from = usize::from(input.byte() & 1) * NONCE_LEN;
            let bytes = input.bytes(RECORD_LEN - from);
            said[from..from + bytes.len()].copy_from_slice(bytes);
            let nonce = Nonce::new(nonce);
            match Record::parse(&said, &nonce) {
                None => assert!(nonce.matches(&said) < NONCE_LEN),
                Some(Ok(record)) => {
                    assert_eq!(record.emit(&nonce), said);
                    // Where its sender's TCP ends can be told.
                    let _ = record.end();
                }
                Some(Err(_)) => assert_eq!(nonce.matches(&said), NONCE_LEN),
            }
        }
        _ => {
            let word = input.word();
            if let Ok(immediate) = Immediate::parse(word) {
                assert_eq!(immediate.emit(), word);
                assert!(immediate.stream() < Immediate::STREAM_COUNT);
                assert!(immediate.count() < Immediate::COUNTS);
            }
        }
    }
}

fn control(slot: &[u8; CONTROL_LEN]) {
    if let Ok(control) = Control::parse(slot) {
        assert_eq!(control.emit(), *slot);
        assert_eq!(Control::parse(&control.emit()), Ok(control));
    }
}
