//! Both ends of a measurement, each in a process of its own: with the library, or without it.

use clap::Args;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A message to the other end, and the same back, over and over
    Latency,
    /// Bytes one way, as many as go
    Stream,
    /// New connections, each for one message and its way back
    Churn,
    /// Many connections at once, each as for the latency
    Many,
}

/// Connections of [`Kind::Many`].
pub const CONNECTIONS: usize = 64;
/// Before a measurement, so that a connection has left TCP if it does.
const WARM: Duration = Duration::from_millis(300);
/// Longer than any round trip, in ns.
const LONGEST_NS: u64 = 60_000_000_000;

/// What a run came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Round trips, or connections, a second.
    pub rate: f64,
    /// Bytes a second, one way.
    pub bytes: f64,
    /// Times of round trips, in ns: of so many in 100 the longest.
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    /// Processor time of both ends for 1 GB, in seconds.
    pub cpu_per_gb: f64,
}

/// The hidden command: one end.
#[derive(Args)]
pub struct Arguments {
    /// Where the other end is; without it this is the serving one
    #[arg(long)]
    peer: Option<SocketAddr>,
    /// What to measure
    #[arg(long, value_enum, default_value = "latency")]
    kind: Kind,
    /// Bytes of a message
    #[arg(long, default_value = "64")]
    size: usize,
    /// For so long
    #[arg(long, default_value = "1000")]
    ms: u64,
    /// Where to serve
    #[arg(long, default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))]
    listen: SocketAddr,
}

pub fn take_part(arguments: &Arguments) -> ExitCode {
    let done = match arguments.peer {
        None => serve(arguments.listen),
        Some(peer) => measure(
            peer,
            arguments.kind,
            arguments.size,
            Duration::from_millis(arguments.ms),
        )
        .and_then(|outcome| serde_json::to_writer(io::stdout(), &outcome).map_err(io::Error::from)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::complain(crate::run::reason(&error));
            ExitCode::FAILURE
        }
    }
}

// --- the serving end ---

/// What a connection begins with: how to answer, and the size of messages.
const ECHO: u8 = b'e';
const SINK: u8 = b's';
const HEAD: usize = 5;

/// Serves until it is ended. Prints its port.
fn serve(at: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(at)?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (end, _) = listener.accept()?;
        // What goes wrong with one connection is that one's client to say.
        std::thread::spawn(move || answer(end));
    }
}

fn answer(mut end: TcpStream) -> io::Result<()> {
    end.set_nodelay(true)?;
    let mut head = [0; HEAD];
    end.read_exact(&mut head)?;
    let [how, size @ ..] = head;
    let mut message = vec![0; u32::from_le_bytes(size) as usize];
    if how == SINK {
        let before = cpu_ns();
        while end.read(&mut message)? != 0 {}
        return end.write_all(&cpu_ns().saturating_sub(before).to_le_bytes());
    }
    loop {
        end.read_exact(&mut message)?;
        end.write_all(&message)?;
    }
}

// --- the measuring end ---

/// Connects, and says what is to come.
fn begin(peer: SocketAddr, how: u8, size: usize) -> io::Result<TcpStream> {
    let mut end = TcpStream::connect(peer)?;
    end.set_nodelay(true)?;
    let size = u32::try_from(size).map_err(|_| io::Error::other("too large a message"))?;
    let mut head = vec![how];
    head.extend(size.to_le_bytes());
    end.write_all(&head)?;
    Ok(end)
}

fn histogram() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).map_err(io::Error::other)
}

/// Processor time of this process so far, in ns.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a place of that type.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn measure(peer: SocketAddr, kind: Kind, size: usize, time: Duration) -> io::Result<Outcome> {
    match kind {
        Kind::Latency => {
            let times = echoes(peer, size, time)?;
            Ok(of_times(&times, size, time))
        }
        Kind::Stream => stream(peer, size, time),
        Kind::Churn => churn(peer, size, time),
        Kind::Many => {
            let threads: Vec<_> = (0..CONNECTIONS)
                .map(|_| std::thread::spawn(move || echoes(peer, size, time)))
                .collect();
            let mut all = histogram()?;
            for thread in threads {
                let times = thread
                    .join()
                    .map_err(|_| io::Error::other("a thread died"))??;
                all.add(times).map_err(io::Error::other)?;
            }
            Ok(of_times(&all, size, time))
        }
    }
}

/// Times of round trips on one connection.
fn echoes(peer: SocketAddr, size: usize, time: Duration) -> io::Result<Histogram<u64>> {
    let mut end = begin(peer, ECHO, size)?;
    let mut times = histogram()?;
    let mut message = vec![1; size];
    let begun = Instant::now();
    loop {
        let sent = Instant::now();
        end.write_all(&message)?;
        end.read_exact(&mut message)?;
        let took = sent.elapsed();
        if begun.elapsed() > WARM {
            times.saturating_record(took.as_nanos() as u64);
        }
        if begun.elapsed() > WARM + time {
            return Ok(times);
        }
    }
}

fn of_times(times: &Histogram<u64>, size: usize, time: Duration) -> Outcome {
    let rate = times.len() as f64 / time.as_secs_f64();
    Outcome {
        rate,
        bytes: rate * size as f64,
        p50_ns: times.value_at_quantile(0.5),
        p99_ns: times.value_at_quantile(0.99),
        p999_ns: times.value_at_quantile(0.999),
        cpu_per_gb: 0.0,
    }
}

fn stream(peer: SocketAddr, size: usize, time: Duration) -> io::Result<Outcome> {
    let mut end = begin(peer, SINK, size)?;
    let message = vec![1; size];
    let begun = Instant::now();
    while begun.elapsed() < WARM {
        end.write_all(&message)?;
    }
    let (begun, cpu) = (Instant::now(), cpu_ns());
    let mut sent = 0_u64;
    while begun.elapsed() < time {
        end.write_all(&message)?;
        sent += size as u64;
    }
    let took = begun.elapsed().as_secs_f64();
    let own = cpu_ns().saturating_sub(cpu) as f64;
    // All of it is read by then, what came before the measurement, too.
    end.shutdown(Shutdown::Write)?;
    let mut theirs = [0; 8];
    end.read_exact(&mut theirs)?;
    let share = took / (took + WARM.as_secs_f64());
    let cpu = (own + u64::from_le_bytes(theirs) as f64 * share) / 1e9;
    Ok(Outcome {
        rate: sent as f64 / size as f64 / took,
        bytes: sent as f64 / took,
        cpu_per_gb: cpu / (sent as f64 / 1e9).max(f64::MIN_POSITIVE),
        ..Outcome::default()
    })
}

fn churn(peer: SocketAddr, size: usize, time: Duration) -> io::Result<Outcome> {
    let mut times = histogram()?;
    let mut message = vec![1; size];
    let begun = Instant::now();
    while begun.elapsed() < time {
        let dialled = Instant::now();
        let mut end = begin(peer, ECHO, size)?;
        end.write_all(&message)?;
        end.read_exact(&mut message)?;
        drop(end);
        times.saturating_record(dialled.elapsed().as_nanos() as u64);
    }
    Ok(of_times(&times, size, time))
}
