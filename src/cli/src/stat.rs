//! `sluice stat`: which processes to look at, and what to say when there is nothing to show.

use crate::counters::{Failure, wire::Answer};
use crate::look::{Looker, Question};
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
    or root where kernel.yama.ptrace_scope is set.\n\nA process that has not answered after a second is left out, and what is left out of \
    another one is said. With --watch such a process is asked again after 10 seconds, then after 20, and so on.\n\nExit status: 0 if at least one process was \
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

    /// List up to so many connections of a process; all of them are counted
    #[arg(long, value_name = "COUNT", default_value_t = LISTED, value_parser = clap::value_parser!(u32).range(..=MOST_LISTED))]
    connections: u32,

    /// Again and again, every so many seconds; JSON is one line each time then
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
}

/// Connections of one process that are listed if nobody says more: their JSON is less than a
/// megabyte.
const LISTED: u32 = 500;

/// Connections that are listed of all processes together. Where there are more, those with the most
/// list fewer.
pub const MOST_LISTED: i64 = 16_384;

/// But not fewer than these, of each.
const LEAST_LISTED: usize = 16;

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
    let mut looker = Looker::default();
    let Some(pause) = arguments.watch else {
        return match show(&mut looker, arguments) {
            Shown::Some => ExitCode::SUCCESS,
            Shown::None | Shown::Unwanted => ExitCode::FAILURE,
        };
    };
    while show(&mut looker, arguments) != Shown::Unwanted {
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

fn show(looker: &mut Looker, arguments: &Arguments) -> Shown {
    let mut stdout = io::stdout().lock();
    let is_terminal = stdout.is_terminal();
    let is_table = !arguments.json && !arguments.prometheus;
    // Who reads JSON gets a report in any case.
    let listed = if arguments.prometheus {
        // It has their numbers alone.
        None
    } else {
        Some(arguments.connections as usize)
    };
    let report = collect(looker, arguments.who.as_deref(), listed);
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
    for process in &report.processes {
        for cut in &process.cut {
            complain(format_args!(
                "{} (pid {}): {}",
                process.name, process.pid, cut.words
            ));
        }
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
/// `listed`: connections of each, `None` if nobody wants to see them.
pub fn collect(
    looker: &mut Looker,
    who: Option<&str>,
    listed: Option<usize>,
) -> Result<Report, String> {
    let pid = who.and_then(|who| who.parse::<i32>().ok());
    let name = who.filter(|_| pid.is_none());
    let me = std::process::id() as i32;
    let pids = match pid {
        Some(pid) => vec![pid],
        None => {
            let all = process::all();
            let all = all.map_err(|error| format!("/proc: {}", crate::run::reason(&error)))?;
            all.into_iter().filter(|&pid| pid != me).collect()
        }
    };
    let question = Question {
        name,
        is_idle: who.is_none(),
        listed: listed.unwrap_or(0),
    };
    let mut collected = Collected {
        report: Report::new(),
        listed: question.listed,
        is_any_named: false,
        last: None,
    };
    looker.look(&pids, question, |pid, answer| collected.take(pid, answer));
    let Collected {
        mut report,
        is_any_named,
        last,
        ..
    } = collected;
    report.processes.sort_by_key(|process| process.pid);
    report.refused.sort_by_key(|refused| refused.pid);
    if listed.is_some() {
        let all = report.processes.iter_mut();
        all.for_each(Process::say_what_is_not_listed);
    }
    if !report.is_empty() {
        return Ok(report);
    }
    match (pid, name) {
        (Some(pid), _) => {
            let why = last.unwrap_or(Failure::NoProcess);
            Err(match why {
                Failure::NoSluice => format!("{} (pid {pid}): {why}", process::name(pid)),
                why => format!("pid {pid}: {why}"),
            })
        }
        (None, Some(name)) => {
            let name = process::Shown(name.as_bytes());
            Err(if is_any_named {
                format!("{name} runs without Sluice")
            } else {
                format!("no process is named {name}")
            })
        }
        (None, None) => Err("no process that may be looked into runs with Sluice".to_owned()),
    }
}

/// A report in the making.
struct Collected {
    report: Report,
    /// Connections that a process may list.
    listed: usize,
    /// There was a process of the name that was asked for.
    is_any_named: bool,
    /// Why one that has nothing to do with Sluice has not.
    last: Option<Failure>,
}

impl Collected {
    fn take(&mut self, pid: i32, answer: Answer) {
        self.is_any_named = true;
        match answer {
            Ok(counters) => {
                let mut process = Process::new(&counters, sluice_stats::monotonic_ns());
                process.list_at_most(self.listed);
                self.report.processes.push(process);
                self.share();
            }
            Err(why @ (Failure::NoProcess | Failure::NoSluice)) => self.last = Some(why),
            Err(why) => self.report.refused.push(Refused {
                pid,
                name: process::name(pid),
                why: why.to_string(),
                silent: matches!(why, Failure::Silent),
            }),
        }
    }

    /// Where all list too many together, each may list half of what it could.
    fn share(&mut self) {
        let all = &mut self.report.processes;
        let listed = |all: &[Process]| all.iter().map(|p| p.connections.len()).sum::<usize>();
        while listed(all) > MOST_LISTED as usize && self.listed > LEAST_LISTED {
            self.listed = LEAST_LISTED.max(self.listed / 2);
            all.iter_mut()
                .for_each(|process| process.list_at_most(self.listed));
        }
    }
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
