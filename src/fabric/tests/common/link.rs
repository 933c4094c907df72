//! Streams over a real arena, one after the other: a writer and a reader, each a thread or a
//! process, a socket in TCP's place, and demotion at random by both.

use sluice_fabric::arena::Arena;
use sluice_fabric::cursors::{Demoted, Word, demote};
use sluice_fabric::doorbell::Slot;
use sluice_fabric::layout::{Direction, STREAMS};
use sluice_fabric::ring::Ring;
use sluice_fabric::shm::Pool;
use sluice_fabric::sync::{AtomicU64, Ordering, fence};
use sluice_fabric::sys;
use std::io::{Read, Write};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// Small, fast and repeatable (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// Contents of all streams: a table of prime length, entered at another place by each.
pub struct Contents(Vec<u8>);

impl Contents {
    const LEN: u64 = 65_521;

    pub fn new() -> Self {
        let mut rng = Rng(1);
        Self((0..Self::LEN).map(|_| rng.next() as u8).collect())
    }

    /// The bytes of `stream` from `offset` on.
    pub fn fill(&self, stream: u64, offset: u64, mut to: &mut [u8]) {
        let mut at = ((stream.wrapping_mul(7919) + offset) % Self::LEN) as usize;
        while !to.is_empty() {
            let n = to.len().min(self.0.len() - at);
            to[..n].copy_from_slice(&self.0[at..at + n]);
            to = &mut to[n..];
            at = 0;
        }
    }

    fn check(&self, stream: u64, offset: u64, got: &[u8], how: &str) -> Result<(), String> {
        let mut want = vec![0; got.len()];
        self.fill(stream, offset, &mut want);
        match got.iter().zip(&want).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(i) => Err(format!(
                "stream {stream}: wrong byte at {} by {how}",
                offset + i as u64
            )),
        }
    }
}

/// What both ends know of a stream before it begins.
#[derive(Clone, Copy, Debug)]
struct Shape {
    total: u64,
    ring_len: u32,
    /// Longest single send and receive.
    send_len: u64,
    recv_len: u64,
    /// One in so many steps demotes; 0: never.
    writer_demotes: u64,
    reader_demotes: u64,
    /// The reader waits for marks instead of looking at the word.
    marks: bool,
}

impl Shape {
    fn of(seed: u64, stream: u64) -> Self {
        let mut rng = Rng(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        let bits = rng.below(17);
        let rate = |rng: &mut Rng| [0, 0, 4, 16, 64][rng.below(5) as usize];
        let longest = |rng: &mut Rng| {
            let bits = 4 + rng.below(11);
            1 + rng.below(1 << bits)
        };
        Self {
            total: rng.below(1 << bits),
            ring_len: 4096 << rng.below(4),
            send_len: longest(&mut rng),
            recv_len: longest(&mut rng),
            writer_demotes: rate(&mut rng),
            reader_demotes: rate(&mut rng),
            marks: rng.below(2) == 0,
        }
    }
}

/// How a word is moved: the crate's way, or a seeded bug's.
pub type Advance = fn(&Word, u64, u64) -> Result<(), Demoted>;

/// The bug: looks at the flag, then stores. Another thread is let in between, so that the test need
/// not run for minutes.
pub fn store(word: &Word, _from: u64, to: u64) -> Result<(), Demoted> {
    if word.read().flagged {
        return Err(Demoted);
    }
    std::thread::yield_now();
    // SAFETY: a word is one 64-bit atomic, transparently.
    let raw = unsafe { &*core::ptr::from_ref(word).cast::<AtomicU64>() };
    raw.store(to, Ordering::SeqCst);
    Ok(())
}

/// `switched` when no stream follows.
const END: u32 = 2;

/// One end of the link: side 0 writes, side 1 reads.
pub struct End<'a> {
    pub arena: &'a Arena,
    pub side: usize,
    /// Doorbells of both sides.
    pub bells: [RawFd; 2],
    pub tcp: UnixStream,
    pub seed: u64,
    pub advance: Advance,
    /// A wait that takes longer has failed.
    pub patience: Duration,
}

