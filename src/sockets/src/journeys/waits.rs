//! Tests: calls that wait for what never comes, or whose last byte cannot be told from another's.
//! They end, and they sleep meanwhile.

use super::*;
use crate::fork_shared::Unread;
use crate::linger::part;
use crate::unread_copy::{self, owed_ns};
use sluice_transport::verbs::endpoint_of;
use std::io::Write;
use std::sync::mpsc;

/// Ends the process if `call` runs for 10 s: it would never end, and would keep a processor busy.
fn in_time<T>(call: impl FnOnce() -> T) -> T {
    let (over, is_over) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if is_over.recv_timeout(Duration::from_secs(10)) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = writeln!(std::io::stderr(), "a call has not come to its end");
            std::process::abort();
        }
    });
    let outcome = call();
    drop(over);
    watch.join().unwrap();
    outcome
}

#[test]
fn a_thread_that_jumped_out_of_its_call_keeps_no_other_from_the_end() {
    let pair = Pair::new(Over::Memory);
    let [writer, reader] = pair.ends;
    let sock = reader.sock;
    let (a, _, index) = testing::link();
    let lent = a.lent_for(index).unwrap();
    let ring = a.arena().unwrap().ring(a.side(), lent.at, lent.len);
    sock.unread_copy.keep(ring.unwrap(), 0, 3, false);
    unread_copy::owes(sock, 3);
    // The thread that jumped.
    sock.rx.call_begins();
    writer.close();
    while !unread_copy::has_ended(reader.fd) {
        std::thread::yield_now();
    }
    let began = sys::now_ns();
    let got = in_time(|| reader.recv(&mut [0; 8], 0));
    assert_eq!(got, Err(Error::Reset));
    assert!(sys::now_ns() - began >= owed_ns());
    assert_eq!(in_time(|| reader.recv(&mut [0; 8], 0)), Ok(0));
    sock.rx.call_ends(0);
    reader.close();
    pair.end();
}

/// Between hosts: the link's bytes are read, and TCP is to bring `owed` more.
fn returning(owed: u64) -> (Pair, End) {
    let (pair, _) = linked(Over::Hosts(Kind::InfiniBand, Faults::default()));
    let reader = pair.ends[1];
    let sock = reader.sock;
    let section = sock.rx.lock.enter().unwrap();
    let from = sock.rx.kernel_bytes() + owed;
    sock.rx.from.store(from, Ordering::Relaxed);
    sock.rx.dir().unwrap().rx.head.flag();
    sock.rx.state.put(State::Returning);
    drop(section);
    (pair, reader)
}

/// Ends what [`returning`] began.
fn give_up(pair: Pair) {
    for end in pair.ends {
        let section = end.sock.rx.lock.enter().unwrap();
        end.sock.rx.state.put(State::Link);
        drop(section);
        demote::abandon(end.sock, Reason::Close);
    }
    pair.close();
}

#[test]
fn a_reader_sleeps_until_tcp_brings_what_the_peer_owes() {
    let (pair, reader) = returning(5);
    let sock = reader.sock;
    sock.rcv_timeout_ns.store(300_000_000, Ordering::Relaxed);
    let before = processor_ns();
    let got = in_time(|| reader.recv(&mut [0; 8], 0));
    assert_eq!(got, Err(Error::WouldBlock));
    let used = processor_ns() - before;
    assert!(used < 20_000_000, "{used} ns of a processor in a wait");
    give_up(pair);
}

