//! Copies the counters out of a process that has the library loaded. All of it may be forged, or
//! change while it is read: it is copied once, and the copy is checked. How much is read follows
//! from constants and from the time that is given, never from what the process says alone.

use crate::library::{self, Loads};
use crate::memory::{self, Copied};
use crate::process::{self, Shown};
use crate::report::Flow;
use sluice_fabric::cursors::Reading;
use sluice_stats::{
    CHUNK_LEN, CHUNK_SLOTS, Chunk, Conn, Direction, Header, MAGIC, REASON_SLOTS, Root, Transport,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

/// Where a root may begin.
const ALIGN: usize = align_of::<Root>();

/// Why the counters of a process cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("no such process")]
    NoProcess,
    #[error("runs without Sluice")]
    NoSluice,
    #[error("not allowed to look into it {}", remedy())]
    NotAllowed,
    #[error("has Sluice {version} with counters of layout {layout}, and this tool ({}) reads \
             layout {}",
        env!("CARGO_PKG_VERSION"), sluice_stats::LAYOUT)]
    OtherLayout { version: String, layout: u32 },
    #[error("has a libsluice.so without counters that this tool knows")]
    NoCounters,
    #[error("read for {} s without an answer, left out", crate::look::PATIENCE.as_secs())]
    Silent,
    #[error("the process that read it ended before it was done")]
    Broken,
    #[error("no process could be started that reads it: {}", crate::run::reason(.0))]
    Unread(io::Error),
    #[error("{}", crate::run::reason(.0))]
    System(io::Error),
}

/// What gives the right to look into another process.
fn remedy() -> &'static str {
    // SAFETY: no arguments, no effect.
    if unsafe { libc::geteuid() } == 0 {
        // Root of a container, as a rule.
        "(it has capabilities that root lacks here): needs CAP_SYS_PTRACE"
    } else {
        "(another user's process, or kernel.yama.ptrace_scope is set): try as root"
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => Failure::NoProcess,
            Some(libc::EPERM | libc::EACCES) => Failure::NotAllowed,
            // The memory went away under our hands: the process ends, or executes another program.
            Some(libc::EFAULT | libc::EIO) => Failure::NoProcess,
            _ if error.kind() == io::ErrorKind::UnexpectedEof => Failure::NoProcess,
            _ => Failure::System(error),
        }
    }
}

/// What was left out of a process's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// So many mappings of files that are named as the library is.
    Mappings(u64),
    /// After so many valid slots the table is not one that the library makes.
    Table { read: u64, claimed: u64 },
    /// There was no time for more than so many of the slots.
    Time { read: u64, claimed: u64 },
}

/// What a reader has for one process.
pub struct Limits {
    /// Connections that are copied whole; the rest is counted.
    pub listed: usize,
    pub until: Instant,
}

/// A copy of a process's counters.
pub struct Counters {
    pub pid: i32,
    pub name: String,
    pub command: String,
    pub found: Found,
    root: Copied<Root>,
    /// Slots in use when they were copied, of connections whose addresses are known: the first
    /// ones.
    listed: Copied<Conn>,
    /// What lay unread in the rings of each, to the peer and from it, a moment later.
    pub fills: Vec<[Option<u64>; 2]>,
    pub tally: Tally,
    pub cuts: Vec<Cut>,
    /// The counters are a copy of the parent's: the process was forked past every handler and has
    /// not begun to count for itself.
    pub is_copy: bool,
}

/// What all connections together make, those too that are not listed.
#[derive(Debug, Default)]
pub struct Tally {
    /// With those of connections that are closed.
    pub tx: Flow,
    pub rx: Flow,
    /// Connections whose addresses are known, by [what carries them](carrier): all, and those that
    /// count for this process.
    pub all: [u64; CARRIERS],
    pub own: [u64; CARRIERS],
    /// Connections whose addresses nobody has asked for, since nothing was tried on them: by the
    /// reason why.
    pub untried: BTreeMap<u16, u64>,
}

/// Kinds of what carries a connection: the last one is unknown.
pub const CARRIERS: usize = 4;

/// The place of a connection in a [`Tally`].
fn carrier(conn: &Conn) -> usize {
    match conn.transport() {
        Some(Transport::Tcp) => 0,
        Some(Transport::Shm) => 1,
        Some(Transport::Verbs) => 2,
        None => CARRIERS - 1,
    }
}

/// Where a process keeps its counters. Cached, so that `top` does not search ten times a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub place: usize,
    /// Of the file that the library was loaded from.
    pub path: OsString,
}

impl Found {
    pub fn shown(&self) -> String {
        Shown(self.path.as_bytes()).to_string()
    }
}

