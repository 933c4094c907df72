//! `sluice bench`: TCP beside Sluice, on this host or to another one.

mod load;
mod machine;
mod output;
mod page;
mod programs;

pub use load::{Arguments as EndArguments, take_part};

use crate::complain;
use crate::units::{counted, exact, rate};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use load::{Kind, Outcome};
use machine::Machine;
use output::Output;
use programs::Program;
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// Number of the JSON's format: fields are added without a new one.
const FORMAT: u32 = 1;

#[derive(Args)]
pub struct Arguments {
    /// A host where `sluice bench --serve` runs, and its first port; this host if left out
    #[arg(value_name = "HOST:PORT")]
    host: Option<String>,

    /// Serve another host's measurements, at this port without the library and at the next with it
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        conflicts_with_all = ["host", "html", "json", "only", "programs"]
    )]
    serve: Option<SocketAddr>,

    /// Only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Kind>,

    /// Seconds of one run
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = crate::stat::seconds)]
    seconds: Duration,

    /// Runs of each; the medians are shown
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..1000))]
    runs: u32,

    /// Write a page with plots, which needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the figures
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Show whole programs as well: what `scripts/compare.sh --json FILE` has measured
    #[arg(long, value_name = "FILE")]
    programs: Option<PathBuf>,
}

/// A measurement: what, and of which messages.
#[derive(Clone, Copy)]
struct Case {
    kind: Kind,
    size: usize,
}

const CASES: [Case; 14] = [
    Case::new(Kind::Latency, 64),
    Case::new(Kind::Latency, 1 << 10),
    Case::new(Kind::Latency, 4 << 10),
    Case::new(Kind::Latency, 16 << 10),
    Case::new(Kind::Latency, 64 << 10),
    Case::new(Kind::Latency, 1 << 20),
    Case::new(Kind::Stream, 64),
    Case::new(Kind::Stream, 1 << 10),
    Case::new(Kind::Stream, 4 << 10),
    Case::new(Kind::Stream, 16 << 10),
    Case::new(Kind::Stream, 64 << 10),
    Case::new(Kind::Stream, 1 << 20),
    Case::new(Kind::Churn, 64),
    Case::new(Kind::Many, 64),
];

impl Case {
    const fn new(kind: Kind, size: usize) -> Self {
        Self { kind, size }
    }

    /// What is measured, without the size of messages.
    fn what(self) -> String {
        match self.kind {
            Kind::Latency => "round trip".to_owned(),
            Kind::Stream => "stream".to_owned(),
            Kind::Churn => "connections".to_owned(),
            Kind::Many => format!("{} at once", load::CONNECTIONS),
        }
    }

    fn name(self) -> String {
        format!("{}, {}", self.what(), exact(self.size))
    }
}

/// Medians of a case.
#[derive(Serialize)]
struct Figures {
    kind: Kind,
    size: usize,
    tcp: Outcome,
    sluice: Outcome,
    /// How many times as many messages a second Sluice has: the median of neighbouring runs.
    ratio: f64,
    /// How many times as good the median of Sluice is, of what is shown.
    times: f64,
}

#[derive(Serialize)]
struct Results {
    format: u32,
    version: &'static str,
    peer: Option<String>,
    machine: Machine,
    runs: u32,
    seconds: f64,
    figures: Vec<Figures>,
    programs: Vec<Program>,
}

pub fn bench(arguments: &Arguments) -> ExitCode {
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            complain(why);
            ExitCode::FAILURE
        }
    }
}

/// Fewer runs than this show the noise of the machine more than anything else.
const ENOUGH: u32 = 3;

fn run(arguments: &Arguments) -> Result<(), String> {
    let library = crate::run::library()?;
    if let Some(at) = arguments.serve {
        return Err(serve(at, &library));
    }
    // Before anything takes its time.
    let programs = arguments.programs.as_deref().map(programs::read);
    let programs = programs.transpose()?.unwrap_or_default();
    let output = |path: &Option<PathBuf>| path.as_deref().map(Output::new).transpose();
    let (json, html) = (output(&arguments.json)?, output(&arguments.html)?);
    let machine = Machine::this();
    let figures = measure(arguments, &library)?;
    let results = Results {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        peer: arguments.host.clone(),
        machine,
        runs: arguments.runs,
        seconds: arguments.seconds.as_secs_f64(),
        figures,
        programs,
    };
    for line in table(&results.figures).lines() {
        crate::print(line.trim_end());
    }
    if arguments.runs < ENOUGH {
        complain(few(arguments.runs));
    }
    if let Some(json) = json {
        let text = serde_json::to_vec_pretty(&results).map_err(|e| e.to_string())?;
        json.write(&text)?;
    }
    if let Some(html) = html {
        html.write(page::page(&results)?.as_bytes())?;
    }
    Ok(())
}

