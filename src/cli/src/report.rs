//! What `sluice stat --json` prints. The format is described in `src/cli/README.md`; fields are
//! added without a new number, and a new `format` is due when one changes or goes.

use crate::counters::Counters;
use serde::Serialize;
use sluice_stats::{Conn, Direction, Family, Reason, Role, Transport};
use std::collections::BTreeMap;

/// Number of this format.
const FORMAT: u32 = 1;

#[derive(Serialize)]
pub struct Report {
    pub format: u32,
    pub processes: Vec<Process>,
    /// Processes that have the library loaded, but whose counters cannot be read.
    pub refused: Vec<Refused>,
}

#[derive(Serialize)]
pub struct Refused {
    pub pid: i32,
    pub name: String,
    pub why: String,
}

#[derive(Serialize)]
pub struct Process {
    pub pid: i32,
    pub name: String,
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
    pub connections: Vec<Connection>,
    /// How many more are open, on which nothing was tried: by the reason why.
    pub unlisted: Vec<Unlisted>,
}

#[derive(Serialize)]
pub struct Unlisted {
    #[serde(flatten)]
    pub reason: Cause,
    pub count: u64,
}

#[derive(Serialize)]
pub struct Connection {
    pub fd: i32,
    pub family: &'static str,
    pub role: &'static str,
    pub local: String,
    pub peer: String,
    pub transport: &'static str,
    pub age_ms: u64,
    pub reason: Option<Cause>,
    pub last_demotion: Option<Cause>,
    pub upgrades: u64,
    pub demotions: u64,
    pub inherited: bool,
    pub tx: Flow,
    pub rx: Flow,
}

/// A [`Reason`], known or not.
#[derive(Serialize)]
pub struct Cause {
    pub code: String,
    pub words: String,
}

/// One direction.
#[derive(Default, Serialize)]
pub struct Flow {
    pub tcp: u64,
    pub direct: u64,
    pub indirect: u64,
    pub file: u64,
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
        let Counters {
            root,
            conns,
            unlisted,
            ..
        } = counters;
        let mut untried = BTreeMap::<u16, u64>::new();
        for conn in unlisted {
            *untried.entry(conn.reason()).or_default() += 1;
        }
        let own = |count: u64| if counters.is_copy { 0 } else { count };
        let reasons = root
            .reason_counts()
            .filter(|&(number, count)| number != 0 && own(count) != 0);
        let total = |closed: &Direction, direction: fn(&Conn) -> &Direction| {
            let sum = Direction::new();
            if !counters.is_copy {
                sum.absorb(closed);
            }
            let all = conns.iter().chain(unlisted);
            let own = all.filter(|conn| !counters.is_inherited(conn));
            let mut ring_len = 0;
            for conn in own {
                sum.absorb(direction(conn));
                ring_len += direction(conn).ring_len.load();
            }
            sum.ring_len.set(ring_len);
            Flow::new(&sum, None)
        };
        Process {
            pid: counters.pid,
            name: counters.name.clone(),
            library: counters.loaded_from.clone(),
            version: root.header().version().to_owned(),
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
            tx: total(&root.closed_tx, |conn| &conn.tx),
            rx: total(&root.closed_rx, |conn| &conn.rx),
            connections: conns
                .iter()
                .zip(&counters.fills)
                .map(|(conn, fills)| {
                    Connection::new(conn, fills, counters.is_inherited(conn), now_ns)
                })
                .collect(),
            unlisted: untried
                .into_iter()
                .map(|(reason, count)| Unlisted {
                    reason: Cause::new(reason),
                    count,
                })
                .collect(),
        }
    }
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
            reason: Cause::unless_none(conn.reason()),
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

    fn unless_none(number: u16) -> Option<Cause> {
        (number != 0).then(|| Cause::new(number))
    }
}

impl Flow {
    fn new(direction: &Direction, ring_fill: Option<u64>) -> Flow {
        let Direction { bytes, .. } = direction;
        Flow {
            tcp: bytes.tcp.load(),
            direct: bytes.direct.load(),
            indirect: bytes.indirect.load(),
            file: bytes.file.load(),
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

/// Ages are never negative, though two clocks may differ by a time namespace.
fn age_ms(then_ns: u64, now_ns: u64) -> u64 {
    now_ns.saturating_sub(then_ns) / 1_000_000
}
