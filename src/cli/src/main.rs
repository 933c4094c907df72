//! The `sluice` command: runs programs under the library, and shows what it does in them.
//!
//! Nothing here is linked into the library, and the tool needs no help from the processes it looks
//! at: it may panic at nothing they hold, and they never notice that they were read.

mod bench;
mod choice;
mod counters;
mod doctor;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inherited;
mod library;
mod look;
mod memory;
mod pages;
mod private;
mod process;
mod prometheus;
mod report;
mod required;
mod run;
mod stat;
mod table;
mod terminal;
mod top;
mod trace;
mod units;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Moves TCP connections of unmodified programs onto shared memory.
#[derive(Parser)]
#[command(name = "sluice", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program with its TCP connections under Sluice
    Run(run::Arguments),
    /// Show the connections of running programs, and why they are, or are not, on TCP
    Stat(stat::Arguments),
    /// Watch what moves, and how, in the terminal
    Top(top::Arguments),
    /// Tell what happened to connections, in order
    Trace(trace::Arguments),
    /// Measure TCP beside Sluice, on this host or to another one
    Bench(bench::Arguments),
    #[command(hide = true)]
    End(bench::EndArguments),
    /// Check what acceleration needs here, and say how to fix what is missing
    Doctor(doctor::Arguments),
    /// Print what a shell reads to complete this command
    Completions(pages::CompletionsArguments),
    /// Write the man pages into a directory
    #[command(hide = true)]
    Manual(pages::ManualArguments),
    #[command(hide = true)]
    Trial(doctor::TrialArguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(arguments) => run::run(arguments),
        Command::Stat(arguments) => stat::stat(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::End(arguments) => bench::take_part(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Completions(arguments) => pages::completions(&arguments),
        Command::Manual(arguments) => pages::manual(&arguments),
        Command::Trial(arguments) => doctor::take_part(&arguments),
    }
}

/// The command line as it is described above.
fn description() -> clap::Command {
    Arguments::command()
}

/// Prints to whoever still reads.
fn print(text: &str) {
    use std::io::Write;
    // Not `println!`, which panics when stdout is closed.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Has stdout taken what was `written`? A reader who has seen enough, as `head` has, is no trouble; anything else is said.
fn is_written(written: std::io::Result<()>) -> bool {
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            complain(format_args!("stdout: {}", run::reason(&error)));
            false
        }
        _ => true,
    }
}

/// Says on stderr, in one line, what the tool could not do or wants known.
fn complain(what: impl std::fmt::Display) {
    use std::io::Write;
    // Not `eprintln!`, which panics when stderr is closed.
    let _ = writeln!(std::io::stderr(), "sluice: {what}");
}
