//! The bodies of the models on real threads, and thousands of streams over an arena between threads
//! and between processes, demoted at random. `SLUICE_STRESS_SECONDS` sets the length of each test,
//! `SLUICE_STRESS_SEED` repeats one.
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

mod common;

use common::cursors::{self, Plan, Real};
use common::link::{Advance, End, Tally, Teller, Third, store, third_party};
use common::sleep::{self, Look, handshake, sleeping_reader};
use sluice_fabric::arena::Arena;
use sluice_fabric::cursors::Word;
use sluice_fabric::doorbell::Slot;
use sluice_fabric::shm::Link;
use sluice_fabric::sys;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How long each test runs: short enough for every `cargo test`.
fn span() -> Duration {
    let seconds = std::env::var("SLUICE_STRESS_SECONDS").ok();
    let seconds = seconds.and_then(|s| s.parse().ok());
    seconds.map_or(Duration::from_millis(1000), Duration::from_secs_f64)
}

fn seed() -> u64 {
    let seed = std::env::var("SLUICE_STRESS_SEED").ok();
    let seed = seed.and_then(|s| s.parse().ok()).unwrap_or_else(|| {
        let mut bytes = [0; 8];
        sys::random(&mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    });
    println!("SLUICE_STRESS_SEED={seed}");
    seed
}

/// Runs `bodies` in turn until the time is over.
fn repeat(bodies: &[fn()]) {
    let end = Instant::now() + span();
    let mut rounds = 0u64;
    while Instant::now() < end {
        for body in bodies {
            body();
        }
        rounds += 1;
    }
    println!("{rounds} rounds of {} bodies", bodies.len());
}

const SENDS: Plan = Plan {
    sends: &[1, 2, 1, 2, 1],
    writer_demotes: None,
    recvs: 8,
    reader_demotes: None,
    third: cursors::Third::Absent,
};

#[test]
fn demotions() {
    repeat(&[
        || {
            cursors::demotion::<Real>(Plan {
                third: cursors::Third::Demotes,
                ..SENDS
            })
        },
        || {
            cursors::demotion::<Real>(Plan {
                third: cursors::Third::DiesHalfway,
                ..SENDS
            })
        },
        || {
            cursors::demotion::<Real>(Plan {
                writer_demotes: Some(3),
                ..SENDS
            })
        },
        || {
            cursors::demotion::<Real>(Plan {
                reader_demotes: Some(2),
                ..SENDS
            })
        },
        || {
            cursors::demotion::<Real>(Plan {
                writer_demotes: Some(2),
                reader_demotes: Some(2),
                third: cursors::Third::Demotes,
                ..SENDS
            });
        },
        || cursors::ring::<Real>(&[1, 2, 2, 1, 1, 2, 1, 2], 2),
    ]);
}

#[test]
fn handshakes() {
    use sleep::Plan;
    const MANY: Plan = Plan {
        look: Look::Marks,
        wakers: &[(0, 20)],
        rounds: 15,
    };
    repeat(&[
        || handshake::<Slot>(MANY),
        || {
            handshake::<Slot>(Plan {
                look: Look::Word,
                ..MANY
            })
        },
        || {
            handshake::<Slot>(Plan {
                wakers: &[(0, 10), (1, 10)],
                ..MANY
            })
        },
        || {
            handshake::<Slot>(Plan {
                wakers: &[(0, 10), (64, 10), (1, 10)],
                ..MANY
            })
        },
        || sleeping_reader::<Slot>(&[1, 2, 1, 1], false, Look::Word),
        || sleeping_reader::<Slot>(&[1, 2, 1, 1], false, Look::Marks),
        || sleeping_reader::<Slot>(&[1, 2, 1, 1], true, Look::Marks),
    ]);
}

/// Two ends of a link and what the kernel gives them.
struct Parts {
    bells: [sys::Fd; 2],
    tcp: [UnixStream; 2],
}

impl Parts {
    fn new(patience: Duration) -> Self {
        let bell = || sys::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).unwrap();
        let (a, b) = UnixStream::pair().unwrap();
        for end in [&a, &b] {
            end.set_read_timeout(Some(patience)).unwrap();
            end.set_write_timeout(Some(patience)).unwrap();
        }
        Self {
            bells: [bell(), bell()],
            tcp: [a, b],
        }
    }

    fn bells(&self) -> [RawFd; 2] {
        [self.bells[0].raw(), self.bells[1].raw()]
    }
}

