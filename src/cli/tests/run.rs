//! `sluice run`: what the program finds, and what the caller is told.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Scratch, assert_refused, counting_library, text};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

/// `sluice run` with this library and an otherwise untouched environment.
fn run(library: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command
        .arg("run")
        .env("SLUICE_LIBRARY", library)
        .env_remove("LD_PRELOAD");
    command
}

#[test]
fn the_program_finds_the_library_and_its_settings() {
    let scratch = Scratch::new("run");
    let library = counting_library(&scratch);
    let script = r#"echo "$LD_PRELOAD|$A|$SLUICE_MODE|$SLUICE_UPGRADE|$1"; grep -c libsluice.so /proc/self/maps"#;
    let output = run(&library)
        .args([
            "-e",
            "A=b=c",
            "--mode",
            "direct",
            "--upgrade",
            "4K",
            "--",
            "sh",
            "-c",
            script,
            "sh",
            "-x",
        ])
        .output()
        .unwrap();
    let printed = text(&output.stdout);
    let (settings, mapped) = printed.split_once('\n').unwrap();
    assert_eq!(settings, format!("{}|b=c|direct|4K|-x", library.display()));
    assert_ne!(mapped.trim(), "0", "the library was not loaded");
    assert_eq!(
        (text(&output.stderr).as_str(), output.status.code()),
        ("", Some(0))
    );
}

#[test]
fn what_is_preloaded_already_stays() {
    let scratch = Scratch::new("keep");
    let library = counting_library(&scratch);
    let other = scratch.join("other.so");
    common::copy(&library, &other);
    let expected = format!("{}:{}\n", library.display(), other.display());
    let output = run(&library)
        .env("LD_PRELOAD", &other)
        .args(["sh", "-c", "echo $LD_PRELOAD"])
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), expected);
    let set = format!("LD_PRELOAD={}", other.display());
    let output = run(&library)
        .args(["-e", &set, "sh", "-c", "echo $LD_PRELOAD"])
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn another_copy_of_the_library_is_left_out() {
    let (here, there) = (Scratch::new("here"), Scratch::new("there"));
    let (new, old) = (counting_library(&here), counting_library(&there));
    let script = "echo $LD_PRELOAD; grep libsluice.so /proc/self/maps";
    let output = run(&old)
        .args(["--", "sh", "-c"])
        .arg(r#"SLUICE_LIBRARY=$1 exec "$0" run -- sh -c "$2""#)
        .args([OsStr::new(env!("CARGO_BIN_EXE_sluice")), new.as_os_str()])
        .arg(script)
        .output()
        .unwrap();
    let printed = text(&output.stdout);
    let (preloaded, mapped) = printed.split_once('\n').unwrap();
    assert_eq!(preloaded, new.to_str().unwrap());
    assert!(
        mapped.lines().all(|line| line.ends_with(preloaded)) && !mapped.is_empty(),
        "{printed}"
    );
    let line = format!(
        "LD_PRELOAD: {} is left out, for two copies of the library do not go together",
        old.display()
    );
    assert_refused(&output, 0, &line);

    // The same file under another name is no other copy.
    let link = there.join("link");
    std::fs::create_dir(&link).unwrap();
    let link = link.join("libsluice.so");
    std::os::unix::fs::symlink(&new, &link).unwrap();
    let output = run(&new)
        .env("LD_PRELOAD", &link)
        .args(["sh", "-c", "echo $LD_PRELOAD"])
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), format!("{}\n", link.display()));
    assert_eq!(text(&output.stderr), "");
}

/// What `script` does in bash, where $RUN is nothing, and where it is `sluice run`.
fn plain_and_under_the_tool(library: &Path, script: &str) -> [Output; 2] {
    let tool = format!("{} run --", env!("CARGO_BIN_EXE_sluice"));
    ["", &tool].map(|prefix| {
        let mut bash = Command::new("bash");
        bash.args(["-c", script])
            .env("RUN", prefix)
            .env("SLUICE_LIBRARY", library)
            .env_remove("LD_PRELOAD");
        bash.output().unwrap()
    })
}

#[test]
fn signals_are_as_the_caller_left_them() {
    let scratch = Scratch::new("signals");
    let library = counting_library(&scratch);
    for (before, status) in [("trap '' PIPE", 1), ("true", 128 + libc::SIGPIPE)] {
        let script = format!("({before}; LC_ALL=C $RUN yes) | head -n1; exit ${{PIPESTATUS[0]}}");
        let [plain, under] = plain_and_under_the_tool(&library, &script);
        assert_eq!(under.status.code(), Some(status), "{under:?}");
        assert_eq!(plain, under);
    }
    let [plain, under] = plain_and_under_the_tool(
        &library,
        "trap '' HUP USR1 PIPE CHLD; $RUN grep -E '^(Sig(Blk|Ign)|ShdPnd)' /proc/self/status",
    );
    assert_eq!(text(&plain.stdout), text(&under.stdout));
}

