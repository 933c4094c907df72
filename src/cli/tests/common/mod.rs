//! What the tests of the command share: a library to load, programs that load it, the command.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A directory that goes away with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("sluice-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where cargo puts what it builds for these tests.
pub fn built() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_sluice"))
        .parent()
        .unwrap()
        .to_owned()
}

/// Builds `what` into the place where this test was built. Cargo does nothing if it is there.
pub fn build(what: &[&str]) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.arg("build").args(what);
    cargo.arg("--manifest-path");
    cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    cargo.arg("--target-dir").arg(built().parent().unwrap());
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A copy of the counting library, under the name of the real one.
pub fn counting_library(scratch: &Scratch) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| build(&["--package", "sluice-cli", "--example", "counting"]));
    let library = scratch.join("libsluice.so");
    std::fs::copy(built().join("examples/libcounting.so"), &library).unwrap();
    library
}

/// A python that executes one line after the other as it is told.
pub struct Python {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Python {
    pub fn new(command: &mut Command) -> Python {
        let driver = "import sys\nscope = {}\nfor line in sys.stdin:\n  \
                      exec(line, scope)\n  print('done', flush=True)\n";
        let mut child = command
            .args(["-c", driver])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut python = Python { child, answers };
        python.tell("import ctypes, mmap, os, socket, time");
        python
    }

    /// With `library` preloaded.
    pub fn preloaded(library: &Path) -> Python {
        Python::new(Command::new("python3").env("LD_PRELOAD", library))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Executes a line; returns what it printed.
    pub fn tell(&mut self, line: &str) -> String {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}").unwrap();
        let mut printed = String::new();
        loop {
            let mut answer = String::new();
            assert_ne!(
                self.answers.read_line(&mut answer).unwrap(),
                0,
                "python died of: {line}"
            );
            if answer == "done\n" {
                return printed;
            }
            printed.push_str(&answer);
        }
    }

    /// Forks a child that evaluates `expression`, which is over when this returns, and then waits
    /// for its parent's end.
    pub fn fork(&mut self, expression: &str) -> u32 {
        self.tell("life, done = os.pipe(), os.pipe()");
        self.tell(&format!(
            "child = os.fork() or ({expression}, os.write(done[1], b'x'), os.close(life[1]), \
             os.read(life[0], 1), os._exit(0))"
        ));
        self.tell("assert os.read(done[0], 1) == b'x'");
        self.tell("print(child)").trim().parse().unwrap()
    }

