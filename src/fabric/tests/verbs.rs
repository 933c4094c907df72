//! Two processes with an RDMA device between them, the provider's layers alone: each asks for the
//! other's place, writes into it, and is told when. Needs two hosts, so it does nothing unless
//! `SLUICE_VERBS_ROLE` says which of the two this is: `listen=ADDR:PORT`, or `dial=ADDR:PORT`
//! (`scripts/guest/provider`).
#![cfg(not(loom))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test fails by panicking, prints, and runs in no one's program"
)]

#[path = "common/hosts.rs"]
mod hosts;

use sluice_fabric::sys;
use sluice_fabric::verbs::api;
use sluice_fabric::verbs::cm::{Event, Id};
use sluice_fabric::verbs::device::{Domain, Region};
use sluice_fabric::verbs::queue::{Completions, News, Pair, Post, Said, Shape, Told};
use std::net::SocketAddr;

const RING: usize = 64 << 10;
const RECEIVES: u64 = 64;
const SHAPE: Shape = Shape {
    sends: 128,
    receives: RECEIVES as u32,
    inline: 64,
};
const MESSAGES: u32 = 20_000;

struct End {
    // In the order in which they must go.
    pair: Pair,
    id: Id,
    completions: Completions,
    ring: Region,
    staging: Region,
    words: Region,
    _domain: Domain,
    memory: Box<[u8]>,
    buffers: Box<[Said]>,
    peer: (u64, u32),
    immediate: bool,
}

impl End {
    fn new(id: Id) -> Self {
        let device = id.device().unwrap();
        println!("{:?}", device.limits);
        let domain = Domain::new(device).unwrap();
        let completions = Completions::new(&device, 512).unwrap();
        let mut memory = vec![0u8; 2 * RING].into_boxed_slice();
        let mut buffers = vec![Said::default(); RECEIVES as usize].into_boxed_slice();
        // SAFETY: boxed memory that goes after the regions.
        let (ring, staging, words) = unsafe {
            (
                domain.lend(memory.as_mut_ptr(), RING).unwrap(),
                domain.stage(memory[RING..].as_mut_ptr(), RING).unwrap(),
                domain
                    .take_in(
                        buffers.as_mut_ptr().cast(),
                        size_of::<Said>() * RECEIVES as usize,
                    )
                    .unwrap(),
            )
        };
        let pair = id.pair(&domain, &completions, SHAPE).unwrap();
        let immediate = device.limits.immediate;
        // Soft-iWARP alone has the peer know an address.
        assert_ne!(device.limits.numbers, device.limits.signals);
        assert_eq!(
            ring.first() < sys::page_size() as u64,
            device.limits.numbers
        );
        let mut end = Self {
            pair,
            id,
            completions,
            ring,
            staging,
            words,
            _domain: domain,
            memory,
            buffers,
            peer: (0, 0),
            immediate,
        };
        for slot in 0..RECEIVES {
            end.receive(slot);
        }
        end
    }

    fn receive(&mut self, slot: u64) {
        let into = (!self.immediate)
            .then(|| (&raw mut self.buffers[slot as usize], self.words.local_key()));
        // SAFETY: the buffer lives as long as the queue pair.
        unsafe { self.pair.receive(slot, into) }.unwrap();
    }

    fn place(&self) -> Vec<u8> {
        [
            self.ring.first().to_le_bytes().as_slice(),
            &self.ring.remote_key().to_le_bytes(),
        ]
        .concat()
    }

    fn heard(&mut self, data: &[u8]) {
        self.peer = (
            u64::from_le_bytes(data[..8].try_into().unwrap()),
            u32::from_le_bytes(data[8..12].try_into().unwrap()),
        );
    }

    /// What has come by now: words, in order.
    fn poll(&mut self) -> Vec<Said> {
        let mut came = Vec::new();
        let mut used = Vec::new();
        let nothing = Told {
            pair: 0,
            news: News::Done { mark: 0 },
        };
        let mut batch = [nothing; 8];
        loop {
            let n = self.completions.poll(&mut batch).unwrap();
            for told in &batch[..n] {
                assert_eq!(told.pair, self.pair.number());
                match told.news {
                    News::Came { slot, said } => {
                        came.push(said.unwrap_or(self.buffers[slot as usize]));
                        used.push(slot);
                    }
                    News::Done { .. } => {}
                    News::Failed { status } => panic!("status {status}"),
                }
            }
            if n < batch.len() {
                break;
            }
        }
        for slot in used {
            self.receive(slot);
        }
        came
    }

