//! Records of a link's control socket, and of a meeting, with descriptors of all kinds, amid the
//! program's calls: sent over real sockets, and taken by what the control thread does.
//!
//! Nothing may crash or wait, and every received descriptor is closed.

use crate::arena::{Once, World, closes, connected, with};
use crate::input::Input;
use sluice_engine::fuzzing;
use sluice_fabric::sys::{self, Fd, ShortPath};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Records of one kind in a row, more than a turn takes.
const FLOOD: u8 = 100;
/// Descriptors of one message at most here.
const WITH: usize = 4;

pub fn run(bytes: &[u8]) {
    fuzzing::keep_nothing();
    let before = descriptors();
    // Another connection of the program's, which looks for its peer.
    let mut other: Option<Other> = None;
    with(bytes, |world, once, input| {
        let kind = input.byte();
        match kind % 8 {
            0..=4 => {
                world.says(input, other.as_ref());
                if kind & 8 != 0 {
                    fuzzing::turn();
                }
            }
            5 => match &mut other {
                None => other = Some(Other::new(once)),
                Some(other) if kind & 8 != 0 => other.visits(),
                Some(_) => fuzzing::turn(),
            },
            _ => {
                let kind = input.byte();
                world.step(kind, once, input);
            }
        }
    });
    if other.take().is_some() {
        // The visitor of the name is gone.
        fuzzing::turn();
        fuzzing::turn();
    }
    fuzzing::keep_nothing();
    if let Some(before) = before {
        // What others have sent is closed by others.
        let end = Instant::now() + Duration::from_secs(5);
        while descriptors().is_some_and(|now| now > before) {
            assert!(Instant::now() < end, "descriptors have stayed open");
            fuzzing::turn();
            std::thread::yield_now();
        }
    }
}

/// How many descriptors are open, once the first input has made what all need.
fn descriptors() -> Option<usize> {
    static FIRST: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(true);
    if FIRST.swap(false, std::sync::atomic::Ordering::Relaxed) {
        return None;
    }
    std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
}

struct Other {
    fd: i32,
    tcp: TcpStream,
    /// A visitor that has connected to its name.
    visitor: Option<Fd>,
    own: u64,
    mirror: u64,
}

impl Other {
    fn new(once: &Once) -> Self {
        let (fd, tcp) = connected(once);
        let inode = |fd| sys::socket_inode(fd).unwrap_or(0);
        let other = Self {
            fd,
            own: inode(fd),
            mirror: inode(tcp.as_raw_fd()),
            tcp,
            visitor: None,
        };
        fuzzing::seek(fd);
        other
    }

    /// Somebody comes to the name, if it is there.
    fn visits(&mut self) {
        // SAFETY: zeroes are a valid address.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let name = fuzzing::name(self.own);
        // The first byte stays 0: an abstract name.
        for (to, from) in address.sun_path.iter_mut().skip(1).zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK;
        let len = size_of::<libc::sa_family_t>() + 1 + name.len();
        self.visitor = sys::socket(libc::AF_UNIX, kind, 0)
            .ok()
            .filter(|socket| sys::connect(socket.raw(), &address, len).is_ok());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        closes(self.fd);
    }
}

impl World {
    /// The peer sends a record, or what is none.
    fn says(&self, input: &mut Input<'_>, other: Option<&Other>) {
        let mut bytes = fuzzing::record();
        let shape = input.byte();
        if shape.is_multiple_of(16) {
            bytes = input.bytes(200).to_vec();
        } else {
            let kinds = [1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, input.half()];
            put(
                &mut bytes,
                6,
                &kinds[input.below(kinds.len())].to_le_bytes(),
            );
            let index = match input.byte() % 4 {
                0 => self.end.index(),
                1 => u32::from(input.byte()),
                _ => input.number(&[63, 64, 4096, u64::MAX]) as u32,
            };
            put(&mut bytes, 16, &index.to_le_bytes());
            if let Some(other) = other.filter(|_| input.chance()) {
                // As its true peer would say it.
                put(&mut bytes, 24, &other.own.to_le_bytes());
                put(&mut bytes, 32, &other.mirror.to_le_bytes());
            }
            for _ in 0..input.byte() % 4 {
                let at = input.below(bytes.len() / 4) * 4;
                let edges = self.edges();
                put(&mut bytes, at, &input.number(&edges).to_le_bytes());
            }
            if shape % 16 == 1 {
                bytes.resize(input.below(300), 0);
            }
        }
        let mut kept = Vec::new();
        let mut with = Vec::new();
        if shape & 16 != 0 {
            for _ in 0..1 + input.below(WITH) {
                if let Some(fd) = self.descriptor(input.byte(), other, &mut kept) {
                    with.push(fd);
                }
            }
        }
        let visitor = other.and_then(|other| other.visitor.as_ref());
        let socket = match visitor {
            Some(visitor) if input.chance() => visitor.raw(),
            _ => self.control.raw(),
        };
        let times = if shape & 0xe0 == 0 {
            input.byte() % FLOOD
        } else {
            1
        };
        for _ in 0..times {
            send(socket, &bytes, &with, shape & 32 != 0);
        }
    }

