//! The report for people.

use crate::report::{Connection, Flow, Process, Unlisted, share};
use crate::terminal::Screen;
use crate::units::{age, counted, percent, size};
use comfy_table::{Cell, CellAlignment, Color, Table, presets};
use sluice_stats::Reason;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// What is below the first line of a process is indented by so many columns.
const INDENT: usize = 2;
/// What is said of a connection below its row.
const BELOW: usize = 6;

/// Writes all processes, and the sum of several. A terminal gets lines that it can show whole, and
/// reasons below the rows; a file gets a line for each connection.
pub fn write(to: &mut impl Write, processes: &[Process], screen: Screen) -> io::Result<()> {
    for (number, process) in processes.iter().enumerate() {
        if number > 0 {
            writeln!(to)?;
        }
        write_process(to, process, screen)?;
    }
    if processes.len() > 1 {
        let (mut tx, mut rx) = (Flow::default(), Flow::default());
        let mut open = BTreeMap::new();
        for process in processes {
            let (sent, received) = process.flows();
            tx.add_bytes(sent);
            rx.add_bytes(received);
            for (transport, count) in by_transport(process) {
                *open.entry(transport).or_default() += count;
            }
        }
        let all = format!("{} processes", processes.len());
        writeln!(to, "\n{}", screen.bold(&all))?;
        write_wrapped(to, &connections(&open), INDENT, screen)?;
        write_wrapped(to, &bytes((&tx, &rx)), INDENT, screen)?;
    }
    Ok(())
}

fn write_wrapped(to: &mut impl Write, text: &str, indent: usize, screen: Screen) -> io::Result<()> {
    let mut lines = screen.wrapped(text, indent).into_iter();
    lines.try_for_each(|line| writeln!(to, "{line}"))
}

fn write_process(to: &mut impl Write, process: &Process, screen: Screen) -> io::Result<()> {
    let who = format!("{} (pid {})", process.name, process.pid);
    let command = screen.cut(without_folder(&process.command), who.len() + 2);
    let command = screen.dim(&command);
    let colon = if command.is_empty() { "" } else { ": " };
    writeln!(to, "{}{colon}{command}", screen.bold(&who))?;
    write_wrapped(to, &counts(process), INDENT, screen)?;
    if process.panics != 0 {
        let defects = counted(process.panics, "defect");
        writeln!(to, "  caught {defects} of Sluice; please report")?;
    }
    if process.tracked != 0 || process.fitting.is_some() {
        write_wrapped(to, &bytes(process.flows()), INDENT, screen)?;
    }
    // Every connection is small before it is large.
    let small = Reason::BelowThreshold.code();
    let reasons: Vec<_> = process
        .reasons
        .iter()
        .filter(|(code, _)| *code != small)
        .map(|(code, count)| format!("{code} {count}"))
        .collect();
    if !reasons.is_empty() {
        let text = format!("reasons for TCP so far: {}", reasons.join(", "));
        write_wrapped(to, &text, INDENT, screen)?;
    }
    if process.off {
        write_wrapped(to, Reason::Off.words(), INDENT, screen)?;
    }
    write_connections(to, &process.connections, screen)?;
    for Unlisted { reason, count } in &process.unlisted {
        let text = if reason.code == small {
            format!("{count} more on TCP, with few bytes so far")
        } else {
            format!("{count} more on TCP: {}", reason.words)
        };
        write_wrapped(to, &text, INDENT, screen)?;
    }
    Ok(())
}

/// A command line without the directory of its program, for which there is no room.
fn without_folder(command: &str) -> &str {
    let program = command.split(' ').next().unwrap_or_default();
    let folder = program.rfind('/').map_or(0, |last| last + 1);
    command.get(folder..).unwrap_or_default()
}

/// What the process has, and what became of it.
fn counts(process: &Process) -> String {
    let now = connections(&by_transport(process));
    if process.fitting.is_some() {
        return format!("{now} of those asked for");
    }
    let mut counts = format!("{now}; {} so far", process.tracked);
    for (count, what) in [
        (process.upgrades, "upgrade"),
        (process.demotions, "demotion"),
        (process.links, "link"),
    ] {
        if count != 0 {
            counts += &format!(", {}", counted(count, what));
        }
    }
    counts
}

