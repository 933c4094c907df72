//! What links within this host need.

use super::{Check, Findings, State, trial};
use crate::process::Shown;
use crate::report::Cause;
use crate::units::size;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Descriptors that a process should be allowed: a link takes two for each waiter.
const FEW_DESCRIPTORS: u64 = 256;

pub fn examine() -> Findings {
    let library = crate::run::library();
    let mut checks = vec![match &library {
        Ok(path) => Check::new(
            "libsluice.so",
            State::Ok,
            Shown(path.as_os_str().as_bytes()).to_string(),
        ),
        Err(why) => Check::new("libsluice.so", State::Bad, why)
            .mended_by("make install, or name it by SLUICE_LIBRARY"),
    }];
    checks.push(shared_memory());
    checks.extend(overcommit());
    checks.push(abstract_sockets());
    checks.extend(seccomp());
    checks.push(ptrace_scope());
    checks.extend(descriptors());
    checks.extend(container());
    checks.extend(settings());
    let mut usable = false;
    if let Ok(path) = &library {
        let (check, worked) = tried(trial::run(path));
        usable = worked;
        checks.push(check);
    }
    Findings { usable, checks }
}

/// What came of a real connection.
fn tried(outcome: Result<trial::Outcome, String>) -> (Check, bool) {
    const WHAT: &str = "a connection";
    match outcome {
        Ok(trial::Outcome {
            linked,
            direct,
            total,
            reason,
        }) => {
            if linked == 0 {
                let code = reason.as_deref().unwrap_or("none");
                let words = Cause::words_of(code);
                return (
                    Check::new(WHAT, State::Bad, format!("stays on TCP: {words}"))
                        .mended_by("see the lines above; `SLUICE_LOG=debug` tells more"),
                    false,
                );
            }
            let share = 100 * linked / total.max(1);
            let found = format!("{share} % of {} went through shared memory", size(total));
            let check = if direct == 0 {
                Check::new(
                    WHAT,
                    State::Note,
                    format!("{found}; nothing was copied straight into the reader's buffer"),
                )
                .mended_by(
                    "needs two processors that are free, and the right to read the peer's \
                     memory: see the ptrace scope",
                )
            } else {
                Check::new(
                    WHAT,
                    State::Ok,
                    format!(
                        "{found}, {} straight into the reader's buffer",
                        size(direct)
                    ),
                )
            };
            (check, true)
        }
        Err(why) => (
            Check::new(WHAT, State::Bad, format!("the trial failed: {why}")),
            false,
        ),
    }
}

fn shared_memory() -> Check {
    const WHAT: &str = "memfd_create";
    // SAFETY: a C string, and flags that the call knows.
    let fd = unsafe { libc::memfd_create(c"sluice doctor".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        let why = crate::run::reason(&io::Error::last_os_error());
        return Check::new(WHAT, State::Bad, why)
            .mended_by("a sandbox forbids it: allow memfd_create(2)");
    }
    // SAFETY: the descriptor is ours alone.
    unsafe { libc::close(fd) };
    Check::new(WHAT, State::Ok, "allowed")
}

fn overcommit() -> Option<Check> {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
    let found = "2: the kernel may refuse pages of shared memory when they are used";
    (mode.trim() == "2").then(|| {
        Check::new("vm.overcommit_memory", State::Bad, found)
            .mended_by("within this host everything stays on TCP: sysctl vm.overcommit_memory=0")
    })
}

fn abstract_sockets() -> Check {
    const WHAT: &str = "abstract Unix sockets";
    let name = format!("sluice doctor {}", std::process::id());
    let bound = SocketAddr::from_abstract_name(name).and_then(|at| UnixListener::bind_addr(&at));
    match bound {
        Ok(_) => Check::new(WHAT, State::Ok, "allowed"),
        Err(error) => Check::new(WHAT, State::Bad, crate::run::reason(&error)).mended_by(
            "a sandbox forbids them: allow AF_UNIX sockets (systemd: RestrictAddressFamilies)",
        ),
    }
}

/// A field of /proc/self/status.
fn status(field: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().to_owned())
}

fn seccomp() -> Option<Check> {
    match status("Seccomp:").as_deref() {
        None | Some("0") => None,
        Some(_) => Some(Check::new(
            "seccomp",
            State::Note,
            "a filter is in force here; the connection below was tried under it",
        )),
    }
}

fn ptrace_scope() -> Check {
    const WHAT: &str = "ptrace scope";
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => Check::new(
            WHAT,
            State::Ok,
            "processes of one user may look into each other",
        ),
        "1" => Check::new(
            WHAT,
            State::Note,
            "1: `sluice stat` sees one's own processes only as root",
        )
        .mended_by("sudo sluice stat, or sysctl kernel.yama.ptrace_scope=0"),
        other => Check::new(
            WHAT,
            State::Note,
            format!(
                "{other}: only the administrator may look into processes, so large sends are \
                 copied twice"
            ),
        )
        .mended_by("sysctl kernel.yama.ptrace_scope=1"),
    }
}

fn descriptors() -> Option<Check> {
    let limit = limit(libc::RLIMIT_NOFILE)?;
    (limit < FEW_DESCRIPTORS).then(|| {
        Check::new(
            "descriptors",
            State::Note,
            format!("a process may have {limit}, of which the library takes a tenth at most"),
        )
        .mended_by("ulimit -n 1024, LimitNOFILE= of a unit")
    })
}

/// The soft limit of this process; `None`: not known.
pub fn limit(which: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes to a place of that type.
    (unsafe { libc::getrlimit(which, &raw mut limit) } == 0).then_some(limit.rlim_cur)
}

fn container() -> Option<Check> {
    let is_inside = ["/.dockerenv", "/run/.containerenv"]
        .iter()
        .any(|file| fs::exists(file).unwrap_or(false))
        || std::env::var_os("container").is_some();
    is_inside.then(|| {
        Check::new(
            "container",
            State::Note,
            "processes of different containers are accelerated between each other only in one \
             network namespace",
        )
        .mended_by(
            "docker run --network container:NAME; for copies straight into the reader also \
             --pid container:NAME",
        )
    })
}

/// What is set for every program that is started from here.
fn settings() -> Option<Check> {
    let mut set: Vec<_> = std::env::vars_os()
        .filter(|(name, _)| name.as_bytes().starts_with(b"SLUICE_"))
        .map(|(name, value)| format!("{}={}", Shown(name.as_bytes()), Shown(value.as_bytes())))
        .collect();
    set.sort();
    (!set.is_empty()).then(|| Check::new("settings", State::Note, set.join(" ")))
}
