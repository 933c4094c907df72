//! What shells complete: `sluice completions` in bash and zsh, with what clap cannot know.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod common;

use common::{Scratch, Terminal, sluice, text};
use std::process::Command;

const HIDDEN: [&str; 3] = ["end", "trial", "manual"];

/// What bash offers for the last of these words; `before` is read first.
fn bash(before: &str, words: &[&str]) -> Vec<String> {
    let script = r#"
        source /dev/stdin <<<"$1"
        source <("$2" completions bash)
        COMP_WORDS=("${@:3}")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        COMP_LINE="${COMP_WORDS[*]}"
        COMP_POINT=${#COMP_LINE}
        function_=$(complete -p sluice | sed 's/.*-F \([^ ]*\).*/\1/')
        "$function_" sluice "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let output = Command::new("bash")
        .args(["--norc", "-c", script, "bash", before])
        .arg(env!("CARGO_BIN_EXE_sluice"))
        .arg("sluice")
        .args(words)
        .output()
        .unwrap();
    assert_eq!(text(&output.stderr), "", "{words:?}");
    let all = text(&output.stdout);
    all.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_what_users_may_call() {
    let is_among = |all: &[String], one: &str| all.iter().any(|word| word == one);
    let commands = bash("", &[""]);
    for one in ["run", "stat", "top", "trace", "bench", "doctor"] {
        assert!(is_among(&commands, one), "{one}: {commands:?}");
    }
    for one in HIDDEN {
        assert!(!is_among(&commands, one), "{one}: {commands:?}");
    }
    assert_eq!(bash("", &["doc"]), ["doctor"]);
    assert!(is_among(&bash("", &["stat", "--po"]), "--port"));
    assert!(is_among(&bash("", &["stat", "--state", ""]), "verbs"));
    assert!(is_among(&bash("", &["run", "--m"]), "--mode"));
    assert!(is_among(&bash("", &["run", "--mode", ""]), "indirect"));
}

#[test]
fn bash_completes_commands_after_run() {
    for before in [
        &[][..],
        &["--require"],
        &["--mode", "direct"],
        &["--mode", "=", "direct"],
        &["-e", "A", "=", "b"],
        &["-e", "A", "=", "b", "--upgrade", "1M", "--"],
    ] {
        let words = [&["run"], before, &["pyth"]].concat();
        let all = bash("", &words);
        assert!(
            all.iter().any(|word| word == "python3"),
            "{words:?}: {all:?}"
        );
        assert!(!all.contains(&"stat".to_owned()));
    }
    // Where bash-completion is there, the command's own completion is asked.
    let offset = "_comp_command_offset() { COMPREPLY=(\"from $1\"); }";
    let words = ["run", "--mode", "direct", "git", "--x", ""];
    assert_eq!(bash(offset, &words), ["from 4"]);
    assert_eq!(bash(offset, &["run", "git", "-"]), ["from 2"]);
}

#[test]
fn bash_completes_processes_by_number_and_name() {
    let own = std::process::id().to_string();
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let name = name.trim();
    for command in ["stat", "top", "trace"] {
        let all = bash("", &[command, ""]);
        assert!(all.contains(&own) && all.contains(&name.to_owned()));
    }
    assert_eq!(bash("", &["stat", "1", &own]), [own]);
}

#[test]
fn a_name_that_another_process_chose_is_never_executed() {
    let scratch = Scratch::new("names");
    let made = scratch.join("x");
    // The file would be in the directory of the shell that completes.
    let script = "printf '$(id>x)' >/proc/$$/comm; echo; read line";
    let mut named = Command::new("sh")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(named.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", named.id())).unwrap();
    let all = bash(&format!("cd {}", scratch.0.display()), &["stat", ""]);
    drop(named.stdin.take());
    named.wait().unwrap();
    assert_eq!(comm, "$(id>x)\n");
    assert!(all.contains(&named.id().to_string()), "{all:?}");
    assert!(!all.iter().any(|word| word.contains('$')), "{all:?}");
    assert!(!made.exists());
}

#[test]
fn zsh_completes_the_same() {
    if Command::new("zsh").arg("--version").output().is_err() {
        println!("not tried: there is no zsh");
        return;
    }
    let scratch = Scratch::new("zsh");
    let output = sluice(&["completions", "zsh"]);
    std::fs::write(scratch.join("_sluice"), &output.stdout).unwrap();
    let setup = format!(
        "PS1='> '\nfpath=({} $fpath)\nautoload -Uz compinit\ncompinit -u -D\nsetopt no_list_beep\n\
         unsetopt list_ambiguous\nLISTMAX=1000000\n",
        scratch.0.display()
    );
    std::fs::write(scratch.join(".zshrc"), setup).unwrap();
    let command = format!("ZDOTDIR={} zsh -d -i", scratch.0.display());
    let terminal = Terminal::new("zsh", &command);
    terminal.shows("a prompt", |s| s.starts_with('>'));
    let tried = |line: &str, what: &str, wanted: &dyn Fn(&str) -> bool| {
        terminal.press(&["C-u", "C-l"]);
        terminal.press(&["-l", line]);
        terminal.press(&["Tab"]);
        terminal.shows(what, wanted)
    };
    let shown = tried("sluice ", "commands", &|s| {
        s.contains("doctor") && s.contains("completions")
    });
    for one in HIDDEN {
        let begins = |line: &str| line.split_whitespace().next() == Some(one);
        assert!(!shown.lines().any(begins), "{one}: {shown}");
    }
    tried("sluice stat --po", "an option", &|s| {
        s.contains("stat --port")
    });
    tried("sluice run gunzi", "a command", &|s| {
        s.contains("run gunzip")
    });
    tried("sluice run --mode direct gunzi", "a command", &|s| {
        s.contains("direct gunzip")
    });
    let sleeper = Command::new("sleep").arg("100").spawn();
    let mut sleeper = sleeper.unwrap();
    let pid = sleeper.id().to_string();
    tried(&format!("sluice stat {pid}"), "a process", &|s| {
        s.contains(&pid)
    });
    // A word that is complete has a blank after it.
    terminal.press(&["-l", "x"]);
    terminal.shows("the next word", |s| s.contains(&format!("stat {pid} x")));
    tried("sluice top slee", "a program", &|s| s.contains("top sleep"));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn fish_is_told_of_commands_and_processes() {
    let script = text(&sluice(&["completions", "fish"]).stdout);
    for part in ["__fish_complete_subcommand", "__fish_complete_pids"] {
        assert!(script.contains(part), "{part}");
    }
    for one in HIDDEN {
        assert!(!script.contains(&format!("-a \"{one}\"")), "{one}");
    }
}

#[test]
fn help_and_version_say_what_is_asked() {
    for words in [&["help", "--help"][..], &["help", "-h"], &["help", "stat"]] {
        let output = sluice(words);
        assert!(output.status.success(), "{output:?}");
        assert!(
            text(&output.stdout).contains("Usage: sluice "),
            "{output:?}"
        );
    }
    let version = text(&sluice(&["--version"]).stdout);
    let begin = concat!("sluice ", env!("CARGO_PKG_VERSION"), " (");
    let end = format!("protocol {})\n", sluice_stats::PROTOCOL);
    assert!(
        version.starts_with(begin) && version.ends_with(&end),
        "{version}"
    );
}

/// Those that are for users.
const COMMANDS: [&str; 8] = [
    "run",
    "stat",
    "top",
    "trace",
    "bench",
    "doctor",
    "reasons",
    "completions",
];

#[test]
fn help_fits_into_80_columns() {
    for command in COMMANDS {
        for option in ["-h", "--help"] {
            let help = text(&sluice(&[command, option]).stdout);
            assert!(help.contains("Exit status: "), "{help}");
            let wide: Vec<_> = help.lines().filter(|l| l.chars().count() > 80).collect();
            assert!(wide.is_empty(), "{command} {option}: {wide:?}");
        }
    }
}

#[test]
fn each_command_has_a_man_page_with_the_usual_sections() {
    let scratch = Scratch::new("manual");
    let folder = scratch.0.to_str().unwrap();
    assert!(sluice(&["manual", folder]).status.success());
    for command in COMMANDS {
        let page = std::fs::read_to_string(scratch.join(&format!("sluice-{command}.1"))).unwrap();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
            assert!(
                page.contains(&format!(".SH {section}"))
                    || page.contains(&format!(".SH \"{section}\"")),
                "{command}: {section}"
            );
        }
        for section in ["EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
            assert!(
                page.contains(&format!(".SH \"{section}\"")),
                "{command}: {section}"
            );
        }
        assert!(!page.contains("EXTRA"), "{command}");
    }
    for one in HIDDEN {
        assert!(!scratch.join(&format!("sluice-{one}.1")).exists(), "{one}");
    }
    let page = std::fs::read_to_string(scratch.join("sluice-stat.1")).unwrap();
    for field in ["command", "reasons", "ring_fill"] {
        assert!(page.contains(&format!(".TP\n\\fB{field}\\fR\n")), "{field}");
    }
}
