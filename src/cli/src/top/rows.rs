//! What moved between two looks: rates of connections and of processes.

use crate::report::{Connection, Flow, Process, Report, share};
use clap::ValueEnum;
use sluice_stats::Reason;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Bytes a second, both directions together
    Rate,
    /// Name of the program
    Name,
    /// How the bytes travel
    Via,
    /// Time since the first byte
    Age,
}

impl Order {
    pub fn next(self) -> Self {
        match self {
            Order::Rate => Order::Name,
            Order::Name => Order::Via,
            Order::Via => Order::Age,
            Order::Age => Order::Rate,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Order::Rate => "rate",
            Order::Name => "name",
            Order::Via => "via",
            Order::Age => "age",
        }
    }
}

/// A line: a connection, or a process with all of its connections.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub pid: i32,
    pub name: String,
    /// The command line, which has no column.
    pub command: String,
    /// Of a connection its own port and the peer's address; of a process how many connections it
    /// has.
    pub what: String,
    /// Both addresses of a connection.
    pub whole: String,
    pub via: String,
    /// Bytes a second since the look before.
    pub sent: f64,
    pub received: f64,
    /// Share of the bytes so far that went by a link, 0 to 1; `None`: there were none.
    pub linked: Option<f64>,
    pub age_ms: u64,
    /// Why it is on TCP, in words.
    pub why: String,
}

impl Row {
    pub fn rate(&self) -> f64 {
        self.sent + self.received
    }

    /// Does it have the text in its pid, its program, its addresses, or why it is on TCP? Capital
    /// letters are as good as small ones.
    pub fn matches(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let has = |part: &String| part.to_lowercase().contains(&text);
        let parts = [&self.name, &self.command, &self.whole, &self.via, &self.why];
        has(&self.pid.to_string()) || parts.into_iter().any(has)
    }
}

/// Sorts; what moves most, and what is oldest, comes first.
pub fn sort(rows: &mut [Row], order: Order, is_reversed: bool) {
    let compare = |a: &Row, b: &Row| -> Ordering {
        let first = match order {
            Order::Rate => b.rate().total_cmp(&a.rate()),
            Order::Name => a.name.cmp(&b.name),
            Order::Via => a.via.cmp(&b.via),
            Order::Age => b.age_ms.cmp(&a.age_ms),
        };
        let first = if is_reversed { first.reverse() } else { first };
        // Rows that are equal keep their places from look to look.
        first.then_with(|| (a.pid, &a.what).cmp(&(b.pid, &b.what)))
    };
    rows.sort_by(compare);
}

/// Rows of one look.
#[derive(Debug, Default)]
pub struct Sample {
    pub connections: Vec<Row>,
    pub processes: Vec<Row>,
}

impl Sample {
    /// The connections that have the text, and the processes that have it, or have such a
    /// connection.
    pub fn with(&self, text: &str) -> Sample {
        let with = |rows: &[Row], is_kept: &dyn Fn(&Row) -> bool| -> Vec<Row> {
            rows.iter().filter(|row| is_kept(row)).cloned().collect()
        };
        let connections = with(&self.connections, &|row| row.matches(text));
        let pids: HashSet<i32> = connections.iter().map(|row| row.pid).collect();
        let processes = with(&self.processes, &|row| {
            pids.contains(&row.pid) || row.matches(text)
        });
        Sample {
            connections,
            processes,
        }
    }
}

/// Which bytes were counted at the look before.
pub struct Sampler {
    before: HashMap<String, (u64, u64)>,
    at: Option<Instant>,
}

impl Sampler {
    pub fn new() -> Self {
        Self {
            before: HashMap::new(),
            at: None,
        }
    }

    pub fn sample(&mut self, report: &Report) -> Sample {
        let now = Instant::now();
        let seconds = self.at.map(|at| now.duration_since(at).as_secs_f64());
        self.at = Some(now);
        self.sample_after(report, seconds)
    }

