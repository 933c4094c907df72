//! Tests: a TCP connection with both its ends in this process, and a link between them, upgraded
//! and demoted in all orders. Nothing is preloaded: the tests call what hooks call, and the kernel
//! where a verdict says so.
//!
//! Each journey is made over every [carrier](crate::carrier): memory, and queue pairs of both kinds
//! of device, also with late messages. The random ones are made over connections that break, too.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the program's part of a test"
)]

mod files;
mod waits;

use self::files::{
    no_message_reads_past_a_span, pages_and_bytes_come_in_their_order,
    pages_under_way_are_sent_again_by_tcp, what_the_peer_does_not_credit_keeps_no_file,
    what_was_cut_under_way_resets_the_connection,
};
use crate::demote::{self, Which};
use crate::io_wait::IoWait;
use crate::socket::{self, Socket, State, role};
use crate::testing::hosts::{self, Host};
use crate::verdict::{Error, Verdict};
use crate::{carrier, descriptors, finish, observe_passed, recv, send, testing, upgrade, wait};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use libc::{c_int, iovec};
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use sluice_fabric::verbs::fake::{Faults, Kind};
use sluice_runtime::fd_table::{self, Entry};
use sluice_stats::Reason;
use sluice_stream::record::RECORD_LEN;
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// One end of the connection.
#[derive(Clone, Copy)]
struct End {
    fd: c_int,
    sock: &'static Socket,
    link: &'static Link,
}

/// What carries the streams of a connection.
#[derive(Clone, Copy, Debug)]
enum Over {
    Memory,
    Hosts(Kind, Faults),
}

impl Over {
    /// With other faults for each seed, if this carrier has any.
    fn of_seed(self, seed: u64) -> Self {
        let Self::Hosts(kind, mut faults) = self else {
            return self;
        };
        if faults.seed != 0 {
            faults.seed = seed;
        }
        faults.breaks_after = faults.breaks_after.map(|most| seed * 31 % most);
        Self::Hosts(kind, faults)
    }
}

/// A connection with both ends tracked, neither of which looks for its peer.
struct Pair {
    ends: [End; 2],
    /// For two hosts: the hosts, and the turn to have some. Other tests wait for it, since the
    /// limit of registered memory has room for few.
    hosts: Option<([Host; 2], MutexGuard<'static, ()>)>,
}

/// Makes a call as the boundary of the hooks does, with its sleeps and the kernel's part.
fn serve(
    mut engine: impl FnMut(&mut IoWait) -> Verdict,
    real: impl FnOnce() -> isize,
) -> Result<usize, Error> {
    let mut io_wait = IoWait::new();
    let mut verdict = engine(&mut io_wait);
    while let Verdict::Block = verdict {
        io_wait.sleep();
        verdict = match wait::woken(&mut io_wait) {
            Some(end) => end,
            None => engine(&mut io_wait),
        };
    }
    match verdict {
        Verdict::Done(n) => Ok(n as usize),
        Verdict::Failed(error) => Err(error),
        Verdict::Pass(pass) => {
            let ret = real();
            let errno = std::io::Error::last_os_error().raw_os_error();
            observe_passed::finish(pass, ret);
            usize::try_from(ret).map_err(|_| Error::Kernel(errno.unwrap_or(0)))
        }
        Verdict::Block => unreachable!(),
    }
}

/// Returns whether the call would have had to wait.
fn waits(error: Error) -> bool {
    matches!(
        error,
        Error::WouldBlock | Error::Kernel(libc::EAGAIN | libc::EINTR)
    )
}

impl End {
    /// Sends. With MSG_DONTWAIT in `flags` the call does not wait.
    fn send(self, bytes: &[u8], flags: c_int) -> Result<usize, Error> {
        let flags = flags | libc::MSG_NOSIGNAL;
        let iov = iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: `iov` covers `bytes`, and both live during the call.
        serve(
            |io_wait| unsafe { send::send(self.sock, self.fd, &raw const iov, 1, flags, io_wait) },
            || unsafe { libc::send(self.fd, bytes.as_ptr().cast(), bytes.len(), flags) },
        )
    }

