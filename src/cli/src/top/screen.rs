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

/// What the user sees, and has chosen.
pub struct View {
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
    filter: String,
    /// What the filter was before the user began to type.
    typing: Option<String>,
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
            typing: None,
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
        self.typing.is_some()
    }

    pub fn begin_typing(&mut self) {
        self.typing = Some(std::mem::take(&mut self.filter));
    }

    pub fn typed(&mut self, letter: char) {
        self.filter.push(letter);
    }

    pub fn erased(&mut self) {
        self.filter.pop();
    }

    /// `keeps`: what was typed is the filter from now on; else it is the old one.
    pub fn end_typing(&mut self, keeps: bool) {
        if let Some(before) = self.typing.take()
            && !keeps
        {
            self.filter = before;
        }
    }

    // --- drawing ---

    fn rows(&self) -> Vec<Row> {
        let all = if self.processes {
            &self.sample.processes
        } else {
            &self.sample.connections
        };
        let mut rows: Vec<Row> = all
            .iter()
            .filter(|row| row.matches(&self.filter))
            .cloned()
            .collect();
        rows::sort(&mut rows, self.order, self.is_reversed);
        rows
    }

    pub fn draw(&mut self, frame: &mut Frame) {
        let screen = Screen {
            width: Some(frame.area().width.into()),
            has_colours: false,
        };
        let rows = self.rows();
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
        let (totals, about) = (lines(&self.totals(), 2), lines(&about, 3));
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
        frame.render_widget(Line::from(self.keys()), foot);
        if self.shows_help {
            frame.render_widget(Paragraph::new(help()), body);
        } else if let Some(why) = &self.nothing {
            frame.render_widget(Paragraph::new(lines(why, usize::MAX).join("\n")), body);
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

    fn totals(&self) -> String {
        let all = &self.sample.connections;
        let linked = all.iter().filter(|row| row.via != "tcp").count();
        // Not `sum`, whose nothing is -0.
        let moved = self
            .sample
            .processes
            .iter()
            .fold(0.0, |all, row| all + row.rate());
        let mut totals = format!(
            "{}, {}, {linked} on links, {}/s",
            counted(self.sample.processes.len() as u64, "process"),
            counted(all.len() as u64, "connection"),
            rate(moved)
        );
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
        if self.is_typing() {
            return format!("filter: {}_   Enter keeps it, Esc does not", self.filter);
        }
        let filter = if self.filter.is_empty() {
            String::new()
        } else {
            format!(": {}", self.filter)
        };
        let other = if self.processes {
            "connections"
        } else {
            "processes"
        };
        format!(
            "? help  q quit  space {}  p {other}  s sort: {}{}  / filter{filter}",
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
            why: String::new(),
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
            view.totals(),
            "0 processes, 0 connections, 0 on links, 0/s; 1 may not be looked into; 2 left out: no answer"
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
    fn keys_change_what_is_shown() {
        let mut view = view(60);
        view.begin_typing();
        "redis".chars().for_each(|letter| view.typed(letter));
        assert!(drawn(&mut view, 80, 24)[23].starts_with("filter: redis_"));
        view.end_typing(true);
        assert!(drawn(&mut view, 80, 24)[2].starts_with("59 "));
        view.begin_typing();
        view.typed('x');
        view.erased();
        view.end_typing(false);
        view.turn_round();
        assert!(drawn(&mut view, 80, 24)[2].starts_with("1 "));
        view.moves(isize::MAX);
        assert!(
            drawn(&mut view, 80, 24)
                .iter()
                .any(|line| line.starts_with("59 "))
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
