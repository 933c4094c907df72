//! `sluice top` in a terminal of 80 columns and 24 lines, which tmux keeps.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Python, Scratch, Terminal, counting_library};
use std::time::{Duration, Instant};

#[test]
fn connections_and_processes_are_shown_sorted_and_found() {
    let scratch = Scratch::new("top");
    let library = counting_library(&scratch);
    let mut python = Python::preloaded(&library);
    python.call("counting_begin");
    let tool = env!("CARGO_BIN_EXE_sluice");
    let pid = python.pid();
    let ended = scratch.join("ended");
    let command = format!(
        "{tool} top --interval 0.1 {pid}; echo status $? > {}",
        ended.display()
    );
    let terminal = Terminal::new("top", &command);

    let screen = terminal.shows("connections", |s| s.contains(":1000 -> 127.0.0.1:2000"));
    assert!(screen.starts_with("1 process, 3 connections, "), "{screen}");
    assert!(
        screen.contains("? help  q quit  space pause  p processes  s sort: rate"),
        "{screen}"
    );
    assert!(
        screen.lines().all(|line| line.chars().count() <= 80),
        "{screen}"
    );
    terminal.press(&["p"]);
    terminal.shows("processes", |s| s.contains("4 open, "));
    terminal.press(&["p", "s"]);
    terminal.shows("another order", |s| s.contains("s sort: name"));
    for key in ["?", "h", "F1"] {
        terminal.press(&[key]);
        terminal.shows("the keys", |s| s.contains("Any key goes back."));
        terminal.press(&["x"]);
        terminal.shows("the rows again", |s| s.contains(":1000 -> "));
    }
    terminal.press(&["Space"]);
    terminal.shows("a pause", |s| {
        s.contains("; paused") && s.contains("space go on")
    });
    python.call("counting_many");
    std::thread::sleep(Duration::from_millis(500));
    terminal.shows("what was there before", |s| s.contains(" 3 connections, "));
    terminal.press(&["Space"]);
    terminal.shows("what is there now", |s| {
        s.contains(" 603 connections, ") && !s.contains("paused")
    });
    terminal.press(&["q"]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !ended.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(std::fs::read_to_string(&ended).unwrap(), "status 0\n");
}

#[test]
fn a_filter_shows_only_what_has_its_text() {
    let scratch = Scratch::new("top-filter");
    let library = counting_library(&scratch);
    let mut both = [Python::preloaded(&library), Python::preloaded(&library)];
    both.iter_mut().for_each(|python| {
        python.call("counting_begin");
    });
    let [one, other] = both.each_ref().map(Python::pid);
    let tool = env!("CARGO_BIN_EXE_sluice");
    let terminal = Terminal::new("top-filter", &format!("{tool} top -i 0.1 {one} {other}"));
    let has = |screen: &str, pid: u32| screen.lines().any(|l| l.starts_with(&format!("{pid} ")));
    let all =
        |s: &str| s.starts_with("2 processes, 6 connections, ") && has(s, one) && has(s, other);
    terminal.shows("all", all);

    let mut keys = vec!["/".to_owned()];
    keys.extend(one.to_string().chars().map(String::from));
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    terminal.press(&keys);
    let alone =
        |s: &str| s.starts_with("1 process, 3 connections, ") && has(s, one) && !has(s, other);
    let prompt = format!("filter: {one}_  Enter keeps it");
    terminal.shows("the prompt", |s| alone(s) && s.contains(&prompt));
    terminal.press(&["Enter"]);
    let said = format!("; filter: {one}\n");
    terminal.shows("the filter", |s| {
        alone(s) && s.contains(&said) && s.contains("? help  q quit")
    });
    terminal.press(&["p"]);
    terminal.shows("one process", alone);
    terminal.press(&["p", "Escape"]);
    terminal.shows("all again", |s| all(s) && !s.contains("filter: "));

    // An address in capital letters or small ones, a picture that stands still.
    terminal.press(&["Space", "/", ":", "1", "0", "0", "0", "x"]);
    terminal.shows("nothing", |s| {
        s.contains("nothing here has the filter's text")
    });
    terminal.press(&["BSpace"]);
    let connection = |s: &str| s.starts_with("2 processes, 2 connections, ");
    terminal.shows("one connection of each", |s| {
        connection(s) && s.contains(":1000 -> ")
    });
    terminal.press(&["C-u", "S", "H", "M"]);
    terminal.shows("shared memory", |s| {
        s.contains("filter: SHM_") && s.contains(" shm ")
    });
    terminal.press(&["C-u"]);
    terminal.shows("an empty prompt", |s| all(s) && s.contains("filter: _"));
    terminal.press(&["P", "y", "t", "h", "o", "n", "3", "Space", "Escape"]);
    terminal.shows("all", |s| {
        all(s) && s.contains("? help  q quit") && s.contains("paused")
    });
    terminal.press(&["?"]);
    terminal.shows("help", |s| s.contains("asks for a text, the filter"));
    terminal.press(&["x", "Space", "q"]);
}

#[test]
fn a_process_that_ends_is_said_to_be_gone_and_a_signal_ends_the_tool() {
    let scratch = Scratch::new("top-end");
    let library = counting_library(&scratch);
    let mut python = Python::preloaded(&library);
    python.call("counting_begin");
    let (tool, pid) = (env!("CARGO_BIN_EXE_sluice"), python.pid());
    let script = scratch.join("script");
    let lines = [
        format!("cd {}", scratch.0.display()),
        format!("stty -a > before; {tool} top -i 0.1 {pid}; stty -a > after"),
        "echo > ended".to_owned(),
    ];
    std::fs::write(&script, lines.join("\n")).unwrap();
    let terminal = Terminal::new("top-end", &format!("sh {}", script.display()));
    terminal.shows("connections", |s| s.contains(":1000 -> "));
    drop(python);
    terminal.shows("the end", |s| s.contains(&format!("pid {pid}: ")));
    let top = process(&format!("top\0-i\x000.1\0{pid}\0"));
    // SAFETY: a process that this test has started.
    assert_eq!(unsafe { libc::kill(top, libc::SIGTERM) }, 0);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !scratch.join("ended").exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let read = |name| std::fs::read_to_string(scratch.join(name)).unwrap();
    assert_eq!(read("before"), read("after"), "the terminal is as it was");
}

#[test]
fn it_ends_with_its_terminal() {
    let scratch = Scratch::new("top-hangup");
    let library = counting_library(&scratch);
    let mut python = Python::preloaded(&library);
    python.call("counting_begin");
    let (tool, pid) = (env!("CARGO_BIN_EXE_sluice"), python.pid());
    let terminal = Terminal::new("top-hangup", &format!("{tool} top -i 0.5 {pid}"));
    terminal.shows("connections", |s| s.contains(":1000 -> "));
    let top = process(&format!("top\0-i\x000.5\0{pid}\0"));
    drop(terminal);
    let deadline = Instant::now() + Duration::from_secs(20);
    // A process that has ended, and that its parent has not waited for, has no command line.
    let command = format!("/proc/{top}/cmdline");
    let is_there = || std::fs::read(&command).is_ok_and(|line| !line.is_empty());
    while is_there() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!is_there(), "pid {top} runs on without a terminal");
}