/// Copies the counters of `pid`. `known`: where they were at the last look.
///
/// To be called where it may take for ever: see [`memory::read`].
pub fn read(pid: i32, known: Option<&Found>, limits: &Limits) -> Result<Counters, Failure> {
    // The magic is there still, or the process is another one.
    let known = known.and_then(|found| Some((read_root(pid, found.place).ok()?, found.clone())));
    let mut cuts = Vec::new();
    let (root, found) = match known {
        Some(known) => known,
        None => search(pid, limits, &mut cuts)?,
    };
    let own_pid = root.root().pid();
    let is_copy = own_pid != 0 && process::own_pid(pid).is_some_and(|own| own != own_pid);
    let mut table = Table::new(pid, root.root(), is_copy);
    cuts.extend(table.read(limits)?);
    let Table { listed, tally, .. } = table;
    let fills = fills(pid, listed.items());

    // All of it belongs to one program only if that program still runs; after an exec we have read
    // the memory of another.
    let mut now = Copied::<Root>::new(1);
    memory::read(pid, found.place, now.bytes_mut())?;
    if now.root().header().magic != MAGIC || now.root().pid() != own_pid {
        return Err(Failure::NoProcess);
    }
    Ok(Counters {
        pid,
        name: process::name(pid),
        command: process::command(pid),
        found,
        root,
        listed,
        fills,
        tally,
        cuts,
        is_copy,
    })
}

/// As [`read`], of counters that begin at this place.
#[cfg(feature = "fuzzing")]
pub fn read_at(pid: i32, place: usize) -> Result<Counters, Failure> {
    let path = OsString::from("/lib/libsluice.so");
    let limits = Limits {
        listed: 64,
        until: Instant::now() + std::time::Duration::from_secs(1),
    };
    read(pid, Some(&Found { place, path }), &limits)
}