    /// Receives, as [`send`](Self::send) sends. Returns 0 at the end.
    fn recv(self, bytes: &mut [u8], flags: c_int) -> Result<usize, Error> {
        let (at, len) = (bytes.as_mut_ptr(), bytes.len());
        let iov = iovec {
            iov_base: at.cast(),
            iov_len: len,
        };
        // SAFETY: `iov` covers `bytes`, and both live during the call.
        serve(
            |io_wait| unsafe { recv::recv(self.sock, self.fd, &raw const iov, 1, flags, io_wait) },
            || unsafe { libc::recv(self.fd, at.cast(), len, flags) },
        )
    }

    fn shutdown(self, how: c_int) {
        let verdict = descriptors::shutdown(self.sock, self.fd, how);
        if let Verdict::Pass(pass) = verdict {
            // SAFETY: the call takes no pointer, and `fd` is this test's own.
            observe_passed::finish(pass, unsafe { libc::shutdown(self.fd, how) } as isize);
        }
    }

    /// Sends a FIN that no hook sees, as the kernel does for a process that is killed.
    fn is_killed(self) {
        // SAFETY: the call takes no pointer, and `fd` is this test's own.
        unsafe { libc::shutdown(self.fd, libc::SHUT_WR) };
    }

    fn close(self) {
        descriptors::before_close(Entry::of(self.sock), self.fd);
        // SAFETY: the call takes no pointer, and `fd` is this test's own.
        unsafe { libc::close(self.fd) };
    }

    /// Does what the control thread does while the program's threads do nothing: follows the peer
    /// back to TCP, and re-sends what the peer had not read.
    fn goes_on(self) {
        if self.sock.carrier().ends_by_record {
            return carrier::advance(self.sock);
        }
        demote::follow_tx(self.sock);
        finish::resend_now(self.sock);
    }

    /// Why the connection stays on TCP, and why it was demoted last.
    fn reasons(self) -> [Option<Reason>; 2] {
        let conn = self.sock.conn();
        [conn.reason(), conn.last_demotion()].map(Reason::from_u16)
    }

    fn states(self) -> (State, State) {
        (self.sock.rx.state(), self.sock.tx.state())
    }
}

impl Pair {
    fn new(over: Over) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        testing::control_thread();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let there = listener.accept().unwrap().0;
        let hosts = match over {
            Over::Memory => None,
            Over::Hosts(kind, faults) => {
                let turn = TURN.lock().unwrap_or_else(|failed| failed.into_inner());
                Some((hosts::connect(kind, faults), turn))
            }
        };
        let (a, b) = match &hosts {
            None => testing::links(),
            Some(([a, b], _)) => (a.near, b.near),
        };
        let end = |stream: TcpStream, link, side| {
            stream.set_nodelay(true).unwrap();
            let fd = stream.into_raw_fd();
            let sock = socket::alloc(fd, side).unwrap();
            assert!(fd_table::store(fd, Entry::of(sock)));
            sock.next_try.store(u64::MAX, Ordering::Relaxed);
            End { fd, sock, link }
        };
        let ends = [
            end(here, a, role::CONNECTING),
            end(there, b, role::ACCEPTED),
        ];
        Self { ends, hosts }
    }

    /// Gives both ends a stream, as when they have met. Returns false if one of them cannot have
    /// one now.
    fn meet(&self) -> bool {
        let [a, b] = self.ends;
        if let Some((hosts, _)) = &self.hosts {
            return hosts::meet(*hosts, [a.sock, b.sock]);
        }
        let owner = |end: End| core::ptr::from_ref(end.sock).addr();
        let index = a.link.give_stream(64 << 10, owner(a)).unwrap();
        assert!(b.link.join_stream(index, 64 << 10, owner(b)));
        let attach = |end: End| {
            let generation = end.sock.generation.load(Ordering::Acquire);
            let attached = upgrade::attach(end.sock, generation, end.link, index);
            if attached.is_err() {
                end.link.leave_stream(index);
            }
            attached.is_ok()
        };
        let both = [attach(a), attach(b)];
        if both != [true, true] {
            for (end, _) in self.ends.iter().zip(both).filter(|(_, attached)| *attached) {
                demote::demote(end.sock, Which::Both, Reason::NoAnswer);
            }
        }
        both == [true, true]
    }

