//! `sluice trace`: what happened to connections, in order, from a process that runs or from the files of those that have ended.

use crate::counters::{self, Counters};
use crate::process::{self, Shown};
use crate::{complain, is_written, run};
use clap::Args;
use serde::Serialize;
use sluice_stats::{Event, Kind, Reason, Role, TRACE_LAYOUT, TraceFile, Transport};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Number of the JSON's format: fields are added without a new one.
const FORMAT: u32 = 1;

#[derive(Args)]
#[command(
    after_help = "A process always keeps its last events of connections that left TCP, or tried to. Under `sluice run --trace FILE` \
    (SLUICE_TRACE) each process writes every message, the last 65536, to FILE.PID; FILE names all of these. What a file \
    tells is there also when the process was killed.\n\nExit status: 0 if there was something to read, else 1; 2 for wrong arguments."
)]
pub struct Arguments {
    /// A process id, the name of a program, or the FILE of `sluice run --trace`
    #[arg(value_name = "PID|NAME|FILE")]
    what: String,

    /// Only connections with this local or peer port
    #[arg(long)]
    port: Option<u16>,

    /// Only the last so many events
    #[arg(long, value_name = "EVENTS")]
    last: Option<usize>,

    /// Print JSON, one object a line, in a format that stays compatible
    #[arg(long)]
    json: bool,
}

/// One event, and whose it is.
#[derive(Serialize)]
struct Line {
    format: u32,
    pid: i64,
    program: String,
    /// On CLOCK_MONOTONIC, which begins with the host.
    time_ns: u64,
    /// Tells the connections of a process apart.
    connection: String,
    local_port: u16,
    peer_port: u16,
    event: String,
    value: u64,
    words: String,
}

