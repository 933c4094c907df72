//! Both ends of made-up connections: the tests say what a call moves, and ask no kernel.

use super::*;
use crate::digests::{DIGEST, WANTED};
use crate::socket::{self, role};
use crate::verdict::Pass;
use crate::{observe_passed, recv, send};
use core::sync::atomic::AtomicUsize;
use sha2::{Digest, Sha256};
use sluice_runtime::fd_table::Entry;
use std::sync::{Mutex, PoisonError};

/// A new connection that is to be proved.
fn end(role: u8) -> &'static Socket {
    WANTED.store(true, Ordering::Relaxed);
    let sock = socket::alloc(-1, role).unwrap();
    // It has no descriptor to meet another process by.
    sock.next_try.store(u64::MAX, Ordering::Relaxed);
    sock
}

/// A new generator of numbers (splitmix64).
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below as u64) as usize
    }
}

fn stream(seed: u64, len: usize) -> Vec<u8> {
    let mut number = numbers(seed);
    (0..len).map(|_| number(256) as u8).collect()
}

fn pieces(bytes: &[&[u8]]) -> Vec<iovec> {
    let piece = |b: &&[u8]| iovec {
        iov_base: b.as_ptr().cast_mut().cast(),
        iov_len: b.len(),
    };
    bytes.iter().map(piece).collect()
}

fn pass(sock: &'static Socket, way: Way) -> Pass {
    match way {
        Way::In => recv::to_kernel(sock, 0),
        Way::Out => send::to_kernel(sock, 0),
    }
    .unwrap()
}

/// The end of a call, as a hook makes it.
fn over(pass: Pass, bytes: &[&[u8]], n: usize) {
    let iov = pieces(bytes);
    if pass.wants_bytes() {
        // SAFETY: the vectors list living slices.
        unsafe {
            observe_passed::recv(
                &pass,
                n as ssize_t,
                Entry::FRESH,
                -1,
                iov.as_ptr(),
                iov.len(),
                0,
            );
        }
    }
    observe_passed::finish(pass, n as ssize_t);
}

/// A whole call that moves all of `bytes`.
fn call(sock: &'static Socket, way: Way, bytes: &[u8]) {
    over(begun(sock, way, &[bytes]), &[bytes], bytes.len());
}

/// The beginning of a call by these buffers, as a hook makes it.
fn begun(sock: &'static Socket, way: Way, bytes: &[&[u8]]) -> Pass {
    let iov = pieces(bytes);
    match way {
        Way::In => pass(sock, way),
        // SAFETY: the vectors list living slices.
        Way::Out => unsafe { pass(sock, way).writes(sock, iov.as_ptr(), iov.len()) },
    }
}

fn digests(sock: &'static Socket, way: Way) -> Vec<[u8; DIGEST]> {
    with_tracks(sock, |tracks| {
        let track = tracks.of(way);
        let taken = track.taken.load(Ordering::Acquire);
        Some((1..=taken).map(|k| track.digest(k).unwrap()).collect())
    })
    .unwrap_or_default()
}

/// Checks the digests taken so far against the stream, and returns how many there are.
fn right(sock: &'static Socket, way: Way, stream: &[u8]) -> usize {
    let found = digests(sock, way);
    for (i, digest) in found.iter().enumerate() {
        assert_eq!(digest[..], Sha256::digest(&stream[..1 << i])[..]);
    }
    found.len()
}

#[test]
fn both_ends_have_the_same_digests_whatever_calls_moved_the_bytes() {
    for seed in 0..30 {
        let mut number = numbers(seed);
        let len = if seed % 3 == 0 {
            number(2000)
        } else {
            LEN + number(9000)
        };
        let stream = stream(seed, len);
        let (a, b) = (end(role::CONNECTING), end(role::ACCEPTED));
        for (sock, way) in [(a, Way::Out), (b, Way::In)] {
            let mut at = 0;
            let most = [3, 100, 5000, 60_000][number(4)];
            while at < len {
                let n = (1 + number(most)).min(len - at);
                let rest = &stream[at..];
                // Buffers for more than is moved, in pieces, some of them empty.
                let (one, two) = rest.split_at(number(n));
                let (two, three) = two.split_at(number(two.len()));
                let buffers = [one, &[], two, three];
                over(begun(sock, way, &buffers), &buffers, n);
                // Nothing moved, and a peek, in between.
                observe_passed::finish(pass(sock, way), -1);
                observe_passed::finish(
                    recv::to_kernel(sock, libc::MSG_PEEK).unwrap(),
                    n as ssize_t,
                );
                at += n;
            }
            let marks = right(sock, way, &stream);
            let expected = (1..=len.min(LEN)).filter(|n| n.is_power_of_two()).count();
            assert_eq!(marks, expected, "seed {seed}");
            assert_eq!(sock.prefix.wants(way), len < LEN);
        }
        socket::free(a);
        socket::free(b);
    }
}