    /// Moves single bytes both ways until both halves of both ends are on the link.
    fn switch(&self, ways: &mut [Way; 2]) {
        let on_link = (State::Link, State::Link);
        for _ in 0..SWITCHES {
            for way in &mut *ways {
                way.write(self, 1, 0);
                way.read(self, 1, 0);
            }
            if self.ends.map(End::states) == [on_link, on_link] {
                return;
            }
        }
        panic!(
            "states {:?}, {:?}",
            self.ends.map(End::states),
            self.ends.map(End::reasons)
        );
    }

    /// Waits until `is` holds, and does the control thread's part meanwhile.
    fn is_at_last(&self, is: impl Fn(&Self) -> bool) {
        let end = sys::now_ns() + 5_000_000_000;
        while !is(self) {
            self.ends.iter().for_each(|end| end.goes_on());
            assert!(
                sys::now_ns() < end,
                "states {:?}",
                self.ends.map(End::states)
            );
        }
    }

    fn close(self) {
        for end in self.ends {
            end.close();
        }
        self.end();
    }

    /// Called when both ends have closed: no stream of the link is left.
    fn end(self) {
        match self.hosts {
            None => assert_eq!(self.ends.map(|end| end.link.stream_count()), [0, 0]),
            Some((hosts, _turn)) => hosts::disconnect(hosts),
        }
    }
}

/// One direction: how much of it was written and read. Each byte is a function of its offset.
struct Way {
    from: usize,
    written: u64,
    read: u64,
    ended: bool,
}

fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Both directions of a connection.
fn ways() -> [Way; 2] {
    [0, 1].map(|from| Way {
        from,
        written: 0,
        read: 0,
        ended: false,
    })
}

impl Way {
    /// Writes `n` bytes, or as many as there is room for.
    fn write(&mut self, pair: &Pair, n: usize, flags: c_int) -> usize {
        let bytes: Vec<u8> = (self.written..).take(n).map(byte_at).collect();
        match pair.ends[self.from].send(&bytes, flags) {
            Ok(n) => {
                self.written += n as u64;
                n
            }
            Err(error) => {
                assert!(
                    flags != 0 && waits(error),
                    "{error:?} after {} bytes",
                    self.written
                );
                0
            }
        }
    }

    /// Reads up to `n` bytes, and checks each.
    fn read(&mut self, pair: &Pair, n: usize, flags: c_int) -> usize {
        let mut bytes = vec![0; n];
        match pair.ends[1 - self.from].recv(&mut bytes, flags) {
            Ok(0) => {
                self.ended = true;
                0
            }
            Ok(n) => {
                for (got, at) in bytes.iter().take(n).zip(self.read..) {
                    assert_eq!(*got, byte_at(at), "byte {at} of {}", self.written);
                }
                self.read += n as u64;
                n
            }
            Err(error) => {
                assert!(
                    flags != 0 && waits(error),
                    "{error:?} after {} bytes",
                    self.read
                );
                0
            }
        }
    }

    /// Reads all that was written, within 5 s.
    fn drain(&mut self, pair: &Pair) {
        let end = sys::now_ns() + 5_000_000_000;
        while self.read < self.written {
            if self.read(pair, 1 << 16, libc::MSG_DONTWAIT) == 0 {
                pair.ends[self.from].goes_on();
                assert!(
                    !self.ended,
                    "the end after {} of {} bytes",
                    self.read, self.written
                );
                assert!(
                    sys::now_ns() < end,
                    "{} of {} bytes, states {:?}",
                    self.read,
                    self.written,
                    pair.ends.map(End::states)
                );
            }
        }
    }
}

/// Within so many bytes each way a connection comes to its link. Between hosts the control thread
/// has steps to take for both ends.
const SWITCHES: usize = 10_000;

/// A connection with both directions on its link.
fn linked(over: Over) -> (Pair, [Way; 2]) {
    let (pair, mut ways) = (Pair::new(over), ways());
    assert!(pair.meet());
    pair.switch(&mut ways);
    (pair, ways)
}

/// Called after a demotion: writes `n` bytes more each way, and reads all.
fn go_on(pair: &Pair, ways: &mut [Way; 2], n: usize) {
    for way in ways {
        way.write(pair, n, 0);
        way.drain(pair);
    }
}

