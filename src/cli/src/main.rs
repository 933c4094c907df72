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
mod obstacle;
mod pages;
mod preload;
mod private;
mod process;
mod prometheus;
mod reasons;
mod report;
mod required;
mod run;
mod stat;
mod table;
mod terminal;
mod top;
mod trace;
mod units;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use pages::readme::Part;
use std::ffi::OsString;
use std::process::ExitCode;

/// Moves TCP connections of unmodified programs onto shared memory or RDMA.
#[derive(Parser)]
#[command(name = "sluice", version = version(), max_term_width = 80)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program with its TCP connections under Sluice
    Run(run::Arguments),
    /// Show the connections of running processes, and why they are on TCP or not
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
    /// Explain why connections are on TCP, and what can be done
    Reasons(reasons::Arguments),
    /// Print what a shell reads to complete this command
    Completions(pages::CompletionsArguments),
    /// Write the man pages into a directory
    #[command(hide = true)]
    Manual(pages::ManualArguments),
    #[command(hide = true)]
    Trial(doctor::TrialArguments),
}

fn main() -> ExitCode {
    let matches = description().get_matches_from(arguments());
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Stat(arguments) => stat::stat(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::End(arguments) => bench::take_part(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Reasons(arguments) => reasons::reasons(&arguments),
        Command::Completions(arguments) => pages::completions(&arguments),
        Command::Manual(arguments) => pages::manual(&arguments),
        Command::Trial(arguments) => doctor::take_part(&arguments),
    }
}

/// The words of the command line. clap's own `help` takes no option, so `sluice help --help`
/// becomes `sluice help help`.
fn arguments() -> Vec<OsString> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if let [_, help, option] = words.as_mut_slice()
        && help == "help"
        && (option == "--help" || option == "-h")
    {
        *option = OsString::from("help");
    }
    words
}

/// The command line as it is described above, and what the README says of each command.
fn description() -> clap::Command {
    let described = |command: clap::Command, name: &str| {
        let help = Part::of(name).help();
        // What a command says only in its long help stands before that.
        let long = command
            .get_after_long_help()
            .map(|more| format!("{more}\n{help}"));
        match long {
            Some(long) => command.after_long_help(long),
            None => command,
        }
        .after_help(help)
    };
    described(Arguments::command(), "").mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        if command.is_hide_set() {
            command
        } else {
            described(command, &name)
        }
    })
}

/// The version, the commit if the tool was built in a repository, and the version of what two
/// processes say to each other: those of equal protocols accelerate.
fn version() -> String {
    let commit = option_env!("BUILT_FROM");
    let commit = commit.map_or(String::new(), |commit| format!("commit {commit}, "));
    let protocol = sluice_stats::PROTOCOL;
    format!(
        "{} ({commit}protocol {protocol})",
        env!("CARGO_PKG_VERSION")
    )
}

/// Prints to stdout, if it is still read.
fn print(text: &str) {
    use std::io::Write;
    // Not `println!`, which panics when stdout is closed.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Has stdout taken what was `written`? A reader that has seen enough, as `head` has, is no
/// trouble; anything else is said.
fn is_written(written: std::io::Result<()>) -> bool {
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            complain(format_args!("stdout: {}", run::reason(&error)));
            false
        }
        _ => true,
    }
}

/// Says on stderr what the tool could not do or wants known: in one line, which a terminal gets
/// broken between words.
fn complain(what: impl std::fmt::Display) {
    use std::io::Write;
    // Not `eprintln!`, which panics when stderr is closed.
    let said = format!("sluice: {what}");
    let lines = terminal::Screen::of_stderr().wrapped(&said, 0);
    let _ = writeln!(std::io::stderr(), "{}", lines.join("\n"));
}