/// What is to be said of so few runs.
fn few(runs: u32) -> String {
    let all = counted(runs.into(), "run");
    format!("{all} of each case: too few to tell a difference from noise")
}

/// Serves until it is ended, or a server ends.
fn serve(at: SocketAddr, library: &Path) -> String {
    let servers = || {
        let next = at.port().checked_add(1);
        let next = next.ok_or("the port after this one is needed, too")?;
        let servers = [
            Server::start(None, Some(at))?,
            Server::start(Some(library), Some(SocketAddr::new(at.ip(), next)))?,
        ];
        eprintln!("sluice: serving at {at} and {next}, until Ctrl-C");
        Ok(servers)
    };
    match servers() {
        Ok(servers) => {
            for mut server in servers {
                let _ = server.process.wait();
            }
            "a server has ended".to_owned()
        }
        Err(why) => why,
    }
}

/// The figures of all cases that are wanted.
fn measure(arguments: &Arguments, library: &Path) -> Result<Vec<Figures>, String> {
    let local = match &arguments.host {
        Some(_) => None,
        None => Some([
            Server::start(None, None)?,
            Server::start(Some(library), None)?,
        ]),
    };
    let peers = match (&local, &arguments.host) {
        (Some([tcp, sluice]), _) => [tcp.at(), sluice.at()],
        (None, Some(host)) => {
            let mut all = host
                .to_socket_addrs()
                .map_err(|e| format!("{host}: {}", crate::run::reason(&e)))?;
            let at = all.next().ok_or_else(|| format!("{host}: no address"))?;
            [at, SocketAddr::new(at.ip(), at.port().wrapping_add(1))]
        }
        (None, None) => return Err("no host".to_owned()),
    };
    let cases: Vec<Case> = CASES
        .into_iter()
        .filter(|case| arguments.only.is_empty() || arguments.only.contains(&case.kind))
        .collect();
    let bar = ProgressBar::new(cases.len() as u64 * u64::from(arguments.runs));
    if let Ok(style) = ProgressStyle::with_template("{msg:16} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    let mut figures = Vec::new();
    for case in cases {
        bar.set_message(case.name());
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..arguments.runs {
            for ((peer, library), runs) in peers.iter().zip([None, Some(library)]).zip(&mut runs) {
                runs.push(one(*peer, library, case, arguments.seconds)?);
            }
            bar.inc(1);
        }
        figures.push(of_runs(case, &runs));
    }
    bar.finish_and_clear();
    Ok(figures)
}

/// A serving end, which ends with this.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(library: Option<&Path>, at: Option<SocketAddr>) -> Result<Self, String> {
        let mut command = end(library)?;
        if let Some(at) = at {
            command.args(["--listen", &at.to_string()]);
        }
        let mut process = command.spawn().map_err(|e| crate::run::reason(&e))?;
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        match line.trim().parse() {
            Ok(port) => Ok(Self { process, port }),
            Err(_) => {
                let _ = process.kill();
                let _ = process.wait();
                Err("an end could not be started".to_owned())
            }
        }
    }

    fn at(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A process of this tool that is an end.
fn end(library: Option<&Path>) -> Result<Command, String> {
    let tool = std::env::current_exe().map_err(|e| crate::run::reason(&e))?;
    let mut command = Command::new(tool);
    command
        .arg("end")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    match library {
        Some(library) => command.env("LD_PRELOAD", library),
        None => command.env_remove("LD_PRELOAD"),
    };
    crate::inherited::ends_with_us(&mut command);
    Ok(command)
}

fn one(
    peer: SocketAddr,
    library: Option<&Path>,
    case: Case,
    time: Duration,
) -> Result<Outcome, String> {
    let kind = clap::ValueEnum::to_possible_value(&case.kind);
    let kind = kind.as_ref().map_or("latency", |kind| kind.get_name());
    let output = end(library)?
        .args(["--peer", &peer.to_string(), "--kind", kind])
        .args([
            "--size",
            &case.size.to_string(),
            "--ms",
            &time.as_millis().to_string(),
        ])
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| crate::run::reason(&e))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("sluice: ");
        return Err(format!("{}: {peer}: {said}", case.name()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("{}: {e}", case.name()))
}

/// The middle one; of an even number the greater of the two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn of_runs(case: Case, [tcp, sluice]: &[Vec<Outcome>; 2]) -> Figures {
    let middle = |runs: &[Outcome]| {
        let of = |value: fn(&Outcome) -> f64| median(runs.iter().map(value).collect());
        Outcome {
            rate: of(|r| r.rate),
            bytes: of(|r| r.bytes),
            p50_ns: of(|r| r.p50_ns as f64) as u64,
            p99_ns: of(|r| r.p99_ns as f64) as u64,
            p999_ns: of(|r| r.p999_ns as f64) as u64,
            cpu_per_gb: of(|r| r.cpu_per_gb),
        }
    };
    let ratios = tcp.iter().zip(sluice).filter(|(tcp, _)| tcp.rate > 0.0);
    let ratio = median(ratios.map(|(tcp, sluice)| sluice.rate / tcp.rate).collect());
    let (tcp, sluice) = (middle(tcp), middle(sluice));
    let times = match case.kind {
        Kind::Latency => divided(tcp.p50_ns as f64, sluice.p50_ns as f64),
        Kind::Stream => divided(sluice.bytes, tcp.bytes),
        Kind::Churn | Kind::Many => divided(sluice.rate, tcp.rate),
    };
    Figures {
        kind: case.kind,
        size: case.size,
        tcp,
        sluice,
        ratio,
        times,
    }
}