    /// `seconds` since the look before, if there was one.
    fn sample_after(&mut self, report: &Report, seconds: Option<f64>) -> Sample {
        let before = std::mem::take(&mut self.before);
        let mut rate = |key: String, tx: &Flow, rx: &Flow| {
            let now = (tx.total(), rx.total());
            // What was not there has moved all of it since; at the first look nobody knows when.
            let old = before.get(&key).copied().unwrap_or_default();
            self.before.insert(key, now);
            let Some(seconds) = seconds.filter(|&s| s > 0.0) else {
                return (0.0, 0.0);
            };
            let per_second = |now: u64, old: u64| now.saturating_sub(old) as f64 / seconds;
            (per_second(now.0, old.0), per_second(now.1, old.1))
        };
        let mut sample = Sample::default();
        for process in &report.processes {
            let key = format!("{} {}", process.pid, process.age_ms == 0);
            let rates = rate(key, &process.tx, &process.rx);
            sample.processes.push(of_process(process, rates));
            for connection in process.connections.iter().filter(|c| !c.inherited) {
                let key = format!(
                    "{} {} {} {}",
                    process.pid, connection.fd, connection.local, connection.peer
                );
                let rates = rate(key, &connection.tx, &connection.rx);
                sample
                    .connections
                    .push(of_connection(process, connection, rates));
            }
        }
        sample
    }
}

fn of_process(process: &Process, (sent, received): (f64, f64)) -> Row {
    let open: u64 = process.open.values().sum();
    let linked = open - process.open.get("tcp").copied().unwrap_or(0);
    Row {
        pid: process.pid,
        name: process.name.clone(),
        command: process.command.clone(),
        what: format!("{open} open, {linked} on links"),
        whole: String::new(),
        via: if linked == 0 { "tcp" } else { "link" }.to_owned(),
        sent,
        received,
        linked: share((&process.tx, &process.rx)),
        age_ms: process.age_ms,
        why: common_reason(process),
    }
}

/// Why most of its connections are on TCP that are there now, in words.
fn common_reason(process: &Process) -> String {
    let on_tcp = |one: &&Connection| one.transport == "tcp" && !one.inherited;
    let listed = process.connections.iter().filter(on_tcp);
    let listed = listed.filter_map(|one| Some((one.reason.as_ref()?, 1)));
    let unlisted = process.unlisted.iter().map(|all| (&all.reason, all.count));
    // Every connection is small before it is large.
    let small = Reason::BelowThreshold.code();
    let mut counts = BTreeMap::<&str, u64>::new();
    for (cause, count) in listed.chain(unlisted) {
        if cause.code != small {
            *counts.entry(&cause.words).or_default() += count;
        }
    }
    let common = counts.into_iter().max_by_key(|(_, count)| *count);
    common.map_or(String::new(), |(words, _)| words.to_owned())
}

