//! `sluice run`: puts the library in front of a program and becomes that program.

use crate::complain;
use crate::inherited;
use crate::obstacle::{self, Obstacle};
use crate::process::Shown;
use crate::{library, preload, required};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// As env(1) and timeout(1) have it: the tool itself failed.
const FAILED: u8 = 125;
/// As a shell has it: the command was found but cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// As a shell has it: there is no such command.
const NOT_FOUND: u8 = 127;

#[derive(Args)]
pub struct Arguments {
    /// Set an environment variable for the command
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE",
        value_parser = OsStringValueParser::new().try_map(variable))]
    variables: Vec<(OsString, OsString)>,

    /// How bytes travel on a link (SLUICE_MODE)
    #[arg(long)]
    mode: Option<Mode>,

    /// When a connection leaves TCP: auto, eager, off, or after a number of bytes, which may end in
    /// K, M or G (SLUICE_UPGRADE)
    #[arg(long, value_name = "WHEN", value_parser = threshold)]
    upgrade: Option<String>,

    /// Fail if a connection stays on TCP that moved enough bytes to leave it; for tests
    #[arg(long)]
    require: bool,

    /// Keep every message of each process in FILE.PID, for `sluice trace FILE` (SLUICE_TRACE)
    #[arg(
        long,
        value_name = "FILE",
        value_hint = clap::ValueHint::FilePath,
        value_parser = OsStringValueParser::new().try_map(untraced)
    )]
    trace: Option<OsString>,

    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "COMMAND",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    Dynamic,
    Direct,
    Indirect,
}

/// The value may be any bytes, as in the environment itself.
fn variable(text: OsString) -> Result<(OsString, OsString), &'static str> {
    let mut parts = text.as_bytes().splitn(2, |&byte| byte == b'=');
    match (parts.next(), parts.next()) {
        (Some(name), Some(value)) if !name.is_empty() => Ok((
            OsStr::from_bytes(name).to_owned(),
            OsStr::from_bytes(value).to_owned(),
        )),
        _ => Err("NAME=VALUE is expected"),
    }
}

fn threshold(text: &str) -> Result<String, &'static str> {
    let digits = text.strip_suffix(['K', 'M', 'G']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number || matches!(text, "auto" | "eager" | "off") {
        Ok(text.to_owned())
    } else {
        Err("auto, eager, off, or a number of bytes such as 4096, 64K, 1M or 1G is expected")
    }
}

/// The beginning of names of files, in a folder that is there.
fn untraced(path: OsString) -> Result<OsString, String> {
    let file = Path::new(&path);
    if file.file_name().is_none() {
        return Err("the name of a file is expected".to_owned());
    }
    let folder = crate::trace::folder_of(file);
    folder.metadata().map_err(|error| reason(&error))?;
    Ok(path)
}

/// Returns only if the program could not be started.
pub fn run(arguments: Arguments) -> ExitCode {
    let Some((program, rest)) = arguments.command.split_first() else {
        return ExitCode::from(FAILED);
    };
    let library = match library() {
        Ok(library) => library,
        Err(why) => {
            complain(why);
            return ExitCode::from(FAILED);
        }
    };
    let obstacle = arguments.obstacle();
    if let Some((program, obstacle)) = obstacle {
        complain(format_args!(
            "{} {}; it stays on TCP",
            Shown(program.as_bytes()),
            obstacle.words()
        ));
    }
    let obstacle = obstacle.map(|(_, obstacle)| obstacle);
    let mut command = Command::new(program);
    command.args(rest);
    arguments.set(&mut command);
    set_preload(&mut command, &arguments, &library, obstacle);
    let failed = if arguments.require {
        match required::run(
            command,
            required::named(arguments.variable("SLUICE_REPORT")),
        ) {
            Ok(status) => return status,
            Err(failed) => failed,
        }
    } else {
        inherited::restore(&mut command);
        command.exec()
    };
    let is_missing = failed.kind() == io::ErrorKind::NotFound;
    let why = if is_missing && !program.as_bytes().contains(&b'/') {
        "command not found".to_owned()
    } else {
        reason(&failed)
    };
    complain(format_args!("{}: {why}", Shown(program.as_bytes())));
    ExitCode::from(if is_missing {
        NOT_FOUND
    } else {
        NOT_EXECUTABLE
    })
}

impl Arguments {
    /// The command, or the one that a shell is to execute for it, if the library does not serve it.
    fn obstacle(&self) -> Option<(&OsStr, Obstacle)> {
        let own = self.command.first().map(OsString::as_os_str);
        [own, only_command(&self.command)]
            .into_iter()
            .flatten()
            .find_map(|program| {
                let path = find(program, self.variable("PATH"))?;
                Some((program, obstacle::of(&path)?))
            })
    }

    /// What the command finds in its environment.
    fn variable(&self, name: &str) -> Option<OsString> {
        let set = self.variables.iter().rev().find(|(set, _)| set == name);
        set.map(|(_, value)| value.clone())
            .or_else(|| env::var_os(name))
    }

    /// Puts the options into the command's environment.
    fn set(&self, command: &mut Command) {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(mode) = self.mode.and_then(|mode| mode.to_possible_value()) {
            command.env("SLUICE_MODE", mode.get_name());
        }
        if let Some(upgrade) = &self.upgrade {
            command.env("SLUICE_UPGRADE", upgrade);
        }
        if let Some(trace) = &self.trace {
            command.env("SLUICE_TRACE", trace);
        }
    }
}

