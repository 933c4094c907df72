//! How much memory this process may lock, and have.

use crate::credentials;
use crate::own_fds::Low;
use sluice_fabric::sys;
use std::ffi::CString;
use std::sync::OnceLock;

/// Bit of a capability set (capabilities(7)).
const CAP_IPC_LOCK: u64 = 1 << 14;

/// Returns how many bytes this process may lock: RLIMIT_MEMLOCK, or `None` for no limit. With
/// CAP_IPC_LOCK there is none; in a user namespace that may be an error, which the kernel tells.
#[must_use]
pub fn lockable() -> Option<u64> {
    let limit = sys::lockable();
    let is_privileged =
        || credentials::own_number(b"CapEff:").is_some_and(|c| c & CAP_IPC_LOCK != 0);
    (limit != libc::RLIM_INFINITY && !is_privileged()).then_some(limit)
}

/// Returns how many bytes of memory this process may have: the host's, or what its control groups
/// allow (cgroups(7), both versions). Looked up once.
#[must_use]
pub fn memory() -> u64 {
    static MEMORY: OnceLock<u64> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let groups = read("/proc/self/cgroup").unwrap_or_default();
        let allowed = files(&groups).filter_map(|file| read(&file)?.trim().parse().ok());
        allowed.fold(sys::memory(), u64::min)
    })
}

/// The files that have the limits of control groups, for a text as that of /proc/self/cgroup: those
/// of each group and of all groups above it.
fn files(groups: &str) -> impl Iterator<Item = String> {
    let mut all = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(kinds), Some(mut group)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, name) = match kinds {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if kinds.split(',').any(|kind| kind == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        loop {
            group = group.trim_end_matches('/');
            all.push(format!("{root}{group}/{name}"));
            let Some(above) = group.rfind('/') else { break };
            group = group.get(..above).unwrap_or_default();
        }
    }
    all.into_iter()
}

fn read(path: &str) -> Option<String> {
    let _low = Low::begin();
    let fd = sys::open(&CString::new(path).ok()?, libc::O_RDONLY).ok()?;
    let mut text = [0u8; 4096];
    let len = sys::read(fd.raw(), &mut text).ok()?;
    Some(String::from_utf8_lossy(text.get(..len)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_a_group_and_of_those_above_count() {
        let of = |text| files(text).collect::<Vec<_>>();
        assert_eq!(of("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        assert_eq!(
            of("0::/a.slice/b\n"),
            [
                "/sys/fs/cgroup/a.slice/b/memory.max",
                "/sys/fs/cgroup/a.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        let old = "3:cpu,cpuacct:/x\n2:memory:/x\n1:name=systemd:/x\n";
        assert_eq!(
            of(old),
            [
                "/sys/fs/cgroup/memory/x/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
        assert!(of("").is_empty() && of("nonsense\n:\n").is_empty());
    }

    #[test]
    fn a_process_has_some_memory() {
        assert!((1 << 20..1 << 50).contains(&memory()));
    }
}