#[test]
fn closed_descriptors_stay_closed() {
    let scratch = Scratch::new("closed");
    let library = counting_library(&scratch);
    for script in [
        "LC_ALL=C $RUN ls / >&-",
        "LC_ALL=C $RUN cat <&-",
        "LC_ALL=C $RUN ls /nonexistent 2>&-",
        "$RUN bash -c 'for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && echo $fd; done >&3' 3>&1 <&- >&- 2>&-",
    ] {
        let [plain, under] = plain_and_under_the_tool(&library, script);
        assert_eq!(plain, under, "{script}");
    }
    let [_, under] = plain_and_under_the_tool(&library, "LC_ALL=C $RUN ls / >&-");
    assert!(text(&under.stderr).contains("Bad file descriptor"));
}

#[test]
fn the_exit_status_is_that_of_a_shell() {
    let scratch = Scratch::new("status");
    let library = counting_library(&scratch);
    assert_eq!(
        run(&library)
            .args(["sh", "-c", "exit 7"])
            .status()
            .unwrap()
            .code(),
        Some(7)
    );
    let output = run(&library).arg("no-such-command-here").output().unwrap();
    assert_refused(&output, 127, "no-such-command-here: command not found");
    let output = run(&library).arg("/no/such/file").output().unwrap();
    assert_refused(&output, 127, "/no/such/file: No such file or directory");
    let output = run(&library).arg("/etc/passwd").output().unwrap();
    assert_refused(&output, 126, "/etc/passwd: Permission denied");
}

#[test]
fn a_missing_or_unusable_library_is_said() {
    let scratch = Scratch::new("library");
    let output = run(Path::new("/no/libsluice.so"))
        .arg("true")
        .output()
        .unwrap();
    assert_refused(
        &output,
        125,
        "SLUICE_LIBRARY=/no/libsluice.so: No such file or directory",
    );

    let spaced = scratch.join("a b.so");
    std::fs::write(&spaced, "").unwrap();
    let output = run(&spaced).arg("true").output().unwrap();
    let path = spaced.display();
    assert_refused(
        &output,
        125,
        &format!("{path}: a path with a space, a colon or a dollar sign cannot be preloaded"),
    );

    // A tool that stands alone.
    let tool = scratch.join("sluice");
    common::copy(env!("CARGO_BIN_EXE_sluice"), &tool);
    let alone = || {
        let mut command = Command::new(&tool);
        command
            .args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"])
            .env_remove("LD_PRELOAD")
            .env_remove("SLUICE_LIBRARY");
        command.output().unwrap()
    };
    let here = scratch.0.display();
    let line = format!(
        "libsluice.so is not in {here}, nor in ../lib or ../lib/sluice from there; SLUICE_LIBRARY can name it"
    );
    assert_refused(&alone(), 125, &line);
    // And one that has its library beside it.
    let library = counting_library(&scratch);
    assert_eq!(text(&alone().stdout), format!("{}\n", library.display()));
}

#[test]
fn a_library_in_lib_is_found() {
    let scratch = Scratch::new("prefix");
    let library = counting_library(&scratch);
    for place in ["lib", "lib/sluice"] {
        let prefix = scratch.join(&place.replace('/', "-"));
        std::fs::create_dir_all(prefix.join("bin")).unwrap();
        std::fs::create_dir_all(prefix.join(place)).unwrap();
        common::copy(env!("CARGO_BIN_EXE_sluice"), prefix.join("bin/sluice"));
        let installed = prefix.join(place).join("libsluice.so");
        common::copy(&library, &installed);
        let output = Command::new(prefix.join("bin/sluice"))
            .args(["run", "sh", "-c", "echo $LD_PRELOAD"])
            .env_remove("LD_PRELOAD")
            .env_remove("SLUICE_LIBRARY")
            .output()
            .unwrap();
        assert_eq!(text(&output.stdout), format!("{}\n", installed.display()));
    }
}