/// How much of a processor this thread has used.
fn processor_ns() -> i64 {
    let mut time = sys::timespec(0);
    // SAFETY: room for a time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[test]
fn a_handler_amid_its_threads_driving_does_not_wait_for_the_link() {
    let (pair, reader) = returning(0);
    let endpoint = endpoint_of(reader.link).unwrap();
    let flags = libc::MSG_DONTWAIT;
    let got = in_time(|| endpoint.with(|_| reader.recv(&mut [0; 8], flags)));
    assert_eq!(got, Some(Err(Error::WouldBlock)));
    give_up(pair);
}

#[test]
fn a_peek_that_waits_does_not_spin_on_another_process_bytes() {
    let (pair, [mut there, _]) = linked(Over::Memory);
    let [writer, reader] = pair.ends;
    there.write(&pair, 3, 0);
    // SAFETY: a slice of ours. No hook sees it, as if another process wrote.
    let by_tcp = unsafe { libc::send(writer.fd, b"other".as_ptr().cast(), 5, 0) };
    assert_eq!(by_tcp, 5);
    while !crate::tcp::has_bytes(reader.fd) {
        std::thread::yield_now();
    }
    let flags = libc::MSG_PEEK | libc::MSG_WAITALL;
    let got = std::thread::scope(|scope| {
        let peek = scope.spawn(|| in_time(|| reader.recv(&mut [0; 8], flags)));
        while !peek.is_finished() {
            writer.goes_on();
            std::thread::yield_now();
        }
        peek.join().unwrap()
    });
    assert_eq!(got, Ok(8));
    pair.close();
}

#[test]
fn a_writer_that_claims_a_switch_in_the_past_is_hostile() {
    let (pair, mut ways) = (Pair::new(Over::Memory), ways());
    ways[0].write(&pair, 100, 0);
    assert!(pair.meet());
    ways[0].read(&pair, 100, 0);
    ways[0].write(&pair, 1, 0);
    let reader = pair.ends[1];
    let dir = reader.sock.rx.dir().unwrap();
    dir.tx_wishes.from.store(99, Ordering::Relaxed);
    let got = in_time(|| reader.recv(&mut [0; 8], libc::MSG_DONTWAIT));
    assert_ne!(reader.sock.rx.state(), State::Link, "{got:?}");
    let pinned = reader.sock.pinned.load(Ordering::Relaxed);
    assert_eq!(pinned, Reason::PeerHostile as u32);
    pair.close();
}

#[test]
fn a_wait_for_a_taker_ends_with_the_stream() {
    let (a, b, index) = testing::link();
    let sock = testing::writer(a, b, index);
    let section = sock.tx.lock.enter().unwrap();
    sock.tx.state.put(State::Plain);
    let began = sys::now_ns();
    wait::for_taker(section, sock, began + 5_000_000_000, || false);
    assert!(sys::now_ns() - began < 1_000_000_000);
    sock.tx.state.put(State::Link);
    demote::demote(sock, Which::Both, Reason::Close);
}

#[test]
fn a_child_that_closes_waits_for_its_thread_that_reads() {
    let (a, b, index) = testing::link();
    let sock = testing::writer(a, b, index);
    sock.rx.state.put(State::Inherited);
    sock.tx.state.put(State::Inherited);
    let inside = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _section = sock.rx.lock.enter().unwrap();
            inside.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(sock.rx.state(), State::Inherited);
            assert!(sock.link().is_some());
        });
        while !inside.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert!(!part(sock, Reason::Close));
    });
    assert_eq!(sock.rx.state(), State::Plain);
    assert!(sock.link().is_none());
}

#[test]
fn what_a_relative_has_is_not_joined_to_what_tcp_holds() {
    let pair = Pair::new(Over::Memory);
    let [writer, reader] = pair.ends;
    assert_eq!(writer.send(b"by TCP", 0), Ok(6));
    while crate::tcp::unread(reader.fd) < 6 {
        std::thread::yield_now();
    }
    let family = reader.sock.family_or_take().unwrap();
    let (len, owed, whole) = (3, 9, false);
    family.leave_unread(Unread { len, owed, whole });
    {
        let _section = reader.sock.rx.lock.enter().unwrap();
        unread_copy::adopt(reader.sock);
        assert!(!unread_copy::keep_of_tcp(reader.sock));
        unread_copy::renounce(reader.sock);
    }
    assert_eq!(reader.recv(&mut [0; 8], 0), Ok(6));
    pair.close();
}