fn what_was_written_by_tcp_is_read_before_the_link(over: Over) {
    let (pair, mut ways) = (Pair::new(over), ways());
    let [there, back] = &mut ways;
    there.write(&pair, 1000, 0);
    assert!(pair.meet());
    there.write(&pair, 2000, 0);
    if pair.hosts.is_none() {
        assert_eq!(pair.ends[0].sock.tx.state(), State::Link);
        assert_eq!(pair.ends[1].sock.rx.state(), State::Proved);
        assert_eq!(there.read(&pair, 600, 0), 600);
        assert_eq!(pair.ends[1].sock.rx.state(), State::Draining);
        // One call gets the last bytes of TCP and the first of the link.
        assert_eq!(there.read(&pair, 600, 0), 600);
        assert_eq!(pair.ends[1].sock.rx.state(), State::Link);
    }
    there.drain(&pair);
    back.write(&pair, 1000, 0);
    back.drain(&pair);
    pair.close();
}

fn whichever_end_demotes_each_byte_comes_once(over: Over) {
    for (who, which) in [0, 1]
        .into_iter()
        .flat_map(|who| [Which::Both, Which::Tx, Which::Rx].map(|which| (who, which)))
    {
        let (pair, mut ways) = linked(over);
        for way in &mut ways {
            way.write(&pair, 3000, 0);
            way.read(&pair, 1000, 0);
        }
        demote::demote(pair.ends[who].sock, which, Reason::RawSyscall);
        go_on(&pair, &mut ways, 500);
        pair.close();
    }
}

fn what_the_reader_took_is_not_sent_again(over: Over) {
    let (pair, [mut there, _]) = linked(over);
    there.write(&pair, 3000, 0);
    there.read(&pair, 1000, 0);
    let before = pair.ends[1].sock.rx.kernel_bytes();
    demote::demote(pair.ends[1].sock, Which::Both, Reason::RawSyscall);
    there.write(&pair, 10, 0);
    there.drain(&pair);
    let record = if pair.hosts.is_some() {
        RECORD_LEN as u64
    } else {
        0
    };
    assert_eq!(pair.ends[1].sock.rx.kernel_bytes() - before, 2010 + record);
    pair.is_at_last(|pair| pair.ends[0].sock.tx.state() == State::Plain);
    pair.close();
}

fn a_fin_follows_the_last_byte_of_the_link(over: Over) {
    let (pair, mut ways) = linked(over);
    let [there, back] = &mut ways;
    there.write(&pair, 5000, 0);
    pair.ends[0].shutdown(libc::SHUT_WR);
    // From the FIN on nothing could be re-sent.
    demote::demote(pair.ends[1].sock, Which::Rx, Reason::RawSyscall);
    there.drain(&pair);
    assert_eq!(there.read(&pair, 1, 0), 0);
    assert!(there.ended);
    back.write(&pair, 5000, 0);
    back.drain(&pair);
    pair.close();
}

/// The writer closes; the reader gets all that was written, then the end, and closes.
fn close_before_it_is_read(pair: Pair, there: &mut Way) {
    let [a, b] = pair.ends;
    a.close();
    there.drain(&pair);
    there.read(&pair, 1, 0);
    assert!(there.ended);
    b.close();
    pair.end();
}

fn after_a_close_the_peer_reads_all_and_then_the_end(over: Over) {
    let (pair, [mut there, _]) = linked(over);
    there.write(&pair, 50_000, 0);
    close_before_it_is_read(pair, &mut there);
}

fn a_close_that_meets_the_peers_demotion_is_no_reset(over: Over) {
    for seized in [Which::Both, Which::Tx, Which::Rx] {
        let (pair, [mut there, _]) = linked(over);
        there.write(&pair, 5000, 0);
        demote::demote(pair.ends[1].sock, seized, Reason::RawSyscall);
        close_before_it_is_read(pair, &mut there);
    }
}