    /// Calls a function of the preloaded library.
    pub fn call(&mut self, function: &str) {
        self.tell(&format!("ctypes.CDLL(None).{function}()"));
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process of `common/hostile.py`, which ends with the test.
pub struct Hostile(Child);

impl Hostile {
    /// `None`, after a line that says why: it cannot be so here.
    pub fn new(library: &Path, how: &[&str]) -> Option<Hostile> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/hostile.py");
        let mut child = Command::new("python3")
            .arg(script)
            .args(how)
            .env("LD_PRELOAD", library)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        let hostile = Hostile(child);
        if said == "ready\n" {
            return Some(hostile);
        }
        assert!(said.contains(": "), "it died: {said}");
        println!("not tried: {said}");
        None
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn sluice(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(arguments)
        .output()
        .unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What is said of a process that one may not look into.
pub const ANOTHER_USERS: &str = "not allowed to look into it (another user's process, or \
                                 kernel.yama.ptrace_scope is set): try as root";

/// A subcommand about a process that it may not look into, with that one's number and name: root
/// asks about `own`, as somebody else, and anybody else about init.
pub fn about_another_users(
    scratch: &Scratch,
    own: &Python,
    subcommand: &str,
) -> (Command, u32, String) {
    // SAFETY: no arguments, no effect.
    let is_root = unsafe { libc::getuid() } == 0;
    let (pid, name) = if is_root {
        (own.pid(), "python3".to_owned())
    } else {
        let name = std::fs::read_to_string("/proc/1/comm").unwrap();
        (1, name.trim().to_owned())
    };
    // Where everybody may execute it.
    let tool = scratch.join("sluice");
    copy(env!("CARGO_BIN_EXE_sluice"), &tool);
    let mut command = Command::new(tool);
    command.args([subcommand, &pid.to_string()]);
    if is_root {
        use std::os::unix::process::CommandExt;
        command.uid(65534);
    }
    (command, pid, name)
}

/// The one process in `sluice stat PID --json`.
pub fn stat_json(pid: u32) -> serde_json::Value {
    stat_json_of(pid, None)
}

/// The same with up to so many of its connections.
pub fn stat_json_of(pid: u32, most: Option<&str>) -> serde_json::Value {
    let pid = pid.to_string();
    let mut arguments = vec!["stat", &pid, "--json"];
    if let Some(most) = most {
        arguments.extend(["--connections", most]);
    }
    let output = sluice(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["format"], 1);
    assert_eq!(report["processes"].as_array().unwrap().len(), 1);
    report["processes"][0].clone()
}

/// The tool said exactly one line, this one, and gave up.
pub fn assert_refused(output: &Output, status: i32, line: &str) {
    assert_eq!(text(&output.stderr), format!("sluice: {line}\n"));
    assert_eq!(output.status.code(), Some(status));
}

/// A copy that may be executed at once. Made by another process: a descriptor of this one's, open
/// for writing, would be held by whatever another test forks meanwhile, and the program be "busy".
#[allow(dead_code, reason = "not every test program makes copies")]
pub fn copy(from: impl AsRef<std::ffi::OsStr>, to: impl AsRef<std::ffi::OsStr>) {
    let copied = std::process::Command::new("cp").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

/// Bytes that each end sends, and gets back.
pub const LEN: u64 = 1_000_000;

/// Under the real library, with these variables and no configuration file.
pub fn under_sluice(variables: &[(&str, &OsStr)]) -> Python {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| build(&["--package", "sluice-preload"]));
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command
        .args(["run", "--", "python3"])
        .env("SLUICE_CONFIG", "")
        .envs(variables.iter().copied());
    Python::new(&mut command)
}

pub fn plain() -> Python {
    Python::new(&mut Command::new("python3"))
}

/// Connects the two; returns the port of the server.
pub fn connect(server: &mut Python, client: &mut Python) -> u64 {
    server.tell("listener = socket.create_server(('127.0.0.1', 0))");
    let port = server
        .tell("print(listener.getsockname()[1])")
        .trim()
        .parse()
        .unwrap();
    client.tell(&format!(
        "end = socket.create_connection(('127.0.0.1', {port}))"
    ));
    server.tell("end = listener.accept()[0]");
    port
}

/// Connects the two, sends there and back; returns the port of the server.
pub fn exchange(server: &mut Python, client: &mut Python) -> u64 {
    let port = connect(server, client);
    // Pieces that fit into any socket's buffers, so that neither end waits for the other's test.
    for _ in 0..LEN / 10_000 {
        client.tell("end.sendall(b'x' * 10000)");
        server.tell("end.sendall(end.recv(10000, socket.MSG_WAITALL))");
        client.tell("assert len(end.recv(10000, socket.MSG_WAITALL)) == 10000");
    }
    port
}

/// A terminal of its own, by a server of its own, which ends with the test.
pub struct Terminal {
    server: String,
}

impl Terminal {
    pub fn new(name: &str, command: &str) -> Self {
        let server = format!("sluice-{name}-{}", std::process::id());
        let terminal = Self { server };
        let size = ["-x", "80", "-y", "24"];
        let output = terminal.tmux(
            &[
                &["-f", "/dev/null", "new-session", "-d"],
                &size[..],
                &[command],
            ]
            .concat(),
        );
        assert!(output.status.success(), "{}", text(&output.stderr));
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        Command::new("tmux")
            .args(["-L", &self.server])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("this test needs tmux")
    }

    /// Until the screen shows what is wanted.
    pub fn shows(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let screen = text(&self.tmux(&["capture-pane", "-p"]).stdout);
            if wanted(&screen) {
                return screen;
            }
            assert!(Instant::now() < deadline, "{what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
