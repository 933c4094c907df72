//! The screen: totals, a table, what is to be said of the row that is selected, a line of keys.

use super::rows::{self, Order, Row, Sample};
use crate::pages::readme::Part;
use crate::report::Report;
use crate::terminal::{Screen, has_colours};
use crate::units::{age, counted, percent, rate};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Table, TableState};
use std::collections::HashSet;
use unicode_width::UnicodeWidthStr;

/// What the user sees, and has chosen.
pub struct View {
    /// All of the last look.
    sample: Sample,
    /// In place of rows.
    nothing: Option<String>,
    /// Processes that may not be looked into, that have not answered, and that are shown in part.
    refused: usize,
    silent: usize,
    cut: usize,
    processes: bool,
    order: Order,
    is_reversed: bool,
    /// Only what has this text is shown; empty: all is.
    filter: String,
    /// The user types it.
    is_typing: bool,
    at: TableState,
    /// The picture stands still.
    pub is_paused: bool,
    /// The keys are shown in place of rows.
    pub shows_help: bool,
    has_colours: bool,
}

impl View {
    pub fn new(processes: bool, order: Order) -> Self {
        Self {
            sample: Sample::default(),
            nothing: None,
            refused: 0,
            silent: 0,
            cut: 0,
            processes,
            order,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            at: TableState::default(),
            is_paused: false,
            shows_help: false,
            has_colours: has_colours(),
        }
    }

    pub fn update(&mut self, sample: Sample, report: &Report) {
        self.sample = sample;
        self.nothing = None;
        self.silent = report.refused.iter().filter(|r| r.silent).count();
        self.refused = report.refused.len() - self.silent;
        self.cut = report
            .processes
            .iter()
            .filter(|p| !p.cut.is_empty())
            .count();
    }

    pub fn nothing(&mut self, why: String) {
        self.sample = Sample::default();
        self.nothing = Some(why);
    }

    // --- keys ---

    pub fn sort_by_next(&mut self) {
        self.order = self.order.next();
    }

    pub fn turn_round(&mut self) {
        self.is_reversed = !self.is_reversed;
    }

    pub fn switch(&mut self) {
        self.processes = !self.processes;
        self.at = TableState::default();
    }

    /// Down by so many rows, or up.
    pub fn moves(&mut self, rows: isize) {
        let now = self.at.selected().unwrap_or(0);
        self.at.select(Some(now.saturating_add_signed(rows)));
    }

    pub fn is_typing(&self) -> bool {
        self.is_typing
    }

    /// What was typed before is there to be changed.
    pub fn begin_typing(&mut self) {
        self.is_typing = true;
    }

    pub fn typed(&mut self, letter: char) {
        self.filter.push(letter);
    }

    pub fn erased(&mut self) {
        self.filter.pop();
    }

    pub fn erased_all(&mut self) {
        self.filter.clear();
    }

    pub fn end_typing(&mut self) {
        self.is_typing = false;
    }

    pub fn has_filter(&self) -> bool {
        !self.filter.is_empty()
    }

    // --- drawing ---

    pub fn draw(&mut self, frame: &mut Frame) {
        let screen = Screen {
            width: Some(frame.area().width.into()),
            has_colours: false,
        };
        let shown = self.sample.with(&self.filter);
        let totals = self.totals(&shown);
        let mut rows = if self.processes {
            shown.processes
        } else {
            shown.connections
        };
        rows::sort(&mut rows, self.order, self.is_reversed);
        let last = rows.len().saturating_sub(1);
        let selected = self.at.selected().map(|at| at.min(last));
        self.at.select(selected);
        let row = rows.get(selected.unwrap_or(0));
        let is_table = self.nothing.is_none() && !self.shows_help;
        let about = row.filter(|_| is_table).map(in_words).unwrap_or_default();
        let lines = |text: &str, most: usize| {
            let mut lines = screen.wrapped(text, 0);
            lines.truncate(most);
            lines
        };
        let (totals, about) = (lines(&totals, 2), lines(&about, 3));
        let parts = [
            Constraint::Length(totals.len() as u16),
            Constraint::Min(1),
            Constraint::Length(about.len() as u16),
            Constraint::Length(1),
        ];
        let [head, body, below, foot] = Layout::vertical(parts).areas(frame.area());
        let totals = Paragraph::new(totals.join("\n")).style(Modifier::BOLD);
        frame.render_widget(totals, head);
        frame.render_widget(Paragraph::new(about.join("\n")), below);
        let keys = if self.is_typing {
            prompt(&self.filter, foot.width.into())
        } else {
            self.keys()
        };
        frame.render_widget(Line::from(keys), foot);
        if self.shows_help {
            frame.render_widget(Paragraph::new(help()), body);
        } else if let Some(why) = &self.nothing {
            frame.render_widget(Paragraph::new(lines(why, usize::MAX).join("\n")), body);
        } else if rows.is_empty() && self.has_filter() {
            frame.render_widget(Paragraph::new("nothing here has the filter's text"), body);
        } else {
            // The table keeps what is selected in sight.
            let table = self.table(&rows, body.width);
            frame.render_stateful_widget(table, body, &mut self.at);
        }
    }

