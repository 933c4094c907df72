//! `sluice trace`: what happened to connections, in order, from a process that runs or from the
//! files of those that have ended.

use crate::counters::{Counters, Failure};
use crate::look::{Looker, Question};
use crate::process::{self, Shown};
use crate::{complain, is_written, run};
use clap::Args;
use serde::Serialize;
use sluice_stats::{Event, Kind, Reason, Role, TRACE_LAYOUT, TraceFile, Transport};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Number of the JSON's format: fields are added without a new one.
const FORMAT: u32 = 1;

/// Files of one name that are read, and events that are told of all files together, the last ones:
/// 16 files' worth.
const FILES: usize = 1024;
const EVENTS: usize = 1 << 20;

#[derive(Args)]
pub struct Arguments {
    /// A process id, the name of a program, or the FILE of `sluice run --trace`
    #[arg(value_name = "PID|NAME|FILE")]
    traced: String,

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

/// One event, and whose it is, for programs.
#[derive(Serialize)]
struct Line<'a> {
    format: u32,
    pid: i64,
    program: &'a str,
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

/// Events of several processes.
#[derive(Default)]
struct Told {
    /// The processes: number and program.
    whose: Vec<(i64, String)>,
    /// Each with the place of its process in `whose`.
    events: Vec<(usize, Event)>,
    /// Events that are too many, and were the first.
    left_out: usize,
}

impl Told {
    fn add_file(&mut self, file: &TraceFile) {
        let program = file.program();
        let program = program.split(|&byte| byte == 0).next().unwrap_or_default();
        let program = Shown(program).to_string();
        self.add(i64::from(file.pid()), program, file.log.events());
    }

    fn add(&mut self, pid: i64, program: String, events: impl Iterator<Item = Event>) {
        let whose = self.whose.len();
        self.whose.push((pid, program));
        self.events.extend(events.map(|event| (whose, event)));
        self.keep_last(EVENTS);
    }

    /// Keeps the last so many.
    fn keep_last(&mut self, count: usize) {
        if let Some(more @ 1..) = self.events.len().checked_sub(count) {
            self.events
                .select_nth_unstable_by_key(more - 1, |(_, event)| event.time_ns);
            self.events.drain(..more);
            self.left_out += more;
        }
    }

    /// What is wanted of them, in order, for programs and people.
    fn select(&mut self, arguments: &Arguments) {
        if self.left_out != 0 {
            complain(format_args!(
                "more than {EVENTS} events, the first {} are left out",
                self.left_out
            ));
        }
        if let Some(port) = arguments.port {
            self.events
                .retain(|(_, event)| event.local_port == port || event.peer_port == port);
        }
        self.events.sort_by_key(|(_, event)| event.time_ns);
        if let Some(last) = arguments.last {
            self.events.drain(..self.events.len().saturating_sub(last));
        }
    }

