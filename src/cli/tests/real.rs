//! `sluice stat` on programs that run under the real library.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{LEN, Python, connect, exchange, plain, sluice, stat_json, text};
use serde_json::{Value, json};
use std::process::Command;

fn preloaded() -> Python {
    common::under_sluice(&[])
}

/// The process's connection, and whether its counters make sense.
fn checked(process: &Value, side: &str, port: u64) -> Value {
    assert_eq!(process["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(process["panics"], 0);
    let connections = process["connections"].as_array().unwrap();
    let ours = |c: &&Value| c[side] == format!("127.0.0.1:{port}");
    let connection = connections.iter().find(ours).unwrap().clone();
    for flow in ["tx", "rx"] {
        let ways = ["tcp", "direct", "indirect", "file", "pages"];
        let sum: u64 = ways
            .iter()
            .map(|way| connection[flow][way].as_u64().unwrap())
            .sum();
        assert_eq!(sum, LEN, "{flow}: {connection:#}");
    }
    let is_on_tcp = connection["transport"] == "tcp";
    assert_eq!(is_on_tcp, !connection["reason"].is_null(), "{connection:#}");
    connection
}

#[test]
fn every_byte_between_two_programs_is_counted_once() {
    let (mut server, mut client) = (preloaded(), preloaded());
    let port = exchange(&mut server, &mut client);
    let accepted = checked(&stat_json(server.pid()), "local", port);
    assert_eq!(accepted["role"], "accepted");
    let connecting = checked(&stat_json(client.pid()), "peer", port);
    assert_eq!(connecting["role"], "connecting");
    assert_eq!(accepted["peer"], connecting["local"]);
    assert_eq!(accepted["transport"], connecting["transport"]);
}

#[test]
fn what_lies_unread_in_a_ring_is_shown_at_both_ends() {
    let (mut server, mut client) = (preloaded(), preloaded());
    exchange(&mut server, &mut client);
    client.tell("end.sendall(b'x' * 12345)");
    let fill = |pid, flow: &str| {
        let connection = stat_json(pid)["connections"][0].clone();
        assert_eq!(connection[flow]["ring_len"], 256 << 10, "{connection:#}");
        connection[flow]["ring_fill"].clone()
    };
    assert_eq!(fill(client.pid(), "tx"), 12345);
    assert_eq!(fill(server.pid(), "rx"), 12345);
    assert_eq!(fill(server.pid(), "tx"), 0);
    let table = text(&sluice(&["stat", &client.pid().to_string()]).stdout);
    assert!(
        table.contains("12.1K of 256K not yet read by the peer"),
        "{table}"
    );
    server.tell("end.recv(12345, socket.MSG_WAITALL)");
    assert_eq!(fill(client.pid(), "tx"), 0);
}

#[test]
fn a_plain_peer_is_the_reason_for_tcp() {
    let (mut server, mut client) = (preloaded(), plain());
    let port = exchange(&mut server, &mut client);
    // Until nobody has answered at the name.
    server.tell("import select");
    for _ in 0..100 {
        server.tell("select.select([end], [], [], 0.01)");
    }
    let connection = checked(&stat_json(server.pid()), "local", port);
    assert_eq!(connection["reason"]["code"], "no-answer", "{connection:#}");
    assert_eq!(connection["upgrades"], 0);
}

#[test]
fn a_peer_that_has_closed_is_on_no_other_host() {
    let (mut server, mut client) = (preloaded(), preloaded());
    let port = connect(&mut server, &mut client);
    // Less than the buffers take, and nothing tried before the last byte is written.
    server.tell("end.sendall(b'x' * 40_000); end.close()");
    // In as many calls as are worth a search.
    client.tell("assert all(len(end.recv(100)) == 100 for _ in range(400))");
    let process = stat_json(client.pid());
    let connection = &process["connections"][0];
    assert_eq!(connection["peer"], format!("127.0.0.1:{port}"));
    assert_eq!(connection["reason"]["code"], "peer-closed", "{process:#}");
}

#[test]
fn sockets_count_once_they_are_connected() {
    let (mut server, mut client) = (preloaded(), preloaded());
    // Tracked for its options, and no connection.
    client.tell("idle = socket.socket(); idle.setsockopt(6, socket.TCP_NODELAY, 1)");
    connect(&mut server, &mut client);
    client.tell(
        "late = socket.socket(); late.setsockopt(6, socket.TCP_NODELAY, 1); \
         late.connect(end.getpeername())",
    );
    server.tell("other = listener.accept()[0]");
    for process in [stat_json(server.pid()), stat_json(client.pid())] {
        assert_eq!(process["tracked"], 2, "{process:#}");
        assert_eq!(process["reasons"], json!({"below-threshold": 2}));
        assert_eq!(process["connections"], json!([]));
        assert_eq!(process["unlisted"][0]["code"], "below-threshold");
        assert_eq!(process["unlisted"][0]["count"], 2);
    }
}

#[test]
fn upgrades_that_are_off_are_shown_to_be() {
    let mut sluice = Command::new(env!("CARGO_BIN_EXE_sluice"));
    let python = Python::new(sluice.args(["run", "--upgrade", "off", "--", "python3"]));
    let process = stat_json(python.pid());
    assert_eq!(
        (&process["off"], &process["tracked"]),
        (&json!(true), &json!(0))
    );
    let table = common::sluice(&["stat", &python.pid().to_string()]);
    assert!(common::text(&table.stdout).contains("upgrades are turned off"));
}

/// Two ends in one program: so many bytes one way.
const PAIR: &str = "import socket, sys
listener = socket.create_server(('127.0.0.1', 0))
one = socket.create_connection(listener.getsockname())
other = listener.accept()[0]
for _ in range(int(sys.argv[1])):
    one.sendall(b'x' * 1000)
    assert len(other.recv(1000, socket.MSG_WAITALL)) == 1000
";

fn required(more: &[&str], messages: u32, exit: &str) -> std::process::Output {
    let script = format!("{PAIR}{exit}");
    Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["run", "--require"])
        .args(more)
        .args(["--", "python3", "-c", &script, &messages.to_string()])
        .output()
        .unwrap()
}

#[test]
fn what_is_required_is_looked_at_when_the_program_has_ended() {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // Enough to leave TCP, and the exit status is the program's.
    let output = required(&[], 2000, "sys.exit(7)");
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    // Too few bytes are no failure.
    let output = required(&[], 3, "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // A program that keeps its connection on TCP.
    let output = required(&[], 2000, "").status.code();
    assert_eq!(output, Some(0));
    let oob = PAIR.replace("for _ in", "one.send(b'!', socket.MSG_OOB)\nfor _ in");
    let output = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["run", "--require", "--", "python3", "-c", &oob, "2000"])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(96), "{said}");
    assert!(said.contains(" stayed on TCP: "), "{said}");
}

#[test]
fn a_required_programs_signals_are_its_own() {
    use std::os::unix::process::ExitStatusExt;
    let output = required(
        &[],
        3,
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    );
    assert_eq!(output.status.signal(), Some(libc::SIGTERM));
    let mut tool = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["run", "--require", "--", "python3", "-c"])
        .arg(
            "import signal, sys, time; signal.signal(10, lambda *_: sys.exit(3)); print('ready', \
             flush=True); time.sleep(60)",
        )
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = tool.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    // SAFETY: a process that this test has started.
    assert_eq!(unsafe { libc::kill(tool.id() as i32, libc::SIGUSR1) }, 0);
    assert_eq!(tool.wait().unwrap().code(), Some(3));
}
