//! For the fuzzer: what others have written, in a file or in their memory, and what the command
//! says of it.

pub use crate::trace::{told, told_of};

use crate::report::{Process, Report};
use crate::terminal::Screen;
use crate::{counters, prometheus, table};

/// What `sluice stat` says of counters that begin at `place` in a process: for people, on a
/// terminal and off it, as JSON and for Prometheus. `None`: it cannot read them.
#[must_use]
pub fn shown(pid: i32, place: usize, now_ns: u64) -> Option<[Vec<u8>; 4]> {
    let counters = counters::read_at(pid, place).ok()?;
    let process = Process::new(&counters, now_ns);
    let mut all = [const { Vec::new() }; 4];
    let [terminal, text, json, metrics] = &mut all;
    let mut report = Report::new();
    report.processes.push(process);
    let screen = Screen {
        width: Some(80),
        has_colours: false,
    };
    table::write(terminal, &report.processes, screen).ok()?;
    table::write(text, &report.processes, Screen::default()).ok()?;
    serde_json::to_writer(&mut *json, &report).ok()?;
    prometheus::write(metrics, &report).ok()?;
    Some(all)
}
