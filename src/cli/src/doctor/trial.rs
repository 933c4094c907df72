//! A real connection: two processes of this tool under the library exchange bytes, and their report
//! tells how these went.

use crate::private::Folder;
use clap::{Args, Subcommand};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Of one message, in bytes; each is sent back.
const MESSAGE: usize = 65536;
const MESSAGES: usize = 64;
/// Longest wait for an end of the trial.
const PATIENCE: Duration = Duration::from_secs(10);

/// What this tool does under the library, in a process of its own.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    end: End,
}

#[derive(Subcommand)]
enum End {
    Serve,
    Connect { port: u16 },
}

/// What the report of the connecting end tells.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that went by a link, those of them that were copied once, and all.
    pub linked: u64,
    pub direct: u64,
    pub total: u64,
    /// Why the connection is on TCP: a reason's code.
    pub reason: Option<String>,
}

/// The hidden command.
pub fn take_part(arguments: &Arguments) -> ExitCode {
    let done = match arguments.end {
        End::Serve => serve(),
        End::Connect { port } => connect(port),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::complain(crate::run::reason(&error));
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    let (mut end, _) = listener.accept()?;
    let mut message = vec![0; MESSAGE];
    for _ in 0..MESSAGES {
        end.read_exact(&mut message)?;
        end.write_all(&message)?;
    }
    Ok(())
}

fn connect(port: u16) -> io::Result<()> {
    let mut end = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let mut message = vec![0; MESSAGE];
    for number in 0..MESSAGES {
        message.fill(number as u8);
        end.write_all(&message)?;
        end.read_exact(&mut message)?;
        if message.iter().any(|&byte| byte != number as u8) {
            return Err(io::Error::other("other bytes came back"));
        }
    }
    Ok(())
}

/// # Errors
/// What kept the trial from being made, in words.
pub fn run(library: &Path) -> Result<Outcome, String> {
    let words = |error: io::Error| crate::run::reason(&error);
    let folder = Folder::new().map_err(words)?;
    let report = folder.join("report");
    let start = |end: &[&str]| {
        let tool = std::env::current_exe()?;
        let mut command = Command::new(tool);
        let set = std::env::vars_os().map(|(name, _)| name);
        for name in set.filter(|name| name.as_bytes().starts_with(b"SLUICE_")) {
            command.env_remove(name);
        }
        command
            .arg("trial")
            .args(end)
            .env("LD_PRELOAD", library)
            .env("SLUICE_CONFIG", "")
            .env("SLUICE_UPGRADE", "eager")
            .env("SLUICE_DIRECT", "16K")
            .env("SLUICE_REPORT", &report)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        crate::inherited::ends_with_us(&mut command);
        command.spawn()
    };
    let mut server = Ended(start(&["serve"]).map_err(words)?);
    let mut line = String::new();
    if let Some(stdout) = server.0.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(words)?;
    }
    let mut client = Ended(start(&["connect", line.trim()]).map_err(words)?);
    let deadline = Instant::now() + PATIENCE;
    client.wait(deadline)?;
    server.wait(deadline)?;
    let text = fs::read_to_string(&report).unwrap_or_default();
    outcome(&text, line.trim()).ok_or_else(|| "the library has reported nothing".to_owned())
}

/// A process of the trial, which does not outlive it.
struct Ended(Child);

impl Ended {
    fn wait(&mut self, deadline: Instant) -> Result<(), String> {
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("an end of it ended with {status}")),
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5))
                }
                Ok(None) => return Err(format!("not done after {} s", PATIENCE.as_secs())),
                Err(error) => return Err(crate::run::reason(&error)),
            }
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the lines of a report say of the end that connected to `port`.
fn outcome(report: &str, port: &str) -> Option<Outcome> {
    let peer = format!("peer=127.0.0.1:{port}");
    let line = report
        .lines()
        .find(|line| line.split(' ').any(|word| word == peer))?;
    let mut outcome = Outcome::default();
    for (name, value) in line.split(' ').filter_map(|word| word.split_once('=')) {
        let count = || value.parse::<u64>().unwrap_or(0);
        match name {
            "tx_tcp" | "rx_tcp" => outcome.total += count(),
            "tx_direct" | "rx_direct" => {
                outcome.direct += count();
                outcome.linked += count();
            }
            "tx_indirect" | "rx_indirect" | "tx_file" | "rx_file" | "tx_pages" => {
                outcome.linked += count()
            }
            "reason" => outcome.reason = Some(value.to_owned()),
            _ => {}
        }
    }
    outcome.total += outcome.linked;
    Some(outcome)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_connecting_end_counts() {
        let report = "conn local=127.0.0.1:7 peer=127.0.0.1:50 upgrades=1 tx_tcp=1 tx_direct=9\n\
            conn local=127.0.0.1:50 peer=127.0.0.1:7 upgrades=1 demotions=0 \
            tx_tcp=10 tx_direct=20 tx_indirect=30 tx_file=0 \
            rx_tcp=5 rx_direct=0 rx_indirect=35 rx_file=0 reason=peer-closed\n";
        let expected = Outcome {
            linked: 85,
            direct: 20,
            total: 100,
            reason: Some("peer-closed".to_owned()),
        };
        assert_eq!(outcome(report, "7").unwrap(), expected);
        assert_eq!(outcome(report, "8"), None);
        assert_eq!(outcome("", "7"), None);
    }
}