    /// Sleeps until something has come.
    fn wait(&mut self) -> Vec<Said> {
        loop {
            let came = self.poll();
            if !came.is_empty() {
                return came;
            }
            self.completions.arm().unwrap();
            let came = self.poll();
            if !came.is_empty() {
                return came;
            }
            self.completions.take_event().unwrap();
        }
    }

    /// One message of `len` bytes, each of them told by the message's number.
    fn send(&mut self, n: u32, len: usize) {
        let at = n as usize % 8 * (RING / 8);
        self.memory[RING + at..][..len].fill(n as u8);
        let post = Post {
            from: (
                self.memory[RING + at..].as_ptr(),
                len as u32,
                self.staging.local_key(),
            ),
            to: (self.peer.0 + at as u64, self.peer.1),
            word: n,
            mark: (n % 8 == 7).then_some(8),
            by_device: false,
        };
        // SAFETY: written again only after the peer has answered.
        unsafe { self.pair.post(&[post]) }.unwrap();
    }

    fn check(&self, n: u32, len: usize) {
        let at = n as usize % 8 * (RING / 8);
        assert!(
            self.memory[at..][..len].iter().all(|b| *b == n as u8),
            "message {n}"
        );
    }

    fn len(n: u32) -> usize {
        [1, 8, 64, 65, 1000, 4096, RING / 8][n as usize % 7]
    }
}

fn listen(addr: &str) {
    let channel = hosts::channel();
    let (id, data, _listener) = hosts::asked(&channel, addr);
    let mut end = End::new(id);
    end.heard(&data);
    end.id.accept(&end.place()).unwrap();
    let Event::Established(2, _) = hosts::event(&channel) else {
        panic!()
    };
    let mut next = 0;
    while next < MESSAGES {
        for said in end.wait() {
            assert_eq!(said.word, next);
            assert_eq!(said.len as usize, End::len(next));
            end.check(next, End::len(next));
            end.send(next, End::len(next));
            next += 1;
        }
    }
    let Event::Gone(2) = hosts::event(&channel) else {
        panic!()
    };
    println!("{next} messages answered");
}

fn dial(to: &str) {
    let channel = hosts::channel();
    let id = hosts::routed(&channel, to);
    let mut end = End::new(id);
    end.id.connect(&end.place()).unwrap();
    let Event::Established(3, data) = hosts::event(&channel) else {
        panic!()
    };
    end.heard(&data);
    let (mut sent, mut back) = (0, 0);
    while back < MESSAGES {
        // Eight places, so as many may be without an answer.
        while sent < MESSAGES && sent < back + 8 {
            end.send(sent, End::len(sent));
            sent += 1;
        }
        for said in end.wait() {
            assert_eq!(said.word, back);
            end.check(back, End::len(back));
            back += 1;
        }
    }
    end.id.disconnect();
    // Nobody there.
    let mut nobody: SocketAddr = to.parse().unwrap();
    nobody.set_port(1);
    // The end of the first connection may be told in between.
    let next = || loop {
        match hosts::event(&channel) {
            Event::Gone(3) => {}
            other => return other,
        }
    };
    let lost = Id::dial(&channel, 4, None, nobody, 1000).unwrap();
    let Event::Resolved(4) = next() else { panic!() };
    lost.route(1000).unwrap();
    let Event::Routed(4) = next() else { panic!() };
    let domain = Domain::new(lost.device().unwrap()).unwrap();
    let completions = Completions::new(&lost.device().unwrap(), 256).unwrap();
    let pair = lost.pair(&domain, &completions, SHAPE).unwrap();
    match lost.connect(&[]) {
        Err(errno) => println!("nobody there: errno {errno}"),
        Ok(()) => match next() {
            Event::Refused(4, event, status, _) => {
                println!("nobody there: event {event}, status {status}")
            }
            other => panic!("{other:?}"),
        },
    }
    drop((pair, lost));
    println!("{back} messages came back");
}

#[test]
fn messages_between_two_hosts() {
    hosts::play(listen, dial);
}

#[test]
fn a_host_without_a_device_says_so() {
    if !api::is_any_device() {
        assert!(api::load().is_none());
    }
}
