//! Which streams of a link have something to post, in turn.

use crate::wire::Immediate;

const WORDS: usize = Immediate::STREAM_COUNT as usize / 64;

/// Streams with something to post.
#[derive(Debug)]
pub(super) struct Due {
    bits: [u64; WORDS],
    /// Where the next look begins: after the stream that was served last.
    from: u16,
}

impl Due {
    pub const NONE: Self = Self {
        bits: [0; WORDS],
        from: 0,
    };

    /// This one is served: others first, before it is served again.
    pub fn pass(&mut self, stream: u16) {
        self.from = (stream + 1) % Immediate::STREAM_COUNT;
    }

    pub fn set(&mut self, stream: u16) {
        if let Some(word) = self.bits.get_mut(usize::from(stream) / 64) {
            *word |= 1 << (stream % 64);
        }
    }

    pub fn clear(&mut self, stream: u16) {
        if let Some(word) = self.bits.get_mut(usize::from(stream) / 64) {
            *word &= !(1 << (stream % 64));
        }
    }

    pub fn any(&self) -> bool {
        self.bits.iter().any(|word| *word != 0)
    }

    /// The next after the one served last, round and round.
    pub fn next(&self) -> Option<u16> {
        let first = usize::from(self.from) / 64;
        for i in 0..=WORDS {
            let at = (first + i) % WORDS;
            let mut word = *self.bits.get(at)?;
            if i == 0 {
                word &= u64::MAX << (self.from % 64);
            }
            if word != 0 {
                return u16::try_from(at * 64 + word.trailing_zeros() as usize).ok();
            }
        }
        None
    }
}
