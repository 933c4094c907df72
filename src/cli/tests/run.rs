//! `sluice run`: what the program finds, and what the caller is told.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Scratch, assert_refused, counting_library, text};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// How LD_PRELOAD names a library that the loader does not find by its bare name.
fn named(library: &Path) -> String {
    format!("/$ORIGIN{}{}", "/..".repeat(32), library.display())
}

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
    let script = r#"echo "$LD_PRELOAD|$A|$SLUICE_MODE|$SLUICE_UPGRADE|$1"
        grep -c libsluice.so /proc/self/maps"#;
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
    assert_eq!(settings, format!("{}|b=c|direct|4K|-x", named(&library)));
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
    let expected = format!("{}:{}\n", named(&library), other.display());
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
    assert_eq!(preloaded, named(&new));
    let new_path = new.to_str().unwrap();
    assert!(
        mapped.lines().all(|line| line.ends_with(new_path)) && !mapped.is_empty(),
        "{printed}"
    );
    let line = format!(
        "LD_PRELOAD: {} is left out, for two copies of the library do not go together",
        named(&old)
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
    assert_eq!(text(&output.stdout), format!("{}\n", named(&new)));
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
        "$RUN bash -c 'for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && echo $fd; done >&3' \
         3>&1 <&- >&- 2>&-",
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
        "libsluice.so is not in {here}, nor in ../lib, ../lib/sluice or ../lib/{}-linux-gnu from \
         there; SLUICE_LIBRARY can name it",
        std::env::consts::ARCH
    );
    assert_refused(&alone(), 125, &line);
    // And one that has its library beside it.
    let library = counting_library(&scratch);
    assert_eq!(text(&alone().stdout), format!("{}\n", named(&library)));
}

