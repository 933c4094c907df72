//! `sluice stat` on programs that have a library loaded whose counts are known.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Python, Scratch, assert_refused, counting_library, sluice, stat_json, text};
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

#[test]
fn every_count_is_shown() {
    let scratch = Scratch::new("counts");
    let library = counting_library(&scratch);
    let mut python = Python::preloaded(&library);

    let before = stat_json(python.pid());
    assert_eq!(before["tracked"], 0);
    assert_eq!(before["connections"], json!([]));
    python.call("counting_begin");
    let process = stat_json(python.pid());

    assert_eq!(process["pid"], python.pid());
    assert_eq!(process["name"], "python3");
    assert_eq!(process["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(process["library"], library.to_str().unwrap());
    for (field, count) in [
        ("tracked", 5),
        ("upgrades", 2),
        ("demotions", 1),
        ("links", 1),
        ("links_made", 2),
        ("panics", 0),
    ] {
        assert_eq!(process[field], count, "{field}");
    }
    assert_eq!(
        process["reasons"],
        json!({"below-threshold": 2, "no-answer": 1, "fdopen": 1})
    );
    // Live connections and the closed one.
    assert_eq!(process["tx"]["tcp"], (32 << 10) + 11 + 2);
    assert_eq!(process["tx"]["indirect"], (5 << 20) + 100);
    assert_eq!(process["tx"]["resent"], 40);
    assert_eq!(process["rx"]["tcp"], 1);

    let connections = process["connections"].as_array().unwrap();
    assert_eq!(
        connections.len(),
        3,
        "closed and unfinished ones are not shown"
    );
    let words = sluice_stats::Reason::BelowThreshold.words();
    assert_eq!(
        process["unlisted"],
        json!([{"code": "below-threshold", "words": words, "count": 1}])
    );
    assert_eq!(process["off"], false);
    fast_one_is_shown(&connections[0]);
    let plain = &connections[1];
    assert_eq!(
        (&plain["local"], &plain["family"]),
        (&json!("[::1]:443"), &json!("ipv6"))
    );
    assert_eq!(
        plain["reason"],
        json!({"code": "no-answer", "words": sluice_stats::Reason::NoAnswer.words()})
    );
    assert_eq!(plain["role"], "accepted");
    let demoted = &connections[2];
    assert_eq!(demoted["fd"], -1);
    assert_eq!(
        (&demoted["transport"], &demoted["last_demotion"]["code"]),
        (&json!("tcp"), &json!("fdopen"))
    );
}

/// The accelerated connection of `counting_begin`.
fn fast_one_is_shown(fast: &Value) {
    assert_eq!(
        (&fast["fd"], &fast["family"], &fast["role"]),
        (&json!(5), &json!("ipv4"), &json!("connecting"))
    );
    assert_eq!(
        (&fast["local"], &fast["peer"]),
        (&json!("127.0.0.1:1000"), &json!("127.0.0.1:2000"))
    );
    assert_eq!(
        (&fast["transport"], &fast["reason"]),
        (&json!("shm"), &json!(null))
    );
    assert_eq!(
        (&fast["upgrades"], &fast["demotions"]),
        (&json!(1), &json!(0))
    );
    assert!(fast["age_ms"].as_u64().unwrap() < 60_000);
    assert_eq!(fast["tx"]["ring_len"], 256 << 10);
    assert_eq!(
        fast["rx"],
        json!({
            "tcp": 0, "direct": 70_000, "indirect": 0, "file": 3, "pages": 0, "resent": 0,
            "adverts_fresh": 2, "adverts_stale": 1, "adverts_revoked": 4,
            "spins": 6, "sleeps": 7, "doorbells": 8, "ring_len": 0, "ring_fill": null
        })
    );
}

#[test]
fn a_library_that_was_replaced_is_shown_where_it_runs_on() {
    let scratch = Scratch::new("deleted");
    let library = counting_library(&scratch);
    let mut python = Python::preloaded(&library);
    python.call("counting_begin");
    // As a package manager does, and another program in its place.
    std::fs::remove_file(&library).unwrap();
    std::fs::write(&library, "something else").unwrap();
    let process = stat_json(python.pid());
    assert_eq!(process["tracked"], 5);
    let deleted = format!("{} (deleted)", library.display());
    assert_eq!(process["library"], deleted);
}

#[test]
fn people_get_a_table() {
    let scratch = Scratch::new("table");
    let mut python = Python::preloaded(&counting_library(&scratch));
    python.call("counting_begin");
    let output = sluice(&["stat", &python.pid().to_string()]);
    let table = text(&output.stdout);
    assert!(output.status.success());
    let first = format!(
        "python3 (pid {}): python3 -c import sys scope = ",
        python.pid()
    );
    assert!(table.starts_with(&first), "{table}");
    let words = sluice_stats::Reason::NoAnswer.words();
    for part in [
        "\n  4 connections: 1 shm, 3 tcp; 5 so far, 2 upgrades, 1 demotion, 1 link\n",
        "\n  sent 5.0M, received 68.4K; 99% of the bytes by link\n",
        "\n  reasons for TCP so far: fdopen 1, no-answer 1\n",
        "127.0.0.1:1000",
        "[::1]:443",
        words,
        "\n  1 more on TCP, with few bytes so far\n",
    ] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn all_processes_and_processes_by_name() {
    let scratch = Scratch::new("all");
    let library = counting_library(&scratch);
    // A name that is ours alone. Not a copy: another test that forks meanwhile would hold it open
    // for writing.
    let program = scratch.join("stat-by-name");
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    let mut sleeper = Command::new(&program)
        .arg("100")
        .env("LD_PRELOAD", &library)
        .spawn()
        .unwrap();
    // The child is `program` once spawn has returned, but its libraries take a moment to load.
    let pid = sleeper.id().to_string();
    while !sluice(&["stat", &pid]).status.success() {
        assert_eq!(sleeper.try_wait().unwrap(), None);
    }

    for arguments in [
        &["stat", "--json"][..],
        &["stat", "stat-by-name", "--json"],
        &["stat", "/usr/bin/stat-by-name", "--json"],
    ] {
        let output = sluice(arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = report["processes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|p| p["pid"] == sleeper.id());
        assert!(found, "{arguments:?}: {report}");
    }
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn a_child_that_no_handler_saw_has_no_counts_of_its_own() {
    let scratch = Scratch::new("copy");
    let mut python = Python::preloaded(&counting_library(&scratch));
    python.call("counting_begin");
    let child = python.fork("None");
    let process = stat_json(child);
    assert_eq!(
        (&process["tracked"], &process["reasons"]),
        (&json!(0), &json!({}))
    );
    assert_eq!(process["tx"]["tcp"], 0);
    for connection in process["connections"].as_array().unwrap() {
        assert_eq!(
            (&connection["inherited"], &connection["tx"]["tcp"]),
            (&json!(true), &json!(0))
        );
    }
}

#[test]
fn a_forked_child_counts_for_itself() {
    let scratch = Scratch::new("fork");
    let mut python = Python::preloaded(&counting_library(&scratch));
    python.call("counting_begin");
    let child = python.fork("ctypes.CDLL(None).counting_forked()");
    let process = stat_json(child);
    assert_eq!(
        (&process["tracked"], &process["tx"]["tcp"]),
        (&json!(1), &json!(17))
    );
    let connections = process["connections"].as_array().unwrap();
    let inherited: Vec<_> = connections
        .iter()
        .map(|c| c["inherited"].as_bool().unwrap())
        .collect();
    // The child's own is the last.
    assert_eq!(inherited, [true, true, true, false]);
    assert_eq!(
        stat_json(python.pid())["tracked"],
        5,
        "the parent's counts are its own"
    );
}

#[test]
fn more_connections_than_one_chunk() {
    let scratch = Scratch::new("many");
    let mut python = Python::preloaded(&counting_library(&scratch));
    python.call("counting_many");
    let words = "600 connections, the first 500 listed";
    let listed = json!([{"code": "connections", "words": words}]);
    for (most, listed, cut) in [(None, 500, listed), (Some("600"), 600, json!([]))] {
        let process = common::stat_json_of(python.pid(), most);
        assert_eq!(
            (&process["tracked"], &process["tx"]["tcp"]),
            (&json!(600), &json!(600))
        );
        assert_eq!(process["open"], json!({"tcp": 600}));
        let connections = process["connections"].as_array().unwrap();
        assert_eq!(connections.len(), listed);
        let last = format!("192.0.2.1:{}", listed - 1);
        assert_eq!(connections[listed - 1]["local"], last);
        assert_eq!(process["cut"], cut);
    }
    let pid = python.pid().to_string();
    let output = sluice(&["stat", &pid]);
    assert!(output.status.success());
    assert_eq!(
        text(&output.stderr),
        format!("sluice: python3 (pid {pid}): {words}\n")
    );
    assert!(text(&output.stdout).contains("\n  600 connections: 600 tcp; "));
    let refused = sluice(&["stat", "--connections", "16385"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn what_cannot_be_shown_is_said_in_one_line() {
    assert_refused(
        &sluice(&["stat", "2147483647"]),
        1,
        "pid 2147483647: no such process",
    );
    assert_refused(
        &sluice(&["stat", "nobody-is-called-so"]),
        1,
        "no process is named nobody-is-called-so",
    );
    let mut sleeper = Command::new("sleep").arg("100").spawn().unwrap();
    let pid = sleeper.id();
    assert_refused(
        &sluice(&["stat", &pid.to_string()]),
        1,
        &format!("sleep (pid {pid}): runs without Sluice"),
    );
    // Readers of JSON get a report all the same.
    for who in ["2147483647", "nobody-is-called-so", &pid.to_string()] {
        assert_eq!(refused_json(who), json!([]));
    }
    sleeper.kill().unwrap();
    // Dead, but not yet collected by its parent: this test.
    while process_state(pid) != Some('Z') {}
    assert_refused(
        &sluice(&["stat", &pid.to_string()]),
        1,
        &format!("pid {pid}: no such process"),
    );
    sleeper.wait().unwrap();
}

/// What `sluice stat WHO --json` refuses, where it shows nothing.
fn refused_json(who: &str) -> serde_json::Value {
    let output = sluice(&["stat", who, "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["format"], &report["processes"]),
        (&json!(1), &json!([]))
    );
    report["refused"].clone()
}

fn process_state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

#[test]
fn other_users_processes_are_refused_in_words() {
    let scratch = Scratch::new("user");
    let python = Python::preloaded(&counting_library(&scratch));
    let (mut command, pid, name) = common::about_another_users(&scratch, &python, "stat");
    let output = command.output().unwrap();
    let line = common::ANOTHER_USERS;
    assert_refused(&output, 1, &format!("{name} (pid {pid}): {line}"));
    let output = command.arg("--json").output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report["refused"],
        json!([{"pid": pid, "name": name, "why": line}])
    );
}

#[test]
fn root_is_not_told_to_become_root() {
    const CAP_SYS_PTRACE: libc::c_ulong = 19;
    // SAFETY: both have no effect but their answer.
    let is_root =
        unsafe { libc::geteuid() == 0 && libc::prctl(libc::PR_CAPBSET_READ, CAP_SYS_PTRACE) == 1 };
    if !is_root {
        return;
    }
    let scratch = Scratch::new("root");
    let python = Python::preloaded(&counting_library(&scratch));
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["stat", &python.pid().to_string()]);
    // What root gains by executing a program has no such right then.
    let drop = || {
        // SAFETY: takes two numbers, and concerns the new process only.
        match unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_PTRACE) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(drop) };
    let line = "not allowed to look into it (it has capabilities that root lacks here): needs \
                CAP_SYS_PTRACE";
    assert_refused(
        &command.output().unwrap(),
        1,
        &format!("python3 (pid {}): {line}", python.pid()),
    );
}

/// A process in which `bytes` lie where the data of libsluice.so would: after a page of code, as
/// the file's header says.
fn with_data(scratch: &Scratch, bytes: &[u8]) -> Python {
    let file = scratch.join("libsluice.so");
    let mut whole = vec![0; 4096];
    whole[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    // A shared object; its two segments are described after the header.
    (whole[16], whole[32], whole[54], whole[56]) = (3, 64, 56, 2);
    let len = bytes.len() as u64;
    for (number, (flags, offset, len)) in [(5, 0, 4096), (6, 4096, len)].into_iter().enumerate() {
        let words = [1 | flags << 32, offset, offset, offset, len, len, 4096];
        let words = words.into_iter().flat_map(u64::to_ne_bytes);
        let at = 64 + 56 * number;
        whole.splice(at..at + 56, words);
    }
    whole.extend(bytes);
    std::fs::write(&file, whole).unwrap();
    let mut python = Python::new(&mut Command::new("python3"));
    python.tell(&format!("file = open({:?}, 'rb')", file.to_str().unwrap()));
    python.tell("libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p");
    python.tell("size = ctypes.c_size_t");
    python.tell(&format!(
        "place = libc.mmap(None, size({len} + 8192), 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, \
         size(0))"
    ));
    for (right, begin, len) in [("EXEC", 0, 4096), ("WRITE", 4096, len)] {
        python.tell(&format!(
            "assert libc.mmap(size(place + {begin}), size({len}), mmap.PROT_READ | \
             mmap.PROT_{right}, mmap.MAP_PRIVATE | 0x10, file.fileno(), size({begin})) == place + \
             {begin}"
        ));
    }
    python
}

/// The header of this build, as bytes.
fn header() -> Vec<u8> {
    let this = sluice_stats::Header::THIS;
    let mut bytes = this.magic.to_vec();
    for word in [this.layout, this.root_len, this.conn_len] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(this.chunk_len.to_ne_bytes());
    bytes.extend([this.word_len, 0]);
    bytes.extend(this.version);
    assert_eq!(bytes.len(), size_of::<sluice_stats::Header>());
    bytes
}

#[test]
fn another_layout_is_refused_with_its_version() {
    let scratch = Scratch::new("layout");
    let mut bytes = vec![0; 128];
    bytes.extend(header());
    bytes[144..148].copy_from_slice(&99_u32.to_ne_bytes());
    bytes[160..166].copy_from_slice(b"7.8.9\0");
    bytes.resize(4096, 0);
    let python = with_data(&scratch, &bytes);
    let output = sluice(&["stat", &python.pid().to_string()]);
    let line = format!(
        "python3 (pid {}): has Sluice 7.8.9 with counters of layout 99, and this tool ({}) reads \
         layout {}",
        python.pid(),
        env!("CARGO_PKG_VERSION"),
        sluice_stats::LAYOUT
    );
    assert_refused(&output, 1, &line);
    let refused = refused_json(&python.pid().to_string());
    assert_eq!(refused[0]["pid"], python.pid());

    // Among all processes it is mentioned, and stops nobody.
    let output = sluice(&["stat", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let refused = report["refused"].as_array().unwrap();
    assert!(refused.iter().any(|r| r["pid"] == python.pid()), "{report}");
}

#[test]
fn a_program_that_only_reads_the_library_runs_without_it() {
    let scratch = Scratch::new("reader");
    let mut python = with_data(&scratch, &header());
    // It may not be executed any more.
    python.tell("assert libc.mprotect(size(place), size(4096), mmap.PROT_READ) == 0");
    let pid = python.pid();
    let output = sluice(&["stat", &pid.to_string()]);
    assert_refused(
        &output,
        1,
        &format!("python3 (pid {pid}): runs without Sluice"),
    );
}

#[test]
fn a_library_without_counters_is_refused() {
    let scratch = Scratch::new("empty");
    let python = with_data(&scratch, &[7; 4096]);
    let output = sluice(&["stat", &python.pid().to_string()]);
    let line = format!(
        "python3 (pid {}): has a libsluice.so without counters that this tool knows",
        python.pid()
    );
    assert_refused(&output, 1, &line);
}

#[test]
fn nonsense_in_the_counters_ends_in_a_line() {
    let scratch = Scratch::new("nonsense");
    let root_len = size_of::<sluice_stats::Root>();
    // The same header before nothing, before ones, and where the mapping ends before the root does.
    for (fill, len) in [(0, 2 * root_len), (0xff, 2 * root_len), (0x5a, 4096)] {
        let mut bytes = header();
        bytes.resize(len.next_multiple_of(4096), fill);
        let python = with_data(&scratch, &bytes);
        for arguments in [
            &["stat", &python.pid().to_string()][..],
            &["stat", "--json"],
            &["stat"],
        ] {
            let output = sluice(arguments);
            assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
            assert!(!text(&output.stderr).contains("panicked"), "{output:?}");
        }
    }
}

#[test]
fn processes_that_die_meanwhile_do_no_harm() {
    let scratch = Scratch::new("dying");
    let library = counting_library(&scratch);
    let mut shell = Command::new("sh")
        .args(["-c", "while :; do /bin/true; sleep 0.003 & done"])
        .env("LD_PRELOAD", &library)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    for _ in 0..30 {
        let output = sluice(&["stat", "--json"]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        assert!(!text(&output.stderr).contains("panicked"), "{output:?}");
        let _: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    }
    shell.kill().unwrap();
    shell.wait().unwrap();
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let scratch = Scratch::new("pipe");
    let mut python = Python::preloaded(&counting_library(&scratch));
    python.call("counting_many");
    let line = format!(
        "{} stat {} --json --connections 600 | head -n 1; exit ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_sluice"),
        python.pid()
    );
    let output = Command::new("bash").args(["-c", &line]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        (text(&output.stdout).as_str(), text(&output.stderr).as_str()),
        ("{\n", "")
    );
}

#[test]
fn prometheus_gets_every_count_with_its_labels() {
    let scratch = Scratch::new("prometheus");
    let library = counting_library(&scratch);
    let mut python = Python::preloaded(&library);
    python.call("counting_begin");
    let pid = python.pid();
    let output = sluice(&["stat", "--prometheus", &pid.to_string()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = text(&output.stdout);
    let own = format!("{{pid=\"{pid}\",name=\"python3\"");
    for line in [
        format!("sluice_tracked_total{own}}} 5"),
        format!("sluice_links{own}}} 1"),
        format!("sluice_connections{own},transport=\"shm\"}} 1"),
        format!("sluice_reasons_total{own},reason=\"no-answer\"}} 1"),
        format!(
            "sluice_bytes_total{own},direction=\"sent\",way=\"indirect\"}} {}",
            (5 << 20) + 100
        ),
        format!("sluice_resent_bytes_total{own},direction=\"sent\"}} 40"),
    ] {
        assert!(page.lines().any(|l| l == line), "{line}\n{page}");
    }
    // Each metric is described once, before its values.
    let mut described = std::collections::BTreeSet::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(matches!(kind, "counter" | "gauge"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(described.insert(name.to_owned()), "{line}");
        } else if !line.starts_with('#') {
            let (name, rest) = line.split_once('{').unwrap();
            assert!(described.contains(name), "{line}");
            let (_, value) = rest.rsplit_once("} ").unwrap();
            value.parse::<u64>().unwrap();
        }
    }
    let both = sluice(&["stat", "--prometheus", "--json"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn a_watched_process_is_shown_again_until_nobody_reads() {
    use std::io::BufRead;
    let scratch = Scratch::new("watch");
    let library = counting_library(&scratch);
    let mut python = Python::preloaded(&library);
    python.call("counting_begin");
    let mut watching = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["stat", "--json", "--watch", "0.02"])
        .arg(python.pid().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(watching.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let line = lines.next().unwrap().unwrap();
        let report: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(report["processes"][0]["tracked"], 5);
    }
    drop(lines);
    assert_eq!(watching.wait().unwrap().code(), Some(1));
    for bad in ["0", "-1", "x", "1e9"] {
        let refused = sluice(&["stat", &format!("--watch={bad}")]);
        assert_eq!(refused.status.code(), Some(2), "{bad}");
    }
}
