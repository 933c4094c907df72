//! `sluice stat`: which processes and connections it shows, in which order, and how on a terminal.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Python, Scratch, counting_library, sluice, stat_json, text};
use std::process::{Command, Stdio};

/// What `sluice stat` writes to a terminal of so many columns, with these variables.
fn on_a_terminal(columns: u16, variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let script = "import fcntl, os, pty, struct, sys, termios\n\
        size = struct.pack('HHHH', 24, int(sys.argv[1]), 0, 0)\n\
        pid, end = pty.fork()\n\
        if not pid:\n  \
          fcntl.ioctl(0, termios.TIOCSWINSZ, size)\n  \
          os.execv(sys.argv[2], sys.argv[2:])\n\
        try:\n  \
          while part := os.read(end, 65536): os.write(1, part)\n\
        except OSError: pass\n\
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";
    let output = Command::new("python3")
        .args(["-c", script, &columns.to_string()])
        .args([env!("CARGO_BIN_EXE_sluice"), "stat"])
        .args(arguments)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).replace('\r', "")
}

#[test]
fn a_terminal_gets_lines_that_fit_and_colours_if_it_has_them() {
    let scratch = Scratch::new("terminal");
    let mut python = Python::preloaded(&counting_library(&scratch));
    python.call("counting_begin");
    let pid = python.pid().to_string();
    let plain = [("NO_COLOR", "1")];
    for columns in [80, 100, 120] {
        let shown = on_a_terminal(columns, &plain, &[&pid]);
        let mut below = shown.lines().skip_while(|line| !line.contains("[::1]:443"));
        // The reason has lines of its own.
        let words = sluice_stats::Reason::PeerPlain.words();
        let reason: Vec<_> = below.by_ref().skip(1).take(2).map(str::trim).collect();
        assert!(reason.join(" ").starts_with(words), "{shown}");
        assert!(!shown.contains("WHY"), "{shown}");
        for line in shown.lines() {
            assert_eq!(line, line.trim_end());
            assert!(line.chars().count() <= columns.into(), "{line}");
        }
    }
    assert!(on_a_terminal(80, &[], &[&pid]).contains("\x1b["));
    for none in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        assert!(!on_a_terminal(80, &[none], &[&pid]).contains('\x1b'));
    }
    // An empty NO_COLOR is none.
    assert!(on_a_terminal(80, &[("NO_COLOR", "")], &[&pid]).contains("\x1b["));
    assert!(!text(&sluice(&["stat", &pid]).stdout).contains('\x1b'));
}

