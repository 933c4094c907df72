//! `sluice doctor`: what acceleration needs, what of it is here, and how to fix what is not.

mod between;
mod trial;
mod within;

pub use trial::{Arguments as TrialArguments, take_part};

use crate::is_written;
use crate::terminal::Screen;
use clap::Args;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

/// Number of the JSON's format: fields are added without a new one.
const FORMAT: u32 = 1;

/// RDMA devices are here, and something else that they need is not.
const RDMA_BROKEN: u8 = 1;
/// Only connections to other hosts can be accelerated. (2 is for wrong arguments.)
const ONLY_BETWEEN: u8 = 3;
/// None can.
const NOTHING: u8 = 4;

#[derive(Args)]
pub struct Arguments {
    /// Print JSON, in a format that stays compatible
    #[arg(long)]
    json: bool,
}

/// How a part of what is needed is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// In the way.
    Bad,
}

/// One thing that was looked at.
#[derive(Serialize)]
pub struct Check {
    what: String,
    state: State,
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Check {
    fn new(what: impl Into<String>, state: State, found: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            state,
            found: found.into(),
            mend: None,
        }
    }

    fn mended_by(self, mend: impl Into<String>) -> Self {
        Self {
            mend: Some(mend.into()),
            ..self
        }
    }
}

/// What was found about one kind of link.
#[derive(Serialize)]
pub struct Findings {
    usable: bool,
    checks: Vec<Check>,
}

impl Findings {
    /// Is something in the way? Where nothing is, what is missing was never meant to be here.
    fn is_broken(&self) -> bool {
        self.checks.iter().any(|check| check.state == State::Bad)
    }
}

#[derive(Serialize)]
struct Examination {
    format: u32,
    version: &'static str,
    shm: Findings,
    verbs: Findings,
}

pub fn doctor(arguments: &Arguments) -> ExitCode {
    let found = Examination {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        shm: within::examine(),
        verbs: between::examine(),
    };
    let mut stdout = io::stdout().lock();
    let written = if arguments.json {
        serde_json::to_writer_pretty(&mut stdout, &found)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(stdout))
    } else {
        write_text(&mut stdout, &found)
    };
    is_written(written.and_then(|()| stdout.flush()));
    ExitCode::from(status(&found.shm, &found.verbs))
}

fn status(shm: &Findings, verbs: &Findings) -> u8 {
    match (shm.usable, verbs.usable) {
        (true, true) => 0,
        (true, false) if !verbs.is_broken() => 0,
        (true, false) => RDMA_BROKEN,
        (false, true) => ONLY_BETWEEN,
        (false, false) => NOTHING,
    }
}

fn write_text(to: &mut impl Write, found: &Examination) -> io::Result<()> {
    let parts = [
        ("Within this host", &found.shm, "shared memory"),
        ("Between hosts", &found.verbs, "RDMA"),
    ];
    let screen = Screen::of_stdout();
    for (title, part, _) in parts {
        writeln!(to, "{}", screen.bold(title))?;
        let width = part.checks.iter().map(|check| check.what.chars().count());
        let width = width.max().unwrap_or(0);
        for check in &part.checks {
            let state = match check.state {
                State::Ok => "ok",
                State::Note => "note",
                State::Bad => "BAD",
            };
            // Below each other, after the columns before them.
            let indent = 2 + 4 + 2 + width + 2;
            let found = screen.wrapped(&check.found, indent).join("\n");
            let found = found.trim_start();
            writeln!(to, "  {state:4}  {:width$}  {found}", check.what)?;
            if let Some(mend) = &check.mend {
                let mend = screen.wrapped(&format!("-> {mend}"), indent).join("\n");
                writeln!(to, "{mend}")?;
            }
        }
        writeln!(to)?;
    }
    for (_, part, carrier) in parts {
        let verdict = match part.usable {
            true => "usable",
            false if part.is_broken() => "not usable",
            false => "none here; only connections to other hosts need it",
        };
        writeln!(to, "{carrier}: {verdict}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_that_is_not_here_is_no_failure() {
        let findings = |usable, state| Findings {
            usable,
            checks: vec![Check::new("devices", state, "")],
        };
        let works = || findings(true, State::Ok);
        let fails = || findings(false, State::Bad);
        let absent = || findings(false, State::Note);
        for (shm, verbs, expected) in [
            (works(), works(), 0),
            (works(), absent(), 0),
            (works(), fails(), RDMA_BROKEN),
            (fails(), works(), ONLY_BETWEEN),
            (fails(), absent(), NOTHING),
        ] {
            assert_eq!(status(&shm, &verbs), expected);
        }
    }
}
