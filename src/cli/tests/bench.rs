//! `sluice bench`: the real library against TCP, for moments.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Scratch, assert_refused, built, text};
use serde_json::Value;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn bench() -> Command {
    common::build(&["--package", "sluice-preload"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command
        .arg("bench")
        .args(["--seconds", "0.05", "--runs", "1"])
        .env("SLUICE_LIBRARY", built().join("libsluice.so"))
        .env_remove("LD_PRELOAD");
    command
}

#[test]
fn every_kind_is_measured_of_both() {
    let scratch = Scratch::new("bench");
    let (json, html) = (scratch.join("figures"), scratch.join("page"));
    let output = bench()
        .args([
            "--json".as_ref(),
            json.as_os_str(),
            "--html".as_ref(),
            html.as_os_str(),
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let figures = results["figures"].as_array().unwrap();
    for kind in ["latency", "stream", "churn", "many"] {
        assert!(figures.iter().any(|f| f["kind"] == kind), "{kind}");
    }
    for figures in figures {
        for carrier in ["tcp", "sluice"] {
            let rate = figures[carrier]["rate"].as_f64().unwrap();
            assert!(rate > 0.0, "{figures:#}");
            let is_timed = figures["kind"] != "stream";
            let p50 = figures[carrier]["p50_ns"].as_u64().unwrap();
            assert_eq!(p50 != 0, is_timed, "{figures:#}");
            assert!(p50 <= figures[carrier]["p99_ns"].as_u64().unwrap());
        }
    }
    let printed = text(&output.stdout);
    assert_eq!(printed.lines().count(), figures.len() + 1, "{printed}");
    let said = "sluice: 1 run of each case: too few to tell a difference from noise\n";
    assert_eq!(text(&output.stderr), said);
    // TIMES is the ratio of the two columns before it.
    for figures in figures.iter().filter(|f| f["kind"] == "latency") {
        let p50 = |carrier: &str| figures[carrier]["p50_ns"].as_f64().unwrap();
        let times = figures["times"].as_f64().unwrap();
        assert!((times * p50("sluice") / p50("tcp") - 1.0).abs() < 1e-9);
    }
    for field in ["name", "cpu", "kernel", "date", "load"] {
        assert_ne!(results["machine"][field], "", "{field}");
    }
    let page = std::fs::read_to_string(html).unwrap();
    assert_eq!(page.matches("<svg").count(), 4);
}

#[test]
fn a_file_that_cannot_be_written_is_named_and_nothing_is_measured() {
    for option in ["--html", "--json"] {
        let output = bench().args([option, "/nonexistent/x"]).output().unwrap();
        // No table: it ended before.
        assert_eq!(text(&output.stdout), "");
        assert_refused(&output, 1, "/nonexistent/x: No such file or directory");
    }
}

#[test]
fn another_host_serves() {
    common::build(&["--package", "sluice-preload"]);
    // Two neighbours that are free.
    let port = |at: u16| TcpListener::bind(("127.0.0.1", at)).and_then(|l| l.local_addr());
    let free = std::iter::repeat_with(|| port(0).unwrap().port());
    let port = free
        .take(1000)
        .find(|&first| first < u16::MAX && port(first + 1).is_ok())
        .unwrap();
    let at = format!("127.0.0.1:{port}");
    let mut server = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["bench", "--serve", &at])
        .env("SLUICE_LIBRARY", built().join("libsluice.so"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(server.stderr.take().unwrap()),
        &mut line,
    )
    .unwrap();
    assert!(
        line.starts_with(&format!("sluice: serving at {at} and ")),
        "{line}"
    );
    let output = bench()
        .args(["--only", "latency,churn", &at])
        .output()
        .unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    // Its ends go with it, and their ports are free again.
    let deadline = Instant::now() + Duration::from_secs(20);
    while TcpListener::bind(&at).is_err() {
        assert!(Instant::now() < deadline, "{at} is still served");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert!(printed.contains("round trip ") && printed.contains("connections "));
    assert!(!printed.contains("stream"), "{printed}");
}

#[test]
fn a_host_that_does_not_serve_is_named() {
    // Nobody listens at a port that was just given back.
    let at = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let output = bench()
        .args(["--only", "churn", &at.to_string()])
        .output()
        .unwrap();
    assert_refused(
        &output,
        1,
        &format!("connections, 64: {at}: Connection refused"),
    );
    let output = bench().arg("--runs=0").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
