//! An end of a link to another host: messages of a peer that says anything, amid what an honest
//! caller does.
//!
//! Checked is what the caller relies on before it hands a message to the device, or a position to
//! the program: nothing is written outside the ring or the buffer that the peer has lent, nothing
//! beyond what the program has written goes out, no more is readable than a ring holds, and this
//! end is never told that it erred.

use crate::input::Input;
use sluice_stream::pump::{Came, Lent, Loan, Opening, Pump, Stepped, Terms, What};
use sluice_stream::record::{Head, Leave, NONCE_LEN, Nonce, Out, RECORD_LEN, Role, Step};
use sluice_stream::wire::{Ack, Berth, Credit, Notice, Phase, Revoked, Seq, Turn};
use sluice_stream::wire::{Advert, AdvertId, CONTROL_LEN, Control, DirectQp, Immediate, Meeting};
use sluice_stream::{Error, Mode};
use std::collections::BTreeSet;

const STREAMS: u16 = 3;
const STEPS: usize = 250;
const NONCE: [u8; NONCE_LEN] = *b"sixteen bytes ..";

#[derive(Clone, Copy, Default)]
struct Stream {
    open: bool,
    ring_len: u64,
    staging_len: u64,
    lent: (u64, u32, u64),
    tail: u64,
    head: u64,
    tcp_read: u64,
}

struct End {
    pump: Pump,
    terms: Terms,
    streams: [Stream; STREAMS as usize],
    /// Messages that the device has.
    posted: usize,
    fenced: bool,
    lost: bool,
    /// Messages that an honest peer would have taken.
    taken: u16,
    /// Buffers that the peer has lent, of the stream: place, key, length.
    adverts: BTreeSet<(u16, u64, u32, u32)>,
    control: [u8; CONTROL_LEN],
}

pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let terms = Terms {
        ours: [4, 8, 32, 256][input.below(4)],
        theirs: [4, 8, 32, 256][input.below(4)],
        sends: [1, 2, 16, 64][input.below(4)],
        message_len: [1, 16, 4096, 64 << 10][input.below(4)],
        mode: [Mode::Dynamic, Mode::Direct, Mode::Indirect][input.below(3)],
        direct_min: [0, 1, 16, 4096][input.below(4)],
        proves: input.chance(),
    };
    let Ok(pump) = Pump::new(terms) else { return };
    let mut end = End {
        pump,
        terms,
        streams: Default::default(),
        posted: 0,
        fenced: false,
        lost: false,
        taken: 0,
        adverts: BTreeSet::new(),
        control: [0; CONTROL_LEN],
    };
    end.open(&mut input, 0);
    for _ in 0..STEPS {
        if input.is_over() {
            break;
        }
        end.step(&mut input);
        end.check();
    }
    // The link ends, and all that it has left is given up.
    end.loses();
    for stream in 0..STREAMS {
        end.pump.close(stream);
    }
    for round in 0.. {
        assert!(round <= STREAMS, "a stream is left for ever");
        if end.pump.take_left().is_none() {
            break;
        }
    }
}

/// What was told of something that the peer does: it may be at fault, this end never.
fn of_peer<T>(told: Result<T, Error>) -> Option<T> {
    match told {
        Ok(told) => Some(told),
        Err(Error::Peer(_)) => None,
        Err(Error::Bug(bug)) => panic!("this end is told that it erred: {bug}"),
    }
}

impl End {
    fn of(&self, stream: u16) -> Stream {
        self.streams[usize::from(stream)]
    }

    fn loses(&mut self) {
        self.lost = true;
        self.posted = 0;
        self.fenced = false;
        self.pump.on_lost();
    }

    fn heard<T>(&mut self, told: Result<T, Error>) -> Option<T> {
        let told = of_peer(told);
        if told.is_none() && !self.lost {
            self.loses();
        }
        told
    }

