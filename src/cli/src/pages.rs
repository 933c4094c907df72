//! What is generated from the command line's own description: man pages and shell completions.

use crate::{complain, description, is_written};
use clap::{Args, ValueHint};
use clap_complete::Shell;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
pub struct CompletionsArguments {
    /// The shell that is to complete
    shell: Shell,
}

#[derive(Args)]
pub struct ManualArguments {
    /// Where the pages go
    #[arg(value_hint = ValueHint::DirPath)]
    directory: PathBuf,
}

/// Prints what the shell is to read.
pub fn completions(arguments: &CompletionsArguments) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut description(), "sluice", &mut text);
    if is_written(io::Write::write_all(&mut io::stdout(), &text)) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Writes sluice.1, a page for each subcommand, and sluice-reasons.7.
pub fn manual(arguments: &ManualArguments) -> ExitCode {
    match write_pages(&arguments.directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let folder = arguments.directory.display();
            complain(format_args!("{folder}: {}", crate::run::reason(&error)));
            ExitCode::FAILURE
        }
    }
}

fn write_pages(folder: &Path) -> io::Result<()> {
    clap_mangen::generate_to(description(), folder)?;
    std::fs::write(folder.join("sluice-reasons.7"), crate::reasons::page())
}
