//! `sluice doctor` on this host, as it is, and as it would be without what it needs.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Scratch, Terminal, built, counting_library, text};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn doctor(library: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice"))
        .arg("doctor")
        .args(more)
        .env("SLUICE_LIBRARY", library)
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap()
}

fn check<'a>(part: &'a Value, what: &str) -> &'a Value {
    let all = part["checks"].as_array().unwrap();
    all.iter().find(|check| check["what"] == what).unwrap()
}

#[test]
fn a_real_connection_is_tried() {
    common::build(&["--package", "sluice-preload"]);
    let output = doctor(&built().join("libsluice.so"), &["--json"]);
    assert_eq!(text(&output.stderr), "");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["format"], 1);
    assert_eq!(found["shm"]["usable"], true, "{found:#}");
    let tried = check(&found["shm"], "a connection")["found"]
        .as_str()
        .unwrap();
    assert!(tried.contains("went through shared memory"), "{tried}");
    // RDMA that is not here is no failure; what is here and broken is.
    let checks = found["verbs"]["checks"].as_array().unwrap();
    let is_any_bad = checks.iter().any(|check| check["state"] == "bad");
    let is_broken = found["verbs"]["usable"] == false && is_any_bad;
    assert_eq!(output.status.code(), Some(i32::from(is_broken)));
    // The same, for people.
    let output = doctor(&built().join("libsluice.so"), &[]);
    let printed = text(&output.stdout);
    assert!(
        printed.starts_with("Within this host\n  ok    libsluice.so "),
        "{printed}"
    );
    assert!(printed.contains("\nshared memory: usable\n"), "{printed}");
    let is_none = printed.contains("\nRDMA: none here; ");
    assert_eq!(is_none, found["verbs"]["usable"] == false && !is_any_bad);
}

#[test]
fn a_missing_library_is_named_and_mended() {
    let output = doctor(Path::new("/nonexistent/libsluice.so"), &["--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["shm"]["usable"], false);
    let library = check(&found["shm"], "libsluice.so");
    assert_eq!(library["state"], "bad");
    assert!(
        library["found"]
            .as_str()
            .unwrap()
            .contains("/nonexistent/libsluice.so")
    );
    assert!(library["mend"].is_string());
    let is_rdma_here = found["verbs"]["usable"] == true;
    assert_eq!(output.status.code(), Some(if is_rdma_here { 3 } else { 4 }));
}

#[test]
fn a_library_without_effect_is_found_out_by_the_connection() {
    let scratch = Scratch::new("doctor");
    let library = counting_library(&scratch);
    let output = doctor(&library, &["--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(check(&found["shm"], "libsluice.so")["state"], "ok");
    assert_eq!(check(&found["shm"], "a connection")["state"], "bad");
    assert_eq!(found["shm"]["usable"], false, "{found:#}");
}

#[test]
fn settings_are_shown_and_stay_out_of_the_trial() {
    common::build(&["--package", "sluice-preload"]);
    let output = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .arg("doctor")
        .env("SLUICE_LIBRARY", built().join("libsluice.so"))
        .env("SLUICE_UPGRADE", "off")
        .output()
        .unwrap();
    let printed = text(&output.stdout);
    assert!(printed.contains("SLUICE_UPGRADE=off"), "{printed}");
    assert!(printed.contains("\nshared memory: usable\n"), "{printed}");
}

#[test]
fn a_long_path_is_broken_after_a_slash() {
    let scratch = Scratch::new("doctor-long");
    let mut folder = scratch.0.clone();
    folder.extend((0..8).map(|number| format!("a-long-directory-{number}")));
    let library = folder.join("libsluice.so");
    let tool = env!("CARGO_BIN_EXE_sluice");
    let command = format!(
        "export SLUICE_LIBRARY={}; {tool} run true; {tool} doctor; sleep 60",
        library.display()
    );
    let terminal = Terminal::new("doctor-long", &command);
    let screen = terminal.shows("the end", |s| s.contains("RDMA: "));
    let paths: Vec<_> = screen
        .lines()
        .filter(|l| l.contains("-directory-"))
        .collect();
    assert!(paths.len() > 3, "{screen}");
    for line in paths {
        let is_whole = line.ends_with('/') || line.contains("libsluice.so");
        assert!(is_whole, "{line}: {screen}");
    }
}
