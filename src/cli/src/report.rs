//! What `sluice stat --json` prints. The format is described in `src/cli/README.md`; fields are
//! added without a new number, and a new `format` is due when one changes or goes.

use crate::counters::{CARRIERS, Counters, Cut};
use crate::process::Shown;
use serde::Serialize;
use sluice_stats::{Conn, Direction, Family, Reason, Role, Transport};
use std::collections::BTreeMap;

/// Number of this format.
const FORMAT: u32 = 1;

#[derive(Serialize)]
pub struct Report {
    pub format: u32,
    pub processes: Vec<Process>,
    /// Processes that have the library loaded, or may have, but whose counters cannot be read.
    pub refused: Vec<Refused>,
}

#[derive(Serialize)]
pub struct Refused {
    pub pid: i32,
    pub name: String,
    pub why: String,
    /// Reading it took too long; there only if so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
}

#[derive(Serialize)]
pub struct Process {
    pub pid: i32,
    pub name: String,
    /// What it was started as, cut to a bounded length.
    pub command: String,
    pub library: String,
    pub version: String,
    pub age_ms: u64,
    /// Upgrades are turned off: nothing is tracked.
    pub off: bool,
    pub tracked: u64,
    pub upgrades: u64,
    pub demotions: u64,
    pub links: u64,
    pub links_made: u64,
    pub doorbells: u64,
    pub panics: u64,
    /// How often each reason was given, by its code.
    pub reasons: BTreeMap<String, u64>,
    /// All connections together, closed ones too.
    pub tx: Flow,
    pub rx: Flow,
    /// How many connections are open that count for this process, by what carries them: listed or
    /// not.
    pub open: BTreeMap<&'static str, u64>,
    pub connections: Vec<Connection>,
    /// How many more are open, on which nothing was tried: by the reason why.
    pub unlisted: Vec<Unlisted>,
    /// What is left out of all this, and why.
    pub cut: Vec<Cause>,
    /// How many connections have addresses, inherited ones too, by what carries them: `connections`
    /// has the first of them.
    #[serde(skip)]
    pub known: BTreeMap<&'static str, u64>,
    /// Where only some connections are wanted: the bytes of those, to the peers and from them.
    #[serde(skip)]
    pub fitting: Option<(Flow, Flow)>,
}

#[derive(Serialize)]
pub struct Unlisted {
    #[serde(flatten)]
    pub reason: Cause,
    pub count: u64,
}

#[derive(Clone, Serialize)]
pub struct Connection {
    pub fd: i32,
    pub family: &'static str,
    pub role: &'static str,
    pub local: String,
    pub peer: String,
    pub transport: &'static str,
    pub age_ms: u64,
    pub reason: Option<Cause>,
    pub reason_of: &'static str,
    pub last_demotion: Option<Cause>,
    pub upgrades: u64,
    pub demotions: u64,
    pub inherited: bool,
    pub tx: Flow,
    pub rx: Flow,
}

/// A [`Reason`], known or not; or why something is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    pub code: String,
    pub words: String,
}

/// One direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Flow {
    pub tcp: u64,
    pub direct: u64,
    pub indirect: u64,
    pub file: u64,
    pub pages: u64,
    pub resent: u64,
    pub adverts_fresh: u64,
    pub adverts_stale: u64,
    pub adverts_revoked: u64,
    pub spins: u64,
    pub sleeps: u64,
    pub doorbells: u64,
    pub ring_len: u64,
    /// Bytes that lie in it unread; `None` without a ring.
    pub ring_fill: Option<u64>,
}

impl Report {
    pub fn new() -> Report {
        Report {
            format: FORMAT,
            processes: Vec::new(),
            refused: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.refused.is_empty()
    }
}

impl Process {
    pub fn new(counters: &Counters, now_ns: u64) -> Process {
        let (root, tally) = (counters.root(), &counters.tally);
        let own = |count: u64| if counters.is_copy { 0 } else { count };
        let reasons = root
            .reason_counts()
            .filter(|&(number, count)| number != 0 && own(count) != 0);
        let mut open = by_carrier(&tally.own);
        *open.entry("tcp").or_default() += tally.untried.values().sum::<u64>();
        Process {
            pid: counters.pid,
            name: counters.name.clone(),
            command: counters.command.clone(),
            library: counters.found.shown(),
            version: Shown(root.header().version().as_bytes()).to_string(),
            age_ms: if root.started_ns() == 0 {
                0
            } else {
                age_ms(root.started_ns(), now_ns)
            },
            off: root.is_off(),
            tracked: own(root.tracked.load()),
            upgrades: own(root.upgrades.load()),
            demotions: own(root.demotions.load()),
            links: own(root.links.load()),
            links_made: own(root.links_made.load()),
            doorbells: own(root.doorbells.load()),
            panics: own(root.panics.load()),
            reasons: reasons
                .map(|(number, count)| (Cause::new(number).code, count))
                .collect(),
            tx: tally.tx.clone(),
            rx: tally.rx.clone(),
            open,
            connections: counters
                .listed()
                .iter()
                .zip(&counters.fills)
                .map(|(conn, fills)| {
                    Connection::new(conn, fills, counters.is_inherited(conn), now_ns)
                })
                .collect(),
            unlisted: tally
                .untried
                .iter()
                .map(|(&reason, &count)| Unlisted {
                    reason: Cause::new(reason),
                    count,
                })
                .collect(),
            cut: counters.cuts.iter().map(Cause::of_cut).collect(),
            known: by_carrier(&tally.all),
            fitting: None,
        }
    }