#[test]
fn a_setuid_program_is_run_with_a_warning() {
    let scratch = Scratch::new("setuid");
    let library = counting_library(&scratch);
    let tool = scratch.join("sluice");
    common::copy(env!("CARGO_BIN_EXE_sluice"), &tool);
    // SAFETY: no arguments, no effect.
    let is_root = unsafe { libc::getuid() } == 0;
    let mut command = Command::new(tool);
    command.arg("run").env("SLUICE_LIBRARY", &library);
    let program = if is_root {
        let program = scratch.join("setuid-true");
        common::copy("/bin/true", &program);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        command.uid(65534).arg(&program);
        program
    } else {
        let program = Path::new("/usr/bin/passwd").to_owned();
        command.arg(&program).arg("--help");
        program
    };
    let output = command.output().unwrap();
    let warning = format!(
        "sluice: {} is setuid, setgid or has capabilities, so the loader ignores LD_PRELOAD; it stays on TCP\n",
        program.display()
    );
    assert!(text(&output.stderr).starts_with(&warning), "{output:?}");
    assert!(is_root <= output.status.success(), "{output:?}");
}

/// A static program that exits with status 7.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn static_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    #[cfg(target_arch = "x86_64")]
    // mov edi, 7; mov eax, 60; syscall
    let (machine, code) = (62_u16, [0xbf, 7, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]);
    #[cfg(target_arch = "aarch64")]
    // mov x0, #7; mov x8, #93; svc #0
    let (machine, code) = (
        183_u16,
        [0xe0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4],
    );
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend([2_u16, machine].map(u16::to_le_bytes).concat());
    file.extend(1_u32.to_le_bytes());
    file.extend([BASE + HEADERS, 64, 0].map(u64::to_le_bytes).concat());
    file.extend(0_u32.to_le_bytes());
    file.extend([64_u16, 56, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    // One PT_LOAD, readable and executable.
    file.extend([1_u32, 5].map(u32::to_le_bytes).concat());
    let len = HEADERS + code.len() as u64;
    file.extend(
        [0, BASE, BASE, len, len, 4096]
            .map(u64::to_le_bytes)
            .concat(),
    );
    file.extend(code);
    file
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn a_static_program_is_run_with_a_warning() {
    let scratch = Scratch::new("static");
    let library = counting_library(&scratch);
    let program = scratch.join("static");
    let written = scratch.join("written");
    std::fs::write(&written, static_program()).unwrap();
    common::copy(&written, &program);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(&library).arg(&program).output().unwrap();
    let line = format!(
        "{} is statically linked, so nothing can be preloaded; it stays on TCP",
        program.display()
    );
    assert_refused(&output, 7, &line);
}

#[test]
fn options_end_at_the_command() {
    let scratch = Scratch::new("options");
    let library = counting_library(&scratch);
    let script = r#"echo "$A|$SLUICE_MODE|$*""#;
    for (arguments, printed) in [
        (&["-eA=1", "--", "sh"][..], "1||"),
        (&["-e", "A=1", "--mode=direct", "sh"], "1|direct|"),
        (&["--env=A=-x", "sh"], "-x||"),
        (&["sh"], "||--help -eA=1 -- --version"),
        (&["--", "sh"], "||-e A=1 --mode direct -x"),
    ] {
        let output = run(&library)
            .args(arguments)
            .args(["-c", script, "sh"])
            .args(printed.rsplit('|').next().unwrap().split_whitespace())
            .output()
            .unwrap();
        assert_eq!(text(&output.stdout), format!("{printed}\n"), "{output:?}");
    }
    let output = run(&library)
        .arg("-e")
        .arg(OsStr::from_bytes(b"A=\xff="))
        .args(["sh", "-c", "printf %s \"$A\""])
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"\xff=", "{output:?}");
}

#[test]
fn a_mistyped_option_is_not_the_command() {
    for arguments in [
        &["--uprade=eager", "true"][..],
        &["-x", "true"],
        &["--version"],
        &["-xA=1", "--", "true"],
        &["--mode", "direct", "--no-such", "true"],
    ] {
        let output = common::sluice(&[&["run"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = text(&output.stderr);
        assert!(
            said.contains("unexpected argument") && said.contains("tip:"),
            "{said}"
        );
    }
}

#[test]
fn wrong_arguments_are_explained() {
    for arguments in [
        &["run"][..],
        &["run", "-eA", "true"],
        &["run", "-e", "=1", "true"],
        &["stat", ""],
        &["stat", "/usr/bin/"],
        &["run", "-e", "nothing", "true"],
        &["run", "--upgrade", "soon", "true"],
        &["run", "--mode", "fast", "true"],
        &["stat", "--port", "none"],
        &[],
    ] {
        let output = common::sluice(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(
            text(&output.stderr).contains("--help") || arguments.is_empty(),
            "{output:?}"
        );
    }
}