/// The peer's record comes to a socket that its program has closed, after bytes that the peer has
/// not read. Where every byte was credited, nothing but the record is waited for.
fn a_demotion_before_a_close_is_no_reset(over: Over) {
    const CREDIT: u64 = 32 << 10;
    for _ in 0..20 {
        let (pair, [mut there, _]) = linked(over);
        let written = pair.ends[0].sock.tx.at.load(Ordering::Relaxed);
        there.write(&pair, (CREDIT - written % CREDIT) as usize, 0);
        there.drain(&pair);
        demote::demote(pair.ends[0].sock, Which::Both, Reason::RawSyscall);
        there.write(&pair, 5000, 0);
        close_before_it_is_read(pair, &mut there);
    }
}

fn a_writer_that_makes_no_call_sends_again_all_the_same(over: Over) {
    for seized in [Which::Rx, Which::Both] {
        let (pair, [mut there, _]) = linked(over);
        there.write(&pair, 3000, 0);
        demote::demote(pair.ends[1].sock, seized, Reason::RawSyscall);
        let end = sys::now_ns() + 5_000_000_000;
        while there.read < there.written {
            there.read(&pair, 3000, libc::MSG_DONTWAIT);
            assert!(sys::now_ns() < end, "{} bytes came", there.read);
        }
        pair.close();
    }
}

fn what_both_ends_give_up_at_once_comes_once(over: Over) {
    for _ in 0..20 {
        let (pair, mut ways) = linked(over);
        for way in &mut ways {
            way.write(&pair, 3000, 0);
            way.read(&pair, 1000, 0);
        }
        std::thread::scope(|scope| {
            for end in pair.ends {
                scope.spawn(move || demote::demote(end.sock, Which::Both, Reason::RawSyscall));
            }
        });
        // Before the peer has read what is sent again.
        let [first, second] = &mut ways;
        first.write(&pair, 500, libc::MSG_DONTWAIT);
        second.drain(&pair);
        first.drain(&pair);
        pair.close();
    }
}

fn what_is_seized_while_it_is_copied_comes_by_tcp(over: Over) {
    let (pair, mut ways) = linked(over);
    let mut draw = testing::draws(1);
    for _ in 0..1000 {
        let [there, _] = &mut ways;
        there.write(&pair, 30_000, 0);
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.store(true, Ordering::Release);
                there.read(&pair, 30_000, libc::MSG_DONTWAIT);
            });
            while !begun.load(Ordering::Acquire) {
                core::hint::spin_loop();
            }
            for _ in 0..draw() % 3000 {
                core::hint::spin_loop();
            }
            demote::demote(pair.ends[0].sock, Which::Both, Reason::RawSyscall);
        });
        go_on(&pair, &mut ways, 1);
        assert!(pair.meet());
        pair.switch(&mut ways);
    }
    pair.close();
}

fn a_connection_that_went_back_comes_to_a_link_again(over: Over) {
    let (pair, mut ways) = linked(over);
    for _ in 0..10 {
        for way in &mut ways {
            way.write(&pair, 7000, 0);
        }
        demote::demote(pair.ends[1].sock, Which::Both, Reason::RawSyscall);
        go_on(&pair, &mut ways, 10);
        assert!(pair.meet());
        pair.switch(&mut ways);
    }
    pair.close();
}

fn what_a_killed_peer_wrote_is_read_to_its_last_byte(over: Over) {
    let (pair, [mut there, _]) = linked(over);
    there.write(&pair, 3000, 0);
    there.read(&pair, 1000, 0);
    let [writer, reader] = pair.ends;
    writer.is_killed();
    demote::demote(reader.sock, Which::Both, Reason::PeerDied);
    assert_eq!(there.read(&pair, 4000, 0), 2000);
    assert_eq!(there.read(&pair, 1, 0), 0);
    pair.close();
}

/// What comes by TCP from now on draws a reset, as a later write of the peer's does here. TCP has
/// no room for the unread bytes, so that they cannot come before the shutdown either.
fn nothing_is_sent_again_to_a_reader_that_has_shut_both_halves_down(over: Over) {
    let (pair, [mut there, _]) = linked(over);
    let [writer, reader] = pair.ends;
    while there.write(&pair, 3000, libc::MSG_DONTWAIT) != 0 {}
    narrow(&pair);
    reader.shutdown(libc::SHUT_RDWR);
    // Between hosts it may come by the link yet.
    let _ = writer.send(&[byte_at(there.written)], libc::MSG_DONTWAIT);
    pair.is_at_last(|pair| pair.ends[0].sock.tx.state() == State::Plain);
    there.drain(&pair);
    // The byte that came to halves that are both shut has reset the connection, as on TCP, unless
    // it came by the link.
    let mut byte = [0];
    let end = loop {
        match reader.recv(&mut byte, 0) {
            Ok(1) if byte == [byte_at(there.read)] => there.read += 1,
            end => break end,
        }
    };
    assert!(
        matches!(end, Ok(0) | Err(Error::Kernel(libc::ECONNRESET))),
        "{end:?}"
    );
    assert_eq!(writer.sock.conn().tx.resent.load(), 0);
    pair.close();
}