/// Long enough for a loaded machine; a wake-up that is lost is lost for ever.
const PATIENCE: Duration = Duration::from_secs(20);
/// For the mutants, of which some hang.
const SHORT: Duration = Duration::from_millis(300);

/// Writer and reader as threads of this process, with a third one that demotes.
fn threads(
    seed: u64,
    span: Duration,
    patience: Duration,
    [tail, head]: [Advance; 2],
) -> Result<Tally, String> {
    let arena = Arena::create_local().unwrap();
    let parts = Parts::new(patience);
    let bells = parts.bells();
    let [tcp0, tcp1] = parts.tcp;
    let (tell, order) = channel();
    let (answer, answers) = channel();
    let (third, teller) = (Third(order, answer), Teller(tell, answers));
    let end = |side, tcp, advance| End {
        arena: &arena,
        side,
        bells,
        tcp,
        seed,
        advance,
        patience,
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| end(1, tcp1, head).read_streams());
        scope.spawn(|| third_party(&arena, bells, &{ third }, seed));
        let wrote = end(0, tcp0, tail).write_streams(Instant::now() + span, Some(teller));
        let read = reader.join().unwrap();
        let tally = wrote?;
        read.map(|()| tally)
    })
}

/// Names the child's parameters: seed, patience in milliseconds, 1 for the seeded bug.
const CHILD: &str = "SLUICE_STRESS_CHILD";
/// Descriptors of the child: the arena, both doorbells, TCP.
const CHILD_FDS: RawFd = 200;

/// Not a test: the reader's process of `processes`.
#[test]
fn reader_process() {
    let Ok(parameters) = std::env::var(CHILD) else {
        return;
    };
    let numbers: Vec<u64> = parameters.split(' ').map(|n| n.parse().unwrap()).collect();
    let fd = |i| sys::Fd::own(CHILD_FDS + i);
    let arena = Arena::adopt(&fd(0)).unwrap();
    // SAFETY: the parent has put a socket of ours there.
    let tcp = unsafe { UnixStream::from_raw_fd(CHILD_FDS + 3) };
    let mut end = End {
        arena: &arena,
        side: 1,
        bells: [CHILD_FDS + 1, CHILD_FDS + 2],
        tcp,
        seed: numbers[0],
        advance: if numbers[2] == 0 {
            Word::advance
        } else {
            store
        },
        patience: Duration::from_millis(numbers[1]),
    };
    if let Err(why) = end.read_streams() {
        println!("{why}");
        std::process::exit(1);
    }
}

