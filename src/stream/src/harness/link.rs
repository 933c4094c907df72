//! The virtual link of one direction, and its clock.
//!
//! Guarantees: messages of one class arrive in order, and none is lost. Refuses to promise anything
//! between classes: each has its own delay, or is delivered by hand, so that any class can overtake
//! any other.

use std::collections::VecDeque;
use std::vec::Vec;

/// What may overtake what: everything that a link carries on paths of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Ring bytes and the turns before them.
    Ring,
    /// Direct bytes, or the news of an offer.
    Direct,
    /// ADVERTs.
    Advert,
    /// Their revocations.
    Revoke,
    /// Credit, takes and withdrawals.
    Ack,
    /// The writer's word that it waits for credit.
    Blocked,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Ring,
        Self::Direct,
        Self::Advert,
        Self::Revoke,
        Self::Ack,
        Self::Blocked,
    ];
}

#[derive(Debug)]
struct Sent<M> {
    class: Class,
    due: u64,
    message: M,
}

/// Messages under way.
#[derive(Debug)]
pub(super) struct Link<M> {
    now: u64,
    delays: Vec<(Class, u64)>,
    sent: VecDeque<Sent<M>>,
}

impl<M> Link<M> {
    pub(super) const fn new() -> Self {
        Self {
            now: 0,
            delays: Vec::new(),
            sent: VecDeque::new(),
        }
    }

    pub(super) const fn now(&self) -> u64 {
        self.now
    }

    /// From now on, messages of `class` take `ticks`.
    pub(super) fn set_delay(&mut self, class: Class, ticks: u64) {
        self.delays.retain(|(other, _)| *other != class);
        self.delays.push((class, ticks));
    }

    pub(super) fn send(&mut self, class: Class, message: M) {
        let delay = self
            .delays
            .iter()
            .find(|(other, _)| *other == class)
            .map_or(0, |(_, d)| *d);
        self.sent.push_back(Sent {
            class,
            due: self.now.saturating_add(delay),
            message,
        });
    }

    /// The next message of `class`, due or not.
    pub(super) fn take(&mut self, class: Class) -> Option<M> {
        let at = self.sent.iter().position(|sent| sent.class == class)?;
        self.sent.remove(at).map(|sent| sent.message)
    }

    /// The next message that is due, in order of sending within its class.
    pub(super) fn take_due(&mut self) -> Option<M> {
        let now = self.now;
        let class = self.sent.iter().find(|sent| sent.due <= now)?.class;
        self.take(class)
    }

    /// Moves the clock on by one tick.
    pub(super) fn tick(&mut self) {
        self.now = self.now.saturating_add(1);
    }
}