/// What went where.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub streams: u64,
    pub ring_len: u64,
    pub resent_len: u64,
    pub tcp_len: u64,
}

impl End<'_> {
    fn slot(&self, side: usize) -> &Slot {
        self.arena.slot(side, 0)
    }

    fn dir(&self, stream: u64) -> Result<&Direction, String> {
        let index = (stream % u64::from(STREAMS)) as u32;
        Ok(&self.arena.stream(index).ok_or("no slot")?.dir[0])
    }

    /// After any change that the peer may wait for.
    fn tell(&self, stream: u64) {
        fence(Ordering::SeqCst);
        let peer = 1 - self.side;
        if self.slot(peer).wake((stream % u64::from(STREAMS)) as u32) {
            let _ = sys::ring(self.bells[peer]);
        }
    }

    /// Waits in the way of a hook: spin, announce, look again, sleep.
    fn wait(&self, what: &str, marks: bool, done: impl Fn() -> bool) -> Result<(), String> {
        let slot = self.slot(self.side);
        let bell = self.bells[self.side];
        let start = Instant::now();
        let news = || if marks { slot.any_ready() } else { done() };
        for _ in 0..200 {
            if done() {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        loop {
            slot.take_ready(|_, _| ());
            if done() {
                return Ok(());
            }
            slot.announce();
            if news() {
                slot.retract();
                continue;
            }
            let mut poll = libc::pollfd {
                fd: bell,
                events: libc::POLLIN,
                revents: 0,
            };
            let left = self.patience.saturating_sub(start.elapsed());
            // SAFETY: one valid pollfd.
            let n = unsafe { libc::poll(&raw mut poll, 1, left.as_millis() as i32) };
            slot.retract();
            if n > 0 {
                let _ = sys::read(bell, &mut [0; 8]);
            } else if n == 0 {
                let why = if done() { "lost wake-up" } else { "stuck" };
                return Err(format!("{why}: waited for {what}"));
            }
        }
    }

    /// Writes streams until `until`; tells `third` of one in four.
    pub fn write_streams(
        &mut self,
        until: Instant,
        third: Option<Teller>,
    ) -> Result<Tally, String> {
        let contents = Contents::new();
        let mut tally = Tally::default();
        for stream in 0.. {
            let last = Instant::now() >= until;
            let dir = self.dir(stream)?;
            self.wait("a ring", false, || {
                dir.rx_wishes.consent.load(Ordering::Acquire) == 1
            })?;
            if last {
                dir.tx_wishes.switched.store(END, Ordering::Release);
                self.tell(stream);
                break;
            }
            let third = third.as_ref().filter(|_| stream % 4 == 0);
            if let Some(Teller(tell, _)) = third {
                tell.send(stream).map_err(|e| e.to_string())?;
            }
            self.write_stream(stream, &contents, third, &mut tally)
                .map_err(|e| format!("writer, stream {stream}: {e}"))?;
            tally.streams += 1;
        }
        Ok(tally)
    }

    fn write_stream(
        &self,
        stream: u64,
        contents: &Contents,
        third: Option<&Teller>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let shape = Shape::of(self.seed, stream);
        let mut rng = Rng(self.seed ^ stream);
        let dir = self.dir(stream)?;
        let at = dir.rx_wishes.ring_at.load(Ordering::Acquire);
        let len = dir.rx_wishes.ring_len.load(Ordering::Acquire);
        let ring = self.arena.ring(1, at, len).ok_or("an impossible ring")?;
        dir.tx_wishes.switched.store(1, Ordering::Release);
        self.tell(stream);
        let mut buf = vec![0u8; 1 << 16];
        let (mut tail, mut sent, mut fixed) = (0u64, 0u64, None);
        while sent < shape.total {
            let mut len = (1 + rng.below(shape.send_len)).min(shape.total - sent);
            if fixed.is_some() {
                len = (1 + rng.below(8192)).min(shape.total - sent);
                let bytes = &mut buf[..len as usize];
                contents.fill(stream, sent, bytes);
                (&self.tcp)
                    .write_all(bytes)
                    .map_err(|e| format!("TCP: {e}"))?;
                tally.tcp_len += len;
                sent += len;
                continue;
            }
            if shape.writer_demotes != 0 && rng.below(shape.writer_demotes) == 0 {
                fixed = Some(self.resend(stream, dir, ring, tail, tally)?);
                continue;
            }
            let head = dir.rx.head.read();
            let used = tail.wrapping_sub(head.offset);
            if used > ring.len() {
                return Err("the head is beyond the tail".into());
            }
            len = len.min(ring.len() - used);
            if len == 0 && !head.flagged {
                self.wait("space", false, || dir.rx.head.read() != head)?;
                continue;
            }
            let bytes = &mut buf[..len as usize];
            contents.fill(stream, sent, bytes);
            // SAFETY: `len` is within the ring's free space, which is this writer's.
            unsafe { ring.copy_in(tail, bytes.as_ptr(), bytes.len()) };
            if !head.flagged && (self.advance)(&dir.tx.tail, tail, tail + len).is_ok() {
                tail += len;
                sent += len;
                tally.ring_len += len;
                self.tell(stream);
            } else {
                fixed = Some(self.resend(stream, dir, ring, tail, tally)?);
            }
        }
        let fixed = match fixed {
            Some(fixed) => fixed,
            // As close does.
            None => self.resend(stream, dir, ring, tail, tally)?,
        };
        self.wait("the reader to leave", false, || {
            dir.rx_wishes.detached.load(Ordering::Acquire) == 1
        })?;
        Self::check_answers(dir, fixed, third)?;
        dir.reset();
        Ok(())
    }

    /// All ends that demoted a stream must have been told the same.
    fn check_answers(
        dir: &Direction,
        fixed: (u64, u64),
        third: Option<&Teller>,
    ) -> Result<(), String> {
        let line = &dir.advert;
        if line.serial.load(Ordering::Relaxed) == 1 {
            let told = (
                line.seq.load(Ordering::Relaxed),
                line.phase.load(Ordering::Relaxed),
            );
            if told != fixed {
                return Err(format!("two answers: {fixed:?}, to the reader {told:?}"));
            }
        }
        if let Some(Teller(_, answer)) = third {
            let told = answer.recv().map_err(|e| e.to_string())?;
            if told != fixed {
                return Err(format!("two answers: {fixed:?}, to a third party {told:?}"));
            }
        }
        Ok(())
    }

    /// Back to TCP: the demoted part first.
    fn resend(
        &self,
        stream: u64,
        dir: &Direction,
        ring: Ring,
        tail: u64,
        tally: &mut Tally,
    ) -> Result<(u64, u64), String> {
        let (start, end) = demote(&dir.tx.tail, &dir.rx.head);
        self.tell(stream);
        if end != tail || start > end || end - start > ring.len() {
            return Err(format!(
                "[{start}, {end}) to send again, but the tail is {tail}"
            ));
        }
        let mut part = vec![0u8; (end - start) as usize];
        // SAFETY: the part is within the ring, and nobody writes there any more.
        unsafe { ring.copy_out(start, part.as_mut_ptr(), part.len()) };
        tally.resent_len += end - start;
        (&self.tcp)
            .write_all(&part)
            .map_err(|e| format!("TCP: {e}"))?;
        Ok((start, end))
    }

    /// Reads streams until the writer says that none follows.
    pub fn read_streams(&mut self) -> Result<(), String> {
        let contents = Contents::new();
        let mut pool = Pool::new(1, true);
        for stream in 0.. {
            let more = self
                .read_stream(stream, &contents, &mut pool)
                .map_err(|e| format!("reader, stream {stream}: {e}"))?;
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn read_stream(
        &self,
        stream: u64,
        contents: &Contents,
        pool: &mut Pool,
    ) -> Result<bool, String> {
        let dir = self.dir(stream)?;
        let shape = Shape::of(self.seed, stream);
        let lent = pool.lend(shape.ring_len).ok_or("no ring memory")?;
        let ring = self
            .arena
            .ring(1, lent.at, lent.len)
            .ok_or("an impossible ring")?;
        dir.rx_wishes.ring_at.store(lent.at, Ordering::Relaxed);
        dir.rx_wishes.ring_len.store(lent.len, Ordering::Relaxed);
        dir.rx_wishes.consent.store(1, Ordering::Release);
        self.tell(stream);
        let switched = || dir.tx_wishes.switched.load(Ordering::Acquire);
        self.wait("the switch", false, || switched() != 0)?;
        if switched() == END {
            return Ok(false);
        }
        self.read_bytes(stream, contents, dir, ring)?;
        pool.take_back(self.arena, lent);
        dir.rx_wishes.detached.store(1, Ordering::Release);
        self.tell(stream);
        Ok(true)
    }

    /// Reads a stream's bytes from the ring, and from TCP after it.
    fn read_bytes(
        &self,
        stream: u64,
        contents: &Contents,
        dir: &Direction,
        ring: Ring,
    ) -> Result<(), String> {
        let shape = Shape::of(self.seed, stream);
        let mut rng = Rng(!self.seed ^ stream);
        let mut buf = vec![0u8; 1 << 16];
        let (mut head, mut got, mut on_tcp) = (0u64, 0u64, false);
        while got < shape.total {
            let want = (1 + rng.below(shape.recv_len)).min(shape.total - got);
            if on_tcp {
                let want = (1 + rng.below(8192)).min(shape.total - got);
                let bytes = &mut buf[..want as usize];
                let n = (&self.tcp)
                    .read(bytes)
                    .map_err(|e| format!("stuck on TCP: {e}"))?;
                if n == 0 {
                    return Err("TCP ended early".into());
                }
                contents.check(stream, got, &bytes[..n], "TCP")?;
                got += n as u64;
                continue;
            }
            if shape.reader_demotes != 0 && rng.below(shape.reader_demotes) == 0 {
                let (start, end) = demote(&dir.tx.tail, &dir.rx.head);
                // For the writer to compare; these fields have no other use here.
                dir.advert.seq.store(start, Ordering::Relaxed);
                dir.advert.phase.store(end, Ordering::Relaxed);
                dir.advert.serial.store(1, Ordering::Release);
                self.tell(stream);
                on_tcp = true;
                continue;
            }
            let tail = dir.tx.tail.read();
            let there = tail.offset.wrapping_sub(head);
            if there > ring.len() {
                return Err("the tail is beyond the ring".into());
            }
            if there == 0 {
                if tail.flagged {
                    on_tcp = true;
                } else {
                    self.wait("bytes", shape.marks, || dir.tx.tail.read() != tail)?;
                }
                continue;
            }
            let len = want.min(there);
            let bytes = &mut buf[..len as usize];
            // SAFETY: `bytes` is that long, and `len` is within the ring.
            unsafe { ring.copy_out(head, bytes.as_mut_ptr(), bytes.len()) };
            if (self.advance)(&dir.rx.head, head, head + len).is_ok() {
                contents.check(stream, got, bytes, "ring")?;
                head += len;
                got += len;
                self.tell(stream);
            } else {
                on_tcp = true;
            }
        }
        Ok(())
    }
}

/// Another holder of the mapping: demotes each stream that it is told of, a little later, and
/// says what it found.
pub fn third_party(arena: &Arena, bells: [RawFd; 2], order: &Third, seed: u64) {
    let mut rng = Rng(seed);
    for stream in &order.0 {
        for _ in 0..rng.below(20_000) {
            core::hint::spin_loop();
        }
        let index = (stream % u64::from(STREAMS)) as u32;
        let Some(slot) = arena.stream(index) else {
            return;
        };
        let answer = demote(&slot.dir[0].tx.tail, &slot.dir[0].rx.head);
        fence(Ordering::SeqCst);
        for side in [0, 1] {
            if arena.slot(side, 0).wake(index) {
                let _ = sys::ring(bells[side]);
            }
        }
        if order.1.send(answer).is_err() {
            return;
        }
    }
}

/// The third party's ends of its channels, and the writer's.
pub struct Third(pub Receiver<u64>, pub Sender<(u64, u64)>);
/// See [`Third`].
pub struct Teller(pub Sender<u64>, pub Receiver<(u64, u64)>);