/// Neither program makes a call.
fn a_lost_link_gives_its_streams_back_to_tcp(over: Over) {
    let (pair, mut ways) = linked(over);
    for way in &mut ways {
        way.write(&pair, 3000, 0);
        way.read(&pair, 1000, 0);
    }
    pair.hosts.as_ref().unwrap().0[0].lose();
    let until = sys::now_ns() + 5_000_000_000;
    while pair
        .ends
        .iter()
        .any(|end| end.sock.tx.state() != State::Plain)
    {
        assert!(sys::now_ns() < until, "{:?}", pair.ends.map(End::states));
        std::thread::yield_now();
    }
    go_on(&pair, &mut ways, 500);
    pair.close();
}

/// Leaves TCP hardly any room, in both directions of both ends.
fn narrow(pair: &Pair) {
    for end in pair.ends {
        for name in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            sys::setsockopt(end.fd, libc::SOL_SOCKET, name, &4096).unwrap();
        }
    }
}

fn what_tcp_has_no_room_for_is_sent_when_it_has(over: Over) {
    let (pair, [mut there, _]) = linked(over);
    while there.write(&pair, 3000, libc::MSG_DONTWAIT) != 0 {}
    narrow(&pair);
    demote::demote(pair.ends[0].sock, Which::Both, Reason::RawSyscall);
    assert_eq!(there.write(&pair, 3000, libc::MSG_DONTWAIT), 0);
    assert_eq!(pair.ends[0].sock.tx.state(), State::Resending);
    there.drain(&pair);
    while there.write(&pair, 3000, libc::MSG_DONTWAIT) == 0 {}
    there.drain(&pair);
    pair.close();
}

fn an_end_waits_for_what_tcp_has_no_room_for(over: Over) {
    let (pair, [mut there, _]) = linked(over);
    while there.write(&pair, 3000, libc::MSG_DONTWAIT) != 0 {}
    narrow(&pair);
    pair.ends[0].shutdown(libc::SHUT_WR);
    there.drain(&pair);
    assert_eq!(there.read(&pair, 1, 0), 0);
    pair.close();
}

/// Runs `call` in a thread, and `then` while that thread sleeps in the kernel.
fn beside_a_sleeper(call: impl FnOnce() + Send, then: impl FnOnce()) {
    let tid = AtomicI32::new(0);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            tid.store(sys::gettid(), Ordering::SeqCst);
            call();
        });
        let asleep = || {
            let stat = format!("/proc/self/task/{}/stat", tid.load(Ordering::SeqCst));
            std::fs::read_to_string(stat).is_ok_and(|stat| stat.contains(") S "))
        };
        while !asleep() {
            std::thread::yield_now();
        }
        then();
        sleeper.join().unwrap();
    });
}

fn a_reader_that_sleeps_in_the_kernel_gets_its_bytes_by_tcp(over: Over) {
    let (pair, [mut there, _]) = (Pair::new(over), ways());
    let (mut read, mut states) = (0, None);
    let sleeper = || {
        let [mut way, _] = ways();
        read = way.read(&pair, 100, 0);
    };
    beside_a_sleeper(sleeper, || {
        pair.meet();
        there.write(&pair, 10, 0);
        states = Some((pair.ends[0].sock.tx.state(), pair.ends[1].sock.rx.state()));
    });
    assert_eq!(read, 10);
    if pair.hosts.is_none() {
        assert_eq!(states, Some((State::Proved, State::Proved)));
    }
    pair.close();
}

