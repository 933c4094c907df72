//! The command beside processes that make it hard to be looked at: it stays quick and small, says
//! what it leaves out, and shows the others.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Hostile, Python, Scratch, counting_library, text};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the command may take beside one target that does all it can.
const TIME: Duration = Duration::from_secs(2);
const MEMORY: u64 = 64 << 20;
const OUTPUT: usize = 1 << 20;

/// `sluice stat` looks at all processes, those of other tests too: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that is as it should be.
fn healthy(library: &Path) -> Python {
    let mut python = Python::preloaded(library);
    python.call("counting_begin");
    python
}

/// The counting library, and where to put other things.
fn prepared(name: &str) -> (Scratch, PathBuf) {
    let scratch = Scratch::new(name);
    let library = counting_library(&scratch);
    (scratch, library)
}

/// What the command said, and that it has kept to its bounds.
struct Run {
    status: i32,
    /// Of the command's processes.
    group: i32,
    out: String,
    err: String,
}

/// A small process that runs the command in a group of its own, and writes down what it took: exit
/// status, seconds, memory, group. What this program takes would count as the command's, were it to
/// start that itself.
const MEASURES: &str = "import os, resource, subprocess, sys, time
os.setpgid(0, 0)
begin = time.monotonic()
command = subprocess.Popen(sys.argv[2:])
try:
    status = command.wait(timeout=8)
except subprocess.TimeoutExpired:
    command.kill()
    os._exit(1)
took = time.monotonic() - begin
memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
open(sys.argv[1], 'w').write(f'{status} {took} {memory} {os.getpid()}')
";