/// The local addresses in `sluice stat --json` with these arguments, and the exit status.
fn locals(arguments: &[&str]) -> (Vec<String>, Option<i32>) {
    let output = sluice(&[&["stat", "--json"], arguments].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let processes = report["processes"].as_array().unwrap().iter();
    let all = processes.flat_map(|process| process["connections"].as_array().unwrap());
    let locals = all.map(|one| one["local"].as_str().unwrap().to_owned());
    (locals.collect(), output.status.code())
}

#[test]
fn connections_are_chosen_by_port_and_state_and_sorted() {
    let scratch = Scratch::new("choice");
    let mut python = Python::preloaded(&counting_library(&scratch));
    python.call("counting_begin");
    let pid = python.pid().to_string();
    let (all, _) = locals(&[&pid]);
    assert_eq!(all.len(), 3);
    let is = |arguments: &[&str], expected: &[&str]| {
        let (found, code) = locals(&[&[pid.as_str()], arguments].concat());
        assert_eq!(found, expected, "{arguments:?}");
        assert_eq!(code, Some(i32::from(expected.is_empty())));
    };
    is(&["--port", "1000"], &["127.0.0.1:1000"]);
    is(&["--port", "2000"], &["127.0.0.1:1000", "127.0.0.1:1002"]);
    is(&["--port", "9"], &[]);
    is(&["--state", "link"], &["127.0.0.1:1000"]);
    is(&["--state", "shm"], &["127.0.0.1:1000"]);
    is(&["--state", "verbs"], &[]);
    is(&["--state", "tcp", "--port", "1000"], &[]);
    is(&["--state", "tcp", "--port", "443"], &["[::1]:443"]);
    let port = |address: &String| address.rsplit(':').next().unwrap().parse::<u16>().unwrap();
    let mut sorted = all.clone();
    sorted.sort_by_key(port);
    assert_ne!(sorted, all);
    assert_eq!(locals(&[&pid, "--sort", "port"]).0, sorted);
    assert_eq!(locals(&[&pid, "--sort", "bytes"]).0[0], "127.0.0.1:1000");

    let shown = text(&sluice(&["stat", &pid, "--state", "link"]).stdout);
    for part in [
        "\n  1 connection: 1 shm of those asked for\n",
        "\n  sent 5.0M, received 68.4K; ",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!shown.contains("more on TCP"), "{shown}");
    let none = sluice(&["stat", &pid, "--port", "9"]);
    let said = "hidden: 1 process without such connections (--all shows them)\n";
    assert_eq!(text(&none.stdout), said);
    assert_eq!(none.status.code(), Some(1));
    let all = sluice(&["stat", &pid, "--port", "9", "--all"]);
    assert!(text(&all.stdout).starts_with(&format!("python3 (pid {pid})")));
    assert_eq!(all.status.code(), Some(1));
    for pair in [["--prometheus", "--port=9"], ["--prometheus", "--all"]] {
        assert_eq!(
            sluice(&[&["stat"], &pair[..]].concat()).status.code(),
            Some(2)
        );
    }
}

#[test]
fn a_choice_is_made_of_more_connections_than_are_listed() {
    let scratch = Scratch::new("choice-many");
    let mut python = Python::preloaded(&counting_library(&scratch));
    python.call("counting_many");
    let pid = python.pid().to_string();
    let (found, _) = locals(&[&pid, "--connections", "1", "--port", "599"]);
    assert_eq!(found, ["192.0.2.1:599"]);
    let output = sluice(&["stat", &pid, "--connections", "2", "--state", "tcp"]);
    let said = format!("sluice: python3 (pid {pid}): 600 connections, the first 2 listed\n");
    assert_eq!(text(&output.stderr), said);
}

#[test]
fn several_processes_can_be_named_and_idle_ones_are_hidden() {
    let scratch = Scratch::new("several");
    let library = counting_library(&scratch);
    let (mut busy, idle) = (Python::preloaded(&library), Python::preloaded(&library));
    busy.call("counting_begin");
    let [one, other] = [&busy, &idle].map(|python| python.pid().to_string());
    let json = sluice(&["stat", "--json", &one, &other, "python3"]);
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let of = |pid: u32| {
        let all = report["processes"].as_array().unwrap().iter();
        all.filter(|process| process["pid"] == pid).count()
    };
    assert_eq!((of(busy.pid()), of(idle.pid())), (1, 1));
    let command = &stat_json(busy.pid())["command"];
    assert!(command.as_str().unwrap().contains("python3 -c import sys "));

    let shown = |arguments: &[&str]| {
        let output = sluice(&[&["stat"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    let pids = [one.as_str(), other.as_str()];
    let has = |shown: &str, pid: &str| shown.contains(&format!("(pid {pid})"));
    let both = shown(&pids);
    assert!(has(&both, &one) && has(&both, &other), "{both}");
    assert!(both.contains("\n2 processes\n"), "{both}");
    let named = shown(&["python3"]);
    assert!(has(&named, &one) && !has(&named, &other), "{named}");
    assert!(
        named.contains(" without connections (--all shows them)"),
        "{named}"
    );
    let all = shown(&["--all"]);
    assert!(has(&all, &one) && has(&all, &other), "{all}");

    // What is not there is said, and the others are shown.
    let output = sluice(&["stat", &one, "2147483647", "nobody-is-called-so"]);
    assert!(output.status.success());
    let said = "sluice: pid 2147483647: no such process\n\
        sluice: no process is named nobody-is-called-so\n";
    assert_eq!(text(&output.stderr), said);
}