/// Looks through the address space of a process.
fn search(
    pid: i32,
    limits: &Limits,
    cuts: &mut Vec<Cut>,
) -> Result<(Copied<Root>, Found), Failure> {
    let mut loads = Loads::default();
    let mut is_late = false;
    process::each_mapping(pid, library::NAME, |mapping| {
        loads.see(pid, &mapping);
        is_late = Instant::now() > limits.until;
        if is_late {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    if loads.left_out != 0 {
        cuts.push(Cut::Mappings(loads.left_out));
    }
    if let Some(error) = loads.denied() {
        return Err(error.into());
    }
    // A debugger maps the file too, but to read it.
    if !loads.is_loaded {
        return Err(if is_late {
            Failure::Silent
        } else {
            Failure::NoSluice
        });
    }
    let mut found = Err(Failure::NoCounters);
    for data in &loads.data {
        if let Some(place) = find_root(pid, data)? {
            let root = read_root(pid, place);
            // Of two copies of the library one counts.
            let counts = root.as_ref().is_ok_and(|root| !root.root().is_idle());
            if counts || found.is_err() {
                let path = data.path.clone();
                found = root.map(|root| (root, Found { place, path }));
            }
            if counts {
                break;
            }
        }
    }
    found
}

/// Looks for the magic in data of the library's, of bounded length.
fn find_root(pid: i32, data: &library::Data) -> Result<Option<usize>, Failure> {
    let mut bytes = vec![0_u8; data.end - data.start];
    memory::read(pid, data.start, &mut bytes)?;
    let found = bytes
        .chunks_exact(ALIGN)
        .position(|line| line.starts_with(&MAGIC));
    Ok(found.map(|line| data.start + line * ALIGN))
}

fn read_root(pid: i32, place: usize) -> Result<Copied<Root>, Failure> {
    let mut header = Copied::<Header>::new(1);
    memory::read(pid, place, header.bytes_mut())?;
    let header = header.items().first().unwrap_or(&Header::THIS);
    if !header.is_readable() {
        let version = Shown(header.version().as_bytes()).to_string();
        return Err(Failure::OtherLayout {
            version,
            layout: header.layout,
        });
    }
    let mut root = Copied::new(1);
    memory::read(pid, place, root.bytes_mut())?;
    Ok(root)
}

/// Bytes in the rings of each connection; `None` if there is none, or it is about to go.
fn fills(pid: i32, conns: &[Conn]) -> Vec<[Option<u64>; 2]> {
    let mut places = Vec::new();
    for ring in conns.iter().flat_map(|conn| [&conn.tx, &conn.rx]) {
        if let Some(words) = words_of(ring) {
            // What there is no address for is not there.
            places.extend(words.map(|place| usize::try_from(place).unwrap_or(0)));
        }
    }
    let mut words = memory::words(pid, &places).into_iter();
    let mut fill = |ring: &Direction| {
        words_of(ring)?;
        let [tail, head] = [words.next()?, words.next()?];
        let offset = |word: Option<u64>| {
            let Reading {
                offset, flagged, ..
            } = Reading::of(word?);
            (!flagged).then_some(offset)
        };
        // The reader goes on between the two.
        let unread = offset(tail)?.saturating_sub(offset(head)?);
        Some(unread.min(ring.ring_len.load()))
    };
    let rings = conns.iter().map(|conn| [&conn.tx, &conn.rx]);
    rings.map(|both| both.map(&mut fill)).collect()
}

/// Where the words lie that say what is in a ring, if there is one: its tail and its head.
fn words_of(ring: &Direction) -> Option<[u64; 2]> {
    let words = ring.words.each_ref().map(|place| place.load());
    let [tail, _] = words;
    (ring.ring_len.load() != 0 && tail != 0).then_some(words)
}

/// The connections of a process, as they are read chunk by chunk.
struct Table<'a> {
    pid: i32,
    root: &'a Root,
    is_copy: bool,
    listed: Copied<Conn>,
    tally: Tally,
}

impl<'a> Table<'a> {
    fn new(pid: i32, root: &'a Root, is_copy: bool) -> Self {
        Self {
            pid,
            root,
            is_copy,
            listed: Copied::new(0),
            tally: Tally::default(),
        }
    }

    /// Reads the slots in use; says what it leaves.
    fn read(&mut self, limits: &Limits) -> Result<Option<Cut>, Failure> {
        let sums = [Direction::new(), Direction::new()];
        let mut rings = [0_u64; 2];
        if !self.is_copy {
            sums[0].absorb(&self.root.closed_tx);
            sums[1].absorb(&self.root.closed_rx);
        }
        let claimed = self.root.used();
        let mut read = 0;
        let mut cut = None;
        let mut places = BTreeSet::new();
        let mut conns = Copied::new(CHUNK_LEN);
        for number in 0..CHUNK_SLOTS {
            if read >= claimed {
                break;
            }
            let so_far = (read as u64, claimed as u64);
            if Instant::now() > limits.until {
                let (read, claimed) = so_far;
                cut = Some(Cut::Time { read, claimed });
                break;
            }
            // A slot is counted after its chunk is in place, but both were copied without a pause.
            let place = self.root.chunk(number).map(|chunk| chunk.addr());
            let Some(place) = place.filter(|&place| is_free(&mut places, place)) else {
                let (read, claimed) = so_far;
                cut = Some(Cut::Table { read, claimed });
                break;
            };
            let count = (claimed - read).min(CHUNK_LEN);
            if count < CHUNK_LEN {
                conns = Copied::new(count);
            }
            match memory::read(self.pid, place, conns.bytes_mut()) {
                Ok(()) => {}
                // It is not there. Nor is the process, perhaps; that is found out when the root is
                // looked at again.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    let (read, claimed) = so_far;
                    cut = Some(Cut::Table { read, claimed });
                    break;
                }
                Err(error) => return Err(error.into()),
            }
            self.count(&conns, limits.listed, &sums, &mut rings);
            read += count;
        }
        let [tx, rx] = &sums;
        tx.ring_len.set(rings[0]);
        rx.ring_len.set(rings[1]);
        self.tally.tx = Flow::new(tx, None);
        self.tally.rx = Flow::new(rx, None);
        Ok(cut)
    }

    fn count(
        &mut self,
        conns: &Copied<Conn>,
        listed: usize,
        [tx, rx]: &[Direction; 2],
        [tx_rings, rx_rings]: &mut [u64; 2],
    ) {
        for (number, conn) in conns.items().iter().enumerate() {
            // A slot without a role is of a socket that may become a listener.
            if !conn.is_live() || conn.role().is_none() {
                continue;
            }
            let is_own = !self.is_copy && !self.root.is_inherited(conn);
            if is_own {
                tx.absorb(&conn.tx);
                rx.absorb(&conn.rx);
                *tx_rings = tx_rings.wrapping_add(conn.tx.ring_len.load());
                *rx_rings = rx_rings.wrapping_add(conn.rx.ring_len.load());
            }
            let tally = &mut self.tally;
            if conn.family().is_none() {
                *tally.untried.entry(reason(conn)).or_default() += 1;
                continue;
            }
            let at = carrier(conn);
            if let (Some(all), Some(own)) = (tally.all.get_mut(at), tally.own.get_mut(at)) {
                *all += 1;
                *own += u64::from(is_own);
            }
            if self.listed.items().len() < listed {
                self.listed.push_from(conns, number);
            }
        }
    }
}

/// Reasons beyond those that a root counts are forged, and one.
fn reason(conn: &Conn) -> u16 {
    match conn.reason() {
        reason if usize::from(reason) < REASON_SLOTS => reason,
        _ => u16::MAX,
    }
}

/// May a chunk lie there, beside those before it? Each is a mapping of its own.
fn is_free(places: &mut BTreeSet<usize>, place: usize) -> bool {
    let len = size_of::<Chunk>();
    let Some(end) = place.checked_add(len) else {
        return false;
    };
    let near = place.saturating_sub(len - 1)..end;
    place.is_multiple_of(align_of::<Chunk>())
        && places.range(near).next().is_none()
        && places.insert(place)
}

impl Counters {
    pub fn root(&self) -> &Root {
        self.root.root()
    }

    pub fn listed(&self) -> &[Conn] {
        self.listed.items()
    }

    /// Does `conn` count for another process, from which this one was forked?
    pub fn is_inherited(&self, conn: &Conn) -> bool {
        self.is_copy || self.root().is_inherited(conn)
    }
}

pub mod wire;

#[cfg(test)]
mod tests;
