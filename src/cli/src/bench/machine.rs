//! Where and when something was measured.

use crate::process::Shown;
use serde::Serialize;
use std::fs;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    pub name: String,
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
    pub kernel: String,
    /// When it began, in UTC.
    pub date: String,
    /// Means of 1, 5 and 15 minutes, before it began.
    pub load: String,
}

impl Machine {
    pub fn this() -> Self {
        let line = |path: &str| {
            let text = fs::read(path).unwrap_or_default();
            Shown(text.trim_ascii()).to_string()
        };
        let load = line("/proc/loadavg");
        let load: Vec<&str> = load.split(' ').take(3).collect();
        Self {
            name: line("/proc/sys/kernel/hostname"),
            cpu: model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("Linux {}", line("/proc/sys/kernel/osrelease")),
            date: date(),
            load: load.join(" "),
        }
    }
}

/// What a processor calls itself; its architecture if it has no name.
fn model(cpuinfo: &str) -> String {
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let is_model = matches!(name.trim(), "model name" | "Model");
        is_model.then(|| value.trim().to_owned())
    };
    let named = cpuinfo.lines().find_map(field);
    named.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Now, as in `2026-01-31 12:34 UTC`.
fn date() -> String {
    let mut text = [0_u8; 32];
    // SAFETY: zeroes are a valid time.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: writes to `parts` alone, whose fields strftime reads; it writes no more than the
    // length says, and returns how much.
    let len = unsafe {
        let now = libc::time(std::ptr::null_mut());
        libc::gmtime_r(&raw const now, &raw mut parts);
        let format = c"%Y-%m-%d %H:%M UTC".as_ptr();
        libc::strftime(
            text.as_mut_ptr().cast(),
            text.len(),
            format,
            &raw const parts,
        )
    };
    let text = text.get(..len).unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let Machine {
            name,
            cpu,
            cpus,
            kernel,
            date,
            load,
        } = Machine::this();
        assert!(!name.is_empty() && !cpu.is_empty() && cpus > 0);
        assert!(kernel.len() > "Linux ".len(), "{kernel}");
        assert!(date.starts_with("20") && date.ends_with(" UTC"), "{date}");
        assert_eq!(load.split(' ').count(), 3, "{load}");
    }

    #[test]
    fn a_processor_without_a_name_is_its_architecture() {
        let info = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: A B C\n";
        assert_eq!(model(info), "A B C");
        assert_eq!(model("processor: 0"), std::env::consts::ARCH);
    }
}