/// How many connections a process has, listed or not, by what carries them.
fn by_transport(process: &Process) -> BTreeMap<&'static str, u64> {
    let mut all = process.known.clone();
    let unlisted: u64 = process.unlisted.iter().map(|unlisted| unlisted.count).sum();
    if unlisted != 0 {
        *all.entry("tcp").or_default() += unlisted;
    }
    all
}

/// How many connections there are, and what carries them: `198 connections: 170 shm, 28 tcp`.
fn connections(by_transport: &BTreeMap<&'static str, u64>) -> String {
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

/// All bytes of both directions, and how many of them went by a link.
fn bytes((tx, rx): (&Flow, &Flow)) -> String {
    let (sent, received) = (size(tx.total()), size(rx.total()));
    match share((tx, rx)) {
        Some(share) => {
            let share = percent(Some(share));
            format!("sent {sent}, received {received}; {share} of the bytes by link")
        }
        None => format!("sent {sent}, received {received}"),
    }
}

/// How much of each connection is shown; narrow terminals show less.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// The reason at the end of the row, too.
    Whole,
    Rows,
    /// Without the times that it left TCP, and went back.
    Short,
    /// Without its age, too, and the peer on a line of its own: for long addresses.
    Stacked,
}

fn write_connections(
    to: &mut impl Write,
    connections: &[Connection],
    screen: Screen,
) -> io::Result<()> {
    if connections.is_empty() {
        return Ok(());
    }
    let Some(width) = screen.width else {
        for line in table(connections, Layout::Whole, false).lines() {
            writeln!(to, "{}", line.trim_end())?;
        }
        return Ok(());
    };
    let layouts = [Layout::Rows, Layout::Short, Layout::Stacked];
    let tables = layouts.map(|layout| (layout, table(connections, layout, screen.has_colours)));
    let fits = |(_, table): &&(Layout, Table)| {
        let widths = table.column_max_content_widths();
        // A blank after each.
        widths
            .iter()
            .map(|width| usize::from(*width) + 1)
            .sum::<usize>()
            <= width
    };
    let chosen = tables.iter().find(fits).or(tables.last());
    let Some((layout, table)) = chosen else {
        return Ok(());
    };
    let mut lines = table.lines();
    if let Some(header) = lines.next() {
        writeln!(to, "{}", screen.bold(header.trim_end()))?;
    }
    for connection in connections {
        let rows = if *layout == Layout::Stacked { 2 } else { 1 };
        for line in lines.by_ref().take(rows) {
            writeln!(to, "{}", line.trim_end())?;
        }
        for note in notes(connection) {
            for line in screen.wrapped(&note, BELOW) {
                writeln!(to, "{}", screen.dim(&line))?;
            }
        }
    }
    Ok(())
}

fn table(connections: &[Connection], layout: Layout, has_colours: bool) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).force_no_tty();
    if has_colours {
        table.enforce_styling();
    }
    let header: &[&str] = match layout {
        Layout::Whole => &[
            "FD", "LOCAL", "", "PEER", "ON", "AGE", "SENT", "RECEIVED", "LINK", "UP", "DOWN", "WHY",
        ],
        Layout::Rows => &[
            "FD", "LOCAL", "", "PEER", "ON", "AGE", "SENT", "RECEIVED", "LINK", "UP", "DOWN",
        ],
        Layout::Short => &[
            "FD", "LOCAL", "", "PEER", "ON", "AGE", "SENT", "RECV", "LINK",
        ],
        Layout::Stacked => &["FD", "LOCAL, PEER", "ON", "SENT", "RECV", "LINK"],
    };
    table.set_header(header.to_vec());
    for (column, name) in table.column_iter_mut().zip(header) {
        column.set_padding((0, 1));
        if matches!(
            *name,
            "FD" | "AGE" | "SENT" | "RECEIVED" | "RECV" | "LINK" | "UP" | "DOWN"
        ) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for connection in connections {
        table.add_row(row(connection, layout, has_colours));
    }
    table
}