fn run(scratch: &Scratch, arguments: &[impl AsRef<OsStr>]) -> Run {
    let [out, err, took] = ["out", "err", "took"].map(|name| scratch.join(name));
    let measured = Command::new("python3")
        .args(["-c", MEASURES])
        .arg(&took)
        .arg(env!("CARGO_BIN_EXE_sluice"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .status();
    let read = |path| text(&std::fs::read(path).unwrap());
    let (out, err) = (read(&out), read(&err));
    assert!(measured.unwrap().success(), "it hangs: {err}");
    let words = read(&took);
    let [status, seconds, memory, group] = words.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{words}");
    };
    println!(
        "{seconds} s, {memory} bytes of memory, {} of output",
        out.len()
    );
    assert!(
        seconds.parse::<f64>().unwrap() < TIME.as_secs_f64(),
        "it took {seconds} s: {err}"
    );
    assert!(
        memory.parse::<u64>().unwrap() < MEMORY,
        "it took {memory} bytes of memory"
    );
    assert!(out.len() + err.len() < OUTPUT, "{} bytes", out.len());
    Run {
        status: status.parse().unwrap(),
        group: group.parse().unwrap(),
        out,
        err,
    }
}

/// `sluice stat --json` of all, in which `healthy` is whole; returns the report, and what was said
/// of `pid`.
fn all_beside(scratch: &Scratch, healthy: &Python, pid: u32) -> (Value, Vec<String>) {
    let Run {
        status, out, err, ..
    } = run(scratch, &["stat", "--json"]);
    assert_eq!(status, 0, "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let whole = of(&report, "processes", healthy.pid()).unwrap();
    assert_eq!(whole["connections"].as_array().unwrap().len(), 3);
    assert_eq!(whole["cut"], json!([]));
    let begin = format!("sluice: python3 (pid {pid}): ");
    let said = err.lines().filter_map(|line| line.strip_prefix(&begin));
    (report, said.map(str::to_owned).collect())
}

fn of(report: &Value, list: &str, pid: u32) -> Option<Value> {
    let mut all = report[list].as_array().unwrap().iter();
    all.find(|one| one["pid"] == pid).cloned()
}

const SILENT: &str = "read for 1 s without an answer, left out";

#[test]
fn a_thousand_mappings_that_are_named_as_the_library_cost_no_time_and_hide_nothing() {
    let _alone = alone();
    let (scratch, library) = prepared("hostile-mappings");
    std::fs::create_dir(scratch.join("other")).unwrap();
    let file = scratch.join("other/libsluice.so");
    let how = ["mappings", file.to_str().unwrap(), "1500"];
    let hostile = Hostile::new(&library, &how).unwrap();
    let healthy = healthy(&library);
    let (report, said) = all_beside(&scratch, &healthy, hostile.pid());
    // The file is not the library: it is examined once, and the true library mapped after it is
    // found.
    let shown = of(&report, "processes", hostile.pid()).unwrap();
    assert_eq!(shown["library"], library.to_str().unwrap());
    assert_eq!((&shown["cut"], said.len()), (&json!([]), 0));
}

#[test]
fn a_program_that_only_has_files_named_as_the_library_runs_without_it() {
    let _alone = alone();
    let (scratch, _) = prepared("hostile-named");
    std::fs::create_dir(scratch.join("other")).unwrap();
    let file = scratch.join("other/libsluice.so");
    let how = ["mappings", file.to_str().unwrap(), "1500"];
    let hostile = Hostile::new(Path::new(""), &how).unwrap();
    let pid = hostile.pid().to_string();
    let Run { status, err, .. } = run(&scratch, &["stat", &pid]);
    assert_eq!(
        err,
        format!("sluice: python3 (pid {pid}): runs without Sluice\n")
    );
    assert_eq!(status, 1);
}

#[test]
fn a_page_that_never_comes_is_waited_for_a_second_and_no_longer() {
    let _alone = alone();
    let (scratch, library) = prepared("hostile-page");
    let Some(hostile) = Hostile::new(&library, &["page"]) else {
        return;
    };
    let healthy = healthy(&library);
    let (report, said) = all_beside(&scratch, &healthy, hostile.pid());
    assert_eq!(said, [SILENT]);
    let refused = of(&report, "refused", hostile.pid()).unwrap();
    assert_eq!(
        (&refused["why"], &refused["silent"]),
        (&json!(SILENT), &json!(true))
    );
    let pid = hostile.pid().to_string();
    for command in ["stat", "trace"] {
        let Run { status, err, .. } = run(&scratch, &[command, &pid]);
        assert_eq!(err, format!("sluice: python3 (pid {pid}): {SILENT}\n"));
        assert_eq!(status, 1);
    }
    let Run { out, .. } = run(&scratch, &["stat", "--prometheus"]);
    let line = format!("sluice_cut{{pid=\"{pid}\",name=\"python3\",part=\"process\"}} 1");
    assert!(out.lines().any(|l| l == line), "{out}");
    let line = format!(
        "sluice_tracked_total{{pid=\"{}\",name=\"python3\"}} 5",
        healthy.pid()
    );
    assert!(out.lines().any(|l| l == line), "{out}");
}

#[test]
fn many_pages_that_never_come_are_waited_for_together() {
    let _alone = alone();
    let (scratch, library) = prepared("hostile-pages");
    let mut hostile = Vec::new();
    for _ in 0..8 {
        let Some(one) = Hostile::new(&library, &["page"]) else {
            return;
        };
        hostile.push(one);
    }
    let healthy = healthy(&library);
    let (report, _) = all_beside(&scratch, &healthy, 0);
    for one in &hostile {
        let refused = of(&report, "refused", one.pid()).unwrap();
        assert_eq!(refused["why"], SILENT);
    }
}

#[test]
fn a_file_system_that_never_answers_holds_up_nobody() {
    let _alone = alone();
    let (scratch, library) = prepared("hostile-server");
    let folder = scratch.join("mount");
    std::fs::create_dir(&folder).unwrap();
    let how = ["server", folder.to_str().unwrap()];
    let Some(hostile) = Hostile::new(&library, &how) else {
        return;
    };
    let healthy = healthy(&library);
    let (report, said) = all_beside(&scratch, &healthy, hostile.pid());
    assert_eq!(said, [SILENT]);
    assert!(of(&report, "refused", hostile.pid()).is_some());
    let pid = hostile.pid().to_string();
    let Run { status, group, .. } = run(&scratch, &["stat", &pid]);
    assert_eq!(status, 1);
    // The reader cannot be killed before its target ends, but it holds up no other process.
    drop(hostile);
    let deadline = Instant::now() + Duration::from_secs(10);
    // SAFETY: no signal: only asks whether a process is left in the group, of which the command was
    // one.
    while unsafe { libc::kill(-group, 0) } == 0 {
        assert!(
            Instant::now() < deadline,
            "a process of the command is left"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_million_forged_connections_are_counted_and_not_listed() {
    let _alone = alone();
    let (scratch, library) = prepared("hostile-table");
    let claimed = (1 << 20).to_string();
    let hostile = Hostile::new(&library, &["table", &claimed]).unwrap();
    let healthy = healthy(&library);
    let (report, said) = all_beside(&scratch, &healthy, hostile.pid());
    let shown = of(&report, "processes", hostile.pid()).unwrap();
    assert_eq!(shown["connections"].as_array().unwrap().len(), 500);
    let words: Vec<_> = shown["cut"].as_array().unwrap().iter().collect();
    assert_eq!(words.len(), said.len());
    // A busy machine has no time for all of them, and says so as well.
    let of_list = said.last().unwrap();
    assert!(
        of_list.ends_with(" connections, the first 500 listed"),
        "{said:?}"
    );
    assert_eq!(words[words.len() - 1]["code"], "connections");
    if said.len() == 1 {
        assert!(of_list.starts_with("1048576 connections, "), "{said:?}");
        assert_eq!(shown["open"], json!({"tcp": 1 << 20}));
    }
    let pid = hostile.pid().to_string();
    let Run { status, out, .. } = run(&scratch, &["stat", &pid]);
    assert_eq!(status, 0);
    assert!(out.lines().count() < 520, "{out}");
    let Run { status, .. } = run(&scratch, &["stat", &pid, "--prometheus"]);
    assert_eq!(status, 0);
    let Run { status, .. } = run(&scratch, &["trace", &pid]);
    assert_eq!(status, 0);
}

#[test]
fn a_table_that_leads_back_to_itself_is_left_where_it_does() {
    let _alone = alone();
    let (scratch, library) = prepared("hostile-loop");
    let claimed = (1 << 20).to_string();
    let hostile = Hostile::new(&library, &["loop", &claimed]).unwrap();
    let healthy = healthy(&library);
    let (report, said) = all_beside(&scratch, &healthy, hostile.pid());
    let words = "1048576 connections claimed in a table that is broken behind the first 256";
    assert_eq!(said, [words]);
    let shown = of(&report, "processes", hostile.pid()).unwrap();
    assert_eq!(shown["cut"], json!([{"code": "table", "words": words}]));
    assert_eq!(shown["connections"].as_array().unwrap().len(), 256);
}

#[test]
fn a_watcher_goes_on_beside_a_page_that_never_comes() {
    let _alone = alone();
    let (_scratch, library) = prepared("hostile-watch");
    let Some(hostile) = Hostile::new(&library, &["page"]) else {
        return;
    };
    let healthy = healthy(&library);
    let mut tool = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["stat", "--json", "--watch", "0.05"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = tool.id();
    // It is to fail this test, and not to hang it.
    let guard = std::thread::spawn(move || {
        std::thread::park_timeout(8 * TIME);
        // SAFETY: a child that is not waited for before this thread has ended.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    });
    let begin = Instant::now();
    let mut lines = BufReader::new(tool.stdout.take().unwrap()).lines();
    for _ in 0..10 {
        let report: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(of(&report, "processes", healthy.pid()).is_some());
        let refused = of(&report, "refused", hostile.pid()).unwrap();
        assert_eq!(refused["why"], SILENT);
    }
    let took = begin.elapsed();
    assert!(took < 2 * TIME, "ten reports took {took:?}");
    // None of the processes that have read is left, dead or alive: at most those of a look that is
    // under way.
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    assert!(children.unwrap().split_whitespace().count() <= 2);
    guard.thread().unpark();
    guard.join().unwrap();
    tool.wait().unwrap();
}

#[test]
fn a_fifo_is_no_trace_and_is_not_waited_for() {
    let _alone = alone();
    let (scratch, _) = prepared("hostile-fifo");
    let path = scratch.join("run.1");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a C string and a mode.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let link = scratch.join("run.2");
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    let [fifo, link] = [&path, &link].map(|path| path.to_str().unwrap());
    let refused = "is no regular file";
    // Among the files of a name.
    let Run { status, err, .. } = run(&scratch, &["trace", scratch.join("run").to_str().unwrap()]);
    assert_eq!(
        err,
        format!("sluice: {fifo}: {refused}\nsluice: {link}: {refused}\n")
    );
    assert_eq!(status, 1);
    for what in [fifo, link] {
        let Run { status, err, .. } = run(&scratch, &["trace", what]);
        assert_eq!(err, format!("sluice: {what}: {refused}\n"));
        assert_eq!(status, 1);
    }
}

#[test]
fn a_huge_file_is_no_trace_and_is_not_read() {
    let _alone = alone();
    let (scratch, _) = prepared("hostile-huge");
    let path = scratch.join("run.1");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    let shown = path.to_str().unwrap();
    let Run { status, err, .. } = run(&scratch, &["trace", shown]);
    assert_eq!(err, format!("sluice: {shown}: is no trace of Sluice\n"));
    assert_eq!(status, 1);
}
