//! Configuration files, as the library reads them in a real program.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Python, Scratch, exchange, stat_json, text};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A python that reads this file and no other.
fn configured(scratch: &Scratch, name: &str, lines: &str) -> Python {
    let path = scratch.join(name);
    std::fs::write(&path, lines).unwrap();
    common::under_sluice(&[("SLUICE_CONFIG", path.as_os_str())])
}

/// Connects a plainly accelerated client to the server, exchanges a megabyte, and returns what
/// `sluice stat` says of the server's end.
fn served(server: &mut Python) -> Value {
    let mut client = common::under_sluice(&[]);
    exchange(server, &mut client);
    let process = stat_json(server.pid());
    process["connections"][0].clone()
}

#[test]
fn a_rule_leaves_connections_on_tcp() {
    let scratch = Scratch::new("rules");
    for (lines, leaves) in [
        ("[leave]\naddress = 127.0.0.0/8\nrole = server", true),
        ("[leave]\nport = 1-65535\nprogram = python3*", true),
        ("[leave]\nrole = client", false),
        ("[leave]\nprogram = perl", false),
        ("[accelerate]\naddress = 127.0.0.1\n[leave]", false),
    ] {
        let mut server = configured(&scratch, "rules.conf", lines);
        let connection = served(&mut server);
        let expected = if leaves { "tcp" } else { "shm" };
        assert_eq!(connection["transport"], expected, "{lines}");
        if leaves {
            assert_eq!(connection["reason"]["code"], "policy", "{lines}");
        }
    }
}

#[test]
fn no_more_connections_than_allowed_are_accelerated() {
    let scratch = Scratch::new("limits");
    let mut server = configured(&scratch, "limits.conf", "connections = 1");
    let mut first = common::under_sluice(&[]);
    exchange(&mut server, &mut first);
    server.tell("kept = end");
    served(&mut server);
    let process = stat_json(server.pid());
    let mut transports = process["connections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["transport"].as_str().unwrap())
        .collect::<Vec<_>>();
    transports.sort_unstable();
    assert_eq!(transports, ["shm", "tcp"], "{process:#}");
    assert_eq!(process["reasons"]["bounded"], 1, "{process:#}");
}

#[test]
fn rings_take_no_more_memory_than_allowed() {
    let scratch = Scratch::new("memory");
    let mut server = common::under_sluice(&[]);
    let mut client = configured(&scratch, "memory.conf", "memory = 40K");
    exchange(&mut server, &mut client);
    let process = stat_json(server.pid());
    // What the client lends, the server writes to.
    assert_eq!(process["connections"][0]["tx"]["ring_len"], 32 << 10);
}

#[test]
fn the_environment_wins() {
    let scratch = Scratch::new("wins");
    let path = scratch.join("sluice.conf");
    std::fs::write(&path, "upgrade = off").unwrap();
    for (upgrade, transport) in [(None, json!(null)), (Some("32K"), json!("shm"))] {
        let mut variables = vec![("SLUICE_CONFIG", path.as_os_str())];
        variables.extend(upgrade.map(|value| ("SLUICE_UPGRADE", OsStr::new(value))));
        let mut server = common::under_sluice(&variables);
        let connection = served(&mut server);
        assert_eq!(connection["transport"], transport, "{upgrade:?}");
    }
}

/// A user's file with a line that is named where it is read.
fn users_file(home: &Path) -> PathBuf {
    let folder = home.join(".config/sluice");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("sluice.conf");
    std::fs::write(&path, "ring = 1M\nsped = 3\n").unwrap();
    // Whatever the umask.
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    path
}

/// What the library says in a program of the user whose home this is.
fn said_at(home: &Path, variables: &[(&str, &OsStr)]) -> String {
    drop(common::under_sluice(&[]));
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command
        .args(["run", "--", "true"])
        .env("HOME", home)
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("SLUICE_CONFIG")
        .envs(variables.iter().copied())
        .stdout(Stdio::null());
    text(&command.output().unwrap().stderr)
}

#[test]
fn a_users_file_is_read_and_a_bad_line_is_named() {
    let scratch = Scratch::new("home");
    let path = users_file(&scratch.0);
    let named = format!("{}:2: \"sped\": unknown setting, ignored", path.display());
    assert_eq!(said_at(&scratch.0, &[]), format!("sluice: {named}\n"));
    let chosen = |path: &str| said_at(&scratch.0, &[("SLUICE_CONFIG", OsStr::new(path))]);
    assert_eq!(chosen(""), "");
    let expected = "sluice: SLUICE_CONFIG=\"/none\" cannot be read (No such file or directory), \
                    using no file\n";
    assert_eq!(chosen("/none"), expected);
}

#[test]
fn a_users_file_that_others_can_write_is_named_and_ignored() {
    let scratch = Scratch::new("writable");
    let path = users_file(&scratch.0);
    for mode in [0o664, 0o646] {
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let expected = format!(
            "sluice: {} may be written to by others than its owner (mode 0{mode:o}), ignored\n",
            path.display()
        );
        assert_eq!(said_at(&scratch.0, &[]), expected);
    }
    // A file that is named was looked at.
    let said = said_at(&scratch.0, &[("SLUICE_CONFIG", path.as_os_str())]);
    assert!(
        said.ends_with(":2: \"sped\": unknown setting, ignored\n"),
        "{said}"
    );
}

#[test]
fn another_users_file_is_named_and_ignored() {
    let scratch = Scratch::new("sudo");
    let path = users_file(&scratch.0);
    if chown(&path, Some(12345), None).is_err() {
        return;
    }
    let expected = format!(
        "sluice: {} belongs to user 12345 and not to root, ignored\n",
        path.display()
    );
    assert_eq!(said_at(&scratch.0, &[]), expected);
}