#[test]
fn it_goes_on_beside_a_process_that_never_answers() {
    let scratch = Scratch::new("top-hostile");
    let library = counting_library(&scratch);
    let Some(hostile) = common::Hostile::new(&library, &["page"]) else {
        return;
    };
    let mut python = Python::preloaded(&library);
    python.call("counting_begin");
    let tool = env!("CARGO_BIN_EXE_sluice");
    let both = format!("{} {}", hostile.pid(), python.pid());
    let terminal = Terminal::new("top-hostile", &format!("{tool} top -i 0.1 {both}"));
    let about = "left out: no answer";
    terminal.shows("both", |s| s.contains(":1000 -> ") && s.contains(about));
    // What is new comes soon, since the one that does not answer is not asked again at once.
    let begin = Instant::now();
    python.call("counting_many");
    terminal.shows("more", |s| {
        s.contains(" 603 connections, ") && s.contains(about)
    });
    assert!(begin.elapsed() < Duration::from_secs(2));
    drop(hostile);
    terminal.shows("the other one alone", |s| !s.contains(about));
    terminal.press(&["q"]);
}

/// The process whose arguments end so.
fn process(arguments: &str) -> i32 {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.ends_with(arguments.as_bytes()))
    };
    pids.find(is_it).unwrap()
}

#[test]
fn without_a_terminal_it_says_so() {
    let output = common::sluice(&["top"]);
    common::assert_refused(
        &output,
        1,
        "top needs a terminal; `sluice stat --watch` does not",
    );
}