/// A connection whose ends have both seen `sent` and `answered`.
fn met(sent: &[u8], answered: &[u8]) -> (&'static Socket, &'static Socket) {
    let (a, b) = (end(role::CONNECTING), end(role::ACCEPTED));
    for (bytes, from, to) in [(sent, a, b), (answered, b, a)] {
        call(from, Way::Out, bytes);
        call(to, Way::In, bytes);
    }
    (a, b)
}

#[test]
fn each_end_proves_what_it_has_seen_to_the_other() {
    let (sent, answered) = (stream(1, 5000), stream(2, 300));
    let (a, b) = met(&sent, &answered);
    assert_eq!((reach(a), reach(b)), ((13, 9), (9, 13)));
    let message: [&[u8]; 2] = [b"nonce", b"other nonce"];
    for (out_k, in_k) in [(13, 9), (1, 0), (0, 5), (7, 7)] {
        let proof = prove(a, out_k, in_k, &message).unwrap();
        assert!(verify(b, in_k, out_k, &message, &proof));
        // Reflected to its maker it proves nothing.
        assert!(!verify(a, out_k, in_k, &message, &proof));
        let answer = prove(b, in_k, out_k, &message).unwrap();
        assert!(verify(a, out_k, in_k, &message, &answer));
        assert_ne!(proof, answer);
        // It holds for this message, divided like this, and these bytes only.
        assert!(!verify(b, in_k, out_k, &[b"nonce", b"other"], &proof));
        assert!(!verify(b, in_k, out_k, &[b"nonceo", b"ther nonce"], &proof));
        assert!(!verify(b, in_k, out_k + 1, &message, &proof));
        let mut wrong = proof;
        wrong[15] ^= 1;
        assert!(!verify(b, in_k, out_k, &message, &wrong));
        let known = secret(a, out_k, in_k, &message).unwrap();
        assert_eq!(secret(b, in_k, out_k, &message), Some(known));
        assert!(known != proof && known != answer);
    }
    // Further than is known, or no byte at all.
    assert_eq!(prove(a, 14, 9, &message), None);
    assert_eq!(prove(a, 13, 10, &message), None);
    assert_eq!(prove(a, 17, 200, &message), None);
    assert_eq!(prove(a, 0, 0, &message), None);
    assert_eq!(prove(end(role::UNKNOWN), 1, 0, &message), None);
    // Another connection, which differs in one byte.
    let mut other = sent.clone();
    other[4095] ^= 1;
    let (c, d) = met(&other, &answered);
    let proof = prove(a, 13, 9, &message).unwrap();
    assert!(!verify(d, 9, 13, &message, &proof));
    assert_ne!(secret(a, 13, 9, &message), secret(c, 13, 9, &message));
    assert_eq!(secret(a, 12, 9, &message), secret(c, 12, 9, &message));
    [a, b, c, d].into_iter().for_each(socket::free);
}

