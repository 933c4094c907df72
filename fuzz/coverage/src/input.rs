//! A fuzzer's bytes, read as numbers that break things.

/// Bytes from the front; zeroes when they are used up.
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Is there nothing left?
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// At most `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        head
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut to = [0; N];
        let from = self.bytes(N);
        to[..from.len()].copy_from_slice(from);
        to
    }

    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub fn chance(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// One of `of` numbers, from 0 on.
    pub fn below(&mut self, of: usize) -> usize {
        let n = if of > 256 {
            usize::from(self.half())
        } else {
            usize::from(self.byte())
        };
        n % of.max(1)
    }

    /// A number of 64 bits: small, a power of two or near one, close to one of `edges`, or any.
    pub fn number(&mut self, edges: &[u64]) -> u64 {
        match self.byte() {
            0 => u64::from(self.byte()),
            1 => u64::from(self.half()),
            2 => {
                let by = self.byte() as i8;
                (1u64 << (self.byte() % 64)).wrapping_add_signed(i64::from(by))
            }
            3 => self.long(),
            4 => u64::from(self.word()),
            5 => {
                let at = edges.get(self.below(edges.len())).copied().unwrap_or(0);
                at.wrapping_add_signed(i64::from(self.half() as i16))
            }
            6 => {
                let at = edges.get(self.below(edges.len())).copied().unwrap_or(0);
                at.wrapping_add_signed(i64::from(self.byte() as i8) * 4096)
            }
            _ => edges.get(self.below(edges.len())).copied().unwrap_or(0),
        }
    }
}