#[test]
fn a_library_in_lib_is_found() {
    let scratch = Scratch::new("prefix");
    let library = counting_library(&scratch);
    let debians = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    for place in ["lib", "lib/sluice", &debians] {
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
        assert_eq!(text(&output.stdout), format!("{}\n", named(&installed)));
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
    let sluice = || {
        let mut command = Command::new(&tool);
        command.arg("run").env("SLUICE_LIBRARY", &library);
        if is_root {
            command.uid(65534);
        }
        command
    };
    let program = if is_root {
        let program = scratch.join("setuid-true");
        common::copy("/bin/true", &program);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        program
    } else {
        Path::new("/usr/bin/passwd").to_owned()
    };
    let output = sluice().arg(&program).arg("--help").output().unwrap();
    let warning = format!(
        "sluice: {} is setuid, setgid or has capabilities, so the loader ignores LD_PRELOAD; it \
         stays on TCP\n",
        program.display()
    );
    assert!(text(&output.stderr).starts_with(&warning), "{output:?}");
    assert!(is_root <= output.status.success(), "{output:?}");
    let mut under = sluice();
    let under = under
        .args(["sh", "-c", r#""$0" --help; exit $?"#])
        .arg(&program);
    let under = under.output().unwrap();
    let said = |output: &Output| text(&output.stderr).replace(&warning, "");
    assert_eq!((under.status, said(&under)), (output.status, said(&output)));
}

/// Says "ran", and ends with status 7.
const PROGRAM: &str = "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 7; }\n";

/// What Go's linker leaves in a program, in one that a C compiler makes.
const GO: &str =
    "__attribute__((section(\".go.buildinfo\"))) char info[32] = \"\\xff Go buildinf:\";\n";
const GO_NOTE: &str = "__asm__(\".pushsection .note.go.buildid, \\\"a\\\", @note; .balign 4;\"\n\
    \".long 4, 4, 4; .ascii \\\"Go\\\\0\\\\0id12\\\"; .popsection\");\n";

/// The program that `compiler` makes of `PROGRAM` and `more`. `None`, in words, where it cannot.
fn compiled(folder: &Scratch, name: &str, compiler: &[&str], more: &str) -> Option<PathBuf> {
    let (source, program) = (folder.join(&format!("{name}.c")), folder.join(name));
    std::fs::write(&source, format!("{PROGRAM}{more}")).unwrap();
    let [compiler, flags @ ..] = compiler else {
        return None;
    };
    let made = Command::new(compiler)
        .args(flags)
        .arg("-o")
        .args([&program, &source])
        .output();
    match made {
        Ok(made) if made.status.success() => Some(program),
        why => {
            eprintln!("skipped: {name} cannot be built by {compiler} {flags:?}: {why:?}");
            None
        }
    }
}

/// A copy of an ELF64 file without its table of sections, as sstrip makes it.
fn without_sections(program: &Path) -> PathBuf {
    let (written, stripped) = (program.with_extension("bytes"), program.with_extension("s"));
    let mut bytes = std::fs::read(program).unwrap();
    bytes.get_mut(0x28..0x30).unwrap().fill(0);
    bytes.get_mut(0x3a..0x40).unwrap().fill(0);
    std::fs::write(&written, bytes).unwrap();
    std::fs::set_permissions(&written, std::fs::Permissions::from_mode(0o755)).unwrap();
    common::copy(&written, &stripped);
    stripped
}

const BITS_32: &str = "is a 32-bit program, and the library is 64-bit";
const GO_WORDS: &str = "is a Go program, which makes system calls without the C library";
const MUSL: &str = "is linked to musl, and the library needs glibc";
const STATIC: &str = "is statically linked, so nothing can be preloaded";

#[test]
fn programs_that_stay_on_tcp_run_as_ever() {
    let scratch = Scratch::new("stays");
    let library = counting_library(&scratch);
    for (name, compiler, more, words) in [
        ("ordinary", &["cc"][..], "", ""),
        ("musl", &["musl-gcc"], "", MUSL),
        ("musl-static", &["musl-gcc", "-static"], "", STATIC),
        ("static", &["cc", "-static"], "", STATIC),
        ("static-pie", &["cc", "-static-pie"], "", STATIC),
        ("bits-32", &["cc", "-m32"], "", BITS_32),
        ("go", &["cc"], GO, GO_WORDS),
        ("go-static", &["cc", "-static"], GO, GO_WORDS),
        ("go-note", &["cc"], GO_NOTE, GO_WORDS),
    ] {
        let Some(mut program) = compiled(&scratch, name, compiler, more) else {
            continue;
        };
        if name == "go-note" {
            program = without_sections(&program);
        }
        let output = run(&library).arg(&program).output().unwrap();
        let said = match words {
            "" => String::new(),
            words => format!("sluice: {} {words}; it stays on TCP\n", program.display()),
        };
        assert_eq!(text(&output.stderr), said);
        let ran = |output: &Output| (text(&output.stdout), output.status.code());
        assert_eq!(ran(&output), ("ran\n".to_owned(), Some(7)), "{name}");

        // The same where a shell does nothing else, and is all that could be served.
        let mut only = run(&library);
        let only = only.args(["sh", "-c"]).arg(&program).output().unwrap();
        assert_eq!(ran(&only), ran(&output), "{name}");
        assert_eq!(text(&only.stderr), said, "{name}");

        // The same as the child of a program that the library serves.
        let script = r#""$0"; exit $?"#;
        let mut under = run(&library);
        let under = under.args(["sh", "-c", script]).arg(&program);
        let under = under.output().unwrap();
        assert_eq!(ran(&under), ran(&output), "{name}");
        // The loader of a 32-bit program says that the library has another word size.
        let lines = usize::from(words == BITS_32);
        assert_eq!(text(&under.stderr).lines().count(), lines, "{under:?}");
    }
}

#[test]
fn programs_that_stay_on_tcp_start_programs_that_do_not() {
    let scratch = Scratch::new("starts");
    let library = counting_library(&scratch);
    let more = "#include <unistd.h>\n__attribute__((constructor)) static void start(void)\n\
                { execlp(\"grep\", \"grep\", \"-c\", \"libsluice.so\", \"/proc/self/maps\", \
                (char *)0); }\n";
    for (name, compiler) in [("musl", &["musl-gcc"][..]), ("static", &["cc", "-static"])] {
        if let Some(program) = compiled(&scratch, name, compiler, more) {
            let output = run(&library).arg(&program).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{output:?}");
        }
    }
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
