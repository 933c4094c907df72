//! What `sendfile` costs this process by copies and by the file's own pages, as measured.
//!
//! `SLUICE_SENDFILE=auto` registers a window once copies from it have cost as much as registering
//! does. Then each call takes whichever way has cost less for its length; and now and then goes by
//! pages where copies have, since costs change.

use super::costs::ByClass;
use core::sync::atomic::{AtomicU64, Ordering};

/// Of a call by each way, in ps a byte: a copy is cut in portions, so long ones are like shorter
/// ones.
static COPY: ByClass = ByClass::new();
static PAGES: ByClass = ByClass::new();
/// Of registering a window and giving it back, in ns.
static REGISTER: ByClass = ByClass::new();

/// A copy of more goes in portions.
const PORTION: usize = 128 << 10;
/// Shorter parts of a file are copied: a span costs a message of its own.
const LEAST: usize = 16 << 10;
/// What registering costs before it was measured: so many ns, and one for so many bytes.
const REGISTER_NS: u64 = 10_000;
const REGISTER_BYTES: u64 = 16;

/// Of so many calls by copies one goes by pages.
const TRIES: u64 = 64;
static REFUSED: AtomicU64 = AtomicU64::new(0);

fn by_byte(len: usize, ns: u64) -> u64 {
    ns.saturating_mul(1000) / (len as u64).max(1)
}

/// So many bytes were copied and published in so many ns.
pub fn has_copied(len: usize, ns: u64) {
    COPY.note(len.min(PORTION), by_byte(len, ns));
}

/// So many bytes were published by pages in so many ns.
pub fn has_sent_pages(len: usize, ns: u64) {
    PAGES.note(len, by_byte(len, ns));
}

/// So many bytes were registered in so many ns. Giving them back takes half as long.
pub(super) fn has_registered(len: usize, ns: u64) {
    REGISTER.note(len, ns + ns / 2);
}

/// Returns whether copies that have cost so much would have paid for registering so many bytes.
pub(super) fn is_worth_registering(spent_ns: u64, len: u64) -> bool {
    let known = REGISTER.get(len as usize);
    let guess = REGISTER_NS + len / REGISTER_BYTES;
    spent_ns >= if known == 0 { guess } else { known }
}

/// Returns whether pages cost a call of so many bytes less than a copy, or that is to be found out.
#[must_use]
pub fn pay(len: usize) -> bool {
    if len < LEAST {
        return false;
    }
    let (copy, pages) = (COPY.get(len.min(PORTION)), PAGES.get(len));
    pages < copy
        || pages == 0
        || REFUSED
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(TRIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheaper_way_is_taken_for_each_length() {
        assert!(pay(1 << 20), "not known");
        for _ in 0..100 {
            has_copied(PORTION, 5_000);
            has_sent_pages(1 << 20, 9_000);
            has_copied(32 << 10, 900);
            has_sent_pages(32 << 10, 2_000);
        }
        assert!(pay(1 << 20) && pay((1 << 21) - 1) && !pay(100));
        let tried = (0..TRIES).filter(|_| pay(32 << 10)).count();
        assert_eq!(tried, 1, "now and then");
        // A thread that loses its processor once does not change it.
        has_sent_pages(1 << 20, 10_000_000);
        assert!(pay(1 << 20));
    }

    #[test]
    fn a_window_is_registered_when_copies_have_cost_as_much() {
        assert!(!is_worth_registering(5_000, 4096));
        for _ in 0..50 {
            has_registered(4096, 8_000);
        }
        assert!(!is_worth_registering(11_000, 4096) && is_worth_registering(12_100, 4096));
        assert!(!is_worth_registering(12_100, 1 << 20), "of another length");
        assert!(is_worth_registering(u64::MAX, 1 << 20));
    }
}
