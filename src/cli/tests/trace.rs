//! `sluice trace`, of a process that runs and of files that killed ones have left.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{LEN, Scratch, assert_refused, exchange, sluice, text, under_sluice};
use serde_json::Value;
use std::ffi::OsStr;

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
        "no process is named no-such-program, and no trace is there",
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
        &format!("{shown}: has layout 99, and this tool ({version}) reads layout 1"),
    );
    bytes.splice(16..20, 1_u32.to_ne_bytes());
    std::fs::write(&path, &bytes).unwrap();
    refused(&[shown], &format!("{shown}: is cut off"));
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