fn set_preload(
    command: &mut Command,
    arguments: &Arguments,
    library: &Path,
    obstacle: Option<Obstacle>,
) {
    let has_library_path = arguments
        .variable("LD_LIBRARY_PATH")
        .is_some_and(|path| !path.is_empty());
    // The loader of a 32-bit program would complain. The other programs that stay on TCP start as
    // without the library, and it serves programs that they start.
    let name =
        (obstacle != Some(Obstacle::Bits32)).then(|| preload::name(library, has_library_path));
    let before = arguments.variable("LD_PRELOAD").unwrap_or_default();
    let (value, dropped) = preload::value(library, name.as_deref(), &before);
    if !dropped.is_empty() {
        complain(format_args!(
            "LD_PRELOAD: {} is left out, for two copies of the library do not go together",
            Shown(&dropped.join(&b' '))
        ));
    }
    if value.is_empty() {
        command.env_remove("LD_PRELOAD");
    } else {
        command.env("LD_PRELOAD", value);
    }
}

/// What the system says, without Rust's "(os error N)".
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Where the library is, as an absolute path that LD_PRELOAD can hold.
pub fn library() -> Result<PathBuf, String> {
    let found = match env::var_os("SLUICE_LIBRARY").filter(|path| !path.is_empty()) {
        Some(path) => {
            let path = PathBuf::from(path);
            path.canonicalize().map_err(|error| {
                let shown = Shown(path.as_os_str().as_bytes()).to_string();
                format!("SLUICE_LIBRARY={shown}: {}", reason(&error))
            })?
        }
        None => {
            let tool = env::current_exe()
                .map_err(|error| format!("/proc/self/exe: {}", reason(&error)))?;
            let here = tool.parent().unwrap_or(Path::new("/"));
            let debians = format!("../lib/{}-linux-gnu", env::consts::ARCH);
            ["", "../lib", "../lib/sluice", &debians]
                .iter()
                .find_map(|place| here.join(place).join(library::NAME).canonicalize().ok())
                .ok_or_else(|| {
                    let shown = Shown(here.as_os_str().as_bytes()).to_string();
                    format!(
                        "{} is not in {shown}, nor in ../lib, ../lib/sluice or {debians} from \
                         there; SLUICE_LIBRARY can name it",
                        library::NAME
                    )
                })?
        }
    };
    let text = found.as_os_str().as_bytes();
    // ld.so(8): LD_PRELOAD is a list split at both, without a way to quote them, and `$` begins a
    // token such as $LIB.
    if text.iter().any(|byte| matches!(byte, b' ' | b':' | b'$')) {
        let shown = Shown(text).to_string();
        return Err(format!(
            "{shown}: a path with a space, a colon or a dollar sign cannot be preloaded"
        ));
    }
    Ok(found)
}

/// The program of `sh -c 'PROGRAM ARGUMENT...'`, where the shell is to do nothing else.
fn only_command(command: &[OsString]) -> Option<&OsStr> {
    const SHELLS: [&str; 3] = ["sh", "dash", "bash"];
    /// With one of these a word may mean another, or the script have more commands.
    const SPECIAL: &str = "|&;<>()$`\\\"'*?[]{}#~=%!\n";
    let [shell, flag, script, ..] = command else {
        return None;
    };
    let is_shell = SHELLS
        .iter()
        .any(|&name| Path::new(shell).file_name() == Some(name.as_ref()));
    let script = script.to_str().filter(|_| is_shell && flag == "-c")?;
    if script.contains(|letter| SPECIAL.contains(letter)) {
        return None;
    }
    let program = script.split_whitespace().find(|&word| word != "exec")?;
    Some(OsStr::new(program))
}

/// Which file execvp(3) will execute.
fn find(program: &OsStr, path: Option<OsString>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    env::split_paths(&path?)
        .map(|folder| folder.join(program))
        .find(|file| {
            file.metadata()
                .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_shell_with_one_command_names_it() {
        let named = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            only_command(&words).map(|name| name.to_string_lossy().into_owned())
        };
        for (words, name) in [
            (&["sh", "-c", "curl -s host"][..], Some("curl")),
            (
                &["/bin/bash", "-c", " exec /opt/a.out 1", "x"],
                Some("/opt/a.out"),
            ),
            (&["sh", "-c", "curl host | wc"], None),
            (&["sh", "-c", "A=1 curl"], None),
            (&["sh", "-c", "\"$0\"", "curl"], None),
            (&["sh", "-c", ""], None),
            (&["sh", "script"], None),
            (&["python3", "-c", "curl"], None),
        ] {
            assert_eq!(named(words).as_deref(), name, "{words:?}");
        }
    }

    #[test]
    fn thresholds_are_checked_before_the_program_starts() {
        for text in ["auto", "eager", "off", "1", "32K", "4M", "1G"] {
            assert_eq!(threshold(text).unwrap(), text);
        }
        for text in ["", "K", "-1", "1k", "1T", "on", "eager "] {
            assert!(threshold(text).is_err(), "{text}");
        }
    }
}