fn no_writer_switches_while_another_sleeps_in_the_kernel(over: Over) {
    const BYTES: usize = 8 << 20;
    let (pair, [mut reader, _]) = (Pair::new(over), ways());
    let mut states = None;
    let sleeper = || {
        let [mut way, _] = ways();
        way.write(&pair, BYTES, 0);
    };
    beside_a_sleeper(sleeper, || {
        pair.meet();
        let sent = pair.ends[0].send(&[0], libc::MSG_DONTWAIT);
        states = Some((sent.is_err_and(waits), pair.ends[0].sock.tx.state()));
        while reader.read < BYTES as u64 {
            reader.read(&pair, 1 << 16, 0);
        }
    });
    assert_eq!(states, Some((true, State::Proved)));
    pair.close();
}

/// Takes random steps, in one thread that never waits. Returns how often the ends met.
fn walk(over: Over, seed: u64) -> u32 {
    let mut met = 0;
    let mut draw = testing::draws(seed);
    let (pair, mut ways) = (Pair::new(over), ways());
    let mut shut = [false; 2];
    for _ in 0..300 {
        let who = (draw() % 2) as usize;
        let n = [1, 100, 3000, 40_000][(draw() % 4) as usize];
        match draw() % 16 {
            0..=5 if !shut[who] => {
                ways[who].write(&pair, n, libc::MSG_DONTWAIT);
            }
            6..=11 => {
                ways[who].read(&pair, n, libc::MSG_DONTWAIT);
            }
            12 => {
                let which = [Which::Both, Which::Tx, Which::Rx][(draw() % 3) as usize];
                demote::demote(pair.ends[who].sock, which, Reason::RawSyscall);
            }
            13 => pair.ends[who].goes_on(),
            14 if pair.ends.iter().all(|end| end.sock.link().is_none()) && shut == [false; 2] => {
                met += u32::from(pair.meet());
            }
            15 if draw().is_multiple_of(16) && !shut[who] => {
                shut[who] = true;
                pair.ends[who].shutdown(libc::SHUT_WR);
            }
            _ => {}
        }
        for way in &ways {
            assert!(!way.ended || shut[way.from] && way.read == way.written);
        }
    }
    for way in &mut ways {
        way.drain(&pair);
        if !shut[way.from] {
            pair.ends[way.from].shutdown(libc::SHUT_WR);
        }
        way.read(&pair, 1, 0);
        assert!(way.ended);
    }
    pair.close();
    met
}

/// Runs `walk` for each seed, a quarter of them between hosts, and says which one failed. On
/// average the ends must meet once for each seed.
fn for_seeds(seeds: u32, over: Over, walk: fn(Over, u64) -> u32) {
    let mut met = 0;
    let seeds = match over {
        Over::Memory => seeds,
        Over::Hosts(..) => seeds / 4,
    };
    for seed in 1..=seeds {
        let seed = u64::from(seed);
        match std::panic::catch_unwind(|| walk(over.of_seed(seed), seed)) {
            Ok(times) => met += times,
            Err(why) => panic!("seed {seed}: {:?}", why.downcast_ref::<String>()),
        }
    }
    assert!(met >= seeds, "{seeds} connections met {met} times");
}

fn in_any_order_of_steps_each_byte_comes_once_and_then_the_end(over: Over) {
    for_seeds(300, over, walk);
}