/// 0 where there is nothing to divide by.
fn divided(value: f64, by: f64) -> f64 {
    if by > 0.0 { value / by } else { 0.0 }
}

/// Nanoseconds as people write them.
fn time(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

fn table(all: &[Figures]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).force_no_tty();
    table.set_header([
        "", "BYTES", "TCP", "SLUICE", "TIMES", "p99 TCP", "SLUICE", "s/GB TCP", "SLUICE",
    ]);
    for figures in all {
        let case = Case::new(figures.kind, figures.size);
        let speed = |outcome: &Outcome| match figures.kind {
            Kind::Latency => time(outcome.p50_ns),
            Kind::Stream => format!("{}/s", rate(outcome.bytes)),
            Kind::Churn | Kind::Many => format!("{:.0}/s", outcome.rate),
        };
        let p99 = |outcome: &Outcome| match outcome.p99_ns {
            0 => String::new(),
            ns => time(ns),
        };
        let cpu = |outcome: &Outcome| match figures.kind {
            Kind::Stream => format!("{:.2}", outcome.cpu_per_gb),
            _ => String::new(),
        };
        let (tcp, sluice) = (&figures.tcp, &figures.sluice);
        table.add_row([
            case.what(),
            exact(case.size),
            speed(tcp),
            speed(sluice),
            format!("{:.2}", figures.times),
            p99(tcp),
            p99(sluice),
            cpu(tcp),
            cpu(sluice),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_neighbours() {
        let run = |rate| Outcome {
            rate,
            ..Outcome::default()
        };
        let tcp = vec![run(10.0), run(100.0), run(20.0)];
        let sluice = vec![run(20.0), run(210.0), run(60.0)];
        let figures = of_runs(Case::new(Kind::Latency, 64), &[tcp, sluice]);
        assert_eq!((figures.tcp.rate, figures.sluice.rate), (20.0, 60.0));
        assert_eq!(figures.ratio, 2.1);
        assert_eq!(median(Vec::new()), 0.0);
    }

    #[test]
    fn times_are_of_what_is_shown() {
        let run = |rate, p50_ns| Outcome {
            rate,
            bytes: rate * 64.0,
            p50_ns,
            ..Outcome::default()
        };
        let both = || [vec![run(10.0, 13_500)], vec![run(24.0, 3_500)]];
        let times = |kind| of_runs(Case::new(kind, 64), &both()).times;
        assert_eq!(times(Kind::Latency), 13.5 / 3.5);
        assert_eq!(times(Kind::Stream), 2.4);
        assert_eq!(times(Kind::Churn), 2.4);
        let none = of_runs(Case::new(Kind::Many, 64), &[vec![], vec![]]);
        assert_eq!(none.times, 0.0);
        let row = table(&[of_runs(Case::new(Kind::Latency, 4096), &both())]).to_string();
        let row: Vec<&str> = row
            .lines()
            .last()
            .unwrap_or("")
            .split_whitespace()
            .collect();
        let expected = ["round", "trip", "4K", "13.5", "us", "3.5", "us", "3.86"];
        assert_eq!(row, expected);
    }

    #[test]
    fn the_table_fits_into_80_columns() {
        let slow = Outcome {
            rate: 1_234_567.0,
            bytes: 1.5e12,
            p50_ns: 9_999_000,
            p99_ns: 9_999_900_000,
            cpu_per_gb: 123.45,
            ..Outcome::default()
        };
        let all = CASES.map(|case| of_runs(case, &[vec![slow.clone()], vec![slow.clone()]]));
        for line in table(&all).lines() {
            assert!(line.trim_end().len() <= 80, "{line}");
        }
    }

    #[test]
    fn few_runs_are_counted_in_words() {
        assert!(few(1).starts_with("1 run of each case: "));
        assert!(few(2).starts_with("2 runs of each case: "));
    }
}