    fn table(&self, rows: &[Row], width: u16) -> Table<'static> {
        let what = if self.processes {
            "CONNECTIONS"
        } else {
            "CONNECTION"
        };
        let longest = |text: fn(&Row) -> &str, least: u16| {
            let lengths = rows.iter().map(|row| text(row).chars().count() as u16);
            lengths.fold(least, u16::max)
        };
        let room = width.saturating_sub(FIXED);
        let connection = longest(|row| &row.what, 11).min(room.saturating_sub(SHORT_NAME));
        let name = longest(|row| &row.name, 4).min(room - connection);
        // After a blank, if it is not only a few letters.
        let rest = (room - connection - name).saturating_sub(1);
        let has_why = rest >= 20;
        let mut header = vec!["PID", "NAME", what, "VIA", "SENT/s", "RECV/s", "LINK"];
        let mut widths = vec![7, name, connection, 5, 6, 6, 4];
        if has_why {
            header.push("WHY ON TCP");
            widths.push(rest);
        }
        let lines = rows.iter().map(|row| line(row, has_why, self.has_colours));
        Table::new(lines, widths.into_iter().map(Constraint::Length))
            .header(ratatui::widgets::Row::new(header).style(Modifier::REVERSED))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .column_spacing(1)
    }

    /// The sums of what is shown.
    fn totals(&self, shown: &Sample) -> String {
        let (connections, processes) = (&shown.connections, &shown.processes);
        // A process that is shown has all of its connections; those are not among its rows.
        let is_part = self.has_filter() && !self.processes;
        let pids: HashSet<i32> = connections.iter().map(|row| row.pid).collect();
        let count = if is_part { pids.len() } else { processes.len() };
        let connections: Vec<&Row> = if is_part {
            connections.iter().collect()
        } else {
            let pids: HashSet<i32> = processes.iter().map(|row| row.pid).collect();
            let all = self.sample.connections.iter();
            all.filter(|row| pids.contains(&row.pid)).collect()
        };
        let linked = connections.iter().filter(|row| row.via != "tcp").count();
        // Not `sum`, whose nothing is -0.
        let moved = if is_part {
            connections.iter().fold(0.0, |all, row| all + row.rate())
        } else {
            processes.iter().fold(0.0, |all, row| all + row.rate())
        };
        let mut totals = format!(
            "{}, {}, {linked} on links, {}/s",
            counted(count as u64, "process"),
            counted(connections.len() as u64, "connection"),
            rate(moved)
        );
        if self.has_filter() {
            let most = Screen {
                width: Some(LONGEST_FILTER),
                has_colours: false,
            };
            totals += &format!("; filter: {}", most.cut(&self.filter, 0));
        }
        for (count, what) in [
            (self.refused, "may not be looked into"),
            (self.silent, "left out: no answer"),
            (self.cut, "shown in part"),
        ] {
            if count != 0 {
                totals += &format!("; {count} {what}");
            }
        }
        if self.is_paused {
            totals += "; paused";
        }
        totals
    }

    fn keys(&self) -> String {
        let other = if self.processes {
            "connections"
        } else {
            "processes"
        };
        format!(
            "? help  q quit  space {}  p {other}  s sort: {}{}  / filter",
            if self.is_paused { "go on" } else { "pause" },
            self.order.word(),
            if self.is_reversed { ", reversed" } else { "" }
        )
    }
}

/// Columns of a table that have a width of their own, and the blanks between these and the others.
const FIXED: u16 = 7 + 5 + 6 + 6 + 4 + 6;

/// Of a name at least so much is shown.
const SHORT_NAME: u16 = 10;

/// Columns that the filter may take among the totals.
const LONGEST_FILTER: usize = 20;