fn row(connection: &Connection, layout: Layout, has_colours: bool) -> Vec<Cell> {
    let arrow = if connection.role == "accepted" {
        "<-"
    } else {
        "->"
    };
    let fd = if connection.fd < 0 {
        "-".to_owned()
    } else {
        connection.fd.to_string()
    };
    let Connection { local, peer, .. } = connection;
    let mut row = vec![Cell::new(fd)];
    if layout == Layout::Stacked {
        row.push(Cell::new(format!("{local}\n{arrow} {peer}")));
    } else {
        row.extend([local, arrow, peer].map(Cell::new));
    }
    let on = Cell::new(connection.transport);
    row.push(match connection.transport {
        _ if !has_colours => on,
        "tcp" => on.fg(Color::Yellow),
        _ => on.fg(Color::Green),
    });
    if layout != Layout::Stacked {
        row.push(Cell::new(age(connection.age_ms)));
    }
    let (tx, rx) = (&connection.tx, &connection.rx);
    row.extend([size(tx.total()), size(rx.total()), percent(share((tx, rx)))].map(Cell::new));
    if matches!(layout, Layout::Whole | Layout::Rows) {
        row.extend([connection.upgrades, connection.demotions].map(Cell::new));
    }
    if layout == Layout::Whole {
        row.push(Cell::new(notes(connection).join("; ")));
    }
    row
}