    /// The bytes to the peers and from them: of all its connections, or of those that are wanted.
    pub fn flows(&self) -> (&Flow, &Flow) {
        match &self.fitting {
            Some((tx, rx)) => (tx, rx),
            None => (&self.tx, &self.rx),
        }
    }

    /// How many connections it has, listed or not.
    pub fn count(&self) -> u64 {
        let unlisted = self.unlisted.iter().map(|unlisted| unlisted.count);
        self.known.values().copied().chain(unlisted).sum()
    }

    /// Shows no more than so many connections.
    pub fn list_at_most(&mut self, count: usize) {
        self.connections.truncate(count);
    }

    /// Says of connections that were not copied that nobody has looked whether they are wanted.
    pub fn say_how_many_are_known(&mut self) {
        self.say_of_the_rest("looked at");
    }

    /// Says of connections that are not listed, though their addresses are known, that they are
    /// not.
    pub fn say_what_is_not_listed(&mut self) {
        self.say_of_the_rest("listed");
    }

    fn say_of_the_rest(&mut self, what: &str) {
        let known: u64 = self.known.values().sum();
        let first = self.connections.len() as u64;
        if first < known {
            let words = format!("{known} connections, the first {first} {what}");
            self.cut.push(Cause::of("connections", words));
        }
    }
}

/// Counts by the name of what carries a connection, where there are any.
fn by_carrier(counts: &[u64; CARRIERS]) -> BTreeMap<&'static str, u64> {
    let names = ["tcp", "shm", "verbs", "unknown"];
    let all = names.into_iter().zip(counts.iter().copied());
    all.filter(|&(_, count)| count != 0).collect()
}

impl Connection {
    fn new(conn: &Conn, fills: &[Option<u64>; 2], inherited: bool, now_ns: u64) -> Connection {
        let own = |count: u64| if inherited { 0 } else { count };
        let flow = |direction, fill| {
            if inherited {
                Flow::default()
            } else {
                Flow::new(direction, fill)
            }
        };
        let [tx_fill, rx_fill] = *fills;
        let address =
            |addr: Option<std::net::SocketAddr>| addr.map(|a| a.to_string()).unwrap_or_default();
        Connection {
            fd: conn.fd(),
            family: match conn.family() {
                Some(Family::V4) => "ipv4",
                Some(Family::V6) => "ipv6",
                None => "unknown",
            },
            role: match conn.role() {
                Some(Role::Connecting) => "connecting",
                Some(Role::Accepted) => "accepted",
                None => "unknown",
            },
            local: address(conn.local()),
            peer: address(conn.peer()),
            transport: match conn.transport() {
                Some(Transport::Tcp) => "tcp",
                Some(Transport::Shm) => "shm",
                Some(Transport::Verbs) => "verbs",
                None => "unknown",
            },
            age_ms: age_ms(conn.created_ns(), now_ns),
            reason: Cause::unless_none(conn.reason()).map(|cause| cause.told(conn)),
            reason_of: if conn.is_reason_of_peer() {
                "peer"
            } else {
                "own"
            },
            last_demotion: Cause::unless_none(conn.last_demotion()),
            upgrades: own(conn.upgrades()),
            demotions: own(conn.demotions()),
            inherited,
            tx: flow(&conn.tx, tx_fill),
            rx: flow(&conn.rx, rx_fill),
        }
    }
}

impl Cause {
    fn new(number: u16) -> Cause {
        match Reason::from_u16(number) {
            Some(reason) => Cause {
                code: reason.code().to_owned(),
                words: reason.words().to_owned(),
            },
            None => Cause {
                code: format!("reason-{number}"),
                words: format!("reason {number}, which this tool does not know"),
            },
        }
    }

