//! The states of a half of a socket, and the events that change them.
//!
//! ```text
//!   each half (rx, tx) by itself:
//!
//!   Plain ──Attached──► Proved ──Switched──► Draining (rx) ──Entered──► Link
//!     ▲                   └─────────────────Entered (tx, rx)─────────────▲│
//!     │                                                                   │
//!     ├──────────────── Settled (rx), AllRead (rx) ──────────────────────┤
//!     ├── AllSent ── Resending (tx) ◄──────────── Sealed ─────────────────┤
//!     └── AllRead ── Returning (rx, between hosts) ◄─── Returns ──────────┘
//!
//!   after a fork, in the child: Inherited until the first use, which demotes
//! ```
//!
//! `TABLE` lists every transition. The new state depends on the event alone, so a release build
//! only stores it; builds for tests also assert that the table allows the transition.

use core::sync::atomic::{AtomicU8, Ordering};

/// What carries the bytes of one half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The kernel carries the bytes, and calls are passed to it.
    Plain = 0,
    /// The kernel carries the bytes, but a stream is attached: a doorbell can end waits.
    Proved = 1,
    /// rx: the writer has switched, and its earlier bytes are read from TCP first. Also while an
    /// emulated reset moves what TCP holds into the unread copy.
    Draining = 2,
    /// The link carries the bytes.
    Link = 3,
    /// tx: demoted; TCP carries the bytes that the reader did not take from the ring, then new
    /// ones.
    Resending = 4,
    /// The stream belongs to the parent of this process.
    Inherited = 5,
    /// rx, between hosts: all bytes of the link are read, and TCP brings what the peer re-sends.
    Returning = 6,
}

/// What changes the state of a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Both ends have met and have a stream.
    Attached,
    /// rx: the writer has said at which byte of TCP the link begins.
    Switched,
    /// rx: TCP is read up to that byte. tx: this end writes to the link from now on.
    Entered,
    /// rx: demoted; the peer re-sends the unread bytes.
    Settled,
    /// tx: demoted; this end re-sends the unread bytes.
    Sealed,
    /// rx, between hosts: demoted, and the link's bytes are read.
    Returns,
    /// rx, between hosts: demoted, and everything owed is read.
    AllRead,
    /// tx: TCP has taken everything that was to be re-sent.
    AllSent,
    /// tx: TCP tells the peer of the end, and this end re-sends nothing.
    LeftToPeer,
    /// rx: an emulated reset begins to save what TCP holds unread.
    ResetBegins,
    /// rx: the emulated reset has saved it.
    ResetOver,
    /// The owner has demoted an inherited stream for this process.
    HandedOver,
    /// A stream between hosts is given up with whatever bytes it holds.
    Abandoned,
    /// A child drops its parent's stream without having used it.
    Disowned,
}

impl Event {
    const fn to(self) -> State {
        match self {
            Self::Attached => State::Proved,
            Self::Switched | Self::ResetBegins => State::Draining,
            Self::Entered => State::Link,
            Self::Sealed => State::Resending,
            Self::Returns => State::Returning,
            Self::Settled
            | Self::AllRead
            | Self::AllSent
            | Self::LeftToPeer
            | Self::ResetOver
            | Self::HandedOver
            | Self::Abandoned
            | Self::Disowned => State::Plain,
        }
    }
}

/// The state of one half; zero, [`State::Plain`], when new.
#[derive(Debug)]
#[repr(transparent)]
pub struct Cell(AtomicU8);

impl Cell {
    /// The state as a hint: confirm a decision under the half's lock.
    #[inline]
    pub fn get(&self) -> State {
        decode(self.0.load(Ordering::Acquire))
    }

    /// The state by a SeqCst load: for a thread that has announced a call or a wait and must see a
    /// state change that came before.
    #[inline]
    pub(crate) fn get_in_order(&self) -> State {
        decode(self.0.load(Ordering::SeqCst))
    }

    /// Changes the state; call under the half's lock. SeqCst, so that a thread that then looks for
    /// announced calls and waits misses none.
    #[inline]
    pub fn on(&self, event: Event) {
        #[cfg(any(test, feature = "fault"))]
        assert!(
            is_allowed(self.get(), event),
            "{event:?} in {:?}",
            self.get()
        );
        self.0.store(event.to() as u8, Ordering::SeqCst);
    }

    /// In the child of a fork, which has a single thread: the streams are the parent's.
    pub fn forked(&self) {
        if self.get() != State::Plain {
            self.0.store(State::Inherited as u8, Ordering::Relaxed);
        }
    }

    /// Resets the state for a new connection.
    pub fn renew(&self) {
        self.0.store(State::Plain as u8, Ordering::Relaxed);
    }

    /// Sets any state, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn put(&self, state: State) {
        self.0.store(state as u8, Ordering::SeqCst);
    }
}

#[inline]
fn decode(state: u8) -> State {
    // SAFETY: the cell only ever holds zero (`Plain`) or a `State` stored as u8.
    unsafe { core::mem::transmute::<u8, State>(state) }
}