fn of_connection(process: &Process, connection: &Connection, (sent, received): (f64, f64)) -> Row {
    let arrow = if connection.role == "accepted" {
        "<-"
    } else {
        "->"
    };
    let port = connection.local.rsplit(':').next().unwrap_or_default();
    Row {
        pid: process.pid,
        name: process.name.clone(),
        command: process.command.clone(),
        what: format!(":{port} {arrow} {}", connection.peer),
        whole: format!("{} {arrow} {}", connection.local, connection.peer),
        via: connection.transport.to_owned(),
        sent,
        received,
        linked: share((&connection.tx, &connection.rx)),
        age_ms: connection.age_ms,
        why: connection
            .reason
            .as_ref()
            .map(|cause| cause.words.clone())
            .unwrap_or_default(),
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn report(sent: u64) -> Report {
        let flow = |tcp, indirect| Flow {
            tcp,
            indirect,
            ..Flow::default()
        };
        let connection = Connection {
            fd: 5,
            family: "ipv4",
            role: "accepted",
            local: "10.0.0.1:80".to_owned(),
            peer: "10.0.0.2:4000".to_owned(),
            transport: "shm",
            age_ms: 10,
            reason: None,
            reason_of: "own",
            last_demotion: None,
            upgrades: 1,
            demotions: 0,
            inherited: false,
            tx: flow(100, sent),
            rx: flow(100, 0),
        };
        let mut report = Report::new();
        report.processes.push(Process {
            pid: 7,
            name: "nginx".to_owned(),
            command: "nginx".to_owned(),
            library: String::new(),
            version: String::new(),
            age_ms: 20,
            off: false,
            tracked: 1,
            upgrades: 1,
            demotions: 0,
            links: 1,
            links_made: 1,
            doorbells: 0,
            panics: 0,
            reasons: std::collections::BTreeMap::new(),
            tx: flow(100, sent),
            rx: flow(100, 0),
            open: [("shm", 1)].into(),
            known: [("shm", 1)].into(),
            connections: vec![connection],
            unlisted: Vec::new(),
            cut: Vec::new(),
            fitting: None,
        });
        report
    }

    #[test]
    fn rates_are_of_what_moved_between_two_looks() {
        let mut sampler = Sampler::new();
        let first = sampler.sample_after(&report(1000), None);
        assert_eq!(first.connections[0].rate(), 0.0);
        let second = sampler.sample_after(&report(5000), Some(2.0));
        assert_eq!(second.connections[0].sent, 2000.0);
        assert_eq!(second.connections[0].received, 0.0);
        assert_eq!(second.processes[0].sent, 2000.0);
        assert_eq!(second.processes[0].linked, Some(5000.0 / 5200.0));
        assert_eq!(second.processes[0].what, "1 open, 1 on links");
        // Counts that fall are those of another connection under the same number.
        let third = sampler.sample_after(&report(0), Some(1.0));
        assert_eq!(third.connections[0].sent, 0.0);
    }

    #[test]
    fn a_process_has_the_reason_that_most_of_its_connections_have_now() {
        let mut report = report(0);
        let process = &mut report.processes[0];
        // What was before is none.
        process.reasons = [("not-established".to_owned(), 8)].into();
        assert_eq!(of_process(process, (0.0, 0.0)).why, "");
        let cause = |code: &str| crate::report::Cause {
            code: code.to_owned(),
            words: format!("because of {code}"),
        };
        let mut connection = process.connections[0].clone();
        connection.transport = "tcp";
        connection.reason = Some(cause("one"));
        process.connections.push(connection);
        assert_eq!(of_process(process, (0.0, 0.0)).why, "because of one");
        for (code, count) in [("two", 2), (Reason::BelowThreshold.code(), 9)] {
            let reason = cause(code);
            let all = &mut process.unlisted;
            all.push(crate::report::Unlisted { reason, count });
        }
        assert_eq!(of_process(process, (0.0, 0.0)).why, "because of two");
    }

    #[test]
    fn rows_are_sorted_and_found() {
        let row = |name: &str, sent, via: &str, age_ms| Row {
            name: name.to_owned(),
            via: via.to_owned(),
            sent,
            age_ms,
            ..Row::default()
        };
        let mut rows = [
            row("b", 1.0, "tcp", 5),
            row("a", 3.0, "shm", 1),
            row("c", 2.0, "verbs", 9),
        ];
        let names = |rows: &[Row]| rows.iter().map(|r| r.name.clone()).collect::<String>();
        for (order, expected) in [
            (Order::Rate, "acb"),
            (Order::Name, "abc"),
            (Order::Via, "abc"),
            (Order::Age, "cba"),
        ] {
            sort(&mut rows, order, false);
            assert_eq!(names(&rows), expected, "{order:?}");
        }
        sort(&mut rows, Order::Rate, true);
        assert_eq!(names(&rows), "bca");
        assert!(rows[0].matches("TCP") && !rows[0].matches("shm") && rows[0].matches(""));
    }

    #[test]
    fn a_text_is_looked_for_in_all_that_is_known_of_a_row() {
        let row = Row {
            pid: 1234,
            name: "nginx".to_owned(),
            command: "nginx -c /etc/other.conf".to_owned(),
            what: ":80 <- 10.0.0.2:4000".to_owned(),
            whole: "10.0.0.1:80 <- 10.0.0.2:4000".to_owned(),
            why: "the peer does not use Sluice".to_owned(),
            ..Row::default()
        };
        for text in [
            "23",
            "NGI",
            "Other.conf",
            "0.1:80",
            ":80 <- 10",
            "USE sluice",
        ] {
            assert!(row.matches(text), "{text}");
        }
        for text in ["5", "apache", "10.0.0.3"] {
            assert!(!row.matches(text), "{text}");
        }
        let of = |pid, whole: &str| Row {
            pid,
            whole: whole.to_owned(),
            ..Row::default()
        };
        let sample = Sample {
            connections: vec![of(5, "a:1"), of(5, "b:2"), of(6, "c:3")],
            processes: vec![of(5, ""), of(6, ""), of(7, "")],
        };
        // A process is there with its connection, and without one.
        for (text, expected) in [("b:2", (1, vec![5])), ("7", (0, vec![7]))] {
            let kept = sample.with(text);
            let pids = kept.processes.iter().map(|row| row.pid).collect();
            assert_eq!((kept.connections.len(), pids), expected);
        }
    }
}
