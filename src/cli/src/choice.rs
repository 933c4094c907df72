//! Which connections `sluice stat` shows, and in which order.

use crate::report::{Connection, Flow, Process, Report};
use clap::{Args, ValueEnum};
use std::cmp::Reverse;
use std::collections::BTreeMap;

#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Choice {
    /// Show only connections with this port, at either end
    #[arg(long)]
    port: Option<u16>,

    /// Show only connections that TCP carries, or a link
    #[arg(long, value_enum)]
    state: Option<State>,

    /// Sort processes, and the connections of each
    #[arg(long, value_enum, default_value_t)]
    sort: Order,
}

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// TCP
    Tcp,
    /// A link of either kind
    Link,
    /// Shared memory
    Shm,
    /// RDMA
    Verbs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Number of the process
    #[default]
    Pid,
    /// Name of the program
    Name,
    /// Most bytes first
    Bytes,
    /// Local port
    Port,
    /// Oldest first
    Age,
}

impl State {
    fn fits(self, transport: &str) -> bool {
        match self {
            State::Tcp => transport == "tcp",
            State::Link => transport != "tcp",
            State::Shm => transport == "shm",
            State::Verbs => transport == "verbs",
        }
    }
}

impl Choice {
    /// Are some connections left out?
    pub fn is_filter(&self) -> bool {
        self.port.is_some() || self.state.is_some()
    }

    /// Are all connections of a process needed, lest the wrong ones be listed?
    pub fn needs_all(&self) -> bool {
        self.is_filter() || !matches!(self.sort, Order::Pid | Order::Name)
    }

    fn fits(&self, connection: &Connection) -> bool {
        let ports = [port(&connection.local), port(&connection.peer)];
        self.port.is_none_or(|port| ports.contains(&Some(port)))
            && self
                .state
                .is_none_or(|state| state.fits(connection.transport))
    }

    /// Leaves out of a process what is not wanted, and puts the rest in order.
    pub fn apply(&self, process: &mut Process) {
        if self.is_filter() {
            process.say_how_many_are_known();
            process.connections.retain(|one| self.fits(one));
            // The ports of the others are not known.
            if self.port.is_some() || self.state.is_some_and(|state| !state.fits("tcp")) {
                process.unlisted.clear();
            }
            let mut known = BTreeMap::new();
            let [mut tx, mut rx] = [Flow::default(), Flow::default()];
            for one in &process.connections {
                *known.entry(one.transport).or_default() += 1;
                tx.add_bytes(&one.tx);
                rx.add_bytes(&one.rx);
            }
            process.known = known;
            process.fitting = Some((tx, rx));
        }
        let connections = &mut process.connections;
        match self.sort {
            Order::Pid | Order::Name => {}
            Order::Bytes => {
                connections
                    .sort_by_key(|one| Reverse(one.tx.total().saturating_add(one.rx.total())));
            }
            Order::Port => connections.sort_by_key(|one| port(&one.local)),
            Order::Age => connections.sort_by_key(|one| Reverse(one.age_ms)),
        }
    }

    pub fn sort(&self, report: &mut Report) {
        let processes = &mut report.processes;
        processes.sort_by_key(|process| process.pid);
        match self.sort {
            Order::Pid => {}
            Order::Name => processes.sort_by(|a, b| a.name.cmp(&b.name)),
            Order::Bytes => processes.sort_by_key(|process| {
                let (tx, rx) = process.flows();
                Reverse(tx.total().saturating_add(rx.total()))
            }),
            Order::Port => processes
                .sort_by_key(|process| process.connections.first().map(|one| port(&one.local))),
            Order::Age => processes.sort_by_key(|process| Reverse(process.age_ms)),
        }
        report.refused.sort_by_key(|refused| refused.pid);
    }
}

/// The port of `ADDRESS:PORT`.
fn port(address: &str) -> Option<u16> {
    address.rsplit(':').next()?.parse().ok()
}
