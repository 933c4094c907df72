//! The report for people.

use crate::report::{Connection, Flow, Process, Unlisted};
use comfy_table::{CellAlignment, ColumnConstraint, Table, presets};
use sluice_stats::Reason;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Writes one process: a line of totals, a table of connections, the reasons so far. On a terminal
/// the longest column goes below its row, lest every row be broken somewhere.
pub fn write(to: &mut impl Write, process: &Process, is_terminal: bool) -> io::Result<()> {
    writeln!(
        to,
        "{} (pid {}): {}; {} tracked so far; {}, {}, {}",
        process.name,
        process.pid,
        totals(&process.known),
        process.tracked,
        counted(process.upgrades, "upgrade"),
        counted(process.demotions, "demotion"),
        counted(process.links, "link"),
    )?;
    if process.panics != 0 {
        writeln!(
            to,
            "  caught {} of Sluice; please report",
            counted(process.panics, "defect")
        )?;
    }
    if process.tracked != 0 {
        writeln!(
            to,
            "  sent {}; received {}",
            flow(&process.tx),
            flow(&process.rx)
        )?;
    }
    if !process.reasons.is_empty() {
        let reasons: Vec<_> = process
            .reasons
            .iter()
            .map(|(code, count)| format!("{code} {count}"))
            .collect();
        writeln!(to, "  reasons for TCP so far: {}", reasons.join(", "))?;
    }
    if process.off {
        writeln!(to, "  {}", Reason::Off.words())?;
    }
    if !process.connections.is_empty() {
        let mut table = table(&process.connections);
        if is_terminal && let Some(column) = table.column_mut(WHY) {
            column.set_constraint(ColumnConstraint::Hidden);
        }
        // The first line is the header.
        let reasons = process.connections.iter().map(why);
        let below = std::iter::once(String::new()).chain(reasons);
        for (line, why) in table.lines().zip(below) {
            writeln!(to, "{}", line.trim_end())?;
            if is_terminal && !why.is_empty() {
                writeln!(to, "      {why}")?;
            }
        }
    }
    for Unlisted { reason, count } in &process.unlisted {
        if reason.code == Reason::BelowThreshold.code() {
            writeln!(to, "  {count} more below the threshold, not listed")?;
        } else {
            writeln!(to, "  {count} more not listed: {}", reason.words)?;
        }
    }
    Ok(())
}

/// How many connections there are, and what carries them: `198 connections: 170 shm, 28 tcp`.
fn totals(by_transport: &BTreeMap<&'static str, u64>) -> String {
    let all = counted(by_transport.values().sum(), "connection");
    if by_transport.is_empty() {
        return all;
    }
    let parts: Vec<_> = by_transport
        .iter()
        .map(|(transport, count)| format!("{count} {transport}"))
        .collect();
    format!("{all}: {}", parts.join(", "))
}

/// The number of the column that says why a connection is on TCP.
const WHY: usize = 10;

fn table(connections: &[Connection]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "FD", "LOCAL", "", "PEER", "ON", "AGE", "SENT", "RECEIVED", "UP", "DOWN", "WHY",
    ]);
    for column in [0, 5, 8, 9] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for connection in connections {
        table.add_row([
            if connection.fd < 0 {
                "-".to_owned()
            } else {
                connection.fd.to_string()
            },
            connection.local.clone(),
            if connection.role == "accepted" {
                "<-"
            } else {
                "->"
            }
            .to_owned(),
            connection.peer.clone(),
            connection.transport.to_owned(),
            age(connection.age_ms),
            flow(&connection.tx),
            flow(&connection.rx),
            connection.upgrades.to_string(),
            connection.demotions.to_string(),
            why(connection),
        ]);
    }
    table
}

fn why(connection: &Connection) -> String {
    if connection.inherited {
        return "inherited by fork: its counts are the parent's".to_owned();
    }
    match (&connection.reason, &connection.last_demotion) {
        (Some(now), _) => now.words.clone(),
        (None, Some(before)) => format!("(went back once: {})", before.words),
        (None, None) => String::new(),
    }
}

/// The bytes of a direction, by the ways they took.
fn flow(flow: &Flow) -> String {
    let ways = [
        ("tcp", flow.tcp),
        ("direct", flow.direct),
        ("indirect", flow.indirect),
        ("file", flow.file),
    ];
    let used: Vec<_> = ways
        .iter()
        .filter(|(_, bytes)| *bytes != 0)
        .map(|(way, bytes)| format!("{} {way}", size(*bytes)))
        .collect();
    let sum = if used.is_empty() {
        "0".to_owned()
    } else {
        used.join(" + ")
    };
    match flow.ring_fill {
        Some(unread @ 1..) => format!("{sum}, {} of {} unread", size(unread), size(flow.ring_len)),
        _ => sum,
    }
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}s")
    }
}

