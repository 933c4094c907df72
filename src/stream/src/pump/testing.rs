//! What the tests' worlds share: the bytes of a stream, messages on the way, a switch without TCP.

use super::*;
use crate::record::{Nonce, Role};
use crate::wire::CONTROL_LEN;

pub const ENDS: [usize; 2] = [0, 1];
/// Bytes of a staging ring.
pub const STAGING: u64 = 64;
/// Of every ring that is lent.
pub const KEY: u32 = 7;

pub fn byte(stream: u16, end: usize, at: u64) -> u8 {
    (at.wrapping_mul(31) >> 3) as u8 ^ (stream as u8) << 1 ^ end as u8 ^ at as u8
}

/// A message on the way: the word, its bytes, and where they go.
pub struct Way {
    pub word: u32,
    pub bytes: Vec<u8>,
    pub to: To,
}

pub enum To {
    /// The stream's ring: its number in the upper half.
    Ring(u64),
    Slot(u16),
    Nowhere,
}

impl Way {
    /// A message that carries none of a stream's bytes.
    pub fn of_no_stream(word: u32, control: Option<(u16, [u8; CONTROL_LEN])>) -> Self {
        let (bytes, to) = match control {
            Some((slot, bytes)) => (bytes.to_vec(), To::Slot(slot)),
            None => (Vec::new(), To::Nowhere),
        };
        Self { word, bytes, to }
    }

    /// Comes to an end with these slots; `ring` gets bytes for a stream's ring: which stream's,
    /// from where on.
    pub fn arrive(
        self,
        pump: &mut Pump,
        slots: &mut [[u8; CONTROL_LEN]],
        ring: impl FnOnce(usize, usize, &[u8]),
    ) -> Came {
        let Self { word, bytes, to } = self;
        match to {
            To::Ring(place) => ring((place >> 32) as usize, place as u32 as usize, &bytes),
            To::Slot(slot) => slots[usize::from(slot)].copy_from_slice(&bytes),
            To::Nowhere => {}
        }
        pump.on_came(word, bytes.len() as u32, |slot| slots[usize::from(slot)])
            .unwrap()
    }
}

/// How `me` opens a stream: with a ring of its own, and one of the other end's.
pub fn opening(stream: u16, me: usize, [ring_len, lent_len]: [u32; 2]) -> Opening {
    let first = usize::from(stream % 2) == me;
    Opening {
        role: if first { Role::First } else { Role::Second },
        nonce: Nonce::new([stream as u8; 16]),
        theirs: stream,
        tcp_read: 0,
        ring_len,
        staging_len: STAGING as u32,
        // The place tells the stream.
        lent: Lent {
            place: u64::from(stream) << 32,
            key: KEY,
            len: lent_len,
        },
    }
}

/// Goes on with the switch of a stream, as far as the peer's word allows.
pub fn switch(pump: &mut Pump, stream: u16) {
    loop {
        pump.consent(stream);
        if pump.wants_fix(stream) {
            pump.transit(stream).unwrap().fix(0).unwrap();
        }
        pump.settle(stream);
        if pump.step(stream).unwrap() == Stepped::None {
            return;
        }
    }
}