/// Four threads write and read, and wait where they must, while a fifth upgrades and demotes the
/// connection. Returns how often the ends met.
fn race(over: Over, seed: u64) -> u32 {
    let mut draw = testing::draws(seed);
    let pair = Pair::new(over);
    let mut bytes = 1 << 20;
    if seed.is_multiple_of(3) {
        narrow(&pair);
        bytes /= 16;
    }
    let over = AtomicBool::new(false);
    let met = std::thread::scope(|scope| {
        let (pair, over) = (&pair, &over);
        let going = [0, 1].map(|from| {
            let [size, room] = [draw(), draw()].map(|n| 1 + n as usize % 30_000);
            let way = move || Way {
                from,
                written: 0,
                read: 0,
                ended: false,
            };
            let writer = scope.spawn(move || {
                let mut way = way();
                while way.written < bytes {
                    way.write(pair, size.min((bytes - way.written) as usize), 0);
                }
            });
            let reader = scope.spawn(move || {
                let mut way = way();
                while way.read < bytes {
                    assert!(!way.ended);
                    way.read(pair, room, 0);
                }
            });
            [writer, reader]
        });
        let chaos = scope.spawn(move || {
            let mut met = 0;
            while !over.load(Ordering::Relaxed) {
                let end = pair.ends[(draw() % 2) as usize];
                if pair.ends.iter().all(|end| end.sock.link().is_none()) {
                    met += u32::from(pair.meet());
                } else if draw().is_multiple_of(4) {
                    demote::demote(end.sock, Which::Both, Reason::RawSyscall);
                }
                if seed.is_multiple_of(2) {
                    std::thread::sleep(Duration::from_micros(draw() % 300));
                }
            }
            met
        });
        for thread in going.into_iter().flatten() {
            thread.join().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        chaos.join().unwrap()
    });
    pair.close();
    met
}

fn while_threads_write_and_read_each_byte_comes_once(over: Over) {
    for_seeds(20, over, race);
}

/// For each carrier a module that has the journeys as tests.
macro_rules! over {
    ($($carrier:ident: $over:expr => $journeys:ident;)*) => {$(
        mod $carrier {
            use super::*;

            $journeys!($over);
        }
    )*};
}

macro_rules! tests {
    ($over:expr => $($journey:ident)*) => {$(
        #[test]
        fn $journey() {
            super::$journey($over);
        }
    )*};
}

/// Journeys that also hold where the connection breaks.
macro_rules! random {
    ($over:expr) => {
        tests! { $over =>
            in_any_order_of_steps_each_byte_comes_once_and_then_the_end
            while_threads_write_and_read_each_byte_comes_once
        }
    };
}

macro_rules! all {
    ($over:expr) => {
        random!($over);
        tests! { $over =>
            what_was_written_by_tcp_is_read_before_the_link
            whichever_end_demotes_each_byte_comes_once
            what_the_reader_took_is_not_sent_again
            a_fin_follows_the_last_byte_of_the_link
            after_a_close_the_peer_reads_all_and_then_the_end
            a_close_that_meets_the_peers_demotion_is_no_reset
            a_demotion_before_a_close_is_no_reset
            a_writer_that_makes_no_call_sends_again_all_the_same
            what_both_ends_give_up_at_once_comes_once
            what_is_seized_while_it_is_copied_comes_by_tcp
            a_connection_that_went_back_comes_to_a_link_again
            nothing_is_sent_again_to_a_reader_that_has_shut_both_halves_down
            what_tcp_has_no_room_for_is_sent_when_it_has
            an_end_waits_for_what_tcp_has_no_room_for
            a_reader_that_sleeps_in_the_kernel_gets_its_bytes_by_tcp
            no_writer_switches_while_another_sleeps_in_the_kernel
        }
    };
}

/// Between hosts the kernel resets what a killed process had on a link.
macro_rules! memory {
    ($over:expr) => {
        all!($over);
        tests! { $over =>
            what_a_killed_peer_wrote_is_read_to_its_last_byte
        }
    };
}

macro_rules! hosts {
    ($over:expr) => {
        all!($over);
        tests! { $over =>
            a_lost_link_gives_its_streams_back_to_tcp
            pages_and_bytes_come_in_their_order
            pages_under_way_are_sent_again_by_tcp
            what_was_cut_under_way_resets_the_connection
            what_the_peer_does_not_credit_keeps_no_file
            no_message_reads_past_a_span
        }
    };
}

const LATE: Faults = Faults {
    seed: 1,
    breaks_after: None,
};
const BREAKS: Faults = Faults {
    seed: 1,
    breaks_after: Some(300),
};

over! {
    memory: Over::Memory => memory;
    infiniband: Over::Hosts(Kind::InfiniBand, Faults::default()) => hosts;
    iwarp: Over::Hosts(Kind::Iwarp, Faults::default()) => hosts;
    late_infiniband: Over::Hosts(Kind::InfiniBand, LATE) => hosts;
    late_iwarp: Over::Hosts(Kind::Iwarp, LATE) => hosts;
    broken_infiniband: Over::Hosts(Kind::InfiniBand, BREAKS) => random;
    broken_iwarp: Over::Hosts(Kind::Iwarp, BREAKS) => random;
}
