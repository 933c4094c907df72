//! What the two programs of a direction ask for, have in hand and share.

use std::vec::Vec;

use crate::wire::CONTROL_LEN;
use crate::{Advert, Offer, Route, Seq};

/// What a program's recv asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Bytes at most.
    pub len: u32,
    /// `SO_RCVLOWAT`.
    pub low: u32,
    /// `MSG_WAITALL`.
    pub waitall: bool,
    /// `MSG_PEEK`.
    pub peek: bool,
    /// Ticks until it gives up; `Some(0)` is a non-blocking one, `None` waits for ever.
    pub patience: Option<u64>,
}

impl Want {
    /// A blocking recv of up to `len` bytes.
    #[must_use]
    pub const fn some(len: u32) -> Self {
        Self {
            len,
            low: 1,
            waitall: false,
            peek: false,
            patience: None,
        }
    }

    /// A blocking recv of exactly `len` bytes.
    #[must_use]
    pub const fn all(len: u32) -> Self {
        Self {
            waitall: true,
            ..Self::some(len)
        }
    }

    /// Whether it is one that lends its buffer.
    pub(super) const fn is_plain(&self) -> bool {
        self.low <= 1 && !self.peek && !matches!(self.patience, Some(0))
    }

    /// Bytes with which it returns.
    pub(super) fn enough(&self) -> usize {
        let enough = if self.waitall {
            self.len
        } else {
            self.low.min(self.len)
        };
        usize_of(enough.max(1))
    }
}

/// What a direction has been seen to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// Bytes that went into the ring.
    pub ring_bytes: u64,
    /// Bytes that went straight to a buffer.
    pub direct_bytes: u64,
    /// Times that they did.
    pub direct_count: u64,
    /// ADVERTs made.
    pub advert_count: u64,
    /// ADVERTs revoked.
    pub revoke_count: u64,
    /// Acknowledgements sent.
    pub ack_count: u64,
    /// Offers that went up without an ADVERT.
    pub offer_count: u64,
    /// Bytes re-sent by a demotion.
    pub resent_bytes: u64,
    /// Direct writes that met a buffer taken back, and were refused by the link.
    pub refused_count: u64,
    /// Demotions of a sender that waited for an ADVERT in vain.
    pub hungry_count: u64,
}

/// What travels.
#[derive(Debug)]
pub(super) enum Parcel {
    Control([u8; CONTROL_LEN]),
    Ring(Vec<u8>),
    Direct {
        advert: Advert,
        bytes: Vec<u8>,
    },
    /// Pull: a word of shared memory has changed.
    Look,
}

/// One send of the writing program.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) len: u32,
    pub(super) route: Route,
}

/// A recv under way.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) want: Want,
    /// Its buffer: number in the high half, offset in the low one.
    pub(super) place: u64,
    pub(super) deadline: Option<u64>,
    pub(super) got: Vec<u8>,
    /// Bytes copied that do not count yet: the end may be seized, or the offer withdrawn, before.
    pub(super) copy: Option<Copy>,
}

#[derive(Debug)]
pub(super) enum Copy {
    Ring(Vec<u8>),
    Offer { number: u64, bytes: Vec<u8> },
}

/// The words of shared memory, changed one at a time and all or nothing.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// Bytes ever put into the ring.
    pub(super) filled: u64,
    /// Bytes ever copied out of it.
    pub(super) freed: u64,
    /// The position up to which the reader has taken the stream, and, once `ended`, always had.
    pub(super) head: Seq,
    /// The tail is sealed and the head seized.
    pub(super) ended: bool,
    /// The offer that is up.
    pub(super) offer: Option<Offer>,
    /// What the reader took of the last one.
    pub(super) taken: Option<u32>,
}

/// The byte that belongs at `at`: neighbours, and bytes a ring apart, differ.
pub(super) fn byte_at(at: u64) -> u8 {
    let [.., byte] = at
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(17)
        .to_be_bytes();
    byte
}

pub(super) fn stretch(from: u64, len: u32) -> Vec<u8> {
    (from..).take(usize_of(len)).map(byte_at).collect()
}

pub(super) const fn usize_of(len: u32) -> usize {
    len as usize
}

/// Lengths here come from `u32` and never grow beyond it.
pub(super) fn u32_of(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
