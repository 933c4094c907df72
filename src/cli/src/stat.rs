//! `sluice stat`: which processes to look at, and what to say when there is nothing to show.

use crate::choice::Choice;
use crate::counters::{Failure, wire::Answer};
use crate::look::{Looker, Question};
use crate::process;
use crate::prometheus;
use crate::report::{Process, Refused, Report};
use crate::table;
use crate::terminal::Screen;
use crate::units::counted;
use crate::{complain, is_written};
use clap::Args;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Args)]
pub struct Arguments {
    /// Process ids or names of programs; without any, all processes that use Sluice
    #[arg(value_name = "PID|NAME", value_parser = who)]
    who: Vec<String>,

    /// Show processes without connections, too
    #[arg(short, long)]
    all: bool,

    #[command(flatten)]
    choice: Choice,

    /// Print JSON, in a format that stays compatible
    #[arg(long)]
    json: bool,

    /// Print the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "all", "port", "state", "sort"])]
    prometheus: bool,

    /// List at most so many connections of a process; all are counted
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = LISTED,
        value_parser = clap::value_parser!(u32).range(..=MOST_LISTED)
    )]
    connections: u32,

    /// Show it again every SECONDS; JSON is one line each time then
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = seconds
    )]
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
    /// At least one process that uses Sluice, and has such connections as are asked for.
    Some,
    /// There was none to show.
    None,
    /// Nobody reads on, or nothing can be written.
    Unwanted,
}

fn show(looker: &mut Looker, arguments: &Arguments) -> Shown {
    let screen = Screen::of_stdout();
    let mut stdout = io::stdout().lock();
    let is_table = !arguments.json && !arguments.prometheus;
    let wanted = Wanted {
        who: &arguments.who,
        // Prometheus has their numbers alone.
        listed: (!arguments.prometheus).then_some(arguments.connections as usize),
        choice: arguments.choice,
    };
    let (mut report, missing) = collect(looker, &wanted);
    if arguments.watch.is_some() && is_table && screen.width.is_some() {
        let _ = write!(stdout, "\x1b[H\x1b[2J");
    }
    missing.iter().for_each(complain);
    for Refused { name, pid, why, .. } in &report.refused {
        complain(format_args!("{name} (pid {pid}): {why}"));
    }
    for process in &report.processes {
        for cut in &process.cut {
            let Process { name, pid, .. } = process;
            complain(format_args!("{name} (pid {pid}): {}", cut.words));
        }
    }
    let is_filter = arguments.choice.is_filter();
    let fits = |process: &Process| !is_filter || process.count() != 0;
    let is_any = report.processes.iter().any(fits);
    let hidden = hide(&mut report, arguments);
    // JSON is a report in any case.
    let written = if arguments.json {
        write_json(&mut stdout, &report, arguments.watch.is_some())
    } else if arguments.prometheus {
        prometheus::write(&mut stdout, &report)
    } else {
        table::write(&mut stdout, &report.processes, screen)
            .and_then(|()| write_hidden(&mut stdout, hidden, arguments, &report))
    };
    let written = written.and_then(|()| stdout.flush());
    let is_seen = written.is_ok() || arguments.watch.is_none();
    if !is_written(written) || !is_seen {
        return Shown::Unwanted;
    }
    if is_any { Shown::Some } else { Shown::None }
}

/// Takes out processes of which there is nothing to see; returns how many.
fn hide(report: &mut Report, arguments: &Arguments) -> usize {
    let before = report.processes.len();
    if !arguments.all {
        let is_filter = arguments.choice.is_filter();
        // What programs read has everything, unless they choose.
        let is_for_programs = arguments.json || arguments.prometheus;
        let is_named = |pid: i32| arguments.who.contains(&pid.to_string());
        let is_kept = |pid: i32| !is_filter && (is_for_programs || is_named(pid));
        let all = &mut report.processes;
        all.retain(|process| process.count() != 0 || is_kept(process.pid));
    }
    before - report.processes.len()
}

/// Says how many processes are not shown since nothing is to be seen of them.
fn write_hidden(
    to: &mut impl Write,
    count: usize,
    arguments: &Arguments,
    report: &Report,
) -> io::Result<()> {
    if count == 0 {
        return Ok(());
    }
    if !report.processes.is_empty() {
        writeln!(to)?;
    }
    let such = if arguments.choice.is_filter() {
        "such "
    } else {
        ""
    };
    let more = counted(count as u64, "process");
    writeln!(
        to,
        "hidden: {more} without {such}connections (--all shows them)"
    )
}

