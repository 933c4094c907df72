//! Tests: calls that wait for what never comes, or whose last byte cannot be told from another's.
//! They end, and they sleep meanwhile.

use super::*;
use crate::unread_copy::{self, owed_ns};
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
