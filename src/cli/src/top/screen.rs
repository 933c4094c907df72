//! The screen: a line of totals, a table, a line about the row that is selected, a line of keys.

use super::rows::{self, Order, Row, Sample};
use crate::report::Report;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
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
        let parts = [
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
            Constraint::Length(1),
        ];
        let [head, body, about, foot] = Layout::vertical(parts).areas(frame.area());
        let rows = self.rows();
        frame.render_widget(Line::from(self.totals()).style(Modifier::BOLD), head);
        frame.render_widget(Line::from(self.keys()), foot);
        if let Some(why) = &self.nothing {
            frame.render_widget(Paragraph::new(why.as_str()), body);
            return;
        }
        // The table keeps what is selected in sight.
        let last = rows.len().saturating_sub(1);
        let selected = self.at.selected().map(|at| at.min(last));
        self.at.select(selected);
        let row = rows.get(selected.unwrap_or(0));
        frame.render_widget(Line::from(row.map(in_words).unwrap_or_default()), about);
        let what = if self.processes {
            "CONNECTIONS"
        } else {
            "CONNECTION"
        };
        let header = [
            "PID",
            "NAME",
            what,
            "VIA",
            "SENT/s",
            "RECV/s",
            "LINK",
            "WHY ON TCP",
        ];
        let widths = [
            Constraint::Length(7),
            Constraint::Length(10),
            Constraint::Length(32),
            Constraint::Length(5),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(4),
            Constraint::Fill(1),
        ];
        let table = Table::new(rows.iter().map(line), widths)
            .header(ratatui::widgets::Row::new(header).style(Modifier::REVERSED))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .column_spacing(1);
        frame.render_stateful_widget(table, body, &mut self.at);
    }

    fn totals(&self) -> String {
        let all = &self.sample.connections;
        let linked = all.iter().filter(|row| row.via != "tcp").count();
        // Not `sum`, whose nothing is -0.
        let rate = self
            .sample
            .processes
            .iter()
            .fold(0.0, |all, row| all + row.rate());
        let mut totals = format!(
            "{} processes, {} connections, {linked} on links, {}B/s",
            self.sample.processes.len(),
            all.len(),
            amount(rate)
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
        totals
    }

    fn keys(&self) -> String {
        if self.is_typing() {
            return format!("filter: {}_   Enter keeps it, Esc does not", self.filter);
        }
        let filter = if self.filter.is_empty() {
            String::new()
        } else {
            format!(" ({})", self.filter)
        };
        let other = if self.processes {
            "connections"
        } else {
            "processes"
        };
        format!(
            "q quit  s sort ({}{})  r reverse  p {other}  / filter{filter}",
            self.order.word(),
            if self.is_reversed { ", reversed" } else { "" }
        )
    }
}

fn line(row: &Row) -> ratatui::widgets::Row<'static> {
    let linked = row
        .linked
        .map_or_else(String::new, |share| format!("{:.0}%", 100.0 * share));
    ratatui::widgets::Row::new([
        Cell::from(row.pid.to_string()),
        Cell::from(row.name.clone()),
        Cell::from(row.what.clone()),
        Cell::from(row.via.clone()),
        Cell::from(Line::from(amount(row.sent)).right_aligned()),
        Cell::from(Line::from(amount(row.received)).right_aligned()),
        Cell::from(Line::from(linked).right_aligned()),
        Cell::from(row.why.clone()),
    ])
}

/// What a row has no room for.
fn in_words(row: &Row) -> String {
    let age = row.age_ms / 1000;
    let age = match age {
        0..60 => format!("{age} s"),
        60..3600 => format!("{} min", age / 60),
        _ => format!("{} h", age / 3600),
    };
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
    format!("{what}, {age} old{why}")
}

/// A number in four digits at most, with a unit of 1000s.
pub fn amount(number: f64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let mut rest = number;
    let mut unit = "";
    for next in UNITS {
        unit = next;
        if rest < 999.5 {
            break;
        }
        if next != "T" {
            rest /= 1000.0;
        }
    }
    if unit.is_empty() || rest >= 99.95 {
        format!("{rest:.0}{unit}")
    } else {
        format!("{rest:.1}{unit}")
    }
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
            "0 processes, 0 connections, 0 on links, 0B/s; 1 may not be looked into; 2 left out: no answer"
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
        assert!(drawn(&mut view(60), 120, 24)[1].contains("WHY ON TCP"));
        // What moves most comes first.
        assert!(lines[2].starts_with("60 "), "{}", lines[2]);
        assert!(
            lines[2].contains("60.0M") && lines[2].contains("97%"),
            "{}",
            lines[2]
        );
        assert!(lines[2].contains(":60 <- 127.0.0.1:40000 "), "{}", lines[2]);
        assert!(
            lines[22].starts_with("10.0.0.1:60 <- 127.0.0.1:40000, 0 s old"),
            "{}",
            lines[22]
        );
        assert!(lines[23].starts_with("q quit"), "{}", lines[23]);
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
        assert!(lines[1].contains("CONNECTIONS") && lines[23].contains("sort (name, reversed)"));
        view.nothing("no running process uses Sluice".to_owned());
        assert!(drawn(&mut view, 80, 24)[1].starts_with("no running process"));
        // Any size will do.
        for (width, height) in [(1, 1), (10, 2), (300, 3)] {
            drawn(&mut view, width, height);
        }
    }

    #[test]
    fn amounts_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.0k"),
            (1234.0, "1.2k"),
            (99_960.0, "100k"),
            (5.0e9, "5.0G"),
            (7.7e15, "7700T"),
        ] {
            assert_eq!(amount(number), text);
        }
    }
}