/// The line in which the filter is typed: its end, where it is longer, and what to do then where
/// there is room for that.
fn prompt(filter: &str, width: usize) -> String {
    const BEFORE: &str = "filter: ";
    const KEYS: &str = "  Enter keeps it, Ctrl-U begins anew, Esc shows all";
    let room = width.saturating_sub(BEFORE.len() + 1);
    let ends = filter.char_indices().filter_map(|(at, _)| filter.get(at..));
    let mut ends = ends.skip_while(|end| end.width() > room);
    let shown = ends.next().unwrap_or_default();
    let keys = if shown.width() + KEYS.len() <= room {
        KEYS
    } else {
        ""
    };
    format!("{BEFORE}{shown}_{keys}")
}

/// The keys, and what they do.
fn help() -> String {
    let keys = Part::of("top").table("Keys");
    let width = keys.iter().map(|(key, _)| key.chars().count()).max();
    let width = width.unwrap_or(0);
    let lines = keys
        .iter()
        .map(|(key, what)| format!("  {key:width$}  {what}"));
    let lines = lines.collect::<Vec<_>>().join("\n");
    format!("\n{lines}\n\nAny key goes back.")
}

fn line(row: &Row, has_why: bool, has_colours: bool) -> ratatui::widgets::Row<'static> {
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let colour = match row.via.as_str() {
        _ if !has_colours => Color::Reset,
        "tcp" => Color::Yellow,
        _ => Color::Green,
    };
    let mut cells = vec![
        Cell::from(row.pid.to_string()),
        Cell::from(row.name.clone()),
        Cell::from(row.what.clone()),
        Cell::from(row.via.clone()).style(colour),
        right(rate(row.sent)),
        right(rate(row.received)),
        right(percent(row.linked)),
    ];
    if has_why {
        cells.push(Cell::from(row.why.clone()));
    }
    ratatui::widgets::Row::new(cells)
}