/// Something that happens to a socket.
type How = fn(&'static Socket);

#[test]
fn a_direction_ends_where_bytes_pass_unseen() {
    let bytes = stream(3, 4000);
    let ends: [(&str, How); 7] = [
        ("thrown away by TCP", |s| {
            observe_passed::finish(recv::to_kernel(s, libc::MSG_TRUNC).unwrap(), 5);
        }),
        ("counted, not shown", |s| s.rx.add_kernel_bytes(5)),
        ("by a link", |s| s.rx.linked.store(5, Ordering::Relaxed)),
        ("pinned", |s| s.pin(sluice_stats::Reason::MsgOob)),
        ("two at once", |s| {
            let (one, two) = (pass(s, Way::In), pass(s, Way::In));
            over(one, &[b"abc"], 3);
            over(two, &[b"def"], 3);
        }),
        ("a handler in a call", |s| {
            let outer = pass(s, Way::In);
            call(s, Way::In, b"abc");
            over(outer, &[b"def"], 3);
        }),
        ("a stream stands ready", |s| {
            let entered = pass(s, Way::In);
            s.rx.state.put(State::Proved);
            over(entered, &[b"abc"], 3);
            s.rx.state.put(State::Plain);
        }),
    ];
    for (what, how) in ends {
        let sock = end(role::ACCEPTED);
        call(sock, Way::In, &bytes[..1500]);
        how(sock);
        call(sock, Way::In, &bytes[1500..]);
        assert_eq!(right(sock, Way::In, &bytes), 11, "{what}");
        assert!(!sock.prefix.wants(Way::In), "{what}");
        socket::free(sock);
    }
    // A call left by a jump stays counted: nothing more is added.
    let sock = end(role::ACCEPTED);
    let left = pass(sock, Way::Out);
    call(sock, Way::Out, &bytes);
    assert_eq!(right(sock, Way::Out, &bytes), 0);
    observe_passed::finish(left, -1);
    socket::free(sock);
}

#[test]
fn whatever_threads_do_what_is_taken_is_right() {
    let total = AtomicUsize::new(0);
    for seed in 0..300 {
        let sock = end(role::CONNECTING);
        // What the kernel has taken, in its order.
        let kernel = Mutex::new(Vec::new());
        let thread = |seed: u64, calls: usize| {
            let mut number = numbers(seed);
            for _ in 0..calls {
                let bytes = stream(number(1 << 30) as u64, 1 + number(300));
                let pass = begun(sock, Way::Out, &[&bytes]);
                kernel
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend_from_slice(&bytes);
                if number(4) == 0 {
                    std::thread::yield_now();
                }
                over(pass, &[&bytes], bytes.len());
                for _ in 0..number(20_000) {
                    core::hint::spin_loop();
                }
            }
        };
        thread(seed, seed as usize % 20);
        std::thread::scope(|scope| {
            for each in 0..3 {
                scope.spawn(move || thread(seed * 10 + each, 8));
            }
        });
        let kernel = kernel.into_inner().unwrap();
        total.fetch_add(right(sock, Way::Out, &kernel), Ordering::Relaxed);
        socket::free(sock);
    }
    // Some of it even while they met.
    assert!(total.into_inner() > 1000);
}

#[test]
fn what_is_about_to_be_written_need_not_be_there_when_it_is() {
    let bytes = stream(9, 6000);
    let sock = end(role::CONNECTING);
    let write = |bytes: &[&[u8]], n: usize| {
        let iov = pieces(bytes);
        // SAFETY: the vectors list living slices.
        let pass = unsafe { pass(sock, Way::Out).writes(sock, iov.as_ptr(), iov.len()) };
        let gone = core::ptr::without_provenance::<iovec>(4096);
        // SAFETY: the array is unmapped; since the process may have threads, it is read by the
        // kernel alone.
        unsafe { observe_passed::send(&pass, n as ssize_t, Entry::FRESH, -1, gone, 1, 0) };
        observe_passed::finish(pass, n as ssize_t);
    };
    write(&[&bytes[..10], &[], &bytes[10..1000]], 1000);
    // A call that fails: what it looked at must not be used by the next call, which looks at
    // nothing.
    write(&[&bytes[..100]], usize::MAX);
    over(pass(sock, Way::Out), &[&bytes[1000..1100]], 100);
    write(&[&bytes[1100..5000]], 3900);
    assert_eq!(right(sock, Way::Out, &bytes), 13);
    assert!(sock.prefix.wants(Way::Out));
    // Part of it, which cannot be told from the whole once the rest is unmapped.
    write(&[&bytes[5000..]], 500);
    assert!(!sock.prefix.wants(Way::Out));
    assert_eq!(right(sock, Way::Out, &bytes), 13);
    socket::free(sock);
}

#[test]
fn memory_that_is_gone_ends_a_direction() {
    let page = sys::map_zeroes(8192, false).unwrap();
    // SAFETY: the second page of the mapping just made.
    unsafe { sys::unmap(page.add(4096), 4096) };
    let sock = end(role::CONNECTING);
    let across = iovec {
        iov_base: page.cast(),
        iov_len: 8192,
    };
    let whole = |n: ssize_t, iov: *const iovec| {
        let pass = pass(sock, Way::Out);
        // SAFETY: the process may have threads, so unmapped memory is read by the kernel alone.
        unsafe { observe_passed::send(&pass, n, Entry::FRESH, -1, iov, 1, 0) };
        observe_passed::finish(pass, n);
    };
    assert_ne!(thread::are_several(), Some(false));
    whole(4000, &raw const across);
    assert_eq!(right(sock, Way::Out, &[0; 4096]), 12);
    // SAFETY: unmapped memory is not read. A call that looks ahead notices it, too.
    let looked = unsafe { pass(sock, Way::Out).writes(sock, &raw const across, 1) };
    observe_passed::finish(looked, -1);
    whole(8192, &raw const across);
    assert!(!sock.prefix.wants(Way::Out));
    // The digests of the readable part stay valid.
    assert_eq!(right(sock, Way::Out, &[0; 8192]), 13);
    socket::free(sock);
    let sock = end(role::CONNECTING);
    let pass = pass(sock, Way::Out);
    let gone = page.wrapping_add(4096);
    // SAFETY: the process may have threads, so the unmapped header is read by the kernel alone.
    unsafe { observe_passed::sendmsg(&pass, 3, Entry::FRESH, -1, gone.cast(), 0) };
    assert!(!sock.prefix.wants(Way::Out) && sock.prefix.wants(Way::In));
    observe_passed::finish(pass, 3);
    socket::free(sock);
    // SAFETY: the first page of the mapping, which is still there.
    unsafe { sys::unmap(page, 4096) };
}

#[test]
fn what_a_file_sent_is_read_again() {
    let bytes = stream(5, 20_000);
    let file = sys::memfd(c"prefix").unwrap();
    assert_eq!(sys::write(file.raw(), &bytes), Ok(bytes.len()));
    let (a, b) = (end(role::CONNECTING), end(role::ACCEPTED));
    let whole = |n: usize, at: *const off64_t| {
        let pass = pass(a, Way::Out);
        // SAFETY: null or a valid number.
        unsafe {
            observe_passed::sendfile(
                &pass,
                n as ssize_t,
                Entry::FRESH,
                -1,
                file.raw(),
                at,
                usize::MAX,
            );
        }
        observe_passed::finish(pass, n as ssize_t);
    };
    // By an offset, which the kernel has moved past the bytes; then by the file's position.
    whole(9000, &9000);
    whole(11_000, core::ptr::null());
    call(b, Way::In, &bytes);
    assert_eq!((right(a, Way::Out, &bytes), reach(b)), (15, (0, 15)));
    // More than the file has.
    whole(20_000, &20_001);
    assert!(!a.prefix.wants(Way::Out));
    [a, b].into_iter().for_each(socket::free);
}

#[test]
fn tracks_are_freed_with_the_socket_but_not_under_a_call() {
    // SAFETY: no other thread frees them.
    let kept = |sock: &Socket| unsafe { sock.prefix.tracks() }.is_some();
    let sock = end(role::CONNECTING);
    assert!(!kept(sock));
    call(sock, Way::Out, b"abc");
    assert!(kept(sock));
    forget(sock);
    assert!(!kept(sock) && reach(sock) == (0, 0));
    call(sock, Way::Out, b"def");
    assert!(!kept(sock));
    socket::free(sock);

    let sock = end(role::CONNECTING);
    call(sock, Way::Out, b"abc");
    let under_way = pass(sock, Way::Out);
    socket::free(sock);
    assert!(kept(sock));
    // Too late: the direction has ended.
    over(under_way, &[b"def"], 3);
    assert_eq!(right(sock, Way::Out, b"abc"), 2);
    // What is left serves the next connection.
    sock.rx.calls.store(0, Ordering::SeqCst);
    sock.tx.calls.store(0, Ordering::SeqCst);
    sock.prefix.begin(false);
    assert_eq!(reach(sock), (0, 0));
    call(sock, Way::Out, b"new!");
    assert_eq!(right(sock, Way::Out, b"new!"), 3);
    // While an earlier call is still counted, nothing begins.
    sock.prefix.begin(true);
    assert!(!sock.prefix.wants(Way::Out));
}

#[test]
fn a_forked_child_goes_on_where_no_call_was_under_way() {
    let sock = end(role::CONNECTING);
    call(sock, Way::Out, b"abc");
    after_fork(sock);
    call(sock, Way::Out, b"d");
    assert_eq!(right(sock, Way::Out, b"abcd"), 3);
    let other = pass(sock, Way::In);
    after_fork(sock);
    assert!(!sock.prefix.wants(Way::Out) && !sock.prefix.wants(Way::In));
    assert_eq!(reach(sock), (0, 0));
    observe_passed::finish(other, -1);
    socket::free(sock);
}
