//! What links to other hosts need.

use super::within::limit;
use super::{Check, Findings, State};
use crate::units::size;
use std::ffi::CStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Memory that a process should be allowed to pin, in bytes: rings of a few links.
const PINNED: u64 = 64 << 20;
const DEVICES: &str = "/sys/class/infiniband";

pub fn examine() -> Findings {
    let devices = entries(Path::new(DEVICES));
    if devices.is_empty() {
        let none = Check::new(
            "devices",
            State::Note,
            "none: connections to other hosts stay on TCP",
        )
        .mended_by(
            "without such hardware: `rdma link add rxe0 type rxe netdev NAME` makes one in \
             software",
        );
        return Findings {
            usable: false,
            checks: vec![none],
        };
    }
    let mut checks: Vec<Check> = devices.iter().flat_map(|device| ports(device)).collect();
    let is_any_up = checks.iter().any(|check| check.state != State::Bad);
    let needed = [
        library("libibverbs", c"libibverbs.so.1"),
        library("librdmacm", c"librdmacm.so.1"),
        access(
            "/dev/infiniband/rdma_cm",
            "modprobe rdma_ucm; in a container: --device=/dev/infiniband",
        ),
        uverbs(),
    ];
    let has_needed = needed.iter().all(|check| check.state != State::Bad);
    checks.extend(needed);
    checks.push(memory());
    Findings {
        usable: is_any_up && has_needed,
        checks,
    }
}

/// What is in a directory, in order.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<_> = all.map(|entry| entry.path()).collect();
    all.sort();
    all
}

/// The text of a file of the kernel's, or nothing.
fn text(file: &Path) -> String {
    fs::read_to_string(file)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// A line for each port of a device: Documentation/ABI/stable/sysfs-class-infiniband.
fn ports(device: &Path) -> Vec<Check> {
    let name =
        String::from_utf8_lossy(device.file_name().unwrap_or_default().as_bytes()).into_owned();
    // "4: RNIC" is an iWARP adapter.
    let is_iwarp = text(&device.join("node_type")).ends_with("RNIC");
    entries(&device.join("ports"))
        .iter()
        .map(|port| {
            let number = String::from_utf8_lossy(port.file_name().unwrap_or_default().as_bytes())
                .into_owned();
            let what = format!("device {name} port {number}");
            let state = text(&port.join("state"));
            let layer = text(&port.join("link_layer"));
            let netdev = text(&port.join("gid_attrs/ndevs/0"));
            let gids = entries(&port.join("gids"))
                .iter()
                .filter(|gid| text(gid).chars().any(|c| !matches!(c, '0' | ':')))
                .count();
            let kind = if is_iwarp { "iWARP".to_owned() } else { layer };
            let on = if netdev.is_empty() {
                String::new()
            } else {
                format!(" on {netdev}")
            };
            let found = format!(
                "{kind}{on}, {}, {gids} addresses (GIDs)",
                state_word(&state)
            );
            if state_word(&state) != "ACTIVE" {
                return Check::new(what, State::Bad, found).mended_by(
                    "the port is not up: ip link set dev NAME up, and look at the cable",
                );
            }
            if gids == 0 {
                return Check::new(what, State::Bad, found)
                    .mended_by("its network interface has no address: ip address add");
            }
            if is_iwarp {
                return Check::new(what, State::Note, found).mended_by(
                    "over iWARP only hosts named by SLUICE_PEERS=SUBNET,... are dialled",
                );
            }
            Check::new(what, State::Ok, found)
        })
        .collect()
}

/// Of "4: ACTIVE" the word.
fn state_word(state: &str) -> &str {
    state.split(": ").nth(1).unwrap_or("state unknown")
}

fn library(what: &str, file: &CStr) -> Check {
    // SAFETY: a C string; what such a library does when it is loaded does no harm here.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY) };
    if handle.is_null() {
        let package = if what == "libibverbs" {
            "libibverbs1 and ibverbs-providers"
        } else {
            "librdmacm1"
        };
        Check::new(what, State::Bad, "cannot be loaded")
            .mended_by(format!("install rdma-core's {package}"))
    } else {
        Check::new(what, State::Ok, "found")
    }
}

fn access(path: &str, mend: &str) -> Check {
    let opened = fs::OpenOptions::new().read(true).write(true).open(path);
    match opened {
        Ok(_) => Check::new(path, State::Ok, "may be used"),
        Err(error) => Check::new(path, State::Bad, crate::run::reason(&error)).mended_by(mend),
    }
}

fn uverbs() -> Check {
    let all = entries(Path::new("/dev/infiniband"));
    let first = all
        .iter()
        .find(|path| path.to_string_lossy().contains("/uverbs"));
    match first {
        Some(path) => access(
            &path.to_string_lossy(),
            "the user needs the right to open it (udev, or the group rdma)",
        ),
        None => Check::new("/dev/infiniband/uverbs*", State::Bad, "there is none")
            .mended_by("modprobe ib_uverbs; in a container: --device=/dev/infiniband"),
    }
}

fn memory() -> Check {
    const WHAT: &str = "RLIMIT_MEMLOCK";
    match limit(libc::RLIMIT_MEMLOCK) {
        Some(libc::RLIM_INFINITY) | None => Check::new(WHAT, State::Ok, "unlimited"),
        Some(bytes) if bytes >= PINNED => Check::new(WHAT, State::Ok, size(bytes)),
        Some(bytes) => Check::new(
            WHAT,
            State::Note,
            format!(
                "{} may be pinned, without CAP_IPC_LOCK: rings are short, and of many active \
                 connections some stay on TCP",
                size(bytes)
            ),
        )
        .mended_by("ulimit -l unlimited, LimitMEMLOCK=infinity of a unit"),
    }
}