/// What a row has no room for.
fn in_words(row: &Row) -> String {
    let what = if row.whole.is_empty() {
        &row.what
    } else {
        &row.whole
    };
    let why = if row.why.is_empty() {
        String::new()
    } else {
        format!("; on TCP: {}", row.why)
    };
    format!("{} {what}, {} old{why}", row.name, age(row.age_ms))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(view: &mut View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        (0..height)
            .map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect())
            .collect()
    }

    fn view(count: i32) -> View {
        let mut view = View::new(false, Order::Rate);
        let row = |pid: i32| Row {
            pid,
            name: if pid % 2 == 0 {
                "nginx"
            } else {
                "redis-server"
            }
            .to_owned(),
            what: format!(":{pid} <- 127.0.0.1:40000"),
            whole: format!("10.0.0.1:{pid} <- 127.0.0.1:40000"),
            via: "shm".to_owned(),
            sent: f64::from(pid) * 1e6,
            received: 12.0,
            linked: Some(0.97),
            age_ms: 5,
            ..Row::default()
        };
        let connections: Vec<_> = (1..=count).map(row).collect();
        let processes = connections.clone();
        view.update(
            Sample {
                connections,
                processes,
            },
            &Report::new(),
        );
        view
    }

    #[test]
    fn what_is_left_out_is_said_at_the_top() {
        let mut view = view(1);
        let mut report = Report::new();
        for silent in [false, true, true] {
            report.refused.push(crate::report::Refused {
                pid: 1,
                name: String::new(),
                why: String::new(),
                silent,
            });
        }
        view.update(Sample::default(), &report);
        assert_eq!(
            view.totals(&Sample::default()),
            "0 processes, 0 connections, 0 on links, 0/s; 1 may not be looked into; 2 left out: no \
             answer"
        );
    }

    #[test]
    fn a_terminal_of_80_by_24_shows_all_columns() {
        let lines = drawn(&mut view(60), 80, 24);
        assert!(
            lines[0].starts_with("60 processes, 60 connections, 60 on links"),
            "{lines:#?}"
        );
        for word in [
            "PID",
            "NAME",
            "CONNECTION",
            "VIA",
            "SENT/s",
            "RECV/s",
            "LINK",
        ] {
            assert!(lines[1].contains(word), "{word}: {}", lines[1]);
        }
        // The last one fits whole, or is not there.
        assert!(lines[1].trim_end().ends_with("LINK"), "{}", lines[1]);
        assert!(drawn(&mut view(60), 120, 24)[1].contains("WHY ON TCP"));
        // Names are whole where there is room.
        assert!(
            lines[3].starts_with("59      redis-server :59 "),
            "{}",
            lines[3]
        );
        // What moves most comes first.
        assert!(lines[2].starts_with("60 "), "{}", lines[2]);
        assert!(
            lines[2].contains("57.2M") && lines[2].contains("97%"),
            "{}",
            lines[2]
        );
        assert!(lines[2].contains(":60 <- 127.0.0.1:40000 "), "{}", lines[2]);
        assert!(
            lines[22].starts_with("nginx 10.0.0.1:60 <- 127.0.0.1:40000, 0.0s old"),
            "{}",
            lines[22]
        );
        assert!(lines[23].starts_with("? help  q quit"), "{}", lines[23]);
    }

    #[test]
    fn the_reason_of_the_selected_row_is_said_once_in_full() {
        let why = "a reason that needs many words, more than the rest of a line, and is not cut";
        let mut view = view(1);
        view.sample.connections[0].why = why.to_owned();
        let lines = drawn(&mut view, 80, 24).join(" ");
        let words = lines.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words.matches(why).count(), 1, "{words}");
    }

    #[test]
    fn colours_are_shown_where_they_are_wanted() {
        for has_colours in [true, false] {
            let mut view = view(1);
            view.has_colours = has_colours;
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            terminal.draw(|frame| view.draw(frame)).unwrap();
            let cells = &terminal.backend().buffer().content;
            let is_green = cells.iter().any(|cell| cell.fg == Color::Green);
            assert_eq!(is_green, has_colours);
        }
    }

    #[test]
    fn a_filter_is_said_and_the_sums_are_of_what_it_leaves() {
        let mut view = view(60);
        let all = drawn(&mut view, 80, 24);
        view.begin_typing();
        "Redis".chars().for_each(|letter| view.typed(letter));
        let lines = drawn(&mut view, 80, 24);
        let prompt = "filter: Redis_  Enter keeps it, Ctrl-U begins anew, Esc shows all";
        assert_eq!(lines[23].trim_end(), prompt);
        view.end_typing();
        let lines = drawn(&mut view, 80, 24);
        // The odd ones, 900 million bytes a second.
        let sums = "30 processes, 30 connections, 30 on links, 858M/s; filter: Redis";
        assert_eq!(lines[0].trim_end(), sums);
        assert!(lines[2].starts_with("59 "), "{}", lines[2]);
        assert!(lines.iter().all(|line| !line.contains("nginx")));
        view.switch();
        assert_eq!(drawn(&mut view, 80, 24)[0].trim_end(), sums);
        view.switch();
        // What was typed can be changed.
        view.begin_typing();
        "xy".chars().for_each(|letter| view.typed(letter));
        let lines = drawn(&mut view, 80, 24);
        assert!(lines[1].starts_with("nothing here has"), "{}", lines[1]);
        view.erased();
        assert!(drawn(&mut view, 80, 24)[23].starts_with("filter: Redisx_"));
        // Of a long one the end is in sight, and the beginning above.
        (0..100).for_each(|_| view.typed('z'));
        let lines = drawn(&mut view, 80, 24);
        assert!(lines[23].ends_with("zzz_"), "{}", lines[23]);
        let said = format!("; filter: Redisx{}...", "z".repeat(11));
        assert!(lines[0].contains(&said), "{}", lines[0]);
        view.erased_all();
        view.end_typing();
        assert_eq!(drawn(&mut view, 80, 24), all);
    }

    #[test]
    fn keys_change_what_is_shown() {
        let mut view = view(60);
        view.turn_round();
        assert!(drawn(&mut view, 80, 24)[2].starts_with("1 "));
        view.moves(isize::MAX);
        assert!(
            drawn(&mut view, 80, 24)
                .iter()
                .any(|line| line.starts_with("60 "))
        );
        view.moves(isize::MIN);
        view.sort_by_next();
        view.switch();
        let lines = drawn(&mut view, 80, 24);
        assert!(lines[1].contains("CONNECTIONS") && lines[23].contains("sort: name, reversed"));
        view.nothing("no running process uses Sluice".to_owned());
        assert!(drawn(&mut view, 80, 24)[1].starts_with("no running process"));
        view.shows_help = true;
        let lines = drawn(&mut view, 80, 24);
        assert!(
            lines
                .iter()
                .any(|line| line.contains("turns the order round"))
        );
        assert!(
            lines
                .iter()
                .all(|line| !line.contains("no running process"))
        );
        assert!(help().lines().all(|line| line.chars().count() <= 80));
        // Any size will do.
        for (width, height) in [(1, 1), (10, 2), (300, 3)] {
            drawn(&mut view, width, height);
        }
    }
}
