//! The report for Prometheus and its kin: the text format, version 0.0.4.

use crate::report::{Flow, Process, Report};
use std::fmt::Write as _;
use std::io::{self, Write};

/// A metric: its name without the prefix, whether it only grows, and what it is.
type Metric = (&'static str, bool, &'static str);

const CONNECTIONS: Metric = (
    "connections",
    false,
    "Open connections, by how their bytes travel.",
);
const BYTES: Metric = (
    "bytes_total",
    true,
    "Bytes of connections, by direction and way.",
);
const RESENT: Metric = (
    "resent_bytes_total",
    true,
    "Bytes that went by TCP again after a link.",
);
const WAITS: Metric = (
    "waits_total",
    true,
    "Waits that ended on the processor (spin), and in the kernel (sleep).",
);
const TRACKED: Metric = ("tracked_total", true, "Connections so far.");
const UPGRADES: Metric = ("upgrades_total", true, "Connections that left TCP.");
const DEMOTIONS: Metric = (
    "demotions_total",
    true,
    "Connections that went back to TCP.",
);
const REASONS: Metric = ("reasons_total", true, "Reasons for TCP that were given.");
const LINKS: Metric = ("links", false, "Links to other processes.");
const DOORBELLS: Metric = ("doorbells_total", true, "Wake-ups sent to other processes.");
const CUT: Metric = (
    "cut",
    false,
    "1 for each part of a process's counts that is left out: `process` is all of it.",
);
const PANICS: Metric = ("panics_total", true, "Defects of Sluice that were caught.");

/// Writes all processes, metric by metric, as the format wants it.
pub fn write(to: &mut impl Write, report: &Report) -> io::Result<()> {
    let mut page = Page { report, to };
    page.metric(CONNECTIONS, |process, put| {
        for (transport, count) in &process.open {
            put(&[("transport", transport)], *count);
        }
    })?;
    page.flows(BYTES, |flow, direction, put| {
        let ways = [
            ("tcp", flow.tcp),
            ("direct", flow.direct),
            ("indirect", flow.indirect),
            ("file", flow.file),
            ("pages", flow.pages),
        ];
        for (way, count) in ways {
            put(&[("direction", direction), ("way", way)], count);
        }
    })?;
    page.flows(RESENT, |flow, direction, put| {
        put(&[("direction", direction)], flow.resent);
    })?;
    page.flows(WAITS, |flow, direction, put| {
        for (how, count) in [("spin", flow.spins), ("sleep", flow.sleeps)] {
            put(&[("direction", direction), ("how", how)], count);
        }
    })?;
    page.metric(REASONS, |process, put| {
        for (code, count) in &process.reasons {
            put(&[("reason", code)], *count);
        }
    })?;
    let single: [(Metric, Count); 6] = [
        (TRACKED, |process| process.tracked),
        (UPGRADES, |process| process.upgrades),
        (DEMOTIONS, |process| process.demotions),
        (LINKS, |process| process.links),
        (DOORBELLS, |process| process.doorbells),
        (PANICS, |process| process.panics),
    ];
    for (metric, value) in single {
        page.metric(metric, |process, put| put(&[], value(process)))?;
    }
    page.cut()
}

/// One number of a process.
type Count = fn(&Process) -> u64;

/// Takes one value with its labels.
type Put<'a> = &'a mut dyn FnMut(&[(&str, &str)], u64);

struct Page<'a, W> {
    report: &'a Report,
    to: &'a mut W,
}

impl<W: Write> Page<'_, W> {
    fn metric(&mut self, metric: Metric, each: impl Fn(&Process, Put)) -> io::Result<()> {
        let (name, ..) = metric;
        let mut text = head(metric);
        for process in &self.report.processes {
            each(process, &mut |labels, count| {
                value(&mut text, name, (process.pid, &process.name), labels, count);
            });
        }
        self.to.write_all(text.as_bytes())
    }

    /// Of processes that are shown in part, and of those that are not shown since reading them took
    /// too long.
    fn cut(&mut self) -> io::Result<()> {
        let (name, ..) = CUT;
        let mut text = head(CUT);
        for process in &self.report.processes {
            for cut in &process.cut {
                let labels = [("part", cut.code.as_str())];
                value(&mut text, name, (process.pid, &process.name), &labels, 1);
            }
        }
        for refused in self.report.refused.iter().filter(|r| r.silent) {
            let labels = [("part", "process")];
            value(&mut text, name, (refused.pid, &refused.name), &labels, 1);
        }
        self.to.write_all(text.as_bytes())
    }

    fn flows(&mut self, metric: Metric, each: impl Fn(&Flow, &str, Put)) -> io::Result<()> {
        self.metric(metric, |process, put| {
            each(&process.tx, "sent", put);
            each(&process.rx, "received", put);
        })
    }
}

/// What describes a metric.
fn head((name, grows, help): Metric) -> String {
    let kind = if grows { "counter" } else { "gauge" };
    format!("# HELP sluice_{name} {help}\n# TYPE sluice_{name} {kind}\n")
}

/// Adds a line: a value of a process's.
fn value(text: &mut String, of: &str, who: (i32, &str), labels: &[(&str, &str)], value: u64) {
    let (pid, name) = who;
    let _ = write!(
        text,
        "sluice_{of}{{pid=\"{pid}\",name=\"{}\"",
        Escaped(name)
    );
    for (label, of) in labels {
        let _ = write!(text, ",{label}=\"{}\"", Escaped(of));
    }
    let _ = writeln!(text, "}} {value}");
}

/// The value of a label, as the format wants it.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped() {
        assert_eq!(Escaped("a\"b\\c\nd").to_string(), "a\\\"b\\\\c\\nd");
    }
}
