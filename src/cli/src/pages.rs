//! What is generated from the command line's own description: man pages and shell completions.

pub mod readme;

use crate::{complain, description, is_written};
use clap::{Args, Command, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;
use readme::Part;
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
    let text = script(arguments.shell);
    if is_written(io::Write::write_all(&mut io::stdout(), text.as_bytes())) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What clap makes of the description, and what it cannot know: commands and processes.
fn script(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut visible(), "sluice", &mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    match shell {
        Shell::Bash => text + include_str!("pages/complete.bash"),
        Shell::Fish => text + include_str!("pages/complete.fish"),
        Shell::Zsh => {
            let help = include_str!("pages/complete.zsh");
            text.lines().fold(String::new(), |all, line| {
                // The argument of a command, by the name of its field.
                let line = match line.trim_start_matches(['\'', '*', ':']) {
                    rest if rest.starts_with("who -- ") => {
                        line.replace(":_default'", ":_sluice_processes'")
                    }
                    rest if rest.starts_with("traced -- ") => {
                        line.replace(":_default'", ":_sluice_traces'")
                    }
                    _ => line.to_owned(),
                };
                // The functions come before the end, which calls the first one.
                let help = if line == "_sluice() {" { help } else { "" };
                all + help.trim_start() + if help.is_empty() { "" } else { "\n" } + &line + "\n"
            })
        }
        _ => text,
    }
}

/// The command line without what is not for users, which clap offers to them all the same.
fn visible() -> Command {
    let all = description();
    let commands = all.get_subcommands().filter(|one| !one.is_hide_set());
    let version = all.get_version().unwrap_or_default().to_owned();
    Command::new("sluice")
        .version(version)
        .subcommands(commands.cloned())
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
    let mut tool = description().disable_help_subcommand(true);
    tool.build();
    let commands = tool.get_subcommands().filter(|one| !one.is_hide_set());
    let commands: Vec<&Command> = std::iter::once(&tool).chain(commands).collect();
    for command in &commands {
        let titles = commands.iter().map(|other| title(other));
        let others: Vec<String> = titles.filter(|other| *other != title(command)).collect();
        let page = page(command, &others)?;
        std::fs::write(folder.join(title(command) + ".1"), page)?;
    }
    std::fs::write(folder.join("sluice-reasons.7"), crate::reasons::page())
}

/// The name of a command's page.
fn title(command: &Command) -> String {
    let name = command.get_display_name();
    name.unwrap_or_else(|| command.get_name()).to_owned()
}

/// What clap knows of a command, and what the README says.
fn page(command: &Command, others: &[String]) -> io::Result<Vec<u8>> {
    use std::io::Write;
    let title = title(command);
    let part = Part::of(title.strip_prefix("sluice-").unwrap_or_default());
    let source = concat!("sluice ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(source).manual("Sluice");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    let escaped = title.replace('-', "\\-");
    writeln!(page, ".SH NAME\n{escaped} \\- {}", part.noun())?;
    man.render_synopsis_section(&mut page)?;
    let mut sections = part.sections();
    // The README has its examples early.
    let order = ["DESCRIPTION", "OPTIONS", "EXIT STATUS", "FILES", "EXAMPLES"];
    let place = |name: &str| order.iter().position(|one| *one == name);
    sections.sort_by_key(|(name, _)| place(name).unwrap_or(1));
    for (name, text) in sections {
        write!(page, ".SH \"{name}\"\n{text}")?;
        if name == "DESCRIPTION" {
            if command.get_arguments().any(|one| !one.is_hide_set()) {
                man.render_options_section(&mut page)?;
            }
            if command.has_subcommands() {
                man.render_subcommands_section(&mut page)?;
            }
        }
    }
    writeln!(page, ".SH \"SEE ALSO\"")?;
    for other in others {
        writeln!(page, ".BR {} (1),", other.replace('-', "\\-"))?;
    }
    writeln!(
        page,
        ".BR sluice\\-reasons (7),\n.BR libsluice.so (7),\n.BR sluice.conf (5)"
    )?;
    Ok(page)
}