    fn process(&self, whose: usize) -> (i64, &str) {
        let whose = self.whose.get(whose);
        whose.map_or((0, ""), |(pid, program)| (*pid, program))
    }
}

pub fn trace(arguments: &Arguments) -> ExitCode {
    let found = if is_file(&arguments.traced) {
        from_files(Path::new(&arguments.traced))
    } else {
        from_processes(&arguments.traced)
    };
    let mut told = match found {
        Ok(told) => told,
        Err(why) => {
            why.into_iter().for_each(complain);
            return ExitCode::FAILURE;
        }
    };
    told.select(arguments);
    let mut out = io::BufWriter::new(io::stdout().lock());
    let written = if arguments.json {
        write_json(&mut out, &told)
    } else {
        write_text(&mut out, &told)
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

/// An error: lines that say why nothing can be told.
fn from_files(path: &Path) -> Result<Told, Vec<String>> {
    let shown = |path: &Path| Shown(path.as_os_str().as_bytes()).to_string();
    let all = files(path);
    if all.is_empty() {
        let why = match path.symlink_metadata() {
            Ok(_) => NO_FILE,
            Err(_) => "no trace was written there",
        };
        return Err(vec![format!("{}: {why}", shown(path))]);
    }
    let mut told = Told::default();
    let mut refused = Vec::new();
    for file in all.iter().take(FILES) {
        match read(file, file == path) {
            Ok(copied) => {
                told.add_file(copied.file());
            }
            Err(why) => refused.push(format!("{}: {why}", shown(file))),
        }
    }
    if let Some(more @ 1..) = all.len().checked_sub(FILES) {
        refused.push(format!("{}: {more} more files are left out", shown(path)));
    }
    if told.whose.is_empty() {
        return Err(refused);
    }
    refused.into_iter().for_each(complain);
    Ok(told)
}

/// A file's bytes, where a [`TraceFile`] may lie.
struct Copied(Vec<u64>);

impl Copied {
    fn file(&self) -> &TraceFile {
        // SAFETY: as long as one, aligned as one (integers of 8 bytes at most), and all of it
        // integers, any of which are valid.
        unsafe { &*self.0.as_ptr().cast() }
    }
}

const NO_FILE: &str = "is no regular file";

/// A file that can be read without a wait for anybody: no FIFO, no device, whose mere opening may
/// wait or have an effect. `is_named`: the user gave this path, and it may be a link. A file found
/// beside it is opened only if it is no link.
fn open(path: &Path, is_named: bool) -> Result<File, String> {
    let words = |error: io::Error| match error.raw_os_error() {
        Some(libc::ELOOP) => NO_FILE.to_owned(),
        _ => run::reason(&error),
    };
    let follow = if is_named { 0 } else { libc::O_NOFOLLOW };
    let name = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | follow)
        .open(path)
        .map_err(words)?;
    if !name.metadata().map_err(words)?.is_file() {
        return Err(NO_FILE.to_owned());
    }
    // O_NONBLOCK: does not wait for the holder of a lease on the file.
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", name.as_raw_fd()))
        .map_err(words)
}

fn read(path: &Path, is_named: bool) -> Result<Copied, String> {
    let len = size_of::<TraceFile>();
    let mut bytes = Vec::new();
    open(path, is_named)?
        .take(len as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| run::reason(&error))?;
    understood(bytes)
}

/// The first bytes of a file, one more of them than a trace has if there are so many.
fn understood(mut bytes: Vec<u8>) -> Result<Copied, String> {
    let len = size_of::<TraceFile>();
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

/// An error: as of [`from_files`].
fn from_processes(what: &str) -> Result<Told, Vec<String>> {
    let pid = what.parse::<i32>().ok();
    let pids = match pid {
        Some(pid) => vec![pid],
        None => {
            let me = std::process::id() as i32;
            let all =
                process::all().map_err(|error| vec![format!("/proc: {}", run::reason(&error))])?;
            all.into_iter().filter(|&pid| pid != me).collect()
        }
    };
    let question = Question {
        name: Some(what).filter(|_| pid.is_none()),
        is_idle: false,
        listed: 0,
    };
    let mut answers = Vec::new();
    Looker::default().look(&pids, question, |pid, answer| {
        // Connections are not wanted, so their table may be broken.
        answers.push((pid, answer.map(|counters| of_process(&counters))));
    });
    answers.sort_by_key(|(pid, _)| *pid);
    if answers.is_empty() {
        let what = Shown(what.as_bytes());
        let why = format!("no process is named {what}, and there is no such trace file");
        return Err(vec![why]);
    }
    let mut told = Told::default();
    let mut refused = Vec::new();
    for (pid, answer) in answers {
        match answer {
            Ok((name, events)) => told.add(i64::from(pid), name, events.into_iter()),
            Err(why) => refused.push(in_words(pid, &why)),
        }
    }
    if told.whose.is_empty() {
        return Err(refused);
    }
    refused.into_iter().for_each(complain);
    Ok(told)
}

fn in_words(pid: i32, why: &Failure) -> String {
    match process::name(pid) {
        name if name.is_empty() => format!("pid {pid}: {why}"),
        name => format!("{name} (pid {pid}): {why}"),
    }
}

fn of_process(counters: &Counters) -> (String, Vec<Event>) {
    let events = counters.root().events.events();
    let own = events.filter(|_| !counters.is_copy);
    (counters.name.clone(), own.collect())
}

fn connection(event: &Event) -> String {
    format!("{}.{}", event.slot, event.generation / 2)
}

fn line<'a>((pid, program): (i64, &'a str), event: &Event) -> Line<'a> {
    let kind = Kind::from_u16(event.kind);
    Line {
        format: FORMAT,
        pid,
        program,
        time_ns: event.time_ns,
        connection: connection(event),
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
        Kind::SentPages => bytes("sent from a file's own pages"),
        Kind::Resent => bytes("sent again by TCP"),
        Kind::AdvertUsed => "used the reader's buffer".to_owned(),
        Kind::AdvertStale => "the reader's buffer came too late".to_owned(),
        Kind::AdvertGone => "the reader had taken its buffer back".to_owned(),
        Kind::SendSpun => "found room while it was spinning".to_owned(),
        Kind::SendSlept => "slept for room".to_owned(),
        Kind::WokeReader => "woke the reader".to_owned(),
        Kind::GotTcp => bytes("got by TCP"),
        Kind::GotDirect => bytes("got into the program's buffer"),
        Kind::GotRing => bytes("got from the ring"),
        Kind::GotFile => bytes("got from a file"),
        Kind::GotPages => bytes("got from a file's own pages"),
        Kind::GotResent => bytes("got again by TCP"),
        Kind::OwnAdvertUsed => "its buffer was used".to_owned(),
        Kind::OwnAdvertStale => "its buffer came too late".to_owned(),
        Kind::OwnAdvertRevoked => "took its buffer back".to_owned(),
        Kind::ReceiveSpun => "found bytes while it was spinning".to_owned(),
        Kind::ReceiveSlept => "slept for bytes".to_owned(),
        Kind::WokeWriter => "woke the writer".to_owned(),
    }
}