/// Bytes with three digits or so: `17`, `1.5K`, `230M`.
fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut units = ["", "K", "M", "G", "T", "P", "E"].iter();
    let mut unit = units.next().copied().unwrap_or_default();
    while value >= 1023.5 {
        let Some(next) = units.next() else { break };
        value /= 1024.0;
        unit = next;
    }
    let decimals = usize::from(!unit.is_empty() && value < 99.95);
    format!("{value:.decimals$}{unit}")
}

/// A time in its two largest units at most: `0.3s`, `59s`, `2m10s`, `3h5m`, `4d2h`.
fn age(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..10 => format!("{s}.{}s", ms % 1000 / 100),
        10..60 => format!("{s}s"),
        60..3600 => format!("{}m{}s", s / 60, s % 60),
        3600..86400 => format!("{}h{}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d{}h", s / 86400, s % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Cause;

    fn connection(fd: i32, transport: &'static str, why: Option<&str>) -> Connection {
        Connection {
            fd,
            family: "ipv4",
            role: "accepted",
            local: "127.0.0.1:8000".to_owned(),
            peer: "127.0.0.1:54321".to_owned(),
            transport,
            age_ms: 1500,
            reason: why.map(|words| Cause {
                code: "code".to_owned(),
                words: words.to_owned(),
            }),
            last_demotion: None,
            upgrades: 0,
            demotions: 0,
            inherited: false,
            tx: Flow::default(),
            rx: Flow::default(),
        }
    }

    fn lines(connections: Vec<Connection>, is_terminal: bool) -> Vec<String> {
        let process = Process {
            pid: 7,
            name: "name".to_owned(),
            library: String::new(),
            version: String::new(),
            age_ms: 0,
            off: false,
            tracked: 0,
            upgrades: 0,
            demotions: 0,
            links: 0,
            links_made: 0,
            doorbells: 0,
            panics: 0,
            reasons: BTreeMap::new(),
            tx: Flow::default(),
            rx: Flow::default(),
            open: BTreeMap::new(),
            known: connections.iter().fold(BTreeMap::new(), |mut all, one| {
                *all.entry(one.transport).or_default() += 1;
                all
            }),
            connections,
            unlisted: Vec::new(),
            cut: Vec::new(),
        };
        let mut text = Vec::new();
        write(&mut text, &process, is_terminal).unwrap();
        let text = String::from_utf8(text).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_terminal_shows_the_reason_below_its_row() {
        let why = "a reason that needs many words, more than there is room for at a row's end";
        let connections = || vec![connection(5, "shm", None), connection(14, "tcp", Some(why))];
        let shown = lines(connections(), true);
        assert_eq!(shown.len(), 5, "{shown:?}");
        assert!(shown[1].ends_with("DOWN"), "{shown:?}");
        assert_eq!(shown[4], format!("      {why}"));
        let piped = lines(connections(), false);
        assert_eq!(piped.len(), 4, "{piped:?}");
        assert!(
            piped[1].ends_with("WHY") && piped[3].ends_with(why),
            "{piped:?}"
        );
        for line in shown.iter().chain(&piped) {
            assert_eq!(line, line.trim_end());
        }
        assert!(shown[1..4].iter().all(|row| row.len() <= 80), "{shown:?}");
    }

    #[test]
    fn the_first_line_counts_by_transport() {
        let begins = |connections, with: &str| {
            let line = lines(connections, false).swap_remove(0);
            assert!(line.starts_with(with), "{line}");
        };
        begins(vec![], "name (pid 7): 0 connections; 0 tracked so far;");
        begins(
            vec![connection(4, "tcp", None)],
            "name (pid 7): 1 connection: 1 tcp; 0 tracked so far;",
        );
        let many = ["tcp", "shm", "tcp"].map(|transport| connection(4, transport, None));
        begins(
            many.into(),
            "name (pid 7): 3 connections: 1 shm, 2 tcp; 0 tracked so far;",
        );
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1536, "1.5K"),
            (102_400, "100K"),
            (1_048_575, "1.0M"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn ages_are_short() {
        for (ms, text) in [
            (0, "0.0s"),
            (9_999, "9.9s"),
            (59_999, "59s"),
            (130_000, "2m10s"),
            (3_600_000, "1h0m"),
            (u64::MAX, "213503982334d14h"),
        ] {
            assert_eq!(age(ms), text);
        }
    }
}
