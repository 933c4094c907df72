//! `sluice stat`: which processes to look at, and what to say when there is nothing to show.

use crate::counters::{self, Failure};
use crate::process;
use crate::prometheus;
use crate::report::{Process, Refused, Report};
use crate::table;
use crate::{complain, is_written};
use clap::Args;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Args)]
#[command(
    after_help = "Looking into a process needs the right to trace it (ptrace(2)): the same user, \
    or root where kernel.yama.ptrace_scope is set.\n\nExit status: 0 if at least one process was \
    shown, else 1; 2 for wrong arguments."
)]
pub struct Arguments {
    /// A process id, or the name of a program; all processes with Sluice if left out
    #[arg(value_name = "PID|NAME", value_parser = who)]
    who: Option<String>,

    /// Print JSON, in a format that stays compatible
    #[arg(long)]
    json: bool,

    /// Print the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,

    /// Again and again, every so many seconds; JSON is one line each time then
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
}

pub fn seconds(text: &str) -> Result<Duration, &'static str> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds from 0.01 to 86400 is expected"),
    }
}

/// Programs go by their base name, also if asked for by a path.
pub fn who(text: &str) -> Result<String, &'static str> {
    match text.rsplit('/').next() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err("a process id or the name of a program is expected"),
    }
}

pub fn stat(arguments: &Arguments) -> ExitCode {
    let Some(pause) = arguments.watch else {
        return match show(arguments) {
            Shown::Some => ExitCode::SUCCESS,
            Shown::None | Shown::Unwanted => ExitCode::FAILURE,
        };
    };
    while show(arguments) != Shown::Unwanted {
        std::thread::sleep(pause);
    }
    ExitCode::FAILURE
}

/// What came of one look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// At least one process was shown.
    Some,
    /// There was none to show.
    None,
    /// Nobody reads on, or nothing can be written.
    Unwanted,
}

fn show(arguments: &Arguments) -> Shown {
    let mut stdout = io::stdout().lock();
    let is_terminal = stdout.is_terminal();
    let is_table = !arguments.json && !arguments.prometheus;
    // Who reads JSON gets a report in any case.
    let report = collect(arguments.who.as_deref());
    if arguments.watch.is_some() && is_table && is_terminal {
        let _ = write!(stdout, "\x1b[H\x1b[2J");
    }
    let report = report.unwrap_or_else(|why| {
        complain(why);
        Report::new()
    });
    for refused in &report.refused {
        complain(format_args!(
            "{} (pid {}): {}",
            refused.name, refused.pid, refused.why
        ));
    }
    let written = if arguments.json {
        write_json(&mut stdout, &report, arguments.watch.is_some())
    } else if arguments.prometheus {
        prometheus::write(&mut stdout, &report)
    } else {
        write_tables(&mut stdout, &report, is_terminal)
    };
    let written = written.and_then(|()| stdout.flush());
    let is_seen = written.is_ok() || arguments.watch.is_none();
    if !is_written(written) || !is_seen {
        return Shown::Unwanted;
    }
    if report.processes.is_empty() {
        Shown::None
    } else {
        Shown::Some
    }
}

/// Looks at the processes that were asked for; an error if there is nothing to say of any of them.
pub fn collect(who: Option<&str>) -> Result<Report, String> {
    let me = std::process::id() as i32;
    let all = || process::all().map_err(|error| format!("/proc: {}", crate::run::reason(&error)));
    match who {
        None => {
            let mut report = Report::new();
            for pid in all()?.into_iter().filter(|&pid| pid != me) {
                look(&mut report, pid, false);
            }
            if report.is_empty() {
                return Err("no process that may be looked into runs with Sluice".to_owned());
            }
            Ok(report)
        }
        Some(text) => match text.parse::<i32>() {
            Ok(pid) => by_pid(pid),
            Err(_) => by_name(text, all()?.into_iter().filter(|&pid| pid != me)),
        },
    }
}

fn by_pid(pid: i32) -> Result<Report, String> {
    let mut report = Report::new();
    match counters::read(pid) {
        Ok(counters) => report.processes.push(shown(&counters)),
        Err(why @ Failure::NoProcess) => return Err(format!("pid {pid}: {why}")),
        Err(why @ Failure::NoSluice) => {
            return Err(format!("{} (pid {pid}): {why}", process::name(pid)));
        }
        Err(why) => report.refused.push(refused(pid, &why)),
    }
    Ok(report)
}

fn by_name(name: &str, pids: impl Iterator<Item = i32>) -> Result<Report, String> {
    let shown_name = process::Shown(name.as_bytes()).to_string();
    let named: Vec<_> = pids.filter(|&pid| process::is_named(pid, name)).collect();
    if named.is_empty() {
        return Err(format!("no process is named {shown_name}"));
    }
    let mut report = Report::new();
    for pid in named {
        look(&mut report, pid, true);
    }
    if report.is_empty() {
        return Err(format!("{shown_name} runs without Sluice"));
    }
    Ok(report)
}

/// Adds one process to the report, if there is something to say about it.
fn look(report: &mut Report, pid: i32, was_named: bool) {
    match counters::read(pid) {
        Ok(counters) => report.processes.push(shown(&counters)),
        // Gone, or none of ours.
        Err(Failure::NoProcess | Failure::NoSluice) => {}
        // Other users' processes hide even whether they have the library.
        Err(Failure::NotAllowed) if !was_named && process::mappings(pid).is_err() => {}
        Err(why) => report.refused.push(refused(pid, &why)),
    }
}

fn refused(pid: i32, why: &Failure) -> Refused {
    Refused {
        pid,
        name: process::name(pid),
        why: why.to_string(),
    }
}

fn shown(counters: &counters::Counters) -> Process {
    Process::new(counters, sluice_stats::monotonic_ns())
}

fn write_json(to: &mut impl Write, report: &Report, on_a_line: bool) -> io::Result<()> {
    if on_a_line {
        serde_json::to_writer(&mut *to, report)?;
    } else {
        serde_json::to_writer_pretty(&mut *to, report)?;
    }
    writeln!(to)
}

fn write_tables(to: &mut impl Write, report: &Report, is_terminal: bool) -> io::Result<()> {
    for (number, process) in report.processes.iter().enumerate() {
        if number > 0 {
            writeln!(to)?;
        }
        table::write(to, process, is_terminal)?;
    }
    Ok(())
}
