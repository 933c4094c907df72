//! `sluice bench`: TCP beside Sluice, on this host or to another one.

mod load;
mod page;
mod programs;

pub use load::{Arguments as EndArguments, take_part};

use crate::complain;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use load::{Kind, Outcome};
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
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["host", "html", "json", "only", "programs"])]
    serve: Option<SocketAddr>,

    /// Only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Kind>,

    /// Seconds of one run
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = crate::stat::seconds)]
    seconds: Duration,

    /// Runs of each
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..1000))]
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

    fn name(self) -> String {
        let size = size(self.size);
        match self.kind {
            Kind::Latency => format!("there and back, {size}"),
            Kind::Stream => format!("stream of {size}"),
            Kind::Churn => format!("connections, {size} each"),
            Kind::Many => format!("{} at once, {size}", load::CONNECTIONS),
        }
    }
}

/// A number of bytes as people write it.
fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Medians of a case.
#[derive(Serialize)]
struct Figures {
    kind: Kind,
    size: usize,
    tcp: Outcome,
    sluice: Outcome,
    /// How many times as fast Sluice is.
    ratio: f64,
}

#[derive(Serialize)]
struct Results {
    format: u32,
    version: &'static str,
    peer: Option<String>,
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

fn run(arguments: &Arguments) -> Result<(), String> {
    // Before anything takes its time.
    let programs = arguments.programs.as_deref().map(programs::read);
    let programs = programs.transpose()?.unwrap_or_default();
    let library = crate::run::library()?;
    if let Some(at) = arguments.serve {
        let next = at
            .port()
            .checked_add(1)
            .ok_or("the port behind that is needed, too")?;
        let servers = [
            Server::start(None, Some(at))?,
            Server::start(Some(&library), Some(SocketAddr::new(at.ip(), next)))?,
        ];
        eprintln!("sluice: serving at {at} and {next}, until Ctrl-C");
        for mut server in servers {
            let _ = server.process.wait();
        }
        return Err("a server has ended".to_owned());
    }
    let local = match &arguments.host {
        Some(_) => None,
        None => Some([
            Server::start(None, None)?,
            Server::start(Some(&library), None)?,
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
    if let Ok(style) = ProgressStyle::with_template("{msg:28} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    let mut figures = Vec::new();
    for case in cases {
        bar.set_message(case.name());
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..arguments.runs {
            for ((peer, library), runs) in peers.iter().zip([None, Some(&library)]).zip(&mut runs) {
                runs.push(one(
                    *peer,
                    library.map(PathBuf::as_path),
                    case,
                    arguments.seconds,
                )?);
            }
            bar.inc(1);
        }
        figures.push(of_runs(case, &runs));
    }
    bar.finish_and_clear();
    let results = Results {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        peer: arguments.host.clone(),
        runs: arguments.runs,
        seconds: arguments.seconds.as_secs_f64(),
        figures,
        programs,
    };
    crate::print(&table(&results.figures).to_string());
    let write = |path: &Path, bytes: &[u8]| {
        std::fs::write(path, bytes)
            .map_err(|e| format!("{}: {}", path.display(), crate::run::reason(&e)))
    };
    if let Some(path) = &arguments.json {
        let text = serde_json::to_vec_pretty(&results).map_err(|e| e.to_string())?;
        write(path, &text)?;
    }
    if let Some(path) = &arguments.html {
        write(path, page::page(&results)?.as_bytes())?;
    }
    Ok(())
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
    Figures {
        kind: case.kind,
        size: case.size,
        tcp: middle(tcp),
        sluice: middle(sluice),
        ratio: median(ratios.map(|(tcp, sluice)| sluice.rate / tcp.rate).collect()),
    }
}

fn table(all: &[Figures]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "",
        "TCP",
        "SLUICE",
        "TIMES",
        "p99 TCP",
        "p99 SLUICE",
        "CPU s/GB TCP",
        "SLUICE",
    ]);
    for figures in all {
        let case = Case::new(figures.kind, figures.size);
        let speed = |outcome: &Outcome| match figures.kind {
            Kind::Latency => format!("{:.1} us", outcome.p50_ns as f64 / 1e3),
            Kind::Stream => format!("{:.0} MB/s", outcome.bytes / 1e6),
            Kind::Churn | Kind::Many => format!("{:.0}/s", outcome.rate),
        };
        let p99 = |outcome: &Outcome| match outcome.p99_ns {
            0 => String::new(),
            ns => format!("{:.1} us", ns as f64 / 1e3),
        };
        let cpu = |outcome: &Outcome| match figures.kind {
            Kind::Stream => format!("{:.2}", outcome.cpu_per_gb),
            _ => String::new(),
        };
        let (tcp, sluice) = (&figures.tcp, &figures.sluice);
        table.add_row([
            case.name(),
            speed(tcp),
            speed(sluice),
            format!("{:.2}", figures.ratio),
            p99(tcp),
            p99(sluice),
            cpu(tcp),
            cpu(sluice),
        ]);
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
    fn sizes_are_words() {
        assert_eq!(
            [size(64), size(4096), size(1 << 20)],
            ["64 B", "4 KiB", "1 MiB"]
        );
    }
}