/// What is to be said of a connection: why it is on TCP, or has been, and what lies unread.
fn notes(connection: &Connection) -> Vec<String> {
    if connection.inherited {
        return vec!["inherited by fork: its counts are the parent's".to_owned()];
    }
    let mut notes = Vec::new();
    match (&connection.reason, &connection.last_demotion) {
        (Some(now), _) => notes.push(now.words.clone()),
        (None, Some(last)) => notes.push(match connection.demotions {
            0 | 1 => format!("went back to TCP once: {}", last.words),
            count => format!("went back to TCP {count} times, at last: {}", last.words),
        }),
        (None, None) => {}
    }
    for (flow, reader) in [
        (&connection.tx, "the peer"),
        (&connection.rx, "this process"),
    ] {
        if let Some(unread @ 1..) = flow.ring_fill {
            let (unread, all) = (size(unread), size(flow.ring_len));
            notes.push(format!("{unread} of {all} not yet read by {reader}"));
        }
    }
    notes
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
            reason_of: "own",
            last_demotion: None,
            upgrades: 0,
            demotions: 0,
            inherited: false,
            tx: Flow::default(),
            rx: Flow::default(),
        }
    }

    fn process(connections: Vec<Connection>) -> Process {
        Process {
            pid: 7,
            name: "name".to_owned(),
            command: "name --of a file".to_owned(),
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
            fitting: None,
        }
    }

    const NARROW: Screen = Screen {
        width: Some(80),
        has_colours: false,
    };

    fn lines(processes: &[Process], screen: Screen) -> Vec<String> {
        let mut text = Vec::new();
        write(&mut text, processes, screen).unwrap();
        let text = String::from_utf8(text).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_terminal_shows_the_reason_below_its_row() {
        let why = "a reason that needs many words, more than there is room for at the end of a row \
                   of a terminal";
        let both = [process(vec![
            connection(5, "shm", None),
            connection(14, "tcp", Some(why)),
        ])];
        let shown = lines(&both, NARROW);
        assert!(shown[2].ends_with("DOWN"), "{shown:#?}");
        assert!(shown[4].trim_start().starts_with("14 "), "{shown:#?}");
        let below = shown[5..]
            .iter()
            .map(|line| line.trim())
            .collect::<Vec<_>>();
        assert_eq!(below.join(" "), why);
        let piped = lines(&both, Screen::default());
        assert_eq!(piped.len(), 5, "{piped:?}");
        assert!(
            piped[2].ends_with("WHY") && piped[4].ends_with(why),
            "{piped:?}"
        );
        for line in shown.iter().chain(&piped) {
            assert_eq!(line, line.trim_end());
        }
    }

    #[test]
    fn nothing_is_wider_than_the_terminal() {
        let mut short = connection(65535, "verbs", None);
        short.local = "255.255.255.255:65535".to_owned();
        short.peer.clone_from(&short.local);
        short.age_ms = 5000 * 3_600_000;
        short.tx.direct = 1_047_000;
        short.rx.tcp = 1_047_000;
        let mut long = connection(65535, "verbs", Some("why"));
        long.local = format!("[{}]:65535", ["2001"; 8].join(":"));
        long.peer.clone_from(&long.local);
        for all in [vec![short.clone()], vec![short, long]] {
            let mut process = process(all);
            process.command = "a long command ".repeat(20);
            process.reasons = (0..20).map(|n| (format!("reason-{n}"), 1)).collect();
            for width in [80, 90, 100, 200] {
                let screen = Screen {
                    width: Some(width),
                    ..NARROW
                };
                let shown = lines(std::slice::from_ref(&process), screen);
                assert!(shown.iter().all(|l| l.len() <= width), "{shown:#?}");
                for part in &process.connections {
                    let has = |text: &str| shown.iter().any(|line| line.contains(text));
                    assert!(has(&part.local) && has(&part.peer), "{shown:#?}");
                    assert!(has("1022K") && has("verbs") && has("50%"), "{shown:#?}");
                }
            }
        }
    }

    #[test]
    fn colours_are_for_a_terminal_that_has_them() {
        let both = [process(vec![connection(5, "shm", Some("why"))])];
        let has_escape = |screen| lines(&both, screen).concat().contains('\x1b');
        assert!(!has_escape(NARROW) && !has_escape(Screen::default()));
        let screen = Screen {
            has_colours: true,
            ..NARROW
        };
        assert!(has_escape(screen));
        // Colours take no columns.
        let styled = lines(&both, screen).join("\n");
        let parts = styled.split('\x1b');
        let bare: String = parts
            .map(|part| part.split_once('m').map_or(part, |(_, rest)| rest))
            .collect();
        let plain = lines(&both, NARROW).join("\n");
        assert_eq!(bare, plain);
    }

    #[test]
    fn connections_are_counted_by_transport() {
        let is = |connections, line: &str| {
            let shown = lines(&[process(connections)], NARROW);
            assert_eq!(shown[1], line);
        };
        is(vec![], "  0 connections; 0 so far");
        let many = ["tcp", "shm", "tcp"].map(|transport| connection(4, transport, None));
        is(many.into(), "  3 connections: 1 shm, 2 tcp; 0 so far");
    }

    #[test]
    fn several_processes_have_a_sum() {
        let mut one = process(vec![connection(4, "shm", None)]);
        (one.tx.indirect, one.tracked) = (3 << 20, 1);
        let mut other = process(vec![connection(4, "tcp", None)]);
        (other.rx.tcp, other.tracked) = (1 << 20, 1);
        let shown = lines(&[one, other], Screen::default());
        let sum = [
            "",
            "2 processes",
            "  2 connections: 1 shm, 1 tcp",
            "  sent 3.0M, received 1.0M; 75% of the bytes by link",
        ];
        assert!(shown.ends_with(&sum.map(str::to_owned)), "{shown:#?}");
        let of_one = "  sent 3.0M, received 0; 100% of the bytes by link";
        assert!(shown.contains(&of_one.to_owned()), "{shown:#?}");
    }

    #[test]
    fn what_was_small_is_no_reason() {
        let mut process = process(Vec::new());
        process.reasons = [("below-threshold".to_owned(), 9)].into();
        let all = |process: Process| lines(&[process], NARROW).join("\n");
        let shown = all(process);
        assert!(!shown.contains("reasons"), "{shown}");
    }
}
