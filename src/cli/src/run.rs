//! `sluice run`: puts the library in front of a program and becomes that program.

use crate::complain;
use crate::inherited;
use crate::process::{self, Shown};
use crate::required;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// As env(1) and timeout(1) have it: the tool itself failed.
const FAILED: u8 = 125;
/// As a shell has it: the command was found but cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// As a shell has it: there is no such command.
const NOT_FOUND: u8 = 127;

const LIBRARY: &str = "libsluice.so";

#[derive(Args)]
pub struct Arguments {
    /// Set an environment variable for the command
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE",
        value_parser = OsStringValueParser::new().try_map(variable))]
    variables: Vec<(OsString, OsString)>,

    /// How bytes travel on a link (SLUICE_MODE)
    #[arg(long)]
    mode: Option<Mode>,

    /// After how many bytes a connection leaves TCP: eager, off, or a number, which may end in K, M
    /// or G (SLUICE_UPGRADE)
    #[arg(long, value_name = "WHEN", value_parser = threshold)]
    upgrade: Option<String>,

    /// Fail if a connection stays on TCP that moved enough bytes to leave it; for tests
    #[arg(long)]
    require: bool,

    /// Keep every message of each process in FILE.PID, for `sluice trace FILE` (SLUICE_TRACE)
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, value_parser = OsStringValueParser::new().try_map(untraced))]
    trace: Option<OsString>,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
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
    if is_number || matches!(text, "eager" | "off") {
        Ok(text.to_owned())
    } else {
        Err("eager, off, or a number of bytes such as 4096, 64K, 1M or 1G is expected")
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
    let variable = |name: &str| {
        let set = arguments
            .variables
            .iter()
            .rev()
            .find(|(set, _)| set == name);
        set.map(|(_, value)| value.clone())
            .or_else(|| env::var_os(name))
    };
    if let Some(obstacle) = find(program, variable("PATH")).and_then(|path| obstacle(&path)) {
        complain(format_args!(
            "{} {obstacle}; it stays on TCP",
            Shown(program.as_bytes())
        ));
    }

    let mut command = Command::new(program);
    command.args(rest);
    command.envs(
        arguments
            .variables
            .iter()
            .map(|(name, value)| (name, value)),
    );
    if let Some(mode) = arguments.mode.and_then(|mode| mode.to_possible_value()) {
        command.env("SLUICE_MODE", mode.get_name());
    }
    if let Some(upgrade) = &arguments.upgrade {
        command.env("SLUICE_UPGRADE", upgrade);
    }
    if let Some(trace) = &arguments.trace {
        command.env("SLUICE_TRACE", trace);
    }
    let before = variable("LD_PRELOAD").unwrap_or_default();
    let (preload, dropped) = preload(&library, &before);
    if !dropped.is_empty() {
        complain(format_args!(
            "LD_PRELOAD: {} is left out, for two copies of the library do not go together",
            Shown(&dropped.join(&b' '))
        ));
    }
    command.env("LD_PRELOAD", preload);
    let failed = if arguments.require {
        match required::run(command, required::named(variable("SLUICE_REPORT"))) {
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
    let found = match env::var_os("SLUICE_LIBRARY") {
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
            ["", "../lib", "../lib/sluice"]
                .iter()
                .find_map(|place| here.join(place).join(LIBRARY).canonicalize().ok())
                .ok_or_else(|| {
                    let shown = Shown(here.as_os_str().as_bytes()).to_string();
                    format!(
                        "{LIBRARY} is not in {shown}, nor in ../lib or ../lib/sluice from there; \
                         SLUICE_LIBRARY can name it"
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

/// `library` in front of what is preloaded already, and what of that had to go: other copies of
/// the library, from another installation for example, each of which would take every connection
/// for its own.
fn preload<'a>(library: &Path, before: &'a OsStr) -> (OsString, Vec<&'a [u8]>) {
    let is_library = |entry: &[u8]| {
        // Other names of the same file do no harm: the loader compares the files. It does not look
        // for a name without a slash in the working directory.
        let is_path = entry.contains(&b'/');
        is_path && std::fs::canonicalize(OsStr::from_bytes(entry)).is_ok_and(|file| file == library)
            || entry == library.as_os_str().as_bytes()
    };
    let (kept, dropped): (Vec<_>, Vec<_>) = before
        .as_bytes()
        .split(|byte| matches!(byte, b' ' | b':'))
        .filter(|entry| !entry.is_empty())
        .partition(|entry| is_library(entry) || !process::is_file_of(entry, LIBRARY));
    let own = library.as_os_str().as_bytes();
    let all = if kept.iter().any(|entry| is_library(entry)) {
        kept.join(&b':')
    } else {
        [vec![own], kept].concat().join(&b':')
    };
    (OsString::from_vec(all), dropped)
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

/// Why a preloaded library has no effect on this program, as far as its file tells.
fn obstacle(path: &Path) -> Option<&'static str> {
    /// As binfmt_script(5) of the kernel: so many interpreters of interpreters.
    const SCRIPTS: usize = 5;
    let mut path = path.to_owned();
    for _ in 0..SCRIPTS {
        if gains_privileges(&path) {
            return Some("is setuid, setgid or has capabilities, so the loader ignores LD_PRELOAD");
        }
        let file = File::open(&path).ok()?;
        let mut start = Vec::new();
        (&file).take(4096).read_to_end(&mut start).ok()?;
        match interpreter(&start) {
            Some(interpreter) => path = interpreter,
            None => return elf_obstacle(&file, &start),
        }
    }
    None
}

/// The program that runs a script.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start
        .strip_prefix(b"#!")?
        .split(|&byte| byte == b'\n')
        .next()?;
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty());
    Some(PathBuf::from(OsString::from_vec(words.next()?.to_vec())))
}

/// Would executing the file make the kernel set AT_SECURE?
fn gains_privileges(path: &Path) -> bool {
    let Ok(file) = path.metadata() else {
        return false;
    };
    // SAFETY: both have no arguments and no effect.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let is_setuid = file.mode() & libc::S_ISUID != 0 && file.uid() != uid;
    let is_setgid = file.mode() & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP;
    if is_setuid || is_setgid && file.gid() != gid {
        return true;
    }
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let name = c"security.capability";
    // SAFETY: two C strings that outlive the call; with a length of 0 nothing is written.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    // Root has the capabilities already; the kernel then does not call the program secure.
    len > 0 && uid != 0
}

fn elf_obstacle(file: &File, start: &[u8]) -> Option<&'static str> {
    /// What the tool, and with it the library, was built for.
    const OWN_CLASS: u8 = if cfg!(target_pointer_width = "64") {
        2
    } else {
        1
    };
    let header = start.strip_prefix(b"\x7fELF")?;
    if *header.first()? != OWN_CLASS {
        return Some("is a program of another word size than the library");
    }
    if OWN_CLASS != 2 {
        return None;
    }
    let linker = match elf64_linker(file, start) {
        Some(Some(linker)) => linker,
        Some(None) => return Some("is statically linked, so nothing can be preloaded"),
        None => return None,
    };
    let is_musl = linker.windows(4).any(|part| part == b"musl");
    is_musl.then_some("is linked to musl, and the library needs glibc")
}

/// The dynamic linker that an ELF64 file asks for: `Some(None)` if it asks for none, `None` if the
/// file cannot be understood. Field places as in elf(5).
fn elf64_linker(file: &File, start: &[u8]) -> Option<Option<Vec<u8>>> {
    const PT_INTERP: u32 = 3;
    /// Longer than any path (PATH_MAX).
    const LINKER_MAX: u64 = 4096;
    let table = u64::from_ne_bytes(field(start, 0x20)?);
    let entry_len = u64::from(u16::from_ne_bytes(field(start, 0x36)?));
    let count = u64::from(u16::from_ne_bytes(field(start, 0x38)?));
    for number in 0..count {
        let mut entry = [0; 56];
        let place = table.checked_add(number.checked_mul(entry_len)?)?;
        file.read_exact_at(&mut entry, place).ok()?;
        if u32::from_ne_bytes(field(&entry, 0)?) == PT_INTERP {
            let place = u64::from_ne_bytes(field(&entry, 0x08)?);
            let len = u64::from_ne_bytes(field(&entry, 0x20)?).min(LINKER_MAX);
            let mut path = vec![0; len as usize];
            file.read_exact_at(&mut path, place).ok()?;
            return Some(Some(path));
        }
    }
    Some(None)
}

fn field<const N: usize>(bytes: &[u8], place: usize) -> Option<[u8; N]> {
    bytes.get(place..place.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        for (before, all, dropped) in [
            ("", "/opt/libsluice.so", ""),
            ("/a.so b.so", "/opt/libsluice.so:/a.so:b.so", ""),
            ("/a.so:/opt/libsluice.so", "/a.so:/opt/libsluice.so", ""),
            (
                "/old/libsluice.so /a.so:libsluice.so.0:/libsluice.so/b.so",
                "/opt/libsluice.so:/a.so:/libsluice.so/b.so",
                "/old/libsluice.so libsluice.so.0",
            ),
            (
                "/old/libsluice.so:/opt/libsluice.so",
                "/opt/libsluice.so",
                "/old/libsluice.so",
            ),
        ] {
            let (is_all, is_dropped) = preload(Path::new("/opt/libsluice.so"), OsStr::new(before));
            assert_eq!(is_all, all);
            assert_eq!(is_dropped.join(&b' '), dropped.as_bytes());
        }
    }

    #[test]
    fn thresholds_are_checked_before_the_program_starts() {
        for text in ["eager", "off", "1", "32K", "4M", "1G"] {
            assert_eq!(threshold(text).unwrap(), text);
        }
        for text in ["", "K", "-1", "1k", "1T", "on", "eager "] {
            assert!(threshold(text).is_err(), "{text}");
        }
    }

    #[test]
    fn scripts_name_their_interpreter() {
        let named = |text: &str| interpreter(text.as_bytes());
        assert_eq!(named("#!/bin/sh\nexit"), Some("/bin/sh".into()));
        assert_eq!(
            named("#! \t/usr/bin/env -S python3\n"),
            Some("/usr/bin/env".into())
        );
        assert_eq!(named("#!"), None);
        assert_eq!(named("\u{7f}ELF"), None);
    }

    #[test]
    fn an_ordinary_program_meets_no_obstacle() {
        let python = find(OsStr::new("python3"), env::var_os("PATH")).unwrap();
        assert_eq!(obstacle(&python), None);
        assert_eq!(obstacle(Path::new("/nonexistent")), None);
    }

    #[test]
    fn a_damaged_file_is_no_obstacle() {
        let path = env::temp_dir().join(format!("sluice-run-{}", std::process::id()));
        for bytes in [
            &b""[..],
            b"\x7fELF",
            b"\x7fELF\x02\x01\x01",
            &[b"\x7fELF\x02".to_vec(), vec![0xff; 100]].concat(),
        ] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(obstacle(&path), None);
        }
        std::fs::write(&path, b"\x7fELF\x01\x01").unwrap();
        assert!(obstacle(&path).unwrap().contains("word size"));
        std::fs::remove_file(&path).unwrap();
    }
}
