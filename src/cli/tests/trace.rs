//! `sluice trace`, of a process that runs and of files that killed ones have left.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{LEN, Scratch, assert_refused, exchange, sluice, text, under_sluice};
use serde_json::Value;
use sluice_stats::TRACE_LAYOUT;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

fn events(arguments: &[&str]) -> Vec<Value> {
    let output = sluice(&[&["trace", "--json"], arguments].concat());
    assert_eq!(text(&output.stderr), "");
    assert!(output.status.success());
    let lines = text(&output.stdout);
    let parsed = lines.lines().map(serde_json::from_str);
    parsed.collect::<Result<_, _>>().unwrap()
}

/// Where events of this kind stand.
fn places(events: &[Value], kind: &str) -> Vec<usize> {
    let found = events
        .iter()
        .enumerate()
        .filter(|(_, e)| e["event"] == kind);
    found.map(|(place, _)| place).collect()
}

fn sum(events: &[Value], kinds: &[&str]) -> u64 {
    let ours = events
        .iter()
        .filter(|e| kinds.iter().any(|k| e["event"] == *k));
    ours.map(|e| e["value"].as_u64().unwrap()).sum()
}

#[test]
fn a_process_tells_how_a_connection_left_tcp_and_came_back() {
    let (mut server, mut client) = (under_sluice(&[]), under_sluice(&[]));
    let port = exchange(&mut server, &mut client);
    server.tell("end.setsockopt(socket.SOL_SOCKET, 60, 1)");
    server.tell("end.close()");
    let pid = server.pid().to_string();
    let all = events(&[&pid]);
    let first = |kind: &str| *places(&all, kind).first().unwrap();
    let (named, upgraded, demoted) = (first("named"), first("upgraded"), first("demoted"));
    assert!(named < upgraded && upgraded < demoted, "{all:#?}");
    assert!(demoted < first("closed"), "{all:#?}");
    assert_eq!(all[upgraded]["local_port"], port);
    assert_eq!(all[upgraded]["words"], "left TCP for shared memory");
    let why = sluice_stats::Reason::Zerocopy.words();
    assert_eq!(all[demoted]["words"], format!("back to TCP: {why}"));
    let times: Vec<_> = all.iter().map(|e| e["time_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted());
    let messages = places(&all, "sent-ring");
    assert!(messages.is_empty(), "they are for files");

    let printed = text(&sluice(&["trace", &pid]).stdout);
    let upgrade = printed
        .lines()
        .find(|l| l.ends_with("left TCP for shared memory"));
    assert!(
        upgrade.unwrap().contains(&format!("{port} - ")),
        "{printed}"
    );
    assert_eq!(events(&[&pid, "--last", "1"]).len(), 1);
    assert_eq!(events(&[&pid, "--port", "1"]).len(), 0);
    assert_eq!(
        events(&[&pid, "--port", &port.to_string()]).len(),
        all.len()
    );
}

#[test]
fn files_hold_every_message_also_of_killed_processes() {
    let scratch = Scratch::new("trace");
    let path = scratch.join("run");
    let named = [("SLUICE_TRACE", path.as_os_str())];
    let (mut server, mut client) = (under_sluice(&named), under_sluice(&named));
    let port = exchange(&mut server, &mut client);
    let pid = server.pid();
    drop((server, client));
    let all = events(&[path.to_str().unwrap()]);
    let of_server: Vec<_> = all.iter().filter(|e| e["pid"] == pid).cloned().collect();
    assert_eq!(of_server[0]["program"], "python3");
    let ways = ["sent-tcp", "sent-direct", "sent-ring", "sent-file"];
    assert_eq!(sum(&of_server, &ways), LEN);
    let ways = ["got-tcp", "got-direct", "got-ring", "got-file"];
    assert_eq!(sum(&of_server, &ways), LEN);
    assert_ne!(sum(&of_server, &["got-ring"]), 0);
    let upgraded = places(&of_server, "upgraded")[0];
    assert!(places(&of_server, "got-tcp")[0] < upgraded);
    assert_eq!(of_server[upgraded]["local_port"], port);
    // One file alone.
    let file = format!("{}.{pid}", path.display());
    assert_eq!(events(&[&file]), of_server);
    let printed = text(&sluice(&["trace", path.to_str().unwrap()]).stdout);
    assert_eq!(printed.lines().count(), all.len());
}

#[test]
fn a_child_has_a_file_of_its_own() {
    let scratch = Scratch::new("trace-fork");
    let path = scratch.join("run");
    let mut server = under_sluice(&[("SLUICE_TRACE", path.as_os_str())]);
    let mut client = under_sluice(&[]);
    exchange(&mut server, &mut client);
    let child = server.fork("end.sendall(b'y' * 5000)");
    client.tell("assert end.recv(5000, socket.MSG_WAITALL) == b'y' * 5000");
    let of_child = events(&[&format!("{}.{child}", path.display())]);
    let ways = ["sent-tcp", "sent-direct", "sent-ring"];
    assert_eq!(sum(&of_child, &ways), 5000, "{of_child:#?}");
    assert_eq!(
        sum(
            &events(&[&format!("{}.{}", path.display(), server.pid())]),
            &ways
        ),
        LEN
    );
}

/// What a program does under `--trace PATH`, in a mount namespace of its own after this command of
/// the shell's.
fn traced_after(prepare: &str, path: &Path, program: &str) -> Output {
    drop(under_sluice(&[]));
    let [tool, path] = [Path::new(env!("CARGO_BIN_EXE_sluice")), path].map(|p| p.to_str().unwrap());
    let script = format!("{prepare} && exec \"$@\"");
    Command::new("unshare")
        .args(["-rm", "sh", "-c", &script, "sh"])
        .args([tool, "run", "--trace", path, "--", "python3", "-c", program])
        .env("SLUICE_CONFIG", "")
        .output()
        .unwrap()
}

/// Two sockets, a kilobyte from one to the other, and then how many files are at the path.
const ALONE: &str = "import os, signal, socket, sys
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
listener = socket.create_server(('127.0.0.1', 0))
ours = socket.create_connection(listener.getsockname())
theirs = listener.accept()[0]
ours.sendall(b'x' * 1000)
assert theirs.recv(1000, socket.MSG_WAITALL) == b'x' * 1000
print(len(os.listdir(os.path.dirname(os.environ['SLUICE_TRACE']))))
";

#[test]
fn a_full_disk_costs_the_trace_and_not_the_program() {
    let scratch = Scratch::new("trace-full");
    let path = scratch.join("run");
    let folder = scratch.0.to_str().unwrap();
    let mount = |what: &str| format!("mount -t {what} none {folder}");
    if !traced_after(&mount("tmpfs"), &path, "").status.success() {
        // A user that may not mount has no disk that is full.
        return;
    }
    let output = traced_after(&mount("tmpfs -o size=64k"), &path, ALONE);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert_eq!(text(&output.stdout), "0\n");
    let len = size_of::<sluice_stats::TraceFile>();
    let room = format!("finds no room for {len} bytes (No space left on device)\n");
    assert!(said.starts_with("sluice: no trace is kept: "), "{said}");
    assert!(said.ends_with(&room) && said.lines().count() == 1, "{said}");
    // A file system without fallocate.
    let output = traced_after(&mount("ramfs"), &path, ALONE);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), "1\n");
}

