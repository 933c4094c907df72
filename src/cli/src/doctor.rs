//! `sluice doctor`: what acceleration needs, what of it is here, and how to mend what is not.

mod between;
mod trial;
mod within;

pub use trial::{Arguments as TrialArguments, take_part};

use crate::is_written;
use clap::Args;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

/// Number of the JSON's format: fields are added without a new one.
const FORMAT: u32 = 1;

/// Only connections within this host can be accelerated.
const ONLY_WITHIN: u8 = 1;
/// Only connections to other hosts can. (2 is for wrong arguments.)
const ONLY_BETWEEN: u8 = 3;
/// None can.
const NOTHING: u8 = 4;

#[derive(Args)]
#[command(
    after_help = "Exit status: 0 if connections within this host and to other hosts can be accelerated, 1 if only those within \
    this host can, 3 if only those to other hosts can, 4 if none can; 2 for wrong arguments.\n\nTwo processes of this tool's own \
    connect to each other over the loopback device and exchange some megabytes. No other process is touched."
)]
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
    match (found.shm.usable, found.verbs.usable) {
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(ONLY_WITHIN),
        (false, true) => ExitCode::from(ONLY_BETWEEN),
        (false, false) => ExitCode::from(NOTHING),
    }
}

fn write_text(to: &mut impl Write, found: &Examination) -> io::Result<()> {
    let parts = [
        ("Within this host", &found.shm, "shared memory"),
        ("Between hosts", &found.verbs, "RDMA"),
    ];
    for (title, part, _) in parts {
        writeln!(to, "{title}")?;
        let width = part.checks.iter().map(|check| check.what.chars().count());
        let width = width.max().unwrap_or(0);
        for check in &part.checks {
            let state = match check.state {
                State::Ok => "ok",
                State::Note => "note",
                State::Bad => "BAD",
            };
            writeln!(to, "  {state:4}  {:width$}  {}", check.what, check.found)?;
            if let Some(mend) = &check.mend {
                writeln!(to, "        {:width$}  -> {mend}", "")?;
            }
        }
        writeln!(to)?;
    }
    for (_, part, carrier) in parts {
        let verdict = if part.usable { "usable" } else { "not usable" };
        writeln!(to, "{carrier}: {verdict}")?;
    }
    Ok(())
}