    /// A descriptor of one kind or another; `kept` holds what is made here until it is sent.
    fn descriptor(&self, kind: u8, other: Option<&Other>, kept: &mut Vec<OwnedFd>) -> Option<i32> {
        use std::os::fd::FromRawFd;
        let mut keep = |fd: Fd| {
            // SAFETY: released, so it is nobody else's.
            kept.push(unsafe { OwnedFd::from_raw_fd(fd.release()) });
            kept.last().map(AsRawFd::as_raw_fd)
        };
        match kind % 14 {
            0 => Some(self.memory.raw()),
            1 => Some(self.control.raw()),
            2 => self.tcp.as_ref().map(AsRawFd::as_raw_fd),
            // The proof that is asked for, and another.
            3 | 4 => {
                let tcp = other.map_or(self.tcp.as_ref(), |other| Some(&other.tcp))?;
                keep(sys::open(ShortPath::of_fd(tcp.as_raw_fd()).as_c_str(), libc::O_PATH).ok()?)
            }
            5 => keep(sys::open(c"/", libc::O_PATH).ok()?),
            6 | 7 => {
                let (reader, writer) = pipe(if kind & 64 != 0 { libc::O_NONBLOCK } else { 0 });
                let (one, two) = if kind & 128 != 0 {
                    (reader, writer)
                } else {
                    (writer, reader)
                };
                drop(two);
                keep(one)
            }
            8 => keep(sys::doorbell().ok()?.0),
            9 => keep(sys::doorbell().ok()?.1),
            10 => keep(sys::eventfd(0).ok()?),
            11 => keep(sys::open(c"/dev/null", libc::O_RDWR).ok()?),
            12 => keep(sys::epoll_create().ok()?),
            _ => keep(sys::memfd(c"other").ok()?),
        }
    }
}

fn pipe(flags: i32) -> (Fd, Fd) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), flags | libc::O_CLOEXEC) };
    assert_eq!(made, 0);
    let [reader, writer] = ends.map(Fd::own);
    (reader, writer)
}

fn put(bytes: &mut [u8], at: usize, part: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(part) {
        *to = *from;
    }
}

/// Sends one message, with descriptors and perhaps with credentials.
fn send(socket: i32, bytes: &[u8], with: &[i32], names_itself: bool) {
    #[repr(C, align(8))]
    struct Room([u8; 256]);
    let mut room = Room([0; 256]);
    let mut piece = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: zeroes are a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = room.0.as_mut_ptr().cast();
    header.msg_controllen = room.0.len();
    let mut used = 0;
    // SAFETY: no arguments.
    let (pid, uid, gid) = unsafe { (libc::getpid(), libc::geteuid(), libc::getegid()) };
    let who = libc::ucred { pid, uid, gid };
    // SAFETY: the room is larger than both messages, which the macros place one after the other.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const header);
        let mut add = |kind, data: *const u8, len: usize| {
            (*at).cmsg_level = libc::SOL_SOCKET;
            (*at).cmsg_type = kind;
            (*at).cmsg_len = libc::CMSG_LEN(len as u32) as usize;
            std::ptr::copy_nonoverlapping(data, libc::CMSG_DATA(at), len);
            used += libc::CMSG_SPACE(len as u32) as usize;
            at = libc::CMSG_NXTHDR(&raw const header, at);
        };
        if names_itself {
            add(
                libc::SCM_CREDENTIALS,
                (&raw const who).cast(),
                size_of_val(&who),
            );
        }
        if !with.is_empty() {
            add(libc::SCM_RIGHTS, with.as_ptr().cast(), size_of_val(with));
        }
    }
    header.msg_controllen = used;
    if used == 0 {
        header.msg_control = std::ptr::null_mut();
    }
    // SAFETY: all that the header points to lives until the call returns.
    unsafe {
        libc::sendmsg(
            socket,
            &raw const header,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
}
