//! Tests: bytes of a stream to another host that are pages of a file (`send/by_pages`).

use super::*;
use crate::carrier::stage_old_pages;
use sluice_fabric::sys::fstat;
use sluice_transport::verbs::window::{LEN, Unfit, Window};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

/// How long a file must have been left alone, and a little.
const AT_REST: Duration = Duration::from_millis(2100);

/// Of so many bytes the file has that many of the direction. The others are wrong, so that no test
/// passes that reads past a span.
const BLOCK: u64 = 16 << 10;
const RIGHT: u64 = 12 << 10;

fn byte_of_file(offset: u64) -> u8 {
    if offset % BLOCK < RIGHT {
        byte_at(offset)
    } else {
        !byte_at(offset)
    }
}

/// A file that has bytes of a direction at their places.
struct Pages {
    path: PathBuf,
}

impl Pages {
    /// One that no test changes. It stays for the next run.
    fn of_all() -> &'static Self {
        static PAGES: OnceLock<Pages> = OnceLock::new();
        PAGES.get_or_init(|| Self::at("pages"))
    }

    /// One of the caller's own.
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        Self::at(&format!("pages-{}-{n}", std::process::id()))
    }

    fn at(name: &str) -> Self {
        // Beside the test's own program, where a file system keeps files.
        let path = std::env::current_exe().unwrap().with_extension(name);
        let bytes: Vec<u8> = (0..LEN).map(byte_of_file).collect();
        if !fs::read(&path).is_ok_and(|old| old == bytes) {
            let new = path.with_extension(format!("{name}-{}", std::process::id()));
            fs::write(&new, &bytes).unwrap();
            fs::rename(&new, &path).unwrap();
            std::thread::sleep(AT_REST);
        }
        Self { path }
    }

    /// Sends so many bytes of the direction, by the file's pages where the file has them, and else
    /// through the ring.
    fn send(&self, pair: &Pair, way: &mut Way, len: u64) {
        let end = way.written + len;
        while way.written < end {
            let in_block = way.written % BLOCK;
            let left = end - way.written;
            if in_block < RIGHT {
                self.send_span(pair, way, left.min(RIGHT - in_block) as usize);
            } else {
                way.write(pair, left.min(BLOCK - in_block) as usize, 0);
            }
        }
    }

    fn send_span(&self, pair: &Pair, way: &mut Way, len: usize) {
        self.note_span(pair, way, len);
        let (endpoint, stream) = carrier::of(pair.ends[way.from].sock).unwrap();
        endpoint.moved(stream);
    }

    /// Publishes bytes by pages, of which the endpoint does not hear.
    fn note_span(&self, pair: &Pair, way: &mut Way, len: usize) {
        let (file, end) = (File::open(&self.path).unwrap(), pair.ends[way.from]);
        let offset = way.written as usize;
        let st = fstat(file.as_raw_fd()).unwrap();
        let window = loop {
            match Window::map(file.as_raw_fd(), &st, 0, LEN) {
                // The kernel has taken pages out of memory: a read brings them back.
                Err(Unfit::Fresh) => drop(fs::read(&self.path)),
                window => break window.unwrap(),
            }
        };
        let _section = end.sock.tx.lock.enter().unwrap();
        let (endpoint, stream) = carrier::of(end.sock).unwrap();
        let pages = endpoint.register_once(window).unwrap();
        assert!(pages.window().is_proved(offset, len));
        let at = end.sock.tx.at.load(Ordering::Relaxed);
        assert!(endpoint.send_pages(stream, at..at + len as u64, pages, offset));
        advance(end.sock, at, len);
        way.written += len as u64;
    }

    fn cut(&self) {
        let file = File::options().write(true).open(&self.path).unwrap();
        file.set_len(10).unwrap();
    }

    /// Returns whether some part of the file is mapped.
    fn is_mapped(&self) -> bool {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        maps.contains(self.path.to_str().unwrap())
    }

    fn is_unmapped_at_last(&self, pair: &Pair) {
        pair.is_at_last(|pair| {
            if let Some((endpoint, _)) = carrier::of(pair.ends[0].sock) {
                endpoint.drive();
                endpoint.see_to_pages();
            }
            !self.is_mapped()
        });
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// As a writer's `publish`, but tells nobody.
fn advance(sock: &Socket, at: u64, len: usize) {
    let to = at + len as u64;
    sock.tx.dir().unwrap().tx.tail.advance(at, to).unwrap();
    sock.tx.at.store(to, Ordering::Relaxed);
    let linked = sock.tx.linked.load(Ordering::Relaxed);
    sock.tx.linked.store(linked + len as u64, Ordering::Relaxed);
}

/// Publishes bytes through the ring, of which the endpoint does not hear.
fn into_ring(pair: &Pair, way: &mut Way, len: usize) {
    let sock = pair.ends[way.from].sock;
    let _section = sock.tx.lock.enter().unwrap();
    let at = sock.tx.at.load(Ordering::Relaxed);
    let bytes: Vec<u8> = (way.written..).take(len).map(byte_at).collect();
    // SAFETY: the place of these bytes in the ring, of which `bytes` has as many.
    unsafe { sock.tx.ring().unwrap().copy_in(at, bytes.as_ptr(), len) };
    advance(sock, at, len);
    way.written += len as u64;
}

/// Moves bytes through the ring until the next ones lie at its last block, so that more of them lie
/// across its end.
fn to_the_end(pair: &Pair, way: &mut Way) {
    let ring = pair.ends[way.from].sock.tx.ring().unwrap().len();
    loop {
        let left = (2 * ring - BLOCK - way.written % ring) % ring;
        if left == 0 {
            return;
        }
        way.write(pair, left.min(9000) as usize, 0);
        way.drain(pair);
    }
}

pub(super) fn pages_and_bytes_come_in_their_order(over: Over) {
    let (pair, [mut there, _]) = linked(over);
    to_the_end(&pair, &mut there);
    let pages = Pages::of_all();
    pages.send(&pair, &mut there, 30_000);
    there.write(&pair, 3000, 0);
    pages.send(&pair, &mut there, 5);
    pages.send(&pair, &mut there, 20_000);
    assert_eq!(there.write(&pair, 1, 0), 1);
    there.drain(&pair);
    // On a busy machine credit may come too late.
    let [_, demoted] = pair.ends[0].reasons();
    let is_linked = pair.ends[1].states().0 == State::Link;
    assert!(
        is_linked || demoted == Some(Reason::RingFull),
        "{demoted:?}"
    );
    pair.close();
    assert!(!pages.is_mapped());
}

pub(super) fn pages_under_way_are_sent_again_by_tcp(over: Over) {
    for who in [0, 1] {
        let (pair, mut ways) = linked(over);
        to_the_end(&pair, &mut ways[0]);
        let pages = Pages::of_all();
        pages.send(&pair, &mut ways[0], 30_000);
        ways[0].write(&pair, 3000, 0);
        pages.send(&pair, &mut ways[0], 20_000);
        ways[0].read(&pair, 1000, 0);
        demote::demote(pair.ends[who].sock, Which::Both, Reason::RawSyscall);
        go_on(&pair, &mut ways, 500);
        pair.close();
        assert!(!pages.is_mapped());
    }
}

pub(super) fn what_was_cut_under_way_resets_the_connection(over: Over) {
    let (pair, [mut there, _]) = linked(over);
    let pages = Pages::new();
    pages.send(&pair, &mut there, 30_000);
    let [writer, reader] = pair.ends;
    // The device has read all before the file is cut.
    pair.is_at_last(|_| reader.sock.rx.is_sealed() || carrier_is_idle(writer.sock));
    there.read(&pair, 1000, 0);
    pages.cut();
    demote::demote(reader.sock, Which::Both, Reason::RawSyscall);
    pair.is_at_last(|_| writer.reasons()[0] == Some(Reason::FileCut));
    // What came by TCP before is right, and is not followed by anything but an error.
    let mut bytes = [0; 4096];
    let outcome = loop {
        match reader.recv(&mut bytes, libc::MSG_DONTWAIT) {
            Ok(n) if n > 0 => {
                let right = bytes.iter().zip(there.read..).take(n);
                assert!(right.into_iter().all(|(byte, at)| *byte == byte_at(at)));
                there.read += n as u64;
            }
            Err(error) if waits(error) => reader.goes_on(),
            outcome => break outcome,
        }
    };
    assert!(outcome.is_err(), "{outcome:?}");
    pair.close();
}

/// What is published before anything is posted: no message takes bytes of two places.
pub(super) fn no_message_reads_past_a_span(over: Over) {
    let (pair, [mut there, _]) = linked(over);
    to_the_end(&pair, &mut there);
    let pages = Pages::of_all();
    let (endpoint, stream) = carrier::of(pair.ends[0].sock).unwrap();
    // Half a block by pages, the rest of its right part, then what the file has wrong.
    for len in [RIGHT / 2, RIGHT / 2] {
        pages.note_span(&pair, &mut there, len as usize);
    }
    into_ring(&pair, &mut there, (BLOCK - RIGHT) as usize);
    pages.note_span(&pair, &mut there, 100);
    into_ring(&pair, &mut there, 3000);
    endpoint.moved(stream);
    there.drain(&pair);
    pair.close();
}

/// Returns whether all that was posted is complete.
fn carrier_is_idle(sock: &Socket) -> bool {
    let (endpoint, _) = carrier::of(sock).unwrap();
    endpoint.with(|pump| pump.outstanding() == 0) == Some(true)
}

/// Up to where the peer has credited what this end has written.
fn credited(sock: &Socket) -> u64 {
    let dir = sock.tx.dir().unwrap();
    dir.rx.head.read().offset
}

/// Tells the peer of all that was read.
fn flush(sock: &Socket) {
    let (endpoint, stream) = carrier::of(sock).unwrap();
    endpoint.with_stream(stream, |pump| pump.flush(stream));
}

pub(super) fn what_the_peer_does_not_credit_keeps_no_file(over: Over) {
    let (pair, mut ways) = linked(over);
    to_the_end(&pair, &mut ways[0]);
    let pages = Pages::of_all();
    let there = &mut ways[0];
    let begin = credited(pair.ends[0].sock);
    pages.send(&pair, there, 30_000);
    there.write(&pair, 3000, 0);
    pages.send(&pair, there, 10_000);
    pair.is_at_last(|pair| carrier_is_idle(pair.ends[0].sock));
    // The peer credits a part of the first span.
    there.read(&pair, 5000, 0);
    flush(pair.ends[1].sock);
    pair.is_at_last(|pair| credited(pair.ends[0].sock) >= begin + 5000);
    // The last of these have the ring's place of that part.
    let ring = pair.ends[0].sock.tx.ring().unwrap().len();
    let room = credited(pair.ends[0].sock) + ring - pair.ends[0].sock.tx.at.load(Ordering::Relaxed);
    there.write(&pair, room as usize, libc::MSG_DONTWAIT);
    assert!(there.written > begin + ring);
    for _ in 0..8 {
        stage_old_pages(pair.ends[0].sock);
    }
    pages.is_unmapped_at_last(&pair);
    demote::demote(pair.ends[1].sock, Which::Both, Reason::RawSyscall);
    go_on(&pair, &mut ways, 500);
    pair.close();
}
