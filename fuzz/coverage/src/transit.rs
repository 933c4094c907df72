//! A stream's way from TCP to a link to another host and back, with a peer that says anything at
//! any moment.
//!
//! This end does what an honest caller does: it asks what is allowed, and does that. So the machine
//! never finds fault with it.

use crate::input::Input;
use sluice_stream::Error;
use sluice_stream::record::{Action, Goes, Head, Leave, NONCE_LEN, Nonce, Out, RECORD_LEN};
use sluice_stream::record::{Record, Role, Step, Transit};
use sluice_stream::wire::Seq;

const NONCE: Nonce = Nonce::new(*b"sixteen bytes ..");
/// Bytes of either ring.
const RING: u64 = 64 << 10;
/// Longest run of one input.
const STEPS: usize = 200;

/// What this end knows of its own doing.
struct End {
    transit: Transit,
    completed: u64,
    credited: u64,
    received: u64,
    tcp_read: u64,
}

pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let role = if input.chance() {
        Role::First
    } else {
        Role::Second
    };
    let tcp_read = input.number(&[0, 32 << 10, u64::MAX]);
    let mut end = End {
        transit: Transit::new(role, NONCE, tcp_read),
        completed: 0,
        credited: 0,
        received: 0,
        tcp_read,
    };
    for _ in 0..STEPS {
        if input.is_over() {
            break;
        }
        end.step(&mut input);
        end.check();
    }
}

/// The peer can be at fault, this end never.
fn of_peer(done: Result<(), Error>) -> bool {
    match done {
        Ok(()) => true,
        Err(Error::Peer(_)) => false,
        Err(Error::Bug(bug)) => panic!("this end is told that it erred: {bug}"),
    }
}

impl End {
    fn step(&mut self, input: &mut Input<'_>) {
        let posted = self.transit.posted().value();
        let edges = [
            0,
            posted,
            self.completed,
            self.credited,
            self.received,
            self.transit.read().value(),
            self.transit.link_end().value(),
            self.tcp_read,
            u64::MAX,
        ];
        let t = &mut self.transit;
        match input.byte() % 20 {
            // What the peer says on the link.
            0 | 1 => {
                let n = if input.chance() {
                    self.tcp_read
                } else {
                    input.number(&edges)
                };
                let step = match input.byte() % 6 {
                    0 => Step::First(n),
                    1 => Step::Second(n),
                    2 => Step::Go,
                    3 => Step::Ready,
                    4 => Step::Open,
                    _ => Step::Cancel,
                };
                if t.may_take(step) && !of_peer(t.on_step(step)) {
                    t.on_link_lost();
                }
            }
            2 => {
                let to = input.number(&edges);
                if of_peer(t.on_credit(Seq::new(to))) {
                    self.credited = self.credited.max(to);
                } else {
                    t.on_link_lost();
                }
            }
            // Bytes, as many as there is room for in the ring that this end has lent.
            3 => {
                let room = RING - (self.received - t.read().value()).min(RING);
                let to = self.received + input.number(&[1, room]) % (room + 1);
                if of_peer(t.on_received(Seq::new(to))) {
                    self.received = to;
                } else {
                    t.on_link_lost();
                }
            }
            // What it does on TCP.
            4..=6 => self.head(input, &edges),
            7 => {
                let room = t.tcp_room();
                let len = input.number(&[1, room]).min(room).min(1 << 20);
                let len = len.min(u64::MAX - self.tcp_read);
                assert!(of_peer(t.on_tcp_read(len)));
                self.tcp_read += len;
            }
            8 => {
                let _ = t.on_tcp_end();
            }
            9 if input.byte() == 0 => t.on_tcp_error(),
            // What this end does.
            10 if t.wants_fix() => {
                assert!(of_peer(t.fix(input.number(&edges))));
            }
            11 => t.refuse(),
            12 if t.out() == Out::Link => {
                let room = RING - (posted - self.credited).min(RING);
                let len = input.number(&[1, room]) % (room + 1);
                assert!(of_peer(t.on_posted(len as u32)));
            }
            13 => {
                let more = input.number(&[1, posted]) % (posted - self.completed.min(posted) + 1);
                self.completed = self.completed.min(posted) + more;
                assert!(of_peer(t.on_completed(Seq::new(self.completed))));
            }
            14 => t.on_drained(),
            15 if input.byte().is_multiple_of(4) => t.on_link_lost(),
            16 => {
                let (read, to) = (t.read().value(), t.link_end().value());
                let to = read + input.number(&[1, RING]) % (to - read + 1);
                assert!(of_peer(t.on_read(Seq::new(to))));
            }
            17 => t.leave(match input.byte() % 4 {
                0 => Leave::Stay,
                1 => Leave::Shut,
                2 => Leave::Hand,
                _ => Leave::Close,
            }),
            18 if input.byte().is_multiple_of(4) => t.give_up(),
            19 => t.on_tcp_write(),
            _ => {}
        }
        for round in 0.. {
            assert!(round < 10, "it wants something for ever");
            match self.transit.poll_action() {
                None => break,
                Some(Action::Write(record)) => {
                    let bytes = record.emit(&NONCE);
                    assert_eq!(Record::parse(&bytes, &NONCE), Some(Ok(record)));
                }
                Some(Action::Drain) => self.transit.on_drained(),
                Some(_) => {}
            }
        }
    }

    /// What TCP has where the link's bytes began.
    fn head(&mut self, input: &mut Input<'_>, edges: &[u64]) {
        let mut bytes = [0; RECORD_LEN];
        if input.chance() {
            let at = Seq::new(input.number(edges));
            let goes = if input.chance() {
                Goes::From {
                    from: at,
                    owed: if input.chance() { 0 } else { input.word() },
                }
            } else {
                Goes::Ask {
                    end: at,
                    lives: input.chance(),
                }
            };
            let taken = Seq::new(input.number(edges));
            let last = input.chance();
            bytes = Record { goes, taken, last }.emit(&NONCE);
        } else {
            bytes[..NONCE_LEN].copy_from_slice(b"sixteen bytes ..");
            let at = input.below(RECORD_LEN);
            let part = input.bytes(RECORD_LEN - at);
            bytes[at..at + part.len()].copy_from_slice(part);
        }
        let len = if input.chance() {
            RECORD_LEN
        } else {
            input.below(RECORD_LEN + 1)
        };
        let head = &bytes[..len];
        let ended = input.chance();
        let _ = self.transit.is_part(head);
        let _ = self.transit.is_crossing(head);
        let was_at_head = self.transit.is_at_head();
        match self.transit.on_head(head, ended) {
            Head::Wait => {}
            // The whole of it was there.
            Head::Record => assert!(was_at_head && len == RECORD_LEN),
            Head::Data => assert!(was_at_head),
        }
    }

    /// Every number stays in bounds, whatever the peer has said.
    fn check(&self) {
        let t = &self.transit;
        let posted = t.posted().value();
        assert!(posted - self.credited.min(posted) <= RING);
        assert!(
            t.link_end().value() <= self.received,
            "bytes that never came"
        );
        assert!(t.read() <= t.link_end(), "read beyond the end");
        match t.out() {
            Out::Tcp(from) => assert!(
                from.value() <= posted,
                "sent again: bytes that were never given"
            ),
            Out::Link => assert!(!t.is_leaving() && t.is_dead().is_none()),
            Out::Held => {}
        }
        assert!(t.kept().value() <= posted);
        if t.is_clean() {
            assert!(!t.awaits_record());
        }
    }
}