    fn open(&mut self, input: &mut Input<'_>, stream: u16) {
        let len = |input: &mut Input<'_>| 1u32 << (3 + input.byte() % 10);
        let (ring_len, staging_len) = (len(input), len(input));
        let lent = Lent {
            place: if input.chance() {
                u64::from(stream) << 32
            } else {
                input.number(&[u64::MAX])
            },
            key: 7,
            len: if input.chance() {
                len(input)
            } else {
                input.number(&[0, 1, 4096]) as u32
            },
        };
        let tcp_read = u64::from(input.byte());
        let with = Opening {
            role: if input.chance() {
                Role::First
            } else {
                Role::Second
            },
            nonce: Nonce::new(NONCE),
            theirs: if input.chance() { stream } else { input.half() },
            tcp_read,
            ring_len,
            staging_len,
            lent,
        };
        if !self.lost && of_peer(self.pump.open(stream, &with)).is_some() {
            self.streams[usize::from(stream)] = Stream {
                open: true,
                ring_len: ring_len.into(),
                staging_len: staging_len.into(),
                lent: (lent.place, lent.key, lent.len.into()),
                tcp_read,
                ..Stream::default()
            };
            self.adverts.retain(|(of, ..)| *of != stream);
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let stream = u16::from(input.byte()) % STREAMS;
        let of = self.of(stream);
        match input.byte() % 26 {
            0 => self.open(input, stream),
            1 if input.byte().is_multiple_of(4) => {
                self.pump.close(stream);
                self.streams[usize::from(stream)].open = false;
            }
            2 => self.pump.consent(stream),
            3 if of.open && self.pump.wants_fix(stream) => {
                let n = input.number(&[0]);
                if let Some(transit) = self.pump.transit(stream) {
                    assert!(transit.fix(n).is_ok());
                }
                self.pump.settle(stream);
            }
            4 | 5 => {
                let stepped = self.pump.step(stream);
                assert!(self.heard(stepped) != Some(Stepped::Taken) || of.staging_len != 0);
            }
            6 => {
                let is_out = self
                    .pump
                    .transit(stream)
                    .is_some_and(|t| t.out() == Out::Link);
                let room = of.staging_len - (of.tail - self.pump.kept(stream).value().min(of.tail));
                if of.open && is_out && room <= of.staging_len {
                    let tail = of.tail + input.number(&[1, room]) % (room + 1);
                    self.streams[usize::from(stream)].tail = tail;
                    self.pump.on_tail(stream, Seq::new(tail));
                }
            }
            7 => {
                let to = self
                    .pump
                    .transit(stream)
                    .map_or(0, |t| t.link_end().value());
                if of.open && to > of.head {
                    let head = of.head + input.number(&[1, to]) % (to - of.head + 1);
                    self.streams[usize::from(stream)].head = head;
                    let told = self.pump.on_head(stream, Seq::new(head));
                    self.heard(told);
                }
            }
            8 => {
                for _ in 0..1 + input.byte() % 8 {
                    if !self.post() {
                        break;
                    }
                }
            }
            9 => {
                let n = usize::from(input.byte()) % (self.posted + 1);
                self.posted -= n;
                self.taken = self.taken.wrapping_add(n as u16) % Immediate::COUNTS;
                let told = self.pump.on_done(n, |_| ());
                self.heard(told);
            }
            10..=14 => self.comes(input, stream),
            15 => {
                let len = 1 + u32::from(input.half()) % 256;
                let loan = Loan {
                    place: 1 << 40,
                    key: 9,
                    len,
                    waitall: input.chance(),
                };
                let may = self.pump.may_lend(stream, len);
                assert!(self.pump.lend(stream, &loan).is_none() || may);
            }
            16 => {
                let landed = self.pump.revoke(stream);
                assert!(u64::from(landed) <= of.ring_len.max(1) || !of.open);
            }
            17 => {
                let n = usize::from(input.byte()) % (self.pump.direct_outstanding() + 1);
                assert!(self.pump.on_direct_done(n, |_| ()).is_ok());
            }
            18 if self.fenced => {
                self.fenced = false;
                assert!(self.pump.on_fenced(|_| ()).is_ok());
            }
            19 => self.pump.on_emptied(),
            20 => {
                let len = self.pump.record(stream).map_or(0, <[u8]>::len);
                assert!(len <= RECORD_LEN);
                let n = usize::from(input.byte()) % (len + 1);
                self.pump.on_record_written(stream, n);
            }
            21 => {
                let leave = [Leave::Stay, Leave::Shut, Leave::Hand, Leave::Close][input.below(4)];
                if let Some(transit) = self.pump.transit(stream) {
                    transit.leave(leave);
                }
                self.pump.settle(stream);
            }
            22 => self.head_of_tcp(input, stream),
            23 => {
                let room = self.pump.transit(stream).map_or(0, |t| t.tcp_room());
                let offset = of.tcp_read + input.number(&[1, room]).min(room).min(4096);
                self.streams[usize::from(stream)].tcp_read = offset;
                let told = self.pump.on_tcp_read(stream, offset);
                self.heard(told);
            }
            24 => match input.byte() % 5 {
                0 => self.pump.probe(),
                1 => drop(self.pump.tick()),
                2 => self.pump.flush(stream),
                3 => {
                    self.pump.begin_direct();
                    self.pump.set_direct(!self.lost && input.chance());
                }
                _ => self.pump.want(DirectQp {
                    port: 0,
                    cookie: [0; 16],
                }),
            },
            25 if input.byte().is_multiple_of(8) => self.loses(),
            _ => {}
        }
    }

    /// Gives the next message to the device, if there is one.
    fn post(&mut self) -> bool {
        let Some(message) = self.pump.poll() else {
            return false;
        };
        assert!(!self.lost, "posted on a link that is lost");
        match message.what {
            What::Bytes {
                stream,
                from,
                len,
                to: (place, key),
            } => {
                let of = self.of(stream);
                let (lent, lent_key, lent_len) = of.lent;
                assert!(len != 0 && len <= self.terms.message_len);
                assert!(
                    from.value() + u64::from(len) <= of.tail,
                    "bytes that nobody wrote"
                );
                // Both pieces lie together.
                assert!(from.value() % of.staging_len + u64::from(len) <= of.staging_len);
                assert!(key == lent_key && place >= lent);
                assert!(place - lent + u64::from(len) <= lent_len, "beside the ring");
                self.posted += 1;
            }
            What::Direct {
                stream,
                from,
                len,
                to: (place, key),
            } => {
                let of = self.of(stream);
                assert!(len != 0);
                assert!(from.value() % of.staging_len + u64::from(len) <= of.staging_len);
                assert!(
                    from.value() + u64::from(len) <= of.tail,
                    "bytes that nobody wrote"
                );
                let inside = |&(s, at, k, l): &(u16, u64, u32, u32)| {
                    s == stream
                        && k == key
                        && place >= at
                        && place - at + u64::from(len) <= u64::from(l)
                };
                assert!(self.adverts.iter().any(inside), "beside the buffer");
            }
            What::Control { slot, bytes } => {
                assert!(slot < self.terms.theirs);
                assert!(Control::parse(&bytes).is_ok(), "a message that is none");
                self.posted += 1;
            }
            What::Count => self.posted += 1,
            What::Fence => self.fenced = true,
        }
        assert!(
            self.posted <= usize::from(self.terms.sends),
            "more than the device takes"
        );
        true
    }

    /// A message comes.
    fn comes(&mut self, input: &mut Input<'_>, stream: u16) {
        if self.lost {
            return;
        }
        let count = if input.byte().is_multiple_of(8) {
            input.half()
        } else {
            self.taken
        };
        let notice = match input.byte() % 8 {
            0 => Notice::Count,
            1 | 2 => Notice::Ring,
            3 => Notice::Direct(input.byte()),
            _ => Notice::Control,
        };
        let word = Immediate::new(stream, notice, count % Immediate::COUNTS)
            .map_or_else(|| input.word(), Immediate::emit);
        let len = match notice {
            Notice::Ring => 1 + input.number(&[0, self.of(stream).ring_len]) as u32 % 8192,
            Notice::Control if input.byte() != 0 => CONTROL_LEN as u32,
            _ => input.number(&[0, 48]) as u32,
        };
        if notice == Notice::Control {
            self.control = self.message(input, stream);
            if let Ok(Control::Advert(a, _)) = Control::parse(&self.control) {
                self.adverts.insert((stream, a.place, a.key, a.len));
            }
        }
        let control = self.control;
        let ours = self.terms.ours;
        let came = if let Notice::Direct(_) = notice {
            self.pump.on_direct(word, len)
        } else {
            self.pump.on_came(word, len, |slot| {
                assert!(slot < ours);
                control
            })
        };
        match self.heard(came) {
            Some(Came::Bytes(stream, to) | Came::Direct(stream, to)) => {
                let of = self.of(stream);
                assert!(of.open && to.value() - of.head.min(to.value()) <= of.ring_len);
            }
            Some(Came::Free(stream)) => assert!(!self.of(stream).open),
            _ => {}
        }
    }

    fn message(&mut self, input: &mut Input<'_>, stream: u16) -> [u8; CONTROL_LEN] {
        let of = self.of(stream);
        let edges = [
            0,
            of.tail,
            of.head,
            of.tcp_read,
            self.pump.kept(stream).value(),
            self.pump.transit(stream).map_or(0, |t| t.posted().value()),
            self.pump
                .transit(stream)
                .map_or(0, |t| t.link_end().value()),
            u64::MAX,
        ];
        let mut position = || Seq::new(input.number(&edges));
        let (seq, other) = (position(), position());
        let id = AdvertId::new(u64::from(input.byte() % 8));
        let len = input.number(&edges) as u32;
        let control = match input.byte() % 16 {
            0 => {
                let advert = Advert {
                    id,
                    place: input.number(&[1 << 41, u64::MAX]),
                    key: 11,
                    len,
                    seq,
                    phase: Phase::new(u64::from(input.byte() % 4)),
                    waitall: input.chance(),
                };
                Control::Advert(advert, u16::from(input.byte() % 2))
            }
            1 => Control::Revoke(Revoked { id, seq }),
            2 | 3 => Control::Ack(Ack {
                credit: Credit::new(len),
                seq,
            }),
            4 => Control::Blocked,
            5 => Control::Turn(Turn {
                phase: Phase::new(u64::from(input.byte() % 4)),
                seq,
            }),
            6..=8 => Control::Switch(match input.byte() % 6 {
                0 => Step::First(other.value()),
                1 => Step::Second(other.value()),
                2 => Step::Go,
                3 => Step::Ready,
                4 => Step::Open,
                _ => Step::Cancel,
            }),
            9 => Control::Meeting(Meeting::Grant {
                connection: seq.value(),
                berth: Berth {
                    stream,
                    place: other.value(),
                    key: 3,
                    len: 1 << (len % 32),
                },
                proof: [1; 16],
            }),
            10 => Control::Closed,
            11 => Control::Consent,
            12 if input.chance() => Control::Noticed(input.half()),
            12 => Control::Return(id),
            13 => Control::Again(seq),
            14 => Control::DirectQp(DirectQp {
                port: input.half(),
                cookie: [2; 16],
            }),
            _ => {
                let mut any = [0; CONTROL_LEN];
                let bytes = input.bytes(CONTROL_LEN);
                any[..bytes.len()].copy_from_slice(bytes);
                return any;
            }
        };
        control.emit()
    }

    /// What TCP has where the link's bytes began.
    fn head_of_tcp(&mut self, input: &mut Input<'_>, stream: u16) {
        let mut head = [0; RECORD_LEN];
        head[..NONCE_LEN].copy_from_slice(&NONCE);
        let at = if input.chance() {
            NONCE_LEN
        } else {
            input.below(RECORD_LEN)
        };
        let bytes = input.bytes(RECORD_LEN - at);
        head[at..at + bytes.len()].copy_from_slice(bytes);
        let ended = input.chance();
        let Some(transit) = self.pump.transit(stream) else {
            return;
        };
        let heard = transit.on_head(&head, ended);
        self.pump.settle(stream);
        if heard == Head::Record {
            self.pump.on_record_removed(stream, RECORD_LEN as u64);
        }
    }

    fn check(&mut self) {
        for stream in 0..STREAMS {
            let of = self.of(stream);
            let Some(transit) = self.pump.transit(stream) else {
                continue;
            };
            if !of.open {
                continue;
            }
            let end = transit.link_end().value();
            assert!(
                end - of.head.min(end) <= of.ring_len,
                "more than the ring holds"
            );
            assert!(
                self.pump.kept(stream).value() <= of.tail,
                "free before it was written"
            );
            assert!(u64::from(self.pump.landed(stream)) <= of.ring_len);
        }
    }
}