fn write_json(out: &mut impl Write, told: &Told) -> io::Result<()> {
    for (whose, event) in &told.events {
        serde_json::to_writer(&mut *out, &line(told.process(*whose), event))?;
        writeln!(out)?;
    }
    out.flush()
}

/// Times count from the first event on. A connection is named by its ports, as soon as they are
/// known.
fn write_text(out: &mut impl Write, told: &Told) -> io::Result<()> {
    let begin = told.events.first().map_or(0, |(_, event)| event.time_ns);
    let key = |whose: usize, event: &Event| (whose, event.slot, event.generation / 2);
    let mut ports = HashMap::new();
    for (whose, event) in &told.events {
        if event.local_port != 0 {
            ports.insert(key(*whose, event), (event.local_port, event.peer_port));
        }
    }
    let first = told.events.first().map(|(whose, _)| told.process(*whose).0);
    let several = told
        .events
        .iter()
        .any(|(whose, _)| Some(told.process(*whose).0) != first);
    for (whose, event) in &told.events {
        let since = event.time_ns - begin;
        write!(
            out,
            "{:>6}.{:06}  ",
            since / 1_000_000_000,
            since / 1000 % 1_000_000
        )?;
        if several {
            let (pid, program) = told.process(*whose);
            write!(out, "{pid} {program:<15}  ")?;
        }
        match ports.get(&key(*whose, event)) {
            Some((local, peer)) => write!(out, "{local:>5} - {peer:<5}  ")?,
            None => write!(out, "{:>13}  ", connection(event))?,
        }
        writeln!(out, "{}", words(Kind::from_u16(event.kind), event.value))?;
    }
    out.flush()
}

/// What `sluice trace` makes of a file of these bytes, for people and as JSON; `None`: it is
/// refused.
#[cfg(feature = "fuzzing")]
pub fn told(bytes: Vec<u8>) -> Option<[Vec<u8>; 2]> {
    told_of(understood(bytes).ok()?.file())
}

/// The same of a file that may be none.
#[cfg(feature = "fuzzing")]
pub fn told_of(file: &TraceFile) -> Option<[Vec<u8>; 2]> {
    file.layout().filter(|layout| *layout == TRACE_LAYOUT)?;
    let mut told = Told::default();
    told.add_file(file);
    told.events.sort_by_key(|(_, event)| event.time_ns);
    let mut both = [Vec::new(), Vec::new()];
    let [text, json] = &mut both;
    write_text(text, &told).ok()?;
    write_json(json, &told).ok()?;
    Some(both)
}