/// The states from which each event may come, for reading and writing halves alike.
#[cfg(any(test, feature = "fault"))]
const TABLE: [(Event, &[State]); 14] = {
    use State::{Draining, Inherited, Link, Plain, Proved, Resending, Returning};
    [
        (Event::Attached, &[Plain]),
        (Event::Switched, &[Proved]),
        // Between hosts there may be nothing to drain. tx: from Proved only.
        (Event::Entered, &[Proved, Draining]),
        (Event::Settled, &[Proved, Draining, Link, Inherited]),
        (Event::Sealed, &[Proved, Link, Inherited]),
        (Event::Returns, &[Proved, Draining, Link]),
        (Event::AllRead, &[Proved, Draining, Link, Returning]),
        (Event::AllSent, &[Resending]),
        (Event::LeftToPeer, &[Proved, Link, Inherited, Resending]),
        (Event::ResetBegins, &[Plain]),
        (Event::ResetOver, &[Draining]),
        (Event::HandedOver, &[Inherited]),
        (
            Event::Abandoned,
            &[
                Plain, Proved, Draining, Link, Resending, Inherited, Returning,
            ],
        ),
        // One half may have been demoted already.
        (Event::Disowned, &[Plain, Resending, Inherited]),
    ]
};

#[cfg(any(test, feature = "fault"))]
fn is_allowed(from: State, event: Event) -> bool {
    TABLE
        .iter()
        .any(|&(of, states)| of == event && states.contains(&from))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RX: [Event; 11] = [
        Event::Attached,
        Event::Switched,
        Event::Entered,
        Event::Settled,
        Event::Returns,
        Event::AllRead,
        Event::ResetBegins,
        Event::ResetOver,
        Event::HandedOver,
        Event::Abandoned,
        Event::Disowned,
    ];
    const TX: [Event; 8] = [
        Event::Attached,
        Event::Entered,
        Event::Sealed,
        Event::AllSent,
        Event::LeftToPeer,
        Event::HandedOver,
        Event::Abandoned,
        Event::Disowned,
    ];
    const STATES: [State; 7] = [
        State::Plain,
        State::Proved,
        State::Draining,
        State::Link,
        State::Resending,
        State::Inherited,
        State::Returning,
    ];

    /// The states that a half reaches from Plain by these events and by a fork.
    fn reached(events: &[Event]) -> Vec<State> {
        let mut known = vec![State::Plain];
        let mut at = 0;
        while let Some(&from) = known.get(at) {
            at += 1;
            let cell = Cell(AtomicU8::new(from as u8));
            cell.forked();
            let mut next = vec![cell.get()];
            for &event in events.iter().filter(|&&event| is_allowed(from, event)) {
                let cell = Cell(AtomicU8::new(from as u8));
                cell.on(event);
                assert_eq!(cell.get(), event.to());
                assert_eq!(cell.get_in_order(), event.to());
                next.push(cell.get());
            }
            next.retain(|state| !known.contains(state));
            next.dedup();
            known.extend(next);
        }
        known
    }

    #[test]
    fn each_event_has_one_row() {
        for event in RX.iter().chain(&TX) {
            assert_eq!(TABLE.iter().filter(|(of, _)| of == event).count(), 1);
        }
        let known = |of: &Event| RX.contains(of) || TX.contains(of);
        assert!(TABLE.iter().all(|(of, _)| known(of)));
    }

    #[test]
    fn a_half_comes_to_its_own_states_and_no_others() {
        let of = |events, others: &[State]| {
            let known = reached(events);
            for state in STATES {
                assert_eq!(
                    known.contains(&state),
                    !others.contains(&state),
                    "{state:?}"
                );
            }
        };
        of(&RX, &[State::Resending]);
        of(&TX, &[State::Draining, State::Returning]);
    }

    #[test]
    fn tcp_is_one_event_from_every_state() {
        for (events, own) in [(&RX[..], State::Returning), (&TX[..], State::Resending)] {
            for from in [State::Proved, State::Link, State::Inherited, own] {
                let leads = |&event: &Event| is_allowed(from, event) && event.to() == State::Plain;
                assert!(events.iter().any(leads), "{from:?}");
            }
        }
    }

    #[test]
    #[should_panic = "AllSent in Link"]
    fn what_the_table_lacks_is_not_done() {
        let cell = Cell(AtomicU8::new(State::Link as u8));
        cell.on(Event::AllSent);
    }

    #[test]
    fn a_fork_takes_every_stream_and_a_new_connection_none() {
        for state in STATES {
            let cell = Cell(AtomicU8::new(0));
            cell.put(state);
            cell.forked();
            let is_plain = state == State::Plain;
            assert_eq!(cell.get() == State::Plain, is_plain);
            assert_eq!(cell.get() == State::Inherited, !is_plain);
            cell.renew();
            assert_eq!(cell.get(), State::Plain);
        }
    }
}