#[test]
fn a_limit_on_files_costs_the_trace_and_not_the_program() {
    let scratch = Scratch::new("trace-limit");
    let path = scratch.join("run");
    let output = traced_after("ulimit -f 100", &path, ALONE);
    let said = text(&output.stderr);
    if said.starts_with("unshare: ") {
        return;
    }
    assert!(output.status.success(), "{}: {said}", output.status);
    assert_eq!(text(&output.stdout), "0\n");
    assert!(said.starts_with("sluice: no trace is kept: "), "{said}");
    assert!(said.ends_with(" more than a file may have (ulimit -f)\n"));
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// Puts a python under a filter that kills for `openat`.
const FILTER: &str = "import struct; \
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, 257), (6, 0, 0, 0x80000000), (6, 0, 0, 0x7fff0000)]; \
    kept = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *each) for each in code)); \
    rules = struct.pack('HxxxxxxQ', len(code), ctypes.addressof(kept)); \
    rules = ctypes.create_string_buffer(rules); \
    call = ctypes.CDLL(None).prctl; \
    call(38, 1, 0, 0, 0); \
    assert call(22, 2, rules, 0, 0) == 0";

#[test]
fn a_program_that_filters_its_own_calls_is_traced_and_not_killed() {
    let scratch = Scratch::new("trace-filter");
    let path = scratch.join("run");
    let named = [("SLUICE_TRACE", path.as_os_str())];
    let (mut server, mut client) = (under_sluice(&named), under_sluice(&[]));
    // Before its first socket.
    server.tell(FILTER);
    exchange(&mut server, &mut client);
    let child = server.fork("end.sendall(b'y' * 5000)");
    client.tell("assert end.recv(5000, socket.MSG_WAITALL) == b'y' * 5000");
    let of_server = events(&[&format!("{}.{}", path.display(), server.pid())]);
    assert_eq!(sum(&of_server, &["got-tcp"]), LEN);
    // It may open no file any more.
    assert!(!scratch.join(&format!("run.{child}")).exists());
}

#[test]
fn a_file_is_made_with_the_first_socket() {
    let scratch = Scratch::new("trace-first");
    let path = scratch.join("run");
    let mut python = under_sluice(&[("SLUICE_TRACE", path.as_os_str())]);
    let files = || std::fs::read_dir(&scratch.0).unwrap().count();
    assert_eq!(files(), 0);
    python.tell("end = socket.socket()");
    assert_eq!(files(), 1);
    // A child that uses no connection has nothing to keep.
    python.fork("0");
    python.tell("os.close(life[1]); os.waitpid(child, 0)");
    assert_eq!(files(), 1);
}

#[test]
fn what_is_no_trace_is_refused_in_words() {
    let scratch = Scratch::new("trace-bad");
    let path = scratch.join("x.1");
    let shown = path.to_str().unwrap();
    let refused = |arguments: &[&str], line: &str| {
        assert_refused(&sluice(&[&["trace"], arguments].concat()), 1, line);
    };
    refused(&["/none/there"], "/none/there: no trace was written there");
    refused(&["999999999"], "pid 999999999: no such process");
    refused(
        &["no-such-program"],
        "no process is named no-such-program, and there is no such trace file",
    );
    let me = std::process::id().to_string();
    let output = sluice(&["trace", &me]);
    assert!(text(&output.stderr).ends_with("runs without Sluice\n"));
    std::fs::write(&path, "something else").unwrap();
    refused(&[shown], &format!("{shown}: is no trace of Sluice"));
    let mut bytes = b"\x7fSluice.Trace\xd6\x1c\xa5".to_vec();
    bytes.extend(99_u32.to_ne_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    refused(
        &[shown],
        &format!("{shown}: has layout 99, and this tool ({version}) reads layout {TRACE_LAYOUT}"),
    );
    bytes.splice(16..20, TRACE_LAYOUT.to_ne_bytes());
    std::fs::write(&path, &bytes).unwrap();
    refused(&[shown], &format!("{shown}: is cut off"));
    // A line for each of several.
    std::fs::write(scratch.join("x.2"), "something else").unwrap();
    let all = scratch.join("x");
    let all = all.to_str().unwrap();
    let lines = format!("{all}.1: is cut off\nsluice: {all}.2: is no trace of Sluice");
    refused(&[all], &lines);
}

#[test]
fn other_users_processes_are_refused_in_words() {
    let scratch = Scratch::new("trace-user");
    let python = under_sluice(&[]);
    let (mut command, pid, name) = common::about_another_users(&scratch, &python, "trace");
    let output = command.output().unwrap();
    let line = common::ANOTHER_USERS;
    assert_refused(&output, 1, &format!("{name} (pid {pid}): {line}"));
}

#[test]
fn run_names_the_files() {
    let scratch = Scratch::new("trace-run");
    let path = scratch.join("deep/run");
    let run = |path: &OsStr| {
        let run = [
            "run",
            "--trace",
            path.to_str().unwrap(),
            "--",
            "sh",
            "-c",
            "echo $SLUICE_TRACE",
        ];
        sluice(&run)
    };
    let output = run(path.as_os_str());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("No such file or directory"));
    std::fs::create_dir(scratch.join("deep")).unwrap();
    drop(under_sluice(&[]));
    assert_eq!(
        text(&run(path.as_os_str()).stdout).trim_end(),
        path.to_str().unwrap()
    );
    // Without a connection there is nothing to keep.
    assert_eq!(std::fs::read_dir(scratch.join("deep")).unwrap().count(), 0);
}