pub fn trace(arguments: &Arguments) -> ExitCode {
    let found = if is_file(&arguments.what) {
        from_files(Path::new(&arguments.what))
    } else {
        from_processes(&arguments.what)
    };
    let mut lines = match found {
        Ok(lines) => lines,
        Err(why) => {
            complain(why);
            return ExitCode::FAILURE;
        }
    };
    if let Some(port) = arguments.port {
        lines.retain(|line| line.local_port == port || line.peer_port == port);
    }
    lines.sort_by_key(|line| line.time_ns);
    if let Some(last) = arguments.last {
        lines.drain(..lines.len().saturating_sub(last));
    }
    let written = if arguments.json {
        write_json(&lines)
    } else {
        write_text(&lines)
    };
    if is_written(written) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// A path, or what `sluice run --trace` was told, in this directory?
fn is_file(what: &str) -> bool {
    what.parse::<i32>().is_err() && (what.contains('/') || !files(Path::new(what)).is_empty())
}

/// The file itself, or all of its processes.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let Some(name) = path.file_name() else {
        return Vec::new();
    };
    let entries = fs::read_dir(folder_of(path));
    let is_ours = |file: &OsStr| {
        let rest = file.as_bytes().strip_prefix(name.as_bytes());
        let rest = rest.and_then(|rest| rest.strip_prefix(b"."));
        rest.is_some_and(|rest| {
            !rest.is_empty() && rest.iter().all(|b| b.is_ascii_digit() || *b == b'.')
        })
    };
    let mut found: Vec<_> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_ours(&entry.file_name()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// The directory that the file is in.
pub fn folder_of(file: &Path) -> &Path {
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn from_files(path: &Path) -> Result<Vec<Line>, String> {
    let shown = |path: &Path| Shown(path.as_os_str().as_bytes()).to_string();
    let all = files(path);
    if all.is_empty() {
        return Err(format!("{}: no trace was written there", shown(path)));
    }
    let mut lines = Vec::new();
    let mut refused = Vec::new();
    let mut was_read = false;
    for path in &all {
        match read(path) {
            Ok(copied) => {
                let file = copied.file();
                was_read = true;
                let program = file.program();
                let program = program.split(|&byte| byte == 0).next().unwrap_or_default();
                let program = Shown(program).to_string();
                let pid = i64::from(file.pid());
                lines.extend(file.log.events().map(|event| line(pid, &program, &event)));
            }
            Err(why) => refused.push(format!("{}: {why}", shown(path))),
        }
    }
    if !was_read {
        return Err(refused.join("; "));
    }
    refused.into_iter().for_each(complain);
    Ok(lines)
}

/// A file's bytes, where a [`TraceFile`] may lie.
struct Copied(Vec<u64>);

impl Copied {
    fn file(&self) -> &TraceFile {
        // SAFETY: as long as one, aligned as one (integers of 8 bytes at most), and all of it integers, any of which are valid.
        unsafe { &*self.0.as_ptr().cast() }
    }
}

fn read(path: &Path) -> Result<Copied, String> {
    let len = size_of::<TraceFile>();
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(len as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| run::reason(&error))?;
    let is_whole = bytes.len() == len;
    bytes.resize(len, 0);
    let words = bytes
        .chunks_exact(8)
        .map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
    let copied = Copied(words.collect());
    match copied.file().layout() {
        Some(TRACE_LAYOUT) if is_whole => Ok(copied),
        Some(TRACE_LAYOUT) => Err("is cut off".to_owned()),
        Some(layout) => Err(format!(
            "has layout {layout}, and this tool ({}) reads layout {TRACE_LAYOUT}",
            env!("CARGO_PKG_VERSION")
        )),
        None => Err("is no trace of Sluice".to_owned()),
    }
}

fn from_processes(what: &str) -> Result<Vec<Line>, String> {
    let pids = match what.parse::<i32>() {
        Ok(pid) => vec![pid],
        Err(_) => {
            let me = std::process::id() as i32;
            let all = process::all().map_err(|error| format!("/proc: {}", run::reason(&error)))?;
            let mut named = all.into_iter().filter(|&pid| pid != me);
            let named: Vec<_> = named
                .by_ref()
                .filter(|&pid| process::is_named(pid, what))
                .collect();
            if named.is_empty() {
                let what = Shown(what.as_bytes());
                return Err(format!("no process is named {what}, and no trace is there"));
            }
            named
        }
    };
    let mut lines = Vec::new();
    let mut refused = Vec::new();
    let mut was_read = false;
    for pid in pids {
        match counters::read(pid) {
            Ok(counters) => {
                was_read = true;
                lines.extend(of_process(&counters));
            }
            Err(why) => refused.push(match process::name(pid) {
                name if name.is_empty() => format!("pid {pid}: {why}"),
                name => format!("{name} (pid {pid}): {why}"),
            }),
        }
    }
    if !was_read {
        return Err(refused.join("; "));
    }
    refused.into_iter().for_each(complain);
    Ok(lines)
}

fn of_process(counters: &Counters) -> Vec<Line> {
    if counters.is_copy {
        return Vec::new();
    }
    let events = counters.root.events.events();
    events
        .map(|event| line(i64::from(counters.pid), &counters.name, &event))
        .collect()
}

fn line(pid: i64, program: &str, event: &Event) -> Line {
    let kind = Kind::from_u16(event.kind);
    Line {
        format: FORMAT,
        pid,
        program: program.to_owned(),
        time_ns: event.time_ns,
        connection: format!("{}.{}", event.slot, event.generation / 2),
        local_port: event.local_port,
        peer_port: event.peer_port,
        event: kind.map_or_else(|| event.kind.to_string(), |kind| kind.code().to_owned()),
        value: event.value,
        words: words(kind, event.value),
    }
}

/// What happened, for people.
fn words(kind: Option<Kind>, value: u64) -> String {
    let reason = || match u16::try_from(value).ok().and_then(Reason::from_u16) {
        Some(reason) => reason.words().to_owned(),
        None => format!("reason {value}"),
    };
    let bytes = |what: &str| format!("{what}: {value} bytes");
    let Some(kind) = kind else {
        return format!("something that this tool does not know ({value})");
    };
    match kind {
        Kind::Opened if value == Role::Accepted as u64 => "accepted".to_owned(),
        Kind::Opened => "connecting".to_owned(),
        Kind::Named => format!("descriptor {value}"),
        Kind::Stays => format!("stays on TCP: {}", reason()),
        Kind::Awaits => format!("on TCP so far: {}", reason()),
        Kind::Upgraded if value == Transport::Verbs as u64 => "left TCP for RDMA".to_owned(),
        Kind::Upgraded => "left TCP for shared memory".to_owned(),
        Kind::Demoted => format!("back to TCP: {}", reason()),
        Kind::Closed => "closed".to_owned(),
        Kind::SentTcp => bytes("sent by TCP"),
        Kind::SentDirect => bytes("sent into the reader's buffer"),
        Kind::SentRing => bytes("sent by the ring"),
        Kind::SentFile => bytes("sent from a file"),
        Kind::Resent => bytes("sent again by TCP"),
        Kind::AdvertUsed => "used the reader's buffer".to_owned(),
        Kind::AdvertStale => "the reader's buffer came too late".to_owned(),
        Kind::AdvertGone => "the reader had taken its buffer back".to_owned(),
        Kind::SendSpun => "had room while it span".to_owned(),
        Kind::SendSlept => "slept for room".to_owned(),
        Kind::WokeReader => "woke the reader".to_owned(),
        Kind::GotTcp => bytes("got by TCP"),
        Kind::GotDirect => bytes("got into the program's buffer"),
        Kind::GotRing => bytes("got from the ring"),
        Kind::GotFile => bytes("got from a file"),
        Kind::GotResent => bytes("got again by TCP"),
        Kind::OwnAdvertUsed => "its buffer was used".to_owned(),
        Kind::OwnAdvertStale => "its buffer came too late".to_owned(),
        Kind::OwnAdvertRevoked => "took its buffer back".to_owned(),
        Kind::ReceiveSpun => "had bytes while it span".to_owned(),
        Kind::ReceiveSlept => "slept for bytes".to_owned(),
        Kind::WokeWriter => "woke the writer".to_owned(),
    }
}

fn write_json(lines: &[Line]) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for line in lines {
        serde_json::to_writer(&mut out, line)?;
        writeln!(out)?;
    }
    out.flush()
}

/// Times count from the first event on. A connection is named by its ports, as soon as they are known.
fn write_text(lines: &[Line]) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let begin = lines.first().map_or(0, |line| line.time_ns);
    let mut ports: HashMap<(i64, &str), (u16, u16)> = HashMap::new();
    for line in lines.iter().filter(|line| line.local_port != 0) {
        ports.insert(
            (line.pid, &line.connection),
            (line.local_port, line.peer_port),
        );
    }
    let several = lines
        .iter()
        .any(|line| Some(line.pid) != lines.first().map(|l| l.pid));
    for line in lines {
        let since = line.time_ns - begin;
        write!(
            out,
            "{:>6}.{:06}  ",
            since / 1_000_000_000,
            since / 1000 % 1_000_000
        )?;
        if several {
            write!(out, "{} {:<15}  ", line.pid, line.program)?;
        }
        match ports.get(&(line.pid, line.connection.as_str())) {
            Some((local, peer)) => write!(out, "{local:>5} - {peer:<5}  ")?,
            None => write!(out, "{:>13}  ", line.connection)?,
        }
        writeln!(out, "{}", line.words)?;
    }
    out.flush()
}