    /// In the words for the end that has said it.
    fn told(self, conn: &Conn) -> Cause {
        if !conn.is_reason_of_peer() {
            return self;
        }
        let words = format!("the other end says: {}", self.words);
        Cause { words, ..self }
    }

    /// The words of a reason with this code; the code itself if this tool does not know it.
    pub fn words_of(code: &str) -> &str {
        let reason = Reason::ALL.iter().find(|reason| reason.code() == code);
        reason.map_or(code, |reason| reason.words())
    }

    fn of(code: &str, words: String) -> Cause {
        let code = code.to_owned();
        Cause { code, words }
    }

    fn of_cut(cut: &Cut) -> Cause {
        match *cut {
            Cut::Mappings(more) => Cause::of(
                "mappings",
                format!("{more} mappings of files named libsluice.so are not looked at"),
            ),
            Cut::Table { read, claimed } => Cause::of(
                "table",
                format!(
                    "{claimed} connections claimed in a table that is broken behind the first \
                     {read}"
                ),
            ),
            Cut::Time { read, claimed } => Cause::of(
                "time",
                format!("{claimed} connections claimed, time for the first {read}"),
            ),
        }
    }

    fn unless_none(number: u16) -> Option<Cause> {
        (number != 0).then(|| Cause::new(number))
    }
}

impl Flow {
    /// Bytes that went by a link.
    pub fn linked(&self) -> u64 {
        // What a process has forged may be more than any number holds.
        let ways = [self.direct, self.indirect, self.file, self.pages];
        ways.into_iter().fold(0, u64::saturating_add)
    }

    pub fn total(&self) -> u64 {
        self.tcp.saturating_add(self.linked())
    }

    /// Adds the bytes of another flow, by the ways they went.
    pub fn add_bytes(&mut self, other: &Flow) {
        for (sum, more) in [
            (&mut self.tcp, other.tcp),
            (&mut self.direct, other.direct),
            (&mut self.indirect, other.indirect),
            (&mut self.file, other.file),
            (&mut self.pages, other.pages),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// All but the ring's contents, in the order of the fields.
    pub fn words(&self) -> [u64; 13] {
        let Flow {
            tcp,
            direct,
            indirect,
            file,
            pages,
            resent,
            adverts_fresh,
            adverts_stale,
            adverts_revoked,
            spins,
            sleeps,
            doorbells,
            ring_len,
            ring_fill: _,
        } = *self;
        [
            tcp,
            direct,
            indirect,
            file,
            pages,
            resent,
            adverts_fresh,
            adverts_stale,
            adverts_revoked,
            spins,
            sleeps,
            doorbells,
            ring_len,
        ]
    }

    /// What has these [`words`](Flow::words).
    pub fn of(words: [u64; 13]) -> Flow {
        let [
            tcp,
            direct,
            indirect,
            file,
            pages,
            resent,
            adverts_fresh,
            adverts_stale,
            adverts_revoked,
            spins,
            sleeps,
            doorbells,
            ring_len,
        ] = words;
        Flow {
            tcp,
            direct,
            indirect,
            file,
            pages,
            resent,
            adverts_fresh,
            adverts_stale,
            adverts_revoked,
            spins,
            sleeps,
            doorbells,
            ring_len,
            ring_fill: None,
        }
    }

    pub fn new(direction: &Direction, ring_fill: Option<u64>) -> Flow {
        let Direction { bytes, .. } = direction;
        Flow {
            tcp: bytes.tcp.load(),
            direct: bytes.direct.load(),
            indirect: bytes.indirect.load(),
            file: bytes.file.load(),
            pages: bytes.pages.load(),
            resent: direction.resent.load(),
            adverts_fresh: direction.adverts_fresh.load(),
            adverts_stale: direction.adverts_stale.load(),
            adverts_revoked: direction.adverts_revoked.load(),
            spins: direction.spins.load(),
            sleeps: direction.sleeps.load(),
            doorbells: direction.doorbells.load(),
            ring_len: direction.ring_len.load(),
            ring_fill,
        }
    }
}

/// The share of the bytes of both directions that went by a link, 0 to 1; `None`: there were none.
pub fn share((tx, rx): (&Flow, &Flow)) -> Option<f64> {
    let all = tx.total().saturating_add(rx.total());
    let linked = tx.linked().saturating_add(rx.linked());
    (all != 0).then(|| linked as f64 / all as f64)
}

/// Ages are never negative, though two clocks may differ by a time namespace.
fn age_ms(then_ns: u64, now_ns: u64) -> u64 {
    now_ns.saturating_sub(then_ns) / 1_000_000
}