/// The writer here, the reader in a process of its own that maps the arena anew.
fn processes(
    seed: u64,
    span: Duration,
    patience: Duration,
    reader_stores: bool,
) -> Result<Tally, String> {
    let (arena, memory) = Arena::create().unwrap();
    let parts = Parts::new(patience);
    let bells = parts.bells();
    let [tcp0, tcp1] = parts.tcp;
    let inherited = [memory.raw(), bells[0], bells[1], tcp1.as_raw_fd()];
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "reader_process", "--nocapture"])
        .env(
            CHILD,
            format!(
                "{seed} {} {}",
                patience.as_millis(),
                u8::from(reader_stores)
            ),
        )
        .stdout(Stdio::piped());
    // SAFETY: dup2 is safe between fork and exec.
    unsafe {
        child.pre_exec(move || {
            for (i, fd) in inherited.iter().enumerate() {
                if libc::dup2(*fd, CHILD_FDS + i as RawFd) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let child = child.spawn().unwrap();
    drop(tcp1);
    let mut end = End {
        arena: &arena,
        side: 0,
        bells,
        tcp: tcp0,
        seed,
        advance: Word::advance,
        patience,
    };
    let wrote = end.write_streams(Instant::now() + span, None);
    // A reader in the middle of a stream sees the end of TCP.
    drop(end);
    let output = child.wait_with_output().unwrap();
    if !output.status.success() {
        return Err(format!(
            "{wrote:?}; {}",
            String::from_utf8_lossy(&output.stdout)
        ));
    }
    wrote
}

fn report(what: &str, result: Result<Tally, String>) {
    let tally = result.unwrap_or_else(|why| panic!("{what}: {why}"));
    println!("{what}: {tally:?}");
    // A handful even on a machine with no time for us; usually thousands.
    assert!(tally.streams > 20, "{what}: too few streams for a test");
    assert!(tally.ring_len > 0 && tally.resent_len > 0 && tally.tcp_len > 0);
}

/// The bug must be found, if need be with several seeds.
fn must_fail(what: &str, run: impl Fn(u64) -> Result<Tally, String>) {
    let first = seed();
    for n in 0..20 {
        if let Err(why) = run(first.wrapping_add(n)) {
            println!("{what}: found with seed {n}: {why}");
            return;
        }
    }
    panic!("{what}: not found");
}

#[test]
fn streams_between_threads() {
    let result = threads(seed(), span(), PATIENCE, [Word::advance, Word::advance]);
    report("threads", result);
}

#[test]
fn streams_between_processes() {
    report("processes", processes(seed(), span(), PATIENCE, false));
}

#[test]
fn a_reader_that_stores_is_found() {
    must_fail("reader", |s| {
        threads(s, span(), SHORT, [Word::advance, store])
    });
}

#[test]
fn a_writer_that_stores_is_found() {
    must_fail("writer", |s| {
        threads(s, span(), SHORT, [store, Word::advance])
    });
}

#[test]
fn a_reader_process_that_stores_is_found() {
    must_fail("reader process", |s| processes(s, span(), SHORT, true));
}

/// One end leaves a stream while the other gives its slot out again: the ring lent anew is not
/// taken for the old one.
#[test]
fn a_slot_is_given_out_again_while_its_last_user_is_still_leaving() {
    let arena = Arena::create_local().unwrap();
    let [giver, joiner] = Link::open_both(arena, [1, 2], false).unwrap();
    const NONE: u32 = u32::MAX;
    const OVER: u32 = NONE - 1;
    let to_leave = Arc::new(AtomicU32::new(NONE));
    let left = to_leave.clone();
    let leaver = std::thread::spawn(move || {
        loop {
            match left.load(Ordering::Acquire) {
                NONE => std::hint::spin_loop(),
                OVER => break,
                index => {
                    joiner.leave_stream(index);
                    left.store(NONE, Ordering::Release);
                }
            }
        }
    });
    // All slots but one are in use, so that one is given out as soon as both have marked it.
    let others: Vec<u32> = std::iter::from_fn(|| giver.give_stream(4096, 1)).collect();
    let last = *others.last().unwrap();
    assert!(joiner.join_stream(last, 4096, 1));
    let end = Instant::now() + span();
    while Instant::now() < end {
        giver.leave_stream(last);
        to_leave.store(last, Ordering::Release);
        let again = loop {
            if let Some(again) = giver.give_stream(4096, 1) {
                break again;
            }
        };
        assert_eq!(again, last);
        // Refused while this end is still in it; never joined with the old ring's record.
        while !joiner.join_stream(last, 4096, 1) {
            std::hint::spin_loop();
        }
        while to_leave.load(Ordering::Acquire) != NONE {
            std::hint::spin_loop();
        }
        assert!(joiner.lent_for(last).is_some(), "the ring lent anew");
    }
    to_leave.store(OVER, Ordering::Release);
    leaver.join().unwrap();
    assert_eq!(joiner.stream_count(), 1);
}
