//! `sluice run --require`: the program as a child, and a look at its report when it has ended.

use crate::{complain, inherited};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

/// The exit status where a connection stayed on TCP that should not have.
pub const NOT_ACCELERATED: u8 = 96;
/// Connections that are named.
const NAMED: usize = 20;

/// The child, for the handler.
static CHILD: AtomicI32 = AtomicI32::new(0);

/// Hands a signal on.
extern "C" fn hand_on(signal: libc::c_int) {
    let child = CHILD.load(Ordering::Relaxed);
    if child > 0 {
        // SAFETY: a child that is not waited for yet.
        unsafe { libc::kill(child, signal) };
    }
}

/// Where the library writes its lines: the caller's file, from its end on, or one of our own.
struct Report {
    path: PathBuf,
    begin: u64,
    is_ours: bool,
}

impl Report {
    fn new(named: Option<PathBuf>) -> Self {
        match named {
            Some(path) => Self {
                begin: path.metadata().map_or(0, |file| file.len()),
                path,
                is_ours: false,
            },
            None => Self {
                path: std::env::temp_dir().join(format!("sluice-require-{}", std::process::id())),
                begin: 0,
                is_ours: true,
            },
        }
    }

    fn text(&self) -> String {
        let read = |path: &Path| -> io::Result<String> {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(self.begin))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read(&self.path).unwrap_or_default()
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Runs the command to its end. `named`: where its report goes, if the caller has said so. An
/// error: it could not be started.
pub fn run(mut command: Command, named: Option<PathBuf>) -> io::Result<ExitCode> {
    let report = Report::new(named);
    command.env("SLUICE_REPORT", &report.path);
    inherited::restore(&mut command);
    let handed_on = [
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGCONT,
    ];
    // What the terminal sends reaches the program itself.
    let ignored = [libc::SIGINT, libc::SIGQUIT].map(|signal| {
        // SAFETY: no handler is set that could be called.
        let before = unsafe { libc::signal(signal, libc::SIG_IGN) };
        (signal, before)
    });
    let as_before = move || {
        for (signal, before) in ignored {
            // SAFETY: what this tool's caller had set: no handler outlives an exec.
            unsafe { libc::signal(signal, before) };
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(as_before) };
    let mut child = command.spawn()?;
    CHILD.store(child.id() as i32, Ordering::Relaxed);
    for signal in handed_on {
        let handler = hand_on as extern "C" fn(libc::c_int);
        // SAFETY: the handler makes one system call.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    let status = child.wait()?;
    CHILD.store(0, Ordering::Relaxed);
    let left = left_on_tcp(&report.text());
    for line in left.iter().take(NAMED) {
        complain(line);
    }
    if left.len() > NAMED {
        complain(format_args!("and {} more", left.len() - NAMED));
    }
    drop(report);
    Ok(if left.is_empty() {
        as_it_ended(status)
    } else {
        ExitCode::from(NOT_ACCELERATED)
    })
}

/// The exit status of the program, or its death by the same signal.
fn as_it_ended(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        // SAFETY: the default action of a signal, and this process.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        // One that does not end a process by default.
        return ExitCode::from(128_u8.saturating_add(signal as u8));
    }
    ExitCode::from(status.code().unwrap_or(1) as u8)
}

/// Of a report the connections that were never accelerated, though they moved enough bytes, in
/// words.
fn left_on_tcp(report: &str) -> Vec<String> {
    let mut all = Vec::new();
    for line in report.lines().filter(|line| line.starts_with("conn ")) {
        let field = |name: &str| {
            let mut words = line.split(' ').filter_map(|word| word.split_once('='));
            words
                .find(|(n, _)| *n == name)
                .map_or("", |(_, value)| value)
        };
        let code = field("reason");
        if field("upgrades") != "0" || code == "below-threshold" {
            continue;
        }
        let words = sluice_stats::Reason::ALL.iter().find(|r| r.code() == code);
        let words = words.map_or(code, |r| r.words());
        all.push(format!(
            "{} -> {} stayed on TCP: {words}",
            field("local"),
            field("peer")
        ));
    }
    all
}

/// The file that the caller has named for the report.
pub fn named(value: Option<std::ffi::OsString>) -> Option<PathBuf> {
    value.filter(|path| !path.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stayed_on_tcp_is_named() {
        let report = "conn local=127.0.0.1:1 peer=127.0.0.1:2 upgrades=1 demotions=1 reason=close\n\
            conn local=127.0.0.1:3 peer=127.0.0.1:4 upgrades=0 demotions=0 reason=below-threshold\n\
            noise\n\
            conn local=127.0.0.1:5 peer=127.0.0.1:6 upgrades=0 demotions=0 reason=no-answer\n";
        let left = left_on_tcp(report);
        assert_eq!(left.len(), 1);
        let words = sluice_stats::Reason::NoAnswer.words();
        assert_eq!(
            left.first(),
            Some(&format!(
                "127.0.0.1:5 -> 127.0.0.1:6 stayed on TCP: {words}"
            ))
        );
        assert_eq!(left_on_tcp("").len(), 0);
    }
}