/// What is asked for.
pub struct Wanted<'a> {
    /// Process ids and names; empty: all processes.
    pub who: &'a [String],
    /// Connections of each; `None`: nobody wants to see them.
    pub listed: Option<usize>,
    pub choice: Choice,
}

/// Looks at the processes that are asked for; says of whom there is nothing to say, and why.
pub fn collect(looker: &mut Looker, wanted: &Wanted) -> (Report, Vec<String>) {
    let mut collected = Collected {
        report: Report::new(),
        listed: wanted.listed.unwrap_or(0),
        choice: wanted.choice,
        missing: Vec::new(),
    };
    let failed = if wanted.who.is_empty() {
        collected.look_at_all(looker)
    } else {
        let (pids, names): (Vec<_>, Vec<_>) = wanted
            .who
            .iter()
            .map(|who| who.parse::<i32>().map_err(|_| who))
            .partition(Result::is_ok);
        let pids: Vec<i32> = pids.into_iter().flatten().collect();
        collected.look_at_numbers(looker, &pids);
        let names = names.into_iter().filter_map(Result::err);
        names
            .map(|name| collected.look_for(looker, name))
            .find(Result::is_err)
            .unwrap_or(Ok(()))
    };
    let Collected {
        mut report,
        mut missing,
        ..
    } = collected;
    if let Err(error) = failed {
        missing.push(format!("/proc: {}", crate::run::reason(&error)));
    }
    wanted.choice.sort(&mut report);
    if wanted.listed.is_some() {
        let all = report.processes.iter_mut();
        all.for_each(Process::say_what_is_not_listed);
    }
    (report, missing)
}

/// All processes but this one.
fn others() -> io::Result<Vec<i32>> {
    let me = std::process::id() as i32;
    let all = process::all()?;
    Ok(all.into_iter().filter(|&pid| pid != me).collect())
}

/// A report in the making.
struct Collected {
    report: Report,
    /// Connections that a process may list.
    listed: usize,
    choice: Choice,
    /// Why there is nothing to say of one that was asked for.
    missing: Vec<String>,
}

impl Collected {
    fn question<'a>(&self, name: Option<&'a str>, is_idle: bool) -> Question<'a> {
        let listed = match self.listed {
            0 => 0,
            _ if self.choice.needs_all() => MOST_LISTED as usize,
            listed => listed,
        };
        Question {
            name,
            is_idle,
            listed,
        }
    }

    fn look_at_all(&mut self, looker: &mut Looker) -> io::Result<()> {
        let question = self.question(None, true);
        looker.look(&others()?, question, |pid, answer| {
            self.take(pid, answer);
        });
        if self.report.is_empty() {
            let words = "no running process uses Sluice, or none that you may look into";
            self.missing.push(words.to_owned());
        }
        Ok(())
    }

    fn look_at_numbers(&mut self, looker: &mut Looker, pids: &[i32]) {
        let question = self.question(None, false);
        looker.look(pids, question, |pid, answer| match self.take(pid, answer) {
            None => {}
            Some(why @ Failure::NoSluice) => {
                let name = process::name(pid);
                self.missing.push(format!("{name} (pid {pid}): {why}"));
            }
            Some(why) => self.missing.push(format!("pid {pid}: {why}")),
        });
    }

    fn look_for(&mut self, looker: &mut Looker, name: &str) -> io::Result<()> {
        let question = self.question(Some(name), false);
        let (mut is_any_named, mut is_any_shown) = (false, false);
        looker.look(&others()?, question, |pid, answer| {
            is_any_named = true;
            is_any_shown |= self.take(pid, answer).is_none();
        });
        let name = process::Shown(name.as_bytes());
        if !is_any_named {
            self.missing.push(format!("no process is named {name}"));
        } else if !is_any_shown {
            self.missing.push(format!("{name} runs without Sluice"));
        }
        Ok(())
    }

    /// Adds what is to be said of a process; why there is nothing, otherwise.
    fn take(&mut self, pid: i32, answer: Answer) -> Option<Failure> {
        let Report {
            processes, refused, ..
        } = &mut self.report;
        let mut known = processes.iter().map(|process| process.pid);
        if known.any(|known| known == pid) || refused.iter().any(|refused| refused.pid == pid) {
            return None;
        }
        match answer {
            Ok(counters) => {
                let mut process = Process::new(&counters, sluice_stats::monotonic_ns());
                self.choice.apply(&mut process);
                process.list_at_most(self.listed);
                processes.push(process);
                self.share();
            }
            Err(why @ (Failure::NoProcess | Failure::NoSluice)) => return Some(why),
            Err(why) => refused.push(Refused {
                pid,
                name: process::name(pid),
                why: why.to_string(),
                silent: matches!(why, Failure::Silent),
            }),
        }
        None
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
