//! Copies the counters out of a process that has the library loaded.

use crate::process::{self, Shown};
use sluice_fabric::words::Reading;
use sluice_stats::{CHUNK_LEN, Chunk, Conn, Direction, Header, MAGIC, Root};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;

/// The library's file name.
const LIBRARY: &str = "libsluice.so";

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
    #[error("has Sluice {version} with counters of layout {layout}, and this tool ({}) reads layout {}",
        env!("CARGO_PKG_VERSION"), sluice_stats::LAYOUT)]
    OtherLayout { version: String, layout: u32 },
    #[error("has a libsluice.so without counters that this tool knows")]
    NoCounters,
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

/// A copy of a process's counters.
pub struct Counters {
    pub pid: i32,
    pub name: String,
    /// Where the library was loaded from.
    pub loaded_from: String,
    pub root: Box<Root>,
    /// Slots in use when they were copied, of connections whose addresses are known.
    pub conns: Vec<Conn>,
    /// What lay unread in the rings of each, to the peer and from it, a moment later.
    pub fills: Vec<[Option<u64>; 2]>,
    /// Of connections whose addresses nobody has asked for: nothing was tried on them.
    pub unlisted: Vec<Conn>,
    /// The counters are a copy of the parent's: the process was forked past every handler and has
    /// not begun to count for itself.
    pub is_copy: bool,
}

/// Where a process keeps its counters.
#[derive(Clone)]
struct Found {
    place: usize,
    /// Of the file that the library was loaded from.
    path: OsString,
}

thread_local! {
    /// Where they were at the last look: who looks ten times a second is not to search each time.
    static FOUND: RefCell<HashMap<i32, Found>> = RefCell::default();
}

/// Copies the counters of `pid`.
pub fn read(pid: i32) -> Result<Counters, Failure> {
    let known = FOUND.with_borrow_mut(|all| all.remove(&pid));
    // The magic is there still, or the process is another one.
    let known = known.and_then(|found| Some((read_root(pid, found.place).ok()?, found)));
    let (root, found) = known.map_or_else(|| search(pid), Ok)?;
    FOUND.with_borrow_mut(|all| all.insert(pid, found.clone()));
    let (conns, unlisted) = read_conns(pid, &root)?;
    let rings = conns.iter().map(|conn| [&conn.tx, &conn.rx]);
    let fills = rings.map(|both| both.map(|ring| fill(pid, ring))).collect();

    // All of it belongs to one program only if that program still runs; after an exec we have read
    // the memory of another.
    let mut now = Box::new(Root::new());
    process::read(pid, found.place, std::slice::from_mut(&mut *now))?;
    if now.header().magic != MAGIC || now.pid() != root.pid() {
        return Err(Failure::NoProcess);
    }
    let is_copy = root.pid() != 0 && process::own_pid(pid).is_some_and(|own| own != root.pid());
    Ok(Counters {
        pid,
        name: process::name(pid),
        loaded_from: Shown(found.path.as_bytes()).to_string(),
        root,
        conns,
        fills,
        unlisted,
        is_copy,
    })
}

/// Looks through the address space of a process.
fn search(pid: i32) -> Result<(Box<Root>, Found), Failure> {
    let maps = match process::mappings(pid) {
        // What is left of a process that has ended has an empty address space.
        Ok(maps) if maps.is_empty() && !process::is_alive(pid) => return Err(Failure::NoProcess),
        maps => maps?,
    };
    let ours: Vec<_> = maps.into_iter().filter(|map| map.is_of(LIBRARY)).collect();
    // A debugger maps the file too, but to read it.
    let code = ours.iter().find(|map| map.is_executable);
    code.ok_or(Failure::NoSluice)?;

    let mut found = Err(Failure::NoCounters);
    for map in ours.iter().filter(|map| map.is_writable) {
        if let Some(place) = find_root(pid, map.start, map.end)? {
            let root = read_root(pid, place);
            // Of two copies of the library one counts.
            let counts = root.as_ref().is_ok_and(|root| !root.is_idle());
            if counts || found.is_err() {
                let path = map.path.clone();
                found = root.map(|root| (root, Found { place, path }));
            }
            if counts {
                break;
            }
        }
    }
    found
}

impl Counters {
    /// Does `conn` count for another process, from which this one was forked?
    pub fn is_inherited(&self, conn: &Conn) -> bool {
        self.is_copy || self.root.is_inherited(conn)
    }
}

/// Looks for the magic between two addresses.
fn find_root(pid: i32, start: usize, end: usize) -> Result<Option<usize>, Failure> {
    /// The library's data takes a few pages; more is not ours to search.
    const SEARCHED: usize = 16 << 20;
    let mut bytes = vec![0_u8; (end - start).min(SEARCHED)];
    process::read(pid, start, &mut bytes)?;
    let found = bytes
        .chunks_exact(ALIGN)
        .position(|line| line.starts_with(&MAGIC));
    Ok(found.map(|line| start + line * ALIGN))
}

fn read_root(pid: i32, place: usize) -> Result<Box<Root>, Failure> {
    let mut header = Header::THIS;
    process::read(pid, place, std::slice::from_mut(&mut header))?;
    if !header.is_readable() {
        let version = Shown(header.version().as_bytes()).to_string();
        return Err(Failure::OtherLayout {
            version,
            layout: header.layout,
        });
    }
    let mut root = Box::new(Root::new());
    process::read(pid, place, std::slice::from_mut(&mut *root))?;
    Ok(root)
}

/// Bytes in the ring of a direction; `None` if there is none, or it is about to go.
fn fill(pid: i32, direction: &Direction) -> Option<u64> {
    let len = direction.ring_len.load();
    let offset = |place: u64| {
        let mut word = [0_u64];
        process::read(pid, usize::try_from(place).ok()?, &mut word).ok()?;
        let Reading {
            offset, flagged, ..
        } = Reading::of(word[0]);
        (!flagged).then_some(offset)
    };
    let [tail, head] = direction.words.each_ref().map(|place| place.load());
    if len == 0 || tail == 0 {
        return None;
    }
    // The reader goes on between the two.
    Some(offset(tail)?.saturating_sub(offset(head)?).min(len))
}

/// The slots in use, chunk by chunk: those of connections with addresses, and without.
fn read_conns(pid: i32, root: &Root) -> Result<(Vec<Conn>, Vec<Conn>), Failure> {
    let mut conns = Vec::new();
    let mut left = root.used();
    let mut number = 0;
    while left > 0 {
        let count = left.min(CHUNK_LEN);
        // A slot is counted after its chunk is in place, but both were copied without a pause.
        let Some(place) = root.chunk(number) else {
            break;
        };
        let mut chunk = Box::new(Chunk::new());
        let slots = chunk.conns.get_mut(..count).unwrap_or_default();
        process::read(pid, place.addr(), slots)?;
        // A slot without a role is of a socket that may become a listener.
        conns.extend(
            chunk
                .conns
                .into_iter()
                .filter(|conn| conn.is_live() && conn.role().is_some()),
        );
        left -= count;
        number += 1;
    }
    Ok(conns.into_iter().partition(|conn| conn.family().is_some()))
}
